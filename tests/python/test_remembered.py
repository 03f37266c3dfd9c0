"""Models that remember sizes of earlier calls in Python: no plan does, so they are refused where it counts."""

from __future__ import annotations

import types
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import cleave


class Most(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.most = 0

    def forward(self, x: Tensor) -> Tensor:
        self.most = max(self.most, x.shape[0])
        return x * self.most


class Flag(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.flags = [False]

    def forward(self, x: Tensor) -> Tensor:
        y = x + 1 if self.flags[0] else x
        self.flags = [x.shape[0] > 5]
        return y


class Table(nn.Module):
    """Keeps the largest table, whose values follow its size."""

    def __init__(self) -> None:
        super().__init__()
        self.table: Tensor | None = None

    def forward(self, x: Tensor) -> Tensor:
        if self.table is None or len(self.table) < len(x):
            self.table = torch.linspace(0, 1, len(x))
        return x * self.table[: len(x), None]


class Seen(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.seen: set[int] = set()

    def forward(self, x: Tensor) -> Tensor:
        self.seen.add(x.shape[0])
        return x * sum(self.seen)


class Cache(nn.Module):
    """A cache that nobody can tell: what it holds for a size does not depend on others."""

    def __init__(self) -> None:
        super().__init__()
        self.tables: dict[int, Tensor] = {}
        self.longest = 0

    def forward(self, x: Tensor) -> Tensor:
        self.longest = max(self.longest, len(x))
        if len(x) not in self.tables:
            self.tables[len(x)] = torch.linspace(0, 1, len(x))[:, None]
        return x * self.tables[len(x)]


def built(cls: type[nn.Module]) -> nn.Module:
    return nn.Sequential(cls(), nn.Tanh(), nn.Sigmoid()).eval()


def outcomes(run: Callable[[Tensor], Tensor], model: nn.Module, sizes: list[int]) -> list[str]:
    found = []
    for n in sizes:
        x = torch.randn(n, 3, generator=torch.Generator().manual_seed(n))
        try:
            got = run(x)
        except cleave.CleaveError:
            found.append("refused")  # a call that was not made
        else:
            found.append("right" if torch.equal(got, model(x)) else "wrong")
    return found


def prepared(model: nn.Module, cut: bool) -> Callable[[Tensor], Tensor]:
    x, sizes = torch.randn(3, 3), {"input": {0: ("B", 1, 64)}}
    if not cut:
        return cleave.capture(model, x, dynamic_dims=sizes)
    spec = cleave.SplitSpec(boundary="50%", dynamic_batch=None, dynamic_dims=sizes)
    split = cleave.prepare_split(model, example_inputs=x, split=spec)
    return lambda x: split.run_suffix(split.run_prefix(x))


@pytest.mark.parametrize("cut", [False, True])
@pytest.mark.parametrize("cls", [Most, Flag, Table, Seen])
def test_state_by_size_that_counts_is_never_wrong(cls: type[nn.Module], cut: bool) -> None:
    with torch.no_grad():
        try:
            run = prepared(built(cls), cut)
        except cleave.CleaveError as e:
            assert "sizes" in str(e) or "forward" in str(e)  # noqa: PT017
            return
        assert "wrong" not in outcomes(run, built(cls), [3, 12, 3, 24, 12, 8, 2, 3])


@pytest.mark.parametrize("cut", [False, True])
def test_caches_that_nobody_can_tell_are_taken(cut: bool) -> None:
    with torch.no_grad():
        run = prepared(built(Cache), cut)
        assert outcomes(run, built(Cache), [3, 12, 3, 24, 12, 3]) == ["right"] * 6


def test_a_forward_that_is_replaced_in_the_class_is_noticed() -> None:
    class Inner(nn.Module):
        def forward(self, x: Tensor, k: int = 2) -> Tensor:
            return x * k

    class Sub(Inner):
        pass

    def other(self: Any, x: Tensor) -> Tensor:
        return x + 5

    changes: list[Callable[[], Any]] = [
        lambda: setattr(Inner, "forward", other),
        lambda: setattr(Sub, "forward", other),
        lambda: setattr(Inner.forward, "__defaults__", (3,)),
        lambda: setattr(Inner.forward, "__code__", other.__code__),
    ]
    before = Inner.forward
    code, defaults = before.__code__, before.__defaults__
    for change in changes:
        model, x = nn.Sequential(Sub(), nn.ReLU()).eval(), torch.randn(2, 3)
        with torch.no_grad():
            plan = cleave.capture(model, x)
            plan(x)
            change()
            with pytest.raises(cleave.InputError, match="forward"):
                plan(x)
        Inner.forward = before  # type: ignore[method-assign]
        before.__code__, before.__defaults__ = code, defaults
        if "forward" in vars(Sub):
            del Sub.forward


def test_what_a_namespace_lacks_is_noticed_when_it_comes() -> None:
    class Model(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.cfg = types.SimpleNamespace(a=1.0)

        def forward(self, x: Tensor) -> Tensor:
            return x * getattr(self.cfg, "scale", 1.0) * self.cfg.a

    model, x = Model().eval(), torch.randn(2, 3)
    with torch.no_grad():
        plan = cleave.capture(model, x)
        plan(x)
        model.cfg.scale = 3.0
        with pytest.raises(cleave.InputError, match="cfg"):
            plan(x)


class Constant(nn.Module):
    factor = 2.0

    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(3))
        self.weight.scale = 1.5  # type: ignore[attr-defined]

    def forward(self, x: Tensor) -> Tensor:
        other = self.__dict__.get("other", 1.0) * vars(self).get("more", 1.0)
        return x * type(self).factor * self.weight * self.weight.scale * other  # type: ignore[operator]


@pytest.mark.parametrize("what", ["class", "parameter", "dict", "vars"])
def test_reads_that_nobody_sees_are_watched_all_the_same(what: str) -> None:
    model, x = Constant().eval(), torch.randn(2, 3)
    with torch.no_grad():
        plan = cleave.capture(model, x)
        assert torch.equal(plan(x), model(x))
        assert torch.equal(plan(x), model(x))
        try:
            if what == "class":
                Constant.factor = 3.0
            elif what == "parameter":
                model.weight.scale = 2.5  # type: ignore[attr-defined]
            else:
                setattr(model, "other" if what == "dict" else "more", 4.0)
            with pytest.raises(cleave.InputError, match="capture the model again"):
                plan(x)
        finally:
            Constant.factor = 2.0

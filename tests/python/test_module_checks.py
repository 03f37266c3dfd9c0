"""What is changed in a model behind a plan: noticed where the forward reads it, and left alone where it does not."""

from __future__ import annotations

import dataclasses
import enum
import types
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import cleave
from cleave import InputError, SplitSpec


class Kind(enum.Enum):
    A = 1
    B = 2


@dataclasses.dataclass
class Config:
    factor: int = 2
    inner: dict[str, list[int]] = dataclasses.field(default_factory=lambda: {"a": [1, 2]})


class Reader(nn.Module):
    """Reads attributes of all kinds."""

    of_the_class = 2

    def __init__(self) -> None:
        super().__init__()
        self.whole, self.real, self.flag, self.text, self.nothing = 2, 1.5, True, "relu", None
        self.pair, self.listed, self.mapped, self.some = (1, 2), [1, 2], {"a": 1}, {1, 2}
        self.kind, self.config, self.space = Kind.A, Config(), types.SimpleNamespace(k=2)
        self.function, self.dtype, self.size, self.part = torch.relu, torch.float32, torch.Size([1, 2]), slice(0, 2)
        self.history: list[float] = []
        self.unread = {"a": 1}

    def forward(self, x: Tensor) -> Tensor:
        y = x * self.whole * self.real * self.pair[0] * self.listed[0] * self.mapped["a"] * len(self.some)
        y = y * self.config.factor * self.config.inner["a"][0] * self.space.k * self.size[0] * self.of_the_class
        y = self.method(y)
        if self.flag:
            y = y + 1
        if self.text == "relu" and self.nothing is None and self.kind is Kind.A:
            y = y.relu()
        return self.function(y[self.part]).to(self.dtype)

    def method(self, x: Tensor) -> Tensor:
        return x + 1


CHANGES: dict[str, Callable[[Any], None]] = {
    "whole": lambda m: setattr(m, "whole", 3),
    "real": lambda m: setattr(m, "real", 2.5),
    "flag": lambda m: setattr(m, "flag", False),
    "text": lambda m: setattr(m, "text", "no"),
    "nothing": lambda m: setattr(m, "nothing", 1),
    "pair": lambda m: setattr(m, "pair", (5, 2)),
    "listed": lambda m: setattr(m, "listed", [5, 2]),
    "listed[0]": lambda m: m.listed.__setitem__(0, 5),
    "items in listed": lambda m: m.listed.append(5),
    "mapped['a']": lambda m: m.mapped.__setitem__("a", 5),
    "items in mapped": lambda m: m.mapped.__setitem__("b", 5),
    "some": lambda m: m.some.add(5),
    "kind": lambda m: setattr(m, "kind", Kind.B),
    "config": lambda m: setattr(m, "config", Config(3)),
    "config.factor": lambda m: setattr(m.config, "factor", 3),
    "config.inner['a'][0]": lambda m: m.config.inner["a"].__setitem__(0, 3),
    "space.k": lambda m: setattr(m.space, "k", 3),
    "function": lambda m: setattr(m, "function", torch.sigmoid),
    "dtype": lambda m: setattr(m, "dtype", torch.float64),
    "size": lambda m: setattr(m, "size", torch.Size([3])),
    "part": lambda m: setattr(m, "part", slice(0, 3)),
    "of_the_class": lambda m: setattr(m, "of_the_class", 3),
    "method": lambda m: setattr(m, "method", lambda x: x + 2),
}


@pytest.mark.parametrize("what", CHANGES)
def test_an_attribute_that_the_forward_reads_must_stay(what: str) -> None:
    model, x = Reader().eval(), torch.rand(4, 4)
    with torch.no_grad():
        plan = cleave.capture(model, x)
        assert torch.equal(plan(x), model(x))
        CHANGES[what](model)
        with pytest.raises(InputError, match="changed after the plan was captured") as error:
            plan(x)
    assert f"{what} of module (the root)" in str(error.value)


def test_what_the_forward_does_not_read_may_change() -> None:
    model, x = Reader().eval(), torch.rand(4, 4)
    with torch.no_grad():
        plan = cleave.capture(model, x)
        model.history.append(1.0)
        model.unread["a"] = 2
        model.new = 3
        model.listed = list(model.listed)  # equal
        assert torch.equal(plan(x), model(x))


@pytest.mark.parametrize(
    ("layer", "name", "value"),
    [
        (nn.Conv2d(3, 4, 3), "stride", (2, 2)),
        (nn.Conv2d(3, 4, 3), "padding", (1, 1)),
        (nn.AdaptiveAvgPool2d((2, 2)), "output_size", (1, 1)),
        (nn.ReflectionPad2d(1), "padding", (2, 2, 2, 2)),
    ],
)
def test_layers_of_torch(layer: nn.Module, name: str, value: Any) -> None:
    model, x = nn.Sequential(layer, nn.ReLU()).eval(), torch.rand(2, 3, 9, 9)
    runtime = cleave.prepare_split(model, example_inputs=x, split=SplitSpec(boundary="after:0"))
    setattr(layer, name, value)
    with pytest.raises(InputError, match=f"{name} of module 0 changed"):
        runtime.run_prefix(x)


class Tied(nn.Module):
    """One matrix for both ends, as language models have."""

    def __init__(self) -> None:
        super().__init__()
        self.table, self.out = nn.Embedding(30, 16), nn.Linear(16, 30, bias=False)
        self.out.weight = self.table.weight

    def forward(self, ids: Tensor) -> Tensor:
        return self.out(self.table(ids))  # type: ignore[no-any-return]


@pytest.mark.parametrize("level", ["none", "safe", "fast"])
def test_tied_weights_that_are_no_longer_tied(level: str) -> None:
    model, ids = Tied().eval(), torch.randint(0, 30, (4, 6))
    with torch.no_grad():
        plan = cleave.capture(model, ids, optimize=level)
        model.table.weight = model.out.weight = nn.Parameter(torch.randn(30, 16))
        torch.testing.assert_close(plan(ids), model(ids))
        model.out.weight = nn.Parameter(torch.randn(30, 16))
        with pytest.raises(InputError, match=r"out.weight and table.weight were one tensor"):
            plan(ids)
        model.out.weight = model.table.weight
        torch.testing.assert_close(plan(ids), model(ids))


def test_tied_weights_of_a_checkpoint_that_has_two(tmp_path: Any) -> None:
    model, ids = Tied().eval(), torch.randint(0, 30, (4, 6))
    runtime = cleave.prepare_split(model, example_inputs=ids, split=SplitSpec(boundary="after:table"))
    model.load_state_dict({key: torch.randn_like(t) for key, t in model.state_dict().items()}, assign=True)
    with pytest.raises(InputError, match="were one tensor"):
        runtime.run_prefix(ids)


def test_a_table_for_the_sizes_of_the_last_call_is_not_trusted_when_it_is_for_others() -> None:
    """Its values, and not its shape, depend on the batch: only the number beside it tells."""

    class Table(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.layer = nn.Linear(4, 4)
            self.rows: tuple[int, ...] = ()
            self.table = torch.zeros(4)

        def forward(self, x: Tensor) -> Tensor:
            if self.rows != (len(x),):
                self.rows = (len(x),)
                self.table = torch.full((4,), float(len(x)))
            return self.layer(x) + self.table  # type: ignore[no-any-return]

    model = Table().eval()
    with torch.no_grad():
        model(torch.rand(8, 4))
        runtime = cleave.prepare_split(
            model, example_inputs=torch.rand(8, 4), split=SplitSpec(boundary="50%", dynamic_batch=(2, 64))
        )
        plan = cleave.capture(model, torch.rand(8, 4), dynamic_batch=(2, 64))
        for n in (8, 4, 8, 9, 8, 8):
            x = torch.rand(n, 4)
            want = torch.nn.functional.linear(x, model.layer.weight, model.layer.bias) + n
            torch.testing.assert_close(runtime.run_suffix(runtime.run_prefix(x)), want)
            torch.testing.assert_close(plan(x), want)
            assert torch.equal(model(x), plan(x))


def test_plans_within_function_transforms_are_the_model() -> None:
    model, x = nn.Sequential(nn.Linear(4, 4), nn.ReLU()).eval(), torch.rand(2, 4)
    for grad in (True, False):
        with torch.set_grad_enabled(grad):
            plan = cleave.capture(model, x)
        assert torch.equal(
            torch.func.grad(lambda t, plan=plan: plan(t).sum())(x), torch.func.grad(lambda t: model(t).sum())(x)
        )
        assert torch.equal(torch.func.jacrev(plan)(x), torch.func.jacrev(model)(x))
        assert torch.equal(torch.vmap(plan)(x[None]), torch.vmap(model)(x[None]))


def test_what_a_call_leaves_behind_is_named() -> None:
    class Cache(nn.Module):
        seen: Tensor | None = None

        def forward(self, x: Tensor) -> Tensor:
            self.seen = x if self.seen is None else torch.cat([self.seen, x])
            return self.seen.sum(0)

    with pytest.raises(cleave.CaptureError, match=r"second call.*leaves something behind in .*'seen'"):
        cleave.capture(nn.Sequential(Cache()).eval(), torch.rand(2, 4))


def test_an_input_that_is_no_plain_tensor_is_named() -> None:
    plan = cleave.capture(nn.ReLU(), torch.rand(2, 4), dynamic_batch=(1, 4))
    with pytest.raises(InputError, match="input is no plain tensor"):
        plan(torch.rand(2, 4).to_sparse())


def test_levels_are_checked() -> None:
    with pytest.raises(cleave.ArgumentError, match="optimize is one of none, safe, fast, not 'most'"):
        cleave.capture(nn.ReLU(), torch.rand(2), optimize="most")
    with pytest.raises(TypeError, match="or an Optimize, not 3"):
        cleave.capture(nn.ReLU(), torch.rand(2), optimize=3)  # type: ignore[arg-type]

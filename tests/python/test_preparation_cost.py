"""How often a model runs while a split for many batch sizes is prepared: rows, counted in its own forward."""

from __future__ import annotations

import threading
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import cleave
from cleave import SplitSpec, _capture


class Counted(nn.Module):
    """A plain model that knows how many rows it has seen."""

    rows = 0

    def __init__(self) -> None:
        super().__init__()
        self.first, self.second = nn.Linear(4, 8), nn.Linear(8, 2)

    def forward(self, x: Tensor) -> Tensor:
        y = self.body(x)
        type(self).rows += len(y)
        return y

    def body(self, x: Tensor) -> Tensor:
        return self.second(self.first(x).relu())


class Unbound(Counted):
    """Takes its batch apart, as detectors do with their images."""

    def body(self, x: Tensor) -> Tensor:
        return super().body(torch.stack(x.unbind(0)))


class InFours(Counted):
    """Takes multiples of four rows."""

    def body(self, x: Tensor) -> Tensor:
        return super().body(x).view(-1, 4, 2).flip(1).reshape(len(x), 2)


class UpTo(Counted):
    """Has a table of 64 rows."""

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("table", torch.rand(64, 2))

    def body(self, x: Tensor) -> Tensor:
        assert len(x) <= 64, "no more than 64 rows"
        return super().body(x) + self.table[: len(x)]


class Sticky(Counted):
    """Keeps what its first call made."""

    def __init__(self) -> None:
        super().__init__()
        self.kept: Tensor | None = None

    def body(self, x: Tensor) -> Tensor:
        if self.kept is None:
            self.kept = self.first.bias * x.sum()
        return self.second(self.first(x) + self.kept)


class Tabled(Counted):
    """Keeps a table for the sizes that it has seen last, as detectors do with their anchors."""

    def __init__(self) -> None:
        super().__init__()
        self.shape: tuple[int, ...] = ()
        self.table = torch.zeros(1)

    def body(self, x: Tensor) -> Tensor:
        if self.shape != tuple(x.shape):
            self.shape = tuple(x.shape)
            self.table = torch.linspace(0, 1, 2).expand(len(x), 2).contiguous()
        return super().body(x) + self.table


class Cached(Counted):
    """Keeps a table for each size."""

    def __init__(self) -> None:
        super().__init__()
        self.tables: dict[int, Tensor] = {}

    def body(self, x: Tensor) -> Tensor:
        if len(x) not in self.tables:
            self.tables[len(x)] = torch.linspace(0, 1, 2).expand(len(x), 2).contiguous()
        return super().body(x) + self.tables[len(x)]


def prepared(model: Counted, example: int, dynamic_batch: tuple[int, int] = (2, 64)) -> tuple[cleave.SplitRuntime, int]:
    """A split, and the rows that the model ran for it."""
    type(model).rows = 0
    spec = SplitSpec(boundary="50%", dynamic_batch=dynamic_batch)
    runtime = cleave.prepare_split(model, example_inputs=torch.rand(example, 4), split=spec)
    return runtime, type(model).rows


def check(runtime: cleave.SplitRuntime, model: nn.Module, sizes: tuple[int, ...]) -> None:
    with torch.no_grad():
        for n in sizes:
            x = torch.rand(n, 4)
            assert torch.equal(runtime.run_suffix(runtime.run_prefix(x)), model(x))


@pytest.mark.parametrize("example", [2, 3, 8, 32])
@pytest.mark.parametrize("kind", [Counted, Unbound, Tabled, Cached])
def test_a_preparation_runs_the_example_once_and_few_rows_beside_it(kind: type[Counted], example: int) -> None:
    model = kind().eval()
    runtime, rows = prepared(model, example)
    assert rows <= example + 28
    assert len(runtime.variants) == 1
    check(runtime, model, (2, example, 17, example + 1))


@pytest.mark.parametrize("example", [8, 32])
@pytest.mark.parametrize("kind", [Tabled, Cached])
def test_an_example_that_a_table_was_made_for_costs_a_plan_of_its_own_and_no_more(
    kind: type[Counted], example: int
) -> None:
    model = kind().eval()
    model(torch.rand(example, 4))
    runtime, rows = prepared(model, example)
    assert rows <= 4 * example + 20
    check(runtime, model, (example,))


@pytest.mark.parametrize("example", [1, 2, 3, 8])
def test_halves_are_compared_where_rows_could_be_mixed_up(example: int, monkeypatch: pytest.MonkeyPatch) -> None:
    sizes: list[int] = []
    before = cleave._cut.check_call

    def check_call(target: Any, captured: Any, arguments: Any, *rest: Any) -> None:
        sizes.append(len(arguments.leaves[0]))
        before(target, captured, arguments, *rest)

    monkeypatch.setattr(cleave._cut, "check_call", check_call)
    prepared(Counted().eval(), example, (1, 64))
    assert sizes
    assert all(n > 1 for n in sizes)


@pytest.mark.parametrize(
    ("kind", "example", "dynamic_batch", "sizes"),
    [
        (InFours, 16, (10, 64), (12, 16, 20, 64)),
        (InFours, 4, (4, 64), (4, 8, 64)),
        (InFours, 8, (1, 64), (4, 8, 64)),
        (UpTo, 64, (64, 64), (64,)),
        (UpTo, 64, (60, 64), (60, 63, 64)),
        (Counted, 4, (4, 4), (4,)),
        (Counted, 16, (16, 20), (16, 17, 20)),
        (Counted, 2, (1, 2), (1, 2)),
    ],
)
def test_sizes_at_the_ends_of_ranges(
    kind: type[Counted], example: int, dynamic_batch: tuple[int, int], sizes: tuple[int, ...]
) -> None:
    model = kind().eval()
    check(prepared(model, example, dynamic_batch)[0], model, sizes)


@pytest.mark.parametrize("dynamic_batch", [None, (2, 64)])
def test_what_a_first_call_keeps_is_never_replayed_wrongly(dynamic_batch: tuple[int, int] | None) -> None:
    model = Sticky().eval()
    spec = SplitSpec(boundary="50%", dynamic_batch=dynamic_batch)
    with pytest.raises(cleave.CaptureError, match=r"second call|other sizes"):
        cleave.prepare_split(model, example_inputs=torch.rand(8, 4), split=spec)


class Late(Counted):
    """Keeps its last result, of large batches alone: as an attribute, and beside tables for sizes."""

    def __init__(self) -> None:
        super().__init__()
        self.last: Tensor | None = None
        self.kept: dict[Any, Tensor] = {}

    def body(self, x: Tensor) -> Tensor:
        y = super().body(x) + self.kept.setdefault(len(x), torch.ones(2))
        if len(x) > 16:
            self.last = 2 * y
            self.kept["last"] = 3 * y
        return y


def test_what_only_large_batches_keep_in_the_module_is_kept_by_replay_too() -> None:
    model = Late().eval()
    with torch.no_grad():
        plan = cleave.capture(model, torch.rand(8, 4), dynamic_batch=(2, 64))
        for n in (20, 21):
            y = plan(torch.rand(n, 4))
            assert model.last is not None
            assert torch.equal(model.last, 2 * y)
            assert torch.equal(model.kept["last"], 3 * y)


def test_what_a_module_from_outside_keeps_is_kept_by_replay_too() -> None:
    """It is no child of the model, so that only a first record shows that it is there."""
    inner = Counted().eval()

    class Keeping(nn.Module):
        last: Tensor | None = None

        def forward(self, x: Tensor) -> Tensor:
            self.last = inner(x)
            return self.last.relu()

    class Outer(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.parts = [Keeping()]

        def forward(self, x: Tensor) -> Tensor:
            return 1 + self.parts[0](x)

    model, x = Outer().eval(), torch.rand(8, 4)
    with torch.no_grad():
        plan = cleave.capture(model, torch.rand(8, 4))
        plan(x)
        assert model.parts[0].last is not None
        assert torch.equal(model.parts[0].last, inner(x))


def test_memory_that_captures_recycle_outlives_them() -> None:
    """Tables that a model makes while it is captured are its own, whoever releases them."""

    class Caching(Counted):
        cache: dict[int, Tensor] = {}

        def body(self, x: Tensor) -> Tensor:
            if len(x) not in self.cache:
                self.cache[len(x)] = torch.linspace(0, 1, 100_000)
            return super().body(x) + self.cache[len(x)][:2]

    model = Caching().eval()
    with _capture.recycling():
        held = torch.rand(200_000)
        with pytest.raises(cleave.CaptureError), _capture.recycling():
            prepared(Sticky().eval(), 8)
    prepared(model, 8)
    tables = [*Caching.cache.values(), held]
    copies = [t.clone() for t in tables]
    prepared(Counted().eval(), 8)
    threads = [threading.Thread(target=Caching.cache.clear)]
    assert all(torch.equal(a, b) for a, b in zip(tables, copies, strict=True))
    del tables, held
    for thread in threads:
        thread.start()
        thread.join()
    assert torch.equal(torch.ones(200_000).sum(), torch.tensor(200_000.0))


def test_gradients_of_a_capture_are_compared_at_one_small_size(monkeypatch: pytest.MonkeyPatch) -> None:
    """A backward takes twice the time of a forward: at the second size the outputs are enough."""
    backwards: list[int] = []
    forwards: list[int] = []
    gradients, forward = cleave._hooks.gradients, _capture.Capture.forward

    def counted(roots: Any, *rest: Any) -> Any:
        backwards.append(len(roots[0]))
        return gradients(roots, *rest)

    def ran(self: _capture.Capture, args: Any, kwargs: Any) -> Any:
        forwards.append(len(args[0]))
        return forward(self, args, kwargs)

    monkeypatch.setattr(cleave._hooks, "gradients", counted)
    monkeypatch.setattr(_capture.Capture, "forward", ran)
    model = nn.Sequential(nn.Linear(4, 8), nn.ReLU(), nn.Linear(8, 2)).eval()
    plan = cleave.capture(model, torch.rand(8, 4), dynamic_batch=(2, 64))
    assert backwards == [2, 2]  # the replay's, and the model's
    assert sum(forwards) <= 8 + 28
    for n in (2, 17, 64):
        x = torch.rand(n, 4)
        got, want = (torch.autograd.grad(call(x).sum(), list(model.parameters())) for call in (plan, model))
        assert all(torch.equal(a, b) for a, b in zip(got, want, strict=True))

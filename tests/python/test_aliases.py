"""Tensors that share memory when a plan runs, and did not when it was captured."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from helpers import same_tree
from torch import Tensor, nn
from trace_backends import Exact, short

import cleave
from cleave.errors import InputError
from cleave.optimize import Optimize

LEVELS = ["none", "safe", "fast"]


class WritesBuffer(nn.Module):
    """Everything is read before and after a buffer is written: passes merge that, where it is apart from the buffer."""

    def __init__(self) -> None:
        super().__init__()
        self.buffer: Tensor
        self.other: Tensor
        self.register_buffer("buffer", torch.zeros(3, 4))
        self.register_buffer("other", torch.ones(3, 4))
        self.weight = nn.Parameter(torch.ones(3, 4))
        self.layer = nn.Linear(4, 4)

    def forward(self, x: Tensor) -> Tensor:
        first = x * 2 + self.other * 3 - self.weight * 5
        copies = x.clone(), self.other.clone(), self.weight.clone()
        self.buffer.add_(1.0)
        second = x * 2 + self.other * 3 - self.weight * 5
        return self.layer(first) + second * 7 + copies[0] * 11 + copies[1] * 13 + copies[2] * 17


class WritesInput(WritesBuffer):
    def forward(self, x: Tensor) -> Tensor:
        first = self.other * 3 - self.weight * 5
        copies = self.other.clone(), self.weight.clone()
        x.add_(1.0)
        second = self.other * 3 - self.weight * 5
        return self.layer(first) + second * 7 + copies[0] * 13 + copies[1] * 17


def _row() -> Tensor:
    return torch.arange(20.0)


def _on_buffer(m: Any) -> Tensor:
    m.buffer = m.other = _row()[:12].view(3, 4)
    m.other = torch.ones(3, 4)
    return m.buffer


def _over_buffer(m: Any) -> Tensor:
    row = _row()
    m.buffer = row[4:16].view(3, 4)
    return row[:12].view(3, 4)


def _by_numpy(m: Any) -> Tensor:
    array = np.arange(12, dtype=np.float32).reshape(3, 4)
    m.buffer = torch.from_numpy(array)
    return torch.from_numpy(array)


def _tied(m: Any) -> Tensor:
    m.buffer = m.other = _row()[:12].view(3, 4)
    return torch.ones(3, 4)


def _tied_in_part(m: Any) -> Tensor:
    row = _row()
    m.buffer, m.other = row[4:16].view(3, 4), row[:12].view(3, 4)
    return torch.ones(3, 4)


def _buffer_on_parameter(m: Any) -> Tensor:
    m.weight = nn.Parameter(_row()[:12].view(3, 4))
    m.buffer = m.weight.data
    return torch.ones(3, 4)


def _on_other(m: Any) -> Tensor:
    m.other = _row()[:12].view(3, 4)
    return m.other


def _over_other(m: Any) -> Tensor:
    row = _row()
    m.other = row[4:16].view(3, 4)
    return row[:12].view(3, 4)


def _on_parameter(m: Any) -> Tensor:
    m.weight = nn.Parameter(_row()[:12].view(3, 4))
    return m.weight.data


def _apart(m: Any) -> Tensor:
    """Neighbours in one piece of memory."""
    row = torch.arange(24.0)
    m.buffer = row[:12].view(3, 4)
    return row[12:].view(3, 4)


CASES: list[tuple[type[WritesBuffer], Callable[[Any], Tensor]]] = [
    *((WritesBuffer, f) for f in (_on_buffer, _over_buffer, _by_numpy, _tied, _tied_in_part, _buffer_on_parameter)),
    *((WritesInput, f) for f in (_on_other, _over_other, _on_parameter)),
    (WritesBuffer, _apart),
]
NAMES = [f"{cls.__name__}{f.__name__}" for cls, f in CASES]


def _runs(model: nn.Module, arrange: Callable[[Any], Tensor], call: Callable[[Tensor], Any]) -> list[Any]:
    """Two calls with memory arranged, and one with memory apart again; and what they leave."""
    left: list[Any] = []
    for setting in (arrange, None):
        torch.manual_seed(1)
        x = setting(model) if setting else torch.randn(3, 4)
        if setting is None:
            for name, tensor in (*model.named_buffers(),):
                setattr(model, name, tensor.clone())
        for _ in range(2):
            left.append(call(x).clone())
        left += [x.clone(), *(b.clone() for b in model.buffers()), *(p.detach().clone() for p in model.parameters())]
    return left


@pytest.mark.parametrize("level", LEVELS)
@pytest.mark.parametrize(("cls", "arrange"), CASES, ids=NAMES)
def test_plans(cls: type[WritesBuffer], arrange: Callable[[Any], Tensor], level: str) -> None:
    torch.manual_seed(0)
    model = cls().eval()
    with torch.no_grad():
        plan = cleave.capture(model, torch.randn(3, 4), optimize=Optimize(level, off=("native",)))
        plan(torch.randn(3, 4))
        same_tree(_runs(model, arrange, model), _runs(model, arrange, plan), f"{level}")


@pytest.mark.parametrize("mode", ["generated_eager", "compiled"])
@pytest.mark.parametrize("boundary", ["20%", "50%", "80%"])
@pytest.mark.parametrize("arrange", [_on_buffer, _over_buffer, _tied, _tied_in_part])
def test_halves_of_splits(arrange: Callable[[Any], Tensor], boundary: str, mode: str) -> None:
    torch.manual_seed(0)
    model = WritesBuffer().eval()
    options: Any = {"compile_options": {"backend": "eager"}} if mode == "compiled" else {}
    with torch.no_grad():
        spec = cleave.SplitSpec(boundary=boundary, dynamic_batch=None)
        try:
            run = cleave.prepare_split(model, example_inputs=torch.randn(3, 4), split=spec, mode=mode, **options)
        except cleave.SplitError as error:
            pytest.skip(str(error))

        def halves(x: Tensor) -> Any:
            return run.run_suffix(run.run_prefix(x))

        same_tree(_runs(model, arrange, model), _runs(model, arrange, halves), boundary)


class Counter(nn.Module):
    """Gives its state away, to be given back as the next input."""

    def __init__(self) -> None:
        super().__init__()
        self.state: Tensor
        self.register_buffer("state", torch.zeros(3, 4))

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
        before = x * 2
        self.state.add_(1.0)
        return before + x * 2, self.state


def _fed_back(call: Callable[[Tensor], Sequence[Tensor]]) -> list[Tensor]:
    given, out = torch.ones(3, 4), []
    for _ in range(4):
        made, given = call(given)
        out.append(made.clone())
    return out


@pytest.mark.parametrize("level", LEVELS)
def test_a_state_that_is_given_back_as_an_input(level: str, tmp_path: Path) -> None:
    with torch.no_grad():
        want = _fed_back(Counter())
        plan = cleave.capture(Counter(), torch.ones(3, 4), optimize=Optimize(level, off=("native",)))
        path = tmp_path / "counter.cleave"
        plan.save(path)
        same_tree(want, _fed_back(plan), "plan")
        same_tree(want, _fed_back(cleave.load(path, optimize=level)), "file")


class LaysOut(nn.Module):
    """A copy at capture, as the parameter lies; the parameter itself once it lies otherwise."""

    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.randn(4, 3).t())

    def forward(self, x: Tensor) -> Tensor:
        rows = self.weight.contiguous()
        first = x * self.weight
        rows.mul_(2.0)
        return first + x * self.weight * 3 + rows


@pytest.mark.parametrize("level", LEVELS)
def test_a_copy_that_becomes_a_view_when_the_model_lies_otherwise(level: str) -> None:
    torch.manual_seed(0)
    model, x = LaysOut(), torch.randn(3, 4)
    with torch.no_grad():
        plan = cleave.capture(model, x, optimize=Optimize(level, off=("native",)))
        left = []
        for call in (model, plan):
            model.weight = nn.Parameter(torch.arange(12.0).view(3, 4))
            left.append([call(x), call(x), model.weight.detach().clone()])
        same_tree(left[0], left[1], level)


def test_two_inputs_on_one_memory_are_still_refused_where_one_is_written() -> None:
    def model(x: Tensor, y: Tensor) -> Tensor:
        first = y * 2
        x.add_(1.0)
        return first + y * 2

    with torch.no_grad():
        plan = cleave.capture(model, (torch.randn(3, 4), torch.randn(3, 4)))
        x = torch.randn(3, 4)
        with pytest.raises(InputError, match="share memory"):
            plan(x, x)


@pytest.mark.parametrize("level", LEVELS)
@pytest.mark.parametrize("takes", [{"mul", "add", "sub"}, {"mul", "add", "sub", "clone", "linear", "add_"}])
@pytest.mark.parametrize(("cls", "arrange"), CASES[:9], ids=NAMES[:9])
def test_compiled_segments(
    cls: type[WritesBuffer], arrange: Callable[[Any], Tensor], takes: set[str], level: str
) -> None:
    """Nodes are in another order, and compiled code takes memory for apart: right, or refused."""
    torch.manual_seed(0)
    model = cls().eval()
    exact = Exact(supports=lambda node: short(node.op) in takes)
    traced = exact.trace(model, (torch.randn(3, 4),), optimize=level, minimum_segment_size=1)
    with torch.no_grad():
        want = _runs(model, arrange, model)
        try:
            same_tree(want, _runs(model, arrange, traced), level)
        except InputError as error:
            assert "share memory" in str(error)  # noqa: PT017


class Sides(nn.Module):
    """What the two sides read is read again after the write; an exact cut may take the sides in another order."""

    def __init__(self) -> None:
        super().__init__()
        self.buffer: Tensor
        self.other: Tensor
        self.register_buffer("buffer", torch.zeros(3, 4))
        self.register_buffer("other", torch.ones(3, 4))
        self.left, self.right, self.wide = nn.Linear(4, 2), nn.Linear(4, 2), nn.Linear(4, 64)

    def forward(self, x: Tensor) -> Tensor:
        left = self.left(x * self.other)
        self.buffer.add_(1.0)
        right = self.right(x * self.other)
        wide = self.wide(x).sum(1, keepdim=True)
        return left * right + self.buffer.sum() + wide


@pytest.mark.parametrize("ends", [("left", "right"), ("right", "wide"), ("wide", "right"), ("right", "left")])
@pytest.mark.parametrize("arrange", [_on_buffer, _over_buffer, _tied, _tied_in_part])
def test_exact_cuts(arrange: Callable[[Any], Tensor], ends: tuple[str, str]) -> None:
    torch.manual_seed(0)
    model = Sides().eval()
    spec = cleave.SplitSpec(exact=True, must_prefix=ends[:1], must_suffix=ends[1:], dynamic_batch=None)
    with torch.no_grad():
        try:
            run = cleave.prepare_split(model, example_inputs=torch.randn(3, 4), split=spec)
        except cleave.SplitError:
            return  # no such cut
        want = _runs(model, arrange, model)
        try:
            same_tree(want, _runs(model, arrange, lambda x: run.run_suffix(run.run_prefix(x))), str(ends))
        except InputError as error:
            assert "share memory" in str(error)  # noqa: PT017

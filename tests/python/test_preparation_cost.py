"""How often a model runs while a split for many batch sizes is prepared: rows, counted in its own forward."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor, nn

import cleave
from cleave import SplitSpec


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


def prepared(model: Counted, example: int) -> tuple[cleave.SplitRuntime, int]:
    """A split, and the rows that the model ran for it."""
    type(model).rows = 0
    spec = SplitSpec(boundary="50%", dynamic_batch=(2, 64))
    runtime = cleave.prepare_split(model, example_inputs=torch.rand(example, 4), split=spec)
    return runtime, type(model).rows


def check(runtime: cleave.SplitRuntime, model: nn.Module, sizes: tuple[int, ...]) -> None:
    with torch.no_grad():
        for n in sizes:
            x = torch.rand(n, 4)
            assert torch.equal(runtime.run_suffix(runtime.run_prefix(x)), model(x))


@pytest.mark.parametrize("example", [2, 3, 8, 32])
@pytest.mark.parametrize("kind", [Counted, Unbound])
def test_a_preparation_runs_the_example_once_and_few_rows_beside_it(kind: type[Counted], example: int) -> None:
    model = kind().eval()
    runtime, rows = prepared(model, example)
    assert rows <= example + 30
    assert len(runtime.variants) == 1
    check(runtime, model, (2, example, 17, example + 1))


@pytest.mark.parametrize("example", [8, 32])
def test_an_example_that_a_table_was_made_for_costs_a_plan_of_its_own_and_no_more(example: int) -> None:
    model = Tabled().eval()
    model(torch.rand(example, 4))
    runtime, rows = prepared(model, example)
    assert rows <= 8 * example + 40
    check(runtime, model, (example,))

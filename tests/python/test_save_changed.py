"""A model that changed after its capture is not written to a file, nor recorded at more sizes: as a call would, it is
refused."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import cleave
from cleave import ArgumentError, InputError, SplitSpec


class Scaled(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.one, self.two, self.k = nn.Linear(4, 4), nn.Linear(4, 4), 2

    def forward(self, x: Tensor) -> Tensor:
        return self.two(self.one(x).relu() * self.k)  # type: ignore[no-any-return]


SPEC = SplitSpec(boundary="after:one", dynamic_batch=(1, 16))
X = torch.rand(3, 4)


def _plan(model: nn.Module) -> Any:
    with torch.no_grad():
        return cleave.capture(model, X, dynamic_batch=(1, 16))


def _fixed(model: nn.Module) -> Any:
    with torch.no_grad():
        return cleave.capture(model, X)


def _split(model: nn.Module) -> Any:
    return cleave.prepare_split(model, example_inputs=X, split=SPEC)


def _pipe(model: nn.Module) -> Any:
    return cleave.pipe_model(model, example_inputs=X, nparts=2, profile="estimate", training=False)


def _traced(model: nn.Module) -> Any:
    return cleave.trace(model, X, dynamic_batch=(1, 16), dryrun=True)


WAYS: dict[str, tuple[Callable[[nn.Module], Any], Callable[[Any, Path], Any]]] = {
    "Plan.save": (_plan, lambda p, f: p.save(f)),
    "Plan.save, no more sizes": (_plan, lambda p, f: p.save(f, prove="none")),
    "Plan.save of one size": (_fixed, lambda p, f: p.save(f)),
    "Plan.prepare_sizes": (_plan, lambda p, f: p.prepare_sizes(9, 11)),
    "SplitRuntime.save": (_split, lambda r, f: r.save(f)),
    "SplitRuntime.save, both halves": (_split, lambda r, f: r.save(f.with_suffix(""))),
    "SplitRuntime.save, no more sizes": (_split, lambda r, f: r.save(f, prove="none")),
    "SplitRuntime.prepare_sizes": (_split, lambda r, f: r.prepare_sizes(9, 11)),
    "SplitRuntime.explore": (_split, lambda r, f: r.explore(X, seconds=1)),
    "SplitRuntime.source": (_split, lambda r, f: r.source("suffix")),
    "SplitRuntime.trace_plan.save": (_split, lambda r, f: r.trace_plan.save(f)),
    "PartitionedPlan.save": (_pipe, lambda p, f: p.save(f)),
    "PartitionedPlan.save, no more sizes": (_pipe, lambda p, f: p.save(f, prove="none")),
    "PartitionedPlan.source": (_pipe, lambda p, f: p.source()),
    "PartitionedPlan.write_source": (_pipe, lambda p, f: p.write_source(f.with_suffix(".py"))),
    "TracedModule.save": (_traced, lambda t, f: t.save(f)),
    "TracedModule.save, no more sizes": (_traced, lambda t, f: t.save(f, prove="none")),
}
CHANGES: dict[str, Callable[[Any], Any]] = {
    "k": lambda m: setattr(m, "k", 3),
    "hook": lambda m: m.one.register_forward_hook(lambda mod, args, out: out * 2),
}


@pytest.mark.parametrize("change", CHANGES)
@pytest.mark.parametrize("way", WAYS)
def test_a_model_that_changed_is_refused(way: str, change: str, tmp_path: Path) -> None:
    make, write = WAYS[way]
    model = Scaled().eval()
    made, file = make(model), tmp_path / "model.clv"
    CHANGES[change](model)
    with pytest.raises((InputError, ArgumentError), match="changed after the plan was captured"):
        write(made, file)
    assert not any(files for _, _, files in os.walk(tmp_path)), "nothing is written"


@pytest.mark.parametrize("way", WAYS)
def test_a_model_that_did_not_is_not(way: str, tmp_path: Path) -> None:
    make, write = WAYS[way]
    write(make(Scaled().eval()), tmp_path / "model.clv")


def test_a_size_whose_table_is_another_one_now_is_recorded_anew_before_it_is_written(tmp_path: Path) -> None:
    class Table(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.layer, self.rows, self.table = nn.Linear(4, 4), 0, torch.zeros(4)

        def forward(self, x: Tensor) -> Tensor:
            if self.rows != len(x):
                self.rows, self.table = len(x), torch.full((4,), float(len(x)))
            return self.layer(x) + self.table  # type: ignore[no-any-return]

    model = Table().eval()
    with torch.no_grad():
        model(torch.rand(8, 4))
        plan = cleave.capture(model, torch.rand(8, 4), dynamic_batch=(2, 16))
        runtime = cleave.prepare_split(
            model, example_inputs=torch.rand(8, 4), split=SplitSpec(boundary="50%", dynamic_batch=(2, 16))
        )
        model(torch.rand(4, 4))
        plan.save(tmp_path / "plan.clv")
        runtime.save(tmp_path / "split.clv")
        for name in ("plan", "split"):
            loaded = cleave.load(tmp_path / f"{name}.clv")
            for n in (8, 4, 2, 16):
                x = torch.rand(n, 4)
                assert torch.equal(loaded(x), model.layer(x) + n), (name, n)


def test_a_split_is_written_in_the_mode_that_the_model_is_in(tmp_path: Path) -> None:
    model = nn.Sequential(nn.Linear(4, 4), nn.BatchNorm1d(4), nn.Linear(4, 4)).eval()
    runtime = cleave.prepare_split(model, example_inputs=X, split=SplitSpec(boundary="after:0"))
    model[1].eps = 0.5
    with pytest.raises(InputError, match="eps of module 1 changed"):
        runtime.save(tmp_path / "split.clv")
    model[1].eps = 1e-5
    runtime.save(tmp_path / "split.clv")
    assert torch.equal(cleave.load(tmp_path / "split.clv")(X), model(X))

"""Calls with other numbers, flags and texts than the example's, or other inputs that are None: each gets a plan."""

from __future__ import annotations

import logging
import threading
import warnings
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import cleave

pytestmark = pytest.mark.integration

X = torch.randn(4, 4, generator=torch.Generator().manual_seed(1))
MASK = torch.tensor([[1.0], [0.0], [1.0], [1.0]])


class Options(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.first, self.last, self.relu = nn.Linear(4, 4), nn.Linear(4, 2), nn.ReLU()

    def forward(self, x: Tensor, scale: float = 1.0, mask: Tensor | None = None, how: str = "sum") -> Tensor:
        x = self.relu(self.first(x * scale))
        if mask is not None:
            x = x * mask
        x = self.last(x)
        return x.sum(0) if how == "sum" else x


CALLS: list[tuple[tuple[Any, ...], dict[str, Any]]] = [
    ((X,), {}),
    ((X, 2.0), {}),
    ((X,), {"scale": 2.0}),
    ((X,), {"mask": MASK}),
    ((X, 2.0, MASK), {}),
    ((X,), {"how": "all"}),
    ((X, 1.0, None, "sum"), {}),
    ((X,), {}),
]


def test_a_plan_is_recorded_for_each_set_of_plain_values(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO, "cleave")
    model = Options().eval()
    plan = cleave.capture(model, X)
    for _ in range(2):
        for args, kwargs in CALLS:
            assert torch.equal(plan(*args, **kwargs), model(*args, **kwargs)), (args[1:], kwargs.keys())
            with torch.no_grad():
                assert torch.equal(plan(*args, **kwargs), model(*args, **kwargs))
    assert "other plain values" in caplog.text
    made = len(plan._served.dispatch.list())
    for args, kwargs in CALLS:
        plan(*args, **kwargs)
    assert len(plan._served.dispatch.list()) == made, "nothing is recorded twice"


def test_other_sizes_and_other_plain_values() -> None:
    model = Options().eval()
    plan = cleave.capture(model, X, dynamic_batch=(1, 64))
    with torch.enable_grad():
        for n in (3, 4, 9):
            x = torch.randn(n, 4)
            for kwargs in ({}, {"scale": 3.0}, {"mask": torch.rand(n, 1)}, {"how": "all"}):
                assert torch.equal(plan(x, **kwargs), model(x, **kwargs)), (n, kwargs.keys())


def test_with_raise_it_is_an_input_error() -> None:
    plan = cleave.capture(Options(), (X, 1.0), on_guard="raise")
    with pytest.raises(cleave.InputError, match=r"input scale was 1\.0 .* and is 2\.0 now"):
        plan(X, 2.0)
    with pytest.raises(cleave.InputError):
        plan(X, 1.0, MASK)


@pytest.mark.parametrize("batch", [None, (2, 64)], ids=["one size", "sizes"])
def test_a_split_takes_other_plain_values(batch: Any) -> None:
    model = Options().eval()
    spec = cleave.SplitSpec(boundary="after:relu", dynamic_batch=batch)
    runtime = cleave.prepare_split(model, example_inputs=X, split=spec, variants=[{"x": X, "mask": MASK}])
    before = len(runtime._served.dispatch.list())
    with torch.no_grad():
        for args, kwargs in CALLS:
            assert torch.equal(runtime.run_suffix(runtime.run_prefix(*args, **kwargs)), model(*args, **kwargs))
    assert len(runtime._served.dispatch.list()) > before
    boundary = runtime.run_training_prefix(X, 2.0)
    loss, gradients = runtime.train_suffix(boundary, torch.zeros(2))
    runtime.backward_prefix(boundary, gradients)
    assert torch.equal(loss, nn.functional.mse_loss(model(X, 2.0), torch.zeros(2)).detach())


def test_stages_and_traces_take_other_plain_values() -> None:
    model = Options().eval()
    partition = cleave.pipe_model(model, example_inputs=X, nparts=2, profile="estimate", training=False)
    traced = cleave.trace(model, X, dryrun=True)
    with torch.no_grad():
        for args, kwargs in CALLS:
            assert torch.equal(partition(*args, **kwargs), model(*args, **kwargs))
            assert torch.allclose(traced(*args, **kwargs), model(*args, **kwargs), atol=1e-5)


def test_a_file_says_that_it_is_for_the_values_of_the_example(tmp_path: Path) -> None:
    model = Options().eval()
    plan = cleave.capture(model, X, variants=[{"x": X, "scale": 2.0}])
    with pytest.warns(cleave.CleaveWarning, match="plain values of the example"):
        plan.save(tmp_path / "net.clv")
    with torch.no_grad():
        assert torch.equal(cleave.load(tmp_path / "net.clv")(X), model(X))


def test_values_without_end_are_bounded_and_a_warning() -> None:
    plan = cleave.capture(Options().eval(), X, max_plans=4)
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        for i in range(8):
            assert torch.equal(plan(X, 1.0 + i), plan._target.call(X, 1.0 + i))
    assert len(plan._served.dispatch.list()) <= 4
    assert len(plan._served.regimes) <= 4
    assert any("max_plans" in str(w.message) for w in caught)


def test_objects_and_other_structures_are_refused() -> None:
    def model(xs: list[Tensor], options: dict[str, Any]) -> Tensor:
        return xs[0] * options["scale"]

    plan = cleave.capture(model, ([X], {"scale": 2}))
    assert torch.equal(plan([X], {"scale": 3}), X * 3)
    with pytest.raises(cleave.InputError):
        plan([X, X], {"scale": 2})
    with pytest.raises(cleave.InputError):
        plan([X], {"scale": 2, "more": 1})
    with pytest.raises(cleave.InputError):
        plan([X], {"scale": X})


def test_threads_meet_at_new_values() -> None:
    model = Options().eval()
    plan = cleave.capture(model, X)
    wrong: list[Any] = []

    def work(k: int) -> None:
        with torch.no_grad():
            for i in range(12):
                scale = float(1 + (i + k) % 4)
                if not torch.equal(plan(X, scale), model(X, scale)):
                    wrong.append(scale)

    threads = [threading.Thread(target=work, args=(k,)) for k in range(4)]
    for t in threads:
        t.start()
    for t in threads:
        t.join()
    assert not wrong
    assert len([r for r in plan._served.regimes if r.plain is not None]) == 3, "each was recorded once"
    with pytest.raises(cleave.ArgumentError, match="max_plans"):
        cleave.capture(model, X, max_plans=0)

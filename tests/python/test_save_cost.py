"""What `save` costs, what it says, and what its files then serve: a few forwards, counted in the model's own."""

from __future__ import annotations

import logging
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import cleave
from cleave import _save, progress

RANGE = (1, 64)
X = torch.randn(3, 8)


class Calls:
    """Forwards of all models here."""

    count = 0


class Deep(nn.Module):
    """So many operators that a record takes time, however few rows there are."""

    def __init__(self, layers: int = 150) -> None:
        super().__init__()
        self.layers = nn.ModuleList(nn.Linear(8, 8) for _ in range(layers))

    def forward(self, x: Tensor) -> Tensor:
        Calls.count += 1
        for layer in self.layers:
            x = layer(x).relu()
        return x


class Branching(Deep):
    """Does something else for many rows."""

    def forward(self, x: Tensor) -> Tensor:
        y = super().forward(x)
        return y.cos() if len(x) > 20 else y


class Unlike(Deep):
    """Has another structure at every size."""

    def forward(self, x: Tensor) -> Tensor:
        for _ in range(len(x)):
            x = x + 1
        return super().forward(x)


def _plan(model: nn.Module) -> Any:
    with torch.no_grad():
        return cleave.capture(model, X, dynamic_batch=RANGE)


def _split(model: nn.Module) -> Any:
    return cleave.prepare_split(model, example_inputs=X, split=cleave.SplitSpec("50%", dynamic_batch=RANGE))


def _pipe(model: nn.Module) -> Any:
    return cleave.pipe_model(model, example_inputs=X, nparts=2, profile="estimate", dynamic_batch=RANGE)


WAYS: dict[str, Callable[[nn.Module], Any]] = {"capture": _plan, "split": _split, "pipe": _pipe}


def answer(loaded: Any, x: Tensor) -> Any:
    """An output, or why there is none."""
    try:
        return loaded(x)
    except cleave.InputError as error:
        return str(error)


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("kind", [Deep, Branching, Unlike])
def test_a_save_runs_a_few_forwards_and_other_sizes_are_refused(kind: type[Deep], way: str, tmp_path: Path) -> None:
    model = kind().eval()
    made = WAYS[way](model)
    Calls.count = 0
    made.save(tmp_path / "model.clv")
    assert Calls.count <= 32
    loaded = cleave.load(tmp_path / "model.clv")
    served = 0
    with torch.no_grad():
        for n in range(RANGE[0], RANGE[1] + 1):
            x = torch.randn(n, 8)
            y = answer(loaded, x)
            assert isinstance(y, str) or torch.equal(y, model(x)), n
            served += not isinstance(y, str)
    assert 1 <= served < RANGE[1]
    assert served >= 7 or kind is Unlike


def test_powers_of_two_come_first_and_then_small_sizes(tmp_path: Path) -> None:
    plan = _plan(Deep().eval())
    plan.save(tmp_path / "model.clv")
    served = {p[0] for p in plan._sized.proven}
    assert served >= {1, 2, 4, 8, 16, 32, 64}
    small = next(n for n in range(1, 65) if n not in served)
    assert small > 5
    assert not [n for n in served if n > small and n not in (8, 16, 32, 64)]


def test_small_models_are_proven_at_every_size(tmp_path: Path) -> None:
    plan = _plan(nn.Sequential(nn.Linear(8, 8), nn.ReLU(), nn.Linear(8, 2)).eval())
    plan.save(tmp_path / "model.clv")
    assert {p[0] for p in plan._sized.proven} == set(range(1, 65))


def test_several_sizes_are_proven_around_the_example_first(tmp_path: Path) -> None:
    model = Deep(100).eval()
    dims = {"x": {1: ("S", 1, 32)}}
    with torch.no_grad():
        plan = cleave.capture(model, torch.randn(4, 6, 8), dynamic_batch=(1, 32), dynamic_dims=dims)
    plan.save(tmp_path / "model.clv")
    served = set(plan._sized.proven)
    assert served >= {(n, 6) for n in (1, 2, 4, 8, 16, 32)}
    assert served >= {(4, n) for n in (1, 2, 4, 8, 16, 32)}


def said(sized: Any, text: str) -> None:
    """The line is true: it names how many sizes are left, and how to have them too."""
    left = RANGE[1] - len(sized.proven)
    assert f"the other {left} sizes" in text
    assert 'prove="all"' in text
    assert _save._show.points_text(sorted(sized.proven)) in text


def test_one_line_says_what_was_proven_and_how_to_prove_more(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], caplog: pytest.LogCaptureFixture
) -> None:
    plan = _plan(Deep().eval())
    Calls.count = 0
    progress.set_progress(True)
    try:
        with caplog.at_level(logging.INFO, logger="cleave.sizes"):
            plan.save(tmp_path / "model.clv")
        lines = [line for line in re.split(r"[\r\n]", capsys.readouterr().err) if "proven" in line and line.strip()]
        progress.set_progress(False)
        plan.save(tmp_path / "again.clv")
        assert capsys.readouterr().err == ""
    finally:
        progress.set_progress("auto")
    said(plan._sized, lines[-1])
    assert f"{Calls.count} forwards" in lines[-1]
    assert any(record.getMessage() == lines[-1] for record in caplog.records)


def test_a_file_that_serves_everything_says_so(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    plan = _plan(nn.Linear(8, 2).eval())
    with caplog.at_level(logging.INFO, logger="cleave.sizes"):
        plan.save(tmp_path / "model.clv")
    assert "all 64 sizes" in caplog.records[-1].getMessage()
    assert "prove=" not in caplog.records[-1].getMessage()


def test_a_save_is_watched_like_any_preparation(tmp_path: Path) -> None:
    plan = _plan(Deep().eval())
    events: list[progress.Event] = []
    with progress.listen(events.append):
        plan.save(tmp_path / "model.clv")
    last = events[-1]
    assert last.title == "proving sizes of Deep"
    assert last.ended
    assert last.done == last.total
    assert any("B=64" in e.step for e in events)


def test_asking_for_more_gives_more(tmp_path: Path) -> None:
    model = Deep().eval()
    plan = _plan(model)
    plan.save(tmp_path / "model.clv")
    with pytest.raises(cleave.InputError, match=r"never recorded at B=50.*prove"):
        cleave.load(tmp_path / "model.clv")(torch.randn(50, 8))
    plan.prepare_sizes(50)
    plan.save(tmp_path / "more.clv", prove="none")
    x = torch.randn(50, 8)
    with torch.no_grad():
        assert torch.equal(cleave.load(tmp_path / "more.clv")(x), model(x))


def test_the_same_model_gives_the_same_file(tmp_path: Path) -> None:
    torch.manual_seed(0)
    model = Deep().eval()
    for name in ("a", "b"):
        _plan(model).save(tmp_path / f"{name}.clv")
    assert (tmp_path / "a.clv").read_bytes() == (tmp_path / "b.clv").read_bytes()


@pytest.mark.parametrize("kind", [Deep, Branching])
def test_a_traced_file_says_whether_it_trusts_formulas(
    kind: type[Deep], tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    model = kind().eval()
    traced = cleave.trace(model, X, dynamic_batch=RANGE, dryrun=True)
    Calls.count = 0
    with caplog.at_level(logging.INFO, logger="cleave.sizes"):
        traced.save(tmp_path / "model.clv")
    assert Calls.count <= 32
    line = caplog.records[-1].getMessage()
    assert ("by its formulas" in line) == (kind is Deep)
    assert ("16 of B 1..64" in line and "are refused" in line and "but not 32, 64" in line) == (kind is Branching)
    loaded = cleave.load(tmp_path / "model.clv")
    with torch.no_grad():
        for n in (1, 16, 19, 21, 50, 64):
            y = answer(loaded, x := torch.randn(n, 8))
            assert torch.equal(y, model(x)) if not isinstance(y, str) else kind is Branching, n

"""The log and the warnings: silent unless asked, said once, and at the user's line."""

from __future__ import annotations

import logging
import os
import subprocess
import sys
import warnings
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import nn

import cleave
from cleave import _log


class Net(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.a, self.b = nn.Linear(4, 8), nn.Linear(8, 4)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        out: torch.Tensor = self.b(self.a(x).relu())
        return out


class Branches(Net):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return super().forward(x.tanh() if x.shape[0] == 10 else x)


def prepare(model: nn.Module | None = None, boundary: str = "50%", **kwargs: Any) -> cleave.SplitRuntime:
    spec = cleave.SplitSpec(boundary=boundary)
    return cleave.prepare_split((model or Net()).eval(), example_inputs=torch.randn(2, 4), split=spec, **kwargs)


@pytest.fixture(autouse=True)
def fresh() -> None:
    """Nothing was warned of yet, and nobody has asked for a log."""
    _log._warned.clear()
    logging.getLogger("cleave").setLevel(logging.NOTSET)


def said(caplog: pytest.LogCaptureFixture, name: str, level: int = logging.INFO) -> list[str]:
    return [r.getMessage() for r in caplog.records if r.name == f"cleave.{name}" and r.levelno == level]


# ---- the log


def test_info_says_what_was_captured_and_how_long_it_took(caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level("INFO", "cleave"):
        cleave.capture(Net(), torch.randn(2, 4))
    (line,) = said(caplog, "capture")
    assert line.startswith("captured Net: 3 nodes in ")
    assert not said(caplog, "capture", logging.DEBUG)


REASONS = (
    ({"boundary": "50%"}, "boundary='50%', the fewest bytes within 5 % of the work"),
    ({"boundary": "after:a"}, "boundary='after:a'"),
    ({"boundary": "auto", "objective": {"minimize": "suffix_memory"}}, "the least suffix_memory"),
)


@pytest.mark.parametrize(("kwargs", "reason"), REASONS)
def test_info_says_where_it_was_cut_and_why(
    caplog: pytest.LogCaptureFixture, kwargs: dict[str, Any], reason: str
) -> None:
    with caplog.at_level("INFO", "cleave"):
        runtime = prepare(**kwargs)
    (line,) = said(caplog, "split")
    assert line.startswith(f"cut after {runtime.candidate.name}")
    assert line.endswith(reason)


def test_info_says_which_size_got_a_plan_of_its_own_and_why(caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level("INFO", "cleave"):
        runtime = prepare(Branches())
        caplog.clear()
        runtime.run_prefix(torch.randn(10, 4))
    (line,) = said(caplog, "sizes")
    assert line.startswith("Branches: B=10 has a plan of its own: ")
    assert len(line) > 60


@pytest.mark.integration
def test_info_says_what_runs_instead_of_what_was_asked_for(caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level("INFO", "cleave"):
        prepare(mode="compiled", compile_options={"backend": "nothing_like_it"}).run_prefix(torch.randn(2, 4))
    assert any("nothing_like_it" in line for line in said(caplog, "compile"))


def test_debug_has_records_and_formulas(caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level("DEBUG", "cleave"):
        prepare()
    assert any(line.startswith("recorded Net B=3: ") for line in said(caplog, "capture", logging.DEBUG))
    assert any(line.startswith("formulas from ") for line in said(caplog, "sizes", logging.DEBUG))


def test_what_nobody_reads_is_not_formatted(monkeypatch: pytest.MonkeyPatch) -> None:
    def never(self: logging.LogRecord) -> str:
        raise AssertionError("formatted")

    monkeypatch.setattr(logging.LogRecord, "getMessage", never)
    monkeypatch.setattr(logging.LogRecord, "__init__", lambda *a, **k: never(a[0]))
    prepare(Branches()).run_prefix(torch.randn(10, 4))


def python(code: str, **environment: str) -> str:
    env = {k: v for k, v in os.environ.items() if k not in ("CLEAVE_PROGRESS", "CLEAVE_LOG")} | environment
    env["PYTHONPATH"] = os.pathsep.join(sys.path)
    done = subprocess.run([sys.executable, "-c", code], env=env, capture_output=True, timeout=120, check=True)
    return done.stderr.decode()


CODE = "import torch, cleave; cleave.capture(torch.nn.Linear(2, 2), torch.randn(1, 2)); "


@pytest.mark.integration
def test_the_library_is_silent_and_leaves_the_logging_of_others_alone() -> None:
    assert python(CODE + "import logging; assert not logging.getLogger().handlers") == ""


@pytest.mark.integration
def test_the_environment_turns_the_log_on() -> None:
    assert "cleave.capture: captured Linear: 1 nodes" in python(CODE, CLEAVE_LOG="info")
    assert "recorded" not in python(CODE, CLEAVE_LOG="INFO")
    assert "recorded" in python(CODE, CLEAVE_LOG="debug")


@pytest.mark.integration
def test_a_level_that_does_not_exist_is_a_warning() -> None:
    text = python(CODE, CLEAVE_LOG="loud")
    assert "CleaveWarning: CLEAVE_LOG is info or debug, not 'loud'" in text


# ---- warnings


def warned(work: Callable[[], object]) -> list[warnings.WarningMessage]:
    with warnings.catch_warnings(record=True) as found:
        warnings.simplefilter("always")
        work()
    return [w for w in found if issubclass(w.category, cleave.CleaveWarning)]


def test_a_warning_of_ours_is_a_user_warning() -> None:
    assert issubclass(cleave.CleaveWarning, UserWarning)


def test_a_mode_that_cannot_be_had_is_a_warning_once_at_the_users_line() -> None:
    runtime = prepare(mode="compiled", compile_options={"backend": "nothing_like_it"})

    def use() -> None:
        for n in (2, 3, 4):
            runtime.run_suffix(runtime.run_prefix(torch.randn(n, 4)))

    (warning,) = warned(use)
    assert "nothing_like_it" in str(warning.message)
    assert "one by one" in str(warning.message)
    assert warning.filename == __file__


def test_no_cuda_graph_is_a_warning() -> None:
    if torch.cuda.is_available():
        pytest.skip("there are CUDA graphs here")
    (warning,) = warned(lambda: prepare(mode="cuda_graph"))
    assert "no CUDA device" in str(warning.message)
    assert warning.filename == __file__


@pytest.mark.integration
def test_graph_breaks_are_no_warning() -> None:
    """It is compiled, if in pieces; fallback_reason and the log have it."""

    calls = []

    def fails_once(module: Any, inputs: Any) -> Any:
        calls.append(1)
        if len(calls) == 1:
            raise RuntimeError("no whole graph")
        return module.forward

    runtime = prepare(mode="compiled", compile_options={"backend": fails_once})
    assert not warned(lambda: runtime.run_prefix(torch.randn(2, 4)))
    assert runtime.segments.prefix.active_backend == "fails_once"
    assert "no whole graph" in (runtime.fallback_reason or "")


def test_layouts_without_end_are_a_warning() -> None:
    p = cleave.capture(Net(), torch.randn(2, 4), max_plans=4)

    def use() -> None:
        for pad in range(1, 6):
            p(torch.randn(2, 4 + pad)[:, :4])

    (warning,) = warned(use)
    assert "4 plans" in str(warning.message)
    assert "layouts" in str(warning.message)
    assert warning.filename == __file__


def test_modes_without_end_are_a_warning() -> None:
    runtime = prepare(max_plans=2)

    def use() -> None:
        for pad in range(1, 5):
            runtime.run_prefix(torch.randn(2, 4 + pad)[:, :4])

    (warning,) = warned(use)
    assert "2 plans" in str(warning.message)
    assert "modes" in str(warning.message)


class EachAlone(Net):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return super().forward(torch.stack([row.sin() if i % 2 else row for i, row in enumerate(x)]))


def test_plans_without_end_are_a_warning_with_the_reason() -> None:
    runtime = prepare(EachAlone(), max_plans=3)

    def use() -> None:
        for n in (10, 13, 17, 19, 23):
            runtime.run_prefix(torch.randn(n, 4))

    (warning,) = warned(use)
    assert "3 plans" in str(warning.message)
    assert "sizes with a plan of their own (B): " in str(warning.message)
    assert warning.filename == __file__


class Everything(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.conv, self.norm, self.drop = nn.Conv2d(3, 8, 3), nn.BatchNorm2d(8), nn.Dropout(0.5)
        self.rnn, self.attention = nn.LSTM(8, 8, batch_first=True), nn.MultiheadAttention(8, 2, batch_first=True)

    def forward(self, x: torch.Tensor) -> tuple[torch.Tensor, dict[str, torch.Tensor]]:
        y = self.drop(self.norm(self.conv(x))).flatten(2).mT
        y, _ = self.rnn(y)
        return self.attention(y, y, y)[0], {"complex": torch.fft.fft(y).abs()}


def messages(work: Callable[[], object]) -> set[tuple[type, str]]:
    with warnings.catch_warnings(record=True) as found:
        warnings.simplefilter("always")
        work()
    return {(w.category, str(w.message)) for w in found}


@pytest.mark.parametrize("training", [False, True])
def test_a_normal_preparation_warns_of_nothing_that_eager_would_not(training: bool) -> None:
    model, x = Everything().train(training), torch.randn(2, 3, 6, 6)
    quiet = messages(lambda: model(x)) | messages(lambda: torch.no_grad()(model)(x))

    def work() -> None:
        cleave.capture(model, x)(x)
        spec = cleave.SplitSpec(boundary="50%", trainable=True)
        runtime = cleave.prepare_split(model, example_inputs=x, split=spec)
        boundary = runtime.run_prefix(x)
        repr(runtime), repr(boundary), repr(runtime.candidates), runtime._repr_html_()
        runtime.run_suffix(boundary)
        kept = runtime.run_training_prefix(x)
        _, gradients = runtime.train_suffix(kept, None, loss_fn=lambda out, _: out[0].sum())
        runtime.backward_prefix(kept, gradients)

    assert messages(work) - quiet == set()

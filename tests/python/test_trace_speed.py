"""Segments that are slower than the tape: timed, dropped, and named in the report."""

from __future__ import annotations

import json
import subprocess
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
import torch
from test_cli_run import COMMAND
from torch import Tensor, nn
from trace_backends import Exact, compiled_ops, tape_ops

import cleave
from cleave import tracing

STEPS = 300  # operators of the part that is worth compiling


def many(x: Tensor) -> Tensor:
    """Small operators, which one call replaces."""
    for _ in range(STEPS):
        x = x + 1
    return x


class Parts(nn.Module):
    """Many operators; a sort, which no back end of this file takes; two operators."""

    def forward(self, x: Tensor) -> Tensor:
        return many(x).sort(-1).values.sin().cos()


class Timed(Exact):
    """Quick for the many operators, and as slow as it is told for the others."""

    def __init__(self, slow: float = 0.005, quick_calls: int = 1 << 30) -> None:
        super().__init__(supports=lambda node: node.op != "aten::sort")
        self.slow, self.quick_calls, self.calls = slow, quick_calls, 0

    def _load(self, data: bytes) -> Any:
        model = super()._load(data)
        return model, {node.op for node in model.nodes} == {"aten::add.Tensor"}

    def _run(self, code: Any, inputs: Sequence[Tensor]) -> list[Tensor]:
        model, quick = code
        self.calls += quick
        if not quick or self.calls > self.quick_calls:
            time.sleep(self.slow)
        return [inputs[0] + STEPS] if quick else super()._run(model, inputs)

    def trace(self, model: Any, inputs: Any = (), **options: Any) -> cleave.TracedModule:
        return super().trace(model, inputs, **{"keep_slower": False, **options})


X = torch.arange(8.0)


def dropped_ops(traced: cleave.TracedModule) -> set[str]:
    return {op for op, reason in tape_ops(traced).items() if "slower" in reason}


def test_what_is_slower_than_the_tape_is_dropped_and_the_rest_is_kept(tmp_path: Path) -> None:
    traced = Timed().trace(Parts(), X)
    assert compiled_ops(traced) == [["add"] * STEPS]
    assert dropped_ops(traced) == {"sin", "cos"}
    assert torch.equal(traced(X), Parts()(X))
    data = traced.report().data
    (dropped,) = data["dropped"]
    assert dropped["operators"] == 2
    assert dropped["code_ms"] > dropped["tape_ms"]
    assert dropped["runs"] == "tape"
    assert dropped["reason"] == "slower"
    assert [s["tape_ms"] > s["code_ms"] for s in data["segments"]] == [True]
    assert data["traced_ms"] <= data["tape_ms"]
    text = str(traced.report())
    assert "1 segment was slower than the tape, and dropped" in text.splitlines()[0]
    assert "dropped 0" in text
    assert "2 x  (operators of dropped segments)" in text
    traced.save(tmp_path / "traced.clv")
    loaded = cleave.load(tmp_path / "traced.clv", allow_compiled=True)
    assert [s.compiled for s in loaded.segments] == [True]
    assert torch.equal(loaded(X), Parts()(X))
    assert loaded.trace_report().data["dropped"] == data["dropped"]


def test_the_caller_may_keep_them() -> None:
    traced = Timed().trace(Parts(), X, keep_slower=True)
    assert [len(ops) for ops in compiled_ops(traced)] == [STEPS, 2]
    data = traced.report().data
    assert data["dropped"] == []
    assert data["segments"][1]["code_ms"] > data["segments"][1]["tape_ms"]


@pytest.mark.parametrize("option", ["fallback", "require_full_compilation"])
def test_who_wants_everything_compiled_gets_it(option: str) -> None:
    trace = cleave.trace if option == "fallback" else cleave.compat.trace
    traced = trace(lambda x: x.sin().cos(), X, backend=Timed().name, cache=False, **{option: option != "fallback"})
    assert compiled_ops(traced) == [["sin", "cos"]]


def test_a_share_that_must_be_compiled_counts_what_could_be() -> None:
    traced = Timed().trace(Parts(), X, support_threshold=0.99)
    assert dropped_ops(traced) == {"sin", "cos"}
    with pytest.raises(cleave.ArgumentError, match="less of the model"):
        Timed().trace(Parts(), X, support_threshold=0.999)


def test_where_all_are_slower_the_tape_is_left() -> None:
    traced = Timed().trace(lambda x: x.sin().cos().sort(-1).values.sin().cos(), X)
    assert traced.segments == []
    data = traced.report().data
    assert len(data["dropped"]) == 2
    assert data["compiled"] == 0
    assert data["traced_ms"] == data["tape_ms"]
    x = torch.randn(8)
    assert torch.equal(traced(x), x.sin().cos().sort(-1).values.sin().cos())


def test_a_segment_that_makes_the_whole_slower_is_dropped() -> None:
    """Alone it is quick: compared once, and timed for some rounds. In the whole it is not."""
    traced = Timed(quick_calls=1 + 32).trace(lambda x: many(x).sort(-1).values, X)
    assert traced.segments == []
    (dropped,) = traced.report().data["dropped"]
    assert dropped["tape_ms"] > dropped["code_ms"]
    assert dropped["reason"] == "with it the whole is slower"


def test_sizes_beside_the_example_count_too() -> None:
    """Quick for the example, slow for fewer rows."""

    class Rows(Timed):
        def _run(self, code: Any, inputs: Sequence[Tensor]) -> list[Tensor]:
            if len(inputs[0]) < 8:
                time.sleep(0.005)
            return super()._run(code, inputs)

    x = torch.arange(64.0).view(8, 8)
    traced = Rows().trace(Parts(), x, dynamic_batch=(1, 8))
    assert traced.segments == []
    assert torch.equal(traced(x[:3]), Parts()(x[:3]))


def test_where_calls_from_python_cost_more_than_code_gives_the_tape_runs(monkeypatch: pytest.MonkeyPatch) -> None:
    compiled = tracing.TracedModule._run
    calls = 0

    def slow(self: Any, *args: Any) -> Any:
        nonlocal calls
        calls += 1
        time.sleep(0.005)
        return compiled(self, *args)

    monkeypatch.setattr(tracing.TracedModule, "_run", slow)
    traced = Timed().trace(Parts(), X)
    assert [(s.compiled, s.reason) for s in traced.segments] == [(False, tracing.COSTS_MORE)]
    report = traced.report()
    assert report.data["segments"][0]["reason"] == tracing.COSTS_MORE
    assert report.data["traced_ms"] == report.data["tape_ms"]
    before = calls
    assert torch.equal(traced(X), Parts()(X))
    assert calls == before
    kept = Timed().trace(Parts(), X, keep_slower=True)
    assert all(s.compiled for s in kept.segments)


def test_a_module_that_runs_the_tape_is_for_inference_and_follows_the_model() -> None:
    net = nn.Sequential(nn.Linear(8, 8), nn.Tanh())
    traced = Timed().trace(net, X)
    assert traced.segments == []
    assert not traced(X).requires_grad
    with torch.no_grad():
        net[0].weight.mul_(2)
    assert torch.equal(traced(X), net(X))
    assert traced(torch.randn(8, requires_grad=True)).requires_grad
    net.append(nn.Tanh())
    assert torch.equal(traced(X), net(X))


def test_a_model_that_counts_its_calls_is_timed_on_a_copy_of_its_state() -> None:
    net = nn.Sequential(nn.Linear(8, 8), nn.BatchNorm1d(8, momentum=None), nn.Tanh())
    x = torch.randn(4, 8)
    before = {name: t.clone() for name, t in net.state_dict().items()}
    Timed().trace(net, x)
    for name, t in net.state_dict().items():
        assert torch.equal(t, before[name]), name


@pytest.mark.parametrize("given", [1, "yes", None])
def test_keep_slower_is_true_or_false(given: Any) -> None:
    with pytest.raises(TypeError, match="keep_slower"):
        cleave.trace(Parts(), X, keep_slower=given, dryrun=True)


@pytest.mark.integration
def test_the_command_says_what_was_dropped(tmp_path: Path) -> None:
    """Two tiny operators: OpenVINO's call alone takes longer."""
    pytest.importorskip("openvino")
    if COMMAND is None:
        pytest.skip("the command is not built")
    with torch.no_grad():
        cleave.capture(lambda x: x.sin().cos(), X).save(tmp_path / "net.clv")
    words = [str(COMMAND), "trace", "net.clv", "-o", "out.clv", "--backend", "openvino", "--json", "--cache", "made"]
    for more, kept in ([], 0), (["--keep-slower"], 1):
        done = subprocess.run([*words, *more], cwd=tmp_path, capture_output=True, text=True, check=False)
        assert done.returncode == 0, done.stderr
        data = json.loads(done.stdout)
        assert len(data["segments"]) == kept
        assert len(data["dropped"]) == 1 - kept

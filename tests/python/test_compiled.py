"""The compiled mode: the generated source through torch.compile, on the model's live tensors, with its fallbacks."""

from __future__ import annotations

import copy
import gc
import linecache
import traceback
from collections.abc import Callable, Sequence
from typing import Any

import pytest
import torch
from helpers import Fn
from test_source import Attention, Conv, Stateful, sized
from torch import Tensor, nn

import cleave
from cleave._capture import Captured, grad_mode
from cleave._compiled import TAPE, TOLERANCE, CompiledView, default_options
from cleave.plan import Program

EAGER = {"backend": "eager"}


@pytest.fixture(autouse=True)
def fresh_compiler() -> None:
    torch._dynamo.reset()


def captured_of(model: Any, *inputs: Tensor, grad: bool = False) -> Captured:
    with grad_mode(grad):
        return cleave.capture(model, inputs, both_grad_modes=False)._main


def segment_of(model: Any, *inputs: Tensor, grad: bool = False, options: dict[str, Any] | None = None) -> CompiledView:
    captured = captured_of(model, *inputs, grad=grad)
    return CompiledView(captured, 0, captured.plan.node_count(), inference=not grad, options=options or EAGER)


def close(want: Sequence[Tensor], got: Sequence[Tensor]) -> None:
    assert len(want) == len(got)
    for a, b in zip(want, got, strict=True):
        torch.testing.assert_close(b, a, **TOLERANCE)


@pytest.mark.integration
@pytest.mark.parametrize("backend", ["eager", "aot_eager"])
@pytest.mark.parametrize("make", [Conv, Attention])
def test_a_compiled_segment_gives_what_the_model_gives(make: Callable[[], nn.Module], backend: str) -> None:
    torch.manual_seed(0)
    model = make().eval()
    x = torch.randn(2, 3, 8, 8) if make is Conv else torch.randint(0, 20, (2, 6))
    segment = segment_of(model, x, options={"backend": backend})
    assert segment.active_backend == f"{backend} fullgraph"
    for seed in (1, 2):
        torch.manual_seed(seed)
        y = torch.randn_like(x) if x.is_floating_point() else torch.randint(0, 20, (2, 6))
        with torch.no_grad():
            close([model(y)], segment.run([y]))
    assert segment.active_backend == f"{backend} fullgraph"
    assert segment.fallback_reason is None


@pytest.mark.integration
def test_prefix_and_suffix_compiled_are_the_model_at_any_batch() -> None:
    torch.manual_seed(0)
    model = Conv().eval()
    captured = sized(model, torch.randn(2, 3, 8, 8))
    cut, n = captured.plan.node_count() // 2, captured.plan.node_count()
    prefix = CompiledView(captured, 0, cut, inference=True, options=EAGER)
    suffix = CompiledView(captured, cut, n, inference=True, options=EAGER)
    for batch in (2, 3, 7):
        x = torch.randn(batch, 3, 8, 8)
        with torch.no_grad():
            assert torch.equal(suffix.run(prefix.run([x]), [batch])[0], model(x))
    assert (prefix.fallback_reason, suffix.fallback_reason) == (None, None)


@pytest.mark.integration
def test_training_through_a_compiled_segment_gives_the_gradients_of_eager() -> None:
    torch.manual_seed(0)
    model = Conv().train()
    twin = copy.deepcopy(model)
    x = torch.randn(4, 3, 8, 8)
    segment = segment_of(model, x, grad=True, options={"backend": "aot_eager"})
    steps = [torch.optim.SGD(m.parameters(), lr=0.1, momentum=0.9) for m in (model, twin)]
    for seed in range(3):
        torch.manual_seed(seed)
        x = torch.randn(4, 3, 8, 8)
        for optimizer, call in zip(steps, (lambda t: segment.run([t])[0], twin), strict=True):
            optimizer.zero_grad()
            call(x).square().sum().backward()
            optimizer.step()
        close([p.grad for p in twin.parameters()], [p.grad for p in model.parameters()])  # type: ignore[misc]
        close(list(twin.buffers()), list(model.buffers()))
    assert model.bn.num_batches_tracked == 3
    assert segment.fallback_reason is None


def test_the_models_live_tensors_are_used() -> None:
    model = Fn(lambda lin, x: lin(x))
    x = torch.randn(3, 4)
    segment = segment_of(model, x)
    changes: list[Callable[[], Any]] = [
        lambda: model.lin.weight.data.mul_(2),
        lambda: setattr(model.lin, "weight", nn.Parameter(torch.randn(4, 4))),
        lambda: model.load_state_dict({k: torch.randn_like(v) for k, v in model.state_dict().items()}),
        lambda: model.load_state_dict({k: torch.randn_like(v) for k, v in model.state_dict().items()}, assign=True),
    ]
    for change in changes:
        segment.run([x])
        change()
        with torch.no_grad():
            assert torch.equal(segment.run([x])[0], model(x))


def test_rebound_tensors_come_after_the_outputs_as_from_the_tape() -> None:
    model = Stateful().eval()
    x = torch.randn(3, 4)
    captured = captured_of(model, x)
    n = captured.plan.node_count()
    with torch.no_grad():
        before = copy.deepcopy(model.state_dict())
        want = Program(captured, 0, n).run([x])
        model.load_state_dict(before)
        got = CompiledView(captured, 0, n, options=EAGER).run([x])
    assert len(want) == 2
    close(want, got)
    assert torch.equal(model.hidden, before["hidden"]), "who calls the segment puts them into the model"
    assert model.steps == before["steps"] + 1


def raising(graph: Any, inputs: Any) -> Any:
    raise RuntimeError("this backend never works")


def test_what_does_not_compile_at_all_runs_on_the_tape() -> None:
    model = Conv().eval()
    x = torch.randn(2, 3, 8, 8)
    segment = segment_of(model, x, options={"backend": raising})
    with torch.no_grad():
        assert torch.equal(segment.run([x])[0], model(x))
    assert segment.active_backend == TAPE
    reason = segment.fallback_reason or ""
    assert reason.count("this backend never works") == 2, reason
    assert "raising fullgraph: " in reason


def test_what_breaks_the_graph_is_compiled_in_pieces() -> None:
    model = Fn(lambda lin, x: lin(x) if x.sum() > 0 else lin(-x))
    x = torch.ones(3, 4)
    segment = segment_of(model, x)
    with torch.no_grad():
        assert torch.equal(segment.run([x])[0], model(x))
    assert segment.active_backend == "eager"
    assert (segment.fallback_reason or "").startswith("eager fullgraph: ")
    with pytest.raises(cleave.GuardError, match="node is_nonzero"):
        segment.run([-x])
    assert segment.active_backend == "eager", "a guard is no reason to fall back"


def test_an_unknown_backend_falls_back_with_its_reason() -> None:
    segment = segment_of(Fn(lambda lin, x: lin(x)), torch.ones(3, 4), options={"backend": "no_such_backend"})
    segment.run([torch.ones(3, 4)])
    assert segment.active_backend == TAPE
    assert "no_such_backend" in (segment.fallback_reason or "")


def test_a_failed_attempt_leaves_no_trace_in_state_and_generators() -> None:
    class Counting(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.bn = nn.BatchNorm1d(4)

        def forward(self, x: Tensor) -> Tensor:
            y = torch.dropout(self.bn(x), 0.5, True)
            assert bool((x.sum() != 12345).all())
            return y * 2

    calls = []

    def late(graph: Any, inputs: Any) -> Any:
        calls.append(graph)
        if len(calls) < 2:
            return graph.forward

        def fail(*args: Any) -> Any:
            raise RuntimeError("fails when it runs")

        return fail

    model = Counting().train()
    twin = copy.deepcopy(model)
    x = torch.randn(5, 4)
    segment = segment_of(model, x, options={"backend": late})
    torch.manual_seed(5)
    with torch.no_grad():
        got = segment.run([x])
        state = torch.get_rng_state()
        torch.manual_seed(5)
        want = twin(x)
    assert "fails when it runs" in (segment.fallback_reason or "")
    assert torch.equal(got[0], want)
    assert torch.equal(state, torch.get_rng_state())
    assert all(torch.equal(a, b) for a, b in zip(model.buffers(), twin.buffers(), strict=True))


def test_an_error_of_the_model_is_no_failure_to_compile() -> None:
    model = Attention().eval()
    segment = segment_of(model, torch.randint(0, 20, (2, 6)))
    for _ in range(2):
        with pytest.raises(cleave.ReplayError, match="embedding"):
            segment.run([torch.full((2, 6), 99)])
        assert segment.active_backend == "eager fullgraph"
        assert segment.fallback_reason is None
    ids = torch.randint(0, 20, (2, 6))
    with torch.no_grad():
        assert torch.equal(segment.run([ids])[0], model(ids))
    assert segment.active_backend == "eager fullgraph"


@pytest.mark.parametrize("wrong", [torch.randn(2, 4), torch.randn(3, 4, dtype=torch.float64), torch.randn(4, 3).t()])
def test_wrong_inputs_are_refused_as_by_the_tape(wrong: Tensor) -> None:
    model = Fn(lambda lin, x: lin(x))
    segment = segment_of(model, torch.randn(3, 4))
    for _ in range(2):
        with pytest.raises(cleave.InputError) as error:
            segment.run([wrong])
        with pytest.raises(cleave.InputError) as tape:
            segment.program.run([wrong])
        assert str(error.value) == str(tape.value)
        segment.run([torch.randn(3, 4)])


def test_a_model_in_another_mode_is_refused_as_by_the_tape() -> None:
    model = Conv().eval()
    segment = segment_of(model, torch.randn(2, 3, 8, 8))
    segment.run([torch.randn(2, 3, 8, 8)])
    model.train()
    with pytest.raises(cleave.InputError, match="train and eval"):
        segment.run([torch.randn(2, 3, 8, 8)])


def test_what_has_no_source_text_runs_on_the_tape() -> None:
    class Twice(torch.autograd.Function):
        @staticmethod
        def forward(ctx: Any, x: Tensor) -> Tensor:
            return x * 2

        @staticmethod
        def backward(ctx: Any, g: Tensor) -> Tensor:  # type: ignore[override]
            return g * 2

    model = Fn(lambda lin, x: Twice.apply(lin(x)))
    segment = segment_of(model, torch.ones(3, 4), grad=True)
    assert segment.active_backend == TAPE
    assert "Python code" in (segment.fallback_reason or "")
    assert torch.equal(segment.run([torch.ones(3, 4)])[0], model(torch.ones(3, 4)))
    assert segment.source is None


def test_inference_keeps_no_gradients_whatever_the_callers_mode() -> None:
    segment = segment_of(Fn(lambda lin, x: lin(x)), torch.ones(3, 4))
    assert not segment.run([torch.ones(3, 4)])[0].requires_grad


def test_a_capture_under_autocast_runs_compiled_under_autocast() -> None:
    model = Fn(lambda lin, x: lin(x) + 1)
    x = torch.randn(3, 4)
    with torch.autocast("cpu", dtype=torch.float16), torch.no_grad():
        captured = cleave.capture(model, x, both_grad_modes=False)._main
        segment = CompiledView(captured, 0, captured.plan.node_count(), inference=True, options=EAGER)
        assert torch.equal(segment.run([x])[0], model(x))
    assert segment.fallback_reason is None


def test_warmup_compiles_and_leaves_the_model_alone() -> None:
    model = Conv().train()
    before = copy.deepcopy(model.state_dict())
    x = torch.randn(4, 3, 8, 8)
    compiled = []

    def counting(graph: Any, inputs: Any) -> Any:
        compiled.append(graph)
        return graph.forward

    segment = segment_of(model, x, options={"backend": counting})
    state = torch.get_rng_state()
    segment.warmup([x])
    assert len(compiled) == 1
    assert all(torch.equal(v, before[k]) for k, v in model.state_dict().items())
    assert torch.equal(state, torch.get_rng_state())
    segment.run([x])
    assert len(compiled) == 1


def test_tracebacks_show_the_generated_source() -> None:
    model = Fn(lambda lin, x: lin(x) if x.sum() > 0 else lin(-x))
    segment = segment_of(model, torch.ones(3, 4))
    segment.run([torch.ones(3, 4)])
    with pytest.raises(cleave.GuardError) as error:
        segment.run([-torch.ones(3, 4)])
    assert "raise GuardError(" in "".join(traceback.format_exception(error.value))
    files = [name for name in linecache.cache if name.startswith("<cleave Segment")]
    assert files
    del segment, error
    torch._dynamo.reset()
    gc.collect()
    assert len([name for name in linecache.cache if name.startswith("<cleave Segment")]) < len(files)


def test_the_default_options_are_for_low_overhead() -> None:
    x = torch.ones(1)
    assert default_options([x], True, False) == {"backend": "inductor"}
    assert default_options([x], True, True) == {"backend": "inductor", "dynamic": True}


def test_every_source_compiles_without_a_graph_break_when_nothing_reads_the_data() -> None:
    torch.manual_seed(0)
    layer = nn.TransformerEncoderLayer(16, 4, 32, batch_first=True).train()
    x = torch.randn(2, 5, 16)
    segment = segment_of(layer, x, grad=True)
    torch.manual_seed(1)
    got = segment.run([x])
    torch.manual_seed(1)
    close([layer(x)], got)
    assert (segment.active_backend, segment.fallback_reason) == ("eager fullgraph", None)


@pytest.mark.slow
def test_inductor_compiles_a_segment_for_inference_and_training(tmp_path: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TORCHINDUCTOR_CACHE_DIR", str(tmp_path))
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(4, 8), nn.GELU(), nn.Linear(8, 2)).train()
    x = torch.randn(3, 4)
    segment = segment_of(model, x, grad=True, options={"backend": "inductor"})
    got, want = segment.run([x])[0], model(x)
    assert (segment.active_backend, segment.fallback_reason) == ("inductor fullgraph", None)
    close([want], [got])
    close(torch.autograd.grad(want.sum(), model.parameters()), torch.autograd.grad(got.sum(), model.parameters()))

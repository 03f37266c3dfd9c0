"""The cuda_graph mode and the compiled mode on a GPU; without one, what falls back and how graphs are kept."""

from __future__ import annotations

import re
import threading
from typing import Any

import pytest
import torch
from helpers import Fn
from test_source import Attention, Conv, Stateful, sized
from torch import Tensor, nn

import cleave
from cleave._capture import Captured, grad_mode, own_copy
from cleave._compiled import TOLERANCE, CompiledView
from cleave._cuda_graph import GRAPH, TAPE, GraphView, _Graph
from cleave.plan import Program

GENERATOR = torch.Generator()


def on_gpu(test: Any) -> Any:
    return pytest.mark.gpu(pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device")(test))


def captured_of(model: Any, *inputs: Tensor, grad: bool = False) -> Captured:
    with grad_mode(grad):
        return cleave.capture(model, inputs, both_grad_modes=False)._main


def graph_of(model: Any, *inputs: Tensor, **options: Any) -> GraphView:
    captured = captured_of(model, *inputs)
    return GraphView(captured, 0, captured.plan.node_count(), **options)


# ---- without a device ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("fn", "reason"),
    [
        (lambda lin, x: lin(x) if lin(x).relu_().sum() > 0 else -x, "node is_nonzero reads its data on the host"),
        (lambda lin, x: lin(x) + torch.rand(4, generator=GENERATOR), r"node rand takes an object \(a generator, .*"),
        (lambda lin, x: lin(x.add_(1)), "node add_ writes to an input"),
        (lambda lin, x: lin(x)[x[:, 0] > 0], "node (index|nonzero) (is guarded|reads its data).*"),
    ],
)
def test_what_cannot_be_in_a_graph_runs_on_the_tape(fn: Any, reason: str) -> None:
    model, x = Fn(fn), torch.ones(3, 4)
    segment = graph_of(model, x)
    assert segment.active_backend == TAPE
    assert re.fullmatch(reason, segment.fallback_reason or "")
    with torch.no_grad():
        GENERATOR.manual_seed(0)
        want = model(x.clone())
        GENERATOR.manual_seed(0)
        assert torch.equal(segment.run([x.clone()])[0], want)
    assert len(segment) == 0


def test_a_forward_that_changes_its_module_runs_on_the_tape() -> None:
    assert "writes to a tensor of the model" in (graph_of(Stateful().eval(), torch.randn(3, 4)).fallback_reason or "")
    model = Conv().train()
    assert "node add_ writes to a tensor" in (graph_of(model, torch.randn(2, 3, 8, 8)).fallback_reason or "")


def test_inputs_on_the_cpu_run_on_the_tape() -> None:
    model, x = Conv().eval(), torch.randn(2, 3, 8, 8)
    segment = graph_of(model, x)
    with torch.no_grad():
        assert torch.equal(segment.run([x])[0], model(x))
    assert segment.active_backend == TAPE
    assert segment.fallback_reason in ("there is no CUDA device", "an input is not on a CUDA device")


def test_the_number_of_graphs_is_checked() -> None:
    with pytest.raises(ValueError, match="max_graphs"):
        graph_of(Conv().eval(), torch.randn(2, 3, 8, 8), max_graphs=0)


class Pretended(GraphView):
    """Captures and replays on the tape, so that the keeping of graphs can be seen without a device."""

    captures = 0

    def _unfit_for_ever(self) -> str | None:
        return None

    def _unfit(self, leaves: Any) -> str | None:
        return None

    def _capture(self, n: int, given: Any, symbols: Any, model: Any) -> _Graph:
        self.captures += 1
        self.inputs = n
        stamp = self.program.native.before_graph(given[:n], symbols)[:2]
        return _Graph(None, [own_copy(t) for t in given], (), [], model, stamp)

    def _replay(self, g: _Graph, given: Any) -> tuple[Tensor, ...]:
        return self.program.run(given[: self.inputs], None, given[self.inputs :])


def pretended(model: nn.Module, captured: Captured, **options: Any) -> Pretended:
    return Pretended(captured, 0, captured.plan.node_count(), **options)


def test_graphs_are_kept_by_size_and_the_least_recent_goes() -> None:
    model = Conv().eval()
    segment = pretended(model, sized(model, torch.randn(2, 3, 8, 8)), max_graphs=2)
    for batch, captures in ((2, 1), (3, 2), (2, 2), (5, 3), (2, 3), (3, 4)):
        x = torch.randn(batch, 3, 8, 8)
        with torch.no_grad():
            assert torch.equal(segment.run([x])[0], model(x))
        assert segment.captures == captures, batch
        assert len(segment) <= 2


def test_a_parameter_that_is_another_tensor_makes_a_new_graph() -> None:
    model, x = Fn(lambda lin, x: lin(x)), torch.ones(3, 4)
    segment = pretended(model, captured_of(model, x))
    segment.run([x])
    with torch.no_grad():
        model.lin.weight.mul_(2)
    segment.run([x])
    assert segment.captures == 1, "a graph reads parameters where they lie"
    model.lin.weight = nn.Parameter(torch.randn(4, 4))
    segment.run([x])
    assert segment.captures == 2
    model.lin.weight.data = torch.randn(4, 4)
    segment.run([x])
    assert segment.captures == 3


@pytest.mark.parametrize(
    ("fn", "shared"),
    [
        (lambda lin, x: lin(x) if x.sum() > 0 else -x, 0),
        (lambda lin, x: lin(x + 1) * (x + 1) if (x + 1).sum() > 1 else -x, 1),
        (lambda lin, x: lin(x) if x.view(-1)[0] > 0 and (x * 2).mean() < 9 else x, 0),
    ],
)
def test_guards_run_before_a_graph(fn: Any, shared: int) -> None:
    model, x = Fn(fn), torch.ones(3, 4)
    segment = pretended(model, captured_of(model, x))
    assert "host" not in segment.program.native.effects()
    assert len(segment.program.native.before_graph([x])[2]) == shared
    with torch.no_grad():
        for y in (x, torch.rand(3, 4) + 0.1, x):
            assert torch.equal(segment.run([y])[0], model(y))
        with pytest.raises(cleave.GuardError, match="captured value"):
            segment.run([-3 * x])
        assert torch.equal(segment.run([2 * x])[0], model(2 * x))
    assert (segment.captures, segment.fallback_reason) == (1, None)


def test_what_guards_give_to_the_rest_is_counted() -> None:
    model, x = Fn(lambda lin, x: lin(x + 1) * (x + 1) if (x + 1).sum() > 1 else -x), torch.ones(3, 4)
    segment = pretended(model, captured_of(model, x))
    with pytest.raises(ValueError, match="guards give 1 tensors to the rest, not 0"):
        segment.program.run([x], None, [])


class Masked(nn.Module):
    """Makes a mask of its sizes, and looks whether it hides anything."""

    def __init__(self) -> None:
        super().__init__()
        self.lin = nn.Linear(4, 4)

    def forward(self, x: Tensor) -> Tensor:
        mask = torch.arange(x.shape[0], device=x.device)[:, None] >= torch.zeros(4, device=x.device)
        return self.lin(x) if mask.all() else self.lin(x).masked_fill(~mask, 0)


def test_masks_and_guards_on_them_are_made_once_for_a_size() -> None:
    model = Masked().eval()
    segment = pretended(model, sized(model, torch.randn(2, 4)))
    assert "host" not in segment.program.native.effects()
    made = set()
    for batch in (2, 3, 2, 5, 3, 2):
        x = torch.randn(batch, 4)
        made.add(segment.program.native.before_graph([x])[:2])
        with torch.no_grad():
            assert torch.equal(segment.run([x])[0], model(x))
    assert (len(made), segment.captures) == (3, 3)


def test_more_sizes_than_are_kept() -> None:
    model = Masked().eval()
    segment = pretended(model, sized(model, torch.randn(2, 4)), max_graphs=20)
    for batch in (*range(2, 14), *range(2, 14), 13, 12, 11):
        x = torch.randn(batch, 4)
        with torch.no_grad():
            assert torch.equal(segment.run([x])[0], model(x))
    assert segment.captures == 24, "what was made anew is at another place"


def test_a_capture_that_fails_is_not_tried_again() -> None:
    class Failing(Pretended):
        def _capture(self, n: int, given: Any, symbols: Any, model: Any) -> _Graph:
            self.captures += 1
            raise RuntimeError("operation not permitted when stream is capturing")

    model, x = Fn(lambda lin, x: lin(x)), torch.ones(3, 4)
    captured = captured_of(model, x)
    segment = Failing(captured, 0, captured.plan.node_count())
    for _ in range(3):
        with torch.no_grad():
            assert torch.equal(segment.run([x])[0], model(x))
    assert segment.captures == 1
    assert "not permitted when stream is capturing" in (segment.fallback_reason or "")
    assert segment.active_backend == TAPE


def test_wrong_inputs_are_refused_before_a_capture() -> None:
    model = Fn(lambda lin, x: lin(x))
    segment = pretended(model, captured_of(model, torch.ones(3, 4)))
    with pytest.raises(cleave.InputError, match="dimension 0 is 2"):
        segment.run([torch.ones(2, 4)])
    assert segment.captures == 0


# ---- on a device -----------------------------------------------------------------------------------------------------


def cuda(model: nn.Module) -> nn.Module:
    torch.manual_seed(0)
    return model.eval().cuda()


def randn(seed: int, *shape: int) -> Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed)).cuda()


@on_gpu
@pytest.mark.parametrize("name", ["conv", "attention"])
def test_a_graph_gives_the_bits_of_the_tape(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.backends.cudnn, "deterministic", True)
    model = cuda(Conv() if name == "conv" else Attention())
    inputs = [randn(s, 2, 3, 8, 8) if name == "conv" else torch.randint(0, 20, (2, 6)).cuda() for s in range(4)]
    segment = graph_of(model, inputs[0])
    with torch.no_grad():
        got = [segment.run([x])[0] for x in inputs]
        assert (segment.active_backend, segment.fallback_reason) == (GRAPH, None)
        assert len(segment) == 1
        for x, y in zip(inputs, got, strict=True):
            assert torch.equal(y, segment.program.run([x])[0]), "an output changed after it was returned"


@on_gpu
def test_prefix_and_suffix_as_graphs_are_the_model_at_any_batch() -> None:
    model = cuda(Conv())
    captured = sized(model, randn(0, 2, 3, 8, 8))
    cut, n = captured.plan.node_count() // 2, captured.plan.node_count()
    prefix, suffix = GraphView(captured, 0, cut, max_graphs=2), GraphView(captured, cut, n, max_graphs=2)
    tape = Program(captured, 0, n, inference=True)
    for batch in (2, 3, 7, 2, 5, 3):
        x = randn(batch, batch, 3, 8, 8)
        out = suffix.run(prefix.run([x]), [batch])
        torch.testing.assert_close(out[0], tape.run([x])[0], rtol=1e-5, atol=1e-6)
        assert (prefix.fallback_reason, suffix.fallback_reason) == (None, None)
        assert len(prefix) <= 2


@on_gpu
def test_a_graph_sees_the_models_tensors() -> None:
    model = cuda(Fn(lambda lin, x: lin(x)))
    x = randn(0, 3, 4)
    segment = graph_of(model, x)
    with torch.no_grad():
        segment.run([x])
        for change in (
            lambda: model.lin.weight.mul_(2),
            lambda: model.load_state_dict({k: torch.randn_like(v) for k, v in model.state_dict().items()}),
            lambda: setattr(model.lin, "weight", nn.Parameter(randn(3, 4, 4))),
            lambda: model.load_state_dict({k: v + 1 for k, v in model.state_dict().items()}, assign=True),
        ):
            change()
            torch.testing.assert_close(segment.run([x])[0], model(x))
            assert segment.active_backend == GRAPH


@on_gpu
def test_a_graph_gives_back_inputs_and_parameters_as_they_are() -> None:
    model = cuda(Fn(lambda lin, x, y: (x, lin(x) + y, lin.weight, y.t())))
    x, y = randn(0, 3, 4), randn(1, 3, 4)
    segment = graph_of(model, x, y)
    for a, b in ((x, y), (randn(2, 3, 4), randn(3, 3, 4))):
        out = segment.run([a, b])
        assert out[0] is a
        assert out[2] is model.lin.weight
        assert torch.equal(out[3], b.t())
        assert out[3].stride() == b.t().stride()
    assert segment.active_backend == GRAPH


@on_gpu
def test_a_failed_capture_leaves_cuda_as_it_was() -> None:
    model = cuda(Fn(lambda lin, x: lin(x)))
    x = randn(0, 3, 4)
    segment = graph_of(model, x)

    class Syncing:
        """Reads on the host in the middle of the capture, as an operator that hides it would."""

        def __init__(self, program: Program) -> None:
            self.native, self.program = program.native, program

        def run(self, leaves: Any, symbols: Any = None, guards: Any = None) -> Any:
            out = self.program.run(leaves, symbols, guards)
            out[0].sum().item()
            return out

    segment.program = Syncing(segment.program)  # type: ignore[assignment]
    stream = torch.cuda.current_stream()
    with torch.no_grad():
        assert torch.equal(segment.run([x])[0], model(x))
    assert "the capture failed" in (segment.fallback_reason or "")
    assert torch.cuda.current_stream() == stream
    assert not torch.cuda.is_current_stream_capturing()
    torch.cuda.synchronize()
    assert torch.rand(3, device="cuda").shape == (3,), "the generator is out of the graph"
    again = graph_of(model, x)
    with torch.no_grad():
        torch.testing.assert_close(again.run([x])[0], model(x))
    assert again.fallback_reason is None, "the next capture works"


@on_gpu
def test_a_graph_draws_what_the_tape_draws() -> None:
    model = cuda(Fn(lambda lin, x: torch.dropout(lin(x), 0.5, True) + torch.rand_like(x)))
    x = randn(0, 64, 4)
    segment = graph_of(model, x)
    for seed in (1, 2):
        torch.cuda.manual_seed(seed)
        got = [segment.run([x])[0] for _ in range(3)]
        after = torch.cuda.get_rng_state()
        torch.cuda.manual_seed(seed)
        want = [segment.program.run([x])[0] for _ in range(3)]
        assert all(torch.equal(a, b) for a, b in zip(want, got, strict=True))
        assert torch.equal(after, torch.cuda.get_rng_state())
    assert (segment.active_backend, len(segment)) == (GRAPH, 1)


@on_gpu
def test_threads_on_streams_of_their_own_share_a_graph() -> None:
    model = cuda(Fn(lambda lin, x: torch.relu(lin(x)) @ lin.weight))
    x = randn(0, 64, 4)
    segment = graph_of(model, x)
    segment.run([x])
    wrong: list[int] = []

    def work(seed: int) -> None:
        with torch.no_grad(), torch.cuda.stream(torch.cuda.Stream()):
            for k in range(50):
                y = randn(1000 * seed + k, 64, 4)
                got = segment.run([y])[0]
                if not torch.allclose(got, model(y), rtol=1e-4, atol=1e-5):
                    wrong.append(seed)

    threads = [threading.Thread(target=work, args=(i,)) for i in range(4)]
    for t in threads:
        t.start()
    for t in threads:
        t.join()
    assert not wrong


@on_gpu
def test_inference_mode_around_the_calls_is_no_obstacle() -> None:
    model = cuda(Fn(lambda lin, x: lin(x)))
    x = randn(0, 3, 4)
    segment = graph_of(model, x)
    with torch.inference_mode():
        first = segment.run([x])[0]
    with torch.no_grad():
        assert torch.equal(segment.run([x])[0], first)
    assert (segment.active_backend, len(segment)) == (GRAPH, 1)


@on_gpu
def test_with_grad_wanted_a_graph_segment_uses_the_tape() -> None:
    model = cuda(Fn(lambda lin, x: lin(x)))
    x = randn(0, 3, 4)
    captured = captured_of(model, x, grad=True)
    segment = GraphView(captured, 0, captured.plan.node_count(), inference=False)
    segment.run([x])[0].sum().backward()
    assert model.lin.weight.grad is not None
    assert "gradients" in (segment.fallback_reason or "")


@on_gpu
@pytest.mark.slow
def test_inductor_with_cuda_graphs_does_not_overwrite_its_outputs() -> None:
    model = cuda(Conv())
    captured = captured_of(model, randn(0, 2, 3, 8, 8))
    segment = CompiledView(captured, 0, captured.plan.node_count(), inference=True)
    inputs = [randn(s, 2, 3, 8, 8) for s in range(5)]
    got = [segment.run([x])[0] for x in inputs]
    assert (segment.active_backend, segment.fallback_reason) == ("inductor fullgraph", None)
    with torch.no_grad():
        for x, y in zip(inputs, got, strict=True):
            torch.testing.assert_close(y, model(x), rtol=1e-3, atol=1e-4)


@on_gpu
@pytest.mark.slow
def test_training_through_inductor_on_a_gpu_gives_the_gradients_of_eager() -> None:
    model = cuda(Fn(lambda lin, x: torch.relu(lin(x)).square()))
    x = randn(0, 3, 4)
    captured = captured_of(model, x, grad=True)
    segment = CompiledView(captured, 0, captured.plan.node_count())
    got = torch.autograd.grad(segment.run([x])[0].sum(), model.parameters())
    want = torch.autograd.grad(model(x).sum(), model.parameters())
    assert segment.fallback_reason is None
    for a, b in zip(want, got, strict=True):
        torch.testing.assert_close(b, a, **TOLERANCE)

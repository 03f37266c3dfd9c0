"""Forwards that call scripted and traced code: replayed bit for bit, or refused when they are captured."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
from helpers import must_replay, rand, same_tree, twins
from scripted import drawn
from torch import Tensor, nn

import cleave

SCALES = (1.0, 1.0, 10.0, -100.0, 1e4, 0.0)  # of unseen inputs, most of them far from the example
Inputs = tuple[Tensor, Tensor]


def _inputs(scale: float, grad: bool) -> Inputs:
    x, y = (torch.randn(3, 4) * scale for _ in range(2))
    return x.requires_grad_(grad), y.requires_grad_(grad)


def _gradients(out: Any, inputs: Inputs) -> list[Tensor | None]:
    roots = [t for t in (out if isinstance(out, tuple) else (out,)) if t.requires_grad]
    seeds = [torch.linspace(0.5, 1.5, t.numel()).view(t.shape) for t in roots]
    return list(torch.autograd.grad(roots, inputs, seeds, allow_unused=True)) if roots else []


def _compare(model: Callable[..., Any], replay: Callable[..., Any], grad: bool, source: str) -> None:
    for scale in SCALES:
        mine, its = _inputs(scale, grad), _inputs(scale, grad)
        for a, b in zip(mine, its, strict=True):
            b.data.copy_(a.data)
        want, got = model(*mine), replay(*its)
        same_tree(want, got, f"{scale} * randn\n{source}")
        if grad:
            same_tree(_gradients(want, mine), _gradients(got, its), f"gradients at {scale} * randn\n{source}")


def _replays(seeds: range, grad: bool, runs: int) -> None:
    """runs: of each function before it is captured, as TorchScript optimizes it from the second on."""
    refused = []
    for seed in seeds:
        function, source = drawn(seed)
        torch.manual_seed(seed)

        def model(x: Tensor, y: Tensor, function: Any = function) -> Any:
            return function(x, y, 0.5, 3)

        with torch.set_grad_enabled(grad):
            for _ in range(runs):
                model(*_inputs(1, grad))
            try:
                plan = cleave.capture(model, _inputs(1, grad))
            except cleave.CaptureError as error:
                refused.append(f"{seed}: {error}")
                continue
            _compare(model, plan, grad, source)
    assert len(refused) * 20 <= len(seeds), refused


@pytest.mark.parametrize("runs", [0, 3])
def test_random_scripts_replay_bit_for_bit(runs: int) -> None:
    _replays(range(40), False, runs)


@pytest.mark.parametrize("runs", [0, 3])
def test_random_scripts_with_gradients_replay_bit_for_bit(runs: int) -> None:
    _replays(range(100, 112), True, runs)


@pytest.mark.slow
@pytest.mark.parametrize("first", range(1000, 3000, 250))
@pytest.mark.parametrize("grad", [False, True])
def test_many_random_scripts(first: int, grad: bool) -> None:
    _replays(range(first, first + 250), grad, first // 250 % 2 * 3)


class Between(nn.Module):
    """A scripted function between two layers."""

    def __init__(self, function: Any) -> None:
        super().__init__()
        self.function = function
        self.first, self.last = nn.Linear(4, 4), nn.Linear(4, 4)

    def forward(self, x: Tensor, y: Tensor) -> Tensor:
        made = self.function(self.first(x), y, 0.5, 3)
        return self.last(made[-1] if isinstance(made, tuple) else made) * 2


@pytest.mark.parametrize("seeds", [range(200, 208), pytest.param(range(2000, 2200), marks=pytest.mark.slow)])
def test_random_scripts_in_splits(seeds: range) -> None:
    for seed in seeds:
        function, source = drawn(seed)
        torch.manual_seed(seed)
        model = Between(function).eval()
        with torch.no_grad():
            spec = cleave.SplitSpec(boundary=("50%", "after:first", "40%")[seed % 3], dynamic_batch=None)
            run = cleave.prepare_split(model, example_inputs=_inputs(1, False), split=spec)
            _compare(model, lambda x, y, run=run: run.run_suffix(run.run_prefix(x, y)), False, source)


@pytest.mark.parametrize("seed", range(300, 304))
def test_random_scripts_in_training(seed: int) -> None:
    function, source = drawn(seed)
    torch.manual_seed(seed)
    model = Between(function)
    plan = cleave.capture(model, _inputs(1, True))
    parameters = list(model.parameters())
    for scale in SCALES[:3]:
        x, y = _inputs(scale, False)
        want, got = (
            torch.autograd.grad(call(x, y).square().sum(), parameters, allow_unused=True) for call in (model, plan)
        )
        same_tree(want, got, f"gradients of parameters\n{source}")


# ---- one at a time -------------------------------------------------------------------------------------------------


def script(body: str) -> Any:
    return torch.jit.CompilationUnit(f"def function(x: Tensor):\n{body}\n").function


def _far(function: Any, grad: bool = False) -> Any:
    """The plan of something around the function, compared at inputs far from the example."""

    def model(x: Tensor) -> Tensor:
        return function(x * 1.0) + 1

    with torch.set_grad_enabled(grad):
        plan = cleave.capture(model, torch.randn(3, 4).requires_grad_(grad))
        for scale in SCALES:
            x = torch.randn(3, 4) * scale
            same_tree(model(x.clone().requires_grad_(grad)), plan(x.requires_grad_(grad)), f"{scale} * randn")
    return plan


@pytest.mark.parametrize("grad", [False, True])
def test_a_result_is_not_read_from_below_where_another_value_waits(grad: bool) -> None:
    plan = _far(script("    return torch.abs(x) * torch.threshold(x, 8.0, 0.0)"), grad)
    assert "const" not in plan.text


def test_a_branch_on_a_list_of_data_is_taken_anew() -> None:
    _far(script("    v: List[float] = x.sum(1).tolist()\n    return x * 2 if v[0] > 50.0 else torch.abs(x) - v[1]"))


def test_tensors_made_of_lists_of_sizes() -> None:
    _far(script("    return torch.abs(x) * torch.tensor([x.size(0), 2, 3, x.size(1)])"))


def test_no_gradient_is_lost_where_torchscript_has_a_backward_of_its_own() -> None:
    function = script("    y = torch.sigmoid(x) * torch.tanh(x) * 3\n    return torch.max(torch.stack([y, x]), 0)[0]")
    x = torch.randn(3, 4) - 9  # x is the smaller one everywhere, or nowhere
    plan = cleave.capture(lambda x: function(x), x.abs().requires_grad_())
    for data in (x, -x, torch.randn(3, 4)):
        a, b = (data.clone().requires_grad_() for _ in range(2))
        function(a).square().sum().backward()
        plan(b).square().sum().backward()
        same_tree(a.grad, b.grad, "gradient")


@pytest.fixture
def fuser() -> Iterator[None]:
    """TorchScript's fuser on the CPU, without a compiler."""
    c = torch._C
    was = c._jit_can_fuse_on_cpu(), c._jit_get_te_must_use_llvm_cpu()
    c._jit_override_can_fuse_on_cpu(True)
    c._jit_set_te_must_use_llvm_cpu(False)
    yield
    c._jit_override_can_fuse_on_cpu(was[0])
    c._jit_set_te_must_use_llvm_cpu(was[1])


@pytest.mark.parametrize("runs", [0, 3])
def test_what_a_fuser_computes_is_no_constant(fuser: None, runs: int) -> None:
    function = script("    return torch.threshold(x, 8.0, 0.0) * torch.abs(x) + torch.threshold(x, 9.0, 0.0)")
    for _ in range(runs):
        function(torch.randn(3, 4))
    _far(function)


def test_a_graph_frozen_for_inference_is_called() -> None:
    net = nn.Sequential(nn.Conv2d(3, 4, 3), nn.BatchNorm2d(4), nn.ReLU()).eval()
    with torch.no_grad():
        fast = torch.jit.optimize_for_inference(torch.jit.script(net))
    must_replay(lambda x: fast(x) * 2, rand((2, 3, 8, 8)), grad=False, input_grad=False)


class Child(nn.Module):
    """Writes buffers, with a version and without."""

    def __init__(self) -> None:
        super().__init__()
        self.layer, self.norm = nn.Linear(4, 4), nn.BatchNorm1d(4)
        self.count: Tensor
        self.register_buffer("count", torch.zeros(4))

    def forward(self, x: Tensor) -> Tensor:
        self.count.add_(1.0)
        return torch.tanh(self.norm(self.layer(x))) * torch.sigmoid(x) + self.count


@pytest.mark.parametrize("grad", [False, True])
@pytest.mark.parametrize("train", [False, True])
@pytest.mark.parametrize("how", ["script", "trace"])
def test_scripted_and_traced_children(how: str, train: bool, grad: bool) -> None:
    def build() -> nn.Module:
        child: Any = Child().train(train)
        child = torch.jit.script(child) if how == "script" else torch.jit.trace(child, torch.randn(3, 4))
        return nn.Sequential(child, nn.Linear(4, 2)).train(train)

    model, twin = twins(build)
    must_replay(model, rand((3, 4)), twin=twin, grad=grad, train=train)


def test_a_scripted_function_that_writes_what_it_gets() -> None:
    function = torch.jit.CompilationUnit("""
def function(x: Tensor, y: Tensor):
    y.mul_(2.0)
    z = torch.tanh(x) * torch.sigmoid(y) * 3
    y.add_(z)
    return z + y * y
""").function

    def model(x: Tensor) -> Tensor:
        y = x * 3
        made = function(x, y)
        return made - y

    must_replay(model, rand((3, 4)))
    with torch.no_grad():
        net = Between(lambda x, y, k, n: model(x) + y).eval()
        run = cleave.prepare_split(net, example_inputs=_inputs(1, False), split=cleave.SplitSpec("50%"))
        x, y = _inputs(10, False)
        boundary = run.run_prefix(x, y)
        for _ in range(2):
            same_tree(net(x, y), run.run_suffix(boundary), "split")


def test_code_that_is_scripted_in_every_call_is_refused_or_right() -> None:
    def model(x: Tensor) -> Tensor:
        return script("    return torch.abs(x) * torch.threshold(x, 8.0, 0.0)")(x) + 1

    with torch.no_grad(), pytest.raises(cleave.CaptureError, match="scripted"):
        cleave.capture(model, torch.randn(3, 4))


@pytest.mark.integration
@pytest.mark.parametrize("trainable", [False, True])
def test_deberta_takes_its_own_example(trainable: bool) -> None:
    transformers = pytest.importorskip("transformers")
    torch.manual_seed(0)
    config = transformers.DebertaV2Config(
        vocab_size=99,
        hidden_size=32,
        num_hidden_layers=2,
        num_attention_heads=4,
        intermediate_size=48,
        max_position_embeddings=64,
        relative_attention=True,
        position_buckets=8,
        max_relative_positions=32,
        pos_att_type=["p2c", "c2p"],
    )
    model = transformers.DebertaV2Model(config).eval()
    ids, mask = torch.randint(0, 99, (2, 12)), torch.ones(2, 12, dtype=torch.long)
    spec = cleave.SplitSpec(boundary="50%", dynamic_batch=(1, 8), trainable=trainable)
    run = cleave.prepare_split(model, example_inputs=(ids, mask), split=spec)
    for rows in (2, 5):
        ids, mask = torch.randint(0, 99, (rows, 12)), torch.ones(rows, 12, dtype=torch.long)
        got = run.run_suffix(run.run_prefix(ids, mask))[0]
        same_tree(model(ids, mask)[0].detach(), got.detach(), f"{rows} rows")

"""`optimize` on a GPU: numbers, what is folded, and CUDA graphs that follow the model."""

from __future__ import annotations

import pytest
import torch
from test_optimize import CHANGES, LEVELS, Block
from test_optimize_fuse import move_statistics
from test_optimize_in_place import Mixer
from torch import Tensor, nn

import cleave
from cleave.optimize import Optimize

pytestmark = [pytest.mark.gpu, pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")]


def close(got: Tensor, want: Tensor) -> None:
    torch.testing.assert_close(got, want, rtol=1e-3, atol=1e-3)


@pytest.mark.parametrize("level", LEVELS)
@torch.no_grad()
def test_numbers(level: str) -> None:
    net = Block().eval().cuda()
    plan = cleave.capture(net, torch.rand(4, 3, 8, 8, device="cuda"), optimize=level, dynamic_batch=(2, 16))
    for rows in (2, 4, 9):
        x = torch.rand(rows, 3, 8, 8, device="cuda")
        close(plan(x), net(x))
        assert level == "fast" or torch.equal(plan(x), net(x))


@pytest.mark.parametrize("change", CHANGES[:1] + CHANGES[2:4] + CHANGES[5:])
@pytest.mark.parametrize("level", LEVELS)
@torch.no_grad()
def test_graphs_see_changes_of_the_model(level: str, change) -> None:
    net = Block().eval().cuda()
    x = torch.rand(4, 3, 8, 8, device="cuda")
    spec = cleave.SplitSpec(boundary="50%", dynamic_batch=(2, 16))
    runtime = cleave.prepare_split(net, example_inputs=(x,), split=spec, mode="cuda_graph", optimize=level)
    for rows in (4, 2, 4):
        y = torch.rand(rows, 3, 8, 8, device="cuda")
        close(runtime.run_suffix(runtime.run_prefix(y)), net(y))
    with torch.device("cuda"):
        change(net)
    close(runtime.run_suffix(runtime.run_prefix(x)), net(x))


class Masked(nn.Module):
    """Reads a mask that it made itself on the host, as language models do."""

    def __init__(self) -> None:
        super().__init__()
        self.words = nn.Embedding(50, 16)
        self.head = nn.Linear(16, 16)

    def forward(self, ids: Tensor) -> Tensor:
        mask = torch.ones(ids.shape[1], device=ids.device).bool()
        whole = bool(mask.all())
        y = self.head(self.words(ids))
        return y if whole else y * mask[:, None]


@pytest.mark.parametrize("level", LEVELS)
@torch.no_grad()
def test_whole_plans_as_graphs(level: str) -> None:
    net = Block().eval().cuda()
    x = torch.rand(4, 3, 8, 8, device="cuda")
    plan = cleave.capture(net, x, optimize=level, dynamic_batch=(2, 16), mode="cuda_graph")
    for rows in (2, 4, 9, 4):
        y = torch.rand(rows, 3, 8, 8, device="cuda")
        close(plan(y), net(y))
    net.first.weight.mul_(2)
    close(plan(x), net(x))
    with torch.enable_grad():
        assert torch.equal(plan(x), net(x))


@torch.no_grad()
def test_a_guard_that_no_input_changes_does_not_keep_a_graph_away() -> None:
    net = Masked().eval().cuda()
    ids = torch.randint(0, 50, (2, 8), device="cuda")
    spec = cleave.SplitSpec(boundary="50%", dynamic_batch=None)
    runtime = cleave.prepare_split(net, example_inputs=(ids,), split=spec, mode="cuda_graph")
    got = runtime.run_suffix(runtime.run_prefix(ids))
    assert torch.equal(got, net(ids))
    assert runtime.fallback_reason is None


class Layer(nn.Module):
    """A layer of a transformer: linears of one input, and sums after products."""

    def __init__(self, width: int = 64, heads: int = 4) -> None:
        super().__init__()
        self.heads = heads
        self.norm = nn.LayerNorm(width)
        self.query, self.key, self.value, self.out = (nn.Linear(width, width) for _ in range(4))
        self.gate, self.up = nn.Linear(width, 2 * width), nn.Linear(width, 2 * width)
        self.down = nn.Linear(2 * width, width)

    def forward(self, x: Tensor) -> Tensor:
        y = self.norm(x)
        parts = (f(y).view(*y.shape[:2], self.heads, -1).transpose(1, 2) for f in (self.query, self.key, self.value))
        y = nn.functional.scaled_dot_product_attention(*parts)
        x = x + self.out(y.transpose(1, 2).reshape(x.shape))
        return x + self.down(nn.functional.silu(self.gate(x)) * self.up(x))


class Pixels(nn.Module):
    """A block of a small convolutional network: 1x1 convolutions around a depthwise one, with weights per channel."""

    def __init__(self, width: int = 16) -> None:
        super().__init__()
        self.first = nn.Sequential(nn.Conv2d(3, width, 3, bias=False), nn.BatchNorm2d(width), nn.Hardswish())
        self.spread = nn.Sequential(nn.Conv2d(width, 4 * width, 1, bias=False), nn.BatchNorm2d(4 * width), nn.ReLU())
        self.each = nn.Sequential(
            nn.Conv2d(4 * width, 4 * width, 3, padding=1, groups=4 * width), nn.ReLU(inplace=True)
        )
        self.squeeze = nn.Sequential(
            nn.AdaptiveAvgPool2d(1), nn.Conv2d(4 * width, 8, 1), nn.ReLU(), nn.Conv2d(8, 4 * width, 1), nn.Hardsigmoid()
        )
        self.gather = nn.Conv2d(4 * width, width, 1)

    def forward(self, x: Tensor) -> Tensor:
        x = self.first(x)
        y = self.each(self.spread(x))
        return x + self.gather(y * self.squeeze(y))


def told(plan: cleave.Plan, way: str) -> str:
    (line,) = [line for line in plan.optimizations().splitlines() if line.startswith(f"{way}:")]
    assert "not used" not in line
    assert "nothing to do" not in line
    return line


@pytest.mark.parametrize("mode", ["generated_eager", "cuda_graph"])
@torch.no_grad()
def test_linears_become_one_and_biases_are_added_apart(mode: str) -> None:
    net = Layer().eval().cuda()
    x = torch.rand(4, 9, 64, device="cuda")
    plan = cleave.capture(net, x, optimize="fast", dynamic_batch=(2, 16), mode=mode)
    assert "merge_linears 5" in told(plan, "fast")
    assert "bias_apart 6" in told(plan, "fast, bias_apart")
    assert "bias_apart 4" in told(plan, "fast, bias_apart in sums")
    for rows in (2, 4, 9):
        y = torch.rand(rows, 9, 64, device="cuda")
        close(plan(y), net(y))
    net.key.weight.mul_(2)
    net.up.bias.add_(1)
    close(plan(x), net(x))


@pytest.mark.parametrize("mode", ["generated_eager", "cuda_graph"])
@torch.no_grad()
def test_convolutions_of_pixels_become_products(mode: str) -> None:
    net = Pixels().eval().cuda()
    x = torch.rand(4, 3, 18, 18, device="cuda")
    plan = cleave.capture(net, x, optimize="fast", dynamic_batch=(2, 16), mode=mode)
    assert "conv_as_linear 6" in told(plan, "fast, channels_last, conv_as_linear")
    for rows in (2, 4, 9):
        y = torch.rand(rows, 3, 18, 18, device="cuda")
        close(plan(y), net(y))
    net.gather.weight.mul_(2)
    close(plan(x), net(x))


@pytest.mark.parametrize("name", ["merge_linears", "bias_apart"])
@torch.no_grad()
def test_passes_are_left_out_by_name(name: str) -> None:
    net = Layer().eval().cuda()
    plan = cleave.capture(net, torch.rand(4, 9, 64, device="cuda"), optimize=Optimize("fast", (name,)))
    assert not [line for line in plan.optimizations().splitlines() if name in line and "nothing to do" not in line]


@torch.no_grad()
def test_what_a_graph_repeats_is_timed_on_the_device() -> None:
    net = Layer().eval().cuda()
    x = torch.rand(4, 9, 64, device="cuda")
    assert "ms on the device" in cleave.capture(net, x, optimize="fast", mode="cuda_graph").optimizations()
    assert "on the device" not in cleave.capture(net, x, optimize="fast").optimizations()


@pytest.mark.parametrize("graph", [False, True])
@torch.no_grad()
def test_results_in_place_give_the_same_bits(graph: bool) -> None:
    net = Mixer().eval().cuda()
    x = torch.randn(2, 5, 16, device="cuda")
    plan = cleave.capture(net, x, mode="cuda_graph") if graph else cleave.capture(net, x)
    assert "in_place" in plan.optimizations()
    for _ in range(3):
        y = torch.randn(2, 5, 16, device="cuda")
        before = y.clone()
        assert torch.equal(plan(y), net(y))
        assert torch.equal(y, before)


class Tables(nn.Module):
    """Multiplies by a table of its batch's size, which a plan keeps."""

    def forward(self, x: Tensor) -> Tensor:
        return x * torch.arange(x.numel(), device=x.device, dtype=x.dtype).view(x.shape).sin()


@torch.no_grad()
def test_what_is_kept_is_there_until_every_stream_has_read_it() -> None:
    inputs = [torch.rand(rows, 512, device="cuda") for rows in range(24, 33)]  # one more than sizes are kept
    net, x = Tables(), inputs[-1]
    plan = cleave.capture(net, x, dynamic_batch=(2, 64))
    for other in inputs:
        plan(other)
    assert "sizes 3" in plan.optimizations()
    want = net(x)
    torch.cuda.synchronize()
    side = torch.cuda.Stream()
    with torch.cuda.stream(side):
        torch.cuda._sleep(500_000_000)
        got = plan(x)
    for other in inputs[:-1]:
        plan(other)  # their tables may lie where that one was
    torch.cuda.synchronize()
    assert torch.equal(got, want)


@pytest.mark.parametrize("mode", ["generated_eager", "cuda_graph"])
@torch.no_grad()
def test_statistics_that_a_forward_in_train_mode_moves_are_folded_anew(mode: str) -> None:
    """torch counts no version for them, and nobody looks at memory of a GPU."""
    torch.manual_seed(0)
    model = nn.Sequential(nn.Conv2d(3, 64, 3), nn.BatchNorm2d(64), nn.ReLU()).cuda().eval()
    x = torch.randn(2, 3, 16, 16, device="cuda")
    plan = cleave.capture(model, x, optimize="fast", mode=mode)
    plan(x)
    move_statistics(model, x)
    torch.testing.assert_close(plan(x), model(x), rtol=2e-3, atol=2e-3)

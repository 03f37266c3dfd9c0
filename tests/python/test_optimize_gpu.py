"""`optimize` on a GPU: numbers, what is folded, and CUDA graphs that follow the model."""

from __future__ import annotations

import pytest
import torch
from test_optimize import CHANGES, LEVELS, Block
from test_optimize_in_place import Mixer
from torch import Tensor, nn

import cleave

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

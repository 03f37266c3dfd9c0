"""Pipelines on a GPU: the same as on the CPU, and stages that move there."""

from __future__ import annotations

import copy
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

import cleave

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device"),
]


class Net(nn.Module):
    """Convolutions with statistics, a skip over several layers, a constant, dropout."""

    def __init__(self) -> None:
        super().__init__()
        self.a = nn.Sequential(nn.Conv2d(3, 8, 3, padding=1), nn.BatchNorm2d(8), nn.ReLU(inplace=True))
        self.b = nn.Sequential(nn.Conv2d(8, 8, 3, padding=1), nn.BatchNorm2d(8), nn.ReLU())
        self.drop = nn.Dropout(0.5)
        self.c = nn.Linear(8, 4)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y = self.a(x)
        z = self.b(y) + y * torch.tensor([0.5], device=x.device)
        out: torch.Tensor = self.c(self.drop(z.mean((2, 3))))
        return out


def _step(model: Any, params: list[nn.Parameter], x: torch.Tensor) -> list[torch.Tensor]:
    torch.manual_seed(3)
    out = model(x)
    return [out.detach(), *torch.autograd.grad(out.square().sum(), params)]


@pytest.mark.parametrize("recomputation", [False, True])
def test_the_stages_in_sequence_are_the_model(recomputation: bool) -> None:
    torch.manual_seed(0)
    net = Net().cuda()
    twin = copy.deepcopy(net)
    x = torch.randn(4, 3, 8, 8, device="cuda")
    partitioned = cleave.pipe_model(net, example_inputs=(x,), nparts=2, recomputation=recomputation)
    for batch in (4, 6):
        data = torch.randn(batch, 3, 8, 8, device="cuda")
        got, want = _step(partitioned, list(net.parameters()), data), _step(twin, list(twin.parameters()), data)
        assert torch.equal(got[0], want[0])
        for a, b in zip(got, want, strict=True):
            torch.testing.assert_close(a, b)
    for (name, a), b in zip(net.state_dict().items(), twin.state_dict().values(), strict=True):
        assert torch.equal(a, b), name
    assert all(row.cuda_memory_forward > 0 for row in partitioned.profile)
    assert partitioned.profile.key["device"] == torch.cuda.get_device_name()


def test_stages_captured_on_the_cpu_move_to_a_gpu() -> None:
    torch.manual_seed(0)
    net = Net()
    twin = copy.deepcopy(net).cuda()
    x = torch.randn(4, 3, 8, 8)
    partitioned = cleave.pipe_model(net, example_inputs=(x,), nparts=2, profile="estimate")
    stages = [partitioned.stage(i, device="cuda") for i in range(partitioned.nstages)]
    assert all(t.is_cuda for s in stages for t in (*s.parameters(), *s.buffers()))
    torch.manual_seed(3)
    values: tuple[torch.Tensor, ...] = (x.cuda(),)
    for s in stages:
        values = s(*values)
    torch.manual_seed(3)
    assert torch.equal(partitioned.pack_output(values), twin(x.cuda()))
    for s in stages:
        s.eval()
    twin.eval()
    with torch.no_grad():
        values = (x.cuda(),)
        for s in stages:
            values = s(*values)
        assert torch.equal(partitioned.pack_output(values), twin(x.cuda()))


_RANKS = """
import copy
import torch, torch.distributed as dist
import cleave
from test_pipe_gpu import Net

dist.init_process_group("gloo")
torch.manual_seed(0)
net = Net().cuda()
net.drop.p = 0.0
twin = copy.deepcopy(net)
x, y = torch.randn(8, 3, 8, 8, device="cuda"), torch.randn(8, 4, device="cuda")
partitioned = cleave.pipe_model(net, (x[:4],), nparts=2, partitioning_method="acyclic", profile="estimate")
loss = torch.nn.functional.mse_loss
run = partitioned.schedule("GPipe", microbatches=2, loss_fn=loss, device="cuda", scale_grads=False)
losses = run.step(x, target=y)
want = [loss(twin(a), b) for a, b in zip(x.chunk(2), y.chunk(2))]
for w in want:
    w.backward()
if losses is not None:
    assert all(torch.equal(a, b) for a, b in zip(losses, want, strict=True))
grads = {n: p.grad for n, p in twin.named_parameters()}
for s in run.stages:
    for n, p in s.module.named_parameters():
        torch.testing.assert_close(p.grad, grads[n])
run.close()
dist.destroy_process_group()
print("equal")
"""


def test_two_processes_share_a_gpu(tmp_path: Path) -> None:
    script = tmp_path / "ranks.py"
    script.write_text(_RANKS)
    command = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2", str(script)]
    env = {**os.environ, "PYTHONPATH": os.pathsep.join([str(Path(__file__).parent), os.environ.get("PYTHONPATH", "")])}
    done = subprocess.run(command, capture_output=True, text=True, timeout=240, env=env, check=False)
    assert done.returncode == 0, done.stderr[-3000:]
    assert done.stdout.count("equal") == 2

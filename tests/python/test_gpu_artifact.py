"""Files on a GPU: moved there when they are loaded, captured there and moved away, equal to eager on that device."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from torch import nn

import cleave
from cleave import _native

pytestmark = [pytest.mark.gpu, pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device")]


class Net(nn.Module):
    """A network whose forward makes tensors of its own, on the device of its input."""

    def __init__(self) -> None:
        super().__init__()
        self.conv = nn.Conv2d(3, 8, 3)
        self.norm = nn.BatchNorm2d(8)
        self.head = nn.Linear(8, 4)
        self.register_buffer("scale", torch.tensor([1.0, 2.0, 3.0, 4.0]))

    def forward(self, x: torch.Tensor) -> dict[str, torch.Tensor]:
        y = self.norm(self.conv(x)).relu().mean((2, 3))
        steps = torch.arange(4, device=x.device, dtype=x.dtype) + torch.ones(4, device=x.device)
        return {"y": self.head(y) * self.scale + steps}


def make(device: str) -> tuple[nn.Module, torch.Tensor]:
    torch.manual_seed(0)
    return Net().eval().to(device), torch.randn(2, 3, 8, 8, device=device)


def same(a: torch.Tensor, b: torch.Tensor) -> bool:
    return _native.bits_equal(a, b)


def test_a_file_of_the_cpu_runs_on_the_gpu(tmp_path: Path) -> None:
    model, x = make("cpu")
    with torch.no_grad():
        cleave.capture(model, x, dynamic_batch=(1, 8)).save(tmp_path / "m.clv")
        loaded = cleave.load(tmp_path / "m.clv", device="cuda")
        assert all(t.is_cuda for t in loaded.state_dict().values())
        gpu = model.to("cuda")
        for n in (1, 2, 4):
            y = torch.randn(n, 3, 8, 8, device="cuda")
            assert same(loaded(y)["y"], gpu(y)["y"])
    with pytest.raises(cleave.InputError, match="is on cpu"):
        loaded(x)


def test_a_file_of_the_gpu_runs_on_both(tmp_path: Path) -> None:
    model, x = make("cuda")
    with torch.no_grad():
        cleave.capture(model, x).save(tmp_path / "m.clv")
        assert same(cleave.load(tmp_path / "m.clv")(x)["y"], model(x)["y"])
        loaded = cleave.load(tmp_path / "m.clv", device="cpu")
        cpu = model.to("cpu")
        assert same(loaded(x.cpu())["y"], cpu(x.cpu())["y"])


def test_autocast_regions_move_too(tmp_path: Path) -> None:
    def f(x: torch.Tensor) -> torch.Tensor:
        with torch.autocast("cuda", dtype=torch.bfloat16):
            return x @ x

    x = torch.randn(16, 16, device="cuda")
    with torch.no_grad():
        cleave.capture(f, x).save(tmp_path / "m.clv")
    assert same(cleave.load(tmp_path / "m.clv")(x), f(x))
    moved = cleave.load(tmp_path / "m.clv", device="cuda:0")
    assert same(moved(x), f(x))


def test_halves_on_two_devices_meet_in_a_boundary(tmp_path: Path) -> None:
    model, x = make("cpu")
    rt = cleave.prepare_split(model, example_inputs=x, split=cleave.SplitSpec(boundary="after:norm"))
    prefix, suffix = rt.save(tmp_path / "halves")
    boundary = cleave.load(prefix).run_prefix(x)
    data = boundary.to_bytes()
    there = cleave.load(suffix, device="cuda")
    got = there.run_suffix(cleave.BoundaryPayload.from_bytes(data, device="cuda"))
    want = model(x)["y"]
    assert got["y"].is_cuda
    torch.testing.assert_close(got["y"].cpu(), want, rtol=1e-4, atol=1e-4)

"""Quantised tensors at a cut: they cross like others, or the cut is marked."""

from __future__ import annotations

import warnings
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file
from test_cli_run import COMMAND, Run, run
from torch import Tensor, nn

import cleave

__all__ = ["run"]  # a fixture

pytestmark = pytest.mark.filterwarnings("ignore")


class Quantises(nn.Module):
    """Numbers become integers and numbers again, in a way that a test chooses."""

    def __init__(self, how: Any, last: bool = False) -> None:
        super().__init__()
        self.a, self.b = nn.Linear(4, 8), nn.Linear(8, 2)
        self.how, self.last = how, last

    def forward(self, x: Tensor) -> Tensor:
        q: Tensor = self.how(self.a(x).relu())
        return q if self.last else self.b(q.dequantize())


def per_tensor(x: Tensor) -> Tensor:
    return torch.quantize_per_tensor(x, 0.05, 3, torch.quint8)


def per_channel(x: Tensor) -> Tensor:
    scales = torch.linspace(0.01, 0.1, 8, dtype=torch.float64)
    return torch.quantize_per_channel(x, scales, torch.arange(8), 1, torch.qint8)


def dynamic(x: Tensor) -> Tensor:
    return torch.quantize_per_tensor_dynamic(x, torch.qint8, False)


def half_bytes(x: Tensor) -> Tensor:
    return torch.quantize_per_channel(x, torch.full((2,), 0.1), torch.zeros(2), 0, torch.quint4x2)


def cut(model: nn.Module, x: Tensor, where: str, **spec: Any) -> cleave.SplitRuntime:
    return cleave.prepare_split(
        model, example_inputs=(x,), split=cleave.SplitSpec(boundary=where, **{"dynamic_batch": None, **spec})
    )


@pytest.mark.parametrize("how", [per_tensor, per_channel, dynamic])
@pytest.mark.parametrize("trainable", [False, True])
def test_a_quantised_tensor_crosses_as_bytes_and_between_loaded_halves(
    tmp_path: Path, how: Any, trainable: bool
) -> None:
    torch.manual_seed(0)
    model = Quantises(how).eval()
    x = torch.randn(2, 4)
    node = "quantize_per_tensor_dynamic" if how is dynamic else f"quantize_{how.__name__}"
    runtime = cut(model, x, f"after:{node}", trainable=trainable)
    assert next(c for c in runtime.candidates if c.name == node).reason is None
    for data in (x, torch.randn(2, 4) * 3):
        boundary = runtime.run_prefix(data)
        assert any(t.is_quantized for t in boundary.tensors.values())
        sent = cleave.BoundaryPayload.from_bytes(boundary.to_bytes("zstd"))
        want = model(data)
        assert torch.equal(runtime.run_suffix(sent), want)
    if trainable:
        return
    with torch.no_grad():
        runtime.save(tmp_path / "model.clv")
    prefix, suffix = (cleave.load(tmp_path / "model.clv", part=part) for part in ("prefix", "suffix"))
    prefix.run_prefix(data).save(tmp_path / "boundary")
    assert torch.equal(suffix.run_suffix(cleave.BoundaryPayload.load(tmp_path / "boundary")), want)


def test_a_cut_where_elements_are_less_than_a_byte_is_unsafe_and_says_so() -> None:
    model = Quantises(half_bytes).eval()
    x = torch.randn(2, 4)
    runtime = cut(model, x, "auto")
    unsafe = [c for c in runtime.candidates if c.reason is not None]
    assert len(unsafe) == 1
    assert "a tensor of dtype qu4x2 made by quantize_per_channel" in str(unsafe[0].reason)
    with pytest.raises(cleave.SplitError, match="dtype qu4x2"):
        cut(model, x, "after:quantize_per_channel")


@pytest.mark.skipif(COMMAND is None, reason="the cleave command is not built")
@pytest.mark.parametrize("how", [per_tensor, per_channel])
def test_the_command_line_runs_halves_over_a_quantised_boundary(tmp_path: Path, run: Run, how: Any) -> None:
    torch.manual_seed(0)
    model = Quantises(how).eval()
    x = torch.randn(2, 4)
    with torch.no_grad():
        cut(model, x, f"after:quantize_{how.__name__}").save(tmp_path / "model.clv")
        want = model(x)
    cleave.load(tmp_path / "model.clv").split(None, tmp_path / "prefix.clv", tmp_path / "suffix.clv")
    save_file({"x": x}, tmp_path / "x.safetensors")
    shown = run("run", "prefix.clv", "--input", "x=x.safetensors", "-o", "boundary.safetensors").stdout
    assert "qu8" in shown if how is per_tensor else "qi8" in shown
    run("run", "suffix.clv", "--boundary", "boundary.safetensors", "-o", "out.safetensors")
    (got,) = load_file(tmp_path / "out.safetensors").values()
    assert torch.equal(got, want)


@pytest.mark.skipif(COMMAND is None, reason="the cleave command is not built")
def test_the_command_line_shows_the_integers_of_a_quantised_output(tmp_path: Path, run: Run) -> None:
    torch.manual_seed(0)
    model = Quantises(per_tensor, last=True).eval()
    x = torch.randn(2, 4)
    with torch.no_grad():
        cleave.capture(model, x).save(tmp_path / "model.clv")
        want = model(x).int_repr()
    save_file({"x": x}, tmp_path / "x.safetensors")
    shown = run("run", "model.clv", "--input", "x=x.safetensors", "--print").stdout
    assert "qu8" in shown
    assert str(want.tolist()) in shown
    failed = run("run", "model.clv", "--input", "x=x.safetensors", "-o", "out.safetensors", code=1)
    assert "has no dtype qu8" in failed.stderr
    assert not (tmp_path / "out.safetensors").exists()


def test_two_quantised_tensors_are_equal_only_if_integers_scales_and_zero_points_are() -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        ones = torch.ones(4)
        a = torch.quantize_per_tensor(ones, 0.5, 0, torch.qint8)
        same = torch.quantize_per_tensor(ones, 0.5, 0, torch.qint8)
        other_zero = torch.quantize_per_tensor(ones, 0.5, 2, torch.qint8)
        other_scale = torch.quantize_per_tensor(ones, 0.25, 0, torch.qint8)
    assert cleave._native.bits_equal(a, same)
    assert torch.equal(a.dequantize(), other_zero.dequantize())
    assert not cleave._native.bits_equal(a, other_zero)
    assert not cleave._native.bits_equal(a, other_scale)

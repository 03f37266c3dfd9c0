"""Convolutions, pooling, resizing and padding on the native engine, beside eager, in a process without libtorch."""

from __future__ import annotations

import subprocess
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from native import skip_absent_isa
from safetensors.torch import load_file, save_file
from test_cli_run import COMMAND
from torch import Tensor, nn
from torch.nn import functional as F

import cleave

pytestmark = pytest.mark.skipif(COMMAND is None, reason="the cleave command is not built")


class Of(nn.Module):
    """A function as a module. What it returns is used once more, so that no result is an output alone."""

    def __init__(self, fn: Callable[..., Any]) -> None:
        super().__init__()
        self.fn = fn

    def forward(self, *args: Tensor) -> Any:
        return self.fn(*args)


def native(folder: Path, *args: Tensor, threads: int = 1, isa: str = "") -> list[Tensor]:
    """The outputs of folder/m.clv for these inputs."""
    out = folder / "out.safetensors"
    words = [COMMAND, "run", folder / "m.clv", "--engine", "native", "--threads", threads, "-o", out]
    for i, t in enumerate(args):
        save_file({"x": t.contiguous()}, folder / f"{i}.safetensors")
        words += ["-i", folder / f"{i}.safetensors"]
    env = {"PATH": "/nonexistent", **({"CLEAVE_ISA": isa} if isa else {})}
    done = subprocess.run([str(w) for w in words], env=env, capture_output=True, text=True, check=False)
    skip_absent_isa(done.stderr)
    assert done.returncode == 0, done.stdout + done.stderr
    made = load_file(out)
    return [made[k] for k in sorted(made, key=lambda k: [int(w) if w.isdigit() else w for w in k.split(".")])]


def flat(value: Any) -> list[Tensor]:
    return [value] if isinstance(value, Tensor) else [t for v in value for t in flat(v)]


def check(folder: Path, model: nn.Module | Callable[..., Any], *args: Tensor, exact: bool = False) -> None:
    """The model by each instruction set and by torch."""
    module = model if isinstance(model, nn.Module) else Of(model)
    module.eval()
    with torch.no_grad():
        cleave.capture(module, args).save(folder / "m.clv")
        want = flat(module(*args))
    for isa in ("", "avx2", "base"):
        got = native(folder, *args, isa=isa, threads=1 if isa else 2)
        assert len(got) == len(want)
        for a, b in zip(got, want, strict=True):
            assert (a.shape, a.dtype) == (b.shape, b.dtype)
            torch.testing.assert_close(a, b, rtol=0 if exact else 1e-5, atol=0 if exact else 1e-5, equal_nan=True)


CONVOLUTIONS: dict[str, tuple[nn.Module, tuple[int, ...]]] = {
    "3x3": (nn.Conv2d(5, 7, 3, padding=1), (2, 5, 9, 11)),
    "stem": (nn.Conv2d(3, 64, 7, stride=2, padding=3, bias=False), (1, 3, 32, 30)),
    "1x1": (nn.Conv2d(40, 72, 1), (3, 40, 5, 7)),
    "depthwise": (nn.Conv2d(72, 72, 5, stride=2, padding=2, groups=72), (2, 72, 11, 9)),
    "multiplier": (nn.Conv2d(6, 18, 3, padding=1, groups=6), (2, 6, 8, 8)),
    "few a group": (nn.Conv2d(32, 32, 3, padding=1, groups=8), (2, 32, 8, 8)),
    "two groups": (nn.Conv2d(48, 80, 3, groups=2), (2, 48, 8, 8)),
    "dilated": (nn.Conv2d(8, 8, 3, dilation=2, padding=2), (1, 8, 9, 9)),
    "same": (nn.Conv2d(4, 4, (2, 4), padding="same"), (2, 4, 7, 8)),
    "valid": (nn.Conv2d(4, 4, (2, 4), padding="valid"), (2, 4, 7, 8)),
    "modes of padding": (nn.Conv2d(4, 4, 3, padding=1, padding_mode="zeros"), (4, 6, 6)),
    "1-D": (nn.Conv1d(6, 10, 5, stride=2, padding=2), (2, 6, 33)),
    "1-D same": (nn.Conv1d(6, 10, 4, padding="same", dilation=2), (2, 6, 33)),
    "3-D": (nn.Conv3d(4, 6, 3, stride=(1, 2, 2), padding=1), (2, 4, 5, 6, 7)),
    "transposed": (nn.ConvTranspose2d(16, 8, 2, stride=2), (2, 16, 5, 6)),
    "transposed, padded": (nn.ConvTranspose2d(6, 4, 3, stride=2, padding=1, output_padding=1, groups=2), (2, 6, 5, 6)),
    "transposed, dilated": (nn.ConvTranspose2d(6, 4, 3, stride=3, padding=2, dilation=2), (1, 6, 5, 6)),
    "transposed 1-D": (nn.ConvTranspose1d(6, 4, 4, stride=2, padding=1), (2, 6, 9)),
    "transposed 3-D": (nn.ConvTranspose3d(4, 3, 3, stride=2), (1, 4, 3, 4, 5)),
    "unbatched": (nn.Conv2d(5, 33, 3), (5, 9, 9)),
    "no images": (nn.Conv2d(5, 33, 3), (0, 5, 9, 9)),
}


@pytest.mark.parametrize("name", CONVOLUTIONS)
def test_a_convolution_agrees_with_eager(tmp_path: Path, name: str) -> None:
    module, shape = CONVOLUTIONS[name]
    check(
        tmp_path,
        nn.Sequential(module, module) if module(torch.zeros(shape)).shape == shape else module,
        torch.randn(shape),
    )


def test_a_weight_that_is_computed_is_packed_in_every_run(tmp_path: Path) -> None:
    check(
        tmp_path,
        lambda x, w, b: torch.conv2d(x, w, b, padding=1),
        torch.randn(2, 5, 9, 9),
        torch.randn(40, 5, 3, 3),
        torch.randn(40),
    )


def test_an_input_of_any_layout_is_read(tmp_path: Path) -> None:
    conv = nn.Conv2d(7, 9, 3)
    check(tmp_path, lambda x: conv(x.transpose(1, 2)), torch.randn(2, 8, 7, 9))
    check(tmp_path, lambda x: conv(x.permute(0, 3, 1, 2)), torch.randn(2, 8, 9, 7))


@pytest.mark.parametrize("dim", [0, 2, None])
def test_a_weight_that_is_normed_agrees_with_eager(tmp_path: Path, dim: int | None) -> None:
    conv = nn.utils.weight_norm(nn.Conv1d(6, 4, 3), dim=dim)
    check(tmp_path, conv, torch.randn(2, 6, 17))
    check(tmp_path, lambda v, g: torch._weight_norm(v, g, 0), torch.randn(4, 3, 5).mT, torch.rand(4, 1, 1))


X1, X2, X3 = torch.randn(2, 5, 17), torch.randn(2, 37, 9, 11), torch.randn(2, 3, 6, 7, 8)
NANS = torch.where(
    torch.rand(2, 37, 9, 11) < 0.05, torch.nan, torch.where(torch.rand(2, 37, 9, 11) < 0.05, -torch.inf, X2)
)

POOLS: dict[str, tuple[Callable[..., Any], Tensor]] = {
    "max": (lambda x: F.max_pool2d(x, 3, 2, 1), X2),
    "max, nan": (lambda x: F.max_pool2d(x, 3, 2, 1), NANS),
    "max, dilated": (lambda x: F.max_pool2d(x, (2, 3), (1, 2), (1, 1), (2, 3)), X2),
    "max, ceil": (lambda x: F.max_pool2d(x, 3, 2, ceil_mode=True), X2),
    "max, many channels": (lambda x: F.max_pool2d(x.repeat(1, 4, 1, 1), 3, 2, 1), X2),
    "max, indices": (lambda x: F.max_pool2d(x, 3, 2, 1, return_indices=True), NANS),
    "max 1-D": (lambda x: F.max_pool1d(x, 3), X1),
    "max 3-D": (lambda x: F.max_pool3d(x, 3, 2, 1), X3),
    "max 3-D, indices": (lambda x: F.max_pool3d(x, 2, return_indices=True), X3),
    "max, unbatched": (lambda x: F.max_pool2d(x[0] + 0, 2), X2),
    "mean": (lambda x: F.avg_pool2d(x, 3, 2, 1), X2),
    "mean, nan": (lambda x: F.avg_pool2d(x, 3, 2, 1), NANS),
    "mean, no pad": (lambda x: F.avg_pool2d(x, 3, 2, 1, count_include_pad=False), X2),
    "mean, ceil": (lambda x: F.avg_pool2d(x, 3, 2, 1, ceil_mode=True), X2),
    "mean, ceil, no pad": (lambda x: F.avg_pool2d(x, 3, 2, 1, ceil_mode=True, count_include_pad=False), X2),
    "mean, divisor": (lambda x: F.avg_pool2d(x, 3, 2, divisor_override=7), X2),
    "mean 1-D": (lambda x: F.avg_pool1d(x, 3, padding=1), X1),
    "mean 3-D": (lambda x: F.avg_pool3d(x, 3, 2, 1, ceil_mode=True), X3),
    "adaptive mean": (lambda x: F.adaptive_avg_pool2d(x, (4, 3)), X2),
    "adaptive mean, one": (lambda x: F.adaptive_avg_pool2d(x, 1), X2),
    "adaptive mean, as it is": (lambda x: F.adaptive_avg_pool2d(x, (None, 5)), X2),
    "adaptive mean 1-D": (lambda x: F.adaptive_avg_pool1d(x, 4), X1),
    "adaptive mean 3-D": (lambda x: F.adaptive_avg_pool3d(x, (2, 3, 4)), X3),
    "adaptive max": (lambda x: F.adaptive_max_pool2d(x, (4, 3)), NANS),
    "adaptive max, indices": (lambda x: F.adaptive_max_pool2d(x, 3, return_indices=True), X2),
    "adaptive max 1-D": (lambda x: F.adaptive_max_pool1d(x, 4), X1),
}


@pytest.mark.parametrize("name", POOLS)
def test_pooling_agrees_with_eager(tmp_path: Path, name: str) -> None:
    check(tmp_path, *POOLS[name])


RESIZES: dict[str, tuple[Callable[..., Any], Tensor]] = {
    f"{mode} {how}": (lambda x, mode=mode, kw=kw: F.interpolate(x, mode=mode, **kw), x)
    for mode, x, corners in [
        ("nearest", X1, False),
        ("nearest", X2, False),
        ("nearest", X3, False),
        ("nearest-exact", X1, False),
        ("nearest-exact", X2, False),
        ("nearest-exact", X3, False),
        ("linear", X1, True),
        ("bilinear", X2, True),
        ("bicubic", X2, True),
        ("trilinear", X3, True),
    ]
    for how, kw in {
        f"{x.dim()}-D twice": {"scale_factor": 2},
        f"{x.dim()}-D 1.7": {"scale_factor": 1.7},
        f"{x.dim()}-D 0.6": {"scale_factor": 0.6},
        f"{x.dim()}-D 1.7, from sizes": {"scale_factor": 1.7, "recompute_scale_factor": True},
        f"{x.dim()}-D size": {"size": (13, 5, 8)[: x.dim() - 2]},
        f"{x.dim()}-D same": {"size": tuple(x.shape[2:])},
        **({f"{x.dim()}-D corners": {"size": (13, 5, 8)[: x.dim() - 2], "align_corners": True}} if corners else {}),
    }.items()
}


@pytest.mark.parametrize("name", RESIZES)
def test_resizing_agrees_with_eager(tmp_path: Path, name: str) -> None:
    check(tmp_path, *RESIZES[name], exact="nearest" in name)


SMOOTH: dict[str, tuple[Callable[..., Any], Tensor]] = {
    f"{mode} {how}": (lambda x, mode=mode, kw=kw: F.interpolate(x, mode=mode, antialias=True, **kw), x)
    for mode in ("bilinear", "bicubic")
    for how, x, kw in [
        ("half", X2, {"scale_factor": 0.5}),
        ("0.37", X2, {"scale_factor": 0.37}),
        ("twice", X2, {"scale_factor": 2}),
        ("narrow and tall", X2, {"size": (29, 2)}),
        ("one pixel", X2, {"size": (1, 1)}),
        ("same", X2, {"size": tuple(X2.shape[2:])}),
        ("corners", X2, {"size": (4, 5), "align_corners": True}),
        ("many channels", X2.repeat(1, 17, 1, 1), {"size": (3, 4)}),
        ("nan", NANS, {"size": (3, 4)}),
    ]
}


@pytest.mark.parametrize("name", SMOOTH)
def test_smooth_resizing_agrees_with_eager(tmp_path: Path, name: str) -> None:
    check(tmp_path, *SMOOTH[name])


PADS: dict[str, tuple[Callable[..., Any], Tensor]] = {
    "constant": (lambda x: F.pad(x, (1, 2, 3, 0)), X2),
    "constant, all": (lambda x: F.pad(x, (1, 2, 3, 0, 1, 1, 2, 0), value=1.5), X2),
    "constant, cut": (lambda x: F.pad(x, (-1, 2, 0, -3)), X2),
    "constant, integers": (lambda x: F.pad(x, (1, 2), value=-7), torch.arange(12).view(3, 4)),
    "constant, flags": (lambda x: F.pad(x, (1, 2), value=1), torch.arange(12).view(3, 4) % 2 == 0),
    "constant, f64": (lambda x: F.pad(x, (1, 2), value=0.1), X2.double()),
    "reflect": (lambda x: F.pad(x, (1, 2, 3, 0), mode="reflect"), X2),
    "reflect 1-D": (lambda x: F.pad(x, (4, 5), mode="reflect"), X1),
    "reflect 3-D": (lambda x: F.pad(x, (1, 2, 1, 1, 2, 0), mode="reflect"), X3),
    "replicate": (lambda x: F.pad(x, (1, 2, 3, 0), mode="replicate"), X2),
    "replicate 1-D": (lambda x: F.pad(x, (40, 5), mode="replicate"), X1),
    "replicate 3-D": (lambda x: F.pad(x, (1, 2, 1, 1, 2, 0), mode="replicate"), X3),
    "circular, less on one side": (lambda x: F.pad(x, (2, -1, -2, 1), mode="circular"), X2),
    "circular": (lambda x: F.pad(x, (1, 2, 3, 0), mode="circular"), X2),
    "module": (nn.ReflectionPad2d(2), X2),
    "channels last": (lambda x: F.pad(F.max_pool2d(x, 3, 1), (1, 2, 3, 0), value=2.5), X2),
    "pixel_shuffle": (lambda x: F.pixel_shuffle(x, 3), torch.randn(2, 18, 4, 5)),
    "pixel_unshuffle": (lambda x: F.pixel_unshuffle(x, 3), torch.randn(2, 2, 12, 15)),
    "pixel_shuffle, channels last": (lambda x: F.pixel_shuffle(F.max_pool2d(x, 2), 2), torch.randn(2, 8, 4, 6)),
    "channel_shuffle": (lambda x: F.channel_shuffle(x, 3), torch.randn(2, 12, 4, 5)),
}


@pytest.mark.parametrize("name", PADS)
def test_padding_and_shuffles_give_the_same_elements(tmp_path: Path, name: str) -> None:
    check(tmp_path, *PADS[name], exact=True)


class Residual(nn.Module):
    """Convolutions whose results meet other tensors of their sizes, in the store of the convolution."""

    def __init__(self, dims: int, inputs: int, outputs: int) -> None:
        super().__init__()
        conv = (nn.Conv1d, nn.Conv2d, nn.Conv3d)[dims - 1]
        self.conv, self.next = conv(inputs, outputs, 3, padding=1), conv(outputs, outputs, 1)

    def forward(self, x: Tensor, r: Tensor) -> tuple[Tensor, Tensor]:
        y = self.conv(x)
        return self.next(y) + y, self.conv(x) * r + r


@pytest.mark.parametrize("dims", [1, 2, 3])
def test_what_follows_a_convolution_knows_its_channels_where_sizes_are_1(tmp_path: Path, dims: int) -> None:
    torch.manual_seed(dims)
    for inputs, outputs in ((4, 1), (1, 1), (4, 8), (16, 17)):
        for sizes in ((1, 1, 1), (5, 4, 3), (1, 4, 1), (1, 1, 6), (7, 1, 1)):
            shape = sizes[:dims]
            model = Residual(dims, inputs, outputs).eval()
            for batch in ((), (1,), (3,)):
                args = torch.randn(*batch, inputs, *shape), torch.randn(*batch, outputs, *shape)
                with torch.no_grad():
                    cleave.capture(model, args).save(tmp_path / "m.clv")
                    want = model(*args)
                for got, expected in zip(cleave.load(tmp_path / "m.clv", engine="native")(*args), want, strict=True):
                    torch.testing.assert_close(got, expected, msg=f"{inputs} -> {outputs}, {batch}, {shape}")

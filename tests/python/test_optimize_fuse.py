"""Folded normalizations and joined nodes give the numbers of the model, whichever way to run is chosen."""

from __future__ import annotations

import re
from collections.abc import Callable

import pytest
import torch
from torch import nn
from torch.nn import functional as F

import cleave
from cleave.optimize import Optimize

Function = Callable[[torch.Tensor], torch.Tensor]

ACTIVATIONS: dict[str, Function] = {
    "relu": F.relu,
    "relu_": torch.relu_,
    "clamp_min": lambda x: x.clamp_min(0),
    "sigmoid": torch.sigmoid,
    "tanh": torch.tanh,
    "silu": F.silu,
    "hardswish": F.hardswish,
    "hardsigmoid": F.hardsigmoid,
    "gelu": F.gelu,
    "gelu tanh": lambda x: F.gelu(x, approximate="tanh"),
    "leaky_relu": lambda x: F.leaky_relu(x, 0.2),
    "hardtanh": lambda x: F.hardtanh(x, -0.5, 0.75),
    "relu6": F.relu6,
    "clamp": lambda x: x.clamp(-1, 2),
}


class Then(nn.Module):
    """A layer, and a function of its result."""

    def __init__(self, layer: nn.Module, after: Function) -> None:
        super().__init__()
        self.layer = layer
        self.after = after

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.after(self.layer(x))


class Block(nn.Module):
    """Two ways that are added, in one of several spellings, and read once more."""

    def __init__(self, how: str) -> None:
        super().__init__()
        self.how = how
        self.one = nn.Sequential(nn.Conv2d(8, 8, 3, padding=1, bias=False), nn.BatchNorm2d(8))
        self.two = nn.Sequential(nn.Conv2d(8, 8, 1), nn.BatchNorm2d(8, affine=False))
        self.last = nn.Conv2d(8, 4, 3, groups=4)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        if self.how == "input":  # the memory of the sum's other side is the input of the convolution
            x = torch.exp(x)
            y = x + self.two(x)
        elif self.how == "into":
            y = self.two(x)
            y += self.one(x)
        elif self.how == "kept":
            z = self.two(x)
            y = F.relu(self.one(x) + z) + z.sigmoid()
        elif self.how == "minus":
            y = self.one(x) - self.two(x)
        elif self.how == "first":
            z = self.two(x)
            y = F.relu_(self.one(x).add_(z))
        else:
            y = self.one(x)
            y += self.two(x)
            y = F.relu_(y)
        return self.last(y)


def settle(model: nn.Module) -> nn.Module:
    """Statistics that are not those of a new layer."""
    torch.manual_seed(3)
    for m in model.modules():
        if isinstance(m, nn.modules.batchnorm._BatchNorm) and m.running_mean is not None:
            m.running_mean.normal_()
            m.running_var.uniform_(0.5, 2)
    return model.eval()


def check(model: nn.Module, x: torch.Tensor, *passes: str) -> None:
    settle(model)
    with torch.no_grad():
        plan = cleave.capture(model, x, optimize=Optimize("fast", off=("native",)))
        want = model(x)
        for _ in range(3):
            torch.testing.assert_close(plan(x), want, rtol=1e-4, atol=1e-4)
    report = plan.optimizations() if callable(plan.optimizations) else plan.optimizations
    assert "not used" not in report, report
    for name in passes:
        assert re.search(rf"^fast.*\b{name} \d", report, re.MULTILINE), report


mkldnn = pytest.mark.skipif(not torch.backends.mkldnn.is_available(), reason="needs oneDNN")


@mkldnn
@pytest.mark.parametrize("name", ACTIVATIONS)
def test_a_convolution_does_the_activation(name: str) -> None:
    check(Then(nn.Conv2d(3, 8, 3, padding=1), ACTIVATIONS[name]), torch.randn(2, 3, 9, 9), "fuse")


@mkldnn
@pytest.mark.parametrize("name", ACTIVATIONS)
def test_a_linear_does_the_activation(name: str) -> None:
    check(Then(nn.Linear(512, 512), ACTIVATIONS[name]), torch.randn(2, 8, 512), "fuse")


@mkldnn
@pytest.mark.parametrize("how", ["input", "into", "kept", "minus", "first", "in place"])
def test_ways_that_are_added_are_joined(how: str) -> None:
    check(Block(how), torch.randn(2, 8, 9, 9), "fold_batch_norm", "fuse")


@pytest.mark.parametrize("affine", [True, False])
@pytest.mark.parametrize(
    ("layer", "norm", "shape"),
    [
        (nn.Conv1d(3, 8, 3), nn.BatchNorm1d, (2, 3, 9)),
        (nn.Conv2d(4, 8, 3, groups=2, bias=False), nn.BatchNorm2d, (2, 4, 9, 9)),
        (nn.Conv3d(3, 8, 3), nn.BatchNorm3d, (2, 3, 5, 5, 5)),
        (nn.ConvTranspose2d(3, 8, 3, stride=2), nn.BatchNorm2d, (2, 3, 5, 5)),
        (nn.Linear(3, 8), nn.BatchNorm1d, (4, 3)),
    ],
    ids=lambda x: type(x).__name__ if isinstance(x, nn.Module) else "",
)
def test_a_normalization_is_folded(
    layer: nn.Module, norm: type[nn.Module], shape: tuple[int, ...], affine: bool
) -> None:
    check(nn.Sequential(layer, norm(8, affine=affine)), torch.randn(*shape), "fold_batch_norm")


def test_a_normalization_between_convolutions_and_functions() -> None:
    layers = [nn.Conv2d(3, 16, 3, padding=1), nn.ReLU(), nn.BatchNorm2d(16), nn.ReLU(), nn.Conv2d(16, 16, 3), nn.ReLU()]
    check(nn.Sequential(*layers), torch.randn(2, 3, 33, 33))


@mkldnn
@pytest.mark.parametrize("dynamic_batch", [None, (1, 8)])
@pytest.mark.parametrize("groups", [1, 2])
def test_transposed_convolutions_are_laid_out(groups: int, dynamic_batch: tuple[int, int] | None) -> None:
    up = nn.ConvTranspose2d(8, 4, 3, stride=2, groups=groups)
    model, x = nn.Sequential(nn.Conv2d(3, 8, 3), nn.ReLU(), up, nn.ReLU()).eval(), torch.randn(4, 3, 9, 9)
    with torch.no_grad():
        plan = cleave.capture(model, x, optimize=Optimize("fast", off=("native",)), dynamic_batch=dynamic_batch)
        assert "not used" not in plan.optimizations()
        torch.testing.assert_close(plan(x), model(x), rtol=1e-4, atol=1e-4)


def move_statistics(model: nn.Module, x: torch.Tensor) -> None:
    """Forwards in train mode, which change no weight."""
    model.train()
    for _ in range(20):
        model(3 * x + 1)
    model.eval()


def test_statistics_that_a_forward_in_train_mode_moves_are_folded_anew() -> None:
    """torch counts no version there; all channels but one have nothing that could move."""
    model = nn.Sequential(nn.Conv2d(3, 64, 3), nn.BatchNorm2d(64), nn.ReLU())
    x, alive = torch.randn(2, 3, 16, 16), torch.arange(64) == 37
    with torch.no_grad():
        model[0].weight[~alive] = 0
        model[0].bias[~alive] = 0
        model[1].running_var[~alive] = 0
        model.eval()
        plan = cleave.capture(model, x, optimize=Optimize("fast", off=("native",)))
        plan(x)
        move_statistics(model, x)
        torch.testing.assert_close(plan(x), model(x), rtol=1e-4, atol=1e-4)


def test_new_statistics_are_folded_anew() -> None:
    model = settle(nn.Sequential(nn.Conv2d(3, 8, 3), nn.BatchNorm2d(8), nn.ReLU()))
    x = torch.randn(2, 3, 9, 9)
    with torch.no_grad():
        plan = cleave.capture(model, x, optimize=Optimize("fast", off=("native",)))
        plan(x)
        model[1].running_var.mul_(3)
        model[0].weight.add_(0.5)
        torch.testing.assert_close(plan(x), model(x), rtol=1e-4, atol=1e-4)

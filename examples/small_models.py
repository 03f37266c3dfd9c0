"""Small models, which spend most of their time between operators."""

from __future__ import annotations

import torch
from real_models import Args, Entry
from torch import nn


def mlp() -> nn.Module:
    """40 small layers: nearly all of the time is spent between operators."""
    layers = [layer for _ in range(40) for layer in (nn.Linear(32, 32), nn.ReLU())]
    return nn.Sequential(*layers)


def cnn() -> nn.Module:
    """Three convolutions, for pictures of 32 x 32."""

    def block(channels: int, out: int) -> list[nn.Module]:
        return [nn.Conv2d(channels, out, 3, padding=1, bias=False), nn.BatchNorm2d(out), nn.ReLU(), nn.MaxPool2d(2)]

    body = [*block(3, 16), *block(16, 32), *block(32, 64)]
    return nn.Sequential(*body, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(64, 10))


SHAPES = {"mlp": (32,), "cnn": (3, 32, 32)}  # of one row


def build(name: str) -> Entry:
    """A fresh model in eval mode, and what draws its inputs."""
    torch.manual_seed(0)
    model = {"mlp": mlp, "cnn": cnn}[name]()
    return model.eval(), lambda: Args(torch.randn(2, *SHAPES[name]))

"""Further models for testing and measuring pipelines: a net with long skips, and an LSTM."""

from __future__ import annotations

from itertools import pairwise

import real_models
import torch
import torch.nn.functional as F
from real_models import Args, Entry
from torch import Tensor, nn

PIPED = ("torchvision-resnet50", "transformers-bert", "transformers-gpt2", "transformers-t5", "unet", "lstm")


class Double(nn.Sequential):
    def __init__(self, a: int, b: int) -> None:
        layers = [nn.Conv2d(a, b, 3, padding=1, bias=False), nn.BatchNorm2d(b), nn.ReLU(inplace=True)]
        super().__init__(*layers, nn.Conv2d(b, b, 3, padding=1, bias=False), nn.BatchNorm2d(b), nn.ReLU(inplace=True))


class UNet(nn.Module):
    """Long skips: what each level makes on the way down is needed on the way up."""

    def __init__(self, width: int = 8, levels: int = 4) -> None:
        super().__init__()
        sizes = [width << i for i in range(levels + 1)]
        self.stem = Double(3, width)
        self.down = nn.ModuleList(Double(a, b) for a, b in pairwise(sizes))
        self.up = nn.ModuleList(nn.ConvTranspose2d(b, a, 2, stride=2) for a, b in pairwise(sizes))
        self.join = nn.ModuleList(Double(2 * a, a) for a in sizes[:-1])
        self.head = nn.Conv2d(width, 5, 1)

    def forward(self, x: Tensor) -> Tensor:
        kept = [self.stem(x)]
        for down in self.down:
            kept.append(down(F.max_pool2d(kept[-1], 2)))
        x = kept.pop()
        for up, join in zip(reversed(self.up), reversed(self.join), strict=True):
            x = join(torch.cat([kept.pop(), up(x)], 1))
        return self.head(x)


class Lstm(nn.Module):
    def __init__(self, words: int = 200, width: int = 24, layers: int = 8) -> None:
        super().__init__()
        self.words = nn.Embedding(words, width)
        self.layers = nn.ModuleList(nn.LSTM(width, width, batch_first=True) for _ in range(layers))
        self.out = nn.Linear(width, words)

    def forward(self, ids: Tensor) -> tuple[Tensor, list[tuple[Tensor, Tensor]]]:
        x, states = self.words(ids), []
        for layer in self.layers:
            y, state = layer(x)
            x = x + y
            states.append(state)
        return self.out(x), states


def build(name: str) -> Entry:
    """A fresh model in eval mode, and what draws its inputs."""
    torch.manual_seed(0)
    if name == "unet":
        return UNet().eval(), lambda: Args(torch.rand(2, 3, 32, 32))
    if name == "lstm":
        return Lstm().eval(), lambda: Args(torch.randint(0, 200, (2, 6)))
    return real_models.build(name)

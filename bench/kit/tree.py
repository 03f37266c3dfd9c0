"""Outputs of models as flat lists of tensors, and how far two of them are apart."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

import torch
from torch import Tensor, nn

FAR = {"cpu": 1e-3, "cuda": 1e-2}  # of the largest number of a tensor; beyond it numbers are wrong, not rounded


def leaves(tree: Any) -> Iterator[Tensor]:
    """The tensors of an output, whatever its structure."""
    if isinstance(tree, Tensor):
        yield tree
    elif isinstance(tree, Mapping):
        for key in tree:
            yield from leaves(tree[key])
    elif isinstance(tree, (list, tuple)):
        for item in tree:
            yield from leaves(item)


def loss_of(output: Any, _targets: Any = None) -> Tensor:
    """A loss for any output."""
    return torch.stack([t.float().square().mean() for t in leaves(output) if t.requires_grad]).sum()


class Flat(nn.Module):
    """A model with positional tensors in and a tuple of tensors out, for exporters that know nothing else."""

    def __init__(self, model: nn.Module, positional: int, keys: list[str]) -> None:
        super().__init__()
        self.model, self.positional, self.keys = model, positional, keys

    def forward(self, *tensors: Tensor) -> tuple[Tensor, ...]:
        rest = dict(zip(self.keys, tensors[self.positional :], strict=True))
        return tuple(leaves(self.model(*tensors[: self.positional], **rest)))


class Positional(nn.Module):
    """A model whose keyword inputs are positional; its output stays what it is."""

    def __init__(self, model: nn.Module, positional: int, keys: list[str]) -> None:
        super().__init__()
        self.model, self.positional, self.keys = model, positional, keys

    def forward(self, *tensors: Tensor) -> Any:
        rest = dict(zip(self.keys, tensors[self.positional :], strict=True))
        return self.model(*tensors[: self.positional], **rest)


def kept(tree: Any) -> list[Tensor]:
    """The tensors of an output as they are now, on the CPU."""
    return [t.detach().cpu().clone() for t in leaves(tree)]


class Distance:
    """How far an output is from the one that is right."""

    def __init__(self, got: list[Tensor], want: list[Tensor], device: str) -> None:
        self.error = 0.0
        self.equal = True  # bit for bit
        self.wrong: str | None = None
        if len(got) != len(want):
            self._fail(f"{len(got)} tensors instead of {len(want)}")
            return
        for i, (a, b) in enumerate(zip(got, want, strict=True)):
            self._compare(i, a, b, FAR[device])

    def _fail(self, why: str) -> None:
        self.equal, self.wrong = False, self.wrong or why

    def _compare(self, i: int, a: Tensor, b: Tensor, far: float) -> None:
        if a.shape != b.shape:
            self._fail(f"output {i} has shape {tuple(a.shape)} instead of {tuple(b.shape)}")
            return
        if not b.numel() or torch.equal(a, b):
            self.equal = self.equal and a.dtype == b.dtype
            return
        self.equal = False
        finite = torch.isfinite(b) if b.is_floating_point() else torch.ones_like(b, dtype=torch.bool)
        x, y = a.double(), b.double()
        if not torch.equal(torch.isfinite(x), finite):
            self._fail(f"output {i} is not finite in other places")
            return
        if not finite.any():
            return
        error = float((x - y)[finite].abs().max() / y[finite].abs().max().clamp(min=1e-30))
        self.error = max(self.error, error)
        if error > far:
            self._fail(f"output {i} is off by {error:.1e} of its largest number")

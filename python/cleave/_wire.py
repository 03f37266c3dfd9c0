"""Packs the tensors that go from one stage to the next into one message of bytes, and unpacks them.

Every dtype travels as bytes, so no back end has to know it, and a stage sends one message however many values cross.
The receiver gets the sender's strides too: kernels choose by strides, and equal bits need equal kernels.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from math import prod
from typing import Any

import torch

from .errors import PipelineError

ALIGN = 64  # bytes; what torch aligns fresh memory to


@dataclass(frozen=True)
class Layout:
    """Size, strides and dtype of a tensor that crosses, and whether a gradient comes back for it."""

    shape: tuple[int, ...]
    stride: tuple[int, ...]
    dtype: torch.dtype
    grad: bool

    @staticmethod
    def of(t: torch.Tensor, what: str) -> Layout:
        """The layout of `t`; `what` names it in the error for tensors that are not plain strided memory."""
        if t.layout != torch.strided or t.is_quantized or t.is_nested:
            raise PipelineError(
                f"{what} is not a plain tensor ({t.layout}, {t.dtype}) and cannot go to another process"
            )
        return Layout(tuple(t.shape), tuple(t.stride()), t.dtype, t.requires_grad)

    def text(self) -> list[Any]:
        return [self.shape, self.stride, str(self.dtype).removeprefix("torch."), self.grad]

    @staticmethod
    def parse(text: list[Any]) -> Layout:
        shape, stride, dtype, grad = text
        return Layout(tuple(shape), tuple(stride), getattr(torch, dtype), grad)

    @cached_property
    def sent_shape(self) -> tuple[int, ...]:
        """What travels: elements that repeat (stride 0) once; memory that overlaps otherwise as it lies."""
        if 0 in self.shape:
            return (0,)
        if self._overlaps:
            return (self.span,)
        return tuple(1 if s == 0 else n for n, s in zip(self.shape, self.stride, strict=True))

    @cached_property
    def span(self) -> int:
        """Elements of memory from the first to the last."""
        return 1 + sum((n - 1) * s for n, s in zip(self.shape, self.stride, strict=True)) if 0 not in self.shape else 0

    @cached_property
    def _overlaps(self) -> bool:
        reach = 1
        for s, n in sorted((s, n) for n, s in zip(self.shape, self.stride, strict=True) if n > 1 and s > 0):
            if s < reach:
                return True
            reach += s * (n - 1)
        return False

    @cached_property
    def sent_stride(self) -> tuple[int, ...]:
        """Strides of what travels in the sender's memory."""
        return (1,) if 0 in self.shape or self._overlaps else self.stride

    @cached_property
    def dense(self) -> bool:
        """What travels fills its memory without gaps: it can lie in the message as it lay at the sender."""
        return prod(self.sent_shape) == self.span

    @property
    def bytes(self) -> int:
        return prod(self.sent_shape) * self.dtype.itemsize

    @property
    def full_bytes(self) -> int:
        """Room for any layout of a tensor of this size."""
        return prod(self.shape) * self.dtype.itemsize


def _round(n: int) -> int:
    return -(-n // ALIGN) * ALIGN


def offsets(sizes: Sequence[int]) -> tuple[list[int], int]:
    """Where slots of these sizes begin, and the size of the message."""
    at, begins = 0, []
    for n in sizes:
        begins.append(at)
        at += _round(n)
    return begins, at


def _slot(message: torch.Tensor, at: int, lay: Layout) -> torch.Tensor:
    """What travels of one tensor, in the message."""
    stride = lay.sent_stride if lay.dense else None
    typed = message[at : at + lay.bytes].view(lay.dtype)
    return typed.as_strided(lay.sent_shape, stride) if stride is not None else typed.view(lay.sent_shape)


def pack(
    tensors: Sequence[torch.Tensor | None], layouts: Sequence[Layout | None], begins: Sequence[int], size: int
) -> torch.Tensor:
    """One message with these tensors; those without a layout leave their slot empty."""
    device = next((t.device for t in tensors if t is not None), torch.device("cpu"))
    message = torch.zeros(size, dtype=torch.uint8, device=device)
    for t, lay, at in zip(tensors, layouts, begins, strict=True):
        if t is not None and lay is not None and lay.bytes:
            t = t.detach().resolve_conj().resolve_neg()
            _slot(message, at, lay).copy_(t.as_strided(lay.sent_shape, lay.sent_stride))
    return message


def unpack(message: torch.Tensor, layouts: Sequence[Layout | None], begins: Sequence[int]) -> list[torch.Tensor | None]:
    """The tensors of a message, laid out as they were. They are no views: stages may write them in place."""
    out: list[torch.Tensor | None] = []
    for lay, at in zip(layouts, begins, strict=True):
        if lay is None:
            out.append(None)
            continue
        t = torch.empty(0, dtype=lay.dtype, device=message.device)
        if not lay.bytes:
            t = torch.empty_strided(lay.shape, lay.stride, dtype=lay.dtype, device=message.device)
        elif lay.dense:
            t.set_(message.untyped_storage(), at // lay.dtype.itemsize, lay.shape, lay.stride)
        else:
            room = torch.zeros(lay.span, dtype=lay.dtype, device=message.device)
            room.as_strided(lay.sent_shape, lay.sent_stride).copy_(_slot(message, at, lay))
            t.set_(room.untyped_storage(), 0, lay.shape, lay.stride)
        out.append(t)
    return out

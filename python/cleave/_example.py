"""Example inputs as a command line writes them: 'f32[B,3,224,224]', 'ids=i64[2,16]<50257', 'x=data.npy', 'scale=0.5'.

A text becomes a Spec, which needs nothing but itself; with the sizes of its symbols it becomes a tensor."""

from __future__ import annotations

import json
import os
import re
from collections.abc import Mapping
from typing import Any, NamedTuple

import torch

from . import _native
from .errors import ArgumentError

# As in plan text (src/plan/plan.h), without those that hold no numbers of their own.
DTYPES = {
    "f16": torch.float16,
    "bf16": torch.bfloat16,
    "f32": torch.float32,
    "f64": torch.float64,
    "c64": torch.complex64,
    "c128": torch.complex128,
    "bool": torch.bool,
    "u8": torch.uint8,
    "i8": torch.int8,
    "i16": torch.int16,
    "i32": torch.int32,
    "i64": torch.int64,
}

_NAMED = re.compile(r"([A-Za-z_]\w*)=(.*)", re.DOTALL)
_TENSOR = re.compile(r"(\w+)\s*\[([^\]]*)\]\s*(.*)", re.DOTALL)
_FILE = re.compile(r"(.+?\.(npy|safetensors))(?::([^\[]+))?(?:\[([^\]]*)\])?", re.DOTALL)
_BELOW = re.compile(r"<\s*(\d+)")
_BETWEEN = re.compile(r":\s*(-?\d+)\s*\.\.\s*(-?\d+)")
_MOST_ELEMENTS = 1 << 40

Dim = int | str


class Spec(NamedTuple):
    """One input. A tensor to draw has a dtype, one from a file a path, anything else is a plain value."""

    text: str
    name: str | None  # None: by position
    dims: tuple[Dim, ...] | None = None  # None: those of the file; of a plain value none at all
    dtype: torch.dtype | None = None
    fill: str = ""  # "zeros", "ones"
    low: int = 0
    high: int = 2  # of integers: above the largest
    path: str | None = None
    key: str | None = None
    value: Any = None

    @property
    def symbols(self) -> list[str]:
        """The names among the dimensions."""
        return [d for d in self.dims or () if isinstance(d, str)]


class Problem(ArgumentError):
    """What a user wrote cannot be understood."""

    hint = "an input is written as 'f32[4,3,224,224]', 'ids=i64[2,16]<50257', 'x=file.npy' or 'scale=0.5'"


def parse(text: str) -> Spec:
    """Reads one --input."""
    named = _NAMED.fullmatch(text.strip())
    name, body = (named[1], named[2].strip()) if named else (None, text.strip())
    tensor, file = _TENSOR.fullmatch(body), _FILE.fullmatch(body)
    dtype = _dtype(tensor[1]) if tensor else None
    if tensor and dtype is not None:
        return _filled(Spec(text, name, _dims(tensor[2], text), dtype), tensor[3])
    if file:
        if file[3] and file[2] == "npy":
            raise Problem(f"{text}: a .npy file holds one array, and there is no {file[3]} to choose")
        dims = None if file[4] is None else _dims(file[4], text)
        return Spec(text, name, dims, path=file[1], key=file[3])
    if tensor:
        raise Problem(f"{text}: there is no dtype {tensor[1]}; there are {', '.join(DTYPES)}")
    return Spec(text, name, value=_plain_value(body, text))


def _dtype(name: str) -> torch.dtype | None:
    """By its name in plan text, or as torch calls it."""
    return DTYPES.get(name) or {str(d).removeprefix("torch."): d for d in DTYPES.values()}.get(name)


def _dims(text: str, whole: str) -> tuple[Dim, ...]:
    out: list[Dim] = []
    for part in (p.strip() for p in text.split(",")) if text.strip() else ():
        if part.isascii() and part.isdigit():
            out.append(int(part))
        elif part.isidentifier():
            out.append(part)
        else:
            raise Problem(f'{whole}: "{part}" is neither a size nor the name of one')
    return tuple(out)


def _filled(spec: Spec, rule: str) -> Spec:
    """The values that a tensor gets."""
    assert spec.dtype is not None
    below, between = _BELOW.fullmatch(rule), _BETWEEN.fullmatch(rule)
    if not rule:
        return spec
    if rule.lstrip(": ") in ("zeros", "ones"):
        return spec._replace(fill=rule.lstrip(": "))
    if not below and not between:
        raise Problem(f'{spec.text}: "{rule}" does not say which values: <N, :LOW..HIGH, :zeros or :ones do')
    if spec.dtype.is_floating_point or spec.dtype.is_complex or spec.dtype is torch.bool:
        raise Problem(f"{spec.text}: a range of values is for integers")
    low, high = (0, int(below[1])) if below else (int(between[1]), int(between[2]) + 1) if between else (0, 0)
    kept = torch.iinfo(spec.dtype)
    if low >= high or low < kept.min or high - 1 > kept.max:
        raise Problem(f"{spec.text}: the range {low} to {high - 1} is empty, or more than the dtype holds")
    return spec._replace(low=low, high=high)


def _plain_value(body: str, text: str) -> Any:
    try:
        value = json.loads(body)
    except ValueError:
        raise Problem(f"{text}: this is no input") from None
    if isinstance(value, dict | list):
        raise Problem(f"{text}: lists and dicts cannot be given here; a factory can return a function that makes them")
    return value


# ---- tensors


class Values:
    """Draws the tensors, always the same for the same seed."""

    def __init__(self, sizes: Mapping[str, int], seed: int, device: torch.device) -> None:
        self.sizes = sizes
        self.device = device
        self.generator = torch.Generator().manual_seed(seed)

    def of(self, spec: Spec) -> dict[str | None, Any]:
        """What a spec gives: one value under its name, or all tensors of a file."""
        if spec.path is not None:
            return {k: t.to(self.device) for k, t in _from_file(spec, self.sizes).items()}
        if spec.dtype is None:
            return {spec.name: spec.value}
        return {spec.name: self._drawn(spec, spec.dtype).to(self.device)}

    def _drawn(self, spec: Spec, dtype: torch.dtype) -> torch.Tensor:
        shape = shape_of(spec, self.sizes)
        count = 1
        for n in shape:
            count *= n
        if count > _MOST_ELEMENTS:
            raise Problem(f"{spec.text}: {count} elements are too many")
        if spec.fill:
            return torch.full(shape, spec.fill == "ones", dtype=dtype)
        if dtype.is_floating_point or dtype.is_complex:
            wide = dtype if dtype.is_complex or dtype is torch.float64 else torch.float32
            return torch.randn(shape, generator=self.generator, dtype=wide).to(dtype)
        high = min(spec.high, torch.iinfo(torch.int64).max)
        return torch.randint(spec.low, high, shape, generator=self.generator, dtype=torch.int64).to(dtype)


def shape_of(spec: Spec, sizes: Mapping[str, int]) -> tuple[int, ...]:
    """The dimensions as numbers."""
    return tuple(d if isinstance(d, int) else sizes[d] for d in spec.dims or ())


def _from_file(spec: Spec, sizes: Mapping[str, int]) -> dict[str | None, torch.Tensor]:
    assert spec.path is not None
    stored = read_file(spec.path)
    if spec.key is not None and spec.key not in stored:
        raise ArgumentError(f"{spec.path} has no tensor {spec.key}; it has {', '.join(sorted(stored)) or 'none'}")
    if spec.key is not None:
        found: dict[str | None, torch.Tensor] = {spec.name: stored[spec.key]}
    elif list(stored) == [""] or (spec.name is not None and len(stored) == 1):
        found = {spec.name: next(iter(stored.values()))}
    elif spec.name is not None:
        raise ArgumentError(f"{spec.path} has {len(stored)} tensors: {spec.name}={spec.path}:KEY takes one of them")
    else:
        found = dict(stored.items())
    for tensor in found.values():
        if spec.dims is not None and tuple(tensor.shape) != shape_of(spec, sizes):
            raise ArgumentError(f"{spec.text}: the shape in the file is {list(tensor.shape)}")
    return found


def stored_sizes(spec: Spec) -> dict[str, int]:
    """The sizes that a file gives to the symbols of its spec."""
    if spec.path is None or not spec.symbols:
        return {}
    (tensor, *more) = _from_file(spec._replace(dims=None), {}).values()
    if more or spec.dims is None or tensor.dim() != len(spec.dims):
        raise ArgumentError(f"{spec.text}: the shape in the file is {list(tensor.shape)}")
    return {d: n for d, n in zip(spec.dims, tensor.shape, strict=True) if isinstance(d, str)}


def read_file(path: str) -> dict[str, torch.Tensor]:
    """The tensors of a safetensors file by name, or the one of an .npy file, whose name is "". Checked as hostile."""
    return _native.arrays_load(os.fsencode(path))

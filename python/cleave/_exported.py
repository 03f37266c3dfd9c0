"""Programs that torch.export saved: a .pt2 file as a model, with the example and the ranges of sizes it brings.

An exported program is a graph of ATen operators with its module's parameters under their own names. The sizes that it
takes are part of it: it says itself which dimensions may change, and refuses others."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from typing import Any, NamedTuple

import torch
from torch import nn

from ._capture import take_apart
from ._dims import SMALL
from ._state import Target
from .errors import ArgumentError, CaptureError

Dims = dict[str, dict[int, str]]
Ranges = dict[str, tuple[int, int]]

_UNBOUNDED = 1 << 31  # a range that ends farther is no range that somebody gave


class Exported(NamedTuple):
    """What a file holds."""

    model: nn.Module
    args: tuple[Any, ...] | None  # None: it has no example
    kwargs: dict[str, Any]
    dims: Dims
    ranges: Ranges
    bounded: frozenset[str]  # symbols whose range has an end in the program


def load(path: str) -> Exported:
    """Opens a .pt2 file."""
    try:
        program = torch.export.load(path)
    except OSError:
        raise
    except Exception as error:  # torch's readers raise all kinds
        raise ArgumentError(f"{path}: torch.export cannot load it: {_first_line(error)}") from error
    try:
        model: nn.Module = program.module()
    except Exception as error:
        raise CaptureError(f"{path}: the program cannot be made a module: {_first_line(error)}") from error
    for module in model.modules():  # what it does is fixed, whatever the flags say; a program for inference is usual
        module.training = False
    type(model).__name__ = _class_of(program)
    if program.example_inputs is None:
        return Exported(model, None, {}, {}, {}, frozenset())
    args, kwargs = program.example_inputs
    return Exported(model, tuple(args), dict(kwargs), *_sizes(program, model, tuple(args), dict(kwargs)))


def _first_line(error: BaseException) -> str:
    return (str(error).strip().splitlines() or [type(error).__name__])[0]


def _class_of(program: Any) -> str:
    """The class that was exported, as far as the operators still know it."""
    for node in program.graph.nodes:
        for _, (path, cls) in (node.meta.get("nn_module_stack") or {}).items():
            if not path:
                return str(cls if isinstance(cls, str) else cls.__name__).rpartition(".")[2]
    return "ExportedProgram"


def _sizes(program: Any, model: nn.Module, args: Any, kwargs: Any) -> tuple[Dims, Ranges, frozenset[str]]:
    """Which dimensions of which inputs may change, by the names that inputs have in a capture."""
    inputs = take_apart(Target(model), args, kwargs)
    shapes = [s for s in _user_shapes(program) if s is not None]
    bounds = {str(symbol): _bounds(r) for symbol, r in program.range_constraints.items()}
    known: dict[str, str] = {}  # torch's names to ours
    dims: Dims = {}
    ranges: Ranges = {}
    if len(shapes) != len(inputs.leaves):
        return {}, {}, frozenset()
    for name, leaf, shape in zip(inputs.names, inputs.leaves, shapes, strict=True):
        for dim, size in enumerate(shape):
            symbol = None if isinstance(size, int) else str(size.node.expr)
            if symbol is None or symbol not in bounds:  # a number, or a formula of other sizes
                continue
            ours = known.setdefault(symbol, _name(len(known), dim, set(known.values())))
            dims.setdefault(name, {})[dim] = ours
            low, high = bounds[symbol]
            ranges[ours] = low, max(SMALL, 4 * leaf.shape[dim]) if high is None else high
    return dims, ranges, frozenset(ours for symbol, ours in known.items() if bounds[symbol][1] is not None)


def _name(count: int, dim: int, taken: set[str]) -> str:
    """ "B" for the first that is in front, else "S", "S1", "S2", …"""
    if dim == 0 and "B" not in taken:
        return "B"
    return next(n for n in ("S", *(f"S{i}" for i in range(1, count + 2))) if n not in taken)


def _bounds(given: Any) -> tuple[int, int | None]:
    """A range of torch's; None: it has no end."""
    try:
        high = int(given.upper)
    except (TypeError, ValueError, OverflowError):  # infinity, in one of several ways
        return max(1, int(given.lower)), None
    return max(1, int(given.lower)), high if high < _UNBOUNDED else None


def _user_shapes(program: Any) -> Iterator[Any]:
    """The shape of each input that is a tensor, None for others."""
    wanted = set(program.graph_signature.user_inputs)
    for node in program.graph.nodes:
        if node.op == "placeholder" and node.name in wanted:
            value = node.meta.get("val")
            yield value.shape if isinstance(value, torch.Tensor) else None


@contextlib.contextmanager
def explained(path: str) -> Iterator[None]:
    """A program's own check of its inputs, in words about the file."""
    try:
        yield
    except (AssertionError, RuntimeError) as error:
        if isinstance(error, CaptureError):
            raise
        raise ArgumentError(f"{path}: the program does not take these inputs: {_first_line(error)}") from error

"""Programs that torch.export saved: a .pt2 file as a model, with the example and the ranges of sizes it brings.

An exported program is a graph of ATen operators with its module's parameters under their own names. The sizes that it
takes are part of it: it says itself which dimensions may change, and refuses others."""

from __future__ import annotations

import contextlib
import logging
from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple

import torch
from torch import nn
from torch.export.passes import move_to_device_pass
from torch.utils._pytree import tree_leaves, tree_map_only

from . import _watch
from ._capture import take_apart
from ._dims import SMALL
from ._state import Target
from .errors import ArgumentError, CaptureError, CleaveError, first_line

Dims = dict[str, dict[int, str]]
Ranges = dict[str, tuple[int, int]]

_UNBOUNDED = 1 << 31  # a range that ends beyond this was not given by a user


class Exported(NamedTuple):
    """What a file holds."""

    model: nn.Module
    args: tuple[Any, ...] | None  # None: it has no example
    kwargs: dict[str, Any]
    dims: Dims
    ranges: Ranges
    bounded: frozenset[str]  # symbols whose range has an end in the program


def load(path: str, device: torch.device) -> Exported:
    """Opens a .pt2 file, for a device."""
    program = _program(path)
    if any(t.device != device for t in _tensors(program)):
        program = move_to_device_pass(program, str(device))  # also what operators make there
    try:
        model: nn.Module = program.module()
    except Exception as error:
        raise CaptureError(f"{path}: the program cannot be made a module: {first_line(error)}") from error
    name_modules(model)
    training = _trains(program)
    for module in model.modules():  # what it does is fixed whatever the flags say: they shall tell it
        module.training = training
    if program.example_inputs is None:
        return Exported(model, None, {}, {}, {}, frozenset())
    args, kwargs = tree_map_only(torch.Tensor, lambda t: t.to(device), program.example_inputs)
    return Exported(model, tuple(args), dict(kwargs), *_sizes(program, model, tuple(args), dict(kwargs)))


def _program(path: str) -> Any:
    log = logging.getLogger("torch.export")
    level = log.level
    try:
        log.setLevel(logging.ERROR)  # it writes tracebacks of what it tries
        return torch.export.load(path)
    except Exception as error:  # torch's readers raise all kinds
        raise ArgumentError(f"{path}: torch.export cannot load it: {first_line(error)}") from error
    finally:
        log.setLevel(level)


def _tensors(program: Any) -> Iterator[torch.Tensor]:
    held = (program.state_dict, program.constants, program.example_inputs)
    yield from (t for t in tree_leaves(held) if isinstance(t, torch.Tensor))


# ---- modules. Operators of a program still know which module of the original they are from.


def name_modules(model: Any) -> None:
    """Gives the module of a program the children that the original had, by path and class, and tells a capture at each
    operator whose it is: so that plans of programs have the scopes that those of the original have."""
    type(model).__name__ = "ExportedProgram"
    here = ""
    for node in list(model.graph.nodes):
        stack = _module_stack(node)
        path = stack[-1][0] if stack else "" if node.op == "output" else here
        for place, cls in stack:
            if not _name_child(model, place, cls):
                return
        if path != here:
            with model.graph.inserting_before(node):
                model.graph.call_function(move_to, (path,))
            here = path
    model.recompile()


def move_to(path: str) -> None:
    """Part of the code of a program: a capture is told that operators of the module at `path` follow."""
    recording = _watch.current()
    if recording is not None:
        recording.move_to(path)


def _module_stack(node: Any) -> list[tuple[str, str]]:
    """(path, class) of the modules around an operator, the outermost first; none where it is not known."""
    found = list((node.meta.get("nn_module_stack") or {}).values()) if node.op == "call_function" else []
    if not found or found[0][0]:
        return []
    # A second call of a module is marked as in "layer@1".
    return [(path.partition("@")[0], getattr(cls, "__name__", str(cls)).rpartition(".")[2]) for path, cls in found]


def _name_child(model: Any, path: str, cls: str) -> bool:
    """Makes a module of that class's name at a path; False: something else has its place."""
    module = model
    for part in path.split(".") if path else ():
        if part not in module._modules:
            if not part or hasattr(module, part):
                return False
            module.add_module(part, nn.Module())
        module = module._modules[part]
    if module is model:
        type(model).__name__ = cls
    elif type(module) is nn.Module:
        module.__class__ = type(cls, (nn.Module,), {})
    return True


# ---- what a program says about itself


def _trains(program: Any) -> bool:
    """Whether an operator is told to train: dropout, batch_norm."""
    for node in program.graph.nodes:
        schema = getattr(node.target, "_schema", None) if node.op == "call_function" else None
        names = [a.name for a in schema.arguments] if schema is not None else []
        given = {**dict(zip(names, node.args, strict=False)), **node.kwargs}
        if any(given.get(flag) is True for flag in ("training", "train", "use_input_stats")):
            return True
    return False


def _sizes(program: Any, model: nn.Module, args: Any, kwargs: Any) -> tuple[Dims, Ranges, frozenset[str]]:
    """Which dimensions of which inputs may change, by the names that inputs have in a capture."""
    inputs = take_apart(Target(model), args, kwargs)
    shapes = [s for s in _user_shapes(program) if s is not None]
    bounds = {str(symbol): _bounds(r) for symbol, r in program.range_constraints.items()}
    tied = _tied(shapes)
    known: dict[str, str] = {}  # torch's names to ours
    dims: Dims = {}
    ranges: Ranges = {}
    if len(shapes) != len(inputs.leaves):
        return {}, {}, frozenset()
    for name, leaf, shape in zip(inputs.names, inputs.leaves, shapes, strict=True):
        for dim, size in enumerate(shape):
            symbol = _symbol(size)
            if symbol not in bounds or symbol in tied:
                continue
            ours = known.setdefault(symbol, _name(len(known), dim, set(known.values())))
            dims.setdefault(name, {})[dim] = ours
            low, high = bounds[symbol]
            ranges[ours] = low, max(SMALL, 4 * leaf.shape[dim]) if high is None else high
    return dims, ranges, frozenset(ours for symbol, ours in known.items() if bounds[symbol][1] is not None)


def _symbol(size: Any) -> str:
    """What torch calls a size that may change; "" for a number and for a formula of other sizes."""
    return "" if isinstance(size, int) or not size.node.expr.is_symbol else str(size.node.expr)


def _tied(shapes: Sequence[Any]) -> set[str]:
    """Symbols that some dimension is a formula of (2*s0, s0 + 1): no capture can change them, they stay as they are."""
    every = [size.node.expr for shape in shapes for size in shape if not isinstance(size, int)]
    return {str(symbol) for expr in every if not expr.is_symbol for symbol in expr.free_symbols}


def _name(count: int, dim: int, taken: set[str]) -> str:
    """ "B" for the first that is in front, else "S", "S1", "S2", …"""
    if dim == 0 and "B" not in taken:
        return "B"
    return next(n for n in ("S", *(f"S{i}" for i in range(1, count + 2))) if n not in taken)


def _bounds(given: Any) -> tuple[int, int | None]:
    """A range of torch's; None: it has no end."""
    low, high = (int(text) if text.lstrip("-").isdigit() else None for text in (str(given.lower), str(given.upper)))
    return max(1, low or 1), high if high is not None and high < _UNBOUNDED else None


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
        if isinstance(error, CleaveError):
            raise
        raise ArgumentError(f"{path}: the program does not take these inputs: {first_line(error)}") from error

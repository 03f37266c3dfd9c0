"""Walks Python values to any depth: the kind of each value, and the values inside it.

What is read on the way never runs code of the value's class."""

from __future__ import annotations

import array
import enum
import functools
import sys
import types
import weakref
from collections import OrderedDict, deque
from collections.abc import Iterable, Iterator
from typing import Any

import torch
from torch import nn


class Kind(enum.Enum):
    """What can be inside a value."""

    FIXED = enum.auto()  # nothing that could change, or that anybody follows
    TENSOR = enum.auto()
    MODULE = enum.auto()
    TUPLE = enum.auto()
    LIST = enum.auto()  # and deques
    DICT = enum.auto()
    SET = enum.auto()
    ARRAY = enum.auto()  # plain memory: of NumPy, bytearray
    FUNCTION = enum.auto()
    FIELDS = enum.auto()  # a few attributes, by class: FIELDS_OF
    REFERENCE = enum.auto()  # a weak one
    OBJECT = enum.auto()  # attributes alone


# Types whose objects have only these attributes and those in their __dict__.
FIELDS_OF: dict[type, tuple[str, ...]] = {
    types.MethodType: ("__self__", "__func__"),
    types.BuiltinMethodType: ("__self__", "__name__"),
    functools.partial: ("func", "args", "keywords"),
    staticmethod: ("__func__",),
    classmethod: ("__func__",),
    property: ("fget",),
}
_FIXED = (
    *(int, float, complex, str, bytes, type, range, slice, types.ModuleType, types.CodeType, types.CellType),
    *(enum.Enum, BaseException, torch.dtype, torch.device, torch.layout, torch.memory_format, torch.Generator),
)
_KINDS: tuple[tuple[Any, Kind], ...] = (
    (torch.Tensor, Kind.TENSOR),
    (nn.Module, Kind.MODULE),
    ((bytearray, array.array), Kind.ARRAY),
    (_FIXED, Kind.FIXED),
    (tuple, Kind.TUPLE),
    ((list, deque), Kind.LIST),
    (dict, Kind.DICT),
    ((set, frozenset), Kind.SET),
    (types.FunctionType, Kind.FUNCTION),
    (tuple(FIELDS_OF), Kind.FIELDS),
    (weakref.ref, Kind.REFERENCE),
)
# Packages whose objects are what they are (locks, loggers, files, paths, optimizers), and parts of them that hold
# values for others.
_CLOSED = frozenset({*sys.stdlib_module_names, "torch"} - {"__main__"})
_OPEN = ("collections", "types", "argparse", "functools", "configparser", "torch.distributions")
_MOST_CLASSES = 10_000

ENDS = (Kind.FIXED, Kind.TENSOR, Kind.MODULE)
ATOMS = frozenset({type(None), bool, int, float, str})

_kinds: dict[type, Kind] = {}
_slots: dict[type, tuple[str, ...]] = {}


def kind_of(value: Any) -> Kind:
    """What can be inside a value."""
    cls = type(value)
    found = _kinds.get(cls)
    if found is None:
        if len(_kinds) >= _MOST_CLASSES:
            _kinds.clear()
        found = _kinds[cls] = _kind_of_class(cls)
    return found


def _kind_of_class(cls: type) -> Kind:
    if vars(cls).get("not_followed"):
        return Kind.FIXED
    numpy = sys.modules.get("numpy")
    if numpy is not None and issubclass(cls, (numpy.ndarray, numpy.generic)):
        return Kind.ARRAY
    for classes, kind in _KINDS:
        if issubclass(cls, classes):
            return kind
    return Kind.OBJECT if not is_closed(cls) and (cls.__dictoffset__ or slots_of(cls)) else Kind.FIXED


def is_closed(value: Any) -> bool:
    """A class or function of Python's or torch's own, which nobody changes from outside."""
    home = value.__module__ or ""
    return home.partition(".")[0] in _CLOSED and not home.startswith(_OPEN)


def slots_of(cls: type) -> tuple[str, ...]:
    """Attributes that objects of a class keep outside of their __dict__."""
    found = _slots.get(cls)
    if found is None:
        if len(_slots) >= _MOST_CLASSES:
            _slots.clear()
        heap = 1 << 9  # Py_TPFLAGS_HEAPTYPE: written in Python
        classes = [c for c in cls.__mro__ if c.__flags__ & heap]
        names = (n for c in classes for n, v in vars(c).items() if isinstance(v, types.MemberDescriptorType))
        found = _slots[cls] = tuple(dict.fromkeys(names))
    return found


def own_of(value: Any) -> dict[str, Any] | None:
    """The attributes that a value keeps in its __dict__."""
    if not type(value).__dictoffset__:
        return None
    try:
        own = object.__getattribute__(value, "__dict__")
    except AttributeError:
        return None
    return own if isinstance(own, dict) else None


def items_of(value: dict[Any, Any]) -> list[tuple[Any, Any]]:
    """The items of a dict, in its order, whatever its class makes of it."""
    return list(OrderedDict.items(value) if isinstance(value, OrderedDict) else dict.items(value))


def cell_of(cell: types.CellType) -> Any:
    """What a closed over variable is; NotImplemented: it has no value yet."""
    return slot(cell, "cell_contents")


def values_in(value: Any, kind: Kind) -> Iterator[Any]:
    """The values that a value of this kind holds."""
    if kind in (Kind.TUPLE, Kind.LIST, Kind.SET):
        yield from sequence_of(value)
    elif kind is Kind.DICT:
        yield from (item for _, item in items_of(value))
    elif kind is Kind.FUNCTION:
        yield from (cell_of(cell) for cell in value.__closure__ or ())
        yield from (value.__defaults__, value.__kwdefaults__, value.__dict__)
    elif kind is Kind.FIELDS:
        yield from (getattr(value, name, None) for name in fields_of(value))
    elif kind is Kind.REFERENCE:
        yield value()
    own = own_of(value) if kind is not Kind.FUNCTION else None
    if own:
        yield from own.values()
    if kind is Kind.OBJECT:
        for name in slots_of(type(value)):
            yield slot(value, name)


def fields_of(value: Any) -> tuple[str, ...]:
    return next(names for cls, names in FIELDS_OF.items() if isinstance(value, cls))


def slot(value: Any, name: str) -> Any:
    """What is in a slot; NotImplemented: nothing."""
    try:
        return object.__getattribute__(value, name)
    except (AttributeError, ValueError):  # the latter: a variable that is closed over, and not set yet
        return NotImplemented


def sequence_of(value: Any) -> list[Any]:
    """The items of a sequence or set, whatever its class makes of it."""
    for cls in (list, tuple, deque, set, frozenset):
        if isinstance(value, cls):
            plain: Any = cls
            return list(plain.__iter__(value))
    return []


def can_be_watched(cls: type) -> bool:
    """Its attributes can be replaced, as those of classes that are written in Python can."""
    heap, immutable = 1 << 9, 1 << 8  # Py_TPFLAGS_HEAPTYPE, Py_TPFLAGS_IMMUTABLETYPE
    return bool(cls.__flags__ & heap) and not cls.__flags__ & immutable and not is_closed(cls)


def reachable(roots: Iterable[Any], most: int) -> Iterator[tuple[Any, Kind]]:
    """Values that hold others, each once, the nearest first; modules and tensors are not entered. most: how many values
    are looked at."""
    seen: set[int] = set()
    layer = list(roots)
    while layer:
        following: list[Any] = []
        for value in layer:
            kind = kind_of(value)
            if kind in ENDS or id(value) in seen:
                continue
            seen.add(id(value))
            yield value, kind
            following.extend(values_in(value, kind))
        most -= len(following)
        if most < 0:
            return
        layer = following

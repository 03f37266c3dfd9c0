"""Which dicts of a model a forward only looks up keys in: those may get more items, for they are caches, by size for
instance. One whose items it goes through, or counts, may not."""

from __future__ import annotations

import functools
from collections import OrderedDict, defaultdict
from collections.abc import Callable, Sequence
from typing import Any

import torch

TABLES = (dict, OrderedDict, defaultdict)


def may_grow(table: Any) -> bool:
    """It looks like a cache: it has tensors, or something by a number or a size."""
    return type(table) in TABLES and (
        not all(isinstance(key, str) for key in table)
        or any(isinstance(item, torch.Tensor) or _has_tensor(item) for item in table.values())
    )


def _has_tensor(item: Any) -> bool:
    return type(item) in (list, tuple) and any(isinstance(t, torch.Tensor) for t in item)


class Reads:
    """What was read of one dict."""

    def __init__(self) -> None:
        self.keys: set[Any] = set()
        self.whole = False
        self.counted = False
        self.extra = 0  # how many items more it says it has


def _keyed(name: str) -> Callable[..., Any]:
    def method(self: Any, key: Any, *rest: Any) -> Any:
        self.reads.keys.add(key)
        return getattr(self.base, name)(self, key, *rest)

    return method


def _whole(name: str) -> Callable[..., Any]:
    def method(self: Any, *args: Any) -> Any:
        self.reads.whole = True
        return getattr(self.base, name)(self, *args)

    return method


def _length(self: Any) -> int:
    self.reads.counted = True
    return int(self.base.__len__(self)) + int(self.reads.extra)


def _truth(self: Any) -> bool:
    if not self.base.__len__(self):
        self.reads.whole = True  # one item more would change the answer
        return False
    return True


@functools.cache
def _spying(base: type) -> type:
    """A subclass that notes what is read of it."""
    keyed = ("__getitem__", "__contains__", "get", "setdefault", "pop", "__delitem__")
    whole = ("__iter__", "__reversed__", "__eq__", "__ne__", "__or__", "__ror__", "__repr__", "__reduce__", "__copy__")
    methods = {name: _keyed(name) for name in keyed}
    methods |= {name: _whole(name) for name in (*whole, "keys", "values", "items", "copy", "popitem", "move_to_end")}
    present = {name: method for name, method in methods.items() if hasattr(base, name)}
    return type(base.__name__, (base,), {**present, "__len__": _length, "__bool__": _truth, "base": base})


def spies(tables: Sequence[Any]) -> dict[int, Any]:
    """A stand-in for each, by the id of the table; tables in each other are replaced too."""
    made = {}
    for table in tables:
        made[id(table)] = spy = _spying(type(table))()  # type: ignore[arg-type]
        spy.reads = Reads()
        if isinstance(table, defaultdict):
            spy.default_factory = table.default_factory
    for table in tables:
        for key, item in table.items():
            type(table).__setitem__(made[id(table)], key, made.get(id(item), item))
    return made

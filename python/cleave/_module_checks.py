"""What must still hold of a model when a plan of it runs: training flags, children, hooks, tied tensors, and the
attributes that the forward reads."""

from __future__ import annotations

import argparse
import copy
import enum
import sys
import types
from collections import OrderedDict, defaultdict, deque
from collections.abc import Callable, Iterator
from typing import Any

import torch
from torch import nn

from ._state import MODULE_TABLES, ModuleTensor, Target

# (path, what, holder, key, value): holder[key] is the value, or equal to it; NotImplemented: it is not there.
# (path, what, container, ..., number): how many items it has.
# (name, name, holder, key, holder, key): both are one tensor.
ModuleCheck = tuple[Any, ...]

MOST_ITEMS = 5000  # of containers that are looked at before every run, in all
MOST_DEEP = 4  # containers in each other

_CONTAINERS = (dict, OrderedDict, defaultdict, list, deque, set)


def is_plain_object(value: Any) -> bool:
    """One that keeps settings in attributes: a config, a dataclass, a namespace."""
    if isinstance(value, types.SimpleNamespace | argparse.Namespace):
        return True
    if callable(value) or isinstance(value, enum.Enum | torch.Tensor | types.ModuleType | BaseException):
        return False
    home = type(value).__module__.partition(".")[0]
    return type(getattr(value, "__dict__", None)) is dict and home != "torch" and home not in sys.stdlib_module_names


def can_be_watched(cls: type) -> bool:
    """Its attributes can be replaced, as those of classes that are written in Python can."""
    heap, immutable = 1 << 9, 1 << 8  # Py_TPFLAGS_HEAPTYPE, Py_TPFLAGS_IMMUTABLETYPE
    return bool(cls.__flags__ & heap) and not cls.__flags__ & immutable


def plain_objects(module: nn.Module) -> Iterator[Any]:
    """Those that a module has, and those that these have."""
    for key, value in list(vars(module).items()):
        if key not in MODULE_TABLES and is_plain_object(value):
            yield value
            yield from (inner for inner in list(vars(value).values()) if is_plain_object(inner))


def module_checks(
    target: Target, changed: set[tuple[int, Any]], read: set[tuple[int, str]], is_read: Callable[[str], bool]
) -> list[ModuleCheck]:
    """As _native.Program takes them. changed: attributes and items that the forward changes itself. read: attributes of
    modules and plain objects that it reads, by id. is_read: whether an operator reads a tensor, by its name."""
    found = _Checks(changed, read)
    found.out.extend(_ties(target, is_read))
    for path, module in target.modules():
        if not isinstance(module, torch.jit.ScriptModule):
            found.module(path, module)
    return found.out


def _ties(target: Target, is_read: Callable[[str], bool]) -> Iterator[ModuleCheck]:
    """A tensor that has several names is one value in a plan, and must stay one."""
    first: dict[int, ModuleTensor] = {}
    for t in target.tensors():
        other = first.setdefault(id(t.tensor), t)
        if (other.holder is not t.holder or other.key != t.key) and is_read(other.name):
            yield (t.name, other.name, t.holder, t.key, other.holder, other.key)


class _Checks:
    def __init__(self, changed: set[tuple[int, Any]], read: set[tuple[int, str]]) -> None:
        self.changed = changed
        self.containers = {number for number, _ in changed}  # in which the forward changes something
        self.read: dict[int, set[str]] = {}
        for number, name in read:
            self.read.setdefault(number, set()).add(name)
        self.seen: set[int] = set()  # ids of plain objects
        self.left = MOST_ITEMS
        self.out: list[ModuleCheck] = []

    def module(self, path: str, module: nn.Module) -> None:
        own, out = vars(module), self.out
        out.extend((path, key, own, key, own.get(key, NotImplemented)) for key in ("training", "forward"))
        for kind in ("forward", "backward"):  # backward hooks see, and may change, the gradients of a forward
            for hooks in (own[f"_{kind}_hooks"], own[f"_{kind}_pre_hooks"]):
                out.append((path, f"the number of {kind} hooks", hooks, ..., len(hooks)))
        out.append((path, "the number of children", module._modules, ..., len(module._modules)))
        out.extend((path, f"child {key}", module._modules, key, child) for key, child in module._modules.items())
        for tensors in (module._parameters, module._buffers):
            out.extend((path, key, tensors, key, None) for key, value in tensors.items() if value is None)
        read = self.read.get(id(module), set())
        if "__dict__" in read or any("__getattribute__" in vars(cls) for cls in _own_classes(module)):
            read = read.union(own)
        tables = (module._parameters, module._buffers, module._modules)
        for key in sorted(read - MODULE_TABLES - {"training", "forward"}):
            if key in own:
                self.value(path, key, own, key)
            elif (id(own), key) in self.changed or hasattr(nn.Module, key) or any(key in table for table in tables):
                continue
            else:
                self.absent(path, key, (own, module._parameters, module._buffers))

    def absent(self, path: str, key: str, holders: tuple[dict[str, Any], ...]) -> None:
        """A name that is not there, or only in the class: once it is, the forward sees something else."""
        self.out.extend((path, key, holder, key, NotImplemented) for holder in holders)

    def value(self, path: str, label: str, holder: Any, key: Any, deep: int = 0) -> None:
        """What the forward finds at holder[key]."""
        value = holder[key]
        if (id(holder), key) in self.changed or isinstance(value, torch.Tensor):
            return
        self.left -= len(value) if type(value) in _CONTAINERS else 1
        whole = type(value) not in _CONTAINERS or self.left < 0 or deep == MOST_DEEP
        if not whole and (id(value) in self.containers or _is_table(value)):
            self.out.append((path, label, holder, key, value))
            self.items(path, label, value, deep)
        else:
            self.out.append((path, label, holder, key, value if whole else _copy(value)))
        if is_plain_object(value) and id(value) not in self.seen:
            self.seen.add(id(value))
            self.attributes(path, label, value, deep)

    def items(self, path: str, label: str, container: Any, deep: int) -> None:
        """One by one. A dict may get more: it is a cache, by sizes for instance."""
        if isinstance(container, list | deque) and id(container) not in self.containers:
            self.out.append((path, f"the number of items in {label}", container, ..., len(container)))
        if not isinstance(container, set):
            keys = list(container) if isinstance(container, dict) else range(len(container))
            for key in keys:
                self.value(path, f"{label}[{key!r:.40}]", container, key, deep + 1)

    def attributes(self, path: str, label: str, value: Any, deep: int) -> None:
        """Those that the forward reads of a plain object."""
        own, read = vars(value), self.read.get(id(value), set())
        for key in sorted(read.union(own) if "__dict__" in read or not can_be_watched(type(value)) else read):
            if key in own:
                self.value(path, f"{label}.{key}", own, key, deep + 1)
            elif not key.startswith("__") and _is_plain_value(getattr(type(value), key, None)):
                self.out.append((path, f"{label}.{key}", own, key, NotImplemented))


def _own_classes(module: nn.Module) -> Iterator[type]:
    return (cls for cls in type(module).__mro__ if cls not in (nn.Module, object))


def _is_plain_value(value: Any) -> bool:
    return not callable(value) and not hasattr(value, "__get__")


def _is_table(value: Any) -> bool:
    """Tensors, or something by number or size: items are looked at one by one."""
    items = value.values() if isinstance(value, dict) else value
    by_number = isinstance(value, dict) and not all(isinstance(key, str) for key in value)
    return by_number or any(isinstance(item, torch.Tensor) or _has_tensor(item) for item in items)


def _has_tensor(item: Any) -> bool:
    return type(item) in (list, tuple) and any(isinstance(t, torch.Tensor) for t in item)


def _copy(value: Any, deep: int = 0) -> Any:
    """As it is now, however the original is changed in place."""
    made = copy.copy(value)
    if isinstance(made, set) or deep == MOST_DEEP:
        return made
    for key, item in list(made.items()) if isinstance(made, dict) else enumerate(made):
        if type(item) in _CONTAINERS:
            made[key] = _copy(item, deep + 1)
    return made

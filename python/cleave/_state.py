"""The model's state: found, kept, and put back after a forward that was only a look."""

from __future__ import annotations

import functools
import inspect
import random
import sys
import types
from collections import OrderedDict, defaultdict, deque
from collections.abc import Callable, Iterator, Sequence
from typing import Any, NamedTuple

import torch
from torch import nn

from . import _native

# What nn.Module itself keeps in its __dict__.
MODULE_TABLES = frozenset(vars(nn.Module())) - {"training"}
_HOOK_TABLES = frozenset(k for k in MODULE_TABLES if "hook" in k)


class ModuleTensor(NamedTuple):
    kind: str  # param, buffer, attr
    name: str
    holder: Any  # holder[key] is the tensor: a dict, or a list
    key: Any
    tensor: torch.Tensor

    def now(self) -> Any:
        """What is in its place now."""
        try:
            return self.holder[self.key]
        except LookupError:
            return None


class Change(NamedTuple):
    """An attribute, or an item of a container, that is not what it was."""

    where: str
    holder: Any
    key: Any
    before: Any
    after: Any
    added: bool = False  # an item that a container of a module did not have, by a number or a size


class Target:
    """What is captured: a callable and the modules whose tensors it may read.

    A module, a bound method of one, or any function; of a function the modules are found in its closure, its globals
    and the arguments of a partial."""

    def __init__(self, model: Callable[..., Any], whole: Sequence[str] = ()) -> None:
        """whole: names of classes, or paths, of modules that are run as they are, as one node each."""
        if not callable(model):
            raise TypeError(f"a module or another callable is needed, not {type(model).__name__}")
        if isinstance(model, nn.Module):
            model = getattr(model, "_orig_mod", model)  # torch.compile's wrapper
        self.call: Callable[..., Any] = model
        self.whole = tuple(whole)
        self.shapes = False  # it is on the meta device, and there is nothing to run or to compare
        self.roots: list[tuple[str, nn.Module]] = list(_roots(model))
        owner = getattr(model, "__self__", None)
        named = model if isinstance(model, nn.Module) else owner if isinstance(owner, nn.Module) else None
        self.name = type(named).__name__ if named is not None else getattr(model, "__name__", type(model).__name__)
        self._named = named

    @property
    def training(self) -> bool:
        """The model is in train mode; a function is where one of its modules is."""
        return any(m.training for m in ([self._named] if self._named is not None else [m for _, m in self.roots]))

    def adopt(self, modules: Sequence[nn.Module]) -> None:
        """Modules that ran in the forward but are no children of the roots become roots."""
        known = {id(m) for _, m in self.modules()}
        for module in modules:
            if id(module) not in known:
                self.roots.append((f"<{type(module).__name__}-{len(self.roots)}>", module))
                known.update(id(m) for m in module.modules())

    def modules(self) -> Iterator[tuple[str, nn.Module]]:
        """Every module once, with its path."""
        seen: set[int] = set()
        for prefix, root in self.roots:
            for path, module in root.named_modules():
                if id(module) not in seen:
                    seen.add(id(module))
                    yield _join(prefix, path), module

    def tensors(self) -> Iterator[ModuleTensor]:
        """Every tensor of the modules; a tied one comes again under each of its names."""
        for prefix, root in self.roots:
            for path, module in root.named_modules(remove_duplicate=False):
                yield from _module_tensors(_join(prefix, path), module)

    def signature(self) -> inspect.Signature | None:
        forward = self.call.forward if isinstance(self.call, nn.Module) else self.call
        try:
            return inspect.signature(forward)
        except (TypeError, ValueError):
            return None


def _join(*parts: str) -> str:
    return ".".join(p for p in parts if p)


def _roots(model: Any) -> Iterator[tuple[str, nn.Module]]:
    if isinstance(model, nn.Module):
        yield "", model
    elif isinstance(getattr(model, "__self__", None), nn.Module):
        yield "", model.__self__
    else:
        found: dict[str, nn.Module] = {}
        _search(model, found, 0)
        yield from found.items()


def _search(fn: Any, found: dict[str, nn.Module], depth: int) -> None:
    if depth > 3:
        return
    if isinstance(fn, functools.partial):
        for name, value in [*enumerate(fn.args), *fn.keywords.items()]:
            _offer(str(name), value, found, depth)
        _search(fn.func, found, depth + 1)
        return
    if not inspect.isfunction(fn):
        for name, value in getattr(fn, "__dict__", {}).items():  # an object with __call__
            _offer(name, value, found, depth)
        fn = type(fn).__call__
    if inspect.isfunction(fn):
        names = inspect.getclosurevars(fn)
        for name, value in [*names.nonlocals.items(), *names.globals.items()]:
            _offer(name, value, found, depth)


def _offer(name: str, value: Any, found: dict[str, nn.Module], depth: int) -> None:
    if isinstance(value, nn.Module):
        if all(value is not m for m in found.values()):
            found[name] = value
    elif isinstance(getattr(value, "__self__", None), nn.Module):
        _offer(name, value.__self__, found, depth)
    elif inspect.isfunction(value) or isinstance(value, functools.partial):
        _search(value, found, depth + 1)


def _module_tensors(path: str, module: nn.Module) -> Iterator[ModuleTensor]:
    own = vars(module)
    for kind, attribute in (("param", "_parameters"), ("buffer", "_buffers")):
        holder = getattr(module, attribute)
        if not isinstance(holder, dict):  # a scripted module keeps its tensors elsewhere; they do not move
            holder = dict(holder.items())
        for key, tensor in holder.items():
            if tensor is not None:
                yield ModuleTensor(kind, _join(path, key), holder, key, tensor)
    for key, value in own.items():
        if isinstance(value, torch.Tensor):
            yield ModuleTensor("attr", _join(path, key), own, key, value)
        elif key not in MODULE_TABLES:
            for item, tensor in _tensor_items(value):
                yield ModuleTensor("attr", f"{_join(path, key)}[{item!r}]", value, item, tensor)


def _tensor_items(value: Any) -> list[tuple[Any, torch.Tensor]]:
    """The tensors that a dict or list holds, by key."""
    if type(value) not in (dict, OrderedDict, list):
        return []
    items = enumerate(value) if isinstance(value, list) else value.items()
    return [(key, item) for key, item in items if isinstance(item, torch.Tensor)]


class RandomState:
    """All random generators that a forward can reach."""

    def __init__(self) -> None:
        self.cpu = torch.get_rng_state()
        self.cuda = torch.cuda.get_rng_state_all() if torch.cuda.is_initialized() else None  # type: ignore[no-untyped-call]
        self.python = random.getstate()
        numpy = sys.modules.get("numpy")
        self.numpy: Any = numpy.random.get_state() if numpy is not None else None

    def restore(self) -> None:
        torch.set_rng_state(self.cpu)
        if self.cuda is not None:
            torch.cuda.set_rng_state_all(self.cuda)
        random.setstate(self.python)
        if self.numpy is not None:
            sys.modules["numpy"].random.set_state(self.numpy)

    def host_differs(self, other: RandomState) -> str | None:
        """Python's or NumPy's generator moved: what a forward drew there leaves no operator."""
        if self.python != other.python:
            return "Python's random module"
        numpys = zip(self.numpy or (), other.numpy or (), strict=False)
        return "numpy.random" if any(_differs(a, b) for a, b in numpys) else None


def _differs(a: Any, b: Any) -> bool:
    if hasattr(a, "tobytes"):
        return bool(a.tobytes() != b.tobytes())
    return bool(a != b)


def _inside(value: Any) -> Any:
    """The dict, list or set in which a value keeps things that a forward can change; None if it has none."""
    if type(value) in (dict, OrderedDict, defaultdict, list, deque, set):
        return value
    if callable(value) or isinstance(value, (torch.Tensor, types.ModuleType, torch.Generator)):
        return None
    inner = getattr(value, "__dict__", None)
    return inner if type(inner) is dict else None


class _KeptArray:
    """A NumPy array as it was."""

    def __init__(self, name: str, array: Any) -> None:
        self.name, self.array, self.copy = name, array, array.copy()

    def changes(self) -> Iterator[Change]:
        if self.array.tobytes() != self.copy.tobytes():
            yield Change(self.name, self.array, None, "one content", "another")

    def restore(self) -> None:
        if self.array.tobytes() != self.copy.tobytes():
            self.array[...] = self.copy


class _KeptSlots:
    """An object that keeps its attributes in slots."""

    def __init__(self, name: str, obj: Any) -> None:
        slots = [s for cls in type(obj).__mro__ for s in getattr(cls, "__slots__", ())]
        self.name, self.obj = name, obj
        self.values = {s: getattr(obj, s) for s in slots if hasattr(obj, s)}

    def changes(self) -> Iterator[Change]:
        for slot, before in self.values.items():
            after = getattr(self.obj, slot, None)
            if after is not before and not _same_plain(before, after):
                yield Change(f"{self.name}.{slot}", self.obj, None, before, "something else")

    def restore(self) -> None:
        for slot, value in self.values.items():
            if getattr(self.obj, slot, None) is not value:
                setattr(self.obj, slot, value)


def _keep(name: str, value: Any, seen: set[int]) -> _Kept | _KeptArray | _KeptSlots | None:
    """What is needed to notice and undo changes inside a value; None when nothing inside can change, or it is kept."""
    inside = _inside(value)
    owner = value if inside is None else inside
    if id(owner) in seen or isinstance(value, (torch.Tensor, type)):
        return None
    if inside is None and hasattr(value, "tobytes") and hasattr(value, "copy"):
        seen.add(id(owner))
        return _KeptArray(name, value)
    if inside is None and hasattr(type(value), "__slots__") and type(value).__module__ not in ("builtins", "torch"):
        seen.add(id(owner))
        return _KeptSlots(name, value)
    if inside is None:
        return None
    seen.add(id(owner))
    return _Kept(name, inside, seen)


class _Kept:
    """A container as it was, and what is inside it."""

    def __init__(self, name: str, container: Any, seen: set[int], is_module: bool = False) -> None:
        self.name = name
        self.is_module = is_module  # the container has a module's attributes
        self.container = container
        self.items: Any = dict(container) if isinstance(container, dict) else list(container)
        self.inner: list[_Kept | _KeptArray | _KeptSlots] = []
        pairs = container.items() if isinstance(container, dict) else enumerate(self.items)
        for key, value in pairs:
            inner = None if key in _HOOK_TABLES else _keep(f"{name}[{key!r}]", value, seen)
            if inner is not None:
                self.inner.append(inner)

    def changes(self) -> Iterator[Change]:
        now: Any = dict(self.container) if isinstance(self.container, dict) else list(self.container)
        if isinstance(now, dict):
            for key in [*self.items, *(k for k in now if k not in self.items)]:
                before, after = self.items.get(key), now.get(key)
                if before is not after and not _same_plain(before, after):
                    added = key not in self.items and not self.is_module and not isinstance(key, str)
                    yield Change(f"{self.name}[{key!r}]", self.container, key, before, after, added)
        elif len(now) != len(self.items):
            yield Change(self.name, self.container, None, len(self.items), len(now))
        elif not isinstance(self.container, set):
            for key, (before, after) in enumerate(zip(self.items, now, strict=True)):
                if before is not after and not _same_plain(before, after):
                    yield Change(f"{self.name}[{key}]", self.container, key, before, after)
        for inner in self.inner:
            yield from inner.changes()

    def restore(self) -> None:
        for inner in self.inner:
            inner.restore()
        c = self.container
        if isinstance(c, dict):
            if list(c) != list(self.items) or any(c[k] is not v for k, v in self.items.items()):
                c.clear()
                c.update(self.items)
        elif isinstance(c, set):
            c.clear()
            c.update(self.items)
        elif len(c) != len(self.items) or any(a is not b for a, b in zip(c, self.items, strict=True)):
            c.clear()
            c.extend(self.items)


def _same_plain(a: Any, b: Any) -> bool:
    return type(a) is type(b) and type(a) in (bool, int, float, str, bytes) and bool(a == b)


class Snapshot:
    """The modules' attributes, containers, plain objects and buffers as they are now."""

    def __init__(self, target: Target) -> None:
        seen: set[int] = set()
        self.kept: list[_Kept] = []
        for path, module in target.modules():
            if isinstance(module, torch.jit.ScriptModule):
                continue
            own = vars(module)
            seen.add(id(own))
            self.kept.append(_Kept(path or target.name, own, seen, is_module=True))
        tensors = list(target.tensors())
        self.buffers = [(t.tensor, t.tensor.detach().clone()) for t in tensors if t.kind == "buffer"]
        # `tensor.data = …`, requires_grad_() and backward() change a tensor without an operator.
        leaves = [t.tensor for t in tensors if t.tensor.is_leaf]
        self.tensors = [(t, t.data, t.requires_grad, t.grad) for t in leaves]

    def changes(self) -> list[Change]:
        """Attributes and items that are not what they were; containers that a module keeps are looked into."""
        return [c for kept in self.kept for c in kept.changes()]

    def restore(self) -> None:
        for kept in self.kept:
            kept.restore()
        for tensor, alias, requires_grad, grad in self.tensors:
            if tensor.layout is torch.strided and not tensor.is_nested and tensor.data_ptr() != alias.data_ptr():
                tensor.data = alias
            if tensor.requires_grad != requires_grad:
                tensor.requires_grad_(requires_grad)
            if tensor.grad is not grad:
                tensor.grad = grad
        for tensor, data in self.buffers:
            if not _native.bits_equal(tensor, data):
                _native.copy_data(tensor, data)


def fingerprint(target: Target) -> int:
    """A number that follows every bit of the model's parameters and buffers."""
    number = 0
    for t in target.tensors():
        plain = t.tensor.layout is torch.strided and not t.tensor.is_nested
        if t.kind != "attr" and plain and t.tensor.numel():
            number = _native.fingerprint(t.tensor.detach().cpu().contiguous(), number)
    return number

"""Saves the model's state before a probe and restores it afterwards."""

from __future__ import annotations

import copy
import functools
import inspect
import operator
import random
import sys
from collections import OrderedDict, deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any, NamedTuple

import torch
from torch import nn
from torch.nn.modules import module as torch_module

from . import _native
from ._walk import (
    ATOMS,
    ENDS,
    Kind,
    can_be_watched,
    cell_of,
    fields_of,
    is_closed,
    items_of,
    kind_of,
    own_of,
    sequence_of,
    slot,
    slots_of,
)

# What nn.Module itself keeps in its __dict__.
MODULE_TABLES = frozenset(vars(nn.Module())) - {"training"}
HOOK_TABLES = frozenset(k for k in MODULE_TABLES if "hook" in k)
GLOBAL_HOOKS = tuple(k for k, v in vars(torch_module).items() if k.startswith("_global_") and isinstance(v, dict))


def item_at(holder: Any, key: Any) -> Any:
    """What a dict or list has there; None: nothing any more."""
    try:
        return holder[key]
    except LookupError:
        return None


class ModuleTensor(NamedTuple):
    kind: str  # param, buffer, attr
    name: str
    holder: Any  # holder[key] is the tensor: a dict, or a list
    key: Any
    tensor: torch.Tensor

    def now(self) -> Any:
        """What is in its place now."""
        return item_at(self.holder, self.key)


class Change(NamedTuple):
    """An attribute, or an item of a container, that is not what it was."""

    where: str
    holder: Any
    key: Any  # None: all that is in the holder
    before: Any  # NotImplemented: it was not there
    after: Any
    added: bool = False  # an item that a container did not have, by a number or a size
    outside: bool = False  # of what a function closes over, a callable holds or a class has: no state of the model
    hooks: bool = False  # a table of hooks: before and after are its items

    def is_before(self) -> bool:
        """The place is as it was."""
        if self.hooks:
            return _native.same_items(self.holder[self.key], self.before)
        return _found(self.holder, self.key) is self.before or self.key is None


def _found(holder: Any, key: Any) -> Any:
    if isinstance(holder, dict):
        return dict.get(holder, key, NotImplemented)
    if isinstance(holder, (list, deque)):
        return holder[key] if key is not None and key < len(holder) else NotImplemented
    return vars(holder).get(key, NotImplemented) if isinstance(holder, type) else slot(holder, key or "")


def put(c: Change, value: Any) -> None:
    """Puts something in the place of a change: what was there before, or after."""
    holder, key = c.holder, c.key
    if c.hooks or key is None:
        container = holder[key] if c.hooks else holder
        _refill(container, value)
    elif isinstance(holder, dict):
        if value is NotImplemented:
            holder.pop(key, None)
        else:
            holder[key] = value
    elif isinstance(holder, (list, deque)):
        holder[key] = value
    else:
        cls: Any = type if isinstance(holder, type) else object
        if value is not NotImplemented:
            cls.__setattr__(holder, key, value)
        elif _found(holder, key) is not NotImplemented:
            cls.__delattr__(holder, key)


def _refill(container: Any, items: Any) -> None:
    """Gives a container these items, and no others, whatever its class makes of it."""
    for kind in (OrderedDict, dict, list, deque, set):
        if isinstance(container, kind):
            base: Any = kind
            break
    else:  # an array
        container[...] = items
        return
    base.clear(container)
    if base is set:
        set.update(container, items)  # type: ignore[arg-type]
    elif base in (list, deque):
        base.extend(container, items)
    else:
        for key, value in items.items():
            base.__setitem__(container, key, value)


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
        self.installed: Any = None  # _install.Installed, where the first forward installs something

    @property
    def training(self) -> bool:
        """The model is in train mode; a function is where one of its modules is."""
        modules = [self._named] if self._named is not None else [m for _, m in self.roots]
        return any(getattr(m, "training", False) for m in modules)

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

    def collected(self, names: Iterable[str]) -> list[str]:
        """Those of these keywords that the forward takes as **kwargs."""
        signature = self.signature()
        parameters = signature.parameters.values() if signature is not None else ()
        if not any(p.kind is inspect.Parameter.VAR_KEYWORD for p in parameters):
            return []
        named = {p.name for p in parameters if p.kind is not inspect.Parameter.VAR_KEYWORD}
        return [k for k in names if k not in named]


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


MOST_KEPT = 200_000  # values that are looked at when a state is kept
MOST_BYTES_KEPT = 1 << 26  # of arrays
DEEPEST_OUTSIDE = 2  # containers in each other, from a function or a class on
_IGNORED = frozenset({"__getattribute__", "__dict__", "__weakref__", "__doc__", "__abstractmethods__", "_abc_impl"})


class _Kept:
    """A container as it was: a dict, a list, a deque, a set."""

    def __init__(self, container: Any, name: Callable[[], str], outside: int, items: Any = None) -> None:
        self.container, self.name = container, name
        self.outside = outside  # not 0: it is no state of the model, see _Keeper
        self.items: Any = self.now() if items is None else items

    def now(self) -> Any:
        return dict(items_of(self.container)) if isinstance(self.container, dict) else sequence_of(self.container)

    def is_same(self) -> bool:
        plain = isinstance(self.container, (dict, list))
        return _native.same_items(self.container if plain else self.now(), self.items)

    def changes(self) -> Iterator[Change]:
        now = self.now()
        if isinstance(now, dict):
            for key in [*self.items, *(k for k in now if k not in self.items)]:
                before, after = self.items.get(key, NotImplemented), now.get(key, NotImplemented)
                if before is not after and not _same_plain(before, after):
                    yield self.change(key, before, after, before is NotImplemented)
        elif isinstance(self.container, set) or len(now) != len(self.items):
            yield self.change(None, self.items, now)
        else:
            for key, (before, after) in enumerate(zip(self.items, now, strict=True)):
                if before is not after and not _same_plain(before, after):
                    yield self.change(key, before, after)

    def change(self, key: Any, before: Any, after: Any, added: bool = False) -> Change:
        name = self.name() if key is None else f"{self.name()}[{key!r}]"
        added = added and not isinstance(key, str)
        return Change(name, self.container, key, before, after, added, self.outside > 0)

    def is_log(self) -> bool:
        """It is a list outside of the model that only got longer."""
        items, now = self.items, self.now()
        return (
            self.outside > 0
            and isinstance(self.container, (list, deque))
            and len(now) > len(items)
            and _native.same_items(now[: len(items)], items)
        )

    def restore(self) -> None:
        _refill(self.container, self.items)


class _KeptHooks(_Kept):
    """A table of hooks: its numbers are other ones each time, so that what changes is the table."""

    def __init__(self, own: dict[str, Any], key: str, name: Callable[[], str], items: Any = None) -> None:
        super().__init__(own[key], name, 0, items)
        self.own, self.key = own, key

    def changes(self) -> Iterator[Change]:
        yield Change(self.name(), self.own, self.key, self.items, self.now(), hooks=True)


class _KeptArray:
    """A NumPy array as it was."""

    def __init__(self, array: Any, name: Callable[[], str], outside: int) -> None:
        self.array, self.name, self.outside, self.copy = array, name, outside, copy.copy(array)

    def is_same(self) -> bool:
        return memoryview(self.array).tobytes() == memoryview(self.copy).tobytes()

    def changes(self) -> Iterator[Change]:
        yield Change(self.name(), self.array, None, self.copy, copy.copy(self.array), False, self.outside > 0)

    def restore(self) -> None:
        _refill(self.array, self.copy)


class _KeptFields:
    """Attributes that are in no dict that can be written: slots, what a function closes over, its defaults."""

    def __init__(self, obj: Any, names: Iterable[str], name: Callable[[], str], outside: int) -> None:
        self.obj, self.name, self.outside = obj, name, outside
        self.values = {n: slot(obj, n) for n in names}

    def is_same(self) -> bool:
        return all(slot(self.obj, n) is value for n, value in self.values.items())

    def changes(self) -> Iterator[Change]:
        for n, before in self.values.items():
            after = slot(self.obj, n)
            if after is not before:
                yield Change(f"{self.name()}.{n}", self.obj, n, before, after, False, self.outside > 0)

    def restore(self) -> None:
        for change in list(self.changes()):
            put(change, change.before)


class _KeptClass:
    """The attributes of a class."""

    def __init__(self, cls: type) -> None:
        self.cls, self.values = cls, dict(vars(cls))

    def is_same(self) -> bool:
        now = vars(self.cls)
        return len(now) == len(self.values) and all(map(operator.is_, now.values(), self.values.values()))

    def changes(self) -> Iterator[Change]:
        now = vars(self.cls)
        for n in {**self.values, **now}:
            before, after = self.values.get(n, NotImplemented), now.get(n, NotImplemented)
            if n not in _IGNORED and before is not after:
                yield Change(f"{self.cls.__qualname__}.{n}", self.cls, n, before, after, False, True)

    def restore(self) -> None:
        for change in list(self.changes()):
            put(change, change.before)


def _same_plain(a: Any, b: Any) -> bool:
    return type(a) is type(b) and type(a) in (bool, int, float, str, bytes) and bool(a == b)


def same_content(a: Any, b: Any, depth: int = 8) -> bool:
    """Plain values, tensors without a graph, and lists, tuples and dicts of them: of the same types and bits."""
    if a is b or _same_plain(a, b):
        return True
    if type(a) is not type(b) or depth == 0:
        return False
    if type(a) is torch.Tensor:
        plain = not (a.requires_grad or b.requires_grad) and a.layout is b.layout is torch.strided
        return plain and a.stride() == b.stride() and bool(_native.bits_equal(a, b))
    if type(a) in (list, tuple):
        return len(a) == len(b) and all(same_content(x, y, depth - 1) for x, y in zip(a, b, strict=True))
    if type(a) is dict:
        return list(a) == list(b) and all(same_content(a[k], b[k], depth - 1) for k in a)
    return False


Place = tuple[Any, Any]  # where a value was found: a place further up, and a key; or ("", name)


def _name(place: Place) -> str:
    above, key = place
    return str(key) if above == "" else f"{_name(above)}[{key!r}]"


class _Keeper:
    """Goes through all that modules hold, and keeps it.

    What callables hold, functions close over and classes have is kept too, because the flag that says whether a forward
    has installed something may be there. But it is no state of the model: a hook may keep a count of its own.
    `outside`: 0 for the model's state, else how many containers deep below such a place."""

    def __init__(self, target: Target) -> None:
        self.kept: list[_Kept | _KeptArray | _KeptFields | _KeptClass] = []
        self.empty: list[tuple[Any, Any, Place, int]] = []  # containers with nothing in them: most of all
        self.classes: set[type] = set()  # of objects on the way
        self.seen: set[int] = set()
        self.left, self.bytes = MOST_KEPT, MOST_BYTES_KEPT
        self.waiting: deque[tuple[Any, Kind, Place, int]] = deque()
        modules = [(path, m) for path, m in target.modules() if not isinstance(m, torch.jit.ScriptModule)]
        for path, module in modules:
            self.module(("", path or target.name), vars(module))
        for key in GLOBAL_HOOKS:
            self.hooks(("", "torch"), vars(torch_module), key)
        self.offer(target.call, ("", target.name), 0)
        self.go_on()
        for cls in dict.fromkeys(
            c for x in ({type(m) for _, m in modules}, self.classes) for y in x for c in y.__mro__
        ):
            self.of_class(cls)
        self.go_on()

    def module(self, place: Place, own: dict[str, Any]) -> None:
        self.seen.add(id(own))
        self.kept.append(_Kept(own, functools.partial(_name, place), 0))
        for key, value in own.items():
            if key in HOOK_TABLES and isinstance(value, dict):
                self.hooks(place, own, key)
            else:
                self.offer(value, (place, key), 0)

    def hooks(self, place: Place, own: dict[str, Any], key: str) -> None:
        if own[key]:
            self.kept.append(_KeptHooks(own, key, functools.partial(_name, (place, key))))
            for hook in own[key].values():
                self.offer(hook, (place, key), 1)
        else:
            self.empty.append((own[key], own, (place, key), 0))

    def of_class(self, cls: type) -> None:
        if is_closed(cls) or not can_be_watched(cls):
            return
        self.kept.append(_KeptClass(cls))
        for key, value in vars(cls).items():
            if key not in _IGNORED:
                self.offer(value, (("", cls.__qualname__), key), 1)

    def offer(self, value: Any, place: Place, outside: int) -> None:
        """One more value, for later."""
        kind = kind_of(value)
        if kind not in ENDS and outside <= DEEPEST_OUTSIDE and id(value) not in self.seen:
            self.seen.add(id(value))
            self.waiting.append((value, kind, place, outside))

    def go_on(self) -> None:
        while self.waiting and self.left > 0:
            value, kind, place, outside = self.waiting.popleft()
            if kind is Kind.OBJECT and callable(value):
                outside = max(outside, 1)
            self.keep(value, kind, place, outside)

    def keep(self, value: Any, kind: Kind, place: Place, outside: int) -> None:
        deeper = outside + 1 if outside else 0
        if kind in (Kind.DICT, Kind.LIST, Kind.SET):
            self.container(value, place, outside)
        elif kind is Kind.TUPLE:
            for i, item in enumerate(sequence_of(value)):
                self.offer(item, (place, i), deeper)
        elif kind is Kind.ARRAY:
            self.array(value, place, outside)
        elif kind is Kind.FUNCTION:
            self.function(value, place, outside)
        elif kind is Kind.FIELDS:
            for field in fields_of(value):
                self.offer(getattr(value, field), (place, field), max(outside, 1))
        if kind is not Kind.FUNCTION:
            self.attributes(value, kind, place, outside)

    def container(self, value: Any, place: Place, outside: int) -> None:
        if not value and not isinstance(value, frozenset):
            self.empty.append((value, None, place, outside))
            return
        if not isinstance(value, frozenset):
            self.kept.append(_Kept(value, functools.partial(_name, place), outside))
        deeper = outside + 1 if outside else 0
        items = items_of(value) if isinstance(value, dict) else list(enumerate(sequence_of(value)))
        self.left -= len(items)
        for key, item in items:
            if type(item) not in ATOMS:
                self.offer(item, (place, key), deeper)

    def array(self, value: Any, place: Place, outside: int) -> None:
        try:
            view = memoryview(value)
        except (TypeError, ValueError):
            return
        self.bytes -= view.nbytes
        if not view.readonly and self.bytes >= 0:
            self.kept.append(_KeptArray(value, functools.partial(_name, place), outside))

    def function(self, value: Any, place: Place, outside: int) -> None:
        if is_closed(value):
            return
        outside = max(outside, 1)
        for cell in value.__closure__ or ():
            self.kept.append(_KeptFields(cell, ("cell_contents",), functools.partial(_name, place), outside))
            self.offer(cell_of(cell), place, outside)
        if value.__defaults__ or value.__kwdefaults__:
            fields = ("__defaults__", "__kwdefaults__")
            self.kept.append(_KeptFields(value, fields, functools.partial(_name, place), outside))
            self.offer(value.__defaults__, place, outside)
            self.offer(value.__kwdefaults__, place, outside)
        self.offer(value.__dict__, place, outside)

    def attributes(self, value: Any, kind: Kind, place: Place, outside: int) -> None:
        own = own_of(value)
        slots = slots_of(type(value)) if kind is Kind.OBJECT else ()
        if own is not None and id(own) not in self.seen:
            self.seen.add(id(own))
            self.container(own, place, outside)
        if slots:
            self.kept.append(_KeptFields(value, slots, functools.partial(_name, place), outside))
            for n in slots:
                self.offer(slot(value, n), (place, n), outside + 1 if outside else 0)
        if own is not None or slots:
            self.classes.add(type(value))


class Snapshot:
    """The modules' attributes, containers, objects, hooks and buffers as they are now, with what functions and classes
    keep for them."""

    def __init__(self, target: Target) -> None:
        keeper = _Keeper(target)
        self.kept, self.empty = keeper.kept, keeper.empty
        self.classes = {cls for cls in keeper.classes if can_be_watched(cls)}  # of objects that the modules hold
        tensors = list(target.tensors())
        self.buffers = [(t.tensor, t.tensor.detach().clone()) for t in tensors if t.kind == "buffer"]
        # `tensor.data = …`, requires_grad_() and backward() change a tensor without an operator.
        leaves = [t.tensor for t in tensors if t.tensor.is_leaf]
        self.tensors = [(t, t.data, t.requires_grad, t.grad) for t in leaves]

    def _all_moved(self) -> Iterator[Any]:
        yield from (kept for kept in self.kept if not kept.is_same())
        for container, own, place, outside in self.empty:
            if container:
                name = functools.partial(_name, place)
                items: Any = {} if isinstance(container, dict) else []
                if own is not None:
                    yield _KeptHooks(own, place[1], name, items)
                else:
                    yield _Kept(container, name, outside, items)

    def moved(self) -> tuple[list[Any], list[Any]]:
        """What has changed. If only lists outside of the model were appended to (logs of what the forward does), they
        are the second result and are left alone."""
        found = list(self._all_moved())
        logs = [kept for kept in found if isinstance(kept, _Kept) and kept.is_log()]
        return ([], logs) if len(logs) == len(found) else (found, [])

    def changes(self) -> tuple[list[Change], list[Any]]:
        """Attributes and items that have changed, to any depth; and lists outside of the model to which the forward
        appends."""
        moved, logs = self.moved()
        return [c for kept in moved for c in kept.changes()], [kept.container for kept in logs]

    def restore(self) -> None:
        for kept in self.moved()[0]:
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


class Weights(NamedTuple):
    """Which weights a model has: digests of its parameters and buffers by name, and their sum (src/file/artifact.c)."""

    digests: dict[str, int]

    @property
    def version(self) -> int:
        """A number that follows every bit of them."""
        return sum(self.digests.values()) % 2**63


def fingerprint(target: Target) -> Weights:
    """Which weights the model has now."""
    digests = {}
    for t in target.tensors():
        plain = t.tensor.layout is torch.strided and not t.tensor.is_nested
        if t.kind != "attr" and plain and t.tensor.numel():
            digests[t.name] = _native.weight_digest(t.name, t.tensor)
    return Weights(digests)

"""Checks before a run that the model still has the values that the forward read at capture.

From each attribute that it reads the walk goes on into containers, objects, functions and what these close over, to any
depth, and notes what is there (_native.Want). What is beyond the bounds is named, never silently left out. The check
before each run is C (_native_checks.c)."""

from __future__ import annotations

import types
from collections.abc import Iterable, Iterator, Sequence
from typing import Any, NamedTuple

import torch
from torch import nn
from torch.nn.modules import module as torch_module

from . import _native
from ._install import Installed
from ._native import (
    PART_CALL,
    PART_CELL,
    PART_CLASS,
    PART_FIELD,
    PART_FOUND,
    PART_FUNCTION,
    PART_ITEM,
    PART_KEY,
    PART_OWN,
    PART_SELF,
    PART_TYPE,
    Checks,
    Want,
)
from ._state import GLOBAL_HOOKS, HOOK_TABLES, MODULE_TABLES, Change, ModuleTensor, Target
from ._tables import may_grow
from ._walk import Kind, cell_of, fields_of, is_closed, items_of, kind_of, own_of, sequence_of, slot, slots_of

DATA = (bool, int, float, complex, str, bytes, tuple, list, dict, set, frozenset, type(None))
MOST_ITEMS = 10_000  # values that are looked at before every run, in all
MOST_BYTES = 1 << 16  # of arrays, in all
MOST_DEEP = 100  # containers in each other

ANY = Want(_native.WANT_ANY, None)
TENSOR = Want(_native.WANT_TENSOR, None)
ABSENT = Want(_native.WANT_ABSENT, None)
_NOTHING = object()
_TENSOR_FIELDS = ("shape", "dtype", "device", "layout")
_HOOKS = {  # backward hooks see, and may change, the gradients of a forward
    f"_{kind}_{which}": f"{kind} hooks" for kind in ("forward", "backward") for which in ("hooks", "pre_hooks")
}
_HOOK_FLAGS = tuple(sorted(HOOK_TABLES - set(_HOOKS) - {k for k in HOOK_TABLES if "state_dict" in k}))


class Use(NamedTuple):
    """What recordings tell of how forwards use their modules."""

    read: set[tuple[int, str]]  # id of a module or an object, attribute
    watched: set[type]  # classes of which it was seen which attributes are read
    changed: set[tuple[int, Any]]  # id of a holder, key: attributes and items that the forward changes itself
    looked_up: dict[int, set[Any] | None]  # by id of a dict that may be a cache: keys that are read; None: all of it
    compares: bool  # code ran that may ask whether two tensors are the same object
    asked: set[
        tuple[int, str]
    ]  # id of a tensor, what was asked for: "place" in memory (or id), "requires_grad", "grad"
    outside: set[int]  # ids of containers that the forward changes, and that are not the model's


Root = tuple[Any, ...]  # owner, label, base, place, key, want, as _native.Checks takes them


class Found(NamedTuple):
    checks: Checks
    unwatched: list[str]  # what is beyond the bounds
    tables: list[Any]  # dicts that may be caches, and of which it is not known how they are read


def module_checks(target: Target, use: Use, operands: set[str], same: Sequence[int] | None, flags: list[int]) -> Found:
    """operands: names of module tensors that operators read. same: of each input the first that is the same tensor,
    where the forward may ask for that. flags: of each input whether it requires grad; -1: nobody asks."""
    tensors = list({(id(t.holder), t.key): t for t in target.tensors()}.values())
    read = {id(t.tensor) for t in tensors if t.name in operands}
    walk = _Walk(use, {(id(t.holder), t.key): t.name for t in tensors}, read, target.installed)
    walk.asked_of(tensors)
    for path, module in target.modules():
        if not isinstance(module, torch.jit.ScriptModule) and id(module) not in walk.installed_modules:
            walk.module(path, module)
    walk.installed()
    walk.globals()
    if not isinstance(target.call, nn.Module):
        walk.root("the captured function", target.name, target.call, PART_SELF, None, target.call)
    walk.finish()
    tied = tuple(_places(tensors, read, use))
    checks = Checks(tuple(_in_order(walk.roots)), tied, None if same is None else list(same), flags)
    return Found(checks, walk.unwatched, walk.tables)


def stage_checks(
    whole: Checks, own: Iterable[tuple[str, tuple[Any, Any], tuple[Any, Any]]], takes_inputs: bool
) -> Checks:
    """For a stage by itself, which has its own mode: all but the training flags, and that the stage and the model hold
    the same tensors. own: name, place in the model, place in the stage. takes_inputs: it gets the inputs of the model,
    of which the forward may ask which are the same and which require grad."""
    roots, tied, inputs, flags = whole.made_of
    same = list(tied)
    known = {(id(holder), key): first for _, holder, key, first in tied}
    for name, model, stage in own:
        first = known.get((id(model[0]), model[1]))
        if first is None:
            first = len(same)
            same.append((name, *model, first))
        same.append((f"{name} of the stage", *stage, first))
    roots = tuple(root for root in roots if root[1] != "training")
    return Checks(roots, tuple(same), *((inputs, flags) if takes_inputs else (None, [])))


def _in_order(roots: Iterable[Root]) -> list[Root]:
    """Items of one dict together, what is in place of its value first; all that is no item of a dict last."""
    items: dict[int, tuple[list[Root], list[Root]]] = {}
    others = []
    for root in roots:
        if root[3] != PART_KEY or not isinstance(root[2], dict) or len(root) > 6:  # with what else may be there
            others.append(root)
        else:
            items.setdefault(id(root[2]), ([], []))[_is_structured(root[5])].append(root)
    return [*(root for pair in items.values() for part in pair for root in part), *others]


def _is_structured(want: Any) -> bool:
    return isinstance(want, Want) and want.structured


def _places(tensors: Iterable[ModuleTensor], operands: set[int], use: Use) -> Iterator[tuple[str, Any, Any, int]]:
    """A tensor that has several names is one value in a plan, and must stay one. Where the forward may ask whether two
    are the same, all that it can read must stay what they are to each other."""
    places = [t for t in tensors if (id(t.holder), t.key) not in use.changed]
    count: dict[int, int] = {}
    for t in places:
        count[id(t.tensor)] = count.get(id(t.tensor), 0) + 1
    first: dict[int, int] = {}
    n = 0
    for t in places:
        if use.compares or (count[id(t.tensor)] > 1 and id(t.tensor) in operands):
            yield (t.name, t.holder, t.key, first.setdefault(id(t.tensor), n))
            n += 1


class _Walk:
    def __init__(
        self, use: Use, live: dict[tuple[int, Any], str], operands: set[int], installed: Installed | None
    ) -> None:
        """live: where runs read tensors, with their names. installed: what the first forward installs, and what is
        there now."""
        self.changes: Sequence[Change] = installed.changes if installed is not None else ()
        self.installed_modules = installed.modules if installed is not None else {}
        self.use = use._replace(changed=use.changed | installed.places) if installed is not None else use
        use = self.use
        self.live, self.operands = live, operands
        self.holders = {number for number, _ in live}  # containers that runs read tensors out of
        self.containers = {number for number, _ in use.changed}  # in which the forward changes something
        self.read: dict[int, set[str]] = {}
        for number, name in use.read:
            self.read.setdefault(number, set()).add(name)
        self.made: dict[int, Any] = {}  # by id of a value: what is wanted of it
        self.classes: set[tuple[type, str]] = set()
        self.empty: dict[type, Want] = {}
        self.items, self.bytes = MOST_ITEMS, MOST_BYTES
        self.here = ""
        self.unwatched: list[str] = []
        self.tables: list[Any] = []
        self.guarded: list[tuple[Want, dict[str, Any]]] = []  # objects that find attributes in their own way
        self.roots: list[tuple[Any, ...]] = []

    # ---- places in the model

    def root(self, owner: str, label: str, base: Any, place: int, key: Any, value: Any) -> None:
        """What is there now has to be there. Everything below the same label counts as the same."""
        self.here = f"{label} of {owner}"
        self.roots.append((owner, label, base, place, key, self.want(value, 0)))

    def absent(self, owner: str, label: str, holders: Iterable[dict[str, Any]]) -> None:
        """A name that is not there, or only in the class: once it is, the forward sees something else."""
        self.roots.extend((owner, label, holder, PART_KEY, label, ABSENT) for holder in holders)

    def module(self, path: str, module: nn.Module) -> None:
        own, owner = vars(module), f"module {path or '(the root)'}"
        self.roots.append((owner, "the class", module, PART_TYPE, None, type(module)))
        self.roots.append((owner, "training", own, PART_KEY, "training", own.get("training", ABSENT)))
        if (id(own), "forward") in self.use.changed:
            pass
        elif "forward" in own:
            self.root(owner, "forward", own, PART_KEY, "forward", own["forward"])
        else:
            self.absent(owner, "forward", (own,))
            self.class_attribute(type(module), "forward")
        for name, label in _HOOKS.items():
            self.table(owner, label, own, name)
        if any(own.get(name) for name in _HOOKS):
            for name in _HOOK_FLAGS:
                self.table(owner, "flags of hooks", own, name)
        self.named(owner, "children", own, "_modules")
        read = self.read.get(id(module), set())
        if "__dict__" in read or any("__getattribute__" in vars(cls) for cls in _own_classes(module)):
            read = read.union(own)
            self.names(owner, own)
        self.data_of_classes(module)
        for name, label in (("_parameters", "parameters"), ("_buffers", "buffers")):
            if name in read:
                self.named(owner, label, own, name)
            else:
                if id(own[name]) in self.holders:
                    self.roots.append((owner, label, own, PART_KEY, name, Want(_native.WANT_IS, own[name])))
                self.roots.extend((owner, k, own[name], PART_KEY, k, None) for k, v in own[name].items() if v is None)
        for key in sorted(read - MODULE_TABLES - {"training", "forward"}):
            self.attribute(owner, module, own, key)
        for name in ("_parameters", "_buffers"):
            for key, tensor in items_of(own[name]):
                self.attributes_of_tensor(owner, key, tensor)

    def names(self, owner: str, own: dict[str, Any]) -> None:
        """Which attributes there are: the forward can ask for any."""
        if not any(holder == id(own) for holder, _ in self.use.changed):
            self.roots.append((owner, "attributes", own, PART_SELF, None, self.any_of(own)))

    def any_of(self, own: dict[str, Any]) -> Want:
        """These names, whatever they stand for."""
        want = Want(_native.WANT_DICT, own)
        for key in own:
            want.add(PART_ITEM, key, ANY)
        return want

    def data_of_classes(self, module: nn.Module) -> None:
        """Plain values in the module's classes: `type(self).k` is seen by nobody."""
        for cls in _own_classes(module):
            if cls.__module__.split(".")[0] != "torch":
                for key, value in vars(cls).items():
                    if isinstance(value, DATA) and not key.startswith("_"):
                        self.class_attribute(cls, key)

    def attributes_of_tensor(self, owner: str, name: str, tensor: torch.Tensor) -> None:
        """What somebody has put on a tensor of the model."""
        own: dict[str, Any] = getattr(tensor, "__dict__", {})
        for key in own:
            if (id(own), key) not in self.use.changed:
                self.root(owner, f"{name}.{key}", own, PART_KEY, key, own[key])

    def attribute(self, owner: str, module: nn.Module, own: dict[str, Any], key: str) -> None:
        """What the forward finds when it reads an attribute of a module."""
        tables = (module._parameters, module._buffers)
        if key in own:
            if (id(own), key) not in self.use.changed:
                self.place(owner, key, own, key)
        elif any(key in table for table in tables):
            for table in tables:
                if table.get(key) is not None and (id(table), key) not in self.use.changed:
                    self.place(owner, key, table, key)
        elif key in module._modules or (id(own), key) in self.use.changed or key.startswith("__"):
            return
        elif _look_up(type(module), key) is not _NOTHING:
            if not (key.startswith("_") and hasattr(nn.Module, key)):
                self.absent(owner, key, (own,))
                self.class_attribute(type(module), key)
        else:
            self.absent(owner, key, (own, *tables))
            self.class_attribute(type(module), key)

    def place(self, owner: str, label: str, holder: Any, key: Any) -> None:
        """A value, or a tensor that runs read there: of one that no operator reads the forward may know the shape."""
        value, name = holder[key], self.live.get((id(holder), key))
        if name is None or not isinstance(value, torch.Tensor):
            self.root(owner, label, holder, PART_KEY, key, value)
        elif id(value) in self.operands:
            self.roots.append((owner, name, holder, PART_KEY, key, TENSOR))
        else:
            self.roots.append((owner, label, holder, PART_KEY, key, self.shape(value)))

    def table(self, owner: str, label: str, own: dict[str, Any], name: str) -> None:
        """Hooks, in their order, whatever their numbers are."""
        hooks = own.get(name)
        if not isinstance(hooks, dict) or (id(own), name) in self.use.changed:
            return
        want = self.empty.get(type(hooks))
        if hooks or want is None:
            self.here = f"{label} of {owner}"
            want = self.hooks(hooks)
            if not hooks:
                self.empty[type(hooks)] = want
        self.roots.append((owner, label, own, PART_KEY, name, want))

    def named(self, owner: str, label: str, own: dict[str, Any], name: str) -> None:
        """Children, parameters or buffers: these names in this order. Tensors are read by each run."""
        table = own.get(name)
        if not isinstance(table, dict) or any(
            c.holder is table and isinstance(c.after, nn.Module) for c in self.changes
        ):
            return  # the latter: children that the first forward makes, see installed
        loose = id(table) in self.containers
        want = Want(_native.WANT_LIKE if loose else _native.WANT_DICT, table, id(table) in self.holders)
        for key, value in items_of(table):
            if (id(table), key) not in self.use.changed:
                part = TENSOR if isinstance(value, torch.Tensor) else value
                want.add(PART_KEY if loose else PART_ITEM, key, part)
        self.roots.append((owner, label, own, PART_KEY, name, want))

    def installed(self) -> None:
        """What the first forward installs is there, or nothing of it is."""
        for table in {id(c.holder): c.holder for c in self.changes if isinstance(c.after, nn.Module)}.values():
            if isinstance(table, dict):
                before = Want(_native.WANT_DICT, table)
                after = Want(_native.WANT_DICT, table)
                gone = {c.key: c.before for c in self.changes if c.holder is table}
                for key, child in items_of(table):
                    after.add(PART_ITEM, key, self.want(child, 1))
                    if gone.get(key) is not NotImplemented:
                        before.add(PART_ITEM, key, gone.get(key, child))
                self.roots.append(("the model", "children", table, PART_SELF, None, after, before))
        for c in self.changes:
            self.installed_at(c)

    def installed_at(self, c: Change) -> None:
        self.here = c.where
        if c.hooks:
            table = type(c.holder[c.key])
            wants = [self.hooks(table(hooks)) for hooks in (c.after, c.before)]
        elif c.key is None or isinstance(c.after, (torch.Tensor, nn.Module)) or not _says_something(c):
            return
        else:
            wants = [ABSENT if value is NotImplemented else self.want(value, 1) for value in (c.after, c.before)]
        place = PART_CLASS if isinstance(c.holder, type) else PART_KEY if isinstance(c.holder, dict) else PART_FIELD
        self.roots.append(("the model", c.where, c.holder, place, c.key, *wants))

    def hooks(self, table: dict[Any, Any]) -> Want:
        want = Want(_native.WANT_VALUES, table)
        for key, hook in items_of(table):
            want.add(PART_ITEM, key, self.want(hook, 1))
        return want

    def made_module(self, module: nn.Module) -> Want:
        """One that the first forward makes: any that is like it. Its tensors are read by each run."""
        want = self.begin(_native.WANT_LIKE, module)
        own, read = vars(module), self.read.get(id(module), set())
        for name in ("training", *sorted(read - MODULE_TABLES - {"training"})):
            value = own.get(name, _NOTHING)
            want.add(PART_OWN, name, TENSOR if isinstance(value, torch.Tensor) else self.item(own, name, value, 1))
        for name in _HOOKS:
            want.add(PART_OWN, name, self.hooks(own[name]))
        for name in ("_modules", "_parameters", "_buffers"):
            table = Want(_native.WANT_DICT, own[name])
            for key, value in items_of(own[name]):
                table.add(PART_ITEM, key, TENSOR if isinstance(value, torch.Tensor) else self.want(value, 1))
            want.add(PART_OWN, name, table)
        return want

    def globals(self) -> None:
        for name in GLOBAL_HOOKS:
            self.table("torch", name.strip("_").replace("_", " "), vars(torch_module), name)

    def asked_of(self, tensors: Iterable[ModuleTensor]) -> None:
        """Tensors whose place in memory the forward knows have to stay where they are; what it knows to be frozen, to
        be trained, or to have no gradient, has to stay so."""
        for t in tensors:
            for name, says in (("requires_grad", (t.name, "requires_grad")), ("grad", ("the model", t.name))):
                if (id(t.tensor), name) in self.use.asked:
                    flag = Want(_native.WANT_LIKE, t.tensor)
                    flag.add(PART_FIELD, name, getattr(t.tensor, name))
                    self.roots.append((*says, t.holder, PART_KEY, t.key, flag))
            if (id(t.tensor), "place") in self.use.asked:
                there = Want(_native.WANT_LIKE, t.tensor)
                there.add(PART_CALL, "data_ptr", t.tensor.data_ptr())
                for want in (Want(_native.WANT_IS, t.tensor), there):
                    self.roots.append(("the model", t.name, t.holder, PART_KEY, t.key, want))

    def class_attribute(self, cls: type, key: str) -> None:
        self.classes.add((cls, key))

    def finish(self) -> None:
        """Classes come last: what they hold may be read of further classes."""
        done: set[tuple[type, str]] = set()
        while self.classes - done:
            for cls, key in sorted(self.classes - done, key=lambda c: (c[0].__qualname__, c[1])):
                done.add((cls, key))
                if any((id(c), key) in self.use.changed for c in cls.__mro__):
                    continue
                owner, value = f"class {cls.__qualname__}", _look_up(cls, key)
                if value is _NOTHING:
                    self.roots.append((owner, key, cls, PART_CLASS, key, ABSENT))
                else:
                    self.root(owner, key, cls, PART_CLASS, key, value)
        self.guard()

    def guard(self) -> None:
        """While an object's attributes stay as they are, so do those that its class makes of them: then nothing of it
        has to run. This is no more than that, so that nothing new is watched because of it."""
        tables, unwatched, made, guarded = list(self.tables), list(self.unwatched), self.made, list(self.guarded)
        for want, own in guarded:
            self.made = {}  # a want that a guard has looked at in vain would count as looked at where it is checked
            whole = Want(_native.WANT_DICT, own)
            for key, item in items_of(own):
                whole.add(PART_ITEM, key, self.item(own, key, item, 1))
            if self.unwatched == unwatched:
                want.set_guard(whole)
            self.unwatched = list(unwatched)
        self.tables, self.made, self.guarded = tables, made, guarded

    # ---- values

    def want(self, value: Any, deep: int) -> Any:
        """What a value looks like: the value itself where nothing in it can change."""
        kind = kind_of(value)
        self.items -= 1
        if kind is Kind.FIXED or (kind is Kind.MODULE and id(value) not in self.installed_modules):
            return value
        if id(value) in self.use.outside:
            return ANY
        if kind is Kind.TENSOR:
            return Want(_native.WANT_IS, value)
        made = self.made.get(id(value))
        if made is None:
            self.made[id(value)] = made = self.make(value, kind, deep)
        return made

    def make(self, value: Any, kind: Kind, deep: int) -> Any:
        if self.items < 0 or deep > MOST_DEEP:
            return self.beyond(value)
        if kind is Kind.MODULE:
            return self.made_module(value)
        if kind is Kind.TUPLE:
            return self.tuple(value, deep)
        if kind is Kind.LIST:
            return self.list(value, deep)
        if kind is Kind.SET:
            return self.set(value, deep)
        if kind is Kind.DICT:
            return self.dict(value, deep)
        if kind is Kind.ARRAY:
            return self.array(value)
        if kind is Kind.FUNCTION:
            return self.function(value, deep)
        if kind is Kind.REFERENCE:
            return self.reference(value, deep)
        if kind is Kind.FIELDS and kind_of(getattr(value, "__self__", value)) is Kind.FIXED:
            return value  # a function of a library
        want = self.begin(_native.WANT_LIKE, value)
        for name in fields_of(value) if kind is Kind.FIELDS else ():
            want.add(PART_FIELD, name, self.want(getattr(value, name), deep + 1))
        self.attributes(want, value, deep)
        return want

    def beyond(self, value: Any) -> Want:
        if self.here not in self.unwatched:
            self.unwatched.append(self.here)
        return Want(_native.WANT_IS, value)

    def begin(self, kind: int, value: Any) -> Want:
        """Noted before its parts are looked at, which may lead back to it."""
        want = self.made[id(value)] = Want(kind, value, id(value) in self.holders)
        return want

    def tuple(self, value: Any, deep: int) -> Any:
        items = sequence_of(value)
        wants = [self.want(item, deep + 1) for item in items]
        if own_of(value) is None and all(a is b for a, b in zip(wants, items, strict=True)):
            return value
        want = self.begin(_native.WANT_LIST, value)
        for i, part in enumerate(wants):
            want.add(PART_ITEM, i, part)
        self.attributes(want, value, deep)
        return want

    def list(self, value: Any, deep: int) -> Want:
        loose = id(value) in self.containers
        want = self.begin(_native.WANT_PREFIX if loose else _native.WANT_LIST, value)
        for i, item in enumerate(sequence_of(value)):
            want.add(PART_ITEM, i, self.item(value, i, item, deep))
        self.attributes(want, value, deep)
        return want

    def set(self, value: Any, deep: int) -> Want:
        if id(value) in self.containers:
            return ANY
        want = self.begin(_native.WANT_SET, value)
        for i, item in enumerate(sequence_of(value)):
            want.add(PART_ITEM, i, self.want(item, deep + 1))
        self.attributes(want, value, deep)
        return want

    def dict(self, value: Any, deep: int) -> Want:
        """One that forwards only look up keys in may get more items: it is a cache, by sizes for instance."""
        keys = self.use.looked_up.get(id(value))
        if id(value) not in self.use.looked_up and (id(value) in self.containers or may_grow(value)):
            self.tables.append(value)
        if keys is None:
            want = self.begin(_native.WANT_DICT, value)
            for key, item in items_of(value):
                want.add(PART_ITEM, key, self.item(value, key, item, deep))
        else:
            want = self.begin(_native.WANT_LIKE, value)
            for key in keys:
                want.add(PART_KEY, key, self.item(value, key, dict.get(value, key, _NOTHING), deep))
        self.attributes(want, value, deep)
        return want

    def item(self, holder: Any, key: Any, value: Any, deep: int) -> Any:
        if (id(holder), key) in self.use.changed:
            return ANY
        if value is _NOTHING:
            return ABSENT
        if isinstance(value, torch.Tensor) and (id(holder), key) in self.live:
            return TENSOR if id(value) in self.operands else self.shape(value)
        return self.want(value, deep + 1)

    def shape(self, tensor: torch.Tensor) -> Want:
        """What a forward can know of a tensor without an operator."""
        want = Want(_native.WANT_LIKE, tensor)
        for name in _TENSOR_FIELDS:
            want.add(PART_FIELD, name, getattr(tensor, name))
        if tensor.layout is torch.strided and not tensor.is_nested:
            want.add(PART_CALL, "stride", tensor.stride())
        return want

    def array(self, value: Any) -> Any:
        try:
            size = memoryview(value).nbytes
        except (TypeError, ValueError):  # no plain memory, as dates of NumPy
            return value
        self.bytes -= size
        return self.beyond(value) if self.bytes < 0 else Want(_native.WANT_BYTES, value)

    def reference(self, value: Any, deep: int) -> Any:
        target = value()
        if target is None or isinstance(target, torch.Tensor):  # torch's own, in layers that keep a list of weights
            return value if target is None else ANY
        want = self.begin(_native.WANT_LIKE, value)
        want.add(PART_CALL, "__call__", self.want(target, deep + 1))
        return want

    def function(self, value: Any, deep: int) -> Any:
        """Its code, and what it takes from elsewhere than its arguments."""
        if is_closed(value):
            return value
        want = self.begin(_native.WANT_LIKE, value)
        for name in ("__code__", "__globals__"):
            want.add(PART_FUNCTION, name, getattr(value, name))
        for name in ("__defaults__", "__kwdefaults__"):
            if getattr(value, name) is not None:
                want.add(PART_FUNCTION, name, self.want(getattr(value, name), deep + 1))
        for i, (name, cell) in enumerate(zip(value.__code__.co_freevars, value.__closure__ or (), strict=True)):
            if (id(cell), "cell_contents") not in self.use.changed:
                found = cell_of(cell)
                part = ABSENT if found is NotImplemented else self.want(found, deep + 1)
                want.add(PART_CELL, (i, name), part)
        if value.__dict__:
            want.add(PART_FIELD, "__dict__", self.want(value.__dict__, deep + 1))
        return want

    def attributes(self, want: Want, value: Any, deep: int) -> None:
        """Those that the forward reads; all where that cannot be seen."""
        own, cls = own_of(value), type(value)
        slots = slots_of(cls) if kind_of(value) is Kind.OBJECT else ()
        if own is None and not slots:
            return
        names = self.read.get(id(value), set())
        if "__dict__" in names or cls not in self.use.watched:
            names = names.union(own or (), slots)
        changed = any(holder == id(own) for holder, _ in self.use.changed)
        if own is not None and cls is types.SimpleNamespace and not changed:
            want.add(PART_FIELD, "__dict__", self.any_of(own))  # nobody sees what it is asked for in vain
        found = [self.read_attribute(want, value, own if own is not None else {}, name, deep) for name in sorted(names)]
        if own is not None and any(found):
            self.guarded.append((want, own))

    def read_attribute(self, want: Want, value: Any, own: Any, name: str, deep: int) -> bool:
        """True: the class finds it in its own way."""
        cls = type(value)
        found = _look_up(cls, name)
        if isinstance(found, types.MemberDescriptorType):
            if (id(value), name) not in self.use.changed:
                there = slot(value, name)
                want.add(PART_FIELD, name, ABSENT if there is NotImplemented else self.want(there, deep + 1))
        elif name in own and not hasattr(type(found), "__set__"):
            want.add(PART_OWN, name, self.item(own, name, own[name], deep))
        elif name.startswith("__") or (id(own), name) in self.use.changed:
            return False
        elif found is not _NOTHING:
            self.class_attribute(cls, name)
            if own_of(value) is not None and not hasattr(type(found), "__set__"):
                want.add(PART_OWN, name, ABSENT)
        elif hasattr(cls, "__getattr__") or _finds_itself(cls):
            there = getattr(value, name, _NOTHING)
            want.add(PART_FOUND, name, ABSENT if there is _NOTHING else self.want(there, deep + 1))
            return True
        else:
            self.class_attribute(cls, name)
            want.add(PART_OWN, name, ABSENT)
        return False


def _says_something(c: Change) -> bool:
    """A flag or a method: what was installed goes with it. Sizes and caches have lives of their own."""
    flags = (bool, type(None), str)
    return callable(c.after) or all(isinstance(v, flags) or v is NotImplemented for v in (c.before, c.after))


def _own_classes(module: nn.Module) -> Iterator[type]:
    return (cls for cls in type(module).__mro__ if cls not in (nn.Module, object))


def _finds_itself(cls: type) -> bool:
    """It has an idea of its own of what its attributes are."""
    found: Any = cls.__getattribute__
    return found is not object.__getattribute__


def _look_up(cls: type, name: str) -> Any:
    """What a class has under a name, as it is there."""
    return next((vars(c)[name] for c in cls.__mro__ if name in vars(c)), _NOTHING)

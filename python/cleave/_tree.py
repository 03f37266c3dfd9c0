"""Takes nested inputs and outputs apart into tensors and a Spec, and puts them together again.

A Spec remembers the structure with its live Python types. `tokens` turns it into the form that plans keep."""

from __future__ import annotations

import copy
import dataclasses
import enum
import types
from collections import OrderedDict, defaultdict
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import torch
from torch.utils import _pytree

from .errors import CaptureError, InputError

# The order of enum tree_kind in src/plan/plan.h.
(
    T_NONE,
    T_BOOL,
    T_INT,
    T_FLOAT,
    T_COMPLEX,
    T_STR,
    T_BYTES,
    T_VALUE,
    T_OPAQUE,
    T_LIST,
    T_TUPLE,
    T_DICT,
    T_OBJECT,
) = range(13)

Token = tuple[int, int, Any]
PLAIN: dict[type, int] = {
    bool: T_BOOL,
    int: T_INT,
    float: T_FLOAT,
    complex: T_COMPLEX,
    str: T_STR,
    bytes: T_BYTES,
}
MAX_DEPTH = 64


class Spec:
    """One level of a structure. kind: leaf, const, formula (a number that each run computes), list, tuple, dict,
    dataclass, mapping_object, object, pytree."""

    __slots__ = ("children", "cls", "context", "keys", "kind", "value")

    def __init__(
        self,
        kind: str,
        cls: Any = object,
        children: Sequence[Spec] = (),
        keys: Sequence[Any] = (),
        value: Any = None,
        context: Any = None,
    ) -> None:
        self.kind = kind
        self.cls = cls
        self.children = list(children)
        self.keys = list(keys)
        self.value = value
        self.context = context


LEAF = Spec("leaf", torch.Tensor)


# Objects that are what they are: never looked into, compared by identity or equality.
_FIXED: tuple[type, ...] = (torch.nn.Module, torch.Generator, type, types.ModuleType, types.FunctionType)
_FIXED += (types.BuiltinFunctionType, types.MethodType, torch.dtype, torch.device, torch.layout, torch.memory_format)
_FIXED += (enum.Enum, range, slice)
_PLAIN_OBJECTS = (torch.dtype, torch.device, torch.layout, torch.memory_format, enum.Enum)


def _holds_tensor(obj: Any, seen: set[int]) -> bool:
    if isinstance(obj, torch.Tensor):
        return True
    if isinstance(obj, _FIXED) or type(obj) in PLAIN or id(obj) in seen:
        return False
    seen.add(id(obj))
    if isinstance(obj, dict):
        return any(_holds_tensor(v, seen) for v in obj.values())
    if isinstance(obj, (list, tuple, set, frozenset)):
        return any(_holds_tensor(v, seen) for v in obj)
    inner = getattr(obj, "__dict__", None)
    return isinstance(inner, dict) and any(_holds_tensor(v, seen) for v in inner.values())


def _is_model_output(obj: Any) -> bool:
    return isinstance(obj, dict) and dataclasses.is_dataclass(obj)


def _is_of_fields(obj: Any) -> bool:
    """A dataclass that PyTorch knows as nothing but its fields, whose names a file then has."""
    if not dataclasses.is_dataclass(obj):
        return False
    parts, _ = _pytree.SUPPORTED_NODES[type(obj)].flatten_fn(obj)
    fields = [v for f in dataclasses.fields(obj) if (v := getattr(obj, f.name, None)) is not None]
    return len(parts) == len(fields) and all(a is b for a, b in zip(parts, fields, strict=True))


class _Flattener:
    def __init__(self) -> None:
        self.leaves: list[torch.Tensor] = []
        self.paths: list[str] = []
        self.open: set[int] = set()

    def walk(self, obj: Any, path: str, depth: int = 0) -> Spec:
        if isinstance(obj, torch.Tensor):
            self.leaves.append(obj)
            self.paths.append(path)
            return LEAF if type(obj) in (torch.Tensor, torch.nn.Parameter) else Spec("leaf", type(obj))
        if obj is None or type(obj) in PLAIN:
            return Spec("const", type(obj), value=obj)
        if id(obj) in self.open or depth > MAX_DEPTH:
            raise CaptureError(f"{path or 'the value'} is nested in itself or over {MAX_DEPTH} levels deep")
        self.open.add(id(obj))
        try:
            return self._container(obj, path, depth + 1)
        finally:
            self.open.discard(id(obj))

    def _many(self, items: Any, depth: int) -> list[Spec]:
        return [self.walk(v, p, depth) for p, v in items]

    def _container(self, obj: Any, path: str, depth: int) -> Spec:
        cls = type(obj)
        if isinstance(obj, tuple):
            names = getattr(cls, "_fields", None)
            paths = [f"{path}.{n}" if names else f"{path}[{i}]" for i, n in enumerate(names or obj)]
            return Spec("tuple", cls, self._many(zip(paths, obj, strict=False), depth))
        if cls is list:
            return Spec("list", cls, self._many(((f"{path}[{i}]", v) for i, v in enumerate(obj)), depth))
        if _is_model_output(obj):
            keys = list(obj.keys())
            return Spec("mapping_object", cls, self._many(((f"{path}.{k}", obj[k]) for k in keys), depth), keys)
        if cls in (dict, OrderedDict, defaultdict):
            keys = list(obj.keys())
            factory = obj.default_factory if isinstance(obj, defaultdict) else None
            children = self._many(((f"{path}[{k!r}]", obj[k]) for k in keys), depth)
            return Spec("dict", cls, children, keys, context=factory)
        if cls in _pytree.SUPPORTED_NODES and not _is_of_fields(obj):
            parts, context = _pytree.SUPPORTED_NODES[cls].flatten_fn(obj)
            children = self._many(((f"{path}[{i}]", v) for i, v in enumerate(parts)), depth)
            return Spec("pytree", cls, children, context=context)
        if dataclasses.is_dataclass(obj) and not isinstance(obj, type):
            keys = [f.name for f in dataclasses.fields(obj) if hasattr(obj, f.name)]
            return Spec("dataclass", cls, self._many(((f"{path}.{k}", getattr(obj, k)) for k in keys), depth), keys)
        if _holds_tensor(obj, set()):
            if not hasattr(obj, "__dict__"):
                raise CaptureError(f"{path or 'a value'} is a {cls.__qualname__} with tensors where Cleave cannot see")
            keys = list(vars(obj))
            children = self._many(((f"{path}.{k}", v) for k, v in vars(obj).items()), depth)
            if isinstance(obj, (list, dict, set)):
                raise CaptureError(f"{path or 'a value'} is a {cls.__qualname__}, a container that cannot be rebuilt")
            return Spec("object", cls, children, keys)
        return Spec("const", cls, value=obj, context=_kept(obj, path))


def flatten(obj: Any, path: str = "") -> tuple[Spec, list[torch.Tensor], list[str]]:
    """Structure, tensors in order, and where each tensor is."""
    f = _Flattener()
    spec = f.walk(obj, path)
    return spec, f.leaves, f.paths


def _rebuild_tuple(spec: Spec, parts: list[Any]) -> Any:
    if spec.cls is tuple:
        return tuple(parts)
    if hasattr(spec.cls, "_make"):
        return spec.cls._make(parts) if "__new__" not in vars(spec.cls) else spec.cls(*parts)
    return spec.cls(parts)


def _rebuild_object(spec: Spec, parts: list[Any]) -> Any:
    out: Any = object.__new__(spec.cls)
    for key, value in zip(spec.keys, parts, strict=True):
        object.__setattr__(out, key, value)
    return out


def _rebuild_dict(spec: Spec, parts: list[Any]) -> Any:
    pairs = zip(spec.keys, parts, strict=True)
    if spec.cls is defaultdict:
        return defaultdict(spec.context, pairs)
    return spec.cls(pairs)


_REBUILD: dict[str, Callable[[Spec, list[Any]], Any]] = {
    "tuple": _rebuild_tuple,
    "list": lambda spec, parts: parts,
    "dict": _rebuild_dict,
    "mapping_object": lambda spec, parts: spec.cls(**dict(zip(spec.keys, parts, strict=True))),
    "dataclass": _rebuild_object,
    "object": _rebuild_object,
    "pytree": lambda spec, parts: _pytree.SUPPORTED_NODES[spec.cls].unflatten_fn(parts, spec.context),
}


# Not within `unflatten`: a function there that calls itself would keep the tensors until the garbage collector comes.
def _build(s: Spec, rest: Iterator[Any]) -> Any:
    if s.kind == "formula":
        return next(rest)
    if s.kind == "leaf":
        leaf = next(rest)
        return leaf if s is LEAF or isinstance(leaf, s.cls) else leaf.as_subclass(s.cls)
    if s.kind == "const":
        return s.value
    return _REBUILD[s.kind](s, [_build(c, rest) for c in s.children])


def unflatten(spec: Spec, leaves: Sequence[Any]) -> Any:
    """The structure with these tensors in it."""
    return _build(spec, iter(leaves))


def _kept(obj: Any, path: str) -> Any:
    """What an object without tensors was like: a copy, so that a later change of the object itself is noticed."""
    if isinstance(obj, _FIXED):
        return obj
    try:
        return copy.deepcopy(obj)
    except Exception:
        name = type(obj).__qualname__
        raise CaptureError(f"{path or 'a value'} is a {name}, which cannot be copied to compare it later") from None


def _equal(a: Any, b: Any, seen: frozenset[int] = frozenset()) -> bool:
    if type(a) is not type(b):
        return False
    if a is b and (a is None or type(a) in PLAIN or isinstance(a, _FIXED)):
        return True
    if id(a) in seen:  # a cycle; it is compared where it starts
        return True
    if isinstance(a, float):
        return bool(a.hex() == b.hex())
    if hasattr(a, "tobytes") and hasattr(a, "shape"):  # a NumPy array
        return bool(a.shape == b.shape and a.dtype == b.dtype and a.tobytes() == b.tobytes())
    inside = seen | {id(a)}
    if isinstance(a, dict):
        return list(a) == list(b) and all(_equal(a[k], b[k], inside) for k in a)
    if isinstance(a, (list, tuple)):
        return len(a) == len(b) and all(_equal(x, y, inside) for x, y in zip(a, b, strict=True))
    if hasattr(a, "__dict__") and not isinstance(a, _FIXED):
        return _equal(vars(a), vars(b), inside)
    try:
        return bool(a == b)
    except Exception:
        return False


def same_constant(want: Spec, got: Spec) -> bool:
    """A value without tensors is what it was at capture."""
    plain = want.context is None
    return _equal(want.value if plain else want.context, got.value if plain else got.context)


def _is_number(s: Spec) -> bool:
    return s.kind == "const" and s.cls in (int, float)


def with_formulas(spec: Spec, others: Sequence[Spec]) -> Spec:
    """The structure with its numbers that are not the same in all of these structures as formulas."""
    if _is_number(spec) and not all(same_constant(spec, s) for s in others):
        return Spec("formula", spec.cls)
    if not spec.children:
        return spec
    children = [with_formulas(c, [s.children[i] for s in others]) for i, c in enumerate(spec.children)]
    return Spec(spec.kind, spec.cls, children, spec.keys, spec.value, spec.context)


def has_formulas(spec: Spec) -> bool:
    """Some number of the structure is computed by each run."""
    return spec.kind == "formula" or any(has_formulas(c) for c in spec.children)


def difference(a: Spec, b: Spec, path: str = "", numbers: bool = False) -> str | None:
    """Where two structures differ, in words; None when they do not. numbers: that an int or float differs is fine."""
    if a is b:
        return None
    if a.kind != b.kind or a.cls is not b.cls or a.keys != b.keys or len(a.children) != len(b.children):
        return f"{path or 'the value'} is {_name(a)} once and {_name(b)} another time"
    if a.kind == "pytree" and not _equal(a.context, b.context):
        return f"{path or 'the value'} is a {a.cls.__qualname__} with another context another time"
    if a.kind == "const" and not (numbers and _is_number(a)) and not same_constant(a, b):
        return f"{path or 'the value'} is {a.value!r} once and {b.value!r} another time"
    for i, (x, y) in enumerate(zip(a.children, b.children, strict=True)):
        found = difference(x, y, f"{path}[{a.keys[i] if a.keys else i!r}]", numbers)
        if found:
            return found
    return None


def _name(s: Spec) -> str:
    if s.kind == "leaf":
        return "a tensor"
    if s.kind == "const":
        text = repr(s.value if s.context is None else s.context)
        return text if len(text) < 60 else f"a {s.cls.__qualname__}"
    return f"{s.cls.__name__} of {len(s.children)}"


def match_call(want: Spec, got: Spec, names: Sequence[str]) -> None:
    """As match, for the (args, kwargs) of a call whose positional inputs have these names."""
    (args, kwargs), (given, given_kwargs) = want.children, got.children
    n, k = len(args.children), len(given.children)
    refuse_unknown(given_kwargs.keys, [*names[:n], *kwargs.keys])
    if k < n:
        raise InputError(f"input {names[k]} is missing: the plan was captured with {n} positional inputs, got {k}")
    if k > n:
        raise InputError(f"the plan was captured with {n} positional inputs, got {k}")
    for key in kwargs.keys:
        if key not in given_kwargs.keys:
            raise InputError(f"keyword input {key} is missing")
    for key in given_kwargs.keys:
        if key not in kwargs.keys:
            raise InputError(f"input {key} is given twice, by its place and by its name")
    for name, x, y in zip(names, args.children, given.children, strict=False):
        match(x, y, name)
    for key, x in zip(kwargs.keys, kwargs.children, strict=True):
        match(x, given_kwargs.children[given_kwargs.keys.index(key)], key)


def refuse_unknown(given: Sequence[str], names: Sequence[str]) -> None:
    """Raises InputError for keywords of a call that are no names of inputs."""
    unknown = [key for key in given if key not in names]
    if unknown:
        known = f"its inputs are {', '.join(names)}" if names else "it has none"
        raise InputError(f"the plan was captured without an input {', '.join(unknown)}; {known}")


def match(want: Spec, got: Spec, path: str) -> None:
    """Raises InputError unless the structure given is the one captured."""
    if want is got:
        return
    where = f"input {path}"
    if want.kind != got.kind or (want.cls is not got.cls and want.kind != "leaf"):
        raise InputError(f"{where}: the plan was captured with {_name(want)}, got {_name(got)}")
    if want.kind == "pytree" and not _equal(want.context, got.context):
        raise InputError(
            f"{where}: the {want.cls.__qualname__} differs from the captured one in a field that is no tensor"
        )
    if want.kind == "const" and not same_constant(want, got):
        raise InputError(
            f"{where} was {_name(want)} when the plan was captured and is {_name(got)} now; a plan is for one value"
        )
    if want.keys != got.keys:
        raise InputError(f"{where}: the plan was captured with {want.keys}, got {got.keys}")
    if len(want.children) != len(got.children):
        raise InputError(f"{where}: the plan was captured with {len(want.children)} items, got {len(got.children)}")
    for i, (x, y) in enumerate(zip(want.children, got.children, strict=True)):
        match(x, y, f"{path}[{want.keys[i] if want.keys else i!r}]")


def is_default(value: Any, default: Any) -> bool:
    """An argument is what it would be if it were left out."""
    return value is default or (type(value) in PLAIN and _equal(value, default))


def plain_parts(want: Spec, got: Spec, out: list[Any]) -> bool:
    """Adds what tells two calls apart that differ in plain values alone (numbers, flags, texts, None), or in inputs
    that are None in one of them. False: they differ in more."""
    if got.kind == "leaf":
        out.append(torch.Tensor)
        return want.kind == "leaf" or (want.kind == "const" and want.value is None)
    if got.kind == "const":
        value = got.value
        if value is not None and type(value) not in PLAIN and not isinstance(value, _PLAIN_OBJECTS):
            return want.kind == "const" and same_constant(want, got)
        out.append((got.cls, value.hex() if isinstance(value, float) else value))
        return want.kind == "const" or (want.kind == "leaf" and value is None)
    if want.kind == "const" and want.value is None:  # a nested input that was None
        return False
    same = want.kind == got.kind and want.cls is got.cls and want.keys == got.keys
    return (
        same
        and len(want.children) == len(got.children)
        and (want.kind != "pytree" or _equal(want.context, got.context))
        and all(plain_parts(x, y, out) for x, y in zip(want.children, got.children, strict=True))
    )


def tokens(spec: Spec) -> list[Token]:
    """The structure in prefix order, as plans keep it."""
    out: list[Token] = []
    count = 0

    def emit_const(value: Any) -> None:
        if value is None:
            out.append((T_NONE, 0, None))
        elif isinstance(value, int) and not isinstance(value, bool) and not -(2**63) <= value < 2**63:
            out.append((T_OPAQUE, 0, repr(value)))
        elif type(value) in PLAIN:
            out.append((PLAIN[type(value)], 0, value))
        else:
            out.append((T_OPAQUE, 0, _opaque_text(value)))

    def walk(s: Spec) -> None:
        nonlocal count
        if s.kind == "leaf":
            out.append((T_VALUE, 0, count))
            count += 1
        elif s.kind == "const":
            emit_const(s.value)
        elif s.kind == "list" or (s.kind == "tuple" and s.cls is tuple):
            out.append((T_LIST if s.kind == "list" else T_TUPLE, len(s.children), None))
            for c in s.children:
                walk(c)
        elif s.kind == "dict" and s.cls is dict:
            out.append((T_DICT, 2 * len(s.children), None))
            for k, c in zip(s.keys, s.children, strict=True):
                emit_const(k)
                walk(c)
        else:
            keys = s.keys or list(getattr(s.cls, "_fields", ())) or range(len(s.children))
            out.append((T_OBJECT, 2 * len(s.children), f"{s.cls.__module__}:{s.cls.__qualname__}"))
            for k, c in zip(keys, s.children, strict=False):
                out.append((T_STR, 0, str(k)))
                walk(c)

    walk(spec)
    return out


def merged_tokens(specs: Sequence[Spec]) -> list[Token]:
    """The tokens of structures that differ in numbers alone; such a number has the list of its values as payload."""
    first, *others = [tokens(s) for s in specs]
    out = []
    for i, (kind, n, payload) in enumerate(first):
        seen = [payload, *(t[i][2] for t in others)]
        same = kind not in (T_INT, T_FLOAT) or all(_equal(payload, x) for x in seen)
        out.append((kind, n, payload if same else seen))
    return out


def _opaque_text(value: Any) -> str:
    """How an object without tensors prints, without the addresses that change from run to run."""
    text = repr(value)
    return f"<{type(value).__qualname__}>" if " at 0x" in text else text

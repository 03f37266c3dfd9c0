"""Nested inputs and outputs of a plan from a file, where the model's classes are not available.

Plain containers come back as themselves. An object of a class that the caller allows is rebuilt as such; any other is a
Record: a dict with its fields, which are attributes too."""

from __future__ import annotations

import ast
import dataclasses
import re
from collections import OrderedDict
from collections.abc import Callable, Sequence
from typing import Any

import torch

from . import _tree
from .errors import InputError

Token = tuple[int, int, Any]
FORMULAS = (100, 101)  # kinds of tokens: numbers that each run computes, integers and floats


class Record(dict[str, Any]):
    """Stands for an object whose class the reader does not know or trust: fields by name, as attributes, and by number.

    >>> r = Record(logits=1, loss=None)
    >>> r.logits, r["logits"], r[0]
    (1, 1, 1)
    """

    class_name = ""

    def __getattr__(self, name: str) -> Any:
        try:
            return self[name]
        except KeyError:
            raise AttributeError(f"the {self.class_name or 'record'} has no field {name}") from None

    def __getitem__(self, key: Any) -> Any:
        if isinstance(key, (int, slice)):
            return self.to_tuple()[key]
        return super().__getitem__(key)

    def to_tuple(self) -> tuple[Any, ...]:
        """The fields that are not None, in order."""
        return tuple(v for v in self.values() if v is not None)

    def __repr__(self) -> str:
        fields = ", ".join(f"{k}={v!r}" for k, v in self.items())
        return f"{self.class_name or 'Record'}({fields})"


class Opaque:
    """Stands for a value without tensors that only Python has; it is how it prints."""

    def __init__(self, text: str) -> None:
        self.text = text

    def __repr__(self) -> str:
        return self.text

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Opaque) and other.text == self.text

    def __hash__(self) -> int:
        return hash(self.text)


_LONGEST_TEXT = 1000  # that is read as a value


def value_of(text: str) -> Any:
    """What a text of a file stands for, if it is a plain value as Python or torch prints it; else Opaque."""
    name = text.removeprefix("torch.")
    found = getattr(torch, name, None) if name != text and name.isidentifier() else None
    if isinstance(found, (torch.dtype, torch.layout, torch.memory_format)):
        return found
    device = re.fullmatch(r"device\(type='(\w+)'(?:, index=(\d{1,3}))?\)", text)
    call = re.fullmatch(r"(frozenset|slice)\((.*)\)", text)
    try:
        if device:
            return torch.device(device[1], *([] if device[2] is None else [int(device[2])]))
        if len(text) > _LONGEST_TEXT:
            return Opaque(text)
        if call and call[1] == "slice":
            return slice(*ast.literal_eval(f"[{call[2]}]"))
        if text in ("set()", "frozenset()"):
            return set() if text == "set()" else frozenset()
        return frozenset(ast.literal_eval(call[2])) if call else ast.literal_eval(text)
    except (ValueError, TypeError, SyntaxError, RuntimeError, MemoryError, RecursionError):
        return Opaque(text)


Build = Callable[[list[tuple[str, Any]]], Any]


def _builder(name: str, types: Sequence[type]) -> Build:
    """How an object is made of its fields."""
    cls = next((t for t in types if f"{t.__module__}:{t.__qualname__}" == name), None)
    return _plain_builder(name) if cls is None else _checked(cls, _class_builder(cls))


def _checked(cls: type, build: Build) -> Build:
    """A class of the same name may have other fields than the one whose objects the model gave."""
    if dataclasses.is_dataclass(cls):
        own = [f.name for f in dataclasses.fields(cls)]
    else:
        own = list(getattr(cls, "_fields", ()))

    def checked(fields: list[tuple[str, Any]]) -> Any:
        given = [key for key, _ in fields]
        partial = issubclass(cls, dict)  # a model output leaves out fields that are None
        if own and (any(key not in own for key in given) if partial else given != own):
            raise InputError(f"{cls.__qualname__} has fields {', '.join(own)}, the file has {', '.join(given)}")
        return build(fields)

    return checked


def _class_builder(cls: type) -> Build:
    if isinstance(cls, type) and issubclass(cls, dict) and dataclasses.is_dataclass(cls):  # a model output
        return lambda fields: cls(**dict(fields))
    if issubclass(cls, tuple):
        return lambda fields: cls(*(v for _, v in fields)) if hasattr(cls, "_fields") else cls(v for _, v in fields)
    if issubclass(cls, dict):
        return lambda fields: cls(fields)

    def build(fields: list[tuple[str, Any]]) -> Any:
        out: Any = object.__new__(cls)
        for key, value in fields:
            object.__setattr__(out, key, value)
        return out

    return build


def _plain_builder(name: str) -> Build:
    if name == "collections:OrderedDict":
        return OrderedDict
    if name == "torch:Size":
        return lambda fields: torch.Size(v for _, v in fields)
    module, _, kind = name.partition(":")
    result = getattr(torch.return_types, kind, None) if module == "torch.return_types" else None
    if isinstance(result, type):
        return lambda fields: result([v for _, v in fields])

    def build(fields: list[tuple[str, Any]]) -> Any:
        out = Record(fields)
        out.class_name = name.rpartition(":")[2]
        return out

    return build


class Structure:
    """The structure of the inputs or outputs of a plan, from its tokens in prefix order."""

    def __init__(
        self, tokens: Sequence[Token], types: Sequence[type] = (), stores: int = 0, names: Sequence[str] = ()
    ) -> None:
        self.tokens = list(tokens)
        self.names = list(names)  # of tensors that go in
        self.builders = {t[2]: _builder(t[2], types) for t in tokens if t[0] == _tree.T_OBJECT}
        self.stores = stores
        n = len(self.tokens) - 3  # (args, kwargs) with n tensors and no keywords
        flat = [(_tree.T_TUPLE, 2), (_tree.T_TUPLE, n), *((_tree.T_VALUE, 0) for _ in range(n)), (_tree.T_DICT, 0)]
        self.flat = n if [t[:2] for t in self.tokens] == flat else -1  # -1: something else

    @property
    def computes_numbers(self) -> bool:
        """Some of it are numbers that each run computes, not tensors."""
        return any(t[0] in FORMULAS for t in self.tokens)

    # ---- outputs

    def rebuild(self, leaves: Sequence[Any]) -> Any:
        """The structure with these tensors, and numbers that the run computed, in it."""
        rest = iter(leaves)
        # (output, stored tensors): the second is not needed here
        out, _ = self._build(1 if self.stores else 0, rest)
        return out

    def _build(self, at: int, rest: Any) -> tuple[Any, int]:
        kind, n, payload = self.tokens[at]
        at += 1
        if kind == _tree.T_VALUE or kind in FORMULAS:
            return next(rest), at
        if kind == _tree.T_OPAQUE:
            return value_of(payload), at
        if kind in (_tree.T_LIST, _tree.T_TUPLE):
            items = []
            for _ in range(n):
                item, at = self._build(at, rest)
                items.append(item)
            return (items if kind == _tree.T_LIST else tuple(items)), at
        if kind in (_tree.T_DICT, _tree.T_OBJECT):
            pairs = []
            for _ in range(n // 2):
                key, at = self._build(at, rest)
                value, at = self._build(at, rest)
                pairs.append((key, value))
            return (dict(pairs) if kind == _tree.T_DICT else self.builders[payload](pairs)), at
        return payload, at

    # ---- inputs

    def take_apart(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Sequence[torch.Tensor]:
        """The tensors of a call, after a check that its structure is the captured one."""
        if len(args) == self.flat and not kwargs and all(isinstance(a, torch.Tensor) for a in args):
            return args
        args, kwargs = self._by_position(args, kwargs)
        places = self._places()
        _tree.refuse_unknown(list(kwargs), [*places, *self._keywords()])
        if len(args) < len(places):
            raise InputError(f"input {places[len(args)]} is missing")
        order = [key for key in self._keywords() if key in kwargs]
        kwargs = {k: kwargs[k] for k in [*order, *(k for k in kwargs if k not in order)]}
        spec, leaves, _ = _tree.flatten((args, kwargs))
        given = _tree.tokens(spec)
        for want, got in zip(self.tokens, given, strict=False):
            if not _same(want, got):
                raise InputError(f"the call differs from the captured one: {_say(want)} there, {_say(got)} here")
        if len(given) != len(self.tokens):
            raise InputError(f"the call has {len(given)} parts, the captured one {len(self.tokens)}")
        return leaves

    def _by_position(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> tuple[tuple[Any, ...], dict[str, Any]]:
        """Tensors given by name that were positional at capture, at their place."""
        if not self.tokens or not kwargs:
            return args, kwargs
        out, rest = list(args), dict(kwargs)
        for i, name in enumerate(self._places()):
            if i == len(out) and name in rest:
                out.append(rest.pop(name))
        return tuple(out), rest

    def _places(self) -> list[str]:
        """Names of positional inputs; those without tensors have only their number."""
        at, out = 2, []
        for i in range(self.tokens[1][1] if self.tokens else 0):
            kind, _, number = self.tokens[at]
            named = kind == _tree.T_VALUE and number < len(self.names)
            out.append(self.names[number] if named else f"number {i}")
            at = self._skip(at)
        return out

    def _keywords(self) -> list[str]:
        """Names of keyword inputs, in the order of the capture."""
        if not self.tokens:
            return []
        at = self._skip(1)  # after the positional ones
        _, n, _ = self.tokens[at]
        at, out = at + 1, []
        for _ in range(n // 2):
            out.append(self.tokens[at][2])
            at = self._skip(at + 1)
        return out

    def _skip(self, at: int) -> int:
        """The token after this one and its children."""
        kind, n, _ = self.tokens[at]
        at += 1
        for _ in range(n if kind in (_tree.T_LIST, _tree.T_TUPLE, _tree.T_DICT, _tree.T_OBJECT) else 0):
            at = self._skip(at)
        return at


def _same(want: Token, got: Token) -> bool:
    if want[:2] != got[:2]:
        return False
    if isinstance(want[2], float) and isinstance(got[2], float):
        return want[2].hex() == got[2].hex()
    return type(want[2]) is type(got[2]) and bool(want[2] == got[2])


def _say(token: Token) -> str:
    kind, n, payload = token
    if kind == _tree.T_VALUE:
        return "a tensor"
    if kind in (_tree.T_LIST, _tree.T_TUPLE, _tree.T_DICT):
        name = {_tree.T_LIST: "a list", _tree.T_TUPLE: "a tuple", _tree.T_DICT: "a dict"}[kind]
        return f"{name} of {n // 2 if kind == _tree.T_DICT else n}"
    if kind == _tree.T_OBJECT:
        return f"a {payload}"
    return repr(payload)

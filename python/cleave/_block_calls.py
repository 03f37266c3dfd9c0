"""Calls of modules that are run as a whole, as text for generated source: how arguments and results are nested.

Tensors are {0}, {1}, … in the order in which the structure has them; a brace that stands for itself is doubled."""

from __future__ import annotations

import functools
import math
from collections.abc import Iterable, Sequence
from typing import Any

import torch

from ._tree import Spec
from ._watch import PythonCall

Text = str | tuple[int, str, str | None]

# Structures that can be assigned to, and those that a helper in the source takes apart.
TARGETS = ("leaf", "const", "tuple", "list")
PARTS = (*TARGETS, "dict", "mapping_object", "dataclass")


class NoText(Exception):
    """Why a call cannot be written."""


def call_texts(calls: Iterable[PythonCall]) -> list[Text]:
    """For each call the number of tensors in its arguments, their text, and the text of what it is assigned to (None:
    tensors_of takes the result apart); or why there is none."""
    return [_call(c) for c in calls]


def _call(call: PythonCall) -> Text:
    numbers = iter(range(call.count))
    try:
        args, kwargs = call.arguments.children
        texts = [_argument(c, numbers) for c in args.children]
        texts += [_keyword(k, c, numbers) for k, c in zip(kwargs.keys, kwargs.children, strict=True)]
        return call.count, ", ".join(texts), _results(call.results)
    except NoText as reason:
        return f"{call.name} {reason}"


# ---- arguments


def _keyword(key: str, spec: Spec, numbers: Iterable[int]) -> str:
    if not key.isidentifier():
        raise NoText(f"is called with a keyword {key!r}, which is no name")
    return f"{key}={_argument(spec, numbers)}"


def _argument(spec: Spec, numbers: Any) -> str:
    if spec.kind == "leaf" and spec.cls is torch.Tensor:
        return f"{{{next(numbers)}}}"
    if spec.kind == "const":
        return _constant(spec.value).replace("{", "{{").replace("}", "}}")
    if spec.kind in ("tuple", "list"):
        return _sequence(spec.cls, [_argument(c, numbers) for c in spec.children])
    if spec.kind == "dict" and spec.cls is dict:
        items = [f"{_constant(k)}: " for k in spec.keys]
        items = [k.replace("{", "{{").replace("}", "}}") for k in items]
        texts = [k + _argument(c, numbers) for k, c in zip(items, spec.children, strict=True)]
        return f"{{{{{', '.join(texts)}}}}}"
    raise NoText(f"is called with a {spec.cls.__qualname__}, which has no source text")


def _sequence(cls: Any, parts: Sequence[str]) -> str:
    text = ", ".join(parts)
    if cls is list:
        return f"[{text}]"
    if cls is tuple or cls is torch.Size:
        inner = f"({text},)" if len(parts) == 1 else f"({text})"
        return inner if cls is tuple else f"torch.Size({inner})"
    if not _is_of_torch(cls) or not hasattr(cls, "_make"):
        raise NoText(f"is called with a {cls.__qualname__}, a class of its own")
    return f"{cls.__module__}.{cls.__qualname__}({text})"


def _is_of_torch(cls: Any) -> bool:
    """`import torch` is enough to find it under its name."""
    first, *path = f"{cls.__module__}.{cls.__qualname__}".split(".")
    return first == "torch" and functools.reduce(lambda x, name: getattr(x, name, None), path, torch) is cls  # type: ignore[arg-type,return-value]


def _constant(x: Any) -> str:
    if x is None or type(x) in (bool, int) or isinstance(x, torch.dtype):
        return repr(x)
    if type(x) is float:
        return repr(x) if math.isfinite(x) else f'float("{x}")'
    if type(x) is complex:
        return f"complex({_constant(x.real)}, {_constant(x.imag)})"
    if type(x) in (str, bytes):
        return _quoted(repr(x))
    if type(x) in (tuple, list):
        return _sequence(type(x), [_constant(v) for v in x])
    if type(x) is slice:
        return f"slice({_constant(x.start)}, {_constant(x.stop)}, {_constant(x.step)})"
    if x is ...:
        return "..."
    raise NoText(f"is called with {x!r:.60}, which has no source text")


def _quoted(text: str) -> str:
    """The text of a string with double quotes, where that needs no escapes."""
    start = text.index(text[-1])
    if text[-1] == '"' or '"' in text:
        return text
    return f'{text[:start]}"{text[start + 1 : -1]}"'


# ---- results


def _results(spec: Spec) -> str | None:
    kinds = _kinds(spec)
    if not kinds <= set(PARTS):
        raise NoText("gives a structure that has no source text")
    if not kinds <= set(TARGETS):
        return None
    return _target(spec, iter(range(1 << 20)), top=True)


def _kinds(spec: Spec) -> set[str]:
    return {spec.kind}.union(*(_kinds(c) for c in spec.children))


def _target(spec: Spec, numbers: Any, top: bool = False) -> str:
    if spec.kind == "leaf":
        return f"{{{next(numbers)}}}"
    parts = [_target(c, numbers) for c in spec.children]
    if all(p == "_" for p in parts):
        return "_"
    text = ", ".join(parts) + ("," if len(parts) == 1 else "")
    return text if top and len(parts) > 1 else f"({text})"

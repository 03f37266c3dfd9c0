"""Finds code of a forward that may compare tensors by identity: `a is b` leaves no operator.

All code that runs in a recording is known (_native.calls_begin). Where none of it has an `is` between two values, plans
need not care which inputs or parameters are one tensor. Most code has none."""

from __future__ import annotations

import dis
import os
import weakref
from collections.abc import Mapping
from types import CodeType

import torch

_IS = dis.opmap["IS_OP"]
_STANDARD = os.path.dirname(os.__file__) + os.sep
_PACKAGES = (os.path.join(_STANDARD, "site-packages"), os.path.join(_STANDARD, "dist-packages"))
_TORCH = os.path.dirname(torch.__file__) + os.sep
_OWN = os.path.dirname(__file__) + os.sep
# Of torch, where layers and functions are; the rest compares classes, modes and hooks.
_LAYERS = tuple(os.path.join(_TORCH, "nn", name) for name in ("functional.py", "modules" + os.sep))
_PLUMBING = tuple(os.path.join(_TORCH, "nn", "modules", name) for name in ("module.py", "container.py", "lazy.py"))
_CONSTANT = ("LOAD_CONST", "LOAD_GLOBAL", "LOAD_NAME", "LOAD_SMALL_INT", "LOAD_COMMON_CONSTANT")

_MOST_KNOWN = 100_000

_known: dict[int, tuple[weakref.ref[CodeType], bool]] = {}  # by id: to hash code takes long


def compares(code: Mapping[int, CodeType]) -> bool:
    """Some of this code, by id, may compare two tensors with `is`."""
    if len(_known) > _MOST_KNOWN:
        _known.clear()
    found = [_compares(number, c) for number, c in code.items()]  # all of them: each is remembered
    return any(found)


def _compares(number: int, code: CodeType) -> bool:
    known = _known.get(number)
    if known is not None and known[0]() is code:
        return known[1]
    found = _is_of_models(code.co_filename) and _IS in code.co_code[::2] and _has_two_values(code)
    _known[number] = weakref.ref(code), found
    return found


def _is_of_models(file: str) -> bool:
    if file.startswith(_TORCH):
        return file.startswith(_LAYERS) and not file.startswith(_PLUMBING)
    return not file.startswith((_OWN, "<frozen")) and (not file.startswith(_STANDARD) or file.startswith(_PACKAGES))


def _has_two_values(code: CodeType) -> bool:
    """An `is` whose right side is no constant and no global name: None, a class, a flag."""
    before = ""
    for instruction in dis.get_instructions(code):
        if instruction.opname == "IS_OP" and before not in _CONSTANT:
            return True
        before = instruction.opname
    return False

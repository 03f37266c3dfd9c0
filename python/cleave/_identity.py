"""Whether a forward may ask which tensors are the same object: `a is b` leaves no operator.

All code that runs in a recording is known (_native.calls_begin). Where none of it has an `is` between two values, plans
need not care which inputs or parameters are one tensor. Most code has none."""

from __future__ import annotations

import dis
import os
from collections.abc import Iterable
from types import CodeType
from weakref import WeakKeyDictionary

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

_known: WeakKeyDictionary[CodeType, bool] = WeakKeyDictionary()


def compares(code: Iterable[CodeType]) -> bool:
    """Some of this code may compare two tensors with `is`."""
    return any([_compares(c) for c in code])


def _compares(code: CodeType) -> bool:
    found = _known.get(code)
    if found is None:
        found = _known[code] = _is_of_models(code.co_filename) and _IS in code.co_code[::2] and _has_two_values(code)
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

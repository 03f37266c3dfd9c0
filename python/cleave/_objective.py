"""Checks the objective of a split, a dict, and turns it into the fields of clv_objective (include/cleave.h)."""

from __future__ import annotations

import difflib
import math
import os
from collections.abc import Callable, Iterable
from typing import Any, NamedTuple

from . import _native
from .errors import CleaveError, SplitError

MINIMIZE = (
    "boundary_bytes",
    "latency",
    "prefix_memory",
    "suffix_memory",
    "prefix_flops",
    "suffix_flops",
    "balance",
)


class Objective(NamedTuple):
    """An objective that was read: fields for C, and the batch size at which bytes and work are counted."""

    fields: dict[str, Any]
    batch_size: int | None

    @property
    def minimize(self) -> str | None:
        """What is minimised; None: the default."""
        return self.fields.get("minimize")


def read(objective: Any, trainable: bool) -> Objective:
    """Checks an objective as prepare_split takes it; trainable is the SplitSpec's.

    >>> read({"minimize": "latency", "constraints": {"bandwidth_bytes_per_s": 1e9}}, False).fields
    {'minimize': 'latency', 'bandwidth_bytes_per_s': 1000000000.0}
    """
    objective = _mapping("objective", {} if objective is None else objective)
    _known("objective", objective, ("minimize", "constraints", "batch_size"))
    fields: dict[str, Any] = {}
    if objective.get("minimize") is not None:
        fields["minimize"] = _choice(objective["minimize"])
    constraints = _mapping("objective['constraints']", objective.get("constraints") or {})
    _known("constraints", constraints, _CONSTRAINTS)
    for name, value in constraints.items():
        if value is not None:
            _join(fields, _CONSTRAINTS[name](name, value))
    if trainable:
        fields["trainable_suffix"] = True
    size = objective.get("batch_size")
    return Objective(fields, None if size is None else _whole("batch_size", size, 1))


def _join(fields: dict[str, Any], more: dict[str, Any]) -> None:
    """Adds fields; a bound that is given twice is the tighter one."""
    for name, value in more.items():
        if name in fields and name.startswith("min_"):
            value = max(value, fields[name])
        elif name in fields and name.startswith("max_"):
            value = min(value, fields[name])
        fields[name] = value


def _mapping(what: str, value: Any) -> dict[Any, Any]:
    if not isinstance(value, dict):
        raise SplitError(f"{what} is a dict, not {type(value).__name__}")
    return value


def _known(what: str, given: Iterable[Any], known: Iterable[str]) -> None:
    names = list(known)
    for key in given:
        if key not in names:
            near = difflib.get_close_matches(str(key), names, 1)
            hint = f" (did you mean {near[0]}?)" if near else ""
            raise SplitError(f"{what} has no key {key!r}{hint}; known keys: {', '.join(names)}")


def _choice(value: Any) -> str:
    if value not in MINIMIZE:
        raise SplitError(f"objective: {value!r} cannot be minimised; choose one of {', '.join(MINIMIZE)}")
    return str(value)


def _whole(name: str, value: Any, least: int = 0) -> int:
    if isinstance(value, bool) or not isinstance(value, (int, float)) or value != value or value != value // 1:
        raise SplitError(f"{name} must be a whole number, not {value!r}")
    if value < least or value >= 1 << 63:
        raise SplitError(f"{name} must be at least {least} and below 2**63, not {value!r}")
    return int(value)


def _number(name: str, value: Any) -> float:
    if isinstance(value, bool) or not isinstance(value, (int, float)):
        raise SplitError(f"{name} must be a number, not {value!r}")
    return float(value)


def _limit(name: str, value: Any) -> dict[str, Any]:
    return {name: _whole(name, value)}


def _positive(name: str, value: Any) -> dict[str, Any]:
    number = _number(name, value)
    if not math.isfinite(number) or number <= 0:
        raise SplitError(f"{name} must be a number above 0, not {value!r}")
    return {name: number}


def _speed(name: str, value: Any) -> dict[str, Any]:
    """Operations per second, or a file of `cleave bench --json`."""
    if isinstance(value, (str, os.PathLike)):
        try:
            return {name: _native.speed_load(value)}
        except (CleaveError, OSError) as error:
            raise SplitError(f"{name} must be a number above 0 or a file of `cleave bench --json`: {error}") from None
    return _positive(name, value)


def _compression(name: str, value: Any) -> dict[str, Any]:
    if not isinstance(value, str):
        raise SplitError(f'{name} is "fp16", "bf16", "int8" or "q1" to "q8", not {value!r}')
    return {name: value}


def _yes_or_no(name: str, value: Any) -> dict[str, Any]:
    if not isinstance(value, bool):
        raise SplitError(f"{name} must be True or False, not {value!r}")
    return {name: value}


def _fraction(name: str, value: Any) -> dict[str, Any]:
    number = _number(name, value)
    if not 0 <= number <= 1:
        raise SplitError(f"{name} must be between 0 and 1, not {value!r}")
    return {name: number}


def _fraction_range(name: str, value: Any) -> dict[str, Any]:
    """The most, or (the least, the most)."""
    pair = tuple(value) if isinstance(value, (tuple, list)) else (0.0, value)
    if len(pair) != 2:
        raise SplitError(f"{name} must be a number or a pair (least, most), not {value!r}")
    low, high = (_fraction(name, n)[name] for n in pair)
    if low > high:
        raise SplitError(f"{name} must have least <= most, not {value!r}")
    return {"min_prefix_flops_fraction": low, "max_prefix_flops_fraction": high}


_CONSTRAINTS: dict[str, Callable[[str, Any], dict[str, Any]]] = {
    "trainable_suffix": _yes_or_no,
    "max_boundary_bytes": _limit,
    "max_prefix_memory": _limit,
    "max_suffix_memory": _limit,
    "max_prefix_params": _limit,
    "max_suffix_params": _limit,
    "prefix_flops_fraction": _fraction_range,
    "min_prefix_flops_fraction": _fraction,
    "max_prefix_flops_fraction": _fraction,
    "max_latency_s": _positive,
    "bandwidth_bytes_per_s": _positive,
    "prefix_flops_per_s": _speed,
    "suffix_flops_per_s": _speed,
    "compress": _compression,
    "compress_bytes_per_s": _positive,
}

"""Arguments of the public functions, checked: an error names the argument, the accepted values and the given one."""

from __future__ import annotations

import functools
import math
import sys
from collections.abc import Callable, Iterable, Sequence
from typing import Any, ParamSpec, TypeVar

from .errors import ArgumentError

P = ParamSpec("P")
R = TypeVar("R")

MOST_COUNT = (1 << 31) - 1


def renamed(**names: str) -> Callable[[Callable[P, R]], Callable[P, R]]:
    """Raises a TypeError with the right name when a function is called with one of these: old="new"."""

    def decorate(function: Callable[P, R]) -> Callable[P, R]:
        @functools.wraps(function)
        def checked(*args: P.args, **kwargs: P.kwargs) -> R:
            for name in kwargs:
                if name in names:
                    raise TypeError(f"{function.__name__}() has no argument {name}: use {names[name]}")
            return function(*args, **kwargs)

        return checked

    return decorate


def read_text(given: Any, name: str) -> str:
    """A str."""
    if not isinstance(given, str):
        raise TypeError(f"{name} is a text, not {type(given).__name__}")
    return given


def read_texts(given: Iterable[str] | None, name: str) -> list[str]:
    """Several of them; a single one is most likely a mistake."""
    if given is None:
        return []
    if isinstance(given, str):
        raise TypeError(f"{name} is a list of texts, not one text")
    return [read_text(item, f"an item of {name}") for item in given]


def read_flag(given: Any, name: str) -> bool:
    """True or False, and nothing that only counts as one of them."""
    if not isinstance(given, bool):
        raise TypeError(f"{name} is True or False, not {given!r}")
    return given


def read_function(given: Any, name: str) -> Any:
    """A callable, or None."""
    if given is not None and not callable(given):
        raise TypeError(f"{name} is a function or None, not {given!r}")
    return given


def read_number(given: Any, name: str, most: float = sys.float_info.max, zero: bool = True) -> float:
    """A number from 0 to `most`; zero: 0 itself is one of them."""
    if isinstance(given, (bool, str)) or not hasattr(given, "__float__"):
        raise TypeError(f"{name} is a number, not {type(given).__name__}")
    try:
        found = float(given)
    except OverflowError:
        found = math.nan
    if not 0 <= found <= most or not (zero or found):
        wanted = "above 0" if not zero else "0 or more, and finite" if most > 1 else f"between 0 and {most:g}"
        raise ArgumentError(f"{name} is {wanted}, not {given!r}")
    return found


def read_count(given: Any, name: str, most: int = MOST_COUNT) -> int:
    """A whole number from 1 to `most`."""
    if isinstance(given, bool) or not isinstance(given, int):
        raise TypeError(f"{name} is a whole number, not {type(given).__name__}")
    if not 1 <= given <= most:
        raise ArgumentError(f"{name} is between 1 and {most}, not {given}")
    return given


def read_choice(given: Any, known: Sequence[str], name: str, verb: str = "is") -> str:
    """One of several words, in any case."""
    found = given.lower() if isinstance(given, str) else given
    if found not in known:
        raise ArgumentError(f"{name} {verb} one of {', '.join(known)}, not {given!r}")
    return str(found)

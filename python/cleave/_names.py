"""Names of arguments that other libraries, or earlier versions, have for something that is called otherwise here."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import ParamSpec, TypeVar

P = ParamSpec("P")
R = TypeVar("R")


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

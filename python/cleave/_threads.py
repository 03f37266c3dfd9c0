"""How many threads operators use in a run: the argument `threads`."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator

from . import _native
from .errors import ArgumentError


def read_threads(given: int | None) -> int:
    """The argument of a user, checked, as C takes it: 0 is as many as the process has."""
    if given is None:
        return 0
    if isinstance(given, bool) or not isinstance(given, int):
        raise TypeError(f"threads is a whole number or None, not {given!r}")
    if not 1 <= given <= _native.MOST_THREADS:
        raise ArgumentError(f"threads is a number from 1 to {_native.MOST_THREADS}, or None, not {given}")
    _native.threads_check(given)
    return given


@contextlib.contextmanager
def limited(threads: int) -> Iterator[None]:
    """What this thread runs here uses so many, as a run would; other threads do not notice. 0: as before."""
    if not threads:
        yield
        return
    before = _native.threads_enter(threads)
    try:
        yield
    finally:
        _native.threads_leave(*before)

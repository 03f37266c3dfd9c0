"""The ways that a forward goes, by what it reads from its data.

A plan holds for the values that it met at its guards. A call that meets another value has not happened
(src/exec/undo.c): a plan that was recorded with that value serves it. Where there is none, one is recorded."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Generic, TypeVar

from ._log import logger
from .errors import ArgumentError, GuardError

log = logger("capture")

MOST = 16  # ways of one model in one mode

ON_GUARD = ("record", "raise")

T = TypeVar("T")
R = TypeVar("R")


def read_on_guard(given: str) -> bool:
    """The argument on_guard: whether other ways are recorded when data leads there."""
    if given not in ON_GUARD:
        raise ArgumentError(f"on_guard must be one of {', '.join(ON_GUARD)}, not {given!r}")
    return given == "record"


class Ways(Generic[T]):
    """Plans of one model in one mode beside the first, which is whose this is."""

    def __init__(self, name: str, record: bool) -> None:
        self.name, self.record = name, record
        self.others: tuple[T, ...] = ()  # replaced, not changed
        self.last: T | None = None  # which served the last call; None: the first
        self.lock = threading.Lock()

    def after(
        self, error: GuardError, tried: T, first: T, run: Callable[[T], R], make: Callable[[], T] | None = None
    ) -> R:
        """A call that ended at a guard of `tried`, by another way. make: records one; None: that cannot be."""
        if not error.undone:
            raise error
        known = (first, *self.others)
        found, out = self._try([way for way in known if way is not tried], run)
        if found:
            return out[0]
        if make is None or not self.record:
            raise error
        with self.lock:
            found, out = self._try([way for way in self.others if way not in known], run)
            if found:
                return out[0]
            if len(self.others) + 1 >= MOST:
                raise GuardError(f"{error}; {MOST} ways through {self.name} were recorded already") from None
            log.info("%s goes another way on this data, which is recorded: %s", self.name, error)
            self.last = self.add(make)
        return run(self.last)

    def add(self, make: Callable[[], T]) -> T:
        """Records one more way."""
        made = make()
        self.others = (*self.others, made)
        return made

    def _try(self, ways: list[T], run: Callable[[T], R]) -> tuple[bool, list[R]]:
        for way in ways:
            try:
                out = run(way)
            except GuardError as error:
                if not error.undone:
                    raise
                continue
            self.last = way
            return True, [out]
        return False, []

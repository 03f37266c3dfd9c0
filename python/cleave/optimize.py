"""How much a plan may be rewritten before it runs: the argument `optimize`."""

from __future__ import annotations

from typing import NamedTuple

from . import _native
from .errors import ArgumentError

LEVELS = ("none", "safe", "fast")


class Optimize(NamedTuple):
    """A level, and passes that are left out by name.

    none: the operators as they were captured. safe: the same numbers bit for bit. fast: numbers within the tolerances
    of docs/optimize.md; ways to run are compared with the captured operators and timed on the example, and the fastest
    one stays."""

    level: str = "safe"
    off: tuple[str, ...] = ()


SAFE = Optimize()
NONE = Optimize("none")


def read_optimize(given: str | Optimize) -> Optimize:
    """The argument of a user, checked."""
    if not isinstance(given, str | Optimize):
        raise TypeError(f"optimize is one of {', '.join(LEVELS)}, or an Optimize, not {given!r}")
    out = given if isinstance(given, Optimize) else Optimize(given)
    if out.level not in LEVELS:
        raise ArgumentError(f"optimize is one of {', '.join(LEVELS)}, not {out.level!r}")
    if not isinstance(out.off, list | tuple | set | frozenset):
        raise ArgumentError(f"off is several names of passes, as ('fuse',), not {out.off!r}")
    known = _native.passes()
    for name in out.off:
        if name not in known:
            raise ArgumentError(f"there is no pass {name!r}: passes are {', '.join(known)}")
    return out


def read_level(given: str | Optimize) -> str:
    """The same where passes cannot be left out: what runs from files."""
    out = read_optimize(given)
    if out.off:
        raise ArgumentError(f"optimize is a level here, as {out.level!r}: files and traces leave out no single pass")
    return out.level

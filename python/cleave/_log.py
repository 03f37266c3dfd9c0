"""Loggers below "cleave", and warnings.

INFO: what was captured, where it was cut and why, sizes with a plan of their own, fallbacks. DEBUG: records, families,
formulas, times. A warning is for what a user would want to act on, and is given once. CLEAVE_LOG=info or debug writes
the log to stderr."""

from __future__ import annotations

import logging
import os
import sys
import warnings
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch

from .errors import CleaveWarning

if TYPE_CHECKING:
    _StreamHandler = logging.StreamHandler[Any]
else:
    _StreamHandler = logging.StreamHandler  # Python 3.10 cannot write it with its type

MOST_WARNED = 1024
_INSIDE = tuple(str(Path(f).parent) + os.sep for f in (__file__, torch.__file__))
_warned: set[str] = set()


def logger(name: str) -> logging.Logger:
    """The logger "cleave.<name>"."""
    return logging.getLogger(f"cleave.{name}")


def warn(message: str) -> None:
    """Warns once about something, at the line of the user's that led here."""
    if message in _warned:
        return
    if len(_warned) >= MOST_WARNED:
        _warned.clear()
    _warned.add(message)
    frame, level = sys._getframe(1), 2
    while frame.f_back is not None and frame.f_code.co_filename.startswith((*_INSIDE, "<cleave ")):
        frame, level = frame.f_back, level + 1
    warnings.warn(message, CleaveWarning, stacklevel=level)


class StderrHandler(_StreamHandler):
    """Writes to sys.stderr as it is at the time, and never into the line of a bar."""

    def emit(self, record: logging.LogRecord) -> None:
        """One line."""
        from . import progress  # which logs too

        with progress.aside():
            self.stream = sys.stderr
            if self.stream is not None:
                super().emit(record)


def set_up(level: str | None) -> None:
    """A library is silent by default; `level` is what CLEAVE_LOG says."""
    top = logging.getLogger("cleave")
    top.addHandler(logging.NullHandler())
    if not level:
        return
    number = logging.getLevelName(level.upper())
    if not isinstance(number, int):
        warn(f"CLEAVE_LOG is info or debug, not {level!r}: there is no log")
        return
    handler = StderrHandler()
    handler.setFormatter(logging.Formatter("%(asctime)s %(name)s: %(message)s", "%H:%M:%S"))
    top.addHandler(handler)
    top.setLevel(number)

"""Progress bars for preparations that take over a second, and listeners for programs.

    preparing ResNet: 6 steps [00:03, recording B=5]

A bar is written to stderr when that is a terminal or a notebook, and is gone when the work is done. In a notebook it is
tqdm's widget where tqdm is installed. `cleave.set_progress` and CLEAVE_PROGRESS=0 or 1 say otherwise.

>>> import torch, cleave
>>> with cleave.progress.listen(lambda event: None):
...     plan = cleave.capture(torch.nn.Linear(4, 2), torch.randn(3, 4))

What is long runs in C or in the model, so a thread of its own moves the clock. It is started for bars alone, touches no
tensor, and is not one of `threading`'s: captures ask how many there are."""

from __future__ import annotations

import _thread
import contextlib
import os
import sys
import threading
import time
import warnings
from collections.abc import Callable, Iterator
from typing import Any, Literal, NamedTuple

from ._log import logger
from ._show import plain, plural
from .errors import ArgumentError

DELAY = 1.0  # seconds before there is a bar
TICK = 0.2
BAR = 10  # characters

log = logger("progress")


class Event(NamedTuple):
    """Where a preparation is."""

    title: str  # "preparing ResNet"
    step: str  # "recording B=3"
    done: int  # steps behind us
    total: int | None  # None: not known before the end
    seconds: float
    ended: bool


Listener = Callable[[Event], object]
Mode = bool | Literal["auto"]


class _Task:
    """What one thread is preparing. Preparations inside of it are steps of it."""

    def __init__(self, title: str, total: int | None) -> None:
        self.title, self.total = title, total
        self.step = ""
        self.started, self.depth = 0, 0
        self.since = time.monotonic()

    def event(self, ended: bool = False) -> Event:
        done = self.started if ended else max(0, self.started - 1)
        return Event(self.title, self.step, done, self.total, time.monotonic() - self.since, ended)


_local = threading.local()  # task: of this thread
_lock = threading.RLock()  # around what follows, and around writing
_tasks: list[_Task] = []  # of all threads; the oldest has the bar
_bar: Any = None  # _Line or _Widget, while it is to be seen
_ticking = False
_listeners: tuple[Listener, ...] = ()
_mode: Mode = {"0": False, "1": True}.get(os.environ.get("CLEAVE_PROGRESS", ""), "auto")


def set_progress(mode: Mode) -> None:
    """True: bars always; False: never; "auto" (the default): when stderr is a terminal, and in notebooks."""
    global _mode
    if not isinstance(mode, bool) and mode != "auto":
        raise ArgumentError(f'set_progress takes True, False or "auto", not {mode!r}')
    _mode = mode


@contextlib.contextmanager
def listen(listener: Listener) -> Iterator[None]:
    """Calls `listener` with an Event at every step of every preparation, on the thread that prepares, and once more at
    its end. What it raises is logged and goes no further. It must not call what is being prepared: that is locked."""
    global _listeners
    with _lock:
        _listeners = (*_listeners, listener)
    try:
        yield
    finally:
        with _lock:
            left = list(_listeners)
            left.remove(listener)
            _listeners = tuple(left)


# ---- for the rest of the package


@contextlib.contextmanager
def task(title: str, total: int | None = None) -> Iterator[None]:
    """Around a preparation. total: how many steps it will have, where that is known."""
    outer: _Task | None = getattr(_local, "task", None)
    if outer is not None:
        outer.depth += 1
        try:
            yield
        finally:
            outer.depth -= 1
        return
    bar = _wanted()
    if not bar and not _listeners:
        yield
        return
    mine = _local.task = _Task(title, total)
    try:
        if bar:
            _begin(mine)
        yield
    finally:
        _local.task = None
        _end(mine)


def step(text: str, counted: bool = False) -> None:
    """Says what is done from now on. counted: one of the `total` steps. Does nothing outside of a task."""
    mine: _Task | None = getattr(_local, "task", None)
    if mine is None:
        return
    with _lock:
        mine.step = text
        if mine.total is None or (counted and mine.depth == 0):
            mine.started += 1
        _draw()
    _tell(mine.event())


@contextlib.contextmanager
def aside() -> Iterator[None]:
    """Something else is written to stderr: no bar may be in its line."""
    with _lock:
        if isinstance(_bar, _Line):
            _clear()
        yield


def say(text: str) -> None:
    """One line about a finished preparation, where bars are shown."""
    if not _wanted():
        return
    with aside(), contextlib.suppress(Exception):  # no stderr, or one that is closed
        sys.stderr.write(f"{plain(text)}\n")
        sys.stderr.flush()


def _wanted() -> bool:
    if _mode != "auto":
        return bool(_mode)
    try:
        return sys.stderr.isatty() or _in_notebook()
    except Exception:  # no stderr, or one that is closed
        return False


def _in_notebook() -> bool:
    ipython = sys.modules.get("IPython")
    shell = ipython.get_ipython() if ipython is not None else None
    return shell is not None and hasattr(shell, "kernel")


def _begin(mine: _Task) -> None:
    global _ticking
    with _lock:
        _tasks.append(mine)
        if not _ticking:
            with contextlib.suppress(RuntimeError):  # no more threads: bars move at steps alone
                _thread.start_new_thread(_tick, ())
                _ticking = True


def _end(mine: _Task) -> None:
    with _lock:
        if mine in _tasks:
            if mine is _tasks[0]:
                _clear()
            _tasks.remove(mine)
    _tell(mine.event(ended=True))


def _tell(event: Event) -> None:
    for listener in _listeners:
        try:
            listener(event)
        except Exception:
            log.warning("a listener of progress raised", exc_info=True)


def _tick() -> None:
    global _ticking
    while True:
        time.sleep(TICK)
        with _lock:
            if not _tasks:
                _ticking = False
                return
            _draw()


def _after_fork() -> None:
    """The child has no bar, and no thread that would release the lock."""
    global _lock, _ticking, _bar
    _lock, _ticking, _bar = threading.RLock(), False, None
    _tasks.clear()
    _local.__dict__.clear()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_after_fork)


# ---- bars. A bar that cannot be written must not stop the work.


def _draw() -> None:
    global _bar
    if not _tasks:
        return
    event = _tasks[0].event()
    if event.seconds < DELAY:
        return
    try:
        if _bar is None:
            _bar = _new_bar(event)
        _bar.draw(event)
    except Exception:
        log.debug("a bar could not be written", exc_info=True)


def _clear() -> None:
    global _bar
    bar, _bar = _bar, None
    if bar is not None:
        with contextlib.suppress(Exception):
            bar.close()


def _new_bar(event: Event) -> Any:
    if _in_notebook():
        with contextlib.suppress(Exception):  # no tqdm, or no widgets for it
            return _Widget(event)
    return _Line(sys.stderr)


class _Line:
    """The last line of a terminal."""

    def __init__(self, stream: Any) -> None:
        self.stream = stream
        self.shown = 0  # characters to wipe out

    def draw(self, event: Event) -> None:
        text = line(event, self._width(), self._blocks())
        self.stream.write("\r" + text + " " * (self.shown - len(text)))
        self.stream.flush()
        self.shown = len(text)

    def close(self) -> None:
        self.stream.write("\r" + " " * self.shown + "\r")
        self.stream.flush()

    def _width(self) -> int:
        try:
            return os.get_terminal_size(self.stream.fileno()).columns or 80
        except (OSError, ValueError, AttributeError):
            return 80

    def _blocks(self) -> bool:
        try:
            "█".encode(self.stream.encoding or "ascii")
        except (UnicodeError, LookupError, AttributeError):
            return False
        return True


def line(event: Event, width: int, blocks: bool = True) -> str:
    """An event as a line of at most width - 1 characters."""
    seconds = int(event.seconds)
    clock = f"{seconds // 60:02d}:{seconds % 60:02d}"
    title = plain(event.title)
    tail = f"[{clock}, {plain(event.step)}]" if event.step else f"[{clock}]"
    if event.total:
        part = min(1.0, event.done / event.total)
        filled = int(part * BAR)
        bar = ("█" if blocks else "#") * filled + " " * (BAR - filled)
        text = f"{title}: {int(100 * part):3d}%|{bar}| {event.done}/{event.total} {tail}"
    else:
        text = f"{title}: {plural(event.done, 'step')} {tail}"
    if not blocks:
        text = text.encode("ascii", "replace").decode("ascii")
    return text[: max(0, width - 1)]


class _Widget:
    """tqdm's bar, which is a widget in a notebook. Its monitor thread stays out: captures count threads."""

    def __init__(self, event: Event) -> None:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            from tqdm.auto import tqdm  # type: ignore[import-untyped,unused-ignore]

        kind = type("tqdm", (tqdm,), {"monitor_interval": 0})
        self.bar = kind(total=event.total, desc=event.title, leave=False)

    def draw(self, event: Event) -> None:
        self.bar.n = event.done
        self.bar.set_postfix_str(event.step, refresh=False)
        self.bar.refresh()

    def close(self) -> None:
        self.bar.close()

"""Forked processes with a time limit: their answer, or the reason why there is none.

A fork has torch and the model already. For that the parent must have started no threads of OpenMP and no GPU.
"""

from __future__ import annotations

import ctypes
import json
import os
import select
import signal
import sys
import tempfile
import time
import traceback
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

PR_SET_PDEATHSIG = 1
KEPT = 300  # letters of a reason
LOOK = 0.2  # seconds between looks at whether a child still lives


class Failed(Exception):
    """Why the child gave nothing."""


class Late(Failed):
    """It would have taken longer."""


def short(error: BaseException | str) -> str:
    """The first line that says something."""
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    text = lines[0] if lines else ""
    if isinstance(error, BaseException):
        text = f"{type(error).__name__}: {text}" if text else type(error).__name__
    return text[:KEPT]


def end_with_parent() -> None:
    """A run that is interrupted leaves nothing behind (Linux)."""
    with suppress(OSError, AttributeError):
        ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGKILL)


def _serve(answer: Callable[[Any], Any], questions: int, answers: int, log: Path) -> None:
    """In the child: answers until nobody asks any more."""
    end_with_parent()
    os.setpgid(0, 0)  # whatever it starts ends with it
    with suppress(OSError):
        Path("/proc/self/oom_score_adj").write_text("1000")  # rather this one than anything else on the machine
    target = os.open(log, os.O_WRONLY | os.O_CREAT | os.O_TRUNC)
    os.dup2(target, 1)
    os.dup2(target, 2)
    with os.fdopen(questions, "rb") as asked, os.fdopen(answers, "wb") as told:
        for line in asked:
            try:
                found = {"ok": answer(json.loads(line))}
            except Exception as error:
                traceback.print_exc()
                found = {"failed": short(error)}
            sys.stdout.flush()
            sys.stderr.flush()
            told.write(json.dumps(found).encode() + b"\n")
            told.flush()


def _ended(status: int, log: Path) -> str:
    code = os.waitstatus_to_exitcode(status)
    tail = [line for line in log.read_text(errors="replace").splitlines() if line.strip()][-1:] if log.exists() else []
    last = f" (its last words: {tail[0].strip()[:KEPT]})" if tail else ""
    if code == -signal.SIGKILL:
        return f"killed, most likely because memory was short{last}"
    if code < 0:
        return f"ended by {signal.Signals(-code).name}{last}"
    return f"ended with status {code} and without an answer{last}"


class Child:
    """A forked process that keeps what it made, and answers questions one at a time. Use it in a `with`.

    Questions and answers are what JSON carries."""

    def __init__(self, answer: Callable[[Any], Any]) -> None:
        self._folder = tempfile.TemporaryDirectory(prefix="cleave-bench-")
        self._log = Path(self._folder.name) / "log"
        asked, self._ask = os.pipe()
        self._told, tell = os.pipe()
        sys.stdout.flush()
        sys.stderr.flush()
        self._pid = os.fork()
        if self._pid == 0:
            try:
                os.close(self._ask)
                os.close(self._told)
                _serve(answer, asked, tell, self._log)
            finally:
                os._exit(0)
        os.close(asked)
        os.close(tell)
        self._status: int | None = None
        self._open = True

    def ask(self, question: Any, limit: float) -> Any:
        """The answer within so many seconds. Failed says why there is none, and the process is then gone, unless it
        said so itself."""
        if not self._open:
            raise Failed("its process has ended")
        with suppress(BrokenPipeError):  # it died, and the reason is found below
            os.write(self._ask, json.dumps(question).encode() + b"\n")
        line = self._line(limit)
        if line is None:
            late, why = self._status is None, f"not done after {limit:.0f} s"
            if not late:
                why = _ended(self._status, self._log)
            self.end()
            raise Late(why) if late else Failed(why)
        told = json.loads(line)
        if "failed" in told:
            raise Failed(told["failed"])
        return told["ok"]

    def _line(self, limit: float) -> bytes | None:
        """One line from the child; None when the time is over or the child has ended."""
        end, text = time.monotonic() + limit, b""
        while (left := end - time.monotonic()) > 0:
            if select.select([self._told], [], [], min(left, LOOK))[0]:
                part = os.read(self._told, 1 << 16)
                text += part
                if text.endswith(b"\n"):
                    return text
                if part:
                    continue
            if self._ended():  # what it started may still hold its end of the pipe
                return None
        return None

    def _ended(self) -> bool:
        done, status = os.waitpid(self._pid, os.WNOHANG)
        if done:
            self._status = status
        return bool(done)

    def end(self) -> None:
        """The process, and whatever it started."""
        if not self._open:
            return
        self._open = False
        with suppress(OSError):
            os.killpg(self._pid, signal.SIGKILL)
        if self._status is None:
            with suppress(OSError):
                os.kill(self._pid, signal.SIGKILL)  # it may not have had its own group yet
            os.waitpid(self._pid, 0)
        os.close(self._ask)
        os.close(self._told)
        self._folder.cleanup()

    def __enter__(self) -> Child:
        return self

    def __exit__(self, *_: object) -> None:
        self.end()


def in_child(function: Callable[[], Any], limit: float) -> Any:
    """What the function gives, as JSON carries it. Failed says why there is nothing."""
    with Child(lambda _: function()) as child:
        return child.ask(None, limit)

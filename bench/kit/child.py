"""A function in a forked process, with an end: what it gave, or why it gave nothing.

A fork has torch and the model already. For that the parent must have started no threads of OpenMP and no GPU.
"""

from __future__ import annotations

import ctypes
import json
import os
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


class Failed(Exception):
    """Why the child gave nothing."""


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


def _work(function: Callable[[], Any], answer: Path, log: Path) -> None:
    end_with_parent()
    os.setpgid(0, 0)  # whatever it starts ends with it
    with suppress(OSError):
        Path("/proc/self/oom_score_adj").write_text("1000")  # rather this one than anything else on the machine
    target = os.open(log, os.O_WRONLY | os.O_CREAT | os.O_TRUNC)
    os.dup2(target, 1)
    os.dup2(target, 2)
    try:
        told = {"ok": function()}
    except Exception as error:
        traceback.print_exc()
        told = {"failed": short(error)}
    sys.stdout.flush()
    sys.stderr.flush()
    answer.with_suffix(".part").write_text(json.dumps(told))
    answer.with_suffix(".part").rename(answer)


def _ended(status: int, log: Path) -> str:
    code = os.waitstatus_to_exitcode(status)
    tail = [line for line in log.read_text(errors="replace").splitlines() if line.strip()][-1:] if log.exists() else []
    last = f" (its last words: {tail[0].strip()[:KEPT]})" if tail else ""
    if code == -signal.SIGKILL:
        return f"killed, most likely because memory was short{last}"
    if code < 0:
        return f"ended by {signal.Signals(-code).name}{last}"
    return f"ended with status {code} and without an answer{last}"


def _wait(pid: int, limit: float) -> int | None:
    """The status; None when the time is over."""
    end, pause = time.monotonic() + limit, 0.002
    while time.monotonic() < end:
        done, status = os.waitpid(pid, os.WNOHANG)
        if done:
            return status
        time.sleep(pause)
        pause = min(0.1, 2 * pause)
    return None


def in_child(function: Callable[[], Any], limit: float) -> Any:
    """What the function gives, as JSON carries it. Failed says why there is nothing."""
    with tempfile.TemporaryDirectory(prefix="cleave-bench-") as folder:
        answer, log = Path(folder) / "answer", Path(folder) / "log"
        sys.stdout.flush()
        sys.stderr.flush()
        pid = os.fork()
        if pid == 0:
            try:
                _work(function, answer, log)
            finally:
                os._exit(0)
        status = _wait(pid, limit)
        with suppress(OSError):
            os.killpg(pid, signal.SIGKILL)
        if status is None:
            os.waitpid(pid, 0)
            raise Failed(f"not done after {limit:.0f} s")
        if not answer.exists():
            raise Failed(_ended(status, log))
        told = json.loads(answer.read_text())
        if "failed" in told:
            raise Failed(told["failed"])
        return told["ok"]

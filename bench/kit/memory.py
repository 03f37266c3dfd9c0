"""Memory of this process: what it holds, and the most that it held since the last look."""

from __future__ import annotations

import contextlib
import ctypes
import ctypes.util
from pathlib import Path

import torch

STATUS = Path("/proc/self/status")
RESET = Path("/proc/self/clear_refs")


def _megabytes(field: str) -> float | None:
    try:
        lines = STATUS.read_text().splitlines()
    except OSError:
        return None
    found = next((line for line in lines if line.startswith(f"{field}:")), None)
    return None if found is None else int(found.split()[1]) / 1024


class Memory:
    """Megabytes over those at the start. On a GPU those that torch has reserved there."""

    def __init__(self, device: str) -> None:
        self.device = device
        self._trim()
        self.start = self._held()
        self.reset()

    def _trim(self) -> None:
        """Memory that is free in the process goes back to the system, so that only what is used counts."""
        if self.device != "cpu":
            torch.cuda.synchronize()
            torch.cuda.empty_cache()
            return
        with contextlib.suppress(OSError, AttributeError):
            ctypes.CDLL(ctypes.util.find_library("c")).malloc_trim(0)

    def _held(self) -> float | None:
        return _megabytes("VmRSS") if self.device == "cpu" else torch.cuda.memory_reserved() / 2**20

    def reset(self) -> None:
        """From now on `peak` counts anew."""
        if self.device != "cpu":
            torch.cuda.reset_peak_memory_stats()
            return
        with contextlib.suppress(OSError):
            RESET.write_text("5")

    def peak(self) -> float | None:
        top = _megabytes("VmHWM") if self.device == "cpu" else torch.cuda.max_memory_reserved() / 2**20
        return self._over(top)

    def kept(self) -> float | None:
        self._trim()
        return self._over(self._held())

    def _over(self, now: float | None) -> float | None:
        return None if now is None or self.start is None else round(now - self.start, 2)

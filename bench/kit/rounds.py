"""The one place that measures: every way in turn, round by round; what else the machine does hits all alike.

In its turn a way first runs untimed for a moment: threads of the way before it (OpenMP, TBB and ONNX Runtime let theirs
spin for some milliseconds) then have gone to sleep, and its own are awake. Short calls are timed in blocks.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from typing import Any

import torch

LEAST = 3  # rounds, however long they take
LEAD_IN = 0.004  # seconds that a way runs untimed at the start of its turn; one call that is longer needs no lead-in
LONG = 1.0  # seconds of a call that needs no more warming up than one
BLOCK = 0.002  # seconds that a timed block is to have at least

Ways = Mapping[str, Callable[[], Any]]


def _now(device: str) -> float:
    if device != "cpu":
        torch.cuda.synchronize()
    return time.perf_counter()


def _run(call: Callable[[], Any], times: int, device: str) -> float:
    """Seconds of one call, over a number of them."""
    start = _now(device)
    for _ in range(times):
        call()
    return (_now(device) - start) / times


def _turn(call: Callable[[], Any], about: float, device: str) -> float:
    """Seconds of one call of a way whose calls take about so long."""
    if about < 10 * LEAD_IN:
        _run(call, max(1, round(LEAD_IN / about)), device)
    return _run(call, max(1, round(BLOCK / about)), device)


def _warmed(call: Callable[[], Any], warmup: int, device: str) -> float:
    """About how long a call takes when it does not run for the first time; long calls are not repeated for that."""
    least = _run(call, 1, device)
    for _ in range(1, warmup):
        if least > LONG:
            break
        least = min(least, _run(call, 1, device))
    return max(1e-7, least)


def rounds(
    ways: Ways, *, iterations: int, warmup: int = 3, device: str = "cpu", seconds: float | None = None
) -> dict[str, list[float]]:
    """Milliseconds of a call of each way, one number for each round.

    seconds: no round begins after them, but there are at least three (fewer only if iterations says so)."""
    end = None if seconds is None else time.perf_counter() + seconds
    about: dict[str, float] = {}
    for name, call in ways.items():
        about[name] = _warmed(call, warmup, device)
    times: dict[str, list[float]] = {name: [] for name in ways}
    order = list(ways)
    for done in range(iterations):
        if end is not None and done >= LEAST and time.perf_counter() > end:
            break
        order.append(order.pop(0))  # another way goes first
        for name in order:
            times[name].append(1e3 * _turn(ways[name], about[name], device))
    return times

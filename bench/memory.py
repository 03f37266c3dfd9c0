"""Memory of steady runs: eager, the tape with torch's allocator, the tape with its pool, what "fast" makes of it.

python bench/memory.py [--models torchvision-resnet50 ...] [--batches 4 32] [--ways eager tape] [--iterations 10]
                       [--json FILE]

Each way runs in a process of its own: page faults of a run, megabytes that its operators take from torch's allocator
in a run, the most that the process holds above what it held before the way was prepared. Then all of them in one
process, in turn: milliseconds, medians. Nothing passes or fails.
"""

from __future__ import annotations

import os

os.environ.setdefault("OMP_NUM_THREADS", "1")  # forks must have no threads before

import argparse
import itertools
import json
import resource
import statistics
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from kit import cases
from kit.child import Failed, in_child
from kit.memory import Memory
from kit.rounds import rounds
from kit.text import as_terminal, plain
from torch import nn

import cleave
from cleave.optimize import Optimize

MODELS = ("torchvision-mobilenet_v3_large", "torchvision-resnet50", "transformers-bert")
WAYS: dict[str, Optimize | None] = {
    "eager": None,
    "tape without a pool": Optimize("safe", off=("memory",)),
    "tape": Optimize("safe"),
    "fast": Optimize("fast"),
}
WARMUP = 4  # the first runs plan
MOST_SECONDS = 280.0

Call = Callable[[], Any]


def prepared(way: str, case: cases.Case) -> tuple[Call, cleave.Plan | None]:
    level = WAYS[way]
    if level is None:
        return lambda: case.model(*case.args, **case.kwargs), None
    plan = cleave.capture(case.model, case.args, case.kwargs, optimize=level, both_grad_modes=False)
    return lambda: plan(*case.args, **case.kwargs), plan


def taken(call: Call, plan: cleave.Plan | None) -> float:
    """Megabytes that a run takes from torch's allocator."""
    counts = plan._first.program.native.memory() if plan else None
    if counts:
        return float(counts["outside_bytes"]) / 1e6
    with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CPU], profile_memory=True) as seen:
        call()
    events = seen.profiler.kineto_results.events()
    return float(sum(max(0, e.nbytes()) for e in events if e.name() == "[memory]")) / 1e6


def faults() -> int:
    return resource.getrusage(resource.RUSAGE_SELF).ru_minflt


@torch.no_grad()
def alone(way: str, case: cases.Case, iterations: int) -> dict[str, Any]:
    prepared(way, cases.Case(nn.Sequential(nn.Linear(4, 4)).eval(), (torch.rand(2, 4),), {}))[0]()
    case.model(*case.args, **case.kwargs)  # what the model keeps from its first call
    memory = Memory("cpu")
    call, plan = prepared(way, case)
    for _ in range(WARMUP):
        call()
    kept = memory.kept()
    memory.reset()
    call()  # what was trimmed comes back
    before = faults()
    for _ in range(iterations):
        call()
    found = {"faults": (faults() - before) / iterations, "peak_mb": memory.peak(), "kept_mb": kept}
    return {**found, "taken_mb": taken(call, plan)}


@torch.no_grad()
def in_turn(ways: list[str], case: cases.Case, iterations: int) -> dict[str, float]:
    calls = {way: prepared(way, case)[0] for way in ways}
    for call in calls.values():
        for _ in range(WARMUP):
            call()
    times = rounds(calls, iterations=iterations, device="cpu", seconds=MOST_SECONDS / 2)
    return {way: statistics.median(ms) for way, ms in times.items()}


def measure(model: str, batch: int, ways: list[str], iterations: int) -> list[dict[str, Any]]:
    case = cases.build(model, batch)
    lines: list[dict[str, Any]] = []
    for way in ways:
        line: dict[str, Any] = {"model": model, "batch": batch, "way": way}
        try:
            line |= in_child(lambda way=way: alone(way, case, iterations), MOST_SECONDS)
        except Failed as error:
            line["failed"] = str(error)
        lines.append(line)
    try:
        times = in_child(lambda: in_turn(ways, case, iterations), MOST_SECONDS)
    except Failed as error:
        times = {}
        lines[0]["failed"] = f"in turn: {error}"
    return [{**line, "ms": times.get(line["way"])} for line in lines]


HEAD = {
    "model": "model",
    "batch": "batch",
    "way": "way",
    "faults": "faults per run",
    "taken_mb": "MB taken per run",
    "peak_mb": "peak MB",
    "kept_mb": "MB between runs",
    "ms": "ms",
    "failed": "",
}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--models", nargs="+", default=list(MODELS))
    parser.add_argument("--batches", nargs="+", type=int, default=[4, 32])
    parser.add_argument("--ways", nargs="+", choices=list(WAYS), default=list(WAYS))
    parser.add_argument("--iterations", type=int, default=10)
    parser.add_argument("--json", type=Path)
    args = parser.parse_args()
    lines: list[dict[str, Any]] = []
    for model, batch in itertools.product(args.models, args.batches):
        found = measure(model, batch, args.ways, args.iterations)
        print(
            as_terminal([list(HEAD.values()), *([plain(line.get(key)) for key in HEAD] for line in found)]), flush=True
        )
        lines += found
    if args.json:
        args.json.write_text(json.dumps(lines, indent=1) + "\n")


if __name__ == "__main__":
    main()

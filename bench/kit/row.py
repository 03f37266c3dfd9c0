"""One row of the tables: a model, a batch size and a kind of run, by every way. `python -m kit.row SPEC OUT`.

Every way has a process of its own, in which it is prepared once. First each is tried alone: seconds until its first
result with empty caches, memory, how far its numbers are from eager. Those that work then take turns in rounds, each
in its process, while the others wait: `cleave.benchmark.compare` says who runs, the process of the way has the clock.
A way that crashes costs nobody else anything, and nobody's threads, allocator or settings are in another's way.

A row has its budget of seconds, and some runs of eager on top, so that long calls get their time. Trials have most
of it; what finds no time is left out, with that reason. Rounds end when the ratios to eager are known within
1 %, or with the time, but not before the third.
"""

from __future__ import annotations

import contextlib
import importlib
import json
import os
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import torch

from cleave.benchmark import BenchmarkResult, Timed, compare

from . import cases, tree
from .child import Child, Failed, Late, end_with_parent, in_child, short
from .memory import Memory
from .names import EAGER, SHORT_CALLS
from .ways import WAYS, Job, LeftOut, Prepared, cut_module

TRIALS = 0.85  # of a row's seconds are for trials; what is left is for the rounds
ONE_TRIAL = 0.4  # and so much at most for one way
EAGER_RUNS = 40  # that a row gets on top of its seconds
EAGER_S = 300.0  # for the trial of eager itself, without which there is no row
STEADY, STEADY_S = 3, 2.0  # runs in which the memory of a steady run is seen, fewer where they take so many seconds
KNOWN = 0.01  # how closely the rounds are to find a ratio
WARMUP = 2  # rounds; the trials have warmed up already


class Spec(NamedTuple):
    """What the driver asks for."""

    model: str
    batch: int
    kind: str
    device: str
    threads: int
    small: bool
    tokens: int
    ways: list[str]
    iterations: int
    budget: float


def _set_up(spec: Spec, case: cases.Case) -> cases.Case:
    """In a child: threads, and the model on its device."""
    os.environ["OMP_NUM_THREADS"] = str(spec.threads)
    torch.set_num_threads(spec.threads)
    torch.manual_seed(0)
    if spec.device == "cpu":
        return case
    torch.backends.cuda.matmul.allow_tf32 = True  # for every way alike
    torch.backends.cudnn.allow_tf32 = True
    args = tuple(t.to(spec.device) for t in case.args)
    return cases.Case(case.model.to(spec.device), args, {k: t.to(spec.device) for k, t in case.kwargs.items()})


def _prepare(way: str, spec: Spec, case: cases.Case, folder: Path, module: str = "") -> Prepared:
    """A way with caches of its own."""
    mine = folder / way
    mine.mkdir(parents=True, exist_ok=True)
    os.environ["TORCHINDUCTOR_CACHE_DIR"] = str(mine / "inductor")
    os.environ["TRITON_CACHE_DIR"] = str(mine / "triton")
    os.environ["CLEAVE_CACHE"] = str(mine / "cleave")
    job = Job(case, spec.kind, spec.device, spec.threads, mine, module)
    return WAYS[way].by_kind[spec.kind](job)


def _wait_for_device(spec: Spec) -> None:
    if spec.device != "cpu":
        torch.cuda.synchronize()


def _distance(prepared: Prepared, want: list[torch.Tensor], device: str) -> dict[str, Any]:
    if prepared.result is None:
        return {}
    found = tree.Distance(list(prepared.result()), want, device)
    facts: dict[str, Any] = {"error": float(f"{found.error:.3g}"), "equal": found.equal}
    return facts if found.wrong is None else {**facts, "wrong": found.wrong}


def _touch(case: cases.Case) -> None:
    """What torch sets up on first use is there, and not in the seconds of a way: one row through the model."""
    with contextlib.suppress(Exception), torch.no_grad():
        case.model(*(t[:1] for t in case.args), **{key: t[:1] for key, t in case.kwargs.items()})


def _load(way: str, spec: Spec, folder: Path) -> None:
    """The packages of a way, used once: seconds and memory are then those of the model. What a compiler does for the
    first time it does for the model."""
    if WAYS[way].compiles:
        for name in ("cleave", "torch._inductor.compile_fx", "ariadne" if way.startswith("ariadne") else "cleave"):
            with contextlib.suppress(ImportError):
                importlib.import_module(name)
        return
    layer = torch.nn.Linear(4, 4).eval().to(spec.device)
    tiny = cases.Case(torch.nn.Sequential(layer, torch.nn.ReLU()).eval(), (torch.rand(2, 4, device=spec.device),), {})
    with contextlib.suppress(Exception):  # it will be told about the model
        _prepare(way, spec, tiny, folder / "tiny").call()


def _steady(prepared: Prepared, spec: Spec) -> float:
    """Seconds of a run, after a few of them."""
    start = time.perf_counter()
    runs, seconds = 0, 0.0
    while runs < STEADY and seconds < STEADY_S:
        prepared.call()
        _wait_for_device(spec)
        runs, seconds = runs + 1, time.perf_counter() - start
    return seconds / runs


def _compared(way: str, prepared: Prepared, spec: Spec, folder: Path) -> dict[str, Any]:
    """How far the numbers are from eager's, which are kept for the others when they are made."""
    file = folder / "eager.pt"
    if way == EAGER:
        assert prepared.result is not None
        torch.save(list(prepared.result()), file)
    return _distance(prepared, torch.load(file), spec.device)


def _trial(way: str, spec: Spec, on_cpu: cases.Case, folder: Path, module: str) -> tuple[dict[str, Any], Timed | None]:
    """Facts about a way by itself, and the way, ready for the clock."""
    case = _set_up(spec, on_cpu)
    _touch(case)
    _load(way, spec, folder)
    memory = Memory(spec.device)
    start = time.perf_counter()
    try:
        prepared = _prepare(way, spec, case, folder, module)
    except LeftOut as error:
        return {"status": "left out", "reason": str(error)}, None
    prepared.call()
    _wait_for_device(spec)
    seconds = 0.0 if way == EAGER else time.perf_counter() - start
    facts = {"prepare_s": round(seconds, 4), "prepare_peak_mb": memory.peak(), "kept_mb": memory.kept()}
    memory.reset()
    facts["run_s"] = round(_steady(prepared, spec), 6)
    facts["peak_mb"] = memory.peak()
    found = {"status": "ok", **facts, **_compared(way, prepared, spec, folder), "note": prepared.note}
    return found, Timed(prepared.call, spec.device)


def _answers(way: str, spec: Spec, on_cpu: cases.Case, folder: Path, module: str) -> Callable[[Any], Any]:
    """What the process of a way says: first the facts, then seconds of so many runs."""
    ready: list[Timed] = []

    def answer(times: int | None) -> Any:
        if times is not None:
            return ready[0].seconds(times)
        facts, timed = _trial(way, spec, on_cpu, folder, module)
        ready.extend([] if timed is None else [timed])
        return facts

    return answer


class _Lost(Exception):
    """A way that failed beside the others."""

    def __init__(self, way: str, why: str) -> None:
        super().__init__(why)
        self.way = way


class _There(NamedTuple):
    """A way in its process, as compare takes it."""

    way: str
    child: Child
    limit: float

    def seconds(self, times: int) -> float:
        try:
            return float(self.child.ask(times, self.limit))
        except Failed as error:
            raise _Lost(self.way, str(error)) from None


def _race(runners: dict[str, Child], spec: Spec, seconds: float) -> dict[str, dict[str, Any]]:
    """Milliseconds of each way, round by round; rounds in which one was lost are done again without it."""
    ways = {way: _There(way, child, 2 * spec.budget + 60) for way, child in runners.items()}
    facts: dict[str, dict[str, Any]] = {}
    results: list[BenchmarkResult] = []
    while ways and not results:
        try:
            results = compare(
                ways,
                spec.iterations,
                WARMUP,
                "cpu",
                memory=False,
                seconds=max(0.0, seconds),
                settled=KNOWN,
                **SHORT_CALLS,
            )
        except _Lost as lost:
            facts[lost.way] = {"status": "failed", "reason": f"in the rounds: {lost}"}
            del ways[lost.way]
    for result in results:
        facts[result.name] = {"ms": [float(f"{1e3 * s:.5g}") for s in result.latencies_s]}
    return facts


def _module(spec: Spec, on_cpu: cases.Case) -> str:
    """Where the peer that splits is to cut."""
    if not {"ariadne", "ariadne-compiled"} & set(spec.ways):
        return ""
    try:
        return str(in_child(lambda: cut_module(_set_up(spec, on_cpu)), ONE_TRIAL * spec.budget))
    except Failed:
        return ""


class _Trials:
    """The ways of a row, tried one after the other; those that work stay, each in its process."""

    def __init__(self, spec: Spec, case: cases.Case, folder: str, module: str) -> None:
        self.facts: dict[str, dict[str, Any]] = {}
        self.runners: dict[str, Child] = {}
        self.budget = spec.budget
        start = time.time()
        for way in spec.ways:
            left = start + TRIALS * self.budget - time.time()
            if left <= 0 and way != EAGER:
                why = f"no time left of the row's {self.budget:.0f} s"
                self.facts[way] = {"status": "left out", "reason": why}
                continue
            limit = max(20.0, min(left + 0.1 * self.budget, ONE_TRIAL * self.budget))
            limit = limit if way != EAGER else EAGER_S
            self._try(way, Child(_answers(way, spec, case, Path(folder), module)), limit)
            if way == EAGER:
                self.budget += EAGER_RUNS * self.facts[EAGER].get("run_s", 0.0)
        self.left = start + self.budget - time.time()

    def _try(self, way: str, child: Child, limit: float) -> None:
        try:
            self.facts[way] = child.ask(None, limit)
        except Failed as error:  # one that takes too long here is not measured, which is no failure
            status = "left out" if isinstance(error, Late) else "failed"
            self.facts[way] = {"status": status, "reason": str(error)}
        if self.facts[way]["status"] == "ok":
            self.runners[way] = child
        else:
            child.end()

    def __enter__(self) -> _Trials:
        return self

    def __exit__(self, *_: object) -> None:
        for child in self.runners.values():
            child.end()


def _merge(tried: dict[str, dict[str, Any]], raced: dict[str, dict[str, Any]]) -> None:
    for way, facts in raced.items():
        tried[way].update(facts)
    for facts in tried.values():
        if "wrong" in facts:  # marked, and ranked nowhere
            facts.update(status="wrong", reason=facts.pop("wrong"))


def measure(spec: Spec) -> dict[str, Any]:
    """The row as it goes into the JSON."""
    start = time.time()
    row: dict[str, Any] = {"model": spec.model, "batch": spec.batch, "kind": spec.kind, "device": spec.device}
    case = cases.build(spec.model, spec.batch, small=spec.small, tokens=spec.tokens)
    row.update(inputs=cases.sizes(case), threads=spec.threads, ways={})
    module = _module(spec, case)
    with tempfile.TemporaryDirectory(prefix="cleave-bench-row-") as name, _Trials(spec, case, name, module) as trials:
        row["ways"] = trials.facts
        raced = _race(trials.runners, spec, trials.left) if EAGER in trials.runners else {}
    if "ms" not in raced.get(EAGER, {}):
        row["error"] = f"eager: {trials.facts[EAGER].get('reason') or raced[EAGER]['reason']}"
    _merge(trials.facts, raced)
    row["seconds"] = round(time.time() - start, 1)
    return row


def main() -> int:
    end_with_parent()
    spec = Spec(**json.loads(Path(sys.argv[1]).read_text()))
    try:
        row = measure(spec)
    except Exception as error:  # a model that cannot be built
        row = {"model": spec.model, "batch": spec.batch, "kind": spec.kind, "device": spec.device}
        row.update(ways={}, error=short(error))
    Path(sys.argv[2]).write_text(json.dumps(row))
    return 0


if __name__ == "__main__":
    sys.exit(main())

"""One row of the tables: a model, a batch size and a kind of run, by every way. `python -m kit.row SPEC OUT`.

First every way is tried in a process of its own: seconds until its first result with empty caches, memory, how far its
numbers are from eager. A way that crashes there costs nobody else anything. Those that work are then prepared once more
in one process, from what their compilers left in caches, and take turns in rounds.
"""

from __future__ import annotations

import contextlib
import importlib
import json
import os
import sys
import tempfile
import time
from pathlib import Path
from typing import Any, NamedTuple

import torch

from . import cases, tree
from .child import Failed, end_with_parent, in_child, short
from .memory import Memory
from .names import EAGER
from .rounds import rounds
from .ways import WAYS, Job, LeftOut, Prepared, cut_module

TRIALS = 0.6  # of a row's seconds are for trials; what is left is for the rounds
ONE_TRIAL = 0.4  # and so much at most for one way
STEADY = 3  # runs in which the memory of a steady run is seen


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


def _want(spec: Spec, case: cases.Case, folder: Path) -> list[torch.Tensor]:
    result = _prepare(EAGER, spec, case, folder).result
    assert result is not None
    return list(result())


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


def _trial(way: str, spec: Spec, on_cpu: cases.Case, folder: Path, module: str) -> dict[str, Any]:
    """Facts about a way by itself."""
    case = _set_up(spec, on_cpu)
    want = _want(spec, case, folder)
    _load(way, spec, folder)
    memory = Memory(spec.device)
    start = time.perf_counter()
    try:
        prepared = _prepare(way, spec, case, folder, module)
    except LeftOut as error:
        return {"status": "left out", "reason": str(error)}
    prepared.call()
    _wait_for_device(spec)
    seconds = 0.0 if way == EAGER else time.perf_counter() - start
    facts = {"prepare_s": round(seconds, 4), "prepare_peak_mb": memory.peak(), "kept_mb": memory.kept()}
    memory.reset()
    for _ in range(STEADY):
        prepared.call()
    _wait_for_device(spec)
    facts["peak_mb"] = memory.peak()
    return {"status": "ok", **facts, **_distance(prepared, want, spec.device), "note": prepared.note}


def _race(ways: list[str], spec: Spec, on_cpu: cases.Case, folder: Path, module: str, end: float) -> dict[str, Any]:
    """All ways in one process: milliseconds of each, round by round."""
    case = _set_up(spec, on_cpu)
    want = _want(spec, case, folder)
    ready: dict[str, Prepared] = {}
    facts: dict[str, dict[str, Any]] = {}
    for way in ways:
        try:
            ready[way] = _prepare(way, spec, case, folder, module)
            facts[way] = _distance(ready[way], want, spec.device)
        except Exception as error:  # beside others it can fail where alone it did not
            ready.pop(way, None)
            facts[way] = {"status": "failed", "reason": f"beside the others: {short(error)}"}
    calls = {way: prepared.call for way, prepared in ready.items()}
    seconds = max(0.0, end - time.time())
    times = rounds(calls, iterations=spec.iterations, device=spec.device, seconds=seconds)
    for way, samples in times.items():
        facts[way]["ms"] = [float(f"{ms:.5g}") for ms in samples]
    return facts


def _module(spec: Spec, on_cpu: cases.Case) -> str:
    """Where the peer that splits is to cut."""
    if not {"ariadne", "ariadne-compiled"} & set(spec.ways):
        return ""
    try:
        return str(in_child(lambda: cut_module(_set_up(spec, on_cpu)), ONE_TRIAL * spec.budget))
    except Failed:
        return ""


def _tried(spec: Spec, case: cases.Case, folder: Path, module: str, start: float) -> dict[str, dict[str, Any]]:
    last = start + TRIALS * spec.budget
    found: dict[str, dict[str, Any]] = {}
    for way in spec.ways:
        left = last - time.time()
        if left <= 0 and way != EAGER:
            found[way] = {"status": "left out", "reason": f"no time left of the row's {spec.budget:g} s"}
            continue
        limit = max(20.0, min(left + 0.1 * spec.budget, ONE_TRIAL * spec.budget))
        try:
            found[way] = in_child(lambda way=way: _trial(way, spec, case, folder, module), limit)  # type: ignore[misc]
        except Failed as error:
            found[way] = {"status": "failed", "reason": str(error)}
    return found


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
    with tempfile.TemporaryDirectory(prefix="cleave-bench-row-") as name:
        folder = Path(name)
        module = _module(spec, case)
        row["ways"] = tried = _tried(spec, case, folder, module, start)
        if tried[EAGER]["status"] != "ok":
            return {**row, "error": f"eager: {tried[EAGER]['reason']}"}
        runners = [way for way, facts in tried.items() if facts["status"] == "ok"]
        end = start + spec.budget
        try:
            raced = in_child(lambda: _race(runners, spec, case, folder, module, end), 2 * spec.budget + 60)
        except Failed as error:
            row["error"] = f"the rounds: {error}"
            raced = {}
    _merge(tried, raced)
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

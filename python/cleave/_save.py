"""Writing models as files: what goes into a .clv file (docs/artifact.md), and the sizes it is proven for."""

from __future__ import annotations

import itertools
import math
import os
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

import torch

from . import _native
from ._capture import Captured
from ._dims import Point, powers_within
from ._log import logger
from ._sizes import Sized
from ._state import Weights
from .errors import ArgumentError
from .payload import to_host

PARTS = ("all", "prefix", "suffix")
PROVE = ("auto", "all", "none")
PROVE_WORK = 2e11  # operations; about ten seconds of a small machine
NODE_WORK = 2e6  # of looking at a node, in operations that could have been done meanwhile
MOST_POINTS = 4096
ANY_SIZE = "sizes"  # the note of a file that serves sizes which were never recorded (src/exec/runtime.c)

log = logger("sizes")

Path = str | os.PathLike[str]


class PlanEntry(NamedTuple):
    """A plan as it goes into a file."""

    captured: Captured
    signature: str
    cut: int | None  # first node of the suffix
    points: list[Point]  # in the order of the plan's symbols
    fixed: dict[str, int]  # sizes that may change in other plans


class Head(NamedTuple):
    """What a file says beside its plans."""

    model: str
    batch: str = ""
    split_id: str = ""
    boundary: str = ""
    weights: Weights = Weights({})


def save(
    path: Path,
    head: Head,
    entries: Sequence[PlanEntry],
    *,
    part: str = "all",
    boundary: str | None = None,
    weights: bool = True,
    metadata: Mapping[str, str] | None = None,
) -> None:
    """Writes plans and the tensors they read; the file is there whole or not at all. boundary: cut the plans there.

    Raises what a call would when the model is not what it was: plans of one file are of one model."""
    check_part(part, head.split_id or boundary)
    for e in entries:
        _native.check_model(e.captured.plan, e.captured.modules)
    if torch.get_default_dtype() is not torch.float32:
        raise ArgumentError(f"torch's default dtype is {torch.get_default_dtype()}; files are for torch.float32")
    state: dict[str, torch.Tensor] = {}
    for e in entries:
        for name, (holder, key) in e.captured.state.items():
            state.setdefault(name, holder[key])
    plans = [_entry(e) for e in entries]
    fields = (head.split_id, head.boundary, head.batch, head.weights.digests, weights)
    notes = _notes(head, metadata)
    _native.artifact_save(os.fsencode(path), part, boundary, fields, notes, plans, state, to_host)


def check_part(part: str, cut: str | None) -> None:
    """Raises what is wrong with a part that a user names."""
    if not isinstance(part, str):
        raise TypeError(f"parts is a text, not {type(part).__name__}")
    if part.startswith("stage:"):
        raise ArgumentError("the model is not partitioned into stages")
    if part not in PARTS:
        raise ArgumentError(f"parts is one of {', '.join(PARTS)}, stage:k, not {part!r}")
    if part != "all" and not cut:
        raise ArgumentError(f"the model is not cut: there is no {part}; name a boundary")


def _entry(e: PlanEntry) -> _native.PlanEntry:
    points = [n for point in e.points for n in point]
    cut = -1 if e.cut is None else e.cut
    return (e.captured.plan, e.signature, cut, len(e.captured.stores), points, e.fixed)


def _notes(head: Head, metadata: Mapping[str, str] | None) -> dict[str, str]:
    notes = {"model": head.model, "torch": torch.__version__}
    return {**notes, **checked_notes(metadata, notes)}


def checked_notes(metadata: Mapping[str, str] | None, taken: Mapping[str, str]) -> dict[str, str]:
    """What a user adds to a file, beside what it says itself."""
    notes: dict[str, str] = {}
    for key, text in (metadata or {}).items():
        if not isinstance(key, str) or not isinstance(text, str):
            raise TypeError(f"metadata is a dict of texts, not {key!r}: {text!r}")
        if key in taken or key == ANY_SIZE:
            raise ArgumentError(f"metadata cannot have {key!r}: the file says that itself")
        notes[key] = text
    return notes


def points_of(sized: Sized | None, captured: Captured) -> list[Point]:
    """The sizes at which a plan is proven, in the order of its own symbols."""
    if sized is None or not captured.symbols:
        return []
    where = [sized.names.index(name) for name in captured.symbols]
    found = (tuple(point[i] for i in where) for point, c in sized.served.items() if c is captured)
    return sorted(set(found))


def served_plans(sized: Sized) -> list[Captured]:
    """The plans that serve some size, the first one first."""
    return list({id(c): c for c in (sized.captured, *sized.served.values())}.values())


def fixed_of(sized: Sized | None, captured: Captured) -> dict[str, int]:
    """Sizes that other plans have symbols for: this one was recorded with one value of each."""
    if sized is None:
        return {}
    points = [point for point, c in sized.served.items() if c is captured]
    values = {name: {point[i] for point in points} for i, name in enumerate(sized.names)}
    return {name: min(n) for name, n in values.items() if name not in captured.symbols and len(n) == 1}


def prove(sized: Sized, record: Callable[[Point], Any], how: str, sparse: bool = False) -> None:
    """Records sizes that were never seen, because a file serves only sizes that were recorded.

    "auto" goes on while the estimated work is within a limit, so that the same model gives the same file on any
    machine: powers of two first, then what lies between, unless `sparse` leaves it at those. "all" records every size,
    "none" no more. A size at which the model fails is passed over."""
    if how not in PROVE:
        raise ArgumentError(f"prove is one of {', '.join(PROVE)}, not {how!r}")
    sized.check_model()
    left = {"auto": PROVE_WORK, "all": math.inf, "none": 0.0}[how]
    for point in _points_to_prove(sized, how == "all", sparse) if left else ():
        if point in sized.served:
            continue
        left -= _work(sized, point)
        if left < 0:
            break
        try:
            record(point)
        except Exception as error:
            log.info("no plan for %s: %s", dict(zip(sized.names, point, strict=True)), error)
    sized.renew(record)


def _work(sized: Sized, point: Point) -> float:
    """What a record costs, estimated: the operators' own work, and what it takes to look at each."""
    plan = sized.captured.plan
    sizes = {name: n for name, n in zip(sized.names, point, strict=True) if name in sized.captured.symbols}
    work: float = plan.work(sizes or None)
    return work + NODE_WORK * float(plan.node_count())


def _points_to_prove(sized: Sized, every: bool, sparse: bool) -> list[Point]:
    """Combinations of powers of two; every size, one at a time, the others as in the example; then combinations."""
    powers = [powers_within(s.low, s.high) for s in sized.symbols]
    ranges = [range(s.low, s.high + 1) for s in sized.symbols]
    out: dict[Point, None] = dict.fromkeys(itertools.islice(itertools.product(*powers), MOST_POINTS))
    if sparse and not every:
        return list(out)
    for i, sizes in enumerate(ranges):
        out.update(dict.fromkeys((*sized.example[:i], n, *sized.example[i + 1 :]) for n in sizes[:MOST_POINTS]))
    out.update(dict.fromkeys(itertools.islice(itertools.product(*ranges), None if every else MOST_POINTS)))
    return list(out)


def paths(path: Path, parts: str | None, half: str | None) -> list[tuple[str, str]]:
    """Which files a split is written to, and the part that goes into each. half: the only one that is here."""
    text = os.fspath(path)
    if parts is not None:
        check_part(parts, "cut")
    if half is not None and parts not in (None, half):
        raise ArgumentError(f"this runtime holds only the {half} (keep_only)")
    if text.endswith(".clv"):
        return [(text, parts or half or "all")]
    if parts == "all":
        raise ArgumentError(f"the whole model is one file: {text}.clv would be a name for it")
    halves = [part for part in ("prefix", "suffix") if (parts or half) in (None, part)]
    os.makedirs(text, exist_ok=True)
    return [(os.path.join(text, f"{part}.clv"), part) for part in halves]

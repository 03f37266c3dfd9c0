"""Writing models as .clv files (docs/artifact.md), and proving the sizes they serve."""

from __future__ import annotations

import itertools
import math
import os
import time
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from typing import Any, NamedTuple

import torch

from . import _native, _show, progress
from ._capture import Captured, recycling
from ._dims import Point, powers_within
from ._log import logger
from ._sizes import Sized
from ._state import Target, Weights
from .errors import ArgumentError, PayloadError
from .payload import plain, to_host

PARTS = ("all", "prefix", "suffix")
PROVE = ("auto", "all", "none")
PROVE_WORK = 2e10  # operations; about two seconds of a small machine
ANY_SIZE_WORK = 4e11  # for a file that trusts formulas at sizes which were never recorded
RECORD_WORK = 4e7  # of making a record, in operations that could have been done meanwhile
NODE_WORK = 4e6  # of looking at a node
OWN_PLAN = 6  # forwards that a plan for one point takes: records, and the comparison with the model
MOST_POINTS = 4096

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
    """The facts in a file besides its plans."""

    target: Target
    batch: str = ""
    split_id: str = ""
    boundary: str = ""
    weights: Weights = Weights({})


def save(
    path: Path | None,
    head: Head,
    entries: Sequence[PlanEntry],
    *,
    part: str = "all",
    boundary: str | None = None,
    weights: bool = True,
    metadata: Mapping[str, str] | None = None,
    training: tuple[str, bytes] | None = None,
) -> Any:
    """Writes plans and the tensors they read; the file is there whole or not at all. path None: gives the artifact
    instead, on the memory of the tensors. boundary: cut the plans there. training: what makes it a file that trains.

    Raises what a call would if the model has changed since: all plans of a file must be of one model."""
    check_part(part, head.split_id or boundary)
    for e in entries:
        _refuse_collected(head.target, e.captured)
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
    names = {id(t): name for name, t in state.items()}

    def on_host(tensors: list[torch.Tensor]) -> list[torch.Tensor]:
        for t in tensors:
            try:
                plain(t)
            except PayloadError as error:
                name = names.get(id(t), "a constant")
                raise PayloadError(f"{name} of the model cannot be in a file: {error}") from None
        return to_host(tensors)

    to = None if path is None else os.fsencode(path)
    return _native.artifact_save(to, part, boundary, fields, notes, plans, state, on_host, training)


def _refuse_collected(target: Target, captured: Captured) -> None:
    """A file has no signature, so it cannot check the order of keywords that the forward takes as **kwargs."""
    names = target.collected(captured.arguments.children[1].keys)
    if len(names) > 1:
        raise ArgumentError(
            f"{target.name} takes {', '.join(names)} as **kwargs, where it sees their order, which a file cannot "
            "check: name them as parameters of the forward"
        )


def check_part(part: str, cut: str | None) -> None:
    """Checks the part that a user names."""
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
    return (e.captured.plan, e.signature, cut, len(e.captured.stores), points, e.fixed, [], e.captured.modules)


def _notes(head: Head, metadata: Mapping[str, str] | None) -> dict[str, str]:
    notes = {"model": head.target.name, "torch": torch.__version__}
    return {**notes, **checked_notes(metadata, notes)}


def checked_notes(metadata: Mapping[str, str] | None, taken: Mapping[str, str]) -> dict[str, str]:
    """Checks the notes that a user adds to a file."""
    notes: dict[str, str] = {}
    for key, text in (metadata or {}).items():
        if not isinstance(key, str) or not isinstance(text, str):
            raise TypeError(f"metadata is a dict of texts, not {key!r}: {text!r}")
        if key in taken:
            raise ArgumentError(f"metadata cannot have the key {key!r}, which the file uses itself")
        notes[key] = text
    return notes


def points_of(sized: Sized | None, captured: Captured) -> list[Point]:
    """The sizes at which a plan is proven, in the order of its own symbols."""
    if sized is None or not captured.symbols:
        return []
    where = [sized.names.index(name) for name in captured.symbols]
    return sorted({tuple(point[i] for i in where) for point in sized.points_of(captured)})


def fixed_of(sized: Sized | None, captured: Captured) -> dict[str, int]:
    """Sizes that other plans have symbols for: this one was recorded with one value of each."""
    if sized is None:
        return {}
    values = {name: {point[i] for point in sized.points_of(captured)} for i, name in enumerate(sized.names)}
    return {name: min(n) for name, n in values.items() if name not in captured.symbols and len(n) == 1}


def batch_name(sized: Sized | None) -> str:
    """The symbol that is the batch; "": none is."""
    return next((s.name for s in sized.symbols if s.is_batch), "") if sized is not None else ""


def entry(sized: Sized | None, source: Captured, captured: Captured, signature: str, cut: int | None) -> PlanEntry:
    """A plan for a file. source: as it was recorded; captured: with its nodes in the order in which they run."""
    return PlanEntry(captured, signature, cut, points_of(sized, source), fixed_of(sized, source))


def prove(
    sized: Sized,
    record: Callable[[Point], Any],
    how: str,
    any_size: Callable[[], bool] = lambda: False,
    holds: Callable[[Captured], bool] = lambda _: True,
) -> None:
    """Records more sizes, because a file serves only sizes that were recorded; says what is proven.

    "auto" records a few: powers of two first, then sizes between them, while the estimated work is within a limit, so
    that the same model gives the same file on any machine. "all" records every size, "none" no more. A size at which
    the model fails is passed over. any_size: the file will serve all sizes by its formulas unless a record contradicts
    them; then powers of two are enough, and the limit is higher, so that most of them are seen. holds: whether a plan
    goes into the file."""
    if how not in PROVE:
        raise ArgumentError(f"prove is one of {', '.join(PROVE)}, not {how!r}")
    sized.check_model()
    since, forwards, before = time.monotonic(), sized.use.forwards, len(sized.proven)
    with recycling():
        if any_size():
            _record_all(sized, record, _chosen(sized, how, _powers(sized), ANY_SIZE_WORK))
        if not any_size():
            _record_all(sized, record, _chosen(sized, how, (*_powers(sized), *_between(sized, how)), PROVE_WORK))
        sized.renew(record)
    new, forwards = len(sized.proven) - before, sized.use.forwards - forwards
    ran = f"{_show.plural(new, 'size')} recorded for this file, {_show.plural(forwards, 'forward')} in"
    proven = sorted(point for point, c in sized.proven.items() if holds(c))
    line = _proven_text(sized, proven, any_size(), f"{ran} {time.monotonic() - since:.1f} s")
    log.info("%s", line)
    progress.say(line)


def _record_all(sized: Sized, record: Callable[[Point], Any], points: Sequence[Point]) -> None:
    if not points:
        return
    with progress.task(f"proving sizes of {sized.target.name}", len(points)):
        for point in points:
            sizes = sized.named(point)
            progress.step(_show.named_sizes(sizes), counted=True)
            try:
                record(point)
            except Exception as error:
                log.info("no plan for %s: %s", sizes, error)


def _chosen(sized: Sized, how: str, rounds: Iterable[Sequence[Point]], limit: float) -> list[Point]:
    """Points to record. Each round takes the cheapest first and stops at one that exceeds the limit. Points that were
    recorded earlier count too, so that a second file of the model has the same sizes as the first."""
    out: dict[Point, None] = {}
    for points in rounds if how != "none" else ():
        for point in points:
            if point in out:
                continue
            work = 0.0 if how == "all" else _work(sized, point)
            if work > limit:
                break
            limit -= work
            out[point] = None
    known = sized.proven
    return [point for point in out if point not in known]


def _work(sized: Sized, point: Point) -> float:
    """The estimated cost of a record: the operators' own work, and a constant for each node."""
    plan = sized.captured.plan
    looks = RECORD_WORK + NODE_WORK * float(plan.node_count())
    sizes = {name: n for name, n in zip(sized.names, point, strict=True) if name in sized.captured.symbols}
    if sizes:
        return float(plan.work(sizes)) + looks
    times = math.prod(n / m for n, m in zip(point, sized.example, strict=True))
    return OWN_PLAN * (float(plan.work()) * times + looks)


def _powers(sized: Sized) -> list[list[Point]]:
    """Powers of two: of one size at a time, the others as in the example, and their combinations."""
    powers = [powers_within(s.low, s.high) for s in sized.symbols]
    return [*_along(sized, powers), _combined(powers, MOST_POINTS)]


def _between(sized: Sized, how: str) -> list[list[Point]]:
    """Every size, one at a time, and combinations."""
    most = None if how == "all" else MOST_POINTS
    ranges = [range(s.low, s.high + 1)[:most] for s in sized.symbols]
    return [*_along(sized, ranges), _combined(ranges, most)]


def _along(sized: Sized, sizes: Sequence[Sequence[int]]) -> list[list[Point]]:
    example = sized.example
    return [[(*example[:i], n, *example[i + 1 :]) for n in some] for i, some in enumerate(sizes)]


def _combined(sizes: Sequence[Sequence[int]], most: int | None) -> list[Point]:
    return sorted(itertools.islice(itertools.product(*sizes), most), key=math.prod) if len(sizes) > 1 else []


def unproven(sized: Sized, proven: Collection[Point]) -> int:
    """How many sizes of the ranges a file refuses that is proven at these points."""
    return math.prod(s.high - s.low + 1 for s in sized.symbols) - len(proven)


def _proven_text(sized: Sized, proven: Sequence[Point], every: bool, ran: str) -> str:
    """Says which sizes a file serves, what was run for it, and how to make it serve more."""
    left, name = unproven(sized, proven), sized.target.name
    all_of = ", ".join(f"{s.name} {s.low}..{s.high}" for s in sized.symbols)
    where = f"{', '.join(sized.names)} = {_show.points_text(proven)}"
    if left <= 0:
        return f"{name}: all {len(proven)} sizes of {all_of} are proven ({ran})"
    if every:
        return f"{name}: served at all of {all_of} by its formulas, proven at {where} ({ran})"
    apart = _show.points_text(sorted(sized.proven.keys() - set(proven)))
    return (
        f"{name}: proven at {where} of {all_of} ({ran}); the other {left} sizes are refused: "
        'prove="all" (--prove all) records them too, prepare_sizes (--sizes) those you name'
        + (f", but not {apart}, where the model has plans that are not in the file" if apart != "none" else "")
    )


def paths(path: Path, parts: str | None, half: str | None) -> list[tuple[str, str]]:
    """Which files a split is written to, and the part that goes into each. half: the only one left here."""
    text = os.fspath(path)
    if parts is not None:
        check_part(parts, "cut")
    if half is not None and parts not in (None, half):
        raise ArgumentError(f"this runtime holds only the {half} (keep_only)")
    if text.endswith(".clv"):
        return [(text, parts or half or "all")]
    if parts == "all":
        raise ArgumentError(f"the whole model is one file: name it {text}.clv")
    halves = [part for part in ("prefix", "suffix") if (parts or half) in (None, part)]
    os.makedirs(text, exist_ok=True)
    return [(os.path.join(text, f"{part}.clv"), part) for part in halves]

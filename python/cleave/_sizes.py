"""Plans for many sizes: the forward is recorded at several points, and C fits every number to a formula (plan/fit.c).

Points at which the forward has one structure (the same operators on the same tensors) are a *family*. A family with
enough points has a plan with formulas; a point where these were seen to hold is *proven*. A point that was never seen
is recorded when it is first used: it joins a family, or gets a plan of its own. No size is trusted unseen."""

from __future__ import annotations

import logging
import math
import threading
import time
from collections.abc import Callable, Hashable, Sequence
from typing import NamedTuple, NoReturn, Protocol

import torch

from . import _dims, _native, _shapes, _show, _tree, progress
from ._capture import (
    Arguments,
    Capture,
    Captured,
    Misfit,
    ModuleUse,
    Recorded,
    flow_symbols,
    misfit,
    own_copy,
    recycling,
)
from ._dims import ENOUGH, Place, Point, SizeSpec, Symbol
from ._log import logger
from ._state import Target
from .errors import CaptureError, CleaveError, InputError, brief

log = logger("sizes")

Streams = Sequence[tuple[Point, Recorded]]
Looked = tuple[Recorded, Recorded]  # two records at one point, on other data


class Check(Protocol):
    """Replays a plan on unseen data, and raises when it is not the model."""

    def __call__(self, captured: Captured, work: Capture, gradients: bool = True) -> None:
        """gradients: they are compared too, where the plan is for them."""


KEPT = 64  # records that a family keeps; later points are compared with its formulas and forgotten
MOST_FAMILIES = 128
MOST_SAID = 200  # characters of what a model says
MOST_ODD = 16  # records that are left out, one after the other, to see whether one alone is odd


def _near(a: torch.Tensor, b: torch.Tensor) -> bool:
    exact = not (a.is_floating_point() or a.is_complex())
    return a.shape == b.shape and (torch.equal(a, b) if exact else torch.allclose(a, b, equal_nan=True))


def _near_but_for(a: torch.Tensor, b: torch.Tensor, row: int, size: int) -> bool:
    """In some dimension of this size all but one row of two tensors are near."""
    rest = [i for i in range(size) if i != row]
    same = [d for d in range(a.dim()) if a.shape == b.shape and a.shape[d] == size]
    return any(_near(*(t.index_select(d, torch.tensor(rest, device=t.device)) for t in (a, b))) for d in same)


class Flow(NamedTuple):
    """What a forward reads from its data: records at one point, on other data, and one more on the same."""

    records: list[Recorded]
    same: Recorded


class Built(NamedTuple):
    """A plan with formulas, or why there is none; doubt: a point at which a record would tell two formulas apart."""

    captured: Captured | None
    reason: str | None
    doubt: Point | None = None
    few: bool = False  # the reason is that more sizes have to be seen


class Proven(NamedTuple):
    """A plan, and the points that it is proven for: none, where one with formulas took them over. Then it still takes
    boundaries that it made."""

    captured: Captured
    why: str | None  # it is another one than the first
    points: tuple[Point, ...]


def is_stale(captured: Captured) -> bool:
    """A plan for one point was made for something that the modules no longer hold (a table for the sizes of the last
    call): it is to be recorded again."""
    if captured.symbols:
        return False
    try:
        _native.check_model(captured.plan, captured.modules)
    except InputError:
        return True
    return False


def _fold(*records: Recorded) -> None:
    """Writes records without sequences; one may be there twice."""
    for r in {id(r): r for r in records}.values():
        r.stream.fold()


class Family:
    """Points at which the forward has one structure."""

    def __init__(self, point: Point, recorded: Recorded, differs: Misfit | None) -> None:
        self.streams: tuple[tuple[Point, Recorded], ...] = ((point, recorded),)
        # From the first family, or from its formulas; None: it is the first.
        self.differs = differs.reason if differs is not None else None
        self.lengths = differs is not None and differs.lengths
        self.captured: Captured | None = None  # the plan with formulas
        self.made: tuple[Capture, Looked, Point] | None = None  # where and from what
        self.reason: str | None = None  # why there are no formulas
        self.few = False  # more sizes have to be seen for them
        self.flow: Flow | None = None

    def misfit(self, recorded: Recorded) -> Misfit | None:
        """Why a record at another point has another structure."""
        mine = self.streams[0][1]
        if len(mine.calls) != len(recorded.calls):
            return Misfit("autograd functions are called at some sizes only")
        return misfit(mine, recorded)

    def add(self, point: Point, recorded: Recorded) -> None:
        """One more record, in place of an earlier one at the same point."""
        rest = tuple(s for s in self.streams if s[0] != point)
        if len(rest) < KEPT:
            self.streams = (*rest, (point, recorded))

    def settle(self, captured: Captured, work: Capture, looked: Looked, point: Point) -> None:
        """The plan with formulas, and what it was made from."""
        self.captured, self.made, self.reason = captured, (work, looked, point), None

    def take_out(self, point: Point, reason: str | None) -> Family:
        """The record at a point becomes a family of its own."""
        odd = Family(point, next(r for p, r in self.streams if p == point), Misfit(reason) if reason else None)
        self.streams = tuple(s for s in self.streams if s[0] != point)
        return odd


def build(
    symbols: Sequence[Symbol],
    grad: bool,
    work: Capture,
    looked: Looked,
    point: Point,
    streams: Streams,
    flow: Flow | None,
) -> Built:
    """A plan with formulas for all these records, or a reason. It is made at `point`, which was looked at twice."""
    others = [(p, r) for p, r in streams if p != point]
    for i, s in enumerate(symbols):
        if len({point[i], *(p[i] for p, _ in others)}) < (ENOUGH if s.low < s.high else 1):
            reason = f"the model was seen at too few sizes of {s.name} to tell how it follows them"
            return Built(None, reason, few=True)
    if flow is not None:
        built = _build(symbols, grad, work, (looked[0], flow.same), point, others, flow.records)
        if built.captured is not None and built.captured.plan.flows():
            return built
    return _build(symbols, grad, work, looked, point, others, [])


def _build(
    symbols: Sequence[Symbol],
    grad: bool,
    work: Capture,
    looked: Looked,
    point: Point,
    others: Streams,
    flow: list[Recorded],
) -> Built:
    """flow: records at the point itself on other data, for numbers that are read from it."""
    mine, probe = looked
    records = [*(r for _, r in others), *flow]
    streams = [r.stream for r in records]
    points = [n for p in (point, *(p for p, _ in others), *(point for _ in flow)) for n in p]
    names, low, high, data = [s.name for s in symbols], [s.low for s in symbols], [s.high for s in symbols], -1
    try:
        if flow:
            points, count = _native.data_points([mine.stream, *streams], points, len(symbols))
            more_names, more_low, more_high = flow_symbols(points, count, names)
            names, low, high, data = names + more_names, low + more_low, high + more_high, count - len(symbols)
        sizes = (streams, points, names, low, high, data)
        return Built(work.build(mine, probe, mine if grad else None, {grad}, sizes, records), None)
    except CleaveError as error:
        doubt = error.doubt if isinstance(error, CaptureError) else None
        return Built(None, str(error), tuple(doubt[: len(symbols)]) if doubt else None)


def build_most(
    symbols: Sequence[Symbol],
    grad: bool,
    work: Capture,
    looked: Looked,
    point: Point,
    streams: Streams,
    flow: Flow | None,
) -> tuple[Built, Point | None]:
    """As build, and if need be without one of the other records, whose point is the last result."""
    built = build(symbols, grad, work, looked, point, streams, flow)
    odd_ones = [p for p, _ in reversed(streams) if p != point][:MOST_ODD] if len(streams) > ENOUGH else []
    for odd in odd_ones if built.captured is None else ():
        captured = build(symbols, grad, work, looked, point, [s for s in streams if s[0] != odd], flow).captured
        if captured is not None:
            return built._replace(captured=captured), odd
    return built, None


def found_sizes(sized: Sized | None, names: Sequence[str], batch_symbol: str, arguments: Arguments) -> SizeSpec:
    """The sizes that may change, where they were found: in another call they may be equal by chance to sizes that may
    not. names: of the inputs then; arguments: those now, of which some may be new."""
    symbols = sized.symbols if sized is not None else ()
    dims: dict[str, dict[int, str]] = {}
    sizes: dict[int, set[str]] = {}
    here = dict(zip(arguments.names, arguments.leaves, strict=True))
    for s in symbols:
        for leaf, dim in s.places:
            if names[leaf] in here and dim < here[names[leaf]].dim():
                dims.setdefault(names[leaf], {})[dim] = s.name
                sizes.setdefault(here[names[leaf]].shape[dim], set()).add(s.name)
    for name, t in here.items():
        for dim, n in enumerate(() if name in names or t.is_nested else t.shape):
            if len(sizes.get(n, ())) == 1:
                dims.setdefault(name, {})[dim] = next(iter(sizes[n]))
    left = {name for found in dims.values() for name in found.values()}
    return SizeSpec(None, batch_symbol, dims, {s.name: (s.low, s.high) for s in symbols if s.name in left})


class Sized:
    """Records a model at sizes in ranges, and keeps what that proved. Which plan serves a call is decided by the
    dispatcher (_dispatch.py).

    plans: replaced, never changed, so that they can be read without the lock."""

    def __init__(
        self, target: Target, arguments: Arguments, grad: bool, spec: SizeSpec, check: Check, confirm: bool
    ) -> None:
        """confirm: the first plan is compared with the model; otherwise the caller does it (check_points)."""
        self.target = target
        self.grad = grad
        self.check = check
        self.confirm = confirm
        self.by_guess: dict[tuple[Place, ...], tuple[Capture, Recorded]] = {}  # records that looked for the batch
        self.use = ModuleUse()  # what a record tells of the modules, all know
        self.lock = threading.Lock()
        self.folding = False  # sequences are written another way in all records
        self.may_fold = not grad
        self.as_given = False  # other sizes have the example's rows, as they are
        self.families: tuple[Family, ...] = ()
        self.failure: str | None = None  # what the model said at sizes it does not take
        self.plans: tuple[Proven, ...] = ()
        for name, t in zip(arguments.names, arguments.leaves, strict=True):
            if t.is_nested:
                raise CaptureError(
                    f"input {name} is a nested tensor, whose sizes no formula follows: dynamic_batch=None"
                )
        self.shapes = [(t.dtype, list(t.shape)) for t in arguments.leaves]
        self.found_batch = spec.find_batch
        batch = self._find_batch(arguments, spec) if spec.find_batch else ()
        self.found = self.by_guess.get(batch)  # may serve as the first look at the model
        del self.by_guess
        self.symbols = spec.symbols(arguments, batch)
        self.names = tuple(s.name for s in self.symbols)
        self.example = self.sizes_of(arguments.leaves)
        if 0 in self.example:
            self._refuse_empty()
        self.captured = self._prepare(arguments)

    def _capture(self, arguments: Arguments) -> Capture:
        return Capture(self.target, arguments, use=self.use)

    # ---- sizes

    def sizes_of(self, leaves: Sequence[torch.Tensor]) -> Point:
        """The sizes of these inputs, in the order of `names`."""
        return _dims.sizes_of(self.symbols, leaves)

    def named(self, point: Point) -> dict[str, int]:
        """The same by name."""
        return dict(zip(self.names, point, strict=True))

    def covers(self, sizes: Point) -> bool:
        """The first plan is proven at these sizes."""
        return sizes in self.points_of(self.captured)

    @property
    def proven(self) -> dict[Point, Captured]:
        """The plan that is proven for each point."""
        return {point: plan.captured for plan in self.plans for point in plan.points}

    @property
    def proven_plans(self) -> list[Captured]:
        """The plans that are proven for some point, the first one first."""
        return [plan.captured for plan in self.plans if plan.points]

    def points_of(self, captured: Captured) -> tuple[Point, ...]:
        """The points that a plan is proven for."""
        return next((plan.points for plan in self.plans if plan.captured is captured), ())

    @property
    def reason(self) -> str | None:
        """Why the first plan has no formulas; None: it has."""
        if self.captured.symbols:
            return None
        first, *others = self.families
        if first.reason is not None and not first.few:
            return first.reason
        return next((f.differs for f in others if f.differs), first.reason)

    def origin(self, captured: Captured) -> str:
        """The point at which a plan was made: two plans of one model with equal text made there are the same."""
        return str(next(iter(self.points_of(captured)), ""))

    def resized(self, arguments: Arguments, point: Point) -> Arguments:
        """The example at another point, with other data."""
        if point == self.sizes_of(arguments.leaves):
            return arguments
        return arguments._replace(leaves=self.resize(arguments.leaves, point))

    def resize(self, leaves: Sequence[torch.Tensor], point: Point) -> list[torch.Tensor]:
        """Inputs at another point."""
        return _dims.resize(leaves, self.symbols, point, self.as_given)

    def check_range(self, names: Sequence[str], sizes: Point) -> None:
        """Every size must be in its range."""
        for s, size in zip(self.symbols, sizes, strict=True):
            _dims.check_range(s, names, size)

    def check_inputs(self, arguments: Arguments) -> None:
        """Sizes in their ranges, the same in all inputs; everything else as in the example."""
        places = {place for s in self.symbols for place in s.places}
        for i, (name, t) in enumerate(zip(arguments.names, arguments.leaves, strict=True)):
            dtype, shape = self.shapes[i]
            if t.dtype != dtype or t.dim() != len(shape):
                raise InputError(f"input {name} is {t.dtype} of {t.dim()} dimensions, expected {dtype} of {len(shape)}")
            for d, n in enumerate(shape):
                if (i, d) not in places and t.shape[d] != n:
                    raise InputError(
                        f"input {name}: dimension {d} is {t.shape[d]}, expected {n}{self._where(arguments.names)}"
                    )
        _dims.check_sizes(self.symbols, arguments.names, arguments.leaves)

    def _where(self, names: Sequence[str]) -> str:
        """Which dimensions may change, where they were found and not named."""
        found = [s for s in self.symbols if s.is_batch and self.found_batch]
        places = [f"dimension {d} of {names[i]}" for s in found for i, d in s.places]
        return f" (the batch was found in {', '.join(places)}; dynamic_dims can name it)" if places else ""

    def describe(self) -> list[str]:
        """One line for each plan: the points it is proven for, and why it is another one than the first."""
        return [self._describe(plan) for plan in self.plans if plan.points]

    def _describe(self, plan: Proven) -> str:
        one = len(self.names) == 1
        shown = ", ".join(str(p[0]) if one else str(p) for p in sorted(plan.points))
        what = self.names[0] if one else f"({', '.join(self.names)})"
        tail = f": {plan.why}" if plan.why else ""
        return f"{what} in [{shown}]{tail}" if plan.captured.symbols else f"{what} = {shown}{tail}"

    # ---- where the batch is

    def _find_batch(self, arguments: Arguments, spec: SizeSpec) -> tuple[Place, ...]:
        """The guess with which the model runs at another size. When more than one dimension can change (a sequence
        and the batch), the batch is the one along which rows do not see each other."""
        taken = [place for places in spec.named(arguments).values() for place in places]
        groups: dict[Hashable, list[tuple[Place, ...]]] = {}  # guesses about one size in one dimension, or in both
        for guess in _dims.batch_places(arguments.leaves, taken):
            leaf, dim = guess[0]
            key = (arguments.leaves[leaf].shape[dim], *sorted({d for _, d in guess}))
            groups.setdefault(key, []).append(guess)
        running: list[tuple[Place, ...]] = []  # the first guess of each group that runs
        low, high = spec.ranges[spec.batch]
        for group in groups.values():
            rows = arguments.leaves[group[0][0][0]].shape[group[0][0][1]]
            sizes = dict.fromkeys(_dims.other_batch(rows, low, high, k) for k in ((1,) if running else (1, 2, 4, 8)))
            found = next((guess for n in sizes for guess in group if self._runs(arguments, guess, n)), None)
            if found is not None:
                running.append(found)
        if not running and any(0 in shape for _, shape in self.shapes):
            self._refuse_empty()
        if not running:
            raise CaptureError(
                "no input has a dimension that can change like a batch: use dynamic_batch=None (pipe_model: "
                "batch_dim=None)" + (f". With other rows the model says: {self.failure}" if self.failure else "")
            )
        if len(running) > 1:
            for guess in running:
                if self._rows_apart(arguments, guess):
                    return guess
        return running[0]

    def _refuse_empty(self) -> NoReturn:
        raise InputError("an input of the example is empty; other sizes cannot be made of it: give some rows")

    def _runs(self, arguments: Arguments, guess: tuple[Place, ...], size: int) -> bool:
        leaves = _dims.resize(arguments.leaves, [Symbol("B", 1, size, guess, True)], (size,))
        work = self._capture(arguments._replace(leaves=leaves))
        try:
            self.by_guess[guess] = work, work.record(work.arguments.copies(), self.grad)
        except CleaveError:
            return True  # it runs; why it cannot be captured is told at the example's own size
        except Exception as error:
            self.failure = self.failure or brief(error)[:MOST_SAID]
            return False
        finally:
            work.restore()
        return True

    def _rows_apart(self, arguments: Arguments, guess: tuple[Place, ...]) -> bool:
        """Other data in one row changes that row of the output and no other; or nothing that was tried changes it, and
        it has such rows."""
        leaf, dim = guess[0]
        ran = self.by_guess[guess][0].arguments if guess in self.by_guess else arguments
        size = max(2, ran.leaves[leaf].shape[dim])
        symbols = [Symbol("B", 1, size, guess, True)]
        first = _dims.resize(arguments.leaves, symbols, (size,))
        work = self._capture(arguments._replace(leaves=first))
        before = self._outputs(work, first)
        # Rows may be equal, and outputs may say nothing of a row (relu): then another row and other data tell.
        for second in _dims.with_another_row(first, guess, size) if before is not None else ():
            after = self._outputs(work, second.leaves)
            moved = [(a, b) for a, b in zip(before or (), after or (), strict=False) if not _near(a, b)]
            if moved:
                return any(_near_but_for(a, b, second.row, size) for a, b in moved)
        return any(size in t.shape for t in before or ())

    def _outputs(self, work: Capture, leaves: Sequence[torch.Tensor]) -> list[torch.Tensor] | None:
        """What the model gives; None: it does not take this data."""
        with work.undoing(), torch.no_grad():
            args, kwargs = work.arguments.rebuild([own_copy(t) for t in leaves])
            try:
                return [t.detach().clone() for t in _tree.flatten(work.forward(args, kwargs))[1]]
            except Exception:
                return None

    def _at(self, leaves: Sequence[torch.Tensor]) -> str:
        """ "B=3, S=40": for bars and the log."""
        return self._point_text(self.sizes_of(leaves))

    def _point_text(self, point: Point) -> str:
        return _show.named_sizes(self.named(point))

    # ---- preparation

    def _prepare(self, arguments: Arguments) -> Captured:
        """The first plan. Where the model asks about its data, and other data has other answers than the example, sizes
        are made of the example's own rows."""
        captured = self._unfolded(arguments)
        asks = "guard" in captured.plan.effects(0, captured.plan.node_count())
        if not asks or self._is_for(arguments, captured):
            return captured
        kept = self.folding, self.may_fold, self.families, self.plans
        self.as_given, self.families, self.plans = True, (), ()
        try:
            other = self._unfolded(arguments)
            if self._is_for(arguments, other):
                return other
        except CleaveError as error:
            log.debug("with the rows of the example: %s", error)
        self.as_given = False
        self.folding, self.may_fold, self.families, self.plans = kept
        return captured

    def _is_for(self, arguments: Arguments, captured: Captured) -> bool:
        """A plan with formulas serves the example, and the model does there what the plan does."""
        family = next((f for f in self.families if f.captured is captured), None)
        if family is None or self.example not in self.points_of(captured):
            return False
        work = self._capture(arguments)
        try:
            return family.misfit(self.recorded(work, arguments.copies())) is None
        finally:
            work.restore()

    def _unfolded(self, arguments: Arguments) -> Captured:
        """The first plan. Where sequences (unbind, split) of other lengths are in the way, all records are written
        without them; where that does not help, as they are."""
        captured = self._probed(arguments)
        if captured.symbols or not self.may_fold:
            return captured
        if not self.folding and not any(f.lengths for f in self.families):
            return captured
        kept = self.folding, self.families, self.plans
        self.folding, self.may_fold, self.families, self.plans = not self.folding, False, (), ()
        other = self._probed(arguments)
        if other.symbols or not self.folding:
            return other
        self.folding, self.families, self.plans = kept
        return captured

    def recorded(self, work: Capture, leaves: Sequence[torch.Tensor]) -> Recorded:
        """One more record."""
        work.at, work.folding = self._at(leaves), self.folding
        return work.record(leaves, self.grad)

    def _looked(self, work: Capture, recorded: Recorded | None = None) -> Looked:
        work.at, work.folding = self._at(work.arguments.leaves), self.folding
        return work.look(self.grad, recorded)

    def _flow(self, work: Capture, mine: Recorded) -> Flow | None:
        """What the forward reads from its data, where it reads any."""
        records = [] if self.folding else work.flow_records(mine, self.grad)
        same = work.same_again(mine, self.grad) if records else None
        return None if same is None else Flow(records, same)

    def _probed(self, arguments: Arguments) -> Captured:
        base = tuple(_dims.small_size(s, n) for s, n in zip(self.symbols, self.example, strict=True))
        work, looked, special = self._start(arguments, base)
        try:
            captured = _Prober(self, arguments, work, self.families[0]).formulas(looked)
        finally:
            work.restore()
        captured = captured or self._elsewhere(arguments)
        if captured is not None and self.confirm:
            self.confirm_plan(arguments, captured)
        # Where the example itself is special it has a plan from the start.
        own = self.obtain(arguments, self.example, special)
        return captured or own

    def _elsewhere(self, arguments: Arguments) -> Captured | None:
        """The example may be the special case (an image of the size that a table was made for): formulas for the
        structure that the model has at most other points."""
        first, *rest = self.families
        family = max(rest, key=lambda f: len(f.streams), default=first)
        if family is first or len(family.streams) < max(ENOUGH, len(first.streams)):
            return None
        work = self._capture(self.resized(arguments, family.streams[0][0]))
        try:
            looked = self._looked(work)
            if family.misfit(looked[0]) is not None:
                return None
            family.flow = self._flow(work, looked[0])
            return _Prober(self, arguments, work, family).formulas(looked)
        except Exception:  # the example itself is still to come
            return None
        finally:
            work.restore()

    def _start(self, arguments: Arguments, base: Point) -> tuple[Capture, Looked, Recorded | None]:
        """Looks at the first point: a small one that stands for the example or for what is around it. The last result:
        the example's own record, where that has another structure."""
        one = any(n == 1 for n in self.example)  # 1 may well be another structure, and is no good start
        found, self.found = self.found, None
        for point in dict.fromkeys([base, self.example]):
            if found is not None and self.sizes_of(found[0].arguments.leaves) == point:
                work, recorded = found
            else:
                work, recorded = self._capture(self.resized(arguments, point)), None
            try:
                looked = self._looked(work, recorded)
                family = Family(point, looked[0], None)
                stands, own = (True, None) if one else self._stands_for_more(family, work, looked, arguments)
                if stands or point == self.example:
                    family.flow = self._flow(work, looked[0])
                    self.families = (family,)
                    return work, looked, own
            except Exception:
                if point == self.example:
                    work.restore()
                    raise
            work.restore()
        raise AssertionError("the example is always looked at")

    def _stands_for_more(
        self, family: Family, work: Capture, looked: Looked, arguments: Arguments
    ) -> tuple[bool, Recorded | None]:
        """The forward has this structure at the example's sizes, or at neighbouring ones: then the example alone is
        special (it is what a table was made for), and its record is the second result."""
        own: Recorded | None = None
        batch = self.symbols[0]
        step = 1 if self.example[0] < batch.high else -1
        neighbour = (self.example[0] + step, *self.example[1:])
        for point in (self.example, neighbour):
            if point == family.streams[0][0] or not batch.low <= point[0] <= batch.high:
                continue
            try:
                recorded = self.recorded(work, self.resized(arguments, point).copies())
            except Exception:  # the model does not run here
                return False, None
            found = family.misfit(recorded)
            if self.may_fold and not self.folding and found is not None and found.lengths:
                self.folding = True
                _fold(*looked, recorded, *([] if own is None else [own]))
            if family.misfit(recorded) is None:
                family.add(point, recorded)
                return True, own
            own = recorded if point == self.example else own
        return False, None

    def place(self, point: Point, recorded: Recorded) -> None:
        """Puts a record into the family of its structure; a new one when it has a structure of its own."""
        first: Misfit | None = None
        for family in self.families:
            found = family.misfit(recorded)
            if found is None:
                family.add(point, recorded)
                return
            first = first or found
        log.debug("%s: another structure: %s", self._point_text(point), first.reason if first else "")
        self.families = (*self.families, Family(point, recorded, first))

    def publish(self, captured: Captured, points: Sequence[Point], why: str | None) -> None:
        """Says that a plan is proven for points; those that have a plan already keep it."""
        taken = self.proven
        new = tuple(p for p in dict.fromkeys(points) if p not in taken)
        if not new:
            return
        if any(plan.captured is captured for plan in self.plans):
            self.plans = tuple(
                plan._replace(points=(*plan.points, *new)) if plan.captured is captured else plan for plan in self.plans
            )
        else:
            self._log_plan(captured, points, why)
            self.plans = (*self.plans, Proven(captured, why, new))

    def _log_plan(self, captured: Captured, points: Sequence[Point], why: str | None) -> None:
        what = "a plan with formulas" if captured.symbols else "a plan of its own"
        level = logging.INFO if self.plans else logging.DEBUG  # the first is what was asked for
        if log.isEnabledFor(level):
            where = "; ".join(map(self._point_text, sorted(points)))
            log.log(level, "%s: %s has %s%s", self.target.name, where, what, f": {why}" if why else "")

    def confirm_plan(self, arguments: Arguments, captured: Captured) -> None:
        """Compares a plan with formulas with the model at two points. Neither is where it was made, so the cheaper one
        shows gradients that do not follow the sizes; at the other one, outputs are enough."""
        for i, point in enumerate(self.check_points(captured)[:2]):
            self.check(captured, self._capture(self.resized(arguments, point)), gradients=i == 0)

    def check_points(self, captured: Captured) -> list[Point]:
        """Where a plan is worth a comparison: proven points, cheap ones first; not where it was made, and where a size
        is 1 only if need be, for there many mistakes cannot be seen."""
        proven = sorted(self.points_of(captured), key=lambda p: (1 in p, math.prod(p)))
        made = next((f.made[2] for f in self.families if f.captured is captured and f.made is not None), None)
        return [p for p in proven if p != made] or proven

    # ---- points that are used for the first time

    def plan_at(self, sizes: Point) -> Captured | None:
        """The plan that is proven for these sizes; None: they are to be recorded."""
        found = self.proven.get(sizes)
        if found is None or found is getattr(self, "captured", None):
            return found
        return None if is_stale(found) else found

    def check_model(self) -> None:
        """Raises if the model, or the modes around the call, have changed: then no more sizes can be recorded."""
        _native.check_model(self.captured.plan, self.captured.modules)

    def renew(self, record: Callable[[Point], object]) -> None:
        """Records sizes again whose plan is stale, as a call would."""
        for points in [plan.points for plan in self.plans if plan.points]:
            if self.plan_at(points[-1]) is None:
                record(points[-1])

    def obtain(self, arguments: Arguments, sizes: Point, recorded: Recorded | None = None) -> Captured:
        """The plan for these inputs. A point that was never seen is recorded first; recorded: that was done."""
        with self.lock:
            found = self.plan_at(sizes)
            if found is not None:
                return found
            if hasattr(self, "captured"):
                self.check_model()
            self._drop(self.proven.get(sizes))
            work = self._capture(arguments)
            try:
                with progress.task(f"capturing {self.target.name}"), recycling():
                    recorded = recorded or self.recorded(work, arguments.copies())
                    return self._with_formulas(work, sizes, recorded) or self._collected(work, sizes, recorded)
            finally:
                work.restore()

    def _with_formulas(self, work: Capture, point: Point, recorded: Recorded) -> Captured | None:
        """The plan of a family whose formulas hold for this record, if need be with better formulas."""
        for family in self.families:
            before = family.captured
            if before is None or family.misfit(recorded) is not None:
                continue
            captured = self._rebuilt(family, point, recorded).captured
            if captured is None:
                continue
            if captured.plan.text() == before.plan.text():
                captured = before
            elif family.made is None or not self._holds(captured, work):
                continue
            else:
                family.settle(captured, *family.made)
            family.add(point, recorded)
            self.publish(captured, [point], family.differs)
            return captured
        return None

    def _holds(self, captured: Captured, work: Capture) -> bool:
        """A plan with formulas is what the model does on unseen data, too. If not, the point gets a plan of its own."""
        try:
            self.check(captured, work)
        except CaptureError:
            return False
        return True

    def _rebuilt(self, family: Family, point: Point, recorded: Recorded) -> Built:
        """The plan of a family as it would be with one more record."""
        if family.made is None:
            return Built(None, family.reason, few=family.few)
        streams = [*(s for s in family.streams if s[0] != point), (point, recorded)]
        return build(self.symbols, self.grad, *family.made, streams, family.flow)

    def _collected(self, work: Capture, point: Point, recorded: Recorded) -> Captured:
        """A plan made at this point: with formulas where a family without them has enough points now, else for the
        point alone."""
        mine, _ = looked = self._looked(work, recorded)
        family = self._family_without_formulas(point, mine)
        flow = self._flow(work, mine)
        built, odd = build_most(self.symbols, self.grad, work, looked, point, family.streams, flow)
        captured = built.captured
        if captured is not None and self._holds(captured, work):
            if odd is not None:
                self.families = (*self.families, family.take_out(odd, built.reason))
            family.flow = flow
            family.settle(captured, work, looked, point)
            points = [p for p, _ in family.streams]  # plans for these alone give way to the one with formulas
            gone = {id(p) for p in self.plans if not p.captured.symbols and set(p.points) & set(points)}
            self.plans = tuple(p._replace(points=()) if id(p) in gone else p for p in self.plans)
            self.publish(captured, points, family.differs)
            return captured
        if not built.few:
            family.reason, family.few = built.reason, False
        captured = self._alone(work, looked)
        self._forget_oldest_family()
        self.publish(captured, [point], family.differs or family.reason)
        return captured

    def _alone(self, work: Capture, looked: Looked) -> Captured:
        """A plan for one point."""
        mine, probe = looked
        captured = None if self.folding else work.with_flow(mine, self.grad)
        captured = captured or work.build(mine, probe, mine if self.grad else None, {self.grad}, None)
        self.check(captured, work)
        return captured

    def set_apart(self, arguments: Arguments) -> None:
        """Gives the example a plan of its own: the one that is proven for its sizes refuses its data."""
        with self.lock:
            work = self._capture(arguments)
            try:
                captured = self._alone(work, self._looked(work))
            finally:
                work.restore()
            left = [plan._replace(points=tuple(p for p in plan.points if p != self.example)) for plan in self.plans]
            self.plans = tuple(plan for plan in left if plan.points)
            self.publish(captured, [self.example], "the example's data leads another way")
            if not self.points_of(self.captured):
                self.captured = captured

    def _family_without_formulas(self, point: Point, recorded: Recorded) -> Family:
        first: Misfit | None = None
        for family in self.families:
            found = family.misfit(recorded)
            if found is None and family.captured is None:
                family.add(point, recorded)
                return family
            if found is None:
                found = Misfit(self._rebuilt(family, point, recorded).reason or "")
            first = first or found
        family = Family(point, recorded, first)
        self.families = (*self.families, family)
        return family

    def _drop(self, captured: Captured | None) -> None:
        self.plans = tuple(plan for plan in self.plans if plan.captured is not captured)

    def forget(self, captured: Captured) -> None:
        """A plan was evicted: its sizes are to be recorded again."""
        with self.lock:
            self._drop(captured)

    def _forget_oldest_family(self) -> None:
        if len(self.families) >= MOST_FAMILIES:
            oldest = next((f for f in self.families[1:] if f.captured is None), None)
            self.families = tuple(f for f in self.families if f is not oldest)

    # ---- looking for branches between the points that were seen

    def explore(self, arguments: Arguments, seconds: float) -> list[str]:
        """Asks the shape-only pass for conditions on the sizes, records points on both sides of each and says what was
        seen there. A pass takes one side of every branch, so it is run again where a condition goes the other way."""
        self.check_inputs(arguments)
        self.check_model()
        end = time.monotonic() + seconds
        start = self.sizes_of(arguments.leaves)
        found: dict[Hashable, _shapes.Condition] = {}  # by where they change
        notes: dict[str, None] = {}
        starts, sides = [start], set()
        with self.lock:
            while starts and time.monotonic() < end:
                point = starts.pop(0)
                told = _shapes.look(
                    self.target, self.resized(arguments, point), self.symbols, self.grad, end - time.monotonic()
                )
                if told.problem:
                    notes[f"the shape-only pass stopped: {told.problem}"] = None
                for name in told.fixed if point == start else ():
                    notes[f"the shape-only pass sees no conditions on {name}: the model needs a plain number"] = None
                for condition in told.conditions:
                    key = _shapes.truth_of(condition, self.symbols, start)
                    if key not in found:
                        found[key] = condition
                        starts += self._probe_all(arguments, _shapes.sizes_to_probe(condition, self.symbols, start))
                sides.add(tuple(c.holds(self.names, point) for c in found.values()))
                starts = [p for p in starts if tuple(c.holds(self.names, p) for c in found.values()) not in sides]
        return [*(self._verdict(c) for c in found.values()), *notes]

    def _probe_all(self, arguments: Arguments, points: Sequence[Point]) -> list[Point]:
        """Records points; those at which the model runs."""
        out = []
        for point in points:
            at = self.resized(arguments, point)
            work = self._capture(at)
            try:
                if self.family_of(point) is None:
                    recorded = self.recorded(work, at.copies())
                    if self._with_formulas(work, point, recorded) is None:
                        self._family_without_formulas(point, recorded)
                out.append(point)
            except Exception:  # the model does not run here
                continue
            finally:
                work.restore()
        return out

    def family_of(self, point: Point) -> Family | None:
        """The family that has a record at this point."""
        return next((f for f in self.families if any(p == point for p, _ in f.streams)), None)

    def _verdict(self, condition: _shapes.Condition) -> str:
        """What was seen where the condition changes from one size to the next."""
        where = {point: number for number, family in enumerate(self.families) for point, _ in family.streams}
        pairs = [
            (number, where[after])
            for point, number in where.items()
            for i in range(len(point))
            if (after := (*point[:i], point[i] + 1, *point[i + 1 :])) in where
            and condition.holds(self.names, point) != condition.holds(self.names, after)
        ]
        if not pairs:
            return f"{condition}: not seen on both sides"
        same = all(a == b for a, b in pairs)
        return f"{condition}: {'the same operators on both sides' if same else 'other operators on each side'}"


class _Prober:
    """Records the example at other points until the first family has formulas, or there is nothing left to try."""

    def __init__(self, sized: Sized, arguments: Arguments, work: Capture, main: Family) -> None:
        self.sized, self.arguments, self.work, self.main = sized, arguments, work, main
        self.base = self.main.streams[0][0]
        self.tried: set[Point] = {p for f in sized.families for p, _ in f.streams}
        self.failure: str | None = None  # what the model said at a size it does not take

    def formulas(self, looked: Looked) -> Captured | None:
        sized = self.sized
        lines = [self._line(i) for i in range(len(sized.symbols))]
        captured: Captured | None = None
        for points in _dims.stages(self.base, lines):
            for point in points:
                self._try(point)
            sure = captured is None
            captured = self._built(looked)
            captured = captured or (self._without_one(looked) if len(lines) == 1 else None)
            # A quotient is seen in steps: one more round tells better where they are.
            if captured is not None and (not sure or len(lines) == 1 or not captured.plan.divides()):
                break
        if captured is not None:
            return self._settle(captured, self.work, looked, self.base)
        captured = self._without_one(looked)
        if captured is not None:
            return self._settle(captured, self.work, looked, self.base)
        if self.failure and self.main.few:
            self.main.reason = f"{self.main.reason}; at another size the model says: {self.failure}"
        return None

    def _built(self, looked: Looked) -> Captured | None:
        """A plan with formulas; where records leave a doubt between two of them, one more is made that tells."""
        sized, main = self.sized, self.main
        for _ in range(ENOUGH):
            found = build(sized.symbols, sized.grad, self.work, looked, self.base, main.streams, main.flow)
            main.reason, main.few = found.reason, found.few
            log.debug("formulas from %d records: %s", len(main.streams), found.reason or "found")
            if found.captured is not None or found.doubt is None or found.doubt in self.tried:
                return found.captured
            if not self._try(found.doubt):
                return None
        return None

    def _settle(self, captured: Captured, work: Capture, looked: Looked, point: Point) -> Captured:
        self.main.settle(captured, work, looked, point)
        self.sized.publish(captured, [p for p, _ in self.main.streams], self.main.differs)
        return captured

    def _without_one(self, looked: Looked) -> Captured | None:
        """Formulas for all points but one, which then has something of its own."""
        sized, main = self.sized, self.main
        built, odd = build_most(sized.symbols, sized.grad, self.work, looked, self.base, main.streams, main.flow)
        if odd is not None:
            sized.families = (*sized.families, main.take_out(odd, built.reason))
        return built.captured

    def _line(self, i: int) -> _dims.Line:
        """Sizes for symbol i: consecutive ones, or in steps that the model takes (patches, strides, windows)."""
        s, base = self.sized.symbols[i], self.base
        ends = ((k, size) for k in _dims.STRIDES for size in (base[i] + k, base[i] - k) if size > 1)
        stride = next((k for k, size in ends if self._try((*base[:i], size, *base[i + 1 :]))), 1)
        seen = {p[i] for p, _ in self.main.streams if (*base[:i], p[i], *base[i + 1 :]) == p}
        return _dims.line_sizes(s, base[i], stride, seen)

    def _try(self, point: Point) -> bool:
        """Records at a point; False when the model does not run there."""
        sized = self.sized
        if any(not s.low <= n <= s.high for s, n in zip(sized.symbols, point, strict=True)):
            return False
        if point in self.tried:
            return any(p == point for f in sized.families for p, _ in f.streams)
        self.tried.add(point)
        try:
            leaves = sized.resize(self.arguments.leaves, point)
            recorded = sized.recorded(self.work, leaves)
        except Exception as error:  # not at this size, or not this way: it is looked at when it is asked for
            self.failure = self.failure or brief(error)[:MOST_SAID]
            return False
        sized.place(point, recorded)
        return True

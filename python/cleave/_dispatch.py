"""Which plan serves a call: a dispatcher in C (src/runtime/dispatch.h), and the recording of missing plans.

A plan is for one *regime* (grad mode, train and eval flags, dtypes, layouts: all but the sizes of the inputs), for the
sizes it is proven at, and for the values that it met at its guards. Where a call meets another value, a plan that was
recorded with that value goes on with the run (src/exec/resume.h), or serves the call after the run was taken back
(src/exec/undo.c)."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterator, Sequence
from typing import Any, Generic, NamedTuple, Protocol, TypeVar

import torch

from . import _native
from ._capture import Captured
from ._dims import Point
from ._how import How
from ._log import logger, warn
from ._sizes import Sized, is_stale
from .errors import GuardError, InputError

log = logger("capture")

ONE_SIZE, SIZES, MAIN = range(3)  # enum dispatch_rank: which plans give way first


class Regime(NamedTuple):
    """Everything that decides which plan serves a call, except sizes and guards. None: a plan itself refuses what it is
    not for, and the regime does not say it."""

    grad: bool
    training: Any = None  # a flag for every module
    tensors: Any = None  # dtype and device of every module tensor; what is trainable, where grad counts
    inputs: tuple[Any, ...] | None = None  # memory layout; what requires grad, where grad counts
    same: tuple[int, ...] | None = None  # which inputs are one tensor
    modes: tuple[Any, ...] | None = None  # around the call: autocast, default dtype
    plain: Hashable = None  # plain values of the inputs, where they are not those of the example


class Prepared(Protocol):
    """A plan made ready to run."""

    source: Captured  # as it was captured
    signature: str
    plans: Any  # the Plans that it is one of


class Plans(Protocol):
    """What records the plans of one variant of a regime: those that agree about the values at guards."""

    siblings: Any  # the Variants that it is one of
    sized: Sized | None
    main: Any

    def obtain(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """The plan for these inputs, prepared; sizes that were never seen are recorded."""


P = TypeVar("P", bound=Plans)
T = TypeVar("T", bound=Prepared)
R = TypeVar("R")


class Variants(Generic[P]):
    """The variants of one regime: plans for each set of values that data has had at guards."""

    def __init__(self, regime: Regime) -> None:
        self.regime = regime
        self.all: tuple[P, ...] = ()  # replaced, not changed

    def point(self, leaves: Sequence[torch.Tensor]) -> Point | None:
        """The sizes of a call; None: they do not matter, or nothing is known of them yet."""
        sized = self.all[0].sized if self.all else None
        return None if sized is None else sized.sizes_of(leaves)


class Served(Generic[P, T]):
    """The plans of a model, for whatever calls them."""

    def __init__(self, name: str, how: How, make: Callable[[Any, Any, Any], P], goes_on: bool = False) -> None:
        """make(variants, args, kwargs): captures the model as it is. goes_on: a plan is run by one program, and changes
        nothing but by it: where a guard ends the run, another plan goes on with it."""
        self.name, self.limit, self.records, self.make = name, how.max_plans, how.records, make
        self.regimes: dict[Regime, Variants[P]] = {}  # those of regimes that were met; other threads may add some
        self.dispatch = _native.Dispatcher(self.limit, self._evicted, goes_on)
        self._reason = ""  # why there are so many

    def variants(self, regime: Regime) -> Variants[P]:
        """The variants of a regime; it may have none yet."""
        return self.regimes.get(regime) or self.regimes.setdefault(regime, Variants(regime))

    def every(self) -> Iterator[P]:
        """All variants of all regimes."""
        return (variant for variants in list(self.regimes.values()) for variant in variants.all)

    def of(self, variant: P) -> list[T]:
        """The plans that one of them recorded, the first one first."""
        return [p for p in self.dispatch.list(variant.siblings) if p.plans is variant]

    # ---- a call

    def serve(
        self,
        variants: Variants[P],
        inputs: tuple[Any, Any],
        leaves: Sequence[torch.Tensor],
        run: Callable[..., R],
        *args: Any,
        in_order: bool = False,
    ) -> R:
        """run(plan, leaves, *args), of the plan that serves; one that is missing is recorded."""
        point = variants.point(leaves)
        try:
            out: R = self.dispatch.serve(variants, point, None, in_order, run, self.miss, inputs, leaves, *args)
        except InputError:
            if not self._drop_stale(variants, point):
                raise
            out = self.dispatch.serve(variants, point, None, in_order, run, self.miss, inputs, leaves, *args)
        return out

    def _drop_stale(self, variants: Variants[P], point: Point | None) -> bool:
        """Drops plans for these sizes that are to be recorded anew."""
        found = False
        for p in self.dispatch.list(variants, point):
            if p is not p.plans.main and is_stale(p.source):
                self.dispatch.drop(p)
                found = True
        return found

    def miss(
        self, why: int, error: GuardError | None, variants: Variants[P], point: Point | None, inputs: tuple[Any, Any]
    ) -> T | None:
        """Records a plan for a call that none serves: of a variant that has not seen its sizes, else a new variant, for
        its data or its regime."""
        args, kwargs = inputs
        tried = [p.plans for p in self.dispatch.list(variants, point)]
        for variant in self._last_first(variants):
            if not any(variant is t for t in tried):
                return self.put(variant, variant.obtain(args, kwargs))
        if error is not None:
            if not self.records:
                return None
            if len(tried) >= self.limit:
                raise GuardError(f"{error}; {self.limit} plans of {self.name} were recorded already (max_plans)")
            log.info("%s goes another way on this data, which is recorded: %s", self.name, error)
        try:
            variant = self.add(variants, self.make(variants, args, kwargs))
        finally:
            self._forget(variants)
        return self.put(variant, variant.obtain(args, kwargs))

    def _last_first(self, variants: Variants[P]) -> list[P]:
        last = self.dispatch.find(variants)
        return sorted(variants.all, key=lambda variant: last is None or last.plans is not variant)

    def warn_of_plain(self) -> None:
        """A file takes tensors alone: plans for other plain values than the example's are not in it."""
        n = len({v.regime.plain for v in list(self.regimes.values()) if v.all} - {None})
        if n:
            warn(
                f"the file of {self.name} is for the plain values of the example (numbers, flags, texts, None): plans "
                f"for {n} other sets of them are not in it, and it refuses inputs for them"
            )

    # ---- plans

    def add(self, variants: Variants[P], variant: P) -> P:
        """Takes one more variant, or the first of one more regime."""
        variant.siblings, variants.all = variants, (*variants.all, variant)
        self.regimes[variants.regime] = variants
        self.put(variant, variant.main, None if self.dispatch.list() else MAIN)
        return variant

    def drop(self, variants: Variants[P]) -> None:
        """The plans of a regime, which are to be recorded anew."""
        for plan in self.dispatch.list(variants):
            self.dispatch.drop(plan)
        variants.all = ()

    def _forget(self, variants: Variants[P]) -> None:
        """Drops a regime that has no plans."""
        if not variants.all:
            self.regimes.pop(variants.regime, None)

    def put(self, variant: P, plan: T, rank: int | None = None) -> T:
        """A plan serves the sizes that it is proven for."""
        sized = variant.sized
        plan.plans = variant
        points = None if sized is None else list(sized.points_of(plan.source))
        if sized is not None:
            here = {id(known.captured) for known in sized.plans}
            for old in self.of(variant):
                if old is not variant.main and id(old.source) not in here:
                    self.dispatch.drop(old)
        if rank is None:
            rank = SIZES if plan.source.symbols else ONE_SIZE
        if sized is not None and rank == ONE_SIZE:
            self._reason = (
                f"sizes with a plan of their own ({', '.join(sized.names)}): "
                f"{sized.reason or 'the model does something else at each'}"
            )
        else:
            self._reason = "modes, layouts and plain values of its inputs, sizes, data that it looks at"
        self.dispatch.add(variant.siblings, points, plan, rank, plan.signature)
        return plan

    def _evicted(self, plan: Any) -> None:
        """A plan was replaced by another one; its variant goes with its last plan."""
        variant = plan.plans
        if variant.sized is not None:
            variant.sized.forget(plan.source)
        if not self.of(variant):
            variant.siblings.all = tuple(w for w in variant.siblings.all if w is not variant)
        self._forget(variant.siblings)
        warn(
            f"{self.name} has {self.limit} plans (max_plans), and each new one replaces the least recently used. They "
            f"are for {self._reason}"
        )

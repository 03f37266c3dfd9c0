"""A model cut in two, plan by plan: the two halves of each."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any, NamedTuple

import torch
from torch import nn

from . import _native, _show, progress
from ._capture import Arguments, Captured
from ._compiled import CompiledView
from ._cuda_graph import GraphView
from ._dispatch import Regime, Served
from ._how import How
from ._log import logger, warn
from ._objective import Objective
from ._regime import Plans
from ._state import Target
from ._threads import limited
from .candidates import CandidateTable
from .errors import CaptureError, CleaveError, InputError, SplitError
from .payload import BoundaryPayload, TensorSchema, boundary_facts, check_tensors, dims
from .plan import DEFAULT, Program, check_call, check_example, finish, keep, plan_signature
from .spec import SplitCandidate, SplitLatency, SplitSpec

log = logger("split")

Half = Program | CompiledView | GraphView
ALL_GUARDS = 2**32 - 1


class Wanted(NamedTuple):
    """What the user asked for."""

    spec: SplitSpec
    objective: Objective
    mode: str = "generated_eager"
    compile_options: dict[str, Any] | None = None
    how: How = DEFAULT


class Halves(NamedTuple):
    """What runs the halves: the tape, or what the mode asks for. The tape is always there, and knows what to check."""

    prefix: Half
    suffix: Half

    @property
    def active_backend(self) -> str:
        """What runs the halves now: "tape", "inductor fullgraph", "cuda graph", …; both, where they differ."""
        return " and ".join(dict.fromkeys(e.active_backend for e in self))

    @property
    def fallback_reason(self) -> str | None:
        """Why something else runs the halves than the mode asks for; None: nothing else does."""
        return "; ".join(dict.fromkeys(e.fallback_reason for e in self if e.fallback_reason)) or None


def _half(
    want: Wanted, captured: Captured, first: int, end: int, grad: bool, class_name: str, program: Program
) -> Half:
    if want.mode == "compiled":
        return CompiledView(
            captured,
            first,
            end,
            inference=not grad,
            options=want.compile_options,
            class_name=class_name,
            program=program,
        )
    if want.mode == "cuda_graph" and not grad:
        return GraphView(captured, first, end, program=program)
    return program


class Cut:
    """One plan cut in two, ready to run."""

    plans: Cuts

    def __init__(
        self,
        captured: Captured,
        want: Wanted,
        grad: bool,
        sizes: dict[str, int] | None,
        like: Cut | None,
        origin: str = "",
        where: str = "",
    ) -> None:
        """where: for people, the sizes it is for."""
        self.source = captured
        self.sizes = sizes  # at which its candidates were counted
        plan, which, elsewhere = _choose(captured.plan, want, sizes, like, where)
        self.place = plan, which  # before guards of the suffix moved into the prefix
        # As many in all variants: so a suffix can go on in another one.
        most = ALL_GUARDS if like is None else like.moved
        self.moved: int
        (plan, which), self.moved = plan.guards_early(which, most)
        captured = self.captured = captured._replace(plan=plan)
        self.candidates = CandidateTable(SplitCandidate(*c) for c in plan.frontiers(sizes))
        why = _why(want, like, elsewhere)
        place = SplitCandidate(*self.place[0].frontiers(sizes)[self.place[1]])
        self.candidate = self.candidates.chosen = replace(
            self.candidates[which], name=place.name, module_path=place.module_path, taken_because=why
        )
        self.candidates[which] = self.candidate
        log.info("cut after %s: %s", _place(self.candidate, plan.node_count()), why)
        self.latency: SplitLatency | None = None
        if "bandwidth_bytes_per_s" in want.objective.fields:
            *latency, advice = plan.latency(which, want.objective.fields, sizes)
            self.latency = SplitLatency(*latency)
            if advice is not None and like is None:
                warn(advice)
        at, end = self.candidate.position + 1, plan.node_count()
        how, debug = want.how.for_grad(grad), want.mode == "debug_interpreter"
        self.cut_at = at
        self.prefix = Program(captured, 0, at, how, debug=debug, inference=not grad)
        self.suffix = Program(captured, at, end, how, debug=debug, inference=not grad)
        self.halves = Halves(
            _half(want, captured, 0, at, grad, "Prefix", self.prefix),
            _half(want, captured, at, end, grad, "Suffix", self.suffix),
        )
        halves = {"prefix": self.prefix, "suffix": self.suffix}
        self.names = {half: {n: written for n, _, _, written in g.native.state()} for half, g in halves.items()}
        # Module tensors that a half changes: no frontier has them on both sides.
        self.changes = {
            half: {*g.native.rebinds(), *(n for n, written in self.names[half].items() if written)}
            for half, g in halves.items()
        }
        read = {name: self.live(name) for names in self.names.values() for name in names} if grad else {}
        self.trained = [name for name, t in read.items() if t.requires_grad]
        self.guards_early, self.guards_late = ("guard" in plan.effects(*part) for part in ((0, at), (at, end)))
        if self.guards_early or self.guards_late:
            who = [half for half, asks in (("prefix", self.guards_early), ("suffix", self.guards_late)) if asks]
            log.info("what depends on data is decided by the %s", " and the ".join(who))
        self.roles: Any = None  # whose gradients wait for whom (_step.py), once it trains
        self.with_grad = [name for name in self.trained if not isinstance(read[name], nn.Parameter)]
        self.labels: list[str] = self.prefix.native.outputs()
        inputs = set(self.prefix.native.inputs())
        self.passthrough = tuple(label for label in self.labels if label in inputs)
        if self.labels != self.suffix.native.inputs():
            raise AssertionError("prefix and suffix disagree about the boundary")
        if like is not None and grad:
            self._refuse_other_sides(like, where, elsewhere)
        self.signature = plan_signature(captured, origin)
        self.schema = {
            label: TensorSchema(dtype, dims(shape), device, requires_grad)
            for label, (dtype, shape, device, requires_grad) in zip(
                self.labels, self.prefix.native.schema(), strict=True
            )
        }

    def in_order(self, tensors: Mapping[str, torch.Tensor]) -> list[torch.Tensor]:
        """A boundary's tensors as the suffix takes them."""
        return [tensors[label] for label in self.labels]

    def check_schema(self, tensors: Mapping[str, torch.Tensor], sizes: Mapping[str, int]) -> None:
        """Every tensor of a boundary against the plan: dtype, each dimension, device, grad flag."""
        check_tensors(self.schema, dict(tensors), dict(sizes))

    def run_prefix(self, leaves: Sequence[torch.Tensor]) -> tuple[torch.Tensor, ...]:
        """What crosses, in the order of the labels. State of the prefix is as after a call of the model."""
        return self._finish_prefix(self.halves.prefix, leaves)

    def _finish_prefix(self, half: Half, leaves: Sequence[torch.Tensor]) -> tuple[torch.Tensor, ...]:
        out = half.run(leaves)
        return keep(self.prefix.rebinds, out) if self.prefix.rebinds else out

    def run_suffix(self, given: Sequence[torch.Tensor], symbols: list[int] | None) -> Any:
        """What the model returns."""
        return self._finish_suffix(self.halves.suffix, given, symbols)

    def _finish_suffix(self, half: Half, given: Sequence[torch.Tensor], symbols: list[int] | None) -> Any:
        return finish(self.captured, self.suffix.rebinds, half.run(given, symbols))

    def _both(self, leaves: Sequence[torch.Tensor], symbols: list[int] | None) -> Any:
        """The halves on the tape, one after the other."""
        return self._finish_suffix(self.suffix, self._finish_prefix(self.prefix, leaves), symbols)

    def check(self, target: Target, arguments: Arguments, symbols: list[int] | None, grad: bool) -> None:
        """Runs both halves and compares with the model, bit for bit, before anybody relies on them."""
        try:
            # The order in which sums are made depends on how many threads there are: the model gets as many.
            with progress.task(f"checking the halves of {target.name}"), limited(self.prefix.threads):
                check_call(target, self.captured, arguments, lambda leaves: self._both(leaves, symbols), grad)
        except CaptureError as error:
            raise SplitError(
                f"the halves after {self.candidate.name} do not give the model's results: {error}"
            ) from None

    def check_example(self, target: Target, arguments: Arguments, symbols: list[int] | None, grad: bool) -> None:
        """The halves take what they were made from."""
        check_example(target, self.captured, arguments, self.prefix, lambda x: self._both(x, symbols), grad)

    def settle(self, leaves: Sequence[torch.Tensor], symbols: list[int] | None) -> None:
        """Has each half choose how it runs. A prefix that cannot be run for that leaves it to the first boundary."""
        with torch.no_grad():
            ran = self.prefix.settle(leaves)
            if self.suffix.native.ask() and ran:
                self.suffix.run(self.prefix.run(leaves)[: len(self.labels)], symbols)

    def sides(self, name: str) -> list[str]:
        """The halves that read or write a module tensor."""
        return [half for half, names in self.names.items() if name in names]

    def _refuse_other_sides(self, like: Cut, where: str, elsewhere: str | None) -> None:
        """What another plan has in one half is not trained in the other one: its optimizer is not there."""
        for name in self.trained:
            here, there = self.sides(name), like.sides(name)
            if there and not set(here) & set(there):
                reason = f" ({elsewhere})" if elsewhere else ""
                raise SplitError(
                    f"{name} would be trained in the {here[0]}{where}, and it belongs to the {there[0]}: the model has "
                    f"no place there like the one after {_where(like.candidate)}{reason}"
                )

    def check_model(self) -> None:
        """Raises when the model is not as it was captured."""
        self.prefix.native.check_model()

    def live(self, name: str) -> torch.Tensor:
        """The model's own tensor of this name."""
        holder, key = self.captured.state[name]
        tensor = holder.get(key) if isinstance(holder, dict) else holder[key]
        if not isinstance(tensor, torch.Tensor):
            raise InputError(f"the model's {name} is no tensor any more: capture the model again")
        return tensor

    def state(self, half: str) -> dict[str, torch.Tensor]:
        """The module tensors that a half reads or writes, by name."""
        return {name: self.live(name) for name in self.names[half]}


def _where(c: SplitCandidate) -> str:
    return f"{c.name} in {c.module_path}" if c.module_path else c.name


def _place(c: SplitCandidate, nodes: int) -> str:
    crosses = f"{_show.plural(c.boundary_tensors, 'tensor')}, {_native.text_bytes(c.boundary_bytes)}"
    return f"{_where(c)}, node {c.position} of {nodes} ({crosses}, {_show.share(c.prefix_share)} of the work before)"


def _why(want: Wanted, like: Cut | None, elsewhere: str | None) -> str:
    """Why a frontier was taken, for the log."""
    if like is not None and elsewhere is None:
        return f"where the first plan is cut, after {like.candidate.name}"
    if want.spec.exact:
        return "the fewest bytes of all cuts"
    boundary = want.spec.boundary
    if boundary != "auto":
        near = boundary.startswith("percent:") or (boundary.endswith("%") and not boundary.startswith("nearest:"))
        return f"boundary={boundary!r}" + (", the fewest bytes within 5 % of the work" if near else "")
    goal = want.objective.minimize
    return f"the least {goal}" if goal else "the fewest bytes with 20 to 80 % of the work before"


def _choose(
    plan: Any, want: Wanted, sizes: dict[str, int] | None, like: Cut | None, where: str
) -> tuple[Any, int, str | None]:
    """The plan to cut (an exact cut puts its nodes in another order) and where: at the place at which another plan of
    the same model is cut if there is one and it has such a place, else where the user wants it; and why it has none."""
    spec, fields = want.spec, want.objective.fields
    elsewhere = None
    if like is not None:
        try:
            return *_same_place(plan, spec, sizes, like), None
        except CleaveError as error:
            elsewhere = str(error)
    try:
        if spec.exact:
            plan, which = plan.exact(list(spec.must_prefix), list(spec.must_suffix), sizes)
            plan.check(which, fields, sizes)
            return plan, which, elsewhere
        return plan, plan.choose(spec.boundary, fields, sizes), elsewhere
    except CleaveError as error:
        raise SplitError(str(error) if like is None else f"the model cannot be cut{where}: {error}") from None


def _same_place(plan: Any, spec: SplitSpec, sizes: dict[str, int] | None, like: Cut) -> tuple[Any, int]:
    if spec.exact:
        cut: tuple[Any, int] = plan.exact_like(*like.place, sizes)
        return cut
    like_plan, at = like.place
    found = like_plan.match(at, plan)
    frontiers = plan.frontiers(sizes)
    if found is None or found >= len(frontiers):
        raise SplitError(f"nothing runs {'before' if found is None else 'after'} that place there")
    candidate = SplitCandidate(*frontiers[found])
    if not candidate.safe:
        raise SplitError(candidate.reason or "it is not safe")
    return plan, found


class Cuts(Plans[Cut]):
    """The plans of one regime, cut in two."""

    confirms = False  # the halves are, which takes no longer

    def __init__(
        self,
        home: Served[Cuts, Cut],
        target: Target,
        example: tuple[Any, Any],
        want: Wanted,
        regime: Regime,
        first: Cuts | None,
    ) -> None:
        """first: the cuts of the example's regime, whose boundary and whose symbols these have too."""
        self.want = want
        sizes = want.spec.sizes if first is None else first.found_sizes(want.spec.batch_symbol, example)
        if sizes.empty and want.objective.batch_size is not None:
            raise SplitError("objective: batch_size needs a dynamic_batch; without one the example has the size")
        super().__init__(home, target, example, sizes, regime, None if first is None else first.main)

    def check_example(self, sizes: dict[str, int]) -> None:
        self.want.spec.check_example(sizes)

    def prepare(self, captured: Captured, arguments: Arguments, like: Cut | None) -> Cut:
        """Cuts a plan and runs both halves at sizes it is proven for."""
        sizes = self.sizes_of(arguments.leaves)
        typical = dict(sizes) if captured.symbols else None
        if typical is not None and self.want.objective.batch_size is not None:
            typical[self.want.spec.batch_symbol] = self.want.objective.batch_size
        where = f" at {_show.named_sizes(sizes)}" if sizes else ""
        cut = Cut(captured, self.want, self.regime.grad, typical, like, self.origin(captured), where)
        small = self.to_check(captured, arguments)
        try:
            cut.check(self.target, small, self.symbols(cut, self.sizes_of(small.leaves)), self.regime.grad)
        except SplitError:
            self.blame(captured, arguments)
            raise
        takes = self.takes(captured, arguments)
        if takes:
            cut.check_example(self.target, arguments, self.symbols(cut, sizes), self.regime.grad)
        if takes and not self.regime.grad:
            cut.settle(arguments.leaves, self.symbols(cut, sizes))
        return cut

    def check_boundary(self, cut: Cut, boundary: BoundaryPayload) -> None:
        """The sizes that a boundary brings are those of one call, and in their ranges; its labels are the cut's."""
        symbols = self.sized.symbols if self.sized is not None else ()
        ranges = [(s.name, s.low, s.high, s.is_batch) for s in symbols]
        _native.boundary_check((None, None, ranges, cut.labels), boundary_facts(boundary))

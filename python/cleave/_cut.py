"""A model cut in two, plan by plan: the two halves of each."""

from __future__ import annotations

import threading
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import torch

from . import _native, _show, progress
from ._capture import Arguments, Captured
from ._compiled import Segment
from ._cuda_graph import GraphSegment
from ._log import logger
from ._objective import Objective
from ._regime import Plans, Regime
from ._state import Target
from ._threads import limited
from .candidates import CandidateTable
from .errors import CaptureError, CleaveError, InputError, SplitError
from .optimize import NONE, SAFE, Optimize
from .payload import TensorSchema, check_tensors, dims
from .plan import Program, check_call, finish, keep, plan_signature
from .spec import SplitCandidate, SplitSpec

log = logger("split")

Engine = Program | Segment | GraphSegment


class Wanted(NamedTuple):
    """What the user asked for."""

    spec: SplitSpec
    objective: Objective
    mode: str = "generated_eager"
    compile_options: dict[str, Any] | None = None
    optimize: Optimize = SAFE
    threads: int = 0


class Engines(NamedTuple):
    """What runs the halves: the tape, or what the mode asks for. The tape is always there, and knows what to check."""

    prefix: Engine
    suffix: Engine

    @property
    def active_backend(self) -> str:
        """What runs the halves now: "tape", "inductor fullgraph", "cuda graph", …; both, where they differ."""
        return " and ".join(dict.fromkeys(e.active_backend for e in self))

    @property
    def fallback_reason(self) -> str | None:
        """Why something else runs the halves than the mode asks for; None: nothing else does."""
        return "; ".join(dict.fromkeys(e.fallback_reason for e in self if e.fallback_reason)) or None


def _engine(
    want: Wanted, captured: Captured, first: int, end: int, grad: bool, class_name: str, program: Program
) -> Engine:
    if want.mode == "compiled":
        return Segment(
            captured,
            first,
            end,
            inference=not grad,
            options=want.compile_options,
            class_name=class_name,
            program=program,
        )
    if want.mode == "cuda_graph" and not grad:
        return GraphSegment(captured, first, end, program=program)
    return program


class Cut:
    """One plan cut in two, ready to run."""

    def __init__(
        self,
        captured: Captured,
        want: Wanted,
        grad: bool,
        sizes: dict[str, int] | None,
        like: Cut | None,
        origin: str = "",
    ) -> None:
        self.source = captured
        self.sizes = sizes  # at which its candidates were counted
        plan, which = _choose(captured.plan, want, sizes, like)
        captured = self.captured = captured._replace(plan=plan)
        debug = want.mode == "debug_interpreter"
        self.candidates = CandidateTable(SplitCandidate(*c) for c in plan.frontiers(sizes))
        self.candidate = self.candidates.chosen = self.candidates[which]
        log.info("cut after %s: %s", _place(self.candidate, plan.node_count()), _why(want, like))
        at, end = self.candidate.position + 1, plan.node_count()
        how: dict[str, Any] = {
            "debug": debug,
            "inference": not grad,
            "optimize": NONE if grad else want.optimize,
            "graph": want.mode == "cuda_graph" and not grad,
            "threads": want.threads,
        }
        self.prefix = Program(captured, 0, at, **how)
        self.suffix = Program(captured, at, end, **how)
        # Parameters that both halves train: a suffix reads them through `stand_in`, so that its share of their
        # gradient can wait for the prefix's.
        self.tied = sorted(_trained(self.prefix) & _trained(self.suffix)) if grad else []
        self.stand_in: dict[str, torch.Tensor] = {}
        if self.tied:
            state = {**captured.state, **{name: (self.stand_in, name) for name in self.tied}}
            self.suffix = Program(captured._replace(state=state), at, end, **how)
        else:
            state = captured.state
        self.engines = Engines(
            _engine(want, captured, 0, at, grad, "Prefix", self.prefix),
            _engine(want, captured._replace(state=state), at, end, grad, "Suffix", self.suffix),
        )
        halves = {"prefix": self.prefix, "suffix": self.suffix}
        self.names = {half: [n for n, _, _, _ in g.native.state()] for half, g in halves.items()}
        # Module tensors that a half changes: no frontier has them on both sides.
        self.changes = {
            half: {*g.native.rebinds(), *(n for n, _, _, written in g.native.state() if written)}
            for half, g in halves.items()
        }
        self.lock = threading.Lock()
        self.labels: list[str] = self.prefix.native.outputs()
        inputs = set(self.prefix.native.inputs())
        self.passthrough = tuple(label for label in self.labels if label in inputs)
        if self.labels != self.suffix.native.inputs():
            raise AssertionError("prefix and suffix disagree about the boundary")
        self.signature = plan_signature(captured, origin)
        self.schema = {
            label: TensorSchema(dtype, dims(shape), device, requires_grad)
            for label, (dtype, shape, device, requires_grad) in zip(
                self.labels, self.prefix.native.schema(), strict=True
            )
        }

    def in_order(self, tensors: Mapping[str, torch.Tensor]) -> list[torch.Tensor]:
        """A boundary's tensors as the suffix takes them."""
        missing = [label for label in self.labels if label not in tensors]
        if missing:
            raise InputError(f"the boundary lacks {', '.join(missing)}")
        if len(tensors) > len(self.labels):
            unknown = [str(label) for label in tensors if label not in self.labels]
            raise InputError(f"the boundary has {', '.join(unknown)}, which the split does not know")
        return [tensors[label] for label in self.labels]

    def check_schema(self, tensors: Mapping[str, torch.Tensor], sizes: Mapping[str, int]) -> None:
        """Every tensor of a boundary against the plan: dtype, each dimension, device, grad flag."""
        check_tensors(self.schema, dict(zip(self.labels, self.in_order(tensors), strict=True)), dict(sizes))

    def run_prefix(self, leaves: Sequence[torch.Tensor]) -> tuple[torch.Tensor, ...]:
        """What crosses, in the order of the labels. State of the prefix is as after a call of the model."""
        return self._finish_prefix(self.engines.prefix, leaves)

    def _finish_prefix(self, engine: Engine, leaves: Sequence[torch.Tensor]) -> tuple[torch.Tensor, ...]:
        out = engine.run(leaves)
        return keep(self.prefix.rebinds, out) if self.prefix.rebinds else out

    def run_suffix(
        self, given: Sequence[torch.Tensor], symbols: list[int] | None, tied: Mapping[str, torch.Tensor] = {}
    ) -> Any:
        """What the model returns; `tied` stands in for parameters that both halves train."""
        return self._finish_suffix(self.engines.suffix, given, symbols, tied)

    def _finish_suffix(
        self,
        engine: Engine,
        given: Sequence[torch.Tensor],
        symbols: list[int] | None,
        tied: Mapping[str, torch.Tensor] = {},
    ) -> Any:
        if not self.tied:
            return finish(self.captured, self.suffix.rebinds, engine.run(given, symbols))
        with self.lock:
            self.stand_in.update({name: self.live(name) for name in self.tied} | dict(tied))
            try:
                out = engine.run(given, symbols)
            finally:
                self.stand_in.clear()
        return finish(self.captured, self.suffix.rebinds, out)

    def check(self, target: Target, arguments: Arguments, symbols: list[int] | None, grad: bool) -> None:
        """Runs both halves and compares with the model, bit for bit, before anybody relies on them."""

        def both(leaves: Sequence[torch.Tensor]) -> Any:
            return self._finish_suffix(self.suffix, self._finish_prefix(self.prefix, leaves), symbols)

        try:
            # The order in which sums are made depends on how many threads there are: the model gets as many.
            with progress.task(f"checking the halves of {target.name}"), limited(self.prefix.threads):
                check_call(target, self.captured, arguments, both, grad)
        except CaptureError as error:
            raise SplitError(
                f"the halves after {self.candidate.name} do not give what the model gives: {error}"
            ) from None

    def settle(self, leaves: Sequence[torch.Tensor], symbols: list[int] | None) -> None:
        """Has each half choose how it runs. A prefix that cannot be run for that leaves it to the first boundary."""
        with torch.no_grad():
            ran = self.prefix.settle(leaves)
            if self.suffix.native.ask() and ran:
                self.suffix.run(self.prefix.run(leaves)[: len(self.labels)], symbols)

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


def _trained(program: Program) -> set[str]:
    return {name for name, kind, trainable, _ in program.native.state() if kind == "param" and trainable}


def _place(c: SplitCandidate, nodes: int) -> str:
    where = f" in {c.module_path}" if c.module_path else ""
    crosses = f"{_show.plural(c.boundary_tensors, 'tensor')}, {_native.text_bytes(c.boundary_bytes)}"
    return (
        f"{c.name}{where}, node {c.position} of {nodes} ({crosses}, {_show.share(c.prefix_share)} of the work before)"
    )


def _why(want: Wanted, like: Cut | None) -> str:
    """Why a frontier was taken, for the log."""
    if want.spec.exact:
        return "the fewest bytes of all cuts"
    if like is not None:
        return f"where the first plan is cut, after {like.candidate.name}"
    if want.spec.boundary != "auto":
        return f"boundary={want.spec.boundary!r}"
    goal = want.objective.minimize
    return f"the least {goal}" if goal else "the fewest bytes with 20 to 80 % of the work before"


def _choose(plan: Any, want: Wanted, sizes: dict[str, int] | None, like: Cut | None) -> tuple[Any, int]:
    """The plan to cut (an exact cut puts its nodes in another order) and where: at the frontier of another plan of the
    same model if there is one, else where the user wants it."""
    spec, fields = want.spec, want.objective.fields
    try:
        if spec.exact:
            plan, which = plan.exact(list(spec.must_prefix), list(spec.must_suffix), sizes)
            plan.check(which, fields, sizes)
            return plan, which
        if like is not None:
            found = like.captured.plan.match(like.candidate.position, plan)
            frontiers = plan.frontiers(sizes)
            if found is not None and found < len(frontiers) and SplitCandidate(*frontiers[found]).safe:
                return plan, found
        return plan, plan.choose(spec.boundary, fields, sizes)
    except CleaveError as error:
        raise SplitError(str(error)) from None


class Cuts(Plans[Cut]):
    """The plans of one regime, cut in two."""

    confirms = False  # the halves are, which takes no longer

    def __init__(
        self, target: Target, example: tuple[Any, Any], want: Wanted, regime: Regime, first: Cuts | None
    ) -> None:
        """first: the cuts of the example's regime, whose boundary and whose symbols these have too."""
        self.want = want
        sizes = want.spec.sizes if first is None else first.found_sizes(want.spec.batch_symbol)
        if sizes.empty and want.objective.batch_size is not None:
            raise SplitError("objective: batch_size needs a dynamic_batch; without one the example has the size")
        super().__init__(target, example, sizes, regime, None if first is None else first.main)

    def check_example(self, sizes: dict[str, int]) -> None:
        self.want.spec.check_example(sizes)

    def prepare(self, captured: Captured, arguments: Arguments, like: Cut | None) -> Cut:
        """Cuts a plan and runs both halves at sizes it is proven for."""
        sizes = self.sizes_of(arguments.leaves)
        typical = dict(sizes) if captured.symbols else None
        if typical is not None and self.want.objective.batch_size is not None:
            typical[self.want.spec.batch_symbol] = self.want.objective.batch_size
        cut = Cut(captured, self.want, self.regime.grad, typical, like, self.origin(captured))
        small = self.to_check(captured, arguments)
        try:
            cut.check(self.target, small, self.symbols(cut, self.sizes_of(small.leaves)), self.regime.grad)
        except SplitError:
            self.blame(captured, arguments)
            raise
        if not self.regime.grad:
            cut.settle(arguments.leaves, self.symbols(cut, sizes))
        return cut

    def check_boundary_sizes(self, sizes: Mapping[str, int], batch_size: Any) -> None:
        """The sizes that a boundary brings are those of one call, and in their ranges."""
        for s in self.sized.symbols if self.sized is not None else ():
            n = sizes.get(s.name)
            if type(n) is not int:
                raise InputError(f"the boundary lacks the size {s.name}, or it is no size: {n!r}")
            if not s.low <= n <= s.high:
                raise InputError(f"the boundary has {s.name}={n}, the split is for {s.low} to {s.high}")
            if s.is_batch and batch_size != n:
                raise InputError(f"the boundary has batch {batch_size!r}, but {s.name}={n}")

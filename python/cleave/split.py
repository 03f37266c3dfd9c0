"""Split inference: a model cut in two, the prefix here and the suffix there.

>>> import torch, cleave
>>> net = torch.nn.Sequential(torch.nn.Linear(4, 8), torch.nn.ReLU(), torch.nn.Linear(8, 2)).eval()
>>> x = torch.randn(3, 4)
>>> runtime = cleave.prepare_split(net, example_inputs=(x,), split=cleave.SplitSpec(boundary="50%"))
>>> boundary = runtime.run_prefix(x)
>>> torch.equal(runtime.run_suffix(boundary), net(x))
True
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal

import torch

from ._capture import Arguments, Captured, take_apart
from ._objective import Objective
from ._objective import read as read_objective
from ._sizes import Sized
from ._state import Target
from .errors import CaptureError, CleaveError, InputError, SplitError
from .plan import Plan, Program, as_call, capture_checked, capture_sized, check_call, finish

TraceBatchMode = Literal["batch_1", "batch_gt1"]
MODES = ("generated_eager", "debug_interpreter")


@dataclass(frozen=True)
class SplitSpec:
    """Where and how to cut.

    boundary: "after:<module path>", "after:<node name>", "50%" (also "percent:50", "at:50%": the frontier with the
    nearest share of the estimated work before it) or "auto" (what the objective asks for; without one the fewest bytes
    with 20 to 80 % of the work on each side).

    exact: not only positions of the traced order: the fewest bytes of all cuts that have the nodes of must_prefix
    before and those of must_suffix after it (module paths and node names). Without must_prefix it is the first 20 % of
    the work in traced order, without must_suffix what is beyond 80 %.

    >>> SplitSpec(boundary="after:layer3").trainable
    False
    """

    boundary: str = "auto"
    batch_symbol: str = "B"
    dynamic_batch: tuple[int, int] | None = (1, 64)
    trainable: bool = False
    trace_batch_mode: TraceBatchMode = "batch_1"
    exact: bool = False
    must_prefix: tuple[str, ...] = ()
    must_suffix: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        self._check_exact()
        if not isinstance(self.boundary, str):
            raise SplitError(f'boundary is a string such as "50%", not {type(self.boundary).__name__}')
        if not self.boundary.strip():
            raise SplitError('boundary is empty; give "auto", "after:<module path>", "after:<node name>" or "50%"')
        if not isinstance(self.batch_symbol, str) or not self.batch_symbol.isidentifier():
            raise SplitError(f"batch_symbol must be an identifier such as B, not {self.batch_symbol!r}")
        if self.trace_batch_mode not in ("batch_1", "batch_gt1"):
            raise SplitError(f'trace_batch_mode must be "batch_1" or "batch_gt1", not {self.trace_batch_mode!r}')
        self._check_range()

    def _check_exact(self) -> None:
        for name in ("must_prefix", "must_suffix"):
            names = getattr(self, name)
            if not isinstance(names, tuple) or not all(isinstance(n, str) for n in names):
                raise SplitError(
                    f'{name} is a tuple of module paths and node names such as ("encoder",), not {names!r}'
                )
            if names and not self.exact:
                raise SplitError(f"{name} is for exact=True")
        if not isinstance(self.exact, bool):
            raise SplitError(f"exact must be True or False, not {self.exact!r}")
        if self.exact and self.boundary != "auto":
            raise SplitError(f'exact=True finds the boundary itself: leave it at "auto" instead of {self.boundary!r}')

    def _check_range(self) -> None:
        if self.dynamic_batch is None:
            return
        pair = self.dynamic_batch
        if not isinstance(pair, tuple) or len(pair) != 2 or not all(type(n) is int for n in pair):
            raise SplitError(f"dynamic_batch must be a pair of integers (low, high) or None, not {pair!r}")
        low, high = pair
        if low < 1 or high < low:
            raise SplitError(f"dynamic_batch must have 1 <= low <= high, not {pair!r}")
        if self.trace_batch_mode == "batch_1" and low > 1:
            raise SplitError(f'trace_batch_mode="batch_1" needs a dynamic_batch that starts at 1, not {pair!r}')


@dataclass(frozen=True)
class SplitCandidate:
    """A frontier: where the plan can be cut, what crosses there and what each side costs.

    Bytes, work (flops) and memory are those of one typical batch; boundary_bytes_formula has the bytes in the symbols
    of the plan. Memory is that of the model's tensors a side reads and the most its inputs and results take at a time.
    A parameter that both sides read counts on both."""

    position: int
    name: str
    module_path: str
    boundary_tensors: int
    passthrough_inputs: int
    boundary_bytes: int
    prefix_share: float
    trainable_suffix: bool
    reason: str | None
    boundary_bytes_formula: str
    boundary_labels: tuple[str, ...]
    prefix_node_count: int
    suffix_node_count: int
    prefix_flops: float
    suffix_flops: float
    prefix_params: int
    suffix_params: int
    prefix_param_bytes: int
    suffix_param_bytes: int
    prefix_memory: int
    suffix_memory: int

    @property
    def safe(self) -> bool:
        """The plan can be cut here; otherwise `reason` says why not."""
        return self.reason is None

    @property
    def is_trainable_suffix(self) -> bool:
        """The suffix reads a parameter that requires grad."""
        return self.trainable_suffix


@dataclass(frozen=True)
class BoundaryPayload:
    """What crosses from prefix to suffix: tensors by their label in the plan that graph_signature names."""

    split_id: str
    graph_signature: str
    batch_size: int | None
    tensors: dict[str, torch.Tensor]
    passthrough_inputs: tuple[str, ...] = ()
    weight_version: int = field(default=0)

    @property
    def nbytes(self) -> int:
        """Bytes of all tensors that cross."""
        return sum(t.numel() * t.element_size() for t in self.tensors.values())


def signature(text: str) -> str:
    """A short name for a plan: equal for equal plans."""
    return hashlib.sha256(text.encode("utf-8", "surrogateescape")).hexdigest()[:16]


class _Cut:
    """One plan cut in two, ready to run."""

    def __init__(
        self, captured: Captured, spec: SplitSpec, debug: bool, objective: Objective, sizes: dict[str, int] | None
    ) -> None:
        try:
            if spec.exact:
                plan, which = captured.plan.exact(list(spec.must_prefix), list(spec.must_suffix), sizes)
                plan.check(which, objective.fields, sizes)
                captured = captured._replace(plan=plan)
            else:
                which = captured.plan.choose(spec.boundary, objective.fields, sizes)
        except CleaveError as error:
            raise SplitError(str(error)) from None
        plan = captured.plan
        self.captured = captured
        self.candidates = [SplitCandidate(*c) for c in plan.frontiers(sizes)]
        self.candidate = self.candidates[which]
        at = self.candidate.position + 1
        self.prefix = Program(captured, 0, at, debug=debug, inference=True)
        self.suffix = Program(captured, at, plan.node_count(), debug=debug, inference=True)
        self.labels: list[str] = self.prefix.native.outputs()
        inputs = set(self.prefix.native.inputs())
        self.passthrough = tuple(label for label in self.labels if label in inputs)
        if self.labels != self.suffix.native.inputs():
            raise AssertionError("prefix and suffix disagree about the boundary")
        self.rebinds = [captured.state[name] for name in plan.rebinds()]
        self.signature = signature(plan.text())

    def run_prefix(self, leaves: Sequence[torch.Tensor]) -> dict[str, torch.Tensor]:
        return dict(zip(self.labels, self.prefix.run(leaves), strict=True))

    def run_suffix(self, tensors: dict[str, torch.Tensor], symbols: list[int] | None) -> Any:
        missing = [label for label in self.labels if label not in tensors]
        if missing:
            raise InputError(f"the boundary lacks {', '.join(missing)}")
        out = self.suffix.run([tensors[label] for label in self.labels], symbols)
        return finish(self.captured, self.rebinds, out)

    def check(self, target: Target, arguments: Arguments, symbols: list[int] | None) -> _Cut:
        """Runs both halves and compares with the model, bit for bit, before anybody relies on them."""
        try:
            check_call(target, self.captured, arguments, lambda x: self.run_suffix(self.run_prefix(x), symbols))
        except CaptureError as error:
            raise SplitError(
                f"the split after {self.candidate.name} does not give what the model gives: {error}"
            ) from None
        return self


class SplitRuntime:
    """A model cut in two. Made by prepare_split; inference only (results carry no gradients).

    A batch size that was not recorded when the split was prepared is recorded when it is first used, and either joins
    the plan or gets one of its own."""

    def __init__(
        self,
        target: Target,
        captured: Captured,
        sized: Sized | None,
        spec: SplitSpec,
        mode: str,
        objective: Objective,
        arguments: Arguments,
    ) -> None:
        self.split_spec = spec
        self.objective = objective
        self.mode = mode
        self._target = target
        self._sized = sized
        self._cut = self._first_cut(captured, arguments)
        self.trace_plan = Plan(target, self._cut.captured, sized)
        self._own: dict[int, _Cut] = {}  # batch sizes at which the model does something else
        self.candidate, self.candidates = self._cut.candidate, self._cut.candidates
        self.graph_signature = self._cut.signature
        self.split_id = f"{self.graph_signature}-{self.candidate.position}"

    def _first_cut(self, captured: Captured, arguments: Arguments) -> _Cut:
        """The cut of the main plan, judged at the batch size of the objective or of the example, and replayed."""
        sized = self._sized
        follows = sized is not None and sized.reason is None
        if sized is not None:
            size = sized.example if sized.example in sized.proven else min(sized.proven)
            arguments = sized.resized(arguments, size)
        elif self.objective.batch_size is not None:
            raise SplitError(
                "objective: batch_size needs a dynamic_batch; without one everything is the example's size"
            )
        sizes = {sized.symbol: self.objective.batch_size or sized.example} if sized is not None and follows else None
        cut = _Cut(captured, self.split_spec, self.mode == "debug_interpreter", self.objective, sizes)
        with torch.no_grad():
            return cut.check(self._target, arguments, [size] if follows else None)

    @property
    def batch_range(self) -> tuple[int, int] | None:
        """The batch sizes it was prepared for; None: the example's alone."""
        return None if self._sized is None else (self._sized.low, self._sized.high)

    @property
    def variants(self) -> list[str]:
        """The plans behind this runtime and the batch sizes each is proven for."""
        if self._sized is None:
            return ["the example's sizes"]
        main = f"{self._sized.symbol} in {sorted(self._sized.proven)}"
        return [main, *(f"{self._sized.symbol} = {size}" for size in sorted(self._own))]

    def _cut_for(self, args: tuple[Any, ...], kwargs: dict[str, Any], leaves: Sequence[torch.Tensor]) -> _Cut:
        sized = self._sized
        if sized is None:
            return self._cut
        size = sized.size_of(leaves)
        if size in sized.proven:
            return self._cut
        if size in self._own:
            return self._own[size]
        if not sized.low <= size <= sized.high:
            leaf, dim = next(iter(sized.dims.items()))
            name = take_apart(self._target, args, kwargs).names[leaf]
            raise InputError(
                f"input {name}: dimension {dim} is {sized.symbol}={size}, the split is for {sized.low} to {sized.high}"
            )
        self._cut.prefix.native.check_model()
        sized.check_rest(take_apart(self._target, args, kwargs))
        with torch.no_grad():
            if sized.admit(take_apart(self._target, args, kwargs), size):
                return self._cut
            captured = capture_checked(self._target, args, kwargs, grad=False, both=False)
            cut = _Cut(captured, self.split_spec, self.mode == "debug_interpreter", self.objective, None)
            cut.check(self._target, take_apart(self._target, args, kwargs), None)
        return self._own.setdefault(size, cut)

    def run_prefix(self, *inputs: Any, **kwargs: Any) -> BoundaryPayload:
        """Runs the model up to the boundary."""
        leaves = self.trace_plan.flatten_inputs(inputs, kwargs)
        cut = self._cut_for(inputs, kwargs, leaves)
        tensors = cut.run_prefix(leaves)
        size = self._sized.size_of(leaves) if self._sized else None
        return BoundaryPayload(self.split_id, cut.signature, size, tensors, cut.passthrough)

    def run_suffix(self, boundary: BoundaryPayload) -> Any:
        """Runs the rest of the model; what comes back has the type and structure of the model's own output."""
        if not isinstance(boundary, BoundaryPayload):
            raise TypeError(f"run_suffix takes the BoundaryPayload of run_prefix, not {type(boundary).__name__}")
        if boundary.split_id != self.split_id:
            raise InputError(f"this boundary belongs to split {boundary.split_id}, not to {self.split_id}")
        cut = self._cut if boundary.batch_size is None else self._own.get(boundary.batch_size, self._cut)
        if cut.signature != boundary.graph_signature:
            raise InputError(
                f"this boundary (batch {boundary.batch_size}) was made by a plan of its own, which this runtime lacks: "
                "at this size the model does something else, and the runtime must see it once in run_prefix"
            )
        sized = self._sized is not None and self._sized.reason is None and cut is self._cut
        return cut.run_suffix(boundary.tensors, [boundary.batch_size] if sized and boundary.batch_size else None)

    def __repr__(self) -> str:
        c = self.candidate
        where = f" in {c.module_path}" if c.module_path else ""
        crossing = f"{c.boundary_tensors} tensors, {c.boundary_bytes} bytes cross"
        return f"<cleave.SplitRuntime after {c.name}{where}: {crossing}>"


def prepare_split(
    model: Callable[..., Any],
    *,
    example_inputs: Any,
    example_kwargs: dict[str, Any] | None = None,
    split: SplitSpec,
    mode: str = "generated_eager",
    objective: dict[str, Any] | None = None,
    compile_options: dict[str, Any] | None = None,
) -> SplitRuntime:
    """Captures a model for inference, chooses a frontier and makes prefix and suffix ready.

    With a dynamic_batch range the model is recorded at a few small batch sizes, and every number that follows the batch
    becomes a formula. The two halves are run and compared with the model before they are returned.

    objective: {"minimize": …, "constraints": {…}, "batch_size": n}, all of it optional. What is minimised counts for
    boundary="auto", constraints hold for every boundary; batch_size is the batch for which bytes and work are counted
    (the example's without it). minimize is one of boundary_bytes, latency (seconds; needs bandwidth_bytes_per_s; both
    sides do 1e12 operations per second unless prefix_flops_per_s and suffix_flops_per_s say otherwise), prefix_memory,
    suffix_memory, prefix_flops, suffix_flops, balance. Constraints: trainable_suffix, max_boundary_bytes,
    max_prefix_memory, max_suffix_memory, max_prefix_params, max_suffix_params, prefix_flops_fraction (the most, or a
    pair), min_prefix_flops_fraction, max_prefix_flops_fraction, max_latency_s.

    compile_options is not available yet and must be None."""
    if not isinstance(split, SplitSpec):
        raise TypeError(f"split must be a SplitSpec, not {type(split).__name__}")
    if mode not in MODES:
        raise SplitError(f"mode must be one of {', '.join(MODES)}, not {mode!r}")
    if compile_options is not None:
        raise SplitError("compile_options is not supported in this version; leave it out")
    goal = read_objective(objective, split.trainable)
    if split.exact and goal.minimize not in (None, "boundary_bytes"):
        raise SplitError(f"exact=True minimises boundary_bytes; the objective minimises {goal.minimize}")
    target = Target(model)
    args, kwargs = as_call(example_inputs, example_kwargs)
    arguments = take_apart(target, args, kwargs)
    with torch.no_grad():
        if split.dynamic_batch is None:
            captured = capture_checked(target, args, kwargs, grad=False, both=False)
            return SplitRuntime(target, captured, None, split, mode, goal, arguments)
        sized = capture_sized(target, args, kwargs, False, split.batch_symbol, *split.dynamic_batch)
    return SplitRuntime(target, sized.captured, sized, split, mode, goal, arguments)

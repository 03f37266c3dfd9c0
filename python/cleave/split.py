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
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal

import torch

from ._capture import Captured, take_apart
from ._dims import DynamicDims, SizeSpec
from ._sizes import Sized
from ._state import Target
from .errors import ArgumentError, CleaveError, InputError, SplitError
from .plan import Plan, Program, as_call, capture_checked, capture_sized, finish

TraceBatchMode = Literal["batch_1", "batch_gt1"]
MODES = ("generated_eager", "debug_interpreter")


@dataclass(frozen=True)
class SplitSpec:
    """Where and how to cut.

    boundary: "after:<module path>", "after:<node name>", "50%" (also "percent:50", "at:50%": the frontier with the
    nearest share of the estimated work before it) or "auto" (fewest bytes, 20 to 80 % of the work on each side).

    dynamic_batch: the range of batch sizes; None: the batch does not change. Where the batch is, is found by running
    the model, unless dynamic_dims names it. dynamic_dims: other sizes that may change, {"input": {dim: "S"}}; the same
    symbol may occur in many inputs and dimensions. dynamic_ranges: {"S": (1, 512)}; also {dim: ("S", 1, 512)}. Without
    a range a symbol goes from 1 to four times the example's size (at least 64).

    trace_batch_mode: None takes any example. "batch_1" needs an example with one row and a range that starts at 1;
    "batch_gt1" needs an example with more rows. Either way a batch of one row gets a plan of its own where the model
    does something else there.

    >>> SplitSpec(boundary="after:layer3").trainable
    False
    """

    boundary: str = "auto"
    batch_symbol: str = "B"
    dynamic_batch: tuple[int, int] | None = (1, 64)
    trainable: bool = False
    trace_batch_mode: TraceBatchMode | None = None
    dynamic_dims: DynamicDims | None = field(default=None, hash=False)
    dynamic_ranges: Mapping[str, tuple[int, int]] | None = field(default=None, hash=False)

    def __post_init__(self) -> None:
        if not isinstance(self.boundary, str):
            raise SplitError(f'boundary is a string such as "50%", not {type(self.boundary).__name__}')
        if not self.boundary.strip():
            raise SplitError('boundary is empty; give "auto", "after:<module path>", "after:<node name>" or "50%"')
        if not isinstance(self.batch_symbol, str) or not self.batch_symbol.isidentifier():
            raise SplitError(f"batch_symbol must be an identifier such as B, not {self.batch_symbol!r}")
        if self.trace_batch_mode not in (None, "batch_1", "batch_gt1"):
            raise SplitError(f'trace_batch_mode must be "batch_1" or "batch_gt1", not {self.trace_batch_mode!r}')
        try:
            low = self.sizes.ranges.get(self.batch_symbol, (1, 1))[0]
        except ArgumentError as error:
            raise SplitError(str(error)) from None
        if self.trace_batch_mode == "batch_1" and low > 1:
            raise SplitError(f'trace_batch_mode="batch_1" needs a dynamic_batch that starts at 1, not at {low}')

    @property
    def sizes(self) -> SizeSpec:
        """The sizes that may change."""
        return SizeSpec(self.dynamic_batch, self.batch_symbol, self.dynamic_dims, self.dynamic_ranges)

    def check_example(self, sized: Sized) -> None:
        """An explicit trace_batch_mode says how many rows the example has."""
        if self.trace_batch_mode is None or self.batch_symbol not in sized.names:
            return
        rows = sized.example[sized.names.index(self.batch_symbol)]
        if (rows == 1) != (self.trace_batch_mode == "batch_1"):
            need = "1" if self.trace_batch_mode == "batch_1" else "more than 1"
            raise SplitError(
                f'trace_batch_mode="{self.trace_batch_mode}" needs an example with batch {need}, not {rows}'
            )


@dataclass(frozen=True)
class SplitCandidate:
    """A frontier: where the plan can be cut and what crosses there."""

    position: int
    name: str
    module_path: str
    boundary_tensors: int
    passthrough_inputs: int
    boundary_bytes: int
    prefix_share: float
    trainable_suffix: bool
    reason: str | None

    @property
    def safe(self) -> bool:
        """The plan can be cut here; otherwise `reason` says why not."""
        return self.reason is None


@dataclass(frozen=True)
class BoundaryPayload:
    """What crosses from prefix to suffix: tensors by their label in the plan that graph_signature names."""

    split_id: str
    graph_signature: str
    batch_size: int | None
    tensors: dict[str, torch.Tensor]
    passthrough_inputs: tuple[str, ...] = ()
    weight_version: int = field(default=0)
    sizes: dict[str, int] = field(default_factory=dict)

    @property
    def nbytes(self) -> int:
        """Bytes of all tensors that cross."""
        return sum(t.numel() * t.element_size() for t in self.tensors.values())


def signature(text: str) -> str:
    """A short name for a plan: equal for equal plans."""
    return hashlib.sha256(text.encode("utf-8", "surrogateescape")).hexdigest()[:16]


class _Cut:
    """One plan cut in two, ready to run."""

    def __init__(self, captured: Captured, spec: SplitSpec, debug: bool, origin: str = "") -> None:
        plan = captured.plan
        self.captured = captured
        self.candidates = [SplitCandidate(*c) for c in plan.frontiers()]
        try:
            self.candidate = self.candidates[plan.choose(spec.boundary, spec.trainable)]
        except CleaveError as error:
            raise SplitError(str(error)) from None
        at = self.candidate.position + 1
        self.prefix = Program(captured, 0, at, debug=debug, inference=True)
        self.suffix = Program(captured, at, plan.node_count(), debug=debug, inference=True)
        self.labels: list[str] = self.prefix.native.outputs()
        inputs = set(self.prefix.native.inputs())
        self.passthrough = tuple(label for label in self.labels if label in inputs)
        if self.labels != self.suffix.native.inputs():
            raise AssertionError("prefix and suffix disagree about the boundary")
        self.rebinds = [captured.state[name] for name in plan.rebinds()]
        # Constants are no part of the text: where there are any, plans made at other sizes may differ in them alone.
        text = plan.text()
        self.signature = signature(text + origin if "\nconst " in text else text)

    def run_prefix(self, leaves: Sequence[torch.Tensor]) -> dict[str, torch.Tensor]:
        return dict(zip(self.labels, self.prefix.run(leaves), strict=True))

    def run_suffix(self, tensors: dict[str, torch.Tensor], symbols: list[int] | None) -> Any:
        missing = [label for label in self.labels if label not in tensors]
        if missing:
            raise InputError(f"the boundary lacks {', '.join(missing)}")
        out = self.suffix.run([tensors[label] for label in self.labels], symbols)
        return finish(self.captured, self.rebinds, out)


class SplitRuntime:
    """A model cut in two. Made by prepare_split; inference only (results carry no gradients).

    A batch size that was not recorded when the split was prepared is recorded when it is first used, and either joins
    the plan or gets one of its own."""

    def __init__(self, target: Target, captured: Captured, sized: Sized | None, spec: SplitSpec, mode: str) -> None:
        self.trace_plan = Plan(target, captured, sized)
        self.split_spec = spec
        self.mode = mode
        self._target = target
        self._sized = sized
        self._cut = _Cut(captured, spec, mode == "debug_interpreter", sized.origin(captured) if sized else "")
        self._cuts = {self._cut.signature: self._cut}  # one for each plan; replaced, not changed
        self.candidate, self.candidates = self._cut.candidate, self._cut.candidates
        self.graph_signature = self._cut.signature
        self.split_id = f"{self.graph_signature}-{self.candidate.position}"

    @property
    def batch_range(self) -> tuple[int, int] | None:
        """The batch sizes it was prepared for; None: the example's alone."""
        for s in self._sized.symbols if self._sized else ():
            if s.is_batch:
                return s.low, s.high
        return None

    @property
    def variants(self) -> list[str]:
        """The plans behind this runtime: the sizes each is proven for, and why it is another one than the first."""
        return ["the example's sizes"] if self._sized is None else self._sized.describe()

    def explore(self, *inputs: Any, seconds: float = 10.0, **kwargs: Any) -> list[str]:
        """Looks for branches on the sizes between those that were seen, and records the model on both sides of each.

        A shape-only pass lists the conditions that the forward asks about; the answer is one line for each, with what
        the records at both sides say. Nothing is trusted because of it: it is for knowing earlier. The pass runs the
        model on tensors without data; a model that keeps tensors in global caches would keep such ones."""
        if self._sized is None:
            return []
        self.trace_plan.flatten_inputs(inputs, kwargs)
        with torch.no_grad():
            return self._sized.explore(take_apart(self._target, inputs, kwargs), seconds)

    def _cut_for(self, args: tuple[Any, ...], kwargs: dict[str, Any], leaves: Sequence[torch.Tensor]) -> _Cut:
        sized = self._sized
        if sized is None:
            return self._cut
        sizes = sized.sizes_of(leaves)
        captured = sized.served.get(sizes)
        if captured is None:
            arguments = take_apart(self._target, args, kwargs)
            self._cut.prefix.native.check_model()
            sized.check_inputs(arguments)
            with torch.no_grad():
                captured = sized.obtain(arguments, sizes)
        return self._cut if captured is self._cut.captured else self._cut_of(captured)

    def _cut_of(self, captured: Captured) -> _Cut:
        for cut in self._cuts.values():
            if cut.captured is captured:
                return cut
        origin = self._sized.origin(captured) if self._sized else ""
        cut = _Cut(captured, self.split_spec, self.mode == "debug_interpreter", origin)
        kept = {id(c) for c, _ in self._sized.plans} if self._sized else set()
        known = {s: c for s, c in self._cuts.items() if id(c.captured) in kept or c is self._cut}
        self._cuts = {**known, cut.signature: cut}
        return cut

    def run_prefix(self, *inputs: Any, **kwargs: Any) -> BoundaryPayload:
        """Runs the model up to the boundary."""
        leaves = self.trace_plan.flatten_inputs(inputs, kwargs)
        cut = self._cut_for(inputs, kwargs, leaves)
        try:
            tensors = cut.run_prefix(leaves)
        except InputError:
            if self._sized:  # which knows more about sizes than the plan
                self._sized.check_inputs(take_apart(self._target, inputs, kwargs))
            raise
        sizes = dict(zip(self._sized.names, self._sized.sizes_of(leaves), strict=True)) if self._sized else {}
        batch = sizes.get(self.split_spec.batch_symbol)
        return BoundaryPayload(self.split_id, cut.signature, batch, tensors, cut.passthrough, sizes=sizes)

    def run_suffix(self, boundary: BoundaryPayload) -> Any:
        """Runs the rest of the model; what comes back has the type and structure of the model's own output."""
        if not isinstance(boundary, BoundaryPayload):
            raise TypeError(f"run_suffix takes the BoundaryPayload of run_prefix, not {type(boundary).__name__}")
        if boundary.split_id != self.split_id:
            raise InputError(f"this boundary belongs to split {boundary.split_id}, not to {self.split_id}")
        cut = self._cuts.get(boundary.graph_signature)
        if cut is None:
            raise InputError(
                f"this boundary (batch {boundary.batch_size}) was made by a plan of its own, which this runtime lacks: "
                "at this size the model does something else, and the runtime must see it once in run_prefix"
            )
        return cut.run_suffix(boundary.tensors, self._symbols_of(cut, boundary))

    @staticmethod
    def _symbols_of(cut: _Cut, boundary: BoundaryPayload) -> list[int] | None:
        names = cut.captured.symbols
        for name in names:
            size = boundary.sizes.get(name)
            if type(size) is not int or size < 0:
                raise InputError(f"the boundary lacks the size {name}, or it is no size: {size!r}")
        return [boundary.sizes[name] for name in names] or None

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
    becomes a formula. objective and compile_options are not available yet and must be None."""
    if not isinstance(split, SplitSpec):
        raise TypeError(f"split must be a SplitSpec, not {type(split).__name__}")
    if mode not in MODES:
        raise SplitError(f"mode must be one of {', '.join(MODES)}, not {mode!r}")
    for name, value in (("objective", objective), ("compile_options", compile_options)):
        if value is not None:
            raise SplitError(f"{name} is not supported in this version; leave it out")
    target = Target(model)
    args, kwargs = as_call(example_inputs, example_kwargs)
    with torch.no_grad():
        if split.sizes.empty:
            return SplitRuntime(
                target, capture_checked(target, args, kwargs, grad=False, both=False), None, split, mode
            )
        sized = capture_sized(target, args, kwargs, False, split.sizes)
        split.check_example(sized)
    return SplitRuntime(target, sized.captured, sized, split, mode)

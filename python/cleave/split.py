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
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, Literal

import torch

from . import _tree
from ._capture import Captured
from .errors import CleaveError, InputError, SplitError
from .plan import Plan, Program, capture

TraceBatchMode = Literal["batch_1", "batch_gt1"]
MODES = ("generated_eager", "debug_interpreter")


@dataclass(frozen=True)
class SplitSpec:
    """Where and how to cut.

    boundary: "after:<module path>", "after:<node name>", "50%" (also "percent:50", "at:50%": the frontier with the
    nearest share of the estimated work before it) or "auto" (fewest bytes, 20 to 80 % of the work on each side).

    >>> SplitSpec(boundary="after:layer3").trainable
    False
    """

    boundary: str = "auto"
    batch_symbol: str = "B"
    dynamic_batch: tuple[int, int] | None = (1, 64)
    trainable: bool = False
    trace_batch_mode: TraceBatchMode = "batch_1"

    def __post_init__(self) -> None:
        if not isinstance(self.boundary, str) or not self.boundary.strip():
            raise SplitError('boundary is empty; give "auto", "after:<module path>", "after:<node name>" or "50%"')
        if not isinstance(self.batch_symbol, str) or not self.batch_symbol.isidentifier():
            raise SplitError(f"batch_symbol must be an identifier such as B, not {self.batch_symbol!r}")
        if self.trace_batch_mode not in ("batch_1", "batch_gt1"):
            raise SplitError(f'trace_batch_mode must be "batch_1" or "batch_gt1", not {self.trace_batch_mode!r}')
        self._check_range()

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
    """What crosses from prefix to suffix: tensors by their label in the plan."""

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


class SplitRuntime:
    """A model cut in two. Made by prepare_split; inference only (results carry no gradients)."""

    def __init__(self, plan: Plan, captured: Captured, spec: SplitSpec, mode: str) -> None:
        self.trace_plan = plan
        self.split_spec = spec
        self.mode = mode
        self.candidates = [SplitCandidate(*c) for c in captured.plan.frontiers()]
        try:
            self.candidate = self.candidates[captured.plan.choose(spec.boundary, spec.trainable)]
        except CleaveError as error:
            raise SplitError(str(error)) from None
        self.graph_signature = hashlib.sha256(plan.text.encode("utf-8", "surrogateescape")).hexdigest()[:16]
        self.split_id = f"{self.graph_signature}-{self.candidate.position}"
        self._captured = captured
        debug = mode == "debug_interpreter"
        cut = self.candidate.position + 1
        self._prefix = Program(captured, 0, cut, debug=debug, inference=True)
        self._suffix = Program(captured, cut, captured.plan.node_count(), debug=debug, inference=True)
        self._labels: list[str] = self._prefix.native.outputs()
        self._passthrough = tuple(self._prefix.native.passthrough())
        if self._labels != self._suffix.native.inputs():
            raise AssertionError("prefix and suffix disagree about the boundary")
        self._rebinds = [captured.state[name] for name in captured.plan.rebinds()]

    def run_prefix(self, *inputs: Any, **kwargs: Any) -> BoundaryPayload:
        """Runs the model up to the boundary."""
        leaves = self.trace_plan.flatten_inputs(inputs, kwargs)
        out = self._prefix.run(leaves)
        size = leaves[0].shape[0] if leaves and leaves[0].dim() else None
        tensors = dict(zip(self._labels, out, strict=True))
        return BoundaryPayload(self.split_id, self.graph_signature, size, tensors, self._passthrough)

    def run_suffix(self, boundary: BoundaryPayload) -> Any:
        """Runs the rest of the model; what comes back has the type and structure of the model's own output."""
        if not isinstance(boundary, BoundaryPayload):
            raise TypeError(f"run_suffix takes the BoundaryPayload of run_prefix, not {type(boundary).__name__}")
        if boundary.split_id != self.split_id:
            raise InputError(f"this boundary belongs to split {boundary.split_id}, not to {self.split_id}")
        missing = [label for label in self._labels if label not in boundary.tensors]
        if missing:
            raise InputError(f"the boundary lacks {', '.join(missing)}")
        out = self._suffix.run([boundary.tensors[label] for label in self._labels])
        n = len(out) - len(self._rebinds)
        for (holder, key), value in zip(self._rebinds, out[n:], strict=True):
            holder[key] = value
        return _tree.unflatten(self._captured.output, out[:n])

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

    Runs at the example's own sizes. objective and compile_options are not available yet and must be None."""
    if not isinstance(split, SplitSpec):
        raise TypeError(f"split must be a SplitSpec, not {type(split).__name__}")
    if mode not in MODES:
        raise SplitError(f"mode must be one of {', '.join(MODES)}, not {mode!r}")
    for name, value in (("objective", objective), ("compile_options", compile_options)):
        if value is not None:
            raise SplitError(f"{name} is not supported in this version; leave it out")
    with torch.no_grad():
        plan = capture(model, example_inputs, example_kwargs, both_grad_modes=False)
    return SplitRuntime(plan, plan._main, split, mode)

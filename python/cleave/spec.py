"""Where to cut: the user's request, and the candidates of a plan."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Literal, NamedTuple

from . import _native, _show
from ._dims import DynamicDims, SizeSpec
from .errors import ArgumentError, SplitError

TraceBatchMode = Literal["batch_1", "batch_gt1"]


@dataclass(frozen=True)
class SplitSpec:
    """Where and how to cut.

    boundary: "after:<module path>", "after:<node name>", "50%" (also "percent:50", "at:50%": of the frontiers with 45
    to 55 % of the estimated work before them, the one with the fewest bytes), "nearest:50%" (the nearest share,
    whatever crosses there) or "auto" (what the objective asks for; without one the fewest bytes with 20 to 80 % of the
    work on each side).

    dynamic_batch: the range of batch sizes; None: the batch does not change. Where the batch is, is found by running
    the model, unless dynamic_dims names it. dynamic_dims: other sizes that may change, {"input": {dim: "S"}}; the same
    symbol may occur in many inputs and dimensions. dynamic_ranges: {"S": (1, 512)}; also {dim: ("S", 1, 512)}. Without
    a range a symbol goes from 1 to four times the example's size (at least 64).

    trace_batch_mode: None takes any example. "batch_1" needs an example with one row and a range that starts at 1;
    "batch_gt1" needs an example with more rows. Either way a batch of one row gets a plan of its own where the model
    does something else there.

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
    trace_batch_mode: TraceBatchMode | None = None
    exact: bool = False
    must_prefix: tuple[str, ...] = ()
    must_suffix: tuple[str, ...] = ()
    dynamic_dims: DynamicDims | None = field(default=None, hash=False)
    dynamic_ranges: Mapping[str, tuple[int, int]] | None = field(default=None, hash=False)

    def __post_init__(self) -> None:
        self._check_exact()
        if not isinstance(self.boundary, str):
            raise SplitError(f'boundary is a string such as "50%", not {type(self.boundary).__name__}')
        if not self.boundary.strip():
            raise SplitError('boundary is empty; give "auto", "after:<module path>", "after:<node name>" or "50%"')
        if not isinstance(self.batch_symbol, str) or not self.batch_symbol.isidentifier():
            raise SplitError(f"batch_symbol must be an identifier such as B, not {self.batch_symbol!r}")
        if not isinstance(self.trainable, bool):
            raise SplitError(f"trainable must be True or False, not {self.trainable!r}")
        if self.trace_batch_mode not in (None, "batch_1", "batch_gt1"):
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
        try:
            low = self.sizes.ranges.get(self.batch_symbol, (1, 1))[0]
        except ArgumentError as error:
            raise SplitError(str(error)) from None
        for name, (_, high) in self.sizes.ranges.items():
            if high >= 1 << 63:
                raise SplitError(f"{name} may be at most 2**63-1, not {high}")
        if self.trace_batch_mode == "batch_1" and low > 1:
            raise SplitError(f'trace_batch_mode="batch_1" needs a dynamic_batch that starts at 1, not at {low}')

    @property
    def sizes(self) -> SizeSpec:
        """The sizes that may change."""
        return SizeSpec(self.dynamic_batch, self.batch_symbol, self.dynamic_dims, self.dynamic_ranges)

    def check_example(self, sizes: Mapping[str, int]) -> None:
        """An explicit trace_batch_mode says how many rows the example has."""
        rows = sizes.get(self.batch_symbol)
        if self.trace_batch_mode is None or rows is None:
            return
        if (rows == 1) != (self.trace_batch_mode == "batch_1"):
            need = "1" if self.trace_batch_mode == "batch_1" else "more than 1"
            raise SplitError(
                f'trace_batch_mode="{self.trace_batch_mode}" needs an example with batch {need}, not {rows}'
            )


class SplitLatency(NamedTuple):
    """Seconds that one call takes by the formula of the latency objective: cut, and not cut."""

    cut: float
    here: float  # the whole model before the link; inf: a constraint forbids it
    there: float  # the inputs are sent and all runs behind the link; likewise
    boundary_bytes: int  # that are sent, compressed as the objective says
    input_bytes: int


@dataclass(frozen=True, repr=False)
class SplitCandidate(_show.Shown):
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
    taken_because: str = ""  # of the one that a split cuts at

    @property
    def safe(self) -> bool:
        """The plan can be cut here; otherwise `reason` says why not."""
        return self.reason is None

    @property
    def is_trainable_suffix(self) -> bool:
        """The suffix reads a parameter that requires grad."""
        return self.trainable_suffix

    @property
    def crossing(self) -> str:
        """What crosses, in words."""
        tensors, through = _show.plural(self.boundary_tensors, "tensor"), self.passthrough_inputs
        text = f"{tensors}, {_native.text_bytes(self.boundary_bytes)}"
        if not self.boundary_bytes_formula.isdigit():
            text += f" ({self.boundary_bytes_formula} bytes)"
        return f"{text}, {through} of them inputs" if through else text

    def side(self, half: str) -> str:
        """What "prefix" or "suffix" costs, in words."""
        prefix = half == "prefix"
        nodes = self.prefix_node_count if prefix else self.suffix_node_count
        share = self.prefix_share if prefix else 1 - self.prefix_share
        params = self.prefix_params if prefix else self.suffix_params
        memory = self.prefix_memory if prefix else self.suffix_memory
        return (
            f"{_show.plural(nodes, 'node')}, {_show.share(share)} of the work, "
            f"{_native.text_count(params)} parameters, {_native.text_bytes(memory)} of memory"
        )

    def _shown(self) -> tuple[str, _show.Facts]:
        where = f" in {self.module_path}" if self.module_path else ""
        facts = [("boundary", self.crossing), ("prefix", self.side("prefix")), ("suffix", self.side("suffix"))]
        facts += [("taken", self.taken_because)] if self.taken_because else []
        facts += [("unsafe", self.reason)] if self.reason is not None else []
        return f"cleave.SplitCandidate {self.position}: after {self.name}{where}", facts

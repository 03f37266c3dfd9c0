"""Where to cut: what a user asks for, and what the plan offers."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from .errors import SplitError

TraceBatchMode = Literal["batch_1", "batch_gt1"]


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
        if not isinstance(self.boundary, str):
            raise SplitError(f'boundary is a string such as "50%", not {type(self.boundary).__name__}')
        if not self.boundary.strip():
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

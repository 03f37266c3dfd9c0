"""Split inference with as little around it as possible: a boundary that is just tensors, checks as deep as asked for.

>>> import torch, cleave
>>> net = torch.nn.Sequential(torch.nn.Linear(4, 8), torch.nn.ReLU(), torch.nn.Linear(8, 2)).eval()
>>> x = torch.randn(3, 4)
>>> spec = cleave.SplitSpec(boundary="50%")
>>> replay = cleave.prepare_split_replay(net, example_inputs=(x,), split=spec, mode="generated_eager")
>>> boundary = replay.warmup(x).run_prefix(x)
>>> torch.equal(replay.run_suffix(boundary), net(x))
True
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import torch

from . import _native, _show, progress
from ._cut import Cut
from .errors import InputError, SplitError
from .optimize import Optimize
from .spec import SplitSpec
from .split import VALIDATIONS, SplitRuntime, prepare_split
from .visualization import Drawable, Subject


class ReplayBoundary(NamedTuple):
    """What crosses, for the suffix of the same runtime: tensors in the order of `boundary_order`."""

    tensors: tuple[torch.Tensor, ...]
    batch_size: int | None
    sizes: dict[str, int]
    split_id: str
    cut: Any  # the plan that made it, cut
    inputs: Any = None  # that the prefix got, where the suffix reads its data

    @_show.never_raises
    def __repr__(self) -> str:
        nbytes = sum(t.numel() * t.element_size() for t in self.tensors)
        amount = f"{_show.plural(len(self.tensors), 'tensor')}, {_native.text_bytes(nbytes)}"
        sizes = "".join(f", {name}={n}" for name, n in self.sizes.items())
        return f"<cleave.ReplayBoundary of split {self.split_id}: {amount}{sizes}>"


class SplitReplayRuntime(_show.Shown, Drawable):
    """A model cut in two, for inference. Made by prepare_split_replay.

    validation: "fast" checks that a boundary is of this runtime and complete, and leaves types and sizes to the suffix,
    which checks them as it checks all its inputs; "strict" compares every tensor with the schema first."""

    def __init__(self, runtime: SplitRuntime, validation: str, materialize_boundary: bool) -> None:
        if validation not in VALIDATIONS:
            raise SplitError(f"validation must be one of {', '.join(VALIDATIONS)}, not {validation!r}")
        self.runtime = runtime
        self.validation = validation
        self.materialize_boundary = materialize_boundary
        self.split_id, self.split_spec, self.mode = runtime.split_id, runtime.split_spec, runtime.mode

    def with_validation(self, validation: str) -> SplitReplayRuntime:
        """The same runtime with other checks."""
        return SplitReplayRuntime(self.runtime, validation, self.materialize_boundary)

    @property
    def boundary_order(self) -> tuple[str, ...]:
        """Labels of the tensors of a boundary."""
        return tuple(self.runtime.main_cut.labels)

    @property
    def passthrough_order(self) -> tuple[str, ...]:
        """Labels of the inputs that only the suffix needs."""
        return self.runtime.main_cut.passthrough

    @property
    def active_backend(self) -> str:
        """What runs the halves."""
        return self.runtime.active_backend

    @property
    def fallback_reason(self) -> str | None:
        """Why something else runs the halves than the mode asks for; None: nothing else does."""
        return self.runtime.fallback_reason

    def warmup(self, *inputs: Any, **kwargs: Any) -> SplitReplayRuntime:
        """Runs both halves once, so that what is compiled or captured on first use is ready."""
        with progress.task(f"warming up {self.runtime._target.name}"):
            self.replay(*inputs, **kwargs)
        return self

    def run_prefix(self, *inputs: Any, **kwargs: Any) -> ReplayBoundary:
        """Runs the model up to the boundary."""
        runtime = self.runtime
        inputs, kwargs, leaves = runtime.trace_plan.arrange(inputs, kwargs)
        cut, tensors = runtime.prefix_tensors(inputs, kwargs, leaves)
        sizes = cut.plans.sizes_of(leaves)
        batch, origin = sizes.get(self.split_spec.batch_symbol), (inputs, kwargs) if cut.guards_late else None
        return ReplayBoundary(tensors, batch, sizes, self.split_id, cut, origin)

    def run_suffix(self, boundary: ReplayBoundary) -> Any:
        """Runs the rest of the model."""
        self.validate_boundary(boundary)
        return self.runtime.suffix_by(
            boundary.cut,
            boundary.sizes,
            lambda c: c.run_suffix(boundary.tensors, c.plans.symbols(c, boundary.sizes)),
            boundary.inputs,
        )

    def replay(self, *inputs: Any, **kwargs: Any) -> Any:
        """Both halves, one after the other."""
        return self.run_suffix(self.run_prefix(*inputs, **kwargs))

    def validate_boundary(self, boundary: ReplayBoundary) -> None:
        """Raises the reason why a boundary does not belong to this runtime."""
        if not isinstance(boundary, ReplayBoundary):
            raise TypeError(f"run_suffix takes the ReplayBoundary of run_prefix, not {type(boundary).__name__}")
        if boundary.split_id != self.split_id:
            raise InputError(f"this boundary belongs to split {boundary.split_id}, not to {self.split_id}")
        if not isinstance(boundary.cut, Cut):
            raise TypeError("this boundary was not made by run_prefix: the plan that made it is missing")
        if not isinstance(boundary.tensors, tuple | list) or not isinstance(boundary.sizes, dict):
            raise TypeError("a boundary has a tuple of tensors and a dict of sizes")
        boundary.cut.plans.check_boundary_sizes(boundary.sizes, boundary.batch_size)
        labels = boundary.cut.labels
        if len(boundary.tensors) != len(labels):
            raise InputError(f"the boundary has {len(boundary.tensors)} tensors, the split has {len(labels)}")
        if self.validation == "strict":
            boundary.cut.check_schema(dict(zip(labels, boundary.tensors, strict=True)), boundary.sizes)

    def _subject(self) -> Subject:
        return self.runtime._subject()

    def _shown(self) -> tuple[str, _show.Facts]:
        return self.runtime._shown("SplitReplayRuntime", self.validation)


def prepare_split_replay(
    model: Callable[..., Any],
    *,
    example_inputs: Any,
    example_kwargs: dict[str, Any] | None = None,
    split: SplitSpec,
    mode: str = "compiled",
    validation: str = "fast",
    materialize_boundary: bool = True,
    objective: dict[str, Any] | None = None,
    compile_options: dict[str, Any] | None = None,
    optimize: str | Optimize = "safe",
    threads: int | None = None,
) -> SplitReplayRuntime:
    """prepare_split for inference alone, by default compiled.

    materialize_boundary: a boundary stays what it is when the prefix runs again. All modes do that, so False changes
    nothing; it is there for callers that pass it."""
    if validation not in VALIDATIONS:
        raise SplitError(f"validation must be one of {', '.join(VALIDATIONS)}, not {validation!r}")
    runtime = prepare_split(
        model,
        example_inputs=example_inputs,
        example_kwargs=example_kwargs,
        split=split,
        mode=mode,
        objective=objective,
        compile_options=compile_options,
        optimize=optimize,
        threads=threads,
    )
    return SplitReplayRuntime(runtime, validation, materialize_boundary)

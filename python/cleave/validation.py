"""Checks for users: a split against the model itself, at any number of sizes.

>>> import torch, cleave
>>> net = torch.nn.Sequential(torch.nn.Linear(4, 8), torch.nn.ReLU(), torch.nn.Linear(8, 2)).eval()
>>> x = torch.randn(3, 4)
>>> runtime = cleave.prepare_split(net, example_inputs=x, split=cleave.SplitSpec(boundary="50%"))
>>> cleave.validate_dynamic_batches(runtime, x, [1, 2, 8]).ok
True
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch

from . import _dims, _native, _show, _tree, progress
from ._capture import Arguments, Capture, own_copy, take_apart
from ._state import RandomState
from ._train import default_loss
from .errors import ArgumentError, ValidationError
from .plan import as_call
from .replay import SplitReplayRuntime
from .split import SplitRuntime


@dataclass(frozen=True)
class SizeResult:
    """A split compared with the model at one point."""

    sizes: dict[str, int]
    ok: bool
    bitwise: bool
    max_abs_diff: float | None  # None: there was nothing to compare
    reason: str | None  # why not ok
    variant: str | None  # the plan that served it


@dataclass(frozen=True, repr=False)
class DynamicBatchReport:
    """What validate_dynamic_batches found, size by size. Prints as a table."""

    results: tuple[SizeResult, ...]

    @property
    def ok(self) -> bool:
        """Every size gave the numbers of the model."""
        return all(r.ok for r in self.results)

    def __iter__(self) -> Iterator[SizeResult]:
        return iter(self.results)

    def raise_if_failed(self) -> None:
        """Raises a ValidationError with the table when some size failed."""
        if not self.ok:
            raise ValidationError(f"the split differs from the model:\n{self}")

    def __str__(self) -> str:
        return _show.columns([_HEAD, *(_row(r) for r in self.results)], [False] * len(_HEAD))

    @_show.never_raises
    def __repr__(self) -> str:
        return str(self)

    @_show.never_raises
    def _repr_html_(self) -> str:
        rows = [("" if r.ok else "chosen", _row(r)) for r in self.results]
        return _show.html_table(_HEAD, rows, [False] * len(_HEAD))


_HEAD = ("sizes", "result", "max abs diff", "plan, or reason")


def _row(r: SizeResult) -> tuple[str, str, str, str]:
    verdict = "equal" if r.bitwise else "close" if r.ok else "FAILED"
    diff = "" if r.max_abs_diff is None else f"{r.max_abs_diff:g}"
    return ", ".join(f"{k}={v}" for k, v in r.sizes.items()) or "example", verdict, diff, r.reason or r.variant or ""


def validate_dynamic_batches(
    runtime: SplitRuntime | SplitReplayRuntime,
    example_inputs: Any,
    batch_sizes: Iterable[int | Mapping[str, int]],
    rtol: float = 0.0,
    atol: float = 0.0,
    example_kwargs: dict[str, Any] | None = None,
) -> DynamicBatchReport:
    """Resizes the example to each size and compares prefix and suffix with the model itself, run without gradients.

    A size is a number of rows, or a dict such as {"B": 2, "S": 40}. With rtol and atol 0 all bits must be equal. A size
    that fails is in the report with its reason, and nothing is raised; the model is left as it was."""
    runtime = _split(runtime)
    args, kwargs = as_call(example_inputs, example_kwargs)
    runtime.trace_plan.flatten_inputs(args, kwargs)  # raises what is wrong with their structure
    arguments = take_apart(runtime._target, args, kwargs)
    sizes, results = list(batch_sizes), []
    with progress.task(f"comparing {runtime._target.name}", len(sizes)):
        for size in sizes:
            progress.step(f"comparing {size}", counted=True)
            results.append(_try_size(runtime, arguments, size, rtol, atol))
    return DynamicBatchReport(tuple(results))


def _split(runtime: Any) -> SplitRuntime:
    found = runtime.runtime if isinstance(runtime, SplitReplayRuntime) else runtime
    if not isinstance(found, SplitRuntime):
        raise TypeError(f"a SplitRuntime is needed, as prepare_split makes it, not {type(runtime).__name__}")
    return found


def _try_size(runtime: SplitRuntime, arguments: Arguments, size: Any, rtol: float, atol: float) -> SizeResult:
    sizes: dict[str, int] = {}
    try:
        sizes, at = _resized(runtime, arguments, size)
        with torch.no_grad():
            bitwise, diff, reason = _compare(runtime, at, rtol, atol)
        return SizeResult(sizes, reason is None, bitwise, diff, reason, _variant(runtime, at))
    except Exception as error:  # the report is there to tell
        text = f"{type(error).__name__}: {error}"
        return SizeResult(sizes or {"size": size}, False, False, None, text, None)


def _resized(runtime: SplitRuntime, arguments: Arguments, size: Any) -> tuple[dict[str, int], Arguments]:
    sized, batch = runtime.sized, runtime.split_spec.batch_symbol
    wanted = dict(size) if isinstance(size, Mapping) else {batch: size}
    if sized is None:
        raise ArgumentError("this split is for the example's sizes alone: prepare it with dynamic_batch")
    unknown = [name for name in wanted if name not in sized.names]
    if unknown:
        raise ArgumentError(
            f"no dimension of this split is called {', '.join(unknown)}; it has {', '.join(sized.names)}"
        )
    if any(type(n) is not int or n < 0 for n in wanted.values()):
        raise ArgumentError(f"a size must be an integer, not {size!r}")
    here = dict(zip(sized.names, sized.sizes_of(arguments.leaves), strict=True)) | wanted
    point = tuple(here[name] for name in sized.names)
    return here, arguments._replace(leaves=_dims.resize(arguments.leaves, sized.symbols, point))


def _compare(
    runtime: SplitRuntime, arguments: Arguments, rtol: float, atol: float
) -> tuple[bool, float | None, str | None]:
    """Eager and split on the same data from the same state: equal bit for bit, largest difference, reason."""
    sized = runtime.sized
    if sized is not None:
        runtime.prepare_sizes(dict(zip(sized.names, sized.sizes_of(arguments.leaves), strict=True)), training=False)
    work = Capture(runtime._target, arguments)

    def observe(call: Callable[..., Any]) -> Any:
        args, kwargs = arguments.rebuild(arguments.copies())
        with work.undoing():
            spec, out, _ = _tree.flatten(call(*args, **kwargs))
            return spec, [own_copy(t) for t in out]

    want, got = observe(runtime._target.call), observe(lambda *a, **k: runtime.run_suffix(runtime.run_prefix(*a, **k)))
    return difference(want, got, rtol, atol)


def difference(
    want: tuple[_tree.Spec, Sequence[torch.Tensor]],
    got: tuple[_tree.Spec, Sequence[torch.Tensor]],
    rtol: float,
    atol: float,
) -> tuple[bool, float | None, str | None]:
    """Two outputs taken apart: equal bit for bit, largest difference, and why they do not count as equal."""
    reason = _tree.difference(want[0], got[0], "the output")
    if reason is not None:
        return False, None, reason
    bitwise, largest = True, 0.0
    for i, (x, y) in enumerate(zip(want[1], got[1], strict=True)):
        if _native.bits_equal(x, y):
            continue
        bitwise = False
        if x.shape != y.shape or x.dtype != y.dtype:
            return False, None, f"tensor {i} is {y.dtype}{list(y.shape)}, the model gives {x.dtype}{list(x.shape)}"
        off = _largest_difference(x, y)
        largest = max(largest, off)
        if not (rtol or atol) or not torch.allclose(y, x, rtol=rtol, atol=atol, equal_nan=True):
            reason = reason or f"tensor {i} differs by up to {off:g}"
    return bitwise, largest, reason


def _largest_difference(x: torch.Tensor, y: torch.Tensor) -> float:
    wide = torch.complex128 if x.is_complex() else torch.float64
    a, b = (t.detach().to_dense().to(wide) if t.layout is not torch.strided else t.detach().to(wide) for t in (x, y))
    off = (a - b).abs().nan_to_num(nan=float("inf"))
    return float(off.max()) if off.numel() else 0.0


def _variant(runtime: SplitRuntime, arguments: Arguments) -> str | None:
    """The first words about the plan that serves these inputs."""
    sized = runtime.sized
    if sized is None:
        return None
    captured = sized.served.get(sized.sizes_of(arguments.leaves))
    if captured is sized.captured:
        return "the first plan"
    return "another plan with formulas" if captured is not None and captured.symbols else "a plan of its own"


# ---- assertions


def assert_forward_equivalent(
    model: Callable[..., Any],
    runtime: SplitRuntime | SplitReplayRuntime,
    inputs: Any,
    rtol: float = 0.0,
    atol: float = 0.0,
    kwargs: dict[str, Any] | None = None,
) -> None:
    """Prefix and suffix give what the model gives on these inputs, every bit of it unless rtol or atol are given.
    Buffers and the random state are put back."""
    runtime = _split(runtime)
    arguments = take_apart(runtime._target, *as_call(inputs, kwargs))
    args, named = arguments.rebuild(arguments.copies())  # the model may write to its inputs
    with Kept(runtime._target.call):
        got = _tree.flatten(runtime.run_suffix(runtime.run_prefix(*args, **named)))
    args, named = arguments.rebuild(arguments.copies())
    with Kept(model), torch.no_grad():
        want = _tree.flatten(model(*args, **named))
    _, _, reason = difference((want[0], want[1]), (got[0], got[1]), rtol, atol)
    if reason is not None:
        raise ValidationError(f"the split differs from the model: {reason}")


def assert_gradient_equivalent(
    model: torch.nn.Module,
    runtime: Any,
    inputs: Any,
    targets: Any,
    loss_fn: Callable[..., torch.Tensor] | None = None,
    rtol: float = 0.0,
    atol: float = 0.0,
) -> None:
    """One training step in two halves gives loss and parameter gradients of the whole step. Gradients, buffers and the
    random state are put back; `model` may be the one that the runtime was prepared from, or an equal one."""
    args, _ = as_call(inputs, None)
    with Kept(model, loss_fn):
        output = model(*args)
        loss = (loss_fn or default_loss)(output, targets)
        loss.backward()  # type: ignore[no-untyped-call]
        want = [(name, p.grad) for name, p in model.named_parameters()]
    own = runtime._target.call if isinstance(runtime._target.call, torch.nn.Module) else model
    with Kept(own, loss_fn):
        boundary = runtime.run_training_prefix(*args)
        split_loss, gradients = runtime.train_suffix(boundary, targets, loss_fn=loss_fn)
        runtime.backward_prefix(boundary, gradients)
        got = [p.grad for p in own.parameters()]
    pairs = [("the loss", loss.detach(), split_loss.detach())]
    for (name, x), y in zip(want, got, strict=True):
        if (x is None) != (y is None):
            raise ValidationError(f"{name} has {'a' if x is None else 'no'} gradient in the split alone")
        if x is not None and y is not None:
            pairs.append((f"the gradient of {name}", x, y))
    for name, x, y in pairs:
        bitwise = _native.bits_equal(x, y)
        if not bitwise and not ((rtol or atol) and torch.allclose(y, x, rtol=rtol, atol=atol, equal_nan=True)):
            raise ValidationError(f"{name} differs by up to {_largest_difference(x, y):g}")


class Kept:
    """Gradients, buffers and the random state of models, put back at the end; gradients start empty."""

    def __init__(self, *models: Callable[..., Any] | None) -> None:
        modules = [m for m in models if isinstance(m, torch.nn.Module)]
        self.gradients = [(p, p.grad) for m in modules for p in m.parameters()]
        self.buffers = [(b, b.detach().clone()) for m in modules for b in m.buffers()]
        self.random = RandomState()

    def __enter__(self) -> None:
        for p, _ in self.gradients:
            p.grad = None

    def __exit__(self, *_: object) -> None:
        self.random.restore()
        with torch.no_grad():
            for b, data in self.buffers:
                b.copy_(data)
        for p, gradient in self.gradients:
            p.grad = gradient


def assert_dynamic_batch_reuse(
    runtime: SplitRuntime | SplitReplayRuntime, inputs_by_batch: Mapping[int, Any] | Iterable[Any]
) -> None:
    """One plan serves all these inputs: {batch size: inputs}, or one set of inputs after the other."""
    runtime = _split(runtime)
    every = inputs_by_batch.values() if isinstance(inputs_by_batch, Mapping) else inputs_by_batch
    signatures: dict[str, int | None] = {}
    for inputs in every:
        args, _ = as_call(inputs, None)
        boundary = runtime.run_prefix(*args)
        runtime.run_suffix(boundary)
        signatures.setdefault(boundary.graph_signature, boundary.batch_size)
    if len(signatures) > 1:
        sizes = ", ".join(str(n) for n in signatures.values())
        text = "\n".join(runtime.variants)
        raise ValidationError(f"{len(signatures)} plans were needed, the first sizes of each: {sizes}\n{text}")


__all__ = [
    "DynamicBatchReport",
    "SizeResult",
    "assert_dynamic_batch_reuse",
    "assert_forward_equivalent",
    "assert_gradient_equivalent",
    "validate_dynamic_batches",
]

"""Checks that compare a split with the model itself, at any number of sizes.

>>> import torch, cleave
>>> net = torch.nn.Sequential(torch.nn.Linear(4, 8), torch.nn.ReLU(), torch.nn.Linear(8, 2)).eval()
>>> x = torch.randn(3, 4)
>>> runtime = cleave.prepare_split(net, example_inputs=x, split=cleave.SplitSpec(boundary="50%"))
>>> cleave.validate_dynamic_batches(runtime, x, [1, 2, 8]).ok
True
"""

from __future__ import annotations

import dataclasses
import json
import math
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Generic, TypeVar

import torch

from . import _native, _show, _tree, progress
from ._capture import Arguments, Capture, own_copy, take_apart
from ._state import RandomState
from ._train import default_loss
from ._transfer import check_batches
from .errors import ArgumentError, CleaveError, ValidationError
from .payload import METHODS, BoundaryPayload, Compress, check_methods
from .plan import as_call, as_inputs
from .split import SplitRuntime

T = TypeVar("T")


@dataclass(frozen=True)
class SizeResult:
    """A split compared with the model at one point."""

    sizes: dict[str, int]
    ok: bool
    bitwise: bool
    max_abs_diff: float | None  # None: nothing could be compared
    reason: str | None  # why it is not ok
    variant: str | None  # the plan that served it


class _Report(_show.Table, Generic[T]):
    """Results that print as a table."""

    results: tuple[T, ...]

    def __iter__(self) -> Iterator[T]:
        return iter(self.results)

    def __len__(self) -> int:
        return len(self.results)

    def __str__(self) -> str:
        return self._lines()


@dataclass(frozen=True, repr=False)
class DynamicBatchReport(_Report[SizeResult]):
    """What validate_dynamic_batches found, size by size. Prints as a table."""

    results: tuple[SizeResult, ...]
    _head = ("sizes", "result", "max abs diff", "plan, or reason")
    _right = (False, False, False, False)

    @property
    def ok(self) -> bool:
        """Every size gave the numbers of the model."""
        return all(r.ok for r in self.results)

    def raise_if_failed(self) -> None:
        """Raises a ValidationError with the table when some size failed."""
        if not self.ok:
            raise ValidationError(f"the split differs from the model:\n{self}")

    def _row(self, i: int) -> _show.Row:
        r = self.results[i]
        verdict = "equal" if r.bitwise else "close" if r.ok else "FAILED"
        diff = "" if r.max_abs_diff is None else f"{r.max_abs_diff:g}"
        sizes = ", ".join(f"{k}={v}" for k, v in r.sizes.items()) or "example"
        return "" if r.ok else "chosen", (sizes, verdict, diff, r.reason or r.variant or "")


def validate_dynamic_batches(
    runtime: SplitRuntime,
    example_inputs: Any,
    batch_sizes: Iterable[int | Mapping[str, int]],
    rtol: float = 0.0,
    atol: float = 0.0,
    example_kwargs: dict[str, Any] | None = None,
) -> DynamicBatchReport:
    """Resizes the example to each size and compares prefix and suffix with the model itself, run without gradients.

    A size is a number of rows, or a dict such as {"B": 2, "S": 40}. With rtol and atol 0 all bits must be equal. A size
    that fails is in the report with its reason, and nothing is raised; the model is left as it was."""
    runtime = split_of(runtime)
    args, kwargs = as_call(example_inputs, example_kwargs)
    runtime.trace_plan.flatten_inputs(args, kwargs)  # raises what is wrong with their structure
    arguments = take_apart(runtime._target, args, kwargs)
    sizes, results = list(batch_sizes), []
    with progress.task(f"comparing {runtime._target.name}", len(sizes)):
        for size in sizes:
            progress.step(f"comparing {size}", counted=True)
            results.append(_try_size(runtime, arguments, size, rtol, atol))
    return DynamicBatchReport(tuple(results))


def split_of(runtime: Any) -> SplitRuntime:
    """The runtime itself, or the one that a runtime of cleave.compat forwards to."""
    found = getattr(runtime, "runtime", runtime)
    if not isinstance(found, SplitRuntime):
        raise TypeError(f"a SplitRuntime is needed, as prepare_split makes it, not {type(runtime).__name__}")
    return found


def _try_size(runtime: SplitRuntime, arguments: Arguments, size: Any, rtol: float, atol: float) -> SizeResult:
    sizes: dict[str, int] = {}
    try:
        sizes, at = resized(runtime, arguments, size)
        with torch.no_grad():
            bitwise, diff, reason = _compare(runtime, at, rtol, atol)
        return SizeResult(sizes, reason is None, bitwise, diff, reason, _variant(runtime))
    except Exception as error:  # the report has the reason
        text = f"{type(error).__name__}: {error}"
        return SizeResult(sizes or {"size": size}, False, False, None, text, None)


def resized(runtime: SplitRuntime, arguments: Arguments, size: Any) -> tuple[dict[str, int], Arguments]:
    """The example at another size: a number of rows, or sizes by name."""
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
    here = sized.named(sized.sizes_of(arguments.leaves)) | wanted
    point = tuple(here[name] for name in sized.names)
    return here, arguments._replace(leaves=sized.resize(arguments.leaves, point))


def _compare(
    runtime: SplitRuntime, arguments: Arguments, rtol: float, atol: float
) -> tuple[bool, float | None, str | None]:
    """Runs eager and split on the same data from the same state: whether they are equal bit for bit, the largest
    difference, and the reason why they do not count as equal."""
    work = _prepared(runtime, arguments)

    def observe(call: Callable[..., Any]) -> Any:
        args, kwargs = arguments.rebuild(arguments.copies())
        with work.undoing():
            spec, out, _ = _tree.flatten(call(*args, **kwargs))
            return spec, [own_copy(t) for t in out]

    want, got = observe(runtime._target.call), observe(lambda *a, **k: runtime.run_suffix(runtime.run_prefix(*a, **k)))
    return difference(want, got, rtol, atol)


def _prepared(runtime: SplitRuntime, arguments: Arguments) -> Capture:
    """Records the sizes of these inputs, and returns what undoes runs on them. Recording itself cannot be undone."""
    sized = runtime.sized
    if sized is not None:
        runtime.prepare_sizes(sized.named(sized.sizes_of(arguments.leaves)), training=False)
    return Capture(runtime._target, arguments)


def difference(
    want: tuple[_tree.Spec, Sequence[torch.Tensor]],
    got: tuple[_tree.Spec, Sequence[torch.Tensor]],
    rtol: float,
    atol: float,
) -> tuple[bool, float | None, str | None]:
    """Compares two flattened outputs: equal bit for bit, largest difference, and why they do not count as equal."""
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


def _variant(runtime: SplitRuntime) -> str | None:
    """Which plan served the last call, in words."""
    sized = runtime.sized
    if sized is None:
        return None
    captured = runtime._served.dispatch.find(runtime._inference).source
    if captured is sized.captured:
        return "the first plan"
    return "another plan with formulas" if captured.symbols else "a plan of its own"


# ---- ways to compress the boundary


@dataclass(frozen=True)
class CompressionResult:
    """What one way to compress the boundary saves and costs, over all batches.

    method: "plain" is the boundary as it is. nbytes: of the payloads. output_error: the norm of what the outputs are
    off, by that of the outputs without compression. top1: the share of rows whose largest output is the same one. lost:
    what an element of the boundary lost by its own magnitude on average, of the tensor that lost most. pack_ms and
    unpack_ms: of one batch, on average. reason: why it could not be done; then there are no errors."""

    method: str
    nbytes: int
    output_error: float | None
    max_abs_diff: float | None
    top1: float | None
    lost: float | None
    pack_ms: float
    unpack_ms: float
    reason: str | None = None


@dataclass(frozen=True, repr=False)
class CompressionReport(_Report[CompressionResult]):
    """What validate_split found, way by way. Prints as a table."""

    results: tuple[CompressionResult, ...]
    _head = ("way", "bytes", "of plain", "output error", "max abs diff", "same top-1", "lost", "time", "reason")
    _right = (False, True, True, True, True, True, True, True, False)

    def json(self) -> str:
        """A list with one object for each way; infinite numbers are the text "inf"."""
        rows = [dataclasses.asdict(r) for r in self.results]
        for row in rows:
            row.update({k: str(v) for k, v in row.items() if isinstance(v, float) and not math.isfinite(v)})
        return json.dumps(rows, indent=1, allow_nan=False)

    def _row(self, i: int) -> _show.Row:
        r = self.results[i]
        if r.reason is not None:
            return "dim", (r.method, "", "", "", "", "", "", "", r.reason)
        numbers = ("" if x is None else f"{x:.3g}" for x in (r.output_error, r.max_abs_diff))
        share = f"{100 * r.nbytes / self.results[0].nbytes:.1f} %"
        top1 = "" if r.top1 is None else f"{100 * r.top1:.1f} %"
        took = f"{r.pack_ms + r.unpack_ms:.3g} ms"
        return "", (r.method, _native.text_bytes(r.nbytes), share, *numbers, top1, f"{r.lost:.3g}", took, "")


class _Way:
    """One way to compress, and sums over batches."""

    def __init__(self, compress: Compress) -> None:
        self.compress = compress
        named = ", ".join(f"{k}: {v}" for k, v in compress.items()) if isinstance(compress, Mapping) else compress
        self.method = named or "plain"
        self.nbytes = self.rows = self.agree = 0
        self.pack = self.unpack = self.off = self.all = self.largest = self.lost = 0.0
        self.reason: str | None = None

    def send(self, boundary: BoundaryPayload) -> BoundaryPayload:
        """The boundary as a receiver gets it."""
        start = time.perf_counter()
        data = boundary.to_bytes(compress=self.compress)
        packed = time.perf_counter()
        received = BoundaryPayload.from_bytes(data)
        self.unpack += time.perf_counter() - packed
        self.pack += packed - start
        self.nbytes += len(data)
        self.lost = max([self.lost, *(e.relative for e in boundary.compression_error.values())])
        return received

    def compare(self, want: Sequence[torch.Tensor], got: Sequence[torch.Tensor]) -> None:
        """Adds up how far two outputs are apart: their floating-point tensors, or all tensors if there are none."""
        floating = [i for i, t in enumerate(want) if t.is_floating_point() or t.is_complex()]
        chosen = [(want[i], got[i]) for i in floating] or list(zip(want, got, strict=True))
        for x, y in chosen:
            wide = torch.complex128 if x.is_complex() else torch.float64
            a, b = x.to(wide), y.to(wide)
            same = (a == b) | (a.isnan() & b.isnan())
            off = torch.where(same, 0, (a - b).abs()).nan_to_num(nan=math.inf, posinf=math.inf)
            self.off += float(off.square().sum())
            self.all += float(a.abs().nan_to_num(0, 0, 0).square().sum())
            self.largest = max(self.largest, float(off.max()) if off.numel() else 0.0)
        self._compare_top(chosen, bool(floating))

    def _compare_top(self, pairs: Sequence[tuple[torch.Tensor, torch.Tensor]], floating: bool) -> None:
        for x, y in pairs:
            if not floating and x.numel():
                same = x == y  # the outputs are the classes
            elif x.dim() and x.shape[-1] > 1 and x.numel() and not x.is_complex():
                same = x.argmax(-1) == y.argmax(-1)
            else:
                continue
            self.agree += int(same.sum())
            self.rows += same.numel()
            return

    def result(self, batches: int) -> CompressionResult:
        times = 1e3 * self.pack / batches, 1e3 * self.unpack / batches
        if self.reason is not None:
            return CompressionResult(self.method, 0, None, None, None, None, *times, self.reason)
        error = 0.0 if self.off == 0 else math.inf if self.all == 0 else math.sqrt(self.off / self.all)
        top1 = self.agree / self.rows if self.rows else None
        return CompressionResult(self.method, self.nbytes, error, self.largest, top1, self.lost, *times)


def validate_split(
    runtime: SplitRuntime, batches: Iterable[Any], compress: Iterable[Compress] = ("fp16", "bf16", "int8", "zstd")
) -> CompressionReport:
    """What each way to compress the boundary saves, and what it does to the output of the model.

    Every batch (a tensor, a tuple of positional inputs, or a dict of keyword inputs) goes through the prefix, through
    bytes in each of the ways, and through the suffix; outputs are compared with those of the boundary as it is. A way
    is a method of BoundaryPayload.to_bytes, or {label: method}. One that cannot be taken, as int8 where a number is
    infinite, is in the report with the reason. The model is left as it was.

    >>> import torch, cleave
    >>> net = torch.nn.Sequential(torch.nn.Linear(4, 64), torch.nn.ReLU(), torch.nn.Linear(64, 3)).eval()
    >>> spec = cleave.SplitSpec(boundary="after:1")
    >>> runtime = cleave.prepare_split(net, example_inputs=torch.randn(8, 4), split=spec)
    >>> report = cleave.validate_split(runtime, [torch.randn(8, 4)], compress=["fp16", "int8"])
    >>> [r.method for r in report]
    ['plain', 'fp16', 'int8']
    >>> report.results[2].output_error < 0.05
    True
    """
    runtime = split_of(runtime)
    if isinstance(compress, str | Mapping) or not isinstance(compress, Iterable):
        raise TypeError(f"compress is a list of ways, such as ['fp16', 'int8'], not {compress!r}")
    ways = [_Way(None), *(_Way(c) for c in compress if c is not None)]
    for way in ways:
        check_methods(way.compress)
    count = 0
    with progress.task(f"compressing boundaries of {runtime._target.name}"):
        for batch in check_batches(batches, "batches"):
            progress.step(f"batch {count}")
            _try_ways(runtime, take_apart(runtime._target, *as_inputs(batch)), ways)
            count += 1
    if count == 0:
        raise ArgumentError("batches is empty: there is no batch to measure with")
    return CompressionReport(tuple(w.result(count) for w in ways))


@dataclass(frozen=True)
class Calibration:
    """What calibrate chose: `compress` for to_bytes, save and `--compress` (None: nothing within the bounds is smaller
    than the boundary as it is), its `result`, and the `report` with all ways. Prints as the report and the choice."""

    compress: Compress
    result: CompressionResult
    report: CompressionReport

    def __str__(self) -> str:
        return f"{self.report}\ncompress={self.compress!r}"


def calibrate(
    runtime: SplitRuntime,
    batches: Iterable[Any],
    *,
    max_error: float = 0.01,
    min_top1: float = 0.0,
    compress: Iterable[Compress] = METHODS,
) -> Calibration:
    """The smallest way to compress the boundary that keeps the output of the model within bounds, on these batches.

    max_error bounds CompressionResult.output_error, and min_top1 its top1 (a share, 0 to 1); max_error=math.inf bounds
    the agreement alone. Use batches like those that will come: random numbers say little about a model.

    >>> import torch, cleave
    >>> net = torch.nn.Sequential(torch.nn.Linear(4, 64), torch.nn.ReLU(), torch.nn.Linear(64, 3)).eval()
    >>> spec = cleave.SplitSpec(boundary="after:1")
    >>> runtime = cleave.prepare_split(net, example_inputs=torch.randn(8, 4), split=spec)
    >>> found = cleave.calibrate(runtime, [torch.randn(8, 4)], max_error=0.1)
    >>> found.result.output_error <= 0.1
    True
    >>> data = runtime.run_prefix(torch.randn(8, 4)).to_bytes(compress=found.compress)
    """
    if not max_error >= 0 or not 0 <= min_top1 <= 1:
        raise ArgumentError(f"max_error is 0 or more and min_top1 from 0 to 1, not {max_error!r} and {min_top1!r}")
    ways = list(compress) if not isinstance(compress, str | Mapping) else compress
    report = validate_split(runtime, batches, ways)
    best, chosen = report.results[0], None
    if min_top1 > 0 and best.top1 is None:
        raise ArgumentError("no output has rows of scores, so that there is no top-1 to agree on: bound the error")
    for way, result in zip((w for w in ways if w is not None), report.results[1:], strict=True):
        off = math.inf if result.output_error is None else result.output_error
        kept = result.reason is None and off <= max_error and (result.top1 or 0.0) >= min_top1
        if kept and result.nbytes < best.nbytes:
            best, chosen = result, way
    return Calibration(chosen, best, report)


def _try_ways(runtime: SplitRuntime, arguments: Arguments, ways: Sequence[_Way]) -> None:
    work = _prepared(runtime, arguments)
    made: list[tuple[bytes, torch.device]] = []

    def observe(received: BoundaryPayload | None) -> list[torch.Tensor]:
        """The outputs of the suffix on what was received, or on the boundary itself."""
        args, kwargs = arguments.rebuild(arguments.copies())
        with work.undoing(), torch.no_grad():
            boundary = runtime.run_prefix(*args, **kwargs)
            if received is None:
                made.append((boundary.to_bytes(), _place(boundary)))
            else:
                there = {label: t.to(boundary.tensors[label].device) for label, t in received.tensors.items()}
                boundary = dataclasses.replace(received, tensors=there)
            return [own_copy(t) for t in _tree.flatten(runtime.run_suffix(boundary))[1]]

    want = observe(None)
    boundary = BoundaryPayload.from_bytes(*made[0])  # its own memory, which no run writes
    for way in ways:
        if way.reason is not None:
            continue
        try:
            way.compare(want, observe(way.send(boundary)))
        except CleaveError as error:
            way.reason = str(error)


def _place(boundary: BoundaryPayload) -> torch.device:
    """The device of its tensors, if they share one; else the CPU."""
    places = {t.device for t in boundary.tensors.values()}
    return places.pop() if len(places) == 1 else torch.device("cpu")


# ---- assertions


def assert_forward_equivalent(
    model: Callable[..., Any],
    runtime: SplitRuntime,
    inputs: Any,
    rtol: float = 0.0,
    atol: float = 0.0,
    kwargs: dict[str, Any] | None = None,
) -> None:
    """Prefix and suffix give what the model gives on these inputs, every bit of it unless rtol or atol are given.
    Buffers and the random state are put back."""
    runtime = split_of(runtime)
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
    *,
    split_inputs: Any = None,
) -> None:
    """One training step in two halves gives loss and parameter gradients of the whole step. Gradients, buffers and the
    random state are put back; `model` may be the one that the runtime was prepared from, or an equal one.
    split_inputs: what the halves get, where it is not what the model gets."""
    args, _ = as_call(inputs, None)
    split_args, _ = as_call(inputs if split_inputs is None else split_inputs, None)
    with Kept(model, loss_fn):
        output = model(*args)
        loss = (loss_fn or default_loss)(output, targets)
        loss.backward()  # type: ignore[no-untyped-call]
        want = [(name, p.grad) for name, p in model.named_parameters()]
    own = runtime._target.call if isinstance(runtime._target.call, torch.nn.Module) else model
    with Kept(own, loss_fn):
        boundary = runtime.run_training_prefix(*split_args)
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
    """Restores gradients, buffers and the random state of models at the end; inside, gradients start empty."""

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


def assert_dynamic_batch_reuse(runtime: SplitRuntime, inputs_by_batch: Mapping[int, Any] | Iterable[Any]) -> None:
    """One plan serves all these inputs: {batch size: inputs}, or one set of inputs after the other."""
    runtime = split_of(runtime)
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
    "Calibration",
    "CompressionReport",
    "CompressionResult",
    "DynamicBatchReport",
    "SizeResult",
    "assert_dynamic_batch_reuse",
    "assert_forward_equivalent",
    "assert_gradient_equivalent",
    "calibrate",
    "validate_dynamic_batches",
    "validate_split",
]

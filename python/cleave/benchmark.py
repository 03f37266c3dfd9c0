"""Measures a model, whole and cut, in turn with any other way to compute the same.

Everything is measured by `compare`: all ways take turns within each round, so that other load on the machine hits all
of them alike. Results are medians, with the quartiles around them.

>>> import torch, cleave
>>> net = torch.nn.Sequential(torch.nn.Linear(4, 8), torch.nn.ReLU(), torch.nn.Linear(8, 2)).eval()
>>> x = torch.randn(3, 4)
>>> plan = cleave.capture(net, x)
>>> eager, tape = cleave.benchmark.compare({"eager": lambda: net(x), "tape": lambda: plan(x)}, iterations=5, warmup=1)
>>> tape.name, tape.iterations, tape.median_latency_s > 0
('tape', 5, True)

The clock is Python's, which takes a tenth of a microsecond to read; ways are Python callables anyway. `cleave bench`
measures files without Python."""

from __future__ import annotations

import dataclasses
import datetime
import functools
import json
import math
import platform
import sys
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, NamedTuple, Protocol, runtime_checkable

import torch

from . import _native, _show, _tree
from .errors import ArgumentError
from .optimize import Optimize
from .payload import BoundaryPayload
from .plan import as_call
from .profile import device_name
from .spec import SplitSpec
from .split import SplitRuntime, prepare_split
from .validation import Kept, split_of

Call = Callable[[], Any]
Run = Call | tuple[Call, Callable[[Any], Any]]  # or a set-up outside of the clock, and what takes its result
Where = str | torch.device | Iterable[str | torch.device] | None
Loss = Callable[[Any, Any], torch.Tensor]

LEAST = 3  # rounds, however long they take
WARMING = 0.25  # of the seconds of a comparison, at most


@runtime_checkable
class Measured(Protocol):
    """Something that runs and measures itself."""

    def seconds(self, times: int) -> float:
        """Seconds of one run, averaged over `times` in a row."""
        ...


Way = Run | Measured


class Spread(NamedTuple):
    """Median, quartiles, least and most of several numbers."""

    median: float
    low: float
    high: float
    least: float
    most: float

    def text(self, digits: int = 2, scale: float = 1.0) -> str:
        """ "1.95 [1.90 2.04]": the median, and the middle half of all."""
        low, high = self.low * scale, self.high * scale
        return f"{self.median * scale:.{digits}f} [{low:.{digits}f} {high:.{digits}f}]"


def spread(samples: Sequence[float]) -> Spread:
    """The spread of at least one number.

    >>> spread([5, 1, 4, 2, 3]).text(1)
    '3.0 [2.0 4.0]'
    """
    if not samples:
        raise ArgumentError("a spread needs at least one number")
    return Spread(*_native.spread(samples))


@dataclasses.dataclass(frozen=True)
class BenchmarkResult:
    """What one way took. Made by compare and the functions below; seconds of single runs, NaN where there are none.

    speedup: seconds of the first way of the comparison by those of this one, a ratio for each round, and of the ratios
    the median and the quartiles. cuda_peak_memory_bytes is all that torch had allocated on the device, weights and
    inputs with it; cpu_peak_memory_bytes is what one run had allocated at once beyond what was there before it, by
    torch's allocator: what stays from run to run, and what libraries allocate by themselves, is not in it."""

    name: str
    average_latency_s: float
    total_latency_s: float
    iterations: int
    batch_size: int | None = None  # None: no input has rows
    split_id: str = ""
    execution_mode: str = ""
    cuda_peak_memory_bytes: int | None = None
    active_backend: str | None = None
    fallback_reason: str | None = None
    median_latency_s: float = math.nan
    low_latency_s: float = math.nan  # a quarter of the runs was faster
    high_latency_s: float = math.nan  # a quarter was slower
    least_latency_s: float = math.nan
    speedup: float = math.nan
    speedup_low: float = math.nan
    speedup_high: float = math.nan
    cpu_peak_memory_bytes: int | None = None
    prepare_s: float | None = None  # None: nothing was prepared
    first_run_s: float | None = None  # right after it; compilers and captures of other modes are in it
    latencies_s: tuple[float, ...] = dataclasses.field(default=(), repr=False)  # round by round

    @property
    def latency(self) -> Spread:
        """The seconds of all runs."""
        return spread(self.latencies_s)

    def to_dict(self, samples: bool = False) -> dict[str, Any]:
        """Plain numbers and texts, for JSON: None stands for NaN. samples: the seconds of every run are in it, too."""
        fields = {k: None if v != v else v for k, v in vars(self).items() if k != "latencies_s"}
        return {**fields, "latencies_s": list(self.latencies_s)} if samples else fields


# ---- measuring


class Timed:
    """A way, timed by the clock; compare uses it, and so can callers that count rounds themselves.

    >>> Timed(lambda: sum(range(1000)), "cpu").seconds(3) > 0
    True
    """

    def __init__(self, way: Run, device: Where = None) -> None:
        setup, call = way if isinstance(way, tuple) and len(way) == 2 else (None, way)
        if not callable(call) or not (setup is None or callable(setup)):
            raise TypeError(f"a way is a callable, or a pair of a set-up and a callable, not {way!r}")
        self._call, self._setup, self._devices = call, setup, _devices(device)

    def seconds(self, times: int = 1) -> float:
        """Seconds of one run, averaged over `times` in a row. A set-up runs before each of them, untimed."""
        if self._setup is None:
            return self._block(times)
        return sum(self._block(1, self._setup()) for _ in range(times)) / times

    def _block(self, times: int, *arguments: Any) -> float:
        """The time includes releasing each result, as in a loop that keeps only the last one."""
        call = self._call
        _wait(self._devices)
        start = time.perf_counter_ns()
        for _ in range(times):
            call(*arguments)
        _wait(self._devices)
        return (time.perf_counter_ns() - start) / 1e9 / times

    def peaks(self) -> tuple[int, int | None]:
        """Peak memory of the CPU and of CUDA, in one run."""
        gpus = [d for d in self._devices if d.type == "cuda"]
        self._arguments()  # releases what the last run has left: that was allocated unmetered

        def begin() -> tuple[Any, ...]:
            arguments = self._arguments()
            _wait(self._devices)
            for gpu in gpus:
                torch.cuda.reset_peak_memory_stats(gpu)
            return arguments

        cpu = _native.peak_memory(begin, lambda arguments: self._call(*arguments))
        _wait(self._devices)
        return cpu, sum(torch.cuda.max_memory_allocated(d) for d in gpus) if gpus else None

    def _arguments(self) -> tuple[Any, ...]:
        return () if self._setup is None else (self._setup(),)


def compare(
    ways: Mapping[str, Way],
    iterations: int = 20,
    warmup: int = 5,
    device: Where = None,
    *,
    memory: bool = True,
    lead_in: float = 0.0,
    block: float = 0.0,
    seconds: float | None = None,
    settled: float | None = None,
) -> list[BenchmarkResult]:
    """Runs every way once in each round, `warmup` rounds unmeasured and `iterations` rounds by the clock.

    A way is a callable without arguments, or a pair: a callable that runs before each run, outside of the clock, and
    one that takes what the first returned; or whatever has a method seconds(times) that runs it so often and says how
    long one run took, in another process for instance. The way that goes first changes from round to round. The results
    are in the order of the ways; their speedups are over the first of them.

    device: where the ways run, or several: the clock stops when they are done. Without it this is the current CUDA
    device if the process uses CUDA by now, else the CPU. memory: each way runs once more, for its peak memory. Grad
    mode is the caller's, and nothing is put back.

    For short calls: lead_in is seconds that a way runs untimed at the start of its turn (threads of the way before it
    go to sleep, its own wake up), block is seconds that what is timed at once should have; a call that is longer than
    ten times lead_in needs none. For long ones: no round begins after `seconds` beyond the third, and warming up takes
    a quarter of them at most. settled: rounds end early, after six at least, once the median of each ratio to the first
    way is known that closely (0.01: within 1 %, the interval that holds it in 19 of 20 cases).

    >>> import torch, cleave
    >>> a = torch.randn(64, 64)
    >>> results = cleave.benchmark.compare({"sum": lambda: a + a, "copy": (a.clone, lambda t: t.mul_(2))}, iterations=3)
    >>> [r.name for r in results], results[0].speedup, results[0].cpu_peak_memory_bytes
    (['sum', 'copy'], 1.0, 16384)
    """
    _check_counts(iterations, warmup)
    _check_seconds(lead_in=lead_in, block=block, seconds=seconds, settled=settled)
    timed = _timed(ways, device)
    every = list(timed.values())
    start = time.perf_counter()
    end = math.inf if seconds is None else start + seconds
    first = max(warmup, 1) if lead_in or block else warmup  # how long a call takes has to be known
    about = _warmed(timed, first, math.inf if seconds is None else start + WARMING * seconds)
    took: list[list[float]] = [[] for _ in every]
    for i in range(iterations):
        if i >= LEAST and (time.perf_counter() > end or (settled is not None and _settled(took, settled))):
            break
        for k in _order(first + i, len(every)):
            took[k].append(_turn(every[k], about[k], lead_in, block))
    peaks = [way.peaks() if memory and isinstance(way, Timed) else (None, None) for way in every]
    return [_result(name, s, took[0], *p) for name, s, p in zip(timed, took, peaks, strict=True)]


def _order(i: int, ways: int) -> list[int]:
    """The order of the ways in round i."""
    return [(i + k) % ways for k in range(ways)]


def _warmed(timed: Mapping[str, Measured], rounds: int, end: float) -> list[float]:
    """Warms up every way. Returns about how many seconds a call of each takes."""
    names, every = list(timed), list(timed.values())
    least = [math.inf for _ in every]
    for i in range(rounds):
        if i and time.perf_counter() > end:
            break
        for k in _order(i, len(every)):
            try:
                least[k] = min(least[k], every[k].seconds(1))
            except Exception as error:
                if sys.version_info >= (3, 11):
                    error.add_note(f"(raised by the way {names[k]!r})")
                raise
    return [max(1e-7, s) for s in least]


def _turn(way: Measured, about: float, lead_in: float, block: float) -> float:
    if about < 10 * lead_in:
        way.seconds(max(1, round(lead_in / about)))
    return way.seconds(max(1, round(block / about)))


def _settled(took: Sequence[Sequence[float]], within: float) -> bool:
    """Whether the median of each way, by that of the first, is known so closely. Of n sorted numbers those at about
    (n ± 2√n)/2 have the median between them in 19 of 20 cases, however they are distributed; five are too few."""
    base = took[0]
    n = len(base)
    low = math.floor((n - 1 - 1.96 * math.sqrt(n)) / 2)
    if low < 0:
        return False
    for s in took[1:] or took:
        several = sorted(s if s is base else [x / y for x, y in zip(s, base, strict=True)])
        if several[n - 1 - low] - several[low] > 2 * within * several[n // 2]:
            return False
    return True


def _timed(ways: Mapping[str, Way], device: Where) -> dict[str, Measured]:
    if not isinstance(ways, Mapping):
        raise TypeError(f"ways is a dict of callables by name, not {type(ways).__name__}")
    if not ways:
        raise ArgumentError("there is nothing to measure: ways is empty")
    where = _devices(device)
    out: dict[str, Measured] = {}
    for name, way in ways.items():
        try:
            out[str(name)] = way if isinstance(way, Measured) and not callable(way) else Timed(way, where)
        except TypeError as error:
            raise TypeError(f"{name}: {error}") from None
    return out


def _check_counts(iterations: int, warmup: int) -> None:
    for name, n, least in (("iterations", iterations, 1), ("warmup", warmup, 0)):
        if type(n) is not int or n < least:
            raise ArgumentError(f"{name} must be an integer of at least {least}, not {n!r}")


def _check_seconds(**options: float | None) -> None:
    for name, n in options.items():
        if n is not None and (isinstance(n, bool) or not isinstance(n, int | float) or not 0 <= n < math.inf):
            raise ArgumentError(f"{name} must be a number of at least 0, not {n!r}")


def _devices(device: Where) -> list[torch.device]:
    """The devices to wait for: all but the CPU."""
    if device is None:
        used = torch.cuda.is_initialized()  # type: ignore[no-untyped-call]
        return [torch.device("cuda", torch.cuda.current_device())] if used else []
    several = [device] if isinstance(device, str | torch.device) else device
    found = [d for d in dict.fromkeys(torch.device(d) for d in several) if d.type not in ("cpu", "meta")]
    if found and not torch.accelerator.is_available():
        raise ArgumentError(f"device {found[0]}: torch finds none on this machine")
    return found


def _wait(devices: list[torch.device]) -> None:
    for device in devices:
        torch.accelerator.synchronize(device)


def _result(name: str, s: list[float], base: list[float], cpu: int | None, cuda: int | None) -> BenchmarkResult:
    of, ratio = spread(s), ratios(base, s)
    return BenchmarkResult(
        name=name,
        average_latency_s=sum(s) / len(s),
        total_latency_s=sum(s),
        iterations=len(s),
        cuda_peak_memory_bytes=cuda,
        median_latency_s=of.median,
        low_latency_s=of.low,
        high_latency_s=of.high,
        least_latency_s=of.least,
        speedup=ratio.median,
        speedup_low=ratio.low,
        speedup_high=ratio.high,
        cpu_peak_memory_bytes=cpu,
        latencies_s=tuple(s),
    )


def ratios(base: BenchmarkResult | Sequence[float], other: BenchmarkResult | Sequence[float]) -> Spread:
    """How many times as long the first took, round by round. Both must come from the same call of compare.

    >>> ratios([2.0, 4.0, 6.0], [1.0, 2.0, 2.0]).median
    2.0
    """
    a, b = (x.latencies_s if isinstance(x, BenchmarkResult) else x for x in (base, other))
    if len(a) != len(b):
        raise ArgumentError(f"a ratio is of rounds that both took part in: here are {len(a)} and {len(b)}")
    return spread([x / max(y, 1e-9) for x, y in zip(a, b, strict=True)])  # the clock's resolution is a nanosecond


def break_even_iterations(baseline: BenchmarkResult, optimized: BenchmarkResult) -> int | None:
    """Calls after which the longer preparation of the second way has paid off: its extra seconds, divided by those that
    each call saves (medians). None: never, because it saves nothing.

    >>> slow = BenchmarkResult("eager", 0.5, 5.0, 10, median_latency_s=0.5, prepare_s=1.0, first_run_s=0.5)
    >>> fast = BenchmarkResult("compiled", 0.25, 2.5, 10, median_latency_s=0.25, prepare_s=3.0, first_run_s=2.5)
    >>> break_even_iterations(slow, fast), break_even_iterations(fast, slow)
    (16, None)
    """
    unknown = [r.name for r in (baseline, optimized) if r.prepare_s is None or math.isnan(r.median_latency_s)]
    if unknown:
        raise ArgumentError(f"{', '.join(unknown)}: the seconds of preparation, or those of the runs, are not known")
    saved = baseline.median_latency_s - optimized.median_latency_s
    extra = ready_s(optimized) - ready_s(baseline)
    if saved <= 0:
        return None
    return max(0, math.ceil(extra / saved))


def ready_s(result: BenchmarkResult) -> float:
    """Seconds until a way had run once."""
    return (result.prepare_s or 0.0) + (result.first_run_s or 0.0)


# ---- what a split takes


class _Subject:
    """A model, what goes in, and where it runs; for training also the targets and the loss."""

    def __init__(
        self,
        model: Callable[..., Any],
        inputs: Any,
        kwargs: dict[str, Any] | None,
        targets: Any = None,
        loss: Loss | None = None,
    ) -> None:
        if not callable(model):
            raise TypeError(f"model must be a module or a function, not {type(model).__name__}")
        self.model, self.targets, self.loss = model, targets, loss
        self.args, self.kwargs = as_call(inputs, kwargs)
        leaves = _tree.flatten((self.args, self.kwargs))[1]
        self.batch_size = next((int(t.shape[0]) for t in leaves if t.dim()), None)
        module = model if isinstance(model, torch.nn.Module) else torch.nn.Module()
        self.devices = _devices({t.device for t in (*leaves, *module.parameters(), *module.buffers())})

    def forward(self) -> Any:
        return self.model(*self.args, **self.kwargs)

    def prefix(self, runtime: SplitRuntime) -> BoundaryPayload:
        return runtime.run_prefix(*self.args, **self.kwargs)

    def replay(self, runtime: SplitRuntime) -> Any:
        return runtime.run_suffix(self.prefix(runtime))

    def train_suffix(self, runtime: SplitRuntime) -> tuple[BoundaryPayload, dict[str, torch.Tensor | None]]:
        """Up to the gradients of the boundary."""
        boundary = runtime.run_training_prefix(*self.args, **self.kwargs)
        return boundary, runtime.train_suffix(boundary, self.targets, loss_fn=self.loss)[1]

    def train(self, runtime: SplitRuntime) -> BoundaryPayload:
        """The boundary of a whole round."""
        boundary, gradients = self.train_suffix(runtime)
        runtime.backward_prefix(boundary, gradients)
        return boundary

    def timed(self, call: Callable[[], Any]) -> tuple[Any, float]:
        """What came out, and seconds."""
        start = time.perf_counter()
        out = call()
        _wait(self.devices)
        return out, time.perf_counter() - start

    def compare(self, ways: Mapping[str, Way], iterations: int, warmup: int) -> dict[str, BenchmarkResult]:
        results = compare(ways, iterations, warmup, self.devices)
        return {r.name: dataclasses.replace(r, batch_size=self.batch_size) for r in results}


class _Ready(NamedTuple):
    """A split, and the seconds until it had run once; None where the caller prepared it."""

    runtime: SplitRuntime
    prepare_s: float | None = None
    first_run_s: float | None = None

    def named(self, result: BenchmarkResult, name: str, boundary: BoundaryPayload | None) -> BenchmarkResult:
        """The result under a name, with the facts of the runtime; no boundary: the model itself ran."""
        told = dataclasses.replace(result, name=name, split_id=self.runtime.split_id, execution_mode=self.runtime.mode)
        if boundary is None:
            return told
        halves = self.runtime._named(boundary).halves  # what ran the halves when this boundary was made
        return dataclasses.replace(
            told,
            active_backend=halves.active_backend,
            fallback_reason=halves.fallback_reason,
            prepare_s=self.prepare_s,
            first_run_s=self.first_run_s,
        )


def _cleared(runtime: SplitRuntime) -> SplitRuntime:
    """A set-up that drops the gradients of the last round, untimed."""
    model = runtime._target.call
    if isinstance(model, torch.nn.Module):
        model.zero_grad(set_to_none=True)
    return runtime


def _inference(
    subject: _Subject, every: Sequence[_Ready], names: Sequence[str], iterations: int, warmup: int, suffix: bool = True
) -> list[list[BenchmarkResult]]:
    """The model, both halves and the suffix alone of each runtime, in one comparison; one list for each runtime."""
    ways: dict[str, Way] = {"direct": subject.forward}
    with torch.no_grad():
        crossed = [subject.prefix(ready.runtime) for ready in every]
        for i, ready in enumerate(every):
            ways[f"both {i}"] = functools.partial(subject.replay, ready.runtime)
            if suffix:
                ways[f"suffix {i}"] = functools.partial(ready.runtime.run_suffix, crossed[i])
        found = subject.compare(ways, iterations, warmup)
    out = []
    for i, ready in enumerate(every):
        rows = [ready.named(found["direct"], "direct_pytorch_forward", None)]
        rows.append(ready.named(found[f"both {i}"], names[i], crossed[i]))
        if suffix:
            rows.append(ready.named(found[f"suffix {i}"], f"{ready.runtime.mode}_suffix_only", crossed[i]))
        out.append(rows)
    return out


def _learning(
    subject: _Subject, every: Sequence[_Ready], names: Sequence[str], iterations: int, warmup: int, suffix: bool = True
) -> list[list[BenchmarkResult]]:
    """Training up to the boundary's gradients, and all of it, of each runtime, in one comparison."""
    ways: dict[str, Way] = {}
    for i, ready in enumerate(every):
        if suffix:
            ways[f"suffix {i}"] = (functools.partial(_cleared, ready.runtime), subject.train_suffix)
        ways[f"both {i}"] = (functools.partial(_cleared, ready.runtime), subject.train)
    with torch.enable_grad():
        first = [subject.timed(functools.partial(subject.train, ready.runtime)) for ready in every]
        found = subject.compare(ways, iterations, warmup)
    out = []
    for i, (ready, (boundary, seconds)) in enumerate(zip(every, first, strict=True)):
        trained = ready._replace(first_run_s=seconds) if suffix and ready.prepare_s is not None else ready
        rows = [trained.named(found[f"both {i}"], names[i], boundary)]
        if suffix:
            rows.insert(0, trained.named(found[f"suffix {i}"], f"{ready.runtime.mode}_suffix_training", boundary))
        out.append(rows)
    return out


def _all(subject: _Subject, every: list[_Ready], iterations: int, warmup: int) -> list[BenchmarkResult]:
    """All results of the first runtime, then those of the next."""
    modes = [ready.runtime.mode for ready in every]
    parts = [_inference(subject, every, [f"{mode}_prefix_suffix" for mode in modes], iterations, warmup)]
    if subject.targets is not None:
        parts.append(_learning(subject, every, [f"{mode}_prefix_backward" for mode in modes], iterations, warmup))
    return [result for of_runtime in zip(*parts, strict=True) for part in of_runtime for result in part]


def _prepared(subject: _Subject, first: Callable[[SplitRuntime], Any], **options: Any) -> _Ready:
    """Prepares a runtime and has `first` run it. The model runs first: PyTorch's set-up is not timed."""
    if options.get("mode") != "compiled":
        options.pop("compile_options", None)
    with torch.no_grad():
        subject.forward()
    runtime, prepare_s = subject.timed(lambda: prepare_split(subject.model, **options))
    with torch.set_grad_enabled(first == subject.train):
        _, first_run_s = subject.timed(lambda: first(runtime))
    return _Ready(runtime, prepare_s, first_run_s)


def benchmark_runtime(
    model: Callable[..., Any],
    runtime: SplitRuntime,
    inputs: Any,
    *,
    kwargs: dict[str, Any] | None = None,
    targets: Any | None = None,
    loss_fn: Loss | None = None,
    iterations: int = 20,
    warmup: int = 5,
) -> list[BenchmarkResult]:
    """The model itself, both halves of its split, and the suffix alone; without gradients.

    With targets also training: run_training_prefix and train_suffix together, and both with backward_prefix. Gradients,
    buffers and the random state are put back.

    >>> import torch, cleave
    >>> net = torch.nn.Sequential(torch.nn.Linear(4, 8), torch.nn.ReLU(), torch.nn.Linear(8, 2)).eval()
    >>> x = torch.randn(3, 4)
    >>> runtime = cleave.prepare_split(net, example_inputs=(x,), split=cleave.SplitSpec(boundary="50%"))
    >>> [r.name for r in cleave.benchmark.benchmark_runtime(net, runtime, (x,), iterations=3)]
    ['direct_pytorch_forward', 'generated_eager_prefix_suffix', 'generated_eager_suffix_only']
    """
    own = split_of(runtime)
    if targets is not None and not hasattr(runtime, "train_suffix"):
        raise TypeError(f"a {type(runtime).__name__} cannot train: leave targets out, or use prepare_split")
    _check_counts(iterations, warmup)
    subject = _Subject(model, inputs, kwargs, targets, loss_fn)
    with Kept(model), Kept(own._target.call):
        return _all(subject, [_Ready(own)], iterations, warmup)


def benchmark_split_modes(
    model: Callable[..., Any],
    *,
    example_inputs: Any,
    inputs: Any,
    split: SplitSpec | str,
    kwargs: dict[str, Any] | None = None,
    targets: Any | None = None,
    loss_fn: Loss | None = None,
    modes: Sequence[str] = ("debug_interpreter", "generated_eager", "compiled"),
    compile_options: dict[str, Any] | None = None,
    iterations: int = 20,
    warmup: int = 5,
    **options: Any,
) -> list[BenchmarkResult]:
    """benchmark_runtime for a split prepared in each of these modes, all of them side by side.

    The model itself is measured once, and its numbers stand in the results of each mode. All other arguments are those
    of prepare_split, compile_options for the mode that compiles."""
    if isinstance(modes, str) or not modes:
        raise ArgumentError(f'modes are several texts, such as ("generated_eager", "compiled"), not {modes!r}')
    _check_counts(iterations, warmup)
    subject = _Subject(model, inputs, kwargs, targets, loss_fn)
    options |= {"example_inputs": example_inputs, "split": split, "compile_options": compile_options}
    with Kept(model):
        every = [_prepared(subject, subject.replay, **options, mode=mode) for mode in modes]
        return _all(subject, every, iterations, warmup)


def benchmark_replay_optimization(
    model: Callable[..., Any],
    *,
    example_inputs: Any,
    inputs: Any,
    split: SplitSpec | str,
    kwargs: dict[str, Any] | None = None,
    materialize_boundary: bool = True,
    mode: str = "compiled",
    optimize: str | Optimize = "safe",
    objective: Mapping[str, Any] | None = None,
    compile_options: dict[str, Any] | None = None,
    iterations: int = 20,
    warmup: int = 5,
    **options: Any,
) -> list[BenchmarkResult]:
    """Inference: the model itself, its split as generated_eager runs it, and the split in another mode, or with another
    `optimize`. All other arguments are those of prepare_split.

    materialize_boundary changes nothing: a boundary always stays what it is."""
    _check_counts(iterations, warmup)
    subject = _Subject(model, inputs, kwargs)
    options |= {"example_inputs": example_inputs, "split": split, "compile_options": compile_options}
    options["objective"] = None if objective is None else dict(objective)
    with Kept(model):
        base = _prepared(subject, subject.replay, **options)
        fast = _prepared(subject, subject.replay, **options, mode=mode, optimize=optimize)
        names = ("baseline_generated_prefix_suffix", "optimized_replay")
        found = _inference(subject, (base, fast), names, iterations, warmup, suffix=False)
        return [*found[0], found[1][1]]


def benchmark_split_retain_optimization(
    model: Callable[..., Any],
    *,
    example_inputs: Any,
    inputs: Any,
    split: SplitSpec | str,
    kwargs: dict[str, Any] | None = None,
    targets: Any | None = None,
    loss_fn: Loss | None = None,
    mode: str = "compiled",
    objective: Mapping[str, Any] | None = None,
    compile_options: dict[str, Any] | None = None,
    iterations: int = 20,
    warmup: int = 5,
    **options: Any,
) -> list[BenchmarkResult]:
    """Training (prefix, suffix with its backward, backward of the prefix): as generated_eager runs it, and in another
    mode. Without a loss_fn the loss is train_suffix's own. All other arguments are those of prepare_split."""
    _check_counts(iterations, warmup)
    subject = _Subject(model, inputs, kwargs, targets, loss_fn)
    options |= {"example_inputs": example_inputs, "split": split, "compile_options": compile_options}
    options["objective"] = None if objective is None else dict(objective)
    with Kept(model):
        base = _prepared(subject, subject.train, **options)
        fast = _prepared(subject, subject.train, **options, mode=mode)
        names = ("baseline_split_retain_roundtrip", "optimized_split_retain_roundtrip")
        return [
            row for rows in _learning(subject, (base, fast), names, iterations, warmup, suffix=False) for row in rows
        ]


# ---- output

_HEAD = (
    "name",
    "mode",
    "batch",
    "rounds",
    "ms [middle half]",
    "first / this",
    "CPU peak",
    "CUDA peak",
    "prepared s",
    "first run s",
    "runs on",
)
_RIGHT = (False, False, True, True, True, True, True, True, True, True, False)


def table(results: Iterable[BenchmarkResult] | BenchmarkResult) -> str:
    """Results as aligned lines without empty columns, followed by the reasons for fallbacks.

    "first / this" is the speedup: how many times as long the first way of the comparison took."""
    every = [results] if isinstance(results, BenchmarkResult) else list(results)
    if not every:
        return "no results"
    rows = [_cells(r) for r in every]
    shown = [i for i in range(len(_HEAD)) if any(row[i] for row in rows)]
    picked = [[row[i] for i in shown] for row in (_HEAD, *rows)]
    reasons = dict.fromkeys(f"{r.name} fell back: {r.fallback_reason}" for r in every if r.fallback_reason)
    return "\n".join([_show.columns(picked, [_RIGHT[i] for i in shown]), *map(_show.plain, reasons)])


def _cells(r: BenchmarkResult) -> tuple[str, ...]:
    known = not math.isnan(r.median_latency_s)
    middle = Spread(r.median_latency_s, r.low_latency_s, r.high_latency_s, r.least_latency_s, math.nan)
    return (
        r.name,
        r.execution_mode,
        "" if r.batch_size is None else str(r.batch_size),
        str(r.iterations),
        middle.text(3, 1e3) if known else f"{1e3 * r.average_latency_s:.3f}",
        "" if math.isnan(r.speedup) else f"{r.speedup:.2f}",
        "" if r.cpu_peak_memory_bytes is None else _native.text_bytes(r.cpu_peak_memory_bytes),
        "" if r.cuda_peak_memory_bytes is None else _native.text_bytes(r.cuda_peak_memory_bytes),
        "" if r.prepare_s is None else f"{r.prepare_s:.3f}",
        "" if r.first_run_s is None else f"{r.first_run_s:.3f}",
        _show.clip(r.active_backend or "", 40),
    )


def environment(device: str | torch.device | None = None) -> dict[str, str]:
    """What numbers depend on besides the code: machine, versions, threads, date.

    >>> sorted(environment("cpu"))
    ['cleave', 'cpu', 'date', 'device', 'python', 'threads', 'torch']
    """
    where = torch.device(device if device is not None else "cuda" if torch.cuda.is_available() else "cpu")
    return {
        "date": datetime.datetime.now(datetime.timezone.utc).strftime("%Y-%m-%d"),
        "cleave": _native.version,
        "torch": str(torch.__version__),
        "python": platform.python_version(),
        "cpu": device_name("cpu"),
        "device": device_name(str(where)),
        "threads": str(torch.get_num_threads()),
    }


def to_json(results: Iterable[BenchmarkResult], *, samples: bool = False, **about: Any) -> str:
    """Results as JSON: {"environment": …, "results": […]} and whatever else is given by name.

    samples: the seconds of every run are in it, too.

    >>> import json
    >>> json.loads(to_json([BenchmarkResult("eager", 0.5, 1.0, 2)], model="resnet50"))["results"][0]["iterations"]
    2
    """
    rows = [r.to_dict(samples) for r in results]
    return json.dumps({"environment": environment(), **about, "results": rows}, indent=1, allow_nan=False)


__all__ = [
    "BenchmarkResult",
    "Measured",
    "Spread",
    "Timed",
    "benchmark_replay_optimization",
    "benchmark_runtime",
    "benchmark_split_modes",
    "benchmark_split_retain_optimization",
    "break_even_iterations",
    "compare",
    "environment",
    "ratios",
    "ready_s",
    "spread",
    "table",
    "to_json",
]

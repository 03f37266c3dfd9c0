"""Profiles: the cost of each block of a plan, measured alone on real values or estimated from shapes.

Times are milliseconds, sizes are MB of 10**6 bytes. A profile prints as a table and is kept as JSON:

>>> import os, tempfile, torch, cleave
>>> from cleave import profile
>>> net = torch.nn.Sequential(torch.nn.Linear(4, 8), torch.nn.ReLU(), torch.nn.Linear(8, 2))
>>> plan, x = cleave.capture(net, torch.randn(3, 4)), torch.randn(3, 4)
>>> captured = plan._main
>>> measured = profile.measure(captured, captured.plan, [1, 3], ["first", "rest"], [x], n_iter=3)
>>> [row.name for row in measured], measured["rest"].ops
(['first', 'rest'], 2)
>>> with tempfile.TemporaryDirectory() as folder:
...     measured.save(os.path.join(folder, "profile.json"))
...     cleave.Profile.load(os.path.join(folder, "profile.json")) == measured
True

The measuring itself is C: src/exec/profile_blocks.c, src/pipe/estimate.c."""

from __future__ import annotations

import dataclasses
import hashlib
import os
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, overload

import torch

from . import _native, _show, progress
from ._capture import Captured, grad_mode
from ._log import logger
from ._state import RandomState
from .errors import ArgumentError

MOST_ROWS = 48  # longer tables are shortened when printed
ENDS = 16  # rows that a shortened table keeps at each end

log = logger("profile")

Path = str | os.PathLike[str]


@dataclasses.dataclass(frozen=True)
class Metrics:
    """What one block took. Spreads are of the measured runs: low and high are the quartiles around the median.

    On the CPU the two memories are of the host, under the same names."""

    forward_time: float  # ms, the median
    forward_low: float
    forward_high: float
    forward_least: float
    forward_most: float
    backward_time: float  # ms, the median; 0 where no gradients flow
    backward_low: float
    backward_high: float
    backward_least: float
    backward_most: float
    cuda_memory_forward: float  # MB, most at once above what was there before
    cuda_memory_backward: float  # MB, most at once above what was there when the backward began
    held: float  # MB that the forward leaves behind: outputs, and what the backward needs
    size: float  # MB of parameters and buffers that it reads
    input_size: float  # MB
    output_size: float  # MB

    def __getitem__(self, metric: str) -> Any:
        if metric not in self.keys():
            raise KeyError(f"there is no metric {metric!r}; there are {', '.join(self.keys())}")
        return getattr(self, metric)

    def keys(self) -> tuple[str, ...]:
        return tuple(f.name for f in dataclasses.fields(self))


@dataclasses.dataclass(frozen=True)
class BlockProfile(Metrics):
    """A row of a profile."""

    name: str
    module: str  # path of the smallest module that holds all of the block
    ops: int  # operators
    end: int  # operators of the plan up to and with this block


NUMBERS = tuple(f.name for f in dataclasses.fields(Metrics))  # in the order of src/pipe/profile_write.c

_HEAD = (
    "block",
    "module",
    "ops",
    "fwd ms",
    "",
    "bwd ms",
    "",
    "fwd MB",
    "bwd MB",
    "held MB",
    "size MB",
    "in MB",
    "out MB",
)
_RIGHT = (False, False, *[True] * 11)


class Profile(_show.Table):
    """Rows of blocks in the order of the plan, what they are of, and the whole plan in one run for comparison."""

    _head, _right, _most, _ends = _HEAD, _RIGHT, MOST_ROWS, ENDS

    def __init__(
        self, rows: Sequence[BlockProfile], key: Mapping[str, str] | None = None, whole: Metrics | None = None
    ) -> None:
        self.rows = tuple(rows)
        self.key = dict(key or {})  # what was measured: plan, device, version of torch, …
        self.whole = whole  # None: it was not run as a whole, or did not fit into memory

    # ---- files

    def save(self, path: Path) -> None:
        """Writes JSON, whole or not at all."""
        _native.profile_write(os.fsencode(path), *self._parts())

    @classmethod
    def load(cls, path: Path) -> Profile:
        """Reads what save wrote; PlanError says what is wrong with anything else."""
        return cls._of(*_native.profile_read(os.fsencode(path)))

    def _parts(self) -> tuple[Any, Any, Any]:
        """All of it, of plain values."""
        rows = [(r.name, r.module, r.end, _numbers(r)) for r in self.rows]
        return list(self.key.items()), rows, None if self.whole is None else _numbers(self.whole)

    @classmethod
    def _of(cls, key: Any, rows: Any, whole: Any) -> Profile:
        return cls(_rows(rows), dict(key), None if whole is None else Metrics(*whole))

    # ---- rows

    def __len__(self) -> int:
        return len(self.rows)

    def __iter__(self) -> Iterator[BlockProfile]:
        return iter(self.rows)

    @overload
    def __getitem__(self, which: int | str) -> BlockProfile: ...
    @overload
    def __getitem__(self, which: slice) -> tuple[BlockProfile, ...]: ...
    def __getitem__(self, which: Any) -> Any:
        if not isinstance(which, str):
            return self.rows[which]
        for row in self.rows:
            if row.name == which:
                return row
        raise KeyError(f"the profile has no block {which!r}")

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, Profile):
            return NotImplemented
        return (self.rows, self.key, self.whole) == (other.rows, other.key, other.whole)

    __hash__ = None  # type: ignore[assignment]

    def to_dicts(self) -> list[dict[str, Any]]:
        """Rows as plain dicts, for a data frame or JSON."""
        return [dataclasses.asdict(r) for r in self.rows]

    def total(self, metric: str) -> float:
        """The sum over all blocks."""
        return float(sum(r[metric] for r in self.rows))

    # ---- looks

    def table(self) -> str:
        """All rows as text."""
        return self._lines(whole=True)

    def _row(self, i: int) -> _show.Row:
        r = self.rows[i]
        sizes = (r.cuda_memory_forward, r.cuda_memory_backward, r.held, r.size, r.input_size, r.output_size)
        forward = (_ms(r.forward_time), _half(r.forward_low, r.forward_high))
        backward = (_ms(r.backward_time), _half(r.backward_low, r.backward_high)) if r.backward_time else ("-", "")
        names = (_show.clip(r.name, 40), _show.clip(r.module, 40), str(r.ops))
        return "", (*names, *forward, *backward, *(f"{s:.3f}" for s in sizes))

    def _caption(self) -> str:
        def sums(name: str) -> str:
            of_blocks = f"{_ms(self.total(name))} ms in blocks"
            return of_blocks if self.whole is None else f"{of_blocks}, {_ms(self.whole[name])} ms in one run"

        text = f"{_show.plural(len(self.rows), 'block')} on {self.key.get('device', 'an unknown device')}"
        text += f": forward {sums('forward_time')}"
        backward = any(r.backward_time for r in self.rows)
        return f"{text}; backward {sums('backward_time')}" if backward else text


def _ms(x: float) -> str:
    return f"{x:.3f}"


def _half(low: float, high: float) -> str:
    """Half of the middle half of all runs, for people."""
    return f"±{(high - low) / 2:.3f}"


def _numbers(m: Metrics) -> tuple[float, ...]:
    return tuple(getattr(m, name) for name in NUMBERS)


def _rows(rows: Sequence[tuple[str, str, int, tuple[float, ...]]]) -> list[BlockProfile]:
    out: list[BlockProfile] = []
    for name, module, end, numbers in rows:
        ops = end - (out[-1].end if out else 0)
        fields: dict[str, Any] = dict(zip(NUMBERS, numbers, strict=True))
        out.append(BlockProfile(**fields, name=name, module=module, ops=ops, end=end))
    return out


# ---- measuring


def measure(
    captured: Captured,
    native_plan: Any,
    ends: list[int],
    names: list[str],
    leaves: Sequence[torch.Tensor],
    *,
    n_iter: int = 10,
    warmup: int = 3,
    training: bool = True,
    whole: bool = True,
    title: str = "profiling",
    cache: Path | None = None,
) -> Profile:
    """Runs every block of a plan by itself: `warmup` times unmeasured, `n_iter` times by the clock, once for memory.

    native_plan is captured.plan, or one with its nodes in another order; block i is its nodes up to ends[i]. leaves are
    the tensors that go in. The model, its gradients, the leaves and all random generators are left as they were. whole:
    the plan is also run at once, for comparison; that takes the memory of a training step. cache: a file; a profile in
    it serves if everything that it depends on is the same, else it is replaced."""
    _check(captured, ends, names, n_iter, warmup, training)
    key = profile_key(captured, native_plan, ends, leaves, n_iter=n_iter, warmup=warmup, training=training)
    found = _cached(cache, key, names)
    if found is not None:
        return found
    last = native_plan.node_count()
    program = _native.Program(native_plan, 0, last, False, False, captured.state, captured.modules)

    def began(block: int) -> None:
        progress.step("all blocks at once" if block < 0 else names[block], counted=True)

    random = RandomState()
    try:
        with progress.task(title, len(ends) + whole), grad_mode(training):
            rows, at_once = _native.profile_blocks(program, list(leaves), ends, n_iter, warmup, training, whole, began)
    finally:
        random.restore()
    named = [(name, *row) for name, row in zip(names, rows, strict=True)]
    profile = Profile(_rows(named), key, None if at_once is None else Metrics(*at_once))
    if cache is not None:
        profile.save(cache)
    return profile


def estimate(
    native_plan: Any,
    ends: list[int],
    names: list[str],
    *,
    sizes: Mapping[str, int] | None = None,
    flops_per_s: float = 100e12,
    bytes_per_s: float = 1e12,
    node_us: float = 5.0,
    training: bool = True,
) -> Profile:
    """The same from shapes alone, for what cannot be run here (plan.capture_shapes records such models).

    Each operator takes the longer of its arithmetic at flops_per_s and its memory traffic at bytes_per_s, and node_us
    to start; a backward takes twice its forward. The defaults are half of what a GPU of the data centre can do."""
    _check_names(ends, names)
    rows = _native.estimate_blocks(native_plan, ends, dict(sizes or {}), flops_per_s, bytes_per_s, node_us, training)
    device = f"an estimate of {flops_per_s:g} operations and {bytes_per_s:g} bytes per second"
    key = {"plan": _signature(native_plan), "blocks": _digest(ends), "device": device, "training": str(training)}
    return Profile(_rows([(name, *row) for name, row in zip(names, rows, strict=True)]), key)


def _check_names(ends: list[int], names: list[str]) -> None:
    if len(names) != len(ends):
        raise ArgumentError(f"{_show.plural(len(ends), 'block')} and {_show.plural(len(names), 'name')} were given")


def _check(captured: Captured, ends: list[int], names: list[str], n_iter: int, warmup: int, training: bool) -> None:
    _check_names(ends, names)
    if n_iter < 1 or warmup < 0:
        raise ArgumentError(f"a profile needs n_iter of 1 or more and warmup of 0 or more, not {n_iter} and {warmup}")
    if training and not captured.with_grad:
        raise ArgumentError(
            "the model was captured without gradients, so there is no backward to measure: capture it with grad "
            "enabled, or pass training=False"
        )
    if training and torch.is_inference_mode_enabled():
        raise ArgumentError("inside torch.inference_mode there is no backward to measure: leave it, or training=False")


# ---- what a profile depends on


def profile_key(
    captured: Captured,
    native_plan: Any,
    ends: list[int],
    leaves: Sequence[torch.Tensor],
    *,
    n_iter: int,
    warmup: int,
    training: bool,
) -> dict[str, str]:
    """What a measurement depends on, as texts."""
    tensors = [*leaves, *(holder[key] for holder, key in captured.state.values())]
    devices = sorted({str(t.device) for t in tensors if isinstance(t, torch.Tensor)})
    return {
        "plan": _signature(native_plan),
        "blocks": _digest(ends),
        "inputs": "; ".join(_describe(t) for t in leaves),
        "device": ", ".join(device_name(d) for d in devices),
        "torch": str(torch.__version__),
        "threads": str(torch.get_num_threads()),
        "precision": torch.get_float32_matmul_precision(),
        "n_iter": str(n_iter),
        "warmup": str(warmup),
        "training": str(training),
    }


def _signature(native_plan: Any) -> str:
    return _digest(native_plan.identity())


def _digest(what: object) -> str:
    return hashlib.sha256(str(what).encode("utf-8", "surrogateescape")).hexdigest()[:32]


def _describe(t: torch.Tensor) -> str:
    return f"{str(t.dtype).removeprefix('torch.')}{list(t.shape)}"


def device_name(device: str) -> str:
    """The product name of a device: NVIDIA H200, AMD EPYC 7742 64-Core Processor."""
    if device.startswith("cuda") and torch.cuda.is_available():
        return str(torch.cuda.get_device_name(device))
    return _cpu_name() if device == "cpu" else device


def _cpu_name() -> str:
    try:
        with open("/proc/cpuinfo", encoding="utf-8", errors="replace") as lines:
            for line in lines:
                title, _, text = line.partition(":")
                if title.strip() in ("model name", "Model"):
                    return _show.plain(text)
    except OSError:
        pass
    import platform

    return platform.processor() or platform.machine() or "cpu"


def _cached(cache: Path | None, key: dict[str, str], names: list[str]) -> Profile | None:
    """The profile in a file, if it has the same key; its rows get the current names."""
    if cache is None or not os.path.exists(cache):
        return None
    found = Profile.load(cache)  # raises for a file that is no profile: it must not be overwritten
    differs = [name for name in {**key, **found.key} if key.get(name) != found.key.get(name)]
    if differs or len(found.rows) != len(names):
        log.info("%s is of another %s: measuring again", os.fspath(cache), ", ".join(differs) or "plan")
        return None
    rows = [dataclasses.replace(row, name=name) for row, name in zip(found.rows, names, strict=True)]
    log.info("profile from %s", os.fspath(cache))
    return Profile(rows, found.key, found.whole)

"""Tracing: compiles the parts of a model that a back end takes, runs the rest on the tape, and saves it as one file.

>>> import torch, cleave
>>> traced = cleave.trace(lambda x, y: 2 * x + y, (torch.rand(3), torch.rand(3)), dryrun=True)
>>> traced(torch.ones(3), torch.ones(3))
tensor([3., 3., 3.])

All decisions are made in C (src/segment, src/exec/trace.c). This file has the call, the checks of its arguments, and
the module that it returns, which runs the traced file, or the live plan once the model has changed (docs/trace.md)."""

from __future__ import annotations

import contextlib
import json
import logging
import math
import os
import subprocess
import sys
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import torch

from . import _native, _report, _save, _show, _tree, progress
from ._arguments import read_count, read_flag, read_number, read_text, read_texts, renamed
from ._capture import Arguments, Captured
from ._dims import Point
from ._how import How
from ._log import logger, warn
from ._sizes import Sized
from ._state import RandomState, Target
from ._threads import limited, read_threads
from .errors import ArgumentError, CaptureError, InputError, SplitError, TraceError, ValidationError
from .optimize import NONE, read_level
from .plan import Plan, Program, Ready, Variant, as_call, as_inputs, capture, runs_eagerly
from .visualization import Drawable, Subject

log = logger("trace")

CHECKED = (1, 3, 7)  # batch sizes at which compiled segments are compared with the tape, in addition to the example's
TIMES = ("eager_ms", "tape_ms", "traced_ms")  # notes of a traced file
ROUNDS, SECONDS = (3, 32), 0.5  # runs of the whole model: least, most, and seconds after which no more start
COSTS_MORE = "calling it costs more than it saves in this process"


class TensorInfo(NamedTuple):
    """A tensor that an operator takes or gives; dimensions are numbers or formulas ("B")."""

    label: str
    dtype: str
    shape: tuple[int | str, ...]


class GraphNode(NamedTuple):
    """An operator, as select(node) sees it.

    >>> import torch, cleave
    >>> net = torch.nn.Sequential(torch.nn.Linear(4, 8), torch.nn.ReLU()).eval()
    >>> cleave.trace(net, torch.randn(3, 4), dryrun=True).graph.nodes[1].name
    ('Sequential', '1', 'ReLU')
    """

    name: tuple[str, ...]  # names and classes of the modules on the way to it
    op: str  # "aten::conv2d"
    inputs: tuple[TensorInfo, ...]
    outputs: tuple[TensorInfo, ...]
    shape: tuple[int | str, ...]  # of the first tensor that it gives
    module_path: str
    label: str  # "conv2d_3", as in plans
    source: str | None  # "model.py:12"


def graph_nodes(plan: Any) -> list[GraphNode]:
    """The operators of a native plan."""
    out = []
    for (label, op, path, _cls, source, _guarded, _text), (names, takes, gives) in zip(
        plan.nodes(), plan.descriptions(), strict=True
    ):
        outputs = tuple(TensorInfo(*t) for t in gives)
        shape = outputs[0].shape if outputs else ()
        out.append(
            GraphNode(tuple(names), op, tuple(TensorInfo(*t) for t in takes), outputs, shape, path, label, source)
        )
    return out


class Segment(NamedTuple):
    """A part of a traced module: compiled, or the reason why it is not.

    >>> import torch, cleave
    >>> traced = cleave.trace(lambda x: x * 2 + 1, torch.randn(3), dryrun=True)
    >>> [segment.ops for segment in traced.segments]  # nothing was compiled
    []
    """

    name: str
    backend: str
    nodes: tuple[str, ...]  # labels of its operators
    ops: tuple[str, ...]
    compiled: bool  # it runs here as compiled code
    reason: str | None  # why it does not
    bytes: int  # of the compiled code
    facts: dict[str, float]  # error, allowed, compile_s, cached, tape_ms, code_ms, bytes_in, bytes_out
    plan: int = 0  # sizes can have plans of their own


class Coverage(NamedTuple):
    """How much of a model is compiled.

    >>> import torch, cleave
    >>> traced = cleave.trace(lambda x: x * 2 + 1, torch.randn(3), dryrun=True)
    >>> traced.coverage.operators
    2
    """

    operators: int
    compiled: int
    flops: float
    compiled_flops: float

    @property
    def percent(self) -> float:
        """Of the estimated work."""
        return 100.0 * self.compiled_flops / self.flops if self.flops else 0.0


class Report:
    """What was compiled, and why the rest was not: print it, open it as a page, or read `data`.

    >>> import torch, cleave
    >>> report = cleave.trace(lambda x: x * 2 + 1, torch.randn(3), dryrun=True).report()
    >>> report.data["operators"]
    2
    """

    def __init__(self, text: str, share: float, data: dict[str, Any], artifact: Any, tape: list[str | None]) -> None:
        self._text = text
        self.share = share  # of the estimated work that is compiled, 0 to 1
        self.data = data
        self._artifact, self._tape = artifact, tape

    @property
    def coverage(self) -> Coverage:
        """How much of the first plan is compiled."""
        data = self.data
        return Coverage(data["operators"], data["compiled"], data["flops"], data["compiled_flops"])

    def __str__(self) -> str:
        return self._text

    __repr__ = __str__

    def json(self) -> str:
        """As JSON text."""
        return json.dumps(self.data, indent=2)

    def html(self, path: str | os.PathLike[str] = "report.html", *, title: str | None = None) -> Path:
        """Writes the plan and its segments as one HTML page (docs/report.md) and returns its path.

        >>> import torch, cleave
        >>> report = cleave.trace(torch.nn.Linear(4, 2).eval(), torch.randn(3, 4), dryrun=True).report()
        >>> report.html("traced.html").name
        'traced.html'
        """
        return _report.write_file(self._artifact, path, title, None, self._tape)


@renamed(
    dynamic_batch_size="dynamic_batch=(1, 64)",
    example_kwarg_inputs="example_kwargs",
    subgraph_builder_function="select",
    ops_to_partition="exclude",
    torch_executed_ops="exclude",
    torch_executed_modules="exclude",
    require_full_compilation="fallback=False",
    max_subgraph_count="max_segments",
    model_support_percentage_threshold="support_threshold",
    strict="cleave.compat.trace for it; here outputs may always be dicts",
)
def trace(
    model: Callable[..., Any],
    example_inputs: Any = (),
    example_kwargs: dict[str, Any] | None = None,
    *,
    backend: str = "inductor",
    compiler_args: Sequence[str] | None = None,
    compiler_timeout: float | None = None,
    compiler_workdir: str | os.PathLike[str] | None = None,
    select: Callable[[GraphNode], bool] | None = None,
    exclude: Iterable[str] = (),
    minimum_segment_size: int = 2,
    max_segments: int | None = None,
    fallback: bool = True,
    support_threshold: float = 0.0,
    dynamic_batch: tuple[int, int] | None = None,
    check_trace: bool = True,
    check_inputs: Sequence[Any] | None = None,
    check_tolerance: float | None = None,
    rtol: float | None = None,
    atol: float | None = None,
    dryrun: bool = False,
    keep_slower: bool = False,
    parallel: int | None = None,
    cache: str | os.PathLike[str] | bool | None = None,
    optimize: str = "safe",
    threads: int | None = None,
    variants: Sequence[Any] = (),
    max_plans: int | None = None,
) -> TracedModule:
    """Compiles what `backend` can compile of a module or function; the rest runs on the tape.

    docs/trace.md has every argument. In short: compiler_args go to the compiler; compiler_timeout is in seconds, for
    one segment; compiler_workdir keeps what compilers read and wrote. select(node) says which operators may be
    compiled; exclude names operators ("aten::sort") and modules (paths or classes) that stay on the tape. Segments with
    fewer operators than minimum_segment_size stay there too, and only max_segments are compiled. fallback=False raises
    a TraceError, which is an AttributeError, unless everything is compiled; support_threshold (0 to 1) is the part of
    the operators that must be. dynamic_batch is a range of batch sizes, as in capture. check_trace compares the result
    with the model, also on check_inputs. dryrun chooses segments and compiles nothing. Segments that are slower than
    the tape are dropped, unless keep_slower is set. optimize ("none", "safe", "fast") says what may be rewritten on the
    tape, threads how many a run uses (docs/optimize.md). variants: further examples, on which the forward takes another
    branch because of its data; the file has plans for them too. max_plans: how many plans the model may have, as in
    capture.

    >>> import torch, cleave
    >>> net = torch.nn.Sequential(torch.nn.Linear(4, 8), torch.nn.ReLU(), torch.nn.Linear(8, 2)).eval()
    >>> traced = cleave.trace(net, torch.randn(3, 4), dryrun=True)
    >>> traced.coverage.operators
    3
    """
    args, kwargs = as_call(example_inputs, example_kwargs)
    names = read_texts(exclude, "exclude")
    batches = _batch_range(dynamic_batch)
    timeout = (
        0.0 if compiler_timeout is None else read_number(compiler_timeout, "compiler_timeout", math.inf, zero=False)
    )
    wanted = _Wanted(
        backend=read_text(backend, "backend"),
        args=read_texts(compiler_args, "compiler_args"),
        timeout=timeout,
        workdir=None if compiler_workdir is None else os.path.abspath(os.fspath(compiler_workdir)),
        cache=_cache(cache),
        parallel=0 if parallel is None else read_count(parallel, "parallel"),
        minimum=read_count(minimum_segment_size, "minimum_segment_size"),
        most=0 if max_segments is None else read_count(max_segments, "max_segments"),
        fallback=read_flag(fallback, "fallback"),
        threshold=read_number(support_threshold, "support_threshold", 1.0),
        dynamic=batches is not None,
        dryrun=read_flag(dryrun, "dryrun"),
        ops=[name for name in names if "::" in name],
        modules=[name for name in names if "::" not in name],
        rtol=-1.0 if rtol is None else read_number(rtol, "rtol"),
        atol=-1.0 if atol is None else read_number(atol, "atol"),
        keep_slower=read_flag(keep_slower, "keep_slower"),
        optimize=read_level(optimize),
        threads=read_threads(threads),
    )
    if check_inputs is not None and not isinstance(check_inputs, (list, tuple)):
        raise TypeError(f"check_inputs is a list of inputs, not {type(check_inputs).__name__}")
    if select is not None and not callable(select):
        raise TypeError(f"select is a function, not {select!r}")
    check_trace = read_flag(check_trace, "check_trace")
    calls = [as_call(inputs, None) for inputs in check_inputs or ()]
    tolerance = -1.0 if check_tolerance is None else read_number(check_tolerance, "check_tolerance")
    random = RandomState()
    with progress.task(f"tracing {Target(model).name}"), torch.no_grad(), contextlib.ExitStack() as after:
        after.callback(random.restore)
        after.enter_context(limited(wanted.threads))
        how: dict[str, Any] = {"dynamic_batch": batches, "optimize": optimize, "threads": threads}
        how["max_plans"] = max_plans
        plan = capture(model, args, kwargs, variants=variants, **how)
        traced = _traced(plan, args, kwargs, wanted, select, variants)
        if check_trace:
            progress.step("comparing with the model")
            for call in [(args, kwargs), *(as_inputs(example) for example in variants), *calls]:
                traced._compare(*call, tolerance)
        traced._measure(args, kwargs)
    return traced


class _Wanted(NamedTuple):
    """What the caller asks for, checked: all but `threads` in the order in which C takes it."""

    backend: str
    args: list[str]
    timeout: float
    workdir: str | None
    cache: str | None
    parallel: int
    minimum: int
    most: int
    fallback: bool
    threshold: float
    dynamic: bool
    dryrun: bool
    ops: list[str]
    modules: list[str]
    rtol: float
    atol: float
    keep_slower: bool
    optimize: str
    threads: int


# ---- arguments, checked


def _batch_range(given: tuple[int, int] | None) -> tuple[int, int] | None:
    if given is None:
        return None
    if not isinstance(given, tuple) or len(given) != 2:
        raise TypeError(f"dynamic_batch is a range such as (1, 64), or None, not {given!r}")
    return None if given[0] == given[1] else given  # one size is no range


def _cache(given: str | os.PathLike[str] | bool | None) -> str | None:
    if given is None or given is True:
        return None
    return "off" if given is False else os.path.abspath(os.fspath(given))


# ---- the trace itself


def _traced(
    plan: Plan,
    args: tuple[Any, ...],
    kwargs: dict[str, Any],
    wanted: _Wanted,
    select: Callable[[GraphNode], bool] | None,
    variants: Sequence[Any],
) -> TracedModule:
    captured = [c for variant in plan.every() for c in variant.proven()]
    reasons = [_chosen(c.plan, select) for c in captured]
    _warn_of_names(captured, wanted)
    examples = [(args, kwargs), *(as_inputs(example) for example in variants)]
    calls = [list(plan.flatten_inputs(*example)) for example in examples]
    calls += [leaves for variant in plan.every() for leaves in _other_sizes(variant)]
    artifact = _run_native(plan._save(None, "none"), calls, reasons, wanted)
    traced = TracedModule(plan, captured, artifact, wanted)
    traced.__dict__["_calls"] = calls  # a ScriptModule is compared on them
    traced._log_nodes()
    return traced


def _warn_of_names(captured: Sequence[Captured], wanted: _Wanted) -> None:
    """Warns about names that occur nowhere in the model: they are most likely misspelt."""
    nodes = [node for c in captured for node in graph_nodes(c.plan)]
    ops = {node.op for node in nodes} | {node.op.partition(".")[0] for node in nodes}
    modules = {name for node in nodes for name in node.name}
    modules |= {path for node in nodes for path in _with_parents(node.module_path)}
    for what, names, known in (("operator", wanted.ops, ops), ("module", wanted.modules, modules)):
        for name in names:
            if name not in known:
                warn(f"the model has no {what} {name!r} to leave on the tape")


def _with_parents(path: str) -> list[str]:
    parts = path.split(".")
    return [".".join(parts[: i + 1]) for i in range(len(parts))]


def _chosen(native: Any, select: Callable[[GraphNode], bool] | None) -> list[str | None] | None:
    """Per node, why `select` leaves it on the tape; None: it does not."""
    if select is None:
        return None
    return [None if select(node) else "select leaves it out" for node in graph_nodes(native)]


def _other_sizes(variant: Variant) -> Iterator[list[torch.Tensor]]:
    """Inputs at other recorded sizes, on which compiled parts are compared too. Plans for single sizes other than the
    example's are not compiled: there can be many of them."""
    sized, example = variant.sized, variant.example
    if sized is None or example is None:
        return
    for c in variant.proven():
        points = sorted(p for p in sized.points_of(c) if p != sized.example)
        if not c.symbols:
            continue
        near = [p for p in points if any(n in CHECKED for n in p)] or points
        for point in near[: len(CHECKED)]:
            yield list(sized.resized(example, point).leaves)


def _run_native(
    artifact: Any,
    calls: list[list[torch.Tensor]],
    reasons: list[list[str | None] | None],
    wanted: _Wanted,
) -> Any:
    """The traced artifact, on the memory of the model's tensors."""

    def tell(what: str, done: int, total: int) -> None:
        progress.step(f"compiling {what} ({done} of {total} done)")

    package = str(Path(__file__).resolve().parent.parent)
    path = os.pathsep.join(p for p in (package, os.environ.get("PYTHONPATH", "")) if p)
    options = (sys.executable, [f"PYTHONPATH={path}"], *wanted[:-1])
    try:
        return _native.trace(artifact, calls, reasons, options, tell, log.info)
    except TimeoutError as error:
        command = [sys.executable, "-m", f"cleave.compilers.{wanted.backend}"]
        raise subprocess.TimeoutExpired(command, wanted.timeout, output=str(error)) from None
    except SplitError as error:  # no such back end, or its package is not installed
        raise ArgumentError(str(error)) from None
    except CaptureError as error:
        raise (TraceError(str(error)) if not wanted.fallback else error) from None


class TracedModule(_show.Shown, Drawable, torch.nn.Module):
    """A model with compiled parts. Call it like the model; it shares the model's parameters and is for inference only.

    It runs the traced file as long as the model is unchanged. After a change of the weights, in a mode, shape or dtype
    that was not traced, and when gradients are needed, it runs the live plan of the model: the same numbers as PyTorch,
    without compiled code.

    >>> import torch, cleave
    >>> net = torch.nn.Sequential(torch.nn.Linear(4, 8), torch.nn.ReLU()).eval()
    >>> traced = cleave.trace(net, torch.randn(3, 4), dynamic_batch=(1, 8), dryrun=True)
    >>> traced(torch.randn(7, 4)).shape
    torch.Size([7, 8])
    >>> traced.save("net.clv")
    """

    _plan: Plan
    _captured: list[Captured]
    _artifact: Any
    _runtime: Any
    _wanted: _Wanted
    _named: torch.nn.Module | None
    _numbers: dict[int, int]  # of a plan, by the capture it comes from
    _sizes: list[Sized | None]  # that each is one of the plans of
    _times: dict[str, float]
    _told: set[str]
    _weights: _Watch  # tensors that runs read
    _written: _Watch  # and those that they write, which are the model's own
    _keeps: bool  # a run leaves more in the model than compiled code gives: only the live plan will do
    _tape: bool  # nothing is compiled, or nothing that pays in this process: the plan runs as it is

    def __init__(self, plan: Plan, captured: Sequence[Captured], artifact: Any, wanted: _Wanted) -> None:
        super().__init__()
        named = plan._target._named
        if named is not None:  # one set of tensors: what is done to the model here or there is done to both
            for table in ("_parameters", "_buffers", "_modules", "_non_persistent_buffers_set"):
                self.__dict__[table] = getattr(named, table)
            self.__dict__["training"] = named.training
        self._plan, self._captured, self._artifact, self._wanted = plan, list(captured), artifact, wanted
        of = {id(c): variant.sized for variant in plan.every() for c in variant.proven()}
        how = (False, wanted.optimize, wanted.threads)
        self._runtime = _native.Runtime(artifact, None, None, True, False, True, *how)
        self.__dict__["_named"] = named  # not a child: its children are here themselves
        self._numbers = {id(c): i for i, c in enumerate(captured)}
        self._sizes = [of[id(c)] for c in captured]
        self._times, self._told = {}, set()
        self._weights, self._written = _watched(plan._target, captured, self._runtime)
        self._tape = not self.segments
        self._keeps = any(_keeps_tensors(c) for c in captured)
        if self._keeps and not self._tape:
            warn(f"{plan._target.name} keeps tensors of a run: in this process it runs without compiled code")

    # ---- running

    def forward(self, *args: Any, **kwargs: Any) -> Any:
        plan = self._plan
        args, kwargs, leaves, plain = call = plan.arrange(args, kwargs)
        if runs_eagerly() or (torch.is_grad_enabled() and any(t.requires_grad for t in leaves)):
            return plan(*args, **kwargs)
        with torch.no_grad():
            try:
                return plan.serve(call, self._run if self._may_run() else Ready.__call__)
            except InputError:
                if plain is not None:
                    raise
            return plan.serve_live(call)

    def _may_run(self) -> bool:
        """Whether compiled code gives what the model gives now, and pays."""
        if self._tape or self._keeps:
            return False
        changed = self._changed()
        if changed is not None:
            self._tell_once(changed)
        return changed is None

    def _run(self, ready: Ready, leaves: Sequence[torch.Tensor]) -> Any:
        """Runs a plan: from the file, if it was traced."""
        number = self._numbers.get(id(ready.source))
        if number is None:
            return ready(leaves)
        return _tree.unflatten(self._captured[number].output, self._runtime.run(leaves, number)[2])

    def _changed(self) -> str | None:
        """What has changed in the model since the trace; None: nothing."""
        name = self._weights.written() or self._written.replaced()
        if name is not None:
            return f"{name} changed after the trace"
        try:
            self._plan._first.program.native.check_model()
        except InputError as error:
            return str(error)
        return None

    def _tell_once(self, what: str) -> None:
        """Warns once per module; later changes only go to the log."""
        if not self._told:
            warn(f"{what}: the traced {self._plan._target.name} runs without compiled code; trace it again")
        elif what not in self._told:
            log.info("%s", what)
        self._told.add(what)

    def state_dict(self, *args: Any, **kwargs: Any) -> Any:
        """The state of the model, through its own hooks."""
        return super().state_dict(*args, **kwargs) if self._named is None else self._named.state_dict(*args, **kwargs)

    def load_state_dict(self, *args: Any, **kwargs: Any) -> Any:
        """Loads into the model. Compiled parts have the old weights, so they are not used afterwards."""
        to: Any = super() if self._named is None else self._named
        return to.load_state_dict(*args, **kwargs)

    def train(self, mode: bool = True) -> TracedModule:
        if self._named is not None:
            self._named.train(mode)
        self.training = mode
        return self

    # ---- what it is

    @property
    def plan(self) -> Plan:
        """The plan of the model; it is bound to the live model."""
        return self._plan

    @property
    def segments(self) -> list[Segment]:
        """The parts that were compiled, in the order in which they run."""
        found = segments_of(self._artifact, self._runtime)
        return [s._replace(compiled=False, reason=COSTS_MORE) for s in found] if self.__dict__.get("_tape") else found

    @property
    def coverage(self) -> Coverage:
        """How much of the first plan is compiled."""
        return self.report().coverage

    @property
    def graph(self) -> Graph:
        """The operators with the segment of each."""
        return Graph(self._artifact.plan(0)[0], *_native.trace_segments(self._artifact, 0))

    def optimizations(self) -> str:
        """What the passes did to the operators around the segments, one line each (docs/optimize.md)."""
        text: str = self._runtime.optimizations()
        return text

    def report(self) -> Report:
        """What was compiled, what was not and why, and how much time that saves."""
        return report_of(self._artifact, self._runtime, self._times, COSTS_MORE if self._tape else None)

    def save(
        self,
        path: str | os.PathLike[str],
        *,
        prove: str = "auto",
        metadata: Mapping[str, str] | None = None,
        _extra_files: Mapping[str, Any] | None = None,
    ) -> None:
        """Writes plan, weights and compiled parts as one .clv file, which C programs and cleave.load run.

        With dynamic_batch a file serves every batch of its range, unless the model was seen to branch on it;
        `prove` says whether more sizes are recorded now, as in Plan.save. `_extra_files` is how torch.jit.save calls
        this: it gets what torch.jit.load reads, the module of to_torchscript()."""
        if _extra_files is not None:
            self._script_to_save().save(os.fspath(path), _extra_files=_extra_files)
            return
        self._need_unchanged("save")
        self._prove(prove)
        points = [
            [n for point in _save.points_of(sized, c) for n in point]
            for c, sized in zip(self._captured, self._sizes, strict=True)
        ]
        notes = _save.checked_notes(metadata, {**self._artifact.about(), **dict.fromkeys(TIMES, "")})
        notes |= {name: f"{ms:.4f}" for name, ms in self._times.items()}
        _native.artifact_resave(self._artifact, os.fsencode(path), points, notes, self._any_size())

    def _need_unchanged(self, what: str) -> None:
        changed = self._changed()
        if changed is None:
            name = self._written.written()
            changed = None if name is None else f"{name} was written after the trace"
        for captured in self._captured if changed is None else ():
            _native.check_model(captured.plan, captured.modules)
        if changed is not None:
            raise ArgumentError(
                f"{changed}: the compiled code has the old weights; trace the model again, then {what} it"
            )

    def _prove(self, how: str) -> None:
        """Records more sizes: a few, to see whether formulas hold at all of them; where they do not, as many as a file
        is to serve."""
        for variant in self._plan.every():
            sized, example = variant.sized, variant.example
            if sized is None or example is None or id(variant.main.source) not in self._numbers:
                continue

            def record(point: Point, sized: Sized = sized, example: Arguments = example) -> Any:
                return sized.obtain(sized.resized(example, point), point)

            _save.prove(sized, record, how, self._any_size, lambda c: id(c) in self._numbers)

    def _any_size(self) -> bool:
        """Each variant has one plan with formulas, and no size was recorded whose plan is not in the file."""
        for sized in {id(s): s for s in self._sizes}.values():
            plans = sized.proven_plans if sized is not None else []
            if sum(bool(c.symbols) for c in plans) != 1 or any(id(c) not in self._numbers for c in plans):
                return False
        return True

    def to_torchscript(self) -> torch.jit.ScriptModule:
        """A ScriptModule whose compiled segments are calls of a cleave:: operator (docs/trace.md)."""
        from ._torchscript import convert

        self._need_unchanged("convert")
        return convert(self)

    def save_to_buffer(self, _extra_files: Mapping[str, Any] | None = None) -> bytes:
        """The module of to_torchscript() as torch.jit.save writes it to an open file."""
        data: bytes = self._script_to_save().save_to_buffer(_extra_files=_extra_files or {})
        return data

    def _script_to_save(self) -> torch.jit.ScriptModule:
        try:
            return self.to_torchscript()
        except CaptureError as error:
            raise CaptureError(
                f"torch.jit.save: {error}; save(path) of the traced module writes a file that cleave.load runs"
            ) from None

    # ---- made and checked

    def _lasting(self) -> bool:
        """Whether a run changes the result of the next. Random draws do not count: generators are restored."""
        captured = self._captured[0]
        effects = captured.plan.effects(0, captured.plan.node_count())
        lasting = {"writes inputs", "writes state", "impure"}.intersection(effects)
        return bool(captured.stores or captured.plan.rebinds() or lasting)

    def _compare(self, args: tuple[Any, ...], kwargs: dict[str, Any], tolerance: float) -> None:
        if self._lasting():
            log.info("%s changes its state: it is not compared as a whole", self._plan._target.name)
            return
        random = RandomState()
        _, want, _ = _tree.flatten(self._plan._target.call(*args, **kwargs))
        random.restore()
        _, got, _ = _tree.flatten(self(*args, **kwargs))
        random.restore()
        for i, (a, b) in enumerate(zip(got, want, strict=True)):
            error, scale = _native.difference(a, b)
            allowed = _allowed(b, scale, tolerance)
            if not error <= allowed:
                raise ValidationError(
                    f"output {i} of the traced {self._plan._target.name} is off by {error:.4g}, {allowed:.4g} is "
                    "allowed: see report() with check_trace=False for its segments, or raise check_tolerance"
                )

    def _measure(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        """Times eager, the tape and the traced module on the example, in turn, and keeps the tape if it is faster."""
        if self._lasting():
            return
        calls: list[Callable[..., Any]] = [self._plan._target.call, self._plan, *([] if self._tape else [self])]
        found: list[list[float]] = [[] for _ in calls]
        since = time.perf_counter()
        while len(found[0]) < ROUNDS[time.perf_counter() - since < SECONDS]:
            for ms, call in zip(found, calls, strict=True):
                random, start = RandomState(), time.perf_counter()
                call(*args, **kwargs)
                ms.append((time.perf_counter() - start) * 1e3)
                random.restore()
        times = [sorted(ms)[len(ms) // 4] for ms in found]  # as they are when nothing disturbs them
        may_drop = self._wanted.fallback and not self._wanted.keep_slower
        self._tape = self._tape or (may_drop and times[2] > times[1])
        self._times.update(zip(TIMES, [*times[:2], times[1] if self._tape else times[2]], strict=True))

    def _log_nodes(self) -> None:
        if not log.isEnabledFor(logging.INFO):
            return
        graph = self.graph
        for node, segment, reason in zip(graph.nodes, graph.segment_of, graph.reasons, strict=True):
            where = f" in {node.module_path}" if node.module_path else ""
            if segment is not None:
                log.info("%s%s: compiled, segment %d", node.op, where, segment)
            else:
                log.info("%s%s: not compiled: %s", node.op, where, reason)

    def _subject(self) -> Subject:
        return self._plan._subject()

    def __reduce__(self) -> Any:
        raise TypeError("a traced module cannot be copied or pickled: save() it and cleave.load the file")

    def _shown(self) -> tuple[str, _show.Facts]:
        parts = self.segments
        nodes = _show.plural(self._captured[0].plan.node_count(), "node")
        head = f"cleave.TracedModule of {self._plan._target.name}: {nodes}, {_show.plural(len(parts), 'segment')}"
        return head, [("back end", self._wanted.backend), ("report", str(self.report()).splitlines()[0])]


class _Watch:
    """Tensors of the model as they were at the trace, by name: (holder or None, key, tensor)."""

    def __init__(self, tensors: Mapping[str, tuple[Any, Any, torch.Tensor]]) -> None:
        self._names, self._entries = list(tensors), list(tensors.values())
        self._contents = _native.marks(self._entries, True)
        self._places = _native.marks(self._entries, False)

    def written(self) -> str | None:
        """The first tensor that was written or replaced since."""
        return self._name(_native.marks_changed(self._entries, True, self._contents))

    def replaced(self) -> str | None:
        """The first tensor that was replaced, or moved to other memory."""
        return self._name(_native.marks_changed(self._entries, False, self._places))

    def _name(self, i: int | None) -> str | None:
        return None if i is None else self._names[i]


def _watched(target: Target, captured: Sequence[Captured], runtime: Any) -> tuple[_Watch, _Watch]:
    """Tensors that runs read, and those that they write, which the runtime shares with the model.

    All tensors of the modules count as read: BatchNorm statistics are changed without a version bump, but its batch
    counter is not."""
    read = {t.name: (t.holder, t.key, t.tensor) for t in target.tensors()}
    written: dict[str, tuple[Any, Any, torch.Tensor]] = {}
    for c in captured:
        for name, (holder, key) in c.state.items():
            read.setdefault(name, (holder, key, holder[key]))
        for place, constant, data in c.plan.places(0, c.plan.node_count())[0]:
            if constant is None and data is not None:
                read[f"the tensor {place}"] = (None, None, data)
        for name, _, _, writes in Program(c, 0, c.plan.node_count(), How(NONE)).native.state():
            if writes:
                holder, key = c.state[name]
                written[name] = (holder, key, holder[key])
    for name, (_, _, tensor) in written.items():
        runtime.bind(name, tensor)
    own = {id(tensor) for _, _, tensor in written.values()}
    return _Watch({name: w for name, w in read.items() if id(w[2]) not in own}), _Watch(written)


def _keeps_tensors(c: Captured) -> bool:
    """Whether a run stores or re-binds tensors of the model, or writes constants, of which the runtime has copies."""
    n = c.plan.node_count()
    constants = any(name is None for _, name, _ in c.plan.places(0, n)[0])
    return bool(c.stores or c.plan.rebinds() or (constants and "writes state" in c.plan.effects(0, n)))


def _allowed(tensor: torch.Tensor, scale: float, tolerance: float) -> float:
    """The largest allowed difference for a whole model: more than for a segment, because differences add up."""
    if not tensor.is_floating_point():
        return 0.0
    rounded = tensor.is_cuda and (torch.backends.cudnn.allow_tf32 or torch.backends.cuda.matmul.allow_tf32)
    single = 1e-2 if rounded else 1e-3
    most = {torch.float64: 1e-8, torch.float32: single, torch.float16: 5e-2}.get(tensor.dtype, 1e-1)
    return (most if tolerance < 0 else tolerance) * max(scale, 1e-2)


class Graph:
    """The operators of a traced module in the order in which they run, and the segment of each.

    >>> import torch, cleave
    >>> graph = cleave.trace(lambda x: x * 2 + 1, torch.randn(3), dryrun=True).graph
    >>> [node.op for node in graph.nodes]
    ['aten::mul.Tensor', 'aten::add.Tensor']
    """

    def __init__(self, plan: Any, segments: Sequence[tuple[Any, ...]], fallbacks: Sequence[tuple[int, str]]) -> None:
        self._texts: list[str] = [n[6] for n in plan.nodes()]
        self.nodes = graph_nodes(plan)
        self.segment_of: list[int | None] = [None] * len(self.nodes)
        for i, segment in enumerate(segments):
            for node in range(segment[0], segment[1]):
                self.segment_of[node] = i
        self.reasons: list[str | None] = [None] * len(self.nodes)
        for node, reason in fallbacks:
            self.reasons[node] = reason

    def __str__(self) -> str:
        """One line per operator, with its segment or the reason why it has none."""
        rows = []
        for text, segment, reason in zip(self._texts, self.segment_of, self.reasons, strict=True):
            where = "tape" if segment is None else f"segment {segment}"
            rows.append(f"{where:10} {text}" + (f"  ; {reason}" if reason else ""))
        return "\n".join(rows)

    __repr__ = __str__


def segments_of(artifact: Any, runtime: Any) -> list[Segment]:
    """The segments of a file, as a runtime has them."""
    out: list[Segment] = []
    states = {(s[0], s[1]): (s[5], s[6]) for s in runtime.segments()}
    for number in range(artifact.head()[-1]):
        plan = artifact.plan(number)[0]
        nodes = plan.nodes()
        for first, end, backend, size, facts in _native.trace_segments(artifact, number)[0]:
            compiled, reason = states.get((number, first), (False, "it is not loaded"))
            out.append(
                Segment(
                    f"segment {len(out)}",
                    backend,
                    tuple(n[0] for n in nodes[first:end]),
                    tuple(n[1] for n in nodes[first:end]),
                    compiled,
                    reason,
                    size,
                    {key: float(text) for key, text in facts.items()},
                    number,
                )
            )
    return out


def on_tape(runtime: Any) -> list[str | None]:
    """Per compiled segment of the first plan, why it does not run here."""
    return [s[6] for s in runtime.segments() if s[0] == 0]


def report_of(artifact: Any, runtime: Any, times: Mapping[str, float], why: str | None = None) -> Report:
    """The report of a file. why: nothing that is compiled runs."""
    tape = [why if why is not None else reason for reason in on_tape(runtime)]
    ms = [times.get(name, -1.0) for name in TIMES]
    text, share = _native.trace_report(artifact, 0, False, tape, *ms)
    data, _ = _native.trace_report(artifact, 0, True, tape, *ms)
    return Report(text, share, json.loads(data), artifact, tape)

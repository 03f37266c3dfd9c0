"""The compiled mode: the generated source of a segment through torch.compile.

A CompiledView is called like a Program. It runs the source on the model's live tensors, compiled without graph breaks;
when that fails with them; when that fails too, the tape. What the compiler does to the order of sums shows in the last
bits: for float32 expect results and gradients within `TOLERANCE` of eager.

>>> import torch, cleave
>>> from cleave._compiled import CompiledView
>>> net = torch.nn.Sequential(torch.nn.Linear(4, 8), torch.nn.ReLU(), torch.nn.Linear(8, 2)).eval()
>>> captured = cleave.capture(net, torch.randn(3, 4))._main
>>> segment = CompiledView(captured, 0, 3, options={"backend": "eager"})
>>> x = torch.randn(3, 4)
>>> torch.equal(segment.run([x])[0], net(x)), segment.active_backend
(True, 'eager fullgraph')
"""

from __future__ import annotations

import contextlib
import itertools
import linecache
import threading
import time
import weakref
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import torch

from . import _native, _tree, progress
from ._capture import Captured
from ._log import logger, warn
from ._state import RandomState
from ._threads import limited
from .errors import CaptureError, GuardError
from .plan import Program

log = logger("compile")

TAPE = "tape"
TOLERANCE = {"rtol": 1e-4, "atol": 1e-5}
MAX_SEEN = 1024  # kinds of call that are remembered as compiled

_numbers = itertools.count()
_DEVICES = ("cpu", "cuda", "xpu", "mps")


def default_options(leaves: Sequence[torch.Tensor], inference: bool, symbolic: bool) -> dict[str, Any]:
    """Low overhead: on a GPU, inference replays CUDA graphs."""
    options: dict[str, Any] = {"backend": "inductor"}
    if inference and any(t.is_cuda for t in leaves):
        options["mode"] = "reduce-overhead"
    return options if not symbolic else {**options, "dynamic": True}


def load_module(text: str, class_name: str) -> tuple[torch.nn.Module, str]:
    """Runs generated source and makes its module. Tracebacks show the source while the file name is registered."""
    filename = f"<cleave {class_name} {next(_numbers)}>"
    namespace: dict[str, Any] = {"__name__": f"cleave.generated.{class_name}"}
    linecache.cache[filename] = (len(text), None, text.splitlines(keepends=True), filename)
    exec(compile(text, filename, "exec"), namespace)
    namespace["GuardError"] = GuardError  # the source has one of its own for when it runs alone
    module: torch.nn.Module = namespace[class_name]()
    return module, filename


class Binding:
    """One tensor of a generated module, and where the model keeps it."""

    def __init__(self, module: torch.nn.Module, place: str, live: tuple[Any, Any] | torch.Tensor) -> None:
        path, _, self.key = place.rpartition(".")
        owner = module.get_submodule(path)
        kind = owner._parameters if self.key in owner._parameters else owner._buffers
        self.owner: dict[str, Any] = kind
        self.live = live

    def tensor(self) -> torch.Tensor:
        """What the model has there now."""
        if isinstance(self.live, torch.Tensor):
            return self.live
        holder, key = self.live
        found: torch.Tensor = holder[key]
        return found

    def refresh(self) -> None:
        now = self.tensor()
        if self.owner[self.key] is not now:
            self.owner[self.key] = now


class _Undo:
    """What a failed attempt may have changed, put back before the next one."""

    def __init__(self, tensors: Sequence[torch.Tensor], random: bool) -> None:
        self.kept = [(t, t.detach().clone()) for t in tensors]
        self.random = RandomState() if random else None

    def restore(self) -> None:
        for tensor, data in self.kept:
            _native.copy_data(tensor, data)
        if self.random is not None:
            self.random.restore()


class CompiledView:
    """Nodes first … end-1 of a captured plan, compiled. Same calls as Program."""

    def __init__(
        self,
        captured: Captured,
        first: int,
        end: int,
        *,
        inference: bool = False,
        options: dict[str, Any] | None = None,
        class_name: str = "Segment",
        program: Program | None = None,
    ) -> None:
        self.program = program or Program(captured, first, end, inference=inference)
        self.inference = inference
        self.name = class_name.lower()
        self.source: str | None = None
        self.fallback_reason: str | None = None
        self._captured, self._range = captured, (first, end)
        self._options = options
        self._lock = threading.Lock()
        self._effects: dict[str, str] = captured.plan.effects(first, end)
        self._attempts: list[tuple[str, Callable[..., Any]]] | None = None  # made at the first run
        self._level = 0
        self._seen: set[Any] = set()
        self._clones = False
        try:
            self._load(class_name)
        except CaptureError as error:  # something in it has no source text
            self._attempts = []
            self.fallback_reason = str(error)
            self._tell()

    def _load(self, class_name: str) -> None:
        plan, state = self._captured.plan, self._captured.state
        if self._range[1] == plan.node_count() and _tree.has_formulas(self._captured.output):
            raise CaptureError("a number of the output follows the sizes, which has no source text yet")
        self.source = plan.source(*self._range, class_name, return_rebinds=True)
        places, self._keywords = plan.places(*self._range)
        # What runs lets go of values as it goes; the text for people need not say so.
        running = plan.source(*self._range, class_name, delete=True, return_rebinds=True)
        self.module, filename = load_module(running, class_name)
        weakref.finalize(self, linecache.cache.pop, filename, None)
        self._bindings: list[Binding] = []
        for place, name, data in places:
            live = state[name] if name is not None else data
            assert live is not None, f"{place} has no data"
            self._bindings.append(Binding(self.module, place, live))

    # ---- compiling

    @property
    def active_backend(self) -> str:
        """What runs: "inductor fullgraph", "inductor" (with graph breaks), "tape"; before the first run, what will be
        tried first."""
        if self._attempts is None:
            return _labels(self._options or {})[0]
        return self._attempts[self._level][0] if self._level < len(self._attempts) else TAPE

    def _make_attempts(self, leaves: Sequence[torch.Tensor]) -> list[tuple[str, Callable[..., Any]]]:
        """torch.compile is lazy: what goes wrong shows at the first call."""
        symbolic = bool(self._captured.plan.symbols())
        if self._options is None:
            options = default_options(leaves, self.inference, symbolic)
        else:
            options = {"backend": "inductor", **({"dynamic": True} if symbolic else {}), **self._options}
        inner = options.get("options") or {}
        graphs = options.get("mode") in ("reduce-overhead", "max-autotune") or inner.get("triton.cudagraphs")
        self._clones = bool(graphs) and any(t.is_cuda for t in leaves)
        full = options.pop("fullgraph", True)
        kinds = (True, False) if full else (False,)
        labels = _labels({**options, "fullgraph": full})
        try:
            return [
                (label, torch.compile(self.module, **options, fullgraph=whole))
                for label, whole in zip(labels, kinds, strict=True)
            ]
        except Exception as error:  # no such backend, no compiler for this Python
            self.fallback_reason = f"torch.compile: {_short(error)}"
            return []

    def _attempt(self, level: int, leaves: Sequence[torch.Tensor], symbols: list[int] | None) -> tuple[Any, ...]:
        assert self._attempts is not None
        call = self._attempts[level][1]
        given = {name: symbols[number] for name, number in self._keywords} if symbols is not None else {}
        with self._modes():
            out: tuple[torch.Tensor, ...] = call(*leaves, **given)
            if not self._clones:
                return out
            # a CUDA graph writes its outputs to the same memory in every run
            mine = {id(t) for t in leaves} | {id(b.tensor()) for b in self._bindings}
            return tuple(t if id(t) in mine else t.clone() for t in out)

    @contextlib.contextmanager
    def _modes(self) -> Iterator[None]:
        """The source names every mode that it needs; what the caller has around it must not add to that."""
        with contextlib.ExitStack() as stack:
            if self.inference and torch.is_grad_enabled():
                stack.enter_context(torch.no_grad())
            for device in _DEVICES:
                if torch.is_autocast_enabled(device):
                    stack.enter_context(torch.autocast(device, enabled=False))
            stack.enter_context(limited(self.program.threads))
            yield

    # ---- running

    def run(self, leaves: Sequence[torch.Tensor], symbols: list[int] | None = None) -> tuple[torch.Tensor, ...]:
        """The outputs, as Program.run gives them. What the tape would refuse is refused in the same words."""
        if self._attempts is None:
            with self._lock:
                if self._attempts is None:
                    with progress.task(f"compiling the {self.name}"):
                        progress.step("starting the compiler")
                        self._attempts = self._make_attempts(leaves)
            if not self._attempts:
                self._tell()
        level = self._level
        if level >= len(self._attempts):
            return self.program.run(leaves, symbols)
        if not self.program.native.check_run(leaves, symbols):  # compilers take memory for apart
            return self.program.run(leaves, symbols)
        with self._lock:
            for binding in self._bindings:
                binding.refresh()
        kind = self._kind(leaves)
        undo = self._undo(leaves, kind)
        if kind in self._seen:
            return self._tried(level, leaves, symbols, kind, undo)
        with progress.task(f"compiling the {self.name}"):
            since = time.monotonic()
            out = self._tried(level, leaves, symbols, kind, undo)
            log.debug(
                "the first run of the %s took %.2f s (%s)", self.name, time.monotonic() - since, self.active_backend
            )
            return out

    def _tried(
        self, level: int, leaves: Sequence[torch.Tensor], symbols: list[int] | None, kind: Any, undo: _Undo | None
    ) -> tuple[torch.Tensor, ...]:
        """The first of the attempts from `level` on that works, and the tape after the last."""
        assert self._attempts is not None
        reasons: list[str] = []
        while level < len(self._attempts):
            progress.step(f"compiling {self.name} ({self._attempts[level][0]})")
            try:
                out = self._attempt(level, leaves, symbols)
            except (GuardError, MemoryError, torch.OutOfMemoryError):
                raise
            except Exception as error:
                if undo is None:  # this kind of call has run before: it is no failure to compile
                    raise
                undo.restore()
                reasons.append(f"{self._attempts[level][0]}: {_short(error)}")
                level += 1
            else:
                self._settle(level, reasons, kind)
                return out
        out = self.program.run(leaves, symbols)  # what this raises is the model's own error, and changes nothing here
        self._settle(level, reasons, kind)
        return out

    def _settle(self, level: int, reasons: list[str], kind: Any) -> None:
        fell = bool(reasons) and level > self._level
        with self._lock:
            if len(self._seen) >= MAX_SEEN:
                self._seen.clear()
            self._seen.add(kind)
            if reasons and level > self._level:
                self._level = level
                self.fallback_reason = "; ".join(filter(None, [self.fallback_reason, *reasons]))
        if fell:
            self._tell()

    def _tell(self) -> None:
        """Something else runs than the mode asks for; where nothing is compiled at all, the user should know."""
        log.info("the %s runs as %s: %s", self.name, self.active_backend, self.fallback_reason)
        if self.active_backend == TAPE:
            warn(f"nothing is compiled, the operators run one by one as in generated_eager: {self.fallback_reason}")

    def _kind(self, leaves: Sequence[torch.Tensor]) -> Any:
        return (torch.is_grad_enabled(), *((t.shape, t.dtype, t.requires_grad) for t in leaves))

    def _undo(self, leaves: Sequence[torch.Tensor], kind: Any) -> _Undo | None:
        """None: an attempt would change something, and compiling is behind us."""
        written = [name for name in ("writes state", "writes inputs") if name in self._effects]
        random = "random" in self._effects
        if not written and not random:
            return _Undo((), False)
        if kind in self._seen:
            return None
        tensors = [b.tensor() for b in self._bindings] if "writes state" in written else []
        return _Undo([*tensors, *(leaves if "writes inputs" in written else ())], random)

    def warmup(self, leaves: Sequence[torch.Tensor], symbols: list[int] | None = None) -> None:
        """Compiles for inputs like these. The model and the random generators are as before afterwards."""
        undo = _Undo([*(b.tensor() for b in getattr(self, "_bindings", ())), *leaves], True) if self._effects else None
        try:
            self.run(leaves, symbols)
        finally:
            if undo is not None:
                undo.restore()


def _labels(options: dict[str, Any]) -> list[str]:
    backend = options.get("backend", "inductor")
    name = backend if isinstance(backend, str) else getattr(backend, "__name__", type(backend).__name__)
    return [f"{name} fullgraph", name] if options.get("fullgraph", True) else [name]


def _short(error: BaseException) -> str:
    """The first lines of what a compiler says; the rest is for its developers."""
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    return f"{type(error).__name__}: {' '.join(lines[:3])[:300]}"

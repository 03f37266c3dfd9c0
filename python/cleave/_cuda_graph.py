"""The cuda_graph mode: a segment's tape recorded once per kind of input as a CUDA graph, then replayed.

A GraphView is called like a Program. Inputs are copied to the graph's own memory, outputs are copied out of it, so
that the next run does not change them; an output that is an input or a tensor of the model is given back as it is.
Parameters are read where they lie: a step of an optimiser is seen, and a parameter that was replaced by another tensor
makes the graph anew. Guards run before the graph, with what they need; what they share with the rest goes in as
inputs do. Random numbers come from CUDA's default generator, which a graph advances as eager does. What
cannot be in a graph runs on the tape, and `fallback_reason` says why."""

from __future__ import annotations

import contextlib
import threading
from collections import OrderedDict
from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple

import torch

from . import progress
from ._capture import Captured, own_copy
from ._how import How
from ._log import logger, warn
from .plan import Program

log = logger("compile")

GRAPH, TAPE = "cuda graph", "tape"
MAX_GRAPHS = 8
WARMUPS = 2  # runs before the capture: libraries make their handles and workspaces in the first

# CUDA allows one capture at a time in a process.
_capturing = threading.Lock()

_UNFIT = {
    "python": "node {} calls Python code",
    "host": "node {} reads its data on the host",
    "guard": "node {} is guarded: its value is compared on the host",
    "object": "node {} takes an object (a generator, packed weights)",
    "other device": "node {} works on another device",
    "writes state": "node {} writes to a tensor of the model",
    "writes inputs": "node {} writes to an input",
    "impure": "node {} has an effect that a graph may not repeat",
    "rebinds": "the forward re-binds tensors of the model",
}


class _Graph(NamedTuple):
    """A captured graph with the memory it reads and writes."""

    graph: Any
    inputs: list[torch.Tensor]  # and what guards give
    outputs: tuple[torch.Tensor, ...]
    given_back: list[int | torch.Tensor | None]  # per output: the input or the model's tensor that it is
    model: list[torch.Tensor]  # held, so that their addresses stay theirs
    stamp: tuple[int, ...]  # of the model's tensors


def _given_back(
    outputs: Sequence[torch.Tensor], inputs: Sequence[torch.Tensor], model: Sequence[torch.Tensor]
) -> list[int | torch.Tensor | None]:
    places: dict[int, int | torch.Tensor] = {id(t): t for t in model}
    places.update((id(t), i) for i, t in enumerate(inputs))
    return [places.get(id(t)) for t in outputs]


@contextlib.contextmanager
def _own_workspaces() -> Iterator[None]:
    """cuBLAS keeps its workspace per stream; one that a graph uses must be in the graph's pool alone."""
    torch._C._cuda_clearCublasWorkspaces()
    try:
        yield
    finally:
        torch._C._cuda_clearCublasWorkspaces()


class GraphView:
    """Nodes first … end-1 of a captured plan as CUDA graphs. Same calls as Program."""

    def __init__(
        self,
        captured: Captured,
        first: int,
        end: int,
        *,
        inference: bool = True,
        max_graphs: int = MAX_GRAPHS,
        program: Program | None = None,
    ) -> None:
        if max_graphs < 1:
            raise ValueError(f"max_graphs must be at least 1, not {max_graphs}")
        self.program = program or Program(captured, first, end, How(graph=True), inference=inference)
        self.inference = inference
        self.max_graphs = max_graphs
        self._lock = threading.Lock()
        self._graphs: OrderedDict[Any, _Graph] = OrderedDict()
        self._pool: Any = None
        self._done: Any = None  # event: the last run has read its outputs
        self._never: str | None = self._unfit_for_ever()
        self.fallback_reason = self._never
        if self._never is not None:
            self._tell()
        places = captured.plan.places(first, end)[0] if self._never is None else []
        self._live = [captured.state[name] if name is not None else data for _, name, data in places]

    def _unfit_for_ever(self) -> str | None:
        effects = self.program.native.effects()
        for effect, text in _UNFIT.items():
            if effect in effects:
                return text.format(effects[effect])
        return None if torch.cuda.is_available() else "there is no CUDA device"

    @property
    def active_backend(self) -> str:
        """What the last run used, or the next will: "cuda graph" or "tape"."""
        return GRAPH if self.fallback_reason is None else TAPE

    def __len__(self) -> int:
        """Graphs that are held."""
        return len(self._graphs)

    def _unfit(self, leaves: Sequence[torch.Tensor]) -> str | None:
        """Why this call cannot be a graph."""
        if not self.inference and torch.is_grad_enabled():
            return "gradients are wanted, and a graph keeps none"
        if not leaves or not all(t.is_cuda for t in leaves):
            return "an input is not on a CUDA device"
        device = leaves[0].device
        if any(t.device != device for t in leaves):
            return "the inputs are on several devices"
        if any(torch._debug_has_internal_overlap(t) == 1 for t in leaves):
            return "an input is expanded: its elements share memory"
        if torch.cuda.is_current_stream_capturing():
            return "the call is inside of another capture"
        return None

    def _model(self) -> list[torch.Tensor]:
        found = [live if isinstance(live, torch.Tensor) else live[0][live[1]] for live in self._live]
        return [t for t in found if isinstance(t, torch.Tensor)]

    def run(self, leaves: Sequence[torch.Tensor], symbols: list[int] | None = None) -> tuple[torch.Tensor, ...]:
        """The outputs, as Program.run gives them. What the tape would refuse is refused in the same words."""
        if self._never is not None:
            return self.program.run(leaves, symbols)
        with self._lock:
            reason = self._unfit(leaves)
            given: Sequence[torch.Tensor] = leaves
            if reason is None:
                *stamp, guards = self.program.native.before_graph(leaves, symbols)
                given = [*leaves, *guards]
                graph, reason = self._graph(leaves, symbols, given, tuple(stamp))
            first = reason is not None and self.fallback_reason is None
            self.fallback_reason = reason
            if reason is None:
                return self._replay(graph, given)
        if first:
            self._tell()
        return self.program.run(leaves, symbols)

    def _tell(self) -> None:
        log.info("no CUDA graph: %s", self.fallback_reason)
        warn(f"there is no CUDA graph, and the operators run one by one: {self.fallback_reason}")

    def warmup(self, leaves: Sequence[torch.Tensor], symbols: list[int] | None = None) -> None:
        """Captures the graph for inputs like these."""
        self.run(leaves, symbols)

    # ---- capturing

    def _graph(
        self,
        leaves: Sequence[torch.Tensor],
        symbols: list[int] | None,
        given: Sequence[torch.Tensor],
        stamp: tuple[int, ...],
    ) -> tuple[Any, str | None]:
        key = (tuple(symbols or ()), *((t.shape, t.stride(), t.dtype, t.device) for t in leaves))
        found = self._graphs.get(key)
        if found is not None and found.stamp == stamp:
            self._graphs.move_to_end(key)
            return found, None
        model = self._model()
        if any(t.device != leaves[0].device for t in model if t.is_cuda or t.dim()):
            return None, "the model has tensors on another device"
        self._graphs.pop(key, None)
        while len(self._graphs) >= self.max_graphs:
            self._graphs.popitem(last=False)
        del found
        try:
            with _capturing, progress.task("capturing a CUDA graph"):
                graph = self._capture(len(leaves), given, symbols, model)
        except torch.OutOfMemoryError as error:
            self._pool = None
            return None, f"no memory for a graph: {str(error)[:200]}"
        except Exception as error:
            self._pool = None
            self._never = f"the capture failed: {type(error).__name__}: {str(error)[:300]}"
            return None, self._never
        self._graphs[key] = graph
        return graph, None

    def _capture(
        self, n: int, given: Sequence[torch.Tensor], symbols: list[int] | None, model: list[torch.Tensor]
    ) -> _Graph:
        """given: n inputs, and what guards give."""
        device = given[0].device
        # Memory that outlives this call must not be made of inference tensors: they could not be written later.
        with torch.cuda.device(device), torch.inference_mode(False), torch.no_grad():
            current = torch.cuda.current_stream(device)
            side = torch.cuda.Stream(device)  # type: ignore[no-untyped-call]
            if self._done is not None:
                current.wait_event(self._done)
            inputs = [own_copy(t.detach()).detach() for t in given]
            drawn = torch.cuda.get_rng_state(device)
            side.wait_stream(current)
            try:
                with torch.cuda.stream(side):
                    for _ in range(WARMUPS):
                        self.program.run(inputs[:n], symbols)
                torch.cuda.synchronize(device)
                # What changes after this is seen by the next call.
                stamp = self.program.native.before_graph(inputs[:n], symbols)[:2]
                graph, outputs = self._record(side, inputs[:n], symbols, inputs[n:])
            finally:
                current.wait_stream(side)
                torch.cuda.set_rng_state(drawn, device)  # no run has happened yet
            return _Graph(graph, inputs, outputs, _given_back(outputs, inputs, model), model, stamp)

    def _record(
        self, side: Any, inputs: list[torch.Tensor], symbols: list[int] | None, guards: list[torch.Tensor]
    ) -> tuple[Any, tuple[torch.Tensor, ...]]:
        """Always ends the capture: a stream that is left capturing breaks the next call of any code."""
        if self._pool is None or not self._graphs:  # a pool ends with the last graph that uses it
            self._pool = torch.cuda.graph_pool_handle()
        graph: Any = torch.cuda.CUDAGraph()
        with torch.cuda.stream(side), _own_workspaces():
            graph.capture_begin(pool=self._pool, capture_error_mode="thread_local")
            try:
                try:
                    outputs = self.program.run(inputs, symbols, guards)
                except BaseException:
                    with contextlib.suppress(Exception):
                        graph.capture_end()
                    raise
                graph.capture_end()
            except BaseException:
                self._leave(side.device)
                raise
        return graph, outputs

    def _leave(self, device: torch.device) -> None:
        """What a capture that could not be ended leaves behind: the allocator in the graph's pool, and the default
        generator still counting for the graph, which a small capture that works sets right."""
        with contextlib.suppress(Exception):
            torch._C._cuda_endAllocateToPool(device.index, self._pool)
        with contextlib.suppress(Exception):
            torch.cuda.synchronize(device)
            with torch.cuda.stream(torch.cuda.Stream(device)):  # type: ignore[no-untyped-call]
                number = torch.zeros(1, device=device)
                torch.cuda.synchronize(device)
                graph: Any = torch.cuda.CUDAGraph()
                graph.capture_begin(capture_error_mode="thread_local")
                number.add_(1)
                graph.capture_end()

    # ---- replaying

    def _replay(self, g: _Graph, leaves: Sequence[torch.Tensor]) -> tuple[torch.Tensor, ...]:
        with torch.cuda.device(leaves[0].device), torch.no_grad():
            stream = torch.cuda.current_stream()
            if self._done is not None:  # another stream may still be reading what this run writes
                stream.wait_event(self._done)
            for mine, given in zip(g.inputs, leaves, strict=True):
                mine.copy_(given.detach())
            g.graph.replay()
            out = tuple(
                own_copy(t.detach()) if back is None else leaves[back] if isinstance(back, int) else back
                for t, back in zip(g.outputs, g.given_back, strict=True)
            )
            self._done = stream.record_event()
            return out

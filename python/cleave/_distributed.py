"""Stages of a partition as stages of torch.distributed.pipelining, and the schedules of that package around them.

    partition ──pipeline_stages──▶ Stage (a PipelineStage) ──schedule──▶ PipelineRun: step, eval, report

torch's stages send a gradient for every value, need one size for all micro-batches, and their private methods differ
from release to release. `Stage` keeps only what schedules call (see the methods below, the same in torch 2.11 to 2.13)
and does the rest itself: one message of bytes per boundary (`_wire.py`), whose layout the sender tells once through the
store (`_peers.py`); gradients for what has them; sums in the order of one process (`_gradients.py`).
"""

from __future__ import annotations

import hashlib
import json
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from datetime import timedelta
from statistics import median
from typing import Any, Protocol

import torch
import torch.distributed as dist
from torch.distributed import pipelining
from torch.distributed.pipelining import schedules as engine
from torch.utils import _pytree as pytree

from . import _wire
from ._gradients import Gradients, Tied
from ._peers import Peers
from ._wire import Layout
from .errors import ArgumentError, InputError, PipelineError

KNOWN = ((2, 11), (2, 13))  # releases whose engine these stages were tested with
KEPT_STEPS = 64  # announcements of steps that stay in the store; no rank can be so far behind another


class ValueSpec(Protocol):
    """What is known of a value between two stages."""

    name: str
    requires_grad: bool
    is_batched: bool


class StageModule(Protocol):
    """One stage as a module."""

    index: int
    nstages: int
    inputs: Sequence[ValueSpec]
    outputs: Sequence[ValueSpec]

    def __call__(self, *tensors: torch.Tensor) -> tuple[torch.Tensor, ...]: ...
    def named_parameters(self) -> Iterator[tuple[str, torch.nn.Parameter]]: ...


class Partitioned(Protocol):
    """What a partition gives to run it. It may also have `batch_dim`, `signature` (text), `tied` (lists of (stage,
    parameter name)) and `predicted` (milliseconds of forward and backward for each stage)."""

    device_of: Sequence[int]

    def stage(self, i: int, *, device: torch.device) -> Any: ...
    def unpack_inputs(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Sequence[torch.Tensor]: ...
    def pack_output(self, tensors: Sequence[torch.Tensor]) -> Any: ...


# ---- one rank's connections ---------------------------------------------------------------------------------------


class _Link:
    """What the stages of one rank share."""

    def __init__(self, peers: Peers, rank_of: Sequence[int], gradients: Gradients, wire: torch.device) -> None:
        self.peers, self.rank_of, self.gradients, self.wire = peers, rank_of, gradients, wire
        self.group, self.rank = peers.group, peers.rank
        self.step = 0
        self.train = False
        self._signatures: list[str] | None = None  # of the micro-batches of this step
        self._layouts: dict[tuple[str, int, str], list[Layout | None]] = {}
        self.waiting: dict[tuple[str, int, int], int] = {}  # (what, stage, micro-batch) → rank that has to send it
        self.own = False  # messages are sent and waited for here, not by the engine
        self._receives: dict[tuple[str, int, int], dist.Work] = {}
        self._sends: list[dist.Work] = []
        self.running: str | None = None  # what the stage itself is doing

    def begin(self, step: int, train: bool) -> None:
        if step == self.step:
            return  # another stage of this rank was first
        if self.peers.lost:
            raise PipelineError(f"this pipeline has failed and cannot run again: {self.peers.lost}")
        self.step, self.train, self._signatures = step, train, None
        self.waiting.clear()
        self._receives.clear()

    # ---- messages -------------------------------------------------------------------------------------------------

    def receive(self, what: str, stage: int, m: int, sender: int, message: torch.Tensor, tag: int) -> list[dist.P2POp]:
        """Receives a message into `message`; `arrived` waits for it, or else the engine for what this gives."""
        if not message.numel():
            return []
        if not self.own:
            return [dist.P2POp(dist.irecv, message, group=self.group, group_peer=sender, tag=tag)]
        work = dist.irecv(message, group=self.group, group_src=sender, tag=tag)
        assert work is not None
        self._receives[what, stage, m] = work
        return []

    def arrived(self, what: str, stage: int, m: int) -> None:
        work = self._receives.pop((what, stage, m), None)
        if work is not None:
            self.peers.wait(work, _doing(what, stage, m))
        self.waiting.pop((what, stage, m), None)

    def send(self, to: int, message: torch.Tensor, tag: int) -> list[dist.P2POp]:
        if not message.numel():
            return []
        message = message.to(self.wire)
        if not self.own:
            return [dist.P2POp(dist.isend, message, group=self.group, group_peer=to, tag=tag)]
        work = dist.isend(message, group=self.group, group_dst=to, tag=tag)
        assert work is not None
        self._sends.append(work)
        return []

    def flush(self) -> None:
        """Waits until all messages of a step are on their way."""
        for work in self._sends:
            self.peers.wait(work, "waiting for its messages to be taken")
        self._sends.clear()

    # ---- what messages look like ----------------------------------------------------------------------------------

    def announce(self, signatures: list[str]) -> None:
        """The first stage says which sizes the micro-batches of this step have."""
        self._signatures = signatures
        self.peers.tell(f"step/{self.step}", {"train": self.train, "signatures": signatures})
        self.peers.forget(f"step/{self.step - KEPT_STEPS}")

    def announced(self) -> bool:
        return self._signatures is not None

    def signature(self, microbatch: int) -> str:
        if self._signatures is None:
            told = self.peers.ask(f"step/{self.step}", f"waiting for step {self.step} to begin on rank {self.rank_of[0]}")
            if told["train"] != self.train:
                modes = {True: "trains", False: "only runs forward"}
                raise PipelineError(
                    f"step {self.step}: rank {self.rank_of[0]} {modes[told['train']]}, rank {self.rank} "
                    f"{modes[self.train]}; call the same method on every rank"
                )
            self._signatures = told["signatures"]
        return self._signatures[microbatch]

    def publish(self, kind: str, stage: int, signature: str, layouts: list[Layout | None], names: Sequence[str]) -> None:
        """Tells the neighbour what messages of this kind look like; checks that they stay so."""
        key = (kind, stage, signature)
        known = self._layouts.get(key)
        if known is None:
            self._layouts[key] = layouts
            self.peers.tell("/".join(map(str, key)), [l and l.text() for l in layouts])
        elif known != layouts:
            k = next(k for k in range(len(layouts)) if known[k] != layouts[k])
            raise PipelineError(
                f"stage {stage}: {kind} of {names[k]} was {known[k]} and is now {layouts[k]}, though the micro-batch has "
                "the same sizes; if parameters were frozen or thawed meanwhile, make a new schedule"
            )

    def layouts(self, kind: str, stage: int, signature: str, doing: str) -> list[Layout | None]:
        key = (kind, stage, signature)
        if key not in self._layouts:
            told = self.peers.ask("/".join(map(str, key)), doing)
            self._layouts[key] = [l and Layout.parse(l) for l in told]
        return self._layouts[key]

    def blame(self, e: BaseException) -> PipelineError:
        """The error to raise for one that ended a step; the other ranks learn of it."""
        me = self.peers.name(self.rank)
        if self.running is not None:
            why = f"{me}: {self.running} raised {type(e).__name__}: {_last_line(e)}"
            self.peers.fail(why)
            return PipelineError(why)
        if isinstance(e, PipelineError):
            self.peers.fail(str(e))
            return e
        doing = "waiting for its messages to be taken"
        peer = None
        if self.waiting:
            (what, stage, microbatch), peer = next(iter(self.waiting.items()))
            doing = _doing(what, stage, microbatch)
        why = self.peers.culprit(3.0)
        if why is None:
            who = self.peers.name(peer) if peer is not None else "a rank"
            why = f"{who} did not answer ({_last_line(e)})"
        self.peers.fail(why)
        return PipelineError(f"{why} while {me} was {doing}")


def _doing(what: str, stage: int, microbatch: int) -> str:
    return f"waiting for the {what} of micro-batch {microbatch} for stage {stage}"


def _last_line(e: BaseException) -> str:
    root = e
    while root.__cause__ is not None:
        root = root.__cause__
    lines = str(root).strip().splitlines()
    return lines[0] if lines else type(root).__name__


# ---- stages -------------------------------------------------------------------------------------------------------


class _Box:
    """The tensors that come into a stage; their gradients after the backward."""

    def __init__(self, tensors: list[torch.Tensor]) -> None:
        self.tensors = tensors
        self.grads: tuple[torch.Tensor | None, ...] = (None,) * len(tensors)
        self.root = torch.empty(0, requires_grad=True)


class _Enter(torch.autograd.Function):
    """Makes the tensors of a box differentiable without making them leaves, so that a stage may write them in place."""

    @staticmethod
    def forward(ctx: Any, root: torch.Tensor, box: _Box) -> tuple[torch.Tensor, ...]:  # type: ignore[override]
        ctx.box = box
        ctx.set_materialize_grads(False)
        tensors, box.tensors = box.tensors, []
        return tuple(tensors)

    @staticmethod
    def backward(ctx: Any, *grads: torch.Tensor | None) -> tuple[None, None]:  # type: ignore[override]
        ctx.box.grads = grads
        return None, None


class _Clock:
    """Times of one kind of work, in milliseconds."""

    def __init__(self, device: torch.device) -> None:
        self._cuda = device.type == "cuda"
        self._marks: list[tuple[Any, Any]] = []

    @contextmanager
    def time(self) -> Iterator[None]:
        begin = self._mark()
        yield
        self._marks.append((begin, self._mark()))

    def _mark(self) -> Any:
        if not self._cuda:
            return time.perf_counter()
        event = torch.cuda.Event(enable_timing=True)  # type: ignore[no-untyped-call]
        event.record()  # type: ignore[no-untyped-call]
        return event

    def times(self) -> list[float]:
        if self._cuda:
            torch.cuda.synchronize()
            return [a.elapsed_time(b) for a, b in self._marks]
        return [1e3 * (b - a) for a, b in self._marks]

    def clear(self) -> None:
        self._marks.clear()


def _unique(specs: Sequence[ValueSpec]) -> tuple[list[int], list[int]]:
    """A value that crosses twice is sent once: positions of the values to send; for each position, which of them."""
    first: dict[str, int] = {}
    send, of = [], []
    for k, s in enumerate(specs):
        if s.name not in first:
            first[s.name] = len(send)
            send.append(k)
        of.append(first[s.name])
    return send, of


class Stage(pipelining.PipelineStage):
    """One stage of a partition, for the schedules of torch.distributed.pipelining."""

    def __init__(self, module: StageModule, device: torch.device, link: _Link, partitioned: Partitioned) -> None:
        super().__init__(module, module.index, module.nstages, device, group=link.group)  # type: ignore[arg-type]
        self.link, self.partitioned, self.module = link, partitioned, module
        self.stage_index_to_group_rank = dict(enumerate(link.rank_of))
        self.feed: list[Sequence[torch.Tensor]] | None = None  # inputs of the micro-batches, where PipelineRun gives them
        self.flat_outputs: dict[int, tuple[torch.Tensor, ...]] = {}  # last stage: by micro-batch
        self.forward_clock, self.backward_clock = _Clock(device), _Clock(device)
        self._send, _ = _unique(module.outputs)
        _, self._take = _unique(module.inputs)
        self._names = [module.outputs[k].name for k in self._send]
        self._input_names = [module.inputs[k].name for k in _unique(module.inputs)[0]]
        self._steps = 0
        self._arrived: dict[int, tuple[torch.Tensor, list[Layout | None]]] = {}
        self._forwards: dict[int, tuple[tuple[torch.Tensor, ...], _Box | None, list[Layout | None]]] = {}
        self._grad_message: dict[int, torch.Tensor] = {}
        self._grads_in: dict[int, tuple[torch.Tensor | None, ...]] = {}  # from a stage on this rank
        self._grads_out: dict[int, tuple[torch.Tensor | None, ...]] = {}
        self._in_layouts: dict[int, list[Layout | None]] = {}
        self._plain_done: set[int] = set()

    # ---- what schedules call before a step ------------------------------------------------------------------------

    def clear_runtime_states(self) -> None:
        self._steps += 1
        self.link.begin(self._steps, self.has_backward)
        if self.has_backward:
            self.link.gradients.begin(self.stage_index)
        for d in (self._arrived, self._forwards, self._grad_message, self._grads_in, self._grads_out, self._in_layouts):
            d.clear()  # type: ignore[attr-defined]
        self.flat_outputs.clear()
        self.output_chunks.clear()

    def _prepare_forward_infra(self, num_microbatches: int, *args: Any, **kwargs: Any) -> Any:
        """Sizes are told with the first message that has them; nothing is run to find them."""
        self.chunks = num_microbatches
        self.args_recv_info = {m: () for m in range(num_microbatches)}
        self.act_send_info = {}
        return ()

    def _prepare_backward_infra(self, num_microbatches: int, *args: Any, **kwargs: Any) -> Any:
        self.chunks = num_microbatches

    def _get_init_p2p_neighbors_ops(self) -> list[dist.P2POp]:
        return []  # torch 2.11, 2.12: connections open with the first message

    def _warmup_forward_vote(self, *args: Any, **kwargs: Any) -> torch.Tensor:
        return torch.ones(1, dtype=torch.int32)  # torch 2.13: sizes are known, as far as the engine is concerned

    def _warmup_backward_result(self, *args: Any, **kwargs: Any) -> torch.Tensor:
        return torch.ones(1, dtype=torch.int32)

    # ---- forward --------------------------------------------------------------------------------------------------

    def _tag(self, microbatch: int, back: bool, after: int = 0) -> int:
        """Of the boundary before this stage, or after it. Messages are matched by it, not by their order."""
        return (2 * (self.stage_index + after) + back) * (self.chunks or 1) + microbatch

    def get_fwd_recv_ops(self, fwd_chunk_id: int) -> list[dist.P2POp]:
        m, link = fwd_chunk_id, self.link
        if self.is_first or link.rank_of[self.stage_index - 1] == link.rank:
            return []
        sender = link.rank_of[self.stage_index - 1]
        link.waiting["forward", self.stage_index, m] = sender
        layouts = link.layouts("forward", self.stage_index - 1, link.signature(m), _doing("forward", self.stage_index, m))
        _, size = _wire.offsets([l.bytes for l in layouts if l])
        message = torch.empty(size, dtype=torch.uint8, device=link.wire)
        self._arrived[m] = message, layouts
        return link.receive("forward", self.stage_index, m, sender, message, self._tag(m, False))

    def _pack_outputs(self, microbatch: int) -> tuple[torch.Tensor, list[Layout | None]]:
        outputs, _, layouts = self._forwards[microbatch]
        begins, size = _wire.offsets([l.bytes for l in layouts if l])
        return _wire.pack([outputs[k] for k in self._send], layouts, begins, size), layouts

    def get_fwd_send_ops(self, fwd_chunk_id: int) -> list[dist.P2POp]:
        m, link = fwd_chunk_id, self.link
        if self.is_last or link.rank_of[self.stage_index + 1] == link.rank:
            return []
        message, _ = self._pack_outputs(m)
        return link.send(link.rank_of[self.stage_index + 1], message, self._tag(m, False, 1))

    def set_local_fwd_input(self, prev_stage_outputs: Any, mb_index: int) -> None:
        """From the stage before, on this rank. A copy: either stage may write it in place."""
        before = self.before
        self._arrived[mb_index] = before._pack_outputs(mb_index)

    @property
    def before(self) -> Stage:
        return self._neighbours[0]

    _neighbours: tuple[Stage]

    def _take_inputs(self, microbatch: int, args: tuple[Any, ...], kwargs: dict[str, Any]) -> list[torch.Tensor]:
        m, link = microbatch, self.link
        if self.is_first:
            feed = self.feed
            flat = list(feed[m] if feed is not None else self.partitioned.unpack_inputs(args, kwargs))
            self._check_first(m, flat)
            return [t.to(self.device) for t in flat]
        link.arrived("forward", self.stage_index, m)
        message, layouts = self._arrived.pop(m)
        self._in_layouts[m] = layouts
        begins, _ = _wire.offsets([l.bytes for l in layouts if l])
        tensors = _wire.unpack(message.to(self.device), layouts, begins)
        return [t for t in tensors if t is not None]

    def _check_first(self, microbatch: int, flat: Sequence[torch.Tensor]) -> None:
        for spec, t in zip(self.module.inputs, flat, strict=True):
            if self.has_backward and t.requires_grad:
                raise InputError(
                    f"input {spec.name} requires grad; a pipeline gives no gradients of its inputs: detach it"
                )
        if not self.link.announced():
            chunks = self.feed if self.feed is not None else [flat] * (self.chunks or 1)
            self.link.announce([_signature(c) for c in chunks])
        if self.feed is None and _signature(flat) != self.link.signature(microbatch):
            raise InputError(
                f"micro-batch {microbatch} has other sizes than the first; give a batch that {self.chunks} divides, or "
                "use cleave's schedule(...).step, which takes it"
            )

    def _enter(self, m: int, tensors: list[torch.Tensor]) -> tuple[list[torch.Tensor], _Box | None]:
        """The tensors as the module gets them: differentiable where a gradient goes back."""
        layouts = self._in_layouts.get(m, [])
        if self.is_first or not self.has_backward:
            return tensors, None
        differentiable = [k for k, l in enumerate(layouts) if l is not None and l.grad]
        if not differentiable:
            return tensors, None
        box = _Box([tensors[k] for k in differentiable])
        for k, t in zip(differentiable, _Enter.apply(box.root, box), strict=True):  # type: ignore[no-untyped-call]
            tensors[k] = t
        return tensors, box

    def forward_one_chunk(
        self,
        fwd_chunk_id: int,
        args: tuple[Any, ...],
        kwargs: dict[str, Any] | None = None,
        save_forward_output: bool = True,
    ) -> Any:
        m, link = fwd_chunk_id, self.link
        tensors, box = self._enter(m, self._take_inputs(m, args, kwargs or {}))
        handed = tensors if self.is_first else [tensors[k] for k in self._take]
        link.running = f"stage {self.stage_index}, forward of micro-batch {m}"
        with self.forward_clock.time():
            outputs = tuple(self.submod(*handed))
        link.running = None
        layouts: list[Layout | None] = []
        if self.is_last:
            self.flat_outputs[m] = outputs
        else:
            layouts = [Layout.of(outputs[k], f"stage {self.stage_index}: {self.module.outputs[k].name}") for k in self._send]
            link.publish("forward", self.stage_index, link.signature(m), layouts, self._names)
        self._forwards[m] = outputs, box, layouts
        if not self.is_last:
            return outputs
        result = self.partitioned.pack_output(outputs)
        if save_forward_output:
            self.output_chunks.append(result)
        return result

    # ---- backward -------------------------------------------------------------------------------------------------

    def get_bwd_recv_ops(self, bwd_chunk_id: int) -> list[dist.P2POp]:
        m, link = bwd_chunk_id, self.link
        if not self.has_backward or self.is_last or link.rank_of[self.stage_index + 1] == link.rank:
            return []
        layouts = [l for l in self._forwards[m][2] if l and l.grad]
        if not layouts:
            return []
        sender = link.rank_of[self.stage_index + 1]
        link.waiting["backward", self.stage_index, m] = sender
        _, size = _wire.offsets([l.full_bytes for l in layouts])
        self._grad_message[m] = message = torch.empty(size, dtype=torch.uint8, device=link.wire)
        return link.receive("backward", self.stage_index, m, sender, message, self._tag(m, True, 1))

    def get_bwd_send_ops(self, bwd_chunk_id: int) -> list[dist.P2POp]:
        m, link = bwd_chunk_id, self.link
        if not self.has_backward or self.is_first or link.rank_of[self.stage_index - 1] == link.rank:
            return []
        grads = self._grads_out.pop(m)
        ins = [l for l in self._in_layouts.pop(m) if l and l.grad]
        if not ins:
            return []
        begins, size = _wire.offsets([l.full_bytes for l in ins])
        names = self._input_names
        layouts = [None if g is None else Layout.of(g, f"stage {self.stage_index}: a gradient") for g in grads]
        link.publish("backward", self.stage_index, link.signature(m), layouts, names)
        message = _wire.pack(grads, layouts, begins, size)
        return link.send(link.rank_of[self.stage_index - 1], message, self._tag(m, True))

    def get_local_bwd_output(self, mb_index: int) -> Any:
        return self._grads_out.pop(mb_index, ())

    def set_local_bwd_input(self, next_stage_bwd_outputs: Any, mb_index: int) -> None:
        self._grads_in[mb_index] = next_stage_bwd_outputs

    def _take_grads(self, m: int, layouts: Sequence[Layout | None]) -> Sequence[torch.Tensor | None]:
        """Gradients of the outputs that have one, in their order."""
        link, after = self.link, self.stage_index + 1
        if link.rank_of[after] == link.rank:
            return self._grads_in.pop(m)
        differentiable = [l for l in layouts if l and l.grad]
        if not differentiable:
            return ()
        told = link.layouts("backward", after, link.signature(m), _doing("backward", self.stage_index, m))
        begins, _ = _wire.offsets([l.full_bytes for l in differentiable])
        link.arrived("backward", self.stage_index, m)
        return _wire.unpack(self._grad_message.pop(m).to(self.device), told, begins)

    def backward_one_chunk(
        self, bwd_chunk_id: int, loss: Any = None, full_backward: bool = True, last_backward: bool = False
    ) -> None:
        """The whole backward, also where a schedule would do the part of the weights later: one pass gives both."""
        m = bwd_chunk_id
        if not self.has_backward:
            self._forwards.pop(m, None)
            return
        outputs, box, layouts = self._forwards.pop(m)
        if self.is_last:
            pairs = [(loss, None)] if isinstance(loss, torch.Tensor) and loss.requires_grad else []
        else:
            sent = [outputs[k] for k, l in zip(self._send, layouts, strict=True) if l and l.grad]
            pairs = [(t, g) for t, g in zip(sent, self._take_grads(m, layouts), strict=True) if g is not None]
        self._backward(m, pairs, box)
        if not self.is_first:
            ins = [l for l in self._in_layouts[m] if l and l.grad]
            self._grads_out[m] = box.grads if box is not None else (None,) * len(ins)

    def _backward(self, m: int, pairs: Sequence[tuple[torch.Tensor, torch.Tensor | None]], box: _Box | None) -> None:
        params = self.link.gradients.params(self.stage_index)
        wanted = [*params.values(), *([box.root] if box is not None else [])]
        grads: Sequence[torch.Tensor | None] = [None] * len(params)
        self.link.running = f"stage {self.stage_index}, backward of micro-batch {m}"
        with self.backward_clock.time():
            if pairs and wanted:
                roots, seeds = zip(*pairs, strict=True)
                grads = torch.autograd.grad(roots, wanted, seeds, allow_unused=True)[: len(params)]
        self.link.running = None
        self.link.gradients.add(self.stage_index, m, params, grads)

    def backward_weight_one_chunk(self, bwd_chunk_id: int, last_backward: bool = False) -> None:
        """Done with the rest in `backward_one_chunk`."""

    def scale_grads(self, grad_scale_factor: int) -> None:
        if self.has_backward:
            self.link.gradients.finish(self.stage_index, grad_scale_factor)

    def perform_reduce_grad(self, grad_scale_factor: int) -> None:
        self.scale_grads(grad_scale_factor)


def _signature(tensors: Sequence[torch.Tensor]) -> str:
    layouts = [Layout.of(t, "an input").text() for t in tensors]
    return hashlib.blake2b(json.dumps([*layouts, torch.is_grad_enabled()]).encode(), digest_size=8).hexdigest()


# ---- set-up -------------------------------------------------------------------------------------------------------


def _check_torch() -> None:
    release = tuple(int(x) for x in torch.__version__.split("+")[0].split(".")[:2])
    if not KNOWN[0] <= release <= KNOWN[1]:
        low, high = (".".join(map(str, k)) for k in KNOWN)
        raise PipelineError(f"pipelines run with torch {low} to {high}; this is {torch.__version__}")


def _default_device(backend: str) -> torch.device:
    if "nccl" in backend:
        return torch.device("cuda", torch.cuda.current_device())
    return torch.device("cpu")


def _wire_device(backend: str, device: torch.device) -> torch.device:
    """Where messages lie: gloo sends from the host, whatever the stages run on."""
    return device if device.type == "cpu" or "nccl" in backend else torch.device("cpu")


def _placement(partitioned: Partitioned, size: int, placement: Sequence[int] | None) -> list[int]:
    n = len(partitioned.device_of)
    rank_of = list(partitioned.device_of if placement is None else placement)
    if len(rank_of) != n:
        raise ArgumentError(f"placement has {len(rank_of)} ranks for {n} stages; give one rank for each stage")
    wrong = [r for r in rank_of if not 0 <= r < size]
    if wrong:
        raise PipelineError(
            f"the partition has a stage on device {wrong[0]}, but there are {size} processes; start as many as the "
            "partition has devices (nparts), or give a placement"
        )
    idle = sorted(set(range(size)) - set(rank_of))
    if idle:
        raise PipelineError(
            f"rank {idle[0]} has no stage: {n} stages lie on ranks {rank_of}, of {size}; start fewer processes, or give "
            "a placement or a group"
        )
    return rank_of


def _digest(p: torch.Tensor) -> str:
    raw = p.detach().cpu().contiguous().view(-1)
    return hashlib.blake2b(raw.view(torch.uint8).numpy().tobytes() if raw.numel() else b"", digest_size=8).hexdigest()


def _ties(partitioned: Partitioned, told: Sequence[dict[str, dict[str, Any]]]) -> list[Tied]:
    """Parameters that several stages hold: of one name, or named in `partitioned.tied`."""
    where: dict[str, list[tuple[int, str]]] = {}
    for stages in told:
        for i, names in stages.items():
            for n in names:
                where.setdefault(n, []).append((int(i), n))
    groups = [set(copies) for copies in where.values() if len(copies) > 1]
    trained = {copy for copies in where.values() for copy in copies}
    for copies in getattr(partitioned, "tied", ()):
        merged = {(int(i), str(n)) for i, n in copies} & trained
        if len({i for i, _ in merged}) < 2:
            continue
        for g in [g for g in groups if g & merged]:
            groups.remove(g)
            merged |= g
        groups.append(merged)
    return [Tied(sorted(g)[0][1], sorted(g)) for g in groups]


def _check_copies(ties: Sequence[Tied], told: Sequence[dict[str, dict[str, Any]]]) -> None:
    facts = {(int(i), n): f for stages in told for i, names in stages.items() for n, f in names.items()}
    for t in ties:
        first, *rest = t.copies
        for other in rest:
            if facts[other] != facts[first]:
                raise PipelineError(
                    f"stages {first[0]} and {other[0]} share the parameter {t.name}, but their copies differ "
                    f"({facts[first]} and {facts[other]}); load the same weights on every rank"
                )


def pipeline_stages(
    partitioned: Partitioned,
    *,
    group: dist.ProcessGroup | None = None,
    device: torch.device | str | None = None,
    placement: Sequence[int] | None = None,
    timeout: float = 30.0,
    longest_wait: float = 1800.0,
    exact: bool = True,
) -> list[Stage]:
    """The stages of this rank, for the schedules of torch.distributed.pipelining. Every rank of `group` calls it.

    A rank that gives no sign of life for `timeout` seconds ends the pipeline with a PipelineError on all others; so does
    a message that takes more than `longest_wait`. With `exact`, gradients are the same bits as those of one process that
    runs the micro-batches one after the other; without, they are added as they come, in less memory.
    """
    _check_torch()
    if not dist.is_initialized():
        raise PipelineError("call torch.distributed.init_process_group first, or start the program with torchrun")
    parent = group if group is not None else dist.group.WORLD
    assert parent is not None
    rank_of = _placement(partitioned, dist.get_world_size(parent), placement)
    ours = dist.new_group(  # of our own: waits in it are bounded, and aborting it ends nothing else
        dist.get_process_group_ranks(parent),
        timeout=timedelta(seconds=longest_wait),
        use_local_synchronization=True,
    )
    if not isinstance(ours, dist.ProcessGroup):
        raise PipelineError("this process is not in the group of the pipeline")
    backend = dist.get_backend_config(parent)
    where = torch.device(device) if device is not None else _default_device(backend)
    rank = dist.get_rank(ours)
    mine = [i for i, r in enumerate(rank_of) if r == rank]
    modules = {i: partitioned.stage(i, device=where) for i in mine}
    params = {i: dict(m.named_parameters()) for i, m in modules.items()}
    gradients = Gradients(params, exact)
    stages_of = [[i for i, r in enumerate(rank_of) if r == k] for k in range(dist.get_world_size(ours))]
    peers = Peers(ours, stages_of, timeout)
    _agree(partitioned, peers, gradients, rank_of, params, exact)
    link = _Link(peers, rank_of, gradients, _wire_device(backend, where))
    stages = [Stage(modules[i], where, link, partitioned) for i in mine]
    for s in stages:
        before = [b for b in stages if b.stage_index == s.stage_index - 1]
        s._neighbours = (before[0] if before else s,)
    return stages


def _agree(
    partitioned: Partitioned,
    peers: Peers,
    gradients: Gradients,
    rank_of: Sequence[int],
    params: dict[int, dict[str, torch.nn.Parameter]],
    exact: bool,
) -> None:
    """All ranks have the same partition; which parameters are shared."""
    facts = {
        "torch version": torch.__version__.split("+")[0],
        "placement of stages": list(rank_of),
        "partition": str(getattr(partitioned, "signature", "")),
        "option exact": exact,
    }
    listed = {n for copies in getattr(partitioned, "tied", ()) for _, n in copies}
    shapes = {
        i: {n: [list(p.shape), str(p.dtype)] for n, p in ps.items() if p.requires_grad} for i, ps in params.items()
    }
    told = peers.agree(facts, shapes)
    ties = _ties(partitioned, told)
    tied = {copy for t in ties for copy in t.copies}
    sums = {i: {n: _digest(p) for n, p in ps.items() if (i, n) in tied} for i, ps in params.items()}
    peers.tell(f"tied/{peers.rank}", sums)
    if ties or listed:
        digests = [peers.ask(f"tied/{r}", f"setting up, waiting for rank {r}") for r in range(peers.size)]
        _check_copies(ties, digests)
    gradients.tie(ties, rank_of, peers.group)


def sync_tied_gradients(stages: Sequence[Stage]) -> None:
    """Sums the gradients of parameters that several stages hold. PipelineRun.step does it; with a schedule of your own,
    call it on every rank after each step, before the optimizer."""
    stage = stages[0]
    stage.link.gradients.sync(stage.chunks or 1)


# ---- schedules ----------------------------------------------------------------------------------------------------

_ONE, _LOOP, _V, _FREE = "one stage on each rank", "stage i on rank i % ranks", "two stages on each rank, in a V", "any"
_PLACES = {
    "GPipe": _ONE,
    "1F1B": _ONE,
    "Interleaved1F1B": _LOOP,
    "LoopedBFS": _LOOP,
    "InterleavedZeroBubble": _LOOP,
    "ZBVZeroBubble": _V,
    "Free": _FREE,
}


def _fits(kind: str, rank_of: Sequence[int], size: int) -> bool:
    n = len(rank_of)
    if kind == _ONE:
        return sorted(rank_of) == list(range(size)) and n == size
    if kind == _LOOP:
        return n % size == 0 and all(r == i % size for i, r in enumerate(rank_of))
    if kind == _V:
        return list(rank_of) == [*range(size), *reversed(range(size))]
    return True


def _schedule_name(name: str | None, rank_of: Sequence[int], size: int, microbatches: int) -> str:
    fitting = [n for n, kind in _PLACES.items() if _fits(kind, rank_of, size)]
    if name is None:
        return _best(fitting, rank_of, size, microbatches)
    known = {n.lower(): n for n in _PLACES}
    short = known.get(name.lower().removeprefix("schedule"))
    if short is None:
        raise ArgumentError(f"there is no schedule {name!r}; there are {', '.join(_PLACES)}")
    if short not in fitting:
        raise ArgumentError(
            f"schedule {short} needs {_PLACES[short]}, but the stages are on ranks {list(rank_of)}; "
            f"schedules that can run this: {', '.join(fitting)}"
        )
    return short


def _best(fitting: Sequence[str], rank_of: Sequence[int], size: int, microbatches: int) -> str:
    rounds = max(1, microbatches // size)
    if "1F1B" in fitting:
        return "1F1B" if microbatches >= len(rank_of) else "GPipe"
    if "Interleaved1F1B" in fitting and microbatches % rounds == 0:
        return "Interleaved1F1B"
    return "Free"


def _free_order(rank_of: Sequence[int], size: int, microbatches: int) -> dict[int, list[Any]]:
    """What each rank does, in order, for any placement: whatever is ready, backward before forward, early micro-batches
    before later ones; a stage is at most as far ahead of its backward as the stages after it are many."""
    forward, full = engine._ComputationType.FORWARD, engine._ComputationType.FULL_BACKWARD
    last = len(rank_of) - 1
    f, b = [0] * len(rank_of), [0] * len(rank_of)  # micro-batches done, per stage
    order: dict[int, list[Any]] = {r: [] for r in range(size)}
    while min(b) < microbatches:
        done_f, done_b = list(f), list(b)
        for r in range(size):
            mine = [i for i in range(last + 1) if rank_of[i] == r]
            back = [i for i in mine if done_b[i] < (done_f[i] if i == last else done_b[i + 1])]
            ahead = [i for i in mine if done_f[i] < (microbatches if i == 0 else done_f[i - 1])]
            ahead = [i for i in ahead if done_f[i] - done_b[i] <= last - i]
            if back:
                i = min(back, key=lambda i: (done_b[i], -i))
                order[r].append(engine._Action(i, full, b[i]))
                b[i] += 1
            elif ahead:
                i = min(ahead, key=lambda i: (done_f[i], -i))
                order[r].append(engine._Action(i, forward, f[i]))
                f[i] += 1
    return order


def _make_schedule(name: str, stages: list[Stage], microbatches: int, **options: Any) -> Any:
    link = stages[0].link
    try:
        if name == "Free":
            free = engine._PipelineScheduleRuntime(stages, microbatches, **options)
            free._prepare_schedule_with_comms(_free_order(link.rank_of, link.peers.size, microbatches))
            return free
        made = getattr(pipelining, f"Schedule{name}")
        return made(stages[0] if _PLACES[name] == _ONE else stages, microbatches, **options)
    except ValueError as e:
        raise ArgumentError(f"schedule {name} with {microbatches} micro-batches: {e}") from e


def schedule(
    partitioned: Partitioned,
    name: str | None = None,
    *,
    microbatches: int,
    loss_fn: Callable[..., torch.Tensor] | None = None,
    scale_grads: bool = True,
    **options: Any,
) -> PipelineRun:
    """The partition on the ranks of a process group, ready to run steps. Every rank calls it.

    `name` is GPipe, 1F1B, Interleaved1F1B, LoopedBFS, InterleavedZeroBubble, ZBVZeroBubble or Free (any placement);
    None takes one that fits. `loss_fn(output, target)` makes it train; with `scale_grads` gradients are divided by the
    number of micro-batches, as a loss that is a mean asks for. Other options: see `pipeline_stages`.
    """
    if microbatches < 1:
        raise ArgumentError(f"microbatches is {microbatches}; give 1 or more")
    stages = pipeline_stages(partitioned, **options)
    link = stages[0].link
    chosen = _schedule_name(name, link.rank_of, link.peers.size, microbatches)
    run = PipelineRun(partitioned, stages, microbatches, loss_fn)
    run.name = chosen
    run.schedule = _make_schedule(
        chosen, stages, microbatches, loss_fn=run._loss if loss_fn is not None else None, scale_grads=scale_grads
    )
    return run


# ---- runs ---------------------------------------------------------------------------------------------------------


def _sizes(batch: int, parts: int) -> list[int]:
    return [batch // parts + (k < batch % parts) for k in range(parts)]


class PipelineRun:
    """A partition with a schedule: whole batches in, losses and outputs out.

    Inputs are needed on the rank of the first stage, targets on the rank of the last; other ranks may leave them out.
    """

    name: str
    schedule: Any

    def __init__(
        self, partitioned: Partitioned, stages: list[Stage], microbatches: int, loss_fn: Callable[..., torch.Tensor] | None
    ) -> None:
        self.partitioned, self.stages, self.microbatches = partitioned, stages, microbatches
        self._loss_fn, self._targets = loss_fn, [None] * microbatches
        self._link = stages[0].link
        self._dim = int(getattr(partitioned, "batch_dim", 0))
        self._link.own = self._link.wire.type == "cpu"
        self._first = next((s for s in stages if s.is_first), None)
        self._last = next((s for s in stages if s.is_last), None)
        self._steps = 0

    # ---- steps ----------------------------------------------------------------------------------------------------

    def step(self, *args: Any, target: Any = None, **kwargs: Any) -> list[torch.Tensor] | None:
        """One step of training: forward and backward of all micro-batches, gradients in `.grad` of the parameters.

        Gives the losses of the micro-batches on the rank of the last stage, None elsewhere.
        """
        if self._loss_fn is None:
            raise ArgumentError("this schedule has no loss_fn and cannot train; use eval, or give schedule a loss_fn")
        losses: list[torch.Tensor] = []
        self._give(args, kwargs, target)
        self._guarded(
            lambda: self.schedule.step(target=self._numbers(), losses=losses, return_outputs=False), sync=True
        )
        return [l.detach() for l in losses] if self._last is not None else None

    def eval(self, *args: Any, merge: bool = True, **kwargs: Any) -> Any:
        """Forward of all micro-batches. On the rank of the last stage it gives the model's output for the batch (with
        merge=False: a list, one output for each micro-batch), elsewhere None."""
        self._give(args, kwargs, None)
        with torch.no_grad():
            self._guarded(lambda: self.schedule.eval(target=self._numbers(), return_outputs=False), sync=False)
        if self._last is None:
            return None
        chunks = [self._last.flat_outputs.pop(m) for m in range(self.microbatches)]
        if not merge:
            return [self.partitioned.pack_output(c) for c in chunks]
        return self.partitioned.pack_output([self._merge(k, [c[k] for c in chunks]) for k in range(len(chunks[0]))])

    def _numbers(self) -> torch.Tensor | None:
        """Targets for the engine: it splits them into one number for each micro-batch, which `_loss` looks up."""
        return torch.arange(self.microbatches) if self._last is not None else None

    def _loss(self, output: Any, number: torch.Tensor) -> torch.Tensor:
        target = self._targets[int(number)]
        if not self._last or not self._last.has_backward:
            return torch.zeros(())
        assert self._loss_fn is not None
        self._link.running = f"loss of micro-batch {int(number)}"
        loss = self._loss_fn(output, target)
        self._link.running = None
        return loss

    def _guarded(self, run: Callable[[], Any], sync: bool) -> None:
        """Runs a step; what ends it is told as one error on every rank."""
        link = self._link
        if link.peers.lost:
            raise PipelineError(f"this pipeline has failed and cannot run again: {link.peers.lost}")
        self._steps += 1
        link.running, link.peers.busy = None, True
        try:
            run()
            link.flush()
            if sync:
                sync_tied_gradients(self.stages)
        except Exception as e:
            link.peers.busy = False
            raise link.blame(e) from e
        finally:
            link.peers.busy = False
        if self._steps == 1:
            for s in self.stages:  # the first step warms up
                self._first_times = True
                s.first = (s.forward_clock.times(), s.backward_clock.times())  # type: ignore[attr-defined]
                s.forward_clock.clear()
                s.backward_clock.clear()

    # ---- batches --------------------------------------------------------------------------------------------------

    def _give(self, args: tuple[Any, ...], kwargs: dict[str, Any], target: Any) -> None:
        """Splits inputs for the first stage and targets for the last."""
        if self._first is not None:
            self._first.feed = self._split_inputs(args, kwargs)
        if self._last is not None and self._loss_fn is not None:
            self._targets = self._split_target(target)

    def _split_inputs(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> list[Sequence[torch.Tensor]]:
        assert self._first is not None
        flat = self.partitioned.unpack_inputs(args, kwargs)
        specs = self._first.module.inputs
        if len(flat) != len(specs):
            raise InputError(f"the model takes {len(specs)} tensors, {len(flat)} are given")
        batched = {s.name: t for s, t in zip(specs, flat, strict=True) if s.is_batched}
        sizes = {n: t.shape[self._dim] for n, t in batched.items()}
        if len(set(sizes.values())) > 1:
            raise InputError(f"inputs disagree on the batch size: {sizes}")
        batch = next(iter(sizes.values()), self.microbatches)
        if batch < self.microbatches:
            raise InputError(f"a batch of {batch} cannot be split into {self.microbatches} micro-batches")
        parts = _sizes(batch, self.microbatches)
        split = [t.split(parts, self._dim) if s.is_batched else [t] * len(parts) for s, t in zip(specs, flat, strict=True)]
        return [[t[m] for t in split] for m in range(len(parts))]

    def _split_target(self, target: Any) -> list[Any]:
        """Tensors of the target are split along the batch; all else goes to every micro-batch whole."""
        leaves, tree = pytree.tree_flatten(target)
        tensors = [t for t in leaves if isinstance(t, torch.Tensor) and t.dim() > self._dim]
        if not tensors:
            return [target] * self.microbatches
        batch = tensors[0].shape[self._dim]
        parts = _sizes(batch, self.microbatches)

        def cut(t: Any) -> Sequence[Any]:
            if isinstance(t, torch.Tensor) and t.dim() > self._dim and t.shape[self._dim] == batch:
                return t.split(parts, self._dim)
            return [t] * len(parts)

        pieces = [cut(t) for t in leaves]
        return [pytree.tree_unflatten([p[m] for p in pieces], tree) for m in range(len(parts))]

    def _merge(self, k: int, chunks: list[torch.Tensor]) -> torch.Tensor:
        assert self._last is not None
        spec = self._last.module.outputs[k]
        if spec.is_batched:
            return torch.cat(chunks, self._dim)
        if all(c.shape == chunks[0].shape and torch.equal(c, chunks[0]) for c in chunks[1:]):
            return chunks[0]
        raise PipelineError(
            f"output {spec.name} is not split along the batch and differs between micro-batches, so there is no one value "
            "for the batch; eval(..., merge=False) gives the outputs of each micro-batch"
        )

    # ---- times ----------------------------------------------------------------------------------------------------

    def report(self) -> str | None:
        """A table of the stages: predicted and measured milliseconds for one micro-batch. Every rank calls it; rank 0
        gets the text, the others None."""
        peers = self._link.peers
        own = {}
        for s in self.stages:
            first = getattr(s, "first", ([], []))
            own[s.stage_index] = [
                _median(s.forward_clock.times() or first[0]),
                _median(s.backward_clock.times() or first[1]),
            ]
        peers.tell(f"times/{self._steps}/{peers.rank}", own)
        if peers.rank != 0:
            return None
        measured: dict[int, list[float | None]] = {}
        for r in range(peers.size):
            told = peers.ask(f"times/{self._steps}/{r}", f"waiting for the times of rank {r}")
            measured.update({int(i): t for i, t in told.items()})
        return _table(measured, self._link.rank_of, getattr(self.partitioned, "predicted", None))

    def close(self) -> None:
        """Leaves the pipeline. The others may still end what does not need this rank."""
        self._link.peers.close()


def _median(times: Sequence[float]) -> float | None:
    return median(times) if times else None


def _table(measured: dict[int, list[float | None]], rank_of: Sequence[int], predicted: Any) -> str:
    def cell(x: float | None) -> str:
        return "-" if x is None else f"{x:.3f}"

    def ratio(got: float | None, said: float | None) -> str:
        return "-" if got is None or not said else f"{got / said:.2f}"

    head = ["stage", "rank", "forward ms", "predicted", "ratio", "backward ms", "predicted", "ratio"]
    rows = []
    for i, (f, b) in sorted(measured.items()):
        said = predicted[i] if predicted is not None else (None, None)
        rows.append([str(i), str(rank_of[i]), cell(f), cell(said[0]), ratio(f, said[0])])
        rows[-1] += [cell(b), cell(said[1]), ratio(b, said[1])]
    widths = [max(len(r[k]) for r in [head, *rows]) for k in range(len(head))]
    return "\n".join("  ".join(c.rjust(w) for c, w in zip(r, widths, strict=True)) for r in [head, *rows])

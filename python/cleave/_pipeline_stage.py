"""Stages of a partition as stages of torch.distributed.pipelining.

torch's stages send a gradient for every value, need one size for all micro-batches, and their private methods differ
from release to release. `Stage` keeps only what schedules call (see its methods, the same in torch 2.11 to 2.13) and
does the rest itself: one message of bytes per boundary (`_wire.py`), whose layout the sender tells once through the
store (`_peers.py`); gradients for what has them; sums in the order of one process (`_gradients.py`).
"""

from __future__ import annotations

import hashlib
import json
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any, Protocol

import torch
import torch.distributed as dist
from torch.distributed import pipelining

from . import _wire
from ._gradients import Gradients
from ._peers import Peers
from ._wire import Layout
from .errors import InputError, PipelineError

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


class Link:
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
            told = self.peers.ask(
                f"step/{self.step}", f"waiting for step {self.step} to begin on rank {self.rank_of[0]}"
            )
            if told["train"] != self.train:
                modes = {True: "trains", False: "only runs forward"}
                raise PipelineError(
                    f"step {self.step}: rank {self.rank_of[0]} {modes[told['train']]}, rank {self.rank} "
                    f"{modes[self.train]}; call the same method on every rank"
                )
            self._signatures = told["signatures"]
        return self._signatures[microbatch]

    def publish(
        self, kind: str, stage: int, signature: str, layouts: list[Layout | None], names: Sequence[str]
    ) -> None:
        """Tells the neighbour what messages of this kind look like; checks that they stay so."""
        key = (kind, stage, signature)
        known = self._layouts.get(key)
        if known is None:
            self._layouts[key] = layouts
            self.peers.tell("/".join(map(str, key)), [lay and lay.text() for lay in layouts])
        elif known != layouts:
            k = next(k for k in range(len(layouts)) if known[k] != layouts[k])
            raise PipelineError(
                f"stage {stage}: {kind} of {names[k]} was {known[k]} and is now {layouts[k]}, though the micro-batch "
                "has the same sizes; if parameters were frozen or thawed meanwhile, make a new schedule"
            )

    def layouts(self, kind: str, stage: int, signature: str, doing: str) -> list[Layout | None]:
        key = (kind, stage, signature)
        if key not in self._layouts:
            told = self.peers.ask("/".join(map(str, key)), doing)
            self._layouts[key] = [lay and Layout.parse(lay) for lay in told]
        return self._layouts[key]

    def blame(self, e: BaseException) -> PipelineError:
        """The error to raise for one that ended a step; the other ranks learn of it."""
        me = self.peers.name(self.rank)
        if self.running is not None:
            why = f"rank {self.rank}: {self.running} raised {type(e).__name__}: {last_line(e)}"
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
        who = self.peers.name(peer) if peer is not None else "a rank"
        why = self.peers.culprit(3.0) or f"{who} did not answer ({last_line(e)})"
        self.peers.fail(why)
        return PipelineError(f"{why} while {me} was {doing}")


def _doing(what: str, stage: int, microbatch: int) -> str:
    return f"waiting for the {what} of micro-batch {microbatch} for stage {stage}"


def last_line(e: BaseException) -> str:
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
    def forward(ctx: Any, root: torch.Tensor, box: _Box) -> tuple[torch.Tensor, ...]:
        ctx.box = box
        ctx.set_materialize_grads(False)
        tensors, box.tensors = box.tensors, []
        return tuple(tensors)

    @staticmethod
    def backward(ctx: Any, *grads: torch.Tensor | None) -> tuple[None, None]:
        ctx.box.grads = grads
        return None, None


class Clock:
    """Times of one kind of work, in milliseconds."""

    def __init__(self, device: torch.device) -> None:
        self._cuda = device.type == "cuda"
        self._marks: list[tuple[Any, Any]] = []
        self._warm: list[tuple[Any, Any]] = []

    @contextmanager
    def time(self) -> Iterator[None]:
        begin = self._mark()
        yield
        self._marks.append((begin, self._mark()))

    def _mark(self) -> Any:
        if not self._cuda:
            return time.perf_counter()
        event = torch.cuda.Event(enable_timing=True)  # type: ignore[no-untyped-call]
        event.record()
        return event

    def warm(self) -> None:
        """What was timed so far was warming up; it counts only if nothing follows."""
        self._warm, self._marks = self._marks, []

    def times(self) -> list[float]:
        marks = self._marks or self._warm
        if self._cuda:
            torch.cuda.synchronize()
            return [a.elapsed_time(b) for a, b in marks]
        return [1e3 * (b - a) for a, b in marks]


def _unique(specs: Sequence[ValueSpec]) -> tuple[list[int], list[int]]:
    """A value that crosses twice is sent once: positions of the values to send; for each position, which of them."""
    first: dict[str, int] = {}
    send: list[int] = []
    of: list[int] = []
    for k, s in enumerate(specs):
        if s.name not in first:
            first[s.name] = len(send)
            send.append(k)
        of.append(first[s.name])
    return send, of


class Stage(pipelining.PipelineStage):
    """One stage of a partition, for the schedules of torch.distributed.pipelining."""

    def __init__(self, module: StageModule, device: torch.device, link: Link, partitioned: Partitioned) -> None:
        super().__init__(module, module.index, module.nstages, device, group=link.group)  # type: ignore[arg-type]
        self.link, self.partitioned, self.module = link, partitioned, module
        self.stage_index_to_group_rank = dict(enumerate(link.rank_of))
        self.feed: list[Sequence[torch.Tensor]] | None = (
            None  # inputs of the micro-batches, where PipelineRun gives them
        )
        self.flat_outputs: dict[int, tuple[torch.Tensor, ...]] = {}  # last stage: by micro-batch
        self.forward_clock, self.backward_clock = Clock(device), Clock(device)
        self._send, _ = _unique(module.outputs)
        _, self._take = _unique(module.inputs)
        self._names = [module.outputs[k].name for k in self._send]
        self._input_names = [module.inputs[k].name for k in _unique(module.inputs)[0]]
        self.before: Stage | None = None  # the stage before, where it is on this rank
        self._steps = 0
        self._arrived: dict[int, tuple[torch.Tensor, list[Layout | None]]] = {}
        self._forwards: dict[int, tuple[tuple[torch.Tensor, ...], _Box | None, list[Layout | None]]] = {}
        self._grad_message: dict[int, torch.Tensor] = {}
        self._grads_in: dict[int, tuple[torch.Tensor | None, ...]] = {}  # from a stage on this rank
        self._grads_out: dict[int, tuple[torch.Tensor | None, ...]] = {}
        self._in_layouts: dict[int, list[Layout | None]] = {}

    # ---- what schedules call before a step ------------------------------------------------------------------------

    def clear_runtime_states(self) -> None:
        self._steps += 1
        self.link.begin(self._steps, self.has_backward)
        if self.has_backward:
            self.link.gradients.begin(self.stage_index)
        for d in (self._arrived, self._forwards, self._grad_message, self._grads_in, self._grads_out, self._in_layouts):
            d.clear()
        self.flat_outputs.clear()
        self.output_chunks.clear()

    def _prepare_forward_infra(self, num_microbatches: int, *args: Any, **kwargs: Any) -> Any:
        """Sizes are told with the first message that has them; nothing is run to find them."""
        self.chunks = num_microbatches
        self.args_recv_info = dict.fromkeys(range(num_microbatches), ())
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
        layouts = link.layouts(
            "forward", self.stage_index - 1, link.signature(m), _doing("forward", self.stage_index, m)
        )
        _, size = _wire.offsets([lay.bytes for lay in layouts if lay])
        message = torch.empty(size, dtype=torch.uint8, device=link.wire)
        self._arrived[m] = message, layouts
        return link.receive("forward", self.stage_index, m, sender, message, self._tag(m, False))

    def _pack_outputs(self, microbatch: int) -> tuple[torch.Tensor, list[Layout | None]]:
        outputs, _, layouts = self._forwards[microbatch]
        begins, size = _wire.offsets([lay.bytes for lay in layouts if lay])
        return _wire.pack([outputs[k] for k in self._send], layouts, begins, size), layouts

    def get_fwd_send_ops(self, fwd_chunk_id: int) -> list[dist.P2POp]:
        m, link = fwd_chunk_id, self.link
        if self.is_last or link.rank_of[self.stage_index + 1] == link.rank:
            return []
        message, _ = self._pack_outputs(m)
        return link.send(link.rank_of[self.stage_index + 1], message, self._tag(m, False, 1))

    def set_local_fwd_input(self, prev_stage_outputs: Any, mb_index: int) -> None:
        """From the stage before, on this rank. A copy: either stage may write it in place."""
        assert self.before is not None
        self._arrived[mb_index] = self.before._pack_outputs(mb_index)

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
        begins, _ = _wire.offsets([lay.bytes for lay in layouts if lay])
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
            self.link.announce([signature_of(c) for c in chunks])
        if self.feed is None and signature_of(flat) != self.link.signature(microbatch):
            raise InputError(
                f"micro-batch {microbatch} has other sizes than the first; give a batch that {self.chunks} divides, or "
                "use cleave's schedule(...).step, which takes it"
            )

    def _enter(self, m: int, tensors: list[torch.Tensor]) -> tuple[list[torch.Tensor], _Box | None]:
        """The tensors as the module gets them: differentiable where a gradient goes back."""
        layouts = self._in_layouts.get(m, [])
        if self.is_first or not self.has_backward:
            return tensors, None
        differentiable = [k for k, lay in enumerate(layouts) if lay is not None and lay.grad]
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
            layouts = [
                Layout.of(outputs[k], f"stage {self.stage_index}: {self.module.outputs[k].name}") for k in self._send
            ]
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
        layouts = [lay for lay in self._forwards[m][2] if lay and lay.grad]
        if not layouts:
            return []
        sender = link.rank_of[self.stage_index + 1]
        link.waiting["backward", self.stage_index, m] = sender
        _, size = _wire.offsets([lay.full_bytes for lay in layouts])
        self._grad_message[m] = message = torch.empty(size, dtype=torch.uint8, device=link.wire)
        return link.receive("backward", self.stage_index, m, sender, message, self._tag(m, True, 1))

    def get_bwd_send_ops(self, bwd_chunk_id: int) -> list[dist.P2POp]:
        m, link = bwd_chunk_id, self.link
        if not self.has_backward or self.is_first or link.rank_of[self.stage_index - 1] == link.rank:
            return []
        grads = self._grads_out.pop(m)
        ins = [lay for lay in self._in_layouts.pop(m) if lay and lay.grad]
        if not ins:
            return []
        begins, size = _wire.offsets([lay.full_bytes for lay in ins])
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
        differentiable = [lay for lay in layouts if lay and lay.grad]
        if not differentiable:
            return ()
        told = link.layouts("backward", after, link.signature(m), _doing("backward", self.stage_index, m))
        begins, _ = _wire.offsets([lay.full_bytes for lay in differentiable])
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
        pairs: list[tuple[torch.Tensor, torch.Tensor | None]]
        if self.is_last:
            pairs = [(loss, None)] if isinstance(loss, torch.Tensor) and loss.requires_grad else []
        else:
            sent = [outputs[k] for k, lay in zip(self._send, layouts, strict=True) if lay and lay.grad]
            pairs = [(t, g) for t, g in zip(sent, self._take_grads(m, layouts), strict=True) if g is not None]
        self._backward(m, pairs, box)
        if not self.is_first:
            ins = [lay for lay in self._in_layouts[m] if lay and lay.grad]
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


def signature_of(tensors: Sequence[torch.Tensor]) -> str:
    layouts = [Layout.of(t, "an input").text() for t in tensors]
    return hashlib.blake2b(json.dumps([*layouts, torch.is_grad_enabled()]).encode(), digest_size=8).hexdigest()

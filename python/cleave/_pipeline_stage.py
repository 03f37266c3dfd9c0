"""Stages of a partition as stages of torch.distributed.pipelining.

torch's stages send a gradient for every value, need one size for all micro-batches, and their private methods differ
from release to release. `Stage` keeps only what schedules call (see its methods, the same in torch 2.11 to 2.13) and
does the rest itself: one message of bytes per boundary (`_wire.py`), whose layout the sender tells once through the
store (`_peers.py`); gradients for what has them; sums in the order of one process (`_gradients.py`).
"""

from __future__ import annotations

import functools
import hashlib
import json
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, Concatenate, NamedTuple, ParamSpec, TypeVar

import torch
import torch.distributed as dist
from torch.distributed import pipelining

from . import _wire
from ._capture import each
from ._gradients import Gradients, Tied
from ._peers import BrokenConnection, Peers, Wait
from ._pipeline_plan import PlanStages
from ._stages import Returned
from ._stages import Stage as StageModule
from ._wire import Layout
from .errors import CleaveError, GuardError, InputError, PipelineError, first_line

P = ParamSpec("P")
T = TypeVar("T")

KEPT_STEPS = 64  # announcements of steps that stay in the store; no rank can be so far behind another


# ---- one rank's connections ---------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Crossing:
    """What goes over a boundary: the layouts of what is sent, and for each value which of them it is."""

    layouts: tuple[Layout | None, ...]  # None: a gradient that is not there
    of: tuple[int, ...]

    @staticmethod
    def between(tensors: Sequence[torch.Tensor], what: str) -> tuple[Crossing, list[torch.Tensor]]:
        """A tensor that crosses twice is sent once. Gives the tensors to send too."""
        first: dict[int, int] = {}
        of = [first.setdefault(id(t), len(first)) for t in tensors]
        send = [tensors[of.index(k)] for k in range(len(first))]
        return Crossing(tuple(Layout.of(t, what) for t in send), tuple(of)), send

    def text(self) -> list[Any]:
        return [[lay and lay.text() for lay in self.layouts], self.of]

    @staticmethod
    def parse(text: list[Any]) -> Crossing:
        layouts, of = text
        return Crossing(tuple(lay and Layout.parse(lay) for lay in layouts), tuple(of))

    def slots(self) -> tuple[list[int], int]:
        """Where each begins in the message, and the size of the message."""
        return _wire.offsets([lay.bytes for lay in self.layouts if lay])

    def differentiable(self) -> list[int]:
        return [k for k, lay in enumerate(self.layouts) if lay and lay.grad]

    def grad_slots(self, more: Sequence[Tied]) -> tuple[list[int], int]:
        """The same for the gradients, whose strides may be others, and sums of shared parameters after them."""
        own = [lay.full_bytes for lay in self.layouts if lay and lay.grad]
        return _wire.offsets([*own, *[t.bytes for t in more]])


class MicroBatch(NamedTuple):
    """What the first stage tells the others of a micro-batch."""

    signature: str  # micro-batches with the same have messages that look the same
    sizes: dict[str, int]
    variant: int  # which plans of the partition serve it
    late: bool  # a guard may still object, when a stage meets it


class Refused(InputError):
    """The first stage does not take the inputs of a step: no rank runs it, all may go on."""


class Link:
    """What the stages of one rank share."""

    def __init__(self, peers: Peers, rank_of: Sequence[int], gradients: Gradients, wire: torch.device) -> None:
        self.peers, self.rank_of, self.gradients, self.wire = peers, rank_of, gradients, wire
        self.group, self.rank = peers.group, peers.rank
        self.step = 0
        self.train = False
        self._told: list[MicroBatch] | None = None  # of this step
        self.rows: list[int] | None = None  # entries of the batch in each; None: there is no batch
        self._crossings: dict[tuple[str, int, str], Crossing] = {}
        self.waiting: dict[tuple[str, int, int], int] = {}  # (what, stage, micro-batch) → rank that has to send it
        self.flushed = False  # a PipelineRun calls `flush` after each step
        self._own = False  # messages are sent and waited for here, not by the engine
        self._receives: dict[tuple[str, int, int], Wait] = {}
        self._sends: list[Wait] = []

    def begin(self, step: int, train: bool) -> None:
        if step == self.step:
            return  # another stage of this rank was first
        if self.peers.lost:
            raise PipelineError(f"this pipeline has failed and cannot run again: {self.peers.lost}")
        self.flush()
        self.step, self.train, self._told = step, train, None
        self._own = self.wire.type == "cpu" and (train or self.flushed)
        self.peers.unseen = not self._own
        self.waiting.clear()
        self._receives.clear()

    # ---- messages -------------------------------------------------------------------------------------------------

    def receive(self, what: str, stage: int, m: int, sender: int, message: torch.Tensor, tag: int) -> list[dist.P2POp]:
        """Receives a message into `message`; `arrived` waits for it, or else the engine for what this gives."""
        if not message.numel():
            return []
        if not self._own:
            return [dist.P2POp(dist.irecv, message, group=self.group, group_peer=sender, tag=tag)]
        self._receives[what, stage, m] = self.peers.receive(message, sender, tag, _doing(what, stage, m))
        return []

    def arrived(self, what: str, stage: int, m: int) -> None:
        wait = self._receives.pop((what, stage, m), None)
        if wait is not None:
            self.peers.take(wait)
        self.waiting.pop((what, stage, m), None)

    def send(self, to: int, message: torch.Tensor, tag: int) -> list[dist.P2POp]:
        if not message.numel():
            return []
        message = message.to(self.wire)
        if not self._own:
            return [dist.P2POp(dist.isend, message, group=self.group, group_peer=to, tag=tag)]
        self._sends = [w for w in self._sends if not w.done.is_set() or w.error]
        self._sends.append(self.peers.send(message, to, tag))
        return []

    def reconnect(self) -> None:
        """New connections, on which no message of a step that ended early can arrive."""
        self.peers = self.peers.reconnected(self.step)
        self.group = self.peers.group
        self.gradients.reconnect(self.peers)
        self._crossings.clear()
        self._sends.clear()
        self._receives.clear()

    def flush(self) -> None:
        """Waits until all messages of a step are taken."""
        for wait in self._sends:
            self.peers.finish(wait)
        self._sends.clear()

    # ---- what messages look like ----------------------------------------------------------------------------------

    def announce(self, microbatches: list[MicroBatch], rows: list[int] | None) -> None:
        """The first stage says what the micro-batches of this step are."""
        self._told, self.rows = microbatches, rows
        self.peers.tell(f"step/{self.step}", {"train": self.train, "microbatches": microbatches, "rows": rows})
        self.peers.forget(f"step/{self.step - KEPT_STEPS}")

    def refuse(self, why: str) -> None:
        """The first stage tells the others that this step does not run."""
        self.peers.tell(f"step/{self.step}", {"refused": why})

    @property
    def late(self) -> bool:
        """A guard may end this step."""
        self.told(0)
        return any(m.late for m in self._told or ())

    def announced(self) -> bool:
        return self._told is not None

    def told(self, microbatch: int) -> MicroBatch:
        if self._told is None:
            first = self.rank_of[0]
            told = self.peers.ask(f"step/{self.step}", f"waiting for step {self.step} to begin on rank {first}", first)
            if "refused" in told:
                raise Refused(told["refused"])
            if told["train"] != self.train:
                modes = {True: "trains", False: "only runs forward"}
                raise PipelineError(
                    f"step {self.step}: rank {first} {modes[told['train']]}, rank {self.rank} "
                    f"{modes[self.train]}; call the same method on every rank"
                )
            self._told, self.rows = [MicroBatch(*m) for m in told["microbatches"]], told["rows"]
        return self._told[microbatch]

    def signature(self, microbatch: int) -> str:
        return self.told(microbatch).signature

    def publish(self, kind: str, stage: int, signature: str, crossing: Crossing, name: Callable[[int], str]) -> None:
        """Tells the neighbour what messages of this kind look like; checks that they stay so."""
        key = (kind, stage, signature)
        known = self._crossings.setdefault(key, crossing)
        if known is crossing:
            self.peers.tell("/".join(map(str, key)), crossing.text())
        elif known != crossing:
            pairs = zip(known.layouts, crossing.layouts, strict=False)
            k, (was, now) = next(((k, p) for k, p in enumerate(pairs) if p[0] != p[1]), (0, (known, crossing)))
            raise PipelineError(
                f"stage {stage}: {kind} of {name(k)} was {was} and is now {now}, though the micro-batch has the same "
                "sizes; if parameters were frozen or thawed meanwhile, make a new schedule"
            )

    def crossing(self, kind: str, stage: int, signature: str, doing: str) -> Crossing:
        key = (kind, stage, signature)
        if key not in self._crossings:
            self._crossings[key] = Crossing.parse(self.peers.ask("/".join(map(str, key)), doing, self.rank_of[stage]))
        return self._crossings[key]

    # ---- errors ---------------------------------------------------------------------------------------------------

    @contextmanager
    def working(self, what: str) -> Iterator[None]:
        """Around the user's code: what it raises becomes a PipelineError with the place."""
        try:
            yield
        except Exception as e:
            raise PipelineError(f"rank {self.rank}: {what} raised {type(e).__name__}: {first_line(e)}") from e

    @contextmanager
    def guard(self) -> Iterator[None]:
        """Whatever ends a step is reported as the same error on every rank."""
        try:
            yield
        except Refused:
            raise
        except Exception as e:
            self.peers.busy = False
            known = self._known(e)
            again = isinstance(e.__cause__, GuardError) and self._own and self._told is not None and self.late
            self.peers.fail(f"{'' if isinstance(e, PipelineError) else f'rank {self.rank}: '}{known}", again)
            if known is e:
                raise
            raise known from (e.__cause__ if isinstance(e, BrokenConnection) else e)

    def _known(self, e: Exception) -> Exception:
        """The error to raise for one that ended a step."""
        peer: int | None
        if isinstance(e, BrokenConnection):
            doing, peer = e.doing, e.peer
        elif isinstance(e, RuntimeError) and not isinstance(e, CleaveError):  # from the engine, which waited
            where, peer = next(iter(self.waiting.items()), (None, None))
            doing = _doing(*where) if where is not None else "waiting for its messages to be taken"
        else:
            return e
        who = self.peers.name(peer) if peer is not None else "a rank"
        self.peers.lost = why = self.peers.lost_rank(peer) or f"{who} did not answer ({first_line(e)})"
        return PipelineError(f"{why} while {self.peers.name(self.rank)} was {doing}")


def _doing(what: str, stage: int, microbatch: int) -> str:
    return f"waiting for the {what} of micro-batch {microbatch} for stage {stage}"


# ---- stages -------------------------------------------------------------------------------------------------------


class _Box:
    """The tensors that come into a stage; their gradients after the backward."""

    def __init__(self, tensors: list[torch.Tensor]) -> None:
        self.tensors = tensors
        self.grads: tuple[torch.Tensor | None, ...] = (None,) * len(tensors)
        self.root = torch.empty(0, requires_grad=True)


class _Forward(NamedTuple):
    """What the backward of a micro-batch needs of its forward."""

    send: list[torch.Tensor]
    box: _Box | None
    crossing: Crossing


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
        """The times so far were of warming up; they count only if none follow."""
        self._warm, self._marks = self._marks, []

    def times(self) -> list[float]:
        marks = self._marks or self._warm
        if self._cuda:
            torch.cuda.synchronize()
            return [a.elapsed_time(b) for a, b in marks]
        return [1e3 * (b - a) for a, b in marks]


def _guarded(method: Callable[Concatenate[Stage, P], T]) -> Callable[Concatenate[Stage, P], T]:
    """For methods that schedules call: they raise the errors of a pipeline, whoever made the schedule."""

    @functools.wraps(method)
    def call(stage: Stage, /, *args: P.args, **kwargs: P.kwargs) -> T:
        with stage.link.guard():
            return method(stage, *args, **kwargs)

    return call


class Stage(pipelining.PipelineStage):
    """One stage of a partition, for the schedules of torch.distributed.pipelining."""

    def __init__(self, module: StageModule, device: torch.device, link: Link, partitioned: PlanStages) -> None:
        super().__init__(module, module.index, module.nstages, device, group=link.group)
        self.link, self.partitioned, self.module = link, partitioned, module
        self.stage_index_to_group_rank = dict(enumerate(link.rank_of))
        self.feed: list[list[torch.Tensor]] | None = None  # inputs of the micro-batches, where PipelineRun gives them
        self.told: list[MicroBatch] | None = None  # and what the others have to know of them
        self.rows: list[int] | None = None  # and how many entries of the batch each has
        # last stage: tensors, the model's output, and how it is made of them
        self.results: dict[int, tuple[tuple[torch.Tensor, ...], Any, Returned]] = {}
        self.forward_clock, self.backward_clock = Clock(device), Clock(device)
        self.before: Stage | None = None  # the stage before, where it is on this rank
        self.undo: Any = None  # what a step changes, as it was before, where a guard may end it
        self._steps = 0
        self._arrived: dict[int, tuple[torch.Tensor, Crossing]] = {}
        self._forwards: dict[int, _Forward] = {}
        self._grad_message: dict[int, torch.Tensor] = {}
        self._grads_in: dict[int, tuple[torch.Tensor | None, ...]] = {}  # from a stage on this rank
        self._grads_out: dict[int, tuple[torch.Tensor | None, ...]] = {}
        self._ins: dict[int, Crossing] = {}

    def skip(self) -> None:
        """Counts a step that is not run."""
        self._steps += 1
        self.link.begin(self._steps, False)

    # ---- what schedules call before a step ------------------------------------------------------------------------

    @_guarded
    def clear_runtime_states(self) -> None:
        self._steps += 1
        self.link.begin(self._steps, self.has_backward)
        if self.has_backward:
            self.link.gradients.begin(self.stage_index)
        for d in (self._arrived, self._forwards, self._grad_message, self._grads_in, self._grads_out, self._ins):
            d.clear()
        self.results.clear()
        self.output_chunks.clear()
        self.undo = None

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

    @_guarded
    def get_fwd_recv_ops(self, fwd_chunk_id: int) -> list[dist.P2POp]:
        m, link = fwd_chunk_id, self.link
        if self.is_first or link.rank_of[self.stage_index - 1] == link.rank:
            return []
        sender = link.rank_of[self.stage_index - 1]
        link.waiting["forward", self.stage_index, m] = sender
        doing = _doing("forward", self.stage_index, m)
        crossing = link.crossing("forward", self.stage_index - 1, link.signature(m), doing)
        message = torch.empty(crossing.slots()[1], dtype=torch.uint8, device=link.wire)
        self._arrived[m] = message, crossing
        return link.receive("forward", self.stage_index, m, sender, message, self._tag(m, False))

    def _pack_outputs(self, microbatch: int) -> tuple[torch.Tensor, Crossing]:
        forward = self._forwards[microbatch]
        begins, size = forward.crossing.slots()
        return _wire.pack(forward.send, forward.crossing.layouts, begins, size), forward.crossing

    @_guarded
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
            return self._moved(flat)
        link.arrived("forward", self.stage_index, m)
        message, crossing = self._arrived.pop(m)
        self._ins[m] = crossing
        tensors = _wire.unpack(message.to(self.device), crossing.layouts, crossing.slots()[0])
        return [t for t in tensors if t is not None]

    def _moved(self, tensors: Sequence[torch.Tensor]) -> list[torch.Tensor]:
        """On the device of the stage; what is one tensor stays one."""
        return each(tensors, lambda t: t.to(self.device))

    def _check_first(self, microbatch: int, flat: Sequence[torch.Tensor]) -> None:
        if self.has_backward:
            self.check_leaves(flat)
        if not self.link.announced():
            self.link.announce(self.told or [self.look(flat)] * (self.chunks or 1), self.rows)
        if self.feed is None and self.look(flat).signature != self.link.signature(microbatch):
            raise InputError(
                f"micro-batch {microbatch} has other sizes than the first, or its data leads elsewhere; use cleave's "
                "schedule(...).step, which takes it"
            )

    def look(self, tensors: Sequence[torch.Tensor]) -> MicroBatch:
        """What the other stages have to know of a micro-batch; raises what is wrong with it."""
        sizes, tensors = self.partitioned.sizes_of(tensors), self._moved(tensors)
        variant, late = self.partitioned.choose(self.module, tensors)
        return MicroBatch(self._signature(tensors, variant), sizes, variant, late)

    def check_leaves(self, flat: Sequence[torch.Tensor]) -> None:
        for spec, t in zip(self.module.inputs, flat, strict=True):
            if t.requires_grad:
                raise InputError(
                    f"input {spec.name} requires grad; a pipeline gives no gradients of its inputs: detach it"
                )

    def _signature(self, tensors: Sequence[torch.Tensor], variant: int) -> str:
        """Says when messages look the same."""
        layouts = [Layout.of(t, "an input").text() for t in tensors]
        text = json.dumps([layouts, torch.is_grad_enabled(), self.submod.training, variant])
        return hashlib.blake2b(text.encode(), digest_size=8).hexdigest()

    def _enter(self, m: int, tensors: list[torch.Tensor]) -> tuple[list[torch.Tensor], _Box | None]:
        """The tensors as the module gets them: differentiable where a gradient goes back."""
        if self.is_first:
            return tensors, None
        box, crossing = None, self._ins[m]
        differentiable = crossing.differentiable() if self.has_backward else []
        if differentiable:
            box = _Box([tensors[k] for k in differentiable])
            for k, t in zip(differentiable, _Enter.apply(box.root, box), strict=True):  # type: ignore[no-untyped-call]
                tensors[k] = t
        return [tensors[k] for k in crossing.of], box

    @_guarded
    def forward_one_chunk(
        self,
        fwd_chunk_id: int,
        args: tuple[Any, ...],
        kwargs: dict[str, Any] | None = None,
        save_forward_output: bool = True,
    ) -> Any:
        m, link = fwd_chunk_id, self.link
        tensors, box = self._enter(m, self._take_inputs(m, args, kwargs or {}))
        self.partitioned.prepare(self.module, link.told(m).sizes, link.told(m).variant)
        if self.undo is None and link.late:
            self.undo = self.partitioned.now(self.module)
        with link.working(f"stage {self.stage_index}, forward of micro-batch {m}"), self.forward_clock.time():
            outputs = tuple(self.submod(*tensors))
        if self.is_last:
            self._forwards[m] = _Forward(list(outputs), box, Crossing((), ()))
            return self._give(m, outputs, save_forward_output)
        crossing, send = Crossing.between(outputs, f"stage {self.stage_index}: an output")
        link.publish("forward", self.stage_index, link.signature(m), crossing, self._name)
        self._forwards[m] = _Forward(send, box, crossing)
        return outputs

    def _name(self, k: int) -> str:
        names = list(dict.fromkeys(spec.name for spec in self.module.outputs))
        return names[k] if k < len(names) else f"value {k}"

    def _give(self, m: int, outputs: tuple[torch.Tensor, ...], save: bool) -> Any:
        """What the model gives for a micro-batch."""
        returned = self.partitioned.returned(self.module)
        result = returned.pack(outputs, self.module.numbers)
        if not self.has_backward:
            self.results[m] = outputs, result, returned
        if save:
            self.output_chunks.append(result)
        return result

    # ---- backward -------------------------------------------------------------------------------------------------

    @_guarded
    def get_bwd_recv_ops(self, bwd_chunk_id: int) -> list[dist.P2POp]:
        m, link = bwd_chunk_id, self.link
        if not self.has_backward or self.is_last or link.rank_of[self.stage_index + 1] == link.rank:
            return []
        _, size = self._forwards[m].crossing.grad_slots(self._returned(1))
        if not size:
            return []
        sender = link.rank_of[self.stage_index + 1]
        link.waiting["backward", self.stage_index, m] = sender
        self._grad_message[m] = message = torch.empty(size, dtype=torch.uint8, device=link.wire)
        return link.receive("backward", self.stage_index, m, sender, message, self._tag(m, True, 1))

    @_guarded
    def get_bwd_send_ops(self, bwd_chunk_id: int) -> list[dist.P2POp]:
        m, link = bwd_chunk_id, self.link
        if not self.has_backward or self.is_first or link.rank_of[self.stage_index - 1] == link.rank:
            return []
        grads = self._grads_out.pop(m)
        ins = self._ins.pop(m)
        if not grads:
            return []
        layouts = tuple(None if g is None else Layout.of(g, f"stage {self.stage_index}: a gradient") for g in grads)
        crossing = Crossing(layouts, ())
        names = [f"value {k}" for k in ins.differentiable()] + [t.name for t in self._returned()]
        link.publish("backward", self.stage_index, link.signature(m), crossing, names.__getitem__)
        message = _wire.pack(grads, layouts, *ins.grad_slots(self._returned()))
        return link.send(link.rank_of[self.stage_index - 1], message, self._tag(m, True))

    def get_local_bwd_output(self, mb_index: int) -> Any:
        return self._grads_out.pop(mb_index, ())

    def set_local_bwd_input(self, next_stage_bwd_outputs: Any, mb_index: int) -> None:
        self._grads_in[mb_index] = next_stage_bwd_outputs

    def _returned(self, after: int = 0) -> list[Tied]:
        """The shared parameters whose sums go back over the boundary before this stage, or after it."""
        return self.link.gradients.returned(self.stage_index + after)

    def _take_grads(self, m: int, crossing: Crossing) -> Sequence[torch.Tensor | None]:
        """Gradients of the outputs that have one, in their order; then the sums of shared parameters."""
        link, after = self.link, self.stage_index + 1
        if link.rank_of[after] == link.rank:
            return self._grads_in.pop(m)
        begins, size = crossing.grad_slots(self._returned(1))
        if not size:
            return [None] * len(begins)
        link.arrived("backward", self.stage_index, m)
        doing = _doing("backward", self.stage_index, m)
        told = link.crossing("backward", after, link.signature(m), doing)
        return _wire.unpack(self._grad_message.pop(m).to(self.device), told.layouts, begins)

    @_guarded
    def backward_one_chunk(
        self, bwd_chunk_id: int, loss: Any = None, full_backward: bool = True, last_backward: bool = False
    ) -> None:
        """The whole backward, also where a schedule would do the part of the weights later: one pass gives both."""
        m = bwd_chunk_id
        forward = self._forwards.pop(m, None)
        if not self.has_backward or forward is None:
            return
        pairs: list[tuple[torch.Tensor, torch.Tensor | None]]
        sums: dict[str, torch.Tensor | None] = {}
        if self.is_last:
            pairs = [(self._check_loss(m, loss), None)]
        else:
            sent = [forward.send[k] for k in forward.crossing.differentiable()]
            came = self._take_grads(m, forward.crossing)
            pairs = [(t, g) for t, g in zip(sent, came, strict=False) if g is not None]
            sums = dict(zip([t.name for t in self._returned(1)], came[len(sent) :], strict=True))
        sums = self._backward(m, pairs, forward.box, sums)
        if not self.is_first:
            own = forward.box.grads if forward.box is not None else ()
            self._grads_out[m] = (*own, *[sums.get(t.name) for t in self._returned()])

    def _check_loss(self, m: int, loss: Any) -> torch.Tensor:
        if not isinstance(loss, torch.Tensor) or not loss.requires_grad:
            what = "does not require grad" if isinstance(loss, torch.Tensor) else f"is a {type(loss).__name__}"
            raise PipelineError(
                f"rank {self.link.rank}: the loss of micro-batch {m} {what}, so there is nothing to train; loss_fn "
                "must give a tensor that depends on parameters that require grad"
            )
        return loss

    def _backward(
        self,
        m: int,
        pairs: Sequence[tuple[torch.Tensor, torch.Tensor | None]],
        box: _Box | None,
        sums: dict[str, torch.Tensor | None],
    ) -> dict[str, torch.Tensor | None]:
        """Gives the sums of shared parameters with the parts of this stage."""
        gradients = self.link.gradients
        params = gradients.params(self.stage_index)
        wanted = [*params.values(), *([box.root] if box is not None else [])]
        grads: Sequence[torch.Tensor | None] = [None] * len(params)
        pairs = [*pairs, *gradients.seeds(self.stage_index, sums)]
        with self.link.working(f"stage {self.stage_index}, backward of micro-batch {m}"), self.backward_clock.time():
            if pairs and wanted:
                roots, seeds = zip(*pairs, strict=True)
                grads = torch.autograd.grad(roots, wanted, seeds, allow_unused=True)[: len(params)]
        return gradients.add(self.stage_index, m, dict(zip(params, grads, strict=True)), sums)

    def backward_weight_one_chunk(self, bwd_chunk_id: int, last_backward: bool = False) -> None:
        """Done with the rest in `backward_one_chunk`."""

    @_guarded
    def scale_grads(self, grad_scale_factor: int) -> None:
        if not self.has_backward:
            return
        self.link.gradients.finish(self.stage_index, grad_scale_factor)
        if self.link.gradients.finished():  # nobody needs this rank any more to take what it sent
            self.link.flush()

    def perform_reduce_grad(self, grad_scale_factor: int) -> None:
        self.scale_grads(grad_scale_factor)

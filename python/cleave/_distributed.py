"""A partition on the processes of torch.distributed: its stages, a schedule around them, steps.

partition ──pipeline_stages──▶ Stage (a PipelineStage) ──schedule──▶ PipelineRun: step, eval, report
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterator, Sequence
from datetime import timedelta
from functools import partial
from statistics import median
from typing import Any

import torch
import torch.distributed as dist
from torch.distributed import pipelining
from torch.distributed.pipelining import schedules as engine
from torch.utils import _pytree as pytree

from . import _show
from ._gradients import Gradients, Tied
from ._peers import Peers
from ._pipeline_plan import PlanStages
from ._pipeline_stage import Link, Stage
from ._stages import ValueSpec
from .errors import ArgumentError, GuardError, InputError, PipelineError, first_line

Action = tuple[int, str, int]  # stage, "F" or "B", micro-batch
KNOWN = ((2, 11), (2, 13))  # releases whose engine these stages were tested with


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


def _placement(partitioned: PlanStages, size: int, placement: Sequence[int] | None) -> list[int]:
    n = len(partitioned.device_of)
    rank_of = list(partitioned.device_of if placement is None else placement)
    if len(rank_of) != n:
        raise ArgumentError(f"placement has {len(rank_of)} ranks for {n} stages; give one rank for each stage")
    wrong = [r for r in rank_of if not 0 <= r < size]
    fitting = f"a placement that uses them, such as {[i % size for i in range(n)]}"
    if wrong:
        raise PipelineError(
            f"the partition has a stage on device {wrong[0]}, but there are {size} processes; start "
            f"{max(rank_of) + 1}, or give {fitting if n >= size else 'a placement'}"
        )
    idle = sorted(set(range(size)) - set(rank_of))
    if idle:
        raise PipelineError(
            f"rank {idle[0]} has no stage: {n} stages lie on ranks {rank_of}, of {size}; start fewer processes, give "
            f"a group of fewer, or {fitting if n >= size else f'cut the model into {size} stages or more'}"
        )
    return rank_of


def _digest(p: torch.Tensor) -> str:
    raw = p.detach().cpu().contiguous().view(-1)
    return hashlib.blake2b(raw.view(torch.uint8).numpy().tobytes() if raw.numel() else b"", digest_size=8).hexdigest()


def _ties(partitioned: PlanStages, told: Sequence[dict[str, dict[str, Any]]]) -> list[Tied]:
    """Parameters that several stages hold: of one name, or named in `partitioned.tied`."""
    facts = _by_copy(told)
    where: dict[str, list[tuple[int, str]]] = {}
    for copy in facts:
        where.setdefault(copy[1], []).append(copy)
    groups = [set(copies) for copies in where.values() if len(copies) > 1]
    for copies in partitioned.tied:
        merged = {(int(i), str(n)) for i, n in copies} & facts.keys()
        if len({i for i, _ in merged}) < 2:
            continue
        for g in [g for g in groups if g & merged]:
            groups.remove(g)
            merged |= g
        groups.append(merged)
    return [_tied(sorted(g), facts) for g in groups]


def _by_copy(told: Sequence[dict[str, dict[str, Any]]]) -> dict[tuple[int, str], Any]:
    """What the ranks told of their parameters, by stage and name."""
    return {(int(i), n): fact for stages in told for i, names in stages.items() for n, fact in names.items()}


def _tied(copies: list[tuple[int, str]], facts: dict[tuple[int, str], Any]) -> Tied:
    shape, dtype = facts[copies[0]]
    return Tied(copies[0][1], copies, tuple(shape), getattr(torch, dtype.removeprefix("torch.")))


def _check_copies(ties: Sequence[Tied], told: Sequence[dict[str, dict[str, Any]]]) -> None:
    facts = _by_copy(told)
    for t in ties:
        first, *rest = t.copies
        for other in rest:
            if facts[other] != facts[first]:
                raise PipelineError(
                    f"stages {first[0]} and {other[0]} share the parameter {t.name}, but their copies differ "
                    f"({facts[first]} and {facts[other]}); load the same weights on every rank"
                )


def pipeline_stages(
    partitioned: PlanStages,
    *,
    group: dist.ProcessGroup | None = None,
    device: torch.device | str | None = None,
    placement: Sequence[int] | None = None,
    timeout: float = 30.0,
    longest_wait: float = 1800.0,
    exact: bool = True,
) -> list[Stage]:
    """The stages of this rank, for the schedules of torch.distributed.pipelining. Every rank of `group` calls it.

    A rank that gives no sign of life for `timeout` seconds, or does nothing for so long while another waits for it,
    ends the pipeline with a PipelineError on all others; so does a message that takes more than `longest_wait`. With
    `exact`, gradients are the same bits as those of one process that runs the micro-batches one after the other;
    without, they are added as they come, which takes less memory, and less traffic where stages share parameters.
    """
    _check_torch()
    if not dist.is_initialized():
        raise PipelineError("call torch.distributed.init_process_group first, or start the program with torchrun")
    parent = group if group is not None else dist.group.WORLD
    assert parent is not None
    ours = dist.new_group(  # of our own: waits in it are bounded, and aborting it ends nothing else
        dist.get_process_group_ranks(parent),
        timeout=timedelta(seconds=longest_wait),
        use_local_synchronization=True,
    )
    if not isinstance(ours, dist.ProcessGroup):
        raise PipelineError("this process is not in the group of the pipeline")
    backend = dist.get_backend_config(parent)
    where = torch.device(device) if device is not None else _default_device(backend)
    peers = Peers(ours, timeout, longest_wait)
    try:
        return _connect(_same(partitioned, peers), peers, where, _wire_device(backend, where), placement, exact)
    except Exception:
        peers.close()
        raise


def _same(partitioned: PlanStages, peers: Peers) -> PlanStages:
    """The partition of the first rank, where this rank measured other times and so found another one."""
    if peers.rank == 0:
        peers.tell("partition", {"signature": partitioned.signature, "profile": partitioned.profile_text()})
        return partitioned
    told = peers.ask("partition", "waiting for the partition of rank 0", 0)
    return partitioned if told["signature"] == partitioned.signature else partitioned.like(told["profile"])


def _connect(
    partitioned: PlanStages,
    peers: Peers,
    device: torch.device,
    wire: torch.device,
    placement: Sequence[int] | None,
    exact: bool,
) -> list[Stage]:
    rank_of = _placement(partitioned, peers.size, placement)
    peers.stages_of = [[i for i, r in enumerate(rank_of) if r == k] for k in range(peers.size)]
    mine = peers.stages_of[peers.rank]
    try:
        modules = {i: partitioned.stage(i, device=device) for i in mine}
    except Exception as e:
        peers.fail(f"rank {peers.rank}: making its stages raised {type(e).__name__}: {first_line(e)}")
        raise
    gradients = Gradients({i: partial(_parameters, m) for i, m in modules.items()}, exact)
    params = {i: _parameters(m) for i, m in modules.items()}
    _agree(partitioned, peers, gradients, rank_of, params, wire, exact)
    link = Link(peers, rank_of, gradients, wire)
    stages = [Stage(modules[i], device, link, partitioned) for i in mine]
    for s in stages:
        s.before = next((b for b in stages if b.stage_index == s.stage_index - 1), None)
    return stages


def _parameters(module: Any) -> dict[str, torch.nn.Parameter]:
    """All that a stage has, each under one name, also those that it shares with other stages."""
    found = {id(p): (name, p) for name, p in reversed(list(module.named_parameters(remove_duplicate=False)))}
    return dict(reversed(list(found.values())))


def _agree(
    partitioned: PlanStages,
    peers: Peers,
    gradients: Gradients,
    rank_of: Sequence[int],
    params: dict[int, dict[str, torch.nn.Parameter]],
    wire: torch.device,
    exact: bool,
) -> None:
    """All ranks have the same partition; which parameters are shared."""
    facts = {
        "torch version": torch.__version__.split("+")[0],
        "placement of stages": list(rank_of),
        "partition": partitioned.signature,
        "option exact": exact,
    }
    shapes = {
        i: {n: [list(p.shape), str(p.dtype)] for n, p in ps.items() if p.requires_grad} for i, ps in params.items()
    }
    told = peers.agree(facts, shapes)
    ties = _ties(partitioned, told)
    if ties:
        tied = {copy for t in ties for copy in t.copies}
        own = {i: {n: _digest(p) for n, p in ps.items() if (i, n) in tied} for i, ps in params.items()}
        peers.tell(f"tied/{peers.rank}", own)
        digests = [peers.ask(f"tied/{r}", f"setting up, waiting for rank {r}", r) for r in range(peers.size)]
        _check_copies(ties, digests)
    gradients.tie(ties, rank_of, peers, wire)


def sync_tied_gradients(stages: Sequence[Stage]) -> None:
    """Sums the gradients of parameters that several stages hold. PipelineRun.step does it; with a schedule of your own,
    call it on every rank after each step, before the optimizer."""
    link = stages[0].link
    with link.guard():
        link.gradients.sync()


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


def free_order(rank_of: Sequence[int], size: int, microbatches: int) -> list[list[Action]]:
    """An order for stages that are not where the partition puts them: whatever is ready, backward before forward, early
    micro-batches before later ones; a stage is at most as far ahead of its backward as the stages after it are many."""
    last = len(rank_of) - 1
    f, b = [0] * len(rank_of), [0] * len(rank_of)  # micro-batches done, per stage
    order: list[list[Action]] = [[] for _ in range(size)]
    while min(b) < microbatches:
        done_f, done_b = list(f), list(b)
        for r in range(size):
            mine = [i for i in range(last + 1) if rank_of[i] == r]
            back = [i for i in mine if done_b[i] < (done_f[i] if i == last else done_b[i + 1])]
            ahead = [i for i in mine if done_f[i] < (microbatches if i == 0 else done_f[i - 1])]
            ahead = [i for i in ahead if done_f[i] - done_b[i] <= last - i]
            kind, ready, done = ("B", back, b) if back else ("F", ahead, f)
            if ready:
                i = min(ready, key=lambda i: (done[i], -i))
                order[r].append((i, kind, done[i]))
                done[i] += 1
    return order


def _free_actions(partitioned: PlanStages, link: Link, microbatches: int) -> dict[int, list[Any]]:
    """What each rank does, in order, for any placement."""
    kinds = {"F": engine._ComputationType.FORWARD, "B": engine._ComputationType.FULL_BACKWARD}
    as_placed = list(link.rank_of) == list(partitioned.device_of)
    order = partitioned.actions(microbatches) if as_placed else free_order(link.rank_of, link.peers.size, microbatches)
    return {r: [engine._Action(i, kinds[kind], m) for i, kind, m in order[r]] for r in range(link.peers.size)}


def _make_schedule(name: str, stages: list[Stage], microbatches: int, **options: Any) -> Any:
    link = stages[0].link
    try:
        if name == "Free":
            free: Any = engine._PipelineScheduleRuntime(stages, microbatches, **options)  # type: ignore[no-untyped-call]
            free._prepare_schedule_with_comms(_free_actions(stages[0].partitioned, link, microbatches))
            return free
        made = getattr(pipelining, f"Schedule{name}")
        return made(stages[0] if _PLACES[name] == _ONE else stages, microbatches, **options)
    except ValueError as e:
        fit = _schedule_name(None, link.rank_of, link.peers.size, microbatches)
        raise ArgumentError(f"schedule {name} does not take {microbatches} micro-batches here: {e}; {fit} does") from e


def schedule(
    partitioned: PlanStages,
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
    try:
        chosen = _schedule_name(name, link.rank_of, link.peers.size, microbatches)
        return PipelineRun(stages, chosen, microbatches, loss_fn, scale_grads)
    except Exception:
        link.peers.close()
        raise


# ---- runs ---------------------------------------------------------------------------------------------------------


def _sizes(batch: int, parts: int) -> list[int]:
    return [batch // parts + (k < batch % parts) for k in range(parts)]


class PipelineRun:
    """A partition with a schedule: whole batches in, losses and outputs out.

    Inputs are needed on the rank of the first stage, targets on the rank of the last; other ranks may leave them out.
    """

    def __init__(
        self,
        stages: list[Stage],
        name: str,
        microbatches: int,
        loss_fn: Callable[..., torch.Tensor] | None,
        scale_grads: bool,
    ) -> None:
        self.stages, self.name, self.microbatches = stages, name, microbatches
        self.partitioned = partitioned = stages[0].partitioned  # as the ranks agreed
        self._loss_fn = loss_fn
        self._options = {"loss_fn": self._loss if loss_fn is not None else None, "scale_grads": scale_grads}
        self.schedule = _make_schedule(name, stages, microbatches, **self._options)
        self._target: Any = None  # of the batch
        self._targets: list[Any] | None = None  # of the micro-batches
        self._link = stages[0].link
        self._dim = partitioned.batch_dim
        self._link.flushed = True
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
        self._give(args, kwargs, train=True)
        self._target, self._targets = target, None
        self._guarded(
            lambda: self.schedule.step(target=self._numbers(), losses=losses, return_outputs=False), sync=True
        )
        return [lay.detach() for lay in losses] if self._last is not None else None

    def eval(self, *args: Any, merge: bool = True, **kwargs: Any) -> Any:
        """Forward of all micro-batches. On the rank of the last stage it gives the model's output for the batch (with
        merge=False: a list, one output for each micro-batch), elsewhere None."""
        self._give(args, kwargs, train=False)
        with torch.no_grad():
            self._guarded(lambda: self.schedule.eval(target=self._numbers(), return_outputs=False), sync=False)
        if self._last is None:
            return None
        chunks, outputs, returned = zip(*(self._last.results.pop(m) for m in range(self.microbatches)), strict=True)
        if not merge:
            return list(outputs)
        if self._last.module.numbers:
            raise PipelineError(
                "the model's output has numbers, which are those of a micro-batch, not of the batch; "
                "eval(..., merge=False) gives the outputs of each micro-batch"
            )
        first = returned[0]
        for other in returned[1:]:
            found = first.difference(other)
            if found is not None:
                raise PipelineError(
                    f"micro-batches have outputs of different structure ({found}), so there is no one for the batch; "
                    "eval(..., merge=False) gives the outputs of each micro-batch"
                )
        return first.pack([self._merge(spec, [c[k] for c in chunks]) for k, spec in enumerate(first.outputs)])

    def _numbers(self) -> torch.Tensor | None:
        """Targets for the engine: it splits them into one number for each micro-batch, which `_loss` looks up."""
        return torch.arange(self.microbatches) if self._last is not None else None

    def _loss(self, output: Any, number: torch.Tensor) -> torch.Tensor:
        if not self._last or not self._last.has_backward:
            return torch.zeros(())
        assert self._loss_fn is not None
        if self._targets is None:
            self._targets = self._split_target()
        with self._link.working(f"loss of micro-batch {int(number)}"):
            return self._loss_fn(output, self._targets[int(number)])

    def _guarded(self, run: Callable[[], Any], sync: bool) -> None:
        """Runs a step."""
        link = self._link
        self._steps += 1
        link.peers.busy = True
        try:
            with link.guard():
                run()
                link.flush()
                if link.late:  # a rank that is through with the step has to know of a guard that ended it elsewhere
                    link.peers.meet(link.step)
                if sync:
                    link.gradients.sync()
        except PipelineError as error:
            if not link.peers.again:
                raise
            raise self._undo() from error
        finally:
            link.peers.busy = False
        if self._steps == 1:
            for s in self.stages:
                s.forward_clock.warm()
                s.backward_clock.warm()

    def _undo(self) -> GuardError:
        """The error of a guard that the first stage could not decide and that ended the step. No gradient was given
        yet; what stages wrote is put back, the first one last, which saw the random generator first."""
        undone = False not in [s.undo.put_back() for s in reversed(self.stages) if s.undo is not None]
        error = GuardError(
            f"{self._link.peers.lost}; that guard can be seen in this stage alone, when the step has begun. "
            + ("Nothing of the step is left" if undone else "Not all that stages did by then can be put back")
            + ", and the pipeline can go on"
        )
        error.undone = undone
        return error

    def _reconnect(self) -> None:
        """After a guard has ended a step."""
        self._link.reconnect()
        for s in self.stages:
            s.group = self._link.group
        self.schedule = _make_schedule(self.name, self.stages, self.microbatches, **self._options)

    # ---- batches --------------------------------------------------------------------------------------------------

    def _give(self, args: tuple[Any, ...], kwargs: dict[str, Any], train: bool) -> None:
        """Splits inputs for the first stage."""
        if self._link.peers.lost and self._link.peers.again:
            self._reconnect()
        if self._link.peers.lost:
            raise PipelineError(f"this pipeline has failed and cannot run again: {self._link.peers.lost}")
        if self._first is None:
            return
        try:
            self._first.feed = self._split_inputs(args, kwargs)
            if train:
                self._first.check_leaves(self._first.feed[0])
            with torch.set_grad_enabled(train):
                self._first.told = [self._first.look(tensors) for tensors in self._first.feed]
        except Exception as e:
            for s in self.stages:
                s.skip()
            self._link.refuse(f"rank {self._link.rank}: {e}")
            raise

    def _split_inputs(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> list[list[torch.Tensor]]:
        assert self._first is not None
        flat = self.partitioned.unpack_inputs(args, kwargs)
        specs = self._first.module.inputs
        if len(flat) != len(specs):
            raise InputError(f"the model takes {len(specs)} tensors, {len(flat)} are given")
        batched = {s.name: t for s, t in zip(specs, flat, strict=True) if s.is_batched}
        sizes = {n: t.shape[self._dim] for n, t in batched.items()}
        if len(set(sizes.values())) > 1:
            raise InputError(f"inputs disagree on the batch size: {sizes}")
        batch = next(iter(sizes.values()), 1)
        if not batched and self.microbatches > 1:
            raise InputError("no input is split along the batch: there is nothing to make micro-batches of")
        if batch < self.microbatches:
            raise InputError(f"a batch of {batch} cannot be split into {self.microbatches} micro-batches")
        parts = _sizes(batch, self.microbatches)
        self._first.rows = parts if batched else None
        # What is one tensor for two inputs is one in each micro-batch: the forward may ask.
        cut = {id(t): torch.split(t, parts, self._dim) for s, t in zip(specs, flat, strict=True) if s.is_batched}
        split = [cut[id(t)] if s.is_batched else [t] * len(parts) for s, t in zip(specs, flat, strict=True)]
        return [[t[m] for t in split] for m in range(len(parts))]

    def _split_target(self) -> list[Any]:
        """Tensors of the target that have the size of the batch are split; all else goes to every micro-batch whole."""
        rows = self._link.rows
        leaves, tree = pytree.tree_flatten(self._target)
        sizes = [t.shape[self._dim] for t in leaves if isinstance(t, torch.Tensor) and t.dim() > self._dim]
        if rows is None or not sizes:
            return [self._target] * self.microbatches
        batch = sum(rows)
        if batch not in sizes:
            raise InputError(
                f"the batch has {batch} entries, but no tensor of the target does (dimension {self._dim} has "
                f"{', '.join(map(str, sizes))}); give a target for each entry, or none and let loss_fn have it"
            )

        def cut(t: Any) -> Sequence[Any]:
            if isinstance(t, torch.Tensor) and t.dim() > self._dim and t.shape[self._dim] == batch:
                return torch.split(t, rows, self._dim)
            return [t] * len(rows)

        pieces = [cut(t) for t in leaves]
        return [pytree.tree_unflatten([p[m] for p in pieces], tree) for m in range(len(rows))]

    def _merge(self, spec: ValueSpec, chunks: list[torch.Tensor]) -> torch.Tensor:
        if spec.is_batched:
            return torch.cat(chunks, self._dim)
        if all(c.shape == chunks[0].shape and torch.equal(c, chunks[0]) for c in chunks[1:]):
            return chunks[0]
        raise PipelineError(
            f"output {spec.name} is not split along the batch and differs between micro-batches, so there is no one "
            "value for the batch; eval(..., merge=False) gives the outputs of each micro-batch"
        )

    # ---- parameters -----------------------------------------------------------------------------------------------

    def parameters(self) -> Iterator[torch.nn.Parameter]:
        """The parameters of this rank's stages, each once, for an optimizer."""
        return (p for _, p in self.named_parameters())

    def named_parameters(self) -> Iterator[tuple[str, torch.nn.Parameter]]:
        """The same with their names in the model; one that has several has the first."""
        seen: set[int] = set()
        for s in self.stages:
            for name, p in _parameters(s.submod).items():
                if id(p) not in seen:
                    seen.add(id(p))
                    yield name, p

    # ---- times ----------------------------------------------------------------------------------------------------

    def report(self) -> str | None:
        """A table of the stages: predicted and measured milliseconds for one micro-batch. Every rank calls it; rank 0
        gets the text, the others None."""
        peers = self._link.peers
        own = {
            s.stage_index: [_median(s.forward_clock.times()), _median(s.backward_clock.times())] for s in self.stages
        }
        peers.tell(f"times/{self._steps}/{peers.rank}", own)
        if peers.rank != 0:
            return None
        measured: dict[int, list[float | None]] = {}
        for r in range(peers.size):
            told = peers.ask(f"times/{self._steps}/{r}", f"waiting for the times of rank {r}", r)
            measured.update({int(i): t for i, t in told.items()})
        return _table(measured, self._link.rank_of, self.partitioned.predicted)

    def train(self, mode: bool = True) -> None:
        """Puts the stages of this rank into train or eval mode, as nn.Module.train does. Every rank calls it."""
        for s in self.stages:
            s.submod.train(mode)

    def close(self) -> None:
        """Leaves the pipeline. The others may still end what does not need this rank."""
        self._link.peers.close()


def _median(times: Sequence[float]) -> float | None:
    return median(times) if times else None


def _table(
    measured: dict[int, list[float | None]], rank_of: Sequence[int], predicted: Sequence[tuple[float, float]]
) -> str:
    def cell(x: float | None) -> str:
        return "-" if x is None else f"{x:.3f}"

    def ratio(got: float | None, said: float) -> str:
        return "-" if got is None or not said else f"{got / said:.2f}"

    rows = [["stage", "rank", "forward ms", "predicted", "ratio", "backward ms", "predicted", "ratio"]]
    for i, (f, b) in sorted(measured.items()):
        said = predicted[i]
        rows.append([str(i), str(rank_of[i]), cell(f), cell(said[0]), ratio(f, said[0])])
        rows[-1] += [cell(b), cell(said[1]), ratio(b, said[1])]
    return _show.columns(rows, [True] * len(rows[0]))

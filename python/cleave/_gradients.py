"""Gradients of the parameters of the stages on one rank, summed as one process would sum them.

One process that runs the micro-batches one after the other adds their gradients in that order; a parameter that several
stages share gets, for each micro-batch, the part of the latest stage first. Schedules run backwards in other orders, so
parts that come early wait here (`exact`), and shared parameters are summed over the ranks per micro-batch. Without
`exact` everything is added as it comes: less memory and traffic, other rounding.

One case keeps another rounding: a stage that uses a shared parameter several times, where later stages use it too, adds
its own parts up before theirs (a + (b + c) for (a + b) + c).
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field

import torch
import torch.distributed as dist

from . import _wire
from ._peers import Peers
from .errors import PipelineError


def _plus(a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
    return b + a if a.is_sparse and not b.is_sparse else a + b


@dataclass
class _Sum:
    """A running sum; the first part is not ours to write."""

    total: torch.Tensor | None = None
    owned: bool = False

    def add(self, g: torch.Tensor) -> None:
        if self.total is None:
            self.total = g
        elif self.owned and not self.total.is_sparse:
            self.total.add_(g)
        else:
            self.total, self.owned = _plus(self.total, g), True

    def give(self, p: torch.nn.Parameter, divisor: int) -> None:
        """Adds the sum, divided, to the gradient of `p`."""
        if self.total is None:
            return
        g = self.total if divisor == 1 else self.total / divisor
        if p.grad is not None:
            p.grad = _plus(p.grad, g)
        elif g.is_sparse or (g.stride() == p.stride() and (self.owned or divisor != 1)):
            p.grad = g.detach()
        else:
            p.grad = torch.empty_like(p).copy_(g)  # laid out as the parameter: optimisers are faster then


@dataclass
class Tied:
    """One parameter of which several stages hold a copy."""

    name: str
    copies: list[tuple[int, str]]  # (stage, name there), stages ascending


@dataclass
class _Stage:
    params: dict[str, torch.nn.Parameter]
    parts: dict[int, dict[str, torch.Tensor]] = field(default_factory=dict)  # by micro-batch, waiting for earlier ones
    next: int = 0
    sums: dict[str, _Sum] = field(default_factory=dict)
    tied: dict[str, dict[int, _Sum]] = field(default_factory=dict)  # by name and micro-batch
    divisor: int | None = None  # set when the step's backward is over


class Gradients:
    """The gradients of one rank's stages during a step."""

    def __init__(self, params: Mapping[int, Mapping[str, torch.nn.Parameter]], exact: bool) -> None:
        self._exact = exact
        self._stages = {i: _Stage(dict(p)) for i, p in params.items()}
        self._ties: list[Tied] = []
        self._rank_of: Sequence[int] = ()
        self._peers: Peers | None = None
        self._wire = torch.device("cpu")
        self._tied_names: set[tuple[int, str]] = set()

    def tie(self, ties: Iterable[Tied], rank_of: Sequence[int], peers: Peers, wire: torch.device) -> None:
        """Which parameters are shared; wire: where messages lie."""
        self._ties = sorted(ties, key=lambda t: t.copies)
        self._rank_of, self._peers, self._wire = rank_of, peers, wire
        self._tied_names = {copy for t in self._ties for copy in t.copies}

    def begin(self, stage: int) -> None:
        """A step begins."""
        s = self._stages[stage]
        if s.tied:
            names = ", ".join(sorted(s.tied))
            raise PipelineError(
                f"stage {stage} has gradients of shared parameters ({names}) that were not summed over the stages; "
                "call cleave.sync_tied_gradients(stages) on every rank after each step, before the optimizer"
            )
        self._stages[stage] = _Stage(s.params)

    def params(self, stage: int) -> dict[str, torch.nn.Parameter]:
        return {n: p for n, p in self._stages[stage].params.items() if p.requires_grad}

    def add(self, stage: int, microbatch: int, names: Iterable[str], grads: Iterable[torch.Tensor | None]) -> None:
        """The gradients that one backward gave."""
        s = self._stages[stage]
        s.parts[microbatch] = {n: g for n, g in zip(names, grads, strict=True) if g is not None}
        while s.parts and (not self._exact or s.next in s.parts):
            m = s.next if self._exact else next(iter(s.parts))
            self._add_parts(stage, m, s.parts.pop(m))
            s.next = m + 1

    def _add_parts(self, stage: int, microbatch: int, parts: dict[str, torch.Tensor]) -> None:
        s = self._stages[stage]
        for n, g in parts.items():
            if (stage, n) in self._tied_names:
                sums = s.tied.setdefault(n, {})
                sums.setdefault(microbatch if self._exact else 0, _Sum()).add(g)
            else:
                s.sums.setdefault(n, _Sum()).add(g)

    def finish(self, stage: int, divisor: int) -> None:
        """The backward of a step is over for this stage: parameters get their gradients, shared ones in `sync`."""
        s = self._stages[stage]
        if s.divisor is not None:
            return
        for m in sorted(s.parts):  # a step that skipped micro-batches
            self._add_parts(stage, m, s.parts.pop(m))
        for n, total in s.sums.items():
            total.give(s.params[n], divisor)
        s.sums.clear()
        s.divisor = divisor

    # ---- shared parameters --------------------------------------------------------------------------------------

    def sync(self, microbatches: int) -> None:
        """Sums the gradients of shared parameters over the stages that hold a copy. All those ranks call it."""
        count = microbatches if self._exact else 1
        for t in self._ties:
            self._sync(t, count)
        for s in self._stages.values():
            s.tied.clear()

    def _sync(self, t: Tied, count: int) -> None:
        mine = [(i, n) for i, n in t.copies if i in self._stages]
        if not mine:
            return
        example = self._stages[mine[0][0]].params[mine[0][1]]
        parts = {i: [self._stages[i].tied.get(n, {}).get(m) for m in range(count)] for i, n in mine}
        grads = {i: [p.total if p else None for p in ps] for i, ps in parts.items()}
        if any(g is not None and g.is_sparse for gs in grads.values() for g in gs):
            raise PipelineError(f"shared parameter {t.name} has sparse gradients; use sparse=False in its embedding")
        grads.update(self._exchange(t, grads, example, count))
        total = _Sum()
        for m in range(count):
            one = _Sum()
            for i, _ in reversed(t.copies):  # as one backward: what ran last gives its part first
                g = grads[i][m]
                if g is not None:
                    one.add(g)
            if one.total is not None:
                total.add(one.total)
        divisor = self._stages[mine[0][0]].divisor or 1
        given: set[int] = set()
        for i, n in mine:
            p = self._stages[i].params[n]
            if id(p) not in given:  # stages of one rank may hold the very same parameter
                given.add(id(p))
                _Sum(total.total).give(p, divisor)

    def _exchange(
        self, t: Tied, grads: Mapping[int, list[torch.Tensor | None]], example: torch.Tensor, count: int
    ) -> dict[int, list[torch.Tensor | None]]:
        """The gradients of the copies on other ranks."""
        peers = self._peers
        assert peers is not None
        away = [i for i, _ in t.copies if i not in grads]
        if not away:
            return {}
        layout = _wire.Layout.of(torch.empty(example.shape, dtype=example.dtype, device="meta"), t.name)
        begins, size = _wire.offsets([count, *[layout.bytes] * count])
        ops, incoming, keep = [], {}, []
        for i, gs in grads.items():
            flags = torch.tensor([g is not None for g in gs], dtype=torch.uint8, device=self._wire)
            dense = [None if g is None else g.contiguous() for g in gs]
            message = _wire.pack(dense, [layout] * count, begins[1:], size).to(self._wire)
            message[:count] = flags
            keep.append(message)
            for r in sorted({self._rank_of[a] for a in away}):
                ops.append(dist.P2POp(dist.isend, message, group=peers.group, group_peer=r, tag=i))
        for i in away:
            incoming[i] = torch.empty(size, dtype=torch.uint8, device=self._wire)
            ops.append(dist.P2POp(dist.irecv, incoming[i], group=peers.group, group_peer=self._rank_of[i], tag=i))
        for work in dist.batch_isend_irecv(ops):
            if self._wire.type == "cpu":
                peers.wait(work, f"waiting for the gradients of the shared parameter {t.name}")
            else:
                work.wait()
        out = {}
        for i, message in incoming.items():
            there = message[:count].tolist()
            out[i] = _wire.unpack(message.to(example.device), [layout if f else None for f in there], begins[1:])
        return out

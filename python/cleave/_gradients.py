"""Gradients of the parameters of the stages on one rank, summed as one process would sum them.

One process that runs the micro-batches one after the other adds their gradients in that order; a parameter that several
stages share gets, for each micro-batch, its parts from the latest use to the first. Schedules run backwards in other
orders, so parts that come early wait here (`exact`). The sum of a shared parameter travels back through the stages with
the other gradients of a micro-batch: a stage that holds a copy begins its backward with it. What the first holder has
then is whole; after the step it goes to the others. Without `exact` every stage adds up its own part as it comes, and
the parts are summed after the step: less traffic, other rounding.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from math import prod

import torch

from . import _wire
from ._peers import Parcel, Peers
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
    shape: tuple[int, ...]
    dtype: torch.dtype

    @property
    def bytes(self) -> int:
        return prod(self.shape) * self.dtype.itemsize

    def names(self, stage: int) -> list[str]:
        return [n for i, n in self.copies if i == stage]


@dataclass
class _Stage:
    params: dict[str, torch.nn.Parameter]
    parts: dict[int, dict[str, torch.Tensor]] = field(default_factory=dict)  # by micro-batch, waiting for earlier ones
    next: int = 0
    sums: dict[str, _Sum] = field(default_factory=dict)
    unsynced: list[str] = field(default_factory=list)  # shared parameters, from the end of the backward to `sync`
    divisor: int | None = None  # set when the step's backward is over


class Gradients:
    """The gradients of one rank's stages during a step."""

    def __init__(self, params: Mapping[int, Callable[[], dict[str, torch.nn.Parameter]]], exact: bool) -> None:
        """params: those of each stage, by name, as they are."""
        self._exact = exact
        self._params = params
        self._stages = {i: _Stage(now()) for i, now in params.items()}
        self._ties: list[Tied] = []
        self._rank_of: Sequence[int] = ()
        self._peers: Peers | None = None
        self._wire = torch.device("cpu")

    def tie(self, ties: Iterable[Tied], rank_of: Sequence[int], peers: Peers, wire: torch.device) -> None:
        """Which parameters are shared; wire: where messages lie."""
        self._ties = sorted(ties, key=lambda t: t.copies)
        self._rank_of, self._peers, self._wire = rank_of, peers, wire

    def reconnect(self, peers: Peers) -> None:
        self._peers = peers

    def begin(self, stage: int) -> None:
        """A step begins."""
        s = self._stages[stage]
        if s.unsynced:
            raise PipelineError(
                f"stage {stage} has gradients of shared parameters ({', '.join(s.unsynced)}) that were not summed over "
                "the stages; call cleave.sync_tied_gradients(stages) on every rank after each step, before the "
                "optimizer"
            )
        params = self._params[stage]()
        self._check_hooks(stage, params)
        self._stages[stage] = _Stage(params)

    def _check_hooks(self, stage: int, params: Mapping[str, torch.nn.Parameter]) -> None:
        """Hooks of a parameter see the gradient of a micro-batch; those that wait for .grad, or for the parts of other
        stages, would see something else than in one process."""
        shared = {n for t in self._ties for n in t.names(stage)}
        for n, p in params.items():
            late = bool(p._post_accumulate_grad_hooks)
            if late or (n in shared and p._backward_hooks):
                raise PipelineError(
                    f"stage {stage}: {n} has a "
                    + ("post-accumulate-grad hook" if late else "gradient hook, and other stages share the parameter")
                    + ", which a pipeline would not call as the model does: change gradients after the step"
                )

    def params(self, stage: int) -> dict[str, torch.nn.Parameter]:
        return {n: p for n, p in self._stages[stage].params.items() if p.requires_grad}

    def finished(self) -> bool:
        """The backward of a step is over for all stages of this rank."""
        return all(s.divisor is not None for s in self._stages.values())

    def returned(self, stage: int) -> list[Tied]:
        """The shared parameters whose sums go from `stage` back to the stage before it."""
        return [t for t in self._ties if self._exact and t.copies[0][0] < stage <= t.copies[-1][0]]

    def seeds(self, stage: int, sums: Mapping[str, torch.Tensor | None]) -> list[tuple[torch.Tensor, torch.Tensor]]:
        """What the backward of a stage begins with: autograd adds to the gradient of a root, in the order of one
        backward."""
        params = self.params(stage)
        held = [(t.names(stage), sums.get(t.name)) for t in self._ties]
        return [(params[names[0]], g) for names, g in held if names and names[0] in params and g is not None]

    def add(
        self,
        stage: int,
        microbatch: int,
        grads: Mapping[str, torch.Tensor | None],
        sums: Mapping[str, torch.Tensor | None],
    ) -> dict[str, torch.Tensor | None]:
        """Takes the gradients that one backward gave. Gives the sums of shared parameters for the stage before."""
        s = self._stages[stage]
        parts = {n: g for n, g in grads.items() if g is not None}
        passed = dict(sums)
        for t in self._ties if self._exact else ():
            self._chain(t, stage, parts, passed)
        s.parts[microbatch] = parts
        while s.parts and (not self._exact or s.next in s.parts):
            m = s.next if self._exact else next(iter(s.parts))
            self._add_parts(s, s.parts.pop(m))
            s.next = m + 1
        return passed

    def _chain(
        self, t: Tied, stage: int, parts: dict[str, torch.Tensor], passed: dict[str, torch.Tensor | None]
    ) -> None:
        """Makes the parts of this stage part of the sum that is passed on; the first holder keeps it."""
        names = t.names(stage)
        if not names:
            return
        total = _Sum(passed.pop(t.name, None))
        if names[0] in parts:
            total = _Sum(parts.pop(names[0]))  # began with what was passed
        for n in names[1:]:
            if n in parts:
                total.add(parts.pop(n))
        if total.total is None:
            return
        if stage == t.copies[0][0]:
            parts[names[0]] = total.total
            return
        _refuse_sparse(t, total.total)
        passed[t.name] = total.total

    def _add_parts(self, s: _Stage, parts: dict[str, torch.Tensor]) -> None:
        for n, g in parts.items():
            s.sums.setdefault(n, _Sum()).add(g)

    def finish(self, stage: int, divisor: int) -> None:
        """The backward of a step is over for this stage: parameters get their gradients, shared ones in `sync`."""
        s = self._stages[stage]
        if s.divisor is not None:
            return
        for m in sorted(s.parts):  # a step that skipped micro-batches
            self._add_parts(s, s.parts.pop(m))
        s.unsynced = [n for t in self._ties for n in t.names(stage)]
        for n in [n for n in s.sums if n not in s.unsynced]:
            s.sums.pop(n).give(s.params[n], divisor)
        s.divisor = divisor

    # ---- shared parameters --------------------------------------------------------------------------------------

    def sync(self) -> None:
        """Gives shared parameters their gradients. All ranks call it after a step."""
        for t in self._ties:
            self._sync(t)
        for s in self._stages.values():
            s.sums.clear()
            s.unsynced.clear()

    def _sync(self, t: Tied) -> None:
        mine = [(i, n) for i, n in t.copies if i in self._stages]
        if not mine:
            return
        givers = t.copies[:1] if self._exact else t.copies
        own = {(i, n): self._stages[i].sums.get(n, _Sum()).total for i, n in givers if i in self._stages}
        for g in own.values():
            _refuse_sparse(t, g)
        grads = {**own, **self._exchange(t, givers, own)}
        total = _Sum()
        for copy in reversed(givers):  # as one backward: what ran last gives its part first
            g = grads[copy]
            if g is not None:
                total.add(g)
        given: set[int] = set()
        for i, n in mine:
            s = self._stages[i]
            if id(s.params[n]) not in given:  # stages of one rank may hold the very same parameter
                given.add(id(s.params[n]))
                _Sum(total.total).give(s.params[n], s.divisor or 1)

    def _exchange(
        self, t: Tied, givers: Sequence[tuple[int, str]], own: Mapping[tuple[int, str], torch.Tensor | None]
    ) -> dict[tuple[int, str], torch.Tensor | None]:
        """Sends own gradients to the other ranks that hold a copy; gives those of the givers there."""
        peers = self._peers
        assert peers is not None
        device = next(p.device for s in self._stages.values() for p in s.params.values())
        layout = _wire.Layout.of(torch.empty(t.shape, dtype=t.dtype, device="meta"), t.name)
        (_, begin), size = _wire.offsets([1, layout.bytes])  # whether there is a gradient; the gradient
        others = sorted({self._rank_of[i] for i, _ in t.copies} - {peers.rank})
        outgoing, incoming = [], {}
        for tag, copy in enumerate(givers):
            if copy not in own:
                message = torch.empty(size, dtype=torch.uint8, device=self._wire)
                incoming[copy] = Parcel(message, self._rank_of[copy[0]], tag)
                continue
            g = own[copy]
            message = _wire.pack([None if g is None else g.contiguous()], [layout], [begin], size).to(self._wire)
            message[0] = g is not None
            outgoing += [Parcel(message, r, tag) for r in others]
        peers.exchange(outgoing, list(incoming.values()), f"waiting for the gradients of the shared parameter {t.name}")
        return {
            copy: _wire.unpack(p.message.to(device), [layout], [begin])[0] if p.message[0] else None
            for copy, p in incoming.items()
        }


def _refuse_sparse(t: Tied, g: torch.Tensor | None) -> None:
    if g is not None and g.is_sparse:
        raise PipelineError(f"shared parameter {t.name} has sparse gradients; use sparse=False in its embedding")

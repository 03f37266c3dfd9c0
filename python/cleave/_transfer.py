"""Copies boundaries between devices while the next batch is computed.

A Lane copies while the caller's streams compute: on a stream of its own for each GPU, to and from pinned memory
of the host. That memory is torch's, which uses it again when nobody holds it any more: a boundary that a caller keeps
stays what it is. `ahead` begins with the next item before it waits for the one before, and keeps the order, also of
errors."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple, TypeVar

import torch

from .payload import moved, plain

CPU = torch.device("cpu")
Item = TypeVar("Item")
Begun = TypeVar("Begun")


class Transfer(NamedTuple):
    """Tensors on their way, and the events of their arrival; no events: they have arrived."""

    tensors: list[torch.Tensor]
    arrived: list[torch.cuda.Event]

    def finish(self) -> list[torch.Tensor]:
        """The tensors, ready to use: the host waits for copies to the host, current streams wait for the others."""
        gpus = {t.device for t in self.tensors if t.is_cuda}
        for event in self.arrived:
            if any(not t.is_cuda for t in self.tensors):
                event.synchronize()
            for gpu in gpus:
                torch.cuda.current_stream(gpu).wait_event(event)
        if self.arrived:
            for t in self.tensors:
                if t.is_cuda:  # its memory is the lane's: not to be used again before the caller has read it
                    t.record_stream(torch.cuda.current_stream(t.device))
        return self.tensors


class Lane:
    """Copies tensors to other devices."""

    def __init__(self) -> None:
        self._streams: dict[torch.device, torch.cuda.Stream] = {}

    def start(
        self, tensors: Sequence[torch.Tensor], to: Sequence[torch.device], borrowed: Iterable[torch.Tensor] = ()
    ) -> Transfer:
        """Puts each tensor to its device; those that share memory do so there too.

        borrowed: tensors whose memory others may write before the copies are done. What lies on it is copied at once,
        also where it stays on its device. Where nothing has to go anywhere nothing is copied."""
        if all(t.device == place for t, place in zip(tensors, to, strict=True)):
            return Transfer(list(tensors), [])
        foreign = {t.untyped_storage()._cdata for t in borrowed if t.layout is torch.strided and not t.is_nested}
        out = list(tensors)
        arrived: list[torch.cuda.Event] = []
        with torch.no_grad():
            simple = [plain(t) for t in tensors]
            groups: dict[tuple[torch.device, torch.device, bool], list[int]] = {}
            for i, (t, place) in enumerate(zip(simple, to, strict=True)):
                groups.setdefault((t.device, place, t.untyped_storage()._cdata in foreign), []).append(i)
            for (_, place, shared), indices in groups.items():
                new, event = self._group([simple[i] for i in indices], place, shared)
                arrived += [] if event is None else [event]
                for i, t in zip(indices, new, strict=True):
                    out[i] = t if t.requires_grad == tensors[i].requires_grad else t.requires_grad_()
        return Transfer(out, arrived)

    def _group(
        self, tensors: list[torch.Tensor], place: torch.device, shared: bool
    ) -> tuple[list[torch.Tensor], torch.cuda.Event | None]:
        """Tensors of one device that go to one place, on memory that others may write or not."""
        source = tensors[0].device
        if {source.type, place.type} - {"cpu", "cuda"}:
            return moved(tensors, place), None
        leaves_host = source == CPU and place != CPU
        if shared or (leaves_host and not all(t.is_pinned() for t in tensors)):
            tensors = moved(tensors, source, pinned=leaves_host)
        return (tensors, None) if source == place else self._aside(tensors, place)

    def _aside(
        self, tensors: list[torch.Tensor], place: torch.device
    ) -> tuple[list[torch.Tensor], torch.cuda.Event | None]:
        """Copies on the lane's streams."""
        source = tensors[0].device
        with contextlib.ExitStack() as streams:
            for gpu in (place, source):  # the current device is the last one: where the copy runs
                if gpu.type == "cuda":
                    streams.enter_context(torch.cuda.stream(self._stream(gpu, behind=gpu == source)))
            new = moved(tensors, place, pinned=place == CPU, wait=False)
            event = torch.cuda.current_stream().record_event()
        for t in tensors:
            if t.is_cuda:
                t.record_stream(self._streams[source])
        return new, event

    def _stream(self, gpu: torch.device, behind: bool) -> torch.cuda.Stream:
        """The lane's own stream; behind: after what the caller's stream has to do so far."""
        if gpu not in self._streams:
            self._streams[gpu] = torch.cuda.Stream(gpu)  # type: ignore[no-untyped-call]
        if behind:
            self._streams[gpu].wait_stream(torch.cuda.current_stream(gpu))
        return self._streams[gpu]


def ahead(
    items: Iterator[Item],
    begin: Callable[[Item], Begun],
    on_its_way: Callable[[Begun], bool],
    end: Callable[[Begun], Any],
) -> Iterator[Any]:
    """end(begin(item)) for each item, in order. What is on its way is waited for when the next item has begun; an error
    is raised at the place of its item, when all before it were given."""
    waiting: list[Begun] = []
    nothing = object()
    while True:
        error: Exception | None = None
        item: Any = nothing
        begun: list[Begun] = []
        try:
            item = next(items, nothing)
            if item is not nothing:
                begun = [begin(item)]
        except Exception as raised:
            error = raised
        over, item = item is nothing, None  # lets the iterator reuse its memory
        if waiting:
            yield end(waiting.pop())
        if error is not None:
            raise error
        if over:
            return
        if on_its_way(begun[0]):
            waiting = begun
        else:
            yield end(begun.pop())


def check_batches(batches: Any, what: str) -> Iterator[Any]:
    """An iterator over batches; a single batch is refused."""
    if isinstance(batches, torch.Tensor | Mapping | str | bytes) or not isinstance(batches, Iterable):
        raise TypeError(f"{what} are several, in a list or a generator, not {type(batches).__name__}")
    return iter(batches)

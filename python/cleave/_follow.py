"""Calls that follow the link: here, on a server, or in part on both, whichever is fastest now (docs/remote.md)."""

from __future__ import annotations

import os
import threading
from collections.abc import Iterable
from typing import Any, NamedTuple, Protocol, runtime_checkable

from . import _log, _native, _show
from .artifact import LoadedModel, in_memory, load
from .errors import ArgumentError
from .remote import Times, client_arguments

log = _log.logger("remote")


@runtime_checkable
class Captured(Protocol):
    """A Plan or a SplitRuntime."""

    def _whole(self) -> Any:
        """What `save` would write, in memory."""


class Way(NamedTuple):
    """A way to divide a call, and what is known of it now.

    seconds: that a call would take; infinite if none can go that way now. Of that: work here and there, and codec to
    compress, write and read. error: of the outputs, relative to them; 0 where nothing is lost. calls: that went it."""

    name: str
    cut: str | None
    compress: str | None
    remote: bool
    seconds: float
    here: float
    there: float
    codec: float
    sent_bytes: int
    received_bytes: int
    error: float
    calls: int


class Link(NamedTuple):
    """The link as calls show it: seconds of a round trip, bytes per second."""

    round_trip: float
    rate: float


class Follower:
    """A model whose calls run here, on a server, or in part on both. Made by follow; call it as the model was called.
    It has the weights of the file.

    Calls may overlap, from several threads; way, served and times are those of a thread."""

    def __init__(self, model: LoadedModel, native: _native.Follower, url: str) -> None:
        self.model = model
        self.url = url
        self._native = native
        self._last = threading.local()
        self._said: str | None = None

    def __repr__(self) -> str:
        return f"cleave.Follower of {self.model.path} and {self.url}"

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        """The output of the model, in its own structure. The first call also measures the ways."""
        (tensors, times), way, served, _, _ = self._native.run(self.model._input.take_apart(args, kwargs))
        self._last.way = way
        self._last.times = Times(*times) if served else None
        self._say_reason()
        return self.model._plans[0].output.rebuild(tensors)

    def _say_reason(self) -> None:
        reason = self.reason
        if reason != self._said:
            self._said = reason
            log.info("%s: %s", self.url, f"runs here: {reason}" if reason else "answers again")

    @property
    def way(self) -> Way | None:
        """The way that the last call of this thread went."""
        way = getattr(self._last, "way", None)
        return None if way is None else self.ways[way]

    @property
    def served(self) -> str | None:
        """Where the last call of this thread ran: "server", also in part, or "here"."""
        way = self.way
        return None if way is None else "server" if way.remote else "here"

    @property
    def times(self) -> Times | None:
        """Of the server's part in the last call of this thread; None if it had none."""
        return getattr(self._last, "times", None)

    @property
    def ways(self) -> list[Way]:
        """All ways, and what is known of them now; none before the first call."""
        return [Way(*w) for w in self._native.ways()]

    @property
    def link(self) -> Link:
        """What the link is like, as far as calls have shown it."""
        return Link(*self._native.link())

    @property
    def reason(self) -> str | None:
        """Why the last call to the server failed; None: it did not."""
        return self._native.reason()

    def table(self) -> str:
        """The ways for people, the fastest first."""
        rows = [("way", "ms now", "here", "there", "sent", "error", "calls")]
        for w in sorted(self.ways, key=lambda w: w.seconds):
            took = [f"{1e3 * t:.1f}" for t in (w.seconds, w.here, w.there)]
            sent, error = _native.text_bytes(w.sent_bytes) if w.remote else "", f"{w.error:.2g}" if w.error else ""
            rows.append((w.name, took[0], took[1], took[2], sent, error, str(w.calls)))
        return _show.columns(rows, [False, *[True] * 6])


def follow(
    model: str | os.PathLike[str] | LoadedModel | Captured,
    url: str,
    *,
    compress: Iterable[str] | None = None,
    max_error: float | None = None,
    max_cuts: int = 8,
    check: float = 60,
    gain: float = 0.1,
    away: float = 5,
    look: float = 10,
    engine: str | None = None,
    sandbox: bool | None = None,
    **options: Any,
) -> Follower:
    """A model whose calls go the fastest way there is now: all here, all on the server at url, or a prefix here and the
    rest there. It measures both sides and the link, and moves the cut when that pays; nothing is captured again.

    model: a whole model, as a .clv file, a LoadedModel, a Plan or a SplitRuntime; the server has the same under url,
    "https://host:8000/model". compress: how boundaries may be compressed; None: "zstd", which loses nothing. max_error:
    also allows every compression whose outputs are off by no more than this, relative to them, on the inputs of the
    first call. max_cuts: how many cuts are kept ready. check: seconds between checks that the server still has the same
    weights. gain: another way is taken when it is faster by this share. away: seconds for which a server that failed is
    left alone, at least. look: seconds without a call to the server after which one is sent to measure it. engine and
    sandbox: as load takes them, for a model that is not loaded. options: those of connect.

    The first call measures, which takes as long as some dozen calls."""
    opened = _open(model, engine, sandbox)
    if opened.part != "all":
        raise ArgumentError(f"{opened.path} is the {opened.part} of a model; only a whole one can be cut")
    trees = [plan.output for plan in opened._plans]
    if any(tree.tokens != trees[0].tokens or tree.computes_numbers for tree in trees):
        raise ArgumentError(
            f"{opened.path} has outputs that are no tensors, or other ones for other data; a server gives tensors"
        )
    if opened._arguments is None or opened.changed:
        raise ArgumentError(f"{opened.path} was given other weights than its file has: save it, and follow that file")
    methods = None if compress is None else list(compress)
    native = _native.Follower(
        opened._arguments,
        client_arguments(url, **{"retries": 0, **options, "lazy": True}),
        methods,
        max_error or 0.0,
        max_cuts,
        check,
        gain,
        away,
        look,
    )
    return Follower(opened, native, url)


def _open(model: Any, engine: str | None, sandbox: bool | None) -> LoadedModel:
    if isinstance(model, LoadedModel):
        return model
    if isinstance(model, (str, os.PathLike)):
        return load(model, engine=engine, sandbox=sandbox)
    if not isinstance(model, Captured):
        raise TypeError(
            f"follow takes a .clv file, a LoadedModel, a Plan or a SplitRuntime, not {type(model).__name__}"
        )
    return in_memory(f"the {type(model).__name__}", model._whole(), engine, sandbox)

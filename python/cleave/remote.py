"""Models on a server (`cleave serve`): whole, or the suffix of a split whose prefix runs here.

import cleave

there = cleave.connect("https://host:8000/suffix", token="…")
boundary = runtime.run_prefix(x)
output = there.run_suffix(boundary, compress="q4")
there.times.compute  # seconds that the server computed

split = runtime.remote("https://host:8000/suffix", token="…", compress="q4")
output = split(x)  # the prefix here, the rest there; all of it here while the server is away

there = cleave.connect("https://host:8000/suffix-train", token="…")  # a file of save_trainer
boundary = runtime.run_training_prefix(x)
loss, gradients = there.train_suffix(boundary, labels)
runtime.backward_prefix(boundary, gradients, optimizer=mine)
"""

from __future__ import annotations

import json
import os
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple, Protocol

import torch

from . import _native
from .errors import ArgumentError, InputError, RemoteError
from .payload import BoundaryPayload, Compress, check_methods
from .training import target_tensors

Path = str | os.PathLike[str] | None


class Times(NamedTuple):
    """Where the time of a call went, in seconds: encode (compress and write), connect, send, wait (until the answer
    begins), of that in the server queue and compute (nan if it does not say), receive, decode, total. And the bytes of
    both directions, and how often it was tried."""

    encode: float
    connect: float
    send: float
    wait: float
    queue: float
    compute: float
    receive: float
    decode: float
    total: float
    sent_bytes: int
    received_bytes: int
    tries: int


class Port(NamedTuple):
    """A tensor that the server's model takes or gives. A dimension of any size is -1."""

    name: str
    dtype: str
    shape: tuple[int, ...]


class RemoteSession:
    """A suffix that trains on a server, which keeps what it learns on its disk. Made by RemoteModel.open_session.

    Steps have numbers: one whose answer was lost is sent again and made once. After a RemoteError call train_suffix
    again with the same boundary and targets. Several threads wait for each other."""

    def __init__(self, native: _native.RemoteSession, told: Callable[[Times], None]) -> None:
        self._native = native
        self._told = told

    @property
    def id(self) -> str:
        """As the server calls it: another client goes on with open_session(id)."""
        return self._native.id()

    @property
    def steps(self) -> int:
        """Steps whose answers came, those before this client included."""
        return self._native.steps()

    def train_suffix(
        self, boundary: BoundaryPayload, targets: Any, *, compress: Compress = None
    ) -> tuple[torch.Tensor, dict[str, torch.Tensor | None]]:
        """One step there: suffix, loss, backward, optimizer. Gives what SplitRuntime.train_suffix gives: the loss, and
        the gradients of the boundary by label, for backward_prefix.

        compress: how the boundary is sent, as to_bytes takes it; other than "zstd" it changes numbers."""
        if not isinstance(boundary, BoundaryPayload):
            raise TypeError(
                f"train_suffix takes the BoundaryPayload of run_training_prefix, not {type(boundary).__name__}"
            )
        tensors = [t.detach().cpu() for t in target_tensors(targets)]
        start = time.perf_counter()
        data = boundary.to_bytes(compress=compress)
        encode = time.perf_counter() - start
        answer, times = self._native.train(data, tensors)
        took = Times(*times)
        self._told(took._replace(encode=took.encode + encode, total=time.perf_counter() - start))
        return _read_step(boundary, answer)

    def apply_tied(self, gradients: Mapping[str, torch.Tensor]) -> None:
        """Steps parameters that both halves train, with the whole gradients that backward_prefix returned."""
        if not isinstance(gradients, Mapping):
            raise TypeError(f"apply_tied takes the result of backward_prefix, not {type(gradients).__name__}")
        self._native.apply_tied([str(name) for name in gradients], [g.detach().cpu() for g in gradients.values()])

    def state(self) -> bytes:
        """All that the session has learned, as Trainer.restore takes it."""
        return self._native.state()

    def weights(self) -> dict[str, torch.Tensor]:
        """Parameters and buffers that training changes, as they are now, by their names in the model."""
        tensors = BoundaryPayload.from_bytes(self.state()).tensors
        return {name.removeprefix("model."): t for name, t in tensors.items() if name.startswith("model.")}

    def end(self) -> None:
        """Ends it on the server, with what it has learned."""
        self._native.end()

    def __repr__(self) -> str:
        return f"RemoteSession({self.id!r}): {self.steps} steps"


def _read_step(boundary: BoundaryPayload, answer: bytes) -> tuple[torch.Tensor, dict[str, torch.Tensor | None]]:
    found = BoundaryPayload.from_bytes(answer).tensors
    loss = found.pop("loss", None)
    if loss is None or loss.numel() != 1:
        raise RemoteError("the server's answer has no loss")
    gradients: dict[str, torch.Tensor | None] = dict.fromkeys(boundary.tensors)
    for label, gradient in found.items():
        sent = boundary.tensors.get(label)
        if sent is None and not label.startswith("@"):
            raise RemoteError(f"the server sent a gradient of {label}, which it was not sent")
        if sent is not None and (sent.shape, sent.dtype) != (gradient.shape, gradient.dtype):
            raise RemoteError(f"the server's gradient of {label} is {gradient.dtype} of {tuple(gradient.shape)}")
        gradients[label] = gradient if sent is None else gradient.to(sent.device)
    return loss, gradients


class RemoteModel:
    """A model on a server. Made by connect. Calls may overlap, from several threads."""

    def __init__(self, url: str, client: _native.Remote) -> None:
        self.url = url
        self._client = client
        self._last = threading.local()
        self._opening = threading.Lock()
        self._session: RemoteSession | None = None

    def __repr__(self) -> str:
        return f"RemoteModel({self.url!r})"

    @property
    def metadata(self) -> dict[str, Any]:
        """What the server says of the model."""
        described: dict[str, Any] = json.loads(self._client.metadata())
        return described

    @property
    def inputs(self) -> tuple[Port, ...]:
        """What a call takes."""
        return self._ports(self._client.inputs)

    @property
    def outputs(self) -> tuple[Port, ...]:
        """What a call gives."""
        return self._ports(self._client.outputs)

    @property
    def times(self) -> Times | None:
        """Of the last call of this thread that went well."""
        return getattr(self._last, "times", None)

    def ping(self) -> float:
        """Seconds of a round trip to the server."""
        return self._client.ping()

    def run_suffix(self, boundary: BoundaryPayload, *, compress: Compress = None) -> Any:
        """Runs the suffix on the server: its output if there is one, else a dict of them by name.

        compress: as to_bytes takes it."""
        return self._named(self._run_boundary(boundary, compress))

    def open_session(
        self,
        id: str | None = None,
        *,
        member: str | None = None,
        accumulate: int = 1,
        seed: int | None = None,
    ) -> RemoteSession:
        """A session of training, of a file that SplitRuntime.save_trainer wrote. One with this id goes on.

        accumulate: steps whose gradients add up before the optimizer steps. member: who takes part in a session that
        several clients share; `accumulate` is how many they are then. seed: as torch.manual_seed takes it; None: the
        file's."""
        if not 1 <= accumulate < 1 << 31:
            raise ArgumentError(f"accumulate is a number from 1 to 2**31 - 1, not {accumulate}")
        number = None if seed is None else seed % (1 << 64)
        native = _native.RemoteSession(self._client, id, member, member is not None, accumulate, number)
        return RemoteSession(native, self._note)

    @property
    def session(self) -> RemoteSession:
        """The session of train_suffix: a new one of its own, opened when it is first asked for."""
        with self._opening:
            if self._session is None:
                self._session = self.open_session()
            return self._session

    def train_suffix(
        self, boundary: BoundaryPayload, targets: Any, *, compress: Compress = None
    ) -> tuple[torch.Tensor, dict[str, torch.Tensor | None]]:
        """One training step of `session`: the loss, and gradients for backward_prefix."""
        return self.session.train_suffix(boundary, targets, compress=compress)

    def _note(self, times: Times) -> None:
        self._last.times = times

    def __call__(self, *args: torch.Tensor, **kwargs: torch.Tensor) -> Any:
        """Runs the whole model on the server; inputs by position or by name. Gives what run_suffix gives."""
        names = [port.name for port in self.inputs]
        given = dict(zip(names, args, strict=False))
        wrong = [name for name in kwargs if name in given or name not in names]
        if len(args) > len(names) or wrong or len(given) + len(kwargs) != len(names):
            raise InputError(f"the model takes {', '.join(names)}, each once")
        given.update(kwargs)
        tensors, times = self._client.run([given[name].detach().cpu() for name in names])
        self._last.times = Times(*times)
        return self._named(tensors)

    def _ports(self, which: Callable[[], list[_native.PortFields]]) -> tuple[Port, ...]:
        self._client.metadata()
        return tuple(Port(name, dtype, tuple(map(int, dims))) for name, dtype, dims, _ in which())

    def _run_boundary(self, boundary: BoundaryPayload, compress: Compress) -> list[torch.Tensor]:
        if not isinstance(boundary, BoundaryPayload):
            raise TypeError(f"run_suffix takes the BoundaryPayload of run_prefix, not {type(boundary).__name__}")
        start = time.perf_counter()
        data = boundary.to_bytes(compress=compress)
        encode = time.perf_counter() - start
        tensors, times = self._client.run_boundary(data)
        took = Times(*times)
        self._last.times = took._replace(encode=encode, total=took.total + encode)
        return tensors

    def _named(self, tensors: list[torch.Tensor]) -> Any:
        if len(tensors) == 1:
            return tensors[0]
        return dict(zip((port.name for port in self.outputs), tensors, strict=True))


def connect(
    url: str,
    *,
    token: str | None = None,
    ca: Path = None,
    cert: Path = None,
    key: Path = None,
    timeout: float = 60,
    connect_timeout: float = 5,
    retries: int = 2,
    connections: int = 8,
    insecure: bool = False,
    lazy: bool = False,
) -> RemoteModel:
    """A model on a server, "https://host:8000/model", or model@cut for the suffix of it behind a cut.

    token: who asks. ca: a PEM file with the certificates that are trusted, instead of the system's. cert and key: a
    certificate that shows the server who asks. timeout: seconds for a call with all its retries. connections: calls at
    a time; more wait. insecure: the token may go over http:// to another machine. lazy: the server is not asked before
    the first call.

    Raises RemoteError, a ConnectionError, if the server cannot be reached, is too busy or too slow."""
    return RemoteModel(url, _native.Remote(*client_arguments(**locals())))


def client_arguments(url: str, **given: Any) -> tuple[Any, ...]:
    """The arguments of connect, or its defaults, checked, as the extension takes them."""
    defaults: dict[str, Any] = connect.__kwdefaults__ or {}
    strange = given.keys() - defaults.keys()
    if strange:
        raise TypeError(f"connect() has no argument {min(strange)!r}")
    o = {**defaults, **given}
    if o["retries"] < 0 or o["connections"] < 1:
        raise ArgumentError("retries is 0 or more, connections 1 or more")
    o.update({name: os.fspath(o[name]) for name in ("ca", "cert", "key") if o[name] is not None})
    return url, *{**o, "retries": o["retries"] or -1}.values()


class Divided(Protocol):
    """What has a prefix to run here: a SplitRuntime, or the prefix of a file."""

    def run_prefix(self, *args: Any, **kwargs: Any) -> BoundaryPayload:
        """Runs the model up to the boundary."""

    def _outputs_from(self, boundary: BoundaryPayload, tensors: Sequence[torch.Tensor]) -> Any:
        """The output of the model, of tensors that a suffix elsewhere gave."""


class RemoteSplit:
    """A split whose prefix runs here and whose suffix runs on a server. Made by SplitRuntime.remote and
    LoadedModel.remote.

    `served` says where the last call of this thread ran: "server" or "here"."""

    def __init__(
        self,
        runtime: Divided,
        there: RemoteModel,
        compress: Compress,
        fallback: Callable[[BoundaryPayload], Any] | None,
    ) -> None:
        for method in [compress] if not isinstance(compress, dict) else list(compress.values()):
            check_methods(method)
        self.runtime = runtime
        self.there = there
        self.compress = compress
        self._fallback = fallback
        self._last = threading.local()

    @property
    def times(self) -> Times | None:
        """Of the last call of this thread that ran on the server."""
        return self.there.times

    @property
    def served(self) -> str | None:
        """Where the last call of this thread ran."""
        return getattr(self._last, "served", None)

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        """The output of the model, in its own structure."""
        return self.run_suffix(self.runtime.run_prefix(*args, **kwargs))

    def train_suffix(
        self, boundary: BoundaryPayload, targets: Any
    ) -> tuple[torch.Tensor, dict[str, torch.Tensor | None]]:
        """One training step of the suffix there, which is a file of save_trainer: the loss, and gradients for
        runtime.backward_prefix. Nothing takes its place while the server is away."""
        return self.there.train_suffix(boundary, targets, compress=self.compress)

    def run_suffix(self, boundary: BoundaryPayload) -> Any:
        """The rest of the model, on the server or, while that is away, here."""
        try:
            tensors = self.there._run_boundary(boundary, self.compress)
        except RemoteError:
            if self._fallback is None:
                raise
            self._last.served = "here"
            return self._fallback(boundary)
        self._last.served = "server"
        return self.runtime._outputs_from(boundary, tensors)

"""Payloads: the boundary of a split, or any values, as a safetensors file (docs/payload.md).

Nothing is pickled and no code runs when a payload is read; a file that is not as it should be is a PayloadError.

>>> import torch, cleave
>>> data = cleave.pack({"grad": torch.ones(2), "step": 3, 7: (None, 0.5)})
>>> cleave.unpack(data)
{'grad': tensor([1., 1.]), 'step': 3, 7: (None, 0.5)}
"""

from __future__ import annotations

import os
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import torch

from . import _native, _show
from .errors import ArgumentError, InputError, PayloadError

MOST_SHOWN = 4  # tensors of a boundary that its repr names

METHODS = tuple(_native.encodings.split(", "))  # ways to compress (src/file/narrow.h)

Device = str | torch.device | int | None
Compress = str | Mapping[str, str] | None


@dataclass(frozen=True)
class TensorSchema:
    """What a tensor of the boundary has to be: dimensions are numbers or expressions of plan text ("B", "4*B+1")."""

    dtype: str
    shape: tuple[int | str, ...]
    device: str = "cpu"
    requires_grad: bool = False

    def __str__(self) -> str:
        grad = ", requires grad" if self.requires_grad else ""
        return f"{self.dtype}[{','.join(map(str, self.shape))}] on {self.device}{grad}"


class CompressionError(NamedTuple):
    """What compression cost a tensor. Zeros where nothing is lost, infinities where a number became infinite.

    max_abs: the largest difference. relative: what an element lost by its own magnitude, the mean over elements other
    than 0; an outlier cannot hide what small elements lost. l2: the root of the sum of squares of the differences, by
    that of the tensor. What that does to the output of the model is for cleave.validate_split to say."""

    method: str
    max_abs: float
    relative: float
    l2: float


@dataclass(frozen=True, eq=False, repr=False)
class BoundaryPayload(_show.Shown):
    """What crosses from prefix to suffix: tensors by their label in the plan that graph_signature names."""

    split_id: str
    graph_signature: str
    batch_size: int | None
    tensors: dict[str, torch.Tensor]
    passthrough_inputs: tuple[str, ...] = ()
    weight_version: int = 0
    schema: dict[str, TensorSchema] = field(default_factory=dict)
    requires_grad: dict[str, bool] = field(default_factory=dict)
    supports_prefix_backward: bool = False
    values: Any = None
    sizes: dict[str, int] = field(default_factory=dict)
    compression_error: dict[str, CompressionError] = field(default_factory=dict, repr=False)
    record: Any = field(default=None, repr=False)  # of this process alone, as the next: never written
    inputs: Any = field(default=None, repr=False)  # that the prefix got, where the suffix reads its data

    @property
    def nbytes(self) -> int:
        """Bytes of all tensors that cross."""
        return sum(t.numel() * t.element_size() for t in self.tensors.values())

    def _shown(self) -> tuple[str, _show.Facts]:
        tensors = dict(self.tensors)
        sizes = "".join(f", {name}={n}" for name, n in self.sizes.items())
        amount = f"{_show.plural(len(tensors), 'tensor')}, {_native.text_bytes(self.nbytes)}"
        kind = ", for training" if self.supports_prefix_backward else ""
        head = f"cleave.BoundaryPayload of split {self.split_id}: {amount}{sizes}{kind}"
        facts = [(label, _show.tensor_text(t)) for label, t in list(tensors.items())[:MOST_SHOWN]]
        if len(tensors) > MOST_SHOWN:
            facts.append(("…", f"{len(tensors) - MOST_SHOWN} more"))
        return head, facts

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "record": None}  # copies and pickles are as what from_bytes gives

    @property
    def prefix_backward_owner_id(self) -> int | None:
        """Tells the runtimes of this process apart: the one whose backward_prefix takes this boundary, None: none."""
        return None if self.record is None else id(self.record.owner)

    def to_bytes(self, compress: Compress = None, *, checksum: bool = True) -> bytes:
        """The payload as a safetensors file.

        compress: "fp16", "bf16", "int8" or "q1" to "q8" (bits per element, clipped and entropy-coded) for all
        floating-point `tensors` that get smaller by it, "zstd" (without a loss) for all, or {label: method} for some of
        them; compression_error then says what it cost. `values` stay exact. Tensors on other devices are copied to the
        CPU first. checksum: readers notice a changed byte."""
        data = self._write(compress, checksum, None)
        assert data is not None
        return data

    def save(self, path: str | os.PathLike[str], compress: Compress = None, *, checksum: bool = True) -> None:
        """Writes to_bytes() to a file, which is there whole or not at all."""
        self._write(compress, checksum, os.fsencode(path))

    def _write(self, compress: Compress, checksum: bool, path: bytes | None) -> bytes | None:
        method = _methods(compress, self.tensors)
        values = _encoded(self.values)
        data, losses = _native.payload_write(self._fields(), self.tensors, values, method, checksum, path, to_host)
        self.compression_error.clear()
        self.compression_error.update(_errors(losses))
        return data

    def _fields(self) -> _native.Fields:
        schema = [_schema_fields(label, s) for label, s in self.schema.items()]
        through, backward = tuple(self.passthrough_inputs), self.supports_prefix_backward
        head = (self.split_id, self.graph_signature, self.batch_size, self.sizes, schema)
        return (*head, self.requires_grad, self.weight_version, through, backward)

    @classmethod
    def from_bytes(cls, data: Any, device: Device = None) -> BoundaryPayload:
        """A payload from what to_bytes gave (any bytes-like object), its tensors on `device` (default: CPU)."""
        return cls._read(data, None, device)

    @classmethod
    def load(cls, path: str | os.PathLike[str], device: Device = None) -> BoundaryPayload:
        """A payload from a file that save wrote."""
        return cls._read(None, os.fsencode(path), device)

    @classmethod
    def _read(cls, data: Any, path: bytes | None, device: Device) -> BoundaryPayload:
        fields, tensors, values, losses = _native.payload_read(True, data, path, _Place(device))
        assert fields is not None
        split_id, signature, batch, sizes, schema, grad, version, through, backward = fields
        if len({s[0] for s in schema}) != len(schema):
            raise PayloadError("the schema of the boundary has a label twice")
        return cls(
            split_id,
            signature,
            batch,
            tensors,
            through,
            version,
            {label: TensorSchema(dtype, dims(shape), where, g) for label, dtype, shape, where, g in schema},
            grad,
            backward,
            _decoded(values),
            sizes,
            _errors(losses),
        )


def pack(values: Any, *, checksum: bool = True) -> bytes:
    """Any tree of tensors and plain values as bytes: None, bool, int, float, complex, str, bytes, slice, range,
    torch.Size in lists, tuples and dicts. Tensors that share memory do so again when they are unpacked.
    checksum: unpack notices when a byte has changed.

    >>> import cleave
    >>> cleave.unpack(cleave.pack([1 << 100, b"x", slice(None, 3)]))
    [1267650600228229401496703205376, b'x', slice(None, 3, None)]
    """
    data, _ = _native.payload_write(None, {}, _encoded(values), None, checksum, None, to_host)
    assert data is not None
    return data


def unpack(data: Any, device: Device = None) -> Any:
    """What pack packed, with its tensors on `device` (default: CPU)."""
    return _decoded(_native.payload_read(False, data, None, _Place(device))[2])


# ---- classes of the user's own ---------------------------------------------------------------------------------------

_OBJECT = "cleave.object"  # the only key of a dict that stands for an object
_serializers: dict[type, tuple[str, Callable[[Any], Any], Callable[[Any], Any]]] = {}


def register_serializer(cls: type, encode: Callable[[Any], Any], decode: Callable[[Any], Any]) -> None:
    """Lets payloads hold objects of a class: encode gives plain values for one, decode the object for them.

    A reader needs the same registration; the class goes by its module and name.

    >>> import fractions, cleave
    >>> half = fractions.Fraction(1, 2)
    >>> cleave.payload.register_serializer(fractions.Fraction, str, fractions.Fraction)
    >>> cleave.unpack(cleave.pack([half]))
    [Fraction(1, 2)]
    """
    if not isinstance(cls, type) or not callable(encode) or not callable(decode):
        raise TypeError("a serializer is a class and two functions")
    _serializers[cls] = (f"{cls.__module__}.{cls.__qualname__}", encode, decode)


def _encoded(value: Any) -> Any:
    """Values with every object of a registered class as a dict."""
    if not _serializers:
        return value
    if type(value) in _serializers:
        name, encode, _ = _serializers[type(value)]
        return {_OBJECT: (name, _encoded(encode(value)))}
    return _each(value, _encoded)


def _decoded(value: Any) -> Any:
    """The other way round."""
    if type(value) is dict and list(value) == [_OBJECT]:
        name, plain = value[_OBJECT]
        for known, _, decode in _serializers.values():
            if known == name:
                return decode(_decoded(plain))
        raise PayloadError(f"the payload holds a {name}: register_serializer has to be called for it first")
    return _each(value, _decoded)


def _each(value: Any, change: Callable[[Any], Any]) -> Any:
    if type(value) in (list, tuple):
        return type(value)(map(change, value))
    return {key: change(item) for key, item in value.items()} if type(value) is dict else value


def check(
    payload: BoundaryPayload,
    *,
    split_id: str,
    signatures: str | Collection[str],
    schema: Mapping[str, TensorSchema],
    sizes: Mapping[str, int | tuple[int, int]] | None = None,
    strict: bool = False,
) -> None:
    """Raises PayloadError unless a payload is what a split expects.

    Always: split, plan, sizes (a number, or a range with both ends) and labels. strict: also dtype, every dimension,
    device class and grad flag of every tensor, and the schema that the payload itself brings."""
    known = [signatures] if isinstance(signatures, str) else list(signatures)
    ends = {name: (want, want) if isinstance(want, int) else want for name, want in (sizes or {}).items()}
    ranges = [(name, low, high, False) for name, (low, high) in ends.items()]
    try:
        _native.boundary_check((split_id, known, ranges, list(schema)), boundary_facts(payload))
    except InputError as error:
        raise PayloadError(str(error)) from None
    if strict:
        _check_own_schema(payload, schema)
        check_tensors(schema, payload.tensors, payload.sizes)


def boundary_facts(payload: BoundaryPayload) -> _native.BoundaryFacts:
    """What a boundary says of itself, as C takes it."""
    sizes = {str(name): n for name, n in payload.sizes.items()}
    labels = [str(label) for label in payload.tensors]
    return str(payload.split_id), str(payload.graph_signature), payload.batch_size, sizes, labels


def check_tensors(schema: Mapping[str, TensorSchema], tensors: dict[str, torch.Tensor], sizes: dict[str, int]) -> None:
    """Raises PayloadError unless every tensor is what the schema says: dtype, dimensions, device class, grad flag."""
    _native.payload_check([_schema_fields(label, s) for label, s in schema.items()], tensors, sizes)


def _check_own_schema(payload: BoundaryPayload, schema: Mapping[str, TensorSchema]) -> None:
    for label, own in payload.schema.items():
        want = schema.get(label)
        if want is None:
            raise PayloadError(f"{label}: the boundary's schema has it, the split's does not")
        if (own.dtype, own.shape, own.requires_grad) != (want.dtype, want.shape, want.requires_grad):
            raise PayloadError(f"{label}: the boundary's schema says {own}, expected {want}")


def _schema_fields(label: str, s: TensorSchema) -> _native.Schema:
    return label, s.dtype, tuple(str(d) for d in s.shape), s.device, s.requires_grad


def dims(texts: tuple[str, ...]) -> tuple[int | str, ...]:
    """Dimensions from plan text: numbers as numbers, expressions as they are."""
    return tuple(int(t) if t.isascii() and t.isdigit() and len(t) < 20 else t for t in texts)


def _errors(losses: Mapping[str, tuple[str, float, float, float]]) -> dict[str, CompressionError]:
    return {label: CompressionError(*loss) for label, loss in losses.items()}


def _methods(compress: Compress, tensors: Mapping[str, torch.Tensor]) -> str | dict[str, str] | None:
    if compress is None or isinstance(compress, str):
        return compress
    if not isinstance(compress, Mapping):
        raise TypeError(f"compress is one of {_native.encodings} or a dict of them by label, not {compress!r}")
    unknown = [label for label in compress if label not in tensors]
    if unknown:
        raise PayloadError(f"compress names {', '.join(map(str, unknown))}, which is not among the tensors")
    return dict(compress)


def check_methods(compress: Compress) -> None:
    """Raises PayloadError for an unknown method."""
    for method in compress.values() if isinstance(compress, Mapping) else (compress,):
        if method is not None and method not in METHODS:
            raise PayloadError(f"compression is one of {_native.encodings}, not {method!r}")


# ---- devices ---------------------------------------------------------------------------------------------------------


def to_host(tensors: list[torch.Tensor]) -> list[torch.Tensor]:
    """The tensors in memory that can be read, sharing what they shared."""
    with torch.no_grad():
        simple = [_integers(plain(t)) for t in tensors]
        away = [t for t in simple if t.device.type != "cpu"]
        there = iter(moved(away, torch.device("cpu")))
        return [t if t.device.type == "cpu" else next(there) for t in simple]


def plain(t: torch.Tensor) -> torch.Tensor:
    """The tensor as bytes hold it, without a graph. PayloadError where that cannot be."""
    if type(t) not in (torch.Tensor, torch.nn.Parameter):
        raise PayloadError(f"a payload cannot hold a {type(t).__module__}.{type(t).__qualname__}, only plain tensors")
    if t.is_nested:
        raise PayloadError("a payload cannot hold a nested tensor")
    if t.device.type == "meta":
        raise PayloadError("a payload cannot hold a tensor on meta: it has no data")
    if t.layout != torch.strided:
        raise PayloadError(f"a payload cannot hold a tensor of layout {t.layout}")
    return t.detach().resolve_conj().resolve_neg()


_INTEGERS = {torch.qint8: torch.int8, torch.quint8: torch.uint8, torch.qint32: torch.int32}


def _integers(t: torch.Tensor) -> torch.Tensor:
    """The integers of a quantised tensor, on its memory: they are copied like others, and keep their strides."""
    if t.dtype not in _INTEGERS:
        return t
    empty = torch.empty(0, dtype=_INTEGERS[t.dtype], device=t.device)
    return empty.set_(t.untyped_storage(), t.storage_offset(), t.shape, t.stride())


def moved(
    tensors: list[torch.Tensor], device: torch.device, *, pinned: bool = False, wait: bool = True
) -> list[torch.Tensor]:
    """Copies on a device with the same strides; a storage that several tensors are on is copied once.

    pinned: the copies are in pinned memory of the host. wait=False: they may be under way on the current stream, except
    of tensors with gaps, which torch would take through memory that it does not keep."""
    users: dict[int, int] = {}
    for t in tensors:
        users[t.untyped_storage()._cdata] = users.get(t.untyped_storage()._cdata, 0) + 1
    storages: dict[int, torch.UntypedStorage] = {}
    out = []
    for t in tensors:
        if t.is_quantized:  # torch makes no empty tensor of such a type
            out.append(t.clone() if t.device == device else t.to(device))
            continue
        key = t.untyped_storage()._cdata
        overlaps = any(n > 1 and s == 0 for n, s in zip(t.shape, t.stride(), strict=True))
        if users[key] == 1 and not overlaps:
            new = torch.empty_strided(t.shape, t.stride(), dtype=t.dtype, device=device, pin_memory=pinned)
            out.append(new.copy_(t, non_blocking=not wait and _dense(t)))
            continue
        if key not in storages:
            whole = torch.empty(0, dtype=torch.uint8, device=t.device).set_(t.untyped_storage())
            new = torch.empty(whole.shape, dtype=torch.uint8, device=device, pin_memory=pinned)
            storages[key] = new.copy_(whole, non_blocking=not wait).untyped_storage()
        empty = torch.empty(0, dtype=t.dtype, device=device)
        out.append(empty.set_(storages[key], t.storage_offset(), t.shape, t.stride()))
    return out


def _dense(t: torch.Tensor) -> bool:
    """Whether its elements lie side by side, in whatever order."""
    return not t.numel() or 1 + sum((n - 1) * s for n, s in zip(t.shape, t.stride(), strict=True)) == t.numel()


def read_device(device: Device) -> torch.device:
    """A device that tensors can go to, with its number."""
    try:
        found = torch.device("cpu" if device is None else device)
        if found.type not in ("cuda", "meta"):
            torch.empty(0, device=found)
    except (RuntimeError, AssertionError, NotImplementedError) as error:
        raise ArgumentError(f"device {device!r}: {str(error).splitlines()[0]}") from None
    if found.type == "meta":
        raise ArgumentError("device 'meta' has no memory: choose one that holds data")
    return _cuda_device(device, found) if found.type == "cuda" else found


def _cuda_device(device: Device, found: torch.device) -> torch.device:
    if not torch.cuda.is_available():
        built = torch.version.cuda or torch.version.hip
        why = "no GPU or no driver was found" if built else f"torch {torch.__version__} is built without it"
        none = "there are 0 CUDA devices, CUDA is not available here"
        raise ArgumentError(f"device {str(device)!r}: {none}: {why}; device='cpu' works")
    count = torch.cuda.device_count()
    if (found.index or 0) >= count:
        raise ArgumentError(f"device {str(device)!r}: there are {count} CUDA devices")
    return found if found.index is not None else torch.device("cuda", torch.cuda.current_device())


class _Place:
    """Puts the memory that tensors will be on where it is wanted."""

    def __init__(self, device: Device) -> None:
        self.device = read_device(device)

    def __call__(self, memories: list[torch.Tensor]) -> list[torch.Tensor]:
        return [m.to(self.device) for m in memories]

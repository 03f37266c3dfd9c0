"""Payloads: boundaries and values as bytes and files."""

from __future__ import annotations

import contextlib
import json
import math
import os
import random
import struct
import subprocess
import sys
import threading
import warnings
from collections import OrderedDict, namedtuple
from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

import cleave
from cleave import BoundaryPayload, PayloadError, _native, pack, unpack
from cleave.payload import TensorSchema, check, moved

safetensors_torch = pytest.importorskip("safetensors.torch")
warnings.filterwarnings("ignore", message="ComplexHalf support")

HELD = [
    torch.bool,
    torch.uint8,
    torch.uint16,
    torch.uint32,
    torch.uint64,
    torch.int8,
    torch.int16,
    torch.int32,
    torch.int64,
    torch.float16,
    torch.bfloat16,
    torch.float32,
    torch.float64,
    torch.complex32,
    torch.complex64,
    torch.complex128,
    torch.float8_e5m2,
    torch.float8_e4m3fn,
    torch.float8_e5m2fnuz,
    torch.float8_e4m3fnuz,
    torch.float8_e8m0fnu,
]


def any_bits(dtype: torch.dtype, *shape: int) -> torch.Tensor:
    """A tensor of random bits."""
    size = torch.empty(0, dtype=dtype).element_size()
    high = 2 if dtype is torch.bool else 256
    return torch.randint(0, high, (*shape, size), dtype=torch.uint8).view(dtype).reshape(shape)


def same(a: torch.Tensor, b: torch.Tensor) -> bool:
    return a.stride() == b.stride() and a.shape == b.shape and a.dtype == b.dtype and bits(a) == bits(b)


def bits(t: torch.Tensor) -> bytes:
    return bytes(t.detach().contiguous().flatten().view(torch.uint8).tolist()) if t.numel() else b""


def boundary(**change: Any) -> BoundaryPayload:
    x = torch.arange(6.0).reshape(2, 3)
    fields: dict[str, Any] = {
        "split_id": "split",
        "graph_signature": "plan",
        "batch_size": 2,
        "tensors": {"%1": x, "%2": torch.arange(4)},
        "schema": {"%1": TensorSchema("f32", ("B", "B+1")), "%2": TensorSchema("i64", ("2*B",))},
        "requires_grad": {"%1": True, "%2": False},
        "weight_version": 7,
        "passthrough_inputs": ("%2",),
        "supports_prefix_backward": True,
        "values": {"mask": None, 3: [x]},
        "sizes": {"B": 2},
    }
    return BoundaryPayload(**{**fields, **change})


def header_of(data: bytes) -> tuple[dict[str, Any], bytes]:
    n = int.from_bytes(data[:8], "little")
    return json.loads(data[8 : 8 + n]), data[8 + n :]


def with_header(header: dict[str, Any], rest: bytes) -> bytes:
    """A file of an edited header, without the check of what it was."""
    header["__metadata__"].pop("cleave.payload.check", None)
    text = json.dumps(header).encode()
    return len(text).to_bytes(8, "little") + text + rest


# ---- tensors ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("dtype", HELD, ids=str)
@pytest.mark.parametrize("shape", [(), (3,), (2, 0, 3), (2, 3, 4)])
def test_every_dtype_comes_back_bit_for_bit_and_other_readers_open_the_file(
    dtype: torch.dtype, shape: tuple[int, ...]
) -> None:
    x = any_bits(dtype, *shape)
    data = pack(x)
    assert same(unpack(data), x)
    (entry,) = safetensors_torch.load(data).values()
    assert bits(entry) == bits(x)


def test_dtypes_that_no_payload_holds_are_refused_by_name() -> None:
    refused = {
        "int4": lambda: torch.empty(2, dtype=torch.uint8).view(torch.int4),
        "bits8": lambda: torch.empty(2, dtype=torch.uint8).view(torch.bits8),
        "f4e2m1x2": lambda: torch.empty(2, dtype=torch.uint8).view(torch.float4_e2m1fn_x2),
        "qu4x2": lambda: torch.quantize_per_channel(torch.ones(2, 4), torch.ones(2), torch.zeros(2), 0, torch.quint4x2),
    }
    for name, make in refused.items():
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            x = make()
        with pytest.raises(PayloadError, match=name):
            pack({"x": x})


QUANTISED = {
    "per tensor": lambda x, t: torch.quantize_per_tensor(x, 0.1, 3, t),
    "per channel": lambda x, t: torch.quantize_per_channel(x, torch.rand(3) + 0.1, torch.tensor([1, 0, 7]), 1, t),
    "float zero points": lambda x, t: torch.quantize_per_channel(x, torch.rand(4) + 0.1, torch.rand(4), 0, t),
    "empty": lambda x, t: torch.quantize_per_tensor(x[:0], 0.1, 3, t),
    "transposed": lambda x, t: torch.quantize_per_tensor(x, 0.1, 3, t).t(),
    "a column": lambda x, t: torch.quantize_per_tensor(x, 0.1, 3, t)[:, 1],
}


def same_quantised(a: torch.Tensor, b: torch.Tensor) -> bool:
    if a.dtype != b.dtype or a.shape != b.shape or a.stride() != b.stride():
        return False
    if a.qscheme() != b.qscheme() or not torch.equal(a.int_repr(), b.int_repr()):
        return False
    if a.qscheme() is torch.per_tensor_affine:
        return a.q_scale() == b.q_scale() and a.q_zero_point() == b.q_zero_point()
    return (
        a.q_per_channel_axis() == b.q_per_channel_axis()
        and same(a.q_per_channel_scales(), b.q_per_channel_scales())
        and same(a.q_per_channel_zero_points(), b.q_per_channel_zero_points())
    )


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("dtype", [torch.qint8, torch.quint8, torch.qint32], ids=str)
@pytest.mark.parametrize("kind", QUANTISED)
def test_quantised_tensors_come_back_with_their_integers_scales_and_zero_points(kind: str, dtype: torch.dtype) -> None:
    if kind == "float zero points" and dtype is not torch.quint8:
        pytest.skip("torch has them for quint8 alone")
    x = QUANTISED[kind](torch.randn(4, 3), dtype)
    for compress in (None, "zstd", "int8", "fp16"):
        one = boundary(tensors={"%1": x}, schema={}, values=[x], requires_grad={}, passthrough_inputs=())
        back = BoundaryPayload.from_bytes(one.to_bytes(compress))
        assert same_quantised(back.tensors["%1"], x)
        assert back.values[0] is back.tensors["%1"]
        assert torch.equal(back.tensors["%1"].dequantize(), x.dequantize())
    safetensors_torch.load(pack([x]))  # other readers see integers


@pytest.mark.filterwarnings("ignore")
def test_views_of_a_quantised_tensor_share_its_memory_again() -> None:
    x = torch.quantize_per_tensor(torch.randn(4, 3), 0.1, 3, torch.qint8)
    whole, row = unpack(pack([x, x[2]]))
    assert row.data_ptr() == whole[2].data_ptr()
    assert same_quantised(whole, x)
    assert same_quantised(row, x[2])


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize(
    ("change", "reason"),
    [
        (lambda t: t.pop("quantiser"), "qi8 and has no quantiser"),
        (lambda t: t["quantiser"].update(scheme="per_row"), "no scheme"),
        (lambda t: t["quantiser"].update(axis=5), "its quantiser has 3 scales on dimension 5"),
        (lambda t: t["quantiser"].update(axis=-1), "no dimension -1"),
        (lambda t: t["quantiser"].update(scales=["0.1"] * 4, zero_points=["0"] * 4), "has 4 scales on dimension 1"),
        (lambda t: t["quantiser"].update(scales=["0.1"] * 2), "2 scales and 3 zero points"),
        (lambda t: t["quantiser"].update(scales=["nan:7ff8000000000000"] * 3), "impossible"),
        (lambda t: t["quantiser"].update(scales=["inf"] * 3), "impossible"),
        (lambda t: t["quantiser"].update(zero_points=["0.5"] * 3), "impossible"),
        (lambda t: t["quantiser"].update(zero_points=["1e18"] * 3), "impossible"),
        (lambda t: t["quantiser"].update(scales=[0.1] * 3), "no number as text"),
        (lambda t: t["quantiser"].update(scales=3), "scales"),
        (lambda t: t.update(quantiser=[]), "scheme"),
        (lambda t: t.update(dtype="i8"), "i8 and has a quantiser"),
        (lambda t: t.update(requires_grad=True), "cannot require grad"),
        (lambda t: t["quantiser"].update(scheme="per_tensor_affine"), "has 3 scales"),
    ],
)
def test_a_forged_quantiser_is_refused(change: Any, reason: str) -> None:
    x = torch.quantize_per_channel(torch.randn(4, 3), torch.rand(3) + 0.1, torch.tensor([1, 0, 7]), 1, torch.qint8)
    header, rest = header_of(pack([x]))
    own = json.loads(header["__metadata__"]["cleave.payload"])
    change(own["tensors"][0])
    header["__metadata__"]["cleave.payload"] = json.dumps(own)
    with pytest.raises(PayloadError, match=reason):
        unpack(with_header(header, rest))


def test_tensors_that_are_no_plain_memory_are_refused_by_kind() -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        nested = torch.nested.nested_tensor([torch.ones(2), torch.ones(3)])
    for x, why in [
        (torch.eye(3).to_sparse(), "sparse_coo"),
        (torch.eye(3).to_sparse_csr(), "sparse_csr"),
        (nested, "nested"),
        (torch.empty(2, device="meta"), "meta"),
        (torch.ones(2).as_subclass(type("Odd", (torch.Tensor,), {})), "Odd"),
    ]:
        with pytest.raises(PayloadError, match=why):
            pack([x])


LAYOUTS = {
    "transposed": lambda x: x.t(),
    "channels last": lambda x: x.reshape(2, 3, 2, 2).to(memory_format=torch.channels_last),
    "a column": lambda x: x[:, 1],
    "every second": lambda x: x[::2, ::3],
    "offset": lambda x: x.flatten()[5:9],
    "expanded": lambda x: x[:, :1].expand(4, 100),
    "overlapping": lambda x: x.flatten().unfold(0, 4, 1),
    "as_strided": lambda x: x.as_strided((2, 2), (1, 11), 1),
    "a stride of a size that is one": lambda x: x.as_strided((1, 3), (7, 1)),
    "conjugated": lambda x: torch.complex(x, x).conj(),
    "negated": lambda x: torch.complex(x, x).conj().imag,
    "a leaf with grad": lambda x: x.clone().requires_grad_(),
    "a result with grad": lambda x: x.clone().requires_grad_().exp(),
    "a parameter": lambda x: torch.nn.Parameter(x),
}


@pytest.mark.parametrize("name", LAYOUTS)
def test_layouts_come_back(name: str) -> None:
    x = LAYOUTS[name](torch.arange(24.0).reshape(4, 6))
    back = unpack(pack(x))
    assert same(back, x.resolve_conj().resolve_neg())
    assert back.requires_grad == x.requires_grad
    assert back.is_leaf


def test_a_small_view_of_a_large_tensor_makes_a_small_file() -> None:
    hidden = torch.randn(8, 128, 64)
    data = pack(hidden[:, 0])
    assert len(data) < 4 * 8 * 64 + 2000
    assert same(unpack(data), hidden[:, 0])


def test_shared_memory_is_shared_again() -> None:
    x = torch.arange(12.0).reshape(3, 4)
    q, k, v = x.split((1, 1, 2), 1)
    data = pack({"q": q, "k": k, "v": v, "all": x, "alone": x.clone(), "bytes": x.view(torch.uint8)[1:]})
    back = unpack(data)
    for name, want in {"q": q, "k": k, "v": v, "all": x}.items():
        assert same(back[name], want)
    back["all"].fill_(5)
    assert back["q"].eq(5).all()
    assert back["v"].eq(5).all()
    assert not back["alone"].eq(5).all()
    assert back["bytes"].view(torch.float32).eq(5).all()
    assert len(header_of(data)[1]) == 2 * 48  # one memory for all but `alone`


def test_a_write_through_shared_memory_is_seen_by_autograd() -> None:
    x = torch.ones(4)
    a, b = unpack(pack([x[:2], x[1:]]))
    w = torch.ones(2, requires_grad=True)
    y = (w * a).sum()
    b.fill_(3)
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        y.backward()


def test_memory_between_shared_views_is_not_written() -> None:
    x = torch.full((1000,), 77.0)
    data = pack([x[:2], x[-2:]])
    assert data.count(struct.pack("<f", 77.0)) == 4


def test_one_tensor_in_two_places_is_one_tensor_again() -> None:
    x = torch.ones(2)
    a, b = unpack(pack([x, {"again": x}]))
    assert a is b["again"]


def test_what_is_read_does_not_depend_on_the_bytes_it_came_from() -> None:
    data = bytearray(pack(torch.ones(4)))
    x = unpack(memoryview(data))
    data[-16:] = bytes(16)
    assert x.eq(1).all()


def test_a_tensor_can_be_read_from_bytes_at_any_address() -> None:
    data = pack({"x": torch.arange(5, dtype=torch.float64), "y": torch.tensor([True])})
    for shift in range(8):
        back = unpack(memoryview(bytes(shift) + data)[shift:])
        assert back["x"].tolist() == [0, 1, 2, 3, 4]
        assert back["y"].item() is True


# ---- values ----------------------------------------------------------------------------------------------------------


def nan(payload: int) -> float:
    return struct.unpack("<d", struct.pack("<Q", payload))[0]


def exact(a: Any, b: Any) -> bool:
    """Equal in type and in every bit."""
    if type(a) is not type(b):
        return False
    if isinstance(a, torch.Tensor):
        return same(a, b)
    if isinstance(a, float):
        return struct.pack("<d", a) == struct.pack("<d", b)
    if isinstance(a, complex):
        return exact(a.real, b.real) and exact(a.imag, b.imag)
    if isinstance(a, (list, tuple)):
        return len(a) == len(b) and all(exact(x, y) for x, y in zip(a, b, strict=True))
    if isinstance(a, dict):
        return exact(list(a.keys()), list(b.keys())) and exact(list(a.values()), list(b.values()))
    return bool(a == b)


VALUES = [
    None,
    True,
    False,
    0,
    -1,
    2**63 - 1,
    2**63,
    -(2**63),
    -(2**63) - 1,
    10**5000,
    -(7**3000),
    0.0,
    -0.0,
    0.1,
    5e-324,
    1.7976931348623157e308,
    math.inf,
    -math.inf,
    nan(0x7FF8000000000000),
    nan(0xFFF800000000BEEF),
    complex(-0.0, math.nan),
    "",
    'h\0é😀\n"\\',
    b"",
    bytes(range(256)),
    slice(None),
    slice(1, -(2**70), 3),
    range(2, 10, 3),
    torch.Size([2, 0, 3]),
    [],
    (),
    {},
    [[], [()], ([],)],
    {None: 1, True: 2, 2: 3, 2.5: 4, "k": 5, b"k": 6, (1, ("a", None)): 7, 1j: 8, range(3): 9, torch.Size([1]): 10},
    {"b": 1, "a": 2, "__metadata__": 3},
]


@pytest.mark.parametrize("value", VALUES, ids=lambda v: type(v).__name__)
def test_every_kind_of_value_comes_back(value: Any) -> None:
    assert exact(unpack(pack(value)), value)
    assert exact(BoundaryPayload.from_bytes(boundary(values=[value, value]).to_bytes()).values, [value, value])


Point = namedtuple("Point", "x y")


@pytest.mark.parametrize(
    ("value", "why"),
    [
        (object(), "the value is a object"),
        ({"a": [1, {2, 3}]}, r"values\['a'\]\[1\] is a set"),
        (Point(1, 2), "Point"),
        (OrderedDict(), "OrderedDict"),
        (torch.float32, "torch.dtype"),
        ("\ud800", "surrogate"),
        ({"\udfff": 1}, "surrogate"),
        ({torch.ones(1): 1}, "key that is a tensor"),
        (slice([1]), "slice"),
        (type("Int", (int,), {})(3), "Int"),
        (bytearray(b"x"), "bytearray"),
    ],
)
def test_what_a_payload_cannot_hold_is_refused_with_its_place(value: Any, why: str) -> None:
    with pytest.raises(PayloadError, match=why):
        pack(value)


def test_values_nested_in_themselves_or_too_deep_are_refused() -> None:
    loop: list[Any] = []
    loop.append(loop)
    deep: Any = 1
    for _ in range(250):
        deep = [deep]
    assert exact(unpack(pack(deep)), deep)
    for _ in range(20):
        deep = (deep,)
    for value in (loop, deep):
        with pytest.raises(PayloadError, match="nested"):
            pack(value)


leaves = (
    st.none()
    | st.booleans()
    | st.integers()
    | st.integers(-(2**200), 2**200)
    | st.floats()
    | st.complex_numbers()
    | st.text(st.characters(exclude_categories=["Cs"]), max_size=8)
    | st.binary(max_size=8)
    | st.builds(slice, st.none() | st.integers(), st.none() | st.integers(), st.none() | st.integers())
    | st.builds(any_bits, st.sampled_from(HELD), st.integers(0, 3), st.integers(0, 3))
)
keys = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text("abc", max_size=3) | st.binary(max_size=3),
    lambda inner: st.lists(inner, max_size=2).map(tuple),
    max_leaves=3,
)
trees = st.recursive(
    leaves,
    lambda inner: (
        st.lists(inner, max_size=4) | st.lists(inner, max_size=4).map(tuple) | st.dictionaries(keys, inner, max_size=4)
    ),
    max_leaves=20,
)


@pytest.mark.integration
@settings(max_examples=300, deadline=None)
@given(trees)
def test_random_trees_come_back(tree: Any) -> None:
    data = pack(tree)
    assert exact(unpack(data), tree)
    assert pack(unpack(data)) == data
    safetensors_torch.load(data)


# ---- boundaries ------------------------------------------------------------------------------------------------------


def check_same_boundary(a: BoundaryPayload, b: BoundaryPayload) -> None:
    for name in (
        "split_id",
        "graph_signature",
        "batch_size",
        "schema",
        "requires_grad",
        "weight_version",
        "passthrough_inputs",
        "supports_prefix_backward",
        "sizes",
    ):
        assert getattr(a, name) == getattr(b, name), name
    assert exact(a.tensors, b.tensors)
    assert exact(a.values, b.values)


def test_a_boundary_comes_back_from_bytes_and_files(tmp_path: Path) -> None:
    p = boundary()
    check_same_boundary(BoundaryPayload.from_bytes(p.to_bytes()), p)
    path = tmp_path / "b.safetensors"
    p.save(path)
    back = BoundaryPayload.load(path)
    check_same_boundary(back, p)
    assert back.values[3][0] is back.tensors["%1"]
    assert back.record is None
    assert back.compression_error == {}
    assert path.read_bytes() == p.to_bytes()
    assert set(safetensors_torch.load_file(path)) == {"%1", "%2"}
    assert os.listdir(tmp_path) == ["b.safetensors"]
    assert back.nbytes == p.nbytes == 24 + 32


def test_what_may_be_absent_may_be_absent() -> None:
    p = BoundaryPayload("s", "g", None, {})
    check_same_boundary(BoundaryPayload.from_bytes(p.to_bytes()), p)


def test_the_record_stays_in_the_process() -> None:
    p = boundary(record=object())
    assert BoundaryPayload.from_bytes(p.to_bytes()).record is None
    assert "record" not in repr(p)


def test_grad_flags_come_back() -> None:
    w = torch.ones(3, requires_grad=True)
    back = BoundaryPayload.from_bytes(boundary(tensors={"a": w, "b": w * 2, "c": w.detach()}).to_bytes())
    assert [t.requires_grad for t in back.tensors.values()] == [True, True, False]
    (back.tensors["a"] * 2).sum().backward()
    assert back.tensors["a"].grad is not None


def test_labels_may_be_anything_but_the_formats_own_name() -> None:
    labels = {"": torch.ones(1), 'é " \\': torch.ones(2), "values.0": torch.ones(3), "0": torch.ones(4)}
    extra = torch.zeros(2)
    back = BoundaryPayload.from_bytes(boundary(tensors=labels, values=[extra]).to_bytes())
    assert exact(back.tensors, labels)
    assert same(back.values[0], extra)
    with pytest.raises(PayloadError, match="__metadata__"):
        boundary(tensors={"__metadata__": torch.ones(1)}).to_bytes()
    with pytest.raises(PayloadError, match="NUL"):
        boundary(tensors={"a\0b": torch.ones(1)}).to_bytes()


@pytest.mark.parametrize(
    "change",
    [
        {"split_id": 3},
        {"split_id": "\ud800"},
        {"batch_size": -1},
        {"batch_size": "2"},
        {"weight_version": 2**70},
        {"sizes": {"B": -1}},
        {"sizes": {1: 2}},
        {"tensors": {"%1": 5}},
        {"tensors": {1: torch.ones(1)}},
        {"schema": {"%1": TensorSchema("float32", (1,))}},
        {"values": object()},
    ],
    ids=lambda change: next(iter(change)),
)
def test_wrong_fields_are_payload_errors(change: dict[str, Any]) -> None:
    with pytest.raises(PayloadError):
        boundary(**change).to_bytes()


def test_the_kinds_are_not_mixed_up() -> None:
    with pytest.raises(PayloadError, match="boundary of a split"):
        unpack(boundary().to_bytes())
    with pytest.raises(PayloadError, match="holds values"):
        BoundaryPayload.from_bytes(pack({}))
    foreign = safetensors_torch.save({"x": torch.ones(2)})
    with pytest.raises(PayloadError, match="no payload"):
        unpack(foreign)


def test_errors_of_files_are_os_errors(tmp_path: Path) -> None:
    with pytest.raises(OSError, match="No such file"):
        BoundaryPayload.load(tmp_path / "none")
    with pytest.raises(OSError, match="regular file"):
        BoundaryPayload.load(tmp_path)
    with pytest.raises(OSError, match="No such file"):
        boundary().save(tmp_path / "none" / "b")
    odd = os.fsdecode(os.fsencode(tmp_path) + b"/\xff")
    boundary().save(odd)
    check_same_boundary(BoundaryPayload.load(odd), boundary())


def test_what_is_not_bytes_is_a_type_error() -> None:
    with pytest.raises(TypeError):
        unpack("text")
    with pytest.raises(TypeError):
        BoundaryPayload.from_bytes(3)


# ---- compression -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize(("method", "narrow"), [("fp16", torch.float16), ("bf16", torch.bfloat16)])
def test_half_floats_are_those_of_torch(method: str, narrow: torch.dtype, dtype: torch.dtype) -> None:
    x = torch.cat([torch.randn(2000) * 10.0**e for e in (-8, -5, 0, 3)] + [torch.tensor([0.0, -0.0, math.inf])])
    x = x.to(dtype)
    p = boundary(tensors={"x": x})
    back = BoundaryPayload.from_bytes(p.to_bytes(compress=method)).tensors["x"]
    assert back.dtype == dtype
    want = x.to(narrow).to(dtype)
    if dtype == torch.float32:  # torch rounds doubles twice
        assert bits(back) == bits(want)
    assert torch.allclose(back, want, rtol=1e-2)
    assert p.compression_error["x"].method == method
    check_error(p.compression_error["x"], x, back)


def check_error(error: cleave.payload.CompressionError, x: torch.Tensor, back: torch.Tensor) -> None:
    """What is reported is what it says."""
    x, back = x.double().flatten(), back.double().flatten()
    x, back = x[x.isfinite()], back[x.isfinite()]
    lost = (x - back).abs()
    assert error.max_abs == lost.max().item()
    assert error.relative == pytest.approx((lost / x.abs())[x != 0].mean().item(), rel=1e-9)
    assert error.l2 == pytest.approx((lost.norm() / x.norm()).item(), rel=1e-9)


def through(x: torch.Tensor, compress: str) -> tuple[torch.Tensor, cleave.payload.CompressionError, int]:
    p = boundary(tensors={"x": x}, values=None)
    data = p.to_bytes(compress=compress)
    back = BoundaryPayload.from_bytes(data)
    assert back.compression_error == p.compression_error
    n = int.from_bytes(data[:8], "little") + 8
    return back.tensors["x"], p.compression_error["x"], len(data) - n


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float32, torch.float64])
@pytest.mark.parametrize("shape", [(4, 64, 8, 8), (1, 4096), (3, 50, 96), (2000,)])
def test_int8_survives_an_outlier(shape: tuple[int, ...], dtype: torch.dtype) -> None:
    x = torch.randn(shape, generator=torch.Generator().manual_seed(1))
    x.view(-1)[777] = 3000.0
    x = x.to(dtype)
    back, error, size = through(x, "int8")
    check_error(error, x, back)
    others = torch.ones_like(x, dtype=torch.bool)
    others.view(-1)[777] = False
    a, b = x.double()[others], back.double()[others]
    assert back.view(-1)[777].item() == pytest.approx(3000, rel=0.005)
    near = 64 if x.numel() > 64 * 64 else 128
    assert ((a - b).norm() / a.norm()).item() < (near / x.numel()) ** 0.5 + 0.02
    assert error.relative < near / x.numel() + 0.06
    assert size < 1.3 * x.numel()


def test_int8_has_scales_for_channels_where_they_differ() -> None:
    x = torch.randn(256, 32) * 10.0 ** torch.linspace(-6, 3, 32)
    back, error, size = through(x, "int8")
    check_error(error, x, back)
    assert ((x - back).norm(dim=0) / x.norm(dim=0)).max().item() < 0.02
    assert size == x.numel() + 4 * 32
    x = x.t().contiguous().view(4, 8, 16, 16).transpose(0, 1).contiguous().view(2, 4, 4, 16, 16)[:, :, 0]
    back, error, _ = through(x, "int8")
    check_error(error, x, back)
    assert error.relative < 0.08


def test_int8_clips_where_few_large_values_cost_all_others() -> None:
    g = torch.Generator().manual_seed(2)
    x = torch.rand(60000, 4, generator=g) * 2 - 1
    x[123] = 2.0
    x *= torch.tensor([1e-3, 1.0, 1e3, 1e6])
    back, error, _ = through(x, "int8")
    check_error(error, x, back)
    step = 2.0 / 127
    mean_square = ((x - back) / torch.tensor([1e-3, 1.0, 1e3, 1e6])).square().mean(dim=0)
    assert mean_square.max().item() < 0.9 * step * step / 12
    assert back[123, 1].item() < 2.0


def test_what_int8_cannot_hold_is_reported_as_lost() -> None:
    x = torch.randn(64, 64)
    x[:, ::16] = 1e5 * torch.randn(64, 4).abs()
    back, error, _ = through(x[:3].contiguous(), "int8")  # too few rows for scales of the columns
    check_error(error, x[:3], back)
    assert error.l2 < 0.01
    assert error.relative > 0.8


def test_overflow_to_infinity_is_an_infinite_error() -> None:
    _, error, _ = through(torch.tensor([1.0, 1e6]), "fp16")
    assert error == ("fp16", math.inf, math.inf, math.inf)


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float32, torch.float64])
def test_int8_reports_what_it_cost(dtype: torch.dtype) -> None:
    x = torch.randn(50, 40).to(dtype).t()
    p = boundary(tensors={"x": x, "i": torch.arange(3)})
    data = p.to_bytes(compress="int8")
    received = BoundaryPayload.from_bytes(data)
    back = received.tensors["x"]
    assert back.dtype == dtype
    assert back.stride() == x.stride()
    assert torch.equal(received.tensors["i"], torch.arange(3))
    error = p.compression_error["x"]
    assert received.compression_error == p.compression_error == {"x": error}
    check_error(error, x, back)
    step = x.double().abs().max().item() / 127
    assert error.max_abs <= step / 2 + step * 0.02 + torch.finfo(dtype).eps * 4
    assert safetensors_torch.load(data)["x"].dtype == torch.int8
    assert len(data) < len(boundary(tensors={"x": x}).to_bytes())


def test_compression_by_label_leaves_the_others_alone() -> None:
    x, y = torch.randn(64), torch.randn(64)
    p = boundary(tensors={"x": x, "y": y})
    back = BoundaryPayload.from_bytes(p.to_bytes(compress={"x": "int8"})).tensors
    assert torch.equal(back["y"], y)
    assert not torch.equal(back["x"], x)
    assert list(p.compression_error) == ["x"]
    p.to_bytes()
    assert p.compression_error == {}


def test_compression_of_shared_memory_keeps_it_shared() -> None:
    x = torch.randn(4, 6)
    a, b = x.split(3, 1)
    p = boundary(tensors={"a": a, "b": b}, values=None)
    back = BoundaryPayload.from_bytes(p.to_bytes(compress="bf16")).tensors
    assert torch.equal(back["a"], a.bfloat16().float())
    assert back["a"].untyped_storage().data_ptr() == back["b"].untyped_storage().data_ptr()
    with pytest.raises(PayloadError, match="share memory"):
        p.to_bytes(compress={"a": "bf16"})


@pytest.mark.parametrize(
    ("compress", "why"),
    [("zip", "fp16, bf16, int8, zstd"), ({"z": "fp16"}, "z"), ({"i": "fp16"}, "i64"), ({"x": 3}, "fp16"), (3, "fp16")],
)
def test_compression_that_cannot_be_is_refused(compress: Any, why: str) -> None:
    with pytest.raises((PayloadError, TypeError), match=why):
        boundary(tensors={"x": torch.ones(2), "i": torch.arange(2)}).to_bytes(compress=compress)


def test_int8_refuses_what_is_not_finite() -> None:
    with pytest.raises(PayloadError, match="element 1 is nan"):
        boundary(tensors={"x": torch.tensor([1.0, math.nan])}).to_bytes(compress="int8")


def test_labels_may_look_like_the_scales_of_others() -> None:
    x = torch.randn(40, 256)
    tensors = {"a": x, "cleave.scales.0": x * 2, "a.scales": x * 3, "cleave.scales.1": x.clone()}
    back = BoundaryPayload.from_bytes(boundary(tensors=tensors, values=None).to_bytes(compress="int8")).tensors
    assert all((back[label] - t).norm() / t.norm() < 0.02 for label, t in tensors.items())


# ---- lossless compression --------------------------------------------------------------------------------------------


def has_zstd() -> bool:
    try:
        return bool(boundary().to_bytes(compress="zstd"))
    except PayloadError:
        return False


needs_zstd = pytest.mark.skipif(not has_zstd(), reason="a build without zstd")


@pytest.mark.skipif(has_zstd(), reason="a build with zstd")
def test_a_build_without_zstd_says_so() -> None:
    with pytest.raises(PayloadError, match="this build of Cleave is without zstd: install it"):
        boundary().to_bytes(compress="zstd")


@needs_zstd
@pytest.mark.parametrize("dtype", HELD, ids=str)
@pytest.mark.parametrize("shape", [(), (3,), (2, 0, 3), (40, 30)])
def test_zstd_keeps_every_bit(dtype: torch.dtype, shape: tuple[int, ...]) -> None:
    for x in (any_bits(dtype, *shape), torch.zeros(shape).to(dtype)):
        p = boundary(tensors={"x": x, "y": x.t() if len(shape) == 2 else x.clone()}, values=None)
        back = BoundaryPayload.from_bytes(p.to_bytes(compress="zstd")).tensors
        assert same(back["x"], x)
        assert same(back["y"], p.tensors["y"])


@needs_zstd
def test_zstd_makes_activations_smaller_and_says_that_nothing_is_lost() -> None:
    x = torch.relu(torch.randn(64, 500)).t()
    back, error, size = through(x, "zstd")
    assert same(back, x)
    assert error == ("zstd", 0.0, 0.0, 0.0)
    assert size < 0.75 * x.numel() * 4


@needs_zstd
def test_zstd_leaves_alone_what_it_cannot_make_smaller() -> None:
    x = any_bits(torch.uint8, 4000)
    p = boundary(tensors={"x": x, "zeros": torch.zeros(1000)}, values=None)
    data = p.to_bytes(compress="zstd")
    assert list(p.compression_error) == ["zeros"]
    assert torch.equal(safetensors_torch.load(data)["x"], x)
    assert list(BoundaryPayload.from_bytes(data).compression_error) == ["zeros"]


@needs_zstd
def test_zstd_of_shared_memory_keeps_it_shared() -> None:
    x = torch.relu(torch.randn(64, 60))
    tensors = {"a": x[:, :31], "b": x[:, 29:], "whole": x, "row": x[3].expand(5, 60)}
    back = BoundaryPayload.from_bytes(boundary(tensors=tensors, values=None).to_bytes(compress="zstd")).tensors
    assert exact(back, tensors)
    assert len({t.untyped_storage().data_ptr() for t in back.values()}) == 1


def edited(data: bytes, **change: Any) -> bytes:
    """The file with members of its first memory changed; None takes one away."""
    header, rest = header_of(data)
    text = json.loads(header["__metadata__"]["cleave.payload"])
    memory = {**text["memory"][0], **change}
    text["memory"][0] = {k: v for k, v in memory.items() if v is not None}
    header["__metadata__"]["cleave.payload"] = json.dumps(text)
    return with_header(header, rest)


def resized(data: bytes, shape: list[int], strides: list[int]) -> bytes:
    header, rest = header_of(data)
    text = json.loads(header["__metadata__"]["cleave.payload"])
    text["tensors"][0].update(shape=shape, strides=strides)
    header["__metadata__"]["cleave.payload"] = json.dumps(text)
    return with_header(header, rest)


@needs_zstd
def test_zstd_that_says_another_size_is_refused() -> None:
    data = boundary(tensors={"x": torch.zeros(100, 100)}, values=None).to_bytes(compress="zstd", checksum=False)
    BoundaryPayload.from_bytes(resized(data, [100, 100], [100, 1]))
    for shape in ([100, 101], [100, 99], [1 << 20, 1 << 20], [0, 100]):
        with pytest.raises(PayloadError, match="zstd"):
            BoundaryPayload.from_bytes(resized(data, shape, [shape[1], 1]))
    with pytest.raises(PayloadError, match="too much memory"):
        BoundaryPayload.from_bytes(resized(data, [100, 100], [1 << 30, 1]))


@needs_zstd
def test_a_small_file_cannot_ask_for_much_memory() -> None:
    """64 MiB of zeros are 2 kB of zstd: more of them are written as they are."""
    x = torch.zeros((80 << 20) // 4)
    p = boundary(tensors={"x": x}, values=None)
    data = p.to_bytes(compress="zstd")
    assert p.compression_error == {}
    assert len(data) > 80 << 20
    assert torch.equal(BoundaryPayload.from_bytes(data).tensors["x"], x)


def test_a_tensor_with_wide_gaps_keeps_its_strides() -> None:
    x = torch.arange(500_000 * 60, dtype=torch.float32)[::60]
    got = BoundaryPayload.from_bytes(boundary(tensors={"x": x}, values=None).to_bytes()).tensors["x"]
    assert got.stride() == (60,)
    assert torch.equal(got, x)


@needs_zstd
def test_damaged_zstd_is_refused_without_a_checksum_too() -> None:
    data = boundary(tensors={"x": torch.relu(torch.randn(4000))}, values=None).to_bytes("zstd", checksum=False)
    n = int.from_bytes(data[:8], "little") + 8
    source, refused = random.Random(6), []
    for _ in range(200):
        try:
            BoundaryPayload.from_bytes(flipped(data, source.randrange(8 * n, 8 * len(data))))
        except PayloadError as error:
            refused.append(str(error))
    assert refused
    assert all("zstd" in text for text in refused)


@pytest.mark.parametrize(
    ("change", "why"),
    [
        ({"scales": "nothing"}, "not in the file"),
        ({"scales": 3}, "scales"),
        ({"run": 0}, "run"),
        ({"run": -1}, "run"),
        ({"run": 1 << 62}, "scales"),
        ({"run": None}, "run"),
        ({"scales": "x"}, "used twice"),
        ({"encoding": "fp16"}, "no tensor is in entry"),
    ],
)
def test_scales_that_do_not_fit_are_refused(change: dict[str, Any], why: str) -> None:
    x = torch.randn(64, 32) * 10.0 ** torch.linspace(-6, 3, 32)
    data = boundary(tensors={"x": x}, values=None).to_bytes(compress="int8", checksum=False)
    assert '"scales"' in header_of(data)[0]["__metadata__"]["cleave.payload"]
    BoundaryPayload.from_bytes(edited(data))
    with pytest.raises(PayloadError, match=why):
        BoundaryPayload.from_bytes(edited(data, **change))


def test_scales_have_to_be_finite_and_positive() -> None:
    x = torch.randn(64, 32) * 10.0 ** torch.linspace(-6, 3, 32)
    data = boundary(tensors={"x": x}, values=None).to_bytes(compress="int8", checksum=False)
    header, rest = header_of(data)
    begin = header["cleave.scales.0"]["data_offsets"][0]
    for wrong in (0.0, -1.0, math.inf, math.nan):
        changed = rest[: begin + 8] + struct.pack("<f", wrong) + rest[begin + 12 :]
        with pytest.raises(PayloadError, match=r"scale 2 .* not finite and positive"):
            BoundaryPayload.from_bytes(with_header(header, changed))


# ---- checking --------------------------------------------------------------------------------------------------------


def expect(**change: Any) -> dict[str, Any]:
    return {"split_id": "split", "signatures": {"plan"}, "schema": boundary().schema, "sizes": {"B": (1, 4)}, **change}


@pytest.mark.parametrize("strict", [False, True])
def test_a_boundary_that_fits_passes(strict: bool) -> None:
    check(boundary(), **expect(), strict=strict)
    check(boundary(), **expect(signatures="plan", sizes=None), strict=strict)


@pytest.mark.parametrize(
    ("payload", "expected", "why"),
    [
        ({"split_id": "x"}, {}, "belongs to split x, not to split"),
        ({"graph_signature": "x"}, {}, "plan x, not by plan"),
        ({"sizes": {}}, {}, "lacks the size B"),
        ({}, {"sizes": {"B": 3}}, "B=2, expected 3"),
        ({}, {"sizes": {"B": (3, 5)}}, "B=2, expected 3 to 5"),
        ({"batch_size": 3}, {}, "batch 3"),
        ({"tensors": {"%1": torch.ones(2, 3)}}, {}, "lacks %2"),
        ({"tensors": {**boundary().tensors, "%9": torch.ones(1)}}, {}, "has %9"),
    ],
)
def test_fast_checks_refuse_with_the_reason(payload: dict[str, Any], expected: dict[str, Any], why: str) -> None:
    with pytest.raises(PayloadError, match=why):
        check(boundary(**payload), **expect(**expected))


@pytest.mark.parametrize(
    ("tensor", "why"),
    [
        (torch.ones(2, 3, dtype=torch.float64), "%1: dtype is f64, expected f32"),
        (torch.ones(2, 3, 1), "%1: it has 3 dimensions, expected 2"),
        (torch.ones(3, 3), r"%1: dimension 0 is 3, expected B = 2"),
        (torch.ones(2, 4), r"%1: dimension 1 is 4, expected B\+1 = 3"),
        (torch.ones(2, 3, device="meta"), "%1: it is on meta, expected cpu"),
        (torch.ones(2, 3, requires_grad=True), "%1: it requires grad"),
    ],
)
def test_strict_checks_name_label_expected_and_got(tensor: torch.Tensor, why: str) -> None:
    p = boundary(tensors={**boundary().tensors, "%1": tensor})
    check(p, **expect())
    with pytest.raises(PayloadError, match=why):
        check(p, **expect(), strict=True)


def test_strict_checks_compare_the_schema_that_came_along() -> None:
    p = boundary(schema={"%1": TensorSchema("f32", ("B", 4))})
    with pytest.raises(PayloadError, match=r"%1: the boundary's schema says f32\[B,4\]"):
        check(p, **expect(), strict=True)


# ---- hostile files ---------------------------------------------------------------------------------------------------


def read_all(data: bytes) -> None:
    """Nothing but a PayloadError comes out of either reader, or a payload."""
    for read in (BoundaryPayload.from_bytes, unpack):
        with contextlib.suppress(PayloadError, MemoryError):
            read(data)


def test_truncated_files_are_refused_as_such(tmp_path: Path) -> None:
    data = boundary().to_bytes()
    for n in range(len(data)):
        with pytest.raises(PayloadError, match=f"truncated: it has {n} bytes"):
            BoundaryPayload.from_bytes(data[:n])
    path = tmp_path / "b"
    path.write_bytes(data[:-5])
    with pytest.raises(PayloadError, match=f"truncated: it has {len(data) - 5} bytes and should have {len(data)}"):
        BoundaryPayload.load(path)
    with pytest.raises(PayloadError, match="end at byte"):
        BoundaryPayload.from_bytes(data + b"x")


# ---- checksums -------------------------------------------------------------------------------------------------------


def flipped(data: bytes, bit: int) -> bytes:
    changed = bytearray(data)
    changed[bit // 8] ^= 1 << bit % 8
    return bytes(changed)


@pytest.mark.parametrize("compress", [None, "fp16", "int8"])
def test_a_flipped_bit_of_the_data_is_refused_by_name(compress: str | None) -> None:
    x = torch.randn(40, 50)
    data = boundary(tensors={"x": x, "i": torch.arange(3)}, values=None).to_bytes(compress=compress)
    n = int.from_bytes(data[:8], "little") + 8
    source = random.Random(5)
    for _ in range(300):
        with pytest.raises(PayloadError, match=r'data of tensor "[xi]" was changed or damaged'):
            BoundaryPayload.from_bytes(flipped(data, source.randrange(8 * n, 8 * len(data))))


def test_a_flipped_bit_anywhere_is_refused_or_changes_nothing() -> None:
    p = boundary(values=[5, 0.25, "text", b"bytes"])
    data = p.to_bytes()
    for bit in range(8 * len(data)):
        try:
            back = BoundaryPayload.from_bytes(flipped(data, bit))
        except PayloadError:
            continue
        check_same_boundary(back, p)


def test_values_are_checked_too() -> None:
    data = pack({"x": torch.ones(3)})
    with pytest.raises(PayloadError, match="changed or damaged"):
        unpack(flipped(data, 8 * len(data) - 1))
    text = data.replace(b"values", b"valves")
    with pytest.raises(PayloadError, match=r"header .* changed or damaged"):
        unpack(text)


def test_the_checksum_may_be_left_out(tmp_path: Path) -> None:
    p = boundary()
    data = p.to_bytes(checksum=False)
    assert len(data) < len(p.to_bytes())
    assert b"digest" not in data
    assert b"check" not in data
    check_same_boundary(BoundaryPayload.from_bytes(data), p)
    BoundaryPayload.from_bytes(flipped(data, 8 * len(data) - 1))  # nobody can tell
    p.save(tmp_path / "b", checksum=False)
    assert (tmp_path / "b").read_bytes() == data
    assert b"digest" not in pack([torch.ones(2)], checksum=False)


def test_a_payload_that_checks_some_of_its_data_alone_is_refused() -> None:
    header, rest = header_of(boundary().to_bytes())
    text = json.loads(header["__metadata__"]["cleave.payload"])
    del text["memory"][1]["digest"]
    header["__metadata__"]["cleave.payload"] = json.dumps(text)
    with pytest.raises(PayloadError, match="digest"):
        BoundaryPayload.from_bytes(with_header(header, rest))
    text["memory"][1]["digest"] = "0x"
    header["__metadata__"]["cleave.payload"] = json.dumps(text)
    with pytest.raises(PayloadError, match="digest"):
        BoundaryPayload.from_bytes(with_header(header, rest))


@pytest.mark.integration
def test_changed_bits_give_an_error_or_a_payload() -> None:
    """Without digests: with them every change is refused, which the tests above see."""
    data = boundary(values=VALUES[:20]).to_bytes(compress="int8", checksum=False)
    source, read = random.Random(3), [0, 0]
    for _ in range(4000):
        changed = bytearray(data)
        for _ in range(source.randint(1, 4)):
            changed[source.randrange(len(changed))] ^= 1 << source.randrange(8)
        try:
            got = BoundaryPayload.from_bytes(bytes(changed))
        except (PayloadError, MemoryError):
            read[0] += 1
            continue
        read[1] += 1
        assert all(isinstance(t, torch.Tensor) for t in got.tensors.values())
        assert BoundaryPayload.from_bytes(got.to_bytes()).split_id == got.split_id
    assert min(read) > 100, "some changes are refused, others are other numbers"


@pytest.mark.integration
def test_with_digests_a_changed_bit_is_refused_or_changes_nothing() -> None:
    """The name of the check itself may be changed: then what it is about is not."""
    p = boundary()
    data, refused = p.to_bytes(), 0
    for bit in range(0, 8 * len(data), 3):
        try:
            got = BoundaryPayload.from_bytes(flipped(data, bit))
        except PayloadError:
            refused += 1
        else:
            check_same_boundary(got, p)
    assert refused > 0.9 * len(data) * 8 / 3


def test_random_bytes_are_refused() -> None:
    source = random.Random(4)
    for n in [*range(20), 1000]:
        data = source.randbytes(n)
        for read in (BoundaryPayload.from_bytes, unpack):
            with pytest.raises(PayloadError):
                read(data)


def test_a_newer_version_is_refused() -> None:
    header, rest = header_of(pack(1))
    text = header["__metadata__"]["cleave.payload"].replace('"version":1', '"version":2')
    header["__metadata__"]["cleave.payload"] = text
    with pytest.raises(PayloadError, match="version 2"):
        unpack(with_header(header, rest))


def test_keys_that_are_equal_in_python_are_refused() -> None:
    header, rest = header_of(pack({1: 0}))
    text = header["__metadata__"]["cleave.payload"].replace('{"dict":[1,0]}', '{"dict":[1,0,true,0]}')
    header["__metadata__"]["cleave.payload"] = text
    with pytest.raises(PayloadError, match="same key twice"):
        unpack(with_header(header, rest))


def test_a_label_twice_in_the_schema_is_refused() -> None:
    header, rest = header_of(boundary().to_bytes())
    text = json.loads(header["__metadata__"]["cleave.payload"])
    text["schema"] *= 2
    header["__metadata__"]["cleave.payload"] = json.dumps(text)
    with pytest.raises(PayloadError, match="twice"):
        BoundaryPayload.from_bytes(with_header(header, rest))


def test_a_range_that_cannot_be_is_refused() -> None:
    header, rest = header_of(pack(range(3)))
    text = header["__metadata__"]["cleave.payload"].replace("[0,3,1]", "[0,3,0]")
    header["__metadata__"]["cleave.payload"] = text
    with pytest.raises(PayloadError):
        unpack(with_header(header, rest))


def test_a_header_may_be_padded_and_ordered_as_any_writer_likes() -> None:
    x = torch.arange(3.0)
    header, rest = header_of(pack({"x": x}))
    header = dict(reversed(header.items()))
    text = json.dumps(header, indent=3).encode() + b"   "
    assert same(unpack(len(text).to_bytes(8, "little") + text + rest)["x"], x)


# ---- around ----------------------------------------------------------------------------------------------------------


def test_threads_may_pack_at_the_same_time() -> None:
    x = [torch.randn(1000, 50) for _ in range(4)]
    failed: list[int] = []

    def work(i: int) -> None:
        for _ in range(20):
            if not torch.equal(unpack(pack(x[i])), x[i]):
                failed.append(i)

    threads = [threading.Thread(target=work, args=(i,)) for i in range(4)]
    for t in threads:
        t.start()
    for t in threads:
        t.join()
    assert not failed


def test_nothing_is_kept_alive() -> None:
    before = sys.getrefcount(None)
    x = torch.ones(10)
    count = sys.getrefcount(x)
    for _ in range(200):
        unpack(pack([x, None, "text", {"k": (x, 2**80)}]))
        with pytest.raises(PayloadError):
            pack([x, object()])
    assert sys.getrefcount(x) == count
    assert abs(sys.getrefcount(None) - before) < 100


def test_modes_of_the_caller_change_nothing() -> None:
    x = torch.ones(2, requires_grad=True)
    data = pack(x)
    for mode in (torch.no_grad(), torch.autocast("cpu"), torch.device("meta")):
        with mode:
            assert pack(x) == data
            back = unpack(data)
        assert back.requires_grad
        assert back.device.type == "cpu"
    with torch.inference_mode():
        assert torch.equal(unpack(pack(torch.ones(2))), torch.ones(2))


@pytest.mark.integration
def test_a_boundary_reaches_another_process() -> None:
    net = torch.nn.Sequential(torch.nn.Linear(4, 8), torch.nn.ReLU(), torch.nn.Linear(8, 2)).eval()
    x = torch.randn(3, 4)
    runtime = cleave.prepare_split(net, example_inputs=(x,), split=cleave.SplitSpec(boundary="50%"))
    data = runtime.run_prefix(x).to_bytes()
    code = (
        "import sys, cleave\n"
        "p = cleave.BoundaryPayload.from_bytes(sys.stdin.buffer.read())\n"
        "sys.stdout.buffer.write(p.to_bytes())\n"
    )
    out = subprocess.run([sys.executable, "-c", code], input=data, capture_output=True, check=True).stdout
    assert out == data
    assert torch.equal(runtime.run_suffix(BoundaryPayload.from_bytes(out)), net(x))


def test_the_extension_checks_what_python_gives_it() -> None:
    with pytest.raises(TypeError):
        _native.payload_write((), {}, None, None, None)  # type: ignore[call-arg]
    with pytest.raises((PayloadError, TypeError)):
        _native.payload_write((), {}, None, None, None, lambda t: t)  # type: ignore[arg-type]
    with pytest.raises((PayloadError, TypeError)):
        _native.payload_write(None, {}, torch.ones(1), None, None, lambda t: [])
    with pytest.raises((PayloadError, TypeError)):
        _native.payload_read(False, pack(torch.ones(1)), None, lambda t: [])
    with pytest.raises((PayloadError, TypeError)):
        _native.payload_read(False, pack(torch.ones(1)), None, lambda t: [3])  # type: ignore[list-item]


def test_tensors_that_are_moved_keep_their_strides_and_what_they_share() -> None:
    x = torch.arange(12.0).reshape(3, 4)
    y = x + 1
    tensors = [x[:, :2], x[:, 2:], y.t(), y.clone()[:1].expand(3, 4), (x + 2)[:, 1], torch.empty(0, 3)]
    there = moved(tensors, torch.device("cpu"))
    assert all(same(a, b) for a, b in zip(there, tensors, strict=True))
    assert there[0].untyped_storage().data_ptr() == there[1].untyped_storage().data_ptr()


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
def test_tensors_of_a_gpu_are_written_and_come_back_where_asked() -> None:
    x = torch.arange(12.0, device="cuda").reshape(3, 4)
    a, b = x.split(2, 1)
    p = boundary(tensors={"a": a, "b": b, "t": (x + 1).t(), "e": (x + 2)[:1].expand(3, 4)}, values=x.half())
    data = p.to_bytes()
    assert header_of(data)[0]
    back = BoundaryPayload.from_bytes(data)
    assert all(t.device.type == "cpu" for t in back.tensors.values())
    assert all(
        torch.equal(t, p.tensors[k].cpu()) and t.stride() == p.tensors[k].stride() for k, t in back.tensors.items()
    )
    again = BoundaryPayload.from_bytes(data, device="cuda")
    assert all(t.device.type == "cuda" and torch.equal(t, p.tensors[k]) for k, t in again.tensors.items())
    assert again.tensors["a"].untyped_storage().data_ptr() == again.tensors["b"].untyped_storage().data_ptr()
    assert again.values.device.type == "cuda"


def test_alignment_comes_back_because_sums_depend_on_it() -> None:
    base = torch.arange(64, dtype=torch.float32)
    shared = base[3:40]
    for t in (base[1:17], base[5:21], base[16:32], base[2:34:2], shared[:7]):
        back = unpack(pack(t))
        assert torch.equal(back, t)
        assert back.data_ptr() % 64 == t.data_ptr() % 64
    a, b = unpack(pack([shared[1:9], shared[4:20]]))
    assert a.data_ptr() % 64 == shared[1:9].data_ptr() % 64
    assert b.data_ptr() - a.data_ptr() == 12


@pytest.mark.parametrize("lead", [-1, 64, 2, "4", 1.5])
def test_a_wrong_lead_is_refused(lead: Any) -> None:
    data = pack(torch.arange(9, dtype=torch.float32)[1:])
    size = int.from_bytes(data[:8], "little")
    header = json.loads(data[8 : 8 + size])
    own = json.loads(header["__metadata__"]["cleave.payload"])
    assert own["memory"][0]["lead"] == 4
    own["memory"][0]["lead"] = lead
    header["__metadata__"]["cleave.payload"] = json.dumps(own)
    text = json.dumps(header).encode()
    text += b" " * (-len(text) % 8)
    with pytest.raises(PayloadError):
        unpack(len(text).to_bytes(8, "little") + text + data[8 + size :])

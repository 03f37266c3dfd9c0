"""Layouts in the table of operators (src/plan/ops.def): every operator with a column IMAGE keeps images channels last,
and row-major ones row-major, and computes the same in both layouts."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

import operators
import pytest
import torch
from torch import Tensor, nn

import cleave
from cleave.optimize import Optimize

N, C, H, W = 2, 8, 9, 7
LIKE: dict[torch.dtype, float] = {torch.float32: 1e-5, torch.bfloat16: 2e-2, torch.float16: 4e-3}


class Row(NamedTuple):
    op: str
    kind: str
    rule: str
    where: str


def rows() -> list[Row]:
    always = [Row(op, kind, "ANY", "BOTH") for op, [kind] in operators.with_column("IMAGE").items()]
    return always + [Row(op, k, rule, where) for op, [k, rule, _, where] in operators.with_column("IMAGE_IF").items()]


def operator(name: str) -> Callable[..., Any]:
    space, rest = name.split("::")
    base, _, overload = rest.partition(".")
    packet = getattr(getattr(torch.ops, space), base)
    return getattr(packet, overload or "default")  # type: ignore[no-any-return]


# ---- calls: the arguments after the image, by the name of the operator -----------------------------------------------


def tensor(like: Tensor, *shape: int) -> Tensor:
    numbers = torch.rand(shape, generator=torch.Generator().manual_seed(sum(shape))) + 0.5
    return numbers.to(like)


def vectors(x: Tensor, n: int) -> list[Tensor]:
    return [tensor(x, x.shape[1]) for _ in range(n)]


def convolution(*rest: Any) -> Callable[[Tensor], list[list[Any]]]:
    """Of 3x3, of one pixel, by channels, in two groups."""

    def calls(x: Tensor) -> list[list[Any]]:
        c = x.shape[1]
        weights = [(tensor(x, 6, c, 3, 3), 1), (tensor(x, 6, c, 1, 1), 1), (tensor(x, c, 1, 3, 3), c)]
        weights.append((tensor(x, 4, c // 2, 3, 3), 2))
        return [[w, tensor(x, w.shape[0]), *(groups if r == "groups" else r for r in rest)] for w, groups in weights]

    return calls


def transposed(*rest: Any) -> Callable[[Tensor], list[list[Any]]]:
    return lambda x: [[tensor(x, x.shape[1], 6, 2, 2), tensor(x, 6), *rest]]


def others(x: Tensor) -> list[list[Any]]:
    """What an image is added to: another, one of its parts, a number."""
    n, c, h, w = x.shape
    shapes = [(n, c, h, w), (n, c, 1, 1), (1, c, 1, 1), (c, 1, 1), (n, 1, h, w), (1, c, h, w), (h, w), ()]
    return [[tensor(x, *s)] for s in shapes]


PAIR, ONES, NOUGHTS = [2, 2], [1, 1], [0, 0]
CALLS: dict[str, Callable[[Tensor], list[list[Any]]]] = {
    "aten::conv2d": convolution(ONES, ONES, ONES, "groups"),
    "aten::conv2d.padding": convolution(ONES, "same", ONES, "groups"),
    "aten::convolution": convolution(PAIR, ONES, ONES, False, NOUGHTS, "groups"),
    "aten::_convolution": convolution(PAIR, ONES, ONES, False, NOUGHTS, "groups", False, False, True, True),
    "aten::conv_transpose2d.input": transposed(PAIR, NOUGHTS, NOUGHTS, 1, ONES),
    "aten::batch_norm": lambda x: [[*vectors(x, 4), False, 0.1, 1e-5, True]],
    "aten::group_norm": lambda x: [[2, *vectors(x, 2), 1e-5, True]],
    "aten::max_pool2d": lambda x: [[[3, 3], PAIR, ONES, ONES, False], [PAIR, PAIR, NOUGHTS, ONES, True]],
    "aten::avg_pool2d": lambda x: [[[3, 3], PAIR, ONES, False, True, None]],
    "aten::adaptive_avg_pool2d": lambda x: [[[3, 2]], [ONES]],
    "aten::mean.dim": lambda x: [[[2, 3], True], [[-1, -2], False]],
    "aten::sum.dim_IntList": lambda x: [[[2, 3], True], [[-1, -2], False]],
    "aten::amax": lambda x: [[[2, 3], True], [[-1, -2], False]],
    "aten::upsample_nearest2d": lambda x: [[[18, 14]]],
    "aten::upsample_nearest2d.vec": lambda x: [[None, [2.0, 2.0]], [[5, 5], None]],
    "aten::_upsample_nearest_exact2d": lambda x: [[[18, 14]]],
    "aten::_upsample_nearest_exact2d.vec": lambda x: [[None, [2.0, 2.0]]],
    "aten::upsample_bilinear2d": lambda x: [[[18, 14], False]],
    "aten::upsample_bilinear2d.vec": lambda x: [[None, False, [2.0, 2.0]], [[5, 5], True, None]],
    "aten::upsample_bicubic2d": lambda x: [[[18, 14], False]],
    "aten::upsample_bicubic2d.vec": lambda x: [[None, False, [2.0, 2.0]]],
    "aten::pixel_shuffle": lambda x: [[2]],
    "aten::pixel_unshuffle": lambda x: [[1]],
    "aten::channel_shuffle": lambda x: [[2]],
    "aten::pad": lambda x: [[[0, 1, 0, 1], "constant", None], [[1, 1, 1, 1], "constant", -1.0]],
    "aten::constant_pad_nd": lambda x: [[[1, 1, 2, 0], 0]],
    "aten::dropout": lambda x: [[0.5, False]],
    "aten::dropout_": lambda x: [[0.5, False]],
    "aten::feature_dropout": lambda x: [[0.5, False]],
    "aten::prelu": lambda x: [vectors(x, 1)],
    "aten::clamp": lambda x: [[0, 1], [None, 0.5]],
    "aten::clamp_": lambda x: [[0, 1]],
    "aten::clamp_max": lambda x: [[0.5]],
    "aten::clamp_max_": lambda x: [[0.5]],
    "aten::clamp_min": lambda x: [[0.5]],
    "aten::clamp_min_": lambda x: [[0.5]],
    "aten::pow.Tensor_Scalar": lambda x: [[2]],
    "aten::add.Scalar": lambda x: [[1.5]],
    "aten::sub.Scalar": lambda x: [[1.5]],
    "aten::mul.Scalar": lambda x: [[1.5]],
    "aten::div.Scalar": lambda x: [[1.5]],
    "aten::cat": lambda x: [[1]],
    "aten::chunk": lambda x: [[2, 1]],
    "aten::split.Tensor": lambda x: [[3, 1], [3, -3]],
    "aten::split_with_sizes": lambda x: [[[1, x.shape[1] - 1], 1]],
    "aten::slice.Tensor": lambda x: [[1, 1, 4, 1], [1, 0, 4, 2]],
    "aten::narrow": lambda x: [[1, 1, 3]],
    "aten::flatten.using_ints": lambda x: [[1, -1], [0, 1]],
    "aten::layer_norm": lambda x: [[[W], None, None, 1e-5, False]],
    "aten::linear": lambda x: [[tensor(x, 5, W), None]],
    "aten::reshape": lambda x: [[[N, -1]], [[C, N, W, H]]],
    "aten::to.dtype": lambda x: [[torch.float32, False, False, None]],
    "aten::unflatten.int": lambda x: [[1, [2, -1]]],
    "aten::view": lambda x: [[[N, -1]], [[C, N, W, H]]],
}


def calls_of(row: Row, x: Tensor) -> list[list[Any]]:
    if row.kind == "MIX":
        return others(x)
    return CALLS.get(row.op, lambda _: [[]])(x)


# ---- layouts ---------------------------------------------------------------------------------------------------------

Layout = Callable[[Tensor], Tensor]


def row_major(t: Tensor) -> Tensor:
    return t.clone(memory_format=torch.contiguous_format)


def channels_last(t: Tensor) -> Tensor:
    return t.clone(memory_format=torch.channels_last) if t.dim() == 4 else t


def sliced(layout: Layout) -> Layout:
    """Laid out so, as the first channels of a larger image."""

    def make(t: Tensor) -> Tensor:
        if t.dim() != 4 or t.shape[1] < 2:
            return layout(t)
        return layout(torch.cat([t, t], 1))[:, : t.shape[1]]

    return make


def strides(shape: torch.Size, layout: Layout) -> tuple[int, ...]:
    return layout(torch.empty(shape)).stride()


def results(row: Row, x: Tensor, rest: list[Any], layout: Layout) -> list[Tensor]:
    images = ("MIX", "CONV")
    args = [layout(a) if isinstance(a, Tensor) and row.kind in images else a for a in rest]
    first: Any = [layout(x), layout(x[:, :1])] if row.kind == "CAT" else layout(x)
    out = operator(row.op)(first, *args)
    return list(out) if isinstance(out, (list, tuple)) else [out]


def each(x: Tensor, kinds: tuple[str, ...]) -> Iterator[tuple[Row, list[Any]]]:
    for row in rows():
        here = row.where == "BOTH" or row.where == x.device.type.upper()
        if row.kind in kinds and (here or row.kind == "ROWS"):
            for rest in calls_of(row, x):
                yield row, rest


IMAGES = ("CONV", "MAP", "MIX", "CAT")
DEVICES = [
    "cpu",
    pytest.param(
        "cuda", marks=[pytest.mark.gpu, pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device")]
    ),
]
types = pytest.mark.parametrize("dtype", list(LIKE), ids=lambda d: str(d)[6:])
devices = pytest.mark.parametrize("device", DEVICES)


@pytest.fixture(autouse=True)
def exact(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.backends.cudnn, "allow_tf32", False)


def image(device: str, dtype: torch.dtype) -> Tensor:
    numbers = torch.rand(N, C, H, W, generator=torch.Generator().manual_seed(0)) + 0.25
    return numbers.to(device, dtype)


def said(row: Row, rest: list[Any]) -> str:
    return f"{row.op} {[tuple(a.shape) if isinstance(a, Tensor) else a for a in rest]}"


def test_the_table_is_read() -> None:
    found = [r.op for r in rows()]
    assert len(found) > 90
    assert len(found) == len(set(found)) == operators.LIST.read_text().count("IMAGE") - 2  # what they mean
    assert set(CALLS) <= set(found)


@devices
@types
def test_images_keep_their_layout_and_their_numbers(device: str, dtype: torch.dtype) -> None:
    x = image(device, dtype)
    for row, rest in each(x, IMAGES):
        rows_out, last_out = (results(row, x, rest, layout)[0] for layout in (row_major, channels_last))
        assert rows_out.stride() == strides(rows_out.shape, row_major), said(row, rest)
        if row.rule != "SPATIAL":
            assert last_out.stride() == strides(last_out.shape, channels_last), said(row, rest)
        elif last_out.dim() != 4:
            assert last_out.is_contiguous(), said(row, rest)
        scale = float(rows_out.float().abs().max())
        assert float((rows_out.float() - last_out.float()).abs().max()) <= LIKE[dtype] * scale, said(row, rest)


@devices
@types
def test_slices_by_channels_give_images_without_gaps(device: str, dtype: torch.dtype) -> None:
    x = image(device, dtype)
    for row, rest in each(x, IMAGES):
        if row.op.split(".")[0].endswith("_") or "dropout" in row.op:
            continue  # the result is the slice itself
        for layout in (row_major, channels_last):
            out = results(row, x, rest, sliced(layout))[0]
            if row.rule != "SPATIAL" or layout is row_major:
                assert out.stride() == strides(out.shape, layout), f"{said(row, rest)} {layout.__name__}"


@devices
def test_slices_are_parts_of_their_image(device: str) -> None:
    x = image(device, torch.float32)
    for row, rest in each(x, ("PART",)):
        for layout in (row_major, channels_last):
            steps = layout(x).stride()
            for out in results(row, x, rest, layout):
                same = [a == b for d, (a, b) in enumerate(zip(out.stride(), steps, strict=True)) if d != 1]
                assert all(same), said(row, rest)
                assert out.stride(1) >= steps[1], said(row, rest)


@devices
def test_row_major_arguments_give_row_major_results(device: str) -> None:
    x = image(device, torch.float32)
    for row, rest in each(x, ("ROWS",)):
        out = results(row, x, rest, row_major)[0]
        assert out.stride() == strides(out.shape, row_major), said(row, rest)


def test_one_channel_and_one_pixel_are_channels_last_as_clones() -> None:
    """Why images come in as clones: aten::contiguous gives them back as they are."""
    for shape in ((2, 1, 9, 7), (2, 8, 1, 1)):
        x = torch.rand(shape)
        assert x.contiguous(memory_format=torch.channels_last) is x
        wide = torch.ops.aten.conv2d(channels_last(x), torch.rand(4, shape[1], 1, 1), None, ONES, ONES, ONES, 1)
        assert wide.stride() == strides(wide.shape, channels_last)


# ---- whole models ----------------------------------------------------------------------------------------------------


class Block(nn.Module):
    """In place, squeezed, split, joined, residual: what real models do with images."""

    def __init__(self, c: int) -> None:
        super().__init__()
        self.one = nn.Conv2d(c, c, 3, padding=1)
        self.norm = nn.BatchNorm2d(c)
        self.part = nn.Conv2d(c // 2, c // 2, 3, padding=1, groups=c // 2)
        self.squeeze = nn.Conv2d(c, c // 2, 1)
        self.widen = nn.Conv2d(c // 2, c, 1)
        self.two = nn.Conv2d(c + c // 2, c, 1)

    def forward(self, x: Tensor) -> Tensor:
        y = torch.relu_(self.norm(self.one(x)))
        a, b = y.chunk(2, 1)
        b = torch.cat([a, b, self.part(b)], 1)
        z = self.two(b)
        s = torch.sigmoid(self.widen(nn.functional.silu(self.squeeze(z.mean((2, 3), keepdim=True)))))
        z = z * s
        z += x
        return torch.relu_(z)


class Net(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.stem = nn.Conv2d(3, 16, 3, stride=2, padding=1)
        self.body = nn.Sequential(Block(16), nn.MaxPool2d(2), Block(16))
        self.head = nn.Linear(16, 10)

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        y = self.body(self.stem(x))
        up = nn.functional.interpolate(y, scale_factor=2.0, mode="bilinear")
        return self.head(nn.functional.adaptive_avg_pool2d(y, 1).flatten(1)), y, up


@pytest.mark.parametrize("layout", [row_major, channels_last])
def test_a_model_gives_what_it_gave_in_the_layout_it_gave(layout: Layout) -> None:
    torch.manual_seed(0)
    model = Net().eval()
    x = layout(torch.rand(2, 3, 32, 32))
    with torch.no_grad():
        want = model(x)
        plan = cleave.capture(model, (x,), optimize=Optimize("fast", off=("native",)), both_grad_modes=False)
        got = plan(x)
    for w, g in zip(want, got, strict=True):
        assert g.stride() == w.stride()
        torch.testing.assert_close(g, w, rtol=1e-4, atol=1e-5)
    (told,) = [line for line in plan.optimizations().splitlines() if line.startswith("fast, channels_last")]
    if layout is row_major:
        assert ", channels_last " in told
        assert "off by" in told
    else:
        assert told.endswith("nothing to do")

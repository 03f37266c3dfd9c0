"""The pass in_place: what it takes from the table of operators (src/plan/ops.def); models give the same bits."""

from __future__ import annotations

import random
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import operators
import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

import cleave
from cleave.optimize import Optimize

NAMES = {row.id: row.name for row in operators.rows()}
FORMS = [(name, NAMES[writer]) for name, [writer] in operators.with_column("WRITER").items()]
INTS = {torch.float64: torch.int64, torch.float32: torch.int32, torch.float16: torch.int16, torch.bfloat16: torch.int16}


def operator(name: str) -> Any:
    space, rest = name.split("::")
    base, _, overload = rest.partition(".")
    return getattr(getattr(getattr(torch.ops, space), base), overload or "default")


@pytest.mark.parametrize("shapes", [((3, 4), (4, 5)), ((1, 4), (4, 1)), ((2, 3, 4), (4, 1)), ((2, 1, 4), (2, 4, 5))])
def test_products_are_row_major(shapes: tuple[tuple[int, ...], tuple[int, ...]]) -> None:
    a, b = (torch.rand(*s[:-2], s[-1], s[-2]).mT for s in shapes)
    for x in (a, a.contiguous()):
        for y in (b, b.contiguous()):
            made = x @ y
            assert made.stride() == torch.empty(made.shape).stride()


def same_bits(a: Tensor, b: Tensor) -> bool:
    as_int = INTS.get(a.dtype, a.dtype)
    return a.dtype == b.dtype and a.stride() == b.stride() and torch.equal(a.view(as_int), b.view(as_int))


# ---- the table -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("op", "writer"), FORMS)
def test_writers_take_the_same_arguments(op: str, writer: str) -> None:
    plain, writes = operator(op)._schema, operator(writer)._schema
    for a, b in zip(plain.arguments, writes.arguments, strict=True):
        assert (a.name, str(a.type), a.kwarg_only) == (b.name, str(b.type), b.kwarg_only)
        assert a.has_default_value() == b.has_default_value()
        assert not a.has_default_value() or a.default_value == b.default_value
        assert a.alias_info is None
    written = [a.alias_info is not None and a.alias_info.is_write for a in writes.arguments]
    assert written == [True] + [False] * (len(written) - 1)
    assert len(plain.returns) == len(writes.returns) == 1


def numbers(*shape: int, dtype: torch.dtype) -> Tensor:
    x = torch.randn(shape, generator=torch.Generator().manual_seed(len(shape))).mul_(4)
    x.view(-1)[::7] = 0
    x.view(-1)[1::11] = float("inf")
    x.view(-1)[2::13] = float("nan")
    return x.to(dtype)


def layouts(dtype: torch.dtype) -> list[Tensor]:
    """Dense tensors whose strides a result of their shape has: row-major ones, and images that are no pixels."""
    big = 40_000  # more than one thread takes
    rows = [numbers(*s, dtype=dtype) for s in ((7,), (3, 5), (1, 6, 1), (5, 1), (1, 1), (big,), (2, 1, 9, 7))]
    images = [numbers(*s, dtype=dtype).to(memory_format=torch.channels_last) for s in ((2, 8, 9, 7), (1, 3, 5, 4))]
    return rows + images


def arguments(op: str, x: Tensor) -> list[list[Any]]:
    """What follows the first tensor, in some ways."""
    other = x.flip(0) + 1
    turned = other.contiguous() if x.dim() == 4 else other
    base = op.removeprefix("aten::")
    if base in ("add.Tensor", "sub.Tensor"):
        return [[other], [turned], [2.5]]
    if base in ("mul.Tensor", "div.Tensor"):
        return [[other], [turned], [0.3]]
    if base in ("add.Scalar", "sub.Scalar", "mul.Scalar", "div.Scalar"):
        return [[2.5], [3]]
    if base == "pow.Tensor_Scalar":
        return [[2], [3], [0.5], [-1], [1.7], [1], [0]]
    if base == "clamp":
        return [[-1, 2], [None, 0.5], [0, None]]
    return [[0.5]] if base in ("clamp_min", "clamp_max") else [[]]


@pytest.mark.parametrize("dtype", INTS)
@pytest.mark.parametrize(("op", "writer"), FORMS)
def test_writers_give_the_same_bits_in_the_same_strides(op: str, writer: str, dtype: torch.dtype) -> None:
    for x in layouts(dtype):
        for rest in arguments(op, x):
            want = operator(op)(x, *rest)
            place = x.clone()
            assert place.stride() == x.stride()
            got = operator(writer)(place, *rest)
            assert got.data_ptr() == place.data_ptr()
            assert want.data_ptr() != x.data_ptr()
            assert same_bits(got, want), (tuple(x.shape), x.stride(), rest)


def image_calls(op: str, x: Tensor, w: Tensor, memory_format: torch.memory_format) -> list[list[Any]]:
    bias = torch.randn(w.shape[0])
    two = ([1, 1], [1, 1], [1, 1])
    if "pointwise" in op:
        packed = torch.ops.mkldnn._reorder_convolution_weight(w, *two, 1, list(x.shape))
        calls = [[x, packed, bias, *two, 1, "none", [], ""]]
        if op.endswith(".binary"):
            other = torch.rand_like(F.conv2d(x, w, bias, padding=1)).contiguous(memory_format=memory_format)
            calls = [[x, other, packed, bias, *two, 1, "add", 1.0, None, [], None]]
        return calls
    return {
        "aten::_convolution": [[x, w, bias, *two, False, [0, 0], 1, False, False, True, True]],
        "aten::convolution": [[x, w, None, *two, False, [0, 0], 1], [x, w, None, *two, True, [0, 0], 1]],
        "aten::conv2d": [[x, w, bias, *two], [x, w[:, :1], None, [1, 1], [0, 0], [1, 1], w.shape[1]]],
        "aten::conv2d.padding": [[x, w, bias, [1, 1], "same"]],
        "aten::conv_transpose2d.input": [[x, w, bias]],
    }[op]


def odd_images() -> list[Tensor]:
    """In both formats, one row, and with strides that neither has."""
    out = []
    for rows in (1, 2):
        x = torch.rand(rows, 6, 9, 7)
        out += [x, x.to(memory_format=torch.channels_last), x.transpose(2, 3).contiguous().transpose(2, 3)]
        out += [
            torch.rand(rows, 12, 9, 7)[:, :6],
            torch.rand(3, 6, 9, 7)[:rows].as_strided((rows, 6, 9, 7), (5, 63, 7, 1)),
        ]
    return out


FORMATS = (torch.contiguous_format, torch.channels_last)


@pytest.mark.parametrize("op", operators.with_column("FORMATS"))
def test_images_have_the_strides_of_new_memory(op: str) -> None:
    if op.startswith("mkldnn::") and not torch.backends.mkldnn.is_available():
        pytest.skip("no oneDNN")
    for x in odd_images():
        for memory_format in FORMATS:
            w = torch.rand(6, 6, 3, 3).to(memory_format=memory_format)
            for call in image_calls(op, x, w, memory_format):
                made = operator(op)(*call)
                like = [torch.empty(made.shape, memory_format=f).stride() for f in FORMATS]
                assert made.stride() in like, (x.stride(), w.stride())
                assert made.storage_offset() == 0


def norm_calls(op: str, x: Tensor) -> list[list[Any]]:
    c = x.shape[1]
    if op == "aten::group_norm":
        return [[x, 1], [x, 2, torch.rand(c), torch.rand(c)]]
    given = [x, None, None, torch.rand(c), torch.rand(c), False, 0.1, 1e-5, True]
    return [given, [x, torch.rand(c), torch.rand(c), *given[3:]], [x, None, None, None, None, True, 0.1, 1e-5, True]]


@pytest.mark.parametrize("op", operators.with_column("NORM"))
def test_norms_of_images_have_the_strides_of_new_memory(op: str) -> None:
    for rows in (1, 2):
        for memory_format in FORMATS:
            x = torch.rand(rows, 6, 9, 7).contiguous(memory_format=memory_format)
            for call in norm_calls(op, x):
                made = operator(op)(*call)
                assert made.stride() in [torch.empty(made.shape, memory_format=f).stride() for f in FORMATS]
                assert made.data_ptr() != x.data_ptr()


X, IMAGE = torch.rand(1, 1), torch.rand(1, 1, 1, 1)
ONE = torch.zeros(1, dtype=torch.int64)
CALLS: dict[str, list[list[Any]]] = {  # with which some operator could hand back what it got
    "_upsample_nearest_exact2d.vec": [[IMAGE, [1, 1], None]],
    "adaptive_avg_pool2d": [[IMAGE, [1, 1]]],
    "adaptive_max_pool2d": [[IMAGE, [1, 1]]],
    "amax": [[X, [0]], [X]],
    "amin": [[X, [0]], [X]],
    "argmax": [[X, 0], [X]],
    "avg_pool2d": [[IMAGE, [1, 1]]],
    "baddbmm": [[torch.rand(1, 1, 1)] * 3],
    "cat": [[[X]], [[X, torch.rand(0, 1)], 0]],
    "clone": [[X], [IMAGE]],
    "constant_pad_nd": [[X, [0, 0]]],
    "conv1d": [[torch.rand(1, 1, 1), torch.ones(1, 1, 1)]],
    "conv1d.padding": [[torch.rand(1, 1, 1), torch.ones(1, 1, 1), None, [1], "same"]],
    "conv3d": [[torch.rand(1, 1, 1, 1, 1), torch.ones(1, 1, 1, 1, 1)]],
    "cumsum": [[X, 0]],
    "gather": [[X, 0, ONE[None]]],
    "index.Tensor": [[X, [ONE]], [X, [None, ONE]]],
    "index_select": [[X, 0, ONE]],
    "instance_norm": [[torch.rand(1, 1, 2), None, None, None, None, True, 0.1, 1e-5, True]],
    "masked_fill.Scalar": [[X, torch.tensor(False), 0]],
    "masked_fill.Tensor": [[X, torch.tensor(False), torch.tensor(0.0)]],
    "matmul": [[X, X], [torch.rand(1), torch.rand(1)], [torch.rand(1, 1, 1), X]],
    "max_pool2d": [[IMAGE, [1, 1]]],
    "mean": [[X], [torch.rand(())]],
    "mean.dim": [[X, [0], True], [torch.rand(()), []]],
    "pad": [
        [X, [0, 0]],
        [IMAGE, [0, 0, 0, 0], "reflect"],
        [IMAGE, [0, 0, 0, 0], "replicate"],
        [IMAGE, [0] * 4, "circular"],
    ],
    "repeat": [[X, [1, 1]]],
    "rms_norm": [[X, [1]]],
    "scaled_dot_product_attention": [[torch.rand(1, 1, 1, 1)] * 3, [torch.rand(2, 4, 8, 16)] * 3],
    "stack": [[[X]]],
    "sum": [[X], [torch.rand(())]],
    "sum.dim_IntList": [[X, [0], True], [torch.rand(()), []], [X, []]],
    "topk": [[X, 1]],
    "upsample_bicubic2d.vec": [[IMAGE, [1, 1], False, None]],
    "upsample_bilinear2d.vec": [[IMAGE, [1, 1], False, None]],
    "upsample_nearest2d.vec": [[IMAGE, [1, 1], None]],
    "var.correction": [[torch.rand(2, 1), [0]]],
}


def storages(values: Any) -> list[int]:
    return [t.untyped_storage().data_ptr() for t in torch.utils._pytree.tree_leaves(values) if isinstance(t, Tensor)]


@pytest.mark.parametrize("op", operators.with_column("NEW"))
def test_new_memory_is_new(op: str) -> None:
    for call in CALLS[op.removeprefix("aten::")]:
        made = operator(op)(*call)
        assert not set(storages(made)) & set(storages(call)), call


# ---- models ----------------------------------------------------------------------------------------------------------


def count(plan: cleave.Plan) -> int:
    return sum(int(k) for k in re.findall(r"safe:.*in_place (\d+)", plan.optimizations()))


def leaves(values: Any) -> list[Tensor]:
    return [t for t in torch.utils._pytree.tree_leaves(values) if isinstance(t, Tensor)]


def check(fn: Callable[..., Any], *inputs: Tensor, found: int, runs: int = 2) -> cleave.Plan:
    """The same bits and strides as eager in every run; inputs stay as they are, outputs can be written."""
    plan = cleave.capture(fn, inputs)
    assert count(plan) == found, plan.optimizations()
    before = [t.clone() for t in inputs]
    for _ in range(runs):
        want, got = leaves(fn(*inputs)), leaves(plan(*inputs))
        assert all(same_bits(a, b) for a, b in zip(got, want, strict=True))
        for t in got:
            t.fill_(7)
    assert all(torch.equal(a, b) for a, b in zip(inputs, before, strict=True))
    return plan


class Mixer(nn.Module):
    """What language models do: gelu spelt out, a gate, residuals, a table of constants."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.up, self.gate, self.down = nn.Linear(16, 32), nn.Linear(16, 32), nn.Linear(32, 16)
        self.norm = nn.LayerNorm(16)

    def forward(self, x: Tensor) -> Tensor:
        y = self.up(self.norm(x))
        y = 0.5 * y * (1.0 + torch.tanh(0.79 * (y + 0.044 * torch.pow(y, 3.0))))
        y = F.silu(self.gate(x)) * y
        y = self.down(y) + x
        return y * torch.arange(16.0, device=x.device).cos().sin()


@torch.no_grad()
def test_a_mixer() -> None:
    net = Mixer().eval()
    plan = check(net, torch.randn(2, 5, 16), found=9)
    assert "prelude" in plan.optimizations()


@torch.no_grad()
def test_batches_of_any_size() -> None:
    net = Mixer().eval()
    plan = cleave.capture(net, torch.randn(4, 5, 16), dynamic_batch=(1, 9))
    assert count(plan)
    for rows in (1, 2, 4, 9):
        x = torch.randn(rows, 5, 16)
        assert same_bits(plan(x), net(x))


class Pictures(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.first, self.norm = nn.Conv2d(3, 8, 3, padding=1), nn.BatchNorm2d(8)
        self.second = nn.Conv2d(8, 8, 3, padding=1)

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
        y = F.silu(self.norm(self.first(x)))
        z = F.relu(self.second(y) + y)
        return z.flatten(1), F.adaptive_avg_pool2d(z, 1)


@pytest.mark.parametrize("rows", [1, 2])
@torch.no_grad()
def test_pictures_whatever_the_weights_are(rows: int) -> None:
    net = Pictures().eval()
    x = torch.randn(rows, 3, 9, 7)
    plan = cleave.capture(net, x)
    assert count(plan) == 3, plan.optimizations()
    for memory_format in (*FORMATS, *FORMATS):
        for conv in (net.first, net.second):
            conv.weight.data = conv.weight.data.contiguous(memory_format=memory_format)
        for got, want in zip(plan(x), net(x), strict=True):
            assert same_bits(got, want)


@pytest.mark.integration
@torch.no_grad()
def test_fast_writes_in_place_too() -> None:
    net = Mixer().eval()
    plan = cleave.capture(net, torch.randn(64, 16), optimize=Optimize("fast", off=("native",)))
    x = torch.randn(64, 16)
    torch.testing.assert_close(plan(x), net(x), rtol=1e-4, atol=1e-5)
    off = cleave.capture(net, torch.randn(64, 16), optimize=Optimize("safe", off=("in_place",)))
    assert "in_place" not in off.optimizations()
    assert same_bits(off(x), net(x))


def keeps_all(x: Tensor) -> list[Tensor]:
    a = x @ x
    b = a.relu()
    c = b.view(-1)
    return [a, b.sigmoid(), c]


def looks_back(x: Tensor) -> Tensor:
    a = x @ x
    turned = a.t()
    return a.exp() + turned  # the exponential must not be where `turned` looks


def adds_itself(x: Tensor) -> Tensor:
    a = x @ x
    return (a + a) * a.t()


def changes_type(x: Tensor) -> Tensor:
    a = x.half() @ x.half()
    return a * x + (x @ x).mul(a).add(torch.tensor(1.0, dtype=torch.float64)) + (x > 0).mul(2.5)


def spreads(x: Tensor) -> Tensor:
    column = x.sum(0, keepdim=True).exp()
    return column + (x @ x)


def in_inference_mode(x: Tensor) -> Tensor:
    with torch.inference_mode():
        a = x @ x
        b = a.relu()
    return b.sigmoid() * (x @ x).relu()


def with_autocast(x: Tensor) -> Tensor:
    with torch.autocast("cpu", torch.bfloat16):
        a = x @ x
        return a.float().relu() + a.exp()


@pytest.mark.parametrize(
    ("fn", "found"),
    [
        (keeps_all, 0),
        (looks_back, 0),
        (adds_itself, 0),
        (changes_type, 2),
        (spreads, 0),
        (in_inference_mode, 3),
        (with_autocast, 0),
    ],
)
@torch.no_grad()
def test_what_others_need_stays(fn: Callable[[Tensor], Any], found: int) -> None:
    check(fn, torch.randn(6, 6), found=found)


@torch.no_grad()
def test_a_copy_that_becomes_a_view() -> None:
    """contiguous() copies a turned parameter, and gives back one that is laid out in rows."""
    w = nn.Parameter(torch.randn(4, 5).t())
    holder = nn.ParameterDict({"w": w})

    def forward(x: Tensor) -> Tensor:
        return holder["w"].contiguous().relu() @ x

    class Holds(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.holder = holder

        def forward(self, x: Tensor) -> Tensor:
            return forward(x)

    net, x = Holds().eval(), torch.randn(4, 3)
    plan = cleave.capture(net, x)
    assert torch.equal(plan(x), net(x))
    w.data = torch.randn(5, 4)
    before = w.clone()
    want = net(x)
    assert torch.equal(plan(x), want)
    assert torch.equal(w, before)


@torch.no_grad()
def test_splits_and_files(tmp_path: Path) -> None:
    net = Mixer().eval()
    x = torch.randn(2, 5, 16)
    for boundary in ("25%", "50%", "75%"):
        halves = cleave.prepare_split(net, example_inputs=(x,), split=cleave.SplitSpec(boundary=boundary))
        middle = halves.run_prefix(x)
        assert same_bits(halves.run_suffix(middle), net(x))
        assert same_bits(halves.run_suffix(middle), net(x))  # a boundary can be run twice
    cleave.capture(net, x).save(tmp_path / "m.clv")
    assert same_bits(cleave.load(tmp_path / "m.clv")(x), net(x))


UNARY = [torch.relu, torch.tanh, torch.sigmoid, torch.exp, torch.neg, F.silu, F.gelu, F.hardswish, torch.sin, torch.abs]
BINARY = [torch.add, torch.sub, torch.mul, torch.div]
VIEWS: list[Callable[[Tensor], Tensor]] = [
    lambda t: t.view(-1),
    lambda t: t.reshape(6, -1),
    lambda t: t.reshape(-1).reshape(4, 9),
    lambda t: t.reshape(6, 6).t(),
    lambda t: t.unsqueeze(0),
    lambda t: t.flatten(),
    lambda t: t.contiguous(),
    lambda t: t.reshape(6, 6)[:3].repeat(2, 1),
    lambda t: t.squeeze(),
]


def random_forward(seed: int) -> Callable[[Tensor, Tensor], list[Tensor]]:
    def forward(x: Tensor, y: Tensor) -> list[Tensor]:
        dice = random.Random(seed)
        values = [x, y, x @ y, torch.linspace(0, 1, 36).view(6, 6)]
        for _ in range(dice.randrange(3, 25)):
            a, b = values[-1] if dice.random() < 0.6 else dice.choice(values), dice.choice(values)
            what = dice.random()
            if what < 0.4:
                values.append(dice.choice(UNARY)(a))
            elif what < 0.65:
                values.append(dice.choice(BINARY)(a, b if b.shape == a.shape else dice.choice([0.5, a * 2])))
            elif what < 0.75 and a.shape == (6, 6):
                values.append(a @ y)
            elif what < 0.78 and len(values) > 4:
                values[-1].mul_(0.5)
            elif a.is_contiguous():
                values.append(dice.choice(VIEWS)(a))
        return dice.sample(values[2:], min(2, len(values) - 2))

    return forward


def random_models(seeds: range) -> int:
    found = 0
    for seed in seeds:
        forward = random_forward(seed)
        x, y = torch.randn(6, 6), torch.randn(6, 6)
        try:
            plan = cleave.capture(forward, (x, y))
        except cleave.CaptureError:
            continue  # outputs that no plan can hold
        found += count(plan)
        for _ in range(2):
            x, y = torch.randn(6, 6), torch.randn(6, 6)
            other = x.clone(), y.clone()
            got, want = leaves([plan(x, y), x, y]), leaves([forward(*other), other])
            assert all(same_bits(a, b) for a, b in zip(got, want, strict=True)), seed
    return found


@torch.no_grad()
def test_some_random_models() -> None:
    assert random_models(range(15)) > 3


@pytest.mark.integration
@torch.no_grad()
def test_many_random_models() -> None:
    assert random_models(range(15, 250)) > 100

"""Several sizes that change: length, height, width. Everywhere the numbers of eager, or an error that says why."""

from __future__ import annotations

import dataclasses
import itertools
import re
from collections.abc import Callable
from typing import Any

import pytest
import torch
from helpers import Fn, mentions, same_tree
from torch import Tensor, nn

import cleave


def _prepare(model: Any, example: Any, dims: Any, **options: Any) -> cleave.SplitRuntime:
    options.setdefault("dynamic_batch", (1, 8))
    spec = cleave.SplitSpec(boundary=options.pop("boundary", "50%"), dynamic_dims=dims, **options)
    return cleave.prepare_split(model, example_inputs=example, split=spec)


def _same(model: nn.Module, rt: cleave.SplitRuntime, *inputs: Tensor) -> cleave.BoundaryPayload:
    boundary = rt.run_prefix(*inputs)
    with torch.no_grad():
        want = model(*inputs)
    where = f"at {[tuple(t.shape) for t in inputs]}"
    same_tree(want, rt.run_suffix(boundary), where)
    same_tree(want, rt.run_suffix(boundary), where + " once more")
    return boundary


# ---- numbers in two symbols --------------------------------------------------------------------------------

FUNCTIONS: dict[str, Callable[..., Any]] = {
    "rows times length": lambda lin, x: lin(x.reshape(x.shape[0] * x.shape[1], 4)).view(x.shape[0], x.shape[1], 4),
    "length times length": lambda lin, x: (lin(x) @ x.transpose(1, 2)).view(x.shape[0], x.shape[1] * x.shape[1]).relu(),
    "one more than the length": lambda lin, x: nn.functional.pad(lin(x), (0, 0, 1, 0)).view(-1, x.shape[1] + 1, 4),
    "rows and length": lambda lin, x: lin(x).sum() * (x.shape[0] + 2 * x.shape[1]),
    "rows times length and one": lambda lin, x: torch.cat([lin(x).flatten(), x.new_zeros(1)])[
        : x.shape[0] * x.shape[1] * 4 + 1
    ].relu(),
    "rows times length less one": lambda lin, x: lin(x).flatten()[: x.shape[0] * x.shape[1] * 4 - 3].relu(),
    "half the length": lambda lin, x: lin(x)[:, : x.shape[1] // 2 + 1].reshape(-1, 4).relu(),
    "positions": lambda lin, x: lin(x) + torch.arange(x.shape[1])[None, :, None],
    "a causal mask": lambda lin, x: (lin(x) @ x.transpose(1, 2)).masked_fill(
        torch.ones(x.shape[1], x.shape[1]).triu(1).bool(), 0.0
    ),
    "the mean over all": lambda lin, x: lin(x).sum((0, 1)) / (x.shape[0] * x.shape[1]),
    "unfolded": lambda lin, x: torch.cat([lin(x), x], 1).unfold(1, 2, 1).sum(-1).relu(),
    "longer than the batch": lambda lin, x: lin(x).relu() if x.shape[1] > x.shape[0] else lin(x).tanh(),
    "more than twenty elements": lambda lin, x: lin(x).relu() if x.shape[0] * x.shape[1] > 20 else lin(x).tanh(),
    "an even length": lambda lin, x: lin(x).relu() if x.shape[1] % 2 else lin(x).tanh(),
    "as many as rows": lambda lin, x: lin(x).relu() if x.shape[1] == x.shape[0] else lin(x).tanh(),
    "the length as a tensor": lambda lin, x: lin(x) * torch.tensor([x.shape[1]]),
    "a loop over the length": lambda lin, x: torch.stack([lin(x[:, i]) for i in range(x.shape[1])], 1).relu(),
}


@pytest.mark.integration
@pytest.mark.parametrize("name", FUNCTIONS)
def test_a_number_in_rows_and_length_is_right_at_every_point(name: str) -> None:
    torch.manual_seed(0)
    model = Fn(FUNCTIONS[name], 4).eval()
    rt = _prepare(model, torch.randn(2, 6, 4), {"args[0]": {1: ("S", 1, 12)}})
    for rows, length in itertools.product((1, 2, 3, 6, 8), (1, 2, 5, 6, 7, 12)):
        boundary = _same(model, rt, torch.randn(rows, length, 4))
        assert boundary.sizes == {"B": rows, "S": length}
        assert boundary.batch_size == rows


@pytest.mark.parametrize("name", ["rows times length", "positions", "half the length", "rows times length and one"])
def test_a_plain_model_has_one_plan_with_both_symbols(name: str) -> None:
    torch.manual_seed(0)
    model = Fn(FUNCTIONS[name], 4).eval()
    rt = _prepare(model, torch.randn(2, 6, 4), {"args[0]": {1: "S"}}, dynamic_ranges={"S": (2, 40)})
    for rows, length in itertools.product((2, 3, 8), (5, 7, 31, 40)):
        _same(model, rt, torch.randn(rows, length, 4))
    assert len(rt.variants) == 1, rt.variants
    text = rt.trace_plan.text
    assert re.search(r"^symbol B 1\.\.8$", text, re.MULTILINE)
    assert re.search(r"^symbol S 2\.\.40$", text, re.MULTILINE)
    assert "f32[B,S,4]" in text


# ---- models ------------------------------------------------------------------------------------------------


class Encoder(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.embed, self.positions = nn.Embedding(30, 8), nn.Parameter(torch.randn(64, 8))
        self.layer, self.head = nn.TransformerEncoderLayer(8, 2, 16, batch_first=True), nn.Linear(8, 3)

    def forward(self, ids: Tensor, mask: Tensor) -> Tensor:
        x = self.embed(ids) + self.positions[: ids.shape[1]]
        return self.head(self.layer(x, src_key_padding_mask=mask == 0))


class Translator(nn.Module):
    """Two lengths."""

    def __init__(self) -> None:
        super().__init__()
        self.embed, self.mix, self.head = (
            nn.Embedding(30, 8),
            nn.MultiheadAttention(8, 2, batch_first=True),
            nn.Linear(8, 30),
        )

    def forward(self, source: Tensor, target: Tensor) -> Tensor:
        x, y = self.embed(source), self.embed(target)
        return self.head(self.mix(y, x, x)[0] + y)


class Pyramid(nn.Module):
    """Strides, odd kernels, pooling, and the sizes of the input again at the end."""

    def __init__(self) -> None:
        super().__init__()
        self.a, self.b = nn.Conv2d(3, 4, 7, 2, 3), nn.Conv2d(4, 4, 3, 2)
        self.c, self.head = nn.Conv2d(4, 4, 3, 2, 1), nn.Conv2d(4, 2, 1)

    def forward(self, x: Tensor) -> Tensor:
        y = nn.functional.max_pool2d(self.a(x).relu(), 3, 2, 1)
        y = self.head(self.c(self.b(y).relu()))
        return nn.functional.interpolate(y, size=x.shape[-2:], mode="bilinear", align_corners=False)


class Patches(nn.Module):
    """Takes multiples of four alone, and counts its patches and one."""

    def __init__(self) -> None:
        super().__init__()
        self.embed, self.cls, self.head = nn.Conv2d(3, 8, 4, 4), nn.Parameter(torch.randn(1, 1, 8)), nn.Linear(8, 3)

    def forward(self, x: Tensor) -> Tensor:
        if x.shape[2] % 4 or x.shape[3] % 4:
            raise ValueError("the image is no multiple of four")
        y = self.embed(x).flatten(2).transpose(1, 2)
        y = torch.cat([self.cls.expand(x.shape[0], -1, -1), y], 1)
        flat = self.head(y).reshape(x.shape[0] * ((x.shape[2] // 4) * (x.shape[3] // 4) + 1), 3)
        return flat.view(x.shape[0], -1, 3).mean(1)


def _model(cls: type[nn.Module]) -> nn.Module:
    torch.manual_seed(0)
    return cls().eval()


def test_a_length_in_two_inputs() -> None:
    model = _model(Encoder)
    make = lambda n, s: (torch.randint(0, 30, (n, s)), torch.ones(n, s))  # noqa: E731
    rt = _prepare(model, make(2, 8), {"ids": {1: "S"}, "mask": {1: "S"}}, dynamic_ranges={"S": (1, 64)})
    for rows, length in ((1, 8), (2, 1), (3, 13), (8, 64), (5, 33)):
        _same(model, rt, *make(rows, length))


def test_two_lengths() -> None:
    model = _model(Translator)
    make = lambda n, s, t: (torch.randint(0, 30, (n, s)), torch.randint(0, 30, (n, t)))  # noqa: E731
    rt = _prepare(model, make(2, 8, 6), {"source": {1: "S"}, "target": {-1: "T"}})
    for sizes in ((2, 8, 6), (3, 5, 9), (1, 12, 2), (8, 7, 7), (4, 1, 1)):
        boundary = _same(model, rt, *make(*sizes))
        assert boundary.sizes == dict(zip("BST", sizes, strict=True))


@pytest.mark.parametrize("batch", [(1, 8), None])
def test_an_image_of_any_height_and_width(batch: Any) -> None:
    model = _model(Pyramid)
    rt = _prepare(model, torch.rand(2, 3, 64, 64), {"x": {2: ("H", 32, 200), 3: ("W", 32, 200)}}, dynamic_batch=batch)
    for height, width in ((64, 64), (65, 64), (33, 150), (100, 47), (199, 200), (32, 32), (77, 131)):
        for rows in (2, 3) if batch else (2,):
            boundary = _same(model, rt, torch.rand(rows, 3, height, width))
            assert boundary.batch_size == (rows if batch else None)
    assert len(rt.variants) == 1, rt.variants
    assert rt.batch_range == batch


@pytest.mark.integration
def test_a_large_example_is_looked_at_once_and_the_rest_is_small() -> None:
    model = _model(Pyramid)
    seen: list[int] = []
    model.register_forward_pre_hook(lambda m, args: seen.append(args[0].numel()))
    example = torch.rand(16, 3, 224, 224)
    rt = _prepare(model, example, {"x": {2: "H", 3: "W"}}, dynamic_batch=(1, 32))
    large = [n for n in seen if n >= example.numel()]
    assert len(large) <= 4, "the batch is looked for, and the example itself is recorded and replayed"
    assert len(seen) <= 60
    model._forward_pre_hooks.clear()
    assert rt.variants[0].count("(16, 224, 224)") == 1


def test_an_image_that_is_a_multiple_of_four() -> None:
    model = _model(Patches)
    rt = _prepare(model, torch.rand(2, 3, 16, 16), {"x": {2: ("H", 4, 64), 3: ("W", 4, 64)}})
    for rows, height, width in ((2, 16, 16), (3, 20, 64), (1, 8, 12), (5, 32, 36), (2, 40, 8), (4, 16, 16)):
        _same(model, rt, torch.rand(rows, 3, height, width))
    assert len(rt.variants) == 1, rt.variants
    with pytest.raises(ValueError, match="multiple of four"):
        rt.run_prefix(torch.rand(2, 3, 18, 16))


@pytest.mark.parametrize("example", [4, 8, 16, 32])
def test_rows_that_come_in_groups(example: int) -> None:
    torch.manual_seed(0)
    model = Fn(lambda lin, x: lin(x.view(-1, 4, 4)).sum(1).relu(), 4).eval()
    rt = cleave.prepare_split(model, example_inputs=torch.randn(example, 4), split=cleave.SplitSpec(boundary="50%"))
    for rows in (4, 8, 20, 64):
        _same(model, rt, torch.randn(rows, 4))
    assert len(rt.variants) == 1, rt.variants
    with pytest.raises(RuntimeError, match="shape"):
        rt.run_prefix(torch.randn(6, 4))


def test_a_square_image_with_one_symbol_for_both_sides() -> None:
    model = _model(Pyramid)
    rt = _prepare(model, torch.rand(2, 3, 48, 48), {"x": {2: "L", 3: "L"}})
    for side in (48, 33, 100, 64):
        _same(model, rt, torch.rand(2, 3, side, side))
    with pytest.raises(cleave.InputError) as caught:
        rt.run_prefix(torch.rand(2, 3, 50, 52))
    mentions(caught.value, "L", "dimension 2", "50", "dimension 3", "52")


def test_channels_last_images() -> None:
    model = _model(Pyramid)
    make = lambda *s: torch.rand(*s).to(memory_format=torch.channels_last)  # noqa: E731
    rt = _prepare(model, make(2, 3, 64, 64), {"x": {2: ("H", 32, 100), 3: ("W", 32, 100)}})
    for size in ((2, 3, 65, 64), (3, 3, 40, 99)):
        _same(model, rt, make(*size))
    assert len(rt.variants) == 1, rt.variants


def test_the_batch_may_be_named_instead_of_found() -> None:
    torch.manual_seed(0)
    model = Fn(lambda lin, x, y: lin(x).relu().sum(1) + lin(y).sum(0), 4).eval()
    dims = {"args[0]": {0: "B", 1: "S"}, "args[1]": {1: "B", 0: "T"}}
    rt = _prepare(model, (torch.randn(3, 5, 4), torch.randn(7, 3, 4)), dims, dynamic_batch=(2, 9))
    assert rt.batch_range == (2, 9)
    for rows, length, other in ((3, 5, 7), (9, 6, 2), (4, 9, 9)):
        boundary = _same(model, rt, torch.randn(rows, length, 4), torch.randn(other, rows, 4))
        assert boundary.batch_size == rows


def test_a_named_batch_has_a_range_of_its_own() -> None:
    model = Fn(lambda lin, x: lin(x).relu(), 4).eval()
    rt = _prepare(model, torch.randn(3, 4), {"args[0]": {0: ("N", 1, 10)}}, dynamic_batch=None, batch_symbol="N")
    assert rt.batch_range == (1, 10)
    assert _same(model, rt, torch.randn(10, 4)).batch_size == 10


# ---- capture -----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("grad", [False, True])
def test_a_captured_plan_takes_other_lengths(grad: bool) -> None:
    model = _model(Encoder)
    ids, mask = torch.randint(0, 30, (2, 8)), torch.ones(2, 8)
    with torch.set_grad_enabled(grad):
        plan = cleave.capture(
            model, (ids, mask), dynamic_batch=(1, 4), dynamic_dims={"ids": {1: "S"}, "mask": {1: "S"}}
        )
        for rows, length in ((2, 8), (3, 11), (1, 5), (4, 1)):
            inputs = torch.randint(0, 30, (rows, length)), torch.ones(rows, length)
            same_tree(model(*inputs), plan(*inputs), f"{rows} x {length}")
    with pytest.raises(cleave.InputError):
        plan(torch.randint(0, 30, (5, 8)), torch.ones(5, 8))


def test_a_captured_plan_without_symbols_takes_one_size() -> None:
    plan = cleave.capture(lambda x: x + 1, torch.randn(3))
    with pytest.raises(cleave.InputError):
        plan(torch.randn(4))


# ---- errors ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("cls", [Encoder])
def test_inputs_that_disagree_are_both_named(cls: type[nn.Module]) -> None:
    model = _model(cls)
    make = lambda n, s: (torch.randint(0, 30, (n, s)), torch.ones(n, s))  # noqa: E731
    rt = _prepare(model, make(2, 8), {"ids": {1: "S"}, "mask": {1: "S"}})
    with pytest.raises(cleave.InputError) as caught:
        rt.run_prefix(torch.randint(0, 30, (2, 9)), torch.ones(2, 7))
    mentions(caught.value, "ids", "mask", "S", "9", "7")
    with pytest.raises(cleave.InputError):  # sizes that were seen, each for itself
        rt.run_prefix(torch.randint(0, 30, (2, 8)), torch.ones(2, 9))
    _same(model, rt, *make(2, 9))


def test_a_size_outside_its_range_is_named() -> None:
    model = _model(Encoder)
    make = lambda n, s: (torch.randint(0, 30, (n, s)), torch.ones(n, s))  # noqa: E731
    rt = _prepare(model, make(2, 8), {"ids": {1: ("S", 4, 20)}, "mask": {1: "S"}})
    for length in (3, 21):
        with pytest.raises(cleave.InputError) as caught:
            rt.run_prefix(*make(2, length))
        mentions(caught.value, "input ids", "dimension 1", f"S={length}", "4 to 20")


def test_another_dimension_is_still_checked() -> None:
    model = _model(Pyramid)
    rt = _prepare(model, torch.rand(2, 3, 48, 48), {"x": {2: "H"}})
    with pytest.raises(cleave.InputError) as caught:
        rt.run_prefix(torch.rand(2, 3, 50, 52))
    mentions(caught.value, "input x", "dimension 3", "52", "48")


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"dynamic_dims": {"x": 1}}, "dynamic_dims"),
        ({"dynamic_dims": [("x", 1)]}, "dynamic_dims"),
        ({"dynamic_dims": {"x": {1: 5}}}, "1: 5"),
        ({"dynamic_dims": {"x": {1: "a b"}}}, "a b"),
        ({"dynamic_dims": {"x": {"1": "S"}}}, "'1'"),
        ({"dynamic_dims": {"x": {1: ("S", 0, 5)}}}, "low"),
        ({"dynamic_dims": {"x": {1: ("S", 7, 5)}}}, "low"),
        ({"dynamic_dims": {"x": {1: "S"}}, "dynamic_ranges": {"T": (1, 5)}}, "T"),
        ({"dynamic_dims": {"x": {1: "S"}}, "dynamic_ranges": {"S": 5}}, "pair"),
        ({"dynamic_dims": {"x": {1: ("S", 1, 5)}}, "dynamic_ranges": {"S": (1, 6)}}, "already"),
        ({"dynamic_ranges": [1, 2]}, "dynamic_ranges"),
    ],
)
def test_a_wrong_request_is_a_split_error(options: Any, words: str) -> None:
    with pytest.raises(cleave.SplitError, match=re.escape(words)):
        cleave.SplitSpec(**options)


@pytest.mark.parametrize(
    ("dims", "words"),
    [
        ({"y": {1: "S"}}, ["'y'", "x"]),
        ({"x": {7: "S"}}, ["x", "4 dimensions", "7"]),
        ({"x": {2: ("H", 100, 200)}}, ["H=48", "100 to 200"]),
        ({"x": {1: "C", 2: "C"}}, ["C", "dimension 1", "dimension 2"]),
    ],
)
def test_a_request_that_does_not_fit_the_inputs_is_told(dims: Any, words: list[str]) -> None:
    with pytest.raises(ValueError) as caught:
        _prepare(_model(Pyramid), torch.rand(2, 3, 48, 48), dims)
    mentions(caught.value, *words)


def test_a_length_that_the_model_fixes_is_told_by_the_model() -> None:
    model = Fn(lambda lin, x: lin(x.view(x.shape[0], 6, 4)).relu(), 4).eval()
    rt = _prepare(model, torch.randn(2, 6, 4), {"args[0]": {1: "S"}})
    _same(model, rt, torch.randn(2, 6, 4))
    assert "too few sizes of S" in rt.sized.reason
    with pytest.raises(RuntimeError, match="invalid for input of size"):
        rt.run_prefix(torch.randn(2, 7, 4))


def test_a_spec_with_dims_can_be_hashed() -> None:
    assert isinstance(hash(cleave.SplitSpec(dynamic_dims={"x": {1: "S"}})), int)


def test_a_boundary_without_its_sizes_is_refused() -> None:
    model = _model(Encoder)
    make = lambda n, s: (torch.randint(0, 30, (n, s)), torch.ones(n, s))  # noqa: E731
    rt = _prepare(model, make(2, 8), {"ids": {1: "S"}, "mask": {1: "S"}})
    boundary = rt.run_prefix(*make(2, 9))
    with pytest.raises(cleave.InputError, match="lacks the size"):
        rt.run_suffix(dataclasses.replace(boundary, sizes={"B": 2}))
    for wrong in ({"B": 2, "S": 10}, {"B": 3, "S": 9}, {"B": 2, "S": -1}, {"B": 2, "S": 10**6}):
        with pytest.raises(cleave.CleaveError):
            rt.run_suffix(dataclasses.replace(boundary, sizes=wrong))


class Native(nn.Module):
    """A table for 16 x 16 is resized for every other image: the example is the special case."""

    def __init__(self) -> None:
        super().__init__()
        self.embed, self.table, self.head = (
            nn.Conv2d(3, 8, 4, 4),
            nn.Parameter(torch.randn(1, 8, 4, 4)),
            nn.Linear(8, 3),
        )

    def forward(self, x: Tensor) -> Tensor:
        y = self.embed(x)
        table = self.table
        if y.shape[-2:] != table.shape[-2:]:
            table = nn.functional.interpolate(table, size=y.shape[-2:], mode="bicubic")
        y = (y + table).flatten(2).transpose(1, 2)
        return self.head(y.reshape(x.shape[0] * y.shape[1], 8)).view(x.shape[0], -1, 3).mean(1)


def test_an_example_of_a_special_size_does_not_cost_the_others_their_plan() -> None:
    model = _model(Native)
    rt = _prepare(model, torch.rand(2, 3, 16, 16), {"x": {2: ("H", 4, 64), 3: ("W", 4, 64)}})
    for size in ((2, 16, 16), (2, 32, 16), (3, 20, 24), (4, 8, 64), (5, 64, 64), (2, 21, 16)):
        _same(model, rt, torch.rand(size[0], 3, *size[1:]))
    assert len(rt.variants) == 2, rt.variants
    assert "(3, 20, 24)" in rt.variants[0]
    assert rt.variants[1].startswith("(B, H, W) = (2, 16, 16)")


def test_a_plan_says_whether_sizes_are_divided_whatever_its_text_holds() -> None:
    inner = nn.ModuleDict({"a//b": nn.Linear(4, 4)})

    class Named(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.inner = inner

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return self.inner["a//b"](x)

    named = cleave.capture(Named().eval(), torch.randn(2, 4), dynamic_batch=(1, 8))._main.plan
    assert "//" in named.text()
    assert not named.divides()
    strided = nn.Conv1d(4, 4, 3, stride=2).eval()
    sizes = {"dynamic_dims": {"input": {2: "N"}}, "dynamic_ranges": {"N": (8, 32)}}
    assert cleave.capture(strided, torch.randn(2, 4, 16), **sizes)._main.plan.divides()

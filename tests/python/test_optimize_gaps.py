"""Who takes rows that are apart (GAPS and VIEW(ANY) in src/plan/ops.def): numbers and layouts are as without gaps."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import operators
import pytest
import torch
from test_optimize_layout import operator
from torch import Tensor

ROWS = [(name, how) for name, [how] in operators.with_column("GAPS").items()]
ROWS += [(name, "SAME") for name, [how] in operators.with_column("VIEW").items() if how == "ANY"]
DEVICES = ["cpu", "cuda"] if torch.cuda.is_available() else ["cpu"]
N, H, S, D = 2, 4, 6, 8  # batch, heads, tokens, size of a head


def vector(x: Tensor) -> Tensor:
    return torch.linspace(-1, 1, x.shape[-1], device=x.device)


def square(x: Tensor) -> Tensor:
    return torch.linspace(-1, 1, x.shape[-1] ** 2, device=x.device).view(x.shape[-1], x.shape[-1])


def alike(x: Tensor) -> Tensor:
    """A tensor without gaps, laid out in the order of x."""
    return torch.linspace(0.5, 1, x.numel(), device=x.device).view(x.shape)


def attention(x: Tensor) -> list[Any]:
    return [x, x, None, 0.0, False]


CALLS: dict[str, Callable[[Tensor], list[Any]]] = {
    "aten::_fused_rms_norm": lambda x: [[x.shape[-1]], vector(x), 1e-5],
    "aten::add.Scalar": lambda x: [2],
    "aten::add.Tensor": lambda x: [alike(x)],
    "aten::addcdiv": lambda x: [x, alike(x)],
    "aten::addcmul": lambda x: [x, alike(x)],
    "aten::amax": lambda x: [[-1], True],
    "aten::broadcast_to": lambda x: [list(x.shape)],
    "aten::clamp": lambda x: [-0.5, 0.5],
    "aten::clamp_max": lambda x: [0.5],
    "aten::clamp_min": lambda x: [0.5],
    "aten::clone": lambda x: [],
    "aten::chunk": lambda x: [2, -1],
    "aten::div.Scalar": lambda x: [2],
    "aten::div.Tensor": lambda x: [alike(x)],
    "aten::dropout": lambda x: [0.5, False],
    "aten::expand": lambda x: [list(x.shape)],
    "aten::expand_as": lambda x: [x],
    "aten::flatten.using_ints": lambda x: [0, -1],
    "aten::layer_norm": lambda x: [[x.shape[-1]], vector(x), vector(x)],
    "aten::linear": lambda x: [square(x), vector(x)],
    "aten::masked_fill.Scalar": lambda x: [alike(x) > 0.7, 3.0],
    "aten::matmul": lambda x: [square(x)],
    "aten::maximum": lambda x: [alike(x)],
    "aten::mean.dim": lambda x: [[-1], True],
    "aten::minimum": lambda x: [alike(x)],
    "aten::moveaxis.int": lambda x: [0, 1],
    "aten::moveaxis.intlist": lambda x: [[0, 1], [1, 0]],
    "aten::movedim.int": lambda x: [0, 1],
    "aten::movedim.intlist": lambda x: [[0, 1], [1, 0]],
    "aten::mul.Scalar": lambda x: [2],
    "aten::mul.Tensor": lambda x: [alike(x)],
    "aten::narrow": lambda x: [-1, 1, 3],
    "aten::permute": lambda x: [[x.dim() - 1, *range(x.dim() - 1)]],
    "aten::pow.Tensor_Scalar": lambda x: [2],
    "aten::repeat_interleave.self_int": lambda x: [2, 1],
    "aten::reshape": lambda x: [[-1]],
    "aten::rms_norm": lambda x: [[x.shape[-1]], vector(x), 1e-5],
    "aten::rsub.Scalar": lambda x: [2],
    "aten::scaled_dot_product_attention": attention,
    "aten::select.int": lambda x: [1, 1],
    "aten::slice.Tensor": lambda x: [-1, 1, 5],
    "aten::softmax.int": lambda x: [-1],
    "aten::split.Tensor": lambda x: [2, -1],
    "aten::split.sizes": lambda x: [[2, x.shape[-1] - 2], -1],
    "aten::split_with_sizes": lambda x: [[2, x.shape[-1] - 2], -1],
    "aten::squeeze.dim": lambda x: [0],
    "aten::squeeze.dims": lambda x: [[0]],
    "aten::sub.Scalar": lambda x: [2],
    "aten::sub.Tensor": lambda x: [alike(x)],
    "aten::sum.dim_IntList": lambda x: [[-1], True],
    "aten::swapaxes": lambda x: [0, 1],
    "aten::swapdims": lambda x: [0, 1],
    "aten::tensor_split.indices": lambda x: [[2], -1],
    "aten::tensor_split.sections": lambda x: [2, -1],
    "aten::to.dtype": lambda x: [torch.float64],
    "aten::transpose.int": lambda x: [0, 1],
    "aten::unflatten.int": lambda x: [-1, [2, -1]],
    "aten::unfold": lambda x: [-1, 2, 1],
    "aten::unsqueeze": lambda x: [1],
    "aten::var.correction": lambda x: [[-1]],
}


def sum_of(name: str, x: Tensor, other: Tensor) -> Tensor:
    call = operator(name)
    return call(vector(x), x, other) if "add" in name else call(x, other)


def values(name: str, x: Tensor) -> Any:
    """What the operator gives for x."""
    call = operator(name)
    matrix = x[0, 0] if x.dim() > 3 else x[0]
    if name in ("aten::addmm", "aten::mm"):
        return sum_of(name, matrix, square(x))
    if name in ("aten::baddbmm", "aten::bmm"):
        parts = x[0] if x.dim() > 3 else x
        return sum_of(name, parts, square(x).expand(parts.shape[0], -1, -1))
    if name == "aten::t":
        return call(matrix)
    if name in ("aten::cat", "aten::stack"):
        return call([x, x], -1)
    if name == "aten::where.self":
        return call(alike(x) > 0.7, x, alike(x))
    return call(x, *CALLS.get(name, lambda _: [])(x))


def apart(device: str) -> tuple[Tensor, Tensor]:
    """Results of a linear, without gaps and as a part of a larger product."""
    whole = torch.rand(N, S, 3 * H * D, generator=torch.Generator().manual_seed(0)).to(device) + 0.1
    part = whole.narrow(-1, H * D, H * D)
    return part.contiguous(), part


SHAPES: dict[str, Callable[[Tensor], Tensor]] = {
    "as it is": lambda x: x,
    "heads": lambda x: x.view(N, S, H, D),
    "heads first": lambda x: x.view(N, S, H, D).transpose(1, 2),
}


def flat(result: Any) -> list[Tensor]:
    return [result] if isinstance(result, Tensor) else [t for t in result if isinstance(t, Tensor)]


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize(("name", "how"), ROWS)
@torch.no_grad()
def test_gaps_are_not_noticed(name: str, how: str, device: str) -> None:
    for shape in SHAPES.values():
        dense, gaps = (shape(x) for x in apart(device))
        for want, got in zip(flat(values(name, dense)), flat(values(name, gaps)), strict=True):
            torch.testing.assert_close(got, want)
            if how == "ANY" or (how == "FRESH" and want.data_ptr() != dense.data_ptr()):
                assert got.stride() == want.stride()
            if how == "SAME" and name != "aten::to.dtype":
                assert got.untyped_storage().data_ptr() == gaps.untyped_storage().data_ptr()


def test_the_table_covers_what_it_should() -> None:
    assert len(ROWS) == len({name for name, _ in ROWS}) > 80

"""Reductions, norms and softmax of the native engine against torch; a row has the same bits in every batch."""

from __future__ import annotations

from pathlib import Path

import native
import pytest
import torch
from test_native_elementwise import FLOATS, INTS, Fn, check, numbers
from torch import Tensor, nn
from torch.nn import functional as F

pytestmark = pytest.mark.skipif(native.COMMAND is None, reason="the cleave command is not built")


def plain(*shape: int, seed: int = 0, dtype: torch.dtype = torch.float32) -> Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed)).to(dtype)


SUMS: list[Fn] = [
    torch.sum,
    lambda x: x.sum(-1),
    lambda x: x.sum((0, 2), keepdim=True),
    lambda x: x.sum(1),
    torch.prod,
    lambda x: x.prod(1),
    lambda x: x.amax(1),
    lambda x: x.amin((1, 2)),
    torch.max,
    torch.min,
    lambda x: tuple(x.max(1)),
    lambda x: tuple(x.min(-1, keepdim=True)),
    torch.argmax,
    lambda x: x.argmax(1),
    lambda x: x.argmin(-1, keepdim=True),
    lambda x: (x > 0).all(),
    lambda x: (x > 0).any(1),
    lambda x: x.count_nonzero(),
    lambda x: x.count_nonzero(1),
    lambda x: x.cumsum(1),
    lambda x: x.cumsum(-1),
]
OF_FLOATS: list[Fn] = [
    torch.mean,
    lambda x: x.mean(1),
    lambda x: x.mean((1, 2), keepdim=True),
    lambda x: x.cumprod(1),
    lambda x: torch.logsumexp(x, 1),
    lambda x: torch.var(x, 1),
    lambda x: torch.var(x, 2, unbiased=False),
    lambda x: torch.std(x, -1, keepdim=True),
    lambda x: x.norm(),
    lambda x: x.norm(dim=1),
    lambda x: torch.linalg.vector_norm(x, 3, dim=-1),
    lambda x: torch.linalg.vector_norm(x, 1, dim=1, keepdim=True),
    lambda x: torch.linalg.vector_norm(x, torch.inf),
    lambda x: F.normalize(x, dim=1),
]


@pytest.mark.parametrize("isa", ["base", "avx2", ""])
def test_floats(isa: str, tmp_path: Path) -> None:
    for dtype in FLOATS:
        for shape in ((3, 40, 7), (2, 5, 1030)):
            check(SUMS + OF_FLOATS, [plain(*shape, dtype=dtype)], tmp_path, isa)


def test_integers(tmp_path: Path) -> None:
    for dtype in INTS:
        check(SUMS, [numbers(dtype, 3, 4, 5)], tmp_path)


def test_nan_and_infinities(tmp_path: Path) -> None:
    some = [lambda x: x.sum(1), lambda x: x.amax(1), lambda x: tuple(x.max(0)), lambda x: x.argmin(1), torch.mean]
    some += [lambda x: F.softmax(x, 1), lambda x: F.log_softmax(x, 0)]
    x = numbers(torch.float32, 40, 50)
    check(some, [torch.where(x.isfinite(), x.round(), x)], tmp_path)
    check([lambda x: F.softmax(x.masked_fill(x > 0, -torch.inf), -1)], [plain(8, 2)], tmp_path)


def test_no_elements(tmp_path: Path) -> None:
    check([lambda x: x.sum(1), lambda x: x.sum(0), lambda x: x.prod(1), lambda x: x.any(0)], [plain(0, 3)], tmp_path)
    check([lambda x: x.sum(1), lambda x: x.mean(1), lambda x: x.all(1), torch.sum], [plain(3, 0)], tmp_path)


@pytest.mark.parametrize("isa", ["base", "avx2", ""])
def test_softmax(isa: str, tmp_path: Path) -> None:
    functions: list[Fn] = [lambda x, d=d: F.softmax(x, d) for d in range(3)]
    functions += [lambda x, d=d: F.log_softmax(x, d) for d in range(3)]
    functions += [lambda x: F.softmin(x, -1), lambda x: F.softmax(x, -1, dtype=torch.float64)]
    for shape in ((3, 40, 7), (2, 5, 130), (1, 1, 1), (0, 2, 3)):
        check(functions, [plain(*shape) * 10], tmp_path, isa)
    check(functions, [plain(2, 5, 13, dtype=torch.float64)], tmp_path)


class Norms(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.layer, self.plain = nn.LayerNorm([7, 5]), nn.LayerNorm(5, elementwise_affine=False)
        self.group, self.instance = nn.GroupNorm(3, 6), nn.InstanceNorm2d(6, affine=True)
        self.batch, self.rms = nn.BatchNorm2d(6), nn.RMSNorm(5)
        for t in self.state_dict().values():
            t.copy_(torch.rand(t.shape) + 0.5)

    def forward(self, x: Tensor) -> list[Tensor]:
        made = [f(x) for f in (self.layer, self.plain, self.group, self.instance, self.batch, self.rms)]
        last = x.contiguous(memory_format=torch.channels_last)
        return [*made, self.group(last), self.batch(last), F.layer_norm(x.transpose(1, 3), [6])]


@pytest.mark.parametrize("isa", ["base", "avx2", ""])
def test_norms(isa: str, tmp_path: Path) -> None:
    model, x = Norms().eval(), plain(4, 6, 7, 5) * 3 + 1
    with torch.no_grad():
        wanted = model(x)
    for a, b in zip(native.run(model, [x], tmp_path, isa), wanted, strict=True):
        torch.testing.assert_close(a, b, rtol=1e-5, atol=1e-5)
    alone = native.run(model, [x[2:3]], tmp_path, isa)
    for a, b in zip(native.run(model, [x], tmp_path, isa, threads=2), alone, strict=True):
        assert torch.equal(a[2:3], b)


def test_a_row_has_the_same_bits_in_every_batch(tmp_path: Path) -> None:
    functions: list[Fn] = OF_FLOATS[1:8]
    functions += [lambda x: F.softmax(x, 1), lambda x: F.softmax(x, 2), lambda x: x.sum((1, 2)), lambda x: x.amax(1)]
    x = plain(5, 33, 130)
    many = native.run(native.Calls(functions), [x], tmp_path, threads=2)
    for i in (0, 3):
        for a, b in zip(native.run(native.Calls(functions), [x[i : i + 1]], tmp_path), many, strict=True):
            assert torch.equal(a, b[i : i + 1])


def test_batch_norm_by_statistics_that_nothing_keeps(tmp_path: Path) -> None:
    """Networks without norms standardise the weights of their convolutions so."""
    torch.manual_seed(0)
    w = torch.randn(9)
    functions: list[Fn] = [
        lambda x: F.batch_norm(x.reshape(1, 6, -1), None, None, training=True),
        lambda x: F.batch_norm(x, None, None, w[:5], w[4:], training=True, eps=1e-3).relu(),
        lambda x: F.batch_norm(x.transpose(1, 2), None, None, weight=w, training=True),
    ]
    x = torch.randn(6, 5, 9)
    want = native.Calls(functions)(x)
    for isa in ("base", "avx2", "avx512"):
        for a, b in zip(want, native.run(native.Calls(functions).eval(), [x], tmp_path, isa), strict=True):
            torch.testing.assert_close(b, a.contiguous(), rtol=1e-5, atol=1e-5)

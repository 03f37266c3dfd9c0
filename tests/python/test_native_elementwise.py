"""Elementwise operators of the native engine against torch: dtypes, broadcasts, type promotion, nan and infinities."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import native
import pytest
import torch
from torch import Tensor
from torch.nn import functional as F

pytestmark = pytest.mark.skipif(native.COMMAND is None, reason="the cleave command is not built")

FLOATS = [torch.float32, torch.float64]
INTS = [torch.int64, torch.int32, torch.int16, torch.int8, torch.uint8]
Fn = Callable[..., Any]


def numbers(dtype: torch.dtype, *shape: int, seed: int = 0) -> Tensor:
    g = torch.Generator().manual_seed(seed)
    if dtype == torch.bool:
        return torch.rand(shape, generator=g) > 0.5
    if not dtype.is_floating_point:
        return torch.randint(0 if dtype == torch.uint8 else -20, 21, shape, generator=g).to(dtype)
    x = torch.randn(shape, generator=g, dtype=torch.float64) * 3
    special = torch.tensor([0.0, -0.0, torch.inf, -torch.inf, torch.nan, 1e-40, 30.0, -100.0, 1.0, 0.5], dtype=x.dtype)
    if x.numel() > 40:
        x.flatten()[:: x.numel() // 10][:10] = special
        x.view(-1)[torch.randperm(x.numel(), generator=g)[:10]] = special
    return x.to(dtype)


def check(functions: list[Fn], inputs: list[Tensor], folder: Path, isa: str = "") -> None:
    model = native.Calls(functions)
    wanted = [t for made in model(*[x.clone() for x in inputs]) for t in (made if isinstance(made, tuple) else (made,))]
    got = native.run(model, inputs, folder, isa)
    assert len(got) == len(wanted)
    for i, (a, b) in enumerate(zip(got, wanted, strict=True)):
        assert a.dtype == b.dtype, i
        assert a.shape == b.shape, i
        torch.testing.assert_close(a, b, equal_nan=True, rtol=2e-6, atol=1e-6, msg=lambda m, i=i: f"function {i}: {m}")


MAPS = (
    "acos acosh asin asinh atan atanh cos cosh erf erfc exp exp2 expm1 log log10 log1p log2 reciprocal rsqrt sigmoid "
)
MAPS += "sin sinh sqrt tan tanh lgamma"
PLAIN = "abs neg sign floor ceil trunc round isnan isinf isfinite signbit square logical_not sgn"
ACTIVATIONS: list[Fn] = [
    F.relu,
    F.silu,
    F.mish,
    lambda x: F.gelu(x.clamp(max=1e30)),  # gelu(inf) is nan in some kernels of torch and inf in others
    lambda x: F.gelu(x, approximate="tanh"),
    F.softplus,
    lambda x: F.softplus(x, beta=2.0, threshold=5.0),
    F.elu,
    lambda x: F.elu(x, alpha=0.7),
    F.celu,
    lambda x: F.celu(x, alpha=1.3),
    F.selu,
    F.hardswish,
    F.hardsigmoid,
    F.hardtanh,
    F.relu6,
    F.leaky_relu,
    lambda x: F.leaky_relu(x, 0.2),
    F.logsigmoid,
    F.softshrink,
    F.hardshrink,
    F.tanhshrink,
    F.softsign,
    lambda x: F.threshold(x, 0.1, 20.0),
    lambda x: F.glu(x, -1),
    lambda x: F.glu(x, 0),
]


@pytest.mark.parametrize("isa", ["base", "avx2", ""])
def test_functions_of_floats(isa: str, tmp_path: Path) -> None:
    def named(name: str) -> Fn:
        return lambda x: getattr(torch, name)(x)

    functions = [named(n) for n in (MAPS + " " + PLAIN).split()] + ACTIVATIONS
    check(functions, [numbers(torch.float32, 8, 70)], tmp_path, isa)


def test_functions_of_doubles_and_integers(tmp_path: Path) -> None:
    def named(name: str) -> Fn:
        return lambda x: getattr(torch, name)(x)

    check([named(n) for n in (MAPS + " " + PLAIN).split()] + ACTIVATIONS, [numbers(torch.float64, 8, 70)], tmp_path)
    for dtype in INTS:
        plain = [named(n) for n in "abs sign square logical_not isnan sigmoid exp sqrt bitwise_not neg relu".split()]
        check(plain, [numbers(dtype, 6, 7)], tmp_path)
    check([torch.logical_not, torch.bitwise_not, lambda x: x.float() * 2], [numbers(torch.bool, 6, 7)], tmp_path)


COMPARE: list[Fn] = [torch.eq, torch.ne, torch.lt, torch.le, torch.gt, torch.ge]
LOGIC: list[Fn] = [torch.logical_and, torch.logical_or, torch.logical_xor]
ARITHMETIC: list[Fn] = [torch.add, torch.mul, torch.div, torch.minimum, torch.maximum, torch.fmin, torch.fmax]
BITS: list[Fn] = [torch.bitwise_and, torch.bitwise_or, torch.bitwise_xor]


def division(x: Tensor, y: Tensor) -> tuple[Tensor, ...]:
    y = torch.where(y.abs() < 0.001, torch.full_like(y, 3), y)  # torch gives nan where x / y overflows
    floor = torch.div(x, y, rounding_mode="floor"), torch.div(x, y, rounding_mode="trunc")
    return *floor, torch.floor_divide(x, y), torch.fmod(x, y), torch.remainder(x, y)


@pytest.mark.parametrize("a", [*FLOATS, *INTS, torch.bool])
def test_pairs_of_dtypes(a: torch.dtype, tmp_path: Path) -> None:
    for b in [*FLOATS, *INTS, torch.bool]:
        functions: list[Fn] = [*COMPARE, *LOGIC, *ARITHMETIC, lambda x, y: torch.where(x > y, x, y)]
        if torch.bool not in (a, b):
            functions += [division, torch.sub, lambda x, y: torch.add(x, y, alpha=2)]
        if not (a.is_floating_point or b.is_floating_point):
            functions += BITS
        check(functions, [numbers(a, 6, 70), numbers(b, 6, 70, seed=1)], tmp_path)


def test_floats_divide_and_power_as_in_torch(tmp_path: Path) -> None:
    functions: list[Fn] = [
        division,
        torch.atan2,
        torch.hypot,
        torch.copysign,
        torch.xlogy,
        torch.logaddexp,
        lambda x, y: x.abs() ** y.clamp(-3, 3),
        *[lambda x, y, k=k: x**k for k in (2, 3, 0.5, -0.5, -1, -2, 1, 0, 1.5)],
        lambda x, y: 2**y,
        lambda x, y: torch.lerp(x, y, 0.3),
        lambda x, y: torch.addcmul(x, y, x, value=0.5),
        lambda x, y: torch.addcdiv(x, y, x, value=0.5),
        lambda x, y: torch.nan_to_num(x),
        lambda x, y: torch.nan_to_num(x, 1.0, 2.0, 3.0),
        lambda x, y: torch.round(x, decimals=2),
        lambda x, y: torch.frac(x),
        lambda x, y: torch.logit(x, 0.1),
        lambda x, y: torch.deg2rad(x),
        lambda x, y: torch.clamp(x, -1.0, 1.0),
        lambda x, y: torch.clamp(x, min=0.5),
        lambda x, y: torch.clamp(x, max=0.5),
        lambda x, y: torch.clamp(x, y, y + 1),
        lambda x, y: torch.clamp(x, min=y),
        lambda x, y: x.masked_fill(y > 0, -5.0),
        lambda x, y: torch.rsub(x, y, alpha=2),
        lambda x, y: 1 - x,
        lambda x, y: 1 / x,
    ]
    for dtype in FLOATS:
        check(functions, [numbers(dtype, 6, 70), numbers(dtype, 6, 70, seed=3)], tmp_path)


@pytest.mark.parametrize(
    ("a", "b"),
    [((3, 1, 5), (4, 1)), ((1,), (2, 3)), ((), (4, 5)), ((0, 3), (1, 3)), ((2, 3, 4, 5), (3, 1, 1)), ((7,), ())],
)
def test_broadcasts(a: tuple[int, ...], b: tuple[int, ...], tmp_path: Path) -> None:
    functions: list[Fn] = [
        torch.add,
        torch.mul,
        torch.lt,
        lambda x, y: torch.where(x > 0, y, x),
        lambda x, y: x.expand(torch.broadcast_shapes(x.shape, y.shape)) - y,
    ]
    check(functions, [numbers(torch.float32, *a), numbers(torch.float32, *b, seed=1)], tmp_path)


def test_promotion_knows_numbers_and_tensors_without_dimensions(tmp_path: Path) -> None:
    functions: list[Fn] = [
        lambda x, y, z: x + z,
        lambda x, y, z: y + z,
        lambda x, y, z: x * 2.5,
        lambda x, y, z: y * 2.5,
        lambda x, y, z: y * 2,
        lambda x, y, z: y > 2.5,
        lambda x, y, z: z * 2.5,
        lambda x, y, z: y / 2,
        lambda x, y, z: y // 2,
        lambda x, y, z: y % 3,
        lambda x, y, z: torch.where(y > 0, y, 1.5),
        lambda x, y, z: torch.where(y > 0, 1.0, 2.0),
        lambda x, y, z: (y > 0) * 2,
        lambda x, y, z: (y > 0) + 0.5,
        lambda x, y, z: torch.clamp(y, 0, 3.5),
    ]
    for small in (torch.float64, torch.int64, torch.bool, torch.float32):
        for dtype in (torch.int32, torch.uint8, torch.int64):
            check(functions, [numbers(torch.float32, 4, 3), numbers(dtype, 4, 3), numbers(small)], tmp_path)


def test_casts_round_and_wrap(tmp_path: Path) -> None:
    every = [*FLOATS, *INTS, torch.bool]
    for a in every:
        x = numbers(a, 6, 5)
        if a.is_floating_point:
            x = torch.nan_to_num(x * 10, 0.0, 100.0, 0.0).clamp(0, 100)
        functions: list[Fn] = [lambda x, d=d: x.to(d) + 0 if d != torch.bool else x.to(d) | False for d in every]
        check(functions, [x], tmp_path)


def in_place(x: Tensor, y: Tensor) -> tuple[Tensor, ...]:
    a = x + 1
    a.add_(y).mul_(2.0).relu_()
    b = y.clone()
    b += x
    b.clamp_(-1, 1).sigmoid_()
    c = x * 1
    c.masked_fill_(y > 0, 7.0)
    d = (x > 0).int()
    d += 3
    return a, b, c, d


def test_writing_in_place(tmp_path: Path) -> None:
    check([in_place], [numbers(torch.float32, 5, 9), numbers(torch.float32, 5, 9, seed=1)], tmp_path)


def test_strides(tmp_path: Path) -> None:
    functions: list[Fn] = [
        lambda x, y: x.transpose(1, 2) + y,
        lambda x, y: x.permute(2, 0, 1) * x.permute(2, 0, 1)[:, :1],
        lambda x, y: x[:, ::2, 1:] - x[:, 1::2, :-1],
        lambda x, y: torch.sigmoid(x.transpose(0, 2)),
        lambda x, y: F.prelu(x, y[0, 0, :1].abs()),
        lambda x, y: F.prelu(x, torch.arange(6.0)),
    ]
    check(functions, [numbers(torch.float32, 3, 6, 8), numbers(torch.float32, 3, 8, 6, seed=1)], tmp_path)


def test_an_integer_divided_by_zero_ends_the_run(tmp_path: Path) -> None:
    model = native.Calls([lambda x, y: x // y])
    x = torch.tensor([4, 5])
    native.run(model, [x, torch.tensor([1, 2])], tmp_path)
    with pytest.raises(RuntimeError, match="divided by zero"):
        native.rerun([x, torch.tensor([1, 0])], tmp_path)


def test_tensors_from_numbers(tmp_path: Path) -> None:
    functions: list[Fn] = [
        lambda x: torch.zeros(2, 3) + x[:2, :3],
        lambda x: torch.full((2, 3), 1.5),
        lambda x: torch.full((2,), 7),
        lambda x: torch.ones(3, dtype=torch.bool),
        lambda x: torch.full_like(x, -2.5),
        torch.ones_like,
        lambda x: x.new_zeros(2, 2),
        lambda x: x.new_full((3,), 4.0),
        lambda x: torch.arange(5),
        lambda x: torch.arange(2, 9, 3),
        lambda x: torch.arange(0.0, 1.0, 0.1),
        lambda x: torch.linspace(-1, 2, 7),
        lambda x: torch.linspace(3, 4, 1),
        lambda x: torch.eye(3),
        lambda x: torch.eye(2, 4, dtype=torch.int64),
        lambda x: torch.scalar_tensor(2.5) * x,
        lambda x: torch.arange(x.shape[1]) * 2,
    ]
    check(functions, [numbers(torch.float32, 4, 5)], tmp_path)

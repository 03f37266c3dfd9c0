"""Operators of f16 and bf16 on the native engine: computed in f32 and rounded after each operator, as PyTorch does."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from native import COMMAND, Calls, run
from torch import Tensor, nn

import cleave

pytestmark = pytest.mark.skipif(COMMAND is None, reason="the cleave command is not built")
HALVES = [torch.bfloat16, torch.float16]
ISAS = ["base", "avx2", "avx512"]


def eps(dtype: torch.dtype) -> float:
    return torch.finfo(dtype).eps


def check(
    functions: list[Callable[..., Any]], inputs: list[Tensor], folder: Path, isa: str = "", ulps: float = 2
) -> None:
    model = Calls(functions).eval()
    with torch.no_grad():
        want = [
            t for made in model(*[x.clone() for x in inputs]) for t in (made if isinstance(made, tuple) else (made,))
        ]
    got = run(model, inputs, folder, isa)
    assert len(got) == len(want)
    for i, (a, b) in enumerate(zip(want, got, strict=True)):
        assert (a.dtype, a.shape) == (b.dtype, b.shape), f"function {i}"
        if not a.dtype.is_floating_point:
            assert torch.equal(a, b), f"function {i}"
            continue
        most = float(a.double().nan_to_num(0, 0, 0).abs().max()) if a.numel() else 0.0
        near = ulps * eps(inputs[0].dtype)
        torch.testing.assert_close(
            b, a, rtol=near, atol=near * most, equal_nan=True, msg=lambda m, i=i: f"function {i}: {m}"
        )


ELEMENTWISE: list[Callable[..., Any]] = [
    lambda x, y, n: x + y,
    lambda x, y, n: x * 0.1,
    lambda x, y, n: (x + y) * y - x / 3,
    lambda x, y, n: x + n,
    lambda x, y, n: x.float() * y,
    lambda x, y, n: x * torch.full((), 0.3, dtype=torch.float64),
    lambda x, y, n: F.relu(x) + F.gelu(y),
    lambda x, y, n: F.silu(x) * torch.sigmoid(y),
    lambda x, y, n: torch.exp(x).clamp(0.1, 5),
    lambda x, y, n: torch.where(x > y, x, y * 2),
    lambda x, y, n: (x > 0.1, x <= y, x == 0.1, x != 257),
    lambda x, y, n: x.masked_fill(y > 0, -1e4),
    lambda x, y, n: x.to(torch.int32).to(x.dtype),
    lambda x, y, n: n.to(x.dtype) / 7,
    lambda x, y, n: torch.maximum(x, y).pow(2),
    lambda x, y, n: x.add_(1).mul_(y),
]
MOVES: list[Callable[..., Any]] = [
    lambda x, y, n: torch.cat([x, y, x], 1),
    lambda x, y, n: torch.stack([x, y]).transpose(0, 2).reshape(-1),
    lambda x, y, n: x[:, 1:].flip(0),
    lambda x, y, n: torch.cat([x * 2, y + 1], 0),
    lambda x, y, n: F.pad(x, (1, 2), value=0.3),
    lambda x, y, n: x.gather(1, n.abs() % x.shape[1]),
    lambda x, y, n: torch.arange(5, dtype=x.dtype) + torch.zeros(5, dtype=x.dtype),
    lambda x, y, n: x.scatter_add(0, torch.zeros_like(n), y),
    lambda x, y, n: torch.zeros_like(x).index_add(0, torch.zeros(x.shape[0], dtype=torch.int64), y),
]
REDUCTIONS: list[Callable[..., Any]] = [
    lambda x, y, n: x.sum(1),
    lambda x, y, n: x.mean((0, 1)),
    lambda x, y, n: x.amax(0),
    lambda x, y, n: x.argmax(1),
    lambda x, y, n: x.softmax(1),
    lambda x, y, n: x.softmax(0, dtype=torch.float32),
    lambda x, y, n: x.log_softmax(-1),
    lambda x, y, n: x.sort(dim=1, stable=True),
    lambda x, y, n: x.cumsum(1),
    lambda x, y, n: x.var(1),
    lambda x, y, n: F.layer_norm(x, x.shape[1:], y[0], y[1]),
    lambda x, y, n: F.rms_norm(x, x.shape[1:], y[0]),
]


def draw(dtype: torch.dtype, *shape: int) -> list[Tensor]:
    x, y, n = torch.randn(shape).to(dtype), torch.randn(shape).to(dtype), torch.randint(-9, 9, shape)
    x.view(-1)[:3] = torch.tensor([0.1, 257.0, 0.0]).to(dtype)
    return [x, y, n]


@pytest.mark.parametrize("dtype", HALVES)
@pytest.mark.parametrize("functions", [ELEMENTWISE, MOVES, REDUCTIONS], ids=["elementwise", "moves", "reductions"])
def test_an_operator_of_halves_rounds_as_eager(functions: list[Any], dtype: torch.dtype, tmp_path: Path) -> None:
    torch.manual_seed(0)
    for isa in ISAS:
        check(functions, draw(dtype, 5, 19), tmp_path, isa)


@pytest.mark.parametrize("dtype", HALVES)
def test_nan_and_infinity_of_halves_stay_what_they_are(dtype: torch.dtype, tmp_path: Path) -> None:
    torch.manual_seed(0)
    x, y, n = draw(dtype, 4, 9)
    x[0, :3] = torch.tensor([float("nan"), float("inf"), float("-inf")])
    y[1, 2] = float("nan")
    odd = [
        lambda x, y, n: F.relu(x),
        lambda x, y, n: x.softmax(1),
        lambda x, y, n: x.clamp(-1, 1),
        lambda x, y, n: x * 1e30,
    ]
    check([*odd, lambda x, y, n: x + y, lambda x, y, n: x.amax(1)], [x, y, n], tmp_path)


def test_tensors_of_halves_may_be_empty(tmp_path: Path) -> None:
    functions = [
        lambda x, y, n: x + y,
        lambda x, y, n: x.sum(1),
        lambda x, y, n: torch.cat([x, y], 1),
        lambda x, y, n: x @ y.t(),
    ]
    check(functions, [torch.zeros(0, 3).bfloat16()] * 3, tmp_path)


class Layers(nn.Module):
    """The layers of usual models."""

    def __init__(self) -> None:
        super().__init__()
        self.conv, self.deep = nn.Conv2d(3, 16, 3, padding=1, stride=2), nn.Conv2d(16, 16, 3, groups=16)
        self.norm, self.group = nn.BatchNorm2d(16), nn.GroupNorm(4, 16)
        self.embed = nn.Embedding(11, 24)
        self.attend = nn.MultiheadAttention(24, 3, batch_first=True)
        self.layer, self.head = nn.LayerNorm(24), nn.Linear(24, 7)

    def forward(self, image: Tensor, ids: Tensor) -> Any:
        x = F.max_pool2d(self.deep(self.norm(self.conv(image)).relu()), 2)
        y = F.interpolate(self.group(x), scale_factor=2, mode="bilinear")
        t = self.embed(ids)
        q = t.unflatten(-1, (3, 8)).transpose(1, 2)
        a = F.scaled_dot_product_attention(q, q, q, is_causal=True).transpose(1, 2).flatten(2)
        return y, F.adaptive_avg_pool2d(x, 2), self.head(self.layer(a + t))


def layers(dtype: torch.dtype) -> tuple[nn.Module, list[Tensor]]:
    torch.manual_seed(0)
    model = Layers().eval()
    with torch.no_grad():
        model.norm.running_mean.normal_()
        model.norm.running_var.uniform_(0.5, 2)
    return model.to(dtype), [torch.randn(4, 3, 18, 18).to(dtype), torch.randint(0, 11, (4, 13))]


@pytest.mark.parametrize("dtype", HALVES)
def test_a_model_saved_in_half_precision_is_near_the_same_in_f32(dtype: torch.dtype, tmp_path: Path) -> None:
    """Eager's rounding differs in places from one release to the next: f32 says what is right."""
    model, inputs = layers(dtype)
    with torch.no_grad():
        want = layers(dtype)[0].float()(inputs[0].float(), inputs[1])
        eager = model(*inputs)
    for isa in ISAS:
        for w, e, g in zip(want, eager, run(model, inputs, tmp_path, isa), strict=True):
            assert g.dtype == dtype
            off, allowed = float((g.float() - w).abs().max()), float((e.float() - w).abs().max())
            assert off <= 2 * allowed + 4 * eps(dtype), f"{isa}: off by {off:.3g}, eager by {allowed:.3g}"


def test_rows_of_halves_have_the_same_bits_in_every_batch(tmp_path: Path) -> None:
    model, inputs = layers(torch.bfloat16)
    with torch.no_grad():
        cleave.capture(model, tuple(inputs), dynamic_batch=(1, 8)).save(tmp_path / "model.clv")
    one, two = (cleave.load(tmp_path / "model.clv", engine="native", unproven=True, threads=k) for k in (1, 2))
    whole = one(*inputs)
    for a, b in zip(whole, two(*inputs), strict=True):
        assert torch.equal(a, b)
    for i in range(4):
        for a, b in zip(whole, one(*[x[i : i + 1] for x in inputs]), strict=True):
            assert torch.equal(a[i : i + 1], b)


def test_weights_of_halves_that_are_replaced_count_from_the_next_run_on(tmp_path: Path) -> None:
    model, inputs = layers(torch.bfloat16)
    with torch.no_grad():
        cleave.capture(model, tuple(inputs)).save(tmp_path / "model.clv")
    native = cleave.load(tmp_path / "model.clv", engine="native")
    before = native(*inputs)[2]
    native.load_state_dict({k: v * 2 for k, v in model.state_dict().items()})
    assert not torch.equal(native(*inputs)[2], before)


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
@pytest.mark.parametrize("what", [lambda x: x % 0.3, lambda x: torch.fmod(x, 0.3), torch.nan_to_num])
def test_operators_that_round_their_numbers_first_are_refused(
    tmp_path: Path, dtype: torch.dtype, what: Callable[[Tensor], Tensor]
) -> None:
    class Model(torch.nn.Module):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return what(x)

    with torch.no_grad():
        cleave.capture(Model(), (torch.rand(2, 8).to(dtype),)).save(tmp_path / "m.clv")
    with pytest.raises(cleave.CleaveError, match="16 bits"):
        cleave.load(tmp_path / "m.clv", engine="native")

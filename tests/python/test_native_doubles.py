"""Layers of f64 on the native engine: as eager, to the digits of f64."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from native import COMMAND, Calls, run
from torch import Tensor, nn

pytestmark = pytest.mark.skipif(COMMAND is None, reason="the cleave command is not built")


def near(want: list[Tensor], got: list[Tensor]) -> None:
    assert len(want) == len(got)
    for i, (a, b) in enumerate(zip(want, got, strict=True)):
        assert (a.dtype, a.shape) == (b.dtype, b.shape), f"tensor {i}"
        torch.testing.assert_close(b, a, rtol=1e-12, atol=1e-12, equal_nan=True, msg=lambda m, i=i: f"tensor {i}: {m}")


def check(model: nn.Module, inputs: list[Tensor], folder: Path) -> None:
    model = model.eval().double()
    with torch.no_grad():
        made = model(*[x.clone() for x in inputs])
    flat: list[Tensor] = []
    for x in made if isinstance(made, (list, tuple)) else [made]:
        flat += x if isinstance(x, tuple) else [x]
    near(flat, run(model, inputs, folder))


IMAGES: list[Callable[..., Any]] = [
    lambda x, w: F.conv2d(x, w, padding=1, stride=2),
    lambda x, w: F.conv2d(x, w, padding="same", dilation=(2, 1)),
    lambda x, w: F.conv2d(x, w[:, :2], groups=3),
    lambda x, w: F.conv_transpose2d(x, w, stride=(2, 3), padding=1, output_padding=(1, 0)),
    lambda x, w: F.conv1d(x[:, :, 0], w[:, :, 0], w[:, 0, 0, 0]),
    lambda x, w: F.relu(F.conv3d(x[:, :, None], w[:, :, None], padding=(0, 1, 1))),
    lambda x, w: F.max_pool2d(x, 3, 2, 1, ceil_mode=True),
    lambda x, w: F.max_pool2d(x, 2, return_indices=True),
    lambda x, w: F.avg_pool2d(x, 3, 2, 1, count_include_pad=False),
    lambda x, w: F.adaptive_avg_pool2d(x, (3, 5)),
    lambda x, w: F.adaptive_max_pool1d(x[0], 4),
]
NORMS: list[Callable[..., Any]] = [
    lambda x, w: F.layer_norm(x, x.shape[2:], x[0, 0], x[0, 1]),
    lambda x, w: F.rms_norm(x, x.shape[3:], x[0, 0, 0]),
    lambda x, w: F.group_norm(x, 3, w[0, :, 0, 0], w[1, :, 0, 0]),
    lambda x, w: F.instance_norm(x),
    lambda x, w: F.batch_norm(x, w[0, :, 0, 0], w[1, :, 0, 0].abs(), w[2, :, 0, 0]),
    lambda x, w: torch.native_layer_norm(x, x.shape[3:], None, None, 1e-5),
]


@pytest.mark.parametrize("functions", [IMAGES, NORMS], ids=["images", "norms"])
def test_layers_of_doubles(functions: list[Callable[..., Any]], tmp_path: Path) -> None:
    torch.manual_seed(0)
    x, w = torch.randn(2, 6, 9, 7, dtype=torch.float64), torch.randn(6, 6, 3, 3, dtype=torch.float64)
    check(Calls(functions), [x, w], tmp_path)
    x[0, 1, 2, 3], x[1, 0, 0, 0] = float("nan"), float("inf") if functions is IMAGES else float("nan")
    check(Calls(functions), [x, w], tmp_path)


def test_attention_of_doubles(tmp_path: Path) -> None:
    torch.manual_seed(0)
    q, k, v = (torch.randn(2, 3, n, 8, dtype=torch.float64) for n in (5, 11, 11))
    flags, floats = torch.rand(2, 1, 5, 11) > 0.4, torch.randn(5, 11, dtype=torch.float64)
    floats[1] = float("-inf")
    functions: list[Callable[..., Any]] = [
        lambda q, k, v, m, n: F.scaled_dot_product_attention(q, k, v),
        lambda q, k, v, m, n: F.scaled_dot_product_attention(q, k, v, is_causal=True, scale=0.3),
        lambda q, k, v, m, n: F.scaled_dot_product_attention(q, k, v, m),
        lambda q, k, v, m, n: F.scaled_dot_product_attention(q, k, v, n),
        lambda q, k, v, m, n: F.scaled_dot_product_attention(q, k[:, :1], v[:, :1], enable_gqa=True),
    ]
    check(Calls(functions), [q, k, v, flags, floats], tmp_path)


LAYERS: list[Callable[[], nn.Module]] = [
    lambda: nn.LSTM(5, 7, 2, batch_first=True, bidirectional=True),
    lambda: nn.LSTM(5, 7, proj_size=3),
    lambda: nn.GRU(5, 7, bidirectional=True),
    lambda: nn.RNN(5, 7, nonlinearity="relu", bias=False),
    lambda: nn.RNN(5, 7, batch_first=True),
]


class First(nn.Module):
    def __init__(self, layer: nn.Module) -> None:
        super().__init__()
        self.layer = layer

    def forward(self, x: Tensor) -> Any:
        return self.layer(x)[0]


@pytest.mark.parametrize("build", LAYERS, ids=["lstm", "projected", "gru", "relu", "tanh"])
def test_recurrent_layers_of_doubles(build: Callable[[], nn.Module], tmp_path: Path) -> None:
    torch.manual_seed(0)
    check(First(build()), [torch.randn(3, 4, 5, dtype=torch.float64)], tmp_path)


MODES = [
    (m, p, c) for m in ("bilinear", "nearest", "bicubic") for p in ("zeros", "border", "reflection") for c in (0, 1)
]


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_a_grid_of_a_volume_is_sampled_in_every_mode(dtype: torch.dtype, tmp_path: Path) -> None:
    torch.manual_seed(0)
    x, grid = torch.randn(2, 5, 4, 7, 6, dtype=dtype), torch.randn(2, 3, 6, 8, 3, dtype=dtype) * 1.5
    grid[0, 0, 0, 0] = torch.tensor([-1.0, 1.0, 0.5])
    grid[0, 0, 0, 1] = torch.tensor([1e4, -1e5, 0.0])  # torch counts reflections in 32 bits
    modes = [m for m in MODES if m[0] != "bicubic"]
    functions: list[Callable[..., Any]] = [lambda x, g, m=m: F.grid_sample(x, g, m[0], m[1], bool(m[2])) for m in modes]
    functions += [lambda x, g: F.grid_sample(x.transpose(2, 4), g.flip(1), align_corners=False)]
    functions += [lambda x, g: torch.ops.aten.grid_sampler_3d(x, g, 0, 1, True)]
    functions += [lambda x, g: torch.ops.aten.grid_sampler_2d(x[:, :, 0], g[:, 0, ..., :2], 2, 0, False)]
    model = Calls(functions)
    want = model(x, grid)
    for i, (a, b) in enumerate(zip(want, run(model, [x, grid], tmp_path), strict=True)):
        assert a.dtype == b.dtype
        near_enough = 2e-5 if dtype == torch.float32 else 1e-12
        torch.testing.assert_close(b, a, rtol=near_enough, atol=near_enough, msg=lambda m, i=i: f"function {i}: {m}")


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("channels", [1, 19])
def test_a_grid_is_sampled_in_every_mode(dtype: torch.dtype, channels: int, tmp_path: Path) -> None:
    torch.manual_seed(0)
    x, grid = torch.randn(2, channels, 7, 5, dtype=dtype), torch.randn(2, 6, 8, 2, dtype=dtype) * 1.5
    grid[0, 0, 0] = torch.tensor([-1.0, 1.0])
    grid[0, 0, 1] = torch.tensor([1e20, -1e30])
    functions: list[Callable[..., Any]] = [lambda x, g, m=m: F.grid_sample(x, g, m[0], m[1], bool(m[2])) for m in MODES]
    functions += [lambda x, g: F.grid_sample(x.transpose(2, 3), g.flip(1), align_corners=False)]
    model = Calls(functions)
    want = model(x, grid)
    for i, (a, b) in enumerate(zip(want, run(model, [x, grid], tmp_path), strict=True)):
        assert a.dtype == b.dtype
        near_enough = 2e-5 if dtype == torch.float32 else 1e-12
        torch.testing.assert_close(
            b, a, rtol=near_enough, atol=near_enough, msg=lambda m, i=i: f"{(*MODES, '')[i]}: {m}"
        )

"""Attention with projections and layers of encoders on the native engine: operators of torch's fast path."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from native import COMMAND, run
from torch import Tensor, nn

import cleave

pytestmark = pytest.mark.skipif(COMMAND is None, reason="the cleave command is not built")
ISAS = ["base", "avx2", "avx512"]


class Attend(nn.Module):
    """MultiheadAttention with a mask, and weights or none."""

    def __init__(self, dim: int, heads: int, **options: Any) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.attention = nn.MultiheadAttention(dim, heads, batch_first=True)
        nn.init.normal_(self.attention.in_proj_bias)
        self.options = options

    def forward(self, q: Tensor, k: Tensor | None = None, v: Tensor | None = None) -> Any:
        k = q if k is None else k
        out, weights = self.attention(q, k, k if v is None else v, **self.options)
        return out.relu() if weights is None else (out, weights)


def near(model: nn.Module, inputs: list[Tensor], folder: Path, isa: str = "") -> None:
    with torch.no_grad():
        want = model.eval()(*inputs)
    got = run(model, inputs, folder, isa)
    wants = want if isinstance(want, tuple) else (want,)
    assert len(wants) == len(got)
    for a, b in zip(wants, got, strict=True):
        torch.testing.assert_close(b, a, rtol=1e-4, atol=1e-5, equal_nan=True)


def recorded(folder: Path) -> str:
    return cleave.load(folder / "model.clv").text


def masks(batch: int, rows: int) -> dict[str, dict[str, Any]]:
    hidden = torch.zeros(batch, rows, dtype=torch.bool)
    hidden[:, rows // 2 :] = True
    every = hidden.clone()
    every[0] = True
    flags = torch.ones(rows, rows).triu(1).bool()
    floats = torch.full((rows, rows), float("-inf")).triu(1)
    return {
        "none": {},
        "padding": {"key_padding_mask": hidden},
        "all of a row": {"key_padding_mask": every},
        "causal": {"attn_mask": flags},
        "causal floats": {"attn_mask": floats},
        "both": {"attn_mask": flags, "key_padding_mask": hidden},
        "each head": {"attn_mask": torch.rand(batch * 3, rows, rows) > 0.7},
    }


@pytest.mark.parametrize("mask", list(masks(1, 2)))
def test_attention_with_projections_is_near_eager(mask: str, tmp_path: Path) -> None:
    for dim, rows, more in (
        (12, 5, {"need_weights": True}),
        (24, 17, {"need_weights": False}),
        (15, 4, {"need_weights": True, "average_attn_weights": False}),
    ):
        near(Attend(dim, 3, **more, **masks(3, rows)[mask]), [torch.randn(3, rows, dim)], tmp_path)


def test_attention_on_every_instruction_set(tmp_path: Path) -> None:
    for isa in ISAS:
        near(Attend(48, 3, **masks(2, 33)["causal"]), [torch.randn(2, 33, 48)], tmp_path, isa)


def test_keys_and_values_of_their_own(tmp_path: Path) -> None:
    model = Attend(24, 3)
    near(model, [torch.randn(2, 7, 24), torch.randn(2, 5, 24)], tmp_path)
    near(model, [torch.randn(2, 7, 24), torch.randn(2, 5, 24), torch.randn(2, 5, 24)], tmp_path)


def layer(first: bool, activation: str) -> nn.Module:
    torch.manual_seed(0)
    made = nn.TransformerEncoderLayer(24, 4, 37, norm_first=first, activation=activation, batch_first=True)
    for p in made.parameters():
        nn.init.normal_(p, std=0.3)
    return made.eval()


class Encoder(nn.Module):
    """Two layers, with a mask of one kind."""

    def __init__(self, first: bool, activation: str, **options: Any) -> None:
        super().__init__()
        self.layers = nn.ModuleList(layer(first, activation) for _ in range(2))
        self.options = options

    def forward(self, x: Tensor) -> Tensor:
        for one in self.layers:
            x = one(x, **self.options)
        return x * 2


@pytest.mark.parametrize("activation", ["relu", "gelu"])
@pytest.mark.parametrize("first", [False, True])
def test_a_layer_of_an_encoder_is_near_eager(first: bool, activation: str, tmp_path: Path) -> None:
    hidden = masks(3, 7)["padding"]["key_padding_mask"]
    for options in ({}, {"src_key_padding_mask": hidden}, {"src_mask": masks(3, 7)["causal"]["attn_mask"]}):
        near(Encoder(first, activation, **options), [torch.randn(3, 7, 24)], tmp_path)
        assert "_transformer_encoder_layer_fwd" in recorded(tmp_path)


def test_nan_stays_in_its_sequence(tmp_path: Path) -> None:
    x = torch.randn(3, 7, 24)
    x[1, 2, 3] = float("nan")
    near(Encoder(True, "gelu"), [x], tmp_path)


@pytest.mark.parametrize("first", [False, True])
def test_a_sequence_has_the_same_bits_in_every_batch(first: bool, tmp_path: Path) -> None:
    model, x = nn.Sequential(Encoder(first, "gelu"), Attend(24, 3)), torch.randn(5, 19, 24)
    with torch.no_grad():
        cleave.capture(model.eval(), (x,), dynamic_batch=(1, 8)).save(tmp_path / "model.clv")
    one, two = (cleave.load(tmp_path / "model.clv", engine="native", unproven=True, threads=k) for k in (1, 2))
    whole = one(x)
    for a, b in zip(whole, two(x), strict=True):
        assert torch.equal(a, b)
    for i in range(5):
        for a, b in zip(whole, one(x[i : i + 1]), strict=True):
            assert torch.equal(a[i : i + 1], b)

"""What models spell out, on a GPU: where one kernel is there for it, it runs."""

from __future__ import annotations

import re

import pytest
import torch
from torch import nn
from torch.nn import functional as F

import cleave

pytestmark = [pytest.mark.gpu, pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")]

TOLERANCE = {torch.float32: 2e-3, torch.float16: 1e-2, torch.bfloat16: 5e-2}


def found(model: nn.Module, *args: torch.Tensor) -> str:
    """The passes that found something; what came out is right."""
    far = TOLERANCE[args[0].dtype]
    with torch.no_grad():
        plan = cleave.capture(model, args, optimize="fast")
        for _ in range(3):
            torch.testing.assert_close(plan(*args), model(*args), rtol=far, atol=far)
    text = plan.optimizations()
    assert "not used" not in text, text
    line = re.search(r"^fast: (.*)", text, re.MULTILINE)
    return line.group(1) if line else ""


class Rms(nn.Module):
    """As Llama has it, or T5, or Gemma."""

    def __init__(self, how: str, dtype: torch.dtype) -> None:
        super().__init__()
        self.how = how
        self.weight = nn.Parameter(torch.randn(256, device="cuda", dtype=dtype))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = x.exp()
        wide = x.to(torch.float32)
        factor = torch.rsqrt(wide.pow(2).mean(-1, keepdim=True) + 1e-6)
        if self.how == "llama":
            return self.weight * (wide * factor).to(x.dtype)
        if self.how == "t5":
            return self.weight * (x * factor).to(self.weight.dtype)
        return ((wide * factor) * (1.0 + self.weight.float())).type_as(x)


@pytest.mark.parametrize("how", ["llama", "t5", "gemma"])
@pytest.mark.parametrize("dtype", TOLERANCE)
def test_rms_norms_are_one_kernel(how: str, dtype: torch.dtype) -> None:
    x = torch.randn(2, 64, 256, device="cuda", dtype=dtype)
    assert "norms" in found(Rms(how, dtype), x)


class Grouped(nn.Module):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        q, k, v = x.split([8, 2, 2], 1)
        return F.scaled_dot_product_attention(q, k, v, is_causal=True, enable_gqa=True)


@pytest.mark.parametrize("dtype", TOLERANCE)
def test_groups_get_copies_of_their_keys_in_f32(dtype: torch.dtype) -> None:
    x = torch.randn(2, 12, 64, 32, device="cuda", dtype=dtype)
    assert ("attention" in found(Grouped(), x)) == (dtype == torch.float32)


class Spelt(nn.Module):
    def __init__(self, dtype: torch.dtype) -> None:
        super().__init__()
        self.bias = nn.Parameter(torch.randn(1, 4, 49, 49, device="cuda", dtype=dtype))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        q, k, v = x.view(x.shape[0], 49, 3, 4, 32).permute(2, 0, 3, 1, 4).unbind(0)
        weights = ((q * 0.2) @ k.transpose(-2, -1) + self.bias).softmax(-1)
        return (weights @ v).transpose(1, 2).reshape(x.shape[0], 49, 128)


@pytest.mark.parametrize("dtype", TOLERANCE)
def test_attention_over_windows_is_one_call(dtype: torch.dtype) -> None:
    x = torch.randn(6, 49, 384, device="cuda", dtype=dtype)
    assert "attention" in found(Spelt(dtype), x)


class Steps(nn.Module):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return 0.5 * x * (1.0 + torch.tanh(0.7978845608028654 * (x + 0.044715 * x.pow(3))))


@pytest.mark.parametrize("dtype", TOLERANCE)
def test_a_gelu_is_one_kernel(dtype: torch.dtype) -> None:
    assert "functions" in found(Steps(), torch.randn(4, 333, device="cuda", dtype=dtype))

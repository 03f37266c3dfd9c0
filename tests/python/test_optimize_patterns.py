"""What models spell out in small operators runs as the one operator that PyTorch has, with the same numbers."""

from __future__ import annotations

import math
import re
from collections.abc import Callable

import pytest
import torch
from torch import nn
from torch.nn import functional as F

import cleave
from cleave.optimize import Optimize

PASSES = Optimize("fast", off=("native",))

Function = Callable[[torch.Tensor], torch.Tensor]


def hard(x: torch.Tensor) -> torch.Tensor:
    y = x + 3
    return x * F.relu6(y, inplace=True).div_(6)


SPELT: dict[str, Function] = {
    "gelu, pow": lambda x: 0.5 * x * (1.0 + torch.tanh(math.sqrt(2 / math.pi) * (x + 0.044715 * torch.pow(x, 3.0)))),
    "gelu, x * x * x": lambda x: 0.5 * x * (1 + torch.tanh(math.sqrt(2 / math.pi) * (x + 0.044715 * x * x * x))),
    "gelu, fast": lambda x: 0.5 * x * (1.0 + torch.tanh(x * 0.7978845608 * (1.0 + 0.044715 * x * x))),
    "gelu, erf": lambda x: x * 0.5 * (1.0 + torch.erf(x / math.sqrt(2.0))),
    "gelu, erfc": lambda x: 0.5 * x * torch.erfc(-x * math.sqrt(0.5)),
    "silu": lambda x: x * torch.sigmoid(x),
    "silu, in place": lambda x: x.mul_(x.sigmoid()),
    "silu, exp": lambda x: x / (1 + torch.exp(-x)),
    "hardswish": lambda x: x * F.relu6(x + 3) / 6,
    "hardswish, clamp": lambda x: x * (x + 3).clamp(0, 6) * (1 / 6),
    "hardswish, in place": hard,
    "hardsigmoid": lambda x: F.hardtanh(x + 3, 0.0, 6.0) / 6.0,
    "mish": lambda x: x * torch.tanh(F.softplus(x)),
    "mish, log": lambda x: x * torch.tanh(torch.log(1 + torch.exp(x))),
    "sigmoid": lambda x: 1 / (1 + torch.exp(-x)),
}

OTHER: dict[str, Function] = {
    "quick gelu": lambda x: x * torch.sigmoid(1.702 * x),
    "another root": lambda x: 0.5 * x * (1.0 + torch.erf(x * 0.707)),
    "clamped": lambda x: x.clamp(max=7.0) * torch.sigmoid(x),
    "of two": lambda x: x * torch.sigmoid(x.flip(0)),
    "kept above 0": lambda x: torch.sigmoid(x).clamp(min=1e-8),
    "kept below 1": lambda x: torch.sigmoid(x).clamp(max=1 - 1e-7),
    "a little more": lambda x: F.softplus(x) + 1e-9,
    "hardly more": lambda x: torch.sigmoid(x) + 1e-12,
    "hard, kept above 0": lambda x: ((x + 3) / 6).clamp(1e-9, 1),
    "hard, kept below 1": lambda x: ((x + 3) / 6).clamp(0, 1 - 1e-7),
    "rows": lambda x: x * torch.sigmoid(x[:1]),
}


class Of(nn.Module):
    def __init__(self, function: Function) -> None:
        super().__init__()
        self.function = function

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.function(x.cos() * 6)


def report(model: nn.Module, *args: torch.Tensor, dtype: torch.dtype = torch.float32) -> str:
    """What the passes did; what came out is right, also on other data and far away from 0."""
    model.eval()
    far = 1e-2 if dtype in (torch.float16, torch.bfloat16) else 1e-4
    with torch.no_grad():
        plan = cleave.capture(model, args, optimize=PASSES)
        for scale in (1, -1):
            given = [a * scale if a.is_floating_point() else a for a in args]
            torch.testing.assert_close(plan(*given), model(*given), rtol=far, atol=far)
    text = plan.optimizations()
    assert "not used" not in text, text
    return text


def found(text: str, name: str) -> int:
    line = re.search(rf"^fast:.*\b{name} (\d+)", text, re.MULTILINE)
    return int(line.group(1)) if line else 0


@pytest.mark.parametrize("name", SPELT)
def test_a_function_that_is_spelt_out_is_one_operator(name: str) -> None:
    assert found(report(Of(SPELT[name]), torch.randn(4, 33)), "functions") >= 2


@pytest.mark.parametrize("name", OTHER)
def test_another_function_stays(name: str) -> None:
    assert not found(report(Of(OTHER[name]), torch.randn(4, 33)), "functions")


@pytest.mark.parametrize("dtype", [torch.float16, torch.float64])
def test_functions_of_other_types(dtype: torch.dtype) -> None:
    text = report(Of(SPELT["gelu, pow"]), torch.randn(4, 33, dtype=dtype), dtype=dtype)
    assert found(text, "functions") == 8


def test_gradients_are_those_of_the_model() -> None:
    model = Of(SPELT["gelu, pow"])
    x, y = (torch.randn(3, 5, requires_grad=True) for _ in range(2))
    y.data.copy_(x.data)
    plan = cleave.capture(model, x, optimize=PASSES)
    plan(x).sum().backward()
    model(y).sum().backward()
    assert x.grad is not None
    assert y.grad is not None
    torch.testing.assert_close(x.grad, y.grad, rtol=0, atol=0)


class Norm(nn.Module):
    """Layer normalization in one of several spellings."""

    def __init__(self, how: str) -> None:
        super().__init__()
        self.how = how
        self.weight = nn.Parameter(torch.randn(32))
        self.bias = nn.Parameter(torch.randn(32))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = x.exp()
        mean = x.mean(-1, keepdim=True)
        if self.how == "pow":
            variance = (x - mean).pow(2).mean(-1, keepdim=True)
            return self.weight * ((x - mean) / torch.sqrt(variance + 1e-6)) + self.bias
        if self.how == "var":
            return (x - mean) * torch.rsqrt(x.var(-1, keepdim=True, unbiased=False) + 1e-6) * self.weight + self.bias
        if self.how == "correction":
            return (x - mean) / (torch.var(x, dim=-1, correction=0, keepdim=True) + 1e-6).sqrt()
        return self.weight * (x - mean) / (x.std(-1, keepdim=True) + 1e-6) + self.bias


@pytest.mark.parametrize("how", ["pow", "var", "correction"])
def test_a_layer_norm_that_is_spelt_out_is_one_operator(how: str) -> None:
    assert found(report(Norm(how), torch.randn(3, 7, 32)), "norms") >= 6


def test_a_normalization_by_another_deviation_stays() -> None:
    assert not found(report(Norm("std"), torch.randn(3, 7, 32)), "norms")


class Attention(nn.Module):
    """Attention over enough tokens, in one of several spellings."""

    def __init__(self, how: str) -> None:
        super().__init__()
        self.how = how
        self.bias = nn.Parameter(torch.randn(1, 2, 192, 192))

    def forward(self, x: torch.Tensor, keep: torch.Tensor) -> torch.Tensor:
        q, k, v = x.view(x.shape[0], 192, 3, 2, 8).permute(2, 0, 3, 1, 4).unbind(0)
        if self.how == "scaled queries":
            scores = (q * 0.3) @ k.transpose(-2, -1)
        elif self.how == "keys are turned":
            scores = torch.matmul(q, k.permute(0, 1, 3, 2)) / math.sqrt(8)
        else:
            scores = torch.matmul(q, k.transpose(2, 3)) * 0.35
        if self.how == "bias":
            scores += self.bias
        if self.how == "mask":
            scores = scores + torch.where(keep[:, None, None, :], 0.0, torch.finfo(x.dtype).min)
        if self.how == "infinite mask":
            scores = scores + torch.where(keep[:, None, None, :], 0.0, float("-inf"))
        weights = F.dropout(torch.softmax(scores, -1, dtype=torch.float32).to(q.dtype), 0.5, self.training)
        if self.how == "weights are read":
            v = v + weights.sum(-1, keepdim=True)
        return (weights @ v).transpose(1, 2).reshape(x.shape[0], 192, 16)


@pytest.mark.parametrize("how", ["plain", "scaled queries", "keys are turned", "bias", "mask"])
def test_attention_that_is_spelt_out_is_one_operator(how: str) -> None:
    text = report(Attention(how), torch.randn(2, 192, 48), torch.rand(2, 192) > 0.3)
    assert found(text, "attention") >= 4, text


@pytest.mark.parametrize("how", ["infinite mask", "weights are read"])
def test_attention_that_would_be_another_stays(how: str) -> None:
    text = report(Attention(how), torch.randn(2, 192, 48), torch.rand(2, 192) > 0.3)
    assert not found(text, "attention"), text


@pytest.mark.parametrize("how", ["scaled queries", "bias", "mask"])
def test_attention_of_any_batch(how: str) -> None:
    model = Attention(how).eval()
    x, keep = torch.randn(4, 192, 48), torch.rand(4, 192) > 0.3
    with torch.no_grad():
        plan = cleave.capture(model, (x, keep), optimize=PASSES, dynamic_batch=(2, 16))
        for rows in (2, 4, 7):
            x, keep = torch.randn(rows, 192, 48), torch.rand(rows, 192) > 0.3
            torch.testing.assert_close(plan(x, keep), model(x, keep), rtol=1e-4, atol=1e-4)
    assert found(plan.optimizations(), "attention") >= 4


def test_rows_that_see_nothing_are_still_no_numbers() -> None:
    model = Attention("infinite mask").eval()
    x, keep = torch.randn(2, 192, 48), torch.ones(2, 192, dtype=torch.bool)
    with torch.no_grad():
        plan = cleave.capture(model, (x, keep), optimize=PASSES)
        assert plan(x, keep).isfinite().all()
        assert plan(x, ~keep).isnan().all()


class Rotary(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.factor: torch.Tensor
        self.register_buffer("factor", (torch.arange(8) + 1.0) ** -0.5)

    @staticmethod
    def turned(x: torch.Tensor) -> torch.Tensor:
        half = x.shape[-1] // 2
        return torch.cat((-x[..., half:], x[..., :half]), dim=-1)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        angles = torch.arange(x.shape[2])[:, None] * torch.cat((self.factor, self.factor))
        cos, sin = angles.cos(), angles.sin()
        y = (x * cos + self.turned(x) * sin).exp()
        return y * cos + sin * self.turned(y)


def test_rotations_share_a_signed_sine() -> None:
    text = report(Rotary(), torch.randn(2, 3, 5, 16))
    assert found(text, "rotary") == 8, text


def transformer(name: str, attention: str = "sdpa", **options: int) -> nn.Module:
    transformers = pytest.importorskip("transformers")
    torch.manual_seed(0)
    config = getattr(transformers, name.removesuffix("Encoder") + "Config")(**options)
    config._attn_implementation = attention
    return getattr(transformers, name + "Model")(config)


class Hidden(nn.Module):
    def __init__(self, model: nn.Module) -> None:
        super().__init__()
        self.model = model

    def forward(self, ids: torch.Tensor) -> torch.Tensor:
        return self.model(ids)[0]


@pytest.mark.integration
def test_gpt2_has_its_gelu_in_its_linears() -> None:
    model = transformer("GPT2", n_layer=2, n_embd=256, n_head=4, vocab_size=99)
    text = report(Hidden(model), torch.randint(0, 99, (2, 64)))
    assert found(text, "functions") == 16, text
    assert found(text, "views") == 2, text


@pytest.mark.integration
def test_llama_turns_with_one_sine() -> None:
    model = transformer(
        "Llama",
        hidden_size=64,
        intermediate_size=96,
        num_hidden_layers=2,
        num_attention_heads=4,
        num_key_value_heads=2,
        vocab_size=99,
    )
    text = report(Hidden(model), torch.randint(0, 99, (2, 16)))
    assert found(text, "rotary") == 16, text


SMALL = {"hidden_size": 64, "num_hidden_layers": 2, "num_attention_heads": 4, "intermediate_size": 96}
SPELT_MODELS: dict[str, dict[str, int]] = {
    "Bert": SMALL | {"vocab_size": 99},
    "GPT2": {"n_layer": 2, "n_embd": 64, "n_head": 4, "vocab_size": 99},
    "T5Encoder": {"d_model": 64, "d_kv": 16, "num_layers": 2, "num_heads": 4, "d_ff": 96, "vocab_size": 99},
    "Llama": SMALL | {"num_key_value_heads": 2, "vocab_size": 99},
    "ViT": SMALL,
}


@pytest.mark.integration
@pytest.mark.parametrize("name", SPELT_MODELS)
def test_models_that_spell_out_their_attention(name: str) -> None:
    model = transformer(name, "eager", **SPELT_MODELS[name])
    given = torch.rand(2, 3, 224, 224) if name == "ViT" else torch.randint(0, 99, (2, 192))
    text = report(Hidden(model), given)
    assert found(text, "attention") >= 8, text

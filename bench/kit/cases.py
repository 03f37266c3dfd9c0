"""Cases: the twelve models of examples/real_models.py and a few of our own, with inputs of a batch size.

Sizes are those of real use (images of 224 pixels, 16 tokens or as many as are asked for); small=True gives those of the
integration tests.
"""

from __future__ import annotations

import importlib
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

sys.path.append(str(Path(__file__).resolve().parent.parent.parent / "examples"))

import real_models
import small_models

PIXELS = {"ultralytics-yolov8n": 320, "rfdetr-nano": 384}
PIXELS_ELSE = 224


class Case(NamedTuple):
    """A model in eval mode on the CPU, and the inputs of one call."""

    model: nn.Module
    args: tuple[Any, ...]
    kwargs: dict[str, Any]


def llama_like() -> real_models.Entry:
    """As many layers as a small language model has; that of the integration tests has four narrow ones."""
    tf = importlib.import_module("transformers")
    config = tf.LlamaConfig(
        vocab_size=32000,
        hidden_size=1024,
        intermediate_size=2816,
        num_hidden_layers=16,
        num_attention_heads=16,
        num_key_value_heads=4,
        use_cache=False,
    )
    return tf.LlamaForCausalLM(config), lambda: real_models.Args(torch.randint(0, 32000, (2, 8)))


def vit_of_real_size() -> real_models.Entry:
    """The one model that is built for one size of images."""
    models = importlib.import_module("torchvision").models
    return models.vit_b_16(weights=None), lambda: real_models.Args(torch.rand(2, 3, PIXELS_ELSE, PIXELS_ELSE))


OWN: dict[str, Callable[[], real_models.Entry]] = {"mlp": lambda: small_models.build("mlp"), "llama-like": llama_like}


def _entry(name: str, small: bool) -> real_models.Entry:
    if name in OWN:
        torch.manual_seed(0)
        model, make = OWN[name]()
        return model.eval(), make
    if name == "torchvision-vit_b_16" and not small:
        torch.manual_seed(0)
        model, make = vit_of_real_size()
        nn.init.normal_(model.heads.head.weight, std=0.02)  # a head of zeros would hide every difference
        return model.eval(), make
    return real_models.build(name)


def _drawn(example: Tensor, batch: int, pixels: int | None, tokens: int | None, words: int) -> Tensor:
    """A tensor like the example with other sizes."""
    rest = list(example.shape[1:])
    if example.dim() == 4 and pixels is not None:
        rest[1:] = [pixels, pixels]
    if example.is_floating_point():
        return torch.rand(batch, *rest)
    return torch.randint(0, words, (batch, tokens if tokens is not None else rest[0]))


def build(name: str, batch: int, *, small: bool = False, tokens: int = 16) -> Case:
    """ImportError where the library of the model is not installed."""
    model, make = _entry(name, small)
    made = make()
    config = getattr(model, "config", None)
    words = int(getattr(config, "vocab_size", 2))
    pixels = None if small else PIXELS.get(name, PIXELS_ELSE)

    def drawn(example: Tensor) -> Tensor:
        return _drawn(example, batch, pixels, None if small else tokens, words)

    return Case(model, tuple(drawn(t) for t in made.args), {key: drawn(t) for key, t in made.kwargs.items()})


def sizes(case: Case) -> str:
    """The inputs in a few words: "4x3x224x224"."""
    tensors = [*case.args, *case.kwargs.values()]
    return ", ".join("x".join(map(str, t.shape)) for t in tensors)

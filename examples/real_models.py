"""The zoo: real models with random weights and small inputs. No downloads.

`build(name)` gives the model in eval mode and a function that draws the inputs of one call; ImportError where the
library of a model is not installed.
"""

from __future__ import annotations

import importlib
from collections.abc import Callable
from typing import Any

import torch
from torch import nn


class Args:
    """Positional and keyword inputs of one call: what `make_inputs` may return when a tuple is not enough."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        self.args = args
        self.kwargs = kwargs


MakeInputs = Callable[[], Args]
Entry = tuple[nn.Module, MakeInputs]


def _images(size: int, batch: int = 2) -> MakeInputs:
    return lambda: Args(torch.rand(batch, 3, size, size))


def _ids(vocabulary: int, length: int, batch: int = 2) -> MakeInputs:
    return lambda: Args(torch.randint(0, vocabulary, (batch, length)))


def _torchvision() -> Any:
    return importlib.import_module("torchvision")


def _timm(name: str, size: int, **options: Any) -> Entry:
    timm = importlib.import_module("timm")
    return timm.create_model(name, pretrained=False, **options), _images(size)


def _transformers() -> Any:
    return importlib.import_module("transformers")


def resnet50() -> Entry:
    return _torchvision().models.resnet50(weights=None), _images(64)


def mobilenet_v3_large() -> Entry:
    return _torchvision().models.mobilenet_v3_large(weights=None), _images(64)


def deeplabv3_resnet50() -> Entry:
    models = _torchvision().models.segmentation
    return models.deeplabv3_resnet50(weights=None, weights_backbone=None), _images(64)


def vit_b_16() -> Entry:
    return _torchvision().models.vit_b_16(weights=None, image_size=64), _images(64)


def timm_resnet50() -> Entry:
    return _timm("resnet50", 64)


def timm_swin_tiny() -> Entry:
    return _timm("swin_tiny_patch4_window7_224", 224)


def yolov8n() -> Entry:
    ultralytics = importlib.import_module("ultralytics")
    return ultralytics.YOLO("yolov8n.yaml").model, _images(64)


def rfdetr_nano() -> Entry:
    rfdetr = importlib.import_module("rfdetr")
    model = rfdetr.RFDETRNano(pretrain_weights=None, device="cpu").model.model
    return model, _images(192)


def gpt2() -> Entry:
    tf = _transformers()
    return tf.GPT2LMHeadModel(tf.GPT2Config(use_cache=False)), _ids(50257, 8)


def bert() -> Entry:
    tf = _transformers()
    return tf.BertModel(tf.BertConfig(use_cache=False)), _ids(30522, 8)


def t5() -> Entry:
    tf = _transformers()
    config = tf.T5Config(use_cache=False, num_layers=6, d_model=512, decoder_start_token_id=0)
    make = lambda: Args(  # noqa: E731
        input_ids=torch.randint(0, 32128, (2, 8)), decoder_input_ids=torch.randint(0, 32128, (2, 6))
    )
    return tf.T5ForConditionalGeneration(config), make


def llama() -> Entry:
    tf = _transformers()
    config = tf.LlamaConfig(
        vocab_size=1000,
        hidden_size=64,
        intermediate_size=128,
        num_hidden_layers=4,
        num_attention_heads=4,
        num_key_value_heads=2,
        use_cache=False,
    )
    return tf.LlamaForCausalLM(config), _ids(1000, 8)


BUILDERS: dict[str, Callable[[], Entry]] = {
    "torchvision-resnet50": resnet50,
    "torchvision-mobilenet_v3_large": mobilenet_v3_large,
    "torchvision-deeplabv3_resnet50": deeplabv3_resnet50,
    "torchvision-vit_b_16": vit_b_16,
    "timm-resnet50": timm_resnet50,
    "timm-swin_tiny_patch4_window7_224": timm_swin_tiny,
    "ultralytics-yolov8n": yolov8n,
    "rfdetr-nano": rfdetr_nano,
    "transformers-gpt2": gpt2,
    "transformers-bert": bert,
    "transformers-t5": t5,
    "transformers-llama": llama,
}


def build(name: str) -> Entry:
    """A fresh model in eval mode, no forward run yet, and what draws its inputs."""
    torch.manual_seed(0)
    model, make_inputs = BUILDERS[name]()
    for p in model.parameters():
        if p.dim() > 1 and not p.any():
            nn.init.normal_(p, std=0.02)  # a head of zeros would hide every difference
    return model.eval(), make_inputs

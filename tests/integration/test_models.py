"""Twelve real models: captured, replayed whole, and cut in three places; every bit as in eager."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from helpers import draw, must_replay, same_tree, tensors
from models import BUILDERS, build
from torch import nn

import cleave

pytestmark = pytest.mark.integration


def _eager(model: nn.Module, make_inputs: Any, seed: int) -> Any:
    inputs = draw(make_inputs, seed, False)
    with torch.no_grad():
        return model(*inputs.args, **inputs.kwargs)


def _depends_on_data(first: Any, second: Any) -> bool:
    """Random weights can make a model deaf; then equality would mean nothing."""
    pairs = zip(tensors(first, ""), tensors(second, ""), strict=True)
    return any(a.is_floating_point() and not torch.equal(a, b) for (_, a), (_, b) in pairs)


@pytest.mark.parametrize("name", BUILDERS)
def test_a_real_model_is_replayed_and_cut_bit_for_bit(name: str) -> None:
    model, make_inputs = build(name)
    # Eval mode keeps no state, so eager may work on the very same model: no second copy of the weights.
    # The plan is captured cold; the cuts below are made after forwards have filled the model's caches.
    must_replay(model, make_inputs, grad=False, twin=model, input_grad=False, all_state=False)
    want = {seed: _eager(model, make_inputs, seed) for seed in (1, 2)}
    assert _depends_on_data(want[1], want[2])
    example = draw(make_inputs, 0, False)
    positions = []
    for percent in (25, 50, 75):
        rt = cleave.prepare_split(
            model,
            example_inputs=example.args,
            example_kwargs=example.kwargs or None,
            split=cleave.SplitSpec(boundary=f"{percent}%", dynamic_batch=None, trace_batch_mode="batch_gt1"),
        )
        positions.append(rt.candidate.position)
        for seed, expected in want.items():
            inputs = draw(make_inputs, seed, False)
            boundary = rt.run_prefix(*inputs.args, **inputs.kwargs)
            same_tree(expected, rt.run_suffix(boundary), f"{name} cut at {percent} %")
    assert positions == sorted(set(positions)), "three percentages should be three cuts"


@pytest.mark.parametrize("name", ["torchvision-mobilenet_v3_large", "ultralytics-yolov8n", "transformers-llama"])
def test_the_gradients_of_a_real_model_are_those_of_eager(name: str) -> None:
    model, make_inputs = build(name)
    must_replay(model, make_inputs, seeds=(1,), all_state=False)


@pytest.mark.parametrize("name", ["torchvision-mobilenet_v3_large", "transformers-llama"])
def test_a_real_model_in_training_mode(name: str) -> None:
    model, make_inputs = build(name)
    must_replay(model, make_inputs, grad=True, train=True, seeds=(1,), all_state=False)


@pytest.mark.parametrize(
    ("name", "boundary"),
    [
        ("torchvision-resnet50", "after:layer3"),
        ("torchvision-mobilenet_v3_large", "after:features.10"),
        ("torchvision-deeplabv3_resnet50", "after:backbone.layer3"),
        ("timm-swin_tiny_patch4_window7_224", "after:layers.1"),
        ("ultralytics-yolov8n", "after:model.2"),
        ("transformers-gpt2", "after:transformer.h.5"),
    ],
)
def test_a_real_model_is_cut_after_a_module(name: str, boundary: str) -> None:
    model, make_inputs = build(name)
    example = draw(make_inputs, 0, False)
    rt = cleave.prepare_split(
        model,
        example_inputs=example.args,
        split=cleave.SplitSpec(boundary=boundary, dynamic_batch=None, trace_batch_mode="batch_gt1"),
    )
    assert rt.candidate.module_path.startswith(boundary.removeprefix("after:"))
    inputs = draw(make_inputs, 1, False)
    same_tree(_eager(model, make_inputs, 1), rt.run_suffix(rt.run_prefix(*inputs.args)), f"{name} {boundary}")

"""Real models, prepared once: every bit as in eager at other batches, sequence lengths and image sizes."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from helpers import draw, same_tree
from models import build

import cleave

pytestmark = pytest.mark.integration

IDS = {"input_ids": {1: ("S", 1, 128)}}
IMAGE = {"x": {2: ("H", 32, 256), 3: ("W", 32, 256)}}


def _prepare(name: str, dims: Any, **options: Any) -> tuple[Any, cleave.SplitRuntime]:
    model, make_inputs = build(name)
    example = draw(make_inputs, 0, False)
    spec = cleave.SplitSpec(boundary="50%", dynamic_dims=dims, **options)
    rt = cleave.prepare_split(model, example_inputs=example.args, example_kwargs=example.kwargs or None, split=spec)
    return model, rt


def _same(model: Any, rt: cleave.SplitRuntime, *args: Any, **kwargs: Any) -> None:
    boundary = rt.run_prefix(*args, **kwargs)
    with torch.no_grad():
        want = model(*args, **kwargs)
    same_tree(want, rt.run_suffix(boundary), f"at {boundary.sizes}")


@pytest.mark.parametrize("name", ["transformers-gpt2", "transformers-bert", "transformers-llama"])
def test_a_language_model_runs_at_other_batches_and_lengths(name: str) -> None:
    model, rt = _prepare(name, IDS, dynamic_batch=(1, 8))
    for rows, length in ((2, 8), (3, 12), (1, 8), (2, 33), (4, 2), (1, 1)):
        _same(model, rt, torch.randint(0, 1000, (rows, length)))
    assert "(3, 12)" in rt.variants[0], "a plain length is served by the plan with formulas"
    assert "(2, 33)" in rt.variants[0]
    assert "i64[B,S]" in rt.trace_plan.text


def test_t5_runs_with_two_other_lengths() -> None:
    dims = {"input_ids": {1: ("S", 1, 64)}, "decoder_input_ids": {1: ("T", 1, 64)}}
    model, rt = _prepare("transformers-t5", dims, dynamic_batch=None)
    for source, target in ((8, 6), (12, 5), (7, 20), (33, 9), (5, 1)):
        ids, decoder = torch.randint(0, 1000, (2, source)), torch.randint(0, 1000, (2, target))
        _same(model, rt, input_ids=ids, decoder_input_ids=decoder)
    assert "(33, 9)" in rt.variants[0]


@pytest.mark.parametrize(
    ("name", "batch"),
    [
        ("torchvision-resnet50", (1, 8)),
        ("torchvision-mobilenet_v3_large", (1, 8)),
        ("torchvision-deeplabv3_resnet50", None),
    ],
)
def test_an_image_model_runs_at_other_heights_and_widths(name: str, batch: Any) -> None:
    model, rt = _prepare(name, IMAGE, dynamic_batch=batch)
    for height, width in ((64, 96), (65, 50), (100, 77), (32, 33), (128, 64)):
        _same(model, rt, torch.rand(2, 3, height, width))
    if batch:
        _same(model, rt, torch.rand(1, 3, 47, 64))
        _same(model, rt, torch.rand(3, 3, 64, 81))
    assert len(rt.variants) == 1, rt.variants
    assert "[B,3,H,W]" in rt.trace_plan.text or "[2,3,H,W]" in rt.trace_plan.text


def test_a_detector_that_takes_some_sizes_alone_runs_at_them() -> None:
    model, rt = _prepare("ultralytics-yolov8n", IMAGE, dynamic_batch=(1, 8))
    for rows, height, width in ((2, 64, 96), (1, 128, 64), (3, 160, 32)):
        _same(model, rt, torch.rand(rows, 3, height, width))
    with pytest.raises(RuntimeError, match="Sizes of tensors must match"):
        rt.run_prefix(torch.rand(2, 3, 65, 50))

"""Real models, prepared once for a range of batch sizes: every bit as in eager at each of them."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from helpers import Args, draw, same_tree
from models import build

import cleave

pytestmark = pytest.mark.integration

NAMES = ["torchvision-mobilenet_v3_large", "transformers-gpt2", "transformers-llama", "transformers-bert"]


def _rows(example: Args, batch: int) -> tuple[Any, ...]:
    """Inputs like the example's with another number of rows."""
    out = []
    for t in example.args:
        shape = (batch, *t.shape[1:])
        out.append(torch.rand(shape) if t.is_floating_point() else torch.randint(0, int(t.max()) + 1, shape))
    return tuple(out)


@pytest.mark.parametrize("name", NAMES)
def test_a_real_model_cut_once_runs_at_other_batch_sizes(name: str) -> None:
    model, make_inputs = build(name)
    example = draw(make_inputs, 0, False)
    rt = cleave.prepare_split(
        model,
        example_inputs=example.args,
        split=cleave.SplitSpec(boundary="50%", dynamic_batch=(1, 16), trace_batch_mode="batch_gt1"),
    )
    assert rt.batch_range == (1, 16)
    for batch in (1, 2, 3, 5):
        torch.manual_seed(batch)
        inputs = _rows(example, batch)
        boundary = rt.run_prefix(*inputs)
        assert boundary.batch_size == batch
        got = rt.run_suffix(boundary)
        with torch.no_grad():
            want = model(*inputs)
        same_tree(want, got, f"{name} at batch {batch}")
        same_tree(want, rt.run_suffix(boundary), f"{name} at batch {batch}, the suffix once more")

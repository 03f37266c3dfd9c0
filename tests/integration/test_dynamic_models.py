"""Real models, prepared once for a range of batch sizes: every bit as in eager at each of them."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from helpers import Args, draw, same_tree
from models import BUILDERS, build

import cleave

pytestmark = pytest.mark.integration


def _rows(example: Args, batch: int) -> Args:
    """Inputs like the example's with another number of rows."""

    def other(t: Any) -> Any:
        shape = (batch, *t.shape[1:])
        return torch.rand(shape) if t.is_floating_point() else torch.randint(0, int(t.max()) + 1, shape)

    return Args(*(other(t) for t in example.args), **{key: other(t) for key, t in example.kwargs.items()})


@pytest.mark.parametrize("name", list(BUILDERS))
def test_a_real_model_cut_once_runs_at_other_batch_sizes(name: str) -> None:
    model, make_inputs = build(name)
    example = draw(make_inputs, 0, False)
    rt = cleave.prepare_split(
        model,
        example_inputs=example.args,
        example_kwargs=example.kwargs,
        split=cleave.SplitSpec(boundary="50%", dynamic_batch=(1, 16), trace_batch_mode="batch_gt1"),
    )
    assert rt.batch_range == (1, 16)
    for batch in (1, 2, 3, 5, 7):
        torch.manual_seed(batch)
        inputs = _rows(example, batch)
        boundary = rt.run_prefix(*inputs.args, **inputs.kwargs)
        assert boundary.batch_size == batch
        got = rt.run_suffix(boundary)
        with torch.no_grad():
            want = model(*inputs.args, **inputs.kwargs)
        same_tree(want, got, f"{name} at batch {batch}")
        same_tree(want, rt.run_suffix(boundary), f"{name} at batch {batch}, the suffix once more")

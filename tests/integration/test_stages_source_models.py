"""Generated pipelines of real models: the stages of the file in sequence are the model bit for bit."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from helpers import draw, tensors
from models import BUILDERS, build
from test_source import same
from test_stages_source import load

import cleave
from cleave import _native, _tree

pytestmark = pytest.mark.integration


def cuts(plan: _native.Plan, stages: int) -> list[int]:
    """Ends of stages near even parts of the nodes, where a model may be cut."""
    n = plan.node_count()
    safe = [c[0] + 1 for c in plan.frontiers() if c[8] is None]
    near = {min(safe, key=lambda at, i=i: abs(at - n * i // stages)) for i in range(1, stages)}
    return [*sorted(near), n]


def state_of(captured: Any) -> dict[str, torch.Tensor]:
    state = {}
    for place, name, data in captured.plan.places(0, captured.plan.node_count())[0]:
        if name is not None:
            holder, key = captured.state[name]
            data = holder[key]
        state[place] = data
    return state


@pytest.mark.parametrize("name", BUILDERS)
def test_the_stages_of_a_real_model_are_the_model(name: str, tmp_path: Path) -> None:
    model, make_inputs = build(name)
    example, inputs = draw(make_inputs, 0, False), draw(make_inputs, 1, False)
    with torch.no_grad():
        captured = cleave.capture(model, example.args, example.kwargs or None, both_grad_modes=False)._main
        text = captured.plan.stages_source(cuts(captured.plan, 4), delete=True)
        file = load(tmp_path, text)
        pipeline = file.Pipeline()
        file.load_model_state(pipeline.stages, state_of(captured) | model.state_dict())
        leaves = _tree.flatten((inputs.args, inputs.kwargs))[1]
        want = [t for _, t in tensors(model(*inputs.args, **inputs.kwargs), "")]
        values = tuple(leaves)
        for stage in pipeline.stages:
            values = stage(*values)
            values = values if isinstance(values, tuple) else (values,)
        distinct = list({id(t): t for t in want}.values())
        same(distinct, values, text)

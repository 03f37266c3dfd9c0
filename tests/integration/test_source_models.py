"""The generated source of real models: prefix and suffix, run by themselves, are the model bit for bit."""

from __future__ import annotations

import pytest
import torch
from helpers import draw, tensors
from models import BUILDERS, build
from test_source import load_source, same

import cleave
from cleave import _tree
from cleave._compiled import CompiledView

pytestmark = pytest.mark.integration


@pytest.mark.parametrize("name", BUILDERS)
def test_the_sources_of_a_real_model_are_the_model(name: str) -> None:
    model, make_inputs = build(name)
    example, inputs = draw(make_inputs, 0, False), draw(make_inputs, 1, False)
    with torch.no_grad():
        plan = cleave.capture(model, example.args, example.kwargs or None, both_grad_modes=False)
        captured = plan._main
        cut = captured.plan.frontiers()[captured.plan.choose("50%", {})][0] + 1
        prefix, _ = load_source(captured, 0, cut)
        suffix, text = load_source(captured, cut, captured.plan.node_count(), delete=True)
        leaves = _tree.flatten((inputs.args, inputs.kwargs))[1]
        want = [t for _, t in tensors(model(*inputs.args, **inputs.kwargs), "")]
        same(want, suffix(*prefix(*leaves))[: len(want)], text)


@pytest.mark.parametrize("name", ["torchvision-resnet50", "transformers-gpt2", "transformers-bert"])
def test_the_compiled_halves_of_a_real_model_are_the_model(name: str) -> None:
    torch._dynamo.reset()
    model, make_inputs = build(name)
    example, inputs = draw(make_inputs, 0, False), draw(make_inputs, 1, False)
    with torch.no_grad():
        captured = cleave.capture(model, example.args, example.kwargs or None, both_grad_modes=False)._main
        cut = captured.plan.frontiers()[captured.plan.choose("50%", {})][0] + 1
        halves = [
            CompiledView(captured, first, end, inference=True, options={"backend": "eager"})
            for first, end in ((0, cut), (cut, captured.plan.node_count()))
        ]
        want = [t for _, t in tensors(model(*inputs.args, **inputs.kwargs), "")]
        out = tuple(_tree.flatten((inputs.args, inputs.kwargs))[1])
        for half in halves:
            out = half.run(out)
            assert half.active_backend.startswith("eager"), half.fallback_reason
        same(want, out[: len(want)], name)

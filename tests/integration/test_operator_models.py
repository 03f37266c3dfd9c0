"""Real models hold no operator that a file may not hold."""

from __future__ import annotations

import pytest
from models import build
from test_operators import refused

import cleave

pytestmark = pytest.mark.integration


@pytest.mark.parametrize(
    "name",
    [
        "torchvision-mobilenet_v3_large",
        "transformers-bert",
        "transformers-gpt2",
        "transformers-llama",
    ],
)
def test_the_operators_of_a_real_model_are_allowed(name: str) -> None:
    model, make_inputs = build(name)
    inputs = make_inputs()
    plan = cleave.capture(model, inputs.args, inputs.kwargs)
    assert refused(plan) == {}

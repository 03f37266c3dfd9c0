"""Real models: preparing and using a split warns of nothing that the model itself would not."""

from __future__ import annotations

import warnings
from collections.abc import Callable

import pytest
import torch
from models import BUILDERS, build

import cleave

pytestmark = pytest.mark.integration

QUICK = ("torchvision-mobilenet_v3_large", "transformers-gpt2", "transformers-llama")


def messages(work: Callable[[], object]) -> set[tuple[type, str]]:
    """What is warned of, by a model or by us."""
    with warnings.catch_warnings(record=True) as found:
        warnings.simplefilter("always")
        work()
    return {(w.category, str(w.message)) for w in found}


@pytest.mark.parametrize("name", [n if n in QUICK else pytest.param(n, marks=pytest.mark.slow) for n in BUILDERS])
def test_a_split_of_a_real_model_is_prepared_and_shown_without_a_warning(name: str) -> None:
    model, make_inputs = build(name)
    given = make_inputs()

    def eager() -> None:
        model(*given.args, **given.kwargs)
        with torch.no_grad():
            model(*given.args, **given.kwargs)

    def work() -> None:
        spec = cleave.SplitSpec(boundary="50%")
        runtime = cleave.prepare_split(model, example_inputs=given.args, example_kwargs=given.kwargs, split=spec)
        boundary = runtime.run_prefix(*given.args, **given.kwargs)
        runtime.run_suffix(boundary)
        for shown in (runtime, runtime.trace_plan, runtime.candidates, boundary):
            assert 0 < len(repr(shown)) < 6000
            assert shown._repr_html_().startswith("<div>")

    assert messages(work) - messages(eager) == set()

"""Real models trained across a cut: losses, gradients and buffers of every step are those of the whole model."""

from __future__ import annotations

import copy
from collections.abc import Iterator
from typing import Any

import pytest
import torch
from models import BUILDERS, build
from torch import Tensor

import cleave

pytestmark = pytest.mark.integration


def _trained(output: Any) -> Iterator[Tensor]:
    """The tensors of an output that a loss can depend on."""
    if isinstance(output, Tensor):
        if output.requires_grad:
            yield output.float()
    elif hasattr(output, "keys"):
        for key in output.keys():
            yield from _trained(output[key])
    elif isinstance(output, (list, tuple)):
        for item in output:
            yield from _trained(item)


def _loss(output: Any, _: Any) -> Tensor:
    """Every element of every output counts, each with another weight."""
    parts = [
        (t * torch.linspace(-1, 1, t.numel()).reshape(t.shape)).mean() + t.square().mean() for t in _trained(output)
    ]
    return torch.stack(parts).sum()


def _sgd(params: Any) -> torch.optim.Optimizer:
    return torch.optim.SGD(params, lr=0.01, momentum=0.9)


@pytest.mark.parametrize("name", list(BUILDERS))
def test_a_real_model_trains_split_as_it_trains_whole(name: str) -> None:
    model, make = build(name)
    model.train()
    whole = copy.deepcopy(model)
    example = make()
    rt = cleave.prepare_split(
        model,
        example_inputs=example.args,
        example_kwargs=example.kwargs,
        split=cleave.SplitSpec(boundary="50%", trainable=True, dynamic_batch=None),
    )
    head, tail, all_ = _sgd(rt.parameters("prefix")), _sgd(rt.parameters("suffix")), _sgd(whole.parameters())
    for step in range(3):
        inputs = make()
        torch.manual_seed(step)
        boundary = rt.run_training_prefix(*inputs.args, **inputs.kwargs)
        loss, grads = rt.train_suffix(boundary, None, loss_fn=_loss, optimizer=tail)
        rt.backward_prefix(boundary, grads, optimizer=head)
        torch.manual_seed(step)
        all_.zero_grad()
        want = _loss(whole(*inputs.args, **inputs.kwargs), None)
        want.backward()  # type: ignore[no-untyped-call]
        all_.step()
        assert torch.equal(loss, want.detach()), f"loss of step {step}"
        for (key, mine), theirs in zip(model.state_dict().items(), whole.state_dict().values(), strict=True):
            assert torch.equal(mine, theirs), f"{key} after step {step}"

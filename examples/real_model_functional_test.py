"""Real models, cut in the middle: inference at several batch sizes, a boundary through bytes, two steps of training.

python examples/real_model_functional_test.py [--models torchvision-resnet50 …] [--no-training]
"""

import argparse
import copy
import sys
import time
from collections.abc import Callable, Iterator
from typing import Any

import torch
from real_models import BUILDERS, Args, build
from torch import nn

import cleave


def tensors(output: Any) -> Iterator[torch.Tensor]:
    """The floating-point tensors of a model's output, whatever its structure."""
    if isinstance(output, torch.Tensor):
        if output.is_floating_point():
            yield output
    elif hasattr(output, "keys"):
        for key in list(output.keys()):
            yield from tensors(output[key])
    elif isinstance(output, (list, tuple)):
        for item in output:
            yield from tensors(item)


def loss(output: Any, _: Any) -> torch.Tensor:
    """A loss for any output."""
    return torch.stack([t.float().square().mean() for t in tensors(output) if t.requires_grad]).sum()


def infer(model: nn.Module, example: Args) -> str:
    """Three batch sizes after one preparation, and the boundary through bytes."""
    spec = cleave.SplitSpec(boundary="50%", dynamic_batch=(1, 64))
    runtime = cleave.prepare_split(model, example_inputs=example.args, example_kwargs=example.kwargs, split=spec)
    report = cleave.validate_dynamic_batches(
        runtime, example_inputs=example.args, example_kwargs=example.kwargs, batch_sizes=(1, 2, 3)
    )
    report.raise_if_failed()
    boundary = runtime.run_prefix(*example.args, **example.kwargs)
    wire = boundary.to_bytes()
    again = runtime.run_suffix(cleave.BoundaryPayload.from_bytes(wire))
    with torch.no_grad():
        want = model(*example.args, **example.kwargs)
    assert all(torch.equal(a, b) for a, b in zip(tensors(again), tensors(want), strict=True)), "through bytes"
    return f"equal at batches 1, 2, 3; {len(wire)} bytes on the wire"


def train(model: nn.Module, make_inputs: Callable[[], Args]) -> str:
    """Two steps with momentum, split and whole."""
    model.train()
    whole = copy.deepcopy(model)
    example = make_inputs()
    spec = cleave.SplitSpec(boundary="50%", trainable=True, dynamic_batch=None)
    runtime = cleave.prepare_split(model, example_inputs=example.args, example_kwargs=example.kwargs, split=spec)
    prefix = torch.optim.SGD(runtime.parameters("prefix"), lr=0.01, momentum=0.9)
    suffix = torch.optim.SGD(runtime.parameters("suffix"), lr=0.01, momentum=0.9)
    reference = torch.optim.SGD(whole.parameters(), lr=0.01, momentum=0.9)
    for step in range(2):
        inputs = make_inputs()
        torch.manual_seed(step)
        boundary = runtime.run_training_prefix(*inputs.args, **inputs.kwargs)
        _, grads = runtime.train_suffix(boundary, None, loss_fn=loss, optimizer=suffix)
        runtime.backward_prefix(boundary, grads, optimizer=prefix)
        torch.manual_seed(step)
        reference.zero_grad()
        loss(whole(*inputs.args, **inputs.kwargs), None).backward()
        reference.step()
    pairs = zip(model.state_dict().items(), whole.state_dict().values(), strict=True)
    different = [name for (name, a), b in pairs if not torch.equal(a, b)]
    assert not different, f"weights differ after training: {different[:3]}"
    return "weights after two steps equal those of the whole model"


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--models", nargs="+", default=list(BUILDERS), choices=list(BUILDERS), metavar="NAME")
    parser.add_argument("--no-training", action="store_true")
    options = parser.parse_args()
    failed = 0
    for name in options.models:
        started = time.perf_counter()
        try:
            model, make_inputs = build(name)
            told = [infer(model, make_inputs())]
            if not options.no_training:
                told.append(train(model, make_inputs))
        except ImportError as error:
            told = [f"left out: {error}"]
        except (AssertionError, cleave.CleaveError) as error:
            told, failed = [f"FAILED: {error}"], failed + 1
        print(f"{name:36} {'; '.join(told)} ({time.perf_counter() - started:.0f} s)", flush=True)
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())

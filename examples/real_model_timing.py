"""Times of real models, whole and cut in two: preparation, inference, training.

All ways of one table take turns within each round. direct_forward and direct_train are the model as it is; run_prefix,
run_suffix and prefix_plus_suffix are inference in halves; train_suffix, backward_prefix and split_train_roundtrip are
training in halves, with the work that goes before outside of the clock.
"""

from __future__ import annotations

import argparse
import dataclasses
import sys
import time
from collections.abc import Callable, Sequence
from typing import Any

import torch
from real_model_functional_test import loss
from real_models import Args
from timing import Report, add_options, case, parser_of, read_options, spec_of
from torch import nn

import cleave
from cleave.benchmark import BenchmarkResult, compare, table

EXAMPLES = """\
  python examples/real_model_timing.py --iterations 3 --warmup 1
  python examples/real_model_timing.py --models resnet50 mobilenet yolo --batches 1 8 --no-training
  python examples/real_model_timing.py --models bert --device cuda --json bert.json
"""


def prepared(model: nn.Module, inputs: Args, spec: cleave.SplitSpec) -> tuple[cleave.SplitRuntime, float]:
    """A split, and the seconds it took."""
    start = time.perf_counter()
    runtime = cleave.prepare_split(model, example_inputs=inputs.args, example_kwargs=inputs.kwargs, split=spec)
    return runtime, time.perf_counter() - start


def inference_ways(model: nn.Module, runtime: cleave.SplitRuntime, inputs: Args) -> dict[str, Any]:
    boundary = runtime.run_prefix(*inputs.args, **inputs.kwargs)
    return {
        "direct_forward": lambda: model(*inputs.args, **inputs.kwargs),
        "run_prefix": lambda: runtime.run_prefix(*inputs.args, **inputs.kwargs),
        "run_suffix": lambda: runtime.run_suffix(boundary),
        "prefix_plus_suffix": lambda: runtime.run_suffix(runtime.run_prefix(*inputs.args, **inputs.kwargs)),
    }


def training_ways(model: nn.Module, runtime: cleave.SplitRuntime, inputs: Args) -> dict[str, Any]:
    """Pairs: what comes before, outside of the clock, and what is measured."""

    def clear() -> None:
        model.zero_grad(set_to_none=True)

    def prefix(_: None = None) -> cleave.BoundaryPayload:
        clear()
        return runtime.run_training_prefix(*inputs.args, **inputs.kwargs)

    def suffix(boundary: cleave.BoundaryPayload) -> Any:
        return runtime.train_suffix(boundary, None, loss_fn=loss)

    def both() -> tuple[cleave.BoundaryPayload, Any]:
        boundary = prefix()
        return boundary, suffix(boundary)[1]

    def gradients() -> tuple[cleave.BoundaryPayload, Any]:
        made = both()
        clear()  # those of the suffix's parameters
        return made

    def backward(made: tuple[cleave.BoundaryPayload, Any]) -> None:
        runtime.backward_prefix(*made)

    def direct(_: None) -> None:
        loss(model(*inputs.args, **inputs.kwargs), None).backward()

    return {
        "direct_train": (clear, direct),
        "train_suffix": (prefix, suffix),
        "backward_prefix": (gradients, backward),
        "split_train_roundtrip": (clear, lambda _: backward(both())),
    }


def measure(
    name: str, batch: int, options: argparse.Namespace, training: bool
) -> tuple[list[BenchmarkResult], cleave.SplitRuntime]:
    """One model at one batch, for inference or for training."""
    model, inputs = case(name, batch, options.device, options.size)
    model.train(training)
    ways: Callable[..., dict[str, Any]] = training_ways if training else inference_ways
    with torch.set_grad_enabled(training):
        runtime, seconds = prepared(model, inputs, spec_of(options, trainable=training))
        results = compare(ways(model, runtime, inputs), options.iterations, options.warmup, options.device)
    whole, *halves = (dataclasses.replace(r, batch_size=batch) for r in results)
    split = {"split_id": runtime.split_id, "execution_mode": runtime.mode, "prepare_s": seconds}
    return [whole, *(dataclasses.replace(r, **split) for r in halves)], runtime


def main(argv: Sequence[str] | None = None) -> int:
    parser = parser_of(__doc__, EXAMPLES)
    add_options(parser, ["all"], [3], 10, 2)
    parser.add_argument("--no-training", action="store_true", help="inference alone")
    options = read_options(parser, argv)
    report = Report(options)
    report.head()
    for name, batch in report.cases():
        for training in (False,) if options.no_training else (False, True):
            kind = "training" if training else "inference"
            title = f"{name}, batch {batch}, {kind}"
            with report.trying(title):
                results, runtime = measure(name, batch, options, training)
                seconds, at = results[1].prepare_s, runtime.candidate.name
                print(f"\n{title}: prepare_split {seconds:.2f} s, cut after {at}")
                print(table(dataclasses.replace(r, execution_mode="", prepare_s=None) for r in results), flush=True)
                report.add(results, model=name, batch=batch, kind=kind)
    return report.end()


if __name__ == "__main__":
    sys.exit(main())

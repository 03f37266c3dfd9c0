"""Compares splits with the whole model in eager, and with Ariadne if that package is installed.

python bench/split.py [--models mlp mobilenet_v3_large resnet50] [--iterations 30] [--device cpu]

For each model: seconds to prepare the split at "50%" for batches 2 to 64, then rounds at batch 3 in which every way
runs once, in turn: inference (prefix and suffix) and a round of training (prefix, suffix with its backward, prefix
backward) against the same work of the whole model. Shown are medians, and the median of the ratios of single rounds.
"""

from __future__ import annotations

import argparse
import copy
import importlib
import time
from collections.abc import Callable
from typing import Any

import torch
import torch.nn.functional as F
from replay import CASES
from torch import Tensor, nn

import cleave
from cleave.benchmark import compare

MODELS = {"mlp": "mlp_b4", "cnn": "cnn_b4", "mobilenet_v3_large": "mobilenet_v3_large_b4", "resnet50": "resnet50_b4"}
PREPARED, RUN = 2, 3  # rows of the example, rows of the rounds


def ariadne() -> Any:
    """The peer's module, None where it is not installed."""
    try:
        return importlib.import_module("ariadne")
    except ImportError:
        return None


def prepared(package: Any, model: nn.Module, x: Tensor) -> tuple[Any, float]:
    """A split of the package, and the seconds it took."""
    spec = package.SplitSpec(boundary="50%", dynamic_batch=(2, 64), trainable=True, trace_batch_mode="batch_gt1")
    start = time.perf_counter()
    runtime = package.prepare_split(model, example_inputs=(x[:PREPARED],), split=spec)
    return runtime, time.perf_counter() - start


def inference(runtime: Any, x: Tensor) -> Callable[[], Any]:
    def run() -> Any:
        with torch.no_grad():
            return runtime.run_suffix(runtime.run_prefix(x))

    return run


def training(runtime: Any, x: Tensor, y: Tensor) -> Callable[[], Any]:
    def run() -> Any:
        boundary = runtime.run_training_prefix(x)
        loss, grads = runtime.train_suffix(boundary, y, loss_fn=F.cross_entropy)
        runtime.backward_prefix(boundary, boundary_grads=grads)
        return loss

    return run


def eager_training(model: nn.Module, x: Tensor, y: Tensor) -> Callable[[], Any]:
    def run() -> Any:
        loss = F.cross_entropy(model(x), y)
        loss.backward()  # type: ignore[no-untyped-call]
        return loss

    return run


def show(title: str, ways: dict[str, Callable[[], Any]], iterations: int, device: str) -> None:
    eager, *others = compare(ways, iterations, 3, device, memory=False)
    cells = [f"eager {1e3 * eager.median_latency_s:8.2f} ms"]
    for r in others:
        cells.append(f"{r.name} {1e3 * r.median_latency_s:8.2f} ms, eager / {r.name} {r.speedup:5.2f}")
    print(f"  {title:<10}", "   ".join(cells), flush=True)


def bench(name: str, iterations: int, device: str) -> None:
    print(name, flush=True)
    torch.manual_seed(0)
    model, x = CASES[MODELS[name]]()
    model, x = model.to(device).eval(), x[:RUN].to(device)
    y = torch.zeros(RUN, dtype=torch.long, device=device)
    splits: dict[str, Any] = {}
    for label, package in (("cleave", cleave), ("ariadne", ariadne())):
        if package is None:
            continue
        mine = copy.deepcopy(model)
        try:
            splits[label], seconds = prepared(package, mine, x)
        except Exception as error:  # the peer's, and part of the picture
            print(f"  prepare    {label}: {type(error).__name__}: {str(error)[:120]}")
            continue
        print(f"  prepare    {label} {seconds:.2f} s", flush=True)
    with torch.no_grad():
        want = model(x)
    for label, runtime in splits.items():
        print(f"  {label} equal to eager bit for bit: {torch.equal(inference(runtime, x)(), want)}")

    def eager() -> Any:
        with torch.no_grad():
            return model(x)

    show("inference", {"eager": eager, **{k: inference(r, x) for k, r in splits.items()}}, iterations, device)
    rounds = {"eager": eager_training(model, x, y), **{k: training(r, x, y) for k, r in splits.items()}}
    show("training", rounds, iterations, device)


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--models", nargs="+", choices=MODELS, default=["mlp", "cnn", "mobilenet_v3_large"])
    parser.add_argument("--iterations", type=int, default=30)
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--threads", type=int, default=torch.get_num_threads())
    options = parser.parse_args()
    torch.set_num_threads(options.threads)
    for name in options.models:
        bench(name, options.iterations, options.device)


if __name__ == "__main__":
    main()

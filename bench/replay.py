"""Eager, plan and split (prefix and suffix together), side by side.

All three take turns within each round, so that what else the machine does hits all of them; a round gives one ratio
to eager, and the table has the medians of times and ratios with the middle half in brackets. Nothing passes or fails.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable
from pathlib import Path

import torch
from torch import Tensor, nn

import cleave
from cleave.benchmark import compare, ratios

sys.path.insert(0, str(Path(__file__).parent.parent / "examples"))

import small_models

Case = tuple[nn.Module, Tensor]


def mlp(batch: int) -> Case:
    return small_models.mlp(), torch.randn(batch, *small_models.SHAPES["mlp"])


def cnn(batch: int) -> Case:
    return small_models.cnn(), torch.randn(batch, *small_models.SHAPES["cnn"])


def torchvision_model(name: str, batch: int) -> Case:
    import torchvision

    return getattr(torchvision.models, name)(weights=None), torch.randn(batch, 3, 96, 96)


CASES: dict[str, Callable[[], Case]] = {
    "mlp_b1": lambda: mlp(1),
    "mlp_b4": lambda: mlp(4),
    "cnn_b1": lambda: cnn(1),
    "cnn_b4": lambda: cnn(4),
    "mobilenet_v3_large_b1": lambda: torchvision_model("mobilenet_v3_large", 1),
    "mobilenet_v3_large_b4": lambda: torchvision_model("mobilenet_v3_large", 4),
    "resnet50_b1": lambda: torchvision_model("resnet50", 1),
    "resnet50_b4": lambda: torchvision_model("resnet50", 4),
}


def ways_to_run(model: nn.Module, x: Tensor) -> dict[str, Callable[[], Tensor]]:
    plan = cleave.capture(model, (x,), both_grad_modes=False)
    split = cleave.prepare_split(model, example_inputs=(x,), split=cleave.SplitSpec(boundary="50%"))
    return {
        "eager": lambda: model(x),
        "plan": lambda: plan(x),
        "split": lambda: split.run_suffix(split.run_prefix(x)),
    }


def row(name: str, iterations: int, warmup: int) -> list[str]:
    torch.manual_seed(0)
    try:
        model, x = CASES[name]()
    except ImportError as error:
        return [name, f"left out: {error}"]
    ways = ways_to_run(model.eval(), x)
    want = ways["eager"]()
    different = [way for way, call in ways.items() if not torch.equal(call(), want)]
    if different:
        return [name, f"{', '.join(different)}: not equal to eager"]
    results = compare(ways, iterations, warmup, "cpu", memory=False)
    return [
        name,
        *(r.latency.text(3, 1e3) for r in results),
        *(ratios(results[0], r).text(2) for r in results[1:]),
    ]


def print_row(cells: list[str]) -> None:
    print(f"{cells[0]:<22}", *(f"{cell:<26}" for cell in cells[1:]), flush=True)


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--iterations", type=int, default=100, help="rounds that count")
    parser.add_argument("--warmup", type=int, default=10, help="rounds before them")
    parser.add_argument("--models", nargs="+", choices=CASES, default=[*CASES], metavar="NAME", help=", ".join(CASES))
    parser.add_argument("--threads", type=int, default=torch.get_num_threads(), help="of torch")
    options = parser.parse_args()
    if options.iterations < 1:
        parser.error("--iterations must be at least 1")
    torch.set_num_threads(options.threads)
    print(f"torch {torch.__version__}, {options.threads} threads, {options.iterations} rounds; median [middle half]")
    print_row(["", "eager ms", "plan ms", "split ms", "eager / plan", "eager / split"])
    with torch.no_grad():
        for name in options.models:
            print_row(row(name, options.iterations, options.warmup))


if __name__ == "__main__":
    main()

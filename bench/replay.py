"""Eager, plan and split (prefix and suffix together), side by side.

All three take turns within each round, so that what else the machine does hits all of them; a round gives one ratio
to eager, and the table has the medians of times and ratios with the middle half in brackets. Nothing passes or fails.
"""

from __future__ import annotations

import argparse
import statistics
import sys
import time
from collections.abc import Callable
from pathlib import Path

import torch
from torch import Tensor, nn

import cleave

Case = tuple[nn.Module, Tensor]


def mlp(batch: int) -> Case:
    """40 small layers: nearly all of the time is spent between operators."""
    layers = [layer for _ in range(40) for layer in (nn.Linear(32, 32), nn.ReLU())]
    return nn.Sequential(*layers), torch.randn(batch, 32)


def cnn(batch: int) -> Case:
    def block(channels: int, out: int) -> list[nn.Module]:
        return [nn.Conv2d(channels, out, 3, padding=1, bias=False), nn.BatchNorm2d(out), nn.ReLU(), nn.MaxPool2d(2)]

    body = [*block(3, 16), *block(16, 32), *block(32, 64)]
    return nn.Sequential(*body, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(64, 10)), torch.randn(batch, 3, 32, 32)


def torchvision_model(name: str, batch: int) -> Case:
    sys.path.insert(0, str(Path(__file__).parent.parent / "examples"))
    from real_models import prepare_torchvision

    prepare_torchvision()
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


def measure(ways: dict[str, Callable[[], Tensor]], iterations: int, warmup: int) -> dict[str, list[float]]:
    """Milliseconds per call, round by round; the way that goes first changes from round to round."""
    times: dict[str, list[float]] = {name: [] for name in ways}
    order = list(ways)
    for i in range(warmup + iterations):
        order.append(order.pop(0))
        for name in order:
            start = time.perf_counter_ns()
            ways[name]()
            end = time.perf_counter_ns()
            if i >= warmup:
                times[name].append((end - start) / 1e6)
    return times


def spread(numbers: list[float], digits: int) -> str:
    low, middle, high = statistics.quantiles(numbers, n=4)
    return f"{middle:.{digits}f} [{low:.{digits}f} {high:.{digits}f}]"


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
    times = measure(ways, iterations, warmup)
    ratios = {way: [e / t for e, t in zip(times["eager"], times[way], strict=True)] for way in ("plan", "split")}
    return [
        name,
        *(spread(times[way], 3) for way in ("eager", "plan", "split")),
        *(spread(ratios[way], 2) for way in ("plan", "split")),
    ]


def print_row(cells: list[str]) -> None:
    print(f"{cells[0]:<22}", *(f"{cell:<26}" for cell in cells[1:]), flush=True)


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--iterations", type=int, default=100, help="rounds that count (at least 2)")
    parser.add_argument("--warmup", type=int, default=10, help="rounds before them")
    parser.add_argument("--models", nargs="+", choices=CASES, default=[*CASES], metavar="NAME", help=", ".join(CASES))
    parser.add_argument("--threads", type=int, default=torch.get_num_threads(), help="of torch")
    options = parser.parse_args()
    if options.iterations < 2:
        parser.error("--iterations must be at least 2")
    torch.set_num_threads(options.threads)
    print(f"torch {torch.__version__}, {options.threads} threads, {options.iterations} rounds; median [middle half]")
    print_row(["", "eager ms", "plan ms", "split ms", "eager / plan", "eager / split"])
    with torch.no_grad():
        for name in options.models:
            print_row(row(name, options.iterations, options.warmup))


if __name__ == "__main__":
    main()

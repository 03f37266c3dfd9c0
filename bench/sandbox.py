"""What a sandbox costs: the same file, plain and in a sandbox, in turns; medians and their ratio.

    python bench/sandbox.py [--rounds 40]

Both take turns, so that what else the machine does hits both. The difference is the way there and back: inputs and
outputs are copied, and two processes wait for each other. Loading is slower too, because the process loads libtorch.
"""

from __future__ import annotations

import argparse
import statistics
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from torch import nn

import cleave


def mlp(width: int) -> nn.Module:
    return nn.Sequential(nn.Linear(width, width), nn.ReLU(), nn.Linear(width, width))


def images(depth: int) -> nn.Module:
    layers: list[nn.Module] = [nn.Conv2d(3, 32, 3, 2, 1), nn.ReLU()]
    for _ in range(depth):
        layers += [nn.Conv2d(32, 32, 3, 1, 1), nn.BatchNorm2d(32), nn.ReLU()]
    return nn.Sequential(*layers, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(32, 1000))


def encoder() -> nn.Module:
    layer = nn.TransformerEncoderLayer(256, 4, 1024, batch_first=True)
    return nn.TransformerEncoder(layer, 4, enable_nested_tensor=False)


MODELS: dict[str, tuple[Callable[[], nn.Module], tuple[int, ...]]] = {
    "mlp 16": (lambda: mlp(16), (1, 16)),
    "mlp 1024, batch 64": (lambda: mlp(1024), (64, 1024)),
    "images 224, 12 layers": (lambda: images(12), (1, 3, 224, 224)),
    "images 224, 12 layers, batch 8": (lambda: images(12), (8, 3, 224, 224)),
    "encoder, 4 layers of 256": (encoder, (1, 128, 256)),
    "copy of 64 MB": (nn.Identity, (16, 1024, 1024)),
}


def seconds(f: Callable[[], Any]) -> float:
    begin = time.perf_counter()
    f()
    return time.perf_counter() - begin


def measure(path: Path, x: torch.Tensor, rounds: int) -> tuple[float, float, float, float]:
    """Medians in seconds: loading and running, plain and in a sandbox."""
    loads = [[seconds(lambda b=b: cleave.load(path, copy=True, sandbox=b)) for _ in range(3)] for b in (False, True)]
    plain, boxed = cleave.load(path, copy=True), cleave.load(path, sandbox=True)
    assert torch.equal(plain(x), boxed(x))
    plain_s, boxed_s = [], []
    for _ in range(rounds):
        plain_s.append(seconds(lambda: plain(x)))
        boxed_s.append(seconds(lambda: boxed(x)))
    median = statistics.median
    return median(loads[0]), median(loads[1]), median(plain_s), median(boxed_s)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=40)
    rounds = parser.parse_args().rounds
    print(f"{'model':34}{'plain ms':>10}{'sandbox ms':>12}{'ratio':>8}{'more ms':>9}{'load ms':>9}{'sandbox':>9}")
    with tempfile.TemporaryDirectory() as folder, torch.no_grad():
        for name, (make, shape) in MODELS.items():
            torch.manual_seed(0)
            x = torch.randn(shape)
            path = Path(folder) / "model.clv"
            cleave.capture(make().eval(), x).save(path)
            load, boxed_load, run, boxed_run = (1e3 * t for t in measure(path, x, rounds))
            print(
                f"{name:34}{run:10.3f}{boxed_run:12.3f}{boxed_run / run:8.2f}{boxed_run - run:9.3f}"
                f"{load:9.1f}{boxed_load:9.1f}",
                flush=True,
            )


if __name__ == "__main__":
    main()

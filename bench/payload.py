"""Payloads to bytes and back: speed and size of each compression, and the cost of the checksum.

python bench/payload.py [--megabytes 64] [--rounds 10]

One thread, the best of some rounds, taken in turn; speeds are of the tensor, not of the bytes that are written. Nothing
passes or fails.
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Callable

import torch

from cleave import BoundaryPayload
from cleave.payload import METHODS

WAYS: dict[str, dict[str, object]] = {
    "no checksum": {"checksum": False},
    "plain": {},
    **{method: {"compress": method} for method in METHODS},
}


def seconds(call: Callable[[], object]) -> float:
    start = time.perf_counter()
    call()
    return time.perf_counter() - start


def activations(kind: str, count: int) -> torch.Tensor:
    """What crosses: normal numbers, or those behind a ReLU, half of which are zero."""
    x = torch.randn(64, count // 64, generator=torch.Generator().manual_seed(0))
    return {"normal": x, "relu": x.relu(), "relu bf16": x.relu().bfloat16()}[kind]


def measure(x: torch.Tensor, rounds: int) -> list[tuple[str, float, float, int]]:
    """Per way: the best times of to_bytes and from_bytes, and the bytes."""
    boundary = BoundaryPayload("split", "plan", None, {"%1": x})
    best = {way: (float("inf"), float("inf"), 0) for way in WAYS}
    for _ in range(rounds):
        for way, how in WAYS.items():
            data = boundary.to_bytes(**how)  # type: ignore[arg-type]
            pack = seconds(lambda how=how: boundary.to_bytes(**how))  # type: ignore[misc]
            unpack = seconds(lambda data=data: BoundaryPayload.from_bytes(data))  # type: ignore[misc]
            best[way] = (min(best[way][0], pack), min(best[way][1], unpack), len(data))
    return [(way, *numbers) for way, numbers in best.items()]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--megabytes", type=float, default=64)
    parser.add_argument("--rounds", type=int, default=10)
    args = parser.parse_args()
    torch.set_num_threads(1)
    print(f"{'tensor':10} {'way':12} {'of the bytes':>12} {'to_bytes':>12} {'from_bytes':>12}")
    for kind in ("normal", "relu", "relu bf16"):
        x = activations(kind, int(args.megabytes * 1e6 / 4))
        size = x.numel() * x.element_size()
        for way, pack, unpack, n in measure(x, args.rounds):
            speeds = (f"{size / t / 1e9:.2f} GB/s" for t in (pack, unpack))
            print(f"{kind:10} {way:12} {100 * n / size:10.1f} % {next(speeds):>12} {next(speeds):>12}")


if __name__ == "__main__":
    main()

"""Files: time to write and open a large one, its memory, and how it runs compared with eager.

python bench/artifact.py [--megabytes 1024] [--iterations 20] [--threads 2]

Everything in one run; eager, the live plan and the loaded file in turn, medians and ratios.
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
from cleave.benchmark import compare


def resident() -> float:
    """Megabytes of this process that are in memory."""
    for line in Path("/proc/self/status").read_text().splitlines():
        if line.startswith("VmRSS:"):
            return int(line.split()[1]) / 1024
    return 0.0


def timed(call: Callable[[], Any]) -> tuple[float, Any]:
    """Milliseconds, and what came out."""
    start = time.perf_counter()
    out = call()
    return 1e3 * (time.perf_counter() - start), out


def main() -> None:
    """Writes, opens, runs."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--megabytes", type=int, default=1024)
    parser.add_argument("--iterations", type=int, default=20)
    parser.add_argument("--threads", type=int, default=torch.get_num_threads())
    options = parser.parse_args()
    torch.set_num_threads(options.threads)
    torch.manual_seed(0)
    layers = max(1, options.megabytes // 64)  # of 4096 x 4096 floats
    model = nn.Sequential(*(nn.Linear(4096, 4096, bias=False) for _ in range(layers))).eval()
    x = torch.randn(1, 4096)
    with torch.no_grad(), tempfile.TemporaryDirectory() as folder:
        plan = cleave.capture(model, x)
        file = Path(folder) / "model.clv"
        write, _ = timed(lambda: plan.save(file))
        opens = [timed(lambda: cleave.load(file))[0] for _ in range(options.iterations)]
        before = resident()
        loaded = cleave.load(file)
        grown = resident() - before
        same = torch.equal(loaded(x), model(x))
        check, _ = timed(loaded.check_data)
        calls = {"eager": lambda: model(x), "plan": lambda: plan(x), "file": lambda: loaded(x)}
        results = compare(calls, options.iterations, 0, "cpu", memory=False)
        size = file.stat().st_size / 2**20
    print(f"{size:.0f} MB: write {write:.0f} ms, open {statistics.median(opens):.2f} ms, check weights {check:.0f} ms")
    print(f"opening adds {grown:.1f} MB of resident memory; equal to eager: {same}")
    for r in results:
        print(f"  {r.name:<6} {1e3 * r.median_latency_s:8.2f} ms   eager / {r.name} {r.speedup:.2f}")


if __name__ == "__main__":
    main()

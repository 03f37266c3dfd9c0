"""Growth: the cost of a plan by nodes, of a boundary by bytes, of a file by weights.

python bench/growth.py [--most-nodes 100000] [--megabytes 1 16 256] [--json build/bench-results/growth.json]

Nodes: seconds to capture and to prepare a split for batches 2 to 64, microseconds of a node in eager and on the tape
(in turn, medians), megabytes of the plan. Bytes: gigabytes per second of the writer and the reader of payloads, beside
a plain copy of the same tensors. Files: seconds to write, milliseconds to open (mapped, not read). Every size runs in a
process of its own; where one fails the reason is in its line. Nothing passes or fails.
"""

from __future__ import annotations

import os

os.environ["OMP_NUM_THREADS"] = "1"  # nothing here is about threads, and forks must have none

import argparse
import json
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from kit.child import Failed, in_child
from kit.machine import about
from kit.memory import Memory
from kit.names import SHORT_CALLS
from kit.text import GROWTH, as_terminal, lines_table

import cleave
from cleave.benchmark import compare

FORMAT = 1
STEPS = (100, 1_000, 10_000, 100_000)
OPS: tuple[Callable[[torch.Tensor], torch.Tensor], ...] = (torch.relu, torch.neg, lambda x: x + 0.5, torch.abs)


def seconds(call: Callable[[], Any]) -> tuple[float, Any]:
    start = time.perf_counter()
    out = call()
    return time.perf_counter() - start, out


def medians(ways: dict[str, Callable[[], Any]], iterations: int, most: float) -> dict[str, float]:
    """Seconds of each way, all in turn."""
    results = compare(ways, iterations, 3, "cpu", memory=False, seconds=most, **SHORT_CALLS)
    return {result.name: result.median_latency_s for result in results}


def chain(nodes: int) -> Callable[[torch.Tensor], torch.Tensor]:
    """So many operators on a small tensor, one after the other."""

    def run(x: torch.Tensor) -> torch.Tensor:
        for i in range(nodes):
            x = OPS[i % len(OPS)](x)
        return x

    return run


def nodes_line(nodes: int, iterations: int) -> dict[str, Any]:
    model, x = chain(nodes), torch.randn(4, 16)
    with torch.no_grad():
        cleave.capture(chain(4), x)(x)  # the library is loaded
        memory = Memory("cpu")
        capture_s, plan = seconds(lambda: cleave.capture(model, x, both_grad_modes=False))
        plan(x)
        kept = memory.kept()
        spec = cleave.SplitSpec(boundary="50%", dynamic_batch=(2, 64), trace_batch_mode="batch_gt1")
        split_s, split = seconds(lambda: cleave.prepare_split(model, example_inputs=(x,), split=spec))
        ways = {
            "eager": lambda: model(x),
            "tape": lambda: plan(x),
            "split": lambda: split.run_suffix(split.run_prefix(x)),
        }
        same = all(torch.equal(call(), model(x)) for call in ways.values())
        times = medians(ways, iterations, 30.0)
    per_node = {f"{way}_us_per_node": 1e6 * s / nodes for way, s in times.items()}
    return {"nodes": nodes, "capture_s": capture_s, "split_s": split_s, **per_node, "plan_mb": kept, "equal": same}


def payload_line(megabytes: int, iterations: int) -> dict[str, Any]:
    """A boundary of four tensors."""
    rows = max(1, megabytes * 2**20 // 4 // 4 // 256)
    tensors = [torch.randn(rows, 256) for _ in range(4)]
    size = sum(t.numel() * t.element_size() for t in tensors)
    data = cleave.pack(tensors)
    same = all(torch.equal(a, b) for a, b in zip(cleave.unpack(data), tensors, strict=True))
    ways = {
        "write": lambda: cleave.pack(tensors),
        "read": lambda: cleave.unpack(data),
        "copy": lambda: [t.clone() for t in tensors],
    }
    times = medians(ways, iterations, 20.0)
    speed = {f"{way}_gb_per_s": size / 1e9 / s for way, s in times.items()}
    return {"megabytes": size / 2**20, "bytes_over": len(data) - size, **speed, "equal": same}


def file_line(megabytes: int, iterations: int) -> dict[str, Any]:
    """A file of linear layers, opened again and again."""
    width = 1024
    layers = max(1, megabytes * 2**20 // (4 * width * width))
    model = torch.nn.Sequential(*(torch.nn.Linear(width, width, bias=False) for _ in range(layers))).eval()
    x = torch.randn(1, width)
    with torch.no_grad(), tempfile.TemporaryDirectory(prefix="cleave-bench-") as folder:
        path = Path(folder) / "model.clv"
        plan = cleave.capture(model, x)
        write_s, _ = seconds(lambda: plan.save(path))
        cleave.load(path)
        memory = Memory("cpu")
        opened = medians({"open": lambda: cleave.load(path)}, iterations, 20.0)["open"]
        loaded = cleave.load(path)
        grown = memory.kept()
        first_s, out = seconds(lambda: loaded(x))
        same = torch.equal(out, model(x))
        size = path.stat().st_size / 2**20
    return {
        "megabytes": size,
        "write_s": write_s,
        "open_ms": 1e3 * opened,
        "resident_after_open_mb": grown,
        "first_run_ms": 1e3 * first_s,
        "equal": same,
    }


def measured(
    what: str, line: Callable[[int, int], dict[str, Any]], sizes: list[int], options: Any
) -> list[dict[str, Any]]:
    """A line for each size; a size that fails ends the list, with the reason as its last line."""
    lines: list[dict[str, Any]] = []
    for size in sizes:
        try:
            lines.append(in_child(lambda size=size: line(size, options.iterations), options.limit))  # type: ignore[misc]
        except Failed as error:
            lines.append({"failed": f"{what} {size}: {error}"})
            break
    return lines


def main(argv: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--most-nodes", type=int, default=STEPS[-1], help="the longest plan (100000)")
    parser.add_argument("--megabytes", type=int, nargs="+", default=[1, 16, 256], help="of payloads and of files")
    parser.add_argument("--iterations", type=int, default=20, help="rounds, fewer where they take long (20)")
    parser.add_argument("--limit", type=float, default=600.0, help="seconds for one size (600)")
    parser.add_argument("--json", type=Path, metavar="FILE", help="where the results go")
    options = parser.parse_args(argv)
    if options.most_nodes < 1 or min(options.megabytes) < 1 or options.iterations < 1 or options.limit <= 0:
        parser.error("--most-nodes, --megabytes, --iterations and --limit are above 0")
    torch.manual_seed(0)
    nodes = [n for n in STEPS if n <= options.most_nodes] or [options.most_nodes]
    growth = {}
    for name, line, sizes in (
        ("nodes", nodes_line, nodes),
        ("payload", payload_line, options.megabytes),
        ("files", file_line, options.megabytes),
    ):
        growth[name] = measured(name, line, sizes, options)
        print(f"== {GROWTH[name]}\n{as_terminal(lines_table(growth[name]))}", flush=True)
    if options.json:
        options.json.parent.mkdir(parents=True, exist_ok=True)
        options.json.write_text(json.dumps({"format": FORMAT, **about(), "growth": growth}, indent=1) + "\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())

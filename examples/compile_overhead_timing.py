"""The cost of torch.compile for a split, and the number of calls after which it pays off.

For inference (replay) and for a round of training (retain): seconds until the split has run once, as the tape runs it
and compiled, then what a call takes either way. Break-even is the seconds that compiling takes more, by those that each
call saves; "never" where a call is not faster. Nothing that was compiled before is used; that the compiler is imported
happens once in a process, before the first row.
"""

from __future__ import annotations

import argparse
import contextlib
import sys
from collections.abc import Iterator, Sequence
from typing import Any

import torch
from real_model_functional_test import loss
from timing import Report, add_options, case, parser_of, read_options, spec_of
from torch._inductor.utils import fresh_cache

from cleave.benchmark import (
    BenchmarkResult,
    benchmark_replay_optimization,
    benchmark_split_retain_optimization,
    break_even_iterations,
    ready_s,
)

EXAMPLES = """\
  python examples/compile_overhead_timing.py --models resnet50 mobilenet --modes replay retain --batches 4 32 256 \\
      --iterations 20 --warmup 5 --require-cuda
  python examples/compile_overhead_timing.py --models gpt2 --modes replay --batches 1 --json gpt2.json
"""

MODES = ("replay", "retain")
HEAD = ("model", "mode", "batch", "tape ready s", "compiled ready s", "tape ms", "compiled ms", "break-even", "runs on")
WIDTHS = (34, 6, 5, 12, 16, 26, 26, 10, 0)


@contextlib.contextmanager
def compiling_anew() -> Iterator[None]:
    """No compiled code from before, neither of this process nor from disk."""
    torch.compiler.reset()
    with fresh_cache():
        yield
    torch.compiler.reset()


def import_compiler(options: argparse.Namespace) -> None:
    """Compiles something small, forward and backward; where that fails, the rows tell why."""
    x = torch.ones(4, device=options.device, requires_grad=True)
    with contextlib.suppress(Exception), compiling_anew():
        torch.compile(torch.sin, backend=options.backend or "inductor")(x).sum().backward()


def measure(name: str, mode: str, batch: int, options: argparse.Namespace) -> list[BenchmarkResult]:
    """The split on the tape, and compiled."""
    model, inputs = case(name, batch, options.device, options.size)
    given: dict[str, Any] = {
        "example_inputs": inputs.args,
        "example_kwargs": inputs.kwargs,
        "inputs": inputs.args,
        "kwargs": inputs.kwargs,
        "split": spec_of(options, trainable=mode == "retain"),
        "compile_options": {"backend": options.backend} if options.backend else None,
        "iterations": options.iterations,
        "warmup": options.warmup,
    }
    with compiling_anew():
        if mode == "retain":
            return benchmark_split_retain_optimization(model.train(), loss_fn=loss, **given)
        return benchmark_replay_optimization(model, **given)[1:]  # the model itself needs no preparation


def print_row(cells: Sequence[str]) -> None:
    print("  ".join(f"{cell:<{width}}" for cell, width in zip(cells, WIDTHS, strict=True)).rstrip(), flush=True)


def show(name: str, mode: str, batch: int, results: list[BenchmarkResult]) -> None:
    tape, compiled = results
    calls = break_even_iterations(tape, compiled)
    print_row(
        (
            name,
            mode,
            str(batch),
            f"{ready_s(tape):.2f}",
            f"{ready_s(compiled):.2f}",
            tape.latency.text(3, 1e3),
            compiled.latency.text(3, 1e3),
            "never" if calls is None else str(calls),
            compiled.active_backend or "",
        )
    )
    if compiled.fallback_reason:
        print(f"  fell back: {compiled.fallback_reason}")


def main(argv: Sequence[str] | None = None) -> int:
    parser = parser_of(__doc__, EXAMPLES)
    add_options(parser, ["resnet50", "mobilenet"], [4, 32], 20, 5)
    parser.add_argument(
        "--modes", nargs="+", choices=MODES, default=[*MODES], help="inference, training (default: both)"
    )
    parser.add_argument("--backend", default=None, help="of torch.compile (default: Inductor with Cleave's options)")
    parser.add_argument("--require-cuda", action="store_true", help="an error where there is no CUDA device")
    options = read_options(parser, argv)
    if options.require_cuda and not options.device.startswith("cuda"):
        parser.error("--require-cuda: there is no CUDA device, or --device is another; leave it out to measure the CPU")
    report = Report(options)
    report.head()
    import_compiler(options)
    print_row(HEAD)
    for name, batch in report.cases():
        for mode in options.modes:
            with report.trying(f"{name}, {mode}, batch {batch}"):
                results = measure(name, mode, batch, options)
                show(name, mode, batch, results)
                calls = break_even_iterations(*results)
                report.add(results, model=name, mode=mode, batch=batch, break_even_iterations=calls)
    return report.end()


if __name__ == "__main__":
    sys.exit(main())

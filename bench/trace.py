"""Eager, the tape, torch.compile and a trace by each back end, side by side.

All take turns within each round, so that what else the machine does hits all of them; a round gives one ratio to eager.
Printed are medians with the middle half in brackets, the seconds until a way was ready for its first run (for a trace
that has the comparison with the model in it; nothing comes from a cache) and, with --again, when that is done once more
in the same process, how much is compiled, in how many segments, how large the traced file is by the weights in it, and
how far the outputs are from eager, by the largest number in them. Nothing passes or fails.
"""

from __future__ import annotations

import argparse
import os
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

os.environ["TORCHINDUCTOR_CACHE_DIR"] = tempfile.mkdtemp(prefix="bench-trace-")  # what is compiled is compiled here
sys.path.insert(0, str(Path(__file__).parent.parent / "examples"))

import torch
from pipe_models import PIPED
from pipe_models import build as build_real
from real_models import BUILDERS, Args
from replay import cnn, mlp
from timing import rows
from torch import nn

import cleave
from cleave import _tree
from cleave.benchmark import compare, ratios

SMALL: dict[str, Callable[[int], tuple[nn.Module, torch.Tensor]]] = {"mlp": mlp, "cnn": cnn}
NAMES = [*SMALL, *dict.fromkeys((*BUILDERS, *PIPED))]
DEFAULT = ["mlp", "cnn", "torchvision-mobilenet_v3_large"]
BACKENDS = ["inductor", "openvino"]
WAYS = ["tape", "torch.compile", *BACKENDS]


class Way(NamedTuple):
    """One way to run a model; call is None where it cannot be had, and note says why."""

    name: str
    call: Callable[[], Any] | None
    seconds: list[float]
    note: str


def case(name: str, batch: int) -> tuple[nn.Module, Args]:
    torch.manual_seed(0)
    if name in SMALL:
        model, x = SMALL[name](batch)
        return model.eval(), Args(x)
    model, make_inputs = build_real(name)
    made = make_inputs()
    return model, Args(*(rows(t, batch) for t in made.args), **{key: rows(t, batch) for key, t in made.kwargs.items()})


# ---- ways to run a model


def tape(model: nn.Module, inputs: Args, dynamic: bool) -> tuple[Callable[..., Any], str]:
    return cleave.capture(model, inputs.args, inputs.kwargs, both_grad_modes=False), ""


def compiled(model: nn.Module, inputs: Args, dynamic: bool) -> tuple[Callable[..., Any], str]:
    torch.compiler.reset()
    call = torch.compile(model, dynamic=dynamic)
    call(*inputs.args, **inputs.kwargs)
    return call, ""


def file_size(made: cleave.TracedModule, model: nn.Module) -> float:
    """Of the traced file, by the weights of the model."""
    weights = sum(t.numel() * t.element_size() for t in model.state_dict().values())
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "traced.clv"
        made.save(path, prove="none")
        return path.stat().st_size / max(1, weights)


def traced_by(backend: str) -> Callable[[nn.Module, Args, bool], tuple[Callable[..., Any], str]]:
    def traced(model: nn.Module, inputs: Args, dynamic: bool) -> tuple[Callable[..., Any], str]:
        made = cleave.trace(
            model,
            inputs.args,
            example_kwargs=inputs.kwargs,
            backend=backend,
            dynamic_batch=(1, 1024) if dynamic else None,
            cache=False,
        )
        segments = len(made.segments)
        note = f"{made.coverage.percent:.1f} % in {segments} segment{'s' * (segments != 1)}"
        return made, f"{note}, file {file_size(made, model):.2f}x the weights"

    return traced


def prepare(name: str, model: nn.Module, inputs: Args, dynamic: bool, times: int) -> Way:
    make = {"tape": tape, "torch.compile": compiled}.get(name) or traced_by(name)
    seconds: list[float] = []
    try:
        for _ in range(times):
            since = time.perf_counter()
            call, note = make(model, inputs, dynamic)
            seconds.append(time.perf_counter() - since)
    except Exception as error:  # a compiler that is not installed, or that fails, costs its own rows alone
        lines = str(error).strip().splitlines()
        return Way(name, None, [], f"left out: {lines[0] if lines else type(error).__name__}"[:150])
    return Way(name, lambda: call(*inputs.args, **inputs.kwargs), seconds, note)


# ---- measuring


def distance(got: Any, want: Any) -> float:
    """The largest difference, by the largest number of its tensor."""
    pairs = zip(_tree.flatten(got)[1], _tree.flatten(want)[1], strict=True)
    return max(
        (float((a - b).abs().max() / b.abs().max().clamp(min=1e-30)) for a, b in pairs if b.numel()), default=0.0
    )


def print_row(*cells: str) -> None:
    widths = (15, 26, 18, 11, 9, 0)
    print(*(f"{cell:<{width}}" for cell, width in zip(cells, widths, strict=True)), flush=True)


def report(name: str, options: argparse.Namespace) -> None:
    try:
        model, inputs = case(name, options.batch)
    except ImportError as error:
        print(f"\n{name}: left out: {error}")
        return
    print(f"\n{name}, batch {options.batch}")
    ways = [Way("eager", lambda: model(*inputs.args, **inputs.kwargs), [], "")]
    ways += [prepare(way, model, inputs, options.dynamic, 1 + options.again) for way in options.ways]
    there = [way for way in ways if way.call is not None]
    want = there[0].call()  # type: ignore[misc]
    errors = {way.name: distance(way.call(), want) for way in there if way.call is not None}
    found = compare(
        {way.name: way.call for way in there if way.call is not None}, options.rounds, 3, "cpu", memory=False
    )
    results = {r.name: r for r in found}
    print_row("", "ms", "eager / this", "prepared s", "error", "compiled")
    for way in ways:
        if way.call is None:
            print_row(way.name, way.note, "", "", "", "")
            continue
        mine, seconds = results[way.name], ", ".join(f"{s:.1f}" for s in way.seconds)
        cells = (mine.latency.text(2, 1e3), ratios(found[0], mine).text(2))
        print_row(way.name, *cells, seconds, f"{errors[way.name]:.1e}", way.note)


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--models", nargs="+", choices=NAMES, default=DEFAULT, metavar="NAME", help=", ".join(NAMES))
    parser.add_argument("--ways", nargs="+", choices=WAYS, default=WAYS, metavar="WAY", help=", ".join(WAYS))
    parser.add_argument("--batch", type=int, default=4, help="rows of the inputs")
    parser.add_argument("--rounds", type=int, default=30, help="rounds that count")
    parser.add_argument("--dynamic", action="store_true", help="compile for any number of rows")
    parser.add_argument("--again", action="store_true", help="prepare twice: the second time all is loaded")
    parser.add_argument("--threads", type=int, default=torch.get_num_threads(), help="of torch")
    options = parser.parse_args()
    if options.rounds < 1 or options.batch < 1:
        parser.error("--rounds and --batch must be at least 1")
    torch.set_num_threads(options.threads)
    size = "any number of rows" if options.dynamic else "these sizes"
    print(f"torch {torch.__version__}, {options.threads} threads, {options.rounds} rounds, compiled for {size}")
    with torch.no_grad():
        for name in options.models:
            report(name, options)


if __name__ == "__main__":
    main()

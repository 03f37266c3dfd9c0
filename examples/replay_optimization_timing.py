"""Inference in halves: the model itself, its split as the tape runs it, and its replay runtime optimized, side by side.

--backend says what optimizes: torch_compile is the compiled mode with its default options; inductor, aot_eager and
eager are that mode with this back end of torch.compile; cuda_graph is the mode of that name; fast is the tape with
optimize="fast".
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from typing import Any

from timing import Report, add_options, case, parser_of, read_options, spec_of

from cleave.benchmark import benchmark_replay_optimization, table

EXAMPLES = """\
  python examples/replay_optimization_timing.py --models resnet50 mobilenet --batches 4 32 256 \\
      --iterations 50 --warmup 20 --backend torch_compile
  python examples/replay_optimization_timing.py --models bert --batches 1 --backend cuda_graph
  python examples/replay_optimization_timing.py --models mobilenet --batches 1 4 --backend fast
"""

BACKENDS: dict[str, dict[str, Any]] = {
    "torch_compile": {"mode": "compiled"},
    "inductor": {"mode": "compiled", "compile_options": {"backend": "inductor"}},
    "aot_eager": {"mode": "compiled", "compile_options": {"backend": "aot_eager"}},
    "eager": {"mode": "compiled", "compile_options": {"backend": "eager"}},
    "cuda_graph": {"mode": "cuda_graph"},
    "fast": {"mode": "generated_eager", "optimize": "fast"},
}


def main(argv: Sequence[str] | None = None) -> int:
    parser = parser_of(__doc__, EXAMPLES)
    add_options(parser, ["resnet50", "mobilenet"], [4, 32], 20, 5)
    parser.add_argument(
        "--backend", choices=BACKENDS, default="torch_compile", help="what optimizes (default: torch_compile)"
    )
    options = read_options(parser, argv)
    report = Report(options)
    report.head()
    for name, batch in report.cases():
        title = f"{name}, batch {batch}, {options.backend}"
        with report.trying(title):
            model, inputs = case(name, batch, options.device, options.size)
            results = benchmark_replay_optimization(
                model,
                example_inputs=inputs.args,
                example_kwargs=inputs.kwargs,
                inputs=inputs.args,
                kwargs=inputs.kwargs,
                split=spec_of(options),
                iterations=options.iterations,
                warmup=options.warmup,
                **BACKENDS[options.backend],
            )
            print(f"\n{title}\n{table(results)}", flush=True)
            report.add(results, model=name, batch=batch, backend=options.backend)
    return report.end()


if __name__ == "__main__":
    sys.exit(main())

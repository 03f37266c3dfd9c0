"""Real models cut at percentages of their work and run at several batch sizes, compared with the whole model.

python examples/percent_split_real_model_test.py --models all
python examples/percent_split_real_model_test.py --models torchvision-resnet50 transformers-gpt2 --percent 30 60
"""

import argparse
import sys
import time

import torch
from real_models import BUILDERS, build

import cleave


def check(name: str, percent: float, batches: list[int]) -> bool:
    """Cuts one model in one place; True when every batch gives the numbers of the whole model."""
    model, make_inputs = build(name)
    example = make_inputs()
    started = time.perf_counter()
    runtime = cleave.prepare_split(
        model,
        example_inputs=example.args,
        example_kwargs=example.kwargs,
        split=cleave.SplitSpec(boundary=f"{percent:g}%", dynamic_batch=(1, max(64, *batches))),
    )
    seconds = time.perf_counter() - started
    report = cleave.validate_dynamic_batches(
        runtime, example_inputs=example.args, example_kwargs=example.kwargs, batch_sizes=batches
    )
    c = runtime.candidate
    verdict = "equal" if report.ok else "DIFFERS"
    print(
        f"{name:36} {percent:3g}%  after {c.name:28} {c.boundary_bytes_formula:>24} bytes  "
        f"prepared in {seconds:5.1f} s  {verdict}",
        flush=True,
    )
    if not report.ok:
        print(report)
    return report.ok


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--models", nargs="+", default=["all"], help=f"all, or some of: {', '.join(BUILDERS)}")
    parser.add_argument("--percent", nargs="+", type=float, default=[25, 50, 75])
    parser.add_argument("--batches", nargs="+", type=int, default=[1, 2, 3])
    options = parser.parse_args()
    names = list(BUILDERS) if options.models == ["all"] else options.models
    unknown = [name for name in names if name not in BUILDERS]
    if unknown:
        parser.error(f"no model {', '.join(unknown)}; there are {', '.join(BUILDERS)}")
    torch.set_grad_enabled(False)
    failed = 0
    for name in names:
        for percent in options.percent:
            try:
                failed += not check(name, percent, options.batches)
            except ImportError as error:
                print(f"{name:36} left out: {error}")
                break
            except cleave.CleaveError as error:
                print(f"{name:36} {percent:3g}%  refused: {error}")
                failed += 1
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())

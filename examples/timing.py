"""Shared by the timing examples: models by short names, inputs of any batch, options, and files of results."""

from __future__ import annotations

import argparse
import difflib
import json
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pipe_models
import small_models
import torch
from real_models import BUILDERS, Args
from torch import nn

import cleave
from cleave.benchmark import BenchmarkResult, environment

# As people call them; besides, what follows the library's name is enough where no other model is called so.
SHORT = {
    "resnet50": "torchvision-resnet50",
    "mobilenet": "torchvision-mobilenet_v3_large",
    "deeplab": "torchvision-deeplabv3_resnet50",
    "deeplabv3": "torchvision-deeplabv3_resnet50",
    "vit": "torchvision-vit_b_16",
    "swin": "timm-swin_tiny_patch4_window7_224",
    "swin_tiny": "timm-swin_tiny_patch4_window7_224",
    "yolo": "ultralytics-yolov8n",
    "rfdetr": "rfdetr-nano",
    "rf-detr": "rfdetr-nano",
}
SMALL = [*small_models.SHAPES, "unet", "lstm"]
NAMES = [*SMALL, *BUILDERS]
# Models for pictures of any size; the others have one size.
PICTURES = (
    "torchvision-resnet50",
    "torchvision-mobilenet_v3_large",
    "torchvision-deeplabv3_resnet50",
    "timm-resnet50",
    "ultralytics-yolov8n",
)


# ---- models and inputs


def full_name(name: str) -> str:
    """The name in NAMES that a user means; ValueError where there is none."""
    known = {**{n.partition("-")[2]: n for n in BUILDERS}, **SHORT, **{n: n for n in NAMES}}
    found = known.get(name.lower())
    if found is not None:
        return found
    near = difflib.get_close_matches(name.lower(), known, 1)
    hint = f"did you mean {near[0]}? " if near else ""
    raise ValueError(f"there is no model {name!r}; {hint}all, or some of: {', '.join([*SHORT, *NAMES])}")


def rows(tensor: torch.Tensor, batch: int) -> torch.Tensor:
    """As many rows of an example as are wanted; those that it has again where there are too few."""
    return torch.cat([tensor] * -(-batch // len(tensor)))[:batch]


def case(name: str, batch: int, device: str = "cpu", size: int = 96) -> tuple[nn.Module, Args]:
    """A fresh model in eval mode on the device, and inputs of so many rows; size: pixels on a side."""
    model, make_inputs = small_models.build(name) if name in small_models.SHAPES else pipe_models.build(name)
    made = Args(torch.rand(batch, 3, size, size)) if name in PICTURES else make_inputs()

    def sized(tensor: torch.Tensor) -> torch.Tensor:
        return rows(tensor, batch).to(device)

    inputs = Args(*map(sized, made.args), **{key: sized(t) for key, t in made.kwargs.items()})
    return model.to(device), inputs


# ---- options


def _model(text: str) -> str:
    if text == "all":
        return text
    try:
        return full_name(text)
    except ValueError as error:
        raise argparse.ArgumentTypeError(str(error)) from None


def whole(least: int) -> Callable[[str], int]:
    """Reads a whole number that is not below `least`."""

    def read(text: str) -> int:
        try:
            n = int(text)
        except ValueError:
            n = least - 1
        if n < least:
            raise argparse.ArgumentTypeError(f"{text!r} is no whole number of at least {least}")
        return n

    return read


def parser_of(doc: str | None, examples: str) -> argparse.ArgumentParser:
    """A parser whose help has the module's own words, and examples below."""
    return argparse.ArgumentParser(
        description=(doc or "").strip(),
        epilog=f"examples:\n{examples}",
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )


def add_options(
    parser: argparse.ArgumentParser, models: Sequence[str], batches: Sequence[int], iterations: int, warmup: int
) -> None:
    """The options that all timing examples have, with their defaults."""
    names = f"all, or some of: {', '.join([*SHORT, *NAMES])}"
    some, sizes = " ".join(models), " ".join(map(str, batches))
    add = parser.add_argument
    add("--models", nargs="+", type=_model, default=[*models], metavar="NAME", help=f"{names} (default: {some})")
    add(
        "--batches",
        nargs="+",
        type=whole(1),
        default=[*batches],
        metavar="N",
        help=f"rows (default: {sizes})",
    )
    add("--iterations", type=whole(1), default=iterations, metavar="N", help="rounds that count (default: %(default)s)")
    add("--warmup", type=whole(0), default=warmup, metavar="N", help="rounds before them (default: %(default)s)")
    add("--boundary", default="50%", help='where to cut: "50%%", "after:layer3", "auto" (default: 50%%)')
    add("--fixed-batch", action="store_true", help="prepare for each batch alone (default: for any batch)")
    add("--size", type=whole(32), default=96, metavar="PX", help="of pictures, where a model takes any (default: 96)")
    add("--device", default=None, help="cpu, cuda, cuda:1, … (default: cuda where there is one)")
    add(
        "--threads", type=whole(1), default=torch.get_num_threads(), metavar="N", help="of torch (default: %(default)s)"
    )
    add("--json", type=Path, default=None, metavar="FILE", help="write the results there, too")


def read_options(parser: argparse.ArgumentParser, argv: Sequence[str] | None) -> argparse.Namespace:
    """Options that make sense together."""
    options = parser.parse_args(argv)
    names = dict.fromkeys(n for given in options.models for n in (BUILDERS if given == "all" else [full_name(given)]))
    options.models = list(names)
    options.device = options.device or ("cuda" if torch.cuda.is_available() else "cpu")
    try:
        torch.empty(1, device=options.device)
    except (RuntimeError, AssertionError) as error:
        parser.error(f"--device {options.device}: {str(error).splitlines()[0]}")
    if options.json is not None and not options.json.absolute().parent.is_dir():
        parser.error(f"--json {options.json}: there is no folder {options.json.parent}")
    torch.set_num_threads(options.threads)
    return options


def spec_of(options: argparse.Namespace, trainable: bool = False) -> cleave.SplitSpec:
    """The split that the options ask for."""
    most = max(64, *options.batches)
    batches = None if options.fixed_batch else (1, most)
    return cleave.SplitSpec(boundary=options.boundary, dynamic_batch=batches, trainable=trainable)


# ---- results


class Report:
    """What was measured, and what went wrong."""

    def __init__(self, options: argparse.Namespace) -> None:
        self.options = options
        self.entries: list[dict[str, Any]] = []
        self.failed = 0

    def head(self) -> None:
        of = environment(self.options.device)
        machine = of["device"] if self.options.device != "cpu" else f"{of['cpu']}, {of['threads']} threads"
        counts = f"{self.options.iterations} rounds after {self.options.warmup}"
        print(f"Cleave {of['cleave']}, torch {of['torch']} on {machine}; {counts}; median [middle half]", flush=True)

    def cases(self) -> Iterator[tuple[str, int]]:
        """Models and batches, one after the other."""
        for name in self.options.models:
            for batch in self.options.batches:
                yield name, batch

    @contextmanager
    def trying(self, title: str) -> Iterator[None]:
        """What fails in here costs its own rows alone."""
        try:
            yield
        except ImportError as error:
            print(f"{title}: left out: {error}", flush=True)
        except Exception as error:
            self.failed += 1
            lines = str(error).strip().splitlines() or [""]
            print(f"{title}: FAILED: {type(error).__name__}: {lines[0]}", flush=True)
            self.entries.append({"case": title, "error": f"{type(error).__name__}: {error}"})

    def add(self, results: Sequence[BenchmarkResult], **about: Any) -> None:
        self.entries.append({**about, "results": [r.to_dict() for r in results]})

    def end(self) -> int:
        """Writes the file; the exit status."""
        if self.options.json is not None:
            about = {"environment": environment(self.options.device), "entries": self.entries}
            self.options.json.write_text(json.dumps(about, indent=1, allow_nan=False) + "\n", encoding="utf-8")
            print(f"results are in {self.options.json}", file=sys.stderr)
        return 1 if self.failed else 0

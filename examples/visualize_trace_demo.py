"""Pictures of a torchvision model: as it is, and cut in two. Random weights; nothing is downloaded.

python examples/visualize_trace_demo.py [--model resnet18|vgg11] [--boundary 50%] [--out folder] [--format svg]
"""

import argparse
import importlib
from pathlib import Path
from typing import Any

import torch

import cleave
from cleave.visualization import FORMATS, export_split_candidates_table

MODELS = ("resnet18", "vgg11")


def runtime_of(name: str, boundary: str, size: int) -> cleave.SplitRuntime:
    """A torchvision model, cut."""
    model: Any = getattr(importlib.import_module("torchvision").models, name)(weights=None).eval()
    spec = cleave.SplitSpec(boundary=boundary, dynamic_batch=(1, 64))
    return cleave.prepare_split(model, example_inputs=(torch.randn(2, 3, size, size),), split=spec)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--model", choices=MODELS, default="resnet18")
    parser.add_argument("--boundary", default="50%", help='where to cut: "50%%", "auto", "after:layer2" (default 50%%)')
    parser.add_argument(
        "--out", type=Path, default=Path("pictures"), help="folder for the pictures (default: pictures)"
    )
    parser.add_argument("--format", choices=FORMATS, default="svg", help="dot needs no Graphviz (default: svg)")
    parser.add_argument("--size", type=int, default=224, help="height and width of the images (default: 224)")
    options = parser.parse_args()

    runtime = runtime_of(options.model, options.boundary, options.size)
    print(runtime)
    file = {"fileformat": options.format, "save_only": True}
    for name, more in (
        ("trace", {"view": "trace"}),
        ("split", {"view": "split"}),
        ("overview", {"view": "split", "max_module_depth": 2}),
        (
            "operations",
            {"view": "trace", "view_detail": "operation", "show_operation_targets": True, "show_node_indices": True},
        ),
    ):
        print(runtime.visualize(outpath=options.out / f"{options.model}_{name}", **file, **more))

    rows = [row for row in export_split_candidates_table(runtime) if row["rejection_reason"] is None]
    print(f"{len(rows)} places to cut; the cheapest are")
    for row in sorted(rows, key=lambda row: row["boundary_bytes"])[:5]:
        print(f"  after {row['boundary_after']:24} {row['boundary_bytes']:8} bytes")


if __name__ == "__main__":
    main()

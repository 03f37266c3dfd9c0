"""Split inference: the first half of a network here, the second half there, any batch size.

python examples/split_inference_demo.py [--boundary 50%] [--file boundary.safetensors]
"""

import argparse
import tempfile
from pathlib import Path

import torch
from torch import nn

import cleave


def network() -> nn.Module:
    """A small convolutional classifier."""
    return nn.Sequential(
        nn.Conv2d(3, 16, 3, stride=2, padding=1),
        nn.BatchNorm2d(16),
        nn.ReLU(),
        nn.Conv2d(16, 32, 3, stride=2, padding=1),
        nn.BatchNorm2d(32),
        nn.ReLU(),
        nn.AdaptiveAvgPool2d(1),
        nn.Flatten(),
        nn.Linear(32, 10),
    ).eval()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--boundary", default="50%", help='where to cut: "50%%", "auto", "after:4" (default 50%%)')
    parser.add_argument("--file", type=Path, help="where to put the boundary (default: a temporary file)")
    options = parser.parse_args()

    torch.manual_seed(0)
    model = network()
    spec = cleave.SplitSpec(boundary=options.boundary, dynamic_batch=(1, 64))
    runtime = cleave.prepare_split(model, example_inputs=(torch.randn(4, 3, 32, 32),), split=spec)
    print(runtime)

    for batch in (1, 2, 7, 32):
        x = torch.randn(batch, 3, 32, 32)
        boundary = runtime.run_prefix(x)
        output = runtime.run_suffix(boundary)
        with torch.no_grad():
            equal = torch.equal(output, model(x))
        print(f"batch {batch:2}: {boundary.nbytes:7} bytes cross, equal to the whole model: {equal}")

    with tempfile.TemporaryDirectory() as folder:
        path = options.file or Path(folder) / "boundary.safetensors"
        boundary.save(path)
        again = cleave.BoundaryPayload.load(path)
        print(
            f"through {path.stat().st_size} bytes of a safetensors file:",
            torch.equal(runtime.run_suffix(again), output),
        )


if __name__ == "__main__":
    main()

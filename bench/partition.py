"""Compares all partitioners: balance of the devices, bytes between stages, time.

python bench/partition.py [--graphs resnet gpt …] [--model resnet50 bert …] [--measure] [--methods auto mpipe …]
                          [-k 2 4 8] [--seeds 1] [--dump DIR] [--cleave build/cleave] [GRAPH.json …]

For each graph, K and method: slowest device / lower bound (1 is the best there can be), megabytes cut, stages, seconds.
Graphs are generated here with weights from counted operations and bytes, come from captured models (--model), or are
files that `cleave partition` reads. --dump writes all of them as JSON, so that others can be measured on the same.
"""

from __future__ import annotations

import argparse
import importlib
import json
import random
import subprocess
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

Graph = dict[str, Any]
METHODS = ("pipedream", "acyclic", "multilevel", "metis", "mpipe", "exact", "auto")
MODELS = {
    "resnet50": "torchvision-resnet50",
    "bert": "transformers-bert",
    "gpt2": "transformers-gpt2",
    "t5": "transformers-t5",
    "unet": "unet",
    "lstm": "lstm",
}
FLOPS_PER_US = 10e6  # of a device that is neither fast nor slow
BYTES_PER_US = 400e3
CALL_US = 1.0


class Builder:
    """Nodes with weights by what they compute and move; backward takes twice as long as forward."""

    def __init__(self) -> None:
        self.nodes: list[dict[str, Any]] = []
        self.edges: list[list[int]] = []

    def node(self, name: str, sources: list[int], out: float, flops: float = 0, params: float = 0) -> int:
        """`out` and `params` are in numbers of four bytes; a node of no operations moves its bytes."""
        fwd = CALL_US + flops / FLOPS_PER_US + 4 * (2 * out + params) / BYTES_PER_US
        self.nodes.append(
            {
                "id": len(self.nodes),
                "name": name,
                "fwd_us": round(fwd, 3),
                "bwd_us": round(2 * fwd, 3),
                "param_bytes": int(4 * params),
                "out_bytes": int(4 * out),
            }
        )
        self.edges += [[s, len(self.nodes) - 1] for s in dict.fromkeys(sources)]
        return len(self.nodes) - 1

    def conv(self, name: str, source: int, channels: tuple[int, int], kernel: int, side: int) -> int:
        """A convolution to `side` x `side` pixels, its normalisation and its ReLU."""
        out, weights = channels[1] * side * side, channels[0] * channels[1] * kernel**2
        x = self.node(f"{name}.conv", [source], out, 2 * weights * side * side, weights)
        x = self.node(f"{name}.bn", [x], out, 0, 4 * channels[1])
        return self.node(f"{name}.relu", [x], out)

    def linear(self, name: str, source: int, rows: int, features: tuple[int, int]) -> int:
        weights = features[0] * features[1]
        return self.node(name, [source], rows * features[1], 2 * rows * weights, weights)

    def graph(self) -> Graph:
        return {"nodes": self.nodes, "edges": self.edges}


# ---- generated graphs ------------------------------------------------------------------------------------------------


def resnet() -> Graph:
    """The layers of ResNet-50 on pictures of 224 x 224."""
    b = Builder()
    x = b.conv("stem", b.node("input", [], 3 * 224 * 224), (3, 64), 7, 112)
    x = b.node("maxpool", [x], 64 * 56 * 56)
    channels = 64
    for layer, (width, blocks, side) in enumerate(((64, 3, 56), (128, 4, 28), (256, 6, 14), (512, 3, 7))):
        for i in range(blocks):
            name, skip = f"layer{layer + 1}.{i}", x
            y = b.conv(f"{name}.1", x, (channels, width), 1, side)
            y = b.conv(f"{name}.2", y, (width, width), 3, side)
            y = b.conv(f"{name}.3", y, (width, 4 * width), 1, side)
            if i == 0:
                skip = b.conv(f"{name}.down", x, (channels, 4 * width), 1, side)
            channels = 4 * width
            x = b.node(f"{name}.relu", [b.node(f"{name}.add", [y, skip], channels * side**2)], channels * side**2)
    x = b.node("avgpool", [x], channels)
    b.linear("fc", x, 1, (channels, 1000))
    return b.graph()


def attention(b: Builder, name: str, x: int, memory: int, rows: int, width: int) -> int:
    """Queries from x, keys and values from memory, and what comes out added to x."""
    y = b.node(f"{name}.norm", [x], rows * width, 0, 2 * width)
    source = y if memory == x else memory
    q = b.linear(f"{name}.q", y, rows, (width, width))
    k = b.linear(f"{name}.k", source, rows, (width, width))
    v = b.linear(f"{name}.v", source, rows, (width, width))
    scores = b.node(f"{name}.scores", [q, k], 12 * rows * rows, 2 * rows * rows * width)
    weights = b.node(f"{name}.softmax", [scores], 12 * rows * rows)
    mixed = b.node(f"{name}.mix", [weights, v], rows * width, 2 * rows * rows * width)
    return b.node(f"{name}.add", [x, b.linear(f"{name}.out", mixed, rows, (width, width))], rows * width)


def feed_forward(b: Builder, name: str, x: int, rows: int, width: int) -> int:
    y = b.node(f"{name}.norm", [x], rows * width, 0, 2 * width)
    y = b.node(f"{name}.gelu", [b.linear(f"{name}.up", y, rows, (width, 4 * width))], 4 * rows * width)
    return b.node(f"{name}.add", [x, b.linear(f"{name}.down", y, rows, (4 * width, width))], rows * width)


def gpt(layers: int = 12, rows: int = 512, width: int = 768) -> Graph:
    """Decoder layers one after the other, and the large layer over the vocabulary in the end."""
    b = Builder()
    x = b.node("embed", [], rows * width, 0, 50257 * width / 100)
    for i in range(layers):
        x = attention(b, f"h.{i}.attn", x, x, rows, width)
        x = feed_forward(b, f"h.{i}.mlp", x, rows, width)
    x = b.node("norm", [x], rows * width)
    b.linear("head", x, rows, (width, 50257))
    return b.graph()


def t5(layers: int = 12, rows: int = 512, width: int = 768) -> Graph:
    """An encoder whose output goes to every layer of the decoder, and a bias of positions that all layers share."""
    b = Builder()
    x = b.node("encoder.embed", [], rows * width)
    for i in range(layers):
        x = attention(b, f"encoder.{i}.self", x, x, rows, width)
        x = feed_forward(b, f"encoder.{i}.mlp", x, rows, width)
    memory = b.node("encoder.norm", [x], rows * width)
    x = b.node("decoder.embed", [], rows * width)
    for i in range(layers):
        x = attention(b, f"decoder.{i}.self", x, x, rows, width)
        x = attention(b, f"decoder.{i}.cross", x, memory, rows, width)
        x = feed_forward(b, f"decoder.{i}.mlp", x, rows, width)
    b.linear("head", b.node("decoder.norm", [x], rows * width), rows, (width, 32128))
    return b.graph()


def unet(levels: int = 4, width: int = 64, side: int = 128) -> Graph:
    """Down and up again; each level of the way down goes over to its level of the way up."""
    b = Builder()
    x, channels, skips = b.node("input", [], 3 * side**2), 3, []
    for i in range(levels):
        for j in range(2):
            x = b.conv(f"down.{i}.{j}", x, (channels, width << i), 3, side >> i)
            channels = width << i
        skips.append(x)
        x = b.node(f"down.{i}.pool", [x], channels * (side >> i + 1) ** 2)
    for j in range(2):
        x = b.conv(f"middle.{j}", x, (channels, width << levels), 3, side >> levels)
        channels = width << levels
    for i in reversed(range(levels)):
        pixels = (side >> i) ** 2
        flops, weights = 2 * channels * (width << i) * pixels, 4 * channels * (width << i)
        x = b.node(f"up.{i}.grow", [x], (width << i) * pixels, flops, weights)
        x = b.node(f"up.{i}.cat", [x, skips[i]], 2 * (width << i) * pixels)
        channels = 2 * (width << i)
        for j in range(2):
            x = b.conv(f"up.{i}.{j}", x, (channels, width << i), 3, side >> i)
            channels = width << i
    b.conv("out", x, (channels, 2), 1, side)
    return b.graph()


def layered(nodes: int = 10_000, width: int = 20) -> Graph:
    """Layers of nodes that read some of the three layers before, with weights far from even."""
    r, b = random.Random(1), Builder()
    for n in range(nodes):
        first = max(0, (n // width - 3) * width)
        reach = range(first, n // width * width)
        sources = r.sample(reach, min(len(reach), r.randint(1, 3))) if reach else []
        b.node(f"n{n}", sources, r.randint(1, 10_000), 1e7 * r.lognormvariate(1, 1.2), r.randint(0, 50_000))
    return b.graph()


GRAPHS: dict[str, Callable[[], Graph]] = {"resnet": resnet, "gpt": gpt, "t5": t5, "unet": unet, "layered": layered}


def model_graph(name: str, measured: bool) -> Graph:
    """The graph of a real model, its layers and operators weighed by counting or, if `measured`, by running."""
    sys.path.insert(0, str(Path(__file__).resolve().parent.parent / "examples"))
    models = importlib.import_module("pipe_models")
    cleave = importlib.import_module("cleave")
    model, draw = models.build(MODELS[name])
    inputs = draw()
    partitioned = cleave.pipe_model(
        model.train(),
        example_inputs=inputs.args,
        example_kwargs=inputs.kwargs,
        nparts=2,
        partitioning_method="pipedream",
        profile=None if measured else "estimate",
    )
    graph: Graph = partitioned.graph()
    return graph


# ---- measuring -------------------------------------------------------------------------------------------------------


def partition(command: str, graph: Path, method: str, k: int, seed: int) -> dict[str, Any] | str:
    """What `cleave partition --json` says; its complaint where it refuses."""
    call = [command, "partition", str(graph), "-k", str(k), "--method", method, "--seed", str(seed), "--json"]
    done = subprocess.run(call, capture_output=True, text=True, check=False)
    if done.returncode:
        return done.stderr.strip().splitlines()[-1] if done.stderr.strip() else f"exit {done.returncode}"
    result: dict[str, Any] = json.loads(done.stdout)
    return result


def show(name: str, method: str, k: int, results: list[dict[str, Any] | str]) -> None:
    """One line: the worst of all seeds, and the longest time."""
    complaints = [r for r in results if isinstance(r, str)]
    if complaints:
        print(f"{name:12} {k:2} {method:10} {complaints[0]}")
        return
    rows = [r for r in results if isinstance(r, dict)]
    gap = max(r["bottleneck_us"] / r["lower_bound_us"] if r["lower_bound_us"] else 1.0 for r in rows)
    cut = max(r["cut_bytes"] for r in rows) / 1e6
    stages = max(len(r["stages"]) for r in rows)
    seconds = max(r["seconds"] for r in rows)
    print(f"{name:12} {k:2} {method:10} {gap:8.4f} {cut:10.2f} {stages:7} {seconds:8.3f}")
    sys.stdout.flush()


def main() -> None:
    """All graphs, all K, all methods."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("files", nargs="*", type=Path, metavar="GRAPH.json")
    parser.add_argument("--graphs", nargs="*", choices=GRAPHS, default=None)
    parser.add_argument("--model", nargs="*", choices=MODELS, default=[])
    parser.add_argument("--measure", action="store_true", help="of models: run the blocks, instead of counting")
    parser.add_argument("--methods", nargs="*", default=METHODS)
    parser.add_argument("-k", nargs="*", type=int, default=[2, 4, 8])
    parser.add_argument("--seeds", type=int, default=1, help="the worst of so many is shown")
    parser.add_argument("--dump", type=Path, help="write the graphs there, and measure nothing")
    parser.add_argument("--cleave", default="build/cleave")
    options = parser.parse_args()
    names = options.graphs if options.graphs is not None else [] if options.files or options.model else list(GRAPHS)
    with tempfile.TemporaryDirectory() as folder:
        where = options.dump or Path(folder)
        where.mkdir(parents=True, exist_ok=True)
        files = list(options.files)
        made = {name: GRAPHS[name]() for name in names}
        made.update({f"{name}-model": model_graph(name, options.measure) for name in options.model})
        for name, graph in made.items():
            files.append(where / f"{name}.json")
            files[-1].write_text(json.dumps(graph))
        if options.dump:
            print("\n".join(str(file) for file in files))
            return
        print(f"{'graph':12} {'K':>2} {'method':10} {'gap':>8} {'cut MB':>10} {'stages':>7} {'seconds':>8}")
        for file in files:
            for k in options.k:
                for method in options.methods:
                    found = [partition(options.cleave, file, method, k, seed) for seed in range(options.seeds)]
                    show(file.stem, method, k, found)


if __name__ == "__main__":
    main()

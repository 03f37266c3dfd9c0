"""Real models as pipelines: by every method, the stages in sequence are the model bit for bit, and so are those of the
generated file in a fresh process. Each model is captured once."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch
from helpers import draw, kept_rng, same_tensor, same_tree, seed_all, tensors
from models import PIPED, build_piped
from test_stages_source_models import state_of

import cleave
from cleave import PartitionedPlan, _tree
from cleave._wanted import METHODS

pytestmark = pytest.mark.integration
SAMPLE = {2: ("mpipe",), 4: ("auto",), 8: ("acyclic",)}  # methods for each number of devices
MATRIX = dict.fromkeys((2, 4, 8), METHODS)

# Runs in a process of its own, which has torch alone: the folder of all files, what goes in, what must come out.
CHECK = """
import importlib.util, pathlib, sys
import torch

for name in ("kaiming_uniform_", "uniform_", "normal_", "xavier_uniform_"):
    setattr(torch.nn.init, name, lambda t, *args, **kwargs: t)  # weights are loaded: saves most of the time
folder = pathlib.Path(sys.argv[1])
case = torch.load(folder / "case.pt", weights_only=True, mmap=True)


def flat(tree):
    if isinstance(tree, torch.Tensor):
        return [tree]
    if hasattr(tree, "values"):
        tree = tree.values()
    return [t for v in tree for t in flat(v)] if not isinstance(tree, (str, int, float, type(None))) else []


for path in sorted(folder.glob("pipe_*.py")):
    spec = importlib.util.spec_from_file_location(path.stem, path)
    file = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(file)
    assert "cleave" not in sys.modules
    pipeline = file.Pipeline()
    file.load_model_state(pipeline.stages, case["state"])
    for stage in pipeline.stages:
        unknown = set(stage.state_dict()) - set(case["names"])
        assert not unknown, f"{path.name}: names that the model does not have: {unknown}"
    values = tuple(case["inputs"])
    with torch.no_grad():
        for stage in pipeline.stages:
            values = stage(*values)
            values = values if isinstance(values, tuple) else (values,)
    got = flat(values)
    assert len(got) == len(case["outputs"]), f"{path.name}: {len(got)} outputs"
    for i, (a, b) in enumerate(zip(got, case["outputs"])):
        assert torch.equal(a, b), f"{path.name}: output {i}"
    print("equal", path.name)
"""


def generated(found: list[tuple[str, PartitionedPlan]], model: Any, inputs: Any, folder: Path) -> None:
    """The files of all partitions, each loaded and run in one fresh process."""
    for name, partitioned in found:
        partitioned.write_source(folder / f"pipe_{name}.py", explicit_del=True)
    state = state_of(found[0][1]._first.main.captured) | model.state_dict()
    with torch.no_grad():
        out = [t for _, t in tensors(model(*inputs.args, **inputs.kwargs), "")]
    case = {
        "state": {name: t.detach() for name, t in state.items()},
        "names": list(model.state_dict()),
        "inputs": _tree.flatten((inputs.args, inputs.kwargs))[1],
        "outputs": list({id(t): t for t in out}.values()),
    }
    torch.save(case, folder / "case.pt")
    script = folder / "check.py"
    script.write_text(CHECK)
    done = subprocess.run([sys.executable, "-I", script, folder], capture_output=True, text=True, timeout=500)
    (folder / "case.pt").unlink()
    assert done.returncode == 0, done.stdout + done.stderr
    assert done.stdout.count("equal") == len(found)


def check(name: str, matrix: dict[int, tuple[str, ...]], folder: Path) -> None:
    model, make_inputs = build_piped(name)
    example, inputs = draw(make_inputs, 0, False), draw(make_inputs, 1, False)
    found: list[tuple[str, PartitionedPlan]] = []
    with torch.no_grad():
        want = model(*inputs.args, **inputs.kwargs)
        first = cleave.pipe_model(
            model,
            example_inputs=example.args,
            example_kwargs=example.kwargs,
            nparts=2,
            partitioning_method="acyclic",
            profile="estimate",
            training=False,
        )
        for nparts, methods in matrix.items():
            for method in methods:
                partitioned = first.repartition(nparts=nparts, partitioning_method=method, seconds=1.0)
                assert set(partitioned.device_of) == set(range(nparts))
                same_tree(want, partitioned(*inputs.args, **inputs.kwargs), f"{method}, {nparts}")
                found.append((f"{method}_{nparts}", partitioned))
    generated(found, model, inputs, folder)


@pytest.mark.timeout(600)
@pytest.mark.parametrize("name", PIPED)
def test_a_sample_of_partitions(name: str, tmp_path: Path) -> None:
    check(name, SAMPLE, tmp_path)


@pytest.mark.slow
@pytest.mark.timeout(1800)
@pytest.mark.parametrize("name", PIPED)
def test_every_method_and_number_of_devices(name: str, tmp_path: Path) -> None:
    check(name, MATRIX, tmp_path)


@pytest.mark.slow
@pytest.mark.timeout(1800)
@pytest.mark.parametrize("name", PIPED)
def test_gradients_in_train_mode(name: str) -> None:
    model, make_inputs = build_piped(name)
    model.train()
    first = None
    for nparts, recomputation in ((4, False), (8, True)):
        if first is None:
            example = draw(make_inputs, 0, False)
            first = cleave.pipe_model(
                model,
                example_inputs=example.args,
                example_kwargs=example.kwargs,
                nparts=nparts,
                partitioning_method="acyclic",
                profile="estimate",
            )
        found = first.repartition(nparts=nparts, recomputation=recomputation)
        want, got = (step(call, model, draw(make_inputs, 1, False)) for call in (model, found))
        for name_of, gradient in want.items():
            same_tensor(gradient, got[name_of], f"{nparts} devices: {name_of}")


def step(call: Any, model: Any, inputs: Any) -> dict[str, torch.Tensor]:
    """Gradients and buffers after one step; the model is as it was."""
    before = {name: b.clone() for name, b in model.named_buffers()}
    with kept_rng():
        seed_all(3)
        out = call(*inputs.args, **inputs.kwargs)
        sum(t.square().mean() for _, t in tensors(out, "") if t.requires_grad).backward()
    seen = {name: p.grad.clone() for name, p in model.named_parameters() if p.grad is not None}
    seen |= {f"buffer {name}": b.clone() for name, b in model.named_buffers()}
    model.zero_grad()
    for name, b in model.named_buffers():
        b.copy_(before[name])
    return seen

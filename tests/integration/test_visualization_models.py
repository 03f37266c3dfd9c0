"""Pictures of real models: what is in them, and that Graphviz draws them."""

from __future__ import annotations

import importlib
import importlib.util
import re
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch
from models import BUILDERS, build

import cleave
from cleave.visualization import export_split_dot, export_trace_dot

pytestmark = pytest.mark.integration
EXAMPLES = Path(__file__).parent.parent.parent / "examples"
needs_dot = pytest.mark.skipif(shutil.which("dot") is None, reason="no program dot (Graphviz) here")


def needs_torchvision() -> None:
    if importlib.util.find_spec("torchvision") is None:
        pytest.skip("no torchvision here")


def runtime_of(name: str, boundary: str) -> cleave.SplitRuntime:
    needs_torchvision()
    model: Any = getattr(importlib.import_module("torchvision").models, name)(weights=None).eval()
    spec = cleave.SplitSpec(boundary=boundary, dynamic_batch=(1, 8))
    return cleave.prepare_split(model, example_inputs=(torch.randn(2, 3, 64, 64),), split=spec)


def draws(dot: str) -> None:
    done = subprocess.run(["dot", "-Tsvg"], input=dot.encode(), capture_output=True, check=False, timeout=300)
    assert (done.returncode, done.stderr) == (0, b""), done.stderr.decode()
    assert done.stdout.rstrip().endswith(b"</svg>")


@pytest.fixture(scope="module")
def resnet18() -> cleave.SplitRuntime:
    return runtime_of("resnet18", "after:layer2.0")


def test_resnet18_shows_its_blocks_and_its_residual_adds(resnet18: cleave.SplitRuntime) -> None:
    dot = export_trace_dot(resnet18)
    assert dot.count("BasicBlock") == 8
    assert dot.count("<b>add</b>") == 8
    assert dot.count("<b>downsample</b>") == 3
    assert "<b>layer1.0</b>" in dot
    assert "(B, 64, 32, 32) · 0.52 MB" in dot
    assert "params: weight(64x3x7x7)" in dot
    assert "params: weight(1000x512), bias(x1000)" in dot
    assert "params: 11.7M" in dot
    for hidden in ("aten::", "f32", "running_mean", "in place"):
        assert hidden not in dot


def test_resnet18_collapses_to_blocks(resnet18: cleave.SplitRuntime) -> None:
    dot = export_split_dot(resnet18, max_module_depth=2)
    assert "params: 74.0K" in dot
    assert dot.count("BasicBlock") == 8
    assert "<b>add</b>" not in dot
    block = next(line for line in dot.splitlines() if "<b>layer2.0</b>" in line)
    assert 'class="prefix boundary"' in block
    assert "boundary_bytes: 32768*B (0.07 MB, 1 tensor)" in dot
    assert "trainable suffix: yes" in dot


def test_resnet18_shows_operations_on_request(resnet18: cleave.SplitRuntime) -> None:
    dot = resnet18.visualize(
        view="trace", view_detail="operation", show_operation_targets=True, show_debug_markers=True, return_dot=True
    )
    assert isinstance(dot, str)
    assert len(re.findall(r"^ *n\d+ \[", dot, re.MULTILINE)) == len(resnet18.trace_plan.nodes)
    assert "aten::conv2d" in dot
    assert "in place" in dot
    assert "buffers: running_mean(x64), running_var(x64)" in dot


def test_vgg11_is_a_chain_of_features_and_a_classifier() -> None:
    runtime = runtime_of("vgg11", "50%")
    dot = export_trace_dot(runtime)
    assert "<b>features.0</b>" in dot
    assert "params: weight(64x3x3x3), bias(x64)" in dot
    assert "<b>classifier</b>" in dot
    assert "params: 132.9M" in dot
    if shutil.which("dot"):
        draws(export_split_dot(runtime))


@needs_dot
@pytest.mark.parametrize("detail", ["module", "operation"])
@pytest.mark.parametrize("view", ["trace", "split"])
@pytest.mark.parametrize("direction", ["TB", "LR"])
def test_graphviz_draws_resnet18(resnet18: cleave.SplitRuntime, detail: Any, view: str, direction: str) -> None:
    dot = resnet18.visualize(view=view, view_detail=detail, direction=direction, return_dot=True)
    assert isinstance(dot, str)
    draws(dot)


SLOW = ("timm-swin_tiny_patch4_window7_224", "rfdetr-nano")  # to capture, not to draw


@needs_dot
@pytest.mark.parametrize("name", [pytest.param(n, marks=pytest.mark.slow) if n in SLOW else n for n in BUILDERS])
def test_graphviz_draws_every_real_model(name: str) -> None:
    model, make_inputs = build(name)
    torch.manual_seed(0)
    example = make_inputs()
    with torch.no_grad():
        plan = cleave.capture(model, example.args, example.kwargs or None, both_grad_modes=False)
    draws(export_split_dot(plan, "50%"))


@needs_dot
def test_the_example_draws_both_models(tmp_path: Path) -> None:
    needs_torchvision()
    command = [
        sys.executable,
        str(EXAMPLES / "visualize_trace_demo.py"),
        "--out",
        str(tmp_path),
        "--size",
        "64",
        "--model",
    ]
    for model in ("resnet18", "vgg11"):
        done = subprocess.run([*command, model], capture_output=True, text=True, check=False, timeout=600)
        assert done.returncode == 0, done.stderr
        assert "places to cut" in done.stdout
    names = {"trace", "split", "overview", "operations"}
    assert {p.name for p in tmp_path.iterdir()} == {f"{m}_{n}.svg" for m in ("resnet18", "vgg11") for n in names}

"""Pictures from Python: what they show, where they go, that nothing runs for them, and that Graphviz takes them."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import xml.etree.ElementTree as ET
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.utils._python_dispatch import TorchDispatchMode

import cleave
from cleave import _native
from cleave.visualization import (
    GraphvizError,
    Picture,
    export_split_candidates_table,
    export_split_dot,
    export_trace_dot,
    render_split_graph,
    render_trace_graph,
)

PLANS = sorted(p for p in (Path(__file__).parent.parent / "plan").glob("*.plan") if not p.name.startswith("bad_"))
needs_dot = pytest.mark.skipif(shutil.which("dot") is None, reason="no program dot (Graphviz) here")


class Block(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.conv = nn.Conv2d(4, 4, 3, padding=1)
        self.bn = nn.BatchNorm2d(4)
        self.act = nn.ReLU()

    def forward(self, x: Tensor) -> Tensor:
        return self.act(self.bn(self.conv(self.act(x))) + x)


class Net(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.stem = nn.Conv2d(3, 4, 3, padding=1)
        self.body = nn.Sequential(Block(), Block())
        self.head = nn.Linear(4, 2)

    def forward(self, x: Tensor, scale: Tensor) -> Tensor:
        return self.head(self.body(self.stem(x)).mean((2, 3))) * scale


def inputs(rows: int = 3) -> tuple[Tensor, Tensor]:
    return torch.randn(rows, 3, 8, 8), torch.randn(rows, 2)


@pytest.fixture(scope="module")
def net() -> Net:
    torch.manual_seed(0)
    return Net().eval()


@pytest.fixture(scope="module")
def runtime(net: Net) -> cleave.SplitRuntime:
    return cleave.prepare_split(net, example_inputs=inputs(), split=cleave.SplitSpec(boundary="after:body.0"))


@pytest.fixture(scope="module")
def plan(net: Net) -> cleave.Plan:
    return cleave.capture(net, inputs())


@pytest.fixture
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    return tmp_path


def node(dot: str, title: str) -> str:
    """The line of the node with this bold title."""
    found = [
        line for line in dot.splitlines() if re.match(rf" *(n|in|out)\w* \[label=<<b>{re.escape(title)}</b>", line)
    ]
    assert len(found) == 1, found
    return found[0]


# ---- what is shown


def test_modules_are_clusters_and_a_residual_add_is_a_node_of_its_own(plan: cleave.Plan) -> None:
    dot = export_trace_dot(plan)
    assert dot.count("<b>add</b>") == 2
    assert "<b>body.0</b>" in dot
    assert "Block </font>" in dot
    assert "params: weight(4x3x3x3), bias(x4)" in node(dot, "stem")
    assert "(3, 4, 8, 8) · &lt;0.01 MB" in node(dot, "stem")
    for hidden in ("aten::", "f32", "running_mean", "in place", "#0"):
        assert hidden not in re.sub(r'"#[0-9A-F]{6,8}"', "", dot)


def test_frozen_parameters_are_in_brackets() -> None:
    model = Net().eval()
    model.stem.requires_grad_(False)
    dot = export_trace_dot(cleave.capture(model, inputs()))
    assert "params: weight[4x3x3x3], bias[x4]" in node(dot, "stem")
    assert "params: weight(2x4), bias(x2)" in node(dot, "head")


def test_deep_modules_are_collapsed_and_count_their_parameters(plan: cleave.Plan) -> None:
    assert "params: 156<" in node(export_trace_dot(plan, max_module_depth=2), "body.0")
    assert "params: 312<" in node(export_trace_dot(plan, max_module_depth=1), "body")
    whole = export_trace_dot(plan, max_module_depth=None)
    assert "subgraph" in whole
    assert whole == export_trace_dot(plan, max_module_depth=3)


def test_the_operation_view_shows_what_is_asked_for(plan: cleave.Plan) -> None:
    dot = export_trace_dot(
        plan, view_detail="operation", show_operation_targets=True, show_debug_markers=True, show_node_indices=True
    )
    assert dot.count("[label=<") == len(plan.nodes) + 3 + 1  # two inputs, the output, the title
    assert "aten::batch_norm" in dot
    assert "buffers: running_mean(x4), running_var(x4)" in dot
    assert "#0 conv2d" in dot
    assert "f32 (3, 4, 8, 8)" in dot


def test_a_split_marks_its_sides_and_says_what_it_costs(runtime: cleave.SplitRuntime) -> None:
    dot = runtime.visualize(view="split", return_dot=True)
    assert isinstance(dot, str)
    c = runtime.candidate
    cost = f"prefix: {c.prefix_node_count} nodes · suffix: {c.suffix_node_count} nodes · trainable suffix: yes"
    assert f"boundary_bytes: {c.boundary_bytes_formula} (" in dot
    assert cost in dot
    assert "MB at B=3" in dot  # the example's
    assert 'class="input passthrough"' in node(dot, "scale")
    assert 'class="prefix"' in node(dot, "stem")
    assert 'class="suffix"' in node(dot, "head")
    assert dot.count('class="prefix boundary"') == 1
    assert len(re.findall(r'-> n\d+ \[class="boundary"', dot)) == 2  # both uses of what crosses


def test_a_split_without_trainable_parameters_says_so(net: Net) -> None:
    frozen = Net().eval().requires_grad_(False)
    dot = export_split_dot(cleave.capture(frozen, inputs()), "50%")
    assert "trainable suffix: no" in dot


def test_a_plan_is_cut_where_the_caller_says(plan: cleave.Plan) -> None:
    by_name = export_split_dot(plan, "after:body.0")
    rows = export_split_candidates_table(plan)
    position = next(i for i, row in enumerate(rows) if f"<b>{row['boundary_after']}</b> in <b>body.0" in by_name)
    assert export_split_dot(plan, position) == by_name
    assert plan.visualize(view="split", candidate="after:body.0", return_dot=True) == by_name


def test_a_candidate_names_its_place(runtime: cleave.SplitRuntime, plan: cleave.Plan) -> None:
    assert export_split_dot(runtime.trace_plan, runtime.candidate) == runtime.visualize(return_dot=True)
    assert export_split_dot(runtime) == runtime.visualize(return_dot=True)
    other = cleave.capture(nn.Linear(4, 2), torch.randn(3, 4))
    with pytest.raises(cleave.ArgumentError, match="belongs to another plan"):
        export_split_dot(other, runtime.candidate)
    with pytest.raises(cleave.ArgumentError, match="a plan is not cut"):
        export_split_dot(plan)
    with pytest.raises(cleave.SplitError, match="nowhere"):
        export_split_dot(plan, "after:nowhere")
    with pytest.raises(cleave.ArgumentError, match="no frontier 999"):
        export_split_dot(plan, 999)
    with pytest.raises(TypeError, match="not float"):
        export_split_dot(plan, 0.5)  # type: ignore[arg-type]


def test_an_exact_cut_is_drawn_in_its_own_order(net: Net) -> None:
    spec = cleave.SplitSpec(exact=True, must_prefix=("stem",), must_suffix=("head",))
    runtime = cleave.prepare_split(net, example_inputs=inputs(), split=spec)
    dot = export_split_dot(runtime)
    assert f"boundary_bytes: {runtime.candidate.boundary_bytes_formula} (" in dot


def test_a_replay_runtime_is_drawn_as_its_split(net: Net) -> None:
    spec = cleave.SplitSpec(boundary="after:stem")
    replay = cleave.compat.prepare_split_replay(net, example_inputs=inputs(), split=spec, mode="generated_eager")
    assert replay.visualize(return_dot=True) == export_split_dot(replay) == replay.runtime.visualize(return_dot=True)


def test_a_model_from_a_file_is_drawn_where_it_was_cut(runtime: cleave.SplitRuntime, here: Path) -> None:
    runtime.save("net.clv")
    loaded = cleave.load("net.clv")
    assert loaded.visualize(return_dot=True) == runtime.visualize(return_dot=True).replace("at B=3", "at B=1")


def test_without_a_view_the_cut_is_shown_where_there_is_one(runtime: cleave.SplitRuntime, plan: cleave.Plan) -> None:
    assert runtime.visualize(return_dot=True) == runtime.visualize(view="split", return_dot=True)
    assert plan.visualize(return_dot=True) == plan.visualize(view="trace", return_dot=True) == export_trace_dot(plan)
    assert plan.visualize(candidate="50%", return_dot=True) == export_split_dot(plan, "50%")


def test_the_table_has_every_candidate(runtime: cleave.SplitRuntime) -> None:
    rows = export_split_candidates_table(runtime)
    assert [row["boundary_bytes"] for row in rows] == [c.boundary_bytes for c in runtime.candidates]
    assert [row["rejection_reason"] for row in rows] == [c.reason for c in runtime.candidates]
    mine = rows[runtime.candidate.position]
    assert mine["split_id"] == runtime.split_id
    assert mine["boundary_after"] == runtime.candidate.name
    assert mine["boundary_nodes"] == tuple(runtime.main_cut.labels)
    assert mine["passthrough_inputs"] == runtime.main_cut.passthrough != ()
    assert mine["prefix_node_count"] + mine["suffix_node_count"] == len(runtime.trace_plan.nodes)


def test_hostile_names_stay_text() -> None:
    class Odd(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.add_module('a"<b>&\\N\n', nn.Linear(4, 4))
            self.add_module("é", nn.ReLU())

        def forward(self, x: Tensor) -> Tensor:
            for module in self.children():
                x = module(x)
            return x

    Odd.__name__ = 'x"]; <script>'
    dot = export_trace_dot(cleave.capture(Odd(), torch.randn(3, 4)))
    assert "<b>a&quot;&lt;b&gt;&amp;&#92;N&#92;n</b>" in dot
    assert "<script>" not in dot
    assert "<b>é</b>" in dot


# ---- what is refused


def test_wrong_options_are_refused(plan: cleave.Plan, here: Path) -> None:
    with pytest.raises(cleave.ArgumentError, match="view is"):
        plan.visualize(view="both")  # type: ignore[arg-type]
    with pytest.raises(cleave.ArgumentError, match='"module" or "operation"'):
        plan.visualize(view_detail="modules", return_dot=True)  # type: ignore[arg-type]
    with pytest.raises(cleave.ArgumentError, match="TB, BT, LR or RL"):
        plan.visualize(direction="up", return_dot=True)
    for depth in (-1, 1.5, "2"):
        with pytest.raises(cleave.ArgumentError, match="max_module_depth"):
            plan.visualize(max_module_depth=depth, return_dot=True)  # type: ignore[arg-type]
    with pytest.raises(cleave.ArgumentError, match="fileformat is one of svg, pdf, png, dot"):
        plan.visualize(fileformat="exe")
    with pytest.raises(cleave.ArgumentError, match=r"ends in \.pdf"):
        plan.visualize(outpath="x.pdf")
    with pytest.raises(TypeError, match="not Linear"):
        export_trace_dot(nn.Linear(4, 2))  # type: ignore[arg-type]
    assert not list(here.iterdir())


def test_without_graphviz_dot_text_is_still_there(
    plan: cleave.Plan, here: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PATH", "")
    with pytest.raises(GraphvizError, match=r'apt-get install graphviz.*return_dot=True.*fileformat="dot"'):
        plan.visualize()
    assert not list(here.iterdir())
    picture = plan.visualize(fileformat="dot")
    assert (here / "net_trace.dot").read_text() == plan.visualize(return_dot=True)
    assert isinstance(picture, Picture)
    assert os.fspath(picture) == "net_trace.dot"


def test_what_graphviz_says_is_passed_on(plan: cleave.Plan, here: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    fake = here / "bin" / "dot"
    fake.parent.mkdir()
    fake.write_text("#!/bin/sh\necho no fonts >&2\nexit 3\n")
    fake.chmod(0o755)
    monkeypatch.setenv("PATH", f"{fake.parent}:/bin:/usr/bin")
    with pytest.raises(GraphvizError, match="did not draw the picture: no fonts"):
        plan.visualize()


# ---- nothing runs


class Watch(TorchDispatchMode):
    """Counts the operators of this thread."""

    count = 0

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        Watch.count += 1
        return func(*args, **(kwargs or {}))


@pytest.mark.integration
def test_nothing_is_traced_or_run_for_a_picture(net: Net, monkeypatch: pytest.MonkeyPatch) -> None:
    runtime = cleave.prepare_split(net, example_inputs=inputs(), split=cleave.SplitSpec(boundary="50%"))
    plan = cleave.capture(net, inputs())

    def never(*args: Any, **kwargs: Any) -> Any:
        raise AssertionError("the model was called, or a plan was made")

    monkeypatch.setattr(Net, "forward", never)
    monkeypatch.setattr(_native, "Stream", never)
    monkeypatch.setattr(_native, "Program", never)
    monkeypatch.setattr(_native, "build", never)
    variants = runtime.variants
    Watch.count = 0
    with Watch():
        torch.ones(1)
        assert Watch.count == 1  # it does count
        for view in ("trace", "split"):
            runtime.visualize(view=view, view_detail="operation", show_debug_markers=True, return_dot=True)
        plan.visualize(return_dot=True)
        export_split_candidates_table(runtime)
    assert Watch.count == 1
    assert runtime.variants == variants


# ---- files


@needs_dot
def test_a_picture_goes_to_a_sensible_place(runtime: cleave.SplitRuntime, here: Path) -> None:
    runtime.visualize()
    runtime.visualize(view="trace", fileformat="pdf")
    runtime.visualize(outpath="a/b.c/split_graph", fileformat="png")
    runtime.visualize(outpath=here / "named.svg")
    assert (here / "net_trace.pdf").read_bytes().startswith(b"%PDF")
    assert (here / "a/b.c/split_graph.png").read_bytes().startswith(b"\x89PNG")
    for name in ("net_split.svg", "named.svg"):
        assert ET.parse(here / name).getroot().tag.endswith("svg")


@needs_dot
def test_a_notebook_shows_the_picture_unless_it_is_only_saved(plan: cleave.Plan, here: Path) -> None:
    picture = render_trace_graph(plan, outpath="p")
    assert isinstance(picture, Picture)
    assert "<svg" in picture._repr_mimebundle_()["image/svg+xml"]
    image = render_split_graph(plan, "50%", outpath="p", fileformat="png")
    assert isinstance(image, Picture)
    assert image._repr_mimebundle_()["image/png"].startswith(b"\x89PNG")
    saved = render_trace_graph(plan, outpath="q", save_only=True)
    assert isinstance(saved, Picture)
    assert list(saved._repr_mimebundle_()) == ["text/plain"]
    assert "q.svg" in repr(saved)


def draws(dot: str) -> None:
    """Graphviz takes it without a word."""
    done = subprocess.run(["dot", "-Tsvg"], input=dot.encode(), capture_output=True, check=False, timeout=120)
    assert (done.returncode, done.stderr) == (0, b""), (done.stderr.decode(), dot)
    ET.fromstring(done.stdout)


@pytest.mark.integration
@needs_dot
@pytest.mark.parametrize("path", PLANS, ids=lambda p: p.stem)
def test_graphviz_takes_every_plan_of_the_golden_tests(path: Path) -> None:
    plan = _native.parse(path.read_text())
    for cut in (None, *range(0, max(plan.node_count() - 1, 0), 3)):
        for detail, depth in (("module", 2), ("operation", None)):
            draws(plan.dot(cut, detail, depth, "TB", True, True, True, None))


HOSTILE = (
    "</b>",
    '"]; } digraph {',
    "\\N \\l \\",
    "&amp; &#0; &",
    "\n\t\r\x0b",
    "\x01\x7f\x85",
    "\udcff\udcfe",  # bytes that are no UTF-8
    "é€😀",
    "\ufffe\uffff\u2028",
    "<!-- --> <![CDATA[",
    "{a|b} %% -->",
    "http://x/?a=1&b=2",
    " ",
)


def quoted(name: str) -> str:
    """As a string of the plan text."""
    return '"' + "".join(f"\\x{byte:02x}" for byte in name.encode("utf-8", "surrogateescape")) + '"'


@needs_dot
def test_graphviz_takes_hostile_names() -> None:
    lines = ["cleave-plan 1", f"model {quoted(HOSTILE[0])}", 'scope "" "M"']
    lines += [f"scope {quoted('m' + n)} {quoted(n)}" for n in HOSTILE]
    lines += [f"input %i{i} f32[4] name={quoted(n)}" for i, n in enumerate(HOSTILE)]
    lines += [f"param @{quoted('p' + n)} f32[4]" for n in HOSTILE]
    for i, n in enumerate(HOSTILE):
        place = f"in {quoted('m' + n)} at {quoted(n)}"
        lines.append(f"%r{i} = aten::add(%i{i}, @{quoted('p' + n)}) -> f32[4] {place}")
    plan = _native.parse("\n".join([*lines, "output %r0", ""]))
    for detail in ("module", "operation"):
        draws(plan.dot(3, detail, None, "LR", True, True, True, None))


@pytest.mark.integration
@needs_dot
def test_five_thousand_nodes_are_drawn() -> None:
    class Long(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.layers = nn.ModuleList(nn.Linear(2, 2) for _ in range(50))

        def forward(self, x: Tensor) -> Tensor:
            for layer in self.layers:
                y = x
                for _ in range(98):
                    y = y * 2
                x = layer(y) + x
            return x

    with torch.no_grad():
        plan = cleave.capture(Long(), torch.randn(1, 2))
    assert len(plan.nodes) == 5000
    draws(export_split_dot(plan, 2500))

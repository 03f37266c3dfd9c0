"""Reports from Python: the file and what it opens with. The page itself: tests/c/test_html.c, tests/browser."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

import cleave


class Net(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.body = nn.Sequential(nn.Linear(4, 8), nn.ReLU())
        self.head = nn.Linear(8, 2)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.head(self.body(x))


def data(path: Path) -> dict[str, Any]:
    """What the page shows."""
    text = path.read_text(encoding="utf-8")
    start = text.index(">", text.index('id="data"')) + 1
    return json.loads(text[start : text.index("</script", start)])


def test_a_plan_writes_its_report(tmp_path: Path) -> None:
    plan = cleave.capture(Net(), torch.randn(3, 4), dynamic_batch=(1, 8))
    path = plan.report(tmp_path / "net.html", boundary="after:body", sizes={"B": 5}, bandwidth=2e6, prefix_speed=1e9)
    page = data(path)
    assert path == tmp_path / "net.html"
    assert page["title"] == "Net"
    assert page["nodeName"][page["chosen"]] == "relu"
    assert page["bytes"][page["chosen"]] == 5 * 8 * 4
    assert (page["bandwidth"], page["prefixSpeed"], page["suffixSpeed"]) == (2e6, 1e9, 1e12)
    assert data(plan.report(str(tmp_path / "other.html"), title="<b>"))["chosen"] == -1
    assert "<title>&#60;b&#62;</title>" in (tmp_path / "other.html").read_text(encoding="utf-8")


def test_a_split_reports_its_own_cut_at_its_own_sizes(tmp_path: Path) -> None:
    spec = cleave.SplitSpec(boundary="after:body", dynamic_batch=(1, 8))
    objective = {"constraints": {"bandwidth_bytes_per_s": 3e6}, "batch_size": 7}
    runtime = cleave.prepare_split(Net(), example_inputs=torch.randn(3, 4), split=spec, objective=objective)
    page = data(runtime.report(tmp_path / "split.html"))
    assert page["chosen"] == runtime.candidate.position
    assert page["bytes"][page["chosen"]] == runtime.candidate.boundary_bytes == 7 * 8 * 4
    assert page["bandwidth"] == 3e6
    page = data(runtime.report(tmp_path / "split.html", sizes={"B": 2}, bandwidth=1e6))
    assert (page["bytes"][page["chosen"]], page["bandwidth"]) == (2 * 8 * 4, 1e6)


def test_what_does_not_fit_the_plan_is_refused(tmp_path: Path) -> None:
    plan = cleave.capture(Net(), torch.randn(3, 4), dynamic_batch=(1, 8))
    path = tmp_path / "no.html"
    with pytest.raises(cleave.CleaveError, match="B is 9, the plan is for 1 to 8"):
        plan.report(path, sizes={"B": 9})
    with pytest.raises(cleave.CleaveError, match="bandwidth_bytes_per_s is not a speed"):
        plan.report(path, bandwidth=-1.0)
    with pytest.raises(cleave.CleaveError, match="no module or node is called"):
        plan.report(path, boundary="after:tail")
    with pytest.raises(TypeError, match="sizes"):
        plan._main.plan.html(sizes=[1])
    assert not path.exists()


def test_a_traced_model_reports_its_segments_and_reasons(tmp_path: Path) -> None:
    cleave.register_backend(
        "report-test",
        supports=lambda node: node.op != "aten::relu" or "no <relu> here",
        compile=lambda segment: (Path(segment.folder) / "segment.clv").read_bytes(),
        run=lambda code, inputs: [run_bytes(code, inputs, tmp_path)],
    )
    traced = cleave.trace(
        Net().eval(),
        torch.randn(3, 4),
        backend="report-test",
        minimum_segment_size=1,
        cache=False,
        keep_slower=True,
    )
    traced.save(tmp_path / "traced.clv")
    with pytest.warns(UserWarning, match="not used"):
        closed = cleave.load(tmp_path / "traced.clv")
    open_ = cleave.load(tmp_path / "traced.clv", allow_compiled=True)
    assert open_.coverage == traced.coverage
    assert open_.coverage.compiled == 2
    assert str(open_.trace_report()).splitlines()[0] == str(traced.report()).splitlines()[0]

    for path in (traced.report().html(tmp_path / "a.html", title="Mine"), open_.report(tmp_path / "b.html")):
        page = data(Path(path))
        assert page["segments"] == [[1, None], [1, None], [0, "no <relu> here"]]
        assert page["segmentOf"] == [0, 2, 1]
    assert data(tmp_path / "a.html")["title"] == "Mine"
    page = data(Path(closed.report(tmp_path / "c.html")))
    assert [compiled for compiled, _ in page["segments"]] == [0, 0, 0]
    assert page["segments"][0][1] == closed.segments[0].reason


def run_bytes(code: bytes, inputs: list[torch.Tensor], folder: Path) -> torch.Tensor:
    (folder / "code.clv").write_bytes(code)
    (out,) = cleave.load(folder / "code.clv", unproven=True)(*inputs)
    return out


def test_a_file_that_was_not_traced_has_no_trace_report(tmp_path: Path) -> None:
    cleave.capture(Net().eval(), torch.randn(3, 4)).save(tmp_path / "net.clv")
    model = cleave.load(tmp_path / "net.clv")
    assert model.coverage == cleave.tracing.Coverage(3, 0, 0.0, 0.0)
    assert data(Path(model.report(tmp_path / "net.html")))["segments"] == []
    with pytest.raises(cleave.InputError, match="was not traced"):
        model.trace_report()

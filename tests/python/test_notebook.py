"""How plans, splits and tables of candidates look: at a prompt, in a notebook, and in the middle of things."""

from __future__ import annotations

import copy
import json
import pickle
import re
import threading
from html.parser import HTMLParser
from typing import Any

import pytest
import torch
from torch import nn

import cleave
from cleave import _native, _show
from cleave.candidates import FIELDS, MOST_ROWS


def mlp(depth: int = 3) -> nn.Sequential:
    layers = [m for _ in range(depth) for m in (nn.Linear(8, 8), nn.ReLU())]
    return nn.Sequential(*layers, nn.Linear(8, 2)).eval()


def split(model: nn.Module, boundary: str = "50%", **kwargs: Any) -> cleave.SplitRuntime:
    return cleave.prepare_split(
        model, example_inputs=torch.randn(3, 8), split=cleave.SplitSpec(boundary=boundary), **kwargs
    )


class Page(HTMLParser):
    """Reads HTML strictly: every tag that opens closes, in order."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.open: list[str] = []
        self.tags: list[str] = []
        self.text: list[str] = []
        self.rows: list[list[str]] = []
        self.feed(text)
        self.close()
        assert self.open == [], f"not closed: {self.open}"

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.open.append(tag)
        self.tags.append(tag)
        if tag == "tr":
            self.rows.append([])
        if tag in ("td", "th"):
            self.rows[-1].append("")

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag

    def handle_data(self, data: str) -> None:
        self.text.append(data)
        if self.open and self.open[-1] in ("td", "th"):
            self.rows[-1][-1] += data


# ---- what is said


def test_a_plan_says_model_nodes_parameters_inputs_and_mode() -> None:
    text = repr(cleave.capture(mlp(), torch.randn(3, 8)))
    assert text.splitlines()[0] == "<cleave.Plan of Sequential: 7 nodes>"
    assert "234, 936 bytes, 8 tensors, all trainable" in text
    assert "input f32[3,8]" in text
    assert "f32[3,2]" in text
    assert "eval, equal to eager with and without grad" in text
    assert len(text.splitlines()) <= 6


def test_a_plan_says_which_sizes_it_is_proven_for() -> None:
    plan = cleave.capture(mlp(), torch.randn(3, 8), dynamic_batch=(1, 64))
    assert "f32[B,8]" in repr(plan)
    before = repr(plan)
    assert "B 1..64, proven at" in before
    plan(torch.randn(40, 8))
    assert "40" not in before
    assert "40" in repr(plan)


def test_a_split_says_where_it_is_cut_what_crosses_and_what_runs() -> None:
    runtime = split(mlp(), "after:3")
    text = repr(runtime)
    assert text.splitlines()[0] == "<cleave.SplitRuntime of Sequential, cut after relu_1 in 3>"
    assert "1 tensor, 96 bytes (32*B bytes)" in text
    assert "4 nodes" in text
    assert "144 parameters" in text
    assert "input f32[B,8]" in text
    assert "B 1..64, proven at" in text
    assert "generated_eager on tape, validation fast" in text
    assert len(text.splitlines()) <= 7


@pytest.mark.integration
def test_a_split_says_why_something_else_runs_than_was_asked_for() -> None:
    runtime = split(mlp(), mode="compiled", compile_options={"backend": "no_such_backend"})
    runtime.run_prefix(torch.randn(3, 8))
    assert "compiled on " in repr(runtime)
    assert "no_such_backend" in repr(runtime)


def test_a_replay_runtime_says_its_own_validation() -> None:
    spec = cleave.SplitSpec(boundary="50%")
    replay = cleave.compat.prepare_split_replay(
        mlp(), example_inputs=torch.randn(3, 8), split=spec, mode="generated_eager", validation="strict"
    )
    assert repr(replay).startswith("<cleave.SplitReplayRuntime of Sequential")
    assert "validation strict" in repr(replay)
    boundary = replay.run_prefix(torch.randn(3, 8))
    assert "1 tensor, 96 bytes, B=3" in repr(boundary)
    assert "tensor(" not in repr(boundary)


def test_a_boundary_names_its_tensors_without_their_data() -> None:
    boundary = split(mlp()).run_prefix(torch.randn(3, 8))
    text = repr(boundary)
    assert "1 tensor, 96 bytes, B=3" in text
    assert "float32[3,8] on cpu" in text
    assert "tensor(" not in text


def test_a_boundary_of_many_tensors_names_a_few() -> None:
    tensors = {f"%{i}": torch.zeros(2) for i in range(50)}
    text = repr(cleave.BoundaryPayload("s", "g", None, tensors))
    assert len(text.splitlines()) <= 6
    assert "46 more" in text


def test_a_candidate_says_what_crosses_and_what_each_side_costs() -> None:
    c = split(mlp(), "after:3").candidate
    lines = repr(c).splitlines()
    assert lines[0] == "<cleave.SplitCandidate 3: after relu_1 in 3>"
    assert [line.split()[0] for line in lines[1:]] == ["boundary", "prefix", "suffix", "taken"]


class Unsafe(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.lin = nn.Linear(8, 8)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y = self.lin(x)
        z = y.view(-1)
        z.add_(1)
        return self.lin(y.to_sparse().to_dense())


def test_a_frontier_that_cannot_be_cut_is_marked_with_its_reason() -> None:
    table = split(Unsafe(), "auto").candidates
    bad = next(c for c in table if not c.safe)
    assert bad.reason is not None
    assert bad.reason[:20] in repr(bad)
    line = next(line for line in repr(table).splitlines() if f" {bad.name} " in line)
    assert line.startswith("!")
    assert "! cannot be cut" in repr(table)


def test_a_report_prints_as_its_table() -> None:
    x = torch.randn(3, 8)
    report = cleave.validate_dynamic_batches(split(mlp()), x, [2, 500])
    assert repr(report) == str(report)
    page = Page(report._repr_html_())
    assert page.rows[0] == ["sizes", "result", "max abs diff", "plan, or reason"]
    assert page.rows[1][:2] == ["B=2", "equal"]
    assert page.rows[2][1] == "FAILED"


# ---- the table


def test_the_table_is_still_a_list() -> None:
    runtime = split(mlp())
    table = runtime.candidates
    assert isinstance(table, list)
    assert table == list(table)
    assert table[0].position == 0
    assert table[-1] is list(table)[-1]
    assert runtime.candidate in table
    assert sorted(table, key=lambda c: -c.position)[0].position == len(table) - 1
    for again in (copy.copy(table), pickle.loads(pickle.dumps(table))):
        assert again == table
        assert again.chosen == runtime.candidate


def test_a_slice_of_the_table_is_a_table() -> None:
    table = split(mlp()).candidates
    assert isinstance(table[1:3], cleave.candidates.CandidateTable)
    assert [c.position for c in table[1:3]] == [1, 2]
    assert [c.position for c in table[::-1]] == list(range(len(table)))[::-1]


def test_sorting_by_a_field_leaves_the_runtime_as_it_was() -> None:
    table = split(mlp()).candidates
    down = table.sort(by="prefix_share", reverse=True)
    assert [c.position for c in table] == list(range(len(table)))
    assert [c.prefix_share for c in down] == sorted((c.prefix_share for c in table), reverse=True)
    assert table.sort(by=lambda c: -c.position)[0].position == len(table) - 1


def test_sort_with_a_key_is_that_of_a_list() -> None:
    table = split(mlp()).candidates[:]
    assert table.sort(key=lambda c: -c.position) is None
    assert table[0].position == len(table) - 1
    with pytest.raises(cleave.ArgumentError, match="not both"):
        table.sort("position", key=lambda c: 0)  # type: ignore[call-overload]


def test_filters_take_values_ranges_patterns_and_functions() -> None:
    table = split(mlp()).candidates
    assert all(0.2 <= c.prefix_share <= 0.8 for c in table.filter(prefix_share=(0.2, 0.8)))
    assert {c.module_path for c in table.filter(module_path="[24]")} == {"2", "4"}
    assert table.filter(boundary_bytes=(None, 0)) == []
    assert table.filter(safe=True, trainable_suffix=True) == table
    assert [c.position for c in table.filter(lambda c: c.position % 2 == 0, position=(1, None))] == [2, 4]
    assert table.filter(position=3)[0].position == 3


def test_a_field_that_does_not_exist_is_refused_by_name() -> None:
    table = split(mlp()).candidates
    for wrong in (lambda: table.filter(bytes=3), lambda: table.sort(by="bytes")):
        with pytest.raises(cleave.ArgumentError, match="no field 'bytes'; it has position, name"):
            wrong()


def test_rows_as_dicts_go_through_json() -> None:
    rows = split(mlp()).candidates.to_dicts()
    assert set(rows[0]) == set(FIELDS)
    assert json.loads(json.dumps(rows))[0]["name"] == "linear"


def test_a_long_table_is_shortened_around_the_frontier_that_is_taken() -> None:
    runtime = split(mlp(60))
    lines = repr(runtime.candidates).splitlines()
    assert len(runtime.candidates) == 120
    assert len(lines) <= MOST_ROWS + 5
    assert sum(line.startswith("*") for line in lines) == 1
    assert sum(" more" in line for line in lines) == 2
    counted = sum(int(line.split()[1]) for line in lines if " more" in line)
    shown = sum(" relu" in line or " linear" in line for line in lines)
    assert counted + shown == 120
    assert lines[-1] == "120 frontiers, 120 safe; * is taken"
    assert len(Page(runtime.candidates._repr_html_()).rows) == len(lines) - 1


def test_columns_are_aligned() -> None:
    lines = repr(split(mlp(12)).candidates).splitlines()
    head, rows = lines[0], lines[1:-1]
    for title in ("after", "bytes", "work", "suffix memory"):  # flush right
        end = head.index(title) + len(title)
        assert all(row[end - 1] != " " and row[end : end + 1] in ("", " ") for row in rows if "more" not in row)
    for title in ("node", "module"):  # flush left
        at = head.index(title)
        assert all(row[at - 1] == " " and row[at] != " " for row in rows if "more" not in row)


def test_an_empty_table_says_so() -> None:
    empty = cleave.candidates.CandidateTable()
    assert repr(empty) == "0 frontiers, 0 safe"
    Page(empty._repr_html_())


def test_units_are_those_of_the_inspect_page() -> None:
    plan = cleave.capture(nn.Linear(100, 1000), torch.randn(1, 100))
    assert "404.0 kB" in repr(plan)
    assert "404.0 kB" in plan.inspect()
    assert (_native.text_bytes(1 << 80), _native.text_count(-5)) == ("9.2 EB", "-5")
    assert (_native.text_bytes(999_960), _native.text_count(999_949)) == ("1.0 MB", "999.9K")


def test_wide_characters_and_wrong_rows_are_handled_by_the_aligned_columns() -> None:
    assert _native.text_columns((("é…", "1"), ("abc", "22")), (False, True)) == "é…    1\nabc  22\n"
    with pytest.raises(ValueError, match="2 texts"):
        _native.text_columns((("a",),), (False, True))
    with pytest.raises(TypeError):
        _native.text_columns(((1, 2),), (False, True))  # type: ignore[arg-type]
    assert _native.text_columns((), ()) == ""


# ---- HTML


def every_object() -> list[Any]:
    x = torch.randn(3, 8)
    runtime = split(mlp())
    spec = cleave.SplitSpec(boundary="50%")
    replay = cleave.compat.prepare_split_replay(mlp(), example_inputs=x, split=spec, mode="generated_eager")
    return [
        cleave.capture(mlp(), x),
        runtime,
        runtime.candidates,
        runtime.candidate,
        runtime.run_prefix(x),
        replay,
        cleave.validate_dynamic_batches(runtime, x, [2]),
    ]


def test_html_is_well_formed_small_and_takes_no_colour_for_its_text() -> None:
    for obj in every_object():
        text = obj._repr_html_()
        page = Page(text)
        assert page.rows
        assert set(page.tags) <= {"div", "code", "table", "thead", "tbody", "tr", "th", "td"}
        assert len(text) < 30_000
        assert set(re.findall(r"[;\"]color:(\w+)", text)) <= {"inherit"}


EVIL = '<b onclick="x()">&amp;\x1b[31m'


def test_names_are_escaped_and_steer_no_terminal() -> None:
    body = nn.Sequential()
    body.add_module(EVIL, nn.Linear(8, 8))
    body.add_module("plain", nn.Linear(8, 8))
    wrapper = type("<script>alert(1)</script>", (nn.Sequential,), {})(body).eval()
    runtime = split(wrapper, "after:0." + EVIL)
    for obj in (runtime.trace_plan, runtime, runtime.candidates, runtime.candidate):
        page = Page(obj._repr_html_())
        assert "script" not in page.tags
        assert "b" not in page.tags
        assert "\x1b" not in obj._repr_html_() + repr(obj)
    assert "<script>alert(1)</script>" in "".join(Page(runtime._repr_html_()).text)
    assert "onclick" in "".join(Page(runtime.candidates._repr_html_()).text)


def test_labels_of_a_boundary_are_escaped() -> None:
    payload = cleave.BoundaryPayload("<i>", "g", None, {"<u>\ud800\n": torch.zeros(1)})
    page = Page(payload._repr_html_())
    assert "u" not in page.tags
    assert "i" not in page.tags
    repr(payload).encode()


# ---- in the middle of things


class Counted(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.net, self.calls = mlp(), [0]

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        CALLS.append(1)
        out: torch.Tensor = self.net(x)
        return out


CALLS: list[int] = []


def test_reprs_never_run_the_model() -> None:
    runtime = split(Counted().eval())
    plan = runtime.trace_plan
    CALLS.clear()
    variants = runtime.variants
    for obj in (runtime, plan, runtime.candidates, runtime.candidate):
        repr(obj)
        obj._repr_html_()
    assert CALLS == []
    assert runtime.variants == variants


KINDS = (
    cleave.Plan,
    cleave.SplitRuntime,
    cleave.compat.SplitReplayRuntime,
    cleave.spec.SplitCandidate,
    cleave.BoundaryPayload,
    cleave.candidates.CandidateTable,
    cleave.validation.DynamicBatchReport,
)


@pytest.mark.parametrize("kind", KINDS)
def test_an_object_whose_init_has_not_run_says_that_it_is_not_ready(kind: type) -> None:
    obj: Any = object.__new__(kind) if kind is not cleave.candidates.CandidateTable else list.__new__(kind)
    assert "not ready" in repr(obj) or kind is cleave.candidates.CandidateTable
    Page(obj._repr_html_())


def test_a_runtime_with_one_half_still_shows_itself() -> None:
    runtime = split(mlp())
    runtime.keep_only("suffix")
    assert "holds only the suffix" in repr(runtime)
    assert "B 1..64" in repr(runtime)
    Page(runtime._repr_html_())
    assert "234" in repr(runtime.trace_plan)


class Waits(nn.Module):
    """Stops in its forward, on request."""

    def __init__(self) -> None:
        super().__init__()
        self.net = mlp()

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        if GATE:
            GATE[0].set()
            assert GATE[1].wait(30)
        out: torch.Tensor = self.net(x)
        return out


GATE: list[threading.Event] = []


def test_a_repr_does_not_wait_for_a_capture_on_another_thread() -> None:
    runtime = split(Waits().eval())
    expected = repr(runtime)
    GATE[:] = threading.Event(), threading.Event()
    worker = threading.Thread(target=lambda: runtime.run_prefix(torch.randn(50, 8)))
    inside, go = GATE
    worker.start()
    try:
        assert inside.wait(30)
        shown: list[str] = []
        asker = threading.Thread(target=lambda: shown.append(repr(runtime) + runtime._repr_html_()))
        asker.start()
        asker.join(20)
        assert not asker.is_alive(), "repr waits for the capture"
        assert shown[0].startswith(expected)
    finally:
        GATE.clear()
        go.set()
        worker.join(30)
    assert "50" in repr(runtime)


def test_long_texts_are_shortened_in_the_middle() -> None:
    text = _show.clip("a" * 500 + "b" * 500, 50)
    assert len(text) == 50
    assert text.startswith("aaa")
    assert text.endswith("bbb")

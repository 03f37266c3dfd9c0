"""The benchmark suite: what it makes of results, and one row of it. No test looks at a time."""

from __future__ import annotations

import copy
import json
import os
import re
import subprocess
import sys
import xml.etree.ElementTree as ET
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).parent.parent.parent
BENCH = ROOT / "bench"
sys.path.append(str(BENCH))  # last: bench/trace.py is no stand-in for Python's own

import report  # noqa: E402
import suite  # noqa: E402
from kit import bars, cases, link, names, results, serving, tree, ways  # noqa: E402
from kit import row as row_of  # noqa: E402
from kit.child import Child, Failed, in_child  # noqa: E402
from real_models import BUILDERS  # noqa: E402

RESNET, BERT = "torchvision-resnet50", "transformers-bert"
HEAD = {
    "format": 1,
    "date": "2026-01-02",
    "machine": {"cpu": "Some <CPU> & Co", "cores": 2, "memory_gb": 8.0, "system": "Linux"},
    "versions": {"python": "3.11.7", "torch": "2.13.0"},
}


def way(*ms: float, **facts: Any) -> dict[str, Any]:
    usual = {"status": "ok", "prepare_s": 1.0, "peak_mb": 10.0, "error": 0.0, "equal": True, "note": ""}
    return {**usual, "ms": list(ms), **facts}


def row(model: str, batch: int, kind: str = "whole", device: str = "cpu", **by_way: dict[str, Any]) -> dict[str, Any]:
    named = {name.replace("_", "-"): facts for name, facts in by_way.items()}
    return {"model": model, "batch": batch, "kind": kind, "device": device, "inputs": "4x3x8x8", "ways": named}


def made_up() -> dict[str, Any]:
    absent = {"status": "left out", "reason": "onnxruntime is not installed"}
    wrong = way(1.0, 1.0, 1.0, status="wrong", reason="output 0 is off by 2.0e-01 of its largest number")
    first = row(
        RESNET,
        4,
        eager=way(10.0, 11.0, 12.0),
        tape=way(10.0, 11.0, 12.0),
        fast=way(6.0, 6.0, 6.0, equal=False, error=2e-6),
        compile=way(8.0, 9.0, 8.0, prepare_s=30.0),
        freezing=way(5.0, 5.0, 5.0),
        openvino=way(5.5, 5.5, 5.5),
        torchscript=wrong,
        onnxruntime=absent,
    )
    second = row(BERT, 1, eager=way(5.0, 5.0), tape=way(6.0, 6.0, peak_mb=30.0))
    broken = {**row("rfdetr-nano", 1), "error": "ModuleNotFoundError: no | rfdetr"}
    return {**HEAD, "rows": [first, second, broken]}


@pytest.fixture
def file(tmp_path: Path) -> Path:
    path = tmp_path / "made-up.json"
    path.write_text(json.dumps(made_up()))
    return path


def program(name: str, *args: Any, **env: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, str(BENCH / f"{name}.py"), *map(str, args)]
    return subprocess.run(command, capture_output=True, text=True, env={**os.environ, **env}, check=False, timeout=300)


def state_of(found: list[bars.Bar], start: str) -> str:
    return next(bar.state for bar in found if bar.text.startswith(start))


# ---- names


def test_the_names_are_those_of_the_models_and_of_the_ways() -> None:
    assert list(names.TWELVE) == list(BUILDERS)
    assert list(ways.WAYS) == list(names.TITLES)
    assert {kind for one in ways.WAYS.values() for kind in one.by_kind} == set(names.KINDS)
    assert set(cases.OWN) == set(names.OWN)


def test_a_kind_gets_the_ways_that_know_it_and_always_eager() -> None:
    assert ways.ways_for("whole", "cpu", ["tape", "copy", "reduce-overhead"]) == ["eager", "tape"]
    assert "reduce-overhead" in ways.ways_for("whole", "cuda", list(names.TITLES))
    assert "openvino" not in ways.ways_for("whole", "cuda", list(names.TITLES))
    assert ways.ways_for("prepare", "cpu", list(names.TITLES)) == ["eager", "tape", "ariadne"]


# ---- measuring


def test_a_child_gives_what_it_made_or_the_reason_why_not() -> None:
    def fail() -> None:
        raise ValueError("what is wrong\nand more")

    assert in_child(lambda: {"a": [1, 2.5]}, 60) == {"a": [1, 2.5]}
    with pytest.raises(Failed, match=r"^ValueError: what is wrong$"):
        in_child(fail, 60)
    with pytest.raises(Failed, match="SIGTERM"):
        in_child(lambda: os.kill(os.getpid(), 15), 60)
    with pytest.raises(Failed, match="not done after 0 s"):
        in_child(lambda: __import__("time").sleep(60), 0.2)


def test_a_child_keeps_what_it_made_between_questions() -> None:
    seen: list[int] = []

    def answer(n: int) -> int:
        seen.append(n)
        return 1 // n + len(seen)

    with Child(answer) as child, Child(answer) as other:
        assert (child.ask(1, 60), other.ask(1, 60), child.ask(1, 60)) == (2, 2, 3)
        with pytest.raises(Failed, match="ZeroDivisionError"):
            child.ask(0, 60)
        assert child.ask(5, 60) == 4  # an error of its own ends nothing
    assert seen == []
    with pytest.raises(Failed, match="has ended"):
        child.ask(1, 60)


def test_a_child_that_dies_says_so_once_and_stays_dead() -> None:
    with Child(lambda _: os._exit(3)) as child:
        with pytest.raises(Failed, match="ended with status 3 and without an answer"):
            child.ask(None, 60)
        with pytest.raises(Failed, match="has ended"):
            child.ask(None, 60)


def test_numbers_that_differ_are_told_from_rounding() -> None:
    import torch

    x = torch.tensor([1.0, 100.0])
    same = tree.Distance([x], [x.clone()], "cpu")
    near = tree.Distance([x + 1e-3], [x], "cpu")
    far = tree.Distance([x + 1], [x], "cpu")
    assert (same.equal, same.error, same.wrong) == (True, 0.0, None)
    assert (near.equal, near.wrong) == (False, None)
    assert near.error == pytest.approx(1e-5, rel=0.1)
    assert far.wrong is not None
    assert tree.Distance([x], [x, x], "cpu").wrong == "1 tensors instead of 2"
    assert "shape" in str(tree.Distance([x[:1]], [x], "cpu").wrong)
    assert "finite" in str(tree.Distance([x * float("nan")], [x], "cpu").wrong)
    infinite = torch.tensor([1.0, float("-inf")])
    assert tree.Distance([infinite.clone()], [infinite], "cpu").equal


# ---- results, bars


def test_ratios_are_of_single_rounds_and_wrong_numbers_have_none(file: Path) -> None:
    found = results.read([file])
    first = found.rows[0]
    assert first.ratio("eager", "compile") == 10 / 8
    assert first.ratio("eager", "torchscript") is None
    assert first.status("onnxruntime") == "left out"
    assert first.fastest() == "freezing"


def test_bars_are_met_missed_or_not_measured(file: Path) -> None:
    found = bars.every_bar(results.read([file]))
    assert state_of(found, "tape (") == "missed"  # BERT is slower on the tape
    assert [bar.misses for bar in found if bar.text.startswith("tape (")] == [[f"{BERT} b1: 1.200x (6 / 5 ms)"]]
    assert state_of(found, '"fast" within 1.05x') == "missed"
    assert state_of(found, '"fast" within 1.2x of OpenVINO') == "met"
    assert state_of(found, '"fast" within 1.3x of OpenVINO') == "not measured"
    assert state_of(found, "preparation of") == "not measured"  # what is there meets it: one model of twelve
    assert next(bar.numbers for bar in found if bar.text.startswith("preparation of")).startswith(
        f"{RESNET} b4 1.00 s beside 30.0 s, 30.0x; not measured: torchvision-mobilenet_v3_large b4, "
    )
    assert state_of(found, "peak memory") == "missed"
    assert state_of(found, "GPU:") == "not measured"
    assert state_of(found, '"fast" at least as fast') == "not measured"  # one model of twelve


def test_ten_of_twelve_are_enough_and_three_misses_are_too_many(tmp_path: Path) -> None:
    def judged(slower: int, measured: int) -> str:
        rows = []
        for i, model in enumerate(names.TWELVE[:measured]):
            ms = 2.0 if i < slower else 0.5
            rows.append(row(model, 4, eager=way(1.0), fast=way(ms), compile=way(1.0)))
        path = tmp_path / "rows.json"
        path.write_text(json.dumps({**HEAD, "rows": rows}))
        return state_of(bars.fast_beside_compile(results.read([path])), '"fast"')

    assert judged(2, 12) == "met"
    assert judged(3, 12) == "missed"
    assert judged(3, 4) == "missed"
    assert judged(2, 11) == "not measured"


def every_row() -> list[dict[str, Any]]:
    """All rows that bars are about, in which everything is as it should be."""
    rows = []
    for model in names.TWELVE:
        facts = {name: way(2.0, 2.0) for name in ("eager", "tape", "freezing", "openvino")}
        facts |= {"fast": way(1.0, 1.0), "compile": way(1.5, 1.5, prepare_s=30.0)}
        rows.append(row(model, 4, **facts))
        rows.append(row(model, 4, "split", tape=way(2.1), tape_whole=way(2.0), copy=way(0.1), eager=way(2.0)))
        rows.append(row(model, 8, "prepare", eager=way(4.0), tape=way(900.0)))
    rows += [row("mlp", 1, kind, eager=way(1.0), tape=way(0.4), ariadne=way(1.0)) for kind in ("whole", "split")]
    graphs = [(model, batch) for model in bars.NAMED[:2] for batch in (1, 4, 32)]
    graphs += [(model, batch) for model in bars.LANGUAGE for batch in (1, 8)]
    return rows + [
        row(model, batch, "whole", "cuda", eager=way(3.0), graph=way(1.0), reduce_overhead=way(1.0))
        for model, batch in graphs
    ]


def judged(rows: list[dict[str, Any]], folder: Path) -> list[bars.Bar]:
    path = folder / "rows.json"
    path.write_text(json.dumps({**HEAD, "rows": rows}))
    return bars.every_bar(results.read([path]))


def test_every_bar_is_met_where_every_row_is_as_it_should_be(tmp_path: Path) -> None:
    found = judged(every_row(), tmp_path)
    assert [(bar.text, bar.state) for bar in found if bar.state != "met"] == []
    assert len(found) >= 13


def test_every_bar_is_open_where_one_of_its_rows_is_missing(tmp_path: Path) -> None:
    models = ("torchvision-resnet50", "torchvision-mobilenet_v3_large", "transformers-bert", "mlp")
    rows = [one for one in every_row() if one["model"] not in models]
    states = {bar.text: bar.state for bar in judged(rows, tmp_path)}
    assert set(states.values()) == {"not measured"}
    assert set({bar.text: bar.state for bar in judged([], tmp_path)}.values()) == {"not measured"}


def test_a_peer_that_fails_keeps_no_bar_open(tmp_path: Path) -> None:
    rows = every_row()
    rows[0]["ways"]["compile"] = {"status": "failed", "reason": "ended by SIGSEGV"}
    found = judged(rows, tmp_path)
    told = next(bar for bar in found if bar.text.startswith("preparation of"))
    assert (told.state, told.numbers.split("; ")[-1]) == ("met", f"nothing to compare with: {RESNET} b4")
    rows[0]["ways"]["compile"] = {"status": "left out", "reason": "no time left of the row's 150 s"}
    assert state_of(judged(rows, tmp_path), "preparation of") == "not measured"


def test_a_way_of_ours_that_fails_misses_its_bar(tmp_path: Path) -> None:
    data = made_up()
    data["rows"][0]["ways"]["tape"] = {"status": "failed", "reason": "ended by SIGSEGV"}
    path = tmp_path / "rows.json"
    path.write_text(json.dumps(data))
    misses = bars.tape_beside_eager(results.read([path]))[0].misses
    assert f"{RESNET} b4: failed: ended by SIGSEGV" in misses


def test_the_split_may_cost_its_copy(tmp_path: Path) -> None:
    path = tmp_path / "rows.json"
    facts = {"tape": way(11.0), "tape_whole": way(10.0), "copy": way(0.9), "eager": way(10.0)}
    path.write_text(json.dumps({**HEAD, "rows": [row(RESNET, 4, "split", **facts)]}))
    (bar,) = bars.split_overhead(results.read([path]))
    assert bar.misses == []
    assert bar.numbers.startswith(f"{RESNET} b4 1.010x without the copy; not measured: ")


# ---- the report


def test_the_report_has_tables_a_chart_and_the_bars(file: Path, tmp_path: Path) -> None:
    growth = tmp_path / "growth.json"
    lines = [{"nodes": 100, "capture_s": 0.5, "equal": True}, {"failed": "nodes 1000: not done after 1 s"}]
    growth.write_text(json.dumps({**HEAD, "growth": {"nodes": lines}}))
    page = tmp_path / "docs" / "page.md"
    done = program("report", file, growth, "--page", page)
    assert done.returncode == 0, done.stderr
    assert "Some <CPU> & Co" in done.stdout
    assert "not done after 1 s" in done.stdout
    text = page.read_text()
    assert f"| {RESNET} | 4 | 11.0 | 1.00 | 1.83 | 1.25 |" in text
    assert "**5.00 [5.00 5.00]**" in text  # the fastest with the right numbers
    assert "wrong numbers (1.00 [1.00 1.00])" in text
    assert "| missed | 1 of 2; worst: transformers-bert b1 1.200x (6 / 5 ms); not measured: " in text
    assert "ONNX Runtime, left out: onnxruntime is not installed" in text
    assert "ModuleNotFoundError" in text
    for line in text.splitlines():
        if line.startswith("|"):
            assert line.endswith("|")
    svg = page.parent / "images" / "page-cpu.svg"
    assert f"images/{svg.name}" in text
    drawn = ET.parse(svg).getroot()
    assert drawn.tag == "{http://www.w3.org/2000/svg}svg"
    words = "".join(drawn.itertext())
    assert "Cleave fast" in words
    assert "prefers-color-scheme: dark" in words


def test_the_readme_gets_a_chart_and_sentences_between_the_markers(file: Path, tmp_path: Path) -> None:
    readme = tmp_path / "README.md"
    markers = "<!-- benchmarks: begin -->", "<!-- benchmarks: end -->"
    readme.write_text(f"# Before\n\n{markers[0]}\nold\n{markers[1]}\n\nAfter\n")
    for _ in range(2):  # again changes nothing
        assert program("report", file, "--readme", readme).returncode == 0
        text = readme.read_text()
        assert text.startswith(f"# Before\n\n{markers[0]}\n")
        assert text.endswith(f"\n{markers[1]}\n\nAfter\n")
        assert "old" not in text
        assert "bit for bit and is 0.83 to 1.00 times as fast as eager on 2 models" in " ".join(text.split())
        assert re.search(r"Of \d+ targets set beforehand \d+ are met and [1-9]\d* missed", " ".join(text.split()))
        assert "![How many times faster than eager](docs/images/overview.svg)" in text
    words = "".join(ET.parse(tmp_path / "docs" / "images" / "overview.svg").getroot().itertext())
    assert "0.91x" in words
    assert "Geometric mean over 2 models on the CPU" in words
    readme.write_text("no markers")
    done = program("report", file, "--readme", readme)
    assert done.returncode != 0
    assert markers[0] in done.stderr
    assert readme.read_text() == "no markers"


def test_rows_of_a_run_that_ended_early_are_not_measured(file: Path, tmp_path: Path) -> None:
    page, readme = tmp_path / "page.md", tmp_path / "README.md"
    readme.write_text("<!-- benchmarks: begin -->\n<!-- benchmarks: end -->\n")
    assert program("report", file, "--page", page, "--readme", readme).returncode == 0
    assert "| torchvision-vit_b_16 | 4 | not measured |" in page.read_text()
    assert re.search(r"Not measured yet: .*torchvision-vit_b_16", " ".join(readme.read_text().split()))
    assert "| rfdetr-nano | 1 | failed |" in page.read_text()
    assert f"| {RESNET} | 4 | not measured |" not in page.read_text()


def test_several_files_are_one_report_and_the_later_one_counts(file: Path, tmp_path: Path) -> None:
    later, gpu = tmp_path / "z.json", tmp_path / "gpu.json"
    failed = {**row(BERT, 1), "error": "no memory"}
    later.write_text(json.dumps({**HEAD, "rows": [row(RESNET, 4, eager=way(7.0), tape=way(7.0)), failed]}))
    rows = [row(RESNET, 4, "whole", "cuda", eager=way(2.0), graph=way(1.0))]
    gpu.write_text(json.dumps({**HEAD, "machine": {**HEAD["machine"], "gpu": "Some GPU"}, "rows": rows}))
    found = results.read([file, later, gpu])
    assert len(found.rows) == 4
    assert [r.ms("eager") for r in found.of("whole", "cpu")][:2] == [(7.0, 7.0, 7.0), (5.0, 5.0, 5.0)]
    assert found.rows[0].status("fast") == "absent"  # a row is of one run
    page = tmp_path / "page.md"
    assert program("report", file, later, gpu, "--page", page).returncode == 0
    text = page.read_text()
    assert "## The whole model, CPU" in text
    assert "## The whole model, GPU" in text
    assert "Some GPU" in text
    assert {p.name for p in (tmp_path / "images").iterdir()} == {"page-cpu.svg", "page-cuda.svg"}


def test_notes_beside_the_results_stand_below_the_bars(file: Path, tmp_path: Path) -> None:
    page, notes = tmp_path / "docs" / "page.md", "### BERT on the tape\n\nWhat was tried: *this* and that.\n"
    (tmp_path / "notes.md").write_text(notes)
    assert program("report", file, "--page", page).returncode == 0
    text = page.read_text()
    assert text.index("## Bars") < text.index("| bar |") < text.index(notes.strip()) < text.index("## The whole model")
    other = tmp_path / "other.md"
    other.write_text("other words")
    assert program("report", file, "--page", page, "--notes", other).returncode == 0
    assert "other words" in page.read_text()
    assert notes.strip() not in page.read_text()


def test_files_that_are_no_results_are_refused(tmp_path: Path) -> None:
    path = tmp_path / "other.json"
    for text, told in (("[]", "is no file of results"), ("{", "cannot be read"), ('{"format": 9}', "format 1")):
        path.write_text(text)
        done = program("report", path)
        assert done.returncode != 0
        assert told in done.stderr


# ---- the driver


def test_rounds_go_on_without_a_way_that_is_lost_in_them() -> None:
    def steady(times: int) -> float:
        return 0.5

    def dying(times: int, left: list[int] = [3]) -> float:
        left[0] -= 1
        return 0.25 if left[0] else os._exit(5)

    def failing(times: int) -> float:
        raise ValueError("out of luck")

    spec = row_of.Spec("mlp", 1, "whole", "cpu", 1, False, 16, [], 8, 10.0)
    with Child(steady) as a, Child(dying) as b, Child(failing) as c:
        found = row_of._race({"eager": a, "fast": b, "tape": c}, spec, 30.0)
    assert found["fast"] == {"status": "failed", "reason": "in the rounds: ended with status 5 and without an answer"}
    assert found["tape"] == {"status": "failed", "reason": "in the rounds: ValueError: out of luck"}
    assert found["eager"] == {"ms": [500.0] * 6}


@pytest.mark.integration
def test_a_row_of_the_driver_has_times_memory_and_equal_numbers(tmp_path: Path) -> None:
    path = tmp_path / "out" / "run.json"
    args = ("--models", "mlp", "--batches", 2, "--kinds", "whole", "split", "--ways", "tape", "fast", "--threads", 1)
    done = program("suite", *args, "--rounds", 2, "--budget", 120, "--json", path)
    assert done.returncode == 0, done.stderr + done.stdout
    data = json.loads(path.read_text())
    assert data["machine"]["cores"] >= 1
    assert "torch" in data["versions"]
    assert [(r["model"], r["batch"], r["kind"]) for r in data["rows"]] == [("mlp", 2, "whole"), ("mlp", 2, "split")]
    for measured in data["rows"]:
        assert "error" not in measured
        assert list(measured["ways"]) == ["eager", "tape", "fast"]
        tape = measured["ways"]["tape"]
        assert (tape["status"], tape["equal"], len(tape["ms"])) == ("ok", True, 2)
        assert tape["prepare_s"] > 0
        assert measured["ways"]["fast"]["status"] in ("ok", "left out")
    before = copy.deepcopy(data["rows"])
    assert program("suite", *args, "--resume", "--json", path).returncode == 0
    assert json.loads(path.read_text())["rows"] == before


def options(*args: Any) -> Any:
    return suite.parse([str(a) for a in args])


def test_what_bars_need_is_measured_first() -> None:
    rows = suite.wanted_rows(options())
    assert rows[:3] == [(model, 4, "whole") for model in names.NAMED]
    assert {model for model, _, _ in rows[:12]} == set(names.TWELVE)
    assert rows[12:14] == [("mlp", 1, "whole"), ("mlp", 1, "split")]
    assert {(batch, kind) for _, batch, kind in rows[14:26]} == {(4, "split")}
    assert {(batch, kind) for model, batch, kind in rows[26:38]} == {(8, "prepare")}
    assert len(rows) == len(set(rows)) == 13 * (3 + 3 + 1 + 1 + 1 + 1)
    by_model = suite.wanted_rows(options("--order", "models"))
    assert sorted(by_model) == sorted(rows)
    assert [row[0] for row in by_model[:10]] == ["mlp"] * 10
    gpu = suite.wanted_rows(options("--device", "cuda", "--models", RESNET, "--batches", 1, 4, 32))
    assert gpu[:3] == [(RESNET, 4, "whole"), (RESNET, 1, "whole"), (RESNET, 32, "whole")]


def test_compilers_run_at_one_batch_size_unless_everything_is_asked_for() -> None:
    few = options()
    assert "compile" in suite.wanted_ways(few, 4)
    assert not {"compile", "freezing", "torchscript"} & set(suite.wanted_ways(few, 32))
    assert {"tape", "fast", "openvino", "ariadne", "graph", "reduce-overhead"} <= set(suite.wanted_ways(few, 32))
    assert suite.wanted_ways(options("--every"), 32) == list(names.TITLES)
    assert suite.wanted_ways(options("--batches", 2), 2) == list(names.TITLES)  # batch 4 is not asked for
    assert suite.wanted_ways(options("--ways", "compile"), 32) == ["compile"]
    assert len(suite.wanted_rows(options("--every"))) == 13 * (5 * 3 + 1)
    assert suite.spec_of(few, RESNET, 4, "whole")["budget"] > suite.spec_of(few, RESNET, 1, "whole")["budget"]


@pytest.mark.parametrize(
    ("args", "told"),
    [
        (["--models", "resnet51"], "resnet51"),
        (["--ways", "eager", "magic"], "magic"),
        (["--kinds", "half"], "half"),
        (["--device", "tpu"], "tpu"),
        (["--order", "size"], "size"),
        (["--batches", "0"], "above 0"),
        (["--resume"], "--json"),
    ],
)
def test_names_that_do_not_exist_are_errors(args: list[str], told: str) -> None:
    done = program("suite", *args)
    assert done.returncode == 2
    assert told in done.stderr


def test_the_page_shows_how_to_divide_a_model_over_links(tmp_path: Path) -> None:
    ways = {"all here": 500.0, "input f32": 90.0, "input JPEG": 40.0, "layer3 q4": 30.0, "layer4 q4": 60.0}
    rows = [
        {
            "rate_mbit": rate,
            "rtt_ms": rtt,
            "way": way,
            "ms": ms if way == "all here" else ms * 100 / rate + rtt,
            "bytes": 1000,
            "error": 0.01,
            "measured": way != "layer4 q4",
            "chosen": way == "layer3 q4",
        }
        for rate in (1, 100)
        for rtt in (5, 50)
        for way, ms in ways.items()
    ]
    head = {"date": "2026-01-01", "machine": {"cpu": "one", "cores": 2, "memory_gb": 4}, "versions": {}, "how": "fast"}
    (tmp_path / "link.json").write_text(json.dumps({**head, "rows": rows}))
    (tmp_path / "notes.md").write_text("Some words.\n")
    parts, images = link.section(tmp_path, report.machine_text, tmp_path / "images", "page")
    text = "\n".join(parts)
    assert "| 5 | 100 | 500 | 95.0 | 45.0 | – | – | **35.0** | layer3 q4 |" in text
    assert "| 5 | 1 | **500** |" in text
    assert "Some words." in text
    drawn = ET.parse(images[0]).getroot()
    assert sum(e.tag.endswith("polyline") for e in drawn.iter()) == 2 * len(link.FAMILIES)
    assert link.section(tmp_path / "none", report.machine_text, tmp_path, "page") == ([], [])


def test_the_page_shows_the_server_beside_triton_and_which_goals_are_met(tmp_path: Path) -> None:
    found = json.loads((BENCH / "results" / "serve" / "serve.json").read_text())
    assert {line[1] for line in serving.goals(found)[1:]} <= {"met", "missed"}
    text = "\n".join(serving.section(BENCH / "results" / "serve", report.machine_text))
    assert "| 0.6 MB as a tensor | triton |" in text
    for name in ("overhead", "batching", "tail", "connections"):
        found[name] = [row for row in found[name] if row["server"] != "triton"]
    found["kills"]["lost"] = 1
    (tmp_path / "serve.json").write_text(json.dumps(found))
    parts = "\n".join(serving.section(tmp_path, report.machine_text))
    assert parts.count("| not measured |") == 3
    assert "no lost step of training | missed |" in parts
    assert serving.section(tmp_path / "none", report.machine_text) == []

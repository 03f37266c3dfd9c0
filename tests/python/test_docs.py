"""Every Python example of the documentation runs, in order, as one program per page."""

from __future__ import annotations

import dataclasses
import doctest
import inspect
import re
import shlex
import subprocess
import sys
from pathlib import Path
from typing import Any, NamedTuple

import pytest
import torch

import cleave
from cleave import _objective, _wanted, backends, benchmark, profile, split, tracing
from cleave._command import main

ROOT = Path(__file__).parent.parent.parent
PAGES = (
    "README.md",
    *(
        f"docs/{page}.md"
        for page in (
            "artifact",
            "benchmark-api",
            "capture",
            "notebook",
            "optimize",
            "pictures",
            "pipe",
            "report",
            "split",
            "trace",
        )
    ),
)
NOT_OF_SPLITS = ("ArgumentError", "PlanError", "CompressionError", "PipelineError", "TraceError")
LINKED = ("README.md", *sorted(f"docs/{p.name}" for p in (ROOT / "docs").glob("*.md")))


class Block(NamedTuple):
    """An example, and the line of the page it starts at."""

    line: int
    code: str


def blocks(text: str) -> list[Block]:
    """The ```python blocks of a page."""
    found = re.finditer(r"^```python\n(.*?)^```$", text, re.MULTILINE | re.DOTALL)
    return [Block(text.count("\n", 0, m.start(1)) + 1, m[1]) for m in found]


def run(page: str, text: str) -> int:
    """Runs the examples of a page; tracebacks show the line of the page. How many there were."""
    namespace: dict[str, Any] = {"__name__": "__docs__"}
    every = blocks(text)
    for block in every:
        exec(compile("\n" * (block.line - 1) + block.code, page, "exec"), namespace)
    return len(every)


@pytest.mark.integration
@pytest.mark.parametrize("page", PAGES)
def test_every_example_of_a_page_runs(page: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)  # examples write files
    monkeypatch.setenv("CLEAVE_CACHE", str(tmp_path / "cache"))
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))  # where the key of compiled code is
    assert run(str(ROOT / page), (ROOT / page).read_text(encoding="utf-8")) >= 1


@pytest.mark.integration
def test_every_command_of_the_page_about_capture_runs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    text = (ROOT / "docs/capture.md").read_text(encoding="utf-8")
    commands = re.findall(r"^python -m cleave (.*)$", text, re.MULTILINE)
    assert len(commands) >= 5
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", [str(tmp_path), *sys.path])
    Path("net.py").write_text(blocks(text)[0].code)
    run("docs/capture.md", text)  # makes the program that a command takes
    for command in commands:
        assert main(shlex.split(command)) == 0, command
    assert sorted(p.name for p in tmp_path.glob("**/*.clv")) == [
        "again.clv",
        "net.clv",
        "prefix.clv",
        "program.clv",
        "suffix.clv",
    ]


def test_an_example_that_fails_is_seen_at_its_line() -> None:
    with pytest.raises(ZeroDivisionError) as error:
        run("page.md", "# A page\n\n```python\nx = 0\n```\n\n```c\nno python\n```\n\n```python\n1 / x\n```\n")
    assert error.traceback[-1].lineno == 11  # counted from 0


@pytest.mark.parametrize("page", LINKED)
def test_every_link_of_a_page_leads_to_a_file(page: str) -> None:
    path = ROOT / page
    links = re.findall(r"\]\((?!https?:)([^)#]+)(?:#[^)]*)?\)", path.read_text(encoding="utf-8"))
    assert all((path.parent / link).exists() for link in links), links


def test_links_of_the_site_that_lead_nowhere_are_named(tmp_path: Path) -> None:
    (tmp_path / "a.html").write_text('<a href="b.html#here">1</a><a href="b.html#gone">2</a><img src="no.png">')
    (tmp_path / "b.html").write_text('<p id="here"><a href="a.html">3</a><a href="https://example.org/x">4</a></p>')
    command = [sys.executable, str(ROOT / "tools" / "links.py"), str(tmp_path)]
    done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=60)
    assert done.returncode == 1
    assert done.stdout.splitlines() == ["a.html: b.html#gone leads nowhere", "a.html: no.png leads nowhere"]


def test_every_source_file_says_what_it_is_for() -> None:
    command = [sys.executable, str(ROOT / "tools" / "files.py"), "--check"]
    done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=60)
    assert done.returncode == 0, done.stdout + done.stderr


def _options() -> list[str]:
    fields = [f.name for f in dataclasses.fields(cleave.SplitSpec)]
    errors = [name for name in cleave.__all__ if name.endswith("Error") and name not in NOT_OF_SPLITS]
    return [*fields, *_objective.MINIMIZE, *_objective._CONSTRAINTS, *split.MODES, *errors]


@pytest.mark.parametrize("name", _options())
def test_the_page_about_splits_has_every_option(name: str) -> None:
    text = (ROOT / "docs/split.md").read_text(encoding="utf-8")
    assert re.search(rf"\b{name}\b", text), f"docs/split.md does not speak of {name}"


def _pipe_words() -> list[str]:
    """Arguments, methods, schedules, metrics, and what a partition offers."""
    arguments = inspect.signature(cleave.pipe_model).parameters
    members = [name for name in vars(cleave.PartitionedPlan) if not name.startswith("_")]
    metrics = [m for m in profile.NUMBERS if not m.endswith(("_low", "_high", "_least", "_most"))]
    hidden = ("folding", "unpack_inputs", "pack_output", "signature")
    words = [*arguments, *_wanted.METHODS, *_wanted.TIES, *_wanted.SCHEDULES, *members, *metrics]
    return sorted({w for w in words if w not in hidden})


@pytest.mark.parametrize("name", _pipe_words())
def test_the_page_about_pipelines_has_every_option(name: str) -> None:
    text = (ROOT / "docs/pipe.md").read_text(encoding="utf-8")
    assert re.search(rf"\b{name}\b", text), f"docs/pipe.md does not speak of {name}"


def _trace_words() -> list[str]:
    """Arguments, what a traced module and its parts offer, back ends, their arguments and the environment."""
    things = (
        cleave.TracedModule,
        cleave.tracing.Report,
        cleave.tracing.Segment,
        cleave.tracing.Coverage,
        cleave.tracing.GraphNode,
        cleave.backends.SegmentJob,
    )
    members = [name for thing in things for name in [*vars(thing), *getattr(thing, "_fields", ())] if name[0] != "_"]
    functions = (cleave.trace, cleave.register_backend)
    arguments = [name for f in functions for name in inspect.signature(f).parameters]
    outside = ["CLEAVE_CACHE", "CLEAVE_CACHE_LIMIT", "CLEAVE_OPENVINO", "CLEAVE_PYTHON", "clv_trace", "TraceError"]
    return sorted({*arguments, *members, *outside})


@pytest.mark.parametrize("name", _trace_words())
def test_the_page_about_tracing_has_every_option(name: str) -> None:
    text = (ROOT / "docs/trace.md").read_text(encoding="utf-8")
    assert re.search(rf"\b{name}\b", text), f"docs/trace.md does not speak of {name}"


def _benchmark_words() -> list[str]:
    """What the module offers, its arguments, and the fields of a result."""
    functions = [f for f in map(vars(benchmark).get, benchmark.__all__) if inspect.isfunction(f)]
    arguments = {name for f in functions for name in inspect.signature(f).parameters}
    fields = {f.name for f in dataclasses.fields(benchmark.BenchmarkResult)}
    return sorted({*benchmark.__all__, *arguments, *fields})


@pytest.mark.parametrize("name", _benchmark_words())
def test_the_page_about_measuring_has_every_option(name: str) -> None:
    text = (ROOT / "docs/benchmark-api.md").read_text(encoding="utf-8")
    assert re.search(rf"\b{name}\b", text), f"docs/benchmark-api.md does not speak of {name}"


@pytest.mark.parametrize("backend", ["inductor", "openvino"])
def test_the_page_about_tracing_has_every_argument_of_a_compiler(backend: str) -> None:
    text = (ROOT / "docs/trace.md").read_text(encoding="utf-8")
    with pytest.raises(cleave.ArgumentError) as error:  # which lists what it takes
        cleave.trace(lambda x: x + 1, torch.ones(2), backend=backend, compiler_args=["--no-such-argument"])
    known = re.findall(r"(?<!\")--[a-z-]+", str(error.value))
    assert len(known) >= 3
    assert [name for name in known if name not in text] == []


@pytest.mark.parametrize("module", [backends, tracing])
def test_examples_in_docstrings_run(module: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("CLEAVE_CACHE", "off")
    assert doctest.testmod(module).failed == 0
    public = [x for x in map(vars(module).get, cleave.__all__) if getattr(x, "__module__", None) == module.__name__]
    assert [x for x in public if ">>>" not in (x.__doc__ or "")] == []

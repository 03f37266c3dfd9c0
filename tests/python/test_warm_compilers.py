"""Compilers that wait for jobs: one for each back end, kept between traces, gone with the process. Each job is a
process of its own."""

from __future__ import annotations

import os
import subprocess
import sys
import textwrap
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

import cleave
from cleave import _native

PYTHON = sys.executable
pytestmark = pytest.mark.integration
pytest.importorskip("openvino")


def net(width: int) -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(4, width), nn.ReLU(), nn.Linear(width, 2)).eval()


def traced(width: int, **more: Any) -> cleave.TracedModule:
    options = {"backend": "openvino", "cache": False, "keep_slower": True, **more}
    return cleave.trace(net(width), torch.randn(3, 4), **options)


def wait_for_end(pid: int) -> None:
    """Of a process, or until it waits for its parent to hear of that."""
    until, stat = time.monotonic() + 20, Path(f"/proc/{pid}/stat")
    while time.monotonic() < until and (text := _read(stat)) and b") Z " not in text:
        time.sleep(0.05)
    assert not _read(stat) or b") Z " in _read(stat)


def newest() -> int:
    """The process that watches over the compiler that was started last."""
    return _native.warm_compilers()[-1]


def test_traces_share_one_compiler() -> None:
    assert traced(3).segments[0].compiled
    first = _native.warm_compilers()
    assert first
    assert traced(5).segments[0].compiled
    assert _native.warm_compilers() == first


def test_another_environment_is_another_compiler(monkeypatch: pytest.MonkeyPatch) -> None:
    traced(3)
    first = newest()
    monkeypatch.setenv("CLEAVE_TEST_SETTING", "1")
    assert traced(4).segments[0].compiled
    assert newest() != first
    assert first not in _native.warm_compilers()  # it gets no more jobs


def test_a_compiler_that_died_is_replaced() -> None:
    traced(3)
    guard = newest()
    children = Path(f"/proc/{guard}/task/{guard}/children").read_text().split()
    os.kill(int(children[0]), 9)
    wait_for_end(guard)
    assert traced(4).segments[0].compiled
    assert newest() != guard


ODD = """
import ctypes, os, subprocess, sys
from cleave.compilers import _job, openvino

before = _job.run_job

def run_job(compile_segment, folder):
    how = open(os.environ["CLEAVE_TEST_HOW"]).read()
    if how == "crash":
        ctypes.string_at(0)
    if how == "hang":
        subprocess.run(["sleep", "600.5"], start_new_session=True)
    return before(compile_segment, folder)

_job.run_job = run_job
sys.exit(_job.run(openvino.compile_segment, openvino.warm_up))
"""


@pytest.fixture(scope="module")
def how(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """A compiler whose jobs do what a file says: "crash", "hang", ""."""
    tmp_path = tmp_path_factory.mktemp("compiler")
    script, program, file = tmp_path / "compiler.py", tmp_path / "python", tmp_path / "how"
    script.write_text(ODD)
    program.write_text(f'#!/bin/sh\nshift 2\nexec "{sys.executable}" "{script}" "$@"\n')
    program.chmod(0o700)
    file.write_text("")
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(sys, "executable", str(program))
        patch.setenv("CLEAVE_TEST_HOW", str(file))
        yield file


def test_a_job_that_crashes_costs_itself_alone(how: Path) -> None:
    assert traced(3).segments[0].compiled
    guard = newest()
    how.write_text("crash")
    failed = traced(4, minimum_segment_size=3)
    assert not failed.segments
    assert any("signal 11" in reason for reason in failed.graph.reasons if reason)
    how.write_text("")
    assert traced(5).segments[0].compiled
    assert newest() == guard


def test_a_job_that_takes_too_long_is_killed_and_the_compiler_stays(how: Path) -> None:
    traced(3)
    guard = newest()
    how.write_text("hang")
    with pytest.raises(subprocess.TimeoutExpired):
        traced(4, compiler_timeout=2)
    assert not [p for p in Path("/proc").glob("[0-9]*/cmdline") if b"600.5" in _read(p)]
    how.write_text("")
    assert traced(5).segments[0].compiled
    assert newest() == guard


def _read(path: Path) -> bytes:
    try:
        return path.read_bytes()
    except OSError:
        return b""


def test_it_ends_with_the_process_and_libraries_may_have_threads() -> None:
    code = """
        import torch, cleave
        from cleave import _native
        net = torch.nn.Sequential(torch.nn.Linear(4, 3), torch.nn.ReLU()).eval()
        for n in (2, 3):
            traced = cleave.trace(net, torch.randn(n, 4), backend="openvino", cache=False, keep_slower=True)
            assert traced.segments[0].compiled
        print(*_native.warm_compilers())
    """
    env = {key: text for key, text in os.environ.items() if not key.endswith("_NUM_THREADS")}
    command = [PYTHON, "-c", textwrap.dedent(code)]
    done = subprocess.run(command, capture_output=True, text=True, check=True, env=env, timeout=240)
    (guard,) = (int(word) for word in done.stdout.split())
    wait_for_end(guard)

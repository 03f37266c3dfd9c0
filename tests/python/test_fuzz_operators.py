"""tools/fuzz_operators.py: what it notices, and that it finds nothing in the operators that a file may hold."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest

TOOLS = Path(__file__).resolve().parents[2] / "tools"

PLANTED = """
import os, signal, sys, time
sys.path.insert(0, sys.argv[1])
import torch
import fuzz_operators as fuzz

def leaks(x):
    return torch.empty(64, dtype=torch.uint8)

def writes(x):
    x.data.zero_()
    return x.clone()

def reads(x):
    if x.numel():
        fuzz.ctypes.string_at(x.data_ptr(), 1 << 17)
    return x.clone()

lib = torch.library.Library("planted", "DEF")
for name, does in {
    "fine": lambda x: x.clone(),
    "fails": lambda x: 1 // 0,
    "leaks": leaks,
    "writes": writes,
    "reads": reads,
    "dies": lambda x: os.kill(os.getpid(), signal.SIGFPE),
    "hangs": lambda x: time.sleep(100),
}.items():
    lib.define(f"{name}(Tensor x) -> Tensor")
    lib.impl(name, does, "CPU")
jobs = [fuzz.Job(f"planted::{name}", getattr(torch.ops.planted, name).default, []) for name in sys.argv[2:]]
wrong, _ = fuzz.fuzz(jobs, range(12), 1, 1.0)
print("wrong:", *sorted(wrong))
"""


def run(*args: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run([sys.executable, *args], capture_output=True, text=True, timeout=1800)


def test_what_an_operator_must_not_do_is_noticed() -> None:
    done = run("-c", PLANTED, str(TOOLS), "fine", "fails", "leaks", "writes", "reads", "dies")
    assert done.returncode == 0, done.stderr
    for line in (
        "planted::leaks [0-9]+ gives what was in its memory before",
        "planted::writes [0-9]+ writes its argument 0",
        "planted::reads [0-9]+ SIGSEGV",
        "planted::dies [0-9]+ SIGFPE",
        "wrong: planted::dies planted::leaks planted::reads planted::writes$",
    ):
        assert re.search(line, done.stdout, re.M), done.stdout


def fuzzed(*args: str) -> int:
    """How many calls gave a result."""
    done = run(str(TOOLS / "fuzz_operators.py"), "--jobs", "1", *args)
    assert done.returncode == 0, done.stdout + done.stderr
    found = re.search(r"(\d+) came back with a result", done.stdout)
    assert found
    return int(found[1])


def test_operators_that_a_file_may_hold_only_compute() -> None:
    assert fuzzed("--calls", "2") > 1300


@pytest.mark.slow
def test_operators_that_a_file_may_hold_only_compute_in_many_calls() -> None:
    assert fuzzed("--calls", "100", "--samples") > 50_000


@pytest.mark.slow
def test_a_hang_is_noticed() -> None:
    done = run("-c", PLANTED, str(TOOLS), "hangs")
    assert "hangs for 1 s" in done.stdout

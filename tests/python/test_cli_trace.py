"""`cleave trace`, and the files that it writes in processes without Python."""

from __future__ import annotations

import importlib.util
import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import torch
from crafted import SAME_USER
from safetensors.torch import load_file
from test_cli_run import COMMAND
from torch import Tensor, nn

import cleave

pytestmark = [pytest.mark.integration, pytest.mark.skipif(COMMAND is None, reason="the cleave command is not built")]
OPENVINO = importlib.util.find_spec("openvino")
needs_openvino = pytest.mark.skipif(OPENVINO is None, reason="openvino is not installed")

Run = Callable[..., subprocess.CompletedProcess[str]]


class Net(nn.Module):
    """Two stretches to compile, and a sort between them."""

    def __init__(self) -> None:
        super().__init__()
        self.a = nn.Linear(6, 16)
        self.b = nn.Linear(16, 3)

    def forward(self, x: Tensor) -> Tensor:
        y = torch.relu(self.a(x)) + 1.0
        return torch.tanh(self.b(torch.sort(y, dim=1).values) * 2.0)


def environment(**more: str) -> dict[str, str]:
    """Of a process that finds the Python of these tests as compilers' Python, and nothing else."""
    package = str(Path(cleave.__file__).resolve().parents[1])
    return {
        "PATH": os.environ.get("PATH", ""),
        "HOME": os.environ.get("HOME", "/"),
        **SAME_USER,
        "OMP_NUM_THREADS": "1",
        "LC_ALL": "C.UTF-8",
        "CLEAVE_PYTHON": sys.executable,
        "PYTHONPATH": package,
        **more,
    }


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A model as a file, net.clv, inputs for it, and a cache."""
    where = tmp_path_factory.mktemp("trace")
    torch.manual_seed(0)
    cleave.capture(Net().eval(), torch.randn(4, 6), dynamic_batch=(1, 16)).save(where / "net.clv")
    np.save(where / "x.npy", torch.randn(5, 6).numpy())
    return where


@pytest.fixture(scope="module")
def run(folder: Path) -> Run:
    """Runs the command in that folder."""

    def run_it(*args: object, code: int = 0, **more: str) -> subprocess.CompletedProcess[str]:
        assert COMMAND is not None
        words = [COMMAND, *(str(a) for a in args)]
        env = environment(CLEAVE_CACHE=str(folder / "cache"), **more)
        done = subprocess.run(words, cwd=folder, env=env, capture_output=True, text=True, timeout=280, check=False)
        assert done.returncode == code, f"{words}: exit status {done.returncode}\n{done.stdout}{done.stderr}"
        return done

    return run_it


def fake_python(folder: Path, compiler: str) -> str:
    """A program that says that it has Cleave, and is `compiler` when it is to compile."""
    path = folder / "python"
    path.write_text(f'#!/bin/sh\nif [ "$1" = -c ]; then echo has; exit 0; fi\n{compiler}\n')
    path.chmod(0o755)
    return str(path)


def ends(pid: int) -> bool:
    """Whether a process is gone, now or within ten seconds."""
    for _ in range(1000):
        try:
            os.kill(pid, 0)
        except ProcessLookupError:
            return True
        time.sleep(0.01)
    return False


def net() -> nn.Module:
    torch.manual_seed(0)
    return Net().eval()


@needs_openvino
def test_what_openvino_compiles_runs_in_a_process_without_python(run: Run, folder: Path) -> None:
    words = ("--backend", "openvino", "--dynamic", "--input", "x.npy", "--keep-slower")
    done = run("trace", "net.clv", "-o", "traced.clv", *words)
    assert "by openvino" in done.stdout
    assert "aten::sort" in done.stdout
    assert "wrote traced.clv" in done.stderr
    assert OPENVINO is not None
    places = OPENVINO.submodule_search_locations
    assert places
    nowhere = {"CLEAVE_PYTHON": "/nonexistent", "PYTHONPATH": ""}
    for batch in (1, 4, 9):
        x = torch.randn(batch, 6)
        np.save(folder / "in.npy", x.numpy())
        ran = run("run", "traced.clv", "--input", "in.npy", "-o", "out", CLEAVE_OPENVINO=places[0], **nowhere)
        assert "not used" not in ran.stderr
        torch.testing.assert_close(load_file(folder / "out")["output"], net()(x), rtol=1e-4, atol=1e-5)
    ran = run("run", "traced.clv", "--input", "in.npy", "-o", "out", CLEAVE_OPENVINO="/nonexistent", **nowhere)
    assert "compiled parts (openvino) not used" in ran.stderr
    assert torch.equal(load_file(folder / "out")["output"], net()(x))
    rows = json.loads(run("bench", "traced.clv", "--iterations", 2, "--json", CLEAVE_OPENVINO=places[0]).stdout)
    assert rows[0]["runs"] == 2

    report = json.loads(run("inspect", "traced.clv", "--json").stdout)["report"]
    assert report["compiled"] < report["operators"]
    assert [row["op"] for row in report["fallbacks"]] == ["aten::sort"]
    run("inspect", "traced.clv", "--fail-under", 50)
    under = run("inspect", "traced.clv", "--fail-under", 100, code=1)
    assert "less than --fail-under 100" in under.stderr

    again = run("trace", "net.clv", "-o", "again.clv", *words, "--json")
    assert len(json.loads(again.stdout)["segments"]) == len(report["segments"])
    loaded = cleave.load(folder / "again.clv")
    assert loaded.coverage.compiled == report["compiled"]
    assert loaded.trace_report().data["backend"] == "openvino"


def test_interrupted_it_stops_compilers_and_writes_nothing(folder: Path, tmp_path: Path) -> None:
    assert COMMAND is not None
    python = fake_python(tmp_path, f"echo $$ > {tmp_path}/started; exec sleep 1000")
    words = [COMMAND, "trace", "net.clv", "-o", tmp_path / "out.clv", "--cache", "off", "--parallel", "1"]
    child = subprocess.Popen(
        words, cwd=folder, env=environment(CLEAVE_PYTHON=python), stderr=subprocess.PIPE, text=True
    )
    started = tmp_path / "started"
    for _ in range(600):
        if started.exists() and started.read_text().strip():
            break
        time.sleep(0.1)
    child.send_signal(signal.SIGINT)
    _, said = child.communicate(timeout=60)
    assert child.returncode == -signal.SIGINT
    assert "stopped" in said
    assert not (tmp_path / "out.clv").exists()
    assert ends(int(started.read_text()))  # its guard ends it once the command is gone


def test_a_compiler_that_takes_too_long_is_an_error(run: Run, tmp_path: Path) -> None:
    python = fake_python(tmp_path, "exec sleep 1000")
    done = run("trace", "net.clv", "-o", "late.clv", "--cache", "off", "--timeout", "1", code=1, CLEAVE_PYTHON=python)
    assert "took longer than 1 s" in done.stderr
    assert "--timeout" in done.stderr


def test_a_compiler_that_fails_leaves_everything_on_the_tape_with_its_last_words(run: Run, tmp_path: Path) -> None:
    python = fake_python(tmp_path, "echo first; echo the disk has melted; exit 3")
    done = run("trace", "net.clv", "-o", "tape.clv", "--cache", "off", CLEAVE_PYTHON=python)
    assert "0.0 % of FLOPs" in done.stdout
    assert "ended with code 3" in done.stdout
    assert "the disk has melted" in done.stdout


def test_a_python_without_cleave_is_told_at_once(run: Run, tmp_path: Path) -> None:
    done = run("trace", "net.clv", "-o", "out.clv", code=1, CLEAVE_PYTHON="/nonexistent/python")
    assert "/nonexistent/python has no Cleave" in done.stderr
    assert "CLEAVE_PYTHON" in done.stderr

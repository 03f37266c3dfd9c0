"""cleave.trace with real compilers: the examples that the call is made after, files that run without Python, compilers
that hang, crash, or are told something that they do not know."""

from __future__ import annotations

import importlib.util
import logging
import os
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from crafted import SAME_USER
from real_models import resnet50
from safetensors.torch import load_file
from test_cli_run import COMMAND
from torch import Tensor, nn
from trace_backends import compiled_ops, tape_ops

import cleave

missing = pytest.mark.skipif(importlib.util.find_spec("openvino") is None, reason="openvino is not installed")
openvino = pytest.param("openvino", marks=missing)
both = pytest.mark.parametrize("backend", ["inductor", openvino])
both_slowly = pytest.mark.parametrize("backend", [pytest.param("inductor", marks=pytest.mark.slow), openvino])

pytestmark = pytest.mark.integration


@pytest.fixture(scope="module", autouse=True)
def shared_cache(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """What one test compiled need not be compiled for the next."""
    folder = tmp_path_factory.mktemp("cache")
    before = os.environ.get("CLEAVE_CACHE")
    os.environ["CLEAVE_CACHE"] = str(folder)
    yield folder
    if before is None:
        del os.environ["CLEAVE_CACHE"]
    else:
        os.environ["CLEAVE_CACHE"] = before


def close(got: Any, want: Any) -> None:
    torch.testing.assert_close(got, want, rtol=1e-4, atol=1e-5)


def foo(x: Tensor, y: Tensor) -> Tensor:
    return 2 * x + y


class Net(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.conv = nn.Conv2d(1, 1, 3)

    def forward(self, x: Tensor) -> Tensor:
        return self.conv(x) + 1


class ExampleConvolutionLayer(Net):
    pass


class Model(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.layer = ExampleConvolutionLayer()

    def forward(self, x: Tensor) -> Tensor:
        return self.layer(x) * 100


SAID = "wrote out.safetensors\n"  # and nothing about parts that do not run compiled


def run_without_python(path: Path, inputs: dict[str, Tensor]) -> tuple[Tensor, str]:
    """The first output of a file in a process that has no Python, and what it said on standard error."""
    if COMMAND is None:
        pytest.skip("the cleave command is not built")
    words = [COMMAND, "run", path.name, "--allow-compiled", "-o", "out.safetensors"]
    for name, t in inputs.items():
        np.save(path.parent / f"{name}.npy", t.numpy())
        words += ["--input", f"{name}={name}.npy"]
    env = {"PATH": "/nonexistent", "OMP_NUM_THREADS": "1", **SAME_USER, **openvino_folder()}
    done = subprocess.run(words, cwd=path.parent, env=env, capture_output=True, text=True, timeout=120, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    return next(iter(load_file(path.parent / "out.safetensors").values())), done.stderr


def openvino_folder() -> dict[str, str]:
    spec = importlib.util.find_spec("openvino")
    places = list(spec.submodule_search_locations or ()) if spec else []
    return {"CLEAVE_OPENVINO": f"{places[0]}/libs"} if places else {}


@both
def test_a_function_is_traced_saved_and_run_without_python(backend: str, tmp_path: Path) -> None:
    traced = cleave.trace(foo, (torch.rand(3), torch.rand(3)), backend=backend, keep_slower=True)
    assert compiled_ops(traced) == [["mul", "add"]]
    inputs = {"x": torch.rand(3), "y": torch.rand(3)}
    close(traced(*inputs.values()), foo(**inputs))
    traced.save(tmp_path / "foo.clv")
    loaded = cleave.load(tmp_path / "foo.clv", allow_compiled=True)
    assert [s.compiled for s in loaded.segments] == [True]
    close(loaded(*inputs.values()), foo(**inputs))
    assert loaded.segments[0].runs == 1
    got, said = run_without_python(tmp_path / "foo.clv", inputs)
    close(got, foo(**inputs))
    assert said == SAID


@both
def test_a_module_and_its_method_with_any_batch(backend: str, tmp_path: Path) -> None:
    net = Net().eval()
    traced = cleave.trace(
        net.forward, torch.rand(1, 1, 3, 3), backend=backend, dynamic_batch=(1, 1024), keep_slower=True
    )
    assert len(compiled_ops(traced)) == 1
    since = time.monotonic()
    again = cleave.trace(net, torch.rand(1, 1, 3, 3), backend=backend, dynamic_batch=(1, 1024), keep_slower=True)
    assert again.segments[0].facts["cached"] == 1
    assert time.monotonic() - since < 60
    with torch.no_grad():
        for rows in (1, 7, 64):
            batch = torch.rand(rows, 1, 3, 3)
            close(traced(batch), net(batch))
            close(again(batch), net(batch))
        traced.save(tmp_path / "net.clv")
        batch = torch.rand(7, 1, 3, 3)
        got, said = run_without_python(tmp_path / "net.clv", {"x": batch})
        close(got, net(batch))
        assert said == SAID
    runs = [(s.runs, s.tape_runs) for s in cleave.LoadedModel.segments.fget(_Runtime(traced))]  # type: ignore[attr-defined]
    assert runs[0][0] >= 3
    assert runs[0][1] == 0


class _Runtime:
    """Enough of a LoadedModel to count runs."""

    def __init__(self, traced: cleave.TracedModule) -> None:
        self._runtime = traced._runtime


@both_slowly
def test_manual_partitioning(backend: str, caplog: pytest.LogCaptureFixture) -> None:
    """Only the convolution layer is compiled."""
    caplog.set_level(logging.INFO, "cleave")
    model = Model().eval()
    inputs = torch.rand(1, 1, 3, 3)
    traced = cleave.trace(
        model,
        inputs,
        backend=backend,
        dynamic_batch=(1, 1024),
        select=lambda node: "ExampleConvolutionLayer" in node.name,
        keep_slower=True,
    )
    assert compiled_ops(traced) == [["conv2d", "add"]]
    assert tape_ops(traced) == {"mul": "select leaves it out"}
    lines = [r.getMessage() for r in caplog.records if r.name == "cleave.trace"]
    assert "aten::conv2d in layer.conv: compiled, segment 0" in lines
    assert "aten::add.Tensor in layer: compiled, segment 0" in lines
    assert "aten::mul.Tensor: not compiled: select leaves it out" in lines
    with torch.no_grad():
        close(traced(inputs), model(inputs))


@both_slowly
def test_a_resnet_50_at_every_batch(backend: str, tmp_path: Path) -> None:
    model, make_inputs = resnet50()
    model.eval()
    example = make_inputs().args[0][:1]
    traced = cleave.trace(model, example, backend=backend, dynamic_batch=(1, 1024), keep_slower=True)
    assert traced.coverage.percent > 99
    batch = torch.rand(7, *example.shape[1:])
    with torch.no_grad():
        torch.testing.assert_close(traced(batch), model(batch), rtol=1e-3, atol=1e-3)
    traced.save(tmp_path / "resnet.clv")
    got, said = run_without_python(tmp_path / "resnet.clv", {"x": batch})
    assert said == SAID
    with torch.no_grad():
        torch.testing.assert_close(got, model(batch), rtol=1e-3, atol=1e-3)


@missing
def test_what_a_compiler_cannot_take_runs_on_the_tape() -> None:
    def model(x: Tensor) -> Tensor:
        values, _ = torch.sort(torch.relu(x * 2) + 1, dim=-1, stable=True)
        return torch.tanh(values) * torch.rand(5)

    x = torch.rand(4, 5)
    traced = cleave.trace(model, x, backend="openvino", minimum_segment_size=3, keep_slower=True)
    assert compiled_ops(traced) == [["mul", "relu", "add"]]
    assert {"sort", "rand"} <= set(tape_ops(traced))
    torch.manual_seed(0)
    got = traced(x)
    torch.manual_seed(0)
    close(got, model(x))


# ---- compilers that misbehave


@both
def test_unknown_arguments_of_a_compiler_are_errors(backend: str) -> None:
    with pytest.raises(ValueError, match="no_such_option"):
        cleave.trace(foo, (torch.rand(3), torch.rand(3)), backend=backend, compiler_args=["no_such_option=1"])


def processes_of(marker: str) -> list[str]:
    found = []
    for entry in Path("/proc").iterdir():
        if not entry.name.isdigit():
            continue
        try:
            words = (entry / "environ").read_bytes().decode(errors="replace")
        except OSError:
            continue
        if marker in words and int(entry.name) != os.getpid():
            found.append(entry.name)
    return found


@pytest.mark.skipif(not Path("/proc/self/environ").exists(), reason="needs /proc")
def test_a_compiler_that_takes_too_long_is_gone_with_its_children(tmp_path: Path) -> None:
    marker = f"CLEAVE_TEST_MARK={os.getpid()}-{time.monotonic_ns()}"
    name, _, text = marker.partition("=")
    os.environ[name] = text
    try:
        since = time.monotonic()
        with pytest.raises(subprocess.TimeoutExpired) as raised:
            cleave.trace(
                foo,
                (torch.rand(5), torch.rand(5)),
                backend="inductor",
                compiler_timeout=0.5,
                compiler_workdir=tmp_path,
                cache=False,
            )
        assert time.monotonic() - since < 30
    finally:
        del os.environ[name]
    assert raised.value.timeout == 0.5
    assert "cleave.compilers.inductor" in raised.value.cmd
    assert processes_of(marker) == []
    assert (tmp_path / "segment-0" / "compile.log").exists()


FAKE = """
import json, os, signal, subprocess, sys, time
from pathlib import Path
folder, how = Path(sys.argv[-1]), os.environ["CLEAVE_TEST_COMPILER"]
print("this is the compiler", flush=True)
if how == "crash":
    os.kill(os.getpid(), signal.SIGSEGV)
elif how == "exit":
    sys.exit(3)
elif how == "nothing":
    sys.exit(0)
elif how == "abort":
    os.abort()
elif how == "lies":
    (folder / "result.json").write_text('{"version": 1, "members": ["../../etc/passwd"]}')
elif how == "garbage":
    (folder / "result.json").write_bytes(os.urandom(500))
elif how == "hang":
    subprocess.Popen(["sleep", "600"], start_new_session=True)
    time.sleep(600)
"""


@pytest.fixture
def fake_compiler(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[pytest.MonkeyPatch]:
    """A program in place of the Python that compilers are started with."""
    script = tmp_path / "compiler.py"
    script.write_text(FAKE)
    program = tmp_path / "python"
    program.write_text(f'#!/bin/sh\nexec "{sys.executable}" "{script}" "$@"\n')
    program.chmod(0o700)
    monkeypatch.setattr(sys, "executable", str(program))
    return monkeypatch


@pytest.mark.parametrize(
    ("how", "says"),
    [
        ("crash", "signal 11"),
        ("exit", "3"),
        ("nothing", ""),
        ("abort", "signal 6"),
        ("lies", ""),
        ("garbage", ""),
    ],
)
def test_a_compiler_that_crashes_or_lies_leaves_the_tape(
    how: str, says: str, fake_compiler: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    fake_compiler.setenv("CLEAVE_TEST_COMPILER", how)
    x, y = torch.rand(5), torch.rand(5)
    traced = cleave.trace(
        foo, (x, y), backend="inductor", cache=False, compiler_workdir=tmp_path / "work", keep_slower=True
    )
    assert compiled_ops(traced) == []
    assert all(says in reason for reason in tape_ops(traced).values())
    assert torch.equal(traced(x, y), foo(x, y))
    assert "this is the compiler" in (tmp_path / "work" / "segment-0" / "compile.log").read_text()
    with pytest.raises(AttributeError, match="aten::mul"):
        cleave.trace(foo, (x, y), backend="inductor", cache=False, fallback=False)


def test_children_of_a_compiler_that_hangs_are_killed(fake_compiler: pytest.MonkeyPatch) -> None:
    mark = f"{os.getpid()}-{time.monotonic_ns()}"
    fake_compiler.setenv("CLEAVE_TEST_COMPILER", "hang")
    fake_compiler.setenv("CLEAVE_TEST_MARK", mark)
    with pytest.raises(subprocess.TimeoutExpired):
        cleave.trace(foo, (torch.rand(5), torch.rand(5)), backend="inductor", cache=False, compiler_timeout=2)
    assert processes_of(f"CLEAVE_TEST_MARK={mark}") == []


def test_a_python_that_is_not_there_leaves_the_tape(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(sys, "executable", str(tmp_path / "no-python"))
    traced = cleave.trace(foo, (torch.rand(5), torch.rand(5)), backend="inductor", cache=False, keep_slower=True)
    assert compiled_ops(traced) == []
    assert all("not started" in reason for reason in tape_ops(traced).values()), tape_ops(traced)


@missing
def test_openvino_gives_back_inputs_that_go_through() -> None:
    """An output that is an input: OpenVINO alone would overwrite the input with what the output's memory held."""

    def through(x: Tensor) -> tuple[Tensor, Tensor]:
        y = nn.functional.dropout(x, training=False).to(torch.float32)
        return y, x.sort().values + y

    x = torch.rand(4, 16)
    kept = x.clone()
    module = cleave.trace(through, x, backend="openvino", dynamic_batch=(1, 1024), keep_slower=True)
    for _ in range(3):
        close(module(x), through(kept))
        assert torch.equal(x, kept)

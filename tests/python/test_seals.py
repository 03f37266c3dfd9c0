"""Compiled code runs where it is allowed, and where this user made it: what a seal covers, and whose it is."""

from __future__ import annotations

import json
import os
import re
import stat
import subprocess
import sys
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from crafted import rewrite
from torch import nn

import cleave

NAME = "sealed-test"
PROGRAM = """
import cleave, test_seals
test_seals.register()
model = cleave.load("traced.clv")
print(*(s.compiled for s in model.segments))
"""


def register() -> None:
    """Code that is the nodes of the segment, as a file."""

    def load(data: bytes) -> Any:
        Path("code.clv").write_bytes(data)
        return cleave.load("code.clv", unproven=True, copy=True)

    def run(code: Any, inputs: list[torch.Tensor]) -> list[torch.Tensor]:
        out = code(*inputs)
        return [out] if isinstance(out, torch.Tensor) else list(out)

    cleave.register_backend(
        NAME,
        supports=lambda node: node.op != "aten::sort" or "not this one",
        compile=lambda segment: Path(segment.folder, "segment.clv").read_bytes(),
        load=load,
        run=run,
    )


class Net(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.first, self.last = nn.Linear(4, 300), nn.Linear(300, 2)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.last(self.first(x).relu().sort(-1).values)


X = torch.randn(3, 4)
ALL: dict[str, Any] = {"minimum_segment_size": 1, "keep_slower": True}


@pytest.fixture
def traced(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A file that this user traced, in the working directory."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("CLEAVE_CACHE", str(tmp_path / "cache"))
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))
    register()
    cleave.trace(Net().eval(), X, backend=NAME, dynamic_batch=(1, 8), **ALL).save("traced.clv")
    return tmp_path / "traced.clv"


def key_of(file: Path) -> Path:
    return file.parent / "state" / "cleave" / "seal.key"


def compiled(path: Path, **more: Any) -> list[bool]:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        model = cleave.load(path, sandbox=False, **more)
    torch.testing.assert_close(model(X), cleave.load(path, sandbox=False, tape_only=True)(X))
    for s in model.segments:
        assert s.compiled or re.search("allowed|damaged", s.reason or "")
    return [s.compiled for s in model.segments]


def in_another_process(program: str) -> str:
    path = os.pathsep.join([str(Path(__file__).parent), os.environ.get("PYTHONPATH", "")])
    words = [sys.executable, "-c", program]
    return subprocess.run(
        words, env={**os.environ, "PYTHONPATH": path}, stdout=subprocess.PIPE, text=True, check=True
    ).stdout


def test_what_a_user_compiled_runs_without_permission(traced: Path) -> None:
    key = key_of(traced)
    assert stat.S_IMODE(key.stat().st_mode) == 0o600
    assert key.stat().st_size == 32
    assert compiled(traced) == [True, True]
    env = {**os.environ, "PYTHONPATH": os.pathsep.join([str(Path(__file__).parent), os.environ.get("PYTHONPATH", "")])}
    done = subprocess.run(
        [sys.executable, "-c", PROGRAM, str(traced)], env=env, capture_output=True, text=True, check=True
    )
    assert done.stdout.split() == ["True", "True"]


def test_what_others_compiled_does_not(traced: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_STATE_HOME", str(traced.parent / "another"))
    assert compiled(traced) == [False, False]
    assert not (traced.parent / "another").exists()  # reading makes no key
    assert compiled(traced, allow_compiled=True) == [True, True]


@pytest.mark.parametrize("spoil", ["read by others", "short", "a link", "gone", "in a folder of others", "another"])
def test_a_key_that_may_not_be_trusted_is_none(traced: Path, spoil: str) -> None:
    key = key_of(traced)
    if spoil == "read by others":
        key.chmod(0o640)
    elif spoil == "short":
        key.write_bytes(b"x")
    elif spoil == "a link":
        key.rename(key.parent / "elsewhere")
        key.symlink_to(key.parent / "elsewhere")
    elif spoil == "gone":
        key.unlink()
    elif spoil == "in a folder of others":
        key.parent.chmod(0o777)
    else:
        key.write_bytes(bytes(32))
    assert compiled(traced) == [False, False]


def test_the_key_outlives_the_cache(traced: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert not (traced.parent / "cache" / "seal.key").exists()
    monkeypatch.setenv("CLEAVE_CACHE", str(traced.parent / "another"))
    assert compiled(traced) == [True, True]


def test_without_a_place_of_its_own_the_key_is_in_the_home_folder(
    traced: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    home = traced.parent / "home"
    home.mkdir()
    monkeypatch.delenv("XDG_STATE_HOME")
    monkeypatch.setenv("HOME", str(home))
    cleave.trace(Net().eval(), X, backend=NAME, **ALL).save("other.clv")
    assert (home / ".local" / "state" / "cleave" / "seal.key").exists()
    assert compiled(traced) == [False, False]


def test_without_a_cache_there_are_no_seals(traced: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CLEAVE_CACHE", "off")
    assert compiled(traced) == [False, False]
    cleave.trace(Net().eval(), X, backend=NAME, **ALL).save("unsealed.clv")
    assert b'\\"seal\\"' in traced.read_bytes()
    assert b'\\"seal\\"' not in Path("unsealed.clv").read_bytes()


def edit_segments(change: Callable[[dict[str, Any]], None]) -> Callable[[dict[str, str]], None]:
    def edit(meta: dict[str, str]) -> None:
        text = json.loads(meta["cleave.segments"])
        change(text[0]["segments"][0])
        meta["cleave.segments"] = json.dumps(text, separators=(",", ":"))

    return edit


def swap_orders(segment: dict[str, Any]) -> None:
    segment["in_order"] = [1, 0]


def more_sizes(segment: dict[str, Any]) -> None:
    segment["sizes"] = [[1, 1000]]


def other_needs(segment: dict[str, Any]) -> None:
    segment["needs"]["cpu"] = ""


def other_seal(segment: dict[str, Any]) -> None:
    segment["seal"] = "0" * 64


@pytest.mark.parametrize("change", [swap_orders, more_sizes, other_needs, other_seal])
def test_a_seal_is_for_all_that_code_is_loaded_with(traced: Path, change: Callable[[dict[str, Any]], None]) -> None:
    rewrite(traced, edit_segments(change))
    assert compiled(traced) == [False, True]


def test_a_seal_is_for_its_nodes(traced: Path) -> None:
    def edit(meta: dict[str, str]) -> None:
        assert "aten::relu" in meta["cleave.plan.0"]
        meta["cleave.plan.0"] = meta["cleave.plan.0"].replace("aten::relu", "aten::tanh")

    rewrite(traced, edit)
    assert compiled(traced) == [False, True]


def test_a_seal_is_for_the_bytes_of_the_code(traced: Path) -> None:
    data = traced.read_bytes()
    at = [m.start() for m in re.finditer(rb"aten::relu", data)]
    assert len(at) == 2  # in the plan, and in the code
    traced.write_bytes(data[: at[1]] + b"aten::tanh" + data[at[1] + 10 :])
    assert compiled(traced) == [False, True]


@pytest.mark.parametrize("seal", [7, "", "0" * 63, "0" * 63 + "G", "A" * 64])
def test_a_seal_that_is_none_is_an_error(traced: Path, seal: object) -> None:
    def put(segment: dict[str, Any]) -> None:
        segment["seal"] = seal

    rewrite(traced, edit_segments(put))
    with pytest.raises(cleave.ArtifactError, match="seal"):
        cleave.load(traced)


def test_a_torchscript_program_carries_seals(traced: Path) -> None:
    x = torch.randn(5, 4)
    net = Net().eval()
    again = cleave.trace(net, X, backend=NAME, dynamic_batch=(1, 8), **ALL)
    torch.jit.save(again.to_torchscript(), "traced.pt")
    torch.save(x, "x.pt")
    program = (
        "import warnings, torch, test_seals; warnings.simplefilter('error', UserWarning); test_seals.register(); "
        "torch.save(torch.jit.load('traced.pt')(torch.load('x.pt')), 'y.pt')"
    )
    in_another_process(program)
    torch.testing.assert_close(torch.load("y.pt"), net(x).detach())


@pytest.mark.parametrize(
    "model",
    [
        b"",
        b"\x08\x07\x12\x04test:\x00",  # as ONNX begins
        b"\n<net name='x' version='11'>",
        b"<?xml version='1.0'?><other/>",
        b"<?xml version='1.0'?><!DOCTYPE net><net name='x' version='11'/>",
        b"<net name='x' version='11'>\x00</net>",
    ],
)
def test_openvino_is_given_its_own_form_alone(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, model: bytes) -> None:
    pytest.importorskip("openvino")
    monkeypatch.chdir(tmp_path)
    net = nn.Sequential(nn.Linear(4, 4), nn.ReLU()).eval()
    path = tmp_path / "traced.clv"
    cleave.trace(net, X, backend="openvino", keep_slower=True).save(path)
    data = path.read_bytes()
    at, end = data.index(b"<?xml"), data.index(b"</net>") + 6
    assert len(model) <= end - at
    path.write_bytes(data[:at] + model.ljust(end - at) + data[end:])
    loaded = cleave.load(path, allow_compiled=True)
    assert "model.xml" in (loaded.segments[0].reason or "")
    assert torch.equal(loaded(X), net(X))

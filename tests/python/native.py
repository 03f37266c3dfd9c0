"""Runs functions by the native engine: captured, saved, and run by the `cleave` command in a process without torch."""

from __future__ import annotations

import os
import re
import subprocess
import sysconfig
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file
from torch import Tensor, nn

import cleave

ROOT = Path(__file__).resolve().parents[2]


def find_command() -> str | None:
    """The command of the package under test: beside it in a build folder, else in this environment."""
    beside = Path(cleave.__file__).resolve().parents[2] / "cleave"
    installed = Path(sysconfig.get_path("scripts")) / "cleave"
    for path in (beside, installed, ROOT / "build" / "cleave"):
        if path.is_file() and os.access(path, os.X_OK):
            return str(path)
    return None


COMMAND = find_command()


def skip_absent_isa(error: str) -> None:
    """A test that asks for an instruction set which this machine has not got ends here, as skipped."""
    if "which this machine has not got" in error:
        pytest.skip(error.strip())


class Calls(nn.Module):
    """Several functions of the same tensors, as one model."""

    def __init__(self, functions: Sequence[Callable[..., Any]]) -> None:
        super().__init__()
        self.functions = functions

    def forward(self, *args: Tensor) -> Any:
        return [fn(*args) for fn in self.functions]


def run(model: nn.Module, inputs: Sequence[Tensor], folder: Path, isa: str = "", threads: int = 1) -> list[Tensor]:
    """The outputs of the model, in order; RuntimeError with the message of a refusal."""
    assert COMMAND is not None
    with torch.no_grad():
        cleave.capture(model, tuple(inputs)).save(folder / "model.clv")
    return rerun(inputs, folder, isa, threads)


def rerun(inputs: Sequence[Tensor], folder: Path, isa: str = "", threads: int = 1, *more: str) -> list[Tensor]:
    """The same for the model that is there, on other inputs."""
    words = [str(COMMAND), "run", "model.clv", "--engine", "native", "--output", "out.safetensors", *more]
    for i, x in enumerate(inputs):
        save_file({"x": x.contiguous()}, folder / f"{i}.safetensors")
        words += ["--input", f"{i}.safetensors:x"]
    env = {"PATH": "/nonexistent", "LC_ALL": "C.UTF-8", "CLEAVE_THREADS": str(threads)}
    if isa:
        env["CLEAVE_ISA"] = isa
    done = subprocess.run(words, cwd=folder, env=env, capture_output=True, text=True, timeout=120, check=False)
    skip_absent_isa(done.stderr)
    if done.returncode:
        raise RuntimeError(done.stderr)
    made = load_file(folder / "out.safetensors")
    return [made[name] for name in sorted(made, key=lambda n: [int(i) for i in re.findall(r"\d+", n)])]

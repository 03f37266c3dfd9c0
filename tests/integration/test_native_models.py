"""Real models on the native engine, run by the `cleave` command in processes without libtorch: whole and in halves,
within the tolerance of `fast`, rows with the same bits. The tape runs the other halves, here."""

from __future__ import annotations

import json
import os
import re
import subprocess
from pathlib import Path
from typing import Any

import pytest
import small_models
import torch
from helpers import draw
from models import BUILDERS, build, build_piped
from native import COMMAND
from safetensors.torch import load_file, save_file
from test_dynamic_models import _rows

import cleave
from cleave import _native, _tree

pytestmark = [pytest.mark.integration, pytest.mark.skipif(COMMAND is None, reason="the command is not built")]

TOLERANCE = 2e-5  # of the largest number of an output
Tensors = list[torch.Tensor]
SMALL = [*small_models.SHAPES, "unet", "lstm"]


class Command:
    """A .clv file that the command runs natively, in the folder of the file."""

    def __init__(self, file: Path) -> None:
        self.file, self.folder = file, file.parent

    def run(self, *words: str, threads: int = 1, isa: str = "", out: str = "out.safetensors") -> Path:
        """The file that it writes. The dynamic linker notes which libraries it opens: torch's are none of them."""
        env = {"PATH": "/nonexistent", "LC_ALL": "C.UTF-8", "CLEAVE_THREADS": str(threads), "CLEAVE_ISA": isa}
        env |= {"LD_DEBUG": "files", "LD_DEBUG_OUTPUT": str(self.folder / "linker")}
        given = [
            str(COMMAND),
            "run",
            str(self.file),
            "--engine",
            "native",
            "--no-sandbox",
            "--quiet",
            "-o",
            out,
            *words,
        ]
        env = {k: v for k, v in env.items() if v}
        done = subprocess.run(given, cwd=self.folder, env=env, capture_output=True, text=True, timeout=300, check=False)
        notes = list(self.folder.glob("linker.*"))
        assert notes, "the linker noted nothing"
        for path in notes:
            assert not re.search(r"libtorch|libc10|libcleave\.so", path.read_text()), "libtorch was loaded"
            path.unlink()
        if done.returncode:
            raise RuntimeError(done.stderr)
        return self.folder / out

    def on(self, call: Any, threads: int = 1, isa: str = "", out: str = "out.safetensors") -> Path:
        """The same, on the inputs of a call."""
        words = []
        for i, x in enumerate(_tree.flatten((call.args, call.kwargs))[1]):
            save_file({"x": x.contiguous()}, self.folder / f"in{i}.safetensors")
            words += ["--input", f"in{i}.safetensors:x"]
        return self.run(*words, threads=threads, isa=isa, out=out)


def _read(path: Path) -> Tensors:
    """The tensors of a file in the order of its header, which is that of the output."""
    data = path.read_bytes()
    header = json.loads(data[8 : 8 + int.from_bytes(data[:8], "little")])
    made = load_file(path)
    return [made[name] for name in header if name in made]


def _tensors(value: Any) -> Tensors:
    return _tree.flatten(dict(value) if isinstance(value, cleave.artifact.Record) else value)[1]


def _near(want: Tensors, got: Tensors, what: str) -> None:
    assert len(got) == len(want), what
    for i, (a, b) in enumerate(zip(want, got, strict=True)):
        assert (a.dtype, a.shape) == (b.dtype, b.shape), f"{what}: tensor {i}"
        most = float(a.double().abs().max()) if a.numel() else 0.0
        off = float((a.double() - b.double()).abs().max()) if a.numel() else 0.0
        assert off <= TOLERANCE * max(most, 1.0), f"{what}: tensor {i} is off by {off:.2g} of {most:.2g}"


def _bits(a: torch.Tensor, b: torch.Tensor) -> bool:
    return bool(_native.bits_equal(a.contiguous(), b.contiguous()))


def _row(call: Any, row: int) -> Any:
    """One row of the inputs."""
    one = slice(row, row + 1)
    return type(call)(*(a[one] for a in call.args), **{k: v[one] for k, v in call.kwargs.items()})


def _turned(call: Any) -> Any:
    return type(call)(*(a.flip(0) for a in call.args), **{k: v.flip(0) for k, v in call.kwargs.items()})


def _check_rows(whole: Command, together: Any, rows: int, what: str, isa: str = "") -> None:
    """Each row alone, with one thread or two, has the bits that it has in the batch; at another place, too."""
    batch, turned = _read(whole.on(together, isa=isa)), _read(whole.on(_turned(together), threads=2, isa=isa))
    for row in range(rows):
        alone = _read(whole.on(_row(together, row), threads=1 + row % 2, isa=isa))
        for a, b, c in zip(batch, turned, alone, strict=True):
            (dim,) = (d for d in range(a.ndim) if a.shape[d] != c.shape[d])  # states of an LSTM have layers first
            assert _bits(a.narrow(dim, row, 1), c), f"{what}: row {row} alone"
            assert _bits(a.narrow(dim, row, 1), b.narrow(dim, rows - 1 - row, 1)), f"{what}: row {row} elsewhere"


def _check_halves(folder: Path, call: Any, want: Tensors, what: str) -> None:
    """The prefix natively and the suffix on the tape, then the other way round; a file crosses."""
    prefix, suffix = folder / "prefix.clv", folder / "suffix.clv"
    crossing = Command(prefix).on(call, out="boundary.safetensors")
    boundary = cleave.BoundaryPayload.from_bytes(crossing.read_bytes())
    _near(want, _tensors(cleave.load(suffix, engine="tape").run_suffix(boundary)), f"{what}, native then tape")
    made = cleave.load(prefix, engine="tape").run_prefix(*call.args, **call.kwargs)
    crossing.write_bytes(made.to_bytes())
    out = Command(suffix).run("--boundary", crossing.name, threads=2)
    _near(want, _read(out), f"{what}, tape then native")
    crossing = Command(prefix).on(call, out="boundary.safetensors")
    _near(want, _read(Command(suffix).run("--boundary", crossing.name)), f"{what}, native then native")


def _prepare(name: str, folder: Path) -> tuple[Any, Any, Command]:
    """The model, an example, and the model as a file."""
    small = small_models.build if name in small_models.SHAPES else build_piped
    model, make_inputs = (small if name in SMALL else build)(name)
    example = draw(make_inputs, 0, False)
    spec = cleave.SplitSpec(boundary="50%", dynamic_batch=(1, 16), trace_batch_mode="batch_gt1")
    rt = cleave.prepare_split(model, example_inputs=example.args, example_kwargs=example.kwargs, split=spec)
    rt.prepare_sizes(1, 3)
    file = folder / "model.clv"
    rt.save(file, prove="none")
    return model, example, Command(file)


def _split(whole: Command) -> None:
    cleave.load(whole.file).split(None, whole.folder / "prefix.clv", whole.folder / "suffix.clv")


@pytest.mark.parametrize("name", [*BUILDERS, *SMALL])
def test_a_real_model_runs_natively_without_libtorch(name: str, tmp_path: Path) -> None:
    model, example, whole = _prepare(name, tmp_path)
    _split(whole)
    for batch in (1, 3):
        call = _rows(example, batch)
        with torch.no_grad():
            want = _tensors(model(*call.args, **call.kwargs))
        _near(want, _read(whole.on(call)), f"{name} at batch {batch}")
        _check_halves(tmp_path, call, want, f"{name} at batch {batch}")
    _check_rows(whole, _rows(example, 3), 3, name)


@pytest.mark.slow
@pytest.mark.parametrize("isa", ["base", "avx2", ""])
@pytest.mark.parametrize("name", list(BUILDERS))
def test_a_real_model_runs_natively_at_many_sizes_on_each_instruction_set(name: str, isa: str, tmp_path: Path) -> None:
    model, example, whole = _prepare(name, tmp_path)
    for batch in (1, 2, 5, 8):
        call = _rows(example, batch)
        with torch.no_grad():
            want = _tensors(model(*call.args, **call.kwargs))
        for threads in (1, os.cpu_count() or 1):
            _near(want, _read(whole.on(call, threads=threads, isa=isa)), f"{name} at batch {batch}")
    _check_rows(whole, _rows(example, 5), 5, name, isa)

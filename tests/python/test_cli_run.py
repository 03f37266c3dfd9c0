"""The `cleave` command on files that plan.save wrote: run, split, bench, verify, in processes without Python."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sysconfig
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from crafted import SAME_USER
from safetensors.torch import load_file, save_file
from torch import Tensor, nn

import cleave

ROOT = Path(__file__).resolve().parents[2]


def find_command() -> str | None:
    """The command of the package under test: beside it in a build folder, else in this environment."""
    beside = Path(cleave.__file__).resolve().parents[2] / "cleave"
    installed = Path(sysconfig.get_path("scripts")) / "cleave"
    given = os.environ.get("CLEAVE_COMMAND")
    for path in [Path(given)] if given else [beside, installed, ROOT / "build" / "cleave"]:
        if path.is_file() and os.access(path, os.X_OK):
            return str(path)
    return None


COMMAND = find_command()
pytestmark = pytest.mark.skipif(COMMAND is None, reason="the cleave command is not built")

Run = Callable[..., subprocess.CompletedProcess[str]]


@pytest.fixture
def run(tmp_path: Path) -> Run:
    """Runs the command in an empty folder, with nothing of Python in its environment."""

    def run_it(*args: object, code: int = 0, program: str | None = COMMAND) -> subprocess.CompletedProcess[str]:
        assert program is not None
        env = {"PATH": "/nonexistent", "OMP_NUM_THREADS": "1", "LC_ALL": "C.UTF-8", **SAME_USER}
        words = [program, *(str(a) for a in args)]
        done = subprocess.run(words, cwd=tmp_path, env=env, capture_output=True, text=True, timeout=120, check=False)
        assert done.returncode == code, f"{words}: exit status {done.returncode}\n{done.stdout}{done.stderr}"
        return done

    return run_it


class Residual(nn.Module):
    """Convolutions with batch norm and a residual; two outputs in a dict."""

    def __init__(self) -> None:
        super().__init__()
        self.stem = nn.Conv2d(3, 8, 3, padding=1)
        self.norm = nn.BatchNorm2d(8)
        self.body = nn.Sequential(nn.Conv2d(8, 8, 3, padding=1), nn.ReLU(), nn.Conv2d(8, 8, 3, padding=1))
        self.head = nn.Linear(8, 5)

    def forward(self, image: Tensor) -> dict[str, Tensor]:
        x = self.norm(self.stem(image)).relu()
        x = x + self.body(x)
        pooled = x.mean((2, 3))
        return {"logits": self.head(pooled), "pooled": pooled}


class Words(nn.Module):
    """Token ids, a mask and a scale; attention; a tuple of outputs of several dtypes."""

    def __init__(self) -> None:
        super().__init__()
        self.table = nn.Embedding(100, 16)
        self.attend = nn.MultiheadAttention(16, 2, batch_first=True)
        self.head = nn.Linear(16, 7)

    def forward(self, ids: Tensor, mask: Tensor, scale: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        x = self.table(ids)
        x = x + self.attend(x, x, x, key_padding_mask=mask, need_weights=False)[0]
        scores = self.head(x) * scale
        return scores, scores.argmax(-1), scores.amax((1, 2)) > 0


@pytest.fixture
def residual() -> nn.Module:
    torch.manual_seed(0)
    return Residual().eval()


def eager(model: nn.Module, *inputs: Tensor) -> Any:
    with torch.no_grad():
        return model(*inputs)


def same(got: Tensor, want: Tensor) -> bool:
    return got.dtype == want.dtype and got.shape == want.shape and got.numpy().tobytes() == want.numpy().tobytes()


def saved_residual(model: nn.Module, path: Path) -> None:
    cleave.capture(model, torch.randn(2, 3, 8, 8), dynamic_batch=(1, 6)).save(path)


def test_a_model_runs_without_python_and_equals_eager_at_several_batch_sizes(
    tmp_path: Path, run: Run, residual: nn.Module
) -> None:
    saved_residual(residual, tmp_path / "model.clv")
    for batch in (1, 3, 6):
        x = torch.randn(batch, 3, 8, 8)
        np.save(tmp_path / "x.npy", x.numpy())
        run("run", "model.clv", "--input", "image=x.npy", "-o", "out.safetensors")
        got, want = load_file(tmp_path / "out.safetensors"), eager(residual, x)
        assert sorted(got) == ["logits", "pooled"]
        assert all(same(got[k], want[k]) for k in got)


@pytest.mark.integration
def test_halves_that_the_command_cut_give_the_bits_of_eager_in_two_processes(
    tmp_path: Path, run: Run, residual: nn.Module
) -> None:
    saved_residual(residual, tmp_path / "model.clv")
    said = run("split", "model.clv", "-b", "50%", "--batch", 2, "-o", "prefix.clv", "suffix.clv", "--json")
    cut = json.loads(said.stdout)
    assert cut["prefix"]["nodes"] + cut["suffix"]["nodes"] == len(cleave.load(tmp_path / "model.clv").nodes)
    for batch in (1, 2, 5):
        x = torch.randn(batch, 3, 8, 8)
        save_file({"x": x}, tmp_path / "x.safetensors")
        run("run", "prefix.clv", "-i", "x.safetensors", "-o", "boundary.safetensors")
        run("run", "suffix.clv", "--boundary", "boundary.safetensors", "-o", "out.safetensors")
        got, want = load_file(tmp_path / "out.safetensors"), eager(residual, x)
        assert all(same(got[k], want[k]) for k in want)


def test_halves_of_a_split_that_python_made_run_by_part_and_boundaries_go_both_ways(
    tmp_path: Path, run: Run, residual: nn.Module
) -> None:
    x = torch.randn(2, 3, 8, 8)
    spec = cleave.SplitSpec(boundary="after:norm", dynamic_batch=(1, 4))
    split = cleave.prepare_split(residual, example_inputs=x, split=spec)
    split.save(tmp_path / "cut.clv")
    np.save(tmp_path / "x.npy", x.numpy())
    run("run", "cut.clv", "--part", "prefix", "-i", "x.npy", "-o", "boundary.safetensors")
    run("run", "cut.clv", "--part", "suffix", "--boundary", "boundary.safetensors", "-o", "out.safetensors")
    want = eager(residual, x)
    assert all(same(v, want[k]) for k, v in load_file(tmp_path / "out.safetensors").items())
    there = cleave.load(tmp_path / "cut.clv", part="suffix")
    boundary = cleave.BoundaryPayload.load(tmp_path / "boundary.safetensors")
    assert all(same(v, want[k]) for k, v in there.run_suffix(boundary).items())


def test_compressing_a_boundary_shows_its_bytes_and_what_it_cost(tmp_path: Path, run: Run, residual: nn.Module) -> None:
    saved_residual(residual, tmp_path / "model.clv")
    run("split", "model.clv", "-b", "after:norm", "-o", "prefix.clv", "suffix.clv")
    for how in cleave.payload.METHODS:
        if how == "zstd" and not has_zstd():
            continue
        said = run("run", "prefix.clv", "--fill", "random", "--batch", 2, "-o", "b", "--compress", how, "--json")
        (row,) = json.loads(said.stdout)
        boundary = cleave.BoundaryPayload.load(tmp_path / "b")
        (error,) = boundary.compression_error.values()
        assert (row["method"], row["max_error"], row["error"]) == (how, error.max_abs, error.relative)
        assert row["l2_error"] == error.l2
        assert row["file_bytes"] < row["bytes"] == boundary.nbytes
        assert (error.relative > 0) == (how != "zstd")
        run("run", "suffix.clv", "--boundary", "b")
    text = run("run", "prefix.clv", "--fill", "random", "--batch", 2, "-o", "b", "--compress", "int8").stdout
    assert "in file" in text
    assert "l2 error" in text
    said = run("run", "prefix.clv", "--fill", "random", "--batch", 2, "--compress", "int8", code=1)
    assert "--compress is for the boundary" in said.stderr
    said = run("run", "suffix.clv", "--boundary", "b", "--no-checksum", code=1)
    assert "--no-checksum is for the boundary" in said.stderr


def has_zstd() -> bool:
    try:
        return bool(cleave.BoundaryPayload("", "", None, {"x": torch.zeros(99)}).to_bytes(compress="zstd"))
    except cleave.PayloadError:
        return False


def test_a_damaged_boundary_is_refused_unless_its_writer_left_the_checksum_out(
    tmp_path: Path, run: Run, residual: nn.Module
) -> None:
    saved_residual(residual, tmp_path / "model.clv")
    run("split", "model.clv", "-b", "after:norm", "-o", "prefix.clv", "suffix.clv")
    for more, code in ((["--no-checksum"], 0), ([], 1)):
        run("run", "prefix.clv", "--fill", "random", "--batch", 2, "-o", "b", *more)
        data = bytearray((tmp_path / "b").read_bytes())
        data[-5] ^= 1
        (tmp_path / "b").write_bytes(data)
        said = run("run", "suffix.clv", "--boundary", "b", code=code).stderr
        assert ("changed or damaged" in said) == bool(code)
    (tmp_path / "b").write_bytes(data[:-5])
    said = run("run", "suffix.clv", "--boundary", "b", code=1).stderr
    assert f"truncated: it has {len(data) - 5} bytes and should have {len(data)}" in said


def test_halves_that_get_their_weights_from_files_must_get_the_same(
    tmp_path: Path, run: Run, residual: nn.Module
) -> None:
    saved_residual(residual, tmp_path / "model.clv")
    run("split", "model.clv", "-b", "after:norm", "-o", "prefix.clv", "suffix.clv")
    torch.manual_seed(5)
    for name in ("one", "two"):
        state = {k: torch.randn_like(v) if v.is_floating_point() else v for k, v in residual.state_dict().items()}
        save_file({k: v.abs() if k.endswith("running_var") else v for k, v in state.items()}, tmp_path / name)
    run("run", "prefix.clv", "--fill", "random", "--batch", 2, "--weights", "one", "-o", "b")
    run("run", "suffix.clv", "--boundary", "b", "--weights", "one")
    said = run("run", "suffix.clv", "--boundary", "b", "--weights", "two", code=1)
    assert "made with weights" in said.stderr
    said = run("run", "suffix.clv", "--boundary", "b", code=1)
    assert "made with weights" in said.stderr


def test_several_inputs_of_several_dtypes_come_from_one_file_by_name(tmp_path: Path, run: Run) -> None:
    torch.manual_seed(0)
    model = Words().eval()
    ids, mask = torch.randint(0, 100, (2, 5)), torch.zeros(2, 5, dtype=torch.bool)
    mask[1, 3:] = True
    inputs = (ids, mask, torch.tensor(0.5))
    with torch.no_grad():
        cleave.capture(model, inputs).save(tmp_path / "words.clv")
    save_file(dict(zip(("ids", "mask", "scale"), inputs, strict=True)), tmp_path / "in.safetensors")
    every = ["-i", "in.safetensors", "-i", "in.safetensors", "-i", "in.safetensors:scale"]
    run("run", "words.clv", *every, "-o", "out.safetensors")
    got, want = load_file(tmp_path / "out.safetensors"), eager(model, *inputs)
    assert sorted(got) == ["[0]", "[1]", "[2]"]
    assert all(same(got[f"[{i}]"], w) for i, w in enumerate(want))


def test_inputs_keep_the_strides_that_the_model_was_captured_with(
    tmp_path: Path, run: Run, residual: nn.Module
) -> None:
    model = residual.to(memory_format=torch.channels_last)
    x = torch.randn(2, 3, 8, 8).to(memory_format=torch.channels_last)
    cleave.capture(model, x).save(tmp_path / "model.clv")
    np.save(tmp_path / "x.npy", np.ascontiguousarray(x.numpy()))
    run("run", "model.clv", "-i", "x.npy", "-o", "out.safetensors")
    got, want = load_file(tmp_path / "out.safetensors"), eager(model, x)
    assert all(same(got[k], want[k]) for k in want)


def test_elements_that_shared_memory_at_capture_must_be_equal(tmp_path: Path, run: Run) -> None:
    x = torch.arange(4.0).expand(3, 4)
    cleave.capture(lambda x: x.cumsum(0), x).save(tmp_path / "model.clv")
    np.save(tmp_path / "same.npy", np.ascontiguousarray(x.numpy()))
    np.save(tmp_path / "other.npy", np.arange(12, dtype=np.float32).reshape(3, 4))
    run("run", "model.clv", "-i", "same.npy", "-o", "out.safetensors")
    assert same(load_file(tmp_path / "out.safetensors")["output"], x.cumsum(0))
    assert "share memory" in run("run", "model.clv", "-i", "other.npy", code=1).stderr


class Branch(nn.Module):
    """Another plan for a batch of one."""

    def forward(self, x: Tensor) -> Tensor:
        return x.exp() if x.shape[0] == 1 else x.sin() * x.shape[0]


@pytest.mark.integration
def test_sizes_that_have_a_plan_of_their_own_are_served_by_it(tmp_path: Path, run: Run) -> None:
    model = Branch()
    cleave.capture(model, torch.randn(3, 4), dynamic_batch=(1, 5)).save(tmp_path / "model.clv")
    for batch in (1, 2, 5):
        done = run("run", "model.clv", "--fill", "ones", "--batch", batch, "-o", "out.safetensors")
        assert same(load_file(tmp_path / "out.safetensors")["output"], eager(model, torch.ones(batch, 4))), done.stdout


class Asks(nn.Module):
    """A question about what the first layer makes; its answer is known before the cut."""

    def __init__(self) -> None:
        super().__init__()
        self.one, self.act, self.two = nn.Linear(8, 8), nn.ReLU(), nn.Linear(8, 8)

    def forward(self, x: Tensor) -> Tensor:
        x = self.one(x)
        y = self.act(x) if bool((x > -100).all()) else x
        return self.two(y)


@pytest.mark.parametrize("given", [["-b", "after:one"], []], ids=["asked for", "of the file"])
def test_the_name_of_a_cut_is_not_that_of_a_question_behind_it(tmp_path: Path, run: Run, given: list[str]) -> None:
    torch.manual_seed(0)
    x, model = torch.randn(4, 8), Asks().eval()
    cleave.capture(model, x, dynamic_batch=(1, 8)).save(tmp_path / "model.clv", boundary=None if given else "after:one")
    said = run("split", "model.clv", *given, "-o", "prefix.clv", "suffix.clv").stdout
    assert said.startswith("cut     after linear (node 0 in one), 5"), said
    cut = json.loads(run("split", "model.clv", *given, "-o", "p.clv", "s.clv", "--json").stdout)
    assert (cut["name"], cut["module"], cut["position"]) == ("linear", "one", cut["prefix"]["nodes"] - 1)
    assert cut["position"] > 1  # the question was decided by the prefix
    np.save(tmp_path / "x.npy", x.numpy())
    run("run", "prefix.clv", "-i", "x.npy", "-o", "boundary.safetensors")
    run("run", "suffix.clv", "--boundary", "boundary.safetensors", "-o", "out.safetensors")
    assert same(load_file(tmp_path / "out.safetensors")["output"], eager(model, x))


class Steps(nn.Module):
    """A plan for each size, without formulas."""

    def forward(self, x: Tensor) -> Tensor:
        for row in range(x.shape[0]):
            x = x.sin() if row % 2 else x.exp()
        return x


@pytest.mark.integration
def test_files_choose_among_plans_for_single_sizes(tmp_path: Path, run: Run) -> None:
    model = Steps()
    cleave.capture(model, torch.randn(3, 4), dynamic_batch=(1, 3)).save(tmp_path / "model.clv")
    plans = json.loads(run("inspect", "model.clv", "--json").stdout)["artifact"]["plans"]
    assert sorted(p["fixed"]["B"] for p in plans) == [1, 2, 3]
    page = run("inspect", "model.clv").stdout
    assert all(f", for B={n} alone\n" in page for n in (1, 2, 3)), page
    for batch in (1, 2, 3):
        x = torch.randn(batch, 4)
        np.save(tmp_path / "x.npy", x.numpy())
        run("run", "model.clv", "-i", "x.npy", "-o", "out.safetensors")
        assert same(load_file(tmp_path / "out.safetensors")["output"], eager(model, x))
    np.save(tmp_path / "x.npy", np.zeros((4, 4), np.float32))
    assert "input x" in run("run", "model.clv", "-i", "x.npy", code=1).stderr
    shapes = {
        json.loads(run("run", "model.clv", "--fill", "ones", "--plan", p, "--json").stdout)[0]["shape"]
        for p in range(3)
    }
    assert shapes == {"[1,4]", "[2,4]", "[3,4]"}
    run("run", "model.clv", "--fill", "ones", "--plan", 3, code=1)


def test_source_of_a_file_with_several_plans_says_which_one_it_is(tmp_path: Path, run: Run) -> None:
    cleave.capture(Steps(), torch.randn(3, 4), dynamic_batch=(1, 3)).save(tmp_path / "model.clv")
    said = [run("source", "model.clv", "--plan", p).stderr.splitlines()[0] for p in range(3)]
    assert {s.split(": ")[1] for s in said} == {"x f32[1,4]", "x f32[2,4]", "x f32[3,4]"}
    assert said[1].startswith("plan 1 of 3 is written")
    assert run("source", "model.clv", "-q").stderr == ""
    cleave.capture(Steps(), torch.randn(3, 4)).save(tmp_path / "one.clv")
    assert run("source", "one.clv").stderr == ""


class Keys(nn.Module):
    """Outputs under keys without a text of their own, and under keys that look like the path of another."""

    def forward(self, x: Tensor) -> dict[Any, Any]:
        return {(1, "a"): x + 1, None: x + 2, 0.5: x + 3, "": x + 4, "y[0]": x + 5, "y": [x + 6], 7: x + 7}


def test_every_output_has_a_name_of_its_own(tmp_path: Path, run: Run) -> None:
    x = torch.randn(2, 3)
    np.save(tmp_path / "x.npy", x.numpy())
    cleave.capture(Keys(), x).save(tmp_path / "model.clv")
    run("run", "model.clv", "-i", "x.npy", "-o", "out.safetensors")
    got = load_file(tmp_path / "out.safetensors")
    names = ["[key 0]", "[key 1]", "[key 2]", "[key 3]", "y[0]", "y[0]_5", "[7]"]
    assert sorted(got) == sorted(names)
    for i, name in enumerate(names):
        assert same(got[name], x + (i + 1)), name


@pytest.mark.integration
def test_weights_that_are_not_complete_are_refused_whatever_the_file_has_itself(
    tmp_path: Path, run: Run, residual: nn.Module
) -> None:
    saved_residual(residual, tmp_path / "model.clv")
    state = residual.state_dict()
    names = [n for n in state if n.endswith(".running_mean")] + [n for n in state if n.endswith(".weight")]
    save_file(state, tmp_path / "whole.safetensors")
    run("run", "model.clv", "--fill", "ones", "--weights", "whole.safetensors")
    for name in (names[0], names[-1]):
        save_file({n: t for n, t in state.items() if n != name}, tmp_path / "part.safetensors")
        done = run("run", "model.clv", "--fill", "ones", "--weights", "part.safetensors", code=1)
        assert f"part.safetensors: the model reads {name}, which is not there" in done.stderr


@pytest.mark.integration
def test_random_inputs_depend_on_the_seed_alone(tmp_path: Path, run: Run, residual: nn.Module) -> None:
    saved_residual(residual, tmp_path / "model.clv")
    one = run("run", "model.clv", "--fill", "random", "--seed", 1, "--print").stdout
    assert run("run", "model.clv", "--fill", "random", "--seed", 1, "--print").stdout == one
    assert run("run", "model.clv", "--fill", "random", "--seed", 2, "--print").stdout != one


@pytest.mark.integration
def test_random_floats_are_normal(tmp_path: Path, run: Run) -> None:
    for dtype in (torch.float32, torch.float64, torch.float16, torch.bfloat16):
        model = nn.Identity()
        cleave.capture(lambda x: x * 1, torch.zeros(1000, dtype=dtype)).save(tmp_path / "model.clv")
        run("run", "model.clv", "--fill", "random", "-o", "out.safetensors")
        x = model(load_file(tmp_path / "out.safetensors")["output"]).double()
        assert abs(float(x.mean())) < 0.15
        assert abs(float(x.std()) - 1) < 0.1


def test_weights_come_from_another_file(tmp_path: Path, run: Run, residual: nn.Module) -> None:
    x = torch.randn(2, 3, 8, 8)
    cleave.capture(residual, x).save(tmp_path / "bare.clv", weights=False)
    save_file(residual.state_dict(), tmp_path / "weights.safetensors")
    np.save(tmp_path / "x.npy", x.numpy())
    run("run", "bare.clv", "-i", "x.npy", "--weights", "weights.safetensors", "-o", "out.safetensors")
    got, want = load_file(tmp_path / "out.safetensors"), eager(residual, x)
    assert all(same(got[k], want[k]) for k in want)
    assert "the weights are not in the file" in run("run", "bare.clv", "-i", "x.npy", code=1).stderr


def test_what_is_wrong_is_said_with_exit_status_and_hint(tmp_path: Path, run: Run, residual: nn.Module) -> None:
    plan = cleave.capture(residual, torch.randn(2, 3, 8, 8), dynamic_batch=(1, 64))
    plan.save(tmp_path / "model.clv", prove="none")
    np.save(tmp_path / "double.npy", np.zeros((2, 3, 8, 8)))
    np.save(tmp_path / "shape.npy", np.zeros((2, 4, 8, 8), np.float32))
    np.save(tmp_path / "objects.npy", np.array([{}, {}]), allow_pickle=True)
    cases = {
        ("image=double.npy",): "double.npy has f64[2,3,8,8], the model takes f32[B,3,8,8]",
        ("image=shape.npy",): "shape.npy has f32[2,4,8,8], the model takes f32[B,3,8,8]",
        ("image=objects.npy",): "Python objects",
        ("picture=random",): "the model has no input picture; its inputs are image",
        ("random", "random"): "--input random is one too many",
    }
    for inputs, message in cases.items():
        words = [w for i in inputs for w in ("--input", i)]
        assert message in run("run", "model.clv", *words, code=1).stderr
    refused = run("run", "model.clv", "--input", "random", "--batch", 63, code=1).stderr
    assert "never recorded at B=63" in refused
    assert "hint: " in refused
    assert "--unproven" in refused
    run("run", "model.clv", "--input", "random", "--batch", 63, "--unproven")
    run("run", "model.clv", "--device", "nowhere", "--fill", "zeros", code=1)
    run("run", "model.clv", "--no-such-option", code=2)


def test_damaged_files_are_refused(tmp_path: Path, run: Run, residual: nn.Module) -> None:
    saved_residual(residual, tmp_path / "model.clv")
    whole = (tmp_path / "model.clv").read_bytes()
    (tmp_path / "short.clv").write_bytes(whole[:-4])
    (tmp_path / "data.clv").write_bytes(whole[:-4] + bytes(b ^ 0xFF for b in whole[-4:]))
    at = whole.index(b"aten::relu")
    (tmp_path / "header.clv").write_bytes(whole[: at + 6] + b"T" + whole[at + 7 :])
    assert "ok: " in run("verify", "model.clv").stdout
    for name in ("short.clv", "header.clv"):
        run("run", name, "--fill", "zeros", code=1)
        run("inspect", name, code=1)
        run("verify", name, code=1)
    assert "was changed or damaged" in run("verify", "data.clv", code=1).stderr
    assert "was changed or damaged" in run("run", "data.clv", "--fill", "zeros", "--check", code=1).stderr


def test_without_cleave_torch_models_run_on_no_tape(tmp_path: Path, run: Run, residual: nn.Module) -> None:
    assert COMMAND is not None
    saved_residual(residual, tmp_path / "model.clv")
    alone = shutil.copy(COMMAND, tmp_path / "alone")
    assert "Residual" in run("inspect", "model.clv", program=alone).stdout
    refused = run("run", "model.clv", "--fill", "zeros", "--engine", "tape", code=1, program=alone).stderr
    assert "needs cleave-torch" in refused
    assert "hint: " in refused


def test_the_command_itself_does_not_load_torch() -> None:
    assert COMMAND is not None
    if not shutil.which("ldd"):
        pytest.skip("ldd is not installed")
    loaded = subprocess.run(["ldd", COMMAND], capture_output=True, text=True, check=True).stdout
    assert "torch" not in loaded
    assert "python" not in loaded


def test_compare_names_the_first_difference(tmp_path: Path, run: Run, residual: nn.Module) -> None:
    saved_residual(residual, tmp_path / "model.clv")
    x = torch.randn(2, 3, 8, 8)
    np.save(tmp_path / "x.npy", x.numpy())
    want = {k: v.clone() for k, v in eager(residual, x).items()}
    save_file(want, tmp_path / "want.safetensors")
    run("run", "model.clv", "-i", "x.npy", "--compare", "want.safetensors")
    want["logits"][1, 3] += 1
    save_file(want, tmp_path / "want.safetensors")
    assert "logits[1,3] is " in run("run", "model.clv", "-i", "x.npy", "--compare", "want.safetensors", code=1).stderr


@pytest.mark.integration
def test_bench_measures_each_batch_and_profiles_nodes_operators_and_modules(
    tmp_path: Path, run: Run, residual: nn.Module
) -> None:
    saved_residual(residual, tmp_path / "model.clv")
    few = ["--iterations", 3, "--warmup", 1, "--json"]
    rows = json.loads(run("bench", "model.clv", "--batch", 1, "--batch", 4, *few).stdout)
    assert [r["sizes"] for r in rows] == ["B=1", "B=4"]
    assert all(0 < r["min"] <= r["median"] <= r["p95"] and r["runs"] == 3 and r["per_second"] > 0 for r in rows)
    nodes = len(cleave.load(tmp_path / "model.clv").nodes)
    by_node = json.loads(run("bench", "model.clv", "--profile", "node", *few).stdout)[1:]
    assert len(by_node) == nodes
    assert abs(sum(r["share"] for r in by_node) - 1) < 1e-9
    by_op = {r["what"]: r for r in json.loads(run("bench", "model.clv", "--profile", "op", *few).stdout)[1:]}
    assert by_op["aten::conv2d"]["nodes"] == 3
    assert sum(r["nodes"] for r in by_op.values()) == nodes
    top = ["--profile", "module", "--depth", 1]
    by_module = {r["what"]: r["nodes"] for r in json.loads(run("bench", "model.clv", *top, *few).stdout)[1:]}
    assert by_module["body"] == 3
    assert set(by_module) == {"(model)", "stem", "norm", "body", "head"}


@pytest.mark.integration
def test_bench_of_halves(tmp_path: Path, run: Run, residual: nn.Module) -> None:
    saved_residual(residual, tmp_path / "model.clv")
    run("split", "model.clv", "-b", "after:norm", "-o", "prefix.clv", "suffix.clv")
    run("run", "prefix.clv", "--fill", "random", "--batch", 2, "-o", "boundary.safetensors")
    few = ["--iterations", 2, "--profile", "op", "--json"]
    prefix = json.loads(run("bench", "prefix.clv", "--batch", 2, *few).stdout)
    suffix = json.loads(run("bench", "suffix.clv", "--boundary", "boundary.safetensors", *few).stdout)
    assert {"aten::conv2d", "aten::batch_norm", "all"} == {r["what"] for r in prefix}
    assert "aten::linear" in {r["what"] for r in suffix}


def test_python_and_the_command_say_the_same_of_a_file(tmp_path: Path, run: Run, residual: nn.Module) -> None:
    saved_residual(residual, tmp_path / "model.clv")
    page = json.loads(run("inspect", "model.clv", "--json").stdout)
    assert page["artifact"]["about"]["torch"] == torch.__version__
    assert page["artifact"]["tensors"] == len(residual.state_dict()) - 1  # num_batches_tracked is not read
    assert page["nodes"] == len(cleave.load(tmp_path / "model.clv").nodes)


@pytest.mark.integration
def test_a_model_from_standard_input(tmp_path: Path, run: Run, residual: nn.Module) -> None:
    assert COMMAND is not None
    saved_residual(residual, tmp_path / "model.clv")
    for words in (["inspect", "-"], ["verify", "-"], ["run", "-", "--fill", "ones"]):
        with (tmp_path / "model.clv").open("rb") as file:
            done = subprocess.run([COMMAND, *words], stdin=file, capture_output=True, timeout=120, check=False)
        assert done.returncode == 0, done.stderr
        assert done.stdout.decode() == run(
            *(w.replace("-", "model.clv") if w == "-" else w for w in words)
        ).stdout.replace("model.clv, ", "standard input, ")


@pytest.mark.skipif(not torch.cuda.is_available(), reason="there is no CUDA here")
def test_a_model_runs_on_a_gpu_without_python(tmp_path: Path, run: Run, residual: nn.Module) -> None:
    saved_residual(residual, tmp_path / "model.clv")
    x = torch.randn(2, 3, 8, 8)
    np.save(tmp_path / "x.npy", x.numpy())
    run("run", "model.clv", "-i", "x.npy", "--device", "cuda:0", "-o", "out.safetensors")
    got, want = load_file(tmp_path / "out.safetensors"), eager(residual.cuda(), x.cuda())
    assert all(same(got[k], want[k].cpu()) for k in want)
    rows = json.loads(run("bench", "model.clv", "--device", "cuda:0", "--profile", "op", "--json").stdout)
    assert all(r["median"] > 0 for r in rows)


def test_names_in_a_file_do_not_steer_the_terminal(tmp_path: Path, run: Run) -> None:
    model = nn.Sequential()
    model.add_module("\x1b[31m", nn.Linear(4, 4))
    model.add_module("\x1b]0;title\x07\x9b31m", nn.Linear(4, 2))
    notes = {"note": "\x1b[2J", "\x1b[3J\x9b": "key"}
    cleave.capture(model.eval(), torch.ones(2, 4)).save(tmp_path / "model.clv", metadata=notes)
    halves = ["-o", "prefix.clv", "suffix.clv"]
    for words in (
        ["inspect", "model.clv"],
        ["inspect", "model.clv", "--json"],
        ["candidates", "model.clv"],
        ["split", "model.clv", "-b", "50%", *halves],
        ["diff", "model.clv", "prefix.clv"],
        ["run", "model.clv", "--fill", "ones"],
        ["bench", "model.clv", "--iterations", 1, "--profile", "module"],
    ):
        done = run(*words, code=1 if words[0] == "diff" else 0)
        assert not set("\x1b\x07\x9b") & set(done.stdout + done.stderr), words


def test_memory_that_tensors_share_is_counted_once(tmp_path: Path, run: Run) -> None:
    class Shared(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            base = torch.randn(8)
            self.register_buffer("first", base)
            self.register_buffer("other", torch.randn(4))
            self.register_buffer("later", base[4:])

        def forward(self, x: Tensor) -> Tensor:
            return x + self.first.sum() + self.other.sum() + self.later.sum()

    cleave.capture(Shared().eval(), torch.ones(2, 4)).save(tmp_path / "model.clv")
    assert json.loads(run("inspect", "model.clv", "--json").stdout)["artifact"]["tensor_bytes"] == 48


@pytest.mark.integration
def test_every_command_that_reads_a_file_lets_an_operator_through_by_name(tmp_path: Path, run: Run) -> None:
    (tmp_path / "data").write_bytes(bytes(16))
    name = str(tmp_path / "data")
    cleave.capture(lambda x: x + torch.from_file(name, size=4), torch.ones(4)).save(tmp_path / "model.clv")
    for words in (
        ["inspect", "model.clv"],
        ["print", "model.clv"],
        ["verify", "model.clv"],
        ["candidates", "model.clv"],
        ["source", "model.clv"],
        ["dot", "model.clv"],
        ["html", "model.clv", "-o", "-"],
        ["diff", "model.clv", "model.clv"],
        ["run", "model.clv", "--fill", "ones"],
    ):
        refused = run(*words, code=2 if words[0] == "diff" else 1)
        assert "aten::from_file reads or writes files" in refused.stderr, words
        assert "hint: --allow-operator NAME" in refused.stderr, words
        run(*words, "--allow-operator", "aten::from_file")


class Renames(nn.Module):
    """Returns other names on negative data, and does something else with the old ones where data is large."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.second = nn.Linear(4, 4), nn.Linear(4, 4)

    def forward(self, x: Tensor) -> dict[str, Tensor]:
        x = x * 1
        if x.sum() < 0:
            b = self.first(x)
            return {"b": self.second(b), "c": b}
        a = self.first(x)
        return {"a": a, "b": self.second(a) + 1 if x.max() > 2 else self.second(a)}


@pytest.mark.parametrize("part", ["all", "halves"])
@pytest.mark.parametrize("engine", ["tape", "native"])
def test_outputs_have_the_names_of_the_way_through_the_model(run: Run, tmp_path: Path, part: str, engine: str) -> None:
    model = Renames().eval()
    ways = {"small": torch.ones(2, 4), "other": -torch.ones(2, 4), "large": torch.full((2, 4), 3.0)}
    more = [(ways["other"],), (ways["large"],)]
    if part == "all":
        with torch.no_grad():
            cleave.capture(model, (ways["small"],), variants=more).save(tmp_path / "m.clv")
    else:
        spec = cleave.SplitSpec(boundary="after:mul")
        cleave.prepare_split(model, example_inputs=(ways["small"],), split=spec, variants=more).save(tmp_path / "m.clv")
    for name, x in ways.items():
        np.save(tmp_path / f"{name}.npy", x.numpy())
        args, how = ["m.clv"], ["--engine", engine, "--json"]
        if part == "all":
            args += ["--input", f"x={name}.npy"]
        else:
            run("run", "m.clv", "--part", "prefix", "--input", f"x={name}.npy", "--output", f"{name}.boundary", *how)
            args += ["--part", "suffix", "--boundary", f"{name}.boundary"]
        run("run", *args, *how, "--output", "out.safetensors")
        found, want = load_file(tmp_path / "out.safetensors"), model(x)
        assert list(found) == list(want)
        assert all(torch.allclose(found[k], want[k], atol=1e-5) for k in want)


class AsksForOneTensor(nn.Module):
    def forward(self, q: torch.Tensor, k: torch.Tensor) -> torch.Tensor:
        return q * 2 if q is k else q + k


@pytest.mark.parametrize("stages", [(), ("--stages", "1")])
def test_the_source_of_a_file_asks_what_its_forward_asked(tmp_path: Path, stages: tuple[str, ...]) -> None:
    class Twice(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.inner = AsksForOneTensor()

        def forward(self, q: torch.Tensor, k: torch.Tensor) -> torch.Tensor:
            return self.inner(q, k).relu()

    with torch.no_grad():
        cleave.capture(Twice(), (torch.randn(2, 3), torch.randn(2, 3))).save(tmp_path / "m.clv")
    done = subprocess.run(
        [str(COMMAND), "source", str(tmp_path / "m.clv"), *stages], capture_output=True, text=True, check=True
    )
    assert "two inputs are one tensor" in done.stdout

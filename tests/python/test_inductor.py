"""The compiler of the back end `inductor`: a job's folder in, a shared object out that runs at other sizes; or why not.

Compiling takes half a minute, so all compiled segments are made once, in a process each, at the same time."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import inductor_operators
import operators
import pytest
import torch
import torch.nn.functional as F
from torch import nn

import cleave
from cleave import _native
from cleave.compilers import inductor
from cleave.compilers._job import Input, Job, Refused, evaluate, example, refuse_narrowed, symbols_in

pytestmark = pytest.mark.integration

CLOSE = {"rtol": 1e-4, "atol": 1e-5}


class ConvNet(nn.Module):
    """Convolution, folded statistics, an in-place activation, a residual, sizes that follow the batch."""

    def __init__(self) -> None:
        super().__init__()
        self.conv = nn.Conv2d(3, 8, 3, padding=1)
        self.norm = nn.BatchNorm2d(8)
        self.act = nn.ReLU(inplace=True)
        self.second = nn.Conv2d(8, 8, 1)
        self.head = nn.Linear(8 * 64, 10)
        self.norm.running_mean.normal_()
        self.norm.running_var.uniform_(0.5, 2.0)

    def forward(self, x: torch.Tensor) -> tuple[torch.Tensor, ...]:
        y = self.act(self.norm(self.conv(x)))
        z = y + self.second(y)
        return self.head(z.flatten(1)).view(-1, 5), z.mean() / x.shape[0], x * torch.tensor([1.0, -2.0] * 4)


class Attention(nn.Module):
    """Two sizes that change, integers and a mask among the inputs."""

    def __init__(self) -> None:
        super().__init__()
        self.words = nn.Embedding(50, 16)
        self.qkv = nn.Linear(16, 48)
        self.norm = nn.LayerNorm(16)

    def forward(self, ids: torch.Tensor, mask: torch.Tensor) -> torch.Tensor:
        x = self.words(ids)
        q, k, v = (t.unflatten(-1, (2, 8)).transpose(1, 2) for t in self.qkv(x).chunk(3, -1))
        y = F.scaled_dot_product_attention(q, k, v, attn_mask=mask[:, None, None, :])
        return self.norm(x + y.transpose(1, 2).flatten(2))


class Singular(nn.Module):
    """An operator for which AOTInductor has no C function."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return torch.linalg.svdvals(x * 2) + 1


def write_job(folder: Path, model: nn.Module, inputs: tuple[torch.Tensor, ...], **more: Any) -> Callable[..., Any]:
    """The folder of a job, as C writes it, with the whole model as the segment."""
    folder.mkdir()
    args, order, dims = more.get("args", []), more.get("order"), more.get("dims")
    with torch.no_grad():
        if dims is None:
            plan = cleave.capture(model.eval(), inputs, dynamic_batch=(1, 16))
        else:
            plan = cleave.capture(model.eval(), inputs, dynamic_dims=dims, dynamic_ranges=more["ranges"])
    plan.save(folder / "segment.clv", prove="none")
    ports = cleave.load(folder / "segment.clv").inputs
    symbols = {s for p in ports for d in p.shape for s in symbols_in(str(d))}
    job = {
        "backend": "inductor",
        "args": args,
        "sizes": {s: {"low": 1, "high": 16, "example": 4 if s == "B" else 5} for s in sorted(symbols)},
        "inputs": [
            {"dtype": p.dtype, "device": p.device, "shape": [str(d) for d in p.shape], "order": order} for p in ports
        ],
        "threads": 1,
    }
    (folder / "job.json").write_text(json.dumps(job))
    return model


def start(folder: Path) -> subprocess.Popen[str]:
    env = {**os.environ, "PYTHONPATH": os.pathsep.join(p for p in sys.path if p)}
    command = [sys.executable, "-m", "cleave.compilers.inductor", str(folder)]
    log = (folder / "compile.log").open("w")
    return subprocess.Popen(command, env=env, stdout=log, stderr=subprocess.STDOUT, text=True)


@pytest.fixture(scope="module")
def jobs(tmp_path_factory: pytest.TempPathFactory) -> dict[str, tuple[Path, Any]]:
    """The jobs of this file, all done."""
    torch.manual_seed(0)
    base = tmp_path_factory.mktemp("inductor")
    ids, mask = torch.randint(0, 50, (4, 5)), torch.rand(4, 5) > 0.3
    mask[:, 0] = True
    made = {
        "conv": write_job(base / "conv", ConvNet(), (torch.randn(4, 3, 8, 8),), order=[0, 2, 3, 1]),
        "attention": write_job(
            base / "attention",
            Attention(),
            (ids, mask),
            dims={"ids": {0: "B", 1: "T"}, "mask": {0: "B", 1: "T"}},
            ranges={"B": (1, 16), "T": (2, 16)},
        ),
        "singular": write_job(base / "singular", Singular(), (torch.randn(4, 3, 5),)),
    }
    for process in [start(base / name) for name in made]:
        process.wait(timeout=600)
    return {name: (base / name, model) for name, model in made.items()}


def result(folder: Path) -> dict[str, Any]:
    path = folder / "result.json"
    assert path.exists(), (folder / "compile.log").read_text()[-3000:]
    out: dict[str, Any] = json.loads(path.read_text())
    return out


Run = Callable[[list[torch.Tensor]], list[torch.Tensor]]


def load(data: bytes, needs: dict[str, str], ninputs: int, noutputs: int) -> Run:
    loaded = _native.Code("inductor", {"model.so": data}, needs, "cpu", ninputs, noutputs)
    like = [torch.empty(0)] * noutputs  # this back end makes outputs of the sizes that it finds itself
    return lambda inputs: loaded.run(inputs, like)


def code(folder: Path, ninputs: int, noutputs: int) -> Run:
    made = result(folder)
    assert made["members"] == ["model.so"]
    return load((folder / "model.so").read_bytes(), made["needs"], ninputs, noutputs)


# ---- what is compiled


@pytest.mark.parametrize("batch", [1, 3, 7])
def test_a_convolutional_segment_runs_at_other_batches(jobs: dict[str, tuple[Path, Any]], batch: int) -> None:
    folder, model = jobs["conv"]
    x = torch.randn(batch, 3, 8, 8).contiguous(memory_format=torch.channels_last)
    with torch.no_grad():
        expected = model(x)
    found = code(folder, 1, 3)([x])
    assert len(found) == len(expected)
    for a, b in zip(found, expected, strict=True):
        torch.testing.assert_close(a, b, **CLOSE)


@pytest.mark.parametrize(("batch", "length"), [(1, 7), (3, 2), (7, 5)])
def test_attention_runs_at_other_batches_and_lengths(
    jobs: dict[str, tuple[Path, Any]], batch: int, length: int
) -> None:
    folder, model = jobs["attention"]
    ids, mask = torch.randint(0, 50, (batch, length)), torch.rand(batch, length) > 0.3
    mask[:, 0] = True
    with torch.no_grad():
        torch.testing.assert_close(code(folder, 2, 1)([ids, mask])[0], model(ids, mask), **CLOSE)


def test_modes_of_the_caller_change_nothing(jobs: dict[str, tuple[Path, Any]]) -> None:
    folder, _ = jobs["conv"]
    loaded, x = code(folder, 1, 3), torch.randn(2, 3, 8, 8).contiguous(memory_format=torch.channels_last)
    plain = loaded([x])
    with torch.autocast("cpu", dtype=torch.bfloat16):
        inside = loaded([x.clone().requires_grad_()])
    assert all(torch.equal(a, b) and not b.requires_grad for a, b in zip(plain, inside, strict=True))


def test_threads_run_it_at_once(jobs: dict[str, tuple[Path, Any]]) -> None:
    folder, _ = jobs["conv"]
    loaded, wrong = code(folder, 1, 3), []
    given = [torch.randn(n + 1, 3, 8, 8).contiguous(memory_format=torch.channels_last) for n in range(4)]
    expected = [loaded([x]) for x in given]

    def work(n: int) -> None:
        for _ in range(50):
            for a, b in zip(loaded([given[n]]), expected[n], strict=True):
                if not torch.allclose(a, b, **CLOSE):
                    wrong.append(n)

    threads = [threading.Thread(target=work, args=(n,)) for n in range(4)]
    for t in threads:
        t.start()
    for t in threads:
        t.join()
    assert wrong == []


def test_two_objects_in_one_process_stay_apart(jobs: dict[str, tuple[Path, Any]]) -> None:
    ids, mask = torch.randint(0, 50, (2, 3)), torch.ones(2, 3, dtype=torch.bool)
    for _ in range(3):  # numbers of files are used again, names of objects must not be
        assert len(code(jobs["conv"][0], 1, 3)([torch.randn(2, 3, 8, 8)])) == 3
        assert code(jobs["attention"][0], 2, 1)([ids, mask])[0].shape == (2, 3, 16)


def test_the_result_says_what_it_needs(jobs: dict[str, tuple[Path, Any]]) -> None:
    needs = result(jobs["conv"][0])["needs"]
    assert needs["torch"] == torch.__version__.partition("+")[0]
    assert needs["device"] == "cpu"
    here = Path("/proc/cpuinfo").read_text().split()
    assert needs["cpu"].split() == sorted(needs["cpu"].split())
    assert set(needs["cpu"].split()) <= set(here)
    assert result(jobs["conv"][0])["notes"]["freezing"] == "on"


def test_an_operator_without_a_c_function_is_named(jobs: dict[str, tuple[Path, Any]]) -> None:
    folder, _ = jobs["singular"]
    error = json.loads((folder / "error.json").read_text())
    assert error["nodes"] == ["linalg_svdvals"]
    assert "no C function for aten::_linalg_svd" in error["message"]
    assert not (folder / "result.json").exists()


def test_what_is_no_code_is_refused() -> None:
    needs = {"torch": torch.__version__.partition("+")[0], "device": "cpu", "cpu": ""}
    for data in (b"\x7fELF is how these begin", b""):
        with pytest.raises(cleave.CleaveError, match="cannot be loaded"):
            load(data, needs, 1, 1)


def test_code_with_other_inputs_or_outputs_than_the_segment_is_refused(jobs: dict[str, tuple[Path, Any]]) -> None:
    with pytest.raises(cleave.CleaveError, match="takes 1 tensors and gives 3, the segment has 2 and 3"):
        code(jobs["conv"][0], 2, 3)


# ---- arguments


def test_arguments_become_settings() -> None:
    assert inductor.settings([]) == ({}, [True, False])
    args = ["--freezing=off", "--max-autotune", "--option=cpp.simdlen=256", "--option=epilogue_fusion=false"]
    assert inductor.settings(args) == (
        {"max_autotune": True, "cpp.simdlen": 256, "epilogue_fusion": False},
        [False],
    )


@pytest.mark.parametrize(
    "text",
    ["-O3", "--freezing=maybe", "--option=no_such_setting=1", "--option=epilogue_fusion=perhaps", "--max-autotune=1"],
)
def test_unknown_arguments_are_named(text: str) -> None:
    with pytest.raises(Refused) as caught:
        inductor.settings([text])
    assert caught.value.argument == text


# ---- jobs


def test_sizes_are_formulas() -> None:
    assert evaluate("4*B+1", {"B": 3}) == 13
    assert evaluate("max(T//2, B % 2) - -1", {"B": 3, "T": 5}) == 3
    assert symbols_in("min(B, 2*T)") == {"B", "T"}
    for bad in ("B.__class__", "open('x')", "B**9", "C", "lambda: 1"):
        with pytest.raises(ValueError, match="is no size"):
            evaluate(bad, {"B": 3})


def test_examples_have_the_layout_of_the_job() -> None:
    x = example(Input("f32", "cpu", ["B", "3", "8", "8"], [0, 2, 3, 1]), {"B": 2})
    assert x.shape == (2, 3, 8, 8)
    assert x.is_contiguous(memory_format=torch.channels_last)
    ids = example(Input("i64", "cpu", ["B"], None), {"B": 100})
    assert ids.dtype is torch.int64
    assert set(ids.tolist()) == {0, 1}


def test_example_sizes_are_neither_one_nor_equal_to_others(tmp_path: Path) -> None:
    job = {
        "backend": "inductor",
        "args": [],
        "sizes": {
            "B": {"low": 1, "high": 8, "example": 1},
            "T": {"low": 1, "high": 8, "example": 3},
            "K": {"low": 1, "high": 1, "example": 1},
        },
        "inputs": [{"dtype": "f32", "device": "cpu", "shape": ["B", "3", "T", "K"], "order": None}],
        "threads": 0,
    }
    (tmp_path / "job.json").write_text(json.dumps(job))
    read = Job(tmp_path)
    sizes = read.example_sizes()
    assert read.free == ["B", "T"]
    assert sizes["K"] == 1
    assert len({1, 3, sizes["B"], sizes["T"]}) == 4
    assert all(1 <= n <= 8 for n in sizes.values())


def narrow(x: torch.Tensor) -> torch.Tensor:
    return x * 2 if x.shape[0] < 40 else x + 1


@pytest.mark.parametrize(
    ("function", "low", "high", "why"),
    [
        (narrow, 1, 64, "allows 2 to 39 for a size B: 2 to 64"),
        (narrow, 1, 39, None),
        (lambda x: x + torch.ones(6, 3), 2, 9, "allows 6 to 6 for a size B: 2 to 9"),
        (torch.neg, 1, 10**6, None),
    ],
)
def test_sizes_that_torch_export_leaves_out_are_refused(
    tmp_path: Path, function: Callable[..., Any], low: int, high: int, why: str | None
) -> None:
    job = {
        "backend": "inductor",
        "args": [],
        "sizes": {"B": {"low": low, "high": high, "example": 6}},
        "inputs": [{"dtype": "f32", "device": "cpu", "shape": ["B", "3"], "order": None}],
        "threads": 0,
    }
    (tmp_path / "job.json").write_text(json.dumps(job))

    class Model(nn.Module):
        def forward(self, x: torch.Tensor) -> Any:
            return function(x)

    program = torch.export.export(Model(), (torch.rand(6, 3),), dynamic_shapes=({0: torch.export.Dim.AUTO},))
    if why is None:
        refuse_narrowed(Job(tmp_path), program)
    else:
        with pytest.raises(Refused, match=why):
            refuse_narrowed(Job(tmp_path), program)


def test_lines_of_the_source_lead_to_nodes(tmp_path: Path) -> None:
    write_job(tmp_path / "job", ConvNet(), (torch.randn(4, 3, 8, 8),))
    segment = Job(tmp_path / "job").segment
    lines = segment.source.splitlines()
    at = next(n for n, line in enumerate(lines, 1) if "F.relu_(" in line)
    assert segment.at_line(at) == "relu_"
    assert segment.at_line(1) is None
    assert set(segment._of_line.values()) == set(segment.nodes)
    assert segment.with_operator("aten::conv2d") == ["conv2d", "conv2d_1"]
    assert segment.quoted(f'  File "{segment.filename}", line {at}, in forward') == ["relu_"]


# ---- what it takes


def test_operators_that_inductor_does_not_take_are_on_the_list() -> None:
    assert inductor_operators.unknown() == []


def test_the_list_names_operators_that_are() -> None:
    names = {full.partition("::")[2].partition(".")[0] for full in torch._C._dispatch_get_all_op_names()}
    assert {n.partition(".")[0] for n in operators.reasons("INDUCTOR_REFUSE")} - names <= {
        "_upsample_lanczos2d_aa",
        "hash_tensor",
    }

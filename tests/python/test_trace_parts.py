"""cleave.trace with back ends that do one odd thing: which parts are compiled, what is done about those that fail,
every argument, the cache and the work folder."""

from __future__ import annotations

import gc
import logging
import os
import stat
import subprocess
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from trace_backends import Exact, compiled_ops, short, tape_ops

import cleave

x = torch.linspace(-1, 1, 12).reshape(3, 4)


def chain(x: Tensor) -> Tensor:
    return torch.tanh(torch.sigmoid(torch.relu(x * 2) + 1)).exp()


CHAIN = ["mul", "relu", "add", "sigmoid", "tanh", "exp"]


# ---- culprits


def fail_on(*culprits: str) -> Callable[[list[str]], None]:
    """A compiler that fails where all of these are together."""

    def compiling(ops: list[str]) -> None:
        if all(any(short(op) == c for op in ops) for c in culprits):
            raise RuntimeError(f"no {' and '.join(culprits)} here\nand more about it")

    return compiling


def without(*ops: str) -> list[list[str]]:
    """The chain in pieces; each is long enough to be a segment."""
    out: list[list[str]] = [[]]
    for op in CHAIN:
        if op in ops:
            out.append([])
        else:
            out[-1].append(op)
    return [part for part in out if len(part) >= 2]


def agree(traced: cleave.TracedModule, model: Any, *inputs: Tensor) -> None:
    with torch.no_grad():
        torch.testing.assert_close(traced(*inputs), model(*inputs), rtol=0, atol=0)


def test_everything_is_one_segment_where_nothing_fails() -> None:
    exact = Exact()
    traced = exact.trace(chain, x)
    assert compiled_ops(traced) == [CHAIN]
    assert traced.coverage == (6, 6, traced.coverage.flops, traced.coverage.flops)
    assert traced.coverage.percent == 100
    assert len(exact.jobs) == 1
    agree(traced, chain, x)


@pytest.mark.parametrize("culprit", CHAIN)
def test_an_operator_that_cannot_be_compiled_is_the_only_one_on_the_tape(culprit: str) -> None:
    traced = Exact(compiling=fail_on(culprit)).trace(chain, x, minimum_segment_size=1)
    assert [op for part in compiled_ops(traced) for op in part] == [op for op in CHAIN if op != culprit]
    assert tape_ops(traced) == {culprit: f"compile raised RuntimeError: no {culprit} here"}
    assert f"aten::{culprit}" in str(traced.report())
    assert f"no {culprit} here" in str(traced.report())
    agree(traced, chain, x)


@pytest.mark.parametrize("culprit", CHAIN)
def test_an_operator_with_wrong_numbers_is_the_only_one_on_the_tape(culprit: str) -> None:
    def wrong(ops: list[str], out: list[Tensor]) -> list[Tensor]:
        return [t + 0.1 for t in out] if any(short(op) == culprit for op in ops) else out

    traced = Exact(running=wrong).trace(chain, x, minimum_segment_size=1)
    assert list(tape_ops(traced)) == [culprit]
    assert "other numbers than PyTorch" in tape_ops(traced)[culprit]
    agree(traced, chain, x)


def test_wrong_numbers_at_other_batches_alone_are_found() -> None:
    def wrong(ops: list[str], out: list[Tensor]) -> list[Tensor]:
        return [t + 1 for t in out] if "aten::tanh" in ops and out[0].shape[0] == 7 else out

    traced = Exact(running=wrong).trace(chain, x, dynamic_batch=(1, 1024))
    assert list(tape_ops(traced)) == ["tanh", "exp"]  # exp is alone then
    agree(traced, chain, torch.rand(7, 4))


@pytest.mark.parametrize("what", ["raises", "nothing", "shape", "dtype", "no tensor", "too many"])
def test_code_that_does_not_run_is_not_kept(what: str) -> None:
    def bad(ops: list[str], out: list[Tensor]) -> Any:
        if "aten::tanh" not in ops:
            return out
        if what == "raises":
            raise ValueError("it broke")
        return {
            "nothing": [],
            "shape": [t[:1] for t in out],
            "dtype": [t.double() for t in out],
            "no tensor": [None for _ in out],
            "too many": [*out, *out],
        }[what]

    traced = Exact(running=bad).trace(chain, x, minimum_segment_size=1)
    assert list(tape_ops(traced)) == ["tanh"]
    agree(traced, chain, x)


def test_code_that_writes_into_its_inputs_is_not_kept() -> None:
    back = Exact()
    run = back._run

    def writing(model: Any, inputs: Any) -> list[Tensor]:
        out = run(model, inputs)
        if any(short(node.op) == "tanh" for node in model.nodes):
            inputs[0].fill_(7)
        return out

    cleave.register_backend(
        "writing", supports=lambda n: True, compile=back._compile, load=back._load, run=writing, version="1"
    )
    traced = cleave.trace(chain, x, backend="writing", minimum_segment_size=1, cache=False, keep_slower=True)
    assert tape_ops(traced) == {"tanh": "its code writes into input 0"}
    agree(traced, chain, x)


def test_operators_that_fail_only_together_are_parted_and_one_of_them_is_on_the_tape() -> None:
    traced = Exact(compiling=fail_on("mul", "tanh")).trace(chain, x)
    assert len(tape_ops(traced)) <= 2
    assert {"mul", "tanh"} & set(tape_ops(traced))
    assert sum(map(len, compiled_ops(traced))) >= 4
    agree(traced, chain, x)


def test_operators_that_fail_only_together_on_two_branches_are_parted() -> None:
    def branches(x: Tensor) -> tuple[Tensor, Tensor]:
        y = x * 2 + 1
        return torch.tanh(torch.relu(y)).exp(), torch.cos(torch.sin(y)).abs()

    traced = Exact(compiling=fail_on("relu", "cos")).trace(branches, x)
    assert sum(map(len, compiled_ops(traced))) >= 5, str(traced.graph)
    agree(traced, branches, x)


def test_two_culprits_far_apart_are_both_found() -> None:
    def compiling(ops: list[str]) -> None:
        if {"aten::relu", "aten::tanh"} & set(ops):
            raise RuntimeError("one of them")

    traced = Exact(compiling=compiling).trace(chain, x, minimum_segment_size=1)
    assert sorted(tape_ops(traced)) == ["relu", "tanh"]
    agree(traced, chain, x)


def test_a_compiler_that_always_fails_leaves_the_tape() -> None:
    exact = Exact(compiling=fail_on())
    traced = exact.trace(chain, x)
    assert traced.segments == []
    assert traced.coverage.compiled == 0
    assert len(tape_ops(traced)) == 6
    assert "0.0 %" in str(traced.report())
    assert len(exact.jobs) < 20
    agree(traced, chain, x)


def test_where_the_compiler_fails_and_all_must_be_compiled_the_operator_is_named() -> None:
    with pytest.raises(AttributeError, match=r"aten::tanh.*test_trace_parts.py.*no tanh here"):
        Exact(compiling=fail_on("tanh")).trace(chain, x, fallback=False)


def test_nodes_that_write_one_memory_stay_together_when_one_is_the_culprit() -> None:
    def model(x: Tensor) -> Tensor:
        y = x * 2
        y.relu_()
        y.add_(1)
        return torch.tanh(y) * y

    traced = Exact(compiling=fail_on("relu_")).trace(model, x)
    assert compiled_ops(traced) == [["tanh", "mul"]]
    agree(traced, model, x)


def test_an_interrupt_in_a_compiler_ends_the_trace() -> None:
    def interrupted(ops: list[str]) -> None:
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        Exact(compiling=interrupted).trace(chain, x)


def test_an_interrupt_while_code_is_compared_ends_the_trace() -> None:
    def interrupted(ops: list[str], out: list[Tensor]) -> list[Tensor]:
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        Exact(running=interrupted).trace(chain, x)


def test_a_back_end_whose_supports_raises_is_an_error() -> None:
    def supports(node: Any) -> bool:
        raise ZeroDivisionError("oops")

    with pytest.raises(cleave.CleaveError, match="supports raised ZeroDivisionError: oops"):
        Exact(supports=supports).trace(chain, x)


def test_what_no_back_end_can_take_is_not_asked_of_it() -> None:
    def model(x: Tensor) -> Tensor:
        y = torch.relu(x * 2)
        return torch.tanh(y) * torch.rand(4) if float(x.sum()) > -100 else y

    traced = Exact().trace(model, x)
    assert sorted(tape_ops(traced)) == ["item", "rand", "sum"]
    torch.manual_seed(3)
    got = traced(x)
    torch.manual_seed(3)
    assert torch.equal(got, model(x))


def test_random_numbers_go_on_as_if_nothing_was_traced() -> None:
    torch.manual_seed(0)
    want = torch.rand(3)
    torch.manual_seed(0)
    Exact().trace(lambda x: torch.relu(x * 2) * torch.rand(4), x, dynamic_batch=(1, 1024))
    assert torch.equal(torch.rand(3), want)


# ---- which operators


def test_unsupported_operators_split_and_are_listed_with_their_place() -> None:
    no_sigmoid = Exact(supports=lambda node: node.op != "aten::sigmoid" or "no sigmoid in this chip")
    traced = no_sigmoid.trace(chain, x)
    assert compiled_ops(traced) == [["mul", "relu", "add"], ["tanh", "exp"]]
    assert tape_ops(traced) == {"sigmoid": "no sigmoid in this chip"}
    row = next(r for r in traced.report().data["fallbacks"] if r["op"] == "aten::sigmoid")
    assert "test_trace_parts.py" in row["place"]
    assert row["count"] == 1
    agree(traced, chain, x)
    with pytest.raises(AttributeError, match=r"(?s)aten::sigmoid.*test_trace_parts.py:\d+: no sigmoid in this chip"):
        no_sigmoid.trace(chain, x, fallback=False)
    with pytest.raises(cleave.TraceError, match="aten::sigmoid"):
        cleave.compat.trace(chain, x, backend=no_sigmoid.name, cache=False, require_full_compilation=True)


def test_fallback_false_lists_every_unsupported_operator() -> None:
    odd = Exact(supports=lambda node: short(node.op) not in ("relu", "tanh"))
    with pytest.raises(AttributeError) as raised:
        odd.trace(chain, x, fallback=False)
    assert "aten::relu" in str(raised.value)
    assert "aten::tanh" in str(raised.value)
    assert "aten::exp" not in str(raised.value)


def test_without_fallback_short_segments_are_compiled_too() -> None:
    traced = Exact().trace(lambda x: x * 2, x, fallback=False)
    assert compiled_ops(traced) == [["mul"]]
    assert compiled_ops(Exact().trace(lambda x: x * 2, x)) == []


@pytest.mark.parametrize(("least", "segments"), [(1, 3), (2, 2), (3, 1), (4, 0)])
def test_segments_are_not_shorter_than_asked_for(least: int, segments: int) -> None:
    def model(x: Tensor) -> Tensor:
        a = torch.relu(x * 2) + 1
        b = torch.tanh(torch.sigmoid(a)).exp()
        return torch.sigmoid(b) * 2 if False else torch.cos(torch.sigmoid(b))

    traced = Exact(supports=lambda node: node.op != "aten::sigmoid").trace(model, x, minimum_segment_size=least)
    assert len(traced.segments) == segments
    agree(traced, model, x)


def test_no_more_segments_than_asked_for() -> None:
    def model(x: Tensor) -> Tensor:
        for _ in range(4):
            x = torch.sigmoid(torch.relu(x * 2) + 1)
        return x

    exact = Exact(supports=lambda node: node.op != "aten::sigmoid")
    for most in (1, 2, 4, 10):
        traced = exact.trace(model, x, max_segments=most)
        assert len(traced.segments) == min(most, 4)
        agree(traced, model, x)


def test_the_share_that_is_asked_for() -> None:
    half = Exact(supports=lambda node: short(node.op) in ("mul", "relu", "add"))
    assert len(half.trace(chain, x, support_threshold=0.5).segments) == 1
    with pytest.raises(ValueError, match="less of the model could be compiled than is asked for"):
        half.trace(chain, x, support_threshold=0.51)


@pytest.mark.parametrize("name", ["exclude", "ops_to_partition", "torch_executed_ops"])
def test_operators_that_the_caller_wants_on_the_tape(name: str) -> None:
    trace = cleave.trace if name == "exclude" else cleave.compat.trace
    how: dict[str, Any] = {"backend": Exact().name, "cache": False, "keep_slower": True, name: ["aten::sigmoid"]}
    traced = trace(chain, x, **how)
    assert compiled_ops(traced) == [["mul", "relu", "add"], ["tanh", "exp"]]
    assert tape_ops(traced) == {"sigmoid": "the caller wants this operator on the tape"}


class Inner(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        return torch.relu(x * 2) + 1


class Outer(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.body = nn.Sequential(Inner(), Inner())

    def forward(self, x: Tensor) -> Tensor:
        return torch.tanh(torch.sigmoid(self.body(x)))


@pytest.mark.parametrize(
    ("module", "left"), [("Inner", 2), ("body", 2), ("body.0", 5), ("body.1", 5), ("Outer", 0), ("Sequential", 2)]
)
def test_modules_that_the_caller_wants_on_the_tape(module: str, left: int) -> None:
    traced = Exact().trace(Outer(), x, exclude=[module])
    assert traced.coverage.compiled == left
    agree(traced, Outer(), x)


def test_the_function_of_the_caller_sees_nodes_and_decides() -> None:
    seen: list[Any] = []

    def choose(node: Any) -> bool:
        seen.append(node)
        return "Inner" in node.name

    traced = Exact().trace(Outer(), x, select=choose)
    assert compiled_ops(traced) == [["mul", "relu", "add"] * 2]
    assert tape_ops(traced)["tanh"] == "select leaves it out"
    first = seen[0]
    assert first.name == ("Outer", "body", "Sequential", "0", "Inner")
    assert first.module_path == "body.0"
    assert first.op == "aten::mul.Tensor"
    assert first.shape == (3, 4)
    assert [t.shape for t in first.inputs] == [(3, 4)]
    assert first.outputs[0].dtype == "f32"
    assert "test_trace_parts.py" in first.source


def test_what_the_function_of_the_caller_raises_comes_out() -> None:
    def choose(node: Any) -> bool:
        raise KeyError("mine")

    with pytest.raises(KeyError, match="mine"):
        Exact().trace(chain, x, select=choose)


def test_a_dry_run_compiles_nothing() -> None:
    exact = Exact()
    traced = exact.trace(chain, x, dryrun=True)
    assert exact.jobs == []
    assert compiled_ops(traced) == []
    agree(traced, chain, x)
    assert "exact" in str(traced.report())


def test_a_trace_stays_in_memory_on_the_tensors_that_the_model_had(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*args: Any, **kwargs: Any) -> str:
        raise AssertionError("a temporary file")

    exact, model = Exact(), nn.Sequential(nn.Linear(4, 8), nn.BatchNorm1d(8), nn.ReLU()).eval()
    monkeypatch.setattr(tempfile, "mkdtemp", refuse)
    traced = exact.trace(model, x, dryrun=True)
    before = traced._artifact.to_bytes()
    agree(traced, model, x)
    for p in model.parameters():
        p.data = torch.zeros_like(p)
    gc.collect()
    assert traced._artifact.to_bytes() == before
    agree(traced, model, x)


# ---- arguments


@pytest.mark.parametrize(
    ("options", "error", "says"),
    [
        ({"backend": "no-such"}, ValueError, 'no back end "no-such"'),
        ({"backend": 5}, TypeError, "backend is a text"),
        ({"compiler_args": "-O2"}, TypeError, "compiler_args is a list of texts, not one text"),
        ({"compiler_args": [2]}, TypeError, "an item of compiler_args is a text"),
        ({"compiler_timeout": "5"}, TypeError, "compiler_timeout is a number"),
        ({"compiler_timeout": 0}, ValueError, "compiler_timeout is above 0"),
        ({"compiler_timeout": -1.0}, ValueError, "compiler_timeout is above 0"),
        ({"compiler_timeout": float("nan")}, ValueError, "compiler_timeout is above 0"),
        ({"compiler_workdir": 5}, TypeError, "str, bytes or os.PathLike"),
        ({"select": 5}, TypeError, "select is a function"),
        ({"minimum_segment_size": 0}, ValueError, "minimum_segment_size is between 1"),
        ({"minimum_segment_size": 2.0}, TypeError, "minimum_segment_size is a whole number"),
        ({"minimum_segment_size": True}, TypeError, "minimum_segment_size is a whole number"),
        ({"minimum_segment_size": 1 << 40}, ValueError, "minimum_segment_size"),
        ({"max_segments": 0}, ValueError, "max_segments is between 1"),
        ({"support_threshold": 1.5}, ValueError, "between 0 and 1"),
        ({"support_threshold": "all"}, TypeError, "is a number"),
        ({"dynamic_batch": 5}, TypeError, r"dynamic_batch is a range such as \(1, 64\)"),
        ({"dynamic_batch": (5, 2)}, ValueError, ""),
        ({"dynamic_batch": (0, "a")}, (TypeError, ValueError), ""),
        ({"exclude": "aten::relu"}, TypeError, "exclude is a list of texts"),
        ({"exclude": [5]}, TypeError, "an item of exclude"),
        ({"dynamic_batch_size": True}, TypeError, r"has no argument dynamic_batch_size: use dynamic_batch=\(1, 64\)"),
        ({"torch_executed_ops": ["aten::relu"]}, TypeError, "has no argument torch_executed_ops: use exclude"),
        ({"require_full_compilation": True}, TypeError, "require_full_compilation: use fallback=False"),
        ({"rtol": -1}, ValueError, "rtol"),
        ({"atol": "0"}, TypeError, "atol is a number"),
        ({"check_tolerance": -0.1}, ValueError, "check_tolerance"),
        ({"check_inputs": x}, TypeError, "check_inputs is a list"),
        ({"parallel": 0}, ValueError, "parallel is between 1"),
        ({"cache": 5}, TypeError, "str, bytes or os.PathLike"),
        ({"example_kwargs": [1]}, TypeError, "dict"),
        ({"fallback": "no"}, TypeError, "fallback is True or False"),
        ({"strict": 1}, TypeError, "no argument strict: use cleave.compat.trace"),
        ({"no_such_option": 1}, TypeError, "no_such_option"),
        ({"check_trace": None}, TypeError, "check_trace is True or False"),
        ({"dryrun": "yes"}, TypeError, "dryrun is True or False"),
    ],
)
def test_wrong_arguments_are_named(options: dict[str, Any], error: type[Exception], says: str) -> None:
    options = {"backend": Exact().name, "cache": False, **options}
    with pytest.raises(error, match=says):
        cleave.trace(chain, x, **options)


def test_what_is_no_model_is_refused() -> None:
    with pytest.raises(TypeError):
        Exact().trace(5, x)  # type: ignore[arg-type]


def test_arguments_reach_the_compiler() -> None:
    exact = Exact()
    exact.trace(chain, x, compiler_args=["--level", "3", "ü"])
    assert exact.arguments == [["--level", "3", "ü"]]


def test_tolerances_decide_what_is_wrong() -> None:
    exact = Exact(running=lambda ops, out: [t * 1.001 for t in out])
    assert exact.trace(chain, x).segments == []
    assert len(exact.trace(chain, x, rtol=0.01, check_tolerance=0.01).segments) == 1
    assert len(exact.trace(chain, x, rtol=0, atol=1, check_tolerance=1).segments) == 1
    assert Exact(running=lambda ops, out: [t * (1 + 1e-6) for t in out]).trace(chain, x, rtol=0, atol=0).segments == []


def test_the_whole_is_compared_with_the_model() -> None:
    exact = Exact(running=lambda ops, out: [t * 1.001 for t in out])
    with pytest.raises(cleave.ValidationError, match=r"output 0 .* is off by"):
        exact.trace(chain, x, rtol=0.01, check_tolerance=1e-5)
    exact.trace(chain, x, rtol=0.01, check_tolerance=0.1)
    exact.trace(chain, x, rtol=0.01, check_tolerance=1e-5, check_trace=False)


def test_check_inputs_are_compared_too() -> None:
    def wrong_for_large(ops: list[str], out: list[Tensor]) -> list[Tensor]:
        return [t + (t > 10) for t in out]

    exact = Exact(running=wrong_for_large)
    model = nn.Sequential(nn.ReLU(), nn.Tanh(), nn.ReLU())
    big = [(x * 100,), x]
    exact.trace(model, x, check_inputs=big)
    grow = Exact(running=wrong_for_large)
    with pytest.raises(cleave.ValidationError):
        grow.trace(lambda x: torch.relu(x * 2) + 1, x, check_inputs=big)


def test_a_strict_trace_refuses_dicts() -> None:
    def model(x: Tensor) -> dict[str, Tensor]:
        return {"a": x * 2 + 1}

    how: dict[str, Any] = {"backend": Exact().name, "cache": False}
    with pytest.raises(RuntimeError, match="strict=False"):
        cleave.compat.trace(model, x, **how)
    assert list(cleave.compat.trace(model, x, strict=False, **how)(x)) == ["a"]
    assert list(Exact().trace(model, x)(x)) == ["a"]


# ---- work folders, cache


def test_the_work_folder_keeps_what_each_compiler_saw(tmp_path: Path) -> None:
    odd = Exact(supports=lambda node: node.op != "aten::sigmoid")
    odd.trace(chain, x, compiler_workdir=tmp_path / "deep" / "work")
    folders = sorted(p.name for p in (tmp_path / "deep" / "work").iterdir())
    assert folders == ["segment-0", "segment-1"]
    for name in folders:
        inside = {p.name for p in (tmp_path / "deep" / "work" / name).iterdir()}
        assert {"segment.clv", "job.json"} <= inside
    odd.trace(chain, x, compiler_workdir=tmp_path / "deep" / "work")  # again, over what is there


def test_a_work_folder_that_is_not_ours_is_left_alone(tmp_path: Path) -> None:
    (tmp_path / "segment-0").mkdir()
    (tmp_path / "segment-0" / "thesis.txt").write_text("years of work")
    with pytest.raises(OSError, match="segment-0"):
        Exact().trace(chain, x, compiler_workdir=tmp_path)
    assert (tmp_path / "segment-0" / "thesis.txt").read_text() == "years of work"


def test_a_work_folder_that_is_a_file_is_an_error(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(OSError, match="file"):
        Exact().trace(chain, x, compiler_workdir=tmp_path / "file")


def test_without_a_work_folder_nothing_is_left(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TMPDIR", str(tmp_path))
    exact = Exact()
    here = set(tmp_path.iterdir())
    exact.trace(chain, x)
    assert set(tmp_path.iterdir()) == here
    with pytest.raises(AttributeError):
        Exact(compiling=fail_on()).trace(chain, x, fallback=False)
    assert {p for p in tmp_path.iterdir() if "trace" in p.name} == set()


def test_the_second_trace_compiles_nothing(tmp_path: Path) -> None:
    exact = Exact()
    for _ in range(3):
        agree(exact.trace(chain, x, cache=tmp_path), chain, x)
    assert len(exact.jobs) == 1
    exact.trace(chain, x, cache=tmp_path, compiler_args=["-O3"])
    assert len(exact.jobs) == 2
    exact.trace(chain, torch.rand(5, 4), cache=tmp_path)
    assert len(exact.jobs) == 3
    exact.trace(lambda x: chain(x) * 3, x, cache=tmp_path)
    assert len(exact.jobs) == 4


def test_other_weights_are_another_entry_of_the_cache(tmp_path: Path) -> None:
    exact = Exact()
    model = nn.Sequential(nn.Linear(4, 4), nn.ReLU()).eval()
    agree(exact.trace(model, x, cache=tmp_path), model, x)
    with torch.no_grad():
        model[0].bias.add_(1)
    agree(exact.trace(model, x, cache=tmp_path), model, x)
    assert len(exact.jobs) == 2


@pytest.mark.parametrize("damage", ["cut", "flip", "empty", "other", "folder"])
def test_damaged_entries_of_the_cache_are_compiled_again(tmp_path: Path, damage: str) -> None:
    exact = Exact()
    exact.trace(chain, x, cache=tmp_path)
    files = [p for p in tmp_path.rglob("*") if p.is_file()]
    assert files
    for path in files:
        data = bytearray(path.read_bytes())
        if damage == "cut":
            path.write_bytes(data[: len(data) // 2])
        elif damage == "flip":
            for i in range(0, len(data), 7):
                data[i] ^= 0x55
            path.write_bytes(data)
        elif damage == "empty":
            path.write_bytes(b"")
        elif damage == "other":
            path.write_bytes(b"\x7fELF" + os.urandom(1000))
        else:
            path.unlink()
            path.mkdir()
    traced = exact.trace(chain, x, cache=tmp_path)
    assert compiled_ops(traced) == [CHAIN]
    assert len(exact.jobs) == 2
    agree(traced, chain, x)


def test_an_entry_that_gives_wrong_numbers_is_not_trusted(tmp_path: Path) -> None:
    """The cache is checked like a compiler: what it has is compared with the tape."""
    right = True
    exact = Exact(running=lambda ops, out: out if right else [t + 1 for t in out])
    exact.trace(chain, x, cache=tmp_path)
    right = False
    traced = exact.trace(chain, x, cache=tmp_path)
    assert traced.segments == []
    agree(traced, chain, x)


def test_a_cache_that_cannot_be_used_costs_a_line_in_the_log(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO, "cleave.trace")
    (tmp_path / "file").write_text("")
    agree(Exact().trace(chain, x, cache=tmp_path / "file"), chain, x)
    assert str(tmp_path / "file") in caplog.text
    caplog.clear()
    shared = tmp_path / "shared"
    shared.mkdir()
    shared.chmod(stat.S_IRWXU | stat.S_IRWXG | stat.S_IRWXO)
    agree(Exact().trace(chain, x, cache=shared), chain, x)
    assert "shared" in caplog.text
    assert not list(shared.iterdir())


def test_every_operator_is_logged(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO, "cleave.trace")
    Exact(supports=lambda node: node.op != "aten::sigmoid" or "not this one").trace(chain, x)
    lines = [r.getMessage() for r in caplog.records]
    assert "aten::relu: compiled, segment 0" in lines
    assert "aten::sigmoid: not compiled: not this one" in lines
    assert sum("compiled" in line for line in lines) >= 6


def test_jobs_one_at_a_time_and_many_at_a_time_are_the_same() -> None:
    odd = Exact(supports=lambda node: node.op != "aten::sigmoid")
    for parallel in (1, 4, None):
        agree(odd.trace(chain, x, parallel=parallel), chain, x)


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can make a small file system")
def test_a_full_disk_is_a_clear_error_or_a_traced_module(tmp_path: Path) -> None:
    small = tmp_path / "small"
    small.mkdir()
    done = subprocess.run(
        ["mount", "-t", "tmpfs", "-o", "size=64k", "none", str(small)], capture_output=True, check=False
    )
    if done.returncode:
        pytest.skip("mount is not allowed here")
    try:
        model = nn.Sequential(nn.Linear(256, 256), nn.ReLU()).eval()
        wide = torch.rand(2, 256)
        agree(Exact().trace(model, wide, cache=small), model, wide)
        with pytest.raises(OSError, match=r"(?i)no space"):
            Exact().trace(model, wide, compiler_workdir=small / "work")
        os.environ["TMPDIR"] = str(small)
        with pytest.raises(OSError, match=r"(?i)no space"):
            cleave.trace(model, wide, backend="inductor", cache=False)
    finally:
        os.environ.pop("TMPDIR", None)
        subprocess.run(["umount", "-l", str(small)], check=False)


# ---- weights in the file


def test_a_traced_file_holds_the_weights_once(tmp_path: Path) -> None:
    torch.manual_seed(0)
    net = nn.Sequential(nn.Linear(4, 512), nn.ReLU(), nn.Linear(512, 300)).eval()
    weights = sum(p.numel() * 4 for p in net.parameters())
    traced = cleave.trace(net, x, backend=Exact().name, keep_slower=True, cache=False)
    path = tmp_path / "traced.clv"
    traced.save(path)
    assert weights < path.stat().st_size < 1.1 * weights
    loaded = cleave.load(path, allow_compiled=True)
    assert [s.compiled for s in loaded.segments] == [True]
    agree(loaded, net, x)
    agree(cleave.load(path, tape_only=True), net, x)


def test_code_does_not_run_with_other_weights_than_it_was_made_of(tmp_path: Path) -> None:
    net = nn.Sequential(nn.Linear(4, 512), nn.Tanh()).eval()
    path = tmp_path / "traced.clv"
    cleave.trace(net, x, backend=Exact().name, keep_slower=True, cache=False).save(path)
    data, weight = path.read_bytes(), net[0].weight.detach().numpy().tobytes()
    assert data.count(weight) == 1
    at = data.index(weight)
    path.write_bytes(data[:at] + b"\x00\x00\x80\x3f" + data[at + 4 :])
    loaded = cleave.load(path, allow_compiled=True)
    assert "weights" in (loaded.segments[0].reason or "")
    assert not torch.equal(loaded(x), net(x))  # the tape runs what the file says

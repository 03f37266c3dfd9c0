"""The timing examples run on the smallest models, tell what they measured, and refuse what makes no sense."""

from __future__ import annotations

import importlib
import json
from pathlib import Path
from typing import Any

import pytest
import timing
import torch
from real_models import BUILDERS

pytestmark = pytest.mark.integration

TINY = ["--batches", "2", "--iterations", "1", "--warmup", "0", "--device", "cpu"]
EXAMPLES = ("real_model_timing", "replay_optimization_timing", "compile_overhead_timing")


@pytest.fixture(autouse=True)
def same_threads() -> Any:
    threads = torch.get_num_threads()
    yield
    torch.set_num_threads(threads)


def run(example: str, *arguments: str) -> int:
    status: int = importlib.import_module(example).main([*TINY, *arguments])
    return status


def names_in(file: Path) -> list[list[str]]:
    return [[r["name"] for r in entry["results"]] for entry in json.loads(file.read_text())["entries"]]


def test_real_models_are_timed_whole_and_in_halves(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file = tmp_path / "times.json"
    assert run("real_model_timing", "--models", "mlp", "--json", str(file)) == 0
    inference = ["direct_forward", "run_prefix", "run_suffix", "prefix_plus_suffix"]
    training = ["direct_train", "train_suffix", "backward_prefix", "split_train_roundtrip"]
    assert names_in(file) == [inference, training]
    told = capsys.readouterr().out
    assert "mlp, batch 2, training: prepare_split" in told
    assert all(name in told for name in (*inference, *training))


def test_replay_is_timed_with_a_back_end(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file = tmp_path / "times.json"
    options = ("--models", "cnn", "--backend", "cuda_graph", "--fixed-batch", "--json", str(file))
    assert run("replay_optimization_timing", *options) == 0
    assert names_in(file) == [["direct_pytorch_forward", "baseline_generated_prefix_suffix", "optimized_replay"]]
    assert "optimized_replay fell back: " in capsys.readouterr().out


def test_compiling_is_timed_and_its_break_even_told(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file = tmp_path / "times.json"
    options = ("--models", "mlp", "--modes", "replay", "retain", "--backend", "eager", "--json", str(file))
    assert run("compile_overhead_timing", *options) == 0
    entries = json.loads(file.read_text())["entries"]
    assert [e["mode"] for e in entries] == ["replay", "retain"]
    assert all(e["break_even_iterations"] is None or e["break_even_iterations"] >= 0 for e in entries)
    lines = capsys.readouterr().out.splitlines()
    assert "break-even" in lines[1]
    assert [line.split()[:3] for line in lines[2:4]] == [["mlp", "replay", "2"], ["mlp", "retain", "2"]]
    assert all("eager fullgraph" in line for line in lines[2:4])


def test_break_even_is_never_where_nothing_is_saved(capsys: pytest.CaptureFixture[str]) -> None:
    from cleave.benchmark import BenchmarkResult

    def told(seconds: float, ready: float) -> BenchmarkResult:
        return BenchmarkResult(
            "way", seconds, seconds, 1, median_latency_s=seconds, prepare_s=ready, latencies_s=(seconds,)
        )

    show = importlib.import_module("compile_overhead_timing").show
    show("net", "replay", 4, [told(0.25, 1.0), told(0.5, 3.0)])
    show("net", "replay", 4, [told(0.5, 1.0), told(0.25, 3.0)])
    never, eight = capsys.readouterr().out.splitlines()
    assert never.split()[-1] == "never"
    assert eight.split()[-1] == "8"


def test_what_fails_costs_its_own_rows_alone(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file = tmp_path / "times.json"
    options = ("--models", "mlp", "lstm", "--boundary", "after:words", "--no-training", "--json", str(file))
    assert run("real_model_timing", *options) == 1
    assert "mlp, batch 2, inference: FAILED: SplitError: " in capsys.readouterr().out
    failed, measured = json.loads(file.read_text())["entries"]
    assert "words" in failed["error"]
    assert len(measured["results"]) == 4


@pytest.mark.parametrize(
    ("given", "meant"),
    [
        ("resnet50", "torchvision-resnet50"),
        ("mobilenet", "torchvision-mobilenet_v3_large"),
        ("mobilenet_v3_large", "torchvision-mobilenet_v3_large"),
        ("MobileNet", "torchvision-mobilenet_v3_large"),
        ("yolov8n", "ultralytics-yolov8n"),
        ("swin", "timm-swin_tiny_patch4_window7_224"),
        ("rfdetr", "rfdetr-nano"),
        ("gpt2", "transformers-gpt2"),
        ("timm-resnet50", "timm-resnet50"),
        ("mlp", "mlp"),
    ],
)
def test_models_have_short_names(given: str, meant: str) -> None:
    assert timing.full_name(given) == meant


def test_every_real_model_can_be_named() -> None:
    assert {timing.full_name(name) for name in BUILDERS} == set(BUILDERS)
    assert set(timing.SHORT.values()) <= set(BUILDERS)
    assert set(timing.PICTURES) <= set(BUILDERS)


def test_inputs_have_the_rows_that_are_wanted() -> None:
    for batch in (1, 2, 5):
        _, inputs = timing.case("lstm", batch)
        assert [len(t) for t in inputs.args] == [batch]


@pytest.mark.parametrize("example", EXAMPLES)
@pytest.mark.parametrize(
    ("options", "says"),
    [
        (("--models", "resnet5"), "there is no model 'resnet5'; did you mean resnet50?"),
        (("--models", "nothing-like-it"), "there is no model 'nothing-like-it'; all, or some of: resnet50, mobilenet,"),
        (("--iterations", "0"), "'0' is no whole number of at least 1"),
        (("--warmup", "-1"), "'-1' is no whole number of at least 0"),
        (("--batches", "4", "x"), "'x' is no whole number of at least 1"),
        (("--device", "nowhere"), "--device nowhere: "),
        (("--json", "/no/such/folder/times.json"), "there is no folder /no/such/folder"),
    ],
)
def test_options_that_make_no_sense_are_refused(
    example: str, options: tuple[str, ...], says: str, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit) as stopped:
        run(example, *options)
    assert stopped.value.code == 2
    assert says in capsys.readouterr().err


@pytest.mark.parametrize("example", EXAMPLES)
def test_help_has_examples(example: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as stopped:
        run(example, "--help")
    assert stopped.value.code == 0
    assert f"python examples/{example}.py --" in capsys.readouterr().out


def test_cuda_can_be_asked_for(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as stopped:
        run("compile_overhead_timing", "--require-cuda", "--device", "cpu")
    assert stopped.value.code == 2
    assert "there is no CUDA device, or --device is another" in capsys.readouterr().err

"""Limits of runs: time, memory, the size of a tensor, and runs that another thread ends."""

from __future__ import annotations

import json
import re
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest
import torch
from crafted import rewrite, rewrite_plan
from torch import Tensor, nn

import cleave


class Long(nn.Module):
    """Many operators, each of which takes a moment."""

    def __init__(self, steps: int) -> None:
        super().__init__()
        self.steps = steps

    def forward(self, x: Tensor) -> Tensor:
        for _ in range(self.steps):
            x = torch.sin(x)
        return x


@pytest.fixture
def long(tmp_path: Path) -> Path:
    with torch.no_grad():
        cleave.capture(Long(400), torch.randn(200_000)).save(tmp_path / "long.clv")
    return tmp_path / "long.clv"


def test_a_run_that_takes_too_long_ends(long: Path) -> None:
    x = torch.randn(200_000)
    model = cleave.load(long, timeout=0.02, optimize="none", threads=1)
    begin = time.monotonic()
    with pytest.raises(cleave.LimitError, match=r"longer than the 0.02 s"):
        model(x)
    assert time.monotonic() - begin < 5
    assert torch.equal(cleave.load(long, timeout=600)(x), Long(400)(x))


def test_a_run_that_needs_too_much_memory_ends(tmp_path: Path) -> None:
    class Wide(nn.Module):
        def forward(self, x: Tensor) -> Tensor:
            y = x.repeat(1000)
            return (y * 2 + y.flip(0)).sum()

    file, x = tmp_path / "m.clv", torch.randn(1000)
    with torch.no_grad():
        cleave.capture(Wide(), x).save(file)
    for level in ("none", "safe"):
        with pytest.raises(cleave.LimitError, match="bytes"):
            cleave.load(file, sandbox=False, max_memory=6_000_000, optimize=level)(x)
        model = cleave.load(file, sandbox=False, max_memory=40_000_000, optimize=level)
        for _ in range(5):  # what a run had is not counted in the next
            assert torch.equal(model(x), Wide()(x))


def test_a_view_that_is_larger_than_memory_is_not_gone_through(tmp_path: Path) -> None:
    class Sum(nn.Module):
        def forward(self, x: Tensor) -> Tensor:
            return x.expand(64, 4).sum()

    file, x = tmp_path / "m.clv", torch.randn(1, 4)
    with torch.no_grad():
        cleave.capture(Sum(), x).save(file)
    huge = str(1 << 50)
    rewrite_plan(file, lambda text: text.replace("[64, 4]", f"[{huge}, 4]").replace("f32[64,4]", f"f32[{huge},4]"))
    begin = time.monotonic()
    with pytest.raises(cleave.LimitError, match="elements, more than"):
        cleave.load(file, sandbox=False, max_memory=1 << 30)(x)
    assert time.monotonic() - begin < 5


def test_elements_that_are_one_are_not_cleared_one_by_one(tmp_path: Path) -> None:
    file, x = tmp_path / "m.clv", torch.randn(4)
    with torch.no_grad():
        cleave.capture(torch.relu, x).save(file)
    huge = 1 << 45
    made = (
        f'aten::empty_strided([{huge}], [0], dtype:f32, layout:strided, device:"cpu", false) -> f32[{huge}] strides(0)'
    )
    rewrite_plan(file, lambda text: re.sub(r"aten::relu\(.*", made, text))
    begin = time.monotonic()
    with pytest.raises(cleave.LimitError, match="elements, more than"):
        cleave.load(file, sandbox=False, max_memory=1 << 20)(x)
    assert time.monotonic() - begin < 5


@pytest.mark.parametrize("sandbox", [False, True], ids=["here", "sandbox"])
def test_all_plans_together_have_the_time_of_a_run(tmp_path: Path, sandbox: bool) -> None:
    """A call goes from plan to plan while their guards end it."""

    def asks(x: Tensor) -> Tensor:
        y = x
        for _ in range(50):
            y = torch.sin(y)
        return y + 1 if y[0] > 0 else y - 1

    file, x, many = tmp_path / "m.clv", torch.ones(200_000), 60
    with torch.no_grad():
        cleave.capture(asks, x).save(file)

    def multiply(meta: dict[str, str]) -> None:
        about = json.loads(meta["cleave.artifact"])
        about["plans"] *= many
        meta["cleave.artifact"] = json.dumps(about, separators=(",", ":"))
        meta.update({f"cleave.plan.{i}": meta["cleave.plan.0"] for i in range(1, many)})

    rewrite(file, multiply)
    how: dict[str, Any] = {"optimize": "none", "threads": 1, "sandbox": sandbox}
    model = cleave.load(file, timeout=60, **how)
    begin = time.monotonic()
    with pytest.raises(cleave.GuardError, match="no other plan"):
        model(-x)
    each = (time.monotonic() - begin) / many
    with pytest.raises(cleave.LimitError, match="longer than"):
        cleave.load(file, timeout=each * 10, **how)(-x)


RNN: Any = (False, 1, 0.0, False, False, False)
LISTS: dict[str, Callable[[Tensor], Sequence[Tensor]]] = {
    "unbind": lambda x: x.unbind(0),
    "split": lambda x: x.split(1),
    "split_with_sizes": lambda x: x.split([1] * 4),
    "chunk": lambda x: x.chunk(4),
    "tensor_split": lambda x: x.tensor_split(4),
    "hsplit": lambda x: x.hsplit(4),
    "meshgrid": lambda x: torch.meshgrid(x[0], x[1], x[2], x[3], indexing="ij"),
    "gru": lambda x: torch.gru(x.view(4, 1, 1)[:, :0], x[:1].view(1, 1, 1)[:, :0], [x[:3].view(3, 1)] * 2, *RNN),
}


@pytest.mark.parametrize("name", LISTS)
def test_a_list_of_too_many_tensors_is_not_made(tmp_path: Path, name: str) -> None:
    """A tensor takes memory even where its elements are another's."""

    class Many(nn.Module):
        def forward(self, x: Tensor) -> Tensor:
            return LISTS[name](torch.zeros(4))[0] + x

    file, x, many = tmp_path / "m.clv", torch.randn(1), 400_000
    with torch.no_grad():
        cleave.capture(Many(), x).save(file)
    assert cleave.load(file, sandbox=False, max_memory=1 << 20)(x).shape == Many()(x).shape

    def grow(text: str) -> str:
        text = re.sub(
            r"(zeros\(\[|-> f32\[|chunk\(%\w+, |sections\(%\w+, |int\(%\w+, |view\(%\w+, \[)4\b", rf"\g<1>{many}", text
        )
        text = text.replace("[1, 1, 1, 1]", str([1] * many))
        call = next(line for line in text.splitlines() if "meshgrid" in line) if "meshgrid" in text else ""
        names = re.search(r"meshgrid[^(]*\(\[([^]]*)\]", call)
        return text.replace(names[1], ", ".join([names[1]] * 1000)) if names else text

    rewrite_plan(file, grow)
    with pytest.raises(cleave.LimitError, match=r"needs .* bytes more"):
        cleave.load(file, sandbox=False, max_memory=20 << 20)(x)


def test_another_thread_ends_runs_that_have_begun(long: Path) -> None:
    model, x, ended = cleave.load(long, optimize="none", threads=1), torch.randn(200_000), []

    def run() -> None:
        try:
            while True:
                model(x)
        except cleave.LimitError as e:
            ended.append(str(e))

    threads = [threading.Thread(target=run) for _ in range(2)]
    for t in threads:
        t.start()
    until = time.monotonic() + 60
    while len(ended) < 2 and time.monotonic() < until:
        time.sleep(0.05)
        model.cancel()
    for t in threads:
        t.join(60)
    assert len(ended) == 2
    assert "stopped by another thread" in ended[0]
    assert torch.equal(model(x), Long(400)(x))  # runs that begin later are not concerned


def test_limits_on_the_command_line(long: Path) -> None:
    run = [sys.executable, "-m", "cleave", "run", str(long), "--fill", "ones"]
    done = subprocess.run([*run, "--timeout", "0.01", "--optimize", "none"], capture_output=True, text=True)
    assert done.returncode == 1
    assert "longer than the 0.01 s" in done.stderr
    done = subprocess.run([*run, "--max-memory", "100k"], capture_output=True, text=True)
    assert done.returncode == 1
    assert "bytes" in done.stderr
    done = subprocess.run([*run, "--timeout", "600", "--max-memory", "1G"], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr


@pytest.mark.parametrize("limit", [[], ["--max-memory", "64M"], ["--no-sandbox"], ["--engine", "native"]])
@pytest.mark.parametrize("command", [["run", "--fill", "random"], ["run", "--input", "ones"], ["bench"]])
def test_inputs_of_any_size_are_not_made_up(long: Path, command: list[str], limit: list[str]) -> None:
    rewrite_plan(long, lambda text: text.replace("f32[200000]", "f32[2000000000000]"))
    run = [sys.executable, "-m", "cleave", *command[:1], str(long), *command[1:], *limit]
    done = subprocess.run(run, capture_output=True, text=True)
    assert done.returncode == 1
    assert "input x takes 8000000000000 bytes" in done.stderr


def test_inputs_of_any_size_are_not_made_up_to_compare_engines(long: Path) -> None:
    rewrite_plan(long, lambda text: text.replace("f32[200000]", "f32[2000000000000]"))
    run = [sys.executable, "-m", "cleave", "verify", "--engine", "native", "--no-sandbox", str(long)]
    done = subprocess.run(run, capture_output=True, text=True)
    assert done.returncode == 1
    assert "input x takes 8000000000000 bytes" in done.stderr


def test_inputs_that_are_made_up_count_for_the_memory_and_time_of_a_run(long: Path) -> None:
    run = [sys.executable, "-m", "cleave", "run", str(long), "--fill", "ones", "--max-memory"]
    for sandbox in ("--sandbox", "--no-sandbox"):
        done = subprocess.run([*run, "1M", sandbox], capture_output=True, text=True)
        assert done.returncode == 1
        assert "has 800000 of the 1000000 that it may have" in done.stderr
    rewrite_plan(long, lambda text: text.replace("f32[200000]", "f32[20000000]"))
    run = [sys.executable, "-m", "cleave", "run", str(long), "--fill", "random", "--timeout", "0.001"]
    done = subprocess.run(run, capture_output=True, text=True)
    assert done.returncode == 1
    assert "input x: it takes longer to make it up than the 0.001 s that a run may take" in done.stderr


@pytest.mark.parametrize("limit", [{"timeout": -1.0}, {"max_memory": -5}, {"timeout": float("nan")}])
def test_limits_that_are_none_are_refused(long: Path, limit: dict[str, float]) -> None:
    with pytest.raises(cleave.ArgumentError, match="not negative"):
        cleave.load(long, **limit)  # type: ignore[arg-type]

"""What a file may do to the process that opens it: nothing but give a result or an error."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from torch import Tensor, nn

import cleave


class Net(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.randn(64, 64))
        self.register_buffer("count", torch.zeros(64))

    def forward(self, x: Tensor) -> Tensor:
        return torch.relu(x @ self.weight + self.count)


def saved(path: Path, model: nn.Module | None = None, size: int = 64) -> nn.Module:
    model = (model or Net()).eval()
    with torch.no_grad():
        cleave.capture(model, torch.randn(2, size)).save(path)
    return model


def edited(path: Path, edit: Callable[[str], str]) -> None:
    """The plan of a file, changed as a stranger would: with the digest of the header that goes with it."""
    from crafted import rewrite_plan

    rewrite_plan(path, edit)


def test_two_models_of_one_file_do_not_share_what_is_written(tmp_path: Path) -> None:
    file = tmp_path / "m.clv"
    saved(file)
    a, b, x = cleave.load(file), cleave.load(file), torch.randn(2, 64)
    before = b(x)
    a.state_dict()["weight"].zero_()
    assert torch.equal(b(x), before)
    assert a(x).abs().max() == 0


def test_what_a_caller_writes_into_its_state_is_what_runs_read(tmp_path: Path) -> None:
    file = tmp_path / "m.clv"
    model = saved(file)
    loaded, x = cleave.load(file), torch.randn(2, 64)
    with torch.no_grad():
        loaded.state_dict()["count"].add_(3)
        model.count.add_(3)  # type: ignore[operator]
    assert torch.equal(loaded(x), model(x))


def test_a_file_that_is_truncated_does_not_reach_a_copy(tmp_path: Path) -> None:
    file = tmp_path / "m.clv"
    model = saved(file, nn.Linear(1024, 1024), 1024)
    x = torch.randn(2, 1024)
    want = model(x)
    for how in ({"copy": True}, {"check": True}):
        loaded = cleave.load(file, **how)
        data = file.read_bytes()
        os.truncate(file, 4096)
        assert torch.equal(loaded(x), want)
        file.write_bytes(data)


def test_the_command_line_reads_a_copy(tmp_path: Path) -> None:
    file = tmp_path / "m.clv"
    saved(file)
    done = subprocess.run([sys.executable, "-m", "cleave", "run", str(file), "--copy"], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr


def test_one_set_of_weights_per_run(tmp_path: Path) -> None:
    """Threads run while the weights change: every result is that of one set."""
    file = tmp_path / "m.clv"
    model = nn.Sequential(*[nn.Linear(64, 64) for _ in range(12)])
    saved(file, model)
    loaded, x = cleave.load(file, threads=1), torch.randn(4, 64)
    sets, wants = [], []
    with torch.no_grad():
        for i in range(2):
            for p in model.parameters():
                p.copy_(torch.randn(p.shape) * 0.1 + i)
            sets.append({k: t.clone() for k, t in model.state_dict().items()})
            wants.append(model(x))
    loaded.load_state_dict(sets[0])
    stop, wrong, runs = threading.Event(), [], [0] * 4

    def run(at: int) -> None:
        while not stop.is_set():
            got = loaded(x)
            runs[at] += 1
            if not any(torch.equal(got, want) for want in wants):
                wrong.append(got)

    threads = [threading.Thread(target=run, args=(i,)) for i in range(4)]
    for t in threads:
        t.start()
    for i in range(60):
        loaded.load_state_dict(sets[i % 2])
    stop.set()
    for t in threads:
        t.join()
    assert min(runs) > 0
    assert not wrong, f"{len(wrong)} of {sum(runs)} results are of no set of weights"


CASES = {
    "hidden_write": ("aten::relu(%", "aten::relu_(%", "does not say so"),
    "hidden_view": (
        "%2 = aten::relu(%1) -> f32[2,64]",
        "%v = aten::alias(@weight) -> f32[64,64]\n%2 = aten::relu_(%v) -> f32[64,64] view-of %v writes %v",
        "into the file",
    ),
}


def refused_or_right(path: Path, x: Tensor) -> str:
    """What a process says that loads the file and runs it: an error of ours, or "fine"; never a signal."""
    script = (
        "import sys, torch, cleave\n"
        "try:\n"
        "    m = cleave.load(sys.argv[1])\n"
        "    m(torch.load(sys.argv[2]))\n"
        "    print('fine')\n"
        "except cleave.CleaveError as e:\n"
        "    print(str(e)[:2000])\n"
    )
    data = path.with_suffix(".pt")
    torch.save(x, data)
    done = subprocess.run([sys.executable, "-c", script, path, data], capture_output=True, text=True, timeout=120)
    assert done.returncode >= 0, signal.Signals(-done.returncode)
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_memory_that_nobody_wrote_is_zero(tmp_path: Path) -> None:
    class Empty(nn.Module):
        def forward(self, x: Tensor) -> Tensor:
            a = torch.empty(1000)
            b = x.new_empty(1000)
            c = torch.empty_strided((1000,), (1,))
            for t in (a, b, c):
                t.zero_()
            return a + b + c + x.sum()

    file = tmp_path / "m.clv"
    saved(file, Empty())
    edited(file, lambda text: "\n".join(line for line in text.split("\n") if "zero_" not in line))
    loaded, x = cleave.load(file), torch.zeros(2, 64)
    for i in range(20):
        torch.full((1000,), float(i + 1)).clone()  # leaves its numbers in memory that is given out again
        assert torch.equal(loaded(x), torch.zeros(1000))


@pytest.mark.parametrize("name", CASES)
def test_writes_that_are_not_declared_are_refused(tmp_path: Path, name: str) -> None:
    old, new, why = CASES[name]
    file = tmp_path / "m.clv"
    model = saved(file)

    def edit(text: str) -> str:
        if name == "hidden_view":
            lines = text.split("\n")
            at = next(i for i, line in enumerate(lines) if "aten::relu(" in line)
            lines[at:at] = [
                "%v = aten::alias(@weight) -> f32[64,64]",
                "%w = aten::relu_(%v) -> f32[64,64] view-of %v writes %v",
            ]
            return "\n".join(lines)
        assert old in text, text
        return text.replace(old, new)

    edited(file, edit)
    assert why in refused_or_right(file, torch.randn(2, 64))
    assert model is not None


def test_a_callers_input_keeps_its_size(tmp_path: Path) -> None:
    file = tmp_path / "m.clv"
    saved(file)

    def edit(text: str) -> str:
        lines = text.split("\n")
        at = next(i for i, line in enumerate(lines) if "aten::relu(" in line)
        name = next(line for line in lines if line.startswith("input ")).split()[1]
        lines[at:at] = [
            f"%v = aten::alias({name}) -> f32[2,64]",
            "%w = aten::resize_(%v, [4096]) -> f32[4096] view-of %v writes %v",
        ]
        return "\n".join(lines)

    edited(file, edit)
    x = torch.randn(2, 64)
    bytes_before = x.untyped_storage().nbytes()
    try:
        cleave.load(file)(x)
    except cleave.CleaveError:
        pass
    assert x.shape == (2, 64)
    assert x.untyped_storage().nbytes() == bytes_before

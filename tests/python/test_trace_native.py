"""`backend="native"` of cleave.trace: parts of a model that the native engine runs, compared and saved."""

from __future__ import annotations

import re
import subprocess
import threading
from pathlib import Path

import pytest
import torch
from native import COMMAND
from torch import Tensor, nn

import cleave


class Parts(nn.Module):
    """Two parts that the engine takes, and an operator between them that it does not."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.before = nn.Sequential(nn.Conv2d(3, 8, 3), nn.ReLU(), nn.Conv2d(8, 8, 3), nn.ReLU())
        self.after = nn.Sequential(nn.Conv2d(8, 4, 3), nn.Sigmoid(), nn.Flatten(), nn.Linear(4 * 4, 6))

    def forward(self, x: Tensor) -> Tensor:
        return self.after(torch.special.i0e(self.before(x)))


def close(got: Tensor, want: Tensor) -> None:
    torch.testing.assert_close(got, want, rtol=1e-4, atol=1e-5)


def image(rows: int = 2) -> Tensor:
    return torch.rand(rows, 3, 8, 8)


def traced(model: nn.Module, **how: object) -> cleave.TracedModule:
    return cleave.trace(model, image(), backend="native", keep_slower=True, minimum_segment_size=2, **how)  # type: ignore[arg-type]


@torch.no_grad()
def test_what_it_takes_runs_natively_and_the_rest_on_the_tape() -> None:
    net = Parts().eval()
    module = traced(net)
    x = image()
    close(module(x), net(x))
    assert {s.backend for s in module.segments} == {"native"}
    assert len(module.segments) == 2
    assert all(s.compiled for s in module.segments), module.segments


@torch.no_grad()
def test_a_model_of_nodes_that_it_takes_is_one_segment() -> None:
    net = Parts().before.eval()
    module = traced(net)
    x = image()
    close(module(x), net(x))
    assert len(module.segments) == 1


@torch.no_grad()
def test_one_segment_serves_a_dynamic_batch() -> None:
    net = Parts().eval()
    module = traced(net, dynamic_batch=(1, 16))
    for rows in (1, 2, 7, 16):
        x = image(rows)
        close(module(x), net(x))
    assert all(s.compiled for s in module.segments), module.segments


@torch.no_grad()
def test_other_weights_are_seen() -> None:
    net = Parts().eval()
    module = traced(net)
    x = image()
    close(module(x), net(x))
    other = Parts().eval()
    other.load_state_dict({k: v * 2 for k, v in net.state_dict().items()})
    module.load_state_dict(other.state_dict())
    close(module(x), other(x))


@torch.no_grad()
def test_a_traced_model_is_saved_and_loaded_with_its_segments(tmp_path: Path) -> None:
    net = Parts().eval()
    module = traced(net, dynamic_batch=(1, 8))
    module.save(tmp_path / "traced.clv")
    loaded = cleave.load(tmp_path / "traced.clv", allow_compiled=True)
    for rows in (1, 5):
        x = image(rows)
        close(loaded(x), net(x))
    assert [s.backend for s in loaded.segments] == ["native", "native"]
    assert all(s.compiled and s.runs == 2 and not s.tape_runs for s in loaded.segments), loaded.segments


@torch.no_grad()
def test_many_threads_run_a_segment_at_once_and_the_number_of_threads_changes_no_bit() -> None:
    module = traced(Parts().eval())
    x = image()
    want = module(x)
    wrong: list[str] = []

    def work() -> None:
        with torch.no_grad():
            for _ in range(20):
                if not torch.equal(module(x), want):
                    wrong.append("other bits")

    workers = [threading.Thread(target=work) for _ in range(4)]
    for w in workers:
        w.start()
    for w in workers:
        w.join()
    before = torch.get_num_threads()
    try:
        torch.set_num_threads(3)
        assert torch.equal(traced(Parts().eval())(x), want)
    finally:
        torch.set_num_threads(before)
    assert not wrong


@pytest.mark.skipif(COMMAND is None, reason="the command is not built")
def test_the_command_offers_every_back_end_that_is_built_in(tmp_path: Path) -> None:
    told = subprocess.run([str(COMMAND), "trace", "--help"], capture_output=True, text=True, check=True).stdout
    with pytest.raises(cleave.CleaveError, match="there are") as refused:
        cleave.trace(Parts().eval(), image(), backend="none")
    built_in = str(refused.value).split("there are ")[1].split(", ")[:3]
    offered = re.search(r"one of ([\w, ]+)", " ".join(told.split()))
    assert offered is not None, told
    assert offered[1].strip().split(", ") == built_in
    with torch.no_grad():
        cleave.capture(Parts().eval(), image()).save(tmp_path / "model.clv")
    words = ["trace", "model.clv", "-o", "traced.clv", "--backend", "native", "--keep-slower"]
    done = subprocess.run(
        [str(COMMAND), *words], cwd=tmp_path, capture_output=True, text=True, timeout=120, check=False
    )
    assert done.returncode == 0, done.stderr

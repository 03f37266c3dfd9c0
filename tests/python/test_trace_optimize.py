"""Passes around compiled segments: the operators between them are rewritten, the segments are what they were."""

from __future__ import annotations

import warnings
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from trace_backends import Exact, short

import cleave


class Gaps(nn.Module):
    """Segments of relu and cos; between them things to remove, to share and to make once."""

    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.rand(8, 8))
        self.drop = nn.Dropout(0.5)

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
        a = torch.cos(torch.relu(x) * self.weight)
        table = torch.arange(8.0).sin() + torch.ones(8)
        b = self.drop(a).sin() + a.sin() + table
        unused = torch.relu(a.exp()).cos()
        c = torch.cos(torch.relu(b.view(8, 8))) * self.weight
        return c.sin() + b.sin(), c + unused * 0


TAKEN = ("relu", "cos", "mul")


def traced(level: str, **options: Any) -> tuple[cleave.TracedModule, nn.Module]:
    torch.manual_seed(1)
    net = Gaps().eval()
    exact = Exact(supports=lambda node: short(node.op) in TAKEN, **options)
    return exact.trace(net, torch.rand(8, 8), optimize=level, minimum_segment_size=1), net


@pytest.mark.parametrize("level", ["none", "safe", "fast"])
def test_the_same_comes_out_at_every_level(level: str) -> None:
    x = torch.rand(8, 8)
    made, net = traced(level)
    with torch.no_grad():
        for got, want in zip(made(x), net(x), strict=True):
            assert torch.equal(got, want)
    assert len(made.segments) >= 3
    assert all(s.compiled for s in made.segments)


def test_passes_tell_what_they_did() -> None:
    assert traced("none")[0].optimizations() == "as captured\n"
    text = traced("safe")[0].optimizations()
    for name in ("identity", "common", "prelude"):
        assert f"{name} " in text
    assert "; runs" in text


def test_each_run_runs_every_segment_once() -> None:
    made, _ = traced("safe")
    before = [s[7] for s in made._runtime.segments()]
    made(torch.rand(8, 8))
    assert [s[7] for s in made._runtime.segments()] == [n + 1 for n in before]
    assert all(s[8] == 0 for s in made._runtime.segments())


def test_the_report_does_not_know_of_passes() -> None:
    one, two = traced("none")[0].report().data, traced("safe")[0].report().data
    assert (one["operators"], one["compiled"]) == (two["operators"], two["compiled"])
    assert [s.ops for s in traced("none")[0].segments] == [s.ops for s in traced("safe")[0].segments]


@pytest.mark.parametrize("level", ["none", "safe", "fast"])
def test_code_that_fails_runs_on_its_tape(level: str) -> None:
    calls = [0]

    def running(_: list[str], out: list[Tensor]) -> list[Tensor]:
        calls[0] += 1
        if armed[0]:
            raise RuntimeError("it broke")
        return out

    armed = [False]
    made, net = traced(level, running=running)
    armed[0], x = True, torch.rand(8, 8)
    with torch.no_grad(), warnings.catch_warnings():
        warnings.simplefilter("ignore")
        for _ in range(2):
            for got, want in zip(made(x), net(x), strict=True):
                assert torch.equal(got, want)
    assert all("it broke" in (s.reason or "") for s in made.segments)


@pytest.mark.parametrize("level", ["none", "safe", "fast"])
def test_files_have_it_too(level: str, tmp_path: Path) -> None:
    made, net = traced("safe")
    made.save(tmp_path / "net.clv")
    loaded = cleave.load(tmp_path / "net.clv", optimize=level, allow_compiled=True)
    x = torch.rand(8, 8)
    for _ in range(3):
        with torch.no_grad():
            for got, want in zip(loaded(x), net(x), strict=True):
                assert torch.equal(got, want)
    assert all(s.compiled for s in loaded.segments)
    assert ("prelude" in loaded.optimizations()) == (level != "none")


@pytest.mark.parametrize("level", ["safe", "fast"])
def test_other_weights_stop_the_code_and_are_read(level: str, tmp_path: Path) -> None:
    made, net = traced("safe")
    made.save(tmp_path / "net.clv")
    loaded = cleave.load(tmp_path / "net.clv", optimize=level, allow_compiled=True)
    x = torch.rand(8, 8)
    loaded(x)
    with torch.no_grad():
        net.weight.mul_(2)
    loaded.load_state_dict(net.state_dict())
    with torch.no_grad():
        for got, want in zip(loaded(x), net(x), strict=True):
            assert torch.equal(got, want)


def test_convolutions_between_segments_are_joined() -> None:
    torch.manual_seed(2)
    net = nn.Sequential(
        nn.Conv2d(3, 16, 3), nn.Tanh(), nn.Conv2d(16, 32, 3, bias=False), nn.BatchNorm2d(32), nn.ReLU(), nn.Tanh(),
        nn.Conv2d(32, 32, 3), nn.Hardswish(),
    ).eval()  # fmt: skip
    x = torch.rand(2, 3, 24, 24)
    exact = Exact(supports=lambda node: short(node.op) == "tanh")
    made = exact.trace(net, x, optimize="fast", minimum_segment_size=1)
    with torch.no_grad():
        torch.testing.assert_close(made(x), net(x), rtol=1e-4, atol=1e-5)
    text = made.optimizations()
    assert "fold_batch_norm 1" in text
    assert "fuse" in text
    assert [len(s.ops) for s in made.segments] == [1, 1]


def test_sizes_that_code_does_not_serve_run_on_the_tape() -> None:
    torch.manual_seed(3)
    net = nn.Sequential(nn.Linear(8, 8), nn.ReLU(), nn.Dropout(0.1), nn.Linear(8, 8), nn.Dropout(0.1), nn.ReLU()).eval()
    exact = Exact(supports=lambda node: short(node.op) == "linear")
    made = exact.trace(net, torch.rand(3, 8), dynamic_batch=(1, 16), minimum_segment_size=1)
    for rows in (3, 1, 9, 16):
        x = torch.rand(rows, 8)
        with torch.no_grad():
            assert torch.equal(made(x), net(x))


def test_single_passes_cannot_be_left_out() -> None:
    from cleave.optimize import Optimize

    with pytest.raises(ValueError, match="optimize is a level here"):
        cleave.trace(nn.ReLU(), torch.rand(3), optimize=Optimize("fast", off=("fuse",)), dryrun=True)  # type: ignore[arg-type]

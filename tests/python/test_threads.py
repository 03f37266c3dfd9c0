"""The argument `threads`: how many threads operators use in a run, whatever others have at the same time."""

from __future__ import annotations

import threading
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn
from trace_backends import Exact

import cleave
from cleave import _native
from cleave._threads import limited

SPEC = cleave.SplitSpec(boundary="50%")


class Counts(nn.Module):
    """Asks, on its way, how many threads its operators have."""

    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(64, 64)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return torch.relu(self.linear(x)) * 2


def seen(run: Any) -> list[int]:
    """What a back end that is written in Python sees while `run` runs."""
    out: list[int] = []

    def running(_: list[str], given: list[torch.Tensor]) -> list[torch.Tensor]:
        out.append(torch.get_num_threads())
        return given

    run(running)
    return out


def test_a_run_has_its_own_number_and_leaves_the_old_one() -> None:
    before = torch.get_num_threads()

    def run(running: Any) -> None:
        exact = Exact(running=running)
        traced = exact.trace(Counts().eval(), torch.rand(2, 64), threads=before + 2)
        assert torch.get_num_threads() == before
        traced(torch.rand(2, 64))

    found = seen(run)
    assert found
    assert set(found) == {before + 2}
    assert torch.get_num_threads() == before


@pytest.mark.parametrize("threads", [1, 2, 3])
def test_every_way_to_run_takes_it(threads: int, tmp_path: Path) -> None:
    net, x = Counts().eval(), torch.rand(2, 64)
    with torch.no_grad(), limited(threads):
        want = net(x)
    with torch.no_grad():
        assert torch.equal(cleave.capture(net, x, threads=threads)(x), want)
    split = cleave.prepare_split(net, example_inputs=(x,), split=SPEC, threads=threads)
    assert torch.equal(split.run_suffix(split.run_prefix(x)), want)
    cleave.capture(net, x).save(tmp_path / "net.clv")
    assert torch.equal(cleave.load(tmp_path / "net.clv", threads=threads)(x), want)
    torch.testing.assert_close(cleave.capture(net, x, threads=threads, optimize="fast")(x), want)


def test_a_run_that_fails_leaves_the_old_number() -> None:
    before = torch.get_num_threads()
    plan = cleave.capture(lambda x: x * int(x.max()), torch.ones(4), threads=before + 1, on_guard="raise")
    with pytest.raises(cleave.GuardError):
        plan(torch.full((4,), 7.0))
    assert torch.get_num_threads() == before


@pytest.mark.parametrize("bad", [0, -1, 1025, 10**12])
def test_bad_numbers_are_refused(bad: int, tmp_path: Path) -> None:
    net, x = nn.Linear(4, 2).eval(), torch.rand(3, 4)
    cleave.capture(net, x).save(tmp_path / "net.clv")
    ways = [
        lambda: cleave.capture(net, x, threads=bad),
        lambda: cleave.prepare_split(net, example_inputs=(x,), split=SPEC, threads=bad),
        lambda: cleave.compat.prepare_split_replay(net, example_inputs=(x,), split=SPEC, threads=bad),
        lambda: cleave.load(tmp_path / "net.clv", threads=bad),
        lambda: cleave.trace(net, x, threads=bad, dryrun=True),
    ]
    for way in ways:
        with pytest.raises(ValueError, match="threads is a number from 1 to 1024"):
            way()


@pytest.mark.parametrize("bad", [1.0, "2", True])
def test_threads_is_a_whole_number(bad: Any) -> None:
    with pytest.raises(TypeError, match="threads is a whole number"):
        cleave.capture(nn.Linear(4, 2), torch.rand(3, 4), threads=bad)


def test_two_threads_keep_to_their_own_numbers() -> None:
    net, x = Counts().eval(), torch.rand(2, 64)
    found: dict[int, set[int]] = {1: set(), 3: set()}
    together = threading.Barrier(2)

    def make(threads: int) -> cleave.TracedModule:
        def running(_: list[str], given: list[torch.Tensor]) -> list[torch.Tensor]:
            found[threads].add(torch.get_num_threads())
            return given

        return Exact(running=running).trace(net, x, threads=threads)

    def work(threads: int) -> None:
        together.wait()
        for _ in range(20):
            made[threads](x)
        left[threads] = torch.get_num_threads()

    made = {n: make(n) for n in found}
    left: dict[int, int] = {}
    before = torch.get_num_threads()
    workers = [threading.Thread(target=work, args=(n,)) for n in (1, 3)]
    for w in workers:
        w.start()
    for w in workers:
        w.join()
    assert found == {1: {1}, 3: {3}}
    assert left == {1: before, 3: before}
    assert torch.get_num_threads() == before


def test_what_threads_start_with_is_not_changed() -> None:
    before, found = torch.get_num_threads(), []
    with limited(before + 3):
        worker = threading.Thread(target=lambda: found.append(torch.get_num_threads()))
        worker.start()
        worker.join()
    assert found == [before]


@pytest.mark.integration
def test_compiled_halves_have_it_too() -> None:
    found: list[int] = []

    def backend(graph: Any, _: Any) -> Any:
        def run(*args: Any) -> Any:
            found.append(torch.get_num_threads())
            return graph.forward(*args)

        return run

    split = cleave.prepare_split(
        Counts().eval(),
        example_inputs=(torch.rand(2, 64),),
        split=SPEC,
        mode="compiled",
        compile_options={"backend": backend},
        threads=5,
    )
    split.run_suffix(split.run_prefix(torch.rand(2, 64)))
    assert found
    assert set(found) == {5}


def test_a_native_runtime_refuses_bad_numbers(tmp_path: Path) -> None:
    cleave.capture(nn.Linear(4, 2).eval(), torch.rand(3, 4)).save(tmp_path / "net.clv")
    artifact = _native.Artifact(bytes(tmp_path / "net.clv"), [], False)
    for bad in (-1, 1025):
        with pytest.raises(ValueError, match="threads is a number from 1 to 1024"):
            _native.Runtime(artifact, None, None, False, False, False, False, None, bad)

"""Exact cuts of random programs: whatever is asked to be before and after, both halves give what the program gives."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from helpers import draw, rng_state, same_tree, seed_all
from hypothesis import given
from hypothesis import strategies as st
from test_random_programs import SETTINGS, Step, programs, run, shapes
from torch import Tensor

import cleave
from cleave._cut import Cut, Wanted
from cleave._objective import Objective
from cleave._state import Target
from cleave.plan import capture_checked
from cleave.spec import SplitSpec

pytestmark = pytest.mark.integration

SOME = 8  # pairs of nodes tried per program


def cut_after(captured: Any, before: int, after: int, names: list[str]) -> Cut | str:
    """The exact cut between two nodes, or why there is none."""
    spec = SplitSpec(exact=True, must_prefix=(names[before],), must_suffix=(names[after],), dynamic_batch=None)
    try:
        return Cut(captured, Wanted(spec, Objective({}, None), "debug_interpreter"), False, None, None)
    except cleave.SplitError as error:
        return str(error)


def test_exact_cuts_of_random_programs_give_what_the_program_gives() -> None:
    counts = {"cut": 0, "moved": 0, "refused": 0}

    @SETTINGS
    @given(programs, shapes, st.integers(0, 1 << 30))
    def body(program: list[Step], sizes: tuple[tuple[int, ...], ...], seed: int) -> None:
        def fn(*inputs: Tensor) -> tuple[Tensor, ...]:
            return run(program, *inputs)

        def make() -> tuple[Tensor, ...]:
            return tuple(torch.randn(s) for s in sizes)

        example = draw(make, 0, False)
        try:
            with torch.no_grad():
                captured = capture_checked(Target(fn), example.args, {}, grad=False, both=False)
        except cleave.CleaveError:
            return
        names = [node[0] for node in captured.plan.nodes()]
        random = torch.Generator().manual_seed(seed)
        for _ in range(SOME if len(names) > 1 else 0):
            before, after = torch.randint(0, len(names), (2,), generator=random).tolist()
            compare(captured, cut_after(captured, before, after, names), fn, make, names, counts)

    body()
    print(counts)
    assert counts["cut"] > 300
    assert counts["moved"] > 50


def compare(captured: Any, cut: Cut | str, fn: Any, make: Any, names: list[str], counts: dict[str, int]) -> None:
    if isinstance(cut, str):
        assert "prefix" in cut or "cannot be made" in cut or "safe" in cut, cut
        counts["refused"] += 1
        return
    counts["cut"] += 1
    counts["moved"] += cut.captured.plan.text() != captured.plan.text()
    assert len(cut.captured.plan.nodes()) == len(names)
    mine, theirs = draw(make, 7, False).args, draw(make, 7, False).args
    seed_all(3)
    with torch.no_grad():
        want = fn(*mine)
    after = rng_state()
    seed_all(3)
    try:
        got = cut.run_suffix(cut.prefix.run(theirs), None)
    except cleave.GuardError:
        return
    same_tree(want, got, "output of both halves")
    same_tree(mine, theirs, "inputs")
    assert rng_state() == after

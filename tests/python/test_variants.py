"""Branches on the size that hide between probes: at every size the numbers of eager, in any order."""

from __future__ import annotations

import functools
import math
import random
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest
import torch
from helpers import Fn, same_tree
from torch import Tensor, nn

import cleave

SIZES = range(1, 65)


@functools.cache
def _cached_scale(rows: int) -> float:
    return 2.0 if rows > 20 else 3.0


def _tried(table: dict[int, int], rows: int) -> int:
    try:
        return table[rows]
    except KeyError:
        return 7


def _plain_int(rows: Any) -> bool:
    return isinstance(rows, int) and rows > 40


TABLE = {4: 1, 12: 5, 40: 6}

BRANCHES: dict[str, Callable[..., Any]] = {
    "between six and 32": lambda lin, x: lin(x).relu() if 6 <= x.shape[0] < 32 else lin(x).tanh(),
    "even": lambda lin, x: lin(x).relu() if x.shape[0] % 2 == 0 else lin(x).tanh(),
    "a multiple of eight": lambda lin, x: lin(x).relu() if x.shape[0] % 8 == 0 else lin(x).tanh(),
    "five alone": lambda lin, x: lin(x).relu() if x.shape[0] == 5 else lin(x).tanh(),
    "all but 37": lambda lin, x: lin(x).relu() if x.shape[0] != 37 else lin(x).tanh(),
    "by len": lambda lin, x: lin(x).relu() if len(x) > 3 else lin(x).tanh(),
    "by int": lambda lin, x: lin(x).relu() if int(x.shape[0]) > 50 else lin(x).tanh(),
    "by float": lambda lin, x: lin(x).relu() if math.sqrt(x.shape[0]) > 6.5 else lin(x).tanh(),
    "by text": lambda lin, x: lin(x).relu() if str(x.shape[0]).endswith("3") else lin(x).tanh(),
    "by type": lambda lin, x: lin(x).relu() if _plain_int(x.shape[0]) else lin(x).tanh(),
    "by a set": lambda lin, x: lin(x).relu() if x.shape[0] in {9, 11, 50} else lin(x).tanh(),
    "by a dict": lambda lin, x: lin(x) * TABLE.get(x.shape[0], 2),
    "by an exception": lambda lin, x: lin(x) * _tried(TABLE, x.shape[0]),
    "by a cache": lambda lin, x: lin(x) * _cached_scale(x.shape[0]),
    "by the number of elements": lambda lin, x: lin(x).relu() if x.numel() > 100 else lin(x).tanh(),
    "by bits": lambda lin, x: lin(x) * x.shape[0].bit_length(),
    "three ways": lambda lin, x: [torch.relu, torch.tanh, torch.exp][x.shape[0] % 3](lin(x)),
    "another output": lambda lin, x: [lin(x).relu(), lin(x).tanh(), lin(x).exp()][x.shape[0] % 3],
    "two branches": lambda lin, x: (lin(x) * 2 if x.shape[0] > 10 else lin(x)) + (x if x.shape[0] % 5 else -x),
    "a view at one end": lambda lin, x: lin(x).relu()[: x.shape[0] - 40] if x.shape[0] > 40 else lin(x).relu(),
    "a number in a tensor": lambda lin, x: lin(x) + torch.tensor([x.shape[0] // 16]),
    "the parts of a split": lambda lin, x: sum(c.sum(0) for c in lin(x).split(16)),
    "a padded batch": lambda lin, x: nn.functional.pad(lin(x), (0, 0, 0, -x.shape[0] % 8)).view(-1, 8, 4).sum(1),
}


def _prepared(fn: Callable[..., Any], example: int = 4, high: int = 64) -> tuple[nn.Module, cleave.SplitRuntime]:
    torch.manual_seed(0)
    model = Fn(fn, 4).eval()
    spec = cleave.SplitSpec(boundary="50%", dynamic_batch=(1, high))
    return model, cleave.prepare_split(model, example_inputs=torch.randn(example, 4), split=spec)


def _same(model: nn.Module, rt: cleave.SplitRuntime, rows: int, seed: int) -> None:
    torch.manual_seed(seed)
    x = torch.randn(rows, 4)
    boundary = rt.run_prefix(x)
    assert boundary.batch_size == rows
    assert boundary.sizes == {"B": rows}
    with torch.no_grad():
        same_tree(model(x), rt.run_suffix(boundary), f"{rows} rows")


@pytest.mark.integration
@pytest.mark.parametrize("name", BRANCHES)
def test_no_size_of_the_range_gives_wrong_numbers(name: str) -> None:
    model, rt = _prepared(BRANCHES[name])
    for rows in SIZES:
        _same(model, rt, rows, rows)
    for rows in random.Random(name).sample(list(SIZES), 64):
        _same(model, rt, rows, 100 + rows)


@pytest.mark.integration
@pytest.mark.parametrize("name", BRANCHES)
def test_no_size_gives_wrong_numbers_in_another_order_and_from_another_example(name: str) -> None:
    model, rt = _prepared(BRANCHES[name], example=40)
    for rows in random.Random(len(name)).sample(list(SIZES), 64):
        _same(model, rt, rows, rows)


@pytest.mark.parametrize(
    ("name", "plans"),
    [("even", 2), ("between six and 32", 2), ("three ways", 3), ("a multiple of eight", 2), ("five alone", 2)],
)
def test_sizes_of_one_structure_share_one_plan(name: str, plans: int) -> None:
    model, rt = _prepared(BRANCHES[name])
    for rows in SIZES:
        _same(model, rt, rows, rows)
    assert len(rt.variants) == plans, rt.variants
    assert all("test_variants.py:" in v for v in rt.variants[1:]), "a variant says where the model goes another way"


def test_boundaries_made_before_a_variant_got_its_formulas_can_still_be_finished() -> None:
    model, rt = _prepared(BRANCHES["between six and 32"])
    rest = []
    for rows in (6, 7, 8, 9, 10, 31):
        x = torch.randn(rows, 4)
        rest.append((x, rt.run_prefix(x)))
    assert len(rt.variants) == 2
    for x, boundary in rest:
        with torch.no_grad():
            same_tree(model(x), rt.run_suffix(boundary), "finished later")


def test_two_plans_that_differ_in_a_constant_alone_are_told_apart() -> None:
    model, rt = _prepared(BRANCHES["a number in a tensor"])
    rest = []
    for rows in [*range(1, 64, 3), *range(64, 0, -5)]:
        x = torch.randn(rows, 4)
        rest.append((x, rt.run_prefix(x)))
    for x, boundary in reversed(rest):
        with torch.no_grad():
            same_tree(model(x), rt.run_suffix(boundary), f"{x.shape[0]} rows")


def test_a_boundary_finished_by_another_runtime_is_right_or_refused() -> None:
    torch.manual_seed(0)
    model = Fn(BRANCHES["a number in a tensor"], 4).eval()
    spec = cleave.SplitSpec(boundary="50%")
    here, there = (cleave.prepare_split(model, example_inputs=torch.randn(n, 4), split=spec) for n in (4, 40))
    for rows in (4, 20, 40, 21, 41, 60):
        x = torch.randn(rows, 4)
        there.run_prefix(x)
        try:
            got = there.run_suffix(here.run_prefix(x))
        except cleave.InputError:
            continue
        with torch.no_grad():
            same_tree(model(x), got, f"{rows} rows")


@pytest.mark.parametrize("name", ["even", "between six and 32", "a number in a tensor"])
def test_threads_may_meet_at_new_variants(name: str) -> None:
    model, rt = _prepared(BRANCHES[name])
    inputs = {n: torch.randn(n, 4) for n in SIZES}
    with torch.no_grad():
        want = {n: model(x) for n, x in inputs.items()}

    def work(seed: int) -> list[tuple[int, Any]]:
        order = random.Random(seed).sample(list(SIZES), 64)
        return [(n, rt.run_suffix(rt.run_prefix(inputs[n]))) for n in order]

    with ThreadPoolExecutor(4) as pool:
        for results in pool.map(work, range(4)):
            for n, got in results:
                same_tree(want[n], got, f"{n} rows")


@pytest.mark.integration
@pytest.mark.parametrize("name", BRANCHES)
def test_a_captured_plan_takes_every_size_too(name: str) -> None:
    torch.manual_seed(0)
    model = Fn(BRANCHES[name], 4).eval()
    with torch.no_grad():
        plan = cleave.capture(model, torch.randn(4, 4), dynamic_batch=(1, 64))
        for rows in random.Random(3).sample(list(SIZES), 20):
            x = torch.randn(rows, 4)
            same_tree(model(x), plan(x), f"{rows} rows")


@pytest.mark.integration
def test_more_single_sizes_than_are_kept_stay_right() -> None:
    """A number that no formula explains: every size has a plan of its own, and the oldest are forgotten."""

    def fn(lin: nn.Linear, x: Tensor) -> Tensor:
        return lin(x).sum(0) * ((x.shape[0] * 2654435761) % 1000003)

    model, rt = _prepared(fn, high=90)
    for rows in [*range(1, 91), *range(1, 20), *range(90, 60, -1)]:
        _same(model, rt, rows, rows)
    assert len(rt.variants) <= 66
    assert any("aten::mul" in v and "test_variants.py:" in v for v in rt.variants), "the reason names op and line"


# ---- the shape-only pass -----------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("name", "conditions"),
    [
        ("between six and 32", ["B < 6", "B < 32"]),
        ("even", ["(B % 2) == 0"]),
        ("five alone", ["B != 5"]),
        ("by the number of elements", ["4*B <= 100"]),
    ],
)
def test_exploring_finds_the_branches_and_records_both_sides(name: str, conditions: list[str]) -> None:
    model, rt = _prepared(BRANCHES[name])
    found = rt.explore(torch.randn(4, 4))
    for condition in conditions:
        line = next((f for f in found if f.startswith(condition)), None)
        assert line is not None, found
        assert "test_variants.py:" in line
        assert line.endswith("other operators on each side")
    for rows in SIZES:
        _same(model, rt, rows, rows)


def test_exploring_tells_what_it_cannot_see() -> None:
    _, rt = _prepared(BRANCHES["by len"])
    assert any("no conditions on B" in f for f in rt.explore(torch.randn(4, 4)))
    _, rt = _prepared(BRANCHES["by a set"])
    assert any("stopped" in f for f in rt.explore(torch.randn(4, 4)))


@pytest.mark.integration
@pytest.mark.parametrize("name", BRANCHES)
def test_exploring_changes_no_numbers(name: str) -> None:
    model, rt = _prepared(BRANCHES[name])
    state = torch.get_rng_state()
    rt.explore(torch.randn(4, 4, generator=torch.Generator().manual_seed(1)))
    assert torch.equal(state, torch.get_rng_state())
    for rows in random.Random(name).sample(list(SIZES), 12):
        _same(model, rt, rows, rows)


def test_exploring_is_bounded_in_time() -> None:
    _, rt = _prepared(BRANCHES["even"])
    assert rt.explore(torch.randn(4, 4), seconds=0.0) == []


# ---- trace_batch_mode --------------------------------------------------------------------------------------


def _squeezed(lin: nn.Linear, x: Tensor) -> Tensor:
    return lin(x).tanh()[0] if x.shape[0] == 1 else lin(x).relu()


@pytest.mark.parametrize("mode", [None, "batch_1", "batch_gt1"])
def test_a_batch_of_one_row_is_its_own_variant_in_every_mode(mode: Any) -> None:
    torch.manual_seed(0)
    model = Fn(_squeezed, 4).eval()
    spec = cleave.SplitSpec(boundary="50%", dynamic_batch=(1, 16), trace_batch_mode=mode)
    example = torch.randn(1 if mode == "batch_1" else 4, 4)
    rt = cleave.prepare_split(model, example_inputs=example, split=spec)
    if mode == "batch_1":
        assert len(rt.variants) == 2, "both structures are there from the start"
    for rows in (1, 2, 16, 9, 1):
        _same(model, rt, rows, rows)
    assert len(rt.variants) == 2


@pytest.mark.parametrize(("mode", "rows", "words"), [("batch_1", 4, "batch 1"), ("batch_gt1", 1, "more than 1")])
def test_an_explicit_mode_is_strict_about_the_example(mode: Any, rows: int, words: str) -> None:
    model = Fn(BRANCHES["even"], 4).eval()
    spec = cleave.SplitSpec(boundary="50%", trace_batch_mode=mode)
    with pytest.raises(cleave.SplitError, match=words):
        cleave.prepare_split(model, example_inputs=torch.randn(rows, 4), split=spec)


def test_batch_1_needs_a_range_with_one() -> None:
    with pytest.raises(cleave.SplitError, match="starts at 1"):
        cleave.SplitSpec(dynamic_batch=(2, 8), trace_batch_mode="batch_1")

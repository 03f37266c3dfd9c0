"""Distances on the native engine: cdist in all its ways, and of rows at the same places."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from native import COMMAND, Calls, run
from torch import Tensor

import cleave

pytestmark = pytest.mark.skipif(COMMAND is None, reason="the cleave command is not built")
Fns = list[Callable[..., Any]]
POWERS = [0.0, 1.0, 2.0, 2.5, float("inf")]
MODES = ["use_mm_for_euclid_dist", "donot_use_mm_for_euclid_dist", "use_mm_for_euclid_dist_if_necessary"]


def check(functions: Fns, inputs: list[Tensor], folder: Path, isa: str = "", near: float = 2e-5) -> None:
    model = Calls(functions).eval()
    with torch.no_grad():
        want = model(*inputs)
    for i, (a, b) in enumerate(zip(want, run(model, inputs, folder, isa), strict=True)):
        assert (a.dtype, a.shape) == (b.dtype, b.shape), f"function {i}"
        torch.testing.assert_close(b, a, rtol=near, atol=near, equal_nan=True, msg=lambda m, i=i: f"function {i}: {m}")


@pytest.mark.parametrize("isa", ["base", "avx2", ""])
def test_distances_of_every_power_agree_with_eager(isa: str, tmp_path: Path) -> None:
    torch.manual_seed(0)
    functions: Fns = [lambda x, y, p=p: torch.cdist(x, y, p) for p in POWERS]
    functions += [lambda x, y, m=m: torch.cdist(x, y, compute_mode=m) for m in MODES]
    functions += [lambda x, y: torch.cdist(x.mT, y.mT), lambda x, y: torch.cdist(x[:, None], y[1]), torch.cdist]
    check(
        [f for f in functions if f is not torch.cdist],
        [torch.randn(3, 40, 9), torch.randn(3, 40, 9) + 3],
        tmp_path,
        isa,
    )


@pytest.mark.parametrize("sizes", [(2, 3, 0), (2, 0, 5), (0, 4, 5), (1, 1, 1)])
def test_distances_between_nothing(sizes: tuple[int, ...], tmp_path: Path) -> None:
    x = torch.randn(sizes)
    check([lambda x: torch.cdist(x, x + 1), lambda x: torch.cdist(x, x + 1, 1.0)], [x], tmp_path)


def test_distances_of_doubles_and_of_what_is_no_number(tmp_path: Path) -> None:
    torch.manual_seed(0)
    functions: Fns = [lambda x, y, p=p: torch.cdist(x, y, p) for p in POWERS]
    x, y = torch.randn(2, 30, 11).double(), torch.randn(30, 11).double()
    check(functions, [x, y], tmp_path, near=1e-9)
    x[0, 1, 2] = float("nan")
    x[1, 0, 0] = float("inf")
    check(functions[1:], [x[:, :4].float(), y[:4].float()], tmp_path)


def test_a_row_has_the_same_distances_in_every_batch(tmp_path: Path) -> None:
    torch.manual_seed(0)
    codes = torch.randn(60, 33)
    model = Calls(
        [lambda x: torch.cdist(x, codes), lambda x: torch.cdist(codes, x), lambda x: torch.cdist(x, x[:1] * 0)]
    )
    with torch.no_grad():
        cleave.capture(model, (torch.randn(5, 33),), dynamic_batch=(1, 64)).save(tmp_path / "m.clv")
    x = torch.randn(40, 33)
    one, two = (cleave.load(tmp_path / "m.clv", engine="native", unproven=True, threads=k) for k in (1, 2))
    whole = two(x)
    torch.testing.assert_close(whole[0], torch.cdist(x, codes), rtol=2e-5, atol=2e-5)
    for i in (0, 7, 39):
        alone = one(x[i : i + 1])
        assert torch.equal(whole[0][i : i + 1], alone[0])
        assert torch.equal(whole[1][:, i : i + 1], alone[1])
        assert torch.equal(whole[2][i : i + 1], alone[2])


def test_rows_at_the_same_places(tmp_path: Path) -> None:
    torch.manual_seed(0)
    functions: Fns = [lambda x, y, d=d: F.cosine_similarity(x, y, dim=d) for d in (0, 1, -1)]
    functions += [lambda x, y, p=p: F.pairwise_distance(x, y, p) for p in POWERS]
    functions += [
        lambda x, y: F.pairwise_distance(x, y, keepdim=True, eps=0.1),
        lambda x, y: F.cosine_similarity(x[:, None], y[None, :, :1], dim=-1, eps=2.0),
        lambda x, y: F.cosine_similarity(x * 0, y, dim=1),
        lambda x, y: F.pairwise_distance(x.mT, y[0].t()),
    ]
    x, y = torch.randn(3, 4, 9), torch.randn(3, 4, 9)
    check(functions, [x, y], tmp_path)
    check(functions, [x.double(), y.double()], tmp_path, near=1e-9)

"""What mixtures of experts and speech models need of the native engine: a matrix for each group of rows, how many
tokens each expert has, and random numbers that nobody reads."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from native import COMMAND, Calls, rerun, run
from torch import Tensor, nn

import cleave

pytestmark = pytest.mark.skipif(COMMAND is None, reason="the cleave command is not built")


class Experts(nn.Module):
    """Each group of rows times the matrix of its expert, which is a parameter, or an input."""

    def __init__(self, weight: Tensor, own: bool) -> None:
        super().__init__()
        self.own = own
        self.weight, self.turned = nn.Parameter(weight), nn.Parameter(weight.mT.contiguous())

    def forward(self, x: Tensor, ends: Tensor, weight: Tensor) -> list[Tensor]:
        given = torch._grouped_mm(x, self.weight if self.own else weight, offs=ends)
        return [given, torch._grouped_mm(x, self.turned.mT, offs=ends)]


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("own", [True, False])
def test_rows_are_multiplied_by_the_matrix_of_their_group(own: bool, dtype: torch.dtype, tmp_path: Path) -> None:
    torch.manual_seed(0)
    weight, x = torch.randn(4, 24, 16).to(dtype), torch.randn(30, 24).to(dtype)
    model = Experts(weight, own).eval()
    near = 1e-5 if dtype == torch.float32 else 2e-2
    for isa in ("", "base", "avx2"):
        inputs = [x, torch.tensor([7, 7, 20, 30], dtype=torch.int32), weight]
        with torch.no_grad():
            made = [run(model, inputs, tmp_path, isa)]
            wanted = [model(*inputs)]
            inputs[1] = torch.tensor([0, 1, 29, 30], dtype=torch.int32)
            made.append(rerun(inputs, tmp_path, isa))
            wanted.append(model(*inputs))
        for want, got in zip(wanted, made, strict=True):
            for a, b in zip(want, got, strict=True):
                torch.testing.assert_close(b, a, rtol=near, atol=near * 3)


def test_a_row_of_a_group_has_the_same_bits_whatever_the_groups_are(tmp_path: Path) -> None:
    torch.manual_seed(0)
    x = torch.randn(40, 500)
    model = Experts(torch.randn(3, 500, 36), True).eval()
    with torch.no_grad():
        cleave.capture(model, (x, torch.tensor([9, 9, 40], dtype=torch.int32), model.weight)).save(tmp_path / "m.clv")
    native = cleave.load(tmp_path / "m.clv", engine="native", unproven=True, threads=2)
    first = native(x, torch.tensor([20, 30, 40], dtype=torch.int32), model.weight)[0]
    second = native(x, torch.tensor([1, 21, 40], dtype=torch.int32), model.weight)[0]
    assert torch.equal(first[0], second[0])
    assert torch.equal(first[20], second[20])
    assert torch.equal(first[30:], second[30:])


def test_groups_that_do_not_fit_are_an_error(tmp_path: Path) -> None:
    x, weight = torch.randn(8, 4), torch.randn(2, 4, 8)
    run(Experts(weight, True).eval(), [x, torch.tensor([3, 8], dtype=torch.int32), weight], tmp_path)
    for ends in ([3, 9], [5, 3], [-1, 8]):
        with pytest.raises(RuntimeError, match="do not fit"):
            rerun([x, torch.tensor(ends, dtype=torch.int32), weight], tmp_path)


def test_histograms_and_running_sums_of_narrow_integers(tmp_path: Path) -> None:
    torch.manual_seed(0)
    functions = [
        lambda x, n: torch.histc(x, 10, -2, 2),
        lambda x, n: torch.histc(n, 8, 0, 7),
        lambda x, n: torch.histc(x.double(), 7),
        lambda x, n: torch.histc(n * 0 + 2, 5),
        lambda x, n: torch.cumsum(n.int(), 0, dtype=torch.int32),
        lambda x, n: n.to(torch.uint8).view(5, 10).cumprod(1, dtype=torch.uint8),
        lambda x, n: n.int().view(5, 10).mT.cumsum(1, dtype=torch.int16),
    ]
    x, n = torch.randn(3, 40), torch.randint(0, 8, (50,)).float()
    model = Calls(functions)
    for i, (a, b) in enumerate(zip(model(x, n), run(model, [x, n], tmp_path), strict=True)):
        assert a.dtype == b.dtype
        assert torch.equal(a, b), f"function {i}"


class Draws(nn.Module):
    def __init__(self, used: bool) -> None:
        super().__init__()
        self.used = used

    def forward(self, x: Tensor) -> Tensor:
        drawn = torch.rand([])
        return x + drawn if self.used else x + 1


def test_random_numbers_are_refused_unless_nobody_reads_them(tmp_path: Path) -> None:
    x = torch.randn(2, 3)
    assert torch.equal(run(Draws(False), [x], tmp_path)[0], x + 1)
    with pytest.raises(RuntimeError, match=r"aten::rand .*it draws random numbers"):
        run(Draws(True), [x], tmp_path)

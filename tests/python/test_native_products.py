"""Matrix products of the native engine: the `cleave` command runs files without torch, and eager says what is right."""

from __future__ import annotations

import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
import torch.nn.functional as F
from safetensors.torch import load_file, save_file
from test_cli_run import find_command
from torch import Tensor, nn

import cleave

COMMAND = find_command()
pytestmark = pytest.mark.skipif(COMMAND is None, reason="the cleave command is not built")


class Calls(nn.Module):
    """A function as a model, with weights of its own."""

    def __init__(self, fn: Callable[..., Tensor], *weights: Tensor) -> None:
        super().__init__()
        self.fn = fn
        self.weights = nn.ParameterList(nn.Parameter(w, requires_grad=False) for w in weights)

    def forward(self, *inputs: Tensor) -> Tensor:
        return self.fn(*inputs, *self.weights)


def native(folder: Path, model: nn.Module, *inputs: Tensor, threads: int = 1) -> Tensor:
    """The output of the model by the native engine, in a process without torch."""
    assert COMMAND is not None
    file, given, out = folder / "model.clv", folder / "in.safetensors", folder / "out.safetensors"
    plan = cleave.capture(model.eval(), inputs)
    plan.save(file)
    save_file({f"i{k}": x.contiguous() for k, x in enumerate(inputs)}, given)
    words = [COMMAND, "run", str(file), "--engine", "native", "--threads", str(threads), "-o", str(out)]
    for k in range(len(inputs)):
        words += ["-i", f"{given}:i{k}"]
    done = subprocess.run(words, capture_output=True, text=True, timeout=120, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    (result,) = load_file(out).values()
    return result


def check(folder: Path, model: nn.Module, *inputs: Tensor, tolerance: float = 1e-5) -> None:
    with torch.no_grad():
        want = model.eval()(*inputs)
    got = native(folder, model, *inputs)
    assert got.dtype == want.dtype
    assert got.shape == want.shape
    scale = float(want.double().abs().max()) if want.numel() else 1.0
    torch.testing.assert_close(got, want, rtol=tolerance, atol=tolerance * max(1.0, scale))


def draw(*shape: int, dtype: torch.dtype = torch.float32) -> Tensor:
    if not dtype.is_floating_point:
        return torch.randint(-9, 9, shape).to(dtype)
    return torch.randn(shape).to(dtype)


@pytest.fixture(autouse=True)
def seeded() -> None:
    torch.manual_seed(0)


PRODUCTS: dict[str, tuple[Callable[..., Tensor], list[tuple[int, ...]], list[tuple[int, ...]]]] = {
    # name: function, shapes of inputs, shapes of weights
    "linear": (F.linear, [(3, 5, 37)], [(50, 37), (50,)]),
    "linear without bias": (F.linear, [(4, 7)], [(3, 7)]),
    "linear of a vector": (F.linear, [(19,)], [(33, 19), (33,)]),
    "linear by a vector": (F.linear, [(2, 3, 19)], [(19,)]),
    "linear by an input": (F.linear, [(6, 8), (5, 8)], []),
    "linear of turned rows": (lambda x, w: F.linear(x.transpose(0, 1), w), [(3, 5, 16)], [(32, 16)]),
    "linear of columns": (lambda x, w: F.linear(x.t(), w), [(16, 5)], [(20, 16)]),
    "mm": (torch.mm, [(5, 7), (7, 9)], []),
    "bmm": (torch.bmm, [(3, 5, 7), (3, 7, 9)], []),
    "bmm by weights": (torch.bmm, [(3, 5, 7)], [(3, 7, 40)]),
    "dot": (torch.dot, [(9,), (9,)], []),
    "mv": (torch.mv, [(5, 9), (9,)], []),
    "outer": (torch.outer, [(5,), (9,)], []),
    "matmul of vectors": (torch.matmul, [(9,), (9,)], []),
    "vector by matrix": (torch.matmul, [(9,), (9, 4)], []),
    "vector by batch": (torch.matmul, [(9,), (2, 3, 9, 4)], []),
    "batch by vector": (torch.matmul, [(2, 3, 4, 9), (9,)], []),
    "broadcast batches": (torch.matmul, [(2, 1, 4, 9), (3, 9, 5)], []),
    "broadcast weights": (torch.matmul, [(2, 3, 4, 9)], [(1, 3, 9, 33)]),
    "attention scores": (lambda q, k: q @ k.transpose(-2, -1), [(2, 3, 17, 16), (2, 3, 21, 16)], []),
    "addmm": (torch.addmm, [(4, 6), (4, 5), (5, 6)], []),
    "addmm scaled": (lambda d, a, b: torch.addmm(d, a, b, beta=0.5, alpha=-2), [(6,), (4, 5), (5, 6)], []),
    "addmm without": (lambda d, a, b: torch.addmm(d, a, b, beta=0), [(6,), (4, 5), (5, 6)], []),
    "addmv": (torch.addmv, [(4,), (4, 5), (5,)], []),
    "baddbmm": (lambda d, a, b: torch.baddbmm(d, a, b, alpha=0.25), [(3, 4, 6), (3, 4, 5), (3, 5, 6)], []),
    "baddbmm of a row": (torch.baddbmm, [(1, 1, 6), (3, 4, 5), (3, 5, 6)], []),
    "addbmm": (lambda d, a, b: torch.addbmm(d, a, b, beta=2), [(4, 6), (3, 4, 5), (3, 5, 6)], []),
    "addmm and relu": (torch._addmm_activation, [(6,), (4, 5), (5, 6)], []),
    "addmm and gelu": (lambda d, a, b: torch._addmm_activation(d, a, b, use_gelu=True), [(6,), (4, 5), (5, 6)], []),
    "einsum of matrices": (lambda a, b: torch.einsum("ij,jk->ik", a, b), [(4, 5), (5, 6)], []),
    "einsum of heads": (lambda a, b: torch.einsum("bqhd,bkhd->bhqk", a, b), [(2, 5, 3, 8), (2, 7, 3, 8)], []),
    "einsum back": (lambda a, b: torch.einsum("bhqk,bkhd->bqhd", a, b), [(2, 3, 5, 7), (2, 7, 3, 8)], []),
    "einsum implied": (lambda a, b: torch.einsum("ba, bc", a, b), [(4, 5), (4, 6)], []),
    "einsum over two": (lambda a, b: torch.einsum("aijb,jic->bca", a, b), [(2, 3, 4, 5), (4, 3, 6)], []),
    "einsum by weights": (lambda a, b: torch.einsum("bsi,oi->bso", a, b), [(2, 3, 8)], [(10, 8)]),
    "einsum of whatever": (lambda a, b: torch.einsum("...id,...jd->...ij", a, b), [(2, 3, 5, 8), (2, 3, 7, 8)], []),
    "einsum of some": (lambda a, b: torch.einsum("... i, j i -> ... j", a, b), [(2, 3, 5, 8)], [(7, 8)]),
    "einsum of none": (lambda a, b: torch.einsum("i...,ij->j...", a, b), [(5,), (5, 4)], []),
    "einsum of whatever, implied": (lambda a, b: torch.einsum("...ab,...bc", a, b), [(2, 5, 8), (2, 8, 3)], []),
    "einsum turned": (lambda a, b: torch.einsum("bi...,boi->...bo", a, b), [(2, 8, 3, 4), (2, 7, 8)], []),
    "einsum outer": (lambda a, b: torch.einsum("i,j->ji", a, b), [(4,), (5,)], []),
    "nothing to sum": (torch.matmul, [(3, 0), (0, 4)], []),
    "no rows": (F.linear, [(0, 5)], [(4, 5), (4,)]),
}


@pytest.mark.parametrize("name", PRODUCTS)
def test_a_product_is_that_of_torch(name: str, tmp_path: Path) -> None:
    fn, inputs, weights = PRODUCTS[name]
    check(tmp_path, Calls(fn, *(draw(*s) for s in weights)), *(draw(*s) for s in inputs))


@pytest.mark.parametrize("dtype", [torch.float64, torch.int64, torch.int32, torch.int16, torch.int8, torch.uint8])
def test_other_types_multiply_plainly(dtype: torch.dtype, tmp_path: Path) -> None:
    check(tmp_path, Calls(torch.matmul), draw(2, 3, 5, dtype=dtype), draw(2, 5, 7, dtype=dtype))


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_half_floats_are_widened(dtype: torch.dtype, tmp_path: Path) -> None:
    weights = draw(20, 37, dtype=dtype), draw(20, dtype=dtype)
    check(tmp_path, Calls(F.linear, *weights), draw(5, 37, dtype=dtype), tolerance=1e-2)
    check(tmp_path, Calls(torch.matmul), draw(5, 37, dtype=dtype), draw(37, 9, dtype=dtype), tolerance=1e-2)


def test_an_mlp_with_activations_and_a_residual_runs_whole(tmp_path: Path) -> None:
    class Mlp(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.up, self.down, self.head = nn.Linear(48, 100), nn.Linear(100, 48), nn.Linear(48, 10)

        def forward(self, x: Tensor) -> Tensor:
            x = x + self.down(F.gelu(self.up(x)))
            return torch.tanh(self.head(F.relu(x)))

    check(tmp_path, Mlp(), draw(5, 7, 48))
    check(tmp_path, Mlp(), draw(1, 48))


def test_rows_have_the_same_bits_in_every_batch(tmp_path: Path) -> None:
    model = nn.Sequential(nn.Linear(70, 130), nn.ReLU(), nn.Linear(130, 33))
    x = draw(29, 70)
    whole = native(tmp_path, model, x)
    for first, end in [(0, 1), (28, 29), (3, 16), (1, 29)]:
        for threads in (1, 2):
            assert torch.equal(native(tmp_path, model, x[first:end].clone(), threads=threads), whole[first:end])


def sdpa(**options: bool | float) -> Callable[..., Tensor]:
    return lambda q, k, v, mask=None: F.scaled_dot_product_attention(q, k, v, mask, **options)  # type: ignore[arg-type]


ATTENTION: dict[str, tuple[Callable[..., Tensor], list[tuple[int, ...]]]] = {
    # name: function, shapes of queries, keys, values
    "plain": (sdpa(), [(2, 3, 17, 16), (2, 3, 21, 16), (2, 3, 21, 16)]),
    "odd sizes": (sdpa(scale=0.3), [(2, 3, 50, 13), (2, 3, 67, 13), (2, 3, 67, 9)]),
    "long": (sdpa(), [(1, 2, 130, 64), (1, 2, 1100, 64), (1, 2, 1100, 64)]),
    "causal": (sdpa(is_causal=True), [(2, 2, 150, 32), (2, 2, 150, 32), (2, 2, 150, 32)]),
    "causal, few keys": (sdpa(is_causal=True), [(1, 2, 70, 8), (1, 2, 40, 8), (1, 2, 40, 8)]),
    "causal, many keys": (sdpa(is_causal=True), [(1, 2, 30, 8), (1, 2, 100, 8), (1, 2, 100, 8)]),
    "one query": (sdpa(), [(2, 4, 1, 32), (2, 4, 33, 32), (2, 4, 33, 32)]),
    "grouped": (sdpa(enable_gqa=True), [(2, 6, 11, 16), (2, 2, 13, 16), (2, 2, 13, 16)]),
    "three dimensions": (sdpa(), [(4, 10, 8), (4, 12, 8), (4, 12, 8)]),
    "heads last": (
        lambda q, k, v: sdpa()(*(x.transpose(1, 2) for x in (q, k, v))).transpose(1, 2).reshape(2, 9, 48),
        [(2, 9, 3, 16), (2, 12, 3, 16), (2, 12, 3, 16)],
    ),
}


@pytest.mark.parametrize("name", ATTENTION)
def test_attention_is_that_of_torch(name: str, tmp_path: Path) -> None:
    fn, shapes = ATTENTION[name]
    check(tmp_path, Calls(fn), *(draw(*s) for s in shapes))


@pytest.mark.parametrize("shape", [(12, 15), (2, 1, 12, 15), (2, 1, 1, 15), (1, 3, 12, 1)])
@pytest.mark.parametrize("flags", [True, False])
def test_masks_hide_keys_and_whole_rows(shape: tuple[int, ...], flags: bool, tmp_path: Path) -> None:
    seen = torch.rand(shape) > 0.4
    seen.view(-1, shape[-1])[0] = False  # a row that sees nothing
    mask = seen if flags else torch.where(seen, torch.randn(shape), -torch.inf)
    check(tmp_path, Calls(sdpa()), draw(2, 3, 12, 8), draw(2, 3, 15, 8), draw(2, 3, 15, 8), mask)


def test_attention_has_the_same_bits_in_every_batch(tmp_path: Path) -> None:
    q, k, v = draw(5, 2, 60, 16), draw(5, 2, 70, 16), draw(5, 2, 70, 16)
    whole = native(tmp_path, Calls(sdpa()), q, k, v, threads=2)
    for i in (0, 4):
        part = native(tmp_path, Calls(sdpa()), *(x[i : i + 1].clone() for x in (q, k, v)))
        assert torch.equal(part, whole[i : i + 1])

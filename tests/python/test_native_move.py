"""Operators that move data, on the native engine: bit for bit what torch gives, in a process without libtorch."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file
from test_cli_run import COMMAND
from torch import Tensor, nn
from torch.nn import functional as F

import cleave

pytestmark = pytest.mark.skipif(COMMAND is None, reason="the cleave command is not built")


class Of(nn.Module):
    """A function as a module; its first result is used once more, so that it is no output alone."""

    def __init__(self, fn: Callable[..., Any]) -> None:
        super().__init__()
        self.fn = fn

    def forward(self, *args: Tensor) -> Any:
        return self.fn(*args)


def native(folder: Path, *args: Tensor, code: int = 0, threads: int = 1) -> dict[str, Tensor] | str:
    """Runs folder/m.clv on the inputs; its outputs by name, or what it says where it fails."""
    out = folder / "out.safetensors"
    out.unlink(missing_ok=True)
    words = [COMMAND, "run", folder / "m.clv", "--engine", "native", "--threads", threads, "-o", out]
    for i, t in enumerate(args):
        save_file({"x": t.contiguous()}, folder / f"{i}.safetensors")
        words += ["-i", folder / f"{i}.safetensors"]
    env = {"PATH": "/nonexistent", "CLEAVE_ISA": os.environ.get("CLEAVE_ISA", "")}
    if not env["CLEAVE_ISA"]:
        del env["CLEAVE_ISA"]
    done = subprocess.run([str(w) for w in words], env=env, capture_output=True, text=True, check=False)
    assert done.returncode == code, done.stdout + done.stderr
    return done.stderr if code else load_file(out)


def flat(value: Any) -> list[Tensor]:
    if isinstance(value, Tensor):
        return [value]
    return [t for v in value for t in flat(v)]


def check(folder: Path, fn: Callable[..., Any], *args: Tensor, threads: int = 1) -> None:
    """The function natively and by torch, on these inputs and on others of the same sizes."""
    cleave.capture(Of(fn), args).save(folder / "m.clv")
    want = flat(fn(*(a.clone() for a in args)))
    got = native(folder, *args, threads=threads)
    assert isinstance(got, dict)
    made = (
        list(got.values())
        if len(got) == 1
        else [got[k] for k in sorted(got, key=lambda k: [int(w) if w.isdigit() else w for w in k.split(".")])]
    )
    assert len(made) == len(want)
    for a, b in zip(made, want, strict=True):
        assert a.dtype == b.dtype
        assert a.shape == b.shape
        assert torch.equal(
            a.contiguous().view(torch.uint8) if a.dim() else a, b.contiguous().view(torch.uint8) if b.dim() else b
        )


X = torch.randn(3, 4, 6)
IMAGE = torch.randn(2, 6, 5, 7)
I64 = torch.randint(-50, 50, (3, 4, 6))
MATRIX = torch.randn(7, 5)
AT = torch.tensor([2, 0, 1, 2])


def used(fn: Callable[..., Any]) -> Callable[..., Any]:
    """The result of a view goes through an operator, so that no output is a view."""
    return lambda *args: [torch.stack([t, t]) for t in flat(fn(*args))]


VIEWS: dict[str, tuple[Callable[..., Any], tuple[Tensor, ...]]] = {
    "view": (lambda x: x.view(2, 6, -1), (X,)),
    "view of a transpose": (lambda x: x.transpose(0, 1).view(4, 3, 2, 3), (X,)),
    "reshape": (lambda x: x.reshape(12, 6), (X,)),
    "reshape that copies": (lambda x: x.transpose(1, 2).reshape(3, 24), (X,)),
    "reshape that copies all": (lambda x: x.permute(2, 1, 0).reshape(-1), (X,)),
    "reshape_as": (lambda x, y: x.reshape_as(y), (X, torch.zeros(8, 9))),
    "view_as": (lambda x, y: x.view_as(y), (X, torch.zeros(8, 9))),
    "flatten": (lambda x: x.flatten(1), (X,)),
    "flatten the middle": (lambda x: x.flatten(0, 1), (X,)),
    "flatten a number": (lambda x: x[0].flatten(), (torch.arange(3),)),
    "ravel": (lambda x: x.t().ravel(), (MATRIX,)),
    "unflatten": (lambda x: x.unflatten(2, (2, -1)), (X,)),
    "permute": (lambda x: x.permute(2, 0, 1), (X,)),
    "transpose": (lambda x: x.transpose(-1, 0), (X,)),
    "swapaxes": (lambda x: x.swapaxes(0, 1), (X,)),
    "t": (lambda x: x.t(), (MATRIX,)),
    "T": (lambda x: x.T, (MATRIX,)),
    "mT": (lambda x: x.mT, (X,)),
    "movedim": (lambda x: x.movedim(0, -1), (X,)),
    "movedims": (lambda x: torch.movedim(x, (0, 1), (2, 0)), (X,)),
    "moveaxis": (lambda x: x.moveaxis(2, 0), (X,)),
    "squeeze": (lambda x: x[:1, :, :1].squeeze(), (X,)),
    "squeeze a dimension": (lambda x: x[:1].squeeze(0).squeeze(-1), (X,)),
    "squeeze dimensions": (lambda x: x[:1, :, :1].squeeze((0, 1, 2)), (X,)),
    "unsqueeze": (lambda x: x.unsqueeze(1).unsqueeze(-1), (X,)),
    "atleast": (
        lambda x: (
            torch.ops.aten.atleast_1d(x[0, 0, 0]),
            torch.ops.aten.atleast_2d(x[0, 0]),
            torch.ops.aten.atleast_3d(x[0]),
        ),
        (X,),
    ),
    "expand": (lambda x: x[:, :1].expand(2, 3, 4, -1), (X,)),
    "expand_as": (lambda x, y: x[0].expand_as(y), (X, X)),
    "broadcast_to": (lambda x: x[:1].broadcast_to(5, 4, 6), (X,)),
    "slice": (lambda x: x[1:, ::2, -4:-1], (X,)),
    "empty slice": (lambda x: x[5:, 3:1], (X,)),
    "select": (lambda x: x[-1, :, 2], (X,)),
    "narrow": (lambda x: x.narrow(1, 1, 2), (X,)),
    "chunk": (lambda x: x.chunk(4, -1), (X,)),
    "split": (lambda x: x.split(4, 2), (X,)),
    "split by sizes": (lambda x: x.split([1, 0, 3], 1), (X,)),
    "tensor_split": (lambda x: x.tensor_split(4, 2), (X,)),
    "tensor_split at places": (lambda x: x.tensor_split((1, 3, -1), 2), (X,)),
    "unbind": (lambda x: x.unbind(1), (X,)),
    "unsafe pieces": (
        lambda x: (x.unsafe_chunk(4, -1), x.unsafe_split(4, 2), x.unsafe_split_with_sizes([1, 0, 3], 1)),
        (X,),
    ),
    "broadcast_tensors": (lambda x, y: torch.broadcast_tensors(x, y, x[0, :, :1]), (X, X[:1])),
    "diagonal": (lambda x: (x.diagonal(), x.diagonal(1, 0, 2), x.diagonal(-2, 1, 2)), (X,)),
    "unfold": (lambda x: x.unfold(2, 3, 2), (X,)),
    "as_strided": (lambda x: x.as_strided((3, 5), (2, 1), 4), (X,)),
    "as_strided of a view": (lambda x: (x + 1).view(6, 12).unsqueeze(0).as_strided((3, 5), (2, 1), 4), (X,)),
    "detach": (lambda x: torch.ops.aten.alias(x.detach()), (X,)),
    "contiguous": (lambda x: x.permute(2, 0, 1).contiguous(), (X,)),
    "contiguous slices": (lambda x: x[..., ::2].contiguous(), (X,)),
    "view.dtype": (lambda x: x.view(torch.int32), (X,)),
    "dropout": (lambda x: F.dropout(x, 0.5, training=False), (X,)),
    "meshgrid": (lambda x, y: torch.meshgrid(x[0, 0], y, indexing="ij"), (X, torch.arange(3.0))),
    "meshgrid xy": (lambda x, y: torch.meshgrid(x[0, 0], y, indexing="xy"), (X, torch.arange(3.0))),
}

MOVES: dict[str, tuple[Callable[..., Any], tuple[Tensor, ...]]] = {
    "cat": (lambda x, y: torch.cat([x, y, x], 1), (X, torch.randn(3, 1, 6))),
    "cat of types": (lambda x, y: torch.cat([x, y], 0), (X, I64)),
    "cat with nothing": (lambda x, none: torch.cat([x[:, :0], none, x], 1), (X, torch.zeros(0))),
    "cat of transposes": (lambda x, y: torch.cat([x.mT, y.mT], -1), (X, X)),
    "concat": (lambda x: torch.concat([x, x], -1), (X,)),
    "stack": (lambda x, y: torch.stack([x, y], 1), (X, X + 1)),
    "stack at the end": (lambda x, y: torch.stack([x, y], -1), (X, X + 1)),
    "hstack": (lambda x: (torch.hstack([x, x]), torch.hstack([x[0, 0], x[1, 1]])), (X,)),
    "vstack": (lambda x: (torch.vstack([x, x]), torch.vstack([x[0, 0], x[1, 1]])), (X,)),
    "dstack": (lambda x: (torch.dstack([x, x]), torch.dstack([x[0, 0], x[1, 1]])), (X,)),
    "column_stack": (lambda x: torch.column_stack([x[0], x[0, :, 1]]), (X,)),
    "repeat": (lambda x: x.repeat(2, 1, 3), (X,)),
    "repeat with more dimensions": (lambda x: x.mT.repeat(2, 1, 1, 2), (X,)),
    "tile": (lambda x: x.tile(2, 2), (X,)),
    "repeat_interleave": (lambda x: x.repeat_interleave(3, 1), (X,)),
    "repeat_interleave of all": (lambda x: x.mT.repeat_interleave(2), (X,)),
    "flip": (lambda x: x.flip(0, -1), (X,)),
    "fliplr, flipud": (lambda x: (x.fliplr(), x.flipud()), (X,)),
    "rot90": (lambda x: [torch.rot90(x, k, (0, 2)) for k in (1, 2, 3, -1, 4)], (X,)),
    "roll": (lambda x: x.roll((1, -2), (0, 2)), (X,)),
    "roll of all": (lambda x: x.mT.roll(5), (X,)),
    "clone": (lambda x: x.mT.clone(), (X,)),
    "places in a triangle": (
        lambda x: (
            torch.tril_indices(4, 5) + x[0, 0, 0].long(),
            torch.triu_indices(3, 3, 1, dtype=torch.int32),
            torch.tril_indices(3, 4, -2),
            torch.triu_indices(2, 2, 5),
        ),
        (X,),
    ),
    "tril": (lambda x: (x.tril(), x.tril(2), x.tril(-9)), (X,)),
    "triu": (lambda x: (x.triu(), x.triu(-1), x.triu(9)), (X,)),
    "diag": (lambda x: (x[0].diag(1), x[0, 0].diag(), x[0, 0].diag(-2)), (X,)),
    "diag_embed": (lambda x: (x.diag_embed(), x.diag_embed(1, 0, 2)), (X,)),
    "slice_scatter": (lambda x, y: x.slice_scatter(y[:, :2], 1, 1, 4, 2), (X, X + 1)),
    "select_scatter": (lambda x, y: x.select_scatter(y[:, 0], 1, -1), (X, X + 1)),
    "diagonal_scatter": (lambda x, y: x[0].diagonal_scatter(y[0, 0, :4], 1), (X, X + 1)),
    "unfold": (lambda x: F.unfold(x, (3, 2), dilation=(1, 2), padding=(2, 1), stride=(2, 1)), (IMAGE,)),
    "unfold of one": (lambda x: F.unfold(x, 3), (IMAGE[0],)),
    "fold": (lambda x: F.fold(F.unfold(x, 3, padding=1, stride=2), (5, 7), 3, padding=1, stride=2), (IMAGE,)),
    "pixel_shuffle": (lambda x: F.pixel_shuffle(x[:, :4], 2), (IMAGE,)),
    "pixel_unshuffle": (lambda x: F.pixel_unshuffle(x[:, :, :4, :6], 2), (IMAGE,)),
    "channel_shuffle": (lambda x: F.channel_shuffle(x, 3), (IMAGE,)),
}


def copy_into(x: Tensor, y: Tensor) -> Tensor:
    z = x.clone()
    z[:, 1] = y[:, 0]
    z[0].copy_(y[1, :1])
    return z


def overlapping(x: Tensor) -> Tensor:
    z = x.clone()
    z[1:].copy_(z[:-1].clone())
    z[0, 0].fill_(2)
    z[0, 1].zero_()
    z[1, 0].fill_(z[2, 2, 2])
    return z


def written_through(x: Tensor) -> Any:
    z = x.clone()
    part = z[:, 1:3].transpose(0, 1)
    before = part.clone()
    flatter = part.reshape(-1)
    part.zero_()
    return z, part.contiguous(), before, flatter


WRITES: dict[str, tuple[Callable[..., Any], tuple[Tensor, ...]]] = {
    "copy_": (copy_into, (X, X + 1)),
    "copy_ of another type": (copy_into, (X, I64)),
    "overlapping": (overlapping, (X,)),
    "written through a view": (written_through, (X,)),
}


def put(x: Tensor, i: Tensor, y: Tensor, mask: Tensor) -> Tensor:
    z = x.clone()
    z[i, :, 0] = y[0, :4, :4]
    z[:, i] = 3.0
    z[mask] = 0
    return z


def put_rows(x: Tensor, i: Tensor, y: Tensor) -> Any:
    z = x.clone()
    z.index_put_((i,), y[:1], accumulate=True)
    w = torch.ops.aten.index_put(x, [None, i], y[:, :4])
    return z, w


def masked_rows(x: Tensor, y: Tensor, none: Tensor, some: Tensor) -> Tensor:
    z = x.clone()
    z[none] = y[0]
    z[:, some] = 1
    return z


INDICES: dict[str, tuple[Callable[..., Any], tuple[Tensor, ...]]] = {
    "index": (lambda x, i: (x[i], x[:, i], x[..., i], x[i, i], x[i, :, i], x[None, i]), (X, AT)),
    "index by matrices": (lambda x, i: (x[i.view(2, 2)], x[:, i.view(2, 2), i[:2]], x[i[:, None], i]), (X, AT)),
    "negative index": (lambda x, i: (x[i], x[:, :, i]), (X, AT - 3)),
    "index i32": (lambda x, i: x[i], (X, AT.int())),
    "index of i64": (lambda x, i: x[i, 1], (I64, AT)),
    "index of bool": (lambda x, i: x[:, i], (X > 0, AT)),
    "index_select": (lambda x, i: (x.index_select(0, i), x.index_select(2, i), x.mT.index_select(1, i)), (X, AT)),
    "gather": (lambda x, i: (x.gather(0, i[:, :, :2]), x.gather(2, i[:, :, :2])), (X, I64 % 3)),
    "gather of a view": (lambda x, i: x.mT.gather(1, i[:, :, :4]), (X, I64 % 6)),
    "take_along_dim": (lambda x, i: (x.take_along_dim(i[:1], 2), x.take_along_dim(i[:, :1], 1)), (X, I64 % 4)),
    "take_along_dim of all": (lambda x, i: x.take_along_dim(i), (X, I64 % 6)),
    "take": (lambda x, i: x.mT.take(i), (X, I64)),
    "scatter": (
        lambda x, i, y: (x.scatter(1, i, y), x.scatter(2, i[:2], 1.5)),
        (X, torch.arange(72).view(3, 6, 4).mT % 4, X + 1),
    ),
    "scatter_add": (lambda x, i, y: x.scatter_add(2, i, y), (X, I64 % 6, X + 1)),
    "scatter with a reduction": (
        lambda x, i, y: [
            x.scatter_reduce(2, i, y, how, include_self=own)
            for how in ("sum", "prod", "mean", "amax", "amin")
            for own in (True, False)
        ],
        (X, I64 % 6, X + 1),
    ),
    "scatter of integers": (
        lambda x, i: [
            x.scatter_reduce(2, i, x, how, include_self=own)
            for how in ("sum", "prod", "mean", "amax", "amin")
            for own in (True, False)
        ],
        (I64, I64 % 6),
    ),
    "scatter_": (lambda x, i: x.clone().scatter_(2, i[:, :, :1], 2.0), (X, I64 % 6)),
    "index_add": (lambda x, i, y: (x.index_add(0, i, y), x.index_add(1, i, y[:3])), (X, AT, torch.randn(4, 4, 6))),
    "index_copy": (lambda x, i, y: x.index_copy(0, i[:3], y[:3]), (X, AT, torch.randn(4, 4, 6))),
    "index_fill": (lambda x, i: (x.index_fill(1, i, 2.5), x.index_fill(2, i, x[0, 0, 0])), (X, AT - 3)),
    "index_put": (put, (X, AT, torch.randn(3, 4, 6), X > 0.5)),
    "index_put of rows": (put_rows, (X, AT, torch.randn(3, 4, 6))),
    "masked rows": (masked_rows, (X, X + 1, X[:, 0, 0] > 100, X[0, :, 0] > 0)),
    "embedding": (lambda w, i: (F.embedding(i, w), F.embedding(i.view(2, 2), w), F.embedding(i[0], w)), (MATRIX, AT)),
    "one_hot": (lambda i: F.one_hot(i, 5), (AT,)),
    "masked_scatter": (
        lambda x, y: (x.masked_scatter(x > 0, y), x.mT.masked_scatter(x.mT[:1] > 0, y), x[0].masked_scatter(x > 1, y)),
        (X, X + 1),
    ),
    "masked_scatter_": (lambda x, y: x.clone().mT.masked_scatter_(x.mT > 0, y), (X, X + 1)),
}

TIES = torch.randint(-3, 3, (4, 50)).float()
WITH_NAN = torch.where(torch.rand(4, 50) < 0.1, torch.nan, torch.randn(4, 50))
SORTED = torch.randn(4, 9).sort(-1).values

ORDERS: dict[str, tuple[Callable[..., Any], tuple[Tensor, ...]]] = {
    "sort": (lambda x: (x.sort(), x.sort(0, descending=True), x.mT.sort(1)), (X,)),
    "sort of ties": (lambda x: (x.sort(stable=True), x.sort(dim=0, descending=True, stable=True)), (TIES,)),
    "sort with nan": (lambda x: (x.sort(stable=True), x.sort(dim=-1, descending=True, stable=True)), (WITH_NAN,)),
    "sort of integers": (lambda x: (x.sort(stable=True), x.msort()), (I64,)),
    "sort of bool": (lambda x: x.sort(stable=True), (X > 0,)),
    "argsort": (lambda x: (x.argsort(), x.argsort(0, True), torch.argsort(x, stable=True)), (X,)),
    "topk": (lambda x: (x.topk(2), x.topk(2, 0, largest=False), x.topk(3, 1)), (X,)),
    "topk of many": (lambda x: x.topk(5), (torch.randn(3, 1000),)),
    "kthvalue": (lambda x: (x.kthvalue(2), x.kthvalue(1, 0, keepdim=True)), (X,)),
    "searchsorted": (
        lambda s, x: (torch.searchsorted(s, x), torch.searchsorted(s, x, right=True), torch.searchsorted(s[0], x)),
        (SORTED, SORTED[:, ::2].contiguous()),
    ),
    "bucketize": (
        lambda s, x: (torch.bucketize(x, s[0]), torch.bucketize(x, s[0], out_int32=True, right=True)),
        (SORTED, torch.randn(3, 5)),
    ),
    "search among other types": (
        lambda s, x, n: (
            torch.bucketize(x, s),
            torch.bucketize(n, s, right=True),
            torch.searchsorted(s.double(), x),
            torch.bucketize(n.int(), s.short()),
            torch.bucketize(n.to(torch.uint8), s.to(torch.int8)),
            torch.searchsorted(s, x[0, 0]),
            torch.searchsorted(s, 2.5),
            torch.searchsorted(s.float() / 2, 2),
            torch.bucketize(1.5, s, right=True),
        ),
        (torch.tensor([-2, 0, 1, 3]), torch.randn(3, 5) * 3, torch.randint(-4, 5, (3, 5))),
    ),
    "search by a sorter": (
        lambda s, x: (torch.searchsorted(s, x, sorter=s.argsort()), torch.searchsorted(s[0], x, sorter=s[0].argsort())),
        (SORTED.flip(-1), SORTED[:, ::2].contiguous()),
    ),
    "cummax": (lambda x: (x.cummax(1), x.cummin(0)), (X,)),
    "cummax of ties": (lambda x: (x.cummax(1), x.cummin(1)), (TIES,)),
    "cummax with nan": (lambda x: (x.cummax(1), x.cummin(1)), (WITH_NAN,)),
    "diff": (lambda x: (x.diff(), x.diff(2, 0), x.diff(9)), (X,)),
    "diff of integers": (lambda x: (x.diff(prepend=x[..., :1], append=x[..., :2]), x.diff(1, 1)), (I64,)),
    "diff of bool": (lambda x: x.diff(), (X > 0,)),
    "shape": (lambda x: torch._shape_as_tensor(x), (X,)),
}

CASES = {**{f"view: {k}": (used(f), a) for k, (f, a) in VIEWS.items()}, **{f"move: {k}": v for k, v in MOVES.items()}}
CASES |= {f"write: {k}": v for k, v in WRITES.items()} | {f"index: {k}": v for k, v in INDICES.items()}
CASES |= {f"order: {k}": v for k, v in ORDERS.items()}


@pytest.mark.parametrize("name", CASES)
def test_an_operator_moves_the_same_bits_as_torch(name: str, tmp_path: Path) -> None:
    fn, args = CASES[name]
    check(tmp_path, fn, *args)


BEYOND = torch.tensor([0, 3])
BAD: dict[str, tuple[Callable[..., Any], tuple[Tensor, ...], Tensor, str]] = {
    "index": (lambda x, i: x[i], (X,), BEYOND, "index 3 is out of bounds for dimension 0 with size 3"),
    "negative index": (lambda x, i: x[i], (X,), BEYOND - 7, "index -7 is out of bounds for dimension 0 with size 3"),
    "index_select": (lambda x, i: x.index_select(0, i), (X,), BEYOND, "index out of range in self"),
    "gather": (lambda x, i: x[0].gather(0, i.view(2, 1)), (X,), BEYOND + 1, "index 4 is out of bounds for dimension 0"),
    "scatter": (lambda x, i: x[0].scatter(0, i.view(2, 1), 1.0), (X,), BEYOND - 1, "index -1 is out of bounds"),
    "take": (lambda x, i: x.take(i), (X,), BEYOND * 24, "tried to access index 72 on a tensor of 72 elements"),
    "embedding": (lambda x, i: F.embedding(i, x[0]), (X,), BEYOND + 1, "index out of range in self"),
    "index_put": (lambda x, i: torch.index_put(x, (i,), x[0, 0, 0]), (X,), BEYOND, "index 3 is out of bounds"),
    "index_add": (lambda x, i: x.index_add(0, i, x[:2]), (X,), BEYOND, "index out of range in self"),
    "one_hot": (lambda x, i: F.one_hot(i, 3), (X,), BEYOND, "Class values must be smaller than num_classes"),
}


@pytest.mark.parametrize("name", BAD)
def test_an_index_that_is_out_of_range_is_an_error(name: str, tmp_path: Path) -> None:
    fn, args, bad, said = BAD[name]
    cleave.capture(Of(fn), (*args, torch.tensor([0, 1]))).save(tmp_path / "m.clv")
    native(tmp_path, *args, torch.tensor([0, 2]))
    text = native(tmp_path, *args, bad, code=1)
    assert said in text


def test_large_tensors_are_moved_by_several_threads(tmp_path: Path) -> None:
    x = torch.randn(4, 96, 100, 90)
    check(tmp_path, lambda x: torch.cat([x.permute(0, 2, 3, 1), x.permute(0, 2, 3, 1)], 1), x, threads=3)
    check(tmp_path, lambda x: x.flatten(1).t().contiguous(), x, threads=2)


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.uint8, torch.int16, torch.float64, torch.bool])
def test_every_type_is_moved(dtype: torch.dtype, tmp_path: Path) -> None:
    x = torch.randint(0, 2, (5, 20, 33)).to(dtype)
    check(tmp_path, lambda x, i: (x.mT.reshape(-1), torch.cat([x, x.flip(0)]), x[i], x.roll(3, 1)), x, AT)


def test_as_strided_of_a_result_is_refused(tmp_path: Path) -> None:
    """It would see the order of memory, which torch chooses by that of the arguments."""
    last = torch.channels_last
    functions: list[tuple[Callable[..., Any], Tensor]] = [
        (lambda x: x.sigmoid().as_strided((3, 2), (1, 3)), torch.randn(2, 3).t()),
        (lambda x: x.contiguous(memory_format=last).as_strided((3, 2), (1, 3)), torch.randn(2, 3, 4, 5)),
        (lambda x: x.to(memory_format=last).relu().as_strided((3, 2), (1, 3)), torch.randn(2, 3, 4, 5)),
    ]
    for fn, x in functions:
        with torch.no_grad():
            cleave.capture(Of(fn), (x,)).save(tmp_path / "m.clv")
        with pytest.raises(cleave.CleaveError, match="may not be row-major"):
            cleave.load(tmp_path / "m.clv", engine="native")

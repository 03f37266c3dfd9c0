"""Models drawn at random whose numbers follow the batch, cut at random places and run at random sizes.

A model is a list of steps on a growing list of tensors. A step takes integers and floats that are computed from sizes
(`(B + 1) // 2 * S`, `1 / B`), some steps run only for some sizes or several times. At every size the split gives what
eager gives, bit for bit, or says why it does not: never a wrong number, and no error that is not Cleave's own.
"""

from __future__ import annotations

import copy
import math
import re
from collections import Counter
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from helpers import _reason, kept_rng, rng_state, same_tensor, same_tree, seed_all, tensors
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st
from torch import Tensor, nn

import cleave

pytestmark = pytest.mark.integration

MOST_ELEMENTS = 4000
MOST_RESULTS = 5
EAGER_RAISES = (RuntimeError, IndexError, TypeError, ValueError, ArithmeticError)

# ---- numbers -----------------------------------------------------------------------------------------------

Source = tuple[str, int]  # ("batch", _), ("length", _), ("len", _), ("size", dim), ("numel", _), ("constant", n)
Integer = tuple[Source, tuple[tuple[str, Source], ...]]  # a source, then operations with other sources

SOURCES: dict[str, Callable[[Scope, Tensor, int], int]] = {
    "batch": lambda scope, a, k: scope.inputs[0].shape[scope.batch_dim],
    "length": lambda scope, a, k: scope.inputs[0].shape[1],
    "len": lambda scope, a, k: len(scope.inputs[-1]),
    "size": lambda scope, a, k: a.shape[k % a.dim()] if a.dim() else 1,
    "numel": lambda scope, a, k: a.numel(),
    "constant": lambda scope, a, k: k,
}

OPERATIONS: dict[str, Callable[[int, int], int]] = {
    "+": lambda n, m: n + m,
    "-": lambda n, m: n - m,
    "*": lambda n, m: n * m,
    "//": lambda n, m: n // max(m, 2),
    "%": lambda n, m: n % max(m, 2),
    "ceil": lambda n, m: -(-n // max(m, 2)),
    "min": min,
    "max": max,
    "even": lambda n, m: n if n % 2 else m,
    "shift": lambda n, m: n >> (m % 3),
}

FLOATS: dict[str, Callable[[int, int], float]] = {
    "itself": lambda n, m: float(n),
    "reciprocal": lambda n, m: 1 / max(n, 1),
    "root": lambda n, m: max(n, 0) ** 0.5,
    "one by root": lambda n, m: max(n, 1) ** -0.5,
    "quotient": lambda n, m: n / max(m, 1),
    "third": lambda n, m: n / 3,
    "tenths": lambda n, m: n * 0.1,
    "logarithm": lambda n, m: math.log(abs(n) + 1),
    "power of two": lambda n, m: 2.0 ** -(n % 8),
    "constant": lambda n, m: 0.25,
    "one or half": lambda n, m: 1.0 if n % 2 else 0.5,
    "less than one": lambda n, m: 1 - 1 / (abs(n) + 1),
    "zero": lambda n, m: -0.0 if n % 2 else 0.0,
    "nan at seven": lambda n, m: math.nan if n == 7 else 1.0,
    "infinite": lambda n, m: math.inf if n > 5 else n,
    "large": lambda n, m: float(n) ** 15,
}


class Scope(NamedTuple):
    """What a forward computes its numbers from."""

    inputs: tuple[Tensor, ...]
    batch_dim: int

    def integer(self, number: Integer, a: Tensor) -> int:
        (name, k), rest = number
        n = SOURCES[name](self, a, k)
        for op, (other, m) in rest:
            n = OPERATIONS[op](n, SOURCES[other](self, a, m))
        return max(-600, min(n, 600))


# ---- steps -------------------------------------------------------------------------------------------------


class Given(NamedTuple):
    """What a step works with: two tensors, two integers, a float, a dimension of `a` and the layers."""

    a: Tensor
    b: Tensor
    n: int
    m: int
    f: float
    d: int
    layers: nn.ModuleDict

    @property
    def size(self) -> int:
        return self.a.shape[self.d]

    @property
    def count(self) -> int:
        """The integer where it must be positive and small."""
        return max(1, min(self.n, 40))

    @property
    def at(self) -> int:
        return self.n % self.size


def _fit(a: Tensor, b: Tensor) -> Tensor:
    """`b` if it broadcasts into `a`, else one number of it."""
    try:
        fits = torch.broadcast_shapes(a.shape, b.shape) == a.shape
    except RuntimeError:
        fits = False
    return b if fits else b.sum()


def _four(a: Tensor) -> Tensor:
    """Rows of four."""
    return a if a.shape[-1] == 4 else a.reshape(-1)[: a.numel() // 4 * 4].view(-1, 4)


def _image(g: Given) -> Tensor:
    return g.a.reshape(1, 1, g.a.shape[0], -1)


def _set(g: Given, where: Any, value: Any) -> None:
    g.a[where] = value


def _rows(g: Given) -> Tensor:
    return torch.stack([row * (i + 1) for i, row in enumerate(g.a)])


def _running(g: Given) -> Tensor:
    total = g.a[0].clone()
    for i in range(1, g.a.shape[0]):
        total += g.a[i] * i
    return total


def _per_chunk(g: Given) -> Tensor:
    return torch.cat([part * part.shape[0] for part in g.a.split(max(1, g.n % 7))])


def _written(g: Given) -> Tensor:
    """A buffer of the batch's size that is filled piece by piece."""
    out = torch.zeros(g.a.shape[0], 4)
    for i in range(min(g.a.shape[0], 3)):
        out[i] = g.a[i].sum() * (i + g.f)
    return out


def _halving(g: Given) -> Tensor:
    out, n = g.a, g.count
    while n > 1:
        out, n = out * 0.5 + n, n // 2
    return out


def _mask(g: Given) -> Tensor:
    return g.a[torch.tensor([i < max(g.n, 1) or i == 0 for i in range(len(g.a))])]


Result = Tensor | Sequence[Tensor] | None

GRAMMAR: dict[str, Callable[[Given], Result]] = {
    # layers
    "linear": lambda g: g.layers["linear"](_four(g.a)),
    "other": lambda g: g.layers["other"](_four(g.a)).relu(),
    "norm": lambda g: g.layers["norm"](_four(g.a)),
    "dropout": lambda g: F.dropout(g.a, 1 / (2 + g.count), True),
    # pointwise, with numbers
    "add": lambda g: g.a + _fit(g.a, g.b),
    "mul": lambda g: g.a * _fit(g.a, g.b),
    "tanh": lambda g: g.a.tanh(),
    "times int": lambda g: g.a * g.n,
    "plus int": lambda g: g.a + g.n,
    "minus from int": lambda g: g.n - g.a,
    "by int": lambda g: g.a / g.count,
    "floor by int": lambda g: g.a // g.count,
    "times float": lambda g: g.a * g.f,
    "by float": lambda g: g.a / (abs(g.f) + 0.5),
    "plus float": lambda g: g.a + g.f,
    "scaled": lambda g: g.a / math.sqrt(g.size) + g.b.sum() / g.b.numel(),
    "alpha": lambda g: torch.add(g.a, _fit(g.a, g.b), alpha=g.n),
    "alpha float": lambda g: torch.sub(g.a, _fit(g.a, g.b), alpha=g.f),
    "lerp": lambda g: torch.lerp(g.a, torch.zeros_like(g.a), g.f),
    "clamp": lambda g: g.a.clamp(-abs(g.f), g.count),
    "masked": lambda g: g.a.masked_fill(g.a > g.f, float(g.n)),
    "where": lambda g: torch.where(g.a > 0, g.a, g.f),
    "leaky": lambda g: F.leaky_relu(g.a, g.f),
    "softmax": lambda g: (g.a * g.f).softmax(g.d),
    # reductions
    "sum": lambda g: g.a.sum(g.d),
    "mean": lambda g: g.a.mean(g.d, keepdim=True),
    "written mean": lambda g: g.a.sum(g.d) / g.size,
    "var": lambda g: g.a.var(g.d, correction=g.n % 2, keepdim=True) if g.size > 1 else None,
    "cumsum": lambda g: g.a.cumsum(g.d),
    "max": lambda g: g.a.max(g.d)[0],
    "topk": lambda g: g.a.topk(min(g.count, g.size), g.d)[0],
    "kthvalue": lambda g: g.a.kthvalue(1 + g.at, g.d)[0],
    "matmul": lambda g: g.a @ g.a.transpose(-1, -2),
    "gram": lambda g: torch.addmm(_four(g.a)[0], _four(g.a), _four(g.a)[:4].t(), beta=g.n, alpha=g.f),
    "norm by rows": lambda g: F.layer_norm(g.a, g.a.shape[1:]) if g.a.dim() > 1 else None,
    # views and shapes
    "view": lambda g: g.a.reshape(g.a.shape[0], -1),
    "rows": lambda g: g.a.reshape(g.a.shape[0] * g.a.shape[1], -1),
    "groups": lambda g: g.a.reshape(-1)[: g.a.numel() // g.count * g.count].view(g.count, -1),
    "last": lambda g: g.a.reshape(-1)[: g.count],
    "flat": lambda g: g.a.flatten(),
    "transpose": lambda g: g.a.transpose(0, g.d),
    "unsqueeze": lambda g: g.a.unsqueeze(g.d) if g.a.dim() < 4 else None,
    "expand": lambda g: g.a.reshape(-1)[:4].expand(g.count, -1),
    "expand ahead": lambda g: g.a.expand(g.count, *g.a.shape) if g.a.dim() < 4 else None,
    "strided": lambda g: g.a.as_strided((g.count,), (0,), g.a.storage_offset()),
    "unfold": lambda g: g.a.unfold(g.d, min(g.count, g.size), 1),
    "diagonal": lambda g: g.a.diagonal(g.n % 2),
    "tril": lambda g: g.a.tril(g.n),
    # parts
    "first rows": lambda g: g.a[: g.count],
    "from": lambda g: g.a[min(g.count, len(g.a) - 1) :],
    "last rows": lambda g: g.a[-g.count :],
    "steps": lambda g: g.a[:: g.count],
    "up to": lambda g: g.a[: g.n] if g.a[: g.n].numel() else None,
    "select": lambda g: g.a.select(g.d, g.at),
    "narrow": lambda g: g.a.narrow(g.d, g.at, min(g.count, g.size - g.at)),
    "index": lambda g: g.a.index_select(g.d, torch.arange(g.count) % g.size),
    "index constants": lambda g: g.a.index_select(g.d, torch.tensor([g.at, 0, g.m % g.size])),
    "advanced": lambda g: g.a[torch.tensor([0, g.n % len(g.a)]), ..., [0, g.m % g.a.shape[-1]]],
    "reversed": lambda g: g.a[torch.arange(g.a.shape[0] - 1, -1, -1)],
    "take": lambda g: g.a.take(torch.arange(g.count) % g.a.numel()),
    "gather": lambda g: g.a.gather(g.d, torch.full_like(g.a, g.at).long()),
    # lists
    "split": lambda g: g.a.split(g.count, g.d)[:4],
    "split in two": lambda g: g.a.split([g.at, g.size - g.at], g.d) if g.at else None,
    "chunk": lambda g: g.a.chunk(g.count, g.d)[:4],
    "tensor_split": lambda g: [t for t in g.a.tensor_split(g.count, g.d)[:4] if t.numel()],
    "unbind": lambda g: g.a.unbind(g.d)[:3],
    "last of unbind": lambda g: g.a.unbind(g.d)[-1],
    "joined again": lambda g: torch.cat(list(reversed(g.a.unbind(0)))) if g.a.dim() > 1 else None,
    "summed parts": lambda g: sum(part.sum() for part in g.a.chunk(3, g.d)) * g.a,
    "per chunk": _per_chunk,
    "row by row": _rows,
    "running": _running,
    "cat": lambda g: torch.cat([g.a, g.a[: g.count]], 0),
    "cat new": lambda g: torch.cat([g.a.flatten(), g.a.new_full((g.count,), g.f)]),
    "stack": lambda g: torch.stack([g.a] * (1 + g.n % 3), g.d) if g.a.dim() < 4 else None,
    "repeat": lambda g: g.a.repeat(1 + g.n % 4, *[1] * (g.a.dim() - 1)),
    "repeat first": lambda g: g.a[:1].repeat(g.count, *[1] * (g.a.dim() - 1)),
    "tile": lambda g: g.a.tile(1 + g.n % 3),
    "interleave": lambda g: g.a.repeat_interleave(1 + g.n % 3, g.d),
    # new tensors
    "arange": lambda g: g.a.flatten()[0] * torch.arange(g.count),
    "arange from": lambda g: torch.arange(g.n, g.n + g.count, 2).float() + g.a.sum(),
    "positions": lambda g: g.a + torch.arange(g.a.shape[-1]),
    "linspace": lambda g: torch.linspace(0, g.f, g.count) + g.a.sum(),
    "full": lambda g: g.a + torch.full((g.a.shape[-1],), g.n),
    "zeros": lambda g: torch.zeros(g.count, 4) + _four(g.a)[0],
    "ones": lambda g: g.a * torch.ones(g.a.shape[0], *[1] * (g.a.dim() - 1)),
    "eye": lambda g: torch.eye(g.a.shape[0]) @ g.a if g.a.dim() == 2 else None,
    "rand": lambda g: torch.rand(g.count, 4) + _four(g.a)[0],
    "rand like": lambda g: g.a + torch.rand_like(g.a) * g.f,
    "randperm": lambda g: g.a[torch.randperm(g.a.shape[0])],
    "randint": lambda g: g.a + torch.randint(0, 1 + g.count, (g.a.shape[-1],)),
    "constants": lambda g: g.a.sum() * torch.tensor([g.n, g.m, 1]),
    "constant": lambda g: g.a * torch.tensor(g.f),
    "nested constants": lambda g: g.a.sum() + torch.tensor([[g.f, 1.0], [float(g.n), g.m * 0.5]]),
    "list of sizes": lambda g: g.a.sum() + torch.tensor(list(range(g.count))),
    "one_hot": lambda g: F.one_hot(torch.arange(g.count) % 3, 3) * g.a.sum(),
    "read back": lambda g: g.a * torch.tensor([g.n, g.m]).max().item(),
    "written": _written,
    # whole operators
    "pad": lambda g: F.pad(g.a, (g.n % 3, 0)),
    "pad rows": lambda g: F.pad(g.a, (0, 0, 0, g.count), value=g.f) if g.a.dim() > 1 else None,
    "pad to": lambda g: F.pad(g.a, (0, -g.a.shape[-1] % 4)),
    "roll": lambda g: g.a.roll(g.n, g.d),
    "flip": lambda g: g.a.flip(g.d),
    "interpolate": lambda g: F.interpolate(_image(g), size=(g.count, 3), mode="nearest")[0, 0],
    "interpolate smoothly": lambda g: F.interpolate(_image(g), size=(3, g.count), mode="bilinear")[0, 0],
    "interpolate by": lambda g: F.interpolate(_image(g), scale_factor=1 + g.f % 2)[0, 0],
    "pool": lambda g: F.adaptive_avg_pool1d(g.a.reshape(1, 1, -1), g.count)[0, 0],
    "max pool": lambda g: F.max_pool1d(g.a.reshape(1, 1, -1), 1 + g.n % 3)[0, 0],
    "embedding": lambda g: F.embedding(torch.arange(g.count) % len(_four(g.a)), _four(g.a)),
    "scatter": lambda g: torch.zeros(g.count, 4).index_add(0, torch.arange(len(_four(g.a))) % g.count, _four(g.a)),
    "attention": lambda g: F.scaled_dot_product_attention(*[_four(g.a).reshape(1, -1, 4)] * 3, scale=g.f + 0.1)[0],
    "outer": lambda g: torch.outer(g.a.flatten()[:20], g.b.flatten()[: g.count]),
    # numbers of other kinds
    "bool": lambda g: g.a * (g.n > 3),
    "power": lambda g: g.a * 1e-9 * g.count**9,
    "complex": lambda g: (g.a * complex(g.f, g.n)).real,
    "keepdim": lambda g: g.a.sum(g.d, keepdim=g.n > 3),
    "no dimension": lambda g: g.a.sum(None if g.n % 2 else g.d),
    "dimension": lambda g: g.a.sum(g.n % g.a.dim()),
    "permute": lambda g: g.a.permute([(i + g.n) % g.a.dim() for i in range(g.a.dim())]),
    "mode": lambda g: F.interpolate(_image(g), size=(4, 4), mode="bilinear" if g.n % 2 else "nearest")[0, 0],
    "corners": lambda g: F.interpolate(_image(g), size=(4, 3), mode="bilinear", align_corners=g.n % 3 == 0)[0, 0],
    "type": lambda g: g.a.to(torch.float64 if g.n % 2 else torch.float32).mul(1 / 3).float(),
    "rounding": lambda g: torch.div(g.a, g.count, rounding_mode=(None, "floor", "trunc")[g.n % 3]),
    "half": lambda g: (g.a.bfloat16() * g.f + g.n).float(),
    "double": lambda g: (g.a.double() / g.count).float(),
    "ints": lambda g: (torch.arange(g.count) * g.m % 5).float() + g.a.sum(),
    "full of ints": lambda g: torch.full((g.count,), g.m) * g.a.sum(),
    "open slice": lambda g: g.a[: g.n if 0 < g.n < 5 else None],
    "mask": _mask,
    "numpy": lambda g: torch.from_numpy(np.arange(g.count, dtype=np.float32)) + g.a.sum(),
    "as tensor": lambda g: torch.as_tensor([float(g.n)] * 3) * g.a.sum(),
    "empty": lambda g: torch.empty(g.count).fill_(g.f) + g.a.sum(),
    "read size": lambda g: g.a.flatten()[: int(torch.tensor(g.count))],
    "read sum": lambda g: g.a * torch.arange(g.count).sum().item(),
    "read all": lambda g: g.a.relu() if bool((torch.arange(g.count) < 5).all()) else g.a.tanh(),
    "read data": lambda g: g.a.flatten()[: 1 + int((g.a > -9).sum()) // 2],
    "vmap": lambda g: torch.vmap(lambda row: row * g.n + row.sum())(g.a),
    "halving": _halving,
    "nothing": lambda g: g.a[:0],
    # in place
    "mul_": lambda g: g.a.mul_(g.n),
    "add_": lambda g: g.a.add_(g.f),
    "div_": lambda g: g.a.div_(g.count),
    "fill_": lambda g: g.a[: g.count].fill_(g.f),
    "set row": lambda g: _set(g, g.n % len(g.a), 0.5),
    "set rows": lambda g: _set(g, slice(0, g.n), float(g.m)),
    "set last": lambda g: _set(g, (..., -1), _fit(g.a[..., -1], g.b)),
    "set listed": lambda g: _set(g, torch.tensor([0, g.n % len(g.a)]), g.f),
    "clamp_": lambda g: g.a.clamp_(max=g.n),
    "relu_": lambda g: g.a.relu_(),
    "copy_": lambda g: g.a.copy_(_fit(g.a, g.b)),
    "index_fill_": lambda g: g.a.index_fill_(g.d, torch.tensor([g.at]), g.f),
    "uniform_": lambda g: g.a.clone().uniform_(0, 1 + abs(g.f)),
    "fresh copy": lambda g: g.a.clone(),
}


class Only(NamedTuple):
    """A step that is another one, or none, for some sizes: `if n % 2`, `if n > 3`, `if n == 5`."""

    test: str
    number: Integer
    than: int
    otherwise: str | None


TESTS: dict[str, Callable[[int, int], bool]] = {
    "odd": lambda n, k: n % 2 == 1,
    "more": lambda n, k: n > k,
    "less": lambda n, k: n < k,
    "is": lambda n, k: n == k,
    "multiple": lambda n, k: n % (k + 1) == 0,
}


class Step(NamedTuple):
    op: str
    a: int
    b: int
    n: Integer
    m: Integer
    f: str
    dim: int
    only: Only | None
    times: Integer | None  # for _ in range(min(times, 3))


Shapes = tuple[tuple[int, ...], ...]


class Random(nn.Module):
    """The model that a list of steps describes. `fixed`: shapes of what is added to the inputs first, so that only
    their batch can change."""

    def __init__(self, program: Sequence[Step], finish: str, batch_dim: int, strict: bool, fixed: Shapes) -> None:
        super().__init__()
        self.program, self.finish, self.batch_dim, self.strict = tuple(program), finish, batch_dim, strict
        self.biases = nn.ParameterList(torch.randn(shape) for shape in fixed)
        self.layers = nn.ModuleDict({"linear": nn.Linear(4, 4), "other": nn.Linear(4, 8), "norm": nn.LayerNorm(4)})

    def forward(self, *inputs: Tensor) -> Any:
        scope, values = Scope(inputs, self.batch_dim), list(inputs)
        values += [x + bias for x, bias in zip(inputs, self.biases, strict=False)]
        for step in self.program:
            for op in self._ops(scope, step, values):
                self._run(scope, step, op, values)
        last = self.program[-1]
        return FINISHES[self.finish](scope, values, last)

    def _ops(self, scope: Scope, step: Step, values: list[Tensor]) -> list[str]:
        a = values[step.a % len(values)]
        ops = [step.op]
        only = step.only
        if only is not None and not TESTS[only.test](scope.integer(only.number, a), only.than):
            ops = [only.otherwise] if only.otherwise else []
        return ops if step.times is None else ops * max(0, min(scope.integer(step.times, a), 3))

    def _run(self, scope: Scope, step: Step, op: str, values: list[Tensor]) -> None:
        a, b = values[step.a % len(values)], values[step.b % len(values)]
        n, m = scope.integer(step.n, a), scope.integer(step.m, a)
        f = FLOATS[step.f](n, m)
        try:
            made = GRAMMAR[op](Given(a, b, n, m, f, step.dim % max(a.dim(), 1), self.layers))
        except EAGER_RAISES:
            if self.strict:
                raise
            return
        made = [made] if isinstance(made, Tensor) else made or []
        values.extend(t for t in made if t.numel() <= MOST_ELEMENTS and t.is_floating_point())


def _numbers(scope: Scope, values: list[Tensor], last: Step) -> dict[str, Any]:
    a = values[-1]
    n, m = scope.integer(last.n, a), scope.integer(last.m, a)
    return {"out": a, "n": n, "pair": (n, [m, None, "text"]), "f": FLOATS[last.f](n, m), "even": n % 2 == 0}


FINISHES: dict[str, Callable[[Scope, list[Tensor], Step], Any]] = {
    "one": lambda scope, values, last: values[-1],
    "some": lambda scope, values, last: tuple(values[-MOST_RESULTS:]),
    "sum": lambda scope, values, last: sum((v.mean() for v in values[1:]), values[0].sum()),
    "numbers": _numbers,
    "shape": lambda scope, values, last: [values[-1], values[-1].shape, len(values[0])],
    "rows": lambda scope, values, last: {"rows": list(values[-1].unbind(0)) if values[-1].dim() else values[-1]},
}

# ---- cases -------------------------------------------------------------------------------------------------


class Layout(NamedTuple):
    """The inputs at a batch size and a length, and which of their dimensions are named."""

    make: Callable[[int, int], tuple[Tensor, ...]]
    batch_dim: int = 0
    dims: Any = None
    length: bool = False
    fixed: Shapes = ()


LAYOUTS: dict[str, Layout] = {
    "rows": Layout(lambda b, s: (torch.randn(b, 4),), fixed=((4,),)),
    "cube": Layout(lambda b, s: (torch.randn(b, 3, 4),), fixed=((3, 4),)),
    "two inputs": Layout(lambda b, s: (torch.randn(b, 4), torch.randn(b, 4)), fixed=((4,), (4,))),
    "with a table": Layout(lambda b, s: (torch.randn(b, 4), torch.randn(30, 4)), fixed=((4,), (30, 4))),
    "same twice": Layout(lambda b, s: (torch.randn(b, 4),) * 2, fixed=((4,), (4,))),
    "in doubles": Layout(lambda b, s: (torch.randn(b, 4).double(),), fixed=((4,),)),
    "transposed": Layout(lambda b, s: (torch.randn(4, b).t(),), fixed=((4,),)),
    "with ids": Layout(lambda b, s: (torch.randn(b, 4), torch.randint(0, 3, (b,))), fixed=((4,),)),
    "batch second": Layout(lambda b, s: (torch.randn(3, b, 4),), 1, {"inputs[0]": {1: "B"}}),
    "batch second, to be found": Layout(lambda b, s: (torch.randn(3, b, 4),), 1, fixed=((3, 1, 4),)),
    "with a length": Layout(lambda b, s: (torch.randn(b, s, 4),), 0, {"inputs[0]": {1: ("S", 1, 16)}}, True),
    "with a length twice": Layout(
        lambda b, s: (torch.randn(b, s), torch.randn(b, 2, s)),
        0,
        {"inputs[0]": {1: ("S", 1, 16)}, "inputs[1]": {2: "S"}},
        True,
    ),
}


class Case(NamedTuple):
    layout: str
    program: list[Step]
    finish: str
    boundary: str
    batches: tuple[int, int]
    example: tuple[int, int]  # batch and length
    points: list[tuple[int, int]]
    strict: bool  # what eager raises, the model raises; otherwise such a step is left out
    train: bool
    wire: str  # "", "bytes", or "elsewhere": the suffix runs in a runtime of its own
    validation: str

    def model(self) -> nn.Module:
        with kept_rng():
            torch.manual_seed(0)
            layout = LAYOUTS[self.layout]
            return Random(self.program, self.finish, layout.batch_dim, self.strict, layout.fixed).eval()

    def inputs(self, point: tuple[int, int], seed: int) -> tuple[Tensor, ...]:
        with kept_rng():
            torch.manual_seed(seed)
            return LAYOUTS[self.layout].make(*point)


def _source(lengths: bool) -> st.SearchStrategy[Source]:
    names = ["batch"] * 4 + ["len", "size", "numel", "constant"] + ["length"] * (3 if lengths else 0)
    return st.tuples(st.sampled_from(names), st.integers(0, 7))


def _integer(lengths: bool) -> st.SearchStrategy[Integer]:
    part = st.tuples(st.sampled_from(sorted(OPERATIONS)), st.one_of(_source(lengths), _constant))
    return st.tuples(_source(lengths), st.lists(part, max_size=3).map(tuple))


_constant = st.tuples(st.just("constant"), st.integers(0, 7))


def _step(lengths: bool) -> st.SearchStrategy[Step]:
    ops, integer = st.sampled_from(sorted(GRAMMAR)), _integer(lengths)
    only = st.builds(Only, st.sampled_from(sorted(TESTS)), integer, st.integers(1, 6), st.one_of(st.none(), ops))
    rarely = st.integers(0, 9)
    return st.builds(
        Step,
        ops,
        st.integers(0, 9),
        st.integers(0, 9),
        integer,
        integer,
        st.sampled_from(sorted(FLOATS)),
        st.integers(0, 3),
        rarely.flatmap(lambda r: only if r >= 8 else st.none()),
        rarely.flatmap(lambda r: integer if r == 9 else st.none()),
    )


_STEPS = {lengths: st.lists(_step(lengths), min_size=3, max_size=7) for lengths in (False, True)}
_percent = st.integers(1, 99).map(lambda p: f"{p}%")


@st.composite
def cases(draw: Any) -> Case:
    layout = draw(st.sampled_from(sorted(LAYOUTS)))
    lengths = LAYOUTS[layout].length
    low, high = draw(st.sampled_from([(1, 24), (1, 24), (1, 24), (2, 9), (1, 6), (3, 40)]))
    batch, length = st.integers(low, high), st.integers(1, 16) if lengths else st.just(1)
    points = draw(st.lists(st.tuples(batch, length), min_size=4, max_size=6))
    points.insert(draw(st.integers(0, 3)), (low, draw(length)))
    points.insert(draw(st.integers(0, 3)), (high, draw(length)))
    return Case(
        layout,
        draw(_STEPS[lengths]),
        draw(st.sampled_from(sorted(FINISHES))),
        draw(st.one_of(st.sampled_from(["auto", "auto", "exact"]), _percent, _percent)),
        (low, high),
        (draw(batch), draw(length)),
        points,
        draw(st.booleans()),
        draw(st.sampled_from([False, False, False, True])),
        draw(st.sampled_from(["", "", "bytes", "elsewhere"])),
        draw(st.sampled_from(["fast", "strict"])),
    )


# ---- one case ----------------------------------------------------------------------------------------------


def _prepare(case: Case, model: nn.Module) -> cleave.SplitRuntime:
    exact = case.boundary == "exact"
    spec = cleave.SplitSpec(
        boundary="auto" if exact else case.boundary,
        exact=exact,
        dynamic_batch=case.batches,
        dynamic_dims=LAYOUTS[case.layout].dims,
    )
    example = case.inputs(case.example, 0)
    return cleave.prepare_split(model, example_inputs=example, split=spec, validation=case.validation)


class Split(NamedTuple):
    """The runtimes of both halves, often the same one."""

    head: cleave.SplitRuntime
    tail: cleave.SplitRuntime

    def run(self, case: Case, inputs: tuple[Tensor, ...]) -> tuple[Any, Any]:
        """What the suffix gives, and what it gives for the same boundary from the same random numbers once more."""
        boundary = self.head.run_prefix(*inputs)
        if case.wire:
            boundary = cleave.BoundaryPayload.from_bytes(boundary.to_bytes())
        with kept_rng():
            again = self.tail.run_suffix(boundary)
        return self.tail.run_suffix(boundary), again


class Eager(NamedTuple):
    """What a call of the whole model does."""

    out: Any
    inputs: tuple[Tensor, ...]
    rng: tuple[int, ...]


def _eager(case: Case, model: nn.Module, point: tuple[int, int], seed: int) -> Eager | None:
    """None where the model raises."""
    inputs = case.inputs(point, seed)
    seed_all(seed)
    try:
        with torch.no_grad():
            return Eager(model(*inputs), inputs, rng_state())
    except EAGER_RAISES:
        return None


def _compare(case: Case, split: Split, model: nn.Module, point: tuple[int, int], seed: int) -> str | None:
    """One point against eager; the reason when it was refused."""
    want = _eager(case, model, point, seed)
    inputs = case.inputs(point, seed)
    seed_all(seed)
    try:
        got, again = split.run(case, inputs)
    except cleave.CleaveError as error:
        return _reason(error) if want is not None else None
    except Exception:
        if want is None:
            return None
        raise
    where = f"at {point}"
    assert want is not None, f"{where}: eager raises, the split does not"
    same_tree(want.out, again, where)
    same_tree(want.out, got, f"{where}, the suffix once more")
    same_tree(want.inputs, inputs, f"{where}: inputs after the call")
    assert want.rng == rng_state(), f"{where}: a random generator is elsewhere than after eager"
    return None


def _loss(output: Any, seed: int) -> Tensor:
    """One number that depends on every floating-point tensor of the output, each with weights of its own."""
    generator = torch.Generator().manual_seed(seed)
    total = torch.zeros(())
    for _, t in tensors(output, "output"):
        if t.is_floating_point():
            total = total + (t * torch.randn(t.shape, generator=generator)).sum()
    return total


def _eager_gradients(case: Case, twin: nn.Module, point: tuple[int, int], seed: int) -> Tensor | None:
    """The loss; None where the whole model does not train."""
    inputs = case.inputs(point, seed)
    seed_all(seed)
    try:
        loss = _loss(twin(*inputs), seed)
        loss.backward()
    except EAGER_RAISES:
        return None
    return loss.detach()


def _compare_training(
    case: Case, rt: cleave.SplitRuntime, model: nn.Module, point: tuple[int, int], seed: int
) -> str | None:
    twin = copy.deepcopy(model)
    for p in (*model.parameters(), *twin.parameters()):
        p.grad = None
    want = _eager_gradients(case, twin, point, seed)
    if want is None:
        return None
    inputs = case.inputs(point, seed)
    seed_all(seed)
    try:
        boundary = rt.run_training_prefix(*inputs)
        got, gradients = rt.train_suffix(boundary, None, loss_fn=lambda output, _: _loss(output, seed))
        rt.backward_prefix(boundary, gradients)
    except cleave.CleaveError as error:
        return _reason(error)
    where = f"training at {point}"
    same_tensor(want, got, f"{where}: loss")
    for (name, p), q in zip(twin.named_parameters(), model.parameters(), strict=True):
        assert (p.grad is None) == (q.grad is None), f"{where}: gradient of {name} is {q.grad}, eager has {p.grad}"
        if p.grad is not None and q.grad is not None:
            same_tensor(p.grad, q.grad, f"{where}: gradient of {name}")
    return None


def check_case(case: Case) -> str:
    """ "equal", "refused: <reason>" or "no model" where eager itself does not run; AssertionError on a difference."""
    model = case.model()
    if _eager(case, model, case.example, 0) is None:
        return "no model"
    try:
        rt = _prepare(case, model)
        split = Split(rt, _prepare(case, copy.deepcopy(model)) if case.wire == "elsewhere" else rt)
    except cleave.CleaveError as error:
        return f"refused: {_reason(error)}"
    refused: list[str] = []
    for seed, point in enumerate([*case.points, *case.points[:3]], 1):
        refused += filter(None, [_compare(case, split, model, point, seed)])
    for seed, point in enumerate(case.points[:4] if case.train else [], 1):
        refused += filter(None, [_compare_training(case, rt, model, point, seed)])
    return f"refused: {refused[0]}" if refused else "equal"


# ---- many cases --------------------------------------------------------------------------------------------


def _class(outcome: str) -> str:
    """A refusal without its numbers, names and places."""
    return re.sub(r"(aten::)?[\w./%]*[\d%][\w./%]*|'[^']*'|\"[^\"]*\"", "…", outcome)[:90]


def _many(n: int, derandomize: bool = True) -> Counter[str]:
    outcomes: Counter[str] = Counter()

    @settings(
        max_examples=n,
        deadline=None,
        derandomize=derandomize,
        database=None,
        phases=[Phase.generate, Phase.shrink],
        suppress_health_check=list(HealthCheck),
        print_blob=False,
    )
    @given(cases())
    def body(case: Case) -> None:
        outcomes[_class(check_case(case))] += 1

    body()
    return outcomes


def _mostly_equal(outcomes: Counter[str]) -> None:
    total = sum(n for name, n in outcomes.items() if name != "no model")
    print(f"{total} cases, {outcomes['equal']} equal")
    for name, n in outcomes.most_common():
        print(f"{n:6} {name}")
    assert outcomes["equal"] > 0.8 * total, outcomes


def test_random_models_follow_the_sizes_bit_for_bit_or_say_why_not() -> None:
    _mostly_equal(_many(300))


@pytest.mark.slow
def test_thousands_of_random_models_follow_the_sizes() -> None:
    _mostly_equal(_many(5000))

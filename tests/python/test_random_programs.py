"""Programs drawn at random from a grammar of views, in-place writes, reductions, joins, indexing and draws.

A program is a list of steps on a growing list of tensors. What a step does depends on the shapes only, never
on the data, so every program should replay; a step that torch itself rejects is skipped, as a `try` would do.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import pytest
import torch
from helpers import backward, check, draw, tensors
from hypothesis import HealthCheck, Phase, example, given, settings
from hypothesis import strategies as st
from torch import Tensor

pytestmark = pytest.mark.integration

Step = tuple[str, int, int, int]
Result = Tensor | Sequence[Tensor] | None


def _dim(a: Tensor, k: int) -> int:
    return k % a.dim()


def _like(a: Tensor, b: Tensor) -> Tensor:
    """`b` if it broadcasts into `a`, else one number of it."""
    try:
        fits = torch.broadcast_shapes(a.shape, b.shape) == a.shape
    except RuntimeError:
        fits = False
    return b if fits else b.sum()


def _index(a: Tensor, k: int) -> Tensor:
    n = a.shape[_dim(a, k)]
    return torch.tensor([k % n, 0, (k + 1) % n])


def _set(a: Tensor, b: Tensor, k: int) -> None:
    a[k % a.shape[0]] = _like(a[0], b)


def _write(a: Tensor, fn: Callable[[Tensor], Any]) -> None:
    fn(a)


def _no_grad(a: Tensor) -> Tensor:
    with torch.no_grad():
        return a * 2 + a.mean()


GRAMMAR: dict[str, Callable[[Tensor, Tensor, int], Result]] = {
    # pointwise
    "add": lambda a, b, k: a + _like(a, b),
    "mul": lambda a, b, k: a * _like(a, b),
    "sub": lambda a, b, k: _like(a, b) - a,
    "scalar": lambda a, b, k: a * (k / 4) + k,
    "sin": lambda a, b, k: a.sin(),
    "tanh": lambda a, b, k: torch.tanh(a),
    "relu": lambda a, b, k: a.relu(),
    "abs": lambda a, b, k: a.abs().sqrt(),
    "clamp": lambda a, b, k: a.clamp(-1, 1 + k),
    "where": lambda a, b, k: torch.where(a > 0, a, _like(a, b)),
    "cast": lambda a, b, k: a.double().mul(1 / 3).float(),
    "compare": lambda a, b, k: (a >= _like(a, b)).to(a.dtype),
    "detach": lambda a, b, k: a.detach() * a,
    "data": lambda a, b, k: a.data + k,
    "clone": lambda a, b, k: a.clone(),
    "no_grad": lambda a, b, k: _no_grad(a),
    # reductions
    "sum": lambda a, b, k: a.sum(_dim(a, k)),
    "mean": lambda a, b, k: a.mean(_dim(a, k), keepdim=True),
    "max": lambda a, b, k: a.max(_dim(a, k))[0],
    "argmax": lambda a, b, k: a.argmax(_dim(a, k)).float(),
    "cumsum": lambda a, b, k: a.cumsum(_dim(a, k)),
    "softmax": lambda a, b, k: a.softmax(_dim(a, k)),
    "norm": lambda a, b, k: torch.linalg.vector_norm(a, dim=_dim(a, k)),
    "matmul": lambda a, b, k: a @ a.transpose(-1, -2),
    # views
    "transpose": lambda a, b, k: a.transpose(0, _dim(a, k)),
    "flatten": lambda a, b, k: a.reshape(-1),
    "view": lambda a, b, k: a.view(a.shape[0], -1),
    "unsqueeze": lambda a, b, k: a.unsqueeze(k % (a.dim() + 1)) if a.dim() < 4 else None,
    "squeeze": lambda a, b, k: a.squeeze(),
    "select": lambda a, b, k: a.select(_dim(a, k), k % a.shape[_dim(a, k)]),
    "slice": lambda a, b, k: a[k % 2 :],
    "step": lambda a, b, k: a[..., ::2],
    "expand": lambda a, b, k: a.expand(2, *a.shape) if a.numel() < 64 and a.dim() < 4 else None,
    "permute": lambda a, b, k: a.permute(list(reversed(range(a.dim())))),
    "diagonal": lambda a, b, k: a.diagonal(),
    # lists
    "chunk": lambda a, b, k: a.chunk(2, _dim(a, k)),
    "split": lambda a, b, k: a.split(1 + k % 3, _dim(a, k)),
    "unbind": lambda a, b, k: a.unbind(_dim(a, k)),
    "cat": lambda a, b, k: torch.cat([a, a * 2, b] if a.shape == b.shape else [a, a]) if a.numel() < 99 else None,
    "stack": lambda a, b, k: torch.stack([a, a + _like(a, b)], _dim(a, k)) if a.dim() < 4 else None,
    # indexing
    "index": lambda a, b, k: a.index_select(_dim(a, k), _index(a, k)),
    "advanced": lambda a, b, k: a[torch.tensor([0, a.shape[0] - 1])],
    "gather": lambda a, b, k: a.gather(0, a.argsort(0)),
    "masked": lambda a, b, k: a.masked_fill(a > k, -1.0),
    "flip": lambda a, b, k: a.flip(_dim(a, k)),
    "roll": lambda a, b, k: a.roll(k, _dim(a, k)),
    "topk": lambda a, b, k: a.topk(1, _dim(a, k))[0],
    "constant": lambda a, b, k: a + torch.tensor([float(k), 0.5]).sum() + torch.arange(a.shape[-1]),
    # in-place
    "add_": lambda a, b, k: _write(a, lambda t: t.add_(_like(t, b).detach(), alpha=k)),
    "mul_": lambda a, b, k: _write(a, lambda t: t.mul_(1 + k)),
    "zero_": lambda a, b, k: _write(a, lambda t: t[0].zero_()),
    "fill_": lambda a, b, k: _write(a, lambda t: t[..., 0].fill_(k)),
    "copy_": lambda a, b, k: _write(a, lambda t: t.copy_(_like(t, b))),
    "relu_": lambda a, b, k: _write(a, lambda t: t.relu_()),
    "clamp_": lambda a, b, k: _write(a, lambda t: t.clamp_(max=k)),
    "setitem": _set,
    "index_fill_": lambda a, b, k: _write(a, lambda t: t.index_fill_(0, torch.tensor([0]), 0.25)),
    "unsqueeze_": lambda a, b, k: _write(a * 1, lambda t: t.unsqueeze_(0)),
    "data_": lambda a, b, k: _write(a, lambda t: t.data.mul_(2)),
    # random
    "rand": lambda a, b, k: a + torch.rand_like(a),
    "dropout": lambda a, b, k: torch.nn.functional.dropout(a, 0.3, True),
    "randperm": lambda a, b, k: a[torch.randperm(a.shape[0])],
    "bernoulli": lambda a, b, k: torch.bernoulli(a.sigmoid().nan_to_num(0.5)),
    "normal_": lambda a, b, k: torch.empty_like(a).normal_(),
}


def run(program: Sequence[Step], *inputs: Tensor) -> tuple[Tensor, ...]:
    values = list(inputs)
    for op, i, j, k in program:
        a, b = values[i % len(values)], values[j % len(values)]
        try:
            made = GRAMMAR[op](a, b, k)
        except (RuntimeError, IndexError, ZeroDivisionError):
            continue
        if made is not None:
            values.extend([made] if isinstance(made, Tensor) else made)
    return tuple(values[-5:])


steps = st.tuples(st.sampled_from(sorted(GRAMMAR)), st.integers(0, 12), st.integers(0, 12), st.integers(0, 4))
programs = st.lists(steps, min_size=1, max_size=14)
shapes = st.sampled_from(
    [((3, 4), (3, 4)), ((2, 3, 4), (4,)), ((4, 4), (1, 4)), ((6,), (6,)), ((1, 5), (5, 1)), ((2, 2), ())]
)

SETTINGS = settings(
    max_examples=200,
    deadline=None,
    derandomize=True,
    database=None,
    phases=[Phase.explicit, Phase.generate, Phase.shrink],
    suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large],
)


def _eager_works(fn: Callable[..., Any], make: Callable[[], Any]) -> bool:
    """In-place writes can make backward impossible; such programs say nothing about a plan."""
    inputs = draw(make, 0, True)
    try:
        backward(tensors(fn(*inputs.args), "output"), 0)
    except RuntimeError:
        return False
    return True


def _replays(grad: bool) -> list[str]:
    outcomes: list[str] = []

    @SETTINGS
    @given(programs, shapes)
    @example([("unbind", 0, 0, 0), ("add_", 3, 1, 1), ("cat", 0, 0, 0)], ((3, 4), (3, 4)))
    @example([("data_", 0, 0, 0), ("transpose", 0, 0, 1), ("setitem", 2, 1, 1)], ((3, 4), (3, 4)))
    @example([("abs", 0, 0, 0), ("data_", 0, 0, 0)], ((3, 4), (3, 4)))
    def body(program: list[Step], sizes: tuple[tuple[int, ...], ...]) -> None:
        def fn(*inputs: Tensor) -> tuple[Tensor, ...]:
            return run(program, *inputs)

        def make() -> tuple[Tensor, ...]:
            return tuple(torch.randn(s) for s in sizes)

        if grad and not _eager_works(fn, make):
            return
        outcomes.append(check(fn, make, grad=grad, input_grad=grad, seeds=(1,)))

    body()
    return outcomes


def _mostly_replayed(outcomes: list[str]) -> None:
    refused = [o for o in outcomes if o != "replayed"]
    assert len(refused) * 10 <= len(outcomes), f"{len(refused)} of {len(outcomes)} refused: {refused[:3]}"


def test_random_programs_without_grad_replay_bit_for_bit() -> None:
    _mostly_replayed(_replays(grad=False))


def test_random_programs_with_grad_replay_bit_for_bit() -> None:
    _mostly_replayed(_replays(grad=True))

"""Random networks, traced with a back end that takes some operators and copies whatever it gives, against eager:
outputs, inputs, the model's tensors and random numbers are the same bit for bit, whatever is written and viewed."""

from __future__ import annotations

import copy
import warnings
from collections.abc import Callable
from typing import Any

import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from torch import Tensor, nn
from trace_backends import Exact, short

pytestmark = pytest.mark.integration

N = 4  # everything is N x N: whatever is made of a tensor can be put in its place


def halves(a: Tensor, b: Tensor, m: Any) -> Tensor:
    top, bottom = a.chunk(2)
    return torch.cat([bottom, top * 2])


def write_part(a: Tensor, b: Tensor, m: Any) -> Tensor:
    a[1:].copy_(b[1:].clone())
    return a


def sort(a: Tensor, b: Tensor, m: Any) -> Tensor:
    values, places = torch.sort(a, dim=0, stable=True)
    return values + places


# Only what gives the same bits for every layout: no sums, nothing transcendental.
OPERATIONS: dict[str, Callable[[Tensor, Tensor, Any], Tensor]] = {
    "add": lambda a, b, m: a + b,
    "mul": lambda a, b, m: a * b,
    "relu": lambda a, b, m: torch.relu(a),
    "maximum": lambda a, b, m: torch.maximum(a, b),
    "where": lambda a, b, m: torch.where(a > b, a, b * 2),
    "weight": lambda a, b, m: a * m.weight,
    "read state": lambda a, b, m: a + m.state,
    "write state": lambda a, b, m: m.state.add_(1) * a,
    "constant": lambda a, b, m: a + torch.eye(N),
    "turn": lambda a, b, m: a.t(),
    "view": lambda a, b, m: a.reshape(-1).view(N, N),
    "row": lambda a, b, m: a[:1].expand(N, N),
    "turn and write": lambda a, b, m: a.t().mul_(2),
    "relu_": lambda a, b, m: a.relu_(),
    "add_": lambda a, b, m: a.add_(b.clone()),
    "fill diagonal": lambda a, b, m: a.diagonal().fill_(3).expand(N, N) + 0,
    "write part": write_part,
    "halves": halves,
    "sort": sort,
    "whole": lambda a, b, m: a.long().float() % 5,
    "double": lambda a, b, m: (a.double() * 2).float(),
    "draw": lambda a, b, m: a * torch.rand(N, N).round(),
    "clone": lambda a, b, m: a.clone(),
    "split": lambda a, b, m: torch.stack(torch.unbind(a, 1), 0),
}
VIEWS = ("turn", "row")
NAMES = sorted(OPERATIONS)
TAKEN = ["add", "mul", "relu", "maximum", "where", "gt", "t", "view", "relu_", "add_", "mul_", "cat", "chunk", "clone"]


class Network(nn.Module):
    def __init__(self, steps: list[tuple[str, int, int]], outputs: list[int]) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.arange(N * N).reshape(N, N) / 8 - 1)
        self.register_buffer("state", torch.ones(N, N))
        self.steps, self.outputs = steps, outputs

    def forward(self, x: Tensor, y: Tensor) -> tuple[Tensor, ...]:
        values, expanded = [x, y], [False, False]
        for name, a, b in self.steps:
            left, right = (values[i % len(values)] for i in (a, b))
            if expanded[a % len(values)] and name not in VIEWS:  # it cannot be written in place, in eager either
                left = left.clone()
            expanded.append(name == "row" or (name in VIEWS and expanded[a % len(values)]))
            values.append(OPERATIONS[name](left, right, self))
        return tuple(values[i % len(values)] for i in self.outputs)


steps = st.lists(st.tuples(st.sampled_from(NAMES), st.integers(0, 50), st.integers(0, 50)), min_size=1, max_size=14)
outputs = st.lists(st.integers(0, 50), min_size=1, max_size=4)
levels = st.sampled_from(["none", "safe", "fast"])
taken = st.one_of(st.none(), st.sets(st.sampled_from(TAKEN)))


def inputs(scale: float) -> list[Tensor]:
    x = torch.arange(N * N).reshape(N, N) * scale - 1
    return [x, x.flip(0) * 2]


def check(network: Network, ops: set[str] | None, least: int, most: int | None, odd: bool, level: str) -> None:
    def copied(_: list[str], out: list[Tensor]) -> list[Tensor]:
        return [t.t().clone().t() if odd and t.dim() == 2 else t.clone() for t in out]

    exact = Exact(supports=lambda node: ops is None or short(node.op) in ops, running=copied)
    twin = copy.deepcopy(network)
    how: dict[str, Any] = {"minimum_segment_size": least, "max_segments": most, "optimize": level}
    traced = exact.trace(network, tuple(inputs(0.25)), **how)
    for scale in (0.25, 0.5):
        mine, theirs = inputs(scale), inputs(scale)
        with torch.no_grad():
            torch.manual_seed(5)
            got = traced(*mine)
            torch.manual_seed(5)
            want = twin(*theirs)
        for a, b in zip((*got, *mine, network.state), (*want, *theirs, twin.state), strict=True):
            assert torch.equal(a, b), f"{traced.graph}\n{a}\n{b}"
        assert all(reason is None for s in traced.segments if (reason := s.reason) or not s.compiled)


@given(steps, outputs, taken, st.integers(1, 3), st.one_of(st.none(), st.integers(1, 2)), st.booleans(), levels)
@settings(max_examples=40, deadline=None, suppress_health_check=list(HealthCheck))
def test_random_networks_are_traced_exactly(
    steps: list[tuple[str, int, int]],
    outputs: list[int],
    ops: set[str] | None,
    least: int,
    most: int | None,
    odd: bool,
    level: str,
) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        check(Network(steps, outputs), ops, least, most, odd, level)

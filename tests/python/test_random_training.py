"""Networks drawn at random, trained split and whole: losses, gradients and weights are equal after every step.

A network is a list of steps on a growing list of activations; layers are taken from small pools, so that many are used
twice, on both sides of the cut. Batch norm, dropout, in-place writes, frozen layers and residuals come with them.
"""

from __future__ import annotations

import copy
from collections import Counter
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import pytest
import torch
import torch.nn.functional as F
from helpers import _reason
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st
from test_training import same_grads, same_state, sgd
from torch import Tensor, nn

import cleave

pytestmark = pytest.mark.integration

WIDTH, CLASSES, STEPS = 6, 3, 3


class Step(NamedTuple):
    op: str
    a: int
    b: int
    k: int  # which layer of a pool


def _without_grad(x: Tensor) -> Tensor:
    with torch.no_grad():
        return x * 2 + 1


def _in_place(x: Tensor, fn: Callable[[Tensor], Tensor]) -> Tensor:
    return fn(x * 1.5)


def _halved(t: Tensor, k: int) -> Tensor:
    t[:, k:].mul_(0.5)
    return t


GRAMMAR: dict[str, Callable[[Network, Tensor, Tensor, int], Tensor]] = {
    "linear": lambda net, a, b, k: net.linear[k](a),
    "linear and relu": lambda net, a, b, k: net.relu(net.linear[k](a)),
    "linear, turned": lambda net, a, b, k: F.linear(a, net.linear[k].weight.t()),
    "joined": lambda net, a, b, k: net.wide(torch.cat([a, b], 1)),
    "frozen": lambda net, a, b, k: net.frozen(a),
    "batch norm": lambda net, a, b, k: net.batch_norm[k % 2](a),
    "layer norm": lambda net, a, b, k: net.layer_norm(a),
    "dropout": lambda net, a, b, k: net.dropout(a),
    "dropout in place": lambda net, a, b, k: _in_place(a, lambda t: F.dropout(t, 0.2, net.training, inplace=True)),
    "relu in place": lambda net, a, b, k: _in_place(a, torch.relu_),
    "add in place": lambda net, a, b, k: _in_place(a, lambda t: t.add_(b)),
    "write columns": lambda net, a, b, k: _in_place(a, lambda t: _halved(t, k)),
    "overwrite": lambda net, a, b, k: a.mul_(0.5),
    "tanh": lambda net, a, b, k: a.tanh(),
    "gelu": lambda net, a, b, k: F.gelu(a),
    "residual": lambda net, a, b, k: a + b,
    "gate": lambda net, a, b, k: a * b.sigmoid(),
    "by rows": lambda net, a, b, k: a / a.shape[0] + b.mean(0),
    "attention": lambda net, a, b, k: (a @ b.t()).softmax(1) @ b,
    "scale": lambda net, a, b, k: a * net.scale,
    "noise": lambda net, a, b, k: a + torch.randn_like(a) * 0.1,
    "detach": lambda net, a, b, k: a + b.detach(),
    "no grad": lambda net, a, b, k: a + _without_grad(b),
    "doubles": lambda net, a, b, k: (a.double() * b.double()).float(),
    "transposed": lambda net, a, b, k: (a.t() + net.scale[:, None]).t(),
    "chunks": lambda net, a, b, k: torch.cat(list(reversed(a.chunk(2, 1))), 1),
}


class Network(nn.Module):
    def __init__(self, program: Sequence[Step]) -> None:
        super().__init__()
        self.program = tuple(program)
        self.linear = nn.ModuleList(nn.Linear(WIDTH, WIDTH) for _ in range(3))
        self.batch_norm = nn.ModuleList(nn.BatchNorm1d(WIDTH) for _ in range(2))
        self.wide, self.frozen = nn.Linear(2 * WIDTH, WIDTH), nn.Linear(WIDTH, WIDTH).requires_grad_(False)
        self.layer_norm, self.head = nn.LayerNorm(WIDTH), nn.Linear(WIDTH, CLASSES)
        self.relu, self.dropout = nn.ReLU(inplace=True), nn.Dropout(0.3)
        self.scale = nn.Parameter(torch.randn(WIDTH))

    def forward(self, x: Tensor) -> Tensor:
        values = [x, self.linear[0](x)]
        for step in self.program:  # late values are likelier, so that networks are deep
            a, b = values[-1 - step.a % len(values)], values[-1 - step.b % len(values)]
            values.append(GRAMMAR[step.op](self, a, b, step.k))
        return self.head(values[-1])


class Case(NamedTuple):
    program: list[Step]
    boundary: str
    rows: list[int]  # one for the example, one for every step
    training: bool


_steps = st.builds(
    Step, st.sampled_from(sorted(GRAMMAR)), st.sampled_from([0, 0, 0, 1, 2, 5]), st.integers(0, 5), st.integers(0, 2)
)
cases = st.builds(
    Case,
    st.lists(_steps, min_size=3, max_size=10),
    st.one_of(st.just("auto"), st.integers(1, 99).map(lambda p: f"{p}%")),
    st.lists(st.integers(2, 12), min_size=STEPS + 1, max_size=STEPS + 1),
    st.sampled_from([True, True, True, False]),
)


def _data(rows: int, seed: int) -> tuple[Tensor, Tensor]:
    generator = torch.Generator().manual_seed(seed)
    x = torch.randn(rows, WIDTH, generator=generator)
    return x, torch.randint(0, CLASSES, (rows,), generator=generator)


def _optimizer(parameters: Sequence[nn.Parameter]) -> torch.optim.Optimizer | None:
    return sgd(parameters) if parameters else None


def _whole_step(whole: nn.Module, optimizer: Any, rows: int, seed: int) -> Tensor:
    x, y = _data(rows, seed)
    torch.manual_seed(seed)
    optimizer.zero_grad()
    loss = F.cross_entropy(whole(x), y)
    loss.backward()
    optimizer.step()
    return loss.detach()


def _trains(model: nn.Module, case: Case) -> bool:
    """Writing in place can make backward impossible; such networks say nothing about a split."""
    try:
        _whole_step(model, sgd(model.parameters()), case.rows[0], 0)
    except RuntimeError:
        return False
    return True


def _split_steps(case: Case, model: nn.Module, whole: nn.Module, rt: cleave.SplitRuntime) -> None:
    head, tail = _optimizer(rt.parameters("prefix")), _optimizer(rt.parameters("suffix"))
    together = sgd([p for p in whole.parameters() if p.requires_grad])
    for seed, rows in enumerate(case.rows[1:], 1):
        x, y = _data(rows, seed)
        torch.manual_seed(seed)
        boundary = rt.run_training_prefix(x)
        loss, grads = rt.train_suffix(boundary, y, optimizer=tail)
        rt.backward_prefix(boundary, grads, optimizer=head)
        want = _whole_step(whole, together, rows, seed)
        assert torch.equal(loss, want), f"step {seed}: loss {loss} instead of {want}"
        same_grads(model, whole)
        same_state(model, whole)


def check_case(case: Case) -> str:
    """ "equal", "refused: <reason>" or "no model" where the whole network does not train."""
    torch.manual_seed(0)
    model = Network(case.program).train(case.training)
    whole = copy.deepcopy(model)
    if not _trains(copy.deepcopy(model), case):
        return "no model"
    spec = cleave.SplitSpec(boundary=case.boundary, dynamic_batch=(2, 12), trainable=True)
    try:
        rt = cleave.prepare_split(model, example_inputs=_data(case.rows[0], 0)[0], split=spec)
        _split_steps(case, model, whole, rt)
    except cleave.CleaveError as error:
        return f"refused: {_reason(error)}"
    return "equal"


def _many(n: int) -> None:
    outcomes: Counter[str] = Counter()

    @settings(
        max_examples=n,
        deadline=None,
        derandomize=True,
        database=None,
        phases=[Phase.generate, Phase.shrink],
        suppress_health_check=list(HealthCheck),
        print_blob=False,
    )
    @given(cases)
    def body(case: Case) -> None:
        outcomes[check_case(case)[:60]] += 1

    body()
    total = sum(count for name, count in outcomes.items() if name != "no model")
    print(f"{total} networks, {outcomes['equal']} equal")
    for name, count in outcomes.most_common():
        print(f"{count:6} {name}")
    assert outcomes["equal"] > 0.8 * total, outcomes


def test_random_networks_train_split_as_they_do_whole() -> None:
    _many(60)


@pytest.mark.slow
def test_thousands_of_random_networks_train_split_as_they_do_whole() -> None:
    _many(2000)

"""Training programs drawn at random, split and whole: who is stepped, when, and with which gradient.

A model is a list of blocks, some of which run only at some sizes, in train mode, or for the rows that are routed to
them; weights are shared between blocks, and with the loss. A program trains it for a few steps: with one optimizer or
several, gathered gradients, frozen layers, two splits of one model. After every step losses, gradients and parameters
are those of the whole model, trained by the plain loop, or the program is refused with an error.
"""

from __future__ import annotations

import copy
from collections import Counter
from collections.abc import Callable, Sequence
from typing import NamedTuple

import pytest
import torch
import torch.nn.functional as F
from helpers import _reason
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st
from test_training import same_grads, same_state
from torch import Tensor, nn

import cleave

pytestmark = pytest.mark.integration

WIDTH, CLASSES = 5, 3


class Block(NamedTuple):
    kind: str
    k: int  # a layer, a size, a number of experts


def _routed(net: Network, x: Tensor, i: int, k: int) -> Tensor:
    chosen = (x[:, :k] + net.scale[:k]).argmax(1)
    out = torch.zeros_like(x)
    for e in range(k):
        rows = (chosen == e).nonzero().squeeze(-1)
        if rows.numel():
            out = out.index_add(0, rows, net.experts[i][e](x[rows]))
    return out + x


BLOCKS: dict[str, Callable[[Network, Tensor, int, int], Tensor]] = {
    "layer": lambda net, x, i, k: torch.relu(net.own[i](x)),
    "layer that is shared": lambda net, x, i, k: torch.tanh(net.shared[k % 2](x)),
    "weight that is shared": lambda net, x, i, k: F.linear(x, net.shared[k % 2].weight.t()).tanh(),
    "many rows": lambda net, x, i, k: torch.relu(net.own[i](x)) if x.shape[0] > k + 2 else x,
    "few rows": lambda net, x, i, k: torch.relu(net.own[i](x)) if x.shape[0] <= k + 2 else x * 0.5,
    "one layer or another": lambda net, x, i, k: net.own[i](x) if x.shape[0] > k + 2 else net.shared[k % 2](x),
    "train mode": lambda net, x, i, k: x + net.own[i](x) if net.training else x,
    "eval mode": lambda net, x, i, k: x if net.training else x + net.own[i](x),
    "experts": lambda net, x, i, k: _routed(net, x, i, 2 + k % 2),
    "weights of the root": lambda net, x, i, k: F.linear(x, net.weights[i]),
    "dropout": lambda net, x, i, k: F.dropout(x, 0.3, net.training) * net.scale,
    "tensor": lambda net, x, i, k: x * net.plain,
}


class Network(nn.Module):
    def __init__(self, blocks: Sequence[Block]) -> None:
        super().__init__()
        self.blocks = tuple(blocks)
        self.shared = nn.ModuleList(nn.Linear(WIDTH, WIDTH) for _ in range(2))
        self.own = nn.ModuleList(nn.Linear(WIDTH, WIDTH) for _ in blocks)
        self.experts = nn.ModuleList(nn.ModuleList(nn.Linear(WIDTH, WIDTH) for _ in range(3)) for _ in blocks)
        self.weights = nn.ParameterList(torch.randn(WIDTH, WIDTH) * 0.5 for _ in blocks)
        self.scale = nn.Parameter(torch.randn(WIDTH))
        self.plain = torch.randn(WIDTH, requires_grad=True)  # trained, but no parameter
        self.head = nn.Linear(WIDTH, CLASSES)

    def forward(self, x: Tensor) -> Tensor:
        for i, (kind, k) in enumerate(self.blocks):
            x = BLOCKS[kind](self, x, i, k)
        return self.head(x)


class Weighted(nn.Module):
    """A loss with parameters of its own, and perhaps a penalty on the model's."""

    def __init__(self, net: Network, penalty: str) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(CLASSES))
        self.penalty = penalty
        self.nets = [net]  # not a child

    def forward(self, output: Tensor, targets: Tensor) -> Tensor:
        loss = F.cross_entropy(output * self.weight, targets)
        net = self.nets[0]
        if self.penalty == "all":
            loss = loss + 0.01 * sum(p.square().sum() for p in net.parameters() if p.requires_grad)
        elif self.penalty == "shared":
            loss = loss + 0.1 * (net.shared[0].weight.abs().sum() + net.scale.square().sum())
        elif self.penalty == "head":
            loss = loss + 0.1 * net.head.weight.square().mean()
        return loss


class Step(NamedTuple):
    rows: int
    training: bool
    runtime: int  # which of two splits
    steps: bool  # False: the gradients are gathered
    twice: bool  # two losses on one boundary


class Program(NamedTuple):
    blocks: list[Block]
    boundaries: tuple[str, str]
    two: bool
    penalty: str
    optimizers: str
    loss_in: str  # whose optimizer has the loss's parameters
    frozen: int  # layers, as bits
    zero: str
    steps: list[Step]


_often = st.sampled_from([True, True, False])
_boundary = st.one_of(st.just("auto"), st.integers(5, 95).map(lambda p: f"{p}%"))
programs = st.builds(
    Program,
    st.lists(st.builds(Block, st.sampled_from(sorted(BLOCKS)), st.integers(0, 5)), min_size=2, max_size=6),
    st.tuples(_boundary, _boundary),
    st.sampled_from([False, False, True]),
    st.sampled_from(["none", "none", "all", "shared", "head"]),
    st.sampled_from(["halves", "halves", "kinds", "one", "late", "groups", "own"]),
    st.sampled_from(["prefix", "suffix", "both"]),
    st.sampled_from([0, 0, 1, 2, 5]),
    st.sampled_from(["never", "never", "before", "after"]),
    st.lists(
        st.builds(Step, st.integers(1, 9), _often, st.integers(0, 1), _often, _often.map(lambda often: not often)),
        min_size=3,
        max_size=6,
    ),
)


def _sgd(parameters: Sequence[Tensor]) -> torch.optim.Optimizer:
    return torch.optim.SGD(parameters, lr=0.05, momentum=0.9, weight_decay=0.01)


def _adam(parameters: Sequence[Tensor]) -> torch.optim.Optimizer:
    return torch.optim.Adam(parameters, lr=0.01)


def _each(make: Callable[..., torch.optim.Optimizer], tensors: Sequence[Tensor]) -> list[torch.optim.Optimizer]:
    return [make(tensors)] if tensors else []


def _all(net: Network, loss: Weighted) -> dict[str, Tensor]:
    return {**dict(net.named_parameters()), "plain": net.plain, "loss": loss.weight}


Both = tuple[list[torch.optim.Optimizer], list[torch.optim.Optimizer]]  # of train_suffix, of backward_prefix


def _optimizers(program: Program, net: Network, loss: Weighted, rt: cleave.SplitRuntime) -> tuple[Both, set[str]]:
    """What the two calls get, and the names of what Adam steps; SGD steps the rest. None for a half with nothing."""
    every = _all(net, loss)
    prefix = {id(p) for p in rt.parameters("prefix")}
    suffix = {id(p) for p in rt.parameters("suffix")} | {id(net.plain)}
    assert prefix | suffix >= {id(p) for p in net.parameters()}
    for half, ids in (("prefix", prefix), ("suffix", suffix)):
        if program.loss_in in (half, "both"):
            ids.add(id(loss.weight))
    heads, tails = ([t for t in every.values() if id(t) in ids] for ids in (prefix, suffix))
    match program.optimizers:
        case "halves":
            return (_each(_sgd, tails), _each(_sgd, heads)), set()
        case "kinds":  # whoever comes first steps: the suffix's what is its own, the prefix's what waits for it
            only = [t for t in tails if id(t) not in prefix]
            return (_each(_adam, only), _each(_sgd, heads)), {name for name, t in every.items() if id(t) not in prefix}
        case "one":
            one = _sgd(list(every.values()))
            return ([one], [one]), set()
        case "late":
            return ([], [_sgd(list(every.values()))]), set()
        case "groups":
            flat = {name: t for name, t in every.items() if t.dim() == 1}
            groups = [_sgd([t for name, t in every.items() if name not in flat]), _adam(list(flat.values()))]
            return (groups, groups), set(flat)
        case _:
            return ([], []), set()


class Whole:
    """The plain loop: gradients are zeroed, gathered, stepped."""

    def __init__(self, net: Network, loss: Weighted, adam: set[str]) -> None:
        every = _all(net, loss)
        self.net, self.loss = net, loss
        parts = {make: [t for name, t in every.items() if (name in adam) == (make is _adam)] for make in (_adam, _sgd)}
        self.optimizers = [o for make, tensors in parts.items() for o in _each(make, tensors)]
        self.spent = True

    def step(self, x: Tensor, targets: Sequence[Tensor], steps: bool) -> Tensor:
        if self.spent:
            for o in self.optimizers:
                o.zero_grad()
        output = self.net(x)
        for y in targets:
            loss = self.loss(output, y)
            loss.backward(retain_graph=y is not targets[-1])
        for o in self.optimizers if steps else ():
            o.step()
        self.spent = steps
        return loss.detach()


def _data(rows: int, seed: int) -> tuple[Tensor, Tensor]:
    generator = torch.Generator().manual_seed(seed)
    return torch.randn(rows, WIDTH, generator=generator), torch.randint(0, CLASSES, (rows,), generator=generator)


def _freeze(net: Network, bits: int) -> None:
    for i, layer in enumerate((net.shared[0], net.head, net.own[0])):
        layer.requires_grad_(not bits >> i & 1)


def _trained_split(program: Program, net: Network, loss: Weighted) -> None:
    twin = copy.deepcopy(net)
    other = copy.deepcopy(loss)
    other.nets = [twin]
    spec = [cleave.SplitSpec(boundary=b, dynamic_batch=(1, 9), trainable=True) for b in program.boundaries]
    example = _data(program.steps[0].rows, 99)[0]
    runtimes = [cleave.prepare_split(net, example_inputs=example, split=s) for s in spec[: 1 + program.two]]
    (tail, head), adam = _optimizers(program, net, loss, runtimes[0])
    if program.two and program.optimizers in ("halves", "kinds"):
        tail = head = [*head, *tail]  # the other split has other halves
    whole = Whole(twin, other, adam)
    by_hand = [_sgd(list(_all(net, loss).values()))] if program.optimizers == "own" else []
    for seed, step in enumerate(program.steps):
        x, y = _data(step.rows, seed)
        net.train(step.training)
        twin.train(step.training)
        rt = runtimes[step.runtime % len(runtimes)]
        if program.zero == "before" and whole.spent:
            for o in {id(o): o for o in (*head, *tail)}.values():
                o.zero_grad()
        for o in by_hand if whole.spent else ():
            o.zero_grad()
        torch.manual_seed(seed)
        twice = step.twice and all(block.kind != "dropout" for block in program.blocks)  # it would draw once more
        want = whole.step(x, [y.flip(0), y] if twice else [y], step.steps)
        torch.manual_seed(seed)
        boundary = rt.run_training_prefix(x)
        if twice:
            rt.train_suffix(boundary, y.flip(0), loss_fn=loss)
        got, grads = rt.train_suffix(boundary, y, loss_fn=loss, optimizer=tail if step.steps else None)
        rt.backward_prefix(boundary, None if twice else grads, optimizer=head if step.steps else None)
        for o in by_hand if step.steps else ():
            o.step()
        assert torch.equal(got, want), f"step {seed}: loss {got} instead of {want}"
        same_grads(net, twin)
        same_state(net, twin)
        same_state(loss, other)
        assert torch.equal(net.plain, twin.plain), f"step {seed}: plain"
        if program.zero == "after" and step.steps:
            for o in {id(o): o for o in (*head, *tail)}.values():
                o.zero_grad()


def check_program(program: Program) -> str:
    """ "equal", or "refused: <reason>"."""
    torch.manual_seed(0)
    net = Network(program.blocks)
    _freeze(net, program.frozen)
    try:
        _trained_split(program, net, Weighted(net, program.penalty))
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
    @given(programs)
    def body(program: Program) -> None:
        outcomes[check_program(program)[:70]] += 1

    body()
    print(f"{sum(outcomes.values())} programs, {outcomes['equal']} equal")
    for name, count in outcomes.most_common():
        print(f"{count:6} {name}")
    assert outcomes["equal"] > 0.7 * sum(outcomes.values()), outcomes


def test_random_programs_train_split_as_they_do_whole() -> None:
    _many(40)


@pytest.mark.slow
def test_thousands_of_random_programs_train_split_as_they_do_whole() -> None:
    _many(1500)


def test_the_same_optimizer_steps_a_shared_weight_at_every_size() -> None:
    """Its momentum is there. One plan reads the weight in both halves, the other in the suffix alone."""
    small, large = (Step(rows, True, 0, True, False) for rows in (1, 5))
    blocks = [Block("one layer or another", 2), Block("weight that is shared", 0)]
    for steps in ([small, small, large, small], [large, small, large, small]):
        for optimizers in ("halves", "one", "late"):
            program = Program(blocks, ("auto", "auto"), False, "none", optimizers, "prefix", 0, "never", steps)
            assert check_program(program) == "equal"

"""pipe_model: the stages in sequence are the model bit for bit, in every mode; what cannot be cut says why.

Each model is captured once; other methods and other numbers of stages are partitions of the same plan."""

from __future__ import annotations

import copy
import gc
import itertools
import pickle
import weakref
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from helpers import (
    draw,
    kept_rng,
    mentions,
    observe,
    rand,
    rng_state,
    same_seen,
    same_state,
    same_tensor,
    state_of,
    tokens,
)
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st
from real_models import Args
from torch import Tensor, nn
from torch.nn.utils.rnn import pack_padded_sequence, pad_packed_sequence

import cleave
from cleave import ArgumentError, CleaveError, Device, PartitionedPlan, compat
from cleave._wanted import METHODS

Make = Callable[[], Any]


def pipe(model: Any, make: Make, **options: Any) -> PartitionedPlan:
    """A partition of the model, which is left as it was."""
    inputs = draw(make, 0, False)
    before, random, flags = copy.deepcopy(model), rng_state(), [m.training for m in model.modules()]
    options = {"nparts": 2, "profile": "estimate", **options}
    try:
        return cleave.pipe_model(model, example_inputs=inputs.args, example_kwargs=inputs.kwargs, **options)
    finally:
        assert rng_state() == random
        assert [m.training for m in model.modules()] == flags
        same_state(state_of(before), state_of(model), "after pipe_model")
        assert all(t.grad is None for t in model.parameters())


def equal(
    partitioned: PartitionedPlan,
    model: nn.Module,
    make: Make,
    *,
    seeds: Sequence[int] = (1, 2),
    grad: Sequence[bool] = (True, False),
    input_grad: bool = False,
) -> None:
    """The partition works on the model, eager on a twin; all that a caller sees of them is the same."""
    for mode in grad:
        for seed in seeds:
            twin = copy.deepcopy(model)
            want = observe(twin, twin, draw(make, seed, input_grad), grad=mode, seed=seed)
            got = observe(partitioned, model, draw(make, seed, input_grad), grad=mode, seed=seed)
            same_seen(want, got, f"grad {mode}, seed {seed}")
            model.load_state_dict(twin.state_dict())


def cut(model: nn.Module, make: Make, **options: Any) -> PartitionedPlan:
    """A partition that is equal to the model."""
    partitioned = pipe(model, make, **options)
    equal(partitioned, model, make)
    return partitioned


def layers(n: int = 6, width: int = 8) -> nn.Sequential:
    return nn.Sequential(*[nn.Sequential(nn.Linear(width, width), nn.Tanh()) for _ in range(n)])


# ---- every method ------------------------------------------------------------------------------------------


class Block(nn.Module):
    def __init__(self, width: int) -> None:
        super().__init__()
        self.conv1, self.bn1 = nn.Conv2d(width, width, 3, padding=1, bias=False), nn.BatchNorm2d(width)
        self.conv2, self.bn2 = nn.Conv2d(width, width, 3, padding=1, bias=False), nn.BatchNorm2d(width)
        self.relu = nn.ReLU(inplace=True)

    def forward(self, x: Tensor) -> Tensor:
        y = self.bn2(self.conv2(self.relu(self.bn1(self.conv1(x)))))
        y += x
        return self.relu(y)


class Residual(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.stem = nn.Conv2d(3, 4, 3, padding=1)
        self.body = nn.Sequential(*[Block(4) for _ in range(3)])
        self.head = nn.Linear(4, 5)

    def forward(self, x: Tensor) -> Tensor:
        return self.head(self.body(self.stem(x)).mean((2, 3)))


class Skips(nn.Module):
    """Long skips: what goes in first is needed last."""

    def __init__(self) -> None:
        super().__init__()
        self.down = nn.ModuleList(nn.Conv1d(4, 4, 3, padding=1) for _ in range(4))
        self.up = nn.ModuleList(nn.Conv1d(8, 4, 3, padding=1) for _ in range(4))

    def forward(self, x: Tensor) -> dict[str, Any]:
        kept = []
        for down in self.down:
            x = F.gelu(down(x))
            kept.append(x)
        for up in self.up:
            x = F.gelu(up(torch.cat([x, kept.pop()], 1)))
        return {"y": x, "last": [x.mean(), (None, "text")], "size": x.shape[0]}


class Words(nn.Module):
    """Tied embeddings, attention, dropout."""

    def __init__(self) -> None:
        super().__init__()
        self.words, self.places, self.drop = nn.Embedding(50, 8), nn.Embedding(16, 8), nn.Dropout(0.2)
        self.layers = nn.ModuleList(nn.TransformerEncoderLayer(8, 2, 16, 0.1, batch_first=True) for _ in range(2))
        self.norm, self.out = nn.LayerNorm(8), nn.Linear(8, 50, bias=False)
        self.out.weight = self.words.weight

    def forward(self, ids: Tensor) -> Tensor:
        x = self.drop(self.words(ids) + self.places(torch.arange(ids.shape[1])))
        for layer in self.layers:
            x = layer(x)
        return self.out(self.norm(x))


class Recurrent(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.words = nn.Embedding(50, 6)
        self.first = nn.LSTM(6, 5, 2, batch_first=True, bidirectional=True)
        self.second = nn.GRU(10, 4, batch_first=True)
        self.out = nn.Linear(4, 3)

    def forward(self, ids: Tensor, state: tuple[Tensor, Tensor] | None = None) -> tuple[Tensor, tuple[Tensor, Tensor]]:
        y, state = self.first(self.words(ids), state)
        y, _ = self.second(y)
        return self.out(y[:, -1]), state


NETS: dict[str, tuple[Callable[[], nn.Module], Make]] = {
    "chain": (layers, rand((3, 8))),
    "residual": (Residual, rand((3, 3, 6, 6))),
    "skips": (Skips, rand((3, 4, 8))),
    "words": (Words, tokens(3, 7)),
    "recurrent": (Recurrent, tokens(3, 5)),
}


@pytest.mark.integration
@pytest.mark.parametrize("name", NETS)
def test_every_method_gives_the_model(name: str) -> None:
    build, make = NETS[name]
    torch.manual_seed(1)
    model = build()
    first = pipe(model, make)
    most = min(4, len(first.blocks))
    seen: list[dict[str, int]] = []
    for method in METHODS:
        for nparts in (2, most):
            found = first.repartition(partitioning_method=method, nparts=nparts)
            assert set(found.device_of) == set(range(nparts)), f"{method}, {nparts}"
            assert set(found.stage_of.values()) == set(range(found.nstages))
            if method in ("acyclic", "multilevel"):
                assert found.nstages == nparts
            if found.stage_of not in seen:
                equal(found, model, make, seeds=(1,), grad=(True,))
            seen.append(found.stage_of)


@pytest.mark.integration
@pytest.mark.parametrize("name", NETS)
def test_every_mode_and_size(name: str) -> None:
    build, make = NETS[name]
    model = build()
    found = cut(model, make, nparts=3)
    equal(found, model.eval(), make)
    equal(found, model.train(), make)

    def other(rows: int) -> Make:
        return lambda: tuple(torch.cat([t] * 3)[:rows] for t in make())

    for rows in (1, 2, 5, 8):
        if name != "residual" or rows != 1:
            equal(found, model, other(rows), seeds=(3,), grad=(True,))
        equal(found, model.eval(), other(rows), seeds=(3,), grad=(False,))
        model.train()
    for p in list(model.parameters())[::2]:
        p.requires_grad_(False)
    equal(found, model, make, seeds=(4,))
    equal(found, model.double(), make if name in ("words", "recurrent") else doubles(make), seeds=(4,))


def doubles(make: Make) -> Make:
    return lambda: tuple(t.double() for t in make())


def test_gradients_reach_the_inputs() -> None:
    model = Residual()
    equal(pipe(model, rand((3, 3, 6, 6)), nparts=3), model, rand((3, 3, 6, 6)), input_grad=True, grad=(True,))


@pytest.mark.integration
def test_a_training_loop_ends_where_eager_ends() -> None:
    torch.manual_seed(0)
    model = Words()
    twin = copy.deepcopy(model)
    found = pipe(model, tokens(3, 7), nparts=3)
    for call, net in ((model, twin), (found, model)):
        torch.manual_seed(5)
        optimizer = torch.optim.Adam(net.parameters(), 1e-2)
        run = twin if call is model else found
        for _ in range(3):
            optimizer.zero_grad()
            run(torch.randint(0, 50, (3, 7))).square().mean().backward()
            optimizer.step()
    same_state(state_of(twin), state_of(model), "after three steps")


def test_a_function_is_cut_too() -> None:
    weight = nn.Parameter(torch.randn(4, 4))

    def fn(x: Tensor, y: Tensor) -> Tensor:
        return ((x @ weight).relu() + y).softmax(-1)

    x, y = torch.randn(3, 4), torch.randn(3, 4)
    found = cleave.pipe_model(fn, example_inputs=(x, y), nparts=2, profile="estimate", training=False)
    with torch.no_grad():
        same_tensor(fn(x, y), found(x, y), "output")


# ---- what goes in and comes out ----------------------------------------------------------------------------


class Given(nn.Module):
    """A function of two layers and the inputs."""

    def __init__(self, fn: Callable[..., Any], width: int = 4) -> None:
        super().__init__()
        self.a, self.b = nn.Linear(width, width), nn.Linear(width, width)
        self.fn = fn

    def forward(self, *args: Any, **kwargs: Any) -> Any:
        return self.fn(self.a, self.b, *args, **kwargs)


def _loss(a: Any, b: Any, x: Tensor, target: Tensor, reduction: str = "mean") -> Tensor:
    return F.nll_loss(b(a(x).relu()).log_softmax(-1), target, reduction=reduction)


def _optional(a: Any, b: Any, x: Tensor, mask: Tensor | None = None, *, skip: Tensor | None = None) -> Tensor:
    y = a(x).relu()
    y = y if mask is None else y * mask
    return b(y) if skip is None else b(y) + skip


def _nested(a: Any, b: Any, tree: Any, *, more: Any) -> Any:
    (x, [y]), flag, z = tree["in"], tree["flag"], more[1]["z"]
    h = a(x) + y if flag else a(x) - y
    return {"h": h, "out": (b(h + z), [h * 2, {"n": None, 3: (h.sum(), "text", 1.5)}])}


CALLS: dict[str, tuple[Callable[..., Any], Make]] = {
    "keywords": (lambda a, b, x, *, scale, y: b(a(x) * scale + y), lambda: Args(_x(), scale=2.0, y=_x())),
    "only keywords": (lambda a, b, *, y, x: b(a(x).relu() - y), lambda: Args(y=_x(), x=_x())),
    "a string": (_loss, lambda: Args(_x(), torch.randint(0, 4, (3,)), reduction="sum")),
    "another string": (_loss, lambda: Args(_x(), torch.randint(0, 4, (3,)), "none")),
    "None": (_optional, lambda: Args(_x(), None, skip=None)),
    "optional inputs that are given": (_optional, lambda: Args(_x(), torch.rand(3, 4), skip=_x())),
    "optional inputs that are left out": (_optional, lambda: Args(_x())),
    "one of the optional inputs": (_optional, lambda: Args(_x(), skip=_x())),
    "the same tensor twice": (lambda a, b, x, y: b(a(x).relu() + y), lambda: Args(*[_x()] * 2)),
    "nested inputs and outputs": (
        _nested,
        lambda: Args({"in": (_x(), [_x()]), "flag": True}, more=[None, {"z": _x()}]),
    ),
    "an input that is an output": (lambda a, b, x, y: (b(a(x)), y, x), lambda: Args(_x(), _x())),
    "an output twice": (lambda a, b, x: (lambda h: (h, b(h), h))(a(x)), lambda: Args(_x())),
    "a view of an input": (lambda a, b, x: (b(a(x)), x.t(), x[:, 1:]), lambda: Args(_x())),
    "an input that nothing reads": (lambda a, b, x, y: b(a(x)), lambda: Args(_x(), _x())),
    "no batch in an input": (lambda a, b, x, t: b(a(x) * t), lambda: Args(_x(), torch.rand(4))),
    "where with a condition": (
        lambda a, b, x, y: b(torch.where(a(x) > 0, x, y)) + torch.where(x > y, 1.0, -1.0),
        lambda: Args(_x(), _x()),
    ),
    "where without values": (lambda a, b, x: b(a(x)) + torch.where(x < 99)[0].reshape(x.shape), lambda: Args(_x())),
    "expand_as, either way round": (
        lambda a, b, x, y: b(y.expand_as(a(x)).relu() + x[:1].expand_as(x)) * y.sum(1).unsqueeze(1).expand_as(x),
        lambda: Args(_x(), torch.randn(1, 4)),
    ),
    "the size of the batch": (lambda a, b, x: (b(a(x)).reshape(-1), x.shape[0], len(x) * 2), lambda: Args(_x())),
    "channels last": (
        lambda a, b, x: b(a(x).relu()),
        lambda: Args(torch.randn(3, 4, 2, 4).to(memory_format=torch.channels_last)),
    ),
    "kwargs of a dict": (lambda a, b, **k: b(a(k["x"])) + k["y"], lambda: Args(x=_x(), y=_x())),
    "complex numbers": (lambda a, b, x: b(torch.view_as_real(torch.fft.fft(a(x)))[..., 0]), lambda: Args(_x())),
    "integers, and no gradient": (
        lambda a, b, x: (b(a(x).relu()), a(x).argmax(-1), a(x).detach().sum()),
        lambda: Args(_x()),
    ),
}


def _x() -> Tensor:
    return torch.randn(3, 4)


@pytest.mark.parametrize("name", CALLS)
def test_inputs_and_outputs(name: str) -> None:
    fn, make = CALLS[name]
    model = Given(fn)
    found = cut(model, make, partitioning_method="acyclic")
    equal(found.repartition(partitioning_method="mpipe", nparts=len(found.blocks)), model, make, seeds=(3,))


def test_a_tensor_that_is_passed_twice_and_written_is_refused() -> None:
    found = pipe(Given(lambda a, b, x, y: (y.mul_(2), b(a(x).relu() + y))[1]), lambda: Args(_x(), _x()))
    with pytest.raises(cleave.InputError, match="share memory"):
        found(*[_x()] * 2)


def test_another_call_than_the_example_is_refused() -> None:
    found = pipe(Given(_optional), lambda: Args(_x()))
    for args, kwargs in (
        ((_x(), _x()), {}),
        ((), {}),
        ((_x(),), {"skip": _x()}),
        ((_x(),), {"other": _x()}),
        ((torch.randn(3, 5),), {}),
        ((torch.randn(3, 4, 4),), {}),
        ((torch.randn(0, 4),), {}),
        ((torch.randn(65, 4),), {}),
        (("x",), {}),
    ):
        with pytest.raises(CleaveError):
            found(*args, **kwargs)
    model = Given(_loss)
    found = pipe(model, CALLS["a string"][1])
    x, target = _x(), torch.randint(0, 4, (3,))
    with pytest.raises(CleaveError, match="reduction"):
        found(x, target, reduction="mean")
    same_tensor(model(x, target, reduction="sum"), found(x, target, reduction="sum"), "after a refusal")


def test_batches_along_another_dimension() -> None:
    model = nn.LSTM(4, 5)

    def make(rows: int = 3) -> tuple[Tensor, ...]:
        return (torch.randn(6, rows, 4),)

    found = cut(model, make, batch_dim=1, nparts=1)
    equal(found, model, lambda: make(5))
    found = cut(nn.Sequential(nn.Conv1d(4, 4, 1), nn.ReLU(), nn.Conv1d(4, 2, 1)), rand((3, 4, 5)), batch_dim=None)
    with pytest.raises(cleave.InputError, match="dimension 0"):
        found(torch.randn(2, 4, 5))


# ---- state -------------------------------------------------------------------------------------------------


def stage_names(found: PartitionedPlan) -> list[set[str]]:
    return [set(s.state_dict()) for s in found.stages]


def test_stages_have_the_names_of_the_model() -> None:
    model = Residual()
    found = pipe(model, rand((3, 3, 6, 6)), nparts=3)
    names = stage_names(found)
    assert set.union(*names) == set(model.state_dict())
    assert sum(len(n) for n in names) == len(model.state_dict())
    for stage in found.stages:
        for name, p in stage.named_parameters():
            assert p is model.get_parameter(name)
        stage.load_state_dict({name: model.state_dict()[name] for name in stage.state_dict()})


def in_sequence(found: PartitionedPlan, *args: Any, **kwargs: Any) -> Any:
    values = found.unpack_inputs(args, kwargs)
    for stage in found.stages:
        values = stage(*values)
    return found.pack_output(values, found.stages[-1].numbers)


@pytest.mark.parametrize("name", NETS)
def test_stages_by_themselves_give_the_model(name: str) -> None:
    build, make = NETS[name]
    model = build()
    found = pipe(model, make, nparts=3)
    for train, rows, grad in ((True, 3, True), (True, 4, True), (False, 3, False), (False, 5, False)):
        for m in (model, *found.stages):
            m.train(train)

        def more(rows: int = rows) -> tuple[Tensor, ...]:
            return tuple(torch.cat([t] * 2)[:rows] for t in make())

        twin = copy.deepcopy(model)
        want = observe(twin, twin, draw(more, 6, False), grad=grad, seed=6)
        got = observe(lambda *a, **k: in_sequence(found, *a, **k), model, draw(more, 6, False), grad=grad, seed=6)
        same_seen(want, got, f"train {train}, {rows} rows")


def test_stages_say_what_they_take_and_give() -> None:
    found = pipe(Skips(), rand((3, 4, 8)), nparts=2, partitioning_method="acyclic")
    main = found._first.main
    assert [s.name for s in main.outputs_of(0)] == [s.name for s in main.inputs_of(1)]
    for spec in main.inputs_of(1):
        assert spec.shape == ("B", 4, 8)
        assert spec.dtype == torch.float32
        assert spec.requires_grad
        assert spec.is_batched


def test_tied_weights_are_in_each_stage_or_in_one() -> None:
    model = Words().eval()
    many = cut(model, tokens(3, 7), nparts=3, partitioning_method="acyclic")
    assert sum("words.weight" in n or "out.weight" in n for n in stage_names(many)) == 2
    one = many.repartition(tie_policy="stage")
    equal(one, model, tokens(3, 7))
    assert sum("words.weight" in n or "out.weight" in n for n in stage_names(one)) == 1


class Shared(nn.Module):
    """A module that is called twice, with work between."""

    def __init__(self, shared: nn.Module, between: int = 4) -> None:
        super().__init__()
        self.shared = shared
        self.layers = nn.ModuleList(nn.Linear(4, 4) for _ in range(between))

    def forward(self, x: Tensor) -> Tensor:
        x = self.shared(x)
        for layer in self.layers:
            x = layer(x).relu()
        return self.shared(x)


def test_a_shared_layer_is_in_two_stages() -> None:
    model = Shared(nn.Linear(4, 4))
    found = cut(model, rand((3, 4)), nparts=3, partitioning_method="acyclic")
    assert {b.name for b in found.blocks} >= {"shared", "shared:2"}
    assert sum("shared.weight" in n for n in stage_names(found)) == 2


def test_shared_statistics_that_are_written_stay_in_one_stage() -> None:
    model = Shared(nn.BatchNorm1d(4))
    with pytest.raises(cleave.SplitError, match="1 block"):
        pipe(model, rand((5, 4)))
    found = cut(Sharing(), rand((5, 4)), nparts=2)
    assert sum("shared.shared.running_mean" in n for n in stage_names(found)) == 1
    cut(Sharing().eval(), rand((5, 4)), nparts=3)


class Sharing(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.shared, self.out = Shared(nn.BatchNorm1d(4)), layers(3, 4)

    def forward(self, x: Tensor) -> Tensor:
        return self.out(self.shared(x))


class InPlace(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.ModuleList(nn.Linear(4, 4) for _ in range(5))

    def forward(self, x: Tensor) -> Tensor:
        x = self.layers[0](x)
        y = x.view(-1)
        x = self.layers[1](x)
        x.relu_()
        z = self.layers[2](x)
        z[:, 1:] += x[:, :3]
        w = z.t()
        z = z + self.layers[3](z).mul_(2)
        return self.layers[4](z.add_(w.t())) + y.view_as(z)


@pytest.mark.integration
def test_memory_that_is_written_does_not_cross_too_early() -> None:
    model = InPlace()
    found = cut(model, rand((3, 4)))
    for method in METHODS:
        for nparts in (2, len(found.blocks)):
            equal(found.repartition(partitioning_method=method, nparts=nparts), model, rand((3, 4)), seeds=(1,))


class Keeps(nn.Module):
    """What a forward can do to its model."""

    def __init__(self, what: str) -> None:
        super().__init__()
        self.what = what
        self.a, self.b, self.c = (nn.Linear(4, 4) for _ in range(3))
        self.register_buffer("kept", torch.zeros(3, 4))
        self.register_buffer("steps", torch.zeros((), dtype=torch.int64))
        self.seen = torch.zeros(3, 4)
        self.calls = 0

    def forward(self, x: Tensor) -> Tensor:
        if self.what == "writes its input":
            x.mul_(2)
            return self.c(self.b(self.a(x)).relu() + x)
        if self.what == "writes its input late":
            y = self.b(self.a(x * 2).relu())
            x.add_(1)
            return self.c(y).relu() + x
        h = self.a(x).relu()
        if self.what == "writes a buffer":
            self.kept.copy_(h.detach())
            self.steps += 1
        if self.what == "re-binds a buffer":
            self.kept = 0.9 * self.kept + h.detach()
        if self.what == "sets an attribute":
            self.seen = h.detach()
        if self.what == "counts":
            self.calls += 1
        return self.c(self.b(h).relu() + self.kept) + self.seen


@pytest.mark.parametrize(
    "what",
    ["writes its input", "writes its input late", "writes a buffer", "re-binds a buffer", "sets an attribute"],
)
def test_what_a_forward_writes(what: str) -> None:
    model = Keeps(what)
    inputs = draw(rand((3, 4)), 0, False)
    found = cleave.pipe_model(
        model, example_inputs=inputs.args, nparts=2, profile="estimate", batch_dim=None if "input" not in what else 0
    )
    twin = copy.deepcopy(model)
    for seed in (1, 2, 3):
        for grad in (True, False):
            want = observe(twin, twin, draw(rand((3, 4)), seed, False), grad=grad, seed=seed)
            got = observe(found, model, draw(rand((3, 4)), seed, False), grad=grad, seed=seed)
            same_seen(want, got, f"{what}, {grad}, {seed}")


@pytest.mark.parametrize("nparts", [1, 2])
@pytest.mark.parametrize("what", ["re-binds a buffer", "sets an attribute"])
def test_what_a_forward_keeps_cannot_be_kept_by_stages_alone(what: str, nparts: int) -> None:
    found = cleave.pipe_model(Keeps(what), batch_dim=None, example_inputs=_x(), nparts=nparts, profile="estimate")
    with pytest.raises(cleave.SplitError, match="for the next call"):
        found.stage(0)


def test_what_a_forward_keeps_in_train_mode_alone_is_refused_there() -> None:
    class Sometimes(Keeps):
        def forward(self, x: Tensor) -> Tensor:
            if self.training:
                self.kept = self.kept + x.detach()
            return super().forward(x)

    model, x = Sometimes("nothing").eval(), _x()
    found = cleave.pipe_model(model, batch_dim=None, example_inputs=x, nparts=2, profile="estimate")
    assert torch.equal(in_sequence(found, x), model(x))
    model.train()
    with pytest.raises(cleave.SplitError, match="kept of the model for the next call"):
        in_sequence(found, x)


def test_python_state_is_refused() -> None:
    model = Keeps("counts")
    with pytest.raises(CleaveError, match="calls"):
        cleave.pipe_model(model, example_inputs=_x(), nparts=2, profile="estimate", batch_dim=None)


# ---- random numbers ----------------------------------------------------------------------------------------


class Draws(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.ModuleList(nn.Linear(4, 4) for _ in range(4))
        self.drop = nn.Dropout(0.5)

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
        left, right = self.drop(self.layers[0](x)), self.layers[1](x)
        left = self.drop(self.layers[2](left)) + torch.rand_like(left)
        right = F.dropout(self.layers[3](right), 0.3) + torch.randn(4)
        return left * right, torch.randint(0, 9, (3,))


@pytest.mark.integration
@pytest.mark.parametrize("recomputation", [False, True])
def test_random_numbers_are_drawn_in_order(recomputation: bool) -> None:
    model = Draws()
    first = cut(model, rand((3, 4)), recomputation=recomputation)
    for method in METHODS:
        for nparts in (3, len(first.blocks)):
            found = first.repartition(partitioning_method=method, nparts=nparts)
            equal(found, model, rand((3, 4)), seeds=(1,))


# ---- recomputation -----------------------------------------------------------------------------------------


@pytest.mark.integration
@pytest.mark.parametrize("name", NETS)
def test_recomputation_changes_nothing(name: str) -> None:
    build, make = NETS[name]
    model = build()
    found = cut(model, make, nparts=3, recomputation=True)
    equal(found, model.eval(), make, seeds=(3,))


class Held:
    """Bytes that the graph of a backward holds, in tensors other than parameters."""

    def __init__(self, model: nn.Module) -> None:
        self.own = {p.untyped_storage().data_ptr() for p in model.parameters()}
        self.storages: dict[int, int] = {}
        self.keep: list[Tensor] = []

    def __enter__(self) -> Held:
        self.hooks = torch.autograd.graph.saved_tensors_hooks(self.pack, lambda t: t)
        self.hooks.__enter__()
        return self

    def __exit__(self, *error: object) -> None:
        self.hooks.__exit__(*error)

    def pack(self, t: Tensor) -> Tensor:
        storage = t.untyped_storage()
        if storage.data_ptr() not in self.own:
            self.storages[storage.data_ptr()] = storage.nbytes()
            self.keep.append(t.detach())
        return t

    @property
    def bytes(self) -> int:
        return sum(self.storages.values())


def test_recomputation_holds_less() -> None:
    model = layers(12, 16)
    x = torch.randn(64, 16)
    held = {}
    for recomputation in (False, True):
        found = pipe(model, lambda: (x,), nparts=3, recomputation=recomputation)
        found(x)
        with Held(model) as count:
            y = found(x)
        held[recomputation] = count.bytes
        y.sum().backward()
        model.zero_grad()
    assert held[True] < held[False] / 3
    assert held[True] >= 2 * x.nbytes  # what went into each stage


def test_recomputation_leaves_statistics_alone() -> None:
    model = nn.Sequential(nn.Linear(4, 4), nn.BatchNorm1d(4), nn.Dropout(0.5), nn.Linear(4, 4), nn.BatchNorm1d(4))
    twin = copy.deepcopy(model)
    found = pipe(model, rand((5, 4)), recomputation=True)
    for call in (twin, found):
        torch.manual_seed(3)
        first, second = call(torch.randn(5, 4)), call(torch.randn(5, 4))  # both in flight
        second.square().sum().backward()
        first.square().sum().backward()
    assert model[1].num_batches_tracked == 2
    same_state(state_of(twin), state_of(model), "after two steps")
    for (name, p), q in zip(twin.named_parameters(), model.parameters(), strict=True):
        same_tensor(p.grad, q.grad, name)


class OwnNorm(nn.BatchNorm1d):
    """Normalises with operators of its own in eval mode; is a whole model where it has layers."""

    def __init__(self, layers: bool = False) -> None:
        super().__init__(4)
        self.first, self.last = (nn.Linear(4, 4), nn.Linear(4, 4)) if layers else (nn.Identity(), nn.Identity())

    def forward(self, x: Tensor) -> Tensor:
        x = self.first(x)
        assert self.running_mean is not None
        assert self.running_var is not None
        if self.training:
            return self.last(super().forward(x))
        return self.last((x - self.running_mean) * (self.weight / torch.sqrt(self.running_var + self.eps)))


@pytest.mark.parametrize(
    ("build", "counter"),
    [
        (lambda: nn.Sequential(nn.Linear(4, 4), nn.BatchNorm1d(4), nn.Linear(4, 4)), r"1\.num_batches_tracked"),
        (lambda: nn.Sequential(nn.Linear(4, 4), OwnNorm(), nn.Linear(4, 4)), r"1\.num_batches_tracked"),
        (lambda: OwnNorm(layers=True), "num_batches_tracked"),
    ],
    ids=["BatchNorm1d", "own operators", "the model itself"],
)
def test_recomputation_sees_statistics_that_another_forward_wrote(build: Callable[[], nn.Module], counter: str) -> None:
    model = build().eval()
    found = pipe(model, rand((5, 4)), recomputation=True)
    y = found(torch.randn(5, 4))
    model.train()
    model(torch.randn(5, 4))  # no version of the statistics tells
    model.eval()
    with pytest.raises(cleave.ReplayError, match=f"^{counter} was changed between the forward and the backward"):
        y.sum().backward()


# ---- blocks ------------------------------------------------------------------------------------------------


def test_depth_folds_modules() -> None:
    model = Residual()
    found = pipe(model, rand((3, 3, 6, 6)))
    names = [b.name for b in found.blocks]
    assert "body.0.conv1" in names
    top = found.repartition(depth=1)
    assert [b.name for b in top.blocks] == ["stem", "body", "mean", "head"]
    assert [b.module_class for b in top.blocks][:2] == ["Conv2d", "Sequential"]
    middle = found.repartition(depth=2)
    assert {"body.0", "body.1", "body.2"} <= {b.name for b in middle.blocks}
    for folded in (top, middle):
        equal(folded, model, rand((3, 3, 6, 6)))
        assert sum(b.nodes for b in folded.blocks) == sum(b.nodes for b in found.blocks)


@pytest.mark.parametrize("blocks", [[Block], ["Block"], ["body.0", "body.2"]])
def test_basic_blocks_stay_whole(blocks: list[Any]) -> None:
    model = Residual()
    found = cut(model, rand((3, 3, 6, 6)), basic_blocks=blocks)
    names = [b.name for b in found.blocks]
    assert {"body.0", "body.2"} <= set(names)
    assert ("body.1.conv1" in names) == (blocks == ["body.0", "body.2"])


class DataDependent(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.lin = nn.Linear(4, 4)

    def forward(self, x: Tensor) -> Tensor:
        return self.lin(x) if x.sum() > 0 else x - self.lin(x).relu()


class Packed(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.lstm = nn.LSTM(4, 3, batch_first=True)

    def forward(self, x: Tensor, lengths: Tensor) -> Tensor:
        packed = pack_padded_sequence(x, lengths.cpu(), batch_first=True, enforce_sorted=False)
        return pad_packed_sequence(self.lstm(packed)[0], batch_first=True, total_length=x.shape[1])[0]


class Holds(nn.Module):
    def __init__(self, inner: nn.Module, width: int) -> None:
        super().__init__()
        self.before, self.inner, self.after = layers(2, 4), inner, nn.Linear(width, 4)

    def forward(self, x: Tensor, *more: Tensor) -> Tensor:
        return self.after(self.inner(self.before(x), *more)).relu()


@pytest.mark.parametrize("block", [DataDependent, "DataDependent", "inner"])
def test_python_that_depends_on_data_inside_a_basic_block(block: Any) -> None:
    model = Holds(DataDependent(), 4)
    found = pipe(model, rand((3, 4)), nparts=3, basic_blocks=[block])
    equal(found, model, rand((3, 4)), seeds=range(1, 9))
    equal(found, model, rand((6, 4)), seeds=(1, 2))
    names = stage_names(found)
    assert set.union(*names) == set(model.state_dict())
    x = torch.randn(3, 4)
    same_tensor(model(x), in_sequence(found, x), "stages by themselves")
    equal(found.repartition(partitioning_method="mpipe", nparts=2), model, rand((3, 4)))


def test_packed_sequences_inside_a_basic_block() -> None:
    model = Holds(Packed(), 3)

    def make() -> tuple[Tensor, Tensor]:
        return torch.randn(3, 6, 4), torch.randint(1, 7, (3,))

    found = pipe(model, make, nparts=3, basic_blocks=[Packed])
    equal(found, model, make, seeds=(1, 2, 3))
    equal(found.repartition(recomputation=True), model, make, seeds=(1, 2))
    in_eval = found.repartition(partitioning_method="exact", nparts=2)
    equal(in_eval, model.eval(), make)


def test_data_dependence_outside_a_basic_block_is_refused_or_guarded() -> None:
    class Shapes(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.a, self.b = nn.Linear(4, 4), nn.Linear(4, 4)

        def forward(self, x: Tensor) -> Tensor:
            h = self.a(x)
            return self.b(h[h.sum(1) > 0]).relu()

    class Reads(Shapes):
        def forward(self, x: Tensor) -> Tensor:
            h = self.a(x)
            return self.b(h).relu() * (2 if (x.sum() > 0).item() else 3)

    for model in (Shapes(), Reads()):
        inputs = draw(rand((3, 4)), 0, False)
        try:
            found = cleave.pipe_model(model, example_inputs=inputs.args, nparts=2, profile="estimate", batch_dim=None)
        except CleaveError as error:
            mentions(error, "depends on")
            continue
        same, refused = 0, 0
        for seed in range(8):
            (x,) = draw(rand((3, 4)), seed, False).args
            try:
                same_tensor(model(x), found(x), "output")
                same += 1
            except CleaveError:
                refused += 1
        assert same
        assert same + refused == 8


def test_sparse_tensors_do_not_cross() -> None:
    class Sparse(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.a, self.b = nn.Linear(4, 4), nn.Linear(4, 4)

        def forward(self, x: Tensor) -> Tensor:
            s = x.detach().relu().to_sparse()
            return self.b(torch.sparse.mm(s, self.a(x).t().relu()).relu() @ x)

    model = Sparse()
    try:
        found = pipe(model, rand((3, 4)), batch_dim=None)
    except CleaveError as error:
        mentions(error, "sparse")
    else:
        equal(found, model, rand((3, 4)))


# ---- weights, devices, limits ------------------------------------------------------------------------------


def test_node_weights_replace_times() -> None:
    model = nn.Sequential(*[nn.Linear(4, 4) for _ in range(6)])
    first = pipe(model, rand((3, 4)))
    heavy = first.repartition(node_weight_function=lambda b: 5.0 if b.name == "0" else 1.0)
    assert list(heavy.stage_of.values()) == [0, 1, 1, 1, 1, 1]
    assert heavy.score["bottleneck_us"] == 5.0
    for bad in (-1.0, float("nan"), float("inf"), "much", None):
        with pytest.raises(ArgumentError, match="node_weight_function"):
            first.repartition(node_weight_function=lambda b, bad=bad: bad)


def test_edge_weights_replace_bytes() -> None:
    model = nn.Sequential(*[nn.Linear(4, 4) for _ in range(6)])
    first = pipe(model, rand((3, 4)), bandwidth=1e6, node_weight_function=lambda b: 1.0)
    asked = []

    def weigh(a: Any, b: Any) -> float:
        asked.append((a.name if a else None, b.name))
        return 0.0 if b.name == "2" else 1e6

    found = first.repartition(edge_weight_function=weigh)
    assert list(found.stage_of.values()) == [0, 0, 1, 1, 1, 1]
    assert asked == [(None, "0"), ("0", "1"), ("1", "2"), ("2", "3"), ("3", "4"), ("4", "5")]
    with pytest.raises(ArgumentError, match="edge_weight_function"):
        first.repartition(edge_weight_function=lambda a, b: -1)


def test_layers_alone_count_where_operators_are_not_profiled() -> None:
    class Net(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.a, self.b = nn.Linear(4, 4), nn.Linear(4, 4)

        def forward(self, x: Tensor) -> Tensor:
            return (self.b(self.a(x)) + 1) * 2

    found = pipe(Net(), rand((3, 4)), profile_ops=False)
    assert [b.is_layer for b in found.blocks] == [True, True, False, False]
    layer = found.profile["a"].forward_time * 1e3
    assert found.score["lower_bound_us"] == pytest.approx(3 * layer)


def test_a_fast_device_gets_more() -> None:
    model = nn.Sequential(*[nn.Linear(4, 4) for _ in range(8)])
    found = pipe(model, rand((3, 4)), devices=[Device("slow"), Device("fast", speed=3.0)])
    counts = [sum(found.device_of[s] == d for s in found.stage_of.values()) for d in (0, 1)]
    assert counts == [2, 6]
    equal(found, model, rand((3, 4)))


def test_slow_links_are_left_alone() -> None:
    model = nn.Sequential(*[nn.Linear(4, 4) for _ in range(6)])
    slow = [[0.0, 1.0, 1e12], [1.0, 0.0, 1e12], [1e12, 1e12, 0.0]]
    found = pipe(model, rand((3, 4)), nparts=3, bandwidth=slow, latency=0.0)
    devices = found.device_of
    assert all({a, b} != {0, 1} for a, b in itertools.pairwise(devices))


def test_memory_limits_hold_or_are_impossible() -> None:
    model = nn.Sequential(*[nn.Linear(64, 64) for _ in range(6)])
    first = pipe(model, rand((3, 64)))
    needs = [s["memory_bytes"] for s in first.score["stages"]]
    limit = [round(sum(needs) / 3 * 1.2), 10 * round(sum(needs))]
    found = first.repartition(memory_limit=limit)
    used = [0, 0]
    for d, s in zip(found.device_of, found.score["stages"], strict=True):
        used[d] += s["memory_bytes"]
    assert used[0] <= limit[0]
    equal(found, model, rand((3, 64)))
    for method in METHODS:
        with pytest.raises(CleaveError, match="memory"):
            first.repartition(memory_limit=1000, partitioning_method=method)


# ---- wrong arguments ---------------------------------------------------------------------------------------


WRONG: list[tuple[str, Any]] = [
    ("batch_dim", -1),
    ("batch_dim", "x"),
    ("batch_dim", True),
    ("batch_dim", 7),
    ("example_kwargs", [1]),
    ("n_iter", 0),
    ("n_iter", 1.5),
    ("nparts", 0),
    ("nparts", -2),
    ("nparts", 2.0),
    ("nparts", "two"),
    ("nparts", True),
    ("nparts", 100),
    ("nparts", 2**40),
    ("depth", 0),
    ("depth", None),
    ("depth", 2**40),
    ("basic_blocks", [3]),
    ("basic_blocks", 3),
    ("basic_blocks", nn.Linear),
    ("basic_blocks", "Linear"),
    ("basic_blocks", ["Nothing"]),
    ("node_weight_function", 3),
    ("edge_weight_function", "f"),
    ("partitioning_method", "best"),
    ("partitioning_method", None),
    ("partitioning_method", ["acyclic"]),
    ("output_file", "net.py"),
    ("generate_explicit_del", True),
    ("recomputation", "yes"),
    ("profile_ops", "all"),
    ("profile", 3),
    ("profile", "/nowhere/profile.json"),
    ("devices", ["a"]),
    ("devices", ["a", "b", "c"]),
    ("devices", 2),
    ("devices", [None, None]),
    ("devices", [Device("a", speed=0.0), Device("b")]),
    ("devices", [Device("a", speed=float("nan")), Device("b")]),
    ("devices", [Device("a", speed="fast"), Device("b")]),  # type: ignore[arg-type]
    ("devices", [Device("a", memory=-1), Device("b")]),
    ("devices", [Device("a", memory=1.5), Device("b")]),  # type: ignore[arg-type]
    ("devices", [Device(3), Device("b")]),  # type: ignore[arg-type]
    ("memory_limit", 0),
    ("memory_limit", -5),
    ("memory_limit", 1.5),
    ("memory_limit", "8G"),
    ("memory_limit", [10**9]),
    ("memory_limit", 2**70),
    ("tie_policy", "copy"),
    ("training", "yes"),
    ("schedule", "dualpipe"),
    ("objective", "fast"),
    ("microbatches", 0),
    ("microbatches", 2**40),
    ("bandwidth", 0),
    ("bandwidth", -1.0),
    ("bandwidth", float("nan")),
    ("bandwidth", "fast"),
    ("bandwidth", [[1.0]]),
    ("bandwidth", [["a", "b"], ["c", "d"]]),
    ("bandwidth", [1.0, 2.0]),
    ("latency", -1.0),
    ("latency", float("inf")),
    ("latency", "none"),
    ("param_copies", -1),
    ("param_copies", float("nan")),
    ("param_copies", "four"),
    ("max_stages", 0),
    ("max_stages", 1),
    ("max_stages", 2**40),
    ("seed", -1),
    ("seed", 1.5),
    ("seed", 2**64),
    ("seconds", -1.0),
    ("seconds", float("nan")),
    ("seconds", "long"),
]


@pytest.mark.parametrize(("name", "bad"), WRONG, ids=[f"{n}={b!r}"[:60] for n, b in WRONG])
def test_a_wrong_argument_is_named(name: str, bad: Any) -> None:
    good = {"example_inputs": torch.randn(3, 4), "nparts": 2, "profile": "estimate", "batch_dim": None}
    with pytest.raises((CleaveError, TypeError, OSError), match=name.removeprefix("model_").split("_")[0]):
        cleave.pipe_model(nn.Sequential(nn.Linear(4, 4), nn.Linear(4, 4)), **{**good, name: bad})


@pytest.mark.parametrize("model", [3, None, "net", [nn.Linear(4, 4)]])
def test_a_model_that_is_none_is_refused(model: Any) -> None:
    with pytest.raises(TypeError):
        cleave.pipe_model(model, example_inputs=torch.randn(3, 4), nparts=1, profile="estimate")


def test_a_model_that_raises_raises() -> None:
    with pytest.raises(RuntimeError, match="mat1 and mat2"):
        cleave.pipe_model(layers(), example_inputs=torch.randn(3, 5), nparts=2, profile="estimate")


def test_more_parts_than_blocks() -> None:
    with pytest.raises(cleave.SplitError, match="2 blocks that can be apart, fewer than nparts=3"):
        cleave.pipe_model(nn.Sequential(nn.Linear(4, 4), nn.ReLU()), example_inputs=_x(), nparts=3, profile="estimate")


def test_repartition_changes_what_it_can() -> None:
    found = pipe(layers(), rand((3, 8)))
    for name in ("model", "example_inputs", "batch_dim", "training", "dynamic_dims"):
        with pytest.raises(ArgumentError, match=f"repartition cannot change {name}"):
            found.repartition(**{name: 1})
    with pytest.raises(ArgumentError, match="repartition has no argument 'nonsense'"):
        found.repartition(nonsense=1)
    assert found.repartition().stage_of == found.stage_of


# ---- looking -----------------------------------------------------------------------------------------------


@pytest.mark.integration
def test_the_same_seed_gives_the_same() -> None:
    model = Skips()
    first = pipe(model, rand((3, 4, 8)))
    for method in METHODS:
        found = [first.repartition(nparts=3, partitioning_method=method, seed=s) for s in (5, 5)]
        assert found[0].stage_of == found[1].stage_of
        assert found[0].device_of == found[1].device_of
        assert found[0].source() == found[1].source()
        assert found[0].signature == found[1].signature
    again = pipe(copy.deepcopy(model), rand((3, 4, 8)))
    assert again.stage_of == first.stage_of
    assert again.source() == first.source()


def test_a_measured_profile_is_kept(tmp_path: Path) -> None:
    file = tmp_path / "profile.json"
    model = layers(3)
    first = pipe(model, rand((3, 8)), profile=str(file), n_iter=2)
    assert file.exists()
    written = file.read_text()
    again = pipe(model, rand((3, 8)), profile=file, n_iter=2)
    assert file.read_text() == written
    assert again.profile == first.profile
    assert again.stage_of == first.stage_of
    given = pipe(model, rand((3, 8)), profile=cleave.Profile.load(file))
    assert given.stage_of == first.stage_of
    with pytest.raises(ArgumentError, match="profile is not of the blocks"):
        pipe(layers(4), rand((3, 8)), profile=first.profile)
    equal(cleave.pipe_model(model, example_inputs=torch.randn(3, 8), nparts=2, n_iter=2), model, rand((3, 8)))


def test_files_are_written(tmp_path: Path) -> None:
    model = Skips()
    out = tmp_path / "skips"
    found = pipe(model, rand((3, 4, 8)))
    assert found.write_source(out, explicit_del=True) == tmp_path / "skips.py"
    text = (tmp_path / "skips.py").read_text()
    assert text == found.source(explicit_del=True)
    assert "del " in text
    assert "class Stage1(nn.Module)" in text
    page = found.report(tmp_path / "page.html", title="Two stages of it").read_text()
    assert "Two stages of it" in page
    assert "stage" in page
    assert [p.name for p in tmp_path.iterdir() if p.name.startswith(".")] == []


def test_a_partition_prints() -> None:
    found = pipe(Skips(), rand((3, 4, 8)), nparts=3, partitioning_method="acyclic")
    assert "PartitionedPlan of Skips: 3 stages" in repr(found)
    assert "acyclic" in repr(found)
    assert "<table" in found._repr_html_()
    table = found.table()
    for word in ("stage", "forward", "backward", "memory", "lower bound", "bubble"):
        assert word in table
    score = found.score
    assert score["method"] == "acyclic"
    assert len(score["stages"]) == 3
    assert score["bottleneck_us"] >= score["lower_bound_us"] > 0


def test_a_partition_is_of_one_process() -> None:
    found = pipe(layers(3), rand((3, 8)))
    for act in (pickle.dumps, copy.copy, copy.deepcopy):
        with pytest.raises(TypeError, match="bound to the model"):
            act(found)


def test_a_stage_that_is_not_there() -> None:
    found = pipe(layers(3), rand((3, 8)))
    for i in (-1, 2, 100, "0", None):
        with pytest.raises(ArgumentError, match="stage"):
            found.stage(i)  # type: ignore[arg-type]
    with pytest.raises(CleaveError):
        found.stage(0, device="nowhere")
    with pytest.raises(cleave.InputError, match="stage 0"):
        found.stage(0)(torch.randn(3, 9))
    with pytest.raises(cleave.InputError):
        found.stage(0)()


def test_a_changed_model_is_seen() -> None:
    model = layers(3)
    found = cut(model, rand((3, 8)))
    with torch.no_grad():
        model[0][0].weight.mul_(2)
    equal(found, model, rand((3, 8)))
    model[1][0].weight = nn.Parameter(torch.randn(8, 8))
    equal(found, model, rand((3, 8)))
    model[1][1] = nn.ReLU()
    x = torch.randn(3, 8)
    try:
        same_tensor(model(x), found(x), "another activation")
    except CleaveError as error:
        mentions(error, "model")


def test_autocast_and_inference_mode() -> None:
    model = layers(3)
    found = pipe(model, rand((3, 8)))
    x = torch.randn(3, 8)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        same_tensor(model(x), found(x), "autocast")
    with torch.inference_mode():
        same_tensor(model(x), found(x), "inference mode")
    equal(found, model, rand((3, 8)))


# ---- random networks ---------------------------------------------------------------------------------------


class Random(nn.Module):
    """Steps on a growing list of values; each takes two of them."""

    def __init__(self, steps: Sequence[tuple[str, int, int]], outputs: Sequence[int]) -> None:
        super().__init__()
        self.steps, self.outputs = steps, outputs
        self.pool = nn.ModuleList([nn.Linear(4, 4) for _ in range(3)])
        self.norm = nn.BatchNorm1d(4)

    def forward(self, x: Tensor, y: Tensor) -> list[Tensor]:
        values = [x, y]
        for op, i, j in self.steps:
            a, b = values[i % len(values)], values[j % len(values)]
            values.append(OPS[op](self, a, b, j))
        return [values[-1], *(values[i % len(values)] for i in self.outputs)]


def _written(a: Tensor) -> Tensor:
    a = a * 1
    v = a[:, :2]
    v.add_(1)
    return a


OPS: dict[str, Callable[[Any, Tensor, Tensor, int], Tensor]] = {
    "layer": lambda net, a, b, k: net.pool[k % 3](a),
    "norm": lambda net, a, b, k: net.norm(a),
    "add": lambda net, a, b, k: a + b,
    "mul": lambda net, a, b, k: a * b.tanh(),
    "where": lambda net, a, b, k: torch.where(a > b, a, b * 0.5),
    "written": lambda net, a, b, k: _written(a),
    "view": lambda net, a, b, k: a.reshape(-1).view_as(a),
    "dropout": lambda net, a, b, k: F.dropout(a, 0.3),
    "joined": lambda net, a, b, k: torch.cat([a, b], 1)[:, 2:6],
    "parts": lambda net, a, b, k: sum(a.chunk(2, 1)[::-1], b[:, :2]).repeat(1, 2),
    "relu": lambda net, a, b, k: (a + 0).relu_(),
    "detached": lambda net, a, b, k: a.detach() + b,
}
EXAMPLES = 60
STEP = st.tuples(st.sampled_from(sorted(OPS)), st.integers(0, 7), st.integers(0, 7))


@pytest.mark.integration
@settings(
    max_examples=EXAMPLES,
    deadline=None,
    derandomize=True,
    phases=(Phase.explicit, Phase.generate),
    suppress_health_check=list(HealthCheck),
)
@given(
    steps=st.lists(STEP, min_size=3, max_size=10),
    outputs=st.lists(st.integers(0, 9), max_size=2),
    method=st.sampled_from(METHODS),
    nparts=st.integers(1, 4),
    recomputation=st.booleans(),
    seed=st.integers(0, 5),
)
def test_random_networks(
    steps: list[tuple[str, int, int]], outputs: list[int], method: str, nparts: int, recomputation: bool, seed: int
) -> None:
    with kept_rng():
        torch.manual_seed(0)
        model = Random(steps, outputs)
    make = rand((3, 4), (3, 4))
    try:
        found = pipe(
            model,
            make,
            nparts=nparts,
            partitioning_method=method,
            recomputation=recomputation,
            seed=seed,
            batch_dim=None,
        )
    except cleave.SplitError as error:
        mentions(error, "fewer than nparts")
        return
    equal(found, model, make, seeds=(1,))


def test_a_model_that_has_no_data_is_partitioned_by_estimates() -> None:
    with torch.device("meta"):
        net = nn.Sequential(*(nn.Sequential(nn.Linear(1 << 20, 1 << 20), nn.GELU()) for _ in range(4)))
        x = torch.empty(2, 1 << 20)
    partitioned = cleave.pipe_model(net, example_inputs=(x,), nparts=4, partitioning_method="exact")
    assert partitioned.nstages == 4
    assert partitioned.profile.key["device"].startswith("an estimate")
    assert "class Stage3" in partitioned.source()
    for use in (lambda: partitioned(x), lambda: partitioned.stage(0), lambda: partitioned.save("no.clv")):
        with pytest.raises(cleave.InputError, match="meta device"):
            use()


def test_a_stage_sees_that_other_parameters_are_trained() -> None:
    net = nn.Sequential(nn.Linear(4, 4), nn.Tanh(), nn.Linear(4, 2))
    x = torch.randn(3, 4)
    partitioned = cleave.pipe_model(net, example_inputs=(x,), nparts=2, profile="estimate")
    stages = partitioned.stages
    for frozen in (False, True, False):
        net[0].requires_grad_(not frozen)
        values: tuple[torch.Tensor, ...] = (x,)
        for stage in stages:
            values = stage(*values)
        want = net(x)
        assert torch.equal(values[0], want)
        params = [p for p in net.parameters() if p.requires_grad]
        for a, b in zip(
            torch.autograd.grad(values[0].sum(), params), torch.autograd.grad(want.sum(), params), strict=True
        ):
            assert torch.equal(a, b)


def test_a_device_gets_one_stage_unless_several_are_predicted_to_be_faster() -> None:
    model, x = nn.Sequential(*(nn.Linear(32, 32) for _ in range(9))), torch.randn(4, 32)
    ask: dict[str, Any] = {
        "example_inputs": x,
        "nparts": 2,
        "profile": "estimate",
        "node_weight_function": lambda b: 1.0,
    }
    simple = cleave.pipe_model(model, **ask)
    assert simple.nstages == 2
    even = simple.repartition(objective="bottleneck", max_stages=4)
    assert even.score["bottleneck_us"] <= simple.score["bottleneck_us"]
    assert torch.equal(simple(x), model(x))


def test_the_profile_stays_beside_the_output_file_and_gives_the_same_stages_again(tmp_path: Path) -> None:
    model, x = nn.Sequential(*(nn.Linear(64, 64) for _ in range(6))), torch.randn(4, 64)
    first = compat.pipe_model(model, model_args=x, nparts=2, n_iter=2, output_file=tmp_path / "net.py")
    kept = cleave.Profile.load(tmp_path / "net.profile.json")
    again = compat.pipe_model(model, model_args=x, nparts=2, n_iter=2, output_file=tmp_path / "net.py")
    assert again.profile == first.profile == kept
    assert again.stage_of == first.stage_of


class Asks(nn.Module):
    """Asks what its inputs are: whether two are the same tensor, whether one requires grad."""

    def __init__(self, what: str) -> None:
        super().__init__()
        self.what = what
        self.first, self.last = nn.Linear(4, 4), nn.Linear(4, 4)

    def forward(self, q: Tensor, k: Tensor) -> Tensor:
        yes = q is k if self.what == "same" else q.requires_grad
        return self.last(self.first(q) * 2 if yes else self.first(q) + k)


def calls(what: str) -> tuple[tuple[Tensor, Tensor], tuple[Tensor, Tensor]]:
    q, k = torch.randn(3, 4), torch.randn(3, 4)
    return (q, k), (q, q) if what == "same" else (q.clone().requires_grad_(), k)


@pytest.mark.parametrize("turned", [False, True])
@pytest.mark.parametrize("what", ["same", "grad"])
def test_a_stage_refuses_inputs_of_which_the_forward_asks_something_else(what: str, turned: bool) -> None:
    model = Asks(what).eval()
    mine, other = calls(what)[::-1] if turned else calls(what)
    with torch.no_grad():
        found = cleave.pipe_model(model, example_inputs=mine, nparts=2, profile="estimate")
        assert torch.equal(in_sequence(found, *mine), model(*mine))
        said = "tensor (as|than) input 0, which the forward may ask" if what == "same" else "for which the forward asks"
        with pytest.raises(cleave.InputError, match=f"stage 0: .*{said}"):
            in_sequence(found, *other)
        assert torch.equal(in_sequence(found, *mine), model(*mine))


@pytest.mark.parametrize("turned", [False, True])
@pytest.mark.parametrize("what", ["same", "grad"])
@pytest.mark.parametrize("halves", [False, True])
def test_generated_source_asks_what_the_forward_asked_of_its_inputs(what: str, turned: bool, halves: bool) -> None:
    model = Asks(what).eval()
    mine, other = calls(what)[::-1] if turned else calls(what)
    with torch.no_grad():
        if halves:
            spec = cleave.SplitSpec(boundary="after:first")
            split = cleave.prepare_split(model, example_inputs=mine, split=spec)
            file: dict[str, Any] = {}
            exec(split.source("prefix"), file)
            code = file["Prefix"]().eval()
            code.load_state_dict(model.state_dict(), strict=False)
            assert "GuardError" not in split.source("suffix")
            code(*mine)
        else:
            found = cleave.pipe_model(model, example_inputs=mine, nparts=2, profile="estimate")
            file = {}
            exec(found.source(), file)
            code = file["Pipeline"]()
            file["load_model_state"](code.stages, found.state_dict())
            assert torch.equal(code.eval()(*mine), model(*mine))
        with pytest.raises(RuntimeError, match="the forward may ask: it was captured otherwise"):
            code(*other)


class Renames(nn.Module):
    """Returns other names in eval mode."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.last = nn.Linear(4, 4), nn.Linear(4, 4)

    def forward(self, x: Tensor) -> dict[str, Tensor]:
        a = self.first(x)
        b = self.last(a)
        return {"a": a, "b": b} if self.training else {"b": b, "c": a}


@pytest.mark.parametrize("training", [False, True])
def test_the_output_of_stages_has_the_names_of_the_mode_that_ran(training: bool) -> None:
    model, x = Renames().train(training), torch.randn(3, 4)
    found = cleave.pipe_model(model, example_inputs=(x,), nparts=2, profile="estimate", training=training)
    for mode in (training, not training, training):
        for m in (model, *found.stages):
            m.train(mode)
        got, want = in_sequence(found, x), model(x)
        assert list(got) == list(want)
        assert all(torch.equal(got[k], want[k]) for k in want)


class Named(nn.Module):
    """Modules with names that a stage could have use for."""

    NAMES = ("before", "choose", "variant", "ran", "now", "returned", "guards")

    def __init__(self) -> None:
        super().__init__()
        for name in self.NAMES:
            self.add_module(name, nn.Linear(4, 4))

    def forward(self, x: Tensor) -> Tensor:
        for name in self.NAMES:
            x = getattr(self, name)(x)
        return x


def test_modules_may_have_any_of_these_names() -> None:
    model, x = Named(), torch.randn(3, 4)
    found = cleave.pipe_model(model, example_inputs=(x,), nparts=2, profile="estimate")
    assert torch.equal(in_sequence(found, x), model(x))


class EachAlone(nn.Sequential):
    """Every number of rows has a plan of its own."""

    def forward(self, x: Tensor) -> Tensor:
        return super().forward(torch.stack([row.sin() if i % 2 else row for i, row in enumerate(x)]))


@pytest.mark.filterwarnings("ignore:.*max_plans")
def test_stages_keep_nothing_of_plans_that_gave_way() -> None:
    model = EachAlone(nn.Linear(4, 4), nn.ReLU(), nn.Linear(4, 4))
    found = cleave.pipe_model(model, example_inputs=torch.randn(3, 4), nparts=2, profile="estimate", max_plans=2)
    seen: dict[int, weakref.ref[Any]] = {}
    for n in (5, 7, 9, 11):
        x = torch.randn(n, 4)
        for stage in found.stages:
            stage.sizes = {"B": n}
        assert torch.equal(in_sequence(found, x), model(x))
        seen.update({id(plan): weakref.ref(plan) for plan in found._served.dispatch.list()})
    gc.collect()
    alive = [plan for ref in seen.values() if (plan := ref()) is not None]
    assert len(seen) > 2
    assert {id(plan) for plan in alive} == {id(plan) for plan in found._served.dispatch.list()}

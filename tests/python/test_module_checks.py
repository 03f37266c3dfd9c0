"""What is changed in a model behind a plan: noticed where the forward reads it, and left alone where it does not."""

from __future__ import annotations

import dataclasses
import enum
import types
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import cleave
from cleave import InputError, SplitSpec
from cleave.optimize import Optimize


class Kind(enum.Enum):
    A = 1
    B = 2


@dataclasses.dataclass
class Config:
    factor: int = 2
    inner: dict[str, list[int]] = dataclasses.field(default_factory=lambda: {"a": [1, 2]})


class Reader(nn.Module):
    """Reads attributes of all kinds."""

    of_the_class = 2

    def __init__(self) -> None:
        super().__init__()
        self.whole, self.real, self.flag, self.text, self.nothing = 2, 1.5, True, "relu", None
        self.pair, self.listed, self.mapped, self.some = (1, 2), [1, 2], {"a": 1}, {1, 2}
        self.kind, self.config, self.space = Kind.A, Config(), types.SimpleNamespace(k=2)
        self.function, self.dtype, self.size, self.part = torch.relu, torch.float32, torch.Size([1, 2]), slice(0, 2)
        self.history: list[float] = []
        self.unread = {"a": 1}
        self.layer = nn.Linear(4, 4)

    def forward(self, x: Tensor) -> Tensor:
        y = x * self.whole * self.real * self.pair[0] * self.listed[0] * self.mapped["a"] * len(self.some)
        y = y * self.config.factor * self.config.inner["a"][0] * self.space.k * self.size[0] * self.of_the_class
        y = self.method(self.layer(y))
        if self.flag:
            y = y + getattr(self, "there", 1)
        if self.text == "relu" and self.nothing is None and self.kind is Kind.A:
            y = y.relu()
        return self.function(y[self.part]).to(self.dtype)

    def method(self, x: Tensor) -> Tensor:
        return x + 1


CHANGES: dict[str, Callable[[Any], None]] = {
    "whole": lambda m: setattr(m, "whole", 3),
    "real": lambda m: setattr(m, "real", 2.5),
    "flag": lambda m: setattr(m, "flag", False),
    "text": lambda m: setattr(m, "text", "no"),
    "nothing": lambda m: setattr(m, "nothing", 1),
    "pair": lambda m: setattr(m, "pair", (5, 2)),
    "listed": lambda m: setattr(m, "listed", [5, 2]),
    "listed, in place": lambda m: m.listed.__setitem__(0, 5),
    "listed, longer": lambda m: m.listed.append(5),
    "mapped": lambda m: m.mapped.__setitem__("a", 5),
    "mapped, larger": lambda m: m.mapped.__setitem__("b", 5),
    "some": lambda m: m.some.add(5),
    "kind": lambda m: setattr(m, "kind", Kind.B),
    "config": lambda m: setattr(m, "config", Config(3)),
    "config.factor": lambda m: setattr(m.config, "factor", 3),
    "config.inner": lambda m: m.config.inner["a"].__setitem__(0, 3),
    "space.k": lambda m: setattr(m.space, "k", 3),
    "function": lambda m: setattr(m, "function", torch.sigmoid),
    "dtype": lambda m: setattr(m, "dtype", torch.float64),
    "size": lambda m: setattr(m, "size", torch.Size([3])),
    "part": lambda m: setattr(m, "part", slice(0, 3)),
    "of_the_class": lambda m: setattr(m, "of_the_class", 3),
    "method": lambda m: setattr(m, "method", lambda x: x + 2),
    "there": lambda m: setattr(m, "there", 3),
}


@pytest.mark.parametrize("what", CHANGES)
def test_an_attribute_that_the_forward_reads_must_stay(what: str) -> None:
    model, x = Reader().eval(), torch.rand(4, 4)
    with torch.no_grad():
        plan = cleave.capture(model, x)
        assert torch.equal(plan(x), model(x))
        CHANGES[what](model)
        with pytest.raises(InputError, match="changed after the plan was captured") as error:
            plan(x)
    assert f"{what.partition(',')[0]} of module (the root)" in str(error.value)


def test_what_the_forward_does_not_read_may_change() -> None:
    model, x = Reader().eval(), torch.rand(4, 4)
    with torch.no_grad():
        plan = cleave.capture(model, x)
        model.history.append(1.0)
        model.config.unread = 5
        model.optimizer = torch.optim.Adam(model.parameters())
        model.unread["a"] = 2
        model.new = 3
        model.listed = list(model.listed)  # equal
        assert torch.equal(plan(x), model(x))


@pytest.mark.parametrize(
    ("layer", "name", "value"),
    [
        (nn.Conv2d(3, 4, 3), "stride", (2, 2)),
        (nn.Conv2d(3, 4, 3), "padding", (1, 1)),
        (nn.AdaptiveAvgPool2d((2, 2)), "output_size", (1, 1)),
        (nn.ReflectionPad2d(1), "padding", (2, 2, 2, 2)),
    ],
)
def test_layers_of_torch(layer: nn.Module, name: str, value: Any) -> None:
    model, x = nn.Sequential(layer, nn.ReLU()).eval(), torch.rand(2, 3, 9, 9)
    runtime = cleave.prepare_split(model, example_inputs=x, split=SplitSpec(boundary="after:0"))
    setattr(layer, name, value)
    with pytest.raises(InputError, match=f"{name} of module 0 changed"):
        runtime.run_prefix(x)


class Tied(nn.Module):
    """One matrix for both ends, as language models have."""

    def __init__(self) -> None:
        super().__init__()
        self.table, self.out = nn.Embedding(30, 16), nn.Linear(16, 30, bias=False)
        self.out.weight = self.table.weight

    def forward(self, ids: Tensor) -> Tensor:
        return self.out(self.table(ids))  # type: ignore[no-any-return]


@pytest.mark.parametrize("level", ["none", "safe", "fast"])
def test_tied_weights_that_are_no_longer_tied(level: str) -> None:
    model, ids = Tied().eval(), torch.randint(0, 30, (4, 6))
    with torch.no_grad():
        plan = cleave.capture(model, ids, optimize=Optimize(level, off=("native",)))
        model.table.weight = model.out.weight = nn.Parameter(torch.randn(30, 16))
        torch.testing.assert_close(plan(ids), model(ids))
        model.out.weight = nn.Parameter(torch.randn(30, 16))
        with pytest.raises(InputError, match=r"out.weight and table.weight were one tensor"):
            plan(ids)
        model.out.weight = model.table.weight
        torch.testing.assert_close(plan(ids), model(ids))


def test_tied_weights_of_a_checkpoint_that_has_two(tmp_path: Any) -> None:
    model, ids = Tied().eval(), torch.randint(0, 30, (4, 6))
    runtime = cleave.prepare_split(model, example_inputs=ids, split=SplitSpec(boundary="after:table"))
    model.load_state_dict({key: torch.randn_like(t) for key, t in model.state_dict().items()}, assign=True)
    with pytest.raises(InputError, match="were one tensor"):
        runtime.run_prefix(ids)


def test_a_table_for_the_sizes_of_the_last_call_is_not_trusted_when_it_is_for_others() -> None:
    """Its values, and not its shape, depend on the batch: only the number beside it tells."""

    class Table(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.layer = nn.Linear(4, 4)
            self.rows: tuple[int, ...] = ()
            self.table = torch.zeros(4)

        def forward(self, x: Tensor) -> Tensor:
            if self.rows != (len(x),):
                self.rows = (len(x),)
                self.table = torch.full((4,), float(len(x)))
            return self.layer(x) + self.table  # type: ignore[no-any-return]

    model = Table().eval()
    with torch.no_grad():
        model(torch.rand(8, 4))
        runtime = cleave.prepare_split(
            model, example_inputs=torch.rand(8, 4), split=SplitSpec(boundary="50%", dynamic_batch=(2, 64))
        )
        plan = cleave.capture(model, torch.rand(8, 4), dynamic_batch=(2, 64))
        for n in (8, 4, 8, 9, 8, 8):
            x = torch.rand(n, 4)
            want = torch.nn.functional.linear(x, model.layer.weight, model.layer.bias) + n
            torch.testing.assert_close(runtime.run_suffix(runtime.run_prefix(x)), want)
            torch.testing.assert_close(plan(x), want)
            assert torch.equal(model(x), plan(x))


def test_plans_within_function_transforms_are_the_model() -> None:
    model, x = nn.Sequential(nn.Linear(4, 4), nn.ReLU()).eval(), torch.rand(2, 4)
    for grad in (True, False):
        with torch.set_grad_enabled(grad):
            plan = cleave.capture(model, x)
        assert torch.equal(
            torch.func.grad(lambda t, plan=plan: plan(t).sum())(x), torch.func.grad(lambda t: model(t).sum())(x)
        )
        assert torch.equal(torch.func.jacrev(plan)(x), torch.func.jacrev(model)(x))
        assert torch.equal(torch.vmap(plan)(x[None]), torch.vmap(model)(x[None]))


def test_what_a_call_leaves_behind_is_named() -> None:
    class Cache(nn.Module):
        seen: Tensor | None = None

        def forward(self, x: Tensor) -> Tensor:
            self.seen = x if self.seen is None else torch.cat([self.seen, x])
            return self.seen.sum(0)

    with pytest.raises(cleave.CaptureError, match=r"second call.*leaves something behind in .*'seen'"):
        cleave.capture(nn.Sequential(Cache()).eval(), torch.rand(2, 4))


def test_an_input_that_is_no_plain_tensor_is_named() -> None:
    plan = cleave.capture(nn.ReLU(), torch.rand(2, 4), dynamic_batch=(1, 4))
    with pytest.raises(InputError, match="input is no plain tensor"):
        plan(torch.rand(2, 4).to_sparse())


def test_levels_are_checked() -> None:
    with pytest.raises(cleave.ArgumentError, match="optimize is one of none, safe, fast, not 'most'"):
        cleave.capture(nn.ReLU(), torch.rand(2), optimize="most")
    with pytest.raises(TypeError, match="or an Optimize, not 3"):
        cleave.capture(nn.ReLU(), torch.rand(2), optimize=3)  # type: ignore[arg-type]


class Counting(nn.Module):
    """Counts where no operator shows it."""

    def __init__(self) -> None:
        super().__init__()
        self.layer, self.calls = nn.Linear(4, 4), 0

    def forward(self, x: Tensor) -> Tensor:
        self.calls += 1
        return self.layer(x)  # type: ignore[no-any-return]


def test_a_counter_is_refused_at_many_sizes_too() -> None:
    for dynamic_batch in (None, (2, 64)):
        spec = SplitSpec(boundary="50%", dynamic_batch=dynamic_batch)
        with pytest.raises(cleave.CaptureError, match=r"every forward changes .*calls"):
            cleave.capture(Counting().eval(), torch.rand(8, 4), dynamic_batch=dynamic_batch)
        with pytest.raises(cleave.CaptureError, match=r"every forward changes .*calls"):
            cleave.prepare_split(Counting().eval(), example_inputs=torch.rand(8, 4), split=spec)


def test_ties_within_the_half_that_is_gone() -> None:
    class Bias(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.one, self.two, self.three = nn.Linear(4, 4), nn.Linear(4, 4), nn.Linear(4, 4)
            self.three.bias = self.two.bias

        def forward(self, x: Tensor) -> Tensor:
            return self.three(self.two(self.one(x)))  # type: ignore[no-any-return]

    model, x = Bias().eval(), torch.rand(3, 4)
    runtime = cleave.prepare_split(model, example_inputs=x, split=SplitSpec(boundary="after:one"))
    want = runtime.run_prefix(x).to_bytes()
    runtime.keep_only("prefix")
    assert runtime.run_prefix(x).to_bytes() == want


class Warm(nn.Module):
    """Keeps something for each size, as it was made by earlier calls."""

    def __init__(self, kind: str) -> None:
        super().__init__()
        self.kind, self.layer = kind, nn.Linear(4, 4)
        self.pairs: dict[int, tuple[Tensor, Tensor]] = {}
        self.numbers: dict[tuple[int, ...], int] = {}
        self.acts: dict[str | None, int] = {None: 0, "relu": 1}

    def forward(self, x: Tensor) -> Tensor:
        y: Tensor = self.layer(x)
        if self.kind == "pairs":
            one, two = self.pairs.setdefault(len(x), (torch.ones(4), torch.ones(4)))
            return y * one + two
        if self.kind == "numbers":
            return y * self.numbers.setdefault(tuple(x.shape), len(x))
        return y + self.acts[None]


@pytest.mark.parametrize("kind", ["pairs", "numbers", "acts"])
def test_what_is_kept_for_other_sizes_may_come_later(kind: str) -> None:
    model = Warm(kind).eval()
    with torch.no_grad():
        model(torch.rand(8, 4))
        plan = cleave.capture(model, torch.rand(8, 4))
        model(torch.rand(9, 4))
        x = torch.rand(8, 4)
        assert torch.equal(plan(x), model(x))


def test_weights_that_change_between_sizes() -> None:
    """They are packed anew, for whatever size comes first."""
    model = nn.Sequential(
        nn.Conv2d(3, 8, 3), nn.ReLU(), nn.ConvTranspose2d(8, 4, 3), nn.ReLU(), nn.Conv2d(4, 4, 1)
    ).eval()
    with torch.no_grad():
        plan = cleave.capture(
            model, torch.rand(4, 3, 9, 9), dynamic_batch=(1, 8), optimize=Optimize("fast", off=("native",))
        )
        for n in (4, 1, 8):
            x = torch.rand(n, 3, 9, 9)
            torch.testing.assert_close(plan(x), model(x), rtol=1e-4, atol=1e-5)
            model[0].weight.mul_(1.5)
            model[2].weight.add_(0.1)
            torch.testing.assert_close(plan(x), model(x), rtol=1e-4, atol=1e-5)


def test_a_plan_that_is_not_asked_for_does_not_pile_up() -> None:
    model = Warm("pairs").eval()
    model.rows = 0

    def forward(x: Tensor) -> Tensor:
        if model.rows != len(x):
            model.rows = len(x)
            model.table = torch.full((4,), float(len(x)))
        return model.layer(x) + model.table

    model.forward = forward
    model.table = torch.zeros(4)
    with torch.no_grad():
        model(torch.rand(8, 4))
        plan = cleave.capture(model, torch.rand(8, 4), dynamic_batch=(2, 64))
        for n in (9, 8) * 5:
            x = torch.rand(n, 4)
            assert torch.equal(plan(x), model(x))
    assert len(plan._served.dispatch.list()) < 8

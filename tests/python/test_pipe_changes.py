"""Models that are changed after pipe_model: stages do what the model does now, or say what changed."""

from __future__ import annotations

import copy
import random
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from helpers import draw, kept_rng, mentions, observe, rand, same_seen
from torch import Tensor, nn

import cleave
from cleave import PartitionedPlan


def in_sequence(found: PartitionedPlan, *args: Any) -> Any:
    values = found.unpack_inputs(args, {})
    for stage in found.stages:
        values = stage(*values)
    return found.pack_output(values, found.stages[-1].numbers)


def cut(model: nn.Module, make: Callable[[], Any], **options: Any) -> PartitionedPlan:
    options = {"nparts": 2, "profile": "estimate", "partitioning_method": "acyclic", **options}
    return cleave.pipe_model(model, example_inputs=draw(make, 0, False).args, **options)


def same(
    found: PartitionedPlan, model: nn.Module, make: Callable[[], Any], *, grad: bool = True, **flags: bool
) -> None:
    """The stages one after the other against the model as it is; in the mode of the stages where that is another."""
    twin = copy.deepcopy(model)
    if flags:
        twin.train(**flags)
    want = observe(twin, twin, draw(make, 6, False), grad=grad, seed=6)
    got = observe(lambda *a: in_sequence(found, *a), model, draw(make, 6, False), grad=grad, seed=6)
    same_seen(want, got, f"grad {grad}, {flags}")
    model.load_state_dict(twin.state_dict())


class Net(nn.Module):
    """What follows the mode, by modules and by itself; settings; tied weights; buffers."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.drop, self.norm = nn.Linear(4, 4), nn.Dropout(0.5), nn.BatchNorm1d(4)
        self.second, self.last, self.slope = nn.Linear(4, 4), nn.Linear(4, 4), nn.RReLU()
        self.rate = 0.3
        self.register_buffer("shift", torch.randn(4))
        self.register_buffer("table", torch.randn(4), persistent=False)
        self.last.weight = self.first.weight

    def forward(self, x: Tensor) -> Tensor:
        x = self.slope(self.norm(self.drop(self.first(x)))) + self.shift
        x = F.dropout(self.second(x).tanh(), self.rate, self.training)
        if self.training:
            x = x * self.table
        return self.last(x)


FOLLOWED: dict[str, Callable[[Net], Any]] = {
    "eval": lambda net: net.eval(),
    "a part in eval": lambda net: net.norm.eval(),
    "a flag": lambda net: setattr(net, "training", False),
    "a parameter": lambda net: setattr(net.second, "weight", nn.Parameter(torch.randn(4, 4))),
    "a buffer": lambda net: setattr(net.norm, "running_mean", torch.randn(4)),
    "a buffer that is not saved": lambda net: setattr(net, "table", torch.randn(4)),
    "data": lambda net: net.second.weight.data.mul_(2),
    "other data": lambda net: setattr(net.second.weight, "data", torch.randn(4, 4)),
    "a state": lambda net: net.load_state_dict({k: v + 1 for k, v in net.state_dict().items()}),
    "a frozen part": lambda net: net.first.requires_grad_(False),
}
REFUSED: dict[str, tuple[Callable[[Net], Any], str]] = {
    "a rate": (lambda net: setattr(net.drop, "p", 0.1), "p of module drop"),
    "a setting": (lambda net: setattr(net, "rate", 0.1), "rate"),
    "a hook": (lambda net: net.first.register_forward_hook(lambda m, i, o: 2 * o), "hooks of module first"),
    "a hook before": (lambda net: net.last.register_forward_pre_hook(lambda m, i: (2 * i[0],)), "hooks of module last"),
    "a hook behind": (lambda net: net.last.register_full_backward_hook(lambda m, i, o: None), "hooks of module last"),
    "a module": (lambda net: setattr(net, "slope", nn.ReLU()), "slope"),
    "an untied weight": (lambda net: setattr(net.last, "weight", nn.Parameter(torch.randn(4, 4))), "one tensor"),
}


@pytest.mark.parametrize("first", ["used", "new"])
@pytest.mark.parametrize("change", FOLLOWED)
def test_stages_follow_the_model(change: str, first: str) -> None:
    model, make = Net(), rand((5, 4))
    found = cut(model, make)
    if first == "used":
        same(found, model, make)
    FOLLOWED[change](model)
    for grad in (True, False):
        same(found, model, make, grad=grad)
    same(found, model, rand((3, 4)))


@pytest.mark.parametrize("recomputation", [False, True])
@pytest.mark.parametrize("change", REFUSED)
def test_stages_refuse_what_they_cannot_follow(change: str, recomputation: bool) -> None:
    model, make = Net(), rand((5, 4))
    found = cut(model, make, recomputation=recomputation)
    same(found, model, make)
    act, why = REFUSED[change]
    act(model)
    with pytest.raises(cleave.InputError) as error:
        in_sequence(found, *draw(make, 1, False).args)
    mentions(error.value, "stage 0", why)
    with pytest.raises(cleave.InputError) as error:  # at another size as well
        in_sequence(found, *draw(rand((7, 4)), 1, False).args)
    mentions(error.value, "stage 0", why)


def test_the_last_switch_counts() -> None:
    model, make = Net(), rand((5, 4))
    found = cut(model, make)
    for rows in (5, 6):  # a size that was never seen is recorded in the mode of the stages
        for stage in found.stages:
            stage.eval()
        assert not found.stages[0].training
        same(found, model, rand((rows, 4)), mode=False)
        model.eval()
        same(found, model, rand((rows, 4)))
        model.train()
        same(found, model, rand((rows, 4)))
        assert found.stages[0].training
    model.norm.eval()
    same(found, model, make)
    for stage in found.stages:
        stage.eval()
    same(found, model, rand((8, 4)), mode=False)


def test_a_stage_that_is_made_later_has_the_mode_of_the_model() -> None:
    model, make = Net(), rand((5, 4))
    found = cut(model, make)
    model.eval()
    assert not any(stage.training for stage in found.stages)
    same(found, model, make)


def test_a_function_has_the_mode_of_its_modules() -> None:
    net, x = nn.Sequential(nn.Linear(4, 4), nn.Dropout(0.5), nn.Linear(4, 4)), torch.randn(5, 4)
    found = cleave.pipe_model(lambda x: net(x) + 1, example_inputs=x, nparts=2, profile="estimate")
    for mode in (True, False, True):
        for stage in found.stages:
            stage.train(mode)
        torch.manual_seed(1)
        want = copy.deepcopy(net).train(mode)(x) + 1
        torch.manual_seed(1)
        assert torch.equal(in_sequence(found, x), want)


def test_what_is_replaced_in_a_stage_is_replaced_in_the_model() -> None:
    model, make = Net(), rand((5, 4))
    found = cut(model, make)
    (stage,) = (s for s in found.stages if "second.weight" in s.state_dict())
    new = nn.Parameter(torch.randn(4, 4))
    stage.get_submodule("second").weight = new
    in_sequence(found, *draw(make, 1, False).args)
    assert model.second.weight is new
    same(found, model, make)
    stage.load_state_dict({k: v + 1 for k, v in stage.state_dict().items()}, assign=True)
    model.last.weight = model.first.weight  # an assigned state has them as two, in eager too
    stage.get_submodule("second").weight = nn.Parameter(torch.randn(4, 4))
    model.second.weight = nn.Parameter(torch.randn(4, 4))
    with pytest.raises(cleave.InputError, match="in the model and by another in the stage"):
        in_sequence(found, *draw(make, 1, False).args)


def test_hooks_inside_a_stage_are_refused_where_they_are_registered() -> None:
    found = cut(Net(), rand((5, 4)))
    seen = []
    found.stages[0].register_forward_hook(lambda *_: seen.append(0))
    with pytest.raises(cleave.SplitError, match="hook"):
        found.stages[0].get_submodule("first").register_forward_hook(lambda *_: None)
    in_sequence(found, *draw(rand((5, 4)), 1, False).args)
    assert seen


# ---- parameters ---------------------------------------------------------------------------------------------


ASKED: dict[str, Callable[[Sequence[nn.Module]], Any]] = {
    "one by one": lambda stages: (p for stage in stages for p in stage.parameters()),
    "groups": lambda stages: [{"params": list(stage.parameters())} for stage in stages],
    "named": lambda stages: [item for stage in stages for item in stage.named_parameters()],
}


@pytest.mark.filterwarnings("error:optimizer contains a parameter group with duplicate")
@pytest.mark.parametrize("asked", ASKED)
@pytest.mark.parametrize("kind", [torch.optim.AdamW, torch.optim.SGD])
def test_a_parameter_of_two_stages_is_stepped_once(kind: type[torch.optim.Optimizer], asked: str) -> None:
    model, make = Net(), rand((5, 4))
    twin = copy.deepcopy(model)
    found = cut(model, make)
    assert sum("first.weight" in s.state_dict() for s in found.stages) == 2
    mine, other = kind(ASKED[asked](found.stages), lr=0.1), kind(twin.parameters(), lr=0.1)  # type: ignore[call-arg]
    for seed in range(3):
        for optimizer, call in ((other, twin), (mine, lambda x: in_sequence(found, x))):
            optimizer.zero_grad()
            torch.manual_seed(seed)
            call(torch.randn(5, 4)).square().mean().backward()
            optimizer.step()
        for (name, a), b in zip(twin.state_dict().items(), model.state_dict().values(), strict=True):
            assert torch.equal(a, b), name


def test_a_stage_that_is_alone_lists_all_that_it_has() -> None:
    model, make = Net(), rand((5, 4))
    found = cut(model, make)
    alone = found.stage(1)
    assert any(p is model.first.weight for p in alone.parameters())
    assert not any(p is model.first.weight for p in found.stage(0).parameters())
    listed = [p for stage in found.stages for p in stage.parameters()]
    assert len(listed) == len(set(map(id, listed))) == len(list(model.parameters()))
    everything = dict(found.stage(0).named_parameters(remove_duplicate=False))
    assert everything["first.weight"] is model.first.weight
    found.stage(0).requires_grad_(False)
    assert not model.first.weight.requires_grad
    assert model.last.bias.requires_grad
    model.requires_grad_(True)
    in_sequence(found, *draw(make, 1, False).args).sum().backward()
    found.stage(0).zero_grad()
    assert model.first.weight.grad is None
    assert model.last.bias.grad is not None


def test_states_of_stages_are_the_state_of_the_model() -> None:
    model, make = Net(), rand((5, 4))
    found = cut(model, make)
    gathered = {k: v.clone() for stage in found.stages for k, v in stage.state_dict().items()}
    assert gathered.keys() == model.state_dict().keys()
    other = Net()
    other.load_state_dict(gathered)
    other.table = model.table
    twin = copy.deepcopy(model)
    with torch.no_grad():
        for p in model.parameters():
            p.zero_()
    for stage in found.stages:
        stage.load_state_dict({k: gathered[k] for k in stage.state_dict()})
    for name, t in twin.state_dict().items():
        assert torch.equal(t, model.state_dict()[name]), name
    model.second.weight = nn.Parameter(torch.randn(4, 4))  # listed and saved before it is used
    gathered = {k: v for stage in found.stages for k, v in stage.state_dict().items()}
    assert torch.equal(gathered["second.weight"], model.second.weight)
    assert any(p is model.second.weight for stage in found.stages for p in stage.parameters())


# ---- random models, random changes --------------------------------------------------------------------------


class Random(nn.Module):
    """Layers that a seed picks; some are used twice, some read the mode."""

    def __init__(self, seed: int) -> None:
        super().__init__()
        pick = random.Random(seed)
        made = [self._layer(pick) for _ in range(pick.randint(4, 7))]
        self.layers = nn.ModuleList([nn.Linear(4, 4), *made, nn.Linear(4, 4)])
        self.order = [*range(len(self.layers)), *(pick.randrange(len(self.layers)) for _ in range(pick.randint(0, 2)))]
        self.rate = pick.choice([0.0, 0.3])
        self.plain = pick.random() < 0.5
        if pick.random() < 0.5:
            self.layers[-1].weight = self.layers[0].weight

    @staticmethod
    def _layer(pick: random.Random) -> nn.Module:
        kinds: list[Callable[[], nn.Module]] = [
            lambda: nn.Linear(4, 4),
            lambda: nn.Dropout(0.4),
            lambda: nn.AlphaDropout(0.2),
            lambda: nn.BatchNorm1d(4),
            lambda: nn.RReLU(),
            lambda: nn.LayerNorm(4),
            lambda: nn.Sequential(nn.Linear(4, 4), nn.Tanh(), nn.Dropout(0.3)),
        ]
        return pick.choice(kinds)()

    def forward(self, x: Tensor) -> Tensor:
        for k in self.order:
            x = self.layers[k](x) + (0.1 * x if self.plain else 0)
        return F.dropout(x, self.rate, self.training)


def changes(model: Random, found: PartitionedPlan, pick: random.Random) -> Iterator[tuple[str, Callable[[], Any]]]:
    """What is done, and what undoes it where it is refused."""
    modules = [m for m in model.modules() if m is not model and not list(m.children())]
    linear = pick.choice([m for m in modules if isinstance(m, nn.Linear)])
    drops = [m for m in modules if isinstance(m, nn.Dropout)]
    one = pick.choice(modules)
    yield "mode", lambda: model.train(pick.random() < 0.5)
    yield "mode of a part", lambda: one.train(not one.training)
    yield "parameter", lambda: setattr(linear, "bias", nn.Parameter(torch.randn(4)))
    yield "frozen", lambda: linear.requires_grad_(not linear.bias.requires_grad)
    yield "data", lambda: linear.weight.data.mul_(1.5)
    yield "mode of the stages", lambda: [stage.train(not model.training) for stage in found.stages]
    yield "hook", lambda: one.register_forward_hook(lambda m, i, o: o * 2)
    yield "hook behind", lambda: linear.register_full_backward_hook(lambda m, i, o: None)
    if drops:
        yield "rate", lambda: setattr(drops[0], "p", drops[0].p + 0.1)
    if model.rate:
        yield "setting", lambda: setattr(model, "rate", model.rate + 0.1)


NOT_FOLLOWED = {"hook", "hook behind", "rate", "setting"}  # but a mode that was not met before is captured with them


def run_changes(seed: int, steps: int) -> None:
    with kept_rng():
        torch.manual_seed(seed)
        pick = random.Random(seed)
        model = Random(seed).train(pick.random() < 0.7)
        try:
            found = cut(model, rand((4, 4)), nparts=pick.randint(1, 3), recomputation=pick.random() < 0.3)
        except cleave.SplitError as error:
            mentions(error, "fewer than nparts")
            return
        done = []
        for _ in range(steps):
            what, act = pick.choice(list(changes(model, found, pick)))
            act()
            done.append(what)
            rows, grad = pick.choice([4, 4, 2, 5]), pick.random() < 0.7
            flags = {} if found.stages[0].training == model.training else {"mode": not model.training}
            try:
                same(found, model, rand((rows, 4)), grad=grad, **flags)
            except cleave.CaptureError as error:
                mentions(error, "gradient hook")
                if "hook behind" not in done:
                    raise
                return
            except cleave.InputError as error:
                mentions(error, "changed after the plan was captured")
                if not NOT_FOLLOWED.intersection(done):
                    raise
                return


@pytest.mark.parametrize("seed", range(12))
def test_random_models_that_are_changed(seed: int) -> None:
    run_changes(seed, 6)


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(100, 400))
def test_many_random_models_that_are_changed(seed: int) -> None:
    run_changes(seed, 10)

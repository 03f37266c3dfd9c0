"""Models that install things on their first forward: hooks, wrapped methods, sub-modules, flags wherever they are kept.

A capture of one that never ran leaves it as it was, and is the capture of one that ran before."""

from __future__ import annotations

import copy
import functools
import weakref
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn.modules import module as torch_module
from torch.nn.parameter import UninitializedParameter

import cleave
from cleave import CaptureError, InputError, SplitSpec


def twice(module: Any, args: Any, out: Tensor) -> Tensor:
    return out * 2


class Base(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.one, self.two = nn.Linear(4, 4), nn.Linear(4, 4)
        self.requires_grad_(False)

    def forward(self, x: Tensor) -> Any:
        self.install()
        return self.two(self.one(x).relu())

    def install(self) -> None:
        raise NotImplementedError


class Hooks(Base):
    """A flag on the model says whether hooks are installed, as transformers has it."""

    def install(self) -> None:
        if not getattr(self, "_hooked", False):
            self.one.register_forward_hook(twice)
            self.two.register_forward_pre_hook(lambda m, args: (args[0] + 1,))
            self._hooked = True


class HooksByTable(Base):
    """No flag: it looks whether there are any."""

    def install(self) -> None:
        if not self.one._forward_hooks:
            self.one.register_forward_hook(functools.partial(twice), prepend=True)


def flag_of_the_class() -> Base:
    class FlagOfTheClass(Base):
        ready = False

        def install(self) -> None:
            if not type(self).ready:
                type(self).ready = True
                self.one.register_forward_hook(twice)

    return FlagOfTheClass()


def once(install: Callable[[Any], None]) -> Callable[[Any], None]:
    done = {"it": False}

    @functools.wraps(install)
    def wrapper(self: Any) -> None:
        if not done["it"]:
            done["it"] = True
            install(self)

    return wrapper


def once_by_name(install: Callable[[Any], None]) -> Callable[[Any], None]:
    done = False

    def wrapper(self: Any) -> None:
        nonlocal done
        if not done:
            done = True
            install(self)

    return wrapper


def flag_of_a_decorator() -> Base:
    class Decorated(Base):
        @once
        def install(self) -> None:
            self.one.register_forward_hook(twice)

    return Decorated()


def variable_of_a_decorator() -> Base:
    class Decorated(Base):
        @once_by_name
        def install(self) -> None:
            self.one.register_forward_hook(twice)

    return Decorated()


class WrappedForward(Base):
    def install(self) -> None:
        if "forward" not in vars(self.one):
            original = self.one.forward
            self.one.forward = lambda x: original(x) * 3


class WrappedMethod(Base):
    def helper(self, x: Tensor) -> Tensor:
        return x + 1

    def install(self) -> None:
        if not hasattr(self, "_wrapped"):
            original, self._wrapped = self.helper, True
            self.helper = lambda x: original(x) * 3

    def forward(self, x: Tensor) -> Any:
        self.install()
        return self.helper(self.one(x))


class ModuleWithoutParameters(Base):
    def install(self) -> None:
        if not hasattr(self, "act"):
            self.act = nn.Tanh()

    def forward(self, x: Tensor) -> Any:
        out = super().forward(x)
        return self.act(out)


class ModuleWithParameters(Base):
    """Always the same ones."""

    def install(self) -> None:
        if not hasattr(self, "last"):
            self.last = nn.Sequential(nn.Linear(4, 4, bias=False), nn.ReLU())
            nn.init.eye_(self.last[0].weight)
            self.last.requires_grad_(False)

    def forward(self, x: Tensor) -> Any:
        out = super().forward(x)
        return self.last(out) * self.last[0].weight.sum()


class ParameterAdded(Base):
    def install(self) -> None:
        if "scale" not in self._parameters:
            self.register_parameter("scale", nn.Parameter(torch.full((4,), 3.0), requires_grad=False))
            self.register_buffer("shift", torch.ones(4))

    def forward(self, x: Tensor) -> Any:
        out = super().forward(x)
        return out * self.scale + self.shift


class AttributesAdded(Base):
    def install(self) -> None:
        if not hasattr(self, "factor"):
            self.factor, self.table, self.listed = 3, torch.arange(4.0), [1, 2]

    def forward(self, x: Tensor) -> Any:
        out = super().forward(x)
        return out * self.factor + self.table * sum(self.listed)


class Everything(Base):
    def install(self) -> None:
        if not hasattr(self, "act"):
            self.act, self.k = nn.Tanh(), 2
            self.table = torch.arange(4.0)
            self.one.register_forward_hook(twice)
            original = self.two.forward
            self.two.forward = lambda x: original(x) + self.k

    def forward(self, x: Tensor) -> Any:
        out = super().forward(x)
        return self.act(out) + self.table


class CollectsOutputs(Base):
    """As transformers collects hidden states: hooks that fill a list for as long as a forward runs."""

    def install(self) -> None:
        if not getattr(self, "_hooked", False):
            for child in (self.one, self.two):
                child.register_forward_hook(lambda m, args, out: self.collected.append(out))
            self._hooked = True

    def forward(self, x: Tensor) -> Any:
        self.collected: list[Tensor] = []
        out = super().forward(x)
        states = tuple(self.collected)
        del self.collected
        return out, states


MODELS: dict[str, Callable[[], Base]] = {
    "hooks": Hooks,
    "hooks by their table": HooksByTable,
    "flag of the class": flag_of_the_class,
    "flag of a decorator": flag_of_a_decorator,
    "variable of a decorator": variable_of_a_decorator,
    "wrapped forward": WrappedForward,
    "wrapped method": WrappedMethod,
    "module without parameters": ModuleWithoutParameters,
    "module with parameters": ModuleWithParameters,
    "parameter added": ParameterAdded,
    "attributes added": AttributesAdded,
    "everything": Everything,
    "collected outputs": CollectsOutputs,
}


def _flat(out: Any) -> list[Tensor]:
    return [out] if isinstance(out, Tensor) else [t for item in out for t in _flat(item)]


def _equal(a: Any, b: Any) -> bool:
    return len(_flat(a)) == len(_flat(b)) and all(map(torch.equal, _flat(a), _flat(b)))


def _state(model: nn.Module) -> dict[str, Any]:
    """All that a first forward may leave behind."""
    found: dict[str, Any] = {"class": dict(vars(type(model)))}
    for path, module in model.named_modules():
        for key, value in vars(module).items():
            found[f"{path}.{key}"] = dict(value) if isinstance(value, dict) else value
    return found


def _pair(make: Callable[[], Base]) -> tuple[Base, Base]:
    """A model that never ran, and one that did."""
    torch.manual_seed(0)
    cold = make().eval()
    torch.manual_seed(0)
    warm = make().eval()
    return cold, warm


@pytest.mark.parametrize("what", MODELS)
@pytest.mark.parametrize("dynamic", [None, (1, 8)], ids=["one size", "sizes"])
def test_a_model_that_never_ran_is_as_it_was_and_captures_as_one_that_did(what: str, dynamic: Any) -> None:
    cold, warm = _pair(MODELS[what])
    x, y = torch.rand(3, 4), torch.rand(3, 4)
    with torch.no_grad():
        before = _state(cold)
        plan = cleave.capture(cold, x, dynamic_batch=dynamic)
        assert _state(cold) == before
        assert _equal(plan(x), plan(x))
        for data in (x, y):
            assert _equal(plan(data), warm(data))
        for data in (x, y):
            assert _equal(cold(data), plan(data)), "the model runs for the first time, then again"
        if dynamic:
            z = torch.rand(5, 4)
            assert _equal(plan(z), cold(z))


@pytest.mark.parametrize("what", MODELS)
def test_a_split_of_a_model_that_never_ran(what: str) -> None:
    cold, _ = _pair(MODELS[what])
    x = torch.rand(3, 4)
    before = _state(cold)
    spec = SplitSpec(boundary="after:one", dynamic_batch=(1, 8))
    runtime = cleave.prepare_split(cold, example_inputs=x, split=spec)
    assert _state(cold) == before
    for _ in range(2):
        out = runtime.run_suffix(runtime.run_prefix(x))
        with torch.no_grad():
            assert _equal(out, cold(x))


def test_the_plan_has_the_names_of_modules_that_the_first_forward_makes() -> None:
    plan = cleave.capture(ModuleWithParameters().eval(), torch.rand(3, 4))
    assert any(node.module_path == "last.0" for node in plan.nodes)


def test_parameters_of_a_module_that_the_first_forward_made_are_read_by_each_run() -> None:
    model, x = ModuleWithParameters().eval(), torch.rand(3, 4)
    with torch.no_grad():
        plan = cleave.capture(model, x)
        assert torch.equal(plan(x), model(x))
        model.last[0].weight.mul_(3)
        assert torch.equal(plan(x), model(x))
        model.last[0].weight = nn.Parameter(torch.rand(4, 4), requires_grad=False)
        assert torch.equal(plan(x), model(x))
        model.last[1].register_forward_hook(twice)
        with pytest.raises(InputError, match="capture the model again"):
            plan(x)


@pytest.mark.parametrize("what", ["hooks", "wrapped forward", "everything"])
def test_what_is_changed_of_what_was_installed_is_noticed(what: str) -> None:
    for warm_first in (False, True):
        model, _ = _pair(MODELS[what])
        x = torch.rand(3, 4)
        with torch.no_grad():
            plan = cleave.capture(model, x)
            if warm_first:
                model(x)
            model.one.register_forward_hook(lambda m, args, out: out * 5)
            with pytest.raises(InputError, match="capture the model again"):
                plan(x)


def test_hooks_that_are_taken_off_again_are_noticed() -> None:
    model, x = Hooks().eval(), torch.rand(3, 4)
    with torch.no_grad():
        plan = cleave.capture(model, x)
        assert torch.equal(plan(x), model(x))
        model.one._forward_hooks.clear()
        with pytest.raises(InputError, match="capture the model again"):
            plan(x)


def test_parameters_that_the_first_forward_draws_are_refused() -> None:
    class Drawn(Base):
        def install(self) -> None:
            if not hasattr(self, "last"):
                self.last = nn.Linear(4, 4).requires_grad_(False)

        def forward(self, x: Tensor) -> Any:
            out = super().forward(x)
            return self.last(out)

    model, x = Drawn().eval(), torch.rand(3, 4)
    before = _state(model)
    with torch.no_grad():
        with pytest.raises(CaptureError, match=r"first forward.*last.*run the model once"):
            cleave.capture(model, x)
        assert _state(model) == before
        model(x)
        assert torch.equal(cleave.capture(model, x)(x), model(x))


def test_a_model_that_does_something_else_from_its_second_call_on() -> None:
    class Late(Base):
        def install(self) -> None:
            pass

        def forward(self, x: Tensor) -> Any:
            out = super().forward(x)
            if not self.one._forward_hooks:
                self.one.register_forward_hook(twice)
            return out

    model, x = Late().eval(), torch.rand(3, 4)
    with torch.no_grad(), pytest.raises(CaptureError, match="run the model once"):
        cleave.capture(model, x)
    assert not model.one._forward_hooks


_hooked: weakref.WeakSet[Any] = weakref.WeakSet()


def test_what_is_remembered_where_nobody_can_put_it_back_stays_installed() -> None:
    class Registered(Base):
        def install(self) -> None:
            if self not in _hooked:
                _hooked.add(self)
                self.one.register_forward_hook(twice)

    cold, warm = _pair(Registered)
    x = torch.rand(3, 4)
    with torch.no_grad():
        plan = cleave.capture(cold, x)
        want = warm(x)
        assert torch.equal(plan(x), want)
        assert torch.equal(cold(x), want)
        assert torch.equal(cold(x), plan(x))


def test_hooks_for_all_modules() -> None:
    class Global(Base):
        def install(self) -> None:
            if not getattr(self, "_hooked", False):
                self._hooked = True
                torch_module.register_module_forward_hook(
                    lambda m, args, out: out * 2 if isinstance(m, nn.Linear) else None
                )

    model, x = Global().eval(), torch.rand(3, 4)
    before = dict(torch_module._global_forward_hooks)
    try:
        with torch.no_grad():
            plan = cleave.capture(model, x)
            assert dict(torch_module._global_forward_hooks) == before
            want = plan(x)
            assert torch.equal(want, model(x))
            assert torch.equal(want, plan(x))
    finally:
        torch_module._global_forward_hooks.clear()


def test_parameters_without_a_shape_are_refused_before_anything_happens() -> None:
    class Late(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.w = UninitializedParameter()

        def forward(self, x: Tensor) -> Tensor:
            if isinstance(self.w, UninitializedParameter):
                self.w.materialize((x.shape[1],))
                nn.init.ones_(self.w)
            return x * self.w

    model = Late()
    with pytest.raises(CaptureError, match=r"w has no shape yet.*run the model once"):
        cleave.capture(model, torch.rand(3, 4))
    assert isinstance(model.w, UninitializedParameter)
    lazy = nn.Sequential(nn.LazyLinear(4), nn.ReLU())
    with pytest.raises(CaptureError, match=r"module 0 is lazy.*run the model once"):
        cleave.capture(lazy, torch.rand(3, 4))
    assert lazy[0].has_uninitialized_params()


def test_a_deep_copy_after_a_capture_is_still_a_model_that_never_ran() -> None:
    model, x = Hooks().eval(), torch.rand(3, 4)
    with torch.no_grad():
        plan = cleave.capture(model, x)
        other = copy.deepcopy(model)
        assert torch.equal(other(x), plan(x))
        assert torch.equal(other(x), model(x))

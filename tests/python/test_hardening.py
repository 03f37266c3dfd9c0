"""Behaviour that must stay: what changes behind a plan is noticed, what a capture touches is put back."""

from __future__ import annotations

import contextlib
import copy
import gc
import importlib.util
import pickle
import subprocess
import sys
import time
import types
import weakref
from collections import deque
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from helpers import mentions, must_replay, rand, same_tree
from torch import Tensor, nn
from torch.utils import _pytree
from torch.utils._python_dispatch import TorchDispatchMode

import cleave
from cleave import CaptureError, CleaveError, GuardError, InputError


@pytest.fixture(autouse=True)
def _seed() -> None:
    torch.manual_seed(0)


class Base(nn.Module):
    """A linear layer and whatever a test's forward needs beside it."""

    def __init__(self) -> None:
        super().__init__()
        self.lin = nn.Linear(4, 4)


def _x() -> Tensor:
    return torch.randn(3, 4)


# ---- sizes that come from the data -------------------------------------------------------------------------


def test_packed_sequences_with_other_lengths_are_a_guard_error() -> None:
    class Packed(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.gru = nn.GRU(4, 5, batch_first=True)

        def forward(self, x: Tensor, lengths: Tensor) -> Tensor:
            packed = nn.utils.rnn.pack_padded_sequence(x, lengths, batch_first=True, enforce_sorted=False)
            return nn.utils.rnn.pad_packed_sequence(self.gru(packed)[0], batch_first=True, total_length=6)[0]

    model = Packed().eval()
    lengths = torch.tensor([6, 4, 2])
    with torch.no_grad():
        plan = cleave.capture(model, (torch.randn(3, 6, 4), lengths))
        x = torch.randn(3, 6, 4)
        assert torch.equal(plan(x, lengths), model(x, lengths))
        for same in ([2, 6, 4], [6, 5, 1], [3, 6, 3]):  # as many steps in all, and the longest as long
            assert torch.equal(plan(x, torch.tensor(same)), model(x, torch.tensor(same)))
        for other in ([3, 3, 3], [5, 5, 2], [6, 6, 6], [1, 1, 1]):
            with pytest.raises(GuardError):
                plan(x, torch.tensor(other))


def test_a_sparse_tensor_sized_by_its_indices_is_a_guard_error_on_other_sizes() -> None:
    def fn(i: Tensor, v: Tensor) -> Tensor:
        return torch.sparse_coo_tensor(i, v).to_dense() * 2

    plan = cleave.capture(fn, (torch.tensor([[0, 1, 3]]), torch.rand(3)))
    v = torch.rand(3)
    assert torch.equal(plan(torch.tensor([[3, 0, 2]]), v), fn(torch.tensor([[3, 0, 2]]), v))
    with pytest.raises(GuardError):
        plan(torch.tensor([[0, 1, 2]]), v)
    with pytest.raises(GuardError):
        plan(torch.tensor([[0, 1, 7]]), v)


# ---- what requires grad ------------------------------------------------------------------------------------


@pytest.mark.parametrize("grad", [False, True])
def test_parameters_frozen_after_capture_give_what_eager_gives(grad: bool) -> None:
    model = nn.TransformerEncoderLayer(8, 2, 16, batch_first=True).eval()
    x = torch.randn(2, 5, 8)
    with torch.set_grad_enabled(grad):
        plan = cleave.capture(model, x)
        for frozen in (True, False):
            model.requires_grad_(not frozen)
            y = torch.randn(2, 5, 8)
            same_tree(model(y), plan(y), f"frozen={frozen}")


@pytest.mark.parametrize("grad", [False, True])
def test_an_input_that_requires_grad_only_later_gives_what_eager_gives(grad: bool) -> None:
    model = nn.TransformerEncoderLayer(8, 2, 16, batch_first=True).eval().requires_grad_(False)
    with torch.set_grad_enabled(grad):
        plan = cleave.capture(model, torch.randn(2, 5, 8))
        for needed in (True, False, True):
            x = torch.randn(2, 5, 8)
            a, b = x.clone().requires_grad_(needed), x.clone().requires_grad_(needed)
            want, got = model(a), plan(b)
            same_tree(want, got, f"requires_grad={needed}")
            if want.requires_grad:
                want.sum().backward()
                got.sum().backward()
                assert torch.equal(a.grad, b.grad)


# ---- inputs that the forward changes -----------------------------------------------------------------------


def test_a_forward_that_adds_to_an_input_dict_is_refused_by_name() -> None:
    def fn(cache: dict[str, Tensor], x: Tensor) -> Tensor:
        cache["k"] = x * 2
        return x + 1

    given = {"a": _x()}
    with pytest.raises(CaptureError) as caught:
        cleave.capture(fn, (given, _x()))
    mentions(caught.value, "container", "input", "dict")
    assert list(given) == ["a"]


def test_a_forward_that_replaces_an_item_of_an_input_dict_is_refused() -> None:
    def fn(cache: dict[str, Tensor], x: Tensor) -> Tensor:
        cache["a"] = x * 2
        return x + cache["a"]

    with pytest.raises(CaptureError) as caught:
        cleave.capture(fn, ({"a": _x()}, _x()))
    mentions(caught.value, "container", "'a'")


def test_a_forward_that_appends_to_an_input_list_is_refused_by_name() -> None:
    def fn(seen: list[Tensor], x: Tensor) -> Tensor:
        seen.append(x * 2)
        return x + 1

    given: list[Tensor] = [_x()]
    with pytest.raises(CaptureError) as caught:
        cleave.capture(fn, (given, _x()))
    mentions(caught.value, "container", "list")
    assert len(given) == 1


def test_a_forward_that_changes_a_number_in_an_input_dict_is_refused() -> None:
    def fn(options: dict[str, int], x: Tensor) -> Tensor:
        options["calls"] += 1
        return x + 1

    with pytest.raises(CaptureError) as caught:
        cleave.capture(fn, ({"calls": 0}, _x()))
    mentions(caught.value, "calls")


# ---- state that only Python holds --------------------------------------------------------------------------


def test_a_python_counter_on_the_module_is_refused_by_name() -> None:
    class Counter(Base):
        def __init__(self) -> None:
            super().__init__()
            self.n = 0

        def forward(self, x: Tensor) -> Tensor:
            self.n += 1
            return self.lin(x)

    model = Counter()
    with pytest.raises(CaptureError) as caught:
        cleave.capture(model, _x())
    mentions(caught.value, "'n'")
    assert model.n == 0


def test_a_python_counter_in_a_helper_object_is_refused_by_name() -> None:
    class Counter(Base):
        def __init__(self) -> None:
            super().__init__()
            self.stats = types.SimpleNamespace(calls=0)

        def forward(self, x: Tensor) -> Tensor:
            self.stats.calls += 1
            return self.lin(x)

    model = Counter()
    with pytest.raises(CaptureError) as caught:
        cleave.capture(model, _x())
    mentions(caught.value, "stats", "calls")
    assert model.stats.calls == 0


def test_a_tensor_kept_where_none_was_is_kept_by_the_plan() -> None:
    class Keeper(Base):
        def __init__(self) -> None:
            super().__init__()
            self.last: Any = None

        def forward(self, x: Tensor) -> Tensor:
            self.last = self.lin(x)
            return self.last * 2

    model = Keeper()
    with torch.no_grad():
        plan = cleave.capture(model, _x())
        assert model.last is None
        for _ in range(2):
            x = _x()
            got = plan(x)
            kept = model.last
            want = model(x)
            same_tree([want, model.last], [got, kept], "kept")


def test_a_tensor_kept_in_a_dict_item_is_kept_by_the_plan() -> None:
    class Keeper(Base):
        def __init__(self) -> None:
            super().__init__()
            self.features: dict[str, Tensor] = {}

        def forward(self, x: Tensor) -> Tensor:
            self.features["last"] = self.lin(x)
            return self.features["last"] * 2

    model = Keeper()
    with torch.no_grad():
        plan = cleave.capture(model, _x())
        assert model.features == {}
        for _ in range(2):
            x = _x()
            got = plan(x)
            kept = model.features["last"]
            want = model(x)
            same_tree([want, model.features["last"]], [got, kept], "kept")


def _add_one(model: Any, key: Any) -> int:
    model.state[key] += 1
    return model.state[key]


def _append_and_count(model: Any) -> int:
    model.state.append(0)
    return len(model.state)


def _add_and_count(model: Any) -> int:
    model.state.add(len(model.state))
    return len(model.state)


def _count_in_slots(model: Any) -> int:
    model.state.n += 1
    return 1 + model.state.n // 4


def _count_in_array(model: Any) -> int:
    model.state[0] += 1
    return 1 + int(model.state[0]) // 4


class Slots:
    __slots__ = ("n",)

    def __init__(self) -> None:
        self.n = 0


@pytest.mark.parametrize(
    ("state", "step"),
    [
        pytest.param(lambda: {"k": 0}, lambda m: _add_one(m, "k"), id="item of a dict"),
        pytest.param(lambda: (0,), lambda m: setattr(m, "state", (m.state[0] + 1,)) or m.state[0], id="tuple"),
        pytest.param(lambda: [0], lambda m: _add_one(m, 0), id="item of a list"),
        pytest.param(lambda: {0: 0}, lambda m: _add_one(m, 0), id="item of a dict with a number as key"),
        pytest.param(lambda: {"a": [0]}, lambda m: m.state["a"].append(0) or len(m.state["a"]), id="nested"),
        pytest.param(list, _append_and_count, id="length of a list"),
        pytest.param(deque, _append_and_count, id="length of a deque"),
        pytest.param(set, _add_and_count, id="size of a set"),
        pytest.param(Slots, _count_in_slots, id="slots"),
        pytest.param(lambda: np.zeros(1), _count_in_array, id="array"),
    ],
)
def test_a_python_number_that_every_call_changes_never_gives_old_results(
    state: Callable[[], Any], step: Callable[[Any], int]
) -> None:
    class Stepping(Base):
        def __init__(self) -> None:
            super().__init__()
            self.state = state()

        def forward(self, x: Tensor) -> Tensor:
            return self.lin(x) * step(self)

    model, twin = Stepping(), Stepping()
    twin.load_state_dict(model.state_dict())
    with torch.no_grad():
        try:
            plan = cleave.capture(model, _x())
        except CaptureError:
            return
        for call in range(8):
            x = _x()
            same_tree(twin(x), plan(x), f"call {call}")


def _keep_previous(model: Any, y: Tensor) -> Tensor:
    before, model.state[0] = model.state[0], y
    return y if before is None else y + before


def _keep_last(model: Any, y: Tensor) -> Tensor:
    model.state[0] = y
    return y * 2


def _average(model: Any, y: Tensor) -> Tensor:
    model.state[0] = model.state[0] * 0.5 + y.mean(0)
    return y + model.state[0]


def _swap(model: Any, y: Tensor) -> Tensor:
    model.state[0], model.state[1] = model.state[1], model.state[0]
    return y + model.state[0]


def _window(model: Any, y: Tensor) -> Tensor:
    model.state.append(y)
    return torch.stack(list(model.state)).sum(0)


@pytest.mark.parametrize(
    ("state", "step"),
    [
        pytest.param(lambda: [None], _keep_previous, id="the one before, in a list"),
        pytest.param(lambda: [None], _keep_last, id="the last one, in a list"),
        pytest.param(lambda: {0: None}, _keep_last, id="the last one, in a dict with numbers as keys"),
        pytest.param(lambda: [torch.zeros(4)], _average, id="an average in a list"),
        pytest.param(lambda: {0: torch.zeros(4)}, _average, id="an average in a dict with numbers as keys"),
        pytest.param(lambda: [torch.zeros(4), torch.ones(4)], _swap, id="two that are swapped in a list"),
        pytest.param(
            lambda: deque([torch.zeros(3, 4)] * 2, maxlen=2), _window, id="a window of the last ones, in a deque"
        ),
    ],
)
def test_a_tensor_kept_in_a_container_is_that_of_eager_or_refused(
    state: Callable[[], Any], step: Callable[[Any, Tensor], Tensor]
) -> None:
    class Keeping(Base):
        def __init__(self) -> None:
            super().__init__()
            self.state = state()

        def forward(self, x: Tensor) -> Tensor:
            return step(self, self.lin(x))

    model, twin = Keeping(), Keeping()
    twin.load_state_dict(model.state_dict())
    with torch.no_grad():
        try:
            plan = cleave.capture(model, _x())
        except CaptureError:
            return
        for call in range(5):
            x = _x()
            same_tree(twin(x), plan(x), f"call {call}")
            kept = [c.state if isinstance(c.state, dict) else list(c.state) for c in (twin, model)]
            same_tree(kept[0], kept[1], f"kept after call {call}")


def test_a_list_that_grows_in_every_call_is_refused_by_name() -> None:
    class Grower(Base):
        def __init__(self) -> None:
            super().__init__()
            self.seen: list[Tensor] = []

        def forward(self, x: Tensor) -> Tensor:
            self.seen.append(x.mean())
            return self.lin(x)

    model = Grower()
    with pytest.raises(CaptureError) as caught:
        cleave.capture(model, _x())
    mentions(caught.value, "seen")
    assert model.seen == []


# ---- the model changes after capture -----------------------------------------------------------------------


class Net(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.body = nn.Sequential(nn.Linear(4, 4), nn.LayerNorm(4), nn.Dropout(0.5))
        self.head = nn.Linear(4, 2)

    def forward(self, x: Tensor) -> Tensor:
        return self.head(self.body(x).relu())


def _add_hook(net: Net) -> None:
    net.head.register_forward_hook(lambda module, args, out: out * 2)


def _add_pre_hook(net: Net) -> None:
    net.register_forward_pre_hook(lambda module, args: (args[0] * 2,))


def _change_p(net: Net) -> None:
    net.body[2].p = 0.25


def _change_eps(net: Net) -> None:
    net.body[1].eps = 0.5


def _append(net: Net) -> None:
    net.body.append(nn.Tanh())


def _patch(net: Net) -> None:
    net.head.forward = lambda x: x[:, :2]  # type: ignore[method-assign]


def _patch_root(net: Net) -> None:
    net.forward = lambda x: x[:, :2]  # type: ignore[method-assign]


def _replace(net: Net) -> None:
    net.head = nn.Linear(4, 2)


def _remove_bias(net: Net) -> None:
    net.head.bias = None


def _delete(net: Net) -> None:
    del net.body[1]


@pytest.mark.parametrize("train", [False, True])
@pytest.mark.parametrize(
    "change",
    [_add_hook, _add_pre_hook, _change_p, _change_eps, _append, _patch, _patch_root, _replace, _remove_bias, _delete],
)
def test_a_change_of_the_model_after_capture_is_noticed(change: Callable[[Net], None], train: bool) -> None:
    net = Net().train(train)
    with torch.no_grad():
        plan = cleave.capture(net, _x())
        plan(_x())
        change(net)
        with pytest.raises(InputError) as caught:
            plan(_x())
    assert len(str(caught.value).split()) > 3


class DerivedWeights(Base):
    """In eval mode a weight computed once is used; train() throws it away."""

    def __init__(self) -> None:
        super().__init__()
        self.cache: dict[str, Tensor] = {}

    def train(self, mode: bool = True) -> DerivedWeights:
        self.cache = {}
        return super().train(mode)

    def forward(self, x: Tensor) -> Tensor:
        if self.training:
            return x @ self.lin.weight.exp()
        if "w" not in self.cache:
            self.cache["w"] = self.lin.weight.exp().detach()
        return x @ self.cache["w"]


def test_a_cache_of_derived_weights_that_train_replaces_is_noticed() -> None:
    model = DerivedWeights().eval()
    with torch.no_grad():
        model(_x())
        plan = cleave.capture(model, _x())
        x = _x()
        assert torch.equal(plan(x), model(x))
        model.train()
        model.lin.weight.mul_(2)
        model.eval()
        with pytest.raises(InputError):
            plan(x)


def test_a_cache_of_derived_weights_that_is_empty_at_capture_never_gives_old_numbers() -> None:
    model = DerivedWeights().eval()
    with torch.no_grad():
        try:
            plan = cleave.capture(model, _x())
        except CaptureError:
            return
        assert model.cache == {}
        x = _x()
        assert torch.equal(plan(x), model(x))
        model.train()
        model.lin.weight.mul_(2)
        model.eval()
        try:
            got = plan(x)
        except CleaveError:
            return
        assert torch.equal(got, model(x))


class Student(Base):
    """Its teacher is no child."""

    def __init__(self) -> None:
        super().__init__()
        self.teachers = [nn.Sequential(nn.Linear(4, 4), nn.Dropout(0.5)).eval().requires_grad_(False)]

    def forward(self, x: Tensor) -> Tensor:
        return self.lin(x) + self.teachers[0](x)


def _takes_module(module: nn.Module, x: Tensor) -> Tensor:
    return module(x) * 2


@pytest.mark.parametrize("how", ["in a list", "as an argument"])
def test_a_module_that_is_no_child_is_tracked(how: str) -> None:
    student = Student().eval()
    teacher = student.teachers[0]
    target: Any = student if how == "in a list" else _takes_module
    given: tuple[Any, ...] = () if how == "in a list" else (teacher,)
    with torch.no_grad():
        plan = cleave.capture(target, (*given, _x()))
        for step in range(3):
            x = _x()
            same_tree(target(*given, x), plan(*given, x), f"step {step}")
            if step == 0:
                teacher[0].weight.mul_(3)
            else:
                teacher[0].weight = nn.Parameter(torch.randn(4, 4), requires_grad=False)
        teacher.train()
        with pytest.raises(InputError):
            plan(*given, _x())
        teacher.eval()
        x = _x()
        same_tree(target(*given, x), plan(*given, x), "in eval mode again")


# ---- arguments that are no tensors -------------------------------------------------------------------------


def test_a_numpy_array_changed_in_place_is_noticed() -> None:
    def fn(scale: np.ndarray, x: Tensor) -> Tensor:
        return x * float(scale[0])

    scale = np.array([2.0, 3.0])
    plan = cleave.capture(fn, (scale, _x()))
    x = _x()
    assert torch.equal(plan(scale, x), fn(scale, x))
    assert torch.equal(plan(scale.copy(), x), fn(scale, x))
    scale[0] = 5.0
    with pytest.raises(InputError):
        plan(scale, x)


def test_a_namespace_changed_in_place_is_noticed() -> None:
    def fn(config: types.SimpleNamespace, x: Tensor) -> Tensor:
        return x * config.scale

    config = types.SimpleNamespace(scale=2.0, inner=types.SimpleNamespace(k=1))
    plan = cleave.capture(fn, (config, _x()))
    x = _x()
    assert torch.equal(plan(config, x), x * 2.0)
    config.inner.k = 2
    with pytest.raises(InputError):
        plan(config, x)
    config.inner.k, config.scale = 1, 3.0
    with pytest.raises(InputError):
        plan(config, x)


class Box:
    def __init__(self, tensor: Tensor, scale: float) -> None:
        self.tensor, self.scale = tensor, scale


_pytree.register_pytree_node(
    Box,
    lambda box: ([box.tensor], box.scale),
    lambda children, scale: Box(next(iter(children)), scale),
    serialized_type_name="cleave.tests.Box",
)


def test_a_registered_pytree_with_another_context_is_noticed() -> None:
    def fn(box: Box) -> Tensor:
        return box.tensor * box.scale

    plan = cleave.capture(fn, Box(_x(), 2.0))
    x = _x()
    assert torch.equal(plan(Box(x, 2.0)), x * 2.0)
    with pytest.raises(InputError):
        plan(Box(x, 3.0))


def test_an_argument_that_refers_to_itself_finishes_quickly() -> None:
    class Options:
        def __init__(self) -> None:
            self.me, self.parts, self.k = self, [self], 2

    def fn(options: Any, x: Tensor) -> Tensor:
        return x * options.k

    options = Options()
    start = time.monotonic()
    plan = cleave.capture(fn, (options, _x()))
    x = _x()
    assert torch.equal(plan(options, x), x * 2)
    options.k = 3
    with pytest.raises(InputError):
        plan(options, x)
    assert time.monotonic() - start < 5


def test_a_list_that_contains_itself_is_refused_quickly() -> None:
    ring: list[Any] = [1]
    ring.append(ring)
    with pytest.raises(CaptureError, match="nested in itself"):
        cleave.capture(lambda ring, x: x * ring[0], (ring, _x()))


def test_a_python_module_as_an_argument_finishes_quickly() -> None:
    def fn(library: Any, x: Tensor) -> Tensor:
        return x * library.pi

    start = time.monotonic()
    plan = cleave.capture(fn, (np, _x()))
    x = _x()
    assert torch.equal(plan(np, x), fn(np, x))
    assert time.monotonic() - start < 5


# ---- what a capture leaves alone ---------------------------------------------------------------------------


def test_capture_does_not_destroy_the_graph_that_the_model_keeps() -> None:
    class Cached(Base):
        def __init__(self) -> None:
            super().__init__()
            self.derived = self.lin.weight.exp()

        def forward(self, x: Tensor) -> Tensor:
            return x @ self.derived

    model = Cached()
    y = model(_x())
    cleave.capture(model, _x())
    y.sum().backward()
    assert model.lin.weight.grad is not None


def test_capture_does_not_destroy_the_graph_of_its_inputs() -> None:
    model = Base()
    w = torch.randn(3, 4, requires_grad=True)
    x = w.exp()
    plan = cleave.capture(model.lin, x)
    (model.lin(x) + plan(x)).sum().backward()
    assert w.grad is not None


@pytest.mark.parametrize(
    "draw",
    [
        lambda x, g: x + torch.rand(x.shape, generator=g),
        lambda x, g: x * torch.bernoulli(torch.full_like(x, 0.5), generator=g),
        lambda x, g: x + torch.empty(x.shape).uniform_(-1, 1, generator=g),
        lambda x, g: x + torch.empty(x.shape).normal_(generator=g),
        lambda x, g: x + torch.randn(x.shape, generator=g) + torch.rand(x.shape),
    ],
    ids=["rand", "bernoulli", "uniform_", "normal_", "two generators"],
)
@pytest.mark.parametrize("how", ["argument", "attribute"])
def test_draws_from_a_generator_of_ones_own_are_replayed(draw: Callable[..., Tensor], how: str) -> None:
    class Noisy(Base):
        def __init__(self, generator: torch.Generator) -> None:
            super().__init__()
            self.generator = generator

        def forward(self, x: Tensor, generator: torch.Generator | None = None) -> Tensor:
            return draw(self.lin(x), generator or self.generator)

    generator = torch.Generator().manual_seed(5)
    model = Noisy(generator)
    extra = (generator,) if how == "argument" else ()
    x = _x()
    before, default = generator.get_state(), torch.get_rng_state()
    plan = cleave.capture(model, (x, *extra))
    assert torch.equal(generator.get_state(), before), "capture moved the generator"
    assert torch.equal(torch.get_rng_state(), default), "capture moved the default generator"
    for seed in (1, 2):
        generator.manual_seed(seed)
        torch.manual_seed(seed)
        first, second = model(x, *extra), model(x, *extra)
        after = generator.get_state()
        generator.manual_seed(seed)
        torch.manual_seed(seed)
        same_tree([first, second], [plan(x, *extra), plan(x, *extra)], f"seed {seed}")
        assert torch.equal(generator.get_state(), after)


def test_inputs_without_data_are_refused() -> None:
    with pytest.raises(CaptureError) as caught:
        cleave.capture(Base().lin, torch.empty(3, 4, device="meta"))
    mentions(caught.value, "input", "meta")


def test_models_without_data_are_refused() -> None:
    with pytest.raises(CaptureError) as caught:
        cleave.capture(nn.Linear(4, 4, device="meta"), _x())
    mentions(caught.value, "weight", "meta")


def test_lazy_modules_are_refused_and_stay_lazy() -> None:
    model = nn.Sequential(nn.LazyLinear(4), nn.ReLU())
    with pytest.raises(CaptureError) as caught:
        cleave.capture(model, _x())
    mentions(caught.value, "lazy")
    assert model[0].has_uninitialized_params()
    model(_x())
    must_replay(model, rand((3, 4)))


class Squares(torch.autograd.Function):
    """Writes a tensor that it is not given."""

    notes = torch.zeros(4)

    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        ctx.save_for_backward(x)
        Squares.notes.add_(1)
        return x * x

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> Tensor:  # type: ignore[override]
        return 2 * grad * ctx.saved_tensors[0]


class Toucher(Base):
    """Touches everything it can reach, in ways that leave the same after every call."""

    def __init__(self, refused: bool) -> None:
        super().__init__()
        self.refused = refused
        self.helper = types.SimpleNamespace(mode="before", table={"a": 1})

    def forward(self, x: Tensor) -> Tensor:
        self.helper.mode = "after"
        self.helper.table["b"] = 2
        self.lin.bias.requires_grad_(False)
        y = Squares.apply(self.lin(x))
        if torch.is_grad_enabled() and y.requires_grad:
            y.sum().backward(retain_graph=True)
        if self.refused:
            raise ArithmeticError("on purpose")
        return y


@pytest.mark.parametrize("refused", [False, True])
@pytest.mark.parametrize("grad", [False, True])
def test_everything_is_as_before_after_a_capture(refused: bool, grad: bool) -> None:
    model = Toucher(refused)
    mine = torch.ones(4, 4)
    model.lin.weight.grad = mine
    with torch.set_grad_enabled(grad):
        try:
            cleave.capture(model, _x())
            outcome = "captured"
        except (CleaveError, ArithmeticError):
            outcome = "refused"
    assert not refused or outcome == "refused"
    assert model.lin.weight.grad is mine
    assert torch.equal(mine, torch.ones(4, 4)), "the gradient was added to"
    assert model.lin.bias.grad is None
    assert model.lin.bias.requires_grad
    assert model.helper.mode == "before"
    assert model.helper.table == {"a": 1}


class Noting(Base):
    def __init__(self, own: bool, refused: bool) -> None:
        super().__init__()
        self.refused = refused
        if own:
            self.notes = Squares.notes

    def forward(self, x: Tensor) -> Tensor:
        y = Squares.apply(self.lin(x))
        if self.refused:
            raise ArithmeticError("on purpose")
        return y


@pytest.mark.parametrize("own", [False, True])
@pytest.mark.parametrize("refused", [False, True])
@pytest.mark.parametrize("grad", [False, True])
def test_a_tensor_that_a_custom_function_writes_is_as_before_after_a_capture(
    own: bool, refused: bool, grad: bool
) -> None:
    Squares.notes = torch.zeros(4)
    model = Noting(own, refused)
    with torch.set_grad_enabled(grad), contextlib.suppress(CleaveError, ArithmeticError):
        cleave.capture(model, _x())
    assert torch.equal(Squares.notes, torch.zeros(4))


def test_a_plan_kept_by_its_own_model_is_collected() -> None:
    model: Any = nn.Sequential(nn.Linear(4, 4), nn.ReLU())
    x = _x()
    model.fast = cleave.capture(model, x)
    assert torch.equal(model.fast(x), model(x))
    gone = weakref.ref(model)
    weight = weakref.ref(model[0].weight)
    del model
    gc.collect()
    assert gone() is None
    assert weight() is None


def test_a_split_kept_by_its_own_model_is_collected() -> None:
    model: Any = nn.Sequential(nn.Linear(4, 4), nn.ReLU(), nn.Linear(4, 4))
    spec = cleave.SplitSpec(boundary="50%", dynamic_batch=(1, 8), trace_batch_mode="batch_gt1")
    model.fast = cleave.prepare_split(model, example_inputs=(_x(),), split=spec)
    model.fast.run_suffix(model.fast.run_prefix(torch.randn(6, 4)))
    gone = weakref.ref(model)
    del model
    gc.collect()
    assert gone() is None


# ---- calling -----------------------------------------------------------------------------------------------


def test_a_program_takes_any_iterable_of_tensors() -> None:
    plan = cleave.capture(lambda x, y: x + 2 * y, (_x(), _x()))
    x, y = _x(), _x()
    run = plan._first.program.native.run
    for given in ((x, y), [x, y], iter([x, y]), (t for t in (x, y))):
        assert torch.equal(run(given)[0], x + 2 * y)
    with pytest.raises(ZeroDivisionError):
        run(t * (1 // 0) for t in (x, y))


def test_a_capture_inside_a_capture_is_an_error_that_says_so() -> None:
    lin = nn.Linear(4, 4)

    def fn(x: Tensor) -> Tensor:
        cleave.capture(lin, x)
        return lin(x)

    with pytest.raises(CleaveError, match="already running"):
        cleave.capture(fn, _x())
    x = _x()
    assert torch.equal(cleave.capture(lin, x)(x), lin(x))  # nothing is left behind


FORKING = """
import torch
import cleave


@torch.jit.script
def child(x: torch.Tensor) -> torch.Tensor:
    for i in range(100000):
        x = x + 1
    return x


@torch.jit.script
def parent(x: torch.Tensor) -> torch.Tensor:
    f = torch.jit.fork(child, x)
    return x * 2


for _ in range(3):
    try:
        cleave.capture(parent, torch.ones(4))
    except cleave.CleaveError as error:
        assert len(str(error).split()) > 3, error
plan = cleave.capture(lambda x: x + 1, torch.ones(4))
assert torch.equal(plan(torch.zeros(4)), torch.ones(4))
print("survived")
"""


@pytest.mark.integration
def test_a_scripted_fork_may_outlive_the_capture(tmp_path: Path) -> None:
    program = tmp_path / "forking.py"
    program.write_text(FORKING)
    done = subprocess.run([sys.executable, program], capture_output=True, text=True, timeout=60, check=False)
    assert "survived" in done.stdout, (done.returncode, done.stdout, done.stderr)
    assert done.returncode == 0


def _import_from(path: Path, name: str) -> Any:
    spec = importlib.util.spec_from_file_location(name, path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_source_lines_name_packages_whose_path_starts_like_that_of_torch(tmp_path: Path) -> None:
    beside = f"{Path(torch.__file__).parent}vision_like/ops.py"  # no such file: only the name of the code counts
    space: dict[str, Any] = {}
    exec(compile("def fn(x):\n    return (x + 1).relu()\n", beside, "exec"), space)
    plan = cleave.capture(space["fn"], _x())
    assert all(n.source is not None and n.source.endswith("ops.py:2") for n in plan.nodes), plan.nodes
    (tmp_path / "mine.py").write_text("def fn(x):\n    return (x + 1).relu()\n")
    plan = cleave.capture(_import_from(tmp_path / "mine.py", "mine").fn, _x())
    assert all(n.source is not None and n.source.endswith("mine.py:2") for n in plan.nodes), plan.nodes


@pytest.mark.parametrize("copied", [copy.copy, copy.deepcopy, pickle.dumps])
def test_a_plan_that_is_copied_says_what_to_do_instead(copied: Callable[[Any], Any]) -> None:
    plan = cleave.capture(nn.Linear(4, 4), _x())
    with pytest.raises(TypeError, match=r"plan\.text|capture again"):
        copied(plan)


@pytest.mark.integration
def test_a_dispatch_mode_around_the_capture_is_refused() -> None:
    class Doubling(TorchDispatchMode):
        def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
            return func(*args, **(kwargs or {}))

    with Doubling(), pytest.raises(CaptureError) as caught:
        cleave.capture(nn.Linear(4, 4), _x())
    mentions(caught.value, "TorchDispatchMode")


# ---- shapes that change in place ---------------------------------------------------------------------------


@pytest.mark.parametrize(
    "change",
    [
        lambda y: y.unsqueeze_(0) * 2,
        lambda y: y.unsqueeze_(0).squeeze_(0) + 1,
        lambda y: y.t_() @ torch.ones(3, 2),
        lambda y: y.transpose_(0, 1).contiguous(),
        lambda y: y.swapaxes_(0, 1) * 2,
        lambda y: y[:1].clone().squeeze_(0) * 2,
        lambda y: y.resize_(2, 3) * 2,
        lambda y: y.resize_(1, 2).relu(),
        lambda y: y.as_strided_((4, 3), (1, 4)) * 2,
    ],
    ids=["unsqueeze_", "both", "t_", "transpose_", "swapaxes_", "squeeze_", "resize_", "smaller", "as_strided_"],
)
def test_a_temporary_whose_shape_changes_in_place_is_replayed(change: Callable[[Tensor], Tensor]) -> None:
    model = nn.Linear(4, 4)
    must_replay(lambda x: change(x.mul(1.5).detach()), rand((3, 4)), grad=False)
    with torch.no_grad():
        plan = cleave.capture(lambda x: change(model(x)), _x())
        x = _x()
        same_tree(change(model(x)), plan(x), "with a layer before")

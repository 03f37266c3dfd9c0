"""Gradient hooks: a plan refuses those that the forward sets, whatever they do on the data it was captured with, and
leaves those of parameters to autograd."""

from __future__ import annotations

import copy
import random
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import pytest
import torch
from helpers import same_tensor
from torch import Tensor, nn

import cleave
from cleave._gradients import Gradients
from cleave._gradients import Tied as Tied_

WIDTH = 4


def _x(seed: int = 3) -> Tensor:
    return torch.randn(3, WIDTH, generator=torch.Generator().manual_seed(seed))


def _clip(grad: Tensor) -> Tensor:
    """Does nothing to the small gradients that a capture sees."""
    return grad.clamp(-100, 100)


class Hooked(nn.Module):
    """A few layers; `hook` is called with the module and what is between two of them."""

    def __init__(self, hook: Callable[[Hooked, Tensor], Tensor | None] | None = None, at: int = 1) -> None:
        super().__init__()
        self.layers = nn.ModuleList(nn.Linear(WIDTH, WIDTH) for _ in range(4))
        self.hook, self.at = hook, at
        self.kept = torch.zeros(3, WIDTH)

    def forward(self, x: Tensor) -> Tensor:
        for i, layer in enumerate(self.layers):
            if i == self.at and self.hook is not None and torch.is_grad_enabled():
                found = self.hook(self, x)
                x = x if found is None else found
            x = layer(x).tanh()
        return x


def _on_tensor(net: Hooked, x: Tensor) -> None:
    x.register_hook(_clip)


def _that_looks(net: Hooked, x: Tensor) -> None:
    x.register_hook(lambda g: None)


def _on_view(net: Hooked, x: Tensor) -> Tensor:
    y = x.reshape(-1)
    y.register_hook(_clip)
    return y.reshape(x.shape)


def _before_node(net: Hooked, x: Tensor) -> None:
    x.grad_fn.register_prehook(lambda grads: tuple(map(_clip, grads)))  # type: ignore[union-attr]


def _after_node(net: Hooked, x: Tensor) -> None:
    x.grad_fn.register_hook(lambda to, grads: tuple(None if g is None else _clip(g) for g in to))  # type: ignore[union-attr]


def _on_several(net: Hooked, x: Tensor) -> None:
    torch.autograd.graph.register_multi_grad_hook((x, net.layers[0].weight), lambda grads: None)  # type: ignore[arg-type]


def _on_parameter(net: Hooked, x: Tensor) -> None:
    net.layers[2].weight.register_hook(_clip)  # type: ignore[union-attr, operator]


def _after_accumulation(net: Hooked, x: Tensor) -> None:
    net.layers[2].weight.register_post_accumulate_grad_hook(lambda p: None)  # type: ignore[union-attr, operator]


def _on_own_leaf(net: Hooked, x: Tensor) -> Tensor:
    leaf = torch.zeros_like(x).requires_grad_()
    leaf.register_hook(_clip)
    return x + leaf


def _on_branch(net: Hooked, x: Tensor) -> Tensor:
    y = x * 0.5
    y.register_hook(_clip)
    return x + y


def _kept_with_grad(net: Hooked, x: Tensor) -> None:
    x.retain_grad()
    net.kept = x


class Custom(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        return x * 2

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> Tensor:  # type: ignore[override]
        return grad * 2


def _on_custom(net: Hooked, x: Tensor) -> Tensor:
    y = Custom.apply(x)
    y.register_hook(_clip)
    return y


IN_FORWARD = [
    _on_tensor,
    _that_looks,
    _on_view,
    _before_node,
    _after_node,
    _on_several,
    _on_parameter,
    _after_accumulation,
    _on_own_leaf,
    _on_branch,
    _kept_with_grad,
    _on_custom,
]


def _full(net: nn.Module) -> None:
    net.layers[1].register_full_backward_hook(lambda m, into, out: tuple(map(_clip, into)))  # type: ignore[union-attr, index, operator]


def _full_pre(net: nn.Module) -> None:
    net.layers[1].register_full_backward_pre_hook(lambda m, out: tuple(map(_clip, out)))  # type: ignore[union-attr, index, operator]


def _old_style(net: nn.Module) -> None:
    net.layers[1].register_backward_hook(lambda m, into, out: None)  # type: ignore[union-attr, index, operator]


def _of_the_root(net: nn.Module) -> None:
    net.register_full_backward_hook(lambda m, into, out: None)


OF_MODULES = [_full, _full_pre, _old_style, _of_the_root]


def _split(model: nn.Module, boundary: str = "after:layers.1") -> cleave.SplitRuntime:
    spec = cleave.SplitSpec(boundary=boundary, trainable=True)
    return cleave.prepare_split(model, example_inputs=(_x(),), split=spec)


def _staged(model: nn.Module, **options: Any) -> cleave.PartitionedPlan:
    options = {"nparts": 2, "profile": "estimate", "batch_dim": None, "training": True, **options}
    return cleave.pipe_model(model, example_inputs=(_x(),), **options)


def _hooks_of(model: nn.Module) -> list[int]:
    tables = ("_backward_hooks", "_post_accumulate_grad_hooks")
    return [len(getattr(p, t) or ()) for p in model.parameters() for t in tables]


def _refuses(model: nn.Module, match: str) -> None:
    """With gradients, in plans, splits and pipelines; and leaves the model as it was."""
    before = _hooks_of(model)
    with pytest.raises(cleave.CaptureError, match=match):
        cleave.capture(model, _x())
    assert _hooks_of(model) == before
    with torch.no_grad():
        plan = cleave.capture(model, _x())
        assert torch.equal(plan(_x()), model(_x()))
    with pytest.raises(cleave.CaptureError, match=match):
        plan(_x())  # now with gradients
    runtime = _split(model)
    with torch.no_grad():
        assert torch.equal(runtime.run_suffix(runtime.run_prefix(_x())), model(_x()))
    with pytest.raises(cleave.CleaveError, match=match):
        runtime.run_training_prefix(_x())
    with pytest.raises(cleave.CleaveError, match=match):
        _staged(model)
    assert _hooks_of(model) == before


@pytest.mark.parametrize("hook", IN_FORWARD)
def test_hooks_that_the_forward_sets_are_refused(hook: Callable[[Hooked, Tensor], Tensor | None]) -> None:
    _refuses(Hooked(hook), "gradient hook|retain_grad")


def test_the_operator_with_the_hook_is_named() -> None:
    with pytest.raises(cleave.CaptureError, match=r"aten::tanh .*at test_hooks\.py:\d+: it has a gradient hook"):
        cleave.capture(Hooked(_on_tensor), _x())


@pytest.mark.parametrize("at", [0, 3])
def test_hooks_on_inputs_and_near_the_output_are_refused(at: int) -> None:
    def hook(net: Hooked, x: Tensor) -> None:
        if x.requires_grad:
            x.register_hook(_clip)

    with pytest.raises(cleave.CaptureError, match="gradient hook"):
        cleave.capture(Hooked(hook, at), _x().requires_grad_())


@pytest.mark.parametrize("add", OF_MODULES)
def test_backward_hooks_of_modules_are_refused(add: Callable[[nn.Module], None]) -> None:
    model = Hooked()
    add(model)
    _refuses(model, "gradient hook")


def test_backward_hooks_of_all_modules_are_refused() -> None:
    handle = nn.modules.module.register_module_full_backward_hook(lambda m, into, out: None)
    try:
        with pytest.raises(cleave.CaptureError, match="gradient hook"):
            cleave.capture(Hooked(), _x())
    finally:
        handle.remove()


def test_hooks_that_nothing_goes_through_do_not_matter() -> None:
    def hook(net: Hooked, x: Tensor) -> None:
        (x * 2).register_hook(_clip)

    model = Hooked(hook)
    plan = cleave.capture(model, _x())
    _same_gradients(copy.deepcopy(model), model, lambda m: m(_x()), lambda m: plan(_x()))


def test_what_is_saved_for_the_backward_may_not_be_changed_by_hooks() -> None:
    @contextmanager
    def rounded() -> Iterator[None]:
        with torch.autograd.graph.saved_tensors_hooks(lambda t: t.round(decimals=3), lambda t: t):
            yield

    class Rounds(Hooked):
        def forward(self, x: Tensor) -> Tensor:
            with rounded():
                return super().forward(x)

    with pytest.raises(cleave.CaptureError, match="saved_tensors_hooks"):
        cleave.capture(Rounds(), _x())
    with torch.no_grad():
        cleave.capture(Rounds(), _x())


# ---- hooks of parameters ---------------------------------------------------------------------------------------------


class Tied(Hooked):
    def __init__(self) -> None:
        super().__init__()
        self.layers[3].weight = self.layers[0].weight


def _halve(grad: Tensor) -> Tensor:
    return grad.clamp(-0.05, 0.05)


def _clip_in_place(p: Tensor) -> None:
    assert p.grad is not None
    p.grad.clamp_(-0.04, 0.04)


def _with_hooks(model: nn.Module) -> nn.Module:
    """Each parameter gets hooks that count and clip, one kind or the other."""
    model.calls = []  # type: ignore[assignment]
    calls: Any = model.calls
    for i, p in enumerate(model.parameters()):
        if i % 2:
            p.register_post_accumulate_grad_hook(_clip_in_place)
        else:
            p.register_hook(_halve)
        p.register_hook(lambda g, i=i: calls.append((i, g.sum().item())))  # type: ignore[misc]
    return model


def _same_gradients(
    twin: nn.Module, model: nn.Module, eager: Callable[[Any], Tensor], ours: Callable[[Any], Tensor]
) -> None:
    eager(twin).square().sum().backward()  # type: ignore[no-untyped-call]
    ours(model).square().sum().backward()  # type: ignore[no-untyped-call]
    for (name, p), q in zip(twin.named_parameters(), model.named_parameters(), strict=True):
        assert (p.grad is None) == (q[1].grad is None), name
        if p.grad is not None and q[1].grad is not None:
            same_tensor(p.grad, q[1].grad, name)


def _twins(build: Callable[[], nn.Module]) -> tuple[Any, Any]:
    torch.manual_seed(0)
    model = build()
    twin = copy.deepcopy(model)
    return _with_hooks(twin), _with_hooks(model)


@pytest.mark.parametrize("build", [Hooked, Tied])
def test_hooks_of_parameters_work_in_plans_and_stages(build: Callable[[], nn.Module]) -> None:
    for make in (lambda m: cleave.capture(m, _x()), _staged, lambda m: _staged(m, recomputation=True)):
        twin, model = _twins(build)
        run = make(model)
        for seed in (4, 5):
            _same_gradients(twin, model, lambda m, seed=seed: m(_x(seed)), lambda m, seed=seed, run=run: run(_x(seed)))
        assert sorted(twin.calls) == sorted(model.calls)


@pytest.mark.parametrize("build", [Hooked, Tied])
@pytest.mark.parametrize("boundary", ["after:layers.0", "after:layers.2"])
def test_hooks_of_parameters_work_in_splits(build: Callable[[], nn.Module], boundary: str) -> None:
    twin, model = _twins(build)
    runtime = _split(model, boundary)
    for seed in (4, 5):
        twin(_x(seed)).square().sum().backward()
        b = runtime.run_training_prefix(_x(seed))
        runtime.train_suffix(b, None, loss_fn=lambda y, _: y.square().sum())
        runtime.backward_prefix(b)
    for (name, p), q in zip(twin.named_parameters(), model.parameters(), strict=True):
        same_tensor(p.grad, q.grad, name)
    assert sorted(twin.calls) == sorted(model.calls)


class Block(nn.Module):
    """Runs as a whole: its hooks are set by each of its runs."""

    def __init__(self) -> None:
        super().__init__()
        self.a, self.b = nn.Linear(WIDTH, WIDTH), nn.Linear(WIDTH, WIDTH)

    def forward(self, x: Tensor) -> Tensor:
        y = self.a(x)
        if y.requires_grad:
            y.register_hook(lambda g: g.clamp(-0.01, 0.01))
        return self.b(y)


def test_modules_that_run_as_a_whole_keep_their_hooks() -> None:
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(WIDTH, WIDTH), Block(), nn.Linear(WIDTH, WIDTH))
    twin = copy.deepcopy(model)
    found = _staged(model, basic_blocks=["Block"])
    _same_gradients(twin, model, lambda m: m(_x()), lambda m: found(_x()))


def test_hooks_that_a_pipeline_of_several_processes_would_not_call_are_refused() -> None:
    def begin(p: nn.Parameter, ties: list[Tied_]) -> None:
        gradients = Gradients({0: lambda: {"w": p}}, exact=True)
        gradients._ties = ties
        gradients.begin(0)

    shared = [Tied_("w", [(0, "w"), (1, "w")], (3,), torch.float32)]
    plain, late = (nn.Parameter(torch.ones(3)) for _ in range(2))
    begin(plain, shared)
    plain.register_hook(_clip)
    begin(plain, [])
    with pytest.raises(cleave.PipelineError, match="stage 0: w has a gradient hook, and other stages share"):
        begin(plain, shared)
    late.register_post_accumulate_grad_hook(lambda p: None)
    with pytest.raises(cleave.PipelineError, match="post-accumulate-grad hook"):
        begin(late, [])


# ---- drawn at random -------------------------------------------------------------------------------------------------


def _draw(seed: int) -> None:
    """A hook at a random place: always refused; without it, gradients as eager's."""
    generator = random.Random(seed)
    torch.manual_seed(seed)
    model = Hooked(generator.choice(IN_FORWARD), generator.randint(1, 3))
    with pytest.raises(cleave.CaptureError, match=r"gradient hook|retain_grad"):
        cleave.capture(model, _x(seed))
    model.hook = None
    if generator.random() < 0.5:
        handle = generator.choice(list(model.layers)).register_full_backward_hook(lambda m, into, out: None)
        with pytest.raises(cleave.CaptureError, match="gradient hook"):
            cleave.capture(model, _x(seed))
        handle.remove()
    twin = copy.deepcopy(model)
    plan = cleave.capture(model, _x(seed))
    _same_gradients(twin, model, lambda m: m(_x(seed + 1)), lambda m: plan(_x(seed + 1)))


@pytest.mark.parametrize("seed", range(3))
def test_random_hooks(seed: int) -> None:
    _draw(seed)


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(100, 200))
def test_many_random_hooks(seed: int) -> None:
    _draw(seed)

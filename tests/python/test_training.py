"""Training across a cut gives the gradients of the whole model, bit for bit, over several steps."""

from __future__ import annotations

import copy
import gc
import weakref
from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from helpers import Fn
from torch import Tensor, nn

import cleave
from cleave._train import default_loss

Optimizer = Callable[[Any], torch.optim.Optimizer]


def sgd(params: Any) -> torch.optim.Optimizer:
    return torch.optim.SGD(params, lr=0.1, momentum=0.9, weight_decay=1e-3)


def adam(params: Any) -> torch.optim.Optimizer:
    return torch.optim.Adam(params, lr=1e-2)


def prepare(model: nn.Module, *inputs: Tensor, at: str, **options: Any) -> cleave.SplitRuntime:
    spec = cleave.SplitSpec(boundary=at, **options)
    return cleave.prepare_split(model, example_inputs=inputs, split=spec)


def same_state(a: nn.Module, b: nn.Module) -> None:
    for (name, x), y in zip(a.state_dict().items(), b.state_dict().values(), strict=True):
        assert torch.equal(x, y), name


def same_grads(a: nn.Module, b: nn.Module) -> None:
    for (name, p), q in zip(a.named_parameters(), b.parameters(), strict=True):
        assert (p.grad is None) == (q.grad is None), name
        assert p.grad is None or q.grad is None or torch.equal(p.grad, q.grad), name


def train_both(
    model: nn.Module,
    make: Callable[[int], tuple[Tensor, ...]],
    targets: Callable[[int], Any],
    at: str,
    *,
    loss: Callable[[Any, Any], Tensor] | None = None,
    optimizer: Optimizer = sgd,
    steps: int = 4,
) -> cleave.SplitRuntime:
    """Trains a model split and its copy whole, from the same seeds, and compares everything after each step."""
    whole = copy.deepcopy(model)
    rt = prepare(model, *make(0), at=at)
    head, tail, all_ = optimizer(rt.parameters("prefix")), optimizer(rt.parameters("suffix")), None
    all_ = optimizer([p for p in whole.parameters() if p.requires_grad])
    for step in range(steps):
        inputs = make(step)
        torch.manual_seed(step)
        boundary = rt.run_training_prefix(*inputs)
        got, grads = rt.train_suffix(boundary, targets(step), loss_fn=loss, optimizer=tail)
        rt.backward_prefix(boundary, grads, optimizer=head)
        torch.manual_seed(step)
        all_.zero_grad()
        want = (loss or F.cross_entropy)(whole(*inputs), targets(step))
        want.backward()
        all_.step()
        assert torch.equal(got, want.detach())
        assert not got.requires_grad
        same_grads(model, whole)
        same_state(model, whole)
    return rt


def rows(features: int) -> Callable[[int], tuple[Tensor, ...]]:
    return lambda step: (torch.randn(6 + step, features, generator=torch.Generator().manual_seed(step)),)


def classes(n: int) -> Callable[[int], Tensor]:
    return lambda step: torch.randint(0, n, (6 + step,), generator=torch.Generator().manual_seed(step))


def mlp() -> nn.Module:
    return nn.Sequential(
        nn.Linear(5, 16),
        nn.BatchNorm1d(16),
        nn.ReLU(),
        nn.Dropout(0.3),
        nn.Linear(16, 16),
        nn.Dropout(0.2),
        nn.ReLU(inplace=True),
        nn.Linear(16, 4),
    )


@pytest.mark.parametrize("optimizer", [sgd, adam])
@pytest.mark.parametrize("at", ["after:0", "after:1", "after:3", "after:4", "after:6", "50%"])
def test_batchnorm_dropout_and_momentum_train_as_one(at: str, optimizer: Optimizer) -> None:
    torch.manual_seed(0)
    train_both(mlp().train(), rows(5), classes(4), at, optimizer=optimizer)


def test_eval_mode_trains_too() -> None:
    torch.manual_seed(0)
    train_both(mlp().eval(), rows(5), classes(4), "after:3")


class Transposed(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.bias = nn.Parameter(torch.randn(4))

    def forward(self, x: Tensor) -> Tensor:
        return (x + self.bias).abs().reshape(-1)


@pytest.mark.parametrize("as_bytes", [False, True])
def test_a_gradient_keeps_its_own_strides_where_the_boundary_is_transposed(as_bytes: bool) -> None:
    torch.manual_seed(0)
    model, x, weights = Transposed(), torch.randn(4, 21).t(), torch.randn(84)
    whole = copy.deepcopy(model)
    rt = prepare(model, x, at="after:add")
    boundary = rt.run_training_prefix(x)
    _, grads = rt.train_suffix(boundary, None, loss_fn=lambda out, _: (out * weights).sum())
    rt.backward_prefix(boundary, cleave.unpack(cleave.pack(grads)) if as_bytes else grads)
    (whole(x) * weights).sum().backward()
    same_grads(model, whole)


def test_a_gradient_keeps_its_alignment_where_the_suffix_joins_tensors() -> None:
    torch.manual_seed(0)
    model = Fn(lambda lin, x: F.linear(torch.cat([x.tanh(), lin(lin(x)).relu()], 1), lin.weight.repeat(1, 2)), 6)
    for at in ("after:linear", "after:linear_1", "after:relu"):
        train_both(copy.deepcopy(model), rows(6), classes(6), at)


def test_gradients_of_a_boundary_do_not_share_memory() -> None:
    torch.manual_seed(0)
    model = Fn(lambda lin, x: lin(x).relu() + lin(x).tanh(), 4)
    rt = prepare(model, torch.randn(3, 4), at="after:tanh")
    boundary = rt.run_training_prefix(torch.randn(3, 4))
    weights = torch.randn(3, 4)
    _, grads = rt.train_suffix(boundary, None, loss_fn=lambda out, _: (out * weights).sum())
    first, second = [g for g in grads.values() if g is not None]
    assert torch.equal(first, second)
    first.zero_()
    assert torch.equal(second, weights)


def test_the_default_loss_is_the_mean_squared_error_for_float_targets() -> None:
    torch.manual_seed(0)
    y = torch.randn(6, 4)
    train_both(mlp().train(), lambda s: (torch.randn(6, 5),), lambda s: y, "after:3", loss=F.mse_loss)
    model = mlp().train()
    rt = prepare(model, torch.randn(6, 5), at="after:3")
    torch.manual_seed(1)
    boundary = rt.run_training_prefix(torch.ones(6, 5))
    loss, _ = rt.train_suffix(boundary, y)
    torch.manual_seed(1)
    assert torch.equal(loss, F.mse_loss(model(torch.ones(6, 5)), y).detach())


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16])
@pytest.mark.parametrize("targets", [torch.tensor([300, 0, 2]), torch.tensor([True, False, True])])
@pytest.mark.parametrize("autocast", [False, True])
def test_the_default_loss_takes_whole_targets_of_a_regression(
    dtype: torch.dtype, targets: Tensor, autocast: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The backward of mse_loss is refused in torch 2.11 where its tensors have two types."""
    whole, mse_loss = torch.randn(3, dtype=dtype, requires_grad=True), F.mse_loss
    output = whole.detach().clone().requires_grad_()

    def strict(got: Tensor, wanted: Tensor) -> Tensor:
        assert wanted.dtype == (torch.promote_types(dtype, torch.float32) if autocast else dtype)
        return mse_loss(got, wanted)

    monkeypatch.setattr(F, "mse_loss", strict)
    with torch.autocast("cpu", dtype=torch.bfloat16, enabled=autocast):
        want, loss = mse_loss(whole, targets), default_loss(output, targets)
    assert torch.equal(loss, want)
    assert loss.dtype == want.dtype
    loss.backward()
    assert output.grad is not None
    assert torch.allclose(output.grad, (2 / 3 * (whole - targets.to(dtype))), rtol=1e-2)


class Residual(nn.Module):
    """Values that are used on both sides of the cut, and an input that passes it."""

    def __init__(self) -> None:
        super().__init__()
        self.a, self.b, self.c = nn.Linear(8, 8), nn.Linear(8, 8), nn.Linear(8, 3)

    def forward(self, x: Tensor) -> Tensor:
        h = torch.tanh(self.a(x))
        g = self.b(h) * h + x
        return self.c(torch.relu(g) + h * x + h)


@pytest.mark.parametrize("at", ["after:a", "after:tanh", "after:b", "after:mul", "after:relu", "30%", "70%"])
def test_values_used_on_both_sides_add_up_as_in_eager(at: str) -> None:
    torch.manual_seed(0)
    train_both(Residual(), rows(8), classes(3), at)


class Tied(nn.Module):
    """One weight read four times, on both sides of every cut in the middle."""

    def __init__(self) -> None:
        super().__init__()
        self.embed = nn.Embedding(11, 8)
        self.mix = nn.Linear(8, 8)
        self.norm = nn.LayerNorm(8)
        self.head = nn.Linear(8, 11, bias=False)
        self.head.weight = self.embed.weight

    def forward(self, ids: Tensor) -> Tensor:
        h = self.embed(ids) + self.embed(ids.flip(1))
        h = self.mix(h)
        return self.head(self.norm(h + self.head(h) @ self.embed.weight)).mean(1)


@pytest.mark.parametrize("optimizer", [sgd, adam])
@pytest.mark.parametrize("at", ["after:embed", "after:mix", "after:norm"])
def test_tied_weights_get_one_gradient_and_one_step(at: str, optimizer: Optimizer) -> None:
    torch.manual_seed(0)
    ids = lambda s: (torch.randint(0, 11, (6 + s, 5), generator=torch.Generator().manual_seed(s)),)  # noqa: E731
    train_both(Tied(), ids, classes(11), at, optimizer=optimizer)


@pytest.mark.parametrize("which", ["prefix", "suffix", "both", "one"])
def test_a_tied_weight_is_stepped_once_whichever_optimizer_holds_it(which: str) -> None:
    torch.manual_seed(0)
    model = Tied()
    whole = copy.deepcopy(model)
    ids, y = torch.randint(0, 11, (4, 5)), torch.randint(0, 11, (4,))
    rt = prepare(model, ids, at="after:mix")
    tied = model.embed.weight
    prefix, suffix = rt.parameters("prefix"), rt.parameters("suffix")
    if which == "prefix":
        suffix = [p for p in suffix if p is not tied]
    if which == "suffix":
        prefix = [p for p in prefix if p is not tied]
    head, tail = sgd(prefix), sgd(suffix)
    if which == "one":
        head = tail = sgd(model.parameters())
    all_ = sgd(whole.parameters())
    for _ in range(3):
        boundary = rt.run_training_prefix(ids)
        _, grads = rt.train_suffix(boundary, y, optimizer=tail)
        rt.backward_prefix(boundary, grads, optimizer=head)
        all_.zero_grad()
        F.cross_entropy(whole(ids), y).backward()
        all_.step()
        same_state(model, whole)


class Double(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        return x * 2

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> Tensor:
        return grad * 17  # not the derivative: only this backward gives it


class Custom(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.a, self.b = nn.Linear(5, 5), nn.Linear(5, 4)

    def forward(self, x: Tensor) -> Tensor:
        h = Double.apply(self.a(x))
        with torch.no_grad():
            scale = self.a(h).mean()
        return self.b(Double.apply(torch.relu(h) * scale))


@pytest.mark.parametrize("at", ["after:a", "after:relu", "after:mean"])
def test_custom_backwards_and_no_grad_regions_are_honoured(at: str) -> None:
    torch.manual_seed(0)
    train_both(Custom(), rows(5), classes(4), at)


class Autocast(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.a, self.b = nn.Linear(5, 6), nn.Linear(6, 4)

    def forward(self, x: Tensor) -> Tensor:
        with torch.autocast("cpu", dtype=torch.float16):
            h = self.a(x)
        return self.b(h.float())


def test_autocast_regions_train_as_in_eager() -> None:
    torch.manual_seed(0)
    train_both(Autocast(), rows(5), classes(4), "after:a")


class Inplace(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.a, self.b = nn.Linear(5, 6), nn.Linear(6, 4)

    def forward(self, x: Tensor) -> Tensor:
        h = self.a(x) * 1
        h += 1
        return self.b(h.mul_(2).relu_())


@pytest.mark.parametrize("at", ["after:a", "after:mul", "after:add_"])
def test_in_place_suffixes_leave_the_boundary_alone(at: str) -> None:
    torch.manual_seed(0)
    train_both(Inplace(), rows(5), classes(4), at)
    rt = prepare(Inplace(), torch.randn(6, 5), at=at)
    boundary = rt.run_training_prefix(torch.randn(6, 5))
    before = {k: t.clone() for k, t in boundary.tensors.items()}
    rt.train_suffix(boundary, torch.randint(0, 4, (6,)))
    assert all(torch.equal(before[k], t) for k, t in boundary.tensors.items())
    rt.train_suffix(boundary, torch.randint(0, 4, (6,)))  # the same boundary again: another loss on it


def test_frozen_parameters_get_no_gradient_and_freezing_later_is_seen() -> None:
    torch.manual_seed(0)
    model = mlp().train()
    for p in model[0].parameters():
        p.requires_grad_(False)
    train_both(model, rows(5), classes(4), "after:3")
    rt = prepare(model, torch.randn(6, 5), at="after:3")
    for frozen in (model[4], model[0]):
        for p in frozen.parameters():
            p.requires_grad_(not p.requires_grad)
        model.zero_grad()
        whole = copy.deepcopy(model)
        x, y = torch.randn(6, 5), torch.randint(0, 4, (6,))
        torch.manual_seed(1)
        boundary = rt.run_training_prefix(x)
        rt.train_suffix(boundary, y)
        rt.backward_prefix(boundary)
        torch.manual_seed(1)
        F.cross_entropy(whole(x), y).backward()
        same_grads(model, whole)


def test_a_frozen_prefix_has_nothing_to_do_backward() -> None:
    torch.manual_seed(0)
    model = mlp().train()
    for p in model[:4].parameters():
        p.requires_grad_(False)
    rt = prepare(model, torch.randn(6, 5), at="after:3")
    boundary = rt.run_training_prefix(torch.randn(6, 5))
    assert not any(boundary.requires_grad.values())
    _, grads = rt.train_suffix(boundary, torch.randint(0, 4, (6,)))
    assert set(grads.values()) == {None}
    rt.backward_prefix(boundary, grads)
    assert all(p.grad is None for p in model[:4].parameters())


def test_gradients_of_several_batches_add_up_before_a_step() -> None:
    torch.manual_seed(0)
    model = mlp().train()
    whole = copy.deepcopy(model)
    rt = prepare(model, torch.randn(6, 5), at="after:3")
    head, tail, all_ = sgd(rt.parameters("prefix")), sgd(rt.parameters("suffix")), sgd(whole.parameters())
    for round_ in range(3):
        all_.zero_grad()
        for k in range(3):
            x, y = torch.randn(6 + k, 5), torch.randint(0, 4, (6 + k,))
            last = k == 2
            torch.manual_seed(10 * round_ + k)
            boundary = rt.run_training_prefix(x)
            _, grads = rt.train_suffix(boundary, y, optimizer=tail if last else None)
            rt.backward_prefix(boundary, grads, optimizer=head if last else None)
            torch.manual_seed(10 * round_ + k)
            F.cross_entropy(whole(x), y).backward()
        all_.step()
        same_grads(model, whole)
        same_state(model, whole)


@pytest.mark.parametrize("zero", ["before", "after", "never"])
def test_any_habit_of_zeroing_gradients_works(zero: str) -> None:
    torch.manual_seed(0)
    model = mlp().train()
    whole = copy.deepcopy(model)
    rt = prepare(model, torch.randn(6, 5), at="after:3")
    one, all_ = sgd(model.parameters()), sgd(whole.parameters())
    for step in range(3):
        x, y = torch.randn(6, 5), torch.randint(0, 4, (6,))
        if zero == "before":
            one.zero_grad()
        torch.manual_seed(step)
        boundary = rt.run_training_prefix(x)
        _, grads = rt.train_suffix(boundary, y, optimizer=one)
        rt.backward_prefix(boundary, grads, optimizer=one)
        if zero == "after":
            one.zero_grad()
        torch.manual_seed(step)
        all_.zero_grad()
        F.cross_entropy(whole(x), y).backward()
        all_.step()
        same_state(model, whole)


def test_zeroed_gradients_free_their_memory() -> None:
    torch.manual_seed(0)
    model = mlp().train()
    rt = prepare(model, torch.randn(6, 5), at="after:3")
    one = sgd(model.parameters())
    boundary = rt.run_training_prefix(torch.randn(6, 5))
    rt.train_suffix(boundary, torch.randint(0, 4, (6,)), optimizer=one)
    rt.backward_prefix(boundary, optimizer=one)
    del boundary
    kept = [weakref.ref(p.grad) for p in model.parameters() if p.grad is not None]
    assert len(kept) == 8
    one.zero_grad()
    gc.collect()
    assert not any(r() is not None for r in kept)


def test_inputs_that_require_grad_get_their_gradient() -> None:
    torch.manual_seed(0)
    model, x = Residual(), torch.randn(4, 8)
    rt = prepare(model, x, at="after:tanh")
    mine, theirs = x.clone().requires_grad_(), x.clone().requires_grad_()
    y = torch.randint(0, 3, (4,))
    boundary = rt.run_training_prefix(mine)
    rt.train_suffix(boundary, y)
    rt.backward_prefix(boundary)
    F.cross_entropy(model(theirs), y).backward()
    assert mine.grad is not None
    assert theirs.grad is not None
    assert torch.equal(mine.grad, theirs.grad)


def test_weights_loaded_or_cast_after_preparation_are_seen() -> None:
    torch.manual_seed(0)
    model, other = mlp().train(), mlp().train()
    x, y = torch.randn(6, 5), torch.randint(0, 4, (6,))
    rt = prepare(model, x, at="after:3")
    for dtype in (torch.float32, torch.float64):
        model.load_state_dict(other.state_dict())
        model.to(dtype).zero_grad()
        whole = copy.deepcopy(model)
        torch.manual_seed(1)
        boundary = rt.run_training_prefix(x.to(dtype))
        rt.train_suffix(boundary, y)
        rt.backward_prefix(boundary)
        torch.manual_seed(1)
        F.cross_entropy(whole(x.to(dtype)), y).backward()
        same_grads(model, whole)


def test_train_and_eval_may_be_switched_between_steps() -> None:
    torch.manual_seed(0)
    model = mlp().train()
    x, y = torch.randn(6, 5), torch.randint(0, 4, (6,))
    rt = prepare(model, x, at="after:3")
    for training in (True, False, True):
        model.train(training).zero_grad()
        whole = copy.deepcopy(model)
        torch.manual_seed(1)
        boundary = rt.run_training_prefix(x)
        rt.train_suffix(boundary, y)
        rt.backward_prefix(boundary)
        torch.manual_seed(1)
        F.cross_entropy(whole(x), y).backward()
        same_grads(model, whole)
        same_state(model, whole)


def test_a_training_boundary_carries_leaves_that_a_loop_of_ones_own_can_use() -> None:
    torch.manual_seed(0)
    model = mlp().eval()
    x = torch.randn(6, 5)
    rt = prepare(model, x, at="after:3")
    boundary = rt.run_training_prefix(x)
    rt.run_suffix(boundary).sum().backward()
    rt.backward_prefix(boundary, {label: t.grad for label, t in boundary.tensors.items()})
    whole = copy.deepcopy(model)
    whole.zero_grad()
    whole(x).sum().backward()
    same_grads(model, whole)


def test_several_boundaries_may_be_on_their_way() -> None:
    torch.manual_seed(0)
    model = mlp().eval()
    whole = copy.deepcopy(model)
    rt = prepare(model, torch.randn(6, 5), at="after:3")
    xs = [torch.randn(6, 5) for _ in range(3)]
    y = torch.randint(0, 4, (6,))
    boundaries = [rt.run_training_prefix(x) for x in xs]
    for boundary in boundaries:
        rt.train_suffix(boundary, y)
    for boundary in boundaries:
        rt.backward_prefix(boundary)
    for x in xs:
        F.cross_entropy(whole(x), y).backward()
    same_grads(model, whole)


class Drifting(torch.autograd.Function):
    """A backward that does not repeat itself, as atomic additions on GPUs do not."""

    drift, calls = 0.0, 0

    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        return x * 2

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> Tensor:
        Drifting.calls += 1
        return grad * (2 + Drifting.drift * (Drifting.calls % 7))


@pytest.mark.parametrize(("drift", "trains"), [(1e-6, True), (5e-4, True), (0.1, False)])
def test_gradients_that_eager_does_not_repeat_must_be_close(drift: float, trains: bool) -> None:
    torch.manual_seed(0)
    Drifting.drift = drift
    first, second = nn.Linear(5, 5), nn.Linear(5, 4)

    class Net(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.first, self.second = first, second

        def forward(self, x: Tensor) -> Tensor:
            return self.second(Drifting.apply(self.first(x)))

    x = torch.randn(6, 5)
    rt = prepare(Net(), x, at="after:first")
    if not trains:
        with pytest.raises(cleave.CaptureError, match="does not repeat"):
            rt.run_training_prefix(x)
        return
    boundary = rt.run_training_prefix(x)
    rt.train_suffix(boundary, torch.randint(0, 4, (6,)))
    rt.backward_prefix(boundary)
    assert first.weight.grad is not None


# ---- wrong use


def ready() -> tuple[cleave.SplitRuntime, Tensor, Tensor]:
    torch.manual_seed(0)
    x = torch.randn(6, 5)
    return prepare(mlp().train(), x, at="after:3"), x, torch.randint(0, 4, (6,))


def test_an_inference_boundary_cannot_train() -> None:
    rt, x, y = ready()
    boundary = rt.run_prefix(x)
    with pytest.raises(cleave.InputError, match="run_training_prefix"):
        rt.train_suffix(boundary, y)
    with pytest.raises(ValueError, match="run_training_prefix"):
        rt.backward_prefix(boundary, {})


def test_a_boundary_of_another_runtime_is_refused() -> None:
    rt, x, y = ready()
    other = prepare(mlp().train(), x, at="after:3")
    boundary = rt.run_training_prefix(x)
    with pytest.raises(cleave.InputError, match="weights"):
        other.train_suffix(boundary, y)
    _, grads = rt.train_suffix(boundary, y)
    with pytest.raises(cleave.InputError, match="not made by run_training_prefix of this runtime"):
        other.backward_prefix(boundary, grads)
    elsewhere = prepare(mlp().train(), x, at="after:1")
    with pytest.raises(cleave.InputError, match="belongs to split"):
        elsewhere.train_suffix(boundary, y)


def test_a_boundary_cannot_go_backward_twice() -> None:
    rt, x, y = ready()
    boundary = rt.run_training_prefix(x)
    _, grads = rt.train_suffix(boundary, y)
    rt.backward_prefix(boundary, grads)
    with pytest.raises(cleave.InputError, match="already"):
        rt.backward_prefix(boundary, grads)


def test_gradients_must_fit_the_boundary() -> None:
    rt, x, y = ready()
    boundary = rt.run_training_prefix(x)
    with pytest.raises(cleave.InputError, match="train_suffix has not"):
        rt.backward_prefix(boundary)
    _, grads = rt.train_suffix(boundary, y)
    (label,) = grads
    grad = grads[label]
    assert grad is not None
    with pytest.raises(cleave.InputError, match=f"lacks {label}"):
        rt.backward_prefix(boundary, {})
    with pytest.raises(cleave.InputError, match="no label"):
        rt.backward_prefix(boundary, {**grads, "%999": grad})
    with pytest.raises(cleave.InputError, match="shape"):
        rt.backward_prefix(boundary, {label: grad[:2]})
    with pytest.raises(cleave.InputError, match="dtype"):
        rt.backward_prefix(boundary, {label: grad.double()})
    with pytest.raises(TypeError, match="dict"):
        rt.backward_prefix(boundary, [grad])  # type: ignore[arg-type]
    with pytest.raises(TypeError, match="tensor or None"):
        rt.backward_prefix(boundary, {label: 1.0})  # type: ignore[dict-item]
    rt.backward_prefix(boundary, {label: None})


def test_raw_tensors_are_no_boundary() -> None:
    rt, x, y = ready()
    with pytest.raises(TypeError, match="BoundaryPayload"):
        rt.train_suffix(x, y)  # type: ignore[arg-type]
    with pytest.raises(TypeError, match="BoundaryPayload"):
        rt.backward_prefix(x, {})  # type: ignore[arg-type]


def test_losses_must_be_one_number_that_depends_on_what_is_trained() -> None:
    rt, x, y = ready()
    boundary = rt.run_training_prefix(x)
    with pytest.raises(TypeError, match="one element"):
        rt.train_suffix(boundary, y, loss_fn=lambda out, _: out)
    with pytest.raises(TypeError, match="one element"):
        rt.train_suffix(boundary, y, loss_fn=lambda out, _: 1.0)  # type: ignore[arg-type,return-value]
    with pytest.raises(cleave.InputError, match="depends on nothing"):
        rt.train_suffix(boundary, y, loss_fn=lambda out, _: torch.zeros(()))
    with pytest.raises(TypeError, match="targets"):
        rt.train_suffix(boundary, None)


def test_a_model_with_a_structure_for_output_needs_a_loss() -> None:
    class Pair(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.a, self.b = nn.Linear(5, 5), nn.Linear(5, 4)

        def forward(self, x: Tensor) -> dict[str, Tensor]:
            h = self.a(x)
            return {"logits": self.b(h), "features": h}

    torch.manual_seed(0)
    rt = prepare(Pair(), torch.randn(6, 5), at="after:a")
    boundary = rt.run_training_prefix(torch.randn(6, 5))
    with pytest.raises(TypeError, match="loss_fn"):
        rt.train_suffix(boundary, torch.zeros(6, dtype=torch.long))
    both = lambda out, y: F.cross_entropy(out["logits"], y) + out["features"].square().mean()  # noqa: E731
    train_both(Pair(), rows(5), classes(4), "after:a", loss=both)


# ---- halves


def test_a_half_names_its_own_parameters() -> None:
    rt, _, _ = ready()
    assert sorted(rt.state("suffix")) == ["4.bias", "4.weight", "7.bias", "7.weight"]
    assert "1.running_mean" in rt.state("prefix")
    with pytest.raises(cleave.SplitError, match="prefix"):
        rt.state("middle")


def test_a_runtime_may_keep_one_half_only() -> None:
    torch.manual_seed(0)
    model = mlp().eval()
    x = torch.randn(6, 5)
    want = model(x).detach()
    suffix_model = copy.deepcopy(model)
    device, server = prepare(model, x, at="after:3"), prepare(suffix_model, x, at="after:3")
    device.keep_only("prefix")
    server.keep_only("suffix")
    assert model[7].weight.is_meta
    assert suffix_model[0].weight.is_meta
    assert torch.equal(server.run_suffix(device.run_prefix(x)), want)
    with pytest.raises(cleave.InputError, match="only the prefix"):
        device.run_suffix(device.run_prefix(x))
    with pytest.raises(cleave.InputError, match="only the suffix"):
        server.run_prefix(x)
    with pytest.raises(cleave.InputError, match="only the prefix"):
        device.run_training_prefix(x)


def test_a_half_says_what_it_cannot_do() -> None:
    torch.manual_seed(0)
    rt = prepare(mlp().eval(), torch.randn(6, 5), at="after:3")
    rt.prepare_sizes(11)
    rt.keep_only("prefix")
    assert rt.run_prefix(torch.randn(11, 5)).batch_size == 11
    with pytest.raises(cleave.InputError, match=r"B=23 was never seen.*prepare_sizes"):
        rt.run_prefix(torch.randn(23, 5))
    with pytest.raises(cleave.InputError, match="only the prefix"):
        rt.refresh_weights()


def test_weights_of_another_version_are_refused_until_both_sides_have_them() -> None:
    torch.manual_seed(0)
    a, b, new = mlp().eval(), mlp().eval(), mlp().eval()
    b.load_state_dict(a.state_dict())
    x = torch.randn(6, 5)
    one, two = prepare(a, x, at="after:3"), prepare(b, x, at="after:3")
    assert torch.equal(two.run_suffix(one.run_prefix(x)), a(x).detach())
    b.load_state_dict(new.state_dict())
    two.refresh_weights()
    with pytest.raises(cleave.InputError, match="weights"):
        two.run_suffix(one.run_prefix(x))
    a.load_state_dict(new.state_dict())
    one.refresh_weights()
    assert torch.equal(two.run_suffix(one.run_prefix(x)), new(x).detach())

"""Steps across a cut: which gradient counts, which optimizer steps a parameter, and where the cut is, at every size and
in every mode. All is compared with the plain loop on the whole model."""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterable
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from test_training import prepare, same_grads, same_state, sgd
from torch import Tensor, nn

import cleave
from cleave.validation import assert_gradient_equivalent

Loss = Callable[[Tensor, Tensor], Tensor]


def batch(rows: int, seed: int, features: int = 5, n: int = 4) -> tuple[Tensor, Tensor]:
    generator = torch.Generator().manual_seed(seed)
    return torch.randn(rows, features, generator=generator), torch.randint(0, n, (rows,), generator=generator)


def step(rt: cleave.SplitRuntime, x: Tensor, y: Tensor, tail: Any, head: Any, loss: Loss | None = None) -> Tensor:
    boundary = rt.run_training_prefix(x)
    got, grads = rt.train_suffix(boundary, y, loss_fn=loss, optimizer=tail)
    rt.backward_prefix(boundary, grads, optimizer=head)
    return got


def whole_step(model: nn.Module, x: Tensor, y: Tensor, optimizer: torch.optim.Optimizer, loss: Loss) -> Tensor:
    optimizer.zero_grad()
    want = loss(model(x), y)
    want.backward()
    optimizer.step()
    return want.detach()


def halves(rt: cleave.SplitRuntime) -> tuple[torch.optim.Optimizer, torch.optim.Optimizer]:
    """Of the suffix, of the prefix."""
    return sgd(rt.parameters("suffix")), sgd(rt.parameters("prefix"))


class BySize(nn.Module):
    """A layer that runs for more than six rows, after `b`."""

    def __init__(self) -> None:
        super().__init__()
        self.a, self.b, self.extra, self.c = nn.Linear(5, 5), nn.Linear(5, 5), nn.Linear(5, 5), nn.Linear(5, 4)

    def forward(self, x: Tensor) -> Tensor:
        x = torch.relu(self.b(torch.relu(self.a(x))))
        return self.c(torch.relu(self.extra(x)) if x.shape[0] > 6 else x)


class ByMode(nn.Module):
    """A head that runs in train mode alone."""

    def __init__(self) -> None:
        super().__init__()
        self.a, self.b, self.aux = nn.Linear(5, 5), nn.Linear(5, 4), nn.Linear(5, 4)

    def forward(self, x: Tensor) -> Tensor:
        x = torch.relu(self.a(x))
        return self.b(x) + self.aux(x) if self.training else self.b(x)


@pytest.mark.parametrize("one", [False, True])
@pytest.mark.parametrize("at", ["after:a", "after:b", "50%"])
def test_a_layer_that_runs_at_some_sizes_is_stepped_when_it_runs(at: str, one: bool) -> None:
    torch.manual_seed(0)
    model = BySize()
    whole = copy.deepcopy(model)
    rt = prepare(model, torch.randn(4, 5), at=at)
    tail, head = halves(rt)
    if one:
        tail = head = sgd(model.parameters())
    all_ = sgd(whole.parameters())
    for seed, rows in enumerate((4, 8, 4, 5, 9, 4)):
        x, y = batch(rows, seed)
        assert torch.equal(step(rt, x, y, tail, head), whole_step(whole, x, y, all_, F.cross_entropy))
        same_grads(model, whole)
        same_state(model, whole)


@pytest.mark.parametrize("training", [True, False])
def test_a_head_that_runs_in_train_mode_is_stepped_when_it_runs(training: bool) -> None:
    torch.manual_seed(0)
    model = ByMode().train(training)
    whole = copy.deepcopy(model)
    rt = prepare(model, torch.randn(4, 5), at="after:relu")
    tail, head = halves(rt)
    all_ = sgd(whole.parameters())
    for seed, mode in enumerate((True, False, False, True)):
        x, y = batch(4, seed)
        model.train(mode)
        whole.train(mode)
        step(rt, x, y, tail, head)
        whole_step(whole, x, y, all_, F.cross_entropy)
        same_grads(model, whole)
        same_state(model, whole)


# ---- losses that have or read parameters


class Weighted(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(4))

    def forward(self, output: Tensor, targets: Tensor) -> Tensor:
        return F.cross_entropy(output * self.weight, targets)


@pytest.mark.parametrize("where", ["suffix", "prefix", "both", "one"])
def test_parameters_of_a_loss_are_stepped_once_by_whoever_holds_them(where: str) -> None:
    torch.manual_seed(0)
    model, loss = BySize(), Weighted()
    whole, other = copy.deepcopy(model), copy.deepcopy(loss)
    rt = prepare(model, torch.randn(4, 5), at="after:b")
    mine = {half: list(loss.parameters()) if where in (half, "both") else [] for half in ("prefix", "suffix")}
    tail, head = (sgd([*rt.parameters(half), *mine[half]]) for half in ("suffix", "prefix"))
    if where == "one":
        tail = head = sgd([*model.parameters(), *loss.parameters()])
    all_ = sgd([*whole.parameters(), *other.parameters()])
    for seed in range(4):
        x, y = batch(4, seed)
        step(rt, x, y, tail, head, loss)
        whole_step(whole, x, y, all_, other)
        same_grads(loss, other)
        same_state(model, whole)
        same_state(loss, other)


class Tied(nn.Module):
    """One weight read once before the cut, and twice after it."""

    def __init__(self) -> None:
        super().__init__()
        self.a, self.b, self.c = nn.Linear(5, 5), nn.Linear(5, 5), nn.Linear(5, 4)

    def forward(self, x: Tensor) -> Tensor:
        h = torch.relu(self.b(torch.tanh(self.a(x))))
        return self.c(torch.tanh(F.linear(torch.tanh(self.a(h)), self.a.weight.t())))


def penalty(model: nn.Module) -> Loss:
    return lambda out, y: F.cross_entropy(out, y) + 0.03 * sum(p.square().sum() + p.sum() for p in model.parameters())


@pytest.mark.parametrize("gathered", [1, 2])
@pytest.mark.parametrize("kind", [BySize, Tied])
def test_a_penalty_on_parameters_of_both_halves_is_part_of_one_gradient(kind: type[nn.Module], gathered: int) -> None:
    torch.manual_seed(0)
    model = kind()
    whole = copy.deepcopy(model)
    rt = prepare(model, torch.randn(4, 5), at="after:b")
    tail, head = halves(rt)
    all_ = sgd(whole.parameters())
    for round_ in range(3):
        all_.zero_grad()
        for k in range(gathered):
            x, y = batch(4 + 4 * k, 10 * round_ + k)
            last = k + 1 == gathered
            step(rt, x, y, tail if last else None, head if last else None, penalty(model))
            penalty(whole)(whole(x), y).backward()
        all_.step()
        same_grads(model, whole)
        same_state(model, whole)


def test_hooks_on_a_parameter_of_both_halves_see_its_whole_gradient_once() -> None:
    torch.manual_seed(0)
    model = Tied()
    whole = copy.deepcopy(model)
    rt = prepare(model, torch.randn(4, 5), at="after:b")
    step(rt, *batch(4, 9), None, None)
    model.zero_grad()
    seen: dict[str, list[Tensor]] = {"split": [], "whole": []}
    for name, net in (("split", model), ("whole", whole)):
        weight = net.a.weight
        assert isinstance(weight, Tensor)
        weight.register_hook(lambda g: g.clamp(-0.01, 0.01))  # type: ignore[no-untyped-call]
        weight.register_post_accumulate_grad_hook(lambda p, to=seen[name]: to.append(p.grad.clone()))  # type: ignore[misc]
    x, y = batch(4, 1)
    step(rt, x, y, None, None, penalty(model))
    penalty(whole)(whole(x), y).backward()
    same_grads(model, whole)
    assert len(seen["split"]) == len(seen["whole"]) == 1
    assert torch.equal(seen["split"][0], seen["whole"][0])


# ---- several splits


def test_two_splits_of_one_model_agree_on_what_was_stepped() -> None:
    torch.manual_seed(0)
    model, loss = BySize(), Weighted()
    whole, other = copy.deepcopy(model), copy.deepcopy(loss)
    splits = [prepare(model, torch.randn(4, 5), at=at) for at in ("after:b", "after:a")]
    one = sgd([*model.parameters(), *loss.parameters()])
    all_ = sgd([*whole.parameters(), *other.parameters()])
    for seed, gathered in enumerate((False, False, True, False, True, False)):
        x, y = batch(4 + 4 * (seed % 2), seed)
        optimizer = None if gathered else one
        step(splits[seed % 2], x, y, optimizer, optimizer, loss)
        other(whole(x), y).backward()
        if not gathered:
            all_.step()
            same_grads(model, whole)
            same_grads(loss, other)
            all_.zero_grad()
        same_state(model, whole)
        same_state(loss, other)


def test_models_that_share_a_layer_or_a_loss_agree_on_what_was_stepped() -> None:
    torch.manual_seed(0)
    shared, loss = nn.Linear(5, 5), Weighted()
    models = [nn.Sequential(nn.Linear(5, 5), shared, nn.ReLU(), nn.Linear(5, 4)) for _ in range(2)]
    twins, other = copy.deepcopy((models, loss))
    splits = [prepare(m, torch.randn(4, 5), at=at) for m, at in zip(models, ("after:0", "after:2"), strict=True)]
    one, all_ = (
        sgd([*a.parameters(), *b[0].parameters(), *b[3].parameters(), *criterion.parameters()])
        for (a, b), criterion in ((models, loss), (twins, other))
    )
    for seed, (which, gathered) in enumerate([(0, False), (1, True), (0, False), (1, False), (0, True), (1, False)]):
        x, y = batch(4, seed)
        optimizer = None if gathered else one
        step(splits[which], x, y, optimizer, optimizer, loss)
        other(twins[which](x), y).backward()
        if not gathered:
            all_.step()
            all_.zero_grad()
        for m, t in zip((*models, loss), (*twins, other), strict=True):
            same_state(m, t)


def test_a_check_between_two_steps_does_not_bring_back_what_was_stepped() -> None:
    torch.manual_seed(0)
    model, loss = BySize(), Weighted()
    whole, other = copy.deepcopy(model), copy.deepcopy(loss)
    rt = prepare(model, torch.randn(4, 5), at="after:b")
    one = sgd([*model.parameters(), *loss.parameters()])
    all_ = sgd([*whole.parameters(), *other.parameters()])
    for seed in range(3):
        x, y = batch(4, seed)
        step(rt, x, y, one, one, loss)
        whole_step(whole, x, y, all_, other)
        assert_gradient_equivalent(model, rt, (x,), y, loss_fn=loss)
        same_grads(model, whole)
        same_grads(loss, other)
        same_state(model, whole)


# ---- optimizers


def groups(tensors: Iterable[Tensor]) -> list[torch.optim.Optimizer]:
    every = list(tensors)
    return [sgd([t for t in every if t.dim() > 1]), torch.optim.Adam([t for t in every if t.dim() == 1], lr=0.01)]


@pytest.mark.parametrize("how", ["lists", "apart"])
def test_several_optimizers_step_what_each_of_them_holds(how: str) -> None:
    torch.manual_seed(0)
    model = Tied()
    whole = copy.deepcopy(model)
    rt = prepare(model, torch.randn(4, 5), at="after:b")
    mine, theirs = groups(model.parameters()), groups(whole.parameters())
    suffix = {id(p) for p in rt.parameters("suffix")}
    for seed in range(3):
        x, y = batch(4, seed)
        if how == "lists":
            step(rt, x, y, mine, mine)
        else:  # the suffix's are all with one of them, which has weights of the prefix too; the other has the rest
            for p in (p for p in model.parameters() if p.dim() == 1):
                p.requires_grad_(id(p) not in suffix)
            for (_, p), q in zip(model.named_parameters(), whole.parameters(), strict=True):
                q.requires_grad_(p.requires_grad)
            step(rt, x, y, mine[0], mine[1])
        for o in theirs:
            o.zero_grad()
        F.cross_entropy(whole(x), y).backward()
        for o in theirs:
            o.step()
        same_state(model, whole)


def test_what_gets_a_gradient_and_has_no_optimizer_is_an_error_before_anything_is_stepped() -> None:
    torch.manual_seed(0)
    model = BySize()
    rt = prepare(model, torch.randn(4, 5), at="after:relu")
    some, bias = sgd([*model.b.parameters(), *model.c.parameters()]), sgd([model.a.bias])
    before = copy.deepcopy(model)
    x, y = batch(8, 0)
    boundary = rt.run_training_prefix(x)
    with pytest.raises(cleave.InputError, match=r"extra.weight, extra.bias.*add it to the optimizer.*freeze"):
        rt.train_suffix(boundary, y, optimizer=some)
    assert all(p.grad is None for p in model.parameters())
    same_state(model, before)
    rt.train_suffix(boundary, y, optimizer=[some, sgd(model.extra.parameters())])
    with pytest.raises(cleave.InputError, match=r"a.weight: .*add it to the optimizer.*freeze"):
        rt.backward_prefix(boundary, optimizer=bias)
    same_state(model.a, before.a)
    rt.backward_prefix(boundary, optimizer=[bias, sgd([model.a.weight])])  # the graph is still there
    model.a.weight.requires_grad_(False)
    model.extra.requires_grad_(False)
    step(rt, x, y, some, bias)  # frozen, nothing is missing


def test_a_layer_of_either_half_needs_an_optimizer_of_one() -> None:
    torch.manual_seed(0)
    model = BySize()
    whole = copy.deepcopy(model)
    rt = prepare(model, torch.randn(4, 5), at="after:b")  # nothing says on which side `extra` will be
    tail, head = sgd(model.c.parameters()), sgd([*model.a.parameters(), *model.b.parameters()])
    x, y = batch(8, 0)
    boundary = rt.run_training_prefix(x)
    rt.train_suffix(boundary, y, optimizer=tail)
    with pytest.raises(cleave.InputError, match=r"extra.weight, extra.bias.*add it to the optimizer"):
        rt.backward_prefix(boundary, optimizer=head)
    rt.backward_prefix(boundary, optimizer=[head, sgd(model.extra.parameters())])
    whole_step(whole, x, y, sgd(whole.parameters()), F.cross_entropy)
    same_state(model, whole)


def test_what_the_loss_does_not_reach_needs_no_optimizer() -> None:
    class TwoHeads(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.a, self.b, self.other = nn.Linear(5, 5), nn.Linear(5, 4), nn.Linear(5, 4)

        def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
            h = torch.relu(self.a(x))
            return self.b(h), self.other(h)

    torch.manual_seed(0)
    model = TwoHeads()
    rt = prepare(model, torch.randn(4, 5), at="after:relu")
    first: Any = lambda out, y: F.cross_entropy(out[0], y)  # noqa: E731
    whole = copy.deepcopy(model)
    step(rt, *batch(4, 0), sgd(model.b.parameters()), sgd(model.a.parameters()), first)
    whole_step(whole, *batch(4, 0), sgd(whole.parameters()), first)
    same_state(model, whole)


def test_an_optimizer_with_hooks_is_not_stepped_twice() -> None:
    torch.manual_seed(0)
    model = BySize()
    rt = prepare(model, torch.randn(4, 5), at="after:b")
    one, calls = sgd(model.parameters()), []
    one.register_step_post_hook(lambda *_: calls.append(1))
    boundary = rt.run_training_prefix(torch.randn(4, 5))
    y = torch.zeros(4, dtype=torch.long)
    with pytest.raises(cleave.InputError, match="hooks would run twice"):
        rt.train_suffix(boundary, y, optimizer=one)
    rt.train_suffix(boundary, y)
    rt.backward_prefix(boundary, optimizer=one)
    assert calls == [1]


def test_parameters_of_what_made_the_input_wait_for_the_whole_gradient() -> None:
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(5, 5), nn.ReLU(), nn.Linear(5, 5), nn.Linear(5, 4))
    whole = copy.deepcopy(model)
    rt = prepare(model, torch.randn(4, 5).requires_grad_(), at="after:1")
    one, all_ = sgd(model.parameters()), sgd(whole.parameters())
    for seed in range(3):
        x, y = batch(4, seed)
        step(rt, model[2](x), y, one, one)  # made by a layer of the suffix
        all_.zero_grad()
        F.cross_entropy(whole(whole[2](x)), y).backward()
        all_.step()
        same_state(model, whole)


# ---- the half of a parameter, the place of a cut


class Routed(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.a, self.gate = nn.Linear(5, 5), nn.Linear(5, 4)
        self.experts = nn.ModuleList(nn.Linear(5, 5) for _ in range(4))
        self.c = nn.Linear(5, 4)

    def forward(self, x: Tensor) -> Tensor:
        x = torch.relu(self.a(x))
        weights = self.gate(x).softmax(-1)
        chosen, out = weights.argmax(-1), torch.zeros_like(x)
        for i, expert in enumerate(self.experts):
            rows = (chosen == i).nonzero().squeeze(-1)
            if rows.numel():
                out = out.index_add(0, rows, expert(x[rows]) * weights[rows, i : i + 1])
        return self.c(out)


def test_experts_that_the_example_does_not_reach_belong_to_their_half() -> None:
    unused = 0
    for seed in range(12):
        torch.manual_seed(seed)
        model = Routed()
        whole = copy.deepcopy(model)
        try:
            rt = prepare(model, torch.randn(4, 5), at="after:relu")
        except cleave.CaptureError:  # the example is routed as no record of a few rows is
            continue
        unused += len(rt.parameters("suffix")) - len(rt.state("suffix"))
        first = {id(p) for p in model.a.parameters()}
        assert {id(p) for p in rt.parameters("prefix")} == first
        assert {id(p) for p in rt.parameters("suffix")} == {id(p) for p in model.parameters()} - first
        tail, head = halves(rt)
        all_ = sgd(whole.parameters())
        for k in range(5):
            x, y = batch(3 + k, 10 * seed + k)
            try:
                step(rt, x, y, tail, head)
            except cleave.CleaveError:  # another routing at a size that was seen
                break
            whole_step(whole, x, y, all_, F.cross_entropy)
            same_state(model, whole)
    assert unused > 0


def test_what_never_runs_goes_with_the_module_around_it_or_with_what_is_before_it() -> None:
    class Inner(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.spare, self.used = nn.Linear(5, 5), nn.Linear(5, 5)

        def forward(self, x: Tensor) -> Tensor:
            return torch.relu(self.used(x))

    class Outer(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.first, self.after_first, self.second = Inner(), nn.Parameter(torch.ones(5)), Inner()
            self.last = nn.Linear(5, 5)

        def forward(self, x: Tensor) -> Tensor:
            return self.second(self.first(x))

    rt = prepare(Outer(), torch.randn(4, 5), at="after:first")
    names = {id(p): name for name, p in rt._target.call.named_parameters()}  # type: ignore[attr-defined]
    assert sorted({names[id(p)].split(".weight")[0].split(".bias")[0] for p in rt.parameters("prefix")}) == [
        "after_first",
        "first.spare",
        "first.used",
    ]
    assert len(rt.parameters("suffix")) == 6
    assert set(names) == {id(p) for half in ("prefix", "suffix") for p in rt.parameters(half)}


class MoreBefore(nn.Module):
    """For many rows a layer more, and its activation, before the one after which it is cut."""

    def __init__(self) -> None:
        super().__init__()
        self.a, self.extra, self.b, self.c = nn.Linear(5, 5), nn.Linear(5, 5), nn.Linear(5, 5), nn.Linear(5, 4)

    def forward(self, x: Tensor) -> Tensor:
        x = torch.relu(self.a(x))
        if x.shape[0] > 6:
            x = torch.relu(self.extra(x))
        x = torch.relu(self.b(x))
        return self.c(x)


@pytest.mark.parametrize("at", ["after:relu_1", "after:relu", "after:b"])
def test_a_cut_is_at_the_same_place_at_every_size(at: str) -> None:
    torch.manual_seed(0)
    model = MoreBefore()
    whole = copy.deepcopy(model)
    rt = prepare(model, torch.randn(4, 5), at=at)
    tail, head = halves(rt)
    all_ = sgd(whole.parameters())
    for seed, rows in enumerate((4, 8, 4, 9)):
        x, y = batch(rows, seed)
        step(rt, x, y, tail, head)
        whole_step(whole, x, y, all_, F.cross_entropy)
        same_state(model, whole)
    before = {"after:relu": {"a"}, "after:b": {"a", "b"}, "after:relu_1": {"a", "b"}}[at]
    for cut in rt._plans():
        assert {name.split(".")[0] for name in cut.names["prefix"]} - {"extra"} == before


@pytest.mark.parametrize("exact", [False, True])
def test_a_size_at_which_a_parameter_would_change_sides_is_refused_by_name(exact: bool) -> None:
    class Swapped(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.a, self.b, self.c = nn.Linear(5, 5), nn.Linear(5, 5), nn.Linear(5, 4)

        def forward(self, x: Tensor) -> Tensor:
            one, two = (self.a, self.b) if x.shape[0] <= 6 else (self.b, self.a)
            return self.c(torch.relu(two(torch.relu(one(x)))))

    torch.manual_seed(0)
    model = Swapped()
    how: Any = {"exact": True, "must_prefix": ("a",), "must_suffix": ("b",)} if exact else {}
    rt = prepare(model, torch.randn(4, 5), at="auto" if exact else "after:a", **how)
    tail, head = halves(rt)
    step(rt, *batch(4, 0), tail, head)
    x, _ = batch(8, 0)
    with pytest.raises(cleave.SplitError, match=r"B=8"):
        rt.run_training_prefix(x)
    if not exact:  # without gradients any place is right
        with torch.no_grad():
            assert torch.equal(rt.run_suffix(rt.run_prefix(x)), model(x))


def test_an_exact_cut_is_at_the_same_place_at_every_size() -> None:
    torch.manual_seed(0)
    model = MoreBefore()
    whole = copy.deepcopy(model)
    rt = prepare(model, torch.randn(4, 5), at="auto", exact=True, must_prefix=("a",), must_suffix=("b",))
    tail, head = halves(rt)
    all_ = sgd(whole.parameters())
    for seed, rows in enumerate((4, 8, 4, 9)):
        x, y = batch(rows, seed)
        step(rt, x, y, tail, head)
        whole_step(whole, x, y, all_, F.cross_entropy)
        same_state(model, whole)


# ---- graphs that would be cut off


def test_a_backward_within_the_loss_is_refused() -> None:
    torch.manual_seed(0)
    model = BySize()
    rt = prepare(model, torch.randn(4, 5), at="after:b")
    before = copy.deepcopy(model)

    def loss(out: Tensor, y: Tensor) -> Tensor:
        out.square().mean().backward(retain_graph=True)  # type: ignore[no-untyped-call]
        return F.cross_entropy(out, y)

    x, y = batch(4, 0)
    with pytest.raises(cleave.InputError, match=r"loss_fn has run a backward\(\)"):
        step(rt, x, y, *halves(rt), loss)
    same_state(model, before)


def test_a_loss_may_take_gradients_of_what_it_sees() -> None:
    torch.manual_seed(0)
    model = Tied()
    whole = copy.deepcopy(model)
    rt = prepare(model, torch.randn(4, 5), at="after:b")

    def smooth(net: nn.Module) -> Loss:
        def loss(out: Tensor, y: Tensor) -> Tensor:
            plain = F.cross_entropy(out, y)
            (slope,) = torch.autograd.grad(plain, net.c.weight, create_graph=True)  # type: ignore[union-attr]
            return plain + slope.square().sum()

        return loss

    tail, head = halves(rt)
    all_ = sgd(whole.parameters())
    for seed in range(3):
        x, y = batch(4, seed)
        step(rt, x, y, tail, head, smooth(model))
        whole_step(whole, x, y, all_, smooth(whole))
        same_state(model, whole)


@pytest.mark.parametrize("kind", [BySize, Tied])
@pytest.mark.parametrize("times", [2, 3])
def test_every_train_suffix_on_a_boundary_counts(kind: type[nn.Module], times: int) -> None:
    torch.manual_seed(0)
    model = kind()
    whole = copy.deepcopy(model)
    rt = prepare(model, torch.randn(4, 5), at="after:b")
    one, all_ = sgd(model.parameters()), sgd(whole.parameters())
    for seed in range(3):
        x, _ = batch(4, seed)
        targets = [batch(4, 10 * seed + k)[1] for k in range(times)]
        boundary = rt.run_training_prefix(x)
        for y in targets:
            rt.train_suffix(boundary, y)
        rt.backward_prefix(boundary, optimizer=one)
        all_.zero_grad()
        out = whole(x)
        for y in targets:
            F.cross_entropy(out, y).backward(retain_graph=True)  # type: ignore[no-untyped-call]
        all_.step()
        same_grads(model, whole)
        same_state(model, whole)


def test_gradients_of_one_call_alone_are_refused_where_each_call_left_a_part_of_a_tied_weight() -> None:
    torch.manual_seed(0)
    rt = prepare(Tied(), torch.randn(4, 5), at="after:b")
    x, y = batch(4, 0)
    boundary = rt.run_training_prefix(x)
    rt.train_suffix(boundary, y)
    _, grads = rt.train_suffix(boundary, y)
    with pytest.raises(cleave.InputError, match=r"2 times.*without boundary_grads"):
        rt.backward_prefix(boundary, grads)
    rt.backward_prefix(boundary)


class Recurrent(nn.Module):
    def __init__(self, detach: bool) -> None:
        super().__init__()
        self.a, self.cell, self.c = nn.Linear(5, 5), nn.RNNCell(5, 5), nn.Linear(5, 4)
        self.state, self.detach = torch.zeros(4, 5), detach

    def forward(self, x: Tensor) -> Tensor:
        state = self.cell(torch.relu(self.a(x)), self.state)
        self.state = state.detach() if self.detach else state
        return self.c(state)


@pytest.mark.parametrize("at", ["after:relu", "after:cell"])
def test_state_that_is_kept_with_its_graph_is_refused_by_name(at: str) -> None:
    torch.manual_seed(0)
    model = Recurrent(detach=False)
    rt = prepare(model, torch.randn(4, 5), at=at, dynamic_batch=None)
    tail, head = halves(rt)
    step(rt, *batch(4, 0), tail, head)
    after = {name: t.clone() for name, t in model.state_dict().items()}
    with pytest.raises(cleave.InputError, match=r"^state: it is kept from an earlier step.*detach"):
        step(rt, *batch(4, 1), tail, head)
    assert all(torch.equal(t, model.state_dict()[name]) for name, t in after.items())
    model.state = model.state.detach()
    step(rt, *batch(4, 1), tail, head)


def test_state_that_is_detached_may_be_kept() -> None:
    torch.manual_seed(0)
    model = Recurrent(detach=True)
    whole = copy.deepcopy(model)
    with pytest.raises(cleave.SplitError, match="@state is used on both sides of the cut"):
        prepare(model, torch.randn(4, 5), at="after:cell", dynamic_batch=None)
    rt = prepare(model, torch.randn(4, 5), at="after:relu", dynamic_batch=None)
    tail, head = halves(rt)
    all_ = sgd(whole.parameters())
    for seed in range(4):
        x, y = batch(4, seed)
        step(rt, x, y, tail, head)
        whole_step(whole, x, y, all_, F.cross_entropy)
        same_state(model, whole)
        assert torch.equal(model.state, whole.state)


def test_what_a_loss_keeps_with_its_graph_is_refused() -> None:
    torch.manual_seed(0)
    model = BySize()
    rt = prepare(model, torch.randn(4, 5), at="after:b")
    kept: list[Tensor] = []

    def loss(out: Tensor, y: Tensor) -> Tensor:
        kept.append(out.mean(0))
        return F.cross_entropy(out, y) + sum(k.square().sum() for k in kept)

    step(rt, *batch(4, 0), None, None, loss)
    with pytest.raises((cleave.InputError, RuntimeError)):
        step(rt, *batch(4, 1), None, None, loss)


def test_what_a_forward_leaves_with_the_model_may_be_part_of_the_loss() -> None:
    class Auxiliary(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.a, self.b = nn.Linear(5, 5), nn.Linear(5, 4)
            self.aux: Tensor | None = None

        def forward(self, x: Tensor) -> Tensor:
            h = self.a(x)
            self.aux = h.square().mean()
            return self.b(torch.relu(h))

    def balanced(net: Auxiliary) -> Loss:
        return lambda out, y: F.cross_entropy(out, y) + (0 if net.aux is None else net.aux)

    torch.manual_seed(0)
    model = Auxiliary()
    whole = copy.deepcopy(model)
    rt = prepare(model, torch.randn(4, 5), at="after:relu")
    tail, head = halves(rt)
    all_ = sgd(whole.parameters())
    for seed in range(3):
        x, y = batch(4, seed)
        step(rt, x, y, tail, head, balanced(model))
        whole_step(whole, x, y, all_, balanced(whole))
        same_state(model, whole)


# ---- two processes


def test_a_half_keeps_what_its_plans_for_other_sizes_and_modes_read() -> None:
    torch.manual_seed(0)
    x, y = batch(8, 0)
    models: list[Any] = [BySize(), BySize()]
    models[1].load_state_dict(models[0].state_dict())
    whole = copy.deepcopy(models[0])
    here, there = (prepare(m, torch.randn(4, 5), at="after:b", trainable=True) for m in models)
    for rt, half in ((here, "prefix"), (there, "suffix")):
        rt.prepare_sizes(4, 8)
        rt.keep_only(half)
    assert [m.extra.weight.is_meta for m in models] == [True, False]
    tail, head, all_ = sgd(there.parameters("suffix")), sgd(here.parameters("prefix")), sgd(whole.parameters())
    for _ in range(3):
        boundary = here.run_training_prefix(x)
        _, grads = there.train_suffix(cleave.BoundaryPayload.from_bytes(boundary.to_bytes()), y, optimizer=tail)
        here.backward_prefix(boundary, grads, optimizer=head)
        whole_step(whole, x, y, all_, F.cross_entropy)
    state = {**here.state("prefix"), **there.state("suffix"), "extra.weight": models[1].extra.weight}
    for name, t in state.items():
        assert torch.equal(t, whole.state_dict()[name]), name


def test_a_weight_that_is_tied_at_some_sizes_only_keeps_the_halves_together() -> None:
    class SometimesTied(BySize):
        def forward(self, x: Tensor) -> Tensor:
            h = torch.relu(self.b(torch.relu(self.a(x))))
            return self.c(torch.relu(self.a(h)) if x.shape[0] > 6 else h)

    torch.manual_seed(0)
    model = SometimesTied()
    whole = copy.deepcopy(model)
    rt = prepare(model, torch.randn(4, 5), at="after:b", trainable=True)
    tail, head = halves(rt)
    all_ = sgd(whole.parameters())
    for seed, rows in enumerate((4, 8, 8, 4, 9)):
        x, y = batch(rows, seed)
        step(rt, x, y, tail, head)
        whole_step(whole, x, y, all_, F.cross_entropy)
        same_state(model, whole)
    with pytest.raises(cleave.InputError, match=r"^a\.(weight|bias) is used by both halves.*one process"):
        rt.keep_only("suffix")


def test_a_loss_in_another_process_must_not_read_the_prefix() -> None:
    torch.manual_seed(0)
    model = BySize()
    here, there = (prepare(m, torch.randn(4, 5), at="after:b") for m in (model, copy.deepcopy(model)))
    wire = cleave.BoundaryPayload.from_bytes(here.run_training_prefix(torch.randn(4, 5)).to_bytes())
    other: Any = there._target.call
    with pytest.raises(cleave.InputError, match="parameter of the prefix"):
        there.train_suffix(wire, torch.zeros(4, dtype=torch.long), loss_fn=penalty(other))


def test_an_optimizer_that_runs_the_model_again_is_refused_before_anything_runs() -> None:
    net = nn.Sequential(nn.Linear(4, 8), nn.ReLU(), nn.Linear(8, 2))
    x = torch.randn(3, 4)
    rt = cleave.prepare_split(net, example_inputs=(x,), split=cleave.SplitSpec(boundary="50%"))
    boundary = rt.run_training_prefix(x)
    with pytest.raises(TypeError, match=r"LBFGS runs the model again.*SGD"):
        rt.train_suffix(boundary, torch.randn(3, 2), optimizer=torch.optim.LBFGS(rt.parameters("suffix")))
    assert all(p.grad is None for p in net.parameters())

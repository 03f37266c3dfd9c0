"""What a new user does with a split, right and wrong: equal to eager bit for bit, or refused with a reason."""

from __future__ import annotations

import copy
import dataclasses
import pickle
from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

import cleave


def net() -> nn.Sequential:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(4, 8), nn.ReLU(), nn.Linear(8, 8), nn.Tanh(), nn.Linear(8, 2)).eval()


X = torch.randn(3, 4)
GOALS = torch.zeros(3, 2)


def prepare(model: nn.Module | None = None, *inputs: Tensor, **spec: Any) -> cleave.SplitRuntime:
    spec = {"boundary": "50%", "dynamic_batch": (1, 8), **spec}
    return cleave.prepare_split(model or net(), example_inputs=inputs or (X,), split=cleave.SplitSpec(**spec))


def train_both(rt: cleave.SplitRuntime, split: nn.Module, whole: nn.Module, *inputs: Tensor) -> None:
    """One backward in two halves and one over the whole model give equal gradients."""
    whole.zero_grad()
    whole(*inputs).pow(2).mean().backward()
    want = [p.grad for p in whole.parameters()]
    split.zero_grad()
    boundary = rt.run_training_prefix(*inputs)
    _, grads = rt.train_suffix(boundary, None, loss_fn=lambda out, _: out.pow(2).mean())
    rt.backward_prefix(boundary, grads)
    for (name, p), grad in zip(split.named_parameters(), want, strict=True):
        assert p.grad is not None, name
        assert grad is not None, name
        assert torch.equal(p.grad, grad), name


# ---- the first call in another mode of the model


class TwoTables(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.a, self.b = nn.Linear(6, 6), nn.Linear(6, 6)

    def forward(self, x: Tensor, table: Tensor) -> Tensor:
        return self.a(x).sum(0, keepdim=True) + self.b(table).mean(0, keepdim=True)


def test_the_batch_stays_where_it_was_found_when_the_first_training_call_has_equal_sizes_by_chance() -> None:
    model = TwoTables()
    whole = copy.deepcopy(model)
    rt = prepare(model, torch.randn(3, 6), torch.randn(4, 6))
    for rows in (4, 3, 5):
        train_both(rt, model, whole, torch.randn(rows, 6), torch.randn(4, 6))


@pytest.mark.parametrize(("mode", "rows", "first"), [("batch_gt1", 3, 1), ("batch_1", 1, 4)])
def test_trace_batch_mode_is_about_the_example_not_about_the_first_training_batch(
    mode: Any, rows: int, first: int
) -> None:
    model = net()
    whole = copy.deepcopy(model)
    rt = prepare(model, X[:rows], trace_batch_mode=mode)
    for n in (first, 2):
        train_both(rt, model, whole, torch.randn(n, 4))


@pytest.mark.parametrize("run", ["run_prefix", "run_training_prefix"])
@pytest.mark.parametrize(
    ("x", "reason"),
    [
        (torch.randn(3, 5), "input input: dimension 1 is 5, expected 4"),
        (torch.randn(9, 4), "dimension 0 is B=9, expected 1 to 8"),
        (torch.randn(0, 4), "dimension 0 is B=0, expected 1 to 8"),
        (torch.randn(3, 4, 1), "3 dimensions"),
        (torch.randn(4), "1 dimensions"),
        (torch.randn(3, 4).double(), "input input is torch.float64"),
    ],
)
def test_a_wrong_input_is_named_also_in_the_first_call_of_a_mode(run: str, x: Tensor, reason: str) -> None:
    with pytest.raises(cleave.InputError, match=reason):
        getattr(prepare(), run)(x)


# ---- boundaries that somebody edited


def edited(**changes: Any) -> Callable[[cleave.BoundaryPayload], cleave.BoundaryPayload]:
    return lambda boundary: dataclasses.replace(boundary, **changes)


def one_more(boundary: cleave.BoundaryPayload) -> cleave.BoundaryPayload:
    return dataclasses.replace(boundary, tensors={**boundary.tensors, "%99": X})


@pytest.mark.parametrize("use", ["run_suffix", "validate_boundary"])
@pytest.mark.parametrize(
    ("edit", "error", "reason"),
    [
        (edited(sizes=None), TypeError, "sizes of a boundary are a dict"),
        (edited(tensors=[X]), TypeError, "tensors of a boundary are a dict"),
        (edited(sizes={}), cleave.InputError, "lacks the size B"),
        (edited(sizes={"B": "3"}), cleave.InputError, "lacks the size B"),
        (edited(sizes={"B": 1 << 80}), cleave.InputError, "expected 1 to 8"),
        (edited(sizes={"B": 100}, batch_size=100), cleave.InputError, "B=100, expected 1 to 8"),
        (edited(batch_size=7), cleave.InputError, "batch 7, but B=3"),
        (one_more, cleave.InputError, "%99, which the split does not know"),
    ],
)
def test_an_edited_boundary_is_refused_with_the_reason(use: str, edit: Any, error: Any, reason: str) -> None:
    rt = prepare()
    with pytest.raises(error, match=reason):
        getattr(rt, use)(edit(rt.run_prefix(X)))


def test_a_boundary_of_an_inference_plan_cannot_pretend_to_be_for_training() -> None:
    rt = prepare()
    boundary = dataclasses.replace(rt.run_prefix(X), supports_prefix_backward=True)
    with pytest.raises(cleave.InputError, match="a plan for inference made it"):
        rt.train_suffix(boundary, GOALS)


def test_a_replay_boundary_that_was_edited_is_refused() -> None:
    spec = cleave.SplitSpec(boundary="50%", dynamic_batch=(1, 8))
    rt = cleave.compat.prepare_split_replay(net(), example_inputs=X, split=spec, mode="generated_eager")
    good = rt.run_prefix(X)

    def edited(**fields: Any) -> cleave.compat.ReplayBoundary:
        return dataclasses.replace(good, payload=dataclasses.replace(good.payload, **fields))

    for bad in (dataclasses.replace(good, payload=None), edited(sizes=None), edited(tensors=None)):
        with pytest.raises(TypeError, match=r"(?i)boundary"):
            rt.run_suffix(bad)
    with pytest.raises(cleave.InputError, match="batch 9, but B=3"):
        rt.run_suffix(edited(batch_size=9))


def test_a_boundary_says_which_runtime_can_run_its_backward() -> None:
    rt, other = prepare(), prepare()
    one, two = (r.run_training_prefix(X).prefix_backward_owner_id for r in (rt, other))
    assert None not in (one, two)
    assert one != two
    assert rt.run_prefix(X).prefix_backward_owner_id is None
    sent = cleave.BoundaryPayload.from_bytes(rt.run_training_prefix(X).to_bytes())
    assert sent.prefix_backward_owner_id is None


# ---- wrong arguments


def test_a_wrong_optimizer_is_refused_before_anything_has_run() -> None:
    model = net()
    rt = prepare(model)
    boundary = rt.run_training_prefix(X)
    with pytest.raises(TypeError, match="Optimizer, not str"):
        rt.train_suffix(boundary, GOALS, optimizer="sgd")  # type: ignore[arg-type]
    assert all(p.grad is None for p in model.parameters())
    _, grads = rt.train_suffix(boundary, GOALS)
    with pytest.raises(TypeError, match="Optimizer, not str"):
        rt.backward_prefix(boundary, grads, optimizer="sgd")  # type: ignore[arg-type]
    rt.backward_prefix(boundary, grads)  # the boundary was not used up


def test_wrong_gradients_are_refused_and_do_not_use_up_the_boundary() -> None:
    rt = prepare()
    boundary = rt.run_training_prefix(X)
    _, grads = rt.train_suffix(boundary, GOALS)
    (label, grad), *_ = grads.items()
    assert grad is not None
    with pytest.raises(cleave.InputError, match=r"layout torch\.sparse_coo"):
        rt.backward_prefix(boundary, {label: grad.to_sparse()})
    with pytest.raises(cleave.InputError, match="boundary_grads has 1, which is no label"):
        rt.backward_prefix(boundary, {1: grad})  # type: ignore[dict-item]
    rt.backward_prefix(boundary, grads)


@pytest.mark.parametrize("size", ["a", 1.5, None, True, {"B": "a"}])
def test_a_size_to_prepare_is_an_integer(size: Any) -> None:
    with pytest.raises(TypeError, match="a size is an integer"):
        prepare().prepare_sizes(size)


def test_a_size_to_prepare_names_a_symbol_of_the_split() -> None:
    with pytest.raises(cleave.ArgumentError, match="no dimension is called Z; it has B"):
        prepare().prepare_sizes({"B": 2, "Z": 3})


@pytest.mark.parametrize("value", ["yes", None, 1])
def test_trainable_is_true_or_false(value: Any) -> None:
    with pytest.raises(cleave.SplitError, match="trainable must be True or False"):
        cleave.SplitSpec(trainable=value)


def test_a_range_beyond_any_tensor_is_refused() -> None:
    with pytest.raises(cleave.SplitError, match="at most"):
        cleave.SplitSpec(dynamic_batch=(1, 1 << 70))


def test_compile_options_are_a_dict() -> None:
    with pytest.raises(TypeError, match="compile_options is a dict"):
        cleave.prepare_split(
            net(),
            example_inputs=X,
            split=cleave.SplitSpec(),
            mode="compiled",
            compile_options=[1],  # type: ignore[arg-type]
        )


def test_an_unknown_device_is_an_argument_error() -> None:
    data = prepare().run_prefix(X).to_bytes()
    with pytest.raises(cleave.ArgumentError, match="nope"):
        cleave.BoundaryPayload.from_bytes(data, device="nope")


# ---- helpers


def test_the_helpers_take_a_replay_runtime_and_refuse_what_is_none() -> None:
    model = net()
    spec = cleave.SplitSpec(boundary="50%", dynamic_batch=(1, 8))
    rt = cleave.compat.prepare_split_replay(model, example_inputs=X, split=spec, mode="generated_eager")
    assert cleave.validate_dynamic_batches(rt, X, [1, 5]).ok
    cleave.validation.assert_forward_equivalent(model, rt, X)
    cleave.validation.assert_dynamic_batch_reuse(rt, {3: X, 2: X[:2]})
    with pytest.raises(TypeError, match="a SplitRuntime is needed"):
        cleave.validate_dynamic_batches(model, X, [1])  # type: ignore[arg-type]
    with pytest.raises(cleave.InputError, match="captured with a tensor"):
        cleave.validate_dynamic_batches(rt, None, [1])


def test_the_gradient_helper_uses_the_loss_that_training_uses() -> None:
    class Flat(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.a, self.b = nn.Linear(4, 8), nn.Linear(8, 1)

        def forward(self, x: Tensor) -> Tensor:
            return self.b(F.relu(self.a(x))).squeeze(-1)

    model = Flat()
    cleave.validation.assert_gradient_equivalent(model, prepare(model), X, torch.tensor([1, 0, 2]))  # one output: mse


# ---- the model after preparation


def test_a_backward_hook_that_is_added_later_is_not_ignored() -> None:
    model = net()
    rt = prepare(model)
    rt.run_training_prefix(X)
    model[2].register_full_backward_hook(lambda module, grad_in, grad_out: (grad_in[0] * 2,))
    with pytest.raises(cleave.InputError, match="backward hooks of module 2 changed"):
        rt.run_training_prefix(X)


def test_hooks_of_parameters_run_as_in_eager() -> None:
    model = net()
    rt = prepare(model)
    train_both(rt, model, copy.deepcopy(model), X)
    model[4].weight.register_hook(lambda grad: grad * 2)
    model[0].weight.register_hook(lambda grad: grad * 3)
    train_both(rt, model, model, X[:2])


def test_a_parameter_that_is_gone_is_named() -> None:
    model = net()
    rt = prepare(model)
    boundary = rt.run_training_prefix(X)
    del model[2].weight
    with pytest.raises(cleave.InputError, match=r"2\.weight is no tensor any more"):
        rt.train_suffix(boundary, GOALS)


def test_training_under_inference_mode_is_refused_and_spoils_nothing() -> None:
    model = net()
    rt = prepare(model)
    with torch.inference_mode(), pytest.raises(cleave.InputError, match="inference_mode"):
        rt.run_training_prefix(X)
    train_both(rt, model, copy.deepcopy(model), X)


def test_a_split_prepared_under_inference_mode_trains_outside_of_it() -> None:
    model = net()
    with torch.inference_mode():
        rt = prepare(model)
        rt.run_suffix(rt.run_prefix(X))
    train_both(rt, model, copy.deepcopy(model), X)


def test_a_copy_of_a_training_boundary_is_as_if_it_had_been_sent() -> None:
    rt = prepare()
    boundary = rt.run_training_prefix(X)
    for other in (copy.deepcopy(boundary), pickle.loads(pickle.dumps(boundary))):
        _, grads = rt.train_suffix(other, GOALS)
        with pytest.raises(cleave.InputError, match="autograd graph is not available"):
            rt.backward_prefix(other, grads)
    rt.backward_prefix(boundary, grads)


def test_a_runtime_stays_in_its_process() -> None:
    rt = prepare()
    for take in (pickle.dumps, copy.deepcopy):
        with pytest.raises(TypeError, match="prepare the split again"):
            take(rt)


@pytest.mark.parametrize("dtype", [torch.int64, torch.int32, torch.int16, torch.uint8])
def test_the_default_loss_of_integer_targets_of_any_width_is_cross_entropy(dtype: torch.dtype) -> None:
    rt = prepare()
    boundary = rt.run_training_prefix(X)
    targets = torch.tensor([0, 1, 1])
    loss, _ = rt.train_suffix(boundary, targets.to(dtype))
    assert torch.equal(loss, F.cross_entropy(rt.run_suffix(boundary), targets).detach())


@pytest.mark.integration
@pytest.mark.parametrize("make", [lambda p: torch.optim.SGD(p, lr=0.1, momentum=0.9), torch.optim.AdamW])
@pytest.mark.parametrize("both", [False, True])
def test_one_optimizer_of_the_whole_model_steps_all_of_it_once(make: Any, both: bool) -> None:
    model = net()
    whole = copy.deepcopy(model)
    rt = prepare(model)
    one, other = make(model.parameters()), make(whole.parameters())
    for rows in (3, 2, 4):
        x = torch.randn(rows, 4)
        other.zero_grad()
        whole(x).pow(2).mean().backward()
        other.step()
        boundary = rt.run_training_prefix(x)
        rt.train_suffix(boundary, None, loss_fn=lambda out, _: out.pow(2).mean(), optimizer=one if both else None)
        rt.backward_prefix(boundary, optimizer=one)
        for (name, p), q in zip(whole.named_parameters(), model.parameters(), strict=True):
            assert torch.equal(p, q), name


class Turned(nn.Module):
    """The gradient of what batch_norm gives is a transposed tensor."""

    def __init__(self) -> None:
        super().__init__()
        self.norm, self.head = nn.BatchNorm1d(16), nn.Linear(16, 30)

    def forward(self, x: Tensor) -> Tensor:
        return self.head(self.norm(x.transpose(1, 2)).transpose(1, 2))


@pytest.mark.parametrize("sent", [False, True])
def test_the_gradient_of_a_boundary_keeps_the_strides_that_it_has_in_eager(sent: bool) -> None:
    torch.manual_seed(0)
    model = Turned()
    whole = copy.deepcopy(model)
    x, targets = torch.randn(7, 33, 16), torch.randn(7, 33, 30)
    rt = prepare(model, x, boundary="after:norm")
    F.mse_loss(whole(x), targets).backward()
    boundary = rt.run_training_prefix(x)
    other = cleave.BoundaryPayload.from_bytes(boundary.to_bytes()) if sent else boundary
    _, grads = rt.train_suffix(other, targets)
    rt.backward_prefix(boundary, cleave.unpack(cleave.pack(grads)) if sent else grads)
    for (name, p), q in zip(whole.named_parameters(), model.parameters(), strict=True):
        assert p.grad is not None, name
        assert q.grad is not None, name
        assert torch.equal(p.grad, q.grad), name

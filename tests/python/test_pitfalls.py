"""One test or more for every known way a capture goes wrong: replayed right on other data, or refused.

Two groups of the project's list of pitfalls: what a naive recorder gets silently wrong ("silent") and what
fails loudly ("loud"); the third, what is right as it is, has test_pitfalls_right.py. The comment above some
tests names their row. `must_replay` is for constructs the rules support, `must_refuse` for those that are refused
with a reason, `guarded` where a host value is part of the plan.
"""

from __future__ import annotations

import copy
import io
import random
import threading
from collections.abc import Callable
from contextlib import nullcontext
from typing import Any

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from helpers import Fn, guarded, must_refuse, must_replay, rand, same_tree, twins
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

import cleave

# ==== silent ================================================================================================

# row: any temporary freed while recording


def test_temporaries_of_one_size_are_told_apart() -> None:
    def chain(x: Tensor) -> Tensor:
        for i in range(60):
            x = (x * 1.01 + i).sin() - x.cos() * 0.5
        return x

    must_replay(chain, rand((8, 8)))


def test_a_value_kept_over_many_freed_temporaries_is_still_itself() -> None:
    def keep(x: Tensor) -> Tensor:
        first, last = x + 1, x
        for _ in range(20):
            last = (last * 2).tanh()
        del x
        return first * 3 + last

    must_replay(keep, rand((5, 5)))


def test_factory_tensors_keep_their_identity_on_the_way_to_python() -> None:
    def factories(x: Tensor) -> Tensor:
        total = x
        for _ in range(5):
            total = total + torch.zeros(4) + torch.ones(4) * torch.arange(4) - torch.full((4,), 0.5)
        return total

    must_replay(factories, rand((3, 4)))


def test_empty_tensors_are_distinct_values() -> None:
    def empties(x: Tensor) -> tuple[Tensor, ...]:
        a, b = torch.empty(0, 4), torch.zeros(0, 4)
        c = x[:0]
        return torch.cat([a, x, b]), c, c.exp(), torch.cat([c, a]), torch.stack([b.sum(), c.sum()])

    must_replay(empties, rand((3, 4)))


def test_a_detached_alias_is_not_its_source() -> None:
    def detached(x: Tensor) -> Tensor:
        y = x * 2
        return y.detach() * y + y.detach().sum()

    must_replay(detached, rand((3, 4)))


# row: arguments resolved when the op ends


def test_set_on_a_copy_leaves_the_input_alone() -> None:
    def swap(x: Tensor, z: Tensor) -> tuple[Tensor, Tensor]:
        y = x.clone()
        y.set_(z.clone())
        y.mul_(2)
        return y, x + 1

    must_replay(swap, rand((3, 4), (3, 4)), input_grad=False)


def test_set_to_an_input_then_written_changes_the_input() -> None:
    def through(x: Tensor) -> Tensor:
        t = torch.empty(0)
        t.set_(x)
        t.mul_(2)
        return t + 1

    must_replay(through, rand((3, 4)), grad=False, input_grad=False)


def test_resize_of_a_temporary() -> None:
    def grow(x: Tensor) -> Tensor:
        y = torch.zeros(2)
        y.resize_(3, 4)
        y.copy_(x.detach())
        return y + x

    must_replay(grow, rand((3, 4)))


def test_shape_changing_in_place_ops_on_temporaries_and_inputs() -> None:
    def reshape_in_place(x: Tensor) -> Tensor:
        y = (x * 2).unsqueeze_(0).transpose_(1, 2).squeeze_(0)
        return y.t_() + 1

    must_replay(reshape_in_place, rand((3, 4)))
    must_replay(lambda x: x.transpose_(0, 1) + 1, rand((3, 4)), grad=False, input_grad=False)


# row: x / x.shape[0], x * B**-0.5, torch.tensor([B, W])


@pytest.mark.parametrize(
    "fn",
    [
        lambda x: x / x.shape[0],
        lambda x: x * x.shape[0] ** -0.5,
        lambda x: x.sum(0) * torch.tensor([x.shape[0], x.shape[1]]).sum(),
        lambda x: x + torch.arange(x.shape[1]) / x.numel(),
        lambda x: torch.full((x.shape[0], 1), float(x.shape[1])) * x,
    ],
    ids=["divide", "root", "tensor", "arange", "full"],
)
def test_numbers_made_from_sizes_replay_at_the_captured_size(fn: Callable[[Tensor], Tensor]) -> None:
    must_replay(fn, rand((3, 4)))


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.float16, torch.bfloat16, torch.int64])
def test_a_python_number_stays_a_scalar_and_does_not_promote(dtype: torch.dtype) -> None:
    def scale(x: Tensor) -> tuple[Tensor, ...]:
        return x * 2.5, x + 1, 3 - x, x * True, x.new_tensor(2) * x, x % 2, torch.tensor(1.5) * x

    must_replay(scale, lambda: ((torch.randn(3, 4) * 4).to(dtype),))


# row: .data, y.data = …


def test_data_is_a_detached_alias_of_the_same_memory() -> None:
    must_replay(lambda x: (lambda y: y.data * y + y.data.sum())(x * 2), rand((3, 4)))


def test_a_write_through_data_is_seen_by_the_tensor() -> None:
    def write(x: Tensor) -> Tensor:
        y = x + 1
        y.data.mul_(3)
        y.data[0] = 7.0
        return y

    must_replay(write, rand((3, 4)))


def test_a_write_through_data_goes_unnoticed_by_backward() -> None:
    def write(x: Tensor) -> Tensor:
        y = x * 2
        z = y * y
        y.data.mul_(3)  # unlike detach(), .data has a version counter of its own
        return z

    must_replay(write, rand((3, 4)))


def test_parameters_clamped_through_data_in_forward() -> None:
    class Clamped(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.w = nn.Parameter(torch.randn(4, 4) * 2)

        def forward(self, x: Tensor) -> Tensor:
            self.w.data.clamp_(-1, 1)
            self.w.data.mul_(0.9)
            return x @ self.w

    must_replay(Clamped(), rand((3, 4)))


def test_the_data_of_a_temporary_replaced() -> None:
    def rebind(x: Tensor) -> Tensor:
        y = x + 1
        y.data = x.detach() * 5
        return y * 2

    must_refuse(rebind, rand((3, 4)), match="tensor.data is assigned")


def test_the_data_of_a_parameter_replaced() -> None:
    def rebind(lin: nn.Linear, x: Tensor) -> Tensor:
        lin.weight.data = lin.weight.data * 0.5
        return lin(x)

    must_refuse(Fn(rebind), rand((3, 4)), match="tensor.data is assigned")


def test_the_data_of_an_input_replaced() -> None:
    def rebind(x: Tensor) -> Tensor:
        x.data = x.data * 3
        return x + 1

    must_refuse(rebind, rand((3, 4)), input_grad=False, match="tensor.data is assigned")


def test_lazy_conjugate_and_negative_views() -> None:
    def conj(x: Tensor) -> tuple[Tensor, ...]:
        z = torch.complex(x, x.flip(0))
        return (
            z.conj(),
            z.conj().imag,
            z.conj().imag.clone(),
            z.conj() * z,
            torch.view_as_real(z.conj().resolve_conj()),
        )

    must_replay(conj, rand((3, 4)))


# row: custom autograd.Function, backward hooks, reentrant checkpoint


class Round(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        return x.round()

    @staticmethod
    def backward(ctx: Any, g: Tensor) -> Tensor:
        return g * 0.5


class Product(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, w: Tensor, scale: float) -> tuple[Tensor, Tensor]:
        ctx.save_for_backward(x, w)
        ctx.scale = scale
        return x @ w * scale, x.argmax(-1)

    @staticmethod
    def backward(ctx: Any, g: Tensor, _: Any) -> tuple[Tensor, Tensor, None]:
        x, w = ctx.saved_tensors
        return g @ w.t() * 2, x.t() @ g * 3, None


class Reverse(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        return x.view_as(x)

    @staticmethod
    def backward(ctx: Any, g: Tensor) -> Tensor:
        return -g


class WithSetup(torch.autograd.Function):
    @staticmethod
    def forward(x: Tensor, k: int) -> Tensor:
        return x * k

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: Tensor) -> None:
        ctx.k = inputs[1]
        ctx.save_for_backward(output)

    @staticmethod
    def backward(ctx: Any, g: Tensor) -> tuple[Tensor, None]:
        (y,) = ctx.saved_tensors
        return g * ctx.k + y, None


class AddOneInPlace(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        x.add_(1)
        ctx.mark_dirty(x)
        return x

    @staticmethod
    def backward(ctx: Any, g: Tensor) -> Tensor:
        return g * 4


def test_a_straight_through_function_keeps_its_own_gradient() -> None:
    must_replay(Fn(lambda lin, x: Round.apply(lin(x) * 3) * x), rand((3, 4)))


def test_a_function_with_saved_tensors_numbers_and_an_integer_output() -> None:
    must_replay(Fn(lambda lin, x: Product.apply(x.relu(), lin.weight, 0.5)), rand((3, 4)))


def test_gradient_reversal() -> None:
    must_replay(Fn(lambda lin, x: Reverse.apply(lin(x))), rand((3, 4)))


def test_a_function_with_setup_context() -> None:
    must_replay(Fn(lambda lin, x: WithSetup.apply(lin(x), 3)), rand((3, 4)))


def test_functions_inside_and_after_one_another() -> None:
    must_replay(Fn(lambda lin, x: Reverse.apply(Round.apply(WithSetup.apply(lin(x), 2)) + x)), rand((3, 4)))


def test_a_function_that_writes_its_input() -> None:
    must_replay(Fn(lambda lin, x: AddOneInPlace.apply(lin(x)) * 2), rand((3, 4)))


def test_a_module_with_full_backward_hooks() -> None:
    def hooked() -> nn.Module:
        net = nn.Sequential(nn.Linear(4, 4), nn.ReLU(), nn.Linear(4, 4))
        net[2].register_full_backward_hook(lambda m, gi, go: (gi[0] * 2,))
        net[0].register_full_backward_pre_hook(lambda m, go: (go[0] * 3,))
        return net

    must_refuse(hooked(), rand((3, 4)), match="it has a gradient hook")


@pytest.mark.integration
@pytest.mark.parametrize("reentrant", [False, True], ids=["saved-tensor hooks", "reentrant"])
def test_checkpointed_blocks(reentrant: bool) -> None:
    class Blocks(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.a, self.b = nn.Linear(4, 4), nn.Linear(4, 4)

        def forward(self, x: Tensor) -> Tensor:
            y = checkpoint(lambda t: self.a(t).relu() * 2, x, use_reentrant=reentrant)
            return checkpoint(lambda t: self.b(t) + t, y, use_reentrant=reentrant)

    def shared(lin: nn.Linear, x: Tensor) -> Tensor:
        y = checkpoint(lambda t: lin(t).relu() * 2, x, use_reentrant=reentrant)
        return checkpoint(lambda t: lin(t) + t, y, use_reentrant=reentrant)

    must_replay(Blocks(), rand((3, 4)))
    if reentrant:  # which adds to .grad once for each block: test_checkpoints.py
        must_refuse(Fn(shared), rand((3, 4)), "use_reentrant=True")
    else:
        must_replay(Fn(shared), rand((3, 4)))


@pytest.mark.parametrize("reentrant", [False, True], ids=["saved-tensor hooks", "reentrant"])
def test_a_checkpointed_block_with_dropout_draws_the_same_mask_again(reentrant: bool) -> None:
    def block(lin: nn.Linear, x: Tensor) -> Tensor:
        return checkpoint(lambda t: F.dropout(lin(t), 0.5, True), x, use_reentrant=reentrant)

    must_replay(Fn(block), rand((3, 4)), train=True)


# row: tensor.register_hook, requires_grad_ toggles


def test_a_tensor_hook_that_changes_the_gradient() -> None:
    def hook(lin: nn.Linear, x: Tensor) -> Tensor:
        y = lin(x)
        if y.requires_grad:
            y.register_hook(lambda g: g * 2)
        return y * x

    must_refuse(Fn(hook), rand((3, 4)), match="it has a gradient hook")


def test_a_hook_on_a_parameter_lives_with_the_parameter() -> None:
    class Hooked(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.lin = nn.Linear(4, 4)
            self.lin.weight.register_hook(lambda g: g.clamp(-0.1, 0.1))

        def forward(self, x: Tensor) -> Tensor:
            return self.lin(x)

    model, twin = twins(Hooked)
    must_replay(model, rand((3, 4)), twin=twin)


def test_requires_grad_set_inside_forward() -> None:
    def toggle(lin: nn.Linear, x: Tensor) -> Tensor:
        y = lin(x).detach().requires_grad_()
        return y * x

    must_replay(Fn(toggle), rand((3, 4)))


def test_a_leaf_made_inside_forward_and_differentiated_there() -> None:
    def force(lin: nn.Linear, x: Tensor) -> Tensor:
        with torch.enable_grad():
            pos = x.detach().requires_grad_()
            (g,) = torch.autograd.grad(lin(pos).pow(2).sum(), pos)
        return g + x

    must_replay(Fn(force), rand((3, 4)))


def test_parameters_frozen_and_thawed_between_runs() -> None:
    def freeze(model: nn.Module, step: int) -> None:
        for p in model.parameters():
            p.requires_grad_(step % 2 == 0)

    must_replay(nn.Sequential(nn.Linear(4, 4), nn.Tanh(), nn.Linear(4, 2)), rand((3, 4)), between=freeze)


# row: torch.func.grad / jacrev / hessian inside forward


@pytest.mark.parametrize(
    "fn",
    [
        lambda lin, x: torch.func.grad(lambda t: lin(t).pow(2).sum())(x),
        lambda lin, x: torch.func.jacrev(lambda t: lin(t).tanh())(x),
        lambda lin, x: torch.func.hessian(lambda t: lin(t).pow(3).sum())(x[0]),
        lambda lin, x: torch.func.jvp(lambda t: lin(t).tanh(), (x,), (x * 2,))[1],
        lambda lin, x: torch.func.jacfwd(lambda t: lin(t).tanh())(x[0]),
        lambda lin, x: torch.func.vjp(lambda t: lin(t).tanh(), x)[1](x)[0],
    ],
    ids=["grad", "jacrev", "hessian", "jvp", "jacfwd", "vjp"],
)
def test_function_transforms_inside_forward(fn: Callable[..., Any]) -> None:
    must_replay(Fn(fn), rand((3, 4)))


def test_forward_mode_dual_numbers_inside_forward() -> None:
    def dual(x: Tensor) -> Tensor:
        with torch.autograd.forward_ad.dual_level():
            d = torch.autograd.forward_ad.make_dual(x.detach(), torch.ones_like(x))
            return torch.autograd.forward_ad.unpack_dual(d.sin() * d).tangent

    must_refuse(dual, rand((3, 4)), match="forward-mode differentiation")


# row: Python threads inside forward


def test_work_done_in_a_thread_of_forward_does_not_freeze() -> None:
    def threaded(x: Tensor) -> Tensor:
        box: list[Tensor] = []
        worker = threading.Thread(target=lambda: box.append(x.detach() * 2 + 1))
        worker.start()
        worker.join()
        return box[0] + x

    must_refuse(threaded, rand((3, 4)), match="holds other data each time")


def test_a_thread_that_writes_into_a_recorded_tensor() -> None:
    def threaded(x: Tensor) -> Tensor:
        y = torch.zeros(3, 4)
        worker = threading.Thread(target=lambda: y.copy_(x.detach()))
        worker.start()
        worker.join()
        return y + 1

    must_refuse(threaded, rand((3, 4)), match="the replay differs from the model")


# row: jit.optimize_for_inference and others that write into a recorded `empty`


def test_optimize_for_inference() -> None:
    net = nn.Sequential(nn.Conv2d(3, 4, 3), nn.BatchNorm2d(4), nn.ReLU()).eval()
    with torch.no_grad():
        fast = torch.jit.optimize_for_inference(torch.jit.script(net))
    must_replay(lambda x: fast(x) * 2, rand((2, 3, 8, 8)), grad=False)


def test_a_frozen_scripted_module() -> None:
    frozen = torch.jit.freeze(torch.jit.script(nn.Sequential(nn.Linear(4, 4), nn.ReLU()).eval()))
    must_replay(lambda x: frozen(x) + 1, rand((3, 4)), grad=False)


def test_an_empty_tensor_filled_behind_the_dispatcher() -> None:
    def constant(x: Tensor) -> Tensor:
        e = torch.empty(4)
        e.numpy()[:] = [1, 2, 3, 4]
        return x + e

    def data(x: Tensor) -> Tensor:
        e = torch.empty(3, 4)
        e.numpy()[:] = x.detach().numpy() * 2
        return x + e

    must_refuse(constant, rand((3, 4)), match="reads data on the host|no recorded operator wrote")
    must_refuse(data, rand((3, 4)), "numpy|empty|written")


# row: constants that are mutated or returned


def test_tensor_constants_replay() -> None:
    def constants(x: Tensor) -> Tensor:
        mean = torch.tensor([0.5, 0.25, 0.125, 2.0])
        index = torch.tensor([[0, 1], [1, 2]])
        return (x - mean)[:, index] + torch.as_tensor(3.0) + torch.tensor(True) + x.new_tensor([1.0, 2.0])

    must_replay(constants, rand((3, 4)))


def test_a_constant_written_in_forward_starts_anew_each_run() -> None:
    def written(x: Tensor) -> Tensor:
        c = torch.tensor([1.0, 2.0, 3.0, 4.0])
        c.add_(x.detach().sum(0))
        c[0] = 5
        c += 1
        return c * x

    must_replay(written, rand((3, 4)), seeds=(1, 2, 3))


def test_a_constant_returned_can_be_overwritten_by_the_caller() -> None:
    plan = cleave.capture(lambda x: (torch.tensor([1.0, 2.0]), x + 1), (torch.zeros(2),))
    for _ in range(2):
        constant, y = plan(torch.ones(2))
        assert constant.tolist() == [1.0, 2.0]
        assert y.tolist() == [2.0, 2.0]
        constant.fill_(9)


def test_a_tensor_attribute_returned_is_the_attribute() -> None:
    class Holder(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.table = torch.arange(4.0)

        def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
            return self.table, x + self.table

    must_replay(Holder(), rand((3, 4)))


def test_a_tensor_attribute_written_in_place_builds_up() -> None:
    class Counter(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.total = torch.zeros(4)

        def forward(self, x: Tensor) -> Tensor:
            self.total += x.detach().sum(0)
            return x * self.total

    must_replay(Counter(), rand((3, 4)))


def test_a_global_tensor_written_in_forward() -> None:
    def make() -> Callable[[Tensor], Tensor]:
        total = torch.zeros(4)

        def forward(x: Tensor) -> Tensor:
            total.add_(x.detach().sum(0))
            return x + total

        return forward

    must_replay(make(), rand((3, 4)), twin=make(), grad=False)


def test_a_global_tensor_read_in_forward_is_read_live_or_refused() -> None:
    scale = torch.ones(4)
    plan = cleave.capture(lambda x: x * scale, (torch.zeros(3, 4),))
    x = torch.randn(3, 4)
    assert torch.equal(plan(x), x * scale)
    scale.mul_(2)
    try:
        got = plan(x)
    except cleave.CleaveError:
        return
    assert torch.equal(got, x * scale)


# row: torch.equal, allclose, q_scale, _nnz, item, is_nonzero


def _by(value: Any) -> Callable[[Tensor], Tensor]:
    return lambda x: x * 2 + (10 if value(x) else 20)


POSITIVE, ALSO_POSITIVE, NEGATIVE = (
    torch.tensor([1.0, 2.0]),
    torch.tensor([3.0, 0.5]),
    torch.tensor([-1.0, -2.0]),
)


@pytest.mark.parametrize(
    ("value", "match"),
    [
        (lambda x: (x > 0).all(), "is_nonzero|item|bool"),
        (lambda x: bool(x.sum() > 0), "is_nonzero|item|bool"),
        (lambda x: (x > 0).sum().item() == 2, "item"),
        (lambda x: int((x > 0).sum()) == 2, "item|int"),
        (lambda x: float(x.sign().sum()) > 0, "item|float"),
        (lambda x: not x.sign().sum() == -2, "is_nonzero|item|bool"),
        (lambda x: torch.equal(x, x.abs()), "equal"),
        (lambda x: torch.allclose(x, x.abs()), "allclose"),
        (lambda x: x.sign().to_sparse()._nnz() and x.relu().to_sparse()._nnz() > 0, "nnz"),
        (lambda x: torch.is_nonzero(x.relu().sum()), "is_nonzero"),
        (lambda x: range(5)[(x > 0).sum()] == 2, "item|index"),
        (lambda x: (x > 0).any() and (x > 0).all(), "is_nonzero|item|bool"),
    ],
    ids="all bool item int float not equal allclose nnz is_nonzero index and".split(),
)
def test_a_branch_on_a_host_value_is_a_guard(value: Any, match: str) -> None:
    guarded(_by(value), POSITIVE, ALSO_POSITIVE, NEGATIVE, match=match)


def test_the_scale_of_a_quantized_tensor_is_read_by_each_run_or_a_guard() -> None:
    def scale(x: Tensor) -> Tensor:
        return x * torch.quantize_per_tensor_dynamic(x, torch.qint8, False).q_scale()

    x = torch.tensor([-1.0, 0.0, 1.0])
    followed(scale, x, torch.tensor([-1.0, 0.5, 1.0]), x * 3, x * 1000)


def followed(fn: Any, example: Tensor, *others: Tensor) -> None:
    """On all other data the replay has the numbers of eager, or stops at a guard."""
    plan = cleave.capture(fn, (example,))
    for x in others:
        try:
            got = plan(x.clone())
        except cleave.GuardError:
            continue
        same_tree(fn(x.clone()), got, str(x))


def test_a_number_taken_from_data_and_used_in_an_op_is_read_by_each_run_or_a_guard() -> None:
    followed(lambda x: x * x.max().item(), POSITIVE, torch.tensor([2.0, 0.0]), POSITIVE + 1, POSITIVE * 0, -POSITIVE)
    guarded(lambda x: x.sum().item(), POSITIVE, torch.tensor([3.0, 0.0]), POSITIVE + 1, match="item")
    guarded(lambda x: x[: int(x[0])], POSITIVE, torch.tensor([1.0, 9.0]), POSITIVE + 1, match=r"item|int")


def test_a_guard_that_holds_does_not_hide_the_data() -> None:
    def masked(x: Tensor, mask: Tensor) -> Tensor:
        return x if mask.all() else x.masked_fill(~mask, 0)

    must_replay(masked, lambda: (torch.randn(3, 4), torch.ones(3, 4, dtype=torch.bool)))


def test_guards_are_listed_with_op_and_place() -> None:
    (guard,) = cleave.capture(lambda x: x * x.max().item(), (POSITIVE,)).guards
    assert "item" in guard.op
    assert "test_pitfalls.py" in str(guard.source)


HOST, CAPTURED = "reads data on the host that follows its inputs", "the plan holds only for the captured value"


@pytest.mark.parametrize(
    ("value", "reason"),
    [
        pytest.param(lambda x: x.tolist()[0], HOST, id="tolist"),
        pytest.param(lambda x: x.numpy()[0].item(), HOST, id="numpy"),
        pytest.param(lambda x: float(np.asarray(x)[0]), HOST, id="asarray"),
        pytest.param(lambda x: next(iter(x.flatten())).item(), None, id="list"),
        pytest.param(lambda x: float(f"{x[0]:.2f}"), CAPTURED, id="format"),
        pytest.param(lambda x: float(str(x).split("[")[1].split(",")[0]), CAPTURED, id="str"),
        pytest.param(lambda x: float(np.array(x.storage())[0]), "takes raw storage", id="storage"),
        pytest.param(lambda x: x.__array__()[0].item(), HOST, id="__array__"),
        pytest.param(lambda x: memoryview(x.numpy())[0], HOST, id="memoryview"),
        pytest.param(lambda x: float(torch.utils.dlpack.from_dlpack(x).numpy()[0]), HOST, id="dlpack"),
    ],
)
def test_host_reads_of_every_kind_are_guarded_or_refused(value: Any, reason: str | None) -> None:
    def model(x: Tensor) -> Tensor:
        return x * value(x.detach()) + 1

    options: dict[str, Any] = {"grad": False, "input_grad": False, "seeds": (1, 2, 3)}
    if reason is None:  # the number goes into an operator, and each run computes it
        must_replay(model, rand((4,)), **options)
    else:
        must_refuse(model, rand((4,)), reason, **options)


def test_tolist_and_numpy_are_named_in_the_refusal() -> None:
    make = rand((4,))
    must_refuse(lambda x: x + sum(x.tolist()), make, "tolist", grad=False, input_grad=False)
    must_refuse(lambda x: torch.from_numpy(np.sin(x.numpy())) + x, make, "numpy", grad=False, input_grad=False)


# row: nonzero().shape[0], numel() == 0, expert routing that skips

TWO, ALSO_TWO, ONE, ZERO = (torch.tensor(v) for v in ([1.0, 0, 2], [0.0, 3, 4], [0.0, 0, 5], [0.0, 0, 0]))


def test_the_number_of_nonzeros_read_as_a_shape_is_read_by_each_run_or_a_guard() -> None:
    followed(lambda x: x / x.nonzero().shape[0], TWO, ALSO_TWO, ONE, ZERO)
    followed(lambda x: x * len(x[x > 0]), TWO, ALSO_TWO, ONE, ZERO)
    followed(lambda x: x * x.unique().numel(), TWO, ALSO_TWO, ONE, ZERO)


def test_a_branch_on_an_empty_selection_is_a_guard() -> None:
    def skip(x: Tensor) -> Tensor:
        chosen = x.masked_select(x > 0)
        return x if chosen.numel() == 0 else x + chosen.sum()

    guarded(skip, TWO, ALSO_TWO, ZERO, match=r"masked_select|shape|size")


def test_experts_that_get_no_token_are_skipped_only_when_eager_skips_them() -> None:
    class Experts(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.gate = nn.Linear(4, 3)
            self.experts = nn.ModuleList(nn.Linear(4, 4) for _ in range(3))

        def forward(self, x: Tensor) -> Tensor:
            out = torch.zeros_like(x)
            which = self.gate(x).argmax(-1)
            for i, expert in enumerate(self.experts):
                rows = (which == i).nonzero().squeeze(1)
                if rows.numel() == 0:
                    continue
                out = out.index_add(0, rows, expert(x[rows]))
            return out

    must_refuse(Experts(), rand((5, 4)), seeds=range(1, 7), match="the plan holds only for")
    must_replay(Experts(), rand((5, 4)), seeds=range(1, 7))


@pytest.mark.parametrize(
    "fn",
    [
        lambda x: x[x > 0].sum(),
        lambda x: x.nonzero(),
        lambda x: torch.where(x > 0)[0],
        lambda x: x.masked_select(x > 0),
        lambda x: torch.unique((x * 2).round()),
        lambda x: torch.bincount((x > 0).long().flatten()),
        lambda x: x.repeat_interleave((x[:, 0] > 0).long() + 1, dim=0),
        lambda x: torch.arange(int((x > 0).sum())),
    ],
    ids="index nonzero where masked_select unique bincount repeat_interleave arange".split(),
)
def test_data_dependent_shapes_that_are_only_passed_on(fn: Callable[[Tensor], Tensor]) -> None:
    must_replay(fn, rand((3, 4)), grad=False, input_grad=False, seeds=(1, 2, 3, 4))


# row: manual_seed, fork_rng, set_rng_state, Python and NumPy random


def _reseed(x: Tensor) -> Tensor:
    torch.manual_seed(7)
    return x + torch.rand(4)


def _fork(x: Tensor) -> Tensor:
    with torch.random.fork_rng():
        torch.manual_seed(3)
        noise = torch.rand(4)
    return x + noise + torch.rand(4)


def _set_state(x: Tensor) -> Tensor:
    state = torch.get_rng_state()
    a = torch.rand(4)
    torch.set_rng_state(state)
    return x + a * torch.rand(4)


def _own_generator(x: Tensor) -> Tensor:
    return x + torch.rand(4, generator=torch.Generator().manual_seed(5))


@pytest.mark.parametrize(
    ("fn", "reason"),
    [
        (_reseed, "reseeded or advanced .* before aten::rand"),
        (_fork, "reseeded or advanced .* before aten::rand"),
        (_set_state, "reseeded or advanced .* before aten::rand"),
        (_own_generator, "aten::rand.generator .* is made inside the forward"),
    ],
)
def test_reseeding_inside_forward_is_refused_and_named(fn: Callable[[Tensor], Tensor], reason: str) -> None:
    must_refuse(fn, rand((3, 4)), reason)


@pytest.mark.parametrize(
    ("draw", "where"),
    [(random.random, "Python's random module"), (np.random.rand, "numpy.random")],
    ids=["python", "numpy"],
)
def test_numbers_from_python_and_numpy_generators(draw: Callable[[], float], where: str) -> None:
    must_refuse(lambda x: x * draw(), rand((3, 4)), where)


def test_a_numpy_generator_that_starts_anew_in_every_forward_gives_a_constant() -> None:
    must_replay(lambda x: x * float(np.random.default_rng(1).random()), rand((3, 4)))


def test_layer_drop_by_a_python_coin() -> None:
    must_refuse(
        Fn(lambda lin, x: lin(x) if random.random() < 0.5 else x),
        rand((3, 4)),
        seeds=range(1, 8),
        grad=False,
        match="Python's random",
    )


# row: numpy or storage writes into a tensor


def _write_numpy(x: Tensor) -> Tensor:
    y = x.detach().clone()
    y.numpy()[0] *= 2
    return y + x


def _write_storage(x: Tensor) -> Tensor:
    y = x.detach() + 1
    y.untyped_storage().fill_(0)
    return y + x


def _write_storage_item(x: Tensor) -> Tensor:
    y = torch.zeros(4)
    y.untyped_storage()[3] = 64
    return y + x


def _write_pointer(x: Tensor) -> Tensor:
    import ctypes

    y = x.detach().clone()
    ctypes.memset(y.data_ptr(), 0, 4)
    return y + x


@pytest.mark.parametrize(
    ("fn", "reason"),
    [
        (_write_numpy, "reads data on the host"),
        (_write_storage, "takes raw storage"),
        (_write_storage_item, "takes raw storage"),
        (_write_pointer, "data_ptr"),
    ],
)
def test_writes_behind_the_dispatcher(fn: Callable[[Tensor], Tensor], reason: str) -> None:
    must_refuse(fn, rand((3, 4)), reason)


def test_a_numpy_result_does_not_freeze() -> None:
    must_refuse(lambda x: x + torch.from_numpy(np.tanh(x.detach().numpy())), rand((3, 4)), "numpy")


# row: self.h = self.h * .5 + x (and buffers updated in place)


class Rebound(nn.Module):
    def __init__(self, kind: str) -> None:
        super().__init__()
        h = torch.zeros(3, 4)
        if kind == "buffer":
            self.register_buffer("h", h)
        elif kind == "hidden buffer":
            self.register_buffer("h", h, persistent=False)
        else:
            self.h = h

    def forward(self, x: Tensor) -> Tensor:
        self.h = self.h * 0.5 + x.detach()
        return self.h * x


@pytest.mark.parametrize("kind", ["buffer", "hidden buffer", "attribute"])
def test_a_tensor_of_the_module_rebound_in_forward_carries_over(kind: str) -> None:
    must_replay(Rebound(kind), rand((3, 4)), seeds=(1, 2, 3))


def test_a_rebound_buffer_of_a_submodule() -> None:
    must_replay(nn.Sequential(nn.Linear(4, 4), Rebound("buffer"), nn.ReLU()), rand((3, 4)))


def test_a_buffer_that_starts_as_none() -> None:
    class Late(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.register_buffer("h", None)

        def forward(self, x: Tensor) -> Tensor:
            self.h = x.detach() if self.h is None else self.h + x.detach()
            return self.h * x

    must_refuse(Late(), rand((3, 4)), match="leaves something behind")


def test_an_exponential_average_kept_in_place() -> None:
    class Ema(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.register_buffer("ema", torch.zeros(4))
            self.register_buffer("steps", torch.zeros((), dtype=torch.long))

        def forward(self, x: Tensor) -> Tensor:
            with torch.no_grad():
                self.ema.mul_(0.9).add_(x.mean(0), alpha=0.1)
                self.steps += 1
            return x - self.ema / self.steps

    must_replay(Ema(), rand((3, 4)), seeds=(1, 2, 3))


def test_batch_norm_in_training_changes_its_statistics_as_in_eager() -> None:
    net = nn.Sequential(
        nn.Conv2d(3, 4, 3),
        nn.BatchNorm2d(4),
        nn.ReLU(),
        nn.InstanceNorm2d(4, track_running_stats=True),
    )
    must_replay(net, rand((2, 3, 8, 8)), train=True)


def test_batch_norm_with_a_cumulative_average_reads_its_counter_on_the_host() -> None:
    must_replay(nn.BatchNorm1d(4, momentum=None), rand((3, 4)), train=True)


def test_state_kept_in_a_list_or_a_dict_of_the_module() -> None:
    class Cache(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.cache = {"k": torch.zeros(3, 4)}
            self.past = [torch.zeros(3, 4)]

        def forward(self, x: Tensor) -> Tensor:
            self.cache["k"] = self.cache["k"] + x.detach()
            self.past[0] = self.past[0] * 0.5 + x.detach()
            return self.cache["k"] * self.past[0]

    must_replay(Cache(), rand((3, 4)))


def test_a_python_counter_that_enters_the_result() -> None:
    class Steps(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.step = 0

        def forward(self, x: Tensor) -> Tensor:
            self.step += 1
            return x * self.step

    must_refuse(Steps(), rand((3, 4)), seeds=(1, 2, 3), match="every forward changes")


def test_a_cache_keyed_by_shape_is_right_cold_and_warm() -> None:
    class Grid(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.shape: torch.Size | None = None
            self.grid = torch.empty(0)

        def forward(self, x: Tensor) -> Tensor:
            if self.shape != x.shape:
                self.shape = x.shape
                self.grid = torch.arange(x.shape[1]) * 0.5 + 1
            return x * self.grid

    cold, warm = Grid(), Grid()
    warm(torch.zeros(3, 4))
    must_replay(cold, rand((3, 4)), all_state=False)
    must_replay(warm, rand((3, 4)), all_state=False)


def test_a_cache_that_holds_data_must_not_freeze_it() -> None:
    class Sticky(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.first: Tensor | None = None

        def forward(self, x: Tensor) -> Tensor:
            if self.first is None:
                self.first = x.detach() * 2
            return x + self.first

    must_refuse(Sticky(), rand((3, 4)), match="leaves something behind")


# row: load_state_dict(assign=True), parameters replaced


def _small() -> nn.Sequential:
    return nn.Sequential(nn.Linear(4, 4), nn.BatchNorm1d(4), nn.Linear(4, 2))


def _fresh_state(model: nn.Module) -> dict[str, Tensor]:
    return {k: torch.rand(v.shape) if v.is_floating_point() else v.clone() for k, v in model.state_dict().items()}


def _replace_parameter(model: nn.Module, step: int) -> None:
    model[0].weight = nn.Parameter(torch.randn(4, 4))  # type: ignore[index]
    model[1].running_mean = torch.randn(4)  # type: ignore[index]
    del model[2].bias  # type: ignore[index]
    model[2].bias = nn.Parameter(torch.randn(2))  # type: ignore[index]


def _sgd(model: nn.Module, step: int) -> None:
    for p in model.parameters():
        p.grad = torch.randn_like(p)
    torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9).step()


@pytest.mark.parametrize(
    "change",
    [
        lambda m, i: m.load_state_dict(_fresh_state(m)),
        lambda m, i: m.load_state_dict(_fresh_state(m), assign=True),
        _replace_parameter,
        lambda m, i: [setattr(p, "data", torch.randn_like(p)) for p in m.parameters()],
        _sgd,
    ],
    ids="load assign replace data optimizer".split(),
)
def test_new_weights_are_seen_at_once(change: Callable[[nn.Module, int], Any]) -> None:
    must_replay(_small(), rand((3, 4)), between=change)


def test_a_whole_submodule_replaced_is_seen_or_refused() -> None:
    must_refuse(
        _small(),
        rand((3, 4)),
        between=lambda m, i: m.__setitem__(0, nn.Linear(4, 4).train(m.training)),
        match="children of module",
    )


def test_a_parameter_replaced_by_one_of_another_shape_or_dtype_is_refused() -> None:
    for new in (torch.randn(4, 5), torch.randn(4, 4).double()):
        model = nn.Sequential(nn.Linear(4, 4))
        plan = cleave.capture(model, (torch.randn(3, 4),))
        model[0].weight = nn.Parameter(new)
        with pytest.raises(cleave.CleaveError, match="weight"):
            plan(torch.randn(3, 4))


def test_a_parameter_removed_after_capture_is_refused() -> None:
    model = nn.Sequential(nn.Linear(4, 4))
    plan = cleave.capture(model, (torch.randn(3, 4),))
    del model[0].weight
    with pytest.raises(cleave.CleaveError, match="weight"):
        plan(torch.randn(3, 4))


# row: one tensor given as two inputs; aliased inputs with in-place ops


def _twice() -> tuple[Tensor, Tensor]:
    x = torch.randn(3, 4)
    return x, x


def _overlapping() -> tuple[Tensor, Tensor]:
    base = torch.randn(4, 4)
    return base[:3], base[1:]


def _pure(x: Tensor, y: Tensor) -> Tensor:
    return x * 2 + y.sin()


def _in_place(x: Tensor, y: Tensor) -> Tensor:
    x.add_(1)
    return x * y


def test_captured_on_one_tensor_given_twice_and_run_on_two() -> None:
    must_replay(_pure, _twice, run_inputs=rand((3, 4), (3, 4)))
    must_refuse(_in_place, _twice, run_inputs=rand((3, 4), (3, 4)), input_grad=False, match="share memory")


def test_captured_on_two_tensors_and_run_on_one_given_twice() -> None:
    must_replay(_pure, rand((3, 4), (3, 4)), run_inputs=_twice)
    must_refuse(_in_place, rand((3, 4), (3, 4)), run_inputs=_twice, input_grad=False, match="share memory")


def test_one_tensor_given_twice_at_capture_and_at_run() -> None:
    must_replay(_pure, _twice)
    must_refuse(_in_place, _twice, input_grad=False, match="share memory")


def test_overlapping_inputs() -> None:
    must_replay(_pure, rand((3, 4), (3, 4)), run_inputs=_overlapping, input_grad=False)
    must_refuse(_in_place, rand((3, 4), (3, 4)), run_inputs=_overlapping, input_grad=False, match="share memory")
    must_refuse(_in_place, _overlapping, run_inputs=rand((3, 4), (3, 4)), input_grad=False, match="share memory")


def test_a_parameter_given_as_an_input() -> None:
    class Takes(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.w = nn.Parameter(torch.randn(4))

        def forward(self, x: Tensor) -> Tensor:
            return x * 2 + self.w

    model = Takes()
    other = torch.randn(4)
    try:
        got = cleave.capture(model, (model.w,))(other)
    except cleave.CleaveError:
        return
    assert torch.equal(got, model(other))


# row: inputs whose strides, dtype or requires_grad differ from capture


def test_an_input_of_another_dtype_is_refused_by_name() -> None:
    plan = cleave.capture(lambda x: x * 2, (torch.randn(3, 4),))
    with pytest.raises(cleave.InputError, match=r"(?s)x.*(float64|f64|double)|(float64|f64|double).*x"):
        plan(torch.randn(3, 4).double())


@pytest.mark.parametrize(
    "fn",
    [
        lambda x: x.reshape(-1) * 2,
        lambda x: x.contiguous().view(2, -1),
        lambda x: torch.empty_like(x).copy_(x),
        lambda x: x.flatten(1).add_(0),
        lambda x: x.clone() if x.is_contiguous() else x * 2,
    ],
    ids="reshape contiguous empty_like flatten branch".split(),
)
def test_an_input_with_other_strides(fn: Callable[[Tensor], Tensor]) -> None:
    transposed = lambda: (torch.randn(4, 3, 2).transpose(0, 1),)  # noqa: E731
    must_replay(fn, rand((3, 4, 2)), run_inputs=transposed, input_grad=False)
    must_replay(fn, transposed, run_inputs=rand((3, 4, 2)), input_grad=False)


def test_channels_last_images_on_a_plan_of_contiguous_ones() -> None:
    net = nn.Sequential(nn.Conv2d(3, 4, 3), nn.BatchNorm2d(4), nn.ReLU(), nn.AdaptiveAvgPool2d(1), nn.Flatten())
    last = lambda: (torch.randn(2, 3, 8, 8).to(memory_format=torch.channels_last),)  # noqa: E731
    must_replay(net, rand((2, 3, 8, 8)), run_inputs=last, grad=False)
    must_replay(net, last, grad=False)


def test_expanded_and_offset_inputs() -> None:
    must_replay(
        lambda x: x * 2 + 1,
        rand((3, 4)),
        run_inputs=lambda: (torch.randn(1, 4).expand(3, 4),),
        input_grad=False,
    )
    must_replay(lambda x: x * 2 + 1, rand((3, 4)), run_inputs=lambda: (torch.randn(5, 9)[1:4, 2:6],), input_grad=False)


def test_an_input_whose_requires_grad_differs_from_capture() -> None:
    def needing() -> tuple[Tensor, ...]:
        return (torch.randn(3, 4, requires_grad=True),)

    net = nn.Sequential(nn.Linear(4, 4), nn.Tanh())
    must_replay(net, rand((3, 4)), run_inputs=needing, input_grad=False)
    must_replay(net, needing, run_inputs=rand((3, 4)), input_grad=False)


def test_an_input_that_is_not_a_leaf() -> None:
    def inner() -> tuple[Tensor, ...]:
        return (torch.randn(3, 4, requires_grad=True) * 2,)

    must_replay(nn.Linear(4, 4), rand((3, 4)), run_inputs=inner)


# row: set_default_dtype, sdpa_kernel, the caller's autocast


class _DefaultDtype:
    def __init__(self, dtype: torch.dtype) -> None:
        self.dtype = dtype

    def __enter__(self) -> None:
        self.before = torch.get_default_dtype()
        torch.set_default_dtype(self.dtype)

    def __exit__(self, *_: Any) -> None:
        torch.set_default_dtype(self.before)


def _uses_default(x: Tensor) -> Tensor:
    return x + torch.zeros(4) + torch.tensor([0.5, 1.5, 2.5, 3.5]) + torch.arange(4) / 3


def test_another_default_dtype_at_run() -> None:
    double = lambda: _DefaultDtype(torch.float64)  # noqa: E731
    must_refuse(_uses_default, lambda: (torch.randn(3, 4).float(),), run_around=double, match="default dtype is")
    must_refuse(
        _uses_default,
        lambda: (torch.randn(3, 4).float(),),
        capture_around=double,
        run_around=nullcontext,
        match="default dtype is",
    )


def test_the_same_default_dtype_at_capture_and_run() -> None:
    double = lambda: _DefaultDtype(torch.float64)  # noqa: E731
    must_replay(_uses_default, lambda: (torch.randn(3, 4).float(),), capture_around=double)


def test_the_default_dtype_set_inside_forward() -> None:
    def factories(x: Tensor) -> Tensor:
        with _DefaultDtype(torch.float64):
            return x + torch.zeros(4) + torch.tensor([0.5, 1.5, 2.5, 3.5])

    def promotion(x: Tensor) -> Tensor:
        with _DefaultDtype(torch.float64):
            return _uses_default(x)

    must_replay(factories, rand((3, 4)))
    must_refuse(promotion, rand((3, 4)), match="the plan holds only for")


def _attend(q: Tensor) -> Tensor:
    return F.scaled_dot_product_attention(q, q * 0.5, q + 1, is_causal=True)


def test_an_attention_kernel_chosen_inside_forward() -> None:
    from torch.nn.attention import SDPBackend, sdpa_kernel

    def inside(q: Tensor) -> Tensor:
        with sdpa_kernel(SDPBackend.MATH):
            y = _attend(q)
        return y + _attend(q)

    must_replay(inside, rand((2, 2, 9, 8)))


def test_an_attention_kernel_chosen_by_the_caller() -> None:
    from torch.nn.attention import SDPBackend, sdpa_kernel

    math = lambda: sdpa_kernel(SDPBackend.MATH)  # noqa: E731
    must_replay(_attend, rand((2, 2, 9, 8)), run_around=math)
    must_replay(_attend, rand((2, 2, 9, 8)), capture_around=math, run_around=nullcontext)
    must_replay(_attend, rand((2, 2, 9, 8)), capture_around=math)


def _autocast() -> Any:
    return torch.autocast("cpu", dtype=torch.bfloat16)


def test_the_callers_autocast_differs_between_capture_and_run() -> None:
    net = nn.Sequential(nn.Linear(4, 4), nn.ReLU(), nn.Linear(4, 4))
    must_refuse(net, rand((3, 4)), run_around=_autocast, match="autocast around the call")
    must_refuse(net, rand((3, 4)), capture_around=_autocast, run_around=nullcontext, match="autocast around the call")


def test_the_callers_autocast_is_the_same_at_capture_and_run() -> None:
    net = nn.Sequential(nn.Linear(4, 4), nn.ReLU(), nn.LayerNorm(4), nn.Linear(4, 4))
    must_replay(net, rand((3, 4)), capture_around=_autocast)


def test_other_global_switches_at_run() -> None:
    class Deterministic:
        def __enter__(self) -> None:
            torch.use_deterministic_algorithms(True)

        def __exit__(self, *_: Any) -> None:
            torch.use_deterministic_algorithms(False)

    net = nn.Sequential(nn.Conv2d(3, 4, 3), nn.ReLU(), nn.Flatten())
    must_replay(net, rand((2, 3, 8, 8)), run_around=Deterministic)
    must_replay(net, rand((2, 3, 8, 8)), run_around=lambda: torch.backends.mkldnn.flags(enabled=False))
    must_replay(net, rand((2, 3, 8, 8)), run_around=lambda: torch.device("cpu"))


# row: an active TorchDispatchMode


def _make_mode() -> Any:
    from torch.utils._python_dispatch import TorchDispatchMode

    class AddIsMultiply(TorchDispatchMode):
        def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
            if func is torch.ops.aten.add.Tensor:
                return torch.ops.aten.mul.Tensor(*args)
            return func(*args, **(kwargs or {}))

    return AddIsMultiply()


def test_a_dispatch_mode_inside_forward() -> None:
    def inside(x: Tensor) -> Tensor:
        with _make_mode():
            y = x + x.sin()
        return y + 1

    must_refuse(inside, rand((3, 4)), match="the replay differs from the model")


def test_a_dispatch_mode_of_the_caller() -> None:
    must_refuse(lambda x: x + x.sin(), rand((3, 4)), capture_around=_make_mode, match="TorchDispatchMode is active")
    must_refuse(
        lambda x: x + x.sin(),
        rand((3, 4)),
        capture_around=_make_mode,
        run_around=nullcontext,
        match="TorchDispatchMode is active",
    )
    must_refuse(lambda x: x + x.sin(), rand((3, 4)), run_around=_make_mode, match="TorchDispatchMode is active")


def test_a_function_mode_inside_forward() -> None:
    from torch.overrides import TorchFunctionMode

    class SinIsCos(TorchFunctionMode):
        def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
            return (torch.cos if func is torch.sin else func)(*args, **(kwargs or {}))

    def inside(x: Tensor) -> Tensor:
        with SinIsCos(), torch.device("cpu"):
            return torch.sin(x) + torch.ones(4)

    must_replay(inside, rand((3, 4)))


# row: set_(storage), deepcopy, torch.load inside forward


def test_a_tensor_set_to_a_storage() -> None:
    def rebuilt(x: Tensor) -> Tensor:
        y = (x * 2).detach()
        t = torch.empty(0)
        t.set_(y.untyped_storage(), 0, (4, 3), (1, 4))
        return t + 1

    must_refuse(rebuilt, rand((3, 4)), match="takes raw storage")


def test_deepcopy_inside_forward() -> None:
    def copied(lin: nn.Linear, x: Tensor) -> Tensor:
        return copy.deepcopy(x.detach() * 2) + copy.deepcopy(lin)(x) + copy.copy(x)

    must_refuse(Fn(copied), rand((3, 4)), match="takes raw storage")


def test_save_and_load_inside_forward() -> None:
    def loaded(x: Tensor) -> Tensor:
        file = io.BytesIO()
        torch.save(x.detach() * 2, file)
        file.seek(0)
        return x + torch.load(file)

    must_refuse(loaded, rand((3, 4)), match="takes raw storage")


# ==== loud ==================================================================================================

# row: cond, while_loop, scan, flex_attention


@pytest.mark.integration
def test_cond_takes_the_branch_of_eager_or_raises() -> None:
    def branch(x: Tensor) -> Tensor:
        return torch.cond(x.sum() > 0, lambda t: t.sin() + 1, lambda t: t.cos() * 2, (x,))

    guarded(branch, POSITIVE, ALSO_POSITIVE, NEGATIVE)


def test_while_loop_runs_as_often_as_eager_or_raises() -> None:
    from torch._higher_order_ops.while_loop import while_loop

    def loop(x: Tensor) -> Tensor:
        n = x.sum().abs().to(torch.int64) * 0 + 3
        return while_loop(lambda i, t: i > 0, lambda i, t: (i - 1, t * 2), (n, x))[1]

    must_replay(loop, rand((3, 4)), grad=False, input_grad=False)


def test_scan() -> None:
    from torch._higher_order_ops.scan import scan

    def running(x: Tensor) -> Any:
        return scan(lambda carry, t: (carry + t, carry * t), torch.zeros(4), x, dim=0)

    must_replay(running, rand((3, 4)), grad=False, input_grad=False)


def test_flex_attention() -> None:
    from torch.nn.attention.flex_attention import flex_attention

    def attend(q: Tensor) -> Tensor:
        return flex_attention(q, q * 0.5, q + 1, score_mod=lambda s, b, h, i, j: s * 0.5 + (i - j))  # type: ignore[return-value]

    must_replay(attend, rand((1, 2, 16, 16)), grad=False, input_grad=False)


# row: an op that raised and was caught


def test_an_operator_that_raised_and_was_caught_is_dropped() -> None:
    def attempt(x: Tensor) -> Tensor:
        y = x.t()
        try:
            return y.view(-1) * 2
        except RuntimeError:
            return y.reshape(-1) * 3

    must_replay(attempt, rand((3, 4)))


def test_a_write_that_raised_and_was_caught_is_dropped() -> None:
    def attempt(x: Tensor) -> Tensor:
        y = x.expand(2, 3, 4)
        try:
            y.add_(1)
        except RuntimeError:
            y = y.clone().mul_(2)
        return y

    must_replay(attempt, rand((3, 4)), grad=False, input_grad=False)


def test_a_module_that_raised_and_was_caught_leaves_the_scopes_right() -> None:
    class Fragile(nn.Module):
        def forward(self, x: Tensor) -> Tensor:
            (x + 1).view(7)
            return x

    class Careful(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.fragile, self.lin = Fragile(), nn.Linear(4, 4)

        def forward(self, x: Tensor) -> Tensor:
            try:
                x = self.fragile(x)
            except RuntimeError:
                x = x * 2
            return self.lin(x)

    must_replay(Careful(), rand((3, 4)))
    plan = cleave.capture(Careful(), (torch.randn(3, 4),))
    assert plan.nodes[-1].module_path == "lin"


# row: outputs never seen


def test_an_output_that_no_operator_made() -> None:
    def outside(x: Tensor) -> Tensor:
        return torch.utils.dlpack.from_dlpack(np.cos(x.detach().numpy()))

    must_refuse(outside, rand((3, 4)), "numpy|dlpack|output", seeds=(1, 2))


# row: jit.fork


def test_jit_fork() -> None:
    @torch.jit.script
    def child(x: Tensor, k: float) -> Tensor:
        return (x * k).sin()

    @torch.jit.script
    def parent(x: Tensor) -> Tensor:
        a = torch.jit.fork(child, x, 2.0)
        b = torch.jit.fork(child, x, 3.0)
        return torch.jit.wait(a) + torch.jit.wait(b) * x

    must_replay(lambda x: parent(x), rand((3, 4)), grad=False)
    with torch.no_grad():
        plan = cleave.capture(lambda x: parent(x), (torch.randn(3, 4),))
    assert len(plan.nodes) == 1  # operators of other threads would come in any order


# a torch.compile'd callee hides its ops


def test_a_compiled_callee_is_captured_as_its_eager_self() -> None:
    inner = torch.compile(lambda x, w: (x @ w).relu() * 2, backend="eager")
    must_replay(Fn(lambda lin, x: inner(x, lin.weight) + 1), rand((3, 4)), grad=False)


def test_a_compiled_module_given_to_capture() -> None:
    net = nn.Sequential(nn.Linear(4, 4), nn.ReLU())
    compiled = torch.compile(net, backend="eager")
    x = torch.randn(3, 4)
    with torch.no_grad():
        plan = cleave.capture(compiled, (x,))
        y = torch.randn(3, 4)
        assert torch.equal(plan(y), net(y))

"""Training across a cut: the prefix's graph waits with the boundary until the suffix's gradients come back.

What one backward over the whole model would add up is added up in the same order, so gradients are equal bit for bit. A
parameter that the prefix's backward reaches too gets its gradient once, in backward_prefix, with the part of the
suffix and of the loss counted first."""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

import torch
from torch import nn

from . import _step
from ._cut import Cut
from .errors import InputError
from .payload import BoundaryPayload

Loss = Callable[[Any, Any], torch.Tensor]


class Share(NamedTuple):
    """What one train_suffix found for the prefix's backward."""

    gradients: dict[str, torch.Tensor | None]  # of the boundary, by label
    waiting: list[tuple[torch.Tensor, torch.Tensor]]  # parameters that the prefix trains, and the suffix's part


class Record:
    """What a training prefix keeps for its backward: one step."""

    def __init__(self, owner: object, cut: Cut, roots: dict[str, torch.Tensor], inputs: Sequence[torch.Tensor]) -> None:
        self.owner = owner
        self.cut = cut
        self.roots = roots  # on the prefix's graph, by label; empty once the backward has run
        self.number = next(_step.numbers)
        self.shares: list[Share] = []
        self.optimizers: list[torch.optim.Optimizer] = []  # of the suffix: they may hold what waits
        # What made the inputs is reached by the prefix's backward too.
        self.upstream = list(_step.reached(inputs).values()) if any(t.requires_grad for t in inputs) else []
        self.used = False


def detached(roots: Mapping[str, torch.Tensor]) -> dict[str, torch.Tensor]:
    """Boundary tensors as leaves of their own: what is done with them does not reach the prefix's graph."""
    return {label: t.detach().requires_grad_(t.requires_grad) for label, t in roots.items()}


def default_loss(output: Any, targets: Any) -> torch.Tensor:
    """Cross entropy for integer targets of a classifier, else the mean squared error."""
    if not isinstance(output, torch.Tensor):
        raise TypeError(f"the model returns {type(output).__name__}: give a loss_fn(output, targets) that knows it")
    if not isinstance(targets, torch.Tensor):
        raise TypeError(f"targets must be a tensor for the default loss, not {type(targets).__name__}")
    whole = not targets.is_floating_point() and not targets.is_complex()
    if whole and targets.dtype != torch.bool and output.dim() >= 2:
        return nn.functional.cross_entropy(output, targets.long())
    if whole:  # the type that mse_loss computes in: before torch 2.13 its backward wants both to have it
        autocast = torch.is_autocast_enabled(output.device.type)
        targets = targets.to(torch.promote_types(output.dtype, torch.float32) if autocast else output.dtype)
    return nn.functional.mse_loss(output, targets)


def check_mode() -> None:
    """Inference mode makes tensors that no gradient can reach, whatever grad mode says."""
    if torch.is_inference_mode_enabled():
        raise InputError("a split cannot train under torch.inference_mode(): leave it, or use torch.no_grad()")


def _own(grad: torch.Tensor) -> torch.Tensor:
    """A copy that shares no memory, with the same strides and alignment: by these, sums and matrix products choose the
    order in which they add. What is expanded cannot be written anyway and stays."""
    if grad.layout is not torch.strided or grad.is_nested or grad.numel() == 0:
        return grad.clone()
    extent = grad.numel()
    if not grad.is_contiguous():
        if any(n > 1 and s == 0 for n, s in zip(grad.shape, grad.stride(), strict=True)):
            return grad
        extent = 1 + sum((n - 1) * s for n, s in zip(grad.shape, grad.stride(), strict=True))
    shift = grad.data_ptr() % 64 // grad.element_size()
    room = torch.empty(shift + extent, dtype=grad.dtype, device=grad.device)
    return room.as_strided(grad.shape, grad.stride(), shift).copy_(grad)


class Watch:
    """The gradients of a boundary's leaves, filled in by the one backward that is waited for.

    They are taken as the backward makes them: .grad has the strides of its tensor instead, and the prefix's backward
    would then add up in another order than that of the whole model."""

    def __init__(self, leaves: Mapping[str, torch.Tensor]) -> None:
        self.found: dict[str, torch.Tensor | None] = dict.fromkeys(leaves)
        self.over = False
        for label, t in leaves.items():
            if t.requires_grad:
                t._backward_hooks = {0: _Hook(self, label)}  # register_hook does this too, and takes six times as long


class _Hook:
    """On one leaf of a boundary."""

    def __init__(self, watch: Watch, label: str) -> None:
        self.watch, self.label = watch, label

    def __call__(self, grad: torch.Tensor) -> None:
        if self.watch.over:
            raise InputError(f"a backward comes to something of an earlier step: {KEPT}")
        self.watch.found[self.label] = _own(grad)


KEPT = (
    "it is kept from an earlier step together with its graph, which ends at that step's boundary: detach what the "
    "model or the loss keeps (self.state = state.detach())"
)


def refuse_kept(cut: Cut) -> None:
    """Before a step: no tensor that the forward reads has a graph from an earlier one, which ended at the boundary."""
    for name in cut.with_grad:
        t = cut.live(name)
        hooks = (t._backward_hooks or {}).values()
        if t.grad_fn is not None or any(isinstance(h, _Hook) for h in hooks):
            raise InputError(f"{name}: {KEPT}")


def _apart(waiting: Sequence[torch.Tensor], backward: Callable[[], None]) -> list[tuple[torch.Tensor, torch.Tensor]]:
    """Runs a backward that gives these gradients of their own, which are not added up. Hooks on them wait too: they are
    to see whole gradients."""
    tables = [t._backward_hooks for t in waiting] + [t._post_accumulate_grad_hooks for t in waiting]
    hooks = [(table, dict(table)) for table in tables if table]
    for table, _ in hooks:
        table.clear()
    before = [(t, grad) for t in waiting if (grad := t.grad) is not None]
    for t, _ in before:
        t.grad = None
    try:
        backward()
    finally:
        parts = [(t, grad) for t in waiting if (grad := t.grad) is not None]
        for t, _ in parts:
            t.grad = None
        for t, grad in before:
            t.grad = grad
        for table, kept in hooks:
            table.update(kept)
    return parts


def train_suffix(
    cut: Cut,
    roles: _step.Roles,
    boundary: BoundaryPayload,
    symbols: list[int] | None,
    targets: Any,
    loss_fn: Loss | None,
    optimizers: _step.Optimizers,
    steps: _step.Steps,
) -> tuple[torch.Tensor, dict[str, torch.Tensor | None]]:
    """Runs the suffix and its backward; the loss and the gradients of the boundary."""
    record: Record | None = boundary.record
    leaves = {
        label: t.detach().requires_grad_(boundary.requires_grad.get(label, False))
        for label, t in boundary.tensors.items()
    }
    watch = Watch(leaves)
    waiting = _step.trained(roles.waiting) + (record.upstream if record is not None else [])
    _step.refuse_hooks(optimizers, waiting)
    steps.begin()
    with torch.enable_grad():
        output = cut.run_suffix(cut.in_order(leaves), symbols)
        loss = (loss_fn or default_loss)(output, targets)
        if not isinstance(loss, torch.Tensor) or loss.numel() != 1:
            raise TypeError("loss_fn must return a tensor with one element")
        if any(t.grad is not None for t in leaves.values()):
            raise InputError(
                "loss_fn has run a backward() through the boundary: that share would not reach the prefix. Return the "
                "sum of the losses, or call train_suffix once for each of them"
            )
        if not loss.requires_grad:
            raise InputError("the loss depends on nothing that is trained: neither boundary nor suffix require grad")
        if optimizers:
            _step.refuse_unheld(roles.whole, optimizers, [loss])
        backward: Callable[[], None] = loss.backward
        known = functools.partial(_step.known, roles, optimizers, loss_fn)
        parts = _apart(waiting, lambda: steps.fresh(backward, known))
    watch.over = True
    gradients = dict(watch.found)
    if record is not None:
        if parts or not record.shares or any(grad is not None for grad in watch.found.values()):
            record.shares.append(Share(watch.found, parts))
        record.optimizers += [o for o in optimizers if all(o is not other for other in record.optimizers)]
    else:
        gradients.update(_by_name(cut, roles.tied, parts))
    number = record.number if record is not None else next(_step.numbers)
    steps.take(optimizers, number, but={id(t) for t in waiting})
    return loss.detach(), gradients


def _by_name(
    cut: Cut, tied: Sequence[str], parts: Sequence[tuple[torch.Tensor, torch.Tensor]]
) -> dict[str, torch.Tensor]:
    """Parts of gradients that go to a prefix in another process."""
    names = {id(cut.live(name)): name for name in tied}
    if any(id(t) not in names for t, _ in parts):
        raise InputError(
            "loss_fn reads a parameter of the prefix, which is trained in another process: what is read here is not "
            "what is trained there. Leave the prefix's parameters out of the loss"
        )
    return {f"@{names[id(t)]}": grad for t, grad in parts}


def _checked(
    record: Record, tied: Sequence[str], given: Mapping[str, torch.Tensor | None]
) -> list[tuple[torch.Tensor, torch.Tensor]]:
    """Roots of the prefix's graph with their gradients."""
    pairs = []
    for label in given:
        if label not in record.roots and str(label).removeprefix("@") not in tied:
            raise InputError(f"boundary_grads has {label}, which is no label of the boundary")
    for label, root in record.roots.items():
        if not root.requires_grad:
            continue
        if label not in given:
            raise InputError(f"boundary_grads lacks {label}; give None where there is no gradient")
        grad = given[label]
        if grad is None:
            continue
        if not isinstance(grad, torch.Tensor):
            raise TypeError(f"the gradient of {label} must be a tensor or None, not {type(grad).__name__}")
        for what in ("shape", "dtype", "device", "layout"):
            want, have = getattr(root, what), getattr(grad, what)
            if want != have:
                shown = (tuple(have), tuple(want)) if what == "shape" else (have, want)
                raise InputError("the gradient of {} has {} {}, the boundary has {}".format(label, what, *shown))
        pairs.append((root, grad))
    return pairs


def _passes(
    record: Record, tied: Sequence[str], given: Mapping[str, torch.Tensor | None] | None
) -> list[list[tuple[torch.Tensor, torch.Tensor]]]:
    """The backwards to run, each with its roots and their gradients: one for each train_suffix, as in eager."""
    if given is None:
        return [_checked(record, tied, share.gradients) + share.waiting for share in record.shares]
    if len(record.shares) > 1 and any(share.waiting for share in record.shares):
        raise InputError(
            f"train_suffix has run {len(record.shares)} times on this boundary, and each time it has found a part of "
            "gradients that only the prefix's backward completes: call backward_prefix without boundary_grads, which "
            "counts all of them"
        )
    if record.shares:
        return [_checked(record, tied, given) + record.shares[0].waiting]
    due = [name for name in tied if name in record.cut.names["suffix"]]
    if due and not any(f"@{name}" in given for name in due):
        raise InputError(
            f"both halves train {', '.join(due)}: boundary_grads must hold the suffix's share of the gradient, as "
            "train_suffix returned it"
        )
    parts = [(record.cut.live(name), given.get(f"@{name}")) for name in tied]
    return [_checked(record, tied, given) + [(t, grad) for t, grad in parts if grad is not None]]


def _run(passes: Sequence[Sequence[tuple[torch.Tensor, torch.Tensor]]]) -> None:
    for i, pairs in enumerate(passes):
        if pairs:
            roots, grads = zip(*pairs, strict=True)
            torch.autograd.backward(roots, grads, retain_graph=i + 1 < len(passes))


def backward_prefix(
    record: Record,
    roles: _step.Roles,
    given: Mapping[str, torch.Tensor | None] | None,
    optimizers: _step.Optimizers,
    steps: _step.Steps,
) -> dict[str, torch.Tensor]:
    """Runs the prefix's backward; the whole gradients of tied parameters, for a suffix that lives elsewhere."""
    cut = record.cut
    passes = _passes(record, roles.tied, given)
    others = [o for o in record.optimizers if all(o is not mine for mine in optimizers)]
    if optimizers:
        _step.refuse_unheld(roles.waiting, [*optimizers, *others], [root for pairs in passes for root, _ in pairs])
        if others:
            _step.refuse_left(roles.lent, [*optimizers, *others])
    steps.begin(record.number)
    record.used = True
    steps.fresh(lambda: _run(passes), functools.partial(_step.known, roles, optimizers))
    record.roots = {}
    tied = {name: cut.live(name) for name in roles.tied}
    elsewhere = not record.shares  # the suffix is: it needs the whole gradients of what it shares with the prefix
    whole = {f"@{name}": p.grad.detach().clone() for name, p in tied.items() if elsewhere and p.grad is not None}
    steps.take(optimizers, record.number)
    if others:
        late = _step.trained(roles.waiting) if optimizers else tied.values()
        steps.take(others, record.number, only={id(t) for t in late})
    return whole


def apply_tied(
    cut: Cut, tied: Sequence[str], given: Mapping[str, torch.Tensor], optimizers: _step.Optimizers, steps: _step.Steps
) -> None:
    """In the process of the suffix: takes over the whole gradients of tied parameters, and steps them."""
    unknown = [str(label) for label in given if str(label).removeprefix("@") not in tied]
    if unknown:
        raise InputError(f"{', '.join(unknown)}: not among the parameters that both halves train")
    for label, grad in given.items():
        p = cut.live(label.removeprefix("@"))
        if not isinstance(grad, torch.Tensor):
            raise TypeError(f"the gradient of {label} must be a tensor, not {type(grad).__name__}")
        if grad.shape != p.shape or grad.dtype != p.dtype:
            raise InputError(f"the gradient of {label} does not fit the parameter")
        p.grad = grad.to(p.device)
    steps.take(optimizers, next(_step.numbers), only={id(cut.live(name)) for name in tied})

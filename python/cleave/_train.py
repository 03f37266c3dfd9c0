"""Training across a cut: the prefix's graph waits with the boundary until the suffix's gradients come back.

What one backward over the whole model would add up is added up in the same order, so gradients are equal bit for bit. A
parameter that both halves read gets its gradient once, in backward_prefix, with the suffix's share counted first."""

from __future__ import annotations

import functools
import weakref
from collections.abc import Callable, Iterable, Mapping
from typing import Any

import torch
from torch import nn

from ._cut import Cut
from .errors import InputError
from .payload import BoundaryPayload

Loss = Callable[[Any, Any], torch.Tensor]


class Record:
    """What a training prefix keeps for its backward."""

    def __init__(self, owner: object, cut: Cut, roots: dict[str, torch.Tensor]) -> None:
        self.owner = owner
        self.cut = cut
        self.roots = roots  # on the prefix's graph, by label; empty once the backward has run
        self.gradients: dict[str, torch.Tensor | None] | None = None  # what train_suffix found
        self.tied: dict[str, torch.Tensor] | None = None  # the suffix's share of the gradients of tied parameters
        self.optimizer: torch.optim.Optimizer | None = None  # of the suffix: tied parameters may be stepped by it
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
    counts = not targets.is_floating_point() and not targets.is_complex() and targets.dtype != torch.bool
    if counts and output.dim() >= 2:
        return nn.functional.cross_entropy(output, targets.long())
    return nn.functional.mse_loss(output, targets)


class Steps:
    """Optimizer steps over one half, and the gradients that they have used up.

    A call with an optimizer steps, and the gradients it used are not counted again; a call without one adds up. So
    a plain loop needs no zero_grad, and gradients of several batches can be gathered before a step."""

    def __init__(self) -> None:
        # By id: parameter, gradient and its version. Nothing is held: a gradient that is zeroed frees its memory.
        self.spent: dict[int, tuple[weakref.ref[torch.Tensor], weakref.ref[torch.Tensor], int]] = {}

    def drop_spent(self, parameters: Iterable[torch.Tensor]) -> None:
        """Takes away gradients that a step has used and that nobody has touched since."""
        for p in parameters if self.spent else ():
            found = self.spent.pop(id(p), None)
            if found is None or found[0]() is not p:
                continue
            if p.grad is not None and p.grad is found[1]() and p.grad._version == found[2]:
                p.grad = None

    def step(self, optimizer: torch.optim.Optimizer, skip: set[int]) -> None:
        """One step of the optimizer's parameters but for those in `skip` (by id)."""
        parameters = [p for group in optimizer.param_groups for p in group["params"]]
        hidden = [(p, p.grad) for p in parameters if id(p) in skip and p.grad is not None]
        for p, _ in hidden:
            p.grad = None
        try:
            optimizer.step()
        finally:
            for p, grad in hidden:
                p.grad = grad
        for p in parameters:
            if id(p) not in skip and p.grad is not None:
                self.spent[id(p)] = (weakref.ref(p), weakref.ref(p.grad), p.grad._version)


def check_mode() -> None:
    """Inference mode makes tensors that no gradient can reach, whatever grad mode says."""
    if torch.is_inference_mode_enabled():
        raise InputError("a split cannot train under torch.inference_mode(): leave it, or use torch.no_grad()")


def check_optimizer(optimizer: Any) -> None:
    """Before anything runs: what is given as an optimizer can be stepped."""
    if optimizer is not None and not (hasattr(optimizer, "param_groups") and callable(getattr(optimizer, "step", 0))):
        raise TypeError(f"optimizer must be a torch.optim.Optimizer, not {type(optimizer).__name__}")


def _ids(cut: Cut, half: str) -> set[int]:
    return {id(t) for t in cut.state(half).values()}


def holds(optimizer: torch.optim.Optimizer, p: int) -> bool:
    """The optimizer steps the parameter with this id."""
    return any(p == id(q) for group in optimizer.param_groups for q in group["params"])


def _own(grad: torch.Tensor) -> torch.Tensor:
    """A copy that shares no memory, with the same strides and alignment: by these, sums and matrix products choose the
    order in which they add. What is expanded cannot be written anyway and stays."""
    if grad.layout is not torch.strided or grad.is_nested or grad.numel() == 0:
        return grad.clone()
    if any(n > 1 and s == 0 for n, s in zip(grad.shape, grad.stride(), strict=True)):
        return grad
    extent = 1 + sum((n - 1) * s for n, s in zip(grad.shape, grad.stride(), strict=True))
    shift = grad.data_ptr() % 64 // grad.element_size()
    room = torch.empty(shift + extent, dtype=grad.dtype, device=grad.device)
    return room.as_strided(grad.shape, grad.stride(), shift).copy_(grad)


def watched(leaves: Mapping[str, torch.Tensor]) -> dict[str, torch.Tensor | None]:
    """The gradients of leaves, by label, filled in by the backward to come.

    They are taken as the backward makes them: .grad has the strides of its tensor instead, and the prefix's backward
    would then add up in another order than that of the whole model."""
    found: dict[str, torch.Tensor | None] = dict.fromkeys(leaves)

    def keep(label: str, grad: torch.Tensor) -> None:
        found[label] = _own(grad)

    for label, t in leaves.items():
        if t.requires_grad:
            t.register_hook(functools.partial(keep, label))  # type: ignore[no-untyped-call]
    return found


def train_suffix(
    cut: Cut,
    boundary: BoundaryPayload,
    symbols: list[int] | None,
    targets: Any,
    loss_fn: Loss | None,
    optimizer: torch.optim.Optimizer | None,
    steps: Steps,
) -> tuple[torch.Tensor, dict[str, torch.Tensor | None]]:
    """Runs the suffix and its backward; the loss and the gradients of the boundary."""
    leaves = {
        label: t.detach().requires_grad_(boundary.requires_grad.get(label, False))
        for label, t in boundary.tensors.items()
    }
    gradients = watched(leaves)
    aliases = {name: cut.live(name).detach().requires_grad_() for name in cut.tied}
    steps.drop_spent(t for t in cut.state("suffix").values() if isinstance(t, nn.Parameter))
    with torch.enable_grad():
        output = cut.run_suffix(cut.in_order(leaves), symbols, aliases)
        loss = (loss_fn or default_loss)(output, targets)
        if not isinstance(loss, torch.Tensor) or loss.numel() != 1:
            raise TypeError("loss_fn must return a tensor with one element")
        if not loss.requires_grad:
            raise InputError("the loss depends on nothing that is trained: neither boundary nor suffix require grad")
        loss.backward()  # type: ignore[no-untyped-call]
    tied = {name: t.grad for name, t in aliases.items() if t.grad is not None}
    record: Record | None = boundary.record
    if record is not None:
        record.gradients, record.tied, record.optimizer = gradients, tied, optimizer
    else:
        gradients.update({f"@{name}": grad for name, grad in tied.items()})
    if optimizer is not None:
        steps.step(optimizer, skip=_ids(cut, "prefix"))
    return loss.detach(), dict(gradients)


def _checked(record: Record, given: Mapping[str, torch.Tensor | None]) -> list[tuple[torch.Tensor, torch.Tensor]]:
    """Roots of the prefix's graph with their gradients."""
    pairs = []
    for label in given:
        if label not in record.roots and str(label).removeprefix("@") not in record.cut.tied:
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
        for what, want, have in (
            ("shape", tuple(root.shape), tuple(grad.shape)),
            ("dtype", root.dtype, grad.dtype),
            ("device", root.device, grad.device),
            ("layout", root.layout, grad.layout),
        ):
            if want != have:
                raise InputError(f"the gradient of {label} has {what} {have}, the boundary has {want}")
        pairs.append((root, grad))
    return pairs


def _tied_pairs(record: Record, given: Mapping[str, torch.Tensor | None]) -> list[tuple[torch.Tensor, torch.Tensor]]:
    """Parameters that both halves train, with the suffix's share of their gradients."""
    shares: Mapping[str, torch.Tensor | None] | None = record.tied
    if shares is None and record.cut.tied:
        shares = {name: given.get(f"@{name}") for name in record.cut.tied}
        if not any(f"@{name}" in given for name in record.cut.tied):
            raise InputError(
                f"both halves train {', '.join(record.cut.tied)}: boundary_grads must hold the suffix's share of the "
                "gradient, as train_suffix returned it"
            )
    return [(record.cut.live(name), grad) for name, grad in (shares or {}).items() if grad is not None]


def backward_prefix(
    record: Record,
    given: Mapping[str, torch.Tensor | None],
    optimizer: torch.optim.Optimizer | None,
    steps: Steps,
) -> dict[str, torch.Tensor]:
    """Runs the prefix's backward; the whole gradients of tied parameters, for a suffix that lives elsewhere."""
    cut = record.cut
    pairs = _checked(record, given) + _tied_pairs(record, given)
    steps.drop_spent(t for t in cut.state("prefix").values() if isinstance(t, nn.Parameter))
    record.used = True
    if pairs:
        roots, grads = zip(*pairs, strict=True)
        torch.autograd.backward(roots, grads)
    record.roots = {}
    elsewhere = record.tied is None  # the suffix is: it needs the whole gradients of what it shares with the prefix
    whole = {f"@{name}": cut.live(name).grad for name in cut.tied if elsewhere}
    whole = {name: None if grad is None else grad.detach().clone() for name, grad in whole.items()}
    tied = [cut.live(name) for name in cut.tied]
    late = record.optimizer
    if optimizer is None and late is None:
        return {name: grad for name, grad in whole.items() if grad is not None}
    prefix, suffix = _ids(cut, "prefix"), _ids(cut, "suffix")
    if optimizer is not None:  # one that holds the whole model steps the suffix too, unless that was stepped already
        steps.step(optimizer, skip={i for i in suffix - prefix if late is not None and holds(late, i)})
    done = {id(p) for p in tied if optimizer is not None and holds(optimizer, id(p))}
    if late is not None and any(holds(late, id(p)) and id(p) not in done for p in tied):
        steps.step(late, skip=(prefix | suffix) - {id(p) for p in tied} | done)
    return {name: grad for name, grad in whole.items() if grad is not None}


def apply_tied(
    cut: Cut, given: Mapping[str, torch.Tensor], optimizer: torch.optim.Optimizer | None, steps: Steps
) -> None:
    """In the process of the suffix: takes over the whole gradients of tied parameters, and steps them."""
    unknown = [str(label) for label in given if str(label).removeprefix("@") not in cut.tied]
    if unknown:
        raise InputError(f"{', '.join(unknown)}: not among the parameters that both halves train")
    for label, grad in given.items():
        p = cut.live(label.removeprefix("@"))
        if not isinstance(grad, torch.Tensor):
            raise TypeError(f"the gradient of {label} must be a tensor, not {type(grad).__name__}")
        if grad.shape != p.shape or grad.dtype != p.dtype:
            raise InputError(f"the gradient of {label} does not fit the parameter")
        p.grad = grad.to(p.device)
    if optimizer is not None:
        tied = {id(cut.live(name)) for name in cut.tied}
        others = {id(p) for group in optimizer.param_groups for p in group["params"]} - tied
        steps.step(optimizer, skip=others)

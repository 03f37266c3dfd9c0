"""Finds gradient hooks that a forward sets, which leave no operator, and refuses them.

Hooks on parameters and inputs from before the forward are autograd's own, and work with plans as with the model."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

import torch

from .errors import CaptureError

_TABLES = ("_backward_hooks", "_post_accumulate_grad_hooks")


class LeafHooks:
    """The hooks of leaves (parameters, inputs) as they were before a forward."""

    def __init__(self, named: Iterable[tuple[str, torch.Tensor]]) -> None:
        leaves = [(name, t) for name, t in named if t.requires_grad and t.is_leaf]
        self.kept = [(name, t, table, dict(getattr(t, table) or {})) for name, t in leaves for table in _TABLES]

    def restore(self) -> str | None:
        """Takes away what was added since; the name of a tensor that got a hook."""
        changed = None
        for name, tensor, table, before in self.kept:
            now: dict[Any, Any] | None = getattr(tensor, table)
            if now is not None and dict(now) != before:
                changed = changed or name
                now.clear()
                now.update(before)
        return changed


def check(stream: Any, given: Sequence[Any], leaves: LeafHooks) -> None:
    """Refuses a recorded forward that sets gradient hooks. given: all that it gave or changed."""
    hooked = leaves.restore()
    if hooked is not None:
        raise CaptureError(
            f"every forward puts a gradient hook on {hooked}, which a plan would not: set it once, outside of it"
        )
    stream.check_hooks([t for t in given if isinstance(t, torch.Tensor) and t.requires_grad and not t.is_leaf])


def gradients(
    roots: Sequence[torch.Tensor], wanted: Sequence[torch.Tensor], seeds: Sequence[torch.Tensor]
) -> list[torch.Tensor | None]:
    """As torch.autograd.grad gives them; the graph stays. Reentrant checkpoints give theirs to backward() alone."""
    if not _is_reentrant(roots):
        return list(torch.autograd.grad(roots, wanted, seeds, allow_unused=True, retain_graph=True))
    before = [t.grad for t in wanted]
    hooks: list[tuple[Any, dict[Any, Any]]] = [(h, dict(h)) for t in wanted if (h := t._post_accumulate_grad_hooks)]
    try:
        for table, _ in hooks:  # they may step an optimizer
            table.clear()
        for t in wanted:
            t.grad = None
        torch.autograd.backward(roots, seeds, retain_graph=True)
        return [t.grad for t in wanted]
    finally:
        for table, kept in hooks:
            table.update(kept)
        for t, grad in zip(wanted, before, strict=True):
            t.grad = grad


def _is_reentrant(roots: Sequence[torch.Tensor]) -> bool:
    """The graph has a reentrant checkpoint."""
    seen = {t.grad_fn for t in roots}
    left = [node for node in seen if node is not None]
    while left:
        node = left.pop()
        if type(node).__name__ == "CheckpointFunctionBackward":
            return True
        new = {n for n, _ in node.next_functions if n is not None} - seen
        seen |= new
        left += new
    return False

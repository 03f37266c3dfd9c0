"""Removes additions of a model's first forward: hooks, wrapped methods, submodules, and their flags.

A capture of a model that never ran has it installed for as long as it looks at the model, and takes it off again. The
plan is right before the model's own first forward and after it; what that makes is equal, not the same."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import Any

import torch
from torch import nn

from . import _native
from ._state import Change, ModuleTensor, Target, put

Where = tuple[int, Any]


def where(c: Change) -> Where:
    """The place of a change."""
    return id(c.holder), c.key


def installs(target: Target, changes: Iterable[Change]) -> list[Change]:
    """Of what a forward changes: that which makes it another model. Numbers, caches and tensors do not."""
    tables = {id(t) for _, m in target.modules() for t in (m._parameters, m._buffers)}
    return [c for c in changes if _is_installed(c, tables)]


def _is_installed(c: Change, tables: set[int]) -> bool:
    if c.hooks or isinstance(c.after, nn.Module):
        return True
    if isinstance(c.after, torch.Tensor):
        return id(c.holder) in tables and c.before is NotImplemented
    method = callable(c.after) and not isinstance(c.after, type)
    return method and (not c.outside or isinstance(c.holder, type))


class Installed:
    """What the first forward of a model changes, and can be put back."""

    def __init__(self, target: Target, changes: Sequence[Change]) -> None:
        self.changes = changes
        self.places = {where(c) for c in changes}
        self.modules: dict[int, nn.Module] = {}
        for c in changes:
            if isinstance(c.after, nn.Module):
                self.modules.update({id(m): m for m in c.after.modules()})
        self.known = {(id(t.holder), t.key) for t in target.tensors()}

    def is_off(self) -> bool:
        """The model is as it was before its first forward."""
        return all(c.is_before() for c in self.changes)

    def put_on(self) -> None:
        for c in self.changes:
            put(c, c.after)

    def take_off(self) -> None:
        for c in reversed(self.changes):
            put(c, c.before)

    def holder(self, target: Target, t: ModuleTensor) -> Any:
        """Where a tensor of the model is found, whether it is installed or not."""
        if (id(t.holder), t.key) in self.known:
            return t.holder
        for root, path, attribute, holder in _holders(target):
            if holder is t.holder:
                return _Place(root, path, attribute, {t.key: t.tensor})
        return t.holder


def _holders(target: Target) -> Iterator[tuple[nn.Module, list[str], str | None, Any]]:
    """Every dict or list of the modules that tensors can be in: a root, the way to a module, its attribute."""
    for _, root in target.roots:
        for path, module in root.named_modules(remove_duplicate=False):
            parts, own = path.split(".") if path else [], vars(module)
            yield root, parts, None, own
            yield from ((root, parts, k, v) for k, v in own.items() if isinstance(v, (dict, list)))


class _Place:
    """Tensors that are found by name in the model; as long as it has no such name, those that a capture made."""

    def __init__(self, root: nn.Module, path: list[str], attribute: str | None, made: dict[Any, torch.Tensor]) -> None:
        self.root, self.path, self.attribute, self.made = root, path, attribute, made

    def holder(self, key: Any) -> Any:
        try:
            module: Any = self.root
            for part in self.path:
                module = module._modules[part]
            found: Any = vars(module) if self.attribute is None else vars(module)[self.attribute]
            return found if isinstance(found[key], torch.Tensor) else self.made
        except (LookupError, AttributeError, TypeError):
            return self.made

    def __getitem__(self, key: Any) -> Any:
        return self.holder(key)[key]

    def __setitem__(self, key: Any, value: Any) -> None:
        self.holder(key)[key] = value


def differs(a: Sequence[Change], b: Sequence[Change]) -> str | None:
    """The first tensor that two first forwards, on other data and other random numbers, make differently."""
    other = {where(c): c.after for c in b}
    for c in a:
        for name, t in _tensors(c.after):
            twin = dict(_tensors(other.get(where(c)))).get(name)
            if twin is None or not _native.bits_equal(t, twin):
                return f"{c.where}.{name}" if name else c.where
    return None


def made_tensors(changes: Iterable[Change]) -> list[torch.Tensor]:
    """Those that a first forward leaves in the model."""
    return [t for c in changes for _, t in _tensors(c.after)]


def _tensors(value: Any) -> Iterator[tuple[str, torch.Tensor]]:
    if isinstance(value, torch.Tensor):
        yield "", value
    elif isinstance(value, nn.Module):
        yield from value.named_parameters(remove_duplicate=False)
        yield from value.named_buffers(remove_duplicate=False)

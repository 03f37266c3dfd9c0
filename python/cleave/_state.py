"""The model's state: found, kept, and put back after a forward that was only a look."""

from __future__ import annotations

import functools
import inspect
import random
import sys
from collections import OrderedDict, defaultdict, deque
from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

import torch
from torch import nn

from . import _native


class ModuleTensor(NamedTuple):
    kind: str  # param, buffer, attr
    name: str
    holder: dict[str, Any]  # holder[key] is the tensor
    key: str
    tensor: torch.Tensor


class Target:
    """What is captured: a callable and the modules whose tensors it may read.

    A module, a bound method of one, or any function; of a function the modules are found in its closure, its globals
    and the arguments of a partial."""

    def __init__(self, model: Callable[..., Any]) -> None:
        if not callable(model):
            raise TypeError(f"a module or another callable is needed, not {type(model).__name__}")
        if isinstance(model, nn.Module):
            model = getattr(model, "_orig_mod", model)  # torch.compile's wrapper
        self.call: Callable[..., Any] = model
        self.roots: list[tuple[str, nn.Module]] = list(_roots(model))
        owner = getattr(model, "__self__", None)
        named = model if isinstance(model, nn.Module) else owner if isinstance(owner, nn.Module) else None
        self.name = type(named).__name__ if named is not None else getattr(model, "__name__", type(model).__name__)
        self.training = bool(named.training) if named is not None else False

    def modules(self) -> Iterator[tuple[str, nn.Module]]:
        """Every module once, with its path."""
        seen: set[int] = set()
        for prefix, root in self.roots:
            for path, module in root.named_modules():
                if id(module) not in seen:
                    seen.add(id(module))
                    yield _join(prefix, path), module

    def tensors(self) -> Iterator[ModuleTensor]:
        """Every tensor of the modules; a tied one comes again under each of its names."""
        for prefix, root in self.roots:
            for path, module in root.named_modules(remove_duplicate=False):
                yield from _module_tensors(_join(prefix, path), module)

    def module_checks(self) -> list[tuple[dict[str, Any], str, bool, dict[str, Any] | None, str, nn.Module]]:
        """What must still hold of every module when a plan runs: its training flag, and that it is still there."""
        out: list[tuple[dict[str, Any], str, bool, dict[str, Any] | None, str, nn.Module]] = []
        places = {id(root): (None, "") for _, root in self.roots}
        for path, module in self.modules():
            for key, child in module._modules.items():
                if isinstance(module._modules, dict):
                    places.setdefault(id(child), (module._modules, key))  # type: ignore[arg-type]
            if "training" in vars(module):
                parent, key = places.get(id(module), (None, ""))
                out.append((vars(module), path, module.training, parent, key, module))
        return out

    def signature(self) -> inspect.Signature | None:
        forward = self.call.forward if isinstance(self.call, nn.Module) else self.call
        try:
            return inspect.signature(forward)
        except (TypeError, ValueError):
            return None


def _join(*parts: str) -> str:
    return ".".join(p for p in parts if p)


def _roots(model: Any) -> Iterator[tuple[str, nn.Module]]:
    if isinstance(model, nn.Module):
        yield "", model
    elif isinstance(getattr(model, "__self__", None), nn.Module):
        yield "", model.__self__
    else:
        found: dict[str, nn.Module] = {}
        _search(model, found, 0)
        yield from found.items()


def _search(fn: Any, found: dict[str, nn.Module], depth: int) -> None:
    if depth > 3:
        return
    if isinstance(fn, functools.partial):
        for name, value in [*enumerate(fn.args), *fn.keywords.items()]:
            _offer(str(name), value, found, depth)
        _search(fn.func, found, depth + 1)
        return
    if not inspect.isfunction(fn):
        for name, value in getattr(fn, "__dict__", {}).items():  # an object with __call__
            _offer(name, value, found, depth)
        fn = type(fn).__call__
    if inspect.isfunction(fn):
        names = inspect.getclosurevars(fn)
        for name, value in [*names.nonlocals.items(), *names.globals.items()]:
            _offer(name, value, found, depth)


def _offer(name: str, value: Any, found: dict[str, nn.Module], depth: int) -> None:
    if isinstance(value, nn.Module):
        if all(value is not m for m in found.values()):
            found[name] = value
    elif isinstance(getattr(value, "__self__", None), nn.Module):
        _offer(name, value.__self__, found, depth)
    elif inspect.isfunction(value) or isinstance(value, functools.partial):
        _search(value, found, depth + 1)


def _module_tensors(path: str, module: nn.Module) -> Iterator[ModuleTensor]:
    own = vars(module)
    for kind, attribute in (("param", "_parameters"), ("buffer", "_buffers")):
        holder = getattr(module, attribute)
        if not isinstance(holder, dict):  # a scripted module keeps its tensors elsewhere; they do not move
            holder = dict(holder.items())
        for key, tensor in holder.items():
            if tensor is not None:
                yield ModuleTensor(kind, _join(path, key), holder, key, tensor)
    for key, value in own.items():
        if isinstance(value, torch.Tensor):
            yield ModuleTensor("attr", _join(path, key), own, key, value)


class RandomState:
    """All random generators that a forward can reach."""

    def __init__(self) -> None:
        self.cpu = torch.get_rng_state()
        self.cuda = torch.cuda.get_rng_state_all() if torch.cuda.is_initialized() else None  # type: ignore[no-untyped-call]
        self.python = random.getstate()
        numpy = sys.modules.get("numpy")
        self.numpy: Any = numpy.random.get_state() if numpy is not None else None

    def restore(self) -> None:
        torch.set_rng_state(self.cpu)
        if self.cuda is not None:
            torch.cuda.set_rng_state_all(self.cuda)
        random.setstate(self.python)
        if self.numpy is not None:
            sys.modules["numpy"].random.set_state(self.numpy)

    def host_differs(self, other: RandomState) -> str | None:
        """Python's or NumPy's generator moved: what a forward drew there leaves no operator."""
        if self.python != other.python:
            return "Python's random module"
        numpys = zip(self.numpy or (), other.numpy or (), strict=False)
        return "numpy.random" if any(_differs(a, b) for a, b in numpys) else None


def _differs(a: Any, b: Any) -> bool:
    if hasattr(a, "tobytes"):
        return bool(a.tobytes() != b.tobytes())
    return bool(a != b)


def _copy_container(value: Any, depth: int = 0) -> Any:
    if depth < 4:
        if type(value) in (dict, OrderedDict, defaultdict):
            return {k: (v, _copy_container(v, depth + 1)) for k, v in value.items()}
        if type(value) in (list, deque):
            return [(v, _copy_container(v, depth + 1)) for v in value]
        if type(value) is set:
            return set(value)
    return None


def _restore_container(value: Any, kept: Any) -> None:
    if kept is None:
        return
    if isinstance(value, set):
        if value != kept:
            value.clear()
            value.update(kept)
        return
    items = kept.items() if isinstance(value, dict) else enumerate(kept)
    for _, (inner, inner_kept) in items:
        _restore_container(inner, inner_kept)
    if isinstance(value, dict):
        same = list(value) == list(kept) and all(value[k] is kept[k][0] for k in kept)
        if not same:
            value.clear()
            value.update((k, v[0]) for k, v in kept.items())
    elif len(value) != len(kept) or any(a is not b[0] for a, b in zip(value, kept, strict=True)):
        value.clear()
        value.extend(v[0] for v in kept)


class Snapshot:
    """The modules' attributes, containers and buffers as they are now."""

    def __init__(self, target: Target) -> None:
        self.attributes: list[tuple[dict[str, Any], dict[str, Any], Any]] = []
        for _, module in target.modules():
            if isinstance(module, torch.jit.ScriptModule):
                continue
            own = vars(module)
            self.attributes.append((own, dict(own), {k: (v, _copy_container(v)) for k, v in own.items()}))
        tensors = list(target.tensors())
        self.buffers = [(t.tensor, t.tensor.detach().clone()) for t in tensors if t.kind == "buffer"]
        self.memory = [(t.tensor, t.tensor.data) for t in tensors]  # `tensor.data = …` exchanges it

    def changed(self) -> bool:
        """An attribute or container of a module is not what it was."""
        for own, kept, containers in self.attributes:
            if list(own) != list(kept) or any(own[k] is not kept[k] for k in kept):
                return True
            if any(_copy_container(v) is not None and not _same_container(v, c) for v, c in containers.values()):
                return True
        return False

    def restore(self) -> None:
        for own, kept, containers in self.attributes:
            if list(own) != list(kept) or any(own[k] is not kept[k] for k in kept):
                own.clear()
                own.update(kept)
            for value, copy in containers.values():
                _restore_container(value, copy)
        for tensor, alias in self.memory:
            if tensor.layout is torch.strided and not tensor.is_nested and tensor.data_ptr() != alias.data_ptr():
                tensor.data = alias
        for tensor, data in self.buffers:
            if not _native.bits_equal(tensor, data):
                _native.copy_data(tensor, data)


def _same_container(value: Any, kept: Any) -> bool:
    if kept is None:
        return True
    if isinstance(value, set):
        return bool(value == kept)
    if len(value) != len(kept):
        return False
    if isinstance(value, dict):
        return all(k in kept and value[k] is kept[k][0] and _same_container(value[k], kept[k][1]) for k in value)
    return all(a is b[0] and _same_container(a, b[1]) for a, b in zip(value, kept, strict=True))

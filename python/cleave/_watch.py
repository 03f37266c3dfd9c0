"""What only Python can see of a forward: modules entered, tensors read on the host, custom autograd functions.

While a capture runs, a few methods of torch are wrapped. (No module hooks: models look whether there are any, and do
something else.) The wrappers look at the thread first: other threads, and captures on them, are not touched. The last
capture to end takes them away again."""

from __future__ import annotations

import sys
import threading
import types
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import nn

from . import _native, _tree
from ._module_checks import can_be_watched, plain_objects
from ._numbers import Number, is_readable, kinds
from ._state import Target

_local = threading.local()
_lock = threading.Lock()
_users = 0
_undo: list[Callable[[], None]] = []
_watched: set[type] = set()  # classes of which it is seen which attributes are read
_files: set[int] = set()  # ids of the globals in which `float` and `int` are ours

# Methods that hand a tensor's data to code no plan can follow.
HOST_READS = ("tolist", "numpy", "__dlpack__")


class PythonCall:
    """A call that replay makes again, with its arguments' structure: of an autograd function, or of a module that is
    run as a whole. Of the tensors it gets, those after the arguments are the module's own, which it finds by itself."""

    def __init__(
        self, what: Callable[..., Any], name: str, arguments: _tree.Spec, count: int, results: _tree.Spec
    ) -> None:
        self.what = what
        self.name = name
        self.arguments = arguments
        self.count = count  # of the tensors among the arguments
        self.results = results

    def __call__(self, tensors: Sequence[Any]) -> list[torch.Tensor]:
        args, kwargs = _tree.unflatten(self.arguments, tensors[: self.count])
        return _tree.flatten(self.what(*args, **kwargs))[1]

    def difference(self, other: PythonCall) -> str | None:
        if self.what != other.what:
            return f"{self.name} is called once and {other.name} another time"
        return _tree.difference(self.arguments, other.arguments, f"an argument of {self.name}")


class Recording:
    """One forward being recorded on this thread."""

    def __init__(self, target: Target, read: set[tuple[int, str]], numbers: bool = False) -> None:
        self.read = read  # attributes of modules and plain objects that the forward looks at: id, name
        self.numbers = numbers  # what it reads of a tensor is a Number
        self.target = target
        self.stream = _native.Stream(target.name)
        self.calls: list[PythonCall] = []
        self.scopes: dict[int, int] = {}
        self.paths: list[str] = [""]
        self.keep: list[nn.Module] = []
        self.moved = False  # move_to entered a module that is still to be left
        self.by_path: dict[str, int] = {}
        self.whole: set[int] = set()  # ids of modules that are run as one node
        for path, module in target.modules():
            scope = self.stream.scope(path, type(module).__name__) if path else 0
            self.scopes[id(module)] = self.by_path[path] = scope
            if path in target.whole or type(module).__name__ in target.whole:
                self.whole.add(id(module))

    def enter(self, module: nn.Module) -> None:
        scope = self.scopes.get(id(module))
        if scope is None:  # a module that is none of the model's: made on the way, or reached from outside
            self.keep.append(module)
            scope = self.stream.scope(f"<{type(module).__name__}-{len(self.keep)}>", type(module).__name__)
            self.scopes[id(module)] = scope
        self.stream.enter(scope)

    def move_to(self, path: str) -> None:
        """Code without calls of modules says whose it is from now on; "" and what is no module: the caller's again."""
        if self.moved:
            self.stream.leave()
        scope = self.by_path.get(path) if path else None
        self.moved = scope is not None
        if scope is not None:
            self.stream.enter(scope)

    def opaque(
        self, what: Callable[..., Any], name: str, args: Any, kwargs: Any, own: Sequence[torch.Tensor] = ()
    ) -> Any:
        """Runs something as one node, which replay calls again. own: tensors that it reads beside its arguments."""
        arguments, tensors, _ = _tree.flatten((args, kwargs))
        self.stream.python_begin(name, [*tensors, *own])
        try:
            out = what(*args, **kwargs)
            structure, results, _ = _tree.flatten(out)
        except BaseException:
            self.stream.python_abort()
            raise
        self.stream.python_end(len(self.calls), results)
        self.calls.append(PythonCall(what, name, arguments, len(tensors), structure))
        return out

    def call(self, module: nn.Module, original: Callable[..., Any], args: Any, kwargs: Any) -> Any:
        """The forward of a module: operator by operator, or as a whole where that was asked for."""
        if id(module) not in self.whole:
            return original(module, *args, **kwargs)
        own = [*module.parameters(), *module.buffers()]
        return self.opaque(module, f"{type(module).__module__}.{type(module).__qualname__}", args, kwargs, own)


def current() -> Recording | None:
    """The recording of this thread, if it records right now."""
    recording: Recording | None = getattr(_local, "recording", None)
    return recording if recording is not None and recording.stream.active() else None


class watching:
    """`with watching(recording):` the recording of this thread is known to the wrappers."""

    def __init__(self, recording: Recording) -> None:
        self.recording = recording

    def __enter__(self) -> None:
        objects = (x for _, module in self.recording.target.modules() for x in plain_objects(module))
        _install({nn.Module, *(type(x) for x in objects if can_be_watched(type(x)))})
        if self.recording.numbers:
            _install_numbers(self.recording.target)
        self.outer = getattr(_local, "recording", None)
        _local.recording = self.recording

    def __exit__(self, *unused: object) -> None:
        _local.recording = self.outer
        _uninstall()


def _install(readable: set[type]) -> None:
    global _users
    with _lock:
        _users += 1
        if _users == 1:
            _undo.extend(_wrap_host_read(name) for name in HOST_READS)
            _undo.append(_wrap_apply())
            _undo.append(_wrap_call())
        for cls in readable - _watched:
            _watched.add(cls)
            _undo.append(_wrap_read(cls))


def _uninstall() -> None:
    global _users
    with _lock:
        _users -= 1
        if _users == 0:
            while _undo:
                _undo.pop()()
            _watched.clear()
            _files.clear()


def _install_numbers(target: Target) -> None:
    """`float(t)` cannot give anything but a float: in the files of the modules' classes it is another function."""
    classes = {c for _, m in target.modules() for c in type(m).__mro__ if issubclass(c, nn.Module)}
    files = [vars(sys.modules[c.__module__]) for c in classes if c.__module__ in sys.modules]
    with _lock:
        if not _files:
            _undo.append(_wrap_item())
        for names in (*files, getattr(target.call, "__globals__", {})):
            if id(names) not in _files:
                _files.add(id(names))
                _undo.extend(_put_name(names, name, kind) for name, kind in _KINDS.items() if name not in names)


def _put_name(names: dict[str, Any], name: str, kind: Any) -> Callable[[], None]:
    names[name] = kind
    return lambda: names.pop(name, None)


def _number(tensor: torch.Tensor, whole: bool | None) -> Number | None:
    """What the forward that is recorded here reads of a tensor."""
    recording = current()
    if recording is None or not recording.numbers or not is_readable(tensor, whole):
        return None
    return Number.of(tensor, not tensor.is_floating_point() if whole is None else whole, recording.stream.number)


_KINDS = kinds(_number)


def _wrap_item() -> Callable[[], None]:
    original: Any = torch.Tensor.item

    def item(self: torch.Tensor) -> Any:
        found = None if isinstance(self, Number) else _number(self, None)
        return original(self) if found is None else found

    tensor: Any = torch.Tensor
    tensor.item = item
    return lambda: delattr(tensor, "item")


def _wrap_call() -> Callable[[], None]:
    module: Any = nn.Module
    original = module.__call__

    def call(self: nn.Module, *args: Any, **kwargs: Any) -> Any:
        recording = current()
        if recording is None:
            return original(self, *args, **kwargs)
        recording.enter(self)
        try:
            return recording.call(self, original, args, kwargs)
        finally:
            if recording.stream.active():
                recording.stream.leave()

    module.__call__ = call
    return lambda: setattr(module, "__call__", original)


def _wrap_read(cls: Any) -> Callable[[], None]:
    original = vars(cls).get("__getattribute__")
    look_up: Any = cls.__getattribute__
    torchs_own = vars(sys.modules[nn.Module.__module__])

    def read(self: Any, name: str) -> Any:
        recording = getattr(_local, "recording", None)
        # nn.Module looks for parameters, buffers and children in its own dict: that reads no attribute.
        if recording is not None and (name != "__dict__" or sys._getframe(1).f_globals is not torchs_own):
            recording.read.add((id(self), name))
        return look_up(self, name)

    try:
        cls.__getattribute__ = read
    except (TypeError, AttributeError):  # its metaclass minds
        return lambda: None
    if original is None:
        return lambda: delattr(cls, "__getattribute__")
    return lambda: setattr(cls, "__getattribute__", original)


def _wrap_host_read(name: str) -> Callable[[], None]:
    own = name in vars(torch.Tensor)
    original: Any = getattr(torch.Tensor, name)

    def wrapper(self: torch.Tensor, *args: Any, **kwargs: Any) -> Any:
        recording = current()
        if recording is not None:
            try:
                recording.stream.host_read(self, f"Tensor.{name}()")
            except Exception as error:
                recording.stream.fail(str(error))
        return original(self, *args, **kwargs)

    wrapper.__name__ = name
    setattr(torch.Tensor, name, wrapper)
    return (lambda: setattr(torch.Tensor, name, original)) if own else (lambda: delattr(torch.Tensor, name))


def _wrap_apply() -> Callable[[], None]:
    function: Any = torch.autograd.Function
    original = vars(function).get("apply")
    bound: Any = function.apply.__func__

    def apply(cls: Any, *args: Any, **kwargs: Any) -> Any:
        recording = current()
        if recording is None or not torch.is_grad_enabled():
            return bound(cls, *args, **kwargs)
        if cls.__name__ == "CheckpointFunction" and cls.__module__ == "torch.utils.checkpoint":
            return args[0](*args[2:])  # the same numbers and gradients without the recomputation
        return recording.opaque(
            types.MethodType(bound, cls), f"{cls.__module__}.{cls.__qualname__}.apply", args, kwargs
        )

    function.apply = classmethod(apply)
    if original is None:
        return lambda: delattr(function, "apply")
    return lambda: setattr(function, "apply", original)

"""Watches what only Python can see of a forward: modules entered, tensors read on the host, custom autograd functions.

While a capture runs, a few methods of torch are wrapped. (No module hooks: models look whether there are any, and do
something else.) The wrappers look at the thread first: other threads, and captures on them, are not touched. The last
capture to end takes them away again."""

from __future__ import annotations

import builtins
import sys
import threading
import types
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import torch
from torch import nn
from torch.utils import checkpoint

from . import _native, _scripted, _tree
from ._numbers import Number, is_readable, kinds
from ._state import Target

id_of = id  # while a forward is recorded, `id` itself is watched
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

    def __init__(
        self,
        target: Target,
        read: set[tuple[int, str]],
        watched: set[type],
        own: set[int],
        asked: set[tuple[int, str]],
        scripts: _scripted.Scripts,
        numbers: bool = False,
    ) -> None:
        """own: ids of the model's tensors. The other sets are filled by what the forward does."""
        self.inputs: set[int] = set()  # ids of tensors
        self.own, self.asked = own, asked  # of those: id, what the forward asks for that no operator shows
        self.flags: set[int] = set()  # ids of inputs whose requires_grad is asked for
        self.grad = False  # gradients are wanted
        self.read = read  # attributes of modules and objects that the forward looks at: id, name
        self.watched = watched  # classes of objects of which that is seen
        self.scripts = scripts
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

    def sees_flag(self, t: torch.Tensor) -> bool:
        """Whether a tensor requires grad is for the caller to see, or for the backward."""
        return id_of(t) in self.inputs or (self.grad and id_of(t) not in self.own)

    def ask_flag(self, number: int) -> None:
        """The forward asks whether a tensor requires grad."""
        if number in self.inputs:
            self.flags.add(number)
        elif number in self.own:
            self.asked.add((number, "requires_grad"))

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
        """Runs something as one node, which replay calls again. own: tensors it reads in addition to its arguments."""
        arguments, tensors, _ = _tree.flatten((args, kwargs))
        given = [*tensors, *own]
        self.stream.python_begin(name, given)
        before = [_mark(t) for t in given]
        try:
            out = what(*args, **kwargs)
            structure, results, _ = _tree.flatten(out)
        except BaseException:
            self.stream.python_abort()
            raise
        written = [i for i, t in enumerate(given) if not _is_marked(t, before[i])]
        self.stream.python_end(len(self.calls), results, written)
        self.calls.append(PythonCall(what, name, arguments, len(tensors), structure))
        return out

    def ask_place(self, tensor: Any, how: str) -> None:
        """The forward asks where a tensor is: of the model's own it can be seen that they stay there."""
        if id_of(tensor) in self.own:
            self.asked.add((id_of(tensor), "place"))
        else:
            self.stream.fail(f"the forward asks for the place of a tensor in memory by {how}, which each run changes")

    def rerun(self, function: Callable[..., Any], keeps_random: bool, *args: Any) -> Any:
        """A reentrant checkpoint: the same numbers and gradients without the second run. Where no argument requires
        grad, there is no gradient at all."""
        if not any(isinstance(t, torch.Tensor) and t.requires_grad for t in args):
            with torch.no_grad():
                return function(*args)
        self.stream.region_begin(keeps_random, True)
        try:
            return function(*args)
        finally:
            self.stream.region_end()

    def call(self, module: nn.Module, original: Callable[..., Any], args: Any, kwargs: Any) -> Any:
        """The forward of a module: operator by operator, or as a whole where that was asked for."""
        if id(module) not in self.whole:
            return original(module, *args, **kwargs)
        own = [*module.parameters(), *module.buffers()]
        out = self.opaque(module, f"{type(module).__module__}.{type(module).__qualname__}", args, kwargs, own)
        self.stream.pass_hooks(_tree.flatten(out)[1])
        return out


def _mark(t: torch.Tensor) -> tuple[int | None, torch.Tensor | None]:
    """What tells that a tensor was written: its version, or a copy where none counts (inference mode, statistics of a
    BatchNorm)."""
    version = None if t.is_inference() else t._version
    counted = version is not None and (t.requires_grad or t.grad_fn is not None)
    return version, None if counted else t.detach().clone()


def _is_marked(t: torch.Tensor, mark: tuple[int | None, torch.Tensor | None]) -> bool:
    version, copy = mark
    same = copy is None or bool(_native.bits_equal(t.detach(), copy))
    return same and (version is None or t._version == version)


def current() -> Recording | None:
    """The recording of this thread, if it records right now."""
    recording: Recording | None = getattr(_local, "recording", None)
    return recording if recording is not None and recording.stream.active() else None


class watching:
    """`with watching(recording, classes):` the recording of this thread is known to the wrappers. classes: of objects
    of which it is to be seen which attributes are read."""

    def __init__(self, recording: Recording, classes: set[type]) -> None:
        self.recording, self.classes = recording, classes

    def __enter__(self) -> None:
        self.recording.watched.update(self.classes)
        _install({nn.Module, *self.classes})
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
            _undo.extend(_wrap_place(cls) for cls in (torch.Tensor, torch.UntypedStorage, torch.TypedStorage))
            _undo.append(_wrap_id())
            _undo.append(_wrap_apply())
            _undo.append(_wrap_checkpoint())
            _undo.append(_wrap_saved_hooks())
            _undo.extend(_wrap_requires_grad())
            _undo.append(_wrap_grad())
            _undo.append(_wrap_call())
            _undo.extend(_wrap_scripted(cls) for cls in _scripted.CLASSES)
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


def _wrap_scripted(cls: Any) -> Callable[[], None]:
    original = cls.__call__

    def call(self: Any, *args: Any, **kwargs: Any) -> Any:
        recording = current()
        if recording is None:
            return original(self, *args, **kwargs)
        return recording.scripts.call(recording, self, original, args, kwargs)

    cls.__call__ = call
    return lambda: setattr(cls, "__call__", original)


def _wrap_read(cls: Any) -> Callable[[], None]:
    original = vars(cls).get("__getattribute__")
    look_up: Any = cls.__getattribute__
    torchs_own = vars(sys.modules[nn.Module.__module__])

    def read(self: Any, name: str) -> Any:
        recording = getattr(_local, "recording", None)
        # nn.Module looks for parameters, buffers and children in its own dict: that reads no attribute.
        if recording is not None and (name != "__dict__" or sys._getframe(1).f_globals is not torchs_own):
            recording.read.add((id_of(self), name))
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


def _asked_by_a_model(frames: int = 2) -> Recording | None:
    """The recording, where its forward calls the caller by itself, and no library does. frames: up to the forward."""
    recording = current()
    home = str(sys._getframe(frames).f_globals.get("__name__", "")).partition(".")[0]
    return None if home in ("torch", "cleave") or home in sys.stdlib_module_names - {"__main__"} else recording


def _wrap_place(cls: Any) -> Callable[[], None]:
    own = vars(cls).get("data_ptr")
    original: Any = cls.data_ptr

    def data_ptr(self: Any) -> Any:
        recording = _asked_by_a_model()
        if recording is not None:
            recording.ask_place(self, "data_ptr()")
        return original(self)

    cls.data_ptr = data_ptr
    return (lambda: delattr(cls, "data_ptr")) if own is None else (lambda: setattr(cls, "data_ptr", own))


def _wrap_id() -> Callable[[], None]:
    def watched(value: Any, /) -> int:
        if issubclass(type(value), torch.Tensor):
            recording = _asked_by_a_model()
            if recording is not None:
                recording.ask_place(value, "id()")
        return id_of(value)

    watched.__name__ = "id"
    builtins.id = watched
    return lambda: setattr(builtins, "id", id_of)


def _wrap_apply() -> Callable[[], None]:
    function: Any = torch.autograd.Function
    original = vars(function).get("apply")
    bound: Any = function.apply.__func__

    def apply(cls: Any, *args: Any, **kwargs: Any) -> Any:
        recording = current()
        if recording is None or not torch.is_grad_enabled():
            return bound(cls, *args, **kwargs)
        if cls is checkpoint.CheckpointFunction:
            return recording.rerun(*args)
        return recording.opaque(
            types.MethodType(bound, cls), f"{cls.__module__}.{cls.__qualname__}.apply", args, kwargs
        )

    function.apply = classmethod(apply)
    if original is None:
        return lambda: delattr(function, "apply")
    return lambda: setattr(function, "apply", original)


def _wrap_checkpoint() -> Callable[[], None]:
    """Of checkpoints that are not reentrant it is enough to know where they are."""
    module: Any = checkpoint
    original = module._checkpoint_without_reentrant_generator

    def generator(fn: Any, preserve_rng_state: bool = True, *args: Any, **kwargs: Any) -> Iterator[Any]:
        recording = current()
        inner = original(fn, preserve_rng_state, *args, **kwargs)
        if recording is None or not torch.is_grad_enabled():
            yield from inner
            return
        recording.stream.region_begin(preserve_rng_state, False)
        try:
            yield from inner
        finally:
            recording.stream.region_end()

    module._checkpoint_without_reentrant_generator = generator
    return lambda: setattr(module, "_checkpoint_without_reentrant_generator", original)


def _wrap_saved_hooks() -> Callable[[], None]:
    """Hooks that say what is saved for the backward: those of a checkpoint, and of save_on_cpu, give back the same."""
    hooks: Any = torch.autograd.graph.saved_tensors_hooks
    original = hooks.__enter__

    def enter(self: Any) -> Any:
        recording = current()
        known = isinstance(self, torch.autograd.graph.save_on_cpu) or type(self).__module__ == checkpoint.__name__
        if recording is not None and recording.grad and not known:
            recording.stream.fail(
                "the forward sets saved_tensors_hooks, which change what the backward pass sees, and which a plan "
                "would not call: set them around the call"
            )
        return original(self)

    hooks.__enter__ = enter
    return lambda: setattr(hooks, "__enter__", original)


class _Attribute:
    """An attribute of tensors that is watched. Of the class it is still the original: torch.compile keeps a list of
    those, made when it is first used, which may be now."""

    def __init__(self, original: Any, read: Callable[[Any], Any], assign: Callable[[Any, Any], None]) -> None:
        self.original, self.read, self.assign = original, read, assign

    def __get__(self, tensor: Any, owner: Any = None) -> Any:
        return self.original if tensor is None else self.read(tensor)

    def __set__(self, tensor: Any, value: Any) -> None:
        self.assign(tensor, value)

    def __delete__(self, tensor: Any) -> None:
        self.original.__delete__(tensor)


def _wrap_requires_grad() -> list[Callable[[], None]]:
    """requires_grad_() and assignments leave no operator; there is one, with which replay does the same. What a forward
    reads of inputs and of the model's own tensors may decide what it does."""
    tensor: Any = torch.Tensor
    method: Any = tensor.requires_grad_
    attribute: Any = tensor.requires_grad

    def change(self: torch.Tensor, value: bool) -> bool:
        recording = current()
        if recording is None or self.requires_grad == value or not recording.sees_flag(self):
            return False
        torch.ops.aten.requires_grad_.default(self, value)
        return True

    def read(self: torch.Tensor) -> bool:
        recording = _asked_by_a_model(3)
        if recording is not None:
            recording.ask_flag(id_of(self))
        flag: bool = attribute.__get__(self)
        return flag

    def requires_grad_(self: torch.Tensor, requires_grad: bool = True) -> torch.Tensor:
        return self if change(self, requires_grad) else method(self, requires_grad)

    def assign(self: torch.Tensor, value: bool) -> None:
        if not change(self, value):
            attribute.__set__(self, value)

    tensor.requires_grad_ = requires_grad_
    tensor.requires_grad = _Attribute(attribute, read, assign)
    return [lambda: delattr(tensor, "requires_grad_"), lambda: delattr(tensor, "requires_grad")]


def _wrap_grad() -> Callable[[], None]:
    """Of the model's own tensors it can be seen that they still have no gradient."""
    tensor: Any = torch.Tensor
    attribute: Any = tensor.grad

    def read(self: torch.Tensor) -> torch.Tensor | None:
        recording = _asked_by_a_model(3)
        found: torch.Tensor | None = attribute.__get__(self)
        if recording is not None and id_of(self) in recording.own:
            recording.asked.add((id_of(self), "grad"))
            if found is not None:
                recording.stream.fail(
                    "the forward reads the gradient (grad) of a tensor of the model, which is another one after each "
                    "backward: give it to the model as an input, or read it outside of the forward"
                )
        return found

    tensor.grad = _Attribute(attribute, read, attribute.__set__)
    return lambda: delattr(tensor, "grad")

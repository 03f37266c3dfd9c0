"""Capture: record the forward, look again with other data, build the plan, replay it once to be sure.

The logic of recording, comparing and building is C (src/capture); here are the calls that only Python can make:
running the model, making other data, keeping the model's state as it was."""

from __future__ import annotations

import contextlib
import sys
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any, NamedTuple

import torch
from torch.nn.modules.lazy import LazyModuleMixin
from torch.nn.parameter import is_lazy
from torch.utils._python_dispatch import _get_current_dispatch_mode

from . import _hooks, _native, _tree, _watch, progress
from ._identity import compares
from ._install import Installed, Where, differs, installs, made_tensors, where
from ._log import logger, warn
from ._module_checks import Use, module_checks
from ._scripted import Scripts
from ._state import MOST_KEPT, Change, ModuleTensor, RandomState, Snapshot, Target, put, same_content
from ._tables import Reads, spies
from ._walk import Kind, items_of, own_of, reachable
from .errors import CaptureError, CleaveError

log = logger("capture")

# Other data for a forward that reads its data: drawn from all values of the example, the small, the large ones, ….
FLOW_WINDOWS = ((0, 1), (0.5, 1), (0, 0.5), (0.25, 1), (0, 0.75), (0.75, 1), (0, 0.25), (0, 1))
FEW = 3  # of them, where only the model's own counters move
MOST_RECORDS = 8  # of one forward whose scripted code is met for the first time
MANY = 1 << 16  # elements, each of which gets a place or a number of its own
EQUAL, PART, DIFFER = range(3)  # enum verdict of src/capture/capture.h


# Streams at other sizes or on other data, points, names and ranges of symbols, how many symbols are read from data.
Sizes = tuple[list[Any], list[int], list[str], list[int], list[int], int]


class Arguments(NamedTuple):
    """Inputs taken apart."""

    spec: _tree.Spec
    leaves: list[torch.Tensor]
    names: list[str]

    def copies(self) -> list[torch.Tensor]:
        """The tensors on memory of their own."""
        return each(self.leaves, own_copy)

    def rebuild(self, leaves: Sequence[torch.Tensor]) -> tuple[tuple[Any, ...], dict[str, Any]]:
        args, kwargs = _tree.unflatten(self.spec, leaves)
        return args, kwargs


class Recorded(NamedTuple):
    """One recorded forward."""

    stream: Any
    calls: list[_watch.PythonCall]
    output: _tree.Spec
    stores: list[tuple[Any, Any]]  # (holder, key): where the forward keeps tensors; they come after the outputs
    changed: dict[Where, str]  # attributes and items of the modules, with their names
    same: list[int]  # of each input the first that is the same tensor
    counters: dict[str, torch.Tensor]  # module tensors as the next call would find them, where numbers are read of them
    left: list[Change]  # what it leaves in its modules, and a second call leaves alone


class Call(NamedTuple):
    """A recorded call: with what, and what it leaves in its modules."""

    arguments: Arguments
    leaves: list[torch.Tensor]
    left: list[Change]


class Captured(NamedTuple):
    """A plan with what the skin needs to run it."""

    plan: Any  # _native.Plan
    arguments: _tree.Spec
    output: _tree.Spec
    stores: list[tuple[Any, Any]]  # (holder, key) of the last outputs: written back after each run
    state: dict[str, tuple[Any, Any]]
    modules: Any  # _native.Checks: what must still hold of the model
    with_grad: bool
    without_grad: bool
    changes: tuple[str, ...]  # what the forward changes of its modules: then two calls tell more of it than one
    symbols: tuple[str, ...] = ()  # sizes that may change; empty: a plan for the recorded sizes alone


def take_apart(target: Target, args: tuple[Any, ...], kwargs: dict[str, Any], shapes: bool = False) -> Arguments:
    """Flattens inputs and names each tensor after the parameter of the forward that takes it. shapes: those of the meta
    device, which have nothing but a shape, will do."""
    names = parameter_names(target, len(args))
    spec, leaves, paths = _tree.flatten((args, kwargs))
    nice = []
    for path in paths:
        head, rest = path[: path.index("]") + 1], path[path.index("]") + 1 :]
        if head == "[0]":
            number, _, tail = rest[1:].partition("]")
            nice.append(names[int(number)] + tail)
        else:
            key, _, tail = rest[1:].partition("]")
            nice.append(key.strip("'\"") + tail)
    for name, leaf in zip(nice, leaves, strict=True):
        if (leaf.is_meta and not (shapes or target.shapes)) or type(leaf).__name__ in ("FakeTensor", "MaskedTensor"):
            raise CaptureError(
                f"input {name} is a {type(leaf).__name__} on {leaf.device}: it has no data to run the model on"
            )
    return Arguments(spec, leaves, nice)


def parameter_names(target: Target, count: int) -> list[str]:
    signature = target.signature()
    names: list[str] = []
    for p in signature.parameters.values() if signature else ():
        if p.kind in (p.POSITIONAL_ONLY, p.POSITIONAL_OR_KEYWORD):
            names.append(p.name)
        elif p.kind is p.VAR_POSITIONAL:
            names.extend(f"{p.name}[{i}]" for i in range(count - len(names)))
            break
        else:
            break
    names.extend(f"arg{i}" for i in range(len(names), count))
    return names[:count] if count else names


def each(leaves: Sequence[torch.Tensor], make: Callable[[torch.Tensor], torch.Tensor]) -> list[torch.Tensor]:
    """One tensor made of each; where two are the same, so are those that are made."""
    made: dict[int, torch.Tensor] = {}
    for t in leaves:
        if id(t) not in made:
            made[id(t)] = make(t)
    return [made[id(t)] for t in leaves]


def same_inputs(leaves: Sequence[torch.Tensor]) -> list[int]:
    """Of each input the first that is the same tensor."""
    first: dict[int, int] = {}
    return [first.setdefault(id(t), i) for i, t in enumerate(leaves)]


def _apart(leaves: Sequence[torch.Tensor]) -> list[torch.Tensor]:
    """Each tensor once: copies where one comes again."""
    return [
        t if first == i else own_copy(t) for i, (first, t) in enumerate(zip(same_inputs(leaves), leaves, strict=True))
    ]


def own_copy(t: torch.Tensor) -> torch.Tensor:
    """A copy on memory of its own with the same strides; a leaf that requires grad as the original does."""
    plain = t.detach()
    if plain.layout is torch.strided and not plain.is_nested and not plain.is_quantized and type(plain) is torch.Tensor:
        copy = plain.clone()
        if copy.stride() != plain.stride() and plain.numel():
            span = 1 + sum((n - 1) * s for n, s in zip(plain.shape, plain.stride(), strict=True))
            base = plain.as_strided((span,), (1,), plain.storage_offset()).clone()
            copy = base.as_strided(plain.shape, plain.stride(), 0)
    else:
        copy = plain.clone()
    return copy.requires_grad_(t.requires_grad) if t.requires_grad else copy


def compact(t: torch.Tensor) -> torch.Tensor:
    """One of the rows that an expanded tensor repeats: a view that can be written."""
    if t.layout is torch.strided and not t.is_nested:
        for dim, (n, stride) in enumerate(zip(t.shape, t.stride(), strict=True)):
            t = t.narrow(dim, 0, 1) if n > 1 and stride == 0 else t
    return t


def expand(t: torch.Tensor, shape: Sequence[int], requires_grad: bool) -> torch.Tensor:
    """A compact tensor as large as it was, or as it is to be."""
    return t.detach().expand(shape).requires_grad_(requires_grad)


def _shuffled(t: torch.Tensor, generator: torch.Generator) -> torch.Tensor:
    """The elements in another order; of many, in blocks: a place drawn for each would take longer than forwards do."""
    flat = t.detach().reshape(-1)
    block = max(1, flat.numel() // MANY)
    rows = flat.numel() // block
    order = torch.randperm(rows, generator=generator).to(flat.device)
    mixed = flat[: rows * block].view(rows, block)[order]
    return torch.cat([flat[rows * block :], mixed.view(-1)]).reshape(t.shape)


def _noise(t: torch.Tensor, generator: torch.Generator) -> torch.Tensor:
    """Numbers between 0 and 1 in its shape; of many, the same over and over."""
    n = t.numel()
    drawn = torch.rand(min(n, MANY), generator=generator, dtype=torch.float32).to(t.device)
    return drawn.repeat(-(-n // MANY))[:n].view(t.shape)


def _with_data(t: torch.Tensor, data: Callable[[], torch.Tensor]) -> torch.Tensor:
    """A copy with other data, where it has any and can be written as a whole: windows of one row cannot."""
    copy = own_copy(t)
    if t.layout is not torch.strided or t.is_nested or t.is_quantized or not t.numel() or t.is_meta:
        return copy
    with torch.no_grad():
        found = data()
        try:
            copy.data.copy_(found)
        except RuntimeError:
            return own_copy(t)
    return copy


def other_data(t: torch.Tensor, generator: torch.Generator, integers: bool, gentle: bool) -> torch.Tensor:
    """Other data of the same kind: floats shuffled and scaled by up to a quarter (zeros get noise), integers shuffled.

    Values stay in the range of the example, so that an index or a probability stays valid. gentle: floats move by a
    thousandth and stay in place, so that branches on the data tend to go the same way."""
    row = compact(t)
    if row is not t:
        return expand(other_data(row, generator, integers, gentle), t.shape, t.requires_grad)

    def data() -> torch.Tensor:
        if not (t.is_floating_point() or t.is_complex()):
            return _shuffled(t, generator) if integers and not gentle else t.detach()
        real = _noise(t, generator)
        base = t.detach() if gentle else _shuffled(t, generator)
        if not gentle and not bool((base != 0).any()):
            return (0.1 * (real - 0.5)).to(t.dtype)
        scale = 1 - (0.001 if gentle else 0.25) * real
        return (base * scale.to(t.real.dtype if t.is_complex() else t.dtype)).to(t.dtype)

    return _with_data(t, data)


def drawn_data(t: torch.Tensor, generator: torch.Generator, low: float, high: float) -> torch.Tensor:
    """Data drawn from the values of the example between two of its quantiles, so that sums and counts differ too."""
    row = compact(t)
    if row is not t:
        return expand(drawn_data(row, generator, low, high), t.shape, t.requires_grad)

    def data() -> torch.Tensor:
        values = t.detach().reshape(-1)
        n = values.numel()
        if not t.is_complex():
            values = values.sort().values
        first = min(int(low * n), n - 1)
        places = torch.randint(first, max(int(high * n), first + 1), (n,), generator=generator)
        drawn = values[places.to(values.device)]
        if t.is_floating_point():
            scale = 1 - 0.1 * torch.rand(1, generator=generator).to(t.device)
            drawn = (drawn * scale.to(t.dtype)).to(t.dtype)
        return drawn.reshape(t.shape)

    return _with_data(t, data)


def grad_mode(enabled: bool) -> Any:
    """Sets the grad mode; inside inference_mode it stays off."""
    return torch.set_grad_enabled(enabled and not torch.is_inference_mode_enabled())


_stance_lock = threading.Lock()
_stances: list[Any] = []  # torch's way to say it, of the first of all threads that are in eager()
_in_eager = 0


@contextlib.contextmanager
def eager() -> Iterator[None]:
    """Calls of torch.compile'd code run eagerly, so that their operators are seen. The stance is the process's own: the
    first thread that comes sets it, the last one that leaves puts it back."""
    global _in_eager
    with _stance_lock:
        _in_eager += 1
        if not _stances and "torch._dynamo" in sys.modules:
            stance = torch.compiler.set_stance("force_eager")
            stance.__enter__()
            _stances.append(stance)
    try:
        yield
    finally:
        with _stance_lock:
            _in_eager -= 1
            if not _in_eager and _stances:
                _stances.pop().__exit__(None, None, None)


@contextlib.contextmanager
def recycling() -> Iterator[None]:
    """Reuses the memory of freed tensors, around runs of a model whose results are not kept."""
    _native.recycle(True)
    try:
        yield
    finally:
        _native.recycle(False)


class ModuleUse:
    """What forwards do with their modules, as far as captures of one target have seen."""

    not_followed = True  # a model that keeps its own split holds this too, and it changes with every forward

    def __init__(self) -> None:
        self.read: set[tuple[int, str]] = set()  # id of a module or an object, attribute
        self.watched: set[type] = set()  # classes of objects of which that is known
        self.looked_up: dict[int, set[Any] | None] = {}  # by id of a dict that may be a cache, see _tables.py
        self.compares: bool | None = None  # code ran that may ask which tensors are the same; None: nothing ran yet
        self.asked: set[tuple[int, str]] = set()  # id of a tensor of the model; "place", "requires_grad", "grad"
        self.flags: set[int] = set()  # which inputs' requires_grad was asked for
        self.judged: set[Where] = set()  # what changed, and was changed or not by a second call
        self.volatile: set[Where] = set()  # of that, what every forward sets to a new tensor
        self.outside: set[int] = set()  # ids of containers that the forward changes, and that are not the model's
        self.holders: list[Any] = []  # what has these ids, so that nothing else gets them
        self.calls: list[Call] = []  # that were recorded: the first, and the first that leaves something behind
        self.forwards = 0  # how often the model was run
        self.numbers: bool | None = None  # its own counters are recorded as Numbers; None: not known yet
        self.scripts = Scripts()

    def note_outside(self, containers: Sequence[Any]) -> None:
        self.outside.update(map(id, containers))
        self.holders.extend(containers)

    def unjudged(self, found: Iterable[Change]) -> bool:
        """Something changed of which it is not known whether every forward does that."""
        return any(_kind(c) not in self.judged for c in found)


def _kind(c: Change) -> Where:
    """What is known of one item that was added to a container (a cache that has one for each size) is of all."""
    return (id(c.holder), "a new item") if c.added else where(c)


class Capture:
    """One capture in progress: the target, its example and the state to put back."""

    def __init__(
        self,
        target: Target,
        arguments: Arguments,
        both: bool = False,
        shapes: bool = False,
        use: ModuleUse | None = None,
    ) -> None:
        """use: what other captures of the target know, and will."""
        self.target = target
        self.shapes = shapes  # the model may be on the meta device
        self.arguments = self.given = arguments
        self.both = both  # find out whether one plan serves both grad modes
        self.settled = False  # modules from outside are known, and what the first forward installs
        self.first: list[Change] = []  # what the first record changed
        self.use = use or ModuleUse()
        self.folding = False  # records are written without sequences (unbind, split)
        self.at = ""  # the sizes of what is being recorded, for people: "B=3"
        self.streams: list[Any] = []
        if self.use.compares is False:
            self.arguments = arguments._replace(leaves=_apart(arguments.leaves))
        self._look_at_model()
        self.random = RandomState()

    def _look_at_model(self) -> None:
        if _get_current_dispatch_mode() is not None:
            raise CaptureError("a TorchDispatchMode is active around the capture, and would become part of the plan")
        for path, module in self.target.modules():
            if isinstance(module, LazyModuleMixin) and module.has_uninitialized_params():
                raise CaptureError(f"module {path} is lazy and has not run yet: run the model once before capturing it")
        with self._installed():
            self.tensors: list[ModuleTensor] = list(self.target.tensors())
            for t in self.tensors:
                if is_lazy(t.tensor):
                    raise CaptureError(f"the model's {t.name} has no shape yet: run the model once before capturing it")
                if t.tensor.is_meta and not self.shapes:
                    raise CaptureError(f"the model's {t.name} is on the meta device: it has no data")
            self.snapshot = Snapshot(self.target)

    @contextlib.contextmanager
    def _installed(self) -> Iterator[None]:
        """What the first forward of the model installs is there, for the block."""
        installed: Installed | None = self.target.installed
        if installed is None or not installed.is_off():
            yield
            return
        installed.put_on()
        try:
            yield
        finally:
            installed.take_off()

    def restore(self) -> None:
        """Puts the model and all generators back as they were."""
        with contextlib.ExitStack() as stack:
            stack.callback(self.random.restore)
            stack.enter_context(self._installed())
            stack.callback(self.snapshot.restore)
            for stream in self.streams:
                stack.callback(stream.restore_generators)

    @contextlib.contextmanager
    def undoing(self, snapshot: Snapshot | None = None) -> Iterator[None]:
        """Whatever the block does to the model's tensors and attributes is undone. snapshot: of what they are now,
        where that is not what they were when the capture began."""
        random, snapshot = RandomState(), snapshot or self.snapshot
        stream = self._recording().stream
        with contextlib.ExitStack() as stack:
            stack.callback(random.restore)
            stack.enter_context(self._installed())
            stack.callback(snapshot.restore)
            stack.callback(stream.restore_generators)
            stack.callback(stream.restore)
            stream.start(False)
            stack.callback(_stop, stream)
            yield

    def forward(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """Runs the model itself."""
        self.use.forwards += 1
        return self.target.call(*args, **kwargs)

    # ---- recording

    def record(self, leaves: Sequence[torch.Tensor], grad: bool) -> Recorded:
        """Runs the forward on these tensors and records it. The model is as before afterwards."""
        progress.step(f"recording {self.at}".rstrip())
        if self.use.compares is False:
            leaves = _apart(leaves)
        spare = each(leaves, own_copy)
        if self.settled:
            recorded = self._record(leaves, grad)[0]
        else:
            recorded = self._follow_counters(self._first_record(leaves, grad), leaves, grad)
        self._check_forgotten(Call(self.arguments, spare, recorded.left), grad)
        return recorded

    def _check_forgotten(self, call: Call, grad: bool) -> None:
        """What a call leaves in the modules (a cache) must not change results at other sizes: plans do not leave it."""
        known = self.use.calls
        sizes = [t.shape for t in call.leaves]
        others = [c for c in known if [t.shape for t in c.leaves] != sizes]
        for other in others:
            for mine, theirs in ((call, other), (other, call)):
                if theirs.left and not self._same_after(mine, theirs.left, grad):
                    c = theirs.left[0]
                    raise CaptureError(
                        f"a call sets {c.where} for its own sizes (from {_short(c.before)} to {_short(c.after)}); that "
                        "changes the results of calls at other sizes, and no plan reproduces that: set it before the "
                        "capture, keep it in a tensor, or capture with fixed sizes (dynamic_batch=None)"
                    )
        if not known or (call.left and not known[-1].left):
            known.append(call)

    def _same_after(self, call: Call, left: Sequence[Change], grad: bool) -> bool:
        """What a call gives is the same after another one has left something behind."""
        now, self.arguments, outputs = self.arguments, call.arguments, []
        random = RandomState()
        try:
            for changes in ((), left):
                random.restore()
                with self.undoing(), grad_mode(grad), eager():
                    for c in changes:
                        put(c, c.after)
                    outputs.append(self._run(call.leaves))
        except Exception:  # it is not for this size alone: what is wrong is told where it is recorded
            return True
        finally:
            self.arguments = now
        return _same_output(*outputs)

    def _follow_counters(self, recorded: Recorded, leaves: Sequence[torch.Tensor], grad: bool) -> Recorded:
        """Where the forward reads numbers of tensors that it changes: a record in which these are tensors too."""
        if self.use.numbers is not None or not recorded.stream.counters():
            return recorded
        self.use.numbers = True
        try:
            again = self._record(each(leaves, own_copy), grad)[0]
        except Exception as error:  # something minds that a number is a tensor
            log.debug("numbers of %s cannot be followed: %s", self.target.name, error)
            self.use.numbers = False
            return recorded
        moved = _tree.difference(recorded.output, again.output, "the output") is not None  # it gives a number away
        self.use.numbers = not moved and bool(again.stream.same_calls(recorded.stream))
        return again if self.use.numbers else recorded

    def _first_record(self, leaves: Sequence[torch.Tensor], grad: bool) -> Recorded:
        spare = each(leaves, own_copy)
        compiler = "torch._dynamo" in sys.modules
        try:
            recorded, foreign = self._record(leaves, grad)
        except CaptureError:
            if not self._settle(spare, grad):
                raise
            recorded, foreign = self._record(each(spare, own_copy), grad)
        if self._settle(spare, grad):
            recorded, foreign = self._record(each(spare, own_copy), grad)
        self.settled = True
        again = not compiler and "torch._dynamo" in sys.modules  # cond, flex_attention: now it is told to stay out
        if foreign:
            # Modules that are no children of the model (kept in a list, or given as an input) are part of it too.
            self.target.adopt(foreign)
            self._look_at_model()
            again = True
        if not self.use.compares and recorded.same != list(range(len(leaves))):
            # Nobody asks which inputs are the same: the plan is for any.
            self.arguments = self.arguments._replace(leaves=_apart(self.arguments.leaves))
            spare, again = _apart(spare), True
        return self._record(spare, grad)[0] if again else recorded

    def _recording(self, inputs: Iterable[tuple[str, torch.Tensor]] = ()) -> _watch.Recording:
        """A recording that knows these inputs and the model's tensors."""
        own, use = {id(t.tensor) for t in self.tensors}, self.use
        recording = _watch.Recording(self.target, use.read, use.watched, own, use.asked, use.scripts, bool(use.numbers))
        for name, leaf in inputs:
            # The forward sees a tensor that is given twice under its first name.
            recording.stream.input(name, own_copy(leaf) if id(leaf) in recording.inputs else leaf)
            recording.inputs.add(id(leaf))
        for t in self.tensors:
            recording.stream.state(t.kind, t.name, t.kind == "param" and t.tensor.requires_grad, t.tensor)
        return recording

    def _record(self, leaves: Sequence[torch.Tensor], grad: bool) -> tuple[Recorded, list[Any]]:
        """One forward, and modules that are not the target's. Made again where scripted code settled meanwhile."""
        for _ in range(MOST_RECORDS):
            self.use.scripts.learned = False
            try:
                found = self._record_once(leaves, grad)
            except CaptureError:
                if not self.use.scripts.learned:
                    raise
            else:
                if not self.use.scripts.learned:
                    return found
            leaves = each(leaves, own_copy)
        raise CaptureError("the forward calls other scripted code in every call (it is scripted or traced on the way)")

    def _record_once(self, leaves: Sequence[torch.Tensor], grad: bool) -> tuple[Recorded, list[Any]]:
        args, kwargs = self.arguments.rebuild(leaves)
        before, since = RandomState(), time.monotonic()
        with contextlib.ExitStack() as stack:
            stack.enter_context(self._installed())
            recording = self._recording(zip(self.arguments.names, leaves, strict=True))
            stream = recording.stream
            named = [*zip(self.arguments.names, leaves, strict=True), *((t.name, t.tensor) for t in self.tensors)]
            hooks = _hooks.LeafHooks(named)
            self.streams.append(stream)
            stack.callback(self.snapshot.restore)
            stack.callback(stream.restore)
            stack.callback(hooks.restore)
            stack.callback(self._note_first)
            output = self._call(recording, args, kwargs, grad)
            drawn = before.host_differs(RandomState())
            if drawn:
                raise CaptureError(f"the forward draws numbers from {drawn}, which leaves nothing to replay")
            self._check_inputs_kept(args, kwargs, leaves)
            spec, outputs, _ = _tree.flatten(output)
            for leaf in outputs:
                stream.output(leaf)
            changed, logs = self.snapshot.changes()
            self.use.note_outside([*logs, *(c.holder for c in changed if c.outside)])
            if grad:
                _hooks.check(stream, [*outputs, *(c.after for c in changed), *(t for _, t in named)], hooks)
            if self.use.unjudged(changed):
                self._find_volatile(leaves, grad, changed)
            stores = self._note_stored(stream, changed)
            stream.check_regions(len(stores))
            if self.folding:
                stream.fold()
            log.debug("recorded %s %s: %.3f s, grad %s", self.target.name, self.at, time.monotonic() - since, grad)
            places = {where(c): c.where for c in changed}
            same = same_inputs(leaves)
            self.use.flags.update(i for i, t in enumerate(leaves) if id(t) in recording.flags)
            names = stream.counters() if self.use.numbers else []
            counters = {t.name: t.now().detach().clone() for t in self.tensors if t.name in names}
            left = [c for c in changed if where(c) not in self.use.volatile and not c.outside and not c.hooks]
            return Recorded(stream, recording.calls, spec, stores, places, same, counters, left), recording.keep

    @contextlib.contextmanager
    def _counting(self, counters: dict[str, torch.Tensor]) -> Iterator[None]:
        """The block finds module tensors as a call has left them; numbers a little apart, so that none is taken for
        another one because all count the same calls."""
        held = [t for t in self.tensors if t.name in counters]
        before = [t.tensor.detach().clone() for t in held]
        apart = 0
        try:
            with torch.no_grad():
                for t in held:
                    t.tensor.copy_(counters[t.name] + apart)
                    apart += t.tensor.numel() == 1 and t.tensor.dtype is not torch.bool
            yield
        finally:
            with torch.no_grad():
                for t, value in zip(held, before, strict=True):
                    t.tensor.copy_(value)

    def _call(self, recording: _watch.Recording, args: Any, kwargs: Any, grad: bool) -> Any:
        stream, recording.grad = recording.stream, grad
        with grad_mode(grad), eager(), _watch.watching(recording, self.snapshot.classes):
            stream.start(threading.active_count() == 1)
            try:
                with self._seeing_code():
                    output = self.forward(args, kwargs)
            except CleaveError as error:
                raise _stop(stream) or error from None
            except BaseException:
                _stop(stream)
                raise
            problem = _stop(stream)
        if problem is not None:
            raise problem
        return output

    @contextlib.contextmanager
    def _seeing_code(self) -> Iterator[None]:
        """The first record tells whether code ran that may ask which tensors are the same."""
        if self.settled or self.use.compares:
            yield
            return
        code = _native.calls_begin()
        try:
            yield
        finally:
            _native.calls_end()
            self.use.compares = code is None or compares(code)

    def _check_inputs_kept(self, args: Any, kwargs: Any, leaves: Sequence[torch.Tensor]) -> None:
        spec, now, paths = _tree.flatten((args, kwargs))
        found = _tree.difference(self.arguments.spec, spec, "an input")
        moved = [p for p, a, b in zip(paths, now, leaves, strict=False) if a is not b]
        if found or moved:
            raise CaptureError(
                "the forward changes a container that it gets as an input (a cache, a dict, a list), which a plan "
                f"cannot do: {found or 'item ' + moved[0]}"
            )

    def _note_stored(self, stream: Any, changes: list[Change]) -> list[tuple[Any, Any]]:
        """Tensors that every forward keeps in its modules are state: replay keeps them too.

        A module tensor that is exchanged becomes a rebind of the plan; what was no tensor before becomes one more
        output. What only the first forward sets (a cache) is left alone."""
        known = {(id(t.holder), t.key) for t in self.tensors}
        for t in self.tensors:
            now = t.now()
            if now is t.tensor or not isinstance(now, torch.Tensor):
                continue
            if t.kind != "attr" or (id(t.holder), t.key) in self.use.volatile or t.name in stream.states_read():
                stream.rebound(t.name, now)
        stores = []
        for change in changes:
            place = where(change)
            if place in self.use.volatile and place not in known and isinstance(change.after, torch.Tensor):
                stream.output(change.after)
                stores.append((change.holder, change.key))
        return stores

    def _find_volatile(self, leaves: Sequence[torch.Tensor], grad: bool, changed: list[Change]) -> None:
        """The forward has changed its modules. What a second call changes again changes in every call."""
        second = Snapshot(self.target)
        with self.undoing(second), grad_mode(grad), eager():
            args, kwargs = self.arguments.rebuild(next(probes(leaves)))
            other = True
            try:
                self.forward(args, kwargs)
            except Exception:  # other data is not taken: the same once more
                other = False
                args, kwargs = self.arguments.rebuild(each(leaves, own_copy))
                self.forward(args, kwargs)
            again, _ = second.changes()
        for c in again:
            if c.outside:
                continue  # where it counts, the comparison with a second call tells
            if not isinstance(c.after, torch.Tensor):
                if other and same_content(c.before, c.after):
                    continue  # replaced by its equal, whatever the inputs are: nobody can tell
                raise CaptureError(
                    f"every forward changes {c.where} (from {_short(c.before)} to {_short(c.after)}) where no operator "
                    "shows it, and a plan would not: keep such state out of the forward, or in a tensor"
                )
            self.use.volatile.add(where(c))
        self.use.judged.update(map(_kind, changed))
        self.use.holders.extend(c.holder for c in (*changed, *again))

    # ---- the first forward

    def _settle(self, leaves: Sequence[torch.Tensor], grad: bool) -> bool:
        """Sees what the first forward of a model installs, if it does: from then on it is there whenever the capture
        looks at the model. False: it installs nothing."""
        first, self.first = self.first, []
        found = installs(self.target, first)
        if not found:
            return False
        try:
            second, _ = self._run_cold(next(probes(leaves)), grad, seed=0xF1257)
        except Exception:  # other data is not taken
            second, _ = self._run_cold(leaves, grad, seed=0xF1257)
        if not {where(c) for c in found} <= {where(c) for c in second}:
            # The model knows from elsewhere that it was installed, and would never do it again.
            log.info("%s stays as its first forward makes it: %s", self.target.name, found[0].where)
            for c in first:
                put(c, c.after)
            self._look_at_model()
            return True
        third, _ = self._run_cold(leaves, grad)
        drawn = differs(installs(self.target, third), second)
        if drawn is not None:
            raise CaptureError(
                f"the first forward of {self.target.name} makes {drawn} of random numbers or of its data: run the "
                "model once before capturing it"
            )
        self._use_installed(leaves, grad)
        return True

    def _note_first(self) -> None:
        """What the first record changes in the model, whether it comes to an end or not."""
        if not self.settled and self.target.installed is None:
            self.first = self.snapshot.changes()[0]

    def _use_installed(self, leaves: Sequence[torch.Tensor], grad: bool) -> None:
        """Has what the first forward installs there from now on, if that is all it does."""
        first, output = self._run_cold(leaves, grad)
        made = [(t, t.detach().clone()) for t in made_tensors(first)]
        self.target.installed = Installed(self.target, first)
        try:
            self._look_at_model()
            with self.undoing(), grad_mode(grad), eager():
                later = self._run(leaves)
                again, _ = self.snapshot.changes()
                same = _same_output(output, later) and all(_native.bits_equal(*pair) for pair in made)
        finally:
            self.target.installed = None
            self._look_at_model()
        if not same:
            raise CaptureError(
                f"the first forward of {self.target.name} does something else than those after it: run the model once "
                "before capturing it"
            )
        volatile = {where(c) for c in again}
        self.target.installed = Installed(self.target, [c for c in first if where(c) not in volatile])
        log.info("%s installs something on its first forward: %s", self.target.name, first[0].where)
        self._look_at_model()

    def _run(self, leaves: Sequence[torch.Tensor]) -> list[torch.Tensor]:
        """What a call gives."""
        args, kwargs = self.arguments.rebuild(each(leaves, own_copy))
        return [t.detach().clone() for t in _tree.flatten(self.forward(args, kwargs))[1]]

    def _run_cold(
        self, leaves: Sequence[torch.Tensor], grad: bool, seed: int | None = None
    ) -> tuple[list[Change], list[torch.Tensor]]:
        """What a call changes in the model, and what it gives; all of it is undone."""
        random = RandomState()
        try:
            if seed is not None:
                torch.manual_seed(seed)
            with self.undoing(), grad_mode(grad), eager():
                out = self._run(leaves)
                changes, _ = self.snapshot.changes()
                made = [(t, t.detach().clone()) for t in made_tensors(changes)]
            for t, data in made:  # what the call wrote to tensors is undone, also to those that it made
                _native.copy_data(t, data)
            return changes, out
        finally:
            random.restore()

    # ---- looking again

    def look_again(self, first: Recorded, grad: bool) -> tuple[int, Recorded | None, str | None]:
        """Records on other data in this grad mode and compares; the best verdict over the probes."""
        best: tuple[int, Recorded | None, str | None] = (DIFFER, None, None)
        for leaves in probes(self.arguments.leaves):
            try:
                again = self.record(leaves, grad)
            except CleaveError:
                raise
            except Exception:  # the forward does not take this data
                continue
            verdict, reason = compare(first, again)
            if verdict == EQUAL:
                return EQUAL, again, None
            if best[1] is None or verdict < best[0]:
                best = (verdict, again, reason)
        return best

    def run(self, grad: bool) -> Captured:
        mine = self.record(self.arguments.copies(), grad)
        grads = {grad}
        with_grad: Recorded | None = mine if grad else None
        probe: Recorded | None = None
        if self.both and not torch.is_inference_mode_enabled():
            other = self._try_other_mode(mine, grad)
            if other is not None:
                probe, with_grad, grads = other, (mine if grad else other), {False, True}
        if probe is None:
            mine, probe = self.look(grad, mine)
            with_grad = mine if grad else None
        return self.with_flow(mine, grad) or self.build(mine, probe, with_grad, grads)

    # ---- numbers read from the data

    def flow_records(self, mine: Recorded, grad: bool) -> list[Recorded]:
        """Records on other data, each in the state that the one before leaves, that differ in numbers alone; none when
        nothing is read from data or from a counter, or when what is read changes what runs."""
        reads = mine.stream.reads_data()
        if not reads and not mine.counters:
            return []
        generator = torch.Generator().manual_seed(0xF10)
        found: list[Recorded] = []
        counters = mine.counters
        for low, high in FLOW_WINDOWS[: None if reads else FEW]:
            try:
                drawn = each(self.arguments.leaves, lambda t: drawn_data(t, generator, low, high))  # noqa: B023
                with self._counting(counters):
                    again = self.record(drawn, grad)
            except Exception:  # the forward does not take this data
                continue
            if misfit(mine, again) is not None:
                return [] if reads else found
            counters = again.counters
            found.append(again)
        return found

    def with_flow(self, mine: Recorded, grad: bool) -> Captured | None:
        """The plan in which numbers that the forward reads from its data are read by each run; None: not proven."""
        records = self.flow_records(mine, grad)
        if not records:
            return None
        try:
            points, count = _native.data_points([r.stream for r in (mine, *records)], [], 0)
            symbols = flow_symbols(points, count)
            again = self.same_again(mine, grad)
            if again is None:
                return None
            other = self._other_mode(mine, grad)
            grads = {grad} if other is None else {False, True}
            with_grad = mine if grad else other
            sizes = ([r.stream for r in records], points, *symbols, count)
            captured = self.build(mine, again, with_grad, grads, sizes, records)
        except CleaveError:
            return None
        return captured if captured.plan.flows() else None

    def same_again(self, mine: Recorded, grad: bool) -> Recorded | None:
        """One more record on the same data, which tells what lives outside of the forward from what it makes."""
        again = self.record(self.arguments.copies(), grad)
        return again if compare(mine, again)[0] == EQUAL else None

    def _other_mode(self, mine: Recorded, grad: bool) -> Recorded | None:
        """The same data in the other grad mode, when all operators agree and it was asked for."""
        if not self.both or torch.is_inference_mode_enabled():
            return None
        other = self.record(self.arguments.copies(), not grad)
        return other if compare(mine, other)[0] == EQUAL else None

    def look(self, grad: bool, mine: Recorded | None = None) -> tuple[Recorded, Recorded]:
        """Two records that agree, on different data where the model takes any."""
        mine = mine or self.record(self.arguments.copies(), grad)
        verdict, probe, reason = self.look_again(mine, grad)
        if verdict == DIFFER and probe is not None:
            # Something made once for the whole process (a lazy table) may have been in the first record only.
            mine = self.record(self.arguments.copies(), grad)
            verdict, probe, reason = self.look_again(mine, grad)
        if probe is None:  # no other data is taken; the same data must at least give the same record
            probe = self.record(self.arguments.copies(), grad)
            verdict, reason = compare(mine, probe)
        if verdict == DIFFER:
            raise CaptureError(f"the forward depends on its data in a way that no plan can hold: {reason}")
        return mine, probe

    def _try_other_mode(self, mine: Recorded, grad: bool) -> Recorded | None:
        """With other data and in the other grad mode: when all operators agree, one plan serves both modes."""
        try:
            verdict, other, _ = self.look_again(mine, not grad)
        except CleaveError:
            return None
        return other if verdict == EQUAL else None

    def build(
        self,
        mine: Recorded,
        probe: Recorded | None,
        with_grad: Recorded | None,
        grads: set[bool],
        sizes: Sizes | None = None,
        others: Sequence[Recorded] = (),
    ) -> Captured:
        """The plan of a record that was looked at twice; with `sizes`, one with formulas (see _native.build)
        from the records at other sizes."""
        changed: dict[Where, str] = {}
        for r in (mine, probe, with_grad, *others):
            changed.update(r.changed if r is not None else {})
        plan = _native.build(
            mine.stream,
            probe.stream if probe else None,
            with_grad.stream if with_grad else None,
            self.target.training,
            sum(2 if g else 1 for g in grads),
            _tree.tokens(self.arguments.spec),
            _tree.merged_tokens([_with_stores(r) for r in (mine, *others)]),
            list(mine.calls),
            sizes,
        )
        return Captured(
            plan,
            self.arguments.spec,
            _tree.with_formulas(mine.output, [r.output for r in others]),
            mine.stores,
            self._places(),
            self._checks(set(changed), mine, grads),
            True in grads,
            False in grads,
            tuple(sorted(set(changed.values()))),
            tuple(sizes[2][: len(sizes[2]) - max(0, sizes[5])]) if sizes else (),
        )

    def _places(self) -> dict[str, tuple[Any, Any]]:
        """Where each tensor of the model is found."""
        installed: Installed | None = self.target.installed
        if installed is None:
            return {t.name: (t.holder, t.key) for t in reversed(self.tensors)}
        with self._installed():
            return {t.name: (installed.holder(self.target, t), t.key) for t in reversed(self.tensors)}

    def _checks(self, changed: set[Where], mine: Recorded, grads: set[bool]) -> Any:
        """What must still hold of the model when the plan runs."""
        use, operands = self.use, mine.stream.states_read()
        seen = Use(use.read, use.watched, changed, use.looked_up, bool(use.compares), use.asked, use.outside)
        same = mine.same if use.compares else None
        flags = [int(t.requires_grad) if i in use.flags else -1 for i, t in enumerate(self.arguments.leaves)]
        with self._installed():
            found = module_checks(self.target, seen, operands, same, flags if use.flags else [])
            if found.tables:
                self._look_into(found.tables, min(grads))
                found = module_checks(self.target, seen, operands, same, flags if use.flags else [])
        for what in found.unwatched:
            warn(f"{what} is too large to watch completely: some changes to it after the capture are not noticed")
        return found.checks

    def _look_into(self, tables: Sequence[Any], grad: bool) -> None:
        """Runs the forward on stand-ins for dicts that may be caches, to see what it reads of them."""
        self.use.holders.extend(tables)
        self.use.looked_up.update({id(table): None for table in tables})
        try:
            reads, output = self._spied(tables, grad, 0)
            if any(r.counted and not r.whole for r in reads.values()):
                _, other = self._spied(tables, grad, 1)
                if not _same_output(output, other):  # how many there are counts
                    for r in reads.values():
                        r.whole |= r.counted
        except Exception:  # the forward minds the stand-ins: it may read anything
            return
        for table in tables:
            found = reads.get(id(table))
            if found is not None and not found.whole:
                self.use.looked_up[id(table)] = found.keys

    def _spied(self, tables: Sequence[Any], grad: bool, extra: int) -> tuple[dict[int, Reads], list[torch.Tensor]]:
        """What a call reads of the tables that could be replaced, and what it gives. extra: items more that they say
        they have."""
        stand_ins = spies(tables)
        with self.undoing(), grad_mode(grad), eager():
            placed = _put_in(self.target, stand_ins)
            for spy in stand_ins.values():
                spy.reads.extra = extra
            out = self._run(self.arguments.leaves)
            return {i: stand_ins[i].reads for i in placed}, out


def _put_in(target: Target, stand_ins: dict[int, Any]) -> set[int]:
    """Puts stand-ins where the model has what they stand for; ids of those that had a place."""
    placed: set[int] = set()
    for value, kind in list(reachable((vars(m) for _, m in target.modules()), MOST_KEPT)):
        holder = value if kind in (Kind.DICT, Kind.LIST) else own_of(value)
        if holder is None or id(holder) in stand_ins:
            continue
        for key, item in items_of(holder) if isinstance(holder, dict) else list(enumerate(holder)):
            if id(item) in stand_ins:
                holder[key] = stand_ins[id(item)]  # type: ignore[index]
                placed.add(id(item))
    names = {id(spy): i for i, spy in stand_ins.items()}
    left = list(placed)
    while left:  # those in each other are found where the outer one is
        for item in dict.values(stand_ins[left.pop()]):
            inner = names.get(id(item))
            if inner is not None and inner not in placed:
                placed.add(inner)
                left.append(inner)
    return placed


def _same_output(a: Sequence[torch.Tensor], b: Sequence[torch.Tensor]) -> bool:
    return len(a) == len(b) and all(_native.bits_equal(x, y) for x, y in zip(a, b, strict=True))


def probes(leaves: Sequence[torch.Tensor]) -> Iterator[list[torch.Tensor]]:
    """Other data, the most different first."""
    generator = torch.Generator().manual_seed(0x5EED)
    for integers, gentle in ((True, False), (False, False), (False, True)):
        yield each(leaves, lambda t: other_data(t, generator, integers, gentle))  # noqa: B023


def _short(value: Any) -> str:
    return "nothing" if value is NotImplemented else f"{value!r:.40}"


def _stop(stream: Any) -> Exception | None:
    """Ends a recording; what went wrong in it, as a CaptureError."""
    try:
        stream.stop()
    except CaptureError as error:
        return error
    except CleaveError as error:
        return CaptureError(str(error))
    return None


def _with_stores(recorded: Recorded) -> _tree.Spec:
    """The output as the plan has it: with the tensors that the forward keeps in its modules behind it."""
    if not recorded.stores:
        return recorded.output
    return _tree.Spec("tuple", tuple, [recorded.output, _tree.Spec("list", list, [_tree.LEAF] * len(recorded.stores))])


def flow_symbols(points: list[int], count: int, given: Sequence[str] = ()) -> tuple[list[str], list[int], list[int]]:
    """Names and ranges of the symbols that are read from data: those after the given ones.

    A range is what was seen. Forwards branch on none and on one: such a number counts only when both were seen."""
    columns = [points[i::count] for i in range(len(given), count)]
    names = [n for n in (f"n{i}" for i in range(len(columns) + len(given))) if n not in given][: len(columns)]
    low = [min(c) if min(c) > 1 or {0, 1} <= set(c) else 2 - (1 in c) for c in columns]
    if any(c[0] < least for c, least in zip(columns, low, strict=True)):
        raise CaptureError("a number that is read from data is none or one, where a forward may branch")
    return names, low, [max(c) for c in columns]


class Misfit(NamedTuple):
    """Why two records have another structure. lengths: sequences (of unbind, split) are longer in one of them."""

    reason: str
    lengths: bool = False


def misfit(mine: Recorded, other: Recorded) -> Misfit | None:
    """Why a record at another size or on other data differs from the first in more than numbers."""
    found = _native.align(mine.stream, other.stream)
    if found is not None:
        return Misfit(*found)
    reason = _tree.difference(mine.output, other.output, "the output", numbers=True)
    for x, y in zip(mine.calls, other.calls, strict=False):
        reason = reason or x.difference(y)
    return Misfit(reason) if reason else None


def compare(a: Recorded, b: Recorded) -> tuple[int, str | None]:
    """Two recorded forwards: operators (in C), then what only Python holds of them."""
    verdict, reason, op = _native.compare(a.stream, b.stream)
    if verdict == PART and op == "cleave::guard_equal":
        return DIFFER, reason  # it would hold for no other data
    if verdict != EQUAL:
        return verdict, reason
    if len(a.calls) != len(b.calls):
        return DIFFER, "autograd functions are called on some data only"
    for x, y in zip(a.calls, b.calls, strict=True):
        found = x.difference(y)
        if found:
            return DIFFER, found
    found = _tree.difference(a.output, b.output, "the output")
    return (DIFFER, found) if found else (EQUAL, None)

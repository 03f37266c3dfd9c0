"""Capture: record the forward, look again with other data, build the plan, replay it once to be sure.

The logic of recording, comparing and building is C (src/capture); here are the calls that only Python can make:
running the model, making other data, keeping the model's state as it was."""

from __future__ import annotations

import contextlib
import sys
import threading
from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple

import torch

from . import _native, _tree, _watch
from ._state import ModuleTensor, RandomState, Snapshot, Target
from .errors import CaptureError, CleaveError

EQUAL, PART, DIFFER = range(3)  # enum verdict of src/capture/capture.h


class Arguments(NamedTuple):
    """Inputs taken apart."""

    spec: _tree.Spec
    leaves: list[torch.Tensor]
    names: list[str]

    def rebuild(self, leaves: Sequence[torch.Tensor]) -> tuple[tuple[Any, ...], dict[str, Any]]:
        args, kwargs = _tree.unflatten(self.spec, leaves)
        return args, kwargs


class Recorded(NamedTuple):
    """One recorded forward."""

    stream: Any
    calls: list[_watch.PythonCall]
    output: _tree.Spec


class Captured(NamedTuple):
    """A plan with what the skin needs to run it."""

    plan: Any  # _native.Plan
    arguments: _tree.Spec
    output: _tree.Spec
    state: dict[str, tuple[dict[str, Any], str]]
    modules: list[tuple[dict[str, Any], str, bool, dict[str, Any] | None, str, Any]]
    with_grad: bool
    without_grad: bool


def take_apart(target: Target, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Arguments:
    """Flattens inputs and names each tensor after the parameter of the forward that takes it."""
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


def _shuffled(t: torch.Tensor, generator: torch.Generator) -> torch.Tensor:
    flat = t.detach().reshape(-1)
    return flat[torch.randperm(flat.numel(), generator=generator).to(flat.device)].reshape(t.shape)


def _other_data(t: torch.Tensor, generator: torch.Generator, integers: bool, gentle: bool) -> torch.Tensor:
    """Other data of the same kind: floats shuffled and scaled by up to a quarter (zeros get noise), integers shuffled.

    Values stay in the range of the example, so that an index or a probability stays valid. gentle: floats move by a
    thousandth and stay in place, so that branches on the data tend to go the same way."""
    copy = own_copy(t)
    if t.layout is not torch.strided or t.is_nested or t.is_quantized or not t.numel():
        return copy
    with torch.no_grad():
        if t.is_floating_point() or t.is_complex():
            real = torch.rand(t.shape, generator=generator, dtype=torch.float32).to(t.device)
            scale = 1 - (0.001 if gentle else 0.25) * real
            base = t.detach() if gentle else _shuffled(t, generator)
            data = (base * scale.to(t.real.dtype if t.is_complex() else t.dtype)).to(t.dtype)
            if not gentle and not bool((t.detach() != 0).any()):
                data = (0.1 * (real - 0.5)).to(t.dtype)
        else:
            data = _shuffled(t, generator) if integers and not gentle else t.detach()
        try:
            copy.data.copy_(data)
        except RuntimeError:  # overlapping memory (an expanded tensor) cannot be written as a whole
            return own_copy(t)
    return copy


def grad_mode(enabled: bool) -> Any:
    """Sets the grad mode; inside inference_mode it stays off."""
    return torch.set_grad_enabled(enabled and not torch.is_inference_mode_enabled())


@contextlib.contextmanager
def eager() -> Iterator[None]:
    """Calls of torch.compile'd code run eagerly, so that their operators are seen."""
    if "torch._dynamo" not in sys.modules:
        yield
        return
    with torch.compiler.set_stance("force_eager"):
        yield


class Capture:
    """One capture in progress: the target, its example and the state to put back."""

    def __init__(self, target: Target, arguments: Arguments, both: bool) -> None:
        self.target = target
        self.arguments = arguments
        self.both = both  # find out whether one plan serves both grad modes
        self.calls_to_check = 1
        self.tensors: list[ModuleTensor] = list(target.tensors())
        self.snapshot = Snapshot(target)
        self.random = RandomState()

    def restore(self) -> None:
        self.snapshot.restore()
        self.random.restore()

    @contextlib.contextmanager
    def undoing(self) -> Iterator[None]:
        """Whatever the block does to the model's tensors and attributes is undone."""
        random, snapshot = RandomState(), Snapshot(self.target)
        stream = _watch.Recording(self.target).stream
        for t in self.tensors:
            stream.state(t.kind, t.name, False, t.tensor)
        stream.start(False)
        try:
            yield
        finally:
            self._stop(stream)
            stream.restore()
            snapshot.restore()
            random.restore()

    # ---- recording

    def record(self, leaves: Sequence[torch.Tensor], grad: bool) -> Recorded:
        before = set(sys.modules)
        recorded = self._record(leaves, grad)
        if "torch._dynamo" not in before and "torch._dynamo" in sys.modules:
            # The forward pulled in the compiler (cond, flex_attention): once more, with it told to stay out.
            recorded = self._record([own_copy(t) for t in self.arguments.leaves], grad)
        return recorded

    def _record(self, leaves: Sequence[torch.Tensor], grad: bool) -> Recorded:
        recording = _watch.Recording(self.target)
        stream = recording.stream
        for name, leaf in zip(self.arguments.names, leaves, strict=True):
            stream.input(name, leaf)
        for t in self.tensors:
            stream.state(t.kind, t.name, t.kind == "param" and t.tensor.requires_grad, t.tensor)
        args, kwargs = self.arguments.rebuild(leaves)
        before = RandomState()
        try:
            with grad_mode(grad), eager(), _watch.watching(recording):
                stream.start(threading.active_count() == 1)
                try:
                    output = self.target.call(*args, **kwargs)
                finally:
                    problem = self._stop(stream)
            if problem is not None:
                raise problem
            drawn = before.host_differs(RandomState())
            if drawn:
                raise CaptureError(f"the forward draws numbers from {drawn}, which leaves nothing to replay")
            spec, outputs, _ = _tree.flatten(output)
            for leaf in outputs:
                stream.output(leaf)
            self._note_rebound(stream)
            if self.snapshot.changed():
                self.calls_to_check = 2
        finally:
            stream.restore()
            self.snapshot.restore()
        return Recorded(stream, recording.calls, spec)

    @staticmethod
    def _stop(stream: Any) -> Exception | None:
        try:
            stream.stop()
        except Exception as error:
            return error
        return None

    def _note_rebound(self, stream: Any) -> None:
        """Module tensors that the forward exchanged are state: replay exchanges them too.

        A tensor kept beside a plain attribute that changed with it (a cache and the shape it is for) is left out:
        replay does not run the code that keeps the two in step."""
        for t in self.tensors:
            now = t.holder.get(t.key)
            if now is t.tensor or not isinstance(now, torch.Tensor):
                continue
            if t.kind == "attr" and not stream.reads_state(t.name) and self._plain_attribute_changed(t.holder):
                continue
            stream.rebound(t.name, now)

    def _plain_attribute_changed(self, holder: dict[str, Any]) -> bool:
        for own, kept, _ in self.snapshot.attributes:
            if own is holder:
                return any(
                    own.get(k) is not v and not isinstance(v, torch.Tensor) and not isinstance(own.get(k), torch.Tensor)
                    for k, v in kept.items()
                )
        return False

    # ---- looking again

    def probes(self) -> Iterator[list[torch.Tensor]]:
        """Other data, the most different first."""
        generator = torch.Generator().manual_seed(0x5EED)
        for integers, gentle in ((True, False), (False, False), (False, True)):
            yield [_other_data(t, generator, integers, gentle) for t in self.arguments.leaves]

    def look_again(self, first: Recorded, grad: bool) -> tuple[int, Recorded | None, str | None]:
        """Records on other data in this grad mode and compares; the best verdict over the probes."""
        best: tuple[int, Recorded | None, str | None] = (DIFFER, None, None)
        for leaves in self.probes():
            try:
                again = self.record(leaves, grad)
            except CleaveError:
                raise
            except Exception:  # the forward does not take this data
                continue
            verdict, reason = compare(first, again, grad=False)
            if verdict == EQUAL:
                return EQUAL, again, None
            if best[1] is None or verdict < best[0]:
                best = (verdict, again, reason)
        return best

    def run(self, grad: bool) -> Captured:
        mine = self.record([own_copy(t) for t in self.arguments.leaves], grad)
        grads = {grad}
        with_grad: Recorded | None = mine if grad else None
        probe: Recorded | None = None
        if self.both and not torch.is_inference_mode_enabled():
            other = self._try_other_mode(mine, grad)
            if other is not None:
                probe, with_grad, grads = other, (mine if grad else other), {False, True}
        if probe is None:
            verdict, probe, reason = self.look_again(mine, grad)
            if verdict == DIFFER and probe is not None:
                # Something made once for the whole process (a lazy table) may have been in the first record only.
                mine = self.record([own_copy(t) for t in self.arguments.leaves], grad)
                with_grad = mine if grad else None
                verdict, probe, reason = self.look_again(mine, grad)
            if verdict == DIFFER and probe is not None:
                raise CaptureError(f"the forward depends on its data in a way that no plan can hold: {reason}")
        return self._build(mine, probe, with_grad, grads)

    def _try_other_mode(self, mine: Recorded, grad: bool) -> Recorded | None:
        """With other data and in the other grad mode: when all operators agree, one plan serves both modes."""
        try:
            verdict, other, _ = self.look_again(mine, not grad)
        except CleaveError:
            return None
        return other if verdict == EQUAL else None

    def _build(self, mine: Recorded, probe: Recorded | None, with_grad: Recorded | None, grads: set[bool]) -> Captured:
        plan = _native.build(
            mine.stream,
            probe.stream if probe else None,
            with_grad.stream if with_grad else None,
            self.target.training,
            sum(2 if g else 1 for g in grads),
            _tree.tokens(self.arguments.spec),
            _tree.tokens(mine.output),
            list(mine.calls),
        )
        return Captured(
            plan,
            self.arguments.spec,
            mine.output,
            {t.name: (t.holder, t.key) for t in reversed(self.tensors)},
            self.target.module_checks(),
            True in grads,
            False in grads,
        )


def compare(a: Recorded, b: Recorded, grad: bool) -> tuple[int, str | None]:
    """Two recorded forwards: operators (in C), then what only Python holds of them."""
    verdict, reason, op = _native.compare(a.stream, b.stream, grad)
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

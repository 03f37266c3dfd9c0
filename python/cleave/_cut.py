"""A model cut in two, plan by plan: which plan serves a call, and the two halves of each.

A *regime* is all that a plan depends on beside the sizes of its inputs: grad mode, train and eval flags, what is
trainable, dtypes and devices, autocast. Its plans are captured when it is first met."""

from __future__ import annotations

import hashlib
import threading
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import torch

from ._capture import Arguments, Captured, take_apart
from ._objective import Objective
from ._state import Target
from .errors import CaptureError, CleaveError, InputError, SplitError
from .payload import TensorSchema, check_tensors, dims
from .plan import Program, capture_checked, capture_sized, check_call, finish
from .spec import SplitCandidate, SplitSpec


def signature(text: str) -> str:
    """A short name for a plan: equal for equal plans."""
    return hashlib.sha256(text.encode("utf-8", "surrogateescape")).hexdigest()[:16]


class Regime(NamedTuple):
    """What a plan depends on beside the sizes of its inputs."""

    grad: bool
    training: tuple[bool, ...]  # of every module
    tensors: tuple[Any, ...]  # dtype and device of every module tensor; what is trainable, where grad counts
    inputs: tuple[Any, ...]  # memory layout; what requires grad, where grad counts
    modes: tuple[Any, ...]  # around the call: autocast, default dtype

    @classmethod
    def now(cls, target: Target, leaves: Sequence[torch.Tensor], grad: bool) -> Regime:
        """As things are; reads the model, runs nothing."""
        return cls(
            grad,
            tuple(m.training for _, m in target.modules()),
            tuple((t.tensor.dtype, t.tensor.device, grad and t.tensor.requires_grad) for t in target.tensors()),
            tuple((_layout(t), grad and t.requires_grad) for t in leaves),
            (*(_autocast(device) for device in ("cpu", "cuda")), torch.get_default_dtype()),
        )


def _layout(t: torch.Tensor) -> Any:
    if t.layout is not torch.strided or t.is_nested:
        return t.layout
    return None if t.is_contiguous() else t.stride()


def _autocast(device: str) -> torch.dtype | None:
    return torch.get_autocast_dtype(device) if torch.is_autocast_enabled(device) else None


class Wanted(NamedTuple):
    """What the user asked for."""

    spec: SplitSpec
    objective: Objective
    debug: bool


class Cut:
    """One plan cut in two, ready to run."""

    def __init__(
        self, captured: Captured, want: Wanted, grad: bool, sizes: dict[str, int] | None, like: Cut | None
    ) -> None:
        plan, which = _choose(captured.plan, want, sizes, like)
        captured = self.captured = captured._replace(plan=plan)
        debug = want.debug
        self.candidates = [SplitCandidate(*c) for c in plan.frontiers(sizes)]
        self.candidate = self.candidates[which]
        at, end = self.candidate.position + 1, plan.node_count()
        self.prefix = Program(captured, 0, at, debug=debug, inference=not grad)
        self.suffix = Program(captured, at, end, debug=debug, inference=not grad)
        # Parameters that both halves train: a suffix reads them through `stand_in`, so that its share of their
        # gradient can wait for the prefix's.
        self.tied = sorted(_trained(self.prefix) & _trained(self.suffix)) if grad else []
        self.stand_in: dict[str, torch.Tensor] = {}
        if self.tied:
            state = {**captured.state, **{name: (self.stand_in, name) for name in self.tied}}
            self.suffix = Program(captured._replace(state=state), at, end, debug=debug, inference=False)
        self.lock = threading.Lock()
        self.labels: list[str] = self.prefix.native.outputs()
        inputs = set(self.prefix.native.inputs())
        self.passthrough = tuple(label for label in self.labels if label in inputs)
        if self.labels != self.suffix.native.inputs():
            raise AssertionError("prefix and suffix disagree about the boundary")
        self.rebinds = [captured.state[name] for name in plan.rebinds()]
        self.signature = signature(plan.text())
        self.schema = {
            label: TensorSchema(dtype, dims(shape), device, requires_grad)
            for label, (dtype, shape, device, requires_grad) in zip(
                self.labels, self.prefix.native.schema(), strict=True
            )
        }

    def in_order(self, tensors: Mapping[str, torch.Tensor]) -> list[torch.Tensor]:
        """A boundary's tensors as the suffix takes them."""
        missing = [label for label in self.labels if label not in tensors]
        if missing:
            raise InputError(f"the boundary lacks {', '.join(missing)}")
        return [tensors[label] for label in self.labels]

    def check_schema(self, tensors: Mapping[str, torch.Tensor], sizes: Mapping[str, int]) -> None:
        """Every tensor of a boundary against the plan: dtype, each dimension, device, grad flag."""
        check_tensors(self.schema, dict(zip(self.labels, self.in_order(tensors), strict=True)), dict(sizes))

    def run_suffix(
        self, given: Sequence[torch.Tensor], symbols: list[int] | None, tied: Mapping[str, torch.Tensor] = {}
    ) -> Any:
        """What the model returns; `tied` stands in for parameters that both halves train."""
        if not self.tied:
            return finish(self.captured, self.rebinds, self.suffix.run(given, symbols))
        with self.lock:
            self.stand_in.update({name: self.live(name) for name in self.tied} | dict(tied))
            out = self.suffix.run(given, symbols)
            self.stand_in.clear()
        return finish(self.captured, self.rebinds, out)

    def check(self, target: Target, arguments: Arguments, symbols: list[int] | None, grad: bool) -> Cut:
        """Runs both halves and compares with the model, bit for bit, before anybody relies on them."""

        def both(leaves: Sequence[torch.Tensor]) -> Any:
            return self.run_suffix(self.prefix.run(leaves), symbols)

        try:
            check_call(target, self.captured, arguments, both, grad)
        except CaptureError as error:
            raise SplitError(
                f"the halves after {self.candidate.name} do not give what the model gives: {error}"
            ) from None
        return self

    def live(self, name: str) -> torch.Tensor:
        """The model's own tensor of this name."""
        holder, key = self.captured.state[name]
        tensor: torch.Tensor = holder[key]
        return tensor

    def state(self, half: str) -> dict[str, torch.Tensor]:
        """The module tensors that a half reads or writes, by name."""
        program = self.prefix if half == "prefix" else self.suffix
        return {name: self.live(name) for name, *_ in program.native.state()}

    def shared_writes(self) -> list[str]:
        """Module tensors that one half writes and the other has too: the halves cannot be in two processes."""
        one, two = ({n: written for n, _, _, written in g.native.state()} for g in (self.prefix, self.suffix))
        return sorted(n for n in one.keys() & two.keys() if one[n] or two[n])


def _trained(program: Program) -> set[str]:
    return {name for name, kind, trainable, _ in program.native.state() if kind == "param" and trainable}


def _choose(plan: Any, want: Wanted, sizes: dict[str, int] | None, like: Cut | None) -> tuple[Any, int]:
    """The plan to cut (an exact cut puts its nodes in another order) and where: at the frontier of another plan of the
    same model if there is one, else where the user wants it."""
    spec, fields = want.spec, want.objective.fields
    try:
        if spec.exact:
            plan, which = plan.exact(list(spec.must_prefix), list(spec.must_suffix), sizes)
            plan.check(which, fields, sizes)
            return plan, which
        if like is not None:
            found = like.captured.plan.match(like.candidate.position, plan)
            frontiers = plan.frontiers(sizes)
            if found is not None and found < len(frontiers) and SplitCandidate(*frontiers[found]).safe:
                return plan, found
        return plan, plan.choose(spec.boundary, fields, sizes)
    except CleaveError as error:
        raise SplitError(str(error)) from None


class Cuts:
    """The plans of one regime, cut: one for the example's sizes or with formulas for many, one for each size at which
    the model does something else."""

    def __init__(
        self, target: Target, example: tuple[Any, Any], want: Wanted, regime: Regime, like: Cut | None
    ) -> None:
        self.target, self.example, self.want, self.regime = target, example, want, regime
        self.own: dict[int, Cut] = {}  # batch sizes at which the model does something else
        args, kwargs = example
        spec, grad = want.spec, regime.grad
        arguments = take_apart(target, args, kwargs)
        with torch.set_grad_enabled(grad):
            if spec.dynamic_batch is None:
                if want.objective.batch_size is not None:
                    raise SplitError(
                        "objective: batch_size needs a dynamic_batch; without one the example has the size"
                    )
                self.sized = None
                captured = capture_checked(target, args, kwargs, grad=grad, both=False)
            else:
                self.sized = capture_sized(target, args, kwargs, grad, spec.batch_symbol, *spec.dynamic_batch)
                captured = self.sized.captured
                proven = self.sized.proven
                size = self.sized.example if self.sized.example in proven else min(proven)
                arguments = self.sized.resized(arguments, size)
        self.main = Cut(captured, want, grad, self._typical(), like)
        self.captured = self.main.captured
        symbols = self.symbols(self.main, self.sizes_of(arguments.leaves))
        self.main.check(target, arguments, symbols, grad)

    def _typical(self) -> dict[str, int] | None:
        """The sizes at which bytes and work are counted."""
        sized = self.sized
        if sized is None or sized.reason is not None:
            return None
        return {sized.symbol: self.want.objective.batch_size or sized.example}

    @property
    def variants(self) -> list[str]:
        """The plans and the sizes each is proven for."""
        if self.sized is None:
            return ["the example's sizes"]
        main = f"{self.sized.symbol} in {sorted(self.sized.proven)}"
        return [main, *(f"{self.sized.symbol} = {size}" for size in sorted(self.own))]

    def sizes_of(self, leaves: Sequence[torch.Tensor]) -> dict[str, int]:
        """The value of every symbol in these inputs."""
        return {} if self.sized is None else {self.sized.symbol: self.sized.size_of(leaves)}

    def cut_for(self, args: tuple[Any, ...], kwargs: dict[str, Any], leaves: Sequence[torch.Tensor]) -> Cut:
        """The cut whose plan serves these inputs; a size that is used for the first time is recorded."""
        sized = self.sized
        if sized is None:
            return self.main
        size = sized.size_of(leaves)
        if size in sized.proven:
            return self.main
        if size in self.own:
            return self.own[size]
        arguments = take_apart(self.target, args, kwargs)
        if not sized.low <= size <= sized.high:
            leaf, dim = next(iter(sized.dims.items()))
            raise InputError(
                f"input {arguments.names[leaf]}: dimension {dim} is {sized.symbol}={size}, the split is for "
                f"{sized.low} to {sized.high}"
            )
        self.main.prefix.native.check_model()
        sized.check_rest(arguments)
        return self._record(arguments, size)

    def _record(self, arguments: Arguments, size: int) -> Cut:
        assert self.sized is not None
        grad = self.regime.grad
        with torch.set_grad_enabled(grad):
            if self.sized.admit(arguments, size):
                return self.main
            args, kwargs = arguments.rebuild(arguments.leaves)
            captured = capture_checked(self.target, args, kwargs, grad=grad, both=False)
        cut = Cut(captured, self.want, grad, None, self.main).check(self.target, arguments, None, grad)
        return self.own.setdefault(size, cut)

    def known(self, name: str) -> Cut | None:
        """The cut whose plan has this signature."""
        return next((cut for cut in (self.main, *self.own.values()) if cut.signature == name), None)

    def see(self, name: str, sizes: Mapping[str, int]) -> Cut | None:
        """The same, after a look at sizes that so far only the other half has seen."""
        sized = self.sized
        size = sizes.get(sized.symbol) if sized is not None else None
        if sized is None or size is None or size in sized.proven or not sized.low <= size <= sized.high:
            return None
        self._record(sized.resized(take_apart(self.target, *self.example), size), size)
        return self.known(name)

    def check_shapes(self, leaves: Sequence[torch.Tensor]) -> None:
        """Everything but the batch has the sizes of the example."""
        example = take_apart(self.target, *self.example)
        for i, (name, want, t) in enumerate(zip(example.names, example.leaves, leaves, strict=True)):
            batch = self.sized.dims.get(i) if self.sized is not None else None
            fits = t.dim() == want.dim() and all(
                d == batch or n == k for d, (n, k) in enumerate(zip(t.shape, want.shape, strict=True))
            )
            if not fits:
                raise InputError(
                    f"input {name} has shape {tuple(t.shape)}, expected {tuple(want.shape)} but for the batch"
                )

    def symbols(self, cut: Cut, sizes: Mapping[str, int]) -> list[int] | None:
        """The symbols of a cut's plan as its programs take them."""
        if self.sized is None or self.sized.reason is not None or cut is not self.main:
            return None
        return [sizes[self.sized.symbol]]

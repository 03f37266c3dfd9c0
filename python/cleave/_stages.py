"""A model cut into stages, plan by plan, and each stage as a module of its own."""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple
from weakref import WeakKeyDictionary

import torch
from torch import nn
from torch.utils.checkpoint import checkpoint, set_checkpoint_early_stop

from . import _native, _tree, progress
from ._capture import Arguments, Captured
from ._dims import SizeSpec
from ._dispatch import Regime, Served
from ._example import DTYPES
from ._log import logger
from ._module_checks import stage_checks
from ._regime import Plans
from ._save import fixed_of
from ._state import RandomState, Target, item_at
from .errors import CaptureError, GuardError, InputError, LayoutError, ReplayError, SplitError
from .payload import dims
from .plan import DEFAULT, Program, check_call, check_example, finish, keep, plan_signature

log = logger("pipe")

Tensors = Sequence[torch.Tensor]


class Folding(NamedTuple):
    """How a plan is folded into blocks (src/pipe/blocks.h)."""

    depth: int = 1000
    whole: tuple[str, ...] = ()
    ties_together: bool = False
    keep_order: bool = False

    def blocks(self, plan: Any, sizes: Mapping[str, int] | None) -> Any:
        at = dict(sizes) if sizes and plan.symbols() else None
        return _native.Blocks(plan, self.depth, list(self.whole), self.ties_together, self.keep_order, at)


class Placement(NamedTuple):
    """Which stage every node of a plan is in."""

    plan: Any  # _native.Plan
    stage_of: list[int]
    nstages: int


class ValueSpec(NamedTuple):
    """A tensor that goes from stage to stage."""

    name: str
    dtype: torch.dtype
    shape: tuple[int | str, ...]  # sizes that may change are formulas: "B", "2*B"
    requires_grad: bool

    @property
    def is_batched(self) -> bool:
        """Some size of it may change."""
        return any(isinstance(n, str) for n in self.shape)


class Returned(NamedTuple):
    """What the tensors of the last stage are in the model's output, for the plan that ran."""

    captured: Captured
    outputs: list[ValueSpec]

    def pack(self, tensors: Tensors, numbers: Sequence[tuple[int, Any]] = ()) -> Any:
        """What the model returns. numbers: of the same run."""
        return finish(self.captured, (), put_numbers(tensors, numbers))

    def difference(self, other: Returned) -> str | None:
        """How another output has another structure, in words."""
        return _tree.difference(self.captured.output, other.captured.output, "the output")


class Early(NamedTuple):
    """Guards that are decided before anything runs, as a program (None: there are none); whether others are left."""

    program: Program | None
    late: bool


class Choice(NamedTuple):
    """Which variant serves a call, and whether a guard may still object when it is met."""

    variant: int
    late: bool


class Staged:
    """One plan cut into stages, ready to run."""

    plans: StagePlans
    cut_at = None

    def __init__(
        self,
        target: Target,
        captured: Captured,
        folding: Folding,
        like: Placement,
        grad: bool,
        sizes: dict[str, int],
        origin: str,
    ) -> None:
        self.source = captured
        self.modules = list(target.modules())
        plan = captured.plan
        stage_of = like.stage_of
        if plan is not like.plan:
            stage_of = folding.blocks(plan, sizes).match(like.plan, like.stage_of)
        self.placement = Placement(plan, stage_of, like.nstages)
        staged, self.ends = plan.staged(stage_of, like.nstages)
        self.captured = captured._replace(plan=staged)
        self.grad = grad
        self.programs = [self.program(i) for i in range(like.nstages)]
        self._recomputed: dict[int, Recomputed] = {}
        self._moved: dict[str, Any] = {}  # the plan for other devices
        self.signature = plan_signature(self.captured, origin)
        self._before = self._changed_before_guards()

    def program(
        self,
        i: int,
        state: Mapping[str, tuple[Any, Any]] | None = None,
        checks: _native.Checks | bool = True,
        device: torch.device | None = None,
    ) -> Program:
        """Stage i as a program. state: places of tensors other than the model's. checks: what must hold of the model;
        True: that it is as it was captured, False: nothing."""
        how = DEFAULT.for_grad(self.grad)
        return Program(self._placed(state, checks, device), *self._range(i), how, inference=not self.grad)

    def guards(
        self, state: Mapping[str, tuple[Any, Any]], checks: _native.Checks | bool, device: torch.device | None
    ) -> Early:
        """The guards that the first stage can decide before anything runs."""
        captured = self._placed(state, checks, device)
        plan, n, late = captured.plan.guards_first(self.ends[0])
        if plan is None:
            return Early(None, late > 0)
        how = DEFAULT.for_grad(True)
        return Early(Program(captured._replace(plan=plan), 0, n, how, inference=not self.grad), late > 0)

    def _placed(
        self,
        state: Mapping[str, tuple[Any, Any]] | None,
        checks: _native.Checks | bool,
        device: torch.device | None,
    ) -> Captured:
        """What runs where the tensors of the model are kept elsewhere; arguments as of `program`."""
        captured = self.captured
        if state is not None:
            captured = captured._replace(state={**captured.state, **state})
        if checks is not True:
            captured = captured._replace(modules=checks or None)
        if device is not None:
            captured = captured._replace(plan=self._on(str(device)))
        return captured

    def _on(self, device: str) -> Any:
        """The plan for another device."""
        if device not in self._moved:
            self._moved[device] = self.captured.plan.retarget(device)
        return self._moved[device]

    def _range(self, i: int) -> tuple[int, int]:
        """First and last node of stage i, the latter excluded."""
        return (self.ends[i - 1] if i else 0, self.ends[i])

    def effects(self, i: int) -> dict[str, str]:
        """The effects of stage i, each with a node that has it."""
        found: dict[str, str] = self.captured.plan.effects(*self._range(i))
        return found

    def modules_of(self, i: int) -> list[Any]:
        """The modules that stage i runs as a whole, as PythonCalls."""
        calls = self.captured.plan.calls(*self._range(i))
        return [c for c in calls if isinstance(c.what, nn.Module)]

    def path_of(self, module: nn.Module) -> str:
        return next(path for path, m in self.modules if m is module)

    def check_apart(self) -> None:
        """Raises when the stages cannot run by themselves: they can be in several processes."""
        if self.captured.stores or self.captured.plan.rebinds():
            names = self.captured.plan.rebinds() or ["an attribute"]
            raise SplitError(
                f"the forward keeps {', '.join(names)} of the model for the next call, which the stages by themselves "
                "cannot do: run them in sequence by calling the partition"
            )

    def check_model(self) -> None:
        """Raises when the model is not as it was captured."""
        self.programs[0].native.check_model()

    def inputs_of(self, i: int) -> list[ValueSpec]:
        """What goes into stage i."""
        return self._specs(self.programs[i].native.inputs(), self.programs[i].native.schema(True))

    def outputs_of(self, i: int) -> list[ValueSpec]:
        """What comes out of it: for all but the last stage what goes into the next."""
        return self._specs(self.programs[i].native.outputs(), self.programs[i].native.schema())

    def returned(self) -> Returned:
        """What the last stage gives, and what that is to the model."""
        return Returned(self.captured, self.outputs_of(len(self.programs) - 1))

    @staticmethod
    def _specs(labels: list[str], schema: list[tuple[str, tuple[str, ...], str, bool]]) -> list[ValueSpec]:
        return [
            ValueSpec(label, DTYPES[dtype], dims(shape), requires_grad)
            for label, (dtype, shape, _, requires_grad) in zip(labels, schema, strict=True)
        ]

    def run(self, leaves: Tensors, symbols: list[int] | None, recompute: bool) -> Any:
        """All stages in sequence: what the model returns."""
        values: tuple[Any, ...] = tuple(leaves)
        before = self._before.now() if self._before is not None else None
        try:
            for i, program in enumerate(self.programs):
                again = recompute and torch.is_grad_enabled()
                values = (self.recomputed(i) if again else program).run(values, symbols)
                if i + 1 < len(self.programs):
                    values = keep(program.rebinds, values)
        except GuardError as error:  # its stage has put back what it changed, those before have not
            if before is not None and error.undone:
                error.undone = before.put_back()
            raise
        return finish(self.captured, self.programs[-1].rebinds, values)

    def _changed_before_guards(self) -> _Changed | None:
        """What stages change before a guard of a later one may end the run; None: nothing."""
        effects = [self.effects(i).keys() for i in range(len(self.programs))]
        guarded = [i for i, found in enumerate(effects) if found & {"guard", "python"}]
        early = range(guarded[-1] if guarded else 0)
        places: dict[str, tuple[Any, Any]] = {}
        for i in early:
            written = [name for name, _, _, written in self.programs[i].native.state() if written]
            places.update({name: self.captured.state[name] for name in (*written, *self.programs[i].native.rebinds())})
        lost = any(effects[i] & {*_BEYOND, "writes inputs"} for i in early)
        if not places and not lost and not any("random" in effects[i] for i in early):
            return None
        return _Changed(list(places.values()), lost)

    def recomputed(self, i: int) -> Recomputed:
        """Stage i as one that runs again in the backward."""
        if i not in self._recomputed:
            self._recomputed[i] = Recomputed(self, i, {})
        return self._recomputed[i]


_BEYOND = {"python", "impure", "object"}  # effects that cannot be put back


class Before(NamedTuple):
    """The state before a run."""

    tensors: list[tuple[Any, Any, torch.Tensor, torch.Tensor]]  # holder, key, the tensor, a copy
    random: RandomState
    lost: bool

    def put_back(self) -> bool:
        """Restores it; False: some of it cannot be restored."""
        self.random.restore()
        with torch.no_grad():
            for holder, key, tensor, copy in self.tensors:
                holder[key] = tensor.copy_(copy)
        return not self.lost and all(t.grad_fn is None for _, _, t, _ in self.tensors)


class _Changed(NamedTuple):
    """Tensors of the model, by where they are, that a run changes, and generators. lost: and something else."""

    places: list[tuple[Any, Any]]
    lost: bool

    def now(self) -> Before:
        held = [(holder, key, holder[key]) for holder, key in self.places]
        return Before([(h, k, t, t.detach().clone()) for h, k, t in held], RandomState(), self.lost)


class _Held(NamedTuple):
    """A tensor of the model as a forward found it."""

    tensor: torch.Tensor
    version: int
    memory: int

    @classmethod
    def of(cls, t: torch.Tensor) -> _Held:
        plain = t.layout is torch.strided and not t.is_nested
        return cls(t, 0 if t.is_inference() else t._version, t.data_ptr() if plain else 0)

    def check(self, name: str) -> None:
        if _Held.of(self.tensor)[1:] != self[1:]:
            raise ReplayError(
                f"{name} was changed between the forward and the backward, and with recomputation=True the forward "
                "runs again in the backward: change it after the backward"
            )


class _Again:
    """`with again:` marks the second forward, which runs in the backward; there may be several."""

    def __init__(self) -> None:
        self.active = False

    def __enter__(self) -> None:
        self.active = True

    def __exit__(self, *unused: object) -> None:
        self.active = False


class Recomputed:
    """A stage whose forward keeps its inputs alone and is run again in the backward, from the random state and the
    module tensors that it found, which it does not change a second time."""

    def __init__(
        self,
        staged: Staged,
        i: int,
        state: Mapping[str, tuple[Any, Any]],
        checks: _native.Checks | bool = True,
        device: torch.device | None = None,
    ) -> None:
        """state: places of module tensors other than the model's; checks: as Staged.program takes them."""
        self.program = staged.program(i, state, checks, device)
        self.rebinds = self.program.rebinds
        places = {**staged.captured.state, **state}
        used = {name: written for name, _, _, written in self.program.native.state()}
        self.written = {name: places[name] for name, written in used.items() if written}
        self.read = {name: places[name] for name, written in used.items() if not written}
        # No version counts what a BatchNorm in train mode writes into its statistics; a number of forwards does.
        counted = self.program.native.counters()
        found = [counter for name, counter in counted.items() if name in self.read]
        self.counters = {name: (holder, key) for name, holder, key in found if name not in used}
        self.writes_inputs = "writes inputs" in staged.effects(i)
        self.found: dict[str, torch.Tensor] = {}
        self.lock = threading.Lock()  # around `found`
        # The forward has looked at the model.
        self.again = staged.program(i, {name: (self.found, name) for name in used}, False, device)

    def run(self, values: Tensors, symbols: list[int] | None) -> tuple[Any, ...]:
        copies = {name: _copied(holder[key]) for name, (holder, key) in self.written.items()}
        held = {name: _Held.of(holder[key]) for name, (holder, key) in (self.read | self.counters).items()}
        kept = [_copied(t) for t in values] if self.writes_inputs else values
        numbers: list[tuple[int, Any]] = []
        again = _Again()
        # An error does not pass through checkpoint(): before torch 2.13, its hooks on saved tensors stay active as
        # long as the traceback lives, and a second attempt in the handler would get wrong gradients.
        failed: list[Exception] = []

        def forward(*tensors: torch.Tensor) -> tuple[torch.Tensor, ...]:
            if not again.active:
                try:
                    out, numbers[:] = take_numbers(self.program.run(values, symbols))
                except Exception as error:
                    failed.append(error)
                    return ()
                if self.writes_inputs:
                    held.update({f"input {i}": _Held.of(t) for i, t in enumerate(values)})
                return out
            for name, tensor in held.items():
                tensor.check(name)
            with self.lock:
                self.found.update({name: held[name].tensor for name in self.read})
                self.found.update({name: _copied(t) for name, t in copies.items()})
                try:
                    given = [t.clone() for t in tensors] if self.writes_inputs else tensors
                    return take_numbers(self.again.run(given, symbols))[0]
                finally:
                    self.found.clear()

        with set_checkpoint_early_stop(False):  # it would leave the C program by an exception
            out: Any = checkpoint(
                forward, *kept, use_reentrant=False, context_fn=lambda: (contextlib.nullcontext(), again)
            )
        if failed:
            raise failed.pop()
        return put_numbers(out, numbers)


def _copied(t: torch.Tensor) -> torch.Tensor:
    """A copy that requires grad as the tensor does: by that, operators choose what they save for the backward."""
    return t.detach().clone().requires_grad_(t.requires_grad)


def take_numbers(out: Sequence[Any]) -> tuple[tuple[torch.Tensor, ...], list[tuple[int, Any]]]:
    """Separates the tensors that a program returns from numbers of the model's output, with their places."""
    tensors = tuple(x for x in out if isinstance(x, torch.Tensor))
    return tensors, [(at, x) for at, x in enumerate(out) if not isinstance(x, torch.Tensor)]


def put_numbers(tensors: Tensors, numbers: Sequence[tuple[int, Any]]) -> tuple[Any, ...]:
    """Puts the numbers back into their places."""
    out: list[Any] = list(tensors)
    for at, x in numbers:
        out.insert(at, x)
    return tuple(out)


class StagePlans(Plans[Staged]):
    """The plans of one variant of a regime, cut into stages."""

    def __init__(
        self,
        home: Served[StagePlans, Staged],
        target: Target,
        example: tuple[Any, Any],
        sizes: SizeSpec,
        regime: Regime,
        folding: Folding,
        choose: Callable[[Captured, Arguments, dict[str, int], Folding], Placement],
        like: Staged | None,
        made: StagePlans | None = None,
    ) -> None:
        """choose: puts the nodes of the first plan into stages; the others follow `like`."""
        self.folding = folding
        self.choose = choose
        super().__init__(home, target, example, sizes, regime, like, made)

    def prepare(self, captured: Captured, arguments: Arguments, like: Staged | None) -> Staged:
        if like is not None:
            return self._checked(captured, arguments, like.placement)
        sizes = self.sizes_of(arguments.leaves)
        try:
            return self._checked(captured, arguments, self.choose(captured, arguments, sizes, self.folding))
        except SplitError as error:
            if self.folding.keep_order:
                raise
            # Nodes in another order may add gradients up in another order; in the plan's own they do not.
            log.info("%s: once more with the nodes in the model's own order: %s", self.target.name, error)
        self.folding = self.folding._replace(keep_order=True)
        return self._checked(captured, arguments, self.choose(captured, arguments, sizes, self.folding))

    def _checked(self, captured: Captured, arguments: Arguments, where: Placement) -> Staged:
        """Cuts a plan and runs the stages at sizes it is proven for."""
        sizes, grad = self.sizes_of(arguments.leaves), self.regime.grad
        staged = Staged(self.target, captured, self.folding, where, grad, sizes, self.origin(captured))
        if self.target.shapes:
            return staged  # nothing can be run
        small = self.to_check(captured, arguments)
        symbols = self.symbols(staged, self.sizes_of(small.leaves))
        try:
            with progress.task(f"checking the stages of {self.target.name}"):
                check_call(self.target, staged.captured, small, lambda x: staged.run(x, symbols, False), grad)
        except CaptureError as error:
            raise SplitError(f"the stages in sequence do not give the model's results: {error}") from None
        mine, first = self.symbols(staged, sizes), staged.programs[0]
        if self.takes(captured, arguments):
            check_example(self.target, staged.captured, arguments, first, lambda x: staged.run(x, mine, False), grad)
        return staged


class Mode(NamedTuple):
    """The mode of a stage."""

    flags: tuple[bool, ...]  # train or eval mode, of every module of the model
    grad: bool

    @contextlib.contextmanager
    def of(self, target: Target) -> Iterator[None]:
        """Puts the model into this mode for the block."""
        modules = [m for _, m in target.modules()]
        before = [m.training for m in modules]
        try:
            for m, flag in zip(modules, self.flags, strict=True):
                m.training = flag
            with torch.set_grad_enabled(self.grad):
                yield
        finally:
            for m, flag in zip(modules, before, strict=True):
                m.training = flag


class Part(nn.Module):
    """A module inside a stage: it holds tensors, and is never called."""

    def _no_hooks(self, *args: Any, **kwargs: Any) -> Any:
        raise SplitError(
            "the modules inside a stage are not called, and neither would be their hooks: register the hook on the "
            "model, and partition it again, or on the stage"
        )

    register_forward_hook = register_forward_pre_hook = register_backward_hook = _no_hooks
    register_full_backward_hook = register_full_backward_pre_hook = _no_hooks


class Stage(nn.Module):
    """One stage as a module: parameters and buffers under the model's names, tensors in, tensors out.

    What comes out is, in order, what the next stage takes; what later stages need is passed through. The last one gives
    the tensors of the model's output. Train and eval mode, grad mode and sizes pick the plan; what was not met before
    is captured, as long as the whole model is there.

    A stage follows its model: the mode that it is switched to, tensors that are put in the place of others. Other
    changes (hooks, settings that the forward reads, modules) are refused, as a call of the partition refuses them."""

    def __init__(
        self,
        index: int,
        first: Sequence[StagePlans],
        plans: Callable[[Mode], Sequence[StagePlans]],
        recompute: bool,
        device: torch.device | None,
        others: Sequence[Stage] = (),
    ) -> None:
        """plans: the variants of a mode, as `first` are. device: where the stage is put; None: where it is. others:
        stages that are there already, which list the parameters that they share with this one."""
        main = first[0].main
        self._target = first[0].target
        super().__init__()
        self.index, self.nstages = index, main.placement.nstages
        self.inputs, self.outputs = main.inputs_of(index), main.outputs_of(index)
        self.sizes: dict[str, int] | None = None  # of the next call; None: they are read off its tensors
        self._variant = 0  # of the next call
        self.numbers: list[tuple[int, Any]] = []  # of the last run's output: what is no tensor
        self._ran = main  # the plan of the last run
        self.others = list(others)
        self._plans, self._recompute, self._device = plans, recompute, device
        self._modules_seen: list[nn.Module] = []  # of the model, when it was last looked at
        self._flags: list[bool] = []  # which of them were in train mode
        # As long as these hold: the variants by training and grad mode
        self._by_mode: dict[tuple[bool, bool], Sequence[StagePlans]] = {}
        # What runs a plan here, as long as the dispatcher keeps the plan
        self._parts: WeakKeyDictionary[Staged, Program | Recomputed] = WeakKeyDictionary()
        self._guards: WeakKeyDictionary[Staged, Early] = WeakKeyDictionary()
        self._state: dict[str, tuple[Any, Any]] = {}  # where its tensors are: in tables of this module
        self._places: dict[str, tuple[Any, Any]] = {}  # and in the model
        self._held: dict[str, torch.Tensor] = {}  # what was in both
        for known in first:
            self._adopt(known.main)
        self.training = self._target.training

    # ---- mode

    @property
    def training(self) -> bool:
        """Train or eval mode: what train() and eval() of the stage said last, until the model is switched."""
        model = self._target.training
        if model is not self._model_training:
            self.training = model
        return self._training

    @training.setter
    def training(self, mode: bool) -> None:
        self._training, self._model_training = bool(mode), self._target.training

    def _look(self) -> None:
        """Reads the modules and their modes again, after the model has changed."""
        self._modules_seen = [m for _, m in self._target.modules()]
        self._flags, self._by_mode = [m.training for m in self._modules_seen], {}

    def _mode(self, training: bool, grad: bool) -> Mode:
        """The model's own flags in its own mode (parts of it may evaluate while it trains), else all alike."""
        same = training is self._model_training
        return Mode(tuple(self._flags) if same else (training,) * len(self._flags), grad)

    # ---- tensors

    def _adopt(self, staged: Staged) -> None:
        """Registers the tensors of the stage under their names; from now on they are found here."""
        modules = {id(call.what): call.what for call in staged.modules_of(self.index)}
        for module in modules.values():
            self._attach(staged.path_of(module), module)
        ties: dict[str, list[str]] = {}
        for other, name in staged.captured.plan.ties().items():
            ties.setdefault(name, []).append(other)
        loose = not_saved(self._target)
        for name, kind, _, _ in staged.programs[self.index].native.state():
            if name in self._state:
                continue
            self._places[name] = holder, key = staged.captured.state[name]
            self._held[name] = tensor = holder[key]
            saved = kind == "buffer" and name not in loose
            self._state[name] = self._register(name, kind, tensor, saved)
            for other in ties.get(name, ()) if kind == "param" else ():
                self._register(other, kind, tensor, saved)

    def _parent(self, path: Sequence[str]) -> nn.Module:
        module: nn.Module = self
        for part in path:
            if part not in module._modules:
                module.add_module(part, Part())
            child = module._modules[part]
            assert child is not None
            module = child
        return module

    def _attach(self, path: str, whole: nn.Module) -> None:
        *above, key = path.split(".")
        self._parent(above).add_module(key, whole)

    def _register(self, name: str, kind: str, tensor: torch.Tensor, saved: bool) -> tuple[Any, Any]:
        *path, key = name.split(".")
        module = self._parent(path)
        tables: tuple[dict[str, Any], ...] = (module._parameters, module._buffers, vars(module))
        for table in tables:
            if key in table:  # of a module that is here as a whole
                return table, key
        if kind == "param":
            module.register_parameter(key, tensor)  # type: ignore[arg-type]
            return module._parameters, key
        module.register_buffer(key, tensor, persistent=saved)
        return module._buffers, key

    def share(self) -> bool:
        """Gives the stage the tensors that were replaced in the model, and the model those that were replaced here.
        Says whether there were any."""
        found = False
        for name, known in self._held.items():
            (table, key), (holder, at) = self._state[name], self._places[name]
            own, model = table.get(key), item_at(holder, at)
            if own is model or not (isinstance(own, torch.Tensor) and isinstance(model, torch.Tensor)):
                continue
            if own is not known and model is not known:
                raise InputError(f"{name} was replaced by one tensor in the model and by another in the stage")
            if own is known and model.device != own.device:
                raise InputError(
                    f"{name} of the model was replaced by a tensor on {model.device}, and the stage is on "
                    f"{own.device}: replace it in the stage, or move it first"
                )
            if own is known:
                table[key] = self._held[name] = model
            else:
                holder[at] = self._held[name] = own
            found = True
        return found

    def named_parameters(
        self, prefix: str = "", recurse: bool = True, remove_duplicate: bool = True
    ) -> Iterator[tuple[str, nn.Parameter]]:
        """Those of a module; without the ones that a stage in `others` lists, unless duplicates are asked for."""
        self.share()
        taken = {id(p) for stage in self.others for p in stage._all_parameters()} if remove_duplicate else set()
        for name, p in super().named_parameters(prefix, recurse, remove_duplicate):
            if id(p) not in taken:
                yield name, p

    def _all_parameters(self) -> Iterator[nn.Parameter]:
        return (p for _, p in self.named_parameters(remove_duplicate=False))

    def zero_grad(self, set_to_none: bool = True) -> None:
        """Of all its parameters, also those that another stage lists."""
        for p in self._all_parameters():
            if p.grad is not None:
                p.grad = None if set_to_none else torch.zeros_like(p.grad)

    def requires_grad_(self, requires_grad: bool = True) -> Stage:
        """Of all its parameters, also those that another stage lists."""
        for p in self._all_parameters():
            p.requires_grad_(requires_grad)
        return self

    def state_dict(self, *args: Any, **kwargs: Any) -> Any:
        """That of a module, with the tensors that the model has now."""
        self.share()
        return super().state_dict(*args, **kwargs)

    def load_state_dict(self, *args: Any, **kwargs: Any) -> Any:
        """That of a module: into the tensors that the model has now."""
        self.share()
        return super().load_state_dict(*args, **kwargs)

    # ---- running

    def forward(self, *tensors: torch.Tensor) -> tuple[torch.Tensor, ...]:
        out, self.numbers = take_numbers(self._attempt(self._run, tensors))
        return out

    def _choice(self, tensors: Tensors) -> Choice:
        """Which variant serves these inputs of the model, as far as the guards tell that the first stage can decide.
        Changes nothing. Where none does, raises what stands against it."""
        chosen: Choice = self._attempt(self._choose, tensors)
        return chosen

    def _attempt(self, run: Callable[[Sequence[StagePlans], tuple[bool, bool], Tensors], Any], tensors: Tensors) -> Any:
        """run(variants of the mode, mode, tensors), once more where the model has changed since."""
        if not self._flags or [m.training for m in self._modules_seen] != self._flags:
            self._look()
        key = self.training, torch.is_grad_enabled()
        plans = self._by_mode.get(key)
        try:
            if plans is None:
                plans = self._by_mode[key] = self._plans(self._mode(*key))
            try:
                return run(plans, key, tensors)
            except InputError:
                shared = self.share()
                self._look()
                again = self._plans(self._mode(*key))  # what is trainable may have changed
                if [id(p) for p in again] == [id(p) for p in plans] and not shared:
                    raise
                self._by_mode[key] = again
                return run(again, key, tensors)
        except InputError as error:
            raise InputError(f"stage {self.index}: {error}") from None

    def __reduce_ex__(self, protocol: Any) -> Any:
        raise TypeError(
            "a Stage is bound to the plans of its process and cannot be copied or pickled: keep its state_dict, or the "
            "generated source (PartitionedPlan.write_source)"
        )

    def _run(self, plans: Sequence[StagePlans], key: tuple[bool, bool], tensors: Tensors) -> tuple[Any, ...]:
        staged, symbols = self._serving(plans[self._variant], key, tensors)
        out: tuple[Any, ...] = self._part(staged, key[1]).run(tensors, symbols)
        self._ran = staged
        return out

    def _choose(self, plans: Sequence[StagePlans], key: tuple[bool, bool], tensors: Tensors) -> Choice:
        problems: dict[int, InputError | GuardError] = {}
        last = self._variant if self._variant < len(plans) else 0
        for i in (last, *(i for i in range(len(plans)) if i != last)):
            try:
                staged, symbols = self._serving(plans[i], key, tensors)
                late = self._decide(staged, key[1], tensors, symbols)
            except (LayoutError, GuardError) as error:
                problems[i] = error
            else:
                return Choice(i, late)
        # The one that came furthest: inputs are looked at before guards.
        raise min(problems.items(), key=lambda found: (isinstance(found[1], InputError), found[0]))[1]

    def _decide(self, staged: Staged, grad: bool, tensors: Tensors, symbols: list[int] | None) -> bool:
        """Raises what a run of all stages would say of these inputs, as far as this stage can tell. True: guards are
        left that it cannot decide."""
        part = self._part(staged, grad)
        program = part.program if isinstance(part, Recomputed) else part
        program.native.check_run(tensors, symbols)
        if staged not in self._guards:
            self._guards[staged] = staged.guards(self._state, self._checks(staged), self._device)
        early = self._guards[staged]
        if early.program is not None:
            early.program.run(tensors, symbols)
        return early.late

    def _now(self) -> Before:
        """What a run of this stage changes of the model, as it is now, to be put back."""
        plans = self._attempt(lambda plans, key, tensors: plans, ())
        places: dict[str, tuple[Any, Any]] = {}
        lost = False
        for staged in (p.main for p in plans):
            state = staged.programs[self.index].native.state()
            places.update({name: self._state[name] for name, _, _, written in state if written and name in self._state})
            lost |= bool(staged.effects(self.index).keys() & _BEYOND)
        return _Changed(list(places.values()), lost).now()

    def _serving(self, plans: StagePlans, key: tuple[bool, bool], tensors: Tensors) -> tuple[Staged, list[int] | None]:
        """The plan for these sizes; sizes that are used for the first time are recorded."""
        sized = plans.sized
        if sized is None:
            return plans.main, None
        point = self._read_point(plans, tensors)
        staged = plans.at(point)
        if staged is None:
            with self._mode(*key).of(self._target):
                plans.see(sized.named(point))
            staged = plans.at(point)
            assert staged is not None
        return staged, plans.symbols(staged, sized.named(point))

    def _read_point(self, plans: StagePlans, tensors: Tensors) -> tuple[int, ...]:
        """The sizes of a call: as they were told, or read off the tensors by a plan that they fit."""
        assert plans.sized is not None
        if self.sizes is not None:
            return tuple(self.sizes[name] for name in plans.sized.names)
        problem: InputError | None = None
        for staged in plans.prepared():
            try:
                return self._point(plans, staged, staged.programs[self.index].native.symbols(tensors))
            except InputError as error:
                problem = problem or error
        raise InputError(str(problem))

    @staticmethod
    def _point(plans: StagePlans, staged: Staged, symbols: list[int]) -> tuple[int, ...]:
        """The values of all symbols: what a plan has no symbol for is as it was recorded."""
        assert plans.sized is not None
        known = dict(zip(staged.captured.symbols, symbols, strict=False))
        fixed = fixed_of(plans.sized, staged.source)
        here = plans.sized.named(plans.sized.example)
        return tuple({**here, **fixed, **known}[name] for name in here)

    def _part(self, staged: Staged, grad: bool) -> Program | Recomputed:
        """A plan's part on the tensors of this stage."""
        if staged not in self._parts:
            staged.check_apart()
            self._adopt(staged)
            how = (self.index, self._state, self._checks(staged), self._device)
            self._parts[staged] = Recomputed(staged, *how) if self._recompute and grad else staged.program(*how)
        return self._parts[staged]

    def _checks(self, staged: Staged) -> _native.Checks:
        """The model is as it was captured, but for its mode, which the stage has its own of; and both have the same
        tensors."""
        names = (name for name, _, _, _ in staged.programs[self.index].native.state())
        places = ((name, staged.captured.state[name], self._state[name]) for name in names)
        return stage_checks(staged.captured.modules, places, self.index == 0)


def not_saved(target: Target) -> list[str]:
    """Buffers that no state_dict of the model has."""
    modules = [
        (f"{prefix}.{path}".strip("."), m)
        for prefix, root in target.roots
        for path, m in root.named_modules(remove_duplicate=False)
    ]
    return [f"{path}.{name}".strip(".") for path, m in modules for name in m._non_persistent_buffers_set]

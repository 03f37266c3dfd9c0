"""A model as a pipeline: profiled, partitioned into stages that are in balance, run in sequence or on several devices.

>>> import torch, cleave
>>> net = torch.nn.Sequential(torch.nn.Linear(4, 8), torch.nn.ReLU(), torch.nn.Linear(8, 2))
>>> x = torch.randn(3, 4)
>>> partitioned = cleave.pipe_model(net, example_inputs=(x,), nparts=2)
>>> torch.equal(partitioned(x), net(x))
True
"""

from __future__ import annotations

import json
import os
import time
from collections.abc import Callable, Hashable, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import torch
from torch import nn

from . import _native, _report, _save, _show, _tree, progress
from . import profile as profiles
from ._arguments import renamed
from ._block_calls import call_texts
from ._capture import Arguments, Captured, each, own_copy, take_apart
from ._dims import DynamicDims, SizeSpec
from ._dispatch import Regime, Served, Variants
from ._log import logger
from ._regime import Reader, for_file
from ._stages import Folding, Mode, Placement, Stage, Staged, StagePlans, not_saved
from ._state import Target, fingerprint
from ._wanted import BasicBlocks, Device, Wanted, read, scalar, weight
from .errors import ArgumentError, CaptureError, CleaveError, InputError, SplitError, first_line
from .plan import Plan, as_call, as_inputs, see, see_all
from .profile import Profile

if TYPE_CHECKING:
    from ._distributed import PipelineRun  # torch.distributed.pipelining is loaded when it is needed

MOST_BATCH = 64  # at least: batch sizes up to here, and up to that of the example, can be run

# Arguments of pipe_model that say what is captured, or what is done with the result: repartition has them no more.
_CAPTURED = {
    "model",
    "batch_dim",
    "example_inputs",
    "example_kwargs",
    "training",
    "dynamic_batch",
    "dynamic_dims",
    "dynamic_ranges",
    "variants",
}

log = logger("pipe")


class Block(NamedTuple):
    """What a pipeline is cut between: a layer, a module as a whole, or an operator."""

    name: str
    module_path: str
    module_class: str
    is_layer: bool  # it is a layer, or has one
    nodes: int
    cost: profiles.BlockProfile


def _itself(staged: Staged, leaves: Sequence[torch.Tensor]) -> Staged:
    return staged


def _run_staged(staged: Staged, leaves: Sequence[torch.Tensor], recompute: bool) -> Any:
    plans = staged.plans
    return staged.run(leaves, plans.symbols(staged, plans.sizes_of(leaves)), recompute)


class PartitionedPlan(_show.Shown):
    """A model cut into stages. Made by pipe_model.

    Called like the model it runs the stages in sequence, bit for bit the same, gradients included. What the model does
    in another mode (train or eval, other dtypes, other sizes) is captured when it is first asked for and cut in the
    same way."""

    def __init__(
        self,
        model: Callable[..., Any],
        example: tuple[Any, Any],
        want: Wanted,
        made: PartitionedPlan | None = None,
    ) -> None:
        """made: another partition of the same model, whose plan is not captured again."""
        self._model, self._want = model, want
        self.folding = want.folding
        self._partition: Any
        self._whole = True  # the parameters of all stages are here
        self._stages: dict[int, Stage] = {}
        self._by_mode: dict[Mode, StagePlans] = {}  # for stages, which may have left the model
        self._seen: list[tuple[Any, Any]] = []  # calls besides the example that it was shown
        self._variants_seen: dict[StagePlans, tuple[StagePlans, ...]] = {}  # by that of the example
        self._example = example
        if made is not None:
            self._begin(made._target, made._first)
        else:
            self._capture()
        first = self._first
        self.plan = Plan(first.target, first.main.captured, first.sized, how=self._want.how)
        self.device_of: list[int] = self._partition.device_of()
        self.signature = first.main.signature
        tensors = [*take_apart(self._target, *example).leaves, *(t.tensor for t in self._target.tensors())]
        self._home = tensors[0].device if tensors else torch.device("cpu")  # what the plans are for
        for args, kwargs in made._seen if made is not None else ():
            self._see(args, kwargs)

    # ---- making

    def _capture(self) -> None:
        whole = self._want.folding.whole
        self._check_names()
        target = Target(self._model)
        target.shapes = _on_meta(target, self._example)
        if target.shapes and self._want.profile is None:
            self._want = self._want._replace(profile="estimate")
        try:
            self._begin(target)
        except CaptureError as error:
            if not whole or target.shapes:
                raise
            log.info("basic blocks are run as they are, for the model as a whole cannot be captured: %s", error)
            self._begin(Target(self._model, whole))

    def _check_names(self) -> None:
        """A name of no module is a slip; a class that the model does not have may be meant for other models."""
        modules = list(Target(self._model).modules())
        known = {path for path, _ in modules} | {type(m).__name__ for _, m in modules}
        for name in self._want.given["basic_blocks"] or ():
            if isinstance(name, str) and name not in known:
                raise ArgumentError(
                    f"basic_blocks: {Target(self._model).name} has no module {name!r}, by class or by path"
                )

    def _begin(self, target: Target, made: StagePlans | None = None) -> None:
        self._target = target
        self._reader = Reader(target)
        regime = self._reader.regime(take_apart(target, *self._example).leaves, self._want.training)
        self._served: Served[StagePlans, Staged] = Served(target.name, self._want.how, self._record)
        self._first = self._make(regime, self._example, None, made)
        self._served.add(self._served.variants(regime), self._first)

    def _record(self, variants: Variants[StagePlans], args: tuple[Any, ...], kwargs: dict[str, Any]) -> StagePlans:
        """Captures the model as it is, and puts the nodes into the stages of the first plan."""
        regime = variants.regime
        leaves = take_apart(self._target, args, kwargs).leaves
        if not variants.all and regime.plain is None:
            self._first.check_shapes(leaves)  # before the model is run on them
        if not self._whole:
            raise InputError(
                "the model's parameters are on the devices of its stages, and it would have to run as a whole to see "
                "what it does in this mode: use the mode once before the stages are moved"
            )
        with self._first.explaining(leaves):
            return self._make(regime, (args, kwargs), self._first)

    def _make(
        self, regime: Regime, example: tuple[Any, Any], first: StagePlans | None, made: StagePlans | None = None
    ) -> StagePlans:
        sizes = _sizes(self._want, self._target, example) if first is None else first.found_sizes("B", example)
        like = None if first is None else first.main
        return StagePlans(self._served, self._target, example, sizes, regime, self.folding, self._choose, like, made)

    def _choose(self, captured: Captured, arguments: Arguments, sizes: dict[str, int], folding: Folding) -> Placement:
        """Folds the first plan, profiles its blocks, and partitions them."""
        want = self._want
        self._check_blocks(captured)
        at = {name: sizes[name] for name in captured.symbols}
        self.folding = folding
        folded = folding.blocks(captured.plan, at)
        rows = folded.rows()
        if len(rows) < want.nparts:
            raise SplitError(
                f"{self._target.name} has {_show.plural(len(rows), 'block')} that can be apart, fewer than nparts="
                f"{want.nparts}: ask for fewer parts, or for a greater depth"
            )
        self.profile = self._measure(captured, folded, arguments, at)
        self.blocks = [
            Block(row[0], row[1], row[2], row[3], row[4], cost)
            for row, cost in zip(rows, self.profile.rows, strict=True)
        ]
        since = time.monotonic()
        with progress.task(f"partitioning {self._target.name}"):
            progress.step(f"{want.method}, {len(rows)} blocks")
            try:
                self._partition = folded.partition(
                    want.method, self._costs(), self._edge_bytes(folded), self._options()
                )
            except (CaptureError, SplitError) as error:  # as the library calls what it does not support, or finds
                raise ArgumentError(f"{self._target.name} cannot be partitioned so: {error}") from None
        self.seconds = time.monotonic() - since
        stage_of = self._partition.stage_of()
        of_node = folded.of_node()
        nstages = len(self._partition.device_of())
        log.info("%s: %d stages by %s in %.2f s", self._target.name, nstages, self._partition.method(), self.seconds)
        return Placement(captured.plan, [stage_of[b] for b in of_node], nstages)

    def _check_blocks(self, captured: Captured) -> None:
        """A basic block may depend on its data: one in which a plan would hold for some data alone is run as it is."""
        names = self._want.folding.whole
        if self._target.whole or not names:
            return
        whole = [path for path, m in self._target.modules() if path in names or type(m).__name__ in names]
        for node in captured.plan.nodes():
            _, op, path, _, _, guarded, _ = node
            if guarded and any(path == w or path.startswith(f"{w}.") or not w for w in whole):
                raise CaptureError(f"{op} in {path} depends on the data")

    def _measure(self, captured: Captured, folded: Any, arguments: Arguments, sizes: dict[str, int]) -> Profile:
        want = self._want
        plan, ends = folded.plan()
        names = [row[0] for row in folded.rows()]
        if isinstance(want.profile, Profile):
            if [r.name for r in want.profile] != names:
                raise ArgumentError(f"the profile is not of the blocks of {self._target.name} at this depth")
            return want.profile
        if want.profile == "estimate":
            return profiles.estimate(plan, ends, names, sizes=sizes, training=want.training)
        return profiles.measure(
            captured,
            plan,
            ends,
            names,
            arguments.leaves,
            n_iter=want.n_iter,
            training=want.training,
            title=f"profiling {self._target.name}",
            cache=want.profile,
        )

    def _costs(self) -> list[tuple[float, float, int, int, int]]:
        """Per block: microseconds of forward and backward, bytes held, at work, of parameters."""
        want, out = self._want, []
        for b in self.blocks:
            c = b.cost
            forward, backward = self._weighed(c.forward_time), self._weighed(c.backward_time)
            if not want.profile_ops and not b.is_layer:
                forward = backward = 0.0
            if want.node_weight is not None:
                forward, backward = weight(want.node_weight(b), "node_weight_function", b.name), 0.0
            held, size = round(1e6 * c.held), round(1e6 * c.size)
            work = round(1e6 * max(c.cuda_memory_forward, c.cuda_memory_backward))
            out.append((forward, backward, held, work, size))
        return out

    def _weighed(self, ms: float) -> float:
        """Microseconds for the partitioner. Measured ones are rounded to two digits, so that noise moves no stage."""
        return 1e3 * ms if self._want.profile == "estimate" else float(f"{1e3 * ms:.2g}")

    def _edge_bytes(self, folded: Any) -> list[int] | None:
        """What each value weighs, where the caller says so."""
        weigh = self._want.edge_weight
        if weigh is None:
            return None
        out = []
        for source, targets, _ in folded.values():
            a = self.blocks[source] if source is not None else None
            found = [weight(weigh(a, self.blocks[t]), "edge_weight_function", self.blocks[t].name) for t in targets]
            out.append(round(max(found, default=0.0)))
        return out

    def _options(self) -> dict[str, Any]:
        want = self._want
        return {
            **want.options,
            "speeds": [d.speed for d in want.devices],
            "memory": [d.memory or 0 for d in want.devices],
            "recompute": want.recomputation,
            "training": want.training,
        }

    # ---- running

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        self._need_data()
        args, kwargs, leaves, plain = self.plan.arrange(args, kwargs)
        variants = self._variants(leaves, plain)
        try:
            return self._run(variants, (args, kwargs), leaves)
        except InputError:
            self._reader.refresh()
            again = self._variants(leaves, plain)
            if again is variants:
                for plans in variants.all[:1]:
                    plans.explain(args, kwargs)
                raise
        return self._run(again, (args, kwargs), leaves)

    def _variants(self, leaves: Sequence[torch.Tensor], plain: Hashable = None) -> Variants[StagePlans]:
        """Those of the model as it is now."""
        return self._served.variants(self._reader.regime(leaves, torch.is_grad_enabled(), plain))

    def _run(self, variants: Variants[StagePlans], inputs: tuple[Any, Any], leaves: Sequence[torch.Tensor]) -> Any:
        return self._served.serve(variants, inputs, leaves, _run_staged, self._want.recomputation)

    def see(self, example: Any) -> None:
        """Records what the forward does on data like this, if it takes another branch than on the example and no plan
        has it yet. example: a tuple of inputs, or a dict of keyword inputs. The model is left as it was."""
        self._need_data()
        arguments = take_apart(self._target, *as_inputs(example))
        self._see(*arguments.rebuild(each(arguments.leaves, own_copy)))

    def _see(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        with torch.set_grad_enabled(self._want.training):
            see(self._target, args, kwargs, self)
        self._seen.append((args, kwargs))
        self._variants_seen.clear()

    def _need_data(self) -> None:
        if self._target.shapes:
            raise InputError("the model is on the meta device: its partition can be inspected, but not run")

    def repartition(self, **changes: Any) -> PartitionedPlan:
        """Another partition of the same model: takes what pipe_model takes, for what is to change. The model is not
        captured again; what was measured is used where the blocks stay the same.

        >>> import torch, cleave
        >>> net = torch.nn.Sequential(torch.nn.Linear(4, 8), torch.nn.ReLU(), torch.nn.Linear(8, 2))
        >>> two = cleave.pipe_model(net, example_inputs=torch.randn(3, 4), nparts=2)
        >>> two.repartition(nparts=3, partitioning_method="acyclic").nstages
        3
        """
        strange = [name for name in changes if name not in self._want.given]
        if strange:
            raise ArgumentError(f"repartition has no argument {strange[0]!r}: it takes those of pipe_model")
        asked = [name for name in changes if name in _CAPTURED]
        if asked:
            raise ArgumentError(f"repartition cannot change {', '.join(asked)}: call pipe_model")
        given = {**self._want.given, **changes}
        if "nparts" in changes:
            per_device = ("devices", "memory_limit", "bandwidth", "microbatches", "max_stages")
            given.update({name: None for name in per_device if name not in changes and not scalar(given[name])})
        want = read(given)
        if "profile" not in changes and "n_iter" not in changes and want.folding == self._want.folding:
            want = want._replace(profile=self.profile)
        return PartitionedPlan(self._model, self._example, want, self)

    # ---- stages by themselves

    @property
    def stages(self) -> list[Stage]:
        """The stages as modules, on the model's own parameters."""
        return [self.stage(i) for i in range(self.nstages)]

    def stage(self, i: int, *, device: torch.device | str | None = None) -> Stage:
        """One stage as a module. device: its parameters and buffers are moved there; the model as a whole cannot be run
        any more when they are."""
        if type(i) is not int or not 0 <= i < self.nstages:
            raise ArgumentError(f"there is no stage {i!r}: there are {self.nstages}, from 0 on")
        stage = self._stages.get(i)
        if stage is not None and device is None:
            return stage
        self._need_data()
        self._first.main.check_apart()
        where = None if device is None else _real_device(device)
        moves = where is not None and where != self._home
        if moves and self._whole:
            flags = tuple(m.training for _, m in self._target.modules())
            for mode in (Mode(flags, self._want.training), Mode((False,) * len(flags), False)):
                self._every(mode)  # what can be asked for later has to be seen now
        if stage is None or moves:
            others = list(self._stages.values()) if stage is None else stage.others
            how = (self._want.recomputation, where if moves else None, others)
            stage = Stage(i, self._every(Mode(self._first.regime.training, self._first.regime.grad)), self._every, *how)
        if moves:
            self._whole = False
            stage.to(where)
            stage.share()
        self._stages[i] = stage
        return stage

    def _of_mode(self, mode: Mode) -> StagePlans:
        """The plans for a mode of the model, on the example."""
        if not self._whole and mode in self._by_mode:
            return self._by_mode[mode]
        with mode.of(self._target):
            self._reader.refresh()
            leaves = take_apart(self._target, *self._example).leaves
            with torch.set_grad_enabled(mode.grad):
                variants = self._variants(leaves)
            self._served.serve(variants, self._example, leaves, _itself)
            self._by_mode[mode] = variants.all[0]
        return self._by_mode[mode]

    def _every(self, mode: Mode) -> tuple[StagePlans, ...]:
        """The variants for a mode of the model: of the example, then of the other calls that it was shown, in their
        order."""
        first = self._of_mode(mode)
        if first not in self._variants_seen:
            found = [first]
            for args, kwargs in self._seen if self._whole else ():
                try:
                    with mode.of(self._target):
                        see(self._target, args, kwargs, lambda *a, **k: self._find(found, *a, **k))
                except CleaveError as error:  # of another mode than the one that it was shown for
                    log.info("%s: a call that it was shown cannot run in this mode: %s", self._target.name, error)
            self._variants_seen[first] = tuple(dict.fromkeys(found))
        return self._variants_seen[first]

    def _find(self, found: list[StagePlans], *args: Any, **kwargs: Any) -> None:
        """Adds the plans that serve a call."""
        args, kwargs, leaves, plain = self.plan.arrange(args, kwargs)
        if plain is not None:  # a call of several processes has those of the example
            return
        ran: list[StagePlans] = []

        def run(staged: Staged, leaves: Sequence[torch.Tensor]) -> None:
            ran.append(staged.plans)
            _run_staged(staged, leaves, False)

        self._served.serve(self._variants(leaves), (args, kwargs), leaves, run)
        found.append(ran[-1])

    def unpack_inputs(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Sequence[torch.Tensor]:
        """The tensors of a call, as the first stage takes them."""
        return self.plan.flatten_inputs(args, kwargs)

    def pack_output(self, tensors: Sequence[torch.Tensor], numbers: Sequence[tuple[int, Any]] = ()) -> Any:
        """What the model returns, from the tensors of the last stage's last run and its `numbers`."""
        last = self._stages.get(self.nstages - 1)
        ran = self._first.main if last is None else last._ran
        return ran.returned().pack(tensors, numbers)

    # ---- several processes

    def pipeline_stages(self, **options: Any) -> list[Any]:
        """The stages of this rank, for the schedules of torch.distributed.pipelining. Every rank calls it, with its own
        partition of the same model; where they differ, for each rank has measured for itself, that of rank 0 counts.

        Options: group, device, placement (a rank for each stage; default: its device), timeout, longest_wait, exact
        (docs/pipe.md)."""
        from . import _distributed
        from ._pipeline_plan import PlanStages

        return list(_distributed.pipeline_stages(PlanStages(self), **options))

    def schedule(self, name: str | None = None, *, microbatches: int, **options: Any) -> PipelineRun:
        """The partition with a schedule, ready for steps: `run.step(x, target=y)`, `run.eval(x)`, `run.report()`. Every
        rank calls it.

        name: GPipe, 1F1B, Interleaved1F1B, LoopedBFS, InterleavedZeroBubble, ZBVZeroBubble, Free (for any placement),
        or None for one that fits. Options: loss_fn(output, target), scale_grads, and those of pipeline_stages."""
        from . import _distributed
        from ._pipeline_plan import PlanStages

        return _distributed.schedule(PlanStages(self), name, microbatches=microbatches, **options)

    # ---- looking

    @property
    def nstages(self) -> int:
        return len(self.device_of)

    @property
    def stage_of(self) -> dict[str, int]:
        """The stage of every block, by its name."""
        found = self._partition.stage_of()
        return {b.name: found[i] for i, b in enumerate(self.blocks)}

    @property
    def score(self) -> dict[str, Any]:
        """What the partition costs, as `cleave partition --json` says it (docs/pipe.md)."""
        found: dict[str, Any] = json.loads(self._partition.json(self.seconds))
        return found

    def graph(self) -> dict[str, Any]:
        """The blocks, what they cost and what goes between them, as `cleave partition` reads it (docs/pipe.md)."""
        found: dict[str, Any] = json.loads(self._partition.graph())
        return found

    def table(self) -> str:
        """Stages and balance as a table."""
        text: str = self._partition.table()
        return text

    def source(self, *, explicit_del: bool = False) -> str:
        """The stages as Python code that needs torch alone (docs/pipe.md)."""
        return self._written(explicit_del)[0]

    def _written(self, explicit_del: bool = False) -> tuple[str, Staged]:
        """The code, and the plan that it is of: in train and in eval mode it does what the model does there. Where one
        mode only leaves things out, it is the plan of the other."""
        main, other, regime = self._first.main, None, self._first.regime
        with Mode(regime.training, regime.grad).of(self._target):
            main.check_model()
            flags = (not self._target.training,) * len(regime.training)
        try:
            other = self._of_mode(Mode(flags, regime.grad)).main
        except Exception as error:  # the model may do anything in a mode that was not asked for
            reason = f"it cannot be captured: {first_line(error)}"
        if other is not None:
            try:
                return self._source(main, explicit_del, other=other.captured.plan), main
            except CaptureError as error:
                reason = f"it does something else: {error}"
            with suppress(CaptureError):
                plan = main.captured.plan
                return self._source(other, explicit_del, other=plan, captured=main.ends), other
        log.info("%s: the code is for the mode of the capture alone: %s", self._target.name, reason)
        return self._source(main, explicit_del, only=reason), main

    def _source(self, main: Staged, explicit_del: bool, **modes: Any) -> str:
        want = self._want
        plan, symbols = main.captured.plan, main.captured.symbols
        sizes = self._sizes_at() or {}
        text: str = plan.stages_source(
            main.ends,
            [_torch_device(want.devices[d].name) for d in self.device_of],
            {name: sizes[name] for name in symbols if name in sizes},
            "B" if "B" in symbols else None,
            want.batch_dim or 0,
            self.folding.depth,
            self.folding.whole,
            not_saved(self._target),
            explicit_del,
            call_texts(plan.calls(0, plan.node_count())),
            checks=main.captured.modules,
            **modes,
        )
        return text

    def state_dict(self) -> dict[str, torch.Tensor]:
        """The model's tensors by name, with those that its own state_dict leaves out and generated code needs: buffers
        that are not saved, tensors in plain attributes, constants (docs/pipe.md)."""
        main = self._first.main
        with suppress(CleaveError):  # code that cannot be written needs nothing
            main = self._written()[1]
        out = dict(self._model.state_dict()) if isinstance(self._model, nn.Module) else {}
        for i in range(self.nstages):
            places, _ = main.captured.plan.places(main.ends[i - 1] if i else 0, main.ends[i])
            for place, name, data in places:
                holder, key = main.captured.state[name] if name is not None else ({place: data}, place)
                out.setdefault(name or place, holder[key])
        return out

    def write_source(self, path: str | os.PathLike[str], *, explicit_del: bool = False) -> Path:
        """Writes the stages as a Python file, whole or not at all, and says where it is."""
        out = Path(path)
        out = out if out.suffix == ".py" else out.with_name(out.name + ".py")
        text = self.source(explicit_del=explicit_del)
        part = out.with_name(f".{out.name}.{os.getpid()}")
        try:
            part.write_text(text, encoding="utf-8")
            part.replace(out)
        finally:
            part.unlink(missing_ok=True)
        return out

    def _sizes_at(self) -> dict[str, int] | None:
        """The example's sizes, of what the plan has as symbols."""
        sized, plan = self._first.sized, self._first.main.captured.plan
        if sized is None:
            return None
        return {name: n for name, n in sized.named(sized.example).items() if name in plan.symbols()}

    def save(
        self,
        path: str | os.PathLike[str],
        *,
        weights: bool = True,
        prove: str = "auto",
        metadata: Mapping[str, str] | None = None,
    ) -> None:
        """Writes the model, in the order of its stages, as one .clv file, which C programs and cleave.load run whole.

        For inference: what the model does in eval mode, without gradients. Of the plan in the file, stage k is the
        nodes from the k-th number of its note "stages" on; "devices" has the device of each. Other arguments are those
        of Plan.save.

        >>> import torch, cleave
        >>> net = torch.nn.Sequential(torch.nn.Linear(4, 8), torch.nn.ReLU(), torch.nn.Linear(8, 2)).eval()
        >>> x = torch.randn(3, 4)
        >>> cleave.pipe_model(net, example_inputs=x, nparts=2, profile="estimate").save("net.clv")
        >>> torch.equal(cleave.load("net.clv")(x), net(x))
        True
        """
        self._need_data()
        mode = Mode((False,) * len(list(self._target.modules())), False)
        with mode.of(self._target):
            self._save(path, weights, prove, metadata, mode)

    def _save(self, path: Any, weights: bool, prove: str, metadata: Mapping[str, str] | None, mode: Mode) -> None:
        plans = self._of_mode(mode)
        entries = for_file(self._served, plans.siblings, prove if self._whole else None)
        firsts = [0, *plans.main.ends[:-1]]
        notes = {"stages": " ".join(map(str, firsts)), "devices": " ".join(map(str, self.device_of))}
        head = _save.Head(self._target, _save.batch_name(plans.sized), weights=fingerprint(self._target))
        _save.save(path, head, entries, weights=weights, metadata={**notes, **(metadata or {})})

    def report(self, path: str | os.PathLike[str] = "report.html", *, title: str | None = None) -> Path:
        """Writes the plan with its stages as one HTML file to look at (docs/report.md), and says where it is."""
        first = self._first
        placement = first.main.placement
        stages = (placement.stage_of, self._partition, [d.name for d in self._want.devices])
        return _report.write(placement.plan, path, title, self._sizes_at(), _report.Link(0.0, 0.0, 0.0), None, stages)

    def __reduce_ex__(self, protocol: Any) -> Any:
        raise TypeError(
            "a PartitionedPlan is bound to the model of its process and cannot be copied or pickled: keep its profile, "
            "and call pipe_model where it is needed"
        )

    def _shown(self) -> tuple[str, _show.Facts]:
        score = self.score
        head = f"cleave.PartitionedPlan of {self._target.name}: {_show.plural(self.nstages, 'stage')}"
        slack = score["bottleneck_us"] / score["lower_bound_us"] if score["lower_bound_us"] else 1.0
        return head, [
            ("method", self._partition.method()),
            ("devices", ", ".join(str(d) for d in self.device_of)),
            ("slowest", f"{score['bottleneck_us'] / 1e3:.3f} ms, {slack:.3f} of the lower bound"),
            ("crossing", _native.text_bytes(round(score["cut_bytes"]))),
            *dict(_show.plan_facts(self.plan._main.plan, self._first.sized)).items(),
        ]


@renamed(
    model_args="example_inputs",
    model_kwargs="example_kwargs",
    output_file="write_source(path) of the result",
    generate_explicit_del="write_source(path, explicit_del=True) of the result",
)
def pipe_model(
    model: Callable[..., Any],
    example_inputs: Any = (),
    example_kwargs: dict[str, Any] | None = None,
    *,
    nparts: int = 4,
    batch_dim: int | None = 0,
    n_iter: int = 10,
    depth: int = 1000,
    basic_blocks: BasicBlocks | None = None,
    node_weight_function: Callable[[Block], float] | None = None,
    edge_weight_function: Callable[[Block | None, Block], float] | None = None,
    partitioning_method: str = "auto",
    recomputation: bool = False,
    profile_ops: bool = True,
    profile: Profile | str | os.PathLike[str] | None = None,
    devices: Sequence[Device | str | int] | None = None,
    memory_limit: int | Sequence[int] | None = None,
    tie_policy: str = "replicate",
    training: bool | None = None,
    objective: str = "simple",
    schedule: str = "1f1b",
    microbatches: int | None = None,
    bandwidth: float | Sequence[Sequence[float]] | None = None,
    latency: float = 0.0,
    param_copies: float | None = None,
    max_stages: int | None = None,
    seed: int = 0,
    seconds: float = 0.0,
    dynamic_batch: tuple[int, int] | None = None,
    dynamic_dims: DynamicDims | None = None,
    dynamic_ranges: Mapping[str, tuple[int, int]] | None = None,
    variants: Sequence[Any] = (),
    on_guard: str = "record",
    max_plans: int | None = None,
) -> PartitionedPlan:
    """Captures a model, measures its blocks, and cuts it into pipeline stages that are in balance.

    example_inputs, example_kwargs: a call with the sizes of one micro-batch. batch_dim is the dimension of inputs
    that micro-batches are cut along (None: there is none, only the example's sizes run); batches of 1 to 64, or to the
    example's, can be run unless dynamic_batch gives another range. dynamic_dims and dynamic_ranges name more sizes that
    may change, as in SplitSpec.

    depth says how far the hierarchy of modules is opened; modules whose class (or its name, or a path) is in
    basic_blocks are not opened: they are profiled and placed as a whole, and may do what no plan can hold (Python that
    depends on the data), since they are then run as they are. profile_ops=False counts layers alone.

    nparts counts devices. acyclic, multilevel and pipedream give each one stage; metis, mpipe, exact and auto may give
    a device several that are not neighbours. auto tries what fits and keeps the best by its objective: "simple" is one
    stage a device, and several only where the schedule's timeline predicts 5 % more micro-batches per second with them;
    "throughput" is the most per second; "bottleneck" the smallest time of the slowest device for one micro-batch, with
    the communication that its work does not hide (bandwidth in bytes per second, or a matrix; latency in seconds),
    within memory_limit (bytes, for each device or one by one). devices are names, or Device(name, speed, memory).
    schedule ("gpipe", "1f1b", "interleaved") and microbatches say how many micro-batches are in flight, which
    counts for memory; param_copies is the memory per byte of parameters (by default 2 in training, with gradients;
    4 with Adam's two moments).

    profile: None measures (n_iter runs of each block); a file keeps what was measured and is used where it fits, so
    that the same call gives the same stages again; a Profile is used as it is; "estimate" counts operations and bytes
    and runs nothing. node_weight_function(block) and edge_weight_function(block, block) replace times and bytes.

    tie_policy: parameters that several stages use are in each of them, gradients being added up ("replicate"), or
    keep their users in one stage ("stage"). recomputation=True runs a stage's forward again in the backward.

    variants: further examples, each a tuple of inputs or a dict of keyword inputs, on which the forward takes another
    branch because of its data (a mask that is not all ones). on_guard: "record" records a missing branch when a call
    needs it, "raise" raises the GuardError."""
    want = read(locals())
    args, kwargs = as_call(example_inputs, example_kwargs)
    with progress.task(f"partitioning {Target(model).name}"):
        partitioned = PartitionedPlan(model, (args, kwargs), want)
        see_all(variants, partitioned.see)
    return partitioned


def sync_tied_gradients(stages: Sequence[Any]) -> None:
    """Sums the gradients of parameters that several stages hold (tie_policy="replicate") over the ranks. What
    `PartitionedPlan.schedule` gives does it by itself; with a schedule of your own around `pipeline_stages`, call it on
    every rank after each step, before the optimizer."""
    from . import _distributed

    _distributed.sync_tied_gradients(stages)


def _real_device(given: Any) -> torch.device:
    """With its number where it has one: "cuda" is the current one."""
    try:
        return torch.empty(0, device=given).device
    except (RuntimeError, TypeError, AssertionError) as error:
        raise ArgumentError(f"device={given!r} cannot be used: {error}") from None


def _torch_device(name: str) -> str | None:
    """The name as torch knows it; None: it is a name alone."""
    try:
        return str(torch.device(name))
    except RuntimeError:
        return None


def _on_meta(target: Target, example: tuple[Any, Any]) -> bool:
    """The model, or what it is called with, has shapes and no data."""
    leaves = _tree.flatten(example)[1]
    return any(t.is_meta for t in (*leaves, *(m.tensor for m in target.tensors())) if isinstance(t, torch.Tensor))


def _sizes(want: Wanted, target: Target, example: tuple[Any, Any]) -> SizeSpec:
    """The sizes that may change: the batch, by default from one row to MOST_BATCH, and what the caller names."""
    more = want.given["dynamic_dims"], want.given["dynamic_ranges"]
    if want.batch_dim is None or target.shapes:
        return SizeSpec(None, "B", *more)
    arguments = take_apart(target, *example)
    dim = want.batch_dim
    rows = [t.shape[dim] for t in arguments.leaves if not t.is_nested and t.dim() > dim]
    if not rows and dim:
        raise ArgumentError(f"batch_dim={dim}: no input has that many dimensions")
    if not rows:
        return SizeSpec(None, "B", *more)
    batch = want.given["dynamic_batch"] or (1, max(MOST_BATCH, rows[0]))
    if dim == 0:
        return SizeSpec(batch, "B", *more)
    dims: dict[str, Any] = {name: dict(d) for name, d in (more[0] or {}).items()}
    for name, t in zip(arguments.names, arguments.leaves, strict=True):
        if not t.is_nested and t.dim() > dim and t.shape[dim] == rows[0]:
            dims.setdefault(name, {}).setdefault(dim, "B")
    return SizeSpec(None, "B", dims, {"B": batch, **(more[1] or {})})

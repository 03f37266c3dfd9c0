"""A PartitionedPlan as the pipeline needs it: its stages as modules, its inputs and outputs, what it predicts.

Every rank has captured the whole model, so every rank can say which plan serves which sizes and modes; a mode or a size
that is met for the first time is captured by every rank for itself."""

from __future__ import annotations

import hashlib
import json
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from torch import nn

from ._stages import Mode, Stage, Staged, StagePlans, put_numbers
from .errors import PipelineError
from .plan import finish
from .profile import Profile

if TYPE_CHECKING:
    from .pipe import PartitionedPlan


class PlanStages:
    """The stages of a partitioned plan."""

    def __init__(self, partitioned: PartitionedPlan) -> None:
        self.source = partitioned
        self.device_of = partitioned.device_of
        self.batch_dim = partitioned._want.batch_dim or 0
        self._first: StagePlans = partitioned._first
        self._training = getattr(partitioned._model, "training", False)
        self._by_mode: dict[Mode, StagePlans] = {Mode(self._training, self._first.regime.grad): self._first}
        self._served: Staged = self._first.main
        placed = json.dumps([self._first.main.placement.stage_of, list(self.device_of)])
        digest = hashlib.blake2b(placed.encode(), digest_size=8).hexdigest()
        self.signature = f"{partitioned.signature}, stages {digest}"

    # ---- agreeing -------------------------------------------------------------------------------------------------

    def profile_text(self) -> str:
        """What was measured, for ranks that measured something else."""
        with tempfile.TemporaryDirectory() as folder:
            path = Path(folder) / "profile.json"
            self.source.profile.save(path)
            return path.read_text(encoding="utf-8")

    def like(self, profile: str) -> PlanStages:
        """The partition that this profile gives."""
        with tempfile.TemporaryDirectory() as folder:
            path = Path(folder) / "profile.json"
            path.write_text(profile, encoding="utf-8")
            return PlanStages(self.source.repartition(profile=Profile.load(path)))

    @property
    def tied(self) -> list[list[tuple[int, str]]]:
        """Parameters that several stages use, under the names that each has for them."""
        found: dict[int, list[tuple[int, str]]] = {}
        main = self._first.main
        for i, program in enumerate(main.programs):
            for name, kind, _, _ in program.native.state():
                if kind == "param":
                    holder, key = main.captured.state[name]
                    found.setdefault(id(holder[key]), []).append((i, name))
        return [copies for copies in found.values() if len(copies) > 1]

    @property
    def predicted(self) -> list[tuple[float, float]]:
        """Milliseconds of forward and backward, for one micro-batch of the example's size."""
        return [(s["fwd_us"] / 1e3, s["bwd_us"] / 1e3) for s in self.source._partition.stages()]

    def actions(self, microbatches: int) -> list[list[tuple[int, str, int]]]:
        """What each device does, in order: (stage, "F" or "B", micro-batch)."""
        devices, *_ = self.source._partition.timeline("1f1b", microbatches, True)
        return [[(stage, kind, m) for stage, kind, m, _, _ in actions] for actions in devices]

    # ---- running --------------------------------------------------------------------------------------------------

    def stage(self, i: int, *, device: torch.device) -> Stage:
        modes = {mode: plans.served() for mode, plans in self._by_mode.items()}
        module = Stage(i, len(self.device_of), modes, self.source._want.recomputation)
        wrong = next((t for t in (*module.parameters(), *module.buffers()) if t.device.type != device.type), None)
        if wrong is not None:
            raise PipelineError(
                f"the model was captured on {wrong.device} and stage {i} is to run on {device}: move the model there "
                "before pipe_model"
            )
        return module

    def unpack_inputs(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Sequence[torch.Tensor]:
        return self.source.plan.flatten_inputs(args, kwargs)

    def sizes_of(self, leaves: Sequence[torch.Tensor]) -> dict[str, int]:
        """The sizes that all stages have to know of a micro-batch."""
        self._first.check_shapes(leaves)
        return self._first.sizes_of(leaves)

    def prepare(self, module: Stage, sizes: Mapping[str, int]) -> None:
        """Makes a stage ready for a micro-batch: the plan that serves these sizes in this mode comes first."""
        mode = Mode(module.training, torch.is_grad_enabled())
        plans = self._plans(mode)
        staged = self._serving(plans, sizes)
        runs = module._runs.setdefault(mode, [])
        at = next((k for k, (known, _) in enumerate(runs) if known is staged), None)
        if at is None:
            again = self.source._want.recomputation and mode.grad
            runs.insert(0, (staged, module._engine(staged, module._adopt([staged]), again)))
        elif at > 0:
            runs.insert(0, runs.pop(at))
        module.sizes = dict(sizes) or None
        self._served = staged

    def _plans(self, mode: Mode) -> StagePlans:
        if mode not in self._by_mode:
            model, source = self.source._model, self.source
            args, kwargs = source._example
            leaves = source.plan.flatten_inputs(args, kwargs)
            with torch.set_grad_enabled(mode.grad), _training(model, mode.training, self._training):
                self._by_mode[mode] = source._plans(source._example, leaves, mode.grad)
        return self._by_mode[mode]

    def _serving(self, plans: StagePlans, sizes: Mapping[str, int]) -> Staged:
        sized = plans.sized
        if sized is None:
            return plans.main
        point = tuple(sizes[name] for name in sized.names)
        if point not in sized.served or id(sized.served[point]) not in plans.by_plan:
            plans.see(sizes)
        return plans.by_plan[id(sized.served[point])]

    def pack_output(self, tensors: Sequence[torch.Tensor], numbers: Sequence[tuple[int, Any]] = ()) -> Any:
        staged = self._served
        if staged.rebinds or staged.captured.stores:
            raise PipelineError(
                "the model's forward replaces tensors of its modules by new ones, which no other rank would see; write "
                "them in place"
            )
        return finish(staged.captured, (), put_numbers(tensors, numbers))


class _training:
    """The model in train or eval mode for a while; as it was captured, where that is the mode."""

    def __init__(self, model: Any, training: bool, captured: bool) -> None:
        self._model = model if isinstance(model, nn.Module) and training != captured else None
        self._mode = training

    def __enter__(self) -> None:
        if self._model is not None:
            self._flags = [(m, m.training) for m in self._model.modules()]
            self._model.train(self._mode)

    def __exit__(self, *_: object) -> None:
        if self._model is not None:
            for m, flag in self._flags:
                m.training = flag

"""A PartitionedPlan as the pipeline needs it: what ranks have to agree about, which parameters they share, what it
predicts."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import torch

from ._stages import Before, Choice, Mode, Returned, Stage
from .errors import GuardError
from .profile import Profile

if TYPE_CHECKING:
    from .pipe import PartitionedPlan


class PlanStages:
    """The stages of a partitioned plan."""

    def __init__(self, partitioned: PartitionedPlan) -> None:
        self.source = partitioned
        self.device_of = partitioned.device_of
        self.batch_dim = partitioned._want.batch_dim or 0
        self._first = partitioned._first
        self._made: list[Stage] = []
        regime = self._first.regime
        self._variants = partitioned._every(Mode(regime.training, regime.grad))
        placed = json.dumps([self._first.main.placement.stage_of, list(self.device_of)])
        digest = hashlib.blake2b(placed.encode(), digest_size=8).hexdigest()
        self.signature = f"{partitioned.signature}, stages {digest}"
        more = [v.main.signature for v in self._variants[1:]]
        self.signature += f", variants {' '.join(more)}" if more else ""

    # ---- agreeing -------------------------------------------------------------------------------------------------

    def profile_text(self) -> str:
        """What was measured, for ranks that measured something else."""
        return json.dumps(self.source.profile._parts())

    def like(self, profile: str) -> PlanStages:
        """The partition that this profile gives."""
        return PlanStages(self.source.repartition(profile=Profile._of(*json.loads(profile))))

    @property
    def tied(self) -> list[list[tuple[int, str]]]:
        """Parameters that several stages use, under the names that each has for them."""
        found: dict[int, dict[tuple[int, str], None]] = {}
        for staged in (v.main for v in self._variants):
            for i, program in enumerate(staged.programs):
                for name, kind, _, _ in program.native.state():
                    if kind == "param":
                        holder, key = staged.captured.state[name]
                        found.setdefault(id(holder[key]), {})[i, name] = None
        return [sorted(copies) for copies in found.values() if len(copies) > 1]

    @property
    def predicted(self) -> list[tuple[float, float]]:
        """Milliseconds of forward and backward, for one micro-batch of the example's size."""
        return [(s["fwd_us"] / 1e3, s["bwd_us"] / 1e3) for s in self.source.score["stages"]]

    def actions(self, microbatches: int) -> list[list[tuple[int, str, int]]]:
        """What each device does, in order: (stage, "F" or "B", micro-batch)."""
        devices, *_ = self.source._partition.timeline("1f1b", microbatches, True)
        return [[(stage, kind, m) for stage, kind, m, _, _ in actions] for actions in devices]

    # ---- running --------------------------------------------------------------------------------------------------

    def stage(self, i: int, *, device: torch.device) -> Stage:
        stage = self.source.stage(i, device=device)
        stage.others = list(self._made)  # whatever other stages there are in this process: these are trained together
        self._made.append(stage)
        return stage

    def unpack_inputs(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Sequence[torch.Tensor]:
        return self.source.unpack_inputs(args, kwargs)

    def sizes_of(self, leaves: Sequence[torch.Tensor]) -> dict[str, int]:
        """The sizes that all stages have to know of a micro-batch."""
        self._first.check_shapes(leaves)
        return self._first.sizes_of(leaves)

    def choose(self, module: Stage, leaves: Sequence[torch.Tensor]) -> Choice:
        """Which of the variants serves a micro-batch, as the first stage can tell before anything runs."""
        module.sizes = self.sizes_of(leaves) or None
        try:
            return module._choice(leaves)
        except GuardError as error:
            raise GuardError(
                f"{error}; no plan of this pipeline holds for it: give pipe_model such data as one of its variants"
            ) from None

    def prepare(self, module: Stage, sizes: Mapping[str, int], variant: int) -> None:
        """Tells a stage of the micro-batch that comes next."""
        module.sizes, module._variant = dict(sizes) or None, variant

    def now(self, module: Stage) -> Before:
        """What a step of a stage changes, as it is now."""
        return module._now()

    def returned(self, module: Stage) -> Returned:
        """What the tensors of the last stage's last run are in the model's output."""
        return module._ran.returned()

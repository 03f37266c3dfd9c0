"""What crosses from the prefix to the suffix."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import torch


@dataclass(frozen=True)
class BoundaryPayload:
    """What crosses from prefix to suffix: tensors by their label in the plan that graph_signature names."""

    split_id: str
    graph_signature: str
    batch_size: int | None
    tensors: dict[str, torch.Tensor]
    schema: dict[str, Any] = field(default_factory=dict)
    requires_grad: dict[str, bool] = field(default_factory=dict)
    weight_version: int = 0
    passthrough_inputs: tuple[str, ...] = ()
    supports_prefix_backward: bool = False
    values: Any = None
    sizes: dict[str, int] = field(default_factory=dict)
    record: Any = field(default=None, repr=False, compare=False)

    @property
    def nbytes(self) -> int:
        """Bytes of all tensors that cross."""
        return sum(t.numel() * t.element_size() for t in self.tensors.values())

"""Cleave cuts PyTorch models into pieces and runs the pieces from C, bit for bit the same.

>>> import torch, cleave
>>> net = torch.nn.Linear(4, 2)
>>> plan = cleave.capture(net, torch.randn(3, 4))
>>> len(plan.nodes)
1
"""

import os
from pathlib import Path

import torch

from . import _native
from .errors import (
    ArgumentError,
    CaptureError,
    CleaveError,
    GuardError,
    InputError,
    LayoutError,
    PayloadError,
    PlanError,
    ReplayError,
    SplitError,
)
from .payload import BoundaryPayload, CompressionError, TensorSchema, pack, unpack
from .plan import Node, Plan, capture
from .spec import SplitCandidate, SplitSpec, TraceBatchMode
from .split import RuntimeCacheKey, SplitRuntime, prepare_split

__version__: str = _native.version

# Source lines in plans are the user's: frames of torch and of this package are passed over.
_native.set_skipped_prefixes(tuple(str(Path(f).parent) + os.sep for f in (torch.__file__, __file__)))

__all__ = [
    "ArgumentError",
    "BoundaryPayload",
    "CaptureError",
    "CleaveError",
    "CompressionError",
    "GuardError",
    "InputError",
    "LayoutError",
    "Node",
    "PayloadError",
    "Plan",
    "PlanError",
    "ReplayError",
    "RuntimeCacheKey",
    "SplitCandidate",
    "SplitError",
    "SplitRuntime",
    "SplitSpec",
    "TensorSchema",
    "TraceBatchMode",
    "capture",
    "pack",
    "prepare_split",
    "unpack",
]

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

from . import (
    _log,
    _native,
    _openvino,
    artifact,
    backends,
    benchmark,
    candidates,
    compat,
    errors,
    payload,
    profile,
    progress,
    remote,
    spec,
    tracing,
    training,
    validation,
    visualization,
)
from ._follow import Follower, follow
from ._torchscript import allow_compiled
from ._wanted import Device
from .artifact import LoadedModel, load, pack_weights
from .backends import register_backend
from .errors import (
    ArgumentError,
    ArtifactError,
    CaptureError,
    CleaveError,
    CleaveWarning,
    CrashError,
    GuardError,
    InputError,
    LayoutError,
    LimitError,
    PayloadError,
    PipelineError,
    PlanError,
    RemoteError,
    ReplayError,
    SignatureError,
    SplitError,
    TraceError,
    ValidationError,
)
from .payload import BoundaryPayload, pack, unpack
from .pipe import PartitionedPlan, pipe_model, sync_tied_gradients
from .plan import Plan, capture
from .profile import Profile
from .progress import set_progress
from .remote import connect
from .signing import new_key, sign, verify
from .spec import SplitSpec
from .split import SplitRuntime, prepare_split
from .tracing import TracedModule, trace
from .training import Trainer, load_trainer
from .validation import calibrate, validate_dynamic_batches, validate_split

__version__: str = _native.version

_log.set_up(os.environ.get("CLEAVE_LOG"))
_openvino.tell()

# Source lines in plans are the user's: frames of torch and of this package are passed over.
_native.set_skipped_prefixes(tuple(str(Path(f).parent) + os.sep for f in (torch.__file__, __file__)))

__all__ = [
    # capture and run
    "Plan",
    "capture",
    "LoadedModel",
    "load",
    # split
    "BoundaryPayload",
    "SplitRuntime",
    "SplitSpec",
    "Follower",
    "Trainer",
    "calibrate",
    "connect",
    "follow",
    "load_trainer",
    "pack",
    "prepare_split",
    "unpack",
    "validate_dynamic_batches",
    "validate_split",
    # pipe
    "Device",
    "PartitionedPlan",
    "Profile",
    "pipe_model",
    "sync_tied_gradients",
    # trace
    "TracedModule",
    "allow_compiled",
    "register_backend",
    "trace",
    # files that are packed or signed, and messages
    "new_key",
    "pack_weights",
    "set_progress",
    "sign",
    "verify",
    # what can go wrong
    "ArgumentError",
    "ArtifactError",
    "CaptureError",
    "CleaveError",
    "CleaveWarning",
    "CrashError",
    "GuardError",
    "InputError",
    "LayoutError",
    "LimitError",
    "PayloadError",
    "PipelineError",
    "PlanError",
    "RemoteError",
    "ReplayError",
    "SignatureError",
    "SplitError",
    "TraceError",
    "ValidationError",
    # everything else
    "artifact",
    "backends",
    "benchmark",
    "candidates",
    "compat",
    "errors",
    "payload",
    "profile",
    "progress",
    "remote",
    "spec",
    "tracing",
    "training",
    "validation",
    "visualization",
]

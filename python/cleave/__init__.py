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

from . import _log, _native, _openvino, benchmark, progress, visualization
from ._structure import Record
from ._torchscript import allow_compiled
from ._wanted import Device
from .artifact import LoadedModel, Port, SegmentState, load
from .backends import SegmentJob, register_backend
from .candidates import CandidateTable
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
    ReplayError,
    SignatureError,
    SplitError,
    TraceError,
    ValidationError,
)
from .payload import BoundaryPayload, CompressionError, TensorSchema, pack, unpack
from .pipe import Block, PartitionedPlan, pipe_model, sync_tied_gradients
from .plan import Node, Plan, capture
from .profile import Profile
from .progress import set_progress
from .replay import ReplayBoundary, SplitReplayRuntime, prepare_split_replay
from .signing import new_key, sign, verify
from .spec import SplitCandidate, SplitLatency, SplitSpec, TraceBatchMode
from .split import RuntimeCacheKey, SplitRuntime, prepare_split
from .tracing import Coverage, Graph, GraphNode, Report, Segment, TracedModule, trace
from .validation import (
    CompressionReport,
    DynamicBatchReport,
    assert_dynamic_batch_reuse,
    assert_forward_equivalent,
    assert_gradient_equivalent,
    validate_dynamic_batches,
    validate_split,
)

__version__: str = _native.version

_log.set_up(os.environ.get("CLEAVE_LOG"))
_openvino.tell()

TracePlan, TraceNode = Plan, Node  # as other split runtimes call them

# Source lines in plans are the user's: frames of torch and of this package are passed over.
_native.set_skipped_prefixes(tuple(str(Path(f).parent) + os.sep for f in (torch.__file__, __file__)))

__all__ = [
    "trace",
    "TracedModule",
    "TraceError",
    "Segment",
    "Report",
    "GraphNode",
    "Graph",
    "Coverage",
    "ArgumentError",
    "ArtifactError",
    "Block",
    "BoundaryPayload",
    "CandidateTable",
    "CaptureError",
    "CrashError",
    "CleaveError",
    "CleaveWarning",
    "CompressionError",
    "CompressionReport",
    "Device",
    "DynamicBatchReport",
    "GuardError",
    "InputError",
    "LayoutError",
    "LimitError",
    "LoadedModel",
    "Node",
    "PartitionedPlan",
    "PayloadError",
    "PipelineError",
    "Plan",
    "PlanError",
    "Port",
    "Profile",
    "Record",
    "ReplayError",
    "ReplayBoundary",
    "RuntimeCacheKey",
    "SegmentJob",
    "SegmentState",
    "SignatureError",
    "SplitCandidate",
    "SplitLatency",
    "SplitError",
    "SplitReplayRuntime",
    "SplitRuntime",
    "SplitSpec",
    "TensorSchema",
    "TraceBatchMode",
    "TraceNode",
    "TracePlan",
    "ValidationError",
    "allow_compiled",
    "assert_dynamic_batch_reuse",
    "assert_forward_equivalent",
    "assert_gradient_equivalent",
    "benchmark",
    "capture",
    "load",
    "new_key",
    "pack",
    "pipe_model",
    "prepare_split",
    "prepare_split_replay",
    "progress",
    "register_backend",
    "set_progress",
    "sign",
    "sync_tied_gradients",
    "unpack",
    "validate_dynamic_batches",
    "validate_split",
    "verify",
    "visualization",
]

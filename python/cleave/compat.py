"""Names that users of other libraries know, forwarded to Cleave's own: a script needs another import and nothing else.

| written for | import |
|---|---|
| `ariadne`, `ariadne.visualization`, `ariadne.benchmark`, `ariadne.validation`, … | `from cleave.compat import …` |
| `torch_neuron` | `import cleave.compat as torch_neuron` |
| FTPipe's `autopipe` | `from cleave.compat import pipe_model` |

Nothing is decided here; docs/split.md, docs/trace.md and docs/pipe.md say what each name becomes.

>>> import torch
>>> from cleave.compat import SplitSpec, prepare_split_replay
>>> net = torch.nn.Sequential(torch.nn.Linear(4, 8), torch.nn.ReLU(), torch.nn.Linear(8, 2)).eval()
>>> x = torch.randn(3, 4)
>>> spec = SplitSpec(boundary="50%")
>>> replay = prepare_split_replay(net, example_inputs=(x,), split=spec, mode="generated_eager")
>>> replay.warmup(x)
>>> torch.equal(replay.run_suffix(replay.run_prefix(x)), net(x))
True
"""

from __future__ import annotations

import functools
import os
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

import torch

from . import _native, _show, _tree, pipe, plan, progress, split, tracing, validation, visualization
from . import spec as specs
from ._arguments import read_texts
from ._capture import take_apart
from ._log import warn
from .benchmark import (
    BenchmarkResult,
    benchmark_replay_optimization,
    benchmark_runtime,
    benchmark_split_modes,
    benchmark_split_retain_optimization,
)
from .errors import ArgumentError, CaptureError, InputError, SplitError
from .payload import BoundaryPayload, TensorSchema, register_serializer
from .plan import as_call
from .spec import SplitSpec, TraceBatchMode
from .split import RuntimeCacheKey
from .visualization import Drawable, Subject, export_split_candidates_table

# ---- Ariadne: plans and candidates


class TraceNode(NamedTuple):
    """An operator of a plan."""

    name: str
    op: str
    target: str
    parents: tuple[str, ...]  # nodes whose results it reads
    module_path: str
    outputs: tuple[tracing.TensorInfo, ...]


class TracePlan(Drawable):
    """A captured plan; `plan` is the cleave.Plan."""

    def __init__(self, captured: plan.Plan) -> None:
        self.plan = captured
        subject = captured._subject()
        self.graph_signature = subject.signature
        self.root_module = captured._target.call
        nodes = tracing.graph_nodes(subject.plan)
        maker = {t.label: n.label for n in nodes for t in n.outputs}
        self.nodes = tuple(
            TraceNode(
                n.label,
                n.op,
                n.op.partition("::")[2],
                tuple(dict.fromkeys(maker[t.label] for t in n.inputs if t.label in maker)),
                n.module_path,
                n.outputs,
            )
            for n in nodes
        )
        self._tensors = {t.label: t for n in nodes for t in (*n.inputs, *n.outputs)}
        self.input_node_names = tuple(label for label in self._tensors if label[0] == "%" and label not in maker)

    @property
    def node_names(self) -> tuple[str, ...]:
        """The names of all nodes, in order."""
        return tuple(n.name for n in self.nodes)

    def index_of(self, name: str) -> int:
        """Where a node is. KeyError: there is none of this name."""
        try:
            return self.node_names.index(name)
        except ValueError:
            raise KeyError(f"the plan has no node {name!r}") from None

    def get_node(self, name: str) -> TraceNode:
        """A node by its name."""
        return self.nodes[self.index_of(name)]

    def _subject(self) -> Subject:
        return self.plan._subject()

    def _candidate(self, found: specs.SplitCandidate) -> SplitCandidate:
        names, at = self.node_names, found.position + 1
        through = set(found.boundary_labels) & set(self.input_node_names)
        schema = {
            t.label: TensorSchema(t.dtype, t.shape) for t in map(self._tensors.__getitem__, found.boundary_labels)
        }
        return SplitCandidate(
            f"{self.graph_signature}-{found.position}",
            found.name,
            found.boundary_labels,
            names[:at],
            names[at:],
            schema,
            tuple(label for label in self.input_node_names if label in through),
            found,
            found.trainable_suffix,
            found.reason,
            found.position,
        )


class SplitCandidate(NamedTuple):
    """A place where a plan can be cut."""

    split_id: str
    boundary_after: str
    boundary_nodes: tuple[str, ...]  # labels of the tensors that cross
    prefix_nodes: tuple[str, ...]
    suffix_nodes: tuple[str, ...]
    boundary_schema: dict[str, TensorSchema]
    passthrough_inputs: tuple[str, ...]
    cost: specs.SplitCandidate
    trainable_suffix: bool
    rejection_reason: str | None
    position: int


def trace_model(
    model: Callable[..., Any],
    *,
    example_inputs: Any,
    batch_symbol: str = "B",
    dynamic_batch: tuple[int, int] | None = None,
    trace_batch_mode: TraceBatchMode = "batch_1",
) -> TracePlan:
    """cleave.capture, without gradients."""
    if batch_symbol != "B":
        raise ArgumentError(f'the batch of a plan is called "B", not {batch_symbol!r}; SplitSpec takes other names')
    SplitSpec(dynamic_batch=dynamic_batch, trace_batch_mode=trace_batch_mode)  # checks both
    with torch.no_grad():
        return TracePlan(plan.capture(model, example_inputs, dynamic_batch=dynamic_batch))


def enumerate_frontier_splits(plan: TracePlan) -> tuple[SplitCandidate, ...]:
    """Every place where a plan can be cut, and those where it cannot, with the reason."""
    subject = plan._subject()
    return tuple(plan._candidate(specs.SplitCandidate(*c)) for c in subject.plan.frontiers(subject.sizes))


def select_split(
    plan: TracePlan, *, split: SplitSpec | str, objective: Mapping[str, Any] | None = None
) -> SplitCandidate:
    """The candidate that prepare_split would cut at."""
    from ._objective import read

    wanted = SplitSpec(boundary=split) if isinstance(split, str) else split
    subject, goal = plan._subject(), read(None if objective is None else dict(objective), wanted.trainable)
    which: int = subject.plan.choose(wanted.boundary, goal.fields, subject.sizes)
    found = enumerate_frontier_splits(plan)
    return found[which]


# ---- Ariadne: runtimes


class Segment:
    """One half of a split, to be called with its tensors: the model's inputs, or those that cross."""

    def __init__(self, runtime: split.SplitRuntime, half: str, training: bool = False) -> None:
        self._runtime, self._half, self._training = runtime, half, training

    def __call__(self, *tensors: Any, batch_size: int | None = None) -> Any:
        runtime = self._runtime
        if self._half == "prefix":
            run = runtime.run_training_prefix if self._training else runtime.run_prefix
            return tuple(run(*tensors).tensors.values())
        cut, symbol = runtime.main_cut, runtime.split_spec.batch_symbol
        boundary = BoundaryPayload(
            split_id=runtime.split_id,
            graph_signature=cut.signature,
            batch_size=batch_size,
            tensors=dict(zip(cut.labels, tensors, strict=True)),
            passthrough_inputs=cut.passthrough,
            weight_version=runtime.weight_version,
            schema=cut.schema,
            sizes={} if batch_size is None else {symbol: batch_size},
        )
        return runtime.run_suffix(boundary)

    def parameters(self) -> list[torch.nn.Parameter]:
        """The parameters that this half trains."""
        return self._runtime.parameters(self._half)

    def state_dict(self) -> dict[str, torch.Tensor]:
        """The tensors of the model that this half reads."""
        return self._runtime.state(self._half)


class Segments(NamedTuple):
    """The halves of a split."""

    prefix: Segment
    training_prefix: Segment
    suffix: Segment
    boundary_order: tuple[str, ...]
    passthrough_order: tuple[str, ...]


class _Runtime(_show.Shown, Drawable):
    """What the runtimes for training and for inference share; `runtime` is the cleave.SplitRuntime."""

    def __init__(self, runtime: split.SplitRuntime, batch_range: tuple[int, int] | None = None) -> None:
        self.runtime = runtime
        self.batch_range = batch_range
        self.split_spec, self.mode = runtime.split_spec, runtime.mode
        self.split_id, self.graph_signature = runtime.split_id, runtime.graph_signature

    @functools.cached_property
    def trace_plan(self) -> TracePlan:
        """The plan that is cut."""
        return TracePlan(self.runtime.trace_plan)

    @functools.cached_property
    def candidate(self) -> SplitCandidate:
        """Where it is cut."""
        return self.trace_plan._candidate(self.runtime.candidate)._replace(split_id=self.split_id)

    @property
    def segments(self) -> Segments:
        """The halves, as callables."""
        through = self.runtime.main_cut.passthrough
        order = tuple(label for label in self.runtime.main_cut.labels if label not in through)
        half = functools.partial(Segment, self.runtime)
        return Segments(half("prefix"), half("prefix", training=True), half("suffix"), order, through)

    @property
    def prefix_segment(self) -> Segment:
        """The prefix, as a callable."""
        return self.segments.prefix

    @property
    def suffix_segment(self) -> Segment:
        """The suffix, as a callable."""
        return self.segments.suffix

    @property
    def active_backend(self) -> str:
        """What runs the halves."""
        return self.runtime.active_backend

    @property
    def fallback_reason(self) -> str | None:
        """Why something else runs the halves than the mode asks for; None: nothing else does."""
        return self.runtime.fallback_reason

    @functools.cached_property
    def variants(self) -> tuple[Any, ...]:
        """Runtimes for more rows than the one of the example: this one, which serves all sizes, and its range."""
        low, high = self.runtime.batch_range or (1, 1)
        sizes = self.runtime._first.sizes_of(take_apart(self.runtime._target, *self.runtime._example).leaves)
        if self.batch_range is not None or high < 2 or sizes.get(self.split_spec.batch_symbol) != 1:
            return ()
        return (self._with(batch_range=(max(2, low), high)),)

    def _with(self, **changes: Any) -> Any:
        """The same runtime with other options."""
        other = object.__new__(type(self))
        other.__dict__.update(self.__dict__, **changes)
        return other

    def _subject(self) -> Subject:
        return self.runtime._subject()


class SplitRuntime(_Runtime):
    """A model cut in two, for inference and training. Whatever is not here is cleave.SplitRuntime's own."""

    @property
    def training_prefix_segment(self) -> Segment:
        """The prefix as run_training_prefix runs it, as a callable."""
        return self.segments.training_prefix

    @property
    def prefix_backward_owner_id(self) -> int:
        """Tells runtimes apart; a boundary of run_training_prefix has it too."""
        return id(self.runtime)

    def __getattr__(self, name: str) -> Any:
        return getattr(object.__getattribute__(self, "runtime"), name)

    def _shown(self) -> tuple[str, _show.Facts]:
        return self.runtime._shown()


@dataclass(frozen=True, repr=False)
class ReplayBoundary:
    """What crosses, for the suffix of the same runtime; `payload` is the cleave.BoundaryPayload."""

    payload: BoundaryPayload
    owner_id: int
    protocol_version = 2

    @property
    def values(self) -> tuple[torch.Tensor, ...]:
        """The tensors that the prefix made, in the order of `boundary_order`."""
        return tuple(t for label, t in self.tensors.items() if label not in self.payload.passthrough_inputs)

    @property
    def passthrough_values(self) -> tuple[torch.Tensor, ...]:
        """Inputs that only the suffix needs, in the order of `passthrough_order`."""
        return tuple(self.tensors[label] for label in self.payload.passthrough_inputs)

    def __getattr__(self, name: str) -> Any:
        return getattr(object.__getattribute__(self, "payload"), name)

    @_show.never_raises
    def __repr__(self) -> str:
        amount = f"{_show.plural(len(self.tensors), 'tensor')}, {_native.text_bytes(self.nbytes)}"
        sizes = "".join(f", {name}={n}" for name, n in self.sizes.items())
        return f"<cleave.ReplayBoundary of split {self.split_id}: {amount}{sizes}>"


class SplitReplayRuntime(_Runtime):
    """A model cut in two, for inference. Made by prepare_split_replay.

    validation: "fast" checks that a boundary is of this runtime and complete, and leaves types and sizes to the suffix,
    which checks all its inputs; "strict" compares every tensor with the schema first."""

    def __init__(
        self, runtime: split.SplitRuntime, validation: str = "fast", materialize_boundary: bool = True
    ) -> None:
        super().__init__(runtime)
        self.validation = _checked_validation(validation)
        self.materialize_boundary = materialize_boundary

    def with_validation(self, validation: str) -> SplitReplayRuntime:
        """The same runtime with other checks."""
        changed: SplitReplayRuntime = self._with(validation=_checked_validation(validation))
        return changed

    @property
    def boundary_order(self) -> tuple[str, ...]:
        """Labels of the tensors that the prefix makes."""
        return self.segments.boundary_order

    @property
    def passthrough_order(self) -> tuple[str, ...]:
        """Labels of the inputs that only the suffix needs."""
        return self.segments.passthrough_order

    def warmup(self, *inputs: Any, **kwargs: Any) -> None:
        """Runs both halves once, so that what is compiled or captured on first use is ready."""
        with progress.task(f"warming up {self.runtime._target.name}"):
            self.replay(*inputs, **kwargs)

    def run_prefix(self, *inputs: Any, **kwargs: Any) -> ReplayBoundary:
        """Runs the model up to the boundary."""
        return ReplayBoundary(self.runtime.run_prefix(*inputs, **kwargs), id(self.runtime))

    def run_suffix(self, boundary: ReplayBoundary) -> Any:
        """Runs the rest of the model."""
        if self.validation == "strict":
            self.validate_boundary(boundary)
        return self.runtime.run_suffix(self._payload(boundary))

    def replay(self, *inputs: Any, **kwargs: Any) -> Any:
        """Both halves, one after the other."""
        return self.run_suffix(self.run_prefix(*inputs, **kwargs))

    def validate_boundary(self, boundary: ReplayBoundary) -> None:
        """Raises the reason why a boundary does not belong to this runtime."""
        self.runtime.validate_boundary(self._payload(boundary))

    def _payload(self, boundary: ReplayBoundary) -> BoundaryPayload:
        if not isinstance(boundary, ReplayBoundary):
            raise TypeError(f"run_suffix takes the ReplayBoundary of run_prefix, not {type(boundary).__name__}")
        if boundary.owner_id != id(self.runtime):
            raise InputError("this ReplayBoundary was made by another SplitReplayRuntime")
        return boundary.payload

    def _shown(self) -> tuple[str, _show.Facts]:
        return self.runtime._shown("SplitReplayRuntime", self.validation)


def _checked_validation(validation: str) -> str:
    if validation not in split.VALIDATIONS:
        raise SplitError(f"validation must be one of {', '.join(split.VALIDATIONS)}, not {validation!r}")
    return validation


def _prepared(model: Callable[..., Any], mode: str, objective: Any, compile_options: Any, how: Any) -> Any:
    """prepare_split; options of a compiler are for the mode that has one."""
    return split.prepare_split(
        model,
        mode=mode,
        objective=dict(objective) if isinstance(objective, Mapping) else objective,
        compile_options=dict(compile_options) if compile_options is not None and mode == "compiled" else None,
        **how,
    )


def prepare_split(
    model: Callable[..., Any],
    *,
    mode: str = "generated_eager",
    objective: Mapping[str, Any] | None = None,
    compile_options: Mapping[str, Any] | None = None,
    **how: Any,
) -> SplitRuntime:
    """cleave.prepare_split, with all its arguments."""
    return SplitRuntime(_prepared(model, mode, objective, compile_options, how))


def prepare_split_replay(
    model: Callable[..., Any],
    *,
    mode: str = "compiled",
    objective: Mapping[str, Any] | None = None,
    compile_options: Mapping[str, Any] | None = None,
    validation: str = "fast",
    materialize_boundary: bool = True,
    **how: Any,
) -> SplitReplayRuntime:
    """cleave.prepare_split, with all its arguments, for inference alone and by default compiled.

    materialize_boundary: a boundary stays what it is when the prefix runs again. It does in all modes, so False changes
    nothing."""
    _checked_validation(validation)
    runtime = _prepared(model, mode, objective, compile_options, how)
    return SplitReplayRuntime(runtime, validation, materialize_boundary)


def register_boundary_serializer(
    type_: type[Any], encode: Callable[[Any], Any], decode: Callable[[Any], Any], schema: Any = None
) -> None:
    """Lets the values of payloads, and cleave.pack, hold objects of a class of yours.

    encode gives plain values for an object, decode the object for them; both processes must register the class. schema
    is not used: nothing but tensors crosses a boundary by itself."""
    register_serializer(type_, encode, decode)


# ---- Ariadne: pictures

export_trace_dot = functools.partial(visualization.export_trace_dot, direction="BT")
render_trace_graph = functools.partial(visualization.render_trace_graph, direction="BT")


def export_split_dot(plan: Drawable, candidate: SplitCandidate, *, direction: str = "BT", **options: Any) -> str:
    """A plan with a cut, as DOT text."""
    return visualization.export_split_dot(plan, candidate.position, direction=direction, **options)


def render_split_graph(plan: Drawable, candidate: SplitCandidate, *, direction: str = "BT", **options: Any) -> Any:
    """Draws a plan with a cut into a file."""
    return visualization.render_split_graph(plan, candidate.position, direction=direction, **options)


# ---- Ariadne: checks


def validate_dynamic_batches(
    runtime: SplitRuntime | SplitReplayRuntime, example_inputs: Any, batch_sizes: Iterable[int]
) -> tuple[Any, ...]:
    """What both halves give for the example at each batch size. Raises where it is not what the model gives."""
    sizes = list(batch_sizes)
    validation.validate_dynamic_batches(runtime.runtime, example_inputs, sizes).raise_if_failed()
    arguments = take_apart(runtime.runtime._target, *as_call(example_inputs, None))
    outputs = []
    for size in sizes:
        _, at = validation.resized(runtime.runtime, arguments, size)
        args, kwargs = at.rebuild(at.leaves)
        outputs.append(runtime.run_suffix(runtime.run_prefix(*args, **kwargs)))
    return tuple(outputs)


def assert_forward_equivalent(
    model: Callable[..., Any], runtime: Any, inputs: Any, *, rtol: float = 1e-5, atol: float = 1e-6
) -> None:
    """Both halves give what the model gives, within a tolerance."""
    validation.assert_forward_equivalent(model, runtime, inputs, rtol, atol)


def assert_gradient_equivalent(
    direct_model: torch.nn.Module,
    split_runtime: Any,
    direct_inputs: Any,
    split_inputs: Any,
    targets: Any,
    *,
    loss_fn: Callable[..., torch.Tensor] | None = None,
    atol: float = 1e-6,
    rtol: float = 1e-5,
) -> None:
    """Training in two halves gives the gradients of the whole, within a tolerance."""
    validation.assert_gradient_equivalent(
        direct_model, split_runtime, direct_inputs, targets, loss_fn, rtol, atol, split_inputs=split_inputs
    )


def assert_dynamic_batch_reuse(
    model: Callable[..., Any], runtime: Any, *, input_shape: Sequence[int], batches: Iterable[int]
) -> None:
    """Both halves give what the model gives on random inputs of each batch size."""
    for batch in batches:
        assert_forward_equivalent(model, runtime, (torch.randn((batch, *input_shape[1:])),))


# ---- torch_neuron, and the names of torch_neuronx and Torch-TensorRT for the same


def trace(
    model: Callable[..., Any],
    example_inputs: Any = (),
    *,
    subgraph_builder_function: Callable[[tracing.GraphNode], bool] | None = None,
    fallback: bool = True,
    require_full_compilation: bool = False,
    dynamic_batch_size: bool | tuple[int, int] = False,
    strict: bool = True,
    example_kwarg_inputs: dict[str, Any] | None = None,
    ops_to_partition: Iterable[str] = (),
    torch_executed_ops: Iterable[str] = (),
    torch_executed_modules: Iterable[str] = (),
    max_subgraph_count: int | None = None,
    model_support_percentage_threshold: float = 0.0,
    **options: Any,
) -> tracing.TracedModule:
    """cleave.trace, with all its other arguments. dynamic_batch_size=True is any batch of 1 to 1024. strict=True
    refuses models that return dicts, as torch.jit.trace does.

    >>> import torch
    >>> from cleave import compat as torch_neuron
    >>> net = torch.nn.Sequential(torch.nn.Conv2d(1, 1, 3), torch.nn.ReLU()).eval()
    >>> traced = torch_neuron.trace(net, torch.rand(1, 1, 5, 5), dynamic_batch_size=True, dryrun=True)
    >>> traced(torch.rand(7, 1, 5, 5)).shape
    torch.Size([7, 1, 3, 3])
    """
    some = (1, 1024) if dynamic_batch_size is True else None
    tape = {
        "ops_to_partition": ops_to_partition,
        "torch_executed_ops": torch_executed_ops,
        "torch_executed_modules": torch_executed_modules,
    }
    traced = tracing.trace(
        model,
        example_inputs,
        example_kwarg_inputs,
        select=subgraph_builder_function,
        fallback=fallback and not require_full_compilation,
        dynamic_batch=some if isinstance(dynamic_batch_size, bool) else dynamic_batch_size,
        exclude=[name for argument, names in tape.items() for name in read_texts(names, argument)],
        max_segments=max_subgraph_count,
        support_threshold=model_support_percentage_threshold,
        **options,
    )
    if strict:
        _refuse_dicts(traced.plan._main.output)
    return traced


def _refuse_dicts(spec: _tree.Spec) -> None:
    if spec.kind in ("dict", "mapping_object") or (isinstance(spec.cls, type) and issubclass(spec.cls, dict)):
        raise CaptureError(
            f"the model returns a {spec.cls.__name__ if isinstance(spec.cls, type) else 'dict'}, which strict=True "
            "does not allow, as in torch.jit.trace: pass strict=False, or let the model return a tuple"
        )
    for child in spec.children:
        _refuse_dicts(child)


# ---- FTPipe

# Arguments that say how autopipe itself works, and its defaults: they change nothing here.
_NO_EFFECT: dict[str, Any] = {
    "use_layers_only_graph": True,
    "generate_activation_propagation": True,
    "METIS_opt": None,
    "acyclic_opt": None,
    "binpack_opt": None,
    "mpipe_opt": None,
    "force_no_recomp_scopes": None,
    "save_memory_mode": False,
    "trace_on_gpu": False,
    "use_graph_profiler": True,
    "use_network_profiler": False,
    "graph": None,
    "async_pipe": False,
    "trace_cache_name": None,
    "dont_use_async_meta_alg": False,
}


def pipe_model(
    model: Callable[..., Any],
    batch_dim: int | None = 0,
    model_args: Any = (),
    model_kwargs: dict[str, Any] | None = None,
    n_iter: int = 10,
    nparts: int = 4,
    depth: int = 1000,
    basic_blocks: Any = None,
    node_weight_function: Callable[..., float] | None = None,
    edge_weight_function: Callable[..., float] | None = None,
    *,
    output_file: str | os.PathLike[str] | None = None,
    generate_explicit_del: bool = False,
    partitioning_method: str = "ACYCLIC",
    profiles_cache_name: str | os.PathLike[str] | None = None,
    **options: Any,
) -> pipe.PartitionedPlan:
    """cleave.pipe_model, with all its other arguments.

    output_file: the stages are written there as Python code; measurements are kept next to it, so that the same call
    gives the same stages again. Options of autopipe's own working, as use_graph_profiler, have no effect."""
    ignored = [name for name, default in _NO_EFFECT.items() if options.pop(name, default) not in (default, None, {})]
    if ignored:
        warn(f"pipe_model: {', '.join(ignored)} of autopipe: these have no effect here")
    measured = None if output_file is None else Path(output_file).with_suffix(".profile.json")
    partitioned = pipe.pipe_model(
        model,
        model_args,
        model_kwargs,
        batch_dim=batch_dim,
        n_iter=n_iter,
        nparts=nparts,
        depth=depth,
        basic_blocks=basic_blocks,
        node_weight_function=node_weight_function,
        edge_weight_function=edge_weight_function,
        partitioning_method=partitioning_method,
        **{"profile": profiles_cache_name or measured, **options},
    )
    if output_file is not None:
        partitioned.write_source(output_file, explicit_del=generate_explicit_del)
    return partitioned


__all__ = [
    "BenchmarkResult",
    "BoundaryPayload",
    "ReplayBoundary",
    "RuntimeCacheKey",
    "SplitCandidate",
    "SplitReplayRuntime",
    "SplitRuntime",
    "SplitSpec",
    "TraceBatchMode",
    "TraceNode",
    "TracePlan",
    "assert_dynamic_batch_reuse",
    "assert_forward_equivalent",
    "assert_gradient_equivalent",
    "benchmark_replay_optimization",
    "benchmark_runtime",
    "benchmark_split_modes",
    "benchmark_split_retain_optimization",
    "enumerate_frontier_splits",
    "export_split_candidates_table",
    "export_split_dot",
    "export_trace_dot",
    "pipe_model",
    "prepare_split",
    "prepare_split_replay",
    "register_boundary_serializer",
    "render_split_graph",
    "render_trace_graph",
    "select_split",
    "trace",
    "trace_model",
    "validate_dynamic_batches",
]

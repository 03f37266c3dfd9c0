"""Ways to run a model, one function each: they prepare, and give what is then called again and again.

A way that cannot be had (a package that is not here, a kind of run that a peer does not know) raises LeftOut with the
reason; any other error is the way's own failure, and is written down as such.
"""

from __future__ import annotations

import copy
import importlib
import inspect
import types
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from . import tree
from .cases import Case
from .names import DEVICES, EAGER, KINDS, TITLES


class LeftOut(Exception):
    """Why a way cannot be had here."""


class Job(NamedTuple):
    """What a way is to prepare."""

    case: Case  # on the device
    kind: str
    device: str
    threads: int
    folder: Path  # a cache for this way alone: cold when a way is tried, warm when it is measured
    module: str = ""  # the one in which a split at 50 % cuts, where it is known

    @property
    def batch(self) -> int:
        return len(next(iter(self.tensors)))

    @property
    def tensors(self) -> tuple[Tensor, ...]:
        return (*self.case.args, *self.case.kwargs.values())

    def flat(self) -> tree.Flat:
        return tree.Flat(self.case.model, len(self.case.args), list(self.case.kwargs)).eval()


class Prepared(NamedTuple):
    """What is called; what it gives, to be compared with eager (None: nothing that eager gives); a word about it."""

    call: Callable[[], Any]
    result: Callable[[], Sequence[Tensor]] | None
    note: str = ""


Prepare = Callable[[Job], Prepared]


def _package(name: str, install: str) -> Any:
    try:
        return importlib.import_module(name)
    except ImportError as error:
        raise LeftOut(f"{name} is not installed ({install}): {error}") from error


def _inference(call: Callable[[], Any], note: str = "") -> Prepared:
    def run() -> Any:
        with torch.no_grad():
            return call()

    return Prepared(run, lambda: tree.kept(run()), note)


# ---- eager


def eager(job: Job) -> Prepared:
    case = job.case
    return _inference(lambda: case.model(*case.args, **case.kwargs))


def _gradients(model: nn.Module, loss: Tensor) -> list[Tensor]:
    zero = torch.zeros(())
    return tree.kept([loss, *(zero if p.grad is None else p.grad for p in model.parameters())])


def _round_trip(model: nn.Module, step: Callable[[], Tensor]) -> Prepared:
    """A step from gradients that are not there, compared by its loss and all gradients."""

    def run() -> Tensor:
        model.zero_grad(set_to_none=True)
        return step()

    def result() -> list[Tensor]:
        torch.manual_seed(0)  # dropout draws the same masks
        return _gradients(model, run())

    return Prepared(run, result)


def training_copy(job: Job) -> nn.Module:
    return copy.deepcopy(job.case.model).train()


def _trained(job: Job, model: nn.Module, call: Callable[..., Any]) -> Prepared:
    case = job.case

    def step() -> Tensor:
        loss = tree.loss_of(call(*case.args, **case.kwargs))
        loss.backward()  # type: ignore[no-untyped-call]
        return loss

    return _round_trip(model, step)


def eager_training(job: Job) -> Prepared:
    model = training_copy(job)
    return _trained(job, model, model)


# ---- Cleave


def _cleave() -> Any:
    return importlib.import_module("cleave")


def _options(function: Callable[..., Any], level: str | None, **more: Any) -> dict[str, Any]:
    """Arguments for a level of optimisation, where the function knows levels. None: what it does by itself."""
    known = inspect.signature(function).parameters
    asked = {**({} if level is None else {"optimize": level}), **more}
    for name, wanted in asked.items():
        if name not in known:
            raise LeftOut(f"cleave.{function.__name__} has no argument {name} (asked for {wanted!r})")
    return asked


def _spec(package: Any, job: Job, boundary: str = "50%") -> Any:
    """The same split for every package."""
    low, mode = (1, "batch_1") if job.batch == 1 else (2, "batch_gt1")
    return package.SplitSpec(
        boundary=boundary, dynamic_batch=(low, 64), trainable=job.kind == "training", trace_batch_mode=mode
    )


def cut_module(case: Case) -> str:
    """The module in which Cleave cuts at 50 %; "" where it is none."""
    cleave = _cleave()
    spec = cleave.SplitSpec(boundary="50%", dynamic_batch=None)
    runtime = cleave.prepare_split(case.model, example_inputs=case.args, example_kwargs=case.kwargs, split=spec)
    return str(runtime.candidate.module_path or "")


def plan_at(level: str | None, mode: str | None = None) -> Prepare:
    def prepare(job: Job) -> Prepared:
        cleave, case = _cleave(), job.case
        options = _options(cleave.capture, level, **({} if mode is None else {"mode": mode}))
        with torch.no_grad():
            plan = cleave.capture(case.model, case.args, case.kwargs, both_grad_modes=False, **options)
        return _inference(lambda: plan(*case.args, **case.kwargs))

    return prepare


def _split_of(job: Job, model: nn.Module, level: str | None, mode: str) -> Any:
    cleave, case = _cleave(), job.case
    return cleave.prepare_split(
        model,
        example_inputs=case.args,
        example_kwargs=case.kwargs,
        split=_spec(cleave, job),
        mode=mode,
        **_options(cleave.prepare_split, level),
    )


def _fallback(runtime: Any) -> str:
    """Why something else runs than what was asked for."""
    lines = str(getattr(runtime, "fallback_reason", None) or "").splitlines()
    return f"falls back: {lines[0]}"[:200] if lines else ""


def split_at(level: str | None, mode: str = "generated_eager") -> Prepare:
    def prepare(job: Job) -> Prepared:
        case = job.case
        runtime = _split_of(job, case.model, level, mode)
        prepared = _inference(lambda: runtime.run_suffix(runtime.run_prefix(*case.args, **case.kwargs)))
        prepared.call()
        return prepared._replace(note=_fallback(runtime))

    return prepare


def suffix_at(level: str | None, mode: str = "generated_eager") -> Prepare:
    def prepare(job: Job) -> Prepared:
        case = job.case
        runtime = _split_of(job, case.model, level, mode)
        boundary = runtime.run_prefix(*case.args, **case.kwargs)
        prepared = _inference(lambda: runtime.run_suffix(boundary))
        prepared.call()
        return prepared._replace(note=_fallback(runtime))

    return prepare


def graph_whole(job: Job) -> Prepared:
    """A whole plan in a CUDA graph where plans know the mode, else both halves of a split in one each."""
    level = "fast" if "optimize" in inspect.signature(_cleave().prepare_split).parameters else None
    if "mode" in inspect.signature(_cleave().capture).parameters:
        return plan_at(level, "cuda_graph")(job)
    prepared = split_at(level, "cuda_graph")(job)
    return prepared._replace(note="; ".join(filter(None, ["as a split at 50 %", prepared.note])))


def graph_split(job: Job) -> Prepared:
    level = "fast" if "optimize" in inspect.signature(_cleave().prepare_split).parameters else None
    return split_at(level, "cuda_graph")(job)


def boundary_copy(job: Job) -> Prepared:
    """What a split has to copy at least: the tensors of its boundary, once."""
    case = job.case
    runtime = _split_of(job, case.model, None, "generated_eager")
    tensors = list(runtime.run_prefix(*case.args, **case.kwargs).tensors.values())
    return Prepared(lambda: [t.clone() for t in tensors], None)


def cleave_training(job: Job) -> Prepared:
    model, case = training_copy(job), job.case
    runtime = _split_of(job, model, None, "generated_eager")

    def step() -> Tensor:
        boundary = runtime.run_training_prefix(*case.args, **case.kwargs)
        loss, grads = runtime.train_suffix(boundary, None, loss_fn=tree.loss_of)
        runtime.backward_prefix(boundary, grads)
        return loss

    return _round_trip(model, step)


def cleave_prepares(job: Job) -> Prepared:
    return Prepared(lambda: _split_of(job, job.case.model, None, "generated_eager"), None)


def traced_by(backend: str) -> Prepare:
    def prepare(job: Job) -> Prepared:
        if backend == "openvino":
            _package("openvino", "pip install openvino")
        cleave, case = _cleave(), job.case
        traced = cleave.trace(
            case.model,
            case.args,
            example_kwargs=case.kwargs,
            backend=backend,
        )
        note = f"{traced.coverage.percent:.1f} % compiled, segments: {len(traced.segments)}"
        return _inference(lambda: traced(*case.args, **case.kwargs), note)

    return prepare


def native(job: Job) -> Prepared:
    """A file run by the native engine."""
    cleave, case = _cleave(), job.case
    job.folder.mkdir(parents=True, exist_ok=True)
    path = job.folder / "model.clv"
    with torch.no_grad():
        cleave.capture(case.model, case.args, case.kwargs, both_grad_modes=False).save(path)
    loaded = cleave.load(path, engine="native", threads=job.threads)
    return _inference(lambda: loaded(*case.args, **case.kwargs))


# ---- torch.compile, TorchScript


def _wrapped(model: nn.Module, name: str) -> nn.Module:
    """The model in a class and code of its own: Dynamo keeps what it compiled with the code, and would use what it has
    for another mode again."""

    def forward(self: Any, *args: Any, **kwargs: Any) -> Any:
        return self.model(*args, **kwargs)

    code = forward.__code__.replace(co_name=f"forward_{name}")
    cls = type(f"Wrapped_{name}", (nn.Module,), {"forward": types.FunctionType(code, globals())})
    module: nn.Module = cls()
    module.model = model
    return module.train(model.training)


def compiled(name: str, **options: Any) -> Prepare:
    def prepare(job: Job) -> Prepared:
        case = job.case
        mode = {"mode": options["mode"]} if "mode" in options else {}
        call = torch.compile(_wrapped(case.model, name), dynamic=False, **mode)
        prepared = _inference(lambda: call(*case.args, **case.kwargs))
        inductor: Any = importlib.import_module("torch._inductor.config")
        with inductor.patch(freezing=options.get("freezing", False)):
            prepared.call()
        return prepared

    return prepare


def compiled_training(job: Job) -> Prepared:
    model = training_copy(job)
    return _trained(job, model, torch.compile(_wrapped(model, "training"), dynamic=False))


def torchscript(job: Job) -> Prepared:
    tensors = job.tensors
    with torch.no_grad():
        traced = torch.jit.trace(job.flat(), tensors, check_trace=False)
        frozen = torch.jit.optimize_for_inference(torch.jit.freeze(traced))
        for _ in range(3):  # it compiles by what it sees in the first runs
            frozen(*tensors)
    return _inference(lambda: frozen(*tensors))


# ---- OpenVINO, ONNX Runtime


def _openvino_model(openvino: Any, job: Job) -> Any:
    """Through torch.export, as its documentation advises; through a trace where that fails."""
    try:
        return openvino.convert_model(torch.export.export(job.flat(), job.tensors))
    except Exception:
        return openvino.convert_model(job.flat(), example_input=job.tensors)


def openvino_itself(job: Job) -> Prepared:
    openvino = _package("openvino", "pip install openvino")
    with torch.no_grad():
        model = _openvino_model(openvino, job)
    fixed = {i: list(t.shape) for i, t in enumerate(job.tensors)}
    if len(model.inputs) == len(fixed):
        model.reshape(fixed)
    settings = {
        "PERFORMANCE_HINT": "LATENCY",
        "INFERENCE_PRECISION_HINT": "f32",
        "INFERENCE_NUM_THREADS": job.threads,
    }
    request = openvino.Core().compile_model(model, "CPU", settings).create_infer_request()
    inputs = [t.numpy() for t in job.tensors]

    def run() -> Any:
        return request.infer(inputs, share_inputs=True, share_outputs=True)

    return Prepared(run, lambda: tree.kept([torch.from_numpy(a) for a in run().to_tuple()]))


def _exported(job: Job, to: Path) -> str:
    """Writes model.onnx, unless it is there; the newer exporter where it can, else the older one. Which of them."""
    if to.exists():
        return ""
    flat, tensors = job.flat(), job.tensors
    try:
        torch.onnx.export(flat, tensors, to, dynamo=True, external_data=True)
        return ""
    except Exception as error:
        torch.onnx.export(flat, tensors, to, dynamo=False)
        return f"exported by torch.jit.trace ({type(error).__name__} in the newer exporter)"


def onnx_runtime(job: Job) -> Prepared:
    install = "pip install -r requirements-bench.txt"
    _package("onnx", install)
    _package("onnxscript", install)
    runtime = _package("onnxruntime", install)
    job.folder.mkdir(parents=True, exist_ok=True)
    file = job.folder / "model.onnx"
    with torch.no_grad():
        note = _exported(job, file)
    settings = runtime.SessionOptions()
    settings.intra_op_num_threads = job.threads
    settings.log_severity_level = 3
    settings.graph_optimization_level = runtime.GraphOptimizationLevel.ORT_ENABLE_ALL
    session = runtime.InferenceSession(str(file), settings, providers=["CPUExecutionProvider"])
    names = [i.name for i in session.get_inputs()]
    inputs = dict(zip(names, [t.numpy() for t in job.tensors], strict=True))

    def run() -> Any:
        return session.run(None, inputs)

    return Prepared(run, lambda: tree.kept([torch.from_numpy(a) for a in run()]), note)


# ---- Ariadne


def _ariadne() -> Any:
    return _package("ariadne", "pip install --no-deps -r requirements-bench-nodeps.txt")


def _ariadne_runtime(job: Job, model: nn.Module, mode: str) -> Any:
    """Cut after the module in which Cleave cuts: for a percentage it runs forward and backward of every candidate at
    several batch sizes, which takes minutes. Rows of kind "prepare" have that."""
    package, case = _ariadne(), job.case
    module = job.module if job.kind != "prepare" else ""
    if case.kwargs:
        model = tree.Positional(model, len(case.args), list(case.kwargs)).train(model.training)
        module = module and f"model.{module}"
    spec = _spec(package, job, f"after:{module}" if module else "50%")
    prepare = package.prepare_split_replay if mode == "compiled" else package.prepare_split
    return prepare(model, example_inputs=job.tensors, split=spec, mode=mode)


def ariadne(mode: str) -> Prepare:
    def prepare(job: Job) -> Prepared:
        runtime = _ariadne_runtime(job, job.case.model, mode)
        prepared = _inference(lambda: runtime.run_suffix(runtime.run_prefix(*job.tensors)))
        prepared.call()
        notes = ["as a split" if job.kind == "whole" else "", f"cut after {job.module}" if job.module else ""]
        return prepared._replace(note="; ".join(filter(None, [*notes, _fallback(runtime)])))

    return prepare


def ariadne_suffix(mode: str) -> Prepare:
    def prepare(job: Job) -> Prepared:
        runtime = _ariadne_runtime(job, job.case.model, mode)
        with torch.no_grad():
            boundary = runtime.run_prefix(*job.tensors)
        prepared = _inference(lambda: runtime.run_suffix(boundary))
        prepared.call()
        return prepared._replace(note=_fallback(runtime))

    return prepare


def ariadne_training(job: Job) -> Prepared:
    model = training_copy(job)
    runtime = _ariadne_runtime(job, model, "generated_eager")

    def step() -> Tensor:
        boundary = runtime.run_training_prefix(*job.tensors)
        loss, grads = runtime.train_suffix(boundary, None, loss_fn=tree.loss_of)
        runtime.backward_prefix(boundary, boundary_grads=grads)
        return loss  # type: ignore[no-any-return]

    return _round_trip(model, step)


def ariadne_prepares(job: Job) -> Prepared:
    _ariadne()
    return Prepared(lambda: _ariadne_runtime(job, job.case.model, "generated_eager"), None)


# ---- the columns


class Way(NamedTuple):
    """A column of the tables."""

    by_kind: dict[str, Prepare]
    devices: tuple[str, ...] = DEVICES
    compiles: bool = False  # by a compiler that takes seconds for anything


def _halves(split: Callable[..., Prepare], suffix: Callable[..., Prepare], *args: Any) -> dict[str, Prepare]:
    return {"split": split(*args), "suffix": suffix(*args)}


_GENERATED, _COMPILED, _DEBUG = "generated_eager", "compiled", "debug_interpreter"
_WAYS: dict[str, Way] = {
    EAGER: Way({**dict.fromkeys(KINDS, eager), "training": eager_training}),
    "tape": Way(
        {
            "whole": plan_at(None),
            **_halves(split_at, suffix_at, None),
            "debug": split_at(None, _DEBUG),
            "training": cleave_training,
            "prepare": cleave_prepares,
        }
    ),
    "tape-whole": Way({"split": plan_at(None)}),
    "copy": Way({"split": boundary_copy}),
    "tape-none": Way({"whole": plan_at("none"), **_halves(split_at, suffix_at, "none")}),
    "fast": Way({"whole": plan_at("fast"), **_halves(split_at, suffix_at, "fast")}),
    "native": Way({"whole": native}, ("cpu",)),
    "graph": Way({"whole": graph_whole, "split": graph_split}, ("cuda",)),
    "torchscript": Way({"whole": torchscript}),
    "openvino": Way({"whole": openvino_itself}, ("cpu",)),
    "onnxruntime": Way({"whole": onnx_runtime}, ("cpu",)),
    "compile": Way({"whole": compiled("default"), "training": compiled_training}, compiles=True),
    "freezing": Way({"whole": compiled("freezing", freezing=True)}, compiles=True),
    "reduce-overhead": Way({"whole": compiled("reduce", mode="reduce-overhead")}, ("cuda",), compiles=True),
    "ariadne": Way(
        {
            "whole": ariadne(_GENERATED),
            **_halves(ariadne, ariadne_suffix, _GENERATED),
            "debug": ariadne(_DEBUG),
            "training": ariadne_training,
            "prepare": ariadne_prepares,
        }
    ),
    "cleave-openvino": Way({"whole": traced_by("openvino")}, ("cpu",), compiles=True),
    "cleave-inductor": Way({"whole": traced_by("inductor")}, compiles=True),
    "cleave-compiled": Way(_halves(split_at, suffix_at, None, _COMPILED), compiles=True),
    "ariadne-compiled": Way(
        {"whole": ariadne(_COMPILED), **_halves(ariadne, ariadne_suffix, _COMPILED)}, compiles=True
    ),
}
WAYS = {name: _WAYS[name] for name in TITLES}  # in the order of the titles


def ways_for(kind: str, device: str, wanted: Sequence[str]) -> list[str]:
    """Those of the wanted ways that know this kind of run on this device; eager is always among them."""
    fitting = [name for name, way in WAYS.items() if kind in way.by_kind and device in way.devices]
    return [name for name in fitting if name in wanted or name == EAGER]

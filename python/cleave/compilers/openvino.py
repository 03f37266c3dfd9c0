"""The compiler of the back end openvino: `python -m cleave.compilers.openvino FOLDER`.

The segment becomes OpenVINO's own form, model.xml and model.bin: data that any newer OpenVINO runs too. It goes
through torch.jit.trace where all sizes are fixed, and through torch.export where they are not; where the one fails, or
gives other numbers than the segment, through the other. What comes out is run here and compared with the segment at
some sizes, so that nothing wrong is kept.

Arguments (compiler_args):

    --hint=latency|throughput   what the run time is tuned for; latency unless said otherwise
    --precision=f32|bf16|f16    what may be computed in; f32 unless said otherwise
    --threads=N                 threads of a run; as many as torch has unless said otherwise
    --property=KEY=TEXT         any other property of OpenVINO's CPU plugin

They are kept in run.json, with the order of dimensions that inputs have in memory, for whoever loads the model."""

from __future__ import annotations

import importlib
import inspect
import json
import logging
import re
import sys
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import torch

from ._job import Job, Made, Refused, evaluate, refuse_narrowed, run, short

MEMBERS = ["model.xml", "model.bin", "run.json"]
HINT = "PERFORMANCE_HINT"
PRECISION = "INFERENCE_PRECISION_HINT"
THREADS = "INFERENCE_NUM_THREADS"
# A wrong conversion is far off; whether the last digits are right is for the caller to say. By the coarsest type.
ROUGH = {torch.float16: 2e-2, torch.bfloat16: 5e-2}
ROUGH_ELSE = 2e-3
ROUGH_PRECISION = {"f16": 5e-2, "bf16": 1e-1}

_CHOICES = {
    "--hint": (HINT, {"latency": "LATENCY", "throughput": "THROUGHPUT"}),
    "--precision": (PRECISION, {"f32": "f32", "bf16": "bf16", "f16": "f16"}),
}


# ---- arguments


def read_arguments(args: Sequence[str]) -> dict[str, str]:
    """Properties of OpenVINO's CPU plugin. Refused names the argument that is not known."""
    properties = {HINT: "LATENCY", PRECISION: "f32"}
    for arg in args:
        name, _, text = arg.partition("=")
        if name in _CHOICES:
            key, known = _CHOICES[name]
            if text not in known:
                raise Refused(f"{name} is {' or '.join(known)}, not {text!r}", argument=arg)
            properties[key] = known[text]
        elif name == "--threads":
            if not re.fullmatch(r"[1-9][0-9]{0,5}", text):
                raise Refused(f"--threads is a positive number, not {text!r}", argument=arg)
            properties[THREADS] = text
        elif name == "--property":
            key, equals, value = text.partition("=")
            if not re.fullmatch(r"[A-Z][A-Z0-9_]*", key) or not equals:
                raise Refused(f"--property is KEY=TEXT with a name like {THREADS}, not {text!r}", argument=arg)
            properties[key] = value
        else:
            known_names = [*_CHOICES, "--threads", "--property"]
            raise Refused(f"openvino takes {', '.join(known_names)}, not {arg!r}", argument=arg)
    return properties


# ---- conversion


def _load_openvino() -> Any:
    """The package. Its telemetry is not loaded: what is compiled here is nobody else's business."""
    sys.modules.setdefault("openvino_telemetry", None)  # type: ignore[arg-type]
    try:
        importlib.import_module("openvino.frontend.pytorch.fx_decoder")
        return importlib.import_module("openvino")
    except ImportError as error:
        raise Refused(f"OpenVINO is not installed: pip install openvino ({short(error)})") from error


def _converted(decoder: Any) -> Any:
    """As the front end gives it. openvino.convert_model would also optimize it, which is done again when it is loaded;
    that takes as long as the conversion and mixes weights, which a file could then not share with the plan."""
    frontend = importlib.import_module("openvino.frontend").FrontEndManager().load_by_framework("pytorch")
    return frontend.convert(frontend.load(decoder))


def _through_export(job: Job, inputs: Sequence[torch.Tensor]) -> Any:
    """Sizes that can change are found by torch.export; it also turns writes into plain operators."""
    openvino = _load_openvino()
    free, fixed = torch.export.Dim.AUTO, torch.export.Dim.STATIC
    sizes = tuple(tuple(free if job.is_free(d) else fixed for d in i.shape) for i in job.inputs)
    program = torch.export.export(job.segment.module, tuple(inputs), dynamic_shapes=sizes)
    refuse_narrowed(job, program)
    decoder = openvino.frontend.pytorch.fx_decoder.TorchFXPythonDecoder.from_exported_program(program)
    try:
        return _converted(decoder)
    except Exception as error:
        nodes = _unknown_nodes(job, str(error), decoder.pt_module.graph.nodes)
        raise Refused(_message(error), nodes) from error


def _through_trace(job: Job, inputs: Sequence[torch.Tensor]) -> Any:
    decoders = importlib.import_module("openvino.frontend.pytorch.ts_decoder")
    try:
        kwargs = {"check_trace": False}  # it is compared below
        return _converted(
            decoders.TorchScriptPythonDecoder(job.segment.module, example_input=tuple(inputs), trace_kwargs=kwargs)
        )
    except Exception as error:
        raise Refused(_message(error), _unknown_nodes(job, str(error), ())) from error


ROUTES: dict[str, Callable[[Job, Sequence[torch.Tensor]], Any]] = {"export": _through_export, "trace": _through_trace}

_UNKNOWN = re.compile(r"No conversion rule found for operations: (.*)")


def _message(error: Exception) -> str:
    """What OpenVINO says, without the places in its own source that it begins with."""
    found = _UNKNOWN.search(str(error))
    return f"OpenVINO has no conversion for {found[1].strip()}" if found else short(error)


def _unknown_nodes(job: Job, message: str, graph: Any) -> list[str]:
    """Nodes of the segment that became operators that OpenVINO does not know. "aten.trunc.default" can be a part of
    aten::frac: the graph says which line of the segment it comes from."""
    found = _UNKNOWN.search(message)
    names = re.split(r"[,\s]+", found[1].strip()) if found else []
    blamed = {node: None for name in names for node in job.segment.with_operator(name)}
    for node in graph:
        if str(node.target) in names:
            trace = RuntimeError(node.meta.get("stack_trace") or "")
            blamed.update(dict.fromkeys(job.segment.blamed(trace)))
    return list(blamed)


def _with_all_inputs(job: Job, model: Any) -> Any:
    """Conversion drops inputs whose numbers nobody reads, like those of zeros_like: they are put back."""
    if len(model.inputs) >= len(job.inputs):
        return model
    openvino, ops = _load_openvino(), importlib.import_module("openvino.opset13")
    there = {p.friendly_name: p for p in model.get_parameters()}
    names = list(inspect.signature(job.segment.module.forward).parameters)
    if len(names) != len(job.inputs) or not there.keys() <= set(names):
        return model
    kinds = [getattr(openvino.Type, {"bool": "boolean"}.get(i.dtype, i.dtype)) for i in job.inputs]
    parameters = [
        there[name] if name in there else ops.parameter([-1] * len(i.shape), kind, name=name)
        for name, i, kind in zip(names, job.inputs, kinds, strict=True)
    ]
    return openvino.Model(model.get_results(), parameters, model.friendly_name)


def _shape_inputs(job: Job, model: Any) -> None:
    """Sizes that cannot change are numbers. An input with another order of dimensions in memory comes as it lies."""
    openvino = _load_openvino()
    symbols = job.example_sizes()
    if len(model.inputs) != len(job.inputs):
        raise Refused(f"OpenVINO's model has {len(model.inputs)} inputs, the segment {len(job.inputs)}")
    shapes = [[-1 if job.is_free(d) else evaluate(d, symbols) for d in i.shape] for i in job.inputs]
    model.reshape({at: openvino.PartialShape(shape) for at, shape in zip(model.inputs, shapes, strict=True)})
    for number, (port, shape) in enumerate(zip(job.inputs, shapes, strict=True)):
        if port.order is not None and port.order != sorted(port.order):
            _permute(model, number, [shape[d] for d in port.order], port.order)
    model.validate_nodes_and_infer_types()


def _permute(model: Any, number: int, shape: Sequence[int], order: Sequence[int]) -> None:
    ops = importlib.import_module("openvino.opset13")
    old = model.get_parameters()[number]
    given = ops.parameter(shape, old.get_element_type(), name=f"{old.friendly_name}_in_memory")
    back = ops.transpose(given, ops.constant([list(order).index(d) for d in range(len(order))], dtype="int64"))
    old.output(0).replace(back.output(0))
    model.replace_parameter(number, given)


def _copy_inputs_that_go_out(model: Any) -> None:
    """Where an output is an input, OpenVINO would write what it finds in the output's memory into the input's."""
    ops = importlib.import_module("openvino.opset13")
    for result in model.get_results():
        source = result.input(0).get_source_output()
        if source.get_node().get_type_name() == "Parameter":
            copy = ops.convert(source, source.get_element_type().get_type_name())
            result.input(0).replace_source_output(copy.output(0))


# ---- the check


def _tensor(t: torch.Tensor) -> Any:
    """As OpenVINO's tensor; numpy has no bfloat16."""
    openvino = _load_openvino()
    if t.dtype is not torch.bfloat16:
        return openvino.Tensor(t.numpy())
    bits = t.view(torch.int16).numpy()
    return openvino.Tensor(bits, openvino.Shape(list(t.shape)), openvino.Type.bf16)


def _numbers(t: Any) -> torch.Tensor:
    openvino = _load_openvino()
    if t.element_type == openvino.Type.bf16:
        return torch.tensor(t.data.view("int16")).view(torch.bfloat16).reshape(list(t.shape))
    return torch.tensor(t.data)


def _other_sizes(job: Job) -> Iterator[dict[str, int]]:
    """The sizes of the example, and others as far as there are: what was taken for constant shows there."""
    example = job.example_sizes()
    yield example
    lowest = {name: max(s.low, min(1, s.high)) for name, s in job.sizes.items()}
    larger = {name: min(s.high, example[name] + 3) for name, s in job.sizes.items()}
    seen = [example]
    for sizes in (larger, lowest):
        if sizes not in seen:
            seen.append(sizes)
            yield sizes


def _check(job: Job, model: Any, properties: Mapping[str, str]) -> float:
    """The largest error, relative to the largest number of an output, at some sizes; Refused if it is not small."""
    openvino = _load_openvino()
    given = {**properties, **({THREADS: str(job.threads)} if job.threads else {})}
    compiled = openvino.Core().compile_model(model, "CPU", given)
    worst = 0.0
    for sizes in _other_sizes(job):
        inputs = job.examples(sizes)
        in_memory = [
            t if i.order is None else t.permute(i.order).contiguous() for t, i in zip(inputs, job.inputs, strict=True)
        ]
        # the segment may write into its inputs
        want = job.segment.module(*(torch.empty_strided(t.shape, t.stride(), dtype=t.dtype).copy_(t) for t in inputs))
        request = compiled.create_infer_request()
        for number, t in enumerate(in_memory):
            request.set_input_tensor(number, _tensor(t.contiguous()))
        request.start_async()
        request.wait()
        got = [_numbers(request.get_output_tensor(i)) for i in range(len(compiled.outputs))]
        worst = max(worst, _compare(want, got, properties, sizes))
    return worst


def _compare(
    want: Sequence[torch.Tensor], got: Sequence[torch.Tensor], properties: Mapping[str, str], sizes: Mapping[str, int]
) -> float:
    where = f" at {', '.join(f'{k}={v}' for k, v in sizes.items())}" if sizes else ""
    if len(want) != len(got):
        raise Refused(f"OpenVINO's model has {len(got)} outputs, the segment {len(want)}")
    coarse = max((ROUGH.get(t.dtype, ROUGH_ELSE) for t in want), default=ROUGH_ELSE)
    bound = max(coarse, ROUGH_PRECISION.get(properties[PRECISION], 0.0))
    worst = 0.0
    for number, (w, g) in enumerate(zip(want, got, strict=True)):
        if (w.dtype, w.shape) != (g.dtype, g.shape):
            raise Refused(
                f"output {number} of OpenVINO's model is {g.dtype} {tuple(g.shape)}, not {w.dtype} "
                f"{tuple(w.shape)}{where}"
            )
        error = _error_of(w.detach(), g)
        if not error <= bound:
            raise Refused(f"output {number} of OpenVINO's model is off by {error:.2g} of the largest number{where}")
        worst = max(worst, error)
    return worst


def _error_of(want: torch.Tensor, got: torch.Tensor) -> float:
    """inf where one is finite and the other is not, or where what is no float differs."""
    if not want.dtype.is_floating_point:
        return 0.0 if torch.equal(want, got) else float("inf")
    w, g = want.double(), got.double()
    same = (w == g) | (w.isnan() & g.isnan())
    finite = w.isfinite() & g.isfinite()
    if not bool((same | finite).all()):
        return float("inf")
    rest = finite & ~same
    if not bool(rest.any()):
        return 0.0
    scale = max(1e-30, float(w[finite].abs().max()))
    return float((w[rest] - g[rest]).abs().max()) / scale


# ---- the job


def compile_segment(job: Job) -> Made:
    """model.xml, model.bin and run.json in the job's folder."""
    properties = read_arguments(job.args)
    openvino = _load_openvino()
    logging.disable(logging.WARNING)
    warnings.simplefilter("ignore")
    if job.threads:
        torch.set_num_threads(job.threads)
    torch.manual_seed(0)
    route, model, error = _convert(job, properties)
    openvino.save_model(model, str(job.folder / "model.xml"), compress_to_fp16=False)
    orders = [i.order for i in job.inputs]
    (job.folder / "run.json").write_text(json.dumps({"properties": properties, "orders": orders}), encoding="utf-8")
    version = ".".join(re.findall(r"\d+", openvino.__version__)[:2])
    return Made(MEMBERS, {"openvino": version}, {"route": route, "error": f"{error:.3g}"})


def _first_route(job: Job) -> str:
    """torch.jit.trace is several times as fast. It takes formulas over sizes for the numbers that they are at the
    example, and a comparison at a few sizes may not show that: it is first where no size can change."""
    return "export" if job.free else "trace"


def _convert(job: Job, properties: Mapping[str, str]) -> tuple[str, Any, float]:
    """The first route that gives the segment's numbers. If none does, what torch.export said: it knows more."""
    failures: dict[str, Exception] = {}
    first = _first_route(job)
    with torch.no_grad():
        for route in sorted(ROUTES, key=lambda name: name != first):
            try:
                model = _with_all_inputs(job, ROUTES[route](job, job.examples()))
                _shape_inputs(job, model)
                _copy_inputs_that_go_out(model)
                return route, model, _check(job, model, properties)
            except Exception as error:
                print(f"through {route}: {error}", file=sys.stderr)
                failures[route] = error
    raise failures["export"]


def warm_up(folder: Path | None) -> None:
    _load_openvino()
    if folder is not None and _first_route(Job(folder)) == "export":
        importlib.import_module("torch.export._trace")


if __name__ == "__main__":
    sys.exit(run(compile_segment, warm_up))

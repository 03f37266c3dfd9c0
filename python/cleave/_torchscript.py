"""A traced module as a torch.jit.ScriptModule: compiled segments are calls of the operator cleave::segment.

The plan is cut at the borders of its segments. A segment becomes the bytes of a file of its own, a buffer of the
module. What is between segments becomes TorchScript of the generated source, with the tensors it reads as parameters;
where that is no TorchScript, it becomes bytes too, which the operator runs as they are. A forward around them passes
on what goes from one part to the next, sizes among it.

TorchScript is compiled from text and not traced: torch.jit.trace keeps the way that formulas over sizes took once."""

from __future__ import annotations

import ast
import importlib.util
import keyword
import os
import re
import tempfile
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import torch

from . import _native, _tree, tracing
from ._capture import Captured, parameter_names
from ._log import logger, warn
from ._state import RandomState
from .compilers._job import DTYPES
from .errors import ArgumentError, CaptureError, CleaveError, ValidationError
from .plan import Plan

log = logger("script")

SWITCH = "CLEAVE_ALLOW_COMPILED"  # as src/exec/operator.c reads it
CLASS = "Between"
MAIN = 0  # the plan that is converted: the one of the example


def allow_compiled(allow: bool = True) -> None:
    """Whether machine code in ScriptModules may run, no matter who made it; else segments run operator by operator.

    What this process made by to_torchscript() always runs. It is a variable of the environment, CLEAVE_ALLOW_COMPILED,
    which processes that are started from now on inherit.

    >>> import cleave
    >>> cleave.allow_compiled(True)
    >>> cleave.allow_compiled(False)
    """
    os.environ[SWITCH] = "1" if allow else "0"


def convert(traced: tracing.TracedModule) -> torch.jit.ScriptModule:
    """Refuses, with the reason, what has no form in TorchScript."""
    with tempfile.TemporaryDirectory(prefix="cleave-script-") as folder, torch.no_grad():
        made = _Conversion(traced, Path(folder))
        script = made.script()
        made.compare(script)
    return script


class _Conversion:
    def __init__(self, traced: tracing.TracedModule, folder: Path) -> None:
        changed = traced._changed()
        if changed is not None:
            raise ArgumentError(f"{changed}: the compiled code has the old weights; trace the model again")
        own = vars(traced)
        self.traced, self.folder = traced, folder
        self.plan: Plan = own["_plan"]
        self.artifact: Any = own["_artifact"]
        self.runtime: Any = own["_runtime"]
        self.calls: list[list[torch.Tensor]] = own["_calls"]
        self.captured: Captured = own["_captured"][MAIN]
        self.name = self.plan._target.name
        self.holder = torch.nn.Module()
        self.lines: list[str] = []
        self.tensors: dict[Any, torch.Tensor] = {}
        traced._prove("auto")  # some sizes may turn out to have a plan of their own
        self._refuse()

    def _refuse(self) -> None:
        """Refuses a forward that does more than return outputs."""
        plan = self.captured.plan
        if self.captured.stores or plan.rebinds():
            what = ", ".join(plan.rebinds()) or "a tensor"
            raise CaptureError(f"{self.name} keeps {what} in its own state, which a ScriptModule here does not do")
        effects = plan.effects(0, plan.node_count())
        if "writes state" in effects:
            raise CaptureError(
                f"{effects['writes state']} changes a tensor of {self.name}, which compiled parts would not see: "
                "call eval() before the trace"
            )

    # ---- the whole

    def script(self) -> torch.jit.ScriptModule:
        inputs, outputs = _native.plan_values(self.artifact, MAIN)
        arguments = _Arguments(self.captured.arguments, self._names())
        names = [f"v{i}" for i in inputs]
        self.lines += [f"{v} = {x}" for v, x in zip(names, arguments.leaves, strict=True)]
        self._check_inputs(names, arguments.leaves)
        known = set(inputs)
        for first, end, segment in self._ranges():
            known.update(self._range(first, end, segment))
        missing = [i for i in outputs if i not in known]
        if missing:
            raise CaptureError(f"{self.name} gives one of its own tensors as an output, which has no part to come from")
        result = _output(self.captured.output, iter([f"v{i}" for i in outputs]))
        text = f"import torch\nfrom torch import Tensor\nfrom typing import Dict, List, Tuple\n\n\n{_WHOLE}"
        text += f"    def forward(self{arguments.text}):\n"
        text += "".join(f"        {line}\n" for line in [*self.lines, f"return {result}"])
        module = self._load(text, "Model", "whole")()
        for key, child in self.holder._modules.items():
            module.add_module(key, child)
        for key, tensor in self.holder._buffers.items():
            module.register_buffer(key, tensor)
        try:
            return torch.jit.script(module.eval())
        except Exception as error:
            raise CaptureError(
                f"{self.name} has inputs or outputs that TorchScript does not: {_short(error)}"
            ) from None

    def _names(self) -> list[str]:
        positional = self.captured.arguments.children[0]
        return parameter_names(self.plan._target, len(positional.children))

    def _ranges(self) -> Iterator[tuple[int, int, int | None]]:
        """(first, end, its number if it is a segment), one after another."""
        at = 0
        for i, segment in enumerate(_native.trace_segments(self.artifact, MAIN)[0]):
            if segment[0] > at:
                yield at, segment[0], None
            yield segment[0], segment[1], i
            at = segment[1]
        end = self.captured.plan.node_count()
        if end > at:
            yield at, end, None

    def _range(self, first: int, end: int, segment: int | None) -> list[int]:
        """Adds a part. Returns the values that it gives."""
        takes, gives = _native.nodes_values(self.artifact, MAIN, first, end)
        path = self.folder / f"part{first}.clv"
        given = [f"v{i}" for i in takes]
        try:
            if segment is not None:
                _native.segment_save(self.artifact, MAIN, segment, os.fsencode(path))
                call = self._operator(path, first, given)
            else:
                _native.nodes_save(self.artifact, MAIN, first, end, os.fsencode(path))
                call = self._between(path, first, given)
        except CleaveError as error:
            raise CaptureError(f"nodes {self._labels(first, end)} cannot be in a ScriptModule: {error}") from None
        self.lines.append(f"o = {call}")
        self.lines += [f"v{i} = o[{k}]" for k, i in enumerate(gives)]
        return gives

    def _labels(self, first: int, end: int) -> str:
        rows = self.artifact.plan(MAIN)[0].nodes()
        return str(rows[first][0]) if end == first + 1 else f"{rows[first][0]} to {rows[end - 1][0]}"

    # ---- parts

    def _operator(self, path: Path, first: int, given: Sequence[str]) -> str:
        code = torch.frombuffer(bytearray(path.read_bytes()), dtype=torch.uint8).clone()
        _native.segment_trust(code)
        self.holder.register_buffer(f"code{first}", code)
        return f"torch.ops.cleave.segment(self.code{first}, [{', '.join(given)}])"

    def _between(self, path: Path, first: int, given: Sequence[str]) -> str:
        """Nodes that are not compiled: their source, else the operator, which runs them as they are."""
        sizes: list[str] = []
        try:
            part, sizes = self._source(path, first)
            self.holder.add_module(f"part{first}", torch.jit.script(part))
        except Exception as error:  # the TorchScript compiler raises many types
            if sizes:
                raise CaptureError(f"{_short(error)}, and no input shows {', '.join(sizes)}, which they need") from None
            log.info("nodes from %d on have no TorchScript, the operator runs them: %s", first, _short(error))
            return self._operator(path, first, given)
        return f"self.part{first}({', '.join([*given, *sizes])})"

    def _source(self, path: Path, first: int) -> tuple[torch.nn.Module, list[str]]:
        """The generated source as a module with its tensors, and the sizes that it takes in addition."""
        artifact = _native.Artifact(os.fsencode(path), [], False, False)
        how = (False, False, None, 0, False, 0.0, 0, False)
        runtime = _native.Runtime(artifact, None, None, True, False, *how, _native.SANDBOX_OFF)  # it is our own file
        plan = artifact.plan(0)[0]
        count = plan.node_count()
        places = plan.places(0, count)[0]
        names = _unique([place for place, _, _ in places])
        tree = ast.parse(plan.source(0, count, CLASS, solve=True))
        sizes = _flatten(tree, dict(zip([p[0] for p in places], names, strict=True)))
        module = self._load(ast.unparse(tree), CLASS, f"part{first}")()
        state, constants = runtime.state(), runtime.constants(0)
        for (place, name, _), flat in zip(places, names, strict=True):
            self._put(module, flat, name, state[name] if name is not None else constants[place])
        return module.eval(), sizes

    def _put(self, module: torch.nn.Module, key: str, name: str | None, tensor: torch.Tensor) -> None:
        """A copy: the module is to stay as it was traced. What is one tensor in the model is one here."""
        kept = tensor.detach().clone() if name is None else self.tensors.setdefault(name, tensor.detach().clone())
        trained = name is not None and isinstance(_live(self.captured, name), torch.nn.Parameter)
        if trained and kept.is_floating_point():
            module.register_parameter(key, torch.nn.Parameter(kept, requires_grad=False))
        else:
            module.register_buffer(key, kept)

    def _load(self, text: str, name: str, file: str) -> Callable[[], torch.nn.Module]:
        """Runs source from a file, where TorchScript can read it."""
        path = self.folder / f"{file}.py"
        path.write_text(text, encoding="utf-8")
        spec = importlib.util.spec_from_file_location(f"cleave_script_{file}", path)
        assert spec is not None
        assert spec.loader is not None
        module = importlib.util.module_from_spec(spec)
        spec.loader.exec_module(module)
        made: Callable[[], torch.nn.Module] = getattr(module, name)
        return made

    # ---- sizes

    def _check_inputs(self, values: Sequence[str], shown: Sequence[str]) -> None:
        """A ScriptModule is valid for the traced shapes and dtypes only; with others it would compute wrong numbers."""
        ports = self.runtime.inputs()
        sized = self.plan._sized
        for symbol in sized.symbols if sized is not None and self.captured.symbols else ():
            leaf, dim = symbol.places[0]
            self._check(f"{values[leaf]}.dim() > {dim}", f"{shown[leaf]} has no dimension {dim}")
            self.lines.append(f"{symbol.name} = {values[leaf]}.size({dim})")
            self._check(
                f"{symbol.low} <= {symbol.name} and {symbol.name} <= {symbol.high}",
                f"{symbol.name}, the size {dim} of {shown[leaf]}, is from {symbol.low} to {symbol.high}",
            )
        for value, name, port in zip(values, shown, ports, strict=True):
            _, dtype, dims, _ = port
            tests = [f"{value}.dim() == {len(dims)}", *(f"{value}.size({d}) == {text}" for d, text in enumerate(dims))]
            if dtype in DTYPES:
                tests.insert(0, f"{value}.dtype == {DTYPES[dtype]}")
            self._check(" and ".join(tests), f"{name} is {dtype}[{', '.join(dims)}] where this was traced")
        self._check_asked(values, shown)
        self._check_sizes()

    def _check_asked(self, values: Sequence[str], shown: Sequence[str]) -> None:
        """What the forward asks of its inputs. TorchScript cannot tell whether two tensors are one object, only whether
        they are on the same memory in the same way, as all that are one do."""
        _, _, same, flags = self.captured.modules.made_of
        if same is not None and same != list(range(len(same))):
            raise CaptureError(
                f"{self.name} may ask whether two inputs are the same tensor, and was traced with one tensor for two: "
                "TorchScript cannot ask that; trace it with two tensors"
            )
        kinds = [(dtype, len(dims)) for _, dtype, dims, _ in self.runtime.inputs()]
        for i in range(len(values) if same is not None else 0):
            for k in [k for k in range(i) if kinds[k] == kinds[i]]:
                self._check(
                    f"not {values[i]}.is_set_to({values[k]})",
                    f"{shown[i]} and {shown[k]} are the same tensor, for which the model asks, and were two where this "
                    "was traced: give it a copy",
                )
        for value, name, flag in zip(values, shown, flags, strict=False):
            if flag >= 0:
                did = "required" if flag else "did not require"
                test = f"{'' if flag else 'not '}{value}.requires_grad"
                self._check(test, f"{name} {did} grad where this was traced, and the model asks for that")

    def _check(self, test: str, otherwise: str) -> None:
        text = otherwise.replace("\\", "").replace('"', "'")
        self.lines += [f"if not ({test}):", f'    raise RuntimeError("{text}")']

    def _check_sizes(self) -> None:
        """Refuses sizes that another plan serves, and those that were never recorded."""
        sized = self.plan._sized
        if sized is None or not self.captured.symbols:
            return
        if len(sized.names) > 1:
            raise CaptureError(f"{self.name} has several sizes that change: {', '.join(sized.names)}")
        name, proven = sized.names[0], sized.proven
        mine = sorted(p[0] for p, c in proven.items() if c is self.captured)
        others = sorted(p[0] for p, c in proven.items() if c is not self.captured)
        if others:
            warn(
                f"{self.name} has plans of their own for {name} = {_few(others)}: they are not in the ScriptModule, "
                "which refuses these sizes"
            )
        if not self.traced._any_size():
            self._check(f"{name} in {mine}", f"the model was recorded at {name} = {_few(mine)}, and at no other size")
        elif others:
            self._check(f"{name} not in {others}", f"the model does something else at {name} = {_few(others)}")

    # ---- the proof

    def compare(self, script: torch.jit.ScriptModule) -> None:
        """Compares it with the traced module on the calls that segments were compared on."""
        before = RandomState()
        try:
            for leaves in self.calls:
                if self._served(leaves):
                    self._compare(script, leaves, before)
        finally:
            before.restore()

    def _served(self, leaves: Sequence[torch.Tensor]) -> bool:
        sized = self.plan._sized
        return sized is None or sized.sizes_of(leaves) in sized.points_of(self.captured)

    def _compare(self, script: torch.jit.ScriptModule, leaves: Sequence[torch.Tensor], before: RandomState) -> None:
        mine = [t.detach().clone() for t in leaves]  # some models write to their inputs
        before.restore()
        args, kwargs = _tree.unflatten(self.captured.arguments, [t.detach().clone() for t in leaves])
        want = _tree.flatten(self.traced(*args, **kwargs))[1]
        before.restore()  # those that draw random numbers draw the same
        args, kwargs = _tree.unflatten(self.captured.arguments, mine)
        tensors = [a for a in [*args, *kwargs.values()] if _tree.flatten(a)[1]]
        try:
            got = _tree.flatten(script(*tensors))[1]
        except RuntimeError as error:
            raise CaptureError(f"the ScriptModule of {self.name} does not run: {_short(error)}") from None
        for i, (a, b) in enumerate(zip(got, want, strict=True)):
            off, scale = _native.difference(a, b)
            if not off <= tracing._allowed(b, scale, -1.0):
                raise ValidationError(f"output {i} of the ScriptModule of {self.name} is off by {off:.3g}")


_WHOLE = "class Model(torch.nn.Module):\n"


def _live(captured: Captured, name: str) -> torch.Tensor | None:
    if name not in captured.state:
        return None
    holder, key = captured.state[name]
    found: torch.Tensor = holder[key]
    return found


def _few(sizes: Sequence[int]) -> str:
    rest = len(sizes) - 8
    return ", ".join(map(str, sizes[:8])) + (f" and {rest} more" if rest > 0 else "")


def _short(error: BaseException) -> str:
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    return " ".join(lines[:3])[:400] or type(error).__name__


# ---- arguments and results


class _Arguments:
    """The parameters of the forward: those of the model that have tensors in them. text: as a signature has them;
    leaves: how to read each tensor."""

    def __init__(self, spec: _tree.Spec, names: Sequence[str]) -> None:
        positional, keywords = spec.children
        given = [*zip(names, positional.children, strict=False), *zip(keywords.keys, keywords.children, strict=True)]
        given = [(name, child) for name, child in given if _has_tensors(child)]
        self.text, self.leaves = "", []
        for (name, child), free in zip(given, _unique([name for name, _ in given]), strict=True):
            self.text += f", {free}: {_annotation(child, name)}"
            self.leaves += _reads(child, free)


def _has_tensors(spec: _tree.Spec) -> bool:
    return spec.kind == "leaf" or any(_has_tensors(c) for c in spec.children)


def _annotation(spec: _tree.Spec, name: str) -> str:
    inner = [_annotation(c, name) for c in spec.children]
    if spec.kind == "leaf":
        return "Tensor"
    if spec.kind == "tuple" and inner:
        return f"Tuple[{', '.join(inner)}]"
    if spec.kind == "list" and len(set(inner)) == 1:
        return f"List[{inner[0]}]"
    if spec.kind == "dict" and len(set(inner)) == 1 and all(isinstance(k, str) for k in spec.keys):
        return f"Dict[str, {inner[0]}]"
    what = spec.cls.__name__ if isinstance(spec.cls, type) else spec.kind
    raise CaptureError(
        f"input {name} has a {what} in it, which has no type in TorchScript: tuples, and lists and dicts "
        "of tensors have one"
    )


def _reads(spec: _tree.Spec, at: str) -> list[str]:
    if spec.kind == "leaf":
        return [at]
    keys = spec.keys if spec.kind == "dict" else range(len(spec.children))
    return [x for key, child in zip(keys, spec.children, strict=True) for x in _reads(child, f"{at}[{key!r}]")]


def _output(spec: _tree.Spec, leaves: Iterator[str]) -> str:
    """The model's output as an expression; classes become the tuple or dict that they are like."""
    if spec.kind == "leaf":
        return next(leaves)
    if spec.kind == "const" and (spec.value is None or isinstance(spec.value, (bool, int, float, str))):
        return repr(spec.value)
    inner = [_output(c, leaves) for c in spec.children]
    if spec.kind == "tuple":
        return f"({''.join(f'{x}, ' for x in inner)})"
    if spec.kind == "list":
        return f"[{', '.join(inner)}]"
    if spec.kind in ("dict", "mapping_object") and all(isinstance(k, str) for k in spec.keys):
        return "{" + ", ".join(f"{k!r}: {x}" for k, x in zip(spec.keys, inner, strict=True)) + "}"
    what = spec.cls.__name__ if isinstance(spec.cls, type) else spec.kind
    if spec.kind == "formula":
        what = "number that follows the sizes"
    raise CaptureError(f"the output has a {what} in it, which has no form in TorchScript")


# ---- source


def _unique(texts: Sequence[str]) -> list[str]:
    """Names for attributes and parameters, one for each text."""
    out: list[str] = []
    for text in texts:
        name = base = re.sub(r"\W", "_", text, flags=re.ASCII)
        if not name.isidentifier() or keyword.iskeyword(name) or hasattr(torch.nn.Module, name) or name == "self":
            name = base = f"_{base}"
        number = 2
        while name in out:
            name, number = f"{base}_{number}", number + 1
        out.append(name)
    return out


def _flatten(tree: ast.Module, names: dict[str, str]) -> list[str]:
    """Rewrites generated source for TorchScript: tensors are attributes of the module itself, operators have no
    overload in their names, sizes are parameters like others. Returns those sizes."""
    made = next(x for x in tree.body if isinstance(x, ast.ClassDef) and x.name == CLASS and _method(x, "forward"))
    forward = _method(made, "forward")
    assert forward is not None
    sizes = [a.arg for a in forward.args.kwonlyargs]
    for argument in forward.args.kwonlyargs:
        argument.annotation = ast.Name("int", ast.Load())
    forward.args.args += forward.args.kwonlyargs
    forward.args.kwonlyargs, forward.args.kw_defaults = [], []
    _Rewrite(names).visit(forward)
    made.body = [forward]
    tree.body = [x for x in tree.body if x is made or not isinstance(x, ast.ClassDef)]
    ast.fix_missing_locations(tree)
    return sizes


def _method(cls: ast.ClassDef, name: str) -> ast.FunctionDef | None:
    return next((x for x in cls.body if isinstance(x, ast.FunctionDef) and x.name == name), None)


class _Rewrite(ast.NodeTransformer):
    def __init__(self, names: dict[str, str]) -> None:
        self.names = names

    def visit(self, node: ast.AST) -> Any:
        place = _place(node)
        if place in self.names:
            return ast.Attribute(ast.Name("self", ast.Load()), self.names[place], ast.Load())
        if isinstance(node, ast.Attribute):
            path = ast.unparse(node).split(".")
            if path[:2] == ["torch", "ops"] and len(path) == 5:
                return node.value
        return self.generic_visit(node)


def _place(node: ast.AST) -> str | None:
    """`self.layers[0].weight` as "layers.0.weight"; None for what does not begin with self."""
    match node:
        case ast.Name(id="self"):
            return ""
        case ast.Attribute(value=inner, attr=str(key)):
            pass
        case ast.Subscript(value=inner, slice=ast.Constant(value=int() | str() as key)):
            pass
        case ast.Call(func=ast.Name(id="getattr"), args=[inner, ast.Constant(value=str(key))]):
            pass
        case _:
            return None
    base = _place(inner)
    return None if base is None else f"{base}.{key}".lstrip(".")

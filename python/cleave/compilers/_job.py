"""One job of a compiler: what is in its folder, the segment as a module, example inputs, and how it ends.

    def compile_segment(job: Job) -> Made: ...

    if __name__ == "__main__":
        sys.exit(run(compile_segment, warm_up))

What a compiler raises becomes error.json: Refused as it stands; anything else with the nodes whose lines of segment.py
are in the traceback."""

from __future__ import annotations

import ast
import contextlib
import dataclasses
import inspect
import itertools
import json
import os
import signal
import socket
import sys
import traceback
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import torch

from .. import _native

CLASS = "Segment"
MESSAGE_MAX = 600
IDLE = 300.0  # seconds without a job after which a compiler that waits for them ends

DTYPES = {
    "u8": torch.uint8,
    "i8": torch.int8,
    "i16": torch.int16,
    "i32": torch.int32,
    "i64": torch.int64,
    "f16": torch.float16,
    "f32": torch.float32,
    "f64": torch.float64,
    "bf16": torch.bfloat16,
    "bool": torch.bool,
    "u16": torch.uint16,
    "u32": torch.uint32,
    "u64": torch.uint64,
    "c64": torch.complex64,
    "c128": torch.complex128,
}


class Refused(Exception):
    """The compiler does not take this segment. nodes: those to blame; argument: the compiler argument to blame."""

    def __init__(self, message: str, nodes: Sequence[str] = (), argument: str | None = None) -> None:
        super().__init__(message)
        self.nodes = list(nodes)
        self.argument = argument


@dataclasses.dataclass
class Size:
    """The values that a symbol may have; low == high: it has one."""

    low: int
    high: int
    example: int

    @property
    def fixed(self) -> bool:
        return self.low == self.high


@dataclasses.dataclass
class Input:
    """A tensor that goes in. shape: "B", "3", "4*B+1"; order: dimensions from the slowest to the fastest in memory."""

    dtype: str
    device: str
    shape: list[str]
    order: list[int] | None

    def sizes(self, symbols: Mapping[str, int]) -> list[int]:
        return [evaluate(text, symbols) for text in self.shape]


@dataclasses.dataclass
class Made:
    """What a compiler made: names of files in the folder, what must be there for them to run, what people may ask."""

    members: list[str]
    needs: dict[str, str]
    notes: dict[str, str] = dataclasses.field(default_factory=dict)


# ---- sizes


def evaluate(text: str, names: Mapping[str, Any]) -> Any:
    """A size as plans write it: integers, symbols, + - * // % and min, max. Names may stand for what is no number."""

    def value(node: ast.expr) -> Any:
        match node:
            case ast.Constant(value=int(n)):
                return n
            case ast.Name(id=name) if name in names:
                return names[name]
            case ast.UnaryOp(op=ast.USub(), operand=x):
                return -value(x)
            case ast.BinOp(left=a, op=ast.Add(), right=b):
                return value(a) + value(b)
            case ast.BinOp(left=a, op=ast.Sub(), right=b):
                return value(a) - value(b)
            case ast.BinOp(left=a, op=ast.Mult(), right=b):
                return value(a) * value(b)
            case ast.BinOp(left=a, op=ast.FloorDiv(), right=b):
                return value(a) // value(b)
            case ast.BinOp(left=a, op=ast.Mod(), right=b):
                return value(a) % value(b)
            case ast.Call(func=ast.Name(id="min" | "max" as f), args=args):
                return (min if f == "min" else max)(value(x) for x in args)
        raise ValueError(f"{text!r} is no size over {', '.join(names) or 'no symbols'}")

    return value(ast.parse(text, mode="eval").body)


def symbols_in(text: str) -> set[str]:
    return {n.id for n in ast.walk(ast.parse(text, mode="eval")) if isinstance(n, ast.Name)} - {"min", "max"}


def _near(size: Size) -> Iterator[int]:
    """Values of a symbol, the example first, then what is close to it."""
    for distance in itertools.count():
        around = {size.example + distance, size.example - distance}
        if size.example - distance < size.low and size.example + distance > size.high:
            return
        yield from sorted(n for n in around if size.low <= n <= size.high)


# ---- the segment


class Segment:
    """The nodes of a job as a module with the weights in it. source: its text, as segment.py has it."""

    def __init__(self, folder: Path) -> None:
        path = folder / "segment.clv"
        artifact = _native.Artifact(os.fsencode(path), [], False)
        self._runtime = _native.Runtime(artifact, None, None, True, False)
        self.plan = artifact.plan(0)[0]
        count = self.plan.node_count()
        rows = self.plan.nodes()
        self.nodes: list[str] = [row[0] for row in rows]
        self.operators: dict[str, str] = {row[0]: row[1] for row in rows}
        self.source = self.plan.source(0, count, CLASS, solve=True)
        self.filename = str(folder / "segment.py")
        Path(self.filename).write_text(self.source, encoding="utf-8")
        self.module = self._load()
        self._of_line = _lines(self.source, self.nodes)

    def _load(self) -> torch.nn.Module:
        namespace: dict[str, Any] = {"__name__": "segment"}
        exec(compile(self.source, self.filename, "exec"), namespace)
        module: torch.nn.Module = namespace[CLASS]()
        missing = [p.name for p in inspect.signature(module.forward).parameters.values() if p.kind is p.KEYWORD_ONLY]
        if missing:
            raise Refused(f"no size of an input shows {', '.join(missing)}, and the segment needs it")
        state, constants = self._runtime.state(), self._runtime.constants(0)
        for place, name, _ in self.plan.places(0, len(self.nodes))[0]:
            _put(module, place, state[name] if name is not None else constants[place])
        return module.eval().requires_grad_(False)

    def at_line(self, line: int) -> str | None:
        """The node that a line of segment.py belongs to."""
        return self._of_line.get(line)

    def with_operator(self, operator: str) -> list[str]:
        """Nodes that call it; without an overload ("aten::sort") any of them."""
        return [n for n, op in self.operators.items() if operator in (op, op.partition(".")[0])]

    def blamed(self, error: BaseException) -> list[str]:
        """Nodes whose lines are in the traceback, or in the text (compilers quote the lines they were at)."""
        found: dict[str, None] = {}
        seen: BaseException | None = error
        while seen is not None:
            for frame in traceback.extract_tb(seen.__traceback__):
                if frame.filename == self.filename and frame.lineno and (node := self.at_line(frame.lineno)):
                    found[node] = None
            seen = seen.__cause__ or seen.__context__
        return list(found | dict.fromkeys(self.quoted(str(error))))

    def quoted(self, text: str) -> list[str]:
        """Nodes whose lines a text names: `File "…/segment.py", line 12`."""
        found: dict[str, None] = {}
        for part in text.split(f'"{self.filename}", line ')[1:]:
            digits = "".join(itertools.takewhile(str.isdigit, part))
            if digits and (node := self.at_line(int(digits))):
                found[node] = None
        return list(found)


def _put(module: torch.nn.Module, place: str, tensor: torch.Tensor) -> None:
    path, _, key = place.rpartition(".")
    owner = module.get_submodule(path)
    if key in owner._parameters:
        owner._parameters[key] = torch.nn.Parameter(tensor.detach(), requires_grad=False)
    else:
        owner._buffers[key] = tensor.detach()


def _lines(source: str, nodes: Sequence[str]) -> dict[int, str]:
    """Line to node. A node is one statement, and guards (`if`) behind it; before the nodes there may be those that name
    sizes, after them is `return`."""
    tree = ast.parse(source)
    made = next(x for x in tree.body if isinstance(x, ast.ClassDef) and x.name == CLASS)
    forward = next(x for x in made.body if isinstance(x, ast.FunctionDef) and x.name == "forward")

    def flat(body: Sequence[ast.stmt]) -> Iterator[ast.stmt]:
        for s in body:
            yield from flat(s.body) if isinstance(s, ast.With) else (s,)

    statements = [s for s in flat(forward.body) if not isinstance(s, (ast.Return, ast.If))]
    mine = statements[len(statements) - len(nodes) :]
    return {
        line: node
        for s, node in zip(mine, nodes, strict=False)
        for line in range(s.lineno, (s.end_lineno or s.lineno) + 1)
    }


# ---- the job


class Job:
    """A job's folder, read."""

    def __init__(self, folder: str | os.PathLike[str]) -> None:
        self.folder = Path(folder).resolve()
        text = json.loads((self.folder / "job.json").read_text(encoding="utf-8"))
        self.backend: str = text["backend"]
        self.args: list[str] = text["args"]
        self.sizes = {name: Size(s["low"], s["high"], s["example"]) for name, s in text["sizes"].items()}
        self.inputs = [Input(i["dtype"], i["device"], i["shape"], i["order"]) for i in text["inputs"]]
        self.threads: int = text["threads"]
        self._segment: Segment | None = None

    @property
    def segment(self) -> Segment:
        """The segment; segment.py is written when it is first asked for."""
        if self._segment is None:
            self._segment = Segment(self.folder)
        return self._segment

    @property
    def free(self) -> list[str]:
        """Symbols that have more than one value."""
        return [name for name, s in self.sizes.items() if not s.fixed]

    def is_free(self, dim: str) -> bool:
        """Whether a size of an input can change."""
        return not symbols_in(dim).isdisjoint(self.free)

    def example_sizes(self) -> dict[str, int]:
        """Sizes for examples, close to those that the job names. Compilers take sizes 0 and 1, and equal ones,
        for something that is always so: these are neither, as far as there are such."""
        chosen = {name: s.example for name, s in self.sizes.items()}
        constant = {evaluate(d, chosen) for i in self.inputs for d in i.shape if not self.is_free(d)}
        for name in self.free:
            taken = constant | {n for other, n in chosen.items() if other != name}
            for n in itertools.islice(_near(self.sizes[name]), 1000):
                tried = {**chosen, name: n}
                shown = [evaluate(d, tried) for i in self.inputs for d in i.shape if name in symbols_in(d)]
                if n > 1 and min(shown, default=2) > 1 and taken.isdisjoint((n, *shown)):
                    chosen[name] = n
                    break
        return chosen

    def examples(self, sizes: Mapping[str, int] | None = None) -> list[torch.Tensor]:
        """Inputs of these sizes, in the layout of the job."""
        sizes = self.example_sizes() if sizes is None else sizes
        return [example(i, sizes) for i in self.inputs]


def example(port: Input, sizes: Mapping[str, int]) -> torch.Tensor:
    """Small random values; integers are 0 and 1, which are in range wherever they are indices."""
    shape = port.sizes(sizes)
    dtype = DTYPES.get(port.dtype)
    if dtype is None:
        raise Refused(f"an input is of type {port.dtype}, for which there are no examples")
    order = list(range(len(shape))) if port.order is None else port.order
    there = torch.empty([shape[d] for d in order], dtype=dtype, device=port.device)
    back = [order.index(d) for d in range(len(shape))]
    out = there.permute(back)
    if dtype.is_floating_point or dtype.is_complex:
        out.copy_(torch.randn(shape, device=port.device))
    else:
        out.copy_(torch.randint(0, 2, shape, device=port.device))
    return out


def refuse_narrowed(job: Job, program: torch.export.ExportedProgram) -> None:
    """Refused, where torch.export took sizes of the job for fixed or for bounded: its checks are not in what compilers
    make of it. Below 2 it always is, and 1 is tried out by whoever asked for the job."""
    from torch.utils._sympy.value_ranges import ValueRanges, bound_sympy

    names = dict.fromkeys(program.graph_signature.user_inputs)
    shown = [n.meta["val"].shape for n in program.graph.nodes if n.op == "placeholder" and n.name in names]
    corners = [
        dict(zip(job.sizes, values, strict=True))
        for values in itertools.product(*({s.low, s.high} for s in job.sizes.values()))
    ]
    for port, shape in zip(job.inputs, shown, strict=True):
        for text, size in zip(port.shape, shape, strict=True):
            if not job.is_free(text):
                continue
            asked = [evaluate(text, corner) for corner in corners]
            fixed = isinstance(size, int)
            found = ValueRanges.wrap(size) if fixed else bound_sympy(size.node.expr, program.range_constraints)
            low, high = max(min(asked), 2), max(asked)
            if found.lower > low or found.upper < high:
                raise Refused(f"torch.export allows {found.lower} to {found.upper} for a size {text}: {low} to {high}")


# ---- how it ends


def short(error: BaseException) -> str:
    """What an error says, without what is for the compiler's own developers."""
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    text = " ".join(lines[:3]) or "no message"
    name = type(error).__name__
    return (text if text.startswith(name) else f"{name}: {text}")[:MESSAGE_MAX]


def run(compile_segment: Callable[[Job], Made], warm_up: Callable[[Path | None], None]) -> int:
    """Main of a compiler: its one argument is the folder. Returns the exit code.

    With --serve it waits for jobs instead (src/segment/warm.c). warm_up loads what jobs need: first what all of them
    do, then what the one in a folder does besides."""
    if len(sys.argv) != 2:
        print(f"usage: python -m {_module_name()} FOLDER", file=sys.stderr)
        return 2
    return _serve(compile_segment, warm_up) if sys.argv[1] == "--serve" else run_job(compile_segment, sys.argv[1])


def run_job(compile_segment: Callable[[Job], Made], folder: str) -> int:
    """One job. Returns the exit code."""
    job = Job(folder)
    try:
        made = compile_segment(job)
        for name in made.members:
            if not (job.folder / name).is_file():
                raise RuntimeError(f"the compiler said it made {name}, which is not there")
    except Exception as error:
        traceback.print_exc()
        _write(job, "error.json", _error(job, error))
        return 1
    _write(job, "result.json", dataclasses.asdict(made))
    return 0


def _serve(compile_segment: Callable[[Job], Made], warm_up: Callable[[Path | None], None]) -> int:
    """Splits a process off for each job that comes, until nobody is left to send one, or none came for long. Nothing
    here may start a thread or compute: the processes that are split off have the one thread that splits them."""
    with contextlib.suppress(Exception):  # then jobs load it, and say what is wrong
        warm_up(None)
    asked = socket.socket(fileno=0)
    asked.send(b"!")
    asked.settimeout(IDLE)
    while True:
        try:
            text, ends, _, _ = socket.recv_fds(asked, 1 << 16, 2)
        except OSError:  # none came for long, or the other end is gone
            return _wait_for_jobs()
        if len(ends) != 2:
            return _wait_for_jobs()
        with contextlib.suppress(Exception):
            warm_up(Path(os.fsdecode(text)))
        try:
            if _native.split_job(text, b"compile.log", *ends):
                break
        except Exception:  # no process for it: who sent it sees its pipes close
            traceback.print_exc()
        for end in ends:
            os.close(end)
    asked.detach()
    signal.signal(signal.SIGPIPE, signal.SIG_IGN)
    signal.signal(signal.SIGINT, signal.default_int_handler)
    code = 1
    try:
        code = run_job(compile_segment, os.fsdecode(text))
    except BaseException:
        traceback.print_exc()
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(code)


def _wait_for_jobs() -> int:
    with contextlib.suppress(ChildProcessError):
        while True:
            os.wait()
    return 0


def _error(job: Job, error: Exception) -> dict[str, Any]:
    segment = job._segment
    if isinstance(error, Refused):
        out: dict[str, Any] = {"message": str(error), "nodes": error.nodes}
        return out if error.argument is None else {**out, "argument": error.argument}
    return {"message": short(error), "nodes": [] if segment is None else segment.blamed(error)}


def _write(job: Job, name: str, data: dict[str, Any]) -> None:
    (job.folder / name).write_text(json.dumps(data, indent=1, ensure_ascii=False) + "\n", encoding="utf-8")


def _module_name() -> str:
    spec = getattr(sys.modules["__main__"], "__spec__", None)
    return spec.name if spec is not None else sys.argv[0]

#!/usr/bin/env python3
"""Calls the operators that a file may hold (FILE_ALLOW in src/plan/ops.def) with random arguments, as a plan from a
file calls them, and names those that do what a file must not do.

    python tools/fuzz_operators.py [--calls N] [--first SEED] [--jobs J] [--seconds S] [--only PATTERN] [--samples]
    python tools/fuzz_operators.py --replay OP SEED [--samples]

Each call is made from the operator's schema and a seed alone: tensors of any dtype, with few or no elements, views
with odd strides, sparse and quantised ones, nan and infinity; integers that are negative or huge; lists that are too
short or too long; indices that are out of range. With --samples, half of the calls are those that PyTorch tests the
operator with, with an argument or two exchanged: these get deeper.

A call is a plan of one node, run with the guards of plans from files (src/bridge/bridge_guard*.cpp). Errors are fine.
These are not:
  - a signal: memory that operators read lies between pages that cannot be touched;
  - a call that takes longer than S seconds;
  - an argument that changed, though the schema does not say that it is written;
  - a result that depends on what was in its memory before.
Then the operator goes to REFUSE, or its arguments are checked before the call.

Operators are called in processes of their own with limited memory, which say what they are about to do in shared
memory: when one dies, that is the culprit, and another goes on after it.
"""

from __future__ import annotations

import argparse
import contextlib
import ctypes
import fnmatch
import json
import mmap
import os
import random
import resource
import signal
import struct
import sys
import tempfile
import time
import traceback
import types
import unittest
import warnings
import zlib
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, NamedTuple

import operators as listed
import torch
from torch import Tensor

import cleave
from cleave import _native

MEMORY = 256 << 20  # beyond what the libraries take: what is large enough to take long fails before
WORDS = [
    "mean", "sum", "none", "constant", "reflect", "replicate", "circular", "bilinear", "linear", "tanh", "floor",
    "trunc", "same", "valid", "ij", "xy", "add", "prod", "amax", "amin", "fro", "nuc",
    "reduced", "complete", "N", "L", "ortho", "right", "nearest", "gelu", "left", "forward",
]  # fmt: skip
INTEGERS = (
    0, 1, 2, 3, 4, 5, 7, -1, -2, -3, 64, 1 << 31, -(1 << 31), 1 << 32, 1 << 40, 1 << 61, (1 << 62) - 1, 1 << 62,
    (1 << 62) + 2, -(1 << 62), 3 << 61, (1 << 63) - 2, (1 << 63) - 1, -(1 << 63),
)  # fmt: skip
REALS = (
    0.0, 1.0, 0.5, -1.0, 2.0, 1e-5, float("nan"), float("inf"), float("-inf"), 1e38, -1e300, 1e-300, 5e-324, -1e-40,
    1e10, 1e19,
)  # fmt: skip
DTYPES = {
    torch.uint8: "u8", torch.int8: "i8", torch.int16: "i16", torch.int32: "i32", torch.int64: "i64",
    torch.float16: "f16", torch.bfloat16: "bf16", torch.float32: "f32", torch.float64: "f64", torch.bool: "bool",
    torch.complex64: "c64", torch.complex128: "c128", torch.quint8: "qu8", torch.qint8: "qi8", torch.qint32: "qi32",
}  # fmt: skip
PLAIN = [t for t in DTYPES if not DTYPES[t].startswith("q")]
# Results of these have what was in their memory: the guards clear them.
EMPTY = ("empty", "resize")


class Call(NamedTuple):
    args: list[Any]
    named: dict[str, Any]


# ---- memory ----------------------------------------------------------------------------------------------------------


class Fenced:
    """Memory for tensors between pages that cannot be touched."""

    PAGE = mmap.PAGESIZE
    SIZE = 16 * PAGE

    def __init__(self) -> None:
        self.map = mmap.mmap(-1, self.SIZE + 2 * self.PAGE)
        at = ctypes.addressof(ctypes.c_char.from_buffer(self.map))
        libc = ctypes.CDLL(None, use_errno=True)
        for page in (at, at + self.PAGE + self.SIZE):
            if libc.mprotect(ctypes.c_void_p(page), ctypes.c_size_t(self.PAGE), 0):
                raise OSError(ctypes.get_errno(), "mprotect")

    def tensor(self, like: Tensor, at_end: bool) -> Tensor:
        """A copy of a tensor, with its strides, whose memory ends (or begins) at such a page."""
        reach = sum((n - 1) * s for n, s in zip(like.shape, like.stride(), strict=True)) + 1 if like.numel() else 0
        size = reach * like.element_size()
        if not size or size > self.SIZE:
            return like
        start = self.PAGE + (self.SIZE - size if at_end else 0)
        flat = torch.frombuffer(self.map, dtype=like.dtype, count=reach, offset=start)
        flat.zero_()
        out = flat.as_strided(like.shape, like.stride())
        if like.is_contiguous():
            out.copy_(like)
        else:
            flat.copy_(like.as_strided((reach,), (1,)))
        return out


def fill_freed_memory_with(byte: int) -> None:
    ctypes.CDLL(None).mallopt(-6, byte)  # M_PERTURB


# ---- arguments -------------------------------------------------------------------------------------------------------


class Draw:
    """Arguments from one seed."""

    def __init__(self, name: str, seed: int) -> None:
        self.rng = random.Random(zlib.crc32(name.encode()) * (1 << 32) + seed)
        torch.manual_seed(seed)
        self.common = [self.rng.choice((1, 2, 3, 4)) for _ in range(self.rng.randrange(5))]
        t = torch
        self.dtype = self.rng.choice(
            (t.float32, t.float32, t.float32, t.float64, t.int64, t.bool, t.bfloat16, t.complex64)
        )
        self.usual = self.rng.random() < 0.6  # most arguments fit each other, so that kernels are reached

    def shape(self) -> list[int]:
        if self.usual and self.rng.random() < 0.85:
            return list(self.common)
        return [self.rng.choice((0, 1, 2, 3, 5, 8)) for _ in range(self.rng.randrange(6))]

    def spoil(self, x: Tensor) -> None:
        """One element with a value at the edge of what its dtype holds, or beyond what it may be as an index."""
        at = self.rng.randrange(x.numel())
        if x.dtype == torch.bool:
            return
        if x.dtype.is_floating_point or x.dtype.is_complex:
            x.view(-1)[at] = self.rng.choice((float("nan"), float("inf"), -1e30, 0.0, 1e-40, 3e9, 1e19, -1.0))
        else:
            info = torch.iinfo(x.dtype)
            x.view(-1)[at] = self.rng.choice(
                (0, max(-1, info.min), info.min, info.max, 100, info.max // 2, info.max - 1)
            )

    def filled(self, shape: list[int], dtype: torch.dtype) -> Tensor:
        if dtype == torch.bool:
            return torch.rand(shape) < 0.5
        if dtype.is_floating_point or dtype.is_complex:
            return torch.randn(shape).to(dtype)
        wide = self.rng.random() < 0.25
        low, high = (-(1 << 40), 1 << 40) if wide else (0, 4)
        return torch.randint(low, high, shape).to(dtype)

    def odd_strides(self, x: Tensor) -> Tensor:
        if not x.dim() or not x.shape[0]:
            return x
        ways: tuple[Callable[[], Tensor], ...] = (
            lambda: x.flip(0)[::2],
            lambda: x.transpose(0, -1),
            lambda: x[:0],
            lambda: x[0],
            lambda: x.unsqueeze(0).expand(3, *x.shape),
        )
        return self.rng.choice(ways)()

    def tensor(self, name: str) -> Tensor:
        rng = self.rng
        indices = any(word in name for word in ("ind", "offset", "target", "length", "batch_sizes", "label", "ids"))
        dtype = torch.int64 if indices and rng.random() < 0.8 else self.dtype
        if rng.random() < 0.15:
            dtype = rng.choice(PLAIN)
        x = self.filled(self.shape(), dtype)
        if x.numel() and rng.random() < 0.3:
            self.spoil(x)
        return self.odd_strides(x) if rng.random() < 0.25 else x

    def number(self, name: str) -> int:
        if self.usual and self.rng.random() < 0.85:
            return self.rng.choice((0, 1, 1, 2, -1) if "dim" in name or "axis" in name else (0, 1, 1, 2, 3))
        return self.rng.choice(INTEGERS)

    def integers(self, name: str) -> list[int]:
        n = self.rng.choice((0, 1, 1, 2, 2, 3, 4))
        if "size" in name and self.usual and self.rng.random() < 0.5:
            return list(self.common)
        if "dim" in name or "axis" in name:
            return [self.rng.choice((0, 1, 2, -1, 5)) for _ in range(n)]
        found = [self.number(name) for _ in range(n)]
        if n > 1 and not self.usual and self.rng.random() < 0.5:  # a pair whose sum says nothing of them
            at = self.rng.randrange(n - 1)
            found[at + 1] = max(min(self.rng.choice((0, 1, 2, 3)) - found[at], (1 << 63) - 1), -(1 << 63))
        return found

    def value(self, kind: str, name: str) -> Any:
        rng = self.rng
        if kind.startswith("Optional["):
            return None if rng.random() < 0.4 else self.value(kind[9:-1], name)
        if kind == "Tensor":
            return self.tensor(name)
        if kind.startswith("List["):
            inner = kind[5:-1]
            if inner == "int":
                return self.integers(name)
            return [self.value(inner, name) for _ in range(rng.choice((0, 1, 2, 3)))]
        if name == "dtype" or kind == "ScalarType":
            return rng.choice(list(DTYPES))
        if name == "layout":
            return rng.choice((torch.strided, torch.strided, torch.sparse_coo, torch.sparse_csr, torch._mkldnn))
        if name == "memory_format":
            t = torch
            return rng.choice((t.contiguous_format, t.preserve_format, t.channels_last, t.channels_last_3d))
        if name == "device" or kind == "Device":
            return torch.device("cpu")
        if kind == "int":
            return self.number(name)
        if kind == "float":
            return rng.choice(REALS)
        if kind == "bool":
            return rng.random() < 0.5
        if kind == "str":
            return rng.choice(WORDS)
        if kind == "number":
            return rng.choice((rng.choice(REALS), self.number(name), rng.random() < 0.5, complex(1, rng.choice(REALS))))
        return None

    # ---- changes to a call that is fine

    def other_tensor(self, x: Tensor, name: str) -> Tensor:
        rng = self.rng
        ways: list[Callable[[], Tensor]] = [
            lambda: self.tensor(name),
            lambda: x.to(rng.choice(PLAIN)),
            lambda: self.odd_strides(x),
            lambda: x.new_zeros([n if rng.random() < 0.6 else rng.choice((0, 1, n + 1)) for n in x.shape]),
            lambda: x.unsqueeze(0),
            lambda: x.flatten(),
        ]
        if x.numel():
            x = x.clone(memory_format=torch.contiguous_format)
            ways += 3 * [lambda: (self.spoil(x), x)[1]]
        return rng.choice(ways)()

    def other(self, was: Any, kind: str, name: str) -> Any:
        rng = self.rng
        if isinstance(was, Tensor) and rng.random() < 0.8:
            return self.other_tensor(was, name)
        if isinstance(was, list) and was and rng.random() < 0.8:
            out = list(was)
            at = rng.randrange(len(out))
            how = rng.random()
            if how < 0.6:
                out[at] = self.other_tensor(out[at], name) if isinstance(out[at], Tensor) else rng.choice(INTEGERS)
            elif how < 0.8:
                del out[at]
            else:
                out.append(out[at])
            return out
        if isinstance(was, int) and not isinstance(was, bool) and rng.random() < 0.5:
            return rng.choice(INTEGERS)
        return self.value(kind, name)


def kind_of(a: Any) -> str:
    return str(a.type).replace("SymInt", "int").replace("NoneType", "None")


def filled(schema: Any, was: Call) -> Call:
    """The same call with all positional arguments in place."""
    call = Call(list(was.args), dict(was.named))
    for a in schema.arguments[len(call.args) :]:
        if not a.kwarg_only:
            call.args.append(call.named.pop(a.name, a.default_value if a.has_default_value() else None))
    return call


def drawn(name: str, schema: Any, seed: int, samples: list[Call]) -> Call:
    draw = Draw(name, seed)
    formal = schema.arguments
    if samples and seed % 2:
        call = filled(schema, draw.rng.choice(samples))
        for _ in range(draw.rng.choice((0, 1, 1, 1, 2, 3))):
            i = draw.rng.randrange(len(formal)) if formal else -1
            if 0 <= i < len(call.args):
                call.args[i] = draw.other(call.args[i], kind_of(formal[i]), formal[i].name)
            elif i >= 0 and formal[i].kwarg_only:
                call.named[formal[i].name] = draw.value(kind_of(formal[i]), formal[i].name)
        return call
    call = Call([], {})
    for a in formal:
        default = a.has_default_value() and draw.rng.random() < 0.5
        value = a.default_value if default else draw.value(kind_of(a), a.name)
        if a.kwarg_only:
            call.named[a.name] = value
        else:
            call.args.append(value)
    return call


# ---- a call as a plan ------------------------------------------------------------------------------------------------

CONVERSIONS = {
    "sparse": ("aten::to_sparse({x}, none, none, none)", "{type} odd"),
    "csr": ("aten::to_sparse_csr({x}, none)", "{type} odd"),
    "quantised": ("aten::quantize_per_tensor({x}, 0.1, 3, dtype:qu8)", "qu8{shape}"),
    "conjugate": ("aten::_conj({x})", "{type}"),
    "nested": ("aten::_nested_tensor_from_tensor_list([{x}, {x}], none, none, none, none)", "{type} odd"),
    "negative": ("aten::_neg_view({x})", "{type}"),
}


OTHER_KINDS = ("none", "1", "1.5", "true", '"x"', "[]", "[1]", "num(1)", "dtype:f32", 'device:"cpu"', "[none]")
CONVERTED = 0.12  # of the calls get such tensors


class Text:
    """The text of a plan of one call, and the tensors that it takes."""

    def __init__(self, schema: Any, call: Call, rng: random.Random, fences: Iterator[Fenced]) -> None:
        self.inputs: list[Tensor] = []
        self.labels: list[str] = []  # what the call takes: the input, or what it was converted to
        self.lines = ["cleave-plan 1", 'model "M"']
        self.nodes: list[str] = []
        self.written: list[int] = []
        self.rng, self.fences = rng, fences
        self.convert = rng.random() < CONVERTED
        args = []
        for i, a in enumerate(schema.arguments):
            missing = a.default_value if a.has_default_value() else None
            value = (
                call.named.get(a.name, missing) if a.kwarg_only else (call.args[i] if i < len(call.args) else missing)
            )
            first = len(self.inputs)
            wrong = rng.random() < 0.01
            args.append(rng.choice(OTHER_KINDS) if wrong else self.value(value, kind_of(a)))
            if a.alias_info is not None and a.alias_info.is_write:
                self.written += range(first, len(self.inputs))
        name = schema.name + ("." + schema.overload_name if schema.overload_name else "")
        results = [str(r.type) for r in schema.returns]
        left = ", ".join(f"[%r{i}]" if kind.startswith("List[") else f"%r{i}" for i, kind in enumerate(results))
        right = ", ".join(self.type_of(kind) for kind in results)
        writes = " writes " + ", ".join(self.labels[i] for i in self.written) if self.written else ""
        node = f"{name}({', '.join(args)})" + (f" -> {right}" if results else "") + writes
        self.nodes.append(f"{left} = {node}" if results else node)
        self.lines += [*self.nodes, "output none"]

    @staticmethod
    def type_of(kind: str) -> str:
        if kind.startswith("List["):
            return "[f32[]]"
        return {"int": "int", "SymInt": "int", "bool": "bool", "float": "float", "number": "float"}.get(kind, "f32[]")

    def tensor(self, x: Tensor) -> str:
        x = next(self.fences).tensor(x.detach(), self.rng.random() < 0.8)
        i = len(self.inputs)
        self.inputs.append(x)
        shape = "[" + ",".join(map(str, x.shape)) + "]"
        kind = DTYPES[x.dtype] + shape
        strides = "" if x.is_contiguous() else f" strides({','.join(map(str, x.stride()))})"
        self.lines.append(f'input %{i} {kind}{strides} name="a{i}"')
        self.labels.append(f"%{i}")
        if self.convert and self.rng.random() < 0.7:
            op, type_ = self.rng.choice(list(CONVERSIONS.values()))
            self.nodes.append(f"%c{i} = {op.format(x=f'%{i}')} -> {type_.format(type=kind, shape=shape)}")
            self.labels[i] = f"%c{i}"
        return self.labels[i]

    def value(self, v: Any, kind: str) -> str:
        if isinstance(v, Tensor):
            return self.tensor(v)
        if v is None:
            return "none"
        if isinstance(v, bool):
            text = "true" if v else "false"
        elif isinstance(v, (int, torch.SymInt)):
            text = f"dtype:{DTYPES[v]}" if v in DTYPES else str(int(v))
        elif isinstance(v, float):
            text = repr(v) if "." in repr(v) or "e" in repr(v) or v - v != 0 else repr(v) + ".0"
        elif isinstance(v, complex):
            text = f"complex({self.value(v.real, '')}, {self.value(v.imag, '')})"
        elif isinstance(v, str):
            return ("device:" if "Device" in kind else "") + json.dumps(v)
        elif isinstance(v, torch.dtype):
            return "dtype:" + DTYPES.get(v, "f8e5m2")
        elif isinstance(v, torch.layout):
            return "layout:" + str(v).removeprefix("torch.").removeprefix("_")
        elif isinstance(v, torch.memory_format):
            return "memory:" + str(v).removeprefix("torch.").removesuffix("_format")
        elif isinstance(v, torch.device):
            return f'device:"{v}"'
        elif isinstance(v, (list, tuple)):
            return "[" + ", ".join(self.value(item, "") for item in v) + "]"
        else:
            return "none"
        if kind.removeprefix("Optional[").startswith("List[int"):
            return f"[{text}]"
        return f"num({text})" if kind in ("Tensor", "Optional[Tensor]") else text


# ---- one call --------------------------------------------------------------------------------------------------------


def same_bits(a: Any, b: Any) -> bool:
    if isinstance(a, (list, tuple)):
        return len(a) == len(b) and all(map(same_bits, a, b))
    if (
        not isinstance(a, Tensor)
        or a.is_nested
        or a.layout != torch.strided
        or a.dtype not in PLAIN
        or a.numel() > 1 << 16
    ):
        return True
    if a.shape != b.shape or not a.numel() or a.is_neg() or a.is_conj():
        return a.shape == b.shape
    x, y = (t.clone(memory_format=torch.contiguous_format).view(-1).view(torch.uint8) for t in (a, b))
    return torch.equal(x, y)


class Caller:
    def __init__(self) -> None:
        self.fences = [Fenced() for _ in range(24)]
        self.came_back = 0  # calls that the operator did not answer by an error

    def text(self, name: str, op: Any, seed: int, samples: list[Call]) -> tuple[Call, Text]:
        call = drawn(name, op._schema, seed, samples)
        rng = random.Random(seed)
        fences = iter(self.fences)

        def next_fence() -> Iterator[Fenced]:
            yield from fences
            while True:
                yield Fenced()

        return call, Text(op._schema, call, rng, next_fence())

    def run(self, text: Text) -> bool:
        """Whether the operator was called and came back."""
        plan = _native.parse("\n".join(text.lines) + "\n")
        try:
            program = _native.Program(plan, 0, len(text.nodes), False, True, {}, None, [], 0, [], False, 0, True)
            program.run(text.inputs)
        except cleave.GuardError:  # the result is another one than the plan says
            pass
        except (cleave.CleaveError, MemoryError):
            return False
        self.came_back += 1
        return True

    def wrong(self, name: str, op: Any, seed: int, samples: list[Call]) -> str | None:
        """Makes a call; what it did that it must not do."""
        call, text = self.text(name, op, seed, samples)
        before = [x.clone(memory_format=torch.preserve_format) for x in text.inputs]
        if not self.run(text):
            return None
        changed = [i for i, x in enumerate(text.inputs) if i not in text.written and not same_bits(x, before[i])]
        if changed:
            return f"writes its argument {changed[0]}"
        if text.convert or text.written or any(word in name for word in EMPTY):
            return None
        results = []
        for byte in (0x55, 0x2A):
            fill_freed_memory_with(byte)
            torch.manual_seed(seed)
            try:
                results.append(op(*call.args, **call.named))
            except Exception:
                return None  # a packed argument, a plan's number where Python has none
        return None if same_bits(*results) else "gives what was in its memory before"


def overloads(only: str) -> list[tuple[str, Any]]:
    """Allowed operators with their overloads, in order."""
    with contextlib.suppress(ImportError):
        import torchvision  # noqa: F401
    found = []
    for name in sorted(listed.read().allowed):
        if not fnmatch.fnmatch(name, only):
            continue
        space, base = name.split("::")
        packet = getattr(getattr(torch.ops, space), base, None)
        for overload in packet.overloads() if packet is not None else ():
            found.append((f"{name}.{overload}", getattr(packet, overload)))
    return found


# ---- calls that PyTorch tests its operators with ---------------------------------------------------------------------


PARTS = (int, float, bool, complex, str, type(None), torch.dtype, torch.layout, torch.memory_format, torch.device)


def small(v: Any) -> bool:
    if not isinstance(v, Tensor):
        return isinstance(v, PARTS)
    return v.numel() <= 4096 and v.layout == torch.strided and not v.is_nested and v.dtype in PLAIN and v.is_cpu


def samples_of_torch() -> dict[str, list[Call]]:
    """By overload, from torch's own table of operators, forward and backward."""
    from torch.overrides import TorchFunctionMode
    from torch.utils._python_dispatch import TorchDispatchMode
    from torch.utils._pytree import tree_leaves, tree_map

    if "expecttest" not in sys.modules:  # that table is among torch's tests, which import it
        stub = types.ModuleType("expecttest")
        stub.TestCase = unittest.TestCase  # type: ignore[attr-defined]
        sys.modules["expecttest"] = stub
    from torch.testing._internal.common_methods_invocations import op_db

    warnings.simplefilter("ignore")
    torch.manual_seed(0)
    random.seed(0)
    found: dict[str, list[Call]] = {}

    def keep(name: str, args: Any, kwargs: Any) -> None:
        calls = found.setdefault(name, [])
        if len(calls) < 12 and all(map(small, tree_leaves((args, kwargs)))):
            copy = tree_map(lambda v: v.detach().clone() if isinstance(v, Tensor) else v, (args, kwargs))
            calls.append(Call(list(copy[0]), copy[1]))

    class Inner(TorchDispatchMode):
        def __torch_dispatch__(self, op: Any, kinds: Any, args: Any = (), kwargs: Any = None) -> Any:
            keep(f"{op._schema.name}.{op._overloadname}", args, kwargs or {})
            return op(*args, **(kwargs or {}))

    class Outer(TorchFunctionMode):
        """Those that consist of others, which dispatch does not see."""

        def __torch_function__(self, function: Any, kinds: Any, args: Any = (), kwargs: Any = None) -> Any:
            with contextlib.suppress(Exception):
                name = "aten::" + function.__name__
                overload = torch._C._jit_resolve_packet(name, *args, **(kwargs or {}))
                keep(f"{name}.{overload}", args, kwargs or {})
            return function(*args, **(kwargs or {}))

    def run(op: Any, sample: Any, grad: bool) -> None:
        with Inner(), Outer():
            out = op.op(sample.input, *sample.args, **sample.kwargs)
            if grad:
                sum(t.abs().sum() for t in tree_leaves(out) if isinstance(t, Tensor) and t.requires_grad).backward()

    for op in op_db:
        for grad in (False, op.supports_autograd):
            with contextlib.suppress(Exception):
                dtype = torch.float32 if torch.float32 in op.dtypes else next(iter(op.dtypes))
                for _, sample in zip(range(8), op.sample_inputs("cpu", dtype, requires_grad=grad), strict=False):
                    with contextlib.suppress(Exception):
                        run(op, sample, grad)
    return found


# ---- processes -------------------------------------------------------------------------------------------------------


class Job(NamedTuple):
    name: str
    op: Any
    samples: list[Call]


def work(ops: list[Job], jobs: list[tuple[int, int]], board: mmap.mmap, report: int) -> None:
    """Calls (operator, seed) one after the other; the board says which one it is at."""
    warnings.simplefilter("ignore")
    torch.set_num_threads(1)
    torch.set_grad_enabled(False)
    caller = Caller()
    taken = int(Path("/proc/self/statm").read_text().split()[0]) * mmap.PAGESIZE
    resource.setrlimit(resource.RLIMIT_AS, (taken + MEMORY, taken + MEMORY))
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    null = os.open(os.devnull, os.O_WRONLY)
    os.dup2(null, 1)
    os.dup2(null, 2)
    (before,) = struct.unpack_from("<q", board, 16)
    for at, (op, seed) in enumerate(jobs):
        struct.pack_into("<qd", board, 0, at, time.monotonic())
        try:
            what = caller.wrong(*ops[op][:2], seed, ops[op].samples)
        except Exception as error:
            what = f"cannot be tried: {type(error).__name__}: {str(error).splitlines()[0]}"
        if what:
            os.write(report, f"{ops[op].name} {seed} {what}\n".encode())
        struct.pack_into("<q", board, 16, before + caller.came_back)
    struct.pack_into("<qd", board, 0, len(jobs), 0.0)


class Worker:
    def __init__(self, ops: list[Job], jobs: list[tuple[int, int]], seconds: float, report: int) -> None:
        self.ops, self.jobs, self.seconds, self.report = ops, jobs, seconds, report
        self.board = mmap.mmap(-1, 24)  # which call it is at, since when, how many came back
        self.begin = 0
        self.pid = 0
        self.start()

    def start(self) -> None:
        struct.pack_into("<qd", self.board, 0, 0, time.monotonic() + 60)  # until it has begun
        self.pid = os.fork()
        if not self.pid:
            try:
                work(self.ops, self.jobs[self.begin :], self.board, self.report)
            except BaseException:
                traceback.print_exc()
                os._exit(1)
            os._exit(0)

    def look(self) -> bool:
        """Whether it is done; says what its process ended at, if it did."""
        at, since = struct.unpack_from("<qd", self.board, 0)
        pid, status = os.waitpid(self.pid, os.WNOHANG)
        if not pid and since and time.monotonic() - since > self.seconds:
            os.kill(self.pid, signal.SIGKILL)
            os.waitpid(self.pid, 0)
            return self.after(at, f"hangs for {self.seconds:g} s")
        if not pid:
            return False
        if os.WIFSIGNALED(status):
            at, _ = struct.unpack_from("<qd", self.board, 0)
            return self.after(at, signal.Signals(os.WTERMSIG(status)).name)
        if os.WEXITSTATUS(status):
            raise RuntimeError("a worker could not begin")
        return True

    def after(self, at: int, how: str) -> bool:
        op, seed = self.jobs[self.begin + at]
        self.begin += at + 1
        os.write(self.report, f"{self.ops[op].name} {seed} {how}\n".encode())
        done = self.begin >= len(self.jobs)
        if not done:
            self.start()
        return done


def fuzz(ops: list[Job], seeds: range, jobs: int, seconds: float) -> tuple[dict[str, list[str]], int]:
    """What was found, by operator, printed as it is found; how many calls came back with a result."""
    calls = [(i, seed) for seed in seeds for i in range(len(ops))]
    wrong: dict[str, list[str]] = {}
    with tempfile.TemporaryFile("a+b", buffering=0) as report:
        every = [Worker(ops, calls[j::jobs], seconds, report.fileno()) for j in range(jobs)]
        workers, shown = every, 0
        while True:
            workers = [w for w in workers if not w.look()]
            lines = os.pread(report.fileno(), 1 << 20, shown)
            shown += len(lines)
            for line in lines.decode().splitlines():
                of = wrong.setdefault(line.split()[0], [])
                of.append(line)
                if len(of) <= 3:
                    print(line, flush=True)
            if not workers:
                return wrong, sum(struct.unpack_from("<q", w.board, 16)[0] for w in every)
            time.sleep(0.02)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--calls", type=int, default=20, help="of each overload")
    parser.add_argument("--first", type=int, default=0)
    parser.add_argument("--jobs", type=int, default=2)
    parser.add_argument("--seconds", type=float, default=10)
    parser.add_argument("--only", default="*")
    parser.add_argument(
        "--samples", action="store_true", help="start half of the calls from those of torch's own tests"
    )
    parser.add_argument("--replay", nargs=2, metavar=("OP", "SEED"))
    o = parser.parse_args()
    samples = samples_of_torch() if o.samples else {}
    ops = [Job(name, op, samples.get(name, [])) for name, op in overloads(o.only)]
    if o.replay:
        name, op, of = next(job for job in ops if job.name == o.replay[0])
        caller = Caller()
        torch.set_grad_enabled(False)
        call, text = caller.text(name, op, int(o.replay[1]), of)
        print(op._schema, *call, "\n".join(text.lines), sep="\n", flush=True)
        print(caller.wrong(name, op, int(o.replay[1]), of) or "nothing wrong")
        return 0
    wrong, came_back = fuzz(ops, range(o.first, o.first + o.calls), o.jobs, o.seconds)
    for name, of in sorted(wrong.items()):
        print(f"{name}: {len(of)} times, first {of[0]}")
    print(
        f"{len(ops) * o.calls} calls of {len(ops)} overloads, {came_back} came back with a result; "
        f"{len(wrong)} overloads do what they must not"
    )
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())

#!/usr/bin/env python3
"""Calls the operators that a file may hold (src/file/operators.def) with random arguments, and names those that end the
process or hang.

    python tools/fuzz_operators.py [--calls N] [--first SEED] [--jobs J] [--seconds S] [--only PATTERN]
    python tools/fuzz_operators.py --replay OP SEED

Each call is made from the operator's schema and a seed alone: tensors of any dtype, with few or no elements, views
with odd strides, nan and infinity; integers that are negative or huge; lists that are too short or too long; indices
that are out of range. Errors are fine. A signal, or a call that takes longer than S seconds, is not: the operator
goes to REFUSE, or its arguments are checked before the call.

Operators are called in processes of their own with limited memory, which say what they are about to do in shared
memory: when one dies, that is the culprit, and another goes on after it.
"""

from __future__ import annotations

import argparse
import contextlib
import fnmatch
import mmap
import os
import random
import resource
import signal
import struct
import sys
import time
import traceback
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parent))

MEMORY = 6 << 30
WORDS = [
    "mean",
    "sum",
    "none",
    "constant",
    "reflect",
    "replicate",
    "circular",
    "bilinear",
    "linear",
    "tanh",
    "floor",
    "trunc",
    "same",
    "valid",
    "ij",
    "xy",
    "add",
    "prod",
    "amax",
    "amin",
    "fro",
    "nuc",
    "reduced",
    "complete",
    "N",
    "L",
    "ortho",
    "right",
    "nearest",
]
INTEGERS = (0, 1, 2, 3, 4, 5, 7, -1, -2, -3, 64, 1 << 31, -(1 << 31), 1 << 40, (1 << 63) - 1, -(1 << 63))


class Draw:
    """Arguments from one seed."""

    def __init__(self, seed: int) -> None:
        import torch

        self.torch = torch
        self.rng = random.Random(seed)
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

    def tensor(self, name: str) -> Any:
        t, rng = self.torch, self.rng
        shape = self.shape()
        indices = any(word in name for word in ("ind", "offset", "target", "length", "batch_sizes", "label", "ids"))
        dtype = t.int64 if indices and rng.random() < 0.8 else self.dtype
        if rng.random() < 0.15:
            dtype = rng.choice(
                (t.uint8, t.int8, t.int16, t.int32, t.int64, t.float16, t.float32, t.float64, t.bool, t.complex128)
            )
        if dtype == t.bool:
            x = t.rand(shape) < 0.5
        elif dtype.is_floating_point or dtype.is_complex:
            x = t.randn(shape).to(dtype)
            if x.numel() and rng.random() < 0.2:
                x.view(-1)[rng.randrange(x.numel())] = rng.choice((float("nan"), float("inf"), -1e30, 0.0))
        else:
            wide = rng.random() < 0.25
            low, high = (-(1 << 40), 1 << 40) if wide else (0, 4)
            x = t.randint(low, high, shape).to(dtype)
            if x.numel() and rng.random() < 0.2:
                x.view(-1)[0] = rng.choice((-1, -128, t.iinfo(dtype).min, t.iinfo(dtype).max))
        if x.dim() and rng.random() < 0.25:
            x = rng.choice((lambda: x.flip(0)[::2], lambda: x.transpose(0, -1), lambda: x[:0], lambda: x[0],
                            lambda: x.unsqueeze(0).expand(3, *x.shape)))() if x.shape[0] else x  # fmt: skip
        return x

    def number(self, name: str) -> int:
        if self.usual and self.rng.random() < 0.7:
            return self.rng.choice((0, 1, 1, 2, -1) if "dim" in name or "axis" in name else (0, 1, 1, 2, 3))
        return self.rng.choice(INTEGERS)

    def integers(self, name: str) -> list[int]:
        n = self.rng.choice((0, 1, 1, 2, 2, 3, 4))
        if "size" in name and self.usual and self.rng.random() < 0.5:
            return list(self.common)
        if "dim" in name or "axis" in name:
            return [self.rng.choice((0, 1, 2, -1, 5)) for _ in range(n)]
        return [self.number(name) for _ in range(n)]

    def real(self) -> float:
        return self.rng.choice((0.0, 1.0, 0.5, -1.0, 2.0, 1e-5, float("nan"), float("inf"), 1e38, -1e300))

    def value(self, kind: str, name: str) -> Any:
        t, rng = self.torch, self.rng
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
            return rng.choice((t.float32, t.float64, t.int64, t.bool, t.complex64, t.uint8, t.quint8, t.bfloat16))
        if name == "layout":
            return rng.choice((t.strided, t.strided, t.sparse_coo, t.sparse_csr))
        if name == "memory_format":
            return rng.choice((t.contiguous_format, t.preserve_format, t.channels_last, t.channels_last_3d))
        if name == "device" or kind == "Device":
            return t.device("cpu")
        if kind == "int":
            return self.number(name)
        if kind == "float":
            return self.real()
        if kind == "bool":
            return rng.random() < 0.5
        if kind == "str":
            return rng.choice(WORDS)
        if kind == "number":
            return rng.choice((self.real(), self.number(name), rng.random() < 0.5, complex(1, self.real())))
        return None


def arguments(schema: Any, seed: int) -> tuple[list[Any], dict[str, Any]]:
    draw = Draw(seed)
    args, named = [], {}
    for a in schema.arguments:
        if a.has_default_value() and draw.rng.random() < 0.5:
            value = a.default_value
        else:
            value = draw.value(str(a.type).replace("SymInt", "int").replace("NoneType", "None"), a.name)
        if a.kwarg_only:
            named[a.name] = value
        else:
            args.append(value)
    return args, named


def operators(only: str) -> list[tuple[str, Any]]:
    """Allowed operators with their overloads, in order."""
    import operators as listed
    import torch

    found = []
    for name in sorted(listed.read().allowed):
        if not fnmatch.fnmatch(name, only):
            continue
        space, base = name.split("::")
        packet = getattr(getattr(torch.ops, space), base, None)
        for overload in packet.overloads() if packet is not None else ():
            found.append((f"{name}.{overload}", getattr(packet, overload)))
    return found


def call(op: Any, seed: int) -> None:
    import torch

    args, named = arguments(op._schema, seed)
    with torch.no_grad():
        out = op(*args, **named)
    for t in out if isinstance(out, (list, tuple)) else [out]:
        if isinstance(t, torch.Tensor) and t.layout == torch.strided and not t.is_quantized and t.numel() < 1 << 20:
            t.clone()  # all of it can be read


def work(ops: list[tuple[str, Any]], jobs: list[tuple[int, int]], board: mmap.mmap, seconds: float) -> None:
    """Calls (operator, seed) one after the other; the board says which one it is at."""
    import warnings

    import torch

    warnings.simplefilter("ignore")
    torch.set_num_threads(1)
    resource.setrlimit(resource.RLIMIT_AS, (MEMORY, MEMORY))
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    null = os.open(os.devnull, os.O_WRONLY)
    os.dup2(null, 1)
    os.dup2(null, 2)
    for at, (op, seed) in enumerate(jobs):
        struct.pack_into("<qd", board, 0, at, time.monotonic())
        with contextlib.suppress(Exception):
            call(ops[op][1], seed)
    struct.pack_into("<qd", board, 0, len(jobs), 0.0)


class Worker:
    def __init__(self, ops: list[tuple[str, Any]], jobs: list[tuple[int, int]], seconds: float) -> None:
        self.ops, self.jobs, self.seconds = ops, jobs, seconds
        self.board = mmap.mmap(-1, 16)
        self.begin = 0
        self.pid = 0
        self.start()

    def start(self) -> None:
        struct.pack_into("<qd", self.board, 0, 0, time.monotonic())
        self.pid = os.fork()
        if not self.pid:
            try:
                work(self.ops, self.jobs[self.begin :], self.board, self.seconds)
            except BaseException:
                traceback.print_exc()
            os._exit(0)

    def look(self) -> tuple[bool, str | None]:
        """Whether it is done; what its process ended at, if it did."""
        at, since = struct.unpack_from("<qd", self.board, 0)
        pid, status = os.waitpid(self.pid, os.WNOHANG)
        if not pid and since and time.monotonic() - since > self.seconds:
            os.kill(self.pid, signal.SIGKILL)
            os.waitpid(self.pid, 0)
            return self.after(at, f"hangs for {self.seconds:g} s")
        if not pid:
            return False, None
        if os.WIFSIGNALED(status):
            return self.after(at, signal.Signals(os.WTERMSIG(status)).name)
        return True, None

    def after(self, at: int, how: str) -> tuple[bool, str]:
        op, seed = self.jobs[self.begin + at]
        self.begin += at + 1
        done = self.begin >= len(self.jobs)
        if not done:
            self.start()
        return done, f"{self.ops[op][0]} {seed} {how}"


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--calls", type=int, default=20, help="of each overload")
    parser.add_argument("--first", type=int, default=0)
    parser.add_argument("--jobs", type=int, default=2)
    parser.add_argument("--seconds", type=float, default=10)
    parser.add_argument("--only", default="*")
    parser.add_argument("--replay", nargs=2, metavar=("OP", "SEED"))
    o = parser.parse_args()
    ops = operators(o.only)
    if o.replay:
        op = dict(ops)[o.replay[0]]
        print(op._schema, *arguments(op._schema, int(o.replay[1])), sep="\n", flush=True)
        call(op, int(o.replay[1]))
        return 0
    jobs = [(i, o.first + k) for k in range(o.calls) for i in range(len(ops))]
    workers = [Worker(ops, jobs[j :: o.jobs], o.seconds) for j in range(o.jobs)]
    wrong: dict[str, list[str]] = {}
    while workers:
        for w in list(workers):
            done, found = w.look()
            if found:
                wrong.setdefault(found.split()[0], []).append(found)
                print(found, flush=True)
            if done:
                workers.remove(w)
        time.sleep(0.01)
    print(f"{len(jobs)} calls of {len(ops)} overloads; {len(wrong)} of them end the process or hang")
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())

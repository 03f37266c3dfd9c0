"""Back ends for tests of tracing: no compiler, so that each of them does one odd thing and takes no time.

Their code is the segment itself, as a file; `run` interprets it on the tape. So results are those of PyTorch bit for
bit, and what differs is the fault of whoever put segments together."""

from __future__ import annotations

import itertools
import tempfile
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch

import cleave
from cleave.backends import SegmentJob

_numbers = itertools.count()

Change = Callable[[list[str], list[torch.Tensor]], list[torch.Tensor]]


class Exact:
    """A back end; `jobs` are the operators of each segment that it was asked to compile."""

    def __init__(
        self,
        *,
        supports: Callable[[Any], bool | str] = lambda node: True,
        compiling: Callable[[list[str]], None] = lambda ops: None,
        running: Change = lambda ops, out: out,
    ) -> None:
        self.name = f"exact-{next(_numbers)}"
        self.jobs: list[list[str]] = []
        self.arguments: list[list[str]] = []
        self._folder = tempfile.TemporaryDirectory(prefix="cleave-test-")
        self._compiling, self._running = compiling, running
        cleave.register_backend(
            self.name,
            supports=supports,
            compile=self._compile,
            load=self._load,
            run=self._run,
            version="1",
        )

    def _compile(self, segment: SegmentJob) -> bytes:
        ops = [node.op for node in segment.model.nodes]
        self.jobs.append(ops)
        self.arguments.append(segment.job["args"])
        self._compiling(ops)
        return (Path(segment.folder) / "segment.clv").read_bytes()

    def _load(self, data: bytes) -> Any:
        path = Path(self._folder.name) / f"{next(_numbers)}.clv"
        path.write_bytes(data)
        return cleave.load(path, unproven=True)

    def _run(self, model: Any, inputs: Sequence[torch.Tensor]) -> list[torch.Tensor]:
        ops = [node.op for node in model.nodes]
        return self._running(ops, list(model(*inputs)))

    def trace(self, model: Any, inputs: Any = (), **options: Any) -> cleave.TracedModule:
        return cleave.trace(model, inputs, backend=self.name, **{"cache": False, "keep_slower": True, **options})


def compiled_ops(traced: cleave.TracedModule) -> list[list[str]]:
    """The operators of each segment that runs as code, without namespaces and overloads."""
    return [[short(op) for op in s.ops] for s in traced.segments if s.compiled]


def tape_ops(traced: cleave.TracedModule) -> dict[str, str]:
    """Operators on the tape, and why."""
    graph = traced.graph
    return {
        short(node.op): reason or ""
        for node, segment, reason in zip(graph.nodes, graph.segment_of, graph.reasons, strict=True)
        if segment is None
    }


def short(op: str) -> str:
    return op.partition("::")[2].partition(".")[0]


@contextmanager
def default_dtype(dtype: torch.dtype) -> Iterator[None]:
    before = torch.get_default_dtype()
    torch.set_default_dtype(dtype)
    try:
        yield
    finally:
        torch.set_default_dtype(before)

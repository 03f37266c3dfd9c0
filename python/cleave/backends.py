"""Back ends written in Python, which compile segments of a model and run them.

>>> import cleave
>>> cleave.register_backend(
...     "square",
...     supports=lambda node: node.op == "aten::mul.Tensor" or "only products",
...     compile=lambda segment: b"square",
...     run=lambda code, inputs: [inputs[0] * inputs[0]],
... )
"""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Sequence
from functools import cached_property
from typing import Any

import torch

from . import _native
from .artifact import LoadedModel, load
from .errors import ArgumentError
from .plan import Node

MEMBER = "code"


class SegmentJob:
    """A segment to compile: a folder with the nodes and their weights, and the options.

    >>> def compile(segment):
    ...     if "--fast" in segment.job["args"]:
    ...         raise ValueError("it is never fast")  # the reason why this segment is not compiled
    ...     return "\\n".join(node.op for node in segment.model.nodes).encode()
    """

    def __init__(self, folder: str) -> None:
        self.folder = folder

    @cached_property
    def model(self) -> LoadedModel:
        """The segment as a model of its own: nodes, weights, inputs and outputs; it can be called."""
        return load(os.path.join(self.folder, "segment.clv"), unproven=True, sandbox=False)  # the tracer wrote it

    @cached_property
    def job(self) -> dict[str, Any]:
        """The options: sizes, layouts of the inputs, compiler_args."""
        with open(os.path.join(self.folder, "job.json"), encoding="utf-8") as f:
            job: dict[str, Any] = json.load(f)
        return job


def register_backend(
    name: str,
    *,
    supports: Callable[[Node], bool | str],
    compile: Callable[[SegmentJob], bytes],
    run: Callable[[Any, list[torch.Tensor]], Sequence[torch.Tensor]],
    load: Callable[[bytes], Any] | None = None,
    version: str = "",
) -> None:
    """Adds a back end. A name that was added before is replaced; built-in ones are not.

    supports(node): True, or False or a text that says why not. compile(segment) gives bytes, which go into the file.
    run(code, inputs) takes what compile gave, or what load(bytes) made of it, and gives the outputs; it is called by
    many threads. Inputs are dense; outputs may be laid out in any way. What it raises is no error of the model: the
    segment runs operator by operator then, and says why. Inputs are not written to, outputs are not used again.
    version: names what compile makes now; without one nothing is kept in the cache, because nobody could tell old code
    from new.

    >>> import torch, cleave
    >>> cleave.register_backend(
    ...     "twice",
    ...     supports=lambda node: node.op == "aten::add.Tensor" or "it knows sums alone",
    ...     compile=lambda segment: b"",
    ...     run=lambda code, inputs: [2 * inputs[0]],
    ... )
    >>> how = {"backend": "twice", "minimum_segment_size": 1, "keep_slower": True}
    >>> traced = cleave.trace(lambda x: (x + x).exp(), torch.ones(3), **how)
    >>> [segment.ops for segment in traced.segments]
    [('aten::add.Tensor',)]
    """
    for what, f in (("supports", supports), ("compile", compile), ("run", run), ("load", load)):
        if not callable(f) and not (what == "load" and f is None):
            raise TypeError(f"{what} is a function, not {f!r}")

    if not isinstance(version, str):
        raise TypeError(f"version is a text, not {type(version).__name__}")

    def support_all(plan: Any, dynamic: bool) -> list[str | None]:
        return [_reason(name, supports(Node(*n))) for n in plan.nodes()]

    def compile_folder(folder: str) -> dict[str, bytes]:
        made = compile(SegmentJob(folder))
        if not isinstance(made, bytes):
            raise TypeError(f"compile gives bytes, not {type(made).__name__}")
        return {MEMBER: made}

    def load_members(members: dict[str, bytes]) -> Any:
        if list(members) != [MEMBER]:
            raise ArgumentError(f"the compiled segment is not one of {name}: it has {', '.join(members) or 'nothing'}")
        return load(members[MEMBER]) if load else members[MEMBER]

    _native.register_backend(name, support_all, compile_folder, load_members, run, version)


def _reason(name: str, answer: object) -> str | None:
    if isinstance(answer, str):
        return answer or f"{name} does not support it"
    return None if answer else f"{name} does not support it"

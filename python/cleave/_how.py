"""How the plans of a live model run, and which are recorded: arguments of capture, prepare_split and pipe_model."""

from __future__ import annotations

from typing import NamedTuple

from ._arguments import read_choice
from ._threads import read_threads
from .errors import ArgumentError
from .optimize import NONE, SAFE, Optimize, read_optimize

ENGINES = ("auto", "tape", "native")
ON_GUARD = ("record", "raise")
MAX_PLANS = 64  # of one model, unless max_plans says otherwise


class How(NamedTuple):
    """What the user asked for."""

    optimize: Optimize = SAFE
    threads: int = 0  # 0: as many as the process has
    native: bool = False  # the native engine runs what needs no gradients
    graph: bool = False  # as CUDA graphs, where it can be
    records: bool = True  # what the forward does on other data, when a call needs it
    max_plans: int = MAX_PLANS

    def for_grad(self, grad: bool) -> How:
        """What needs gradients runs on the tape, as it was captured."""
        return self._replace(optimize=NONE, native=False, graph=False) if grad else self


def read_how(
    mode: str = "generated_eager",
    optimize: str | Optimize = "safe",
    engine: str = "auto",
    threads: int | None = None,
    on_guard: str = "record",
    max_plans: int | None = None,
) -> How:
    """The arguments of a user, checked."""
    if not isinstance(engine, str):
        raise TypeError(f"engine is one of {', '.join(ENGINES)}, not {engine!r}")
    if read_choice(engine, ENGINES, "engine") == "native" and mode != "generated_eager":
        raise ArgumentError(f'engine="native" goes with mode="generated_eager": mode={mode!r} runs on libtorch')
    if max_plans is not None and (type(max_plans) is not int or max_plans < 1):
        raise ArgumentError(f"max_plans must be a number of plans, at least 1, not {max_plans!r}")
    return How(
        read_optimize(optimize),
        read_threads(threads),
        engine == "native",
        mode == "cuda_graph",
        read_choice(on_guard, ON_GUARD, "on_guard", "must be") == "record",
        MAX_PLANS if max_plans is None else max_plans,
    )

"""The shape-only pass: finds the conditions on sizes that a forward evaluates.

The model runs once on tensors without data whose sizes are symbols (FakeTensor and ShapeEnv, as torch.export does), and
torch notes every comparison of a size, in Python and inside operators. It serves to choose probes and proves nothing:
a pass sees one side of each branch, cannot see a size that is turned into text or asked for its type, takes a size as
fixed where the model needs a plain int, and lists conditions of kernels that change no operator."""

from __future__ import annotations

import re
import time
import traceback
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

import torch
from torch.utils._python_dispatch import TorchDispatchMode

from ._capture import Arguments, grad_mode
from ._dims import Point, Symbol
from ._state import RandomState, Snapshot, Target

MOST_CHANGES = 3  # of a condition along one symbol, that are probed on both sides
LONGEST = 4096  # sizes over which a condition is looked at


class Condition(NamedTuple):
    """A condition on the sizes that the forward asked about."""

    text: str  # in the names of the symbols, as Python reads it
    place: str | None  # the user's source line

    def holds(self, names: Sequence[str], point: Point) -> bool:
        """Whether it holds at a point."""
        try:
            return bool(eval(self.text, {"__builtins__": {}}, dict(zip(names, point, strict=True))))
        except (ArithmeticError, NameError, TypeError):
            return False

    def __str__(self) -> str:
        return f"{self.text} at {self.place}" if self.place else self.text


class Pass(NamedTuple):
    """What one run on symbolic sizes told."""

    conditions: list[Condition]
    fixed: dict[str, int]  # symbols of which it saw one size alone
    problem: str | None  # why it did not get through


class _TooLong(Exception):
    pass


class _Deadline(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """Ends a run that takes too long, at the next operator."""

    def __init__(self, seconds: float) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.end = time.monotonic() + seconds

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if time.monotonic() > self.end:
            raise _TooLong
        return func(*args, **(kwargs or {}))


def look(target: Target, arguments: Arguments, symbols: Sequence[Symbol], grad: bool, seconds: float) -> Pass:
    """Runs the forward on symbolic sizes around those of the arguments. The model is as before afterwards."""
    from torch._subclasses.fake_tensor import FakeTensorMode
    from torch.fx.experimental.symbolic_shapes import ShapeEnv

    env = ShapeEnv(duck_shape=False)
    mode = FakeTensorMode(shape_env=env, allow_non_fake_inputs=True)
    random, snapshot = RandomState(), Snapshot(target)
    names: dict[str, str] = {}
    problem = None
    try:
        leaves = [_symbolic(mode, i, t, symbols, names) for i, t in enumerate(arguments.leaves)]
        args, kwargs = arguments.rebuild(leaves)
        with mode, _Deadline(seconds), grad_mode(grad):
            target.call(*args, **kwargs)
    except _TooLong:
        problem = f"it took longer than {seconds:g} seconds"
    except Exception as error:
        problem = f"{type(error).__name__}: {(str(error).strip() or 'no message').splitlines()[0][:200]}"
    finally:
        snapshot.restore()
        random.restore()
    fixed = {names[str(s)]: int(v) for s, v in env.replacements.items() if str(s) in names and v.is_number}
    conditions = [c for c in _conditions(env, names) if c.text not in {f"{n} == {size}" for n, size in fixed.items()}]
    return Pass(conditions, fixed, problem)


def _symbolic(mode: Any, i: int, t: torch.Tensor, symbols: Sequence[Symbol], names: dict[str, str]) -> torch.Tensor:
    from torch._dynamo.source import ConstantSource
    from torch.fx.experimental.symbolic_shapes import DimDynamic, StatelessSymbolicContext

    mine = {dim: s.name for s in symbols for leaf, dim in s.places if leaf == i}
    kinds = [DimDynamic.DYNAMIC if d in mine else DimDynamic.STATIC for d in range(t.dim())]
    context: Any = StatelessSymbolicContext(dynamic_sizes=kinds)
    fake: torch.Tensor = mode.from_tensor(t.detach(), symbolic_context=context, source=ConstantSource(f"input{i}"))
    for dim, name in mine.items():
        names[str(fake.shape[dim])] = name
    return fake.requires_grad_(t.requires_grad)


def _conditions(env: Any, names: dict[str, str]) -> list[Condition]:
    from torch.utils._sympy.printers import PythonPrinter

    found: dict[str, Condition] = {}
    for guard in env.guards:
        text = re.sub(r"\b\w+\b", lambda m: names.get(m[0], m[0]), PythonPrinter().doprint(guard.expr))
        place = _place(guard.sloc)
        if not re.fullmatch(r"(\w+) == \1", text):  # inputs that agree about a symbol
            found.setdefault(text, Condition(text, place))
    return list(found.values())


def _place(sloc: Any) -> str | None:
    """The source line that asked, when it is the user's."""
    frame = sloc.framework_loc
    if isinstance(frame, traceback.FrameSummary) and not Path(frame.filename).is_relative_to(
        Path(torch.__file__).parent
    ):
        return f"{Path(frame.filename).name}:{frame.lineno}"
    return sloc.maybe_user_loc or None


def sizes_to_probe(condition: Condition, symbols: Sequence[Symbol], at: Point) -> list[Point]:
    """Points on both sides of a condition: where it changes along one symbol, the nearest changes."""
    out: list[Point] = []
    for i, line in enumerate(_lines(condition, symbols, at)):
        truth = [condition.holds([s.name for s in symbols], p) for p in line]
        changes = [k for k in range(1, len(line)) if truth[k] != truth[k - 1]]
        for k in sorted(changes, key=lambda k: abs(line[k][i] - at[i]))[:MOST_CHANGES]:
            out += line[k - 1 : k + 2]
    return list(dict.fromkeys(out))


def truth_of(condition: Condition, symbols: Sequence[Symbol], at: Point) -> tuple[Any, ...]:
    """The same for a condition and its negation: where it changes."""
    names = [s.name for s in symbols]
    truth = [tuple(condition.holds(names, p) for p in line) for line in _lines(condition, symbols, at)]
    first = next((t[0] for t in truth if t), True)
    return tuple(tuple(x == first for x in t) for t in truth)


def _lines(condition: Condition, symbols: Sequence[Symbol], at: Point) -> list[list[Point]]:
    """For each symbol all points along it, where the condition has it."""
    out = []
    for i, s in enumerate(symbols):
        mine = re.search(rf"\b{s.name}\b", condition.text) is not None
        high = min(s.high, s.low + LONGEST) if mine else s.low - 1
        out.append([(*at[:i], n, *at[i + 1 :]) for n in range(s.low, high + 1)])
    return out

"""Plans for many batch sizes: the forward is recorded at several, and C fits every number to a formula (plan/fit.c).

A size at which the forward was recorded and found to follow the formulas is *proven*. Another size of the range is
recorded when it is first used: it joins the proven ones, or gets a plan of its own. No size is trusted unseen."""

from __future__ import annotations

import threading
from collections.abc import Iterator, Sequence
from typing import Any

import torch

from . import _native, _tree
from ._capture import Arguments, Capture, Captured, Recorded, Sizes, flow_symbols, misfit, other_data
from ._state import Target
from .errors import CaptureError, CleaveError, InputError

# The first four settle lines; more are taken only when some number follows no line.
FIRST = (2, 3, 5, 7)
MORE = (4, 6, 9, 13, 8, 12, 16)


def probe_sizes(low: int, high: int) -> tuple[list[int], list[int]]:
    """Small sizes of the range: those always probed, and those for harder formulas. 1 is a special case everywhere."""
    offset = max(0, low - FIRST[0])
    first = [n + offset for n in FIRST if n + offset <= high]
    more = [n + offset for n in MORE if n + offset <= high]
    if low == 1 and 1 not in first:
        first.append(1)
    return first, more


def batch_dims(leaves: Sequence[torch.Tensor]) -> Iterator[dict[int, int]]:
    """Guesses which dimension of which input is the batch, the likeliest first; running the model tells."""
    seen: list[dict[int, int]] = []
    for dim in (0, 1):
        sized = [i for i, t in enumerate(leaves) if t.layout is torch.strided and not t.is_nested and t.dim() > dim]
        if not sized:
            continue
        size = leaves[sized[0]].shape[dim]
        same = [i for i in sized if leaves[i].shape[dim] == size]
        for group in [same] + [[j for j in same if j != i] for i in same if len(same) > 1] + [[i] for i in same]:
            guess = dict.fromkeys(group, dim)
            if guess not in seen:
                seen.append(guess)
                yield guess


class Sized:
    """The plan of a model for a range of batch sizes, with the sizes it is proven for."""

    def __init__(self, target: Target, arguments: Arguments, grad: bool, symbol: str, low: int, high: int) -> None:
        self.target = target
        self.grad = grad
        self.symbol, self.low, self.high = symbol, low, high
        self.lock = threading.Lock()
        self.proven: set[int] = set()
        self.folded = False  # sequences were written another way in all streams
        self.reason: str | None = None  # why there are no formulas
        self.streams: list[tuple[int, Recorded]] = []
        self.misfit: str | None = None  # why some size is not served by the formulas
        self.shapes = [(t.dtype, list(t.shape)) for t in arguments.leaves]
        self.arguments = arguments
        found = self._find_dims(arguments)
        if found is None:
            raise CaptureError("no input has a dimension that can change like a batch: use dynamic_batch=None")
        self.dims = found
        self.example = self.size_of(arguments.leaves)
        if not low <= self.example <= high:
            raise InputError(f"the example has {symbol}={self.example}, outside of dynamic_batch=({low}, {high})")
        first, more = probe_sizes(low, high)
        base = self.example if self.example > 1 or high == 1 else first[0]
        self.work = Capture(target, self.resized(arguments, base), both=False)
        self.mine, self.probe = self.work.look(grad)
        self.flow = self.work.flow_records(self.mine, grad)  # what is read from data, on other data
        self.same = self.work.same_again(self.mine, grad) if self.flow else None
        self.symbols: tuple[list[str], list[int], list[int]] | None = None  # of what is read from data
        self.streams = [(base, self.mine), *((base, r) for r in self.flow if self.same)]
        for size in first:
            self._try_size(arguments, size)
        self.captured = (
            self._build()
            or self._build_with(arguments, more)
            or self._build_without_one()
            or self._build_without_flow()
            or self._static(base)
        )

    # ---- sizes

    def size_of(self, leaves: Sequence[torch.Tensor]) -> int:
        """The batch size of these inputs."""
        leaf, dim = next(iter(self.dims.items()))
        return leaves[leaf].shape[dim] if dim < leaves[leaf].dim() else 0

    def resized(self, arguments: Arguments, size: int) -> Arguments:
        """The example at another size, with other data."""
        if size == self.size_of(arguments.leaves):
            return arguments
        return arguments._replace(leaves=_resize(arguments.leaves, self.dims, size))

    def check_rest(self, arguments: Arguments) -> None:
        """Everything but the batch must be as in the example."""
        for i, (name, t) in enumerate(zip(arguments.names, arguments.leaves, strict=True)):
            dtype, shape = self.shapes[i]
            if t.dtype != dtype or t.dim() != len(shape):
                raise InputError(f"input {name} is {t.dtype} of {t.dim()} dimensions, expected {dtype} of {len(shape)}")
            for d, n in enumerate(shape):
                if self.dims.get(i) == d:
                    n = self.size_of(arguments.leaves)
                if t.shape[d] != n:
                    raise InputError(f"input {name}: dimension {d} is {t.shape[d]}, expected {n}")

    def _find_dims(self, arguments: Arguments) -> dict[int, int] | None:
        """The guess with which the model runs at another size. When more than one dimension can change (a sequence
        beside the batch), the batch is the one along which rows do not see each other."""
        running: dict[int, dict[int, int]] = {}  # the first guess that runs, by dimension
        for guess in batch_dims(arguments.leaves):
            leaf, dim = next(iter(guess.items()))
            if dim not in running and self._runs(arguments, guess, arguments.leaves[leaf].shape[dim] + 1):
                running[dim] = guess
        if len(running) > 1:
            for guess in running.values():
                if self._rows_apart(arguments, guess):
                    return guess
        return next(iter(running.values()), None)

    def _runs(self, arguments: Arguments, guess: dict[int, int], size: int) -> bool:
        leaves = _resize(arguments.leaves, guess, size)
        work = Capture(self.target, arguments._replace(leaves=leaves), both=False)
        try:
            work.record(leaves, self.grad)
        except CleaveError:
            return True  # it runs; why it cannot be captured is told at the example's own size
        except Exception:
            return False
        finally:
            work.restore()
        return True

    def _rows_apart(self, arguments: Arguments, guess: dict[int, int]) -> bool:
        """Other data in the first row changes the first row of the output and no other."""
        size = max(2, self.example_size(arguments, guess))
        first = _resize(arguments.leaves, guess, size)
        second = [t.detach().clone() for t in first]
        for i, dim in guess.items():
            second[i].select(dim, 0).copy_(
                first[i].detach().select(dim, 1).flip(-1) if first[i].dim() > 1 else first[i][1]
            )
        work = Capture(self.target, arguments._replace(leaves=first), both=False)
        outputs = []
        for leaves in (first, second):
            with work.undoing(), torch.no_grad():
                args, kwargs = work.arguments.rebuild(leaves)
                outputs.append(_tree.flatten(self.target.call(*args, **kwargs))[1])
        for a, b in zip(*outputs, strict=False):
            for dim in [d for d in range(a.dim()) if a.shape == b.shape and a.shape[d] == size]:
                x, y = a.narrow(dim, 1, size - 1), b.narrow(dim, 1, size - 1)
                if torch.allclose(x, y, equal_nan=True) and not torch.equal(a, b):
                    return True
        return False

    @staticmethod
    def example_size(arguments: Arguments, guess: dict[int, int]) -> int:
        """Rows of the example along a guessed batch."""
        leaf, dim = next(iter(guess.items()))
        return arguments.leaves[leaf].shape[dim]

    def _try_size(self, arguments: Arguments, size: int) -> None:
        if any(size == known for known, _ in self.streams):
            return
        try:
            recorded = self.work.record(_resize(arguments.leaves, self.dims, size), self.grad)
        except Exception:  # the model does not run at this size (or not this way): it is looked at when it is asked for
            return
        reason = self._misfit(recorded)
        if reason is None:
            self.streams.append((size, recorded))
        self.misfit = self.misfit or reason

    def _misfit(self, recorded: Recorded) -> str | None:
        """Why a record at another size is of another shape than the first."""
        if self.folded:
            recorded.stream.fold()
        reason = misfit(self.mine, recorded)
        if reason is None or self.folded:
            return reason
        self._fold(recorded)
        return None if misfit(self.mine, recorded) is None else reason

    def _fold(self, recorded: Recorded) -> None:
        """Sequences (unbind, split) have other lengths at other sizes: all streams are written without them."""
        self.folded = True
        known = [self.probe, *([self.same] if self.same else []), *(r for _, r in self.streams), recorded]
        for r in {id(r): r for r in known}.values():
            r.stream.fold()

    # ---- plans

    def _build(self) -> Captured | None:
        """A plan with formulas for all streams, or None and a reason."""
        sizes = [size for size, _ in self.streams]
        if len(set(sizes)) < 4 and self.low != self.high:
            self.reason = self.misfit or "the model runs at too few sizes to tell how it follows them"
            return None
        try:
            captured = self.work.build(
                self.mine,
                self.same if self.flow and self.same else self.probe,
                self.mine if self.grad else None,
                {self.grad},
                self._points(sizes),
                [r for _, r in self.streams[1:]],
            )
        except CleaveError as error:
            self.reason = str(error)
            return self._build() if self._settle(error) else None
        if self.flow and not captured.plan.flows():  # what is read only decides: each size has a plan with its guards
            self.reason = "what the forward reads from its data is no argument"
            return None
        self.reason = None
        self.proven = set(sizes)
        return captured

    def _points(self, sizes: list[int]) -> Sizes:
        """What every stream was recorded at, as _native.build takes it."""
        streams = [r.stream for _, r in self.streams]
        if not self.flow or not self.same:
            return streams[1:], sizes, [self.symbol], [self.low], [self.high], -1
        points, count = _native.data_points(streams, sizes, 1)
        if self.symbols is None or len(self.symbols[0]) != count - 1:
            self.symbols = flow_symbols(points, count, [self.symbol])
        names, low, high = self.symbols
        return streams[1:], points, [self.symbol, *names], [self.low, *low], [self.high, *high], count - 1

    def _build_without_flow(self) -> Captured | None:
        """What is read from data follows nothing: guards, and formulas for the sizes alone."""
        if not self.flow:
            return None
        self.streams = [(size, r) for size, r in self.streams if not any(r is f for f in self.flow)]
        self.flow = []
        return self._build()

    def _build_with(self, arguments: Arguments, sizes: list[int]) -> Captured | None:
        for size in sizes:
            self._try_size(arguments, size)
        return self._build()

    def _settle(self, error: CleaveError) -> bool:
        """Two formulas fit all records: one more is made at a size where they differ."""
        known = len(self.streams)
        if isinstance(error, CaptureError) and error.doubt is not None:
            self._try_size(self.arguments, error.doubt[0])
        return len(self.streams) > known

    def _build_without_one(self) -> Captured | None:
        """A batch of one is often a case of its own: formulas for the others."""
        others = [(size, r) for size, r in self.streams[1:] if size != 1 or self.streams[0][0] == 1]
        if len(others) == len(self.streams) - 1:
            return None
        self.streams[1:] = others
        return self._build()

    def _static(self, base: int) -> Captured:
        """No formula: a plan for the base size alone; every other size gets its own."""
        self.proven = {base}
        return self.work.build(self.mine, self.probe, self.mine if self.grad else None, {self.grad}, None)

    def admit(self, arguments: Arguments, size: int) -> bool:
        """Records a size that is used for the first time; True when the formulas hold there too."""
        with self.lock:
            if size in self.proven:
                return True
            if self.reason is not None:
                return False
            work = Capture(self.target, arguments, both=False)
            try:
                recorded = work.record(arguments.copies(), self.grad)
            finally:
                work.restore()
            if self._misfit(recorded) is not None:
                return False
            self.streams.append((size, recorded))
            before = self.captured.plan.text()
            again = self._build()
            if again is None or again.plan.text() != before:
                self.streams.pop()
                self.reason = None
                self.proven = {s for s, _ in self.streams}
                return False
            return True


def _resize(leaves: Sequence[torch.Tensor], dims: dict[int, int], size: int) -> list[torch.Tensor]:
    """Inputs with `size` rows along the batch: rows of the example over and over, then other data."""
    generator = torch.Generator().manual_seed(size)
    out: list[Any] = []
    for i, t in enumerate(leaves):
        if i in dims:
            rows = torch.arange(size, device=t.device) % t.shape[dims[i]]
            t = t.detach().index_select(dims[i], rows).requires_grad_(t.requires_grad)
        out.append(other_data(t, generator, integers=True, gentle=False))
    return out

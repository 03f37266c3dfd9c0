"""Symbols: which dimensions of which inputs may change, in what range, and which sizes are worth a probe.

The user names dimensions (dynamic_dims), or asks for a batch, whose place is then found by running the model."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple

import torch

from ._capture import Arguments, compact, expand, other_data, own_copy
from ._log import warn
from .errors import ArgumentError, InputError

Point = tuple[int, ...]  # a size for every symbol
Place = tuple[int, int]  # (number of the input, dimension)
DynamicDims = Mapping[str, Mapping[int, Any]]  # {"input": {dim: "S"}} or {"input": {dim: ("S", low, high)}}

ATTEMPTS = 4  # data with which it is tried whether rows see each other
ENOUGH = 4  # sizes of a symbol before formulas in it are believed
# Batch sizes, cheap ones first. Four settle lines; more are taken only when some number follows no line.
FIRST = (2, 3, 4, 7)
MORE = (5, 6, 9, 13, 8, 12, 16)
# Other sizes, as steps from the base: small ones, then such that quotients by up to 64 are told apart.
NEAR = (1, 3, 6)
FAR = (-1, 31, 32, 33, 15, 16, 17, 63, 64, 7, 47, 127)
# Where several symbols move at once: other remainders again, and small ones for small sizes.
OFF = (9, -5, 22, -11, 13, 28, -19, 18, 5, -26, 11, 24)
OFF_SMALL = (2, 5, 4, 7, -1, -2)
CHUNK = 4  # of the far ones at a time
# A model may take multiples of something only: patches, strides, windows, groups of rows.
STRIDES = (1, 2, 4, 8, 16, 32, 64, 7, 14, 28, 3, 5, 6, 10, 12)
SMALL = 64  # sizes up to here are cheap enough to start from


class Symbol(NamedTuple):
    """A size that may change: its name, its range and the dimensions that have it."""

    name: str
    low: int
    high: int
    places: tuple[Place, ...]
    is_batch: bool


def warn_of_images(symbols: Sequence[Symbol], names: Sequence[str]) -> None:
    """A list of images has no batch: what was found in its place is a height or a width."""
    for s in symbols:
        if s.is_batch and s.places and all(dim > 0 and "[" in names[leaf] for leaf, dim in s.places):
            leaf, dim = s.places[0]
            warn(
                f"{names[leaf]} and the other tensors of its list have no batch in dimension 0: the size "
                f"{s.name} that may change is dimension {dim}, as the height of an image is. dynamic_batch=None "
                "records the sizes as they are, "
                "dynamic_dims names those that may change"
            )


class SizeSpec:
    """What a user asks for, checked as far as it can be without inputs."""

    def __init__(
        self,
        dynamic_batch: tuple[int, int] | None,
        batch_symbol: str = "B",
        dynamic_dims: DynamicDims | None = None,
        dynamic_ranges: Mapping[str, tuple[int, int]] | None = None,
    ) -> None:
        self.batch = batch_symbol
        self.ranges: dict[str, tuple[int, int]] = {}
        self.dims: dict[str, dict[int, str]] = {}
        if dynamic_batch is not None:
            self._set_range(batch_symbol, dynamic_batch, "dynamic_batch")
        if not isinstance(dynamic_ranges or {}, Mapping):
            raise ArgumentError(f'dynamic_ranges must be a dict such as {{"S": (1, 512)}}, not {dynamic_ranges!r}')
        for name, pair in (dynamic_ranges or {}).items():
            self._set_range(name, pair, f"dynamic_ranges[{name!r}]")
        if not isinstance(dynamic_dims or {}, Mapping):
            raise ArgumentError(f'dynamic_dims must be a dict such as {{"x": {{1: "S"}}}}, not {dynamic_dims!r}')
        for leaf, dims in (dynamic_dims or {}).items():
            self._set_dims(leaf, dims)
        named = {name for dims in self.dims.values() for name in dims.values()}
        unknown = [name for name in dynamic_ranges or {} if name not in named and name != batch_symbol]
        if unknown:
            raise ArgumentError(f"dynamic_ranges names {', '.join(unknown)}, which no dimension in dynamic_dims has")
        self.find_batch = batch_symbol in self.ranges and batch_symbol not in named

    @property
    def empty(self) -> bool:
        """Nothing may change."""
        return not self.dims and not self.find_batch

    def _set_range(self, name: Any, pair: Any, where: str) -> None:
        if not isinstance(name, str) or not name.isidentifier():
            raise ArgumentError(f"a symbol must be an identifier such as S, not {name!r}")
        if not isinstance(pair, tuple) or len(pair) != 2 or not all(type(n) is int for n in pair):
            raise ArgumentError(f"{where} must be a pair of integers (low, high) or None, not {pair!r}")
        if pair[0] < 1 or pair[1] < pair[0]:
            raise ArgumentError(f"{where} must have 1 <= low <= high, not {pair!r}")
        if self.ranges.setdefault(name, pair) != pair:
            raise ArgumentError(f"{where} gives {name} the range {pair}, but it has {self.ranges[name]} already")

    def _set_dims(self, leaf: Any, dims: Any) -> None:
        where = f"dynamic_dims[{leaf!r}]"
        if not isinstance(leaf, str) or not isinstance(dims, Mapping):
            raise ArgumentError(f'{where} must be input name and dict, as in {{"x": {{1: "S"}}}}, not {dims!r}')
        for dim, name in dims.items():
            if isinstance(name, tuple) and len(name) == 3:
                self._set_range(name[0], name[1:], f"{where}[{dim!r}]")
                name = name[0]
            if type(dim) is not int or not isinstance(name, str) or not name.isidentifier():
                raise ArgumentError(f'{where} must map dimensions to symbols, as in {{1: "S"}}, not {dim!r}: {name!r}')
            self.dims.setdefault(leaf, {})[dim] = name

    def named(self, arguments: Arguments) -> dict[str, list[Place]]:
        """The places of every symbol that the user named, checked against the inputs."""
        out: dict[str, list[Place]] = {}
        for leaf, dims in self.dims.items():
            if leaf not in arguments.names:
                raise ArgumentError(
                    f"dynamic_dims names input {leaf!r}; the inputs are {', '.join(arguments.names) or 'none'}"
                )
            i = arguments.names.index(leaf)
            rank = arguments.leaves[i].dim()
            for dim, name in dims.items():
                if not -rank <= dim < rank:
                    raise ArgumentError(
                        f"dynamic_dims: input {leaf} has {rank} dimensions, there is no dimension {dim}"
                    )
                out.setdefault(name, []).append((i, dim % rank))
        return out

    def symbols(self, arguments: Arguments, batch: Sequence[Place]) -> tuple[Symbol, ...]:
        """All symbols, the batch first. A symbol without a range gets one around the example's size."""
        places = self.named(arguments)
        if batch:
            places = {self.batch: list(batch), **places}
        order = sorted(places, key=lambda name: name != self.batch)
        return tuple(self._symbol(arguments, name, places[name]) for name in order)

    def _symbol(self, arguments: Arguments, name: str, places: list[Place]) -> Symbol:
        (leaf, dim), *rest = places
        size = arguments.leaves[leaf].shape[dim]
        for i, d in rest:
            if arguments.leaves[i].shape[d] != size:
                raise InputError(_disagree(name, arguments.names, (leaf, dim), size, (i, d), arguments.leaves[i]))
        low, high = self.ranges.get(name, (1, max(SMALL, 4 * size)))
        if not low <= size <= high:
            where = f"dynamic_batch=({low}, {high})" if name == self.batch else f"its range {low} to {high}"
            raise InputError(f"the example has {name}={size}, outside of {where}")
        return Symbol(name, low, high, tuple(places), name == self.batch)


def _disagree(name: str, names: Sequence[str], a: Place, size: int, b: Place, t: torch.Tensor) -> str:
    got = t.shape[b[1]] if b[1] < t.dim() else "missing"
    first = f"dimension {a[1]} of {names[a[0]]} is {size}"
    return f"inputs disagree about {name}: {first}, dimension {b[1]} of {names[b[0]]} is {got}"


def sizes_of(symbols: Sequence[Symbol], leaves: Sequence[torch.Tensor]) -> Point:
    """The size of every symbol in these inputs, read off the first dimension that has it; 0 where it is missing."""
    out = []
    for s in symbols:
        leaf, dim = s.places[0]
        shape = leaves[leaf].shape
        out.append(shape[dim] if dim < len(shape) else 0)
    return tuple(out)


def check_sizes(symbols: Sequence[Symbol], names: Sequence[str], leaves: Sequence[torch.Tensor]) -> None:
    """Every size is in its range, and inputs agree about it."""
    for s, size in zip(symbols, sizes_of(symbols, leaves), strict=True):
        leaf, dim = s.places[0]
        check_range(s, names, size)
        for i, d in s.places[1:]:
            if d >= leaves[i].dim() or leaves[i].shape[d] != size:
                raise InputError(_disagree(s.name, names, (leaf, dim), size, (i, d), leaves[i]))


def check_range(s: Symbol, names: Sequence[str], size: int) -> None:
    leaf, dim = s.places[0]
    if not s.low <= size <= s.high:
        raise InputError(f"input {names[leaf]}: dimension {dim} is {s.name}={size}, expected {s.low} to {s.high}")


def read_size(size: Any, batch: str, known: Iterable[str]) -> dict[str, int]:
    """A size that a user names, by symbol: that of the batch, or a dict."""
    wanted = dict(size) if isinstance(size, Mapping) else {batch: size}
    names = list(known)
    for name, n in wanted.items():
        if type(n) is not int:
            raise TypeError(f"a size is an integer, or a dict of them by symbol, not {size!r}")
        if names and name not in names:
            raise ArgumentError(f"no dimension is called {name}; it has {', '.join(names)}")
    return wanted


# ---- inputs of other sizes


def resize(
    leaves: Sequence[torch.Tensor], symbols: Sequence[Symbol], point: Point, as_given: bool = False
) -> list[torch.Tensor]:
    """Inputs at another point: rows of the example over and over, then other data.

    Integers and flags (masks, lengths, ids) stay in their rows of the batch, in all inputs the same ones: so questions
    about them have the answers that they have in the example. as_given: so do all other inputs, and nothing is changed
    in them."""
    generator = torch.Generator().manual_seed(sum((i + 1) * n for i, n in enumerate(point)))
    dims: dict[int, dict[int, list[int]]] = {}
    whole: set[int] = set()  # inputs that have the batch
    for s, size in zip(symbols, point, strict=True):
        rows = _rows(leaves, s, size, None if as_given else generator)
        for leaf, dim in s.places:
            dims.setdefault(leaf, {})[dim] = rows
            whole.update([leaf] if s.is_batch else [])
    made: dict[Any, torch.Tensor] = {}  # one tensor that is given twice stays one, where all its sizes do
    keys = [(id(t), *((dim, len(rows)) for dim, rows in dims.get(i, {}).items())) for i, t in enumerate(leaves)]
    for i, (key, t) in enumerate(zip(keys, leaves, strict=True)):
        if key not in made:
            tiled = _tiled(t, dims.get(i, {}))
            other = not as_given or i not in whole
            made[key] = (
                other_data(tiled, generator, integers=i not in whole, gentle=False) if other else own_copy(tiled)
            )
    return [made[key] for key in keys]


def _rows(leaves: Sequence[torch.Tensor], s: Symbol, size: int, generator: torch.Generator | None) -> list[int]:
    """Which rows of the example stand for it at another size. Of the batch they are mixed, if there is a generator, and
    few of them have those with the largest and the smallest numbers: mask.any() and mask.all() say the same of them."""
    leaf, dim = s.places[0]
    n = leaves[leaf].shape[dim]
    if not s.is_batch:
        return [i % n for i in range(size)]
    order = dict.fromkeys([*(_extremes(leaves, s) if size < n else ()), *range(n)])
    rows = list(order)[:size] if size < n else [i % n for i in range(size)]
    if generator is None:
        return sorted(rows)
    return [rows[i] for i in torch.randperm(len(rows), generator=generator).tolist()]


def _extremes(leaves: Sequence[torch.Tensor], s: Symbol) -> list[int]:
    """The rows with the largest and the smallest number of each input."""
    found: list[int] = []
    for leaf, dim in s.places:
        t = leaves[leaf]
        if t.is_complex() or t.is_quantized or t.is_meta or not t.numel():
            continue
        rows = t.detach().movedim(dim, 0).reshape(t.shape[dim], -1)
        rows = rows if rows.dtype in (torch.float32, torch.float64) else rows.to(torch.float64)
        found += [int(rows.amax(1).argmax()), int(rows.amin(1).argmin())]
    return found


def _tiled(t: torch.Tensor, dims: Mapping[int, list[int]]) -> torch.Tensor:
    row = compact(t)
    if row is not t:  # what repeats a row at one size does so at the others
        apart = {dim: rows for dim, rows in dims.items() if row.shape[dim] == t.shape[dim]}
        shape = [len(dims[dim]) if dim in dims else n for dim, n in enumerate(t.shape)]
        return expand(_tiled(row, apart), shape, t.requires_grad)
    out = t.detach()
    for dim, rows in dims.items():
        if rows != list(range(out.shape[dim])):
            out = out.index_select(dim, torch.tensor(rows, device=t.device))
    if out.dim() > 1 and not t.is_contiguous() and out.stride() != t.stride():  # channels last stays channels last
        order = sorted(range(t.dim()), key=lambda d: (-t.stride()[d], d))
        row_span = 1 + sum(
            (n - 1) * s for d, (n, s) in enumerate(zip(t.shape, t.stride(), strict=True)) if d != order[0]
        )
        if set(dims) == {order[0]} and t.stride()[order[0]] >= row_span:  # rows of something wider stay as far apart
            out = torch.empty_strided(out.shape, t.stride(), dtype=t.dtype, device=t.device).copy_(out)
        else:
            out = torch.empty_permuted(out.shape, order, dtype=t.dtype, device=t.device).copy_(out)
    return out.requires_grad_(t.requires_grad)


def batch_places(leaves: Sequence[torch.Tensor], taken: Iterable[Place]) -> Iterator[tuple[Place, ...]]:
    """Guesses which dimensions of which inputs are the batch, the likeliest first; running the model tells.

    All inputs that have one size in their first dimension, then all but one of them and each alone; the same for the
    second dimension; then those that have it in either."""
    free = [(i, dim) for dim in (0, 1) for i, t in enumerate(leaves) if _has(t, dim) and (i, dim) not in set(taken)]
    sizes = list(dict.fromkeys(leaves[i].shape[dim] for i, dim in free))
    seen: set[tuple[Place, ...]] = set()
    for places in [[p for p in free if p[1] == dim] for dim in (0, 1)] + [free]:
        for size in sizes:
            found = {
                i: (i, dim) for i, dim in reversed(places) if leaves[i].shape[dim] == size
            }  # the first of an input
            same = [found[i] for i in sorted(found)]
            others = [[q for q in same if q != p] for p in same if len(same) > 1]
            for group in [same, *others, *([p] for p in same)]:
                if group and tuple(group) not in seen:
                    seen.add(tuple(group))
                    yield tuple(group)


class OtherRow(NamedTuple):
    """Inputs of which one row has other data."""

    row: int
    leaves: list[torch.Tensor]


def with_another_row(leaves: Sequence[torch.Tensor], batch: Sequence[Place], size: int) -> Iterator[OtherRow]:
    """Inputs with other data in one row along `batch`; each pair of data and row is another attempt."""
    generator = torch.Generator().manual_seed(0xB)
    for _ in range(ATTEMPTS):
        other = [other_data(t, generator, integers=True, gentle=False) for t in leaves]
        for row in dict.fromkeys((0, size - 1, size // 2)):
            made = list(leaves)
            for i, dim in batch:
                copy = leaves[i].detach().clone(memory_format=torch.contiguous_format)
                copy.select(dim, row).copy_(other[i].detach().select(dim, row))
                made[i] = copy.requires_grad_(leaves[i].requires_grad)  # the forward may ask
            yield OtherRow(row, made)


def _has(t: torch.Tensor, dim: int) -> bool:
    return t.layout is torch.strided and not t.is_nested and t.dim() > dim and t.shape[dim] > 0


# ---- sizes worth a probe


def small_batch(low: int, high: int) -> int:
    """A cheap batch to start from. 1 is a special case everywhere; 2 is left for the comparison with the model."""
    return min(max(3, low), high)


def other_batch(rows: int, low: int, high: int, group: int) -> int:
    """A cheap batch to try that is not `rows`, in groups of this many rows: in the range where that has one."""
    few = -(-small_batch(low, high) // group) * group
    if few != rows:
        return few
    nearby = [n for n in (rows + group, rows - group) if max(low, 1) <= n <= high]
    return nearby[0] if nearby else 2 * group if rows != 2 * group else group


def small_size(s: Symbol, example: int) -> int:
    """A cheap size to start from: the example's own when that is small."""
    if s.is_batch:
        return small_batch(s.low, s.high)
    if example <= SMALL:
        return example
    stride = next(k for k in (64, 32, 16, 8, 4, 2, 1) if example % k == 0)
    return min(example, max(SMALL, -(-s.low // stride) * stride))


class Line(NamedTuple):
    """Sizes of one symbol to probe."""

    near: list[int]  # always, the other symbols as in the base
    far: list[int]  # for harder formulas
    off: list[int]  # together with other sizes of the other symbols


def line_sizes(s: Symbol, base: int, stride: int, seen: set[int]) -> Line:
    """The sizes to probe for one symbol; the model takes steps of `stride`. seen: those that are known already."""
    if s.is_batch and stride == 1:
        offset = max(0, s.low - FIRST[0])
        first, more = [n + offset for n in FIRST], [n + offset for n in MORE]
        off = _inside(s, base, first, len(first))
        new = [n for n in first if n not in seen]
        near = new[: max(0, ENOUGH - len(seen))] + ([1] if s.low == 1 else [])
        far = [n for n in (*new, *more) if n not in near]
        return Line(_inside(s, base, near, len(near)), _inside(s, base, far, len(far)), off)
    near = _inside(s, base, [base + stride * n for n in (*NEAR, *(-n for n in NEAR))], len(NEAR))
    steps = FAR if stride == 1 else tuple(range(1, len(FAR)))
    far = [base + stride * n if s.low <= base + stride * n <= s.high else base - stride * n for n in steps]
    moves = OFF if base >= SMALL // 2 else OFF_SMALL
    off = [base + n for n in moves] if stride == 1 else [base + stride * n for n in (4, 2, 7, 5)]
    return Line(near, _inside(s, base, [n for n in far if n not in near], len(FAR)), _inside(s, base, off, len(OFF)))


def _inside(s: Symbol, base: int, sizes: Iterable[int], most: int) -> list[int]:
    return [n for n in dict.fromkeys(sizes) if s.low <= n <= s.high and n != base and (n > 1 or s.is_batch)][:most]


def stages(base: Point, lines: Sequence[Line]) -> Iterator[list[Point]]:
    """Points to probe, by rounds: along each symbol alone, and off these lines. More rounds are for harder formulas."""
    yield [*_along(base, [line.near for line in lines]), *_all_move(base, lines, 0, 3), *_pairs_move(base, lines)]
    for k in range(0, max(len(line.far) for line in lines), CHUNK):
        yield [*_along(base, [line.far[k : k + CHUNK] for line in lines]), *_all_move(base, lines, 3 + k, 2)]


def _along(base: Point, lines: Sequence[Sequence[int]]) -> list[Point]:
    return [(*base[:i], size, *base[i + 1 :]) for i, line in enumerate(lines) for size in line]


def _all_move(base: Point, lines: Sequence[Line], first: int, n: int) -> list[Point]:
    """Sums and products are told apart where more than one symbol moves."""
    if len(base) < 2:
        return []
    return [
        tuple(x.off[(k + 5 * i) % len(x.off)] if x.off else base[i] for i, x in enumerate(lines))
        for k in range(first, first + n)
    ]


def _pairs_move(base: Point, lines: Sequence[Line]) -> list[Point]:
    if len(base) < 3:
        return []
    pairs = [(i, j) for i in range(len(base)) for j in range(i)]
    moved = [x.off or [base[i]] for i, x in enumerate(lines)]
    return [
        tuple(moved[i][-1 - k % len(moved[i])] if i in pair else base[i] for i in range(len(base)))
        for k, pair in enumerate(pairs)
    ]


def powers_within(low: int, high: int) -> list[int]:
    """Powers of two in a range, and its ends."""
    powers = [1 << k for k in range(high.bit_length()) if low <= 1 << k <= high]
    return sorted({low, high, *powers})

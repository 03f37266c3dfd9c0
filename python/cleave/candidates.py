"""The candidates of a plan as a table that can be sorted and filtered.

>>> import torch, cleave
>>> net = torch.nn.Sequential(torch.nn.Linear(4, 8), torch.nn.ReLU(), torch.nn.Linear(8, 2)).eval()
>>> runtime = cleave.prepare_split(net, example_inputs=torch.randn(3, 4), split=cleave.SplitSpec(boundary="50%"))
>>> [c.name for c in runtime.candidates.filter(safe=True).sort(by="boundary_bytes")]
['linear', 'relu']
"""

from __future__ import annotations

import dataclasses
import fnmatch
from collections.abc import Callable, Iterable
from typing import Any, SupportsIndex, overload

from . import _native, _show
from .errors import ArgumentError
from .spec import SplitCandidate

FIELDS = (*(f.name for f in dataclasses.fields(SplitCandidate)), "safe")
MOST_ROWS = 24  # longer tables are shortened when printed
ENDS = 8  # rows that a shortened table keeps at each end
AROUND = 2  # and on both sides of the chosen frontier

_SIDES = ("prefix params", "suffix params", "prefix memory", "suffix memory")
_HEAD = ("", "after", "node", "module", "tensors", "bytes", "work", *_SIDES, "")
_RIGHT = (False, True, False, False, True, True, True, True, True, True, True, False)


class CandidateTable(_show.Table, list[SplitCandidate]):
    """Frontiers in the order of the plan. A list in every way; `chosen` is the one that a runtime cuts at.

    Printed, * marks the chosen one and ! those that cannot be cut, with the reason. A long table is shortened."""

    _head, _right, _most, _ends, _gap = _HEAD, _RIGHT, MOST_ROWS, ENDS, 2
    __len__ = list.__len__

    def __init__(self, candidates: Iterable[SplitCandidate] = (), chosen: SplitCandidate | None = None) -> None:
        super().__init__(candidates)
        self.chosen = chosen

    @overload
    def __getitem__(self, index: SupportsIndex, /) -> SplitCandidate: ...
    @overload
    def __getitem__(self, index: slice, /) -> CandidateTable: ...
    def __getitem__(self, index: Any, /) -> Any:
        found = super().__getitem__(index)
        return self._like(found) if isinstance(index, slice) else found

    def _like(self, candidates: Iterable[SplitCandidate]) -> CandidateTable:
        return CandidateTable(candidates, self.chosen)

    @overload  # type: ignore[override]
    def sort(self, by: str | Callable[[SplitCandidate], Any], *, reverse: bool = ...) -> CandidateTable: ...
    @overload
    def sort(self, *, key: Callable[[SplitCandidate], Any], reverse: bool = ...) -> None: ...
    def sort(self, by: Any = None, *, key: Any = None, reverse: bool = False) -> CandidateTable | None:
        """A sorted table; `by` is a field such as "boundary_bytes", or a function. Without `by` it is list.sort, which
        changes this one and returns nothing."""
        if by is None:
            super().sort(key=key, reverse=reverse)
            return None
        if key is not None:
            raise ArgumentError("sort takes by or key, not both")
        return self._like(sorted(self, key=by if callable(by) else _reader(by), reverse=reverse))

    def filter(self, keep: Callable[[SplitCandidate], bool] | None = None, **fields: Any) -> CandidateTable:
        """The candidates for which a function is true and whose fields are as wanted.

        A field is a value, a pair (least, most) in which None is open, or a pattern for texts: filter(safe=True,
        prefix_share=(0.2, 0.8), boundary_bytes=(None, 100_000), module_path="layer3*")."""
        tests = [(_reader(name), wanted) for name, wanted in fields.items()]
        rows = (c for c in self if keep is None or keep(c))
        return self._like(c for c in rows if all(_fits(read(c), wanted) for read, wanted in tests))

    def to_dicts(self) -> list[dict[str, Any]]:
        """Rows as plain dicts, for a data frame or JSON."""
        return [{name: getattr(c, name) for name in FIELDS} for c in self]

    def _row(self, i: int) -> _show.Row:
        c = self[i]
        taken = c == self.chosen
        return "chosen" if taken else "" if c.safe else "dim", _cells(c, taken)

    def _around(self) -> Iterable[int]:
        at = next((i for i, c in enumerate(self) if c == self.chosen), 0)
        return range(max(0, at - AROUND), min(len(self), at + AROUND + 1))

    def _caption(self) -> str:
        safe = sum(c.safe for c in self)
        text = f"{_show.plural(len(self), 'frontier')}, {safe} safe"
        marks = ["* is taken"] if self.chosen is not None and self.chosen in self else []
        marks += ["! cannot be cut"] if safe < len(self) else []
        return "; ".join([text, *marks])

    @_show.never_raises
    def __repr__(self) -> str:
        return self._lines() if len(self) else self._caption()


def _cells(c: SplitCandidate, chosen: bool) -> tuple[str, ...]:
    return (
        "*" if chosen else "" if c.safe else "!",
        str(c.position),
        _show.clip(c.name, 40),
        _show.clip(c.module_path, 40),
        str(c.boundary_tensors),
        _native.text_bytes(c.boundary_bytes),
        _show.share(c.prefix_share),
        _native.text_count(c.prefix_params),
        _native.text_count(c.suffix_params),
        _native.text_bytes(c.prefix_memory),
        _native.text_bytes(c.suffix_memory),
        _show.clip(c.reason or "", 60),
    )


def _reader(name: str) -> Callable[[SplitCandidate], Any]:
    if name not in FIELDS:
        raise ArgumentError(f"a candidate has no field {name!r}; it has {', '.join(FIELDS)}")
    return lambda c: getattr(c, name)


def _fits(value: Any, wanted: Any) -> bool:
    if isinstance(wanted, str) and isinstance(value, str):
        return fnmatch.fnmatchcase(value, wanted)
    if isinstance(wanted, tuple) and len(wanted) == 2 and isinstance(value, int | float):
        least, most = wanted
        return (least is None or least <= value) and (most is None or value <= most)
    return bool(value == wanted)

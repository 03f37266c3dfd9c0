"""Descriptions of objects for prompts and notebooks: a heading and one line per fact, as text or HTML.

What is shown is read off finished objects. Nothing here runs the model or captures, and nothing raises: a debugger may
ask for the repr of an object whose __init__ has not ended. Units and alignment are C's (src/base/human.c)."""

from __future__ import annotations

import functools
import html
import sys
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, TypeVar

from . import _native

Facts = list[tuple[str, str]]  # title, text
T = TypeVar("T")

MOST_RANGES = 8  # runs of sizes, or single points, that are listed
WIDEST = 160  # characters of a fact; a page has the rest

# Greys that are seen on white and on black, and no colour of the text itself: the notebook's theme has that.
_TABLE = "border-collapse:collapse;font-size:90%;color:inherit;margin:4px 0"
_HEAD = "text-align:{};padding:2px 8px;border-bottom:1px solid rgba(128,128,128,.6);font-weight:600"
_CELL = "text-align:{};padding:2px 8px;border-bottom:1px solid rgba(128,128,128,.2)"
_CHOSEN = "background:rgba(64,128,255,.15);font-weight:600"
_DIM = "opacity:.6"


def never_raises(show: Callable[[T], str]) -> Callable[[T], str]:
    """For __repr__ and _repr_html_: an object that is not whole yet says so."""

    @functools.wraps(show)
    def safe(self: T) -> str:
        try:
            return show(self)
        except Exception:
            text = f"<cleave.{type(self).__name__}, not ready>"
            return escaped(text) if show.__name__ == "_repr_html_" else text

    return safe


def plain(text: str) -> str:
    """One line that steers no terminal and that UTF-8 can hold: names come from anywhere."""
    return "".join(c if c.isprintable() else "?" for c in " ".join(text.split()))


def escaped(text: str) -> str:
    """Text as HTML."""
    return html.escape(plain(text))


def clip(text: str, most: int = WIDEST) -> str:
    """One line, shortened in the middle: the ends of a path say the most."""
    line = plain(text)
    return line if len(line) <= most else f"{line[: most // 3]}…{line[len(line) - most + most // 3 + 1 :]}"


def as_text(head: str, facts: Facts) -> str:
    """The head as a line, and the facts below it."""
    rows = tuple(("", plain(title), clip(text)) for title, text in facts)
    table: str = _native.text_columns(rows, (False, False, False)) if rows else ""
    return f"<{clip(head)}>\n{table}".rstrip("\n")


def as_html(head: str, facts: Facts) -> str:
    """The same as a small table."""
    rows = "".join(
        f'<tr><th style="{_CELL.format("left")};font-weight:600">{escaped(title)}</th>'
        f'<td style="{_CELL.format("left")}">{escaped(clip(text))}</td></tr>'
        for title, text in facts
    )
    return f'<div><code>{escaped(clip(head))}</code><table style="{_TABLE}"><tbody>{rows}</tbody></table></div>'


class Shown:
    """What has a head and facts to show."""

    def _shown(self) -> tuple[str, Facts]:
        raise NotImplementedError

    @never_raises
    def __repr__(self) -> str:
        return as_text(*self._shown())

    @never_raises
    def _repr_html_(self) -> str:
        return as_html(*self._shown())


def columns(rows: Sequence[Sequence[str]], right: Sequence[bool]) -> str:
    """Aligned lines."""
    return _native.text_columns(tuple(tuple(map(plain, row)) for row in rows), tuple(right)).rstrip("\n")


Row = tuple[str, Sequence[str]]  # its kind ("", "chosen", "dim"), and its cells


class Table:
    """What prints as aligned lines, and in notebooks as a table. A long one is shortened."""

    _head: tuple[str, ...]
    _right: tuple[bool, ...]
    _most, _ends = sys.maxsize, 0  # rows; a longer table keeps so many at each end
    _gap = 0  # the cell that says how many rows are left out

    def __len__(self) -> int:
        raise NotImplementedError

    def _row(self, i: int) -> Row:
        raise NotImplementedError

    def _around(self) -> Iterable[int]:
        """Rows that a long table has besides its ends."""
        return ()

    def _caption(self) -> str:
        return ""

    def _rows(self, whole: bool = False) -> list[Row]:
        n, out, last = len(self), list[Row](), -1
        short = sorted({*range(self._ends), *range(n - self._ends, n), *self._around()}) if n > self._most else range(n)
        for i in range(n) if whole else short:
            if i != last + 1:
                gap = f"… {i - last - 1} more"
                out.append(("dim", [gap if k == self._gap else "" for k in range(len(self._head))]))
            out.append(self._row(i))
            last = i
        return out

    def _lines(self, whole: bool = False) -> str:
        text = columns([self._head, *(cells for _, cells in self._rows(whole))], self._right)
        return f"{text}\n{self._caption()}".rstrip("\n")

    @never_raises
    def __repr__(self) -> str:
        return self._lines()

    @never_raises
    def _repr_html_(self) -> str:
        sides = ["right;white-space:nowrap" if r else "left" for r in self._right]

        def line(cells: Sequence[str], tag: str, style: str) -> str:
            return "".join(
                f'<{tag} style="{style.format(s)}">{escaped(c)}</{tag}>' for c, s in zip(cells, sides, strict=True)
            )

        styles = {"chosen": _CHOSEN, "dim": _DIM}
        body = "".join(
            f'<tr style="{styles.get(kind, "")}">{line(cells, "td", _CELL)}</tr>' for kind, cells in self._rows()
        )
        caption = self._caption()
        foot = f'<div style="{_DIM};font-size:90%">{escaped(caption)}</div>' if caption else ""
        return (
            f'<div><table style="{_TABLE}"><thead><tr>{line(self._head, "th", _HEAD)}</tr></thead>'
            f"<tbody>{body}</tbody></table>{foot}</div>"
        )


# ---- facts


def plural(n: int, one: str) -> str:
    """ "1 tensor", "2 tensors"."""
    return f"{n} {one}" if n == 1 else f"{n} {one}s"


def plan_facts(plan: Any, sized: Any = None) -> Facts:
    """Of a _native.Plan, with the sizes that it and its sisters are proven for."""
    facts: Facts = []
    for line in plan.brief().splitlines():
        title, _, text = line.partition("\t")
        facts.append((title, text))
    if sized is None:
        return facts
    facts = [f for f in facts if f[0] != "symbols"]
    return [*facts[:-1], ("sizes", sizes_text(sized)), facts[-1]]


def sizes_text(sized: Any) -> str:
    """ "B 1..64, proven at 2..5, 8; 2 plans"."""
    plans = sized.plans  # replaced by other threads, never changed
    ranges = ", ".join(f"{s.name} {s.low}..{s.high}" for s in sized.symbols)
    text = f"{ranges}, proven at {points_text(sorted(point for plan in plans for point in plan.points))}"
    return f"{text}; {len(plans)} plans" if len(plans) > 1 else text


def named_sizes(sizes: Mapping[str, int]) -> str:
    """ "B=3, S=40"."""
    return ", ".join(f"{name}={n}" for name, n in sizes.items())


def points_text(points: Sequence[tuple[int, ...]]) -> str:
    """Sizes in short: runs for one symbol, tuples for several."""
    if all(len(p) == 1 for p in points):
        parts = _runs([p[0] for p in points])
    else:
        parts = [str(p) for p in points]
    more = len(parts) - MOST_RANGES
    return ", ".join(parts[:MOST_RANGES]) + (f" and {more} more" if more > 0 else "") if parts else "none"


def _runs(numbers: Sequence[int]) -> list[str]:
    runs: list[list[int]] = []
    for n in numbers:
        if runs and n == runs[-1][1] + 1:
            runs[-1][1] = n
        else:
            runs.append([n, n])
    return [str(a) if a == b else f"{a}..{b}" if b > a + 1 else f"{a}, {b}" for a, b in runs]


def tensor_text(tensor: Any) -> str:
    """ "float32[2,8] on cpu", without a look at the data."""
    if tensor.is_nested:
        return f"nested {str(tensor.dtype).removeprefix('torch.')} on {tensor.device}"
    shape = ",".join(str(n) for n in tensor.shape)
    return f"{str(tensor.dtype).removeprefix('torch.')}[{shape}] on {tensor.device}"


def share(fraction: float) -> str:
    """ "31.0 %"."""
    return f"{100 * fraction:.1f} %"

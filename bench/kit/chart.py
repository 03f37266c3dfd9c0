"""A chart as SVG text: groups of horizontal bars. Colours are readable on white and on black; the reader's setting
decides which text colour is used."""

from __future__ import annotations

from typing import NamedTuple
from xml.sax.saxutils import escape, quoteattr

WIDTH, BAR, GAP, TOP, LINE = 900, 13, 14, 64, 18
LETTER = 7  # pixels of one, about
STYLE = """
  text { font: 12px system-ui, -apple-system, 'Segoe UI', sans-serif; fill: #1f2328 }
  .head { font-size: 15px; font-weight: 600 }
  .faint { fill: #57606a }
  .axis { stroke: #8c959f; stroke-width: 1 }
  @media (prefers-color-scheme: dark) { text { fill: #e6edf3 } .faint { fill: #9da7b3 } .axis { stroke: #6e7681 } }
"""


class Series(NamedTuple):
    """What has a bar in every group."""

    name: str
    colour: str


class Group(NamedTuple):
    """A model: a number for each series, or a word why there is none."""

    name: str
    bars: list[float | str | None]


def _legend(left: int, series: list[Series]) -> tuple[list[str], int]:
    """The lines of the legend, and where they end."""
    out, x, y = [], left, TOP
    for one in series:
        wide = 28 + LETTER * len(one.name)
        if x + wide > WIDTH:
            x, y = left, y + LINE
        out.append(f'<rect x="{x}" y="{y - 10}" width="11" height="11" rx="2" fill="{one.colour}"/>')
        out.append(f'<text x="{x + 16}" y="{y}">{escape(one.name)}</text>')
        x += wide
    return out, y + LINE


def _bar(left: int, series: Series, y: int, found: float | str, scale: float, unit: str) -> list[str]:
    middle = y + BAR - 3
    if isinstance(found, str):
        return [f'<text class="faint" x="{left + 4}" y="{middle}">{escape(found)}</text>']
    wide = max(1.0, found * scale)
    title = f"<title>{escape(series.name)}: {found:.2f}{escape(unit)}</title>"
    return [
        f'<rect x="{left}" y="{y}" width="{wide:.1f}" height="{BAR - 2}" rx="2" fill="{series.colour}">{title}</rect>',
        f'<text class="faint" x="{left + wide + 5:.1f}" y="{middle}">{found:.2f}{escape(unit)}</text>',
    ]


def chart(
    title: str,
    below: str,
    series: list[Series],
    groups: list[Group],
    unit: str = "x",
    line_at: float = 1.0,
    legend: bool = True,
) -> str:
    """Bars by group and series, and a dashed line at one number."""
    left = 20 + LETTER * max((len(group.name) for group in groups), default=0)
    squares, y = _legend(left, series) if legend else ([], TOP)
    numbers = [found for group in groups for found in group.bars if isinstance(found, float)]
    scale = (WIDTH - left - 60) / max([*numbers, line_at])
    top = y
    body: list[str] = []
    for group in groups:
        here = [(i, found) for i, found in enumerate(group.bars) if found is not None]
        middle = y + BAR * max(1, len(here)) // 2 + 4
        body.append(f'<text x="{left - 10}" y="{middle}" text-anchor="end">{escape(group.name)}</text>')
        for place, (i, found) in enumerate(here):
            body += _bar(left, series[i], y + place * BAR, found, scale, unit)
        y += BAR * max(1, len(here)) + GAP
    at = left + line_at * scale
    axis = f'<line class="axis" x1="{at:.1f}" y1="{top - 4}" x2="{at:.1f}" y2="{y - GAP + 4}" stroke-dasharray="3 3"/>'
    head = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {y + 8}" width="{WIDTH}" height="{y + 8}" '
        f'role="img" aria-label={quoteattr(title)}>',
        f"<style>{STYLE}</style>",
        f'<text class="head" x="{left}" y="22">{escape(title)}</text>',
        f'<text class="faint" x="{left}" y="40">{escape(below)}</text>',
    ]
    return "\n".join([*head, *squares, *body, axis, "</svg>", ""])

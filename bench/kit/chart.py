"""Charts as SVG text: groups of horizontal bars, and lines over two logarithmic axes. Colours are readable on white and
on black; the reader's setting decides which text colour is used."""

from __future__ import annotations

import math
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


# ---- lines


class Panel(NamedTuple):
    """A set of axes: for each series its points, x and y above 0."""

    name: str
    lines: list[list[tuple[float, float]]]


HIGH, BETWEEN, EDGE = 230, 46, 58  # of a panel in pixels, between two, left of the first


def _ticks(low: float, high: float) -> list[float]:
    """Powers of ten, from one at or below the lowest to one at or above the highest."""
    return [10.0**k for k in range(math.floor(math.log10(low)), math.ceil(math.log10(high)) + 1)]


def _place(x: float, ticks: list[float], size: float) -> float:
    low, high = math.log10(ticks[0]), math.log10(ticks[-1])
    return size * (math.log10(x) - low) / max(high - low, 1e-9)


def _panel(
    panel: Panel, series: list[Series], left: float, top: float, wide: float, axes: list[list[float]]
) -> list[str]:
    xs, ys = axes
    out = [f'<text x="{left:.0f}" y="{top - 8:.0f}">{escape(panel.name)}</text>']
    for x in xs:
        at = left + _place(x, xs, wide)
        out.append(f'<line class="axis" x1="{at:.1f}" y1="{top}" x2="{at:.1f}" y2="{top + HIGH}" opacity="0.35"/>')
        out.append(f'<text class="faint" x="{at:.1f}" y="{top + HIGH + 16}" text-anchor="middle">{x:g}</text>')
    for y in ys:
        at = top + HIGH - _place(y, ys, HIGH)
        out.append(
            f'<line class="axis" x1="{left:.1f}" y1="{at:.1f}" x2="{left + wide:.1f}" y2="{at:.1f}" opacity="0.35"/>'
        )
        if left == EDGE:
            out.append(f'<text class="faint" x="{left - 6}" y="{at + 4:.1f}" text-anchor="end">{y:g}</text>')
    for one, points in zip(series, panel.lines, strict=True):
        dots = [(left + _place(x, xs, wide), top + HIGH - _place(y, ys, HIGH)) for x, y in points]
        path = " ".join(f"{x:.1f},{y:.1f}" for x, y in dots)
        title = f"<title>{escape(one.name)}</title>"
        out.append(f'<polyline points="{path}" fill="none" stroke="{one.colour}" stroke-width="2">{title}</polyline>')
        out += [f'<circle cx="{x:.1f}" cy="{y:.1f}" r="2.5" fill="{one.colour}">{title}</circle>' for x, y in dots]
    return out


def lines(title: str, below: str, series: list[Series], panels: list[Panel]) -> str:
    """Panels side by side on the same two logarithmic axes."""
    points = [p for panel in panels for line in panel.lines for p in line]
    axes = [_ticks(min(v), max(v)) for v in ([x for x, _ in points], [y for _, y in points])]
    legend, top = _legend(EDGE, series)
    top += 14
    wide = (WIDTH - EDGE - 20 - BETWEEN * (len(panels) - 1)) / len(panels)
    body: list[str] = []
    for i, panel in enumerate(panels):
        body += _panel(panel, series, EDGE + i * (wide + BETWEEN), top, wide, axes)
    height = top + HIGH + 28
    head = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {height}" width="{WIDTH}" height="{height}" '
        f'role="img" aria-label={quoteattr(title)}>',
        f"<style>{STYLE}</style>",
        f'<text class="head" x="{EDGE}" y="22">{escape(title)}</text>',
        f'<text class="faint" x="{EDGE}" y="40">{escape(below)}</text>',
    ]
    return "\n".join([*head, *legend, *body, "</svg>", ""])

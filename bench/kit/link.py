"""How to divide a call over links: results of bench/link.py as a section of the page, with a chart."""

from __future__ import annotations

import json
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from .chart import Panel, Series, lines
from .text import Table, as_markdown, number

HEADING = "A model divided between a device and a server, over links"
TEXT = """`bench/link.py`: a model behind `cleave serve` and a proxy that lets so many bytes pass in a second and
holds them back for half of the round trip each way. A time is the network's in the best round, and the least work
that any round took. "Best cut" is the fastest of the cuts at each link. Weights are random, as no trained ones are at
hand: the error of outputs, and how small entropy coding makes a boundary, say little about a trained model. A time
with ~ was added up from the bytes and the rate, as it would have taken too long to wait."""

Rows = list[dict[str, Any]]

FAMILIES = {  # the colours are readable on white and on black
    "all here": "#868e96",
    "input f32": "#228be6",
    "input JPEG": "#37a24b",
    "best cut f32": "#f76707",
    "best cut int8": "#e03131",
    "best cut q4": "#ae3ec9",
}


def family(way: str) -> str:
    """What a way counts as in the chart."""
    return way if way in FAMILIES else f"best cut {way.rpartition(' ')[2]}"


def best(rows: Iterable[dict[str, Any]]) -> dict[str, dict[str, Any]]:
    """The fastest row of each family, of rows of one link."""
    found: dict[str, dict[str, Any]] = {}
    for row in rows:
        name = family(row["way"])
        if name not in found or row["ms"] < found[name]["ms"]:
            found[name] = row
    return found


def links(rows: Rows) -> list[tuple[float, float]]:
    return sorted({(row["rtt_ms"], row["rate_mbit"]) for row in rows})


def of_link(rows: Rows, rtt: float, rate: float) -> Rows:
    return [row for row in rows if (row["rtt_ms"], row["rate_mbit"]) == (rtt, rate)]


def drawn(rows: Rows) -> str:
    """Latency over bandwidth, a panel for each round trip."""
    panels = []
    for rtt in sorted({rtt for rtt, _ in links(rows)}):
        at = {rate: best(of_link(rows, rtt, rate)) for t, rate in links(rows) if t == rtt}
        drawn_lines = [[(rate, found[name]["ms"]) for rate, found in at.items() if name in found] for name in FAMILIES]
        panels.append(Panel(f"round trip {rtt:g} ms", drawn_lines))
    below = "Milliseconds of a call over Mbit/s; both axes are logarithmic. Lower is better."
    return lines("How to divide a call", below, [Series(*item) for item in FAMILIES.items()], panels)


def times(rows: Rows) -> Table:
    """The fastest of each family for each link; the fastest of all in bold."""
    table = [["round trip, ms", "Mbit/s", *FAMILIES, "the library takes"]]
    for rtt, rate in links(rows):
        here = of_link(rows, rtt, rate)
        found = best(here)
        first = min(found.values(), key=lambda row: row["ms"])
        cells = []
        for name in FAMILIES:
            row = found.get(name)
            text = "–" if row is None else f"{'' if row['measured'] else '~'}{number(row['ms'])}"
            cells.append(f"**{text}**" if row is first else text)
        chosen = next((row["way"] for row in here if row["chosen"]), "–")
        table.append([f"{rtt:g}", f"{rate:g}", *cells, chosen])
    return table


def sizes(rows: Rows) -> Table:
    """Bytes and errors, which no link changes."""
    table = [["way", "bytes sent", "error of the output"]]
    seen: dict[str, dict[str, Any]] = {}
    for row in rows:
        seen.setdefault(row["way"], row)
    return [*table, *([w, f"{r['bytes']:,}", f"{r['error']:.2g}"] for w, r in seen.items() if w != "all here")]


def section(folder: Path, machine: Any, images: Path, stem: str) -> tuple[list[str], list[Path]]:
    """Parts of the page, and the chart that was written."""
    path = folder / "link.json"
    if not path.exists():
        return [], []
    head = json.loads(path.read_text())
    rows: Rows = head["rows"]
    image = images / f"{stem}-link.svg"
    images.mkdir(parents=True, exist_ok=True)
    image.write_text(drawn(rows), encoding="utf-8")
    notes = folder / "notes.md"
    parts = [
        f"## {HEADING}",
        TEXT,
        f"- {machine(head)} {head['how']}",
        f"![Latency over bandwidth]({images.name}/{image.name})",
        as_markdown(times(rows), left=2),
        as_markdown(sizes(rows)),
    ]
    return [*parts, *([notes.read_text(encoding="utf-8").strip()] if notes.exists() else [])], [image]

"""The native engine beside its peers: rows of bench/native.py as a table."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any, NamedTuple

from .names import EAGER, TITLES, TWELVE, short_name
from .results import Row, read
from .text import Table, number

PEERS = ("openvino", "onnxruntime")
WAYS = (EAGER, "tape", "fast", "native", *PEERS)

HEADING = "The native engine beside OpenVINO and ONNX Runtime"
TEXT = """All in f32 with constant weights packed ahead, and as many threads as the table says. Times are those of the
fastest run in milliseconds, because one in which another program had the processor says nothing about an engine; all
runs are in `bench/results/native`. The ratio is that to the faster of the two: below 1 the native engine is faster."""


class Measured(NamedTuple):
    """A row, and how many threads each way had."""

    row: Row
    threads: int


def read_native(folder: Path) -> list[Measured]:
    """Files that are named after their number of threads."""
    paths = sorted(folder.glob("[0-9]*.json"))
    return [Measured(row, int(path.stem)) for path in paths for row in read([path]).rows]


def heads(folder: Path) -> list[dict[str, Any]]:
    return [
        {**{key: told for key, told in json.loads(path.read_text()).items() if key != "rows"}}
        for path in sorted(folder.glob("[0-9]*.json"))
    ]


def fastest(row: Row, way: str) -> float | None:
    samples = row.ways.get(way, {}).get("ms") if row.status(way) == "ok" else None
    return min(samples) if samples else None


def ratio(row: Row) -> float | None:
    """Native to the faster peer."""
    native, peers = fastest(row, "native"), [t for way in PEERS if (t := fastest(row, way)) is not None]
    return native / min(peers) if native is not None and peers else None


def native_table(measured: list[Measured]) -> Table:
    ways = [way for way in WAYS if any(fastest(m.row, way) is not None for m in measured)]
    table = [["model", "batch", "threads", *(TITLES[way] for way in ways), "ratio"]]
    for m in measured:
        cells = [number(t) if (t := fastest(m.row, way)) is not None else "–" for way in ways]
        found = ratio(m.row)
        shown = f"{found:.2f}" if found is not None else "–"
        table.append([short_name(m.row.model), str(m.row.batch), str(m.threads), *cells, shown])
    return table


def summary(measured: list[Measured]) -> list[str]:
    """How many rows are as fast as the faster peer, for each batch and number of threads; and what is not taken."""
    lines = []
    for batch, threads in sorted({(m.row.batch, m.threads) for m in measured}):
        rows = [m.row for m in measured if m.row.model in TWELVE and (m.row.batch, m.threads) == (batch, threads)]
        found = [r for row in rows if (r := ratio(row)) is not None]
        if found:
            good, slow = sum(r <= 1.0 for r in found), sum(r > 1.15 for r in found)
            lines.append(
                f"batch {batch}, threads: {threads}: {good} of {len(found)} models at most 1.00, {slow} above 1.15, "
                f"the largest {max(found):.2f}"
            )
    for m in measured:
        if m.row.status("native") not in ("ok", "absent"):
            lines.append(f"{m.row.name}, threads: {m.threads}: {m.row.reason('native')[:300]}")
    return lines

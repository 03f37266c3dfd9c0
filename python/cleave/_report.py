"""Reports: a plan as one HTML file to look at. The page is written by C; here it becomes a file."""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any, NamedTuple

from . import _native


class Link(NamedTuple):
    """What a report opens with: bytes per second between the halves, operations per second of each; 0: the default."""

    bandwidth: float = 0.0
    prefix_speed: float = 0.0
    suffix_speed: float = 0.0


def write(
    plan: Any,
    path: str | os.PathLike[str],
    title: str | None,
    sizes: Mapping[str, int] | None,
    link: Link,
    frontier: int | None,
    stages: tuple[list[int], Any, list[str]] | None = None,
) -> Path:
    """Writes the report of a native plan; where it is. Symbols that `sizes` leaves out have their lowest size. stages:
    that of each node, the native partition, names of its devices."""
    chosen: dict[str, Any] = {} if frontier is None else {"frontier": frontier}
    if stages is not None:
        chosen["stages"] = stages
    return write_page(plan.html(title, None if sizes is None else dict(sizes), *link, **chosen), path)


def write_file(
    artifact: Any, path: str | os.PathLike[str], title: str | None, frontier: int | None, on_tape: list[str | None]
) -> Path:
    """Writes the report of the first plan of a native artifact; where it is. on_tape: why each of its compiled
    segments does not run here."""
    return write_page(_native.trace_html(artifact, 0, on_tape, title, -1 if frontier is None else frontier), path)


def write_page(page: str, path: str | os.PathLike[str]) -> Path:
    """Writes a page as a file; where it is."""
    out = Path(path)
    out.write_text(page, encoding="utf-8")
    return out

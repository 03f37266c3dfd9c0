"""Reports: a plan as one HTML file to look at. The page is written by C; here it becomes a file."""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any, NamedTuple


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
    page = plan.html(title, None if sizes is None else dict(sizes), *link, **chosen)
    out = Path(path)
    out.write_text(page, encoding="utf-8")
    return out

"""Tables as text, for a terminal and as Markdown. The first line of a table is its head."""

from __future__ import annotations

from typing import Any

Table = list[list[str]]

GROWTH = {
    "nodes": "Cost by number of nodes",
    "payload": "Boundaries as bytes",
    "files": "Files of weights",
}


def number(x: float) -> str:
    """Three digits that count."""
    if abs(x) >= 100:
        return f"{x:.0f}"
    return f"{x:.1f}" if abs(x) >= 10 else f"{x:.2f}" if abs(x) >= 1 else f"{x:.3f}"


def plain(found: Any) -> str:
    if found is None:
        return ""
    if isinstance(found, bool):
        return "yes" if found else "NO"
    if isinstance(found, float):
        return number(found)
    return f"{found:,}" if isinstance(found, int) else str(found)


def as_terminal(table: Table) -> str:
    widths = [max(len(line[i]) for line in table) for i in range(len(table[0]))]
    return "\n".join("  ".join(f"{c:<{w}}" for c, w in zip(line, widths, strict=True)).rstrip() for line in table)


def as_markdown(table: Table, left: int = 1) -> str:
    """The first `left` columns are texts, the others numbers."""
    lines = ["| " + " | ".join(cell.replace("|", "\\|") for cell in line) + " |" for line in table]
    rule = "|" + "|".join("---" if i < left else "--:" for i in range(len(table[0]))) + "|"
    return "\n".join([lines[0], rule, *lines[1:]])


def lines_table(lines: list[dict[str, Any]]) -> Table:
    """A table of records; a key that only some have is a column too."""
    keys = list(dict.fromkeys(key for line in lines for key in line))
    return [[key.replace("_", " ") for key in keys], *([plain(line.get(key)) for key in keys] for line in lines)]

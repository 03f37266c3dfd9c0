"""The server beside Triton: results of bench/serve.py as tables, goals and a section of the page."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

from .text import Table, as_markdown, number

HEADING = "The server beside Triton"
TEXT = """`bench/serve.py`: `cleave serve` and NVIDIA Triton 2.51 over the loopback address, one after the other in one
run. Both get the same bytes (binary tensors over HTTP/1.1) from the same program, which has the same two cores, and run
the same model, one run at a time with all cores: Cleave by its native engine (and, where it says so, by libtorch),
Triton with torch in its Python back end, the only one that its package has. "waits 2 ms" is Triton's batcher with
`max_queue_delay_microseconds: 2000`. Overhead is the median time that a client waits, less the time of the model: that
of the torch operators as the model measures it, or (in brackets) what Triton's statistics call compute time, which has
the way to the process of the model in it."""

Rows = dict[str, Any]


def of(rows: list[Rows], **wanted: Any) -> Rows | None:
    """The row with these facts."""
    return next((row for row in rows if all(row.get(k) == v for k, v in wanted.items())), None)


def over(row: Rows, own: str = "own_us") -> float:
    return float(row["p50_us"] - row[own])


def overheads(rows: Rows) -> Table:
    table = [["request", "server", "waits, µs", "99 %, µs", "the model, µs", "overhead, µs"]]
    for row in rows["overhead"]:
        way = f"{row['bytes'] / 1e6:g} MB as a {row['way']}"
        more = f" ({over(row, 'stats_us'):.0f})" if row["server"] == "triton" else ""
        cells = [f"{row[k]:.0f}" for k in ("p50_us", "p99_us", "own_us")]
        table.append([way, row["server"], *cells, f"{over(row):.0f}{more}"])
    return table


def throughputs(rows: Rows) -> Table:
    clients = sorted({row["clients"] for row in rows["batching"]})
    table = [
        ["server", "batching", *(f"{n} clients: requests/s (99 %, ms)" for n in clients), "answers with other bits"]
    ]
    for server, how in dict.fromkeys((row["server"], row["batching"]) for row in rows["batching"]):
        found = [of(rows["batching"], server=server, batching=how, clients=n) or {} for n in clients]
        cells = [f"{row['rate']:.0f} ({number(row['p99_us'] / 1e3)})" for row in found]
        table.append([server, how, *cells, f"{sum(row['different'] for row in found):,}"])
    return table


def tails(rows: Rows) -> Table:
    table = [["server", "batching", "requests/s offered", "50 %, ms", "99 %, ms", "failed"]]
    for row in rows["tail"]:
        cells = [number(row[k] / 1e3) for k in ("p50_us", "p99_us")]
        table.append([row["server"], row["batching"], f"{row['offered']:.0f}", *cells, str(row["failed"])])
    return table


def connections(rows: Rows) -> Table:
    table = [
        ["server", "memory before, MB", "1,000 idle connections", "+ 100 busy", "as long again", "requests/s", "failed"]
    ]
    for row in rows["connections"]:
        cells = [f"{row[k]:.0f}" for k in ("before_mb", "idle_mb", "busy_mb", "later_mb", "rate")]
        table.append([row["server"], *cells, str(row["failed"])])
    return table


def tables(rows: Rows) -> list[Table]:
    return [overheads(rows), throughputs(rows), tails(rows), connections(rows), goals(rows)]


# ---- goals


def _overhead_goal(rows: Rows) -> tuple[bool | None, str]:
    shares = []
    for size in (600_000, 3_000_000):
        ours = of(rows["overhead"], server="cleave", way="tensor", bytes=size)
        theirs = of(rows["overhead"], server="triton", bytes=size)
        if not ours or not theirs:
            return None, ""
        shares.append((over(ours) / over(theirs), over(ours) / over(theirs, "stats_us"), size))
    told = [f"{size / 1e6:g} MB: {a:.2f} of Triton's ({b:.2f} by its statistics)" for a, b, size in shares]
    return all(b <= 0.5 for _, b, _ in shares), "; ".join(told)


def _best(rows: Rows, server: str, clients: int) -> float:
    return max(row["rate"] for row in rows["batching"] if (row["server"], row["clients"]) == (server, clients))


def _throughput_goal(rows: Rows) -> tuple[bool | None, str]:
    if not of(rows["batching"], server="triton"):
        return None, ""
    ratios = {n: _best(rows, "cleave", n) / _best(rows, "triton", n) for n in (1, 8, 64)}
    return min(ratios.values()) > 1, "; ".join(f"{n} clients: {r:.2f} times Triton's" for n, r in ratios.items())


def _tail_goal(rows: Rows) -> tuple[bool | None, str]:
    theirs = of(rows["tail"], server="triton")
    ours = [row for row in rows["tail"] if row["server"] == "cleave"]
    if not theirs or len(ours) < 2:
        return None, ""
    ms = [f"{row['p50_us'] / 1e3:.1f} and {row['p99_us'] / 1e3:.1f} ms" for row in (ours[-1], theirs)]
    met = all(ours[-1][k] < theirs[k] for k in ("p50_us", "p99_us"))
    return met, f"half within and 99 % within {ms[0]}, Triton {ms[1]}, at {theirs['offered']:.0f} requests/s"


def _connections_goal(rows: Rows) -> tuple[bool | None, str]:
    row = of(rows["connections"], server="cleave")
    if not row:
        return None, ""
    idle, busy = row["idle_mb"] - row["before_mb"], row["busy_mb"] - row["before_mb"]
    met = row["failed"] == 0 and row["later_mb"] <= 1.02 * row["busy_mb"] + 1
    return met, f"{row['failed']} failed; {idle:.0f} MB for the idle, at most {busy:.0f} MB in all"


def _kills_goal(rows: Rows) -> tuple[bool | None, str]:
    found = rows.get("kills")
    if not found:
        return None, ""
    told = f"{found['wrong']} of {found['right'] + found['wrong']:,} answers, {found['lost']} of {found['steps']} steps"
    return found["wrong"] == 0 and found["lost"] == 0 and found["kills"] >= 100, f"{found['kills']} kills each: {told}"


def _reload_goal(rows: Rows) -> tuple[bool | None, str]:
    found = rows.get("reload")
    if not found:
        return None, ""
    return found["failed"] == 0, f"{found['failed']} of {found['requests']:,}, during {found['reloads']} reloads"


GOALS: tuple[tuple[str, Callable[[Rows], tuple[bool | None, str]]], ...] = (
    ("overhead of a request, 600 KB and 3 MB: at most half of Triton's", _overhead_goal),
    ("throughput at 1, 8 and 64 clients above Triton's, each in its best setting", _throughput_goal),
    ("times at 70 % of the load that Triton takes, half and 99 % of requests: below Triton's", _tail_goal),
    ("1,000 idle connections and 100 busy ones: no failure, bounded memory", _connections_goal),
    ("100 kills under load: no wrong answer, no lost step of training", _kills_goal),
    ("reloads under load: no failed request", _reload_goal),
    (
        "the program without symbols, with the native engine only: at most 6 MB",
        lambda r: (r["size"] <= 6e6, f"{r['size'] / 1e6:.2f} MB"),
    ),
)


def goals(rows: Rows) -> Table:
    table = [["goal", "", "measured"]]
    for text, look in GOALS:
        met, told = look(rows)
        table.append([text, "not measured" if met is None else "met" if met else "missed", told])
    return table


def section(folder: Path, machine: Callable[[dict[str, Any]], str]) -> list[str]:
    """Parts of the page, with notes.md of the folder."""
    path, notes = folder / "serve.json", folder / "notes.md"
    if not path.exists():
        return []
    head = json.loads(path.read_text())
    parts = [f"## {HEADING}", TEXT, f"- {machine(head)} {head['how']}", as_markdown(goals(head), left=3)]
    parts += [as_markdown(overheads(head), left=2), as_markdown(throughputs(head), left=2)]
    parts += [
        "Requests at random times, at 70 % of what the server did above (Cleave also at 70 % of what Triton did):"
    ]
    parts += [as_markdown(tails(head), left=2), as_markdown(connections(head))]
    return [*parts, *([notes.read_text(encoding="utf-8").strip()] if notes.exists() else [])]

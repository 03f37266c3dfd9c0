"""Files of results, read as what they are: rows with ways, and tables of growth."""

from __future__ import annotations

import json
import statistics
from pathlib import Path
from typing import Any, NamedTuple

from .names import TWELVE

FORMAT = 1


class Spread(NamedTuple):
    """The median and the middle half."""

    low: float
    middle: float
    high: float


def spread(numbers: list[float]) -> Spread:
    if len(numbers) < 2:
        return Spread(numbers[0], numbers[0], numbers[0])
    return Spread(*statistics.quantiles(numbers, n=4, method="inclusive"))


class Row:
    """A model, a batch size, a kind of run and a device, with what each way gave."""

    def __init__(self, data: dict[str, Any]) -> None:
        self.model: str = data["model"]
        self.batch: int = data["batch"]
        self.kind: str = data["kind"]
        self.device: str = data["device"]
        self.ways: dict[str, dict[str, Any]] = data["ways"]
        self.inputs: str = data.get("inputs", "")
        self.error: str | None = data.get("error")

    @property
    def key(self) -> tuple[str, int, str, str]:
        return self.model, self.batch, self.kind, self.device

    @property
    def name(self) -> str:
        return f"{self.model} b{self.batch}"

    def status(self, way: str) -> str:
        """ok, wrong, failed, left out; "absent" where nobody asked."""
        facts = self.ways.get(way)
        if facts is None:
            return "absent"
        status: str = facts["status"]
        return "failed" if status == "ok" and not facts.get("ms") else status

    def reason(self, way: str) -> str:
        return str(self.ways.get(way, {}).get("reason") or self.error or "not measured")

    def ms(self, way: str) -> Spread | None:
        """Of any way that ran, also of one with wrong numbers."""
        samples = self.ways.get(way, {}).get("ms")
        return spread(samples) if samples else None

    def ratio(self, way: str, to: str) -> float | None:
        """The median of way / to over the rounds; None unless both ran and gave the right numbers."""
        if self.status(way) != "ok" or self.status(to) != "ok":
            return None
        pairs = zip(self.ways[way]["ms"], self.ways[to]["ms"], strict=True)
        return statistics.median(a / b for a, b in pairs)

    def fastest(self) -> str | None:
        """Among those with the right numbers that do what eager does."""
        good = {way: self.ms(way) for way in self.ways if self.status(way) == "ok" and "error" in self.ways[way]}
        times = {way: found.middle for way, found in good.items() if found is not None}
        return min(times, key=lambda way: times[way]) if times else None


class Results(NamedTuple):
    """Everything that some files say."""

    heads: list[dict[str, Any]]
    rows: list[Row]
    growth: dict[str, list[dict[str, Any]]]

    def of(self, kind: str, device: str) -> list[Row]:
        return [row for row in self.rows if row.kind == kind and row.device == device]

    def absent(self, kind: str, device: str) -> list[tuple[str, int]]:
        """Models and batch sizes without a row: of the twelve on a CPU, of the models that have rows on a GPU, at every
        batch size at which one of them was measured."""
        every = self.of(kind, device)
        models = list(TWELVE) if device == "cpu" else list(dict.fromkeys(row.model for row in every))
        rows = [row for row in every if row.model in models]
        there = {(row.model, row.batch) for row in rows}
        wanted = [(model, batch) for model in models for batch in sorted({row.batch for row in rows})]
        return [one for one in wanted if one not in there]

    def tables(self) -> list[tuple[str, str]]:
        """Kinds and devices that there are rows of, in the order in which they were run."""
        return list(dict.fromkeys((row.kind, row.device) for row in self.rows))


def read(paths: list[Path]) -> Results:
    """SystemExit says which file is none of ours."""
    found = Results([], [], {})
    for path in paths:
        try:
            data = json.loads(path.read_text(encoding="utf-8"))
        except (OSError, ValueError) as error:
            raise SystemExit(f"{path} cannot be read: {error}") from error
        if not isinstance(data, dict) or data.get("format") != FORMAT:
            raise SystemExit(f"{path} is no file of results (format {FORMAT}) of bench/suite.py or bench/growth.py")
        found.heads.append({key: told for key, told in data.items() if key not in ("rows", "growth")})
        for row in data.get("rows", []):
            _join(found.rows, Row(row))
        found.growth.update(data.get("growth", {}))
    return found


def _join(rows: list[Row], new: Row) -> None:
    """One row for each model, batch size, kind and device: of two the later, unless it has failed. It takes its place
    whole: ways of two runs are not to be compared."""
    for i, old in enumerate(rows):
        if old.key == new.key:
            rows[i] = old if new.error is not None and old.error is None else new
            return
    rows.append(new)

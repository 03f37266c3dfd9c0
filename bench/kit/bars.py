"""The bars: targets set beforehand, checked against results.

Every bar names the rows that it is about. It is missed as soon as one of them misses it, met when all of them meet it,
and not measured as long as a row is missing. More rows (other batch sizes) count where they are there. A row whose peer
failed, or gave wrong numbers, has nothing to be compared with: it is told, and keeps no bar open.
"""

from __future__ import annotations

import statistics
from collections.abc import Callable, Iterable
from typing import NamedTuple

from .names import BATCH, BERT, MOBILENET, NAMED, PREPARED_AT, RESNET, TWELVE
from .results import Results, Row

LANGUAGE = ("transformers-gpt2", BERT, "llama-like")
MET, MISSED, UNKNOWN = "met", "missed", "not measured"


class Check(NamedTuple):
    """One comparison: of what, in numbers, and whether it is as it should be; None: nothing to compare with."""

    subject: str
    numbers: str
    met: bool | None
    how_far: float = 0.0  # for finding the worst


class Bar(NamedTuple):
    """A bar and what became of it."""

    text: str
    state: str
    numbers: str
    misses: list[str]


Judge = Callable[[Row], Check | None]


def _rows(results: Results, kind: str, models: tuple[str, ...], device: str = "cpu", batches: str = "all") -> list[Row]:
    wanted = None if batches == "all" else [int(n) for n in batches.split()]
    return [row for row in results.of(kind, device) if row.model in models and (wanted is None or row.batch in wanted)]


def _names(models: tuple[str, ...], *batches: int) -> list[str]:
    """Of rows, as Row.name has them."""
    return [f"{model} b{batch}" for model in models for batch in batches]


def _some(names: list[str]) -> str:
    return ", ".join(names[:3]) + (f" and {len(names) - 3} more" if len(names) > 3 else "")


def _summary(text: str, checks: list[Check], wanted: list[str]) -> Bar:
    """What became of a bar that is about these rows."""
    judged = [check for check in checks if check.met is not None]
    missed = [check for check in judged if not check.met]
    there = {check.subject for check in checks}
    missing = [name for name in wanted if name not in there]
    told = []
    if judged:
        worst = max(judged, key=lambda check: (not check.met, check.how_far))
        counts = f"{len(judged) - len(missed)} of {len(judged)}; worst: " if len(judged) > 1 else ""
        told.append(f"{counts}{worst.subject} {worst.numbers}")
    alone = [check.subject for check in checks if check.met is None]
    told += [f"nothing to compare with: {_some(alone)}"] if alone else []
    told += [f"not measured: {_some(missing)}"] if missing and checks else []
    state = MISSED if missed else UNKNOWN if missing or not judged else MET
    return Bar(text, state, "; ".join(told), [f"{check.subject}: {check.numbers}" for check in missed])


def _within(ours: str, theirs: str, limit: float) -> Judge:
    """ours / theirs within a limit."""

    def judge(row: Row) -> Check | None:
        if row.status(theirs) in ("failed", "wrong"):
            return Check(row.name, f"{theirs}: {row.reason(theirs)}", None)
        if row.status(theirs) != "ok":
            return None
        if row.status(ours) in ("failed", "wrong"):
            return Check(row.name, f"{row.status(ours)}: {row.reason(ours)}", False, float("inf"))
        ratio = row.ratio(ours, theirs)
        mine, other = row.ms(ours), row.ms(theirs)
        if ratio is None or mine is None or other is None:
            return None
        times = f"{mine.middle:.4g} / {other.middle:.4g} ms"
        return Check(row.name, f"{ratio:.3f}x ({times})", ratio <= limit, ratio / limit)

    return judge


def _checks(rows: Iterable[Row], judge: Judge) -> list[Check]:
    found = [judge(row) for row in rows]
    return [check for check in found if check is not None]


# ---- the bars, one function each


def tape_beside_eager(results: Results) -> list[Bar]:
    text = 'tape ("safe") never slower than eager: at most 1.02x on each of the twelve'
    checks = _checks(_rows(results, "whole", TWELVE), _within("tape", "eager", 1.02))
    return [_summary(text, checks, _names(TWELVE, BATCH))]


def tape_beside_ariadne(results: Results) -> list[Bar]:
    text = "tape at least 2x faster than Ariadne generated_eager where overhead dominates (MLP, batch 1)"
    judge = _within("tape", "ariadne", 0.5)
    checks = []
    for kind in ("whole", "split"):
        found = _checks(_rows(results, kind, ("mlp",), batches="1"), judge)
        checks += [check._replace(subject=f"{check.subject} {kind}") for check in found]
    return [_summary(text, checks, ["mlp b1 whole"])]


def fast_beside_compile(results: Results) -> list[Bar]:
    """Ten of twelve, at each batch size: known as soon as three are slower or ten are not."""
    bars = []
    rows = _rows(results, "whole", TWELVE)
    for batch in sorted({BATCH, *(row.batch for row in rows if row.status("compile") == "ok")}):
        text = f'"fast" at least as fast as torch.compile on at least ten of the twelve, batch {batch}'
        checks = _checks([row for row in rows if row.batch == batch], _within("fast", "compile", 1.0))
        bar = _summary(text, checks, _names(TWELVE, batch))
        judged = [check.met for check in checks if check.met is not None]
        enough = sum(judged) >= 10
        lost = len(judged) - sum(judged) > 2
        bars.append(bar._replace(state=MET if enough else MISSED if lost else UNKNOWN))
    return bars


def fast_beside_freezing(results: Results) -> list[Bar]:
    text = '"fast" within 1.05x of torch.compile with freezing on ResNet-50, MobileNetV3 and BERT'
    checks = _checks(_rows(results, "whole", NAMED), _within("fast", "freezing", 1.05))
    return [_summary(text, checks, _names(NAMED, BATCH))]


def _prepared_sooner(row: Row) -> Check | None:
    if row.status("compile") in ("failed", "wrong"):
        return Check(row.name, f"compile: {row.reason('compile')}", None)
    if row.status("compile") != "ok" or row.status("fast") in ("absent", "left out"):
        return None
    if row.status("fast") != "ok":
        return Check(row.name, f"{row.status('fast')}: {row.reason('fast')}", False, float("inf"))
    ours, theirs = row.ways["fast"]["prepare_s"], row.ways["compile"]["prepare_s"]
    met = ours < 5 and theirs >= 5 * ours
    times = f"{ours:.2f} s beside {theirs:.1f} s, {theirs / max(ours, 1e-6):.1f}x"
    return Check(row.name, times, met, max(ours / 5, 5 * ours / max(theirs, 1e-6)))


def fast_preparation(results: Results) -> list[Bar]:
    text = 'preparation of "fast" at least 5x shorter than torch.compile\'s, and under 5 s'
    checks = _checks(_rows(results, "whole", TWELVE), _prepared_sooner)
    return [_summary(text, checks, _names(TWELVE, BATCH))]


def fast_beside_openvino(results: Results) -> list[Bar]:
    bars = []
    for name, model, batches, limit in (
        ("ResNet-50", RESNET, "all", 1.2),
        ("BERT", BERT, "all", 1.3),
        ("MobileNetV3, batch 4", MOBILENET, "4", 1.7),
    ):
        rows = _rows(results, "whole", (model,), batches=batches)
        checks = _checks(rows, _within("fast", "openvino", limit))
        bars.append(_summary(f'"fast" within {limit:g}x of OpenVINO f32 on {name}', checks, _names((model,), BATCH)))
    return bars


def _prepares_in_time(row: Row) -> Check | None:
    forward, ours = row.ms("eager"), row.ms("tape")
    if row.status("tape") in ("failed", "wrong"):
        return Check(row.name, row.reason("tape"), False, float("inf"))
    if forward is None or ours is None:
        return None
    limit = 3 * forward.middle + 1000
    numbers = f"{ours.middle / 1e3:.2f} s, allowed {limit / 1e3:.2f} s"
    return Check(row.name, numbers, ours.middle < limit, ours.middle / limit)


def split_preparation(results: Results) -> list[Bar]:
    text = "preparing a split at 50 % with dynamic_batch=(2, 64): under 3 eager forwards at batch 8 plus 1 s"
    checks = _checks(_rows(results, "prepare", TWELVE), _prepares_in_time)
    return [_summary(text, checks, _names(TWELVE, PREPARED_AT))]


def _fits(row: Row) -> Check | None:
    ours, eager = (row.ways.get(way, {}).get("peak_mb") for way in ("tape", "eager"))
    if ours is None or eager is None:
        return None
    limit = 1.02 * eager + 1
    kept = row.ways["tape"].get("kept_mb")
    between = "" if kept is None else f" ({kept:.1f} MB of it between runs)"
    return Check(row.name, f"{ours:.1f} MB{between} beside {eager:.1f} MB", ours <= limit, ours / limit)


def peak_memory(results: Results) -> list[Bar]:
    """Resident memory is counted in pages and heaps: 2 % and 1 MB are not resolved."""
    text = "peak memory of the tape at most eager's (2 % and 1 MB are not resolved)"
    return [_summary(text, _checks(_rows(results, "whole", TWELVE), _fits), _names(TWELVE, BATCH))]


def _overhead(row: Row) -> Check | None:
    whole, split, copy = (row.ways.get(way, {}).get("ms") for way in ("tape-whole", "tape", "copy"))
    if not whole or not split or not copy:
        return None
    ratio = statistics.median((s - c) / w for s, c, w in zip(split, copy, whole, strict=True))
    return Check(row.name, f"{ratio:.3f}x without the copy", ratio <= 1.03, ratio)


def split_overhead(results: Results) -> list[Bar]:
    text = "prefix and suffix at most 3 % over the whole tape, plus the copy of the boundary"
    return [_summary(text, _checks(_rows(results, "split", TWELVE), _overhead), _names(TWELVE, BATCH))]


def graph_on_gpu(results: Results) -> list[Bar]:
    bars = []
    for name, models, batches in (
        ("ResNet-50 and MobileNetV3, batches 1, 4, 32", (RESNET, MOBILENET), (1, 4, 32)),
        ("GPT-2, BERT and a Llama-like model, batches 1, 8", LANGUAGE, (1, 8)),
    ):
        text = f'GPU: "fast" in a CUDA graph at least as fast as torch.compile reduce-overhead on {name}'
        rows = _rows(results, "whole", models, "cuda", " ".join(map(str, batches)))
        checks = _checks(rows, _within("graph", "reduce-overhead", 1.0))
        bars.append(_summary(text, checks, _names(models, *batches)))
    return bars


BARS: tuple[Callable[[Results], list[Bar]], ...] = (
    tape_beside_eager,
    tape_beside_ariadne,
    fast_beside_compile,
    fast_beside_freezing,
    fast_preparation,
    fast_beside_openvino,
    split_preparation,
    peak_memory,
    split_overhead,
    graph_on_gpu,
)


def every_bar(results: Results) -> list[Bar]:
    return [bar for function in BARS for bar in function(results)]

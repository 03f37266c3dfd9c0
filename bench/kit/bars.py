"""The bars: what Cleave has set itself to reach, checked from results. One without results is not measured, not met."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import NamedTuple

from .names import TWELVE
from .results import Results, Row

RESNET, MOBILENET, BERT = "torchvision-resnet50", "torchvision-mobilenet_v3_large", "transformers-bert"
LANGUAGE = ("transformers-gpt2", BERT, "llama-like")
MET, MISSED, UNKNOWN = "met", "missed", "not measured"


class Check(NamedTuple):
    """One comparison: of what, in numbers, and whether it is as it should be."""

    subject: str
    numbers: str
    met: bool
    how_far: float = 0.0  # for finding the worst


class Bar(NamedTuple):
    """A bar and what became of it."""

    text: str
    state: str
    numbers: str
    misses: list[str]


def _summary(text: str, checks: list[Check]) -> Bar:
    """Met when every check is."""
    if not checks:
        return Bar(text, UNKNOWN, "", [])
    missed = [check for check in checks if not check.met]
    worst = max(checks, key=lambda check: (not check.met, check.how_far))
    numbers = f"{len(checks) - len(missed)} of {len(checks)}; worst: {worst.subject} {worst.numbers}"
    if len(checks) == 1:
        numbers = f"{worst.subject} {worst.numbers}"
    misses = [f"{check.subject}: {check.numbers}" for check in missed]
    return Bar(text, MISSED if missed else MET, numbers, misses)


def _timed(row: Row, ours: str, theirs: str, limit: float) -> Check | None:
    """ours / theirs within a limit. None: the peer cannot be had, or nobody asked for ours."""
    if row.status(theirs) != "ok":
        return None
    if row.status(ours) in ("failed", "wrong"):
        return Check(row.name, f"{row.status(ours)}: {row.reason(ours)}", False, float("inf"))
    ratio = row.ratio(ours, theirs)
    mine, other = row.ms(ours), row.ms(theirs)
    if ratio is None or mine is None or other is None:
        return None
    return Check(row.name, f"{ratio:.3f}x ({mine.middle:.4g} / {other.middle:.4g} ms)", ratio <= limit, ratio / limit)


def _checks(rows: Iterable[Row], ours: str, theirs: str, limit: float) -> list[Check]:
    found = [_timed(row, ours, theirs, limit) for row in rows]
    return [check for check in found if check is not None]


def _rows(results: Results, kind: str, models: tuple[str, ...], device: str = "cpu", batches: str = "all") -> list[Row]:
    wanted = None if batches == "all" else [int(n) for n in batches.split()]
    return [row for row in results.of(kind, device) if row.model in models and (wanted is None or row.batch in wanted)]


# ---- the bars, one function each


def tape_beside_eager(results: Results) -> list[Bar]:
    text = 'tape ("safe") never slower than eager: at most 1.02x on each of the twelve'
    return [_summary(text, _checks(_rows(results, "whole", TWELVE), "tape", "eager", 1.02))]


def tape_beside_ariadne(results: Results) -> list[Bar]:
    text = "tape at least 2x faster than Ariadne generated_eager where overhead dominates (MLP, batch 1)"
    rows = [row for kind in ("whole", "split") for row in _rows(results, kind, ("mlp",), batches="1")]
    checks = []
    for row in rows:
        found = _timed(row, "tape", "ariadne", 0.5)
        if found is not None:
            checks.append(found._replace(subject=f"{row.name} {row.kind}"))
    return [_summary(text, checks)]


def fast_beside_compile(results: Results) -> list[Bar]:
    """Ten of twelve, at each batch size: known as soon as three are slower or ten are not."""
    bars = []
    rows = _rows(results, "whole", TWELVE)
    for batch in sorted({row.batch for row in rows}):
        text = f'"fast" at least as fast as torch.compile on at least ten of the twelve, batch {batch}'
        checks = _checks([row for row in rows if row.batch == batch], "fast", "compile", 1.0)
        good = sum(check.met for check in checks)
        bar = _summary(text, checks)
        if good >= 10:
            bar = bar._replace(state=MET)
        elif len(checks) - good <= 2:
            bar = bar._replace(state=UNKNOWN, numbers=f"{good} of {len(checks)} measured, twelve are wanted")
        bars.append(bar)
    return bars or [Bar('"fast" at least as fast as torch.compile on at least ten of the twelve', UNKNOWN, "", [])]


def fast_beside_freezing(results: Results) -> list[Bar]:
    text = '"fast" within 1.05x of torch.compile with freezing on ResNet-50, MobileNetV3 and BERT'
    rows = _rows(results, "whole", (RESNET, MOBILENET, BERT))
    return [_summary(text, _checks(rows, "fast", "freezing", 1.05))]


def fast_preparation(results: Results) -> list[Bar]:
    text = 'preparation of "fast" at least 5x shorter than torch.compile\'s, and under 5 s'
    checks = []
    for row in _rows(results, "whole", TWELVE):
        if row.status("fast") != "ok" or row.status("compile") != "ok":
            continue
        ours, theirs = row.ways["fast"]["prepare_s"], row.ways["compile"]["prepare_s"]
        met = ours < 5 and theirs >= 5 * ours
        checks.append(Check(row.name, f"{ours:.2f} s beside {theirs:.1f} s", met, max(ours / 5, 5 * ours / theirs)))
    return [_summary(text, checks)]


def fast_beside_openvino(results: Results) -> list[Bar]:
    bars = []
    for name, model, batches, limit in (
        ("ResNet-50", RESNET, "all", 1.2),
        ("BERT", BERT, "all", 1.3),
        ("MobileNetV3, batch 4", MOBILENET, "4", 1.7),
    ):
        rows = _rows(results, "whole", (model,), batches=batches)
        checks = _checks(rows, "fast", "openvino", limit)
        bars.append(_summary(f'"fast" within {limit:g}x of OpenVINO f32 on {name}', checks))
    return bars


def split_preparation(results: Results) -> list[Bar]:
    text = "preparing a split at 50 % with dynamic_batch=(2, 64): under 3 eager forwards at batch 8 plus 1 s"
    checks = []
    for row in _rows(results, "prepare", TWELVE):
        forward, ours = row.ms("eager"), row.ms("tape")
        if row.status("tape") in ("failed", "wrong"):
            checks.append(Check(row.name, row.reason("tape"), False, float("inf")))
        elif forward is not None and ours is not None:
            limit = 3 * forward.middle + 1000
            numbers = f"{ours.middle / 1e3:.2f} s, allowed {limit / 1e3:.2f} s"
            checks.append(Check(row.name, numbers, ours.middle < limit, ours.middle / limit))
    return [_summary(text, checks)]


def peak_memory(results: Results) -> list[Bar]:
    """Resident memory is counted in pages and heaps: 2 % and 1 MB are not resolved."""
    text = "peak memory of the tape at most eager's (2 % and 1 MB are not resolved)"
    checks = []
    for row in _rows(results, "whole", TWELVE):
        ours, eager = (row.ways.get(way, {}).get("peak_mb") for way in ("tape", "eager"))
        if ours is not None and eager is not None:
            limit = 1.02 * eager + 1
            kept = row.ways["tape"].get("kept_mb")
            between = "" if kept is None else f" ({kept:.1f} MB of it between runs)"
            numbers = f"{ours:.1f} MB{between} beside {eager:.1f} MB"
            checks.append(Check(row.name, numbers, ours <= limit, ours / limit))
    return [_summary(text, checks)]


def split_overhead(results: Results) -> list[Bar]:
    text = "prefix and suffix at most 3 % over the whole tape, plus the copy of the boundary"
    checks = []
    for row in _rows(results, "split", TWELVE):
        whole, split, copy = (row.ways.get(way, {}).get("ms") for way in ("tape-whole", "tape", "copy"))
        if not whole or not split or not copy:
            continue
        ratios = sorted((s - c) / w for s, c, w in zip(split, copy, whole, strict=True))
        ratio = ratios[len(ratios) // 2]
        checks.append(Check(row.name, f"{ratio:.3f}x without the copy", ratio <= 1.03, ratio))
    return [_summary(text, checks)]


def graph_on_gpu(results: Results) -> list[Bar]:
    text = 'GPU: "fast" in a CUDA graph at least as fast as torch.compile reduce-overhead on '
    images = _rows(results, "whole", (RESNET, MOBILENET), "cuda", "1 4 32")
    texts = _rows(results, "whole", LANGUAGE, "cuda", "1 8")
    return [
        _summary(
            f"{text}ResNet-50 and MobileNetV3, batches 1, 4, 32", _checks(images, "graph", "reduce-overhead", 1.0)
        ),
        _summary(
            f"{text}GPT-2, BERT and a Llama-like model, batches 1, 8", _checks(texts, "graph", "reduce-overhead", 1.0)
        ),
    ]


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

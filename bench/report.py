"""Results of bench/suite.py and bench/growth.py: tables in the terminal, a page with charts, a few lines in a README.

python bench/report.py build/bench-results/cpu.json
python bench/report.py bench/results/*.json --page docs/benchmarks.md --readme README.md

Charts go to images/ next to the page, and to docs/images/ next to the README. In the README only the text between the
two markers below is replaced. Every bar is listed as met, missed or not measured, with the numbers, and then
notes.md from the folder of the results, which explains the misses. Several files are joined; if two have the same row,
the later file wins. Rows that a run did not get to are listed as not measured.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from statistics import geometric_mean
from textwrap import fill
from typing import Any

from kit.bars import MET, MISSED, UNKNOWN, Bar, every_bar
from kit.chart import Group, Series, chart
from kit.link import section as link_section
from kit.names import BATCH, EAGER, KINDS, TITLES, short_name
from kit.native import HEADING, TEXT, native_table, read_native, summary
from kit.native import heads as native_heads
from kit.native import ratio as native_ratio
from kit.results import Results, Row, read
from kit.serving import section as serve_section
from kit.text import GROWTH, Table, as_markdown, as_terminal, lines_table, number

BEGIN, END = "<!-- benchmarks: begin -->", "<!-- benchmarks: end -->"
CHARTED = {  # ways in the charts; the colours are readable on white and on black
    "tape": "#f76707",
    "fast": "#e03131",
    "native": "#f59f00",
    "graph": "#e64980",
    "compile": "#228be6",
    "freezing": "#4c6ef5",
    "reduce-overhead": "#15aabf",
    "openvino": "#ae3ec9",
    "onnxruntime": "#0c9488",
    "torchscript": "#37a24b",
    "ariadne": "#868e96",
}
DEVICE = {"cpu": "CPU", "cuda": "GPU"}

# ---- cells


def time_cell(row: Row, way: str) -> str:
    """Milliseconds with the middle half, or what became of the way."""
    found = row.ms(way)
    if found is None:
        if way == EAGER and row.error is not None:
            return "failed"
        return {"failed": "failed", "absent": ""}.get(row.status(way), "–")
    text = f"{number(found.middle)} [{number(found.low)} {number(found.high)}]"
    return text if row.status(way) == "ok" else f"wrong numbers ({text})"


def short_cell(row: Row, way: str) -> str:
    """Milliseconds, and half of the middle half in per cent."""
    found = row.ms(way)
    if found is None:
        return time_cell(row, way)
    around = 50 * (found.high - found.low) / found.middle
    return f"{number(found.middle)} ±{around:.0f}%{'' if row.status(way) == 'ok' else ' WRONG'}"


def ratio_cell(row: Row, way: str) -> str:
    """How many times faster than eager."""
    ratio = row.ratio(EAGER, way)
    if ratio is not None:
        return f"{ratio:.2f}"
    return {"wrong": "wrong", "failed": "failed", "absent": ""}.get(row.status(way), "–")


def cost_cell(row: Row, way: str) -> str:
    """Seconds until the first result, and megabytes over those before."""
    facts = row.ways.get(way, {})
    if "prepare_s" not in facts:
        return ""
    peak = facts.get("peak_mb")
    memory = "" if peak is None else f", {peak:.0f} MB"
    return f"{number(facts['prepare_s'])} s{memory}"


def ways_in(rows: list[Row]) -> list[str]:
    there = {way for row in rows for way in row.ways}
    return [way for way in TITLES if way in there]


def table_of(
    rows: list[Row], cell: Callable[[Row, str], str], short: bool = False, absent: list[tuple[str, int]] | None = None
) -> Table:
    """A line for each row, and for each that is absent."""
    ways = ways_in(rows)
    head = ["model", "batch", *((way if short else TITLES[way]) for way in ways)]
    body = [[short_name(row.model), str(row.batch), *(cell(row, way) for way in ways)] for row in rows]
    gone = [[short_name(model), str(batch), UNKNOWN, *([""] * (len(ways) - 1))] for model, batch in absent or ()]
    return [head, *body, *(gone if ways else [])]


def fastest_marked(row: Row, way: str) -> str:
    cell = time_cell(row, way)
    return f"**{cell}**" if row.fastest() == way else cell


def bars_table(bars: list[Bar]) -> Table:
    return [["bar", "", "measured"], *([bar.text, bar.state, bar.numbers] for bar in bars)]


# ---- parts that every form has


def numbers_table(rows: list[Row]) -> Table:
    """How far each way is from eager, over all rows."""
    table = [["way", "rows", "equal bit for bit", "largest error", "wrong"]]
    for way in ways_in(rows):
        facts = [row.ways[way] for row in rows if "error" in row.ways.get(way, {})]
        if not facts or way == EAGER:
            continue
        equal, wrong = sum(f["equal"] for f in facts), sum(f["status"] == "wrong" for f in facts)
        error = max(f["error"] for f in facts if f["status"] != "wrong") if len(facts) > wrong else 0.0
        table.append([TITLES[way], str(len(facts)), str(equal), f"{error:.1e}", str(wrong)])
    return table


def reasons(rows: list[Row]) -> list[str]:
    """Why ways are missing: one line for each reason, with the rows that it holds for."""
    where: dict[tuple[str, str, str], list[str]] = {}
    for row in rows:
        if row.error is not None:
            where.setdefault(("row", "failed", row.error), []).append(f"{row.name} {row.kind}")
        for way in row.ways:
            if row.status(way) not in ("ok", "absent"):
                key = (TITLES.get(way, way), row.status(way), row.reason(way))
                where.setdefault(key, []).append(f"{row.name} {row.kind}")
    found = []
    for (way, status, reason), names in where.items():
        more = f" and {len(names) - 3} more" if len(names) > 3 else ""
        found.append(f"{way}, {status}: {reason} ({', '.join(names[:3])}{more})")
    return found


def growth_tables(growth: dict[str, list[dict[str, Any]]]) -> list[tuple[str, Table]]:
    return [(GROWTH.get(name, name), lines_table(lines)) for name, lines in growth.items() if lines]


def machine_text(head: dict[str, Any]) -> str:
    m = head["machine"]
    gpu = f", {m['gpu']}" if "gpu" in m else ""
    versions = ", ".join(f"{name} {version}" for name, version in head["versions"].items())
    load = f" Load before the run: {head['load_at_start']}." if "load_at_start" in head else ""
    return f"{head['date']}: {m['cpu']}, {m['cores']} cores, {m['memory_gb']:g} GB{gpu}. {versions}.{load}"


# ---- the chart


def charted_rows(results: Results, device: str) -> list[Row]:
    return at_one_batch(results.of("whole", device))


def at_one_batch(rows: Sequence[Row]) -> list[Row]:
    """Each model at one batch size. A network of tiny layers would set the scale for all: only if it is alone."""
    rows = [row for row in rows if row.ms(EAGER) is not None]
    rows = [row for row in rows if row.model != "mlp"] or rows
    batches = sorted({row.batch for row in rows}, key=lambda batch: (batch != BATCH, batch))
    best: dict[str, Row] = {}
    for batch in batches:
        for row in rows:
            if row.batch == batch:
                best.setdefault(row.model, row)
    return list(best.values())


def speed_chart(results: Results, device: str) -> str | None:
    rows = charted_rows(results, device)
    ways = [way for way in CHARTED if any(row.ratio(EAGER, way) is not None for row in rows)]
    if not ways:
        return None

    def bar(row: Row, way: str) -> float | str | None:
        ratio = row.ratio(EAGER, way)
        return f"{TITLES[way]}: wrong numbers" if ratio is None and row.status(way) == "wrong" else ratio

    groups = [Group(f"{short_name(row.model)} b{row.batch}", [bar(row, way) for way in ways]) for row in rows]
    title = f"How many times faster than eager: whole models, {DEVICE[device]}"
    below = "Medians of rounds in which all took turns; the dashed line is eager. Longer is better."
    return chart(title, below, [Series(TITLES[way], CHARTED[way]) for way in ways], groups)


# ---- forms


def terminal(results: Results, bars: list[Bar]) -> str:
    parts = [machine_text(head) for head in results.heads]
    for kind, device in results.tables():
        rows, absent = results.of(kind, device), results.absent(kind, device)
        parts.append(
            f"== {KINDS.get(kind, kind)}, {DEVICE[device]}: ms\n{as_terminal(table_of(rows, short_cell, True, absent))}"
        )
        costs = as_terminal(table_of(rows, cost_cell, True))
        parts.append(f"-- seconds until the first result, peak memory\n{costs}")
    if results.rows:
        parts.append("== how far from eager\n" + as_terminal(numbers_table(results.rows)))
    parts += [f"== {title}\n{as_terminal(table)}" for title, table in growth_tables(results.growth)]
    if results.rows:
        missing = reasons(results.rows)
        parts += ["== not measured\n" + "\n".join(missing)] if missing else []
        misses = [f"missed: {miss}" for bar in bars if bar.state == MISSED for miss in bar.misses]
        parts.append("\n".join(["== bars", as_terminal(bars_table(bars)), *misses]))
    return "\n\n".join(parts)


HOW = """Every row is measured in one run, with every way in its own process. First each way runs alone (seconds until
its first result with empty caches, peak memory above the loaded model), then all ways take turns, round by round,
until the ratios to eager are known within 1 % or the row's time is over. Times are medians in milliseconds with the
middle half in brackets; ratios are medians over rounds. The outputs of every way are compared with eager's; a way
with wrong numbers is marked and not ranked. "–" is a way that was left out, for a reason listed below; an empty cell
was not part of the row."""

AGAIN = """    make bench        # a sample, about a quarter of an hour on two cores
    make bench-full   # everything, about three hours; resumes if interrupted
    make bench-gpu    # on a machine with a GPU"""


def native_part(folder: Path) -> list[str]:
    """The section about the native engine, with notes.md of its folder."""
    measured = read_native(folder)
    if not measured:
        return []
    machines = "\n".join(f"- {machine_text(head)}" for head in native_heads(folder))
    counts = "\n".join(f"- {line}" for line in summary(measured))
    notes = read_notes(folder / "notes.md")
    return [f"## {HEADING}", TEXT, machines, as_markdown(native_table(measured)), counts, *([notes] if notes else [])]


def page(
    results: Results,
    bars: list[Bar],
    images: list[str],
    notes: str = "",
    native: Path | None = None,
    sections: Sequence[str] = (),
) -> str:
    parts = [
        "# Benchmarks",
        "Generated by `bench/report.py` from the files in `bench/results`; do not edit.",
        AGAIN,
        HOW,
    ]
    parts.append("\n".join(f"- {machine_text(head)}" for head in results.heads))
    parts += [f"![How many times faster than eager]({image})" for image in images]
    tables = ratio_tables(results)
    parts += ["## How many times faster than eager", *tables] if tables else []
    if results.rows:
        parts += ["## Bars", as_markdown(bars_table(bars), left=3)]
        misses = [f"- {bar.text}: {miss}" for bar in bars if bar.state == MISSED for miss in bar.misses]
        parts += ["Missed:", "\n".join(misses)] if misses else []
        parts += [notes] if notes else []
    parts += native_part(native) if native else []
    parts += sections
    for kind, device in results.tables():
        rows, absent = results.of(kind, device), results.absent(kind, device)
        parts.append(f"## {KINDS.get(kind, kind).capitalize()}, {DEVICE[device]}")
        parts.append(as_markdown(table_of(rows, fastest_marked, absent=absent), left=2))
        parts.append("Seconds until the first result, and peak memory of a steady run over the loaded model:")
        parts.append(as_markdown(table_of(rows, cost_cell), left=2))
    for title, table in growth_tables(results.growth):
        parts += [f"## {title}", as_markdown(table)]
    if results.rows:
        parts += ["## How far from eager", as_markdown(numbers_table(results.rows))]
        missing = reasons(results.rows)
        parts += ["## Not measured", "\n".join(f"- {line}" for line in missing)] if missing else []
    return "\n\n".join(parts) + "\n"


def ratio_tables(results: Results) -> list[str]:
    """Whole models at one batch size: how many times faster than eager each way is."""
    parts = []
    for device in dict.fromkeys(row.device for row in results.rows):
        rows = charted_rows(results, device)
        ways = [way for way in CHARTED if any(row.status(way) in ("ok", "wrong") for row in rows)]
        if not rows:
            continue
        head = ["model", "batch", "eager, ms", *(TITLES[way] for way in ways)]
        body = []
        for row in rows:
            eager = row.ms(EAGER)
            cells = [ratio_cell(row, way) for way in ways]
            body.append([short_name(row.model), str(row.batch), number(eager.middle) if eager else "", *cells])
        parts += [f"### {DEVICE[device]}", as_markdown([head, *body])]
    return parts


def ratios(rows: list[Row], way: str) -> list[float]:
    """How many times faster than eager a way is, where it was measured and gave the right numbers."""
    return [ratio for row in rows if (ratio := row.ratio(EAGER, way)) is not None]


def overview(results: Results, native: Path | None) -> tuple[str | None, str]:
    """A chart of the ways that ran on most models of the CPU, and three sentences about it, for a README. Of results of
    bench/native.py, those with the most threads stand for the CPU."""
    measured = read_native(native) if native else []
    most = max((m.threads for m in measured), default=0)
    cpu = at_one_batch([m.row for m in measured if m.threads == most]) or charted_rows(results, "cpu")
    gpu = charted_rows(results, "cuda")
    ways = [way for way in CHARTED if cpu and len(ratios(cpu, way)) > 0.75 * len(cpu)]
    common = [row for row in cpu if all(row.ratio(EAGER, way) is not None for way in ways)]
    drawn = None
    if ways and common:
        series = [Series(TITLES[way], CHARTED[way]) for way in ways]
        groups = [  # each way is a group of one bar, which names it: the chart needs no legend
            Group(TITLES[way], [geometric_mean(ratios(common, way)) if other == way else None for other in ways])
            for way in ways
        ]
        left_out = ", ".join(short_name(row.model) for row in cpu if row not in common)
        below = f"Geometric mean over {len(common)} models on the CPU" + (f", without {left_out}" if left_out else "")
        below += ". The dashed line is eager; longer is better."
        drawn = chart("How many times faster than eager", below, series, groups, legend=False)

    def spread(rows: list[Row], way: str) -> str:
        found = ratios(rows, way)
        return f"{min(found):.2f} to {max(found):.2f} times as fast as eager on {len(found)} models"

    def off(rows: list[Row], way: str) -> str:
        errors = [row.ways[way].get("error", 0.0) for row in rows if row.status(way) == "ok"]
        return f"off by {max(errors):.1e} of the largest output at most"

    first = []
    if ratios(cpu, "tape"):
        first.append(f"The default tape gives eager's results bit for bit and is {spread(cpu, 'tape')}")
    if ratios(cpu, "fast"):
        first.append(f'`optimize="fast"` is {spread(cpu, "fast")}, {off(cpu, "fast")}')
    sentences = ["; ".join(first) + " (CPU)."] if first else []
    if beside := [found for row in cpu if (found := native_ratio(row)) is not None]:
        times = f"{min(beside):.2f} to {max(beside):.2f} times as long as the faster of OpenVINO and ONNX Runtime"
        sentences.append(f"The native engine, which needs no libtorch, takes {times}.")
    if ratios(gpu, "graph"):
        sentences.append(f"On a GPU, CUDA graphs are {spread(gpu, 'graph')}, {off(gpu, 'graph')}.")
    gone = {short_name(model) for device in DEVICE for model, _ in results.absent("whole", device)}
    gone -= {short_name(row.model) for row in [*cpu, *gpu]}
    if gone:
        sentences.append(f"Not measured yet: {', '.join(sorted(gone))}.")
    return drawn, " ".join(sentences)


def readme_part(results: Results, bars: list[Bar], image: str | None, text: str) -> str:
    """What stands between the markers of a README."""
    met, missed = (sum(bar.state == state for bar in bars) for state in (MET, MISSED))
    text += (
        f" Of {len(bars)} targets set beforehand {met} are met and {missed} missed: "
        "[docs/benchmarks.md](docs/benchmarks.md) lists them, with all tables, the machines and the reasons."
    )
    picture = f"![How many times faster than eager]({image})\n\n" if image else ""
    return picture + fill(text.strip(), 120, break_long_words=False, break_on_hyphens=False)


def write_readme(results: Results, bars: list[Bar], path: Path, native: Path | None = None) -> None:
    drawn, text = overview(results, native)
    old, image = path.read_text(encoding="utf-8"), "docs/images/overview.svg" if drawn else None
    new = put_between(old, readme_part(results, bars, image, text))
    if drawn and image:
        (path.parent / image).parent.mkdir(parents=True, exist_ok=True)
        (path.parent / image).write_text(drawn, encoding="utf-8")
    path.write_text(new, encoding="utf-8")


def put_between(text: str, new: str) -> str:
    """The text with the part between the markers replaced."""
    if text.count(BEGIN) != 1 or text.count(END) != 1 or text.index(BEGIN) > text.index(END):
        raise SystemExit(f"the file must have one line {BEGIN} and, below it, one line {END}")
    before, _, rest = text.partition(BEGIN)
    _, _, after = rest.partition(END)
    return f"{before}{BEGIN}\n{new}\n{END}{after}"


def write_page(
    results: Results,
    bars: list[Bar],
    path: Path,
    notes: str = "",
    native: Path | None = None,
    link: Path | None = None,
    serve: Path | None = None,
) -> list[Path]:
    images = []
    for device in dict.fromkeys(row.device for row in results.rows):
        drawn = speed_chart(results, device)
        if drawn is not None:
            image = path.parent / "images" / f"{path.stem}-{device}.svg"
            image.parent.mkdir(parents=True, exist_ok=True)
            image.write_text(drawn, encoding="utf-8")
            images.append(image)
    sections, more = link_section(link, machine_text, path.parent / "images", path.stem) if link else ([], [])
    sections += serve_section(serve, machine_text) if serve else []
    text = page(results, bars, [f"images/{image.name}" for image in images], notes, native, sections)
    path.write_text(text, encoding="utf-8")
    return [path, *images, *more]


def read_notes(path: Path) -> str:
    """Somebody's words about the bars, as they are; nothing where there is no such file."""
    return path.read_text(encoding="utf-8").strip() if path.exists() else ""


def main(argv: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("files", nargs="+", type=Path, help="JSON of bench/suite.py and bench/growth.py")
    parser.add_argument("--page", type=Path, metavar="FILE", help="write a page (Markdown) and its charts")
    parser.add_argument("--readme", type=Path, metavar="FILE", help=f"replace what is between {BEGIN} and {END}")
    parser.add_argument(
        "--notes", type=Path, metavar="FILE", help="words about the bars (notes.md beside the first file)"
    )
    parser.add_argument("--native", type=Path, metavar="FOLDER", help="results of bench/native.py --json")
    parser.add_argument("--link", type=Path, metavar="FOLDER", help="has link.json of bench/link.py --json")
    parser.add_argument("--serve", type=Path, metavar="FOLDER", help="has serve.json of bench/serve.py --json")
    options = parser.parse_args(argv)
    notes = read_notes(options.notes or options.files[0].parent / "notes.md")
    results = read(options.files)
    bars = every_bar(results)
    print(terminal(results, bars))
    if options.page:
        options.page.parent.mkdir(parents=True, exist_ok=True)
        print(
            "\nwritten:", *write_page(results, bars, options.page, notes, options.native, options.link, options.serve)
        )
    if options.readme:
        write_readme(results, bars, options.readme, options.native)
    return 0


if __name__ == "__main__":
    sys.exit(main())

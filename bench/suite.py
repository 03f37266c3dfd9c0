"""The benchmark suite: models x batch sizes x kinds of runs, for Cleave and its alternatives.

python bench/suite.py --sample --json build/bench-results/sample.json
python bench/suite.py --models torchvision-resnet50 --batches 4 --kinds whole split --ways eager tape fast compile

Each row runs by itself (bench/kit/row.py): every way in a process of its own is tried alone, then all take turns round
by round. A way that is not installed, fails, or gives other numbers than eager is in the JSON with the reason. Rows are
written as they are done; --resume goes on where a run ended. bench/report.py makes tables and a chart of the file.
Nothing passes or fails.

What is measured when nobody says otherwise, so that the twelve models take about three hours on two cores:

- the whole model and its split at every batch size, the other kinds at batch 4;
- ways that a compiler prepares (and TorchScript, and the tape without passes) at batch 4; the others at every size;
- rows that a bar needs come first (--order models: model by model);
- rounds until the ratios to eager are known within 1 %, six at least and 30 at most;
- a row has 60 s, one with compilers 150 s, and 40 runs of eager on top; what finds no time is left out and says so.

--every has every kind and way at every batch size, which takes a day; so does naming --ways for those that are named.
"""

from __future__ import annotations

import argparse
import json
import os
import signal
import statistics
import subprocess
import sys
import tempfile
import time
from contextlib import suppress
from pathlib import Path
from typing import Any

from kit.machine import about
from kit.names import BATCH, DEVICES, KINDS, MODELS, ORDERS, PREPARED_AT, TITLES, TWELVE, by_need

HERE = Path(__file__).resolve().parent
FORMAT = 1
LONGEST = 1500.0  # seconds on top of a row's own, before it is ended
ROW_S, COMPILERS_S = 60.0, 150.0  # for a row, and for one with ways that compile
EVERYWHERE = ("whole", "split")  # kinds that are measured at every batch size
AT_ONE_BATCH = (  # ways that are not: minutes each, or of little news
    "tape-none",
    "torchscript",
    "compile",
    "freezing",
    "cleave-openvino",
    "cleave-inductor",
    "cleave-compiled",
    "ariadne-compiled",
)

# What a model library must not do while it is measured.
QUIET = {
    "HF_HUB_OFFLINE": "1",
    "HF_HUB_DISABLE_TELEMETRY": "1",
    "TRANSFORMERS_OFFLINE": "1",
    "TRANSFORMERS_VERBOSITY": "error",
    "TOKENIZERS_PARALLELISM": "false",
    "YOLO_OFFLINE": "true",
    "YOLO_VERBOSE": "false",
    "YOLO_AUTOINSTALL": "false",
    "MPLBACKEND": "Agg",
}
# Until a row has forked: neither threads nor a GPU that was asked for its name survive that.
ALONE = {"OMP_NUM_THREADS": "1", "PYTORCH_NVML_BASED_CUDA_CHECK": "1"}

# A picture of everything in about a quarter of an hour on two cores.
SAMPLE = [
    ("mlp", 1, "whole"),
    ("mlp", 1, "split"),
    ("torchvision-mobilenet_v3_large", 4, "whole"),
    ("torchvision-resnet50", 4, "whole"),
    ("transformers-bert", 4, "whole"),
    ("torchvision-mobilenet_v3_large", 4, "split"),
    ("torchvision-mobilenet_v3_large", 4, "training"),
    ("torchvision-mobilenet_v3_large", PREPARED_AT, "prepare"),
]

SAMPLE_LEAVES_OUT = ("cleave-inductor", "cleave-compiled", "ariadne-compiled")  # minutes each

Key = tuple[str, int, str, str]


def key_of(row: dict[str, Any]) -> Key:
    return row["model"], row["batch"], row["kind"], row["device"]


def wanted_rows(options: argparse.Namespace) -> list[tuple[str, int, str]]:
    """Model by model, each kind at its batch sizes; then in the order that is asked for."""
    if options.sample:
        return SAMPLE
    some = [BATCH] if BATCH in options.batches and not options.every else options.batches
    found = []
    for model in options.models:
        for kind in options.kinds:
            batches = [PREPARED_AT] if kind == "prepare" else options.batches if kind in EVERYWHERE else some
            found += [(model, batch, kind) for batch in batches]
    if options.order == "models":
        return found
    return sorted(found, key=lambda row: by_need(*row, options.device))


def wanted_ways(options: argparse.Namespace, batch: int) -> list[str]:
    """Those that were named; else all, without those that are for one batch size at the others."""
    if options.ways:
        return list(options.ways)
    gone = SAMPLE_LEAVES_OUT if options.sample else ()
    elsewhere = (
        () if options.every or options.sample or BATCH not in options.batches or batch == BATCH else AT_ONE_BATCH
    )
    return [way for way in TITLES if way not in gone and way not in elsewhere]


def _environment(folder: str) -> dict[str, str]:
    places = [str(HERE), os.environ.get("PYTHONPATH", "")]
    made = {"PYTHONPATH": os.pathsep.join(p for p in places if p), "YOLO_CONFIG_DIR": folder, "MPLCONFIGDIR": folder}
    return {**os.environ, **QUIET, **ALONE, **made}


def _finish(process: subprocess.Popen[str], limit: float) -> str:
    """What it said, when it is over; it and all it started end with the time."""
    try:
        said, _ = process.communicate(timeout=limit)
    except subprocess.TimeoutExpired:
        said = f"not done after {limit:.0f} s"
    finally:
        with suppress(OSError):
            os.killpg(process.pid, signal.SIGKILL)
        process.wait()
    return said


def run_row(spec: dict[str, Any]) -> dict[str, Any]:
    """One row in a process of its own; a crash is a row with an error."""
    with tempfile.TemporaryDirectory(prefix="cleave-bench-") as folder:
        asked, answer = Path(folder) / "spec.json", Path(folder) / "row.json"
        asked.write_text(json.dumps(spec))
        process = subprocess.Popen(
            [sys.executable, "-m", "kit.row", str(asked), str(answer)],
            env=_environment(folder),
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            start_new_session=True,
        )
        said = _finish(process, 4 * spec["budget"] + LONGEST)
        if answer.exists():
            return json.loads(answer.read_text())  # type: ignore[no-any-return]
    last = [line for line in said.splitlines() if line.strip()][-1:] or [""]
    row = {name: spec[name] for name in ("model", "batch", "kind", "device")}
    return {**row, "ways": {}, "error": f"the process of the row ended (status {process.returncode}): {last[0][:300]}"}


# ---- the file


def read_results(path: Path) -> dict[str, Any]:
    found = json.loads(path.read_text(encoding="utf-8"))
    if not isinstance(found, dict) or found.get("format") != FORMAT or not isinstance(found.get("rows"), list):
        raise SystemExit(f"{path} is no file of results of this suite (format {FORMAT}): choose another with --json")
    return found


def write_results(path: Path, results: dict[str, Any]) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    part = path.with_suffix(path.suffix + ".part")
    part.write_text(_as_text(results), encoding="utf-8")
    part.rename(path)


def _as_text(results: dict[str, Any]) -> str:
    """One line for each way: differences between two runs can be read."""
    head = {key: found for key, found in results.items() if key != "rows"}
    text = json.dumps(head, indent=1)[:-2] + ',\n "rows": ['
    rows = []
    for row in results["rows"]:
        rest = {key: found for key, found in row.items() if key != "ways"}
        ways = ",\n".join(f"    {json.dumps(way)}: {json.dumps(facts)}" for way, facts in row["ways"].items())
        rows.append(f'\n  {json.dumps(rest)[:-1]}, "ways": {{\n{ways}\n  }}}}')
    return text + ",".join(rows) + "\n ]\n}\n"


# ---- what is told on the way


def told(row: dict[str, Any]) -> str:
    head = f"{row['model']}, batch {row['batch']}, {row['kind']}"
    cells = []
    for way, facts in row["ways"].items():
        if facts.get("ms"):
            mark = "" if facts["status"] == "ok" else " WRONG"
            cells.append(f"{way} {statistics.median(facts['ms']):.4g} ms{mark}")
    gone = [f"    {way}: {facts['reason']}" for way, facts in row["ways"].items() if facts["status"] != "ok"]
    lines = [f"{head} ({row.get('seconds', 0):.0f} s): {', '.join(cells) or 'nothing was measured'}", *gone]
    return "\n".join([*lines, f"    {row['error']}"] if "error" in row else lines)


def spec_of(options: argparse.Namespace, model: str, batch: int, kind: str) -> dict[str, Any]:
    """What a row is told to measure."""
    from kit.ways import WAYS, ways_for  # with torch, which nobody needs for a name that is misspelt

    ways = ways_for(kind, options.device, wanted_ways(options, batch))
    usual = COMPILERS_S if any(WAYS[way].compiles for way in ways) else ROW_S
    return {
        "model": model,
        "batch": batch,
        "kind": kind,
        "device": options.device,
        "threads": options.threads,
        "small": options.small,
        "tokens": options.tokens or (64 if options.device == "cuda" else 16),
        "ways": ways,
        "iterations": options.rounds,
        "budget": options.budget or usual,
    }


def run(options: argparse.Namespace) -> dict[str, Any]:
    path = options.json
    results: dict[str, Any] = {"format": FORMAT, **about(), "rows": []}
    if options.resume and path.exists():
        results["rows"] = [row for row in read_results(path)["rows"] if "error" not in row]
    done = {key_of(row) for row in results["rows"]}
    for model, batch, kind in wanted_rows(options):
        if (model, batch, kind, options.device) in done:
            continue
        row = run_row(spec_of(options, model, batch, kind))
        results["rows"].append(row)
        print(told(row), flush=True)
        if path:
            write_results(path, results)
    return results


def parse(argv: list[str] | None) -> argparse.Namespace:
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    every = ["mlp", *TWELVE]
    add = parser.add_argument
    add("--models", nargs="+", choices=MODELS, default=every, metavar="NAME", help=", ".join(MODELS))
    add("--batches", nargs="+", type=int, default=[1, 4, 32], metavar="N", help="batch sizes (1 4 32)")
    add("--kinds", nargs="+", choices=KINDS, default=[*KINDS], metavar="KIND", help=", ".join(KINDS))
    add("--ways", nargs="+", choices=TITLES, default=None, metavar="WAY", help=", ".join(TITLES))
    add("--sample", action="store_true", help="a few rows instead of --models, --batches and --kinds")
    add("--device", choices=DEVICES, default="cpu")
    add("--every", action="store_true", help="every kind and way at every batch size: a day")
    add("--order", choices=ORDERS, default=ORDERS[0], help="what bars need first, or model by model (bars)")
    add("--budget", type=float, default=0.0, help=f"seconds for a row ({ROW_S:.0f}, with compilers {COMPILERS_S:.0f})")
    add("--rounds", type=int, default=30, help="rounds of a row at most (30)")
    add("--threads", type=int, default=cores, help=f"threads of every way ({cores})")
    add("--tokens", type=int, default=0, help="length of texts (16; 64 on a GPU)")
    add("--small", action="store_true", help="inputs of the integration tests, smaller than in real use")
    add("--json", type=Path, default=None, metavar="FILE", help="where the results go, row by row")
    add("--resume", action="store_true", help="keep the rows that FILE has")
    options = parser.parse_args(argv)
    if min(options.batches) < 1 or options.budget < 0 or options.rounds < 1 or options.threads < 1:
        parser.error("--batches, --rounds and --threads are above 0, --budget is not below")
    if options.resume and options.json is None:
        parser.error("--resume goes with --json FILE")
    return options


def main(argv: list[str] | None = None) -> int:
    options = parse(argv)
    busy = os.getloadavg()[0]
    if busy > 0.5:
        print(f"other programs are running (load {busy:.1f}): threads that wait for each other make figures worthless")
    start = time.monotonic()
    results = run(options)
    bad = sum("error" in row for row in results["rows"])
    print(f"{len(results['rows'])} rows, {bad} with errors, {time.monotonic() - start:.0f} s")
    return 0


if __name__ == "__main__":
    sys.exit(main())

"""The native engine side by side with OpenVINO, ONNX Runtime and `fast`, and what a device needs to run a file with it.

python bench/native.py                                   # twelve models and an MLP, batches 1 and 4, threads 1 and 2
python bench/native.py --models mlp torchvision-resnet50 --batches 1 --threads 1

Speed is measured by bench/suite.py, all ways of a row in turns; the table has the ratio of the native engine to the
faster of the two peers. For start and memory the static program (make edge) runs files in fresh processes: the time of
a process that runs once, less the time of one run, and the resident memory over that of the mapped file. Nothing passes
or fails.
"""

from __future__ import annotations

import argparse
import json
import re
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from kit.names import MODELS, TWELVE, short_name
from kit.native import WAYS, native_table, read_native, summary
from kit.text import as_terminal

HERE = Path(__file__).resolve().parent
MS = 1e3
STARTED = ("torchvision-mobilenet_v3_large", "mlp")  # files that the static program starts with


def measure(models: list[str], batches: list[int], threads: int, rounds: int, to: Path) -> None:
    """Rows of the suite."""
    command = [sys.executable, str(HERE / "suite.py"), "--models", *models, "--batches", *map(str, batches)]
    command += ["--kinds", "whole", "--ways", *WAYS, "--threads", str(threads), "--rounds", str(rounds)]
    subprocess.run([*command, "--resume", "--json", str(to)], check=True)


def speed(options: argparse.Namespace, folder: Path) -> None:
    for threads in options.threads:
        measure(options.models, options.batches, threads, options.rounds, folder / f"{threads}.json")
    measured = read_native(folder)
    print(f"\n{as_terminal(native_table(measured))}\n")
    print("\n".join(summary(measured)))


def saved(model: str, to: Path) -> None:
    code = (
        "import sys, torch, cleave; sys.path.insert(0, sys.argv[1]); from kit import cases\n"
        "c = cases.build(sys.argv[2], 1)\n"
        "with torch.no_grad():\n"
        "    cleave.capture(c.model, c.args, c.kwargs, both_grad_modes=False).save(sys.argv[3])\n"
    )
    subprocess.run([sys.executable, "-c", code, str(HERE), model, str(to)], check=True)


def memory(program: Path, file: Path) -> tuple[float, float]:
    """Megabytes of a process that runs the model: the most that it had in memory, and those of the mapped file."""
    command = [str(program), "bench", str(file), "--no-sandbox", "--iterations", "100000"]
    child = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    status = maps = ""
    for _ in range(15):  # the last look before it ends
        time.sleep(0.2)
        if child.poll() is not None:
            break
        status, maps = (Path(f"/proc/{child.pid}/{name}").read_text() for name in ("status", "smaps"))
    child.kill()
    child.wait()
    parts = re.split(r"^(?=[0-9a-f]+-[0-9a-f]+ )", maps, flags=re.MULTILINE)
    found = [re.search(r"^Rss:\s+(\d+)", part, re.MULTILINE) for part in parts if str(file) in part.partition("\n")[0]]
    peak = re.search(r"^VmHWM:\s+(\d+)", status, re.MULTILINE)
    return int(peak[1]) / 1024 if peak else 0, sum(int(rss[1]) for rss in found if rss) / 1024


def process(command: list[str]) -> float:
    """Seconds that a process takes."""
    begin = time.perf_counter()
    subprocess.run(command, stdout=subprocess.DEVNULL, check=True)
    return time.perf_counter() - begin


def start(program: Path, file: Path, label: str) -> None:
    """Start to first result, less one run."""
    command = [str(program), "run", str(file), "--no-sandbox", "--input", "random"]
    shown = subprocess.run(
        [str(program), "bench", str(file), "--no-sandbox", "--json"], check=True, capture_output=True, text=True
    ).stdout
    run = MS * json.loads(shown)[0]["median"]
    seconds = statistics.median(process(command) for _ in range(15))
    peak, mapped = memory(program, file)
    print(
        f"{label:44} start {seconds * MS - run:7.1f} ms, run {run:8.3f} ms, "
        f"resident {peak:7.1f} MB, of which {mapped:6.1f} MB are the file's"
    )


def footprint(folder: Path, root: Path) -> None:
    program = root / "build" / "cleave-edge"
    if not program.exists():
        print("no build/cleave-edge: make edge builds it")
        return
    print(f"\n{program.name}: {program.stat().st_size / 1e6:.2f} MB")
    for model in STARTED:
        plain, packed = folder / f"{model}.clv", folder / f"{model}-packed.clv"
        saved(model, plain)
        start(program, plain, short_name(model))
        begin = time.perf_counter()
        done = subprocess.run([str(root / "build" / "cleave"), "pack", str(plain), "-o", str(packed)])
        if done.returncode == 0:
            print(f"{short_name(model):44} packed in {time.perf_counter() - begin:.2f} s")
            start(program, packed, f"{short_name(model)}, packed")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    add = parser.add_argument
    add("--models", nargs="+", choices=MODELS, default=[*TWELVE, "mlp"], metavar="MODEL")
    add("--batches", nargs="+", type=int, default=[1, 4])
    add("--threads", nargs="+", type=int, default=[1, 2])
    add("--rounds", type=int, default=15)
    add("--json", type=Path, help="a folder for the rows; a run that was interrupted goes on from there")
    add("--no-speed", action="store_true", help="only start, memory and size")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as temporary:
        folder = options.json or Path(temporary)
        folder.mkdir(parents=True, exist_ok=True)
        if not options.no_speed:
            speed(options, folder)
        footprint(Path(temporary), HERE.parent)


if __name__ == "__main__":
    main()

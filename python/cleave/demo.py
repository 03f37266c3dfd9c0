"""`make demo`: a real network captured, cut in two and replayed from C, next to eager PyTorch; then saved as two files,
which two processes without Python run, the first also without libtorch, and a server the second; and drawn as a
report.

python -m cleave.demo [--boundary 50%] [--batch 4] [--size 96] [--iterations 20] [--show-plan] [--folder build/demo]
"""

from __future__ import annotations

import argparse
import os
import re
import subprocess
import sys
import time
from pathlib import Path

import torch
from torch import Tensor, nn

import cleave
from cleave._command import find_command
from cleave._example import read_file
from cleave.benchmark import compare


class Block(nn.Module):
    """Two 3x3 convolutions and a shortcut."""

    def __init__(self, inside: int, outside: int, stride: int) -> None:
        super().__init__()
        self.conv1 = nn.Conv2d(inside, outside, 3, stride, 1, bias=False)
        self.bn1 = nn.BatchNorm2d(outside)
        self.conv2 = nn.Conv2d(outside, outside, 3, 1, 1, bias=False)
        self.bn2 = nn.BatchNorm2d(outside)
        self.relu = nn.ReLU(inplace=True)
        self.shortcut: nn.Module = nn.Identity()
        if stride != 1 or inside != outside:
            self.shortcut = nn.Sequential(nn.Conv2d(inside, outside, 1, stride, bias=False), nn.BatchNorm2d(outside))

    def forward(self, x: Tensor) -> Tensor:
        y = self.relu(self.bn1(self.conv1(x)))
        y = self.bn2(self.conv2(y))
        y += self.shortcut(x)
        out: Tensor = self.relu(y)
        return out


class ResNet18(nn.Module):
    """The residual network of 18 layers, with random weights."""

    def __init__(self, classes: int = 1000) -> None:
        super().__init__()
        self.stem = nn.Sequential(
            nn.Conv2d(3, 64, 7, 2, 3, bias=False), nn.BatchNorm2d(64), nn.ReLU(inplace=True), nn.MaxPool2d(3, 2, 1)
        )
        widths = (64, 64, 128, 256, 512)
        for i in range(1, 5):
            stride = 1 if i == 1 else 2
            layer = nn.Sequential(Block(widths[i - 1], widths[i], stride), Block(widths[i], widths[i], 1))
            self.add_module(f"layer{i}", layer)
        self.pool = nn.AdaptiveAvgPool2d(1)
        self.fc = nn.Linear(512, classes)

    def forward(self, x: Tensor) -> dict[str, Tensor]:
        x = self.stem(x)
        for i in range(1, 5):
            x = getattr(self, f"layer{i}")(x)
        features = self.pool(x).flatten(1)
        return {"logits": self.fc(features), "features": features}


def without_python(folder: Path, runtime: cleave.SplitRuntime, x: Tensor, want: dict[str, Tensor]) -> bool:
    """Prefix and suffix as files, each run by a C process of its own; what crosses is a file, too."""
    prefix, suffix = runtime.save(folder)
    sizes = " and ".join(f"{Path(f).name} ({os.path.getsize(f) / 1e6:.1f} MB)" for f in (prefix, suffix))
    line("files", f"{sizes} in {folder}")
    given, crossing, result = (
        folder / "input.safetensors",
        folder / "boundary.safetensors",
        folder / "output.safetensors",
    )
    given.write_bytes(cleave.pack(x))
    for arguments in (
        [prefix, "--input", f"{given}:0", "-o", str(crossing)],
        [suffix, "--boundary", str(crossing), "-o", str(result)],
    ):
        subprocess.run([str(find_command()), "run", "--quiet", *arguments], check=True, stdout=subprocess.DEVNULL)
    got = read_file(str(result))
    same = set(got) == set(want) and all(torch.equal(got[k], want[k]) for k in want)
    line("no Python", f"cleave run prefix.clv | {os.path.getsize(crossing):,} bytes | cleave run suffix.clv")
    line("parity", "equal to eager bit for bit" if same else "DIFFERS from eager")
    return same


def on_a_device(program: Path | None, folder: Path, want: dict[str, Tensor]) -> bool:
    """The prefix, packed, run by the static program for devices, without libtorch; the suffix on the tape."""
    crossing, result = folder / "edge.safetensors", folder / "output.safetensors"
    if program is None:
        line("no torch", "make demo also builds a static program that runs prefix.clv without libtorch")
        return True
    if not program.is_file():
        line("no torch", f"there is no {program}: `make edge` builds it")
        return False
    cleave.pack_weights(folder / "prefix.clv", folder / "packed.clv")
    command = [str(program), "run", "--quiet", "--no-sandbox", str(folder / "packed.clv"), "-o", str(crossing)]
    subprocess.run([*command, "--input", f"{folder / 'input.safetensors'}:0"], check=True, stdout=subprocess.DEVNULL)
    command = [str(find_command()), "run", "--quiet", str(folder / "suffix.clv"), "--boundary", str(crossing)]
    subprocess.run([*command, "-o", str(result)], check=True, stdout=subprocess.DEVNULL)
    got = read_file(str(result))
    off = max(((got[k] - want[k]).abs().max() / want[k].abs().max()).item() for k in want)
    size = f"{program.stat().st_size / 1e6:.1f} MB"
    line("no torch", f"{program.name} run prefix.clv, {size} in all | cleave run suffix.clv: within {off:.0e} of eager")
    return off < 1e-4


def over_a_server(folder: Path, x: Tensor, want: dict[str, Tensor]) -> bool:
    """The prefix here, its suffix behind `cleave serve` on the loopback address, which ends with this call."""
    log = folder / "server.log"
    with log.open("w") as to:
        command = [str(find_command()), "serve", "--port", "0", "--workers", "1", str(folder / "suffix.clv")]
        server = subprocess.Popen(command, stderr=to)
    try:
        found = None
        for _ in range(600):
            found = re.search(r"serving at http://\S*:(\d+)", log.read_text())
            if found or server.poll() is not None:
                break
            time.sleep(0.05)
        if not found:
            line("server", "this build of cleave has none" if server.poll() is not None else "it does not start")
            return server.poll() is not None
        there = cleave.load(folder / "prefix.clv").remote(f"http://127.0.0.1:{found[1]}/suffix")
        got = there(x)
    finally:
        server.terminate()
        server.wait(30)
    same = all(torch.equal(got[k], want[k]) for k in want)
    t = there.times
    assert t is not None
    spent = f"{1e3 * t.total:.1f} ms, {1e3 * t.compute:.1f} of them the suffix"
    line("server", f"prefix here | {t.sent_bytes:,} bytes | cleave serve suffix.clv: {spent}")
    line("parity", "equal to eager bit for bit" if same else "DIFFERS from eager")
    return same


def line(label: str, text: str) -> None:
    print(f"  {label:<12}{text}", flush=True)


def main(argv: list[str] | None = None) -> int:
    """Runs the demo; 0 when prefix and suffix together equal eager bit for bit."""
    parser = argparse.ArgumentParser(prog="python -m cleave.demo", description="Capture, cut, replay, compare.")
    parser.add_argument("--boundary", default="50%", help='where to cut: "50%%", "after:layer2", "auto" (default 50%%)')
    parser.add_argument("--batch", type=int, default=4, help="images in a batch (default 4)")
    parser.add_argument("--size", type=int, default=96, help="pixels on a side (default 96)")
    parser.add_argument("--iterations", type=int, default=20, help="timed runs of each (default 20)")
    folder = Path("build/demo") if Path("build").is_dir() else Path("cleave-demo")
    parser.add_argument("--folder", type=Path, default=folder, help=f"where files go (default {folder})")
    parser.add_argument("--edge", type=Path, help="the program of `make edge`, which runs the prefix without libtorch")
    parser.add_argument("--show-plan", action="store_true", help="print the captured plan")
    options = parser.parse_args(argv)

    torch.manual_seed(0)
    model = ResNet18().eval()
    x = torch.randn(options.batch, 3, options.size, options.size)
    versions = f"Cleave {cleave.__version__} on torch {torch.__version__}"
    print(f"{versions}: ResNet-18, batch {options.batch}, {options.size} px\n")

    start = time.perf_counter()
    try:
        runtime = cleave.prepare_split(model, example_inputs=(x,), split=cleave.SplitSpec(boundary=options.boundary))
    except cleave.CleaveError as error:
        print(f"cleave: {error}", file=sys.stderr)
        return 1
    seconds = time.perf_counter() - start
    plan, cut = runtime.trace_plan, runtime.candidate
    if options.show_plan:
        print(plan.text)
    safe = sum(c.safe for c in runtime.candidates)
    line("captured", f"{len(plan.nodes)} nodes in {seconds:.2f} s, {safe} places to cut")
    line("cut", f"after {cut.name} in {cut.module_path}, {100 * cut.prefix_share:.0f} % of the work before it")

    other = torch.randn_like(x)
    with torch.no_grad():
        want = model(other)
        boundary = runtime.run_prefix(other)
        got = runtime.run_suffix(boundary)
        same = type(got) is type(want) and all(torch.equal(got[k], want[k]) for k in want)
        line("boundary", f"{boundary.nbytes:,} bytes ({other.nbytes:,} bytes go in)")
        line("parity", "equal to eager bit for bit" if same else "DIFFERS from eager")
        whole = cleave.capture(model, x, both_grad_modes=False)
        fast = cleave.capture(model, x, both_grad_modes=False, optimize="fast")
        off = max(((fast(other)[k] - want[k]).abs().max() / want[k].abs().max()).item() for k in want)
        results = compare(
            {
                "eager": lambda: model(x),
                "Cleave": lambda: whole(x),
                "Cleave split": lambda: runtime.run_suffix(runtime.run_prefix(x)),
                "Cleave fast": lambda: fast(x),
            },
            options.iterations,
            2,
            "cpu",
            memory=False,
        )
    for r in results:
        how = f"within {off:.0e} of its numbers" if r.name == "Cleave fast" else "the same bits"
        times = results[0].median_latency_s / r.median_latency_s  # of the numbers that stand there
        ratio = "" if r.name == "eager" else f"   {times:.2f} times as fast, {how}"
        line(r.name, f"{1e3 * r.median_latency_s:7.2f} ms{ratio}")
    options.folder.mkdir(parents=True, exist_ok=True)
    apart = without_python(options.folder, runtime, other, want)
    apart &= over_a_server(options.folder, other, want)
    apart &= on_a_device(options.edge, options.folder, want)
    line("report", f"{runtime.report(options.folder / 'report.html')}, for a browser")
    return 0 if same and apart else 1


if __name__ == "__main__":
    sys.exit(main())

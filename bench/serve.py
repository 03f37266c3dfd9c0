"""What `cleave serve` adds to the model's own time, and what it holds: python bench/serve.py [--seconds S]

Everything runs here over the loopback address, by the native engine, with one worker. Overhead of a request is the time
the client waits less the time that the server's statistics give for the run of the model.
"""

from __future__ import annotations

import argparse
import http.client
import json
import os
import re
import signal
import socket
import statistics
import subprocess
import sys
import tempfile
import threading
import time
from pathlib import Path
from typing import Any

import torch

import cleave

ROOT = Path(__file__).resolve().parents[1]


class Add(torch.nn.Module):
    """Almost no work: what is left is the way there and back."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x[:, :1] + 1


class Halves(torch.nn.Module):
    """The same, with a place to cut at which as much crosses as goes in."""

    def __init__(self) -> None:
        super().__init__()
        self.first = torch.nn.ReLU()

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.first(x)[:, :1] + 1


class Mlp(torch.nn.Module):
    """Weights that do not fit into the cache: a batch reads them once for all its rows."""

    def __init__(self) -> None:
        super().__init__()
        self.layers = torch.nn.Sequential(*(torch.nn.Linear(2048, 2048) for _ in range(4)))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.layers(x)


def start(command: str, *arguments: str) -> tuple[subprocess.Popen[str], int]:
    """A server that says its port."""
    words = [command, "serve", "--engine", "native", "--port", "0", "--log", "off", *arguments]
    process = subprocess.Popen(words, stderr=subprocess.PIPE, text=True)
    assert process.stderr
    for line in process.stderr:
        if found := re.search(r"serving at http://\S*:(\d+)", line):
            return process, int(found[1])
    raise SystemExit("the server does not start")


def request_of(x: torch.Tensor, name: str = "x") -> tuple[bytes, dict[str, str]]:
    head = json.dumps(
        {
            "inputs": [
                {
                    "name": name,
                    "shape": list(x.shape),
                    "datatype": "FP32",
                    "parameters": {"binary_data_size": x.numel() * 4},
                }
            ],
            "parameters": {"binary_data_output": True},
        }
    ).encode()
    return head + x.numpy().tobytes(), {"Inference-Header-Content-Length": str(len(head))}


def clients(
    port: int,
    model: str,
    x: torch.Tensor,
    n: int,
    seconds: float,
    request: tuple[bytes, dict[str, str]] | None = None,
) -> list[float]:
    """Times of all requests of n clients that ask one after another."""
    body, fields = request or request_of(x)
    times: list[float] = []
    end = time.monotonic() + seconds

    def client() -> None:
        link = http.client.HTTPConnection("127.0.0.1", port)
        while time.monotonic() < end:
            begin = time.perf_counter()
            link.request("POST", f"/v2/models/{model}/infer", body, fields)
            answer = link.getresponse()
            text = answer.read()
            if answer.status != 200:
                raise SystemExit(text.decode())
            times.append(time.perf_counter() - begin)
        link.close()

    threads = [threading.Thread(target=client) for _ in range(n)]
    for t in threads:
        t.start()
    for t in threads:
        t.join()
    return times


def statistics_of(port: int, model: str) -> dict[str, Any]:
    link = http.client.HTTPConnection("127.0.0.1", port)
    link.request("GET", f"/v2/models/{model}/stats")
    answer: dict[str, Any] = json.loads(link.getresponse().read())["model_stats"][0]
    link.close()
    return answer


def resident(process: subprocess.Popen[str]) -> float:
    text = Path(f"/proc/{process.pid}/status").read_text()
    return int(re.search(r"VmRSS:\s+(\d+)", text)[1]) / 1024  # type: ignore[index]


def processor(process: subprocess.Popen[str]) -> float:
    """Seconds of processors that it has used."""
    fields = Path(f"/proc/{process.pid}/stat").read_text().rsplit(")", 1)[1].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def overhead(command: str, folder: Path, seconds: float) -> None:
    for size in (600_000, 3_000_000):
        x = torch.zeros(1, size // 4)
        cleave.capture(Add().eval(), (x,)).save(folder / "add.clv")
        process, port = start(command, str(folder / "add.clv"))
        clients(port, "add", x, 1, 0.3)
        before = statistics_of(port, "add")["inference_stats"]["compute_infer"]
        times = clients(port, "add", x, 1, seconds)
        after = statistics_of(port, "add")["inference_stats"]["compute_infer"]
        run = (after["ns"] - before["ns"]) / (after["count"] - before["count"]) / 1e3
        wait = statistics.median(times) * 1e6
        print(f"overhead, {size / 1e6:.1f} MB in: {wait - run:7.0f} us of {wait:.0f} us, {len(times)} requests")
        process.send_signal(signal.SIGTERM)
        process.wait()


def boundaries(command: str, folder: Path, seconds: float) -> None:
    """A suffix that is given a boundary, and a prefix that answers one: times, and those of the server's processor."""
    x = torch.rand(1, 3_000_000 // 4)
    cleave.capture(Halves().eval(), (x,)).save(folder / "halves.clv")
    files = [str(folder / f"{name}.clv") for name in ("prefix", "suffix")]
    cut = [command, "split", str(folder / "halves.clv"), "--boundary", "after:first", "-o", *files]
    subprocess.run(cut, check=True, capture_output=True)
    cleave.load(files[0]).run_prefix(x).save(folder / "boundary")
    kind = "application/x-safetensors"
    requests = {
        "suffix": ((folder / "boundary").read_bytes(), {"Content-Type": kind}),
        "prefix": (request_of(x)[0], {**request_of(x)[1], "Accept": kind}),
    }
    process, port = start(command, *files)
    for model, request in requests.items():
        clients(port, model, x, 1, 0.3, request)
        before = processor(process)
        times = clients(port, model, x, 1, seconds, request)
        used = (processor(process) - before) / len(times) * 1e6
        way = "in " if model == "suffix" else "out"
        print(f"boundary {way}, 3.0 MB: {statistics.median(times) * 1e6:7.0f} us, {used:.0f} us of them computing")
    process.send_signal(signal.SIGTERM)
    process.wait()


def throughput(command: str, folder: Path, seconds: float) -> None:
    x = torch.zeros(1, 2048)
    cleave.capture(Mlp().eval(), (torch.zeros(2, 2048),), dynamic_batch=(1, 32)).save(folder / "mlp.clv")
    for how in ("exact", "off"):
        process, port = start(command, str(folder / "mlp.clv"), "--batching", how)
        for n in (1, 8, 64):
            times = sorted(clients(port, "mlp", x, n, seconds))
            rate, tail = len(times) / seconds, times[int(len(times) * 0.99)] * 1e3
            print(f"batching {how:5}, {n:2} clients: {rate:7.0f} requests/s, 99 % within {tail:.1f} ms")
        process.send_signal(signal.SIGTERM)
        process.wait()


def idle(command: str, folder: Path, seconds: float) -> None:
    process, port = start(command, str(folder / "mlp.clv"))
    before = resident(process)
    links = [socket.create_connection(("127.0.0.1", port)) for _ in range(1000)]
    time.sleep(0.5)
    with_links = resident(process)
    times = clients(port, "mlp", torch.zeros(1, 2048), 100, seconds)
    print(
        f"1000 idle connections: {with_links - before:.0f} MB; with 100 busy clients {resident(process):.0f} MB, "
        f"{len(times) / seconds:.0f} requests/s, none failed"
    )
    for link in links:
        link.close()
    process.send_signal(signal.SIGTERM)
    process.wait()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seconds", type=float, default=5, help="of each measurement")
    parser.add_argument("--command", default=str(ROOT / "build" / "cleave"), help="the cleave command")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        for measure in (overhead, boundaries, throughput, idle):
            measure(options.command, Path(folder), options.seconds)


if __name__ == "__main__":
    sys.exit(main())

"""`cleave serve` beside Triton: python bench/serve.py [--seconds S] [--rounds N] [--kills N] [--json FILE]

Everything runs here over the loopback address, one server at a time, with one run at a time that has all cores. Both
servers get the same bytes from the same program (bench/serve_load.c) over HTTP/1.1: binary tensors of the protocol.
Triton runs the model with torch in its Python back end, the only one that comes without a container. Overhead
of a request is the time that its client waits less the time of the model. First all that is timed, then what is only
counted.
"""

from __future__ import annotations

import argparse
import contextlib
import http.client
import json
import os
import re
import shutil
import signal
import socket
import statistics
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, NamedTuple

import torch
from kit import triton
from kit.machine import about
from kit.serving import tables
from kit.text import as_terminal

import cleave

ROOT = Path(__file__).resolve().parents[1]
BOUNDARY = "application/x-safetensors"
MOST = 32  # rows of a batch
LOAD = 0.7  # of what a server can do, where the tail of times is measured

Row = dict[str, Any]


class Halves(torch.nn.Module):
    """Almost no work, and a place to cut where as much crosses as goes in: what is left is the way there and back."""

    def __init__(self) -> None:
        super().__init__()
        self.first = torch.nn.ReLU()

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.first(x)[:, :1] + 1


class Rest(torch.nn.Module):
    """What is behind that cut."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x[:, :1] + 1


class Mlp(torch.nn.Module):
    """Weights that do not fit into the cache: a batch reads them once for all its rows."""

    def __init__(self) -> None:
        super().__init__()
        self.layers = torch.nn.Sequential(*(torch.nn.Linear(2048, 2048) for _ in range(4)))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.layers(x)


# ---- servers


class Running(NamedTuple):
    """A server that runs."""

    pid: int
    port: int
    folder: Path | None = None  # of the models, of Triton

    def ask(self, method: str, path: str) -> tuple[int, bytes]:
        link = http.client.HTTPConnection("127.0.0.1", self.port, timeout=60)
        link.request(method, path)
        answer = link.getresponse()
        text = answer.read()
        link.close()
        return answer.status, text

    def model_time(self, model: str) -> tuple[int, int]:
        """By its statistics: how often the model ran, and for how many nanoseconds."""
        found = json.loads(self.ask("GET", f"/v2/models/{model}/stats")[1])["model_stats"][0]
        return found["execution_count"], found["inference_stats"]["compute_infer"]["ns"]

    def own_time(self, model: str) -> tuple[int, int]:
        """The same, as the model itself counts in Triton's back end."""
        return triton.model_time(self.folder) if self.folder else self.model_time(model)

    def memory(self, what: str = "VmRSS") -> float:
        """Megabytes of it and the processes that it started."""
        pids, kilobytes = [self.pid], 0
        for pid in pids:
            for task in Path(f"/proc/{pid}/task").iterdir():
                pids += [int(child) for child in (task / "children").read_text().split()]
            found = re.search(rf"{what}:\s+(\d+)", Path(f"/proc/{pid}/status").read_text())
            kilobytes += int(found[1]) if found else 0
        return kilobytes / 1024


class Bench:
    """Where things are, and how long to measure."""

    def __init__(self, options: argparse.Namespace, folder: Path) -> None:
        self.command, self.load = options.command, options.load
        self.seconds, self.folder = options.seconds, folder
        self.triton = None if options.no_triton else triton.install()

    @contextlib.contextmanager
    def cleave(self, *arguments: str, engine: str = "native") -> Iterator[Running]:
        words = [self.command, "serve", "--engine", engine, "--port", "0", "--log", "off", *arguments]
        process = subprocess.Popen(words, stderr=subprocess.PIPE, text=True)
        assert process.stderr
        try:
            for line in process.stderr:
                if found := re.search(r"serving at http://\S*:(\d+)", line):
                    yield Running(process.pid, int(found[1]))
                    break
            else:
                raise SystemExit("the server does not start")
        finally:
            process.send_signal(signal.SIGTERM)
            process.wait(60)

    @contextlib.contextmanager
    def peer(self, name: str, model: torch.nn.Module, x: torch.Tensor, batching: str) -> Iterator[Running]:
        assert self.triton
        with tempfile.TemporaryDirectory(dir=self.folder) as place:
            triton.put_model(Path(place), name, model, x, batching)
            with triton.triton(self.triton, Path(place)) as (process, port):
                yield Running(process.pid, port, Path(place))

    def run(
        self, at: Running, request: bytes, clients: int, rate: float = 0, tail: int = 0, seconds: float = 0
    ) -> dict[str, Any]:
        """What the load generator saw."""
        file = self.folder / "request"
        file.write_bytes(request)
        words = [
            str(self.load),
            str(at.port),
            str(clients),
            str(seconds or self.seconds),
            str(rate),
            str(file),
            str(tail),
        ]
        told = subprocess.run(words, check=True, stdout=subprocess.PIPE).stdout
        found: dict[str, Any] = json.loads(told)
        return found


def post(model: str, body: bytes, fields: dict[str, str]) -> bytes:
    lines = [f"POST /v2/models/{model}/infer HTTP/1.1", "Host: 127.0.0.1", f"Content-Length: {len(body)}"]
    lines += [f"{k}: {v}" for k, v in fields.items()]
    return "\r\n".join([*lines, "", ""]).encode() + body


def request_of(model: str, x: torch.Tensor) -> bytes:
    size = {"binary_data_size": x.numel() * 4}
    told = [{"name": "x", "shape": list(x.shape), "datatype": "FP32", "parameters": size}]
    head = json.dumps({"inputs": told, "parameters": {"binary_data_output": True}}).encode()
    fields = {"Inference-Header-Content-Length": str(len(head)), "Content-Type": "application/octet-stream"}
    return post(model, head + x.numpy().tobytes(), fields)


def add_up(found: list[dict[str, Any]], **facts: Any) -> Row:
    """One row of several measurements."""
    us = sorted(t for f in found for t in f["us"])
    seconds, failed = sum(f["seconds"] for f in found), sum(f["failed"] for f in found)
    row = {**facts, "requests": len(us), "failed": failed, "rate": len(us) / seconds}
    return {**row, **{f"p{k}_us": us[min(len(us) - 1, len(us) * k // 100)] if us else None for k in (50, 99)}}


# ---- measurements


def with_model_time(b: Bench, at: Running, model: str, request: bytes) -> Row:
    """Requests one after another, and the time of the model in the same requests."""
    b.run(at, request, 1, seconds=0.5)
    before = at.model_time(model), at.own_time(model)
    found = b.run(at, request, 1)
    after = at.model_time(model), at.own_time(model)
    stats, own = ((e[1] - s[1]) / (e[0] - s[0]) / 1e3 for s, e in zip(before, after, strict=True))
    return {"found": found, "stats_us": stats, "own_us": own}


def overhead(b: Bench, rounds: int) -> list[Row]:
    """Tensors in the request, and ours also in a boundary as the prefix wrote it."""
    rows = []
    for size in (600_000, 3_000_000):
        x = torch.rand(1, size // 4)
        cleave.capture(Rest().eval(), (x,)).save(b.folder / "rest.clv")
        cleave.capture(Halves().eval(), (x,)).save(b.folder / "halves.clv")
        halves = [str(b.folder / f"{name}.clv") for name in ("prefix", "suffix")]
        cut = [b.command, "split", str(b.folder / "halves.clv"), "--boundary", "after:first", "-o", *halves]
        subprocess.run(cut, check=True, capture_output=True)
        cleave.load(halves[0]).run_prefix(x).save(b.folder / "boundary")
        tensor = request_of("rest", x)
        boundary = post("suffix", (b.folder / "boundary").read_bytes(), {"Content-Type": BOUNDARY})
        seen: dict[tuple[str, str], list[Row]] = {}
        for _ in range(rounds):
            with b.cleave(str(b.folder / "rest.clv"), halves[1]) as at:
                for way, model, request in (("tensor", "rest", tensor), ("boundary", "suffix", boundary)):
                    seen.setdefault(("cleave", way), []).append(with_model_time(b, at, model, request))
            if b.triton:
                with b.peer("rest", Rest().eval(), x, "") as at:
                    seen.setdefault(("triton", "tensor"), []).append(with_model_time(b, at, "rest", tensor))
        for (server, way), times in seen.items():
            row = add_up([t["found"] for t in times], server=server, way=way, bytes=size)
            middle = {k: statistics.median(t[k] for t in times) for k in ("stats_us", "own_us")}
            rows.append({**row, **middle})
    return rows


DELAYED = "dynamic_batching { max_queue_delay_microseconds: 2000 }"
PEER_WAYS = {"off": "", "on": "dynamic_batching { }", "waits 2 ms": DELAYED}


def batched(b: Bench) -> dict[tuple[str, str], Callable[[], contextlib.AbstractContextManager[Running]]]:
    """Servers of one model, with batching and without: each is started when it is asked for."""
    file, model, x = str(b.folder / "mlp.clv"), Mlp().eval(), torch.rand(1, 2048)
    cleave.capture(model, (torch.rand(2, 2048),), dynamic_batch=(1, MOST)).save(file)
    torch.save(model.state_dict(), b.folder / "mlp.pt")
    found: dict[tuple[str, str], Any] = {}
    for engine, server in (("native", "cleave"), ("tape", "cleave, libtorch")):
        for how, word in (("off", "off"), ("on", "exact")):
            found[server, how] = lambda e=engine, w=word: b.cleave(file, "--batching", w, engine=e)
        if engine == "tape":
            found[server, "fast"] = lambda e=engine: b.cleave(file, "--batching", "fast", engine=e)
    for how, config in PEER_WAYS.items() if b.triton else ():
        found["triton", how] = lambda c=config: b.peer("mlp", model, x, c)
    return found


def batching(b: Bench, rounds: int) -> tuple[list[Row], list[Row]]:
    """Throughput of clients that ask again at once; then times where requests come at random."""
    servers, request = batched(b), request_of("mlp", torch.rand(1, 2048))
    seen: dict[tuple[str, str, int], list[dict[str, Any]]] = {}
    for _ in range(rounds):
        for (server, how), start in servers.items():
            with start() as at:
                b.run(at, request, 8, seconds=0.5)
                for n in (1, 8, 64):
                    seen.setdefault((server, how, n), []).append(b.run(at, request, n, tail=2048 * 4))
    rows = []
    for (server, how, n), found in seen.items():
        different = sum(f["different"] for f in found)
        rows.append(add_up(found, server=server, batching=how, clients=n, different=different))
    return rows, tail(b, rows, servers, request)


def tail(b: Bench, rows: list[Row], servers: dict[Any, Any], request: bytes) -> list[Row]:
    """At a part of what each can do, and ours also at that of Triton."""
    best = {}
    for row in rows:
        if row["batching"] != "off" and row["rate"] > best.get(row["server"], {"rate": 0})["rate"]:
            best[row["server"]] = row
    found = []
    for server, row in best.items():
        rates = [row["rate"]] + [best["triton"]["rate"]] * (server == "cleave" and "triton" in best)
        with servers[server, row["batching"]]() as at:
            b.run(at, request, 8, seconds=0.5)
            for full in rates:
                told = b.run(at, request, 512, rate=LOAD * full, seconds=2 * b.seconds)
                found.append(add_up([told], server=server, offered=LOAD * full, batching=row["batching"]))
    return found


def connections(b: Bench) -> list[Row]:
    """A thousand connections on which nothing happens, and a hundred busy ones."""
    servers, request = batched(b), request_of("mlp", torch.rand(1, 2048))
    rows = []
    for server in ("cleave", "triton") if b.triton else ("cleave",):
        with servers[server, "on"]() as at:
            b.run(at, request, 8, seconds=0.5)
            before = at.memory()
            links = [socket.create_connection(("127.0.0.1", at.port)) for _ in range(1000)]
            time.sleep(0.5)
            idle, found, busy = at.memory(), [], []
            for _ in range(2):  # what the second one adds would go on growing
                found.append(b.run(at, request, 100))
                busy.append(at.memory("VmHWM"))
            facts = {"before_mb": before, "idle_mb": idle, "busy_mb": busy[0], "later_mb": busy[1]}
            rows.append(add_up(found, server=server, **facts))
            for link in links:
                link.close()
    return rows


def reloads(b: Bench) -> Row:
    """A new file takes the place of the old one again and again, under load."""
    repository, request = b.folder / "models", request_of("mlp", torch.rand(1, 2048))
    repository.mkdir()
    shutil.copy(b.folder / "mlp.clv", repository / "mlp.clv")
    done, over = 0, threading.Event()
    with b.cleave("--repository", str(repository)) as at:
        told: list[dict[str, Any]] = []

        def load() -> None:
            told.append(b.run(at, request, 8, tail=2048 * 4, seconds=4 * b.seconds))
            over.set()

        thread = threading.Thread(target=load)
        thread.start()
        while not over.is_set():
            shutil.copy(b.folder / "mlp.clv", repository / "next")
            (repository / "next").rename(repository / "mlp.clv")
            status, text = at.ask("POST", "/v2/repository/models/mlp/load")
            if status != 200:
                raise SystemExit(text.decode())
            done += 1
        thread.join()
    return {**add_up(told, reloads=done, different=told[0]["different"])}


def kills(b: Bench, count: int) -> Row:
    """As the tests do it: each answer, and each step of training, is compared with what it has to be."""
    os.environ["CLEAVE_COMMAND"] = b.command
    sys.path.append(str(ROOT / "tests" / "python"))
    from test_serve_kills import answers_through_kills
    from test_serve_training import save, train_through_kills

    inference, training = b.folder / "inference", b.folder / "training"
    inference.mkdir()
    training.mkdir()
    right, wrong = answers_through_kills(inference, count)
    steps, lost = train_through_kills({"adamw": save(training, "adamw")}, training, count)
    return {"kills": count, "right": len(right), "wrong": len(wrong), "steps": steps, "lost": lost}


def size(command: str) -> int:
    """Bytes of the program without symbols: what a package has."""
    with tempfile.TemporaryDirectory() as folder:
        subprocess.run(["strip", "-o", f"{folder}/cleave", command], check=True)
        return Path(folder, "cleave").stat().st_size


def save(options: argparse.Namespace, head: Row, rows: Row) -> None:
    """What there is so far."""
    if options.json:
        how = f"Seconds of each measurement: {options.seconds:g}, rounds: {options.rounds}."
        options.json.parent.mkdir(parents=True, exist_ok=True)
        options.json.write_text(json.dumps({**head, "how": how, **rows}, indent=1) + "\n")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    add = parser.add_argument
    add("--seconds", type=float, default=4, help="of each measurement")
    add("--rounds", type=int, default=2, help="measurements of each kind, all servers in turns")
    add("--kills", type=int, default=100)
    add("--json", type=Path, help="where the rows go")
    add("--command", default=str(ROOT / "build" / "cleave"), help="the cleave command")
    add("--load", default=str(ROOT / "build" / "bench" / "serve_load"), help="the load generator")
    add("--no-triton", action="store_true")
    options = parser.parse_args()
    torch.manual_seed(0)
    head = about()
    with tempfile.TemporaryDirectory() as folder:
        b = Bench(options, Path(folder))
        if b.triton:
            head["versions"]["nvidia-pytriton"] = triton.version()
        rows: dict[str, Any] = {"overhead": overhead(b, options.rounds)}
        rows["batching"], rows["tail"] = batching(b, options.rounds)
        rows["connections"] = connections(b)
        rows["size"] = size(options.command)
        save(options, head, rows)
        print("what is timed is done", file=sys.stderr, flush=True)
        rows["reload"] = reloads(b)
        save(options, head, rows)
        rows["kills"] = kills(b, options.kills)
    save(options, head, rows)
    for table in tables(rows):
        print(f"\n{as_terminal(table)}")


if __name__ == "__main__":
    main()

"""A server for tests: a process on the loopback address, with a port of its own, that ends with its test."""

from __future__ import annotations

import contextlib
import http.client
import json
import os
import re
import resource
import signal
import struct
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from test_cli_run import COMMAND

import cleave

PROGRAM = COMMAND or "cleave"
SLOWNESS = 0.15 if os.environ.get("CLEAVE_SANITIZED") else 1  # of models that are slow on purpose
NEEDS_SERVER = pytest.mark.skipif(COMMAND is None, reason="the cleave command is not built")


class Net(torch.nn.Module):
    """Small, with a batch and a place to cut. Its numbers are whole: sums are the same in any order, by any engine."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.first = torch.nn.Linear(4, 8)
        self.second = torch.nn.Linear(8, 3)
        for p in self.parameters():
            p.data = torch.randint(-8, 9, p.shape).float()

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.second(torch.relu(self.first(x)))


def save_net(folder: Path) -> torch.nn.Module:
    """net.clv, and its halves prefix.clv and suffix.clv, in a folder."""
    model = Net().eval()
    cleave.capture(model, (torch.randn(2, 4),), dynamic_batch=(1, 16)).save(folder / "net.clv")
    cut(folder / "net.clv", "after:first")
    return model


def cut(file: Path, where: str) -> None:
    """prefix.clv and suffix.clv beside a whole model."""
    halves = [file.parent / "prefix.clv", file.parent / "suffix.clv"]
    subprocess.run([PROGRAM, "split", file, "--boundary", where, "-o", *halves], check=True, capture_output=True)


class Server:
    """What a running server answers."""

    def __init__(self, process: subprocess.Popen[str], log: Path):
        self.process, self.log = process, log
        self.port = wait_for_port(process, log)
        self.url = f"127.0.0.1:{self.port}"

    def ask(
        self,
        method: str,
        path: str,
        body: bytes | str | None = None,
        headers: dict[str, str] | None = None,
        port: int | None = None,
    ) -> tuple[int, dict[str, str], bytes]:
        """One request over HTTP/1.1: status, fields in small letters, body."""
        link = http.client.HTTPConnection("127.0.0.1", port or self.port, timeout=30)
        try:
            link.request(method, path, body, headers or {})
            answer = link.getresponse()
            return answer.status, {k.lower(): v for k, v in answer.getheaders()}, answer.read()
        finally:
            link.close()

    def json(self, method: str, path: str, body: object = None) -> tuple[int, object]:
        """The same for JSON."""
        status, _, text = self.ask(method, path, None if body is None else json.dumps(body))
        return status, json.loads(text) if text else None

    def other_port(self, what: str) -> int:
        """Of "gRPC" or "metrics", where they have their own: the server says so before it serves."""
        return wait_for_port(self.process, self.log, what)

    def stop(self) -> int:
        """Ends it as a service manager does."""
        if self.process.poll() is None:
            self.process.send_signal(signal.SIGTERM)
        return self.process.wait(60)


@contextlib.contextmanager
def serving(
    *arguments: object, log: Path, environment: dict[str, str] | None = None, descriptors: int | None = None
) -> Iterator[Server]:
    """`cleave serve` with these arguments, ready to be asked; with at most so many descriptors."""
    limit = None if descriptors is None else lambda: resource.setrlimit(resource.RLIMIT_NOFILE, (descriptors,) * 2)
    with open(log, "w") as to:
        process = subprocess.Popen(
            [PROGRAM, "serve", "--port", "0", *map(str, arguments)],
            stderr=to,
            text=True,
            env={**os.environ, **(environment or {})},
            preexec_fn=limit,
        )
    try:
        server = Server(process, log)
        yield server
        if process.poll() is None:
            assert server.stop() == 0
    finally:
        if process.poll() is None:
            process.kill()
            process.wait()
        sys.stderr.write(log.read_text())


def wait_for_port(process: subprocess.Popen[str], log: Path, what: str = "") -> int:
    """The port that it says it listens at."""
    wanted = re.compile(rf"serving {what} ?at (?:https?://)?\S*:(\d+)")
    for _ in range(600):
        found = wanted.search(log.read_text())
        if found:
            return int(found[1])
        if process.poll() is not None:
            raise AssertionError(log.read_text())
        time.sleep(0.05)
    raise AssertionError("the server does not start: " + log.read_text())


def infer_body(inputs: dict[str, np.ndarray], timeout: int = 0) -> tuple[bytes, dict[str, str]]:
    """A request with binary tensors, and its fields."""
    known = {"float32": "FP32", "float64": "FP64", "int64": "INT64", "int32": "INT32", "bool": "BOOL"}
    listed = [
        {
            "name": k,
            "shape": list(v.shape),
            "datatype": known[str(v.dtype)],
            "parameters": {"binary_data_size": v.nbytes},
        }
        for k, v in inputs.items()
    ]
    parameters = {"binary_data_output": True, **({"timeout": timeout} if timeout else {})}
    head = json.dumps({"inputs": listed, "parameters": parameters}).encode()
    return head + b"".join(v.tobytes() for v in inputs.values()), {
        "Inference-Header-Content-Length": str(len(head)),
        "Content-Type": "application/octet-stream",
    }


def certificate(folder: Path) -> tuple[Path, Path]:
    """A certificate for this machine, signed by itself, and its key."""
    names = ["-subj", "/CN=localhost", "-addext", "subjectAltName=IP:127.0.0.1,DNS:localhost"]
    files: list[str | Path] = ["-keyout", folder / "key.pem", "-out", folder / "cert.pem"]
    new = ["openssl", "req", "-x509", "-newkey", "rsa:2048", "-nodes", "-days", "2"]
    subprocess.run([*new, *names, *files], check=True, capture_output=True)
    return folder / "cert.pem", folder / "key.pem"


def read_boundary(file: Path) -> tuple[dict[str, Any], dict[str, tuple[dict[str, Any], bytes]]]:
    """What the header of a boundary says, and its entries: what is said of each, and its bytes."""
    data = file.read_bytes()
    (n,) = struct.unpack("<Q", data[:8])
    head = json.loads(data[8 : 8 + n])
    said = json.loads(head.pop("__metadata__")["cleave.payload"])
    body = data[8 + n :]
    return said, {k: (e, body[e["data_offsets"][0] : e["data_offsets"][1]]) for k, e in head.items()}


def write_boundary(said: dict[str, Any], entries: dict[str, tuple[dict[str, Any], bytes]]) -> bytes:
    """The other way round, without digests."""
    head: dict[str, Any] = {}
    body = b""
    for k, (e, data) in entries.items():
        head[k] = {**e, "data_offsets": [len(body), len(body) + len(data)]}
        body += data
    for m in said["memory"]:
        m.pop("digest", None)
    head["__metadata__"] = {"cleave.payload": json.dumps(said)}
    text = json.dumps(head).encode()
    text += b" " * (-len(text) % 8)
    return struct.pack("<Q", len(text)) + text + body


def zstd_zeros(n: int) -> bytes:
    """One frame of zstd that becomes n bytes of zeros: blocks of 128 KiB in four bytes each."""
    out = b"\x28\xb5\x2f\xfd" + b"\xe0" + struct.pack("<Q", n)
    while True:
        size = min(n, 1 << 17)
        n -= size
        out += struct.pack("<I", (size << 3) | (1 << 1) | (n == 0))[:3] + b"\0"
        if n == 0:
            return out


@contextlib.contextmanager
def memory_within(pid: int, most: int) -> Iterator[None]:
    """What happens inside takes a process no more than so many bytes more; sanitizers take their own."""
    if os.environ.get("CLEAVE_SANITIZED"):
        yield
        return
    with open(f"/proc/{pid}/clear_refs", "w") as f:
        f.write("5")  # the peak starts again at what is there now
    before = peak(pid)
    yield
    grown = peak(pid) - before
    assert grown <= most, f"{grown} bytes more"


def peak(pid: int) -> int:
    """The most bytes of memory that a process had at once."""
    with open(f"/proc/{pid}/status") as f:
        return next(int(line.split()[1]) for line in f if line.startswith("VmHWM")) * 1024

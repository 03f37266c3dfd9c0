"""NVIDIA Triton as it comes with the package nvidia-pytriton: the server itself, with its Python back end only.

The package is unpacked into build/peers and never imported; its version is in constraints.txt. A model is a module of
torch that runs in a process of Triton's, and counts how long it takes.
"""

from __future__ import annotations

import contextlib
import os
import shutil
import socket
import struct
import subprocess
import sys
import sysconfig
import time
import urllib.request
from collections.abc import Iterator
from pathlib import Path

import torch

ROOT = Path(__file__).resolve().parents[2]
PEERS = ROOT / "build" / "peers"
PACKAGE = "nvidia-pytriton"

MODEL = """
import os, struct, sys, time
sys.path += {packages!r}
import torch
from torch.utils.dlpack import from_dlpack, to_dlpack
import triton_python_backend_utils as pb

class TritonPythonModel:
    def initialize(self, args):
        torch.set_num_threads({threads})
        self.model = torch.jit.load({file!r}).eval()
        self.totals = os.open({totals!r}, os.O_RDWR | os.O_CREAT)
        self.runs = self.ns = 0

    def execute(self, requests):
        inputs = [from_dlpack(pb.get_input_tensor_by_name(r, "x").to_dlpack()) for r in requests]
        x = torch.cat(inputs) if len(inputs) > 1 else inputs[0]
        start = time.perf_counter_ns()
        with torch.inference_mode():
            y = self.model(x)
        self.ns += time.perf_counter_ns() - start
        self.runs += 1
        os.pwrite(self.totals, struct.pack("QQ", self.runs, self.ns), 0)
        outputs = y.split([len(i) for i in inputs])
        return [pb.InferenceResponse([pb.Tensor.from_dlpack("y", to_dlpack(o.contiguous()))]) for o in outputs]
"""

CONFIG = """
name: "{name}"
backend: "python"
max_batch_size: {most}
input [ {{ name: "x" data_type: TYPE_FP32 dims: [ {inputs} ] }} ]
output [ {{ name: "y" data_type: TYPE_FP32 dims: [ -1 ] }} ]
instance_group [ {{ count: 1 kind: KIND_CPU }} ]
{batching}
"""


def install() -> Path | None:
    """The folder of tritonserver; None where the package cannot be had."""
    server = PEERS / "pytriton" / "tritonserver"
    if not server.exists():
        command = [sys.executable, "-m", "pip", "install", "-qq", "--disable-pip-version-check", "--no-deps"]
        command += ["--target", str(PEERS), "-c", str(ROOT / "constraints.txt"), PACKAGE]
        if subprocess.run(command, check=False).returncode:
            return None
    stub = server / "backends" / "python" / "triton_python_backend_stub"  # of this Python
    shutil.copy(server / "python_backend_stubs" / f"3.{sys.version_info.minor}" / stub.name, stub)
    for program in (server / "bin" / "tritonserver", stub):
        program.chmod(0o755)
    return server


def version() -> str:
    """Of the package, which has the server 2.51.0."""
    found = sorted(PEERS.glob("nvidia_pytriton-*.dist-info"))
    return found[0].name.split("-")[1].removesuffix(".dist") if found else ""


def _packages() -> list[str]:
    """Where this Python has torch: Triton's own looks nowhere else than beside itself."""
    return [p for p in sys.path if p.endswith("-packages")]


def put_model(folder: Path, name: str, model: torch.nn.Module, x: torch.Tensor, batching: str) -> None:
    """A repository with one model; `batching` is a part of its configuration."""
    place = folder / name
    (place / "1").mkdir(parents=True)
    file, totals = place / "model.pt", folder / "totals"
    torch.jit.trace(model, x).save(str(file))
    text = MODEL.format(file=str(file), totals=str(totals), packages=_packages(), threads=torch.get_num_threads())
    (place / "1" / "model.py").write_text(text)
    config = CONFIG.format(name=name, most=32, inputs=x.shape[1], batching=batching)
    (place / "config.pbtxt").write_text(config)


def model_time(folder: Path) -> tuple[int, int]:
    """How often the model ran, and for how many nanoseconds."""
    runs, ns = struct.unpack("QQ", (folder / "totals").read_bytes())
    return runs, ns


def _free_port() -> int:
    with socket.socket() as s:
        s.bind(("127.0.0.1", 0))
        return int(s.getsockname()[1])


def _ready(port: int, process: subprocess.Popen[bytes]) -> bool:
    for _ in range(600):
        url = f"http://127.0.0.1:{port}/v2/health/ready"
        with contextlib.suppress(OSError), urllib.request.urlopen(url, timeout=5) as answer:
            return bool(answer.status == 200)
        if process.poll() is not None:
            return False
        time.sleep(0.1)
    return False


@contextlib.contextmanager
def triton(server: Path, folder: Path) -> Iterator[tuple[subprocess.Popen[bytes], int]]:
    """A server of the models in a folder: its process, and its port."""
    port = _free_port()
    libraries = [str(PEERS / "nvidia_pytriton.libs"), sysconfig.get_config_var("LIBDIR") or ""]
    command = [str(server / "bin" / "tritonserver"), "--model-repository", str(folder)]
    command += ["--backend-directory", str(server / "backends"), "--http-address", "127.0.0.1"]
    command += ["--http-port", str(port), "--allow-grpc", "false", "--allow-metrics", "false"]
    environment = {**os.environ, "LD_LIBRARY_PATH": ":".join(libraries)}
    log = folder / "log"
    with open(log, "wb") as to:
        process = subprocess.Popen(command, stdout=to, stderr=to, env=environment)
    try:
        if not _ready(port, process):
            raise SystemExit(f"Triton does not start:\n{log.read_text()}")
        yield process, port
    finally:
        process.terminate()
        try:
            process.wait(30)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()

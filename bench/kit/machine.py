"""The machine and the versions of a run."""

from __future__ import annotations

import datetime
import importlib.metadata
import os
import platform
import subprocess
from pathlib import Path
from typing import Any

PACKAGES = ("torch", "openvino", "onnxruntime", "onnx", "ariadne-split", "torchvision", "timm", "transformers")
PACKAGES += ("ultralytics", "rfdetr", "triton", "numpy")


def _cpu() -> str:
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
    except OSError:
        return platform.processor() or platform.machine()
    names = [line.partition(":")[2].strip() for line in lines if line.startswith("model name")]
    return names[0] if names else platform.machine()


def _memory_gb() -> float:
    return round(os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") / 2**30, 1)


def _gpus() -> list[str]:
    """By nvidia-smi: torch would start the GPU in this process."""
    asked = ["nvidia-smi", "--query-gpu=name,driver_version", "--format=csv,noheader"]
    try:
        told = subprocess.run(asked, capture_output=True, text=True, timeout=30, check=False)
    except (OSError, subprocess.TimeoutExpired):
        return []
    return [line.strip() for line in told.stdout.splitlines() if line.strip()] if told.returncode == 0 else []


def machine() -> dict[str, Any]:
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count()
    found: dict[str, Any] = {"cpu": _cpu(), "cores": cores, "memory_gb": _memory_gb(), "system": platform.system()}
    gpus = _gpus()
    return {**found, "gpu": gpus[0]} if gpus else found


def versions() -> dict[str, str]:
    found = {"python": platform.python_version()}
    header = Path(__file__).resolve().parent.parent.parent / "include" / "cleave.h"
    for line in header.read_text(encoding="utf-8").splitlines() if header.exists() else ():
        if line.startswith("#define CLV_VERSION "):
            found["cleave"] = line.split('"')[1]
    for package in PACKAGES:
        try:
            found[package] = importlib.metadata.version(package)
        except importlib.metadata.PackageNotFoundError:
            continue
    return found


def about() -> dict[str, Any]:
    """The head of a file of results."""
    now = datetime.datetime.now(datetime.timezone.utc)
    load = round(os.getloadavg()[0], 2)
    return {"date": now.strftime("%Y-%m-%d"), "machine": machine(), "versions": versions(), "load_at_start": load}

"""Settings that must be in place before torch or a model library is imported; a clean start for each test."""

from __future__ import annotations

import os
import random
import sys
import tempfile
import threading
import warnings
from collections.abc import Iterator
from pathlib import Path

_SETTINGS = {
    # AMX is advertised on some machines but traps: bf16 matmul would die with SIGILL.
    "ONEDNN_MAX_CPU_ISA": "AVX512_CORE_BF16",
    "OMP_NUM_THREADS": "1",
    "HF_HUB_OFFLINE": "1",
    "HF_HUB_DISABLE_TELEMETRY": "1",
    "TRANSFORMERS_OFFLINE": "1",
    "TRANSFORMERS_VERBOSITY": "error",
    "TOKENIZERS_PARALLELISM": "false",
    "YOLO_OFFLINE": "true",
    "YOLO_VERBOSE": "false",
    "YOLO_AUTOINSTALL": "false",
    "YOLO_CONFIG_DIR": str(Path(tempfile.gettempdir()) / "cleave-test-yolo"),
    "MPLCONFIGDIR": str(Path(tempfile.gettempdir()) / "cleave-test-mpl"),
    "MPLBACKEND": "Agg",
    "CLEAVE_CACHE": "off",  # no test finds what another left
    "XDG_STATE_HOME": str(Path(tempfile.gettempdir()) / "cleave-test-state"),
}
for _name, _value in _SETTINGS.items():
    os.environ.setdefault(_name, _value)
Path(os.environ["YOLO_CONFIG_DIR"]).mkdir(parents=True, exist_ok=True)

# tests/integration uses the same comparison as tests/python.
for folder in ("examples", "tests/python"):
    sys.path.insert(0, str(Path(__file__).parent.parent / folder))

import numpy as np  # noqa: E402
import pytest  # noqa: E402
import torch  # noqa: E402


def pytest_configure(config: pytest.Config) -> None:
    config.addinivalue_line("markers", "integration: real models with random weights, no downloads")


@pytest.fixture(autouse=True)
def own_threads(monkeypatch: pytest.MonkeyPatch) -> None:
    """Captures ask whether other threads run. Those that a library started in an earlier test and left do not count."""
    before = set(threading.enumerate()) - {threading.current_thread()}
    monkeypatch.setattr(threading, "active_count", lambda: len(set(threading.enumerate()) - before))


@pytest.fixture(autouse=True)
def clean_start() -> Iterator[None]:
    """Same seeds before every test; the global switches of torch as they were after it."""
    dtype, grad = torch.get_default_dtype(), torch.is_grad_enabled()
    torch.manual_seed(0)
    np.random.seed(0)
    random.seed(0)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        yield
    torch.set_default_dtype(dtype)
    torch.set_grad_enabled(grad)
    assert not torch.is_inference_mode_enabled(), "the test left inference mode on"
    assert not torch.is_autocast_enabled("cpu"), "the test left autocast on"

"""The environment that `make` installs is one that users' own scripts run in."""

from __future__ import annotations

import importlib.util
import subprocess
import sys

import pytest

pytestmark = pytest.mark.integration


@pytest.mark.skipif(not importlib.util.find_spec("torchvision"), reason="torchvision is not installed")
def test_torchvision_is_imported_as_it_is_and_its_operators_run() -> None:
    script = """
import torch, torchvision
boxes = torch.tensor([[0.0, 0, 10, 10], [1, 1, 10, 10], [20, 20, 30, 30]])
assert torchvision.ops.nms(boxes, torch.tensor([0.9, 0.8, 0.7]), 0.5).tolist() == [0, 2]
assert torchvision.ops.roi_align(torch.ones(1, 2, 8, 8), [boxes[:1]], 2).shape == (1, 2, 2, 2)
"""
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stderr

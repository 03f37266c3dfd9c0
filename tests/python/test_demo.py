"""The demo's last step: a prefix run by the static program for devices. `make test` builds it first."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest
import torch
from native import COMMAND, ROOT

import cleave
from cleave import demo

EDGE = ROOT / "build" / "cleave-edge"


@pytest.mark.skipif(COMMAND is None or not EDGE.is_file(), reason="`make edge` was not run")
def test_the_static_program_runs_the_prefix_of_the_demo(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    torch.manual_seed(0)
    net = demo.ResNet18(classes=10).eval()
    x = torch.rand(2, 3, 32, 32)
    spec = cleave.SplitSpec(boundary="50%")
    rt = cleave.prepare_split(net, example_inputs=x, split=spec)
    with torch.no_grad():
        want = net(x)
    rt.save(tmp_path)
    (tmp_path / "input.safetensors").write_bytes(cleave.pack(x))
    assert demo.on_a_device(EDGE, tmp_path, want)
    assert "cleave-edge run prefix.clv" in capsys.readouterr().out
    linked = subprocess.run(["ldd", EDGE], capture_output=True, text=True, check=False)
    assert "statically linked" in linked.stdout + linked.stderr


def test_a_program_for_devices_that_was_not_built_fails_the_demo(tmp_path: Path) -> None:
    assert not demo.on_a_device(tmp_path / "cleave-edge", tmp_path, {})
    assert demo.on_a_device(None, tmp_path, {})

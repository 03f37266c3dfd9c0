"""Artifacts as other readers see them: safetensors files with the weights under their names.

The files were written by tests/c/test_artifact.c, which also says what is in them.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

safetensors = pytest.importorskip("safetensors")
safetensors_numpy = pytest.importorskip("safetensors.numpy")
safetensors_torch = pytest.importorskip("safetensors.torch")

FILES = Path(__file__).parents[2] / "fuzz/corpus/artifact"
VALID = ["whole", "two_plans", "prefix", "suffix", "no_weights", "shared", "large"]


def weights(first: int, n: int) -> torch.Tensor:
    return torch.arange(first, first + n, dtype=torch.float32) + 0.5


def metadata(name: str) -> dict[str, str]:
    with safetensors.safe_open(FILES / name, framework="np") as f:
        found: dict[str, str] = f.metadata()
    return found


def test_weights_are_read_under_their_names_by_torch_and_numpy() -> None:
    want = {
        "a.weight": weights(0, 16).reshape(4, 4),
        "a.bias": weights(16, 4),
        "b.scale": weights(32, 1).reshape(()),
        "const.0.0": weights(48, 4),
    }
    by_torch = safetensors_torch.load_file(FILES / "whole")
    by_numpy = safetensors_numpy.load_file(FILES / "whole")
    assert set(by_torch) == set(by_numpy) == set(want)
    for name, tensor in want.items():
        assert torch.equal(by_torch[name], tensor)
        assert np.array_equal(by_numpy[name], tensor.numpy())


@pytest.mark.parametrize("name", VALID)
def test_every_sample_is_a_safetensors_file(name: str) -> None:
    tensors: dict[str, Any] = safetensors_torch.load_file(FILES / name)
    assert tensors
    about = json.loads(metadata(name)["cleave.artifact"])
    assert set(about["digests"]) == set(tensors)


@pytest.mark.parametrize(
    ("name", "held"),
    [
        ("prefix", {"a.weight", "a.bias", "const.1.0"}),
        ("suffix", {"a.weight", "b.scale", "const.0.0"}),
        ("no_weights", {"const.0.0"}),
    ],
)
def test_a_part_holds_its_own_weights_only(name: str, held: set[str]) -> None:
    assert set(safetensors_torch.load_file(FILES / name)) == held


def test_strided_and_narrow_tensors_are_read_as_what_they_are() -> None:
    tensors = safetensors_torch.load_file(FILES / "shared")
    assert tensors["flag"].tolist() == [True, False, True]
    assert tensors["half"].dtype == torch.bfloat16
    assert tensors["turned"].shape == (3, 5)
    assert tensors["pair"].shape == (3, 2)  # the format has no complex numbers of two doubles
    data = torch.tensor([i * 37 >> 3 & 255 for i in range(1024)], dtype=torch.uint8)
    turned = data[128:].view(torch.float32)[1:].as_strided((3, 5), (1, 7))
    assert torch.equal(tensors["turned"].view(torch.int32), turned.contiguous().view(torch.int32))


def test_the_plans_are_text() -> None:
    texts = metadata("two_plans")
    assert texts["cleave.plan.0"].startswith("cleave-plan 1\n")
    assert texts["cleave.plan.1"].startswith("cleave-plan 1\n")
    assert "cleave.plan.2" not in texts

"""Real models as files: saved, opened and run by the C library, whole and in halves, every bit as in eager."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from helpers import draw
from models import BUILDERS, build
from test_dynamic_models import _rows

import cleave
from cleave import _native, _tree

pytestmark = pytest.mark.integration


def _tensors(value: Any) -> list[torch.Tensor]:
    return _tree.flatten(dict(value) if isinstance(value, cleave.artifact.Record) else value)[1]


def _same(want: list[torch.Tensor], got: Any, what: str) -> None:
    tensors = _tensors(got)
    assert len(tensors) == len(want), what
    for i, (a, b) in enumerate(zip(want, tensors, strict=True)):
        assert _native.bits_equal(a, b), f"{what}: tensor {i}"


@pytest.mark.parametrize("name", list(BUILDERS))
def test_a_real_model_survives_its_file_bit_for_bit(name: str, tmp_path: Path) -> None:
    model, make_inputs = build(name)
    example = draw(make_inputs, 0, False)
    spec = cleave.SplitSpec(boundary="50%", dynamic_batch=(1, 16), trace_batch_mode="batch_gt1")
    rt = cleave.prepare_split(model, example_inputs=example.args, example_kwargs=example.kwargs, split=spec)
    rt.prepare_sizes(1, 3)
    file = tmp_path / "model.clv"
    rt.save(file, prove="none")
    again = tmp_path / "again.clv"
    rt.save(again, prove="none")
    assert file.read_bytes() == again.read_bytes(), "the same model gives the same bytes"
    again.unlink()
    whole = cleave.load(file, check=True)
    whole.split(None, tmp_path / "prefix.clv", tmp_path / "suffix.clv")
    prefix, suffix = cleave.load(tmp_path / "prefix.clv"), cleave.load(tmp_path / "suffix.clv")
    for batch in (1, 2, 3):
        torch.manual_seed(batch)
        inputs = _rows(example, batch)
        with torch.no_grad():
            want = _tensors(model(*inputs.args, **inputs.kwargs))
        _same(want, whole(*inputs.args, **inputs.kwargs), f"{name} at batch {batch}")
        boundary = prefix.run_prefix(*inputs.args, **inputs.kwargs)
        wire = cleave.BoundaryPayload.from_bytes(boundary.to_bytes())
        _same(want, suffix.run_suffix(wire), f"{name} at batch {batch}, in halves")
        _same(want, rt.run_suffix(boundary), f"{name} at batch {batch}, the live suffix on the file's boundary")

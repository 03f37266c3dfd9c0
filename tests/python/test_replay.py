"""Replay runtimes, and the compiled mode behind a split: inference and training."""

from __future__ import annotations

import copy
from dataclasses import replace
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import nn

import cleave
from cleave._compiled import TOLERANCE
from cleave.compat import ReplayBoundary

SPEC = cleave.SplitSpec(boundary="after:2", dynamic_batch=(1, 16))


def net() -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(6, 16), nn.LayerNorm(16), nn.ReLU(), nn.Linear(16, 16), nn.ReLU(), nn.Linear(16, 3))


def replay(model: nn.Module, mode: str = "generated_eager", **options: Any) -> cleave.compat.SplitReplayRuntime:
    return cleave.compat.prepare_split_replay(
        model, example_inputs=(torch.randn(4, 6),), split=SPEC, mode=mode, compile_options=options or None
    )


def changed(boundary: ReplayBoundary, **fields: Any) -> ReplayBoundary:
    return replace(boundary, payload=replace(boundary.payload, **fields))


@pytest.mark.parametrize("mode", ["generated_eager", "debug_interpreter", "cuda_graph"])
def test_replay_gives_the_numbers_of_the_model_at_any_batch(mode: str) -> None:
    model = net().eval()
    runtime = replay(model, mode)
    with torch.no_grad():
        for batch in (1, 2, 4, 9):
            x = torch.randn(batch, 6)
            boundary = runtime.run_prefix(x)
            assert boundary.batch_size == batch
            assert len(boundary.tensors) == len(runtime.boundary_order)
            assert torch.equal(runtime.run_suffix(boundary), model(x))
            assert torch.equal(runtime.replay(x), model(x))
    if mode == "cuda_graph" and not torch.cuda.is_available():
        assert runtime.active_backend == "tape"
        assert "CUDA" in (runtime.fallback_reason or "")


@pytest.mark.integration
def test_compiled_replay_is_close_and_says_what_runs() -> None:
    model = net().eval()
    runtime = replay(model, "compiled", backend="aot_eager")
    runtime.warmup(torch.randn(4, 6))
    assert runtime.active_backend == "aot_eager fullgraph"
    assert runtime.fallback_reason is None
    with torch.no_grad():
        for batch in (2, 5):
            x = torch.randn(batch, 6)
            torch.testing.assert_close(runtime.replay(x), model(x), **TOLERANCE)


def test_what_does_not_compile_falls_back_with_the_reason() -> None:
    def broken(graph: Any, inputs: Any) -> Any:
        raise RuntimeError("this backend never works")

    model = net().eval()
    runtime = replay(model, "compiled", backend=broken)
    x = torch.randn(4, 6)
    with torch.no_grad():
        assert torch.equal(runtime.replay(x), model(x))
    assert runtime.active_backend == "tape"
    assert "this backend never works" in (runtime.fallback_reason or "")


def test_boundaries_are_checked_as_deep_as_asked_for() -> None:
    model = net().eval()
    runtime = replay(model)
    strict = runtime.with_validation("strict")
    boundary = strict.run_prefix(torch.randn(4, 6))
    strict.validate_boundary(boundary)
    wrong = changed(boundary, tensors={label: t.double() for label, t in boundary.tensors.items()})
    with pytest.raises(ValueError, match="f64"):
        strict.run_suffix(wrong)
    with pytest.raises(cleave.InputError):
        runtime.run_suffix(wrong)
    with pytest.raises(cleave.InputError, match=r"the boundary lacks %\d"):
        runtime.run_suffix(changed(boundary, tensors={}))
    with pytest.raises(cleave.InputError, match="belongs to split"):
        runtime.run_suffix(changed(boundary, split_id="another"))
    with pytest.raises(TypeError, match="ReplayBoundary"):
        runtime.run_suffix(torch.randn(4, 16))  # type: ignore[arg-type]
    with pytest.raises(cleave.SplitError, match="fast"):
        runtime.with_validation("sometimes")


@pytest.mark.integration
@pytest.mark.parametrize("mode", ["generated_eager", "compiled"])
def test_both_modes_train(mode: str) -> None:
    model = net().train()
    whole = copy.deepcopy(model)
    options = {"backend": "aot_eager"} if mode == "compiled" else None
    rt = cleave.prepare_split(
        model, example_inputs=(torch.randn(4, 6),), split=SPEC, mode=mode, compile_options=options
    )
    for batch in (4, 6):
        x, y = torch.randn(batch, 6), torch.randint(0, 3, (batch,))
        boundary = rt.run_training_prefix(x)
        loss, grads = rt.train_suffix(boundary, y)
        rt.backward_prefix(boundary, grads)
        want = F.cross_entropy(whole(x), y)
        want.backward()
        torch.testing.assert_close(loss, want.detach(), **TOLERANCE)
        for p, q in zip(model.parameters(), whole.parameters(), strict=True):
            assert p.grad is not None
            torch.testing.assert_close(p.grad, q.grad, **TOLERANCE)


def test_the_source_of_a_half_runs_by_itself() -> None:
    model = net().eval()
    rt = cleave.prepare_split(model, example_inputs=(torch.randn(4, 6),), split=SPEC)
    halves = []
    for half in ("prefix", "suffix"):
        namespace: dict[str, Any] = {}
        exec(rt.source(half), namespace)
        module = namespace[half.capitalize()]()
        module.load_state_dict(model.state_dict(), strict=False)
        halves.append(module)
    x = torch.randn(7, 6)
    with torch.no_grad():
        assert torch.equal(halves[1](*halves[0](x))[0], model(x))
    with pytest.raises(cleave.SplitError, match="prefix"):
        rt.source("middle")


def test_the_names_of_other_split_runtimes_are_there() -> None:
    rt = cleave.compat.prepare_split(net().eval(), example_inputs=(torch.randn(4, 6),), split=SPEC)
    assert isinstance(rt.trace_plan, cleave.compat.TracePlan)
    assert isinstance(rt.trace_plan.nodes[0], cleave.compat.TraceNode)
    assert isinstance(rt.candidate, cleave.compat.SplitCandidate)
    assert isinstance(rt.cache_key, cleave.split.RuntimeCacheKey)
    assert 4 not in rt.cache_key
    assert rt.cache_key == cleave.prepare_split(net().eval(), example_inputs=(torch.randn(9, 6),), split=SPEC).cache_key
    assert rt.segments.prefix is not None

"""Boundaries copied beside what a GPU computes: nothing may be read too early, written too early, or kept too long."""

from __future__ import annotations

import gc
from collections.abc import Iterator
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import cleave
from cleave._transfer import CPU, Lane

pytestmark = [pytest.mark.gpu, pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device")]

WIDE = 1024  # boundaries of some megabytes: copies that are still under way when the next prefix has begun


class Net(nn.Module):
    """An input that only the suffix needs, a boundary with gaps, and one that is a view of another."""

    def __init__(self) -> None:
        super().__init__()
        self.a, self.b = nn.Linear(64, 2 * WIDE), nn.Linear(WIDE, 8)

    def forward(self, x: Tensor, shift: Tensor) -> Tensor:
        y = self.a(x)
        gaps, view = y[:, ::2], y.t()[:WIDE]
        return self.b(gaps.relu() + shift) + view.t().sum(1, keepdim=True)


@pytest.fixture(autouse=True)
def one_kind_of_sum() -> Iterator[None]:
    before = torch.backends.cuda.matmul.allow_tf32  # no attribute of the object, so not for `monkeypatch`
    torch.backends.cuda.matmul.allow_tf32 = False
    yield
    torch.backends.cuda.matmul.allow_tf32 = before


def split_of(mode: str = "generated_eager") -> cleave.SplitRuntime:
    torch.manual_seed(0)
    model = Net().eval().cuda()
    example = (torch.randn(3, 64, device="cuda"), torch.randn(3, WIDE, device="cuda"))
    return cleave.prepare_split(model, example_inputs=example, split=cleave.SplitSpec(boundary="after:a"), mode=mode)


def batches(*rows: int) -> list[tuple[Tensor, Tensor]]:
    return [(torch.randn(n, 64, device="cuda"), torch.randn(n, WIDE, device="cuda")) for n in rows]


def one_by_one(runtime: cleave.SplitRuntime, given: list[Any]) -> list[Tensor]:
    return [runtime.run_suffix(runtime.run_prefix(*b)) for b in given]


def same(got: Any, want: Any) -> None:
    assert all(torch.equal(a, b) for a, b in zip(got, want, strict=True))


@pytest.mark.parametrize("device", [None, "cpu", "cuda"])
@pytest.mark.parametrize("mode", ["generated_eager", "cuda_graph"])
def test_outputs_are_those_of_single_calls(mode: str, device: str | None) -> None:
    runtime = split_of(mode)
    given = batches(*([64] * 12), 1, 7, 64, 33)
    want = one_by_one(runtime, given)
    for _ in range(3):
        same(runtime.run_batches(given, device=device), want)


def test_boundaries_are_pinned_and_may_be_kept() -> None:
    runtime = split_of()
    given = batches(*([64] * 16))
    want = [runtime.run_prefix(*b) for b in given]
    got = list(runtime.run_prefix_batches(given))
    for a, b in zip(got, want, strict=True):
        assert all(t.is_pinned() for t in a.tensors.values())
        assert list(a.tensors) == list(b.tensors)
        for x, y in zip(a.tensors.values(), b.tensors.values(), strict=True):
            assert torch.equal(x, y.cpu())
            assert x.stride() == y.stride()
    same(runtime.run_suffix_batches(got), one_by_one(runtime, given))
    data = [b.to_bytes() for b in got]
    same(runtime.run_suffix_batches(map(cleave.BoundaryPayload.from_bytes, data)), one_by_one(runtime, given))


def test_one_input_may_be_filled_again_for_every_batch() -> None:
    runtime, given = split_of(), batches(*([64] * 12))
    want = one_by_one(runtime, given)
    x, shift = given[0][0].clone(), given[0][1].clone()

    def filled() -> Iterator[Any]:
        for a, b in given:
            x.copy_(a)
            shift.copy_(b)  # the suffix needs it: a copy of it may still be under way
            yield x, shift

    for device in (None, "cpu"):
        same(runtime.run_batches(filled(), device=device), want)


def test_one_pinned_boundary_may_be_filled_again() -> None:
    runtime, given = split_of(), batches(*([64] * 12))
    kept = list(runtime.run_prefix_batches(given))
    one = next(runtime.run_prefix_batches(given[:1]))

    def filled() -> Iterator[Any]:
        for boundary in kept:
            for label, t in boundary.tensors.items():
                one.tensors[label].copy_(t)
            yield one

    same(runtime.run_suffix_batches(filled()), one_by_one(runtime, given))


def test_work_of_the_caller_on_a_stream_of_its_own_is_waited_for() -> None:
    runtime, given = split_of(), batches(*([64] * 8))
    want = one_by_one(runtime, given)
    torch.cuda.synchronize()
    stream = torch.cuda.Stream()
    got = []
    with torch.cuda.stream(stream):
        torch.cuda._sleep(50_000_000)  # everything below comes behind it
        late = [(a.clone(), b.clone()) for a, b in given]
        for y in runtime.run_batches(late, device="cpu"):
            got.append(y.clone())
    stream.synchronize()
    same(got, want)


def test_an_error_comes_at_its_place_and_a_run_may_be_given_up() -> None:
    runtime = split_of()
    good = batches(64, 64, 64)
    bad = (torch.randn(2, 5, device="cuda"), torch.randn(2, WIDE, device="cuda"))
    run = runtime.run_batches([*good, bad, *good], device="cpu")
    same([next(run) for _ in good], one_by_one(runtime, good))
    with pytest.raises(cleave.InputError):
        next(run)
    for n in range(1, 4):
        run = runtime.run_batches(good, device="cpu")
        same([next(run) for _ in range(n)], one_by_one(runtime, good[:n]))
        run.close()  # type: ignore[attr-defined]
    same(runtime.run_batches(good, device="cpu"), one_by_one(runtime, good))


def test_memory_of_the_device_does_not_grow_with_the_batches() -> None:
    runtime, given = split_of(), batches(*([64] * 4))

    def allocated(times: int) -> int:
        for _ in range(times):
            for _ in runtime.run_batches(given, device="cpu"):
                pass
        gc.collect()
        torch.cuda.synchronize()
        return torch.cuda.memory_allocated()

    assert allocated(2) == allocated(10)


def test_a_lane_keeps_strides_shared_memory_and_values() -> None:
    base = torch.randn(64, 48, device="cuda")
    tensors = [base, base[1:3].t(), torch.randn(4, 1, device="cuda").expand(4, 9), torch.randn(99, device="cuda")[::3]]
    tensors += [torch.randn(2, 3, 4, 5, device="cuda").to(memory_format=torch.channels_last)]
    tensors += [torch.empty(0, 3, device="cuda"), torch.tensor(7, device="cuda"), torch.randn(3, device="cuda")[None]]
    tensors += [torch.randn(3, dtype=torch.complex64, device="cuda").conj(), torch.randn(3)]
    down = Lane().start(tensors, [CPU] * len(tensors), tensors).finish()
    up = Lane().start(down, [t.device for t in tensors]).finish()
    for a, b, c in zip(tensors, down, up, strict=True):
        assert torch.equal(a.cpu(), b)
        assert torch.equal(a, c)
        assert a.stride() == b.stride() == c.stride()
    assert down[1].untyped_storage().data_ptr() == down[0].untyped_storage().data_ptr()
    assert up[1].untyped_storage().data_ptr() == up[0].untyped_storage().data_ptr()


@pytest.mark.skipif(torch.cuda.device_count() < 2, reason="one CUDA device")
def test_boundaries_may_go_by_way_of_another_gpu() -> None:
    runtime, given = split_of(), batches(*([64] * 8))
    want = one_by_one(runtime, given)
    same(runtime.run_batches(given, device="cuda:1"), want)
    assert all(
        t.device.index == 1 for b in runtime.run_prefix_batches(given, device="cuda:1") for t in b.tensors.values()
    )

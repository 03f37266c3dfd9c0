"""Many batches through a split: order, errors and equality on the CPU, where copies are only pretended to take time."""

from __future__ import annotations

import gc
import weakref
from collections.abc import Iterator
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import cleave
from cleave import _transfer
from cleave._transfer import Lane, Transfer, ahead
from cleave.payload import moved


class Net(nn.Module):
    """An input that only the suffix needs, and keyword inputs."""

    def __init__(self) -> None:
        super().__init__()
        self.a, self.b = nn.Linear(4, 8), nn.Linear(8, 2)

    def forward(self, x: Tensor, shift: Tensor) -> Tensor:
        return self.b(self.a(x).relu() + shift)


def net() -> nn.Module:
    torch.manual_seed(0)
    return Net().eval()


def split_of(model: nn.Module, **options: Any) -> cleave.SplitRuntime:
    return cleave.prepare_split(
        model,
        example_inputs=(torch.randn(3, 4), torch.randn(3, 8)),
        split=cleave.SplitSpec(boundary="after:a"),
        **options,
    )


def batches(*rows: int) -> list[tuple[Tensor, Tensor]]:
    return [(torch.randn(n, 4), torch.randn(n, 8)) for n in rows]


class Pretended:
    """An event that says when somebody waits for it."""

    def __init__(self, told: list[str], name: str) -> None:
        self.told, self.name = told, name

    def synchronize(self) -> None:
        self.told.append(f"wait {self.name}")


@pytest.fixture
def slow(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Every boundary is copied, and on its way until somebody waits for it. What happened, in order."""
    told: list[str] = []

    def start(self: Lane, tensors: Any, to: Any, borrowed: Any = ()) -> Transfer:
        name = f"copy {sum(t.startswith('copy') for t in told)}"
        told.append(name)
        copies = moved(list(tensors), torch.device("cpu"))
        return Transfer(copies, [Pretended(told, name)])  # type: ignore[list-item]

    monkeypatch.setattr(Lane, "start", start)
    return told


# ---- equality, order


@pytest.mark.parametrize("device", [None, "cpu"])
@pytest.mark.parametrize("mode", ["generated_eager", "debug_interpreter"])
def test_outputs_are_the_models_in_order_and_bit_for_bit(device: Any, mode: str) -> None:
    model = net()
    runtime = split_of(model, mode=mode)
    given = batches(3, 1, 7, 2)
    with torch.no_grad():
        want = [model(*b) for b in given]
    got = list(runtime.run_batches(given, device=device))
    assert all(torch.equal(a, b) for a, b in zip(got, want, strict=True))
    through = list(runtime.run_suffix_batches(runtime.run_prefix_batches(iter(given))))
    assert all(torch.equal(a, b) for a, b in zip(through, want, strict=True))


@pytest.mark.usefixtures("slow")
def test_outputs_are_the_same_when_copies_take_their_time() -> None:
    model = net()
    given = batches(3, 1, 7, 2)
    with torch.no_grad():
        want = [model(*b) for b in given]
    got = list(split_of(model).run_batches(given, device="cpu"))
    assert all(torch.equal(a, b) for a, b in zip(got, want, strict=True))


def test_the_next_prefix_runs_before_a_copy_is_waited_for(slow: list[str]) -> None:
    runtime = split_of(net())
    for i, _ in enumerate(runtime.run_prefix_batches(batches(2, 2, 2), device="cpu")):
        slow.append(f"given {i}")
    first = ["copy 0", "copy 1", "wait copy 0", "given 0"]
    assert slow == [*first, "copy 2", "wait copy 1", "given 1", "wait copy 2", "given 2"]


def test_where_nothing_is_copied_nothing_is_asked_for_before_its_turn() -> None:
    asked: list[int] = []

    def several() -> Iterator[Any]:
        for i, batch in enumerate(batches(2, 2)):
            asked.append(i)
            yield batch

    runtime = split_of(net())
    for run in (
        runtime.run_batches(several()),
        runtime.run_batches(several(), device="cpu"),
        runtime.run_prefix_batches(several()),
    ):
        asked.clear()
        next(iter(run))
        assert asked == [0]


def test_one_input_may_be_filled_again_for_every_batch() -> None:
    model, x, shift = net(), torch.zeros(2, 4), torch.zeros(2, 8)
    runtime = split_of(model)

    def filled() -> Iterator[Any]:
        for i in range(4):
            x.fill_(i)
            shift.fill_(-i)
            yield x, shift

    with torch.no_grad():
        want = [model(x.clone(), shift.clone()) for _ in filled()]
    for got in (runtime.run_batches(filled()), runtime.run_batches(filled(), device="cpu")):
        assert all(torch.equal(a, b) for a, b in zip(got, want, strict=True))


def test_batches_are_tensors_tuples_or_dicts() -> None:
    model = net()
    runtime = split_of(model)
    (x, shift), *_ = batches(2)
    with torch.no_grad():
        want = model(x, shift)
    assert torch.equal(next(iter(runtime.run_batches([{"x": x, "shift": shift}]))), want)
    assert torch.equal(next(iter(runtime.run_batches([[x, shift]]))), want)
    one = nn.Sequential(nn.Linear(4, 4), nn.ReLU()).eval()
    alone = cleave.prepare_split(one, example_inputs=x, split=cleave.SplitSpec(boundary="after:0"))
    with torch.no_grad():
        assert torch.equal(next(iter(alone.run_batches([x]))), one(x))
    assert list(runtime.run_batches([])) == []


def test_boundaries_of_another_process_go_into_the_suffix() -> None:
    model = net()
    here, there = split_of(model), split_of(net())
    for runtime, half in ((here, "prefix"), (there, "suffix")):
        runtime.prepare_sizes(2, 5)
        runtime.keep_only(half)
    given = batches(2, 5)
    messages = (b.to_bytes() for b in here.run_prefix_batches(given))
    got = list(there.run_suffix_batches(cleave.BoundaryPayload.from_bytes(m) for m in messages))
    with torch.no_grad():
        twin = net()
        assert all(torch.equal(a, twin(*b)) for a, b in zip(got, given, strict=True))
    with pytest.raises(cleave.InputError, match="holds only the suffix"):
        there.run_prefix_batches(given)
    with pytest.raises(cleave.InputError, match="holds only the prefix"):
        here.run_batches(given)


# ---- errors


@pytest.mark.parametrize("copies", ["none", "slow"])
@pytest.mark.parametrize("where", ["prefix", "iterable"])
def test_an_error_is_raised_at_the_place_of_its_batch(copies: str, where: str, request: pytest.FixtureRequest) -> None:
    if copies == "slow":
        request.getfixturevalue("slow")
    good, bad = batches(2, 3), (torch.randn(2, 5), torch.randn(2, 8))

    def several() -> Iterator[Any]:
        yield from good
        if where == "iterable":
            raise ZeroDivisionError("no more data")
        yield bad
        raise AssertionError("nobody asks for more after an error")

    model = net()
    run = split_of(model).run_batches(several(), device="cpu")
    with torch.no_grad():
        assert all(torch.equal(next(run), model(*b)) for b in good)
    with pytest.raises(ZeroDivisionError if where == "iterable" else cleave.InputError):
        next(run)
    assert list(run) == []


@pytest.mark.usefixtures("slow")
def test_an_error_of_a_suffix_comes_after_what_was_before_it() -> None:
    runtime = split_of(net())
    boundaries: list[Any] = list(runtime.run_prefix_batches(batches(2, 3)))
    run = runtime.run_suffix_batches([boundaries[0], "no boundary", boundaries[1]])
    assert next(run).shape == (2, 2)
    with pytest.raises(TypeError, match="run_suffix_batches takes the BoundaryPayload of run_prefix, not str"):
        next(run)
    assert list(run) == []


def test_a_boundary_with_something_else_than_tensors_is_refused() -> None:
    runtime = split_of(net())
    (boundary,) = runtime.run_prefix_batches(batches(2))
    label = next(iter(boundary.tensors))
    boundary.tensors[label] = None  # type: ignore[assignment]
    with pytest.raises(TypeError, match=f"{label} of the boundary is a NoneType"):
        next(runtime.run_suffix_batches([boundary]))


@pytest.mark.parametrize(
    ("call", "error", "says"),
    [
        (lambda r: r.run_batches(torch.randn(3, 4)), TypeError, "batches are several, .* not Tensor"),
        (lambda r: r.run_batches({"x": 1}), TypeError, "batches are several, .* not dict"),
        (lambda r: r.run_batches(7), TypeError, "batches are several, .* not int"),
        (lambda r: r.run_suffix_batches("text"), TypeError, "boundaries are several, .* not str"),
        (lambda r: r.run_prefix_batches([], device="meta"), ValueError, "has no memory"),
        (lambda r: r.run_batches([], device="nowhere"), ValueError, "device 'nowhere'"),
        (lambda r: r.run_batches([], device="cuda:99"), ValueError, r"there are \d+ CUDA devices"),
    ],
)
def test_what_is_wrong_with_the_call_is_said_at_once(call: Any, error: type, says: str) -> None:
    with pytest.raises(error, match=says):
        call(split_of(net()))


# ---- ends


@pytest.mark.usefixtures("slow")
def test_a_run_that_is_given_up_lets_go_of_everything() -> None:
    runtime = split_of(net())
    held: list[weakref.ref[Tensor]] = []
    ended: list[str] = []

    def several() -> Iterator[Any]:
        try:
            for batch in batches(2, 2, 2, 2):
                held.append(weakref.ref(batch[0]))
                yield batch
                del batch
        finally:
            ended.append("ended")

    source = several()
    run = runtime.run_batches(source, device="cpu")
    next(run)
    run.close()  # type: ignore[attr-defined]
    assert list(run) == []
    assert ended == []  # it is the caller's, and may go on
    assert len(list(source)) == 1
    gc.collect()
    assert [r() for r in held] == [None] * 4


def test_ahead_keeps_order_whatever_is_on_its_way() -> None:
    told: list[str] = []
    run = ahead(
        iter(range(5)),
        lambda i: (told.append(f"begin {i}"), i)[1],
        lambda i: i in (1, 2),
        lambda i: (told.append(f"end {i}"), 10 * i)[1],
    )
    assert list(run) == [0, 10, 20, 30, 40]
    order = ["begin 0", "end 0", "begin 1", "begin 2", "end 1", "begin 3", "end 2", "end 3", "begin 4", "end 4"]
    assert told == order


def test_a_stop_iteration_out_of_a_batch_is_no_end() -> None:
    def begin(_: int) -> int:
        raise StopIteration

    with pytest.raises(RuntimeError, match="StopIteration"):
        list(ahead(iter([1]), begin, bool, str))


# ---- lanes


def test_a_lane_leaves_tensors_alone_that_are_where_they_should_be() -> None:
    x, y = torch.randn(3), torch.randn(3)
    transfer = Lane().start([x, y], [_transfer.CPU, _transfer.CPU], [x])
    assert transfer.finish()[0] is x
    assert transfer.arrived == []


def test_a_lane_keeps_strides_shared_memory_and_grad_flags() -> None:
    base = torch.randn(4, 6)
    tensors = [base, base[1:3].t(), torch.randn(2, 3, 4, 5).to(memory_format=torch.channels_last), torch.randn(6)[::2]]
    tensors.append(torch.randn(3, requires_grad=True))
    meta = torch.device("meta")
    out = Lane().start(tensors, [meta] * 4 + [_transfer.CPU], tensors).finish()
    assert [(t.shape, t.stride(), t.dtype) for t in out] == [(t.shape, t.stride(), t.dtype) for t in tensors]
    assert [t.device.type for t in out] == ["meta"] * 4 + ["cpu"]
    assert out[4].requires_grad
    assert out[4] is not tensors[4]
    assert torch.equal(out[4], tensors[4])

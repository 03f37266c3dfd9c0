"""The argument `optimize`: the same bits with "safe", close numbers with "fast"; what is folded follows the model."""

from __future__ import annotations

import ctypes
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch._subclasses.fake_tensor import FakeTensorMode

import cleave
from cleave import _log
from cleave.optimize import Optimize

LEVELS = ["none", "safe", "fast"]


class Block(nn.Module):
    """What passes look for: batch norms behind convolutions, activations in place, a residual, a head."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.first = nn.Conv2d(3, 16, 3, padding=1, bias=False)
        self.norm = nn.BatchNorm2d(16)
        self.second = nn.Conv2d(16, 16, 3, padding=1)
        self.norm2 = nn.BatchNorm2d(16, affine=False)
        self.head = nn.Linear(16, 5)
        for norm in (self.norm, self.norm2):
            assert norm.running_mean is not None
            assert norm.running_var is not None
            norm.running_mean.normal_()
            norm.running_var.uniform_(0.5, 2)

    def forward(self, x: Tensor) -> Tensor:
        y = F.relu_(self.norm(self.first(x)))
        y = F.relu(self.norm2(self.second(y)) + y)
        return self.head(F.dropout(y.mean((2, 3)), training=False))


def close(got: Tensor, want: Tensor) -> None:
    torch.testing.assert_close(got, want, rtol=1e-4, atol=1e-5)


def capture(level: str | Optimize, batch: Any = None) -> tuple[Block, cleave.Plan]:
    net = Block().eval()
    return net, cleave.capture(
        net, torch.rand(4, 3, 8, 8), optimize=Optimize(level, off=("native",)), dynamic_batch=batch
    )


@pytest.mark.parametrize("level", LEVELS)
@pytest.mark.parametrize("batch", [None, (2, 16)])
@torch.no_grad()
def test_numbers(level: str, batch: tuple[int, int] | None) -> None:
    net, plan = capture(level, batch)
    for rows in (4,) if batch is None else (2, 4, 9):
        x = torch.rand(rows, 3, 8, 8)
        close(plan(x), net(x))
        assert level == "fast" or torch.equal(plan(x), net(x))


@pytest.mark.parametrize("level", LEVELS)
def test_with_grad_the_captured_operators_run(level: str) -> None:
    net, plan = capture(level)
    x = torch.rand(4, 3, 8, 8)
    assert torch.equal(plan(x), net(x))
    plan(x).sum().backward()
    got = [p.grad for p in net.parameters()]
    net.zero_grad()
    net(x).sum().backward()
    for a, p in zip(got, net.parameters(), strict=True):
        assert a is not None
        assert p.grad is not None
        assert torch.equal(a, p.grad)


def scale_weight(net: Block) -> None:
    net.first.weight.mul_(2)


def scale_through_data(net: Block) -> None:
    net.first.weight.data.mul_(2)


def other_statistics(net: Block) -> None:
    assert net.norm.running_mean is not None
    net.norm.running_mean.add_(1)


def other_parameter(net: Block) -> None:
    net.head.weight = nn.Parameter(torch.randn(5, 16))


def other_data(net: Block) -> None:
    net.head.weight.data = torch.randn(5, 16)


def turned_data(net: Block) -> None:
    net.second.weight.data = net.second.weight.data.transpose(0, 1)


def loaded_state(net: Block) -> None:
    net.load_state_dict({k: v + 1 if v.is_floating_point() else v for k, v in net.state_dict().items()})


def optimizer_step(net: Block) -> None:
    with torch.enable_grad():
        net(torch.rand(2, 3, 8, 8)).sum().backward()
    torch.optim.SGD(net.parameters(), lr=0.1).step()


CHANGES = [
    scale_weight,
    scale_through_data,
    other_statistics,
    other_parameter,
    other_data,
    turned_data,
    loaded_state,
    optimizer_step,
]


@pytest.mark.parametrize("change", CHANGES)
@pytest.mark.parametrize("level", LEVELS)
@torch.no_grad()
def test_changes_of_the_model_are_seen(level: str, change: Callable[[Block], None]) -> None:
    net, plan = capture(level)
    x = torch.rand(4, 3, 8, 8)
    before = plan(x)
    change(net)
    after = plan(x)
    close(after, net(x))
    assert not torch.equal(before, after)


def table(x: Tensor) -> Tensor:
    """A part that is the same in every run: the prelude."""
    steps = torch.arange(8.0).mul(0.5).sin().reshape(8, 1)
    return x @ steps


@torch.no_grad()
def test_what_is_the_same_in_every_run_is_made_once() -> None:
    x = torch.rand(3, 8)
    plan = cleave.capture(table, x)
    assert "prelude 4" in plan.optimizations()
    for _ in range(3):
        assert torch.equal(plan(x), table(x))
    assert "prelude" not in cleave.capture(table, x, optimize="none").optimizations()
    assert "prelude" not in cleave.capture(table, x, optimize=Optimize("safe", ("prelude",))).optimizations()


@pytest.mark.parametrize("level", LEVELS)
@torch.no_grad()
def test_what_is_made_once_with_sizes_that_change(level: str) -> None:
    plan = cleave.capture(table, torch.rand(3, 8), optimize=Optimize(level, off=("native",)), dynamic_batch=(1, 16))
    assert ("prelude 4" in plan.optimizations()) == (level != "none")
    for rows in (1, 2, 9):
        x = torch.rand(rows, 8)
        assert torch.equal(plan(x), table(x))


KNOWN = torch.ones(4)


def asks_known(x: Tensor) -> Tensor:
    return x.relu() if bool((KNOWN > 0).all()) else x.neg()


@torch.no_grad()
def test_guards_on_constants_are_checked_when_these_change() -> None:
    x = torch.rand(3, 4)
    plan = cleave.capture(asks_known, x, on_guard="raise")
    assert "prelude 3" in plan.optimizations()
    assert torch.equal(plan(x), asks_known(x))
    try:
        KNOWN[0] = -1
        with pytest.raises(cleave.GuardError):
            plan(x)
    finally:
        KNOWN[0] = 1
    assert torch.equal(plan(x), asks_known(x))


def gives_table(x: Tensor) -> tuple[Tensor, Tensor]:
    steps = torch.arange(8.0).mul(0.5)
    return x + steps, steps


@torch.no_grad()
def test_an_output_that_the_caller_writes_is_made_anew() -> None:
    x = torch.rand(3, 8)
    plan = cleave.capture(gives_table, x)
    plan(x)[1].zero_()
    assert torch.equal(plan(x)[1], gives_table(x)[1])
    assert torch.equal(plan(x)[0], gives_table(x)[0])


def writes_table(x: Tensor) -> Tensor:
    steps = torch.arange(8.0).mul(0.5)
    steps[0] = x.sum()
    return x + steps


@torch.no_grad()
def test_what_the_forward_writes_is_made_anew() -> None:
    x = torch.rand(3, 8)
    plan = cleave.capture(writes_table, x)
    for _ in range(3):
        x = torch.rand(3, 8)
        assert torch.equal(plan(x), writes_table(x))


@torch.no_grad()
def test_random_numbers_are_drawn_as_before() -> None:
    def noisy(x: Tensor) -> Tensor:
        torch.rand(3)  # nobody reads it, but what follows is other for it
        return x + torch.rand(3, 8)

    x = torch.rand(3, 8)
    for level in LEVELS:
        plan = cleave.capture(noisy, x, optimize=Optimize(level, off=("native",)))
        torch.manual_seed(1)
        want = noisy(x)
        torch.manual_seed(1)
        assert torch.equal(plan(x), want)


@torch.no_grad()
def test_a_model_that_counts_is_run_once_a_call() -> None:
    class Counter(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.register_buffer("calls", torch.zeros(()))
            self.conv = nn.Conv2d(1, 2, 3)

        def forward(self, x: Tensor) -> Tensor:
            self.calls += 1
            return self.conv(x) + self.calls

    net = Counter().eval()
    x = torch.rand(1, 1, 5, 5)
    plan = cleave.capture(net, x, optimize=Optimize("fast", off=("native",)))
    for n in (1, 2, 3):
        plan(x)
        assert net.calls == n
    assert "cannot be run twice" in plan.optimizations()


@pytest.mark.parametrize("level", LEVELS)
@torch.no_grad()
def test_threads_share_a_plan(level: str) -> None:
    net, plan = capture(level)
    xs = [torch.rand(4, 3, 8, 8) for _ in range(8)]
    want = [net(x) for x in xs]
    found: dict[int, Tensor] = {}

    def work(i: int) -> None:
        with torch.no_grad():
            for _ in range(5):
                found[i] = plan(xs[i])

    threads = [threading.Thread(target=work, args=(i,)) for i in range(8)]
    for t in threads:
        t.start()
    for t in threads:
        t.join()
    for i, w in enumerate(want):
        close(found[i], w)


@pytest.mark.parametrize("level", LEVELS)
@torch.no_grad()
def test_splits(level: str) -> None:
    net = Block().eval()
    spec = cleave.SplitSpec(boundary="50%", dynamic_batch=(2, 16))
    runtime = cleave.prepare_split(
        net, example_inputs=(torch.rand(4, 3, 8, 8),), split=spec, optimize=Optimize(level, off=("native",))
    )
    for rows in (2, 4, 7):
        x = torch.rand(rows, 3, 8, 8)
        got = runtime.run_suffix(runtime.run_prefix(x))
        close(got, net(x))
        assert level == "fast" or torch.equal(got, net(x))
    net.second.weight.mul_(3)
    close(runtime.run_suffix(runtime.run_prefix(x)), net(x))


@pytest.mark.parametrize("level", LEVELS)
@torch.no_grad()
def test_files(level: str, tmp_path: Path) -> None:
    net, plan = capture("safe", (2, 16))
    plan.save(tmp_path / "net.clv")
    loaded = cleave.load(tmp_path / "net.clv", optimize=level)
    for rows in (4, 2, 7, 4):
        x = torch.rand(rows, 3, 8, 8)
        close(loaded(x), net(x))
        assert level == "fast" or torch.equal(loaded(x), net(x))
    assert ("fast: " in loaded.optimizations()) == (level == "fast")
    net.first.weight.mul_(2)
    loaded.load_state_dict(net.state_dict(), strict=False)
    close(loaded(x), net(x))


def test_modes_of_plans(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(_log, "_warned", set())  # each reason is told once in a process
    x = torch.rand(3, 8)
    with pytest.raises(ValueError, match="mode must be one of generated_eager, cuda_graph"):
        cleave.capture(table, x, mode="compiled")

    def run() -> Tensor:  # where there is a GPU it is the inputs that are not on it
        return cleave.capture(table, x, mode="cuda_graph")(x)

    with torch.no_grad(), pytest.warns(cleave.CleaveWarning, match="no CUDA graph"):
        assert torch.equal(run(), table(x))


@pytest.mark.parametrize("given", ["faster", "", Optimize("safe", ("no such pass",)), Optimize("fast", "fuse")])
def test_what_there_is_not(given: Any) -> None:
    with pytest.raises(ValueError, match=r"not|no pass"):
        cleave.capture(table, torch.rand(3, 8), optimize=given)
    with pytest.raises(ValueError, match=r"not|no pass"):
        cleave.prepare_split(table, example_inputs=(torch.rand(3, 8),), split=cleave.SplitSpec("50%"), optimize=given)


STEPS = torch.arange(4.0)


def asks_size(x: Tensor, y: Tensor) -> Tensor:
    return x + STEPS * 2 if y.shape[0] == 3 else x - STEPS * 2


@torch.no_grad()
def test_inputs_that_no_operator_reads_are_checked() -> None:
    x = torch.ones(4)
    plan = cleave.capture(asks_size, (x, torch.ones(3)))
    assert "prelude" in plan.optimizations()
    assert torch.equal(plan(x, torch.ones(3)), asks_size(x, torch.ones(3)))
    with pytest.raises(cleave.InputError):
        plan(x, torch.ones(5))


def writes_between(x: Tensor, y: Tensor) -> Tensor:
    before = y + 1
    x.add_(torch.arange(3.0) * 2)
    return before + (y + 1)


@torch.no_grad()
def test_inputs_that_share_memory_are_refused_where_one_is_written() -> None:
    plan = cleave.capture(writes_between, (torch.ones(3), torch.ones(3)))
    assert "prelude" in plan.optimizations()
    x = torch.ones(3)
    with pytest.raises(cleave.InputError, match="share memory"):
        plan(x, x)


@pytest.mark.parametrize("size", [5, 100_000])
@torch.no_grad()
def test_constants_that_others_write_without_a_trace(size: int) -> None:
    steps, x = torch.ones(size), torch.zeros(size)
    plan = cleave.capture(lambda x: x + steps * 2, x)
    for place in (2, size - 2):
        assert torch.equal(plan(x), x + steps * 2)
        steps.numpy()[place] = 7
    steps.data[1] = 3
    assert torch.equal(plan(x), x + steps * 2)


@torch.no_grad()
def test_constants_that_are_parts_of_others() -> None:
    steps, x = torch.ones(10), torch.zeros(5)
    part = steps[::2]
    plan = cleave.capture(lambda x: x + part * 2, x)
    for place in (0, 4, 8):
        assert torch.equal(plan(x), x + part * 2)
        steps.numpy()[place] = 7
    assert torch.equal(plan(x), x + part * 2)


@pytest.mark.parametrize("level", LEVELS)
@torch.inference_mode()
def test_parameters_without_versions(level: str) -> None:
    net, plan = capture(level)
    x = torch.rand(4, 3, 8, 8)
    plan(x)
    net.first.weight[5].mul_(3)
    close(plan(x), net(x))


@torch.no_grad()
def test_what_is_made_within_a_mode_is_not_kept() -> None:
    x = torch.rand(3, 8)
    plan = cleave.capture(table, x)
    with FakeTensorMode() as mode:
        plan(mode.from_tensor(x))
    assert torch.equal(plan(x), table(x))


@torch.no_grad()
def test_operators_of_others_are_called_once_a_run() -> None:
    calls = []

    @torch.library.custom_op("cleave_tests::counted_double", mutates_args=())
    def counted_double(x: Tensor) -> Tensor:
        calls.append(1)
        return x * 2

    net = nn.Sequential(nn.Conv2d(3, 16, 3), nn.BatchNorm2d(16)).eval()
    x = torch.rand(1, 3, 8, 8)
    counts = []
    for level in ("none", "fast"):
        calls.clear()
        cleave.capture(lambda x: counted_double(net(x)), x, optimize=Optimize(level, off=("native",)))(x)
        counts.append(len(calls))
    assert counts[0] == counts[1]


# ---- choices that are kept -------------------------------------------------------------------------------------------


def fast_plan() -> str:
    torch.manual_seed(0)
    net = nn.Sequential(nn.Conv2d(3, 32, 3), nn.BatchNorm2d(32), nn.ReLU(), nn.Conv2d(32, 32, 3), nn.ReLU()).eval()
    x = torch.rand(4, 3, 32, 32)
    with torch.no_grad():
        plan = cleave.capture(net, x, optimize=Optimize("fast", off=("native",)))
        close(plan(x), net(x))
    assert plan.optimizations().rstrip() in plan.inspect().replace("\n  ", "\n")
    return plan.optimizations()


def runs(report: str) -> str:
    return next(line.partition(":")[0] for line in report.splitlines() if "runs" in line)


def test_a_choice_is_made_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = tmp_path / "cache"
    monkeypatch.setenv("CLEAVE_CACHE", str(folder))
    first = fast_plan()
    assert "before" not in first
    again = fast_plan()
    assert "(as measured before)" in again
    assert runs(first) == runs(again)
    torch.set_num_threads(2)
    try:
        assert "before" not in fast_plan(), "with other threads another way may be faster"
    finally:
        torch.set_num_threads(1)
    for file in folder.iterdir():
        file.write_bytes(b"no such thing")
    assert "before" not in fast_plan()
    assert "before" in fast_plan()
    folder.chmod(0o777)
    assert "before" not in fast_plan(), "what others may write is not trusted"


# ---- what others hold ------------------------------------------------------------------------------------------------

SEEN: list[Tensor] = []


@torch.library.custom_op("cleave_optimize_test::note", mutates_args=())
def note(x: Tensor) -> Tensor:
    SEEN.append(x)
    return torch.zeros(())


@note.register_fake
def _(x: Tensor) -> Tensor:
    return x.new_zeros(())


@pytest.mark.parametrize("copies", [False, True])
def test_what_an_operator_of_others_got_stays_as_it_was(copies: bool) -> None:
    def forward(x: Tensor) -> Tensor:
        h = x @ x
        return h.relu() + note(h.clone() if copies else h)

    x = torch.randn(8, 8)
    with torch.no_grad():
        plan = cleave.capture(forward, x)
        SEEN.clear()
        plan(x)
        plan(2 * x)
    assert torch.equal(SEEN[0], x @ x), "relu would have written over it"
    assert torch.equal(SEEN[1], 4 * (x @ x))


def heap() -> int:
    """Bytes in use, by the C library."""

    class Info(ctypes.Structure):
        _fields_ = [(f"field{i}", ctypes.c_size_t) for i in range(10)]

    libc = ctypes.CDLL(None)
    libc.mallinfo2.restype = Info
    info = libc.mallinfo2()
    return int(info.field7 + info.field4)  # in the heap, and mapped


class Placed(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.lin = nn.Linear(1024, 1024)

    def forward(self, x: Tensor) -> Tensor:
        return torch.relu(self.lin(x)) + torch.arange(x.shape[0], device=x.device)[:, None]


def test_weights_that_change_leave_nothing_behind_for_sizes() -> None:
    net = Placed().eval()
    x = torch.randn(4, 1024)
    with torch.no_grad():
        plan = cleave.capture(net, x, dynamic_batch=(2, 64), optimize=Optimize("fast", ("channels_last",)))
        before = 0
        for i in range(8):
            net.lin.weight.mul_(0.9)
            close(plan(x), net(x))
            before = heap() if i == 1 else before
        assert heap() - before < 8 << 20, "packed weights of 4 MB are held for each change"


def test_outputs_are_no_views_where_those_of_eager_are_none() -> None:
    net = nn.Linear(4, 1).eval()

    def forward(x: Tensor) -> Tensor:
        return torch.sigmoid(net(x).squeeze(-1))

    x, shift = torch.randn(3, 4), torch.zeros(3, requires_grad=True)
    with torch.no_grad():
        plan = cleave.capture(forward, x)
        assert "in_place 1" in plan.optimizations()
        y, want = plan(x), forward(x)
    assert y._base is None
    y += shift  # a view that was made without grad would refuse
    assert y.requires_grad
    assert torch.equal(y.detach(), want)

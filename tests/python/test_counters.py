"""Numbers that a forward reads from its own state: counters, warm-up schedules, averages over all calls."""

from __future__ import annotations

import copy
import random
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from helpers import Fn
from torch import Tensor, nn
from torch.nn import functional as F

import cleave

CALLS = 12
STATE = ("running_mean", "running_var", "num_batches_tracked")


def norms(dims: int) -> nn.Module:
    """Two layers whose running statistics are plain averages of all batches."""
    norm = (nn.BatchNorm1d, nn.BatchNorm2d, nn.BatchNorm3d)[dims - 1]
    conv = (nn.Conv1d, nn.Conv2d, nn.Conv3d)[dims - 1]
    torch.manual_seed(dims)
    return nn.Sequential(
        conv(3, 4, 3), norm(4, momentum=None), nn.ReLU(), conv(4, 5, 1), norm(5, momentum=None), nn.Flatten()
    )


def images(dims: int, rows: int = 3) -> Tensor:
    return torch.randn(rows, 3, *[6] * dims)


def same_state(a: nn.Module, b: nn.Module) -> None:
    for (name, x), (_, y) in zip(a.state_dict().items(), b.state_dict().items(), strict=True):
        assert torch.equal(x, y), name


def together(net: nn.Module, run: Callable[..., Any], inputs: Callable[[], Tensor], twin: nn.Module) -> None:
    """Many calls of what was made of `net`, beside as many of its twin."""
    for call in range(CALLS):
        x = inputs()
        want, got = twin(x), run(x.clone())
        assert torch.equal(want, got), f"call {call}"
        same_state(twin, net)


@pytest.mark.parametrize("grad", [False, True], ids=["without grad", "with grad"])
@pytest.mark.parametrize("sizes", [None, (1, 8)], ids=["one size", "any batch"])
@pytest.mark.parametrize("dims", [1, 2, 3])
def test_batchnorm_that_averages_over_all_calls_is_replayed(dims: int, sizes: Any, grad: bool) -> None:
    net = norms(dims)
    twin = copy.deepcopy(net)
    with torch.set_grad_enabled(grad):
        plan = cleave.capture(net, images(dims), dynamic_batch=sizes)
        same_state(net, twin)
        together(net, plan, lambda: images(dims, random.randint(1, 8) if sizes else 3), twin)


def test_gradients_through_such_a_batchnorm_are_those_of_eager() -> None:
    net = norms(2)
    twin = copy.deepcopy(net)
    plan = cleave.capture(net, images(2))
    for _ in range(CALLS):
        x = images(2)
        for model in (twin, plan):
            model(x.clone()).square().sum().backward()
        for p, q in zip(twin.parameters(), net.parameters(), strict=True):
            assert torch.equal(p.grad, q.grad)


def test_a_counter_that_was_set_anew_is_followed() -> None:
    net = norms(2)
    plan = cleave.capture(net, images(2))
    for _ in range(3):
        plan(images(2))
    for module in (net[1], net[4]):
        module.reset_running_stats()
    net[4].num_batches_tracked.fill_(10_000_000)  # each layer has a counter of its own
    twin = copy.deepcopy(net)
    together(net, plan, lambda: images(2), twin)


@pytest.mark.parametrize("at", ["after:0", "after:1", "after:3"])
def test_splits_run_and_train_it(at: str) -> None:
    net = norms(2)
    twin = copy.deepcopy(net)
    spec = cleave.SplitSpec(boundary=at, dynamic_batch=(1, 8), trainable=True)
    runtime = cleave.prepare_split(net, example_inputs=images(2), split=spec)
    same_state(net, twin)
    with torch.no_grad():
        together(
            net, lambda x: runtime.run_suffix(runtime.run_prefix(x)), lambda: images(2, random.randint(1, 8)), twin
        )
    mine = torch.optim.SGD(net.parameters(), 0.1)
    other = torch.optim.SGD(twin.parameters(), 0.1)
    for _ in range(CALLS):
        x, target = images(2, random.randint(1, 8)), torch.randn(())
        other.zero_grad()
        mine.zero_grad()
        F.mse_loss(twin(x), target.expand_as(twin[5](torch.zeros(len(x), 5, 4, 4)))).backward()
        boundary = runtime.run_training_prefix(x.clone())
        runtime.train_suffix(boundary, target.expand(len(x), 80))
        runtime.backward_prefix(boundary)
        other.step()
        mine.step()
        same_state(net, twin)


def test_the_debug_interpreter_runs_it() -> None:
    net = norms(1)
    twin = copy.deepcopy(net)
    spec = cleave.SplitSpec(boundary="after:1")
    runtime = cleave.prepare_split(net, example_inputs=images(1), split=spec, mode="debug_interpreter")
    with torch.no_grad():
        together(net, lambda x: runtime.run_suffix(runtime.run_prefix(x)), lambda: images(1), twin)


def from_source(runtime: cleave.SplitRuntime, half: str, state: dict[str, Tensor]) -> nn.Module:
    names: dict[str, Any] = {}
    exec(runtime.source(half), names)
    part: nn.Module = names[half.capitalize()]()
    part.load_state_dict(state, strict=False)
    return part


def test_generated_source_runs_it() -> None:
    net = norms(1)
    spec = cleave.SplitSpec(boundary="after:2")
    runtime = cleave.prepare_split(net, example_inputs=images(1), split=spec)
    prefix, suffix = (from_source(runtime, half, net.state_dict()) for half in ("prefix", "suffix"))
    for _ in range(CALLS):
        x = images(1)
        assert torch.equal(suffix(*prefix(x))[0], net(x))


def test_generated_source_takes_the_example_of_a_number_that_is_read() -> None:
    x = torch.rand(3, 4)
    spec = cleave.SplitSpec(boundary="after:mul")
    runtime = cleave.prepare_split(lambda x: (x * x.max().item()).relu(), example_inputs=x, split=spec)
    prefix = from_source(runtime, "prefix", {})
    assert torch.equal(prefix(x)[0], x * x.max())
    with pytest.raises(RuntimeError, match="another value"):
        prefix(x * 1000)


def test_pipelines_run_and_train_it() -> None:
    net = norms(2)
    twin = copy.deepcopy(net)
    piped = cleave.pipe_model(net, example_inputs=images(2), nparts=3, profile="estimate")
    assert piped.nstages >= 3
    for _ in range(CALLS):
        x = images(2, random.randint(1, 8))
        want, got = twin(x), piped(x.clone())
        assert torch.equal(want, got)
        for y in (want, got):
            y.square().sum().backward()
        for p, q in zip(twin.parameters(), net.parameters(), strict=True):
            assert torch.equal(p.grad, q.grad)
        same_state(net, twin)


@pytest.mark.parametrize("what", ["plan", "split", "pipe", "trace"])
def test_files_run_it(what: str, tmp_path: Path) -> None:
    net, path = norms(2), tmp_path / "net.clv"
    with torch.no_grad():
        if what == "plan":
            cleave.capture(net, images(2), dynamic_batch=(1, 8)).save(path)
        elif what == "split":
            spec = cleave.SplitSpec(boundary="after:2", dynamic_batch=(1, 8))
            cleave.prepare_split(net, example_inputs=images(2), split=spec).save(path)
        elif what == "pipe":
            cleave.pipe_model(net.eval(), example_inputs=images(2), nparts=2, profile="estimate").save(path)
        else:
            cleave.trace(net, images(2), dynamic_batch=(1, 8), dryrun=True).save(path)
        loaded = cleave.load(path)
        for _ in range(CALLS):
            x = images(2, random.choice((1, 2, 4, 8)))
            assert torch.equal(loaded(x), net(x))


class Step(nn.Module):
    """Counts its calls and does something with the number."""

    def __init__(self, use: Callable[[Tensor, Tensor], Any], start: float = 0, dtype: torch.dtype = torch.long) -> None:
        super().__init__()
        self.use = use
        self.lin = nn.Linear(4, 4)
        self.register_buffer("step", torch.tensor(start, dtype=dtype))

    def forward(self, x: Tensor) -> Any:
        self.step += 1
        return self.use(self.lin(x), self.step)


FOLLOWED = {
    "a rate": lambda x, n: x * (1 / (n.item() + 1)),
    "a divisor": lambda x, n: x / n.item(),
    "in front": lambda x, n: n.item() * x,
    "from the left": lambda x, n: 2.0 / float(n) - x,
    "sums": lambda x, n: x * (0.5 * n.item() + 3 - n.item() / 7),
    "alpha": lambda x, n: torch.add(x, x, alpha=1 / n.item()),
    "twice": lambda x, n: x * (1 / n.item()) + x * (1 / n.item()),
    "in place": lambda x, n: x.clone().lerp_(torch.ones_like(x), 1 / (1 + n.item())),
    "negative": lambda x, n: x * -n.item(),
    "as int": lambda x, n: x * int(n),
    "a dropout": lambda x, n: F.dropout(x, 1 / (n.item() + 1)),
    "a constant of it": lambda x, n: x + torch.full((4,), 1 / n.item()),
    "whole numbers": lambda x, n: x * (n.item() // 2 + n.item() * 3),
}


@pytest.mark.parametrize("dtype", [torch.long, torch.int32, torch.float32, torch.float64], ids=str)
@pytest.mark.parametrize("use", FOLLOWED.values(), ids=FOLLOWED)
def test_what_is_computed_from_a_counter_is_computed_by_each_run(use: Any, dtype: torch.dtype) -> None:
    net = Step(use, dtype=dtype)
    twin = copy.deepcopy(net)
    if dtype.is_floating_point and use in (FOLLOWED["as int"], FOLLOWED["whole numbers"]):
        with pytest.raises(cleave.CaptureError, match="second call"):
            cleave.capture(net, torch.randn(2, 4))
        return
    plan = cleave.capture(net, torch.randn(2, 4))
    for _ in range(CALLS):
        x = torch.randn(2, 4)
        random_state = torch.get_rng_state()
        want = twin(x)
        torch.set_rng_state(random_state)
        assert torch.equal(want, plan(x.clone()))
        same_state(net, twin)


@pytest.mark.parametrize("start", [0, 1, 5, 999])
def test_counters_may_be_anywhere(start: int) -> None:
    net = Step(lambda x, n: x / (n.item() + 2), start)
    twin = copy.deepcopy(net)
    plan = cleave.capture(net, torch.randn(2, 4), dynamic_batch=(1, 8))
    together(net, plan, lambda: torch.randn(random.randint(1, 8), 4), twin)


BRANCHES = {
    "below": lambda x, n: x * 2 if n.item() < 7 else x,
    "warm-up": lambda x, n: x * (n.item() / 6 if n.item() < 6 else 1.0),
    "the smaller": lambda x, n: x * min(1.0, n.item() / 5),
    "every fifth": lambda x, n: x + 1 if n.item() % 5 == 0 else x,
    "one of them": lambda x, n: x + 1 if n.item() == 9 else x,
    "a rate, and one of them": lambda x, n: x / n.item() + (1 if float(n) == 8.0 else 0),
    "of a rate": lambda x, n: x * 2 if 1 / n.item() > 0.15 else x,
    "with and": lambda x, n: x * 2 if n.item() > 0 and not n.item() > 4 else x,
    "truth": lambda x, n: x * 2 if 6 - n.item() else x,
}


@pytest.mark.parametrize("use", BRANCHES.values(), ids=BRANCHES)
def test_a_branch_on_a_counter_holds_until_it_goes_the_other_way(use: Any) -> None:
    """Never the numbers of the other side: the run is refused where eager takes it."""
    net = Step(use)
    twin = copy.deepcopy(net)
    plan = cleave.capture(net, torch.randn(2, 4), on_guard="raise")
    for call in range(CALLS):
        x = torch.randn(2, 4)
        want = twin(x)
        try:
            got = plan(x.clone())
        except cleave.GuardError:
            assert call >= 2
            return
        assert torch.equal(want, got), f"call {call}"
    raise AssertionError("it takes both sides within these calls")


def helper(n: Tensor) -> float:
    return float(n) ** 0.5


REFUSED = {
    "a branch right away": lambda x, n: x * 2 if n.item() < 2 else x,
    "every second": lambda x, n: x + 1 if n.item() % 2 else x,
    "a power": lambda x, n: x * n.item() ** -0.5,
    "a function of math": lambda x, n: x * __import__("math").cos(n.item()),
    "a list": lambda x, n: x * [1.0, 2.0, 3.0, 4.0, 5.0, 6.0][n.item()],
    "a size": lambda x, n: x.repeat(n.item(), 1),
    "text": lambda x, n: x * len(str(10 ** n.item())),
    "an output": lambda x, n: (x, n.item()),
    "a helper": lambda x, n: x * helper(n),
    "tolist": lambda x, n: x * n.tolist(),
}


@pytest.mark.parametrize("sizes", [None, (1, 8)], ids=["one size", "any batch"])
@pytest.mark.parametrize("use", REFUSED.values(), ids=REFUSED)
def test_what_no_run_can_compute_is_refused_at_capture(use: Any, sizes: Any) -> None:
    net = Step(use)
    with pytest.raises(cleave.CaptureError, match=r"step|refuses|item|list"):
        cleave.capture(net, torch.randn(2, 4), dynamic_batch=sizes)
    assert net.step == 0
    spec = cleave.SplitSpec(boundary="50%", dynamic_batch=sizes)
    with pytest.raises((cleave.CaptureError, cleave.SplitError)):
        cleave.prepare_split(net, example_inputs=torch.randn(2, 4), split=spec)
    assert net.step == 0


def test_a_division_by_zero_stays_an_error() -> None:
    net = Step(lambda x, n: x * (1 / (6 - n.item())))
    plan = cleave.capture(net, torch.randn(2, 4))
    for _ in range(5):
        plan(torch.randn(2, 4))
    with pytest.raises((ZeroDivisionError, cleave.GuardError)):
        plan(torch.randn(2, 4))


def test_a_layer_that_sets_itself_up_in_its_first_call_says_so() -> None:
    class ActNorm(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.register_buffer("ready", torch.tensor(0))
            self.register_buffer("shift", torch.zeros(4))

        def forward(self, x: Tensor) -> Tensor:
            if self.ready.item() == 0:
                self.shift.copy_(x.mean(0))
                self.ready.fill_(1)
            return x - self.shift

    net = ActNorm()
    with pytest.raises(cleave.CaptureError, match="second call"):
        cleave.capture(net, torch.randn(3, 4))
    net(torch.randn(3, 4))
    plan = cleave.capture(net, torch.randn(3, 4))
    x = torch.randn(3, 4)
    for _ in range(3):
        assert torch.equal(plan(x), net(x))


def test_a_counter_that_is_assigned_anew_is_followed() -> None:
    class Assigned(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.register_buffer("n", torch.zeros(1, dtype=torch.long))

        def forward(self, x: Tensor) -> Tensor:
            self.n = self.n + 1
            return x / self.n.item()

    net = Assigned()
    twin = copy.deepcopy(net)
    together(net, cleave.capture(net, torch.randn(2, 4)), lambda: torch.randn(2, 4), twin)


def test_two_inputs_that_lie_on_one_another_are_refused_when_one_is_written() -> None:
    """A capture looks at copies of its inputs, which a call would not get."""
    x = torch.randn(4)
    with pytest.raises(cleave.CaptureError, match="memory"):
        cleave.capture(lambda a, b: a.add_(1) * b, (x, x))


def test_other_code_is_left_alone() -> None:
    """What stands in for numbers is there for the one forward, and for its thread."""
    net = norms(1)
    seen: list[Any] = []
    net[1].register_forward_pre_hook(
        lambda *_: seen.append((type(net[1].num_batches_tracked.item()), isinstance(1.0, float)))
    )
    cleave.capture(net, images(1))
    assert "float" not in vars(nn.modules.batchnorm)
    assert torch.tensor(2).item.__name__ == "item"
    assert type(torch.tensor(2).item()) is int


def test_a_model_without_counters_is_recorded_no_more_often(monkeypatch: pytest.MonkeyPatch) -> None:
    from cleave import _capture

    count = 0
    record = _capture.Capture._record

    def counted(self: Any, *args: Any) -> Any:
        nonlocal count
        count += 1
        return record(self, *args)

    monkeypatch.setattr(_capture.Capture, "_record", counted)
    cleave.capture(nn.Sequential(nn.Linear(4, 4), nn.BatchNorm1d(4)), torch.randn(3, 4))
    assert count == 2
    count = 0
    cleave.capture(Fn(lambda lin, x: lin(x)), torch.randn(3, 4))
    assert count == 2

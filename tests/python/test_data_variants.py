"""Calls whose data leads the forward another way: a plan for that way serves them, or they are refused."""

from __future__ import annotations

import copy
import itertools
import logging
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from crafted import rewrite
from torch import Tensor, nn

import cleave
from cleave.optimize import Optimize

pytestmark = pytest.mark.integration

X = torch.randn(4, 4, generator=torch.Generator().manual_seed(1))
FULL = torch.ones(4, dtype=torch.bool)
PADDED = torch.tensor([False, True, True, True])
CALLS = [(X, FULL), (X, PADDED), (X, FULL), (X, PADDED), (X + 1, PADDED)]


class Asks(nn.Module):
    """Statistics and random draws come before the question, and after it. late: the question comes behind the cut, and
    needs a tensor that only the suffix has."""

    def __init__(self, late: bool) -> None:
        super().__init__()
        self.late = late
        self.first, self.one, self.other, self.last = (nn.Linear(4, 4) for _ in range(4))
        self.norm, self.norm2 = nn.BatchNorm1d(4), nn.BatchNorm1d(4)
        self.register_buffer("yes", torch.ones(1, dtype=torch.bool))

    def forward(self, x: Tensor, mask: Tensor) -> Tensor:
        full = None if self.late else bool(mask.all())
        x = F.dropout(self.norm(self.first(x)), 0.5, self.training)
        x = torch.relu(x)
        if self.late:
            full = bool((mask & self.yes).all())
        x = self.one(x) if full else self.other(x).tanh()
        return self.last(self.norm2(x))


def twins(late: bool, training: bool) -> tuple[Asks, Asks]:
    torch.manual_seed(0)
    model = Asks(late).train(training)
    return model, copy.deepcopy(model)


def same_state(model: nn.Module, twin: nn.Module) -> None:
    want = twin.state_dict()
    for name, t in model.state_dict().items():
        assert torch.equal(t, want[name]), name


def same_calls(
    run: Callable[..., Any], model: nn.Module, twin: nn.Module, calls: Any = CALLS, exact: bool = True
) -> None:
    for i, inputs in enumerate(calls):
        torch.manual_seed(i)
        got, after = run(*inputs), torch.get_rng_state()
        torch.manual_seed(i)
        want = twin(*inputs)
        assert torch.equal(got, want) if exact else torch.allclose(got, want, atol=1e-5), f"call {i}"
        assert torch.equal(after, torch.get_rng_state()), f"call {i}: the generator"
        same_state(model, twin)


both = pytest.mark.parametrize("late", [False, True], ids=["early", "late"])
modes = pytest.mark.parametrize("training", [False, True], ids=["eval", "train"])
sizes = pytest.mark.parametrize("batch", [None, (2, 9)], ids=["one size", "sizes"])


@both
@modes
@sizes
@pytest.mark.parametrize("level", ["none", "safe", "fast"])
def test_a_plan_goes_the_way_of_its_data(late: bool, training: bool, batch: Any, level: str) -> None:
    model, twin = twins(late, training)
    plan = cleave.capture(model, (X, FULL), dynamic_batch=batch, optimize=Optimize(level, off=("native",)))
    more = [(torch.cat([X, X]), torch.cat([FULL, PADDED])), (torch.cat([X, X]), torch.cat([FULL, FULL]))]
    same_calls(plan, model, twin, CALLS + (more if batch else []))
    assert len(plan.every()) == 2


@both
@modes
def test_an_error_leaves_no_trace_and_says_what_it_is_about(late: bool, training: bool) -> None:
    model, twin = twins(late, training)
    plan = cleave.capture(model, (X, FULL), on_guard="raise")
    torch.manual_seed(5)
    before = torch.get_rng_state()
    with pytest.raises(cleave.GuardError) as caught:
        plan(X, PADDED)
    error = caught.value
    assert (error.expected, error.seen, error.op) == ("true", "false", "aten::is_nonzero")
    assert error.undone
    assert str(error.source).startswith("test_data_variants.py:")
    assert torch.equal(before, torch.get_rng_state())
    same_state(model, twin)
    assert len(plan.every()) == 1


@both
@modes
@sizes
def test_a_split_goes_the_way_of_its_data(late: bool, training: bool, batch: Any) -> None:
    model, twin = twins(late, training)
    spec = cleave.SplitSpec(boundary="after:relu", dynamic_batch=batch)
    runtime = cleave.prepare_split(model, example_inputs=(X, FULL), split=spec)
    with torch.no_grad():
        same_calls(lambda *inputs: runtime.run_suffix(runtime.run_prefix(*inputs)), model, twin)
    assert any(line.startswith("other data") for line in runtime.variants)


@both
@sizes
def test_a_split_trains_along_every_way(late: bool, batch: Any) -> None:
    model, twin = twins(late, True)
    spec = cleave.SplitSpec(boundary="after:relu", dynamic_batch=batch, trainable=True)
    runtime = cleave.prepare_split(model, example_inputs=(X, FULL), split=spec)
    mine, whole = (torch.optim.SGD(m.parameters(), lr=0.1, momentum=0.9) for m in (model, twin))
    for i, (x, mask) in enumerate(CALLS):
        targets = torch.arange(4) % 3
        torch.manual_seed(i)
        boundary = runtime.run_training_prefix(x, mask)
        loss, gradients = runtime.train_suffix(boundary, targets, optimizer=mine)
        runtime.backward_prefix(boundary, gradients, optimizer=mine)
        torch.manual_seed(i)
        whole.zero_grad()
        want = F.cross_entropy(twin(x, mask), targets)
        want.backward()
        whole.step()
        assert torch.equal(loss, want.detach()), f"step {i}"
        same_state(model, twin)


@both
def test_a_boundary_from_elsewhere_finds_the_way_that_was_prepared(late: bool) -> None:
    """The suffix has no inputs to record: it has the way from `variants`, or says what to do."""
    model, _ = twins(late, False)
    spec = cleave.SplitSpec(boundary="after:relu")
    here = cleave.prepare_split(model, example_inputs=(X, FULL), split=spec, variants=[(X, PADDED)])
    there = cleave.prepare_split(model, example_inputs=(X, FULL), split=spec, variants=[{"x": X, "mask": PADDED}])
    alone = cleave.prepare_split(model, example_inputs=(X, FULL), split=spec)
    for inputs in CALLS:
        wire = cleave.BoundaryPayload.from_bytes(here.run_prefix(*inputs).to_bytes())
        with torch.no_grad():
            assert torch.equal(there.run_suffix(wire), model(*inputs))
    wire = cleave.BoundaryPayload.from_bytes(here.run_prefix(X, PADDED).to_bytes())
    with pytest.raises(cleave.CleaveError, match="variants" if late else "does not have"):
        alone.run_suffix(wire)


@both
@sizes
def test_files_hold_every_way(late: bool, batch: Any, tmp_path: Path) -> None:
    model, twin = twins(late, False)
    plan = cleave.capture(model, (X, FULL), dynamic_batch=batch, variants=[(X, PADDED)])
    plan.save(tmp_path / "whole.clv")
    with torch.no_grad():
        same_calls(cleave.load(tmp_path / "whole.clv"), model, twin)
        same_calls(cleave.load(tmp_path / "whole.clv", sandbox=True), model, twin)
    spec = cleave.SplitSpec(boundary="after:relu", dynamic_batch=batch)
    runtime = cleave.prepare_split(model, example_inputs=(X, FULL), split=spec, variants=[(X, PADDED)])
    prefix, suffix = (cleave.load(path) for path in runtime.save(tmp_path / "halves"))
    with torch.no_grad():
        same_calls(lambda *inputs: suffix.run_suffix(prefix.run_prefix(*inputs)), model, twin)


class Less(nn.Module):
    """One way takes less from before the cut than the other."""

    def __init__(self) -> None:
        super().__init__()
        self.relu = nn.ReLU()
        self.register_buffer("yes", torch.ones(1, dtype=torch.bool))

    def forward(self, x: Tensor, mask: Tensor) -> Tensor:
        s, c = x.sin(), x.cos()
        x = self.relu(x)
        return x + s * c if bool((mask & self.yes).all()) else x - s * c


@pytest.mark.parametrize("sandbox", [False, True], ids=["here", "sandbox"])
@pytest.mark.parametrize("first", [0, 1])
def test_a_suffix_takes_its_own_part_of_a_boundary(tmp_path: Path, first: int, sandbox: bool) -> None:
    """The tensors of a boundary are those of the plan that made it; another one may need fewer, or others."""
    spec = cleave.SplitSpec(boundary="after:relu")
    with torch.no_grad():
        runtime = cleave.prepare_split(Less(), example_inputs=(X, FULL), split=spec, variants=[(X, PADDED)])
    halves = [Path(path) for path in runtime.save(tmp_path / "halves")]

    def edit(meta: dict[str, str]) -> None:
        """One of the plans has x alone from before the cut."""
        which = f"cleave.plan.{first}"
        at = meta[which].index("aten::is_nonzero")
        meta[which] = meta[which][:at] + meta[which][at:].replace(
            "aten::mul.Tensor(%2, %3)", "aten::mul.Tensor(%4, %4)"
        )

    for path in halves:
        rewrite(path, edit)
    prefix, suffix = (cleave.load(path, sandbox=sandbox) for path in halves)
    boundary = prefix.run_prefix(X, PADDED)  # by the first plan: the question comes later
    assert set(boundary.tensors) == ({"%1", "%4"} if first == 0 else {"%1", "%2", "%3", "%4"})
    if first == 0:
        with pytest.raises(cleave.GuardError, match="no other plan"):
            suffix.run_suffix(boundary)
        return
    x = X.relu()
    assert torch.equal(suffix.run_suffix(boundary), x - x * x)


def test_a_file_refuses_a_way_that_it_does_not_hold(tmp_path: Path) -> None:
    three = lambda x: x + 1 if x.sum() > 1 else x - 1 if x.sum() < -1 else x * 2  # noqa: E731
    plan = cleave.capture(three, torch.ones(3), variants=[-torch.ones(3)])
    plan.save(tmp_path / "two.clv")
    loaded = cleave.load(tmp_path / "two.clv")
    for x in (torch.ones(3), -torch.ones(3), torch.full((3,), 2.0)):
        assert torch.equal(loaded(x), three(x))
    with pytest.raises(cleave.GuardError, match="no other plan of the file"):
        loaded(torch.zeros(3))


@both
@modes
def test_stages_in_sequence_go_the_way_of_their_data(late: bool, training: bool) -> None:
    model, twin = twins(late, training)
    partition = cleave.pipe_model(model, example_inputs=(X, FULL), nparts=2, profile="estimate")
    same_calls(partition, model, twin)
    strict = cleave.pipe_model(model, example_inputs=(X, FULL), nparts=2, profile="estimate", on_guard="raise")
    with pytest.raises(cleave.GuardError):
        strict(X, PADDED)
    same_state(model, twin)


@both
def test_a_trace_compiles_every_way(late: bool, tmp_path: Path) -> None:
    model, twin = twins(late, False)
    traced = cleave.trace(model, (X, FULL), dryrun=True, variants=[(X, PADDED)])
    traced.save(tmp_path / "traced.clv")
    with torch.no_grad():
        same_calls(traced, model, twin, exact=False)
        same_calls(cleave.load(tmp_path / "traced.clv"), model, twin, exact=False)


def test_the_plans_of_a_traced_model_are_bounded() -> None:
    def model(x: Tensor) -> Tensor:
        return x * int(x[0] * 10)

    traced = cleave.trace(model, torch.ones(3), dryrun=True, max_plans=2)
    with torch.no_grad():
        assert torch.equal(traced(torch.full((3,), 2.0)), torch.full((3,), 40.0))
        with pytest.raises(cleave.GuardError, match="2 plans of model were recorded already"):
            traced(torch.full((3,), 3.0))


def test_what_is_recorded_is_bounded_and_logged(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO, "cleave")
    plan = cleave.capture(lambda x: x * len(f"{x[0]:.0f}" * int(x[0] * 10)), torch.ones(3), max_plans=16)
    assert "looks at its data: aten::" in caplog.text
    for n in range(16):
        x = torch.full((3,), n / 10 + 1)
        assert torch.equal(plan(x), x * len(f"{x[0]:.0f}" * int(x[0] * 10)))
    with pytest.raises(cleave.GuardError, match="were recorded already"):
        plan(torch.full((3,), 9.0))
    assert len(plan.every()) == 16
    assert "goes another way on this data" in caplog.text


def test_python_code_that_ran_is_not_run_again() -> None:
    ran = []

    class Counts(torch.autograd.Function):
        @staticmethod
        def forward(ctx: Any, x: Tensor) -> Tensor:
            ran.append(1)
            return x * 2

        @staticmethod
        def backward(ctx: Any, grad: Tensor) -> Tensor:
            return grad * 2

    def model(x: Tensor) -> Tensor:
        y = Counts.apply(x)
        return y + 1 if y.sum() > 0 else y - 1

    plan = cleave.capture(model, torch.ones(3))
    ran.clear()
    with pytest.raises(cleave.GuardError) as caught:
        plan(-torch.ones(3))
    assert not caught.value.undone
    assert len(ran) == 1


def test_wrong_wishes_are_refused() -> None:
    with pytest.raises(cleave.ArgumentError, match="on_guard must be one of record, raise"):
        cleave.capture(nn.Linear(4, 4), X, on_guard="ignore")
    with pytest.raises(cleave.InputError, match=r"variants\[1\]: input input: dimension 1 is 7"):
        cleave.capture(nn.Linear(4, 4), X, variants=[X, torch.ones(4, 7)])
    with pytest.raises(TypeError, match="variants is a list of examples"):
        cleave.capture(nn.Linear(4, 4), X, variants=X)


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device")
@both
@modes
@pytest.mark.parametrize("mode", ["generated_eager", "cuda_graph"])
def test_on_a_gpu_too(late: bool, training: bool, mode: str) -> None:
    model, twin = (m.cuda() for m in twins(late, training))
    calls = [tuple(t.cuda() for t in call) for call in CALLS]
    plan = cleave.capture(model, calls[0], mode=mode)
    spec = cleave.SplitSpec(boundary="after:relu")
    runtime = cleave.prepare_split(model, example_inputs=calls[0], split=spec, mode=mode)
    with torch.no_grad():
        same_calls(plan, model, twin, calls)
        same_calls(lambda *inputs: runtime.run_suffix(runtime.run_prefix(*inputs)), model, twin, calls)


@pytest.mark.parametrize("first", [FULL, PADDED], ids=["full first", "padded first"])
@pytest.mark.parametrize("known", [False, True], ids=["unknown", "known"])
def test_sizes_that_were_never_seen_go_every_way(first: Tensor, known: bool) -> None:
    """The first call of a size is recorded on its own data, whichever way that leads."""
    model, _ = twins(True, False)
    spec = cleave.SplitSpec(boundary="after:relu", dynamic_batch=(2, 64))
    more = [(X, PADDED)] if known else []
    runtime = cleave.prepare_split(model, example_inputs=(X, FULL), split=spec, variants=more)
    other = PADDED if first is FULL else FULL
    for times in (5, 7):
        x = X.repeat(times, 1)
        for mask in (first, other, first, other):
            with torch.no_grad():
                assert torch.equal(
                    runtime.run_suffix(runtime.run_prefix(x, mask.repeat(times))), model(x, mask.repeat(times))
                )


def test_a_suffix_that_needs_more_on_other_data_says_so() -> None:
    """The prefix has run by then; nothing is recorded again and again."""

    class Model(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.register_buffer("yes", torch.ones(1, dtype=torch.bool))

        def forward(self, x: Tensor, mask: Tensor) -> Tensor:
            y = x.sin()
            z = torch.relu(y)
            return z + 1 if (mask & self.yes).all() else z + y

    model = Model()
    runtime = cleave.prepare_split(model, example_inputs=(X, FULL), split=cleave.SplitSpec(boundary="after:relu"))
    for _ in range(3):
        with pytest.raises(cleave.GuardError, match="the suffix needs other tensors of the prefix"):
            runtime.run_suffix(runtime.run_prefix(X, PADDED))
        assert torch.equal(runtime.run_suffix(runtime.run_prefix(X, FULL)), model(X, FULL))
    assert len(runtime.variants) == 2


class Differs(nn.Module):
    """What its two inputs are for is not the same, though they look alike."""

    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(4, 4)

    def forward(self, a: Tensor, b: Tensor) -> Tensor:
        return self.linear(a) - (b if self.training else 2 * b)


def test_arguments_by_keyword_in_another_order_are_the_same_call() -> None:
    """Also where the call is the first of its size, its mode or its layout, and is recorded."""
    model = Differs().eval()
    rows = iter(range(4, 40))

    def inputs() -> tuple[Tensor, Tensor]:
        n = next(rows)
        return torch.randn(n, 4), torch.randn(n, 4)

    example = inputs()
    spec = cleave.SplitSpec(boundary="after:linear", dynamic_batch=(1, 64))
    runtime = cleave.prepare_split(model, example_inputs=example, split=spec)
    partition = cleave.pipe_model(model, example_inputs=example, nparts=2, profile="estimate", training=False)
    plan = cleave.capture(model, example, dynamic_batch=(1, 64))
    traced = cleave.trace(model, example, dynamic_batch=(1, 64), dryrun=True)
    runs: list[Callable[..., Any]] = [
        lambda *a, **k: runtime.run_suffix(runtime.run_prefix(*a, **k)),
        partition,
        plan,
        traced,
    ]
    for training in (False, True):
        model.train(training)
        for run in runs[: 2 if training else 4]:  # the others are for one mode
            for _ in range(2):
                a, b = inputs()
                with torch.no_grad():
                    assert torch.equal(run(b=b, a=a), model(a, b))
                    assert torch.equal(run(a, b), model(a, b))
                    a = a.t().contiguous().t()
                    assert torch.equal(run(b=b, a=a), model(a, b))
    a, b = inputs()
    loss, _ = runtime.train_suffix(runtime.run_training_prefix(b=b, a=a), torch.zeros(len(a), 4))
    assert torch.equal(loss, F.mse_loss(model(a, b), torch.zeros(len(a), 4)).detach())


class Later(nn.Module):
    """The question comes behind the cut and needs inputs alone; each way takes other tensors from before the cut."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.one, self.other = (nn.Linear(4, 4) for _ in range(3))

    def forward(self, x: Tensor, mask: Tensor) -> Tensor:
        s = x.sin()
        x = torch.relu(self.first(x))
        return self.one(x) if bool(mask.all()) else self.other(x * mask[:, None]) + s


def test_the_prefix_decides_what_it_can(tmp_path: Path) -> None:
    """The guard runs before anything is sent: the boundary names the plan, and has what that plan needs."""
    model = Later().eval()
    spec = cleave.SplitSpec(boundary="after:relu")
    runtime = cleave.prepare_split(model, example_inputs=(X, FULL), split=spec, variants=[(X, PADDED)])
    assert runtime.main_cut.guards_early
    assert not runtime.main_cut.guards_late
    assert runtime.candidate.name == "relu"
    there = cleave.prepare_split(model, example_inputs=(X, FULL), split=spec, variants=[(X, PADDED)])
    cleave.capture(model, (X, FULL), variants=[(X, PADDED)]).save(tmp_path / "whole.clv")
    cleave.load(tmp_path / "whole.clv").split("after:relu", tmp_path / "p.clv", tmp_path / "s.clv")
    cleave.capture(model, (X, FULL), variants=[(X, PADDED)]).save(tmp_path / "cut.clv", boundary="after:relu")
    halves = [cleave.load(p) for p in runtime.save(tmp_path / "halves")]
    pairs = {
        "files": halves,
        "split by C": [cleave.load(tmp_path / "p.clv"), cleave.load(tmp_path / "s.clv")],
        "cut": [cleave.load(tmp_path / "cut.clv", part=part) for part in ("prefix", "suffix")],
        "live": [runtime, there],
    }
    with torch.no_grad():
        for kind, (prefix, suffix) in pairs.items():
            names = []
            for inputs in CALLS:
                boundary = cleave.BoundaryPayload.from_bytes(prefix.run_prefix(*inputs).to_bytes())
                names.append((boundary.graph_signature, len(boundary.tensors)))
                assert torch.equal(suffix.run_suffix(boundary), model(*inputs)), kind
            assert [n for _, n in names] == [1, 3, 1, 3, 3], kind
            assert len({name for name, _ in names}) == 2, kind


def test_a_cut_has_the_name_of_its_place_and_not_of_a_question_that_moved_there(
    caplog: pytest.LogCaptureFixture,
) -> None:
    def asks(x: Tensor) -> Tensor:
        x = torch.relu(x * 2)
        return x + 1 if bool((x > -1).all()) else x - 1

    caplog.set_level("INFO", logger="cleave.split")
    runtime = cleave.prepare_split(asks, example_inputs=X, split=cleave.SplitSpec(boundary="after:relu"))
    assert runtime.main_cut.guards_early
    assert runtime.candidate.name == "relu"
    assert runtime.candidate in runtime.candidates
    assert "cut after relu" in caplog.text
    assert runtime.visualize(return_dot=True, view="split", candidate=runtime.candidate)
    assert torch.equal(runtime.run_suffix(runtime.run_prefix(X)), asks(X))


def test_a_guard_stays_where_its_result_is_read_or_a_weight_is_missing() -> None:
    def used(x: Tensor, mask: Tensor) -> Tensor:
        x = torch.relu(x * 2)
        whole = mask.all()  # would have to cross
        return (x + 1 if whole else x - 1) * whole

    spec = cleave.SplitSpec(boundary="after:relu")
    runtime = cleave.prepare_split(used, example_inputs=(X, FULL), split=spec, variants=[(X, PADDED)])
    late = cleave.prepare_split(twins(True, False)[0], example_inputs=(X, FULL), split=spec)
    assert runtime.main_cut.guards_late
    assert not runtime.main_cut.guards_early
    assert late.main_cut.guards_late
    assert not late.main_cut.guards_early
    for inputs in CALLS:
        assert torch.equal(runtime.run_suffix(runtime.run_prefix(*inputs)), used(*inputs))


class Decides(nn.Module):
    """Asks in a late layer, of what the first stage could or could not know beforehand."""

    def __init__(self, what: str) -> None:
        super().__init__()
        self.what = what
        self.first, self.last, self.norm = nn.Linear(4, 4), nn.Linear(4, 4), nn.BatchNorm1d(4)

    def forward(self, x: Tensor, mask: Tensor) -> Tensor:
        h = self.last(torch.relu(self.norm(self.first(x))))
        h = F.dropout(h, 0.1, self.training)
        if self.what == "random":
            mask = F.dropout(mask.float(), 0.1, self.training) >= 0
        elif self.what == "statistics":
            mask = self.norm.running_var * mask.any() > -1
        elif self.what != "inputs":
            mask = self.first.weight.sum() * mask < 1e9
        return h * 2 if bool(mask.all()) else h


@pytest.mark.parametrize(
    ("what", "decided"),
    [("inputs", True), ("random", False), ("statistics", False), ("weight", True)],
)
def test_a_first_stage_decides_what_it_can_before_anything_runs(what: str, decided: bool) -> None:
    found = cleave.pipe_model(
        Decides(what).train(), example_inputs=(X, FULL), nparts=2, profile="estimate", partitioning_method="acyclic"
    )
    main = found._first.main
    plan, n, left = main.captured.plan.guards_first(main.ends[0])
    assert (n > 0) is decided
    assert left == (not decided)
    assert plan is None or plan.effects(0, n).keys() == {"guard", "host"}
    assert plan is None or plan.node_count() == main.captured.plan.node_count()


# ---- runs that go on in another plan


def operators(run: Callable[[], Any]) -> tuple[Any, Counter[str]]:
    """What a call gives, and how often it called each operator."""
    with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CPU]) as profile:
        out = run()
    return out, Counter(event.name for event in profile.events())


class Three(nn.Module):
    """Three questions, with products, statistics and random draws before, between and after them."""

    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.ModuleList(nn.Linear(4, 4) for _ in range(4))
        self.norm = nn.BatchNorm1d(4)
        self.relu = nn.ReLU()
        self.register_buffer("yes", torch.ones(1, dtype=torch.bool))

    def forward(self, x: Tensor, asks: Tensor) -> Tensor:
        for i, layer in enumerate(self.layers):
            x = F.dropout(self.norm(layer(x)), 0.3, self.training)
            if i == 0:
                x = self.relu(x)
            elif bool((asks[i - 1] & self.yes).all()):
                x = x + 1
            else:
                x = x * 2 - asks.sum()
        return x


ASKS = [torch.tensor(bits) for bits in itertools.product([True, False], repeat=3)]


@modes
@pytest.mark.parametrize("grad", [False, True], ids=["no grad", "grad"])
@pytest.mark.parametrize("level", ["none", "safe"])
def test_a_run_goes_on_where_a_guard_ended_another(training: bool, grad: bool, level: str) -> None:
    """Products are as many as in eager: what the plans agree about is not repeated, whichever served last."""
    torch.manual_seed(0)
    model = Three().train(training)
    twin = copy.deepcopy(model)
    with torch.set_grad_enabled(grad):
        plan = cleave.capture(model, (X, ASKS[0]), optimize=level, variants=[(X, asks) for asks in ASKS])
        assert len(plan.every()) == len(ASKS)
        for i, asks in enumerate(ASKS + ASKS[::-1] + ASKS[::3]):
            torch.manual_seed(i)
            want, eager = operators(lambda: twin(X, asks))
            torch.manual_seed(i)
            got, mine = operators(lambda: plan(X, asks))
            assert torch.equal(got, want), f"call {i}"
            assert mine["aten::addmm"] == eager["aten::addmm"] == 4
            assert mine["aten::native_batch_norm"] == eager["aten::native_batch_norm"]
            assert mine["aten::bernoulli_"] == eager["aten::bernoulli_"]
            same_state(model, twin)
            if grad:
                for a, b in zip(
                    torch.autograd.grad(got.sum(), list(model.parameters())),
                    torch.autograd.grad(want.sum(), list(twin.parameters())),
                    strict=True,
                ):
                    assert torch.equal(a, b), f"call {i}"


def test_files_and_splits_go_on_too(tmp_path: Path) -> None:
    model = Three().eval()
    spec = cleave.SplitSpec(boundary="after:relu", dynamic_batch=None)
    with torch.no_grad():
        runtime = cleave.prepare_split(model, example_inputs=(X, ASKS[0]), split=spec, variants=[(X, a) for a in ASKS])
        plan = cleave.capture(model, (X, ASKS[0]), variants=[(X, asks) for asks in ASKS])
        plan.save(tmp_path / "whole.clv")
        prefix, suffix = (cleave.load(path) for path in runtime.save(tmp_path / "halves"))
        for run in (
            cleave.load(tmp_path / "whole.clv"),
            lambda *inputs: runtime.run_suffix(runtime.run_prefix(*inputs)),
            lambda *inputs: suffix.run_suffix(prefix.run_prefix(*inputs)),
        ):
            for asks in ASKS + ASKS[::3]:
                got, counts = operators(lambda: run(X, asks))
                assert torch.equal(got, model(X, asks))
                assert counts["aten::addmm"] == 4


@pytest.mark.parametrize("batch", [(2, 9), (1, 16)])
@pytest.mark.parametrize("sandbox", [False, True], ids=["here", "sandbox"])
def test_files_of_halves_go_on_at_the_sizes_they_were_prepared_for(tmp_path: Path, batch: Any, sandbox: bool) -> None:
    """Plans for one size and plans with formulas take each other's boundaries where they agree at a call's sizes."""
    torch.manual_seed(0)
    model = Three().eval()
    spec = cleave.SplitSpec(boundary="after:relu", dynamic_batch=batch)
    with torch.no_grad():
        runtime = cleave.prepare_split(model, example_inputs=(X, ASKS[0]), split=spec, variants=[(X, a) for a in ASKS])
        prefix, suffix = (cleave.load(path, sandbox=sandbox) for path in runtime.save(tmp_path / "halves"))
        for asks in ASKS + ASKS[::3]:
            wire = cleave.BoundaryPayload.from_bytes(prefix.run_prefix(X, asks).to_bytes())
            assert torch.equal(suffix.run_suffix(wire), model(X, asks)), asks


class Literal(nn.Module):
    """A literal before the question, and a way that takes less from before the cut than the other."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.last, self.relu = nn.Linear(4, 4), nn.Linear(4, 4), nn.ReLU()
        self.register_buffer("yes", torch.ones(1, dtype=torch.bool))

    def forward(self, x: Tensor, mask: Tensor) -> Tensor:
        x = self.first(x * torch.tensor([1.0, 2.0, 3.0, 4.0]))
        s = x.sin()
        x = self.relu(x)
        return self.last(x + s if bool((mask & self.yes).all()) else x * 2)


@sizes
def test_a_suffix_takes_what_it_needs_of_a_boundary_whatever_else_crosses(batch: Any) -> None:
    model = Literal()
    twin = copy.deepcopy(model)
    spec = cleave.SplitSpec(boundary="after:relu", dynamic_batch=batch, trainable=True)
    runtime = cleave.prepare_split(model, example_inputs=(X, FULL), split=spec, variants=[(X, PADDED)])
    with torch.no_grad():
        same_calls(lambda *inputs: runtime.run_suffix(runtime.run_prefix(*inputs)), model, twin)
    for x, mask in CALLS:
        boundary = runtime.run_training_prefix(x, mask)
        loss, gradients = runtime.train_suffix(boundary, torch.zeros(4, 4))
        runtime.backward_prefix(boundary, gradients)
        want = F.mse_loss(twin(x, mask), torch.zeros(4, 4))
        want.backward()
        assert torch.equal(loss, want.detach())
        assert all(torch.equal(p.grad, q.grad) for p, q in zip(model.parameters(), twin.parameters(), strict=True))


class Picks(nn.Module):
    """Asks about activations behind the cut. Where the answers are yes, what was asked about is read once more, and
    cannot be decided by the prefix."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.last, self.relu = nn.Linear(4, 4), nn.Linear(4, 4), nn.ReLU()

    def forward(self, x: Tensor, mask: Tensor) -> Tensor:
        x = self.relu(self.first(x))
        whole, big = mask.all(), x > 1
        x = x * whole if bool(whole) else x - 1
        x = x * big if bool(big.any()) else x + 1
        return self.last(x)


PICKS = [(X * a, b) for a, b in itertools.product([3.0, 0.0], [FULL, PADDED])]


@pytest.mark.parametrize("first", range(4))
@pytest.mark.parametrize("known", [False, True], ids=["unknown", "known"])
@sizes
def test_variants_leave_equal_questions_to_the_suffix(first: int, known: bool, batch: Any, tmp_path: Path) -> None:
    torch.manual_seed(3)
    model = Picks().eval()
    examples = PICKS[first:] + PICKS[:first]
    calls = PICKS + PICKS[::-1] + PICKS[1::2] + PICKS[::2]
    spec = cleave.SplitSpec(boundary="after:relu", dynamic_batch=batch)
    more = examples[1:] if known else []
    with torch.no_grad():
        runtime = cleave.prepare_split(model, example_inputs=examples[0], split=spec, variants=more)
        for i, inputs in enumerate(calls):
            assert torch.equal(runtime.run_suffix(runtime.run_prefix(*inputs)), model(*inputs)), f"call {i}"
        assert len(runtime.variants) <= (6 if batch is None else 16)
        prefix, suffix = (cleave.load(path) for path in runtime.save(tmp_path / "halves", prove="none"))
        plan = cleave.capture(model, examples[0], variants=examples[1:])
        plan.save(tmp_path / "whole.clv")
        cleave.load(tmp_path / "whole.clv").split("after:relu", tmp_path / "p.clv", tmp_path / "s.clv")
        cut = [cleave.load(tmp_path / name) for name in ("p.clv", "s.clv")]
        for i, inputs in enumerate(calls):
            for a, b in ((prefix, suffix), cut):
                wire = cleave.BoundaryPayload.from_bytes(a.run_prefix(*inputs).to_bytes())
                assert torch.equal(b.run_suffix(wire), model(*inputs)), f"call {i}"


class Expert(nn.Module):
    """Reads a number from its activations: none and one are special, and may be those of the example."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.last, self.relu = nn.Linear(8, 8), nn.Linear(8, 8), nn.ReLU()

    def forward(self, x: Tensor) -> Tensor:
        x = self.relu(self.first(x))
        return self.last(x + self.last.weight[int(x.mean(0).argmax())])


@pytest.mark.parametrize("seed", range(10))
def test_an_example_whose_number_the_other_sizes_do_not_have_gets_a_plan_of_its_own(seed: int) -> None:
    torch.manual_seed(seed)
    model, x = Expert().eval(), torch.randn(4, 8)
    spec = cleave.SplitSpec(boundary="after:relu", dynamic_batch=(1, 16))
    with torch.no_grad():
        plan = cleave.capture(model, x, dynamic_batch=(1, 16))
        runtime = cleave.prepare_split(model, example_inputs=x, split=spec)
        for inputs in (x, *(torch.randn(n, 8) for n in (4, 2, 7, 16, 4)), x):
            assert torch.equal(plan(inputs), model(inputs))
            assert torch.equal(runtime.run_suffix(runtime.run_prefix(inputs)), model(inputs))


def test_a_loop_goes_on_until_its_data_says_so() -> None:
    model = nn.Linear(4, 4)
    nn.init.eye_(model.weight)
    nn.init.constant_(model.bias, 1.0)

    def loop(x: Tensor) -> Tensor:
        while x.max() < 6:
            x = model(x)
        return x.cos()

    inputs = [torch.full((1, 4), float(n)) for n in (5, 3, 1, 4, 2)]
    with torch.no_grad():
        plan = cleave.capture(loop, inputs[0], variants=inputs)
        for x in inputs + inputs[::-1]:
            got, counts = operators(lambda: plan(x))
            assert torch.equal(got, loop(x))
            assert counts["aten::addmm"] == 6 - int(x[0, 0])


@pytest.mark.parametrize("grad", [False, True], ids=["no grad", "grad"])
def test_a_way_may_need_what_another_has_released(grad: bool) -> None:
    """It is computed again where that cannot be seen; with gradients, the run starts again."""
    linear = nn.Linear(4, 4)

    def model(x: Tensor, mask: Tensor) -> Tensor:
        s = x.sin()
        z = linear(x).exp()
        return z + 1 if mask.all() else z * s

    with torch.set_grad_enabled(grad):
        plan = cleave.capture(model, (X, FULL), variants=[(X, PADDED)])
        for mask in (FULL, PADDED, FULL, PADDED, PADDED):
            got, counts = operators(lambda: plan(X, mask))
            want = model(X, mask)
            assert torch.equal(got, want)
            assert grad or counts["aten::addmm"] == 1
            if grad:
                a, b = (torch.autograd.grad(t.sum(), linear.weight)[0] for t in (got, want))
                assert torch.equal(a, b)


def test_a_way_that_was_left_is_undone_before_another_is_recorded() -> None:
    """Recording runs the model: it must not see what the run before has written."""
    model = Three().train()
    twin = copy.deepcopy(model)
    plan = cleave.capture(model, (X, ASKS[0]), variants=[(X, ASKS[1])])
    same_calls(plan, model, twin, [(X, asks) for asks in (ASKS[7], ASKS[0], ASKS[4], ASKS[7], ASKS[3])])
    strict = cleave.capture(model, (X, ASKS[0]), on_guard="raise")
    with pytest.raises(cleave.GuardError) as caught:
        strict(X, ASKS[7])
    assert caught.value.undone
    same_state(model, twin)

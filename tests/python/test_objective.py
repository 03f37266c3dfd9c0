"""Objectives, constraints, exact cuts: what is chosen, what is refused, and that a cut gives what the model gives."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from test_split import CASES, build, split_equals_eager
from torch import Tensor, nn

import cleave
from cleave import SplitError, SplitSpec
from cleave._objective import MINIMIZE, read


class Tower(nn.Module):
    """A funnel: bytes fall from left to right, parameters are in the middle."""

    def __init__(self) -> None:
        super().__init__()
        self.body = nn.Sequential(
            nn.Linear(8, 100), nn.ReLU(), nn.Linear(100, 20), nn.ReLU(), nn.Linear(20, 40), nn.ReLU()
        )
        self.head = nn.Linear(40, 3)

    def forward(self, x: Tensor) -> Tensor:
        return self.head(self.body(x)).softmax(-1)


class Branches(nn.Module):
    """Two branches, traced one after the other, that are both small at their ends: each position cuts one of them where
    it is large."""

    def __init__(self) -> None:
        super().__init__()
        self.stem = nn.Conv2d(3, 16, 3, padding=1)
        self.left = nn.Sequential(nn.Conv2d(16, 32, 3, padding=1), nn.ReLU(), nn.AdaptiveAvgPool2d(1))
        self.right = nn.Sequential(nn.Conv2d(16, 32, 5, padding=2), nn.ReLU(), nn.AdaptiveAvgPool2d(1))
        self.wide = nn.Linear(64, 4000)
        self.head = nn.Linear(4000, 5)

    def forward(self, x: Tensor) -> Tensor:
        x = self.stem(x)
        a = self.left[1](self.left[0](x))
        b = self.right[1](self.right[0](x))
        a, b = self.left[2](a), self.right[2](b)
        return self.head(self.wide(torch.cat([a.flatten(1), b.flatten(1)], 1)))


class Skip(nn.Module):
    """A small U-Net in which a small side input is made late: moving it into the prefix frees a large one."""

    def __init__(self) -> None:
        super().__init__()
        self.enc = nn.Conv2d(3, 8, 3, padding=1)
        self.down = nn.Conv2d(8, 8, 3, stride=4, padding=1)
        self.mid = nn.Sequential(nn.Conv2d(8, 8, 3, padding=1), nn.ReLU(inplace=True), nn.Conv2d(8, 8, 3, padding=1))
        self.gate = nn.Conv2d(8, 1, 3, stride=8, padding=1)
        self.out = nn.Conv2d(8, 2, 3, padding=1)

    def forward(self, x: Tensor) -> Tensor:
        e = self.enc(x).relu_()
        d = self.mid(self.down(e))
        gate = self.gate(e).mean((2, 3), keepdim=True).sigmoid_()  # reads the large e again, gives 1 number
        return self.out(self.out.weight.new_ones(()) * d * gate)


def prepare(model: Any, x: Tensor, objective: Any = None, **spec: Any) -> cleave.SplitRuntime:
    spec.setdefault("dynamic_batch", None)
    return cleave.prepare_split(model, example_inputs=(x,), split=SplitSpec(**spec), objective=objective)


def tower() -> tuple[nn.Module, Tensor]:
    torch.manual_seed(0)
    return Tower().eval(), torch.randn(4, 8)


def must_equal(runtime: cleave.SplitRuntime, model: nn.Module, *inputs: Tensor) -> None:
    with torch.no_grad():
        want = model(*inputs)
    got = runtime.run_suffix(runtime.run_prefix(*inputs))
    assert torch.equal(got, want)


# ---- the record


def test_a_candidate_has_everything_there_is_to_decide_on() -> None:
    model, x = tower()
    runtime = prepare(model, x, boundary="after:body.2", dynamic_batch=(1, 64))
    c = runtime.candidate
    assert c.boundary_bytes_formula == "80*B"
    assert c.boundary_bytes == 4 * 80  # the example's batch
    assert c.prefix_node_count == 3
    assert c.suffix_node_count == len(runtime.trace_plan.nodes) - 3
    assert c.prefix_params == 8 * 100 + 100 + 100 * 20 + 20
    assert c.suffix_params == 20 * 40 + 40 + 40 * 3 + 3
    assert c.prefix_param_bytes == 4 * c.prefix_params
    assert c.prefix_flops > c.suffix_flops > 0
    assert c.prefix_share == pytest.approx(c.prefix_flops / (c.prefix_flops + c.suffix_flops))
    assert c.prefix_memory >= c.prefix_param_bytes + 4 * 100 * 4
    assert c.boundary_labels == tuple(runtime.run_prefix(x).tensors)
    assert c.safe
    assert c.reason is None
    assert c.trainable_suffix is c.is_trainable_suffix is True


@pytest.mark.parametrize("size", [1, 2, 3, 7])
def test_the_formula_gives_the_bytes_of_every_batch(size: int) -> None:
    model, x = tower()
    for runtime in (prepare(model, x, boundary=b, dynamic_batch=(1, 64)) for b in ("20%", "50%", "90%")):
        payload = runtime.run_prefix(torch.randn(size, 8))
        assert eval(runtime.candidate.boundary_bytes_formula, {"B": size}) == payload.nbytes


def test_the_batch_size_of_the_objective_counts() -> None:
    model, x = tower()
    runtime = prepare(model, x, {"batch_size": 32}, boundary="after:body.2", dynamic_batch=(1, 64))
    assert runtime.candidate.boundary_bytes == 32 * 80
    with pytest.raises(SplitError, match="B is 65, the plan is for 1 to 64"):
        prepare(model, x, {"batch_size": 65}, dynamic_batch=(1, 64))
    with pytest.raises(SplitError, match="batch_size needs a dynamic_batch"):
        prepare(model, x, {"batch_size": 2})


# ---- what is minimised


@pytest.mark.parametrize("goal", MINIMIZE)
def test_each_goal_takes_the_best_of_all_safe_candidates(goal: str) -> None:
    model, x = tower()
    constraints = {"bandwidth_bytes_per_s": 1e6} if goal == "latency" else {}
    runtime = prepare(model, x, {"minimize": goal, "constraints": constraints})

    def measure(c: cleave.spec.SplitCandidate) -> float:
        if goal == "latency":
            return (c.prefix_flops + c.suffix_flops) / 1e12 + c.boundary_bytes / 1e6
        if goal == "balance":
            return abs(c.prefix_flops - c.suffix_flops)
        return float(getattr(c, goal))

    best = min(measure(c) for c in runtime.candidates if c.safe)
    assert measure(runtime.candidate) == pytest.approx(best)
    must_equal(runtime, model, x)


def test_latency_goes_to_the_faster_side() -> None:
    model, x = tower()
    speed = {"bandwidth_bytes_per_s": 1e15, "prefix_flops_per_s": 1e9, "suffix_flops_per_s": 1e15}
    early = prepare(model, x, {"minimize": "latency", "constraints": speed})
    assert early.candidate.position == 0
    speed.update(prefix_flops_per_s=1e15, suffix_flops_per_s=1e9)
    late = prepare(model, x, {"minimize": "latency", "constraints": speed})
    assert late.candidate.position == late.candidates[-1].position


def test_without_an_objective_the_middle_is_taken() -> None:
    model, x = tower()
    runtime = prepare(model, x)
    assert 0.2 <= runtime.candidate.prefix_share <= 0.8
    assert runtime.candidate.boundary_bytes < prepare(model, x, boundary="1%").candidate.boundary_bytes


# ---- constraints


@pytest.mark.parametrize(
    ("constraints", "holds"),
    [
        ({"trainable_suffix": True}, lambda c: c.trainable_suffix),
        ({"max_boundary_bytes": 700}, lambda c: c.boundary_bytes <= 700),
        ({"max_prefix_memory": 9000}, lambda c: c.prefix_memory <= 9000),
        ({"max_suffix_memory": 9000}, lambda c: c.suffix_memory <= 9000),
        ({"max_prefix_params": 900}, lambda c: c.prefix_params <= 900),
        ({"max_suffix_params": 963}, lambda c: c.suffix_params <= 963),
        ({"prefix_flops_fraction": 0.5}, lambda c: c.prefix_share <= 0.5),
        ({"prefix_flops_fraction": (0.3, 0.8)}, lambda c: 0.3 <= c.prefix_share <= 0.8),
        ({"min_prefix_flops_fraction": 0.9}, lambda c: c.prefix_share >= 0.9),
        ({"max_prefix_flops_fraction": 0.3}, lambda c: c.prefix_share <= 0.3),
        ({"max_latency_s": 500.0, "bandwidth_bytes_per_s": 1.0}, lambda c: c.boundary_bytes <= 500),
    ],
)
@pytest.mark.parametrize("goal", ["prefix_flops", "suffix_flops", None])
@pytest.mark.parametrize("boundary", ["auto", "50%"])
def test_constraints_hold(constraints: dict[str, Any], holds: Any, goal: str | None, boundary: str) -> None:
    model, x = tower()
    objective = {"constraints": constraints} if goal is None else {"minimize": goal, "constraints": constraints}
    runtime = prepare(model, x, objective, boundary=boundary)
    assert holds(runtime.candidate)
    assert not all(holds(c) for c in runtime.candidates) or "trainable_suffix" in constraints
    if boundary == "auto" and goal is not None:
        rest = [getattr(c, goal) for c in runtime.candidates if c.safe and holds(c)]
        assert getattr(runtime.candidate, goal) == min(rest)


def test_a_named_boundary_has_to_meet_the_constraints() -> None:
    model, x = tower()
    prepare(model, x, {"constraints": {"max_boundary_bytes": 320}}, boundary="after:body.2")
    with pytest.raises(SplitError, match=r'after "body.0" boundary_bytes is 1600, and max_boundary_bytes is 320'):
        prepare(model, x, {"constraints": {"max_boundary_bytes": 320}}, boundary="after:body.0")
    for p in model.parameters():
        p.requires_grad_(False)
    with pytest.raises(SplitError, match="trainable"):
        prepare(model, x, {"constraints": {"trainable_suffix": True}}, boundary="after:body.0")


def test_what_cannot_be_met_is_named_with_the_best_in_reach() -> None:
    model, x = tower()
    with pytest.raises(
        SplitError, match=r"max_boundary_bytes = 3 excludes \d+ of the \d+ .* lowest boundary_bytes in reach"
    ):
        prepare(model, x, {"constraints": {"max_boundary_bytes": 3, "max_prefix_params": 5000}})
    frozen = Tower().eval().requires_grad_(False)
    with pytest.raises(SplitError, match="no frontier leaves trainable parameters in the suffix"):
        prepare(frozen, x, {"minimize": "prefix_flops", "constraints": {"trainable_suffix": True}})


# ---- what is no objective


@pytest.mark.parametrize(
    ("objective", "message"),
    [
        ("boundary_bytes", "objective is a dict, not str"),
        ({"minimise": "latency"}, "no key 'minimise'.*did you mean minimize.*known keys: minimize, constraints"),
        ({"minimize": "regret"}, "'regret' cannot be minimised; choose one of boundary_bytes, latency"),
        ({"minimize": ["latency"]}, "cannot be minimised"),
        ({"constraints": [1]}, "is a dict, not list"),
        ({"constraints": {"max_bytes": 1}}, "no key 'max_bytes'.*known keys: trainable_suffix, max_boundary_bytes"),
        ({"constraints": {7: 1}}, "no key 7"),
        ({"constraints": {"trainable_suffix": 1}}, "trainable_suffix must be True or False"),
        ({"constraints": {"max_boundary_bytes": -1}}, "max_boundary_bytes must be at least 0"),
        ({"constraints": {"max_boundary_bytes": 1 << 63}}, "below 2"),
        ({"constraints": {"max_boundary_bytes": 1.5}}, "whole number"),
        ({"constraints": {"max_boundary_bytes": True}}, "whole number"),
        ({"constraints": {"max_boundary_bytes": float("nan")}}, "whole number"),
        ({"constraints": {"max_prefix_params": "many"}}, "max_prefix_params must be a whole number"),
        ({"constraints": {"prefix_flops_fraction": 1.5}}, "between 0 and 1"),
        ({"constraints": {"prefix_flops_fraction": (0.7, 0.2)}}, "least <= most"),
        ({"constraints": {"prefix_flops_fraction": (0.1, 0.2, 0.3)}}, "a number or a pair"),
        ({"constraints": {"prefix_flops_fraction": 0.3, "min_prefix_flops_fraction": 0.5}}, "0 <= least <= most <= 1"),
        ({"constraints": {"bandwidth_bytes_per_s": 0}}, "bandwidth_bytes_per_s must be a number above 0"),
        ({"constraints": {"bandwidth_bytes_per_s": float("inf")}}, "above 0"),
        ({"constraints": {"suffix_flops_per_s": None, "prefix_flops_per_s": "fast"}}, "must be a number"),
        ({"minimize": "latency"}, "latency needs the constraint bandwidth_bytes_per_s"),
        ({"constraints": {"max_latency_s": 1}}, "latency needs the constraint bandwidth_bytes_per_s"),
        ({"batch_size": 0}, "batch_size must be at least 1"),
    ],
)
def test_what_makes_no_sense_is_refused(objective: Any, message: str) -> None:
    model, x = tower()
    with pytest.raises(SplitError, match=message):
        prepare(model, x, objective)


def test_a_bound_that_is_given_twice_is_the_tighter_one() -> None:
    fields = read(
        {
            "constraints": {
                "min_prefix_flops_fraction": 0.3,
                "prefix_flops_fraction": (0.1, 0.9),
                "max_prefix_flops_fraction": 0.6,
            }
        },
        True,
    ).fields
    assert fields == {"min_prefix_flops_fraction": 0.3, "max_prefix_flops_fraction": 0.6, "trainable_suffix": True}


# ---- what cannot cross


class Sparse(nn.Module):
    """Makes a sparse tensor and uses it later."""

    def forward(self, x: Tensor) -> Tensor:
        s = x.relu().to_sparse()
        y = (x * 2).exp()
        return torch.sparse.mm(s, y).sin()


def test_a_sparse_tensor_cannot_cross_and_is_named() -> None:
    model, x = Sparse().eval(), torch.rand(4, 4) + 0.5
    with pytest.raises(
        SplitError, match=r"sparse or nested tensor made by \w+ .*test_objective.py:\d+, is needed after"
    ):
        prepare(model, x, boundary="after:exp")
    runtime = prepare(model, x, boundary="auto")
    assert runtime.candidate.safe
    assert any(c.reason and "sparse" in c.reason for c in runtime.candidates)
    must_equal(runtime, model, x)


# ---- exact cuts


def position_bytes(runtime: cleave.SplitRuntime, low: float = 0.2, high: float = 0.8) -> int:
    return min(c.boundary_bytes for c in runtime.candidates if c.safe and low <= c.prefix_share <= high)


def test_an_exact_cut_is_smaller_than_any_position_of_the_trace() -> None:
    torch.manual_seed(1)
    model, x = Skip().eval(), torch.randn(2, 3, 32, 32)
    names = {"must_prefix": ("down",), "must_suffix": ("out",)}
    exact = prepare(model, x, exact=True, **names)
    traced = prepare(model, x, boundary="after:down")
    every = [c.boundary_bytes for c in traced.candidates if c.safe and traced.candidate.position <= c.position]
    until = next(i for i, c in enumerate(traced.candidates) if c.module_path == "gate")
    large = [c.boundary_bytes for c in traced.candidates[traced.candidate.position : until] if c.safe]
    assert exact.candidate.boundary_bytes <= min(every)
    assert exact.candidate.boundary_bytes < min(large)
    must_equal(exact, model, x)
    must_equal(exact, model, torch.randn(2, 3, 32, 32))


def test_branches_are_cut_where_each_is_small() -> None:
    torch.manual_seed(2)
    model, x = Branches().eval(), torch.randn(2, 3, 16, 16)
    exact = prepare(model, x, exact=True, must_prefix=("right",), must_suffix=("left",))
    # No position of the trace has all of `right` before and all of `left` after it.
    assert exact.candidate.boundary_bytes == 2 * (16 * 16 * 16 + 32) * 4
    assert "right" in {n.module_path.split(".")[0] for n in exact.trace_plan.nodes[: exact.candidate.position + 1]}
    assert "left" not in {n.module_path.split(".")[0] for n in exact.trace_plan.nodes[: exact.candidate.position + 1]}
    must_equal(exact, model, x)


class Staggered(nn.Module):
    """Every position between the stages has a large tensor alive; taken apart by branch all is small."""

    def __init__(self) -> None:
        super().__init__()
        self.a0, self.a1 = nn.Linear(4, 500), nn.Linear(500, 4)
        self.b0, self.b1 = nn.Linear(4, 500), nn.Linear(500, 4)
        self.c0, self.c1 = nn.Linear(4, 500), nn.Linear(500, 4)

    def forward(self, x: Tensor) -> Tensor:
        a = self.a0(x).relu()
        b = self.b0(x).relu()  # a is still large
        a = self.a1(a)
        c = self.c0(a).relu()  # b is still large
        b = self.b1(b)
        return self.c1(c) + b  # c is large when b becomes small


@pytest.mark.parametrize("dynamic", [None, (1, 16)])
def test_a_cut_between_positions_is_found_and_is_exact(dynamic: Any) -> None:
    torch.manual_seed(3)
    model, x = Staggered().eval(), torch.randn(6, 4)
    spec = {"must_prefix": ("a1",), "must_suffix": ("c1",), "dynamic_batch": dynamic}
    exact = prepare(model, x, exact=True, **spec)
    traced = prepare(model, x, boundary="after:a1", dynamic_batch=dynamic)
    until = next(i for i, c in enumerate(traced.candidates) if c.module_path == "c1")
    between = [c.boundary_bytes for c in traced.candidates[traced.candidate.position : until] if c.safe]
    assert exact.candidate.boundary_bytes == 6 * (4 + 4) * 4
    assert exact.candidate.boundary_bytes < min(between)
    must_equal(exact, model, x)
    if dynamic:
        assert exact.candidate.boundary_bytes_formula == "32*B"
        for size in (1, 2, 5, 11):
            must_equal(exact, model, torch.randn(size, 4))


def test_a_reordered_plan_gives_the_same_numbers_as_a_whole() -> None:
    torch.manual_seed(4)
    model, x = Staggered().eval(), torch.randn(6, 4)
    exact = prepare(model, x, exact=True, must_prefix=("a1",), must_suffix=("c1",))
    names = [n.module_path for n in exact.trace_plan.nodes]
    assert names != [n.module_path for n in prepare(model, x).trace_plan.nodes]
    with torch.no_grad():
        assert torch.equal(exact.trace_plan(x), model(x))


class InPlace(nn.Module):
    """Writes its temporaries in place, through views, and a buffer."""

    def __init__(self) -> None:
        super().__init__()
        self.a, self.b, self.c = nn.Linear(4, 64), nn.Linear(4, 64), nn.Linear(64, 4)
        self.register_buffer("seen", torch.zeros(64))

    def forward(self, x: Tensor) -> Tensor:
        a = self.a(x)
        b = self.b(x)
        a[:, :32].mul_(2)
        b.add_(a)
        self.seen.add_(b.sum(0))
        a.relu_()
        return self.c(a * self.seen) + self.c(b.sigmoid_())


def test_in_place_operators_keep_their_order_in_an_exact_cut() -> None:
    torch.manual_seed(5)
    model, x = InPlace().eval(), torch.randn(3, 4)
    for names in ({}, {"must_prefix": ("b",), "must_suffix": ("c",)}, {"must_prefix": ("a",)}):
        exact = prepare(model, x, exact=True, **names)
        before = model.seen.clone()
        with torch.no_grad():
            want = model(x)
        after = model.seen.clone()
        model.seen.copy_(before)
        assert torch.equal(exact.run_suffix(exact.run_prefix(x)), want)
        assert torch.equal(model.seen, after)


class Drawing(nn.Module):
    """Draws in both branches: the generator must be asked in the same order."""

    def __init__(self) -> None:
        super().__init__()
        self.a, self.b, self.c = nn.Linear(4, 300), nn.Linear(4, 300), nn.Linear(300, 4)

    def forward(self, x: Tensor) -> Tensor:
        a = nn.functional.dropout(self.a(x), 0.5, True)
        b = nn.functional.dropout(self.b(x), 0.5, True)
        return self.c(a) + self.c(b)


def test_random_draws_keep_their_order_in_an_exact_cut() -> None:
    model, x = Drawing(), torch.randn(3, 4)
    for names in ({}, {"must_prefix": ("b",)}, {"must_prefix": ("dropout_1",)}):
        exact = prepare(model, x, exact=True, **names)
        torch.manual_seed(11)
        with torch.no_grad():
            want = model(x)
        torch.manual_seed(11)
        assert torch.equal(exact.run_suffix(exact.run_prefix(x)), want)


def test_names_of_an_exact_cut_are_checked() -> None:
    model, x = tower()
    with pytest.raises(SplitError, match='must_prefix: no module or node is called "bdy"; nearest: body'):
        prepare(model, x, exact=True, must_prefix=("bdy",))
    with pytest.raises(SplitError, match="must be in the prefix, and it needs"):
        prepare(model, x, exact=True, must_prefix=("head",), must_suffix=("body.0",))
    with pytest.raises(SplitError, match='leave it at "auto"'):
        SplitSpec(boundary="50%", exact=True)
    with pytest.raises(SplitError, match="must_prefix is for exact=True"):
        SplitSpec(must_prefix=("body",))
    with pytest.raises(SplitError, match="must_suffix is a tuple"):
        SplitSpec(exact=True, must_suffix="body")  # type: ignore[arg-type]
    with pytest.raises(SplitError, match="exact must be True or False"):
        SplitSpec(exact=1)  # type: ignore[arg-type]
    with pytest.raises(SplitError, match="exact=True minimises boundary_bytes"):
        prepare(model, x, {"minimize": "balance"}, exact=True)


def test_constraints_hold_for_an_exact_cut() -> None:
    model, x = tower()
    runtime = prepare(model, x, {"minimize": "boundary_bytes"}, exact=True)
    assert runtime.candidate.boundary_bytes <= position_bytes(runtime)
    with pytest.raises(SplitError, match="max_boundary_bytes is 3"):
        prepare(model, x, {"constraints": {"max_boundary_bytes": 3}}, exact=True)


@pytest.mark.parametrize("name", CASES)
def test_exact_cuts_of_all_kinds_of_models_give_eagers_result(name: str) -> None:
    model, inputs = build(name)
    given = inputs(0)
    spec = SplitSpec(exact=True, dynamic_batch=None)
    runtime = cleave.prepare_split(model, example_inputs=given.args, example_kwargs=given.kwargs or None, split=spec)
    for seed in (1, 2):
        split_equals_eager(runtime, model, inputs, seed)


class OtherWay(nn.Module):
    """Does something else for large batches: those get a plan, and a cut, of their own."""

    def __init__(self) -> None:
        super().__init__()
        self.a, self.b, self.c = nn.Linear(4, 50), nn.Linear(50, 6), nn.Linear(6, 4)

    def forward(self, x: Tensor) -> Tensor:
        y = self.b(self.a(x).relu())
        return self.c(y.tanh() if x.shape[0] > 8 else y).sin()


def test_a_batch_with_a_plan_of_its_own_is_cut_exactly_too() -> None:
    torch.manual_seed(6)
    model, x = OtherWay().eval(), torch.randn(3, 4)
    runtime = prepare(model, x, exact=True, must_prefix=("b",), must_suffix=("c",), dynamic_batch=(1, 32))
    assert runtime.candidate.boundary_bytes_formula == "24*B"
    for size in (1, 4, 9, 20):
        must_equal(runtime, model, torch.randn(size, 4))


# ---- the last net


def test_a_split_that_differs_from_the_model_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    model, x = tower()
    run = cleave._cut.Cut._finish_suffix
    monkeypatch.setattr(cleave._cut.Cut, "_finish_suffix", lambda *a: run(*a) + 1)
    with pytest.raises(SplitError, match="do not give the model's results"):
        prepare(model, x)
    with pytest.raises(SplitError, match="do not give the model's results"):
        prepare(model, x, dynamic_batch=(1, 8))


# ---- not cutting, measured speeds, compression


def linked(**more: Any) -> dict[str, Any]:
    return {"minimize": "latency", "constraints": {"bandwidth_bytes_per_s": 1e3, **more}}


def test_not_cutting_is_a_candidate_of_latency_and_is_named_when_it_wins() -> None:
    model, x = tower()
    with pytest.warns(cleave.CleaveWarning, match=r"not cutting is faster: .* with everything before the link"):
        runtime = prepare(model, x, linked(bandwidth_bytes_per_s=997.0))
    assert runtime.latency is not None
    assert runtime.latency.input_bytes == 4 * 8 * 4
    assert runtime.latency.here < runtime.latency.cut < runtime.latency.there
    must_equal(runtime, model, x)


def test_a_cut_that_is_faster_than_not_cutting_comes_without_a_warning(recwarn: pytest.WarningsRecorder) -> None:
    model, x = nn.Sequential(nn.Linear(1000, 4), nn.Linear(4, 2000)).eval(), torch.randn(4, 1000)
    slow = linked(prefix_flops_per_s=1e6, suffix_flops_per_s=1e12, bandwidth_bytes_per_s=1e5)
    runtime = prepare(model, x, slow)
    assert runtime.candidate.name == "linear"
    assert runtime.latency is not None
    assert runtime.latency.cut < runtime.latency.here < runtime.latency.there
    assert not recwarn.list
    assert prepare(model, x).latency is None


def test_speeds_come_from_files_that_bench_wrote(tmp_path: Any) -> None:
    measured = tmp_path / "prefix.json"
    measured.write_text('[{"sizes": "B=4", "median": 0.001, "flops_per_s": 2.5e9}]')
    fields = read(linked(prefix_flops_per_s=measured, suffix_flops_per_s=str(measured)), False).fields
    assert fields["prefix_flops_per_s"] == fields["suffix_flops_per_s"] == 2.5e9
    measured.write_text("[]")
    with pytest.raises(SplitError, match=r"prefix_flops_per_s must be .*no row has flops_per_s"):
        read(linked(prefix_flops_per_s=measured), False)
    with pytest.raises(SplitError, match=r"prefix_flops_per_s must be .*missing.json"):
        read(linked(prefix_flops_per_s="missing.json"), False)


def test_compression_counts_in_what_is_sent() -> None:
    model, x = tower()
    few = {"constraints": {"max_boundary_bytes": 90, "compress": "int8"}}
    runtime = prepare(model, x, few)
    assert runtime.candidate.boundary_bytes // 4 <= 90 < runtime.candidate.boundary_bytes
    with pytest.raises(SplitError, match='compress is "fp16", "bf16", "int8" or'):
        prepare(model, x, {"constraints": {"compress": "gzip"}})
    with pytest.raises(SplitError, match="compress is"):
        prepare(model, x, {"constraints": {"compress": 8}})


def test_the_candidate_says_why_it_was_taken() -> None:
    model, x = tower()
    near = prepare(model, x, boundary="50%")
    assert near.candidate.taken_because == "boundary='50%', the fewest bytes within 5 % of the work"
    assert near.candidate in near.candidates
    assert prepare(model, x, boundary="nearest:50%").candidate.taken_because == "boundary='nearest:50%'"
    assert [c.taken_because for c in near.candidates].count("") == len(near.candidates) - 1

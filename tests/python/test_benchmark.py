"""cleave.benchmark: what is measured, in which order, and how results look. No test asks how long anything takes."""

from __future__ import annotations

import dataclasses
import doctest
import inspect
import json
import math
import sys
from typing import Any

import pytest
import torch
from torch import nn

import cleave
from cleave import _native, benchmark
from cleave.benchmark import BenchmarkResult, compare, table

FEW: dict[str, Any] = {"iterations": 2, "warmup": 1}
COMPILED = {"backend": "eager"}
FIELDS = (
    "name",
    "average_latency_s",
    "total_latency_s",
    "iterations",
    "batch_size",
    "split_id",
    "execution_mode",
    "cuda_peak_memory_bytes",
    "active_backend",
    "fallback_reason",
)


def net() -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(6, 16), nn.BatchNorm1d(16), nn.ReLU(), nn.Dropout(0.5), nn.Linear(16, 3))


def split_of(model: nn.Module, x: torch.Tensor, **options: Any) -> cleave.SplitRuntime:
    return cleave.prepare_split(model, example_inputs=(x,), split=cleave.SplitSpec(boundary="after:2"), **options)


def result(name: str = "way", **fields: Any) -> BenchmarkResult:
    return BenchmarkResult(name, 0.5, 1.0, 2, **fields)


def makes_sense(r: BenchmarkResult, iterations: int) -> None:
    assert len(r.latencies_s) == r.iterations == iterations
    assert math.isclose(r.total_latency_s, sum(r.latencies_s))
    assert math.isclose(r.average_latency_s, r.total_latency_s / iterations)
    assert 0 < r.least_latency_s <= r.low_latency_s <= r.median_latency_s <= r.high_latency_s
    assert 0 < r.speedup_low <= r.speedup <= r.speedup_high
    assert r.latency.median == r.median_latency_s


# ---- compare


def test_every_round_runs_each_way_once_and_begins_with_another() -> None:
    ran: list[str] = []
    ways = {name: lambda name=name: ran.append(name) for name in "abc"}
    results = compare(ways, 3, 1, memory=False)
    assert [ran[i : i + 3] for i in range(0, len(ran), 3)] == [list("abc"), list("bca"), list("cab"), list("abc")]
    assert [r.name for r in results] == ["a", "b", "c"]
    for r in results:
        makes_sense(r, 3)
    assert results[0].speedup == results[0].speedup_low == results[0].speedup_high == 1.0


def test_a_set_up_runs_before_each_run_and_hands_over_what_it_made() -> None:
    seen: list[Any] = []
    numbers = iter(range(100))
    compare({"way": (lambda: next(numbers), seen.append)}, 3, 2, memory=False)
    assert seen == [0, 1, 2, 3, 4]


def test_one_round_without_warming_up_is_enough() -> None:
    (r,) = compare({"way": lambda: None}, 1, 0)
    makes_sense(r, 1)
    assert r.low_latency_s == r.high_latency_s == r.latencies_s[0]


def test_grad_mode_is_the_callers() -> None:
    seen: list[bool] = []
    for grad in (True, False):
        with torch.set_grad_enabled(grad):
            compare({"way": lambda: seen.append(torch.is_grad_enabled())}, 1, 0, memory=False)
    assert seen == [True, False]


@pytest.mark.parametrize(
    ("ways", "options", "error", "says"),
    [
        ({}, {}, ValueError, "ways is empty"),
        ([abs], {}, TypeError, "a dict of callables by name, not list"),
        ({"a": 3}, {}, TypeError, "a: a way is a callable, or a pair"),
        ({"a": (3, abs)}, {}, TypeError, "a: a way is a callable, or a pair"),
        ({"a": abs}, {"iterations": 0}, ValueError, "iterations must be an integer of at least 1, not 0"),
        ({"a": abs}, {"iterations": True}, ValueError, "iterations must be an integer"),
        ({"a": abs}, {"warmup": -1}, ValueError, "warmup must be an integer of at least 0, not -1"),
        ({"a": abs}, {"warmup": 1.5}, ValueError, "warmup must be an integer"),
        ({"a": abs}, {"device": "nowhere"}, RuntimeError, "nowhere"),
        ({"a": abs}, {"seconds": -1}, ValueError, "seconds must be a number of at least 0, not -1"),
        ({"a": abs}, {"lead_in": math.nan}, ValueError, "lead_in must be a number"),
        ({"a": abs}, {"block": "short"}, ValueError, "block must be a number"),
        ({"a": abs}, {"settled": True}, ValueError, "settled must be a number"),
    ],
)
def test_what_cannot_be_measured_is_refused(ways: Any, options: Any, error: type, says: str) -> None:
    with pytest.raises(error, match=says):
        compare(ways, **options)


def test_what_a_way_raises_comes_through() -> None:
    with pytest.raises(ZeroDivisionError):
        compare({"fine": lambda: None, "broken": lambda: 1 / 0}, 1, 0)


class Clockwork:
    """A way that says how long it took."""

    def __init__(self, *took: float) -> None:
        self.took, self.asked = took, []  # type: tuple[float, ...], list[int]

    def seconds(self, times: int) -> float:
        self.asked.append(times)
        return self.took[(len(self.asked) - 1) % len(self.took)]


def test_a_way_may_measure_itself() -> None:
    a, b = compare({"a": Clockwork(0.5), "b": Clockwork(0.25)}, 4, 1)
    assert (a.latencies_s, b.latencies_s, b.speedup) == ((0.5,) * 4, (0.25,) * 4, 2.0)
    assert (a.cpu_peak_memory_bytes, a.cuda_peak_memory_bytes) == (None, None)
    (mixed,) = compare({"way": benchmark.Timed((lambda: 3, abs), "cpu")}, 2, 0)
    makes_sense(mixed, 2)
    with pytest.raises(TypeError, match="a way is a callable, or a pair"):
        benchmark.Timed(3)  # type: ignore[arg-type]


def test_short_calls_run_untimed_first_and_several_at_a_time() -> None:
    short, long = Clockwork(0.001), Clockwork(0.5)
    compare({"short": short, "long": long}, 2, 3, lead_in=0.004, block=0.002)
    assert short.asked == [1, 1, 1, 4, 2, 4, 2]
    assert long.asked == [1, 1, 1, 1, 1]  # it needs neither
    unknown = Clockwork(0.001)
    compare({"way": unknown}, 1, 0, block=0.002)
    assert unknown.asked == [1, 2]  # how long it takes has to be seen once


def test_a_block_of_calls_with_a_set_up_has_one_before_each() -> None:
    seen: list[Any] = []
    numbers = iter(range(100))
    assert benchmark.Timed((lambda: next(numbers), seen.append), "cpu").seconds(3) > 0
    assert seen == [0, 1, 2]


def test_rounds_stop_when_the_time_is_over_but_not_before_three() -> None:
    assert compare({"a": Clockwork(1.0)}, 50, 9, seconds=0.0)[0].iterations == 3
    assert compare({"a": Clockwork(1.0)}, 2, 0, seconds=0)[0].iterations == 2
    way = Clockwork(1.0)
    compare({"a": way}, 3, 9, seconds=0.0)
    assert len(way.asked) == 4  # warming up is over after one round


def test_rounds_stop_when_ratios_are_known() -> None:
    together = compare({"a": Clockwork(1.0, 5.0, 2.0), "b": Clockwork(2.0, 10.0, 4.0)}, 50, 0, settled=0.01)
    assert {r.iterations for r in together} == {6}  # the machine was slow at times, for both
    apart = compare({"a": Clockwork(1.0), "b": Clockwork(1.0, 1.5)}, 50, 0, settled=0.01)
    assert {r.iterations for r in apart} == {50}
    rare = compare({"a": Clockwork(1.0), "b": Clockwork(9.0, *[1.0] * 30)}, 50, 0, settled=0.01)
    assert {r.iterations for r in rare} == {9}  # one outlier does not move a median
    assert compare({"a": Clockwork(1.0, 1.001)}, 50, 0, settled=0.01)[0].iterations == 6


# ---- memory


def test_peak_memory_is_what_one_run_had_at_once() -> None:
    x = torch.zeros(1000)
    one, two, none = compare({"one": lambda: x + x, "two": lambda: (x + x) * x, "none": lambda: x.add_(x)}, 1, 0)
    assert (one.cpu_peak_memory_bytes, two.cpu_peak_memory_bytes, none.cpu_peak_memory_bytes) == (4000, 8000, 0)
    assert one.cuda_peak_memory_bytes is None


def test_memory_of_the_set_up_does_not_count_and_its_release_does() -> None:
    def swap(held: list[torch.Tensor]) -> None:
        held.clear()
        held.append(torch.zeros(500))

    (r,) = compare({"way": (lambda: [torch.zeros(1000)], swap)}, 1, 0)
    assert r.cpu_peak_memory_bytes == 0


def test_memory_is_not_measured_unless_wanted() -> None:
    ran: list[int] = []
    (r,) = compare({"way": lambda: ran.append(1)}, 2, 1, memory=False)
    assert r.cpu_peak_memory_bytes is None
    assert len(ran) == 3


def test_a_capture_can_be_measured() -> None:
    model, x = net().eval(), torch.randn(2, 6)
    counts: list[int] = []
    compare({"capture": lambda: counts.append(len(cleave.capture(model, x).nodes))}, 1, 0)
    assert len(counts) == 2
    assert len(set(counts)) == 1
    assert counts[0] > 3


def test_memory_is_measured_beside_a_profiler_of_the_users() -> None:
    x = torch.zeros(1000)
    with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CPU]) as profiler:
        torch.relu(x)
        assert _native.peak_memory(lambda: None, lambda _: x + x) == 4000
        torch.relu(x)
    assert sum(e.name == "aten::relu" for e in profiler.events()) == 2


def test_the_meter_ends_when_the_call_fails() -> None:
    for setup, call in ((lambda: 1 / 0, abs), (lambda: None, lambda _: 1 / 0)):
        with pytest.raises(ZeroDivisionError):
            _native.peak_memory(setup, call)
    assert _native.peak_memory(lambda: None, lambda _: torch.zeros(10)) == 40


# ---- statistics


def test_spreads_are_medians_and_quartiles() -> None:
    assert benchmark.spread([4.0, 1.0, 3.0, 2.0]) == (2.5, 1.75, 3.25, 1.0, 4.0)
    assert benchmark.spread([7]) == (7, 7, 7, 7, 7)
    assert benchmark.spread([0.001, 0.002, 0.003]).text(1, 1e3) == "2.0 [1.5 2.5]"
    with pytest.raises(ValueError, match="at least one number"):
        benchmark.spread([])
    with pytest.raises(TypeError):
        benchmark.spread(["a"])  # type: ignore[list-item]


def test_ratios_are_of_rounds() -> None:
    assert benchmark.ratios([4.0, 9.0, 100.0], [2.0, 3.0, 100.0]).median == 2.0
    with pytest.raises(ValueError, match="here are 2 and 1"):
        benchmark.ratios([1.0, 2.0], [1.0])


def test_break_even_counts_calls() -> None:
    slow = result(median_latency_s=0.5, prepare_s=1.0, first_run_s=1.0)
    fast = result(median_latency_s=0.25, prepare_s=2.0, first_run_s=1.1)
    assert benchmark.break_even_iterations(slow, fast) == 5
    assert benchmark.break_even_iterations(fast, slow) is None
    assert benchmark.break_even_iterations(slow, slow) is None
    sooner = dataclasses.replace(fast, prepare_s=0.0, first_run_s=None)
    assert benchmark.break_even_iterations(slow, sooner) == 0
    for unknown in (result(median_latency_s=0.1), result(prepare_s=1.0)):
        with pytest.raises(ValueError, match="are not known"):
            benchmark.break_even_iterations(slow, unknown)


# ---- results


def test_a_result_has_the_fields_of_its_peers_first() -> None:
    assert tuple(f.name for f in dataclasses.fields(BenchmarkResult))[: len(FIELDS)] == FIELDS
    made = BenchmarkResult("a", 0.5, 1.0, 2, 4, "split", "generated_eager")
    assert (made.batch_size, made.active_backend, made.cpu_peak_memory_bytes) == (4, None, None)
    with pytest.raises(dataclasses.FrozenInstanceError):
        made.name = "b"  # type: ignore[misc]


def test_json_has_plain_numbers_and_the_machine() -> None:
    results = compare({"way": lambda: None}, **FEW)
    read = json.loads(benchmark.to_json([*results, result()], model="net"))
    assert read["model"] == "net"
    assert read["environment"]["torch"] == torch.__version__
    assert read["results"][0]["median_latency_s"] == results[0].median_latency_s
    assert read["results"][1]["median_latency_s"] is None
    assert "latencies_s" not in read["results"][0]
    read = json.loads(benchmark.to_json(results, samples=True))
    assert tuple(read["results"][0]["latencies_s"]) == results[0].latencies_s


def test_a_table_has_only_columns_that_say_something() -> None:
    assert table([]) == "no results"
    text = table(compare({"a way": lambda: None, "another": lambda: None}, memory=False, **FEW))
    assert text.splitlines()[0].split("  ")[0] == "name"
    assert "first / this" in text
    assert "a way" in text
    assert "CPU peak" not in text
    assert "batch" not in text
    text = table([result(batch_size=4, cpu_peak_memory_bytes=2000, fallback_reason="no\x1b compiler")])
    assert "2.0 kB" in text
    assert "500.000" in text
    assert text.splitlines()[-1] == "way fell back: no? compiler"


# ---- splits


def test_a_runtime_is_measured_beside_its_model() -> None:
    model, x = net().eval(), torch.randn(4, 6)
    runtime = split_of(model, x)
    results = benchmark.benchmark_runtime(model, runtime, (x,), **FEW)
    names = ["direct_pytorch_forward", "generated_eager_prefix_suffix", "generated_eager_suffix_only"]
    assert [r.name for r in results] == names
    for r in results:
        makes_sense(r, 2)
        assert (r.batch_size, r.split_id, r.execution_mode) == (4, runtime.split_id, "generated_eager")
        assert r.prepare_s is None
    assert [r.active_backend for r in results] == [None, "tape", "tape"]


def test_a_replay_runtime_and_keyword_inputs_are_measured_too() -> None:
    class Named(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.body = nn.Linear(6, 6)

        def forward(self, *, x: torch.Tensor) -> torch.Tensor:
            return self.body(x).relu() * 2

    model, x = Named().eval(), torch.randn(5, 6)
    spec = cleave.SplitSpec(boundary="after:body")
    options: dict[str, Any] = {"example_inputs": (), "example_kwargs": {"x": x}, "split": spec}
    runtime = cleave.compat.prepare_split_replay(model, mode="generated_eager", **options)
    results = benchmark.benchmark_runtime(model, runtime, (), kwargs={"x": x}, **FEW)
    assert [r.batch_size for r in results] == [5, 5, 5]
    with pytest.raises(TypeError, match="cannot train"):
        benchmark.benchmark_runtime(model, runtime, (), kwargs={"x": x}, targets=x, **FEW)


def test_training_is_measured_where_there_are_targets_and_leaves_the_model_as_it_was() -> None:
    model, x = net().train(), torch.randn(4, 6)
    runtime = split_of(model, x)
    for p in model.parameters():
        p.grad = torch.ones_like(p)
    before = {name: t.clone() for name, t in model.state_dict().items()}
    targets, random = torch.randn(4, 3), torch.get_rng_state()
    results = benchmark.benchmark_runtime(model, runtime, (x,), targets=targets, **FEW)
    assert [r.name for r in results[3:]] == ["generated_eager_suffix_training", "generated_eager_prefix_backward"]
    assert torch.equal(torch.get_rng_state(), random)
    assert all(torch.equal(t, before[name]) for name, t in model.state_dict().items())
    assert all(p.grad is not None and bool((p.grad == 1).all()) for p in model.parameters())


def test_the_model_may_be_another_one_than_that_of_the_runtime() -> None:
    model, twin, x = net().train(), net().train(), torch.randn(4, 6)
    runtime = split_of(model, x)
    before = {name: t.clone() for name, t in model.state_dict().items()}
    benchmark.benchmark_runtime(twin, runtime, (x,), targets=torch.randn(4, 3), **FEW)
    assert all(torch.equal(t, before[name]) for name, t in model.state_dict().items())
    assert all(p.grad is None for p in model.parameters())


@pytest.mark.integration
def test_modes_are_measured_side_by_side() -> None:
    model, x = net().eval(), torch.randn(4, 6)
    results = benchmark.benchmark_split_modes(
        model,
        example_inputs=(x,),
        inputs=(torch.randn(3, 6),),
        split="after:2",
        targets=torch.randn(3, 3),
        compile_options=COMPILED,
        **FEW,
    )
    parts = ["prefix_suffix", "suffix_only", "suffix_training", "prefix_backward"]
    modes = ["debug_interpreter", "generated_eager", "compiled"]
    assert [r.name for r in results] == [
        name for mode in modes for name in ("direct_pytorch_forward", *(f"{mode}_{part}" for part in parts))
    ]
    assert [r.execution_mode for r in results] == [mode for mode in modes for _ in range(5)]
    assert {r.batch_size for r in results} == {3}
    assert results[0].latencies_s == results[5].latencies_s == results[10].latencies_s
    assert results[-1].active_backend == results[-4].active_backend == "eager fullgraph"
    assert all((r.prepare_s is None) == r.name.startswith("direct") for r in results)


def test_the_tape_is_measured_against_itself_optimized() -> None:
    model, x = net().eval(), torch.randn(4, 6)
    _, base, fast = benchmark.benchmark_replay_optimization(
        model, example_inputs=(x,), inputs=(x,), split="50%", mode="generated_eager", optimize="fast", **FEW
    )
    assert (base.execution_mode, fast.execution_mode) == ("generated_eager", "generated_eager")
    with pytest.raises(ValueError, match="optimize is one of none, safe, fast, not 'most'"):
        benchmark.benchmark_replay_optimization(
            model, example_inputs=(x,), inputs=(x,), split="50%", optimize="most", **FEW
        )


@pytest.mark.parametrize("mode", ["compiled", "cuda_graph"])
def test_replay_is_measured_against_what_is_generated(mode: str) -> None:
    model, x = net().eval(), torch.randn(4, 6)
    options = COMPILED if mode == "compiled" else None
    direct, base, fast = benchmark.benchmark_replay_optimization(
        model, example_inputs=(x,), inputs=(x,), split="50%", mode=mode, compile_options=options, **FEW
    )
    assert direct.name == "direct_pytorch_forward"
    assert (base.name, base.execution_mode) == ("baseline_generated_prefix_suffix", "generated_eager")
    assert (fast.name, fast.execution_mode) == ("optimized_replay", mode)
    assert base.active_backend == "tape"
    if mode == "compiled":
        assert (fast.active_backend, fast.fallback_reason) == ("eager fullgraph", None)
    elif not torch.cuda.is_available():
        assert fast.active_backend == "tape"
        assert f"optimized_replay fell back: {fast.fallback_reason}" in table([direct, base, fast])
    assert benchmark.ready_s(fast) > 0


def test_training_is_measured_against_what_is_generated() -> None:
    model, x = net().train(), torch.randn(4, 6)
    base, fast = benchmark.benchmark_split_retain_optimization(
        model,
        example_inputs=(x,),
        inputs=(x,),
        split=cleave.SplitSpec(boundary="after:2", trainable=True),
        loss_fn=lambda out, _: out.square().mean(),
        objective={"constraints": {"trainable_suffix": True}},
        compile_options=COMPILED,
        **FEW,
    )
    assert (base.name, fast.name) == ("baseline_split_retain_roundtrip", "optimized_split_retain_roundtrip")
    assert (base.active_backend, fast.active_backend) == ("tape", "eager fullgraph")
    assert all(p.grad is None for p in model.parameters())
    calls = benchmark.break_even_iterations(base, fast)
    assert calls is None or calls >= 0


def test_what_does_not_compile_is_told() -> None:
    def broken(graph: Any, inputs: Any) -> Any:
        raise RuntimeError("this backend never works")

    model, x = net().eval(), torch.randn(4, 6)
    options = {"backend": broken}
    *_, fast = benchmark.benchmark_replay_optimization(
        model, example_inputs=(x,), inputs=(x,), split="50%", compile_options=options, **FEW
    )
    assert fast.active_backend == "tape"
    assert "this backend never works" in (fast.fallback_reason or "")


@pytest.mark.parametrize(
    ("options", "error", "says"),
    [
        ({"split": 3}, TypeError, 'split must be a SplitSpec or a boundary such as "50%"'),
        ({"split": "after:nowhere"}, cleave.SplitError, "nowhere"),
        ({"modes": "compiled"}, ValueError, "modes are several texts"),
        ({"modes": ()}, ValueError, "modes are several texts"),
        ({"modes": ("quick",)}, cleave.SplitError, "mode must be one of"),
        ({"iterations": 0}, ValueError, "iterations must be"),
        ({"model": None}, TypeError, "model must be a module or a function"),
        ({"targets": "none", "modes": ("generated_eager",)}, TypeError, "targets must be a tensor"),
        ({"inputs": (torch.randn(99, 6),), "modes": ("generated_eager",)}, cleave.InputError, "99"),
    ],
)
def test_wrong_arguments_are_refused(options: Any, error: type, says: str) -> None:
    x = torch.randn(4, 6)
    given = {"model": net().eval(), "example_inputs": (x,), "inputs": (x,), "split": "50%", **FEW, **options}
    with pytest.raises(error, match=says):
        benchmark.benchmark_split_modes(given.pop("model"), **given)


def test_a_runtime_is_what_prepare_split_gives() -> None:
    with pytest.raises(TypeError, match="a SplitRuntime is needed, as prepare_split makes it, not Sequential"):
        benchmark.benchmark_runtime(net(), net(), (torch.randn(4, 6),))  # type: ignore[arg-type]


def test_inputs_without_rows_have_no_batch() -> None:
    def double(x: torch.Tensor) -> torch.Tensor:
        return (x * 2).relu() + 1

    x = torch.tensor(3.0)
    spec = cleave.SplitSpec(boundary="50%", dynamic_batch=None)
    runtime = cleave.prepare_split(double, example_inputs=(x,), split=spec)
    assert {r.batch_size for r in benchmark.benchmark_runtime(double, runtime, (x,), **FEW)} == {None}


# ---- the module


def test_names_and_arguments_are_those_of_other_split_runtimes() -> None:
    shared = {"example_inputs", "inputs", "split", "iterations", "warmup", "compile_options"}
    wanted = {
        "benchmark_runtime": {"model", "runtime", "inputs", "targets", "loss_fn", "iterations", "warmup"},
        "benchmark_split_modes": {*shared, "targets", "loss_fn", "modes"},
        "benchmark_replay_optimization": {*shared, "objective", "materialize_boundary"},
        "benchmark_split_retain_optimization": {*shared, "targets", "loss_fn", "objective"},
    }
    for name, arguments in wanted.items():
        parameters = inspect.signature(getattr(benchmark, name)).parameters
        assert arguments <= set(parameters), name
        assert (parameters["iterations"].default, parameters["warmup"].default) == (20, 5)


def test_examples_in_docstrings_run() -> None:
    assert doctest.testmod(benchmark).failed == 0
    assert cleave.benchmark is benchmark


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device")
def test_cuda_is_waited_for_and_its_memory_is_told() -> None:
    model, x = net().eval().cuda(), torch.randn(4, 6, device="cuda")
    results = benchmark.benchmark_replay_optimization(
        model, example_inputs=(x,), inputs=(x,), split="50%", mode="cuda_graph", **FEW
    )
    assert results[-1].active_backend == "cuda graph"
    assert all((r.cuda_peak_memory_bytes or 0) >= x.nbytes for r in results)
    big = torch.zeros(1 << 20, device="cuda")
    (r,) = compare({"way": lambda: big + big}, 2, 1)
    assert (r.cuda_peak_memory_bytes or 0) >= 2 * big.nbytes


def test_the_way_that_raises_is_named() -> None:
    with pytest.raises(ZeroDivisionError) as error:
        benchmark.compare({"good": lambda: 1, "bad": lambda: 1 // 0})
    if sys.version_info >= (3, 11):
        assert "'bad'" in "".join(error.value.__notes__)


@pytest.mark.skipif(torch.accelerator.is_available(), reason="needs a machine without a GPU")
def test_a_device_that_is_not_there_is_refused() -> None:
    with pytest.raises(cleave.ArgumentError, match="cuda: torch finds none"):
        benchmark.compare({"one": lambda: 1}, device="cuda")


def test_a_table_of_one_result() -> None:
    (result,) = benchmark.compare({"one": lambda: 1}, iterations=3)
    assert benchmark.table(result) == benchmark.table([result])

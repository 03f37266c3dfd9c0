"""Profiles: what blocks take is measured on real values, and nothing of the model is changed by it."""

from __future__ import annotations

import json
import random
import signal
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import cleave
from cleave import profile
from cleave._state import Target
from cleave.plan import capture_shapes
from cleave.profile import NUMBERS, Profile

METRICS = (
    "forward_time",
    "backward_time",
    "cuda_memory_forward",
    "cuda_memory_backward",
    "size",
    "input_size",
    "output_size",
)


def conv_net() -> nn.Module:
    return nn.Sequential(
        nn.Conv2d(3, 8, 3, padding=1),
        nn.BatchNorm2d(8),
        nn.ReLU(inplace=True),
        nn.Dropout(0.5),
        nn.Flatten(),
        nn.Linear(8 * 8 * 8, 10),
    ).train()


def measured(
    model: Callable[..., Any], *args: Tensor, every: int = 1, ends: list[int] | None = None, **options: Any
) -> Profile:
    """A profile of blocks of `every` nodes, a few runs each."""
    captured = cleave.capture(model, args)._main
    n = captured.plan.node_count()
    ends = ends or sorted({*range(every, n, every), n})
    names = [f"block{i}" for i in range(len(ends))]
    options = {"n_iter": 2, "warmup": 1, **options}
    return profile.measure(captured, captured.plan, ends, names, args, **options)


def mb(*counts: int, size: int = 4) -> float:
    return sum(counts) * size / 1e6


def of_module(p: Profile, path: str) -> profile.BlockProfile:
    return next(r for r in p if r.module == path)


# ---- what is measured


def test_every_block_has_all_metrics_as_attributes_and_as_keys() -> None:
    p = measured(conv_net(), torch.randn(4, 3, 8, 8), every=3)
    assert [r.ops for r in p] == [3, 3, 1]
    assert [r.end for r in p] == [3, 6, 7]
    for row in p:
        for name in METRICS:
            assert row[name] == getattr(row, name) >= 0
        assert row.forward_time > 0
        assert row.forward_least <= row.forward_low <= row.forward_time <= row.forward_high <= row.forward_most
        assert row.backward_least <= row.backward_low <= row.backward_time <= row.backward_high <= row.backward_most
    with pytest.raises(KeyError, match="there is no metric 'time'"):
        p[0]["time"]
    assert p.whole is not None
    assert p.whole.forward_time > 0
    assert p.whole.backward_time > 0


def test_sizes_are_exact() -> None:
    p = measured(conv_net(), torch.randn(4, 3, 8, 8))
    conv, linear = of_module(p, "0"), of_module(p, "5")
    norm = [r for r in p if r.module == "1"]
    image = 4 * 8 * 8 * 8
    assert conv.size == mb(8 * 3 * 9 + 8)
    assert conv.input_size == mb(4 * 3 * 64)
    assert conv.output_size == mb(image)
    assert sum(r.size for r in norm) == pytest.approx(mb(4 * 8) + 8 / 1e6)  # and the count of batches
    assert linear.size == mb(512 * 10 + 10)
    assert linear.input_size == mb(image)
    assert linear.output_size == mb(40)
    assert p.whole is not None
    assert p.whole.input_size == mb(4 * 3 * 64)
    assert p.whole.output_size == mb(40)
    assert p.whole.size == pytest.approx(sum(r.size for r in p))


def test_memory_is_what_the_tensors_need() -> None:
    p = measured(nn.Sequential(nn.Linear(64, 32), nn.Sigmoid(), nn.Linear(32, 16)), torch.randn(8, 64))
    first, act, last = p
    assert first.cuda_memory_forward == first.held == mb(8 * 32)
    assert act.cuda_memory_forward == act.held == mb(8 * 32)
    assert act.cuda_memory_backward == mb(8 * 32)  # the gradient of its input
    assert first.cuda_memory_backward == mb(64 * 32 + 32)  # gradients of the parameters: the input has none
    assert last.cuda_memory_backward == mb(32 * 16 + 16 + 8 * 32)
    assert p.whole is not None
    assert p.whole.held == mb(8 * 32 + 8 * 16)  # what sigmoid reads nobody needs any more


def test_a_block_holds_what_its_backward_needs_beside_its_outputs() -> None:
    class Net(nn.Module):
        def forward(self, x: Tensor) -> Tensor:
            return x.exp().sin().cos()

    x = torch.randn(100, requires_grad=True)
    trained = measured(Net(), x, ends=[3])[0]
    assert trained.held == mb(3 * 100)
    frozen = measured(Net(), x, ends=[3], training=False)[0]
    assert frozen.held == mb(100)
    assert frozen.cuda_memory_forward == mb(2 * 100)
    assert frozen.backward_time == 0
    assert frozen.cuda_memory_backward == 0


def test_backward_is_measured_only_where_gradients_flow() -> None:
    class Net(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.frozen = nn.Linear(4, 4).requires_grad_(False)
            self.open = nn.Linear(4, 4)

        def forward(self, x: Tensor) -> Tensor:
            y: Tensor = self.open(self.frozen(x)).detach().relu()
            return y

    p = measured(Net(), torch.randn(2, 4))
    assert of_module(p, "frozen").backward_time == 0
    assert of_module(p, "open").backward_time > 0
    assert [r.backward_time for r in p[2:]] == [0] * (len(p) - 2)


def test_values_that_skip_blocks_belong_to_those_who_read_them() -> None:
    class Net(nn.Module):
        def forward(self, x: Tensor, unused: Tensor) -> Tensor:
            y = x.exp()
            return y.sin().cos() + y

    p = measured(Net(), torch.randn(100), torch.randn(7))
    assert [r.input_size for r in p] == [mb(100), mb(100), mb(100), mb(200)]
    assert [r.output_size for r in p] == [mb(100)] * 4


# ---- what stays as it was


def state_of(model: nn.Module) -> dict[str, Any]:
    return {
        "state": {k: v.clone() for k, v in model.state_dict().items()},
        "grads": [(p.grad, None if p.grad is None else p.grad.clone()) for p in model.parameters()],
        "random": (torch.get_rng_state(), random.getstate()),
        "grad mode": torch.is_grad_enabled(),
    }


def same_state(model: nn.Module, before: dict[str, Any]) -> None:
    now = state_of(model)
    for name, tensor in before["state"].items():
        assert torch.equal(tensor, now["state"][name]), name
    for (was, copy), (is_now, _) in zip(before["grads"], now["grads"], strict=True):
        assert was is is_now
        assert copy is None or torch.equal(copy, is_now)
    assert torch.equal(before["random"][0], now["random"][0])
    assert before["random"][1] == now["random"][1]
    assert before["grad mode"] == now["grad mode"]


@pytest.mark.parametrize("every", [1, 2, 7])
@pytest.mark.parametrize("gradients", [False, True])
def test_the_model_its_gradients_and_the_generators_are_left_as_they_were(every: int, gradients: bool) -> None:
    model, x = conv_net(), torch.randn(4, 3, 8, 8)
    if gradients:
        model(x).sum().backward()
    captured = cleave.capture(model, x)._main
    n = captured.plan.node_count()
    ends = sorted({*range(every, n, every), n})
    for p in model.parameters():
        p.register_hook(lambda g: pytest.fail("a hook of the model was called"))
    kept, before = x.clone(), state_of(model)
    with torch.no_grad() if gradients else torch.enable_grad():
        before["grad mode"] = torch.is_grad_enabled()
        profile.measure(captured, captured.plan, ends, ["b"] * len(ends), [x], n_iter=2)
        same_state(model, before)
    assert torch.equal(x, kept)


def test_functions_that_write_their_inputs_and_silent_statistics_are_profiled_on_copies() -> None:
    def forward(x: Tensor, mean: Tensor, var: Tensor) -> Tensor:
        x.mul_(2)
        return nn.functional.batch_norm(x, mean, var, training=True)

    inputs = (torch.randn(4, 3), torch.zeros(3), torch.ones(3))
    kept = [t.clone() for t in inputs]
    measured(forward, *inputs)
    assert all(torch.equal(a, b) for a, b in zip(kept, inputs, strict=True))


def test_generators_of_the_model_are_put_back() -> None:
    generator = torch.Generator().manual_seed(3)

    def forward(x: Tensor) -> Tensor:
        return x + torch.empty_like(x).normal_(generator=generator)

    x = torch.randn(5)
    captured = cleave.capture(forward, x)._main
    before = generator.get_state()
    n = captured.plan.node_count()
    profile.measure(captured, captured.plan, list(range(1, n + 1)), ["b"] * n, [x], n_iter=2)
    assert torch.equal(before, generator.get_state())


# ---- models of all kinds


class WritesViews(nn.Module):
    """A buffer made inside is filled through views of it, across blocks."""

    def __init__(self) -> None:
        super().__init__()
        self.a, self.b = nn.Linear(4, 4), nn.Embedding(11, 4)

    def forward(self, x: Tensor) -> Tensor:
        out = x.new_empty(6, 4)
        which = torch.empty(3, dtype=torch.int64)
        top, first = out[:3], which[:1]
        top.copy_(self.a(x))
        which.fill_(5)
        out[3:] = self.b(which + first)  # what is not written before it is read is no index
        result: Tensor = out.add_(1).relu_()
        return result


class WritesInputs(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        y = x * 2
        return y.mul_(3).add_(1).sin()


class Doubled(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        return x * 2

    @staticmethod
    def backward(ctx: Any, *grads: Any) -> Any:
        return grads[0] * 2


class Opaque(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.a = nn.Linear(4, 4)

    def forward(self, x: Tensor) -> Tensor:
        y: Tensor = Doubled.apply(self.a(x))
        return y.sin()


class Tied(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.words = nn.Embedding(11, 6)
        self.out = nn.Linear(6, 11, bias=False)
        self.out.weight = self.words.weight

    def forward(self, tokens: Tensor) -> dict[str, Any]:
        x = self.words(tokens)
        return {"logits": self.out(x), "parts": x.split(2, dim=-1)}


MODELS: list[tuple[Callable[[], nn.Module], Callable[[], tuple[Tensor, ...]]]] = [
    (WritesViews, lambda: (torch.randn(3, 4),)),
    (WritesInputs, lambda: (torch.randn(5, requires_grad=True),)),
    (Opaque, lambda: (torch.randn(2, 4),)),
    (Tied, lambda: (torch.randint(0, 11, (2, 3)),)),
    (lambda: nn.LSTM(4, 5, 2), lambda: (torch.randn(3, 2, 4),)),
    (lambda: nn.TransformerEncoderLayer(8, 2, 16).train(), lambda: (torch.randn(3, 2, 8),)),
]


@pytest.mark.parametrize("every", [1, 2, 100])
@pytest.mark.parametrize(("make", "inputs"), MODELS)
def test_models_of_all_kinds_are_profiled(
    make: Callable[[], nn.Module], inputs: Callable[[], Sequence[Tensor]], every: int
) -> None:
    model = make()
    before = state_of(model)
    args = inputs()
    before["random"] = state_of(model)["random"]
    p = measured(model, *args, every=every)
    same_state(model, before)
    assert all(r.forward_time > 0 for r in p)
    assert any(r.backward_time > 0 for r in p)


def test_opaque_python_has_its_own_backward_measured() -> None:
    p = measured(Opaque(), torch.randn(2, 4))
    assert len(p) == 3
    assert p[1].backward_time > 0
    assert p[1].input_size == mb(8)


def test_plans_for_many_sizes_are_measured_at_the_given_one() -> None:
    captured = cleave.capture(nn.Linear(4, 2), torch.randn(3, 4), dynamic_batch=(2, 64))._main
    for n in (2, 5):
        p = profile.measure(captured, captured.plan, [1], ["all"], [torch.randn(n, 4)], n_iter=1)
        assert p[0].input_size == mb(4 * n)
        assert p[0].output_size == mb(2 * n)


def test_another_order_of_the_nodes_is_another_plan() -> None:
    class Net(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.a, self.b = nn.Linear(4, 4), nn.Linear(4, 4)

        def forward(self, x: Tensor) -> Tensor:
            y: Tensor = self.a(x).relu() + self.b(x).relu()
            return y

    captured = cleave.capture(Net(), torch.randn(2, 4))._main
    moved, at = captured.plan.exact(["linear_1"], [])
    n = moved.node_count()
    p = profile.measure(captured, moved, [at + 1, n], ["before", "after"], [torch.randn(2, 4)], n_iter=1)
    assert p["before"].size >= mb(20)
    assert p["after"].forward_time > 0


# ---- refusals


def test_wrong_blocks_names_and_counts_are_refused() -> None:
    model, x = nn.Linear(4, 2), torch.randn(3, 4)
    captured = cleave.capture(model, x)._main
    for ends, names, options, text in [
        ([1], [], {}, "1 block and 0 names"),
        ([2], ["a"], {}, "the last block must end with the plan"),
        ([0, 1], ["a", "b"], {}, "block 0 has no nodes"),
        ([-1, 1], ["a", "b"], {}, "block 1 has no nodes"),
        ([], [], {}, "the last block must end with the plan"),
        ([1], ["a"], {"n_iter": 0}, "n_iter of 1 or more"),
        ([1], ["a"], {"warmup": -1}, "warmup of 0 or more"),
    ]:
        with pytest.raises(cleave.CleaveError, match=text):
            profile.measure(captured, captured.plan, ends, names, [x], **options)
    for leaves, text in [([], "1 tensors are needed, 0 were given"), ([torch.randn(2, 4)], "dimension 0 is 2")]:
        with pytest.raises(cleave.InputError, match=text):
            profile.measure(captured, captured.plan, [1], ["a"], leaves)


def test_a_model_that_changed_is_refused() -> None:
    model, x = conv_net(), torch.randn(4, 3, 8, 8)
    captured = cleave.capture(model, x)._main
    model.eval()
    with pytest.raises(cleave.InputError, match="switched between train and eval"):
        profile.measure(captured, captured.plan, [captured.plan.node_count()], ["a"], [x])


def test_without_gradients_there_is_no_training_to_measure() -> None:
    model, x = nn.Linear(4, 2), torch.randn(3, 4)
    captured = cleave.capture(model, x)._main._replace(with_grad=False)
    with pytest.raises(cleave.ArgumentError, match="captured without gradients"):
        profile.measure(captured, captured.plan, [1], ["a"], [x])
    assert profile.measure(captured, captured.plan, [1], ["a"], [x], training=False)[0].backward_time == 0
    captured = captured._replace(with_grad=True)
    with torch.inference_mode(), pytest.raises(cleave.ArgumentError, match="inference_mode"):
        profile.measure(captured, captured.plan, [1], ["a"], [x])


def test_an_interrupt_ends_a_profile_and_leaves_the_model_as_it_was() -> None:
    handler = signal.signal(signal.SIGINT, signal.default_int_handler)  # shells start jobs without one
    try:
        _interrupt_a_profile()
    finally:
        signal.signal(signal.SIGINT, handler)


def _interrupt_a_profile() -> None:
    model, x = conv_net(), torch.randn(4, 3, 8, 8)
    captured = cleave.capture(model, x)._main
    n = captured.plan.node_count()
    before, seen = state_of(model), []

    def interrupt(event: cleave.progress.Event) -> None:
        seen.append(event.step)
        if len(seen) == 3:
            signal.raise_signal(signal.SIGINT)

    with cleave.progress.listen(interrupt), pytest.raises(KeyboardInterrupt):
        profile.measure(captured, captured.plan, list(range(1, n + 1)), [f"b{i}" for i in range(n)], [x])
    assert seen[:3] == ["b0", "b1", "b2"]
    same_state(model, before)


def test_progress_counts_blocks() -> None:
    events: list[cleave.progress.Event] = []
    with cleave.progress.listen(events.append):
        measured(nn.Sequential(nn.Linear(4, 4), nn.ReLU()), torch.randn(2, 4), title="profiling Net")
    mine = [e for e in events if e.title == "profiling Net"]
    assert [e.step for e in mine] == ["block0", "block1", "all blocks at once", "all blocks at once"]
    assert mine[-1].done == mine[-1].total == 3
    assert mine[-1].ended


# ---- files


def test_a_profile_is_saved_and_loaded_the_same(tmp_path: Path) -> None:
    p = measured(conv_net(), torch.randn(4, 3, 8, 8), every=2)
    p.save(tmp_path / "p.json")
    again = Profile.load(tmp_path / "p.json")
    assert again == p
    assert again.to_dicts() == p.to_dicts()
    assert str(again) == str(p)
    assert again.key["torch"] == torch.__version__
    alone = Profile(p.rows, p.key)
    alone.save(tmp_path / "p.json")
    assert Profile.load(tmp_path / "p.json") == alone != p
    data = json.loads((tmp_path / "p.json").read_text())
    assert set(METRICS) <= set(data["blocks"][0])
    assert set(NUMBERS) <= set(data["blocks"][0])


def test_hostile_files_are_refused_with_their_name_and_the_place(tmp_path: Path) -> None:
    path = tmp_path / "p.json"
    measured(nn.Linear(4, 2), torch.randn(3, 4)).save(path)
    good = json.loads(path.read_text())

    def changed(**block: Any) -> str:
        return json.dumps({**good, "blocks": [{**good["blocks"][0], **block}]})

    for text, reason in [
        ("", "no valid JSON"),
        ("[" * 5_000, "no valid JSON"),
        ('{"format": "x"}', "it is no profile"),
        (json.dumps({**good, "version": 9}), "version 9"),
        (changed(forward_time=-1), r"blocks\[0\]: forward_time is -1"),
        (changed(size="many"), r"blocks\[0\]: size is missing or is no number"),
        (changed(end=0), r"blocks\[0\]: end is 0"),
        (changed(name=None), r"blocks\[0\]: \"name\" is missing"),
    ]:
        path.write_text(text)
        with pytest.raises(cleave.PlanError, match=reason) as caught:
            Profile.load(path)
        assert str(path) in str(caught.value)
    with pytest.raises(OSError, match=r"nowhere\.json"):
        Profile.load(tmp_path / "nowhere.json")


def test_a_cache_serves_only_the_same_plan_blocks_inputs_and_settings(tmp_path: Path) -> None:
    cache = tmp_path / "cache.json"
    model, x = nn.Sequential(nn.Linear(4, 4), nn.ReLU()), torch.randn(2, 4)
    captured = cleave.capture(model, x)._main

    def again(**options: Any) -> Profile:
        return profile.measure(captured, captured.plan, [1, 2], ["a", "b"], [x], cache=cache, **options)

    first = again()
    written = cache.read_bytes()
    assert again() == first
    assert cache.read_bytes() == written
    renamed = profile.measure(captured, captured.plan, [1, 2], ["c", "d"], [x], cache=cache)
    assert [r.name for r in renamed] == ["c", "d"]
    assert renamed[0].forward_time == first[0].forward_time
    assert cache.read_bytes() == written
    other = again(n_iter=7)
    assert other.key != first.key
    assert Profile.load(cache) == other
    assert again(n_iter=7, training=False).key["training"] == "False"
    whole = profile.measure(captured, captured.plan, [2], ["all"], [x], cache=cache)
    assert len(whole) == len(Profile.load(cache)) == 1
    key = Profile.load(cache).key
    for name in ("device", "torch", "threads", "plan", "inputs"):
        Profile(whole.rows, {**key, name: "other"}).save(cache)
        profile.measure(captured, captured.plan, [2], ["all"], [x], cache=cache, n_iter=10)
        assert Profile.load(cache).key == key
    assert not list(tmp_path.glob("*.tmp"))


def test_a_file_that_is_no_profile_is_not_overwritten(tmp_path: Path) -> None:
    path = tmp_path / "thesis.txt"
    path.write_text("years of work")
    with pytest.raises(cleave.PlanError, match=r"thesis\.txt"):
        measured(nn.Linear(4, 2), torch.randn(3, 4), cache=path)
    assert path.read_text() == "years of work"


# ---- looks


def test_a_profile_prints_as_a_table_with_sums() -> None:
    p = measured(conv_net(), torch.randn(4, 3, 8, 8))
    lines = repr(p).splitlines()
    assert lines[0].split()[:3] == ["block", "module", "ops"]
    assert len(lines) == len(p) + 2
    assert "7 blocks on" in lines[-1]
    assert "in one run" in lines[-1]
    assert "backward" in lines[-1]
    assert "<table" in p._repr_html_()
    long = Profile(p.rows * 20, p.key)
    assert "108 more" in repr(long)
    assert len(long.table().splitlines()) == 142
    with pytest.raises(KeyError, match="no block 'x'"):
        p["x"]


# ---- estimates


def test_an_estimate_has_the_sizes_that_a_measurement_has() -> None:
    model, x = conv_net(), torch.randn(4, 3, 8, 8)
    captured = cleave.capture(model, x)._main
    n = captured.plan.node_count()
    ends, names = list(range(1, n + 1)), [f"b{i}" for i in range(n)]
    real = profile.measure(captured, captured.plan, ends, names, [x], n_iter=1)
    guess = profile.estimate(captured.plan, ends, names)
    for a, b in zip(real, guess, strict=True):
        assert (a.name, a.module, a.ops, a.end) == (b.name, b.module, b.ops, b.end)
        assert (a.size, a.input_size, a.output_size) == (b.size, b.input_size, b.output_size)
        assert (a.backward_time > 0) == (b.backward_time > 0) or b.module == "4"  # a view takes no time
    faster = profile.estimate(captured.plan, ends, names, flops_per_s=1e18, bytes_per_s=1e18, node_us=0)
    assert 0 < faster.total("forward_time") < guess.total("forward_time")
    assert profile.estimate(captured.plan, ends, names, training=False).total("backward_time") == 0
    with pytest.raises(cleave.ArgumentError, match="an estimate needs"):
        profile.estimate(captured.plan, ends, names, flops_per_s=0)


def test_an_estimate_follows_the_sizes() -> None:
    captured = cleave.capture(nn.Linear(4, 2), torch.randn(3, 4), dynamic_batch=(2, 64))._main
    (symbol,) = captured.plan.symbols()
    p = profile.estimate(captured.plan, [1], ["all"], sizes={symbol: 1000})
    assert p[0].input_size == mb(4000)
    assert p[0].output_size == mb(2000)


def test_models_on_the_meta_device_are_estimated() -> None:
    """2.4 TB of weights: nothing is allocated."""
    with torch.device("meta"):
        layers = [nn.Sequential(nn.Linear(100_000, 1_000_000), nn.BatchNorm1d(1_000_000), nn.ReLU(inplace=True))]
        model = nn.Sequential(*layers, nn.Dropout(0.1), nn.Linear(1_000_000, 500_000)).train()
        x = torch.randn(16, 100_000)
    captured = capture_shapes(Target(model), (x,), {}, grad=True)
    n = captured.plan.node_count()
    ends = [1, *range(2, n), n]
    p = profile.estimate(captured.plan, ends, [f"b{i}" for i in range(n)])
    assert p[0].size == mb(100_000_000_000 + 1_000_000)
    assert p.total("size") == pytest.approx(mb(100_000_000_000 + 500_000_000_000, 5_500_000), rel=1e-9)
    assert p[0].backward_time == 2 * p[0].forward_time > 0
    with pytest.raises(cleave.CleaveError, match="meta device, which has no data"):
        profile.measure(captured, captured.plan, ends, [f"b{i}" for i in range(n)], [x])


# ---- on a GPU


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device")
def test_blocks_on_a_gpu_are_measured_by_its_own_clock_and_allocator() -> None:
    model, x = conv_net().cuda(), torch.randn(64, 3, 8, 8, device="cuda")
    before, generator = state_of(model), torch.cuda.get_rng_state()
    p = measured(model, x)
    same_state(model, before)
    assert torch.equal(generator, torch.cuda.get_rng_state())
    assert p.key["device"] == torch.cuda.get_device_name()
    linear = of_module(p, "5")
    assert linear.forward_time > 0
    assert linear.backward_time > 0
    assert linear.output_size == mb(640)
    assert linear.held >= linear.output_size
    assert linear.cuda_memory_backward >= mb(512 * 10 + 10 + 64 * 512)
    drop = of_module(p, "3")
    assert drop.held >= mb(64 * 512) + 64 * 512 / 1e6  # the output and the mask
    torch.cuda.reset_peak_memory_stats()
    start = torch.cuda.memory_allocated()
    model(x).sum()
    assert p.whole is not None
    assert p.whole.cuda_memory_forward <= 1.5 * (torch.cuda.max_memory_allocated() - start) / 1e6

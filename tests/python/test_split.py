"""Prefix and suffix: the ways to name a boundary, every error, equality with eager at each safe frontier."""

from __future__ import annotations

import dataclasses
import sys
import threading
from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from helpers import Args, draw, mentions, rng_state, same_state, same_tree, seed_all, state_of
from torch import Tensor, nn

import cleave

# ---- models ------------------------------------------------------------------------------------------------


class Mlp(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.fc1, self.fc2, self.fc3 = nn.Linear(4, 8), nn.Linear(8, 8), nn.Linear(8, 3)

    def forward(self, x: Tensor) -> Tensor:
        return self.fc3(self.fc2(self.fc1(x).relu()).tanh())


class Block(nn.Module):
    def __init__(self, channels: int) -> None:
        super().__init__()
        self.conv1 = nn.Conv2d(channels, channels, 3, padding=1, bias=False)
        self.bn1 = nn.BatchNorm2d(channels)
        self.relu = nn.ReLU(inplace=True)
        self.conv2 = nn.Conv2d(channels, channels, 3, padding=1, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        y = self.relu(self.bn1(self.conv1(x)))
        y = self.conv2(y)
        y += x
        return self.relu(y)


class Residual(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.stem = nn.Conv2d(3, 4, 3, stride=2)
        self.layer1, self.layer2 = Block(4), nn.Sequential(Block(4), Block(4))
        self.head = nn.Linear(4, 5)

    def forward(self, x: Tensor) -> Tensor:
        x = self.layer2(self.layer1(self.stem(x)))
        return self.head(F.adaptive_avg_pool2d(x, 1).flatten(1))


class Branches(nn.Module):
    """Three branches, a long skip, and the input used again at the end."""

    def __init__(self) -> None:
        super().__init__()
        self.a, self.b, self.c = nn.Linear(4, 4), nn.Linear(4, 4), nn.Linear(4, 4)

    def forward(self, x: Tensor, y: Tensor) -> Tensor:
        a, b = self.a(x).relu(), self.b(y).sigmoid()
        m = torch.cat([a, b, a * b], dim=1)
        c = self.c(a + b)
        return torch.cat([m, c], dim=1).sum(1, keepdim=True) * x + y


class MultiOutput(nn.Module):
    """Operators with several results: chunk, topk, lstm."""

    def __init__(self) -> None:
        super().__init__()
        self.qkv, self.lstm = nn.Linear(4, 12), nn.LSTM(4, 4, batch_first=True)

    def forward(self, x: Tensor) -> Tensor:
        q, k, v = self.qkv(x).chunk(3, dim=-1)
        y, (h, c) = self.lstm(F.scaled_dot_product_attention(q, k, v))
        top, index = y.topk(2, dim=-1)
        return top * 2 + index + h.transpose(0, 1)[..., :2] + c.sum()


class InPlace(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.fc1, self.fc2 = nn.Linear(4, 6), nn.Linear(6, 6)

    def forward(self, x: Tensor) -> Tensor:
        y = self.fc1(x)
        left, right = y[:, :3], y[:, 3:]
        left.mul_(2)
        z = self.fc2(y)
        right.add_(z[:, 3:].relu_())
        z[0] = 1.5
        y.clamp_(-3, 3)
        return y + z * left.sum()


class Keywords(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.emb, self.out = nn.Embedding(20, 4), nn.Linear(4, 20)

    def forward(self, input_ids: Tensor, *, mask: Tensor, scale: float = 1.0) -> dict[str, Any]:
        h = self.emb(input_ids) * mask[..., None]
        h = torch.tanh(h) * scale
        return {"logits": self.out(h), "hidden": (h, mask), "scale": scale}


class Tuples(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.a, self.b = nn.Linear(4, 4), nn.Linear(4, 4)

    def forward(self, x: Tensor) -> tuple[Any, ...]:
        first = self.a(x)
        second = self.b(first.relu())
        return first, [second, second], None, x, {"early": first * 2}


class Constants(nn.Module):
    """Constants and factories on both sides of every cut."""

    def __init__(self) -> None:
        super().__init__()
        self.lin = nn.Linear(4, 4)
        self.table = torch.linspace(0, 1, 4)

    def forward(self, x: Tensor) -> Tensor:
        pos = torch.arange(4) * 0.5
        y = self.lin(x + pos) * torch.tensor([1.0, 2.0, 3.0, 4.0])
        mask = torch.ones(3, 4).tril()
        return self.lin(y * mask + self.table) + pos


class Tied(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.emb, self.head = nn.Embedding(10, 4), nn.Linear(4, 10, bias=False)
        self.head.weight = self.emb.weight

    def forward(self, ids: Tensor) -> Tensor:
        return self.head(self.emb(ids).tanh())


Case = tuple[Callable[[], nn.Module], Callable[[], Any]]

CASES: dict[str, Case] = {
    "mlp": (Mlp, lambda: (torch.randn(3, 4),)),
    "residual": (Residual, lambda: (torch.randn(2, 3, 9, 9),)),
    "branches": (Branches, lambda: (torch.randn(3, 4), torch.randn(3, 4))),
    "multi-output": (MultiOutput, lambda: (torch.randn(2, 5, 4),)),
    "in-place": (InPlace, lambda: (torch.randn(3, 4),)),
    "keywords": (Keywords, lambda: Args(torch.randint(0, 20, (2, 5)), mask=torch.rand(2, 5), scale=0.5)),
    "tuples": (Tuples, lambda: (torch.randn(3, 4),)),
    "constants": (Constants, lambda: (torch.randn(3, 4),)),
    "tied": (Tied, lambda: (torch.randint(0, 10, (2, 3)),)),
}


def spec(boundary: str, **options: Any) -> Any:
    return cleave.SplitSpec(boundary=boundary, **{"dynamic_batch": None, "trace_batch_mode": "batch_gt1", **options})


def prepare(model: nn.Module, inputs: Args, boundary: str, **options: Any) -> Any:
    return cleave.prepare_split(
        model,
        example_inputs=inputs.args,
        example_kwargs=inputs.kwargs or None,
        split=spec(boundary),
        **options,
    )


def build(name: str) -> tuple[nn.Module, Callable[[int], Args]]:
    make_model, make_inputs = CASES[name]
    return make_model().eval(), lambda seed: draw(make_inputs, seed, False)


def is_safe(candidate: Any) -> bool:
    return not candidate.reason


def split_equals_eager(rt: Any, model: nn.Module, inputs: Callable[[int], Args], seed: int) -> None:
    """Prefix then suffix gives what eager gives, twice from one boundary."""
    seed_all(seed)
    given = inputs(seed)
    with torch.no_grad():
        want = model(*given.args, **given.kwargs)
    again = inputs(seed)
    seed_all(seed)
    boundary = rt.run_prefix(*again.args, **again.kwargs)
    same_tree(want, rt.run_suffix(boundary), "split output")
    same_tree(want, rt.run_suffix(boundary), "second suffix run on one boundary")
    same_tree([given.args, given.kwargs], [again.args, again.kwargs], "inputs")


# ---- equality ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", CASES)
def test_every_safe_frontier_gives_eagers_result(name: str) -> None:
    model, inputs = build(name)
    first = prepare(model, inputs(0), "50%")
    safe = [c for c in first.candidates if is_safe(c)]
    assert safe, "no safe frontier at all"
    for candidate in safe:
        rt = prepare(model, inputs(0), f"after:{candidate.name}")
        assert rt.candidate.name == candidate.name
        assert rt.candidate.position == candidate.position
        split_equals_eager(rt, model, inputs, seed=1)


@pytest.mark.parametrize("name", CASES)
def test_an_unsafe_frontier_asked_for_by_name_is_refused_with_its_reason(name: str) -> None:
    model, inputs = build(name)
    for candidate in prepare(model, inputs(0), "50%").candidates:
        if is_safe(candidate):
            continue
        with pytest.raises(cleave.CleaveError) as caught:
            prepare(model, inputs(0), f"after:{candidate.name}")
        assert candidate.name in str(caught.value)
        assert candidate.reason in str(caught.value)


@pytest.mark.parametrize("boundary", ["25%", "50%", "75%", "percent:40", "at:60%", "auto", "0.5%", "99%"])
@pytest.mark.parametrize("name", CASES)
def test_percentages_and_auto_choose_a_safe_frontier(name: str, boundary: str) -> None:
    model, inputs = build(name)
    rt = prepare(model, inputs(0), boundary)
    assert is_safe(rt.candidate)
    for seed in (1, 2):
        split_equals_eager(rt, model, inputs, seed)


def test_the_three_ways_to_write_a_percentage_are_one() -> None:
    model, inputs = build("residual")
    names = {prepare(model, inputs(0), b).candidate.name for b in ("30%", "percent:30", "at:30%")}
    assert len(names) == 1


def test_a_larger_percentage_never_cuts_earlier() -> None:
    model, inputs = build("residual")
    positions = [prepare(model, inputs(0), f"{p}%").candidate.position for p in (1, 20, 40, 60, 80, 99)]
    assert positions == sorted(positions)
    assert positions[0] < positions[-1]


def test_after_a_module_means_after_its_last_operator() -> None:
    model, inputs = build("residual")
    for path in ("stem", "layer1", "layer1.conv1", "layer2", "layer2.0"):
        rt = prepare(model, inputs(0), f"after:{path}")
        assert rt.candidate.module_path == path or rt.candidate.module_path.startswith(path + ".")
        split_equals_eager(rt, model, inputs, seed=1)
        later = [c for c in rt.candidates if c.position > rt.candidate.position]
        assert not any(c.module_path == path or c.module_path.startswith(path + ".") for c in later)


def test_the_boundary_holds_exactly_what_lives() -> None:
    model, inputs = build("mlp")
    rt = prepare(model, inputs(0), "after:fc1")
    assert rt.candidate.boundary_bytes == 3 * 8 * 4
    model, inputs = build("branches")
    rt = prepare(model, inputs(0), "after:a")
    # the result of `a`, and both inputs, which the suffix still reads
    assert rt.candidate.boundary_bytes == 3 * (3 * 4 * 4)


def test_candidates_are_in_plan_order_with_names_of_their_own() -> None:
    for name in CASES:
        model, inputs = build(name)
        candidates = prepare(model, inputs(0), "50%").candidates
        positions = [c.position for c in candidates]
        assert positions == sorted(set(positions))
        assert len({c.name for c in candidates}) == len(candidates)
        assert all(c.boundary_bytes >= 0 for c in candidates)


def test_auto_has_a_small_boundary() -> None:
    model, inputs = build("residual")
    rt = prepare(model, inputs(0), "auto")
    sizes = sorted(c.boundary_bytes for c in rt.candidates if is_safe(c))
    assert rt.candidate.boundary_bytes <= sizes[len(sizes) // 2]


def test_a_boundary_may_wait_while_others_run() -> None:
    model, inputs = build("in-place")
    rt = prepare(model, inputs(0), "50%")
    data = [inputs(seed).args[0] for seed in range(4)]
    boundaries = [rt.run_prefix(x.clone()) for x in data]
    with torch.no_grad():
        for x, boundary in reversed(list(zip(data, boundaries, strict=True))):
            same_tree(model(x.clone()), rt.run_suffix(boundary), "output")


def test_a_boundary_of_another_plan_is_refused() -> None:
    model, inputs = build("mlp")
    rt = prepare(model, inputs(0), "50%")
    boundary = rt.run_prefix(*inputs(1).args)
    name = boundary.graph_signature
    for other in ("", name[:-1], f"{name}x", f"{name}\0", f"{name}\0x"):
        why = "has a NUL" if "\0" in other else "made by a plan that this runtime does not have"
        with pytest.raises(cleave.InputError, match=why):
            rt.run_suffix(dataclasses.replace(boundary, graph_signature=other))
    rt.run_suffix(boundary)


def test_results_carry_no_graph() -> None:
    model, inputs = build("mlp")
    rt = prepare(model, inputs(0), "50%")
    assert torch.is_grad_enabled()
    y = rt.run_suffix(rt.run_prefix(*inputs(1).args))
    assert not y.requires_grad
    assert torch.is_grad_enabled()


def test_random_ops_draw_in_the_order_of_eager() -> None:
    net = nn.Sequential(nn.Linear(4, 4), nn.Dropout(0.5), nn.Linear(4, 4), nn.Dropout(0.5)).train()
    make: Callable[[int], Args] = lambda seed: draw(lambda: (torch.randn(3, 4),), seed, False)  # noqa: E731
    rt = prepare(net, make(0), "50%")
    seed_all(7)
    with torch.no_grad():
        want = net(*make(1).args)
    after = rng_state()
    seed_all(7)
    got = rt.run_suffix(rt.run_prefix(*make(1).args))
    same_tree(want, got, "output")
    assert rng_state() == after


def test_new_weights_are_seen_by_both_halves() -> None:
    model, inputs = build("mlp")
    rt = prepare(model, inputs(0), "50%")
    with torch.no_grad():
        for p in model.parameters():
            p.mul_(2)
    split_equals_eager(rt, model, inputs, seed=1)
    model.load_state_dict(Mlp().state_dict(), assign=True)
    split_equals_eager(rt, model, inputs, seed=2)


def test_prepare_leaves_the_model_as_it_was() -> None:
    net = nn.Sequential(nn.Linear(4, 4), nn.BatchNorm1d(4), nn.Dropout(0.5), nn.Linear(4, 4)).train()
    before = {k: v.clone() for k, v in state_of(net).items()}
    inputs, rng = Args(torch.ones(3, 4)), rng_state()
    prepare(net, inputs, "50%")
    same_state({k: v.detach() for k, v in before.items()}, {k: v.detach() for k, v in _plain(net)}, "prepare")
    assert rng_state() == rng
    assert net.training


def _plain(model: nn.Module) -> list[tuple[str, Tensor]]:
    return [(k, v.data) for k, v in state_of(model).items()]


def in_threads(n: int, work: Callable[[int], None]) -> None:
    """Runs work(0 … n-1) at the same time, with many switches between; what one raises is raised."""
    failed: list[BaseException] = []

    def guarded(i: int) -> None:
        try:
            work(i)
        except BaseException as error:
            failed.append(error)

    threads = [threading.Thread(target=guarded, args=(i,)) for i in range(n)]
    before = sys.getswitchinterval()
    sys.setswitchinterval(1e-5)
    try:
        for t in threads:
            t.start()
        for t in threads:
            t.join()
    finally:
        sys.setswitchinterval(before)
    if failed:
        raise failed[0]


def test_many_threads_share_one_runtime() -> None:
    model, inputs = build("residual")
    rt = prepare(model, inputs(0), "50%")
    with torch.no_grad():
        want = {seed: model(*inputs(seed).args) for seed in range(4)}
        data = {seed: inputs(seed).args for seed in range(4)}

    def work(seed: int) -> None:
        for _ in range(20):
            assert torch.equal(rt.run_suffix(rt.run_prefix(*data[seed])), want[seed])

    in_threads(4, work)


class Steps(nn.Module):
    """Does something else at every third size: a plan for each."""

    def __init__(self) -> None:
        super().__init__()
        self.a, self.b = nn.Linear(4, 8), nn.Linear(8, 2)

    def forward(self, x: Tensor) -> Tensor:
        y = self.a(x).relu()
        for _ in range(x.shape[0] % 3):
            y = y * 2
        return self.b(y)


def test_sizes_and_modes_that_threads_meet_first_are_recorded_once_for_all() -> None:
    torch.manual_seed(0)
    model = Steps().eval()
    spec = cleave.SplitSpec(boundary="after:a", dynamic_batch=(1, 24))
    rt = cleave.prepare_split(model, example_inputs=torch.randn(3, 4), split=spec)

    def work(seed: int) -> None:
        generator = torch.Generator().manual_seed(seed)
        for i in range(12):
            x = torch.randn((5 * seed + 3 * i) % 24 + 1, 4, generator=generator)
            out = rt.run_suffix(rt.run_prefix(x))
            with torch.no_grad():
                assert torch.equal(out, model(x))
            assert rt.variants
            assert rt.active_backend == "tape"
            if i == 6:
                rt.train_suffix(rt.run_training_prefix(x), torch.zeros(x.shape[0], 2))

    in_threads(5, work)


class Windows(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.a, self.b = nn.Linear(8, 8), nn.Linear(4, 2)

    def forward(self, x: Tensor) -> Tensor:
        part = self.a(x)[:, 2:6]
        return self.b(part.as_strided((3, 4), (8, 1), 0)).relu()


def test_memory_around_what_crosses_stays_behind_so_the_cut_is_refused() -> None:
    model, x = Windows().eval(), torch.randn(3, 8)
    for boundary in ("after:a", "after:slice"):
        with pytest.raises(cleave.SplitError) as error:
            prepare(model, Args(x), boundary)
        mentions(error.value, "as_strided", "test_split.py", "beyond its elements")
    rt = prepare(model, Args(x), "after:as_strided")
    sent = cleave.BoundaryPayload.from_bytes(rt.run_prefix(x).to_bytes())
    with torch.no_grad():
        assert torch.equal(rt.run_suffix(sent), model(x))


def test_debug_mode_gives_the_same_result() -> None:
    model, inputs = build("residual")
    rt = prepare(model, inputs(0), "50%", mode="debug_interpreter")
    split_equals_eager(rt, model, inputs, seed=1)


def test_a_function_can_be_split() -> None:
    def f(x: Tensor) -> Tensor:
        return (x.sin() * 2).cos().sum(1)

    rt = cleave.prepare_split(f, example_inputs=(torch.randn(3, 4),), split=spec("50%"))
    x = torch.randn(3, 4)
    assert torch.equal(rt.run_suffix(rt.run_prefix(x)), f(x))


def test_a_batch_of_one() -> None:
    model, _ = build("residual")
    x = torch.randn(1, 3, 9, 9)
    rt = cleave.prepare_split(
        model, example_inputs=(x,), split=spec("50%", trace_batch_mode="batch_1", dynamic_batch=None)
    )
    y = torch.randn(1, 3, 9, 9)
    with torch.no_grad():
        assert torch.equal(rt.run_suffix(rt.run_prefix(y)), model(y))


# ---- identity ----------------------------------------------------------------------------------------------


def test_the_split_id_names_the_cut_and_the_signature_the_plan() -> None:
    model, inputs = build("mlp")
    a, b, c = (prepare(model, inputs(0), w) for w in ("after:fc1", "after:fc1", "after:fc2"))
    assert a.split_id == b.split_id != c.split_id
    assert a.graph_signature == b.graph_signature == c.graph_signature
    other, other_inputs = build("residual")
    assert prepare(other, other_inputs(0), "50%").graph_signature != a.graph_signature


def test_a_boundary_of_another_split_is_refused() -> None:
    model, inputs = build("mlp")
    a, b = prepare(model, inputs(0), "after:fc1"), prepare(model, inputs(0), "after:fc2")
    boundary = a.run_prefix(*inputs(1).args)
    with pytest.raises(ValueError, match=r"split|boundary"):
        b.run_suffix(boundary)


@pytest.mark.parametrize("size", [None, -1, 2**70, 1.0, "3", 7])
def test_a_boundary_whose_size_is_nonsense_is_refused(size: Any) -> None:
    spec = cleave.SplitSpec(boundary="after:fc1", dynamic_batch=(1, 8))
    rt = cleave.prepare_split(Mlp().eval(), example_inputs=torch.randn(3, 4), split=spec)
    boundary = rt.run_prefix(torch.randn(3, 4))
    with pytest.raises(cleave.InputError):
        rt.run_suffix(dataclasses.replace(boundary, sizes={} if size is None else {"B": size}))
    native = rt.main_cut.suffix.native
    if not isinstance(size, int) or size > 8:
        with pytest.raises((TypeError, OverflowError)):
            native.run(list(boundary.tensors.values()), [size])


@pytest.mark.parametrize("wrong", [None, 3, "boundary", torch.zeros(3, 4), [torch.zeros(3, 8)], {}])
def test_what_is_no_boundary_is_refused(wrong: Any) -> None:
    model, inputs = build("mlp")
    rt = prepare(model, inputs(0), "50%")
    with pytest.raises((TypeError, ValueError), match=r"(?i)boundary"):
        rt.run_suffix(wrong)


# ---- wrong specifications ----------------------------------------------------------------------------------


def test_a_spec_is_frozen_and_comparable() -> None:
    a = cleave.SplitSpec(boundary="50%")
    assert a == cleave.SplitSpec(boundary="50%") != cleave.SplitSpec(boundary="51%")
    assert (a.batch_symbol, a.trainable, a.trace_batch_mode) == ("B", False, None)
    with pytest.raises((dataclasses.FrozenInstanceError, AttributeError)):
        a.boundary = "25%"
    assert hash(a) == hash(cleave.SplitSpec(boundary="50%"))


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"boundary": ""}, ["boundary", "empty"]),
        ({"boundary": "   "}, ["boundary"]),
        ({"boundary": "0%"}, ["0", "100"]),
        ({"boundary": "100%"}, ["0", "100"]),
        ({"boundary": "-5%"}, ["0", "100"]),
        ({"boundary": "150%"}, ["0", "100"]),
        ({"boundary": "percent:0"}, ["0", "100"]),
        ({"boundary": "percent:100"}, ["0", "100"]),
        ({"boundary": "at:100%"}, ["0", "100"]),
        ({"boundary": "percent:many"}, ["percent"]),
        ({"boundary": "nan%"}, ["nan"]),
        ({"boundary": "inf%"}, ["inf"]),
        ({"boundary": "after:"}, []),
        ({"boundary": "before:fc1"}, ["before", "after:"]),
        ({"boundary": "50"}, ["50", "%"]),
        ({"boundary": "50%", "batch_symbol": ""}, ["batch_symbol"]),
        ({"boundary": "50%", "batch_symbol": "2B"}, ["batch_symbol", "2B"]),
        ({"boundary": "50%", "batch_symbol": "a b"}, ["batch_symbol", "a b"]),
        ({"boundary": "50%", "dynamic_batch": (0, 4)}, ["dynamic_batch", "0"]),
        ({"boundary": "50%", "dynamic_batch": (-1, 4)}, ["dynamic_batch", "-1"]),
        ({"boundary": "50%", "dynamic_batch": (8, 4)}, ["dynamic_batch", "8", "4"]),
        ({"boundary": "50%", "trace_batch_mode": "batch_2"}, ["batch_2", "batch_1", "batch_gt1"]),
        ({"boundary": "50%", "trace_batch_mode": "batch_1", "dynamic_batch": (2, 8)}, ["batch_1", "1"]),
    ],
)
def test_a_wrong_spec_says_what_is_wrong_and_what_is_allowed(options: dict[str, Any], words: list[str]) -> None:
    with pytest.raises(ValueError) as caught:
        cleave.prepare_split(
            Mlp().eval(),
            example_inputs=(torch.randn(1, 4),),
            split=cleave.SplitSpec(**{"dynamic_batch": None, **options}),
        )
    mentions(caught.value, *words)


def test_a_wrong_mode_lists_the_modes() -> None:
    with pytest.raises(ValueError, match=r"generated_eager.*warp|warp.*generated_eager"):
        prepare(Mlp().eval(), Args(torch.randn(3, 4)), "50%", mode="warp")


@pytest.mark.parametrize(
    ("asked", "near"),
    [
        ("after:fc_1", "fc1"),
        ("after:fc4", "fc"),
        ("after:Fc1", "fc1"),
        ("after:layer", "fc"),
        ("after:relu_99", "relu"),
    ],
)
def test_an_unknown_name_lists_the_nearest_valid_ones(asked: str, near: str) -> None:
    with pytest.raises(ValueError) as caught:
        prepare(Mlp().eval(), Args(torch.randn(3, 4)), asked)
    text = str(caught.value)
    assert asked.removeprefix("after:") in text
    assert near in text.replace(asked.removeprefix("after:"), "")


def test_a_module_that_never_ran_is_told_from_one_that_does_not_exist() -> None:
    class Idle(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.used, self.idle = nn.Linear(4, 4), nn.Linear(4, 4)

        def forward(self, x: Tensor) -> Tensor:
            return self.used(x).relu()

    with pytest.raises(ValueError, match="idle"):
        prepare(Idle().eval(), Args(torch.randn(3, 4)), "after:idle")


def test_a_cut_after_the_last_operator_is_refused() -> None:
    model, inputs = build("mlp")
    with pytest.raises(cleave.SplitError, match='nothing is left to run after "fc3"'):
        prepare(model, inputs(0), "after:fc3")


def test_a_model_without_a_place_to_cut_is_a_clear_error() -> None:
    with pytest.raises(cleave.CleaveError):
        prepare(nn.Identity(), Args(torch.randn(3, 4)), "50%")


def test_a_trainable_split_keeps_a_trainable_suffix() -> None:
    model, inputs = build("mlp")
    rt = cleave.prepare_split(
        model, example_inputs=inputs(0).args, split=spec("99%", trainable=True, dynamic_batch=None)
    )
    split_equals_eager(rt, model, inputs, seed=1)
    for p in model.parameters():
        p.requires_grad_(False)
    with pytest.raises(ValueError, match="trainable"):
        cleave.prepare_split(model, example_inputs=inputs(0).args, split=spec("50%", trainable=True))


# ---- wrong inputs ------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("args", "words"),
    [
        ((torch.randn(3, 5),), ["x", "4", "5"]),
        ((torch.randn(3, 4, 1),), ["x", "2", "3"]),
        ((torch.randn(3, 4).double(),), ["x", "64"]),
        ((), ["x"]),
        ((torch.randn(3, 4), torch.randn(3, 4)), ["1", "2"]),
        (("x",), ["x"]),
    ],
    ids="dimension rank dtype missing too-many string".split(),
)
def test_wrong_inputs_are_named_with_what_was_expected(args: tuple[Any, ...], words: list[str]) -> None:
    model, inputs = build("mlp")
    rt = prepare(model, inputs(0), "50%")
    with pytest.raises(cleave.InputError) as caught:
        rt.run_prefix(*args)
    mentions(caught.value, *words)


def test_another_batch_size_is_a_clear_error_for_now() -> None:
    model, inputs = build("mlp")
    rt = prepare(model, inputs(0), "50%")
    with pytest.raises(cleave.InputError, match=r"(?s)3.*7|7.*3"):
        rt.run_prefix(torch.randn(7, 4))
    split_equals_eager(rt, model, inputs, seed=1)


def test_wrong_keywords_are_named() -> None:
    model, inputs = build("keywords")
    rt = prepare(model, inputs(0), "50%")
    ids, mask = torch.randint(0, 20, (2, 5)), torch.rand(2, 5)
    with pytest.raises(cleave.InputError, match="mask"):
        rt.run_prefix(ids, scale=0.5)
    with torch.no_grad():
        want = model(ids, mask=mask, scale=0.75)
    got = rt.run_suffix(rt.run_prefix(ids, mask=mask, scale=0.75))
    same_tree(want, got, "another scale")
    strict = prepare(model, inputs(0), "50%", on_guard="raise")
    with pytest.raises(cleave.InputError, match="scale"):
        strict.run_prefix(ids, mask=mask, scale=0.75)
    with pytest.raises(cleave.InputError, match="extra"):
        rt.run_prefix(ids, mask=mask, scale=0.5, extra=mask)


def test_train_and_eval_may_be_switched_after_preparation() -> None:
    net = nn.Sequential(nn.Linear(4, 4), nn.Dropout(0.5), nn.Linear(4, 4)).eval()
    rt = prepare(net, Args(torch.randn(3, 4)), "50%")
    x = torch.randn(3, 4)
    for training in (True, False, True):
        net.train(training)
        torch.manual_seed(3)
        want = net(x).detach()
        torch.manual_seed(3)
        assert torch.equal(rt.run_suffix(rt.run_prefix(x)), want)


def test_a_switch_between_prefix_and_suffix_is_a_clear_error() -> None:
    net = nn.Sequential(nn.Linear(4, 4), nn.Dropout(0.5), nn.Linear(4, 4)).eval()
    rt = prepare(net, Args(torch.randn(3, 4)), "50%")
    boundary = rt.run_prefix(torch.randn(3, 4))
    net.train()
    with pytest.raises(cleave.InputError, match=r"train|eval"):
        rt.run_suffix(boundary)


def test_a_model_that_cannot_be_captured_cannot_be_split() -> None:
    import numpy as np

    class Escapes(nn.Module):
        def forward(self, x: Tensor) -> Tensor:
            return torch.from_numpy(np.sin(x.detach().numpy())) + 1

    with pytest.raises(cleave.CaptureError, match=r"(?i)numpy"):
        prepare(Escapes(), Args(torch.randn(3, 4)), "50%")


def test_guards_hold_in_the_half_they_are_in() -> None:
    class Guarded(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.a, self.b = nn.Linear(4, 4), nn.Linear(4, 4)

        def forward(self, x: Tensor, mask: Tensor) -> Tensor:
            y = self.a(x)
            return self.b(y) if mask.all() else self.b(y * mask)

    model = Guarded().eval()
    x, ones = torch.randn(3, 4), torch.ones(3, 4, dtype=torch.bool)
    rt = prepare(model, Args(x, ones), "after:a", on_guard="raise")
    with torch.no_grad():
        assert torch.equal(rt.run_suffix(rt.run_prefix(x, ones)), model(x, ones))
    with pytest.raises(cleave.GuardError):
        rt.run_suffix(rt.run_prefix(x, ~ones))

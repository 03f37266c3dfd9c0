"""Tensors of a model that its forward changes, in models that are cut: re-assigned, written in place, or both.

Each half keeps the state that only it touches, and what its calls do to that is what calls of the model would do: also
with several boundaries in flight, and with the halves in two processes. State that both halves touch is refused."""

from __future__ import annotations

import copy
import random
from collections import Counter
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest
import torch
from helpers import same_tensor, state_of
from torch import Tensor, nn

import cleave
from cleave.optimize import Optimize

WIDTH = 4


def _inputs(n: int, seed: int = 5, rows: int = 3) -> list[Tensor]:
    generator = torch.Generator().manual_seed(seed)
    return [torch.randn(rows, WIDTH, generator=generator) for _ in range(n)]


class Steps(nn.Module):
    """Linear layers with a step of some kind before, between and after them."""

    def __init__(self, *steps: str) -> None:
        super().__init__()
        self.steps = steps
        self.layers = nn.ModuleList(nn.Linear(WIDTH, WIDTH) for _ in steps)
        for name in ("ema", "other", "last"):
            self.register_buffer(name, torch.linspace(0.5, 1.5, WIDTH))
        self.note = torch.ones(WIDTH)
        self.norm = nn.BatchNorm1d(WIDTH)

    def forward(self, x: Tensor) -> Tensor:
        for step, layer in zip(self.steps, self.layers, strict=True):
            x = layer(STEPS[step](self, x)).relu()
        return x


def _assign(m: Steps, x: Tensor) -> Tensor:
    m.ema = 0.9 * m.ema + 0.1 * x.detach().mean(0)
    return x - m.ema


def _assign_unread(m: Steps, x: Tensor) -> Tensor:
    m.last = x.detach().mean(0)
    return x


def _assign_after_use(m: Steps, x: Tensor) -> Tensor:
    y = x * m.ema
    m.ema = 0.5 * m.ema + y.detach().mean(0)
    return y


def _assign_an_input(m: Steps, x: Tensor) -> Tensor:
    y = x + m.last
    m.last = x.detach()[0]
    return y


def _write(m: Steps, x: Tensor) -> Tensor:
    m.ema.mul_(0.9).add_(x.detach().mean(0), alpha=0.1)
    return x - m.ema


def _write_through_a_view(m: Steps, x: Tensor) -> Tensor:
    part = m.other[:2]
    part.copy_(x.detach()[0, :2])
    return x + m.other


def _write_and_assign(m: Steps, x: Tensor) -> Tensor:
    m.other.mul_(0.5)
    m.other = m.other + x.detach().mean(0)
    return x + m.other


def _swap(m: Steps, x: Tensor) -> Tensor:
    m.ema, m.other = m.other, m.ema
    return x + m.ema


def _attribute(m: Steps, x: Tensor) -> Tensor:
    m.note = m.note * 0.5 + x.detach().mean(0)
    return x * m.note


STEPS: dict[str, Callable[[Steps, Tensor], Tensor]] = {
    "nothing": lambda m, x: x,
    "read": lambda m, x: x * m.ema,
    "read another": lambda m, x: x * m.other,
    "read the last": lambda m, x: x + m.last,
    "assign": _assign,
    "assign unread": _assign_unread,
    "assign after use": _assign_after_use,
    "assign an input": _assign_an_input,
    "write": _write,
    "write through a view": _write_through_a_view,
    "write and assign": _write_and_assign,
    "swap": _swap,
    "attribute": _attribute,
    "norm": lambda m, x: m.norm(x),
}


def _split(model: nn.Module, boundary: str, x: Tensor, **options: Any) -> cleave.SplitRuntime:
    return cleave.prepare_split(
        model, example_inputs=(x,), split=cleave.SplitSpec(boundary=boundary, trainable=True), **options
    )


def _same_state(want: nn.Module, got: nn.Module, where: str) -> None:
    found = state_of(got)
    for name, t in state_of(want).items():
        same_tensor(t, found[name], f"{where}: {name}")


def _outcome(run: Callable[[], Any]) -> Any:
    """What it gives; or that autograd says no, as it does when a tensor that it needs was written."""
    try:
        return run()
    except RuntimeError as error:
        if "inplace operation" not in str(error) and "second time" not in str(error):
            raise
        return "autograd refuses"


# ---- orders of calls -------------------------------------------------------------------------------------------------


def _ahead(runtime: cleave.SplitRuntime, xs: Sequence[Tensor]) -> list[Tensor]:
    """All prefixes, then all suffixes."""
    boundaries = list(runtime.run_prefix_batches(xs))
    return list(runtime.run_suffix_batches(boundaries))


def _one_ahead(runtime: cleave.SplitRuntime, xs: Sequence[Tensor]) -> list[Tensor]:
    out, waiting = [], None
    for x in xs:
        boundary = runtime.run_prefix(x)
        if waiting is not None:
            out.append(runtime.run_suffix(waiting))
        waiting = boundary
    return [*out, runtime.run_suffix(waiting)]  # type: ignore[arg-type]


def _trained(model: nn.Module, xs: Sequence[Tensor]) -> list[Tensor]:
    losses = [(model(x) ** 2).sum() for x in xs]
    for loss in losses:
        loss.backward()  # type: ignore[no-untyped-call]
    return [loss.detach() for loss in losses]


def _trained_ahead(runtime: cleave.SplitRuntime, xs: Sequence[Tensor]) -> list[Tensor]:
    boundaries = [runtime.run_training_prefix(x) for x in xs]
    losses = [runtime.train_suffix(b, None, loss_fn=lambda y, _: (y**2).sum())[0] for b in boundaries]
    for b in boundaries:
        runtime.backward_prefix(b)
    return losses


def _same_outputs(want: Sequence[Tensor], got: Sequence[Tensor], where: str) -> None:
    for i, (a, b) in enumerate(zip(want, got, strict=True)):
        assert torch.equal(a, b), f"{where}: output {i}"


def _check_inference(model: nn.Module, runtime: cleave.SplitRuntime, where: str) -> None:
    for order in (_ahead, _one_ahead):
        twin = copy.deepcopy(model)
        with torch.no_grad():
            want = [twin(x) for x in _inputs(3)]
        _same_outputs(want, order(runtime, _inputs(3)), f"{where}, {order.__name__}")
        _same_state(twin, model, f"{where}, {order.__name__}")


def _check_training(model: nn.Module, runtime: cleave.SplitRuntime, where: str) -> None:
    twin = copy.deepcopy(model)
    want = _outcome(lambda: _trained(twin, _inputs(2)))
    got = _outcome(lambda: _trained_ahead(runtime, _inputs(2)))
    if isinstance(want, str) or isinstance(got, str):
        assert want == got, where
        return
    _same_outputs(want, got, f"{where}, training")
    _same_state(twin, model, f"{where}, training")
    for (name, p), q in zip(twin.named_parameters(), model.parameters(), strict=True):
        assert (p.grad is None) == (q.grad is None), f"{where}: {name}"
        if p.grad is not None and q.grad is not None:
            same_tensor(p.grad, q.grad, f"{where}: gradient of {name}")


def _check_halves(model: nn.Module, boundary: str, folder: Path, where: str) -> None:
    """Halves that share nothing: files, and two models with one half each."""
    twin = copy.deepcopy(model)
    with torch.no_grad():
        want = [twin(x) for x in _inputs(3)]
    prefix, suffix = _split(copy.deepcopy(model), boundary, _inputs(1)[0]).save(folder)
    here, there = cleave.load(prefix), cleave.load(suffix)
    boundaries = [here.run_prefix(x).to_bytes() for x in _inputs(3)]
    got = [there.run_suffix(cleave.BoundaryPayload.from_bytes(b)) for b in boundaries]
    _same_outputs(want, got, f"{where}, files")
    first, second = (_split(copy.deepcopy(model), boundary, _inputs(1)[0]) for _ in range(2))
    first.keep_only("prefix")
    second.keep_only("suffix")
    boundaries = [first.run_prefix(x).to_bytes() for x in _inputs(3)]
    got = [second.run_suffix(cleave.BoundaryPayload.from_bytes(b)) for b in boundaries]
    _same_outputs(want, got, f"{where}, two models")
    for half, runtime in (("prefix", first), ("suffix", second)):
        for name, t in runtime.state(half).items():
            same_tensor(state_of(twin)[name], t, f"{where}, {half}: {name}")


def _check_cuts(model: nn.Module, folder: Path, seen: Counter[str], every: int = 1) -> None:
    """All frontiers of a model: right in every order of calls, or refused with the tensor's name."""
    x = _inputs(1)[0]
    try:
        frontiers = [c for c in _split(copy.deepcopy(model), "auto", x).candidates if c.trainable_suffix]
    except cleave.SplitError as error:
        if "no frontier that can be cut" not in str(error):
            raise
        seen["refused"] += 1
        return
    for c in frontiers[::every]:
        where = f"{getattr(model, 'steps', '')} after {c.name}"
        own = copy.deepcopy(model)
        try:
            runtime = _split(own, f"after:{c.name}", x)
        except cleave.SplitError as error:
            if c.safe or not any(text in str(error) for text in ("@", "%", "nothing crosses")):
                raise AssertionError(where) from error
            seen["refused"] += 1
            continue
        _check_inference(own, runtime, where)
        _check_training(own, runtime, where)
        _check_halves(model, f"after:{c.name}", folder / str(c.position), where)
        seen["right"] += 1


# ---- one kind of state -----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", [k for k in STEPS if not k.startswith(("nothing", "read", "swap"))])
def test_state_of_one_half_is_its_own(kind: str, tmp_path: Path) -> None:
    torch.manual_seed(0)
    model = Steps("nothing", kind, "nothing").train()
    for boundary in ("after:layers.0", "after:layers.1"):
        own = copy.deepcopy(model)
        runtime = _split(own, boundary, _inputs(1)[0])
        _check_inference(own, runtime, boundary)
        _check_training(own, runtime, boundary)
    _check_halves(model, "after:layers.1", tmp_path, kind)


@pytest.mark.parametrize(
    ("steps", "name"),
    [
        (("write", "nothing", "read"), "@ema"),
        (("read", "nothing", "write"), "@ema"),
        (("read", "nothing", "assign"), "@ema"),
        (("assign after use", "nothing", "read"), None),  # the new tensor crosses
        (("read another", "nothing", "write and assign"), "@other"),
        (("write and assign", "nothing", "read another"), "@other"),
        (("norm", "nothing", "norm"), "@norm.num_batches_tracked"),
        (("assign unread", "nothing", "read the last"), None),
        (("read the last", "nothing", "assign unread"), "@last"),
    ],
)
def test_state_of_both_halves_crosses_or_is_refused(steps: tuple[str, ...], name: str | None, tmp_path: Path) -> None:
    torch.manual_seed(0)
    model = Steps(*steps).train()
    if name is None:
        _check_inference(model, _split(model, "after:layers.1", _inputs(1)[0]), "")
        _check_halves(model, "after:layers.1", tmp_path, "")
        return
    with pytest.raises(cleave.SplitError, match=f"{name} is used on both sides of the cut, and .* at test_state.py"):
        _split(model, "after:layers.1", _inputs(1)[0])


def test_the_automatic_cut_passes_over_state_that_both_halves_would_use() -> None:
    model = Steps("nothing", "write", "nothing", "read", "nothing").train()
    runtime = _split(model, "auto", _inputs(1)[0])
    assert runtime.candidate.safe
    _check_inference(model, runtime, "auto")
    assert any("@ema" in (c.reason or "") for c in runtime.candidates)


def test_the_exact_cut_keeps_state_on_one_side() -> None:
    for steps in (("write", "nothing", "nothing"), ("nothing", "assign", "read"), ("norm", "assign an input", "norm")):
        model = Steps(*steps).train()
        spec = cleave.SplitSpec(boundary="auto", exact=True, trainable=True)
        try:
            runtime = cleave.prepare_split(model, example_inputs=(_inputs(1)[0],), split=spec)
        except cleave.SplitError:
            continue
        _check_inference(model, runtime, f"{steps}, exact")


class TwoModes(nn.Module):
    """In train mode the first layer writes what the last one reads in eval mode."""

    def __init__(self) -> None:
        super().__init__()
        self.a, self.b = nn.Linear(WIDTH, WIDTH), nn.Linear(WIDTH, WIDTH)
        self.register_buffer("scale", torch.ones(WIDTH))

    def forward(self, x: Tensor) -> Tensor:
        if self.training:
            self.scale.mul_(0.9).add_(x.detach().mean(0), alpha=0.1)
            return self.b(self.a(x).relu())
        return self.b(self.a(x).relu() * self.scale)


def test_state_that_the_halves_use_in_different_modes_stays_in_one_process() -> None:
    model = TwoModes().eval()
    runtime = _split(model, "after:relu", _inputs(1)[0])
    model.train()
    runtime.run_training_prefix(_inputs(1)[0])
    with pytest.raises(cleave.InputError, match=r"the prefix changes scale in one mode .* the suffix uses it"):
        runtime.keep_only("suffix")


def test_sizes_of_one_file_do_not_share_state_across_the_cut(tmp_path: Path) -> None:
    class BySize(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.a, self.b = nn.Linear(WIDTH, WIDTH), nn.Linear(WIDTH, WIDTH)
            self.register_buffer("scale", torch.ones(WIDTH))

        def forward(self, x: Tensor) -> Tensor:
            if x.shape[0] == 3:
                self.scale.mul_(0.9)
                return self.b(self.a(x).relu())
            return self.b(self.a(x).relu() * self.scale)

    spec = cleave.SplitSpec(boundary="after:relu", dynamic_batch=(2, 4))
    runtime = cleave.prepare_split(BySize().eval(), example_inputs=(_inputs(1, rows=4)[0],), split=spec)
    runtime.prepare_sizes(2, 3, 4)
    with pytest.raises(cleave.CleaveError, match="both halves have scale and one of them changes it"):
        runtime.save(tmp_path / "halves")


def test_the_source_of_a_half_assigns_what_the_half_does() -> None:
    runtime = _split(Steps("assign", "nothing", "assign an input"), "after:layers.1", _inputs(1)[0])
    for name, half in (("ema", "prefix"), ("last", "suffix")):
        found = [h for h in ("prefix", "suffix") if f"self.{name} = " in runtime.source(h)]
        assert found == [half]


@pytest.mark.parametrize("mode", ["debug_interpreter", "compiled"])
def test_other_engines_keep_the_state_of_their_half(mode: str) -> None:
    torch.manual_seed(0)
    options = {"compile_options": {"backend": "eager"}} if mode == "compiled" else {}
    model = Steps("assign", "nothing", "assign an input").train()
    runtime = _split(model, "after:layers.1", _inputs(1)[0], mode=mode, **options)
    _check_inference(model, runtime, mode)


@pytest.mark.parametrize("optimize", ["none", "safe", "fast"])
def test_passes_keep_the_state_of_their_half(optimize: str) -> None:
    """What depends on state alone is computed before the rest, and re-bound by it all the same."""

    class Counts(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.a, self.b = nn.Linear(WIDTH, WIDTH), nn.Linear(WIDTH, WIDTH)
            self.register_buffer("steps", torch.zeros(()))
            self.register_buffer("again", torch.zeros(()))

        def forward(self, x: Tensor) -> Tensor:
            self.steps = self.steps + 1
            y = self.a(x).relu() / self.steps
            self.again = self.again + 2
            return self.b(y) + self.again

    model = Counts().eval()
    passes = Optimize(optimize, off=("native",))  # the native engine adds up in another order
    _check_inference(model, _split(model, "after:relu", _inputs(1)[0], optimize=passes), optimize)


# ---- pipelines -------------------------------------------------------------------------------------------------------


def _staged(model: nn.Module, nparts: int, recomputation: bool, **options: Any) -> cleave.PartitionedPlan:
    return cleave.pipe_model(
        model,
        example_inputs=(_inputs(1)[0],),
        nparts=nparts,
        profile="estimate",
        batch_dim=None,
        training=True,
        recomputation=recomputation,
        **options,
    )


def _check_pipeline(model: nn.Module, nparts: int, recomputation: bool) -> None:
    """Two calls, then their backwards, and one more of each."""
    where = f"{getattr(model, 'steps', '')}, {nparts} stages, recomputation {recomputation}"
    twin = copy.deepcopy(model)
    try:
        found = _staged(model, nparts, recomputation)
    except cleave.SplitError as error:
        if "fewer than nparts" not in str(error):
            raise
        return
    for seed in (5, 6):
        want = _outcome(lambda seed=seed: _trained(twin, _inputs(2, seed)))
        got = _outcome(lambda seed=seed: _trained(found, _inputs(2, seed)))
        if isinstance(want, str):  # a stage that runs again has copies of what it wrote
            assert recomputation or want == got, where
            return
        _same_outputs(want, got, where)
        _same_state(twin, model, where)
        for (name, p), q in zip(twin.named_parameters(), model.parameters(), strict=True):
            assert (p.grad is None) == (q.grad is None), f"{where}: {name}"
            if p.grad is not None and q.grad is not None:
                same_tensor(p.grad, q.grad, f"{where}: gradient of {name}")


@pytest.mark.parametrize("recomputation", [False, True])
@pytest.mark.parametrize("kind", [k for k in STEPS if not k.startswith(("nothing", "read"))])
def test_stages_keep_state(kind: str, recomputation: bool) -> None:
    torch.manual_seed(0)
    _check_pipeline(Steps("nothing", kind, "read").train(), 2, recomputation)


class Renormed(nn.Module):
    """The forward writes the rows of a weight that are too long."""

    def __init__(self) -> None:
        super().__init__()
        self.table = nn.Embedding(10, WIDTH, max_norm=1.0)
        self.a, self.b = nn.Linear(WIDTH, WIDTH), nn.Linear(WIDTH, WIDTH)

    def forward(self, x: Tensor) -> Tensor:
        return self.b(self.a(self.table((x * 3).long().clamp(0, 9))).relu()).sum(1)


class WritesInput(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.a, self.b = nn.Linear(WIDTH, WIDTH), nn.Linear(WIDTH, WIDTH)

    def forward(self, x: Tensor) -> Tensor:
        return self.b(self.a(x.mul_(2)).relu())


@pytest.mark.parametrize("build", [Renormed, WritesInput])
def test_recomputation_does_not_write_twice(build: Callable[[], nn.Module]) -> None:
    torch.manual_seed(0)
    _check_pipeline(build().train(), 2, True)


def test_recomputation_serves_several_backwards() -> None:
    torch.manual_seed(0)
    model = Steps("assign", "write", "norm").train()
    twin = copy.deepcopy(model)
    found = _staged(model, 2, True)
    for m in (twin, found):
        loss = m(_inputs(1)[0]).square().sum()
        loss.backward(retain_graph=True)
        loss.backward()
    for p, q in zip(twin.parameters(), model.parameters(), strict=True):
        if p.grad is not None:
            assert torch.equal(p.grad, q.grad)  # type: ignore[arg-type]


def _replace_buffer(model: Steps) -> None:
    model.ema = torch.full((WIDTH,), 7.0)


@torch.no_grad()
def _write_weight(model: Steps) -> None:
    model.layers[1].weight.mul_(2)  # type: ignore[union-attr, operator]


@torch.no_grad()
def _write_bias(model: Steps) -> None:
    model.layers[0].bias.mul_(2)  # type: ignore[union-attr, operator]


def _replace_data(model: Steps) -> None:
    model.layers[1].weight.data = model.layers[1].weight.data * 2  # type: ignore[union-attr, operator]


def _train_norm(model: Steps) -> None:
    model.norm.train()(torch.ones(3, WIDTH))
    model.norm.eval()


@pytest.mark.parametrize(
    ("change", "refused"),
    [
        (_replace_buffer, None),
        (_write_weight, r"layers\.1\.weight"),
        (_write_bias, r"layers\.0\.bias"),
        (_replace_data, r"layers\.1\.weight"),
        (_train_norm, r"norm\.num_batches_tracked"),
    ],
)
def test_what_changes_before_the_backward_is_kept_or_refused(
    change: Callable[[Steps], None], refused: str | None
) -> None:
    torch.manual_seed(0)
    model = Steps("read", "read", "norm")
    model.norm.eval()
    twin = copy.deepcopy(model)
    loss, want = (m(_inputs(1)[0]).square().sum() for m in (_staged(model, 2, True), twin))
    change(model)
    if refused is not None:
        with pytest.raises(cleave.ReplayError, match=f"{refused} was changed between the forward and the backward"):
            loss.backward()
        return
    change(twin)
    loss.backward()
    want.backward()
    for p, q in zip(twin.parameters(), model.parameters(), strict=True):
        assert torch.equal(p.grad, q.grad)  # type: ignore[arg-type]


# ---- models drawn at random ------------------------------------------------------------------------------------------


def _drawn(seed: int) -> Steps:
    generator = random.Random(seed)
    torch.manual_seed(seed)
    return Steps(*generator.choices(list(STEPS), k=generator.randint(2, 4))).train(generator.random() < 0.7)


def test_random_models_with_state(tmp_path: Path) -> None:
    seen: Counter[str] = Counter()
    for seed in range(4):
        _check_pipeline(_drawn(seed), 2, bool(seed % 2))
        _check_cuts(_drawn(seed), tmp_path / str(seed), seen, every=5)
    assert min(seen["right"], seen["refused"]) > 2, seen


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(100, 160))
def test_many_random_models_with_state(seed: int, tmp_path: Path) -> None:
    for nparts in (2, 3):
        for recomputation in (False, True):
            _check_pipeline(_drawn(seed), nparts, recomputation)
    _check_cuts(_drawn(seed), tmp_path, Counter())

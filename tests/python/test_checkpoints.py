"""Forwards that use torch.utils.checkpoint, and flags that they set: as the model, or refused.

A plan runs a checkpointed block once, and keeps what its backward needs. That is equal as long as the second run, in
the backward of the model, finds and leaves everything as the first."""

from __future__ import annotations

import copy
import os
import random
import subprocess
import sys
from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from helpers import same_tensor, state_of
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint, checkpoint_sequential

import cleave

WIDTH = 4


def _x(seed: int = 3, rows: int = 3) -> Tensor:
    return torch.randn(rows, WIDTH, generator=torch.Generator().manual_seed(seed))


class Net(nn.Module):
    """`block` is run in a checkpoint between two layers, on the module and what the first layer gives."""

    def __init__(self, block: Callable[[Net, Tensor], Any], reentrant: bool = False, **options: Any) -> None:
        super().__init__()
        self.first, self.inner, self.last = (nn.Linear(WIDTH, WIDTH) for _ in range(3))
        self.norm, self.drop = nn.BatchNorm1d(WIDTH), nn.Dropout(0.5)
        self.register_buffer("ema", torch.linspace(0.5, 1.5, WIDTH))
        self.note = torch.zeros(WIDTH)
        self.block, self.options = block, {"use_reentrant": reentrant, **options}

    def forward(self, x: Tensor) -> Tensor:
        h = self.first(x).tanh()
        h = checkpoint(self.block, self, h, **self.options)
        return self.last(h)


def _plain(net: Net, h: Tensor) -> Tensor:
    return F.gelu(net.inner(h))


def _dropout(net: Net, h: Tensor) -> Tensor:
    return net.drop(net.inner(h)).exp()


def _own_memory(net: Net, h: Tensor) -> Tensor:
    return (net.inner(h) * 2).relu_().pow(2)


def _read_only_state(net: Net, h: Tensor) -> Tensor:
    return F.batch_norm(net.inner(h), net.norm.running_mean, net.norm.running_var, net.norm.weight) * net.ema


def _batch_norm(net: Net, h: Tensor) -> Tensor:
    return net.norm(net.inner(h)).tanh()


def _write(net: Net, h: Tensor) -> Tensor:
    net.ema.mul_(0.9)
    return (net.inner(h) * net.ema.clone()).tanh()


def _assign(net: Net, h: Tensor) -> Tensor:
    net.ema = 0.9 * net.ema + h.detach().mean(0)
    return (net.inner(h) * net.ema).tanh()


def _keep(net: Net, h: Tensor) -> Tensor:
    net.note = h.detach().mean(0)
    return net.inner(h).tanh()


def _write_argument(net: Net, h: Tensor) -> Tensor:
    with torch.no_grad():
        h.mul_(0.5)
    return net.inner(h).tanh()


SAME = [_plain, _dropout, _own_memory, _read_only_state]
OTHER = [_batch_norm, _write, _assign, _keep, _write_argument]


def _observed(run: Callable[..., Any], model: nn.Module, rounds: int = 2) -> list[tuple[str, Tensor]]:
    """Two calls before their backwards, and again; gradients add up."""
    seen = []
    for i in range(rounds):
        torch.manual_seed(i)
        out = [run(_x(10 * i + k)) for k in range(2)]
        for y in out:
            if y.requires_grad:  # not behind reentrant checkpoints alone: nothing that they are given does
                y.square().sum().backward()
        seen += [(f"output {i}, requires_grad={y.requires_grad}", y.detach()) for y in out]
        seen += [(name, t.detach().clone()) for name, t in state_of(model).items()]
        seen += [(f"gradient of {name}", p.grad.clone()) for name, p in model.named_parameters() if p.grad is not None]
        seen.append(("random state", torch.get_rng_state()))
    return seen


def _same(build: Callable[[], nn.Module], wrap: Callable[[nn.Module], Callable[..., Any]]) -> None:
    torch.manual_seed(0)
    model = build()
    twin = copy.deepcopy(model)
    ours = wrap(model)
    want, got = _observed(twin, twin), _observed(ours, model)
    assert [name for name, _ in want] == [name for name, _ in got]
    for (name, a), (_, b) in zip(want, got, strict=True):
        same_tensor(a, b, name)


def _split(model: nn.Module, boundary: str = "after:first") -> cleave.SplitRuntime:
    spec = cleave.SplitSpec(boundary=boundary, trainable=True)
    return cleave.prepare_split(model, example_inputs=(_x(),), split=spec)


def _staged(model: nn.Module, recomputation: bool = False) -> cleave.PartitionedPlan:
    return cleave.pipe_model(
        model,
        example_inputs=(_x(),),
        nparts=2,
        profile="estimate",
        batch_dim=None,
        training=True,
        recomputation=recomputation,
    )


@pytest.mark.parametrize("reentrant", [False, True])
@pytest.mark.parametrize("block", SAME)
def test_blocks_that_can_run_once_train_as_the_model(block: Callable[[Net, Tensor], Any], reentrant: bool) -> None:
    for wrap in (lambda m: cleave.capture(m, _x()), _staged, lambda m: _staged(m, recomputation=True)):
        _same(lambda: Net(block, reentrant).train(), wrap)


@pytest.mark.parametrize("reentrant", [False, True])
@pytest.mark.parametrize("block", OTHER)
def test_blocks_whose_second_run_leaves_a_trace_are_refused(
    block: Callable[[Net, Tensor], Any], reentrant: bool
) -> None:
    model = Net(block, reentrant).train()
    before = {name: t.clone() for name, t in state_of(model).items()}
    match = r"torch\.utils\.checkpoint"
    with pytest.raises(cleave.CaptureError, match=match):
        cleave.capture(model, _x())
    with pytest.raises(cleave.CleaveError, match=match):
        _staged(model)
    assert all(torch.equal(before[name], t) for name, t in state_of(model).items())
    with torch.no_grad():  # eager runs it once then
        plan, twin = cleave.capture(model, _x()), copy.deepcopy(model)
        for seed in range(2):
            same_tensor(twin(_x(seed)), plan(_x(seed)), "output")
    with pytest.raises(cleave.CleaveError, match=match):
        _split(model, "after:tanh").run_training_prefix(_x())


def test_batch_norm_may_be_in_a_checkpoint_in_eval_mode() -> None:
    _same(lambda: Net(_batch_norm).eval(), lambda m: cleave.capture(m, _x()))


def test_random_numbers_that_the_second_run_draws_anew_are_refused() -> None:
    for reentrant in (False, True):
        with pytest.raises(cleave.CaptureError, match=r"aten::dropout .*preserve_rng_state=False"):
            cleave.capture(Net(_dropout, reentrant, preserve_rng_state=False).train(), _x())


def test_state_that_is_changed_outside_of_the_checkpoint_is_refused() -> None:
    class Around(nn.Module):
        def __init__(self, after: bool) -> None:
            super().__init__()
            self.lin, self.after = nn.Linear(WIDTH, WIDTH), after
            self.register_buffer("ema", torch.ones(WIDTH))

        def forward(self, x: Tensor) -> Tensor:
            if not self.after:
                self.ema = self.ema * 0.9
            y = checkpoint(lambda t: self.lin(t).exp() * self.ema, x, use_reentrant=False)
            if self.after:
                self.ema = self.ema * 0.5 + y.detach().mean(0)
            return y

    for after in (False, True):
        with pytest.raises(cleave.CaptureError, match="keeps for the next call"):
            cleave.capture(Around(after), _x())


def test_a_parameter_of_several_reentrant_checkpoints_is_refused() -> None:
    class Shared(nn.Module):
        def __init__(self, reentrant: bool) -> None:
            super().__init__()
            self.lin, self.reentrant = nn.Linear(WIDTH, WIDTH), reentrant

        def forward(self, x: Tensor) -> Tensor:
            x = self.lin(x)
            for _ in range(2):
                x = checkpoint(lambda t: self.lin(t).tanh(), x, use_reentrant=self.reentrant)
            return x

    with pytest.raises(cleave.CaptureError, match="use_reentrant=True"):
        cleave.capture(Shared(True), _x())
    _same(lambda: Shared(False), lambda m: cleave.capture(m, _x()))


def test_checkpointed_sequences() -> None:
    class Chain(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.layers = nn.Sequential(*(nn.Linear(WIDTH, WIDTH) for _ in range(4)))

        def forward(self, x: Tensor) -> Tensor:
            return checkpoint_sequential(self.layers, 2, x, use_reentrant=False)

    _same(Chain, lambda m: cleave.capture(m, _x()))


# ---- requires_grad_ --------------------------------------------------------------------------------------------------


class Flagged(nn.Module):
    """The input of a reentrant checkpoint has to require grad, or there are no gradients."""

    def __init__(self, how: str) -> None:
        super().__init__()
        self.how, self.a, self.b = how, nn.Linear(WIDTH, WIDTH), nn.Linear(WIDTH, WIDTH)

    def forward(self, x: Tensor) -> Tensor:
        if self.how == "input":
            x.requires_grad_()
        if self.how == "assigned":
            x.requires_grad = True
        if self.how == "copy":
            x = (x * 2).detach().requires_grad_()
        x = checkpoint(lambda t: self.a(t).tanh(), x, use_reentrant=True)
        return self.b(x)


@pytest.mark.parametrize("how", ["input", "assigned", "copy", "not at all"])
def test_flags_that_a_forward_sets_are_set_by_its_plan(how: str) -> None:
    torch.manual_seed(0)
    model = Flagged(how)
    twin = copy.deepcopy(model)
    plan = cleave.capture(model, _x(), dynamic_batch=None)
    found = _staged(copy.deepcopy(model))
    for run, net in ((twin, twin), (plan, model), (found, None)):
        x = _x(7)
        run(x).square().sum().backward()
        if net is twin:
            want, flag = x.grad, x.requires_grad
        assert x.requires_grad == flag == (how in ("input", "assigned"))
        assert (x.grad is None) == (want is None)
        if want is not None:
            assert torch.equal(x.grad, want)  # type: ignore[arg-type]
    assert (twin.a.weight.grad is None) == (how == "not at all")
    for (name, p), q in zip(twin.named_parameters(), model.parameters(), strict=True):
        assert (p.grad is None) == (q.grad is None), name
        if p.grad is not None and q.grad is not None:
            same_tensor(p.grad, q.grad, name)
    with torch.no_grad():
        x, y = _x(8), _x(8)
        assert torch.equal(twin(x), plan(y))
        assert x.requires_grad == y.requires_grad


@pytest.mark.parametrize("how", ["input", "copy", "not at all"])
@pytest.mark.parametrize("boundary", ["after:a", "after:tanh"])
def test_flags_that_a_forward_sets_are_set_by_its_prefix(how: str, boundary: str) -> None:
    torch.manual_seed(0)
    model = Flagged(how)
    twin = copy.deepcopy(model)
    runtime = _split(model, boundary)
    x, y = _x(7), _x(7)
    twin(x).square().sum().backward()
    b = runtime.run_training_prefix(y)
    runtime.train_suffix(b, None, loss_fn=lambda out, _: out.square().sum())
    runtime.backward_prefix(b)
    assert x.requires_grad == y.requires_grad
    for a, c in (
        (x.grad, y.grad),
        *((p.grad, q.grad) for p, q in zip(twin.parameters(), model.parameters(), strict=True)),
    ):
        assert (a is None) == (c is None)
        assert a is None or torch.equal(a, c)  # type: ignore[arg-type]


def test_the_output_of_a_frozen_layer_may_be_made_to_require_grad() -> None:
    """As libraries for adapters do, by a hook."""
    torch.manual_seed(0)
    net = Net(_plain, True)
    net.first.requires_grad_(False).register_forward_hook(lambda m, args, out: out.requires_grad_())
    _same(lambda: net, lambda m: cleave.capture(m, _x()))


# ---- the default loss ------------------------------------------------------------------------------------------------

_LOSS = """
import copy, torch, cleave
import torch.nn.functional as F
from torch import nn
torch.manual_seed(0)
for dtype in (torch.float32, torch.float64, torch.bfloat16):
    model = nn.Sequential(nn.Linear(4, 4), nn.ReLU(), nn.Linear(4, 4))
    twin = copy.deepcopy(model)
    x, y = torch.randn(3, 4), torch.randn(3, 4).to(dtype)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        spec = cleave.SplitSpec(boundary="after:0", trainable=True)
        runtime = cleave.prepare_split(model, example_inputs=(x,), split=spec)
        b = runtime.run_training_prefix(x)
        loss, _ = runtime.train_suffix(b, y)
        runtime.backward_prefix(b)
        want = F.mse_loss(twin(x), y)
        want.backward()
    assert torch.equal(loss, want.detach()) and loss.dtype == want.dtype, dtype
    assert all(torch.equal(p.grad, q.grad) for p, q in zip(twin.parameters(), model.parameters())), dtype
print("same")
"""


def test_the_default_loss_is_mse_loss_under_autocast() -> None:
    env = {**os.environ, "ONEDNN_MAX_CPU_ISA": "AVX512_CORE_BF16"}
    done = subprocess.run([sys.executable, "-c", _LOSS], env=env, capture_output=True, text=True, timeout=300)
    assert done.stdout.strip() == "same", done.stderr[-2000:]


# ---- drawn at random -------------------------------------------------------------------------------------------------


class Drawn(nn.Module):
    """Blocks of several kinds, some of them checkpointed in one of two ways."""

    def __init__(self, seed: int) -> None:
        super().__init__()
        generator = random.Random(seed)
        self.blocks = nn.ModuleList()
        for _ in range(generator.randint(2, 4)):
            kind = generator.choice(["linear", "linear", "dropout", "norm", "ema"])
            self.blocks.append(Piece(kind, generator.choice([None, None, False, True])))

    def forward(self, x: Tensor) -> Tensor:
        for block in self.blocks:
            x = block(x)
        return x


class Piece(nn.Module):
    def __init__(self, kind: str, reentrant: bool | None) -> None:
        super().__init__()
        self.kind, self.reentrant = kind, reentrant
        self.lin, self.norm = nn.Linear(WIDTH, WIDTH), nn.BatchNorm1d(WIDTH)
        self.register_buffer("ema", torch.ones(WIDTH))

    def run(self, x: Tensor) -> Tensor:
        if self.kind == "dropout":
            x = F.dropout(x, 0.4, self.training)
        if self.kind == "norm":
            x = self.norm(x)
        if self.kind == "ema":
            self.ema = 0.9 * self.ema + x.detach().mean(0)
            x = x * self.ema
        return self.lin(x).tanh()

    def forward(self, x: Tensor) -> Tensor:
        if self.reentrant is None:
            return self.run(x)
        return checkpoint(self.run, x, use_reentrant=self.reentrant)


def _draw(seed: int) -> str:
    training = seed % 3 > 0
    torch.manual_seed(seed)
    drawn = Drawn(seed).train(training)
    changes = [b.kind == "ema" or (b.kind == "norm" and training) for b in drawn.blocks]  # type: ignore[union-attr]
    bad = any(c and b.reentrant is not None for c, b in zip(changes, drawn.blocks, strict=True))  # type: ignore[union-attr]
    try:
        _same(lambda: copy.deepcopy(drawn), lambda m: cleave.capture(m, _x()))
    except cleave.CaptureError as error:
        if not bad or "checkpoint" not in str(error):
            raise
        return "refused"
    _same(lambda: copy.deepcopy(drawn), lambda m: _staged(m, recomputation=True))
    return "right"


def test_random_models_with_checkpoints() -> None:
    assert {_draw(seed) for seed in range(5)} == {"right", "refused"}


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(100, 200))
def test_many_random_models_with_checkpoints(seed: int) -> None:
    _draw(seed)

"""CUDA: replay is bit for bit eager, with gradients, the model's state and the generators of both devices."""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, nullcontext
from typing import Any

import pytest
import torch
from helpers import guarded, mentions, same_tree, state_of
from helpers import tensors as tensors_in
from torch import Tensor, nn

import cleave

pytestmark = [pytest.mark.gpu, pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device")]

MakeInputs = Callable[[int], tuple[Tensor, ...]]


@pytest.fixture(autouse=True)
def repeatable_kernels(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Some of cuDNN's convolutions sum in any order: eager would differ from itself."""
    monkeypatch.setattr(torch.backends.cudnn, "deterministic", True)
    yield
    assert not torch.is_autocast_enabled("cuda"), "the test left autocast on"


def randn(seed: int, *shape: int, device: str = "cuda") -> Tensor:
    """Normal numbers that depend on the seed only, and move no generator."""
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed)).to(device)


def seen(call: Callable[..., Any], model: nn.Module, inputs: tuple[Tensor, ...], grad: bool) -> dict[str, Any]:
    """Everything a caller can see of one call, and of the backward pass after it."""
    model.zero_grad()
    torch.manual_seed(7)
    for t in inputs:
        t.requires_grad_(t.is_floating_point())
    with torch.set_grad_enabled(grad):
        out = call(*inputs)
    roots = [t for _, t in tensors_in(out, "output") if t.requires_grad]
    if roots:
        torch.autograd.backward(roots, [torch.linspace(-1, 1, t.numel()).reshape(t.shape).to(t) for t in roots])
    state = state_of(model)
    return {
        "output": out,
        "inputs": inputs,
        "state": state,
        "gradients": [t.grad for t in [*inputs, *state.values()]],
        "generators": (torch.get_rng_state(), torch.cuda.get_rng_state()),
    }


def replays(
    model: nn.Module,
    make_inputs: MakeInputs,
    *,
    train: bool = False,
    around: Callable[[], AbstractContextManager[Any]] = nullcontext,
) -> None:
    """Captures in each grad mode and replays in both, on other data; a twin goes the same way in eager."""
    for capture_grad in (False, True):
        target = copy.deepcopy(model).cuda().train(train)
        twin = copy.deepcopy(target)
        with torch.set_grad_enabled(capture_grad), around():
            plan = cleave.capture(target, make_inputs(0))
        for seed, grad in enumerate((False, True, True, False), start=1):
            with around():
                want = seen(twin, twin, make_inputs(seed), grad)
                got = seen(plan, target, make_inputs(seed), grad)
            same_tree(want, got, f"captured with grad={capture_grad}, run with grad={grad}")


def conv_net() -> nn.Module:
    return nn.Sequential(nn.Conv2d(3, 8, 3), nn.BatchNorm2d(8), nn.ReLU(inplace=True), nn.Conv2d(8, 4, 3, stride=2))


def images(seed: int) -> tuple[Tensor, ...]:
    return (randn(seed, 2, 3, 12, 12),)


@pytest.mark.parametrize("train", [False, True])
def test_convolution_and_batch_norm_replay_with_their_running_statistics(train: bool) -> None:
    replays(conv_net(), images, train=train)


def test_dropout_moves_the_cuda_generator_as_eager_does() -> None:
    model = nn.Sequential(nn.Linear(16, 64), nn.Dropout(0.5), nn.Linear(64, 4))
    replays(model, lambda s: (randn(s, 8, 16),), train=True)


def test_dropout_draws_anew_on_every_replay() -> None:
    x = torch.ones(4096, device="cuda")
    plan = cleave.capture(nn.Dropout(0.5), (x,))
    assert not torch.equal(plan(x), plan(x))


@pytest.mark.parametrize("train", [False, True])
def test_a_transformer_layer_replays_in_both_grad_modes(train: bool) -> None:
    layer = nn.TransformerEncoderLayer(32, 4, dim_feedforward=64, dropout=0.1, batch_first=True)
    replays(layer, lambda s: (randn(s, 2, 6, 32),), train=train)


def test_autocast_around_the_call_is_part_of_the_plan() -> None:
    model = nn.Sequential(nn.Linear(16, 32), nn.LayerNorm(32), nn.GELU(), nn.Linear(32, 4))
    replays(model, lambda s: (randn(s, 8, 16),), around=lambda: torch.autocast("cuda", dtype=torch.float16))


class Mixed(nn.Module):
    """Half of the forward under autocast, the rest without."""

    def __init__(self) -> None:
        super().__init__()
        self.a, self.b = nn.Linear(16, 16), nn.Linear(16, 16)

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
        with torch.autocast("cuda", dtype=torch.float16):
            y = self.a(x)
        return y, self.b(y.float())


def test_autocast_inside_the_forward_is_part_of_the_plan() -> None:
    replays(Mixed(), lambda s: (randn(s, 8, 16),))
    model, x = Mixed().cuda().eval(), randn(1, 8, 16)
    with torch.no_grad():
        y, z = cleave.capture(model, (x,))(x)
    assert (y.dtype, z.dtype) == (torch.float16, torch.float32)


class TwoDevices(nn.Module):
    """A table on the CPU that travels, and a CPU number beside a CUDA tensor."""

    def __init__(self) -> None:
        super().__init__()
        self.lin = nn.Linear(4, 4)

    def forward(self, x: Tensor, table: Tensor, factor: Tensor) -> tuple[Tensor, Tensor]:
        y = self.lin(x) * table.relu().to(x.device) * factor
        return y, y.sum(0).cpu() + table


def test_inputs_on_both_devices_replay() -> None:
    replays(TwoDevices(), lambda s: (randn(s, 3, 4), randn(s + 50, 4, device="cpu"), randn(s + 90, device="cpu")))


def test_a_split_model_gives_eagers_bits_and_its_boundary_stays_on_the_device() -> None:
    model, (example,), (x,) = conv_net().cuda().eval(), images(0), images(1)
    split = cleave.prepare_split(model, example_inputs=(example,), split=cleave.SplitSpec(boundary="50%"))
    boundary = split.run_prefix(x)
    assert {t.device.type for t in boundary.tensors.values()} == {"cuda"}
    with torch.no_grad():
        same_tree(model(x), split.run_suffix(boundary), "output")


def test_replay_works_on_the_callers_stream() -> None:
    model, (x,) = conv_net().cuda().eval(), images(1)
    with torch.no_grad():
        plan = cleave.capture(model, images(0))
        want = model(x)
        stream = torch.cuda.Stream()
        stream.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(stream):
            got = plan(x)
        stream.synchronize()
    same_tree(want, got, "output")


def test_a_number_read_from_the_device_is_a_guard() -> None:
    def forward(x: Tensor) -> Tensor:
        return x * 2 if x.sum() > 0 else x - 1

    guarded(forward, torch.ones(3, device="cuda"), torch.rand(3, device="cuda"), -torch.ones(3, device="cuda"))


def test_an_input_on_another_device_is_refused() -> None:
    plan = cleave.capture(nn.Linear(4, 2).cuda(), (randn(0, 3, 4),))
    with pytest.raises(cleave.InputError) as caught:
        plan(randn(1, 3, 4, device="cpu"))
    mentions(caught.value, "input", "is on cpu", "captured with cuda:0")


def test_a_model_that_went_to_another_device_is_refused_until_it_is_back() -> None:
    model, x = nn.Linear(4, 2).cuda(), randn(1, 3, 4)
    plan = cleave.capture(model, (randn(0, 3, 4),))
    model.to("cpu")
    with pytest.raises(cleave.InputError) as caught:
        plan(x)
    mentions(caught.value, "@weight", "on cpu", "captured with f32 on cuda:0")
    model.to("cuda")
    same_tree(model(x), plan(x), "output")

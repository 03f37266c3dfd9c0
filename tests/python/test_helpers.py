"""The comparison itself: each kind of wrong replay must be noticed, or the other tests prove nothing."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import helpers
import pytest
import torch
from helpers import Args, check, must_refuse, must_replay, rand, same_tensor
from torch import Tensor, nn

import cleave


class Stateful(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.lin = nn.Linear(4, 4)
        self.register_buffer("count", torch.zeros(()))
        self.last: Tensor | None = None

    def forward(self, x: Tensor) -> dict[str, Any]:
        y = self.lin(x)
        with torch.no_grad():
            self.count += 1
            self.last = y.detach()
        return {"y": y, "pair": (y, x), "noise": torch.rand_like(y)}


Wrong = Callable[[nn.Module, tuple[Any, ...]], Any]


def _broken(monkeypatch: pytest.MonkeyPatch, run: Wrong) -> None:
    def capture(model: Any, inputs: Any, kwargs: Any = None, on_guard: str = "") -> Any:
        return lambda *args: run(model, args)

    monkeypatch.setattr(cleave, "capture", capture)


def test_a_perfect_replay_passes(monkeypatch: pytest.MonkeyPatch) -> None:
    _broken(monkeypatch, lambda m, args: m(*args))
    must_replay(Stateful(), rand((3, 4)))


def _wrong_value(m: nn.Module, args: tuple[Any, ...]) -> Any:
    out = m(*args)
    out["y"] = out["y"] * (1 + 1e-7)
    out["pair"] = (out["y"], args[0])
    return out


def _wrong_sign_of_zero(m: nn.Module, args: tuple[Any, ...]) -> Any:
    out = m(*args)
    out["noise"] = torch.full_like(out["noise"], -0.0) + out["noise"].clamp(max=-1e-9) * 0
    return out


def _copy_instead_of_alias(m: nn.Module, args: tuple[Any, ...]) -> Any:
    out = m(*args)
    out["pair"] = (out["pair"][0], args[0] + 0)
    return out


def _clone_instead_of_same(m: nn.Module, args: tuple[Any, ...]) -> Any:
    out = m(*args)
    out["pair"] = (out["y"].clone(), args[0])
    return out


def _other_structure(m: nn.Module, args: tuple[Any, ...]) -> Any:
    out = m(*args)
    out["pair"] = list(out["pair"])
    return out


def _lost_gradient(m: nn.Module, args: tuple[Any, ...]) -> Any:
    out = m(*args)
    out["y"] = out["pair"][0].detach().requires_grad_(out["y"].requires_grad)
    return out


def _mutated_input(m: nn.Module, args: tuple[Any, ...]) -> Any:
    out = m(*args)
    args[0].data.add_(1)
    return out


def _state_twice(m: nn.Module, args: tuple[Any, ...]) -> Any:
    out = m(*args)
    m.count.add_(1)  # type: ignore[operator, union-attr]
    return out


def _attribute_forgotten(m: nn.Module, args: tuple[Any, ...]) -> Any:
    last = m.last
    out = m(*args)
    m.last = last
    return out


def _extra_draw(m: nn.Module, args: tuple[Any, ...]) -> Any:
    out = m(*args)
    torch.rand(1)
    return out


def _other_strides(m: nn.Module, args: tuple[Any, ...]) -> Any:
    out = m(*args)
    out["noise"] = out["noise"].t().contiguous().t()
    return out


def _grad_of_parameter(m: nn.Module, args: tuple[Any, ...]) -> Any:
    out = m(*args)
    out["y"] = out["y"] + 0 * m.lin.bias.detach()  # type: ignore[union-attr, operator]
    y = out["y"].detach() + (out["y"] - out["y"].detach()) * 2 if out["y"].requires_grad else out["y"]
    return {**out, "y": y, "pair": (y, args[0])}


@pytest.mark.parametrize(
    "run",
    [
        _wrong_value,
        _wrong_sign_of_zero,
        _copy_instead_of_alias,
        _clone_instead_of_same,
        _other_structure,
        _lost_gradient,
        _mutated_input,
        _state_twice,
        _attribute_forgotten,
        _extra_draw,
        _other_strides,
        _grad_of_parameter,
    ],
)
def test_a_wrong_replay_is_noticed(monkeypatch: pytest.MonkeyPatch, run: Wrong) -> None:
    _broken(monkeypatch, run)
    with pytest.raises(AssertionError):
        check(Stateful(), rand((3, 4)))


def test_a_refusal_is_an_outcome_and_needs_a_reason(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: Any, **__: Any) -> Any:
        raise cleave.CaptureError("aten::frobnicate cannot be captured: it is a joke")

    monkeypatch.setattr(cleave, "capture", refuse)
    assert check(nn.ReLU(), rand((2, 2))).startswith("refused: aten::frobnicate")
    must_refuse(nn.ReLU(), rand((2, 2)), "frobnicate")
    with pytest.raises(AssertionError, match="should replay"):
        must_replay(nn.ReLU(), rand((2, 2)))

    def mumble(*_: Any, **__: Any) -> Any:
        raise cleave.CaptureError("no")

    monkeypatch.setattr(cleave, "capture", mumble)
    with pytest.raises(AssertionError, match="reason"):
        check(nn.ReLU(), rand((2, 2)))


def test_other_errors_are_not_refusals(monkeypatch: pytest.MonkeyPatch) -> None:
    def explode(m: nn.Module, args: tuple[Any, ...]) -> Any:
        raise RuntimeError("expected scalar type Float but found Double")

    _broken(monkeypatch, explode)
    with pytest.raises(RuntimeError, match="scalar type"):
        check(nn.ReLU(), rand((2, 2)))


def test_a_capture_that_changes_the_model_is_noticed(monkeypatch: pytest.MonkeyPatch) -> None:
    def capture(model: Any, inputs: Any, kwargs: Any = None, on_guard: str = "") -> Any:
        model(*inputs)
        return model

    monkeypatch.setattr(cleave, "capture", capture)
    with pytest.raises(AssertionError):
        check(nn.BatchNorm1d(4), rand((3, 4)), train=True)
    with pytest.raises(AssertionError, match="generator"):
        check(nn.Dropout(), rand((3, 4)), train=True)


def test_equal_bits_knows_nan_from_nan_and_zero_from_minus_zero() -> None:
    nan = torch.tensor([float("nan"), 1.0])
    same_tensor(nan, nan.clone(), "x")
    with pytest.raises(AssertionError):
        same_tensor(torch.tensor([0.0]), torch.tensor([-0.0]), "x")
    with pytest.raises(AssertionError):
        same_tensor(nan, torch.tensor([0.0, 1.0]), "x")


def test_inputs_are_drawn_equal_and_separate() -> None:
    make = lambda: Args(torch.randn(2), scale=torch.rand(()))  # noqa: E731
    a, b = helpers.draw(make, 3, True), helpers.draw(make, 3, True)
    assert torch.equal(a.args[0], b.args[0])
    assert a.args[0] is not b.args[0]
    assert a.kwargs["scale"].requires_grad

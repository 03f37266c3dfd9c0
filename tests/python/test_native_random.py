"""Random programs on the native engine beside eager: the grammar of test_random_programs.py, in f32 and in halves."""

from __future__ import annotations

import warnings
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from test_random_programs import GRAMMAR, Step, run
from torch import Tensor, nn

import cleave

DRAWS = {"rand", "dropout", "randperm", "bernoulli", "normal_"}
JUMPS = {
    "sort",
    "argmax",
    "topk",
    "gather",
    "compare",
    "where",
    "masked",
    "max",
}  # a last digit may decide what they take
NAMES = sorted(set(GRAMMAR) - DRAWS)
STEPS = st.lists(
    st.tuples(st.sampled_from(NAMES), st.integers(0, 20), st.integers(0, 20), st.integers(0, 3)),
    min_size=1,
    max_size=10,
)


class Program(nn.Module):
    """Gives every value that the program makes."""

    def __init__(self, steps: Sequence[Step]) -> None:
        super().__init__()
        self.steps = steps

    def forward(self, *inputs: Tensor) -> Any:
        return run(self.steps, *inputs)


def _native(model: nn.Module, inputs: list[Tensor], file: Path) -> cleave.LoadedModel | None:
    """The program on the native engine; None where it or the file format does not take an operator."""
    try:
        cleave.capture(model, tuple(x.clone() for x in inputs), both_grad_modes=False).save(file, prove="none")
    except cleave.CleaveError:
        return None  # test_random_programs.py says which may be captured
    try:
        return cleave.load(file, engine="native")
    except cleave.CleaveError as e:
        assert "native does not take" in str(e), e  # noqa: PT017
        return None


def _near(want: Any, got: Any, eps: float, what: str) -> None:
    for i, (a, b) in enumerate(zip(want, got, strict=True)):
        assert (a.dtype, a.shape) == (b.dtype, b.shape), f"{what} {i}"
        most = float(a.double().nan_to_num(0, 0, 0).abs().max()) if a.numel() else 0.0
        torch.testing.assert_close(
            b, a, rtol=eps, atol=eps * max(most, 1), equal_nan=True, msg=lambda m, i=i: f"{what} {i}: {m}"
        )


def _check(steps: Sequence[Step], dtype: torch.dtype, file: Path) -> bool:
    """False: it was refused, by name."""
    torch.manual_seed(0)
    model = Program(steps).eval()
    inputs = [torch.randn(3, 4).to(dtype), torch.randn(2, 3, 5).to(dtype)]
    with torch.no_grad(), warnings.catch_warnings():
        warnings.simplefilter("ignore")
        native = _native(model, inputs, file)
        if native is None:
            return False
        for call in (inputs, [torch.randn_like(x) for x in inputs]):
            mine, own = [x.clone() for x in call], [x.clone() for x in call]
            eps = 1e-4 if dtype == torch.float32 else 8 * torch.finfo(dtype).eps
            try:
                got = native(*mine)
            except cleave.CaptureError as e:
                assert "overlap" in str(e), e  # noqa: PT017 the only refusal that these programs may meet when they run
                return False
            _near(model(*own), got, eps, "output")
            _near(own, mine, eps, "input")
    return True


def _mostly_compared(outcomes: list[bool]) -> None:
    assert sum(outcomes) * 10 >= len(outcomes) * 7, f"{sum(outcomes)} of {len(outcomes)} were compared"


SETTINGS = settings(deadline=None, derandomize=True, database=None, suppress_health_check=list(HealthCheck))


def test_random_programs_are_near_eager(tmp_path: Path) -> None:
    outcomes: list[bool] = []

    @settings(SETTINGS, max_examples=60)
    @given(STEPS)
    def body(steps: list[Step]) -> None:
        outcomes.append(_check(steps, torch.float32, tmp_path / "random.clv"))

    body()
    _mostly_compared(outcomes)


def test_random_programs_of_halves_are_near_eager(tmp_path: Path) -> None:
    outcomes: list[bool] = []

    @settings(SETTINGS, max_examples=30)
    @given(STEPS.filter(lambda steps: not JUMPS & {s[0] for s in steps}))
    def body(steps: list[Step]) -> None:
        outcomes.append(_check(steps, torch.bfloat16, tmp_path / "halves.clv"))

    body()
    _mostly_compared(outcomes)

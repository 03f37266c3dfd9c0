"""Numbers that follow the batch through Python's own arithmetic: one plan of formulas, every last bit that of eager."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from helpers import Fn, draw, same_tree
from torch import Tensor, nn

import cleave

SIZES = (1, 2, 3, 5, 6, 7, 9, 16, 33, 64)


def _model(fn: Callable[..., Any]) -> nn.Module:
    torch.manual_seed(0)
    return Fn(fn, 4).eval()


def _inputs(batch: int, seed: int = 0) -> tuple[Any, ...]:
    args: tuple[Any, ...] = draw(lambda: (torch.randn(batch, 4),), seed, False).args
    return args


def _split(fn: Callable[..., Any], example: int = 4, high: int = 64, boundary: str = "50%") -> Any:
    model = _model(fn)
    spec = cleave.SplitSpec(boundary=boundary, dynamic_batch=(1, high))
    return model, cleave.prepare_split(model, example_inputs=_inputs(example), split=spec)


def _compare(model: nn.Module, rt: cleave.SplitRuntime, sizes: Any = SIZES) -> None:
    """The split has the bits of eager at these sizes."""
    for seed in (1, 2):
        for size in sizes:
            got = rt.run_suffix(rt.run_prefix(*_inputs(size, seed)))
            with torch.no_grad():
                want = model(*_inputs(size, seed))
            same_tree(want, got, f"batch {size}")


def _one_plan(fn: Callable[..., Any], sizes: Any = SIZES, **options: Any) -> str:
    """It has the bits of eager at every size, from one plan; its text."""
    model, rt = _split(fn, **options)
    _compare(model, rt, sizes)
    assert rt.trace_plan._sized.reason is None, rt.trace_plan._sized.reason
    assert len(rt.variants) == 1, rt.variants
    return str(rt.trace_plan.text)


# ---- floats ------------------------------------------------------------------------------------------------

FLOATS: dict[str, tuple[str, Callable[[int], float]]] = {
    "the reciprocal": ("1.0/int(B)", lambda b: 1 / b),
    "a reciprocal of one more": ("1.0/int(B+1)", lambda b: 1 / (b + 1)),
    "a reciprocal of all elements": ("1.0/int(4*B)", lambda b: 1 / (4 * b)),
    "a reciprocal of many": ("1.0/int(12*B)", lambda b: 1.0 / (12 * b)),
    "a number over the batch": ("1.702/int(B)", lambda b: 1.702 / b),
    "a number times the batch": ("0.1*int(B)", lambda b: 0.1 * b),
    "half of the batch": ("int(B)/2.0", lambda b: 0.5 * b),
    "a third": ("int(B)/3.0", lambda b: b / 3),
    "times a third": ("0.3333333333333333*int(B)", lambda b: b * (1 / 3)),
    "the batch as a float": ("int(B)", lambda b: float(b)),
    "a negative": ("int(-1*B)/4.0", lambda b: -0.25 * b),
    "a square": ("int(B*B)", lambda b: float(b) ** 2),
    "the root": ("sqrt(int(B))", lambda b: math.sqrt(b)),
    "the root as a power": ("sqrt(int(B))", lambda b: b**0.5),
    "the inverse root": ("1.0/sqrt(int(B))", lambda b: 1 / math.sqrt(b)),
    "a power of minus one half": ("pow(int(B), -0.5)", lambda b: float(b**-0.5)),
    "a scaled root": ("0.7*sqrt(int(B))", lambda b: 0.7 * math.sqrt(b)),
    "a number over the root": ("0.7/sqrt(int(B))", lambda b: 0.7 / math.sqrt(b)),
    "a logarithm": ("log(int(B+1))", lambda b: math.log(b + 1)),
    "a logarithm to base two": ("log2(int(B+1))", lambda b: math.log2(b + 1)),
    "a scaled logarithm": ("0.3*log(int(B))", lambda b: 0.3 * math.log(b)),
    "a decay": ("pow(0.9, int(B))", lambda b: 0.9**b),
    "an exponential": ("exp(int(-1*B))", lambda b: math.exp(-b)),
    "the rest": ("1.0-1.0/int(B)", lambda b: 1 - 1 / b),
    "a share": ("int(B)/int(B+1)", lambda b: b / (b + 1)),
    "one size less than itself": ("int(B-1)/int(B)", lambda b: (b - 1) / b),
}


@pytest.mark.parametrize("name", FLOATS)
def test_a_float_that_follows_the_batch_is_a_formula(name: str) -> None:
    text, number = FLOATS[name]
    found = _one_plan(lambda lin, x: lin(x) * number(x.shape[0]))
    assert f"num(float({text}))" in found, found


PLACES: dict[str, Callable[..., Any]] = {
    "a scalar argument": lambda lin, x: torch.lerp(lin(x), x, 1 / x.shape[0]),
    "a slope": lambda lin, x: nn.functional.leaky_relu(lin(x), 0.5 / x.shape[0]),
    "alpha": lambda lin, x: torch.add(lin(x), x, alpha=1 / x.shape[0]),
    "a fill value": lambda lin, x: lin(x) + torch.full((4,), 1 / x.shape[0]),
    "a bound": lambda lin, x: lin(x).clamp(-1 / x.shape[0], 1 / x.shape[0]),
    "a list of floats": lambda lin, x: nn.functional.interpolate(lin(x)[None], scale_factor=x.shape[0] / 2.0)[0],
    "in place": lambda lin, x: lin(x).mul_(1 / x.shape[0]).div_(math.sqrt(x.shape[0])),
    "linspace": lambda lin, x: lin(x) + torch.linspace(0, 1 / x.shape[0], 4),
    "a norm": lambda lin, x: nn.functional.layer_norm(lin(x), (4,), eps=1e-3 / x.shape[0]),
    "attention": lambda lin, x: nn.functional.scaled_dot_product_attention(
        lin(x)[None], x[None], x[None], scale=x.shape[0] ** -0.5
    ),
    "a mean by hand": lambda lin, x: lin(x).sum(0) / float(x.shape[0]),
    "two of them": lambda lin, x: (lin(x) * (1 / x.shape[0])).tanh() * math.sqrt(x.shape[0] + 2),
    "a threshold": lambda lin, x: torch.where(lin(x) > 1 / x.shape[0], x, -x),
}


@pytest.mark.parametrize("name", PLACES)
def test_a_float_may_stand_wherever_an_operator_takes_one(name: str) -> None:
    assert "float(" in _one_plan(PLACES[name])


@pytest.mark.parametrize("example", [1, 2, 3, 16])
def test_the_formula_does_not_depend_on_the_example(example: int) -> None:
    assert "num(float(1.0/int(B)))" in _one_plan(lambda lin, x: lin(x) * (1 / x.shape[0]), example=example)


@pytest.mark.parametrize("boundary", ["auto", "20%", "80%"])
def test_the_suffix_computes_its_own_floats(boundary: str) -> None:
    _one_plan(lambda lin, x: (lin(x).relu() * 0.5).tanh() * (1 / x.shape[0]), boundary=boundary)


def test_the_debug_interpreter_computes_floats_too() -> None:
    model = _model(lambda lin, x: lin(x) * (1 / x.shape[0]))
    spec = cleave.SplitSpec(boundary="50%", dynamic_batch=(1, 64), trace_batch_mode="batch_gt1")
    rt = cleave.prepare_split(model, example_inputs=_inputs(4), split=spec, mode="debug_interpreter")
    _compare(model, rt)


def test_all_sizes_of_a_range_have_the_last_bit_of_eager() -> None:
    fn = lambda lin, x: lin(x) * (1 / math.sqrt(x.shape[0])) + x.shape[0] ** -0.5  # noqa: E731
    _one_plan(fn, sizes=range(1, 65))


# ---- numbers that only seem to follow --------------------------------------------------------------------------

NEAR_MISSES: dict[str, Callable[[int], float]] = {
    "another at eleven": lambda b: 1 / b if b != 11 else 0.25,
    "one last bit at eleven": lambda b: 1 / b if b != 11 else math.nextafter(1 / 11, 1),
    "one last bit at 33": lambda b: math.sqrt(b) if b != 33 else math.nextafter(math.sqrt(33), 0),
    "a bound from 20 on": lambda b: 1 / min(b, 20),
    "a step": lambda b: 0.5 if b < 20 else 0.25,
    "negative from 40 on": lambda b: b / 3 if b < 40 else -b / 3,
    "a sine": lambda b: math.sin(b),
    "a random table": lambda b: hash((b, 7)) % 1000 / 7,
    "rounded": lambda b: round(1 / b, 6),
    "a harmonic number": lambda b: sum(1 / k for k in range(1, b + 1)),
    "an integer at four": lambda b: 1 if b == 4 else 1 / b,
    "sometimes infinite": lambda b: math.inf if b == 9 else 1 / b,
    "never a number": lambda b: math.nan,
}


@pytest.mark.integration
@pytest.mark.parametrize("name", NEAR_MISSES)
def test_a_number_that_only_seems_to_follow_is_never_wrong(name: str) -> None:
    number = NEAR_MISSES[name]
    model, rt = _split(lambda lin, x: lin(x) * number(x.shape[0]))
    _compare(model, rt, (1, 2, 3, 4, 5, 6, 7, 9, 10, 11, 12, 16, 19, 20, 21, 32, 33, 34, 40, 64))


def test_a_float_that_follows_nothing_is_named_with_operator_and_place() -> None:
    _, rt = _split(lambda lin, x: lin(x) * math.sin(x.shape[0]))
    reason = str(rt.trace_plan._sized.reason)
    assert "aten::mul.Tensor" in reason
    assert "test_dynamic_formulas.py" in reason
    assert "no formula" in reason


def test_a_batch_of_one_may_be_a_case_of_its_own() -> None:
    model, rt = _split(lambda lin, x: lin(x) * (1 / (x.shape[0] - 1) if x.shape[0] > 1 else 7.0))
    _compare(model, rt)
    assert len(rt.variants) == 2
    assert "float(1.0/int(B-1))" in rt.trace_plan.text


def test_a_complex_number_that_follows_the_batch_is_not_frozen() -> None:
    model, rt = _split(lambda lin, x: torch.view_as_real(lin(x) * complex(1, x.shape[0])))
    _compare(model, rt)


# ---- numbers in the output ---------------------------------------------------------------------------------------

OUTPUTS: dict[str, Callable[..., Any]] = {
    "the batch": lambda lin, x: (lin(x).relu(), x.shape[0]),
    "a number alone before": lambda lin, x: (x.shape[0] * 3, lin(x).relu()),
    "a dict": lambda lin, x: {"n": x.shape[0] * 2, "y": lin(x).relu(), "scale": 1 / x.shape[0], "k": 3, "f": 0.5},
    "nested": lambda lin, x: [x.shape[0] * 1.5, [lin(x).relu(), 4], {"a": x.shape[0] // 2}, (-x.shape[0],), x.tanh()],
    "a shape": lambda lin, x: (lin(x).relu(), x.shape),
    "a float": lambda lin, x: {"y": lin(x).relu(), "root": math.sqrt(x.shape[0])},
    "zero and minus zero": lambda lin, x: (lin(x).relu(), 0.0, -0.0, x.shape[0] - x.shape[0]),
}


@pytest.mark.parametrize("name", OUTPUTS)
def test_a_number_in_the_output_is_computed_by_each_run(name: str) -> None:
    _one_plan(OUTPUTS[name])


@pytest.mark.parametrize("name", OUTPUTS)
def test_the_whole_plan_computes_the_numbers_of_its_output_too(name: str) -> None:
    model, rt = _split(OUTPUTS[name])
    for size in (2, 3, 11, 64):
        with torch.no_grad():
            same_tree(model(*_inputs(size, 1)), rt.trace_plan(*_inputs(size, 1)), f"batch {size}")


LATE_OUTPUTS: dict[str, Callable[..., Any]] = {
    "a bool": lambda lin, x: {"large": x.shape[0] > 4, "y": lin(x).relu()},
    "a bool that changes late": lambda lin, x: {"large": x.shape[0] > 32, "y": lin(x).relu()},
    "another at eleven": lambda lin, x: (lin(x).relu(), x.shape[0] if x.shape[0] != 11 else 0),
    "a float from eleven on": lambda lin, x: (lin(x).relu(), x.shape[0] if x.shape[0] < 11 else x.shape[0] * 1.0),
    "nothing from eleven on": lambda lin, x: (lin(x).relu(), x.shape[0] if x.shape[0] < 11 else None),
    "a large number": lambda lin, x: (lin(x).relu(), 10 ** x.shape[0]),
    "a string": lambda lin, x: (lin(x).relu(), str(x.shape[0])),
    "a key": lambda lin, x: {"y": lin(x).relu(), x.shape[0]: 1},
    "a sine": lambda lin, x: (lin(x).relu(), math.sin(x.shape[0])),
    "a complex number": lambda lin, x: (lin(x).relu(), complex(1, x.shape[0])),
}


@pytest.mark.integration
@pytest.mark.parametrize("name", LATE_OUTPUTS)
def test_an_output_that_follows_no_formula_is_never_frozen(name: str) -> None:
    model, rt = _split(LATE_OUTPUTS[name])
    _compare(model, rt, (1, 2, 3, 4, 5, 7, 9, 10, 11, 12, 33, 64))


# ---- Python numbers turned into tensors ---------------------------------------------------------------------------

TABLES: dict[str, Callable[..., Any]] = {
    "a list of one": lambda lin, x: lin(x) * torch.tensor([x.shape[0]]),
    "no dimension": lambda lin, x: lin(x) / torch.tensor(float(x.shape[0])),
    "a reciprocal": lambda lin, x: lin(x) * torch.tensor(1 / x.shape[0]),
    "a reciprocal in double": lambda lin, x: lin(x) * torch.tensor(1 / x.shape[0], dtype=torch.float64),
    "a root": lambda lin, x: lin(x) * torch.tensor(math.sqrt(x.shape[0])),
    "a list": lambda lin, x: lin(x) * torch.tensor([3, 5, x.shape[0], x.shape[0] // 2]),
    "a matrix": lambda lin, x: lin(x) @ torch.tensor([[3.0, 1 / x.shape[0]], [1, 2], [x.shape[0], 0], [0.1, 0.3]]),
    "as_tensor": lambda lin, x: lin(x) * torch.as_tensor([x.shape[0], 1, 2, 3]),
    "new_tensor": lambda lin, x: lin(x) * x.new_tensor([x.shape[0]] * 4),
    "a shape": lambda lin, x: lin(x).sum() * torch.tensor(x.shape),
    "of eight bits": lambda lin, x: lin(x) * torch.tensor(x.shape[0], dtype=torch.uint8),
    "of sixteen bits": lambda lin, x: lin(x) * torch.tensor(x.shape[0], dtype=torch.bfloat16),
    "a range": lambda lin, x: lin(x) + torch.tensor(list(range(x.shape[0])))[:, None],
    "a range with one column": lambda lin, x: lin(x) + torch.tensor([[i] for i in range(x.shape[0])]),
    "a range in steps": lambda lin, x: lin(x) + torch.tensor([3 * i - 2 for i in range(x.shape[0])])[:, None],
    "a range in steps of the batch": lambda lin, x: (
        lin(x) + torch.tensor([x.shape[0] * i for i in range(x.shape[0])])[:, None]
    ),
    "a range reversed": lambda lin, x: lin(x)[torch.tensor(list(range(x.shape[0] - 1, -1, -1)))],
    "a range of floats": lambda lin, x: lin(x) * torch.tensor([float(i) for i in range(x.shape[0])])[:, None],
    "parts of the batch": lambda lin, x: lin(x) * torch.tensor([i / x.shape[0] for i in range(x.shape[0])])[:, None],
    "tenths": lambda lin, x: lin(x) * torch.tensor([0.1 * i for i in range(x.shape[0])])[:, None],
    "thirds in double": lambda lin, x: (
        lin(x) * torch.tensor([i / 3 for i in range(x.shape[0])], dtype=torch.float64)[:, None]
    ),
    "all one number": lambda lin, x: lin(x) * torch.tensor([0.5] * x.shape[0])[:, None],
    "all one formula": lambda lin, x: lin(x) * torch.tensor([1 / x.shape[0]] * x.shape[0])[:, None],
    "all true": lambda lin, x: lin(x) * torch.tensor([True] * x.shape[0])[:, None],
    "two for each row": lambda lin, x: lin(x) + torch.tensor(list(range(2 * x.shape[0]))).view(-1, 2).sum(1)[:, None],
    "NumPy": lambda lin, x: lin(x) * torch.from_numpy(np.arange(x.shape[0]))[:, None],
    "written in place": lambda lin, x: torch.tensor([x.shape[0] * 1.0] * 4).add_(lin(x)[0]),
    "returned": lambda lin, x: (lin(x).relu(), torch.tensor([x.shape[0], 2])),
    "used twice": lambda lin, x: (t := torch.tensor([x.shape[0]]), lin(x) * t + t)[1],
    "a list that is read back": lambda lin, x: lin(x) + len(torch.arange(x.shape[0]).tolist()),
}


@pytest.mark.parametrize("name", TABLES)
def test_a_constant_made_of_the_batch_is_made_by_each_run(name: str) -> None:
    _one_plan(TABLES[name])


LATE_TABLES: dict[str, Callable[..., Any]] = {
    "another at eleven": lambda lin, x: lin(x) + torch.tensor([x.shape[0] if x.shape[0] != 11 else 3]),
    "one last bit at eleven": lambda lin, x: (
        lin(x) * torch.tensor(1 / x.shape[0] if x.shape[0] != 11 else math.nextafter(1 / 11, 1), dtype=torch.float64)
    ),
    "squares": lambda lin, x: lin(x) + torch.tensor([i * i for i in range(x.shape[0])])[:, None],
    "a bool": lambda lin, x: lin(x) + torch.tensor([x.shape[0] > 4]),
    "a bool that changes late": lambda lin, x: lin(x) + torch.tensor([x.shape[0] > 32]),
    "triples": lambda lin, x: lin(x).sum() + torch.tensor([[i, 0, 1] for i in range(x.shape[0])]),
    "the last is another": lambda lin, x: lin(x) + torch.tensor([*range(x.shape[0] - 1), -1])[:, None],
    "one in the middle is another": lambda lin, x: (
        lin(x) + torch.tensor([i if i != 10 else 0 for i in range(x.shape[0])])[:, None]
    ),
    "nothing at one": lambda lin, x: torch.cat([lin(x)[:, 0], torch.tensor([7.5] * (x.shape[0] - 1))]),
    "a complex number": lambda lin, x: torch.view_as_real(lin(x) * torch.tensor(complex(1, x.shape[0]))),
    "other random numbers": lambda lin, x: (
        lin(x) + torch.tensor(np.random.RandomState(x.shape[0]).rand(x.shape[0]))[:, None]
    ),
    "a sine": lambda lin, x: lin(x) * torch.tensor([math.sin(i) for i in range(x.shape[0])])[:, None],
    "rounded": lambda lin, x: lin(x) * torch.tensor(1 / x.shape[0], dtype=torch.bfloat16),
}


@pytest.mark.integration
@pytest.mark.parametrize("name", LATE_TABLES)
def test_a_constant_that_follows_no_formula_is_never_frozen(name: str) -> None:
    model, rt = _split(LATE_TABLES[name])
    _compare(model, rt, (1, 2, 3, 4, 5, 7, 9, 10, 11, 12, 33, 64))


def test_a_table_that_follows_nothing_is_named_with_its_place() -> None:
    _, rt = _split(lambda lin, x: lin(x) + torch.tensor([i * i for i in range(x.shape[0])])[:, None])
    assert "test_dynamic_formulas.py" in str(rt.trace_plan._sized.reason)
    assert "no formula" in str(rt.trace_plan._sized.reason)


# ---- numbers read from the data -----------------------------------------------------------------------------------


def _counts(x: Tensor, level: float = 0.5) -> int:
    return int((x > level).sum())


READS: dict[str, Callable[[Tensor], Any]] = {
    "a factor": lambda x: x * (x > 0.5).sum().item(),
    "a slice": lambda x: x[: _counts(x)] * 2,
    "one more": lambda x: torch.zeros(_counts(x) + 1),
    "twice as many": lambda x: torch.arange(2 * _counts(x)),
    "half as many": lambda x: torch.arange(_counts(x) // 2),
    "a reciprocal": lambda x: x * (1 / (1 + _counts(x))),
    "a float": lambda x: x * float(x.max()),
    "a float and its place": lambda x: x[int(x.argmax())] * float(x.sum()),
    "a mask": lambda x: x[x > 0.5].cumsum(0) * 2,
    "places": lambda x: (x > 0.5).nonzero().squeeze(1) * 2,
    "a mean of a mask": lambda x: x[x > 0.5].sum() / (1 + len(x[x > 0.5])),
    "a mask and the rest": lambda x: torch.cat([x[x > 0.5] + 1, x[x <= 0.5] - 1]),
    "two counts": lambda x: x[: _counts(x)].sum() + x[: _counts(x, 0.3)].sum(),
    "a tensor of it": lambda x: x * torch.tensor([_counts(x)]),
    "in the output": lambda x: {"y": x * 2, "n": _counts(x), "left": 12 - _counts(x)},
    "in place": lambda x: x.clone().mul_(_counts(x)),
}


def _drawn(seed: int) -> Tensor:
    return torch.rand(12, generator=torch.Generator().manual_seed(seed))


@pytest.mark.parametrize("name", READS)
def test_a_number_read_from_the_data_is_read_by_each_run(name: str) -> None:
    fn = READS[name]
    plan = cleave.capture(fn, _drawn(0))
    for seed in range(1, 30):
        same_tree(fn(_drawn(seed)), plan(_drawn(seed)), f"seed {seed}")


BRANCHES: dict[str, Callable[[Tensor], Any]] = {
    "none": lambda x: x * 2 if _counts(x) == 0 else x[: _counts(x)],
    "a threshold": lambda x: x * 2 if _counts(x) > 6 else x[: _counts(x)],
    "odd": lambda x: x * 2 if _counts(x) % 2 else x[: _counts(x)],
    "used for a branch alone": lambda x: x * 2 if _counts(x) > 100 else x * 3,
    "a loop": lambda x: sum((x * k for k in range(_counts(x))), x),
    "a float that may be zero": lambda x: x / (float(x.abs().max()) or 1.0),
    "a sign": lambda x: x * (float(x.sum()) if float(x.sum()) > 0 else 3.0),
    "a formula of a float": lambda x: x * (2 * float(x.max()) + 1),
    "a string": lambda x: x * len(str(_counts(x) + 5)),
    "an output that is no formula": lambda x: (x * _counts(x), _counts(x) > 3),
}


@pytest.mark.parametrize("name", BRANCHES)
def test_a_number_that_decides_something_is_guarded(name: str) -> None:
    """Whatever the data is, the numbers are those of eager or the run stops."""
    fn = BRANCHES[name]
    plan = cleave.capture(fn, _drawn(0))
    data = [_drawn(seed) for seed in range(1, 40)] + [torch.zeros(12), torch.ones(12), -torch.ones(12), _drawn(3) - 0.5]
    for x in data:
        try:
            got = plan(x.clone())
        except cleave.GuardError:
            continue
        same_tree(fn(x.clone()), got, str(x))


def test_the_plan_says_what_is_read_from_the_data() -> None:
    text = cleave.capture(lambda x: x[: _counts(x)] * 2, _drawn(0)).text
    assert "symbol n0 2..12 data" in text  # one was not seen, and none comes before one
    assert "aten::item(%2) -> int = n0" in text
    assert "aten::slice.Tensor(%0, 0, 0, n0, 1) -> f32[n0]" in text


def test_data_that_was_not_seen_in_its_range_stops_the_run() -> None:
    plan = cleave.capture(lambda x: x * int(x.long().sum()), torch.arange(12.0) + 2, on_guard="raise")
    with pytest.raises(cleave.GuardError, match="proven for"):
        plan(torch.full((12,), 1000.0))


def test_gradients_flow_through_a_slice_that_follows_the_data() -> None:
    weight = torch.rand(12, requires_grad=True)
    fn = lambda x: (x[: _counts(x)] * weight[: _counts(x)]).sum()  # noqa: E731
    plan = cleave.capture(fn, _drawn(0))
    for seed in range(1, 10):
        want = torch.autograd.grad(fn(_drawn(seed)), weight)
        got = torch.autograd.grad(plan(_drawn(seed)), weight)
        same_tree(want, got, f"seed {seed}")


def test_what_is_read_from_the_data_goes_with_the_batch() -> None:
    fn = lambda lin, x: (lin(x)[: int((x[:, 0] > 0).sum())] * 2, x.shape[0])  # noqa: E731
    model, rt = _split(fn, example=7)
    refused = 0
    for seed in range(1, 6):
        for size in (2, 3, 5, 7, 9, 16):
            try:
                got = rt.run_suffix(rt.run_prefix(*_inputs(size, seed)))
            except cleave.GuardError:
                refused += 1
                continue
            with torch.no_grad():
                same_tree(model(*_inputs(size, seed)), got, f"batch {size}")
    assert refused < 20


@pytest.mark.parametrize("boundary", ["auto", "20%", "50%", "80%"])
def test_a_cut_never_parts_a_number_from_its_use(boundary: str) -> None:
    """A tensor with the number as a size may cross; the number alone does not."""

    def fn(lin: Any, x: Tensor) -> Tensor:
        y = lin(x).tanh()
        rows = y[x[:, 0] > 0]
        rows = (rows * 2).relu() + len(rows)
        return (rows.tanh() * 3).sum(0)

    model = _model(fn)
    spec = cleave.SplitSpec(boundary=boundary, dynamic_batch=None)
    rt = cleave.prepare_split(model, example_inputs=_inputs(9), split=spec)
    for seed in range(1, 12):
        try:
            got = rt.run_suffix(rt.run_prefix(*_inputs(9, seed)))
        except cleave.GuardError:
            continue
        with torch.no_grad():
            same_tree(model(*_inputs(9, seed)), got, f"seed {seed}")


# ---- sequences ------------------------------------------------------------------------------------------------------

SEQUENCES: dict[str, Callable[..., Any]] = {
    "rows stacked": lambda lin, x: torch.stack(lin(x).unbind(0)).relu(),
    "rows of an iteration": lambda lin, x: torch.stack(list(lin(x))).relu(),
    "parts joined": lambda lin, x: torch.cat(lin(x).split(1)).relu(),
    "longer parts joined": lambda lin, x: torch.cat(lin(x).split(2)).relu(),
    "the first row": lambda lin, x: lin(x).unbind(0)[0].relu(),
    "the last row": lambda lin, x: lin(x).unbind(0)[-1].relu() + 1,
    "the last part": lambda lin, x: lin(x).split(1)[-1].relu().sum(),
    "stacked and the first": lambda lin, x: (rows := lin(x).unbind(0), torch.stack(rows) + rows[0])[1],
    "a row written before": lambda lin, x: (rows := lin(x).unbind(0), rows[0].mul_(2), torch.stack(rows).relu())[2],
    "a row in the output": lambda lin, x: (lin(x).unbind(0)[-1], lin(x).relu()),
}


@pytest.mark.parametrize("name", SEQUENCES)
def test_a_sequence_that_is_used_whole_or_by_index_is_in_one_plan(name: str) -> None:
    _one_plan(SEQUENCES[name])


ROWS: dict[str, Callable[..., Any]] = {
    "rows reversed": lambda lin, x: torch.stack(list(reversed(lin(x).unbind(0)))).relu(),
    "parts reversed": lambda lin, x: torch.cat(lin(x).split(1)[::-1]).relu(),
    "first and last": lambda lin, x: (rows := lin(x).unbind(0), rows[0] + rows[-1])[1],
    "something done to each row": lambda lin, x: torch.stack([row * 2 for row in lin(x).unbind(0)]).relu(),
    "two sequences zipped": lambda lin, x: torch.stack(
        [t for pair in zip(lin(x).unbind(0), x.unbind(0), strict=True) for t in pair]
    ),
    "stacked along another dimension": lambda lin, x: torch.stack(lin(x).unbind(0), 1).relu(),
    "all rows in the output": lambda lin, x: lin(x).unbind(0),
    "rows that are not contiguous": lambda lin, x: torch.stack(lin(x).t().contiguous().t().unbind(0)).relu(),
    "rows by a loop": lambda lin, x: torch.stack([lin(x)[i] for i in range(x.shape[0])]).relu(),
    "the middle": lambda lin, x: lin(x).unbind(0)[x.shape[0] // 2].relu(),
    "all but the first": lambda lin, x: torch.stack([lin(x).sum(0), *lin(x).unbind(0)[1:]]).relu(),
    "halves": lambda lin, x: torch.cat(lin(x).chunk(2)[::-1]).relu(),
    "rows swapped late": lambda lin, x: torch.stack(lin(x).unbind(0)[:: 1 if x.shape[0] < 9 else -1]).relu(),
}


@pytest.mark.parametrize("name", ROWS)
def test_a_sequence_is_right_at_every_size(name: str) -> None:
    model, rt = _split(ROWS[name])
    _compare(model, rt, (1, 2, 3, 4, 5, 7, 8, 9, 16, 33))


@pytest.mark.parametrize("name", [n for n in [*SEQUENCES, *ROWS] if n != "a row written before"])
def test_a_sequence_keeps_its_gradients(name: str) -> None:
    model = _model({**SEQUENCES, **ROWS}[name])
    plan = cleave.capture(model, _inputs(5))
    for call in (model, plan):
        call(*_inputs(5, 3))
    for a, b in zip(_grads(model, model), _grads(model, plan), strict=True):
        same_tree(a, b, name)


def _grads(model: nn.Module, call: Callable[..., Any]) -> list[Tensor]:
    out = call(*_inputs(5, 3))
    total = sum(t.sum() for t in (out if isinstance(out, (tuple, list)) else [out]))
    return list(torch.autograd.grad(total, list(model.parameters())))


def test_what_is_done_to_each_row_is_named_where_it_costs_a_plan_for_each_size() -> None:
    _, rt = _split(lambda lin, x: torch.stack([row * 2 for row in lin(x).unbind(0)]).relu())
    assert "aten::unbind.int" in str(rt.trace_plan._sized.reason)
    assert "another number of results" in str(rt.trace_plan._sized.reason)

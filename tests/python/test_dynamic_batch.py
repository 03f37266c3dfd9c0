"""One split for a range of batch sizes: at every size the numbers of eager, or an error with a reason."""

from __future__ import annotations

import copy
import re
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest
import torch
from helpers import Args, Fn, _reason, draw, mentions, rng_state, same_state, same_tree, seed_all, state_of
from torch import Tensor, nn

import cleave

BATCHES = (1, 2, 3, 5, 6, 7, 9, 16)
MakeInputs = Callable[[int], Any]


def _prepare(model: Any, example: Args, boundary: str = "50%", dynamic_batch: Any = (1, 16)) -> cleave.SplitRuntime:
    return cleave.prepare_split(
        model,
        example_inputs=example.args,
        example_kwargs=example.kwargs or None,
        split=cleave.SplitSpec(boundary=boundary, dynamic_batch=dynamic_batch),
    )


def _made(make: MakeInputs, batch: int, seed: int) -> Args:
    return draw(lambda: make(batch), seed, False)


def _compare(model: nn.Module, make: MakeInputs, rt: cleave.SplitRuntime, batch: int, seed: int) -> str | None:
    """One batch size against eager; the reason when it was refused."""
    try:
        inputs = _made(make, batch, seed)
        boundary = rt.run_prefix(*inputs.args, **inputs.kwargs)
        got = rt.run_suffix(boundary)
        again = rt.run_suffix(boundary)
    except cleave.CleaveError as error:
        return _reason(error)
    fresh = _made(make, batch, seed)
    with torch.no_grad():
        want = model(*fresh.args, **fresh.kwargs)
    same_tree(want, got, f"batch {batch}")
    same_tree(want, again, f"batch {batch}, the suffix once more")
    return None


def _check(
    model: nn.Module, make: MakeInputs, *, example: int = 4, refusals: bool = False, batches: Any = BATCHES
) -> cleave.SplitRuntime:
    """Split results are those of eager at every batch size, twice, in this order and with other data."""
    model.eval()
    rt = _prepare(model, _made(make, example, 0))
    for seed in (1, 2):
        for batch in batches:
            refused = _compare(model, make, rt, batch, seed)
            assert refusals or refused is None, f"batch {batch} was refused: {refused}"
    return rt


def _rows(*rest: int) -> MakeInputs:
    return lambda batch: (torch.randn(batch, *rest),)


def _model(fn: Callable[..., Any], features: int = 4) -> nn.Module:
    torch.manual_seed(0)
    return Fn(fn, features).eval()


# ---- examples of many kinds ---------------------------------------------------------------------------------


def _first_rows(kind: str, size: int) -> Tensor:
    made = torch.randn(size, size)
    return {
        "negative": -made.abs(),
        "equal rows": made[:1].repeat(size, 1),
        "zeros": torch.zeros(size, size),
        "ones": torch.ones(size, size),
        "random": made,
    }[kind]


@pytest.mark.parametrize("kind", ["negative", "equal rows", "zeros", "ones", "random"])
@pytest.mark.parametrize(
    "fn", [torch.relu, torch.sign, lambda x: x > 0, lambda x: (x - 1).relu()], ids=["relu", "sign", "above", "shifted"]
)
def test_the_batch_of_a_square_example_is_its_first_dimension(kind: str, fn: Callable[..., Any]) -> None:
    """Where either dimension could be the batch, it is not the data of a row that decides."""
    for seed in range(4):
        torch.manual_seed(seed)
        plan = cleave.capture(fn, _first_rows(kind, 4), dynamic_batch=(1, 16))
        for rows in (2, 5):
            x = torch.randn(rows, 4)
            assert torch.equal(plan(x), fn(x)), f"seed {seed}"


def test_the_batch_of_a_square_example_is_its_first_dimension_also_where_rows_are_dropped() -> None:
    for seed in range(4):
        torch.manual_seed(seed)
        plan = cleave.capture(nn.Dropout(0.9), torch.randn(2, 2), dynamic_batch=(1, 16))
        assert plan(torch.randn(5, 2)).shape == (5, 2)


def test_the_batch_is_where_rows_do_not_see_each_other() -> None:
    torch.manual_seed(0)
    last = nn.GRU(4, 4)  # time comes first
    plan = cleave.capture(last, torch.randn(4, 4, 4), dynamic_batch=(1, 16))
    x = torch.randn(4, 7, 4)
    with torch.no_grad():
        assert all(torch.equal(a, b) for a, b in zip(plan(x), last(x), strict=True))


def _asked(question: Callable[[Tensor], Tensor]) -> nn.Module:
    class Asked(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.one, self.two = nn.Linear(6, 6), nn.Linear(6, 6)

        def forward(self, x: Tensor, mask: Tensor) -> Tensor:
            x = self.one(x)
            return self.two(x) if question(mask) else x.tanh()

    torch.manual_seed(0)
    return Asked().eval()


def _masks() -> dict[str, Tensor]:
    last, padded, two = torch.zeros(4, 6), torch.ones(4, 6), torch.zeros(4, 6)
    last[3, 2], padded[3, 5], two[:, 0] = 1, 0, 1
    two[torch.arange(4), torch.tensor([1, 2, 3, 4])] = 1
    return {"one": last, "padded": padded, "two": two, "none": torch.zeros(4, 6), "all": torch.ones(4, 6)}


@pytest.mark.parametrize("dtype", [torch.bool, torch.int64, torch.float32], ids=str)
@pytest.mark.parametrize("mask", _masks())
@pytest.mark.parametrize(
    "question",
    [
        Tensor.any,
        Tensor.all,
        lambda m: m.any(-1).all(),
        lambda m: (m.sum(-1) == 2).all(),
        lambda m: (m[:, 0] > 0).all(),
    ],
    ids=["any", "all", "any in each row", "two in each row", "the first"],
)
def test_other_sizes_have_the_answers_of_the_example(
    question: Callable[[Tensor], Tensor], mask: str, dtype: torch.dtype
) -> None:
    """Few rows of the example, or other data in them, may say something else to a question than the example does."""
    model, example = _asked(question), (torch.randn(4, 6), _masks()[mask].to(dtype))
    plan = cleave.capture(model, example, dynamic_batch=(1, 16), on_guard="raise")
    with torch.no_grad():
        assert torch.equal(plan(*example), model(*example))
        twice = tuple(torch.cat([t, t]) for t in example)
        assert torch.equal(plan(*twice), model(*twice))
    rt = _prepare(model, Args(*example), "after:one")
    for rows in (1, 5):
        for seed in range(3):
            flags = (torch.rand(rows, 6) < seed / 2).to(dtype)
            inputs = (torch.randn(rows, 6), flags)
            with torch.no_grad():
                assert torch.equal(rt.run_suffix(rt.run_prefix(*inputs)), model(*inputs))


def test_an_input_without_elements_may_have_rows() -> None:
    model = _model(lambda lin, x, more: lin(torch.cat([x, more], 1)).relu())
    rt = _prepare(model, Args(torch.randn(4, 4), torch.zeros(4, 0)), "50%")
    for rows in (1, 3, 4, 9):
        inputs = (torch.randn(rows, 4), torch.zeros(rows, 0))
        with torch.no_grad():
            assert torch.equal(rt.run_suffix(rt.run_prefix(*inputs)), model(*inputs))
    with pytest.raises(cleave.InputError, match="is empty"):
        _prepare(model, Args(torch.randn(0, 4), torch.zeros(0, 0)), "50%")


@pytest.mark.parametrize("shape", [(1, 6), (4, 1), (1, 1)])
@pytest.mark.parametrize("grad", [False, True])
def test_expanded_tensors_are_inputs_like_others(shape: tuple[int, int], grad: bool) -> None:
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(6, 6), nn.ReLU(), nn.Linear(6, 2))
    x = torch.randn(shape).expand(4, 6)
    assert 0 in x.stride()
    rt = _prepare(model, Args(x), "after:0")
    with torch.set_grad_enabled(grad):
        plan = cleave.capture(model, x, dynamic_batch=(1, 16))
        for rows in (4, 1, 2, 9):
            for z in (torch.randn(rows, 6), torch.randn(1, 6).expand(rows, 6), torch.randn(rows, 1).expand(rows, 6)):
                assert torch.equal(plan(z), model(z))
                with torch.no_grad():
                    assert torch.equal(rt.run_suffix(rt.run_prefix(z)), model(z))


def test_a_size_that_is_new_is_recorded_for_its_own_layout() -> None:
    """A call between calls with another layout, of a size that these have not seen."""
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(6, 6), nn.ReLU(), nn.Linear(6, 2))
    rt = _prepare(model, Args(torch.randn(4, 6)), "after:0")
    for rows, wide in ((4, 6), (4, 12), (9, 6), (9, 12), (9, 6), (1, 12), (1, 6)):
        x = torch.randn(rows, wide)[:, :6]
        with torch.no_grad():
            assert torch.equal(rt.run_suffix(rt.run_prefix(x)), model(x))


# ---- numbers that follow the batch -------------------------------------------------------------------------

FUNCTIONS: dict[str, Callable[..., Any]] = {
    "view with the batch": lambda lin, x: lin(x.view(x.shape[0], 3, 4)).relu().reshape(x.shape[0], -1),
    "view of all rows": lambda lin, x: lin(x.reshape(x.shape[0] * 3, 4)).view(x.shape[0], 12).tanh(),
    "minus one": lambda lin, x: lin(x.reshape(-1, 4)).relu().reshape(-1, 12),
    "expand": lambda lin, x: lin.bias.expand(x.shape[0], 4).tanh() + lin(x[:, :4]),
    "arange": lambda lin, x: lin(x[:, :4]) * torch.arange(x.shape[0]).unsqueeze(1).float(),
    "arange in steps": lambda lin, x: lin(x[:, :4]) + torch.arange(1, 2 * x.shape[0], 2)[:, None],
    "linspace": lambda lin, x: lin(x[:, :4]) + torch.linspace(0, 1, x.shape[0])[:, None],
    "zeros": lambda lin, x: torch.cat([lin(x[:, :4]), torch.zeros(x.shape[0], 2)], dim=1).relu(),
    "full": lambda lin, x: lin(x[:, :4]) + torch.full((x.shape[0], 1), 0.5),
    "full of the batch": lambda lin, x: lin(x[:, :4]) + torch.full((4,), x.shape[0]),
    "eye": lambda lin, x: torch.eye(x.shape[0]) @ lin(x[:, :4]),
    "division by the batch": lambda lin, x: lin(x[:, :4]).sum(0) / x.shape[0],
    "the reciprocal of the batch": lambda lin, x: lin(x[:, :4]) * (1.0 / x.shape[0]),
    "root of the batch": lambda lin, x: lin(x[:, :4]) * x.shape[0] ** 0.5,
    "padding to one more": lambda lin, x: nn.functional.pad(lin(x[:, :4]), (0, 0, 0, 1)).view(x.shape[0] + 1, 4).relu(),
    "outer product": lambda lin, x: (lin(x[:, :4]) @ x[:, :4].t()).view(x.shape[0] * x.shape[0]).relu(),
    "repeat": lambda lin, x: lin(x[:, :4]).repeat(2, 1).view(2, x.shape[0], 4).sum(0),
    "repeat by the batch": lambda lin, x: lin(x[:1, :4]).repeat(x.shape[0], 1) + x[:, :4],
    "repeat_interleave": lambda lin, x: lin(x[:, :4]).repeat_interleave(3, dim=0).view(x.shape[0], 12),
    "index by arange": lambda lin, x: lin(x[:, :4])[torch.arange(x.shape[0]), 0].tanh(),
    "the last row": lambda lin, x: lin(x[:, :4])[x.shape[0] - 1].relu(),
    "the half of the rows": lambda lin, x: lin(x[:, :4])[: (x.shape[0] + 1) // 2].relu(),
    "rows reversed": lambda lin, x: lin(x[:, :4])[torch.arange(x.shape[0] - 1, -1, -1)].relu(),
    "narrow": lambda lin, x: lin(x[:, :4]).narrow(0, 0, max(1, x.shape[0] - 1)).relu(),
    "at most three": lambda lin, x: lin(x[:, :4]).narrow(0, 0, min(3, x.shape[0])).relu(),
    "top k of a third": lambda lin, x: lin(x[:, :4]).flatten().topk(max(1, x.shape[0] // 3))[0],
    "roll": lambda lin, x: lin(x[:, :4]).roll(x.shape[0] // 2, 0).relu(),
    "cat with itself": lambda lin, x: lin(torch.cat([x, x, x[:1]])[:, :4]).view(2 * x.shape[0] + 1, 4).relu(),
    "cat with new rows": lambda lin, x: torch.cat([lin(x[:, :4]), torch.ones(x.shape[0], 4)]).relu(),
    "chunk": lambda lin, x: sum(c.sum() for c in lin(x[:, :4]).chunk(2, dim=0)),
    "split": lambda lin, x: sum(c.sum() for c in lin(x[:, :4]).split((x.shape[0] + 1) // 2, dim=0)),
    "split in rows": lambda lin, x: torch.stack([c.sum() for c in lin(x[:, :4]).split(1)]),
    "unbind": lambda lin, x: torch.stack([row * 2 for row in lin(x[:, :4]).unbind(0)]).relu(),
    "for over rows": lambda lin, x: torch.stack([lin(row[:4]) for row in x]).relu(),
    "a branch": lambda lin, x: lin(x[:, :4]).relu() if x.shape[0] > 8 else lin(x[:, :4]).tanh(),
    "a branch on even": lambda lin, x: lin(x[:, :4]).relu() if x.shape[0] % 2 else lin(x[:, :4]).tanh(),
    "a branch at one": lambda lin, x: lin(x[:, :4]).tanh()[0] if x.shape[0] == 1 else lin(x[:, :4]).tanh(),
    "squeeze": lambda lin, x: lin(x[:, :4]).squeeze(0).relu(),
    "a tensor of the batch": lambda lin, x: lin(x[:, :4]) * torch.tensor([x.shape[0]]),
    "a scalar tensor of the batch": lambda lin, x: lin(x[:, :4]) / torch.tensor(float(x.shape[0])),
    "a list as a tensor": lambda lin, x: lin(x[:, :4]) + torch.tensor([[i] for i in range(x.shape[0])]),
    "the batch in the output": lambda lin, x: {"y": lin(x[:, :4]).relu(), "n": x.shape[0]},
    "a dict": lambda lin, x: {"y": lin(x[:, :4]).relu(), "mean": lin(x[:, :4]).mean(0)},
    "a loop over the batch": lambda lin, x: [lin(x[:, :4]) for _ in range(x.shape[0])][-1].relu(),
    "a power of two": lambda lin, x: nn.functional.pad(
        lin(x[:, :4]), (0, 0, 0, 2 ** (x.shape[0] - 1).bit_length() - x.shape[0])
    ).relu(),
    "mean over the batch": lambda lin, x: lin(x[:, :4]).mean(0).relu(),
    "normalised over the batch": lambda lin, x: lin(x[:, :4] - x[:, :4].mean(0)).softmax(0),
    "strides": lambda lin, x: lin(x.as_strided((x.shape[0], 4), (12, 1))).relu(),
    "a triangle": lambda lin, x: (lin(x[:, :4]) @ x[:, :4].t()).tril(x.shape[0] - 2).relu(),
    "numel": lambda lin, x: lin(x[:, :4]).sum() / x.numel(),
    "a constant that changes late": lambda lin, x: lin(x[:, :4]) + torch.tensor([x.shape[0] // 8]),
    "a flag that changes late": lambda lin, x: lin(x[:, :4]) + torch.tensor(x.shape[0] > 15),
    "a weight chosen late": lambda lin, x: x[:, :4] @ (lin.weight if x.shape[0] < 9 else lin.weight.t()),
    "a parameter chosen late": lambda lin, x: lin(x[:, :4]) + (lin.bias if x.shape[0] < 9 else lin.weight[0]),
    "a number that changes late": lambda lin, x: lin(x[:, :4]) * (2 if x.shape[0] < 9 else 3),
    "a real number that changes late": lambda lin, x: lin(x[:, :4]) * (0.5 if x.shape[0] != 6 else 0.25),
    "an option that changes late": lambda lin, x: lin(x[:, :4]).sum(0, keepdim=x.shape[0] > 8),
    "a dtype that changes late": lambda lin, x: lin(x[:, :4]).to(torch.float64 if x.shape[0] > 8 else torch.float32),
    "an operand that changes late": lambda lin, x: lin(x[:, :4]).relu() + (x if x.shape[0] < 9 else -x)[:, :4],
    "operands that swap late": lambda lin, x: (
        lin(x[:, :4]) - x[:, 4:8] if x.shape[0] < 9 else x[:, 4:8] - lin(x[:, :4])
    ),
    "an output that changes late": lambda lin, x: {"y": lin(x[:, :4]).relu(), "large": x.shape[0] > 8},
    "an output under another name": lambda lin, x: {"few" if x.shape[0] < 9 else "many": lin(x[:, :4]).relu()},
    "an output that is the input": lambda lin, x: (lin(x[:, :4]).relu(), x if x.shape[0] < 9 else x.clone()),
    "the same output twice": lambda lin, x: [y := lin(x[:, :4]).relu(), y if x.shape[0] < 9 else y * 1],
    "grad mode": lambda lin, x: torch.where(x[:, :4] > 0, lin(x[:, :4]).relu(), torch.tensor(1.0 / x.shape[0])),
    "a number from the data": lambda lin, x: lin(x[:, :4]).relu() * len(x.unique(dim=0)),
    "a cube": lambda lin, x: lin(x[:, :4]).sum() * x.shape[0] ** 3,
    "two to the batch": lambda lin, x: lin(x[:, :4]).sum() * 2 ** x.shape[0],
    "xor": lambda lin, x: lin(x[:, :4]).sum() * (x.shape[0] ^ 5),
    "nearest power of two": lambda lin, x: nn.functional.pad(lin(x[:, :4]), (0, 1 << (x.shape[0].bit_length()))).relu(),
    "a large product": lambda lin, x: lin(x[:, :4]).sum() * (x.shape[0] * 2**40),
    "negative": lambda lin, x: lin(x[:, :4]).roll(-x.shape[0], 1) - x.shape[0],
    "in place": lambda lin, x: lin(x[:, :4]).mul_(x.shape[0]).add_(1).clamp_(max=x.shape[0]),
    "resized": lambda lin, x: torch.empty(0).resize_(x.shape[0], 2).fill_(1.5) + lin(x[:, :4])[:, :2],
    "interpolated": lambda lin, x: nn.functional.interpolate(lin(x[:, :4])[None], scale_factor=2.0)[0].relu(),
    "einsum": lambda lin, x: torch.einsum("bi,ci->bc", lin(x[:, :4]), x[:, :4]).relu(),
    "pooled over the batch": lambda lin, x: nn.functional.adaptive_avg_pool1d(lin(x[:, :4]).t()[None], 2).flatten(),
    "groups": lambda lin, x: nn.functional.conv1d(
        lin(x[:, :4])[None], torch.ones(x.shape[0], 1, 2), groups=x.shape[0]
    ).relu(),
    "a string of the batch": lambda lin, x: lin(x[:, :4]) * len(str(x.shape[0])),
}


@pytest.mark.integration
@pytest.mark.parametrize("name", FUNCTIONS)
def test_a_model_whose_numbers_follow_the_batch(name: str) -> None:
    _check(_model(FUNCTIONS[name]), _rows(12))


@pytest.mark.parametrize("name", ["a branch", "outer product", "division by the batch", "a tensor of the batch"])
@pytest.mark.parametrize("example", [1, 2, 16])
def test_the_example_may_have_any_batch_size_of_the_range(name: str, example: int) -> None:
    _check(_model(FUNCTIONS[name]), _rows(12), example=example)


@pytest.mark.integration
@pytest.mark.parametrize("name", ["a branch", "a branch on even", "a power of two", "a string of the batch"])
def test_every_size_of_the_range_in_falling_order(name: str) -> None:
    _check(_model(FUNCTIONS[name]), _rows(12), batches=range(16, 0, -1))


# ---- models ------------------------------------------------------------------------------------------------


class SequenceFirst(nn.Module):
    """The batch is the second dimension; the positions fix the length of the first."""

    def __init__(self) -> None:
        super().__init__()
        self.positions = nn.Parameter(torch.randn(7, 1, 4))
        self.lstm, self.head = nn.LSTM(4, 6), nn.Linear(6, 3)

    def forward(self, x: Tensor) -> Tensor:
        y, _ = self.lstm(x + self.positions)
        return self.head(y[-1])


class WithStart(nn.Module):
    """The batch is the second dimension, and the start state is made for it."""

    def __init__(self) -> None:
        super().__init__()
        self.positions = nn.Parameter(torch.randn(7, 1, 4))
        self.gru, self.head = nn.GRU(4, 6), nn.Linear(6, 3)

    def forward(self, x: Tensor) -> Tensor:
        start = torch.zeros(1, x.shape[1], 6)
        return self.head(self.gru(x + self.positions, start)[0].mean(0))


class AnyLength(nn.Module):
    """Both the length and the batch may change; nothing tells which one is meant."""

    def __init__(self) -> None:
        super().__init__()
        self.lstm, self.head = nn.LSTM(4, 6), nn.Linear(6, 3)

    def forward(self, x: Tensor) -> Tensor:
        return self.head(self.lstm(x)[0][-1])


class TwoInputs(nn.Module):
    """One input with the batch, one without."""

    def __init__(self) -> None:
        super().__init__()
        self.a, self.b = nn.Linear(4, 5), nn.Linear(5, 3)

    def forward(self, x: Tensor, table: Tensor) -> Tensor:
        return self.b((self.a(x) @ table).relu()) + table[:, :3].sum(0)


class Pair(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.a, self.b = nn.Linear(4, 5), nn.Linear(4, 5)

    def forward(self, x: Tensor, y: Tensor) -> dict[str, Tensor]:
        return {"sum": (self.a(x) + self.b(y)).relu(), "x": self.a(x).tanh()}


class Normed(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.conv, self.bn, self.head = nn.Conv2d(3, 4, 3), nn.BatchNorm2d(4), nn.Linear(4, 2)
        nn.init.normal_(self.bn.running_mean)
        nn.init.uniform_(self.bn.running_var, 0.5, 2.0)

    def forward(self, x: Tensor) -> Tensor:
        y = self.bn(self.conv(x)).relu().mean((2, 3))
        return self.head(y)


class ByKeyword(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.embed, self.head = nn.Embedding(20, 6), nn.Linear(6, 3)

    def forward(self, *, ids: Tensor, mask: Tensor | None = None) -> dict[str, Tensor]:
        y = self.embed(ids)
        if mask is not None:
            y = y * mask[..., None]
        return {"logits": self.head(y.mean(1)), "hidden": y}


class Attention(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.TransformerEncoderLayer(8, 2, 16, batch_first=True)
        self.cls = nn.Parameter(torch.randn(1, 1, 8))

    def forward(self, x: Tensor) -> Tensor:
        return self.layer(torch.cat([self.cls.expand(x.shape[0], -1, -1), x], dim=1))[:, 0]


class Mlp(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.fc1, self.fc2, self.fc3 = nn.Linear(4, 8), nn.Linear(8, 8), nn.Linear(8, 3)

    def forward(self, x: Tensor) -> Tensor:
        return self.fc3(self.fc2(self.fc1(x).relu()).tanh())


MODELS: dict[str, tuple[Callable[[], nn.Module], MakeInputs]] = {
    "mlp": (Mlp, _rows(4)),
    "lstm with the batch second": (SequenceFirst, lambda n: (torch.randn(7, n, 4),)),
    "gru with a start state": (WithStart, lambda n: (torch.randn(7, n, 4),)),
    "one input without the batch": (TwoInputs, lambda n: (torch.randn(n, 4), torch.randn(5, 5))),
    "two inputs": (Pair, lambda n: (torch.randn(n, 4), torch.randn(n, 4))),
    "batch norm": (Normed, _rows(3, 6, 6)),
    "keyword input": (ByKeyword, lambda n: Args(ids=torch.randint(0, 20, (n, 5)))),
    "two keyword inputs": (ByKeyword, lambda n: Args(ids=torch.randint(0, 20, (n, 5)), mask=torch.rand(n, 5))),
    "attention": (Attention, _rows(5, 8)),
}


def _build(name: str) -> tuple[nn.Module, MakeInputs]:
    torch.manual_seed(0)
    cls, make = MODELS[name]
    return cls().eval(), make


@pytest.mark.parametrize("name", MODELS)
def test_a_model_runs_at_every_batch_size_of_the_range(name: str) -> None:
    _check(*_build(name))


def test_where_length_and_batch_can_change_the_batch_is_where_rows_are_apart() -> None:
    torch.manual_seed(0)
    rt = _check(AnyLength(), lambda n: (torch.randn(7, n, 4),))
    with pytest.raises(cleave.InputError):
        rt.run_prefix(torch.randn(6, 4, 4))


def test_where_the_length_is_asked_to_change_instead_there_are_no_wrong_numbers() -> None:
    torch.manual_seed(0)
    _check(AnyLength(), lambda n: (torch.randn(n, 7, 4),), refusals=True)


@pytest.mark.parametrize("example", [1, 7])
def test_length_and_batch_are_told_apart_from_any_example(example: int) -> None:
    torch.manual_seed(0)
    _check(AnyLength(), lambda n: (torch.randn(7, n, 4),), example=example)


def test_one_input_without_the_batch_that_has_as_many_rows_as_the_example() -> None:
    _, make = _build("one input without the batch")
    _check(_build("one input without the batch")[0], make, example=5)


@pytest.mark.parametrize("boundary", ["auto", "after:fc1", "after:fc2", "10%", "90%"])
def test_every_boundary_works_at_other_batch_sizes(boundary: str) -> None:
    model, make = _build("mlp")
    rt = _prepare(model, _made(make, 4, 0), boundary)
    for batch in (1, 2, 9, 16):
        assert _compare(model, make, rt, batch, 1) is None


def test_the_debug_interpreter_takes_other_batch_sizes_too() -> None:
    model, make = _build("mlp")
    spec = cleave.SplitSpec(boundary="50%", dynamic_batch=(1, 16), trace_batch_mode="batch_gt1")
    rt = cleave.prepare_split(model, example_inputs=_made(make, 4, 0).args, split=spec, mode="debug_interpreter")
    for batch in (1, 6, 16):
        assert _compare(model, make, rt, batch, 1) is None


def test_the_whole_plan_of_a_split_takes_other_batch_sizes() -> None:
    model, make = _build("mlp")
    plan = _prepare(model, _made(make, 4, 0)).trace_plan
    for batch in (1, 2, 6, 16):
        (x,) = _made(make, batch, 1).args
        with torch.no_grad():
            same_tree(model(x), plan(x), f"batch {batch}")


def test_the_whole_plan_of_a_split_takes_other_batch_sizes_with_grad() -> None:
    model, make = _build("mlp")
    plan = _prepare(model, _made(make, 4, 0)).trace_plan
    for batch in (4, 2, 6):
        (x,) = _made(make, batch, 1).args
        same_tree(model(x), plan(x), f"batch {batch}")


# ---- errors ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("batch", [0, 17, 100])
def test_a_batch_outside_the_range_is_named_with_input_dimension_and_range(batch: int) -> None:
    model, make = _build("mlp")
    rt = _prepare(model, _made(make, 4, 0))
    with pytest.raises(cleave.InputError) as caught:
        rt.run_prefix(torch.randn(batch, 4))
    mentions(caught.value, "input x", "dimension 0", str(batch), "1", "16")


def test_a_batch_in_the_second_dimension_is_named_there() -> None:
    model, make = _build("lstm with the batch second")
    rt = _prepare(model, _made(make, 4, 0))
    with pytest.raises(cleave.InputError) as caught:
        rt.run_prefix(torch.randn(7, 20, 4))
    mentions(caught.value, "input x", "dimension 1", "20", "16")


@pytest.mark.parametrize(("n", "m"), [(2, 3), (3, 2), (1, 4), (4, 1), (6, 7), (16, 17), (11, 1)])
def test_inputs_with_disagreeing_batches_are_refused(n: int, m: int) -> None:
    model, make = _build("two inputs")
    rt = _prepare(model, _made(make, 4, 0))
    with pytest.raises(cleave.CleaveError) as caught:
        rt.run_prefix(torch.randn(n, 4), torch.randn(m, 4))
    _reason(caught.value)
    assert _compare(model, make, rt, 6, 1) is None  # an error leaves nothing behind


@pytest.mark.parametrize("batch", [4, 11])
def test_another_size_than_the_batch_is_refused(batch: int) -> None:
    model, make = _build("batch norm")
    rt = _prepare(model, _made(make, 4, 0))
    with pytest.raises(cleave.InputError) as caught:
        rt.run_prefix(torch.randn(batch, 3, 6, 7))
    mentions(caught.value, "input x", "dimension 3", "6", "7")


@pytest.mark.parametrize("example", [1, 9])
def test_an_example_outside_the_range_is_a_value_error(example: int) -> None:
    model, make = _build("mlp")
    with pytest.raises(ValueError, match="outside"):
        _prepare(model, _made(make, example, 0), dynamic_batch=(2, 8))


def test_a_model_that_takes_one_size_only_says_so() -> None:
    model = _model(lambda lin, x: lin(x.view(4, 4)).relu()).eval()
    with pytest.raises(cleave.CleaveError) as caught:
        _prepare(model, Args(torch.randn(4, 4)))
    _reason(caught.value)


def test_a_model_that_raises_at_some_sizes_still_raises_there() -> None:
    def fn(lin: nn.Linear, x: Tensor) -> Tensor:
        if x.shape[0] == 11:
            raise RuntimeError("eleven is too odd")
        return lin(x).relu()

    model = _model(fn)
    rt = _prepare(model, Args(torch.randn(4, 4)))
    with pytest.raises(Exception, match="eleven is too odd"):
        rt.run_prefix(torch.randn(11, 4))
    assert _compare(model, _rows(4), rt, 12, 1) is None


# ---- what the runtime tells --------------------------------------------------------------------------------


def test_the_plan_of_a_plain_model_is_written_in_the_batch() -> None:
    model, make = _build("mlp")
    rt = _prepare(model, _made(make, 4, 0))
    text = rt.trace_plan.text
    assert re.search(r"^symbol B 1\.\.16$", text, re.MULTILINE), text
    assert "f32[B, 4]" in text or "f32[B,4]" in text, text
    assert "f32[4, 8]" not in text, "the example's batch size is left in the plan"
    assert rt.batch_range == (1, 16)


def test_the_symbol_has_the_name_that_was_asked_for() -> None:
    model, make = _build("mlp")
    spec = cleave.SplitSpec(boundary="50%", dynamic_batch=(2, 12), batch_symbol="N", trace_batch_mode="batch_gt1")
    rt = cleave.prepare_split(model, example_inputs=_made(make, 4, 0).args, split=spec)
    assert "symbol N 2..12" in rt.trace_plan.text
    assert rt.batch_range == (2, 12)
    assert all(v.startswith("N ") for v in rt.variants)


def test_a_plain_model_has_one_plan_however_many_sizes_ran() -> None:
    model, make = _build("mlp")
    rt = _check(model, make)
    assert len(rt.variants) == 1
    assert all(re.search(rf"\b{n}\b", rt.variants[0]) for n in BATCHES)


def test_a_branch_on_the_batch_is_another_variant() -> None:
    rt = _check(_model(FUNCTIONS["a branch"]), _rows(12))
    assert len(rt.variants) > 1
    assert any("9" in v for v in rt.variants[1:])
    assert any("16" in v for v in rt.variants[1:])


def test_without_a_dynamic_batch_there_is_one_size() -> None:
    model, make = _build("mlp")
    rt = _prepare(model, _made(make, 4, 0), dynamic_batch=None)
    assert rt.batch_range is None
    assert len(rt.variants) == 1
    with pytest.raises(cleave.InputError):
        rt.run_prefix(torch.randn(5, 4))


def test_the_boundary_knows_its_batch_size() -> None:
    model, make = _build("mlp")
    rt = _prepare(model, _made(make, 4, 0))
    assert [rt.run_prefix(torch.randn(n, 4)).batch_size for n in (1, 4, 6)] == [1, 4, 6]


def test_boundaries_of_several_sizes_may_be_run_in_any_order() -> None:
    model, make = _build("mlp")
    rt = _prepare(model, _made(make, 4, 0))
    inputs = [_made(make, n, n).args[0] for n in BATCHES]
    boundaries = [rt.run_prefix(x) for x in inputs]
    for x, boundary in reversed(list(zip(inputs, boundaries, strict=True))):
        with torch.no_grad():
            same_tree(model(x), rt.run_suffix(boundary), f"batch {x.shape[0]}")


# ---- the model is left as it was ---------------------------------------------------------------------------


class Counting(nn.Module):
    """Keeps a running mean of its rows in eval mode too."""

    def __init__(self) -> None:
        super().__init__()
        self.lin = nn.Linear(4, 4)
        self.register_buffer("mean", torch.zeros(4))
        self.register_buffer("rows", torch.zeros(()))

    def forward(self, x: Tensor) -> Tensor:
        self.rows += x.shape[0]
        self.mean += x.sum(0)
        return self.lin(x - self.mean / self.rows).relu()


@pytest.mark.parametrize("name", [*MODELS, "counting"])
def test_the_model_the_inputs_and_the_generators_are_left_as_they_were(name: str) -> None:
    torch.manual_seed(0)
    model, make = (Counting().eval(), _rows(4)) if name == "counting" else _build(name)
    twin = copy.deepcopy(model)
    inputs, fresh = _made(make, 4, 0), _made(make, 4, 0)
    seed_all(3)
    generators = rng_state()
    _prepare(model, inputs)
    assert rng_state() == generators
    assert not torch.is_inference_mode_enabled()
    assert torch.is_grad_enabled()
    same_state(state_of(twin), state_of(model), "prepare_split")
    same_tree([fresh.args, fresh.kwargs], [inputs.args, inputs.kwargs], "the example")


def test_state_grows_with_the_batches_as_in_eager() -> None:
    torch.manual_seed(0)
    model, twin = Counting().eval(), Counting().eval()
    twin.load_state_dict(model.state_dict())
    rt = _prepare(model, Args(torch.randn(4, 4)), boundary="90%")
    for batch in (1, 6, 2, 11, 6):
        (x,) = _made(_rows(4), batch, batch).args
        got = rt.run_suffix(rt.run_prefix(x))
        with torch.no_grad():
            want = twin(x)
        same_tree(want, got, f"batch {batch}")
        same_state(state_of(twin), state_of(model), f"batch {batch}")


def test_new_weights_are_seen_at_every_batch_size() -> None:
    model, make = _build("mlp")
    rt = _check(model, make)
    with torch.no_grad():
        model.fc2.weight.mul_(0.5)
    model.load_state_dict({k: v + 0.125 for k, v in model.state_dict().items()}, assign=True)
    for batch in BATCHES:
        assert _compare(model, make, rt, batch, 3) is None


def test_a_random_draw_of_batch_size_is_that_of_eager() -> None:
    model = _model(lambda lin, x: lin(x) + torch.rand(x.shape[0], 4) + torch.randn_like(x))
    rt = _prepare(model, Args(torch.randn(4, 4)))
    for batch in BATCHES:
        x = torch.randn(batch, 4)
        torch.manual_seed(batch)
        got = rt.run_suffix(rt.run_prefix(x))
        after = torch.get_rng_state()
        torch.manual_seed(batch)
        with torch.no_grad():
            want = model(x)
        same_tree(want, got, f"batch {batch}")
        assert torch.equal(after, torch.get_rng_state())


# ---- what changes between sizes ----------------------------------------------------------------------------


class Positions(nn.Module):
    """A table that grows when a larger batch comes, as rotary embeddings do."""

    def __init__(self) -> None:
        super().__init__()
        self.lin = nn.Linear(4, 4)
        self.table: Tensor | None = None

    def forward(self, x: Tensor) -> Tensor:
        if self.table is None or self.table.shape[0] < x.shape[0]:
            self.table = torch.arange(x.shape[0]).float().sin()[:, None]
        return self.lin(x).relu() + self.table[: x.shape[0]]


class ExactPositions(Positions):
    """A table of exactly the size of the last batch."""

    def forward(self, x: Tensor) -> Tensor:
        if self.table is None or self.table.shape[0] != x.shape[0]:
            self.table = torch.arange(x.shape[0]).float().sin()[:, None]
        return self.lin(x).relu() + self.table


class BySize(Positions):
    """One table per batch size, in a dict."""

    def __init__(self) -> None:
        super().__init__()
        self.tables: dict[int, Tensor] = {}

    def forward(self, x: Tensor) -> Tensor:
        if x.shape[0] not in self.tables:
            self.tables[x.shape[0]] = torch.arange(x.shape[0]).float().sin()[:, None]
        return self.lin(x).relu() + self.tables[x.shape[0]]


@pytest.mark.parametrize("cls", [Positions, ExactPositions, BySize])
@pytest.mark.parametrize("warm", [0, 4, 16])
def test_a_table_made_for_the_batch_never_gives_wrong_numbers(cls: type[Positions], warm: int) -> None:
    torch.manual_seed(0)
    model = cls().eval()
    if warm:
        with torch.no_grad():
            model(torch.randn(warm, 4))
    twin = copy.deepcopy(model)
    try:
        rt = _prepare(model, Args(torch.randn(4, 4)))
    except cleave.CleaveError as error:
        _reason(error)
        return
    for batch in (4, 1, 9, 3, 16, 5, 2, 11, 4):
        (x,) = _made(_rows(4), batch, batch).args
        try:
            got = rt.run_suffix(rt.run_prefix(x))
        except cleave.CleaveError as error:
            _reason(error)
            continue
        with torch.no_grad():
            same_tree(twin(x), got, f"batch {batch}")


def test_a_branch_on_the_data_is_guarded_at_every_size() -> None:
    def fn(lin: nn.Linear, x: Tensor) -> Tensor:
        y = lin(x)
        return y.relu() if x.sum() > 0 else y.tanh()

    model = _model(fn)
    rt = _prepare(model, Args(torch.rand(4, 4)))
    for batch in BATCHES:
        for sign in (1, -1):
            x = sign * torch.rand(batch, 4)
            try:
                got = rt.run_suffix(rt.run_prefix(x))
            except cleave.CleaveError as error:
                _reason(error)
                continue
            with torch.no_grad():
                same_tree(model(x), got, f"batch {batch}, sign {sign}")


@pytest.mark.parametrize("name", ["zeros", "a branch", "unbind"])
def test_a_model_switched_to_training_is_noticed_at_every_known_size(name: str) -> None:
    model = _model(FUNCTIONS[name])
    rt = _check(model, _rows(12))
    for _ in range(2):
        model.train(not model.training)
        for batch in BATCHES:
            assert _compare(model, _rows(12), rt, batch, 5) is None


def test_a_model_switched_to_training_is_noticed_at_a_new_size() -> None:
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(4, 4), nn.Dropout(0.5), nn.ReLU()).eval()
    rt = _prepare(model, Args(torch.randn(4, 4)))
    model.train()
    x = torch.randn(11, 4)
    torch.manual_seed(7)
    got = rt.run_suffix(rt.run_prefix(x))
    torch.manual_seed(7)
    assert torch.equal(got, model(x).detach())
    model.eval()
    assert _compare(model, _rows(4), rt, 11, 1) is None


@pytest.mark.parametrize("name", ["zeros", "a branch", "unbind"])
def test_several_threads_may_ask_for_new_sizes_at_once(name: str) -> None:
    model = _model(FUNCTIONS[name])
    rt = _prepare(model, _made(_rows(12), 4, 0))
    inputs = {n: _made(_rows(12), n, n).args[0] for n in range(1, 17)}
    with torch.no_grad():
        want = {n: model(x) for n, x in inputs.items()}

    def work(shift: int) -> list[tuple[int, Any]]:
        order = [(n * 5 + shift) % 16 + 1 for n in range(16)]
        return [(n, rt.run_suffix(rt.run_prefix(inputs[n]))) for n in order]

    with ThreadPoolExecutor(3) as pool:
        for results in pool.map(work, range(3)):
            for n, got in results:
                same_tree(want[n], got, f"batch {n}")


def test_a_channels_last_input_at_another_size_gives_the_numbers_of_eager() -> None:
    model, make = _build("batch norm")
    rt = _prepare(model, _made(make, 4, 0))
    for batch in (2, 6, 11):
        x = _made(make, batch, 1).args[0].to(memory_format=torch.channels_last)
        try:
            got = rt.run_suffix(rt.run_prefix(x))
        except cleave.CleaveError as error:
            _reason(error)
            continue
        with torch.no_grad():
            same_tree(model(x), got, f"batch {batch}")


# ---- prefix here, suffix there -----------------------------------------------------------------------------


class Late(nn.Module):
    """From nine rows on the second half is another one."""

    def __init__(self) -> None:
        super().__init__()
        self.fc1, self.fc2 = nn.Linear(4, 4), nn.Linear(4, 4)

    def forward(self, x: Tensor) -> Tensor:
        y = self.fc1(x)
        return self.fc2(y.relu()) if x.shape[0] < 9 else self.fc2(y.tanh()).neg()


@pytest.mark.parametrize("batch", [2, 6, 8, 11])
@pytest.mark.parametrize("boundary", ["after:fc1", "50%", "90%"])
def test_a_boundary_may_be_finished_by_another_runtime(boundary: str, batch: int) -> None:
    model, make = _build("mlp")
    here, there = (_prepare(model, _made(make, 4, seed), boundary) for seed in (0, 1))
    (x,) = _made(make, batch, 2).args
    with torch.no_grad():
        same_tree(model(x), there.run_suffix(here.run_prefix(x)), f"batch {batch}")


def test_a_boundary_of_a_size_with_its_own_plan_is_never_finished_by_another_plan() -> None:
    torch.manual_seed(0)
    model = Late().eval()
    here, there = (_prepare(model, Args(torch.randn(4, 4)), "after:fc1") for _ in range(2))
    x = torch.randn(11, 4)
    boundary = here.run_prefix(x)
    try:
        got = there.run_suffix(boundary)
    except cleave.CleaveError as error:
        _reason(error)
        return
    with torch.no_grad():
        same_tree(model(x), got, "finished elsewhere")


class Scores(nn.Module):
    """The batch is in the second input: the first is a table."""

    def __init__(self) -> None:
        super().__init__()
        self.a, self.b = nn.Linear(6, 6), nn.Linear(5, 2)

    def forward(self, table: Tensor, x: Tensor) -> Tensor:
        return self.b(self.a(x) @ table.t())


class Recurrent(nn.Module):
    """The batch is the first dimension of one input and the second of two others."""

    def __init__(self) -> None:
        super().__init__()
        self.rnn, self.out = nn.LSTM(6, 8, batch_first=True), nn.Linear(8, 2)

    def forward(self, x: Tensor, h: Tensor, c: Tensor) -> Tensor:
        return self.out(self.rnn(x, (h, c))[0])


class Lookup(nn.Module):
    """Both inputs may have any number of rows; those of the second do not see each other."""

    def __init__(self) -> None:
        super().__init__()
        self.q, self.k = nn.Linear(6, 6), nn.Linear(6, 6)

    def forward(self, memory: Tensor, x: Tensor) -> Tensor:
        return torch.softmax(self.q(x) @ self.k(memory).t(), -1) @ memory


@pytest.mark.parametrize(
    ("kind", "make"),
    [
        (Scores, lambda b: (torch.randn(5, 6), torch.randn(b, 6))),
        (Recurrent, lambda b: (torch.randn(b, 5, 6), torch.randn(1, b, 8), torch.randn(1, b, 8))),
        (Lookup, lambda b: (torch.randn(5, 6), torch.randn(b, 6))),
    ],
)
def test_the_batch_is_found_in_any_input_and_in_either_dimension(kind: type[nn.Module], make: Any) -> None:
    torch.manual_seed(0)
    model = kind().eval()
    rt = _prepare(model, Args(*make(3)))
    with torch.no_grad():
        for batch in (1, 2, 3, 4, 9):
            inputs = make(batch)
            assert torch.equal(rt.run_suffix(rt.run_prefix(*inputs)), model(*inputs))


def test_examples_of_which_no_other_sizes_can_be_made_are_refused() -> None:
    model = nn.Sequential(nn.Linear(4, 4), nn.ReLU())
    with pytest.raises(cleave.InputError, match="empty"):
        _prepare(model, Args(torch.randn(0, 4)))
    with pytest.raises(cleave.CaptureError, match="nested"):
        _prepare(model, Args(torch.nested.nested_tensor([torch.randn(2, 4), torch.randn(3, 4)])))


def test_a_plan_records_sizes_in_advance() -> None:
    plan = cleave.capture(nn.Linear(4, 2), torch.randn(3, 4), dynamic_batch=(1, 64))
    assert plan._sized is not None
    assert (50,) not in plan._sized.proven
    plan.prepare_sizes(50, {"B": 64})
    assert {(50,), (64,)} <= set(plan._sized.proven)
    for wrong, kind in ((65, cleave.InputError), ({"S": 2}, cleave.ArgumentError), ("2", TypeError)):
        with pytest.raises(kind):
            plan.prepare_sizes(wrong)  # type: ignore[arg-type]
    fixed = cleave.capture(nn.Linear(4, 2), torch.randn(3, 4))
    fixed.prepare_sizes()
    with pytest.raises(cleave.ArgumentError, match="sizes of its example alone"):
        fixed.prepare_sizes(4)


RAN: list[int] = []  # batch sizes at which the forward below ran


class Noted(nn.Module):
    """Differs by size, by mode, by data and between grad modes."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.last, self.drop, self.relu = nn.Linear(4, 4), nn.Linear(4, 4), nn.Dropout(0.1), nn.ReLU()

    def forward(self, x: torch.Tensor, mask: torch.Tensor) -> torch.Tensor:
        RAN.append(len(x))
        x = self.relu(self.first(x))
        x = self.drop(x) * (2 if len(x) % 2 else 3)
        if torch.is_grad_enabled():
            x = x.sin()
        return self.last(x) if bool(mask.all()) else self.last(x + 1)


MASKS = [torch.ones(4, dtype=torch.bool), torch.tensor([True, False, True, True])]


@pytest.mark.parametrize("grads", [(False,), (True, False)], ids=["no grad", "both"])
def test_a_plan_prepares_sizes_for_all_that_it_has_served(grads: tuple[bool, ...]) -> None:
    model = Noted().eval()
    x = torch.randn(4, 4)
    with torch.set_grad_enabled(grads[0]):
        plan = cleave.capture(model, (x, MASKS[0]), dynamic_batch=(2, 64), variants=[(x, MASKS[1])])
    for grad in grads:
        with torch.set_grad_enabled(grad):
            plan(x, MASKS[0])
    plan.prepare_sizes(8, 9)
    RAN.clear()
    for grad in grads:
        for n, mask in ((8, MASKS[0].repeat(2)), (9, torch.ones(9, dtype=torch.bool)), (8, MASKS[1].repeat(2))):
            with torch.set_grad_enabled(grad):
                got, ran = plan(torch.ones(n, 4), mask), list(RAN)
                # In the other grad mode each size has a plan of its own, for data like the example's.
                assert not ran or (grad is not grads[0] and not mask.all())
                assert torch.equal(got, model(torch.ones(n, 4), mask))
            RAN.clear()


def test_a_split_prepares_sizes_for_all_modes_and_data_that_it_has_served() -> None:
    model = Noted().eval()
    x = torch.randn(4, 4)
    spec = cleave.SplitSpec(boundary="after:relu", dynamic_batch=(2, 64), trainable=True)
    runtime = cleave.prepare_split(model, example_inputs=(x, MASKS[0]), split=spec, variants=[(x, MASKS[1])])
    for training in (True, False):
        model.train(training)
        runtime.run_prefix(x, MASKS[0])
        for mask in MASKS:
            runtime.train_suffix(runtime.run_training_prefix(x, mask), torch.zeros(4, 4))
    runtime.prepare_sizes(8, 9)
    assert not model.training
    RAN.clear()
    for training in (False, True):
        model.train(training)
        assert runtime.run_prefix(torch.ones(8, 4), MASKS[0].repeat(2)).batch_size == 8
        for mask in (MASKS[0].repeat(2), torch.ones(9, dtype=torch.bool), MASKS[1].repeat(2)):
            x = torch.ones(len(mask), 4)
            runtime.train_suffix(runtime.run_training_prefix(x, mask), torch.zeros(len(mask), 4))
    assert not RAN

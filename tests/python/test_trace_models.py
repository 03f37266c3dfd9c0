"""Traced modules are the model: whatever it does, whatever is done to it afterwards, and however it is called.

The back end interprets its segments, so that every number has to be that of PyTorch bit for bit."""

from __future__ import annotations

import collections
import copy
import dataclasses
import gc
import pickle
import threading
import warnings
import weakref
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from trace_backends import Exact, compiled_ops, default_dtype, tape_ops

import cleave
from cleave import _log, _tree

exact = Exact()


@pytest.fixture(autouse=True)
def warned() -> None:
    """Each warning is given once in a process; here, once in a test."""
    _log._warned.clear()


def same(got: Any, want: Any) -> None:
    """Structure, types, layouts and every bit. A view with gaps may be dense."""
    assert type(got) is type(want)
    shape, a, _ = _tree.flatten(got)
    other, b, _ = _tree.flatten(want)
    assert _tree.difference(shape, other) is None
    assert len(a) == len(b) > 0
    for s, t in zip(a, b, strict=True):
        assert (s.dtype, s.shape) == (t.dtype, t.shape)
        assert s.stride() == t.stride() or (not is_dense(t) and is_dense(s))
        assert torch.equal(s, t) or torch.allclose(s, t, rtol=0, atol=0, equal_nan=True)


def is_dense(t: Tensor) -> bool:
    return bool(torch.ops.aten.is_non_overlapping_and_dense(t))


def call(f: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
    torch.manual_seed(7)
    with torch.no_grad():
        return f(*args, **kwargs)


def check(model: Any, *inputs: Any, parts: int | None = None, **options: Any) -> cleave.TracedModule:
    """Traces, and runs model and traced module side by side, twice."""
    named = options.get("example_kwargs") or {}
    traced = exact.trace(model, inputs, **options)
    for _ in range(2):
        same(call(traced, *inputs, **named), call(model, *inputs, **named))
    if parts is not None:
        assert len(compiled_ops(traced)) == parts, str(traced.graph)
    return traced


x = torch.linspace(-1, 1, 12).reshape(3, 4)


# ---- what models do


def in_place(x: Tensor) -> Tensor:
    y = x * 2
    y.relu_()
    z = y + 1
    z.add_(y)
    z[0] = 5
    return z * y


def views(x: Tensor) -> tuple[Tensor, ...]:
    y = x * 2 + 1
    return y.t(), y[1:], (x - 1).view(-1), y


def written_view(x: Tensor) -> tuple[Tensor, Tensor]:
    y = torch.relu(x * 2)
    y[:, 0].mul_(3)
    return y + 1, y.t() * 2


def passed_through(x: Tensor, y: Tensor) -> tuple[Tensor, ...]:
    return x, x * 2 + y, y, x


def constants(x: Tensor) -> tuple[Tensor, ...]:
    return torch.ones(3), torch.relu(x + torch.arange(4)), torch.zeros(2, dtype=torch.int64)


def used_twice(x: Tensor) -> Tensor:
    y = torch.relu(x * 2)
    return (y + y).sigmoid() * y - y.sum()


def whole_numbers(x: Tensor) -> Tensor:
    y = (x * 10).long()
    return torch.where(y > 3, y * 2, y // 3) % 7


def half(x: Tensor) -> Tensor:
    return (x.half() * 2 + 1).float() + x.bfloat16().float()


def booleans(x: Tensor) -> Tensor:
    return ((x > 0) & ~(x > 0.5)) | (x < -0.9)


def drawn(x: Tensor) -> Tensor:
    return torch.relu(x * 2) * torch.rand(4) + torch.dropout(x * 3 + 1, 0.5, True)


def sorted_(x: Tensor) -> Any:
    return torch.sort(torch.relu(x * 2) + 1, dim=-1, descending=True)


def found(x: Tensor) -> Tensor:
    return torch.nonzero(torch.relu(x * 2) > 0.5).float() * 2 + 1


def unique(x: Tensor) -> Tensor:
    return torch.unique((x * 3).round().abs() + 1) * 2


def many_outputs(x: Tensor) -> tuple[Tensor, ...]:
    a, b = (x * 2 + 1).chunk(2, dim=1)
    return a.relu(), b.sigmoid() + a, *torch.unbind(b, 1)


def complex_(x: Tensor) -> Tensor:
    return torch.view_as_real(torch.fft.fft(x * 2 + 1) * 1j)


@pytest.mark.parametrize(
    "model",
    [
        in_place, views, written_view, constants, used_twice, whole_numbers, half, booleans, drawn, sorted_, found,
        unique, many_outputs, complex_,
    ],
)  # fmt: skip
def test_what_models_do(model: Any) -> None:
    traced = check(model, x)
    other = x[:, [1, 0, 3, 2]].contiguous()  # as many of everything, in other places
    same(call(traced, other), call(model, other))


def test_inputs_that_go_through_are_the_inputs() -> None:
    y = torch.rand(4)
    traced = check(passed_through, x, y, parts=1)
    out = traced(x, y)
    assert out[0] is x
    assert out[2] is y
    assert out[3] is x


@pytest.mark.parametrize(
    "inputs",
    [
        x.t().contiguous().t(), torch.rand(3, 8)[:, ::2], torch.rand(1, 4).expand(3, 4), torch.rand(0, 4),
        torch.rand(4), torch.tensor(3.0), torch.rand(2, 3, 4, 5).to(memory_format=torch.channels_last), x.double(),
        x.half(), torch.rand(3, 4, 5)[1:, :, 2],
    ],
)  # fmt: skip
def test_inputs_of_every_layout_and_type(inputs: Tensor) -> None:
    traced = check(lambda x: torch.relu(x) * 2 + 1, inputs, parts=1)
    for other in (inputs.contiguous(), inputs + 1, torch.rand(3, 4), torch.ones(5)):
        same(call(traced, other), torch.relu(other) * 2 + 1)


def test_a_convolution_takes_either_layout() -> None:
    model = nn.Sequential(nn.Conv2d(3, 4, 3), nn.ReLU()).eval()
    images = torch.rand(2, 3, 8, 8)
    for example in (images, images.to(memory_format=torch.channels_last)):
        traced = check(model, example, parts=1)
        same(call(traced, images), call(model, images))
        last = images.to(memory_format=torch.channels_last)
        same(call(traced, last), call(model, last))


@pytest.mark.parametrize("model", [lambda x: x, lambda x: x.t()[1:].unsqueeze(0), lambda x: x * 2])
def test_models_of_which_nothing_is_compiled_still_run_and_report(model: Any) -> None:
    traced = check(model, x, parts=0)
    assert "TracedModule" in repr(traced)
    assert str(traced.report())
    assert traced.coverage.compiled == 0


def test_inputs_that_the_model_writes_are_written() -> None:
    def model(x: Tensor) -> Tensor:
        y = x * 2 + 1
        x.add_(y)
        return torch.relu(x) * y

    example = x.clone()
    traced = exact.trace(model, example)
    assert torch.equal(example, x)
    mine, theirs = x.clone(), x.clone()
    same(call(traced, mine), call(model, theirs))
    assert torch.equal(mine, theirs)


Pair = collections.namedtuple("Pair", "left right")


@dataclasses.dataclass
class Result:
    value: Tensor
    count: int = 3


@pytest.mark.parametrize(
    ("wrap", "strict"),
    [
        (lambda y: [y, (y, None, 5, "text")], True),
        (lambda y: Pair(y, y + 1), True),
        (lambda y: Result(y), True),
        (lambda y: {"a": y, "b": [y * 2]}, False),
        (lambda y: collections.OrderedDict(z=y, a=y + 1), False),
    ],
)
def test_outputs_of_every_kind(wrap: Callable[[Tensor], Any], strict: bool) -> None:
    def model(x: Tensor) -> Any:
        return wrap(torch.relu(x * 2) + 1)

    traced = cleave.compat.trace(model, x, backend=exact.name, cache=False, keep_slower=True, strict=strict)
    got, want = traced(x), model(x)
    assert type(got) is type(want)
    assert repr(got) == repr(want)


def keywords(x: Tensor, mask: Tensor | None = None, *, shift: Tensor | None = None, scale: int = 2) -> Tensor:
    y = torch.relu(x * scale)
    y = y if mask is None else y * mask
    return y + 1 if shift is None else y + shift


@pytest.mark.parametrize(
    ("args", "named"),
    [
        ((x,), {}), ((x, None), {}), ((x, x > 0), {}), ((x,), {"shift": x, "scale": 3}),
        ((x,), {"mask": x > 0, "shift": None}),
    ],
)  # fmt: skip
def test_keyword_inputs_and_none(args: tuple[Any, ...], named: dict[str, Any]) -> None:
    check(keywords, *args, parts=1, example_kwargs=named)


def test_other_structures_are_refused_by_name() -> None:
    traced = check(keywords, x, x > 0)
    for args in ((x, 5), (), (x, x, x)):
        with pytest.raises(ValueError, match=r"mask|positional|input"):
            traced(*args)


def test_an_optional_input_that_is_left_out_gets_a_plan_of_its_own() -> None:
    traced = check(keywords, x, x > 0)
    for args in ((x,), (x, None)):
        assert torch.equal(traced(*args), keywords(*args))


class Tied(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.one = nn.Linear(4, 4)
        self.two = nn.Linear(4, 4)
        self.two.weight = self.one.weight
        self.register_buffer("scratch", torch.ones(4), persistent=False)

    def forward(self, x: Tensor) -> Tensor:
        return self.two(torch.relu(self.one(x))) * self.scratch


def test_shared_weights_and_tables_of_the_module() -> None:
    model = Tied().eval()
    traced = check(model, x, parts=1)
    assert list(traced.state_dict()) == list(model.state_dict())
    assert [n for n, _ in traced.named_parameters()] == [n for n, _ in model.named_parameters()]
    assert [n for n, _ in traced.named_buffers()] == [n for n, _ in model.named_buffers()]
    assert [n for n, _ in traced.named_modules()] == [n for n, _ in model.named_modules()]
    assert all(a is b for a, b in zip(traced.parameters(), model.parameters(), strict=True))
    around = nn.Sequential(traced, nn.ReLU())
    assert list(around.state_dict()) == [f"0.{n}" for n in model.state_dict()]
    around.load_state_dict({name: t * 2 for name, t in around.state_dict().items()})
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        same(call(around, x), call(model, x).relu())


class Twice(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        return x * 2 + 1

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> Tensor:
        return grad * 2


@torch.library.custom_op("cleave_trace_test::cube", mutates_args=())
def cube(x: Tensor) -> Tensor:
    return x * x * x


@cube.register_fake
def _(x: Tensor) -> Tensor:
    return torch.empty_like(x)


@pytest.mark.integration
def test_functions_and_operators_of_others(tmp_path: Path) -> None:
    check(lambda x: torch.relu(Twice.apply(x) * 3), x)
    model = nn.Sequential(nn.Linear(4, 4), nn.ReLU()).eval()
    traced = check(lambda x: torch.tanh(cube(model(x)) * 2), x, parts=2)
    assert list(tape_ops(traced)) == ["cube"]
    traced.save(tmp_path / "cube.clv")
    with pytest.raises(cleave.CleaveError, match="cleave_trace_test::cube"):
        cleave.load(tmp_path / "cube.clv", allow_compiled=True)
    loaded = cleave.load(tmp_path / "cube.clv", allow_compiled=True, allow_operators=["cleave_trace_test::*"])
    same(loaded(x), call(traced, x))


def test_a_compiled_submodule() -> None:
    check(nn.Sequential(torch.compile(nn.Linear(4, 4), backend="eager"), nn.ReLU()).eval(), x, parts=1)


def test_data_that_leads_elsewhere_runs_the_live_plan() -> None:
    def model(x: Tensor) -> Tensor:
        y = torch.relu(x * 2) + 1
        return y.sigmoid() * 2 if bool(x.sum() > -5) else y.tanh() * 3

    traced = check(model, x, parts=2)
    assert torch.equal(traced(x - 10), model(x - 10))
    assert torch.equal(traced(x), model(x))


def test_data_that_leads_elsewhere_after_a_write_is_served_from_the_start() -> None:
    def model(x: Tensor) -> Tensor:
        x.mul_(2)
        y = torch.relu(x) + 1
        return y.sigmoid() * 2 if bool(x.sum() > -5) else y.tanh() * 3

    traced = exact.trace(model, x.clone())
    here, there = x - 10, x - 10
    assert torch.equal(traced(here), model(there))
    assert torch.equal(here, there)


# ---- models that change


class Counting(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(4, 4)
        self.register_buffer("count", torch.zeros(1))

    def forward(self, x: Tensor) -> Tensor:
        self.count.add_(1)
        return torch.relu(self.linear(x) * 2) * self.count


class Rebinding(Counting):
    def forward(self, x: Tensor) -> Tensor:
        self.count = self.count + 1
        y = torch.relu(self.linear(x) * 2)
        self.last = y
        return y * self.count


def test_buffers_that_a_run_writes_are_those_of_the_model() -> None:
    for model in (Counting(), nn.Sequential(nn.Linear(4, 4), nn.ReLU(), nn.BatchNorm1d(4), nn.ReLU(), nn.Linear(4, 2))):
        twin = copy.deepcopy(model)
        traced = exact.trace(model, x, minimum_segment_size=1)
        same(dict(model.state_dict()), dict(twin.state_dict()))
        assert len(compiled_ops(traced)) >= 1
        for _ in range(3):
            same(call(traced, x), call(twin, x))
            same(dict(model.state_dict()), dict(twin.state_dict()))


def test_a_counter_that_was_set_from_outside_counts_on() -> None:
    model = Counting()
    twin = copy.deepcopy(model)
    traced = exact.trace(model, x)
    for m in (model, twin):
        m.count.fill_(10)
    same(call(traced, x), call(twin, x))
    with pytest.raises(ValueError, match="count was written after the trace"):
        traced.save("never.clv")
    for m in (model, twin):
        m.count = torch.zeros(1)
    with pytest.warns(cleave.CleaveWarning, match="count changed"):
        same(call(traced, x), call(twin, x))
    same(model.count, twin.count)


def test_tensors_that_a_run_leaves_in_the_model() -> None:
    model = Rebinding()
    twin = copy.deepcopy(model)
    with pytest.warns(cleave.CleaveWarning, match="keeps tensors of a run"):
        traced = exact.trace(model, x)
    for _ in range(3):
        same(call(traced, x), call(twin, x))
        same((model.count, model.last), (twin.count, twin.last))


def small() -> tuple[nn.Module, cleave.TracedModule]:
    model = nn.Sequential(nn.Linear(4, 4), nn.ReLU(), nn.BatchNorm1d(4), nn.Dropout(0.5), nn.Linear(4, 2)).eval()
    return model, exact.trace(model, x)


def write(model: Any) -> None:
    with torch.no_grad():
        model[0].weight.mul_(2)


def write_data(model: Any) -> None:
    model[0].weight.data = torch.rand(4, 4)


def write_unseen(model: Any) -> None:
    """No version counts this."""
    model[0].weight.data.mul_(2)


def load(model: Any) -> None:
    model.load_state_dict({k: v * 2 for k, v in model.state_dict().items()})


def assign(model: Any) -> None:
    model[0].weight = nn.Parameter(torch.rand(4, 4))


def replace(model: Any) -> None:
    model[0] = nn.Linear(4, 4)


def restructure(model: Any) -> None:
    model[1] = nn.Sequential(nn.Tanh(), nn.ReLU())


def train(model: Any) -> None:
    model.train()


def learn_statistics(model: Any) -> None:
    """BatchNorm writes its statistics without the version of the tensor telling it."""
    model.train()
    model(torch.rand(5, 4))
    model.eval()


def optimise(model: Any) -> None:
    optimiser = torch.optim.SGD(model.parameters(), lr=0.1)
    model(torch.rand(5, 4)).sum().backward()
    optimiser.step()


def hook(model: Any) -> None:
    model[0].register_forward_hook(lambda m, i, o: o * 2)


CHANGES = [write, write_data, write_unseen, load, assign, replace, restructure, train, learn_statistics, optimise, hook]


@pytest.mark.parametrize("change", CHANGES)
def test_a_model_that_changed_gives_its_new_numbers_and_one_warning(change: Callable[[Any], None]) -> None:
    model, traced = small()
    same(call(traced, x), call(model, x))
    change(model)
    with warnings.catch_warnings(record=True) as told:
        warnings.simplefilter("always")
        for _ in range(2):
            same(call(traced, x), call(model, x))
    assert len([w for w in told if issubclass(w.category, cleave.CleaveWarning)]) == 1
    change(model)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        same(call(traced, x), call(model, x))
    with pytest.raises(ValueError, match="trace the model again"):
        traced.save("never.clv")


def test_other_types_of_weights() -> None:
    model, traced = small()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        for dtype in (torch.float64, torch.bfloat16, torch.float32):
            traced.to(dtype)
            same(call(traced, x.to(dtype)), call(model, x.to(dtype)))
    with pytest.raises(RuntimeError, match="dtype"):
        call(traced, x.double())


def test_a_tensor_that_a_function_closes_over() -> None:
    weight = torch.rand(4)

    def model(x: Tensor) -> Tensor:
        return torch.relu(x * weight) + 1

    traced = check(model, x, parts=1)
    weight.mul_(2)
    with pytest.warns(cleave.CleaveWarning):
        same(call(traced, x), call(model, x))


def test_a_function_that_counts_in_a_tensor_of_its_own() -> None:
    counts = torch.zeros(1), torch.zeros(1)

    def make(count: Tensor) -> Callable[[Tensor], Tensor]:
        def model(x: Tensor) -> Tensor:
            count.add_(1)
            return torch.relu(x * 2) * count

        return model

    with pytest.warns(cleave.CleaveWarning):
        traced = exact.trace(make(counts[0]), x)
    for _ in range(2):
        same(call(traced, x), call(make(counts[1]), x))
    assert torch.equal(*counts)


def test_train_and_eval_go_to_the_model() -> None:
    model, traced = small()
    traced.train()
    assert model.training
    assert model[3].training
    traced.eval()
    assert not model[3].training
    same(call(traced, x), call(model, x))


# ---- how it is called


def test_other_shapes_run_too() -> None:
    model = nn.Sequential(nn.Linear(4, 4), nn.ReLU()).eval()
    traced = check(model, x, parts=1)
    for shape in ((7, 4), (4,), (2, 3, 4), (0, 4)):
        same(call(traced, torch.ones(shape)), call(model, torch.ones(shape)))
    with pytest.raises(RuntimeError, match="shapes cannot be multiplied"):
        traced(torch.ones(3, 5))


def test_plans_for_other_shapes_count_among_those_of_the_model() -> None:
    model = nn.Sequential(nn.Linear(4, 4), nn.ReLU()).eval()
    traced = check(model, x, parts=1)
    with warnings.catch_warnings(record=True) as told:
        warnings.simplefilter("always")
        for rows in range(4, 70):
            same(call(traced, torch.ones(rows, 4)), call(model, torch.ones(rows, 4)))
    assert any("has 64 plans" in str(w.message) for w in told)
    assert len(traced.plan._served.dispatch.list()) == 64
    before = traced._runtime.segments()[0][7]
    same(call(traced, x), call(model, x))
    assert traced._runtime.segments()[0][7] == before + 1  # the compiled plan is still there


def test_a_runtime_runs_the_plan_that_it_is_told() -> None:
    def model(x: Tensor) -> Tensor:
        y = torch.relu(x * 2) + 1
        return y.sigmoid() * 2 if bool(x.sum() > -5) else y.tanh() * 3

    traced = exact.trace(model, x, variants=[(x - 10,)])
    for inputs, number in ((x, 0), (x - 10, 1)):
        assert torch.equal(traced._runtime.run([inputs], number)[2][0], model(inputs))
        with pytest.raises(cleave.GuardError):
            traced._runtime.run([inputs], 1 - number)
    with pytest.raises(IndexError, match="no plan 2"):
        traced._runtime.run([x], 2)
    with pytest.raises(cleave.InputError, match="takes 1 inputs, the call has 2"):
        traced._runtime.run([x, x], 0)


@pytest.mark.parametrize("batch", [(1, 1024), (2, 8)])
def test_any_batch(batch: Any) -> None:
    def model(x: Tensor) -> Tensor:
        y = torch.relu(x * 2) + x.shape[0]
        return y.view(-1, 2, 2).sum(0) / x.shape[0] + torch.arange(x.shape[0]).sum()

    traced = check(model, x, parts=1, dynamic_batch=batch)
    for rows in (1, 2, 7, 8, 9, 100):
        same(call(traced, torch.rand(rows, 4) * 0 + rows), call(model, torch.rand(rows, 4) * 0 + rows))


def test_a_model_that_does_otherwise_at_some_batch() -> None:
    def model(x: Tensor) -> Tensor:
        y = torch.relu(x * 2) + 1
        return torch.tanh(y).sum(0) if x.shape[0] > 5 else torch.sigmoid(y) * 3

    traced = exact.trace(model, x, dynamic_batch=(1, 1024))
    for rows in (1, 3, 5, 6, 7, 50):
        batch = torch.linspace(-1, 1, rows * 4).reshape(rows, 4)
        same(call(traced, batch), call(model, batch))


def test_gradients_of_inputs_flow() -> None:
    model, _ = small()
    for batch in (None, (1, 1024)):
        traced = exact.trace(model, x, dynamic_batch=batch)
        mine, theirs = x.clone().requires_grad_(), x.clone().requires_grad_()
        traced(mine).sum().backward()
        model(theirs).sum().backward()
        same(mine.grad, theirs.grad)


@pytest.mark.parametrize("mode", [torch.no_grad, torch.inference_mode, torch.enable_grad])
def test_modes_around_the_trace_and_the_call(mode: Any) -> None:
    model, _ = small()
    with mode():
        traced = exact.trace(model, x)
        same(traced(x).detach(), model(x).detach())
    same(call(traced, x), call(model, x))


def test_autocast_around_trace_and_call() -> None:
    model = nn.Sequential(nn.Linear(4, 4), nn.ReLU()).eval()
    with torch.autocast("cpu", dtype=torch.bfloat16):
        traced = exact.trace(model, x)
        assert compiled_ops(traced)
        same(call(traced, x), call(model, x))
        assert call(traced, x).dtype is torch.bfloat16
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        same(call(traced, x), call(model, x))
        plain = exact.trace(model, x)
        with torch.autocast("cpu", dtype=torch.bfloat16):
            same(call(plain, x), call(model, x))


def test_another_default_dtype_is_refused_when_tracing_and_served_when_running() -> None:
    model, traced = small()
    with default_dtype(torch.float64):
        same(call(traced, x), call(model, x))
        with pytest.raises(ValueError, match="default dtype"):
            exact.trace(model, x)


def test_threads_share_a_traced_module() -> None:
    model = nn.Sequential(nn.Linear(4, 4), nn.ReLU()).eval()
    traced = exact.trace(model, x)
    wrong: list[Any] = []

    def work(i: int) -> None:
        try:
            for k in range(20):
                batch = torch.full((3 + k % 2, 4), float(i * k))
                with torch.no_grad():
                    if not torch.equal(traced(batch), model(batch)):
                        wrong.append((i, k))
        except Exception as error:
            wrong.append(error)

    threads = [threading.Thread(target=work, args=(i,)) for i in range(4)]
    for t in threads:
        t.start()
    for t in threads:
        t.join()
    assert wrong == []


def test_tracing_in_threads() -> None:
    wrong: list[Any] = []

    def work() -> None:
        try:
            check(lambda x: torch.relu(x * 2) + 1, x)
        except Exception as error:
            wrong.append(error)

    threads = [threading.Thread(target=work) for _ in range(3)]
    for t in threads:
        t.start()
    for t in threads:
        t.join()
    assert wrong == []


def test_traced_modules_are_models_themselves() -> None:
    model, traced = small()
    again = exact.trace(traced, x)
    same(call(again, x), call(model, x))
    assert list(again.state_dict()) == list(model.state_dict())
    same(call(exact.trace(model, x), x), call(model, x))
    same(call(cleave.capture(traced, x), x), call(model, x))
    half = cleave.prepare_split(traced, example_inputs=(x,), split=cleave.SplitSpec(boundary="50%"))
    same(call(half.run_suffix, half.run_prefix(x)), call(model, x))


def test_bound_methods_and_functions_of_modules() -> None:
    model, _ = small()
    traced = exact.trace(model.forward, x)
    same(call(traced, x), call(model, x))
    assert list(traced.state_dict()) == list(model.state_dict())
    traced = exact.trace(lambda x: model(x) * 2, x)
    same(call(traced, x), call(model, x) * 2)
    write(model)
    with pytest.warns(cleave.CleaveWarning):
        same(call(traced, x), call(model, x) * 2)


def test_copies_are_refused() -> None:
    _, traced = small()
    for f in (copy.copy, copy.deepcopy, pickle.dumps):
        with pytest.raises(TypeError, match="cannot be copied or pickled"):
            f(traced)


def test_what_it_shows() -> None:
    _, traced = small()
    assert repr(traced).startswith("<cleave.TracedModule of Sequential: 5 nodes, 1 segment")
    assert exact.name in repr(traced)
    assert "segment 0" in str(traced.graph)
    assert traced.report().share == 1
    assert traced.report().data["segments"][0]["operators"] == 5
    assert traced.plan.nodes


def test_a_traced_module_goes_when_it_is_not_used_any_more() -> None:
    _, traced = small()
    gone = weakref.ref(traced)
    del traced
    gc.collect()
    assert gone() is None


@pytest.fixture
def saved(tmp_path: Path) -> Iterator[tuple[nn.Module, Path]]:
    model = nn.Sequential(nn.Linear(4, 4), nn.ReLU()).eval()
    exact.trace(model, x, dynamic_batch=(1, 1024)).save(tmp_path / "model.clv", metadata={"note": "mine"})
    return model, tmp_path / "model.clv"


def test_saved_files_run_compiled_where_that_is_allowed(saved: tuple[nn.Module, Path]) -> None:
    model, path = saved
    loaded = cleave.load(path, allow_compiled=True)
    for rows in (1, 3, 7, 500):
        same(loaded(torch.ones(rows, 4)), call(model, torch.ones(rows, 4)))
    assert (loaded.segments[0].runs, loaded.segments[0].tape_runs) == (4, 0)
    assert loaded.about["note"] == "mine"
    with pytest.warns(cleave.CleaveWarning, match="allow_compiled=True"):
        careful = cleave.load(path)
    same(careful(x), call(model, x))
    assert careful.segments[0].runs == 0


def test_damaged_files_do_not_run(saved: tuple[nn.Module, Path]) -> None:
    _, path = saved
    data = path.read_bytes()
    for cut in (0, 10, len(data) // 2, len(data) - 1):
        path.write_bytes(data[:cut])
        with pytest.raises((cleave.CleaveError, OSError)):
            cleave.load(path, allow_compiled=True, check=True)

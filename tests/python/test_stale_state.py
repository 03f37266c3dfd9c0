"""A model that is changed behind a plan never gives its old answer: every kind of thing that a forward can read."""

from __future__ import annotations

import collections
import functools
import math
import types
from collections import OrderedDict, deque
from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np
import pytest
import torch
from torch import Tensor, nn

import cleave
from cleave import InputError


class Plain:
    """Keeps what it is given in attributes."""

    def __init__(self, **values: Any) -> None:
        self.__dict__.update(values)

    def scaled(self, x: Tensor) -> Tensor:
        return x * self.k

    def __call__(self, x: Tensor) -> Tensor:
        return x * self.k


class Slots:
    __slots__ = ("inner", "k")

    def __init__(self, k: Any) -> None:
        self.k = k


class Settings(dict):  # type: ignore[type-arg]
    """A subclass of dict."""


class Pair(NamedTuple):
    first: Any
    second: Any


class Alias:
    """Finds some attributes under another name, as configs of transformers do."""

    names = {"width": "n_embd"}

    def __init__(self, **values: Any) -> None:
        self.__dict__.update(values)

    def __getattribute__(self, name: str) -> Any:
        if name in Alias.names:
            name = Alias.names[name]
        return super().__getattribute__(name)


class Backed:
    """Finds attributes in a dict of its own."""

    def __init__(self, **values: Any) -> None:
        self.values = values

    def __getattr__(self, name: str) -> Any:
        try:
            return self.__dict__["values"][name]
        except KeyError:
            raise AttributeError(name) from None


class Holder(nn.Module):
    """Computes with whatever it is given."""

    def __init__(self, read: Callable[..., Any], **values: Any) -> None:
        super().__init__()
        self.layer = nn.Linear(4, 4)
        self.layer.requires_grad_(False)
        self.__dict__["_read"] = read
        for name, value in values.items():
            setattr(self, name, value)

    def forward(self, x: Tensor) -> Any:
        return self._read(self, self.layer(x))


def two(x: Tensor, k: float = 2.0, *, j: float = 1.0) -> Tensor:
    return x * k * j


def closed(k: float) -> Callable[[Tensor], Tensor]:
    def inner(x: Tensor) -> Tensor:
        return x * k

    return inner


def set_cell(fn: Any, value: Any) -> None:
    fn.__closure__[0].cell_contents = value


def marked(k: int) -> Any:
    def fn(x: Tensor) -> Tensor:
        return x * fn.k  # type: ignore[attr-defined, no-any-return]

    fn.k = k  # type: ignore[attr-defined]
    return fn


class Double(nn.Linear):
    def forward(self, x: Tensor) -> Tensor:
        return 2 * super().forward(x)


def product(values: Any) -> Any:
    out = 1
    for v in values:
        out = out * v
    return out


def swap_children(m: Any) -> None:
    items = list(m.body._modules.items())
    m.body._modules.clear()
    m.body._modules.update(reversed(items))


def reorder(d: Any) -> None:
    items = list(d.items())
    d.clear()
    d.update(reversed(items))


def steps(values: Any) -> Any:
    """Follows the order of what it gets."""
    out = 1.0
    for v in values:
        out = out * 2 + v
    return out


def hook_twice(m: Any, args: Any, out: Tensor) -> Tensor:
    return out * 2


def hook_thrice(m: Any, args: Any, out: Tensor) -> Tensor:
    return out * 3


def replace_hook(m: Any) -> None:
    m.layer._forward_hooks.clear()
    m.layer.register_forward_hook(hook_thrice)


def with_hook() -> Holder:
    m = Holder(lambda m, y: y)
    m.layer.register_forward_hook(hook_twice)
    return m


def with_kwargs_hook() -> Holder:
    m = Holder(lambda m, y: y)
    m.layer.register_forward_pre_hook(_pre(2))
    return m


def _pre(k: int) -> Any:
    def pre(m: Any, args: Any) -> Any:
        return (args[0] * k,)

    return pre


def sign_of_zero(y: Tensor, zero: float) -> Tensor:
    return y * math.copysign(2.0, zero)


def branch_nan(y: Tensor, value: float) -> Tensor:
    return y * (3.0 if math.isnan(value) else 2.0)


def is_float(y: Tensor, value: Any) -> Tensor:
    return y * 2 if isinstance(value, float) else y * 3


class WithParameters(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.a = nn.Parameter(torch.ones(4))
        self.listed = nn.ParameterList([torch.ones(4), torch.ones(4)])
        self.blocks = nn.ModuleList([nn.Identity()])
        self.named = nn.ModuleDict({"a": nn.Identity()})
        self.how = "parameters"

    def forward(self, x: Tensor) -> Tensor:
        if self.how == "parameters":
            return x * sum(p.sum() for p in self.parameters())
        if self.how == "listed":
            return x * sum(p.sum() for p in self.listed)
        if self.how == "buffers":
            return x * (1 + sum(1 for _ in self.buffers()))
        for block in self.blocks:
            x = block(x) + 1
        for name in self.named:
            x = self.named[name](x) + len(name)
        return x


def with_parameters(how: str) -> nn.Module:
    m = WithParameters().requires_grad_(False)
    m.how = how
    return m


def tied() -> Holder:
    def read(m: Any, y: Tensor) -> Tensor:
        return y * m.w1 if m.w1 is m.w2 else y + m.w1 + m.w2

    m = Holder(read)
    m.w1 = m.w2 = nn.Parameter(torch.rand(4), requires_grad=False)
    return m


def untied() -> Holder:
    m = tied()
    m.w2 = nn.Parameter(torch.rand(4), requires_grad=False)
    return m


def by_pointer() -> Holder:
    m = Holder(lambda m, y: y * 2 if m.w1.data_ptr() == m.w2.data_ptr() else y * 3)
    m.w1 = nn.Parameter(torch.rand(4), requires_grad=False)
    m.w2 = nn.Parameter(torch.rand(4), requires_grad=False)
    return m


def by_id() -> Holder:
    m = Holder(lambda m, y: y * 2 if id(m.w1) == id(m.w2) else y * 3)
    m.w1 = nn.Parameter(torch.rand(4), requires_grad=False)
    m.w2 = nn.Parameter(torch.rand(4), requires_grad=False)
    return m


def by_flag() -> Holder:
    return Holder(lambda m, y: y * 2 if m.layer.weight.requires_grad else y * 3)


def by_other_flag() -> Holder:
    m = Holder(lambda m, y: y * 2 if m.other.weight.requires_grad else y * 3)
    m.other = nn.Linear(4, 4)
    return m


def _with_buffer(read: Callable[..., Any]) -> Holder:
    m = Holder(read)
    m.register_buffer("b", torch.rand(4))
    return m


def tie(m: Any) -> None:
    m.w2 = m.w1


def of_class() -> Holder:
    class Own(Holder):
        factor = 2

        def helped(self, x: Tensor, k: int = 2) -> Tensor:
            return x * k * self.factor

    return Own(lambda m, y: m.helped(y))


def patch_class(m: Any) -> None:
    cls = type(m)
    cls.helped = lambda self, x, k=5: x * k


CASES: dict[str, tuple[Callable[[], Any], Callable[[Any], Any]]] = {
    "hook replaced by another": (with_hook, replace_hook),
    "hook tables replaced": (with_hook, lambda m: setattr(m.layer, "_forward_hooks", OrderedDict())),
    "closure of a hook": (with_kwargs_hook, lambda m: set_cell(next(iter(m.layer._forward_pre_hooks.values())), 3)),
    "children in another order": (
        lambda: Holder(lambda m, y: m.body(y), body=nn.Sequential(nn.ReLU(), nn.Linear(4, 4).requires_grad_(False))),
        swap_children,
    ),
    "object in a list": (lambda: Holder(lambda m, y: y * m.v[0].k, v=[Plain(k=2)]), lambda m: setattr(m.v[0], "k", 3)),
    "object in a tuple": (
        lambda: Holder(lambda m, y: y * m.v[0].k, v=(Plain(k=2),)),
        lambda m: setattr(m.v[0], "k", 3),
    ),
    "object in a dict": (
        lambda: Holder(lambda m, y: y * m.v["a"].k, v={"a": Plain(k=2)}),
        lambda m: setattr(m.v["a"], "k", 3),
    ),
    "object in an object in an object": (
        lambda: Holder(lambda m, y: y * m.v.a.b.k, v=Plain(a=Plain(b=Plain(k=2)))),
        lambda m: setattr(m.v.a.b, "k", 3),
    ),
    "list in a tuple": (lambda: Holder(lambda m, y: y * m.v[0][0], v=([2],)), lambda m: m.v[0].__setitem__(0, 3)),
    "list in a frozen pair": (
        lambda: Holder(lambda m, y: y * m.v.first[0], v=Pair([2], 1)),
        lambda m: m.v.first.__setitem__(0, 3),
    ),
    "ten lists in each other": (
        lambda: Holder(lambda m, y: y * m.v[0][0][0][0][0][0][0][0][0][0], v=[[[[[[[[[[2]]]]]]]]]]),
        lambda m: m.v[0][0][0][0][0][0][0][0][0].__setitem__(0, 3),
    ),
    "attribute of a callable": (lambda: Holder(lambda m, y: m.v(y), v=Plain(k=2)), lambda m: setattr(m.v, "k", 3)),
    "attribute of a function": (lambda: Holder(lambda m, y: m.v(y), v=marked(2)), lambda m: setattr(m.v, "k", 3)),
    "object of a bound method": (
        lambda: Holder(lambda m, y: m.v(y), v=Plain(k=2).scaled),
        lambda m: setattr(m.v.__self__, "k", 3),
    ),
    "bound method of a dict": (
        lambda: Holder(lambda m, y: y * m.v("a"), v={"a": 2}.get),
        lambda m: m.v.__self__.__setitem__("a", 3),
    ),
    "tensor in a config": (
        lambda: Holder(lambda m, y: y * m.v.t, v=Plain(t=torch.tensor(2.0))),
        lambda m: setattr(m.v, "t", torch.tensor(3.0)),
    ),
    "tensor in a deque": (
        lambda: Holder(lambda m, y: y * m.v[0], v=deque([torch.tensor(2.0)])),
        lambda m: m.v.__setitem__(0, torch.tensor(3.0)),
    ),
    "tensor in a nested list": (
        lambda: Holder(lambda m, y: y * m.v[0][0], v=[[torch.tensor(2.0)]]),
        lambda m: m.v[0].__setitem__(0, torch.tensor(3.0)),
    ),
    "tensor in a nested list, equal until it is written": (
        lambda: Holder(lambda m, y: y * m.v[0][0], v=[[torch.tensor(2.0)]]),
        lambda m: (m.v[0].__setitem__(0, torch.tensor(2.0)), m.v[0][0].add_(1)),
    ),
    "tensor in a namespace in a tuple": (
        lambda: Holder(lambda m, y: y * m.v[0].t, v=(types.SimpleNamespace(t=torch.tensor(2.0)),)),
        lambda m: setattr(m.v[0], "t", torch.tensor(3.0)),
    ),
    "shape of a tensor that no operator reads": (
        lambda: Holder(lambda m, y: y * m.v.shape[0], v=torch.zeros(2)),
        lambda m: setattr(m, "v", torch.zeros(3)),
    ),
    "order of a dict": (
        lambda: Holder(lambda m, y: y * steps(m.v.values()), v={"a": 1, "b": 5}),
        lambda m: reorder(m.v),
    ),
    "order of a dict by number": (
        lambda: Holder(lambda m, y: y * steps(m.v.values()), v={1: 1, 2: 5}),
        lambda m: reorder(m.v),
    ),
    "a float for an int": (lambda: Holder(lambda m, y: is_float(y, m.v[0]), v=[2]), lambda m: m.v.__setitem__(0, 2.0)),
    "a bool for an int": (
        lambda: Holder(lambda m, y: y * 2 if m.v[0] is True else y * 3, v=(1,)),
        lambda m: setattr(m, "v", (True,)),
    ),
    "the sign of zero": (lambda: Holder(lambda m, y: sign_of_zero(y, m.v), v=0.0), lambda m: setattr(m, "v", -0.0)),
    "the sign of zero in a list": (
        lambda: Holder(lambda m, y: sign_of_zero(y, m.v[0]), v=[0.0]),
        lambda m: m.v.__setitem__(0, -0.0),
    ),
    "the sign of zero in a complex number": (
        lambda: Holder(lambda m, y: sign_of_zero(y, m.v.imag), v=complex(1, 0.0)),
        lambda m: setattr(m, "v", complex(1, -0.0)),
    ),
    "nan": (lambda: Holder(lambda m, y: branch_nan(y, m.v), v=1.0), lambda m: setattr(m, "v", math.nan)),
    "no longer nan": (lambda: Holder(lambda m, y: branch_nan(y, m.v), v=math.nan), lambda m: setattr(m, "v", 1.0)),
    "item added to a list that is summed": (
        lambda: Holder(lambda m, y: y * sum(m.v), v=[1, 2]),
        lambda m: m.v.append(3),
    ),
    "item added to a dict that is summed": (
        lambda: Holder(lambda m, y: y * sum(m.v.values()), v={"a": 1}),
        lambda m: m.v.__setitem__("b", 3),
    ),
    "item added to a dict by number that is summed": (
        lambda: Holder(lambda m, y: y * sum(m.v.values()), v={1: 1}),
        lambda m: m.v.__setitem__(2, 3),
    ),
    "item added to a dict by number whose length is read": (
        lambda: Holder(lambda m, y: y * len(m.v), v={1: 1}),
        lambda m: m.v.__setitem__(2, 3),
    ),
    "tensor added to a dict that is summed": (
        lambda: Holder(lambda m, y: y * sum(m.v.values()), v={"a": torch.tensor(2.0)}),
        lambda m: m.v.__setitem__("b", torch.tensor(3.0)),
    ),
    "tensor added to a list that is summed": (
        lambda: Holder(lambda m, y: y * sum(m.v), v=[torch.tensor(2.0)]),
        lambda m: m.v.append(torch.tensor(3.0)),
    ),
    "tensor added to a deque that is summed": (
        lambda: Holder(lambda m, y: y * sum(m.v), v=deque([torch.tensor(2.0)])),
        lambda m: m.v.append(torch.tensor(3.0)),
    ),
    "key that is looked up in a dict by number": (
        lambda: Holder(lambda m, y: y * m.v.get(7, 2), v={1: 1}),
        lambda m: m.v.__setitem__(7, 3),
    ),
    "item added to a set": (lambda: Holder(lambda m, y: y * len(m.v), v={1, 2}), lambda m: m.v.add(3)),
    "object in a frozen set": (
        lambda: Holder(lambda m, y: y * next(iter(m.v)).k, v=frozenset([Plain(k=2)])),
        lambda m: setattr(next(iter(m.v)), "k", 3),
    ),
    "parameter added": (
        lambda: with_parameters("parameters"),
        lambda m: m.register_parameter("b", nn.Parameter(torch.ones(4), requires_grad=False)),
    ),
    "parameter added to a list": (lambda: with_parameters("listed"), lambda m: m.listed.append(torch.ones(4))),
    "buffer added": (lambda: with_parameters("buffers"), lambda m: m.register_buffer("b", torch.ones(4))),
    "module added to a list": (lambda: with_parameters("modules"), lambda m: m.blocks.append(nn.Identity())),
    "module added to a dict": (
        lambda: with_parameters("modules"),
        lambda m: m.named.update({"twice": nn.Identity()}),
    ),
    "class of a module": (lambda: Holder(lambda m, y: y), lambda m: setattr(m.layer, "__class__", Double)),
    "class of an object": (
        lambda: Holder(lambda m, y: y * m.v.factor(), v=type("A", (), {"factor": lambda self: 2})()),
        lambda m: setattr(m.v, "__class__", type("B", (), {"factor": lambda self: 3})),
    ),
    "keywords of a partial": (
        lambda: Holder(lambda m, y: m.v(y), v=functools.partial(two, k=2.0)),
        lambda m: m.v.keywords.__setitem__("k", 3.0),
    ),
    "arguments of a partial": (
        lambda: Holder(lambda m, y: m.v(y), v=functools.partial(torch.add, torch.ones(4))),
        lambda m: setattr(m, "v", functools.partial(torch.add, torch.zeros(4))),
    ),
    "list in the arguments of a partial": (
        lambda: Holder(lambda m, y: y * m.v(), v=functools.partial(sum, [1, 2])),
        lambda m: m.v.args[0].append(3),
    ),
    "function of a partial": (
        lambda: Holder(lambda m, y: m.v(y), v=functools.partial(Plain(k=2))),
        lambda m: setattr(m.v.func, "k", 3),
    ),
    "defaults of a function": (
        lambda: Holder(lambda m, y: m.v(y), v=plain_default()),
        lambda m: setattr(m.v, "__defaults__", (3.0,)),
    ),
    "keyword defaults of a function": (
        lambda: Holder(lambda m, y: m.v(y), v=closed_default()),
        lambda m: setattr(m.v, "__kwdefaults__", {"j": 5.0}),
    ),
    "list among the defaults of a function": (
        lambda: Holder(lambda m, y: m.v(y), v=listed_default()),
        lambda m: m.v.__defaults__[0].__setitem__(0, 3),
    ),
    "closure of a function": (lambda: Holder(lambda m, y: m.v(y), v=closed(2.0)), lambda m: set_cell(m.v, 3.0)),
    "code of a function": (
        lambda: Holder(lambda m, y: m.v(y), v=types.FunctionType(hook_code(2), globals())),
        lambda m: setattr(m.v, "__code__", hook_code(3)),
    ),
    "closure of a wrapped function": (
        lambda: Holder(lambda m, y: m.v(y), v=functools.wraps(two)(closed(2.0))),
        lambda m: set_cell(m.v, 3.0),
    ),
    "object with slots": (lambda: Holder(lambda m, y: y * m.v.k, v=Slots(2)), lambda m: setattr(m.v, "k", 3)),
    "object with slots that gets one": (
        lambda: Holder(lambda m, y: y * getattr(m.v, "inner", 2), v=Slots(2)),
        lambda m: setattr(m.v, "inner", 3),
    ),
    "list in an object with slots": (
        lambda: Holder(lambda m, y: y * m.v.k[0], v=Slots([2])),
        lambda m: m.v.k.__setitem__(0, 3),
    ),
    "subclass of dict": (
        lambda: Holder(lambda m, y: y * m.v["a"], v=Settings(a=2)),
        lambda m: m.v.__setitem__("a", 3),
    ),
    "attribute of a subclass of dict": (
        lambda: Holder(lambda m, y: y * m.v.k, v=_with(Settings(a=2), k=2)),
        lambda m: setattr(m.v, "k", 3),
    ),
    "counter": (
        lambda: Holder(lambda m, y: y * m.v["a"], v=collections.Counter(a=2)),
        lambda m: m.v.update("a"),
    ),
    "chain of dicts": (
        lambda: Holder(lambda m, y: y * m.v["a"], v=collections.ChainMap({"a": 2})),
        lambda m: m.v.maps[0].__setitem__("a", 3),
    ),
    "user's dict": (
        lambda: Holder(lambda m, y: y * m.v["a"], v=collections.UserDict(a=2)),
        lambda m: m.v.__setitem__("a", 3),
    ),
    "numpy array": (
        lambda: Holder(lambda m, y: y * float(m.v[0]), v=np.array([2.0, 1.0])),
        lambda m: m.v.__setitem__(0, 3.0),
    ),
    "numpy array in a config": (
        lambda: Holder(lambda m, y: y * float(m.v.a[0]), v=Plain(a=np.array([2, 1]))),
        lambda m: m.v.a.__setitem__(0, 3),
    ),
    "numpy number": (
        lambda: Holder(lambda m, y: y * float(m.v), v=np.float32(2)),
        lambda m: setattr(m, "v", np.float32(3)),
    ),
    "bytes that can be written": (
        lambda: Holder(lambda m, y: y * m.v[0], v=bytearray(b"\x02")),
        lambda m: m.v.__setitem__(0, 3),
    ),
    "attribute under another name": (
        lambda: Holder(lambda m, y: y * m.v.width, v=Alias(n_embd=2)),
        lambda m: setattr(m.v, "n_embd", 3),
    ),
    "attribute that is found in a dict": (
        lambda: Holder(lambda m, y: y * m.v.width, v=Backed(width=2)),
        lambda m: m.v.values.__setitem__("width", 3),
    ),
    "attribute that was not there": (
        lambda: Holder(lambda m, y: y * getattr(m.v, "width", 2), v=Plain()),
        lambda m: setattr(m.v, "width", 3),
    ),
    "attribute of the class": (of_class, lambda m: setattr(type(m), "factor", 3)),
    "method of the class": (of_class, patch_class),
    "defaults of a method of the class": (of_class, lambda m: setattr(type(m).helped, "__defaults__", (3,))),
    "tensors that are no longer one": (tied, lambda m: setattr(m, "w2", nn.Parameter(m.w1.clone(), False))),
    "tensors that become one": (untied, tie),
    "address of a tensor": (by_pointer, tie),
    "identity of a tensor": (by_id, tie),
    "flag of a weight": (by_flag, lambda m: m.layer.weight.requires_grad_()),
    "flag of a weight that no operator reads": (by_other_flag, lambda m: m.other.requires_grad_(False)),
    "gradient of a weight": (
        lambda: Holder(lambda m, y: y * 2 if m.layer.weight.grad is None else y * 3),
        lambda m: setattr(m.layer.weight, "grad", torch.ones(4, 4)),
    ),
    "flag of a buffer": (
        lambda: _with_buffer(lambda m, y: y * 2 if m.b.requires_grad else y * 3),
        lambda m: m.b.requires_grad_(),
    ),
    "flags of all weights": (
        lambda: Holder(lambda m, y: y * sum(p.requires_grad for p in m.parameters())),
        lambda m: m.layer.requires_grad_(),
    ),
}


def plain_default() -> Any:
    def fn(x: Tensor, k: float = 2.0) -> Tensor:
        return x * k

    return fn


def closed_default() -> Any:
    def fn(x: Tensor, *, j: float = 2.0) -> Tensor:
        return x * j

    return fn


def listed_default() -> Any:
    def fn(x: Tensor, k: list[int] = [2]) -> Tensor:
        return x * k[0]

    return fn


def hook_code(k: int) -> Any:
    return (lambda x: x * 2).__code__ if k == 2 else (lambda x: x * 3).__code__


def _with(value: Any, **attributes: Any) -> Any:
    for name, item in attributes.items():
        setattr(value, name, item)
    return value


def _never_stale(run: Callable[[Tensor], Tensor], model: nn.Module, x: Tensor, old: Tensor) -> None:
    new = model(x)
    assert not torch.equal(new, old), "the change has to change something"
    try:
        got = run(x)
    except InputError as error:
        assert "capture the model again" in str(error)  # noqa: PT017
    else:
        assert torch.equal(got, new)


@pytest.mark.parametrize("case", CASES)
def test_a_change_is_refused_or_followed(case: str) -> None:
    make, change = CASES[case]
    torch.manual_seed(0)
    model, x = make().eval(), torch.rand(2, 4)
    with torch.no_grad():
        old = model(x)
        try:
            plan = cleave.capture(model, x)
        except cleave.CaptureError as error:
            assert case in ("address of a tensor", "identity of a tensor"), error  # noqa: PT017
            return
        assert torch.equal(plan(x), old)
        assert torch.equal(plan(x), old)
        change(model)
        _never_stale(plan, model, x, old)


@pytest.mark.parametrize("grad", [False, True])
@pytest.mark.parametrize("make", [by_flag, by_other_flag])
@pytest.mark.parametrize("sizes", [None, (1, 8)])
def test_a_plan_follows_a_flag_that_the_forward_reads(make: Callable[[], Holder], grad: bool, sizes: Any) -> None:
    model = make().eval()
    weight = model.other.weight if make is by_other_flag else model.layer.weight
    with torch.set_grad_enabled(grad):
        plan = cleave.capture(model, torch.rand(2, 4), dynamic_batch=sizes)
        for flag in (True, False, False, True, False):
            weight.requires_grad_(flag)
            for rows in (2, 2) if sizes is None else (2, 3):
                x = torch.rand(rows, 4)
                want, got = model(x), plan(x)
                assert torch.equal(want, got)
                assert want.requires_grad == got.requires_grad


def test_a_split_does_not_run_with_another_flag_than_its_forward_has_read() -> None:
    model, x = by_flag().eval(), torch.rand(2, 4)
    spec = cleave.SplitSpec(boundary="after:layer", dynamic_batch=None)
    run = cleave.prepare_split(model, example_inputs=(x,), split=spec)
    old = model(x)
    assert torch.equal(run.run_suffix(run.run_prefix(x)), old)
    model.layer.weight.requires_grad_()
    with pytest.raises(cleave.LayoutError, match=r"layer\.weight was frozen or made trainable"):
        run.run_prefix(x)
    model.layer.weight.requires_grad_(False)
    model.layer.bias.requires_grad_()  # nobody looks at that one
    assert torch.equal(run.run_suffix(run.run_prefix(x)), old)


def test_an_input_whose_flag_the_forward_reads() -> None:
    model = Asks().eval()
    for grad in (False, True):
        with torch.set_grad_enabled(grad):
            plan = cleave.capture(model, (torch.rand(2, 4), torch.rand(2, 4)))
            for flags in ((False, True), (True, False), (True, True), (False, False)):
                x, y = (torch.rand(2, 4).requires_grad_(flag) for flag in flags)
                assert torch.equal(model(x, y), plan(x, y))
    x, y = torch.rand(2, 4), torch.rand(2, 4)
    run = cleave.prepare_split(model, example_inputs=(x, y), split=cleave.SplitSpec(boundary="after:layer"))
    with torch.no_grad():
        old = model(x, y)
        assert torch.equal(run.run_suffix(run.run_prefix(x.requires_grad_(), y)), old)  # nobody looks at that one
        with pytest.raises(cleave.LayoutError, match="input 1 requires grad, for which the forward asks"):
            run.run_prefix(x, y.requires_grad_())


class Asks(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(4, 4)

    def forward(self, x: Tensor, y: Tensor) -> Tensor:
        x = self.layer(x)
        return x + y if y.requires_grad else x - y


def test_a_forward_that_reads_gradients_is_refused() -> None:
    model = Holder(lambda m, y: y * m.layer.weight.grad.norm())
    model.layer.weight.grad = torch.ones(4, 4)
    with pytest.raises(cleave.CaptureError, match="reads the gradient"):
        cleave.capture(model, torch.rand(2, 4))


class Scaled(nn.Module):
    """Tensors that may be None, before and after a cut."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.last, self.relu = nn.Linear(4, 4), nn.Linear(4, 4), nn.ReLU()
        self.register_buffer("before", None)
        self.register_buffer("after", None)
        self.register_parameter("bias", None)
        self.plain: Tensor | None = None

    def forward(self, x: Tensor) -> Tensor:
        x = self.relu(self.first(x if self.before is None else x * self.before))
        x = self.last(x if self.after is None else x * self.after)
        x = x if self.bias is None else x + self.bias
        return x if self.plain is None else x - self.plain


def run_split(model: nn.Module, x: Tensor, batch: Any) -> Any:
    rt = cleave.prepare_split(
        model, example_inputs=x, split=cleave.SplitSpec(boundary="after:relu", dynamic_batch=batch)
    )
    return lambda x: rt.run_suffix(rt.run_prefix(x))


@pytest.mark.parametrize("name", ["before", "after", "bias", "plain"])
@pytest.mark.parametrize("batch", [None, (2, 8)])
@pytest.mark.parametrize("first", [None, 2.0])
def test_a_split_follows_a_tensor_that_comes_and_goes(name: str, batch: Any, first: float | None) -> None:
    model, x = Scaled().eval(), torch.randn(3, 4)

    def put(value: float | None) -> None:
        made = None if value is None else torch.full((4,), value)
        setattr(model, name, nn.Parameter(made) if made is not None and name == "bias" else made)

    put(first)
    run = run_split(model, x, batch)
    for value in (first, 3.0, None, None, 2.0, None, 5.0):
        put(value)
        with torch.no_grad():
            assert torch.equal(run(x), model(x)), value


@pytest.mark.parametrize("name", ["before", "after", "bias", "plain"])
def test_a_tensor_that_is_gone_is_named(name: str) -> None:
    model = Scaled()
    value = torch.ones(4)
    setattr(model, name, nn.Parameter(value) if name == "bias" else value)
    plan = cleave.capture(model, torch.randn(3, 4))
    setattr(model, name, None)
    with pytest.raises(cleave.InputError, match=f"{name} is no tensor any more"):
        plan(torch.randn(3, 4))

"""Numbers that a forward reads from a tensor, kept as tensors while it is recorded.

A counter that the forward itself moves on is another number in every call, so no plan can hold it as a value. While
such a forward is recorded, `item()`, `float()` and `int()` give a Number: what Python computes from it are operators in
f64, whose sums, products and quotients are those of Python to the last bit; what Python asks of it (`<`, `==`, `bool`)
is a guard; and all else that is done to it reads its value, which is a guard too. Where an operator takes it, it
becomes the plain number that eager would give, read by each run (src/capture/flow.c)."""

from __future__ import annotations

import builtins
import operator
from collections.abc import Callable
from typing import Any

import torch
from torch.utils import _pytree

Mark = Callable[[torch.Tensor], None]  # tells the recording that a tensor stands for a number

# Operations whose result in f64 is Python's own; // and % of whole numbers alone.
EXACT: dict[str, Any] = {
    "add": torch.add,
    "sub": torch.sub,
    "mul": torch.mul,
    "truediv": torch.div,
    "floordiv": torch.floor_divide,
    "mod": torch.remainder,
}
ASKED: dict[str, Any] = {
    "lt": torch.lt,
    "le": torch.le,
    "gt": torch.gt,
    "ge": torch.ge,
    "eq": torch.eq,
    "ne": torch.ne,
}
DIVIDES, NEEDS_WHOLE = ("truediv", "floordiv", "mod"), ("floordiv", "mod")
READS = (
    *("float", "int", "index", "complex", "hash", "str", "repr", "format", "round", "trunc", "floor", "ceil"),
    *("pow", "rpow", "divmod", "rdivmod", "invert", "and", "or", "xor", "lshift", "rshift", "rlshift", "rrshift"),
)
ITEM: Any = torch.Tensor.item  # before a recording puts its own in its place
PLAIN = torch._C.DisableTorchFunctionSubclass  # operators on Numbers give plain tensors
LARGEST = 2.0**53  # whole number up to which f64 has all


class Number(torch.Tensor):
    """A number that Python has of a tensor, as a tensor."""

    whole: bool  # Python has an int
    mark: Mark

    @staticmethod
    def of(tensor: torch.Tensor, whole: bool, mark: Mark) -> Number:
        """The number in a tensor with one element, as it is now."""
        for needed, step in ((tensor.requires_grad, torch.Tensor.detach), (tensor.dim(), torch.Tensor.squeeze)):
            if needed:
                tensor = step(tensor)
                mark(tensor)
        with PLAIN():
            return Number.made(tensor.to("cpu", torch.float64, copy=True), whole, mark)

    @staticmethod
    def made(tensor: torch.Tensor, whole: bool, mark: Mark) -> Number:
        mark(tensor)
        number: Any = tensor
        number.__class__ = Number
        number.whole, number.mark = whole, mark
        if whole and not number.asked(torch.le, torch.abs, LARGEST):
            raise OverflowError("a whole number that is read from a tensor is beyond 2^53")
        return number  # type: ignore[no-any-return]

    def asked(self, question: Any, of: Any, x: Any) -> bool:
        """An answer that later runs must have, too."""
        value = of(self)
        answer = question(value, x)
        self.mark(value)
        self.mark(answer)
        return bool(answer)

    def plain(self) -> Any:
        """The value, as eager has it; each run reads it."""
        with PLAIN():
            if not self.whole:
                return ITEM(self)
            value = self.to(torch.int64)
            self.mark(value)
            return ITEM(value)

    def other(self, x: Any) -> torch.Tensor | None:
        """What is to be added, compared and so on, as a tensor; None: it is no number."""
        if isinstance(x, Number):
            return x
        if not isinstance(x, builtins.int | builtins.float):
            return None
        value = torch.scalar_tensor(x, dtype=torch.float64, device="cpu")
        self.mark(value)
        return value

    @classmethod
    def __torch_function__(cls, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        """An operator gets what eager would give it."""
        args, kwargs = _pytree.tree_map_only(Number, Number.plain, (args, kwargs or {}))
        return func(*args, **kwargs)

    def __neg__(self) -> Any:
        with PLAIN():
            return Number.made(torch.neg(self), self.whole, self.mark)

    def __pos__(self) -> Any:
        return self

    def __abs__(self) -> Any:
        with PLAIN():
            return Number.made(torch.abs(self), self.whole, self.mark)

    def __bool__(self) -> bool:
        return bool(self != 0)


def _value(x: torch.Tensor) -> Any:
    return x.plain() if isinstance(x, Number) else ITEM(x)


def _computed(name: str, turned: bool) -> Callable[[Number, Any], Any]:
    """a + b, or b + a."""

    def method(self: Number, x: Any) -> Any:
        with PLAIN():
            other = self.other(x)
            whole = self.whole and not isinstance(x, builtins.float) and getattr(x, "whole", True)
            if other is None:
                return NotImplemented
            a, b = (other, self) if turned else (self, other)
            if name in NEEDS_WHOLE and not whole:
                return getattr(operator, name)(_value(a), _value(b))
            by_zero = name in DIVIDES and (isinstance(b, Number) or not x)
            if by_zero and self.asked(torch.eq, lambda _: b, 0):
                raise ZeroDivisionError("division by zero")
            return Number.made(EXACT[name](a, b), whole and name != "truediv", self.mark)

    return method


def _asked(name: str) -> Callable[[Number, Any], Any]:
    def method(self: Number, x: Any) -> Any:
        with PLAIN():
            other = self.other(x)
            if other is None:
                return NotImplemented
            return self.asked(ASKED[name], lambda number: number, other)

    return method


def _read(name: str) -> Callable[..., Any]:
    """What has no operator is done to the value itself."""

    def method(self: Number, *args: Any) -> Any:
        return getattr(self.plain(), name)(*args)

    return method


for _name in EXACT:
    setattr(Number, f"__{_name}__", _computed(_name, False))
    setattr(Number, f"__r{_name}__", _computed(_name, True))
for _name in ASKED:
    setattr(Number, f"__{_name}__", _asked(_name))
for _name in READS:
    setattr(Number, f"__{_name}__", _read(f"__{_name}__"))
for _name in EXACT:  # a += b is a new number
    setattr(Number, f"__i{_name}__", getattr(Number, f"__{_name}__"))


class _Kind(type):
    """`isinstance(x, float)` is asked in the same files that read numbers."""

    whole: bool
    builtin: type

    def __instancecheck__(cls, x: Any) -> bool:
        return isinstance(x, cls.builtin) or (isinstance(x, Number) and x.whole == cls.whole)

    def __subclasscheck__(cls, x: Any) -> bool:
        return issubclass(x, cls.builtin)


def kinds(number: Callable[[torch.Tensor, bool], Number | None]) -> dict[str, type]:
    """`float` and `int` for the files of a model. number: what there is of a tensor; None where nothing is recorded."""

    class Float(builtins.float, metaclass=_Kind):
        whole, builtin = False, builtins.float

        def __new__(cls, *args: Any) -> Any:
            return _converted(builtins.float, False, args)

    class Int(builtins.int, metaclass=_Kind):
        whole, builtin = True, builtins.int

        def __new__(cls, *args: Any, **kwargs: Any) -> Any:
            return _converted(builtins.int, True, args, **kwargs)

    def _converted(builtin: Any, whole: bool, args: tuple[Any, ...], **kwargs: Any) -> Any:
        x = args[0] if len(args) == 1 and not kwargs else None
        if isinstance(x, Number) and x.whole == whole:
            return x
        if isinstance(x, Number) and x.whole:  # not the other way: an int of a float drops digits
            with PLAIN():
                return Number.made(x.clone(), whole, x.mark)
        if isinstance(x, torch.Tensor) and not isinstance(x, Number):
            found = number(x, whole)
            if found is not None:
                return found
        return builtin(*args, **kwargs)

    return {"float": Float, "int": Int}


def is_readable(tensor: torch.Tensor, whole: bool | None) -> bool:
    """A real number can be had of it; whole: an int, and None: of either kind."""
    if type(tensor) not in (torch.Tensor, torch.nn.Parameter) or tensor.numel() != 1 or tensor.is_meta:
        return False
    if tensor.layout is not torch.strided or tensor.is_quantized or tensor.is_complex() or tensor.dtype is torch.bool:
        return False
    return not (whole and tensor.is_floating_point())

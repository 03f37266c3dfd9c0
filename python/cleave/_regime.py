"""The regime of a call, read off the model, and the plans recorded for each: captured when it is first met."""

from __future__ import annotations

import contextlib
from collections.abc import Hashable, Iterator, Mapping, Sequence
from typing import Any, Generic, Protocol, TypeVar

import torch

from . import _save, _show
from ._capture import Arguments, Captured, same_inputs, take_apart
from ._dims import SizeSpec, check_sizes, warn_of_images
from ._dispatch import Regime, Served, Variants
from ._sizes import Sized, found_sizes
from ._state import Target
from .errors import CaptureError, InputError, LayoutError
from .plan import asks, capture_checked, capture_shapes, capture_sized


class Reader:
    """Reads the regime off a model; runs nothing. Where the modules keep their tensors is looked up once."""

    def __init__(self, target: Target) -> None:
        self.target = target
        self.refresh()

    def refresh(self) -> None:
        """After the model got other modules or other tensors."""
        self.modules = [m for _, m in self.target.modules()]
        self.places = [(t.holder, t.key) for t in self.target.tensors()]

    def regime(self, leaves: Sequence[torch.Tensor], grad: bool, plain: Hashable = None) -> Regime:
        """As things are."""
        return Regime(
            grad,
            tuple([m.training for m in self.modules]),
            self._tensors(grad),
            tuple([(_layout(t), grad and t.requires_grad) for t in leaves]),
            tuple(_repeats(leaves)),
            _modes(),
            plain,
        )

    def _tensors(self, grad: bool) -> tuple[Any, ...]:
        try:
            tensors = [holder[key] for holder, key in self.places]
        except LookupError:
            self.refresh()
            tensors = [holder[key] for holder, key in self.places]
        return tuple([(t.dtype, t.device, grad and t.requires_grad) for t in tensors if isinstance(t, torch.Tensor)])

    def fits(self, regime: Regime) -> bool:
        """The model and the modes around the call are those of this regime, but for train and eval."""
        same = (self._tensors(regime.grad), _modes()) == (regime.tensors, regime.modes)
        return same and len(self.modules) == len(regime.training)

    @contextlib.contextmanager
    def in_mode(self, regime: Regime) -> Iterator[None]:
        """The modules are in the mode of a regime, inside."""
        before = [m.training for m in self.modules]
        try:
            for module, training in zip(self.modules, regime.training, strict=True):
                module.training = training
            yield
        finally:
            for module, training in zip(self.modules, before, strict=True):
                module.training = training


def _repeats(leaves: Sequence[torch.Tensor]) -> list[int]:
    """Which inputs are the same tensor, which a forward may ask; nothing where all differ."""
    return same_inputs(leaves) if len({id(t) for t in leaves}) < len(leaves) else []


def _layout(t: torch.Tensor) -> Any:
    if t.layout is not torch.strided or t.is_nested:
        return t.layout
    return None if t.is_contiguous() else t.stride()


def _order(layout: Any) -> Any:
    """The same at all sizes: the dimensions of strides, the outermost first."""
    if not isinstance(layout, tuple):
        return layout
    return tuple(sorted(range(len(layout)), key=lambda d: -layout[d]))


def _modes() -> tuple[Any, ...]:
    """Around the call."""
    return _autocast("cpu"), _autocast("cuda"), torch.get_default_dtype()


def _autocast(device: str) -> torch.dtype | None:
    return torch.get_autocast_dtype(device) if torch.is_autocast_enabled(device) else None


class Prepared(Protocol):
    """A plan made ready to run in parts."""

    source: Captured  # as it was captured
    captured: Captured  # with its nodes in the order in which they run
    signature: str
    plans: Any  # the Plans that it is one of
    cut_at: int | None  # the first node of the suffix

    def check_model(self) -> None: ...


T = TypeVar("T", bound=Prepared)


class Plans(Generic[T]):
    """The plans of one regime, each prepared: one for the example's sizes or with formulas for many, and more where the
    model does something else at other sizes (_sizes.py)."""

    confirms = True  # a plan with formulas is compared with the model as a whole, before anything is made of it
    siblings: Variants[Any]

    def __init__(
        self,
        home: Served[Any, T],
        target: Target,
        example: tuple[Any, Any],
        sizes: SizeSpec,
        regime: Regime,
        like: T | None,
        made: Plans[T] | None = None,
    ) -> None:
        """home: where they serve. like: how a plan of the example's regime was prepared, as these are to be too. made:
        plans of the same regime, prepared in another way, which are not captured again."""
        self.home, self.target, self.example, self.regime = home, target, example, regime
        args, kwargs = example
        arguments = self.arguments = take_apart(target, args, kwargs)
        self.names = arguments.names
        self.shapes = [(t.dtype, () if t.is_nested else tuple(t.shape)) for t in arguments.leaves]
        self.made_up: Arguments | None = None  # the last that stood for a call
        self.whole = True  # the whole model is here, and can be run at other sizes
        self.sized: Sized | None = None
        with torch.set_grad_enabled(regime.grad):
            if made is not None:
                self.sized, self.captured = made.sized, made.main.source
            elif target.shapes:
                self.captured = capture_shapes(target, args, kwargs, regime.grad)
            elif sizes.empty:
                self.captured = capture_checked(target, args, kwargs, grad=regime.grad, both=False)
            else:
                self.sized = capture_sized(target, args, kwargs, regime.grad, sizes, self.confirms)
                self.captured = self.sized.captured
                if like is None:
                    warn_of_images(self.sized.symbols, self.names)
                    self.check_example(self.sizes_of(arguments.leaves))
            if self.sized is not None and not self.sized.covers(self.sized.example):
                arguments = self._other_data(self.sized, min(self.sized.points_of(self.sized.captured)))
        self.first = arguments  # what the first plan is prepared for: the example, at other sizes where it is special
        self.main: T = self.prepare(self.captured, arguments, like)
        self.captured = self.main.captured

    def prepare(self, captured: Captured, arguments: Arguments, like: T | None) -> T:
        """Makes a plan ready for inputs like these, and compares it with the model at sizes it is proven for."""
        raise NotImplementedError

    def _other_data(self, sized: Sized, point: tuple[int, ...]) -> Arguments:
        """The example at sizes that a plan is proven for, on other data than that of any call."""
        self.made_up = sized.resized(self.arguments, point)
        return self.made_up

    def takes(self, captured: Captured, arguments: Arguments) -> bool:
        """The plan was made from these inputs, or asks nothing about the data that stands for them."""
        return arguments is self.arguments or arguments is not self.made_up or not asks(captured)

    def to_check(self, captured: Captured, arguments: Arguments) -> Arguments:
        """Inputs on which a plan is compared with the model: the example, at a size that costs little. A plan that was
        recorded for a call may have guards that refuse all other data, so it is compared on the inputs of that call."""
        if self.sized is None or arguments is not self.first:
            return arguments
        points = self.sized.check_points(captured)
        return self.sized.resized(self.arguments, points[0]) if points else arguments

    def blame(self, captured: Captured, arguments: Arguments) -> None:
        """After parts of a plan did not give the model's results: raises if the whole plan does not, either."""
        if self.sized is not None:
            self.sized.confirm_plan(arguments, captured)

    def check_example(self, sizes: dict[str, int]) -> None:
        """Whether the example has sizes that were asked for."""

    def found_sizes(self, batch_symbol: str, example: tuple[Any, Any]) -> SizeSpec:
        """The sizes that may change, where they were found."""
        return found_sizes(self.sized, self.names, batch_symbol, take_apart(self.target, *example))

    def origin(self, captured: Captured) -> str:
        """The sizes at which a plan was made, if sizes may change."""
        return self.sized.origin(captured) if self.sized is not None else ""

    @property
    def variants(self) -> list[str]:
        """The plans: the sizes each is proven for, and why it is another one than the first."""
        return ["the example's sizes"] if self.sized is None else self.sized.describe()

    def sizes_of(self, leaves: Sequence[torch.Tensor]) -> dict[str, int]:
        """The value of every symbol in these inputs."""
        return {} if self.sized is None else self.sized.named(self.sized.sizes_of(leaves))

    def point_of(self, sizes: Mapping[str, int]) -> tuple[int, ...] | None:
        """Sizes in their order; None: they do not matter."""
        return None if self.sized is None else tuple(sizes.get(name, -1) for name in self.sized.names)

    def obtain(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> T:
        """The plan for these inputs, prepared; sizes that were never seen are recorded."""
        if self.sized is None:
            return self.main
        arguments = take_apart(self.target, args, kwargs)
        self.main.check_model()
        self.sized.check_inputs(arguments)
        orders = [_order(layout) for layout, _ in self.regime.inputs or ()]
        if [_order(_layout(t)) for t in arguments.leaves] != orders:  # it belongs to another regime
            raise LayoutError("an input is laid out in memory otherwise than at capture")
        return self._obtain(self.sized, arguments)

    def _obtain(self, sized: Sized, arguments: Arguments) -> T:
        point = sized.sizes_of(arguments.leaves)
        found = self.at(point)
        if not self.whole and found is not None:
            return found
        if not self.whole:
            raise InputError(
                f"{_show.named_sizes(sized.named(point))} was never seen, and only half of the model is here: call "
                "prepare_sizes before keep_only"
            )
        if sized.plan_at(point) is not None:  # it was recorded on other data than that of this call
            arguments = self._other_data(sized, point)
        with torch.set_grad_enabled(self.regime.grad):
            captured = sized.obtain(arguments, point)
        found = next((p for p in self.prepared() if p.source is captured), None)
        return found if found is not None else self.prepare(captured, arguments, self.main)

    def prepared(self) -> list[T]:
        """The plans that serve some size, the first one first."""
        sized = self.sized
        return [p for p in self.home.of(self) if p is self.main or (sized is not None and sized.points_of(p.source))]

    def at(self, point: tuple[int, ...]) -> T | None:
        """The plan that serves these sizes; None: none does yet."""
        return next((p for p in self.home.dispatch.list(self.siblings, point) if p.plans is self), None)

    def see(self, sizes: Mapping[str, int]) -> None:
        """Records sizes that only the other half has met, or that will be needed."""
        sized = self.sized
        if sized is None or set(sizes) != set(sized.names):
            return
        point = tuple(sizes[name] for name in sized.names)
        sized.check_range(self.names, point)
        self.main.check_model()
        with self.home.dispatch:
            self.home.put(self, self._obtain(sized, sized.resized(self.arguments, point)))

    def entries(self, prove: str | None) -> list[_save.PlanEntry]:
        """The plans for a file. prove: as in _save.prove; None: nothing more can be recorded."""
        sized = self.sized
        if sized is not None and self.whole and prove is not None:
            _save.prove(sized, lambda point: self.see(sized.named(point)), prove)
            for captured in sized.proven_plans:
                self.see(sized.named(sized.points_of(captured)[-1]))  # each plan is prepared
        return [_save.entry(sized, p.source, p.captured, p.signature, p.cut_at) for p in self.prepared()]

    def explain(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        """After a plan refused inputs: raises what is wrong with their sizes, if anything."""
        if self.sized is not None:
            self.sized.check_inputs(take_apart(self.target, args, kwargs))

    def check_shapes(self, leaves: Sequence[torch.Tensor]) -> None:
        """Raises unless fixed dimensions are as in the example and all others are in their ranges."""
        symbols = self.sized.symbols if self.sized is not None else ()
        free = {place for s in symbols for place in s.places}
        for i, (name, (_, shape), t) in enumerate(zip(self.names, self.shapes, leaves, strict=True)):
            if t.is_nested:
                continue
            if t.dim() != len(shape):
                raise InputError(f"input {name} has {t.dim()} dimensions, expected {len(shape)}")
            for d, n in enumerate(shape):
                if (i, d) not in free and n != t.shape[d]:
                    raise InputError(f"input {name}: dimension {d} is {t.shape[d]}, expected {n}")
        check_sizes(symbols, self.names, leaves)

    @contextlib.contextmanager
    def explaining(self, leaves: Sequence[torch.Tensor]) -> Iterator[None]:
        """Around a capture for a call: if it fails and one tensor is given for several inputs, the error says so."""
        try:
            yield
        except CaptureError as error:
            if not _repeats(leaves):
                raise
            raise InputError(f"one tensor is given for several inputs: {error}") from None

    def other_dtype(self, leaves: Sequence[torch.Tensor]) -> str | None:
        """Says which input has another dtype than in the example."""
        # A call may have more inputs: one that is None in the example.
        for name, (dtype, _), t in zip(self.names, self.shapes, leaves, strict=False):
            if t.dtype != dtype:
                return f"input {name} is {t.dtype}, the split was prepared with {dtype}"
        return None

    def symbols(self, prepared: T, sizes: Mapping[str, int]) -> list[int] | None:
        """The symbols of a plan as its programs take them."""
        names = prepared.captured.symbols
        for name in names:
            if type(sizes.get(name)) is not int or not 0 <= sizes[name] < 1 << 63:
                raise InputError(f"the boundary lacks the size {name}, or it is no size: {sizes.get(name)!r}")
        return [sizes[name] for name in names] or None


def for_file(home: Served[Any, Any], variants: Variants[Any], prove: str | None) -> list[_save.PlanEntry]:
    """The plans of a regime for a file, and those of regimes that differ in which inputs are one tensor, where the
    forward asks."""

    def usual(other: Variants[Any]) -> Regime:
        return other.regime._replace(inputs=None, same=None)

    every = [variants, *(w for w in list(home.regimes.values()) if w is not variants and usual(w) == usual(variants))]
    return [e for w in every for p in w.all if w is variants or p.main.source.modules.strict for e in p.entries(prove)]

"""Plan: a captured forward that can be called like the model, read as text, and cut."""

from __future__ import annotations

import contextlib
import functools
import hashlib
import inspect
import os
import threading
import time
from collections.abc import Callable, Hashable, Mapping, Sequence
from pathlib import Path
from textwrap import indent
from typing import Any, NamedTuple

import torch
from torch._C import _functorch

from . import _hooks, _native, _report, _save, _show, _tree, progress
from ._capture import (
    Arguments,
    Capture,
    Captured,
    each,
    grad_mode,
    own_copy,
    parameter_names,
    probes,
    recycling,
    same_inputs,
    take_apart,
)
from ._capture import eager as eager_code
from ._dims import DynamicDims, SizeSpec, read_size, warn_of_images
from ._dispatch import Regime, Served, Variants
from ._how import How, read_how
from ._log import logger
from ._sizes import Sized, found_sizes
from ._state import RandomState, Target, fingerprint
from .errors import ArgumentError, CaptureError, CleaveError, GuardError, InputError, LayoutError
from .optimize import LEVELS, Optimize
from .visualization import Drawable, Subject

log = logger("capture")

REPEATS = 3  # of eager, to see whether it gives the same numbers each time
SPREADS, WORST = 10, 0.02  # as far from eager as this many times eager from itself, and of the largest number


def plan_signature(captured: Captured, origin: str) -> str:
    """A short name for a plan: equal for equal plans. Constants are no part of the text: where there are any, plans
    made at other sizes (`origin`) may differ in them alone."""
    text: str = captured.plan.identity()
    if captured.plan.has_constants():
        text += origin
    return hashlib.sha256(text.encode("utf-8", "surrogateescape")).hexdigest()[:16]


DEFAULT = How()
PLAN_MODES = ("generated_eager", "cuda_graph")


class Node(NamedTuple):
    """One operator of a plan."""

    name: str
    op: str
    module_path: str
    module_class: str
    source: str | None
    guarded: bool
    text: str


class Program:
    """A part of a captured plan, bound to the model's live tensors. (What Segment and GraphView fall back to.)"""

    active_backend = "tape"
    fallback_reason: str | None = None

    def __init__(
        self,
        captured: Captured,
        first: int,
        end: int,
        how: How = DEFAULT,
        *,
        debug: bool = False,
        inference: bool = False,
    ) -> None:
        level = LEVELS.index(how.optimize.level)
        where = (captured.plan, first, end, debug, inference, captured.state, captured.modules)
        runs = (level, list(how.optimize.off), how.graph, how.threads, False, how.native)
        self.native = _native.Program(*where, [], *runs)
        if how.native:
            self.active_backend = "native"
        self.threads = how.threads
        self.run: Callable[..., tuple[Any, ...]] = self.native.run
        # Where the last tensors of a run belong: module tensors that this part of the forward re-binds.
        self.rebinds = [captured.state[name] for name in self.native.rebinds()]

    def settle(self, leaves: Sequence[torch.Tensor]) -> bool:
        """Has the fastest way chosen, on these inputs; False: there is nothing to choose."""
        if not self.native.ask():
            return False
        with torch.no_grad():
            self.run(leaves)
        return True

    def optimizations(self) -> str:
        """What passes did, in lines."""
        found = self.native.optimizations()
        return found[0] if found else "as captured\n"


class Ready:
    """A whole plan, ready to run."""

    signature = ""
    plans: Variant

    def __init__(self, captured: Captured, how: How = DEFAULT) -> None:
        self.captured = self.source = captured
        nodes = captured.plan.node_count()
        self.program = Program(captured, 0, nodes, how)
        if how.native:
            self.program.native.ask()  # the first run is compared with the tape's
        self.run = self.program.run
        if how.graph:
            from ._cuda_graph import GraphView

            self.run = GraphView(captured, 0, nodes, inference=False, program=self.program).run

    def __call__(self, leaves: Sequence[torch.Tensor]) -> Any:
        return finish(self.captured, self.program.rebinds, self.run(leaves))


class Variant:
    """One set of values at guards, in one grad mode and layout of the inputs: plans for the sizes of an example, or for
    many, recorded when they are needed."""

    siblings: Variants[Variant]

    def __init__(
        self,
        home: Served[Variant, Ready],
        target: Target,
        main: Ready,
        sized: Sized | None,
        example: Arguments | None,
        how: How,
    ) -> None:
        """example: what other sizes are made of."""
        self.home, self.target, self.main, self.sized, self.example, self.how = home, target, main, sized, example, how

    def obtain(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Ready:
        """The plan for these inputs; sizes that were never seen are recorded first."""
        sized = self.sized
        if sized is None:
            return self.main
        arguments = take_apart(self.target, args, kwargs)
        sized.check_model()
        sized.check_inputs(arguments)
        captured = sized.obtain(arguments, sized.sizes_of(arguments.leaves))
        found = next((v for v in self.home.of(self) if v.source is captured), None)
        if found is None:
            found = Ready(captured, self.how)
            found.program.settle(arguments.leaves)
        return found

    def see(self, sizes: Mapping[str, int]) -> None:
        """Records these sizes, and those of the example for symbols that are not among them."""
        sized, example = self.sized, self.example
        if sized is None or example is None:
            return
        point = tuple({**sized.named(sized.example), **sizes}.values())
        sized.check_range(example.names, point)
        arguments = sized.resized(example, point)
        with torch.set_grad_enabled(self.siblings.regime.grad), self.home.dispatch:
            self.home.put(self, self.obtain(*arguments.rebuild(arguments.leaves)))

    def proven(self) -> list[Captured]:
        """The plans that are proven for some size, the first one first."""
        plans = [] if self.sized is None else self.sized.proven_plans
        return [self.main.source, *(c for c in plans if c is not self.main.source)]

    def entries(self, prove: str) -> list[_save.PlanEntry]:
        """The plans for a file."""
        sized, example = self.sized, self.example
        if sized is not None and example is not None:
            _save.prove(sized, lambda point: sized.obtain(sized.resized(example, point), point), prove)
        origins = [(c, "" if sized is None else sized.origin(c)) for c in self.proven()]
        return [_save.entry(sized, c, c, plan_signature(c, origin), None) for c, origin in origins]


def keep(places: Sequence[tuple[Any, Any]], out: tuple[Any, ...]) -> tuple[Any, ...]:
    """Puts the last tensors of a run into the model; gives the others."""
    n = len(out) - len(places)
    for (holder, key), value in zip(places, out[n:], strict=True):
        holder[key] = value
    return out[:n]


def finish(captured: Captured, rebinds: Sequence[tuple[Any, Any]], out: tuple[Any, ...]) -> Any:
    """What a run gave, put where it belongs: module tensors and stored ones into the model, the rest as the output."""
    if captured.stores or rebinds:
        out = keep([*captured.stores, *rebinds], out)
    if captured.output is _tree.LEAF:
        return out[0]
    return _tree.unflatten(captured.output, out)


# A call: its arguments by position and by keyword as they were at capture, its tensors, and its plain values where they
# are not those of the capture, or other inputs are None.
Call = tuple[tuple[Any, ...], dict[str, Any], Sequence[torch.Tensor], Hashable]


def runs_eagerly() -> bool:
    """Inside a capture the model's own operators become part of that plan; torch.func has tensors of its own."""
    return _native.recording() or _functorch.peek_interpreter_stack() is not None


class Plan(_show.Shown, Drawable):
    """A captured forward. Call it with inputs like those of the capture to replay it from C.

    >>> import torch, cleave
    >>> net = torch.nn.Sequential(torch.nn.Linear(4, 8), torch.nn.ReLU(), torch.nn.Linear(8, 2)).eval()
    >>> plan = cleave.capture(net, torch.randn(3, 4))
    >>> x = torch.randn(3, 4)
    >>> torch.equal(plan(x), net(x))
    True
    """

    def __init__(
        self,
        target: Target,
        captured: Captured,
        sized: Sized | None = None,
        example: Arguments | None = None,
        how: How = DEFAULT,
    ) -> None:
        self._target = target
        self._how = how
        self._sized = sized
        self._example = example  # what other sizes are made of
        self._served: Served[Variant, Ready] = Served(target.name, how, self._record, not how.graph)
        self._main = captured
        # Regimes are grad modes, and say more where the first plan refuses a call.
        grads = [grad for grad, serves in ((True, captured.with_grad), (False, captured.without_grad)) if serves]
        self._usual = {grad: self._served.variants(Regime(grad)) for grad in grads}
        self._first = self._without_grad = Ready(captured, self._how)
        for grad, variants in self._usual.items():
            ready = self._first if grad is grads[0] else Ready(captured, self._how)
            if not grad:
                self._without_grad = ready
            self._served.add(variants, self._variant(ready, sized, example))
        positional, keyword = captured.arguments.children
        self.collected = target.collected(keyword.keys)
        self._flat = not keyword.children and all(c is _tree.LEAF for c in positional.children)

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        call = self.arrange(args, kwargs)
        if runs_eagerly():
            return self._target.call(*call[0], **call[1])
        return self.serve(call, Ready.__call__)

    def serve(self, call: Call, run: Callable[[Ready, Sequence[torch.Tensor]], Any]) -> Any:
        """What run(ready, leaves) gives, of the plan that serves a call."""
        args, kwargs, leaves, plain = call
        variants = self._usual.get(torch.is_grad_enabled()) if plain is None else None
        try:
            return self._served.serve(variants or self._variants(leaves, plain), (args, kwargs), leaves, run)
        except LayoutError:  # the forward may do something else with this layout: another plan, made on first use
            pass
        same = same_inputs(leaves)
        if self._main.modules.made_of[2] not in (None, same):
            variants = self._served.variants(Regime(torch.is_grad_enabled(), same=tuple(same), plain=plain))
            with contextlib.suppress(LayoutError):
                return self._served.serve(variants, (args, kwargs), leaves, run)
        regime = Regime(torch.is_grad_enabled(), inputs=self._layout(leaves), plain=plain)
        return self._served.serve(self._served.variants(regime), (args, kwargs), leaves, run)

    def serve_live(self, call: Call) -> Any:
        """Runs a call that the first plan refuses (other shapes, dtypes or modes of the modules) with a plan of the
        model as it is now, captured on first use."""
        args, kwargs, leaves, plain = call
        layout = (self._layout(leaves), tuple((t.dtype, t.device) for t in leaves))
        modes = tuple(m.training for _, m in self._target.modules())
        variants = self._served.variants(Regime(torch.is_grad_enabled(), modes, inputs=layout, plain=plain))
        try:
            return self._served.serve(variants, (args, kwargs), leaves, Ready.__call__)
        except InputError:  # the model has changed since
            self._served.drop(variants)
        return self._served.serve(variants, (args, kwargs), leaves, Ready.__call__)

    def _layout(self, leaves: Sequence[torch.Tensor]) -> tuple[Any, ...]:
        layouts = ((t.shape, t.stride(), t.requires_grad) for t in leaves)
        return (*layouts, *same_inputs(leaves), self._trainable())

    def _variants(self, leaves: Sequence[torch.Tensor], plain: Hashable) -> Variants[Variant]:
        """The variants for a call that the first plan does not serve for a reason other than layout."""
        grad = torch.is_grad_enabled()
        other = self._sized is not None and grad not in self._usual  # the formulas are for the other grad mode
        shapes = tuple(t.shape for t in leaves) if other else None
        return self._served.variants(Regime(grad, inputs=shapes, plain=plain))

    def _variant(self, ready: Ready, sized: Sized | None, example: Arguments | None) -> Variant:
        return Variant(self._served, self._target, ready, sized, example, self._how)

    def _record(self, variants: Variants[Variant], args: tuple[Any, ...], kwargs: dict[str, Any]) -> Variant:
        """A variant for a grad mode or layout that the first capture does not serve, or for other data."""
        arguments = take_apart(self._target, args, kwargs)
        regime = variants.regime
        if not variants.all and regime.training is None:
            self._check_first(arguments, regime.plain)
        try:
            return self._variant_for(regime, arguments)
        except Exception as error:
            if regime.plain is not None:
                self.refuse_plain(args, kwargs, error)
            raise

    def refuse_plain(self, args: tuple[Any, ...], kwargs: dict[str, Any], error: Exception) -> None:
        """Says which plain values the model itself does not take; error: what the model raised."""
        if isinstance(error, CleaveError):
            return
        try:
            self.arrange(args, kwargs, plain=False)
        except InputError as problem:
            raise InputError(f"{problem}, and the model does not take it: {error}") from error

    def _variant_for(self, regime: Regime, arguments: Arguments) -> Variant:
        grad, sized, (args, kwargs) = regime.grad, None, arguments.rebuild(arguments.leaves)
        usual = list(self._usual.values()) if regime == Regime(grad) and grad in self._usual else []
        sizes = SizeSpec(None)
        if regime.inputs is None and self._sized is not None and self._example is not None:
            sizes = found_sizes(self._sized, self._example.names, "B", arguments)
        if not sizes.empty:
            sized = capture_sized(self._target, args, kwargs, grad, sizes)
            captured = sized.captured
        else:
            captured = capture_checked(self._target, args, kwargs, grad, both=len(usual) == 2)
        ready = Ready(captured, self._how)
        ready.program.settle(arguments.leaves)
        for other in usual if captured.with_grad and captured.without_grad else ():
            if other.regime != regime:
                self._served.add(other, self._variant(Ready(captured, self._how), sized, arguments))
        return self._variant(ready, sized, arguments)

    def _check_first(self, arguments: Arguments, plain: Hashable) -> None:
        """Shapes and dtypes stay those of the first capture, or in its ranges, whatever the layout."""
        native = self._first.program.native
        with contextlib.suppress(LayoutError):
            native.check_model()
        if plain is not None:
            log.info("%s gets other plain values, for which it is recorded: %s", self._target.name, plain)
            return
        with contextlib.suppress(LayoutError):
            native.check(arguments.leaves)
        if self._sized is not None:
            self._sized.check_inputs(arguments)

    def flatten_inputs(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Sequence[torch.Tensor]:
        """The tensors of a call, after a check that its structure is the captured one."""
        return self.arrange(args, kwargs, plain=False)[2]

    def arrange(self, args: tuple[Any, ...], kwargs: dict[str, Any], plain: bool | None = None) -> Call:
        """A call as it was made at capture, with arguments by position or by keyword and in the same order, and its
        tensors; after a check that its structure is the captured one. plain: but for plain values, and for inputs that
        are None (default: where plans for others may be recorded)."""
        want = self._main.arguments
        flat = self._flat and not kwargs and len(args) == len(want.children[0].children)
        if flat and all(isinstance(a, torch.Tensor) for a in args):
            return args, kwargs, args, None
        if self.collected:
            self._check_keyword_order(kwargs)
        try:
            return self._matched(args, kwargs)
        except InputError:
            again = self._as_captured(args, kwargs)
            if again is None:
                raise
            args, kwargs, left = again
            found = self._with_plain(args, {**kwargs, **left}) if plain is not False and self._served.records else None
            if found is None and left:
                raise
        return found or self._matched(args, kwargs)

    def _check_keyword_order(self, kwargs: dict[str, Any]) -> None:
        """A forward sees the order of the keywords that it takes as **kwargs, and may follow it."""
        captured = self.collected
        given = [k for k in kwargs if k in captured]
        if given != [k for k in captured if k in kwargs]:
            raise InputError(
                f"the forward takes {', '.join(given)} as **kwargs, where it sees their order: it was captured with "
                f"{', '.join(captured)}"
            )

    def _with_plain(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Call | None:
        """A call that differs from the captured one in plain values alone, and in inputs that are None."""
        spec, leaves, _ = _tree.flatten((args, kwargs))
        positional, keyword = self._main.arguments.children
        (given, named), signature = spec.children, self._target.signature()
        known = dict(zip(keyword.keys, keyword.children, strict=True))
        for key in named.keys:  # what the capture left out had its default
            if key not in known and signature is not None:
                known[key] = _tree.flatten(signature.parameters[key].default)[0]
        pairs = [*zip(positional.children, given.children, strict=True)]
        pairs += [(known[key], child) for key, child in zip(named.keys, named.children, strict=True)]
        parts: list[Any] = list(named.keys)
        if not all(_tree.plain_parts(want, got, parts) for want, got in pairs):
            return None
        mine: list[Any] = list(keyword.keys)
        for want in (*positional.children, *keyword.children):
            _tree.plain_parts(want, want, mine)
        return None if parts == mine else (args, kwargs, leaves, tuple(parts))

    def _matched(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Call:
        order = [k for k in self._main.arguments.children[1].keys if k in kwargs]
        kwargs = {k: kwargs[k] for k in [*order, *(k for k in kwargs if k not in order)]}
        spec, leaves, _ = _tree.flatten((args, kwargs))
        names = parameter_names(self._target, max(len(args), len(self._main.arguments.children[0].children)))
        _tree.match_call(self._main.arguments, spec, names)
        return args, kwargs, leaves, None

    def _as_captured(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> tuple[Any, Any, dict[str, Any]] | None:
        """The same call with arguments by position or by keyword as they were at capture, and further ones that had
        their default then."""
        signature = self._target.signature()
        if signature is None:
            return None
        try:
            given = signature.bind(*args, **kwargs).arguments
        except TypeError:
            return None
        positional, keyword = self._main.arguments.children
        names = list(signature.parameters)[: len(positional.children)]
        wanted = [*names, *keyword.keys]
        left = {k: v for k, v in given.items() if k not in wanted}
        for k in wanted:  # what is left out has its default
            if k in signature.parameters and signature.parameters[k].default is not inspect.Parameter.empty:
                given.setdefault(k, signature.parameters[k].default)
        if any(k not in given for k in wanted):
            return None
        left = {k: v for k, v in left.items() if not _tree.is_default(v, signature.parameters[k].default)}
        if any(signature.parameters[k].default is inspect.Parameter.empty for k in left):
            return None
        return tuple(given[k] for k in names), {k: given[k] for k in keyword.keys}, left

    def _trainable(self) -> tuple[bool, ...]:
        return tuple(t.tensor.requires_grad for t in self._target.tensors())

    @property
    def text(self) -> str:
        """The plan's text form (docs/plan-format.md)."""
        text: str = self._main.plan.text()
        return text

    @property
    def nodes(self) -> list[Node]:
        """The operators, in order."""
        return [Node(*n) for n in self._main.plan.nodes()]

    def optimizations(self) -> str:
        """What was done to run it faster without grad, in lines: passes, measured times, what runs."""
        return self._without_grad.program.optimizations()

    @property
    def guards(self) -> list[Node]:
        """The operators whose results depend on data in a way that replay must check."""
        return [n for n in self.nodes if n.guarded]

    def inspect(self) -> str:
        """A page about the plan: inputs, outputs, parameters, operators, guards, what was done to run it faster."""
        page: str = self._main.plan.inspect()
        return f"{page}\nOptimized\n{indent(self.optimizations(), '  ')}"

    def report(
        self,
        path: str | os.PathLike[str] = "report.html",
        *,
        title: str | None = None,
        sizes: Mapping[str, int] | None = None,
        boundary: str | None = None,
        bandwidth: float = 0.0,
        prefix_speed: float = 0.0,
        suffix_speed: float = 0.0,
    ) -> Path:
        """Writes the plan as one HTML file to look at (docs/report.md), and says where it is.

        The graph of modules, every place to cut and what it costs, the latency of each over a link. The other arguments
        are what the page opens with: sizes of symbols, the cut that is marked, bytes and operations per second.

        >>> import torch, cleave
        >>> net = torch.nn.Sequential(torch.nn.Linear(4, 8), torch.nn.ReLU(), torch.nn.Linear(8, 2))
        >>> cleave.capture(net, torch.randn(3, 4)).report("net.html", boundary="after:0", bandwidth=1e6).name
        'net.html'
        """
        plan, at = self._main.plan, None
        if boundary is not None:
            at = plan.choose(boundary, {}, None if sizes is None else dict(sizes))
        return _report.write(plan, path, title, sizes, _report.Link(bandwidth, prefix_speed, suffix_speed), at)

    def prepare_sizes(self, *sizes: int | Mapping[str, int]) -> None:
        """Records these sizes now, not when they are first used: batch sizes, or {"B": 8, "S": 128}.

        In every mode (with gradients and without) and for all data that was met so far, `variants` included. Symbols
        that are not named keep the size of the example.

        >>> import torch, cleave
        >>> plan = cleave.capture(torch.nn.Linear(4, 2), torch.randn(3, 4), dynamic_batch=(1, 64))
        >>> plan.prepare_sizes(8, 64)
        """
        sized, example = self._sized, self._example
        if sized is None or example is None:
            if sizes:
                raise ArgumentError("this plan is for the sizes of its example alone: dynamic_batch names others")
            return
        here = sized.named(sized.example)
        points = [{**here, **read_size(size, "B", here)} for size in sizes]
        for point in points:
            sized.check_range(example.names, tuple(point.values()))
        sized.check_model()
        steps = [variant.see for variant in self._served.every() if variant.sized is not None]
        for grad in {regime.grad for regime, met in list(self._served.regimes.items()) if met.all} - self._usual.keys():
            steps.append(functools.partial(self._see_alone, grad))
        with progress.task(f"preparing sizes of {self._target.name}", len(steps) * len(points)):
            for see in steps:
                for point in points:
                    progress.step(_show.named_sizes(point), counted=True)
                    see(point)

    def _see_alone(self, grad: bool, sizes: Mapping[str, int]) -> None:
        """The same in a grad mode in which each size has a plan of its own."""
        assert self._sized is not None
        assert self._example is not None
        arguments = self._sized.resized(self._example, tuple(sizes.values()))
        with torch.set_grad_enabled(grad):
            variants = self._variants(arguments.leaves, None)
            inputs = arguments.rebuild(arguments.leaves)
            self._served.serve(variants, inputs, arguments.leaves, lambda ready, leaves: ready)

    def see(self, example: Any) -> None:
        """Records what the forward does on data like this, unless a plan has it already.

        example: a tuple of inputs, or a dict of keyword inputs. The model is left as it was.

        >>> import torch, cleave
        >>> plan = cleave.capture(lambda x: x + 1 if x.sum() > 0 else x - 1, torch.ones(3))
        >>> plan.see(-torch.ones(3))
        >>> plan(torch.tensor([-1.0, -2.0, -3.0]))
        tensor([-2., -3., -4.])
        """
        see(self._target, *as_inputs(example), self)

    def save(
        self,
        path: str | os.PathLike[str],
        *,
        weights: bool = True,
        parts: str = "all",
        boundary: str | None = None,
        prove: str = "auto",
        metadata: Mapping[str, str] | None = None,
    ) -> None:
        """Writes the plan and the weights it reads as one .clv file, which C programs and cleave.load run.

        parts: "prefix" and "suffix" are those of `boundary`, with their own weights only. weights=False leaves out
        parameters and buffers. A file serves only sizes that were recorded: `prove` says whether more of them
        are now: "auto" a few, within a limit of work, "all" of the range, or "none"; one line says what is proven
        (docs/artifact.md). The file is there whole or not at all. A model that changed after the capture is refused, as
        a call would.

        >>> import torch, cleave
        >>> plan = cleave.capture(torch.nn.Linear(4, 2), torch.randn(3, 4), dynamic_batch=(1, 8))
        >>> plan.save("linear.clv")
        >>> cleave.load("linear.clv")(torch.ones(5, 4)).shape
        torch.Size([5, 2])
        """
        self._save(path, prove, part=parts, boundary=boundary, weights=weights, metadata=metadata)

    def _save(self, path: str | os.PathLike[str] | None, prove: str, **options: Any) -> Any:
        """As _save.save."""
        self._served.warn_of_plain()
        entries = [entry for variant in self.every() for entry in variant.entries(prove)]
        head = _save.Head(self._target, _save.batch_name(self._sized), weights=fingerprint(self._target))
        return _save.save(path, head, entries, **options)

    def _whole(self) -> Any:
        """What `save` would write, in memory."""
        return self._save(None, "auto")

    def every(self) -> list[Variant]:
        """All variants: for the example, and for data on which the forward takes another branch."""
        variants = [variant for usual in self._usual.values() for variant in usual.all]
        for regime, other in list(self._served.regimes.items()):
            if regime.same is not None and regime.plain is None and regime.grad in self._usual:
                variants += other.all
        return list({id(variant.main.source): variant for variant in variants}.values())

    def _subject(self) -> Subject:
        plan, sized = self._main.plan, self._sized
        sizes = None
        if sized is not None and self._main.symbols and sized.covers(sized.example):
            sizes = sized.named(sized.example)
        origin = "" if sized is None else sized.origin(self._main)
        return Subject(plan, self._target.name, plan_signature(self._main, origin), sizes, None)

    def __reduce__(self) -> Any:
        raise TypeError(
            "a Plan is bound to its model and cannot be copied or pickled; keep plan.text, or capture again"
        )

    def _shown(self) -> tuple[str, _show.Facts]:
        nodes = _show.plural(self._main.plan.node_count(), "node")
        return f"cleave.Plan of {self._target.name}: {nodes}", _show.plan_facts(self._main.plan, self._sized)


def capture(
    model: Callable[..., Any],
    example_inputs: Any = (),
    example_kwargs: dict[str, Any] | None = None,
    *,
    both_grad_modes: bool | None = None,
    dynamic_batch: tuple[int, int] | None = None,
    dynamic_dims: DynamicDims | None = None,
    dynamic_ranges: Mapping[str, tuple[int, int]] | None = None,
    optimize: str | Optimize = "safe",
    mode: str = "generated_eager",
    engine: str = "auto",
    threads: int | None = None,
    variants: Sequence[Any] = (),
    on_guard: str = "record",
    max_plans: int | None = None,
) -> Plan:
    """Captures the forward of a module or function on example inputs, in the caller's grad mode.

    The model is run a few times on copies of the inputs and is left as it was. The plan is checked against the model
    on other data before it is returned; what cannot be replayed exactly is refused with a CaptureError.

    both_grad_modes: also find out whether the plan serves the other grad mode; by default when grad is enabled. When it
    does not, or was not asked, that mode is captured on the first call in it.

    dynamic_batch, dynamic_dims, dynamic_ranges: sizes that may change, as in SplitSpec.

    optimize: "none", "safe" (the same bits) or "fast" (numbers within a tolerance): what may be rewritten for calls
    without grad (docs/optimize.md).

    mode: "generated_eager" runs the plan from C, operator by operator; "cuda_graph" captures a CUDA graph for each kind
    of input where possible, for calls without grad.

    engine: "tape" runs calls on libtorch; "native" runs those without grad by Cleave's own kernels, on the CPU: within
    the tolerance of "fast", and row-exact (docs/native.md). What it does not take is refused, with node and reason;
    the first run is compared with the tape's. "auto": the tape.

    threads: how many an operator may use; None: as many as the process (docs/optimize.md).

    variants: further examples, each a tuple of inputs or a dict of keyword inputs, on which the forward takes another
    branch because of its data (a mask that is not all ones). Every call finds the plan for its data;
    on_guard="record" records a missing one when a call needs it, "raise" raises the GuardError.

    max_plans: the most plans to keep, for all grad modes, layouts, sizes and variants together; a new one then replaces
    the least recently used (64 by default).

    >>> import torch, cleave
    >>> plan = cleave.capture(lambda x, y: 2 * x + y, (torch.rand(3), torch.rand(3)))
    >>> plan(torch.ones(3), torch.ones(3))
    tensor([3., 3., 3.])
    """
    if mode not in PLAN_MODES:
        raise ValueError(f"mode must be one of {', '.join(PLAN_MODES)}, not {mode!r}")
    target = Target(model)
    how = read_how(mode, optimize, engine, threads, on_guard, max_plans)
    args, kwargs = as_call(example_inputs, example_kwargs)
    grad = torch.is_grad_enabled()
    both = grad if both_grad_modes is None else both_grad_modes
    sizes = SizeSpec(dynamic_batch, "B", dynamic_dims, dynamic_ranges)
    if sizes.empty:
        plan = Plan(target, capture_checked(target, args, kwargs, grad, both), how=how)
    else:
        sized = capture_sized(target, args, kwargs, grad, sizes)
        plan = Plan(target, sized.captured, sized, take_apart(target, args, kwargs), how)
    plan._without_grad.program.settle(plan.flatten_inputs(args, kwargs))
    if plan._sized is not None and plan._example is not None:
        warn_of_images(plan._sized.symbols, plan._example.names)
    see_all(variants, plan.see)
    return plan


def as_inputs(batch: Any) -> tuple[tuple[Any, ...], dict[str, Any]]:
    """An example, or a batch, as positional and keyword inputs: a dict is the latter."""
    return ((), batch) if isinstance(batch, dict) else as_call(batch, None)


def see(target: Target, args: tuple[Any, ...], kwargs: dict[str, Any], call: Callable[..., Any]) -> None:
    """Calls what runs a model on copies of these inputs, and leaves the model as it was."""
    arguments = take_apart(target, args, kwargs)
    args, kwargs = arguments.rebuild(each(arguments.leaves, own_copy))
    work = Capture(target, arguments)
    try:
        call(*args, **kwargs)
    finally:
        work.restore()


def see_all(variants: Any, one: Callable[[Any], None]) -> None:
    """The argument `variants`: further examples, for one after the other."""
    if not isinstance(variants, (list, tuple)):
        raise TypeError(
            "variants is a list of examples, each a tuple of inputs or a dict of keyword inputs, not "
            f"{type(variants).__name__}"
        )
    for i, example in enumerate(variants):
        try:
            one(example)
        except CleaveError as error:
            error.args = (f"variants[{i}]: {error}",)
            raise


def as_call(example_inputs: Any, example_kwargs: dict[str, Any] | None) -> tuple[tuple[Any, ...], dict[str, Any]]:
    """Example inputs as positional and keyword arguments; a single input needs no tuple around it."""
    if isinstance(example_inputs, torch.Tensor) or not isinstance(example_inputs, (tuple, list)):
        example_inputs = (example_inputs,)
    if example_kwargs is not None and not isinstance(example_kwargs, dict):
        raise TypeError(f"example_kwargs is a dict of keyword inputs, not {type(example_kwargs).__name__}")
    return tuple(example_inputs), example_kwargs or {}


def capture_sized(
    target: Target, args: tuple[Any, ...], kwargs: dict[str, Any], grad: bool, sizes: SizeSpec, confirm: bool = True
) -> Sized:
    """Plans for ranges of sizes, each replayed before it is used. confirm=False: the caller replays the first."""
    before, since = RandomState(), time.monotonic()

    def check(captured: Captured, work: Capture, gradients: bool = True) -> None:
        ready = Ready(captured)
        _check_replay(captured, ready, work, grad, gradients)
        if not captured.symbols:  # it was made for these inputs, and for their sizes alone
            check_example(target, captured, work.given, ready.program, ready, grad)

    try:
        with progress.task(f"capturing {target.name}"), recycling():
            arguments = take_apart(target, args, kwargs)
            sized = Sized(target, arguments, grad, sizes, check, confirm)
            serving = sized.proven[sized.example]
            if serving.symbols and (confirm or serving.plan.flows() or asks(serving)):
                ready = Ready(serving)
                try:
                    check_example(target, serving, arguments, ready.program, ready, grad)
                except CaptureError as error:
                    try:
                        sized.set_apart(arguments)
                    except CaptureError:
                        raise error from None
        _log_captured(target, sized.captured, since, sized)
        return sized
    finally:
        before.restore()


def _log_captured(target: Target, captured: Captured, since: float, sized: Sized | None) -> None:
    nodes, seconds = captured.plan.node_count(), time.monotonic() - since
    asks = [Node(*n) for n in captured.plan.nodes() if n[5]]
    if asks:
        where = ", ".join(dict.fromkeys(f"{n.op} at {n.source}" if n.source else n.op for n in asks[:3]))
        more = f" and {len(asks) - 3} more" if len(asks) > 3 else ""
        line = f"{target.name} looks at its data: {where}{more}; each answer gets a plan of its own"
        log.info("%s", line)
        progress.say(line)
    if sized is None:
        log.info("captured %s: %d nodes in %.2f s", target.name, nodes, seconds)
        return
    plans = len(sized.plans)
    log.info("captured %s: %d nodes, plans for sizes: %d, in %.2f s", target.name, nodes, plans, seconds)
    if sized.reason is not None:
        log.info("%s: no formulas, each size gets a plan of its own: %s", target.name, sized.reason)


def capture_checked(target: Target, args: tuple[Any, ...], kwargs: dict[str, Any], grad: bool, both: bool) -> Captured:
    """Captures, and replays on unseen data before the plan is returned."""
    since = time.monotonic()
    work = Capture(target, take_apart(target, args, kwargs), both)
    try:
        with progress.task(f"capturing {target.name}"):
            with recycling():
                captured = work.run(grad)
            with recycling():  # of its own: a replay must not find what records left in memory
                grad = captured.with_grad  # then values are compared too
                ready = Ready(captured)
                _check_replay(captured, ready, work, grad)
                check_example(target, captured, work.given, ready.program, ready, grad)
        _log_captured(target, captured, since, None)
        return captured
    finally:
        work.restore()


def capture_shapes(target: Target, args: tuple[Any, ...], kwargs: dict[str, Any], grad: bool) -> Captured:
    """Captures a model on the meta device, which has shapes but no data, and may be larger than any memory. No replay
    can be compared; the plan is for inspection and estimates."""
    since = time.monotonic()
    work = Capture(target, take_apart(target, args, kwargs, shapes=True), both=grad, shapes=True)
    try:
        with progress.task(f"capturing {target.name}"), recycling():
            captured = work.run(grad)
        _log_captured(target, captured, since, None)
        return captured
    finally:
        work.restore()


_Call = Callable[[Sequence[torch.Tensor]], Any]


def check_call(target: Target, captured: Captured, arguments: Arguments, call: _Call, grad: bool) -> None:
    """Compares whatever else runs a captured forward (stages, halves) with the model."""
    work = Capture(target, arguments)
    try:
        with recycling():
            _check_replay(captured, call, work, grad)
    finally:
        work.restore()


def asks(captured: Captured) -> bool:
    """It has guards: it looks at its data."""
    return "guard" in captured.plan.effects(0, captured.plan.node_count())


def check_example(
    target: Target, captured: Captured, arguments: Arguments, first: Program, call: _Call, grad: bool
) -> None:
    """Makes sure that a plan takes the example it was made from.

    first: the program that gets the inputs and checks them. A plan with guards is also run, twice, because the second
    call finds what the first one left in the modules. Without guards, the replay on other data has shown enough."""
    leaves, second = arguments.leaves, False
    try:
        with contextlib.suppress(LayoutError):  # a layout that is met gets a plan of its own
            first.native.check_run(leaves)
        if not asks(captured):
            return
        progress.step("running the example")
        with Capture(target, arguments).undoing(), grad_mode(grad), eager_code():
            call(each(leaves, own_copy))
            second = True
            call(each(leaves, own_copy))
    except (GuardError, InputError) as error:
        raise CaptureError(_refuses(error, second, bool(captured.symbols))) from None


def _refuses(error: Exception, second: bool, sizes: bool) -> str:
    """What a capture says when its plan does not take its own example. sizes: the plan is for other sizes, too."""
    if not second:
        rows = (
            " Other batch sizes are recorded on rows of the example, for which the answer is another one: give an "
            "example of which all rows lead to it, or dynamic_batch=None."
        )
        return (
            f"the plan refuses the example that it was made from: {error}.{rows if sizes else ''} Where that is a "
            "random draw, as in layers that are skipped at random, capture the model in eval mode, or choose between "
            "tensors with torch.where"
        )
    return (
        f"the plan refuses the example that it was made from on the second call: {error}. The first call changes what "
        "the forward reads there: if only the very first does, run the model once before; else keep it in tensors"
    )


class _Outcome(NamedTuple):
    tensors: list[torch.Tensor]
    spec: _tree.Spec
    gradients: list[torch.Tensor | None] | None  # None: backward raised
    random: torch.Tensor


def _observe(call: _Call, leaves: list[torch.Tensor], params: list[torch.Tensor] | None) -> _Outcome:
    """Runs, and keeps everything that is compared: outputs, gradients, the inputs and the generator afterwards.

    params: parameters whose gradients are compared too, in addition to those of the inputs."""
    spec, out, _ = _tree.flatten(call(leaves))
    gradients: list[torch.Tensor | None] | None = []
    roots = [t for t in out if t.requires_grad and (t.is_floating_point() or t.is_complex())]
    wanted = [t for t in [*leaves, *params] if t.requires_grad] if params is not None else []
    if roots and wanted and torch.is_grad_enabled():
        seeds = [torch.linspace(0.5, 1.5, t.numel(), device=t.device).reshape(t.shape).to(t.dtype) for t in roots]
        try:
            gradients = _hooks.gradients(roots, wanted, seeds)
        except Exception:
            gradients = None
    kept = [t.detach().clone() for t in out] + [t.detach().clone() for t in leaves]
    return _Outcome(kept, spec, gradients, torch.get_rng_state())


def _check_replay(captured: Captured, replay: _Call, work: Capture, grad: bool, gradients: bool = True) -> None:
    """The last net: eager and replay on unseen data from the same state, compared bit for bit, gradients included
    unless those were compared elsewhere.

    When the forward changes the module it runs twice: what the second call sees must be right too."""
    progress.step(f"checking replay {work.at}".rstrip())
    params = [t.tensor for t in work.tensors if t.kind == "param"] if gradients else None

    def eager(leaves: Sequence[torch.Tensor]) -> Any:
        return work.forward(*work.arguments.rebuild(leaves))

    def attempt(call: _Call, data: list[list[torch.Tensor]]) -> list[_Outcome]:
        with work.undoing():
            return [_observe(call, each(leaves, own_copy), params) for leaves in data]

    refused = False
    failure: Exception | None = None
    with grad_mode(grad), eager_code():
        # Guards may refuse all other data; the example itself they let through.
        for leaves in [*probes(work.arguments.leaves), work.arguments.leaves]:
            data = [leaves, work.arguments.leaves] if captured.changes else [leaves]
            try:
                got = attempt(replay, data)  # first: it must not find what eager left in memory
            except GuardError:  # a guard refused the data: right, but nothing to compare
                refused = True
                continue
            except CleaveError as error:
                if isinstance(error, CaptureError):
                    raise
                failure = error
                got = None
            except Exception as error:
                failure = error
                got = None
            try:
                expected = attempt(eager, data)
            except Exception:  # the model does not take this data
                continue
            if got is None:
                raise CaptureError(f"the replay raises where the model does not: {failure}") from None
            for i, (want, have) in enumerate(zip(expected, got, strict=True)):
                problem = _difference(want, have)
                if problem is None:
                    continue
                repeats = [attempt(eager, data)[i] for _ in range(REPEATS)]
                again = next((p for other in repeats if (p := _difference(want, other))), None)
                if again is None:
                    raise CaptureError(_differs(captured, problem, i > 0))
                # Backwards on GPUs add up in any order: then close is all that eager itself gives.
                if _difference(want, have, _spread(want, repeats)) is not None:
                    raise CaptureError(f"the model itself does not repeat its own numbers on the same data: {again}")
            return
    if not refused:
        raise CaptureError("there is no data on which the plan could be compared with the model")


def _differs(captured: Captured, problem: str, second_call: bool) -> str:
    """What a capture says when its plan is not what the model does."""
    kept = ", ".join(captured.changes[:3]) + (", …" if len(captured.changes) > 3 else "")
    return (
        f"the replay differs from the model{' on the second call' if second_call else ''}: {problem}. "
        + (
            f"A call of the forward leaves something behind in {kept}, which the next one reads: give it to the "
            "forward as an argument and return it, or keep it in a buffer that is written in place. Else s"
            if kept
            else "S"
        )
        + "omething in the forward is invisible to PyTorch's operators (memory written through NumPy or storage, state "
        "kept between calls, gradient hooks, global flags)"
    )


def _spread(want: _Outcome, repeats: list[_Outcome]) -> list[float]:
    """How far the gradients of the model's own runs are apart."""
    found = [0.0] * len(want.gradients or ())
    for other in repeats:
        for i, (g, h) in enumerate(zip(want.gradients or (), other.gradients or (), strict=False)):
            if g is not None and h is not None and g.shape == h.shape and g.numel() and g.is_floating_point():
                found[i] = max(found[i], float((g - h).abs().max()))
    return found


def _close(a: torch.Tensor, b: torch.Tensor, spread: float) -> bool:
    """Equal but for what another order of additions makes of it: in one, or in what the model itself was seen to do."""
    if a.shape != b.shape or a.dtype != b.dtype or not a.is_floating_point() or a.layout is not torch.strided:
        return bool(_native.bits_equal(a, b))
    most = float(a.detach().abs().max()) if a.numel() else 0.0
    allowed = max(torch.finfo(a.dtype).eps ** 0.5 * most, min(SPREADS * spread, WORST * most))
    return torch.allclose(a, b, rtol=0.0, atol=allowed, equal_nan=True)


def _difference(a: _Outcome, b: _Outcome, spread: list[float] | None = None) -> str | None:
    """What differs, in words; spread: gradients need only be close."""
    found = _tree.difference(a.spec, b.spec, "the output")
    if found:
        return found
    for i, (x, y) in enumerate(zip(a.tensors, b.tensors, strict=True)):
        if not _native.bits_equal(x, y):
            return f"tensor {i} of outputs and inputs has other values"
    if a.gradients is None:
        return None  # eager itself has no gradients to compare with
    if b.gradients is None or len(a.gradients) != len(b.gradients):
        return "other outputs require grad, or backward raises"
    for i, (g, h) in enumerate(zip(a.gradients, b.gradients, strict=True)):
        if g is None and h is None:
            continue
        if g is None or h is None or not (_native.bits_equal(g, h) if spread is None else _close(g, h, spread[i])):
            return f"gradient {i} of inputs and parameters differs"
    if threading.active_count() == 1 and not torch.equal(a.random, b.random):
        return "the random generator is left in another state"
    return None

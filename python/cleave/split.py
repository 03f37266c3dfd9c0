"""A model cut in two, the prefix here and the suffix there: for inference and for training.

>>> import torch, cleave
>>> net = torch.nn.Sequential(torch.nn.Linear(4, 8), torch.nn.ReLU(), torch.nn.Linear(8, 2)).eval()
>>> x = torch.randn(3, 4)
>>> runtime = cleave.prepare_split(net, example_inputs=(x,), split=cleave.SplitSpec(boundary="50%"))
>>> boundary = runtime.run_prefix(x)
>>> torch.equal(runtime.run_suffix(boundary), net(x))
True
"""

from __future__ import annotations

import contextlib
import dataclasses
import functools
import os
from collections.abc import Callable, Generator, Hashable, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from textwrap import indent
from typing import Any, NamedTuple, TypeVar

import torch
from torch import nn

from . import _native, _report, _save, _show, _step, _train, _transfer, _tree, progress, training
from ._capture import Capture, each, own_copy, take_apart
from ._cut import Cut, Cuts, Halves, Wanted
from ._dims import read_size
from ._dispatch import Served, Variants
from ._how import How, read_how
from ._objective import read as read_objective
from ._regime import Reader, for_file
from ._sizes import Sized
from ._state import Target, fingerprint
from .errors import GuardError, InputError, SplitError
from .optimize import Optimize
from .payload import BoundaryPayload, Compress, Device, boundary_facts, read_device
from .plan import Call, Plan, as_call, as_inputs, finish, see, see_all
from .remote import RemoteSplit, connect
from .spec import SplitLatency, SplitSpec
from .visualization import Drawable, Subject

MODES = ("generated_eager", "debug_interpreter", "compiled", "cuda_graph")
VALIDATIONS = ("fast", "strict")

R = TypeVar("R")


Optimizer = torch.optim.Optimizer | Sequence[torch.optim.Optimizer] | None


class RuntimeCacheKey(NamedTuple):
    """What tells one prepared split from another. No concrete batch size is in it."""

    split_id: str
    graph_signature: str
    boundary: str
    batch_symbol: str
    dynamic_batch: tuple[int, int] | None
    mode: str


def _itself(cut: Cut, leaves: Sequence[torch.Tensor]) -> Cut:
    return cut


def _run_prefix(cut: Cut, leaves: Sequence[torch.Tensor]) -> tuple[Cut, tuple[torch.Tensor, ...]]:
    return cut, cut.run_prefix(leaves)


def _is_under_way(begun: tuple[BoundaryPayload, _transfer.Transfer]) -> bool:
    return bool(begun[1].arrived)


def _arrived(begun: tuple[BoundaryPayload, _transfer.Transfer]) -> BoundaryPayload:
    """The boundary where it went to."""
    boundary, transfer = begun
    return dataclasses.replace(boundary, tensors=dict(zip(boundary.tensors, transfer.finish(), strict=True)))


class SplitRuntime(_show.Shown, Drawable):
    """A model cut in two. Made by prepare_split.

    run_prefix and run_suffix are for inference: what they give carries no gradients. run_training_prefix, train_suffix
    and backward_prefix train both halves, with the gradients of the whole model bit for bit.

    What the model does in another mode (train or eval, other dtypes, other parameters trainable) is captured when it is
    first asked for; so is a batch size that was not recorded when the split was prepared."""

    def __init__(self, model: Callable[..., Any], example: tuple[Any, Any], want: Wanted, validation: str) -> None:
        self.split_spec = want.spec
        self.objective = want.objective
        self.validation = validation
        self.mode = want.mode
        self._want = want
        self._model = model
        self._target = Target(model)
        self._reader = Reader(self._target)
        self._example = example
        self._served: Served[Cuts, Cut] = Served(
            self._target.name, want.how, self._capture, want.mode not in ("compiled", "cuda_graph")
        )
        self._half: str | None = None  # the only half whose parameters are still here
        self._refused: Cuts | None = None  # whose suffix met other data: a new variant is to take its boundary
        self._steps = _step.Steps(self._target)
        self._tied: Cut | None = None  # the last that trained parameters of both halves for a prefix elsewhere
        self._awaiting: list[str] = []  # tied parameters whose step waits for the prefix, which is elsewhere
        leaves = take_apart(self._target, *example).leaves
        self._inference = self._variants(leaves, grad=False)
        self._served.add(self._inference, self._capture(self._inference, *example))
        first = self._first = self._inference.all[0]
        self.trace_plan = Plan(first.target, first.captured, first.sized, how=How(records=want.how.records))
        self.candidate, self.candidates = first.main.candidate, first.main.candidates
        self.graph_signature = first.main.signature
        self.split_id = f"{self.graph_signature}-{self.candidate.position}"
        progress.step("reading the weights")
        self.refresh_weights()

    # ---- which plan serves a call

    def _variants(self, leaves: Sequence[torch.Tensor], grad: bool, plain: Hashable = None) -> Variants[Cuts]:
        """Those of the model as it is now."""
        return self._served.variants(self._reader.regime(leaves, grad, plain))

    def _capture(self, variants: Variants[Cuts], args: tuple[Any, ...], kwargs: dict[str, Any]) -> Cuts:
        """Captures the model as it is, and cuts it where the first plan is cut."""
        first, regime = self._refused or (self._first if self._served.dispatch.list() else None), variants.regime
        leaves = take_apart(self._target, args, kwargs).leaves
        if first is not None and not variants.all and regime.plain is None:
            first.check_shapes(leaves)  # before the model is run on them
        if self._half is not None:
            raise InputError(
                f"this runtime holds only the {self._half}, and the model would have to run as a whole to see what it "
                "does in this mode: use the mode once before keep_only"
            )
        try:
            with contextlib.nullcontext() if first is None else first.explaining(leaves):
                return Cuts(self._served, Target(self._model), (args, kwargs), self._want, regime, first)
        except Exception as error:  # also what the model itself raises
            if regime.plain is not None:
                self.trace_plan.refuse_plain(args, kwargs, error)
            other = first.other_dtype(leaves) if first is not None else None
            if other is None:
                raise
            raise InputError(f"{other}, and the model does not take it: {error}") from error

    def _cut_for(self, variants: Variants[Cuts], inputs: tuple[Any, Any] | None = None) -> Cut:
        """The plan that serves inputs, by default the example, which is captured if need be."""
        args, kwargs = inputs or self._example
        return self._served.serve(variants, (args, kwargs), take_apart(self._target, args, kwargs).leaves, _itself)

    def _other_variants(
        self, leaves: Sequence[torch.Tensor], variants: Variants[Cuts], grad: bool, plain: Hashable = None
    ) -> Variants[Cuts] | None:
        """After a refusal: the variants for the model as it is now; None: it has not changed since these."""
        self._reader.refresh()
        other = self._variants(leaves, grad, plain)
        return None if other.regime == variants.regime else other

    def _as_it_is(self) -> Variants[Cuts]:
        """The variants for inference in the model's current mode; raises what a call would if the model has changed."""
        try:
            self._inference.all[0].main.check_model()
        except InputError:
            other = self._other_variants(take_apart(self._target, *self._example).leaves, self._inference, grad=False)
            if other is None:
                raise
            self._cut_for(other).check_model()
            self._inference = other
        return self._inference

    def _named(self, boundary: BoundaryPayload) -> Cut:
        """The cut whose plan made this boundary."""
        name, grad = boundary.graph_signature, boundary.supports_prefix_backward
        known = self._served.dispatch.named(name)
        if not known:
            cuts = self._cut_for(self._variants(take_apart(self._target, *self._example).leaves, grad)).plans
            if self._half is None:
                cuts.see(boundary.sizes)
            known = self._served.dispatch.named(name)
        if not known:
            raise InputError(
                f"this boundary (batch {boundary.batch_size}) was made by a plan that this runtime does not have: the "
                "prefix ran in another mode (train or eval), with other plain values, dtypes or trainable parameters, "
                "or with another version of the model or of torch; or the plan gave way to newer ones (max_plans)"
            )
        # Plans of two regimes may be equal: rather the one of the right grad mode.
        cut: Cut = next((c for c in known if c.plans.regime.grad == grad), known[0])
        return cut

    # ---- inference

    @property
    def batch_range(self) -> tuple[int, int] | None:
        """The batch sizes it was prepared for; None: the example's alone."""
        symbols = self._first.sized.symbols if self._first.sized is not None else ()
        return next(((s.low, s.high) for s in symbols if s.is_batch), None)

    @property
    def variants(self) -> list[str]:
        """The plans behind this runtime and the batch sizes each is proven for."""
        out = list(self._first.variants)
        for cuts in self._served.every():
            if cuts is self._first:
                continue
            mode = "training" if cuts.regime.grad else "another mode of the model"
            if cuts.regime == self._first.regime:
                mode = "other data"
            out.extend(f"{mode}: {text}" for text in cuts.variants)
        return out

    def prepare_sizes(self, *sizes: int | Mapping[str, int], training: bool | None = None) -> None:
        """Records these sizes now, not when they are first used: batch sizes, or {"B": 8, "S": 128}.

        In all modes (train and eval too) and for all data that were met so far. For a service that must not wait later,
        and before keep_only, which leaves no whole model to record. training: record training too; by default if the
        split is trainable."""
        leaves = take_apart(self._target, *self._example).leaves
        here = self._first.sizes_of(leaves)
        points = [{**here, **read_size(size, self.split_spec.batch_symbol, here)} for size in sizes]
        train = self.split_spec.trainable if training is None else training
        grads = (False, True) if train else (False,)
        for grad in grads:
            self._cut_for(self._variants(leaves, grad))
        every = [cuts for cuts in self._served.every() if cuts.regime.grad in grads and self._reader.fits(cuts.regime)]
        with progress.task(f"preparing sizes of {self._target.name}", len(every) * len(points)):
            for cuts in every:
                with self._reader.in_mode(cuts.regime):
                    for point in points:
                        progress.step(_show.named_sizes(point), counted=True)
                        cuts.see(point)

    def see(self, example: Any) -> None:
        """Records what the forward does on data like this, if it takes another branch than on the example and no plan
        has it yet. example: a tuple of inputs, or a dict of keyword inputs.

        Training is recorded too if the split is trainable. The model is left as it was."""
        modes = (False, True) if self.split_spec.trainable else (False,)
        for grad in modes:
            self._cut_for(self._variants(take_apart(self._target, *self._example).leaves, grad))
            see(self._target, *as_inputs(example), functools.partial(self._see, grad))

    def _see(self, grad: bool, *args: Any, **kwargs: Any) -> Any:
        """Both halves on inputs of one call, without a boundary; gives the model's output."""
        call = self.trace_plan.arrange(args, kwargs)
        with torch.set_grad_enabled(grad):
            cut, tensors = self.prefix_tensors(call, grad)
            sizes = cut.plans.sizes_of(call[2])
            given = dict(zip(cut.labels, tensors, strict=True))
            return self.suffix_by(
                cut, sizes, lambda c: c.run_suffix(c.in_order(given), c.plans.symbols(c, sizes)), call[:2]
            )

    def explore(self, *inputs: Any, seconds: float = 10.0, **kwargs: Any) -> list[str]:
        """Looks for branches on the sizes between those that were seen, and records the model on both sides of each.

        A shape-only pass lists the conditions that the forward asks about; the answer is one line for each, with what
        the records at both sides say. Nothing is trusted because of it: it is for knowing earlier. The pass runs the
        model on tensors without data; a model that keeps tensors in global caches would keep such ones."""
        cuts = self._inference.all[0]
        if cuts.sized is None:
            return []
        inputs, kwargs, _, _ = self.trace_plan.arrange(inputs, kwargs, plain=False)
        with torch.no_grad(), progress.task(f"exploring {self._target.name}"):
            return cuts.sized.explore(take_apart(self._target, inputs, kwargs), seconds)

    @property
    def latency(self) -> SplitLatency | None:
        """Seconds by the objective's formula, cut and not cut; None: it names no bandwidth."""
        return self._first.main.latency

    @property
    def main_cut(self) -> Cut:
        """The plan of the example's mode and sizes, cut."""
        return self._first.main

    @property
    def sized(self) -> Sized | None:
        """What is known about sizes; None: only the example's are served."""
        return self._inference.all[0].sized

    @property
    def segments(self) -> Halves:
        """What runs prefix and suffix."""
        return self._inference.all[0].main.halves

    @property
    def active_backend(self) -> str:
        """What runs the halves now: "tape", "inductor fullgraph", "cuda graph", …; both, where they differ."""
        return self.segments.active_backend

    @property
    def fallback_reason(self) -> str | None:
        """Why something else runs the halves than the mode asks for; None: nothing else does."""
        return self.segments.fallback_reason

    def optimizations(self) -> str:
        """What was done to run the halves faster for inference, in lines: passes, measured times, what runs."""
        cut = self._inference.all[0].main
        return "".join(
            f"{half}\n{indent(p.optimizations(), '  ')}" for half, p in (("prefix", cut.prefix), ("suffix", cut.suffix))
        )

    def source(self, half: str) -> str:
        """A half ("prefix" or "suffix") as Python: a plain nn.Module that runs by itself.

        >>> import torch, cleave
        >>> spec = cleave.SplitSpec(boundary="after:0")
        >>> net = torch.nn.Sequential(torch.nn.Linear(4, 8), torch.nn.ReLU())
        >>> print(cleave.prepare_split(net, example_inputs=torch.randn(3, 4), split=spec).source("suffix"))
        """
        self.state(half)
        cut = self._first.main
        cut.check_model()
        at, end = cut.cut_at, cut.captured.plan.node_count()
        part, checks = ((0, at) if half == "prefix" else (at, end)), cut.captured.modules
        text: str = cut.captured.plan.source(*part, half.capitalize(), checks=checks)
        return text

    def report(
        self,
        path: str | os.PathLike[str] = "report.html",
        *,
        title: str | None = None,
        sizes: Mapping[str, int] | None = None,
        bandwidth: float | None = None,
        prefix_speed: float | None = None,
        suffix_speed: float | None = None,
    ) -> Path:
        """Writes the plan with its cut as one HTML file to look at (docs/report.md), and says where it is.

        It opens with the sizes at which the cut was chosen, and with the bandwidth and speeds of the objective, unless
        others are given.

        >>> import torch, cleave
        >>> spec = cleave.SplitSpec(boundary="after:0")
        >>> net = torch.nn.Sequential(torch.nn.Linear(4, 8), torch.nn.ReLU())
        >>> cleave.prepare_split(net, example_inputs=torch.randn(3, 4), split=spec).report("split.html").name
        'split.html'
        """
        cut, goal = self._first.main, self.objective.fields
        asked = (bandwidth, prefix_speed, suffix_speed)
        names = ("bandwidth_bytes_per_s", "prefix_flops_per_s", "suffix_flops_per_s")
        link = _report.Link(*(goal.get(n, 0.0) if x is None else x for n, x in zip(names, asked, strict=True)))
        at = cut.sizes if sizes is None else {**(cut.sizes or {}), **sizes}
        return _report.write(cut.captured.plan, path, title, at, link, cut.candidate.position)

    def _subject(self) -> Subject:
        cut = self._first.main
        return Subject(cut.captured.plan, self._target.name, cut.signature, cut.sizes, cut.candidate.position)

    @property
    def cache_key(self) -> RuntimeCacheKey:
        """What tells this split from others."""
        spec = self.split_spec
        return RuntimeCacheKey(
            self.split_id, self.graph_signature, spec.boundary, spec.batch_symbol, spec.dynamic_batch, self.mode
        )

    def run_prefix(self, *inputs: Any, **kwargs: Any) -> BoundaryPayload:
        """Runs the model up to the boundary."""
        call = self.trace_plan.arrange(inputs, kwargs)
        cut, tensors = self.prefix_tensors(call)
        return self._payload(cut, call, dict(zip(cut.labels, tensors, strict=True)), None)

    def prefix_tensors(self, call: Call, grad: bool = False) -> tuple[Cut, tuple[torch.Tensor, ...]]:
        """Runs the prefix: what crosses, in the order of the cut's labels."""
        self._need("prefix")
        args, kwargs, leaves, plain = call
        # Inference finds out by running that the model is another one; training also depends on what the suffix trains.
        usual = not grad and plain is None
        variants = self._inference if usual else self._variants(leaves, grad, plain)
        try:
            return self._prefix_by(variants, (args, kwargs), leaves)
        except InputError:
            other = self._other_variants(leaves, variants, grad, plain)
            if other is None:
                if variants.all:
                    variants.all[0].explain(args, kwargs)
                raise
        out = self._prefix_by(other, (args, kwargs), leaves)
        if usual:
            self._inference = other
        return out

    def _prefix_by(
        self, variants: Variants[Cuts], inputs: tuple[Any, Any], leaves: Sequence[torch.Tensor]
    ) -> tuple[Cut, tuple[torch.Tensor, ...]]:
        """Runs a prefix whose guards do not refuse the data; those that leave guards to their suffix come later."""
        in_order = not all(cuts.main.guards_early and not cuts.main.guards_late for cuts in variants.all)
        return self._served.serve(variants, inputs, leaves, _run_prefix, in_order=in_order)

    def suffix_by(
        self, cut: Cut, sizes: Mapping[str, int], run: Callable[[Cut], R], inputs: tuple[Any, Any] | None = None
    ) -> R:
        """Runs the suffix that a boundary is for; if a guard refuses its data, that of a variant which is the same up
        to the boundary. inputs: of the prefix, if known: then a missing variant can be recorded."""
        at, found = cut.cut_at, None

        def by(other: Cut) -> R:
            nonlocal found
            if found is not None:
                self._check_same(cut, other, at, sizes, found)
            try:
                return run(other)
            except GuardError as error:
                found = found or error
                raise

        def miss(*call: Any) -> Cut | None:
            self._refused = cut.plans
            try:
                return self._served.miss(*call)
            finally:
                self._refused = None

        variants, point = cut.plans.siblings, cut.plans.point_of(sizes)
        alone = inputs is None or self._half is not None
        try:
            out: R = self._served.dispatch.serve(variants, point, cut, False, by, None if alone else miss, inputs)
            return out
        except GuardError as error:
            if alone and error is found and error.undone:
                error.args = (
                    f"{error}. The suffix alone cannot record what the model does on such data: give prepare_split an "
                    "example of it (variants=[…])",
                )
            raise

    @staticmethod
    def _check_same(cut: Cut, other: Cut, at: int, sizes: Mapping[str, int], found: GuardError) -> None:
        """Raises unless another plan takes a boundary that the suffix of this one refused."""
        if other.cut_at != at or not cut.captured.plan.same_until(other.captured.plan, at, dict(sizes)):
            raise found
        if not set(other.labels) <= set(cut.labels):
            crossing = f"{', '.join(other.labels)} instead of {', '.join(cut.labels)}"
            raise GuardError(
                f"{found}. On such data the suffix needs other tensors of the prefix ({crossing}), which has run by "
                "then: cut before the prefix makes them, or after the model has looked at its data"
            )

    def _payload(
        self,
        cut: Cut,
        call: Call,
        tensors: dict[str, torch.Tensor],
        record: _train.Record | None,
    ) -> BoundaryPayload:
        sizes = cut.plans.sizes_of(call[2])
        return BoundaryPayload(
            split_id=self.split_id,
            graph_signature=cut.signature,
            batch_size=sizes.get(self.split_spec.batch_symbol),
            tensors=tensors,
            schema=cut.schema,
            requires_grad={label: t.requires_grad for label, t in tensors.items()},
            weight_version=self.weight_version,
            passthrough_inputs=cut.passthrough,
            supports_prefix_backward=record is not None,
            sizes=sizes,
            record=record,
            inputs=call[:2] if cut.guards_late else None,
        )

    def run_suffix(self, boundary: BoundaryPayload) -> Any:
        """Runs the rest of the model; what comes back has the type and structure of the model's own output."""
        cut = self._checked(boundary, "run_suffix")
        if self.validation == "strict":
            cut.check_schema(boundary.tensors, boundary.sizes)
        return self.suffix_by(
            cut,
            boundary.sizes,
            lambda c: c.run_suffix(c.in_order(boundary.tensors), c.plans.symbols(c, boundary.sizes)),
            boundary.inputs,
        )

    def remote(
        self,
        url: str,
        *,
        compress: Compress = None,
        fallback: bool | Callable[[BoundaryPayload], Any] = True,
        **options: Any,
    ) -> RemoteSplit:
        """This split with its suffix on a server: the prefix runs here, the rest at url, as remote.connect takes it.

        compress: how boundaries are sent. fallback: what runs the rest while the server is away: the suffix here, or
        another function of a boundary; False: RemoteError is raised. options: those of remote.connect. The server is
        asked at the first call."""
        there = connect(url, **{"lazy": True, **options})
        return RemoteSplit(self, there, compress, self.run_suffix if fallback is True else fallback or None)

    def _outputs_from(self, boundary: BoundaryPayload, tensors: Sequence[torch.Tensor]) -> Any:
        """The output of the model, of tensors that a suffix elsewhere gave."""
        cut = self._named(boundary)
        if cut.captured.stores or cut.suffix.rebinds:
            raise InputError("the suffix changes tensors of the model, which are on the server then, not here")
        places = {t.device for t in boundary.tensors.values()}
        if len(places) == 1:
            tensors = [t.to(places.copy().pop()) for t in tensors]
        return finish(cut.captured, (), tuple(tensors))

    def validate_boundary(self, boundary: BoundaryPayload) -> None:
        """Raises the reason why a boundary does not belong to this runtime: whose it is, and every tensor's dtype,
        shape, device and grad flag."""
        cut = self._checked(boundary, "validate_boundary")
        cut.check_schema(boundary.tensors, boundary.sizes)

    def _checked(self, boundary: BoundaryPayload, caller: str) -> Cut:
        self._need("suffix")
        if not isinstance(boundary, BoundaryPayload):
            raise TypeError(f"{caller} takes the BoundaryPayload of run_prefix, not {type(boundary).__name__}")
        for name, value in (("tensors", boundary.tensors), ("sizes", boundary.sizes)):
            if not isinstance(value, Mapping):
                raise TypeError(f"the {name} of a boundary are a dict, not {type(value).__name__}")
        _native.boundary_check((self.split_id, None, [], None), boundary_facts(boundary))
        if boundary.weight_version != self.weight_version:
            raise InputError(
                f"this boundary was made with weights {boundary.weight_version:x}, this runtime has "
                f"{self.weight_version:x} (after loading other weights on purpose call refresh_weights on both sides)"
            )
        if self._awaiting:
            raise InputError(
                f"{', '.join(self._awaiting)}: both halves train it, and its step is due: call apply_tied with what "
                "backward_prefix returned"
            )
        cut = self._named(boundary)
        cut.plans.check_boundary(cut, boundary)
        return cut

    # ---- many batches

    def run_batches(self, batches: Iterable[Any], *, device: Device = None) -> Iterator[Any]:
        """Runs both halves on one batch after the other: what the model returns for each, in order.

        A batch is a tensor, a tuple of positional inputs, or a dict of keyword inputs. device: every boundary goes
        there first ("cpu": through pinned memory of the host), and from there to where the suffix is. While it does,
        the prefix of the next batch runs, on a GPU: then up to two batches are asked for before their turn. Where
        nothing has to be copied each batch is asked for, and run, when its turn comes. Results are those of run_prefix
        and run_suffix. An error is raised at the place of its batch, and ends the run.

        >>> import torch, cleave
        >>> net = torch.nn.Sequential(torch.nn.Linear(4, 8), torch.nn.ReLU(), torch.nn.Linear(8, 2)).eval()
        >>> spec = cleave.SplitSpec(boundary="50%")
        >>> runtime = cleave.prepare_split(net, example_inputs=torch.randn(3, 4), split=spec)
        >>> [tuple(y.shape) for y in runtime.run_batches(torch.randn(n, 4) for n in (2, 5))]
        [(2, 2), (5, 2)]
        """
        self._need("suffix")
        if device is not None:
            return self._by_way_of(self.run_prefix_batches(batches, device=device))
        self._need("prefix")
        return self._one_by_one(_transfer.check_batches(batches, "batches"))

    def _one_by_one(self, batches: Iterator[Any]) -> Iterator[Any]:
        for batch in batches:
            args, kwargs = as_inputs(batch)
            yield self.run_suffix(self.run_prefix(*args, **kwargs))

    def _by_way_of(self, boundaries: Generator[BoundaryPayload]) -> Iterator[Any]:
        with contextlib.closing(boundaries):
            yield from self._suffixes(boundaries, borrowed=False)

    def run_prefix_batches(self, batches: Iterable[Any], *, device: Device = None) -> Generator[BoundaryPayload]:
        """Runs the prefix on one batch after the other: the boundary of each, in order, on `device` (default: CPU).

        A boundary that comes from a GPU goes through pinned memory, and while it is copied the prefix of the next batch
        runs; so one batch is asked for before its turn. What is given may be kept, and is safe from a caller who fills
        one input with the next batch.

        >>> import torch, cleave
        >>> net = torch.nn.Sequential(torch.nn.Linear(4, 8), torch.nn.ReLU(), torch.nn.Linear(8, 2)).eval()
        >>> spec = cleave.SplitSpec(boundary="after:1")
        >>> runtime = cleave.prepare_split(net, example_inputs=torch.randn(3, 4), split=spec)
        >>> sum(len(b.to_bytes()) > 0 for b in runtime.run_prefix_batches([torch.randn(2, 4), torch.randn(5, 4)]))
        2
        """
        self._need("prefix")
        return self._prefixes(_transfer.check_batches(batches, "batches"), read_device(device))

    def _prefixes(self, batches: Iterator[Any], device: torch.device) -> Generator[BoundaryPayload]:
        lane = _transfer.Lane()

        def begin(batch: Any) -> tuple[BoundaryPayload, _transfer.Transfer]:
            args, kwargs = as_inputs(batch)
            boundary = self.run_prefix(*args, **kwargs)
            tensors = list(boundary.tensors.values())
            given = _tree.flatten((args, kwargs))[1]
            return boundary, lane.start(tensors, [device] * len(tensors), given)

        yield from _transfer.ahead(batches, begin, _is_under_way, _arrived)

    def run_suffix_batches(self, boundaries: Iterable[BoundaryPayload]) -> Iterator[Any]:
        """Runs the suffix on one boundary after the other, from wherever they are: what the model returns, in order.

        A boundary that has to go to a GPU is copied there through pinned memory while the suffix of the one before
        runs; so one boundary is asked for before its turn.

        >>> import torch, cleave
        >>> net = torch.nn.Sequential(torch.nn.Linear(4, 8), torch.nn.ReLU(), torch.nn.Linear(8, 2)).eval()
        >>> spec = cleave.SplitSpec(boundary="after:1")
        >>> runtime = cleave.prepare_split(net, example_inputs=torch.randn(3, 4), split=spec)
        >>> boundaries = runtime.run_prefix_batches([torch.randn(2, 4), torch.randn(5, 4)])
        >>> [tuple(y.shape) for y in runtime.run_suffix_batches(boundaries)]
        [(2, 2), (5, 2)]
        """
        self._need("suffix")
        return self._suffixes(_transfer.check_batches(boundaries, "boundaries"), borrowed=True)

    def _suffixes(self, boundaries: Iterator[BoundaryPayload], borrowed: bool) -> Iterator[Any]:
        """borrowed: whoever makes the boundaries may write into them again when the next is asked for."""
        lane = _transfer.Lane()

        def begin(boundary: BoundaryPayload) -> tuple[BoundaryPayload, _transfer.Transfer]:
            cut = self._checked(boundary, "run_suffix_batches")
            tensors = cut.in_order(boundary.tensors)
            wrong = next((label for label, t in boundary.tensors.items() if not isinstance(t, torch.Tensor)), None)
            if wrong is not None:
                raise TypeError(f"{wrong} of the boundary is a {type(boundary.tensors[wrong]).__name__}, not a tensor")
            places = [read_device(cut.schema[label].device) for label in cut.labels]
            ordered = dataclasses.replace(boundary, tensors=dict(zip(cut.labels, tensors, strict=True)))
            return ordered, lane.start(tensors, places, tensors if borrowed else ())

        def end(begun: tuple[BoundaryPayload, _transfer.Transfer]) -> Any:
            return self.run_suffix(_arrived(begun))

        return _transfer.ahead(boundaries, begin, _is_under_way, end)

    def refresh_weights(self) -> int:
        """After the model got other weights (load_state_dict): a new weight_version, as on every side that got them."""
        if self._half is not None:
            raise InputError(f"this runtime holds only the {self._half}: the weights as a whole cannot be told from it")
        self._weights = fingerprint(self._target)
        self.weight_version = self._weights.version
        return self.weight_version

    # ---- training

    @functools.cached_property
    def _sides(self) -> _step.Sides:
        return _step.Sides(self._first.target, self._first.main)

    def run_training_prefix(self, *inputs: Any, **kwargs: Any) -> BoundaryPayload:
        """Runs the model up to the boundary and keeps the graph for backward_prefix.

        The tensors of the boundary are leaves: what the suffix does with them does not reach the prefix."""
        _train.check_mode()
        call = self.trace_plan.arrange(inputs, kwargs)
        self._steps.begin()
        with torch.enable_grad():
            cut, tensors = self.prefix_tensors(call, grad=True)
        _train.refuse_kept(cut)
        roots = dict(zip(cut.labels, tensors, strict=True))
        record = _train.Record(self, cut, roots, call[2])
        return self._payload(cut, call, _train.detached(roots), record)

    def train_suffix(
        self,
        boundary: BoundaryPayload,
        targets: Any,
        *,
        loss_fn: _train.Loss | None = None,
        optimizer: Optimizer = None,
    ) -> tuple[torch.Tensor, dict[str, torch.Tensor | None]]:
        """Runs the suffix on a training boundary and its backward: the loss, detached, and the boundary's gradients.

        loss_fn(output, targets); by default cross entropy for integer targets, else the mean squared error. Gradients
        of the suffix's parameters add up in .grad; with an optimizer, or several, they are stepped and not counted
        again. What the prefix's backward reaches too waits for it."""
        cut = self._checked(boundary, "train_suffix")
        if not boundary.supports_prefix_backward:
            raise InputError("this boundary was made by run_prefix, for inference: use run_training_prefix")
        if not cut.plans.regime.grad:
            raise InputError("this boundary says that it was made for training, but a plan for inference made it")
        _train.check_mode()
        optimizers = _step.read_optimizers(optimizer)

        def run(c: Cut) -> tuple[torch.Tensor, dict[str, torch.Tensor | None]]:
            symbols, roles = c.plans.symbols(c, boundary.sizes), self._sides.roles(c)
            found = _train.train_suffix(c, roles, boundary, symbols, targets, loss_fn, optimizers, self._steps)
            if boundary.record is None and roles.tied:
                self._tied = c
            if boundary.record is None and optimizers:
                self._awaiting = [f"@{name}" for name in roles.tied]
            return found

        return self.suffix_by(cut, boundary.sizes, run, boundary.inputs)

    def backward_prefix(
        self,
        boundary: BoundaryPayload,
        boundary_grads: Mapping[str, torch.Tensor | None] | None = None,
        *,
        optimizer: Optimizer = None,
    ) -> dict[str, torch.Tensor]:
        """Runs the prefix's backward from the gradients that train_suffix returned (by default those it left with this
        boundary, of each call). Nothing is computed twice: dropout masks are those of the forward.

        Returns the whole gradients of parameters that both halves train when the suffix is in another process (for
        apply_tied there), else nothing."""
        if not isinstance(boundary, BoundaryPayload):
            raise TypeError(
                f"backward_prefix takes the BoundaryPayload of run_training_prefix, not {type(boundary).__name__}"
            )
        record: _train.Record | None = boundary.record
        if not boundary.supports_prefix_backward:
            raise InputError("this boundary was made by run_prefix, for inference: use run_training_prefix")
        if record is None or record.owner is not self:
            raise InputError(
                "this boundary was not made by run_training_prefix of this runtime: its autograd graph is not available"
            )
        if record.used:
            raise InputError("backward_prefix has already used this boundary: its graph is gone")
        if boundary_grads is None and not record.shares:
            raise InputError("boundary_grads is missing, and train_suffix has not seen this boundary")
        if not isinstance(boundary_grads, Mapping | None):
            raise TypeError(f"boundary_grads is a dict of gradients by label, not {type(boundary_grads).__name__}")
        _train.check_mode()
        optimizers = _step.read_optimizers(optimizer)
        roles = self._sides.roles(record.cut)
        return _train.backward_prefix(record, roles, boundary_grads, optimizers, self._steps)

    def apply_tied(self, gradients: Mapping[str, torch.Tensor], *, optimizer: Optimizer = None) -> None:
        """In the process of the suffix: takes over the gradients of parameters that both halves train, as
        backward_prefix returned them, and steps these parameters."""
        if not isinstance(gradients, Mapping):
            raise TypeError(f"apply_tied takes the result of backward_prefix, not {type(gradients).__name__}")
        optimizers = _step.read_optimizers(optimizer)
        if self._tied is None:
            raise InputError("no parameter that both halves train waits for its gradient: train_suffix comes first")
        tied = self._sides.roles(self._tied).tied
        _train.apply_tied(self._tied, tied, gradients, optimizers, self._steps)
        self._awaiting = []

    # ---- halves

    def state(self, half: str) -> dict[str, torch.Tensor]:
        """Parameters and buffers that a half ("prefix" or "suffix") uses, by their state_dict names.

        >>> import torch, cleave
        >>> net = torch.nn.Sequential(torch.nn.Linear(4, 8), torch.nn.ReLU(), torch.nn.Linear(8, 2))
        >>> spec = cleave.SplitSpec(boundary="after:1")
        >>> runtime = cleave.prepare_split(net, example_inputs=torch.randn(3, 4), split=spec)
        >>> sorted(runtime.state("suffix"))
        ['2.bias', '2.weight']
        """
        if half not in ("prefix", "suffix"):
            raise SplitError(f'half is "prefix" or "suffix", not {half!r}')
        return self._first.main.state(half)

    def parameters(self, half: str) -> list[nn.Parameter]:
        """The parameters of a half, for its optimizer: what the forward reads there, at the sizes and in the modes that
        were seen, and what no plan has read so far and belongs to the same part of the model.

        >>> import torch, cleave
        >>> net = torch.nn.Sequential(torch.nn.Linear(4, 8), torch.nn.ReLU(), torch.nn.Linear(8, 2))
        >>> spec = cleave.SplitSpec(boundary="after:1")
        >>> runtime = cleave.prepare_split(net, example_inputs=torch.randn(3, 4), split=spec)
        >>> [tuple(p.shape) for p in runtime.parameters("suffix")]
        [(2, 8), (2,)]
        """
        mine = {id(t): t for t in (*self.state(half).values(), *self._used(half))}
        used = mine.keys() | {id(t) for t in self._used("suffix" if half == "prefix" else "prefix")}
        mine.update({id(p): p for p in self._sides.parameters(half) if id(p) not in used})
        return [t for t in mine.values() if isinstance(t, nn.Parameter)]

    def _plans(self) -> list[Cut]:
        """Every plan that serves, cut."""
        return self._served.dispatch.list()

    def _used(self, half: str) -> Iterator[torch.Tensor]:
        """What a half reads or writes in any plan."""
        return (t for cut in self._plans() for t in cut.state(half).values())

    def keep_only(self, half: str) -> None:
        """Frees the parameters and buffers that only the other half uses; the model itself can no longer run. For two
        processes with one half each. Nothing can be captured afterwards (another mode, a batch size at which the model
        does something else); with trainable=True, training is captured now."""
        self.state(half)
        if self.split_spec.trainable:  # the whole model is needed to see how it trains
            self._cut_for(self._variants(take_apart(self._target, *self._example).leaves, grad=True))
        self._refuse_apart()
        mine = {id(t) for t in (*self._used(half), *self.parameters(half))}
        before = list(self._target.tensors())
        without_data: dict[int, torch.Tensor] = {}  # one for each, so that tied ones stay tied
        for t in before:
            if id(t.tensor) not in mine and t.kind != "attr":
                empty = torch.empty_like(t.tensor, device="meta")
                made = nn.Parameter(empty, t.tensor.requires_grad) if t.kind == "param" else empty
                t.holder[t.key] = without_data.setdefault(id(t.tensor), made)
        after = [t.now().device for t in before]
        for cuts in self._served.every():  # what is left is still the model they were captured from
            kept = zip(cuts.regime.tensors, after, strict=True)
            cuts.regime = cuts.regime._replace(tensors=tuple((d, device, g) for (d, _, g), device in kept))
            cuts.siblings.regime, cuts.whole = cuts.regime, False
        self._served.regimes = {variants.regime: variants for variants in self._served.regimes.values()}
        self._half = half

    def _refuse_apart(self) -> None:
        """Refuses what two processes would disagree about: tensors that one half changes in some mode (train, say) and
        the other reads in another mode; parameters of both halves that in some plan only one of them trains."""
        plans = self._plans()
        for half, other in (("prefix", "suffix"), ("suffix", "prefix")):
            changed = {name for cut in plans for name in cut.changes[half]}
            shared = sorted(changed & {name for cut in plans for name in cut.names[other]})
            if shared:
                raise InputError(
                    f"the {half} changes {', '.join(shared)} in one mode of the model, and the {other} uses it in "
                    "another: halves in two processes would have different ones"
                )
        for name in {name for cut in plans for name in cut.trained}:
            sides = [set(cut.sides(name)) for cut in plans if name in cut.trained]
            every = {half for cut in plans for half in cut.sides(name)}
            if any(found != every for found in sides):
                raise InputError(
                    f"{name} is used by both halves, and at some sizes or in some mode only one of them trains it: the "
                    "halves must live in one process"
                )

    def _need(self, half: str) -> None:
        if self._half is not None and self._half != half:
            raise InputError(f"this runtime holds only the {self._half} (keep_only)")

    def save(
        self,
        path: str | os.PathLike[str],
        *,
        parts: str | None = None,
        weights: bool = True,
        prove: str = "auto",
        metadata: Mapping[str, str] | None = None,
    ) -> list[str]:
        """Writes the split, for inference in the mode the model is in, as .clv files: for C programs and cleave.load.

        A path that ends in .clv is one file: with the whole cut model, or with the half that parts names ("prefix",
        "suffix"). Any other is a folder, which gets prefix.clv and suffix.clv, each with its own weights only. A file
        serves only sizes that were recorded: `prove` is that of Plan.save. Gives the paths that were written.

        >>> import torch, cleave
        >>> net = torch.nn.Sequential(torch.nn.Linear(4, 8), torch.nn.ReLU(), torch.nn.Linear(8, 2)).eval()
        >>> x = torch.randn(3, 4)
        >>> runtime = cleave.prepare_split(net, example_inputs=x, split=cleave.SplitSpec(boundary="after:1"))
        >>> prefix, suffix = runtime.save("halves")
        >>> boundary = cleave.load(prefix).run_prefix(x)
        >>> torch.equal(cleave.load(suffix).run_suffix(boundary), net(x))
        True
        """
        head, entries = self._to_save(prove)
        written = _save.paths(path, parts, self._half)
        for file, part in written:
            _save.save(file, head, entries, part=part, weights=weights, metadata=metadata)
        return [file for file, _ in written]

    def _to_save(self, prove: str) -> tuple[_save.Head, list[_save.PlanEntry]]:
        self._served.warn_of_plain()
        entries = for_file(self._served, self._as_it_is(), prove)
        batch = self.split_spec.batch_symbol if self.batch_range is not None else ""
        # Of the weights as they are now: steps of an optimizer do not move the runtime's own version.
        now = self._weights if self._half is not None else fingerprint(self._target)
        return _save.Head(self._target, batch, self.split_id, self.split_spec.boundary, now), entries

    def _whole(self) -> Any:
        """What `save` would write into one file, in memory."""
        return _save.save(None, *self._to_save("auto"), part=self._half or "all")

    def save_trainer(
        self,
        path: str | os.PathLike[str],
        example_targets: Any,
        *,
        optimizer: Optimizer,
        loss_fn: _train.Loss | None = None,
        seed: int | None = None,
        prove: str = "auto",
        metadata: Mapping[str, str] | None = None,
    ) -> str:
        """Writes the suffix as a .clv file that trains: for C programs, servers and cleave.load_trainer.

        The file has the plans of the suffix as it trains in the mode the model is in, the loss as a plan of its own,
        and the optimizer, or several: torch.optim.SGD, Adam or AdamW over parameters("suffix"), fresh. What cannot be
        expressed is refused with the reason. example_targets: targets for the example, a tensor, or tensors in lists
        and tuples. loss_fn(output, targets): as for train_suffix; it is captured. seed: that dropout of the suffix
        starts from; None: torch.initial_seed(). `prove` and `metadata` are those of `save`. Gives the path.

        >>> import torch, cleave
        >>> net = torch.nn.Sequential(torch.nn.Linear(4, 8), torch.nn.ReLU(), torch.nn.Linear(8, 2))
        >>> spec = cleave.SplitSpec(boundary="after:1", trainable=True)
        >>> runtime = cleave.prepare_split(net, example_inputs=torch.randn(3, 4), split=spec)
        >>> adam = torch.optim.Adam(runtime.parameters("suffix"))
        >>> path = runtime.save_trainer("suffix.clv", torch.tensor([0, 1, 0]), optimizer=adam)
        >>> cleave.load_trainer(path)
        cleave.Trainer of suffix.clv: 0 steps
        """
        optimizers = _step.read_optimizers(optimizer)
        if self._half is not None:
            raise InputError(f"this runtime holds only the {self._half}: save the trainer before keep_only")
        _train.check_mode()
        leaves = take_apart(self._target, *self._example).leaves
        self._cut_for(self._variants(leaves, grad=True))
        variants = self._variants(leaves, grad=True)
        entries = for_file(self._served, variants, prove)
        self._refuse_apart()
        batch = None if self.batch_range is None else (self.split_spec.batch_symbol, self.batch_range)
        names = [name for e in entries for name in (*e.fixed, *e.captured.symbols)]
        if any(batch is None or name != batch[0] for name in names):
            raise InputError("a file that trains knows the batch alone as a size that may change: no dynamic_dims")
        cuts = [cut for cuts in variants.all for cut in cuts.prepared()]
        mine = {name: cut.live(name) for cut in cuts for name in cut.trained if "suffix" in cut.sides(name)}
        if any(t.device.type != "cpu" for t in (*leaves, *mine.values())):
            raise InputError("files train on the CPU alone: move the model there before it is split")
        tied = {name for cut in cuts for name in self._sides.roles(cut).tied if name in mine}
        text = training.description(training.describe(optimizers, mine), sorted(tied), seed)
        sizes = training.sizes_of(entries, self.split_spec.batch_symbol)
        loss = training.loss_file(loss_fn, self._example_output(), example_targets, batch, sizes)
        head = _save.Head(
            self._target, batch[0] if batch else "", self.split_id, self.split_spec.boundary, fingerprint(self._target)
        )
        _save.save(path, head, entries, part="suffix", metadata=metadata, training=(text, loss))
        return os.fspath(path)

    def _example_output(self) -> Any:
        """What the model gives for the example in training, as leaves; the model is left as it was."""
        arguments = take_apart(self._target, *self._example)
        args, kwargs = arguments.rebuild(each(arguments.leaves, own_copy))
        work = Capture(self._target, arguments)
        try:
            return training.as_leaves(self._see(True, *args, **kwargs))
        finally:
            work.restore()

    def __reduce_ex__(self, protocol: Any) -> Any:
        raise TypeError(
            "a SplitRuntime is bound to the model of its process: prepare the split again where it is needed"
        )

    def _shown(self, kind: str = "SplitRuntime", validation: str | None = None) -> tuple[str, _show.Facts]:
        c, plan = self.candidate, self._first.captured.plan
        where = f" in {c.module_path}" if c.module_path else ""
        head = f"cleave.{kind} of {self._target.name}, cut after {c.name}{where}"
        facts = dict(_show.plan_facts(plan, self._first.sized))
        checks, reason, half = validation or self.validation, self.fallback_reason, self._half
        runs = f"{self.mode} on {self.active_backend}{f' ({reason})' if reason else ''}, validation {checks}"
        return head, [
            ("boundary", c.crossing),
            ("prefix", c.side("prefix")),
            ("suffix", c.side("suffix")),
            ("inputs", facts["inputs"]),
            *([("sizes", facts["sizes"])] if "sizes" in facts else []),
            ("runs", runs if half is None else f"{runs}; holds only the {half}"),
        ]


def prepare_split(
    model: Callable[..., Any],
    *,
    example_inputs: Any,
    example_kwargs: dict[str, Any] | None = None,
    split: SplitSpec | str,
    mode: str = "generated_eager",
    objective: dict[str, Any] | None = None,
    compile_options: dict[str, Any] | None = None,
    validation: str = "fast",
    optimize: str | Optimize = "safe",
    engine: str = "auto",
    threads: int | None = None,
    variants: Sequence[Any] = (),
    on_guard: str = "record",
    max_plans: int | None = None,
) -> SplitRuntime:
    """Captures a model for inference, chooses a frontier and makes prefix and suffix ready.

    With a dynamic_batch range the model is recorded at a few small batch sizes, and every number that follows the batch
    becomes a formula. The two halves are run and compared with the model before they are returned.

    split: where and how to cut; a text is the boundary of a SplitSpec with its defaults.

    objective: {"minimize": …, "constraints": {…}, "batch_size": n}, all of it optional. What is minimised counts for
    boundary="auto", constraints hold for every boundary; batch_size is the batch for which bytes and work are counted
    (the example's without it). minimize is one of boundary_bytes, latency (seconds; needs bandwidth_bytes_per_s; both
    sides do 1e12 operations per second unless prefix_flops_per_s and suffix_flops_per_s say otherwise), prefix_memory,
    suffix_memory, prefix_flops, suffix_flops, balance. Constraints: trainable_suffix, max_boundary_bytes,
    max_prefix_memory, max_suffix_memory, max_prefix_params, max_suffix_params, prefix_flops_fraction (the most, or a
    pair), min_prefix_flops_fraction, max_prefix_flops_fraction, max_latency_s.

    mode: generated_eager runs the plan from C, operator by operator, with eager's own numbers. compiled puts the
    generated source of each half through torch.compile (compile_options are its options; by default Inductor, with CUDA
    graphs on GPUs), if that fails with graph breaks, if that fails too as generated_eager; fallback_reason says why.
    Its numbers are close to eager's, not equal. cuda_graph captures each half as a CUDA graph per kind of input.
    debug_interpreter checks every result against the plan. In every mode, the two halves are first run as
    generated_eager and compared with the model.

    validation: "strict" compares every tensor of a boundary with the plan before the suffix runs; "fast" leaves that to
    the suffix, which checks its inputs anyway.

    optimize: "none", "safe" (the same bits) or "fast" (numbers within a tolerance): what may be rewritten in halves
    that run without grad (docs/optimize.md).

    engine: "tape" runs the halves on libtorch; "native" those without grad by Cleave's own kernels, on the CPU: within
    the tolerance of "fast", and row-exact (docs/native.md). What it does not take is refused, with node and reason;
    each half is compared with the tape once. "auto": the tape.

    threads: how many an operator may use; None: as many as the process.

    variants: further examples, each a tuple of inputs or a dict of keyword inputs, on which the forward takes another
    branch because of its data (a mask that is not all ones). on_guard: "record" records a missing branch when a call
    needs it, "raise" raises the GuardError (docs/split.md).

    max_plans: the most plans to keep, for all modes, sizes and variants together; a new one then replaces the least
    recently used (64 by default)."""
    if isinstance(split, str):
        split = SplitSpec(boundary=split)
    if not isinstance(split, SplitSpec):
        raise TypeError(f'split must be a SplitSpec or a boundary such as "50%", not {type(split).__name__}')
    for name, value, known in (("mode", mode, MODES), ("validation", validation, VALIDATIONS)):
        if value not in known:
            raise SplitError(f"{name} must be one of {', '.join(known)}, not {value!r}")
    if compile_options is not None and mode != "compiled":
        raise SplitError(f'compile_options are for mode="compiled", not for {mode!r}')
    if not isinstance(compile_options, dict | None):
        raise TypeError(f"compile_options is a dict of torch.compile's options, not {type(compile_options).__name__}")
    goal = read_objective(objective, split.trainable)
    if split.exact and goal.minimize not in (None, "boundary_bytes"):
        raise SplitError(f"exact=True minimises boundary_bytes; the objective minimises {goal.minimize}")
    how = read_how(mode, optimize, engine, threads, on_guard, max_plans)
    want = Wanted(split, goal, mode, compile_options, how)
    with progress.task(f"preparing {Target(model).name}"):
        runtime = SplitRuntime(model, as_call(example_inputs, example_kwargs), want, validation)
        see_all(variants, runtime.see)
        return runtime

"""Decides which gradients count in a step and which optimizer steps them, for all splits of the process.

A *step* is what one boundary trains, by train_suffix and backward_prefix. A gradient that an optimizer has used is
spent: the next step starts without it, and no optimizer steps it again, whoever made it, used it, or holds the
parameter. What the prefix's backward is still to reach waits for it."""

from __future__ import annotations

import functools
import inspect
import itertools
import weakref
from collections.abc import Callable, Container, Iterable, Iterator, Sequence
from typing import Any, NamedTuple

import torch
from torch import nn

from ._cut import Cut
from ._state import Target, item_at
from .errors import InputError

Optimizers = Sequence[torch.optim.Optimizer]
PREFIX, SUFFIX, BOTH = 1, 2, 3  # as bits, src/split/match.c

numbers = itertools.count(1)  # of steps


# Gradients that were used, by id of the parameter: parameter, gradient and its version, number of the step, model.
# Nothing is held: a gradient that is zeroed frees its memory.
_Spent = tuple["weakref.ref[torch.Tensor]", "weakref.ref[torch.Tensor]", int, int, "weakref.ref[Any]"]
_spent: dict[int, _Spent] = {}


def _is_spent(p: torch.Tensor, grad: torch.Tensor) -> bool:
    """An optimizer has used the gradient, and it has not changed since."""
    found = _spent.get(id(p))
    return found is not None and found[0]() is p and found[1]() is grad and found[2] == grad._version


@functools.cache
def _runs_the_model(cls: Any) -> bool:
    """Whether the steps of these optimizers ask for a function that computes the loss."""
    try:
        closure = inspect.signature(cls.step).parameters.get("closure")
    except (AttributeError, ValueError):  # none of Python's own
        return False
    return closure is not None and closure.default is inspect.Parameter.empty


def read_optimizers(given: Any) -> list[torch.optim.Optimizer]:
    """One optimizer, several or none, before anything runs: what can be stepped."""
    several = [] if given is None else list(given) if isinstance(given, list | tuple) else [given]
    for optimizer in several:
        if not (hasattr(optimizer, "param_groups") and callable(getattr(optimizer, "step", 0))):
            raise TypeError(
                f"optimizer, or each of a list, must be a torch.optim.Optimizer, not {type(optimizer).__name__}"
            )
        if _runs_the_model(optimizer.__class__):
            raise TypeError(
                f"{type(optimizer).__name__} runs the model again in each step (a closure), and here each half runs "
                "once: use an optimizer that steps without, as SGD and Adam do"
            )
    return several


def held(optimizers: Optimizers) -> set[int]:
    """Ids of the parameters that these optimizers step."""
    return {id(p) for o in optimizers for group in o.param_groups for p in group["params"]}


def known(roles: Roles, optimizers: Optimizers, loss_fn: Any = None) -> set[int]:
    """Ids of what a step may reach: the model's parameters, the optimizers', and those that the loss has."""
    of_loss = [] if loss_fn is None else [t.tensor for t in Target(loss_fn).tensors()]
    return held(optimizers) | {id(t) for t in (*of_loss, *(place.now() for place in roles.every))}


def reached(tensors: Iterable[torch.Tensor]) -> dict[int, torch.Tensor]:
    """The leaves that a backward from these tensors gives gradients, by id."""
    leaves = {id(t): t for t in tensors if t.requires_grad and t.grad_fn is None}
    nodes = [t.grad_fn for t in tensors if t.grad_fn is not None]
    seen = set(nodes)
    while nodes:
        node: Any = nodes.pop()
        leaf = getattr(node, "variable", None)
        if leaf is not None:
            leaves[id(leaf)] = leaf
        for following, _ in node.next_functions:
            if following is not None and following not in seen:
                seen.add(following)
                nodes.append(following)
    return leaves


class Steps:
    """The steps of one model: all its splits have the same account."""

    def __init__(self, target: Target) -> None:
        self.model = weakref.ref(target.roots[0][1] if target.roots else target)

    def begin(self, step: int | None = None) -> None:
        """Removes gradients that other steps of the model have used and that have not changed since."""
        model = self.model() if _spent else None
        for key, (parameter, gradient, version, user, used_by) in list(_spent.items()):
            p, grad = parameter(), gradient()
            if p is None or grad is None:
                _spent.pop(key, None)
            elif user != step and used_by() is model and p.grad is grad:
                _spent.pop(key, None)
                if grad._version == version:
                    p.grad = None

    def fresh(self, backward: Callable[[], None], known: Callable[[], set[int]]) -> None:
        """Runs a backward that adds nothing to what steps of other models have used: of parameters (by id) that it may
        reach, which are out of the way until then."""
        model = self.model() if _spent else None
        others = [p for p, _, _, _, used_by in list(_spent.values()) if used_by() is not model]
        mine = known() if others else set()
        aside = []
        for p in [t for ref in others if (t := ref()) is not None and id(t) in mine]:
            if p.grad is not None and _is_spent(p, p.grad):
                aside.append((p, p.grad))
                p.grad = None
        try:
            backward()
        finally:
            for p, grad in aside:
                if p.grad is None:
                    p.grad = grad

    def take(
        self, optimizers: Optimizers, step: int, *, but: Container[int] = (), only: Container[int] | None = None
    ) -> None:
        """One step of each optimizer's parameters (by id): but for some, or only some; never one that was stepped."""
        for optimizer in optimizers:
            now: list[tuple[torch.Tensor, torch.Tensor]] = []
            aside: list[tuple[torch.Tensor, torch.Tensor]] = []
            for group in optimizer.param_groups:
                for p in group["params"]:
                    if (grad := p.grad) is None:
                        continue
                    i = id(p)
                    later = i in but or (only is not None and i not in only) or (i in _spent and _is_spent(p, grad))
                    (aside if later else now).append((p, grad))
            if only is not None and not now:
                continue
            for p, _ in aside:
                p.grad = None
            try:
                optimizer.step()
            finally:
                for p, grad in aside:
                    p.grad = grad
            for p, grad in now:
                if p.grad is grad:
                    _spent[id(p)] = weakref.ref(p), weakref.ref(grad), grad._version, step, self.model


class Place(NamedTuple):
    """Where the model keeps a parameter."""

    name: str
    holder: Any
    key: Any
    sides: int

    def now(self) -> torch.Tensor | None:
        """The parameter itself; None: it is gone."""
        found: torch.Tensor | None = item_at(self.holder, self.key)
        return found


class Sides:
    """The half that each parameter of a model belongs to, from the start, whatever sizes and modes come later.

    What the first plan reads is on the side on which it is read, or on both. What it does not read (a layer for other
    sizes, an expert that the example does not reach) goes with the module that it is in, as far as that runs on one
    side, and else with the parameter before it."""

    def __init__(self, target: Target, first: Cut) -> None:
        inside: dict[str, int] = {}
        for path, sides in first.captured.plan.module_sides(first.candidate.position + 1):
            for around in _around(path):
                inside[around] = inside.get(around, 0) | sides
        used: dict[int, int] = {}
        for side, half in ((PREFIX, "prefix"), (SUFFIX, "suffix")):
            for t in first.state(half).values():
                used[id(t)] = used.get(id(t), 0) | side
        self.places: list[Place] = []
        seen: set[int] = set()
        before = PREFIX
        for kind, name, holder, key, tensor in target.tensors():
            if kind != "param" or id(tensor) in seen:
                continue
            seen.add(id(tensor))
            sides = used.get(id(tensor)) or next((inside[p] for p in _around(name) if inside.get(p)), BOTH)
            if sides == BOTH and id(tensor) not in used:
                sides = before
            if sides != BOTH:
                before = sides
            self.places.append(Place(name, holder, key, sides))

    def parameters(self, half: str) -> list[torch.Tensor]:
        """Those of one half."""
        side = PREFIX if half == "prefix" else SUFFIX
        return [t for place in self.places if place.sides & side and (t := place.now()) is not None]

    def roles(self, cut: Cut) -> Roles:
        """What a plan's steps have to know of each parameter."""
        found: Roles | None = cut.roles
        if found is None:
            found = cut.roles = self._make_roles(cut)
        return found

    def _make_roles(self, cut: Cut) -> Roles:
        one, two = cut.state("prefix"), cut.state("suffix")
        here = {id(t) for t in (*one.values(), *two.values())}
        only = {side: [place for place in self.places if place.sides == side] for side in (PREFIX, SUFFIX)}
        read = [Place(name, *cut.captured.state[name], PREFIX) for name in one]
        unread = [place for place in only[PREFIX] if id(place.now()) not in here]
        whole = {id(t) for t in two.values()} - {id(t) for t in one.values()}
        there = {side: [place for place in places if id(place.now()) in whole] for side, places in only.items()}
        # Both halves' optimizers may hold these: the same one steps them at every size, whoever reads them.
        both = {id(place.now()) for place in self.places if place.sides == BOTH}
        late = [Place(name, *cut.captured.state[name], BOTH) for name, t in two.items() if id(t) in both & whole]
        tied = sorted(n for n in cut.trained if len(cut.sides(n)) == 2 or id(cut.live(n)) in both)
        return Roles(self.places, read + unread + late, there[SUFFIX], there[PREFIX], tied)


class Roles(NamedTuple):
    """Whose gradients wait for the prefix's backward, and whose are whole after the suffix's."""

    every: list[Place]
    waiting: list[Place]
    whole: list[Place]
    lent: list[Place]  # whole too, and they belong to the prefix: its optimizer may have them
    tied: list[str]  # both halves train them, at this size or at others


def _around(path: str) -> Iterator[str]:
    """A module's path, that of the module around it, and so on up to the root."""
    while path:
        yield path
        path = path.rpartition(".")[0]
    yield ""


def trained(places: Iterable[Place]) -> list[torch.Tensor]:
    """The tensors in these places that get gradients."""
    return [t for place in places if (t := place.now()) is not None and t.requires_grad]


def _unheld(places: Sequence[Place], optimizers: Optimizers) -> dict[str, torch.Tensor]:
    mine = held(optimizers) if places else ()
    now = [(place.name, t) for place in places if id(t := place.now()) not in mine]
    return {name: t for name, t in now if isinstance(t, nn.Parameter) and t.requires_grad}


def _refuse(names: Sequence[str]) -> None:
    if names:
        shown = ", ".join(names[:5]) + (f" and {len(names) - 5} more" if len(names) > 5 else "")
        raise InputError(
            f"{shown}: this step gives it a gradient, and no optimizer of the step holds it: add it to the optimizer "
            "(SplitRuntime.parameters lists what a half trains), or freeze it with requires_grad_(False)"
        )


def refuse_unheld(places: Sequence[Place], optimizers: Optimizers, roots: Sequence[torch.Tensor]) -> None:
    """Before a backward from these roots: every parameter that it gives a gradient has an optimizer."""
    missing = _unheld(places, optimizers)
    if missing:
        found = reached(roots)
        _refuse([name for name, t in missing.items() if id(t) in found])


def refuse_left(places: Sequence[Place], optimizers: Optimizers) -> None:
    """After all but the last optimizers have stepped: what has a gradient was stepped, or is held by one of these."""
    missing = _unheld(places, optimizers)
    _refuse([name for name, t in missing.items() if t.grad is not None and not _is_spent(t, t.grad)])


def refuse_hooks(optimizers: Optimizers, waiting: Iterable[torch.Tensor]) -> None:
    """Before a step: no optimizer with hooks is stepped twice, for the suffix and for what waits."""
    for optimizer in optimizers:
        hooks = [getattr(optimizer, f"_optimizer_step_{when}_hooks", None) for when in ("pre", "post")]
        if any(hooks) and not held([optimizer]).isdisjoint(id(t) for t in waiting):
            raise InputError(
                f"{type(optimizer).__name__} has hooks on its step, and holds parameters of both halves, which are "
                "stepped one after the other: the hooks would run twice. Give each half an optimizer of its own, or "
                "no optimizer, and step yourself after backward_prefix"
            )

"""Eager against plan, bit for bit: the comparison that every Python test of capture goes through.

`check` captures a model on the data of one seed, then runs plan and eager on the data of other seeds, in both
grad modes, and compares everything a caller could see: the result with its structure, types, strides and
aliases, the inputs, the model's tensors, the random generators, the gradients. The plan works on the model,
eager on a twin (a deep copy), and both go through the same calls, so state that builds up is compared too.
"""

from __future__ import annotations

import copy
import dataclasses
import functools
import random
import re
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from typing import Any

import numpy as np
import pytest
import torch
from real_models import Args
from torch import Tensor, nn

import cleave

REFUSALS = (cleave.CaptureError, cleave.GuardError, cleave.InputError)
CAPTURE_SEED = 0


def rand(*shapes: tuple[int, ...], dtype: torch.dtype = torch.float32) -> Callable[[], tuple[Tensor, ...]]:
    """A `make_inputs` that draws one normal tensor per shape."""
    return lambda: tuple(torch.randn(s).to(dtype) for s in shapes)


def tokens(*shape: int, high: int = 50) -> Callable[[], tuple[Tensor, ...]]:
    """A `make_inputs` that draws token ids."""
    return lambda: (torch.randint(0, high, shape),)


class Fn(nn.Module):
    """A function of a linear layer and the inputs, as a module: the shortest way to parameters."""

    def __init__(self, fn: Callable[..., Any], features: int = 4) -> None:
        super().__init__()
        self.lin = nn.Linear(features, features)
        self.fn = fn

    def forward(self, *args: Any, **kwargs: Any) -> Any:
        return self.fn(self.lin, *args, **kwargs)


def twins(build: Callable[[], Any]) -> tuple[Any, Any]:
    """Two models with the same weights, for those that a deep copy would change."""
    torch.manual_seed(0)
    first = build()
    torch.manual_seed(0)
    return first, build()


# ---- looking at things -------------------------------------------------------------------------------------


def walk(tree: Any, path: str = "") -> Iterator[tuple[str, Any]]:
    """Every container (as a mark of its type and keys) and every leaf of a nested value, with its path."""
    if isinstance(tree, Tensor):
        yield path, tree
    elif isinstance(tree, dict):
        yield path, (type(tree), list(tree))
        for key, value in tree.items():
            yield from walk(value, f"{path}[{key!r}]")
    elif isinstance(tree, (list, tuple)):
        yield path, (type(tree), len(tree))
        for i, value in enumerate(tree):
            yield from walk(value, f"{path}[{i}]")
    elif tree is None or isinstance(tree, (bool, int, float, complex, str, bytes, type, slice, torch.Size)):
        yield path, tree
    elif isinstance(tree, (torch.dtype, torch.device, torch.layout, torch.memory_format, np.ndarray, np.generic)):
        yield path, tree
    elif hasattr(tree, "__dict__"):
        yield path, (type(tree), sorted(vars(tree)))
        for key, value in sorted(vars(tree).items()):
            yield from walk(value, f"{path}.{key}")
    else:
        yield path, tree


def tensors(tree: Any, path: str) -> list[tuple[str, Tensor]]:
    return [(p, t) for p, t in walk(tree, path) if isinstance(t, Tensor)]


def modules_of(target: Any) -> list[tuple[str, nn.Module]]:
    """All modules a captured object works with: its own, those of a bound method's object or of a partial."""
    if isinstance(target, nn.Module):
        return list(target.named_modules())
    if isinstance(target, functools.partial):
        return modules_of(target.func)
    owner = getattr(target, "__self__", None)
    return modules_of(owner) if isinstance(owner, nn.Module) else []


_PLUMBING = {"_parameters", "_buffers", "_modules"}


def state_of(target: Any) -> dict[str, Tensor]:
    """Every tensor a model owns, by name: parameters, buffers, plain attributes, also in lists and dicts."""
    found: dict[str, Tensor] = {}
    for prefix, module in modules_of(target):
        dot = f"{prefix}." if prefix else ""
        for name, p in module.named_parameters(recurse=False, remove_duplicate=False):
            found[dot + name] = p
        for name, b in module.named_buffers(recurse=False, remove_duplicate=False):
            found[dot + name] = b
        for name, value in vars(module).items():
            if name in _PLUMBING or name.endswith("_hooks") or isinstance(value, nn.Module):
                continue
            if isinstance(value, (Tensor, list, tuple, dict)):
                found.update(tensors(value, dot + name))
    return found


# ---- comparing ---------------------------------------------------------------------------------------------


def _same_bits(a: Tensor, b: Tensor) -> bool:
    a, b = a.resolve_conj().resolve_neg().contiguous(), b.resolve_conj().resolve_neg().contiguous()
    if a.numel() == 0:
        return True
    # Flat with stride 1, which a reshape would not give a tensor of one element.
    a, b = a.as_strided((a.numel(),), (1,)), b.as_strided((b.numel(),), (1,))
    if torch.equal(a.view(torch.uint8), b.view(torch.uint8)):
        return True
    if not (a.is_floating_point() or a.is_complex()):
        return False
    if a.is_complex():
        a, b = torch.view_as_real(a), torch.view_as_real(b)
    nan = a.isnan()
    if not torch.equal(nan, b.isnan()):
        return False
    a, b = a.masked_fill(nan, 0), b.masked_fill(nan, 0)
    return torch.equal(a.view(torch.uint8), b.view(torch.uint8))


def _parts(t: Tensor) -> list[Tensor]:
    """The plain strided tensors (and numbers as tensors) that make up one of any layout."""
    if t.is_nested:
        if t.layout == torch.jagged:
            return [t.values(), t.offsets()]
        return list(t.unbind())
    if t.layout == torch.sparse_coo:
        return [t._indices(), t._values(), torch.tensor(t.is_coalesced())]
    if t.layout in (torch.sparse_csr, torch.sparse_bsr):
        return [t.crow_indices(), t.col_indices(), t.values()]
    if t.layout in (torch.sparse_csc, torch.sparse_bsc):
        return [t.ccol_indices(), t.row_indices(), t.values()]
    if t.is_mkldnn:
        return [t.to_dense()]
    if t.is_quantized:
        if t.qscheme() in (torch.per_channel_affine, torch.per_channel_symmetric):
            return [t.int_repr(), t.q_per_channel_scales(), t.q_per_channel_zero_points()]
        return [t.int_repr(), torch.tensor(t.q_scale()), torch.tensor(t.q_zero_point())]
    return [t]


def _difference(a: Tensor, b: Tensor) -> str:
    if a.shape == b.shape and (a.is_floating_point() or a.is_complex()):
        return f"largest difference {(a - b).abs().max().item():.3g}"
    return f"expected {a.flatten()[:8].tolist()}, got {b.flatten()[:8].tolist()}"


def _traits(t: Tensor) -> dict[str, Any]:
    traits: dict[str, Any] = {
        "type": type(t),
        "dtype": t.dtype,
        "layout": t.layout,
        "device": t.device,
        "requires_grad": t.requires_grad,
        "is_leaf": t.is_leaf,
        "conj": t.is_conj(),
        "neg": t.is_neg(),
        "nested": t.is_nested,
    }
    if not t.is_nested:
        traits["shape"] = tuple(t.shape)
        if t.layout == torch.strided:
            traits["stride"] = t.stride()
    return traits


def same_tensor(expected: Tensor, got: Tensor, where: str) -> None:
    """Raises AssertionError unless the two tensors agree in every trait and in every bit."""
    want, have = _traits(expected), _traits(got)
    for trait in want:
        assert want[trait] == have[trait], f"{where}: {trait} is {have[trait]}, eager has {want[trait]}"
    with torch.no_grad():
        a, b = _parts(expected.detach()), _parts(got.detach())
        assert len(a) == len(b), f"{where}: {len(b)} parts, eager has {len(a)}"
        for x, y in zip(a, b, strict=True):
            assert x.shape == y.shape, f"{where}: a part has shape {list(y.shape)}, eager has {list(x.shape)}"
            assert _same_bits(x, y), f"{where}: values differ from eager, {_difference(x, y)}"


def _same_leaf(a: Any, b: Any) -> bool:
    if isinstance(a, np.ndarray):
        return isinstance(b, np.ndarray) and a.dtype == b.dtype and np.array_equal(a, b, equal_nan=a.dtype.kind in "fc")
    if isinstance(a, float) and isinstance(b, float) and a != a:
        return b != b
    return type(a) is type(b) and bool(a == b)


def same_tree(expected: Any, got: Any, where: str) -> None:
    """Raises AssertionError unless two nested values have the same types, keys and leaves."""
    a, b = list(walk(expected, where)), list(walk(got, where))
    for (path, want), (other_path, have) in zip(a, b, strict=False):
        assert path == other_path, f"{where}: structure differs at {path} / {other_path}"
        if isinstance(want, Tensor):
            assert isinstance(have, Tensor), f"{path}: got {type(have).__name__}, eager has a tensor"
            same_tensor(want, have, path)
        else:
            assert not isinstance(have, Tensor), f"{path}: got a tensor, eager has {want!r}"
            assert _same_leaf(want, have), f"{path}: got {have!r}, eager has {want!r}"
    assert len(a) == len(b), f"{where}: got {len(b)} parts, eager has {len(a)}"


def same_state(expected: dict[str, Tensor], got: dict[str, Tensor], where: str) -> None:
    assert sorted(expected) == sorted(got), (
        f"{where}: the model's tensors are {sorted(set(got) ^ set(expected))} apart from eager's"
    )
    for name, want in expected.items():
        same_tensor(want, got[name], f"{where}: {name}")


def _storage(t: Tensor) -> int:
    if t.is_nested or t.layout != torch.strided or t.is_mkldnn:
        return 0
    try:
        return t.untyped_storage().data_ptr()
    except (RuntimeError, NotImplementedError):
        return 0


def alias_marks(labelled: Sequence[tuple[str, Tensor]]) -> list[str]:
    """For each tensor, the first one it is identical with and the first one it shares memory with."""
    by_id: dict[int, str] = {}
    by_storage: dict[int, str] = {}
    marks = []
    for label, t in labelled:
        same = by_id.setdefault(id(t), label)
        where = _storage(t)
        shared = by_storage.setdefault(where, label) if where else label
        marks.append(f"{label} is {same}, in the memory of {shared}")
    return marks


# ---- running -----------------------------------------------------------------------------------------------


def seed_all(seed: int) -> None:
    torch.manual_seed(seed)
    np.random.seed(seed)
    random.seed(seed)


def rng_state() -> tuple[int, ...]:
    """One number per generator: torch, Python, NumPy. Equal states give equal numbers."""
    numpy = np.random.get_state(legacy=True)
    return (
        hash(torch.get_rng_state().numpy().tobytes()),
        hash(random.getstate()),
        hash((numpy[1].tobytes(), *numpy[2:])),
    )


@contextmanager
def kept_rng() -> Iterator[None]:
    before = torch.get_rng_state(), np.random.get_state(), random.getstate()
    try:
        yield
    finally:
        torch.set_rng_state(before[0])
        np.random.set_state(before[1])
        random.setstate(before[2])


def draw(make_inputs: Callable[[], Any], seed: int, input_grad: bool) -> Args:
    """The inputs of one seed, made anew: two calls give equal but separate tensors."""
    with kept_rng():
        seed_all(seed)
        made = make_inputs()
    if isinstance(made, Tensor):
        made = (made,)
    inputs = made if isinstance(made, Args) else Args(*made)
    if input_grad:
        for _, t in tensors([inputs.args, inputs.kwargs], "input"):
            if (t.is_floating_point() or t.is_complex()) and t.is_leaf and not t.requires_grad and not t.is_inference():
                t.requires_grad_(True)
    return inputs


def backward(outputs: Sequence[tuple[str, Tensor]], seed: int) -> None:
    """One backward pass from all outputs that need it, with weights that depend on the seed only."""
    unique = {id(t): t for _, t in outputs if t.requires_grad and t.grad_fn is not None and not t.is_nested}
    roots = [t for t in unique.values() if t.layout == torch.strided]
    if not roots:
        return
    with kept_rng():
        torch.manual_seed(seed)
        weights = [torch.randn(t.shape, dtype=t.dtype) for t in roots]
    torch.autograd.backward(roots, weights)


@dataclasses.dataclass
class Seen:
    """Everything a caller can see of one call."""

    out: Any
    inputs: Args
    rng: tuple[Any, ...]
    rng_after_backward: tuple[Any, ...]
    state: dict[str, Tensor]
    aliases: list[str]
    grads: dict[str, Tensor | None]


def observe(
    call: Callable[..., Any],
    target: Any,
    inputs: Args,
    *,
    grad: bool,
    seed: int,
    around: Callable[[], AbstractContextManager[Any]] = nullcontext,
    all_state: bool = True,
) -> Seen:
    """Calls `call` (a plan, or `target` itself) and records what it did to `target`, inputs, generators."""
    given = tensors([inputs.args, inputs.kwargs], "input")
    for t in state_of(target).values():
        t.grad = None
    seed_all(seed + 1000)
    with torch.set_grad_enabled(grad), around():
        out = call(*inputs.args, **inputs.kwargs)
    rng = rng_state()
    outputs = tensors(out, "output")
    state = state_of(target)
    if not all_state:
        owned = {n for p, m in modules_of(target) for n in _own_names(p, m)}
        state = {k: v for k, v in state.items() if k in owned}
    marks = alias_marks(given + outputs + list(state.items()))
    if grad:
        backward(outputs, seed)
    grads = {label: t.grad for label, t in [*given, *state.items()] if t.is_leaf}
    return Seen(out, inputs, rng, rng_state(), state, marks, grads)


def _own_names(prefix: str, module: nn.Module) -> list[str]:
    dot = f"{prefix}." if prefix else ""
    names = [n for n, _ in module.named_parameters(recurse=False, remove_duplicate=False)]
    names += [n for n, _ in module.named_buffers(recurse=False, remove_duplicate=False)]
    return [dot + n for n in names]


def same_seen(eager: Seen, plan: Seen, where: str) -> None:
    same_tree(eager.out, plan.out, f"{where}: output")
    same_tree([eager.inputs.args, eager.inputs.kwargs], [plan.inputs.args, plan.inputs.kwargs], f"{where}: inputs")
    same_state(eager.state, plan.state, f"{where}: after the call")
    for a, b in zip(eager.aliases, plan.aliases, strict=True):
        assert a == b, f"{where}: {b}; in eager {a}"
    assert eager.rng == plan.rng, f"{where}: a random generator is elsewhere than after eager"
    assert eager.grads.keys() == plan.grads.keys(), f"{where}: other tensors are leaves than in eager"
    for name, want in eager.grads.items():
        have = plan.grads[name]
        assert (want is None) == (have is None), f"{where}: gradient of {name} is {have}, eager has {want}"
        if want is not None and have is not None:
            same_tensor(want, have, f"{where}: gradient of {name}")
    assert eager.rng_after_backward == plan.rng_after_backward, f"{where}: a generator differs after backward"


def _reason(error: Exception) -> str:
    """The text of a refusal; it must say something."""
    text = str(error).strip()
    assert len(text.split()) >= 3, f"a refusal must give its reason, got {type(error).__name__}: {text!r}"
    return text


def capture_checked(target: Any, twin: Any, inputs: Args, fresh: Args, *, grad: bool, on_guard: str = "record") -> Any:
    """Captures, and checks that capture itself left inputs, model, generators and modes as they were."""
    seed_all(CAPTURE_SEED + 500)
    before = rng_state()
    with torch.set_grad_enabled(grad):
        try:
            return cleave.capture(target, inputs.args, inputs.kwargs or None, on_guard=on_guard)
        finally:
            assert torch.is_grad_enabled() == grad, "capture changed the grad mode"
            assert rng_state() == before, "capture moved a random generator"
            same_state(state_of(twin), state_of(target), "capture")
            same_tree([fresh.args, fresh.kwargs], [inputs.args, inputs.kwargs], "capture: example inputs")


def check(
    model_or_fn: Any,
    make_inputs: Callable[[], Any],
    *,
    grad: bool | str = "both",
    train: bool = False,
    seeds: Sequence[int] = (1, 2),
    refuse_ok: bool = True,
    run_inputs: Callable[[], Any] | None = None,
    input_grad: bool = True,
    twin: Any = None,
    between: Callable[[Any, int], None] | None = None,
    capture_around: Callable[[], AbstractContextManager[Any]] = nullcontext,
    run_around: Callable[[], AbstractContextManager[Any]] | None = None,
    all_state: bool = True,
    on_guard: str = "record",
) -> str:
    """Compares plan and eager: "replayed" or "refused: <reason>", and AssertionError on any difference.

    make_inputs     called after seeding; a tensor, a tuple of positional inputs, or `Args`
    grad            the modes to capture in and to run in; "both" runs all four pairs
    run_inputs      makes the inputs of the runs, when they should differ in kind from those of capture
    input_grad      floating-point inputs require grad (in both modes)
    twin            the model eager works on, when a deep copy will not do
    between         called with model (and with twin) and a running number before every run
    capture_around  a context for capture and, unless run_around is given, for the runs
    all_state       compare plain tensor attributes as well, not parameters and buffers only
    on_guard        as capture has it
    """
    modes = [False, True] if grad == "both" else [bool(grad)]
    run_around = run_around or capture_around
    refused = ""
    for capture_grad in modes:
        target = copy.deepcopy(model_or_fn) if twin is None and len(modes) > 1 else model_or_fn
        other = twin if twin is not None else copy.deepcopy(target)
        for module in (m for t in (target, other) for _, m in modules_of(t)):
            module.training = train
        inputs = draw(make_inputs, CAPTURE_SEED, input_grad)
        fresh = draw(make_inputs, CAPTURE_SEED, input_grad)
        try:
            with capture_around():
                plan = capture_checked(target, other, inputs, fresh, grad=capture_grad, on_guard=on_guard)
        except REFUSALS as error:
            refused = refused or _reason(error)
            continue
        for step, (run_grad, seed) in enumerate((g, s) for g in modes for s in seeds):
            where = f"captured {_mode(capture_grad)}, run {_mode(run_grad)}, seed {seed}"
            if between is not None:
                _apply(between, (target, other), step)
            make = run_inputs or make_inputs
            view: dict[str, Any] = {
                "grad": run_grad,
                "seed": seed,
                "around": run_around,
                "all_state": all_state,
            }
            try:
                got = observe(plan, target, draw(make, seed, input_grad), **view)
            except REFUSALS as error:
                refused = refused or _reason(error)
                if not _still_twins(target, other):
                    break  # refused halfway through a change of the model
                continue
            want = observe(other, other, draw(make, seed, input_grad), **view)
            same_seen(want, got, where)
    if refused and not refuse_ok:
        raise AssertionError(f"should replay, but was refused: {refused}")
    return f"refused: {refused}" if refused else "replayed"


def _apply(between: Callable[[Any, int], None], models: Sequence[Any], step: int) -> None:
    with kept_rng():
        for model in models:
            seed_all(step + 77)
            between(model, step)


def _still_twins(a: Any, b: Any) -> bool:
    try:
        same_state(state_of(a), state_of(b), "")
    except AssertionError:
        return False
    return True


def _mode(grad: bool) -> str:
    return "with grad" if grad else "without grad"


def mentions(error: Exception, *words: str) -> None:
    """An error is for people: it names what is wrong and what was expected."""
    for word in words:
        assert word in str(error), f"{word!r} is not in: {error}"


# ---- what a test expects -----------------------------------------------------------------------------------


def must_replay(model_or_fn: Any, make_inputs: Callable[[], Any], **options: Any) -> None:
    check(model_or_fn, make_inputs, refuse_ok=False, **options)


def must_refuse(model_or_fn: Any, make_inputs: Callable[[], Any], match: str, **options: Any) -> None:
    outcome = check(model_or_fn, make_inputs, refuse_ok=True, on_guard="raise", **options)
    assert outcome != "replayed", "should be refused, but was replayed"
    assert re.search(match, outcome, re.IGNORECASE), f"the reason does not match {match!r}: {outcome}"


def guarded(model_or_fn: Any, example: Any, same: Any, other: Any, *, match: str = "", grad: bool = False) -> None:
    """A host value is part of the plan: data with an equal value replays, other data is a GuardError, or gets a plan of
    its own."""
    if isinstance(model_or_fn, nn.Module):
        model_or_fn.eval()
    example, same, other = (t if isinstance(t, tuple) else (t,) for t in (example, same, other))
    with torch.set_grad_enabled(grad):
        strict = cleave.capture(model_or_fn, tuple(t.clone() for t in example), on_guard="raise")
        plan = cleave.capture(model_or_fn, tuple(t.clone() for t in example))
        for data in (example, same):
            want = model_or_fn(*(t.clone() for t in data))
            same_tree(want, strict(*(t.clone() for t in data)), "output")
        for data in (same, other, example, other):
            want = model_or_fn(*(t.clone() for t in data))
            same_tree(want, plan(*(t.clone() for t in data)), "output")
        with pytest.raises(cleave.GuardError) as caught:
            strict(*(t.clone() for t in other))
        assert caught.value.undone
        assert caught.value.node
    reason = _reason(caught.value)
    assert re.search(match, reason, re.IGNORECASE), f"the reason does not match {match!r}: {reason}"

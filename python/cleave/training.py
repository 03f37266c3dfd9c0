"""Training a suffix from a file, without the model's code: from C, from Python, or by a server (docs/training.md).

SplitRuntime.save_trainer writes such a file, load_trainer opens it.

>>> import torch, cleave
>>> net = torch.nn.Sequential(torch.nn.Linear(4, 8), torch.nn.ReLU(), torch.nn.Linear(8, 2))
>>> spec = cleave.SplitSpec(boundary="after:1", trainable=True)
>>> x, labels = torch.randn(3, 4), torch.tensor([0, 1, 1])
>>> runtime = cleave.prepare_split(net, example_inputs=x, split=spec)
>>> sgd = torch.optim.SGD(runtime.parameters("suffix"), lr=0.1)
>>> path = runtime.save_trainer("suffix.clv", labels, optimizer=sgd)
>>> trainer = cleave.load_trainer(path)
>>> boundary = runtime.run_training_prefix(x)
>>> loss, gradients = trainer.train_suffix(boundary, labels)
>>> runtime.backward_prefix(boundary, gradients)
{}
"""

from __future__ import annotations

import json
import math
import os
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

import torch
from torch.optim import optimizer as torch_optimizer

from . import _native, _step, _tree
from ._save import Path, PlanEntry
from ._state import Target
from ._threads import read_threads
from ._train import default_loss
from .errors import ArgumentError, InputError
from .payload import BoundaryPayload
from .plan import capture
from .signing import read_keys

# ---- the optimizer, for the file

_NUMBERS = {
    torch.optim.SGD: ("lr", "momentum", "dampening", "weight_decay"),
    torch.optim.Adam: ("lr", "eps", "weight_decay"),
    torch.optim.AdamW: ("lr", "eps", "weight_decay"),
}
_FLAGS = {
    torch.optim.SGD: ("nesterov", "maximize"),
    torch.optim.Adam: ("amsgrad", "maximize"),
    torch.optim.AdamW: ("amsgrad", "maximize"),
}
_OTHER_BITS = ("foreach", "fused", "capturable", "differentiable")


def _refuse(optimizer: torch.optim.Optimizer, why: str) -> None:
    raise ArgumentError(f"{type(optimizer).__name__} cannot be in a file: {why}")


def _check_optimizer(optimizer: torch.optim.Optimizer) -> None:
    if type(optimizer) not in _NUMBERS:
        _refuse(optimizer, "torch.optim.SGD, Adam and AdamW themselves can, other classes cannot")
    hooks = (optimizer._optimizer_step_pre_hooks, optimizer._optimizer_step_post_hooks)
    every = (torch_optimizer._global_optimizer_pre_hooks, torch_optimizer._global_optimizer_post_hooks)
    if any(hooks) or any(every):
        _refuse(optimizer, "it has hooks on its step, which are Python code")
    if optimizer.state:
        _refuse(optimizer, "it has stepped already, and a file starts without that: make a new one")


def _check_group(optimizer: torch.optim.Optimizer, group: Mapping[str, Any]) -> None:
    for name in _OTHER_BITS:
        if group.get(name):
            _refuse(optimizer, f"{name}=True takes another path, which may round otherwise; leave it out")
    if "initial_lr" in group:
        _refuse(optimizer, "a scheduler changes its learning rate, and the file has one for all steps")


def _number(optimizer: torch.optim.Optimizer, name: str, value: Any) -> float:
    if isinstance(value, bool) or not isinstance(value, (int, float)) or not math.isfinite(value):
        _refuse(optimizer, f"{name} is {value!r}, and has to be a finite Python number")
    return float(value)


def _described(optimizer: torch.optim.Optimizer, group: Mapping[str, Any], names: Mapping[int, str]) -> dict[str, Any]:
    """One group as the file has it."""
    _check_group(optimizer, group)
    cls = type(optimizer)
    out: dict[str, Any] = {name: _number(optimizer, name, group[name]) for name in _NUMBERS[cls]}
    out |= {name: bool(group[name]) for name in _FLAGS[cls]}
    if cls is torch.optim.SGD:
        out["kind"] = "sgd"
    else:
        out["kind"] = "adamw" if group.get("decoupled_weight_decay", cls is torch.optim.AdamW) else "adam"
        out["betas"] = [_number(optimizer, "betas", beta) for beta in group["betas"]]
    unknown = [tuple(p.shape) for p in group["params"] if id(p) not in names and p.requires_grad]
    if unknown:
        _refuse(
            optimizer,
            f"it holds a parameter of shape {unknown[0]} that no plan of the suffix trains: make it of "
            'runtime.parameters("suffix")',
        )
    out["parameters"] = [names[id(p)] for p in group["params"] if id(p) in names]
    return out


def describe(optimizers: Sequence[torch.optim.Optimizer], trained: Mapping[str, torch.Tensor]) -> list[dict[str, Any]]:
    """Optimizer groups for a file; every trained parameter (by name) is in one of them."""
    if not optimizers:
        raise ArgumentError("optimizer is missing: the file steps what it trains")
    for optimizer in optimizers:
        _check_optimizer(optimizer)
        for group in optimizer.param_groups:
            for p in group["params"]:
                if p.requires_grad and not p.is_floating_point():
                    _refuse(optimizer, f"it holds a {p.dtype} parameter")
    held = _step.held(optimizers)
    left = [name for name, p in trained.items() if id(p) not in held]
    if left:
        raise ArgumentError(
            f"{', '.join(left[:5])}: the suffix trains it, and no optimizer holds it: add it to the optimizer, or "
            "freeze it with requires_grad_(False)"
        )
    names = {id(p): name for name, p in trained.items()}
    return [_described(o, group, names) for o in optimizers for group in o.param_groups]


# ---- the loss, for the file


def _refuse_numbers(output: Any) -> None:
    """Numbers among the outputs may change with the sizes, and a file gives the loss tensors alone."""
    specs = [_tree.flatten(output)[0]]
    for spec in specs:
        if spec.kind in ("const", "formula") and isinstance(spec.value, (int, float, complex)):
            raise ArgumentError(f"the model returns {spec.value!r} among its outputs; return tensors alone")
        specs += spec.children


def target_tensors(targets: Any) -> list[torch.Tensor]:
    """The tensors among targets, in their order. Dicts have one of their own in each call."""
    if isinstance(targets, torch.Tensor):
        return [targets]
    if isinstance(targets, (list, tuple)):
        return [t for part in targets for t in target_tensors(part)]
    raise TypeError(f"targets are a tensor, or tensors in lists and tuples, not {type(targets).__name__}")


def loss_file(
    loss_fn: Callable[[Any, Any], torch.Tensor] | None,
    output: Any,
    targets: Any,
    batch: tuple[str, tuple[int, int]] | None,
    sizes: Sequence[int],
) -> bytes:
    """The loss, captured with grad enabled, as the bytes of a file. batch: the symbol and its range; sizes: those that
    the suffix serves."""
    loss = loss_fn or default_loss
    if any(t.tensor.requires_grad for t in Target(loss).tensors()):
        raise ArgumentError("loss_fn trains parameters of its own: put them into the model")
    _refuse_numbers(output)
    target_tensors(targets)
    with torch.enable_grad():
        plan = capture(
            loss, (output, targets), both_grad_modes=False, dynamic_batch=None if batch is None else batch[1]
        )
        if batch is not None:
            plan.prepare_sizes(*sizes)
        data: bytes = plan._save(None, "none").to_bytes()
        return data


def as_leaves(output: Any) -> Any:
    """An output whose tensors are leaves with the same grad flags."""
    spec, leaves, _ = _tree.flatten(output)
    return _tree.unflatten(spec, [t.detach().clone().requires_grad_(t.requires_grad) for t in leaves])


def sizes_of(entries: Sequence[PlanEntry], batch: str) -> list[int]:
    """The batch sizes that plans of a file serve."""
    found = {n for e in entries for point in e.points for n in point}
    return sorted(found | {e.fixed[batch] for e in entries if batch in e.fixed})


def description(groups: Sequence[Mapping[str, Any]], tied: Sequence[str], seed: int | None) -> str:
    """What a file says about its training."""
    number = torch.initial_seed() if seed is None else seed
    if isinstance(number, bool) or not isinstance(number, int):
        raise TypeError(f"seed is an int, as torch.manual_seed takes it, not {type(number).__name__}")
    return json.dumps({"groups": groups, "tied": sorted(tied), "seed": str(number % (1 << 64))})


# ---- trainers


class Trainer:
    """A suffix that trains, from a file. Made by load_trainer.

    What it gives is bit for bit what train_suffix of the live split gives with the same optimizer; the sizes it serves
    are those of the file. Methods may be called from several threads, and wait for each other."""

    def __init__(self, path: str, native: Any) -> None:
        self.path = path
        self._native = native

    def train_suffix(self, boundary: BoundaryPayload, targets: Any) -> tuple[torch.Tensor, dict[str, Any]]:
        """One step: suffix, loss, backward, optimizer. The loss, and the gradients of the boundary by label, for
        backward_prefix; None where there is none, and "@name" for a share of a parameter that both halves train."""
        return self._step(boundary, targets, True)

    def accumulate(self, boundary: BoundaryPayload, targets: Any) -> tuple[torch.Tensor, dict[str, Any]]:
        """The same without the optimizer: gradients add up until the next `apply` or `train_suffix`."""
        return self._step(boundary, targets, False)

    def _step(self, boundary: BoundaryPayload, targets: Any, apply: bool) -> tuple[torch.Tensor, dict[str, Any]]:
        if not isinstance(boundary, BoundaryPayload):
            raise TypeError(f"a trainer takes the BoundaryPayload of a prefix, not {type(boundary).__name__}")
        loss, data = self._native.step(boundary.to_bytes(), target_tensors(targets), apply)
        found = BoundaryPayload.from_bytes(data).tensors
        return loss, {**dict.fromkeys(boundary.tensors), **found}

    def apply(self) -> None:
        """Steps what has gradients, and forgets these."""
        self._native.apply()

    def apply_tied(self, gradients: Mapping[str, torch.Tensor]) -> None:
        """Steps parameters that both halves train, with the whole gradients that backward_prefix returned."""
        if not isinstance(gradients, Mapping):
            raise TypeError(f"apply_tied takes the result of backward_prefix, not {type(gradients).__name__}")
        self._native.apply_tied([str(label) for label in gradients], list(gradients.values()))

    @property
    def steps(self) -> int:
        """How often gradients were applied."""
        return int(self._native.steps())

    def state(self) -> bytes:
        """All that training changes: parameters, statistics, the optimizer's state, the random generator."""
        data: bytes = self._native.state()
        return data

    def restore(self, state: bytes) -> None:
        """Goes on from a state of a trainer of the same file. Hostile bytes are refused, and change nothing."""
        self._native.restore(state)

    def save_weights(self, suffix: Path, path: Path) -> None:
        """Writes a suffix for inference, which SplitRuntime.save wrote for the same model, with the weights of now."""
        os.stat(suffix)
        self._native.weights(_native.Artifact(os.fsencode(suffix), [], False), os.fsencode(path))

    def __repr__(self) -> str:
        return f"cleave.Trainer of {self.path}: {self.steps} steps"

    def __reduce__(self) -> Any:
        raise TypeError("a Trainer cannot be copied or pickled: state() has all that it has learned")


def load_trainer(
    path: Path,
    *,
    seed: int | None = None,
    threads: int | None = None,
    allow_operators: Iterable[str] = (),
    check: bool = False,
    unproven: bool = False,
    timeout: float | None = None,
    trusted_keys: Iterable[Path] | None = None,
    sandbox: bool | None = None,
) -> Trainer:
    """Opens a file for training, which SplitRuntime.save_trainer wrote.

    seed: that the random generator of the trainer starts from, as torch.manual_seed takes it; None: the file's.
    threads: how many an operator may use; None: as many as the process. sandbox=False: you trust a file that nobody
    vouches for; it is refused otherwise, as nothing trains in a sandbox. Other arguments are those of `load`."""
    os.stat(path)
    if sandbox is True:
        raise InputError("nothing trains in a sandbox: leave the argument out, or give False for a file that you trust")
    artifact = _native.Artifact(os.fsencode(path), list(allow_operators), check, check, read_keys(trusted_keys))
    apart = _native.SANDBOX_AUTO if sandbox is None else _native.SANDBOX_OFF
    number = None if seed is None else seed % (1 << 64)
    return Trainer(
        os.fspath(path),
        _native.Trainer(artifact, number, read_threads(threads), apart, unproven, timeout or 0.0),
    )

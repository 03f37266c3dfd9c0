"""Checks the arguments of pipe_model before anything runs."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

import torch
from torch import nn

from ._arguments import read_choice, read_count, read_flag, read_function, read_number
from ._how import How, read_how
from ._stages import Folding
from .errors import ArgumentError
from .profile import Profile

if TYPE_CHECKING:
    from .pipe import Block

METHODS = ("acyclic", "multilevel", "metis", "mpipe", "pipedream", "exact", "auto")
TIES = ("replicate", "stage")
OBJECTIVES = ("simple", "bottleneck", "throughput")
SCHEDULES = ("gpipe", "1f1b", "interleaved")
# As in src/pipe/pipe.h; here, so that no list of a wrong number's length is made.
MOST_DEVICES = 4096
MOST_MICROBATCHES = 1 << 16
MOST_BYTES = (1 << 61) - 1
MOST_WEIGHT = 1e15  # sums of many still fit

BasicBlocks = Sequence[type[nn.Module] | str]


class Device(NamedTuple):
    """A device for stages: its speed relative to the profiled one, and its memory."""

    name: str = ""
    speed: float = 1.0
    memory: int | None = None  # bytes; None: no limit


class Wanted(NamedTuple):
    """What the user asked for."""

    batch_dim: int | None
    nparts: int
    folding: Folding
    method: str
    training: bool
    recomputation: bool
    profile_ops: bool
    n_iter: int
    profile: Profile | str | os.PathLike[str] | None
    devices: tuple[Device, ...]
    node_weight: Callable[[Block], float] | None
    edge_weight: Callable[[Block | None, Block], float] | None
    how: How
    options: dict[str, Any]  # of the partitioner
    given: dict[str, Any]  # as it was said


def read(given: Mapping[str, Any]) -> Wanted:
    """The arguments of pipe_model by name."""
    nparts = read_count(given["nparts"], "nparts", MOST_DEVICES)
    training = _training(given["training"], given["model"])
    if not isinstance(given["profile"], Profile):
        _path(given["profile"], "profile")
    return Wanted(
        _batch_dim(given["batch_dim"]),
        nparts,
        _folding(given),
        read_choice(given["partitioning_method"], METHODS, "partitioning_method"),
        training,
        read_flag(given["recomputation"], "recomputation"),
        read_flag(given["profile_ops"], "profile_ops"),
        read_count(given["n_iter"], "n_iter"),
        given["profile"],
        _devices(given["devices"], given["memory_limit"], nparts),
        read_function(given["node_weight_function"], "node_weight_function"),
        read_function(given["edge_weight_function"], "edge_weight_function"),
        read_how(on_guard=given["on_guard"], max_plans=given["max_plans"]),
        _options(given, nparts, training),
        dict(given),
    )


def scalar(x: Any) -> bool:
    """It holds for any number of devices."""
    return x is None or isinstance(x, int | float)


def weight(x: Any, name: str, where: str) -> float:
    """What a function of the caller said about a block."""
    try:
        found = read_number(x, f"{name} for {where}")
    except TypeError as error:  # not the caller's argument: what their function gave
        raise ArgumentError(str(error)) from None
    if found > MOST_WEIGHT:
        raise ArgumentError(f"{name} for {where} is {found:g}: the most is {MOST_WEIGHT:g}")
    return found


def _options(given: Mapping[str, Any], nparts: int, training: bool) -> dict[str, Any]:
    copies, stages, batches = given["param_copies"], given["max_stages"], given["microbatches"]
    seed = given["seed"]
    if type(seed) is not int or not 0 <= seed < 1 << 64:
        raise ArgumentError(f"seed is a whole number from 0 to 2^64 - 1, not {seed!r}")
    if batches is None:
        batches = min(4 * nparts, MOST_MICROBATCHES)
    return {
        "schedule": read_choice(given["schedule"], SCHEDULES, "schedule"),
        "microbatches": read_count(batches, "microbatches", MOST_MICROBATCHES),
        "bandwidth": _bandwidth(given["bandwidth"], nparts),
        "latency_us": 1e6 * read_number(given["latency"], "latency"),
        "param_copies": (2.0 if training else 1.0) if copies is None else read_number(copies, "param_copies"),
        "max_stages": 0 if stages is None else read_count(stages, "max_stages"),
        "seed": seed,
        "seconds": read_number(given["seconds"], "seconds"),
        "objective": read_choice(given["objective"], OBJECTIVES, "objective"),
    }


def _folding(given: Mapping[str, Any]) -> Folding:
    ties = read_choice(given["tie_policy"], TIES, "tie_policy")
    return Folding(read_count(given["depth"], "depth"), _basic_blocks(given["basic_blocks"]), ties == "stage")


def _training(given: Any, model: Any) -> bool:
    """Unless it is said: whether something could be trained."""
    if given is not None:
        return read_flag(given, "training")
    params = model.parameters() if isinstance(model, nn.Module) else ()
    return torch.is_grad_enabled() and any(p.requires_grad for p in params)


def _batch_dim(given: Any) -> int | None:
    if given is not None and (type(given) is not int or given < 0):
        raise ArgumentError(f"batch_dim is a dimension of the inputs or None, not {given!r}")
    return given


def _path(given: Any, name: str) -> None:
    if given is not None and not isinstance(given, str | os.PathLike):
        raise ArgumentError(f"{name} is the path of a file, not {given!r}")


def _basic_blocks(given: Any) -> tuple[str, ...]:
    if given is not None and (isinstance(given, str) or not isinstance(given, Iterable)):
        raise ArgumentError(f"basic_blocks is a list of classes of modules, or of their names or paths, not {given!r}")
    out = []
    for b in given or ():
        if not isinstance(b, str) and not (isinstance(b, type) and issubclass(b, nn.Module)):
            raise ArgumentError(f"basic_blocks are classes of modules, or their names or paths, not {b!r}")
        out.append(b if isinstance(b, str) else b.__name__)
    return tuple(out)


def _devices(given: Any, limit: Any, nparts: int) -> tuple[Device, ...]:
    if given is not None and (isinstance(given, str) or not isinstance(given, Iterable)):
        raise ArgumentError(f"devices is a list with an entry for each part, not {given!r}")
    devices = [Device(f"device {i}") for i in range(nparts)] if given is None else [_device(d) for d in given]
    if len(devices) != nparts:
        raise ArgumentError(f"devices has {len(devices)} entries for nparts={nparts}")
    one = limit is None or isinstance(limit, str) or not isinstance(limit, Iterable)
    limits = [limit] * nparts if one else list(limit)
    if len(limits) != nparts:
        raise ArgumentError(f"memory_limit has {len(limits)} entries for nparts={nparts}")
    return tuple(
        d if n is None else d._replace(memory=_bytes(n, "memory_limit")) for d, n in zip(devices, limits, strict=True)
    )


def _bytes(n: Any, name: str) -> int:
    if type(n) is not int or not 1 <= n <= MOST_BYTES:
        raise ArgumentError(f"{name} is a whole number of bytes from 1 to 2^61 - 1, not {n!r}")
    return int(n)


def _device(given: Any) -> Device:
    if isinstance(given, Device):
        return _checked_device(given)
    if type(given) is int and given >= 0:
        return Device(f"cuda:{given}")
    if isinstance(given, str | torch.device):
        return Device(str(given))
    raise ArgumentError(f"devices are names, torch.devices, numbers of GPUs or cleave.Device, not {given!r}")


def _checked_device(d: Device) -> Device:
    if not isinstance(d.name, str):
        raise ArgumentError(f"devices have names, not {d.name!r}")
    speed = read_number(d.speed, f"the speed of {d.name or 'a device'} in devices")
    if not speed:
        raise ArgumentError(f"the speed of {d.name or 'a device'} in devices is 0: it could run nothing")
    memory = None if d.memory is None else _bytes(d.memory, f"the memory of {d.name or 'a device'} in devices")
    return Device(d.name, speed, memory)


def _bandwidth(given: Any, nparts: int) -> list[float] | None:
    """The matrix, row by row."""
    if given is None:
        return None
    if not isinstance(given, Iterable) or isinstance(given, str):
        return [read_number(given, "bandwidth")] * (nparts * nparts)
    rows = [list(row) if isinstance(row, Iterable) and not isinstance(row, str) else [] for row in given]
    if len(rows) != nparts or any(len(row) != nparts for row in rows):
        raise ArgumentError(f"bandwidth is a number, or a matrix with a row and a column for each of {nparts} devices")
    return [read_number(x, "bandwidth") for row in rows for x in row]

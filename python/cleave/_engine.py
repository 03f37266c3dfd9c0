"""What runs a plan: the argument `engine` of live models."""

from __future__ import annotations

from .errors import ArgumentError

ENGINES = ("auto", "tape", "native")


def read_engine(given: str, mode: str) -> bool:
    """The argument of a user, checked: whether the native engine runs what needs no gradients."""
    if not isinstance(given, str):
        raise TypeError(f"engine is one of {', '.join(ENGINES)}, not {given!r}")
    if given not in ENGINES:
        raise ArgumentError(f"engine is one of {', '.join(ENGINES)}, not {given!r}")
    if given == "native" and mode != "generated_eager":
        raise ArgumentError(f'engine="native" goes with mode="generated_eager": mode={mode!r} runs on libtorch')
    return given == "native"

"""Tells the core where Python has OpenVINO, without loading it: its C library is opened when a segment needs it."""

from __future__ import annotations

import importlib.util
import os

from . import _native


def find() -> str | None:
    """The folder of the package; None: it is not installed."""
    spec = importlib.util.find_spec("openvino")
    return None if spec is None or spec.origin is None else os.path.dirname(spec.origin)


def tell() -> None:
    _native.openvino_set_folder(find())

#!/usr/bin/env python3
"""The lists of operators that OpenVINO takes (OPENVINO_… in src/plan/ops.def) against the installed OpenVINO.

    python tools/openvino_operators.py            # operators that its front end names and the lists do not

For a new release: compile a model of each name that it prints, compare its numbers with torch's (equal elements,
negative and large integers, nan), add it to OPENVINO_TAKE or to the OPENVINO_REFUSE whose reason is its own, run
tools/operators.py --write, and set REVIEWED below.
"""

from __future__ import annotations

import importlib.util
import re
import sys
from pathlib import Path

import operators

REVIEWED = "2026.4"

_NAME = re.compile(rb"aten(?:::|\.)([A-Za-z_0-9]+)(?:\.[A-Za-z_]+)?\x00")


def plain(name: str) -> str:
    """Without what says that it writes in place."""
    return name[:-1] if name.endswith("_") and not name.endswith("__") else name


def installed() -> set[str]:
    """Operators of aten that the front end of the installed OpenVINO names. Its library holds short names as numbers in
    code, so this is not all of them."""
    import torch

    spec = importlib.util.find_spec("openvino")
    assert spec is not None, "OpenVINO is not installed"
    assert spec.origin is not None
    library = next((Path(spec.origin).parent / "libs").glob("libopenvino_pytorch_frontend.so*"))
    named = {name.decode() for name in _NAME.findall(library.read_bytes())}
    known = {full.partition(".")[0] for full in torch._C._dispatch_get_all_op_names()}
    return {plain(name) for name in named if f"aten::{name}" in known}


def unknown() -> list[str]:
    return sorted(installed() - set(operators.reasons("OPENVINO_TAKE")) - set(operators.reasons("OPENVINO_REFUSE")))


def main() -> int:
    missing = unknown()
    print("\n".join(missing))
    return 1 if missing else 0


if __name__ == "__main__":
    sys.exit(main())

#!/usr/bin/env python3
"""The list of operators that OpenVINO takes (src/segment/support_openvino.def) against the installed OpenVINO.

    python tools/openvino_operators.py            # operators that its front end names and the list does not
    python tools/openvino_operators.py --format   # sorts and wraps the list after names were added anywhere in it

For a new release: compile a model of each name that the first command prints, compare its numbers with torch's (equal
elements, negative and large integers, nan), add it to TAKES or to the REFUSES whose reason is its own, run the second
command, and set REVIEWED below.
"""

from __future__ import annotations

import importlib.util
import re
import sys
import textwrap
from pathlib import Path

LIST = Path(__file__).resolve().parent.parent / "src" / "segment" / "support_openvino.def"
REVIEWED = "2026.4"

_BLOCK = re.compile(r'^(TAKES|REFUSES)\((?:("[^"]*"),)?\n([^()]*)\)$', re.MULTILINE)
_NAME = re.compile(rb"aten(?:::|\.)([A-Za-z_0-9]+)(?:\.[A-Za-z_]+)?\x00")


def read(text: str | None = None) -> tuple[set[str], dict[str, str]]:
    """What is taken, and for what is refused the reason."""
    taken, refused = set(), {}
    for macro, reason, body in _BLOCK.findall(LIST.read_text() if text is None else text):
        for name in re.findall(r'"([^"]+)"', body):
            if macro == "TAKES":
                taken.add(name)
            else:
                refused[name] = reason.strip('"')
    return taken, refused


def formatted(text: str) -> str:
    def block(match: re.Match[str]) -> str:
        macro, reason, body = match.groups()
        names = sorted(set(re.findall(r'"[^"]+"', body)), key=lambda name: name.strip('"').encode())
        lines = textwrap.wrap(", ".join(names) + ")", 116, break_long_words=False, break_on_hyphens=False)
        return f"{macro}({reason + ',' if reason else ''}\n" + "\n".join("\t" + line for line in lines)

    return _BLOCK.sub(block, text)


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
    taken, refused = read()
    return sorted(name for name in installed() if name not in taken and name not in refused)


def main() -> int:
    if sys.argv[1:] == ["--format"]:
        LIST.write_text(formatted(LIST.read_text()))
        return 0
    missing = unknown()
    print("\n".join(missing))
    return 1 if missing else 0


if __name__ == "__main__":
    sys.exit(main())

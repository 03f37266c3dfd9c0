#!/usr/bin/env python3
"""The list of operators that a file may hold (src/file/operators.def) against the installed torch.

    python tools/operators.py            # operators of this torch that the list says nothing about, with their schemas
    python tools/operators.py --format   # sorts and wraps the list after names were added anywhere in it

For a new release of torch: read what the first command prints, add each name to ALLOW or to the REFUSE whose reason is
its own, run the second command, and set REVIEWED below.
"""

from __future__ import annotations

import re
import sys
import textwrap
from pathlib import Path
from typing import NamedTuple

LIST = Path(__file__).resolve().parent.parent / "src" / "file" / "operators.def"
REVIEWED = "2.13"
SPACES = ("aten", "prims", "quantized")  # every operator of these is on the list, one way or the other

_BLOCK = re.compile(r'^(ALLOW|REFUSE)\((\w+|"[^"]*"),([^()]*)\)$', re.MULTILINE)


class Listed(NamedTuple):
    """The list: what is allowed ("aten::add"), and for what is refused ("aten::from_file", "c10d::*") the reason."""

    allowed: set[str]
    refused: dict[str, str]

    def knows(self, name: str) -> bool:
        return name in self.allowed or name in self.refused or name.split("::")[0] + "::*" in self.refused


def read(text: str | None = None) -> Listed:
    allowed, refused = set(), {}
    for macro, head, body in _BLOCK.findall(LIST.read_text() if text is None else text):
        for name in re.findall(r'"([^"]+)"', body):
            if macro == "ALLOW":
                allowed.add(f"{head}::{name}")
            else:
                refused[name] = head.strip('"')
    return Listed(allowed, refused)


def formatted(text: str) -> str:
    def block(match: re.Match[str]) -> str:
        macro, head, body = match.groups()
        names = sorted(set(re.findall(r'"[^"]+"', body)), key=lambda name: name.strip('"').encode())
        lines = textwrap.wrap(", ".join(names) + ")", 116, break_long_words=False, break_on_hyphens=False)
        return f"{macro}({head},\n" + "\n".join("\t" + line for line in lines)

    return _BLOCK.sub(block, text)


def installed() -> dict[str, list[str]]:
    """Names of all operators of the installed torch, without overloads, with the names of their overloads."""
    import torch

    found: dict[str, list[str]] = {}
    for full in torch._C._dispatch_get_all_op_names():
        name, _, overload = full.partition(".")
        found.setdefault(name, []).append(overload)
    return found


def unknown() -> dict[str, list[str]]:
    listed = read()
    return {name: overloads for name, overloads in sorted(installed().items()) if not listed.knows(name)}


def main() -> int:
    if sys.argv[1:] == ["--format"]:
        LIST.write_text(formatted(LIST.read_text()))
        return 0
    import torch

    missing = unknown()
    for name, overloads in missing.items():
        for overload in overloads:
            print(torch._C._get_schema(name, overload))
    print(f"torch {torch.__version__}: {len(missing)} operators are not on the list", file=sys.stderr)
    return 1 if missing else 0


if __name__ == "__main__":
    sys.exit(main())

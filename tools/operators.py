#!/usr/bin/env python3
"""The table of operators (src/plan/ops.def), and what a file may hold of them against the installed torch.

    python tools/operators.py            # what a new list would allow and no longer allow, with schemas
    python tools/operators.py --write    # writes the new list; all lists sorted and wrapped

The rule: an operator is allowed when it is public (see INNER) and no FILE_REFUSE names it, or when a FILE_EXCEPT names
it. These two are written by hand, each group with its reason; FILE_ALLOW is what the rule makes of them and of all
operators of the release of torch in REVIEWED. The library reads the names and not the rule, so that nothing is allowed
because a later torch brings it.

For a new release: read what the first command prints, add to FILE_EXCEPT or FILE_REFUSE what needs it, set REVIEWED,
run the second command, then tools/fuzz_operators.py.
"""

from __future__ import annotations

import re
import sys
import textwrap
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

LIST = Path(__file__).resolve().parent.parent / "src" / "plan" / "ops.def"
REVIEWED = "2.13"
PUBLIC = ("aten", "prims")  # namespaces whose public operators are allowed; of others only what EXCEPT names

# What PyTorch keeps for itself: inner and backward operators, formulas of forward mode, those of one library below.
# They leave checks to the operators above them.
INNER = re.compile(r"_(?!_)|.*backward|.*_jvp$|(cudnn|miopen|mkldnn|mps|fbgemm|quantized)_")

_BLOCK = re.compile(r'^((?:LIST\()?[A-Z]+_[A-Z]+)([(,] ?)("[^"]*"|\w+),\n([^()]*)\)$', re.MULTILINE)
_ROW = re.compile(r'^OP\((\w+), "([^"]+)"(.*?)\)$', re.MULTILINE | re.DOTALL)
_COLUMN = re.compile(r'(\w+)(?:\(((?:"(?:[^"\\]|\\.)*"|[^"()])*)\))?')


class Row(NamedTuple):
    """An operator and its columns: {"ELEMENTWISE": [], "WRITER": ["relu_"]}."""

    id: str
    name: str
    columns: dict[str, list[str]]


def rows() -> list[Row]:
    def columns(text: str) -> dict[str, list[str]]:
        return {name: re.split(r",\s*", inside) if inside else [] for name, inside in _COLUMN.findall(text)}

    return [Row(name, full, columns(rest)) for name, full, rest in _ROW.findall(LIST.read_text())]


def with_column(name: str) -> dict[str, list[str]]:
    """The operators that have a column, and what it says."""
    return {row.name: row.columns[name] for row in rows() if name in row.columns}


def blocks(text: str, kind: str) -> Iterator[tuple[str, list[str]]]:
    """Of the lists of that kind ("FILE_ALLOW") the head and the names."""
    for macro, _, head, body in _BLOCK.findall(text):
        if macro.removeprefix("LIST(") == kind:
            yield head.strip('"'), re.findall(r'"([^"]+)"', body)


def reasons(kind: str, text: str | None = None) -> dict[str, str]:
    """Names, and the reason that heads their list."""
    found = blocks(LIST.read_text() if text is None else text, kind)
    return {name: head for head, names in found for name in names}


class Listed(NamedTuple):
    """The list: what is allowed ("aten::add"); for exceptions from the rule ("aten::_softmax") and for what is refused
    ("aten::from_file", "c10d::*") the reason."""

    allowed: set[str]
    excepted: dict[str, str]
    refused: dict[str, str]

    def refuses(self, name: str) -> bool:
        return name in self.refused or name.split("::")[0] + "::*" in self.refused


def read(text: str | None = None) -> Listed:
    allowed = blocks(LIST.read_text() if text is None else text, "FILE_ALLOW")
    names = {f"{space}::{name}" for space, names in allowed for name in names}
    return Listed(names, reasons("FILE_EXCEPT", text), reasons("FILE_REFUSE", text))


def installed() -> dict[str, list[str]]:
    """Names of all operators of the installed torch, without overloads, with the names of their overloads."""
    import torch

    found: dict[str, list[str]] = {}
    for full in torch._C._dispatch_get_all_op_names():
        name, _, overload = full.partition(".")
        found.setdefault(name, []).append(overload)
    return found


def is_public(name: str) -> bool:
    space, base = name.split("::")
    return space in PUBLIC and not INNER.match(base)


def by_rule(listed: Listed) -> set[str]:
    public = {name for name in installed() if is_public(name) and not listed.refuses(name)}
    return public | set(listed.excepted)


def written(text: str, allowed: set[str]) -> str:
    """The table with these names in FILE_ALLOW; all lists sorted and wrapped."""

    def block(match: re.Match[str]) -> str:
        macro, between, head, body = match.groups()
        names = set(re.findall(r'"([^"]+)"', body))
        if macro == "LIST(FILE_ALLOW":
            names = {name.split("::")[1] for name in allowed if name.split("::")[0] == head.strip('"')}
        quoted = [f'"{name}"' for name in sorted(names, key=str.encode)]
        lines = textwrap.wrap(", ".join(quoted) + ")", 116, break_long_words=False, break_on_hyphens=False)
        return f"{macro}{between}{head},\n" + "\n".join("\t" + line for line in lines)

    return _BLOCK.sub(block, text)


def main() -> int:
    import torch

    listed, found = read(), installed()
    allowed = by_rule(listed)
    if sys.argv[1:] == ["--write"]:
        LIST.write_text(written(LIST.read_text(), allowed))
        return 0
    for sign, names in (("+", allowed - listed.allowed), ("-", listed.allowed - allowed)):
        for name in sorted(names):
            for overload in found.get(name, []):
                print(sign, torch._C._get_schema(name, overload))
    changes = len(allowed ^ listed.allowed)
    print(f"torch {torch.__version__}: {changes} operators differ from the list", file=sys.stderr)
    return 1 if changes else 0


if __name__ == "__main__":
    sys.exit(main())

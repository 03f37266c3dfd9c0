"""What programs built against Cleave rely on, held against lists that are checked in.

    python tests/abi/run.py <build folder> [--cc <compiler>] [--update]

core.txt and cleave.txt have every symbol that libcleave-core and libcleave export: the functions of cleave.h and
nothing else. layout.txt has sizes and offsets of the public structs and the numbers of the enumerators. The core may
need libc, libm, jansson, METIS, zstd, OpenSSL, nghttp2 and zlib alone. Every function of the header has a comment; one
that changes a handle says what threads may do, and every handle that is given out has its _free.
--update (`make abi`) rewrites the lists, and says which changes break programs that are built already.
"""

from __future__ import annotations

import argparse
import re
import subprocess
import sys
import tempfile
from dataclasses import dataclass
from pathlib import Path

HERE = Path(__file__).resolve().parent
HEADER = HERE.parent.parent / "include" / "cleave.h"

Symbols = list[str]
Layout = dict[str, dict[str, tuple[int, ...]]]  # struct or enum -> "" (size), field (offset, size), enumerator (number)


# ---- the header ------------------------------------------------------------------------------------------------------


@dataclass
class Function:
    """One declaration of the header with its comment; `run`: in libcleave alone."""

    name: str
    text: str
    comment: str
    run: bool


def functions(header: str) -> list[Function]:
    """All functions that the header exports."""
    found = []
    pattern = r"(?:/\*\*(?P<comment>(?:(?!\*/).)*)\*/\s*)?^CLV_API (?P<text>[^;]*);|@defgroup (?P<group>[^\n]*)"
    group = ""
    for m in re.finditer(pattern, header, re.DOTALL | re.MULTILINE):
        if m["group"]:
            group = m["group"]
            continue
        name = re.search(r"\b(clv_\w+)\(", m["text"])
        assert name, m["text"]
        comment = m["comment"] or ""
        found.append(Function(name[1], m["text"], comment, "[run]" in group + comment))
    return found


def undocumented(f: Function) -> list[str]:
    """What the header leaves out about a function: the conventions of its main page cover the rest."""
    wrong = [] if f.comment.strip() else [f"{f.name} has no comment in cleave.h"]
    changed = re.search(r"[(,] ?(?!const|struct)clv_\w+ \*\w", f.text) and "_free(" not in f.text
    if changed and not re.search(r"\*(out|to)\)$", f.text) and "@threads" not in f.comment:
        wrong.append(f"{f.name} changes a handle: its comment in cleave.h has no @threads")
    return wrong


def unreleased(header: str, found: list[Function]) -> list[str]:
    """Handles that the header gives out without a function to release them."""
    names = {f.name for f in found}
    handles = set(re.findall(r"^typedef struct (clv_\w+) \1;", header, re.MULTILINE))
    return [f"{h} has no {h}_free" for h in sorted(handles) if f"{h}_free" not in names]


def fields(body: str) -> list[str]:
    """Names of the fields of a struct without comments."""
    names = []
    for declaration in filter(str.strip, body.split(";")):
        pointer = re.search(r"\(\*(\w+)\)\(", declaration)
        if pointer:
            names.append(pointer[1])
            continue
        for part in declaration.split(","):
            name = re.search(r"(\w+)\s*(\[\w*\])*\s*$", part)
            assert name, declaration
            names.append(name[1])
    return names


def layout_program(header: str) -> str:
    """A C program that prints the layout of all structs and enums of the header."""
    lines = ["#define CLV_EXPERIMENTAL", "#include <cleave.h>", "#include <stdio.h>", "int main(void)", "{"]
    plain = re.sub(r"/\*.*?\*/", "", header, flags=re.DOTALL)
    for kind, name, body in re.findall(
        r"^typedef (struct|enum) (\w+) \{\s*\n(.*?)^\} \2;", plain, re.DOTALL | re.MULTILINE
    ):
        if kind == "struct":
            lines.append(f'printf("{name} . %zu\\n", sizeof({name}));')
            for field in fields(body):
                where = f"offsetof({name}, {field}), sizeof((({name} *)0)->{field})"
                lines.append(f'printf("{name} {field} %zu %zu\\n", {where});')
        elif "CLV_STATUS_LIST(X)" in body:
            lines += [f'#define X(id, text) printf("{name} CLV_" #id " %d\\n", (int)CLV_##id);', "CLV_STATUS_LIST(X)"]
            lines.append("#undef X")
        else:
            for e in re.findall(r"\b(CLV_\w+)\s*(?:=[^,}]*)?(?:,|$)", body, re.MULTILINE):
                lines.append(f'printf("{name} {e} %d\\n", (int){e});')
    return "\n".join([*lines, "return 0;", "}", ""])


# ---- what was built --------------------------------------------------------------------------------------------------


def output(*command: str) -> list[str]:
    return subprocess.run(command, check=True, capture_output=True, text=True).stdout.splitlines()


def exported(library: Path) -> Symbols:
    return sorted(line.split()[-1] for line in output("nm", "-D", "--defined-only", str(library)))


def measured(cc: str) -> Layout:
    """The layout as this compiler has it."""
    with tempfile.TemporaryDirectory() as folder:
        source, program = Path(folder) / "layout.c", Path(folder) / "layout"
        source.write_text(layout_program(HEADER.read_text()))
        output(cc, "-std=c11", "-Wall", "-Werror", f"-I{HEADER.parent}", str(source), "-o", str(program))
        return read_layout(output(str(program)))


def foreign(library: Path) -> list[str]:
    """What the core needs and should not."""
    wrong = []
    for line in output("nm", "-D", "--undefined-only", str(library)):
        kind, name = line.split()[-2:]
        if kind not in "wv" and not re.search(
            r"@+(GLIBC|GCC|OPENSSL)_|^json_|^METIS_|^ZSTD_|^nghttp2_|^(in|de)flate", name
        ):
            known = "libc, libm, jansson, METIS, zstd, OpenSSL, nghttp2 or zlib"
            wrong.append(f"{library.name} needs {name}, which is not in {known}")
    for line in output("objdump", "-p", str(library)):
        needed = re.match(r"\s*NEEDED\s+(\S+)", line)
        allowed = r"(lib(c|m|jansson|metis|zstd|crypto|ssl|nghttp2|z|pthread|gcc_s)\.so|ld-linux)"
        if needed and not re.match(allowed, needed[1]):
            wrong.append(f"{library.name} loads {needed[1]}")
    return wrong


# ---- lists -----------------------------------------------------------------------------------------------------------


def read_layout(lines: list[str]) -> Layout:
    layout: Layout = {}
    for line in lines:
        name, member, *numbers = line.split()
        layout.setdefault(name, {})[member] = tuple(map(int, numbers))
    return layout


def write_layout(layout: Layout) -> str:
    return "".join(
        f"{name} {member} {' '.join(map(str, numbers))}\n"
        for name, members in layout.items()
        for member, numbers in members.items()
    )


def broken_symbols(old: Symbols, new: Symbols) -> list[str]:
    return [f"{name} is gone" for name in old if name not in new]


def broken_layout(old: Layout, new: Layout) -> list[str]:
    """Why programs built with the old layout would not work with the new one.

    A struct may only grow, beyond its old size: a caller's shorter struct is told by its size, so that a field which
    lies in what was padding would be read as set."""
    wrong = []
    for name, members in old.items():
        now = new.get(name, {})
        for member, numbers in members.items():
            if member not in now:
                wrong.append(f"{name} {member} is gone")
            elif now[member] != numbers and member != ".":
                wrong.append(f"{name} {member} was {numbers}, is {now[member]}")
        size = members.get(".", (0,))[0]
        for member, numbers in now.items():
            if "." in members and member not in members and numbers[0] < size:
                wrong.append(f"{name} {member} lies within the {size} bytes that the struct had: put it behind them")
    return wrong


class Checks:
    """Compares lists, or rewrites them."""

    def __init__(self, update: bool) -> None:
        self.update = update
        self.failed = 0

    def wrong(self, messages: list[str]) -> None:
        self.failed += len(messages)
        for message in messages:
            print(f"FAILED {message}")

    def compare(self, file: Path, got: str, breaks: list[str]) -> None:
        old = file.read_text() if file.exists() else ""
        for message in breaks:
            print(f"breaks programs that are built already: {message}")
        if self.update:
            file.write_text(got)
        elif got != old:
            before, after = set(old.splitlines()), set(got.splitlines())
            changes = [f"  - {line}" for line in before - after] + [f"  + {line}" for line in after - before]
            self.wrong([f"{file.name} (if this is meant: make abi):\n" + "\n".join(sorted(changes))])

    def symbols(self, file: Path, library: Path, declared: set[str]) -> None:
        got = exported(library)
        self.wrong(
            [f"{library.name} exports {s}, which cleave.h does not declare" for s in sorted(set(got) - declared)]
        )
        self.wrong([f"{library.name} does not export {s}" for s in sorted(declared - set(got))])
        old = file.read_text().split() if file.exists() else []
        self.compare(file, "".join(f"{s}\n" for s in got), broken_symbols(old, got))

    def layout(self, file: Path, cc: str) -> None:
        got = measured(cc)
        old = read_layout(file.read_text().splitlines()) if file.exists() else {}
        self.compare(file, write_layout(got), broken_layout(old, got))


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("build", type=Path)
    parser.add_argument("--cc", default="cc")
    parser.add_argument("--update", action="store_true")
    args = parser.parse_args()
    checks = Checks(args.update)
    header = HEADER.read_text()
    declared = functions(header)
    core, whole = args.build / "libcleave-core.so", args.build / "libcleave.so"
    checks.symbols(HERE / "core.txt", core, {f.name for f in declared if not f.run})
    if whole.exists():
        checks.symbols(HERE / "cleave.txt", whole, {f.name for f in declared})
    checks.wrong(foreign(core))
    checks.layout(HERE / "layout.txt", args.cc)
    for f in declared:
        checks.wrong(undocumented(f))
    checks.wrong(unreleased(header, declared))
    print(f"{len(declared)} functions, {checks.failed} failures")
    return 1 if checks.failed else 0


if __name__ == "__main__":
    sys.exit(main())

"""Where programs and libraries look for others, and what they are hardened with: read from all that was built.

    python tests/elf/run.py <folder> [--cet] [--installed]

No entry of a search path is empty or relative: either is the working directory, from which a stranger's library would
be loaded. --installed: all entries start at $ORIGIN, so that the folder can be moved. --cet: the compiler has
-fcf-protection. The static program for devices (cleave-edge), where it was built, is small.
"""

from __future__ import annotations

import argparse
import re
import subprocess
import sys
from pathlib import Path

ENDBR64 = b"\xf3\x0f\x1e\xfa"


def read(*command: str | Path) -> str:
    return subprocess.run(command, check=True, capture_output=True, text=True, errors="replace").stdout


MOST_EDGE = 3_000_000  # bytes of the static program for devices


def too_large(path: Path) -> list[str]:
    size = path.stat().st_size
    large = path.name.startswith("cleave-edge") and size > MOST_EDGE
    return [f"{path}: {size} bytes, the program for devices has {MOST_EDGE} at most"] if large else []


def is_elf(path: Path) -> bool:
    """A program or a shared library."""
    if path.is_symlink() or not path.is_file():
        return False
    with path.open("rb") as f:
        head = f.read(18)
    return head[:4] == b"\x7fELF" and head[16] in (2, 3)


def search_paths(dynamic: str) -> list[str]:
    found = re.findall(r"\((?:RUNPATH|RPATH)\).*?\[(.*)\]", dynamic)
    return [entry for paths in found for entry in paths.split(":")]


def wrong_paths(path: Path, installed: bool) -> list[str]:
    entries = search_paths(read("readelf", "-dW", path))
    bad = [e for e in entries if not e.startswith("$ORIGIN") and (installed or not e.startswith("/"))]
    return [f"{path}: looks for libraries in {e!r}" for e in bad]


def not_hardened(path: Path, cet: bool) -> list[str]:
    headers, dynamic = read("readelf", "-lW", path), read("readelf", "-dW", path)
    symbols = read("nm", "-D", "--undefined-only", path)
    static = "INTERP" not in headers and "NEEDED" not in dynamic  # nothing is looked up: its own libc has both checks
    stack = re.search(r"GNU_STACK.*", headers)
    checks = {
        "no stack protector": static or "__stack_chk_fail" in symbols,
        "no fortified function": static or re.search(r"__\w+_chk\b", symbols),
        "no RELRO": "GNU_RELRO" in headers,
        "symbols are bound late": re.search(r"BIND_NOW|\bNOW\b", dynamic),
        "an executable stack": stack and "RWE" not in stack[0],
        "not position independent": re.search(r"Elf file type is DYN", headers),
        "no CET": not cet
        or "AArch64" in read("readelf", "-h", path)
        or path.read_bytes().count(ENDBR64) > 20,  # the mark in the header depends on libc's files too
    }
    return [f"{path}: {what}" for what, good in checks.items() if not good]


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=Path)
    parser.add_argument("--cet", action="store_true")
    parser.add_argument("--installed", action="store_true")
    args = parser.parse_args()
    # not ours, or builds of their own
    skipped = {"sanitize", "address", "undefined", "fuzz", "coverage", "wheel", "peers", "CMakeFiles"}
    files = (p for p in sorted(args.folder.rglob("*")) if not skipped & set(p.relative_to(args.folder).parts))
    found = [p for p in files if is_elf(p)]
    wrong = [w for p in found for w in wrong_paths(p, args.installed)]
    product = [p for p in found if re.match(r"libcleave|cleave|_native", p.name)]
    wrong += [w for p in product for w in too_large(p)]
    wrong += [w for p in product for w in not_hardened(p, args.cet)]
    for w in wrong:
        print(f"FAILED {w}")
    if len(product) < 2:
        print(f"FAILED {args.folder}: holds no library and no program of Cleave")
        return 1
    print(f"{len(found)} files, {len(product)} of them the product's; {len(wrong)} failures")
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())

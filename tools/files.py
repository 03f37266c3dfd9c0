"""Lists every source file with the first sentence of its opening comment, grouped by folder (the site shows it).

python tools/files.py            prints the list
python tools/files.py --check    names the files that do not say what they are for
"""

from __future__ import annotations

import re
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
FOLDERS = ("include", "src", "python", "tools", "bench", "fuzz", "examples", "cmake")
KINDS = (
    ".h",
    ".hpp",
    ".c",
    ".cpp",
    ".py",
    ".sh",
    ".def",
    ".cmake",
    ".mjs",
    ".js",
)  # the first that says something is quoted


def opening(text: str) -> str:
    """The first paragraph of a file's opening comment, in one line; empty where there is none."""
    text = text.removeprefix("#!/usr/bin/env bash\n").removeprefix("#!/usr/bin/env python3\n")
    if text.startswith("/*"):
        lines = [re.sub(r"^\s*\*? ?", "", line) for line in text[2 : text.index("*/")].splitlines()]
    elif text.startswith("//"):
        lines = [line[2:] if line.startswith("//") else "" for line in text.splitlines()]
    elif text.startswith('"""'):
        lines = text[3 : text.index('"""', 3)].splitlines()
    elif text.startswith("#"):
        lines = [line.lstrip("# ") if line.startswith("#") else "" for line in text.splitlines()]
    else:
        return ""
    paragraph: list[str] = []
    for line in lines:
        if not line.strip() and paragraph:
            break
        paragraph.append(line.strip())
    return " ".join(paragraph).removeprefix("*").removeprefix("@mainpage").strip()


def first_sentence(text: str) -> str:
    return re.split(r"(?<=\S)\.(?= [A-Z`(]|$)", text, maxsplit=1)[0].strip().rstrip(":")


def purpose(paths: list[Path]) -> str:
    """What the files of one name are for, as the first of them says."""
    said = (opening(path.read_text(encoding="utf-8")) for path in sorted(paths, key=lambda p: KINDS.index(p.suffix)))
    return next((re.sub(r": see \w+\.h$", "", first_sentence(text)) for text in said if text), "")


def listing() -> tuple[str, list[str]]:
    """The tables as Markdown, and the files that do not say what they are for."""
    names: dict[str, dict[str, list[Path]]] = {}
    for path in (path for folder in FOLDERS for path in (ROOT / folder).rglob("*")):
        if path.suffix in KINDS:
            folder = path.relative_to(ROOT).parent.as_posix()
            names.setdefault(folder, {}).setdefault(path.stem, []).append(path)
    parts, silent = [], []
    for folder in sorted(names, key=lambda f: (FOLDERS.index(f.split("/")[0]), f)):
        lines = [f"## {folder}\n", "| file | |", "|---|---|"]
        for stem, paths in sorted(names[folder].items()):
            text = purpose(paths)
            if not text and any(path.stat().st_size for path in paths):
                silent.append(f"{folder}/{stem}")
            kinds = sorted(path.suffix for path in paths)
            name = f"`{stem}{kinds[0]}`" + "".join(f", `{kind}`" for kind in kinds[1:])
            text = text.replace("|", "\\|").replace("<", "&lt;")
            lines.append(f"| {name} | {text} |")
        parts.append("\n".join(lines))
    return "\n\n".join(parts), silent


def main() -> int:
    text, silent = listing()
    if sys.argv[1:] != ["--check"]:
        print(text)
        return 0
    for name in silent:
        print(f"{name}: no comment at the top says what it is for")
    return int(bool(silent))


if __name__ == "__main__":
    sys.exit(main())

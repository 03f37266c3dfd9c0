"""Sphinx configuration of the site that `make docs` builds (tools/docs.sh): build/docs/html/index.html.

The pages are the Markdown files of the repository, in their places, so links work on the site as they do in the tree.
Five pages are completed here: README gets the table of contents, docs/examples.md the sources of the examples,
docs/python-api.md the docstrings, docs/c-api.md the list of functions, which links to doxygen's pages in c/, and
docs/files.md the list of source files (tools/files.py).
"""

from __future__ import annotations

import inspect
import re
import runpy
import xml.etree.ElementTree as ET
from pathlib import Path
from typing import Any

import cleave

ROOT = Path(__file__).resolve().parent.parent
DOXYGEN = ROOT / "build" / "docs" / "xml"
CONTENTS = {
    "Guides": "capture split training payload serve remote pipe trace optimize native artifact security",
    "Tools": "command-line pictures report diff notebook benchmark-api benchmarks",
    "Reference": "python-api c-api plan-format examples",
    "Development": "architecture files testing",
}

project = "Cleave"
version = release = cleave.__version__
root_doc = "README"
extensions = ["myst_parser", "sphinx.ext.autodoc"]
include_patterns = ["README.md", "CHANGELOG.md", "CONTRIBUTING.md", "docs/*.md"]
exclude_patterns = ["build", ".venv", "tests", "src", "fuzz", "bench", "python"]
html_theme = "furo"
html_title = "Cleave"
html_copy_source = False
html_show_sphinx = False
html_show_copyright = False
myst_heading_anchors = 4
default_role = "code"  # docstrings write `name` for code
autodoc_member_order = "bysource"
autodoc_typehints = "none"
autodoc_class_signature = "separated"
add_module_names = False


def contents() -> str:
    """The table of contents, which is shown at the side."""
    parts = []
    for caption, pages in CONTENTS.items():
        names = [f"docs/{page}" for page in pages.split()]
        names += ["CONTRIBUTING", "CHANGELOG"] if caption == "Development" else []
        parts.append("\n".join(["```{toctree}", ":hidden:", f":caption: {caption}", "", *names, "```"]))
    return "\n\n".join(parts)


def examples(text: str) -> str:
    """The source of every program that the page links to."""
    parts = ["## Sources"]
    for name in re.findall(r"\]\(\.\./(examples/\S+\.(?:py|c))\)", text):
        language = {".py": "python", ".c": "c"}[Path(name).suffix]
        parts.append(f"### {name}\n\n```{{literalinclude}} ../{name}\n:language: {language}\n```")
    return "\n\n".join(parts)


def python_api() -> str:
    """Every public name with its docstring: those of cleave itself, then those that only its modules have."""
    modules = {name: getattr(cleave, name) for name in cleave.__all__ if inspect.ismodule(getattr(cleave, name))}
    parts, listed = [], set()
    for title, module in {"cleave": cleave, **{f"cleave.{name}": module for name, module in modules.items()}}.items():
        rst = []
        for name in getattr(module, "__all__", [name for name in vars(module) if not name.startswith("_")]):
            found = getattr(module, name)
            own = module is cleave or getattr(found, "__module__", None) == module.__name__
            if found in listed or not own or not (inspect.isclass(found) or inspect.isfunction(found)):
                continue
            listed.add(found)
            kind, options = ("autoclass", "   :members:\n") if inspect.isclass(found) else ("autofunction", "")
            rst.append(f".. {kind}:: {title}.{name}\n{options}")
        if rst:
            parts.append(f"## {title}\n\n```{{eval-rst}}\n" + "\n".join(rst) + "```")
    return "\n\n".join(parts)


def c_functions() -> str:
    """Every function, struct and macro of cleave.h in one line, with a link to doxygen's page of it."""
    if not DOXYGEN.exists():
        return ""
    parts = [
        "## Every name of cleave.h",
        'Names lead to <a href="../c/index.html">the full description</a> of the header.',
    ]
    for path in sorted(DOXYGEN.glob("group__*.xml")):
        group = ET.parse(path).getroot().find("compounddef")
        assert group is not None
        rows = []
        for member in group.iter("memberdef"):
            name, brief = member.findtext("name", ""), member.find("briefdescription")
            said = " ".join("".join(brief.itertext()).split()).replace("|", "\\|") if brief is not None else ""
            page, _, anchor = member.get("id", "").rpartition("_1")
            rows.append(f'| <a href="../c/{page}.html#{anchor}"><code>{name}</code></a> | {said} |')
        for inner in group.iter("innerclass"):
            rows.append(f'| <a href="../c/{inner.get("refid")}.html"><code>{inner.text}</code></a> | struct |')
        if rows:
            parts.append("\n".join([f"### {group.findtext('title')}", "", "| name | |", "|---|---|", *rows]))
    return "\n\n".join(parts)


def complete(app: Any, docname: str, source: list[str]) -> None:
    made = {
        "README": contents,
        "docs/examples": lambda: examples(source[0]),
        "docs/python-api": python_api,
        "docs/c-api": c_functions,
        "docs/files": lambda: runpy.run_path(str(ROOT / "tools" / "files.py"))["listing"]()[0],
    }.get(docname)
    if made is not None:
        source[0] += "\n\n" + made() + "\n"


def setup(app: Any) -> None:
    app.connect("source-read", complete)

"""Checks that every link inside a site leads to a file, and to a place in it: python tools/links.py build/docs/html"""

from __future__ import annotations

import sys
from html.parser import HTMLParser
from pathlib import Path
from urllib.parse import unquote, urlsplit


class Page(HTMLParser):
    """The places of a page that can be linked to, and its own links."""

    def __init__(self, path: Path) -> None:
        super().__init__()
        self.places: set[str] = {"", "top"}
        self.links: list[str] = []
        self.feed(path.read_text(encoding="utf-8"))

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        for name, value in attrs:
            if name == "id" or (name == "name" and tag == "a"):
                self.places.add(value or "")
            elif name in ("href", "src"):
                self.links.append(value or "")


def broken(site: Path) -> list[str]:
    """A line for each link of the site that leads nowhere. Links to other sites are not followed."""
    pages = {path: Page(path) for path in site.rglob("*.html")}
    found = set()
    for path, page in pages.items():
        for link in page.links:
            parts = urlsplit(link)
            if parts.scheme or parts.netloc:
                continue
            target = (path.parent / unquote(parts.path)).resolve() if parts.path else path
            there = pages.get(target)
            if not target.exists() or (there is not None and unquote(parts.fragment) not in there.places):
                found.add(f"{path.relative_to(site)}: {link} leads nowhere")
    return sorted(found)


def main() -> int:
    lines = broken(Path(sys.argv[1]).resolve())
    print(*lines, sep="\n", end="\n" if lines else "")
    return int(bool(lines))


if __name__ == "__main__":
    sys.exit(main())

"""The pages of the site, as the site's generator reads them: docs and the pages of the repository's root.

A link that leaves docs keeps working in a checkout. On the site it leads to the page made of the root's page, or to a
copy of the file under `source`; a folder has no place there, so that its name remains.
"""

from __future__ import annotations

import os
import re
import shutil
from collections.abc import Callable
from functools import partial
from itertools import pairwise
from pathlib import Path
from typing import Final

ROOT: Final = Path(__file__).resolve().parents[2]
DOCS: Final = ROOT / "docs"
ROOT_PAGES: Final = ("CHANGELOG.md", "CONTRIBUTING.md", "SECURITY.md")
"""Pages of the repository's root that the site has too."""
LEFT_OUT: Final = shutil.ignore_patterns("tools", "__init__.py", "__pycache__")
FENCE: Final = re.compile(r"^ *```.*?^ *```$", re.MULTILINE | re.DOTALL)
LINK: Final = re.compile(r"\[([^\]]+)\]\(([^)\s]+)\)")
OTHERS: Final = re.compile(r"[a-z]+:|#")
"""Beginnings of links that name no file."""


def place_on_site(file: Path) -> str:
    """The name on the site of a file of the repository."""
    if DOCS in file.parents:
        return file.relative_to(DOCS).as_posix()
    name = file.relative_to(ROOT).as_posix()
    return name if name in ROOT_PAGES else f"source/{name}"


def outside_fences(text: str, change: Callable[[str], str]) -> str:
    """A page with everything but its blocks of code changed."""
    ends = [0, *(place for match in FENCE.finditer(text) for place in match.span()), len(text)]
    pieces = [text[start:end] for start, end in pairwise(ends)]
    return "".join(piece if number % 2 else change(piece) for number, piece in enumerate(pieces))


def site_link(match: re.Match[str], *, page: Path, out: Path) -> str:
    """A link of a page as it is on the site, to whose folder it copies a file outside docs."""
    text, target = match.groups()
    name, _, anchor = target.partition("#")
    file = (page.parent / name).resolve()
    if OTHERS.match(target) or (DOCS in page.parents and DOCS in file.parents):
        return match[0]
    if not file.is_file():
        return text
    place = place_on_site(file)
    if place.startswith("source/"):
        (out / place).parent.mkdir(parents=True, exist_ok=True)
        shutil.copyfile(file, out / place)
    way = os.path.relpath(place, os.path.dirname(place_on_site(page)) or ".")
    return f"[{text}]({way}{'#' if anchor else ''}{anchor})"


def write_pages(out: Path) -> None:
    """Write all pages with their pictures to the empty or missing folder `out`."""
    shutil.copytree(DOCS, out, ignore=LEFT_OUT)
    for page in (*(ROOT / name for name in ROOT_PAGES), *sorted(DOCS.rglob("*.md"))):
        text = page.read_text(encoding="utf-8")
        change = partial(LINK.sub, partial(site_link, page=page, out=out))
        (out / place_on_site(page)).write_text(outside_fences(text, change), encoding="utf-8")

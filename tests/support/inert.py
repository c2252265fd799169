"""What makes text of strangers harmless in each form: a page, Markdown, a terminal, a spreadsheet."""

from __future__ import annotations

import csv
import io
import re
from collections.abc import Iterator

import html5lib
from markdown_it import MarkdownIt

from audit.text.unsafe import FORMULA, NUMBER

ALIVE = {"script", "iframe", "object", "embed", "img", "foreignObject", "base", "link"}
MARKDOWN = set("html head body h1 h2 h3 h4 p ul ol li strong table thead tbody tr th td pre code br".split())
OUT = re.compile(r"\s*(?:[a-z+.-]+:|//)", re.IGNORECASE)
RENDERER = MarkdownIt("gfm-like", {"html": True, "linkify": False})


def unprintable(text: str) -> list[str]:
    """Characters that a reader cannot see, line breaks aside."""
    return sorted({character for character in text.replace("\n", "") if not character.isprintable()})


def alive_in_page(page: str) -> Iterator[str]:
    """Elements and attributes that act, addresses that lead out, and hidden characters of an HTML page."""
    yield from map(repr, unprintable(page))
    for node in html5lib.parse(page).iter():
        tag = str(node.tag).rpartition("}")[2]
        if tag in ALIVE and node.attrib.get("rel") not in ("stylesheet", "icon"):
            yield f"<{tag}>"
        for name, value in node.attrib.items():
            if name.startswith("on") or name == "style":
                yield f"{tag} {name}"
            if name in ("href", "src", "action", "xlink:href") and OUT.match(value):
                yield f"{tag} {name}={value[:40]}"


def alive_in_markdown(text: str) -> Iterator[str]:
    """Elements beside headings, lists, tables and code that Markdown becomes, and hidden characters."""
    yield from map(repr, unprintable(text))
    tags = {str(node.tag).rpartition("}")[2] for node in html5lib.parse(RENDERER.render(text)).iter()}
    yield from (f"<{tag}>" for tag in tags - MARKDOWN)


def alive_in_csv(text: str) -> Iterator[str]:
    """Cells that a spreadsheet computes, and hidden characters."""
    yield from map(repr, unprintable(text))
    csv.field_size_limit(len(text) + 1)
    for row in csv.reader(io.StringIO(text, newline="")):
        yield from (cell[:40] for cell in row if cell.lstrip().startswith(FORMULA) and not NUMBER.fullmatch(cell))

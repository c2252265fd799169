"""The report as Markdown, made from the page itself, so that both have the same facts.

It knows the elements that the report's templates use. Drawings become their tables. Every text is escaped after the
page has made it visible, so that a text of the store is no link, no image, no markup and no HTML.
"""

from collections.abc import Iterable
from html.parser import HTMLParser
from typing import Final

from audit.text.markdown import as_cell, as_it_is

HEADINGS: Final = {"h1": "#", "h2": "##", "h3": "###", "h4": "####"}
SKIPPED: Final = frozenset(("head", "nav", "svg", "footer", "summary"))
"""Elements without facts of their own: a drawing's numbers are in its table."""
BLOCKS: Final = frozenset("p li dt dd figcaption caption h1 h2 h3 h4 th td pre".split())


def markdown_of(page: str) -> str:
    """The Markdown of a page of the report."""
    reader = _Reader()
    reader.feed(page)
    reader.close()
    return "\n".join(_spaced(reader.lines)) + "\n"


def escaped(text: str) -> str:
    """One line of text that Markdown shows as it is."""
    return as_it_is(" ".join(text.split()))


class _Reader(HTMLParser):
    """Collects lines; `skip` counts open elements without facts."""

    def __init__(self) -> None:
        super().__init__(convert_charrefs=True)
        self.lines: list[str] = []
        self.skip = 0
        self.text: list[str] = []
        self.row: list[str] = []
        self.rows: list[list[str]] = []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        """Begin an element."""
        del attrs
        if tag in SKIPPED:
            self.skip += 1
        if self.skip:
            return
        if tag in BLOCKS:
            self.text = []
        elif tag == "tr":
            self.row = []
        elif tag == "table":
            self.rows = []
        elif tag in ("span", "br", "data", "code", "li"):
            self.text.append(" ")

    def handle_endtag(self, tag: str) -> None:
        """End an element and write what it held."""
        if tag in SKIPPED:
            self.skip -= 1
        elif self.skip:
            return
        elif tag in ("th", "td"):
            self.row.append(as_cell(" ".join("".join(self.text).split())))
        elif tag == "tr":
            self.rows.append(self.row)
        elif tag == "table":
            self.lines += [*_table(self.rows), ""]
        elif tag in BLOCKS:
            self._block(tag, "".join(self.text))
            self.text = []

    def handle_data(self, data: str) -> None:
        """Keep the text of the open element."""
        if not self.skip:
            self.text.append(data)

    def _block(self, tag: str, text: str) -> None:
        line = escaped(text)
        if not line:
            return
        if tag in HEADINGS:
            self.lines += ["", f"{HEADINGS[tag]} {line}", ""]
        elif tag == "pre":
            self.lines += [*(f"    {part}" for part in text.strip().splitlines()), ""]
        elif tag == "dt":
            self.lines.append(f"* {line}:")
        elif tag == "dd":
            self.lines[-1] += f" {line}"
        elif tag == "li":
            self.lines.append(f"* {line}")
        else:
            self.lines += ["", line, ""]


def _table(rows: list[list[str]]) -> Iterable[str]:
    if not rows:
        return
    width = max(map(len, rows))
    for place, row in enumerate(rows):
        yield "| " + " | ".join([*row, *[""] * (width - len(row))]) + " |"
        if place == 0:
            yield "|" + " --- |" * width


def _spaced(lines: list[str]) -> Iterable[str]:
    """The lines without blank ones that follow each other or begin the text, and with one before a list or a table."""
    before = ""
    for line in lines:
        if line or before:
            if line.startswith(("* ", "|")) and before and before[:1] != line[:1]:
                yield ""
            yield line
        before = line

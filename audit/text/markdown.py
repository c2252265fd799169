"""Text that Markdown shows as it is, on a line, in a table and as code: no link, no image, no markup, no HTML.

Every writer of Markdown escapes with these functions. A character is escaped only where CommonMark or GitHub's dialect
could read it as markup, so that numbers, names and paths stay readable: `0.05`, `a_b`, `spec/case#0`.
"""

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Final

from audit.text.unsafe import visible

INLINE: Final = (
    r"[\\`*\[\]<&@|~$]"
    r"|(?<![^\W_])_|_(?![^\W_])"  # emphasis, which does not begin or end inside a word
    r"|:(?=//)|(?<=\bwww)\."  # links without brackets
)
"""Where a character, the last of each match, may be markup in a cell."""
SPECIAL: Final = re.compile(INLINE + r"|^[#>=]|^[+-](?=\s|-|$)|^\d{1,9}[.)](?=\s|$)")
"""The same on a line, which may begin a heading, a quotation, a list or a rule."""
IN_CELL: Final = re.compile(INLINE)
ENTITIES: Final[Mapping[str, str]] = {"<": "&lt;", "&": "&amp;", ":": "&#58;", "@": "&#64;"}
"""Characters that a backslash does not stop in every dialect."""
TICKS: Final = re.compile("`+")


def as_it_is(text: str) -> str:
    """One line of text that Markdown shows as it is; line breaks and other characters without a shape are visible."""
    return SPECIAL.sub(_escape, visible(text).strip())


def as_cell(text: str) -> str:
    """Text in a cell of a table, which begins no block."""
    return IN_CELL.sub(_escape, visible(text).strip())


def _escape(match: re.Match[str]) -> str:
    result = match[0]
    return ENTITIES.get(result) or f"{result[:-1]}\\{result[-1]}"


def as_code(text: str) -> str:
    """A text as code on a line or in a cell."""
    shown = visible(text).replace("|", "\\|")
    fence = "`" * (1 + max((len(run) for run in TICKS.findall(shown)), default=0))
    pad = " " if shown[:1] in ("`", "") or shown[-1:] == "`" else ""
    return f"{fence}{pad}{shown}{pad}{fence}"


def table_lines(
    columns: Sequence[str], rows: Iterable[Sequence[str]], numbers: Sequence[bool] | None = None
) -> Iterator[str]:
    """The lines of a table; its cells are text, and the columns of `numbers` stand at the right."""
    yield f"| {' | '.join(map(as_cell, columns))} |"
    yield "".join("|--:" if right else "|---" for right in numbers or [False] * len(columns)) + "|"
    yield from (f"| {' | '.join(map(as_cell, row))} |" for row in rows)

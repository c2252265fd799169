"""Tables of Markdown whose cells show any text as it is."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Sequence
from typing import Final

from audit.text.unsafe import visible

SPECIAL: Final = re.compile(r"([\\`*_{}\[\]<>()#+!|~&@-])")


def as_it_is(text: str) -> str:
    """Text that Markdown shows as it is."""
    return SPECIAL.sub(r"\\\1", visible(text))


def table_lines(columns: Sequence[str], rows: Iterable[Sequence[str]]) -> Iterator[str]:
    """The lines of a table; its cells are text."""
    yield f"| {' | '.join(columns)} |"
    yield "|---" * len(columns) + "|"
    for row in rows:
        yield f"| {' | '.join(map(as_it_is, row))} |"

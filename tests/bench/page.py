"""Tables that benchmarks write into docs/evidence.md, between two comments that name them."""

from __future__ import annotations

import re
from pathlib import Path

ROOT = Path(__file__).parents[2]
PAGE = ROOT / "docs" / "evidence.md"


def put(name: str, table: str) -> None:
    """Replace the table of that name."""
    text = PAGE.read_text(encoding="utf-8")
    place = re.compile(rf"(?<=<!-- {name} -->\n\n).*?(?=\n\n<!-- end of {name} -->)", re.DOTALL)
    assert place.search(text), f"{PAGE} has no place for {name}"
    PAGE.write_text(place.sub(lambda _: table, text), encoding="utf-8")

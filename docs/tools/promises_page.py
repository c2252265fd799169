"""The figures of docs/promises.md, from what the tests wrote into tests/promises.

`python -m docs.tools.promises_page docs/promises.md` writes them.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

FIGURES = Path(__file__).parents[2] / "tests" / "promises"
BEGIN, END = "<!-- figures -->\n", "<!-- /figures -->"


def table() -> str:
    """The table, with a row per topic that has figures."""
    return "\n".join(["| test | tried | outcome |", "|---|---|---|", *_rows()]) + "\n"


def _rows() -> Iterator[str]:
    fuzz = _figures("fuzz")
    if fuzz:
        kinds = ", ".join(f"{name} {count:,}" for name, count in fuzz["by_kind"].items())
        outcome = f"{fuzz['violations'] or 'no'} causes of violations"
        yield f"| fuzzer, seed {fuzz['seed']} | {fuzz['cases']:,} cases: {kinds} | {outcome} |"
    for topic, words in (("kills_sqlite", "SQLite"), ("kills_postgresql", "PostgreSQL")):
        kills = _figures(topic)
        if kills:
            outcome = f"nothing lost or repeated; {kills['finished']} runs finished, {kills['resumed']} resumptions"
            yield f"| SIGKILL at a random moment, {words} | {kills['kills']} kills | {outcome} |"
    if points := _figures("full_disk"):
        yield f"| full disk | {points['points']} moments of a run | one line each, and the same content |"
    if locks := _figures("locks"):
        yield f"| store held by another process | {locks['situations']} moments of a run | waited; the same content |"


def _figures(topic: str) -> dict[str, Any]:
    path = FIGURES / f"{topic}.json"
    return dict(json.loads(path.read_text("utf-8"))) if path.is_file() else {}


def page(text: str) -> str:
    """A page with the figures in their place."""
    head, _, rest = text.partition(BEGIN)
    return f"{head}{BEGIN}{table()}{END}{rest.partition(END)[2]}"


if __name__ == "__main__":
    goal = Path(sys.argv[1])
    goal.write_text(page(goal.read_text("utf-8")), encoding="utf-8")

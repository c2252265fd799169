"""Write docs/faults/situations.md from the fault catalogue.

``python -m docs.tools.fault_page docs/faults/situations.md`` writes the page; a test compares it with the
catalogue. The last two columns are measured: ``audit selftest --default-suite --seeds 1 --most 4096 --json FILE`` takes
minutes, and ``--measured FILE`` writes its results into the page; without it the page keeps the cells that it has.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import click

from audit.evidence.coverage.catalogue import CATALOGUE
from audit.evidence.coverage.expected import ALWAYS
from audit.selftest.report import by_situation
from engine import faults
from tests.audit.selftest.without_situations import WITHOUT

HEAD: Final = """\
# Faults and the situations that they need

Generated from the catalogue; `make docs` regenerates this page.

A fault of the [catalogue](index.md) shows only after its situation has occurred. An arm in which the situation never
occurs emits the same tokens with the fault and without it, so that no check can tell them apart. `needs` lists what the
requests and the arm must have for that, `scenario` the arm in which the [self-test](selftest.md) runs the fault.
`tests/engine/faults/test_situations.py` counts from the record that each scenario brings its situation about, takes the
situation away from scenarios and expects the clean engine's output.

The last two columns come from `audit selftest --default-suite`, where each fault runs with its proposer, rule,
parameters and models, and with the defaults of all else ([self-test](selftest.md#default-suites)): how often the
situation occurs there without the fault, then the default checks that catch the fault and the number of tokens.
A default suite would certify a fault with `none: passes`.

`without it` says how a run ends in which the situation does not occur. Where the situation has a
[floor](../coverage.md#floors) under the arm's settings, the run ends `undecided`, exit code 3, with the fault and
without it; `tests/audit/selftest/test_default_suite.py` runs the clean engine and one fault of each such situation. A
situation that every answer has, such as its first token, is `always met`.

| situation | without it | fault | breaks | needs | scenario | occurs | in a default suite: caught by |
|---|---|---|---|---|---|---|---|
"""
PAGE: Final = Path(__file__).parents[2] / "docs" / "faults" / "situations.md"
ROW: Final = re.compile(r"^\| `\w+` \| [^|\n]* \| `(\w+)` \|(?:[^|\n]*\|){3} ([^|\n]*) \| ([^|\n]*) \|$", re.MULTILINE)
MISSED: Final = "none"
"""First word of the cell of a fault that no default check catches."""


@dataclass(frozen=True, slots=True)
class Measured:
    """What a default suite shows of a fault: two cells of its row."""

    occurs: str = "?"
    caught_by: str = "?"

    @property
    def caught(self) -> bool:
        """True if a default check catches the fault."""
        return not self.caught_by.startswith(MISSED)


def known_cells(page: str) -> dict[str, Measured]:
    """The measured cells that the page has, by fault."""
    return {row[1]: Measured(row[2], row[3]) for row in ROW.finditer(page)}


def measured_cells(document: Mapping[str, Any]) -> dict[str, Measured]:
    """The cells for the results of `audit selftest --default-suite --json`."""
    return {entry["fault"]: _measured(entry) for entry in document["detections"]}


def _measured(entry: Mapping[str, Any]) -> Measured:
    occurs = "not recorded" if entry["occurred"] is None else str(entry["occurred"])
    end = "passes" if "0" in entry["codes"] else "undecided"
    caught = f"{', '.join(entry['caught_by'])} ({entry['tokens']})"
    return Measured(occurs, caught if entry["caught"] else f"{MISSED}: {end} ({entry['tokens']})")


def _scenario(name: str) -> str:
    scenario = faults.load(name).scenario
    words = [f"{scenario.proposer} under {scenario.protocol}", f"{scenario.rows} rows"]
    words += ["greedy"] if scenario.sampling.greedy else []
    words += ["unlike neighbours"] if scenario.beside is not None else []
    words += [f"prompts from {scenario.prompt.least} tokens"] if scenario.prompt.least > 3 else []
    words += ["shared beginnings"] if scenario.shared else []
    return ", ".join([*words, *(["bundled models"] if scenario.models == "bundled" else [])])


def page(measured: Mapping[str, Measured]) -> str:
    """The whole page."""
    rows = [_row(name, measured.get(name, Measured())) for names in by_situation().values() for name in names]
    needed = by_situation()
    missing = ", ".join(f"`{situation}`" for situation in CATALOGUE if situation not in needed)
    return HEAD + "\n".join(rows) + f"\n\nNo fault of the catalogue needs {missing}.\n"


def _row(name: str, measured: Measured) -> str:
    fault = faults.load(name)
    without = "always met" if fault.situation in ALWAYS else "undecided" if fault.situation in WITHOUT else "may pass"
    needs = ", ".join(fault.suits.needs) or "-"
    own = (f"`{fault.situation}`", without, f"`{name}`", fault.breaks, needs, _scenario(name))
    return f"| {' | '.join((*own, measured.occurs, measured.caught_by))} |"


@click.command()
@click.argument("out", type=click.Path(dir_okay=False, path_type=Path))
@click.option("--measured", type=click.Path(exists=True, dir_okay=False, path_type=Path), multiple=True)
def write(out: Path, measured: tuple[Path, ...]) -> None:
    """Write the page to OUT, with the results in MEASURED."""
    cells = known_cells(PAGE.read_text(encoding="utf-8"))
    for path in measured:
        cells |= measured_cells(json.loads(path.read_text(encoding="utf-8")))
    out.write_text(page(cells), encoding="utf-8")


if __name__ == "__main__":
    write()

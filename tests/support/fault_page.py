"""Write docs/faults-and-situations.md from the fault catalogue.

``python -m tests.support.fault_page docs/faults-and-situations.md`` writes the page; a test compares it with the
catalogue.
"""

from __future__ import annotations

from pathlib import Path
from typing import Final

import click

from audit.selftest.situations import by_situation, without_fault
from engine import faults

HEAD: Final = """\
# Faults and the situations that they need

Generated from the catalogue; `make docs` regenerates this page.

A fault of the [catalogue](faults.md) shows only after its situation has occurred. An arm in which the situation never
occurs emits the same tokens with the fault and without it, so that no check can tell them apart. `needs` lists what the
requests and the arm must have for that, `scenario` the arm in which the [self-test](selftest.md) runs the fault.
`tests/engine/faults/test_situations.py` counts from the record that each scenario brings its situation about, takes the
situation away from scenarios and expects the clean engine's output.

| situation | fault | breaks | needs | scenario |
|---|---|---|---|---|
"""


def _scenario(name: str) -> str:
    scenario = faults.load(name).scenario
    words = [f"{scenario.proposer} under {scenario.protocol}", f"{scenario.rows} rows"]
    words += ["greedy"] if scenario.sampling.greedy else []
    words += ["unlike neighbours"] if scenario.beside is not None else []
    words += [f"prompts from {scenario.prompt.least} tokens"] if scenario.prompt.least > 3 else []
    words += ["shared beginnings"] if scenario.shared else []
    return ", ".join([*words, *(["bundled models"] if scenario.models == "bundled" else [])])


def page() -> str:
    """The whole page."""
    rows = [
        f"| `{situation}` | `{name}` | {faults.load(name).breaks} | "
        f"{', '.join(faults.load(name).suits.needs) or '-'} | {_scenario(name)} |"
        for situation, names in by_situation().items()
        for name in names
    ]
    missing = ", ".join(f"`{situation}`" for situation in without_fault())
    return HEAD + "\n".join(rows) + f"\n\nNo fault of the catalogue needs {missing}.\n"


@click.command()
@click.argument("out", type=click.Path(dir_okay=False, path_type=Path))
def write(out: Path) -> None:
    """Write the page to OUT."""
    out.write_text(page(), encoding="utf-8")


if __name__ == "__main__":
    write()

"""`python -m tests.bench.faults`: every fault of the catalogue in its arena, as the table of docs/faults/index.md.

The first columns are what the fault declares and replaces; the last one is which checks call it a fault, over scripted
models with a baseline and a control. `--only NAME` measures one and leaves the other rows as they are.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import fields, replace
from pathlib import Path

import click

from audit import checks
from audit.checks.base.interface import evaluate
from audit.evidence.records import ArmKind, Evidence
from audit.evidence.verdicts import Verdict
from engine import faults, verify
from engine.decode.seams import EngineParts
from engine.faults.interface import Fault
from tests.engine.faults.arms import arm, arm_record, generate

CHECKS = (
    *("replay", "law", "acceptance_theory", "greedy_equality", "coupled_equality"),
    *("tool_call_equality", "no_leak", "filter_equality"),
)
HEAD = ("fault", "breaks", "part", "seen from", "re-creates", "seen by")
ROW = r"^\| `(\w+)` \|(?:[^|\n]*\|){5}$"
PAGE = Path(__file__).parents[2] / "docs" / "faults" / "index.md"


def replaced(fault: Fault) -> tuple[str, ...]:
    """The parts of an engine that are others with the fault."""
    clean = EngineParts(verifier=verify.load(fault.scenario.protocol))
    broken = fault.apply(clean)
    return tuple(part.name for part in fields(clean) if getattr(broken, part.name) is not getattr(clean, part.name))


def declared(fault: Fault) -> str:
    """The row of a fault without its last cell."""
    cells = (f"`{fault.name}`", fault.breaks, ", ".join(replaced(fault)), fault.seen_from, fault.upstream)
    return f"| {' | '.join(cells)} |"


def seen_by(fault: Fault, requests: int) -> tuple[str, ...]:
    """The checks that call the fault's arena a fault."""
    scenario = fault.scenario
    alone = replace(scenario, rows=1)
    # streams and filters are declared there; the other checks would judge more by it than the record alone shows
    broken, plain = (
        (arm(scenario, fault.name).effective_config(), arm(scenario, proposer=False).effective_config())
        if scenario.stream is not None
        else (None, None)
    )
    evidence = Evidence(
        arm_record(generate(scenario, fault.name, requests), effective=broken),
        arm_record(generate(scenario, count=requests, proposer=False), ArmKind.BASELINE, plain),
        arm_record(generate(alone, count=requests, proposer=False), ArmKind.CONTROL, plain),
    )
    return tuple(name for name in CHECKS if evaluate(checks.load(name), evidence, {}).verdict is Verdict.FAULT)


def known_rows(page: str) -> dict[str, str]:
    """The rows of the table that the page has, by fault."""
    return {found[1]: found[0] for found in re.finditer(ROW, page, re.MULTILINE)}


@click.command()
@click.option("--requests", type=click.IntRange(min=1), default=32, show_default=True, help="Of 64 tokens, per fault.")
@click.option("--only", multiple=True, help="These; the page keeps its other rows.")
@click.option("--page", type=click.Path(dir_okay=False, path_type=Path), default=PAGE, help="The page to write.")
def main(requests: int, only: Sequence[str], page: Path) -> None:
    """Measure and write the table."""
    text = page.read_text(encoding="utf-8")
    rows = known_rows(text)
    for name in only or faults.REGISTRY:
        fault = faults.load(name)
        seen = seen_by(fault, requests)
        rows[name] = f"{declared(fault)} {', '.join(seen) or 'none of these'} |"
        click.echo(f"{name}: {', '.join(seen)}")
    table = [
        f"| {' | '.join(HEAD)} |",
        "|---" * len(HEAD) + "|",
        *(rows[name] for name in faults.REGISTRY if name in rows),
    ]
    changed = re.sub(r"^\| fault \|.*?(?=\n\n|\Z)", lambda _: "\n".join(table), text, flags=re.MULTILINE | re.DOTALL)
    page.write_text(changed, encoding="utf-8")


if __name__ == "__main__":
    main()

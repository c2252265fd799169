"""Clauses of laws and standards, and what in the store is evidence for them.

The mapping is data (`suites/controls.json`). A row says "evidence for" a clause; whether a system meets the clause is
for people to decide.
"""

import json
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass
from importlib.resources import files
from typing import Any, Final

from audit.report.tables.results import Results

WORDS: Final[Mapping[str, str]] = {
    "admission": "audit admission serve",
    "checkpoint": "signed checkpoints of the log",
    "coverage": "situations that the checks examined",
    "decision": "decisions of audit gate",
    "disclosure": "audit disclose",
    "environment": "packages, hardware, code and configuration of the run",
    "log": "the Merkle log over every row",
    "report": "reports with attached evidence",
    "requests": "every request with its record hash",
    "retention": "append-only tables; erasure needs a recorded reason",
    "suite": "the suite by digest",
}
"""Kinds of records in words."""


@dataclass(frozen=True, slots=True)
class Clause:
    """One clause: what it asks for, where that was read and when, and the evidence for it."""

    id: str
    asks: str
    source: str
    read: str
    records: tuple[str, ...]
    checks: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Framework:
    """A law or a standard."""

    id: str
    title: str
    note: str
    clauses: tuple[Clause, ...]


@dataclass(frozen=True, slots=True)
class Controls:
    """The whole mapping. `unmapped` gives the reason for each check that is evidence for no clause."""

    frameworks: tuple[Framework, ...]
    unmapped: Mapping[str, str]


@dataclass(frozen=True, slots=True)
class ClauseEvidence:
    """Evidence of a run for a clause: a text for each record and check."""

    framework: str
    clause: Clause
    records: Mapping[str, str]
    checks: Mapping[str, str]


def load_controls() -> Controls:
    """The packaged mapping; the tests validate it against `schemas/controls.json`."""
    data = json.loads(files("suites").joinpath("controls.json").read_text("utf-8"))
    frameworks = tuple(
        Framework(entry["id"], entry["title"], entry["note"], tuple(_clause(clause) for clause in entry["clauses"]))
        for entry in data["frameworks"]
    )
    return Controls(frameworks, data["unmapped"])


def evidence(controls: Controls, results: Results, checkpoints: int) -> tuple[ClauseEvidence, ...]:
    """A run's evidence by clause of the mapping; the checkpoints are the signed ones of the store's log."""
    records, checks = _records(results, checkpoints), _checks(results)
    return tuple(
        ClauseEvidence(
            framework.id,
            clause,
            {name: records.get(name, WORDS[name]) for name in clause.records},
            {name: checks.get(name, "no result") for name in clause.checks},
        )
        for framework in controls.frameworks
        for clause in framework.clauses
    )


def words(clause: Clause) -> str:
    """The evidence for a clause, without a run."""
    parts = [WORDS[name] for name in clause.records]
    if clause.checks:
        parts.append("results of " + ", ".join(clause.checks))
    return "; ".join(parts)


def _clause(entry: Mapping[str, Any]) -> Clause:
    where = (entry["id"], entry["asks"], entry["source"], entry["read"])
    return Clause(*where, tuple(entry["records"]), tuple(entry["checks"]))


def _records(results: Results, checkpoints: int) -> Mapping[str, str]:
    run = results.run
    last = results.decisions[-1] if results.decisions else None
    seen = {(row.arm, row.situation) for row in results.coverage if row.examined}
    requests = sum(arm.counts.requests for arm in run.arms)
    decided = "no decision"
    if last is not None:
        decided = f"last decision {last.decision} on {last.created_at:%Y-%m-%d} by {last.actor}"
    return {
        "requests": f"{requests} requests of {len(run.arms)} arms, record root {run.record_root or 'none yet'}",
        "coverage": f"{len(seen)} situations of arms examined",
        "environment": f"environment sha256:{run.environment.sha256}",
        "suite": f"suite {run.suite_name} sha256:{run.suite_sha256}",
        "decision": decided,
        "report": f"{len(results.attachments)} reports with attached evidence",
        "checkpoint": f"{checkpoints} checkpoints in the store",
    }


def _checks(results: Results) -> Mapping[str, str]:
    """By check, how many candidate arms have each verdict."""
    candidates = {arm.name for arm in results.run.candidates}
    counted: dict[str, Counter[str]] = {}
    for check in results.checks:
        if check.arm in candidates:
            counted.setdefault(check.check, Counter())[check.verdict.value] += 1
    return {
        name: ", ".join(f"{number} {verdict}" for verdict, number in sorted(verdicts.items()))
        for name, verdicts in counted.items()
    }

"""A run as SARIF 2.1.0: a rule per check, a result per finding of a fault and per claim that stays undecided."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

from audit.evidence.verdicts import Verdict
from audit.report.tables.results import Results
from audit.store import StoredCheck
from audit.text.sarif import SarifResult, sarif

MOST: Final = 100
"""Findings of one check: code scanning drops what is beyond its limits."""


def render(shown: Results) -> str:
    """The document, indented."""
    run = shown.run
    results = [result for check in shown.checks for result in _results(run.suite_name, check)]
    claims = {check.check: f"claim {check.claim}" for check in shown.checks}
    rules = {result.rule: claims[result.rule] for result in results}
    return sarif("specaudit", rules, results, {"run": run.ulid, "exit_code": run.exit_code})


def _results(suite: str, check: StoredCheck) -> Iterator[SarifResult]:
    place = (suite, check.arm, check.check)
    if check.verdict is Verdict.INCONCLUSIVE:
        yield SarifResult(check.check, "warning", check.summary, place)
    if check.verdict is Verdict.FAULT:
        yield SarifResult(check.check, "error", check.summary, place)
        for finding in check.findings[:MOST]:
            yield SarifResult(check.check, "error", f"{finding.request}: {finding.message}", (*place, finding.request))

"""A run as JUnit XML: a suite per arm, a case per check; a fault is a failure, "inconclusive" an error."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Final

from audit.evidence.verdicts import Verdict
from audit.report.tables.results import Results
from audit.store import StoredCheck
from audit.text.junit import CaseTag, JunitCase, JunitSuite, junit

TAGS: Final[Mapping[Verdict, CaseTag]] = {
    Verdict.FAULT: CaseTag.FAILURE,
    Verdict.INCONCLUSIVE: CaseTag.ERROR,
    Verdict.NOT_RUN: CaseTag.SKIPPED,
}
"""The element of each verdict but `certified`, which passes."""


def render(shown: Results) -> str:
    """The document."""
    return junit(list(_suites(shown)))


def _suites(shown: Results) -> Iterator[JunitSuite]:
    run = shown.run
    for arm in run.arms:
        cases = [_case(run.suite_name, check) for check in shown.checks if check.arm == arm.name]
        if cases:
            yield JunitSuite(f"{run.suite_name}: {arm.name}", cases, run.finished_at or run.started_at)


def _case(suite: str, check: StoredCheck) -> JunitCase:
    lines = (check.summary, *(f"{finding.request}: {finding.message}" for finding in check.findings))
    return JunitCase(f"{suite}.{check.arm}", check.check, TAGS.get(check.verdict), check.summary, lines)

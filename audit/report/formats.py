"""Output formats of a run's verdicts for programs: JUnit XML, annotations of GitHub Actions, SARIF, a Markdown table.

A format is a function from results to text, without a newline at the end.
"""

from collections.abc import Callable, Iterator, Mapping
from typing import Final

from audit.evidence.verdicts import Verdict
from audit.report.tables.results import Results
from audit.report.tables.verdicts import conclusion
from audit.store import StoredCheck
from audit.text.ci_formats import MOST_ANNOTATIONS, CaseTag, JunitCase, JunitSuite, SarifResult, annotation
from audit.text.ci_formats import junit as junit_xml
from audit.text.ci_formats import sarif as sarif_log
from audit.text.markdown import as_it_is, table_lines
from audit.text.unsafe import visible

LEVELS: Final = {Verdict.FAULT: "error", Verdict.INCONCLUSIVE: "warning"}
TAGS: Final[Mapping[Verdict, CaseTag]] = {
    Verdict.FAULT: CaseTag.FAILURE,
    Verdict.INCONCLUSIVE: CaseTag.ERROR,
    Verdict.NOT_RUN: CaseTag.SKIPPED,
}
"""The element of each verdict but `certified`, which passes."""
MOST_FINDINGS: Final = 100
"""Findings of one check: code scanning drops what is beyond its limits."""
MOST_ROWS: Final = 200
"""Rows: a job summary above 1 MiB is thrown away."""
ORDER: Final = (Verdict.FAULT, Verdict.INCONCLUSIVE, Verdict.CERTIFIED)
COLUMNS: Final = ("verdict", "arm", "check", "claim", "n", "what was found")


def junit(shown: Results) -> str:
    """JUnit XML: a suite per arm, a case per check; a fault is a failure, "inconclusive" an error."""
    return junit_xml(list(_suites(shown)))


def _suites(shown: Results) -> Iterator[JunitSuite]:
    run = shown.run
    for arm in run.arms:
        cases = [_case(run.suite_name, check) for check in shown.checks if check.arm == arm.name]
        if cases:
            yield JunitSuite(f"{run.suite_name}: {arm.name}", cases, run.finished_at or run.started_at)


def _case(suite: str, check: StoredCheck) -> JunitCase:
    lines = (check.summary, *(f"{finding.request}: {finding.message}" for finding in check.findings))
    return JunitCase(f"{suite}.{check.arm}", check.check, TAGS.get(check.verdict), check.summary, lines)


def github(shown: Results) -> str:
    """Workflow commands of GitHub Actions, faults first and at most ten, and the run's conclusion as a last line."""
    unmet = [check for verdict in LEVELS for check in shown.checks if check.verdict is verdict]
    hidden = max(0, len(unmet) - MOST_ANNOTATIONS)
    more = f"; {hidden} more claims not shown" if hidden else ""
    last = f"{conclusion(shown.run.exit_code)} (run {shown.run.ulid} of {visible(shown.run.suite_name)}){more}"
    return "\n".join([*map(_annotation, unmet[:MOST_ANNOTATIONS]), last])


def _annotation(check: StoredCheck) -> str:
    title = f"audit: {check.arm}, {check.check}: {check.verdict.value}"
    return annotation(LEVELS[check.verdict], title, check.summary)


def sarif(shown: Results) -> str:
    """SARIF 2.1.0: a rule per check, a result per finding of a fault and per claim that stays undecided."""
    run = shown.run
    results = [result for check in shown.checks for result in _results(run.suite_name, check)]
    claims = {check.check: f"claim {check.claim}" for check in shown.checks}
    rules = {result.rule: claims[result.rule] for result in results}
    return sarif_log("specaudit", rules, results, {"run": run.ulid, "exit_code": run.exit_code})


def _results(suite: str, check: StoredCheck) -> Iterator[SarifResult]:
    place = (suite, check.arm, check.check)
    if check.verdict is Verdict.INCONCLUSIVE:
        yield SarifResult(check.check, "warning", check.summary, place)
    if check.verdict is Verdict.FAULT:
        yield SarifResult(check.check, "error", check.summary, place)
        for finding in check.findings[:MOST_FINDINGS]:
            yield SarifResult(check.check, "error", f"{finding.request}: {finding.message}", (*place, finding.request))


def summary(shown: Results) -> str:
    """Markdown for a CI job's summary or a comment on a change: a row per claim that was judged, faults first."""
    run = shown.run
    checks = [check for verdict in ORDER for check in shown.checks if check.verdict is verdict]
    rows = [(check.verdict.value, check.arm, check.check, check.claim, str(check.n), check.summary) for check in checks]
    idle = len(shown.checks) - len(checks)
    return "\n".join(
        [
            f"### audit: {as_it_is(conclusion(run.exit_code))}",
            "",
            f"* run `{run.ulid}` of suite {as_it_is(run.suite_name)}, record root `{run.record_root}`",
            "",
            *table_lines(COLUMNS, rows[:MOST_ROWS]),
            *(["", f"{len(rows) - MOST_ROWS} more claims: `audit show {run.ulid}`"] if len(rows) > MOST_ROWS else []),
            *(["", f"{idle} checks did not run: `audit show {run.ulid}` says why"] if idle else []),
        ]
    )


REGISTRY: Final[Mapping[str, Callable[[Results], str]]] = {
    "junit": junit,
    "github": github,
    "sarif": sarif,
    "summary": summary,
}

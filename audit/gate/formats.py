"""Output formats of a decision: lines, JSON, JUnit XML, annotations of GitHub Actions, SARIF, Markdown.

A format is a function from a judgement to text, without a newline at the end.
"""

import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, Final

from audit.gate.decision import Decision, Reason, next_step
from audit.gate.judgement import GateJudgement
from audit.gate.policy import Policy
from audit.gate.rules.run import engines
from audit.store.base.canonical import named
from audit.text.ci_formats import MOST_ANNOTATIONS, CaseTag, JunitCase, JunitSuite, SarifResult, annotation
from audit.text.ci_formats import junit as junit_xml
from audit.text.ci_formats import sarif as sarif_log
from audit.text.markdown import as_code, as_it_is, table_lines
from audit.text.unsafe import visible

TAGS: Final = {Decision.BLOCK: CaseTag.FAILURE, Decision.CANNOT_DECIDE: CaseTag.ERROR, Decision.ALLOW: CaseTag.OUTPUT}
LEVELS: Final = {Decision.BLOCK: "error", Decision.CANNOT_DECIDE: "error", Decision.ALLOW: "note"}
REASON_FACTS: Final = ("answer", "requirement", "text", "arm", "check", "about", "statement", "until")
MOST_ROWS: Final = 200
"""Reasons in one table: a job summary above 1 MiB is thrown away."""


def _name(judgement: GateJudgement, absent: str = "RUN") -> str:
    return judgement.run.ulid if judgement.run else absent


def _with_step(reason: Reason, run: str, joint: str) -> str:
    step = next_step(reason, run)
    return f"{reason.text}{joint}{step}" if step else reason.text


def text(judgement: GateJudgement) -> str:
    """Lines for a terminal: the decision, and each reason with the next step."""
    return "\n".join(visible(line) for line in _lines(judgement))


def _lines(judgement: GateJudgement) -> Iterator[str]:
    policy, previous = judgement.request.policy, None
    head = f"{judgement.outcome.answer.words}: {_name(judgement, 'no run')}"
    yield f"{head} under policy {policy.name} sha256:{policy.sha256}"
    for reason in judgement.outcome.reasons:
        step = next_step(reason, _name(judgement))
        if previous not in (None, step):
            yield f"    next: {previous}"
        yield f"  {reason.answer.words}: {reason.requirement}: {reason.text}"
        previous = step
    if previous is not None:
        yield f"    next: {previous}"
    if judgement.warns:
        yield "  exit code 0, because of --warn-only; the decision stands as it is"


def as_json(judgement: GateJudgement) -> str:
    """JSON for programs, indented."""
    return json.dumps(_document(judgement), indent=2)


def _document(judgement: GateJudgement) -> dict[str, Any]:
    """The decision as JSON values. Version 2 added next steps, what was asked, and where the verdicts are from.

    Version 3 added what a reason is about, and the signed waiver or review that made a remark of it, with its end.
    """
    run, request, outcome = judgement.run, judgement.request, judgement.outcome
    return {
        "version": 3,
        "decision": outcome.answer.value,
        "exit_code": judgement.exit_code,
        "warn_only": request.warn_only,
        "run": run.ulid if run else None,
        "record_root": run.record_root if run else None,
        "suite": {"name": run.suite_name, "sha256": run.suite_sha256} if run else None,
        "origin": judgement.origin,
        "policy": named(request.policy, "name", "sha256"),
        "verdicts": "stored" if request.trust_verdicts else "recomputed",
        "signed_by": judgement.facts.ending.by if judgement.facts else None,
        "serves": list(request.serving.serves),
        "profile": request.serving.sha256,
        "subjects": [named(part, "role", "sha256", "origin") for part in request.subjects],
        "engines": {part.name: part.sha256 for part in engines(judgement.facts)} if judgement.facts else {},
        "reasons": [
            {**named(reason, *REASON_FACTS), "next": next_step(reason, _name(judgement))} for reason in outcome.reasons
        ],
        "actor": request.actor,
        "at": request.now.isoformat(),
    }


def junit(judgement: GateJudgement) -> str:
    """JUnit XML: one test case per requirement; a block is a failure, "cannot decide" an error."""
    request = judgement.request
    cases = [_case(_name(judgement), *group) for group in _grouped(judgement).items()]
    return junit_xml([JunitSuite(f"audit gate {request.policy.name}", cases, request.now)])


def _case(run: str, requirement: str, reasons: Sequence[Reason]) -> JunitCase:
    """A requirement with the worst of its reasons: a reader of JUnit counts one outcome per case."""
    worst = min(reasons, key=lambda reason: list(TAGS).index(reason.answer), default=None)
    if worst is None:
        return JunitCase(run, requirement)
    lines = [_with_step(reason, run, "; next: ") for reason in reasons]
    return JunitCase(run, requirement, TAGS[worst.answer], worst.text, lines)


def _grouped(judgement: GateJudgement) -> Mapping[str, Sequence[Reason]]:
    """The reasons by requirement; requirements that are met have none."""
    grouped: dict[str, list[Reason]] = {name: [] for name in _requirements(judgement.request.policy)}
    for reason in judgement.outcome.reasons:
        grouped.setdefault(reason.requirement, []).append(reason)
    return grouped


def _requirements(policy: Policy) -> list[str]:
    fixed = ("record", "run", "max_age", "min_tokens", "speculation", "parameters", "known_bad")
    asked = [f"serves {served}" for served in policy.parts.serving.serves]
    named = [f"subject {role}" for role in policy.named]
    return list(dict.fromkeys((*fixed, *asked, *named, *(requirement.claim for requirement in policy.require))))


def github(judgement: GateJudgement) -> str:
    """Workflow commands of GitHub Actions: an annotation per reason, at most ten, and the decision as a last line."""
    run, reasons = _name(judgement), judgement.outcome.reasons
    level = "warning" if judgement.warns else "error"
    unmet = [reason for reason in reasons if reason.answer is not Decision.ALLOW]
    remarks = [reason for reason in reasons if reason.answer is Decision.ALLOW]
    lines = [_annotation(level, reason, run) for reason in unmet[:MOST_ANNOTATIONS]]
    lines += [_annotation("notice", reason, run) for reason in remarks[:MOST_ANNOTATIONS]]
    hidden = max(0, len(unmet) - MOST_ANNOTATIONS)
    more = f", {hidden} more reasons not shown" if hidden else ""
    policy = judgement.request.policy
    return "\n".join([*lines, f"{judgement.outcome.answer.words}: {run} under policy {policy.name}{more}"])


def _annotation(level: str, reason: Reason, run: str) -> str:
    return annotation(level, f"audit gate: {reason.requirement}", _with_step(reason, run, ". Next: "))


def sarif(judgement: GateJudgement) -> str:
    """SARIF 2.1.0, for code scanning: a rule per requirement, a result per reason."""
    reasons, run = judgement.outcome.reasons, _name(judgement)
    rules = {reason.requirement: f"requirement {reason.requirement}" for reason in reasons}
    results = [_result(judgement, reason, run) for reason in reasons]
    return sarif_log("specaudit gate", rules, results, {"decision": judgement.outcome.answer.value, "run": run})


def _result(judgement: GateJudgement, reason: Reason, run: str) -> SarifResult:
    level = "warning" if judgement.warns and reason.answer is not Decision.ALLOW else LEVELS[reason.answer]
    suite = judgement.run.suite_name if judgement.run else "suite"
    place = (suite, reason.arm or "", reason.check or "")
    return SarifResult(reason.requirement, level, _with_step(reason, run, ". Next: "), place)


def markdown(judgement: GateJudgement) -> str:
    """Markdown, for job summaries and comments on a change: a heading, the facts and a table of reasons."""
    run, request, name = judgement.run, judgement.request, _name(judgement)
    warned = " (a warning: `--warn-only`)" if judgement.warns else ""
    lines = [
        f"### audit gate: {judgement.outcome.answer.words}{warned}",
        "",
        f"* run `{name}`" + (f" of suite {as_it_is(run.suite_name)}, record root `{run.record_root}`" if run else ""),
        f"* policy {as_code(request.policy.name)} sha256:`{request.policy.sha256}`",
        f"* verdicts {'as stored' if request.trust_verdicts else 'recomputed from the record'}",
        *(f"* subject {as_it_is(part.role)} sha256:`{part.sha256}`" for part in request.subjects),
    ]
    reasons = judgement.outcome.reasons
    if reasons:
        columns = ("decision", "requirement", "reason", "next step")
        rows = (
            (reason.answer.words, reason.requirement, reason.text, next_step(reason, name) or "")
            for reason in reasons[:MOST_ROWS]
        )
        lines += ["", *table_lines(columns, rows)]
    if len(reasons) > MOST_ROWS:
        lines += ["", f"{len(reasons) - MOST_ROWS} more reasons are in the store: `audit show {name}`"]
    return "\n".join(lines)


REGISTRY: Final[Mapping[str, Callable[[GateJudgement], str]]] = {
    "text": text,
    "json": as_json,
    "junit": junit,
    "github": github,
    "sarif": sarif,
    "markdown": markdown,
}

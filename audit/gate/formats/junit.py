"""A decision as JUnit XML: one test case per requirement; a block is a failure, "cannot decide" an error."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from audit.gate.decision import Decision, Reason
from audit.gate.judgement import GateJudgement
from audit.gate.next_step import next_step
from audit.gate.policy import Policy
from audit.text.ci_formats import CaseTag, JunitCase, JunitSuite, junit

TAGS = {Decision.BLOCK: CaseTag.FAILURE, Decision.CANNOT_DECIDE: CaseTag.ERROR, Decision.ALLOW: CaseTag.OUTPUT}


def render(judgement: GateJudgement) -> str:
    """The document."""
    run = judgement.run.ulid if judgement.run else "RUN"
    cases = [_case(run, requirement, reasons) for requirement, reasons in _grouped(judgement).items()]
    request = judgement.request
    return junit([JunitSuite(f"audit gate {request.policy.name}", cases, request.now)])


def _case(run: str, requirement: str, reasons: Sequence[Reason]) -> JunitCase:
    """A requirement with the worst of its reasons: a reader of JUnit counts one outcome per case."""
    worst = min(reasons, key=lambda reason: list(TAGS).index(reason.answer), default=None)
    if worst is None:
        return JunitCase(run, requirement)
    return JunitCase(run, requirement, TAGS[worst.answer], worst.text, [_line(reason, run) for reason in reasons])


def _line(reason: Reason, run: str) -> str:
    step = next_step(reason, run)
    return reason.text + (f"; next: {step}" if step else "")


def _grouped(judgement: GateJudgement) -> Mapping[str, Sequence[Reason]]:
    """The reasons by requirement; requirements that are met have none."""
    grouped: dict[str, list[Reason]] = {name: [] for name in _requirements(judgement.request.policy)}
    for reason in judgement.outcome.reasons:
        grouped.setdefault(reason.requirement, []).append(reason)
    return grouped


def _requirements(policy: Policy) -> list[str]:
    fixed = ("record", "run", "max_age", "min_tokens", "speculation", "parameters", "known_bad")
    asked = [f"serves {served}" for served in policy.parts.serves]
    named = [f"subject {role}" for role in policy.named]
    return list(dict.fromkeys((*fixed, *asked, *named, *(requirement.claim for requirement in policy.require))))

"""A decision as JUnit XML: one test case per requirement; a block is a failure, "cannot decide" an error."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from xml.etree import ElementTree

from audit.gate.decision import Decision, Reason
from audit.gate.judgement import GateJudgement
from audit.gate.next_step import next_step
from audit.gate.policy import Policy
from audit.text.unsafe import visible

TAGS = {Decision.BLOCK: "failure", Decision.CANNOT_DECIDE: "error", Decision.ALLOW: "system-out"}


def render(judgement: GateJudgement) -> str:
    """The document."""
    by_requirement = _grouped(judgement)
    run = judgement.run.ulid if judgement.run else "RUN"
    suite = ElementTree.Element("testsuite", name=f"audit gate {judgement.request.policy.name}")
    counts = {"failure": 0, "error": 0}
    for requirement, reasons in by_requirement.items():
        case = ElementTree.SubElement(suite, "testcase", classname=run, name=visible(requirement))
        # a reader of JUnit counts one outcome per case: the worst
        worst = min(reasons, key=lambda reason: list(TAGS).index(reason.answer), default=None)
        if worst is not None:
            tag = TAGS[worst.answer]
            element = ElementTree.SubElement(case, tag)
            if tag in counts:
                counts[tag] += 1
                element.set("message", visible(worst.text))
            element.text = "\n".join(_line(reason, run) for reason in reasons)
    suite.set("tests", str(len(by_requirement)))
    suite.set("failures", str(counts["failure"]))
    suite.set("errors", str(counts["error"]))
    suite.set("timestamp", judgement.request.now.isoformat(timespec="seconds"))
    root = ElementTree.Element("testsuites")
    root.append(suite)
    ElementTree.indent(root)
    return ElementTree.tostring(root, encoding="unicode", xml_declaration=True)


def _line(reason: Reason, run: str) -> str:
    step = next_step(reason, run)
    return visible(reason.text) + (f"; next: {step}" if step else "")


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

"""A decision as lines for a terminal."""

from __future__ import annotations

from collections.abc import Iterator

from audit.gate.judgement import GateJudgement
from audit.gate.next_step import next_step
from audit.text.unsafe import visible


def render(judgement: GateJudgement) -> str:
    """The decision, and each reason with the next step."""
    return "\n".join(visible(line) for line in _lines(judgement))


def _lines(judgement: GateJudgement) -> Iterator[str]:
    run, policy = judgement.run, judgement.request.policy
    name = run.ulid if run else "no run"
    yield f"{judgement.outcome.answer.words}: {name} under policy {policy.name} sha256:{policy.sha256}"
    previous = None
    for reason in judgement.outcome.reasons:
        step = next_step(reason, run.ulid if run else "RUN")
        if previous not in (None, step):
            yield f"    next: {previous}"
        yield f"  {reason.answer.words}: {reason.requirement}: {reason.text}"
        previous = step
    if previous is not None:
        yield f"    next: {previous}"
    if judgement.warns:
        yield "  exit code 0, because of --warn-only; the decision stands as it is"

"""The reasons of Rego modules. Whatever a module says or fails to say, it adds reasons and takes none away."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

from audit.gate.decision import GateOutcome, Reason, blocked, remark, undecided
from audit.gate.facts import RunFacts
from audit.gate.judgement import GateRequest
from audit.gate.rego.document import facts_document
from audit.gate.rego.engine import RegoAnswer, RegoFailure, evaluate
from audit.gate.rego_modules import RegoModule

REGO: Final = "rego"
MOST_REASONS: Final = 50
MOST_CHARACTERS: Final = 500


def rego_reasons(facts: RunFacts, request: GateRequest, outcome: GateOutcome) -> Iterator[Reason]:
    """Why the modules do not let the deployment through, after what the policy alone decided."""
    given = {module.sha256 for module in request.rego}
    for sha256 in request.policy.parts.rego:
        if sha256 not in given:
            yield undecided(REGO, f"the policy requires the Rego module sha256:{sha256}; add --rego FILE")
    if request.rego:
        document = facts_document(facts, request, outcome)
        for module in request.rego:
            yield from _of_module(module, document)


def _of_module(module: RegoModule, document: dict[str, object]) -> Iterator[Reason]:
    requirement = f"{REGO} {module.name}"
    try:
        answer = evaluate(module, document)
    except RegoFailure as error:
        yield undecided(requirement, f"sha256:{module.sha256}: {error}")
        return
    yield from reasons_of(module.name, module.sha256, answer)


def reasons_of(name: str, sha256: str, answer: RegoAnswer) -> Iterator[Reason]:
    """An answer as reasons, the last of which says that the module was evaluated."""
    requirement = f"{REGO} {name}"
    yield from (blocked(requirement, text[:MOST_CHARACTERS]) for text in answer.deny[:MOST_REASONS])
    if len(answer.deny) > MOST_REASONS:
        yield blocked(requirement, f"{len(answer.deny) - MOST_REASONS} more reasons")
    if not answer.allow and not answer.deny:
        yield blocked(requirement, "rule allow is false")
    yield remark(requirement, f"sha256:{sha256} was evaluated")

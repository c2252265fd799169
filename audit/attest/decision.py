"""The statement of a gate's decision: a verification summary of SLSA (VSA v1).

A block and an undecided decision are both FAILED. Its subjects are what the decision is about; who asks whether a
deployment was allowed compares digests with them (`audit.attest.verify`).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any, Final

from audit.attest.facts import VERIFIER, tool
from audit.attest.statement import DECISION, InToto, StatementSubject

ALLOW: Final = "allow"


@dataclass(frozen=True, slots=True)
class DecisionFacts:
    """A decision on a run.

    subjects: what may be deployed by it: `target`, `draft/NAME`, `engine/ARM`, `run/ULID`.
    inputs: SHA-256 of each statement or document that the decision rests on, by URI.
    """

    run: str
    decision: str
    at: datetime
    policy_name: str
    policy_sha256: str
    subjects: tuple[StatementSubject, ...]
    inputs: Mapping[str, str]
    levels: Sequence[str] = ()


def decision_statement(facts: DecisionFacts) -> InToto:
    """The statement of a decision."""
    allowed = facts.decision == ALLOW
    predicate: dict[str, Any] = {
        "verifier": {"id": f"{VERIFIER}/gate/{tool()['version']}"},
        "timeVerified": facts.at.strftime("%Y-%m-%dT%H:%M:%SZ"),
        "resourceUri": f"urn:specaudit:run:{facts.run}",
        "policy": {"uri": f"urn:specaudit:policy:{facts.policy_name}", "digest": {"sha256": facts.policy_sha256}},
        "inputAttestations": [
            {"uri": uri, "digest": {"sha256": sha256}} for uri, sha256 in sorted(facts.inputs.items())
        ],
        "verificationResult": "PASSED" if allowed else "FAILED",
        "verifiedLevels": [f"SPECAUDIT_{level}" for level in facts.levels] if allowed else [],
    }
    return InToto(facts.subjects, DECISION, predicate)

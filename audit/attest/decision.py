"""The statement of a gate's decision: a verification summary of SLSA (VSA v1).

A block and an undecided decision are both FAILED. Its subjects are what the decision is about; who asks whether a
deployment was allowed compares digests with them (`audit.attest.verify`).
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any, Final
from urllib.parse import quote, unquote

from audit.attest.facts import VERIFIER, tool
from audit.attest.statement import DECISION, InToto, StatementSubject, moment
from audit.text.unsafe import quoted

ALLOW: Final = "allow"
LONG_AGO: Final = datetime(1970, 1, 1, tzinfo=UTC)
PASSED: Final = "PASSED"
FAILED: Final = "FAILED"
UNTIL: Final = "until"
"""Part of the name of an input that ends, before the moment."""


@dataclass(frozen=True, slots=True)
class DecisionFacts:
    """A decision on a run.

    run: None if there is no such run.
    subjects: what may be deployed by it: `target`, `draft/NAME`, `engine/ARM`, `run/ULID`.
    inputs: SHA-256 of each statement or document that the decision rests on, by URI.
    levels: what else was verified if the decision is allow: the evidence level, and words in capitals.
    """

    run: str | None
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
        "timeVerified": facts.at.astimezone(UTC).isoformat(timespec="microseconds").replace("+00:00", "Z"),
        "resourceUri": urn("run", facts.run or "unknown"),
        "policy": {"uri": urn("policy", facts.policy_name), "digest": {"sha256": facts.policy_sha256}},
        "inputAttestations": [
            {"uri": uri, "digest": {"sha256": sha256}} for uri, sha256 in sorted(facts.inputs.items())
        ],
        "verificationResult": PASSED if allowed else FAILED,
        "verifiedLevels": [f"SPECAUDIT_{level}" for level in facts.levels] if allowed else [],
    }
    return InToto(facts.subjects, DECISION, predicate)


def urn(*parts: str) -> str:
    """The name of a thing that a decision rests on."""
    return ":".join(("urn:specaudit", *(quote(part, safe="") for part in parts)))


def on_bundle(predicate: Mapping[str, Any]) -> bool:
    """True if the decision was made on a bundle, whose run need not be in the store that keeps the decision."""
    return urn("bundle") in _inputs(predicate)


def _inputs(predicate: Mapping[str, Any]) -> list[str]:
    listed = predicate.get("inputAttestations")
    return [str(item.get("uri")) for item in listed if isinstance(item, Mapping)] if isinstance(listed, list) else []


def decision_problem(predicate: Mapping[str, Any], policy_sha256: str | None, now: datetime) -> str | None:
    """Why nothing may be deployed by a decision; None if it is PASSED, under the policy if one is asked for.

    A decision ends with the first waiver or review that it rests on.
    """
    policy, result = predicate.get("policy"), predicate.get("verificationResult")
    if not isinstance(policy, Mapping) or not isinstance(policy.get("digest"), Mapping):
        return "the decision names no policy by digest"
    stated = policy["digest"].get("sha256")
    if policy_sha256 not in (None, stated):
        return f"the decision is under policy sha256:{stated}, not sha256:{policy_sha256}"
    if result != PASSED:
        return f"the decision is {quoted(str(result))} under {policy.get('uri')}: it lets nothing be deployed"
    end = _end(predicate)
    if end is not None and end <= now:
        return f"a waiver or review that the decision rests on ended {end.isoformat()}"
    return None


def _end(predicate: Mapping[str, Any]) -> datetime | None:
    """The first end that an input states; a text that is no moment has ended long ago."""
    parts = (uri.rpartition(f":{UNTIL}:") for uri in _inputs(predicate))
    return min((moment(unquote(end)) or LONG_AGO for _, mark, end in parts if mark), default=None)

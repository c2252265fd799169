"""Decisions that a trusted key signed: what the webhook goes by if it is started with keys.

The statement takes the place of the store's rows: a row without one, or with another's, admits nothing. What a key
signed stays signed, so each payload is verified once and remembered by its digest.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import datetime
from typing import Any, Final

from audit.attest.decision import ALLOW, FAILED, PASSED, urn
from audit.attest.statement import DECISION, InToto, opened
from audit.attest.verify import moment_of
from audit.errors import UserError
from audit.store.base.keys import PublicKey
from audit.store.reading.decision_index import DecidedRun, DecisionReader, KeptStatement, UsedModel

MOST: Final = 10_000
"""Payloads, and statements of other keys, that are remembered."""
NOT_MODELS: Final = frozenset({"engine", "run", "policy"})


@dataclass(frozen=True, slots=True)
class SignedDecisions:
    """The trusted keys, and what is known of the store's statements; threads may share it."""

    keys: tuple[PublicKey, ...]
    verified: dict[str, InToto] = field(default_factory=dict)
    refused: set[KeptStatement] = field(default_factory=set)

    def of_run(self, reader: DecisionReader, run: str) -> Iterator[InToto]:
        """The decisions on a run that a trusted key signed."""
        for kept in reader.statements(run, DECISION):
            statement = self.verified.get(kept.payload_sha256)
            if statement is None and kept not in self.refused:
                statement = self._read(kept, reader.envelope(kept))
            if statement is not None and statement.predicate.get("resourceUri") == urn("run", run):
                yield statement

    def _read(self, kept: KeptStatement, text: str) -> InToto | None:
        if len(self.verified) + len(self.refused) >= MOST:
            self.verified.clear()
            self.refused.clear()
        try:
            signed = opened(text.encode(), "statement", self.keys).signed
        except (UserError, RecursionError):
            self.refused.add(kept)
            return None
        if signed.payload_sha256 != kept.payload_sha256 or signed.statement.predicate_type != DECISION:
            self.refused.add(kept)
            return None
        self.verified[kept.payload_sha256] = signed.statement
        return signed.statement


@dataclass(frozen=True, slots=True)
class SignedRun:
    """A decided run as the signed statement of its newest decision states it, or why there is none that counts."""

    run: DecidedRun
    problem: str | None = None


def as_signed(run: DecidedRun, statements: Sequence[InToto], policies: frozenset[str]) -> SignedRun:
    """The run with what the signed statement of its newest decision states, unless a later one is no allow.

    `run` is as the store's rows state it, `statements` are the decisions on it that a trusted key signed. Decisions
    under policies other than `policies`, which are digests, do not count.
    """
    dated = [(item, moment) for item in statements if _policy(item) in policies and (moment := moment_of(item))]
    own = next(((item, at) for item, at in dated if _inputs(item).get(urn("decision")) == run.sha256), None)
    if own is None:
        return SignedRun(run, "no trusted key signed the newest decision; run audit gate with --key")
    statement, made = own
    later = [at for item, at in dated if at >= made and item is not statement and not _passed(item)]
    if later:
        return SignedRun(run, f"a decision that a trusted key signed at {max(later).isoformat()} is no allow")
    return SignedRun(_stated(run, statement, made))


def _stated(run: DecidedRun, statement: InToto, at: datetime) -> DecidedRun:
    parts = [(item.role, item.name.partition("/")[2] or item.role, item.sha256) for item in statement.subjects]
    return replace(
        run,
        models=tuple(UsedModel(*part) for part in parts if part[0] not in NOT_MODELS),
        configurations=frozenset(sha256 for kind, _, sha256 in parts if kind == "engine"),
        drafts=None,  # the statement has only those that a candidate arm used
        decision=run.decision if _passed(statement) or run.decision != ALLOW else FAILED,
        policy_sha256=_policy(statement),
        decided_at=at,
    )


def _passed(statement: InToto) -> bool:
    return statement.predicate.get("verificationResult") == PASSED


def _policy(statement: InToto) -> str:
    policy = statement.predicate.get("policy")
    digest = policy.get("digest") if isinstance(policy, Mapping) else None
    return str(digest.get("sha256")) if isinstance(digest, Mapping) else ""


def _inputs(statement: InToto) -> dict[str, Any]:
    listed = statement.predicate.get("inputAttestations")
    named = [item for item in listed if isinstance(item, Mapping)] if isinstance(listed, list) else []
    whole = [item for item in named if isinstance(item.get("digest"), Mapping)]
    return {str(item.get("uri")): item["digest"].get("sha256") for item in whole}

"""Verify an envelope: signatures, subjects, freshness, inclusion in the log, and the store's own copy.

Digests decide, never names; a role only selects which digest is compared.

The options of the command line that say which signed statements are trusted, before any key is read.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

from jsonschema import Draft202012Validator

import schemas
from audit.attest.decision import decision_problem, on_bundle
from audit.attest.facts import artifact_name
from audit.attest.statement import (
    DECISION,
    REVIEW,
    SPECULATION,
    TEST_RESULT,
    WAIVER,
    InToto,
    OpenedEnvelope,
    SignatureError,
    StatementSubject,
    opened,
    unverified,
)
from audit.attest.waivers import statement_problem
from audit.errors import UserError
from audit.store import Store
from audit.store.base.keys import PublicKey
from audit.store.ledger.proof import REGISTRATION, ProvenRow
from audit.store.ledger.proof import verify as verify_proof
from audit.text.durations import CLOCK_SKEW
from audit.text.schema_errors import first_problem


@dataclass(frozen=True, slots=True)
class Trust:
    """The proofs that a verifier accepts.

    subjects: digests that the statement must be about, by role or by a subject's whole name.
    log_keys: keys that sign checkpoints; with any, inclusion in their log is required of a speculation record.
    policy_sha256: the policy of a decision; None accepts any, and statements that are no decision.
    """

    keys: tuple[PublicKey, ...]
    threshold: int = 1
    max_age: timedelta | None = None
    subjects: tuple[StatementSubject, ...] = ()
    log_keys: tuple[PublicKey, ...] = ()
    policy_sha256: str | None = None


@dataclass(frozen=True, slots=True)
class EnvelopeResult:
    """A statement as read, its signers, and everything that does not hold."""

    statement: InToto
    signers: tuple[str, ...]
    mismatches: tuple[str, ...]

    @property
    def exit_code(self) -> int:
        """0 verified, 1 mismatch."""
        return 1 if self.mismatches else 0


def verify_envelope(raw: bytes, place: str, trust: Trust, now: datetime, store: Store | None = None) -> EnvelopeResult:
    """Verify an envelope against what is trusted, and with a store against its rows.

    Raises:
        UserError: not an envelope.
    """
    try:
        envelope = opened(raw, place, trust.keys, trust.threshold)
    except SignatureError as error:
        return EnvelopeResult(unverified(raw, place).statement, (), (str(error),))
    statement = envelope.signed.statement
    problems = [*_schema_problems(statement), *_subject_problems(statement, trust.subjects)]
    problems += _decision_problems(statement, trust.policy_sha256, now)
    if trust.max_age is not None:
        problems += _age_problems(statement, trust.max_age, now)
    if not problems:
        problems += [*_name_problems(statement), *_log_problems(statement, trust, place)]
    if store is not None and not problems:
        problems += _store_problems(store, envelope)
    return EnvelopeResult(statement, envelope.signers, tuple(problems))


def _schema_problems(statement: InToto) -> Iterator[str]:
    """Our own predicates follow their schemas."""
    if statement.predicate_type == SPECULATION:
        problem = first_problem(dict(statement.predicate), Draft202012Validator(schemas.load("speculation")))
        if problem is not None:
            yield f"the speculation record is malformed: {problem}"
    elif statement.predicate_type in (WAIVER, REVIEW):
        problem = statement_problem(statement)
        if problem is not None:
            yield problem


def _subject_problems(statement: InToto, wanted: Sequence[StatementSubject]) -> Iterator[str]:
    for subject in wanted:
        named = [item for item in statement.subjects if subject.name in (item.name, item.role)]
        if not named:
            yield f"the statement has no subject {subject.name}"
        elif subject.sha256 not in {item.sha256 for item in named}:
            has = ", ".join(f"sha256:{item.sha256}" for item in named)
            yield f"the statement is about {subject.name} {has}, not sha256:{subject.sha256}"


def _decision_problems(statement: InToto, policy_sha256: str | None, now: datetime) -> Iterator[str]:
    """A decision lets something be deployed only if it is PASSED, under the policy that is asked for."""
    if statement.predicate_type == DECISION:
        problem = decision_problem(statement.predicate, policy_sha256, now)
        if problem is not None:
            yield problem
    elif policy_sha256 is not None:
        yield f"the statement is no decision under a policy, but of type {statement.predicate_type}"


def moment_of(statement: InToto) -> datetime | None:
    """When the run finished, the decision was made or a person signed; None if the statement does not say."""
    predicate = statement.predicate
    try:
        if statement.predicate_type == DECISION:
            text = predicate["timeVerified"]
        elif statement.predicate_type == SPECULATION:
            text = predicate["run"]["finished_at"]
        elif statement.predicate_type == TEST_RESULT:
            text = predicate["configuration"][0]["annotations"]["finishedAt"]
        elif statement.predicate_type in (WAIVER, REVIEW):
            text = predicate["at"]
        else:
            text = predicate.get("evaluatedAt") or predicate["finished_at"]
        moment = datetime.fromisoformat(text)
    except (KeyError, IndexError, TypeError, ValueError):
        return None
    return moment if moment.tzinfo else moment.replace(tzinfo=UTC)


def _age_problems(statement: InToto, max_age: timedelta, now: datetime) -> Iterator[str]:
    moment = moment_of(statement)
    if moment is None:
        yield "the statement does not say when it was made, so its age cannot be held against --max-age"
    elif moment > now + CLOCK_SKEW:
        yield f"the statement is from the future: {moment.isoformat()}"
    elif now - moment > max_age:
        yield f"the statement is from {moment.isoformat()}, older than {max_age}"


def _name_problems(statement: InToto) -> Iterator[str]:
    """The subjects of a speculation record are those that its predicate lists, each under its name."""
    if statement.predicate_type != SPECULATION:
        return
    predicate = statement.predicate
    expected = {artifact_name(used["kind"], used["role"]): used["sha256"] for used in predicate["models"]}
    expected |= {
        f"engine/{arm['name']}": arm["configuration_sha256"] for arm in predicate["arms"] if arm["kind"] == "candidate"
    }
    expected[f"run/{predicate['run']['ulid']}"] = predicate["run"]["record_root"]
    stated = {item.name: item.sha256 for item in statement.subjects}
    for name in sorted(expected.keys() | stated.keys()):
        if expected.get(name) != stated.get(name):
            yield f"subject {name}: the predicate has {expected.get(name)}, the statement {stated.get(name)}"


def _log_problems(statement: InToto, trust: Trust, place: str) -> Iterator[str]:
    if statement.predicate_type != SPECULATION or not trust.log_keys:
        return
    document = statement.predicate["log"]
    if document is None:
        yield "the statement has no proof of inclusion in a log"
        return
    problems = []
    for key in trust.log_keys:
        try:
            yield from _proven_problems(statement.predicate, verify_proof(document, key, place).rows)
        except UserError as error:
            problems.append(str(error))
        else:
            return
    yield problems[-1]


def _proven_problems(predicate: Mapping[str, Any], rows: Sequence[ProvenRow]) -> Iterator[str]:
    """Compares the rows of the log with the predicate."""
    run, by_kind = predicate["run"], {row.kind: row.values for row in rows}
    if by_kind["run"]["ulid"] != run["ulid"]:
        yield f"the proof is of run {by_kind['run']['ulid']}"
    for name in ("record_root", "content_root", "exit_code", "tokens"):
        if by_kind["state"][name] != run[name]:
            yield f"the log holds another {name} of the run"
    proven = sorted((row.values["name"], row.values["verdict"]) for row in rows if row.kind == "check_result")
    stated = sorted((check["check"], check["verdict"]) for check in predicate["checks"])
    if any(stated.count(item) > proven.count(item) for item in stated):
        yield "the log does not hold the verdicts that the statement lists"
    begun = min(row.entry for row in rows if row.kind == "run")
    first = any(
        row.entry < begun and row.values["suite_sha256"] == predicate["suite"]["sha256"]
        for row in rows
        if row.kind == REGISTRATION
    )
    if predicate["registered_first"] and not first:
        yield "the log does not show that the suite was registered before the run"


def _store_problems(store: Store, envelope: OpenedEnvelope) -> Iterator[str]:
    if not store.attestations.has(envelope.signed.payload_sha256):
        yield f"the store {store.url} has no such statement"
        return
    statement = envelope.signed.statement
    for subject in statement.subjects:
        if subject.role == "run":
            try:
                ulid = store.resolve(subject.name.partition("/")[2])
            except UserError:
                if statement.predicate_type == DECISION and on_bundle(statement.predicate):
                    continue  # the store keeps the decision, and never had the run
                raise
            if store.load_run(ulid).record_root != subject.sha256 or not store.verify_root(ulid):
                yield f"the record of run {ulid} in the store is not what the statement was made of"


@dataclass(frozen=True, slots=True)
class TrustOptions:
    """Key files, ages and subjects as they were given."""

    keys: tuple[Path, ...] = ()
    threshold: int = 1
    max_age: str | None = None
    subjects: tuple[str, ...] = ()
    log_keys: tuple[Path, ...] = ()
    policy_digest: str | None = None

    @property
    def given(self) -> bool:
        """True if any of them was given."""
        return self != TrustOptions()

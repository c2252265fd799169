"""Waivers and reviews: what people sign about a run, as values and as statements.

The name of an actor is what the signer states; only the key is proven. A statement names its key, and its signature is
verified with that key: who trusts the key is another question, which a policy answers.
"""

from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass
from datetime import datetime
from enum import StrEnum
from typing import Any, Final

import schemas
from audit.attest.statement import REVIEW, SHORT, WAIVER, InToto, StatementSubject, moment, opened, unverified
from audit.errors import UserError, needs
from audit.store.base.keys import PublicKey, parse_public
from audit.store.reading.attestations import StoredAttestation
from audit.text.schema_errors import first_problem

VERSION: Final = 1
SCHEMAS: Final[Mapping[str, str]] = {WAIVER: "waiver", REVIEW: "review"}
"""The schema of each predicate."""


class ReviewOutcome(StrEnum):
    """A reviewer's decision."""

    APPROVE = "approve"
    REJECT = "reject"


@dataclass(frozen=True, slots=True)
class Unmet:
    """The name of one unmet requirement of a decision.

    answer: the decision that follows from it alone, block or cannot_decide.
    about: the parameter, situation or count, where a requirement has several.
    """

    answer: str
    requirement: str
    arm: str | None = None
    check: str | None = None
    about: str | None = None

    def __str__(self) -> str:
        parts = (("arm", self.arm), ("check", self.check), ("about", self.about))
        return ", ".join([self.requirement, *(f"{name} {value}" for name, value in parts if value is not None)])


@dataclass(frozen=True, slots=True)
class RunReference:
    """A run by its id and the root of its record."""

    ulid: str
    record_root: str


@dataclass(frozen=True, slots=True)
class PolicyReference:
    """A policy by name and digest."""

    name: str
    sha256: str


@dataclass(frozen=True, slots=True)
class Author:
    """Who signed, with which key, and when."""

    actor: str
    key: PublicKey
    at: datetime


@dataclass(frozen=True, slots=True)
class Waiver:
    """Somebody's wish that one unmet requirement pass for one run under one policy."""

    run: RunReference
    policy: PolicyReference
    unmet: Unmet
    reason: str
    ticket: str | None
    author: Author
    until: datetime
    id: str = ""
    """Digest of the signed bytes; empty before they are signed."""


@dataclass(frozen=True, slots=True)
class SignedReview:
    """Somebody's approval or rejection of a run, or of the waiver with the digest `waiver`.

    policy: the policy under which alone it counts; None is any.
    until: None leaves its end to the policy.
    """

    run: RunReference
    policy: PolicyReference | None
    waiver: str | None
    outcome: ReviewOutcome
    role: str | None
    comment: str
    author: Author
    until: datetime | None
    id: str = ""
    """Digest of the signed bytes; empty before they are signed."""


@dataclass(frozen=True, slots=True)
class Stated:
    """The waivers and reviews among stored statements; `broken` says why others are neither, one line each."""

    waivers: tuple[Waiver, ...] = ()
    reviews: tuple[SignedReview, ...] = ()
    broken: tuple[str, ...] = ()


def waiver_statement(waiver: Waiver) -> InToto:
    """The statement of a waiver."""
    predicate = {
        "version": VERSION,
        "run": asdict(waiver.run),
        "policy": asdict(waiver.policy),
        "waives": asdict(waiver.unmet),
        "reason": waiver.reason,
        "ticket": waiver.ticket,
        **_signature(waiver.author, waiver.until),
    }
    return InToto(_subjects(waiver.run, waiver.policy, None), WAIVER, predicate)


def review_statement(review: SignedReview) -> InToto:
    """The statement of a review."""
    predicate = {
        "version": VERSION,
        "run": asdict(review.run),
        "policy": None if review.policy is None else asdict(review.policy),
        "waiver": review.waiver,
        "outcome": review.outcome.value,
        "role": review.role,
        "comment": review.comment,
        **_signature(review.author, review.until),
    }
    return InToto(_subjects(review.run, review.policy, review.waiver), REVIEW, predicate)


def _signature(author: Author, until: datetime | None) -> dict[str, Any]:
    end = None if until is None else until.isoformat()
    return {"actor": author.actor, "key": author.key.text, "at": author.at.isoformat(), "until": end}


def _subjects(run: RunReference, policy: PolicyReference | None, waiver: str | None) -> tuple[StatementSubject, ...]:
    listed = [StatementSubject(f"run/{run.ulid}", run.record_root)]
    listed += [] if policy is None else [StatementSubject(f"policy/{policy.name}", policy.sha256)]
    listed += [] if waiver is None else [StatementSubject("waiver", waiver)]
    return tuple(listed)


def stated(rows: Iterable[StoredAttestation]) -> Stated:
    """The waivers and reviews among stored statements, oldest first; each counts once, however often it is stored.

    Raises:
        UserError: the extra `attest` is not installed.
    """
    known: dict[str, Waiver | SignedReview] = {}
    broken = []
    for row in rows:
        if row.predicate_type not in SCHEMAS:
            continue
        with needs("attest"):
            import securesystemslib.dsse  # noqa: F401  a missing package is no broken statement
        try:
            value = _verified(row)
        except UserError as error:
            broken.append(str(error))
        else:
            known.setdefault(value.id, value)
    values = sorted(known.values(), key=lambda value: (value.author.at, value.id))
    waivers = tuple(value for value in values if isinstance(value, Waiver))
    return Stated(waivers, tuple(value for value in values if isinstance(value, SignedReview)), tuple(broken))


def _verified(row: StoredAttestation) -> Waiver | SignedReview:
    """The value of a stored statement; raises UserError: it is malformed, or not signed by the key that it names."""
    place, raw = f"attestation {row.payload_sha256[:SHORT]}", row.envelope.encode()
    key = _key(unverified(raw, place).statement.predicate)
    if key is None:
        raise UserError(f"{place}: it names no public key")
    signed = opened(raw, place, (key,)).signed
    return read(signed.statement, signed.payload_sha256, place)


def read(statement: InToto, sha256: str, place: str) -> Waiver | SignedReview:
    """The value of a statement whose signature somebody verified; `sha256` is that of its signed bytes.

    Raises:
        UserError: neither a waiver nor a review, or malformed.
    """
    problem = statement_problem(statement)
    if problem is not None:
        raise UserError(f"{place}: {problem}")
    return (_waiver if statement.predicate_type == WAIVER else _review)(statement.predicate, sha256)


def statement_problem(statement: InToto) -> str | None:
    """Why a statement is neither a waiver nor a review; None if it is one."""
    from jsonschema import Draft202012Validator

    kind, predicate = SCHEMAS.get(statement.predicate_type), dict(statement.predicate)
    if kind is None:
        return f"a statement of type {statement.predicate_type}, neither a waiver nor a review"
    problem = first_problem(predicate, Draft202012Validator(schemas.load(kind)))
    if problem is not None:
        return f"the {kind} is malformed: {problem}"
    for name in ("at", "until"):
        if predicate[name] is not None and moment(predicate[name]) is None:
            return f"the {kind} is malformed: {name} is no moment with a time zone"
    if _key(predicate) is None:
        return f"the {kind} is malformed: key is no public key"
    if statement.subjects != _subjects(_run(predicate), _policy(predicate), predicate.get("waiver")):
        return f"the subjects of the {kind} are not those of its predicate"
    return None


def _waiver(predicate: Mapping[str, Any], sha256: str) -> Waiver:
    policy = predicate["policy"]
    return Waiver(
        run=_run(predicate),
        policy=PolicyReference(**policy),
        unmet=Unmet(**predicate["waives"]),
        reason=predicate["reason"],
        ticket=predicate["ticket"],
        author=_author(predicate),
        until=datetime.fromisoformat(predicate["until"]),
        id=sha256,
    )


def _review(predicate: Mapping[str, Any], sha256: str) -> SignedReview:
    until = predicate["until"]
    return SignedReview(
        run=_run(predicate),
        policy=_policy(predicate),
        waiver=predicate["waiver"],
        outcome=ReviewOutcome(predicate["outcome"]),
        role=predicate["role"],
        comment=predicate["comment"],
        author=_author(predicate),
        until=None if until is None else datetime.fromisoformat(until),
        id=sha256,
    )


def _run(predicate: Mapping[str, Any]) -> RunReference:
    return RunReference(**predicate["run"])


def _policy(predicate: Mapping[str, Any]) -> PolicyReference | None:
    return None if predicate["policy"] is None else PolicyReference(**predicate["policy"])


def _author(predicate: Mapping[str, Any]) -> Author:
    key = _key(predicate)
    assert key is not None, "the statement was not checked"
    return Author(predicate["actor"], key, datetime.fromisoformat(predicate["at"]))


def _key(predicate: Mapping[str, Any]) -> PublicKey | None:
    text = predicate.get("key")
    return parse_public(text) if isinstance(text, str) else None

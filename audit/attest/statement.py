"""in-toto Statements v1: subjects by digest, and a predicate about them.

The bytes of a statement are made once, to be signed; whoever verifies reads those bytes and never writes them again.
"""

import json
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any, Final

from audit.errors import UserError
from audit.text.documents import parse_json

STATEMENT_TYPE: Final = "https://in-toto.io/Statement/v1"
PAYLOAD_TYPE: Final = "application/vnd.in-toto+json"
TEST_RESULT: Final = "https://in-toto.io/attestation/test-result/v0.1"
DECISION: Final = "https://slsa.dev/verification_summary/v1"
SPECULATION: Final = "https://specaudit.dev/speculation/v1"
EVAL_RESULT: Final = "https://in-toto.io/attestation/eval-result/v0.1"
WAIVER: Final = "https://specaudit.dev/waiver/v1"
REVIEW: Final = "https://specaudit.dev/review/v1"
SHORT: Final = 12
"""Digits of an id or a digest that are shown."""
HEX: Final = frozenset("0123456789abcdef")


@dataclass(frozen=True, slots=True)
class StatementSubject:
    """Subject of a statement: a name, unique in it, and a hex SHA-256."""

    name: str
    sha256: str

    @property
    def role(self) -> str:
        """The part of the name before the first slash: target, draft, engine, run."""
        return self.name.partition("/")[0]


@dataclass(frozen=True, slots=True)
class InToto:
    """A statement."""

    subjects: tuple[StatementSubject, ...]
    predicate_type: str
    predicate: Mapping[str, Any]

    def to_json(self) -> dict[str, Any]:
        """The statement in in-toto's JSON form."""
        return {
            "_type": STATEMENT_TYPE,
            "subject": [{"name": item.name, "digest": {"sha256": item.sha256}} for item in self.subjects],
            "predicateType": self.predicate_type,
            "predicate": dict(self.predicate),
        }

    def to_bytes(self) -> bytes:
        """The bytes to sign."""
        return json.dumps(self.to_json(), separators=(",", ":"), allow_nan=False).encode("ascii")


def parse(payload: bytes, place: str) -> InToto:
    """The statement of signed bytes.

    Raises:
        UserError: not a statement: no JSON, a key twice, a subject without a digest, or two of one name.
    """
    try:
        document = parse_json(payload.decode("utf-8"))
    except ValueError as error:
        raise UserError(f"{place}: its payload is no statement: {error}") from error
    problem = _problem(document)
    if problem is not None:
        raise UserError(f"{place}: its payload is no in-toto statement: {problem}")
    subjects = tuple(StatementSubject(item["name"], item["digest"]["sha256"]) for item in document["subject"])
    return InToto(subjects, document["predicateType"], document["predicate"])


def _problem(document: Any) -> str | None:
    if not isinstance(document, dict) or document.get("_type") != STATEMENT_TYPE:
        return f"its _type is not {STATEMENT_TYPE}"
    if not isinstance(document.get("predicateType"), str) or not isinstance(document.get("predicate"), dict):
        return "it has no predicate"
    subjects = document.get("subject")
    if not isinstance(subjects, list) or not subjects or not all(map(_is_subject, subjects)):
        return "a subject lacks a name or a SHA-256"
    if len({item["name"] for item in subjects}) != len(subjects):
        return "two subjects have one name"
    return None


def _is_subject(item: Any) -> bool:
    digest = item.get("digest") if isinstance(item, dict) else None
    sha256 = digest.get("sha256") if isinstance(digest, dict) else None
    named = isinstance(item, dict) and isinstance(item.get("name"), str) and bool(item["name"])
    return named and isinstance(sha256, str) and len(sha256) == 64 and HEX.issuperset(sha256)


def moment(text: str) -> datetime | None:
    """A moment that a statement states, in UTC; None if the text is none with a time zone."""
    try:
        stated = datetime.fromisoformat(text)
        return stated.astimezone(UTC) if stated.tzinfo else None
    except (ValueError, OverflowError):
        return None

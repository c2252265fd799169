"""in-toto Statements v1, subjects by digest and a predicate about them, in DSSE envelopes by securesystemslib.

The bytes of a statement are made once, to be signed with the Ed25519 keys of `audit keys`; whoever verifies reads those
bytes and never writes them again. Signatures are verified over the payload's bytes before anything in them is read. A
key's id selects the key to try and decides nothing.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any, Final

from audit.errors import UserError, needs
from audit.store.base.keys import PrivateKey, PublicKey
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


if TYPE_CHECKING:
    from securesystemslib.dsse import Envelope
    from securesystemslib.signer import SSlibKey


@dataclass(frozen=True, slots=True)
class SignedStatement:
    """A statement with the bytes that were signed and the text of its envelope."""

    statement: InToto
    payload: bytes
    text: str

    @property
    def payload_sha256(self) -> str:
        """Hex SHA-256 of the signed bytes."""
        return hashlib.sha256(self.payload).hexdigest()


@dataclass(frozen=True, slots=True)
class OpenedEnvelope:
    """A statement whose signatures hold, and the names of the keys that signed it."""

    signed: SignedStatement
    signers: tuple[str, ...]


def sign(statement: InToto, keys: Sequence[PrivateKey]) -> SignedStatement:
    """The statement in an envelope with a signature of each key.

    Raises:
        UserError: the extra `attest` is not installed.
    """
    with needs("attest"):
        from securesystemslib.dsse import Envelope
    payload = statement.to_bytes()
    envelope = Envelope(payload, PAYLOAD_TYPE, {})
    for key in keys:
        envelope.sign(_signer(key))
    return SignedStatement(statement, payload, json.dumps(envelope.to_dict(), indent=1) + "\n")


def _signer(key: PrivateKey) -> Any:
    from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
    from securesystemslib.signer import CryptoSigner

    return CryptoSigner(Ed25519PrivateKey.from_private_bytes(key.seed))


def public(key: PublicKey) -> SSlibKey:
    """A public key as securesystemslib's."""
    with needs("attest"):
        from securesystemslib.signer import SSlibKey
    from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PublicKey

    return SSlibKey.from_crypto(Ed25519PublicKey.from_public_bytes(key.raw))


def opened(raw: bytes, place: str, keys: Sequence[PublicKey], threshold: int = 1) -> OpenedEnvelope:
    """The statement of an envelope that at least `threshold` of the keys signed.

    Raises:
        UserError: not an envelope, too few valid signatures, or its payload is no statement.
    """
    envelope = _read(raw, place)
    signers = _signers(envelope, keys)
    if len(signers) < max(threshold, 1):
        wanted = ", ".join(key.name for key in keys) or "no key"
        raise SignatureError(f"{place}: {len(signers)} of {max(threshold, 1)} signatures hold; trusted: {wanted}")
    return OpenedEnvelope(_signed(envelope, raw, place), signers)


class SignatureError(UserError):
    """An envelope that too few of the trusted keys signed."""


def unverified(raw: bytes, place: str) -> SignedStatement:
    """The statement of an envelope whose signatures nobody checked; for printing only.

    Raises:
        UserError: not an envelope, or its payload is no statement.
    """
    return _signed(_read(raw, place), raw, place)


def is_envelope(raw: bytes) -> bool:
    """True if the bytes look like a DSSE envelope, valid or not."""
    try:
        document = json.loads(raw)
    except (ValueError, RecursionError):
        return False
    return isinstance(document, dict) and "payloadType" in document and "signatures" in document


def _signed(envelope: Envelope, raw: bytes, place: str) -> SignedStatement:
    return SignedStatement(parse(envelope.payload, place), envelope.payload, raw.decode("utf-8"))


def _read(raw: bytes, place: str) -> Envelope:
    with needs("attest"):
        from securesystemslib.dsse import Envelope
        from securesystemslib.exceptions import Error, FormatError
    try:
        envelope = Envelope.from_dict(parse_json(raw.decode("utf-8")))
    except (ValueError, KeyError, TypeError, AttributeError, FormatError, Error) as error:
        raise UserError(f"{place}: not a DSSE envelope; name a file that audit attest or audit attach wrote") from error
    if envelope.payload_type != PAYLOAD_TYPE:
        raise UserError(f"{place}: its payload is not of type {PAYLOAD_TYPE}")
    return envelope


def _signers(envelope: Envelope, keys: Sequence[PublicKey]) -> tuple[str, ...]:
    """Names of the keys with a valid signature; a key under two names counts once."""
    from securesystemslib.exceptions import VerificationError

    names = []
    for raw, key in {key.raw: key for key in keys}.items():
        try:
            envelope.verify([public(PublicKey(key.name, raw))], 1)
        except (VerificationError, ValueError):
            continue
        names.append(key.name)
    return tuple(names)

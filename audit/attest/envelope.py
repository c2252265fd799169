"""DSSE envelopes by securesystemslib, signed with the Ed25519 keys of `audit keys`.

Signatures are verified over the payload's bytes before anything in them is read. A key's id selects the key to try and
decides nothing.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from audit.attest import statement as statements
from audit.attest.statement import PAYLOAD_TYPE, InToto
from audit.errors import UserError, needs
from audit.store.base.keys import PrivateKey, PublicKey
from audit.text.documents import parse_json

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
    return SignedStatement(statements.parse(envelope.payload, place), envelope.payload, raw.decode("utf-8"))


def _read(raw: bytes, place: str) -> Envelope:
    with needs("attest"):
        from securesystemslib.dsse import Envelope
        from securesystemslib.exceptions import Error, FormatError
    try:
        document = parse_json(raw.decode("utf-8"))
        envelope = Envelope.from_dict(document)
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

"""Salted commitments to content: HMAC-SHA256 under a random key that is stored, and erased, with the content.

A commitment with its salt and content proves that the content is the recorded one. Without the salt it reveals
nothing, even of a content that could be guessed. Cannot see: copies of the salt outside the store.
"""

import hmac
import secrets
import struct
from collections.abc import Iterable, Sequence
from typing import Any, Final

from audit.store.base.canonical import to_json

SALT_BYTES: Final = 16


def new_salt() -> bytes:
    """A fresh salt from the operating system."""
    return secrets.token_bytes(SALT_BYTES)


def commitment(salt: bytes, kind: str, content: bytes) -> str:
    """Hex HMAC-SHA256 of KIND, NUL and the content; `kind` keeps equal contents of two kinds apart."""
    return hmac.digest(salt, kind.encode("ascii") + b"\x00" + content, "sha256").hex()


def of_prompt(salt: bytes, tokens: Iterable[int]) -> str:
    """Commitment to a prompt's tokens, as little-endian 64-bit integers."""
    return commitment(salt, "prompt", token_bytes(tokens))


def token_bytes(tokens: Iterable[int]) -> bytes:
    """Token ids as little-endian 64-bit integers."""
    ids = tuple(tokens)
    return struct.pack(f"<{len(ids)}Q", *ids)


def of_output(salt: bytes, output_sha256: str, text: str) -> str:
    """Commitment to an output: the digest of its tokens and its text, as canonical JSON."""
    return commitment(salt, "output", to_json([output_sha256, text]).encode("ascii"))


def of_tokens(salt: bytes, columns: Iterable[str | None]) -> str:
    """Commitment to a request's readable tokens, by the bytes of their columns as stored."""
    return commitment(salt, "tokens", packed(columns))


def packed(columns: Iterable[str | None]) -> bytes:
    """Columns of text as bytes, each behind its length; NULL has the length -1."""
    parts = [None if column is None else column.encode() for column in columns]
    return b"".join(b"-1:" if part is None else b"%d:%b" % (len(part), part) for part in parts)


def of_trace(salt: bytes, trace_sha256: str) -> str:
    """Commitment to a trace by the digest of its uncompressed content."""
    return commitment(salt, "trace", trace_sha256.encode("ascii"))


def of_findings(salt: bytes, summary: str | None, findings: Sequence[Any]) -> str:
    """Commitment to a result's findings and quoting summary, as canonical JSON."""
    return commitment(salt, "findings", to_json([summary, list(findings)]).encode("ascii"))

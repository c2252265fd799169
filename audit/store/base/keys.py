"""Ed25519 keys that sign checkpoints, in the text forms of C2SP signed-note.

A private key file holds `PRIVATE+KEY+NAME+ID+BASE64`, a public one `NAME+ID+BASE64`. The id is the first 4 bytes of the
SHA-256 of name, newline, algorithm 0x01 and public key.
"""

from __future__ import annotations

import base64
import binascii
import hashlib
import os
import re
import stat
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Final

from audit.errors import UserError

if TYPE_CHECKING:
    from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

ED25519: Final = b"\x01"
PRIVATE: Final = "PRIVATE+KEY+"
NAME: Final = re.compile(r"[^\s+]+")


@dataclass(frozen=True, slots=True)
class PublicKey:
    """A name with the 32 bytes that verify its signatures."""

    name: str
    raw: bytes

    @property
    def id(self) -> bytes:
        """The 4 bytes that name the key in a signature."""
        return hashlib.sha256(self.name.encode() + b"\n" + ED25519 + self.raw).digest()[:4]

    @property
    def text(self) -> str:
        """The form of a public key file, without a newline."""
        return f"{self.name}+{self.id.hex()}+{base64.b64encode(ED25519 + self.raw).decode()}"

    def verifies(self, signature: bytes, message: bytes) -> bool:
        """True if the key's holder signed the message."""
        # imported here because most commands verify nothing
        from cryptography.exceptions import InvalidSignature
        from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PublicKey

        try:
            Ed25519PublicKey.from_public_bytes(self.raw).verify(signature, message)
        except (InvalidSignature, ValueError):
            return False
        return True


@dataclass(frozen=True, slots=True, repr=False)
class PrivateKey:
    """A name with the 32 secret bytes that sign."""

    name: str
    seed: bytes

    @property
    def public(self) -> PublicKey:
        """The key that verifies this one's signatures."""
        return PublicKey(self.name, self._key().public_key().public_bytes_raw())

    def sign(self, message: bytes) -> bytes:
        """The 64 bytes of a signature."""
        return self._key().sign(message)

    def _key(self) -> Ed25519PrivateKey:
        # imported here because most commands sign nothing
        from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

        return Ed25519PrivateKey.from_private_bytes(self.seed)


def init(path: Path, name: str) -> PublicKey:
    """Make a key pair: the private key at the path, the public one beside it with `.pub` appended.

    Raises:
        UserError: a name that notes cannot hold, or a file exists or cannot be made.
    """
    if not NAME.fullmatch(name):
        raise UserError(f"key name {name!r}: a name has no spaces and no +, for example example.org/audit")
    if not path.name:
        raise UserError(f"{path}: a folder is no key; name a file")
    public_path = path.with_name(path.name + ".pub")
    if public_path.exists():
        raise UserError(f"{public_path}: exists already; name another key file")
    key = PrivateKey(name, os.urandom(32))
    secret = base64.b64encode(ED25519 + key.seed).decode()
    _write_new(path, f"{PRIVATE}{name}+{key.public.id.hex()}+{secret}\n", 0o600)
    try:
        _write_new(public_path, key.public.text + "\n", 0o644)
    except UserError:
        path.unlink(missing_ok=True)
        raise
    return key.public


def _write_new(path: Path, content: str, mode: int) -> None:
    try:
        handle = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, mode)
    except FileExistsError as error:
        raise UserError(f"{path}: exists already; a key is never overwritten") from error
    except OSError as error:
        raise UserError(f"{path}: cannot be written: {error.strerror}") from error
    try:
        with os.fdopen(handle, "w", encoding="utf-8") as file:
            file.write(content)
            file.flush()
            os.fsync(file.fileno())
    except OSError as error:
        path.unlink(missing_ok=True)
        raise UserError(f"{path}: cannot be written: {error.strerror}") from error


def require_private(path: Path, what: str) -> None:
    """Refuse a secret that other users can read. Raises UserError: they can; `what` names it."""
    if os.name == "posix" and path.stat().st_mode & (stat.S_IRWXG | stat.S_IRWXO):
        raise UserError(f"{path}: other users can read this {what}; run: chmod 600 {path}")


def read_private(path: Path) -> PrivateKey:
    """A private key. Raises UserError: unreadable, readable by others, or not a private key."""
    content = _read(path)
    if not content.startswith(PRIVATE):
        raise UserError(f"{path}: not a private key of audit keys init")
    require_private(path, "private key")
    parts = content.removeprefix(PRIVATE).split("+", 2)
    key = _bytes(parts)
    if key is None or PrivateKey(parts[0], key).public.id.hex() != parts[1]:
        raise UserError(f"{path}: not a private key of audit keys init")
    return PrivateKey(parts[0], key)


def read_public(path: Path) -> PublicKey:
    """A public key. Raises UserError: unreadable or not a public key."""
    content = _read(path)
    if content.startswith(PRIVATE):
        raise UserError(f"{path}: a private key; name the public one ({path}.pub)")
    key = parse_public(content)
    if key is None:
        raise UserError(f"{path}: not a public key of audit keys init")
    return key


def parse_public(content: str) -> PublicKey | None:
    """A public key from its text; None for another text."""
    parts = content.split("+", 2)
    raw = _bytes(parts)
    key = None if raw is None else PublicKey(parts[0], raw)
    return key if key is not None and NAME.fullmatch(key.name) and key.id.hex() == parts[1] else None


def _read(path: Path) -> str:
    try:
        return path.read_text("utf-8").strip()
    except UnicodeDecodeError as error:
        raise UserError(f"{path}: not a key of audit keys init") from error
    except OSError as error:
        # the public key of a file lies beside it
        private = path.with_suffix("") if path.suffix == ".pub" else path
        make = f"make a key with: audit keys init {private} --name NAME"
        raise UserError(f"{path}: cannot be read: {error.strerror}; {make}") from error


def _bytes(parts: list[str]) -> bytes | None:
    """The 32 bytes of a key's text; None for another text."""
    raw = from_base64(parts[2]) if len(parts) == 3 else b""
    return raw[1:] if len(raw) == 33 and raw[:1] == ED25519 else None


def from_base64(text: str) -> bytes:
    """The bytes of a text in base 64; none of another text."""
    try:
        return base64.b64decode(text, validate=True)
    except (binascii.Error, ValueError):
        return b""

"""Sign statements and keep them in the store, in one transaction for all."""

from collections.abc import Sequence
from dataclasses import asdict
from datetime import datetime

from audit.attest.statement import InToto, SignedStatement, sign
from audit.errors import CannotDecide
from audit.store import Store
from audit.store.base.keys import PrivateKey
from audit.store.ledger import notes
from audit.store.reading.attestations import StoredAttestation


def stored(signed: SignedStatement, run: str | None, now: datetime) -> StoredAttestation:
    """A signed statement as a row of the store."""
    return StoredAttestation(
        run=run,
        predicate_type=signed.statement.predicate_type,
        payload_sha256=signed.payload_sha256,
        envelope=signed.text,
        subjects=tuple(asdict(subject) for subject in signed.statement.subjects),
        created_at=now,
    )


def sign_and_store(
    store: Store, statements: Sequence[InToto], keys: Sequence[PrivateKey], run: str | None, now: datetime
) -> tuple[SignedStatement, ...]:
    """Sign statements with each key and record them. Raises UserError: the extra `attest` is not installed."""
    signed = tuple(sign(statement, keys) for statement in statements)
    store.attestations.add([stored(item, run, now) for item in signed])
    return signed


def checkpoint(store: Store, key: PrivateKey) -> None:
    """Sign the store's log as it is now, so that a statement can prove its inclusion.

    Raises:
        CannotDecide: the log does not continue the store's earlier checkpoints.
    """
    for message in store.check_checkpoints(store.checkpoints()):
        raise CannotDecide(f"{store.url}: not signed: {message}")
    store.add_checkpoint(lambda head: notes.signed(head, key))

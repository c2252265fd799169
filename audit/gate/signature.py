"""Whether a trusted key signed a log that holds the run's ending: a checkpoint of the store, or a proof without one."""

from __future__ import annotations

import hashlib
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Final

from audit.errors import CannotDecide, UserError
from audit.gate.facts import SignedEnding
from audit.gate.policy_parts import TrustedKeys
from audit.store import Store, StoredRun
from audit.store.base.keys import PublicKey
from audit.store.ledger import notes, proof
from audit.store.ledger.proof import ProvenRun
from audit.text.documents import decode_text, parse_json, read_bytes

MOST_BYTES: Final = 2**24


def by_checkpoint(store: Store, run: str, path: Path, keys: TrustedKeys) -> SignedEnding:
    """The run's end in the log of the store, by a signed checkpoint."""
    raw = read_bytes(path, MOST_BYTES)
    text = decode_text(str(path), raw)
    ending = _signed(keys, lambda key: _checkpoint_problem(store, run, text, str(path), key))
    return replace(ending, sha256=hashlib.sha256(raw).hexdigest())


def _checkpoint_problem(store: Store, run: str, text: str, place: str, key: PublicKey) -> str | None:
    head = notes.opened(text, key, place)
    for problem in store.check_checkpoints((head,)):
        return f"{place}: {problem}"
    entry = store.ending_entry(run)
    if entry is None or entry >= head.size:
        return f"{place}: the run ended after this checkpoint; sign a new one: audit db checkpoint"
    return None


def by_proof(run: StoredRun, path: Path, keys: TrustedKeys) -> SignedEnding:
    """The run's end by a proof of `audit db prove`, without the store that it is from."""
    raw = read_bytes(path, MOST_BYTES)
    try:
        document = parse_json(decode_text(str(path), raw))
    except ValueError as error:
        return SignedEnding(problem=f"{path}: {error}")
    ending = _signed(keys, lambda key: _proof_problem(run, proof.verify(document, key, str(path)), str(path)))
    return replace(ending, sha256=hashlib.sha256(raw).hexdigest())


def _proof_problem(run: StoredRun, proven: ProvenRun, place: str) -> str | None:
    rows = {row.kind: row.values for row in proven.rows}
    if rows["run"]["ulid"] != run.ulid:
        return f"{place}: it is of run {rows['run']['ulid']}"
    if rows["state"]["record_root"] != run.record_root:
        return f"{place}: the signed log has record root {rows['state']['record_root']}, the run {run.record_root}"
    return None


def _signed(keys: TrustedKeys, problem_of: Callable[[PublicKey], str | None]) -> SignedEnding:
    """The verdict of the first trusted key that signed; a revoked key's signature is named as such."""
    refused = "the policy trusts no key; name public keys under keys.trusted"
    for holder, key in keys.trusted.items():
        try:
            problem = problem_of(key)
        except (UserError, CannotDecide) as error:
            refused = str(error)
            continue
        if keys.is_revoked(key):
            return SignedEnding(problem=f"signed by the key of {holder}, which the policy revokes")
        return SignedEnding(by=holder) if problem is None else SignedEnding(problem=problem)
    for key in keys.revoked:
        if _signs(key, problem_of):
            return SignedEnding(problem=f"signed by the key {key.name}, which the policy revokes")
    return SignedEnding(problem=refused)


def _signs(key: PublicKey, problem_of: Callable[[PublicKey], str | None]) -> bool:
    try:
        problem_of(key)
    except (UserError, CannotDecide):
        return False
    return True

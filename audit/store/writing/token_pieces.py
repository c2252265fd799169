"""The texts of the tokens that occur in a run, kept once per tokenizer, so that SQL can name a token.

A token of bytes that are no whole character has U+FFFD in its text.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from itertools import chain

from sqlalchemy import insert, select
from sqlalchemy.orm import Session

from audit.store.base.canonical import storable
from audit.store.tables.lookup import find_run
from audit.store.tables.runs import RequestRow, RequestTokensRow, RunArtifactRow, TokenPieceRow

TOKENIZER = "tokenizer"
"""Role of a run's tokenizer."""


def add_pieces(session: Session, ulid: str, text: Callable[[int], str]) -> int:
    """Store the texts of a run's tokens that the store lacks; returns their number, 0 without a tokenizer."""
    run = find_run(session, ulid)
    used = select(RunArtifactRow.artifact_id).where(RunArtifactRow.run_id == run.id, RunArtifactRow.role == TOKENIZER)
    tokenizer = session.scalars(used.order_by(RunArtifactRow.artifact_id).limit(1)).one_or_none()
    if tokenizer is None:
        return 0
    known = select(TokenPieceRow.token).where(TokenPieceRow.tokenizer_id == tokenizer)
    missing = sorted(_tokens(session, run.id) - set(session.scalars(known)))
    rows = [{"tokenizer_id": tokenizer, "token": token, "piece": storable(text(token))} for token in missing]
    if rows:
        session.execute(insert(TokenPieceRow), rows)
    return len(rows)


def _tokens(session: Session, run_id: int) -> set[int]:
    query = select(RequestTokensRow.token).join(RequestRow, RequestRow.id == RequestTokensRow.request_id)
    result: set[int] = set()
    for steps in session.scalars(query.where(RequestRow.run_id == run_id)):
        result.update(chain.from_iterable(json.loads(steps)))
    return result

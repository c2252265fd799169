"""Situations of prompts, contexts and rows, and of the batch around a request."""

import numpy as np

from audit.evidence.coverage.view import Mask, RequestView, known
from audit.evidence.records import is_later_turn

CHUNK: int = 128
"""Prompts of this length or more; engines read them in chunks."""
PREFIX: int = 16
"""Tokens that two prompts must share to count as a shared prefix."""
BLOCK: int = 16
"""Positions in a block of a paged cache."""
SHORT, LONG = 64, 256
LIKELY, UNLIKELY, TIE = 0.9, 0.1, 0.05


def long_prompt(view: RequestView) -> Mask:
    """Requests with a prompt of several chunks."""
    return view.once(view.prompt >= CHUNK)


def shared_prefix(view: RequestView) -> Mask:
    """Requests whose prompt begins like another request's."""
    return view.once(view.shared_prefix)


def preempted(view: RequestView) -> Mask | None:
    """Requests that were preempted at least once; None if the engine does not say so."""
    count = view.trace.header.facts.get("preemptions")
    return None if count is None else view.once(bool(count))


def first_token(view: RequestView) -> Mask:
    """The first token of an answer."""
    return view.once(True)


def block_border(view: RequestView) -> Mask:
    """Tokens at a multiple of the block size, after another token of their step."""
    return np.asarray((view.place > 0) & (_positions(view) % BLOCK == 0))


def context_short(view: RequestView) -> Mask:
    """Tokens at short contexts."""
    return _positions(view) < SHORT


def context_medium(view: RequestView) -> Mask:
    """Tokens at medium contexts."""
    positions = _positions(view)
    return (positions >= SHORT) & (positions < LONG)


def context_long(view: RequestView) -> Mask:
    """Tokens at long contexts."""
    return _positions(view) >= LONG


def _positions(view: RequestView) -> np.ndarray[tuple[int], np.dtype[np.int64]]:
    return view.prompt + np.arange(view.tokens)


def likely_token(view: RequestView) -> Mask | None:
    """Tokens with a large p."""
    return view.trace.p >= LIKELY if known(view.trace.p, view) else None


def unlikely_token(view: RequestView) -> Mask | None:
    """Tokens with a small p."""
    return view.trace.p < UNLIKELY if known(view.trace.p, view) else None


def near_tie(view: RequestView) -> Mask | None:
    """Tokens of rows whose two best scores nearly agree."""
    return view.trace.margin < TIE if known(view.trace.margin, view) else None


def later_turn(view: RequestView) -> Mask:
    """Requests whose prompt goes on from an answer that the arm gave."""
    return view.once(is_later_turn(view.request.case_id))


def row_reused(view: RequestView) -> Mask | None:
    """Requests in a row that another request left."""
    return None if view.batch is None or view.batch.reused is None else view.once(view.batch.reused)


def rows_finish_together(view: RequestView) -> Mask | None:
    """Requests that ended in one round with another."""
    return None if view.batch is None else view.at_last(view.batch.finished)


def neighbour_joins(view: RequestView) -> Mask | None:
    """Steps in whose round another request was admitted."""
    return None if view.batch is None else view.at_first(view.batch.joined)


def cancelled_neighbour(view: RequestView) -> Mask | None:
    """Steps right after another request of the batch was withdrawn; None if the record cannot show it."""
    return None if view.batch is None or view.batch.left is None else view.at_first(view.batch.left)


def mixed_parameters(view: RequestView) -> Mask | None:
    """Steps beside a row with other sampling parameters."""
    return None if view.batch is None or view.batch.parameters is None else view.at_first(view.batch.parameters)


def mixed_lengths(view: RequestView) -> Mask | None:
    """Steps beside a row with a context of another length."""
    return None if view.batch is None else view.at_first(view.batch.lengths)


def mixed_drafts(view: RequestView) -> Mask | None:
    """Steps beside a row with a draft of another length."""
    return None if view.batch is None else view.at_first(view.batch.drafts)

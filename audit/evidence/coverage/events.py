"""Situations of what reads the text: tokens on which a filter decided something."""

from __future__ import annotations

from audit.evidence.coverage.view import Mask, RequestView
from audit.evidence.streams import stream_of


def filtered(view: RequestView) -> Mask | None:
    """Tokens with which a filter decided to redact, stop or refuse; None if no stream is recorded."""
    stream = stream_of(view.trace.header)
    if stream is None:
        return None
    mask = view.nothing()
    for each in stream.decisions:
        if 0 <= each.token < len(mask):
            mask[each.token] = True
    return mask

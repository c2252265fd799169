"""Situations of what reads the text: tool calls that the engine found, and tokens on which a filter decided."""

from __future__ import annotations

import numpy as np

from audit.evidence.coverage.view import Mask, RequestView
from audit.evidence.streams import stream_of
from audit.evidence.tool_calls import spans_of, unread_reason


def tool_call(view: RequestView) -> Mask | None:
    """Tokens of tool calls in steps with a draft; None if the request offers tools and nothing reads its calls."""
    if unread_reason(view.request) is not None:
        return None
    inside = view.nothing()
    for span in spans_of(view.request):
        inside[span.start : span.stop] = True
    return np.asarray(inside & (view.drafted[view.step] > 0))


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

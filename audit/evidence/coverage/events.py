"""Situations of events that the engine reports beside its tokens."""

from __future__ import annotations

import numpy as np

from audit.evidence.coverage.view import Mask, RequestView
from audit.evidence.tool_calls import spans_of, unread_reason


def tool_call(view: RequestView) -> Mask | None:
    """Tokens of tool calls in steps with a draft; None if the request offers tools and nothing reads its calls."""
    if unread_reason(view.request) is not None:
        return None
    inside = view.nothing()
    for span in spans_of(view.request):
        inside[span.start : span.stop] = True
    return np.asarray(inside & (view.drafted[view.step] > 0))

"""Arms whose traces are decoded at the first access, as a store's reader gives them."""

from dataclasses import replace

from audit.evidence.records import LazyRequests, Level
from engine.core.types import RecordLevel
from engine.record.trace import encode, lazy_trace

LEVELS = {RecordLevel.TOPK: Level.L3, RecordLevel.TOKENS: Level.L0}


def lazily(given):
    """The arm with traces that are decoded at the first access."""
    payloads = [encode(request.trace) for request in given.requests]

    def read(index):
        request = given.requests[index]
        return replace(request, trace=lazy_trace(request.trace.header, lambda: payloads[index]))

    level = LEVELS.get(given.requests[0].trace.header.level, Level.L4)
    return replace(given, requests=LazyRequests(len(payloads), read), level=level)

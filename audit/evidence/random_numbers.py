"""Seed for a check's own random numbers, and detection of requests that share random numbers."""

import hashlib
from collections.abc import Sequence

from audit.evidence.records import ArmRecord, RequestRecord


def seed_of(requests: Sequence[RequestRecord]) -> int:
    """A seed derived from the tokens, so that equal evidence always gives the same result."""
    content = hashlib.sha256()
    for request in requests:
        content.update(repr((request.request_id, request.tokens)).encode())
    return int.from_bytes(content.digest()[:8], "big")


def shared_numbers(arm: ArmRecord) -> str | None:
    """Name the first two requests that draw the same random numbers, or None."""
    seen: dict[tuple[int, int], str] = {}
    for request in arm.requests:
        header = request.trace.header
        key = (header.sampling.seed, header.stream)
        if key in seen:
            return (
                f"requests {seen[key]} and {request.request_id} share seed and stream; pooled tests need independence"
            )
        seen[key] = request.request_id
    return None

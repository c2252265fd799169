"""Random numbers of requests: the seed that a check draws by, and requests that share theirs."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence

from audit.evidence.records import ArmRecord, RequestRecord


def seed_of(requests: Sequence[RequestRecord]) -> int:
    """A seed from the tokens themselves: the same evidence is always judged by the same numbers."""
    content = hashlib.sha256()
    for request in requests:
        content.update(repr((request.request_id, request.tokens)).encode())
    return int.from_bytes(content.digest()[:8], "big")


def shared_numbers(arm: ArmRecord) -> str | None:
    """The first two requests that draw the same random numbers, if any do."""
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

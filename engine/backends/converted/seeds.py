"""The seed of one request for an engine that takes one number."""

from __future__ import annotations

import hashlib

from engine.core.types import Request


def seed_of(request: Request) -> int:
    """A request's own seed, in [0, 2^31): a digest of seed and stream."""
    text = f"{request.sampling.seed} {request.stream}"
    return int.from_bytes(hashlib.sha256(text.encode()).digest()[:4], "big") >> 1

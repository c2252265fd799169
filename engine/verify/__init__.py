"""Verification rules, one file each.

A rule is added by one file and one line in `REGISTRY`.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from engine.registry import resolve
from engine.types import Protocol
from engine.verify.base import Verifier

REGISTRY: Final[Mapping[str, str]] = {
    "greedy": "engine.verify.greedy:GreedyVerifier",
    "chain": "engine.verify.chain:ChainVerifier",
    "tree": "engine.verify.tree:TreeVerifier",
    "block": "engine.verify.block:BlockVerifier",
    "gumbel": "engine.verify.gumbel:GumbelVerifier",
}


def load(protocol: Protocol) -> Verifier:
    """The verifier of a protocol."""
    verifier: Verifier = resolve(REGISTRY, protocol, "verifier")()
    return verifier

"""Distinguish the engine's own tokens from tokens derived from its text.

A remote engine may report no token ids. Its record then holds tokens of its text,
or characters, and `Header.facts` names the kind.
"""

from __future__ import annotations

from audit.evidence.records import RequestRecord

OWN = "server"


def names_its_ends(request: RequestRecord) -> bool:
    """True if the tokens are those that the engine generated, including the end token."""
    return str(request.trace.header.facts.get("tokens", OWN)) == OWN


def foreign_tokens(request: RequestRecord) -> str | None:
    """Why the tokens cannot be counted; None if they are the engine's and its end tokens are known."""
    header = request.trace.header
    if not names_its_ends(request):
        return f"the engine names no tokens, those on record are by {header.facts['tokens']}"
    if "tokens" in header.facts and not header.eos_ids:
        return "the end tokens of a model that is only served are not known"
    return None

"""Whether a record's tokens are the engine's own.

An engine that is asked over a network may name no token ids. Its record then
holds tokens of its text, or characters, and says so (`Header.facts`). Knows
nothing about how that came about.
"""

from __future__ import annotations

from audit.evidence.records import RequestRecord

OWN = "server"


def names_its_ends(request: RequestRecord) -> bool:
    """The tokens are those that the engine generated, the end token among them."""
    return str(request.trace.header.facts.get("tokens", OWN)) == OWN


def foreign_tokens(request: RequestRecord) -> str | None:
    """Why nothing can be counted on the tokens; None where they are the engine's and its end tokens are known."""
    header = request.trace.header
    if not names_its_ends(request):
        return f"the engine names no tokens, those on record are by {header.facts['tokens']}"
    if "tokens" in header.facts and not header.eos_ids:
        return "the end tokens of a model that is only served are not known"
    return None

"""The tokens of an arm with the reference's rows on them, for checks that know the law from the anchor arm alone."""

import dataclasses
from typing import Final

from audit.evidence.decisions import unreadable
from audit.evidence.pairing import pair_arms
from audit.evidence.random_numbers import shared_numbers
from audit.evidence.records import ArmKind, ArmRecord, Evidence, RequestRecord
from engine.core.types import FinishReason

NAMED: Final = ("server", "log-probabilities")
"""Origins of token ids that are those which were drawn."""


def not_followed(evidence: Evidence) -> str | None:
    """Why the anchor's rows are not the laws of the tokens that the arm drew, or None."""
    arm, anchor = evidence.candidate, evidence.companions[ArmKind.ANCHOR]
    pairs = pair_arms(arm, anchor).pairs
    if not pairs:
        return "the anchor arm has no request of the candidate's"
    other = next((pair for pair in pairs if pair.candidate.tokens != pair.baseline.tokens), None)
    if other is not None:
        return f"request {other.candidate.request_id}: the anchor was made over other tokens"
    return unreadable(anchor, cells=True) or _not_drawn(arm) or shared_numbers(arm)


def _not_drawn(arm: ArmRecord) -> str | None:
    """Why an arm's tokens may be others than those which were drawn, or None."""
    for request in arm.requests:
        origin = str(request.trace.header.facts.get("tokens", NAMED[0]))
        if origin not in NAMED:
            return f"request {request.request_id}: its tokens are by {origin}, and may not be those that were drawn"
        if origin != NAMED[0] and request.finish_reason is FinishReason.STOP:
            return f"request {request.request_id}: a stop string ended it, and the tokens of that string are not named"
    return None


def followed(evidence: Evidence) -> tuple[RequestRecord, ...]:
    """The anchor's requests with the candidate's names and ends, which the anchor does not know."""
    ours = evidence.candidate.by_key()
    return tuple(
        dataclasses.replace(
            request, request_id=ours[request.key].request_id, finish_reason=ours[request.key].finish_reason
        )
        for request in evidence.companions[ArmKind.ANCHOR].requests
    )


def end_hidden(request: RequestRecord) -> bool:
    """The answer ended by an end token that is not on record."""
    ended = request.finish_reason is FinishReason.EOS
    return ended and not (request.tokens and request.tokens[-1] in request.trace.header.eos_ids)

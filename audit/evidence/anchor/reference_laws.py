"""The tokens of an arm with the reference's rows on them, for checks that know the law from the anchor arm alone."""

import dataclasses
import math
from collections.abc import Iterator, Mapping
from statistics import median
from typing import Final

from audit.evidence.decisions import unreadable
from audit.evidence.identity import answered_by_service
from audit.evidence.pairing import pair_arms
from audit.evidence.random_numbers import shared_numbers
from audit.evidence.records import ArmKind, ArmRecord, Evidence, RequestRecord
from engine.core.types import FinishReason
from engine.record.facts import OTHER_PROMPT

NEUTRAL: Final = frozenset(
    "user metadata store safety_identifier prompt_cache_key service_tier request_id priority cache_salt cache_prompt "
    "id_slot return_progress timings_per_token return_tokens_as_token_ids prompt_logprobs skip_special_tokens "
    "spaces_between_special_tokens include_reasoning chat_template_kwargs".split()
)
"""Keys of a body that change neither the law nor a prompt that the reference does not know."""
FEWEST: Final = 3
"""Equal first tokens of plain answers that tell another request."""
APART: Final = 0.3
"""Median difference, in nats, that no rounding makes: even in 8 bits the likely tokens stay within a tenth."""
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
    # each reads every record of the arm, and the first one's reasons contain the second's
    unlike = other_request(evidence) if answered_by_service(arm.effective) else unmasked_reference(arm)
    return unlike or unreadable(anchor, cells=True) or _not_drawn(arm) or shared_numbers(arm)


def unmasked_reference(arm: ArmRecord) -> str | None:
    """Why the reference, which knows no grammar, has other laws than another engine that masks tokens; else None."""
    if arm.ours:
        return None
    masked = next((request for request in arm.requests if request.trace.header.sampling.structured), None)
    if masked is None:
        return None
    return f"request {masked.request_id}: a grammar masked tokens in the engine, and the reference masks none"


def other_request(evidence: Evidence) -> str | None:
    """Why the reference may know another request than the server answered, or None.

    A key of the body that is not known to leave prompt and law alone, a grammar, whose masks are of the server's
    library, a prompt that the server reads otherwise, or plain answers whose first tokens have other log-probabilities
    than the reference gives them.
    """
    arm, anchor = evidence.candidate, evidence.companions.get(ArmKind.ANCHOR)
    # an engine that ran here got the prompt and the parameters of the suite
    if not answered_by_service(arm.effective):
        return None
    body = arm.effective.facts.get("body")
    unknown = sorted(set(body) - NEUTRAL) if isinstance(body, Mapping) else []
    if unknown:
        return f"engine.body sets {unknown[0]}, which may change prompt or law; the reference does not know it"
    masked = unmasked_reference(arm)
    if masked is not None:
        return masked
    other = next((request for request in arm.requests if request.trace.header.facts.get(OTHER_PROMPT)), None)
    if other is not None:
        return f"request {other.request_id}: the server read another prompt than the reference"
    if evidence.baseline is None or anchor is None:
        return None
    apart = [abs(plain - known) for plain, known in _first_scores(evidence.baseline, anchor)]
    if len(apart) < FEWEST or median(apart) <= APART:
        return None
    return f"plain answers begin {median(apart):.2g} nats away from the reference, which knows another prompt or model"


def _first_scores(plain: ArmRecord, anchor: ArmRecord) -> Iterator[tuple[float, float]]:
    """Log-probabilities of equal first tokens: the plain answer's own, and the reference's."""
    known = anchor.by_key()
    for request in plain.requests:
        other = known.get(request.key)
        if other is None or not request.tokens[:1] or request.tokens[:1] != other.tokens[:1]:
            continue
        scores = [trace.logprob[0] for trace in (request.trace, other.trace) if len(trace.logprob)]
        if len(scores) == 2 and all(map(math.isfinite, scores)):
            yield float(scores[0]), float(scores[1])


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

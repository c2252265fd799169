"""From an answer of llama.cpp's server to a request's record, after its accounts are compared.

The server names no draft, so every token is a step of its own; the numbers of drafted and accepted tokens are facts of
the request.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

from engine.backends.llama_cpp.reconcile import SOURCES, mismatches
from engine.backends.openai.response import lead_of
from engine.backends.process.record import AnswerTerms, ReadAnswer, decoded_facts, end_of, single_steps
from engine.core.child import Frame
from engine.core.types import FinishReason, Request, SamplingParams
from engine.record.foreign.requests import ForeignEngine, ForeignRecord


def read(request: Request, frame: Frame, asked: Mapping[str, Any], terms: AnswerTerms) -> ReadAnswer:
    """Read an answer to the message `asked`."""
    answer = frame.header["answer"]
    tokens = tuple(int(token) for token in answer["tokens"])
    reason = reason_of(request, answer, terms.observed)
    facts: dict[str, Any] = {
        "reconciliation": {"sources": list(SOURCES), "mismatches": list(mismatches(asked, frame.header, reason))},
        **decoded_facts(request, tokens, reason, terms.target),
    }
    if terms.settings.kind is not None:
        facts["speculation"] = speculation_of(answer)
    record = ForeignRecord(single_steps(tokens), *_numbers(answer, request.sampling))
    return ReadAnswer(tokens, reason, str(answer["content"]), facts, record)


def _numbers(answer: Mapping[str, Any], asked: SamplingParams) -> tuple[tuple[float, ...], ...]:
    """Log-probabilities of the tokens in the raw rows, and the leads of the likeliest ones where those decide."""
    places = answer.get("completion_probabilities", ())
    if len(places) != len(answer["tokens"]):
        return ()
    leads = [lead_of([float(item["logprob"]) for item in place["top_logprobs"]]) for place in places]
    decided = leads if asked.plain_scores else [math.nan] * len(places)
    return tuple(float(place["logprob"]) for place in places), tuple(decided)


def reason_of(request: Request, answer: Mapping[str, Any], observed: ForeignEngine) -> FinishReason:
    """The end of an answer: a stop string by the server's word, anything else by the last token."""
    if answer["stop_type"] == "word":
        return FinishReason.STOP
    return end_of(request, answer["tokens"], observed.eos_ids)


def speculation_of(answer: Mapping[str, Any]) -> dict[str, int]:
    """The drafted and accepted tokens of one answer, as the server counts them; it leaves out what is 0."""
    timings = answer["timings"]
    return {"drafted": timings.get("draft_n", 0), "accepted": timings.get("draft_n_accepted", 0)}

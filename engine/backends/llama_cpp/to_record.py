"""From an answer of llama.cpp's server to a request's trace, after its accounts are compared.

The server names no draft, so every token is a step of its own; the numbers of drafted and accepted tokens are facts of
the request.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from engine.backends.converted.answers import decoded_facts, end_of
from engine.backends.converted.settings import ProcessSettings
from engine.backends.frames import Frame
from engine.backends.llama_cpp.reconcile import SOURCES, mismatches
from engine.backends.local_target import LocalTarget
from engine.backends.openai.response import lead_of
from engine.core.types import FinishReason, Generation, Request, SamplingParams
from engine.record.foreign import ForeignEngine, ForeignRecord, header_of, observed_trace
from engine.record.foreign_steps import ForeignStep


@dataclass(frozen=True, slots=True)
class ServerReading:
    """What reading an answer needs."""

    observed: ForeignEngine
    settings: ProcessSettings
    target: LocalTarget


def recorded(request: Request, frame: Frame, asked: Mapping[str, Any], reading: ServerReading) -> Generation:
    """The generation of an answer to the message `asked`."""
    answer = frame.header["answer"]
    tokens = tuple(int(token) for token in answer["tokens"])
    reason = reason_of(request, answer, reading.observed)
    facts: dict[str, Any] = {
        "reconciliation": {"sources": list(SOURCES), "mismatches": list(mismatches(asked, frame.header, reason))},
        **decoded_facts(request, tokens, reason, reading.target),
    }
    if reading.settings.kind is not None:
        facts["speculation"] = speculation_of(answer)
    header = header_of(request, reading.observed, reason, facts)
    steps = tuple(ForeignStep((), (token,)) for token in tokens)
    trace = observed_trace(header, ForeignRecord(steps, *_numbers(answer, request.sampling)))
    return Generation(request, tokens, reason, trace, str(answer["content"]), frame.header["latency_us"], facts)


def _numbers(answer: Mapping[str, Any], asked: SamplingParams) -> tuple[tuple[float, ...], ...]:
    """Log-probabilities of the tokens in the raw rows, and the leads of the likeliest ones where those decide."""
    places = answer.get("completion_probabilities", ())
    if len(places) != len(answer["tokens"]):
        return ()
    leads = [lead_of([float(each["logprob"]) for each in place["top_logprobs"]]) for place in places]
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

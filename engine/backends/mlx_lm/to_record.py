"""From an answer of the engine to a request's trace, after its accounts are compared.

The steps are the engine's rounds. If the accounts contradict each other, the record holds the tokens one by one, with
their rows and without drafts.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from engine.backends.converted.answers import end_of
from engine.backends.frames import Frame
from engine.backends.local_target import LocalTarget
from engine.backends.mlx_lm.rounds import SOURCES, contradictions, rounds_of, speculation
from engine.backends.second_decoding import NO_DECODING, undecoded
from engine.core.types import FinishReason, Generation, QKind, Request
from engine.record.foreign import ForeignEngine, ForeignRecord, header_of, observed_trace
from engine.record.foreign_steps import ForeignStep


@dataclass(frozen=True, slots=True)
class AnswerTerms:
    """What reading an answer needs; gamma is 0 without speculation.

    keeps_draws: every token that the engine returns has to be the one that its target drew there.
    """

    observed: ForeignEngine
    gamma: int
    target: LocalTarget
    keeps_draws: bool


def recorded(request: Request, frame: Frame, asked: Mapping[str, Any], terms: AnswerTerms) -> Generation:
    """The generation of an answer to the message `asked`."""
    answer = frame.header
    tokens = tuple(int(token) for token in answer["tokens"])
    reason = end_of(request, tokens, terms.observed.eos_ids)
    found = contradictions(answer, asked, terms.gamma)
    facts: dict[str, Any] = {
        "reconciliation": {
            "sources": list(SOURCES),
            "mismatches": [each.message for each in found],
            "faults": [each.message for each in found if each.misreturned and terms.keeps_draws],
        },
        **_decoded(request, tokens, reason, terms.target),
    }
    if terms.gamma:
        facts["speculation"] = speculation(answer)
    drafted = bool(terms.gamma) and not found
    steps = (_rounds if drafted else _alone)(answer, frame.arrays.get("rows"))
    trace = observed_trace(header_of(request, terms.observed, reason, facts), ForeignRecord(steps))
    return Generation(request, tokens, reason, trace, answer["text"], answer["latency_us"], facts)


def _decoded(request: Request, tokens: tuple[int, ...], reason: FinishReason, target: LocalTarget) -> dict[str, Any]:
    """The tokens decoded a second time: the engine's text has special tokens, but no token that ended the answer."""
    kept = tokens if reason is FinishReason.LENGTH else tokens[:-1]
    decoding = target.decoded(request.prompt, kept, special=True)
    return undecoded(NO_DECODING) if decoding is None else decoding.facts()


def _alone(answer: Mapping[str, Any], rows: Any) -> tuple[ForeignStep, ...]:
    return tuple(
        ForeignStep((), (token,), logits=None if rows is None else rows[at : at + 1])
        for at, token in enumerate(answer["tokens"])
    )


def _rounds(answer: Mapping[str, Any], rows: Any) -> tuple[ForeignStep, ...]:
    steps, start = [], 0
    for each in rounds_of(answer):
        end = start + len(each.emitted)
        steps.append(
            ForeignStep(
                drafted=each.drafted,
                emitted=each.emitted,
                accepted=each.accepted,
                q_kind=QKind.ONE_HOT,
                logits=None if rows is None else rows[start:end],
                examined_q=(1.0,) * len(each.drafted),
            )
        )
        start = end
    return tuple(steps)

"""From an answer of the engine to a request's record, after its accounts are compared.

The steps are the engine's rounds. If the accounts contradict each other, the record holds the tokens one by one, with
their rows and without drafts.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from engine.backends.local_target import LocalTarget
from engine.backends.mlx_lm.rounds import SOURCES, contradictions, rounds_of, speculation
from engine.backends.process.record import AnswerTerms, ReadAnswer, end_of, single_steps
from engine.backends.second_decoding import NO_DECODING, undecoded
from engine.core.child import Frame
from engine.core.types import FinishReason, QKind, Request
from engine.record.foreign.requests import ForeignRecord
from engine.record.foreign.steps import ForeignStep


def read(
    request: Request, frame: Frame, asked: Mapping[str, Any], terms: AnswerTerms, *, keeps_draws: bool
) -> ReadAnswer:
    """Read an answer to the message `asked`.

    `keeps_draws`: every token that the engine returns has to be the one that its target drew there.
    """
    answer, rows, gamma = frame.header, frame.arrays.get("rows"), terms.settings.gamma
    tokens = tuple(int(token) for token in answer["tokens"])
    reason = end_of(request, tokens, terms.observed.eos_ids)
    mistakes = contradictions(answer, asked, gamma)
    facts: dict[str, Any] = {
        "reconciliation": {
            "sources": list(SOURCES),
            "mismatches": [mistake.message for mistake in mistakes],
            "faults": [mistake.message for mistake in mistakes if mistake.misreturned and keeps_draws],
        },
        **_decoded(request, tokens, reason, terms.target),
    }
    if gamma:
        facts["speculation"] = speculation(answer)
    steps = _rounds(answer, rows) if gamma and not mistakes else single_steps(answer["tokens"], rows)
    return ReadAnswer(tokens, reason, answer["text"], facts, ForeignRecord(steps))


def _decoded(request: Request, tokens: tuple[int, ...], reason: FinishReason, target: LocalTarget) -> dict[str, Any]:
    """The tokens decoded a second time: the engine's text has special tokens, but no token that ended the answer."""
    kept = tokens if reason is FinishReason.LENGTH else tokens[:-1]
    decoding = target.decoded(request.prompt, kept, special=True)
    return undecoded(NO_DECODING) if decoding is None else decoding.facts()


def _rounds(answer: Mapping[str, Any], rows: Any) -> tuple[ForeignStep, ...]:
    steps, start = [], 0
    for other in rounds_of(answer):
        end = start + len(other.emitted)
        steps.append(
            ForeignStep(
                drafted=other.drafted,
                emitted=other.emitted,
                accepted=other.accepted,
                q_kind=QKind.ONE_HOT,
                logits=None if rows is None else rows[start:end],
                examined_q=(1.0,) * len(other.drafted),
            )
        )
        start = end
    return tuple(steps)

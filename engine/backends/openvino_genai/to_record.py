"""From an answer of the engine to a request's record, after its accounts are compared.

The engine names no draft, so every token is a step of its own; how many tokens each step committed is a fact of the
request. Log-probabilities are recorded where they are those of the raw rows.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Final

from engine.backends.openvino_genai.settings import bounded, raw
from engine.backends.process.record import (
    AnswerTerms,
    ReadAnswer,
    changed_options,
    decoded_facts,
    end_of,
    single_steps,
)
from engine.core.child import Frame
from engine.core.types import FinishReason, Request
from engine.record.foreign.requests import ForeignRecord

SOURCES: Final = ("tokens", "steps", "finish reason", "options")
REASONS: Final = {FinishReason.EOS: "STOP", FinishReason.STOP: "STOP", FinishReason.LENGTH: "LENGTH"}
"""The engine's words for an end."""


def read(request: Request, frame: Frame, asked: Mapping[str, Any], terms: AnswerTerms) -> ReadAnswer:
    """Read an answer to the message `asked`."""
    answer, settings = frame.header, terms.settings
    tokens = tuple(int(token) for token in answer["tokens"])
    reason = end_of(request, tokens, terms.observed.eos_ids)
    most = settings.gamma + 1 if bounded(settings) else None
    further = ("counters", "sequence") if asked["counters"] else ("log-probabilities",)
    facts: dict[str, Any] = {
        "reconciliation": {
            "sources": [*SOURCES, *further],
            "mismatches": [*mismatches(answer, reason, most), *_changed(asked, answer["options"])],
        },
        **decoded_facts(request, tokens, reason, terms.target),
    }
    if settings.kind is not None:
        counts = answer.get("counts") or {}
        facts["speculation"] = {"steps": len(answer["steps"]), "per_step_emitted": answer["steps"], **counts}
    numbers = tuple(answer["logprob"]) if raw(request.sampling) else ()
    record = ForeignRecord(single_steps(tokens), numbers, (float("nan"),) * len(numbers))
    return ReadAnswer(tokens, reason, terms.target.tokens.decode(tokens), facts, record)


def _changed(asked: Mapping[str, Any], kept: Mapping[str, Any]) -> Iterator[str]:
    """The options that the engine kept otherwise; it adds its end token to the stop tokens."""
    options = asked["options"]
    ends = sorted({*options["stop_token_ids"], options["eos_token_id"]})
    return changed_options({**options, **asked["speculative"], "stop_token_ids": ends}, kept)


def mismatches(answer: Mapping[str, Any], reason: FinishReason, most: int | None) -> Iterator[str]:
    """The contradictions among the accounts of one answer."""
    tokens, steps = answer["tokens"], answer["steps"]
    if answer["finish"] != REASONS[reason]:
        yield f"finish reason: the engine ended with {answer['finish']}, its tokens end with {reason.value}"
    if most is not None and max(steps) > most:
        yield f"steps: one committed {max(steps)} tokens, more than {most}"
    if answer["logprob"] and len(answer["logprob"]) != len(tokens):
        yield f"log-probabilities: {len(answer['logprob'])} of {len(tokens)} tokens"
    if answer.get("sequence") not in (None, tokens):
        yield f"sequence: {len(answer['sequence'])} tokens returned, {len(tokens)} others streamed"
    if answer.get("counts") is not None:
        yield from _of_counts(answer["counts"], steps)


def _of_counts(counts: Mapping[str, int], steps: Sequence[int]) -> Iterator[str]:
    drafted, accepted, rejected = (counts[name] for name in ("drafted", "accepted", "rejected"))
    # each step commits one token of the target's own
    kept = sum(steps) - len(steps)
    if accepted + rejected != drafted:
        yield f"counters: {accepted} accepted and {rejected} rejected of {drafted} drafted tokens"
    if accepted != kept:
        yield f"counters: {accepted} accepted tokens, but {len(steps)} steps committed {kept} beyond one each"

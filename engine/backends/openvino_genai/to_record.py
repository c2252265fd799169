"""From an answer of the engine to a request's trace, after its accounts are compared.

The engine names no draft, so every token is a step of its own; how many tokens each step committed is a fact of the
request. Log-probabilities are recorded where they are those of the raw rows.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

from engine.backends.converted.answers import decoded_facts, end_of
from engine.backends.converted.settings import ProcessSettings
from engine.backends.frames import Frame
from engine.backends.local_target import LocalTarget
from engine.backends.openvino_genai.sampling import raw
from engine.backends.openvino_genai.settings import bounded
from engine.core.types import FinishReason, Generation, Request
from engine.record.foreign import ForeignEngine, ForeignRecord, header_of, observed_trace
from engine.record.foreign_steps import ForeignStep

SOURCES: Final = ("tokens", "steps", "finish reason", "options")
REASONS: Final = {FinishReason.EOS: "STOP", FinishReason.STOP: "STOP", FinishReason.LENGTH: "LENGTH"}
"""The engine's words for an end."""


@dataclass(frozen=True, slots=True)
class AnswerContext:
    """What reading an answer needs."""

    observed: ForeignEngine
    settings: ProcessSettings
    target: LocalTarget

    @property
    def most(self) -> int | None:
        """The largest number of tokens of a step; None if nothing bounds it."""
        return self.settings.gamma + 1 if bounded(self.settings) else None


def recorded(request: Request, frame: Frame, asked: Mapping[str, Any], context: AnswerContext) -> Generation:
    """The generation of an answer to the message `asked`."""
    answer = frame.header
    tokens = tuple(int(token) for token in answer["tokens"])
    reason = end_of(request, tokens, context.observed.eos_ids)
    counts = answer.get("counts")
    accounts = SOURCES if asked["counters"] else (*SOURCES, "log-probabilities")
    facts: dict[str, Any] = {
        "reconciliation": {
            "sources": [*accounts, *(("counters", "sequence") if asked["counters"] else ())],
            "mismatches": [*mismatches(answer, reason, context.most), *_options(asked, answer)],
        },
        **decoded_facts(request, tokens, reason, context.target),
    }
    if context.settings.kind is not None:
        facts["speculation"] = {"steps": len(answer["steps"]), "per_step_emitted": answer["steps"], **(counts or {})}
    header = header_of(request, context.observed, reason, facts)
    numbers = tuple(answer["logprob"]) if raw(request.sampling) else ()
    steps = tuple(ForeignStep((), (token,)) for token in tokens)
    trace = observed_trace(header, ForeignRecord(steps, numbers, (float("nan"),) * len(numbers)))
    text = context.target.tokens.decode(tokens)
    return Generation(request, tokens, reason, trace, text, answer["latency_us"], facts)


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


def _options(asked: Mapping[str, Any], answer: Mapping[str, Any]) -> list[str]:
    """The options that the engine kept otherwise than they were set; it keeps numbers as floats."""
    given, kept = {**asked["options"], **asked["speculative"]}, answer["options"]
    # the engine adds its end token
    given["stop_token_ids"] = sorted({*given["stop_token_ids"], given["eos_token_id"]})
    return [
        f"options: {name} was set to {value}, the engine has {kept.get(name)}"
        for name, value in given.items()
        if not _same(value, kept.get(name))
    ]


def _same(value: Any, kept: Any) -> bool:
    if isinstance(value, list):
        return bool(value == kept)
    return kept is not None and abs(float(value) - float(kept)) <= 1e-6 * max(1.0, abs(float(value)))

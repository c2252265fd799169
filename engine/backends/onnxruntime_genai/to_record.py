"""From an answer of the engine to a request's trace.

The engine names no refused draft, so every token is a step of its own without a draft; the rounds are facts of the
request. Rows are those that the engine showed before each token.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from engine.backends.engine_process import Failure
from engine.backends.frames import Frame
from engine.backends.local_target import LocalTarget
from engine.backends.onnxruntime_genai.reconcile import SOURCES, Accounts, mismatches, speculation
from engine.backends.onnxruntime_genai.settings import MOST_DRAFTS, OrtSettings
from engine.backends.second_decoding import NO_DECODING, undecoded
from engine.core.types import FinishReason, Generation, Request
from engine.record.foreign import ForeignEngine, ForeignRecord, failed_trace, header_of, observed_trace
from engine.record.foreign_steps import ForeignStep


@dataclass(frozen=True, slots=True)
class AnswerReading:
    """What reading an answer needs."""

    observed: ForeignEngine
    settings: OrtSettings
    target: LocalTarget

    @property
    def most(self) -> int:
        """The largest number of drafted tokens of a round."""
        return (self.settings.gamma if self.settings.bounded else MOST_DRAFTS) if self.settings.kind else 0


def failed(request: Request, failure: Failure, options: AnswerReading) -> Generation:
    """The generation of an unanswered request."""
    facts = {"error": {"kind": failure.kind, "message": failure.message}}
    header = header_of(request, options.observed, FinishReason.ERROR, facts)
    return Generation(request, (), FinishReason.ERROR, failed_trace(header), facts=facts)


def answered(request: Request, frame: Frame, asked: Mapping[str, Any], options: AnswerReading) -> Generation:
    """The generation of an answer to the message `asked`."""
    answer = frame.header
    tokens = tuple(int(token) for token in answer["tokens"])
    reason = _reason(request, tokens, options.observed.eos_ids)
    accounts = Accounts(
        request.prompt, tokens, answer["sequence"], answer["growth"], options.most, options.observed.eos_ids
    )
    contradictions = (*mismatches(accounts), *_options(asked, answer))
    facts: dict[str, Any] = {
        "reconciliation": {"sources": [*SOURCES, "options"], "mismatches": list(contradictions)},
        **_decoded(request, tokens, reason, options.target),
    }
    if options.settings.kind is not None:
        facts["speculation"] = speculation(accounts)
    header = header_of(request, options.observed, reason, facts)
    trace = observed_trace(header, ForeignRecord(_steps(tokens, frame.arrays.get("rows"))))
    text = options.target.tokens.decode(tokens)
    return Generation(request, tokens, reason, trace, text, answer["latency_us"], facts)


def _steps(tokens: Sequence[int], rows: Any) -> tuple[ForeignStep, ...]:
    return tuple(
        ForeignStep((), (token,), logits=None if rows is None else rows[at : at + 1]) for at, token in enumerate(tokens)
    )


def _reason(request: Request, tokens: Sequence[int], eos_ids: Sequence[int]) -> FinishReason:
    last = tokens[-1]
    if last in eos_ids:
        return FinishReason.EOS
    return FinishReason.STOP if last in request.sampling.stop_token_ids else FinishReason.LENGTH


def _decoded(request: Request, tokens: Sequence[int], reason: FinishReason, target: LocalTarget) -> dict[str, Any]:
    kept = tokens[:-1] if reason is FinishReason.EOS else tokens
    decoding = target.decoded(request.prompt, kept)
    return undecoded(NO_DECODING) if decoding is None else decoding.facts()


def _options(asked: Mapping[str, Any], answer: Mapping[str, Any]) -> list[str]:
    """The options that the engine kept otherwise than they were set; it keeps numbers as doubles or floats."""
    pairs = [("search", "search"), ("speculative", "speculative")]
    return [
        f"options: {name} was set to {value}, the engine has {answer[kept].get(name)}"
        for key, kept in pairs
        for name, value in asked[key].items()
        if not _same(value, answer[kept].get(name))
    ]


def _same(value: Any, kept: Any) -> bool:
    return kept is not None and abs(float(value) - float(kept)) <= 1e-6 * max(1.0, abs(float(value)))

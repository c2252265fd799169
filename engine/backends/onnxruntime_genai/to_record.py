"""From an answer of the engine to a request's trace.

The engine names no refused draft, so every token is a step of its own without a draft; the rounds are facts of the
request. Rows are those that the engine showed before each token.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from engine.backends.converted.answers import decoded_facts, end_of
from engine.backends.converted.settings import ProcessSettings
from engine.backends.frames import Frame
from engine.backends.local_target import LocalTarget
from engine.backends.onnxruntime_genai.reconcile import SOURCES, Accounts, mismatches, speculation
from engine.backends.onnxruntime_genai.settings import MOST_DRAFTS, bounded
from engine.core.types import Generation, Request
from engine.record.foreign import ForeignEngine, ForeignRecord, header_of, observed_trace
from engine.record.foreign_steps import ForeignStep


@dataclass(frozen=True, slots=True)
class AnswerReading:
    """What reading an answer needs."""

    observed: ForeignEngine
    settings: ProcessSettings
    target: LocalTarget

    @property
    def most(self) -> int:
        """The largest number of drafted tokens of a round."""
        return (self.settings.gamma if bounded(self.settings) else MOST_DRAFTS) if self.settings.kind else 0


def answered(request: Request, frame: Frame, asked: Mapping[str, Any], options: AnswerReading) -> Generation:
    """The generation of an answer to the message `asked`."""
    answer = frame.header
    tokens = tuple(int(token) for token in answer["tokens"])
    reason = end_of(request, tokens, options.observed.eos_ids)
    accounts = Accounts(
        request.prompt, tokens, answer["sequence"], answer["growth"], options.most, options.observed.eos_ids
    )
    contradictions = (*mismatches(accounts), *_options(asked, answer))
    facts: dict[str, Any] = {
        "reconciliation": {"sources": [*SOURCES, "options"], "mismatches": list(contradictions)},
        **decoded_facts(request, tokens, reason, options.target),
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

"""Answers of another process as records: an answer's end, the second decoding of its text, its options, and errors."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from engine.backends.local_target import LocalTarget
from engine.backends.process.settings import ProcessSettings
from engine.backends.second_decoding import NO_DECODING, undecoded
from engine.core.types import FinishReason, Generation, Request
from engine.record.foreign.requests import ForeignEngine, ForeignRecord, header_of, observed_trace
from engine.record.foreign.steps import ForeignStep


@dataclass(frozen=True, slots=True)
class AnswerTerms:
    """The terms on which an arm's answers are read."""

    observed: ForeignEngine
    settings: ProcessSettings
    target: LocalTarget


@dataclass(frozen=True, slots=True)
class ReadAnswer:
    """One answer, read: its tokens and their end, its text, its facts, and its steps with their numbers."""

    tokens: tuple[int, ...]
    reason: FinishReason
    text: str
    facts: Mapping[str, Any]
    record: ForeignRecord

    def generation(self, request: Request, terms: AnswerTerms, latency_us: int) -> Generation:
        """The generation of the request."""
        trace = observed_trace(header_of(request, terms.observed, self.reason, self.facts), self.record)
        return Generation(request, self.tokens, self.reason, trace, self.text, latency_us, self.facts)


def end_of(request: Request, tokens: Sequence[int], eos_ids: Sequence[int]) -> FinishReason:
    """The end of an answer, by its last token."""
    last = tokens[-1]
    if last in eos_ids and not request.sampling.ignore_eos:
        return FinishReason.EOS
    return FinishReason.STOP if last in request.sampling.stop_token_ids else FinishReason.LENGTH


def decoded_facts(request: Request, tokens: Sequence[int], reason: FinishReason, target: LocalTarget) -> dict[str, Any]:
    """The text of the tokens, decoded a second time, without the token that ended the answer."""
    kept = tokens[:-1] if reason is FinishReason.EOS else tokens
    decoding = target.decoded(request.prompt, kept)
    return undecoded(NO_DECODING) if decoding is None else decoding.facts()


def single_steps(tokens: Sequence[int], rows: Any = None) -> tuple[ForeignStep, ...]:
    """A step for every token, with its row and without a draft: the engine names none."""
    return tuple(
        ForeignStep((), (token,), logits=None if rows is None else rows[at : at + 1]) for at, token in enumerate(tokens)
    )


def changed_options(given: Mapping[str, Any], kept: Mapping[str, Any]) -> Iterator[str]:
    """The options that the engine kept otherwise than they were set."""
    for name, value in given.items():
        same = value == kept.get(name) if isinstance(value, list) else near(value, kept.get(name))
        if not same:
            yield f"options: {name} was set to {value}, the engine has {kept.get(name)}"


def near(value: float, kept: Any) -> bool:
    """True if a number is the one that was set; engines keep numbers as floats."""
    return kept is not None and abs(float(value) - float(kept)) <= 1e-6 * max(1.0, abs(float(value)))

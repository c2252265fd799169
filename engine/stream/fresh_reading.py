"""A response's committed text read a second time, by fresh filters and token by token.

Nothing of the stream that made the response takes part: it shows the decisions of the filters and the text that may
leave after each token, whatever was drafted.
"""

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any, Final

from engine.core.types import FinishReason
from engine.sampling.stopping import StopRule
from engine.stream.interface import Action, FilterRules
from engine.stream.text_stream import Decided, StreamRules, TextChunk, TextStream

MODELS: Final = ("classifier",)
"""Filters whose rules are a model: only the engine has it, so the engine reads again and records the result."""


@dataclass(frozen=True, slots=True)
class FreshReading:
    """The decisions and the chunks of a stream, and the characters for which a filter waited when it ended."""

    decisions: tuple[Decided, ...]
    chunks: tuple[TextChunk, ...]
    held: int

    def facts(self) -> dict[str, Any]:
        """As JSON values."""
        return {
            "decisions": [asdict(decision) for decision in self.decisions],
            "chunks": [[chunk.tokens, chunk.text] for chunk in self.chunks],
            "held": self.held,
        }


def reading_of(facts: Mapping[str, Any]) -> FreshReading:
    """A stream in recorded facts.

    Raises:
        KeyError, TypeError, ValueError: the facts have another form.
    """
    decisions = tuple(Decided(**{**fact, "action": Action(fact["action"])}) for fact in facts["decisions"])
    chunks = tuple(TextChunk(tokens, text) for tokens, text in facts["chunks"])
    whole = [number for made in decisions for number in (made.filter, made.token, made.start, made.end)]
    texts = [*(made.category for made in decisions), *(chunk.text for chunk in chunks)]
    if not all(type(number) is int for number in [*whole, *(chunk.tokens for chunk in chunks), facts["held"]]):
        raise TypeError("a decision, a chunk or the end has a place that is no whole number")
    if not all(isinstance(text, str) for text in texts):
        raise TypeError("a decision or a chunk has a text of another kind")
    return FreshReading(decisions, chunks, facts["held"])


def has_model(rules: Sequence[FilterRules]) -> bool:
    """True if some filter's rules are a model."""
    return any(item.facts.component in MODELS for item in rules)


def read_afresh(rules: StreamRules, stops: StopRule, tokens: Sequence[int], reason: FinishReason) -> FreshReading:
    """Read all tokens of a response; text leaves after each of them.

    `stops` decodes tokens and knows the stop strings, `reason` is the recorded end. A response that filters ended ends
    where these filters end it.
    """
    reading, count = TextStream(rules, stops), len(tokens)
    for size in range(1, count + 1):
        last = size == count and reason is not FinishReason.FILTER
        reading.read(tokens[:size], reason if last else None)
        reading.release(size)
        if reading.end is not None:
            break
    if count and not reading.closed:
        # a filter ended the response when it was over already
        reading.read(tokens, FinishReason.LENGTH)
        reading.release(count)
    return FreshReading(tuple(reading.decisions), tuple(reading.chunks), reading.held)

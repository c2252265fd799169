"""One response's text as it is committed: which characters leave after which step, and what filters decided.

A step's tokens are read one by one, so that a filter ends a response at the same token whatever was drafted around it.
After the step, the text on which all filters are done leaves as one chunk. Each step decodes the response from its
beginning, as the search for stop strings does: exact for every tokenizer, and quadratic in the length.
"""

from collections.abc import Sequence
from dataclasses import asdict, dataclass, field
from typing import Any

from engine.core.types import FinishReason, Proposal
from engine.sampling.stopping import StopRule, TruncatedOutcome, trim
from engine.stream.holding import settled
from engine.stream.interface import ENDING, Action, FilterDecision, FilterFacts, FilterRules, Mark, Side, TextFilter
from engine.stream.redaction import Span, redact


@dataclass(frozen=True, slots=True)
class Decided:
    """One decision other than to let text pass or wait.

    filter: index among the stream's filters.
    token: index of the token with which it was made; -1 for one about the prompt.
    """

    filter: int
    category: str
    token: int
    start: int
    end: int
    action: Action


@dataclass(frozen=True, slots=True)
class StreamRules:
    """The filters of an arm, loaded."""

    filters: tuple[FilterRules, ...] = ()

    def facts(self) -> list[dict[str, Any]]:
        """The identity of each filter, as JSON values."""
        return [asdict(other.facts) for other in self.filters]

    def refusal(self, prompt: str) -> list[Decided]:
        """Decisions of the filters of prompts on one; any decision refuses it."""
        result = []
        for index, rules in enumerate(self.filters):
            if rules.facts.side is Side.PROMPT:
                judging = rules.open()
                marks = (*judging.feed(prompt).marks, *judging.finish().marks)
                result += [_decided(index, rules.facts, mark, -1) for mark in marks]
        return result


@dataclass(frozen=True, slots=True)
class TextChunk:
    """Text that left together. `tokens` counts the committed tokens at that time."""

    tokens: int
    text: str


@dataclass(slots=True)
class _Judge:
    index: int
    facts: FilterFacts
    filter: TextFilter
    clear: int = 0


@dataclass(slots=True)
class TextStream:
    """The stream of one response. `stops` decodes tokens and knows the stop strings."""

    rules: StreamRules
    stops: StopRule
    chunks: list[TextChunk] = field(default_factory=list)
    decisions: list[Decided] = field(default_factory=list)
    raw: str = ""
    """The text that the filters have seen."""
    end: int | None = None
    """The character at which a filter ended the response."""
    closed: bool = False
    held: int = 0
    """Characters for which a filter still waited when the response ended."""
    _left: int = 0
    _inside: bool = False
    _judges: list[_Judge] = field(init=False)

    def __post_init__(self) -> None:
        listed = enumerate(self.rules.filters)
        self._judges = [_Judge(i, item.facts, item.open()) for i, item in listed if item.facts.side is Side.OUTPUT]

    @property
    def text(self) -> str:
        """Everything that left."""
        return "".join(chunk.text for chunk in self.chunks)

    def commit(self, generated: Sequence[int], proposal: Proposal, cut: TruncatedOutcome) -> TruncatedOutcome:
        """Read a step's committed tokens, cut at the one with which a filter ends the response, if one does.

        `generated` are the tokens before the step, `cut` its decisions up to an end. The draft stays unread: it has
        tokens that were not verified.
        """
        del proposal
        tokens = list(generated)
        for count, emitted in enumerate(cut.verdict.emitted, start=1):
            tokens.append(emitted.token)
            self.read(tokens, cut.reason if count == len(cut.verdict.emitted) else None)
            if self.end is not None:
                cut = TruncatedOutcome(trim(cut.verdict, count), FinishReason.FILTER)
                break
        self.release(len(tokens))
        return cut

    def read(self, tokens: Sequence[int], reason: FinishReason | None) -> None:
        """Show the filters what the last token adds to the text; with a reason, it ends the response."""
        if reason is None:
            text = settled(self.stops.decode(tokens), self.stops.params.stop)
        else:
            text = self.stops.text(tokens, reason)
        self._feed(text[len(self.raw) :], len(tokens) - 1)
        self.raw += text[len(self.raw) :]
        if reason is not None or self.end is not None:
            self._finish(len(tokens) - 1)

    def _feed(self, piece: str, token: int) -> None:
        for judge in self._judges if piece else ():
            self._note(judge, judge.filter.feed(piece), token)

    def _finish(self, token: int) -> None:
        self.held = len(self.raw) - min((judge.clear for judge in self._judges), default=len(self.raw))
        for judge in self._judges:
            self._note(judge, judge.filter.finish(), token)
        self.closed = True
        if self.end is not None:
            # what was found behind the end concerns no text that exists
            self.decisions = [decision for decision in self.decisions if decision.start <= self.end]

    def _note(self, judge: _Judge, decision: FilterDecision, token: int) -> None:
        judge.clear = decision.clear
        self.decisions += [_decided(judge.index, judge.facts, mark, token) for mark in decision.marks]
        if judge.facts.action in ENDING and decision.marks:
            first = min(mark.start for mark in decision.marks)
            self.end = first if self.end is None else min(self.end, first)

    def release(self, tokens: int) -> None:
        """Let the text leave on which all filters are done."""
        limit = min([len(self.raw), *(judge.clear for judge in self._judges)])
        if self.closed:
            limit = len(self.raw) if self.end is None else self.end
        spans = [Span(decision.start, decision.end) for decision in self.decisions if decision.action is Action.REDACT]
        piece = redact(self.raw[:limit], spans, self._left, inside=self._inside)
        if piece.text:
            self.chunks.append(TextChunk(tokens, piece.text))
        self._left, self._inside = max(self._left, limit), piece.inside

    def facts(self) -> dict[str, Any]:
        """The stream as facts of a trace's header."""
        return stream_facts(self.rules, self.decisions) | {
            "chunks": [[chunk.tokens, chunk.text] for chunk in self.chunks],
            "read": len(self.raw),
            "held": self.held,
        }


def stream_facts(rules: StreamRules, decisions: Sequence[Decided]) -> dict[str, Any]:
    """The filters and what they decided; without chunks, for a request that was refused."""
    return {
        "filters": rules.facts(),
        "decisions": [asdict(decision) for decision in decisions],
        "chunks": [],
        "read": 0,
        "held": 0,
    }


def _decided(index: int, facts: FilterFacts, mark: Mark, token: int) -> Decided:
    return Decided(index, mark.category, token, mark.start, mark.end, facts.action)

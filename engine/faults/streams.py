"""Faults of the stream: text that leaves too early, and filters that judge a text which is not the committed one.

The tokens are right, unless a filter ends the response at another one.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import product
from string import ascii_lowercase
from typing import Final

from engine.core.types import FinishReason, Proposal, Protocol, SamplingParams, Tree
from engine.faults.interface import Fault, Scenario, Situation, Suits
from engine.sampling.stopping import TruncatedOutcome
from engine.stream.holding import settled
from engine.stream.interface import Action, FilterDecision, FilterRules, Mark, StreamSpec, filter_spec
from engine.stream.text_stream import TextChunk, TextStream

PAIRS: Final = tuple(a + b for a in "aeimqu" for b in "bdfhjlnprtvxz ")
"""Texts of two letters that a scripted model often writes."""
LETTER_PAIRS: Final = tuple(product(ascii_lowercase, repeat=2))
STREAMED: Final = Scenario(protocol=Protocol.GUMBEL, stream=StreamSpec())
REDACTING: Final = filter_spec(
    "patterns", Action.REDACT, "output", {"categories": {"pairs": list(PAIRS)}, "whole_words": False}
)
WORDS: Final = filter_spec(
    "patterns", Action.REDACT, "output", {"categories": {"words": [*ascii_lowercase, *map("".join, LETTER_PAIRS)]}}
)
"""Words of one letter and of two; the end of the text may be the end of one."""
FILTERED: Final = Scenario(protocol=Protocol.GUMBEL, stream=StreamSpec((REDACTING,)))
ANY: Final = Suits(temperature="both", needs=("stream",))
FILTERS: Final = Suits(temperature="both", needs=("stream", "filters"))


def _drafted(tree: Tree) -> list[int]:
    """The tokens along the first child of each node."""
    tokens, node = [], -1
    while node in tree.parents:
        node = tree.parents.index(node)
        tokens.append(tree.tokens[node])
    return tokens


@dataclass(slots=True)
class _DraftingStream(TextStream):
    """Looks at a step's draft before the step's tokens are read. `count` tokens are committed then."""

    count: int = 0

    def commit(self, generated: Sequence[int], proposal: Proposal, cut: TruncatedOutcome) -> TruncatedOutcome:
        """As the sound stream's, after the draft."""
        drafted = [*generated, *_drafted(proposal.tree)]
        self.count = len(generated)
        self.look(settled(self.stops.decode(drafted), self.stops.params.stop))
        return TextStream.commit(self, generated, proposal, cut)

    def look(self, text: str) -> None:
        """See the text that would be, if the whole draft were kept."""


@dataclass(slots=True)
class _EarlyFlush(_DraftingStream):
    def look(self, text: str) -> None:
        if len(text) > self._left:
            self.chunks.append(TextChunk(self.count, text[self._left :]))
            self._left = len(text)


@dataclass(slots=True)
class _ReadsDrafts(_DraftingStream):
    def look(self, text: str) -> None:
        for judge in self._judges:
            before = judge.filter.snapshot()
            decision = judge.filter.feed(text[len(self.raw) :])
            judge.filter.rollback(before)
            self._note(judge, replace(decision, clear=judge.clear), self.count)


@dataclass(slots=True)
class _NotRolledBack(_DraftingStream):
    def look(self, text: str) -> None:
        for judge in self._judges:
            judge.filter.feed(text[len(self.raw) :])


@dataclass(slots=True)
class _NotHeld(TextStream):
    def read(self, tokens: Sequence[int], reason: FinishReason | None) -> None:
        if reason is None:
            text = settled(self.stops.decode(tokens), ())
        else:
            text = self.stops.text(tokens, reason)
            # what has not left is taken back
            self.raw = self.raw[: max(len(text), self._left)]
        self._feed(text[len(self.raw) :], len(tokens) - 1)
        self.raw += text[len(self.raw) :]
        if reason is not None:
            self._finish(len(tokens) - 1)


@dataclass(slots=True)
class _NotFlushed(TextStream):
    def read(self, tokens: Sequence[int], reason: FinishReason | None) -> None:
        if reason is not FinishReason.LENGTH:
            TextStream.read(self, tokens, reason)
            return
        piece = self.stops.text(tokens, reason)[len(self.raw) :]
        self._feed(piece, len(tokens) - 1)
        self.raw += piece
        self.closed = True


class _StepFilter:
    """A filter that begins anew with every step, and counts characters from the beginning of the text."""

    def __init__(self, rules: FilterRules) -> None:
        self._rules = rules
        self._filter = rules.open()
        self._before = self._seen = 0

    def feed(self, text: str) -> FilterDecision:
        self._seen += len(text)
        return self._moved(self._filter.feed(text))

    def finish(self) -> FilterDecision:
        """Ends the step too; nothing waits for the next one."""
        decision = self._moved(self._filter.finish())
        self._filter, self._before = self._rules.open(), self._seen
        return replace(decision, clear=self._seen)

    def snapshot(self) -> object:
        return self._filter.snapshot()

    def rollback(self, state: object) -> None:
        self._filter.rollback(state)

    def _moved(self, decision: FilterDecision) -> FilterDecision:
        move = self._before
        marks = tuple(Mark(mark.start + move, mark.end + move, mark.category) for mark in decision.marks)
        return FilterDecision(decision.action, decision.clear + move, marks)


@dataclass(slots=True)
class _FilterPerStep(TextStream):
    def __post_init__(self) -> None:
        TextStream.__post_init__(self)
        for judge in self._judges:
            judge.filter = _StepFilter(self.rules.filters[judge.index])

    def release(self, tokens: int) -> None:
        for judge in () if self.closed else self._judges:
            self._note(judge, judge.filter.finish(), tokens - 1)
        TextStream.release(self, tokens)


def _fault(
    breaks: str, upstream: str, stream: type[TextStream], suits: Suits, scenario: Scenario, when: Situation
) -> Fault:
    return Fault(upstream, lambda parts: replace(parts, streams=stream), suits, scenario, breaks=breaks, situation=when)


CHUNK_BEFORE_VERIFICATION = _fault(
    "leak",
    "none known: engines that stream a draft to hide the time of its verification",
    _EarlyFlush,
    ANY,
    STREAMED,
    "rejected_first",
)
"""The text of a draft leaves before it is verified, and what was rejected stays with the caller.

The chunk after it goes on behind as many characters as left too early, so accepted drafts look right.
"""

STOP_STRING_NOT_HELD = _fault(
    "leak",
    "ai-dynamo/dynamo#14375",
    _NotHeld,
    Suits(temperature="both", needs=("stream", "stop strings")),
    replace(STREAMED, sampling=SamplingParams(temperature=1.0, stop=PAIRS)),
    "stop_string_across_steps",
)
"""The beginning of a stop string leaves at the end of a step, and the next step completes it.

Within one step nothing shows: what has not left is cut.
"""

FILTER_READS_DRAFTS = _fault(
    "filters",
    "none known: engines that judge a draft while the target verifies it",
    _ReadsDrafts,
    FILTERS,
    FILTERED,
    "rejected_first",
)
"""A filter judges drafted tokens, and what it decides about rejected ones is carried out.

Its state is rolled back, so every decision about committed text is right too.
"""

FILTER_NOT_ROLLED_BACK = _fault(
    "filters",
    "none known: the filter's half of a grammar matcher that keeps rejected tokens",
    _NotRolledBack,
    FILTERS,
    FILTERED,
    "rejected_first",
)
"""A filter keeps the draft's text in its state: it judges a text in which every draft stands before its outcome.

What it decided about the draft is forgotten, as it should be; the positions and matches after it are wrong.
"""

FILTER_PER_STEP = _fault(
    "filters", "BerriAI/litellm#41611, NVIDIA-AI-Blueprints/aiq#292", _FilterPerStep, FILTERS, FILTERED, "filter"
)
"""A filter judges the text of each step by itself: what begins in one step and ends in the next is missed.

With one token per step, plain decoding would miss everything, so the filter was tested with long chunks.
"""

FILTER_NOT_FLUSHED_AT_LENGTH = _fault(
    "filters",
    "none known: streams that finish their filters at ends that the model makes, and drop them at the limit",
    _NotFlushed,
    FILTERS,
    replace(FILTERED, protocol=Protocol.CHAIN, stream=StreamSpec((WORDS,))),
    "filter_at_length",
)
"""Text that a filter holds back when the response reaches its length leaves unjudged.

Ends of other kinds are right.
"""

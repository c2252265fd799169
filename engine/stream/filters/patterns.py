"""Filter `patterns`: literal texts by category, found wherever they stand, also across steps (Aho-Corasick).

One pass over the text, whatever the number of patterns. Text that may still become a pattern waits. Every occurrence is
marked, overlapping ones too. Knows no spellings, no word forms and no meaning. Source: Aho and Corasick, Efficient
string matching, 1975.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Final

from engine.core.errors import InvalidRequest
from engine.stream.interface import FilterDecision, FilterFacts, FilterProgress, FilterSpec, Mark, ResumedFilter

VERSION: Final = "1"
KEYS: Final = ("categories", "ignore_case", "whole_words")


@dataclass(frozen=True, slots=True)
class Pattern:
    """A text and its category."""

    text: str
    category: str


@dataclass(slots=True)
class _Node:
    depth: int
    after: dict[str, int] = field(default_factory=dict)
    fall: int = 0
    """The node of the longest proper end of this node's text that begins a pattern."""
    patterns: tuple[Pattern, ...] = ()
    """Patterns that end here."""


class Automaton:
    """The patterns as one automaton; node 0 is its start."""

    def __init__(self, patterns: tuple[Pattern, ...]) -> None:
        self._nodes = [_Node(0)]
        for pattern in patterns:
            self._add(pattern)
        queue = deque(self._nodes[0].after.values())
        while queue:
            node = self._nodes[queue.popleft()]
            for letter, child in node.after.items():
                queue.append(child)
                target = self._nodes[child]
                target.fall = self.step(node.fall, letter) if node.depth else 0
                target.patterns += self._nodes[target.fall].patterns

    def _add(self, pattern: Pattern) -> None:
        at = 0
        for letter in pattern.text:
            nodes = self._nodes
            if letter not in nodes[at].after:
                nodes[at].after[letter] = len(nodes)
                nodes.append(_Node(nodes[at].depth + 1))
            at = nodes[at].after[letter]
        self._nodes[at].patterns += (pattern,)

    def step(self, node: int, letter: str) -> int:
        """The node after one more letter."""
        while node and letter not in self._nodes[node].after:
            node = self._nodes[node].fall
        return self._nodes[node].after.get(letter, 0)

    def depth(self, node: int) -> int:
        """Letters at the end of the text that may become a pattern."""
        return self._nodes[node].depth

    def found(self, node: int) -> tuple[Pattern, ...]:
        """The patterns that end with the last letter."""
        return self._nodes[node].patterns


@dataclass(frozen=True, slots=True)
class PatternRules:
    """The patterns of one arm."""

    facts: FilterFacts
    automaton: Automaton
    ignore_case: bool
    whole_words: bool

    def open(self) -> PatternFilter:
        """At the beginning of a text."""
        return PatternFilter(self, _Search(self.facts.action))


@dataclass(slots=True)
class _Search(FilterProgress):
    """Where the search stands; `waiting` are matches whose next character decides whether they are whole words."""

    node: int = 0
    waiting: list[Mark] = field(default_factory=list)


class PatternFilter(ResumedFilter[_Search]):
    """The search in one text."""

    def __init__(self, rules: PatternRules, state: _Search) -> None:
        super().__init__(state)
        self._rules = rules

    def feed(self, text: str) -> FilterDecision:
        """Search more text."""
        state, automaton = self._state, self._rules.automaton
        for letter in text:
            self._settle(letter)
            state.text += letter
            state.node = automaton.step(state.node, _plain(letter) if self._rules.ignore_case else letter)
            end = len(state.text)
            for pattern in automaton.found(state.node):
                self._match(Mark(end - len(pattern.text), end, pattern.category))
        held = [item.start for item in state.waiting]
        state.clear = min([len(state.text) - automaton.depth(state.node), *held])
        return state.decided()

    def finish(self) -> FilterDecision:
        """The text ends: so does a word at its end."""
        self._settle("")
        self._state.clear = len(self._state.text)
        return self._state.decided()

    def _match(self, mark: Mark) -> None:
        if not self._rules.whole_words:
            self._state.marks.append(mark)
        elif not (mark.start and self._state.text[mark.start - 1].isalnum()):
            self._state.waiting.append(mark)

    def _settle(self, following: str) -> None:
        """Marks the matches that waited, unless a word goes on."""
        if not following.isalnum():
            self._state.marks += self._state.waiting
        self._state.waiting = []


def _plain(letter: str) -> str:
    """The lower-case letter, if it is one letter too."""
    lower = letter.lower()
    return lower if len(lower) == 1 else letter


def build(spec: FilterSpec) -> PatternRules:
    """The rules of a specification: `categories` maps names to lists of texts.

    Raises:
        InvalidRequest: no categories, or an entry of another type.
    """
    rules = spec.given(*KEYS)
    ignore_case, whole_words = (_flag(rules, key) for key in KEYS[1:])
    patterns = _patterns(rules.get("categories"), ignore_case=ignore_case)
    return PatternRules(spec.facts(VERSION), Automaton(patterns), ignore_case, whole_words)


def _flag(rules: Mapping[str, Any], key: str) -> bool:
    value = rules.get(key, True)
    if not isinstance(value, bool):
        raise InvalidRequest(f"filter patterns: {key} must be true or false, not {value!r}")
    return value


def _patterns(categories: Any, *, ignore_case: bool) -> tuple[Pattern, ...]:
    if not isinstance(categories, Mapping) or not categories:
        raise InvalidRequest("filter patterns needs categories: a mapping from names to lists of texts")
    result = []
    for name, texts in categories.items():
        if not isinstance(texts, list) or not texts or not all(isinstance(text, str) and text for text in texts):
            raise InvalidRequest(f"filter patterns: category {name} must be a list of texts, not {texts!r}")
        result += [Pattern("".join(map(_plain, text)) if ignore_case else text, str(name)) for text in texts]
    return tuple(dict.fromkeys(result))

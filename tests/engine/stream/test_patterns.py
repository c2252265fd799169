"""Filter `patterns` finds what a search of the whole text finds, in whatever pieces the text arrives."""

import random
import re

import pytest

from engine.core.errors import InvalidRequest
from engine.stream.interface import Action, Mark, filter_spec
from engine.stream.loading import load_filter
from tests.engine.stream.texts import judged, patterns, pieces


def by_search(text, categories, *, whole_words):
    """Every occurrence, by a search for each pattern at every place."""
    found = set()
    for category, words in categories.items():
        for word in words:
            for at in range(len(text)):
                inside = (at and text[at - 1].isalnum()) or text[at + len(word) : at + len(word) + 1].isalnum()
                if text[at : at + len(word)].lower() == word.lower() and not (whole_words and inside):
                    found.add(Mark(at, at + len(word), category))
    return sorted(found, key=lambda mark: (mark.start, mark.end, mark.category))


@pytest.mark.parametrize("whole_words", [False, True])
def test_random_texts_in_random_pieces(whole_words):
    numbers = random.Random(3)
    for seed in range(150):
        letters = "ab " if seed % 2 else "aAbB c"
        words = {"".join(numbers.choices("ab ", k=numbers.randint(1, 4))) for _ in range(4)}
        categories = {"x": sorted(words)[:2], "y": sorted(words)[1:]}
        text = "".join(numbers.choices(letters, k=40))
        rules = patterns(categories, whole_words=whole_words)
        wanted = by_search(text, categories, whole_words=whole_words)
        assert judged(rules, pieces(text, seed)) == wanted
        assert judged(rules, [text]) == wanted


def test_text_that_may_become_a_pattern_waits():
    rules = patterns({"x": ["bomb maker"]})
    judging = rules.open()
    assert judging.feed("a bom").clear == 2
    held = judging.feed("b mak")
    assert (held.action, held.clear, held.marks) == (Action.HOLD, 2, ())
    assert judging.feed("es").clear == 12


def test_a_word_at_the_end_is_whole():
    judging = patterns({"x": ["gun"]}).open()
    assert judging.feed("a gun").marks == ()
    assert judging.finish().marks == (Mark(2, 5, "x"),)


def test_the_case_counts_if_the_rules_say_so():
    assert judged(patterns({"x": ["Key"]}, ignore_case=False), ["key Key KEY"]) == [Mark(4, 7, "x")]
    assert len(judged(patterns({"x": ["Key"]}), ["key Key KEY"])) == 3


def test_a_snapshot_forgets_what_was_fed_after_it():
    rules = patterns({"x": ["ab"]}, whole_words=False)
    judging, other = rules.open(), rules.open()
    for each in (judging, other):
        each.feed("xa")
    state = judging.snapshot()
    for rejected in ("bbab", "a", "zz"):
        judging.feed(rejected)
        judging.rollback(state)
    assert judging.feed("b") == other.feed("b")
    assert judging.finish() == other.finish()


@pytest.mark.parametrize(
    ("rules", "said"),
    [
        ({}, "filter patterns needs categories"),
        ({"categories": {"x": []}}, r"category x must be a list of texts, not \[\]"),
        ({"categories": {"x": [3]}}, "category x must be a list of texts"),
        ({"categories": {"x": ["a"]}, "case": True}, "filter patterns has no rule 'case'; it has: categories"),
        ({"categories": {"x": ["a"]}, "ignore_case": 1}, "ignore_case must be true or false, not 1"),
    ],
)
def test_bad_rules_are_refused(rules, said):
    with pytest.raises(InvalidRequest, match=said):
        load_filter(filter_spec("patterns", "redact", "output", rules))


def test_actions_and_sides_that_do_not_fit_are_refused():
    with pytest.raises(InvalidRequest, match="a prompt can only be refused"):
        filter_spec("patterns", "redact", "prompt", {})
    with pytest.raises(InvalidRequest, match=re.escape("action hold is no reaction; use redact, stop or refuse")):
        filter_spec("patterns", "hold", "output", {})


def test_equal_rules_have_equal_digests():
    first, second = patterns({"x": ["a"]}, ignore_case=True), patterns({"x": ["a"]}, ignore_case=True)
    assert first.facts == second.facts
    assert first.facts.ruleset != patterns({"x": ["b"]}, ignore_case=True).facts.ruleset

"""Filters of sentences and lines: segments follow from the text alone."""

import re

import pytest

from engine.stream.interface import Action, Mark
from engine.stream.segments import LINE, LONGEST, SENTENCE, SegmentFilter
from tests.engine.stream.texts import judged, pieces

TEXT = 'He said "no." Then 3.5 of them came! Why?\nNobody knows ' + "very " * 200 + "well. x"


class Segments:
    """Marks each whole segment."""

    def __init__(self, border):
        self.border = border

    def open(self):
        return SegmentFilter(Action.REDACT, lambda text: [Mark(0, len(text), "all")], self.border)


@pytest.mark.parametrize("border", [SENTENCE, LINE])
def test_segments_do_not_depend_on_the_pieces(border):
    wanted = judged(Segments(border), [TEXT])
    assert all(judged(Segments(border), pieces(TEXT, seed)) == wanted for seed in range(30))
    assert "".join(TEXT[mark.start : mark.end] for mark in wanted) == TEXT


def test_sentences_end_with_a_blank_and_long_ones_at_a_word():
    parts = [TEXT[mark.start : mark.end] for mark in judged(Segments(SENTENCE), [TEXT])]
    assert parts[:3] == ['He said "no." ', "Then 3.5 of them came! ", "Why?\n"]
    assert all(len(part) <= LONGEST for part in parts)
    assert parts[3].endswith("very ")


def test_one_word_without_end_is_cut_at_the_limit():
    found = judged(Segments(SENTENCE), ["x" * (2 * LONGEST + 1)])
    assert [mark.end - mark.start for mark in found] == [LONGEST, LONGEST, 1]


def test_a_snapshot_forgets_what_was_fed_after_it():
    judging = SegmentFilter(
        Action.STOP, lambda text: [Mark(each.start(), each.end(), "n") for each in re.finditer("no", text)], SENTENCE
    )
    judging.feed("It is n")
    state = judging.snapshot()
    assert judging.feed("o. ").marks == (Mark(6, 8, "n"),)
    judging.rollback(state)
    assert judging.feed("ew. ").marks == ()

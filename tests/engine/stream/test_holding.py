"""What waits: characters that are not complete, and ends that may become a stop string."""

import pytest

from engine.stream.holding import settled, whole
from engine.stream.redaction import REDACTED, Span, redact


@pytest.mark.parametrize(
    ("text", "stops", "wanted"),
    [
        ("abc", (), "abc"),
        ("ab\ufffd", (), "ab"),
        ("a\ufffdb", (), "a\ufffdb"),
        ("The e", ("end",), "The "),
        ("The en", ("end", "n"), "The "),
        ("The end", ("end",), "The end"),
        ("abab", ("ababc",), ""),
        ("aab", ("abc", "b!"), "a"),
        ("ab", ("b",), "ab"),
    ],
)
def test_what_settles(text, stops, wanted):
    assert settled(text, stops) == wanted


def test_a_settled_text_never_becomes_shorter():
    text, stops = "xabaababcab\ufffdabcaab", ("abc", "aab!", "ba")
    sizes = [len(settled(text[:end], stops)) for end in range(len(text) + 1)]
    assert sizes == sorted(sizes)
    assert whole("\ufffd\ufffd") == ""


def test_a_run_leaves_as_one_word_in_however_many_pieces():
    spans = [Span(2, 4), Span(3, 6), Span(8, 9)]
    text = "0123456789"
    assert redact(text, spans).text == f"01{REDACTED}67{REDACTED}9"
    for middle in range(len(text) + 1):
        first = redact(text[:middle], spans)
        assert first.text + redact(text, spans, middle, inside=first.inside).text == redact(text, spans).text

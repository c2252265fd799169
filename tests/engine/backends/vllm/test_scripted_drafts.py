import json

import pytest

from tests.vllm.scripted_drafts import WAYS, read_script

PROMPT, TOKENS, END = [1, 2], [3, 4, 5, 6, 7], 0


@pytest.fixture
def script(tmp_path):
    def made(way):
        path = tmp_path / "script.json"
        document = {"continuations": [{"prompt": PROMPT, "tokens": TOKENS, "way": way}], "end": END}
        path.write_text(json.dumps(document))
        return read_script(path, vocabulary=8, gamma=3)

    return made


@pytest.mark.parametrize(
    ("way", "first", "last"),
    [
        ("right", [3, 4, 5], [7]),
        ("wrong", [4, 5, 6], [0]),
        ("half", [3, 5, 6], [0]),
        ("end_inside", [3, 0, 5], [7]),
        ("empty", [], []),
        ("varying", [], []),
        ("outside", [11, 12, 13], [15]),
    ],
)
def test_ways(script, way, first, last):
    made = script(way)
    assert made.draft(PROMPT) == first
    assert made.draft([*PROMPT, *TOKENS[:4]]) == last
    assert made.draft([*PROMPT, *TOKENS]) == []


def test_drafts_of_varying_length(script):
    made = script("varying")
    assert [len(made.draft([*PROMPT, *TOKENS[:n]])) for n in range(4)] == [0, 1, 2, 0]


def test_a_text_that_is_not_in_the_file_gets_no_draft(script):
    made = script("right")
    assert made.draft([1, 1]) == []
    assert made.draft([*PROMPT, 4]) == []


def test_all_ways_are_tried():
    assert set(WAYS) == {"right", "wrong", "half", "end_inside", "empty", "varying", "outside"}

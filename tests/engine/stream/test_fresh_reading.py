"""Recorded decisions and chunks of another kind are refused, so that no check meets one."""

import pytest

from engine.stream.fresh_reading import reading_of

DECISION = {"filter": 0, "category": "c", "token": 1, "start": 0, "end": 2, "action": "redact"}
RIGHT = {"decisions": [DECISION], "chunks": [[1, "ab"]], "held": 0}


def test_recorded_facts_are_read_back():
    assert reading_of(RIGHT).chunks[0].text == "ab"


@pytest.mark.parametrize(
    "change",
    [
        *({"decisions": [{**DECISION, name: value}]} for name in ("token", "start", "filter") for value in ("1", None)),
        {"decisions": [{**DECISION, "category": 3}]},
        {"decisions": [{**DECISION, "action": "?"}]},
        {"decisions": [{"filter": 0}]},
        {"chunks": [["1", "ab"]]},
        {"chunks": [[1, 2]]},
        {"chunks": [[1]]},
        {"held": "0"},
        {"held": None},
    ],
)
def test_facts_of_another_kind_are_refused(change):
    with pytest.raises((KeyError, TypeError, ValueError)):
        reading_of({**RIGHT, **change})

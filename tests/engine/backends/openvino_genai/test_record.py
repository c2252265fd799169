"""Accounts of one answer: they agree, and each way in which they can disagree has words of its own."""

import pytest

from engine.backends.openvino_genai.backend import mismatches
from engine.core.types import FinishReason

COUNTS = {"drafted": 8, "accepted": 3, "rejected": 5}
SOUND = {"tokens": [3, 4, 5, 6, 7], "steps": [1, 4], "logprob": [-1.0] * 5, "finish": "LENGTH", "counts": COUNTS}


def words(reason=FinishReason.LENGTH, most=5, **changed):
    return list(mismatches({**SOUND, **changed}, reason, most))


def test_accounts_that_agree():
    assert words() == []
    assert words(sequence=[3, 4, 5, 6, 7], logprob=[], most=None) == []
    assert words(FinishReason.EOS, finish="STOP") == []


@pytest.mark.parametrize(
    ("changed", "part"),
    [
        ({"finish": "STOP"}, "ended with STOP, its tokens end with length"),
        ({"most": 3}, "one committed 4 tokens, more than 3"),
        ({"logprob": [-1.0]}, "1 of 5 tokens"),
        ({"sequence": [3]}, "1 tokens returned, 5 others streamed"),
        ({"counts": {**COUNTS, "rejected": 4}}, "3 accepted and 4 rejected of 8 drafted"),
        ({"counts": {**COUNTS, "accepted": 2, "rejected": 6}}, "2 steps committed 3 beyond one each"),
    ],
)
def test_a_contradiction_is_named(changed, part):
    (message,) = words(**changed)
    assert part in message

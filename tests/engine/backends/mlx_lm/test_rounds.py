"""Accounts of one answer: rounds come from the sampler's calls, and each contradiction has words of its own."""

import pytest

from engine.backends.mlx_lm.rounds import DraftRound, mismatches, rounds_of, speculation

ASKED = {"sampling": {"max_tokens": 6, "ends": [1]}, "arguments": {"num_draft_tokens": 2}}
SOUND = {
    "tokens": [5, 6, 7, 8, 9, 4],
    "from_draft": [True, True, False, False, True, False],
    # two accepted and a bonus, one refused, one accepted of two
    "calls": [[[5], [6], [5, 6, 7]], [], [], [[3], [2], [8, 2, 2]], [[9], [2], [9, 4, 4]], []],
    "finish": "length",
    "arguments": {"max_tokens": 6, "num_draft_tokens": 2},
}


def words(gamma=2, asked=ASKED, **changed):
    return list(mismatches({**SOUND, **changed}, asked, gamma))


def one_call_per_token(calls):
    """As the engine samples with logits processors."""
    return [[[token] for call in group for token in call] for group in calls]


def test_accounts_that_agree():
    assert words() == []
    assert words(calls=one_call_per_token(SOUND["calls"])) == []
    assert rounds_of(SOUND) == rounds_of({**SOUND, "calls": one_call_per_token(SOUND["calls"])})
    assert rounds_of(SOUND)[1] == DraftRound((3, 2), (8, 2, 2), (8,), (False,))
    counts = speculation(SOUND)
    assert (counts["steps"], counts["drafted"], counts["accepted"]) == (3, 6, 3)
    assert counts["per_step_emitted"] == [3, 1, 2]


def test_an_end_may_cut_the_last_round_only():
    ended = {"tokens": [5, 1], "from_draft": [True, True], "calls": [[[5], [1], [5, 1, 7]], []], "finish": "stop"}
    assert words(**ended) == []
    cut = {**SOUND, "tokens": [5, 8, 9, 4, 3, 2], "from_draft": [True, False, True, False, False, False]}
    cut["calls"] = [[[5], [6], [5, 6, 7]], *SOUND["calls"][3:5], [], [[8], [7], [3, 2, 2]], [[8], [2, 2]]]
    assert any("1 returned beside 2 accepted" in message for message in words(**cut))


def test_plain_samples_may_run_ahead():
    plain = {"calls": [[[5], [6]], [[7]], [[8]], [[9]], [[4]], []], "from_draft": [False] * 6}
    asked = {**ASKED, "arguments": {}}
    assert words(0, asked, **plain) == []
    assert "not the first" in words(0, asked, **plain, tokens=[6, 5, 7, 8, 9, 4])[0]
    assert words(0, asked, **{**plain, "from_draft": [True] * 6}) == ["from_draft: a drafted token without a draft"]


@pytest.mark.parametrize(
    ("changed", "part"),
    [
        ({"from_draft": [True, True, True, False, True, False]}, "from_draft: true 3 times, but 2 drafted"),
        ({"from_draft": [False, True, False, False, True, False]}, "from_draft: true 1 times, but 2"),
        ({"tokens": [5, 6, 3, 8, 9, 4]}, "tokens: returned ones are not the target's samples"),
        ({"calls": [[[5], [5, 6]], *SOUND["calls"][1:]]}, "1 drafted tokens, not 2"),
        ({"calls": [[[5], [6], [5, 6, 7, 7]], *SOUND["calls"][1:]]}, "4 samples of the target beside 2"),
        ({"calls": [[], *SOUND["calls"][1:]]}, "not asked before the first token"),
        ({"finish": "stop"}, "ended with stop, its tokens end with length"),
        ({"arguments": {"max_tokens": 6, "num_draft_tokens": 3}}, "num_draft_tokens was set to 2, the engine has 3"),
        ({"tokens": [1, 6, 7, 8, 9, 4]}, "1 ends an answer, and others follow it"),
    ],
)
def test_a_contradiction_is_named(changed, part):
    assert any(part in message for message in words(**changed))

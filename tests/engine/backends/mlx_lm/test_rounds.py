"""Accounts of one answer: rounds come from the sampler's calls, and each contradiction has words of its own."""

import pytest

from engine.backends.mlx_lm.rounds import DraftRound, contradictions, keeps_draws, rounds_of, speculation

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
    return [each.message for each in contradictions({**SOUND, **changed}, asked, gamma)]


def misreturned(gamma=2, asked=ASKED, **changed):
    return [each.message for each in contradictions({**SOUND, **changed}, asked, gamma) if each.misreturned]


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


@pytest.mark.parametrize(
    ("changed", "part"),
    [
        ({"tokens": [5, 6, 3, 8, 9, 4]}, "3 at place 2, where it drew 7, in round 0"),
        ({"tokens": [5, 6, 7, 3, 9, 4]}, "3 at place 0, where it drew 8, in round 1"),
        # the first draft of the last round is refused, and the draw behind it is returned
        ({"calls": [*SOUND["calls"][:4], [[2], [2], [9, 4, 4]], []]}, "2 returned beside 0 accepted"),
    ],
)
def test_a_returned_token_that_the_target_did_not_draw_is_misreturned(changed, part):
    (message,) = misreturned(**changed)
    assert part in message


@pytest.mark.parametrize(
    "changed",
    [
        {},
        {"from_draft": [False, True, False, False, True, False]},
        {"finish": "stop"},
        # other calls than expected: the draws may be another token's
        {"calls": [[[5], [6], [5, 6, 3, 7]], *SOUND["calls"][1:]]},
        {"calls": [[[5], [5, 6]], *SOUND["calls"][1:]], "tokens": [5, 3, 7, 8, 9, 4]},
        # nothing was drawn for the last token
        {"tokens": [5, 6, 7, 8, 9, 4, 4]},
    ],
)
def test_other_contradictions_are_not(changed):
    assert [message for message in misreturned(**changed) if "place" in message] == []


def test_a_plain_token_that_was_not_drawn_is_misreturned():
    plain = {"calls": [[[5], [6]], [[7]], [[8]], [[9]], [[4]], []], "from_draft": [False] * 6}
    asked = {**ASKED, "arguments": {}}
    assert misreturned(0, asked, **plain) == []
    assert len(misreturned(0, asked, **plain, tokens=[5, 6, 7, 8, 9, 3])) == 1
    assert misreturned(0, asked, **{**plain, "calls": [[[5], [6]], [[7]], [[8]], [[9]], [], []]}) == []


@pytest.mark.parametrize(
    ("version", "greedy", "gamma", "kept"),
    [
        ("0.32.2", False, 4, True),
        ("0.99.0", True, 4, True),
        ("0.99.0", False, 0, True),
        ("0.99.0", False, 4, False),
        (None, False, 4, False),
    ],
)
def test_a_rule_of_another_version_may_correct_a_draw_above_temperature_0(version, greedy, gamma, kept):
    assert keeps_draws(version, greedy=greedy, gamma=gamma) is kept

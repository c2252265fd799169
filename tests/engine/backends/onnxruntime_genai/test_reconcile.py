"""Rounds from the growth of counters: as the engine counts them, and each way in which its accounts can disagree."""

from dataclasses import replace

import pytest

from engine.backends.onnxruntime_genai.reconcile import Accounts, Round, mismatches, rounds_of, speculation

FULL = {"rounds": 1, "draft_tokens_proposed": 2, "draft_tokens_evaluated": 2, "draft_tokens_accepted": 2}
FULL |= {"bonus_tokens": 1, "tokens_queued": 3, "tokens_emitted": 1, "tokens_buffered": 2}
LATER = {"tokens_emitted": 1, "tokens_buffered": -1}
REFUSED = {"rounds": 1, "draft_tokens_proposed": 2, "draft_tokens_evaluated": 1, "correction_tokens": 1}
REFUSED |= {"tokens_queued": 1, "tokens_emitted": 1}
ALONE = {"standard_fallback_steps": 1}
CUT = FULL | {"tokens_discarded": 2}
del CUT["tokens_buffered"]
GROWTH = (FULL, LATER, LATER, REFUSED, ALONE, CUT)
TOKENS = (11, 12, 13, 14, 15, 16)
SOUND = Accounts((1, 2), TOKENS, (1, 2, *TOKENS), GROWTH, 2, (0,))


def changed(at, **counters):
    growth = [dict(step) for step in GROWTH]
    growth[at] |= counters
    return replace(SOUND, growth=growth)


def test_rounds_end_at_the_next_round_and_at_steps_without_a_draft():
    assert rounds_of(GROWTH) == (Round(2, 2, 2, 0, 1, 3, 3), Round(2, 1, 0, 1, 0, 1, 1), Round(2, 2, 2, 0, 1, 3, 1))
    assert mismatches(SOUND) == ()


def test_the_facts_of_a_request_sum_its_rounds():
    facts = speculation(SOUND)
    assert (facts["steps"], facts["drafted"], facts["evaluated"], facts["accepted"]) == (4, 6, 5, 4)
    assert (facts["corrections"], facts["bonus"], facts["undrafted_steps"], facts["discarded"]) == (1, 2, 1, 2)
    assert facts["per_step_emitted"] == [3, 1, 1]


def test_an_end_token_is_returned_and_not_in_the_sequence():
    ended = replace(SOUND, tokens=(*TOKENS[:-1], 0), sequence=(1, 2, *TOKENS[:-1]))
    assert mismatches(ended) == ()


@pytest.mark.parametrize(
    ("accounts", "words"),
    [
        (replace(SOUND, sequence=(1, 2, *TOKENS[:-1], 17)), "sequence"),
        (changed(0, draft_tokens_accepted=3), "accepted 3"),
        (changed(3, draft_tokens_evaluated=2), "behind the last accepted one"),
        (replace(SOUND, most=1), "more than 1"),
        (changed(0, tokens_queued=4), "queued 4 tokens of 2"),
        (changed(3, correction_tokens=0, tokens_queued=0), "0 corrections"),
        (changed(0, draft_tokens_proposed=3), "has a bonus token"),
        (changed(2, standard_fallback_steps=1), "queued 3 tokens and delivered 2"),
        (replace(SOUND, most=0), "without speculation"),
        (changed(3, rounds=2), "4 rounds in 3 calls"),
        (changed(1, tokens_emitted=2), "not as many emitted"),
        (replace(SOUND, growth=GROWTH[:-1]), "5 readings of 6 tokens"),
    ],
)
def test_every_contradiction_is_named(accounts, words):
    assert any(words in line for line in mismatches(accounts)), mismatches(accounts)

"""Rounds with unlike rows, against a count by hand from the rows' parameters and lifetimes."""

from dataclasses import replace

import pytest

from engine.core.types import SamplingParams
from engine.decode.batch_facts import BatchRounds
from tests.engine.build import Setup, generate, requests, traces

SAMPLED = SamplingParams(temperature=0.9, max_new_tokens=24, seed=5)


def test_stretches_are_merged_and_cut_at_the_admission():
    rounds = BatchRounds()
    for number, kinds in enumerate([[0, 1], [0, 1, 0], [0, 0], [0], [1, 0], [1, 0]]):
        rounds.note(number, kinds)
    assert rounds.facts(0)["unlike"] == [[0, 1], [4, 5]]
    assert rounds.facts(1)["unlike"] == [[1, 1], [4, 5]]
    assert rounds.facts(2)["unlike"] == [[4, 5]]
    assert rounds.facts(6)["unlike"] == []


def test_withdrawals_are_those_since_the_admission_and_a_request_without_a_step_leaves_nothing():
    rounds = BatchRounds()
    rounds.withdraw(0, 2)
    rounds.withdraw(3, 3)
    rounds.withdraw(3, 5)
    assert [rounds.facts(first).get("withdrawals") for first in (0, 3, 6)] == [[2, 5], [5], None]


def test_seeds_and_lengths_are_no_difference():
    rounds = BatchRounds()
    assert rounds.kind(SAMPLED) == rounds.kind(replace(SAMPLED, seed=6, max_new_tokens=3))
    assert rounds.kind(SAMPLED) != rounds.kind(replace(SAMPLED, top_k=3))


@pytest.mark.parametrize("odd", [(), (0,), (2, 5), tuple(range(9))])
def test_every_record_lists_the_rounds_with_an_unlike_row(odd):
    wanted = [
        replace(each, sampling=replace(each.sampling, top_k=4 * (i in odd), max_new_tokens=1 + 5 * i % 24))
        for i, each in enumerate(requests(9, SAMPLED))
    ]
    found = traces(generate(Setup(rows=3), wanted)).values()
    kinds: dict[int, set[int]] = {}
    for trace in found:
        for step in range(trace.steps):
            kinds.setdefault(trace.header.facts["round"] + step, set()).add(trace.header.sampling.top_k)
    for trace in found:
        first = trace.header.facts["round"]
        listed = {number for start, end in trace.header.facts["unlike"] for number in range(start, end + 1)}
        assert listed == {number for number in range(first, first + trace.steps) if len(kinds[number]) > 1}
    assert any(trace.header.facts["unlike"] for trace in found) == (0 < len(odd) < 9)

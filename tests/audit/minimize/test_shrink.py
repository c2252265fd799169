"""Fewer items and smaller numbers: nothing that is left can go, and few questions are asked."""

import pytest

from audit.minimize.shrink import fewest, plainer, smallest
from engine.core.types import SamplingParams


def counted(holds):
    asked = []

    def stays(value):
        asked.append(value)
        return holds(value)

    return stays, asked


@pytest.mark.parametrize("needed", [set(), {0}, {31}, {3, 17}, {0, 1, 2, 30}, set(range(32))])
def test_exactly_the_items_that_are_needed_stay_in_their_order(needed):
    stays, _ = counted(lambda some: needed <= set(some))
    assert fewest(range(32), stays) == tuple(sorted(needed))


@pytest.mark.parametrize("bits", range(1, 64, 7))
def test_whatever_the_property_no_item_can_be_left_out_alone(bits):
    def odd(some):
        return sum(1 << i for i in some if bits >> (i % 6) & 1) % 3 == 1

    for items in map(range, range(12)):
        if odd(items):
            kept = fewest(items, odd)
            assert odd(kept)
            assert not any(odd(kept[:i] + kept[i + 1 :]) for i in range(len(kept)))


def test_never_fewer_than_asked_for():
    assert len(fewest("abcdef", lambda _: True, least=2)) == 2
    assert fewest((), lambda _: True) == ()


def test_one_item_of_many_is_found_in_few_questions():
    stays, asked = counted(lambda some: 700 in some)
    assert fewest(range(1024), stays) == (700,)
    assert len(asked) <= 40


@pytest.mark.parametrize("limit", [1, 2, 5, 63, 64])
def test_the_smallest_number_of_a_threshold(limit):
    stays, asked = counted(lambda n: n >= limit)
    assert smallest(1, 64, stays) == limit
    assert len(asked) <= 6


def test_without_a_threshold_the_number_has_it_and_the_one_below_has_not():
    holds = {64, 50, 49, 48, 20, 7}.__contains__
    found = smallest(1, 64, holds)
    assert holds(found)
    assert not holds(found - 1)


def test_parameters_without_part_in_it_are_dropped_and_the_others_pulled():
    given = SamplingParams(
        temperature=0.7, top_k=5, top_p=0.9, min_tokens=16, bad_words=((1,), (2, 3)), ignore_eos=True, stop=("x",)
    )

    def stays(params):
        return 0 < params.top_k <= 17 and params.min_tokens >= 3 and (2, 3) in params.bad_words

    plain = plainer(given, stays)
    assert plain == SamplingParams(top_k=10, min_tokens=4, bad_words=((2, 3),))
    assert plainer(SamplingParams(), stays) == SamplingParams()


def test_a_temperature_that_is_needed_goes_towards_one_and_not_towards_greedy():
    given = SamplingParams(temperature=0.5, repetition_penalty=1.4)
    assert plainer(given, lambda params: not params.greedy) == SamplingParams(temperature=1.0)
    near = plainer(given, lambda params: 0 < params.temperature < 0.8)
    assert near == SamplingParams(temperature=0.75)

"""The programme against all trees, its figures against simulation, and what it refuses."""

from functools import cache
from heapq import heapify, heappop, heappush

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from engine.core.errors import InvalidRequest
from engine.proposers.tree_planning import (
    PlanningCosts,
    TreeShape,
    best_shape,
    chain_shape,
    choose_shape,
    expected_tokens,
    k_ary_shape,
)
from engine.record import cost

LARGEST = 9
HAND_PICKED = {
    "steep": (0.9, 0.05, 0.02, 0.01),
    "flat": (0.25, 0.25, 0.25, 0.25),
    "sure": (1.0,),
    "hopeless": (0.0, 0.0),
    "later is better": (0.1, 0.6, 0.2),
    "a gap": (0.5, 0.0, 0.4),
    "long tail": tuple(0.5 * 0.5**rank for rank in range(16)),
}


# all ordered trees, as nested tuples of children


@cache
def forests(size, depth):
    """Every sequence of trees with `size` nodes in at most `depth` levels."""
    if size == 0:
        return ((),)
    if depth == 0:
        return ()
    return tuple(
        (first, *others)
        for taken in range(1, size + 1)
        for first in forests(taken - 1, depth - 1)
        for others in forests(size - taken, depth)
    )


def value_of(children, rates):
    """Tokens from a node on: 1, and with rates[b] what its b-th child is worth. [R, B] rates, [R] values."""
    return 1.0 + sum(rates[:, rank] * value_of(child, rates) for rank, child in enumerate(children))


def random_rates(count, children, seed=0):
    """[count, children] vectors whose sums are spread over (0, 1), in any order of size."""
    random = np.random.default_rng(seed)
    return random.dirichlet(np.full(children, 0.7), count) * random.random((count, 1))


RATES = random_rates(24, LARGEST)


def test_there_are_catalan_many_ordered_trees():
    assert [len(forests(size, size)) for size in range(8)] == [1, 1, 2, 5, 14, 42, 132, 429]
    assert [len(forests(size, 2)) for size in range(1, 8)] == [2 ** (size - 1) for size in range(1, 8)]


@pytest.mark.medium
@pytest.mark.parametrize("depth", [1, 2, 3, 4, LARGEST])
@pytest.mark.parametrize("size", range(LARGEST + 1))
def test_the_programme_finds_the_best_of_all_trees(size, depth):
    best = np.max([np.broadcast_to(value_of(each, RATES), len(RATES)) for each in forests(size, depth)], axis=0)
    for rates, wanted in zip(RATES.tolist(), best, strict=True):
        found = best_shape(rates, size, depth)
        assert found.expected_tokens == pytest.approx(wanted, rel=1e-12)
        assert expected_tokens(found.shape, rates) == pytest.approx(wanted, rel=1e-12)
        assert len(found.shape) == size
        assert found.shape.depth <= depth


@pytest.mark.parametrize(("children", "size"), [(1, 4), (2, 7), (3, 7)])
def test_a_node_has_no_more_children_than_rates(children, size):
    """Also where a wider tree would be worth as much: a rate of 0 is a child, a missing one is not."""
    rates = random_rates(20, children, seed=1)
    narrow = [each for each in forests(size, 4) if widest(each) <= children]
    best = np.max([value_of(each, rates) for each in narrow], axis=0)
    found = [best_shape(row, size, 4) for row in rates.tolist()]
    np.testing.assert_allclose([each.expected_tokens for each in found], best, rtol=1e-12)
    assert max(max(each.shape.ranks) for each in found) < children


def widest(children):
    return max([len(children), *(widest(child) for child in children)])


def test_the_figures_of_the_paper_count_the_root():
    """Three nodes with the root are two drafted ones: side by side, or one below the other."""
    side_by_side, below = best_shape((0.6, 0.2), 2, 1), best_shape((0.6, 0.2), 2, 2)
    assert side_by_side.shape.parents == (-1, -1)
    assert side_by_side.expected_tokens == pytest.approx(1.8)
    assert below.shape.parents == (-1, 0)
    assert below.expected_tokens == pytest.approx(1.96)


@pytest.mark.parametrize("rates", HAND_PICKED.values(), ids=HAND_PICKED)
@pytest.mark.parametrize("size", [1, 5, 16, 40])
def test_no_chain_and_no_k_ary_tree_of_the_size_is_better(rates, size):
    best = best_shape(rates, size, size).expected_tokens
    for width in range(1, len(rates) + 1):
        shape = k_ary_shape(width, size)
        assert best >= expected_tokens(shape, rates) - 1e-12
        bounded = best_shape(rates, size, shape.depth).expected_tokens
        assert bounded >= expected_tokens(shape, rates) - 1e-12
        assert best >= bounded - 1e-12


def test_trees_beat_chains_where_siblings_have_a_chance():
    for rates in random_rates(30, 5, seed=2).tolist():
        best = best_shape(rates, 20, 20).expected_tokens
        shapes = (chain_shape(20), *(k_ary_shape(width, 20) for width in range(1, 6)))
        assert best >= max(expected_tokens(each, rates) for each in shapes) - 1e-12
    rates = (0.6, 0.2, 0.1)
    assert best_shape(rates, 12, 12).expected_tokens > expected_tokens(chain_shape(12), rates) + 0.3


@pytest.mark.parametrize("depth", [3, 5, 10])
@pytest.mark.parametrize("rates", random_rates(4, 16, seed=5).tolist())
def test_with_falling_rates_the_best_tree_is_the_most_likely_nodes(rates, depth):
    """Then a parent and an earlier sibling are never less likely, so the most likely nodes form a tree."""
    falling = sorted(rates, reverse=True)
    found = best_shape(falling, 64, depth)
    assert found.expected_tokens == pytest.approx(1.0 + sum(most_likely(falling, 64, depth)), rel=1e-12)
    assert expected_tokens(found.shape, falling) == pytest.approx(found.expected_tokens, rel=1e-12)
    assert len(found.shape) == 64
    assert found.shape.depth <= depth


def most_likely(rates, size, depth):
    """Chances of the `size` nodes that are reached most often, taken one by one from all that could be added."""
    open_nodes = [(-rate, 1) for rate in rates]
    heapify(open_nodes)
    chances = []
    while len(chances) < size:
        negative, level = heappop(open_nodes)
        chances.append(-negative)
        if level < depth:
            for rate in rates:
                heappush(open_nodes, (negative * rate, level + 1))
    return chances


@pytest.mark.parametrize(
    ("rates", "size", "depth", "message"),
    [
        ((0.6,), 4, 3, "no tree of depth 3 with 1 children per node has 4 drafted nodes"),
        ((0.6, 0.2), 7, 2, "no tree of depth 2 with 2 children per node has 7 drafted nodes"),
        ((0.0, 0.0), 3, 1, "no tree of depth 1 with 2 children"),
        ((), 1, 1, "with 0 children"),
        ((0.6,), 1, 0, "no tree of depth 0"),
        ((0.6,), -1, 2, "must be 0 or more, not -1 and 2"),
        ((0.6,), 2, -1, "must be 0 or more, not 2 and -1"),
        ((0.6, 0.5), 2, 2, "sum to 1.1, above 1"),
        ((0.6, -0.1), 2, 2, "rate of child 1 must be in"),
        ((float("nan"),), 1, 1, "rate of child 0 must be in"),
    ],
)
def test_what_cannot_be_planned_is_refused(rates, size, depth, message):
    with pytest.raises(InvalidRequest, match=message):
        best_shape(rates, size, depth)


def test_the_largest_tree_that_fits_is_complete():
    assert best_shape((0.6, 0.2), 6, 2).shape == k_ary_shape(2, 6)
    assert best_shape((0.6,), 3, 3).shape == chain_shape(3)
    assert best_shape((), 0, 5).expected_tokens == 1.0
    assert best_shape((0.6,), 0, 0).shape == TreeShape()


# expected tokens


def test_expected_tokens_by_hand():
    shape = TreeShape((-1, 0, -1, 0, 2))
    assert shape.ranks == (0, 0, 1, 1, 0)
    assert shape.depth == 2
    assert expected_tokens(shape, (0.6, 0.2)) == pytest.approx(1 + 0.6 + 0.36 + 0.2 + 0.12 + 0.12)
    assert expected_tokens(shape, (0.6,)) == pytest.approx(1 + 0.6 + 0.36)
    assert expected_tokens(TreeShape(), (0.6,)) == 1.0


@pytest.mark.parametrize("alpha", [0.0, 0.3, 0.8, 1.0])
@pytest.mark.parametrize("gamma", [0, 1, 5])
def test_a_chain_is_worth_what_the_cost_model_says(alpha, gamma):
    assert expected_tokens(chain_shape(gamma), (alpha,)) == pytest.approx(cost.expected_tokens(alpha, gamma))


def test_expected_tokens_of_a_simulation():
    """Walk down with the rates: one token per accepted node, and one at the end of every step."""
    rates, steps = (0.5, 0.25, 0.1), 100_000
    shape = best_shape(rates, 12, 4).shape
    child = {(parent, rank): node for node, (parent, rank) in enumerate(zip(shape.parents, shape.ranks, strict=True))}
    tried = np.random.default_rng(3).choice(4, size=(steps, 5), p=[*rates, 1 - sum(rates)])
    lengths = np.array([steps_taken(child, row) for row in tried.tolist()])
    wanted = expected_tokens(shape, rates)
    assert lengths.mean() == pytest.approx(wanted, abs=4 * lengths.std() / np.sqrt(steps))


def steps_taken(child, ranks):
    node, tokens = -1, 1
    for rank in ranks:
        if (node, rank) not in child:
            break
        node, tokens = child[node, rank], tokens + 1
    return tokens


@st.composite
def shapes(draw, largest=12):
    size = draw(st.integers(0, largest))
    return TreeShape(tuple(draw(st.integers(-1, node - 1)) for node in range(size)))


@st.composite
def acceptance_vectors(draw, most=5):
    weights = draw(st.lists(st.integers(0, 100), max_size=most))
    total = sum(weights) + draw(st.integers(0, 100))
    return tuple(weight / total if total else 0.0 for weight in weights)


@pytest.mark.medium
@settings(max_examples=200, deadline=None, derandomize=True)
@given(shapes(), acceptance_vectors(), st.data())
def test_one_more_node_is_worth_the_product_of_its_path(shape, rates, data):
    parent = data.draw(st.integers(-1, len(shape) - 1))
    larger = TreeShape((*shape.parents, parent))
    gained = expected_tokens(larger, rates) - expected_tokens(shape, rates)
    product, node = 1.0, len(shape)
    while node != -1:
        rank = larger.ranks[node]
        product *= rates[rank] if rank < len(rates) else 0.0
        node = larger.parents[node]
    assert gained >= 0
    assert gained == pytest.approx(product, abs=1e-12)


@pytest.mark.medium
@settings(max_examples=100, deadline=None, derandomize=True)
@given(shapes(), acceptance_vectors())
def test_no_drawn_tree_is_better_than_the_planned_one(shape, rates):
    padded = (*rates, *(0.0,) * len(shape))
    best = best_shape(padded, len(shape), shape.depth)
    assert best.expected_tokens >= expected_tokens(shape, rates) - 1e-12


def test_rates_must_be_an_acceptance_vector():
    with pytest.raises(InvalidRequest, match=r"sum to 1\.2, above 1"):
        expected_tokens(chain_shape(1), (0.7, 0.5))
    assert expected_tokens(chain_shape(1), (0.1,) * 10) == pytest.approx(1.1)
    assert expected_tokens(chain_shape(1), np.full(3, 1 / 3)) == pytest.approx(4 / 3)


# shapes


def test_shapes_by_hand():
    assert chain_shape(3).parents == (-1, 0, 1)
    assert chain_shape(0) == k_ary_shape(4, 0) == TreeShape()
    assert k_ary_shape(2, 7).parents == (-1, -1, 0, 0, 1, 1, 2)
    assert k_ary_shape(3, 4).parents == (-1, -1, -1, 0)
    assert [k_ary_shape(3, size).depth for size in (0, 3, 4, 12, 13)] == [0, 1, 2, 2, 3]


def test_impossible_shapes_are_refused():
    with pytest.raises(InvalidRequest, match="parents must come before their children"):
        TreeShape((-1, 1))
    with pytest.raises(InvalidRequest, match="at least 1 child, not 0"):
        k_ary_shape(0, 3)
    with pytest.raises(InvalidRequest, match="0 drafted nodes or more, not -1"):
        chain_shape(-1)


# costs


RATES_OF_A_DRAFT = (0.6, 0.2, 0.1)
MEASURED = PlanningCosts(2.0, (1, 5, 9, 17, 33), (100.0, 100.0, 110.0, 150.0, 280.0))


def test_times_are_linear_between_the_measured_ones():
    assert [MEASURED.target_us(tokens) for tokens in (1, 3, 7, 17, 25)] == [100.0, 100.0, 105.0, 150.0, 215.0]
    assert MEASURED.step_us(k_ary_shape(2, 6)) == pytest.approx(2 * 2.0 + 105.0)
    assert MEASURED.step_us(TreeShape()) == 100.0
    with pytest.raises(InvalidRequest, match="from 1 to 33 tokens, not at 34"):
        MEASURED.target_us(34)


def test_the_choice_is_the_best_of_all_candidates():
    chosen = choose_shape(RATES_OF_A_DRAFT, MEASURED, range(33), range(9))
    speeds = [
        (1e6 * each.expected_tokens / MEASURED.step_us(each.shape), len(each.shape))
        for size in range(33)
        for depth in range(9)
        if size <= sum(3**level for level in range(1, depth + 1))
        for each in [best_shape(RATES_OF_A_DRAFT, size, depth)]
    ]
    assert (chosen.tokens_per_second, len(chosen.planned.shape)) == max(speeds, key=lambda each: each[0])
    assert chosen.planned.expected_tokens == pytest.approx(expected_tokens(chosen.planned.shape, RATES_OF_A_DRAFT))
    assert 0 < len(chosen.planned.shape) < 32


def test_a_dearer_draft_makes_shallower_trees_and_a_dearer_target_smaller_ones():
    sizes, depths = range(33), range(1, 9)
    free, dear = (
        choose_shape(RATES_OF_A_DRAFT, PlanningCosts(draft, (1, 33), (100.0, 101.0)), sizes, depths)
        for draft in (0.0, 20.0)
    )
    assert len(free.planned.shape) == 32
    assert 0 < dear.planned.shape.depth < free.planned.shape.depth
    slopes = [
        choose_shape(RATES_OF_A_DRAFT, PlanningCosts(1.0, (1, 33), (100.0, 100.0 + rise)), sizes, depths)
        for rise in (0.0, 100.0, 400.0, 3200.0)
    ]
    taken = [len(each.planned.shape) for each in slopes]
    assert taken == sorted(taken, reverse=True)
    assert taken[0] > taken[1] > taken[-1] == 0


def test_a_draft_that_is_never_accepted_is_not_drafted():
    assert choose_shape((0.0, 0.0), MEASURED, range(9), range(5)).planned.shape == TreeShape()


def test_a_tree_pays_for_its_own_levels():
    """Depth 8 is allowed, three nodes need at most three levels."""
    chosen = choose_shape((0.9, 0.05), MEASURED, [3], [8])
    assert chosen.planned.shape == chain_shape(3)
    assert chosen.step_us == pytest.approx(3 * 2.0 + 100.0)


def test_sizes_that_do_not_fit_are_passed_over():
    assert len(choose_shape((0.9,), MEASURED, [2, 5], [3]).planned.shape) == 2
    with pytest.raises(InvalidRequest, match="no tree of 4 drafted nodes or more fits into depth 3"):
        choose_shape((0.9,), MEASURED, [5, 4], [3, 1])


@pytest.mark.parametrize(
    ("sizes", "depths", "message"),
    [
        ([], [1], "at least one size and one depth"),
        ([1], [], "at least one size and one depth"),
        ([-1, 2], [1], "must be 0 or more"),
        ([33], [33], "not at 34"),
    ],
)
def test_a_choice_without_candidates_is_refused(sizes, depths, message):
    with pytest.raises(InvalidRequest, match=message):
        choose_shape(RATES_OF_A_DRAFT, MEASURED, sizes, depths)


@pytest.mark.parametrize(
    ("values", "message"),
    [
        ((1.0, (), ()), "a target time per number of tokens"),
        ((1.0, (1, 2), (3.0,)), "a target time per number of tokens"),
        ((1.0, (2, 2), (3.0, 3.0)), "must ascend from 1"),
        ((1.0, (0, 2), (3.0, 3.0)), "must ascend from 1"),
        ((1.0, (1, 2), (0.0, 3.0)), "positive and finite"),
        ((1.0, (1, 2), (3.0, float("nan"))), "positive and finite"),
        ((-1.0, (1,), (3.0,)), "0 or more, and finite"),
    ],
)
def test_costs_that_cannot_have_been_measured_are_refused(values, message):
    with pytest.raises(InvalidRequest, match=message):
        PlanningCosts(*values)

"""The suffix tree against counting by hand, on random texts that grow, close and go."""

import itertools
import random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from engine.core.errors import InvalidRequest
from engine.proposers.copying.suffix import SuffixTree
from tests.support.counted import Counted


def grown(seed, vocabulary, width):
    """A tree and its counterpart after a random life; tokens are not ids from 0, so that no id is an index."""
    rng = random.Random(seed)
    tree, counted = SuffixTree(width), Counted()
    tokens = [5 + 7 * i for i in range(vocabulary)]
    opened = itertools.count()
    growing = [next(opened)]
    for _ in range(40):
        text = rng.choice(growing)
        piece = rng.choices(tokens, k=rng.choice((0, 1, 1, 2, 3, 9)))
        for each in (tree, counted):
            each.grow(text, piece)
        if rng.random() < 0.3:
            growing.remove(text)
            for each in (tree, counted):
                each.close(text)
        if rng.random() < 0.15 and counted.texts:
            gone = rng.choice(list(counted.texts))
            growing = [each for each in growing if each != gone]
            for each in (tree, counted):
                each.remove(gone)
        if not growing:
            growing.append(next(opened))
    return tree, counted, tokens


SIZES = ((1, 5), (2, 4), (3, 6), (8, 3))
"""Vocabulary and width."""
LIVES = st.tuples(st.integers(0, 2**32), st.sampled_from(SIZES)).map(
    lambda life: (*grown(life[0], *life[1]), life[1][1])
)
"""A tree, its counterpart, the tokens and the width; the examples are the same every time."""


def require_counts(tree, counted, tokens, width):
    """The occurrences that were compared."""
    assert {name: list(text) for name, text in tree.texts.items()} == counted.texts
    seen = 0
    for length in range(1, min(width, 4) + 1):
        for string in itertools.product(tokens, repeat=length):
            node = tree.find(string)
            following = counted.next_tokens(string)
            assert node.count == counted.count(string)
            if length < width:
                assert tree.followed(node) == following.total()
                children = tree.children(node)
                assert {token: child.count for token, child in children.items()} == following
                assert list(children) == sorted(children, key=lambda token: (-following[token], token))
            seen += node.count
    return seen


@pytest.mark.medium
def test_counts_are_those_of_looking_everywhere():
    seen = []

    @settings(max_examples=48)
    @given(LIVES)
    def holds(life):
        seen.append(require_counts(*life))

    holds()
    assert sum(count > 0 for count in seen) > len(seen) / 2


@pytest.mark.medium
@given(LIVES)
def test_the_root_counts_tokens(life):
    tree, counted, *_ = life
    children = tree.children(tree.find(()))
    assert {token: child.count for token, child in children.items()} == counted.next_tokens(())


@pytest.mark.medium
@given(LIVES, st.sampled_from((1, 2, 3, 5, 20)))
def test_rare_continuations_can_be_left_out(life, least):
    tree, counted, tokens, _ = life
    for token in tokens:
        node = tree.find((token,))
        wanted = {each: count for each, count in counted.next_tokens((token,)).items() if count >= least}
        assert {each: child.count for each, child in tree.children(node, least).items()} == wanted


@pytest.mark.medium
@settings(max_examples=48)
@given(LIVES)
def test_a_child_is_the_node_of_the_longer_string(life):
    tree, *_ = life
    waiting = [((), tree.find(()))]
    while waiting:
        string, node = waiting.pop()
        assert node == tree.find(string)
        waiting.extend(((*string, token), child) for token, child in tree.children(node).items())


def drawn_history(rng, tokens, texts):
    """Random tokens, mostly with a piece of a text behind them."""
    history = rng.choices(tokens, k=rng.randrange(9))
    if rng.random() < 0.7 and texts:
        text = rng.choice(texts)
        end = rng.randrange(len(text) + 1)
        history += text[max(0, end - rng.randrange(9)) : end]
    return history


@pytest.mark.medium
def test_the_longest_suffix_that_goes_on():
    lengths = set()

    @settings(max_examples=48)
    @given(LIVES, st.integers(0, 2**32))
    def holds(life, seed):
        tree, counted, tokens, width = life
        rng = random.Random(seed)
        for _ in range(40):
            history, most = drawn_history(rng, tokens, list(counted.texts.values())), rng.randrange(1, 8)
            node = tree.longest(history, most)
            assert node.length == counted.longest(history, min(most, width - 1))
            assert node == tree.find(history[len(history) - node.length :])
            lengths.add(node.length)

    holds()
    assert lengths == set(range(6))


def test_a_growing_text_is_counted_to_its_end():
    tree = SuffixTree(8)
    for count in range(1, 30):
        tree.grow(0, [count % 2])
        assert tree.find([0]).count == count // 2
        assert tree.find([1, 0]).count == count // 2
        assert tree.followed(tree.find([1, 0])) == max(0, count - 1) // 2


def test_a_string_longer_than_the_tree_is_refused():
    tree = SuffixTree(3)
    tree.grow(0, [1, 1, 1, 1, 1])
    assert tree.find([1, 1, 1]).count == 3
    assert tree.children(tree.find([1, 1, 1])) == {}
    assert tree.followed(tree.find([1, 1, 1])) == 0
    with pytest.raises(InvalidRequest, match="width 3 cannot find a string of 4 tokens"):
        tree.find([1, 1, 1, 1])

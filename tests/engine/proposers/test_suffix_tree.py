"""The suffix tree against counting by hand, on random texts that grow, close and go."""

import itertools
import random
from collections import Counter

import pytest

from engine.core.errors import InvalidRequest
from engine.proposers.copying.suffix_tree import SuffixTree


class Counted:
    """The same questions, answered by looking at every place of every text."""

    def __init__(self):
        self.texts = {}

    def grow(self, text, tokens):
        self.texts.setdefault(text, []).extend(tokens)

    def close(self, text):
        pass

    def remove(self, text):
        del self.texts[text]

    def count(self, string):
        return sum(
            text[place : place + len(string)] == list(string)
            for text in self.texts.values()
            for place in range(len(text) if string else 0)
        )

    def next_tokens(self, string):
        found = Counter()
        for text in self.texts.values():
            for place in range(len(text) - len(string)):
                if text[place : place + len(string)] == list(string):
                    found[text[place + len(string)]] += 1
        return found

    def longest(self, history, most):
        return max(
            length
            for length in range(min(most, len(history)) + 1)
            if length == 0 or self.next_tokens(history[-length:]).total() > 0
        )


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


LIVES = [(seed, vocabulary, width) for seed in range(12) for vocabulary, width in ((1, 5), (2, 4), (3, 6), (8, 3))]


@pytest.mark.parametrize(("seed", "vocabulary", "width"), LIVES)
def test_counts_are_those_of_looking_everywhere(seed, vocabulary, width):
    tree, counted, tokens = grown(seed, vocabulary, width)
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
    assert seen > 0


@pytest.mark.parametrize(("seed", "vocabulary", "width"), LIVES)
def test_the_root_counts_tokens(seed, vocabulary, width):
    tree, counted, _ = grown(seed, vocabulary, width)
    children = tree.children(tree.find(()))
    assert {token: child.count for token, child in children.items()} == counted.next_tokens(())


@pytest.mark.parametrize("least", [1, 2, 3, 5, 20])
@pytest.mark.parametrize(("seed", "vocabulary", "width"), LIVES)
def test_rare_continuations_can_be_left_out(seed, vocabulary, width, least):
    tree, counted, tokens = grown(seed, vocabulary, width)
    for token in tokens:
        node = tree.find((token,))
        wanted = {each: count for each, count in counted.next_tokens((token,)).items() if count >= least}
        assert {each: child.count for each, child in tree.children(node, least).items()} == wanted


@pytest.mark.parametrize(("seed", "vocabulary", "width"), LIVES)
def test_a_child_is_the_node_of_the_longer_string(seed, vocabulary, width):
    tree, _, _ = grown(seed, vocabulary, width)
    waiting = [((), tree.find(()))]
    while waiting:
        string, node = waiting.pop()
        assert node == tree.find(string)
        waiting.extend(((*string, token), child) for token, child in tree.children(node).items())


@pytest.mark.parametrize(("seed", "vocabulary", "width"), LIVES)
def test_the_longest_suffix_that_goes_on(seed, vocabulary, width):
    tree, counted, tokens = grown(seed, vocabulary, width)
    rng = random.Random(seed)
    lengths = set()
    for _ in range(40):
        history = rng.choices(tokens, k=rng.randrange(9))
        if rng.random() < 0.7 and counted.texts:
            text = rng.choice(list(counted.texts.values()))
            end = rng.randrange(len(text) + 1)
            history += text[max(0, end - rng.randrange(9)) : end]
        most = rng.randrange(1, 8)
        node = tree.longest(history, most)
        assert node.length == counted.longest(history, min(most, width - 1))
        assert node == tree.find(history[len(history) - node.length :])
        lengths.add(node.length)
    assert len(lengths) > 1


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

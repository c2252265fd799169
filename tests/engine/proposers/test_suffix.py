"""Suffix decoding: what is drafted, how much, from whom, and that a memory of others changes no law."""

import heapq
import math
import random
from dataclasses import replace
from itertools import product

import pytest
from hypothesis import given
from hypothesis import strategies as st

from engine.core.errors import InvalidRequest
from engine.core.trees import children, is_chain, path_tokens, require_valid
from engine.core.types import DraftRule, Emitted, Protocol, QKind, Request, Role, SamplingParams, StepOutcome, Tree
from engine.proposers.copying.suffix import SuffixOptions, SuffixProposer, SuffixTree, draft
from engine.proposers.interface import Context, ProposerParts
from engine.proposers.options import OPTIONS
from engine.sampling.draw import draw
from engine.sampling.rng import Randomness
from tests.engine.build import Setup, generate, make_loop, requests, traces
from tests.engine.enumeration import TOLERANCE, distance, emitted_law, enumerate_decisions, target_law
from tests.support.cases import every_case
from tests.support.counted import Counted
from tests.support.tiers import slow_unless

EMPTY = "e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855"
"""SHA-256 of nothing."""


def build(cls=SuffixProposer, **options):
    return cls.build(ProposerParts(4, 64, DraftRule.GREEDY, draw, (), None, options))


def context_of(history, budget=8, row=0):
    """A request whose prompt is `history`."""
    return Context(row, Request("r", tuple(history), SamplingParams()), list(history), budget, Randomness(0, 0))


def drafted(proposer, history, budget=8):
    """The proposal for a request whose prompt is `history`."""
    context = context_of(history, budget)
    proposer.start(context)
    (proposal,) = proposer.propose([context])
    return proposal


def serve(proposer, prompt, response, row=0):
    """A whole request, its tokens observed in steps of two."""
    context = context_of(prompt, row=row)
    proposer.start(context)
    for at in range(0, len(response), 2):
        emitted = [Emitted(token, Role.PLAIN, 0, 1.0) for token in response[at : at + 2]]
        context.history.extend(response[at : at + 2])
        proposer.observe(context, StepOutcome(tuple(emitted)))
    proposer.finish(row)


def settings(**changes):
    return replace(SuffixOptions(**{key: option.default for key, option in OPTIONS["suffix"].items()}), **changes)


# the rule


def test_it_copies_a_passage_that_comes_again():
    passage = list(range(10, 22))
    proposal = drafted(build(), [1, *passage, 2, 3, *passage[:5]])
    assert proposal.tree == Tree.chain(tuple(passage[5:10]))
    assert proposal.q_kind is QKind.ONE_HOT


def test_nothing_is_drafted_after_a_token_that_is_new():
    assert len(drafted(build(), [1, 2, 3, 1, 2, 9]).tree) == 0
    assert drafted(build(), [5]).q_kind is QKind.NONE


def test_output_is_counted_like_the_prompt():
    proposer = build()
    context = context_of([7, 8])
    proposer.start(context)
    for token in (4, 5, 6, 9, 4, 5):
        context.history.append(token)
        proposer.observe(context, StepOutcome((Emitted(token, Role.PLAIN, 0, 1.0),)))
    (proposal,) = proposer.propose([context])
    assert proposal.tree.tokens == (6, 9)


def test_the_draft_is_as_long_as_the_match_and_the_budget_allow():
    passage = list(range(10, 60))
    with every_case() as case:
        for factor, matched, budget in product((0.5, 1.0, 1.5, 4.0), (1, 2, 3, 6), (0, 1, 4, 30)):
            with case(f"factor {factor}, {matched} matched, budget {budget}"):
                proposal = drafted(build(max_spec_factor=factor), [*passage, 1, 2, *passage[:matched]], budget)
                assert proposal.tree.tokens == tuple(passage[matched:][: min(budget, math.floor(matched * factor))])


def test_a_match_is_no_longer_than_the_depth():
    passage = list(range(10, 60))
    history = [*passage, 1, 2, *passage[:20]]
    assert len(drafted(build(depth=6), history, 30).tree) == 6
    assert len(drafted(build(depth=6, max_spec_factor=2), history, 30).tree) == 12


def test_the_longest_match_decides_not_the_more_frequent_one():
    history = [1, 2, 3, 7, 2, 3, 8, 2, 3, 8, 2, 3, 8, 1, 2, 3]
    assert drafted(build(), history).tree.tokens[0] == 7


@pytest.mark.parametrize(
    ("least", "length"), [(0.0, 3), (0.39, 3), (0.41, 2), (0.59, 2), (0.61, 1), (0.79, 1), (0.81, 0)]
)
def test_a_path_ends_where_it_is_less_likely_than_asked(least, length):
    # 4 follows 1 2 3 four times of five, 5 follows that three times of four, and 6 that twice of three
    runs = [(1, 2, 3, 4, 5, 6), (1, 2, 3, 4, 5, 6), (1, 2, 3, 4, 5, 7), (1, 2, 3, 4, 9), (1, 2, 3, 8), (1, 2, 3)]
    history = [token for i, run in enumerate(runs) for token in (100 + i, *run)]
    tree = SuffixTree(48)
    tree.grow(0, history)
    found, score = draft(tree, context_of(history), settings(min_token_prob=least))
    assert found.tokens == (4, 5, 6)[:length]
    assert score == pytest.approx(sum((0.8, 0.6, 0.4)[:length]))


def random_history(seed):
    rng = random.Random(seed)
    return rng.choices(range(rng.choice((2, 3, 5))), weights=None, k=rng.randrange(5, 120))


def match_of(counted, history, each):
    return history[len(history) - counted.longest(history, each.depth) :]


SHAPES = [
    settings(min_token_prob=least, max_spec_factor=factor, depth=depth)
    for least, factor, depth in ((0.1, 1.0, 24), (0.0, 2.0, 3), (0.3, 4.0, 5))
]


@pytest.mark.medium
@given(st.integers(0, 2**32), st.sampled_from(SHAPES))
def test_a_chain_takes_the_most_frequent_continuation_each_time(seed, each):
    history = random_history(seed)
    tree, counted = SuffixTree(each.width), Counted()
    tree.grow(0, history)
    counted.grow(0, history)
    string = match_of(counted, history, each)
    most, tokens, chance, score = min(8, math.floor(len(string) * each.max_spec_factor)), [], 1.0, 0.0
    while len(tokens) < most:
        following = counted.next_tokens([*string, *tokens])
        best = min(following, key=lambda token, counts=following: (-counts[token], token), default=None)
        if best is None or (chance := chance * following[best] / following.total()) < each.min_token_prob - 1e-12:
            break
        tokens.append(best)
        score += chance
    found, expected = draft(tree, context_of(history), each)
    assert found == Tree.chain(tuple(tokens))
    assert expected == pytest.approx(score)


@pytest.mark.medium
@given(st.integers(0, 2**32), st.sampled_from(SHAPES))
def test_a_tree_takes_the_likeliest_paths_of_all(seed, each):
    history = random_history(seed)
    tree, counted = SuffixTree(each.width), Counted()
    tree.grow(0, history)
    counted.grow(0, history)
    string = match_of(counted, history, each)
    most = min(8, math.floor(len(string) * each.max_spec_factor))
    paths, waiting = {}, [((), 1.0)]
    while waiting:
        tokens, chance = waiting.pop()
        following = counted.next_tokens([*string, *tokens]) if len(tokens) < most else {}
        for token, count in following.items():
            longer, share = (*tokens, token), chance * count / following.total()
            if share >= each.min_token_prob - 1e-12:
                paths[longer] = share
                waiting.append((longer, share))
    found, score = draft(tree, context_of(history), replace(each, tree=True))
    require_valid(found)
    taken = [path_tokens(found, node) for node in range(len(found))]
    assert len(set(taken)) == len(taken) == min(most, len(paths))
    assert score == pytest.approx(sum(paths[path] for path in taken))
    assert score == pytest.approx(sum(heapq.nlargest(most, paths.values())))


def test_a_tree_branches_where_continuations_are_equally_likely():
    history = [1, 2, 3, 4, 1, 2, 3, 5, 1, 2, 3]
    assert drafted(build(), history).tree.tokens[0] == 4
    tree = drafted(build(tree=True), history).tree
    assert [tree.tokens[child] for child in children(tree, -1)] == [4, 5]
    assert not is_chain(tree)


@pytest.mark.parametrize("depth", [1, 2, 3])
def test_no_node_lies_deeper_than_can_be_emitted(depth):
    history = [1, 2, 3, 4, 5, 6, 7, 1, 2, 3, 8, 9, 1, 2, 3]
    proposer, context = build(tree=True, max_spec_factor=4.0), replace(context_of(history, 20), depth=depth)
    proposer.start(context)
    (proposal,) = proposer.propose([context])
    assert {path_tokens(proposal.tree, node) for node in range(len(proposal.tree))} == {
        path[:end] for path in ((4, 5, 6), (8, 9, 1)) for end in range(1, depth + 1)
    }


# the memory of other requests


def test_by_default_requests_know_nothing_of_each_other():
    proposer = build()
    serve(proposer, [1], [10, 11, 12, 13, 14])
    assert proposer.facts.state == "request"
    assert proposer.memory is None
    assert len(drafted(proposer, [2, 10, 11]).tree) == 0


def test_a_finished_response_is_drafted_from_until_reset():
    proposer = build(cached_requests=3)
    assert proposer.facts.state == "shared"
    history = [2, 10, 11]
    assert len(drafted(proposer, history).tree) == 0
    serve(proposer, [1, 2, 3], [10, 11, 12, 13, 14])
    assert drafted(proposer, history).tree.tokens == (12, 13)
    assert len(drafted(proposer, [9, 1, 2]).tree) == 0  # another request's prompt is not its response
    proposer.memory.reset()
    assert len(drafted(proposer, history).tree) == 0


def test_active_requests_survive_a_reset():
    proposer = build(cached_requests=3)
    context = context_of([1, 2, 3, 1, 2])
    proposer.start(context)
    proposer.memory.reset()
    (proposal,) = proposer.propose([context])
    assert proposal.tree.tokens == (3, 1)


def test_the_oldest_response_makes_room():
    proposer = build(cached_requests=2)
    for first in (10, 20, 30):
        serve(proposer, [1], list(range(first, first + 5)))
    found = [drafted(proposer, [9, first, first + 1]).tree.tokens for first in (10, 20, 30)]
    assert found == [(), (22, 23), (32, 33)]


def test_the_source_that_expects_more_accepted_tokens_wins():
    sure, unsure = [4, 5, 6, 7], [4, 5, 8, 4, 5, 9, 4, 5]
    proposer = build(cached_requests=1)
    serve(proposer, [1], sure)
    assert drafted(proposer, unsure).tree.tokens == (6, 7)  # 1 and 1, against 1/2 and 1/2
    assert drafted(proposer, [4, 5, 8, 3, 4, 5]).tree.tokens == (8, 3)  # equally sure: its own
    assert drafted(proposer, [3, 4, 5, 8, 9, 3, 4, 5]).tree.tokens == (8, 9, 3)  # a longer match
    serve(proposer, [1], [3, 4, 5, 6, 7, 2])
    assert drafted(proposer, [9, 4, 5, 8, 9, 3, 4, 5]).tree.tokens == (6, 7, 2)


def test_the_fingerprint_is_that_of_the_responses_in_their_order():
    one, two, three = [10, 11, 12], [20, 21], [30]
    proposer = build(cached_requests=2)
    seen = [proposer.memory.fingerprint()]
    for response in (one, two, three):
        serve(proposer, [5, 6], response)
        seen.append(proposer.memory.fingerprint())
    assert seen[0] == EMPTY
    assert len(set(seen)) == 4
    other = build(cached_requests=2, depth=5)
    serve(other, [7], two, row=1)
    serve(other, [8], three, row=2)
    assert other.memory.fingerprint() == seen[-1]
    swapped = build(cached_requests=2)
    serve(swapped, [7], three)
    serve(swapped, [7], two)
    assert swapped.memory.fingerprint() != seen[-1]
    joined = build(cached_requests=2)
    serve(joined, [7], two + three)
    assert joined.memory.fingerprint() != seen[-1]
    proposer.memory.reset()
    assert proposer.memory.fingerprint() == EMPTY


def test_the_fingerprint_does_not_change_between_versions():
    proposer = build(cached_requests=2)
    serve(proposer, [1], [10, 11, 12])
    assert proposer.memory.fingerprint() == "710332e5edeece8e1207e53359b29663b1c8a4e229351e2c9e27a0a20e7ce58c"


@pytest.mark.medium
@pytest.mark.parametrize("protocol", [Protocol.GREEDY, Protocol.GUMBEL])
@pytest.mark.parametrize("tree", slow_unless([False, True], [True]))
def test_a_shared_memory_changes_drafts_and_no_token(protocol, tree):
    temperature = 0.0 if protocol is Protocol.GREEDY else 0.7
    wanted = requests(12, SamplingParams(temperature=temperature, max_new_tokens=24, seed=2))
    options = {"max_spec_factor": 3.0, "tree": tree}
    alone = generate(Setup("suffix", protocol, gamma=6, rows=3, options=options), wanted)
    shared = generate(Setup("suffix", protocol, gamma=6, rows=3, options=options | {"cached_requests": 5}), wanted)
    plain = generate(Setup(None, protocol), wanted)
    assert {name: each.tokens for name, each in shared.items()} == {name: each.tokens for name, each in plain.items()}
    before, after = (sum(each.n_accepted for each in traces(got).values()) for got in (alone, shared))
    assert after > before > 0


class Warm(SuffixProposer):
    """Remembers what it was given and learns nothing, so that every leaf of the enumeration starts alike."""

    longest = 0

    def propose(self, contexts):
        found = super().propose(contexts)
        self.longest = max(self.longest, *(len(each.tree) for each in found))
        return found

    def finish(self, row):
        del self._rows[row]


@pytest.mark.medium
@pytest.mark.parametrize(("protocol", "tree"), [(Protocol.CHAIN, False), (Protocol.TREE, False), (Protocol.TREE, True)])
def test_a_memory_of_other_requests_keeps_the_law(protocol, tree, monkeypatch):
    branches = enumerate_decisions(monkeypatch)
    proposer = build(Warm, cached_requests=2, max_spec_factor=4.0, min_token_prob=0.0, tree=tree)
    for response in ((0, 1, 0, 2, 1, 2, 0), (1, 0, 1, 1, 2)):
        proposer._cache.add(response)
    setup = Setup(None, protocol, gamma=3, vocabulary=3)
    params = SamplingParams(temperature=0.9, repetition_penalty=1.3, max_new_tokens=4)
    law = emitted_law(setup, params, branches, make_loop(setup, capacity=32, proposer=proposer))
    assert distance(law, target_law(setup, params)) < TOLERANCE
    assert proposer.longest == 3


# the options


@pytest.mark.parametrize(
    ("options", "wanted"),
    [
        ({"depth": 0}, "option depth must be a whole number from 1 to 1024, not 0"),
        ({"max_spec_factor": 0}, "option max_spec_factor must be a number from 0.1 to 16.0, not 0"),
        ({"min_token_prob": 1.1}, "option min_token_prob must be a number from 0.0 to 1.0, not 1.1"),
        ({"cached_requests": -1}, "option cached_requests must be a whole number from 0 to 100000, not -1"),
        ({"tree": 2}, "option tree must be true or false, not 2"),
    ],
)
def test_an_option_out_of_its_range_is_refused(options, wanted):
    with pytest.raises(InvalidRequest, match=f"^proposer suffix: {wanted}$"):
        build(**options)


def test_the_options_in_force_and_the_shape_are_declared():
    facts = build(tree=1, depth=8).facts
    assert facts.shape == "tree"
    assert facts.options == {
        "depth": 8,
        "max_spec_factor": 1.0,
        "min_token_prob": 0.1,
        "cached_requests": 0,
        "tree": True,
    }
    assert build().facts.shape == "chain"

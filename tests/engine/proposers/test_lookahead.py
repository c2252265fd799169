"""Lookahead: what the window reads, what the pool keeps, what is drafted, and that no token changes."""

from dataclasses import replace

import numpy as np
import pytest

from engine import verify
from engine.core.errors import InvalidRequest
from engine.core.trees import children, path_tokens, require_valid
from engine.core.types import DraftRule, Protocol, RecordLevel, Request, SamplingParams, Tree
from engine.decode.loop import Loop, LoopOptions
from engine.models.scripted import ScriptedModel
from engine.proposers.copying.lookahead import LookaheadOptions, LookaheadProposer, LookaheadWindow, NgramPool, merged
from engine.proposers.copying.suffix import SuffixProposer
from engine.proposers.interface import Context, ProposerParts
from engine.record.trace import decode
from engine.sampling.draw import draw
from engine.sampling.rng import Randomness
from tests.engine.build import Setup, generate, make_loop, requests, target_script, traces
from tests.engine.enumeration import TOLERANCE, distance, emitted_law, enumerate_decisions, target_law

GREEDY = SamplingParams(max_new_tokens=40)


class Spied(LookaheadProposer):
    """Notes every proposal with its context, and the window before and after every step that read it."""

    def __init__(self, settings):
        super().__init__(settings)
        self.proposed, self.moved = [], []

    def propose(self, contexts):
        found = super().propose(contexts)
        self.proposed.extend(zip(contexts, found, [list(each.history) for each in contexts], strict=True))
        return found

    def observe(self, context, verdict):
        before = self._rows[context.row].window
        super().observe(context, verdict)
        if context.read.looked_ahead is not None:
            self.moved.append((context.row, before, self._rows[context.row].window))


PARTS = ProposerParts(4, 64, DraftRule.GREEDY, draw, ())


def build(**options):
    return Spied.build(replace(PARTS, options=options))


def repeating(prefix):
    """Counts up in threes, whatever came before."""
    logits = np.zeros(16)
    logits[(prefix[-1] + 3) % 16] = 9.0
    return logits


def loop_of(proposer, script=repeating, capacity=128, gamma=8, rows=1):
    target = ScriptedModel(script, 16)
    options = LoopOptions(rows, gamma, capacity, RecordLevel.TOKENS)
    return Loop(target, proposer, verify.load(Protocol.GREEDY), lambda _: "", options)


# the window


def test_the_first_window_is_the_end_of_the_prompt():
    window = LookaheadWindow.from_prompt(tuple(range(20)), LookaheadOptions(4, 3, 7))
    assert window.levels == ((15, 16, 17, 18), (16, 17, 18, 19))


def test_a_prompt_shorter_than_the_window_is_repeated():
    window = LookaheadWindow.from_prompt((1, 2, 3), LookaheadOptions(4, 4, 7))
    assert window.levels == ((1, 2, 3, 1), (2, 3, 1, 2), (3, 1, 2, 3))


def test_levels_hang_under_the_level_before_at_their_offset():
    window = LookaheadWindow(((1, 2, 3), (11, 12, 13), (21, 22, 23)))
    tree = window.tree()
    require_valid(tree)
    paths = [path_tokens(tree, node) for node in range(len(tree))]
    assert paths[:3] == [(1,), (1, 2), (1, 2, 3)]
    assert paths[3:6] == [(1, 11), (1, 2, 12), (1, 2, 3, 13)]
    assert paths[6:] == [(1, 11, 21), (1, 2, 12, 22), (1, 2, 3, 13, 23)]


def test_a_window_of_one_level_is_a_chain():
    assert LookaheadWindow(((1, 2, 3),)).tree() == Tree.chain((1, 2, 3))


def test_diagonals_become_ngrams_and_levels_move_up():
    window = LookaheadWindow(((1, 2), (11, 12)))
    assert window.ngrams([21, 22]) == [(1, 11, 21), (2, 12, 22)]
    assert window.advanced([21, 22]) == LookaheadWindow(((11, 12), (21, 22)))


@pytest.mark.parametrize("options", [{}, {"window": 3, "levels": 2}, {"window": 1, "levels": 4}, {"levels": 3}])
def test_new_guesses_are_what_the_target_says_after_the_last_level(options):
    """Read through the real loop, on a source that looks two tokens back, beside drafts and in ragged batches."""
    proposer, setup = build(**options), Setup(None, Protocol.GREEDY, gamma=5, rows=3)
    for _ in make_loop(setup, proposer=proposer).run(requests(5, GREEDY)):
        pass
    script = target_script(setup)
    looked_ahead = [each for each in proposer.proposed if len(each[1].lookahead_tokens)]
    assert len(looked_ahead) == len(proposer.moved) > 20
    for (context, proposal, history), (row, before, after) in zip(looked_ahead, proposer.moved, strict=True):
        assert context.row == row
        assert proposal.lookahead_tokens == before.tree()
        paths = [path_tokens(before.tree(), node) for node in range(len(before.tree()))][-len(before.levels[0]) :]
        guesses = tuple(int(np.argmax(script((*history, *path)))) for path in paths)
        assert after.levels == (*before.levels[1:], guesses)


# the pool


def test_the_pool_keeps_the_latest_of_each_first_token():
    pool = NgramPool(2)
    for ngram in ((1, 2, 3), (1, 4, 5), (9, 9, 9), (1, 6, 7)):
        pool.add(ngram)
    assert pool.after(1) == [(6, 7), (4, 5)]
    assert pool.after(9) == [(9, 9)]
    assert pool.after(2) == []


def test_an_ngram_that_is_found_again_is_the_latest():
    pool = NgramPool(2)
    for ngram in ((1, 2, 3), (1, 4, 5), (1, 2, 3), (1, 6, 7)):
        pool.add(ngram)
    assert pool.after(1) == [(6, 7), (2, 3)]


# the draft


@pytest.mark.parametrize(
    ("budget", "tokens", "parents"),
    [
        (0, (), ()),
        (2, (1, 2), (-1, 0)),
        (5, (1, 2, 3, 5, 6), (-1, 0, 1, -1, 3)),
        (9, (1, 2, 3, 5, 6, 4, 7), (-1, 0, 1, -1, 3, 1, 3)),
    ],
)
def test_ngrams_share_their_beginnings_and_the_first_have_precedence(budget, tokens, parents):
    tree = merged([(1, 2, 3), (5, 6), (1, 2, 4), (5, 7)], budget)
    assert tree == Tree(tokens, parents)
    for node in range(-1, len(tree)):
        siblings = [tree.tokens[child] for child in children(tree, node)]
        assert len(siblings) == len(set(siblings))


def test_the_ngrams_after_the_last_token_are_drafted():
    proposer = build(guesses=2)
    context = Context(0, Request("r", (1, 2), GREEDY), [1, 2], 20, Randomness(0, 0))
    proposer.start(context)
    assert len(proposer.propose([context])[0].tree) == 0
    for ngram in ((2, 7, 7), (2, 3, 4), (1, 9, 9), (2, 3, 5)):
        proposer._rows[0].pool.add(ngram)
    (proposal,) = proposer.propose([context])
    assert proposal.tree == Tree((3, 5, 4), (-1, 0, 0))
    (shallow,) = proposer.propose([replace(context, depth=1)])
    assert shallow.tree == Tree((3,), (-1,))


def test_a_new_request_finds_an_empty_pool():
    proposer = build()
    context = Context(0, Request("r", (1, 2), GREEDY), [1, 2], 20, Randomness(0, 0))
    proposer.start(context)
    proposer._rows[0].pool.add((2, 3, 4))
    proposer.start(context)
    assert len(proposer.propose([context])[0].tree) == 0


# in the loop


def test_tokens_are_drafted_that_nothing_before_them_shows():
    """No token follows another twice in prompt and output, so there is nothing to copy."""
    wanted = [Request("r", (5, 13, 2, 8, 0), SamplingParams(max_new_tokens=15))]
    pattern = tuple(3 * (i + 1) % 16 for i in range(15))
    steps = {}
    for name, proposer in (("lookahead", build()), ("suffix", SuffixProposer.build(PARTS))):
        (generation,) = loop_of(proposer).run(wanted)
        trace = decode(generation.trace)
        assert generation.tokens == pattern
        assert trace.n_accepted == 15 - len(trace.n_drafted)
        steps[name] = len(trace.n_drafted)
    assert steps["suffix"] == 15
    assert steps["lookahead"] < 11


@pytest.mark.medium
@pytest.mark.parametrize("rows", [1, 4])
@pytest.mark.parametrize("options", [{}, {"window": 3, "levels": 3, "guesses": 2}, {"window": 2, "levels": 2}])
def test_greedy_output_is_that_of_plain_decoding(rows, options):
    wanted = requests(8, GREEDY)
    setup = Setup("lookahead", Protocol.GREEDY, gamma=9, rows=rows, options=options)
    got = generate(setup, wanted)
    plain = generate(Setup(None, Protocol.GREEDY), wanted)
    assert {name: each.tokens for name, each in got.items()} == {name: each.tokens for name, each in plain.items()}
    assert sum(each.n_accepted for each in traces(got).values()) > 20


@pytest.mark.parametrize("options", [{}, {"window": 3, "levels": 3}])
@pytest.mark.parametrize("capacity", [41, 60, 128])
def test_scouts_are_declared_and_keep_to_the_room(capacity, options):
    """Without room for the whole window it is not read; drafts and the output go on."""
    proposer = build(**options)
    (generation,) = loop_of(proposer, capacity=capacity).run([Request("r", (0,), GREEDY)])
    assert generation.tokens == tuple(3 * (i + 1) % 16 for i in range(40))
    counts = {len(proposal.lookahead_tokens) for _, proposal, _ in proposer.proposed}
    assert counts <= {0, proposer.facts.lookahead_tokens}
    assert max(counts) == proposer.facts.lookahead_tokens == (28 if not options else 6)
    assert (0 in counts) == (capacity < 40 + proposer.facts.lookahead_tokens)
    for context, proposal, _ in proposer.proposed:
        fits = len(proposal.tree) + proposer.facts.lookahead_tokens <= context.room
        assert bool(len(proposal.lookahead_tokens)) == (fits and context.budget > 0)


def test_nothing_is_scouted_in_a_request_s_last_step():
    proposer = build()
    list(loop_of(proposer).run([Request("r", (0,), SamplingParams(max_new_tokens=1))]))
    ((_, proposal, _),) = proposer.proposed
    assert len(proposal.lookahead_tokens) == 0


@pytest.mark.medium
@pytest.mark.parametrize("vocabulary", [2, 3])
def test_branching_drafts_keep_the_law(vocabulary, monkeypatch):
    branches = enumerate_decisions(monkeypatch)
    proposer = build(window=3, levels=3)
    setup = Setup(None, Protocol.TREE, gamma=4, vocabulary=vocabulary)
    params = SamplingParams(temperature=0.9, repetition_penalty=1.3, max_new_tokens=5)
    law = emitted_law(setup, params, branches, make_loop(setup, capacity=32, proposer=proposer))
    assert distance(law, target_law(setup, params)) < TOLERANCE
    assert any(len(children(proposal.tree, -1)) > 1 for _, proposal, _ in proposer.proposed)


# the options


@pytest.mark.parametrize(
    ("options", "wanted"),
    [
        ({"window": 0}, "option window must be a whole number from 1 to 64, not 0"),
        ({"levels": 1}, "option levels must be a whole number from 2 to 16, not 1"),
        ({"guesses": 2.5}, r"option guesses must be a whole number from 1 to 64, not 2\.5"),
    ],
)
def test_an_option_out_of_its_range_is_refused(options, wanted):
    with pytest.raises(InvalidRequest, match=f"^proposer lookahead: {wanted}$"):
        build(**options)


def test_the_options_in_force_are_declared():
    facts = build(window=3).facts
    assert facts.options == {"window": 3, "levels": 5, "guesses": 7}
    assert facts.lookahead_tokens == 12
    assert facts.shape == "tree"

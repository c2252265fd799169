"""The law under the real random numbers: the enumeration takes each of them as fresh, and cannot see one used twice.

The law of the first tokens is compared with the target's by a chi-square test over independent streams. Seeds are
fixed; a clean rule fails with a chance of one in a thousand per case over all seeds, and does not under these.
"""

import collections
from dataclasses import replace

import pytest
from scipy import stats

from engine.core.types import Protocol, RecordLevel, Request, SamplingParams
from tests.engine.build import Setup, make_loop
from tests.engine.enumeration import PROMPT, target_law

CASES = {
    "chain": Setup("draft_model", Protocol.CHAIN, 3),
    "chain, one-hot": Setup("ngram", Protocol.CHAIN, 3, options={"min_ngram": 1}),
    "block": Setup("draft_model", Protocol.BLOCK, 3),
    "block, one-hot": Setup("ngram", Protocol.BLOCK, 3, options={"min_ngram": 1}),
    "tree, with replacement": Setup("specinfer", Protocol.TREE, 6, options={"widths": "2,1,1"}),
    "tree, without": Setup("sequoia", Protocol.TREE, 6, options={"rates": "0.5,0.3,0.15", "depth": 3}),
    "gumbel": Setup("draft_model", Protocol.GUMBEL, 3),
    "gumbel, tree": Setup("specinfer", Protocol.GUMBEL, 6, options={"widths": "2,1,1"}),
}
PARAMS = SamplingParams(temperature=1.0, max_new_tokens=4)


def p_value(setup, count):
    setup = replace(setup, vocabulary=3, rows=64, likeness=0.3, level=RecordLevel.TOKENS)
    wanted = [Request(f"r{i}", PROMPT, PARAMS, stream=i) for i in range(count)]
    counts = collections.Counter(each.tokens for each in make_loop(setup, capacity=16).run(wanted))
    law = target_law(setup, PARAMS)
    return stats.chisquare([counts[key] for key in law], [count * chance for chance in law.values()]).pvalue


@pytest.mark.slow
@pytest.mark.parametrize("name", CASES)
def test_the_law_is_the_target_s(name):
    assert p_value(CASES[name], 3000) > 1e-3


@pytest.mark.slow
def test_numbers_keyed_by_position_alone_break_the_block_rule(monkeypatch):
    """A block looks at drafts behind the tokens that it keeps; the next step must not use their numbers again."""
    monkeypatch.setattr("engine.decode.row_state.RowState.numbers", property(lambda state: state.randomness))
    assert p_value(CASES["block"], 12_000) < 1e-6

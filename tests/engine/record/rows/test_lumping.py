"""Cells: what `topk` keeps of p and q is what the rows of the same run say."""

from dataclasses import replace

import numpy as np
import pytest

from audit.evidence.decisions import decisions
from engine.core.types import Protocol, RecordLevel, SamplingParams
from engine.record.columns import TABLE, TOPK
from engine.record.rows.lumping import PAD, TOP
from engine.record.rows.row_laws import largest
from tests.audit.checks.simulator import record
from tests.engine.build import Setup, generate, requests, traces
from tests.support.tiers import fast_first

SAMPLED = SamplingParams(temperature=0.9, max_new_tokens=40, seed=4)
RULES = (
    ("draft_model", Protocol.CHAIN),
    ("ngram", Protocol.CHAIN),
    ("draft_model", Protocol.TREE),
    ("draft_model", Protocol.GUMBEL),
    ("draft_model", Protocol.BLOCK),
)

LUMPED = [column.name for column in TABLE if column.levels == TOPK]


def both(proposer="draft_model", protocol=Protocol.CHAIN, vocabulary=90, sampling=SAMPLED):
    setup = Setup(proposer, protocol, vocabulary=vocabulary)
    full, lumped = (
        traces(generate(replace(setup, level=level), requests(3, sampling, vocabulary)))["r2"]
        for level in (RecordLevel.FULL, RecordLevel.TOPK)
    )
    assert full.tokens == lumped.tokens
    return decisions(record(full)), full, lumped


@pytest.mark.medium
@pytest.mark.parametrize(("proposer", "protocol"), fast_first(RULES, 2))
@pytest.mark.parametrize("sampling", [SAMPLED, replace(SAMPLED, top_k=7, repetition_penalty=1.2)])
@pytest.mark.parametrize("vocabulary", [30, 90])
def test_cells_are_the_rows_lumped(proposer, protocol, sampling, vocabulary):
    made, full, lumped = both(proposer, protocol, vocabulary, sampling)
    for at, token in enumerate(full.tokens):
        p, q, ids = made.p[at], made.q[at], lumped.cell_id[at]
        used = ids[ids != PAD]
        assert len(set(used.tolist())) == len(used)
        assert used[:TOP].tolist() == sorted(range(vocabulary), key=lambda i: (-p[i], i))[:TOP]
        np.testing.assert_array_equal(lumped.cell_p[at, : len(used)], p[used].astype(np.float32))
        assert lumped.tail[at, 0] == pytest.approx(np.delete(p, used).sum(), abs=1e-14)
        assert lumped.row_p[at] == p[token]
        assert lumped.p_below[at] == pytest.approx(p[:token].sum(), abs=1e-14)
        if made.known[at]:
            assert set(used.tolist()) == {*used[:TOP].tolist(), *largest(q, TOP).tolist()}
            np.testing.assert_array_equal(lumped.cell_q[at, : len(used)], q[used].astype(np.float32))
            left = np.maximum(p - q, 0.0)
            numbers = [lumped.tail[at, 1], lumped.q_token[at], lumped.product[at]]
            numbers += [lumped.residual_below[at], lumped.residual_sum[at]]
            expected = [np.delete(q, used).sum(), q[token], p @ q, left[:token].sum(), left.sum()]
            assert numbers == pytest.approx(expected, abs=1e-13)
        else:
            assert np.isnan(lumped.cell_q[at]).all()
            assert np.isnan([lumped.tail[at, 1], lumped.q_token[at], lumped.product[at]]).all()


@pytest.mark.medium
def test_the_mass_before_a_drafted_token_is_that_of_its_row():
    _, full, lumped = both()
    tokens = [
        int(full.node_token[sum(full.n_drafted[:step]) + node])
        for step, nodes in enumerate(np.split(full.examined_node, np.cumsum(full.n_examined)[:-1]))
        for node in nodes
    ]
    expected = [row[:token].sum() for row, token in zip(full.q_rows, tokens, strict=True)]
    assert len(expected) > 20
    np.testing.assert_allclose(lumped.q_below, expected, atol=1e-14)


@pytest.mark.medium
def test_a_token_that_was_drawn_does_not_choose_its_cell():
    """Else the lumped law would depend on what it is to judge."""
    flat = replace(SAMPLED, temperature=50.0, max_new_tokens=200)
    _, full, lumped = both(sampling=flat)
    outside = [token not in ids for token, ids in zip(full.tokens, lumped.cell_id.tolist(), strict=True)]
    assert 0.2 < np.mean(outside) < 0.95


@pytest.mark.parametrize("level", [each for each in RecordLevel if each is not RecordLevel.TOPK])
def test_no_other_level_holds_cells(level):
    trace = traces(generate(Setup(level=level, vocabulary=30), requests(1, SAMPLED, 30)))["r0"]
    assert all(getattr(trace, name).size == 0 for name in LUMPED)


def test_largest_are_in_order_with_lower_ids_first_among_equals():
    rng = np.random.default_rng(1)
    for _ in range(200):
        row = rng.integers(0, 6, 30).astype(float)
        row[rng.random(30) < 0.2] = -np.inf
        count = int(rng.integers(1, 35))
        assert largest(row, count).tolist() == sorted(range(30), key=lambda i: (-row[i], i))[:count]

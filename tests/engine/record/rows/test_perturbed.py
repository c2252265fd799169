"""The leaders of log p plus noise at `topk`, against whole rows of the same run."""

import dataclasses

import numpy as np
import pytest

from engine.core.types import Protocol, RecordLevel, SamplingParams
from engine.record.trace import decode
from engine.sampling.rng import Randomness, gumbel_at
from engine.sampling.transforms import plain_laws
from tests.engine.build import Setup, generate, requests

SAMPLED = SamplingParams(temperature=0.9, max_new_tokens=30, seed=4, top_p=0.95)


def traces(level, protocol=Protocol.GUMBEL, sampling=SAMPLED):
    made = generate(Setup(level=level, protocol=protocol), requests(3, sampling))
    return {name: decode(each.trace) for name, each in made.items()}


def test_the_noise_of_single_tokens_is_that_of_the_row():
    whole = Randomness(7, 2**63 + 5).gumbel(1234, 4000)
    ids = np.array([0, 1, 2, 3, 4, 7, 1001, 3998, 3999])
    assert np.allclose(gumbel_at(7, 2**63 + 5, np.full(len(ids), 1234), ids), whole[ids], rtol=1e-14, atol=0)


@pytest.mark.medium
def test_the_leaders_are_those_of_the_whole_row():
    sparse, full = traces(RecordLevel.TOPK), traces(RecordLevel.FULL)
    for name, trace in sparse.items():
        laws = plain_laws(full[name].logits, trace.header.sampling)
        for at, law in enumerate(laws):
            noise = Randomness(SAMPLED.seed, trace.header.stream).gumbel(len(trace.header.prompt) + at, len(law))
            with np.errstate(divide="ignore"):
                sums = np.log(law) + noise
            order = np.argsort(-sums, kind="stable")[: min(2, np.count_nonzero(law))]
            assert trace.best_id[at, : len(order)].tolist() == order.tolist()
            assert np.allclose(trace.best_score[at, : len(order)], sums[order], rtol=0, atol=1e-12)
            assert trace.best_id[at, 0] == trace.token[at]


def test_the_masses_of_drafts_are_those_of_their_rows():
    sparse, full = traces(RecordLevel.TOPK, Protocol.CHAIN), traces(RecordLevel.FULL, Protocol.CHAIN)
    for name, trace in sparse.items():
        assert np.array_equal(trace.q_own, trace.examined_q)
        assert np.array_equal(trace.q_sum, full[name].q_rows.sum(axis=1))
        assert not len(trace.best_id)
        assert not len(full[name].q_own)


@pytest.mark.parametrize("level", [RecordLevel.TOKENS, RecordLevel.SCALARS, RecordLevel.FULL])
def test_other_levels_and_greedy_rows_have_no_leaders(level):
    assert not any(len(each.best_id) for each in traces(level).values())
    greedy = dataclasses.replace(SAMPLED, temperature=0.0, top_p=1.0)
    assert not any(len(each.best_id) for each in traces(RecordLevel.TOPK, sampling=greedy).values())

"""Sampled requests with drawn drafts: q is recorded, and p is what our own arithmetic makes of the raw rows."""

import numpy as np
import pytest

from engine.core.types import FinishReason, Protocol, QKind, SamplingParams
from engine.record.trace import decode

from .arms import answered, backend, own_p, plan, reconciled, requests

pytestmark = pytest.mark.vllm

SAMPLED = SamplingParams(temperature=0.8, top_k=50, top_p=0.95, presence_penalty=0.3)
DRAWN = {"draft_sample_method": "probabilistic"}
FLOAT32 = 1e-4
"""Of a probability, both from float32 logits: vLLM's transforms are in float32, ours in float64."""


@pytest.fixture(scope="module")
def engine():
    shop = backend()
    # the defects that are repaired are in the parameters of drafted rows, on CPUs
    yield shop.arm(plan("draft_model", Protocol.CHAIN, draft="draft", options=DRAWN, engine={"repair": "expand"}))
    shop.close()


@pytest.fixture(scope="module")
def found(engine, prompts):
    return answered(engine, requests(prompts, SAMPLED))


@pytest.fixture(scope="module")
def traces(found):
    return [decode(each.trace) for each in found.values()]


def test_all_sources_agree_on_every_request(found):
    assert all(reconciled(each) >= {"worker", "scheduler", "metrics", "counters"} for each in found.values())


def test_every_draft_has_the_row_that_it_was_drawn_from(traces):
    kinds = {kind for trace in traces for kind in trace.q_kind[trace.n_drafted > 0].tolist()}
    assert kinds == {QKind.FULL}
    rows = np.concatenate([trace.q_rows for trace in traces])
    assert len(rows) > 100
    np.testing.assert_allclose(rows.sum(-1), 1, atol=1e-4)


def test_the_engines_p_is_ours(found):
    """Of drafted tokens, and of those that came out: in drafted places, behind them, and without a draft."""
    for kind in ("examined", "emitted"):
        ours = np.concatenate([getattr(own_p(each), kind) for each in found.values()])
        traces = [decode(each.trace) for each in found.values()]
        theirs = np.concatenate([trace.examined_p if kind == "examined" else trace.p for trace in traces])
        assert len(ours) > 100
        np.testing.assert_allclose(theirs, ours, atol=FLOAT32)
        assert (ours > 0.01).mean() > 0.3


def test_requests_beside_each_other_keep_their_own_parameters(engine, prompts):
    """A greedy one between two sampled ones has the tokens that it has alone."""
    greedy = requests(prompts[:1])
    alone = answered(engine, greedy)["r0"]
    others = [each for each in requests(prompts[:4], SAMPLED) if each.id != "r0"]
    mixed = answered(engine, [others[0], *greedy, *others[1:]])
    assert mixed["r0"].tokens == alone.tokens
    kinds = decode(mixed["r0"].trace).q_kind
    assert QKind.FULL not in kinds.tolist()


def test_what_vllm_has_not_with_drafts_is_refused_in_its_own_words(engine, prompts):
    good = requests(prompts[:1])
    bad = requests(prompts[:2], SamplingParams(temperature=0.8, min_p=0.1))[1:]
    both = answered(engine, [*bad, *good])
    assert both["r0"].finish_reason is not FinishReason.ERROR
    error = decode(both["r1"].trace).header.facts["error"]
    assert error["kind"] == "refused"
    assert "min_p" in error["message"]


def test_token_sequences_are_forbidden(engine, prompts):
    """By ids, as our suites name them: the greedy answer's second pair of tokens."""
    free = answered(engine, requests(prompts[:1]))["r0"].tokens
    forbidden = SamplingParams(bad_words=(free[1:3],))
    kept = answered(engine, requests(prompts[:1], forbidden))["r0"].tokens
    assert kept[:2] == free[:2]
    assert free[1:3] not in [kept[i : i + 2] for i in range(len(kept) - 1)]


def test_the_draft_method_is_read_from_the_drafter(engine):
    config = engine.effective_config()
    assert config.in_effect["draft_sample_method"] == "probabilistic"
    assert config.facts["repair"] == "expand"

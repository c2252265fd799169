import collections
import itertools
import math
from dataclasses import replace

import numpy as np
import pytest
from scipy import stats

from audit import checks
from audit.checks.base.interface import evaluate
from audit.evidence.records import ArmKind, ArmRecord, Evidence, Level
from audit.evidence.verdicts import Verdict
from engine import proposers, verify
from engine.core.errors import InvalidRequest
from engine.core.types import DraftRule, Protocol, QKind, RecordLevel, Request, SamplingParams
from engine.models.scripted import ScriptedModel
from engine.proposers.draft_model.cascade import INNER, InnerRandomness
from engine.proposers.interface import Context, ProposerParts
from engine.record.effective import Effective
from engine.record.trace import decode, steps_of
from engine.sampling.draw import draw
from engine.sampling.rng import Purpose, Randomness, stream_of
from engine.sampling.transforms import transform
from tests.audit.checks.simulator import record
from tests.engine.build import Setup, draft_script, generate, make_loop, requests, target_script, traces
from tests.engine.enumeration import (
    PROMPT,
    TOLERANCE,
    CoinRandomness,
    distance,
    emitted_law,
    enumerate_decisions,
    target_law,
)
from tests.support.tiers import fast_first, slow_unless

SAMPLED = SamplingParams(temperature=0.8, max_new_tokens=40, seed=5)
SHAPED = replace(SAMPLED, top_k=6, top_p=0.9, repetition_penalty=1.2, bad_words=((3,), (1, 2)), min_tokens=4)
REJECTION = {"inner_rule": "rejection"}


def scripted(setup, number=0, context=4096):
    return ScriptedModel(draft_script(setup, number), setup.vocabulary, context=context)


def build(options, drafts, rule=DraftRule.INDEPENDENT, rows=1):
    first, *others = drafts
    return proposers.build("cascade", ProposerParts(rows, 64, rule, draw, (), first, options, tuple(others)))


@pytest.mark.medium
@pytest.mark.parametrize("rows", fast_first([4, 1]))
@pytest.mark.parametrize("protocol", [Protocol.CHAIN, Protocol.TREE, Protocol.GUMBEL, Protocol.GREEDY])
@pytest.mark.parametrize("sampled", fast_first([SAMPLED, SHAPED]), ids=["sampled", "shaped"])
@pytest.mark.parametrize("tiny", ["draft_model", "ngram"])
def test_matching_proposes_what_the_draft_model_proposes(tiny, sampled, protocol, rows):
    """Every column of the record: tokens, draft numbers, q rows, decisions."""
    sampling = replace(sampled, temperature=0.0) if protocol is Protocol.GREEDY else sampled
    setup = Setup("cascade", protocol, gamma=6, rows=rows, eos_ids=(5,))
    wanted = [
        replace(each, sampling=replace(sampling, max_new_tokens=1 + 9 * i % 40))
        for i, each in enumerate(requests(10, sampling))
    ]
    rule = verify.load(protocol).facts.draft_rule
    drafts = [scripted(setup), scripted(setup, 1)][: 2 if tiny == "draft_model" else 1]
    parts = ProposerParts(rows, 512, rule, draw, (5,), drafts[0], {"inner_gamma": 3}, tuple(drafts[1:]))
    proposer = proposers.build("cascade", parts)
    assert proposer.facts.options["tiny"] == tiny
    loop = make_loop(setup, proposer=proposer)
    plain = traces(generate(replace(setup, proposer="draft_model"), wanted))
    for generation in loop.run(wanted):
        ours, other = decode(generation.trace), plain[generation.request.id]
        for column in ("token", "role", "node_token", "node_uniform", "examined_q", "examined_accepted", "q_rows"):
            np.testing.assert_array_equal(getattr(ours, column), getattr(other, column), column)


def proposal_law(proposer, params, branches, budget):
    """Law of the proposed tokens, and the q row of every prefix."""
    law, rows = {}, {}
    request = Request("r", PROMPT, params)
    for branch in branches:
        context = Context(0, request, list(PROMPT), budget, CoinRandomness(branches), budget)
        proposer.start(context)
        (proposal,) = proposer.propose([context])
        tokens = proposal.tree.tokens
        law[tokens] = law.get(tokens, 0.0) + branch.probability
        rows |= {tokens[:place]: proposal.q[place] for place in range(len(tokens))}
    return law, rows


@pytest.mark.medium
@pytest.mark.parametrize("options", [{}, REJECTION, {**REJECTION, "inner_gamma": 1}], ids=str)
@pytest.mark.parametrize("drafters", [1, 2])
@pytest.mark.parametrize("params", [SamplingParams(temperature=1.0), replace(SHAPED, bad_words=(), min_tokens=0)])
def test_proposals_follow_the_draft_model_s_q(params, drafters, options, monkeypatch):
    branches = enumerate_decisions(monkeypatch)
    setup = Setup(vocabulary=3, likeness=0.3)
    proposer = build(options, [scripted(setup), scripted(setup, 1)][:drafters])
    params = replace(params, max_new_tokens=9)
    law, rows = proposal_law(proposer, params, branches, budget=3)
    assert math.isclose(sum(law.values()), 1.0, abs_tol=TOLERANCE)
    for tokens in itertools.product(range(3), repeat=3):
        expected, history = 1.0, list(PROMPT)
        for place, token in enumerate(tokens):
            q = transform(draft_script(setup)(tuple(history)), history, len(PROMPT), params, ()).p
            if expected:
                np.testing.assert_array_equal(rows[tokens[:place]], q)
            expected *= q[token]
            history.append(token)
        assert math.isclose(law.get(tokens, 0.0), expected, abs_tol=TOLERANCE)


def test_the_enumeration_sees_a_wrong_inner_residual(monkeypatch):
    """The negative control."""
    branches = enumerate_decisions(monkeypatch)
    monkeypatch.setattr("engine.verify.chain.residual", lambda p, proposal, node: p)
    setup = Setup(vocabulary=3, likeness=0.3)
    params = SamplingParams(temperature=1.0, max_new_tokens=9)
    law, rows = proposal_law(build(REJECTION, [scripted(setup), scripted(setup, 1)]), params, branches, budget=2)
    assert max(abs(law[pair] - rows[()][pair[0]] * rows[pair[:1]][pair[1]]) for pair in law) > 1e-3


@pytest.mark.parametrize(("vocabulary", "gamma"), fast_first([(2, 3), (3, 2)]))
@pytest.mark.parametrize("protocol", fast_first([Protocol.CHAIN, Protocol.TREE]))
@pytest.mark.slow
def test_the_emitted_law_is_the_target_s_under_rejection(protocol, vocabulary, gamma, monkeypatch):
    branches = enumerate_decisions(monkeypatch)
    setup = Setup("cascade", protocol, gamma, vocabulary, likeness=0.3, options=REJECTION)
    params = SamplingParams(temperature=1.0, max_new_tokens=gamma + 1)
    assert distance(emitted_law(setup, params, branches), target_law(setup, params)) < TOLERANCE


@pytest.mark.slow
@pytest.mark.parametrize("options", [{}, REJECTION], ids=["matching", "rejection"])
def test_the_law_under_the_real_numbers(options):
    """The enumeration takes every number as fresh; here two uses of one number would show."""
    setup = Setup("cascade", Protocol.CHAIN, 3, 3, rows=64, level=RecordLevel.TOKENS, likeness=0.3, options=options)
    params = SamplingParams(temperature=1.0, max_new_tokens=3)
    wanted = [Request(f"r{i}", PROMPT, params, stream=i) for i in range(4000)]
    loop = make_loop(setup, capacity=16)
    counts = collections.Counter(each.tokens for each in loop.run(wanted))
    law = target_law(setup, params)
    result = stats.chisquare([counts[key] for key in law], [4000 * chance for chance in law.values()])
    assert result.pvalue > 1e-3


class Counting:
    """A model that counts the tokens of its forwards."""

    def __init__(self, model):
        self._model, self.lengths = model, []

    def __getattr__(self, name):
        return getattr(self._model, name)

    def forward(self, cache, placement, want):
        self.lengths.append(max(placement.lengths))
        return self._model.forward(cache, placement, want)


def test_tokens_are_read_once():
    """All drafts agree: rounds of 4 and 1 offered tokens, each with one token of the draft model after them."""
    setup = Setup(gamma=7)
    first, second = (Counting(ScriptedModel(target_script(setup), 8)) for _ in range(2))
    loop = make_loop(setup, proposer=build({}, [first, second], rule=DraftRule.GREEDY))
    list(loop.run([Request("r", (1, 2, 3), SamplingParams(max_new_tokens=41))]))
    # the prompt; then the newest token and the offers, with the last drafted token where it was not read
    assert first.lengths == [2, 1 + 4, 1 + 1, *[2 + 4, 1 + 1] * 4]
    assert set(second.lengths) == {1, 2, 3}


def forwards(kind, options):
    """Forwards of the draft model over 12 requests."""
    setup = Setup(kind, Protocol.CHAIN, gamma=6, level=RecordLevel.TOKENS)
    first = Counting(scripted(setup))
    parts = ProposerParts(1, 512, DraftRule.INDEPENDENT, draw, (), first, options, (scripted(setup, 1),))
    loop = make_loop(setup, proposer=proposers.build(kind, parts))
    for _ in loop.run(requests(12, replace(SAMPLED, max_new_tokens=60))):
        pass
    return len(first.lengths)


@pytest.mark.slow
def test_the_draft_model_runs_less_often_and_rejection_keeps_more():
    alone, matching, rejection = forwards("draft_model", {}), forwards("cascade", {}), forwards("cascade", REJECTION)
    assert matching < 0.8 * alone
    assert rejection < 0.95 * matching


def test_the_inner_stage_has_numbers_of_its_own():
    outer = Randomness(1, 2)
    inner = InnerRandomness(outer)
    numbers = {outer.uniform(7, purpose) for purpose in (*INNER, Purpose.TARGET)}
    assert numbers.isdisjoint({inner.uniform(7, purpose) for purpose in INNER})
    assert len({inner.uniform(7, purpose) for purpose in INNER}) == len(INNER)
    for purpose, own in INNER.items():
        np.testing.assert_array_equal(inner.uniforms(7, purpose, 3, 2), outer.uniforms(7, own, 3, 2))


def replayed(options):
    generations = generate(Setup("cascade", gamma=5, rows=3, options=options), requests(8, SAMPLED))
    told = tuple(record(trace) for trace in traces(generations).values())
    return evaluate(
        checks.load("replay"), Evidence(ArmRecord("candidate", ArmKind.CANDIDATE, Level.L4, Effective(), told)), {}
    )


@pytest.mark.medium
def test_replay_recomputes_the_draws_of_matching_only():
    assert replayed({}).verdict is Verdict.CERTIFIED
    found = replayed(REJECTION)
    assert found.verdict is Verdict.INCONCLUSIVE, found.summary
    assert found.findings == ()


@pytest.mark.medium
@pytest.mark.parametrize("options", [{}, REJECTION], ids=["matching", "rejection"])
@pytest.mark.parametrize("drafters", slow_unless([1, 2], [2]))
def test_the_draft_model_reads_the_prefix_it_drafts_after(drafters, options):
    """After refusals of both stages, cuts and reuse of rows, q is what the draft model says about the true prefix."""
    setup = Setup(rows=3, gamma=5, likeness=0.5)
    proposer = build(options, [scripted(setup), scripted(setup, 1)][:drafters], rows=3)
    checked = 0
    for generation in make_loop(setup, proposer=proposer).run(requests(12, SHAPED)):
        trace, prompt = decode(generation.trace), generation.request.prompt
        history = [*prompt, *trace.tokens]
        for step in steps_of(trace):
            drafted = trace.node_token[step.nodes].tolist()
            for x in range(step.examined.start, step.examined.stop):
                prefix = [*history[: step.position], *drafted[: trace.examined_node[x]]]
                q = transform(draft_script(setup)(tuple(prefix)), prefix, len(prompt), SHAPED, ()).p
                np.testing.assert_array_equal(trace.q_rows[x], q)
                checked += 1
    assert checked > 100


@pytest.mark.medium
@pytest.mark.parametrize("options", [{}, REJECTION], ids=["matching", "rejection"])
def test_the_tiny_drafter_reads_the_prefix_it_drafts_after(options):
    """And draws with the numbers of its stage: the draft model's own ones under matching, separate ones else."""
    setup = Setup(rows=3, gamma=5, likeness=0.5)
    proposer = build({**options, "inner_gamma": 2}, [scripted(setup), scripted(setup, 1)], rows=3)
    propose, checked = proposer._tiny.propose, []
    purpose = Purpose.INNER_DRAFT if options else Purpose.DRAFT

    def watched(contexts):
        proposals = propose(contexts)
        for context, proposal in zip(contexts, proposals, strict=True):
            history, request = list(context.history), context.request
            numbers = Randomness(SHAPED.seed, request.stream)
            for place, token in enumerate(proposal.tree.tokens):
                q = transform(draft_script(setup, 1)(tuple(history)), history, len(request.prompt), SHAPED, ()).p
                np.testing.assert_array_equal(proposal.q[place], q)
                assert proposal.uniforms[place] == numbers.uniform(len(history), purpose)
                history.append(token)
                checked.append(place)
        return proposals

    proposer._tiny.propose = watched
    list(make_loop(setup, proposer=proposer).run(requests(12, SHAPED)))
    assert checked.count(1) > 100


@pytest.mark.parametrize("contexts", [(9, 4096), (4096, 9), (9, 5)])
@pytest.mark.parametrize("options", [{}, REJECTION], ids=["matching", "rejection"])
def test_contexts_that_end_early_end_the_drafts(options, contexts):
    setup = Setup(gamma=4, rows=2)
    models = [scripted(setup, number, context) for number, context in enumerate(contexts)]
    wanted = [Request(f"r{n}", tuple(i % 8 for i in range(n)), SAMPLED, stream_of(f"r{n}")) for n in (1, 8, 9, 12)]
    for generation in make_loop(setup, proposer=build(options, models, rows=2)).run(wanted):
        trace = decode(generation.trace)
        assert len(generation.tokens) == SAMPLED.max_new_tokens
        left = len(generation.request.prompt) + SAMPLED.max_new_tokens - 1 - trace.position
        expected = np.minimum(np.minimum(4, left), np.maximum(0, min(contexts[0], 64) - trace.position))
        np.testing.assert_array_equal(trace.n_drafted, expected)


def test_at_temperature_zero_the_draft_is_a_function_of_the_prefix():
    proposer = build(REJECTION, [scripted(Setup()), scripted(Setup(), 1)])
    request = Request("r", (1, 2, 3), replace(SAMPLED, temperature=0.0))
    context = Context(0, request, list(request.prompt), 5, Randomness(1, 2))
    proposer.start(context)
    (proposal,) = proposer.propose([context])
    assert proposal.q_kind is QKind.ONE_HOT
    assert len(proposal.tree) == 5


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"inner_gamma": 0}, "option inner_gamma must be a whole number from 1 to 64"),
        ({"inner_rule": "typical"}, "option inner_rule must be matching or rejection"),
        ({"inner": 1}, "has no option 'inner'; it has: inner_gamma, inner_rule"),
    ],
)
def test_options_are_checked(options, message):
    with pytest.raises(InvalidRequest, match=message):
        build(options, [scripted(Setup())])


def test_a_draft_model_is_asked_for():
    with pytest.raises(InvalidRequest, match="needs a draft model"):
        proposers.build("cascade", ProposerParts(1, 8, DraftRule.INDEPENDENT, draw, ()))

"""What every registered proposer must do. A new line in the registry is tested by itself, each of its flags too."""

import contextlib
import functools
import math
from dataclasses import replace
from itertools import product

import numpy as np
import pytest

from audit import checks
from audit.checks.base.interface import evaluate
from audit.evidence.records import ArmKind, ArmRecord, Evidence, Level
from audit.evidence.verdicts import Verdict
from engine import proposers, verify
from engine.core.errors import InvalidRequest
from engine.core.trees import require_valid
from engine.core.types import DraftRule, FinishReason, Protocol, QKind, Request, SamplingParams
from engine.models.scripted import ScriptedModel
from engine.proposers.interface import Context, ProposerParts
from engine.proposers.options import OF_CHAINS
from engine.record.effective import Effective
from engine.record.trace import decode, steps_of
from engine.sampling.draw import draw
from engine.sampling.rng import Randomness, stream_of
from engine.sampling.transforms import transform
from tests.audit.checks.simulator import record
from tests.engine.build import Setup, generate, make_loop, requests, target_script, traces
from tests.engine.enumeration import TOLERANCE, distance, emitted_law, enumerate_decisions, target_law
from tests.support.cases import every_case
from tests.support.proposer_cases import (
    GREEDY,
    KINDS,
    OPTIONS,
    PAIRS,
    REFUSED,
    REGISTERED,
    SAMPLED,
    SHAPED,
    built,
    made,
    outputs,
    ragged,
    sampling_for,
    setup_of,
)
from tests.support.tiers import daily, first_rejection, slow_unless

COMPARING = (Protocol.GREEDY, Protocol.GUMBEL)
SAMPLING_PAIRS = [pair for pair in PAIRS if pair[1] is not Protocol.GREEDY]


@pytest.mark.medium
@pytest.mark.parametrize(("kind", "protocol"), slow_unless(SAMPLING_PAIRS, first_rejection(SAMPLING_PAIRS)))
def test_the_law_is_the_target_s(kind, protocol):
    params = SamplingParams(temperature=0.9, repetition_penalty=1.3, frequency_penalty=0.3, max_new_tokens=3)
    with every_case() as case:
        for name, eos_ids in (("endless", ()), ("eos", (1,))):
            with case(name), pytest.MonkeyPatch.context() as patch:
                branches = enumerate_decisions(patch)
                setup = setup_of(kind, protocol=protocol, gamma=2, vocabulary=3, eos_ids=eos_ids)
                law = emitted_law(setup, params, branches)
                assert math.isclose(sum(law.values()), 1.0, abs_tol=TOLERANCE)
                assert distance(law, target_law(setup, params)) < TOLERANCE


@functools.cache
def plain_outputs(protocol, sampling, eos_ids):
    """What plain decoding answers to the ten ragged requests."""
    return outputs(generate(Setup(None, protocol, eos_ids=eos_ids), ragged(10, sampling)))


def require_replayable(generations):
    """Every decision follows from the record."""
    records = tuple(record(decode(each.trace)) for each in generations.values())
    arm = ArmRecord("candidate", ArmKind.CANDIDATE, Level.L4, Effective(), records)
    result = evaluate(checks.load("replay"), Evidence(arm), {})
    assert result.verdict is Verdict.CERTIFIED, result.summary


def require_drafts_of_use(kind, protocol):
    got = traces(generate(setup_of(kind, protocol=protocol, rows=4, gamma=4), requests(8, sampling_for(protocol))))
    assert sum(int(trace.n_drafted.sum()) for trace in got.values()) > 20
    assert sum(trace.n_accepted for trace in got.values()) > 5


def require_greedy_at_temperature_zero(kind):
    got = outputs(generate(setup_of(kind, rows=3), ragged(10, GREEDY)))
    assert got == plain_outputs(Protocol.GREEDY, GREEDY, ())


def require_requests_alone(kind, protocol):
    """No state leaks between requests."""
    wanted = ragged(8, sampling_for(protocol, SHAPED))
    setup = setup_of(kind, protocol=protocol, rows=2, gamma=4, eos_ids=(5,))
    alone = {request.id: generate(replace(setup, rows=1), [request])[request.id] for request in wanted}
    together, loop = generate(setup, wanted), make_loop(setup)
    again = [{each.request.id: each for each in loop.run(order)} for order in (wanted, wanted[::-1])]
    for got in (together, *again):
        for name, generation in got.items():
            ours, other = decode(generation.trace), decode(alone[name].trace)
            for column in ("token", "role", "node_token", "node_uniform", "examined_q", "uniform"):
                np.testing.assert_array_equal(getattr(ours, column), getattr(other, column), column)


def require_an_end_inside_a_draft(kind, protocol):
    """An end token inside a draft ends the request."""
    setup = setup_of(kind, protocol=protocol, rows=4, gamma=6, eos_ids=(2, 5))
    prompt = (1, 5, 3, 0, 2, 1, 5, 3)  # a copying proposer meets the end tokens in the prompt
    wanted = [Request(f"r{i}", (i % 8, *prompt), sampling_for(protocol), stream_of(f"r{i}")) for i in range(24)]
    ended = 0
    for generation in generate(setup, wanted).values():
        trace = decode(generation.trace)
        places = [i for i, token in enumerate(generation.tokens) if token in (2, 5)]
        assert places in ([], [len(generation.tokens) - 1])
        assert (generation.finish_reason is FinishReason.EOS) == bool(places)
        assert int(trace.examined_accepted.sum()) == trace.n_accepted
        ended += bool(places) and trace.n_drafted[-1] > trace.n_emitted[-1]
    assert ended > 0


def require_budget_and_facts(kind, protocol, budget):
    """A proposal keeps its budget and its declared facts."""
    sampling = sampling_for(protocol)
    proposer = made(kind, verify.load(protocol).facts.draft_rule)
    request = Request("r", (0, 1, 2, 0, 1, 2, 0, 1), sampling)
    context = Context(0, request, list(request.prompt), budget, Randomness(3, 4))
    proposer.start(context)
    (proposal,) = proposer.propose([context])
    count = len(proposal.tree)
    require_valid(proposal.tree)
    assert count <= budget
    if count == 0:
        return
    declared = proposer.facts.q_kind if sampling.temperature else min(proposer.facts.q_kind, QKind.ONE_HOT)
    assert proposal.q_kind == declared
    if proposal.q_kind is QKind.FULL:
        assert proposal.q.shape == (count, 8)
        np.testing.assert_allclose(proposal.q.sum(axis=1), 1.0, atol=1e-12)
        assert np.all(proposal.q[np.arange(count), list(proposal.tree.tokens)] > 0)
        assert proposal.uniforms.shape == (count,)


@pytest.mark.medium
@pytest.mark.parametrize(("kind", "protocol"), slow_unless(PAIRS, daily(PAIRS, ("draft_model",))))
def test_it_serves_as_every_proposer_must(kind, protocol):
    with every_case() as case:
        for name, sampled in (("sampled", SAMPLED), ("shaped", SHAPED)):
            sampling = sampling_for(protocol, sampled)
            for rows in (4, 1) if protocol in COMPARING else (4,):
                setup = setup_of(kind, protocol=protocol, rows=rows, gamma=4, eos_ids=(5,))
                got = generate(setup, ragged(10, sampling))
                if rows == 4:
                    with case(f"replay of the record, {name}"):
                        require_replayable(got)
                if protocol in COMPARING:
                    with case(f"tokens of plain decoding, {name}, {rows} rows"):
                        assert outputs(got) == plain_outputs(protocol, sampling, (5,))
        if protocol is Protocol.CHAIN:
            with case("greedy at temperature zero"):
                require_greedy_at_temperature_zero(kind)
        with case("drafts of which some are accepted"):
            require_drafts_of_use(kind, protocol)
        if made(kind, verify.load(protocol).facts.draft_rule).facts.state != "shared":
            with case("no state leaks between requests"):
                require_requests_alone(kind, protocol)
        with case("an end token inside a draft"):
            require_an_end_inside_a_draft(kind, protocol)
        for budget in (0, 1, 2, 5):
            with case(f"a budget of {budget}"):
                require_budget_and_facts(kind, protocol, budget)


def require_a_fresh_start(kind, prompt):
    rule = verify.load(Protocol.GUMBEL).facts.draft_rule
    fresh, used = made(kind, rule), made(kind, rule)
    first = Request("a", (4, 5, 6, 7, 4, 5, 6, 7, 4), SAMPLED, stream_of("a"))
    second = Request("b", prompt, SAMPLED, stream_of("b"))
    for proposer, seen in ((used, (first, second)), (fresh, (second,))):
        for request in seen:  # without `finish`: an abandoned run calls none
            context = Context(0, request, list(request.prompt), 4, Randomness(3, request.stream))
            proposer.start(context)
            (proposal,) = proposer.propose([context])
        if proposer is used:
            kept = proposal
    assert kept.tree == proposal.tree
    np.testing.assert_array_equal(kept.q, proposal.q)


def test_start_forgets_what_the_row_held():
    with every_case() as case:
        for kind, prompt in product(KINDS, ((1,), (1, 2, 1))):
            with case(f"{kind} after {prompt}"):
                require_a_fresh_start(kind, prompt)


def test_unknown_options_are_refused_and_the_known_ones_are_among_the_facts():
    rule = verify.load(Protocol.CHAIN).facts.draft_rule
    with every_case() as case:
        for kind in REGISTERED:
            with case(kind):
                with pytest.raises(InvalidRequest, match="has no option 'no_such_option'; it has: ") as refused:
                    proposers.build(kind, ProposerParts(1, 8, rule, draw, (), None, {"no_such_option": 1}))
                known = str(refused.value).split("it has: ")[1].split(", ")
                assert set(known) - {"none", *OF_CHAINS} <= set(made(kind, DraftRule.INDEPENDENT).facts.options)


@pytest.mark.parametrize("case", sorted(REFUSED))
def test_a_flag_that_scripted_models_cannot_serve_says_what_it_needs(case):
    with pytest.raises(InvalidRequest, match="needs"):
        built(*REFUSED[case], DraftRule.INDEPENDENT)


def builds_itself(kind):
    """Whether the proposer is built from its options alone."""
    with contextlib.suppress(InvalidRequest):
        parts = ProposerParts(1, 1, DraftRule.GREEDY, draw, (), options=OPTIONS.get(kind, {}))
        assert proposers.build(kind, parts).facts.name == kind
        return True
    return False


def test_it_is_built_from_its_options_alone_or_says_in_a_line_what_it_needs():
    """As `audit validate` builds it, without any model; another exception would be a traceback there."""
    with every_case() as case:
        for kind in REGISTERED:
            with case(kind):
                if not builds_itself(kind):
                    parts = ProposerParts(1, 1, DraftRule.GREEDY, draw, (), options=OPTIONS.get(kind, {}))
                    with pytest.raises(InvalidRequest, match=f"^proposer {kind} needs "):
                        proposers.build(kind, parts)


@pytest.mark.parametrize("value", [0, -1, 1.5, True, "2"])
def test_options_are_whole_numbers_of_at_least_one(value):
    parts = ProposerParts(1, 8, verify.load(Protocol.CHAIN).facts.draft_rule, draw, (), None, {"min_ngram": value})
    with pytest.raises(InvalidRequest, match="min_ngram must be a whole number"):
        proposers.build("ngram", parts)


def test_an_ngram_range_that_holds_nothing_is_refused():
    parts = ProposerParts(1, 8, verify.load(Protocol.CHAIN).facts.draft_rule, draw, (), None, {"min_ngram": 5})
    with pytest.raises(InvalidRequest, match="min_ngram 5 is above max_ngram 4"):
        proposers.build("ngram", parts)


def test_a_draft_model_is_asked_for():
    parts = ProposerParts(1, 8, verify.load(Protocol.CHAIN).facts.draft_rule, draw, ())
    with pytest.raises(InvalidRequest, match="needs a draft model"):
        proposers.build("draft_model", parts)


@pytest.mark.medium
@pytest.mark.parametrize("protocol", [Protocol.GUMBEL, Protocol.CHAIN])
def test_a_draft_model_reads_the_prefix_it_drafts_after(protocol):
    """After rejections, cuts and reuse of rows, q is what the draft says about the true prefix."""
    setup = Setup(protocol=protocol, rows=3, gamma=5, likeness=0.5)
    loop = make_loop(setup)
    script = loop._proposer._model.script
    checked = 0
    for generation in loop.run(ragged(12, SHAPED)):
        trace, prompt = decode(generation.trace), generation.request.prompt
        history = [*prompt, *trace.tokens]
        for step in steps_of(trace):
            drafted = trace.node_token[step.nodes].tolist()
            for x in range(step.examined.start, step.examined.stop):
                prefix = [*history[: step.position], *drafted[: trace.examined_node[x]]]
                row = transform(script(tuple(prefix)), prefix, len(prompt), generation.request.sampling, ())
                np.testing.assert_array_equal(trace.q_rows[x], row.p)
                checked += 1
    assert checked > 100


@pytest.mark.parametrize("context", [4, 5, 9, 17])
@pytest.mark.parametrize("protocol", [Protocol.GUMBEL, Protocol.CHAIN])
def test_a_draft_with_a_smaller_context_drafts_while_it_fits(context, protocol):
    """Prompts shorter than, equal to and longer than the draft's context."""
    facts = verify.load(protocol).facts
    setup = Setup(protocol=protocol, rows=3, gamma=4)
    wanted = [
        Request(f"r{n}", tuple(i % 8 for i in range(n)), SAMPLED, stream_of(f"r{n}")) for n in (1, 3, 4, 5, 9, 12)
    ]
    draft = ScriptedModel(target_script(setup), 8, context=context)
    loop = make_loop(setup)
    loop._proposer = proposers.build("draft_model", ProposerParts(3, 512, facts.draft_rule, draw, (), draft))
    for generation in loop.run(wanted):
        trace = decode(generation.trace)
        assert len(generation.tokens) == SAMPLED.max_new_tokens
        assert np.all((trace.position + trace.n_drafted)[trace.n_drafted > 0] <= context)
        if len(generation.request.prompt) < context:
            assert trace.n_drafted[0] > 0
            assert trace.n_accepted > 0  # the draft is the target itself

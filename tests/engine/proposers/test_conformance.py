"""What every registered proposer must do. A new line in the registry is tested by itself, each of its flags too."""

import contextlib
import math
from dataclasses import replace

import numpy as np
import pytest

from audit import checks
from audit.checks.interface import evaluate
from audit.evidence.records import ArmKind, ArmRecord, Evidence, Level
from audit.evidence.verdicts import Verdict
from engine import proposers, verify
from engine.core.errors import InvalidRequest
from engine.core.trees import require_valid
from engine.core.types import DraftRule, FinishReason, Protocol, QKind, Request, SamplingParams
from engine.models.scripted import ScriptedModel
from engine.proposers.build import ProposerParts, TargetSide
from engine.proposers.interface import Context
from engine.record.effective import Effective
from engine.record.trace import decode, steps_of
from engine.sampling.draw import draw
from engine.sampling.rng import Randomness, stream_of
from engine.sampling.transforms import transform
from tests.audit.checks.simulator import record
from tests.engine.build import Setup, generate, make_loop, requests, target_script, traces
from tests.engine.enumeration import TOLERANCE, distance, emitted_law, enumerate_decisions, target_law
from tests.engine.heads import tiny

HEADS = {case[0] for case in tiny.HEADS.values()}
"""Kinds that draft with the target's hidden states, which scripted models lack; tests/engine/heads tests them."""
REGISTERED = sorted(set(proposers.REGISTRY) - HEADS)
OPTIONS = {"ngram": {"min_ngram": 1}, "suffix": {"max_spec_factor": 4.0}, "layer_skip": {"skip_ffn": "1"}}
"""Settings under which a proposer drafts often on eight tokens; others run with their defaults."""
GREEDY = SamplingParams(max_new_tokens=30)
SAMPLED = SamplingParams(temperature=0.8, max_new_tokens=30, seed=3)
SHAPED = replace(
    SAMPLED, top_k=6, top_p=0.9, repetition_penalty=1.2, bad_words=((3,), (1, 2)), min_tokens=4, stop_token_ids=(6,)
)


def built(kind, options, rule, rows=1):
    script = target_script(Setup())
    draft = ScriptedModel(script, 8, partial=script)
    target = TargetSide(draft, draft.new_cache(rows, 64))
    return proposers.build(kind, ProposerParts(rows, 64, rule, draw, (), draft, options, (draft,), target))


def cases_of(kind):
    """A proposer as it is, and with each of its flags turned over: a flag may change how drafts are drawn."""
    given = OPTIONS.get(kind, {})
    yield kind, (kind, given)
    for name, value in built(kind, given, DraftRule.INDEPENDENT).facts.options.items():
        if isinstance(value, bool):
            yield f"{kind}-{name}", (kind, given | {name: not value})


def served(kind, options):
    with contextlib.suppress(InvalidRequest):
        return bool(built(kind, options, DraftRule.INDEPENDENT))
    return False


WORDED = {"specinfer-without_replacement": ("specinfer", {"siblings": "without_replacement"})}
"""Words that change how drafts are drawn."""
NAMED = {name: case for kind in REGISTERED for name, case in cases_of(kind)} | WORDED
CASES = {name: case for name, case in NAMED.items() if served(*case)}
"""By name: the proposer and its options."""
REFUSED = {name: case for name, case in NAMED.items() if name not in CASES}
"""Cases that need more than a scripted model; the proposer's own tests have to cover them."""
KINDS = sorted(CASES)


def setup_of(case, **changes):
    kind, options = CASES[case]
    return Setup(kind, options=options, **changes)


def made(case, rule, rows=1):
    return built(*CASES[case], rule, rows)


def protocols(kind):
    """The rules that understand the proposer's shape and q."""
    for protocol in Protocol:
        facts = verify.load(protocol).facts
        proposer = made(kind, facts.draft_rule).facts
        known = proposer.q_kind is not QKind.NONE or protocol is not Protocol.CHAIN
        if facts.lossless and known and (facts.trees or proposer.shape == "chain"):
            yield protocol


PAIRS = [(kind, protocol) for kind in KINDS for protocol in protocols(kind)]
COMPARING = (Protocol.GREEDY, Protocol.GUMBEL)
SAMPLING_PAIRS = [pair for pair in PAIRS if pair[1] is not Protocol.GREEDY]


def sampling_for(protocol, sampled=SAMPLED):
    return replace(sampled, temperature=0.0) if protocol is Protocol.GREEDY else sampled


def outputs(generations):
    return {name: (each.tokens, each.finish_reason) for name, each in generations.items()}


def ragged(count, sampling):
    return [
        replace(each, sampling=replace(sampling, max_new_tokens=1 + 7 * i % 30))
        for i, each in enumerate(requests(count, sampling))
    ]


@pytest.mark.parametrize(("kind", "protocol"), SAMPLING_PAIRS)
@pytest.mark.parametrize("eos_ids", [(), (1,)], ids=["endless", "eos"])
def test_the_law_is_the_target_s(kind, protocol, eos_ids, monkeypatch):
    branches = enumerate_decisions(monkeypatch)
    setup = setup_of(kind, protocol=protocol, gamma=2, vocabulary=3, eos_ids=eos_ids)
    params = SamplingParams(temperature=0.9, repetition_penalty=1.3, frequency_penalty=0.3, max_new_tokens=3)
    law = emitted_law(setup, params, branches)
    assert math.isclose(sum(law.values()), 1.0, abs_tol=TOLERANCE)
    assert distance(law, target_law(setup, params)) < TOLERANCE


@pytest.mark.parametrize("rows", [1, 4])
@pytest.mark.parametrize(("kind", "protocol"), [pair for pair in PAIRS if pair[1] in COMPARING])
@pytest.mark.parametrize("sampled", [SAMPLED, SHAPED], ids=["sampled", "shaped"])
def test_comparing_rules_give_the_tokens_of_plain_decoding(kind, protocol, rows, sampled):
    wanted = ragged(10, sampling_for(protocol, sampled))
    got = generate(setup_of(kind, protocol=protocol, rows=rows, gamma=4, eos_ids=(5,)), wanted)
    assert outputs(got) == outputs(generate(Setup(None, protocol, eos_ids=(5,)), wanted))


@pytest.mark.parametrize("kind", KINDS)
def test_the_chain_rule_is_greedy_at_temperature_zero(kind):
    if (kind, Protocol.CHAIN) not in PAIRS:
        pytest.skip("the chain rule does not take this proposer")
    wanted = ragged(10, GREEDY)
    assert outputs(generate(setup_of(kind, rows=3), wanted)) == outputs(generate(Setup(None, Protocol.GREEDY), wanted))


@pytest.mark.parametrize(("kind", "protocol"), PAIRS)
def test_it_drafts_and_some_of_it_is_accepted(kind, protocol):
    got = traces(generate(setup_of(kind, protocol=protocol, rows=4, gamma=4), requests(8, sampling_for(protocol))))
    assert sum(int(trace.n_drafted.sum()) for trace in got.values()) > 20
    assert sum(trace.n_accepted for trace in got.values()) > 5


@pytest.mark.parametrize(("kind", "protocol"), PAIRS)
def test_no_state_leaks_between_requests(kind, protocol):
    wanted = ragged(8, sampling_for(protocol, SHAPED))
    setup = setup_of(kind, protocol=protocol, rows=2, gamma=4, eos_ids=(5,))
    if made(kind, verify.load(protocol).facts.draft_rule).facts.state == "shared":
        pytest.skip("it declares that it learns from other requests")
    alone = {request.id: generate(replace(setup, rows=1), [request])[request.id] for request in wanted}
    together, loop = generate(setup, wanted), make_loop(setup)
    again = [{each.request.id: each for each in loop.run(order)} for order in (wanted, wanted[::-1])]
    for got in (together, *again):
        for name, generation in got.items():
            ours, other = decode(generation.trace), decode(alone[name].trace)
            for column in ("token", "role", "node_token", "node_uniform", "examined_q", "uniform"):
                np.testing.assert_array_equal(getattr(ours, column), getattr(other, column), column)


@pytest.mark.parametrize("budget", [0, 1, 2, 5])
@pytest.mark.parametrize(("kind", "protocol"), PAIRS)
def test_a_proposal_keeps_its_budget_and_its_declared_facts(kind, protocol, budget):
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


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("prompt", [(1,), (1, 2, 1)])
def test_start_forgets_what_the_row_held(kind, prompt):
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


@pytest.mark.parametrize(("kind", "protocol"), PAIRS)
def test_an_end_token_inside_a_draft_ends_the_request(kind, protocol):
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


@pytest.mark.parametrize(("kind", "protocol"), PAIRS)
@pytest.mark.parametrize("sampled", [SAMPLED, SHAPED], ids=["sampled", "shaped"])
def test_every_decision_can_be_replayed_from_the_record(kind, protocol, sampled):
    setup = setup_of(kind, protocol=protocol, rows=3, gamma=4, eos_ids=(5,))
    got = generate(setup, ragged(10, sampling_for(protocol, sampled)))
    arm = ArmRecord(
        "candidate",
        ArmKind.CANDIDATE,
        Level.L4,
        Effective(),
        tuple(record(decode(each.trace)) for each in got.values()),
    )
    result = evaluate(checks.load("replay"), Evidence(arm), {})
    assert result.verdict is Verdict.CERTIFIED, result.summary


@pytest.mark.parametrize("kind", REGISTERED)
def test_unknown_options_are_refused_and_the_known_ones_are_among_the_facts(kind):
    parts = ProposerParts(1, 8, verify.load(Protocol.CHAIN).facts.draft_rule, draw, (), None, {"no_such_option": 1})
    with pytest.raises(InvalidRequest, match="has no option 'no_such_option'; it has: ") as refused:
        proposers.build(kind, parts)
    known = str(refused.value).split("it has: ")[1].split(", ")
    assert set(known) - {"none"} <= set(made(kind, DraftRule.INDEPENDENT).facts.options)


@pytest.mark.parametrize("case", sorted(REFUSED))
def test_a_flag_that_scripted_models_cannot_serve_says_what_it_needs(case):
    with pytest.raises(InvalidRequest, match="needs"):
        built(*REFUSED[case], DraftRule.INDEPENDENT)


@pytest.mark.parametrize("kind", REGISTERED)
def test_it_is_built_from_its_options_alone_or_says_in_a_line_what_it_needs(kind):
    """As `audit validate` builds it, without any model; another exception would be a traceback there."""
    parts = ProposerParts(1, 1, DraftRule.GREEDY, draw, (), options=OPTIONS.get(kind, {}))
    with contextlib.suppress(InvalidRequest):
        assert proposers.build(kind, parts).facts.name == kind
        return
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

"""The checks against the engine itself: its verifiers on trees, penalties, masks and stops, and its loop."""

from dataclasses import replace

import numpy as np
import pytest

from audit import checks
from audit.checks.base.interface import evaluate
from audit.checks.replay.check import CHECK
from audit.evidence.records import ArmKind, ArmRecord, Evidence, Level
from audit.evidence.verdicts import Verdict
from engine.core.trees import path_tokens
from engine.core.types import Proposal, Protocol, QKind, RecordLevel, Role, SamplingParams, StepRecord, Tree
from engine.record.effective import Effective
from engine.record.recorder import Recorder
from engine.record.trace import TraceHeader, decode
from engine.sampling.rng import Randomness
from engine.sampling.stopping import StopRule
from engine.sampling.transforms import TargetRows
from engine.verify import load
from tests.audit.checks.simulator import record, world
from tests.engine import build
from tests.support.tiers import fast_first

EOS = (4,)


def random_tree(rng, vocabulary, branching):
    """Distinct siblings, as proposers offer them."""
    tokens, parents = [], []
    for node in range(int(rng.integers(0, 7))):
        parent = int(rng.integers(-1, node)) if branching and node else node - 1
        token = int(rng.integers(vocabulary))
        if (parent, token) not in set(zip(parents, tokens, strict=True)):
            tokens.append(token)
            parents.append(parent if parent < len(tokens) - 1 else len(tokens) - 2)
    return Tree(tuple(tokens), tuple(parents))


def generate(name, protocol, sampling, branching, seed):
    target, rng = world(2, sharpness=1.0).target, np.random.default_rng(seed)
    verifier, randomness = load(protocol), Randomness(sampling.seed, seed)
    history, prompt = [1, 2], (1, 2)
    header = TraceHeader(name, RecordLevel.FULL, protocol, True, "random", 16, seed, sampling, EOS, None, prompt)
    recorder, stops, step = Recorder(header), StopRule(sampling, EOS, str), 0
    while True:
        tree = random_tree(rng, 16, branching)
        proposal = Proposal(tree, QKind.ONE_HOT if len(tree) else QKind.NONE)
        path = [(*history, *path_tokens(tree, node))[-1] for node in range(-1, len(tree))]
        rows = TargetRows(target[path], tree, history, 2, sampling, EOS)
        cut = stops.cut(history[2:], verifier.verify(proposal, rows, randomness))
        decided = [each.row for each in cut.verdict.emitted]
        scores = np.stack([rows[row].scores for row in decided])
        recorder.step(StepRecord(step, len(history), proposal, cut.verdict, rows.logits[decided], scores))
        history.extend(each.token for each in cut.verdict.emitted)
        step += 1
        if cut.reason is not None:
            return decode(recorder.finish(cut.reason))


SAMPLING = {
    "plain": SamplingParams(temperature=0.9, max_new_tokens=30, seed=5),
    "penalties": SamplingParams(
        temperature=0.9,
        max_new_tokens=30,
        seed=5,
        repetition_penalty=1.3,
        frequency_penalty=0.2,
        min_tokens=5,
        bad_words=((3,), (7, 8)),
        logit_bias=((2, 0.5),),
        stop_token_ids=(9,),
    ),
    "truncation": SamplingParams(temperature=0.7, max_new_tokens=30, seed=5, top_k=7, top_p=0.8, min_p=0.02),
    "greedy": SamplingParams(max_new_tokens=30, seed=5, repetition_penalty=1.2, ignore_eos=True),
}


def arm_of(protocol, sampling, branching):
    traces = [generate(f"r{seed}", protocol, sampling, branching, seed) for seed in range(12)]
    return ArmRecord("candidate", ArmKind.CANDIDATE, Level.L4, Effective(), tuple(record(trace) for trace in traces))


@pytest.mark.medium
@pytest.mark.parametrize("sampling", SAMPLING.values(), ids=SAMPLING.keys())
@pytest.mark.parametrize(
    ("protocol", "branching"),
    [(Protocol.CHAIN, False), (Protocol.GUMBEL, False), (Protocol.GUMBEL, True), (Protocol.GREEDY, True)],
)
def test_what_the_engine_decides_is_certified(protocol, branching, sampling):
    candidate = arm_of(protocol, sampling, branching)
    result = evaluate(CHECK, Evidence(candidate), {})
    assert result.verdict is Verdict.CERTIFIED, result.findings


def test_the_trees_really_branch_and_are_followed():
    candidate = arm_of(Protocol.GUMBEL, SAMPLING["plain"], True)
    traces = [each.trace for each in candidate.requests]
    assert sum(int(np.sum(trace.role == Role.ACCEPTED)) for trace in traces) > 5
    # at least one accepted node that is not its parent's first child, so that rows are not simply 0, 1, 2
    assert any(np.any(trace.row > 0) and np.any(np.diff(trace.node_parent) < 1) for trace in traces)


def test_a_drafted_token_that_should_have_been_accepted_is_found():
    candidate = arm_of(Protocol.GUMBEL, SAMPLING["plain"], True)
    for i, request in enumerate(candidate.requests):
        wrong = np.flatnonzero(request.trace.role == Role.ACCEPTED)
        if len(wrong):
            role = request.trace.role.copy()
            role[wrong[0]] = Role.RECOVERED
            broken = replace(request, trace=replace(request.trace, role=role))
            requests = (*candidate.requests[:i], broken, *candidate.requests[i + 1 :])
            assert evaluate(CHECK, Evidence(replace(candidate, requests=requests)), {}).verdict is Verdict.FAULT
            return
    pytest.fail("no accepted token in the arm")


LOOPS = {
    "draft model, chain": build.Setup("draft_model", Protocol.CHAIN),
    "draft model, gumbel": build.Setup("draft_model", Protocol.GUMBEL),
    "draft model, small batch": build.Setup("draft_model", Protocol.CHAIN, rows=3, gamma=5),
    "ngram, chain": build.Setup("ngram", Protocol.CHAIN),
    "ngram, gumbel": build.Setup("ngram", Protocol.GUMBEL),
    "plain": build.Setup(None, Protocol.GUMBEL),
}


def loop_arm(setup, sampling, kind=ArmKind.CANDIDATE):
    generations = build.generate(setup, build.requests(16, sampling))
    return ArmRecord(
        kind.value, kind, Level.L4, Effective(), tuple(record(decode(each.trace)) for each in generations.values())
    )


@pytest.mark.medium
@pytest.mark.parametrize("setup", fast_first(LOOPS.values()), ids=LOOPS.keys())
def test_the_decoding_loop_passes_every_check_that_applies(setup):
    sampling = SamplingParams(temperature=0.8, top_p=0.95, max_new_tokens=48, seed=11, repetition_penalty=1.1)
    candidate = loop_arm(setup, sampling)
    baseline = loop_arm(build.Setup(None, Protocol.GUMBEL), sampling, ArmKind.BASELINE)
    results = {
        name: evaluate(checks.load(name), Evidence(candidate, baseline, baseline), {}) for name in checks.names()
    }
    assert results["replay"].verdict is Verdict.CERTIFIED, results["replay"].findings
    assert results["greedy_equality"].verdict is Verdict.NOT_RUN
    coupled = Verdict.CERTIFIED if setup.protocol is Protocol.GUMBEL else Verdict.NOT_RUN
    assert results["coupled_equality"].verdict is coupled
    assert results["law"].verdict is not Verdict.FAULT, results["law"].findings
    assert results["acceptance_theory"].verdict is not Verdict.FAULT, results["acceptance_theory"].summary


@pytest.mark.slow
def test_the_decoding_loop_is_greedily_equal():
    sampling = SamplingParams(max_new_tokens=48, repetition_penalty=1.1)
    baseline = loop_arm(build.Setup(None, Protocol.GREEDY), sampling, ArmKind.BASELINE)
    for protocol in (each for each in Protocol if load(each).facts.lossless):
        candidate = loop_arm(build.Setup("draft_model", protocol), sampling)
        result = evaluate(checks.load("greedy_equality"), Evidence(candidate, baseline), {})
        assert result.verdict is Verdict.CERTIFIED, result.summary
        assert evaluate(CHECK, Evidence(candidate), {}).verdict is Verdict.CERTIFIED

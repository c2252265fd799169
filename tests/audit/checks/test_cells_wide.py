"""A vocabulary of 128 000 on cells: law runs, stays calibrated, finds a leak of a tenth, and says what it loses."""

import numpy as np
import pytest

from audit.checks.base.interface import evaluate
from audit.checks.law.check import CHECK
from audit.evidence.records import ArmKind, ArmRecord, Evidence, Level
from audit.evidence.verdicts import Verdict
from engine.core.types import (
    Emitted,
    Examined,
    FinishReason,
    Proposal,
    Protocol,
    QKind,
    RecordLevel,
    Role,
    SamplingParams,
    StepRecord,
    Tree,
)
from engine.core.types import StepOutcome as Decision
from engine.record.effective import Effective
from engine.record.recorder import Recorder
from engine.record.trace import TraceHeader, decode
from engine.sampling.rng import stream_of
from engine.sampling.transforms import inverse_cdf, softmax

from .simulator import record

VOCABULARY, CONTEXTS, LENGTH, REQUESTS = 128_000, 12, 250, 8
LEAK = 0.1


@pytest.fixture(scope="module")
def contexts():
    """Logits of target and draft: a few likely tokens over a long tail."""
    rng = np.random.default_rng(11)
    target = rng.normal(0.0, 1.0, (CONTEXTS, VOCABULARY))
    for row in target:
        row[rng.choice(VOCABULARY, 60, replace=False)] += rng.normal(11.0, 1.5, 60)
    draft = target + np.where(target > 6.0, rng.normal(0.0, 1.0, target.shape), 0.0)
    return target.astype(np.float32), draft.astype(np.float32)


def trace_of(contexts, name, leak):
    """One drafted token a step; with probability `leak` a refused token is emitted nevertheless."""
    rng = np.random.default_rng(stream_of(name) % 2**32)
    sampling = SamplingParams(temperature=1.0, max_new_tokens=LENGTH, seed=3)
    header = TraceHeader(
        request=name,
        level=RecordLevel.TOPK,
        protocol=Protocol.CHAIN,
        lossless=True,
        proposer="simulated",
        vocabulary=VOCABULARY,
        stream=stream_of(name),
        sampling=sampling,
        eos_ids=(),
        finish_reason=FinishReason.LENGTH,
        prompt=(1,),
    )
    recorder = Recorder(header)
    laws = [[softmax(each.astype(np.float64)) for each in pair] for pair in zip(*contexts, strict=True)]
    for at in range(LENGTH):
        context = int(rng.integers(CONTEXTS))
        p, q = laws[context]
        numbers = rng.random(4)
        token = inverse_cdf(q, numbers[0])
        accepted = bool(numbers[1] * q[token] < p[token] or numbers[3] < leak)
        left = np.maximum(p - q, 0.0)
        new = token if accepted else inverse_cdf(left, numbers[2])
        role, u = (Role.ACCEPTED, np.nan) if accepted else (Role.RECOVERED, numbers[2])
        emitted = Emitted(new, role, 0, float(p[new]), u)
        examined = Examined(0, float(p[token]), float(q[token]), numbers[1], accepted)
        proposal = Proposal(Tree.chain((token,)), QKind.FULL, q[None], numbers[:1])
        verdict = Decision((emitted,), (examined,), np.nan if accepted else float(left.sum()))
        recorder.step(StepRecord(at, 1 + at, proposal, verdict, contexts[0][[context]], None))
    return decode(recorder.finish(FinishReason.LENGTH))


def judged(contexts, tag, leak):
    records = tuple(record(trace_of(contexts, f"{tag}-{i}", leak)) for i in range(REQUESTS))
    return evaluate(CHECK, Evidence(ArmRecord("candidate", ArmKind.CANDIDATE, Level.L3, Effective(), records)), {})


@pytest.mark.slow
def test_a_leak_is_found_and_a_clean_arm_is_not_blamed(contexts):
    clean, broken = judged(contexts, "clean", 0.0), judged(contexts, "broken", LEAK)
    assert clean.verdict is not Verdict.FAULT, clean.summary
    assert broken.verdict is Verdict.FAULT, broken.summary
    for each in (clean, broken):
        assert each.n == REQUESTS * LENGTH
        assert 0.05 < each.details["tail_mass"] < 0.6
        assert 0.3 < each.details["distance_seen"] < 1.0
        assert "of the distance between p and q" in each.summary
    assert broken.effect > 2 * abs(clean.effect)


@pytest.mark.slow
def test_numbers_on_cells_of_a_wide_vocabulary_are_uniform(contexts):
    made = [trace_of(contexts, f"pit-{i}", 0.0) for i in range(4)]
    rng = np.random.default_rng(1)
    u = np.concatenate([each.p_below + rng.random(len(each.token)) * each.row_p for each in made])
    assert abs(u.mean() - 0.5) < 4 * np.sqrt(1 / 12 / len(u))
    assert max(u) <= 1 + 1e-12

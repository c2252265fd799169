"""Another engine's p has its own precision: accounting leaves it to honoured, and nothing else."""

from dataclasses import replace

import numpy as np
import pytest

from audit.checks.accounting.check import CHECK
from audit.checks.base.interface import evaluate
from audit.evidence.records import Level
from audit.evidence.verdicts import Verdict
from engine.core.types import FinishReason, RecordLevel, Request
from engine.record.foreign.requests import ForeignRecord, header_of, observed_trace
from engine.record.foreign.steps import ForeignStep
from engine.record.trace import decode
from engine.sampling.transforms import transform
from tests.audit.checks.external_arms import SAMPLING, WHAT, evidence, record

WARM = replace(SAMPLING, temperature=0.7, max_new_tokens=2)
EXTERNAL = {"requested": {}, "effective": {}, "gamma": None}


def request_of(level, sampling=WARM, token=3, off=1e-7):
    """Two plain tokens whose p is `off` by a share."""
    rows = np.linspace(-2, 3, 64, dtype=np.float32).reshape(2, 32)
    asked = Request("candidate/case-0#0", (1, 2), sampling, 0)
    steps, history = [], [1, 2]
    for row in rows:
        p = transform(row, history, 2, sampling, ()).p[token]
        steps.append(ForeignStep((), (token,), logits=row[None], p=(float(p) * (1 - off),)))
        history.append(token)
    header = header_of(asked, replace(WHAT, level=level), FinishReason.LENGTH, {})
    trace = decode(observed_trace(header, ForeignRecord(tuple(steps))))
    return record(0, trace, (token, token), FinishReason.LENGTH)


def judged(request, effective):
    return evaluate(CHECK, evidence([request], effective=effective, level=Level.L3), {})


@pytest.mark.parametrize("level", [RecordLevel.FULL, RecordLevel.TOPK])
def test_rounding_of_another_engine_is_no_contradiction(level):
    request = request_of(level, token=31)
    assert judged(request, EXTERNAL).verdict is Verdict.CERTIFIED
    ours = judged(request, {"gamma": None})
    assert ours.verdict is Verdict.FAULT
    assert "p" in ours.findings[0].message


def test_what_its_rows_exclude_is_one():
    request = request_of(RecordLevel.FULL, replace(WARM, top_k=2), token=3, off=-1.0)
    trace = replace(request.trace, p=np.array([0.1, 0.1]))
    found = judged(replace(request, trace=trace), EXTERNAL)
    assert found.verdict is Verdict.FAULT
    assert "outside the support" in found.summary


@pytest.mark.parametrize("level", [RecordLevel.FULL, RecordLevel.TOPK])
def test_another_engine_may_tell_no_p(level):
    request = request_of(level, token=31)
    silent = replace(request, trace=replace(request.trace, p=np.full(2, np.nan)))
    assert judged(silent, EXTERNAL).verdict is Verdict.CERTIFIED
    assert "p is nan" in judged(silent, {"gamma": None}).findings[0].message
    wrong = replace(request, trace=replace(request.trace, p=np.full(2, 1.5)))
    assert judged(wrong, EXTERNAL).verdict is Verdict.FAULT

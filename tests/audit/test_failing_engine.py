"""An engine that does not answer everything: nothing is lost, the failure is judged, evidence is lowered."""

import json
from dataclasses import replace

import pytest

from audit.api.running import Quiet
from audit.evidence.records import Level
from audit.evidence.verdicts import Verdict
from audit.runs.prepare import prepare
from audit.runs.runner import run
from audit.store import Store
from audit.suite.loader import load_suite
from engine import backends
from engine.backends.catalogue import BackendKind, SourceKind
from engine.backends.native import scripted
from engine.core.registry import BACKENDS
from engine.core.types import FinishReason, Generation
from engine.record.foreign.requests import failed_trace
from engine.record.trace import decode, encode

SUITE = """
version: 1
name: failing
backend: failing
seed: 5
models: {target: 'scripted:1', draft: 'scripted:2'}
workloads: [{name: words, prompts: prompts.jsonl}]
sampling: {max_new_tokens: 12}
coverage: {directed: off}
arms:
  - name: greedy
    proposer: {kind: draft_model, model: draft, gamma: 3}
    verifier: greedy
    checks: [liveness, reconciliation, greedy_equality, replay, anchor]
"""


class Failing:
    """The scripted engine, which drops a request and distrusts another's record where it speculates."""

    def __init__(self, engine):
        self.engine = engine

    def __getattr__(self, name):
        return getattr(self.engine, name)

    def generate(self, requests):
        for made in self.engine.generate(requests):
            trace = decode(made.trace)
            if trace.header.proposer != "draft_model":
                yield made
            elif made.request.id.endswith("w1#0"):
                header = replace(trace.header, facts={"error": {"kind": "engine_died", "message": "it is dead"}})
                yield Generation(made.request, (), FinishReason.ERROR, failed_trace(header))
            elif made.request.id.endswith("w2#0"):
                account = {"sources": ["hook", "outputs"], "mismatches": ["the hook saw 3 tokens, outputs have 4"]}
                header = replace(trace.header, facts={"reconciliation": account, "level": 1, "why": "mismatch"})
                yield replace(made, trace=encode(replace(trace, header=header)))
            else:
                yield made


class Backend:
    def __init__(self, backend):
        self.backend = backend

    def __getattr__(self, name):
        return getattr(self.backend, name)

    def arm(self, plan):
        return Failing(self.backend.arm(plan))


def open_models(models):
    return Backend(scripted.open_models(models))


KIND = BackendKind(open_models, backends.declared("scripted"), (SourceKind.SCRIPTED,), ours=True)


@pytest.fixture
def ended(tmp_path, monkeypatch):
    monkeypatch.setitem(BACKENDS, "failing", f"{__name__}:KIND")
    (tmp_path / "suite.yaml").write_text(SUITE)
    rows = [{"id": f"w{i}", "prompt": "abc" * (i + 1)} for i in range(4)]
    (tmp_path / "prompts.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    with Store.open(f"sqlite:///{tmp_path / 'audit.db'}", create=True) as store:
        outcome = run(prepare(load_suite(tmp_path / "suite.yaml")), store, Quiet())
        yield store, outcome


@pytest.mark.medium
def test_the_run_goes_on_and_the_lost_request_is_a_fault(ended):
    store, outcome = ended
    found = {each.check: each for each in store.checks(outcome.run)}
    assert found["liveness"].verdict is Verdict.FAULT
    assert found["liveness"].findings[0].message == "engine_died: it is dead"
    assert outcome.exit_code == 1


@pytest.mark.medium
def test_the_arm_holds_what_was_answered_and_what_was_not_apart(ended):
    store, outcome = ended
    arm = store.load_arm(outcome.run, "greedy")
    assert [each.case_id for each in arm.requests] == ["words/w0", "words/w2", "words/w3"]
    assert [each.case_id for each in arm.failed] == ["words/w1"]
    assert arm.failed[0].trace.header.facts["error"]["kind"] == "engine_died"


@pytest.mark.medium
def test_a_mismatch_lowers_the_arms_evidence(ended):
    store, outcome = ended
    found = {each.check: each for each in store.checks(outcome.run)}
    assert store.load_arm(outcome.run, "greedy").level is Level.L1
    assert found["reconciliation"].verdict is Verdict.INCONCLUSIVE
    assert found["replay"].verdict is Verdict.NOT_RUN
    assert found["replay"].summary == "needs evidence L3, the arm has L1"
    assert found["replay"].level is Level.L1


@pytest.mark.medium
def test_baseline_and_anchor_are_whole(ended):
    store, outcome = ended
    assert len(store.load_arm(outcome.run, "baseline/greedy").requests) == 4
    assert len(store.load_arm(outcome.run, "greedy/anchor").requests) == 3

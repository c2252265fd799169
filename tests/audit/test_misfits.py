"""A record whose columns do not fit together is a fault of its arm and not the end of the run; `audit db check` names a
stored one.
"""

import json
from dataclasses import replace
from functools import cache

import numpy as np
import pytest

from audit.evidence.verdicts import Verdict
from audit.runs import generate as generate_requests
from audit.store import Store
from audit.store.writing import contents, request_writer
from engine.core.types import RecordLevel, SamplingParams
from engine.record import trace as traces
from engine.record.columns import TABLE
from engine.record.envelope import opened
from engine.record.recorder import Recorder
from engine.record.trace import decode, encode
from tests.audit.invoke import invoke
from tests.engine.build import Setup, generate, requests

SUITE = """
version: 1
name: misfit
backend: scripted
seed: 5
models: {target: 'scripted:1', draft: 'scripted:2'}
workloads: [{name: words, prompts: prompts.jsonl}]
sampling: {max_new_tokens: 12}
coverage: {least: 0}
arms:
  - {name: wrong, proposer: {kind: draft_model, model: draft, gamma: 3}, verifier: greedy, checks: [accounting, replay]}
  - {name: right, proposer: {kind: draft_model, model: draft, gamma: 2}, verifier: greedy, checks: [accounting, replay]}
"""
FAULT = "damaged trace: column logits_digest has 1 entries instead of 12"


@pytest.fixture
def short_digests(tmp_path, monkeypatch):
    """A suite, and an engine that cuts one column in one request of its first arm."""
    (tmp_path / "suite.yaml").write_text(SUITE)
    rows = [{"id": f"w{i}", "prompt": "abc" * (i + 1)} for i in range(3)]
    (tmp_path / "prompts.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    whole = Recorder.trace

    def cut(recorder, reason):
        trace = whole(recorder, reason)
        wrong = trace.header.request.endswith("w1#0") and "wrong" in trace.header.request
        return replace(trace, logits_digest=trace.logits_digest[:1]) if wrong else trace

    monkeypatch.setattr(Recorder, "trace", cut)
    return str(tmp_path / "suite.yaml"), str(tmp_path / "audit.db")


@pytest.mark.medium
def test_one_that_cannot_be_written_is_a_fault_of_its_arm_and_the_run_goes_on(short_digests):
    suite, url = short_digests
    result = invoke("run", suite, "--store", url)
    assert result.exit_code == 1
    assert "Traceback" not in result.output
    with Store.open(url, create=False) as store:
        run = store.load_run(store.resolve("latest"))
        verdicts = {(check.arm, check.check): check for check in store.checks(run.ulid)}
        assert store.damage() == ()
    assert run.status == "finished"
    assert verdicts["wrong", "accounting"].verdict is Verdict.FAULT
    assert verdicts["wrong", "replay"].verdict is Verdict.INCONCLUSIVE
    for check in ("accounting", "replay"):
        summary = verdicts["wrong", check].summary
        assert f"first wrong/words/w1#0: the record cannot be written: {FAULT}" in summary
        assert verdicts["right", check].verdict is Verdict.CERTIFIED


@pytest.mark.medium
def test_a_stored_one_is_named_and_leaves_other_arms_their_verdicts(short_digests, monkeypatch):
    suite, url = short_digests
    write = request_writer.add_requests

    def unguarded(*arguments):
        with monkeypatch.context() as patch:
            patch.setattr(traces, "misfit", lambda _: None)
            return write(*arguments)

    monkeypatch.setattr(generate_requests, "legible", lambda _, generation: generation)
    monkeypatch.setattr(request_writer, "add_requests", unguarded)
    result = invoke("run", suite, "--store", url)
    assert (result.exit_code, result.exception and not isinstance(result.exception, SystemExit)) == (3, False)
    with Store.open(url, create=False) as store:
        run = store.load_run(store.resolve("latest"))
        verdicts = {(check.arm, check.check): check for check in store.checks(run.ulid)}
    assert run.status == "finished", result.output + str(result.stderr)
    for check in ("accounting", "replay"):
        assert verdicts["wrong", check].verdict is Verdict.INCONCLUSIVE
        assert FAULT in verdicts["wrong", check].summary
        assert verdicts["right", check].verdict is Verdict.CERTIFIED
    checked = invoke("db", "check", "--store", url)
    assert checked.exit_code == 1
    assert FAULT in checked.output
    assert "whole" not in checked.stdout


@cache
def record_of(level):
    return decode(
        generate(Setup(level=level), requests(2, SamplingParams(temperature=0.9, max_new_tokens=12, seed=4)))[
            "r1"
        ].trace
    )


@pytest.mark.parametrize("level", list(RecordLevel))
@pytest.mark.parametrize("column", TABLE, ids=lambda column: column.name)
def test_no_changed_column_is_whole_or_written(level, column):
    """The check of a stored record and the writer's reading name it; both end in one line."""
    trace = record_of(level)
    given = getattr(trace, column.name)
    longer = np.concatenate([given, np.zeros((1, *given.shape[1:]), given.dtype)])
    changes = [longer, np.nan_to_num(longer).astype("f8" if given.dtype.kind != "f" else "i4")] + [given[:-1]] * (
        len(given) > 1
    )
    assert contents.misfit_of(opened(encode(trace))) is None
    for changed in changes:
        fault = contents.misfit_of(opened(encode(replace(trace, **{column.name: changed}))))
        assert fault
        assert "\n" not in fault

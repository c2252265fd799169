"""Rows reduced in the worker: what the whole rows of the same seeds give, and the same verdicts."""

import json

import numpy as np
import pytest

from engine.backends.vllm import supervise
from engine.core.types import Protocol, RecordLevel, SamplingParams
from engine.record.foreign.steps import ForeignStep, step_record
from engine.record.rows.reduction import columns_of, reduce
from engine.record.trace import decode, steps_of
from tests.audit.invoke import invoke

from .arms import NGRAM, answered, backend, plan, reconciled, requests

pytestmark = pytest.mark.vllm

SAMPLED = SamplingParams(temperature=0.8, top_k=50, repetition_penalty=1.2, min_tokens=4)
PER_TOKEN = 1600
"""Bytes that a token may take between worker and audit; a row of the bundled target takes 8192."""


@pytest.fixture(scope="module")
def engines():
    """One engine of vLLM, as arms of two levels."""
    vllm = backend()
    yield {
        level: vllm.arm(plan("ngram", Protocol.CHAIN, options=NGRAM, engine={"repair": "all"}, level=level))
        for level in (RecordLevel.FULL, RecordLevel.TOPK)
    }
    vllm.close()


@pytest.fixture(scope="module")
def found(engines, prompts):
    return {level: answered(engine, requests(prompts, SAMPLED)) for level, engine in engines.items()}


def reduced(trace):
    """The columns of a whole trace, reduced here."""
    history, parts = list(trace.header.prompt), []
    header = type("Terms", (), {name: getattr(trace.header, name) for name in trace.header.__slots__})()
    header.level = RecordLevel.TOPK
    for index, step in enumerate(steps_of(trace)):
        tokens = tuple(trace.token[step.emitted].tolist())
        accepted = int(trace.examined_accepted[step.examined].sum())
        drafted = tuple(trace.node_token[step.nodes].tolist())
        seen = ForeignStep(drafted, tokens, accepted, step.q_kind, logits=trace.logits[step.emitted])
        parts.append(columns_of(reduce(header, [step_record(index, seen, history, header)])))
        history += tokens
    return {name: np.concatenate([part[name] for part in parts]) for name in parts[0]}


def test_columns_are_those_of_the_whole_rows(found):
    for name, whole in found[RecordLevel.FULL].items():
        ours = found[RecordLevel.TOPK][name]
        assert ours.tokens == whole.tokens
        assert reconciled(ours) == reconciled(whole)
        trace, wanted = decode(ours.trace), reduced(decode(whole.trace))
        assert trace.header.level is RecordLevel.TOPK
        for column in ("logits_digest", "logprob", "margin", "top_id", "top_score", "cell_id", "cell_p", "row_p"):
            np.testing.assert_array_equal(getattr(trace, column), wanted[column], err_msg=column)
        np.testing.assert_array_equal(trace.p, decode(whole.trace).p)


def test_a_row_never_leaves_the_worker(engines, prompts, monkeypatch):
    sizes, read = [], supervise.worker_steps
    monkeypatch.setattr(supervise, "worker_steps", lambda path: sizes.append(path.stat().st_size) or read(path))
    asked = requests(prompts, SAMPLED)
    tokens = sum(len(each.tokens) for each in answered(engines[RecordLevel.TOPK], asked).values())
    assert sum(sizes) < PER_TOKEN * tokens


SUITE = """
version: 1
name: levels
backend: vllm
seed: 1
batch_size: 8
samples: 2
models: {target: bundled:target}
workloads: [{name: tools, prompts: 'suites:prompts/tools.jsonl', limit: 12}]
sampling: {max_new_tokens: 32, temperature: 0.8}
engine: {max_model_len: 640, kv_cache_gib: 0.25, engines: 3}
arms:
  - name: stock-topk
    record: topk
    proposer: &ngram {kind: ngram, gamma: 4, options: {prompt_lookup_min: 1, prompt_lookup_max: 3}}
    verifier: chain
    checks: &checks [liveness, configuration, reconciliation, accounting, honoured, law]
    coverage: &waived {waive: [end_in_draft, end_at_last_draft, end_at_bonus]}
  - {name: stock-full, record: full, proposer: *ngram, verifier: chain, checks: *checks, coverage: *waived}
  - name: repaired-topk
    record: topk
    engine: {repair: all}
    proposer: *ngram
    verifier: chain
    checks: *checks
    coverage: *waived
  - name: repaired-full
    record: full
    engine: {repair: all}
    proposer: *ngram
    verifier: chain
    checks: *checks
    coverage: *waived
"""


def test_verdicts_are_those_of_whole_rows_for_a_sound_and_for_a_faulty_engine(tmp_path):
    """Stock vLLM takes the parameters of drafted rows from old memory on a CPU."""
    (tmp_path / "suite.yaml").write_text(SUITE)
    results = tmp_path / "results.json"
    store = ("--store", f"sqlite:///{tmp_path / 'audit.db'}", "--results", str(results))
    ended = invoke("run", str(tmp_path / "suite.yaml"), *store)
    assert ended.exit_code in (0, 1, 3), ended.stderr
    verdicts = {}
    for each in json.loads(results.read_text(encoding="utf-8"))["checks"]:
        engine, level = each["arm"].split("-")
        verdicts.setdefault(engine, {}).setdefault(level, {})[each["check"]] = each["verdict"]
    assert (
        verdicts["repaired"]["topk"]
        == verdicts["repaired"]["full"]
        == dict.fromkeys(verdicts["repaired"]["full"], "certified")
    )
    # which further checks fail depends on what the memory held
    for found in verdicts["stock"].values():
        assert {"honoured", "law"} <= {check for check, verdict in found.items() if verdict == "fault"}
        assert (found["configuration"], found["reconciliation"]) == ("certified", "certified")

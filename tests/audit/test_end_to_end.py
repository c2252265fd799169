"""The user's day on the bundled models: run, query, attach, verify, gate; and a broken engine."""

from __future__ import annotations

import json
import shutil
import sqlite3
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
import pytest

from audit.checks import load
from audit.checks.base.interface import evaluate
from audit.evidence.records import ArmRecord, Evidence
from audit.evidence.verdicts import CheckResult, Verdict
from audit.store import Store, StoredCheck
from engine.record.envelope import opened
from engine.record.trace import Trace, decode, encode
from tests.audit.invoke import invoke

pytestmark = [pytest.mark.slow, pytest.mark.xdist_group("end_to_end")]
REFERENCE = Path(__file__).parents[2] / "engine" / "bundled"


@dataclass(frozen=True)
class Ran:
    exit_code: int
    output: str
    errors: str
    store: Path
    results: Path

    def checks(self) -> dict[tuple[str, str], StoredCheck]:
        with Store.open(str(self.store), create=False, read_only=True) as store:
            return {(each.arm, each.check): each for each in store.checks(store.resolve("latest"))}

    def arm(self, name: str) -> ArmRecord:
        with Store.open(str(self.store), create=False, read_only=True) as store:
            return store.load_arm(store.resolve("latest"), name)


def ran(suite: str, folder: Path) -> Ran:
    store, results = folder / "audit.db", folder / "results.json"
    done = invoke("run", suite, "--store", str(store), "--results", str(results))
    return Ran(done.exit_code, done.stdout, done.stderr, store, results)


@pytest.fixture(scope="module")
def quickstart(tmp_path_factory) -> Ran:
    return ran("suites/quickstart.yaml", tmp_path_factory.mktemp("quickstart"))


@pytest.fixture(scope="module")
def known_bad(tmp_path_factory) -> Ran:
    return ran("suites/known_bad/argmax_draft_soft_q.yaml", tmp_path_factory.mktemp("known_bad"))


def test_the_quickstart_passes(quickstart):
    assert quickstart.exit_code == 0, quickstart.output
    assert "PASS" in quickstart.output
    assert {each.verdict for each in quickstart.checks().values()} == {Verdict.CERTIFIED}
    found = json.loads(quickstart.results.read_text())
    assert found["run"]["exit_code"] == 0
    assert found["run"]["ulid"] in quickstart.output


def test_greedy_and_coupled_arms_equal_their_baselines(quickstart):
    for arm, baseline in (("greedy", "baseline/greedy"), ("gumbel", "baseline/T=1")):
        expected = {each.key: each.tokens for each in quickstart.arm(baseline).requests}
        found = {each.key: each.tokens for each in quickstart.arm(arm).requests}
        # the baseline has the directed requests of other arms too
        assert found == {key: expected[key] for key in found}
        assert len(found) >= 24


def replayed(arm: ArmRecord) -> CheckResult:
    return evaluate(load("replay"), Evidence(arm), {})


@pytest.mark.parametrize("arm", ["baseline/greedy", "baseline/T=1", "greedy", "rejection", "gumbel", "ngram"])
def test_every_decision_is_recomputed_from_the_store(quickstart, arm):
    found = replayed(quickstart.arm(arm))
    assert found.verdict is Verdict.CERTIFIED, found.summary
    assert found.details["coverage"] == 1.0


def flip_uniform(trace: Trace) -> Trace:
    uniforms = trace.examined_uniform.copy()
    uniforms[1] = (uniforms[1] + 0.5) % 1.0
    return replace(trace, examined_uniform=uniforms)


def flip_token(trace: Trace) -> Trace:
    tokens = trace.token.copy()
    tokens[2] ^= 1
    return replace(trace, token=tokens)


def flip_probability(trace: Trace) -> Trace:
    p = trace.p.copy()
    p[1] = np.nextafter(p[1], 0) * (1 - 1e-6)
    return replace(trace, p=p)


@pytest.mark.parametrize("flip", [flip_uniform, flip_token, flip_probability])
def test_one_flipped_number_fails_the_replay_and_names_the_step(quickstart, tmp_path, flip: Callable[[Trace], Trace]):
    copy = tmp_path / "tampered.db"
    shutil.copy(quickstart.store, copy)
    # an adversary with the file: triggers dropped, trace and its digest replaced
    with sqlite3.connect(copy) as database:
        for (trigger,) in database.execute("SELECT name FROM sqlite_master WHERE type = 'trigger'").fetchall():
            database.execute(f'DROP TRIGGER "{trigger}"')
        rows = database.execute(
            "SELECT t.request_id, t.payload FROM token_trace t JOIN request r ON r.id = t.request_id "
            "JOIN arm a ON a.id = r.arm_id WHERE a.name = 'rejection' AND r.case_id LIKE '%chat-000'"
        ).fetchall()
        ((request_id, payload),) = rows
        changed = encode(flip(decode(payload)))
        database.execute(
            "UPDATE token_trace SET payload = ?, sha256 = ? WHERE request_id = ?",
            (changed, bytes.fromhex(opened(changed).digest), request_id),
        )
    with Store.open(str(copy), create=False) as store:
        run = store.resolve("latest")
        found = replayed(store.load_arm(run, "rejection"))
        assert not store.verify_root(run)
    assert found.verdict is Verdict.FAULT
    assert any("chat-000" in finding.request and finding.step >= 0 for finding in found.findings), found.findings


def test_run_query_attach_verify_gate(quickstart, tmp_path):
    store = ("--store", str(quickstart.store))
    asked = invoke("query", "acceptance", "--format", "json", *store)
    assert asked.exit_code == 0
    assert {row["arm"] for row in json.loads(asked.stdout)} >= {"greedy", "rejection", "gumbel", "ngram"}
    report = tmp_path / "results_2026.json"
    report.write_text(json.dumps({"results": {"toy": {"acc": 0.5}}, "config": {"model": "hf"}, "versions": {}}))
    attached = tmp_path / "attached.json"
    assert invoke("attach", "latest", str(report), "--out", str(attached), *store).exit_code == 0
    assert invoke("verify", str(attached), *store).exit_code == 0
    gate = ("gate", "latest", "--policy", "suites/policies/standard.yaml")
    subject = ("--subject", f"draft={REFERENCE / 'draft'}", "--subject", f"target={REFERENCE / 'target'}")
    allowed = invoke(*gate, *subject, *store)
    assert allowed.exit_code == 0, allowed.stdout + allowed.stderr
    attached.write_text(attached.read_text().replace("0.5", "0.9"))
    assert invoke("verify", str(attached), *store).exit_code == 1


def test_a_draft_that_differs_by_one_byte_is_blocked(quickstart, tmp_path):
    changed = tmp_path / "draft"
    shutil.copytree(REFERENCE / "draft", changed)
    weights = bytearray((changed / "model.safetensors").read_bytes())
    weights[-1] ^= 1
    (changed / "model.safetensors").write_bytes(weights)
    done = invoke(
        "gate", "latest", "--policy", "standard", "--subject", f"draft={changed}", "--store", str(quickstart.store)
    )
    assert done.exit_code == 1
    assert "draft" in done.stdout + done.stderr


def test_a_known_bad_engine_fails_and_the_law_check_says_why(known_bad):
    assert known_bad.exit_code == 1
    assert "FAIL" in known_bad.output
    checks = known_bad.checks()
    assert checks["greedy", "greedy_equality"].verdict is Verdict.CERTIFIED
    law = checks["rejection", "law"]
    assert law.verdict is Verdict.FAULT
    assert law.claim == "law"
    assert law.p_value is not None
    assert law.p_value < 1e-4
    assert "law" in known_bad.output


def test_a_known_bad_run_is_blocked(known_bad):
    done = invoke("gate", "latest", "--policy", "standard", "--store", str(known_bad.store))
    assert done.exit_code == 1, done.stdout + done.stderr


def test_running_again_works(quickstart, tmp_path):
    """A second run goes into the same store, beside the first."""
    copy = tmp_path / "audit.db"
    shutil.copy(quickstart.store, copy)
    suite = tmp_path / "small.yaml"
    suite.write_text(
        "version: 1\nname: small\nmodels: {target: 'bundled:target', draft: 'bundled:draft'}\n"
        "workloads: [{name: chat, prompts: 'suites:prompts/chat.jsonl', limit: 2}]\n"
        "sampling: {max_new_tokens: 8, temperature: 0}\ncoverage: {least: 0}\n"
        "arms: [{name: greedy, proposer: {kind: draft_model, model: draft, gamma: 2}, verifier: greedy, "
        "checks: [replay]}]\n"
    )
    again = invoke("run", str(suite), "--store", str(copy), "--results", str(tmp_path / "r.json"))
    assert again.exit_code == 0, again.stdout + again.stderr
    with Store.open(str(copy), create=False) as store:
        assert len(store.list_runs(10)) == 2

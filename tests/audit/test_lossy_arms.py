"""Arms under lossy rules, from the suite to the gate: they run, they fail where they should, and nothing hides it."""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path

import pytest

from audit.evidence.verdicts import Verdict
from audit.store import Store
from tests.audit.invoke import invoke

SUITE = """\
version: 1
name: lossy
backend: scripted
seed: 11
samples: 2
models: {target: "scripted:1", draft: "scripted:2"}
workloads: [{name: chat, prompts: "suites:prompts/chat.jsonl", limit: 8}]
sampling: {max_new_tokens: 64, temperature: 1.0}
coverage: {least: 0}
arms:
  - name: rejection
    proposer: {kind: draft_model, model: draft, gamma: 4}
    verifier: chain
    checks: [law, replay]
  - name: typical
    proposer: {kind: draft_model, model: draft, gamma: 4}
    verifier: {kind: typical, epsilon: 0.05}
    checks: [law, replay, acceptance_theory]
  - name: synthetic
    proposer: {kind: draft_model, model: draft, gamma: 4}
    verifier: {kind: synthetic, length: 3}
    sampling: {temperature: 0}
    checks: [greedy_equality, replay]
"""


@dataclass(frozen=True)
class Ran:
    exit_code: int
    output: str
    url: str

    def run(self):
        with Store.open(self.url, create=False, read_only=True) as store:
            return store.load_run(store.resolve("latest"))

    def verdicts(self):
        with Store.open(self.url, create=False, read_only=True) as store:
            return {(each.arm, each.check): each for each in store.checks(store.resolve("latest"))}

    def headers(self, arm):
        with Store.open(self.url, create=False, read_only=True) as store:
            return [each.trace.header for each in store.load_arm(store.resolve("latest"), arm).requests]


@pytest.fixture(scope="module")
def ran(tmp_path_factory) -> Ran:
    folder = tmp_path_factory.mktemp("lossy")
    (folder / "suite.yaml").write_text(SUITE)
    url = str(folder / "audit.db")
    done = invoke("run", str(folder / "suite.yaml"), "-v", "--store", url, "--results", str(folder / "results.json"))
    return Ran(done.exit_code, done.stdout + done.stderr, url)


@pytest.mark.slow
def test_the_law_of_a_typical_arm_is_a_fault(ran):
    found = ran.verdicts()
    assert found["typical", "law"].verdict is Verdict.FAULT
    assert found["typical", "law"].n > 500
    assert found["rejection", "law"].verdict is not Verdict.FAULT
    assert found["rejection", "replay"].verdict is Verdict.CERTIFIED
    assert ran.exit_code == 1


@pytest.mark.slow
def test_a_synthetic_arm_at_temperature_zero_is_not_the_target_s_output(ran):
    assert ran.verdicts()["synthetic", "greedy_equality"].verdict is Verdict.FAULT


def test_what_has_no_protocol_to_hold_it_to_does_not_run(ran):
    found = ran.verdicts()
    for key in (("typical", "replay"), ("synthetic", "replay"), ("typical", "acceptance_theory")):
        assert found[key].verdict is Verdict.NOT_RUN
        assert "declares itself lossy" in found[key].summary


def test_the_store_and_every_record_say_lossy(ran):
    arms = {arm.name: arm for arm in ran.run().arms}
    assert {name for name, arm in arms.items() if not arm.lossless} == {"typical", "synthetic"}
    assert arms["typical"].spec["verifier_options"] == {"epsilon": 0.05}
    assert arms["typical"].effective.verifier_options == {"epsilon": 0.05, "delta": 0.3}
    assert arms["rejection"].effective.verifier_options == {}
    assert {header.lossless for header in ran.headers("typical")} == {False}
    assert {header.lossless for header in ran.headers("rejection")} == {True}


def test_the_tables_say_lossy(ran):
    lines = [line.split() for line in ran.output.splitlines()]
    assert ["arm", "kind", "lossless"] in [line[:3] for line in lines]
    assert ["typical", "candidate", "no"] in [line[:3] for line in lines]
    assert ["rejection", "candidate", "yes"] in [line[:3] for line in lines]
    assert "arm typical is lossy by declaration: typical (epsilon 0.05, delta 0.3)" in ran.output
    assert "arm synthetic is lossy by declaration: synthetic (length 3)" in ran.output
    assert ran.output.count("lossy by declaration") == 2
    shown = [line.split()[:4] for line in invoke("show", "--store", ran.url).stdout.splitlines()]
    assert ["typical", "candidate", "L4", "no"] in shown


@pytest.mark.medium
def test_an_attachment_names_the_lossy_arms_and_verifies(ran, tmp_path: Path):
    report, out = tmp_path / "report.json", tmp_path / "out.json"
    report.write_text("{}")
    assert invoke("attach", "latest", str(report), "--failed", "--out", str(out), "--store", ran.url).exit_code == 0
    assert json.loads(out.read_text())["audit"]["lossy"] == ["typical", "synthetic"]
    assert invoke("verify", str(out), "--store", ran.url).exit_code == 0


@pytest.mark.medium
def test_the_standard_policy_blocks_them_by_name(ran):
    done = invoke("gate", "latest", "--policy", "standard", "--store", ran.url)
    assert done.exit_code == 1
    assert "block: lossless: arm typical: its rule typical declares itself lossy" in done.stdout
    assert "block: lossless: arm synthetic: its rule synthetic declares itself lossy" in done.stdout
    assert "arm rejection: its rule" not in done.stdout


def test_an_unknown_option_ends_the_run_before_it_begins(tmp_path):
    path = tmp_path / "suite.yaml"
    path.write_text(SUITE.replace("epsilon: 0.05", "epsilon: 0.05, gamma: 2"))
    done = invoke("run", str(path), "--store", str(tmp_path / "audit.db"))
    assert done.exit_code == 2
    (line,) = done.stderr.splitlines()
    assert f"{path}:17: verifier typical has no option 'gamma'" in line
    assert not (tmp_path / "audit.db").exists()

"""The templates of docs/deploy follow their formats, and their commands run against a real store."""

from __future__ import annotations

import json
import os
import shlex
import shutil
import subprocess
import sys
from importlib.resources import files
from pathlib import Path

import pytest
from ruamel.yaml import YAML

ROOT = Path(__file__).resolve().parents[1]
DEPLOY = ROOT / "docs" / "deploy"
SUITE = """\
version: 1
name: deployed
models: {target: ./models/target, draft: ./models/draft}
workloads:
  - {name: chat, prompts: prompts.jsonl}
sampling: {max_new_tokens: 48, ignore_eos: true}
arms:
  - name: greedy
    proposer: {kind: draft_model, model: draft, gamma: 4}
    verifier: greedy
    sampling: {temperature: 0}
    checks: [greedy_equality]
    coverage: {least: 0}
"""
POLICY = """\
version: 1
name: deployed
require:
  - {claim: equality, checks: [greedy_equality]}
evidence: {min_tokens: 20, max_age: 1d}
subjects: {named: [target], named_if_used: [draft]}
"""


FRESH = "--max-age 1h"


def document(name: str) -> dict:
    return YAML(typ="safe", pure=True).load(DEPLOY / name)


def job_commands(name: str) -> list[str]:
    if name == "github-actions.yml":
        return [step["run"] for step in document(name)["jobs"]["gate"]["steps"] if "run" in step]
    job = document(name)["speculation"]
    return [*job["before_script"], *job["script"]]


def container(name: str) -> dict:
    if name == "helm-pre-upgrade.yaml":
        job = document(name)["spec"]
    else:
        (metric,) = document(name)["spec"]["metrics"]
        assert metric["failureLimit"] == 0
        job = metric["provider"]["job"]["spec"]
    assert job["backoffLimit"] == 0
    assert job["template"]["spec"]["restartPolicy"] == "Never"
    (only,) = job["template"]["spec"]["containers"]
    return only


def test_the_kubernetes_jobs_gate_once_and_name_the_models():
    annotations = document("helm-pre-upgrade.yaml")["metadata"]["annotations"]
    assert annotations["helm.sh/hook"] == "pre-install,pre-upgrade"
    gates = [container(name)["command"] for name in ("helm-pre-upgrade.yaml", "argo-analysis.yaml")]
    assert gates[0] == gates[1]
    assert gates[0][:2] == ["audit", "gate"]
    for name in ("helm-pre-upgrade.yaml", "argo-analysis.yaml"):
        mounted = {f"{mount['mountPath']}/gate.key" for mount in container(name)["volumeMounts"]}
        assert gates[0][gates[0].index("--key") + 1] in mounted


@pytest.mark.slow
def test_the_ci_files_follow_the_published_schemas():
    schemas = {"github-actions.yml": "vendor.github-workflows", "gitlab-ci.yml": "vendor.gitlab-ci"}
    for name, schema in schemas.items():
        command = [sys.executable, "-m", "check_jsonschema", "--builtin-schema", schema, str(DEPLOY / name)]
        done = subprocess.run(command, capture_output=True, text=True, check=False)
        assert done.returncode == 0, done.stdout + done.stderr


@pytest.mark.slow
def test_the_commands_of_the_templates_run_against_a_store(tmp_path: Path):
    for name in ("target", "draft"):
        shutil.copytree(str(files("engine") / "bundled" / name), tmp_path / "models" / name)
    (tmp_path / "suite.yaml").write_text(SUITE)
    (tmp_path / "policy.yaml").write_text(POLICY)
    prompts = [json.dumps({"id": str(number), "prompt": f"Chapter {number}: the"}) for number in range(8)]
    (tmp_path / "prompts.jsonl").write_text("\n".join(prompts) + "\n")
    (tmp_path / "bin").mkdir()
    program = tmp_path / "bin" / "audit"
    program.write_text(f'#!/bin/sh\nexec {sys.executable} -m audit "$@"\n')
    program.chmod(0o755)
    paths = {"PATH": f"{tmp_path / 'bin'}:{os.environ['PATH']}", "PYTHONPATH": str(ROOT)}
    environment = {**os.environ, **paths, "AUDIT_STORE": "audit.db"}

    def run(command: str) -> int:
        done = subprocess.run(command, shell=True, cwd=tmp_path, env=environment, capture_output=True, text=True)
        print(command, done.returncode, done.stdout, done.stderr)
        return done.returncode

    hook = document("pre-commit-config.yaml")["repos"][0]["hooks"][0]
    assert run(f"{hook['entry']} suite.yaml") == 0
    github, gitlab = (
        [command for command in job_commands(name) if command.startswith("audit ")]
        for name in ("github-actions.yml", "gitlab-ci.yml")
    )
    assert [command.replace('"$RUNNER_TEMP/gate.key"', "gate.key") for command in github] == gitlab
    assert run("audit keys init new.key --name example.org/gate") == 0
    (written,) = (command for command in job_commands("github-actions.yml") if "GATE_KEY" in command)
    (installed,) = (command for command in job_commands("gitlab-ci.yml") if "GATE_KEY" in command)
    secret = (tmp_path / "new.key").read_text().strip()
    environment |= {"GATE_KEY": secret, "RUNNER_TEMP": str(tmp_path), "SPECAUDIT_GATE_KEY": "new.key"}
    assert [run(written), *(run(command) for command in github)] == [0, 0, 0, 0]
    assert run(f"audit verify decision.json --trusted-key new.key.pub --subject target=./models/target {FRESH}") == 0
    (tmp_path / "decision.json").unlink()
    (tmp_path / "gate.key").unlink()
    assert [run(installed), run(gitlab[1])] == [0, 0]
    assert "Speculation was on" in (tmp_path / "disclosure.md").read_text()
    gate = [*container("helm-pre-upgrade.yaml")["command"]]
    gate[gate.index("standard")] = "policy.yaml"
    gate[gate.index("/keys/gate.key")] = "gate.key"
    assert run(shlex.join(gate)) == 0
    with (tmp_path / "models" / "draft" / "config.json").open("a") as changed:
        changed.write("\n")
    assert run(shlex.join(gate)) == 1
    assert run("audit gate latest --policy policy.yaml --store gone.db") == 2

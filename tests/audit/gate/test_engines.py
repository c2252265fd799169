"""Runs of real engines under the packaged policy of their engine, clean and broken on purpose."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tests.audit.invoke import invoke

pytestmark = pytest.mark.slow
BUNDLED = Path(__file__).parents[3] / "engine" / "bundled"
GREEDY = {"verifier": "greedy", "sampling": {"temperature": 0}}
SAMPLED = {"verifier": "chain", "sampling": {"temperature": 1}}


def arms(greedy: list[str], sampled: list[str], gamma: int = 4) -> list[dict[str, object]]:
    """A greedy and a sampled arm with these checks."""
    draft = {"kind": "draft_model", "model": "draft", "gamma": gamma}
    return [
        {"name": "greedy", "proposer": draft, **GREEDY, "checks": greedy},
        {"name": "sampled", "proposer": draft, **SAMPLED, "checks": sampled},
    ]


def ran(folder: Path, document: dict[str, object]) -> str:
    """The store of a run of a suite; JSON is YAML."""
    suite, store = folder / "suite.yaml", folder / "audit.db"
    suite.write_text(json.dumps({"version": 1, "name": "gated", "seed": 11} | document))
    invoke("run", str(suite), "--store", str(store), "--results", str(folder / "results.json"))
    return str(store)


def gate(store: str, policy: str, *more: str) -> tuple[int, str]:
    done = invoke("gate", "latest", "--store", store, "--policy", policy, *more)
    return done.exit_code, done.stdout


def scripted(folder: Path, fault: str = "") -> str:
    """A run of a scripted pair; the sampled arm may be broken."""
    greedy, sampled = arms(["greedy_equality"], ["replay", "law", "acceptance_theory"], gamma=1)
    return ran(
        folder,
        {
            "backend": "scripted",
            "batch_size": 2,
            "samples": 2,
            "models": {"target": "scripted:1", "draft": "scripted:2"},
            "workloads": [{"name": "chat", "prompts": "suites:prompts/chat.jsonl", "limit": 16}],
            "sampling": {"max_new_tokens": 48},
            "checks": {"acceptance_theory": {"margin": 0.08}},
            "coverage": {"waive": ["long_prompt", "shared_prefix", "rows_finish_together"]},
            "arms": [greedy, sampled | ({"fault": fault} if fault else {})],
        },
    )


def test_a_clean_run_of_the_scripted_pair_is_allowed_and_not_without_its_models(tmp_path):
    store = scripted(tmp_path)
    code, output = gate(store, "standard", "--no-subject")
    assert code == 0, output
    assert output.count("--no-subject waived it") == 2
    code, output = gate(store, "standard")
    assert code == 3
    words = [line.split(":")[0].strip() for line in output.splitlines()[1:]]
    assert words == ["cannot decide", "cannot decide", "next", "allow", "allow"]
    assert "arm sampled: the suite lets these situations go unexamined: long_prompt" in output
    code, output = gate(store, "vllm", "--no-subject")
    assert code == 3, "a run of another engine lacks the checks of this policy"


def test_a_broken_run_of_the_scripted_pair_is_blocked(tmp_path):
    code, output = gate(scripted(tmp_path, "accepts_everything"), "standard", "--no-subject")
    assert code == 1
    assert "block: known_bad: arm sampled is broken on purpose: accepts_everything" in output
    assert "block: law: arm sampled: law is fault" in output


def assisted(folder: Path, *, broken: bool = False) -> str:
    """A run of assisted generation of the bundled pair; the sampled arm may be broken."""
    always = ["accounting", "configuration", "reconciliation"]
    greedy, sampled = arms(["greedy_equality", *always], ["law", "acceptance_theory", "honoured", *always])
    return ran(
        folder,
        {
            "backend": "transformers",
            "batch_size": 1,
            "samples": 2,
            "models": {"target": "bundled:target", "draft": "bundled:draft"},
            "workloads": [
                {"name": "tools", "prompts": "suites:prompts/tools.jsonl", "limit": 6},
                {"name": "code", "prompts": "suites:prompts/code.jsonl", "limit": 6},
            ],
            "sampling": {"max_new_tokens": 48, "top_p": 0.95},
            "checks": {"acceptance_theory": {"margin": 0.1}},
            "coverage": {"waive": ["end_in_draft"]},
            "arms": [greedy, sampled | ({"engine": {"argmax_draft": True}} if broken else {})],
        },
    )


def test_a_clean_run_of_transformers_is_allowed_for_its_own_models(tmp_path):
    store = assisted(tmp_path)
    subjects = [f"--subject={role}={BUNDLED / role}" for role in ("target", "draft")]
    code, output = gate(store, "transformers", *subjects)
    assert code == 0, output
    code, output = gate(store, "transformers", subjects[0], f"--subject=draft={BUNDLED / 'target'}")
    assert code == 1
    assert "block: subject draft: " in output
    code, output = gate(store, "standard", *subjects)
    assert code == 3
    assert "replay: arm sampled: replay is missing" in output


def test_a_broken_run_of_transformers_is_blocked(tmp_path):
    code, output = gate(assisted(tmp_path, broken=True), "transformers", "--no-subject")
    assert code == 1
    assert "known_bad: arm sampled is broken on purpose: " in output
    assert "block: law: arm sampled: law is fault" in output

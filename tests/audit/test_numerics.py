"""The suite's key `numerics`, through the command line: refused, replaced with a reason, recorded."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from click.testing import Result

from audit.store import Store
from engine.models import numerics
from tests.audit.invoke import invoke

HERE = "tests.engine.numerics.broken:"
SUITE = """\
version: 1
name: bits
models:
  target: {target}
  draft: bundled:draft
workloads: [{{name: chat, prompts: 'suites:prompts/chat.jsonl', limit: 1}}]
sampling: {{max_new_tokens: 4, temperature: 0}}
record: tokens
arms:
  - name: greedy
    proposer: {{kind: {proposer}, gamma: 2}}
    verifier: greedy
    checks: [greedy_equality]
"""


@dataclass(frozen=True)
class Ran:
    done: Result
    store: Path
    results: Path

    def effective(self, arm: str) -> dict[str, Any]:
        with Store.open(str(self.store), create=False, read_only=True) as store:
            return dict(store.load_arm(store.resolve("latest"), arm).effective.to_json())


@pytest.fixture(autouse=True)
def registry(monkeypatch):
    """Modes that are the same on every machine: ordered and tiled break trees, fixed holds."""
    monkeypatch.setitem(numerics.REGISTRY, "ordered", f"{HERE}InsertedZeros")
    monkeypatch.setitem(numerics.REGISTRY, "tiled", f"{HERE}InsertedZeros")
    monkeypatch.setitem(numerics.REGISTRY, "fixed", f"{HERE}Sound")


def run(folder: Path, target: str, proposer: str = "draft_model, model: draft") -> Ran:
    path = folder / "bits.yaml"
    path.write_text(SUITE.format(target=target, proposer=proposer))
    store, results = folder / "audit.db", folder / "results.json"
    return Ran(invoke("run", str(path), "--store", str(store), "--results", str(results)), store, results)


@pytest.mark.medium
def test_a_mode_that_does_not_hold_here_cannot_be_audited(tmp_path):
    ran = run(tmp_path, "{source: 'bundled:target', numerics: tiled}")
    assert ran.done.exit_code == 3
    assert ran.done.stdout == ""
    (line,) = ran.done.stderr.splitlines()
    assert line.startswith(f"audit: {tmp_path / 'bits.yaml'}: bundled:target: numerics tiled is refused")
    assert "attention_tree (node " in line
    assert line.endswith("; use numerics: auto, or another mode")
    assert not ran.store.exists()
    assert not ran.results.exists()


@pytest.mark.slow
def test_auto_falls_back_and_the_store_says_why(tmp_path):
    ran = run(tmp_path, "bundled:target")
    assert ran.store.exists(), ran.done.stderr
    for arm in ("baseline/greedy", "greedy"):
        found = ran.effective(arm)["numerics"]
        assert (found["mode"], found["requested"], found["promises"]) == ("fixed", "auto", "tree")
        assert found["reason"].startswith("tiled fails attention_tree (node ")
        assert found["probe"]["passed"]
        assert found["probe"]["properties"][0]["name"] == "products"
    assert ran.effective("baseline/greedy")["draft_numerics"] is None
    assert ran.effective("greedy")["draft_numerics"] == {"mode": "ordered", "requested": "drafting", "promises": "none"}
    assert ran.effective("greedy")["proposer_shape"] == "chain"


@pytest.mark.medium
def test_the_mode_that_was_asked_for_runs(tmp_path):
    ran = run(tmp_path, "{source: 'bundled:target', numerics: exact}", "ngram")
    found = ran.effective("greedy")["numerics"]
    assert (found["mode"], found["requested"], found["promises"]) == ("exact", "exact", "everywhere")
    assert found["reason"] is None


@pytest.mark.medium
def test_transformers_own_arithmetic_is_fast_and_says_so(tmp_path):
    ran = run(tmp_path, "{source: 'bundled:target', loader: hf}", "ngram")
    found = ran.effective("greedy")["numerics"]
    assert (found["mode"], found["requested"], found["promises"]) == ("fast", "auto", "none")
    assert "use loader: lean" in found["reason"]


@pytest.mark.medium
def test_a_draft_is_refused_by_its_own_name(tmp_path):
    suite = SUITE.replace("bundled:draft", "{{source: 'bundled:draft', numerics: tiled}}")
    path = tmp_path / "bits.yaml"
    path.write_text(suite.format(target="bundled:target", proposer="draft_model, model: draft"))
    done = invoke("run", str(path), "--store", str(tmp_path / "audit.db"))
    assert done.exit_code == 3
    assert "bundled:draft: numerics tiled is refused" in done.stderr
    assert not (tmp_path / "audit.db").exists()

"""No false blocks: bundles of honest runs of random shapes are allowed.

`--honest N` sets their number. `python -m pytest tests/audit/gate/test_honest_bundles.py -m slow --honest 100` takes
some minutes. The suites have exact checks only, and `acceptance_theory` with a wide margin: a statistical check with a
narrow one would be inconclusive at this size by right.
"""

from __future__ import annotations

import random
from pathlib import Path
from typing import Any, Final

import pytest

from audit.store.base import keys
from tests.audit.gate.attacks.honest import POLICY, Answer, asked, ran
from tests.audit.invoke import invoke

WORKLOADS: Final = ("chat", "code", "copy", "json")
SAMPLED: Final = {"acceptance_theory": {"margin": 0.5}, "replay": {}}
RULES: Final = {"chain": SAMPLED, "block": {"replay": {}}, "gumbel": {"replay": {}}}


def random_suite(chance: random.Random) -> dict[str, Any]:
    """A greedy and a sampled arm on random workloads."""
    rule = chance.choice(sorted(RULES))
    draft = {"kind": "draft_model", "model": "draft", "gamma": chance.randint(1, 5)}
    names = chance.sample(WORKLOADS, chance.randint(1, 3))
    return {
        "version": 1,
        "name": "honest",
        "seed": chance.randrange(10**6),
        "backend": "scripted",
        "batch_size": chance.choice([1, 2, 4]),
        "models": {"target": f"scripted:{chance.randrange(99)}", "draft": f"scripted:{chance.randrange(99)}"},
        "workloads": [
            {"name": name, "prompts": f"suites:prompts/{name}.jsonl", "limit": chance.randint(8, 12)} for name in names
        ],
        "sampling": {"max_new_tokens": chance.choice([16, 24, 32])},
        "coverage": {"least": 0},
        "arms": [
            {
                "name": "greedy",
                "proposer": draft,
                "verifier": "greedy",
                "sampling": {"temperature": 0},
                "checks": {"replay": {}, "accounting": {}},
            },
            {
                "name": "sampled",
                "proposer": draft,
                "verifier": rule,
                "sampling": {"temperature": chance.choice([0.7, 1.0])},
                "checks": RULES[rule],
            },
        ],
    }


def policy(signed_by: str | None) -> dict[str, Any]:
    """What the honest run meets; with a key, the signed log is required too."""
    acceptance = {"claim": "acceptance", "checks": ["acceptance_theory"], "arms": {"verifiers": ["chain"]}}
    made = POLICY | {
        "require": [{"claim": "replay", "checks": ["replay"]}, acceptance],
        "parameters": {"acceptance_theory": {"margin": {"most": 0.5}}},
    }
    if signed_by is None:
        return made
    return made | {"evidence": POLICY["evidence"] | {"signed": True}, "keys": {"trusted": {"ci": signed_by}}}


def judged(folder: Path, seed: int, key: Path) -> Answer:
    """The gate's answer about the bundle of one honest run."""
    chance = random.Random(seed)
    store = ran(folder, random_suite(chance))
    steps = [("export", "latest", "--out", str(folder / "run.zip"))]
    proof: tuple[str, ...] = ()
    if chance.random() < 0.5:
        steps.append(("db", "checkpoint", "--key", str(key), "--out", str(folder / "note")))
        steps.append(("db", "prove", "latest", "--out", str(folder / "proof.json")))
        proof = ("--proof", str(folder / "proof.json"))
    for step in steps:
        done = invoke(*step, "--store", str(store))
        assert done.exit_code == 0, done.output
    store.unlink()
    signed_by = keys.read_public(key.with_name("key.pub")).text if proof else None
    return asked(folder, str(folder / "run.zip"), *proof, policy=policy(signed_by))


@pytest.mark.slow
def test_the_gate_blocks_no_honest_bundle(tmp_path: Path, pytestconfig: pytest.Config) -> None:
    keys.init(tmp_path / "key", "example.org/audit")
    blocked = []
    for seed in range(pytestconfig.getoption("--honest")):
        folder = tmp_path / str(seed)
        folder.mkdir()
        answer = judged(folder, seed, tmp_path / "key")
        blocked += [(seed, answer.reasons)] if answer.code != 0 else []
    print(f"{pytestconfig.getoption('--honest')} bundles, {len(blocked)} blocked")
    assert blocked == []

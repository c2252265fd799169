"""One small honest run, shared by all attacks: each copies its store, attacks the copy, and asks the gate."""

from __future__ import annotations

import json
import shutil
import sqlite3
from collections.abc import Callable
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tests.audit.invoke import invoke

DRAFT = {"kind": "draft_model", "model": "draft", "gamma": 2}
SUITE: dict[str, Any] = {
    "version": 1,
    "name": "attacked",
    "seed": 11,
    "backend": "scripted",
    "batch_size": 2,
    "models": {"target": "scripted:1", "draft": "scripted:2"},
    "workloads": [{"name": "chat", "prompts": "suites:prompts/chat.jsonl", "limit": 8}],
    "sampling": {"max_new_tokens": 16},
    "coverage": {"least": 0},
    "arms": [
        {
            "name": "greedy",
            "proposer": DRAFT,
            "verifier": "greedy",
            "sampling": {"temperature": 0},
            "checks": {"replay": {}, "accounting": {}},
        },
        {
            "name": "sampled",
            "proposer": DRAFT,
            "verifier": "chain",
            "sampling": {"temperature": 1},
            "checks": {"replay": {}, "acceptance_theory": {"margin": 0.3}},
        },
    ],
}
POLICY: dict[str, Any] = {
    "version": 1,
    "name": "attacked",
    "require": [
        {"claim": "replay", "checks": ["replay"]},
        {"claim": "acceptance", "checks": ["acceptance_theory"], "arms": {"temperature": "above_zero"}},
    ],
    "evidence": {"min_tokens": 100, "max_age": "30d", "min_level": "L3"},
    "parameters": {"acceptance_theory": {"margin": {"most": 0.3}}},
    "serves": {"sampled": {}},
    "workload": {"prompts": 8, "verified_drafts": 20},
    "require_lossless": True,
}


@dataclass(frozen=True)
class Answer:
    """What the gate said: its exit code, and its reasons as `requirement: text`."""

    code: int
    reasons: tuple[str, ...]
    output: str


def written(folder: Path, name: str, document: dict[str, Any]) -> Path:
    """A document as a file; JSON is YAML."""
    path = folder / name
    path.write_text(json.dumps(document), encoding="utf-8")
    return path


def ran(folder: Path, document: dict[str, Any]) -> Path:
    """The store of a run of a suite."""
    suite, store = written(folder, "suite.yaml", document), folder / "audit.db"
    done = invoke("run", str(suite), "--store", str(store), "--results", str(folder / "results.json"))
    assert done.exit_code in (0, 1, 3), done.output
    return store


def asked(folder: Path, run: str, *more: str, policy: dict[str, Any] | str = "", store: Path | None = None) -> Answer:
    """Ask the gate about a run or a bundle, in JSON."""
    rules = policy if isinstance(policy, str) and policy else str(written(folder, "policy.yaml", policy or POLICY))
    place = ("--store", str(store)) if store else ()
    done = invoke("gate", run, "--policy", rules, "--format", "json", *place, *more)
    if not done.stdout.startswith("{"):
        return Answer(done.exit_code, (), done.output)
    reasons = json.loads(done.stdout)["reasons"]
    return Answer(done.exit_code, tuple(f"{each['requirement']}: {each['text']}" for each in reasons), done.output)


def copied(store: Path, folder: Path) -> Path:
    """A copy of a store."""
    return Path(shutil.copy(store, folder / "audit.db"))


def edited(store: Path, *statements: str, guards: bool = False) -> None:
    """Run statements on a store past its facade; the triggers are put away first and back afterwards."""
    with closing(sqlite3.connect(store)) as database:
        kept = database.execute("SELECT name, sql FROM sqlite_master WHERE type = 'trigger'").fetchall()
        for name, _ in () if guards else kept:
            database.execute(f'DROP TRIGGER "{name}"')
        for statement in statements:
            database.execute(statement)
        for _, sql in () if guards else kept:
            database.execute(sql)
        database.commit()


Attack = Callable[[Path], None]

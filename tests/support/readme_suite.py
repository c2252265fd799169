"""README's suite on any engine: a target and a draft, one sampled arm, no `checks:`; run by `audit run`."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from audit.evidence.verdicts import LACKING, Verdict
from audit.runs.judge import arm_exit_code
from tests.audit.invoke import invoke

ARM = "rejection"
PROMPTS = 20
FAULTS = (
    *("target_rows_shifted", "bonus_wrong_row", "rows_of_another_request", "positions_off_by_one", "kv_residue"),
    *("kv_not_rolled_back", "last_accepted_entry_stale", "rejected_last_entry_stays", "history_lost_after_rejection"),
    *("prompt_end_read_twice", "page_border_entries_lost", "last_token_of_previous_request"),
)
"""Rows of another place, another text, stale keys: what a draft can do to the target's rows."""
DRAFTED = {"kind": "draft_model", "model": "draft", "gamma": 4}


@dataclass(frozen=True)
class Shape:
    """One engine's suite. `arm` is merged into the sampled arm, `beside` adds a clean greedy arm before it."""

    models: Mapping[str, Any]
    backend: str = "native"
    beside: bool = False
    proposer: Mapping[str, Any] = field(default_factory=lambda: DRAFTED)
    arm: Mapping[str, Any] = field(default_factory=dict)
    clean: Mapping[str, Any] = field(default_factory=dict)
    """Merged into the greedy arm."""
    more: Mapping[str, Any] = field(default_factory=dict)
    """Further keys of the suite."""
    prompts: int = PROMPTS

    def document(self) -> dict[str, Any]:
        """The suite; JSON is YAML."""
        sampled = {"temperature": 0.7, "top_p": 0.95}
        arm = {"name": ARM, "proposer": self.proposer, "verifier": "chain", "sampling": sampled, **self.arm}
        greedy = {"name": "greedy", "proposer": self.proposer, "verifier": "greedy", **self.clean}
        return {
            "version": 1,
            "name": "my-pair",
            "backend": self.backend,
            "models": dict(self.models),
            "workloads": [{"name": "chat", "prompts": "suites:prompts/chat.jsonl", "limit": self.prompts}],
            "sampling": {"max_new_tokens": 24},
            **self.more,
            "arms": [greedy, arm] if self.beside else [arm],
        }


@dataclass(frozen=True)
class _Decided:
    verdict: Verdict
    lacking: bool


@dataclass(frozen=True)
class Ended:
    """What `audit run` said."""

    code: int
    text: str
    checks: Mapping[str, Mapping[str, Mapping[str, Any]]]
    """By arm and check."""

    def by(self, verdict: str, arm: str = ARM) -> set[str]:
        """The arm's checks with this verdict."""
        return {name for name, check in self.checks[arm].items() if check["verdict"] == verdict}

    def alone(self, arm: str = ARM) -> int:
        """The exit code of a run of this arm and no other."""
        checks = self.checks[arm].values()
        return arm_exit_code(
            _Decided(Verdict(check["verdict"]), bool(check["details"].get(LACKING))) for check in checks
        )

    @property
    def told(self) -> str:
        """The verdicts that decided, for the message of a failed test."""
        lines = (
            f"{arm} {name} {check['verdict']}: {check['summary']}"
            for arm, checks in self.checks.items()
            for name, check in checks.items()
            if check["verdict"] != "not_run"
        )
        return "\n".join([f"exit code {self.code}", *lines])


def audited(folder: Path, shape: Shape, *options: str) -> Ended:
    """Run the suite in `folder`; a run that ends with another code than 0, 1 or 3 fails the test."""
    path, results = folder / "suite.yaml", folder / "results.json"
    path.write_text(json.dumps(shape.document()))
    done = invoke("run", str(path), "--store", str(folder / "audit.db"), "--results", str(results), *options)
    if done.exception is not None and not isinstance(done.exception, SystemExit):
        # the exit code 1 of a crash is no verdict
        raise done.exception
    assert done.exit_code in (0, 1, 3), done.stdout + done.stderr
    checks: dict[str, dict[str, Any]] = {}
    for check in json.loads(results.read_text(encoding="utf-8"))["checks"]:
        checks.setdefault(check["arm"], {})[check["check"]] = check
    return Ended(done.exit_code, done.stdout, checks)

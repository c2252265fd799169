"""Runs for tests of gates and attachments: as values, and in a real store."""

from __future__ import annotations

from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path

from audit.evidence.environment import fingerprint
from audit.evidence.records import ArmKind, Level
from audit.evidence.verdicts import CheckResult, Verdict
from audit.gate.facts import ArmWorkload, RunFacts, SampledRequests
from audit.gate.serving_profile import SampledSetting
from audit.store import (
    ArmCounts,
    ArtifactRef,
    NewArm,
    NewCheck,
    NewRequest,
    RunStatus,
    Store,
    StoredArm,
    StoredCheck,
    StoredRun,
)
from engine.record.effective import Effective
from tests.audit.store.build import generation, start

NOW = datetime(2026, 5, 1, 12, tzinfo=UTC)
TARGET, DRAFT, TOKENIZER, SUITE = ("a" * 64, "b" * 64, "c" * 64, "d" * 64)
CLAIMS = {
    "second_accounts": "accounts",
    "greedy_equality": "equality",
    "coupled_equality": "equality",
    "replay": "replay",
    "law": "law",
    "acceptance_theory": "acceptance",
    "liveness": "liveness",
    "configuration": "configuration",
    "identity": "identity",
    "surface_parity": "surface",
    "reconciliation": "evidence",
    "accounting": "accounting",
    "honoured": "parameters",
    "two_sample": "text",
    "seed": "seed",
    "performance": "cost",
}


def arm(name: str, verifier: str, temperature: float, **changes: object) -> StoredArm:
    """A candidate arm that emitted 600 tokens and used the draft model `small`."""
    spec = {"name": name, "verifier": verifier, "sampling": {"temperature": temperature}, "fault": None}
    spec |= {"draft": "small", "other_drafts": []}
    counts = ArmCounts(requests=8, output=600, steps=300, drafted=900, accepted=300)
    made = StoredArm(name, ArmKind.CANDIDATE, Level.L4, True, spec, Effective(), counts)
    return replace(made, **changes)


def check(arm_name: str, name: str, verdict: Verdict = Verdict.CERTIFIED, level: Level = Level.L4) -> StoredCheck:
    """A stored result."""
    numbers = (None, None, None, None, None)
    return StoredCheck(arm_name, name, CLAIMS[name], level, verdict, 9, *numbers, "told so", (), {}, NOW)


def facts() -> RunFacts:
    """A run of a greedy and a sampled arm that the standard policy allows."""
    run = StoredRun(
        ulid="01J00000000000000000000000",
        suite_name="trial",
        suite_sha256=SUITE,
        suite_document={},
        status=RunStatus.FINISHED,
        started_at=NOW,
        finished_at=NOW,
        actor="tester",
        code_commit=None,
        artifacts=(
            ArtifactRef("target", "target", "bundled:big", None, TARGET),
            ArtifactRef("draft", "small", "bundled:small", None, DRAFT),
            ArtifactRef("tokenizer", "tokenizer", "bundled:big", None, TOKENIZER),
        ),
        environment=fingerprint({}, {}, {}),
        arms=(
            StoredArm("baseline", ArmKind.BASELINE, Level.L4, True, {}, Effective(), ArmCounts(output=10_000)),
            arm("greedy", "greedy", 0.0),
            arm("sampled", "chain", 0.8),
        ),
        events=(),
        tokens=11_200,
        record_root="e" * 64,
        content_root="f" * 64,
        exit_code=0,
    )
    checks = (
        check("greedy", "greedy_equality"),
        check("greedy", "replay"),
        check("greedy", "acceptance_theory", Verdict.NOT_RUN),
        check("greedy", "law", Verdict.NOT_RUN),
        check("sampled", "greedy_equality", Verdict.NOT_RUN),
        check("sampled", "replay"),
        check("sampled", "law"),
        check("sampled", "acceptance_theory"),
    )
    return RunFacts(run, checks, workloads={"greedy": asked(0.0), "sampled": asked(0.8)})


def asked(temperature: float, choices: int | None = 100, **setting: object) -> ArmWorkload:
    """The workload of an arm at one setting."""
    sampled = SampledRequests(SampledSetting(temperature, **setting), 8, choices)
    if not temperature:
        return ArmWorkload(8, 600, 8, frozenset({"chat"}), 100, (), frozenset({"greedy"}))
    return ArmWorkload(8, 600, 8, frozenset({"chat"}), 100, (sampled,), frozenset())


def stored_run(
    folder: Path,
    verdicts: dict[str, Verdict] | None = None,
    artifacts: tuple[ArtifactRef, ...] | None = None,
    exit_code: int = 0,
) -> str:
    """The URL of a store whose latest run has one sampled arm `spec` with these verdicts."""
    url = f"sqlite:///{folder / 'audit.db'}"
    spec = {"name": "spec", "verifier": "chain", "sampling": {"temperature": 1.0}, "fault": None, "draft": "draft"}
    candidate = NewArm("spec", ArmKind.CANDIDATE, Level.L4, spec, Effective(), True)
    begun = start(arms=(candidate,))
    if artifacts is not None:
        begun = replace(begun, artifacts=artifacts)
    with Store.open(url, create=True) as store:
        run = store.begin_run(begun)
        store.add_requests(run, [NewRequest("spec", "chat", "case-a", 0, generation(((4, 4), (4, 1), (2, 0)), seed=3))])
        for name, verdict in (verdicts or PASSING).items():
            store.add_check(run, NewCheck("spec", name, CLAIMS[name], Level.L4, CheckResult(verdict, "told so", n=9)))
        store.finish_run(run, RunStatus.FINISHED, exit_code)
    return url


PASSING = dict.fromkeys(("replay", "law", "acceptance_theory"), Verdict.CERTIFIED)
SMALL_POLICY = """\
version: 1
name: small
require:
  - {claim: replay, checks: [replay]}
  - {claim: law, checks: [law]}
evidence: {min_tokens: 5, max_age: 30d, min_level: L3, stored_verdicts: true}
"""

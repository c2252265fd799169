"""Synthetic runs for tests of the store: vocabulary 8, traces made by the engine's recorder."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path
from types import MappingProxyType
from typing import Any

import numpy as np
from sqlalchemy import Connection, text

from audit.evidence.environment import fingerprint
from audit.evidence.records import ArmKind, Level
from audit.evidence.verdicts import CheckResult, Finding, Verdict
from audit.store import (
    ArtifactRef,
    Attachment,
    NewArm,
    NewCheck,
    NewJudgement,
    NewRequest,
    NewRun,
    RunStatus,
    SituationCount,
    Store,
    StoredDecision,
)
from audit.store.base.connection import open_engine, open_readonly, parse_url
from audit.store.ledger.log import LoggedSession, seal
from audit.store.reading.attestations import Registration, StoredAttestation
from audit.store.reading.watches import WatchReading, WatchSettings
from audit.store.tables.content import CONTENT, ErasureRow
from engine.core.types import (
    Emitted,
    Examined,
    FinishReason,
    Generation,
    Proposal,
    Protocol,
    QKind,
    RecordLevel,
    Request,
    Role,
    SamplingParams,
    StepOutcome,
    StepRecord,
    Timing,
    Tree,
)
from engine.record.effective import Effective
from engine.record.recorder import Recorder
from engine.record.trace import TraceHeader

DRAFTING = Effective.from_json({"gamma": 4, "rate": 0.1})
VOCABULARY = 8
BIG_STREAM = 2**64 - 1


EVENTS = MappingProxyType(
    {
        "constraint": {"library": "llguidance", "version": "1.9", "refused": 2, "whole": True},
        "tools": {
            "calls": [{"name": "weather", "arguments": {"city": "Bern"}}, {"name": "time", "arguments": {}}],
            "spans": [[0, 2], [2, 4]],
            "problem": "a call without an end",
        },
        "stream": {
            "filters": [
                {"component": "words", "version": "1", "ruleset": "f" * 64, "action": "redact", "side": "output"},
                {"component": "secrets", "version": "2", "ruleset": "e" * 64, "action": "refuse", "side": "prompt"},
            ],
            "decisions": [
                {"filter": 1, "category": "key", "token": -1, "start": 0, "end": 4, "action": "refuse"},
                {"filter": 0, "category": "insult", "token": 1, "start": 3, "end": 9, "action": "redact"},
            ],
            "chunks": [],
            "read": 0,
            "held": 0,
        },
    }
)
"""Facts of a request under a grammar, with tool calls and with filters that reacted."""


def step(index: int, position: int, drafted: tuple[int, ...], kept: int, rng: np.random.Generator) -> StepRecord:
    """One chain step that keeps the first `kept` drafted tokens and adds one more."""
    n = len(drafted)
    logits = rng.normal(size=(kept + 1, VOCABULARY)).astype(np.float32)
    last = Role.PLAIN if n == 0 else (Role.BONUS if kept == n else Role.RECOVERED)
    emitted = tuple(Emitted(token, Role.ACCEPTED, i, 0.5) for i, token in enumerate(drafted[:kept]))
    extra = Emitted(int(rng.integers(VOCABULARY)), last, kept, 0.25, 0.75)
    examined = tuple(Examined(i, 0.5, 0.5, 0.5, i < kept) for i in range(min(kept + 1, n)))
    q = np.full((n, VOCABULARY), 1 / VOCABULARY)
    proposal = Proposal(Tree.chain(drafted), QKind.FULL, q, np.full(n, 0.5)) if n else Proposal()
    decided = StepOutcome((*emitted, extra), examined)
    return StepRecord(index, position, proposal, decided, logits, logits.astype(np.float64), Timing(7 + n, 11, 1))


def generation(
    plan: tuple[tuple[int, int], ...],
    *,
    seed: int = 0,
    text: str = "text",
    name: str = "r0",
    sampling: SamplingParams | None = None,
    level: RecordLevel = RecordLevel.FULL,
    facts: Mapping[str, Any] = MappingProxyType({}),
) -> Generation:
    """A generation whose steps draft and keep the numbers of tokens in `plan`."""
    rng = np.random.default_rng(seed)
    request = Request(name, (1, 2, 3), sampling or SamplingParams(temperature=1.0, seed=2**62 + 1), BIG_STREAM)
    header = TraceHeader(
        request=name,
        level=level,
        protocol=Protocol.CHAIN,
        lossless=True,
        proposer="draft_model",
        vocabulary=VOCABULARY,
        stream=request.stream,
        sampling=request.sampling,
        eos_ids=(0,),
        finish_reason=FinishReason.LENGTH,
        prompt=request.prompt,
        facts=dict(facts),
    )
    recorder, tokens = Recorder(header), []
    for index, (drafted, kept) in enumerate(plan):
        made = step(index, 3 + len(tokens), tuple(int(t) for t in rng.integers(VOCABULARY, size=drafted)), kept, rng)
        recorder.step(made)
        tokens.extend(each.token for each in made.verdict.emitted)
    trace = recorder.finish(FinishReason.LENGTH)
    return Generation(request, tuple(tokens), FinishReason.LENGTH, trace, text, 1000 + seed)


def start(**changes: object) -> NewRun:
    """What a run of two arms begins with."""
    target = ArtifactRef("target", "target", "big", "main", "a" * 64, {"files": []})
    draft = ArtifactRef("draft", "draft", "small", None, "b" * 64, {})
    baseline = NewArm("base", ArmKind.BASELINE, Level.L4, {"verifier": "none"}, Effective.from_json({"batch": 1}), True)
    tokenizer = ArtifactRef("tokenizer", "tokenizer", "big", None, "9" * 64, {})
    candidate = NewArm("spec", ArmKind.CANDIDATE, Level.L4, {"gamma": 4}, DRAFTING, True)
    begun = NewRun(
        suite_name="smoke",
        suite_sha256="c" * 64,
        suite_document={"version": 1, "name": "smoke"},
        artifacts=(target, draft, tokenizer),
        environment=fingerprint({"torch": "2"}, {"cpu": "x"}, {"version": "0"}),
        actor="tester",
        code_commit="d" * 40,
        arms=(baseline, candidate),
    )
    return replace(begun, **changes)


COUNTS = (SituationCount("bonus_token", 9, 4, 10), SituationCount("near_tie", 3, 3, None))
RESULT = CheckResult(
    verdict=Verdict.CERTIFIED,
    summary="all equal",
    n=12,
    statistic=float("nan"),
    p_value=0.5,
    bound=0.25,
    findings=(Finding("r0", 3, "differs"),),
    details={"rate": float("nan"), "by_domain": {"chat": [1, 2]}},
)


def fill(store: Store) -> str:
    """A running run with two requests per arm; returns its ULID."""
    run = store.begin_run(start())
    store.add_requests(run, [NewRequest("base", "chat", "case-a", 0, generation(((0, 0),) * 5, seed=1))])
    store.add_requests(run, [NewRequest("base", "code", "case-b", 0, generation(((0, 0),) * 3, seed=2))])
    store.add_requests(run, [NewRequest("spec", "chat", "case-a", 0, generation(((4, 4), (4, 1), (2, 0)), seed=3))])
    store.add_requests(run, [NewRequest("spec", "code", "case-b", 0, generation(((4, 2),), seed=4))])
    return run


def fill_finished(store: Store) -> str:
    """As `fill`, with two checks, and finished with exit code 1."""
    run = fill(store)
    _check(store, run)
    store.finish_run(run, RunStatus.FINISHED, 1)
    return run


def fill_eventful(store: Store) -> str:
    """As `fill`, with two checks, and another request with `EVENTS`."""
    run = fill(store)
    store.add_requests(
        run, [NewRequest("spec", "chat", "case-c", 0, generation(((4, 2), (3, 1)), seed=5, facts=EVENTS))]
    )
    _check(store, run)
    return run


def _check(store: Store, run: str) -> None:
    store.add_check(run, NewCheck("spec", "replay", "replay", Level.L4, RESULT, COUNTS))
    store.add_check(
        run, NewCheck("spec", "law", "law", Level.L3, replace(RESULT, verdict=Verdict.FAULT, summary="too far"))
    )


def made_store(folder: Path) -> str:
    """The URL of a store with one finished run."""
    url = f"sqlite:///{folder / 'audit.db'}"
    with Store.open(url, create=True) as store:
        fill_finished(store)
    return url


@contextmanager
def connected(url: str, *, read_only: bool = False) -> Iterator[Connection]:
    """A connection to a store past its facade, closed afterwards; the caller commits."""
    engine = (open_readonly if read_only else open_engine)(parse_url(url))
    try:
        with engine.connect() as connection:
            yield connection
    finally:
        engine.dispose()


def fill_every_table(url: str) -> None:
    """At least one row in every table of an upgraded store; the first request is erased."""
    with Store.open(url, create=False) as store:
        run = fill_eventful(store)
        store.finish_run(run, RunStatus.FINISHED, 1)
        store.add_pieces(run, chr)
        again = NewCheck("spec", "replay", "replay", Level.L4, RESULT, COUNTS)
        store.add_judgement(run, NewJudgement("ci", start().environment, (again,)))
        store.add_decision(StoredDecision(run, "e" * 64, {}, "allow", (), "ci", datetime.now(UTC)))
        store.attestations.add([StoredAttestation(run, "t", "c" * 64, "{}", (), datetime.now(UTC))])
        store.attestations.register(Registration("s", "a" * 64, "p", "b" * 64, "ci", datetime.now(UTC)))
        settings = WatchSettings("http://h/metrics", run, 0.5, "given", None, 4.0, 0.01, 60.0)
        watch = store.watches.begin(settings, "ci", datetime.now(UTC))
        store.watches.add(watch.id, [WatchReading("m", datetime.now(UTC), 60.0, drafts=2, drafted=8, accepted=6)])
        store.add_attachment(Attachment(run, "a" * 64, "b" * 64, "json", "r.json", {}, datetime.now(UTC)))
        store.add_checkpoint(lambda head: "note")
    erase_first(url)


def erase_first(url: str) -> None:
    """Erase the content of the first request."""
    engine = open_engine(parse_url(url))
    try:
        with LoggedSession(engine) as session, session.begin():
            named = ErasureRow(run_id=1, request_id=1, what=CONTENT, reason="asked for", actor="ci")
            named.created_at = datetime.now(UTC)
            session.add(named)
            session.flush()
            for table in ("content", "request_tokens", "token_trace"):
                session.execute(text(f"DELETE FROM {table} WHERE request_id = 1"))
            seal(session)
    finally:
        engine.dispose()

"""No false alarms: stores that only honest work made, of random shapes, pass the check.

`--honest N` sets their number. `python -m pytest tests/audit/store/test_honest_stores.py -m slow --honest 1000` takes
some minutes.
"""

from __future__ import annotations

import random
import shutil
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path

import pytest

from audit.evidence.records import Level
from audit.evidence.verdicts import Verdict
from audit.store import (
    Attachment,
    NewCheck,
    NewJudgement,
    NewRequest,
    RunReason,
    RunStatus,
    Store,
    StoredDecision,
    migrate,
)
from audit.store.writing.contents import KEY, OFF
from engine.core.types import RecordLevel
from tests.audit.store.build import COUNTS, RESULT, generation, start


def random_run(store: Store, chance: random.Random) -> str:
    """A run that was perhaps interrupted, without text, or never finished."""
    begun = start(reason=RunReason("a purpose", None) if chance.random() < 0.3 else RunReason())
    if chance.random() < 0.2:
        begun = replace(begun, arms=tuple(replace(arm, spec={**arm.spec, KEY: OFF}) for arm in begun.arms))
    run = store.begin_run(begun)
    for case in range(chance.randrange(5)):
        if chance.random() < 0.2:
            store.set_status(run, RunStatus.INTERRUPTED, "stopped by the user")
            store.set_status(run, RunStatus.RUNNING, "resumed")
        drafted = [chance.randrange(5) for _ in range(chance.randrange(1, 5))]
        plan = tuple((each, chance.randint(0, each)) for each in drafted)
        level = chance.choice([RecordLevel.FULL, RecordLevel.SCALARS, RecordLevel.TOKENS])
        made = generation(plan, seed=chance.randrange(99), text="\u00fc\x00\ud800 " * case, level=level)
        store.add_requests(run, [NewRequest(chance.choice(["base", "spec"]), "chat", f"case-{case}", 0, made)])
    for name in chance.sample(["replay", "law", "text"], chance.randrange(4)):
        found = replace(RESULT, verdict=chance.choice(list(Verdict)), effect=chance.choice([None, float("nan"), 1e-9]))
        store.add_check(run, NewCheck("spec", name, name, Level.L4, found, COUNTS if chance.random() < 0.5 else ()))
    end = chance.choice([RunStatus.FINISHED, RunStatus.FINISHED, RunStatus.INTERRUPTED])
    if end is RunStatus.FINISHED:
        store.finish_run(run, end, chance.randrange(4))
    else:
        store.set_status(run, end, "stopped")
    return run


def worked_on(store: Store, run: str, chance: random.Random) -> None:
    """What happens to a run later."""
    finished = store.run_status(run) is RunStatus.FINISHED
    if finished and chance.random() < 0.4:
        again = NewCheck("spec", "replay", "replay", Level.L4, RESULT, COUNTS)
        store.add_judgement(run, NewJudgement("ci", start().environment, (again,)))
    if chance.random() < 0.4:
        store.add_decision(StoredDecision(run, "e" * 64, {"a": [1.5]}, "allow", ("all",), "ci", datetime.now(UTC)))
    if finished and chance.random() < 0.4:
        store.add_attachment(Attachment(run, "a" * 64, "b" * 64, "json", "r.json", {}, datetime.now(UTC)))
    if chance.random() < 0.4:
        store.erase([store.plan_erasure(run)], "asked for", "ci")
    if chance.random() < 0.4:
        store.add_checkpoint(lambda head: f"note of {head.size}")


@pytest.mark.slow
def test_the_check_raises_no_alarm_on_honest_stores(tmp_path: Path, pytestconfig: pytest.Config) -> None:
    empty, path = tmp_path / "empty.db", tmp_path / "audit.db"
    migrate.upgrade(str(empty))
    alarms, runs = [], 0
    for seed in range(pytestconfig.getoption("--honest")):
        chance = random.Random(seed)
        for suffix in ("", "-wal", "-shm"):
            Path(f"{path}{suffix}").unlink(missing_ok=True)
        shutil.copy(empty, path)
        with Store.open(str(path), create=False) as store:
            for _ in range(chance.randrange(1, 4)):
                runs += 1
                worked_on(store, random_run(store, chance), chance)
        with Store.open(str(path), create=False, read_only=True) as store:
            unfinished = "it has no record root: it was never finished"
            alarms += [(seed, each) for each in store.damage() if each.message != unfinished]
            assert store.check_checkpoints(store.checkpoints()) == ()
    print(f"{pytestconfig.getoption('--honest')} stores, {runs} runs, {len(alarms)} alarms")
    assert alarms == []

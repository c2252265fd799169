"""Stored runs that the tests of the report share: hostile texts everywhere, and runs with nothing in them."""

from __future__ import annotations

from dataclasses import dataclass, replace

from audit.evidence.records import ArmKind, Level
from audit.evidence.verdicts import Finding, Verdict
from audit.store import NewArm, RunStatus, Store
from engine.record.effective import Effective
from tests.audit.store.build import COUNTS, RESULT, fill_finished, generation, start

HOSTILE = "<script>alert(1)</script><img src=x onerror=alert(2)> \u202eevil\x1b[31m `x` |y| [a](javascript:b) {{ 7*7 }}"


@dataclass(frozen=True)
class StoredRuns:
    """A store with a finished run, a run whose every text is hostile, and one without requests and checks."""

    url: str
    finished: str
    hostile: str
    empty: str


def stored_runs(url: str) -> StoredRuns:
    with Store.open(url, create=True) as store:
        return StoredRuns(url, fill_finished(store), hostile_run(store), store.begin_run(start()))


def hostile_run(store: Store) -> str:
    arm = NewArm(HOSTILE, ArmKind.CANDIDATE, Level.L4, {"fault": HOSTILE}, Effective.from_json({"gamma": 4}), True)
    run = store.begin_run(start(suite_name=HOSTILE, actor=HOSTILE, arms=(arm,)))
    store.add_request(run, HOSTILE, HOSTILE, HOSTILE, 0, generation(((4, 4), (2, 0)), seed=3, text=HOSTILE))
    finding = Finding(f"{HOSTILE}/{HOSTILE}#0", 1, HOSTILE)
    bad = replace(RESULT, verdict=Verdict.FAULT, summary=HOSTILE, findings=(finding,), margin=0.125)
    store.add_check(run, HOSTILE, "law", "law", Level.L4, bad, COUNTS)
    store.finish_run(run, RunStatus.FINISHED, 1)
    return run

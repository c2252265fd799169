"""Stored runs that the tests of the report share: hostile texts everywhere, and runs with nothing in them."""

from __future__ import annotations

from dataclasses import dataclass, replace

from audit.evidence.records import ArmKind, Level
from audit.evidence.verdicts import Finding, Verdict
from audit.store import NewArm, NewCheck, NewRequest, RunStatus, Store
from engine.record.effective import Effective
from tests.audit.store.build import COUNTS, RESULT, fill_finished, generation, start

HOSTILE = "<script>alert(1)</script><img src=x onerror=alert(2)> \u202eevil\x1b[31m `x` |y| [a](javascript:b) {{ 7*7 }}"


@dataclass(frozen=True)
class StoredRuns:
    """A store with a finished run, one with details, one whose every text is hostile, and one without requests."""

    url: str
    finished: str
    judged: str
    hostile: str
    empty: str


def stored_runs(url: str) -> StoredRuns:
    with Store.open(url, create=True) as store:
        return StoredRuns(url, fill_finished(store), judged_run(store), hostile_run(store), store.begin_run(start()))


PROBE = {
    "mode": "tiled",
    "passed": True,
    "dtype": "float32",
    "properties": [{"name": "products", "held": True, "detail": "", "promised": True}],
}
NUMERICS = {"mode": "tiled", "requested": "auto", "promises": "tree", "reason": None, "probe": PROBE}
LAW = {
    "alternatives": [{"name": "draft leak 0.003", "log_e": -0.25, "share": 0.0625}],
    "components": [
        {
            "name": "log p",
            "stratum": "all",
            "n": 12,
            "statistic": 0.5,
            "p": 0.25,
            "p_adjusted": 1.0,
            "effect": 0.125,
            "unit": "nats per token",
        }
    ],
}


def judged_run(store: Store) -> str:
    """A finished run whose arm reports its arithmetic, with the details of real checks."""
    effective = Effective.from_json({"gamma": 4, "numerics": NUMERICS})
    arm = NewArm("spec", ArmKind.CANDIDATE, Level.L4, {"sampling": {"temperature": 1.0}}, effective, True)
    run = store.begin_run(start(arms=(arm,)))
    for index in range(3):
        plan = ((4, 4), (4, 1), (2, 0)) * 4
        store.add_requests(
            run, [NewRequest("spec", "chat", f"case-{index}", 0, generation(plan, seed=index, name=f"r{index}"))]
        )
    law = replace(RESULT, findings=(), details=LAW, effect=0.0625, margin=0.5)
    bits = replace(RESULT, findings=(), details={"positions": 12, "differing": 0})
    bad = replace(RESULT, verdict=Verdict.FAULT, findings=(Finding("spec/case-1#0", 2, "differs"),))
    for name, result in {"law": law, "bitwise": bits, "replay": bad}.items():
        store.add_check(run, NewCheck("spec", name, name, Level.L4, result, COUNTS))
    store.finish_run(run, RunStatus.FINISHED, 1)
    return run


def hostile_run(store: Store) -> str:
    arm = NewArm(HOSTILE, ArmKind.CANDIDATE, Level.L4, {"fault": HOSTILE}, Effective.from_json({"gamma": 4}), True)
    run = store.begin_run(start(suite_name=HOSTILE, actor=HOSTILE, arms=(arm,)))
    store.add_requests(
        run, [NewRequest(HOSTILE, HOSTILE, HOSTILE, 0, generation(((4, 4), (2, 0)), seed=3, text=HOSTILE))]
    )
    finding = Finding(f"{HOSTILE}/{HOSTILE}#0", 1, HOSTILE)
    bad = replace(RESULT, verdict=Verdict.FAULT, summary=HOSTILE, findings=(finding,), margin=0.125)
    store.add_check(run, NewCheck(HOSTILE, "law", "law", Level.L4, bad, COUNTS))
    store.finish_run(run, RunStatus.FINISHED, 1)
    return run

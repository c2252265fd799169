"""The runs that the browser is shown: real ones of three engines, one with a fault, and made-up ones."""

from __future__ import annotations

import shutil
from dataclasses import dataclass, replace
from pathlib import Path

import pytest

from audit.evidence.records import ArmKind, Level
from audit.evidence.verdicts import Finding, Verdict
from audit.store import NewArm, NewCheck, NewRequest, RunStatus, Store
from engine.record.effective import Effective
from tests.audit.invoke import invoke
from tests.audit.report.html.runs import HOSTILE, stored_runs
from tests.audit.store.build import COUNTS, RESULT, generation, start
from tests.http.running import run_suite

ROOT = Path(__file__).parents[2]
BUNDLE = ROOT / "build" / "browser" / "vllm-small.zip"
"""What `tests/vllm/test_run_for_pages.py` leaves."""
LONG = "<b onclick=alert(1)>long</b> " * 36_000
"""A line of one megabyte."""
BYTES = b"\xff\xfe\xc3(\xed\xa0\x80 broken".decode("utf-8", "replace")
MARKUP = (
    HOSTILE,
    "</pre></code></table></main><script>window.hit=1</script>",
    '"><svg onload="window.hit=1"><style>*{display:none}</style>',
    '<a href="javascript:window.hit=1">x</a><form action=//evil.example><input autofocus onfocus=window.hit=1>',
    "\u202e\u2066\u200b\u00ad\x00\x07\x9b31m\x1b]0;title\x07",
    BYTES,
)


@dataclass(frozen=True)
class ShownRun:
    """A run to look at: the store that has it, its ULID, and the name of a request with drafts, if it has requests."""

    store: str
    run: str
    request: str | None


def quickstart(folder: Path, given: str | None) -> ShownRun:
    """The packaged quickstart: from a store that has it, or run here."""
    store = folder / "quickstart.db"
    if given:
        shutil.copy(given, store)
    else:
        _run("quickstart", store)
    return _shown(store, "rejection")


def known_bad(folder: Path) -> ShownRun:
    """An engine that is broken on purpose."""
    store = folder / "bad.db"
    _run(str(ROOT / "suites" / "known_bad" / "greedy_accepts_top2.yaml"), store)
    return _shown(store)


def endpoint(folder: Path, serve) -> ShownRun:
    """An endpoint with speculation against one without."""
    with serve() as baseline, serve(gamma=3) as candidate:
        done = run_suite("greedy", baseline.url, candidate.url, folder)
    assert done.code in (0, 3), done.output + done.errors
    return _shown(done.store)


def vllm(folder: Path) -> ShownRun | None:
    """A run of vLLM from its bundle; None where none was made."""
    if not BUNDLE.exists():
        return None
    store = folder / "vllm.db"
    done = invoke("import", str(BUNDLE), "--store", str(store))
    assert done.exit_code == 0, done.stderr
    return _shown(store)


def empty(folder: Path) -> ShownRun:
    """A run whose arms have no requests."""
    runs = stored_runs(f"sqlite:///{folder / 'made.db'}")
    return ShownRun(runs.url, runs.empty, None)


def hostile(folder: Path) -> ShownRun:
    """A run whose texts are markup, control characters, a line of a megabyte, and what is left of broken bytes."""
    url = f"sqlite:///{folder / 'hostile.db'}"
    with Store.open(url, create=True) as store:
        arm = NewArm(HOSTILE, ArmKind.CANDIDATE, Level.L4, {"fault": HOSTILE}, Effective.from_json({"gamma": 4}), True)
        run = store.begin_run(start(suite_name=MARKUP[1], actor=MARKUP[2], arms=(arm,)))
        for place, text in enumerate((*MARKUP, LONG)):
            name = text[:200].replace("\x00", "")
            made = generation(((4, 4), (2, 0)), seed=place, text=text.replace("\x00", ""))
            store.add_requests(run, [NewRequest(HOSTILE, name, name, place, made)])
        finding = Finding(f"{HOSTILE}/{HOSTILE}#0", 1, LONG)
        bad = replace(RESULT, verdict=Verdict.FAULT, summary=MARKUP[1], findings=(finding,), margin=0.125)
        store.add_check(run, NewCheck(HOSTILE, "law", "law", Level.L4, bad, COUNTS))
        store.finish_run(run, RunStatus.FINISHED, 1)
    return ShownRun(url, run, f"{HOSTILE}/{HOSTILE}#0")


def _run(suite: str, store: Path) -> None:
    done = invoke("run", suite, "--store", str(store), "--results", str(store.with_suffix(".json")))
    assert done.exit_code in (0, 1), done.stdout + done.stderr


def _shown(store: Path, arm: str | None = None) -> ShownRun:
    with Store.open(str(store), create=False, read_only=True) as opened:
        run = opened.load_run(opened.list_runs(1)[0].ulid)
        names = [arm] if arm else [one.name for one in run.candidates]
        key = min(key for key in opened.finished(run.ulid) if key.arm in names)
    return ShownRun(str(store), run.ulid, key.name)


def chromium_missing(path: str) -> None:
    """Fail with the way to get it."""
    if not Path(path).exists():
        pytest.fail(f"{path}: no Chromium; install it: apt-get install chromium")

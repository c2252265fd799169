"""Packaged suites on a real engine, run by the command line in this environment."""

import json
import os
import subprocess
import sys
from pathlib import Path

from audit.evidence.records import ArmKind
from audit.store import Store
from tests.audit.agreement import misses

ROOT = Path(__file__).parents[2]
TIMEOUT = 1500


def verdicts(out, suite, *more):
    """The exit code, and verdicts and findings by arm and check."""
    results = out / "results.json"
    done = audit("run", str(suite), *more, "--store", f"sqlite:///{out / 'audit.db'}", "--results", str(results))
    assert done.returncode in (0, 1, 3), done.stderr[-4000:]
    checks = json.loads(results.read_text(encoding="utf-8"))["checks"]
    return done.returncode, {(check["arm"], check["check"]): check for check in checks}


def surprises(suite, judged):
    """Verdicts, by arm and check, that differ from the plan that a trial of the suite gives."""
    done = audit("plan", str(suite), "--trial", "--json")
    assert done.returncode in (0, 3), done.stderr[-4000:]
    differing = misses(json.loads(done.stdout), {"checks": judged.values()})
    return {key: verdict.value for key, (_, verdict) in differing.items()}


def audit(*arguments, timeout=TIMEOUT):
    """The command line, from the root of the project."""
    return subprocess.run(
        [str(Path(sys.executable).with_name("audit")), *arguments],
        cwd=ROOT,
        env={**os.environ, "OMP_NUM_THREADS": "1"},
        capture_output=True,
        text=True,
        timeout=timeout,
        check=False,
    )


def uncertified(judged):
    return {key: check["verdict"] for key, check in judged.items() if check["verdict"] != "certified"}


def silent(out):
    """Cells of a parameter matrix that show nothing: arms without a draft, and values that change no arm's answers.

    An engine that counts no drafts says how many tokens each step committed: one with several kept a draft.
    """
    with Store.open(f"sqlite:///{out / 'audit.db'}", create=False, read_only=True) as store:
        run = store.load_run(store.resolve("latest"))
        candidates = [arm for arm in run.arms if arm.kind is ArmKind.CANDIDATE]
        records = {arm.name: store.load_arm(run.ulid, arm.name).requests for arm in candidates}
        answers = {name: {each.key: each.tokens for each in requests} for name, requests in records.items()}
        undrafted = {arm.name for arm in candidates if not (arm.counts.drafted or _kept_drafts(records[arm.name]))}
    varied = {name: name.partition(".")[0] for name in answers if "." in name}
    return undrafted | {name for name, base in varied.items() if answers[name] == answers[base]}


def _kept_drafts(requests):
    accounts = [each.trace.header.facts.get("speculation", {}) for each in requests]
    return sum(max(account.get("per_step_emitted", [0])) > 1 for account in accounts)

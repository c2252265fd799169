"""A suite planned and run: which checks each of the two says will not, and did not, run."""

import json
from dataclasses import dataclass
from datetime import datetime

from audit.api.running import Quiet
from audit.checks import REGISTRY
from audit.evidence.verdicts import Verdict
from audit.runs.prepare import prepare
from audit.runs.runner import run
from audit.runs.sizing import RunHistory, plan
from audit.store import Store
from audit.suite.loader import load_suite
from tests.audit.invoke import invoke

EVERY = tuple(REGISTRY)


def write_suite(folder, document, prompts):
    """A suite file whose arms all have every check; JSON is YAML."""
    rows = [{"id": f"case-{i}", "prompt": each} for i, each in enumerate(prompts)]
    (folder / "prompts.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    arms = [{"checks": list(EVERY), **arm} for arm in document["arms"]]
    whole = {
        "version": 1,
        "name": "agreement",
        "seed": 5,
        "samples": 2,
        "batch_size": 2,
        "workloads": [{"name": "words", "prompts": "prompts.jsonl"}],
        **document,
        "arms": arms,
    }
    path = folder / "suite.yaml"
    path.write_text(json.dumps(whole))
    return load_suite(path)


WORDS = {"enough": Verdict.CERTIFIED, "too_little": Verdict.INCONCLUSIVE, "not_run": Verdict.NOT_RUN}
"""Outcomes of a plan, and the verdicts that a clean engine should get."""


def misses(plan, results):
    """Checks that ended otherwise than a plan said, of the documents of `audit plan --json` and of results.json."""
    said = {(check["arm"], check["check"]): WORDS[check["outcome"]] for check in plan["checks"]}
    ended = {(check["arm"], check["check"]): Verdict(check["verdict"]) for check in results["checks"]}
    return {
        key: (said.get(key), ended.get(key)) for key in said.keys() | ended.keys() if said.get(key) != ended.get(key)
    }


@dataclass(frozen=True)
class Ended:
    """A suite planned with a trial, then run: both exit codes, and both documents."""

    codes: tuple
    plan: dict
    results: dict


def with_trial(suite, folder):
    """Plan a suite from a trial, then run it."""
    store, results = str(folder / "audit.db"), folder / "results.json"
    tried = invoke("plan", str(suite), "--trial", "--json", "--store", store)
    done = invoke("run", str(suite), "--store", store, "--results", str(results))
    assert results.exists(), tried.stderr + done.stderr
    return Ended((tried.exit_code, done.exit_code), json.loads(tried.stdout), json.loads(results.read_text()))


def run_seconds(results):
    """The time from a run's beginning to its end."""
    begun, ended = (datetime.fromisoformat(results["run"][name]) for name in ("started_at", "finished_at"))
    return (ended - begun).total_seconds()


def planned(suite):
    """Arms and checks that the plan says will not run, with the reason."""
    found = plan(suite, RunHistory()).checks
    assert {each.outcome for each in found} <= {"enough", "too_little", "not_run"}
    return {(each.arm, each.check): each.mend for each in found if each.outcome == "not_run"}


def ran(suite, folder):
    """Arms and checks that did not run, with the reason."""
    with Store.open(f"sqlite:///{folder / 'audit.db'}", create=True) as store:
        done = run(prepare(suite), store, Quiet())
        checks = store.checks(done.run)
    return {(each.arm, each.check): each.summary for each in checks if each.verdict is Verdict.NOT_RUN}


def differences(suite, folder):
    """Where plan and run disagree: the arm, the check, and what each says; empty if they agree everywhere."""
    before, after = planned(suite), ran(suite, folder)
    assert before, "a suite in which everything runs shows nothing"
    return {key: (before.get(key), after.get(key)) for key in before.keys() ^ after.keys()}

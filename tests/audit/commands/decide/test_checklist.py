"""`audit checklist`: each answer is the record's, and what the record lacks is named."""

from __future__ import annotations

import json
from dataclasses import replace
from datetime import UTC, datetime, timedelta

import pytest

from audit.evidence.records import ArmKind, Level
from audit.evidence.verdicts import Verdict
from audit.store import ArtifactRef, NewArm, NewCheck, NewRequest, RunStatus, Store
from audit.store.reading.watches import WatchReading, WatchSettings
from engine.record.effective import Effective
from tests.audit.invoke import invoke
from tests.audit.store.build import COUNTS, RESULT, fill_finished, generation, start

SAMPLES = 100
FACTS = {"facts": {"architecture": "llama", "dtype": "float32"}, "files": {"config.json": {"sha256": "0" * 64}}}


def whole_run(store, *, verdict=Verdict.CERTIFIED, name="big", manifest=FACTS):
    """A run that answers all that a run can: timed, long enough, compared with its baseline."""
    models = tuple(ArtifactRef(kind, kind, name, None, "a" * 64, manifest) for kind in ("target", "draft"))
    effective = Effective.from_json({"rows": 8})
    baseline = NewArm("base", ArmKind.BASELINE, Level.L4, {}, effective, True)
    candidate = NewArm("spec", ArmKind.CANDIDATE, Level.L4, {"baseline": "base", "rows": 8}, effective, True)
    document = {"version": 1, "name": "own", "workloads": [{"name": "tickets", "prompts": "tickets.jsonl"}]}
    run = store.begin_run(start(arms=(baseline, candidate), artifacts=models, suite_document=document))
    for sample in range(SAMPLES):
        store.add_requests(run, [NewRequest("base", "chat", "case-a", sample, generation(((0, 0),) * 5, seed=sample))])
        store.add_requests(
            run, [NewRequest("spec", "chat", "case-a", sample, generation(((4, 3), (4, 1)), seed=sample))]
        )
    for check in ("greedy_equality", "long_context"):
        store.add_check(run, NewCheck("spec", check, "equality", Level.L4, replace(RESULT, verdict=verdict), COUNTS))
    store.finish_run(run, RunStatus.FINISHED, 0)
    return run


def watched(store, run, *, alarm=None):
    begun = datetime(2026, 11, 1, tzinfo=UTC)
    watch = store.watches.begin(
        WatchSettings("http://h/metrics", run, 0.4, "given", None, 4.0, 0.01, 60.0), "ci", begun
    )
    counts = [(None, "the first reading: nothing to compare with", None), (800, None, None), (200, None, alarm)]
    readings = [
        WatchReading(
            "m", begun + timedelta(minutes=place), 60.0, gap, drafted=drafted, accepted=drafted and drafted // 2
        )
        for place, (drafted, gap, _) in enumerate(counts)
    ]
    store.watches.add(watch.id, [replace(one, alarm=given) for one, (*_, given) in zip(readings, counts, strict=True)])


@pytest.fixture
def url(tmp_path):
    return f"sqlite:///{tmp_path / 'audit.db'}"


def items(url, *options):
    result = invoke("checklist", "--json", "--store", url, *options)
    assert result.exit_code in (0, 3), result.output
    return {item["key"]: item for item in json.loads(result.stdout)}


def standings(url, *options):
    return {key: item["standing"] for key, item in items(url, *options).items()}


@pytest.mark.medium
def test_a_run_that_is_watched_answers_every_question(url):
    with Store.open(url, create=True) as store:
        watched(store, whole_run(store))
    stated = ("--concurrency", "8", "--context", "9")
    found = items(url, *stated)
    assert {item["standing"] for item in found.values()} == {"shown"}
    assert "500 of 1000 drafted tokens as accepted (0.500), alarms: 0" in found["traffic"]["answer"]
    assert found["concurrency"]["answer"] == "up to 8 requests at once, production has 8"
    assert found["p99"]["answer"] == "P99 of a request: spec 1 ms, its baseline 1 ms"
    assert f"{SAMPLES} of {SAMPLES} answers, 400 of 800 drafted tokens accepted" in found["short_answers"]["answer"]
    assert found["fallback"]["answer"] == "greedy_equality certified in spec (the same tokens)"
    assert invoke("checklist", "--require-all", "--store", url, *stated).exit_code == 0


@pytest.mark.medium
def test_what_production_has_and_the_run_has_not_is_short(url):
    with Store.open(url, create=True) as store:
        whole_run(store)
    found = items(url, "--concurrency", "64", "--context", "32000")
    assert {found[key]["standing"] for key in ("traffic", "concurrency", "long_contexts")} == {"short"}
    assert found["concurrency"]["next"] == "run the suite with batch_size 64"
    assert "tickets" in found["traffic"]["answer"]
    assert standings(url)["concurrency"] == "short"
    assert invoke("checklist", "--require-all", "--store", url).exit_code == 3
    assert invoke("checklist", "--store", url).exit_code == 0


@pytest.mark.medium
def test_an_alarm_of_the_watch_is_part_of_the_answer(url):
    with Store.open(url, create=True) as store:
        watched(store, whole_run(store), alarm="fall")
    assert "alarms: 1" in items(url)["traffic"]["answer"]


@pytest.mark.medium
def test_a_fault_of_equality_means_that_the_fallback_answers_otherwise(url):
    with Store.open(url, create=True) as store:
        whole_run(store, verdict=Verdict.FAULT)
    found = items(url)["fallback"]
    assert (found["standing"], found["next"]) == ("short", "the answers change")


@pytest.mark.medium
@pytest.mark.parametrize(("name", "trait"), [("qwen-7b-awq", "quantised"), ("mixtral-8x7b", "experts")])
def test_a_target_of_another_kind_is_named(url, name, trait):
    with Store.open(url, create=True) as store:
        whole_run(store, name=name)
    assert f"by name {trait}" in items(url)["target"]["answer"]


@pytest.mark.medium
def test_a_served_model_has_no_digest(url):
    with Store.open(url, create=True) as store:
        whole_run(store, manifest={})
    found = standings(url)
    assert (found["pins"], found["target"]) == ("short", "missing")


@pytest.mark.medium
def test_a_small_run_names_what_it_lacks(url):
    with Store.open(url, create=True) as store:
        fill_finished(store)
    found = items(url)
    assert {key for key, item in found.items() if item["standing"] == "missing"} >= {"concurrency", "p99"}
    assert found["fallback"]["next"] == "the answers change"
    assert all(item["next"] for item in found.values() if item["standing"] != "shown")


@pytest.mark.medium
def test_a_run_without_requests_is_answered_too(url):
    with Store.open(url, create=True) as store:
        store.begin_run(start())
    assert "shown" not in {key: value for key, value in standings(url).items() if key != "pins"}.values()

"""The gate requires a watched server: the watch itself writes the series, over the pages of a simulated server."""

from __future__ import annotations

import sqlite3
from dataclasses import dataclass, replace
from datetime import UTC, datetime, timedelta
from pathlib import Path

import numpy as np
import pytest

from audit.evidence.records import Level
from audit.evidence.verdicts import CheckResult, Verdict
from audit.gate.decision import Decision, next_step
from audit.gate.judge import considered
from audit.gate.judgement import GateRequest
from audit.gate.policy import load_policy
from audit.store import ArtifactRef, NewCheck, NewRequest, RunStatus, Store
from audit.store.reading.watches import WatchSettings
from audit.watch.follow import Follower
from audit.watch.reference import of_run
from tests.audit.gate.runs import stored_run
from tests.audit.invoke import invoke
from tests.audit.store.build import generation, start
from tests.audit.watch.metrics_server import vllm_page

POLICY = """\
version: 1
name: watched
require:
  - {claim: replay, checks: [replay]}
evidence: {min_tokens: 5, max_age: 30d, stored_verdicts: true}
watched: %s
"""
NOW = datetime.now(UTC) + timedelta(hours=1)
"""Later than any run of these tests, which begin long after this module was imported on a slow machine."""
URL = "http://server:8000/metrics"
OTHER = "http://other:8000/metrics"
STEP = timedelta(minutes=20)


@dataclass(frozen=True)
class Traffic:
    """A server's day before `end`: a page every twenty minutes, each with `drafts` more drafts at `rate`."""

    rate: float = 0.7
    begin: timedelta = timedelta(days=1, minutes=20)
    end: timedelta = timedelta()
    drafts: int = 1000
    model: str = "m"
    down: tuple[int, int] = (0, 0)
    """Looks without an answer, from and to."""
    restart: int | None = None


@dataclass(frozen=True)
class Place:
    """A store with a run that accepted half or more of its drafts."""

    url: str
    run: str
    folder: Path

    def settings(self, **changes: object) -> WatchSettings:
        with Store.open(self.url, create=False) as store:
            reference = of_run(store, self.run, None, 0.1).rate
        made = WatchSettings(URL, self.run, reference, "a run", None, None, 0.01, 600.0)
        return replace(made, **changes)

    def watch(self, traffic: Traffic = Traffic(), **changes: object) -> None:
        rng, settings, pages = np.random.default_rng(5), self.settings(**changes), []
        with Store.open(self.url, create=False) as store:
            begun = store.watches.begin(settings, "ci", NOW - traffic.begin)
            follower = Follower(store, begun, lambda: pages[-1])
            total = accepted = 0
            for look in range(int((traffic.begin - traffic.end) / STEP) + 1):
                total, accepted = total + traffic.drafts, accepted + int(rng.binomial(4 * traffic.drafts, traffic.rate))
                if look == traffic.restart:
                    total = accepted = 0
                down = traffic.down[0] <= look < traffic.down[1]
                pages.append("" if down else vllm_page(total, accepted, traffic.model))
                at = NOW - traffic.begin + look * STEP
                follower.look(lambda moment=at: moment)

    def reasons(self, rule: str = "{days: 1}", now: datetime = NOW) -> list[str]:
        path = self.folder / "policy.yaml"
        path.write_text(POLICY % rule)
        with Store.open(self.url, create=False) as store:
            done = considered(store, "latest", GateRequest(load_policy(path), (), "ci", now, trust_verdicts=True))
        found = [reason for reason in done.outcome.reasons if reason.answer is not Decision.ALLOW]
        assert all(
            "audit watch URL" in str(next_step(each, self.run)) for each in found if each.requirement == "watched"
        )
        return [str(reason) for reason in found]


def a_run(store: Store, digest: str = "a" * 64) -> str:
    """A finished run of 12 prompts whose target has a digest; it accepted about 0.6 of its drafts."""
    run = store.begin_run(start(artifacts=(ArtifactRef("target", "target", "big", None, digest),)))
    for prompt in range(12):
        made = generation(((4, 3), (4, 2 + prompt % 2)) * 3, seed=prompt)
        store.add_requests(run, [NewRequest("spec", "chat", f"case-{prompt}", 0, made)])
    store.add_check(run, NewCheck("spec", "replay", "replay", Level.L4, CheckResult(Verdict.CERTIFIED, "told so", n=9)))
    store.finish_run(run, RunStatus.FINISHED, 0)
    return run


@pytest.fixture
def place(tmp_path) -> Place:
    url = f"sqlite:///{tmp_path / 'audit.db'}"
    with Store.open(url, create=True) as store:
        run = a_run(store)
    return Place(url, run, tmp_path)


@pytest.mark.medium
def test_a_watched_day_without_an_alarm_is_allowed(place):
    place.watch()
    assert place.reasons() == []


@pytest.mark.medium
def test_without_the_key_nobody_looks(place):
    path = place.folder / "plain.yaml"
    path.write_text("\n".join((POLICY % "").splitlines()[:-1]))
    result = invoke("gate", "latest", f"--policy={path}", f"--store={place.url}", "--trust-verdicts")
    assert result.exit_code == 0, result.output


@pytest.mark.medium
def test_no_watch(place):
    (reason,) = place.reasons()
    assert reason.startswith("cannot_decide: watched: the store has no watch of a server compared with run ")


@pytest.mark.medium
def test_an_alarm_blocks_while_it_is_in_the_window(place):
    place.watch(Traffic(rate=0.3, end=timedelta(hours=22)))
    place.watch(Traffic(begin=timedelta(hours=21)), interval_s=601.0)
    reasons = place.reasons()
    assert reasons[0].startswith(f"block: watched: {URL} m: acceptance fell below 0.5")
    assert " alarms, the last of " in reasons[0]
    assert sum(reason.startswith("block") for reason in reasons) == 1
    # the last alarm is 26 hours old by then
    later = place.reasons("{days: 1, interval: 10d, gaps: 0.99, units: 1}", NOW + timedelta(hours=4))
    assert later == []


@pytest.mark.medium
def test_an_alarm_that_the_row_does_not_name_is_computed_from_the_series(place):
    place.watch(Traffic(rate=0.3))
    with sqlite3.connect(place.folder / "audit.db") as database:
        for (name,) in database.execute("select name from sqlite_master where type = 'trigger'").fetchall():
            database.execute(f'drop trigger "{name}"')
        database.execute("update watch_reading set alarm = null, fall = null")
    reasons = place.reasons()
    assert any("block: watched: " in reason for reason in reasons)
    assert any("cannot_decide: record: " in reason for reason in reasons)


@pytest.mark.medium
def test_an_edited_reading_breaks_the_record(place):
    place.watch()
    with sqlite3.connect(place.folder / "audit.db") as database:
        guard = "select name, sql from sqlite_master where tbl_name = 'watch_reading' and sql like '%BEFORE UPDATE%'"
        (name, definition) = database.execute(guard).fetchone()
        database.execute(f'drop trigger "{name}"')
        database.execute("update watch_reading set accepted = accepted + 1 where id = 9")
        database.execute(definition)
    (reason,) = place.reasons()
    assert "the row was edited after it was logged" in reason
    assert reason.startswith("cannot_decide: record: ")
    assert "watch_reading 9" in reason


@pytest.mark.medium
def test_a_stale_watch(place):
    place.watch(Traffic(begin=timedelta(days=1, hours=3), end=timedelta(hours=2)))
    assert place.reasons("{days: 1, gaps: 0.1}") == [
        f"cannot_decide: watched: {URL} m: the last judged reading is 2.0 h old, at most 1.0 h are allowed"
    ]
    assert place.reasons("{days: 1, gaps: 0.1, interval: 3h}") == []


@pytest.mark.medium
@pytest.mark.parametrize(
    ("traffic", "minutes"),
    [(Traffic(down=(20, 30)), 220), (Traffic(restart=25), 20), (Traffic(begin=timedelta(hours=18)), 360)],
    ids=["down", "restart", "begun late"],
)
def test_gaps_count_to_the_minute(place, traffic, minutes):
    place.watch(traffic)
    share = minutes / 1440
    assert place.reasons(f"{{days: 1, gaps: {share + 1e-4}}}") == []
    (reason,) = place.reasons(f"{{days: 1, gaps: {share - 1e-4}}}")
    assert f"of the last 1 days ({share:.1%}) were not watched, at most" in reason


@pytest.mark.medium
def test_two_watches_of_one_server_add_up(place):
    place.watch(Traffic(end=timedelta(hours=10)))
    place.watch(Traffic(begin=timedelta(hours=12)), interval_s=599.0)
    assert place.reasons() == []


@pytest.mark.medium
def test_a_quiet_server_shows_nothing(place):
    place.watch(Traffic(drafts=40))
    (reason,) = place.reasons()
    assert reason.endswith("2920 units of drafted tokens were judged, 3200 are required")
    assert place.reasons("{days: 1, units: 2920}") == []


@pytest.mark.medium
@pytest.mark.parametrize(
    ("changes", "says"),
    [
        ({"reference": 0.3}, "alarms below 0.3000; the run's bound less 0.1 is 0.5"),
        ({"alpha": 0.001}, "expects 0.001 false alarms in 30 days; the policy wants 0.01 or more"),
        ({"reference": None}, "compares with nothing; give it --run"),
        ({"unit": 1000.0}, "292 units of drafted tokens were judged"),
    ],
)
def test_a_watch_that_could_not_have_alarmed_does_not_count(place, changes, says):
    place.watch(**changes)
    (reason,) = place.reasons()
    assert says in reason


@pytest.mark.medium
def test_a_watch_of_another_model(place):
    with Store.open(place.url, create=False) as store:
        twin, stranger = a_run(store), a_run(store, "e" * 64)
    place.watch(run=stranger)
    with Store.open(place.url, create=False) as store:
        assert store.resolve("latest") == stranger
        a_run(store)
    (reason,) = place.reasons()
    assert reason.endswith("its 1 watches are of others")
    place.watch(run=twin)
    assert place.reasons() == []
    (reason,) = place.reasons("{days: 1, models: [llama]}")
    assert reason.endswith("/metrics llama: no reading of the last 1 days was judged")
    assert place.reasons("{days: 1, models: [m]}") == []


@pytest.mark.medium
def test_named_servers_are_all_watched_whatever_their_reference_is_from(place):
    place.watch(run=None)
    (reason,) = place.reasons()
    assert "no watch of a server compared with run" in reason
    assert place.reasons('{days: 1, urls: ["http://server:8000/v1"]}') == []
    (reason,) = place.reasons(f'{{days: 1, urls: ["http://server:8000", "{OTHER}"]}}')
    assert reason == f"cannot_decide: watched: the store has no watch of {OTHER}"


@pytest.mark.medium
def test_a_bundle_has_no_watch(place):
    place.watch()
    bundle, path = place.folder / "run.zip", place.folder / "policy.yaml"
    path.write_text(POLICY % "{days: 1}")
    assert invoke("export", "latest", "--out", str(bundle), f"--store={place.url}").exit_code == 0
    result = invoke("gate", str(bundle), f"--policy={path}", "--trust-verdicts")
    assert result.exit_code == 3
    assert "watched: a bundle holds no watches; judge the run in the store that has them" in result.output


@pytest.mark.medium
def test_the_command_blocks_and_names_the_next_step(place):
    place.watch(Traffic(rate=0.3))
    path = place.folder / "policy.yaml"
    path.write_text(POLICY % "{days: 1}")
    result = invoke("gate", "latest", f"--policy={path}", f"--store={place.url}", "--trust-verdicts")
    assert result.exit_code == 1
    assert "next: audit watch URL --show has the days" in result.output


@pytest.mark.medium
@pytest.mark.parametrize(
    "rule", ["{}", "{days: 0}", "{days: 1, gaps: 1}", "{days: 1, interval: soon}", "{days: 1, url: x}"]
)
def test_a_bad_rule_is_refused_in_one_line(tmp_path, rule):
    path = tmp_path / "policy.yaml"
    path.write_text(POLICY % rule)
    result = invoke("gate", "latest", f"--policy={path}", f"--store={stored_run(tmp_path)}")
    assert result.exit_code == 2
    assert len(result.stderr.strip().splitlines()) == 1
    assert "policy.yaml:6" in result.stderr

"""`text: off`: no content in the database's files, verdicts as with content, hashes and the log whole."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest

from audit.api.running import Quiet
from audit.errors import CannotDecide
from audit.evidence.records import Level
from audit.runs.prepare import prepare
from audit.runs.runner import run
from audit.store import NewCheck, NewRequest, RunStatus, Store
from audit.store.writing.contents import ABSENCE, KEY, OFF
from audit.suite.loader import load_suite
from tests.audit.invoke import invoke
from tests.audit.runs.scripted_suites import suite_file
from tests.audit.store.build import RESULT, connected, generation, start
from tests.audit.store.conftest import any_url, cluster, postgres

__all__ = ["any_url", "cluster", "postgres"]

SECRET = "the-patient-in-room-seven"


def begun():
    plain = start()
    return replace(plain, arms=tuple(replace(arm, spec={**arm.spec, KEY: OFF}) for arm in plain.arms))


def filled(store):
    """A run with content in answers, findings and summaries, finished; returns its id."""
    name = store.begin_run(begun())
    for arm in ("base", "spec"):
        for case in range(3):
            made = generation(((4, 2), (2, 2)), seed=case, text=f"{SECRET} {case} " * 200)
            store.add_requests(name, [NewRequest(arm, "chat", f"case-{case}", 0, made)])
    quoting = replace(RESULT, summary=f"first: {SECRET}", findings=(replace(RESULT.findings[0], message=SECRET),))
    assert store.load_arm(name, "spec").requests[0].text.startswith(SECRET)
    assert store.load_arm(name, "spec").requests[0].intact
    store.add_check(name, NewCheck("spec", "replay", "replay", Level.L4, quoting))
    store.finish_run(name, RunStatus.FINISHED, 1)
    return name


@pytest.mark.medium
def test_rows_without_content_are_whole_and_hold_no_content(any_url):
    with Store.open(any_url, create=False) as store:
        name = filled(store)
        assert store.damage() == ()
        assert store.verify_root(name)
        assert store.load_run(name).content_root is None
        assert (store.erased_requests(), store.erased_requests(never_written=True)) == (0, 6)
        assert store.erasures(name) == ()
        (check,) = store.checks(name)
        assert (check.summary, check.findings, check.erased) == ("first: (see the findings)", (), 1)
        with pytest.raises(CannotDecide, match=r"never written \(text: off\)"):
            store.load_arm(name, "spec")
        assert store.plan_erasure(name).empty
    with connected(any_url) as connection:
        for table in ("content", "request_tokens", "token_trace", "finding", "token_piece"):
            assert connection.exec_driver_sql(f"SELECT COUNT(*) FROM {table}").scalar_one() == 0
    assert "content of 6 requests was never written (text: off)" in invoke("db", "check", "--store", any_url).stdout


def content_of(store, name):
    """Texts and token lists that identify a request's content: of at least eight characters or tokens."""
    for arm in store.load_run(name).arms:
        for request in store.load_arm(name, arm.name).requests:
            prompt = request.trace.header.prompt
            for ids in (prompt, request.tokens):
                if len(ids) >= 6:
                    yield json.dumps(list(ids)).encode()
                    yield json.dumps(list(ids), separators=(",", ":")).encode()
            yield request.text[:16].encode()


def verdicts(store, name):
    return [(each.arm, each.check, each.verdict, each.n, each.statistic, each.bound) for each in store.checks(name)]


@pytest.mark.slow
def test_a_run_with_text_off_has_the_verdicts_of_one_with_text(tmp_path):
    path = suite_file(tmp_path)
    plain, bare = (str(tmp_path / folder / "audit.db") for folder in ("plain", "bare"))
    suite = load_suite(path)
    path.write_text(path.read_text() + "text: off\n")
    assert load_suite(path).text is False
    names = {}
    for url, on in ((plain, True), (bare, False)):
        with Store.open(url, create=True) as store:
            names[url] = run(prepare(replace(suite, withheld=not on)), store, Quiet()).run
    with Store.open(plain, create=False) as store, Store.open(bare, create=False) as other:
        assert verdicts(store, names[plain]) == verdicts(other, names[bare])
        secrets = [each for each in content_of(store, names[plain]) if len(each) >= 8]
        files = {each.name: each.read_bytes() for each in Path(bare).parent.iterdir()}
        assert len(files) > 1  # the write-ahead log is still there
        assert len(secrets) > 20
        assert not [(name, each) for name, data in files.items() for each in secrets if each in data]
        kept = b"".join(each.read_bytes() for each in Path(plain).parent.iterdir())
        assert any(each in kept for each in secrets)
        assert other.damage() == ()


@pytest.mark.slow
def test_what_reads_content_says_in_one_line_that_there_is_none(tmp_path):
    url = str(tmp_path / "audit.db")
    made = invoke("run", str(suite_file(tmp_path)), "--text", "off", "--store", url, "--results", str(tmp_path / "r"))
    assert made.exit_code in (0, 3), made.stderr
    for command in (("judge", "latest"), ("replay", "latest"), ("show", "latest", "words/w0#0")):
        result = invoke(*command, "--store", url)
        assert result.exit_code in (2, 3), command
        assert len(result.stderr.strip().splitlines()) <= 2, result.stderr
        assert ABSENCE in result.stderr, (command, result.stderr)
    assert "text" in invoke("show", "latest", "--store", url).stdout
    assert invoke("db", "check", "--store", url).exit_code == 0
    with Store.open(url, create=False) as store:
        ended = store.resolve("latest")
        store.set_status(ended, RunStatus.INTERRUPTED)
    refused = invoke("resume", "latest", "--store", url)
    assert (refused.exit_code, refused.stderr.count("\n")) == (2, 1)
    assert "run its suite again" in refused.stderr

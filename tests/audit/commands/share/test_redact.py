"""`audit db redact`: content leaves the files, every hash holds, and commands say so in one line."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest
from sqlalchemy import text

from audit.errors import CannotDecide
from audit.evidence.records import Level
from audit.evidence.verdicts import CheckResult, Finding, Verdict
from audit.store import NewCheck, NewRequest, RunStatus, Store
from tests.audit.invoke import invoke
from tests.audit.store.build import connected, fill, generation, start
from tests.audit.store.conftest import any_url, cluster, postgres

__all__ = ["any_url", "cluster", "postgres"]

SECRET = "the-patient-in-room-seven"
OTHER = "nothing-to-hide"


def add_run(url):
    """A finished run with a secret in two answers, one finding and one summary; returns its id."""
    with Store.open(url, create=True) as store:
        run = store.begin_run(start())
        for arm in ("base", "spec"):
            for case, words in (("case-a", SECRET), ("case-b", OTHER)):
                store.add_requests(
                    run, [NewRequest(arm, "chat", case, 0, generation(((1, 0),), text=f"{words} " * 400))]
                )
        for name, words, case in (("text", SECRET, "case-a"), ("law", OTHER, "case-b")):
            found = Finding(f"{case}#0", 0, f"{words!r} is another text")
            bad = CheckResult(Verdict.FAULT, f"first: {found.message}", 1, findings=(found,))
            store.add_check(run, NewCheck("spec", name, name, Level.L4, bad))
        store.finish_run(run, RunStatus.FINISHED, 1)
    return run


def redact(url, *arguments):
    return invoke("db", "redact", *arguments, "--store", url)


def on_disk(folder: Path, words: str) -> bool:
    return any(words.encode() in path.read_bytes() for path in folder.iterdir())


@pytest.mark.medium
def test_without_yes_it_lists_and_erases_nothing(any_url):
    run = add_run(any_url)
    result = redact(any_url, run, "--reason", "asked for")
    assert (result.exit_code, result.stdout.splitlines()) == (
        0,
        [
            f"{run}: content of 4 requests, findings of 2 results",
            "would erase: 4 requests in 1 runs; to erase them, add --yes",
        ],
    )
    with Store.open(any_url, create=False) as store:
        assert store.erasures(run) == ()
        assert SECRET in store.load_arm(run, "spec").requests[0].text


@pytest.mark.medium
def test_the_named_request_is_erased_in_every_arm_and_others_stay(any_url):
    run = add_run(any_url)
    with Store.open(any_url, create=False) as store:
        root = store.load_run(run).record_root
    result = redact(any_url, run, "case-a#0", "--reason", "asked for", "--yes")
    assert (result.exit_code, result.stdout.splitlines()[-1]) == (0, "erased: 2 requests in 1 runs")
    with connected(any_url) as connection:
        assert list(connection.execute(text("SELECT request_id FROM content ORDER BY 1")).scalars()) == [2, 4]
        assert list(connection.execute(text("SELECT request_id FROM token_trace ORDER BY 1")).scalars()) == [2, 4]
        assert list(connection.execute(text("SELECT check_result_id FROM finding")).scalars()) == [2]
    with Store.open(any_url, create=False) as store:
        assert store.verify_root(run)
        assert store.load_run(run).record_root == root
        (erasure,) = store.erasures(run)
        assert (erasure.reason, erasure.requests, erasure.results) == ("asked for", 2, 1)
    checked = invoke("db", "check", "--store", any_url)
    assert checked.exit_code == 0
    assert checked.stdout.splitlines()[-1] == "content of 2 requests was erased, on record"


@pytest.mark.medium
def test_one_arm_alone_can_be_named(any_url):
    run = add_run(any_url)
    assert redact(any_url, run, "spec/case-a#0", "--reason", "x", "--yes").exit_code == 0
    with Store.open(any_url, create=False) as store:
        assert len(store.load_arm(run, "base").requests) == 2
        with pytest.raises(CannotDecide, match=r"case case-a#0: the content was erased on \d{4}-\d\d-\d\d \(x\)"):
            store.load_arm(run, "spec")


@pytest.mark.medium
def test_the_bytes_leave_the_file_and_its_log(tmp_path):
    url = str(tmp_path / "audit.db")
    run = add_run(url)
    with Store.open(url, create=False) as held:
        held.list_runs(1)  # its pool keeps a connection, so the log stays
        assert on_disk(tmp_path, SECRET)
        assert redact(url, run, "case-a#0", "--reason", "asked for", "--yes").exit_code == 0
        assert not on_disk(tmp_path, SECRET)
        assert on_disk(tmp_path, OTHER)


@pytest.mark.medium
def test_a_reader_that_keeps_the_log_is_named_and_a_second_call_mends(tmp_path, monkeypatch):
    monkeypatch.setattr("audit.store.base.connection.BUSY_MS", 50)
    url = str(tmp_path / "audit.db")
    run = add_run(url)
    with connected(url, read_only=True) as reader:
        reader.execute(text("SELECT COUNT(*) FROM content")).all()
        result = redact(url, run, "--reason", "asked for", "--yes")
        assert result.exit_code != 0
        assert "Traceback" not in result.stderr
        assert len(result.stderr.strip().splitlines()) == 1
    assert redact(url, run, "--reason", "asked for", "--yes").exit_code == 0
    assert not on_disk(tmp_path, SECRET)


@pytest.mark.medium
def test_old_runs_are_found_by_age(tmp_path):
    url = str(tmp_path / "audit.db")
    old, young = add_run(url), add_run(url)
    with Store.open(url, create=False) as store:
        running = fill(store)
    with connected(url) as connection, connection.begin():
        connection.execute(text("DROP TRIGGER guard_run_update"))
        then = (datetime.now(UTC) - timedelta(days=181)).strftime("%Y-%m-%d %H:%M:%S.%f")
        for each in (old, running):
            connection.execute(text(f"UPDATE run SET started_at = '{then}' WHERE ulid = '{each}'"))
    lines = redact(url, "--older-than", "180d", "--reason", "retention", "--yes").stdout.splitlines()
    assert lines == [f"{old}: content of 4 requests, findings of 2 results", "erased: 4 requests in 1 runs"]
    with Store.open(url, create=False) as store:
        assert store.verify_root(old)
        assert len(store.load_arm(young, "spec").requests) == 2
    again = redact(url, "--older-than", "180d", "--reason", "retention", "--yes")
    assert (again.exit_code, again.stdout) == (0, "nothing is left to erase\n")


@pytest.mark.medium
@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ((), "name a RUN, or give --older-than"),
        (("latest", "--older-than", "9d"), "name a RUN, or give --older-than"),
        (("--older-than", "half a year"), "is not a number of days; write it as 180d"),
        (("latest", "nobody#0"), "has no request 'nobody#0'"),
        (("nothing",), "no run begins with"),
    ],
)
def test_mistakes_are_one_line(tmp_path, arguments, message):
    url = str(tmp_path / "audit.db")
    add_run(url)
    result = redact(url, *arguments, "--reason", "x", "--yes")
    assert result.exit_code == 2
    assert message in result.stderr
    assert redact(url, "latest", "--reason", "  ", "--yes").exit_code == 2


@pytest.mark.medium
def test_a_running_run_is_not_erased(tmp_path):
    url = str(tmp_path / "audit.db")
    with Store.open(url, create=True) as store:
        run = fill(store)
    result = redact(url, run, "--reason", "x", "--yes")
    assert result.exit_code == 2
    assert "is running" in result.stderr


@pytest.mark.medium
def test_other_commands_say_that_content_was_erased(tmp_path):
    url = str(tmp_path / "audit.db")
    run, other = add_run(url), add_run(url)
    redact(url, run, "--reason", "asked for", "--yes")
    shown = invoke("show", run, "--store", url)
    assert shown.exit_code == 0
    assert "erased: content of 4 requests, findings of 2 results" in shown.stdout
    assert SECRET not in shown.stdout
    for command in (("show", run, "case-a#0"), ("judge", run), ("diff", run, other)):
        result = invoke(*command, "--store", url)
        assert result.exit_code in (2, 3), command
        (line,) = result.stderr.strip().splitlines()[-1:]
        assert "Traceback" not in result.stderr + result.stdout
        assert "the content was erased on" in line, command

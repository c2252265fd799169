"""Events of grammars, tool calls and filters: their rows, their views, edits, erasures, old stores."""

from __future__ import annotations

import pytest
from sqlalchemy import text

from audit.store import RunStatus, Store
from audit.store.health import EDITED
from audit.store.writing.events import NO_EVENTS, rows_of
from tests.audit.invoke import invoke
from tests.audit.store.build import EVENTS, connected, fill_eventful
from tests.audit.store.conftest import any_url, cluster, postgres
from tests.support.stores import sql, tamper

__all__ = ["any_url", "cluster", "postgres"]


def finished(store: Store) -> str:
    run = fill_eventful(store)
    store.finish_run(run, RunStatus.FINISHED, 1)
    return run


def rows(url: str, query: str) -> list[tuple]:
    with connected(url, read_only=True) as connection:
        return [tuple(row) for row in connection.execute(text(query))]


@pytest.mark.medium
def test_plain_sql_sees_the_events(any_url):
    with Store.open(any_url, create=False) as store:
        finished(store)
    constraint = "SELECT domain, case_id, library, refused_token, whole, not_read FROM v_constraint_event"
    assert rows(any_url, constraint) == [("chat", "case-c", "llguidance", 2, True, None)]
    calls = "SELECT call, name, arguments, first_token, end_token, problem FROM v_tool_event ORDER BY call"
    assert rows(any_url, calls) == [
        (0, "weather", '{"city":"Bern"}', 0, 2, None),
        (1, "time", "{}", 2, 4, None),
        (2, None, None, None, None, "a call without an end"),
    ]
    decided = "SELECT component, side, action, category, token, first_character FROM v_safety_event ORDER BY event"
    assert rows(any_url, decided) == [
        ("secrets", "prompt", "refuse", "key", None, 0),
        ("words", "output", "redact", "insult", 1, 3),
    ]


def test_facts_of_another_shape_give_rows_that_state_nothing():
    assert rows_of({}) == NO_EVENTS
    odd = rows_of({"constraint": 3, "tools": {"calls": [None], "spans": "x"}, "stream": {"decisions": [{"filter": 9}]}})
    assert set(odd["constraint_event"][0].values()) == {None}
    assert (odd["tool_event"][0]["name"], odd["safety_event"][0]["component"]) == (None, "")
    assert rows_of({"constraint": {"instead": "tool_calls"}})["constraint_event"][0]["not_read"].endswith("tool_calls")
    assert rows_of({"tools": {"unread": "no template"}})["tool_event"][0]["problem"] == "no template"


@pytest.mark.medium
@pytest.mark.parametrize(
    ("table", "change"),
    [
        ("constraint_event", "refused_token = NULL"),
        ("tool_event", "arguments = '{}'"),
        ("safety_event", "action = 'pass'"),
        ("safety_event", "category = 'none'"),
    ],
)
def test_an_edited_event_is_found(store, table, change):
    run = finished(store)
    assert store.broken_places(run) == ()
    tamper(store, table, change, "request_id = 5")
    messages = [broken.message for broken in store.broken_places(run)]
    assert messages == [f"its rows of {table} are not those of its trace"]


@pytest.mark.medium
@pytest.mark.parametrize("table", ["constraint_event", "tool_event", "safety_event"])
def test_a_deleted_or_invented_event_is_found(store, table):
    run = finished(store)
    sql(store, f"DROP TRIGGER guard_{table}_delete")
    sql(store, f"UPDATE {table} SET request_id = 4 WHERE 0")
    sql(store, f"DELETE FROM {table} WHERE request_id = 5")
    assert [broken.place for broken in store.broken_places(run)] == ["spec/case-c#0"]


@pytest.mark.medium
def test_an_erasure_takes_calls_and_leaves_filters_under_the_log(store):
    run = finished(store)
    store.erase([store.plan_erasure(run, ("spec/case-c#0",))], reason="asked for", actor="ci")
    kept = [len(sql(store, f"SELECT 1 FROM {name}")) for name in ("constraint_event", "tool_event", "safety_event")]
    assert kept == [1, 0, 2]
    assert store.broken_places(run) == ()
    tamper(store, "safety_event", "action = 'pass'", "event = 0")
    assert store.broken_places(run) == ()  # the trace is gone, so the log alone covers the row
    messages = [broken.message for broken in store.damage() if "safety_event" in broken.place]
    assert EDITED in messages


@pytest.mark.medium
def test_a_bundle_carries_events(store, tmp_path):
    run = finished(store)
    path, url = str(tmp_path / "run.zip"), f"sqlite:///{tmp_path / 'other.db'}"
    assert invoke("export", run, "--store", store.url, "--out", path).exit_code == 0
    assert invoke("import", path, "--store", url).exit_code == 0
    with Store.open(url, create=False) as other:
        assert other.damage() == ()
        for table in rows_of(EVENTS):
            query = f"SELECT * FROM v_{table}"
            kept = [row[:-1] for row in rows(store.url, query)]  # without the request's key
            assert [row[:-1] for row in rows(other.url, query)] == kept != []

from __future__ import annotations

import sqlite3
from collections import Counter
from dataclasses import replace
from datetime import UTC, datetime, timedelta

import numpy as np
import pytest
import zstandard

from audit.errors import CannotDecide, UserError
from audit.evidence.records import ArmKind, Level
from audit.evidence.verdicts import Finding, Verdict
from audit.store import ArtifactRef, Attachment, NewCheck, NewRequest, RequestKey, RunStatus, Store, StoredDecision
from audit.store.writing import contents
from engine.core.errors import TraceError
from engine.core.types import FinishReason, RecordLevel, SamplingParams
from engine.record import envelope
from engine.record import trace as traces
from engine.record.columns import shape_fault
from engine.record.trace import decode
from tests.audit.store.build import BIG_STREAM, RESULT, fill, fill_finished, generation, start
from tests.support.stores import sql, tamper


@pytest.mark.medium
def test_a_run_comes_back_as_it_was_begun(any_url):
    with Store.open(any_url, create=False) as store:
        run = fill_finished(store)
        record, begun = store.load_run(run), start()
    assert (record.ulid, record.suite_name, record.suite_sha256) == (run, begun.suite_name, begun.suite_sha256)
    assert record.suite_document == begun.suite_document
    assert (record.actor, record.code_commit, record.environment) == (begun.actor, begun.code_commit, begun.environment)
    assert record.artifacts == tuple(sorted(begun.artifacts, key=lambda used: used.role))
    assert (record.status, record.exit_code, record.tokens) == (RunStatus.FINISHED, 1, 19)
    assert [event.status for event in record.events] == [RunStatus.RUNNING, RunStatus.FINISHED]
    assert record.finished_at is not None
    assert timedelta(0) <= record.finished_at - record.started_at < timedelta(minutes=1)
    base, spec = record.arms
    assert (base.name, base.kind, base.counts.output, base.counts.drafted) == ("base", ArmKind.BASELINE, 8, 0)
    assert (spec.level, spec.lossless, spec.effective.to_json()) == (Level.L4, True, {"gamma": 4, "rate": 0.1})
    assert (spec.counts.requests, spec.counts.steps, spec.counts.drafted, spec.counts.accepted) == (2, 4, 14, 7)
    assert record.arm("spec") == spec
    assert record.arm("none") is None


def test_an_arm_comes_back_with_its_traces(any_url):
    made = generation(((4, 2), (3, 3)), seed=9, text="nul \x00 ok", name="id-9")
    with Store.open(any_url, create=False) as store:
        run = store.begin_run(start())
        store.add_requests(run, [NewRequest("spec", "chat", "z", 0, generation(((1, 0),)))])
        store.add_requests(run, [NewRequest("spec", "chat", "a", 1, made)])
        store.add_requests(run, [NewRequest("spec", "chat", "a", 0, generation(((1, 1),)))])
        arm = store.load_arm(run, "spec")
    assert [(each.case_id, each.sample) for each in arm.requests] == [("a", 0), ("a", 1), ("z", 0)]
    found = arm.requests[1]
    assert (found.request_id, found.domain, found.tokens) == ("id-9", "chat", made.tokens)
    assert found.trace.header == decode(made.trace).header
    assert found.trace.header.stream == BIG_STREAM
    assert (found.finish_reason, found.latency_us, found.text) == (FinishReason.LENGTH, 1009, "nul \x00 ok")
    assert all(each.intact for each in arm.requests)


def test_steps_hold_the_counts_of_the_plan(store):
    run = store.begin_run(start())
    store.add_requests(run, [NewRequest("spec", "chat", "a", 0, generation(((4, 4), (4, 1), (0, 0))))])
    columns = "step, position, n_drafted, n_accepted, n_emitted, draft_us, verify_us"
    rows = sql(store, f"SELECT {columns} FROM decode_step ORDER BY step")
    assert rows == [(0, 3, 4, 4, 5, 11, 11), (1, 8, 4, 1, 2, 11, 11), (2, 10, 0, 0, 1, 7, 11)]
    assert sql(store, "SELECT seed, stream FROM request") == [(str(2**62 + 1), str(BIG_STREAM))]


def test_requests_at_the_same_sampling_pair_up(store):
    run = store.begin_run(start())
    other = SamplingParams(temperature=1.0, seed=1)
    store.add_requests(run, [NewRequest("base", "chat", "a", 0, generation(((0, 0),)))])
    store.add_requests(run, [NewRequest("spec", "chat", "a", 0, generation(((1, 0),)))])
    store.add_requests(run, [NewRequest("spec", "chat", "a", 1, generation(((1, 0),), sampling=other))])
    first, second, third = (row[0] for row in sql(store, "SELECT sampling_sha256 FROM request ORDER BY id"))
    assert first == second != third


def test_finished_lists_what_need_not_run_again(store):
    run = store.begin_run(start())
    assert store.finished(run) == frozenset()
    store.add_requests(run, [NewRequest("spec", "chat", "a", 3, generation(((1, 0),)))])
    assert store.finished(run) == {RequestKey("spec", "a", 3)}


def test_a_duplicate_request_is_refused_whole(store):
    run = fill(store)
    before = len(sql(store, "SELECT 1 FROM request"))
    batch = [
        NewRequest("spec", "chat", "new", 0, generation(((1, 0),))),
        NewRequest("spec", "chat", "case-a", 0, generation(((1, 0),))),
    ]
    with pytest.raises(UserError, match="refused: UNIQUE constraint"):
        store.add_requests(run, batch)
    assert len(sql(store, "SELECT 1 FROM request")) == before
    assert len(sql(store, "SELECT 1 FROM token_trace")) == before


def test_an_undecodable_trace_stores_nothing(store):
    run = store.begin_run(start())
    with pytest.raises(TraceError):
        store.add_requests(
            run, [NewRequest("spec", "chat", "a", 0, replace(generation(((1, 0),)), trace=b"SATRACE1junk"))]
        )
    assert sql(store, "SELECT COUNT(*) FROM request") == [(0,)]


@pytest.mark.medium
def test_a_finished_run_takes_no_request_until_it_runs_again(store):
    run = fill_finished(store)
    with pytest.raises(UserError, match="is finished; requests can be added to a running one only"):
        store.add_requests(run, [NewRequest("spec", "chat", "late", 0, generation(((1, 0),)))])
    root = store.load_run(run).record_root
    store.set_status(run, RunStatus.RUNNING, "resumed")
    store.add_requests(run, [NewRequest("spec", "chat", "late", 0, generation(((1, 0),)))])
    assert not store.verify_root(run)
    store.finish_run(run, RunStatus.FINISHED, 0)
    assert store.verify_root(run)
    assert store.load_run(run).record_root != root
    assert [event.detail for event in store.load_run(run).events] == [
        "started",
        "exit code 1",
        "resumed",
        "exit code 0",
    ]


@pytest.mark.medium
def test_checks_come_back_without_nan_and_the_last_one_counts(any_url):
    with Store.open(any_url, create=False) as store:
        run = fill_finished(store)
        law, replay = store.checks(run)
        assert (law.check, law.verdict, law.summary, law.level) == ("law", Verdict.FAULT, "too far", Level.L3)
        assert (replay.arm, replay.claim, replay.n) == ("spec", "replay", 12)
        assert (replay.statistic, replay.p_value, replay.effect, replay.bound) == (None, 0.5, None, 0.25)
        assert replay.findings == (Finding("r0", 3, "differs"),)
        assert replay.details == {"rate": None, "by_domain": {"chat": [1, 2]}}
        store.add_check(run, NewCheck("spec", "law", "law", Level.L3, RESULT))
        assert [check.verdict for check in store.checks(run)] == [Verdict.CERTIFIED, Verdict.CERTIFIED]
        assert store.list_runs(1)[0].verdicts == {Verdict.CERTIFIED: 2}


@pytest.mark.medium
def test_decisions_and_attachments_come_back(any_url):
    moment = datetime(2026, 5, 6, 7, 8, 9, 123456, tzinfo=UTC)
    with Store.open(any_url, create=False) as store:
        run = fill_finished(store)
        decision = StoredDecision(run, "e" * 64, {"version": 1}, "block", ("law is fault",), "ci", moment)
        attachment = Attachment(run, "a" * 64, "b" * 64, "lm_eval", "results.json", {"_type": "x"}, moment)
        store.add_decision(decision)
        store.add_decision(replace(decision, run=None))
        store.add_attachment(attachment)
        assert store.decisions(run) == (decision,)
        assert store.attachments(run) == (attachment,)


def test_the_same_artifact_is_stored_once_under_both_its_names(store):
    extra = ArtifactRef("target", "judge", "other-name", None, "a" * 64, {})
    run = store.begin_run(start(artifacts=(*start().artifacts, extra)))
    names = {(used.role, used.name) for used in store.load_run(run).artifacts}
    assert {("target", "big"), ("judge", "other-name")} <= names
    assert sql(store, "SELECT COUNT(*) FROM artifact WHERE kind = 'target'") == [(1,)]


def test_runs_resolve_by_prefix_and_latest(store):
    first, second = store.begin_run(start()), store.begin_run(start())
    assert store.resolve("latest") == second
    assert store.resolve(first) == first
    assert store.resolve(second.lower()) == second
    shared = next(i for i in range(26) if first[i] != second[i])
    assert store.resolve(first[: shared + 1]) == first
    with pytest.raises(UserError, match=rf"ambiguous; it may be {second}, {first}"):
        store.resolve(first[:shared] or "0")
    with pytest.raises(UserError, match=f"no run begins with '7ZZ'; the newest are {second}"):
        store.resolve("7ZZ")
    for odd in ("", "%", "_", "'; --", "I" * 26):
        with pytest.raises(UserError, match="no run begins with"):
            store.resolve(odd)


def test_an_empty_store_says_how_to_make_a_run(store):
    with pytest.raises(UserError, match="audit run SUITE"):
        store.resolve("latest")
    with pytest.raises(UserError, match="audit run SUITE"):
        store.resolve("01")


def test_unknown_runs_and_arms_are_named(store):
    run = fill(store)
    with pytest.raises(UserError, match="no run 0000"):
        store.load_run("0000")
    with pytest.raises(UserError, match="has no arm 'x'; it has: base, spec"):
        store.load_arm(run, "x")


@pytest.mark.medium
def test_the_newest_runs_are_listed_first(store):
    first, second = fill_finished(store), store.begin_run(start())
    newest, oldest = store.list_runs(5)
    assert [newest.ulid, oldest.ulid] == [second, first]
    assert (newest.status, newest.requests, newest.exit_code) == (RunStatus.RUNNING, 0, None)
    assert (oldest.arms, oldest.requests, oldest.tokens) == (2, 4, 19)
    assert oldest.verdicts == {Verdict.CERTIFIED: 1, Verdict.FAULT: 1}
    assert len(store.list_runs(1)) == 1


@pytest.mark.medium
def test_a_damaged_trace_cannot_decide_and_is_named(store):
    run = fill_finished(store)
    tamper(store, "token_trace", "payload = x'5341545241434531'", "request_id = 3")
    with pytest.raises(CannotDecide, match=rf"run {run}, arm spec, case case-a#0: .*cannot be decoded"):
        store.load_arm(run, "spec")


def test_any_damage_to_a_trace_is_found_and_never_a_crash():
    payload, found = generation(((4, 2), (0, 0)), seed=3).trace, Counter()
    raw = envelope.unwrap(payload)
    digest, rng = envelope.opened(payload).digest, np.random.default_rng(0)
    for _ in range(600):
        for bytes_, rebuilt in ((payload[8:], lambda data: data), (raw, zstandard.ZstdCompressor().compress)):
            damaged = bytearray(bytes_)
            damaged[rng.integers(len(damaged))] ^= 1 << int(rng.integers(8))
            data = envelope.MAGIC + rebuilt(bytes(damaged))
            try:
                decode(data)
                found["decoded"] += 1
            except TraceError:
                found["refused"] += 1
            if contents.intact(data, digest):
                assert envelope.unwrap(data) == raw
                found["same content"] += 1
    assert found["refused"] > 900


@pytest.mark.medium
@pytest.mark.parametrize(
    "change",
    [
        {"role": np.zeros(1, dtype=np.uint8)},
        {"n_emitted": np.array([3, 9], dtype=np.int16)},
        {"n_drafted": np.array([-1, 5], dtype=np.int16)},
        {"draft_us": np.zeros(0, dtype=np.int32)},
        {"p": np.zeros(2)},
        {"q_rows": np.zeros((1, 8))},
    ],
)
def test_a_trace_whose_columns_do_not_fit_cannot_decide(store, change):
    trace = decode(generation(((4, 2), (0, 0)), seed=3).trace)
    assert shape_fault(trace) is None
    run = fill_finished(store)
    payload = traces.encode(replace(trace, **change))
    tamper(store, "token_trace", f"payload = x'{payload.hex()}'", "request_id = 3")
    with pytest.raises(CannotDecide, match=r"arm spec, case case-a#0: .*cannot be decoded"):
        store.load_arm(run, "spec")


@pytest.mark.medium
def test_a_missing_trace_cannot_decide(store):
    run = fill_finished(store)
    with sqlite3.connect(store.url.removeprefix("sqlite:///")) as connection:
        connection.execute("DROP TRIGGER guard_token_trace_delete")
        connection.execute("DELETE FROM token_trace WHERE request_id = 3")
    with pytest.raises(CannotDecide, match="trace is missing"):
        store.load_arm(run, "spec")


@pytest.mark.medium
def test_a_swapped_trace_is_not_intact(store):
    run = fill_finished(store)
    other = sql(store, "SELECT hex(payload), sha256 FROM token_trace WHERE request_id = 4")[0]
    tamper(store, "token_trace", f"payload = x'{other[0]}'", "request_id = 3")
    assert [each.intact for each in store.load_arm(run, "spec").requests] == [False, True]
    tamper(store, "token_trace", f"sha256 = '{other[1]}'", "request_id = 3")
    assert [each.intact for each in store.load_arm(run, "spec").requests] == [False, True]


@pytest.mark.medium
@pytest.mark.parametrize(
    ("table", "change", "place"),
    [
        ("request", "n_accepted = n_accepted + 1", "spec/case-a#0"),
        ("request", f"prompt_commitment = '{'0' * 64}'", "spec/case-a#0"),
        ("request", "record_version = 2", "spec/case-a#0"),
        ("content", "text = 'nicer'", "spec/case-a#0"),
        ("content", "prompt_ids = '[1]'", "spec/case-a#0"),
        ("content", "salt = x'00'", "spec/case-a#0"),
        ("finding", "findings = '[]'", "spec replay"),
        ("request", "latency_us = 1", "spec/case-a#0"),
        ("request", "sampling_sha256 = 'x'", "spec/case-a#0"),
        ("request", f"record_hash = '{'0' * 64}'", "spec/case-a#0"),
        ("request_steps", "steps = replace(steps, '[3,4,4,', '[3,4,0,')", "spec/case-a#0"),
        ("request_steps", "steps = replace(steps, ',11]', ',0]')", "spec/case-a#0"),
        ("request_steps", "steps = '[[3,4]]'", "spec/case-a#0"),
        ("request_steps", "steps = '{'", "spec/case-a#0"),
        ("token_trace", f"sha256 = '{'0' * 64}'", "spec/case-a#0"),
        ("token_trace", "payload = x'00'", "spec/case-a#0"),
        ("arm", "effective = '{\"gamma\": 5}'", "spec"),
        ("arm", "kind = 'baseline'", "spec"),
        ("artifact", f"sha256 = '{'f' * 64}'", "base"),
        ("environment", "sha256 = 'x'", "base"),
        ("run", "suite_name = 'other'", "base"),
        ("run", f"record_root = '{'0' * 64}'", "run"),
    ],
)
def test_every_change_breaks_the_root(store, run, table, change, place):
    assert store.verify_root(run)
    key = {"request_steps": "request_id = 3", "token_trace": "request_id = 3", "request": "id = 3"}
    key |= {"content": "request_id = 3", "finding": "check_result_id = 1"}
    tamper(store, table, change, key.get(table, "id = 2" if table == "arm" else "id = 1"))
    assert place in {broken.place for broken in store.broken_places(run)}
    assert not store.verify_root(run)


@pytest.mark.medium
def test_a_removed_request_breaks_the_root(store, run):
    with sqlite3.connect(store.url.removeprefix("sqlite:///")) as connection:
        parts = [(name, "request_id") for name in ("request_steps", "request_tokens", "token_trace", "content")]
        for table, column in (*parts, ("request", "id")):
            connection.execute(f"DROP TRIGGER guard_{table}_delete")
            connection.execute(f"DELETE FROM {table} WHERE {column} = 2")
    assert [broken.place for broken in store.broken_places(run)] == ["run"]


def test_an_unfinished_run_has_no_root(store):
    run = fill(store)
    assert not store.verify_root(run)
    assert [broken.place for broken in store.broken_places(run)] == ["run"]


@pytest.mark.medium
def test_the_root_does_not_depend_on_the_order_of_arrival(tmp_path, monkeypatch):
    made = [NewRequest("spec", "chat", f"c{i % 4}", i // 4, generation(((2, i % 3),), seed=i)) for i in range(8)]
    monkeypatch.setattr("audit.store.writing.writer.new_ulid", lambda: "0" * 26)
    monkeypatch.setattr("audit.store.base.commitments.new_salt", lambda: b"salt" * 4)
    roots = set()
    for name, order in (("a", made), ("b", made[::-1]), ("c", made[3:] + made[:3])):
        with Store.open(str(tmp_path / name), create=True) as store:
            run = store.begin_run(start())
            store.add_requests(run, order)
            store.finish_run(run, RunStatus.FINISHED, 0)
            roots.add(store.load_run(run).record_root)
    assert len(roots) == 1


def test_an_empty_run_has_the_root_of_the_empty_tree(store):
    run = store.begin_run(start())
    store.finish_run(run, RunStatus.FAILED, 3)
    record = store.load_run(run)
    assert record.record_root == "e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855"
    assert (record.status, record.tokens, record.exit_code) == (RunStatus.FAILED, 0, 3)


@pytest.mark.parametrize("level", list(RecordLevel))
def test_traces_of_every_level_fit(level):
    trace = decode(generation(((4, 2), (0, 0)), level=level).trace)
    assert trace.header.level is level
    assert shape_fault(trace) is None
    assert shape_fault(decode(generation((), level=level).trace)) is None


def test_an_arm_is_read_as_often_as_asked_keeps_no_trace_and_outlives_the_store(store):
    run = store.begin_run(start())
    for case in ("a", "b", "c"):
        store.add_requests(run, [NewRequest("spec", "chat", case, 0, generation(((1, 0), (2, 1))))])
    loaded = store.load_arm(run, "spec")
    first, second = ([request.key for request in loaded.requests] for _ in range(2))
    assert first == second == ["a#0", "b#0", "c#0"]
    assert loaded.requests[1].trace is not loaded.requests[1].trace
    assert [each.key for each in loaded.requests[1:]] == [each.key for each in tuple(loaded.requests)[1:]]
    assert loaded.requests[-1].key == "c#0"
    with pytest.raises(IndexError):
        loaded.requests[3]
    store.close()
    assert len(loaded.requests[0].trace.token) == len(loaded.requests[0].tokens) > 0

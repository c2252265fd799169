"""Every answer is a record: its id names it, its tokens are the client's, and the end of a server loses none."""

from __future__ import annotations

import signal
import threading
import time

import httpx2
import pytest

from audit.serve.completion_id import place_of
from audit.store import RequestKey, RunStatus, Store
from engine.core.types import FinishReason
from tests.audit.invoke import invoke
from tests.audit.serve.server import TOKEN, serving

pytestmark = [pytest.mark.slow, pytest.mark.xdist_group("serve")]
HEADERS = {"Authorization": f"Bearer {TOKEN}"}


def ask(server, **body):
    given = {"prompt": "abc", "max_tokens": 24, "seed": 3, "return_token_ids": True}
    answer = httpx2.post(f"{server.url}/completions", json=given | body, headers=HEADERS, timeout=120)
    assert answer.status_code == 200, answer.text
    return answer.json()


def record_of(store, run, name, seconds=20):
    """A request of a run, once it is written."""
    key, end = RequestKey("served", *place_of(name)), time.monotonic() + seconds
    while key not in store.finished(run):
        assert time.monotonic() < end, f"{name} is not on record"
        time.sleep(0.05)
    found = store.load_arm(run, "served", [key])
    return next(iter((*found.requests, *found.failed, *found.refused)))


def test_the_record_of_an_answer_holds_its_tokens_and_show_draws_it(script):
    answer = ask(script, n=2, temperature=1, metadata={"domain": "code"})
    with Store.open(script.store, create=False, read_only=True) as store:
        for choice in answer["choices"]:
            record = record_of(store, script.run, f"{answer['id']}#{choice['index']}")
            assert list(record.tokens) == choice["token_ids"]
            assert list(record.trace.header.prompt) == choice["prompt_token_ids"]
            assert (record.text, record.domain) == (choice["text"], "code")
            assert record.trace.header.sampling.seed == 3
            assert record.trace.header.stream == choice["index"]
            assert record.intact
    shown = invoke("show", answer["id"], "--store", script.store)
    assert shown.exit_code == 0, shown.stderr
    assert f"{answer['id']}#0" in shown.stdout
    assert "answer    24 tokens" in shown.stdout
    assert "accepted" in shown.stdout
    second = invoke("show", f"{answer['id']}#1", "--store", script.store)
    assert f"{answer['id']}#1" in second.stdout
    assert invoke("show", f"cmpl-{script.run}-zzz", "--store", script.store).exit_code == 2


def test_a_request_without_a_seed_is_recorded_with_the_one_that_it_got(script):
    answer = ask(script, seed=None, temperature=1)
    with Store.open(script.store, create=False, read_only=True) as store:
        record = record_of(store, script.run, f"{answer['id']}#0")
    again = ask(script, seed=record.trace.header.sampling.seed, temperature=1)
    assert again["choices"][0]["token_ids"] == answer["choices"][0]["token_ids"]


def test_sigterm_lets_running_answers_end_and_closes_the_run(tmp_path):
    with serving(tmp_path, "scripted:1", "--draft", "scripted:2", "--rows", "2") as server:
        answers = []

        def late():
            answers.append(ask(server, max_tokens=400, ignore_eos=True))

        threads = [threading.Thread(target=late) for _ in range(5)]
        for thread in threads:
            thread.start()
        while "vllm:num_requests_running" not in (page := httpx2.get(f"{server.root}/metrics").text) or (
            'num_requests_waiting{engine="0",model_name="scripted:1"} 3.0' not in page
        ):
            time.sleep(0.01)
        assert server.stop(signal.SIGTERM) == 0
        for thread in threads:
            thread.join(30)
        assert [len(answer["choices"][0]["token_ids"]) for answer in answers] == [400] * 5
        with pytest.raises(httpx2.ConnectError):
            httpx2.get(f"{server.root}/health")
        with Store.open(server.store, create=False) as store:
            run = store.load_run(server.run)
            assert (run.status, run.exit_code) == (RunStatus.FINISHED, 3)
            assert len(store.finished(server.run)) == 5
            assert store.broken_places(server.run) == ()
            assert store.damage([server.run]) == ()
            record = record_of(store, server.run, f"{answers[0]['id']}#0")
            assert list(record.tokens) == answers[0]["choices"][0]["token_ids"]


def test_a_signal_at_once_after_the_first_line_closes_the_run(tmp_path):
    with serving(tmp_path, "scripted:1") as server:
        assert server.stop(signal.SIGTERM) == 0
        (line,) = server.lines
        assert line.startswith("run ")
        with Store.open(server.store, create=False) as store:
            run = store.load_run(server.run)
            assert (run.status, run.exit_code) == (RunStatus.FINISHED, 3)
            assert store.damage([server.run]) == ()


def test_answers_that_do_not_end_in_time_are_on_record_without_tokens(tmp_path):
    with serving(tmp_path, "scripted:1", "--rows", "1", "--drain", "1") as server:
        body = {"prompt": "abc", "max_tokens": 4000, "ignore_eos": True, "stream": True}
        with httpx2.stream("POST", f"{server.url}/completions", json=body, headers=HEADERS, timeout=60) as answer:
            next(answer.iter_bytes())
            assert server.stop(signal.SIGINT) == 0
        with Store.open(server.store, create=False) as store:
            (key,) = store.finished(server.run)
            (failed,) = store.load_arm(server.run, "served").failed
            assert failed.finish_reason is FinishReason.ERROR
            error = failed.trace.header.facts["error"]
            assert error["message"].startswith("the client disconnected, after ")
            assert store.load_run(server.run).status is RunStatus.FINISHED
            assert key.sample == 0


def test_without_a_store_there_is_none(tmp_path):
    with serving(tmp_path, "scripted:1", "--no-store") as server:
        assert len(ask(server)["choices"][0]["token_ids"]) == 24
        assert server.stop() == 0
    assert not (tmp_path / "served.db").exists()


def test_a_store_that_cannot_be_written_stops_the_server(tmp_path):
    with serving(tmp_path, "scripted:1") as server:
        assert ask(server)["choices"]
        for name in ("served.db", "served.db-wal", "served.db-shm"):
            (tmp_path / name).unlink(missing_ok=True)
        end, status = time.monotonic() + 60, 200
        while status == 200:
            assert time.monotonic() < end
            body = {"prompt": "abc", "max_tokens": 4}
            answer = httpx2.post(f"{server.url}/completions", json=body, headers=HEADERS, timeout=60)
            status = answer.status_code
        assert status == 503
        assert "store" in answer.json()["error"]["message"]
        assert httpx2.get(f"{server.root}/health").status_code == 503
        assert server.stop() == 3

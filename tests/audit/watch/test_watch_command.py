"""`audit watch` against a server of counters: series, alarms, restarts, and every failure of a page."""

import hashlib
import hmac
import json
import os
import signal
import sqlite3
import subprocess
import sys
import threading
import time
from http.server import BaseHTTPRequestHandler, HTTPServer

import numpy as np
import pytest

from audit.stats.clusters import ratio_interval
from audit.store import NewRequest, RunStatus, Store
from tests.audit.invoke import invoke
from tests.audit.store.build import fill_finished, generation, start
from tests.audit.watch.metrics_server import (
    SGLANG,
    Answer,
    llama_page,
    metrics_server,
    sglang_page,
    tensorrt_page,
    vllm_page,
)

OFF = "\n".join(line for line in vllm_page(1, 1).splitlines() if "spec" not in line)


def growing(rate, looks, drafts=500, seed=0, begin=(0, 0)):
    """Pages of a server whose acceptance is `rate`."""
    rng, (total, accepted) = np.random.default_rng(seed), begin
    pages = []
    for _ in range(looks):
        total, accepted = total + drafts, accepted + int(rng.binomial(4 * drafts, rate))
        pages.append(Answer(vllm_page(total, accepted, requests=total // 100)))
    return pages


def once(server, store, *more):
    return invoke("watch", server.url, "--once", "--store", store, *more)


def rows(store, columns, table="v_watch"):
    with sqlite3.connect(store) as connection:
        return connection.execute(f"SELECT {columns} FROM {table}").fetchall()


@pytest.fixture
def store(tmp_path):
    return str(tmp_path / "watch.db")


@pytest.mark.medium
def test_each_reading_goes_on_with_the_series_and_a_fall_is_an_alarm(store):
    with metrics_server(*growing(0.7, 6), *growing(0.5, 6, begin=(3000, 8400))) as server:
        results = [once(server, store, "--reference", "0.65") for _ in range(12)]
    codes = [result.exit_code for result in results]
    assert codes[:6] == [3, *[0] * 5]
    assert 1 in codes[6:9]
    first = codes.index(1)
    assert "ALARM m: acceptance fell below 0.650" in results[first].stderr
    assert len(rows(store, "id", "watch")) == 1
    seen = rows(store, "drafted, accepted, draft_acceptance_rate, fall, alarm, gap")
    assert len(seen) == 12
    assert seen[0][5].startswith("the first reading")
    assert all(drafted == 2000 and rate == accepted / drafted for drafted, accepted, rate, *_ in seen[1:])
    assert [row[4] for row in seen].index("fall") == first
    with Store.open(store, create=False) as opened:
        assert opened.damage() == ()


@pytest.mark.medium
def test_one_process_and_many_give_the_same_evidence(store, tmp_path):
    other = str(tmp_path / "other.db")
    pages = growing(0.66, 5)
    with metrics_server(*pages) as server:
        for _ in range(5):
            once(server, store, "--reference", "0.65", "--interval", "1")
    with metrics_server(*pages) as server:
        result = invoke("watch", server.url, "--for", "5s", "--interval", "1", "--reference", "0.65", "--store", other)
    assert result.exit_code == 0, result.output
    evidence = "drafted, accepted, fall IS NULL"
    assert rows(store, evidence) == rows(other, evidence)[:5]


@pytest.mark.medium
def test_a_restart_is_marked_and_its_growth_counted(store):
    pages = [
        Answer(vllm_page(1000, 2800)),
        Answer(vllm_page(100, 280, started=1.8e9)),
        Answer(vllm_page(200, 560, started=1.8e9)),
    ]
    with metrics_server(*pages) as server:
        codes = [once(server, store, "--reference", "0.6").exit_code for _ in pages]
    assert codes == [3, 0, 0]
    assert rows(store, "drafted, restarted, gap IS NULL")[1:] == [(400, 1, 1), (400, 0, 1)]


@pytest.mark.medium
@pytest.mark.parametrize(
    ("answer", "words"),
    [
        (Answer("down", status=500), "status 500"),
        (Answer("<html>", status=200), "none of the counters"),
        (Answer(OFF), "speculation is off"),
        (Answer("x" * (9 * 2**20)), "more bytes"),
        (Answer(vllm_page(1, 1), seconds=3.0), "no whole answer within 1 s"),
        (Answer("vllm:", length=100), "the connection broke"),
    ],
    ids=["500", "html", "off", "oversized", "slow", "cut"],
)
def test_what_cannot_be_read_is_a_gap_and_exit_code_3(answer, words, store):
    with metrics_server(answer) as server:
        result = once(server, store, "--reference", "0.6", "--timeout", "1" if answer.seconds else "30")
    assert result.exit_code == 3, result.output
    assert words in result.stderr
    assert "Traceback" not in result.output
    ((gap, drafted),) = rows(store, "gap, drafted")
    assert words in gap
    assert drafted is None


@pytest.mark.medium
def test_a_gap_between_readings_loses_no_counts(store):
    before, after = growing(0.7, 2)
    with metrics_server(before, Answer("down", status=503), after) as server:
        codes = [once(server, store, "--reference", "0.6").exit_code for _ in range(3)]
    assert codes == [3, 3, 0]
    assert [row[0] for row in rows(store, "drafted")] == [None, None, 2000]


@pytest.mark.medium
def test_sglang_without_the_length_of_its_drafts_has_a_series_and_no_test(store):
    with metrics_server(Answer(SGLANG)) as server:
        assert [once(server, store).exit_code for _ in range(2)] == [0, 0]
        found = once(server, store, "--reference", "0.6")
    assert rows(store, "acceptance_length, drafted")[1] == (3.25, None)
    assert "add --unit" in rows(store, "gap")[1][0]
    assert found.exit_code == 3
    assert "nothing was tested" in found.stderr


OTHERS = {
    "llama.cpp": (llama_page, ()),
    "TensorRT-LLM": (tensorrt_page, ("--unit", "4")),
    "SGLang": (lambda calls, kept: sglang_page(calls, kept, gauge=True), ()),
    "SGLang with a unit": (sglang_page, ("--unit", "4")),
}


@pytest.mark.medium
@pytest.mark.parametrize("server", OTHERS)
def test_a_fall_is_an_alarm_on_every_server_that_counts(store, server):
    page, options = OTHERS[server]
    rng, calls, kept, pages = np.random.default_rng(3), 0, 0, []
    for rate in [0.73] * 4 + [0.0] * 3:
        calls, kept = calls + 500, kept + int(rng.binomial(2000, rate))
        pages.append(Answer(page(calls, kept)))
    with metrics_server(*pages) as running:
        codes = [once(running, store, "--reference", "0.6", *options).exit_code for _ in pages]
    assert codes[:4] == [3, 0, 0, 0]
    assert 1 in codes[4:]
    assert rows(store, "drafted, gap")[1] == (2000, None)


def test_the_prometheus_page_of_tensorrt_llm_is_found_behind_its_json(store):
    with metrics_server(Answer("[]"), Answer(tensorrt_page(10, 20))) as running:
        found = once(running, store)
    assert found.exit_code == 0
    assert "the first reading" in rows(store, "gap")[0][0]


def of_domains(chat, code, started=1.7e9):
    """A page whose counters have a domain, and another engine's without one."""
    parts = {"chat": chat, "code": code}
    pages = (
        vllm_page(drafts, accepted, started=started).replace('engine="0"', f'domain="{name}"')
        for name, (drafts, accepted) in parts.items()
    )
    return Answer("".join(pages) + vllm_page(7, 7, started=started))


@pytest.mark.medium
def test_each_value_of_a_label_has_a_tested_series(store):
    pages = [
        of_domains((100, 300), (10, 20)),
        of_domains((300, 900), (10, 20)),
        of_domains((5, 15), (20, 30), started=1.8e9),
        of_domains((5, 15), (1020, 40), started=1.8e9),
    ]
    with metrics_server(*pages) as server:
        codes = [once(server, store, "--reference", "0.001", "--by", "domain").exit_code for _ in pages]
        shown = invoke("watch", server.url, "--show", "--store", store)
    assert codes == [3, 0, 0, 0]

    def series(label):
        found = rows(store, "drafted, accepted, restarted, fall IS NULL, label", "watch_reading")
        return [row[:4] for row in found if row[4] == label]

    assert series("domain=chat") == [(None, None, 0, 1), (800, 600, 0, 0), (20, 15, 1, 0), (0, 0, 0, 0)]
    assert series("domain=code") == [(None, None, 0, 1), (0, 0, 0, 0), (80, 30, 1, 0), (4000, 10, 0, 0)]
    assert series(None) == [(None, None, 0, 1), (800, 600, 0, 0), (128, 52, 1, 0), (4000, 10, 0, 0)]
    assert "m domain=chat" in shown.stdout
    with Store.open(store, create=False) as opened:
        assert opened.damage() == ()


@pytest.mark.medium
@pytest.mark.parametrize(("code", "alarmed"), [(0.7, None), (0.02, "domain=code")])
def test_a_part_that_falls_alarms_while_the_whole_keeps_its_reference(store, code, alarmed):
    """One domain of forty is wrong: the whole loses two percent of its rate, which the reference allows."""
    pages, drafts = [], 20_000
    for look in range(5):
        most = look * drafts
        pages.append(of_domains((39 * most, 39 * most * 3), (most, int(4 * code * most))))
    with metrics_server(*pages) as server:
        done = [once(server, store, "--reference", "0.6", "--by", "domain") for _ in pages]
        shown = invoke("watch", server.url, "--show", "--store", store)
    found = {row for row in rows(store, "label, alarm", "watch_reading") if row[1] is not None}
    assert found == ({(alarmed, "fall")} if alarmed else set()), shown.stdout
    assert (1 in {result.exit_code for result in done[1:]}) is bool(alarmed)
    told = "".join(result.stdout + result.stderr for result in done)
    assert ("ALARM m domain=code: acceptance fell below 0.600" in told) is bool(alarmed)


@pytest.mark.medium
def test_a_label_that_no_sample_has_gives_no_series(store):
    with metrics_server(*growing(0.7, 2)) as server:
        assert [once(server, store, "--by", "domain").exit_code for _ in range(2)] == [0, 0]
    assert rows(store, "label", "watch_reading") == [(None,)] * 2


@pytest.mark.medium
def test_drafts_longer_than_the_unit_are_no_evidence(store):
    with metrics_server(*growing(0.2, 3)) as server:
        codes = [once(server, store, "--reference", "0.6", "--unit", "3").exit_code for _ in range(3)]
    assert codes == [3, 3, 3]
    assert {row[0] for row in rows(store, "gap")[1:]} == {
        "drafts are longer than the unit; begin another watch with a larger --unit"
    }


@pytest.mark.medium
def test_the_reference_is_the_lower_bound_of_a_run(store):
    with Store.open(store, create=True) as opened:
        few = fill_finished(opened)
        many = opened.begin_run(start())
        for place in range(12):
            opened.add_requests(
                many, [NewRequest("spec", "chat", f"case-{place}", 0, generation(((4, place % 5),) * 3, seed=place))]
            )
        opened.finish_run(many, RunStatus.FINISHED, 0)
    kept, drafted = np.array([3.0 * (place % 5) for place in range(12)]), np.full(12, 12.0)
    expected = ratio_interval(kept, drafted, np.arange(12), 0.98).low
    with metrics_server(Answer(vllm_page(1, 1))) as server:
        for tolerance in ("0", "0.5"):
            found = once(server, store, "--run", many, "--tolerance", tolerance)
            assert found.exit_code == 3
            assert "nothing was tested: the first reading" in found.stderr
        refused = [once(server, store, "--run", few), once(server, store, "--run", many, "--arm", "base")]
    (whole, half) = rows(store, "reference, reference_from", "watch")
    assert whole[0] == pytest.approx(expected)
    assert half[0] == pytest.approx(expected / 2)
    assert whole[1].startswith("lower bound over 12 prompts of arm spec")
    assert [result.exit_code for result in refused] == [2, 2]
    assert "fewer than 10 prompts; give --reference RATE" in refused[0].stderr


@pytest.mark.medium
@pytest.mark.parametrize(
    ("options", "words"),
    [
        (("--reference", "1.5"), "--reference 1.5"),
        (("--interval", "0"), "--interval 0"),
        (("--false-alarms", "2"), "--false-alarms 2"),
        (("--unit", "0"), "--unit 0"),
        (("--reference", "0.5", "--rise", "0.4"), "--rise 0.4"),
        (("--once", "--for", "1h"), "leave out --for"),
        (("--for", "soon"), '--for "soon"'),
        (("--webhook", "http://h/x"), "belong together"),
        (("--arm", "a"), "add --run RUN"),
        (("--by", "le"), '--by "le"'),
        (("--by", "a b"), '--by "a b"'),
        (("--api-key-env", "NOT_THERE"), "NOT_THERE"),
    ],
)
def test_bad_options_are_refused_in_one_line(options, words, store):
    result = invoke("watch", "http://127.0.0.1:9", *options, "--store", store)
    assert result.exit_code == 2
    assert words in result.stderr
    assert len(result.stderr.strip().splitlines()) == 1


@pytest.mark.parametrize("url", ["ftp://h", "http://u:p@h", "http://h/?q=1", "no address"])
def test_a_bad_address_is_refused(url, store):
    result = invoke("watch", url, "--once", "--store", store)
    assert result.exit_code == 2
    assert "URL" in result.stderr


@pytest.mark.medium
@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_signal_ends_the_watch_and_keeps_the_series(number, store):
    with metrics_server(*growing(0.7, 50)) as server:
        command = [sys.executable, "-m", "audit", "watch", server.url, "--interval", "1", "--store", store]
        process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
        for _ in range(2):
            process.stdout.readline()
        process.send_signal(number)
        _, errors = process.communicate(timeout=60)
    assert process.returncode == 0, errors
    assert len(rows(store, "id", "watch_reading")) >= 2


@pytest.mark.medium
def test_the_key_goes_to_the_server_and_nowhere_else(store, monkeypatch):
    monkeypatch.setenv("WATCH_KEY", "sk-very-secret-key")
    page = vllm_page(1, 1, model="sk-very-secret-key")
    with metrics_server(Answer(page)) as server:
        result = once(server, store, "--api-key-env", "WATCH_KEY")
        assert server.asked[0]["Authorization"] == "Bearer sk-very-secret-key"
    assert "very-secret" not in result.output
    assert rows(store, "model") == [("***",)]


@pytest.mark.medium
def test_show_sums_the_days(store):
    with metrics_server(*growing(0.7, 3)) as server:
        for _ in range(3):
            once(server, store, "--reference", "0.6")
        shown = invoke("watch", server.url, "--show", "--store", store, "--json")
        text = invoke("watch", server.url, "--show", "--store", store)
    (day,) = json.loads(shown.stdout)["1"]
    assert (day["readings"], day["gaps"], day["drafted"], day["alarms"]) == (3, 1, 4000, 0)
    assert "reference 0.6000 accepted per drafted token (given)" in text.stdout


class Receiver(BaseHTTPRequestHandler):
    """A webhook that keeps what it gets."""

    def do_POST(self):
        body = self.rfile.read(int(self.headers["Content-Length"]))
        self.server.got.append((dict(self.headers), body))
        self.send_response(self.server.status)
        self.end_headers()

    def log_message(self, *_):
        return


@pytest.fixture
def receiver():
    server = HTTPServer(("127.0.0.1", 0), Receiver)
    server.got, server.status = [], 200
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.02})
    thread.start()
    yield server
    server.shutdown()
    server.server_close()
    thread.join()


@pytest.fixture
def key_file(tmp_path):
    path = tmp_path / "webhook.key"
    path.write_text("0123456789abcdef0123\n")
    path.chmod(0o600)
    return path


def alarmed(store, receiver, key_file, *more):
    hook = f"http://127.0.0.1:{receiver.server_port}/hook"
    with metrics_server(*growing(0.3, 4)) as server:
        options = ("--reference", "0.65", "--webhook", hook, "--webhook-key-file", str(key_file), *more)
        return [once(server, store, *options) for _ in range(3)]


@pytest.mark.medium
def test_an_alarm_is_posted_signed(store, receiver, key_file):
    results = alarmed(store, receiver, key_file)
    assert 1 in {result.exit_code for result in results}
    headers, body = receiver.got[0]
    stamp = headers["X-Specaudit-Timestamp"]
    wanted = hmac.new(b"0123456789abcdef0123", stamp.encode() + b"." + body, hashlib.sha256).hexdigest()
    assert headers["X-Specaudit-Signature"] == f"sha256={wanted}"
    assert abs(int(stamp) - time.time()) < 600
    document = json.loads(body)
    assert (document["event"], document["model"], document["direction"]) == ("acceptance_alarm", "m", "fall")
    assert "0123456789abcdef" not in "".join(result.output for result in results)


@pytest.mark.medium
def test_a_webhook_that_fails_does_not_lose_the_alarm(store, receiver, key_file, monkeypatch):
    monkeypatch.setattr(time, "sleep", lambda _: None)
    receiver.status = 500
    results = alarmed(store, receiver, key_file)
    assert 1 in {result.exit_code for result in results}
    assert "the alarm was not delivered: status 500" in "".join(result.stderr for result in results)
    assert len(receiver.got) % 3 == 0
    assert "fall" in {row[0] for row in rows(store, "alarm")}


@pytest.mark.skipif(os.name != "posix", reason="modes of files")
def test_a_key_that_others_can_read_is_refused(store, key_file):
    key_file.chmod(0o644)
    options = ("--webhook", "http://127.0.0.1:9/x", "--webhook-key-file", str(key_file))
    result = invoke("watch", "http://127.0.0.1:9", "--once", "--store", store, *options)
    assert result.exit_code == 2
    assert "chmod 600" in result.stderr


@pytest.mark.medium
def test_the_textfile_is_read_by_prometheus_own_parser(store, tmp_path):
    parser = pytest.importorskip("prometheus_client.parser")
    path = tmp_path / "audit.prom"
    with metrics_server(*growing(0.7, 2)) as server:
        for _ in range(2):
            once(server, store, "--reference", "0.6", "--textfile", str(path))
    families = {family.name: family for family in parser.text_string_to_metric_families(path.read_text())}
    (sample,) = families["specaudit_watch_acceptance"].samples
    assert sample.labels["model_name"] == "m"
    assert 0.6 < sample.value < 0.8
    assert families["specaudit_watch_alarms"].samples[0].value == 0
    assert families["specaudit_watch_gap"].samples[0].value == 0

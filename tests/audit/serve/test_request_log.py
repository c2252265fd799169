"""Requests that clients sent become a workload: the log of a server, and of a proxy before any other."""

from __future__ import annotations

import gzip
import json
import re
import stat
import subprocess
import sys
import zlib

import httpx2
import pytest
from starlette.testclient import TestClient

from audit.evidence.records import is_directed
from audit.serve.request_log import MOST, new_log, recording_proxy
from audit.store import Store
from audit.suite.loader import load_suite
from tests.audit.invoke import invoke
from tests.audit.serve.server import TOKEN, serving

MESSAGES = [{"role": "system", "content": "Be brief."}, {"role": "user", "content": "Say it."}]
TOOL = {"type": "function", "function": {"name": "look", "parameters": {"type": "object", "properties": {}}}}
ADDRESS = re.compile(r"requests to (\S+) go to (\S+) until Ctrl-C")
SUITE = """\
version: 1
name: recorded
models: {target: bundled:target}
workloads: [{name: traffic, source: {file: requests.jsonl, format: openai_batch}}]
sampling: {max_new_tokens: 4}
arms: [{name: a, proposer: {kind: ngram, gamma: 2}, verifier: greedy}]
"""


def talk(url):
    """Requests by OpenAI's own client, one of which the server refuses; the text of a streamed answer."""
    from openai import BadRequestError, OpenAI

    with OpenAI(base_url=url, api_key=TOKEN, max_retries=0, timeout=120) as client:
        chat = client.chat.completions
        model = client.models.list().data[0].id
        said = chat.create(model=model, messages=MESSAGES, tools=[TOOL], tool_choice="none", max_tokens=4)
        stream = chat.create(model=model, messages=MESSAGES[1:], max_tokens=4, temperature=0, stream=True)
        streamed = "".join(part.choices[0].delta.content or "" for part in stream if part.choices)
        client.completions.create(model=model, prompt="Once", max_tokens=4)
        with pytest.raises(BadRequestError):
            chat.create(model=model, messages=MESSAGES, temperature=-1)
        again = chat.create(model=model, messages=MESSAGES[1:], max_tokens=4, temperature=0)
    assert said.choices[0].finish_reason
    assert streamed == again.choices[0].message.content
    return streamed


def read(folder):
    (folder / "suite.yaml").write_text(SUITE)
    return load_suite(folder / "suite.yaml").cases


def check(folder):
    log = folder / "requests.jsonl"
    assert stat.S_IMODE(log.stat().st_mode) == 0o600
    first, second, third, fourth = read(folder)
    assert (list(first.messages), list(first.tools), first.tool_choice) == (MESSAGES, [TOOL], "none")
    assert list(second.messages) == MESSAGES[1:] == list(fourth.messages)
    assert third.prompt == "Once"
    assert [json.loads(line)["url"].rpartition("/v1/")[2] for line in log.read_text().splitlines()] == [
        "chat/completions",
        "chat/completions",
        "completions",
        "chat/completions",
    ]


@pytest.mark.slow
@pytest.mark.xdist_group("serve")
def test_a_server_logs_accepted_requests_and_a_suite_runs_them(tmp_path):
    with serving(tmp_path, "bundled:target", "--log-requests", str(tmp_path / "requests.jsonl")) as server:
        talk(server.url)
    check(tmp_path)
    done = invoke(
        "run",
        str(tmp_path / "suite.yaml"),
        "--store",
        str(tmp_path / "runs.db"),
        "--results",
        str(tmp_path / "results.json"),
    )
    assert done.exit_code in (0, 3), done.output
    run = json.loads((tmp_path / "results.json").read_text())["run"]["ulid"]
    with Store.open(str(tmp_path / "runs.db"), create=False, read_only=True) as store:
        cases = {key.case_id for key in store.finished(run) if key.arm == "a" and not is_directed(key.case_id)}
    assert cases == {f"traffic/{number}" for number in range(1, 5)}


@pytest.mark.slow
@pytest.mark.xdist_group("serve")
def test_the_proxy_passes_everything_on_and_writes_answered_requests(pair, tmp_path):
    command = [sys.executable, "-m", "audit", "probe", pair.url, "--record", str(tmp_path / "requests.jsonl")]
    process = subprocess.Popen(command, stderr=subprocess.PIPE, text=True)
    try:
        address = ADDRESS.search(process.stderr.readline())
        assert address[2] == pair.url
        assert talk(address[1]) == talk(pair.url)
    finally:
        process.terminate()
        assert process.wait(30) is not None
        process.stderr.close()
    check(tmp_path)


def test_a_log_that_exists_is_kept(tmp_path):
    kept = tmp_path / "requests.jsonl"
    kept.write_text("kept")
    done = invoke("probe", "http://127.0.0.1:9/v1", "--record", str(kept))
    assert done.exit_code == 2
    assert "no new file can be made (File exists); name another one" in done.stderr
    assert kept.read_text() == "kept"
    done = invoke("probe", "http://127.0.0.1:9/v1", "--record", str(tmp_path / "new"), "--contract")
    assert done.exit_code == 2
    assert not (tmp_path / "new").exists()


BODY = b'{"model": "m", "prompt": "a b"}'


@pytest.mark.parametrize(
    ("content", "coding", "logged"),
    [
        (BODY, "", True),
        (gzip.compress(BODY), "gzip", True),
        (zlib.compress(BODY), "deflate", True),
        (gzip.compress(BODY)[:-9], "gzip", False),
        (b"no gzip", "gzip", False),
        (gzip.compress(b" " * (MOST + 1)), "gzip", False),
        (BODY, "br", False),
        (b"\xff{", "", False),
    ],
    ids=["plain", "gzip", "deflate", "cut", "none", "bomb", "unknown", "no JSON"],
)
def test_a_body_that_cannot_be_read_is_passed_on_and_named(tmp_path, monkeypatch, capsys, content, coding, logged):
    passed = []

    def server(request):
        passed.append((request.content, request.headers.get("content-encoding", "")))
        return httpx2.Response(200, stream=httpx2.ByteStream(b'{"id": "x"}'))

    made = httpx2.AsyncClient
    monkeypatch.setattr(httpx2, "AsyncClient", lambda **_: made(transport=httpx2.MockTransport(server)))
    log = tmp_path / "requests.jsonl"
    with new_log(log) as opened:
        client = TestClient(recording_proxy("http://server/v1", opened, 5))
        answer = client.post("/v1/completions", content=content, headers={"content-encoding": coding} if coding else {})
    assert (answer.status_code, answer.json()) == (200, {"id": "x"})
    assert passed == [(content, coding)]
    assert (json.loads(log.read_text())["body"] == json.loads(BODY)) if logged else log.read_text() == ""
    assert ("is not in the file" in capsys.readouterr().err) is not logged


@pytest.mark.parametrize("url", ["latest", "909", "ftp://host", "http://", "http://user:word@host/v1", "http://[::1"])
def test_an_address_that_is_none_starts_no_proxy(tmp_path, url):
    done = invoke("probe", url, "--record", str(tmp_path / "new"))
    assert (done.exit_code, len(done.stderr.splitlines())) == (2, 1), done.output
    assert not (tmp_path / "new").exists()


def test_a_server_that_is_not_there_is_502(tmp_path):
    log = tmp_path / "requests.jsonl"
    with new_log(log) as made:
        answer = TestClient(recording_proxy("http://127.0.0.1:9/v1", made, 5)).post("/v1/completions", json={})
    assert answer.status_code == 502
    assert "ConnectError" in answer.text
    assert log.read_bytes() == b""

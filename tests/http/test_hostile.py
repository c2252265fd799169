"""Servers that mean harm: each request ends in time with its reason on record, and memory stays bounded."""

from __future__ import annotations

import itertools
import json
import subprocess
import sys
import time
from collections.abc import Iterator

import pytest

from audit.store import Store
from engine.core.errors import EngineError
from engine.core.types import FinishReason
from tests.audit.invoke import invoke
from tests.http.asking import answers, arm, asked
from tests.http.hostile import HARMS, SSE, STREAMED, harming, whole
from tests.support.inert import unprintable
from tests.support.tiers import slow_unless

FAST = ["a compressed bomb", "an endless body", "interim answers without end", "deep lists", "a million empty lists"]
LIMIT_GIB = 1.0
# Linux keeps the peak of a process across exec, and a child begins with its parent's: a small process stands between
MEASURED = """\
import resource, subprocess, sys
code = subprocess.call(sys.argv[1:], stderr=subprocess.STDOUT)
print(resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss)
sys.exit(code)
"""
SUITE = """\
version: 1
name: hostile
backend: openai
batch_size: 8
models: {{target: 'served:m'}}
workloads: [{{name: words, prompts: prompts.jsonl}}]
engine: {{url: '{url}', api: completions, stream: {way}, tries: 1, timeout_s: 3, silence_s: 2}}
sampling: {{max_new_tokens: 64}}
arms:
  - {{name: a, proposer: {{kind: served, gamma: 2}}, verifier: greedy, checks: [liveness]}}
"""


def way(name: str) -> str:
    return "streamed" if name in STREAMED else "whole"


@pytest.mark.medium
@pytest.mark.parametrize("name", slow_unless(HARMS, FAST))
def test_a_request_to_a_hostile_server_ends_in_time_with_its_reason(name):
    with harming(HARMS[name]) as server:
        settings = {"timeout_s": 1.5, "silence_s": 1.0, "tries": 1, "max_wait_s": 1}
        engine = arm(server, "served:m", model="m", server="vllm", stream=way(name), **settings)
        requests = asked(engine, 1)
        began = time.monotonic()
        (found,) = answers(engine, requests)
    assert time.monotonic() - began < 6.0
    assert found.finish_reason is FinishReason.ERROR
    assert found.facts["error"]["kind"] in ("malformed", "http", "timeout", "refused")
    assert len(found.facts["error"]["message"]) < 500


@pytest.mark.parametrize(
    "page",
    [HARMS["a compressed bomb"], HARMS["interim answers without end"], lambda: whole(b'{"data": [{"id": 3}, 4]}')],
    ids=["a compressed bomb", "interim answers without end", "not a list of models"],
)
def test_a_hostile_list_of_models_is_one_line(page):
    with harming(HARMS["no protocol"], page) as server, pytest.raises(EngineError) as caught:
        arm(server, "served:m", model="m", silence_s=0.5, connect_s=0.5)
    assert "\n" not in str(caught.value)


WORDS = "\u202eevil\x1b[31m\x1b]0;t\x07<script>alert(1)</script>\n::error::x "
REFUSED = b"HTTP/1.1 401 \x9b31mNo\r\nContent-Type: application/json\r\n"


@pytest.mark.medium
@pytest.mark.parametrize("models", [True, False], ids=["at the list of models", "at every request"])
def test_a_refusal_with_hostile_words_prints_nothing_that_a_terminal_obeys(models, tmp_path):
    body = json.dumps({"error": {"message": WORDS * 5}}).encode()
    (tmp_path / "prompts.jsonl").write_text('{"id": "a", "prompt": "a"}\n')
    path, store = tmp_path / "suite.yaml", str(tmp_path / "audit.db")
    with harming(lambda: whole(body, REFUSED), *([lambda: whole(body, REFUSED)] if models else [])) as server:
        path.write_text(SUITE.format(url=server.url, way="whole"))
        outputs = [invoke("run", str(path), "--store", store, "--results", str(tmp_path / "r.json"))]
    outputs += [] if models else [invoke("show", "latest", *more, "--store", store) for more in ([], ["a/words/a#0"])]
    assert outputs[0].exit_code in (1, 2, 3), outputs[0].output
    for result in outputs:
        assert result.exception is None or isinstance(result.exception, SystemExit)
        assert unprintable(result.stdout + result.stderr) == []
        assert len(result.stdout + result.stderr) < 20_000


KEY = "sk-live-0123456789"


def streamed(parts: list[dict[str, object]]) -> Iterator[bytes]:
    yield SSE
    for part in parts:
        yield b"data: " + json.dumps({"choices": [part]}).encode() + b"\n\n"
    yield b"data: [DONE]\n\n"


def saying_the_key() -> Iterator[bytes]:
    """The key cut over the parts of a stream, and over the tokens with their log-probabilities and ids."""
    parts = [
        {
            "index": 0,
            "delta": {"content": char},
            "logprobs": {"content": [{"token": char, "logprob": -1.0, "bytes": [ord(char)]}]},
            "token_ids": [ord(char)],
        }
        for char in f"It is {KEY}."
    ]
    return streamed([*parts, {"index": 0, "delta": {}, "finish_reason": "stop"}])


def test_a_key_that_is_cut_over_tokens_is_not_recorded(monkeypatch):
    monkeypatch.setenv("TEST_KEY", KEY)
    with harming(saying_the_key) as server:
        engine = arm(server, "served:m", model="m", server="vllm", stream="streamed", api_key_env="TEST_KEY")
        (found,) = answers(engine, asked(engine, 1))
    assert found.text == "It is ***."
    assert "".join(map(chr, found.tokens)) == found.text
    assert found.facts["level"] == 0
    assert KEY.encode() not in found.trace


def test_the_key_goes_to_the_address_of_the_requests_only(monkeypatch):
    monkeypatch.setenv("TEST_KEY", KEY)
    counters = b'vllm:spec_decode_num_drafts_total{a="b"} 1\n'
    with harming(saying_the_key) as server, harming(saying_the_key, lambda: whole(counters)) as other:
        more = {"api_key_env": "TEST_KEY", "metrics_url": f"{other.url}/models"}
        engine = arm(server, "served:m", model="m", server="vllm", stream="streamed", **more)
        answers(engine, asked(engine, 1))
    assert all(KEY.encode() in head for head in server.heads)
    assert len(other.heads) >= 3
    assert not any(b"authorization" in head.lower() for head in other.heads)


@pytest.mark.slow
@pytest.mark.parametrize("way", ["whole", "streamed"])
def test_a_run_of_hostile_answers_stays_within_a_gibibyte(way, tmp_path):
    """Eight at a time, each request another harm; the limit is for the whole process with all that it imports."""
    (tmp_path / "prompts.jsonl").write_text("".join(f'{{"id": "{i}", "prompt": "p{i}"}}\n' for i in range(16)))
    path, store = tmp_path / "suite.yaml", tmp_path / "audit.db"
    harms = itertools.cycle(HARMS.values())
    with harming(lambda: next(harms)()) as server:
        path.write_text(SUITE.format(url=server.url, way=way))
        command = [sys.executable, "-m", "audit", "run", str(path), "--store", str(store)]
        child = subprocess.run([sys.executable, "-c", MEASURED, *command], capture_output=True, text=True, check=False)
    assert "Traceback" not in child.stdout
    assert child.returncode in (1, 3), child.stdout
    assert sum(head.startswith(b"POST") for head in server.heads) >= len(HARMS)
    with Store.open(str(store), create=False, read_only=True) as opened:
        assert len(opened.load_arm(opened.resolve("latest"), "a").failed) == 16
    peak_gib = int(child.stdout.splitlines()[-1]) / 2**20
    print(f"{way}: {peak_gib:.2f} GiB")
    assert peak_gib <= LIMIT_GIB

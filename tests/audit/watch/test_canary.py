"""The canary of `audit watch`: against a simulated vLLM server with other traffic, and against `audit serve` itself."""

from __future__ import annotations

import json
import sqlite3
from dataclasses import dataclass, field

import httpx2
import pytest

from audit.store import Store
from tests.audit.invoke import invoke
from tests.audit.serve.server import TOKEN, serving
from tests.audit.watch.metrics_server import Answer, metrics_server, vllm_page

PROMPTS = """\
{"id": "a", "messages": [{"role": "user", "content": "Hello"}]}
{"id": "b", "prompt": "once upon", "domain": "chat"}
{"id": "c", "tokens": [3, 4], "domain": "chat"}
"""


@dataclass
class Simulated:
    """A vLLM server: each request drafts 10 times 4 tokens and accepts 25 of them; `others` ends more beside each."""

    others: int = 0
    running: int | None = 0
    accepted: int = 25
    accounts: bool = False
    late: int = 0
    """Pages that do not show the last requests yet."""
    answers: dict[str, str] = field(default_factory=dict)
    bodies: list[dict] = field(default_factory=list)
    drafts: int = 0
    kept: int = 0
    requests: int = 0
    stale: tuple[int, int, int] = (0, 0, 0)
    waits: int = 0

    def page(self) -> Answer:
        self.waits -= 1
        if self.waits <= 0:
            self.stale = (self.drafts, self.kept, self.requests)
        drafts, kept, requests = self.stale
        gauges = "" if self.running is None else f'vllm:num_requests_running{{model_name="m"}} {self.running}\n'
        return Answer(vllm_page(drafts, kept, requests=requests) + gauges)

    def reply(self, path: str, body: dict) -> Answer:
        self.bodies.append(body)
        self.drafts, self.kept = self.drafts + 10 * (1 + self.others), self.kept + self.accepted + 40 * self.others
        self.requests, self.waits = self.requests + 1 + self.others, self.late
        asked = json.dumps(body.get("messages", body.get("prompt")))
        said = self.answers.get(asked, f"answer to {asked}")
        choice = (
            {"message": {"role": "assistant", "content": said}} if path.endswith("chat/completions") else {"text": said}
        )
        document = {"choices": [{"index": 0, "finish_reason": "length", **choice}]}
        if self.accounts:
            own = {"num_spec_steps": 10, "num_draft_tokens": 40, "num_accepted_draft_tokens": self.accepted}
            document["metrics"] = {"speculative_decoding": own}
        return Answer(json.dumps(document))


@pytest.fixture
def prompts(tmp_path):
    path = tmp_path / "canary.jsonl"
    path.write_text(PROMPTS)
    return str(path)


@pytest.fixture
def store(tmp_path):
    return str(tmp_path / "watch.db")


def watched(store, prompts, simulated, looks=2, *more, then=None):
    """The last result; with `then`, as many looks again after it was called."""
    with metrics_server(Answer()) as server:
        server.answer, server.reply = simulated.page, simulated.reply
        for look in range(looks * (2 if then else 1)):
            if look == looks:
                then()
            result = invoke("watch", server.url, "--once", "--store", store, "--canary", prompts, *more)
            # the first reading of the whole traffic has nothing to compare with
            assert result.exit_code == (3 if look == 0 and "--reference" in more else 0), result.output
    return result


def rows(store, columns, label="canary"):
    with sqlite3.connect(store) as connection:
        query = f"SELECT {columns} FROM watch_reading WHERE label IS ? ORDER BY id"
        return connection.execute(query, (label,)).fetchall()


@pytest.mark.medium
def test_alone_on_the_server_the_counters_are_the_canarys_own(store, prompts):
    simulated = Simulated()
    result = watched(store, prompts, simulated)
    counted = "drafts, drafted, accepted, requests, gap, changed"
    assert rows(store, counted) == [(10, 40, 25, 1, None, 0)] * 2
    assert rows(store, counted, "canary chat") == [(20, 80, 50, 2, None, 0)] * 2
    assert "m canary chat  50 of 80 drafted tokens accepted (0.625)" in result.stdout
    assert "2 answers unchanged" in result.stdout
    chat, text, tokens = simulated.bodies[:3]
    assert (chat["model"], chat["temperature"], chat["max_tokens"]) == ("m", 0.0, 64)
    assert (text["prompt"], tokens["prompt"]) == ("once upon", [3, 4])
    # the series of the whole traffic leaves out what the canary sent
    assert [row[0] for row in rows(store, "drafted", None)] == [None, 0]
    with Store.open(store, create=False) as opened:
        assert opened.damage() == ()


@pytest.mark.medium
@pytest.mark.parametrize(
    ("simulated", "words"),
    [
        (Simulated(others=1), "1 other requests ended meanwhile, so their drafts are mixed in"),
        (Simulated(running=1), "other requests were in progress, so their drafts are mixed in"),
        (Simulated(running=None), "the server reports no requests in progress, so other traffic may be mixed in"),
        (Simulated(late=99), "only 0 of the canary's 1 requests were counted"),
    ],
    ids=["ended", "running", "no gauges", "lost"],
)
def test_other_traffic_is_a_gap_in_words_and_answers_are_still_compared(store, prompts, simulated, words):
    watched(store, prompts, simulated, 1)
    ((gap, changed),) = rows(store, "gap, changed")
    assert gap == words
    assert changed == 0


@pytest.mark.medium
def test_other_traffic_does_not_matter_where_each_answer_has_its_own_account(store, prompts):
    watched(store, prompts, Simulated(others=3, running=2, accounts=True), 1)
    assert rows(store, "drafts, drafted, accepted, requests, gap") == [(10, 40, 25, 1, None)]


@pytest.mark.medium
def test_counters_that_come_late_are_waited_for(store, prompts):
    watched(store, prompts, Simulated(late=3), 1)
    assert rows(store, "drafted, gap") == [(40, None)]


@pytest.mark.medium
def test_a_changed_answer_is_reported_and_stays_changed(store, prompts, tmp_path):
    simulated, path = Simulated(), tmp_path / "audit.prom"
    other = {'"once upon"': "another answer"}
    result = watched(
        store, prompts, simulated, 2, "--textfile", str(path), then=lambda: simulated.answers.update(other)
    )
    assert result.stdout.count("1 of 2 answers changed") == 1
    assert [row[0] for row in rows(store, "changed", "canary chat")] == [0, 0, 1, 1]
    assert [row[0] for row in rows(store, "changed")] == [0] * 4
    assert "specaudit_watch_canary_changed{" in path.read_text()
    assert path.read_text().count('label="canary chat"} 1') == 1


@pytest.mark.medium
def test_another_prompt_is_no_changed_answer(store, prompts, tmp_path):
    simulated = Simulated()
    other = PROMPTS.replace("once upon", "twice upon")
    watched(store, prompts, simulated, then=lambda: (tmp_path / "canary.jsonl").write_text(other))
    assert [row[0] for row in rows(store, "changed", "canary chat")] == [0] * 4


@pytest.mark.medium
def test_a_canary_of_low_acceptance_is_no_part_of_what_is_tested(store, prompts):
    simulated = Simulated(accepted=1)

    def traffic():
        simulated.drafts, simulated.kept = simulated.drafts + 1000, simulated.kept + 3000

    watched(store, prompts, simulated, 3, "--reference", "0.5", then=traffic)
    assert rows(store, "drafted, accepted", None) == [(None, None), (0, 0), (0, 0), (4000, 3000), (0, 0), (0, 0)]
    assert {row[0] for row in rows(store, "fall")} == {None}


@pytest.mark.medium
def test_a_server_that_answers_no_canary_is_a_gap(store, prompts):
    simulated = Simulated()
    simulated.reply = lambda path, body: Answer("down", 503)
    watched(store, prompts, simulated, 1)
    ((gap, answers, changed),) = rows(store, "gap, answers, changed")
    assert gap.startswith("the canary failed: ")
    assert "503" in gap
    assert (answers, changed) == ("{}", None)


@pytest.mark.medium
@pytest.mark.parametrize(("page_fails", "then"), [(False, 0), (True, None)])
def test_what_a_failed_canary_drafted_is_no_part_of_the_whole_traffic(store, prompts, page_fails, then):
    """Its last request fails, once another has drafted; the page behind it is read, or fails as well."""
    simulated, down = Simulated(), []

    def failing(path, body):
        if body.get("prompt") == [3, 4]:
            down.append(page_fails)
            return Answer("down", 503)
        return simulated.reply(path, body)

    def page():
        return Answer("down", 503) if down and down.pop() else simulated.page()

    with metrics_server(Answer()) as server:
        server.answer = page
        for reply in (simulated.reply, failing, simulated.reply):
            server.reply = reply
            assert invoke("watch", server.url, "--once", "--store", store, "--canary", prompts).exit_code == 0
    assert simulated.drafts == 80
    assert [row[0] for row in rows(store, "drafted", None)] == [None, 0, then]
    assert [row[0] for row in rows(store, "drafted", "canary chat")] == [80, None, 80]


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("", "the file has no rows"),
        ('{"id": "a"}\n', "neither messages nor prompt nor tokens"),
        ('{"id": "a", "messages": [{"role": "user", "content": "x"}], "tools": [{"name": "t"}]}\n', "takes no tools"),
        ('{"id": "a", "prompt": "x", "structured": {"regex": "a"}}\n', "takes no tools and no grammar"),
    ],
)
def test_a_bad_file_is_refused_in_one_line(store, tmp_path, text, words):
    path = tmp_path / "bad.jsonl"
    path.write_text(text)
    result = invoke("watch", "http://127.0.0.1:9", "--once", "--store", store, "--canary", str(path))
    assert result.exit_code == 2
    assert words in result.stderr
    assert len(result.stderr.strip().splitlines()) == 1


@pytest.mark.slow
@pytest.mark.xdist_group("serve")
def test_on_a_real_server_both_ways_of_counting_agree(tmp_path, prompts, store, monkeypatch):
    """`audit serve` gives each answer its account; without reading it, the counters give the same sums."""
    monkeypatch.setenv("CANARY_KEY", TOKEN)
    options = (
        "--once",
        "--store",
        store,
        "--canary",
        prompts,
        "--canary-tokens",
        "16",
        "--api-key-env",
        "CANARY_KEY",
        "--by",
        "engine",
    )
    with serving(tmp_path, "scripted:1", "--draft", "scripted:2") as server:
        for _ in range(2):
            result = invoke("watch", server.root, *options)
            assert result.exit_code == 0, result.output
        body = {"model": server.model, "prompt": "a", "max_tokens": 24, "temperature": 1.0, "seed": 1}
        login = {"Authorization": f"Bearer {TOKEN}"}
        httpx2.post(
            f"{server.url}/completions", json=body, headers=login, timeout=60, trust_env=False
        ).raise_for_status()
        monkeypatch.setattr("audit.watch.canary.COUNTED", ("nothing",))
        result = invoke("watch", server.root, *options)
        assert result.exit_code == 0, result.output
    (_, first), (_, second) = rows(store, "gap, drafted", "engine=0")[1:]
    assert first == sum(rows(store, "drafted", label)[0][0] for label in ("canary", "canary chat"))
    assert second > first
    for label in ("canary", "canary chat"):
        own, again, counters = rows(store, "drafts, drafted, accepted, requests, gap, changed", label)
        assert own == again == counters
        assert own[1] > 0
        assert own[4:] == (None, 0)

"""`audit watch` beside vLLM's own server: a reading has what the requests since the last one counted themselves."""

import json
import sqlite3

import httpx2
import pytest

from audit.store import Store
from tests.audit.invoke import invoke

from .endpoints import started
from .setting import REFERENCE, ROOT

pytestmark = pytest.mark.vllm
DRAFT = {"method": "draft_model", "model": str(REFERENCE / "medium_draft"), "num_speculative_tokens": 3}
NAMES = ("num_spec_steps", "num_draft_tokens", "num_accepted_draft_tokens")
GOOD = [
    json.loads(line)["messages"] for line in (ROOT / "suites" / "prompts" / "copy.jsonl").read_text().splitlines()[:8]
]
"""Of the kind that the bundled draft has learned."""
BAD = [[{"role": "user", "content": f"{place} zebra quartz! 99 (boat) ~ lamp"}] for place in range(8)]
"""Of no kind that it knows, at a temperature that makes the answers its own."""


@pytest.fixture(scope="module")
def server(tmp_path_factory):
    with started(tmp_path_factory.mktemp("watched") / "server.log", DRAFT) as starting:
        yield starting.ready()


def asked(server, conversations, temperature=0.0):
    """What each request counts of its own drafts."""
    own = []
    for seed, messages in enumerate(conversations):
        body = {"model": "bundled", "messages": messages, "max_tokens": 32, "temperature": temperature, "seed": seed}
        answer = httpx2.post(f"{server.url}/chat/completions", json=body, timeout=120, trust_env=False)
        answer.raise_for_status()
        own.append(answer.json()["metrics"]["speculative_decoding"])
    return own


def once(server, store, reference=0.01):
    return invoke("watch", server.root, "--once", "--store", store, "--reference", str(reference))


def sums(own):
    return tuple(sum(each[name] for each in own) for name in NAMES)


def rows(store, columns):
    with sqlite3.connect(store) as connection:
        return connection.execute(f"SELECT {columns} FROM v_watch ORDER BY at").fetchall()


def test_each_reading_has_the_counts_of_the_requests_since_the_last(server, tmp_path):
    store, counted = str(tmp_path / "watch.db"), []
    assert once(server, store).exit_code == 0
    for conversations in (GOOD[:4], GOOD[4:], BAD[:2], GOOD[:3]):
        counted.append((*sums(asked(server, conversations)), len(conversations)))
        assert once(server, store).exit_code == 0
    found = rows(store, "drafts, drafted, accepted, requests, errors, restarted, gap, model, acceptance_length")
    print(found, counted)
    assert found[0][6].startswith("the first reading")
    for row, own in zip(found[1:], counted, strict=True):
        assert row[:4] == own
        assert row[4:8] == (0, 0, None, "bundled")
        assert row[8] == 1 + own[2] / own[0]
    assert max(accepted / drafted for _, drafted, accepted, _ in counted) > 0.3
    with Store.open(store, create=False) as opened:
        assert opened.damage() == ()


def test_a_fall_of_the_traffics_acceptance_is_an_alarm(server, tmp_path):
    """The reference is four fifths of what the good traffic shows; then traffic comes that accepts little."""
    store = str(tmp_path / "watch.db")
    _, drafted, accepted = sums(asked(server, GOOD))
    reference = 0.8 * accepted / drafted
    once(server, store, reference)
    codes = []
    for conversations, temperature in [(GOOD, 0.0)] * 3 + [(BAD, 1.0)] * 8:
        asked(server, conversations, temperature)
        codes.append(once(server, store, reference).exit_code)
    found = rows(store, "drafted, accepted, fall, alarm")
    print(reference, found)
    assert codes[:3] == [0, 0, 0]
    assert 1 in codes[3:]


def test_a_new_process_at_the_address_is_a_restart(tmp_path):
    """Its counters begin at zero, and they are the growth."""
    store, port, own = str(tmp_path / "watch.db"), None, []
    for start in range(2):
        with started(tmp_path / f"{start}.log", DRAFT, port) as starting:
            server = starting.ready()
            port = server.port
            own = asked(server, GOOD[:3])
            assert once(server, store).exit_code == 0
    assert once(server, store).exit_code == 3
    first, second, gone = rows(store, "drafts, drafted, accepted, restarted, gap")
    assert first[4].startswith("the first reading")
    assert second == (*sums(own), 1, None)
    assert gone[0] is None
    assert gone[4]

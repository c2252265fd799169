"""`audit watch` beside vLLM's own server: a reading has what the requests since the last one counted themselves."""

import json
import sqlite3
from concurrent.futures import ThreadPoolExecutor

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


def test_a_canary_counts_its_own_drafts_and_finds_its_answers_unchanged(server, tmp_path):
    """The server counts drafts for each request, so the counts are the canary's own beside other traffic too.

    Beside sampled requests vLLM 0.32 on a CPU answers greedy ones wrongly (vllm-project/vllm#55005): a changed answer.
    """
    store, rows_of = str(tmp_path / "watch.db"), tmp_path / "canary.jsonl"
    sent = [
        {"id": str(place), "messages": messages, **({} if place % 2 else {"domain": "even"})}
        for place, messages in enumerate(GOOD[:4])
    ]
    rows_of.write_text("".join(json.dumps(row) + "\n" for row in sent))
    options = ("--store", store, "--canary", str(rows_of), "--canary-tokens", "32", "--by", "engine")
    own = {"canary": sums(asked(server, GOOD[1:4:2])), "canary even": sums(asked(server, GOOD[0:4:2]))}
    first = invoke("watch", server.root, "--once", *options)
    alone = invoke("watch", server.root, "--once", *options)
    between = sums(asked(server, BAD[:2]))
    with ThreadPoolExecutor() as beside:
        others = beside.submit(asked, server, BAD * 3, 1.0)
        busy = invoke("watch", server.root, "--once", *options)
        others.result()
    assert [each.exit_code for each in (first, alone, busy)] == [0, 0, 0], busy.output
    changed = 0
    for label, counts in own.items():
        found = rows(store, f"drafts, drafted, accepted, gap, changed FROM v_watch WHERE label = '{label}' --")
        print(label, found)
        assert [row[:4] for row in found[:2]] == [(*counts, None)] * 2
        assert [row[4] for row in found[:2]] == [0, 0]
        assert found[2][3] is None
        changed += found[2][4]
    assert changed > 0
    whole = rows(store, "drafts, drafted, accepted FROM v_watch WHERE label IS NULL --")
    # neither canary is in it: nothing between the first two, the requests between the others
    assert whole[1] == (0, 0, 0)
    assert whole[2][0] >= between[0]
    by = rows(store, "label FROM v_watch WHERE label LIKE 'engine=%' --")
    assert set(by) == {("engine=0",)}


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

"""A server's memory does not grow with the requests that it has answered."""

from __future__ import annotations

import asyncio

import httpx2
import pytest

from tests.audit.serve.server import TOKEN, resident, serving

pytestmark = [pytest.mark.slow, pytest.mark.xdist_group("serve")]
HEADERS = {"Authorization": f"Bearer {TOKEN}"}
AT_ONCE = 16
MEGABYTES = 12
"""Most growth over the last 4,000 requests. A leak of one trace, 4 kB, per request would be 16 MB."""


def body_of(number):
    """Requests of every form: streams, schemas of their own, several choices, alternatives, names of domains."""
    body = {"prompt": f"{number}", "max_tokens": 8 + number % 17, "metadata": {"domain": f"d{number}"}}
    if number % 5 == 0:
        body["stream"] = True
    if number % 7 == 0:
        body |= {"n": 2, "logprobs": 3}
    if number % 11 == 0:
        # nearly every one is a grammar of its own; a script has no end token
        body |= {
            "structured_outputs": {"regex": f"[a-h]{{{1 + number % 6}}}[i-{'jklmnopq'[number % 8]}]*"},
            "stop_token_ids": [0],
        }
    if number % 13 == 0:
        body["logit_bias"] = {str(number % 20): number % 100}
    return body


async def answer_all(server, numbers):
    left = iter(numbers)

    async def work(client):
        for number in left:
            answer = await client.post(f"{server.url}/completions", json=body_of(number), headers=HEADERS)
            assert answer.status_code == 200, answer.text

    async with httpx2.AsyncClient(timeout=300) as client:
        await asyncio.gather(*(work(client) for _ in range(AT_ONCE)))


def test_memory_is_flat_over_5000_requests(tmp_path):
    with serving(tmp_path, "scripted:1", "--draft", "scripted:2") as server:
        seen = []
        for first in range(0, 5000, 1000):
            asyncio.run(answer_all(server, range(first, first + 1000)))
            seen.append(resident(server))
        print("resident MB after each 1000 requests:", [round(each, 1) for each in seen])
        assert seen[-1] - seen[0] < MEGABYTES, seen
        assert server.stop(seconds=300) == 0

"""200 clients for a while, a tenth of them hostile: every honest request is answered rightly, and memory is flat.

`--soak SECONDS` sets the time; `make soak` takes half an hour.
"""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import socket
import time
from collections import Counter
from dataclasses import dataclass, field

import httpx2
import pytest

from tests.audit.serve.server import TOKEN, resident, serving, settled

pytestmark = [pytest.mark.slow, pytest.mark.xdist_group("serve")]
HEADERS = {"Authorization": f"Bearer {TOKEN}"}
HONEST, HOSTILE = 180, 20
MEGABYTES = 40
"""Most growth after the first third: a leak of one trace, 4 kB, per request would be over 100 in half an hour."""
PROMPTS = [f"{number:02d}"[::-1] + " abc" for number in range(40)]


@dataclass
class Soak:
    """A server under load until a moment, and what its clients saw."""

    server: object
    end: float
    answers: dict[str, set[tuple[int, ...]]] = field(default_factory=dict)
    counts: Counter[str] = field(default_factory=Counter)
    wrong: list[str] = field(default_factory=list)

    @property
    def address(self):
        host, _, port = self.server.root.removeprefix("http://").partition(":")
        return host, int(port)


async def honest(soak, client, number):
    """Greedy requests, every third streamed; the same prompt has the same tokens, whoever else is there."""
    for turn in itertools.count(number):
        if time.monotonic() > soak.end:
            return
        prompt = PROMPTS[turn % len(PROMPTS)]
        body = {"prompt": prompt, "max_tokens": 24, "temperature": 0, "ignore_eos": True, "return_token_ids": True}
        if turn % 3 == 0:
            body["stream"] = True
        answer = await client.post(f"{soak.server.url}/completions", json=body, headers=HEADERS)
        soak.counts["honest"] += 1
        if answer.status_code != 200 or (turn % 3 == 0 and not answer.text.rstrip().endswith("[DONE]")):
            soak.wrong.append(f"{answer.status_code}: {answer.text[:200]}")
        elif turn % 3:
            soak.answers.setdefault(prompt, set()).add(tuple(answer.json()["choices"][0]["token_ids"]))


async def posted(soak, client, body, codes, **more):
    given = {"json": body, "headers": HEADERS} | more
    answer = await client.post(f"{soak.server.url}/completions", **given)
    if answer.status_code not in codes:
        soak.wrong.append(f"hostile: {answer.status_code}, not one of {codes}: {answer.text[:200]}")


async def bomb(soak, client, turn):
    grammar = {"choice": [f"{turn} {number}" for number in range(50_000)]}
    await posted(soak, client, {"prompt": "a", "structured_outputs": grammar, "stop_token_ids": [0]}, {400, 413})


async def endless(soak, client, turn):
    grammar = {"json": {"$ref": "#", "title": str(turn)}}
    await posted(soak, client, {"prompt": "a", "structured_outputs": grammar, "stop_token_ids": [0]}, {400})


async def nowhere(soak, client, turn):
    grammar = {"regex": f"[a-z]{{{1 + turn % 5}}}Z"}
    body = {"prompt": "a", "structured_outputs": grammar, "stop_token_ids": [31], "max_tokens": 24}
    await posted(soak, client, body, {400})


async def oversized(soak, client, _turn):
    async def parts():
        for _ in range(4000):
            yield b"x" * 10_000

    with contextlib.suppress(httpx2.HTTPError):  # it may close what it does not read
        headers = HEADERS | {"Content-Type": "application/json"}
        answer = await client.post(f"{soak.server.url}/completions", content=parts(), headers=headers)
        if answer.status_code != 413:
            soak.wrong.append(f"oversized: {answer.status_code}")


async def malformed(soak, client, turn):
    content = [b"{", b"\xff", b'{"a":' * 3000, b'{"prompt": NaN}'][turn % 4]
    await posted(soak, client, None, {400}, content=content, headers=HEADERS | {"Content-Type": "application/json"})


async def stranger(soak, client, _turn):
    await posted(soak, client, {"prompt": "a"}, {401}, headers={"Authorization": "Bearer guess"})


async def leaver(soak, client, _turn):
    body = {"prompt": "abc", "max_tokens": 3000, "ignore_eos": True, "stream": True, "n": 4}
    with contextlib.suppress(httpx2.HTTPError):
        async with client.stream("POST", f"{soak.server.url}/completions", json=body, headers=HEADERS) as answer:
            async for _ in answer.aiter_bytes():
                break


async def dripping(soak, _client, _turn):
    """Half a request, slowly, and then nothing."""
    reader, writer = await asyncio.open_connection(*soak.address)
    head = (
        f"POST /v1/completions HTTP/1.1\r\nHost: 127.0.0.1\r\nAuthorization: Bearer {TOKEN}\r\nContent-Length: 99\r\n"
    )
    for byte in f"{head}Content-Type: application/json\r\n\r\n{{"[:80]:
        writer.write(byte.encode())
        await asyncio.sleep(0.02)
    writer.close()
    with contextlib.suppress(OSError):
        await writer.wait_closed()
    del reader


ATTACKS = (bomb, endless, nowhere, oversized, malformed, stranger, leaver, dripping)


async def hostile(soak, client, number):
    for turn in itertools.count(number):
        if time.monotonic() > soak.end:
            return
        attack = ATTACKS[number % len(ATTACKS)]
        await attack(soak, client, turn)
        soak.counts[attack.__name__] += 1


async def watched(soak, seconds):
    """Resident megabytes, ten times."""
    seen = []
    for _ in range(10):
        await asyncio.sleep(seconds / 10)
        seen.append(resident(soak.server))
    return seen


async def soaked(soak, seconds):
    limits = httpx2.Limits(max_connections=None)
    async with httpx2.AsyncClient(timeout=600, limits=limits) as client:
        clients = [honest(soak, client, number) for number in range(HONEST)]
        clients += [hostile(soak, client, number) for number in range(HOSTILE)]
        return (await asyncio.gather(watched(soak, seconds), *clients))[0]


def test_every_honest_client_is_answered_beside_hostile_ones(tmp_path, pytestconfig):
    seconds = pytestconfig.getoption("--soak")
    with serving(tmp_path, "scripted:1", "--draft", "scripted:2", "--max-queue", "1000") as server:
        soak = Soak(server, time.monotonic() + seconds)
        seen = asyncio.run(soaked(soak, seconds))
        settled(server, seconds=120)
        print(dict(soak.counts), "resident MB:", [round(size) for size in seen])
        assert soak.wrong == []
        assert {prompt: len(tokens) for prompt, tokens in soak.answers.items()} == dict.fromkeys(PROMPTS, 1)
        assert all(soak.counts[attack.__name__] for attack in ATTACKS)
        assert max(seen[3:]) - seen[3] < MEGABYTES, seen
        assert server.process.poll() is None
        with socket.create_connection(soak.address, timeout=5):
            pass
        assert server.stop(seconds=600) == 0

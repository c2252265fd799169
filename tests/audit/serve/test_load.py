"""Many clients at once: none is lost, none changes another's answer, and those who leave free their rows."""

from __future__ import annotations

import asyncio
import json

import httpx2
import pytest

from tests.audit.serve.server import TOKEN, metric, settled

pytestmark = [pytest.mark.slow, pytest.mark.xdist_group("serve")]
HEADERS = {"Authorization": f"Bearer {TOKEN}"}
PROMPTS = [
    f"{first} {second}"
    for first in ("The black", "Use", "I can't", "Once", "Write")
    for second in ("ladder", "a", "of")
]
TOKENS = 48


def own_answers(prompts, count):
    """The tokens of audit's own plain decoding, one request at a time, without a draft."""
    from engine.backends.engine_spec import EngineSpec, ModelSource
    from engine.backends.interface import Prompt
    from engine.backends.native.backend import open_models
    from engine.core.types import Protocol, RecordLevel, Request, SamplingParams

    engine = open_models({"target": ModelSource("bundled:target")}).arm(
        EngineSpec(Protocol.GREEDY, rows=1, level=RecordLevel.TOKENS)
    )
    sampling = SamplingParams(max_new_tokens=count)
    wanted = [Request(text, engine.encode(Prompt(text=text)), sampling) for text in prompts]
    return {each.request.id: list(each.tokens) for each in engine.generate(wanted)}


async def ask(client, server, prompt, **options):
    body = {"model": server.model, "prompt": prompt, "temperature": 0, "max_tokens": TOKENS, "return_token_ids": True}
    answer = await client.post(f"{server.url}/completions", json=body | options, headers=HEADERS)
    assert answer.status_code == 200, answer.text
    return answer.json()["choices"][0]["token_ids"]


def gathered(requests, at_once):
    """Runs coroutines made by functions of a client, so many at once."""

    async def run():
        free = asyncio.Semaphore(at_once)
        limits = httpx2.Limits(max_connections=None)

        async def one(request):
            async with free:
                return await request(client)

        async with httpx2.AsyncClient(timeout=300, limits=limits) as client:
            return await asyncio.gather(*map(one, requests))

    return asyncio.run(run())


def test_greedy_answers_with_a_draft_at_concurrency_8_are_those_of_plain_decoding(pair):
    own = own_answers(PROMPTS, TOKENS)
    drafts = metric(pair, "spec_decode_num_accepted_tokens_total")
    wanted = PROMPTS * 2
    served = gathered([lambda client, prompt=prompt: ask(client, pair, prompt) for prompt in wanted], 8)
    assert served == [own[prompt] for prompt in wanted]
    assert metric(pair, "spec_decode_num_accepted_tokens_total") > drafts


def test_200_requests_at_once_are_all_answered(script):
    before = metric(script, "request_success_total")
    prompts = [f"{number:03d}"[::-1] + " abc" for number in range(200)]
    served = gathered([lambda client, prompt=prompt: ask(client, script, prompt) for prompt in prompts], 200)
    assert [len(tokens) for tokens in served] == [TOKENS] * 200
    assert metric(script, "request_success_total") == before + 200
    again = gathered([lambda client, prompt=prompt: ask(client, script, prompt) for prompt in prompts[::17]], 1)
    assert again == served[::17]


@pytest.mark.parametrize("stream", [True, False])
def test_a_client_that_disconnects_frees_its_row(script, stream):
    settled(script)
    drained = metric(script, "generation_tokens_total")
    body = {"prompt": "abc", "max_tokens": 3000, "ignore_eos": True, "stream": stream, "n": 8}

    async def leave():
        async with httpx2.AsyncClient(timeout=60) as client:
            asked = client.stream("POST", f"{script.url}/completions", json=body, headers=HEADERS)
            task = asyncio.create_task(_read_some(asked))
            while metric(script, "num_requests_running") < 8:
                await asyncio.sleep(0.01)
            task.cancel()

    asyncio.run(leave())
    settled(script)
    done = metric(script, "generation_tokens_total") - drained
    assert 0 < done < 8 * 3000 / 2
    page = httpx2.get(f"{script.root}/metrics").text
    assert 'finished_reason="abort"' in page


async def _read_some(asked):
    async with asked as answer:
        async for _ in answer.aiter_bytes():
            pass


def test_a_full_queue_refuses_and_loses_nothing(tmp_path):
    from tests.audit.serve.server import serving

    options = ("--draft", "scripted:2", "--rows", "1", "--max-queue", "4", "--timeout", "20")
    with serving(tmp_path, "scripted:1", *options) as server:
        body = {"prompt": "abc", "max_tokens": 400, "temperature": 0, "ignore_eos": True}

        async def status(client):
            answer = await client.post(f"{server.url}/completions", json=body, headers=HEADERS)
            return answer.status_code, answer.json()

        answers = gathered([status] * 30, 30)
        codes = [code for code, _ in answers]
        assert set(codes) == {200, 429}
        assert codes.count(200) >= 5
        refused = next(document for code, document in answers if code == 429)
        assert refused["error"]["code"] == "queue_full"
        settled(server)
        assert metric(server, "request_success_total") == codes.count(200)


def test_a_request_that_takes_too_long_ends(tmp_path):
    from tests.audit.serve.server import serving

    with serving(tmp_path, "scripted:1", "--rows", "1", "--timeout", "1") as server:
        body = {"prompt": "abc", "max_tokens": 4000, "ignore_eos": True}
        late = httpx2.post(f"{server.url}/completions", json=body, headers=HEADERS, timeout=60)
        assert (late.status_code, late.json()["error"]["code"]) == (408, "timeout")
        parts = httpx2.post(f"{server.url}/completions", json=body | {"stream": True}, headers=HEADERS, timeout=60)
        lines = [line for line in parts.text.splitlines() if line]
        assert lines[-1] == "data: [DONE]"
        assert json.loads(lines[-2].removeprefix("data: "))["error"]["code"] == "timeout"
        settled(server)

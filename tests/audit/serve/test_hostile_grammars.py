"""Grammars that cost much or lead nowhere: their requests are refused, and everybody else is answered."""

from __future__ import annotations

import asyncio
import time

import pytest

from audit.serve.grammar_trials import GrammarTrials
from tests.audit.serve.in_process import asked, scripted_application

END = 31
ENDLESS = {"$ref": "#"}
BOMB = {"choice": [f"choice {number}" for number in range(100_000)]}
NOWHERE = {"regex": "[a-z]{3}Z"}
"""The scripted alphabet has no capital, which the trial over bytes does not know."""


@pytest.fixture(scope="module")
def server():
    lines = []
    with scripted_application(lines, GrammarTrials(seconds=1)) as application:
        yield application, lines


def complete(client, grammar=None, **options):
    more = {"extra_body": {"structured_outputs": grammar, "stop_token_ids": [END]}} if grammar else {}
    return client.completions.create(model="script", prompt="abc", max_tokens=24, temperature=0, **more, **options)


def refusal_of(server, grammar, **options):
    from openai import BadRequestError

    with pytest.raises(BadRequestError) as error:
        asked(server, lambda client: complete(client, grammar, **options))
    return error.value.body["message"]


def plain(server):
    return asked(server, complete).choices[0].text


@pytest.mark.medium
def test_a_schema_without_a_beginning_is_refused_however_often(server):
    for _ in range(4):
        assert "structured" in refusal_of(server[0], {"json": ENDLESS})
    assert plain(server[0])
    assert server[1] == []


@pytest.mark.medium
def test_a_grammar_that_takes_long_is_refused_and_delays_nobody(server):
    application, lines = server

    async def both(client):
        bomb = asyncio.create_task(complete(client, BOMB))
        await asyncio.sleep(0.1)
        began = time.monotonic()
        answer = await complete(client)
        waited, running = time.monotonic() - began, not bomb.done()
        return answer, waited, running, (await asyncio.gather(bomb, return_exceptions=True))[0]

    answer, waited, running, refused = asked(application, both)
    assert running
    assert answer.choices[0].text
    assert "takes more than 1 s to compile" in str(refused)
    began = time.monotonic()
    assert "takes more than 1 s to compile" in refusal_of(application, BOMB)
    # it is remembered
    assert time.monotonic() - began < waited + 1
    assert lines == []


@pytest.mark.medium
def test_one_that_ends_nowhere_is_refused_when_it_gets_there_and_its_neighbours_are_answered(server):
    application, lines = server
    wanted = plain(application)

    async def together(client):
        return await asyncio.gather(
            complete(client), complete(client, NOWHERE), complete(client), return_exceptions=True
        )

    first, refused, last = asked(application, together)
    assert (first.choices[0].text, last.choices[0].text) == (wanted, wanted)
    assert refused.status_code == 400
    assert "masked" in str(refused)

    async def streamed(client):
        return [part async for part in await complete(client, NOWHERE, stream=True)]

    from openai import APIError

    with pytest.raises(APIError, match="masked"):
        asked(application, streamed)
    assert plain(application) == wanted
    assert lines == []


@pytest.mark.medium
def test_schemas_of_demanded_calls_are_tried_too():
    from audit.serve.grammar_trials import grammars_of
    from audit.serve.request_parser import read_chat
    from tests.audit.serve.in_process import LIMITS

    tool = {"type": "function", "function": {"name": "f", "parameters": ENDLESS}}
    body = {"messages": [{"role": "user", "content": "hi"}], "tools": [tool], "tool_choice": "required"}
    assert list(grammars_of(read_chat(body, "m", LIMITS))) == [{"json": ENDLESS}]
    assert list(grammars_of(read_chat(body | {"tool_choice": "auto"}, "m", LIMITS))) == []

"""OpenAI's own Python client against the application in this process; `test_openai_client` asks a real server."""

from __future__ import annotations

import asyncio

import pytest

from audit.serve.grammar_trials import GrammarTrials
from tests.audit.serve.in_process import RUN, asked, scripted_application


@pytest.fixture(scope="module")
def app():
    with scripted_application([], GrammarTrials()) as application:
        yield application


def complete(client, **options):
    return client.completions.create(
        **({"model": "script", "prompt": "abc", "temperature": 0, "max_tokens": 12} | options)
    )


@pytest.mark.medium
def test_an_answer_has_its_name_its_counts_and_its_drafts(app):
    (listed,) = asked(app, lambda client: client.models.list()).data
    assert listed.id == "script"
    answer = asked(app, complete)
    assert answer.id.startswith(f"cmpl-{RUN}-")
    assert (answer.usage.prompt_tokens, answer.usage.completion_tokens) == (3, 12)
    assert answer.choices[0].finish_reason == "length"
    drafts = answer.model_extra["metrics"]["speculative_decoding"]
    assert 0 < drafts["num_accepted_draft_tokens"] < 12


def test_a_stream_says_what_the_whole_answer_says(app):
    async def streamed(client):
        return [part async for part in await complete(client, stream=True, logprobs=2)]

    whole = asked(app, lambda client: complete(client, logprobs=2)).choices[0]
    parts = asked(app, streamed)
    assert len(parts) > 2
    assert "".join(part.choices[0].text for part in parts) == whole.text
    scores = [score for part in parts if part.choices[0].logprobs for score in part.choices[0].logprobs.token_logprobs]
    assert scores == pytest.approx(whole.logprobs.token_logprobs)
    assert parts[-1].choices[0].finish_reason == whole.finish_reason


def test_choices_follow_their_seed(app):
    async def both(client):
        return await asyncio.gather(*(complete(client, n=3, temperature=1, seed=seed) for seed in (5, 5, 6)))

    first, same, other = [[choice.text for choice in answer.choices] for answer in asked(app, both)]
    assert first == same != other
    assert len(set(first)) > 1


def test_refusals_are_those_that_the_client_knows(app):
    from openai import AuthenticationError, BadRequestError, NotFoundError

    with pytest.raises(NotFoundError, match="not served here"):
        asked(app, lambda client: complete(client, model="gpt-5"))
    with pytest.raises(BadRequestError) as caught:
        asked(app, lambda client: complete(client, max_tokens=255))
    assert caught.value.code == "context_length_exceeded"
    with pytest.raises(AuthenticationError):
        asked(app, lambda client: client.models.list(), key="another")

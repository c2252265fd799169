"""The model of the evaluations' plug-ins, without a harness: answers that are records, seeds, scores, failures."""

from __future__ import annotations

import asyncio

import numpy as np
import pytest

from audit.errors import CannotDecide, UserError
from audit.serve.evaluations.recorded_model import recorded_model
from audit.store import RunStatus, Store
from engine.core.types import Role
from tests.audit.invoke import invoke

SCRIPT = {"model": "scripted:1", "draft": "scripted:2"}


@pytest.fixture
def opened(tmp_path):
    made = []

    def make(**options):
        made.append(recorded_model({**SCRIPT, "store": str(tmp_path / "audit.db"), **options}))
        return made[-1]

    yield make
    for model in made:
        model.close()


def ask(model, *bodies):
    async def run():
        return await asyncio.gather(*(model.answer(body, "letters", chat=False) for body in bodies))

    return asyncio.run(run())


def body(prompt="abc", **options):
    return {"prompt": prompt, "max_tokens": 12, "temperature": 1, **options}


def texts(answers):
    return [answer.document["choices"][0]["text"] for answer in answers]


@pytest.mark.medium
def test_an_answer_is_in_the_store_when_it_is_given(opened):
    model = opened(rows="3")
    answers = ask(model, *(body(prompt) for prompt in "abcdefgh"))
    with Store.open(model.store, create=False, read_only=True) as store:
        assert store.run_status(model.facts["run"]) == RunStatus.RUNNING
        record = store.load_arm(model.facts["run"], "served")
        assert {request.case_id: request.text for request in record.requests} == {
            answer.record["request"]: text for answer, text in zip(answers, texts(answers), strict=True)
        }
        assert {request.domain for request in record.requests} == {"letters"}
        assert any((request.trace.role == Role.ACCEPTED).any() for request in record.requests)
        model.close()
        assert store.run_status(model.facts["run"]) == RunStatus.FINISHED
    done = invoke("show", answers[0].record["request"], "--store", model.store)
    assert done.exit_code == 0, done.output


@pytest.mark.medium
def test_the_same_requests_draw_the_same_numbers_with_drafts_and_without(opened):
    bodies = [body(), body("xyz"), body(), body()]
    drafted, plain, other = (
        texts(ask(opened(**options), *bodies)) for options in ({}, {"speculation": "off"}, {"seed": 1})
    )
    assert drafted == plain != other
    assert len({*drafted}) == 4, "the same request again draws other numbers"
    fixed = texts(ask(opened(), body(seed=5), body(seed=5)))
    assert fixed[0] == fixed[1]


@pytest.mark.medium
def test_a_score_is_the_targets_own(opened):
    model = opened()
    (answer,) = ask(model, body(temperature=0, return_token_ids=True))
    tokens = answer.document["choices"][0]["token_ids"]
    prompt = answer.document["choices"][0]["prompt_token_ids"]
    score = model.score(prompt, tokens, "letters")
    with Store.open(model.store, create=False, read_only=True) as store:
        served = store.load_arm(model.facts["run"], "served").requests[0]
        (scored,) = store.load_arm(model.facts["run"], score.record["arm"]).requests
    assert score.logprob == pytest.approx(float(served.trace.logprob.sum()))
    assert score.greedy
    assert (scored.case_id, scored.tokens) == (score.record["request"], tuple(tokens))
    assert np.all(scored.trace.role == Role.PLAIN)
    unlikely = model.score(prompt, [(tokens[0] + 1) % 32, *tokens[1:]], "letters")
    assert not unlikely.greedy


@pytest.mark.medium
def test_what_the_engine_refuses_is_one_line(opened):
    model = opened()
    with pytest.raises(UserError, match=r"letters: top_p"):
        ask(model, body(top_p=7))
    with pytest.raises(UserError, match=r"letters: max_tokens"):
        ask(model, body(max_tokens=10**6))
    assert texts(ask(model, body()))


@pytest.mark.parametrize(
    ("options", "line"),
    [
        ({"modle": "x"}, "no option 'modle'"),
        ({"model": None}, "no model"),
        ({"gamma": "four"}, "gamma=four: not a whole number"),
        ({"rows": 0}, "rows=0: too small"),
        ({"record": "all"}, "record=all: write one of tokens"),
        ({"speculation": "maybe"}, "speculation=maybe: write on or off"),
        ({"context": 10**9}, "context=1000000000: the model's is"),
        ({"arm": "x"}, "scripted:1 is no suite"),
    ],
)
def test_wrong_options_are_named(opened, options, line):
    with pytest.raises(UserError, match=line):
        opened(**options)


@pytest.mark.medium
def test_without_its_record_there_is_no_answer(opened, monkeypatch):
    model = opened()

    def broken(*_arguments):
        raise CannotDecide("the disk is full")

    monkeypatch.setattr(Store, "add_requests", broken)
    with pytest.raises((CannotDecide, UserError), match="the disk is full"):
        ask(model, body())
    with pytest.raises((CannotDecide, UserError), match="the disk is full"):
        ask(model, body())
    with pytest.raises(CannotDecide, match="not on record"):
        model.close()

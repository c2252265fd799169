"""Neighbours in the batch: they run, they are not yielded, and on a correct engine they change nothing."""

from dataclasses import replace

import pytest

from engine.backends import open_backend
from engine.backends.engine_spec import EngineSpec, ModelSource
from engine.backends.interface import Prompt
from engine.backends.neighbour import LEAST, SUFFIX, Beside, Mixed, NeighbourEngine, contrasting
from engine.core.types import FinishReason, Protocol, Request, SamplingParams
from engine.record.trace import decode

GREEDY = SamplingParams(max_new_tokens=12)
HOT = SamplingParams(temperature=0.8, max_new_tokens=12)
RULES = {
    Protocol.GREEDY: GREEDY,
    Protocol.CHAIN: HOT,
    Protocol.TREE: HOT,
    Protocol.BLOCK: replace(HOT, top_k=5, repetition_penalty=1.2),
    Protocol.GUMBEL: replace(HOT, min_tokens=3, ignore_eos=True),
    Protocol.TYPICAL: HOT,
    Protocol.THRESHOLD: HOT,
    Protocol.ENSEMBLE: HOT,
    Protocol.SYNTHETIC: HOT,
}


class Watched:
    """A backend that keeps what it was asked."""

    def __init__(self, engine):
        self.engine, self.asked = engine, []

    def __getattr__(self, name):
        return getattr(self.engine, name)

    def generate(self, requests):
        self.asked += requests
        yield from self.engine.generate(requests)


def parts():
    backend = open_backend("scripted", {"target": ModelSource("scripted:1"), "draft": ModelSource("scripted:2")})
    engine = backend.arm(EngineSpec(Protocol.GREEDY, "draft_model", 3, "draft"))
    requests = [
        Request(f"r{i}", engine.encode(Prompt(text=text)), GREEDY, i) for i, text in enumerate(("ab", "c", "d"))
    ]
    return engine, requests


def test_company_runs_beside_each_request_with_other_parameters_and_its_own_stream():
    engine, requests = parts()
    watched = Watched(engine)
    assert len(list(NeighbourEngine(watched, Beside(HOT)).generate(requests))) == 3
    neighbour = [each for each in watched.asked if each.id.endswith(SUFFIX)]
    assert [each.prompt for each in neighbour] == [each.prompt for each in requests]
    assert {each.sampling for each in neighbour} == {HOT}
    assert len({each.stream for each in watched.asked}) == 6


def test_a_correct_engine_answers_as_if_it_were_alone():
    engine, requests = parts()
    alone = {each.request.id: each.tokens for each in engine.generate(requests)}
    beside = {each.request.id: each.tokens for each in NeighbourEngine(engine, Beside(HOT)).generate(requests)}
    assert beside == alone


@pytest.mark.parametrize(("protocol", "sampling"), [(Protocol.GREEDY, GREEDY), (Protocol.CHAIN, HOT)])
def test_neighbours_that_are_cancelled_leave_in_the_middle_and_change_no_token(protocol, sampling):
    engine = arm(protocol, rows=3)
    requests = asked(engine, 9, sampling)
    cancelled = NeighbourEngine(engine, Beside(contrasting(sampling), leaves_after=2))
    alone = {each.request.id: each.tokens for each in engine.generate(requests)}
    beside = {each.request.id: each for each in cancelled.generate(requests)}
    assert {name: each.tokens for name, each in beside.items()} == alone
    neighbours = {each.id: each for each in cancelled.company.among(requests) if each.leaves_after}
    prompts = {each.id: each.prompt for each in requests}
    assert all(each.prompt != prompts[name.removesuffix(SUFFIX)] for name, each in neighbours.items())
    gone = [each for each in engine.generate(list(neighbours.values())) if each.finish_reason is FinishReason.ERROR]
    assert gone
    assert {decode(each.trace).header.facts["error"]["kind"] for each in gone} == {"withdrawn"}
    assert any(decode(each.trace).header.facts.get("withdrawals") for each in beside.values())
    assert cancelled.effective_config().beside["cancelled_after"] == 2


def test_the_effective_configuration_tells_of_it():
    engine, _ = parts()
    assert NeighbourEngine(engine, Beside(HOT)).effective_config().beside["temperature"] == 0.8


# mixed batches


def asked(engine, count, sampling, lengths=7):
    """Requests whose prompts have up to `lengths` lengths."""
    texts = ("abcdefghij"[: 1 + i % lengths] + "xyz"[i % 3] for i in range(count))
    return [Request(f"r{i}", engine.encode(Prompt(text=text)), sampling, i) for i, text in enumerate(texts)]


def arm(protocol=Protocol.CHAIN, rows=8, proposer="draft_model"):
    backend = open_backend("scripted", {"target": ModelSource("scripted:1"), "draft": ModelSource("scripted:2")})
    return backend.arm(EngineSpec(protocol, proposer, 3, "draft" if proposer == "draft_model" else None, rows=rows))


@pytest.mark.medium
@pytest.mark.parametrize(("protocol", "sampling"), RULES.items())
@pytest.mark.parametrize("rows", [2, 8])
def test_a_mixed_batch_changes_no_token(protocol, sampling, rows):
    engine = arm(protocol, rows)
    requests = asked(engine, 13, sampling)
    mixed = NeighbourEngine(engine, Mixed(rows, contrasting(sampling)))
    alone = {each.request.id: (each.tokens, each.text, each.finish_reason) for each in engine.generate(requests)}
    found = {each.request.id: (each.tokens, each.text, each.finish_reason) for each in mixed.generate(requests)}
    assert found == alone


@pytest.mark.medium
@pytest.mark.parametrize("sampling", [GREEDY, HOT])
@pytest.mark.parametrize("rows", [2, 3, 8, 64])
@pytest.mark.parametrize("count", [1, 12, 30])
def test_enough_requests_share_a_forward_with_a_neighbour(rows, count, sampling):
    engine = arm(rows=rows)
    mixed = NeighbourEngine(engine, Mixed(rows, contrasting(sampling)))
    records = [decode(each.trace) for each in mixed.generate(asked(engine, count, sampling))]
    assert len(records) == count
    assert sum(bool(each.header.facts["unlike"]) for each in records) >= min(count, LEAST)


def test_mixed_neighbours_are_few_and_unlike():
    engine, rows = arm(), 8
    requests = asked(engine, 40, HOT)
    among = Mixed(rows, contrasting(HOT)).among(requests)
    own = {each.id: each for each in requests}
    neighbours = [each for each in among if each.id not in own]
    assert [each.id for each in among if each.id in own] == list(own)
    assert len(neighbours) == 10
    assert among[0] is neighbours[0], "the first neighbour takes row 0"
    assert len({each.stream for each in among}) == len(among)
    for each in neighbours:
        beside = own[each.id.removesuffix(SUFFIX)]
        assert each.prompt in {other.prompt for other in requests}
        assert len(each.prompt) != len(beside.prompt)
        assert each.sampling.greedy
        assert (each.sampling.seed, each.sampling.max_new_tokens) == (beside.sampling.seed, 6)


def test_prompts_of_one_length_are_shortened_for_neighbours():
    engine = arm()
    among = Mixed(8, contrasting(HOT)).among(asked(engine, 8, HOT, lengths=1))
    assert {len(each.prompt) for each in among if each.id.endswith(SUFFIX)} == {1}


@pytest.mark.parametrize("own", RULES.values())
def test_contrasting_parameters_differ_in_each_respect(own):
    other = contrasting(own)
    assert other.greedy != own.greedy
    assert bool(other.top_k) != bool(own.top_k)
    assert (other.repetition_penalty == 1.0) != (own.repetition_penalty == 1.0)
    assert bool(other.min_tokens) != bool(own.min_tokens)
    assert other.ignore_eos != own.ignore_eos


def test_the_effective_configuration_names_the_mixture():
    mixed = NeighbourEngine(arm(), Mixed(8, contrasting(GREEDY))).effective_config().mixed
    assert (mixed["every"], mixed["sampling"]["temperature"]) == (4, 0.9)


def test_no_requests_need_no_neighbours():
    assert list(NeighbourEngine(arm(), Mixed(8, HOT)).generate([])) == []

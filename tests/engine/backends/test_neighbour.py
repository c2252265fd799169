"""Company in the batch: it runs, it is not yielded, and on a correct engine it changes nothing."""

from engine.backends import open_backend
from engine.backends.engine_spec import EngineSpec, ModelSource
from engine.backends.interface import Prompt
from engine.backends.neighbour import SUFFIX, NeighbourEngine
from engine.core.types import Protocol, Request, SamplingParams

GREEDY = SamplingParams(max_new_tokens=12)
HOT = SamplingParams(temperature=0.8, max_new_tokens=12)


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
    assert len(list(NeighbourEngine(watched, HOT).generate(requests))) == 3
    neighbour = [each for each in watched.asked if each.id.endswith(SUFFIX)]
    assert [each.prompt for each in neighbour] == [each.prompt for each in requests]
    assert {each.sampling for each in neighbour} == {HOT}
    assert len({each.stream for each in watched.asked}) == 6


def test_a_correct_engine_answers_as_if_it_were_alone():
    engine, requests = parts()
    alone = {each.request.id: each.tokens for each in engine.generate(requests)}
    beside = {each.request.id: each.tokens for each in NeighbourEngine(engine, HOT).generate(requests)}
    assert beside == alone


def test_the_effective_configuration_tells_of_it():
    engine, _ = parts()
    assert NeighbourEngine(engine, HOT).effective_config().beside["temperature"] == 0.8

"""Company in the batch: it runs, it is not yielded, and on a correct engine it changes nothing."""

from engine.backends import open_workshop
from engine.backends.engine_spec import ArmPlan, ModelSource
from engine.backends.interface import Prompt
from engine.backends.neighbour import SUFFIX, BesideBackend
from engine.core.types import Protocol, Request, SamplingParams

GREEDY = SamplingParams(max_new_tokens=12)
HOT = SamplingParams(temperature=0.8, max_new_tokens=12)


class Watched:
    """A backend that keeps what it was asked."""

    def __init__(self, backend):
        self.backend, self.asked = backend, []

    def __getattr__(self, name):
        return getattr(self.backend, name)

    def generate(self, requests):
        self.asked += requests
        yield from self.backend.generate(requests)


def parts():
    workshop = open_workshop("scripted", {"target": ModelSource("scripted:1"), "draft": ModelSource("scripted:2")})
    backend = workshop.arm(ArmPlan(Protocol.GREEDY, "draft_model", 3, "draft"))
    requests = [
        Request(f"r{i}", backend.encode(Prompt(text=text)), GREEDY, i) for i, text in enumerate(("ab", "c", "d"))
    ]
    return backend, requests


def test_company_runs_beside_each_request_with_other_parameters_and_its_own_stream():
    backend, requests = parts()
    watched = Watched(backend)
    assert len(list(BesideBackend(watched, HOT).generate(requests))) == 3
    company = [each for each in watched.asked if each.id.endswith(SUFFIX)]
    assert [each.prompt for each in company] == [each.prompt for each in requests]
    assert {each.sampling for each in company} == {HOT}
    assert len({each.stream for each in watched.asked}) == 6


def test_a_correct_engine_answers_as_if_it_were_alone():
    backend, requests = parts()
    alone = {each.request.id: each.tokens for each in backend.generate(requests)}
    beside = {each.request.id: each.tokens for each in BesideBackend(backend, HOT).generate(requests)}
    assert beside == alone


def test_the_effective_configuration_tells_of_it():
    backend, _ = parts()
    assert BesideBackend(backend, HOT).effective_config()["beside"]["temperature"] == 0.8

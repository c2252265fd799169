"""The scripted backend: the native loop, exact and instant."""

import pytest

from engine.backends import open_workshop
from engine.backends.engine_spec import ArmPlan, ModelSource
from engine.backends.interface import Prompt
from engine.backends.scripted import ALPHABET, VOCABULARY
from engine.core.errors import InvalidRequest, ModelError
from engine.core.types import Protocol, Request, SamplingParams

SEEDS = {"target": ModelSource("scripted:1"), "draft": ModelSource("scripted:2")}
GREEDY = SamplingParams(max_new_tokens=20)


@pytest.fixture
def workshop():
    return open_workshop("scripted", SEEDS)


def requests(backend, sampling=GREEDY):
    texts = ("hello", "a", "speculation you can prove", "?")
    return [Request(text, backend.encode(Prompt(text=text)), sampling, i) for i, text in enumerate(texts)]


def run(backend, sampling=GREEDY):
    return {each.request.id: (each.tokens, each.text) for each in backend.generate(requests(backend, sampling))}


def test_text_is_letters_and_back(workshop):
    backend = workshop.arm(ArmPlan(Protocol.GREEDY))
    assert "".join(ALPHABET[token] for token in backend.encode(Prompt(text="Hello, you?"))) == "hello, you?"
    assert backend.encode(Prompt(messages=({"role": "user", "content": "ab"}, {"role": "user", "content": "c"}))) == (
        0,
        1,
        ALPHABET.index(" "),
        2,
    )
    assert backend.encode(Prompt(text="")) == (0,)
    assert backend.encode(Prompt(text="\u65e5")) == (0,)
    for tokens, text in run(backend).values():
        assert text == "".join(ALPHABET[token] for token in tokens)


@pytest.mark.parametrize(("protocol", "temperature"), [(Protocol.GREEDY, 0.0), (Protocol.GUMBEL, 0.9)])
@pytest.mark.parametrize("proposer", ["draft_model", "ngram"])
def test_speculation_gives_the_baseline_s_text(workshop, protocol, temperature, proposer):
    sampling = SamplingParams(temperature=temperature, max_new_tokens=30, seed=2)
    draft = "draft" if proposer == "draft_model" else None
    candidate = workshop.arm(ArmPlan(protocol, proposer, 4, draft, rows=2))
    assert run(candidate, sampling) == run(workshop.arm(ArmPlan(protocol)), sampling)


def test_equal_seeds_are_equal_models_and_others_are_not(workshop):
    again = open_workshop("scripted", SEEDS)
    other = open_workshop("scripted", SEEDS | {"target": ModelSource("scripted:3")})
    plan = ArmPlan(Protocol.GREEDY)
    assert run(again.arm(plan)) == run(workshop.arm(plan))
    assert run(other.arm(plan)) != run(workshop.arm(plan))
    digests = [{facts.name: facts.sha256 for facts in each.models()} for each in (workshop, again, other)]
    assert digests[0] == digests[1]
    assert digests[0]["target"] != digests[2]["target"]
    assert digests[0]["target"] != digests[0]["draft"]


def test_the_configuration_says_what_runs(workshop):
    plan = ArmPlan(Protocol.GUMBEL, "draft_model", 4, "draft", rows=3)
    config = workshop.arm(plan).effective_config()
    assert config["target"] == {"loader": "scripted", "seed": "1", "likeness": 1.0}
    assert config["draft"]["seed"] == "2"
    assert (config["proposer"], config["gamma"], config["protocol"], config["rows"]) == ("draft_model", 4, "gumbel", 3)


@pytest.mark.parametrize("source", ["scripted", "scripted:", "scripted:x", "scripted:-1", "bundled:target", "/tmp"])
def test_other_sources_are_refused(source):
    with pytest.raises(ModelError, match="scripted:SEED"):
        open_workshop("scripted", {"target": ModelSource(source)})


def test_an_unknown_draft_is_refused(workshop):
    with pytest.raises(InvalidRequest, match="no model named 'small'; there are: target, draft"):
        workshop.arm(ArmPlan(Protocol.GREEDY, "draft_model", 4, "small"))


def test_token_ids_end_with_the_alphabet(workshop):
    backend = workshop.arm(ArmPlan(Protocol.GREEDY))
    with pytest.raises(InvalidRequest, match=f"names token {VOCABULARY}, but ids end at {VOCABULARY - 1}"):
        backend.require([Request("r", (VOCABULARY,), GREEDY)])

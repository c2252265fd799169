"""The scripted backend: the native loop, exact and instant."""

import pytest

from engine.backends import open_backend
from engine.backends.engine_spec import EngineSpec, ModelSource
from engine.backends.interface import Prompt
from engine.backends.native import ALPHABET
from engine.backends.native.scripted import VOCABULARY
from engine.core.errors import InvalidRequest, ModelError
from engine.core.types import Protocol, Request, SamplingParams

SEEDS = {"target": ModelSource("scripted:1"), "draft": ModelSource("scripted:2")}
GREEDY = SamplingParams(max_new_tokens=20)


@pytest.fixture
def backend():
    return open_backend("scripted", SEEDS)


def requests(engine, sampling=GREEDY):
    texts = ("hello", "a", "speculation you can prove", "?")
    return [Request(text, engine.encode(Prompt(text=text)), sampling, i) for i, text in enumerate(texts)]


def run(engine, sampling=GREEDY):
    return {each.request.id: (each.tokens, each.text) for each in engine.generate(requests(engine, sampling))}


def test_text_is_letters_and_back(backend):
    engine = backend.arm(EngineSpec(Protocol.GREEDY))
    assert "".join(ALPHABET[token] for token in engine.encode(Prompt(text="Hello, you?"))) == "hello, you?"
    assert engine.encode(Prompt(messages=({"role": "user", "content": "ab"}, {"role": "user", "content": "c"}))) == (
        0,
        1,
        ALPHABET.index(" "),
        2,
    )
    assert engine.encode(Prompt(text="")) == (0,)
    assert engine.encode(Prompt(text="\u65e5")) == (0,)
    for tokens, text in run(engine).values():
        assert text == "".join(ALPHABET[token] for token in tokens)


@pytest.mark.medium
@pytest.mark.parametrize(("protocol", "temperature"), [(Protocol.GREEDY, 0.0), (Protocol.GUMBEL, 0.9)])
@pytest.mark.parametrize("proposer", ["draft_model", "ngram"])
def test_speculation_gives_the_baseline_s_text(backend, protocol, temperature, proposer):
    sampling = SamplingParams(temperature=temperature, max_new_tokens=30, seed=2)
    draft = "draft" if proposer == "draft_model" else None
    candidate = backend.arm(EngineSpec(protocol, proposer, 4, draft, rows=2))
    assert run(candidate, sampling) == run(backend.arm(EngineSpec(protocol)), sampling)


def test_equal_seeds_are_equal_models_and_others_are_not(backend):
    again = open_backend("scripted", SEEDS)
    other = open_backend("scripted", SEEDS | {"target": ModelSource("scripted:3")})
    plan = EngineSpec(Protocol.GREEDY)
    assert run(again.arm(plan)) == run(backend.arm(plan))
    assert run(other.arm(plan)) != run(backend.arm(plan))
    digests = [{facts.name: facts.sha256 for facts in each.models()} for each in (backend, again, other)]
    assert digests[0] == digests[1]
    assert digests[0]["target"] != digests[2]["target"]
    assert digests[0]["target"] != digests[0]["draft"]


def test_the_configuration_says_what_runs(backend):
    plan = EngineSpec(Protocol.GUMBEL, "draft_model", 4, "draft", rows=3)
    config = backend.arm(plan).effective_config().to_json()
    assert config["target"] == {"loader": "scripted", "seed": "1", "likeness": 1.0}
    assert config["draft"]["seed"] == "2"
    assert (config["proposer"], config["gamma"], config["protocol"], config["rows"]) == ("draft_model", 4, "gumbel", 3)


@pytest.mark.parametrize("source", ["scripted", "scripted:", "scripted:x", "scripted:-1", "bundled:target", "/tmp"])
def test_other_sources_are_refused(source):
    with pytest.raises(ModelError, match="scripted:SEED"):
        open_backend("scripted", {"target": ModelSource(source)})


def test_an_unknown_draft_is_refused(backend):
    with pytest.raises(InvalidRequest, match="no model named 'small'; there are: target, draft"):
        backend.arm(EngineSpec(Protocol.GREEDY, "draft_model", 4, "small"))


def test_token_ids_end_with_the_alphabet(backend):
    engine = backend.arm(EngineSpec(Protocol.GREEDY))
    with pytest.raises(InvalidRequest, match=f"names token {VOCABULARY}, but ids end at {VOCABULARY - 1}"):
        engine.require([Request("r", (VOCABULARY,), GREEDY)])

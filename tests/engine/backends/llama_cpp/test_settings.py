"""Settings and parameters of llama.cpp: each reaches the server in its words, or is refused in words."""

from dataclasses import replace

import pytest

import schemas
from engine.backends import REGISTRY, declared, outside_access
from engine.backends.access import OutsideKind
from engine.backends.engine_spec import EngineSpec, ModelSource
from engine.backends.evidence import ArmSettings, Part
from engine.backends.llama_cpp.settings import REFUSED, WAYS, WORDS, draws, sampling_body, settings_of, shares, way_of
from engine.backends.process.settings import refusal
from engine.core.errors import InvalidRequest
from engine.core.types import Protocol, Request, SamplingParams

DRAFT = EngineSpec(Protocol.CHAIN, "draft_model", 4, "draft", rows=1)
DRAWN = replace(DRAFT, options={"probabilistic": True})
COPIED = EngineSpec(Protocol.GUMBEL, "ngram_simple", 4, options={"size_n": 2})
POOLED = EngineSpec(Protocol.GUMBEL, "ngram_mod", 4, options={"n_match": 2})


def test_the_width_has_the_engines_name_in_each_way():
    assert settings_of(EngineSpec(Protocol.CHAIN)).speculative == {}
    assert settings_of(DRAFT).speculative == {"n_max": 4, "n_min": 0, "p_min": 0.0, "probabilistic": False}
    assert settings_of(COPIED).speculative == {"size_m": 4, "size_n": 2, "min_hits": 1}
    assert settings_of(POOLED).speculative == {"n_max": 4, "n_match": 2, "n_min": 0}
    assert [way_of(settings_of(plan)) for plan in (DRAFT, POOLED)] == ["draft-simple", "ngram-mod"]
    assert way_of(settings_of(EngineSpec(Protocol.CHAIN))) == "none"
    assert WAYS.keys() == WORDS.kinds.keys() == set(REGISTRY["llama_cpp"].proposers or ())


@pytest.mark.parametrize(
    ("plan", "words"),
    [
        (replace(DRAFT, gamma=65), "gamma must be 1 to 64"),
        (replace(COPIED, draft="draft"), "remove model"),
        (replace(DRAFT, proposer="eagle3"), "it has: draft_model, ngram_simple"),
        (replace(COPIED, options={"p_min": 0.4}), "p_min"),
        (replace(DRAFT, options={"n_min": 5}), "n_min must be at most gamma, 4"),
        (replace(DRAWN, protocol=Protocol.GUMBEL), "use verifier: chain"),
        (replace(DRAFT, options={"synth_len": 3.0}), "replaces verification by an acceptance that you choose"),
        (replace(DRAFT, options={"synth_rates": [0.9]}), "the tokens are not the target's; remove it"),
        (replace(DRAFT, engine={"spec_synth_len": 3}), "engine.spec_synth_len: there is no such setting"),
        (replace(DRAFT, fault="lenient_10_percent"), "faults are of the native backend"),
    ],
)
def test_what_the_engine_lacks_is_refused(plan, words):
    with pytest.raises(InvalidRequest, match=words):
        settings_of(plan)


def test_every_parameter_reaches_the_engine_or_is_refused():
    refused = [
        {"presence_penalty": 0.5},
        {"frequency_penalty": 0.5},
        {"min_tokens": 3},
        {"stop_token_ids": (8,)},
        {"ignore_eos": True},
        {"bad_words": ((3, 4),)},
    ]
    reasons = {refusal(REFUSED, SamplingParams(**given)) for given in refused}
    assert None not in reasons
    assert len(reasons) == len(REFUSED) - 1, "two penalties share a reason; structured is a mapping of its own"
    taken = SamplingParams(
        0.5, 7, 0.9, 0.1, 1.2, logit_bias=((3, 1.5),), bad_words=((9,),), max_new_tokens=5, stop=("x",)
    )
    assert refusal(REFUSED, taken) is None
    body = sampling_body(Request("r", (1, 2), taken), 1024)
    shared = {"temperature": 0.5, "top_k": 7, "top_p": 0.9, "min_p": 0.1, "repeat_penalty": 1.2, "n_predict": 5}
    assert shared.items() <= body.items()
    assert (body["logit_bias"], body["stop"], body["repeat_last_n"]) == ([[3, 1.5], [9, False]], ["x"], 1024)
    assert body["samplers"] == ["penalties", "temperature", "min_p", "top_k", "top_p"]
    assert 0 <= body["seed"] < 2**31
    assert body["seed"] != sampling_body(Request("r", (1, 2), taken, stream=1), 1024)["seed"]


def test_the_evidence_follows_the_way_of_speculating():
    def parts(plan, greedy=False):
        return declared("llama_cpp").arm(ArmSettings(plan, greedy, ModelSource("bundled:target")))

    assert (parts(DRAWN).drawn, parts(DRAWN, greedy=True).drawn, parts(DRAFT).drawn) == (True, False, False)
    assert (parts(POOLED).shares, parts(COPIED).shares) == (True, False)
    assert (parts(COPIED).protocol, parts(DRAFT).protocol) == (Protocol.GUMBEL, Protocol.CHAIN)
    assert parts(DRAFT).gives(Part.COUNTS)
    assert not parts(EngineSpec(Protocol.GREEDY)).gives(Part.COUNTS)
    assert [draws(settings_of(plan)) for plan in (DRAWN, DRAFT)] == [True, False]
    assert not shares(settings_of(DRAFT))


def test_the_interpreter_and_the_folders_need_an_allowance():
    named = outside_access("llama_cpp", {"python": "/x/python", "gguf": {"target": "t"}}, {})
    assert {(access.kind, access.key) for access in named} == {
        (OutsideKind.PROGRAM, "engine.python"),
        (OutsideKind.FILE, "engine.gguf.target"),
    }
    assert set(schemas.load("engine-llama_cpp")["properties"]) >= {"python", "gguf"}

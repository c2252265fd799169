"""Settings, parameters and models of OpenVINO GenAI: each reaches the engine in its words, or is refused in words."""

from dataclasses import replace

import pytest

import schemas
from engine.backends import REGISTRY, declared, outside_access
from engine.backends.access import OutsideKind
from engine.backends.engine_spec import EngineSpec, ModelSource
from engine.backends.evidence import ArmSettings, Part
from engine.backends.openvino_genai.settings import REFUSED, bounded, generation_options, raw, settings_of
from engine.backends.process.convert import unknown
from engine.backends.process.settings import refusal
from engine.core.errors import InvalidRequest
from engine.core.types import Protocol, Request, SamplingParams
from engine.models.loading import open_source

DRAFT = EngineSpec(Protocol.CHAIN, "draft_model", 4, "draft", rows=1)
CONFIDENT = replace(DRAFT, options={"assistant_confidence_threshold": 0.4})
LOOKUP = EngineSpec(Protocol.CHAIN, "prompt_lookup", 4)


def test_a_threshold_takes_the_place_of_the_width():
    assert settings_of(EngineSpec(Protocol.CHAIN)).speculative == {}
    assert settings_of(DRAFT).speculative == {"num_assistant_tokens": 4}
    assert settings_of(LOOKUP).speculative == {"num_assistant_tokens": 4, "max_ngram_size": 3}
    assert settings_of(CONFIDENT).speculative == {"assistant_confidence_threshold": 0.4}
    assert [bounded(settings_of(plan)) for plan in (DRAFT, LOOKUP)] == [True, True]


@pytest.mark.parametrize(
    ("plan", "words"),
    [
        (replace(DRAFT, gamma=65), "gamma must be 1 to 64"),
        (replace(LOOKUP, draft="draft"), "remove model"),
        (replace(DRAFT, proposer="eagle3"), "it has: draft_model, prompt_lookup"),
        (replace(LOOKUP, options={"assistant_confidence_threshold": 0.4}), "max_ngram_size"),
        (replace(DRAFT, engine={"device": "GPU"}), "engine.device"),
        (replace(DRAFT, rows=2, engine={"counters": True}), "batch_size: 1"),
    ],
)
def test_what_the_engine_lacks_is_refused(plan, words):
    with pytest.raises(InvalidRequest, match=words):
        settings_of(plan)


def test_every_parameter_reaches_the_engine_or_is_refused():
    given = {"logit_bias": ((3, 1.0),), "bad_words": ((3,),), "stop": ("x",)}
    refused = {refusal(REFUSED, SamplingParams(**{name: value})) for name, value in given.items()}
    assert None not in refused
    assert len(refused) == len(REFUSED) - 1, "all but structured, which is a mapping of its own"
    taken = SamplingParams(
        0.5, 7, 0.9, 0.1, 1.2, 0.3, 0.4, min_tokens=3, max_new_tokens=9, stop_token_ids=(8,), ignore_eos=True
    )
    options = generation_options(Request("r", (1, 2), taken), (5, 6))
    shared = {"temperature": 0.5, "top_k": 7, "top_p": 0.9, "min_p": 0.1, "repetition_penalty": 1.2}
    shared |= {"presence_penalty": 0.3, "frequency_penalty": 0.4, "min_new_tokens": 3, "max_new_tokens": 9}
    assert shared.items() <= options.items()
    assert (options["ignore_eos"], options["stop_token_ids"], options["do_sample"]) == (True, [8], True)
    assert options["rng_seed"] != generation_options(Request("r", (1, 2), taken, stream=1), (5,))["rng_seed"]
    assert generation_options(Request("r", (1,), SamplingParams()), (5, 6))["stop_token_ids"] == [5, 6]


def test_log_probabilities_are_recorded_where_no_parameter_changes_the_row():
    sampled = SamplingParams(temperature=1.0)
    assert raw(SamplingParams())
    assert raw(sampled)
    others = [{"temperature": 0.7}, {"top_k": 5}, {"top_p": 0.9}, {"min_p": 0.1}, {"presence_penalty": 1.0}]
    assert not any(raw(replace(sampled, **other)) for other in others)


def test_log_probabilities_are_promised_without_counters_only():
    def parts(plan):
        return declared("openvino_genai").arm(ArmSettings(plan, True, ModelSource("bundled:target")))

    stepped, counted = parts(DRAFT), parts(replace(DRAFT, engine={"counters": True}))
    assert (stepped.level, counted.level) == (1, 0)
    assert stepped.gives(Part.LOGPROBS)
    assert not stepped.gives(Part.COUNTS)
    assert counted.gives(Part.COUNTS)
    assert not counted.gives(Part.LOGPROBS)


def test_models_that_the_graph_does_not_cover_are_refused_in_words():
    config = open_source("bundled:target").folder.config
    assert unknown(config) is None
    assert "not GPT2LMHeadModel" in unknown({**config, "architectures": ["GPT2LMHeadModel"]})
    assert "not yarn" in unknown({**config, "rope_parameters": {"rope_type": "yarn"}})
    assert "not gelu" in unknown({**config, "hidden_act": "gelu"})
    assert "sliding" in unknown({**config, "use_sliding_window": True})


def test_the_interpreter_and_the_folders_need_an_allowance():
    named = outside_access("openvino_genai", {"python": "/x/python", "openvino": {"target": "t"}}, {})
    assert {(access.kind, access.key) for access in named} == {
        (OutsideKind.PROGRAM, "engine.python"),
        (OutsideKind.FILE, "engine.openvino.target"),
    }
    assert set(schemas.load("engine-openvino_genai")["properties"]) >= {"python", "openvino"}
    assert REGISTRY["openvino_genai"].options == "engine-openvino_genai"

"""Settings and parameters of onnxruntime-genai: each reaches the engine in its words, or is refused in words."""

from dataclasses import replace

import pytest

import schemas
from engine.backends import REGISTRY, declared, outside_access
from engine.backends.access import OutsideKind
from engine.backends.engine_spec import EngineSpec, ModelSource
from engine.backends.evidence import ArmSettings, Part
from engine.backends.onnxruntime_genai.settings import REFUSED, bounded, search_options, settings_of
from engine.backends.process.settings import refusal
from engine.core.errors import InvalidRequest
from engine.core.types import Protocol, RecordLevel, Request, SamplingParams

DRAFT = EngineSpec(Protocol.CHAIN, "draft_model", 4, "draft")
NGRAM = EngineSpec(Protocol.CHAIN, "ngram", 4, options={"ngram_size": 4})


def test_options_keep_the_engines_names():
    assert settings_of(EngineSpec(Protocol.CHAIN)).speculative == {}
    assert settings_of(DRAFT).speculative == {"max_draft_tokens": 4, "min_adaptive_k": 0, "cooldown": False}
    assert settings_of(NGRAM).speculative["ngram_size"] == 4
    assert not bounded(settings_of(replace(DRAFT, options={"min_adaptive_k": 2})))


@pytest.mark.parametrize(
    ("plan", "words"),
    [
        (replace(DRAFT, gamma=17), "gamma must be 1 to 16"),
        (replace(DRAFT, draft=None), "add model"),
        (replace(NGRAM, draft="draft"), "remove model"),
        (replace(DRAFT, others=("two",)), "remove others"),
        (replace(DRAFT, proposer="eagle"), "it has: draft_model, ngram"),
        (replace(NGRAM, options={"min_ngram": 1}), "ngram_size"),
        (replace(DRAFT, engine={"dtype": "float16"}), "engine.dtype"),
        (replace(DRAFT, fault="skip"), "native"),
    ],
)
def test_what_the_engine_lacks_is_refused(plan, words):
    with pytest.raises(InvalidRequest, match=words):
        settings_of(plan)


def test_every_parameter_reaches_the_engine_or_is_refused():
    given = {
        "min_p": 0.1, "presence_penalty": 1.0, "frequency_penalty": 1.0, "logit_bias": ((3, 1.0),),
        "bad_words": ((3,),), "ignore_eos": True, "stop": ("x",),
    }  # fmt: skip
    refused = {refusal(REFUSED, SamplingParams(temperature=1.0, **{name: value})) for name, value in given.items()}
    refused.add(refusal(REFUSED, SamplingParams(min_tokens=1, stop_token_ids=(3,))))
    assert None not in refused
    assert len(refused) == len(REFUSED) - 1, "all but structured, which is a mapping of its own"
    taken = SamplingParams(0.5, 7, 0.9, repetition_penalty=1.2, min_tokens=3, max_new_tokens=9, seed=5)
    options = search_options(Request("r", (1, 2), taken), 100)
    assert (options["temperature"], options["top_k"], options["top_p"]) == (0.5, 7, 0.9)
    assert (options["repetition_penalty"], options["min_length"], options["max_length"]) == (1.2, 5, 11)
    assert options["random_seed"] != search_options(Request("r", (1, 2), taken, stream=1), 100)["random_seed"]


def test_the_configuration_of_a_model_fills_nothing_in():
    options = search_options(Request("r", (1,), SamplingParams()), 100)
    assert options["do_sample"] is False
    assert (options["top_k"], options["repetition_penalty"], options["min_length"]) == (0, 1.0, 0)
    assert search_options(Request("r", (1,), SamplingParams(1.0, top_k=500)), 100)["top_k"] == 100


def test_rows_are_promised_without_n_gram_drafts_only():
    def parts(plan):
        return declared("onnxruntime_genai").arm(ArmSettings(plan, False, ModelSource("bundled:target")))

    drafted, copied = parts(replace(DRAFT, level=RecordLevel.FULL)), parts(replace(NGRAM, level=RecordLevel.FULL))
    assert (drafted.level, copied.level) == (2, 0)
    assert drafted.gives(Part.ROWS)
    assert not copied.gives(Part.LOGPROBS)
    assert not drafted.gives(Part.DRAFTS)
    assert not drafted.gives(Part.Q)


def test_the_interpreter_and_the_folders_need_an_allowance():
    named = outside_access("onnxruntime_genai", {"python": "/x/python", "onnx": {"target": "t"}}, {})
    assert {(each.kind, each.key) for each in named} == {
        (OutsideKind.PROGRAM, "engine.python"),
        (OutsideKind.FILE, "engine.onnx.target"),
    }
    assert set(schemas.load("engine-onnxruntime_genai")["properties"]) >= {"python", "onnx"}
    assert REGISTRY["onnxruntime_genai"].options == "engine-onnxruntime_genai"

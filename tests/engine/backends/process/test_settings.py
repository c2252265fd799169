"""Settings, parameters and models of engines in processes: each reaches the engine in its words, or is refused."""

from dataclasses import replace
from pathlib import Path

import pytest

import schemas
from engine.backends import REGISTRY, declared, open_backend, outside_access
from engine.backends.access import OutsideKind
from engine.backends.engine_spec import EngineSpec, ModelSource
from engine.backends.evidence import ArmSettings, Part
from engine.backends.llama_cpp import settings as llama
from engine.backends.mlx_lm import settings as mlx
from engine.backends.onnxruntime_genai import settings as onnx
from engine.backends.openvino_genai import settings as openvino
from engine.backends.process.convert import unknown
from engine.backends.process.settings import refusal
from engine.core.errors import InvalidRequest, ModelError
from engine.core.types import Protocol, RecordLevel, Request, SamplingParams
from engine.models.loading import open_source

CHAIN = Path(__file__).parents[4] / "suites" / "models" / "chain"
TARGET = ModelSource("bundled:target")
PLAIN = EngineSpec(Protocol.CHAIN)
DRAFT = EngineSpec(Protocol.CHAIN, "draft_model", 4, "draft", rows=1)
DRAWN = replace(DRAFT, options={"probabilistic": True})
COPIED = EngineSpec(Protocol.GUMBEL, "ngram_simple", 4, options={"size_n": 2})
POOLED = EngineSpec(Protocol.GUMBEL, "ngram_mod", 4, options={"n_match": 2})
NGRAM = EngineSpec(Protocol.CHAIN, "ngram", 4, options={"ngram_size": 4})
CONFIDENT = replace(DRAFT, options={"assistant_confidence_threshold": 0.4})
LOOKUP = EngineSpec(Protocol.CHAIN, "prompt_lookup", 4)
ENGINES = {"llama_cpp": llama, "mlx_lm": mlx, "onnxruntime_genai": onnx, "openvino_genai": openvino}


@pytest.mark.parametrize(
    ("engine", "plan", "words"),
    [
        ("llama_cpp", replace(DRAFT, gamma=65), "gamma must be 1 to 64"),
        ("llama_cpp", replace(COPIED, draft="draft"), "remove model"),
        ("llama_cpp", replace(DRAFT, proposer="eagle3"), "it has: draft_model, ngram_simple"),
        ("llama_cpp", replace(COPIED, options={"p_min": 0.4}), "p_min"),
        ("llama_cpp", replace(DRAFT, options={"n_min": 5}), "n_min must be at most gamma, 4"),
        ("llama_cpp", replace(DRAWN, protocol=Protocol.GUMBEL), "use verifier: chain"),
        (
            "llama_cpp",
            replace(DRAFT, options={"synth_len": 3.0}),
            "replaces verification by an acceptance that you choose",
        ),
        ("llama_cpp", replace(DRAFT, options={"synth_rates": [0.9]}), "the tokens are not the target's; remove it"),
        ("llama_cpp", replace(DRAFT, engine={"spec_synth_len": 3}), "engine.spec_synth_len: there is no such setting"),
        ("llama_cpp", replace(DRAFT, fault="lenient_10_percent"), "faults are of the native backend"),
        ("mlx_lm", replace(DRAFT, gamma=65), "gamma must be 1 to 64"),
        ("mlx_lm", replace(DRAFT, draft=None), "add model: NAME"),
        ("mlx_lm", replace(DRAFT, proposer="ngram"), "it has: draft_model"),
        ("mlx_lm", replace(DRAFT, options={"width": 2}), "width"),
        ("mlx_lm", replace(DRAFT, engine={"threads": 2}), "engine.threads"),
        ("mlx_lm", replace(DRAFT, fault="accepts_everything"), "native backend"),
        ("onnxruntime_genai", replace(DRAFT, gamma=17), "gamma must be 1 to 16"),
        ("onnxruntime_genai", replace(DRAFT, draft=None), "add model"),
        ("onnxruntime_genai", replace(NGRAM, draft="draft"), "remove model"),
        ("onnxruntime_genai", replace(DRAFT, others=("two",)), "remove others"),
        ("onnxruntime_genai", replace(DRAFT, proposer="eagle"), "it has: draft_model, ngram"),
        ("onnxruntime_genai", replace(NGRAM, options={"min_ngram": 1}), "ngram_size"),
        ("onnxruntime_genai", replace(DRAFT, engine={"dtype": "float16"}), "engine.dtype"),
        ("onnxruntime_genai", replace(DRAFT, fault="skip"), "native"),
        ("openvino_genai", replace(DRAFT, gamma=65), "gamma must be 1 to 64"),
        ("openvino_genai", replace(LOOKUP, draft="draft"), "remove model"),
        ("openvino_genai", replace(DRAFT, proposer="eagle3"), "it has: draft_model, prompt_lookup"),
        ("openvino_genai", replace(LOOKUP, options={"assistant_confidence_threshold": 0.4}), "max_ngram_size"),
        ("openvino_genai", replace(DRAFT, engine={"device": "GPU"}), "engine.device"),
        ("openvino_genai", replace(DRAFT, rows=2, engine={"counters": True}), "batch_size: 1"),
    ],
)
def test_what_the_engine_lacks_is_refused(engine, plan, words):
    with pytest.raises(InvalidRequest, match=words):
        ENGINES[engine].settings_of(plan)


@pytest.mark.parametrize(
    ("engine", "folders"),
    [("llama_cpp", "gguf"), ("mlx_lm", None), ("onnxruntime_genai", "onnx"), ("openvino_genai", "openvino")],
)
def test_the_interpreter_and_the_folders_need_an_allowance(engine, folders):
    settings = {"python": "/x/python"} | ({folders: {"target": "t"}} if folders else {"prefill_step_size": 8})
    named = {(access.kind, access.key) for access in outside_access(engine, settings, {})}
    converted = {(OutsideKind.FILE, f"engine.{folders}.target")} if folders else set()
    assert named == {(OutsideKind.PROGRAM, "engine.python")} | converted
    assert set(schemas.load(f"engine-{engine}")["properties"]) >= settings.keys()
    assert REGISTRY[engine].options == f"engine-{engine}"


# llama.cpp


def test_the_width_has_the_engines_name_in_each_way():
    assert llama.settings_of(PLAIN).speculative == {}
    assert llama.settings_of(DRAFT).speculative == {"n_max": 4, "n_min": 0, "p_min": 0.0, "probabilistic": False}
    assert llama.settings_of(COPIED).speculative == {"size_m": 4, "size_n": 2, "min_hits": 1}
    assert llama.settings_of(POOLED).speculative == {"n_max": 4, "n_match": 2, "n_min": 0}
    assert [llama.way_of(llama.settings_of(plan)) for plan in (DRAFT, POOLED)] == ["draft-simple", "ngram-mod"]
    assert llama.way_of(llama.settings_of(PLAIN)) == "none"
    assert llama.WAYS.keys() == llama.WORDS.kinds.keys() == set(REGISTRY["llama_cpp"].proposers or ())


def test_every_parameter_reaches_llama_cpp_or_is_refused():
    refused = [
        {"presence_penalty": 0.5},
        {"frequency_penalty": 0.5},
        {"min_tokens": 3},
        {"stop_token_ids": (8,)},
        {"ignore_eos": True},
        {"bad_words": ((3, 4),)},
    ]
    reasons = {refusal(llama.REFUSED, SamplingParams(**given)) for given in refused}
    assert None not in reasons
    assert len(reasons) == len(llama.REFUSED) - 1, "two penalties share a reason; structured is a mapping of its own"
    taken = SamplingParams(
        0.5, 7, 0.9, 0.1, 1.2, logit_bias=((3, 1.5),), bad_words=((9,),), max_new_tokens=5, stop=("x",)
    )
    assert refusal(llama.REFUSED, taken) is None
    body = llama.sampling_body(Request("r", (1, 2), taken), 1024)
    shared = {"temperature": 0.5, "top_k": 7, "top_p": 0.9, "min_p": 0.1, "repeat_penalty": 1.2, "n_predict": 5}
    assert shared.items() <= body.items()
    assert (body["logit_bias"], body["stop"], body["repeat_last_n"]) == ([[3, 1.5], [9, False]], ["x"], 1024)
    assert body["samplers"] == ["penalties", "temperature", "min_p", "top_k", "top_p"]
    assert 0 <= body["seed"] < 2**31
    assert body["seed"] != llama.sampling_body(Request("r", (1, 2), taken, stream=1), 1024)["seed"]


def test_the_evidence_follows_the_way_of_speculating():
    def parts(plan, greedy=False):
        return declared("llama_cpp").arm(ArmSettings(plan, SamplingParams(0.0 if greedy else 1.0), TARGET))

    assert (parts(DRAWN).drawn, parts(DRAWN, greedy=True).drawn, parts(DRAFT).drawn) == (True, False, False)
    assert (parts(POOLED).shares, parts(COPIED).shares) == (True, False)
    assert (parts(COPIED).protocol, parts(DRAFT).protocol) == (Protocol.GUMBEL, Protocol.CHAIN)
    assert parts(DRAFT).gives(Part.COUNTS)
    assert not parts(EngineSpec(Protocol.GREEDY)).gives(Part.COUNTS)
    assert [llama.draws(llama.settings_of(plan)) for plan in (DRAWN, DRAFT)] == [True, False]
    assert not llama.shares(llama.settings_of(DRAFT))


# mlx_lm


def test_gamma_and_the_prompt_s_parts_reach_the_engine():
    assert mlx.arguments_of(mlx.settings_of(PLAIN)) == {}
    parts = replace(DRAFT, engine={"prefill_step_size": 16})
    assert mlx.arguments_of(mlx.settings_of(parts)) == {"num_draft_tokens": 4, "prefill_step_size": 16}


def test_every_parameter_reaches_mlx_lm_or_is_refused():
    asked = SamplingParams(
        1.0, min_p=0.1, repetition_penalty=1.2, presence_penalty=0.3, frequency_penalty=0.4, max_new_tokens=9
    )
    asked = replace(asked, top_k=7, stop_token_ids=(8,), logit_bias=((3, 1.0), (3, 0.5), (4, -1.0)))
    assert refusal(mlx.REFUSED, asked) is None
    message = mlx.message_of(Request("r", (1, 2), asked), 100, (5, 6))
    assert message["sampler"] == {"temp": 1.0, "top_p": 1.0, "min_p": 0.1, "top_k": 7}
    assert message["processors"] == {
        "logit_bias": [[3, 1.5], [4, -1.0]],
        "repetition_penalty": 1.2,
        "repetition_context_size": 11,
        "presence_penalty": 0.3,
        "presence_context_size": 11,
        "frequency_penalty": 0.4,
        "frequency_context_size": 11,
    }
    assert (message["max_tokens"], message["ends"]) == (9, [5, 6, 8])
    assert message["seed"] != mlx.message_of(Request("r", (1, 2), asked, stream=1), 100, (5, 6))["seed"]
    ignoring = mlx.message_of(Request("r", (1,), replace(asked, ignore_eos=True)), 100, (5, 6))
    assert ignoring["ends"] == [8]
    # the engine raises an error for the whole vocabulary
    assert mlx.message_of(Request("r", (1,), replace(asked, top_k=100)), 100, ())["sampler"]["top_k"] == 0
    assert mlx.message_of(Request("r", (1,), SamplingParams(top_p=0.5)), 100, ())["sampler"] == {"temp": 0.0}


def test_what_means_something_else_to_the_engine_is_refused():
    warm = SamplingParams(temperature=0.7)
    given = {"bad_words": ((3,),), "min_tokens": 3, "stop": ("x",), "top_p": 0.9, "min_p": 0.1}
    refused = {refusal(mlx.REFUSED, replace(warm, **{name: value})) for name, value in given.items()}
    refused.add(refusal(mlx.REFUSED, SamplingParams(temperature=1.0, top_p=0.9, top_k=5)))
    assert None not in refused
    assert len(refused) == len(mlx.REFUSED) - 1, "all but structured, which is a mapping of its own"
    fine = (SamplingParams(temperature=1.0, top_p=0.9), SamplingParams(top_p=0.9, top_k=5), replace(warm, top_k=5))
    assert [refusal(mlx.REFUSED, sampling) for sampling in fine] == [None] * len(fine)


def test_rows_and_decisions_are_promised_by_record_level():
    def evidence(level):
        return declared("mlx_lm").arm(ArmSettings(replace(DRAFT, level=level), SamplingParams(1.0), TARGET))

    assert [evidence(level).level for level in RecordLevel] == [0, 1, 3, 3]
    assert evidence(RecordLevel.FULL).gives(Part.ROWS)
    assert evidence(RecordLevel.TOKENS).gives(Part.DRAFTS)
    assert not evidence(RecordLevel.FULL).drawn, "drafts are compared, not weighed by their q"


def test_a_draft_of_another_vocabulary_is_refused():
    models = {"target": TARGET, "draft": ModelSource(str(CHAIN))}
    backend = open_backend("mlx_lm", models)
    with pytest.raises(ModelError, match="16 logits, but the target has 2048"):
        backend.arm(DRAFT)
    with pytest.raises(InvalidRequest, match="no model named 'other'"):
        backend.arm(replace(DRAFT, draft="other"))


# onnxruntime-genai


def test_options_keep_the_engines_names():
    assert onnx.settings_of(PLAIN).speculative == {}
    assert onnx.settings_of(DRAFT).speculative == {"max_draft_tokens": 4, "min_adaptive_k": 0, "cooldown": False}
    assert onnx.settings_of(NGRAM).speculative["ngram_size"] == 4
    assert not onnx.bounded(onnx.settings_of(replace(DRAFT, options={"min_adaptive_k": 2})))


def test_every_parameter_reaches_onnxruntime_or_is_refused():
    given = {
        "min_p": 0.1, "presence_penalty": 1.0, "frequency_penalty": 1.0, "logit_bias": ((3, 1.0),),
        "bad_words": ((3,),), "ignore_eos": True, "stop": ("x",),
    }  # fmt: skip
    refused = {refusal(onnx.REFUSED, SamplingParams(temperature=1.0, **{name: value})) for name, value in given.items()}
    refused.add(refusal(onnx.REFUSED, SamplingParams(min_tokens=1, stop_token_ids=(3,))))
    assert None not in refused
    assert len(refused) == len(onnx.REFUSED) - 1, "all but structured, which is a mapping of its own"
    taken = SamplingParams(0.5, 7, 0.9, repetition_penalty=1.2, min_tokens=3, max_new_tokens=9, seed=5)
    options = onnx.search_options(Request("r", (1, 2), taken), 100)
    assert (options["temperature"], options["top_k"], options["top_p"]) == (0.5, 7, 0.9)
    assert (options["repetition_penalty"], options["min_length"], options["max_length"]) == (1.2, 5, 11)
    assert options["random_seed"] != onnx.search_options(Request("r", (1, 2), taken, stream=1), 100)["random_seed"]


def test_the_configuration_of_a_model_fills_nothing_in():
    options = onnx.search_options(Request("r", (1,), SamplingParams()), 100)
    assert options["do_sample"] is False
    assert (options["top_k"], options["repetition_penalty"], options["min_length"]) == (0, 1.0, 0)
    assert onnx.search_options(Request("r", (1,), SamplingParams(1.0, top_k=500)), 100)["top_k"] == 100


def test_rows_are_promised_without_n_gram_drafts_only():
    def parts(plan):
        return declared("onnxruntime_genai").arm(ArmSettings(plan, SamplingParams(1.0), TARGET))

    drafted, copied = parts(replace(DRAFT, level=RecordLevel.FULL)), parts(replace(NGRAM, level=RecordLevel.FULL))
    assert (drafted.level, copied.level) == (2, 0)
    assert drafted.gives(Part.ROWS)
    assert not copied.gives(Part.LOGPROBS)
    assert not drafted.gives(Part.DRAFTS)
    assert not drafted.gives(Part.Q)


# OpenVINO GenAI


def test_a_threshold_takes_the_place_of_the_width():
    assert openvino.settings_of(PLAIN).speculative == {}
    assert openvino.settings_of(DRAFT).speculative == {"num_assistant_tokens": 4}
    assert openvino.settings_of(LOOKUP).speculative == {"num_assistant_tokens": 4, "max_ngram_size": 3}
    assert openvino.settings_of(CONFIDENT).speculative == {"assistant_confidence_threshold": 0.4}
    assert [openvino.bounded(openvino.settings_of(plan)) for plan in (DRAFT, LOOKUP)] == [True, True]


def test_every_parameter_reaches_openvino_or_is_refused():
    given = {"logit_bias": ((3, 1.0),), "bad_words": ((3,),), "stop": ("x",)}
    refused = {refusal(openvino.REFUSED, SamplingParams(**{name: value})) for name, value in given.items()}
    assert None not in refused
    assert len(refused) == len(openvino.REFUSED) - 1, "all but structured, which is a mapping of its own"
    taken = SamplingParams(
        0.5, 7, 0.9, 0.1, 1.2, 0.3, 0.4, min_tokens=3, max_new_tokens=9, stop_token_ids=(8,), ignore_eos=True
    )
    options = openvino.generation_options(Request("r", (1, 2), taken), (5, 6))
    shared = {"temperature": 0.5, "top_k": 7, "top_p": 0.9, "min_p": 0.1, "repetition_penalty": 1.2}
    shared |= {"presence_penalty": 0.3, "frequency_penalty": 0.4, "min_new_tokens": 3, "max_new_tokens": 9}
    assert shared.items() <= options.items()
    assert (options["ignore_eos"], options["stop_token_ids"], options["do_sample"]) == (True, [8], True)
    assert options["rng_seed"] != openvino.generation_options(Request("r", (1, 2), taken, stream=1), (5,))["rng_seed"]
    assert openvino.generation_options(Request("r", (1,), SamplingParams()), (5, 6))["stop_token_ids"] == [5, 6]


def test_log_probabilities_are_promised_without_counters_and_penalties_only():
    def parts(plan, **sampling):
        return declared("openvino_genai").arm(ArmSettings(plan, SamplingParams(**sampling), TARGET))

    stepped, counted = parts(DRAFT), parts(replace(DRAFT, engine={"counters": True}))
    assert (stepped.level, counted.level) == (1, 0)
    assert stepped.gives(Part.LOGPROBS)
    assert not stepped.gives(Part.COUNTS)
    assert counted.gives(Part.COUNTS)
    assert not counted.gives(Part.LOGPROBS)
    raw = [{"temperature": 0.7}, {"top_k": 5}, {"top_p": 0.9}, {"min_p": 0.1}]
    assert all(parts(DRAFT, **{"temperature": 1.0, **sampling}).gives(Part.LOGPROBS) for sampling in raw)
    assert not any(
        parts(DRAFT, **{name: 1.3}).gives(Part.LOGPROBS) for name in ("repetition_penalty", "presence_penalty")
    )


def test_models_that_the_graph_does_not_cover_are_refused_in_words():
    config = open_source("bundled:target").folder.config
    assert unknown(config) is None
    assert "not GPT2LMHeadModel" in unknown({**config, "architectures": ["GPT2LMHeadModel"]})
    assert "not yarn" in unknown({**config, "rope_parameters": {"rope_type": "yarn"}})
    assert "not gelu" in unknown({**config, "hidden_act": "gelu"})
    assert "sliding" in unknown({**config, "use_sliding_window": True})

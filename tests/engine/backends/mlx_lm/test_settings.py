"""Settings and parameters of mlx_lm: each reaches the engine in its words, or is refused in words."""

from dataclasses import replace
from pathlib import Path

import pytest

import schemas
from engine.backends import REGISTRY, declared, open_backend, outside_access
from engine.backends.access import OutsideKind
from engine.backends.engine_spec import EngineSpec, ModelSource
from engine.backends.evidence import ArmSettings, Part
from engine.backends.mlx_lm.settings import REFUSED, arguments_of, message_of, settings_of
from engine.backends.process.settings import refusal
from engine.core.errors import InvalidRequest, ModelError
from engine.core.types import Protocol, RecordLevel, Request, SamplingParams

CHAIN = Path(__file__).parents[4] / "suites" / "models" / "chain"
DRAFT = EngineSpec(Protocol.CHAIN, "draft_model", 4, "draft", rows=1)


def test_gamma_and_the_prompt_s_parts_reach_the_engine():
    assert arguments_of(settings_of(EngineSpec(Protocol.CHAIN))) == {}
    parts = replace(DRAFT, engine={"prefill_step_size": 16})
    assert arguments_of(settings_of(parts)) == {"num_draft_tokens": 4, "prefill_step_size": 16}


@pytest.mark.parametrize(
    ("plan", "words"),
    [
        (replace(DRAFT, gamma=65), "gamma must be 1 to 64"),
        (replace(DRAFT, draft=None), "add model: NAME"),
        (replace(DRAFT, proposer="ngram"), "it has: draft_model"),
        (replace(DRAFT, options={"width": 2}), "width"),
        (replace(DRAFT, engine={"threads": 2}), "engine.threads"),
        (replace(DRAFT, fault="accepts_everything"), "native backend"),
    ],
)
def test_what_the_engine_lacks_is_refused(plan, words):
    with pytest.raises(InvalidRequest, match=words):
        settings_of(plan)


def test_every_parameter_reaches_the_engine_or_is_refused():
    asked = SamplingParams(
        1.0, min_p=0.1, repetition_penalty=1.2, presence_penalty=0.3, frequency_penalty=0.4, max_new_tokens=9
    )
    asked = replace(asked, top_k=7, stop_token_ids=(8,), logit_bias=((3, 1.0), (3, 0.5), (4, -1.0)))
    assert refusal(REFUSED, asked) is None
    message = message_of(Request("r", (1, 2), asked), 100, (5, 6))
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
    assert message["seed"] != message_of(Request("r", (1, 2), asked, stream=1), 100, (5, 6))["seed"]
    ignoring = message_of(Request("r", (1,), replace(asked, ignore_eos=True)), 100, (5, 6))
    assert ignoring["ends"] == [8]
    # the engine raises an error for the whole vocabulary
    assert message_of(Request("r", (1,), replace(asked, top_k=100)), 100, ())["sampler"]["top_k"] == 0
    assert message_of(Request("r", (1,), SamplingParams(top_p=0.5)), 100, ())["sampler"] == {"temp": 0.0}


def test_what_means_something_else_to_the_engine_is_refused():
    warm = SamplingParams(temperature=0.7)
    given = {"bad_words": ((3,),), "min_tokens": 3, "stop": ("x",), "top_p": 0.9, "min_p": 0.1}
    refused = {refusal(REFUSED, replace(warm, **{name: value})) for name, value in given.items()}
    refused.add(refusal(REFUSED, SamplingParams(temperature=1.0, top_p=0.9, top_k=5)))
    assert None not in refused
    assert len(refused) == len(REFUSED) - 1, "all but structured, which is a mapping of its own"
    fine = (SamplingParams(temperature=1.0, top_p=0.9), SamplingParams(top_p=0.9, top_k=5), replace(warm, top_k=5))
    assert [refusal(REFUSED, sampling) for sampling in fine] == [None] * len(fine)


def test_rows_and_decisions_are_promised_by_record_level():
    def evidence(level):
        return declared("mlx_lm").arm(ArmSettings(replace(DRAFT, level=level), False, ModelSource("bundled:target")))

    assert [evidence(level).level for level in RecordLevel] == [0, 1, 3, 3]
    assert evidence(RecordLevel.FULL).gives(Part.ROWS)
    assert evidence(RecordLevel.TOKENS).gives(Part.DRAFTS)
    assert not evidence(RecordLevel.FULL).drawn, "drafts are compared, not weighed by their q"


def test_a_draft_of_another_vocabulary_is_refused():
    models = {"target": ModelSource("bundled:target"), "draft": ModelSource(str(CHAIN))}
    backend = open_backend("mlx_lm", models)
    with pytest.raises(ModelError, match="16 logits, but the target has 2048"):
        backend.arm(DRAFT)
    with pytest.raises(InvalidRequest, match="no model named 'other'"):
        backend.arm(replace(DRAFT, draft="other"))


def test_the_interpreter_needs_an_allowance():
    (access,) = outside_access("mlx_lm", {"python": "/x/python", "prefill_step_size": 8}, {})
    assert (access.kind, access.key) == (OutsideKind.PROGRAM, "engine.python")
    assert set(schemas.load("engine-mlx_lm")["properties"]) >= {"python", "prefill_step_size"}
    assert REGISTRY["mlx_lm"].options == "engine-mlx_lm"

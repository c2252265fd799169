"""OpenVINO GenAI's program, an arm's settings and evidence, and sampling parameters in the engine's words.

Options of a proposer keep the engine's names (`GenerationConfig`). Every sampling parameter is set explicitly;
parameters that the engine lacks, or would not apply, are refused.

The engine reports the tokens that every step committed and their log-probabilities. It names no draft and shows no row,
q or random number. With setting `counters` it counts drafted and accepted tokens and reports no log-probabilities.
"""

from dataclasses import replace
from typing import Any, Final

from engine.backends.engine_spec import EngineSpec
from engine.backends.evidence import ArmEvidence, ArmSettings, Declaration, Part
from engine.backends.process import settings as common
from engine.backends.process.engine_process import EngineProgram
from engine.core.errors import InvalidRequest
from engine.core.options import ScalarOption
from engine.core.types import RecordLevel, Request
from engine.record.effective import LoopOwner

PROGRAM: Final = EngineProgram(
    module="engine.backends.openvino_genai.driver",
    name="openvino-genai",
    package="openvino_genai",
    target="venv-openvino",
)
THRESHOLD: Final = "assistant_confidence_threshold"
WIDTH: Final = "num_assistant_tokens"
WORDS: Final = common.EngineWords(
    name="openvino-genai",
    backend="openvino_genai",
    folders="openvino",
    kinds={
        "draft_model": {THRESHOLD: ScalarOption(0.0, 0, 1)},
        "prompt_lookup": {"max_ngram_size": ScalarOption(3, 1, 16)},
    },
    width=WIDTH,
    most=64,
)


def settings_of(plan: EngineSpec) -> common.ProcessSettings:
    """The arm's settings. Raises InvalidRequest: a setting that the engine lacks; the message states the fix."""
    settings = common.process_settings(plan, WORDS)
    if counted(settings) and plan.rows > 1:
        raise InvalidRequest("engine.counters: the engine counts one request at a time only; set batch_size: 1")
    # the engine takes a width or a threshold
    taken = {key: value for key, value in settings.speculative.items() if key != THRESHOLD}
    if not bounded(settings):
        taken = {THRESHOLD: settings.speculative[THRESHOLD]}
    return replace(settings, speculative=taken)


def bounded(settings: common.ProcessSettings) -> bool:
    """True if no step drafts more than gamma; with a threshold, the draft's confidence alone ends a draft."""
    return not settings.speculative.get(THRESHOLD)


def counted(settings: common.ProcessSettings) -> bool:
    """True if the engine's own counters are read, which gives no log-probabilities."""
    return bool(settings.given.get("counters", False))


def level_of(*, counters: bool) -> int:
    """The level of an arm's evidence: counters come without log-probabilities."""
    return 0 if counters else common.SCORED[RecordLevel.TOKENS].level


def arm_evidence(settings: ArmSettings) -> ArmEvidence:
    """One arm's evidence. Raises InvalidRequest: settings that OpenVINO GenAI lacks."""
    plan = settings.plan
    counters = counted(settings_of(plan))
    parts = common.SCORED[plan.level].parts
    if counters or not settings.sampling.plain_scores:
        parts -= {Part.LOGPROBS}
    return ArmEvidence(
        decoder=LoopOwner.FOREIGN,
        level=level_of(counters=counters),
        parts=parts | (frozenset((Part.COUNTS,)) if counters and plan.proposer is not None else frozenset()),
        protocol=common.matching_rule(plan.protocol),
        drawn=plan.proposer == "draft_model" and not settings.greedy,
    )


DECLARED: Final = Declaration(LoopOwner.FOREIGN, common.SCORED, arm_evidence)

REFUSED: Final[common.Refusals] = {
    "structured needs backend native or scripted; this backend drives no grammars of openvino-genai": lambda s: (
        s.structured is not None
    ),
    "openvino-genai has no logit_bias; remove it": lambda s: bool(s.logit_bias),
    "openvino-genai has no bad_words; remove them": lambda s: bool(s.bad_words),
    "this backend gives token ids, so stop strings of openvino-genai are not used; use stop_token_ids": lambda s: bool(
        s.stop
    ),
}
"""Unsupported parameters, each with the fix."""


def generation_options(request: Request, eos_ids: tuple[int, ...]) -> dict[str, Any]:
    """The keywords of `GenerationConfig`; end tokens beyond the first are stop tokens there."""
    asked = request.sampling
    ends = () if asked.ignore_eos else eos_ids
    shared = {
        "max_new_tokens": asked.max_new_tokens,
        "min_new_tokens": asked.min_tokens,
        "ignore_eos": asked.ignore_eos,
        "eos_token_id": eos_ids[0] if eos_ids else -1,
        "stop_token_ids": sorted({*ends, *asked.stop_token_ids}),
        "repetition_penalty": asked.repetition_penalty,
        "presence_penalty": asked.presence_penalty,
        "frequency_penalty": asked.frequency_penalty,
        "logprobs": 1,
        "do_sample": not asked.greedy,
    }
    if asked.greedy:
        return shared
    sampled = {
        "temperature": asked.temperature,
        "top_p": asked.top_p,
        "min_p": asked.min_p,
        "rng_seed": common.seed_of(request),
    }
    return {**shared, **sampled, **({"top_k": asked.top_k} if asked.top_k else {})}

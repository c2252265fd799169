"""onnxruntime-genai's program, an arm's settings and evidence, and sampling parameters in the engine's words.

A proposer's options keep the engine's names (`set_speculative_options`). Every sampling parameter is set explicitly,
because a model's own configuration would fill the others in (50 for `top_k`). Parameters that the engine lacks are
refused: its setter would raise an error for unknown names, but not for ignored ones.

The engine reports every token, how many drafted tokens each round proposed, evaluated and accepted, and, without
speculation or with a draft model, the target's row before every token. It reports neither the refused drafts nor q,
random numbers, or its own probabilities. With n-gram drafts it refuses to show rows after a step without a draft.
"""

from collections.abc import Mapping
from functools import partial
from typing import Any, Final

from engine.backends.evidence import ArmEvidence, ArmSettings, Declaration, Part, Shown, levels
from engine.backends.process import settings as common
from engine.backends.process.engine_process import EngineProgram
from engine.core.options import OptionType, ScalarOption
from engine.core.types import RecordLevel, Request
from engine.record.effective import LoopOwner

PROGRAM: Final = EngineProgram(
    module="engine.backends.onnxruntime_genai.driver",
    name="onnxruntime-genai",
    package="onnxruntime_genai",
    target="venv-ort",
)
MOST_DRAFTS: Final = 16
"""The engine's own limit."""
ADAPTIVE: Final = "min_adaptive_k"
_SHARED: Final[Mapping[str, OptionType]] = {ADAPTIVE: ScalarOption(0, 0, MOST_DRAFTS), "cooldown": ScalarOption(False)}
WORDS: Final = common.EngineWords(
    name="onnxruntime-genai",
    backend="onnxruntime_genai",
    folders="onnx",
    kinds={
        "draft_model": _SHARED,
        "ngram": {"ngram_size": ScalarOption(3, 2, 16), "ngram_chained_lookup": ScalarOption(False), **_SHARED},
    },
    width="max_draft_tokens",
    most=MOST_DRAFTS,
)
settings_of = partial(common.process_settings, words=WORDS)
"""The arm's settings; raises InvalidRequest where the engine lacks one."""


def bounded(settings: common.ProcessSettings) -> bool:
    """True if no round drafts more than gamma; an adaptive width grows to the engine's limit."""
    return not settings.speculative.get(ADAPTIVE)


LEVELS: Final[Mapping[RecordLevel, Shown]] = levels(
    {
        RecordLevel.TOKENS: (0, common.DECODED),
        RecordLevel.SCALARS: (1, frozenset((Part.LOGPROBS,))),
        RecordLevel.TOPK: (2, frozenset((Part.P,))),
        RecordLevel.FULL: (2, frozenset((Part.ROWS,))),
    }
)
ROWLESS: Final = ("ngram",)
"""Proposers beside which the engine shows no rows."""


def record_level(proposer: str | None, asked: RecordLevel) -> RecordLevel:
    """The level of an arm's records."""
    return RecordLevel.TOKENS if proposer in ROWLESS else asked


def arm_evidence(settings: ArmSettings) -> ArmEvidence:
    """One arm's evidence. Raises InvalidRequest: settings that onnxruntime-genai lacks."""
    plan = settings.plan
    settings_of(plan)
    shown = LEVELS[record_level(plan.proposer, plan.level)]
    counts = frozenset((Part.COUNTS,)) if plan.proposer is not None else frozenset()
    return ArmEvidence(
        decoder=LoopOwner.FOREIGN,
        level=shown.level,
        parts=shown.parts | counts,
        protocol=common.matching_rule(plan.protocol),
        drawn=plan.proposer == "draft_model" and not settings.greedy,
    )


DECLARED: Final = Declaration(LoopOwner.FOREIGN, LEVELS, arm_evidence)

REFUSED: Final[common.Refusals] = {
    "structured needs backend native or scripted; this backend drives no grammars of onnxruntime-genai": lambda s: (
        s.structured is not None
    ),
    "onnxruntime-genai has no min_p; set it to 0": lambda s: s.min_p > 0,
    "onnxruntime-genai has no presence_penalty; set it to 0": lambda s: bool(s.presence_penalty),
    "onnxruntime-genai has no frequency_penalty; set it to 0": lambda s: bool(s.frequency_penalty),
    "onnxruntime-genai has no logit_bias; remove it": lambda s: bool(s.logit_bias),
    "onnxruntime-genai has no bad_words; remove them": lambda s: bool(s.bad_words),
    "onnxruntime-genai ends at the model's end tokens; set ignore_eos to false": lambda s: s.ignore_eos,
    "onnxruntime-genai has no stop strings; use stop_token_ids": lambda s: bool(s.stop),
    "min_length of onnxruntime-genai delays the model's end tokens only; use min_tokens or stop_token_ids": lambda s: (
        bool(s.min_tokens and s.stop_token_ids)
    ),
}
"""Unsupported parameters, each with the fix."""


def search_options(request: Request, vocabulary: int) -> dict[str, Any]:
    """The keywords of `set_search_options`; lengths include the prompt there."""
    asked, prompt = request.sampling, len(request.prompt)
    shared = {
        "max_length": prompt + asked.max_new_tokens,
        "min_length": prompt + asked.min_tokens if asked.min_tokens else 0,
        "repetition_penalty": asked.repetition_penalty,
        "batch_size": 1,
        "num_beams": 1,
    }
    if asked.greedy:
        return {**shared, "do_sample": False, "temperature": 1.0, "top_k": 0, "top_p": 1.0}
    return {
        **shared,
        "do_sample": True,
        "temperature": asked.temperature,
        "top_k": min(asked.top_k, vocabulary),
        "top_p": asked.top_p,
        "random_seed": common.seed_of(request),
    }

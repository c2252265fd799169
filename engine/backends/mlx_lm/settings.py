"""mlx_lm's program, an arm's settings and evidence, and sampling parameters in the words of the library.

gamma is the engine's `num_draft_tokens`; sampling is that of `make_sampler` and `make_logits_processors`. Parameters
that the engine lacks, or applies in another order than this project, are refused.

The engine reports every token with the target's row and states whether it was drafted. Its sampler, which the driver
wraps, sees every drafted token. Drafts are accepted where the target's own draw is the drafted token, so q is one-hot.
No record holds random numbers.
"""

from collections.abc import Mapping
from functools import partial
from typing import Any, Final

from engine.backends.evidence import ArmEvidence, ArmSettings, Declaration, Part, Shown, levels
from engine.backends.process import settings as common
from engine.backends.process.engine_process import EngineProgram
from engine.core.types import RecordLevel, Request, SamplingParams
from engine.record.effective import LoopOwner

PROGRAM: Final = EngineProgram(
    module="engine.backends.mlx_lm.driver", name="mlx_lm", package="mlx_lm", target="venv-mlx"
)
PREFILL: Final = "prefill_step_size"
WORDS: Final = common.EngineWords(
    name="mlx_lm", backend="mlx_lm", folders="", kinds={"draft_model": {}}, width="num_draft_tokens", most=64
)
settings_of = partial(common.process_settings, words=WORDS)
"""The arm's settings; raises InvalidRequest where the engine lacks one."""


def arguments_of(settings: common.ProcessSettings) -> dict[str, Any]:
    """The arguments of generation that are the same for all requests of an arm, by the engine's names."""
    given = settings.given
    return {**settings.speculative, **({PREFILL: given[PREFILL]} if PREFILL in given else {})}


LEVELS: Final[Mapping[RecordLevel, Shown]] = levels(
    {
        RecordLevel.TOKENS: (0, common.DECODED | {Part.DRAFTS, Part.COUNTS}),
        RecordLevel.SCALARS: (1, frozenset((Part.LOGPROBS,))),
        RecordLevel.TOPK: (3, frozenset((Part.P, Part.Q))),
        RecordLevel.FULL: (3, frozenset((Part.ROWS,))),
    }
)


def arm_evidence(settings: ArmSettings) -> ArmEvidence:
    """One arm's evidence. Raises InvalidRequest: settings that mlx_lm lacks."""
    plan = settings.plan
    settings_of(plan)
    shown = LEVELS[plan.level]
    return ArmEvidence(LoopOwner.FOREIGN, shown.level, shown.parts, common.matching_rule(plan.protocol))


DECLARED: Final = Declaration(LoopOwner.FOREIGN, LEVELS, arm_evidence)


def _warm(sampling: SamplingParams) -> bool:
    return sampling.temperature not in (0, 1)


REFUSED: Final[common.Refusals] = {
    "structured needs backend native or scripted; mlx_lm has no grammars": lambda s: s.structured is not None,
    "mlx_lm has no bad_words; remove them, or give logit_bias": lambda s: bool(s.bad_words),
    "mlx_lm has no min_tokens; set it to 0": lambda s: s.min_tokens > 0,
    "the library of mlx_lm has no stop strings; use stop_token_ids": lambda s: bool(s.stop),
    "mlx_lm applies top_p before temperature, not after it; use top_p at temperature 1": lambda s: (
        s.top_p < 1 and _warm(s)
    ),
    "mlx_lm applies min_p before temperature, not after it; use min_p at temperature 1": lambda s: (
        s.min_p > 0 and _warm(s)
    ),
    "mlx_lm applies top_p before top_k and min_p, not after them; use top_p alone": lambda s: (
        not s.greedy and s.top_p < 1 and bool(s.top_k or s.min_p)
    ),
}
"""Unsupported parameters, each with the fix."""


def sampler_arguments(sampling: SamplingParams, vocabulary: int) -> dict[str, Any]:
    """The keywords of `make_sampler`; a top_k of the whole vocabulary is none."""
    if sampling.greedy:
        return {"temp": 0.0}
    return {
        "temp": sampling.temperature,
        "top_p": sampling.top_p,
        "min_p": sampling.min_p,
        "top_k": sampling.top_k if sampling.top_k < vocabulary else 0,
    }


def processor_arguments(request: Request) -> dict[str, Any]:
    """The keywords of `make_logits_processors`; its own windows of 20 tokens would forget, so they hold every token.

    Pairs, not a mapping, for the bias: keys of JSON are texts.
    """
    asked = request.sampling
    window = len(request.prompt) + asked.max_new_tokens
    added: dict[int, float] = {}
    for token, bias in asked.logit_bias:
        added[token] = added.get(token, 0.0) + bias
    mapping: dict[str, Any] = {"logit_bias": [[token, bias] for token, bias in added.items()]} if added else {}
    values = {
        "repetition": asked.repetition_penalty if asked.repetition_penalty != 1 else 0,
        "presence": asked.presence_penalty,
        "frequency": asked.frequency_penalty,
    }
    for name, value in values.items():
        if value:
            mapping |= {f"{name}_penalty": value, f"{name}_context_size": window}
    return mapping


def message_of(request: Request, vocabulary: int, eos_ids: tuple[int, ...]) -> dict[str, Any]:
    """The parameters of one request as the driver reads them."""
    asked = request.sampling
    ends = () if asked.ignore_eos else eos_ids
    return {
        "max_tokens": asked.max_new_tokens,
        "seed": common.seed_of(request),
        "ends": sorted({*ends, *asked.stop_token_ids}),
        "sampler": sampler_arguments(asked, vocabulary),
        "processors": processor_arguments(request),
    }

"""llama.cpp's program, an arm's settings and evidence, and sampling parameters in the server's words.

Options of a proposer keep the engine's names (`common_params_speculative`). Every sampling parameter is set explicitly,
and so is the order of the transforms: bias, penalties, temperature, min-p, top-k, top-p. Parameters that the engine
lacks, or gives another meaning, are refused.

The server reports the tokens, their log-probabilities, and the numbers of drafted and accepted tokens of each answer.
It names no draft and shows no row, q or random number.
"""

from collections.abc import Mapping
from dataclasses import replace
from typing import Any, Final

from engine.backends.engine_spec import EngineSpec
from engine.backends.evidence import ArmEvidence, ArmSettings, Declaration, Part
from engine.backends.openai.settings import LLAMA_ORDER
from engine.backends.process.engine_process import EngineProgram
from engine.backends.process.settings import SCORED, EngineWords, ProcessSettings, Refusals, process_settings, seed_of
from engine.core.errors import InvalidRequest
from engine.core.options import OptionType, ScalarOption
from engine.core.types import Protocol, Request
from engine.record.effective import LoopOwner

PROGRAM: Final = EngineProgram(
    module="engine.backends.llama_cpp.driver", name="llama.cpp", package="xllamacpp", target="venv-llama"
)
WIDTH: Final = "n_max"
_COPIED: Final[Mapping[str, OptionType]] = {"size_n": ScalarOption(12, 1, 64), "min_hits": ScalarOption(1, 1, 64)}
WORDS: Final = EngineWords(
    name="llama.cpp",
    backend="llama_cpp",
    folders="gguf",
    kinds={
        "draft_model": {
            "p_min": ScalarOption(0.0, 0, 1),
            "n_min": ScalarOption(0, 0, 64),
            "probabilistic": ScalarOption(False),
        },
        "ngram_simple": _COPIED,
        "ngram_map_k": _COPIED,
        "ngram_map_k4v": _COPIED,
        "ngram_mod": {"n_match": ScalarOption(24, 1, 64), "n_min": ScalarOption(0, 0, 64)},
    },
    width=WIDTH,
    most=64,
)
WAYS: Final[Mapping[str, str]] = {
    kind: "draft-simple" if kind == "draft_model" else kind.replace("_", "-") for kind in WORDS.kinds
}
"""The engine's names of the proposers."""
ROUNDED: Final = "the file's own; llama.cpp multiplies blocks of rounded weights with rounded activations"
UNLIKE_PLAIN: Final = (
    "with rounded weights a step with drafts need not give plain's tokens, because llama.cpp rounds activations too; "
    "use verifier: chain, or convert the file to float32 (audit convert --to gguf) and name the folder in engine.gguf"
)
SYNTHETIC: Final = "synth"
"""Begins the engine's options that replace verification by an acceptance that the user chooses."""


def settings_of(plan: EngineSpec) -> ProcessSettings:
    """The arm's settings. Raises InvalidRequest: a setting that the engine lacks; the message states the fix."""
    for name in plan.options:
        if name.startswith(SYNTHETIC):
            raise InvalidRequest(
                f"proposer {plan.proposer}: {name} replaces verification by an acceptance that you choose, so the "
                "tokens are not the target's; remove it"
            )
    settings = process_settings(plan, WORDS)
    if draws(settings) and plan.protocol is Protocol.GUMBEL:
        raise InvalidRequest("proposer draft_model: drawn drafts do not keep plain's tokens; use verifier: chain")
    if settings.speculative.get("n_min", 0) > settings.gamma:
        raise InvalidRequest(f"proposer {plan.proposer}: n_min must be at most gamma, {settings.gamma}")
    if copies(settings) and settings.kind != "ngram_mod":
        renamed = {"size_m" if name == WIDTH else name: value for name, value in settings.speculative.items()}
        return replace(settings, speculative=renamed)
    return settings


def draws(settings: ProcessSettings) -> bool:
    """True if drafts are drawn from q, which rejection sampling verifies; others must equal the target's draws."""
    return bool(settings.speculative.get("probabilistic"))


def copies(settings: ProcessSettings) -> bool:
    """True if drafts are copied from earlier text."""
    return settings.kind is not None and settings.kind != "draft_model"


def shares(settings: ProcessSettings) -> bool:
    """True if drafts depend on other requests: ngram-mod has one pool for all of them."""
    return settings.kind == "ngram_mod"


def way_of(settings: ProcessSettings) -> str:
    """The engine's name of the way of speculating."""
    return "none" if settings.kind is None else WAYS[settings.kind]


def caches(settings: ProcessSettings) -> bool:
    """True if a slot keeps the cache of its last request for one that begins with the same tokens."""
    return bool(settings.given.get("cache_prompt", False))


def rule_of(asked: Protocol) -> Protocol:
    """The rule that verifies: a copied or greedy draft is matched with a draw from p."""
    return asked if asked in (Protocol.GREEDY, Protocol.GUMBEL) else Protocol.CHAIN


def arm_evidence(settings: ArmSettings) -> ArmEvidence:
    """One arm's evidence. Raises InvalidRequest: settings that llama.cpp lacks."""
    plan = settings.plan
    taken = settings_of(plan)
    counts = frozenset((Part.COUNTS,)) if plan.proposer is not None else frozenset[Part]()
    return ArmEvidence(
        decoder=LoopOwner.FOREIGN,
        level=SCORED[plan.level].level,
        parts=SCORED[plan.level].parts | counts,
        protocol=rule_of(plan.protocol),
        drawn=draws(taken) and not settings.greedy,
        shares=shares(taken),
    )


DECLARED: Final = Declaration(LoopOwner.FOREIGN, SCORED, arm_evidence)

REFUSED: Final[Refusals] = {
    "structured needs backend native or scripted; this backend drives no grammars of llama.cpp": lambda s: (
        s.structured is not None
    ),
    "llama.cpp counts the prompt's tokens in presence_penalty and frequency_penalty, a suite does not; use "
    "repetition_penalty": lambda s: bool(s.presence_penalty or s.frequency_penalty),
    "llama.cpp has no min_tokens; remove it": lambda s: bool(s.min_tokens),
    "llama.cpp has no stop_token_ids; use stop": lambda s: bool(s.stop_token_ids),
    "llama.cpp forbids its end tokens with ignore_eos and does not go on after one; use bad_words": lambda s: (
        s.ignore_eos
    ),
    "llama.cpp forbids single tokens, but not a sequence of bad_words; use single tokens": lambda s: any(
        len(word) > 1 for word in s.bad_words
    ),
}
"""Unsupported parameters, each with the fix."""


def sampling_body(request: Request, context: int) -> dict[str, Any]:
    """The sampling fields of `/completion`; `context` tokens are all that a penalty can see."""
    asked = request.sampling
    forbidden = [[word[0], False] for word in asked.bad_words]
    return {
        "n_predict": asked.max_new_tokens,
        "temperature": asked.temperature,
        "top_k": asked.top_k,
        "top_p": asked.top_p,
        "min_p": asked.min_p,
        "repeat_penalty": asked.repetition_penalty,
        "repeat_last_n": context,
        "presence_penalty": 0.0,
        "frequency_penalty": 0.0,
        "logit_bias": [*([token, bias] for token, bias in asked.logit_bias), *forbidden],
        "stop": list(asked.stop),
        "ignore_eos": False,
        "samplers": list(LLAMA_ORDER),
        "seed": seed_of(request),
    }

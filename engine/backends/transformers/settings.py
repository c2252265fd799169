"""An arm's settings for assisted generation, validated before anything runs, and its evidence.

An arm's proposer becomes keys of transformers' generation configuration. The module lists the keys that each kind of
proposer takes. Random numbers come from torch's generator and cannot be regenerated from a key: no record level holds
them.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Final

from engine.backends.engine_spec import EngineSpec
from engine.backends.evidence import ArmEvidence, ArmSettings, Declaration, Part, Shown, levels
from engine.core.errors import InvalidRequest
from engine.core.options import ChoiceOption, OptionType, ScalarOption, read_options
from engine.core.types import Protocol, RecordLevel
from engine.record.effective import LoopOwner

ARGMAX: Final = "argmax_draft"
"""The engine setting that breaks the drafts on purpose (`engine.backends.transformers.backend`)."""
SCHEDULE: Final = "num_assistant_tokens_schedule"
WEIGHT: Final = "assistant_ensemble_weight"
LAYERS: Final = "assistant_early_exit"

_LOSSY: Final[Mapping[str, OptionType]] = {WEIGHT: ScalarOption(1.0, 0.0, 1.0)}
_DRAFTING: Final[Mapping[str, OptionType]] = {
    # "heuristic" would carry the draft length over to the next request
    SCHEDULE: ChoiceOption("constant", ("constant", "heuristic_transient")),
    "assistant_confidence_threshold": ScalarOption(0.0, 0.0, 1.0),
    **_LOSSY,
}
LEVELS: Final[Mapping[RecordLevel, Shown]] = levels(
    {
        RecordLevel.TOKENS: (
            0,
            frozenset((Part.TEXT, Part.DECODED, Part.TOKENS, Part.DRAFTS, Part.COUNTS, Part.REFERENCE)),
        ),
        RecordLevel.SCALARS: (1, frozenset((Part.LOGPROBS,))),
        RecordLevel.TOPK: (3, frozenset((Part.P, Part.APPLIED, Part.Q))),
        RecordLevel.FULL: (3, frozenset((Part.ROWS,))),
    }
)
TEXT_LEVEL: Final = 1
"""The evidence level of text and log-probabilities: used if the drafts cannot be observed."""


@dataclass(frozen=True, slots=True)
class DraftMethod:
    """One way to draft.

    options: generation-config keys that a suite may set.
    model: whether it drafts with a model of the suite.
    soft: whether it hands q to the verification when it samples.
    """

    options: Mapping[str, OptionType]
    model: bool = False
    soft: bool = True


KINDS: Final[Mapping[str, DraftMethod]] = {
    "draft_model": DraftMethod(_DRAFTING, model=True),
    "prompt_lookup": DraftMethod({"max_matching_ngram_size": ScalarOption(2, 1)}, soft=False),
    "early_exit": DraftMethod({LAYERS: ScalarOption(1, 1), **_DRAFTING}),
    "universal": DraftMethod(
        {"target_lookbehind": ScalarOption(10, 1), "assistant_lookbehind": ScalarOption(10, 1), **_DRAFTING}, model=True
    ),
    "mtp": DraftMethod(_LOSSY),
    "dflash": DraftMethod(_LOSSY, model=True),
}


@dataclass(frozen=True, slots=True)
class TransformersSettings:
    """One arm. `kind` None is plain generation; `options` are all of the kind's, at their values."""

    kind: str | None = None
    gamma: int = 0
    options: Mapping[str, Any] = field(default_factory=dict)
    argmax_draft: bool = False

    @property
    def soft(self) -> bool:
        """True if the engine's sampled verification compares p with q."""
        return self.kind is not None and KINDS[self.kind].soft

    @property
    def weight(self) -> float:
        """Weight of p in the law that the engine verifies against; 1 is p itself."""
        return float(self.options.get(WEIGHT, 1.0))

    @property
    def bounded(self) -> bool:
        """True if no step drafts more than gamma; schedules change the length, and another tokenizer counts its own
        tokens.
        """
        return self.kind != "universal" and self.options.get(SCHEDULE, "constant") == "constant"

    def protocol(self, asked: Protocol) -> Protocol:
        """The rule that runs if the suite requests `asked`."""
        if self.weight < 1.0:
            return Protocol.ENSEMBLE
        return Protocol.GREEDY if asked is Protocol.GREEDY else Protocol.CHAIN


def settings_of(plan: EngineSpec) -> TransformersSettings:
    """The arm's settings.

    Raises:
        InvalidRequest: a setting that assisted generation lacks; the message states the fix.
    """
    if plan.proposer is None:
        return TransformersSettings()
    kind = KINDS.get(plan.proposer)
    if kind is None:
        raise InvalidRequest(f"backend transformers has no proposer {plan.proposer!r}; it has: {', '.join(KINDS)}")
    name = f"proposer {plan.proposer}"
    if plan.gamma < 1:
        raise InvalidRequest(f"{name}: gamma must be 1 or more, not {plan.gamma}")
    if kind.model and plan.draft is None:
        raise InvalidRequest(f"{name} drafts with a model; add model: NAME to the proposer")
    if not kind.model and plan.draft is not None:
        raise InvalidRequest(f"{name} drafts without a model; remove model from the proposer")
    if plan.others:
        raise InvalidRequest(f"{name} drafts with one model; remove others from the proposer")
    options = read_options(name, plan.options, kind.options)
    _require_engine(name, kind, plan)
    return TransformersSettings(plan.proposer, plan.gamma, options, bool(plan.engine.get(ARGMAX)))


def _require_engine(name: str, kind: DraftMethod, plan: EngineSpec) -> None:
    if plan.proposer == "early_exit" and LAYERS not in plan.options:
        raise InvalidRequest(f"{name}: option {LAYERS} is missing; give the layer to stop at")
    if not plan.engine.get(ARGMAX):
        return
    if plan.proposer not in ("draft_model", "early_exit"):
        raise InvalidRequest(f"{name}: {ARGMAX} changes how a draft model draws; remove it from engine")
    if not kind.soft or plan.protocol is Protocol.GREEDY:
        raise InvalidRequest(f"{name}: {ARGMAX} affects sampled drafts only; use verifier: chain")


def generation_keys(settings: TransformersSettings) -> dict[str, Any]:
    """The keys of the target's generation configuration that turn assistance on."""
    keys: dict[str, Any] = {}
    if settings.kind == "prompt_lookup":
        keys = {"prompt_lookup_num_tokens": settings.gamma}
        keys["max_matching_ngram_size"] = settings.options["max_matching_ngram_size"]
    if settings.kind == "early_exit":
        keys = {LAYERS: settings.options[LAYERS]}
    if settings.kind == "mtp":
        keys = {"use_mtp": True}
    if settings.kind == "dflash":
        keys = {"speculation_type": "dflash"}
    # set only where it has an effect: transformers reads any number as "relaxed"
    return keys | ({WEIGHT: settings.weight} if settings.weight < 1.0 else {})


def assistant_keys(settings: TransformersSettings) -> dict[str, Any]:
    """The keys that transformers reads from the assistant's own generation configuration."""
    names = (SCHEDULE, "assistant_confidence_threshold", "target_lookbehind", "assistant_lookbehind")
    chosen = {name: settings.options[name] for name in names if name in settings.options}
    return {"num_assistant_tokens": settings.gamma, **chosen}


def arm_evidence(settings: ArmSettings) -> ArmEvidence:
    """One arm's evidence; drafts are observed and compared with the output in every arm that drafts.

    Raises:
        InvalidRequest: settings that assisted generation lacks.
    """
    plan = settings.plan
    shown, own = LEVELS[plan.level], settings_of(plan)
    accounts = frozenset((Part.ACCOUNTS,)) if own.kind is not None else frozenset()
    protocol = own.protocol(plan.protocol)
    return ArmEvidence(
        decoder=LoopOwner.FOREIGN,
        level=shown.level,
        parts=shown.parts | accounts,
        protocol=protocol,
        lossless=protocol is not Protocol.ENSEMBLE,
        drawn=own.soft and not settings.greedy,
    )


DECLARED: Final = Declaration(LoopOwner.FOREIGN, LEVELS, arm_evidence)

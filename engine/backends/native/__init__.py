"""The facts and the evidence of the built-in engine, over loaded models (`native`) and over scripts (`scripted`).

Every random number is regenerated from its key; the record level determines the rest.
"""

from collections.abc import Mapping
from functools import partial
from typing import Final

from engine import verify
from engine.backends.catalogue import ALL_CHOICES, READ_CHOICES, BackendKind, SourceKind, opener
from engine.backends.engine_spec import EngineSpec, ModelSource
from engine.backends.evidence import ArmEvidence, ArmSettings, Declaration, Part, Shown, levels
from engine.core.registry import FAULTS
from engine.core.types import DraftRule, RecordLevel
from engine.proposers.options import TOKEN_COST, TREES
from engine.record.effective import LoopOwner

ALPHABET: Final = "abcdefghijklmnopqrstuvwxyz ,.?!_"
"""The tokens of scripted models, by id."""
OWN_PASSES: Final = frozenset((Part.REFERENCE, Part.REREAD, Part.REDRAFT))
LEVELS: Final[Mapping[RecordLevel, Shown]] = levels(
    {
        RecordLevel.TOKENS: (
            0,
            frozenset((Part.TEXT, Part.DECODED, Part.CALLS, Part.CALLED_TEXT, Part.MASKS, Part.TOKENS))
            | frozenset((Part.DRAFTS, Part.COUNTS))
            | OWN_PASSES,
        ),
        # without rows, decisions cannot be recomputed
        RecordLevel.SCALARS: (1, frozenset((Part.LOGPROBS, Part.NUMBERS))),
        RecordLevel.TOPK: (3, frozenset((Part.P, Part.Q))),
        RecordLevel.FULL: (4, frozenset((Part.ROWS,))),
    }
)
DRAWING: Final = frozenset(
    (
        *("cascade", "dflash", "draft_model", "eagle", "eagle3", "early_exit", "layer_skip"),
        *("mtp", "online", "sequoia", "specinfer"),
    )
)
"""Proposers whose drafts are drawn from a law at temperature above 0; those in `BY_OPTION` only with a certain option.
"""
BY_OPTION: Final = ("medusa", "mlp_speculator")
STEADY: Final = (DRAWING | frozenset(BY_OPTION)) - frozenset(("sequoia", "specinfer"))
"""Proposers whose chains are as long as gamma allows, unless `stop_below` ends them."""
PROMISES: Final[Mapping[str, str]] = {
    "auto": "everywhere",
    "exact": "everywhere",
    "fast": "none",
    "fixed": "chain",
    "int8": "everywhere",
    "ordered": "everywhere",
    "tiled": "tree",
}
"""Invariance of each numerics mode; `auto` has the invariance of the mode that it tries first."""
SCRIPTED: Final = "scripted:"


def draws(plan: EngineSpec) -> bool:
    """True if the plan's proposer draws its tokens under a rule that allows drawing."""
    if plan.proposer in BY_OPTION:
        return plan.options.get("draw") == "soft"
    dynamic = plan.proposer == "eagle3" and bool(plan.options.get("dynamic"))
    return plan.proposer in DRAWING and not dynamic


def shape(plan: EngineSpec) -> str:
    """The shape of the plan's drafts."""
    options = plan.options
    tree = {
        "eagle": options.get("widths", "1") != "1",
        "eagle3": bool(options.get("dynamic")),
        "medusa": options.get("tree", "0") != "0",
        "suffix": bool(options.get("tree")),
    }
    return "tree" if tree.get(plan.proposer or "", plan.proposer in TREES) else "chain"


def shares(plan: EngineSpec) -> bool:
    """True if the plan's proposer carries state from one request to another."""
    options = plan.options
    learns = plan.proposer == "online" and bool(options.get("learn"))
    return learns or (plan.proposer == "suffix" and bool(options.get("cached_requests")))


def steady(plan: EngineSpec) -> bool:
    """True if every draft of the plan's proposer is as long as gamma and the request's end allow."""
    shorter = plan.options.get("stop_below") or plan.options.get(TOKEN_COST)
    return plan.proposer in STEADY and shape(plan) == "chain" and not shorter


def promises(target: ModelSource) -> str:
    """The promised bitwise equality of the target's rows, given that the mode's probe passes on the running machine."""
    if target.source.startswith(SCRIPTED):
        return "tree"
    return "none" if target.loader != "lean" else PROMISES[target.numerics or "auto"]


def arm_evidence(settings: ArmSettings) -> ArmEvidence:
    """One arm's evidence. An injected fault may reduce it."""
    plan = settings.plan
    shown, rule = LEVELS[plan.level], verify.load(plan.protocol, plan.verifier_options).facts
    return ArmEvidence(
        decoder=LoopOwner.OWN,
        level=shown.level,
        parts=shown.parts,
        protocol=plan.protocol,
        lossless=rule.lossless,
        drawn=not settings.greedy and rule.draft_rule is not DraftRule.GREEDY and draws(plan),
        promises=promises(settings.target),
        shape=shape(plan),
        shares=shares(plan),
        steady=steady(plan),
    )


DECLARED: Final = Declaration(LoopOwner.OWN, LEVELS, arm_evidence)


_LOOP = partial(BackendKind, evidence=DECLARED, ours=True, faults=FAULTS, cancels=True)
NATIVE_KIND: Final = _LOOP(opener("engine.backends.native.backend:open_models"), tool_choices=ALL_CHOICES)
SCRIPTED_KIND: Final = _LOOP(
    opener("engine.backends.native.scripted:open_models"), sources=(SourceKind.SCRIPTED,), tool_choices=READ_CHOICES
)

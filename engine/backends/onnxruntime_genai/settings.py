"""An arm's settings for onnxruntime-genai, validated before anything runs.

Options of a proposer keep the engine's names (`set_speculative_options`).
"""

from __future__ import annotations

import sys
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Final

import schemas
from engine.backends.engine_spec import EngineSpec
from engine.backends.outside import OutsideAccess, OutsideKind
from engine.core.errors import InvalidRequest
from engine.core.options import OptionType, ScalarOption, read_options

MOST_DRAFTS: Final = 16
"""The engine's own limit."""
ADAPTIVE: Final = "min_adaptive_k"
_SHARED: Final[Mapping[str, OptionType]] = {
    ADAPTIVE: ScalarOption(0, 0, MOST_DRAFTS),
    "cooldown": ScalarOption(False),
}
KINDS: Final[Mapping[str, Mapping[str, OptionType]]] = {
    "draft_model": _SHARED,
    "ngram": {"ngram_size": ScalarOption(3, 2, 16), "ngram_chained_lookup": ScalarOption(False), **_SHARED},
}
"""Options of each proposer."""


@dataclass(frozen=True, slots=True)
class OrtSettings:
    """One arm.

    speculative: the options in the engine's words; empty without speculation.
    onnx: folders of converted models by the suite's names; other models are converted when the engine starts.
    threads: of one operator; None is the engine's choice.
    """

    python: str
    kind: str | None = None
    gamma: int = 0
    draft: str | None = None
    speculative: Mapping[str, Any] = field(default_factory=dict)
    onnx: Mapping[str, str] = field(default_factory=dict)
    threads: int | None = None
    silence_s: float = 600
    start_s: float = 900
    restarts: int = 4

    @property
    def bounded(self) -> bool:
        """True if no round drafts more than gamma; an adaptive width grows to the engine's limit."""
        return not self.speculative.get(ADAPTIVE)


def settings_of(plan: EngineSpec) -> OrtSettings:
    """The arm's settings.

    Raises:
        InvalidRequest: a setting that the engine lacks; the message states the fix.
    """
    given = dict(plan.engine)
    known = schemas.load("engine-onnxruntime_genai")["properties"]
    for name in given:
        if name not in known:
            raise InvalidRequest(
                f"engine.{name}: there is no such setting of onnxruntime-genai here; there are: {', '.join(known)}"
            )
    if plan.fault is not None:
        raise InvalidRequest(f"fault {plan.fault}: faults are of the native backend; remove it")
    return OrtSettings(
        python=given.get("python", sys.executable),
        kind=plan.proposer,
        gamma=plan.gamma if plan.proposer is not None else 0,
        draft=plan.draft,
        speculative=_speculative(plan),
        onnx=dict(given.get("onnx", {})),
        threads=given.get("threads"),
        silence_s=given.get("timeout_s", 600),
        start_s=given.get("start_timeout_s", 900),
        restarts=given.get("restarts", 4),
    )


def outside(engine: Mapping[str, Any], _options: Mapping[str, Any]) -> tuple[OutsideAccess, ...]:
    """The interpreter and the folders that an arm's engine settings name."""
    folders = engine.get("onnx", {}).items()
    found = [OutsideAccess(OutsideKind.FILE, str(folder), f"engine.onnx.{name}") for name, folder in folders]
    if "python" in engine:
        found.append(OutsideAccess(OutsideKind.PROGRAM, str(engine["python"]), "engine.python"))
    return tuple(found)


def _speculative(plan: EngineSpec) -> dict[str, Any]:
    if plan.proposer is None:
        return {}
    if plan.proposer not in KINDS:
        raise InvalidRequest(f"onnxruntime-genai has no proposer {plan.proposer!r}; it has: {', '.join(KINDS)}")
    name = f"proposer {plan.proposer}"
    if not 1 <= plan.gamma <= MOST_DRAFTS:
        raise InvalidRequest(f"{name}: gamma must be 1 to {MOST_DRAFTS}, not {plan.gamma}")
    if (plan.draft is None) == (plan.proposer == "draft_model"):
        fix = "drafts with a model; add model: NAME to the proposer"
        raise InvalidRequest(f"{name} {fix if plan.draft is None else 'drafts without a model; remove model'}")
    if plan.others:
        raise InvalidRequest(f"{name} drafts with one model; remove others from the proposer")
    options = read_options(name, plan.options, KINDS[plan.proposer])
    return {"max_draft_tokens": plan.gamma, **options}

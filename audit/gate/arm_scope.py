"""How an arm ran, by the words of a serving profile: from its record, its engine's report and the run's artifacts."""

from collections.abc import Mapping
from typing import Any, Final

from audit.evidence.coverage.scope import ArmScope
from audit.gate.serving_profile import MODEL_ROLES, DeployedScope
from audit.store import StoredArm, StoredRun
from audit.store.base.governance import used_drafts

OWN: Final = ("native", "scripted")
"""Backends whose version is that of this project's code."""
VERSIONS: Final = (("version",), ("installed", "version"), ("engine", "installed", "version"))
"""Where engines report their version."""
WEIGHTS: Final = (("engine", "quantization"), ("engine", "dtype"), ("converted", "precision"), ("target", "dtype"))
"""Where engines report the form of the target's weights; the first that states one counts."""


def shown_scope(run: StoredRun, arm: StoredArm, seen: ArmScope, longest: int | None) -> DeployedScope:
    """The parts of a deployment that an arm shows; `longest` is its longest prompt with the answer, in tokens."""
    effective = arm.effective
    own = run.environment.code.get("version") if effective.backend in OWN else None
    return DeployedScope(
        batch_size=seen.largest_batch,
        drafted=seen.longest_draft,
        shape=seen.shape,
        numerics=seen.numerics,
        device=seen.device,
        context=longest or None,
        engine=_stated(effective.facts, ("server",)) or effective.backend,
        version=own or _stated(effective.facts, *VERSIONS),
        weights=_stated(effective.facts, *WEIGHTS),
        proposer=effective.proposer,
        models=_models(run, arm),
    )


def _stated(facts: Mapping[str, Any], *places: tuple[str, ...]) -> str | None:
    """The first word at one of these places."""
    for place in places:
        value: Any = facts
        for key in place:
            value = value.get(key) if isinstance(value, Mapping) else None
        if isinstance(value, str):
            return value
    return None


def _models(run: StoredRun, arm: StoredArm) -> Mapping[str, tuple[str, ...]]:
    """Digests of the arm's models by role; without the drafts of an arm that does not name them."""
    drafts = used_drafts([arm.spec])
    used = [part for part in run.artifacts if part.kind != "draft" or part.role in (drafts or ())]
    listed = {role: tuple(sorted({part.sha256 for part in used if part.kind == role})) for role in MODEL_ROLES}
    return {role: digests for role, digests in listed.items() if digests}

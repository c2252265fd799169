"""The serving profile of a recorded run: what its candidate arms were asked, and how they ran."""

from collections.abc import Mapping
from dataclasses import asdict, fields
from typing import Any

from audit.errors import CannotDecide
from audit.evidence.coverage.count import ScopeCount
from audit.gate.arm_scope import shown_scope
from audit.gate.facts import workload_of
from audit.gate.serving_profile import MODEL_ROLES, DeployedScope, SampledSetting
from audit.store import Store


def shown_profile(store: Store, run: str) -> dict[str, Any]:
    """The document of a serving profile; where arms differ, the largest batch, draft and length, and all models.

    Raises:
        CannotDecide: no candidate arm of the run answered a request.
    """
    settings: dict[SampledSetting, None] = {}
    words: set[str] = set()
    scopes: list[DeployedScope] = []
    shown = store.load_run(run)
    for arm in shown.candidates:
        record, count = store.load_arm(run, arm.name), ScopeCount()
        done = workload_of(record)
        settings |= dict.fromkeys(part.setting for part in done.sampled)
        words |= done.features
        for request in record.keeping().requests:
            count.add(request)
        scopes.append(shown_scope(shown, arm, count.scope(arm.effective), done.longest))
    serves: dict[str, Any] = dict.fromkeys(sorted(words), True)
    if settings:
        serves["sampled"] = {"settings": [_changed(setting) for setting in settings]}
    if not serves:
        raise CannotDecide(f"run {run}: no candidate arm answered a request")
    parts = {part.name: _most([getattr(scope, part.name) for scope in scopes]) for part in fields(DeployedScope)}
    return {"version": 1, "serves": serves, "deployed": {name: value for name, value in parts.items() if value}}


def _changed(setting: SampledSetting) -> dict[str, Any]:
    """The parameters that are on."""
    off = asdict(SampledSetting(-1.0))
    return {name: value for name, value in asdict(setting).items() if value != off[name]}


def _most(values: list[Any]) -> Any:
    """The largest number, all models, or the one word of all arms; None where arms differ or nobody knows."""
    if isinstance(values[0], Mapping):
        return {role: _digests(values, role) for role in MODEL_ROLES if any(role in models for models in values)}
    known = {value for value in values if value is not None}
    if all(isinstance(value, int) for value in known):
        return max(known, default=None)
    return known.pop() if len(known) == 1 else None


def _digests(values: list[Mapping[str, tuple[str, ...]]], role: str) -> list[str]:
    return sorted({f"sha256:{digest}" for models in values for digest in models.get(role, ())})

"""The settings that every engine in a process of its own takes, validated before anything runs.

Options of a proposer keep the engine's names.
"""

from __future__ import annotations

import sys
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import schemas
from engine.backends.engine_spec import EngineSpec
from engine.backends.outside import OutsideAccess, OutsideKind
from engine.core.errors import InvalidRequest
from engine.core.options import OptionType, read_options


@dataclass(frozen=True, slots=True)
class EngineWords:
    """One engine: its own name, the backend's, the setting that names converted folders, and its proposers' options.

    width: the engine's name of gamma. most: its largest value.
    """

    name: str
    backend: str
    folders: str
    kinds: Mapping[str, Mapping[str, OptionType]]
    width: str
    most: int

    @property
    def schema(self) -> str:
        """The schema of the settings."""
        return f"engine-{self.backend}"


@dataclass(frozen=True, slots=True)
class ProcessSettings:
    """One arm.

    speculative: the options in the engine's words; empty without speculation.
    folders: of converted models by the suite's names; other models are converted when the engine starts.
    threads: of the engine; None is its own choice. given: every setting as the suite gives it.
    """

    python: str
    kind: str | None = None
    gamma: int = 0
    draft: str | None = None
    speculative: Mapping[str, Any] = field(default_factory=dict)
    folders: Mapping[str, str] = field(default_factory=dict)
    threads: int | None = None
    silence_s: float = 600
    start_s: float = 900
    restarts: int = 4
    given: Mapping[str, Any] = field(default_factory=dict)


def process_settings(plan: EngineSpec, words: EngineWords) -> ProcessSettings:
    """The arm's settings.

    Raises:
        InvalidRequest: a setting that the engine lacks; the message states the fix.
    """
    given = dict(plan.engine)
    known = schemas.load(words.schema)["properties"]
    for name in given:
        if name not in known:
            raise InvalidRequest(
                f"engine.{name}: there is no such setting of {words.name} here; there are: {', '.join(known)}"
            )
    if plan.fault is not None:
        raise InvalidRequest(f"fault {plan.fault}: faults are of the native backend; remove it")
    return ProcessSettings(
        python=given.get("python", sys.executable),
        kind=plan.proposer,
        gamma=plan.gamma if plan.proposer is not None else 0,
        draft=plan.draft,
        speculative=_speculative(plan, words),
        folders=dict(given.get(words.folders, {})),
        threads=given.get("threads"),
        silence_s=given.get("timeout_s", 600),
        start_s=given.get("start_timeout_s", 900),
        restarts=given.get("restarts", 4),
        given=given,
    )


def _speculative(plan: EngineSpec, words: EngineWords) -> dict[str, Any]:
    if plan.proposer is None:
        return {}
    if plan.proposer not in words.kinds:
        raise InvalidRequest(f"{words.name} has no proposer {plan.proposer!r}; it has: {', '.join(words.kinds)}")
    name = f"proposer {plan.proposer}"
    if not 1 <= plan.gamma <= words.most:
        raise InvalidRequest(f"{name}: gamma must be 1 to {words.most}, not {plan.gamma}")
    if (plan.draft is None) == (plan.proposer == "draft_model"):
        fix = "drafts with a model; add model: NAME to the proposer"
        raise InvalidRequest(f"{name} {fix if plan.draft is None else 'drafts without a model; remove model'}")
    if plan.others:
        raise InvalidRequest(f"{name} drafts with one model; remove others from the proposer")
    return {words.width: plan.gamma, **read_options(name, plan.options, words.kinds[plan.proposer])}


def outside_of(engine: Mapping[str, Any], folders: str) -> tuple[OutsideAccess, ...]:
    """The interpreter and the converted folders that an arm's engine settings name."""
    named = engine.get(folders, {}).items()
    accesses = [OutsideAccess(OutsideKind.FILE, str(folder), f"engine.{folders}.{name}") for name, folder in named]
    if "python" in engine:
        accesses.append(OutsideAccess(OutsideKind.PROGRAM, str(engine["python"]), "engine.python"))
    return tuple(accesses)

"""One arm on mlx_lm: sends requests to the engine one after another, and records every answer."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from engine.backends.converted.engine import ConvertedEngine
from engine.backends.converted.settings import ProcessSettings
from engine.backends.frames import Frame
from engine.backends.interface import Capabilities
from engine.backends.mlx_lm.evidence import LEVELS, rule_of
from engine.backends.mlx_lm.rounds import keeps_draws
from engine.backends.mlx_lm.sampling import message_of, refusal
from engine.backends.mlx_lm.settings import arguments_of
from engine.backends.mlx_lm.to_record import AnswerTerms, recorded
from engine.core.types import Generation, RecordLevel, Request
from engine.models.loading import OpenedSource
from engine.record.effective import Effective, LoopOwner, stated
from engine.record.foreign import ForeignEngine


@dataclass(frozen=True, slots=True)
class MlxEngine(ConvertedEngine):
    """One arm on mlx_lm, whose models need no conversion."""

    backend = "mlx_lm"
    settings: ProcessSettings
    draft: OpenedSource | None

    def capabilities(self) -> Capabilities:
        """Rows, drafts and the decision on each."""
        return Capabilities(LEVELS[self.plan.level].level)

    def effective_config(self) -> Effective:
        """The effective configuration, with the facts of the running engine."""
        settings = self.settings
        document = {
            "backend": self.backend,
            "target": dict(self.target.facts("target").manifest["facts"]),
            "draft": None if self.draft is None else dict(self.draft.facts),
            "engine": dict(self.processes.facts()),
            "proposer": settings.kind or "plain",
            "gamma": settings.gamma,
            "protocol": rule_of(self.plan.protocol).value,
            "lossless": True,
            "rows": 1,
            "record": self.plan.level.value,
            "fault": None,
            "requested": {"speculation": settings.kind or "none", **arguments_of(settings)},
            "effective": self._in_effect(),
            "evidence": {"level": LEVELS[self.plan.level].level, "problems": []},
        }
        return stated(LoopOwner.FOREIGN, document)

    def _in_effect(self) -> dict[str, Any]:
        """As a generator of the engine holds them."""
        asked = arguments_of(self.settings)
        kept = self.processes.options(asked)
        return {"speculation": kept["way"], **{name: kept[name] for name in asked}}

    def problem(self, request: Request) -> str | None:
        """A parameter that the engine lacks."""
        return refusal(request.sampling)

    def message(self, request: Request) -> dict[str, Any]:
        """A request as the driver reads it."""
        return {
            "id": request.id,
            "prompt": list(request.prompt),
            "sampling": message_of(request, self.target.vocabulary, self.target.eos_ids),
            "arguments": arguments_of(self.settings),
            "rows": self.plan.level is not RecordLevel.TOKENS,
        }

    def observed(self) -> ForeignEngine:
        """What its records say of the engine."""
        return self.foreign(rule_of(self.plan.protocol), self.plan.level)

    def answered(self, request: Request, frame: Frame, message: Mapping[str, Any]) -> Generation:
        """The record of an answer."""
        version, greedy = self.processes.facts()["installed"]["version"], request.sampling.temperature == 0
        keeps = keeps_draws(version, greedy=greedy, gamma=self.settings.gamma)
        return recorded(request, frame, message, AnswerTerms(self.observed(), self.settings.gamma, self.target, keeps))

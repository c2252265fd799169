"""One arm on OpenVINO GenAI: sends requests to the engine, a batch at a time, and records every answer."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from engine.backends.converted.engine import ConvertedEngine
from engine.backends.converted.models import ArmModels
from engine.backends.converted.settings import ProcessSettings
from engine.backends.frames import Frame
from engine.backends.interface import Capabilities
from engine.backends.openvino_genai.evidence import level_of, rule_of
from engine.backends.openvino_genai.sampling import generation_options, refusal
from engine.backends.openvino_genai.settings import bounded, counted
from engine.backends.openvino_genai.to_record import AnswerContext, recorded
from engine.core.types import Generation, RecordLevel, Request
from engine.record.effective import Effective, LoopOwner, stated
from engine.record.foreign import ForeignEngine


@dataclass(frozen=True, slots=True)
class OpenVinoEngine(ConvertedEngine):
    """One arm on OpenVINO GenAI."""

    backend = "openvino_genai"
    settings: ProcessSettings
    models: ArmModels

    @property
    def rows(self) -> int:
        """The batch: the engine mixes the requests that it was given together."""
        return self.plan.rows

    def capabilities(self) -> Capabilities:
        """Log-probabilities, or tokens alone with counters."""
        return Capabilities(level_of(counters=counted(self.settings)))

    def effective_config(self) -> Effective:
        """The effective configuration, with the facts of the running engine."""
        settings = self.settings
        document = {
            **self.identity(self.models),
            "proposer": settings.kind or "plain",
            "gamma": settings.gamma if bounded(settings) else None,
            "protocol": rule_of(self.plan.protocol).value,
            "lossless": True,
            "rows": self.rows,
            "record": RecordLevel.TOKENS.value,
            "fault": None,
            "threads": settings.threads,
            "server_counters": False,
            "requested": {"speculation": settings.kind or "none", **settings.speculative},
            "effective": self._in_effect(),
            "evidence": {"level": level_of(counters=counted(settings)), "problems": []},
        }
        return stated(LoopOwner.FOREIGN, document)

    def _in_effect(self) -> dict[str, Any]:
        """As the engine keeps them, with the way of speculating that they select."""
        kept = self.processes.options(self.settings.speculative)
        read = {name: type(value)(kept[name]) for name, value in self.settings.speculative.items()}
        return {"speculation": kept["way"], **_rounded(read)}

    def problem(self, request: Request) -> str | None:
        """A parameter that the engine lacks."""
        return refusal(request.sampling)

    def message(self, request: Request) -> dict[str, Any]:
        """A request as the driver reads it."""
        return {
            "id": request.id,
            "prompt": list(request.prompt),
            "options": generation_options(request, self.target.eos_ids),
            "speculative": dict(self.settings.speculative),
            "counters": counted(self.settings),
        }

    def observed(self) -> ForeignEngine:
        """What its records say of the engine."""
        return self.foreign(rule_of(self.plan.protocol), RecordLevel.TOKENS)

    def answered(self, request: Request, frame: Frame, message: Mapping[str, Any]) -> Generation:
        """The record of an answer."""
        return recorded(request, frame, message, AnswerContext(self.observed(), self.settings, self.target))


def _rounded(read: Mapping[str, Any]) -> dict[str, Any]:
    """Values without the noise of float32, in which the engine keeps numbers."""
    return {name: round(value, 6) if isinstance(value, float) else value for name, value in read.items()}

"""One arm on onnxruntime-genai: sends requests to the engine one after another, and records every answer."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from engine.backends.converted.engine import ConvertedEngine
from engine.backends.converted.models import ArmModels
from engine.backends.converted.settings import ProcessSettings
from engine.backends.frames import Frame
from engine.backends.interface import Capabilities
from engine.backends.onnxruntime_genai.evidence import LEVELS, record_level, rule_of
from engine.backends.onnxruntime_genai.sampling import refusal, search_options
from engine.backends.onnxruntime_genai.settings import bounded
from engine.backends.onnxruntime_genai.to_record import AnswerReading, answered
from engine.core.types import Generation, RecordLevel, Request
from engine.record.effective import Effective, LoopOwner, stated
from engine.record.foreign import ForeignEngine


@dataclass(frozen=True, slots=True)
class OrtEngine(ConvertedEngine):
    """One arm on onnxruntime-genai."""

    backend = "onnxruntime_genai"
    settings: ProcessSettings
    models: ArmModels

    def capabilities(self) -> Capabilities:
        """Rows, or tokens alone beside n-gram drafts."""
        return Capabilities(LEVELS[self._record].level)

    @property
    def _record(self) -> RecordLevel:
        return record_level(self.plan.proposer, self.plan.level)

    def effective_config(self) -> Effective:
        """The effective configuration, with the facts of the running engine."""
        settings = self.settings
        document = {
            **self.identity(self.models),
            "proposer": settings.kind or "plain",
            "gamma": settings.gamma if bounded(settings) else None,
            "protocol": rule_of(self.plan.protocol).value,
            "lossless": True,
            "rows": 1,
            "record": self._record.value,
            "fault": None,
            "threads": settings.threads,
            # the record has no steps of the engine's: the counts are facts of the requests
            "server_counters": False,
            "requested": {"speculation": settings.kind is not None, **settings.speculative},
            "effective": self._in_effect(),
            "evidence": {"level": LEVELS[self._record].level, "problems": []},
        }
        return stated(LoopOwner.FOREIGN, document)

    def _in_effect(self) -> dict[str, Any]:
        """As the engine keeps them; its numbers are floats."""
        kept = self.processes.options(self.settings.speculative)
        drafts = self.models.draft is not None or kept["ngram_size"] > 0
        read = {name: type(value)(kept[name]) for name, value in self.settings.speculative.items() if name in kept}
        return {"speculation": drafts, **read}

    def problem(self, request: Request) -> str | None:
        """A parameter that the engine lacks."""
        return refusal(request.sampling)

    def answered(self, request: Request, frame: Frame, message: Mapping[str, Any]) -> Generation:
        """The record of an answer."""
        return answered(request, frame, message, AnswerReading(self.observed(), self.settings, self.target))

    def message(self, request: Request) -> dict[str, Any]:
        """A request as the driver reads it."""
        return {
            "id": request.id,
            "prompt": list(request.prompt),
            "search": search_options(request, self.target.vocabulary),
            "speculative": dict(self.settings.speculative),
            "ends": list(request.sampling.stop_token_ids),
            "rows": self._record is not RecordLevel.TOKENS,
        }

    def observed(self) -> ForeignEngine:
        """What its records say of the engine."""
        return self.foreign(rule_of(self.plan.protocol), self._record)

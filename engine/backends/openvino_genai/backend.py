"""OpenVINO GenAI as a backend: one arm, whose requests run a batch at a time, and the models that it loads."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final

from engine.backends.openvino_genai.convert import CONVERTER
from engine.backends.openvino_genai.settings import (
    PROGRAM,
    REFUSED,
    bounded,
    counted,
    generation_options,
    level_of,
    settings_of,
)
from engine.backends.openvino_genai.to_record import read
from engine.backends.process.arm import ConvertedEngine
from engine.backends.process.backend import ConvertedBackend, EngineKind, EngineWanted
from engine.backends.process.convert import Converted
from engine.backends.process.record import AnswerTerms, ReadAnswer
from engine.core.child import Frame
from engine.core.types import Request
from engine.record.effective import Effective

PRECISION: Final = {"INFERENCE_PRECISION_HINT": "f32", "KV_CACHE_PRECISION": "f32"}
"""The engine's own choice may be bfloat16, and 8 bits for its cache."""


@dataclass(frozen=True, slots=True)
class OpenVinoEngine(ConvertedEngine):
    """One arm on OpenVINO GenAI."""

    backend = "openvino_genai"
    refused = REFUSED

    @property
    def rows(self) -> int:
        """The batch: the engine mixes the requests that it was given together."""
        return self.plan.rows

    @property
    def evidence_level(self) -> int:
        """That of log-probabilities, or of tokens alone with counters."""
        return level_of(counters=counted(self.settings))

    def effective_config(self) -> Effective:
        """The effective configuration, with the facts of the running engine."""
        settings = self.settings
        return self.stated(
            {"speculation": settings.kind or "none", **settings.speculative},
            self._in_effect(),
            gamma=settings.gamma if bounded(settings) else None,
        )

    def _in_effect(self) -> dict[str, Any]:
        """As the engine keeps them, with the way of speculating that they select."""
        kept = self.processes.options(self.settings.speculative)
        read = {name: type(value)(kept[name]) for name, value in self.settings.speculative.items()}
        return {"speculation": kept["way"], **_rounded(read)}

    def message(self, request: Request) -> dict[str, Any]:
        """A request as the driver reads it."""
        return {
            "id": request.id,
            "prompt": list(request.prompt),
            "options": generation_options(request, self.target.eos_ids),
            "speculative": dict(self.settings.speculative),
            "counters": counted(self.settings),
        }

    def read(self, request: Request, frame: Frame, message: Mapping[str, Any], terms: AnswerTerms) -> ReadAnswer:
        """Read an answer."""
        return read(request, frame, message, terms)


def _rounded(read: Mapping[str, Any]) -> dict[str, Any]:
    """Values without the noise of float32, in which the engine keeps numbers."""
    return {name: round(value, 6) if isinstance(value, float) else value for name, value in read.items()}


class OpenVinoBackend(ConvertedBackend):
    """Arms over the same models and of the same way of speculating share an engine."""

    kind, converter = EngineKind(PROGRAM, settings_of, OpenVinoEngine), CONVERTER

    def job(self, wanted: EngineWanted[Converted]) -> dict[str, Any]:
        """The first message to the driver."""
        threads = {} if wanted.settings.threads is None else {"INFERENCE_NUM_THREADS": wanted.settings.threads}
        return {
            "target": str(wanted.models.target.folder),
            "draft": None if wanted.models.draft is None else str(wanted.models.draft.folder),
            "lookup": wanted.settings.kind == "prompt_lookup",
            "device": "CPU",
            "properties": {**PRECISION, **threads},
            "scheduler": {
                "cache_size": wanted.settings.given.get("cache_gb", 1),
                "enable_prefix_caching": wanted.settings.given.get("prefix_caching", False),
            },
        }

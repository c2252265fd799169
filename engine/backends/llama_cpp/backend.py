"""One arm on llama.cpp: sends requests to its server, a slot each, and records every answer."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from engine.backends.converted.engine import ConvertedEngine
from engine.backends.converted.models import ArmModels
from engine.backends.converted.settings import ProcessSettings
from engine.backends.frames import Frame
from engine.backends.interface import Capabilities
from engine.backends.llama_cpp.evidence import LEVELS, rule_of
from engine.backends.llama_cpp.sampling import refusal, sampling_body
from engine.backends.llama_cpp.settings import shares, way_of
from engine.backends.llama_cpp.to_record import ServerReading, recorded
from engine.core.types import Generation, RecordLevel, Request
from engine.record.effective import Effective, LoopOwner, stated
from engine.record.foreign import ForeignEngine


@dataclass(frozen=True, slots=True)
class LlamaEngine(ConvertedEngine):
    """One arm on llama.cpp."""

    backend = "llama_cpp"
    settings: ProcessSettings
    models: ArmModels

    @property
    def rows(self) -> int:
        """The batch: each request has a slot of the server."""
        return self.plan.rows

    def capabilities(self) -> Capabilities:
        """Log-probabilities."""
        return Capabilities(LEVELS[RecordLevel.TOKENS].level)

    def effective_config(self) -> Effective:
        """The effective configuration, with the facts of the running server."""
        settings, facts = self.settings, self.processes.facts()
        problems = ["the server replaces verification by a synthetic acceptance"] if facts["synthetic"] else []
        document = {
            **self.identity(self.models),
            "proposer": settings.kind or "plain",
            "gamma": settings.gamma,
            "protocol": rule_of(self.plan.protocol).value,
            "lossless": not facts["synthetic"],
            "rows": facts["slots"],
            "record": RecordLevel.TOKENS.value,
            "fault": None,
            "threads": settings.threads,
            "server_counters": False,
            "requested": {"speculation": way_of(settings), "slots": self.rows, **settings.speculative},
            "effective": {"speculation": _way_in_effect(facts), "slots": facts["slots"], **facts["speculative"]},
            "evidence": {"level": LEVELS[RecordLevel.TOKENS].level, "problems": problems},
            **({"proposer_state": "shared"} if shares(settings) else {}),
        }
        return stated(LoopOwner.FOREIGN, document)

    def problem(self, request: Request) -> str | None:
        """A parameter that the engine lacks."""
        return refusal(request.sampling)

    def message(self, request: Request) -> dict[str, Any]:
        """A request as the driver reads it."""
        body = {
            "prompt": list(request.prompt),
            **sampling_body(request, self.target.context),
            "stream": False,
            "return_tokens": True,
            "n_probs": 2,
            "cache_prompt": caches(self.settings),
        }
        return {"id": request.id, "body": body, "gamma": self.settings.gamma}

    def observed(self) -> ForeignEngine:
        """What its records say of the engine."""
        return self.foreign(rule_of(self.plan.protocol), RecordLevel.TOKENS)

    def answered(self, request: Request, frame: Frame, message: Mapping[str, Any]) -> Generation:
        """The record of an answer."""
        return recorded(request, frame, message, ServerReading(self.observed(), self.settings, self.target))


def caches(settings: ProcessSettings) -> bool:
    """True if a slot keeps the cache of its last request for one that begins with the same tokens."""
    return bool(settings.given.get("cache_prompt", False))


def _way_in_effect(facts: Mapping[str, Any]) -> str:
    """The way that an answer names; `none` beside slots that speculate would be a contradiction of its own."""
    named = str(facts["way"])
    return named if facts["speculates"] == (named != "none") else f"{named}, but its slots say {facts['speculates']}"

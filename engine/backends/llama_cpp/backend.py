"""llama.cpp as a backend: one arm on its server, a slot for each request, and the models that it loads."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from engine.backends.llama_cpp.convert import CONVERTER, MODEL
from engine.backends.llama_cpp.settings import (
    PROGRAM,
    REFUSED,
    caches,
    rule_of,
    sampling_body,
    settings_of,
    shares,
    way_of,
)
from engine.backends.llama_cpp.to_record import read
from engine.backends.process.arm import ConvertedEngine
from engine.backends.process.backend import ConvertedBackend, EngineKind, EngineWanted
from engine.backends.process.convert import Converted
from engine.backends.process.record import AnswerTerms, ReadAnswer
from engine.backends.process.settings import SCORED
from engine.core.child import Frame
from engine.core.types import Protocol, Request
from engine.record.effective import Effective


@dataclass(frozen=True, slots=True)
class LlamaEngine(ConvertedEngine):
    """One arm on llama.cpp."""

    backend = "llama_cpp"
    refused = REFUSED

    @property
    def rows(self) -> int:
        """The batch: each request has a slot of the server."""
        return self.plan.rows

    @property
    def rule(self) -> Protocol:
        """The rule that verifies."""
        return rule_of(self.plan.protocol)

    @property
    def evidence_level(self) -> int:
        """That of log-probabilities."""
        return SCORED[self.level].level

    def effective_config(self) -> Effective:
        """The effective configuration, with the facts of the running server."""
        settings, facts = self.settings, self.processes.facts()
        problems = ["the server replaces verification by a synthetic acceptance"] if facts["synthetic"] else []
        return self.stated(
            {"speculation": way_of(settings), "slots": self.rows, **settings.speculative},
            {"speculation": _way_in_effect(facts), "slots": facts["slots"], **facts["speculative"]},
            lossless=not facts["synthetic"],
            rows=facts["slots"],
            evidence={"level": self.evidence_level, "problems": problems},
            **({"proposer_state": "shared"} if shares(settings) else {}),
        )

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

    def read(self, request: Request, frame: Frame, message: Mapping[str, Any], terms: AnswerTerms) -> ReadAnswer:
        """Read an answer."""
        return read(request, frame, message, terms)


def _way_in_effect(facts: Mapping[str, Any]) -> str:
    """The way that an answer names; `none` beside slots that speculate would be a contradiction of its own."""
    named = str(facts["way"])
    return named if facts["speculates"] == (named != "none") else f"{named}, but its slots say {facts['speculates']}"


class LlamaBackend(ConvertedBackend):
    """Arms of the same way of speculating and of the same batch share a server."""

    kind, converter = EngineKind(PROGRAM, settings_of, LlamaEngine), CONVERTER

    def job(self, wanted: EngineWanted[Converted]) -> dict[str, Any]:
        """The first message to the driver."""
        return {
            "target": str(wanted.models.target.folder / MODEL),
            "draft": None if wanted.models.draft is None else str(wanted.models.draft.folder / MODEL),
            "way": way_of(wanted.settings),
            "speculative": dict(wanted.settings.speculative),
            "rows": wanted.plan.rows,
            "context": self.target.context,
            "threads": wanted.settings.threads,
            "cache_prompt": caches(wanted.settings),
        }

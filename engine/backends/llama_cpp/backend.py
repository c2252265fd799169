"""llama.cpp as a backend: one arm on its server, a slot for each request, and the models that it loads.

The server names no draft, so every token is a step of its own; the numbers of drafted and accepted tokens are facts of
the request.
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from engine.backends.engine_spec import EngineSpec
from engine.backends.interface import Engine
from engine.backends.llama_cpp import settings as own
from engine.backends.llama_cpp.convert import CONVERTER, MODEL
from engine.backends.llama_cpp.reconcile import SOURCES, mismatches
from engine.backends.openai.forms.token_lists import lead_of
from engine.backends.process.arm import ConvertedEngine, ReadAnswer, decoded_facts, end_of, single_steps
from engine.backends.process.backend import ConvertedBackend, EngineKind, EngineWanted
from engine.backends.process.convert import Converted
from engine.backends.process.settings import ProcessSettings
from engine.core.child import Frame
from engine.core.errors import InvalidRequest
from engine.core.types import FinishReason, Protocol, Request, SamplingParams
from engine.models.files.gguf_file import GgufFile
from engine.models.loading import OpenedSource
from engine.record.effective import Effective
from engine.record.foreign.requests import ForeignRecord


@dataclass(frozen=True, slots=True)
class LlamaEngine(ConvertedEngine):
    """One arm on llama.cpp."""

    backend = "llama_cpp"
    refused = own.REFUSED

    @property
    def rows(self) -> int:
        """The batch: each request has a slot of the server."""
        return self.plan.rows

    @property
    def rule(self) -> Protocol:
        """The rule that verifies."""
        return own.rule_of(self.plan.protocol)

    def effective_config(self) -> Effective:
        """The effective configuration, with the facts of the running server."""
        settings, facts = self.settings, self.processes.facts()
        problems = ["the server replaces verification by a synthetic acceptance"] if facts["synthetic"] else []
        return self.stated(
            {"speculation": own.way_of(settings), "slots": self.rows, **settings.speculative},
            {"speculation": _way_in_effect(facts), "slots": facts["slots"], **facts["speculative"]},
            lossless=not facts["synthetic"],
            rows=facts["slots"],
            evidence={"level": self.evidence_level(), "problems": problems},
            **({"proposer_state": "shared"} if own.shares(settings) else {}),
        )

    def message(self, request: Request) -> dict[str, Any]:
        """A request as the driver reads it."""
        body = {
            "prompt": list(request.prompt),
            **own.sampling_body(request, self.target.context),
            "stream": False,
            "return_tokens": True,
            "n_probs": 2,
            "cache_prompt": own.caches(self.settings),
        }
        return {"id": request.id, "body": body, "gamma": self.settings.gamma}

    def read(self, request: Request, frame: Frame, message: Mapping[str, Any]) -> ReadAnswer:
        """Read an answer to a message."""
        answer = frame.header["answer"]
        tokens = tuple(int(token) for token in answer["tokens"])
        reason = reason_of(request, answer, self.target.eos_ids)
        facts: dict[str, Any] = {
            "reconciliation": {"sources": list(SOURCES), "mismatches": list(mismatches(message, frame.header, reason))},
            **decoded_facts(request, tokens, reason, self.target),
        }
        if self.settings.kind is not None:
            facts["speculation"] = speculation_of(answer)
        record = ForeignRecord(single_steps(tokens), *_numbers(answer, request.sampling))
        return ReadAnswer(tokens, reason, str(answer["content"]), facts, record)


def _way_in_effect(facts: Mapping[str, Any]) -> str:
    """The way that an answer names; `none` beside slots that speculate would be a contradiction of its own."""
    named = str(facts["way"])
    return named if facts["speculates"] == (named != "none") else f"{named}, but its slots say {facts['speculates']}"


class LlamaBackend(ConvertedBackend):
    """Arms of the same way of speculating and of the same batch share a server."""

    kind, converter = EngineKind(own.PROGRAM, own.settings_of, LlamaEngine), CONVERTER

    def require(self, opened: OpenedSource) -> None:
        """Refuse a model that cannot be converted; a GGUF file is not. Raises ModelError."""
        if opened.gguf is None:
            super().require(opened)

    def arm(self, plan: EngineSpec) -> Engine:
        """An arm. Raises as the base class; drafts that promise plain's tokens are refused on a GGUF file."""
        promises_plain = plan.proposer is not None and plan.protocol is not Protocol.CHAIN
        if promises_plain and self._file("target", own.settings_of(plan)) is not None:
            raise InvalidRequest(f"{self.opened['target'].source}: {own.UNLIKE_PLAIN}")
        return super().arm(plan)

    def _file(self, name: str, settings: ProcessSettings) -> GgufFile | None:
        """The file that the engine loads itself."""
        return None if name in settings.folders else self.opened[name].gguf

    def model(self, name: str, settings: ProcessSettings) -> Converted:
        """The GGUF file itself where the source is one, or a converted model."""
        file = self._file(name, settings)
        if file is None:
            return super().model(name, settings)
        folder = self.home.path / name
        folder.mkdir(exist_ok=True)
        link = folder / MODEL
        link.unlink(missing_ok=True)
        link.symlink_to(file.path)
        manifest = {"precision": "as in the file", "rounding": own.ROUNDED, "packages": {}}
        return Converted(folder, self.opened[name].facts["model_sha256"], file.sha256, manifest)

    def job(self, wanted: EngineWanted[Converted]) -> dict[str, Any]:
        """The first message to the driver."""
        return {
            "target": str(wanted.models.target.folder / MODEL),
            "draft": None if wanted.models.draft is None else str(wanted.models.draft.folder / MODEL),
            "way": own.way_of(wanted.settings),
            "speculative": dict(wanted.settings.speculative),
            "rows": wanted.plan.rows,
            "context": self.target.context,
            "threads": wanted.settings.threads,
            "cache_prompt": own.caches(wanted.settings),
        }


def _numbers(answer: Mapping[str, Any], asked: SamplingParams) -> tuple[tuple[float, ...], ...]:
    """Log-probabilities of the tokens in the raw rows, and the leads of the likeliest ones where those decide."""
    places = answer.get("completion_probabilities", ())
    if len(places) != len(answer["tokens"]):
        return ()
    leads = [lead_of([float(item["logprob"]) for item in place["top_logprobs"]]) for place in places]
    decided = leads if asked.plain_scores else [math.nan] * len(places)
    return tuple(float(place["logprob"]) for place in places), tuple(decided)


def reason_of(request: Request, answer: Mapping[str, Any], eos_ids: Sequence[int]) -> FinishReason:
    """The end of an answer: a stop string by the server's word, anything else by the last token."""
    return FinishReason.STOP if answer["stop_type"] == "word" else end_of(request, answer["tokens"], eos_ids)


def speculation_of(answer: Mapping[str, Any]) -> dict[str, int]:
    """The drafted and accepted tokens of one answer, as the server counts them; it leaves out what is 0."""
    timings = answer["timings"]
    return {"drafted": timings.get("draft_n", 0), "accepted": timings.get("draft_n_accepted", 0)}

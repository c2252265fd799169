"""OpenVINO GenAI as a backend: one arm, whose requests run a batch at a time, and the models that it loads.

The engine names no draft, so every token is a step of its own; how many tokens each step committed is a fact of the
request. Log-probabilities are those of the raw rows, and recorded where no penalty changes these.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

from engine.backends.openvino_genai import settings as own
from engine.backends.openvino_genai.convert import CONVERTER
from engine.backends.process.arm import (
    ConvertedEngine,
    ReadAnswer,
    changed_options,
    decoded_facts,
    end_of,
    single_steps,
)
from engine.backends.process.backend import ConvertedBackend, EngineKind, EngineWanted
from engine.backends.process.convert import Converted
from engine.core.child import Frame
from engine.core.types import FinishReason, Request
from engine.record.effective import Effective
from engine.record.foreign.requests import ForeignRecord

PRECISION: Final = {"INFERENCE_PRECISION_HINT": "f32", "KV_CACHE_PRECISION": "f32"}
"""The engine's own choice may be bfloat16, and 8 bits for its cache."""
SOURCES: Final = ("tokens", "steps", "finish reason", "options")
REASONS: Final = {FinishReason.EOS: "STOP", FinishReason.STOP: "STOP", FinishReason.LENGTH: "LENGTH"}
"""The engine's words for an end."""


@dataclass(frozen=True, slots=True)
class OpenVinoEngine(ConvertedEngine):
    """One arm on OpenVINO GenAI."""

    backend = "openvino_genai"
    refused = own.REFUSED

    @property
    def rows(self) -> int:
        """The batch: the engine mixes the requests that it was given together."""
        return self.plan.rows

    def evidence_level(self) -> int:
        """That of log-probabilities, or of tokens alone with counters."""
        return own.level_of(counters=own.counted(self.settings))

    def effective_config(self) -> Effective:
        """The effective configuration, with the facts of the running engine."""
        settings = self.settings
        return self.stated(
            {"speculation": settings.kind or "none", **settings.speculative},
            self._in_effect(),
            gamma=settings.gamma if own.bounded(settings) else None,
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
            "options": own.generation_options(request, self.target.eos_ids),
            "speculative": dict(self.settings.speculative),
            "counters": own.counted(self.settings),
        }

    def read(self, request: Request, frame: Frame, message: Mapping[str, Any]) -> ReadAnswer:
        """Read an answer to a message."""
        answer, settings = frame.header, self.settings
        tokens = tuple(int(token) for token in answer["tokens"])
        reason = end_of(request, tokens, self.target.eos_ids)
        most = settings.gamma + 1 if own.bounded(settings) else None
        further = ("counters", "sequence") if message["counters"] else ("log-probabilities",)
        facts: dict[str, Any] = {
            "reconciliation": {
                "sources": [*SOURCES, *further],
                "mismatches": [*mismatches(answer, reason, most), *_changed(message, answer["options"])],
            },
            **decoded_facts(request, tokens, reason, self.target),
        }
        if settings.kind is not None:
            counts = answer.get("counts") or {}
            facts["speculation"] = {"steps": len(answer["steps"]), "per_step_emitted": answer["steps"], **counts}
        numbers = tuple(answer["logprob"]) if request.sampling.plain_scores else ()
        record = ForeignRecord(single_steps(tokens), numbers, (float("nan"),) * len(numbers))
        return ReadAnswer(tokens, reason, self.target.tokens.decode(tokens), facts, record)


def _rounded(read: Mapping[str, Any]) -> dict[str, Any]:
    """Values without the noise of float32, in which the engine keeps numbers."""
    return {name: round(value, 6) if isinstance(value, float) else value for name, value in read.items()}


class OpenVinoBackend(ConvertedBackend):
    """Arms over the same models and of the same way of speculating share an engine."""

    kind, converter = EngineKind(own.PROGRAM, own.settings_of, OpenVinoEngine), CONVERTER

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


def _changed(asked: Mapping[str, Any], kept: Mapping[str, Any]) -> Iterator[str]:
    """The options that the engine kept otherwise; it adds its end token to the stop tokens."""
    options = asked["options"]
    ends = sorted({*options["stop_token_ids"], options["eos_token_id"]})
    return changed_options({**options, **asked["speculative"], "stop_token_ids": ends}, kept)


def mismatches(answer: Mapping[str, Any], reason: FinishReason, most: int | None) -> Iterator[str]:
    """The contradictions among the accounts of one answer."""
    tokens, steps = answer["tokens"], answer["steps"]
    if answer["finish"] != REASONS[reason]:
        yield f"finish reason: the engine ended with {answer['finish']}, its tokens end with {reason.value}"
    if most is not None and max(steps) > most:
        yield f"steps: one committed {max(steps)} tokens, more than {most}"
    if answer["logprob"] and len(answer["logprob"]) != len(tokens):
        yield f"log-probabilities: {len(answer['logprob'])} of {len(tokens)} tokens"
    if answer.get("sequence") not in (None, tokens):
        yield f"sequence: {len(answer['sequence'])} tokens returned, {len(tokens)} others streamed"
    if answer.get("counts") is not None:
        yield from _of_counts(answer["counts"], steps)


def _of_counts(counts: Mapping[str, int], steps: Sequence[int]) -> Iterator[str]:
    drafted, accepted, rejected = (counts[name] for name in ("drafted", "accepted", "rejected"))
    # each step commits one token of the target's own
    kept = sum(steps) - len(steps)
    if accepted + rejected != drafted:
        yield f"counters: {accepted} accepted and {rejected} rejected of {drafted} drafted tokens"
    if accepted != kept:
        yield f"counters: {accepted} accepted tokens, but {len(steps)} steps committed {kept} beyond one each"

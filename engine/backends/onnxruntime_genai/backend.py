"""One arm on onnxruntime-genai: sends requests to the engine one after another, and records every answer."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from engine.backends.engine_process import Failure
from engine.backends.engine_spec import EngineSpec
from engine.backends.frames import Frame
from engine.backends.interface import Capabilities, Prompt
from engine.backends.local_target import LocalTarget
from engine.backends.onnxruntime_genai.convert import Converted
from engine.backends.onnxruntime_genai.evidence import LEVELS, record_level, rule_of
from engine.backends.onnxruntime_genai.folder import WorkFolder
from engine.backends.onnxruntime_genai.process import OrtProcesses
from engine.backends.onnxruntime_genai.sampling import refusal, search_options
from engine.backends.onnxruntime_genai.settings import OrtSettings
from engine.backends.onnxruntime_genai.to_record import AnswerReading, answered, failed
from engine.core.errors import CapacityError, InvalidRequest
from engine.core.types import Generation, Protocol, RecordLevel, Request
from engine.record.effective import Effective, LoopOwner, stated
from engine.record.foreign import ForeignEngine


@dataclass(frozen=True, slots=True)
class OrtModels:
    """The converted models of one arm, and the folder that holds temporary ones."""

    target: Converted
    draft: Converted | None
    home: WorkFolder


@dataclass(frozen=True, slots=True)
class OrtEngine:
    """One arm. Its engine starts at the first request."""

    plan: EngineSpec
    settings: OrtSettings
    target: LocalTarget
    models: OrtModels
    processes: OrtProcesses

    def capabilities(self) -> Capabilities:
        """Rows, or tokens alone beside n-gram drafts."""
        return Capabilities(LEVELS[self._record].level)

    @property
    def _record(self) -> RecordLevel:
        return record_level(self.plan.proposer, self.plan.level)

    def effective_config(self) -> Effective:
        """The effective configuration, with the facts of the running engine."""
        settings, facts = self.settings, self.processes.facts()
        draft = self.models.draft
        document = {
            "backend": "onnxruntime_genai",
            "target": dict(self.target.facts("target").manifest["facts"]),
            "converted": _identity(self.models.target),
            "converted_draft": None if draft is None else _identity(draft),
            "proposer": settings.kind or "plain",
            "gamma": settings.gamma if settings.bounded else None,
            "protocol": rule_of(self.plan.protocol).value,
            "lossless": True,
            "rows": 1,
            "record": self._record.value,
            "fault": None,
            "threads": settings.threads,
            "engine": dict(facts),
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

    def starts(self) -> str | None:
        """The engine by its draft, unless it runs already."""
        if self.processes.started:
            return None
        draft = "no draft" if self.settings.kind is None else f"{self.settings.kind}, {self.settings.gamma} tokens"
        return f"onnxruntime-genai ({draft})"

    def encode(self, prompt: Prompt) -> tuple[int, ...]:
        """The prompt's tokens, by the target's own tokenizer."""
        return self.target.encode(prompt)

    def memory(self) -> str | None:
        """No state persists between requests: each has a generator of its own."""
        return None

    def forget(self) -> None:
        """Nothing to empty."""

    def require(self, requests: Sequence[Request]) -> None:
        """Check parameters, token ids and lengths.

        Raises:
            InvalidRequest: a parameter that the engine lacks, or a token that the target lacks.
            CapacityError: a request does not fit the target's context.
        """
        for request in requests:
            self._require(request)

    def _require(self, request: Request) -> None:
        sampling, target = request.sampling, self.target
        problem = refusal(sampling)
        if problem is not None:
            raise InvalidRequest(f"request {request.id}: {problem}")
        if self.settings.kind is not None and self.plan.protocol is Protocol.GREEDY and not sampling.greedy:
            raise InvalidRequest(
                f"request {request.id}: onnxruntime-genai compares tokens at temperature 0 only; use verifier: chain"
            )
        wrong = [token for token in request.prompt if not 0 <= token < target.vocabulary]
        if wrong:
            last = target.vocabulary - 1
            raise InvalidRequest(f"request {request.id}: the prompt names token {wrong[0]}, but ids end at {last}")
        if len(request.prompt) + sampling.max_new_tokens > target.context:
            raise CapacityError(
                f"request {request.id}: prompt of {len(request.prompt)} tokens and max_new_tokens "
                f"{sampling.max_new_tokens} exceed the target's context of {target.context}; "
                "shorten the prompt or lower max_new_tokens"
            )

    def generate(self, requests: Sequence[Request]) -> Iterator[Generation]:
        """One request after the other; one that fails alone yields its own error."""
        self.require(requests)
        options = self._reading()
        messages = [self._message(request) for request in requests]
        for request, message, answer in zip(requests, messages, self.processes.answers(messages), strict=True):
            if isinstance(answer, Failure):
                yield failed(request, answer, options)
            else:
                yield self._answered(request, answer, message, options)

    def _answered(
        self, request: Request, frame: Frame, message: Mapping[str, Any], options: AnswerReading
    ) -> Generation:
        if not frame.header["tokens"]:
            return failed(request, Failure("malformed", "the engine ended without a token"), options)
        return answered(request, frame, message, options)

    def _message(self, request: Request) -> dict[str, Any]:
        return {
            "id": request.id,
            "prompt": list(request.prompt),
            "search": search_options(request, self.target.vocabulary),
            "speculative": dict(self.settings.speculative),
            "ends": list(request.sampling.stop_token_ids),
            "rows": self._record is not RecordLevel.TOKENS,
        }

    def _reading(self) -> AnswerReading:
        observed = ForeignEngine(
            vocabulary=self.target.vocabulary,
            eos_ids=self.target.eos_ids,
            protocol=rule_of(self.plan.protocol),
            proposer=self.plan.proposer or "plain",
            level=self._record,
        )
        return AnswerReading(observed, self.settings, self.target)

    def anchor_config(self) -> Effective:
        """The teacher-forced pass of `engine.models.reference_pass`; opens the reference."""
        return self.target.anchor_config("onnxruntime_genai", self.plan)

    def anchor(self, request: Request, tokens: Sequence[int]) -> Generation:
        """The reference's rows on `tokens`."""
        return self.target.anchor(request, tokens, self.plan)


def _identity(converted: Converted) -> dict[str, Any]:
    """What identifies a converted model in a record."""
    manifest = converted.manifest
    return {
        "sha256": converted.sha256,
        "source_sha256": converted.source_sha256,
        "precision": manifest["precision"],
        "rounding": manifest["rounding"],
        "packages": manifest["packages"],
    }

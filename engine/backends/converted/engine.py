"""What an arm is whose engine runs converted models in another process: its prompts, its limits, its reference pass."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

from engine.backends.converted.answers import failed
from engine.backends.converted.models import ArmModels
from engine.backends.converted.processes import RestartedEngine
from engine.backends.engine_process import Failure
from engine.backends.engine_spec import EngineSpec
from engine.backends.frames import Frame
from engine.backends.interface import Prompt
from engine.backends.local_target import LocalTarget
from engine.core.errors import CapacityError, InvalidRequest
from engine.core.types import Generation, Protocol, RecordLevel, Request
from engine.record.effective import Effective
from engine.record.foreign import ForeignEngine


@dataclass(frozen=True, slots=True)
class ConvertedEngine:
    """One arm. Its engine starts at the first request."""

    backend: ClassVar[str]
    """The registered name."""

    plan: EngineSpec
    target: LocalTarget
    processes: RestartedEngine

    @property
    def name(self) -> str:
        """The engine's own name."""
        return self.processes.program.name

    def encode(self, prompt: Prompt) -> tuple[int, ...]:
        """The prompt's tokens, by the target's own tokenizer."""
        return self.target.encode(prompt)

    def memory(self) -> str | None:
        """No state persists between requests: each has a generator of its own."""
        return None

    def forget(self) -> None:
        """Nothing to empty."""

    def starts(self) -> str | None:
        """The engine by its draft, unless it runs already."""
        if self.processes.started:
            return None
        draft = "no draft" if self.plan.proposer is None else f"{self.plan.proposer}, {self.plan.gamma} tokens"
        return f"{self.name} ({draft})"

    def problem(self, request: Request) -> str | None:
        """The reason why this engine cannot serve a request, with the fix; None if it can."""
        raise NotImplementedError

    def require(self, requests: Sequence[Request]) -> None:
        """Check parameters, token ids and lengths.

        Raises:
            InvalidRequest: a parameter that the engine lacks, or a token that the target lacks.
            CapacityError: a request does not fit the target's context.
        """
        for request in requests:
            problem = self.problem(request)
            if problem is not None:
                raise InvalidRequest(f"request {request.id}: {problem}")
            if self.plan.proposer is not None and self.plan.protocol is Protocol.GREEDY and not request.sampling.greedy:
                raise InvalidRequest(
                    f"request {request.id}: {self.name} compares tokens at temperature 0 only; use verifier: chain"
                )
            self._require_fitting(request)

    def _require_fitting(self, request: Request) -> None:
        target, most = self.target, request.sampling.max_new_tokens
        wrong = [token for token in request.prompt if not 0 <= token < target.vocabulary]
        if wrong:
            last = target.vocabulary - 1
            raise InvalidRequest(f"request {request.id}: the prompt names token {wrong[0]}, but ids end at {last}")
        if len(request.prompt) + most > target.context:
            raise CapacityError(
                f"request {request.id}: prompt of {len(request.prompt)} tokens and max_new_tokens {most} exceed the "
                f"target's context of {target.context}; shorten the prompt or lower max_new_tokens"
            )

    def message(self, request: Request) -> dict[str, Any]:
        """A request as the driver reads it."""
        raise NotImplementedError

    def observed(self) -> ForeignEngine:
        """What its records say of the engine."""
        raise NotImplementedError

    def answered(self, request: Request, frame: Frame, message: Mapping[str, Any]) -> Generation:
        """The record of an answer to a message."""
        raise NotImplementedError

    @property
    def rows(self) -> int:
        """The requests that run at a time."""
        return 1

    def generate(self, requests: Sequence[Request]) -> Iterator[Generation]:
        """The requests in their order, `rows` at a time; one that fails alone yields its own error."""
        self.require(requests)
        messages = [self.message(request) for request in requests]
        answers = self.processes.answers(messages, self.rows)
        for request, message, answer in zip(requests, messages, answers, strict=True):
            if isinstance(answer, Failure):
                yield failed(request, answer, self.observed())
            elif not answer.header["tokens"]:
                yield failed(request, Failure("malformed", "the engine ended without a token"), self.observed())
            else:
                yield self.answered(request, answer, message)

    def foreign(self, rule: Protocol, level: RecordLevel) -> ForeignEngine:
        """The engine in the words of a record."""
        return ForeignEngine(
            vocabulary=self.target.vocabulary,
            eos_ids=self.target.eos_ids,
            protocol=rule,
            proposer=self.plan.proposer or "plain",
            level=level,
        )

    def identity(self, models: ArmModels) -> dict[str, Any]:
        """The part of an effective configuration that names the models and the running engine."""
        return {
            "backend": self.backend,
            "target": dict(self.target.facts("target").manifest["facts"]),
            "converted": models.target.identity(),
            "converted_draft": None if models.draft is None else models.draft.identity(),
            "engine": dict(self.processes.facts()),
        }

    def anchor_config(self) -> Effective:
        """The teacher-forced pass of `engine.models.passes.reference_pass`; opens the reference."""
        return self.target.anchor_config(self.backend, self.plan)

    def anchor(self, request: Request, tokens: Sequence[int]) -> Generation:
        """The reference's rows on `tokens`."""
        return self.target.anchor(request, tokens, self.plan)

"""One arm whose engine runs in another process: its prompts, its limits, its configuration, its reference pass."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar, Generic, TypeVar

from engine.backends.engine_spec import EngineSpec
from engine.backends.interface import Capabilities
from engine.backends.limits import require_length, require_prompt
from engine.backends.local_target import LocalEngine, LocalTarget
from engine.backends.process.convert import Converted, WorkFolder
from engine.backends.process.engine_process import Failure, RestartedEngine
from engine.backends.process.record import AnswerTerms, ReadAnswer
from engine.backends.process.settings import ProcessSettings, Refusals, matching_rule, refusal
from engine.core.child import Frame
from engine.core.errors import InvalidRequest
from engine.core.types import Generation, Protocol, RecordLevel, Request
from engine.record.effective import Effective, LoopOwner, stated
from engine.record.foreign.requests import ForeignEngine, unanswered

M = TypeVar("M")


@dataclass(frozen=True, slots=True)
class ArmModels(Generic[M]):
    """The models of one arm, in the form that its engine loads.

    home: the folder of temporary models, which is removed with the last arm that uses it.
    """

    target: M
    draft: M | None
    home: WorkFolder | None = None


@dataclass(frozen=True, slots=True)
class ProcessEngine(LocalEngine, Generic[M]):
    """One arm. Its engine starts at the first request, and has a generator for each."""

    refused: ClassVar[Refusals]

    plan: EngineSpec
    target: LocalTarget
    processes: RestartedEngine
    settings: ProcessSettings
    models: ArmModels[M]

    @property
    def name(self) -> str:
        """The engine's own name."""
        return self.processes.program.name

    def starts(self) -> str | None:
        """The engine by its draft, unless it runs already."""
        if self.processes.started:
            return None
        draft = "no draft" if self.plan.proposer is None else f"{self.plan.proposer}, {self.plan.gamma} tokens"
        return f"{self.name} ({draft})"

    def require(self, requests: Sequence[Request]) -> None:
        """Check parameters, token ids and lengths.

        Raises:
            InvalidRequest: a parameter that the engine lacks, or a token that the target lacks.
            CapacityError: a request does not fit the target's context.
        """
        for request in requests:
            problem = refusal(self.refused, request.sampling)
            if problem is not None:
                raise InvalidRequest(f"request {request.id}: {problem}")
            if self.plan.proposer is not None and self.plan.protocol is Protocol.GREEDY and not request.sampling.greedy:
                raise InvalidRequest(
                    f"request {request.id}: {self.name} compares tokens at temperature 0 only; use verifier: chain"
                )
            require_prompt(request, self.target.vocabulary)
            require_length(request, self.target.context)

    def message(self, request: Request) -> dict[str, Any]:
        """A request as the driver reads it."""
        raise NotImplementedError

    def read(self, request: Request, frame: Frame, message: Mapping[str, Any], terms: AnswerTerms) -> ReadAnswer:
        """Read an answer to a message, after its accounts are compared."""
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
                yield unanswered(request, self.observed(), answer.kind, answer.message)
            elif not answer.header["tokens"]:
                yield unanswered(request, self.observed(), "malformed", "the engine ended without a token")
            else:
                terms = AnswerTerms(self.observed(), self.settings, self.target)
                read = self.read(request, answer, message, terms)
                yield read.generation(request, terms, answer.header["latency_us"])

    @property
    def rule(self) -> Protocol:
        """The rule that verifies."""
        return matching_rule(self.plan.protocol)

    @property
    def level(self) -> RecordLevel:
        """The level of its records."""
        return RecordLevel.TOKENS

    @property
    def evidence_level(self) -> int:
        """The evidence level of its records."""
        raise NotImplementedError

    def capabilities(self) -> Capabilities:
        """The evidence that its records support."""
        return Capabilities(self.evidence_level)

    def observed(self) -> ForeignEngine:
        """The engine as its records state it."""
        return ForeignEngine(
            vocabulary=self.target.vocabulary,
            eos_ids=self.target.eos_ids,
            protocol=self.rule,
            proposer=self.plan.proposer or "plain",
            level=self.level,
        )

    def effective_config(self) -> Effective:
        """The effective configuration, with the facts of the running engine."""
        raise NotImplementedError

    def configured(self, settings: Mapping[str, Any], **more: Any) -> Effective:
        """An effective configuration.

        Args:
            settings: what was `requested` and is `effective`, and what else the engine states.
            more: values of this engine that stand in place of the usual ones.
        """
        document = {
            "backend": self.backend,
            "target": dict(self.target.facts("target").manifest["facts"]),
            **self.identity(),
            "engine": dict(self.processes.facts()),
            "proposer": self.settings.kind or "plain",
            "gamma": self.settings.gamma,
            "protocol": self.rule.value,
            "lossless": True,
            "rows": self.rows,
            "record": self.level.value,
            "fault": None,
            **settings,
            "evidence": {"level": self.evidence_level, "problems": []},
            **more,
        }
        return stated(LoopOwner.FOREIGN, document)

    def identity(self) -> dict[str, Any]:
        """The part of an effective configuration that names the models that the engine loads."""
        raise NotImplementedError


@dataclass(frozen=True, slots=True)
class ConvertedEngine(ProcessEngine[Converted]):
    """One arm on converted models."""

    def identity(self) -> dict[str, Any]:
        """The converted models."""
        models = self.models
        draft = None if models.draft is None else models.draft.identity()
        return {"converted": models.target.identity(), "converted_draft": draft}

    def stated(self, requested: Mapping[str, Any], effective: Mapping[str, Any], **more: Any) -> Effective:
        """The effective configuration. The record has no steps of the engine's, so counts are facts of the requests."""
        shared = {"threads": self.settings.threads, "server_counters": False}
        return self.configured({**shared, "requested": requested, "effective": effective}, **more)

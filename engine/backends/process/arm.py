"""One arm whose engine runs in another process: prompts, limits, configuration, reference pass, answers as records."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar, Generic, TypeVar

from engine.backends.engine_spec import EngineSpec
from engine.backends.evidence import Shown
from engine.backends.interface import require_length, require_prompt
from engine.backends.local_target import LocalEngine, LocalTarget
from engine.backends.process.convert import Converted, WorkFolder
from engine.backends.process.engine_process import Failure, RestartedEngine
from engine.backends.process.settings import SCORED, ProcessSettings, Refusals, matching_rule, refusal
from engine.backends.second_decoding import NO_DECODING, undecoded
from engine.core.child import Frame
from engine.core.errors import InvalidRequest
from engine.core.types import FinishReason, Generation, Protocol, RecordLevel, Request
from engine.record.effective import Effective, LoopOwner, stated
from engine.record.foreign.requests import ForeignEngine, ForeignRecord, header_of, observed_trace, unanswered
from engine.record.foreign.steps import ForeignStep

M = TypeVar("M")


@dataclass(frozen=True, slots=True)
class ReadAnswer:
    """One answer, read: its tokens and their end, its text, its facts, and its steps with their numbers."""

    tokens: tuple[int, ...]
    reason: FinishReason
    text: str
    facts: Mapping[str, Any]
    record: ForeignRecord

    def generation(self, request: Request, observed: ForeignEngine, latency_us: int) -> Generation:
        """The generation of the request."""
        trace = observed_trace(header_of(request, observed, self.reason, self.facts), self.record)
        return Generation(request, self.tokens, self.reason, trace, self.text, latency_us, self.facts)


def end_of(request: Request, tokens: Sequence[int], eos_ids: Sequence[int]) -> FinishReason:
    """The end of an answer, by its last token."""
    last = tokens[-1]
    if last in eos_ids and not request.sampling.ignore_eos:
        return FinishReason.EOS
    return FinishReason.STOP if last in request.sampling.stop_token_ids else FinishReason.LENGTH


def decoded_facts(request: Request, tokens: Sequence[int], reason: FinishReason, target: LocalTarget) -> dict[str, Any]:
    """The text of the tokens, decoded a second time, without the token that ended the answer."""
    kept = tokens[:-1] if reason is FinishReason.EOS else tokens
    decoding = target.decoded(request.prompt, kept)
    return undecoded(NO_DECODING) if decoding is None else decoding.facts()


def single_steps(tokens: Sequence[int], rows: Any = None) -> tuple[ForeignStep, ...]:
    """A step for every token, with its row and without a draft: the engine names none."""
    return tuple(
        ForeignStep((), (token,), logits=None if rows is None else rows[at : at + 1]) for at, token in enumerate(tokens)
    )


def changed_options(given: Mapping[str, Any], kept: Mapping[str, Any]) -> Iterator[str]:
    """The options that the engine kept otherwise than they were set."""
    for name, value in given.items():
        same = value == kept.get(name) if isinstance(value, list) else near(value, kept.get(name))
        if not same:
            yield f"options: {name} was set to {value}, the engine has {kept.get(name)}"


def near(value: float | None, kept: Any) -> bool:
    """True if a number is the one that was set; engines keep numbers as floats."""
    if value is None or kept is None:
        return value is kept
    return abs(float(value) - float(kept)) <= 1e-6 * max(1.0, abs(float(value)))


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
    levels: ClassVar[Mapping[RecordLevel, Shown]] = SCORED

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

    def read(self, request: Request, frame: Frame, message: Mapping[str, Any]) -> ReadAnswer:
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
                read = self.read(request, answer, message)
                yield read.generation(request, self.observed(), answer.header["latency_us"])

    @property
    def rule(self) -> Protocol:
        """The rule that verifies."""
        return matching_rule(self.plan.protocol)

    @property
    def level(self) -> RecordLevel:
        """The level of its records."""
        return RecordLevel.TOKENS

    def evidence_level(self) -> int:
        """That of its record level."""
        return self.levels[self.level].level

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
            "evidence": {"level": self.evidence_level(), "problems": []},
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

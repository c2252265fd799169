"""One arm at an endpoint: several requests at once, each retried until it is answered or given up.

A request without an answer yields a generation too, with the reason in its record. A record has one step per token,
because an endpoint does not report which tokens one forward produced.

Several workers for one list of work, in its order; results arrive as they are ready.

The threads do not keep the process alive: a request in flight is abandoned when the user stops the run.
"""

from __future__ import annotations

import queue
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from typing import TYPE_CHECKING, Any, Final, Generic, TypeVar

from engine.backends.engine_spec import EngineSpec
from engine.backends.interface import Prompt
from engine.backends.openai.client import Endpoint
from engine.backends.openai.decoding import TextSource, decoded_facts, rules_of
from engine.backends.openai.errors import AttemptError, FailureKind
from engine.backends.openai.facts import EndpointFacts, arm_facts, request_facts, switched
from engine.backends.openai.forms.counter_page import CounterPage
from engine.backends.openai.rate_limit import RateLimiter
from engine.backends.openai.request import SHARED, TEMPLATE, body_of, require_known
from engine.backends.openai.response import Completion
from engine.backends.openai.retry import RequestResult, RetryingClient
from engine.backends.openai.server_counters import SETTLE, change, counters, finished
from engine.backends.openai.settings import Api, OpenAISettings, Streaming, level_of, rule_of
from engine.backends.openai.surface import judged_facts
from engine.backends.openai.tokens import SCALED, Codec, TokenOrigin, finish_of, tokens_of
from engine.backends.openai.tool_calls import tool_facts
from engine.core.errors import CapacityError, InvalidRequest
from engine.core.registry import SERVICE_FAULTS, resolve
from engine.core.types import FinishReason, Generation, Protocol, RecordLevel, Request
from engine.faults.services import SOUND, ServiceFault
from engine.record.effective import Effective
from engine.record.facts import OTHER_PROMPT, VERSION_AFTER
from engine.record.foreign.requests import ForeignEngine, ForeignRecord, failed_trace, header_of, observed_trace
from engine.record.foreign.steps import ForeignStep

if TYPE_CHECKING:
    from engine.backends.local_target import LocalTarget

Item = TypeVar("Item")
Result = TypeVar("Result")


@dataclass(frozen=True, slots=True)
class _Done(Generic[Result]):
    result: Result | None
    error: BaseException | None = None


def results(work: Callable[[Item], Result], items: Sequence[Item], workers: int) -> Iterator[Result]:
    """Every item's result; an exception of the work is raised here, and the other results are lost."""
    todo: queue.SimpleQueue[Item] = queue.SimpleQueue()
    done: queue.SimpleQueue[_Done[Result]] = queue.SimpleQueue()
    for item in items:
        todo.put(item)

    def run() -> None:
        while True:
            try:
                item = todo.get_nowait()
            except queue.Empty:
                return
            try:
                done.put(_Done(work(item)))
            except BaseException as error:
                done.put(_Done(None, error))
                return

    for _ in range(min(workers, len(items))):
        threading.Thread(target=run, daemon=True).start()
    for _ in items:
        result = done.get()
        if result.error is not None:
            raise result.error
        assert result.result is not None
        yield result.result


NAME: Final = "openai"


@dataclass(frozen=True, slots=True)
class ArmParts:
    """The parts of an arm. `prompts` holds the encoded prompts by their tokens."""

    settings: OpenAISettings
    served: EndpointFacts
    codec: Codec
    prompts: dict[tuple[int, ...], Prompt] = field(default_factory=dict)


class OpenAIEngine:
    """One arm."""

    def __init__(self, plan: EngineSpec, parts: ArmParts) -> None:
        self._plan = plan
        self._parts = parts
        self._protocol = rule_of(plan.protocol, plain=not plan.proposer)
        self._fault: ServiceFault = resolve(SERVICE_FAULTS, plan.fault, "fault") if plan.fault else SOUND

    def evidence_level(self) -> int:
        """Log-probabilities if requested; a request with less evidence reports that itself."""
        return level_of(self._parts.settings)

    def effective_config(self) -> Effective:
        """The endpoint's own facts and the form of the requests."""
        return arm_facts(self._parts.settings, self._parts.served, self._plan, self._protocol, self._parts.codec.origin)

    def encode(self, prompt: Prompt) -> tuple[int, ...]:
        """The prompt's ids; the method stores the prompt by its ids, because the server receives the prompt itself."""
        shared = self._parts.settings.body.get(TEMPLATE, {})
        prompt = replace(prompt, template={**shared, **prompt.template}) if shared else prompt
        ids = self._parts.codec.encode(prompt)
        if self._parts.prompts.setdefault(ids, prompt) != prompt:
            raise InvalidRequest("two prompts differ and have the same tokens; remove one of them")
        return ids

    def require(self, requests: Sequence[Request]) -> None:
        """Check parameters, lengths, and whether the route accepts the prompt.

        Raises:
            InvalidRequest: a parameter that the server does not know, or a prompt that the route does not accept.
            CapacityError: a request that does not fit the server's context.
        """
        settings, served = self._parts.settings, self._parts.served
        for request in requests:
            name, prompt = f"request {request.id}", self._parts.prompts[request.prompt]
            require_known(settings, name, request.sampling)
            if settings.api is Api.CHAT and prompt.text is not None:
                raise InvalidRequest(f"{name}: raw text on the chat route; set engine.api to completions")
            if settings.api is not Api.CHAT and prompt.text is None and self._ids(request) is None:
                problem = f"{name}: a chat on the {settings.api} route needs the target's own template"
                raise InvalidRequest(f"{problem}; name the target's folder, or set engine.api to chat")
            if settings.stream is Streaming.BOTH and not request.sampling.greedy:
                raise InvalidRequest(f"{name}: stream both compares two answers, which needs temperature 0")
            needed = len(request.prompt) + request.sampling.max_new_tokens
            if served.context is not None and self._ids(request) is not None and needed > served.context:
                raise CapacityError(
                    f"{name}: prompt of {len(request.prompt)} tokens and max_new_tokens "
                    f"{request.sampling.max_new_tokens} exceed the server's context of {served.context}; "
                    "shorten the prompt or lower max_new_tokens"
                )

    def memory(self) -> None:
        """None: a server's state between requests is unknown."""

    def forget(self) -> None:
        """The backend itself keeps no state."""

    def generate(self, requests: Sequence[Request]) -> Iterator[Generation]:
        """Send the requests; the facts of the last generation hold the change of the server's counters."""
        if not requests:
            return
        self.require(requests)
        rate_limiter = RateLimiter(self._parts.settings.requests_per_minute)
        endpoint = Endpoint(self._parts.settings)
        asking = RetryingClient(self._parts.settings, endpoint, rate_limiter, self._fault)
        try:
            page = CounterPage(endpoint.aside, self._parts.settings.metrics if self._parts.served.counters else ())
            before, drafted = page.read(), 0
            last: _PendingRecord | None = None
            for done in results(partial(self._one, asking), requests, self._plan.rows):
                if last is not None:
                    yield last.generation({})
                last, drafted = done, drafted + done.drafted
            assert last is not None
            yield last.generation(self._afterwards(endpoint, page, before, len(requests), drafted))
        finally:
            rate_limiter.stop()
            endpoint.close()

    def _afterwards(
        self, endpoint: Endpoint, page: CounterPage, before: str, sent: int, drafted: int
    ) -> dict[str, Any]:
        """The server's pages once every request is answered; its counters may lag behind its answers."""
        after = page.read()
        for seconds in SETTLE:
            if change(counters(before), counters(after)).get("drafted", drafted) >= drafted:
                break
            time.sleep(seconds)
            after = page.read()
        grown = {**change(counters(before), counters(after)), "requests": sent, **finished(before, after)}
        counted = {"server_counters": grown} if counters(after) else {}
        if self._parts.settings.baseline_body:
            counted |= switched(self._plan.proposer is not None, drafted, counted.get("server_counters", {}), sent)
        return counted | ({} if self._parts.served.version is None else {VERSION_AFTER: endpoint.version()})

    def _one(self, asking: RetryingClient, request: Request) -> _PendingRecord:
        settings, served = self._parts.settings, self._parts.served
        salt = SHARED if self._plan.proposer is None or self._protocol is Protocol.GUMBEL else "candidate"
        prompt = self._parts.prompts[request.prompt]
        more = settings.baseline_body if self._plan.proposer is None else {}
        body = body_of(settings, served.model, prompt, self._ids(request), request, salt, more)
        asked = asking.leave(body, request.leaves_after) if request.leaves_after else asking.ask(request.id, body)
        observed = ForeignEngine(
            vocabulary=self._parts.codec.vocabulary,
            eos_ids=self._parts.codec.eos_ids,
            protocol=self._protocol,
            proposer=self._plan.proposer or "plain",
            level=RecordLevel.TOKENS,
        )
        if asked.answer is None:
            return _unread(request, observed, asked, asked.attempt_error)
        return self._read(request, observed, asked, asked.answer)

    def _read(
        self, request: Request, observed: ForeignEngine, asked: RequestResult, answer: Completion
    ) -> _PendingRecord:
        codec = self._parts.codec
        reason = finish_of(answer, request, codec)
        if reason is None:
            kind = FailureKind.REFUSED if answer.finish == "content_filter" else FailureKind.HTTP
            attempt_error = AttemptError(
                kind, f"the server ended the answer for the reason {answer.finish[:60]!r}", again=False
            )
            return _unread(request, observed, asked, attempt_error)
        read = tokens_of(answer, codec, reason)
        if self._parts.settings.dialect.scaled and request.sampling.temperature not in (0.0, 1.0):
            read = replace(read, logprob=(), lead=(), less=SCALED)
        if any(token >= codec.vocabulary for token in read.tokens) and read.origin is not TokenOrigin.CHARACTERS:
            told = f"token {max(read.tokens)} is not in the target's vocabulary of {codec.vocabulary}"
            attempt_error = AttemptError(FailureKind.MALFORMED, told, again=False)
            return _unread(request, observed, asked, attempt_error)
        local = self._parts.settings.api is Api.CHAT and self._ids(request) is not None
        facts = request_facts(
            self._parts.settings, request.sampling, asked, answer, read, request.prompt if local else None
        )
        ours = self._ids(request)
        if ours is not None and _other_prompt(ours, answer):
            facts[OTHER_PROMPT] = True
        facts |= tool_facts(self._parts.settings, request, asked, answer)
        facts |= judged_facts(request.sampling.structured, answer)
        rules = rules_of(self._parts.settings)
        facts |= decoded_facts(TextSource(request, answer, asked.streamed, read, codec, rules))
        lead = read.lead if request.sampling.plain_scores else ()
        steps = tuple(ForeignStep((), (token,)) for token in read.tokens)
        said = _AnswerText(ForeignRecord(steps, read.logprob, lead), reason, answer.text)
        return _PendingRecord(request, observed, facts, said, asked.latency_us)

    def _ids(self, request: Request) -> tuple[int, ...] | None:
        """The prompt's tokens if they are the target's own."""
        return None if self._parts.codec.origin is TokenOrigin.CHARACTERS else request.prompt


def _other_prompt(ours: Sequence[int], answer: Completion) -> bool:
    """True if the server names other ids for the prompt, or else another number of them."""
    if answer.prompt_ids is not None:
        return tuple(answer.prompt_ids) != tuple(ours)
    count = answer.usage.get("prompt_tokens")
    return isinstance(count, int) and count not in (0, len(ours))


@dataclass(frozen=True, slots=True)
class _AnswerText:
    told: ForeignRecord
    reason: FinishReason
    text: str


@dataclass(frozen=True, slots=True)
class _PendingRecord:
    """Each answer, or None, before its record is made, because the last one's facts are extended."""

    request: Request
    observed: ForeignEngine
    facts: Mapping[str, Any]
    text: _AnswerText | None
    latency_us: int

    @property
    def drafted(self) -> int:
        """Drafted tokens by the answer's own account."""
        return int(self.facts.get("speculation", {}).get("drafted", 0))

    def generation(self, more: Mapping[str, Any]) -> Generation:
        facts = {**self.facts, **more}
        if self.text is None:
            trace = failed_trace(header_of(self.request, self.observed, FinishReason.ERROR, facts))
            return Generation(self.request, (), FinishReason.ERROR, trace, "", self.latency_us, facts)
        result = self.text
        header = header_of(self.request, self.observed, result.reason, facts)
        tokens = tuple(step.emitted[0] for step in result.told.steps)
        trace = observed_trace(header, result.told)
        return Generation(self.request, tokens, result.reason, trace, result.text, self.latency_us, facts)


def _unread(
    request: Request, observed: ForeignEngine, asked: RequestResult, error: AttemptError | None
) -> _PendingRecord:
    """Of a request without an answer, or with one that cannot be read."""
    return _PendingRecord(request, observed, replace(asked, attempt_error=error).facts(), None, asked.latency_us)


class AnchoredEngine(OpenAIEngine):
    """The same with local target files for the reference pass."""

    def __init__(self, plan: EngineSpec, parts: ArmParts, target: LocalTarget) -> None:
        super().__init__(plan, parts)
        self._target = target

    def anchor_config(self) -> Effective:
        """The pass; opens the reference."""
        return self._target.anchor_config(NAME, self._plan)

    def anchor(self, request: Request, tokens: Sequence[int]) -> Generation:
        """The reference's rows on `tokens`."""
        return self._target.anchor(request, tokens, self._plan)

"""Sends a batch of requests to an engine until each has an answer or a failure reason.

A dead engine is restarted, and each request that was in flight is retried alone: a request that kills the engine alone
has failed, the others continue. After a number of deaths the remaining requests fail with that reason.

The parent's side of one vLLM engine: an `EngineProcess` with the scheduler's log beside it.
"""

from collections import OrderedDict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Final

from engine.backends.process.engine_process import (
    EngineDied,
    EngineProcess,
    EngineProgram,
    Failure,
    Launch,
    interpreter,
)
from engine.backends.vllm.features import Asked, grouped, message_of
from engine.backends.vllm.options import VllmSettings, sampling_of
from engine.backends.vllm.spool import SchedulerLog, SpooledRows, SpooledStep, worker_steps
from engine.backends.vllm.worker_terms import CallTerms
from engine.core.types import Request

PROGRAM: Final = EngineProgram(
    module="engine.backends.vllm.driver",
    name="vLLM",
    package="vllm",
    target="venv-vllm",
    echoes=("EngineDead", "WorkerProc initialization failed"),
)
QUIET: Final = {"VLLM_NO_USAGE_STATS": "1", "TOKENIZERS_PARALLELISM": "false"}
"""Environment variables that disable the engine's usage reports."""


class VllmProcess(EngineProcess):
    """One running engine. Raises as `EngineProcess`."""

    def __init__(self, launch: Launch) -> None:
        super().__init__(PROGRAM, replace(launch, environment={**QUIET, **launch.environment}))

    @property
    def scheduler_log(self) -> SchedulerLog:
        """The log of the hook in the scheduler."""
        return self._scheduler_log

    def first_message(self) -> Mapping[str, Any]:
        """The job, with the places of the hooks' files."""
        self._scheduler_log = SchedulerLog(self.home / "scheduler.jsonl")
        job = dict(self._launch.job)
        ours = {"scheduler": str(self._scheduler_log.path), "script": job["script"]}
        return {**job, "arguments": {**job["arguments"], "additional_config": {"specaudit": ours}}}


@dataclass(frozen=True, slots=True)
class CallFacts:
    """The facts common to all requests of one call; `counters` is None if the engine died.

    name: that of its first request, unique in the arm.
    """

    counters: Mapping[str, int] | None = None
    problems: tuple[str, ...] = ()
    name: str = ""


@dataclass(frozen=True, slots=True)
class RequestOutcome:
    """One request: vLLM's answer with the hooks' records, or a failure."""

    request: Request
    failure: Failure | None = None
    answer: Mapping[str, Any] = field(default_factory=dict)
    worker: tuple[SpooledRows, ...] | None = None
    scheduler: tuple[SpooledStep, ...] | None = None


@dataclass(frozen=True, slots=True)
class CallOutcomes:
    """The outcomes of one call."""

    call: CallFacts
    outcomes: tuple[RequestOutcome, ...]
    died: EngineDied | None = None


class EnginePool:
    """The running engines, a few at once; facts outlive their engine.

    The most recently used engine is evicted: a run first reads all arms' configurations and then runs the arms in the
    same order, so the other engines are needed earlier.
    """

    def __init__(self) -> None:
        self._running: OrderedDict[str, VllmProcess] = OrderedDict()
        self._facts: dict[str, Mapping[str, Any]] = {}

    def knows(self, setting: VllmSettings) -> bool:
        """True if the engine has been started before."""
        return setting.key in self._facts

    def facts(self, setting: VllmSettings) -> Mapping[str, Any]:
        """The engine's facts from its first start; starts it if it never ran."""
        if setting.key not in self._facts:
            self.engine(setting)
        return self._facts[setting.key]

    def engine(self, setting: VllmSettings) -> VllmProcess:
        """A running engine. Raises EngineError: it cannot be started."""
        if setting.key not in self._running:
            while len(self._running) >= setting.engines:
                self._running.popitem()[1].close()
            started = VllmProcess(_launch(setting))
            self._running[setting.key] = started
            self._facts.setdefault(setting.key, started.facts)
        self._running.move_to_end(setting.key)
        return self._running[setting.key]

    def drop(self, setting: VllmSettings) -> None:
        """End all remaining processes of a dead engine."""
        running = self._running.pop(setting.key, None)
        if running is not None:
            running.close()

    def close(self) -> None:
        """End all of them."""
        while self._running:
            self._running.popitem()[1].close()


def _launch(setting: VllmSettings) -> Launch:
    runners = {"v1": "0", "v2": "1"}
    chosen = runners.get(setting.job["model_runner"])
    environment = {} if chosen is None else {"VLLM_USE_V2_MODEL_RUNNER": chosen}
    return Launch(
        interpreter(setting.python, PROGRAM.name), setting.job, setting.start_s, setting.silence_s, environment
    )


class GenerateCall:
    """One `generate`: its engine, its settings, and the deaths so far.

    Args:
        pool: where engines run.
        setting: which one.
        kept: what is kept of rows: nothing, the rows, or what the worker reduces them to.
        width: requests in flight at once.
    """

    def __init__(self, pool: EnginePool, setting: VllmSettings, kept: CallTerms, width: int) -> None:
        self._pool = pool
        self._setting = setting
        self._kept = kept
        self._width = width
        self._calls = 0
        self._deaths = 0
        self._cause = ""

    def ask(self, requests: Sequence[Request]) -> Iterator[CallOutcomes]:
        """Batches of outcomes, together one for every request.

        Raises:
            EngineError: the engine cannot be started again.
        """
        left, alone = list(requests), 0
        while left:
            if self._deaths > self._setting.restarts:
                yield CallOutcomes(CallFacts(), tuple(RequestOutcome(item, self._given_up()) for item in left))
                return
            batch = self._call(left[:1] if alone else left)
            answered = {outcome.request.id for outcome in batch.outcomes}
            left = [item for item in left if item.id not in answered]
            if batch.died is not None and alone:
                failure = Failure("timeout" if batch.died.timeout else "engine_died", str(batch.died))
                outcomes = (*batch.outcomes, RequestOutcome(left.pop(0), failure))
                batch = CallOutcomes(batch.call, outcomes, batch.died)
            # requests are admitted in order, so the first ones were in flight
            alone = max(0, alone - 1) if alone else min(self._width, len(left)) if batch.died else 0
            yield batch

    def _given_up(self) -> Failure:
        return Failure("not_tried", f"not tried: the engine died {self._deaths} times, the last time of: {self._cause}")

    def _call(self, requests: Sequence[Request]) -> CallOutcomes:
        """Send the requests once; answers from before the engine's death count."""
        engine = self._pool.engine(self._setting)
        self._calls += 1
        asked = grouped(requests, self._setting.terms, self._calls)
        names = {name: request for item in asked for name, request in item.by_answer().items()}
        spool = engine.home / f"worker-{self._calls}"
        said: dict[str, Mapping[str, Any]] = {}
        first = requests[0].id
        call, died = CallFacts(name=first), None
        try:
            for answer in engine.ask(self._message(asked, str(spool), names)):
                if answer["op"] == "done":
                    # samples that nobody asked for are counted too
                    complete = all(len(item.requests) == item.samples for item in asked)
                    call = CallFacts(answer["counters"] if complete else {}, tuple(answer["problems"]), first)
                elif answer["id"] in names:
                    said[answer["id"]] = answer
        except EngineDied as error:
            died = error
            self._deaths += 1
            self._cause = str(error)
        worker, scheduler = _named(worker_steps(spool)), _named(engine.scheduler_log.steps())
        spool.unlink(missing_ok=True)
        if died is not None:
            self._pool.drop(self._setting)
        outcomes = (
            _outcome(names[name], answer, worker.get(name), scheduler.get(name)) for name, answer in said.items()
        )
        return CallOutcomes(call, tuple(outcomes), died)

    def _message(self, asked: Sequence[Asked], spool: str, names: Mapping[str, Request]) -> dict[str, Any]:
        terms = self._setting.terms
        requests = [message_of(item, terms, sampling_of(item.requests[0], self._setting.logprobs)) for item in asked]
        return {
            **({"prefix": terms.settings["prefix"]} if "prefix" in terms.settings else {}),
            "op": "generate",
            "spool": spool,
            **self._kept.message(names),
            "together": self._width > 1,
            "requests": requests,
        }


def _named(steps: Mapping[str, Any]) -> dict[str, Any]:
    """By our names: vLLM puts a dash and eight random letters behind them."""
    return {name.rpartition("-")[0]: item for name, item in steps.items()}


def _outcome(
    request: Request, answer: Mapping[str, Any], worker: list[SpooledRows] | None, scheduler: list[SpooledStep] | None
) -> RequestOutcome:
    if answer["op"] == "refused":
        return RequestOutcome(request, Failure("refused", answer["message"]))
    if answer["finish_reason"] not in ("stop", "length"):
        return RequestOutcome(
            request, Failure("malformed", f"vLLM ended it with finish reason {answer['finish_reason']}")
        )
    return RequestOutcome(
        request,
        None,
        answer,
        None if worker is None else tuple(worker),
        None if scheduler is None else tuple(scheduler),
    )

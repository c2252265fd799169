"""A model inside an evaluation: one run of the store, whose requests are the evaluation's.

An answer is given once its record is in the store. A request without a seed gets one from its content, and from how
often the same was asked before, so two evaluations over the same samples draw the same random numbers. The options of a
plug-in are those of `audit serve`, by name, with values of any type, as harnesses pass them.
"""

import asyncio
import atexit
import hashlib
import json
import math
import os
import threading
from collections import Counter
from collections.abc import Mapping, Sequence
from concurrent.futures import Future
from contextlib import ExitStack
from dataclasses import dataclass
from typing import Any, Final

from audit.errors import CannotDecide, UserError
from audit.serve.completion_id import new_ids, request_name
from audit.serve.completion_task import CompletionTask
from audit.serve.limits import GAMMA, ServeLimits
from audit.serve.opened_arm import ServedSource, ServeWish, open_arm
from audit.serve.refusals import ApiRefusal
from audit.serve.request_parser import MOST_DOMAIN, read_chat, read_completion
from audit.serve.serving_run import serving_run
from audit.store import Store
from audit.store.base.connection import default_url
from audit.text.printer import report
from engine.backends.interface import Prompt
from engine.core.errors import EngineError
from engine.core.types import RecordLevel, Request, SamplingParams
from engine.record.trace import decode

ALL: Final = 2**31
"""An evaluation asks for everything at once, and waits for as long as it takes."""


@dataclass(frozen=True, slots=True)
class RecordedAnswer:
    """An answer as a document of OpenAI's API, and the name of its record."""

    document: Mapping[str, Any]
    record: Mapping[str, str]
    """Run, arm and request, and the store that has them."""


@dataclass(frozen=True, slots=True)
class RecordedScore:
    """Log-probability of a given text by the target alone, in nats.

    greedy: every token is the likeliest one.
    """

    logprob: float
    greedy: bool
    record: Mapping[str, str]


class AwaitedRecords:
    """Records that somebody waits for, by the engine's names of their requests.

    An `audit.serve.serving_run.RecordWatcher`; any thread may call.
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._awaited: dict[str, Future[None]] = {}
        self._lost: str | None = None

    def expect(self, request: str) -> Future[None]:
        """Is done once the record is in the store; raises CannotDecide if none is written any more."""
        with self._lock:
            if self._lost is not None:
                raise CannotDecide(self._lost)
            self._awaited[request] = awaited = Future[None]()
        return awaited

    def forget(self, requests: Sequence[str]) -> None:
        """Nobody waits for these."""
        with self._lock:
            for request in requests:
                self._awaited.pop(request, None)

    def written(self, request: str) -> None:
        """A record is in the store."""
        with self._lock:
            awaited = self._awaited.pop(request, None)
        if awaited is not None and awaited.set_running_or_notify_cancel():
            awaited.set_result(None)

    def lost(self, why: str) -> None:
        """Nobody waits for ever."""
        with self._lock:
            self._lost, lost = why, [*self._awaited.values()]
            self._awaited.clear()
        for awaited in lost:
            if awaited.set_running_or_notify_cancel():
                awaited.set_exception(CannotDecide(why))


class RecordedModel:
    """A model that is open until `close`, at the latest until the process ends."""

    def __init__(self, wish: ServeWish, store: str, *, context: int | None = None, seed: int = 0) -> None:
        """Load the models and begin the run.

        Raises:
            UserError: a model cannot be loaded, or the store cannot be opened.
            CannotDecide: a numerics mode that does not hold on this machine.
        """
        self._seed, self._asked = seed, Counter[str]()
        self._records = AwaitedRecords()
        opened = open_arm(wish, scoring=True)
        self._sizes = sizes = opened.serving.sizes()
        if context is not None and context > sizes.context:
            raise UserError(f"context={context}: the model's is {sizes.context}; name at most that")
        self._opened, self.context = opened, context or sizes.context
        self.name = wish.models["target"].source
        self._limits = ServeLimits(self.context, self.context, queue=ALL, seconds=math.inf)
        with ExitStack() as stack:
            place = stack.enter_context(Store.open(store, create=True))
            started = serving_run(opened, self.name, self._limits, place, report, self._records)
            self._run = stack.enter_context(started)
            self.store = place.url
            self._stack = stack.pop_all()
        self._ids = new_ids(self._run.ulid)
        atexit.register(self.close)

    @property
    def facts(self) -> Mapping[str, str]:
        """Run, arm and store, and the arm of texts that are scored."""
        scoring = self._opened.scoring
        scored = {"scoring_arm": scoring.name} if scoring else {}
        return {"run": self._run.ulid, "arm": self._opened.wish.name, **scored, "store": self.store}

    @property
    def rows(self) -> int:
        """How many requests are decoded at once."""
        return self._opened.wish.plan.rows

    @property
    def end(self) -> int:
        """The token that ends an answer, which also stands for an empty context; 0 for a model without one."""
        return next(iter(self._sizes.eos_ids), 0)

    def close(self) -> None:
        """Let running requests end, write their records and close the run; once is enough.

        Raises:
            CannotDecide: a record could not be written.
        """
        atexit.unregister(self.close)
        self._stack.close()

    def encode(self, text: str) -> tuple[int, ...]:
        """A raw text's tokens; none for an empty one."""
        return self._opened.engine.encode(Prompt(text=text))

    async def answer(self, body: Mapping[str, Any], domain: str, *, chat: bool) -> RecordedAnswer:
        """Answer the body of a request of OpenAI's API.

        Raises:
            UserError: the request is refused.
            CannotDecide: the answer could not be recorded.
        """
        completion = self._ids(chat)
        try:
            asked = (read_chat if chat else read_completion)(self._complete(body, domain), self.name, self._limits)
            requests = self._run.model.requests(completion, asked)
            task = CompletionTask(self._run.model, self._run.batch, asked, completion, requests)
            document = await self._recorded(task, [request.id for request in requests])
        except ApiRefusal as refusal:
            raise UserError(f"{domain}: {refusal.message}") from refusal
        return RecordedAnswer(document, self._record(self._opened.wish.name, completion))

    async def _recorded(self, task: CompletionTask, names: Sequence[str]) -> Mapping[str, Any]:
        """The answer, once its records are in the store."""
        pending = [self._records.expect(name) for name in names]
        task.start()
        try:
            document = await task.whole()
            await asyncio.gather(*map(asyncio.wrap_future, pending))
            return document
        finally:
            task.leave()
            self._records.forget(names)

    def score(self, context: Sequence[int], continuation: Sequence[int], domain: str) -> RecordedScore:
        """Score given tokens with the target alone: it reads them, and nothing is drafted.

        Raises:
            UserError: they do not fit the context, or the backend reads no given tokens.
            CannotDecide: the record could not be written.
        """
        scoring = self._opened.scoring
        if scoring is None:
            raise UserError(f"{self.name}: its backend reads no given tokens, so it cannot score a continuation")
        completion = self._ids(False)
        name = request_name(completion, 0)
        try:
            request = Request(name, tuple(context), SamplingParams(max_new_tokens=len(continuation)))
            generation = scoring.reading.reread(request, tuple(continuation))
        except EngineError as error:
            raise UserError(f"{domain}: {error}") from error
        written = self._records.expect(name)
        self._run.records.add(domain, generation, scoring.name)
        written.result()
        trace = decode(generation.trace)
        greedy = bool((trace.top_id[:, 0] == trace.token).all())
        return RecordedScore(float(trace.logprob.sum()), greedy, self._record(scoring.name, completion))

    def _complete(self, body: Mapping[str, Any], domain: str) -> dict[str, Any]:
        """The body with its domain and, if it names none, its seed."""
        given = {**body, "metadata": {"domain": domain[:MOST_DOMAIN]}}
        if given.get("seed") is None:
            content = json.dumps(body, sort_keys=True)
            key = f"{self._seed}/{self._asked[content]}/{content}"
            self._asked[content] += 1
            given["seed"] = int.from_bytes(hashlib.sha256(key.encode()).digest()[:7])
        return given

    def _record(self, arm: str, completion: str) -> Mapping[str, str]:
        return {"run": self._run.ulid, "arm": arm, "request": completion, "store": self.store}


TEXTS: Final[Mapping[str, str | None]] = {
    "model": None,
    "draft": None,
    "proposer": None,
    "arm": None,
    "record": "scalars",
    "store": None,
}
LEVELS: Final = tuple(level.value for level in RecordLevel)
NUMBERS: Final[Mapping[str, int | None]] = {"gamma": GAMMA, "rows": None, "context": None, "seed": 0, "threads": 1}
SWITCH: Final = "speculation"
"""`off` decodes with the target alone."""


def recorded_model(given: Mapping[str, Any]) -> RecordedModel:
    """Open the model that the options describe. Raises UserError: an unknown option, or a value that is none."""
    known = (*TEXTS, *NUMBERS, SWITCH)
    unknown = [name for name in given if name not in known]
    if unknown:
        raise UserError(f"no option {unknown[0]!r}; there are: {', '.join(known)}")
    texts = {name: given.get(name, usual) for name, usual in TEXTS.items()}
    numbers = {name: _number(name, given.get(name, usual)) for name, usual in NUMBERS.items()}
    if not texts["model"]:
        raise UserError("no model; name it: model=bundled:target, or a folder, hf:ORG/NAME or a suite")
    import torch

    torch.set_num_threads(numbers["threads"] or 1)
    source = ServedSource(
        texts["model"],
        texts["draft"],
        texts["proposer"],
        numbers["gamma"] or GAMMA,
        texts["arm"],
        numbers["rows"],
        _level(texts["record"]),
    )
    wish = source.wish() if _switch(given.get(SWITCH, True)) else source.wish().without_speculation()
    store = texts["store"] or os.environ.get("AUDIT_STORE") or default_url()
    return RecordedModel(wish, store, context=numbers["context"], seed=numbers["seed"] or 0)


def _level(word: str | None) -> str:
    if word not in LEVELS:
        raise UserError(f"record={word}: write one of {', '.join(LEVELS)}")
    return str(word)


def _number(name: str, value: Any) -> int | None:
    """A whole number, also as a text."""
    if value is None:
        return None
    try:
        number = int(str(value))
    except ValueError:
        raise UserError(f"{name}={value}: not a whole number") from None
    if number < (0 if name == "seed" else 1):
        raise UserError(f"{name}={value}: too small")
    return number


def _switch(value: Any) -> bool:
    """On or off, also as a truth value, which YAML makes of these words."""
    known = {"on": True, "true": True, "off": False, "false": False}
    word = str(value).lower()
    if word not in known:
        raise UserError(f"{SWITCH}={value}: write on or off")
    return known[word]

"""From a parsed request to its answer: queue the choices, then gather or stream what comes."""

import time
from collections.abc import AsyncIterator, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any, Final

import orjson

from audit.serve.documents import AnswerForm
from audit.serve.events import ChoiceEnd, ChoiceStep, Inbox, TokenScore
from audit.serve.refusals import ApiRefusal
from audit.serve.request_parser import AskedCompletion
from audit.serve.running_batch import RunningBatch, Ticket
from audit.serve.served_model import ServedModel
from engine.core.types import Request
from engine.stream.holding import settled

DONE: Final = b"data: [DONE]\n\n"


@dataclass(slots=True)
class StreamedChoice:
    """A choice so far, and how much of it has been sent."""

    request: Request
    tokens: list[int] = field(default_factory=list)
    scores: list[TokenScore] = field(default_factory=list)
    text: str = ""
    """The text that was sent."""
    sent: int = 0
    """How many tokens were sent."""

    def take(self, step: ChoiceStep) -> None:
        """Take the tokens of a step."""
        self.tokens += step.tokens
        self.scores += step.scores

    def piece(self, text: str) -> str:
        """The part of the text that has not been sent, which is sent now."""
        piece = text[len(self.text) :]
        self.text += piece
        return piece

    def rest(self) -> tuple[list[TokenScore], list[int]]:
        """Scores and tokens that have not been sent, which are sent now."""
        first, self.sent = self.sent, len(self.tokens)
        return self.scores[first:], self.tokens[first:]


class CompletionTask:
    """One completion on its way; `tickets` are its choices."""

    def __init__(
        self,
        model: ServedModel,
        batch: RunningBatch,
        asked: AskedCompletion,
        completion: str,
        requests: Sequence[Request],
    ) -> None:
        self._model, self._batch, self._asked = model, batch, asked
        self._form = AnswerForm(model, asked, completion, int(time.time()))
        self._requests = requests
        self._inbox = Inbox()
        follow = asked.stream or asked.top is not None
        deadline = time.perf_counter() + model.limits.seconds
        self._tickets = [
            Ticket(request, choice, asked.domain, self._inbox, follow, asked.top, deadline)
            for choice, request in enumerate(requests)
        ]

    def start(self) -> None:
        """Queue the choices; raises ApiRefusal as `RunningBatch.submit`."""
        self._batch.submit(self._tickets)

    def leave(self) -> None:
        """Free the rows of the choices that have not ended."""
        self._batch.leave(self._tickets)

    async def whole(self) -> dict[str, Any]:
        """The document of the whole answer; raises ApiRefusal."""
        ends: dict[int, ChoiceEnd] = {}
        scores: list[list[TokenScore]] = [[] for _ in self._requests]
        while len(ends) < len(self._requests):
            event = await self._inbox.get()
            if isinstance(event, ChoiceEnd):
                ends[event.choice] = event
            elif isinstance(event, ChoiceStep):
                scores[event.choice] += event.scores
        return self._form.whole([ends[choice] for choice in sorted(ends)], scores)

    async def parts(self) -> AsyncIterator[bytes]:
        """The lines of a stream; an error after its beginning is its last part."""
        try:
            async for document in self._documents():
                yield sse(document)
        except ApiRefusal as refusal:
            yield sse(refusal.document())
        yield DONE

    async def _documents(self) -> AsyncIterator[dict[str, Any]]:
        choices = [StreamedChoice(request) for request in self._requests]
        ends: dict[int, ChoiceEnd] = {}
        for choice in range(len(choices)):
            for first in self._first(choice):
                yield first
        while len(ends) < len(choices):
            event = await self._inbox.get()
            if isinstance(event, ChoiceStep):
                for part in self._step(choices[event.choice], event):
                    yield part
            elif isinstance(event, ChoiceEnd):
                ends[event.choice] = event
                for last in self._end(choices[event.choice], event):
                    yield last
        if self._asked.usage_at_end:
            yield self._form.last([ends[choice] for choice in sorted(ends)])

    def _first(self, choice: int) -> Iterator[dict[str, Any]]:
        """The role, which begins each choice of a chat; the prompt's tokens where they are asked for."""
        prompt = list(self._requests[choice].prompt)
        ids = {"prompt_token_ids": prompt} if self._asked.token_ids else {}
        bare = {"index": choice, "finish_reason": None, "logprobs": None}
        if self._asked.chat:
            yield self._form.part({**bare, "delta": {"role": "assistant", "content": ""}}, **ids)
        elif ids:
            yield self._form.part({**bare, "text": "", **ids})

    def _step(self, choice: StreamedChoice, step: ChoiceStep) -> Iterator[dict[str, Any]]:
        """The chunk of a step. Text that may belong to a call waits for the end, and so does the last step's, which a
        stop string may cut.
        """
        choice.take(step)
        if step.last or self._form.reads_calls:
            return
        text = step.text
        if text is None:
            text = settled(self._model.tokens.decode(choice.tokens), choice.request.sampling.stop)
        piece = choice.piece(text)
        if piece or step.scores or self._asked.token_ids:
            yield self._form.part(self._form.delta(step.choice, piece, *choice.rest()))

    def _end(self, choice: StreamedChoice, end: ChoiceEnd) -> Iterator[dict[str, Any]]:
        """The rest of a choice, its calls, and why it ended."""
        spoken = self._form.spoken(end)
        piece = choice.piece(spoken.content)
        scores, tokens = choice.rest()
        if piece or scores or (tokens and self._asked.token_ids):
            yield self._form.part(self._form.delta(end.choice, piece, scores, tokens))
        for at, call in enumerate(self._form.calls(spoken.calls)):
            said = {"index": end.choice, "delta": {"tool_calls": [{"index": at, **call}]}, "finish_reason": None}
            yield self._form.part({**said, "logprobs": None})
        bare: dict[str, Any] = {"delta": {}} if self._asked.chat else {"text": ""}
        yield self._form.part({"index": end.choice, **bare, "logprobs": None, **self._form.ending(end, spoken.reason)})


def sse(document: Any) -> bytes:
    """One event of a stream."""
    return b"data: " + orjson.dumps(document) + b"\n\n"

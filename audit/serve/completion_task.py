"""From a parsed request to its answer: queue the choices, then gather or stream what comes.

Answers have OpenAI's form, whole or in parts, on both routes. vLLM's additions are there where they were asked for
(token ids), or where the server drafts (counts of drafts).
"""

import time
from collections.abc import AsyncIterator, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final

import orjson

from audit.serve.events import ChoiceEnd, ChoiceStep, DraftAccount, Inbox, TokenScore
from audit.serve.refusals import ApiRefusal
from audit.serve.request_parser import AskedCompletion, written
from audit.serve.running_batch import RunningBatch, Ticket
from audit.serve.served_model import ServedModel
from engine.core.types import FinishReason, Request
from engine.decode.call_reader import is_read
from engine.record.tool_calls import CallParser, ParsedCall
from engine.stream.holding import settled

DONE: Final = b"data: [DONE]\n\n"
ENDS: Final[Mapping[FinishReason, str]] = {
    FinishReason.EOS: "stop",
    FinishReason.STOP: "stop",
    FinishReason.LENGTH: "length",
    FinishReason.FILTER: "content_filter",
}


@dataclass(frozen=True, slots=True)
class SpokenAnswer:
    """An answer as its reader sees it: content and calls."""

    content: str
    calls: tuple[ParsedCall, ...]
    reason: str


class AnswerForm:
    """The documents of one completion."""

    def __init__(self, model: ServedModel, asked: AskedCompletion, completion: str, created: int) -> None:
        self._model, self._asked = model, asked
        self._head = {"id": completion, "created": created, "model": model.name}
        self._head |= {"system_fingerprint": model.fingerprint}
        self._kind = "chat.completion" if asked.chat else "text_completion"

    @property
    def reads_calls(self) -> bool:
        """True if calls are looked for in the text."""
        return is_read(self._asked.tools, self._model.tokens.template)

    def spoken(self, end: ChoiceEnd) -> SpokenAnswer:
        """The answer; calls are read out of its text where the request offers tools."""
        generation, reason = end.generation, ENDS[end.generation.finish_reason]
        if not self.reads_calls:
            return SpokenAnswer(generation.text, (), reason)
        assert self._asked.tools is not None
        parser = CallParser(self._model.tokens.template or {}, self._asked.tools)
        parser.feed(generation.text)
        parsed = parser.finish()
        if not parsed.calls:
            return SpokenAnswer(generation.text, (), reason)
        return SpokenAnswer(parser.content, parsed.calls, "tool_calls" if reason == "stop" else reason)

    def whole(self, ends: Sequence[ChoiceEnd], scores: Sequence[Sequence[TokenScore]]) -> dict[str, Any]:
        """The document of an answer that is not streamed; `ends` and `scores` by choice."""
        choices = [self._whole_choice(end, score) for end, score in zip(ends, scores, strict=True)]
        document = {**self._head, "object": self._kind, "choices": choices, "usage": self.usage(ends)}
        if self._asked.chat and self._asked.token_ids:
            document["prompt_token_ids"] = list(ends[0].generation.request.prompt)
        return document | self._extra(ends)

    def _whole_choice(self, end: ChoiceEnd, scores: Sequence[TokenScore]) -> dict[str, Any]:
        generation = end.generation
        said: dict[str, Any] = {}
        if self._asked.chat:
            spoken = self.spoken(end)
            message: dict[str, Any] = {"role": "assistant", "content": spoken.content, "refusal": None}
            if spoken.calls:
                message |= {"content": spoken.content or None, "tool_calls": self.calls(spoken.calls)}
            said, reason = {"message": message}, spoken.reason
        else:
            said, reason = {"text": generation.text}, ENDS[generation.finish_reason]
        choice = {"index": end.choice, **said, "logprobs": self.logprobs(scores), **self.ending(end, reason)}
        if self._asked.token_ids:
            choice["token_ids"] = list(generation.tokens)
            if not self._asked.chat:
                choice["prompt_token_ids"] = list(generation.request.prompt)
        return choice

    def part(self, choice: Mapping[str, Any], **more: Any) -> dict[str, Any]:
        """One chunk of a stream, with one choice."""
        return {**self._head, "object": self._chunk_kind, "choices": [choice], **more}

    def delta(self, choice: int, text: str, scores: Sequence[TokenScore], tokens: Sequence[int]) -> dict[str, Any]:
        """The part of a choice that a step adds."""
        said: dict[str, Any] = {"delta": {"content": text}} if self._asked.chat else {"text": text}
        ids = {"token_ids": list(tokens)} if self._asked.token_ids else {}
        return {"index": choice, **said, "logprobs": self.logprobs(scores), "finish_reason": None, **ids}

    def last(self, ends: Sequence[ChoiceEnd]) -> dict[str, Any]:
        """The chunk after all choices, with the usage."""
        return {**self._head, "object": self._chunk_kind, "choices": [], "usage": self.usage(ends)} | self._extra(ends)

    @property
    def _chunk_kind(self) -> str:
        return "chat.completion.chunk" if self._asked.chat else "text_completion"

    def ending(self, end: ChoiceEnd, reason: str) -> dict[str, Any]:
        """Why a choice ended; `stop_reason` is the stop string or token, as in vLLM."""
        return {"finish_reason": reason, "stop_reason": self._stop_reason(end)}

    def _stop_reason(self, end: ChoiceEnd) -> int | str | None:
        generation = end.generation
        sampling = generation.request.sampling
        if generation.finish_reason is not FinishReason.STOP:
            return None
        if generation.tokens[-1] in sampling.stop_token_ids:
            return generation.tokens[-1]
        # the answer's text ends where the stop string begins
        whole = self._model.tokens.decode(generation.tokens)
        return next((stop for stop in sampling.stop if whole.startswith(stop, len(generation.text))), None)

    def calls(self, calls: Sequence[ParsedCall]) -> list[dict[str, Any]]:
        """Calls of tools; their ids name the completion and the place."""
        return [
            {
                "id": f"call-{str(self._head['id']).rpartition('-')[2]}-{at}",
                "type": "function",
                "function": {"name": call.name, "arguments": written(call.arguments)},
            }
            for at, call in enumerate(calls)
        ]

    def usage(self, ends: Sequence[ChoiceEnd]) -> dict[str, int]:
        """Counts of tokens; a prompt counts once, however many answers it has."""
        prompts = sum(len(end.generation.request.prompt) for end in ends[:: self._asked.n])
        answers = sum(len(end.generation.tokens) for end in ends)
        return {"prompt_tokens": prompts, "completion_tokens": answers, "total_tokens": prompts + answers}

    def logprobs(self, scores: Sequence[TokenScore]) -> dict[str, Any] | None:
        """Log-probabilities in the form of the route; None where none were asked for."""
        if self._asked.top is None:
            return None
        if self._asked.chat:
            return {"content": [self._scored(score) for score in scores], "refusal": None}
        texts = [self._model.text_of(score.token) for score in scores]
        starts = [sum(map(len, texts[:at])) for at in range(len(texts))]
        tops = [{self._model.text_of(token): value for token, value in score.top} for score in scores]
        return {
            "tokens": texts,
            "token_logprobs": [score.logprob for score in scores],
            "top_logprobs": tops if self._asked.top else None,
            "text_offset": starts,
        }

    def _scored(self, score: TokenScore) -> dict[str, Any]:
        top = [self._valued(token, value) for token, value in score.top]
        return {**self._valued(score.token, score.logprob), "top_logprobs": top}

    def _valued(self, token: int, logprob: float) -> dict[str, Any]:
        return {
            "token": self._model.text_of(token),
            # JSON has no infinity; OpenAI writes this number for it
            "logprob": max(logprob, -9999.0),
            "bytes": list(self._model.bytes_of(token)),
        }

    def _extra(self, ends: Sequence[ChoiceEnd]) -> dict[str, Any]:
        drafted = len(ends) == 1 and any(ends[0].drafts.drafted)
        return {"metrics": {"speculative_decoding": _drafts(ends[0].drafts)}} if drafted else {}


def _drafts(account: DraftAccount) -> dict[str, Any]:
    """The account as vLLM has it with `--per-request-spec-decode-metrics detailed`; a step without a draft is none."""
    steps = [(drafted, kept) for drafted, kept in zip(account.drafted, account.accepted, strict=True) if drafted]
    drafted, accepted = [step[0] for step in steps], [step[1] for step in steps]
    return {
        "mean_acceptance_length": 1 + sum(accepted) / len(steps),
        "draft_acceptance_rate": sum(accepted) / sum(drafted),
        "acceptance_histogram": [accepted.count(kept) for kept in range(max(accepted) + 1)],
        "num_draft_tokens": sum(drafted),
        "num_accepted_draft_tokens": sum(accepted),
        "num_spec_steps": len(steps),
        "per_step_drafted": drafted,
        "per_step_accepted": accepted,
    }


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

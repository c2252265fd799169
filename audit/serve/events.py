"""Events of a choice from the engine's thread, and the inbox where an answer waits for them."""

import asyncio
from contextlib import suppress
from dataclasses import dataclass, field

from audit.serve.refusals import ApiRefusal
from engine.core.types import Generation


@dataclass(frozen=True, slots=True)
class TokenScore:
    """A token's log-probability by the target's row, at temperature 1, and the likeliest tokens of that row."""

    token: int
    logprob: float
    top: tuple[tuple[int, float], ...] = ()


@dataclass(frozen=True, slots=True)
class ChoiceStep:
    """Tokens of one step. `text` has left through filters so far; None where no filter decides."""

    choice: int
    tokens: tuple[int, ...]
    scores: tuple[TokenScore, ...]
    text: str | None
    last: bool


@dataclass(frozen=True, slots=True)
class DraftAccount:
    """Steps of a choice, and its drafted and accepted tokens by step."""

    drafted: list[int] = field(default_factory=list)
    accepted: list[int] = field(default_factory=list)


@dataclass(frozen=True, slots=True)
class ChoiceEnd:
    """A choice is complete."""

    choice: int
    generation: Generation
    drafts: DraftAccount


@dataclass(frozen=True, slots=True)
class ChoiceFailure:
    """A choice gets no answer."""

    choice: int
    refusal: ApiRefusal


ChoiceEvent = ChoiceStep | ChoiceEnd | ChoiceFailure


class Inbox:
    """The events of one request, from the engine's thread to the event loop's."""

    def __init__(self) -> None:
        self._loop = asyncio.get_running_loop()
        self._events: asyncio.Queue[ChoiceEvent] = asyncio.Queue()

    def put(self, event: ChoiceEvent) -> None:
        """Hand over an event, from any thread; nobody waits for it any more once the event loop is closed."""
        with suppress(RuntimeError):
            self._loop.call_soon_threadsafe(self._events.put_nowait, event)

    async def get(self) -> ChoiceEvent:
        """The next event. Raises ApiRefusal: a choice failed, so the request has no whole answer."""
        event = await self._events.get()
        if isinstance(event, ChoiceFailure):
            raise event.refusal
        return event

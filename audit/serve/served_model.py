"""The model of a server as the event loop needs it: its name, its tokenizer, requests that the engine accepts."""

import secrets
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import cached_property

from audit.serve.completion_id import request_name
from audit.serve.limits import ServeLimits
from audit.serve.refusals import ApiRefusal, invalid
from audit.serve.request_parser import AskedCompletion
from engine.backends.interface import Engine, Prompt, PromptTokenizer, Serving
from engine.core.errors import CapacityError, EngineError, InvalidRequest
from engine.core.types import Request, SamplingParams


@dataclass(frozen=True)
class ServedModel:
    """A model that is served.

    fingerprint: of the effective configuration.
    """

    name: str
    engine: Engine
    serving: Serving
    limits: ServeLimits
    fingerprint: str
    created: int = field(default_factory=lambda: int(time.time()))

    @property
    def tokens(self) -> PromptTokenizer:
        """The tokenizer."""
        return self.serving.tokenizer()

    def requests(self, completion: str, asked: AskedCompletion) -> tuple[Request, ...]:
        """The engine's requests, one per choice, choices of a prompt beside each other.

        Raises:
            ApiRefusal: a prompt does not fit, or the engine refuses a parameter.
        """
        seed = secrets.randbits(63) if asked.seed is None else asked.seed % 2**63
        made = []
        try:
            for number, prompt in enumerate(map(self.encoded, asked.prompts)):
                sampling = SamplingParams(
                    **asked.settings, max_new_tokens=self._length(prompt, asked.length), seed=seed
                )
                for stream in range(number * asked.n, (number + 1) * asked.n):
                    name = request_name(completion, stream)
                    made.append(self.serving.admitted(Request(name, prompt, sampling, stream, asked.tools)))
        except CapacityError as error:
            raise _too_long(str(error)) from error
        except EngineError as error:
            raise invalid(str(error).removeprefix(f"request {request_name(completion, len(made))}: ")) from error
        return tuple(made)

    def text_of(self, token: int) -> str:
        """The text of one token; empty for a token that no text contains, U+FFFD for a part of a character."""
        return self.bytes_of(token).decode("utf-8", "replace")

    def bytes_of(self, token: int) -> bytes:
        """The bytes of one token."""
        return self._spelling[token]

    @cached_property
    def _spelling(self) -> Sequence[bytes]:
        tokens, vocabulary = self.tokens, self.serving.sizes().vocabulary
        if tokens.spell is None:
            return [tokens.decode([token]).encode() for token in range(vocabulary)]
        return tokens.spell(vocabulary).tokens

    def encoded(self, prompt: Prompt | tuple[int, ...]) -> tuple[int, ...]:
        """The tokens of a prompt; raises EngineError."""
        if isinstance(prompt, tuple):
            return prompt
        result = self.engine.encode(prompt)
        if not result:
            raise InvalidRequest("the prompt has no tokens")
        return result

    def _length(self, prompt: tuple[int, ...], asked: int | None) -> int:
        room = self.limits.context - len(prompt)
        if room < 1 or (asked is not None and asked > room):
            wanted = f" and {asked} of an answer" if asked is not None else ""
            raise _too_long(f"{len(prompt)} tokens of a prompt{wanted}, but the context has {self.limits.context}")
        return min(room, self.limits.tokens) if asked is None else asked


def _too_long(message: str) -> ApiRefusal:
    return invalid(message, "messages", "context_length_exceeded")

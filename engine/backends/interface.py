"""What a backend is: something that generates and says what really ran.

`effective_config` reports what runs, not what was asked for; a difference is an
error of the backend, never a silent downgrade.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol, runtime_checkable

from engine.core.types import Generation, Request
from engine.record.effective import Effective


@dataclass(frozen=True, slots=True)
class Capabilities:
    """What a backend's record can support.

    `level` is the evidence level 0-4: text; log-probabilities; p; p, q and
    decisions; and random numbers too.
    """

    level: int


@dataclass(frozen=True, slots=True)
class Prompt:
    """What a case asks: messages with tools for the chat template, or raw text."""

    messages: tuple[Mapping[str, Any], ...] = ()
    tools: tuple[Mapping[str, Any], ...] = ()
    text: str | None = None


class Engine(Protocol):
    """One arm's engine."""

    def capabilities(self) -> Capabilities:
        """What this backend can show."""
        ...

    def effective_config(self) -> Effective:
        """What runs: models with digests, proposer, rule, batch, numerics."""
        ...

    def encode(self, prompt: Prompt) -> tuple[int, ...]:
        """The prompt's tokens."""
        ...

    def require(self, requests: Sequence[Request]) -> None:
        """Raise EngineError, naming the request, unless all of them can be served."""
        ...

    def memory(self) -> str | None:
        """The fingerprint of what later drafts owe to finished requests; None where nothing is remembered."""
        ...

    def forget(self) -> None:
        """Empty that memory; otherwise it lasts from one `generate` to the next."""
        ...

    def generate(self, requests: Sequence[Request]) -> Iterator[Generation]:
        """Yield generations as they finish.

        A request that fails alone is yielded with `FinishReason.ERROR`, no tokens, and in the facts of its record
        `error`, a mapping of `message` and `kind` (`engine_died`, `not_tried`, `refused`, `timeout`, `http`,
        `malformed`). Other facts that are understood: `level`, where this request shows less than the arm, with
        `why`; and `reconciliation`, a mapping of `sources` and `mismatches`.

        Raises:
            EngineError: the arm cannot go on.
        """
        ...


@runtime_checkable
class Anchoring(Protocol):
    """What a backend has besides that can run its target over given tokens, by code that its decoding does not use."""

    def anchor_config(self) -> Effective:
        """What that pass is: code, dtype, digest of the weights. Opens the reference.

        Raises:
            EngineError: the reference cannot be opened.
        """
        ...

    def anchor(self, request: Request, tokens: Sequence[int]) -> Generation:
        """The target's own rows at every one of `tokens`, in a record of level `topk` or `full`."""
        ...

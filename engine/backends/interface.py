"""The interface of a backend: it generates and reports the configuration that ran.

`effective_config` reports the configuration in effect, not the requested one; a backend raises an error on a
difference and never downgrades silently.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Protocol, runtime_checkable

from engine.core.errors import CapacityError, InvalidRequest
from engine.core.types import Generation, Request
from engine.record.effective import Effective

if TYPE_CHECKING:
    # commands that compute nothing import this module too
    from engine.backends.call_grammar import Write
    from engine.constraints.interface import TokenSpelling
    from engine.decode.arrivals import Arrivals
    from engine.record.tool_calls import ResponseTemplate
    from engine.record.trace import Trace
    from engine.sampling.stopping import Decode


def require_prompt(request: Request, vocabulary: int) -> None:
    """Refuse a prompt that names a token which the target does not have. Raises InvalidRequest: it does."""
    wrong = [token for token in request.prompt if not 0 <= token < vocabulary]
    if wrong:
        raise InvalidRequest(
            f"request {request.id}: the prompt names token {wrong[0]}, but ids end at {vocabulary - 1}"
        )


def require_length(request: Request, most: int, limit: str = "the target's context") -> None:
    """Refuse a request whose prompt and answer together could be longer than the `limit`.

    Raises:
        CapacityError: they could.
    """
    prompt, new = len(request.prompt), request.sampling.max_new_tokens
    if prompt + new > most:
        raise CapacityError(
            f"request {request.id}: prompt of {prompt} tokens and max_new_tokens {new} exceed {limit} of {most}; "
            "shorten the prompt or lower max_new_tokens"
        )


@dataclass(frozen=True, slots=True)
class Prompt:
    """The prompt of a case: messages with tools for the chat template, or raw text."""

    messages: tuple[Mapping[str, Any], ...] = ()
    tools: tuple[Mapping[str, Any], ...] = ()
    text: str | None = None
    tool_choice: str | Mapping[str, str] = "auto"
    """As in `engine.core.types.ToolOffer`."""
    template: Mapping[str, Any] = field(default_factory=dict, hash=False)
    """Further arguments of the chat template, such as `enable_thinking`."""


@dataclass(frozen=True, slots=True)
class PromptTokenizer:
    """The part of a tokenizer that a loop needs: prompts to tokens and tokens to text."""

    encode: Callable[[Prompt], Sequence[int]]
    decode: Decode
    template: ResponseTemplate | None = None
    """How the family writes tool calls; None if its tokenizer does not say it."""
    spell: Callable[[int], TokenSpelling] | None = None
    """Size of the vocabulary -> the bytes of its tokens; None for a tokenizer that takes no grammar."""

    write: Write | None = None
    """Whole conversations as text; None without a chat template."""


class Engine(Protocol):
    """One arm's engine."""

    def evidence_level(self) -> int:
        """The level of its records, 0-4: text; log-probabilities; p; p, q and decisions; and random numbers too."""

    def effective_config(self) -> Effective:
        """The effective configuration: models with digests, proposer, rule, batch, numerics."""

    def encode(self, prompt: Prompt) -> tuple[int, ...]:
        """The prompt's tokens."""

    def require(self, requests: Sequence[Request]) -> None:
        """Raise EngineError with the request's name unless every request can be served."""

    def memory(self) -> str | None:
        """Digest of state carried between requests; None if stateless."""

    def forget(self) -> None:
        """Clear that state, which otherwise persists from one `generate` to the next."""

    def generate(self, requests: Sequence[Request]) -> Iterator[Generation]:
        """Yield generations as they finish.

        A request that fails alone is yielded with `FinishReason.ERROR`, no tokens, and in the facts of its record
        `error`, a mapping of `message` and `kind` (`engine_died`, `not_tried`, `refused`, `timeout`, `http`,
        `malformed`). Other known facts: `level`, if this request provides less evidence than the arm, with `why`; and
        `reconciliation`, a mapping of `sources`, `mismatches` and `faults`, the mismatches in which the engine returned
        another token than its target drew.

        Raises:
            EngineError: the arm cannot continue.
        """


@runtime_checkable
class Starting(Protocol):
    """The extra interface of a backend whose engine runs in processes of its own, which start at its first use."""

    def starts(self) -> str | None:
        """The engine that the first use starts, in words; None if it has been started before."""


@dataclass(frozen=True, slots=True)
class TargetSizes:
    """Number of token ids, most tokens of a prompt and its answer together, and the tokens that end an answer."""

    vocabulary: int
    context: int
    eos_ids: tuple[int, ...] = ()


@runtime_checkable
class Serving(Protocol):
    """The extra interface of a backend whose loop takes requests while it runs."""

    def sizes(self) -> TargetSizes:
        """The target's."""

    def tokenizer(self) -> PromptTokenizer:
        """The target's tokenizer."""

    def admitted(self, request: Request) -> Request:
        """The request as the loop takes it. Raises EngineError: it cannot be served."""

    def serve(self, arrivals: Arrivals, longest: int, *, record: bool) -> Iterator[Generation]:
        """Yield generations as their records are written, until no request comes any more.

        Args:
            arrivals: the requests, as `admitted` gives them.
            longest: most tokens of a prompt and its answer together.
            record: keep records at the arm's level; without, traces are empty.
        """


@runtime_checkable
class Anchoring(Protocol):
    """The extra interface of a backend that can run its target over given tokens, with code that its decoding does not
    use.
    """

    def anchor_config(self) -> Effective:
        """The facts of that pass: code, dtype, digest of the weights. Opens the reference.

        Raises:
            EngineError: the reference cannot be opened.
        """

    def anchor(self, request: Request, tokens: Sequence[int]) -> Generation:
        """The target's own rows at every one of `tokens`, in a record of level `topk` or `full`."""


@runtime_checkable
class Rereading(Protocol):
    """The extra interface of a backend that can run its target over given tokens as its plain decoding runs it: the
    same model code, cache and numerics, one request at a time and without a draft.
    """

    def reread_config(self) -> Effective:
        """The facts of that reading: numerics as of decoding, and how many tokens a forward reads."""

    def reread(self, request: Request, tokens: Sequence[int]) -> Generation:
        """The target's rows at every one of `tokens`, in a record of level `scalars` or above. An injected fault is
        left out.
        """


@runtime_checkable
class Redrafting(Protocol):
    """The extra interface of a backend that can run its proposer again along a recorded response: one request at a
    time, from a fresh state, with the recorded decisions.
    """

    def redraft_config(self) -> Effective:
        """The facts of that pass: proposer, models, whether drafts are a function of the request's tokens alone
        (`copies`), whether they come out the same to the last bit (`repeats`), and whether the lead of every choice is
        known (`measured`).
        """

    def redraft(self, request: Request, recorded: Trace) -> Generation | None:
        """The drafts of every recorded step, all of them examined and none accepted, with the recorded tokens; None
        for a record whose first step contradicts itself. Each token is drawn after the recorded ones; the fact `parted`
        lists those that came out otherwise (`engine.record.trace.PARTED`).

        Raises:
            EngineError: no pass can follow the record.
        """

"""A backend that runs neighbours among the requests of an arm, with other sampling parameters.

Neighbours expose engines that mix up the rows of a batch. They have streams of their own and are not recorded: their
generations are dropped. On a correct engine they change no token of the arm.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Final, Protocol

from engine.backends.interface import Engine, Prompt, Starting
from engine.core.types import Generation, Request, SamplingParams
from engine.record.effective import BESIDE, CANCELLED, MIXED, Effective
from engine.sampling.rng import stream_of

SUFFIX: Final = "/beside"
EVERY: Final = 4
"""Own requests per neighbour in a mixed batch."""
LEAST: Final = 10
"""Own requests that share a forward with a neighbour, in arms of a few more."""


class Company(Protocol):
    """The neighbours of an arm."""

    def facts(self) -> Mapping[str, Any]:
        """Their key and value in the effective configuration."""

    def among(self, requests: Sequence[Request]) -> list[Request]:
        """The requests in their order, with neighbours between them."""


@dataclass(frozen=True, slots=True)
class Beside:
    """One neighbour next to each request, with its prompt.

    `leaves_after`: tokens after which the neighbour is cancelled, 0 for none. One that is cancelled has the prompt of
    another request, so that what it leaves behind is wrong for every other one.
    """

    sampling: SamplingParams
    leaves_after: int = 0

    def facts(self) -> Mapping[str, Any]:
        """The neighbours' parameters."""
        leaving = {CANCELLED: self.leaves_after} if self.leaves_after else {}
        return {BESIDE: self.sampling.document() | leaving}

    def among(self, requests: Sequence[Request]) -> list[Request]:
        """Each request after its neighbour."""
        others = [*requests[1:], *requests[:1]] if self.leaves_after else requests
        neighbours = (
            replace(_neighbour(own, self.sampling, other.prompt), leaves_after=self.leaves_after)
            for own, other in zip(requests, others, strict=True)
        )
        return [item for pair in zip(neighbours, requests, strict=True) for item in pair]


@dataclass(frozen=True, slots=True)
class Mixed:
    """One neighbour per few requests, with the prompt of another request, where possible of another length.

    `rows` is at least 2. Few rows need more neighbours, because each shares the batch with fewer requests; twice as
    many as are needed, because neighbours meet the same requests and may end before the next one is admitted.
    """

    rows: int
    sampling: SamplingParams

    def facts(self) -> Mapping[str, Any]:
        """The neighbours' parameters, and the most own requests for each."""
        return {MIXED: {"every": EVERY, "sampling": self.sampling.document()}}

    def among(self, requests: Sequence[Request]) -> list[Request]:
        """A neighbour comes first, so that it takes row 0; the others follow at even distances."""
        count = min(len(requests), max(-(-len(requests) // EVERY), -(-2 * LEAST // (self.rows - 1))))
        starts = {index * len(requests) // count for index in range(count)}
        prompts = sorted({request.prompt for request in requests}, key=lambda prompt: (len(prompt), prompt))
        mixed: list[Request] = []
        for index, own in enumerate(requests):
            if index in starts:
                mixed.append(_neighbour(own, self.sampling, _unlike(own.prompt, prompts)))
            mixed.append(own)
        return mixed


def contrasting(own: SamplingParams) -> SamplingParams:
    """Parameters for neighbours of requests with `own`: greedy beside sampled, sampled beside greedy.

    Penalty, truncation, minimum length and the end tokens are on where they are off for `own`, and off where they are
    on. Half of the length makes neighbours cheap and lets rows finish at different times.
    """
    return SamplingParams(
        temperature=0.9 if own.greedy else 0.0,
        top_k=0 if own.top_k else 8,
        repetition_penalty=1.3 if own.repetition_penalty == 1.0 else 1.0,
        min_tokens=0 if own.min_tokens else 2,
        max_new_tokens=max(1, own.max_new_tokens // 2),
        ignore_eos=not own.ignore_eos,
    )


def _unlike(own: tuple[int, ...], prompts: Sequence[tuple[int, ...]]) -> tuple[int, ...]:
    """The shortest of the prompts, which is the cheapest, or the next one that is longer if `own` is as short."""
    others = [prompt for prompt in prompts if len(prompt) != len(own)]
    # prompts of one length: a part of another prompt
    return others[0] if others else prompts[0][: -(-len(own) // 2)]


def _neighbour(own: Request, sampling: SamplingParams, prompt: tuple[int, ...]) -> Request:
    name, seeded = own.id + SUFFIX, replace(sampling, seed=own.sampling.seed)
    # nothing reads a neighbour's answer, nor calls in it
    return replace(own, id=name, prompt=prompt, sampling=seeded, stream=stream_of(name), tools=None)


@dataclass(frozen=True, slots=True)
class NeighbourEngine:
    """A backend that adds neighbours; all else is delegated."""

    engine: Engine
    company: Company

    def evidence_level(self) -> int:
        """The backend's."""
        return self.engine.evidence_level()

    def effective_config(self) -> Effective:
        """The backend's configuration and the neighbours' parameters."""
        effective = self.engine.effective_config()
        for key, value in self.company.facts().items():
            effective = effective.with_fact(key, value)
        return effective

    def starts(self) -> str | None:
        """The backend's; None if it has no processes of its own."""
        return self.engine.starts() if isinstance(self.engine, Starting) else None

    def encode(self, prompt: Prompt) -> tuple[int, ...]:
        """The backend's."""
        return self.engine.encode(prompt)

    def require(self, requests: Sequence[Request]) -> None:
        """Check requests and neighbours as the backend does."""
        self.engine.require(self.company.among(requests))

    def memory(self) -> str | None:
        """The backend's."""
        return self.engine.memory()

    def forget(self) -> None:
        """The backend's."""
        self.engine.forget()

    def generate(self, requests: Sequence[Request]) -> Iterator[Generation]:
        """Run both and yield the arm's own generations."""
        if not requests:
            return
        own = {request.id for request in requests}
        for generation in self.engine.generate(self.company.among(requests)):
            if generation.request.id in own:
                yield generation

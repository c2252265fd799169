"""A backend that runs a neighbour next to each request, with other sampling parameters.

The neighbour exposes engines that mix up parameters between the rows of a batch. It has the same prompt and its own
stream; its generation is dropped.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass, replace

from engine.backends.interface import Capabilities, Engine, Prompt
from engine.core.types import Generation, Request, SamplingParams
from engine.record.effective import BESIDE, Effective
from engine.sampling.rng import stream_of

SUFFIX = "/beside"


@dataclass(frozen=True, slots=True)
class NeighbourEngine:
    """A backend that adds neighbours; all else is delegated."""

    engine: Engine
    sampling: SamplingParams

    def capabilities(self) -> Capabilities:
        """The backend's."""
        return self.engine.capabilities()

    def effective_config(self) -> Effective:
        """The backend's configuration and the neighbours' parameters."""
        return self.engine.effective_config().with_fact(BESIDE, asdict(self.sampling))

    def encode(self, prompt: Prompt) -> tuple[int, ...]:
        """The backend's."""
        return self.engine.encode(prompt)

    def require(self, requests: Sequence[Request]) -> None:
        """Check requests and neighbours as the backend does."""
        self.engine.require(self._pairs(requests))

    def memory(self) -> str | None:
        """The backend's."""
        return self.engine.memory()

    def forget(self) -> None:
        """The backend's."""
        self.engine.forget()

    def generate(self, requests: Sequence[Request]) -> Iterator[Generation]:
        """Run both and yield the arm's own generations."""
        for generation in self.engine.generate(self._pairs(requests)):
            if not generation.request.id.endswith(SUFFIX):
                yield generation

    def _pairs(self, requests: Sequence[Request]) -> list[Request]:
        return [each for request in requests for each in (self._neighbour(request), request)]

    def _neighbour(self, request: Request) -> Request:
        name = request.id + SUFFIX
        sampling = replace(self.sampling, seed=request.sampling.seed)
        return replace(request, id=name, sampling=sampling, stream=stream_of(name))

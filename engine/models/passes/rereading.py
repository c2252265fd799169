"""Reading again: the target's rows over a given text, by the engine's own forward and the same numerics.

One request at a time in a fresh cache, without drafts or neighbours. A mode that promises equal bits for chains reads
CHUNK tokens per forward, for the price of a prompt; without that promise tokens are read as plain decoding reads them,
one by one after the prompt. It shares model code, kernels and arithmetic with decoding, hence their faults; it shares
neither the loop, nor what a batch, a draft or an earlier request left in a cache.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Final

import torch

from engine.core.types import Generation, Request
from engine.models.interface import SlotCache, TargetModel, WantedOutputs, chain_placement, to_numpy
from engine.models.numerics.interface import Invariance
from engine.models.probe.choose import ModelWithNumerics
from engine.record.foreign.teacher_forced import GivenRow, record_given
from engine.record.trace import Rows, TraceHeader
from engine.sampling.stopping import Decode

CHUNK: Final = 32
"""Tokens of a forward: fewer than those of most prompts, so that prompts are read in another shape than by decoding."""


@dataclass(frozen=True, slots=True)
class Rereader:
    """A target and how it reads: `chunk` tokens of an answer per forward, and of a prompt; None reads it at once."""

    model: TargetModel
    chunk: int
    prompt_chunk: int | None

    def facts(self) -> Mapping[str, int | None]:
        """How it reads, as JSON."""
        return {"answer_chunk": self.chunk, "prompt_chunk": self.prompt_chunk}

    @torch.inference_mode()
    def rows(self, tokens: Sequence[int], first: int) -> Iterator[Rows]:
        """Blocks [n, V] of the logits that decide the tokens from index `first` >= 1 on, in the model's dtype.

        Raises:
            CapacityError: more tokens than the model's context.
        """
        cache = self.model.new_cache(1, len(tokens))
        for start, end in _spans(0, first - 1, self.prompt_chunk):
            self._forward(cache, tokens, start, end, logits=False)
        for start, end in _spans(first - 1, len(tokens) - 1, self.chunk):
            rows = self._forward(cache, tokens, start, end, logits=True)
            assert rows is not None
            yield rows

    def _forward(self, cache: SlotCache, tokens: Sequence[int], start: int, end: int, *, logits: bool) -> Rows | None:
        placement = chain_placement([tokens[start:end]], [start], cache.trash)
        forward = self.model.forward(cache, placement, WantedOutputs(logits=logits))
        return None if forward.logits is None else to_numpy(forward.logits[0])


def rereader(target: ModelWithNumerics) -> Rereader:
    """The cheapest reading that the numerics' promise covers."""
    if target.numerics.promises >= Invariance.CHAIN:
        return Rereader(target.model, CHUNK, CHUNK)
    return Rereader(target.model, 1, None)


def reread(reader: Rereader, request: Request, tokens: Sequence[int], header: TraceHeader, text: Decode) -> Generation:
    """The rows on `tokens` as the record of a plain generation. p and random numbers are NaN, because no row was
    transformed and nothing was drawn.

    Raises:
        InvalidRequest: no tokens.
    """

    def rows_on(history: Sequence[int], start: int) -> Iterator[GivenRow]:
        return (GivenRow(row) for rows in reader.rows(history, start) for row in rows)

    return record_given(request, tokens, header, text, rows_on)


def _spans(start: int, end: int, chunk: int | None) -> Iterator[tuple[int, int]]:
    """Ranges of at most `chunk` tokens from `start` to `end`; None gives one range."""
    step = chunk or max(1, end - start)
    return ((first, min(first + step, end)) for first in range(start, end, step))

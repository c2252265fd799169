"""Models whose logits are a function of the prefix: exact and instant.

A scripted model reads its prefix back through the cache's columns and the
visibility mask, so a wrong mask, position or commit gives wrong logits, as in a real model.
"""

import functools
import hashlib
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from engine.core.errors import CapacityError, InvalidRequest
from engine.core.types import Floats
from engine.models.interface import Forward, Placement, SlotCache, WantedOutputs

Script = Callable[[tuple[int, ...]], Floats]
"""Prefix of token ids -> [V] float64 logits of the next token."""
KEPT_ROWS = 4096
"""The size of a table's cache: all contexts of two tokens among 64."""
LAYERS = 2
"""Layers that a `Part` may name in a scripted model with a partial script."""


class ScriptedCache:
    """Tokens and positions by column, instead of keys and values."""

    def __init__(self, rows: int, capacity: int) -> None:
        self.rows = rows
        self.capacity = capacity
        self.trash = capacity
        self.tokens = np.zeros((rows, capacity + 1), dtype=np.int64)
        self.positions = np.zeros((rows, capacity + 1), dtype=np.int64)

    def commit(self, row: int, source: tuple[int, ...], target: tuple[int, ...]) -> None:
        """Copy columns within a row."""
        self.tokens[row, list(target)] = self.tokens[row, list(source)]
        self.positions[row, list(target)] = self.positions[row, list(source)]


@dataclass(frozen=True, slots=True)
class ScriptedModel:
    """A model that follows a script, in float64."""

    script: Script
    vocabulary: int
    context: int = 4096
    eos_ids: tuple[int, ...] = ()
    facts: Mapping[str, Any] = field(default_factory=lambda: {"loader": "scripted"})
    partial: Script | None = None
    """The script in effect if only a part of the model runs, for any part."""

    @property
    def divisible(self) -> int:
        """As many layers as a part may name, if there is a partial script."""
        return 0 if self.partial is None else LAYERS

    def new_cache(self, rows: int, capacity: int) -> SlotCache:
        """An empty cache. Raises CapacityError: `capacity` exceeds the context."""
        if capacity > self.context:
            raise CapacityError(f"capacity {capacity} exceeds the scripted context of {self.context}")
        return ScriptedCache(rows, capacity)

    def forward(self, cache: SlotCache, placement: Placement, want: WantedOutputs) -> Forward:
        """Logits [B, T, V] float64 of every query, zero for padding.

        Raises:
            InvalidRequest: a part is wanted and there is no partial script.
        """
        assert isinstance(cache, ScriptedCache)
        script = self.script if want.part is None else self.partial
        if script is None:
            raise InvalidRequest("a scripted model without a partial script runs whole only")
        tokens, slots, positions = placement.tokens.numpy(), placement.slots.numpy(), placement.positions.numpy()
        batch, width = tokens.shape
        for b in range(batch):
            cache.tokens[placement.first_row + b, slots[b]] = tokens[b]
            cache.positions[placement.first_row + b, slots[b]] = positions[b]
        if not want.logits:
            return Forward(None, {})
        logits = np.zeros((batch, width, self.vocabulary))
        for b in range(batch):
            asked = np.flatnonzero(slots[b] != cache.trash).tolist()
            if asked:
                visible = _visible(placement, b, positions)
                prefixes = _prefixes(cache, placement.first_row + b, visible[asked])
                for t, prefix in zip(asked, prefixes, strict=True):
                    logits[b, t] = script(prefix)
        return Forward(torch.from_numpy(logits), {})


def _visible(placement: Placement, row: int, positions: NDArray[np.int64]) -> NDArray[np.bool_]:
    """[T, S] `placement.visible` of a row, without the cost of a call of torch's."""
    if placement.branches is not None:
        return np.asarray(placement.branches[row].numpy())
    return np.asarray(np.arange(placement.span) <= positions[row][:, None])


def _prefixes(cache: ScriptedCache, row: int, visible: NDArray[np.bool_]) -> Iterator[tuple[int, ...]]:
    """The tokens that each query [T, S] sees, in order of position."""
    order = cache.positions[row, : visible.shape[1]].argsort(kind="stable")
    tokens, seen = cache.tokens[row, order], visible[:, order]
    yield from (tuple(tokens[mask].tolist()) for mask in seen)


def table_script(seed: int, vocabulary: int, order: int = 2, scale: float = 2.0) -> Script:
    """Logits drawn once per context of the last `order` tokens: a random Markov source.

    Equal seeds give equal scripts on every machine. `scale` is the standard deviation of the logits; larger is more
    certain.
    """

    @functools.lru_cache(maxsize=KEPT_ROWS)
    def row(context: tuple[int, ...]) -> Floats:
        name = f"{seed}:{','.join(map(str, context))}"
        key = int.from_bytes(hashlib.sha256(name.encode()).digest()[:8], "big")
        return scale * np.random.Generator(np.random.Philox(key=key)).standard_normal(vocabulary)

    return lambda prefix: row(prefix[-order:]).copy()


def blended_script(first: Script, second: Script, share: float) -> Script:
    """(1 - share) of the first script's logits plus share of the second's: a draft like its target."""
    return lambda prefix: (1.0 - share) * first(prefix) + share * second(prefix)

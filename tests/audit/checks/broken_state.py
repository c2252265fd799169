"""Faults of an engine's state for tests of the passes over given tokens; `register` lends them to the catalogue."""

from __future__ import annotations

from typing import Any

from engine.core.registry import FAULTS
from engine.decode.seams import EngineParts
from engine.faults.interface import Fault
from engine.faults.wrappers import WrappedModel, with_target
from engine.models.interface import Forward, Placement, SlotCache, TargetModel, WantedOutputs, chain_placement


def register(monkeypatch: Any) -> None:
    """Every fault of this module under its name."""
    for name, value in list(globals().items()):
        if isinstance(value, Fault):
            monkeypatch.setitem(FAULTS, value.name, f"{__name__}:{name}")


class _LastEntryStale(WrappedModel):
    """After a draft that was kept whole, its last token's column holds the token before it."""

    def __init__(self, inner: TargetModel) -> None:
        super().__init__(inner)
        self._steps: dict[int, list[int]] = {}

    def forward(self, cache: SlotCache, placement: Placement, want: WantedOutputs) -> Forward:
        for row, length in enumerate(placement.lengths if want.logits else ()):
            tokens = placement.tokens[row, :length].tolist()
            begin = int(placement.slots[row, 0])
            before = self._steps.pop(row, [])
            if len(before) > 2 and begin == before[0] + len(before) - 1:
                stale = chain_placement([before[-2:-1]], [begin - 1], cache.trash, first_row=row)
                self.inner.forward(cache, stale, WantedOutputs(logits=False))
            if length:
                self._steps[row] = [begin, *tokens]
        return self.inner.forward(cache, placement, want)


def _stale(parts: EngineParts) -> EngineParts:
    return with_target(parts, _LastEntryStale)


LAST_ENTRY_STALE = Fault("last_entry_stale", "law", "none known: a test", "text", ("target",), _stale)

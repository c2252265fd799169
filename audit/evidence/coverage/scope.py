"""The scope of an arm's verdicts: the batches and drafts that its record shows, its numerics and its device.

Batches and drafts are counted step by step; numerics and device are the engine's report about the run, because no
number of a record shows them. A verdict says nothing beyond its scope: a fault of row 49 of a forward cannot occur at
batch 8.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any, Final

import numpy as np

from audit.evidence.records import RequestRecord
from engine.record.columns import numbered
from engine.record.effective import Effective

SCOPE: Final = "scope"
"""The key of a result's details."""
CHAIN: Final = "chain"
TREE: Final = "tree"


@dataclass(frozen=True, slots=True)
class ArmScope:
    """The scope of one arm; None where the record does not show it.

    smallest_batch, largest_batch: requests decoded together in a step.
    longest_draft: tokens drafted in one step.
    shape: `chain`, or `tree` if some step has drafts that do not follow one another.
    """

    smallest_batch: int | None = None
    largest_batch: int | None = None
    longest_draft: int | None = None
    shape: str | None = None
    numerics: str | None = None
    device: str | None = None

    def to_json(self) -> dict[str, Any]:
        """As JSON values."""
        return asdict(self)


def scope_of_details(details: Mapping[str, Any]) -> ArmScope | None:
    """The scope in a result's details; None if it has none, or a damaged one."""
    stored = details.get(SCOPE)
    try:
        return ArmScope(**stored) if isinstance(stored, Mapping) else None
    except TypeError:
        return None


@dataclass(slots=True)
class ScopeCount:
    """Extremes over the requests so far."""

    smallest: int | None = None
    largest: int | None = None
    longest: int | None = None
    tree: bool = False

    def add(self, request: RequestRecord) -> None:
        """Count one request's steps."""
        trace = request.trace
        if not trace.steps:
            return
        low, high = int(trace.batch.min()), int(trace.batch.max())
        self.smallest, self.largest = min(self.smallest or low, low), max(self.largest or high, high)
        self.longest = max(self.longest or 0, int(trace.n_drafted.max()))
        before = numbered(trace.n_drafted.astype(np.int64)).local - 1
        self.tree |= bool(np.any(trace.node_parent != before))

    def scope(self, effective: Effective) -> ArmScope:
        """The extremes beside the engine's report."""
        return ArmScope(
            smallest_batch=self.smallest,
            largest_batch=self.largest,
            longest_draft=self.longest,
            shape=(TREE if self.tree else CHAIN) if self.longest else None,
            numerics=None if effective.numerics is None else effective.numerics.mode,
            device=_device(effective),
        )


def _device(effective: Effective) -> str | None:
    """The device of the target, by whichever of its facts names one."""
    facts = [effective.facts.get("target"), effective.facts, effective.in_effect, *effective.facts.values()]
    named = (fact.get("device") for fact in facts if isinstance(fact, Mapping))
    return next((device for device in named if isinstance(device, str)), None)

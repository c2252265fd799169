"""The scope of an arm's verdicts: the batches and drafts that its record shows, its numerics and its device.

Batches and drafts are counted step by step; numerics and device are the engine's report about the run, because no
number of a record shows them. A verdict says nothing beyond its scope: a fault of row 49 of a forward cannot occur at
batch 8.
"""

from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any, Final

SCOPE: Final = "scope"
"""The key of a result's details."""


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

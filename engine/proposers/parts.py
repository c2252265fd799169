"""What a proposer may be built from."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from engine.drafting import DrawRule
from engine.errors import InvalidRequest
from engine.models.base import TargetModel
from engine.types import DraftRule


@dataclass(frozen=True, slots=True)
class ProposerParts:
    """`rows` and `capacity` size the caches; `rule` is what the verifier asks of drafts."""

    rows: int
    capacity: int
    rule: DraftRule
    draw: DrawRule
    eos_ids: tuple[int, ...]
    draft: TargetModel | None = None
    options: Mapping[str, Any] = field(default_factory=dict)

    def require_options(self, kind: str, known: Mapping[str, int]) -> dict[str, int]:
        """The proposer's positive integer options over its defaults.

        Raises:
            InvalidRequest: an unknown option or a value below 1.
        """
        for key, value in self.options.items():
            if key not in known:
                names = ", ".join(sorted(known)) or "none"
                raise InvalidRequest(f"proposer {kind} has no option {key!r}; it has: {names}")
            if not isinstance(value, int) or isinstance(value, bool) or value < 1:
                raise InvalidRequest(
                    f"proposer {kind}: option {key} must be a whole number of at least 1, not {value!r}"
                )
        return {**known, **self.options}

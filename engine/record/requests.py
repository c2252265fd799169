"""A request's own settings in its record: those requested of a foreign engine, and those in effect."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Final

KEY: Final = "request"
"""Of a record's facts."""


@dataclass(frozen=True, slots=True)
class RequestAccount:
    """Settings by name; `effective` has those that the engine showed."""

    requested: Mapping[str, Any] = field(default_factory=dict)
    effective: Mapping[str, Any] = field(default_factory=dict)

    @property
    def differences(self) -> list[str]:
        """Each setting that is not as requested, in words."""
        return [
            f"request's {name}: requested {asked!r}, effective {self.effective[name]!r}"
            for name, asked in sorted(self.requested.items())
            if name in self.effective and self.effective[name] != asked
        ]


def account_of(facts: Mapping[str, Any]) -> RequestAccount:
    """The account in a record; an empty one if the request had no settings."""
    found = facts.get(KEY, {})
    return RequestAccount(found.get("requested", {}), found.get("effective", {}))

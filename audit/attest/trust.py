"""The options of the command line that say which signed statements are trusted, before any key is read."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path


@dataclass(frozen=True, slots=True)
class TrustOptions:
    """Key files, ages and subjects as they were given."""

    keys: tuple[Path, ...] = ()
    threshold: int = 1
    max_age: str | None = None
    subjects: tuple[str, ...] = ()
    log_keys: tuple[Path, ...] = ()
    policy_digest: str | None = None

    @property
    def given(self) -> bool:
        """True if any of them was given."""
        return self != TrustOptions()

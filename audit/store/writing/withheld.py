"""Runs with `text: off`: their content never reaches the database, which gets commitments and erasures in its place.

The process that runs them keeps the content until the run is finished, because checks read it. Nothing can read it
later: such a run cannot be resumed, judged again, or replayed. Cannot see: what the engine itself writes elsewhere.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final

KEY: Final = "text"
"""Key of an arm's specification."""
OFF: Final = "off"
REASON: Final = "text: off"
"""Reason of the erasures that stand for content which was never written."""
ABSENCE: Final = "the content was never written (text: off)"


@dataclass(frozen=True, slots=True)
class WithheldContent:
    """Content of one request that stays in memory: its trace with the digest, the answer, and its tokens' digest."""

    payload: bytes
    sha256: str
    text: str
    output_sha256: str


def withholds(spec: Mapping[str, Any]) -> bool:
    """True if an arm with this specification keeps its content out of the database."""
    return bool(spec.get(KEY) == OFF)

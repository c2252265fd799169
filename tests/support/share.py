"""The option `--share K/N`: runs the K-th, the (K+N)-th and so on of all selected tests and parameter sets."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass

import pytest


@dataclass(frozen=True)
class Share:
    first: int
    of: int

    def __str__(self) -> str:
        return f"{self.first}/{self.of}"


def parse_share(text: str) -> Share:
    """`K/N` with K from 1 to N."""
    match = re.fullmatch(r"(\d+)/(\d+)", text)
    share = Share(*map(int, match.groups())) if match else None
    if share is None or not 1 <= share.first <= share.of:
        raise pytest.UsageError(f"--share {text}: write K/N, with K from 1 to N")
    return share


def split(items: Sequence[pytest.Item], share: Share) -> tuple[list[pytest.Item], list[pytest.Item]]:
    """The selected and the deselected items; a share beyond the last item begins again at the first, so that it runs
    something.
    """
    kept, left = [], []
    first = (share.first - 1) % max(1, min(share.of, len(items)))
    for index, item in enumerate(items):
        (kept if index % share.of == first else left).append(item)
    return kept, left

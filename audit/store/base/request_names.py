"""Finds requests of a run by the names that findings and people use."""

from __future__ import annotations

from collections.abc import Sequence

from audit.errors import UserError
from audit.store.base.values import RequestKey


def requests_named(run: str, keys: Sequence[RequestKey], name: str) -> list[RequestKey]:
    """The requests named ARM/CASE#SAMPLE, or CASE#SAMPLE in any arm, in the order of `keys`.

    Raises:
        UserError: none has that name.
    """
    found = [key for key in keys if name in (key.name, key.short)]
    if not found:
        first = keys[0].name if keys else "none"
        raise UserError(f"run {run} has no request {name!r}; write one as findings do, such as {first}")
    return found

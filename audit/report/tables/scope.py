"""The scope of each arm's verdicts as rows: batches and drafts of its record, its numerics and its device.

Apart from the tables of coverage, because showing a run needs no numpy, and counting its situations does.
"""

from collections.abc import Iterable
from typing import Any

from audit.evidence.coverage.scope import ArmScope, scope_of_details
from audit.store import StoredCheck


def scopes(checks: Iterable[StoredCheck]) -> dict[str, ArmScope]:
    """By arm, the scope that its results name; all results of an arm name the same."""
    result: dict[str, ArmScope] = {}
    for check in checks:
        scope = scope_of_details(check.details)
        if scope is not None:
            result.setdefault(check.arm, scope)
    return result


def scope_rows(checks: Iterable[StoredCheck]) -> list[tuple[Any, ...]]:
    """One row per arm; an empty cell where the record does not show it."""
    return [
        (arm, _batches(scope), scope.longest_draft, scope.shape, scope.numerics, scope.device)
        for arm, scope in scopes(checks).items()
    ]


def _batches(scope: ArmScope) -> str | None:
    low, high = scope.smallest_batch, scope.largest_batch
    return None if low is None else str(low) if low == high else f"{low} to {high}"

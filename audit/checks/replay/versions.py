"""Versions of a draft that learns while it serves: one chain that starts at the configured draft.

Within a request a version's number never falls and its digest is that of its parent and its update. Within an arm every
version descends, update by update, from the version in the effective configuration; a resumed run restarts that chain,
so an arm may hold several chains. Cannot see: whether an update's digest matches the learnt weights, because the record
does not hold the weights.
"""

from collections.abc import Iterator
from itertools import pairwise

import numpy as np

from audit.evidence.records import ArmRecord, RequestRecord
from audit.evidence.structure import Violation
from engine.core.versions import DraftVersion
from engine.record.trace import Trace


def version_faults(trace: Trace) -> Iterator[Violation]:
    """Violations within one request; the trace's columns are well-formed."""
    listed = {version.number: version for version in trace.header.draft_versions}
    if not len(trace.draft_version):
        if listed:
            yield Violation(0, "draft versions are listed, but no step says which one drafted")
        return
    numbers = trace.draft_version.tolist()
    for step, (before, now) in enumerate(pairwise(numbers), start=1):
        if now < before:
            yield Violation(step, f"draft version {now} drafted after version {before}")
    for step, number in enumerate(numbers):
        if number not in listed:
            yield Violation(step, f"draft version {number} is not one of those that the record lists")
    for item in listed.values():
        if not item.sound:
            yield Violation(_first(trace, item), f"{_named(item)} does not have the digest of its parent and update")


def unknown_versions(arm: ArmRecord) -> dict[str, tuple[Violation, ...]]:
    """By request id, a violation for each version that does not descend from the arm's configured draft."""
    configured = arm.effective.draft_version
    known = _descendants(arm, configured)
    result = {request.request_id: tuple(_strangers(request, known, configured)) for request in arm.requests}
    return {name: faults for name, faults in result.items() if faults}


def _descendants(arm: ArmRecord, configured: object) -> frozenset[DraftVersion]:
    """The configured version and all its descendants by recorded updates."""
    recorded = {version for request in arm.requests for version in request.trace.header.draft_versions}
    known = {item for item in recorded if item.number == 0 and item.digest == configured}
    for one in sorted(recorded - known, key=lambda version: version.number):
        if any((one.number - 1, one.parent) == (parent.number, parent.digest) for parent in known):
            known.add(one)
    return frozenset(known)


def _strangers(request: RequestRecord, known: frozenset[DraftVersion], configured: object) -> Iterator[Violation]:
    trace = request.trace
    if configured is not None and trace.steps and not len(trace.draft_version):
        yield Violation(0, "the arm's draft learns, but the record does not say which version drafted")
    for version in trace.header.draft_versions:
        if version not in known:
            yield Violation(
                _first(trace, version), f"{_named(version)} does not descend from the arm's configured draft"
            )


def _first(trace: Trace, version: DraftVersion) -> int:
    """The version's first step, 0 if none."""
    steps = np.flatnonzero(trace.draft_version == version.number)
    return int(steps[0]) if len(steps) else 0


def _named(version: DraftVersion) -> str:
    return f"draft version {version.number} ({version.digest[:12]})"

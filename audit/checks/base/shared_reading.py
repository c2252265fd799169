"""Runs several checks on one arm over one reading of its requests."""

from collections.abc import Callable, Generator, Iterator, Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass
from typing import Any

from audit.checks.base.interface import (
    UNJUDGED,
    ByRequest,
    Check,
    broken,
    excuse,
    not_run,
    run_or_fault,
    with_unreadable,
)
from audit.evidence.reading import RequestReading
from audit.evidence.records import ArmRecord, Evidence
from audit.evidence.verdicts import CheckResult, Finding, Params
from engine.core.errors import EngineError

Parts = Sequence[Any]
"""One request's parts, in the order of the checks."""
Reader = Callable[[ArmRecord, Sequence[Check]], Generator[Parts, None, None]]
"""Reads an arm for some checks that have `by_request`, request by request."""


@dataclass(frozen=True, slots=True)
class AskedCheck:
    """A check with the parameters that a suite overrides."""

    check: Check
    overrides: Params


def read_here(arm: ArmRecord, checks: Sequence[Check]) -> Generator[Parts, None, None]:
    """Read an arm in this process."""
    halves = halves_of(checks)
    for request in arm.requests:
        yield parts_of(RequestReading(request, arm), halves)


def halves_of(checks: Sequence[Check]) -> Sequence[ByRequest[Any]]:
    """The two halves of checks that have them."""
    return [half for half in (check.by_request for check in checks) if half is not None]


def parts_of(reading: RequestReading, halves: Sequence[ByRequest[Any]]) -> Parts:
    """One request as the checks read it; a `Finding` in place of a part whose check cannot compute with the record."""
    return [_part_of(reading, half) for half in halves]


def _part_of(reading: RequestReading, half: ByRequest[Any]) -> Any:
    try:
        return half.read(reading)
    except EngineError as error:
        return Finding(reading.request.request_id, 0, f"{UNJUDGED}: {error}")


def evaluate_together(
    asked: Mapping[str, AskedCheck], evidence: Evidence, read: Reader = read_here
) -> Iterator[tuple[str, CheckResult]]:
    """The results by name, in order: those of `audit.checks.base.interface.evaluate`, bit for bit."""
    seen = {name: item.check.seen(evidence) for name, item in asked.items()}
    excuses = {name: excuse(item.check, seen[name]) for name, item in asked.items()}
    shared = {name: item for name, item in asked.items() if excuses[name] is None and item.check.by_request is not None}
    deciding = {
        name: half.begin(seen[name], {**item.check.defaults, **item.overrides})
        for (name, item), half in zip(shared.items(), halves_of([item.check for item in shared.values()]), strict=True)
    }
    unjudged: dict[str, list[Finding]] = {name: [] for name in deciding}
    if deciding:
        # closed at once if a check raises, because other processes may be reading
        with closing(read(evidence.candidate, [item.check for item in shared.values()])) as parts:
            for index, several in enumerate(parts):
                for (name, half), part in zip(deciding.items(), several, strict=True):
                    if index in evidence.candidate.directed and shared[name].check.statistical:
                        continue
                    if isinstance(part, Finding):
                        unjudged[name].append(part)
                    else:
                        half.add(part)
    for name, one in asked.items():
        reason = excuses[name]
        if reason is not None:
            yield name, not_run(reason)
            continue
        if name in deciding:
            result = broken(unjudged[name], deciding[name].result())
        else:
            result = run_or_fault(one.check, seen[name], {**one.check.defaults, **one.overrides})
        yield name, with_unreadable(name, one.check.companions, seen[name], result)

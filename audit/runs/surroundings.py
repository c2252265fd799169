"""A run that goes on elsewhere: what differs between the environment on record and this one.

A run has one environment, to which every one of its requests is attributed. So a run is not resumed in another one,
unless the user accepts the changes; then an event of the run lists them, and the requests from there on are theirs.
"""

from collections.abc import Iterator, Mapping
from typing import Any, Final

from audit.errors import UserError
from audit.evidence.environment import Environment
from audit.store import StoredRun

ABSENT: Final = "none"
SHOWN: Final = 3
"""Changes named in an error message."""


def resumed(record: StoredRun, now: Environment, *, accepted: bool) -> str:
    """The detail of the event that resumes a run.

    Raises:
        UserError: the environment has changed and the user has not accepted it.
    """
    changes = list(differences(record.environment, now))
    if changes and not accepted:
        more = f" and {len(changes) - SHOWN} more" if len(changes) > SHOWN else ""
        raise UserError(
            f"run {record.ulid} began in another environment: {'; '.join(changes[:SHOWN])}{more}; resume it there, "
            "start a new run, or accept the changes with --accept-changes, which records them"
        )
    return f"resumed elsewhere: {'; '.join(changes)}" if changes else "resumed"


def differences(then: Environment, now: Environment) -> Iterator[str]:
    """Each fact that differs, with both values."""
    before, after = dict(_facts(then)), dict(_facts(now))
    for place in dict.fromkeys((*before, *after)):
        one, other = before.get(place, ABSENT), after.get(place, ABSENT)
        if one != other:
            yield f"{place} was {_shown(one)}, is {_shown(other)}"


def _facts(place: Environment) -> Iterator[tuple[str, Any]]:
    parts: Mapping[str, Mapping[str, Any]] = {"": place.hardware, "package ": place.packages, "code ": place.code}
    for prefix, facts in parts.items():
        yield from ((f"{prefix}{name}", value) for name, value in facts.items())


def _shown(value: Any) -> str:
    if isinstance(value, list | tuple):
        return " ".join(map(str, value)) or ABSENT
    # as in the record, where true and false are JSON
    return str(value).lower() if isinstance(value, bool) else str(value)

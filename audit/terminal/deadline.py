"""When something that a person signs expires, as `--expires` gives it."""

from __future__ import annotations

from datetime import UTC, datetime

from audit.errors import UserError
from audit.text.documents import quoted
from audit.text.durations import parse_duration


def deadline(text: str, now: datetime) -> datetime:
    """A moment after `now`: a duration from it, or a date or time in ISO 8601, in UTC unless it has a zone.

    Raises:
        UserError: another text, or a moment that is over.
    """
    duration = parse_duration(text)
    try:
        end = datetime.fromisoformat(text) if duration is None else now + duration
        end = (end if end.tzinfo else end.replace(tzinfo=UTC)).astimezone(UTC)
    except (ValueError, OverflowError) as error:
        problem = "write a duration like 30d or 12h, or a date like 2027-01-31"
        raise UserError(f"--expires {quoted(text)}: {problem}") from error
    if end <= now:
        raise UserError(f"--expires {quoted(text)}: that is over; name a later moment")
    return end

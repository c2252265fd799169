"""Durations as users write and read them, and how far two clocks may be apart."""

import re
from collections.abc import Mapping
from datetime import timedelta
from typing import Final

from audit.errors import UserError
from audit.text.unsafe import quoted

CLOCK_SKEW: Final = timedelta(minutes=5)
"""A moment may be in the future by this much."""
HINT: Final = "write a duration like 30d, 12h, P30D or PT12H"
SHORT: Final = re.compile(r"(?P<number>[0-9]{1,6})(?P<unit>[wdhms])")
ISO: Final = re.compile(
    r"P(?=.)((?P<weeks>[0-9]{1,6})W)?((?P<days>[0-9]{1,6})D)?"
    r"(T(?=.)((?P<hours>[0-9]{1,6})H)?((?P<minutes>[0-9]{1,6})M)?((?P<seconds>[0-9]{1,6})S)?)?"
)
UNITS: Final[Mapping[str, str]] = {"w": "weeks", "d": "days", "h": "hours", "m": "minutes", "s": "seconds"}


def parse_duration(text: str) -> timedelta | None:
    """A duration such as 30d or P1DT12H; None if the text is not one. Years and months have no fixed length."""
    short = SHORT.fullmatch(text)
    if short:
        return timedelta(**{UNITS[short["unit"]]: int(short["number"])})
    iso = ISO.fullmatch(text)
    return timedelta(**{unit: int(value or 0) for unit, value in iso.groupdict().items()}) if iso else None


def age_option(text: str) -> timedelta:
    """The duration above 0 that `--max-age` gives. Raises UserError: another text."""
    age = parse_duration(text)
    if not age:
        raise UserError(f"--max-age {quoted(text)}: {HINT}")
    return age


def duration(seconds: float) -> str:
    """A duration in a readable unit."""
    if seconds < 60.0:
        return f"{seconds:.0f} s"
    return f"{seconds / 60.0:.1f} min" if seconds < 3600.0 else f"{seconds / 3600.0:.1f} h"

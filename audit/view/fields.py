"""Reads filters from the query string of an address.

Text of any kind may stand there: it is cut to `LONGEST` characters, and what a database refuses is replaced.
"""

import re
from collections.abc import Mapping
from datetime import date
from enum import StrEnum
from typing import Final, TypeVar

from audit.errors import UserError
from audit.evidence.verdicts import Verdict
from audit.store.browse.request_list import RequestFilter
from audit.store.browse.run_list import RunEnd, RunFilter

LONGEST: Final = 200
NOT_TEXT: Final = re.compile("[\x00\ud800-\udfff]")
Choice = TypeVar("Choice", bound=StrEnum)


class UnclearAddress(UserError):
    """An address with a value that means nothing; the message is one sentence."""


def text(query: Mapping[str, str], name: str) -> str:
    """A text, without white space around it; empty if it is not given."""
    return NOT_TEXT.sub("\ufffd", query.get(name, "")[:LONGEST]).strip()


def choice(query: Mapping[str, str], name: str, kind: type[Choice]) -> Choice | None:
    """One of several words; None if it is not given. Raises UnclearAddress: another word."""
    word = text(query, name)
    if not word:
        return None
    try:
        return kind(word)
    except ValueError as error:
        words = ", ".join(one.value for one in kind)
        raise UnclearAddress(f"{name} is {word!r}, which is none of {words}") from error


def day(query: Mapping[str, str], name: str) -> date | None:
    """A day; None if it is not given. Raises UnclearAddress: no day."""
    word = text(query, name)
    if not word:
        return None
    try:
        return date.fromisoformat(word)
    except ValueError as error:
        raise UnclearAddress(f"{name} is {word!r}, which is no day such as 2026-01-31") from error


def row(query: Mapping[str, str], name: str) -> int:
    """The number of a row; 0 if it is not given or is no number."""
    word = query.get(name, "")
    return int(word) if word.isascii() and word.isdecimal() and len(word) <= 18 else 0


def run_filter(query: Mapping[str, str]) -> RunFilter:
    """The filter of the list of runs. Raises UnclearAddress: a value means nothing."""
    return RunFilter(
        **{name: text(query, name) for name in ("suite", "model", "engine", "actor")},
        end=choice(query, "end", RunEnd),
        verdict=choice(query, "verdict", Verdict),
        since=day(query, "since"),
        until=day(query, "until"),
    )


def request_filter(query: Mapping[str, str]) -> RequestFilter:
    """The filter of a run's requests."""
    return RequestFilter(
        **{name: text(query, name) for name in ("arm", "domain", "case", "check")},
        divergent=bool(text(query, "divergent")),
    )

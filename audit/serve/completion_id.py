"""The id of a completion, which is the name of its records: `KIND-RUN-NUMBER`, with the run's ULID.

The case of a record is the id, its sample the index of the choice.
"""

import itertools
import re
from collections.abc import Callable
from typing import Final

PATTERN: Final = re.compile(r"(?:chatcmpl|cmpl)-([0-9A-HJKMNP-TV-Z]{26})-[0-9a-z]+")


def new_ids(run: str) -> Callable[[bool], str]:
    """Gives out the ids of a run: (is a chat) -> id."""
    numbers = itertools.count(1)
    return lambda chat: f"{'chatcmpl' if chat else 'cmpl'}-{run}-{next(numbers)}"


def request_name(completion: str, choice: int) -> str:
    """The engine's name of a choice, which findings use too."""
    return f"{completion}#{choice}"


def place_of(name: str) -> tuple[str, int]:
    """The completion behind such a name, and its choice."""
    completion, _, choice = name.rpartition("#")
    return completion, int(choice)


def run_of(name: str) -> str | None:
    """The run of a completion's id, with or without `#CHOICE`; None for another name."""
    matched = PATTERN.fullmatch(name.partition("#")[0])
    return matched[1] if matched else None

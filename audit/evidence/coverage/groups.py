"""The themes of situations, and what a check examines; free of numpy, because every command knows the checks."""

from collections.abc import Callable
from enum import StrEnum
from typing import TYPE_CHECKING, Final, TypeAlias

if TYPE_CHECKING:
    from audit.evidence.coverage.view import Mask
    from audit.evidence.records import RequestRecord

Examined: TypeAlias = "Callable[[RequestRecord], Mask]"
"""[E] the emitted tokens of a candidate's request that a check examines."""


class Group(StrEnum):
    """A theme of situations; a check's claim covers whole groups."""

    DRAFTING = "drafting"
    ENDS = "ends"
    PARAMETERS = "parameters"
    BATCH = "batch"
    PROMPTS = "prompts"
    TREES = "trees"
    CONTEXTS = "contexts"
    EVENTS = "events"


EVERY_GROUP: Final = frozenset(Group)

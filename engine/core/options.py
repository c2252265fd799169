"""The types of a component's settings, with their defaults."""

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Protocol

from engine.core.errors import InvalidRequest


class OptionType(Protocol):
    """The type of a setting."""

    @property
    def default(self) -> Any:
        """The value in effect if none is given."""

    @property
    def wants(self) -> str:
        """The accepted values, in words."""

    def takes(self, value: object) -> bool:
        """True if the setting accepts `value`."""


@dataclass(frozen=True, slots=True)
class ScalarOption:
    """A setting of its default's type: true or false, a whole number, or a number.

    Numbers go from `low` to `high`, both included; true and false may be written as 1 and 0.
    """

    default: float
    low: float = 0
    high: float = math.inf

    @property
    def wants(self) -> str:
        """The accepted values, in words."""
        if isinstance(self.default, bool):
            return "true or false"
        kind = "a whole number" if isinstance(self.default, int) else "a number"
        return (
            f"{kind} from {self.low} to {self.high}" if math.isfinite(self.high) else f"{kind} of at least {self.low}"
        )

    def takes(self, value: object) -> bool:
        """True if `value` has the setting's type and is in its range."""
        if isinstance(self.default, bool):
            return isinstance(value, int) and value in (0, 1)
        if isinstance(value, bool) or not isinstance(value, int | float):
            return False
        whole = isinstance(value, int) or not isinstance(self.default, int)
        return whole and math.isfinite(value) and self.low <= value <= self.high


@dataclass(frozen=True, slots=True)
class ChoiceOption:
    """A setting that takes one of some words."""

    default: str
    words: tuple[str, ...]

    @property
    def wants(self) -> str:
        """The words."""
        return " or ".join(self.words)

    def takes(self, value: object) -> bool:
        """True if `value` is one of the words."""
        return isinstance(value, str) and value in self.words


@dataclass(frozen=True, slots=True)
class NumberListOption:
    """A setting that takes one number or more, written as text: "2,2,1"."""

    default: str
    option: ScalarOption
    """The type of every number."""

    @property
    def wants(self) -> str:
        """The form, by the default, and what each number must be."""
        return f'numbers such as "{self.default}", each {self.option.wants}'

    def takes(self, value: object) -> bool:
        """Whether `value` is such a text."""
        try:
            return isinstance(value, str) and all(self.option.takes(number) for number in numbers(value))
        except ValueError:
            return False


def numbers(text: str) -> tuple[float, ...]:
    """The numbers of a text such as "2,2,1" or "0.7, 0.2"; whole ones are of type int.

    Raises:
        ValueError: a part that is no number.
    """
    parts = [part.strip() for part in text.split(",")]
    return tuple(int(part) if part.isdecimal() else float(part) for part in parts)


def read_options(what: str, given: Mapping[str, Any], known: Mapping[str, OptionType]) -> dict[str, Any]:
    """The `given` settings over the defaults, each of its default's type; `what` begins the messages.

    Raises:
        InvalidRequest: an unknown setting, or a value that it does not take.
    """
    for key, value in given.items():
        if key not in known:
            names = ", ".join(sorted(known)) or "none"
            raise InvalidRequest(f"{what} has no option {key!r}; it has: {names}")
        if not known[key].takes(value):
            raise InvalidRequest(f"{what}: option {key} must be {known[key].wants}, not {value!r}")
    return {key: type(option.default)(given.get(key, option.default)) for key, option in known.items()}

"""Reads the fields of a request's body strictly: a wrong type is refused, an unknown field too.

null counts as absent, as at OpenAI.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from typing import Any

from audit.serve.refusals import ApiRefusal, invalid


class BodyFields:
    """The fields of one body; all methods raise ApiRefusal."""

    def __init__(self, body: Any) -> None:
        if not isinstance(body, Mapping):
            raise invalid("the body is no JSON object")
        self._body = body
        self._left = {name for name, value in body.items() if value is not None}

    def raw(self, name: str) -> Any:
        """The value as it is; None if absent."""
        self._left.discard(name)
        return self._body.get(name)

    def text(self, name: str) -> str | None:
        """A text."""
        value = self.raw(name)
        if value is not None and not isinstance(value, str):
            raise _wrong(name, "a text")
        return value

    def flag(self, name: str, *, default: bool = False) -> bool:
        """True or false."""
        value = self.raw(name)
        if value is None:
            return default
        if not isinstance(value, bool):
            raise _wrong(name, "true or false")
        return value

    def whole(self, name: str, low: int, high: int) -> int | None:
        """A whole number in [low, high]; None if absent."""
        value = self.raw(name)
        if value is None:
            return None
        if isinstance(value, bool) or not isinstance(value, int) or not low <= value <= high:
            raise _wrong(name, f"a whole number from {low} to {high}")
        return value

    def number(self, name: str, low: float, high: float, default: float) -> float:
        """A number in [low, high]."""
        value = self.raw(name)
        if value is None:
            return default
        if isinstance(value, bool) or not isinstance(value, int | float) or not low <= value <= high:
            raise _wrong(name, f"a number from {low:g} to {high:g}")
        return float(value)

    def texts(self, name: str, most: int) -> tuple[str, ...]:
        """A text or a list of texts, none of them empty."""
        value = self.raw(name)
        listed = [value] if isinstance(value, str) else value
        if listed is None:
            return ()
        if not isinstance(listed, list) or len(listed) > most or not all(isinstance(x, str) and x for x in listed):
            raise _wrong(name, f"a text or a list of at most {most} texts, none empty")
        return tuple(listed)

    def ids(self, name: str) -> tuple[int, ...]:
        """A list of token ids."""
        value = self.raw(name)
        if value is None:
            return ()
        if not token_ids(value):
            raise _wrong(name, "a list of token ids")
        return tuple(value)

    def mapping(self, name: str) -> Mapping[str, Any] | None:
        """A JSON object."""
        value = self.raw(name)
        if value is not None and not isinstance(value, Mapping):
            raise _wrong(name, "an object")
        return value

    def fixed(self, allowed: Mapping[str, Collection[Any]]) -> None:
        """Fields of which one value means what the server does anyway; others are refused."""
        for name, values in allowed.items():
            value = self.raw(name)
            if value is not None and value not in values:
                raise invalid(f"{name}: this server has only {' and '.join(map(repr, values))}", name, "unsupported")

    def ignore(self, names: Collection[str]) -> None:
        """Fields that change no answer."""
        self._left -= set(names)

    def end(self) -> None:
        """Refuse what nobody read."""
        if self._left:
            name = min(self._left)
            raise invalid(f"{name}: this server has no such parameter; leave it out", name, "unknown_parameter")


def token_ids(value: Any) -> bool:
    """True for a list of token ids."""
    return isinstance(value, Sequence) and all(type(each) is int and 0 <= each < 2**31 for each in value)


def _wrong(name: str, wanted: str) -> ApiRefusal:
    return invalid(f"{name}: not {wanted}", name)

"""Insert a member into a JSON text and remove it without changing any other character.

Reports are not re-serialised: key order, number spelling, NaN and white space stay
as written. Removing a member restores the exact text before its insertion.
"""

import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

DECODER: Final = json.JSONDecoder()
SPACE: Final = re.compile(r"[ \t\n\r]*")


@dataclass(frozen=True, slots=True)
class Member:
    """One `"key": value` of an object: offsets into the text."""

    key: str
    begin: int
    value: int
    end: int


@dataclass(frozen=True, slots=True)
class ObjectSpan:
    """An object in the text: the offset of its brace, and its members in order."""

    begin: int
    members: tuple[Member, ...]

    def member(self, key: str) -> Member | None:
        """The member called `key`. Raises ValueError: the key is not unique."""
        result = [member for member in self.members if member.key == key]
        if len(result) > 1:
            raise ValueError(f"the key {key!r} appears {len(result)} times")
        return result[0] if result else None


def parse(text: str) -> Any:
    """The JSON value of a text; Python's spellings of NaN and infinities are accepted.

    Raises:
        ValueError: not JSON, or nested too deep.
    """
    try:
        return json.loads(text)
    except RecursionError as error:
        raise ValueError("nested too deep") from error


def object_at(text: str, path: tuple[str, ...]) -> ObjectSpan:
    """The object at a path of keys of a valid JSON text.

    Raises:
        ValueError: a key of the path is missing or ambiguous, or its value is no object.
    """
    span = _scan(text, _skip(text, 0))
    for key in path:
        member = span.member(key)
        if member is None:
            raise ValueError(f"it has no {key!r}")
        span = _scan(text, member.value)
    return span


def insert(text: str, span: ObjectSpan, key: str, value: Mapping[str, Any] | Sequence[Any]) -> str:
    """The text with a member appended to an object, in the layout of the members before it."""
    if not span.members:
        at = span.begin + 1
        return f"{text[:at]}{json.dumps(key)}: {json.dumps(value)}{text[at:]}"
    last = span.members[-1]
    gap = _gap_before(text, last)
    written = json.dumps(value)
    if "\n" in gap:
        written = json.dumps(value, indent=2).replace("\n", "\n" + gap.rpartition("\n")[2])
    return f"{text[: last.end]},{gap}{json.dumps(key)}: {written}{text[last.end :]}"


def remove(text: str, span: ObjectSpan, key: str) -> str:
    """The text without a member and its comma; undoes `insert`."""
    index = next(index for index, member in enumerate(span.members) if member.key == key)
    member = span.members[index]
    if index:
        return text[: span.members[index - 1].end] + text[member.end :]
    after = span.members[1].begin if len(span.members) > 1 else member.end
    return text[: member.begin] + text[after:]


def _skip(text: str, at: int) -> int:
    matched = SPACE.match(text, at)
    return matched.end() if matched else at


def _gap_before(text: str, member: Member) -> str:
    at = member.begin
    while text[at - 1] in " \t\r\n":
        at -= 1
    return text[at : member.begin]


def _scan(text: str, begin: int) -> ObjectSpan:
    """The members of the object at an offset. The text is known to be valid JSON."""
    if text[begin : begin + 1] != "{":
        raise ValueError("what should hold the attachment is not an object")
    members: list[Member] = []
    at = _skip(text, begin + 1)
    while text[at] != "}":
        key, end = DECODER.raw_decode(text, at)
        value = _skip(text, _skip(text, end) + 1)
        _, after = DECODER.raw_decode(text, value)
        members.append(Member(key, at, value, after))
        at = _skip(text, after)
        if text[at] == ",":
            at = _skip(text, at + 1)
    return ObjectSpan(begin, tuple(members))

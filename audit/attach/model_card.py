"""A model card of Hugging Face: Markdown with YAML before it. The pointer is the key `audit` of that YAML.

JSON is YAML, so the value is one line of JSON; every reader of cards keeps keys that it does not know.
"""

import json
import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final

from audit.attach.interface import KEY, PointedReport, decoded
from audit.errors import UserError
from audit.text.documents import parse_yaml

FRONT: Final = re.compile(r"\A---\r?\n(.*?)(?:^|\n)---\r?(?:\n|\Z)", re.DOTALL)


@dataclass(frozen=True, slots=True)
class ModelCard(PointedReport):
    """A card with YAML at its beginning."""

    def models_of(self, report: bytes) -> tuple[str, ...]:
        """The names in the card's list of results."""
        index = _front(report).get("model-index")
        entries = index if isinstance(index, list) else []
        named = (entry.get("name") for entry in entries if isinstance(entry, Mapping))
        return tuple(dict.fromkeys(name for name in named if isinstance(name, str) and name))

    def extract(self, report: bytes) -> Mapping[str, Any] | None:
        """The pointer in the YAML."""
        block = _front(report).get(KEY)
        if block is not None and not isinstance(block, Mapping):
            raise ValueError(f"its key {KEY!r} holds something else")
        return block

    def embed(self, report: bytes, block: Mapping[str, Any]) -> bytes:
        """The card with the pointer as the last key; every other byte is unchanged."""
        text = decoded(report)
        _front(report)
        at = _end(text)
        return f"{text[:at]}{KEY}: {json.dumps(block)}\n{text[at:]}".encode()

    def remove(self, report: bytes) -> bytes:
        """The card without the pointer's line."""
        text = decoded(report)
        at = _end(text)
        begin = text.rfind("\n", 0, at - 1) + 1
        if not text.startswith(f"{KEY}: ", begin):
            raise ValueError("its last key is not the pointer")
        return (text[:begin] + text[at:]).encode()


def _end(text: str) -> int:
    """The offset of the line that ends the YAML."""
    return text.index("---", _matched(text).end(1))


def _matched(text: str) -> re.Match[str]:
    matched = FRONT.match(text)
    if matched is None:
        raise ValueError("it does not begin with YAML between lines of ---")
    return matched


def _front(report: bytes) -> Mapping[str, Any]:
    yaml = _matched(decoded(report))[1]
    try:
        front = parse_yaml("its YAML", yaml.encode()).data
    except UserError as error:
        raise ValueError(str(error)) from error
    if not isinstance(front, Mapping):
        raise ValueError("its YAML is no mapping")
    return front


FORMAT = ModelCard("model_card", lambda name, report: name.endswith(".md") and bool(_front(report)))

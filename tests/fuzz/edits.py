"""Mutations of documents: some edits of the tree, with odd values and words of the schema, then some of the bytes.

An edit is plain data, so the corpus keeps it as JSON and a case shrinks by leaving edits out. A place is a number that
is reduced to the places that the document has, so every edit applies to every document.
"""

from __future__ import annotations

import copy
import json
import random
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any, Final

ODD: Final = (
    None,
    True,
    False,
    0,
    -1,
    1,
    2**31,
    2**63,
    -(2**63) - 1,
    10**30,
    1e308,
    -0.0,
    0.5,
    1e-320,
    "",
    " ",
    "x",
    "NaN",
    "a\nb",
    "\x1b[31mred",
    "\u202egnp",
    "\0",
    "\ud800",
    "=1+1",
    "../../etc/passwd",
    "/dev/null",
    "a" * 300,
    "\U0001d7d9",
    "2026-13-45",
    "sha256:" + "0" * 64,
    [],
    {},
    [[]],
    [None],
    {"": None},
    {"a": {"b": {"c": []}}},
    ["a"] * 50,
)
ODD_BYTES: Final = (
    b"",
    b"\0",
    b"\xff\xfe",
    b"\xef\xbb\xbf",
    b"\x1b]0;t\x07",
    b"NaN",
    b"-Infinity",
    b"1e999",
    b'"',
    b"{",
    b"]",
    b"[" * 5_000,
    b'{"a":' * 5_000,
    b"9" * 5_000,
    b"\n\n",
    b"\r",
    b"---\n",
    b"&a [*a]",
    b"!!python/object:os.system ",
    b"\\ud800",
    b"\xe2\x80\xae",
)
TREE: Final = ("set", "delete", "duplicate", "rename", "wrap", "swap")
BYTES: Final = ("insert", "cut", "flip", "truncate")


@dataclass(frozen=True, slots=True)
class Edit:
    """One change: what, where, where else, and a value for those that need one."""

    op: str
    at: int
    to: int
    value: Any = None


@dataclass(frozen=True, slots=True)
class Case:
    """A mutation of the base document of a kind."""

    kind: str
    edits: tuple[Edit, ...]

    def to_json(self) -> dict[str, Any]:
        """As the corpus keeps it; bytes are in Latin-1."""
        return {"kind": self.kind, "edits": [asdict(edit) for edit in self.edits]}

    @classmethod
    def of_json(cls, document: Mapping[str, Any]) -> Case:
        """The inverse of `to_json`."""
        return cls(document["kind"], tuple(Edit(**edit) for edit in document["edits"]))


def words_of(schema: Any) -> frozenset[Any]:
    """Property names, choices and limits of a schema, with the numbers just beyond the limits."""
    return frozenset(_words(schema))


def _words(schema: Any) -> Iterator[Any]:
    if isinstance(schema, list):
        for item in schema:
            yield from _words(item)
    if not isinstance(schema, dict):
        return
    for key, value in schema.items():
        if key in {"properties", "$defs"} and isinstance(value, dict):
            yield from value
        if key in {"minimum", "maximum", "exclusiveMinimum", "exclusiveMaximum"} and not isinstance(value, bool):
            yield from (value - 1, value, value + 1)
        if key in {"enum", "const"}:
            yield from (item for item in (value if key == "enum" else [value]) if isinstance(item, str))
        yield from _words(value)


def drawn(kind: str, words: frozenset[Any], rng: random.Random, *, binary: bool = False) -> Case:
    """A random case of a kind; `binary` documents have no tree.

    Most edits keep the syntax, so that they reach what reads the content.
    """
    values = (*ODD, *sorted(words, key=repr))
    flat = binary or rng.random() < 0.25
    return Case(kind, tuple(_drawn(rng, values, flat=flat) for _ in range(rng.randint(1, 3))))


def _drawn(rng: random.Random, values: Sequence[Any], *, flat: bool) -> Edit:
    at, to = rng.randrange(10_000), rng.randrange(10_000)
    if not flat:
        # odd values are as frequent as the words of a large schema
        return Edit(rng.choice(TREE), at, to, rng.choice(ODD if rng.random() < 0.5 else values))
    raw = rng.choice(ODD_BYTES) if rng.random() < 0.5 else rng.randbytes(rng.randint(1, 4))
    return Edit(rng.choice(BYTES), at, to, raw.decode("latin-1"))


def edited_tree(document: Any, edits: tuple[Edit, ...]) -> Any:
    """A copy of a JSON document with the edits of its tree."""
    root = [copy.deepcopy(document)]
    for edit in edits:
        if edit.op in TREE:
            _apply(root, edit)
    return root[0]


def edited_bytes(raw: bytes, edits: tuple[Edit, ...]) -> bytes:
    """The bytes with the edits of bytes."""
    for edit in edits:
        if edit.op in BYTES:
            raw = _changed(raw, edit)
    return raw


def as_text(document: Any, edits: tuple[Edit, ...]) -> bytes:
    """A JSON document, which is YAML too, with edits of its tree and then of its bytes."""
    text = json.dumps(edited_tree(document, edits), indent=1, allow_nan=True)
    return edited_bytes(text.encode("utf-8", "surrogatepass"), edits)


def _changed(raw: bytes, edit: Edit) -> bytes:
    at = edit.at * 7919 % (len(raw) + 1)
    end = min(len(raw), at + edit.to % 40)
    value = str(edit.value or "").encode("latin-1", "replace")
    if edit.op == "insert":
        return raw[:at] + value + raw[at:]
    if edit.op == "cut":
        return raw[:at] + raw[end:]
    if edit.op == "truncate":
        return raw[:at]
    return raw[:at] + bytes(byte ^ (1 << edit.to % 8) for byte in raw[at:end]) + raw[end:]


def _apply(root: list[Any], edit: Edit) -> None:
    slots = list(_slots(root))
    slot, other = slots[edit.at % len(slots)], slots[edit.to % len(slots)]
    value = copy.deepcopy(edit.value)
    if edit.op == "set":
        slot.put(value)
    elif edit.op == "delete":
        slot.remove()
    elif edit.op == "duplicate":
        slot.put([slot.get()] * 2)
    elif edit.op == "wrap":
        slot.put({"a": slot.get()} if edit.to % 2 else [slot.get()])
    elif edit.op == "rename":
        slot.rename(value if isinstance(value, str) else repr(value))
    else:
        slot.put(copy.deepcopy(other.get()))


@dataclass(frozen=True, slots=True)
class _Slot:
    """A value inside a list or a mapping."""

    inside: Any
    key: Any

    def get(self) -> Any:
        return self.inside[self.key]

    def put(self, value: Any) -> None:
        self.inside[self.key] = value

    def remove(self) -> None:
        if isinstance(self.inside, dict):
            del self.inside[self.key]
        else:
            self.inside[self.key] = None

    def rename(self, name: str) -> None:
        if isinstance(self.inside, dict):
            self.inside[name] = self.inside.pop(self.key)


def _slots(inside: Any) -> Iterator[_Slot]:
    keys = list(inside) if isinstance(inside, dict) else range(len(inside))
    for key in keys:
        yield _Slot(inside, key)
        if isinstance(inside[key], dict | list):
            yield from _slots(inside[key])

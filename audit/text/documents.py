"""Reads user-written documents: bytes from a file, YAML with line numbers, strict JSON.

Every mistake raises a one-line `UserError`: `path:LINE: problem; fix`.
"""

import io
import json
import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import reduce
from importlib.resources import files
from pathlib import Path, PurePosixPath
from typing import Any, Final

from ruamel.yaml import YAML
from ruamel.yaml.composer import Composer
from ruamel.yaml.error import YAMLError
from ruamel.yaml.nodes import MappingNode, Node, SequenceNode

from audit.errors import UserError
from audit.text.unsafe import quoted

MIB: Final = 2**20
MAX_YAML_BYTES: Final = MIB
MAX_NODES: Final = 20_000
"""Values of a document. The parser is slow: it takes seconds for as many."""
MAX_DEPTH: Final = 50
WIDTH: Final = 110
PLAIN_TAGS: Final = frozenset(f"tag:yaml.org,2002:{name}" for name in ("str", "int", "float", "bool", "null"))
TEXT_TAGS: Final = frozenset(f"tag:yaml.org,2002:{name}" for name in ("str", "timestamp"))

Place = tuple[str | int, ...]
"""Keys and indices from the top of a document to a value."""


@dataclass(frozen=True, slots=True)
class Document:
    """A parsed YAML file: plain JSON values and their line numbers."""

    path: str
    raw: bytes
    data: Any
    lines: Mapping[Place, int] = field(repr=False)

    def line(self, place: Place) -> int:
        """The line of a value, or of the nearest enclosing value with a line."""
        while place not in self.lines:
            place = place[:-1]
        return self.lines[place]

    def error(self, place: Place, problem: str) -> UserError:
        """The error at a place. `problem` names the problem and the fix."""
        return mistake(self.path, self.line(place), problem)


def mistake(path: str, line: int | None, problem: str) -> UserError:
    """The one-line error of a file, or of a line in it."""
    where = path if line is None else f"{path}:{line}"
    return UserError(" ".join(f"{where}: {problem}".split()))


def is_file(path: Path) -> bool:
    """True if there is a file at the path. Raises UserError: no path can be like that."""
    try:
        return path.is_file()
    except OSError as error:
        raise mistake(str(path)[:80], None, f"not a path of a file ({error.strerror}); check it") from error


def read_bytes(path: Path, limit: int) -> bytes:
    """A regular file's bytes.

    Raises:
        UserError: the file is missing, unreadable, a folder, or larger than `limit` bytes.
    """
    if path.is_dir():
        raise mistake(str(path), None, "this is a folder; name a file in it")
    if not path.exists():
        raise mistake(str(path), None, "no such file; check the path")
    if not path.is_file():
        raise mistake(str(path), None, "not a regular file; copy its content into one")
    try:
        with path.open("rb") as stream:
            raw = stream.read(limit + 1)
    except OSError as error:
        raise mistake(str(path), None, f"cannot be read ({error.strerror}); check its permissions") from error
    if len(raw) > limit:
        raise mistake(str(path), None, f"larger than {limit // MIB} MiB; split it or remove what is not needed")
    return raw


def decode_text(path: str, raw: bytes) -> str:
    """UTF-8 text, a byte order mark dropped. Raises UserError: the bytes are not UTF-8."""
    try:
        return raw.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        line = raw.count(b"\n", 0, error.start) + 1
        raise mistake(path, line, f"byte {error.start} is not UTF-8; save the file as UTF-8") from error


def read_yaml(path: Path) -> Document:
    """One YAML document from a file of at most 1 MiB.

    Raises:
        UserError: the file cannot be read, or `parse_yaml` refuses it.
    """
    return parse_yaml(str(path), read_bytes(path, MAX_YAML_BYTES))


def yaml_text(data: Mapping[str, Any]) -> str:
    """A document as YAML, its keys in their order."""
    text, yaml = io.StringIO(), YAML(typ="safe", pure=True)
    yaml.default_flow_style, yaml.width = None, WIDTH
    yaml.representer.sort_base_mapping_type_on_output = False
    yaml.dump(data, text)
    return text.getvalue()


def parse_yaml(path: str, raw: bytes) -> Document:
    """Parse one YAML 1.2 document into plain JSON values.

    Raises:
        UserError: bad YAML, an empty file, more than one document, duplicate or
            non-text keys, tags, numbers that JSON lacks, or too many values.
    """
    text = decode_text(path, raw)
    yaml = YAML(typ="safe", pure=True)
    yaml.Composer = _CountingComposer
    try:
        root = yaml.compose(text)
    except YAMLError as error:
        raise _yaml_mistake(path, text, error) from error
    except _TooMany as error:
        raise mistake(path, error.line, f"more than {MAX_NODES} values; split the file") from error
    except RecursionError as error:
        raise mistake(path, 1, f"nested deeper than {MAX_DEPTH} levels; flatten it") from error
    if root is None:
        raise mistake(path, 1, "the file is empty; write a document into it")
    reader = _Reader(path, yaml)
    return Document(path, raw, reader.value(root, ()), reader.lines)


class _TooMany(Exception):
    def __init__(self, line: int) -> None:
        super().__init__(line)
        self.line = line


class _CountingComposer(Composer):
    """Ends a document of too many values before the rest of it is parsed."""

    count = 0

    def compose_node(self, parent: Any, index: Any) -> Any:
        self.count += 1
        if self.count > MAX_NODES:
            raise _TooMany(self.parser.peek_event().start_mark.line + 1)
        return super().compose_node(parent, index)


def _yaml_mistake(path: str, text: str, error: YAMLError) -> UserError:
    mark: Any = getattr(error, "problem_mark", None)
    problem = getattr(error, "problem", None) or getattr(error, "reason", None) or "cannot be parsed"
    if mark is not None and problem == "but found another document":
        return mistake(path, mark.line + 1, "a second document begins here; keep one document per file")
    if mark is not None:
        return mistake(path, mark.line + 1, f"column {mark.column + 1}: bad YAML, {problem}; fix the syntax")
    line = text.count("\n", 0, getattr(error, "position", 0)) + 1
    return mistake(path, line, f"bad YAML, {problem}; fix the syntax")


@dataclass(slots=True)
class _Reader:
    """Converts nodes to values and records their lines. Each expansion of an alias counts as new values."""

    path: str
    yaml: YAML
    lines: dict[Place, int] = field(default_factory=lambda: {(): 1})
    nodes: int = 0

    def value(self, node: Node, place: Place) -> Any:
        self.nodes += 1
        line = node.start_mark.line + 1
        self.lines.setdefault(place, line)
        if self.nodes > MAX_NODES:
            raise mistake(self.path, line, f"more than {MAX_NODES} values once aliases are expanded; use fewer aliases")
        if len(place) > MAX_DEPTH:
            raise mistake(self.path, line, f"nested deeper than {MAX_DEPTH} levels; flatten it")
        if isinstance(node, MappingNode):
            return self._mapping(node, place)
        if isinstance(node, SequenceNode):
            return [self.value(child, (*place, index)) for index, child in enumerate(node.value)]
        return self._scalar(node, line)

    def _mapping(self, node: MappingNode, place: Place) -> dict[str, Any]:
        values: dict[str, Any] = {}
        for key_node, value_node in node.value:
            line = key_node.start_mark.line + 1
            key = key_node.value
            if not isinstance(key, str) or key_node.tag not in TEXT_TAGS:
                problem = f"the key {quoted(str(key))} is not plain text; write it as text, in quotes if need be"
                raise mistake(self.path, line, problem)
            if key in values:
                raise mistake(self.path, line, f"the key {quoted(key)} appears twice; keep one of them")
            self.lines[(*place, key)] = line
            values[key] = self.value(value_node, (*place, key))
        return values

    def _scalar(self, node: Node, line: int) -> Any:
        if node.tag in TEXT_TAGS:
            return str(node.value)
        if node.tag not in PLAIN_TAGS:
            raise mistake(self.path, line, f"the tag {quoted(node.tag)} is not accepted; write a plain value")
        try:
            value = self.yaml.constructor.construct_object(node)
        except (YAMLError, ValueError) as error:
            problem = f"{quoted(node.value)} cannot be read as a value; put it in quotes"
            raise mistake(self.path, line, problem) from error
        if isinstance(value, float) and not math.isfinite(value):
            raise mistake(self.path, line, f"{node.value} is not a finite number; write a finite one")
        return value


def parse_json(text: str) -> Any:
    """Parse JSON text without duplicate keys, non-finite numbers or lone surrogates.

    Raises:
        ValueError: the text is invalid; the message has the reason, and the caller adds the place.
    """
    try:
        value = json.loads(text, object_pairs_hook=_unique, parse_constant=_refuse)
        json.dumps(value, ensure_ascii=False, allow_nan=False).encode()
    except json.JSONDecodeError as error:
        raise ValueError(f"column {error.colno}: bad JSON, {error.msg}") from error
    except UnicodeEncodeError as error:
        raise ValueError("bad JSON, a lone surrogate is not text") from error
    except RecursionError as error:
        raise ValueError("bad JSON, nested too deep") from error
    return value


def _unique(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    values: dict[str, Any] = {}
    for key, value in pairs:
        if key in values:
            raise ValueError(f"the key {quoted(key)} appears twice")
        values[key] = value
    return values


def _refuse(name: str) -> Any:
    raise ValueError(f"{name} is not a JSON number")


def packaged_file(inside: str) -> Path | None:
    """A path in the packaged `suites`, existing or not; None if it would leave the package."""
    parts = PurePosixPath(inside).parts
    if not parts or ".." in parts or PurePosixPath(inside).is_absolute():
        return None
    # part by part: in Python 3.11 the traversable of a folder without __init__.py joins only one
    return Path(str(reduce(lambda folder, part: folder / part, parts, files("suites"))))

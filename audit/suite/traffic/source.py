"""The key `source` of a workload: which file, how its rows are read, which of them run, and what is masked.

A reader turns each record into a row of the schema `prompt`; what all formats share is here: identifiers, domains,
the sample, the mask, and the line that tells a wrong shape with what the file looks like.
"""

import hashlib
import json
import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Final

from audit.errors import UserError
from audit.text.documents import MIB, mistake, parse_json
from audit.text.unsafe import quoted
from engine.core.errors import InvalidRequest
from engine.core.registry import resolve
from engine.stream.interface import filter_spec

MAX_TRAFFIC_BYTES: Final = 512 * MIB
READERS: Final[Mapping[str, str]] = {
    "chat": "audit.suite.traffic.json_records:chats",
    "csv": "audit.suite.traffic.tables:csv_rows",
    "inspect": "audit.suite.traffic.inspect_samples:samples",
    "lm_eval": "audit.suite.traffic.json_records:lm_eval_samples",
    "openai_batch": "audit.suite.traffic.json_records:requests",
    "parquet": "audit.suite.traffic.tables:parquet_rows",
    "vllm_log": "audit.suite.traffic.vllm_log:requests",
}
"""Formats: functions from a `TrafficFile` to its `TrafficRow`s."""
SIGNS: Final = {
    "arguments": "lm_eval",
    "body": "openai_batch",
    "messages": "chat",
    "conversations": "chat",
    "samples": "inspect",
}
"""Keys of a JSON record by which a format is known, the surest first."""
MAGIC: Final = {b"PAR1": "parquet", b"PK": "inspect"}
HEADER: Final = re.compile(r"(^|[,;\t])\"?(prompt|messages|question|input|instruction|text)\"?([,;\t]|\s*$)", re.I)
LONGEST_ID: Final = 200
LONGEST_DOMAIN: Final = 64


@dataclass(frozen=True, slots=True)
class TrafficSource:
    """Everything of the key `source` but the file.

    columns: for a key of a row (prompt, messages, id, domain), the column that holds it; dots go into objects.
    size: rows drawn by `seed` without replacement; None for all.
    mask: the kinds of personal data to mask, presidio's names; None masks nothing, an empty tuple the default kinds.
    """

    format: str
    columns: Mapping[str, str] = field(default_factory=dict, hash=False)
    size: int | None = None
    seed: int = 0
    mask: tuple[str, ...] | None = None


@dataclass(frozen=True, slots=True)
class TrafficRow:
    """A row of the schema `prompt` and the record that it came from, with its line, or its place from 1."""

    number: int
    row: Mapping[str, Any]
    record: Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class TrafficFile:
    """One file with the columns that the suite names."""

    path: Path
    raw: bytes
    columns: Mapping[str, str]

    def error(self, number: int | None, problem: str) -> UserError:
        """The one-line error of a record of the wrong shape, with what the file looks like."""
        likely = likely_format(self.raw)
        hint = f"the file looks like format: {likely}" if likely else f"the formats are {', '.join(READERS)}"
        return mistake(str(self.path), number, f"{problem}; {hint}")


def likely_format(raw: bytes) -> str | None:
    """The format that the first bytes or the first record look like, or None."""
    for start, name in MAGIC.items():
        if raw.startswith(start):
            return name
    if b" JSON body: {" in raw or b"Received request " in raw:
        return "vllm_log"
    first = raw[: 4 * MIB].decode("utf-8-sig", "replace").lstrip().partition("\n")[0]
    if not first.startswith(("{", "[")):
        return "csv" if HEADER.search(first) else None
    keys = re.findall(r'"(\w+)"\s*:', first if len(first) > 2 else raw[:MIB].decode("utf-8", "replace"))
    return next((name for key, name in SIGNS.items() if key in keys), None)


def traffic_rows(path: Path, raw: bytes, source: TrafficSource) -> Iterator[tuple[int, dict[str, Any]]]:
    """Line and row of each record that the sample holds, in the file's order, masked.

    Raises:
        UserError: a record has another shape, a column is missing, or a package is.
    """
    file = TrafficFile(path, raw, source.columns)
    read: Callable[[TrafficFile], Iterable[TrafficRow]] = resolve(READERS, source.format, "format of traffic")
    mask = _mask(file, source.mask)
    rows = _sample(_named(file, read(file)), source)
    if not rows:
        raise file.error(None, "no record")
    for traffic in rows:
        if mask is not None and "tokens" in traffic.row:
            raise mistake(str(path), traffic.number, "token ids cannot be masked; remove mask, or use a log of texts")
        yield traffic.number, {key: _masked(key, value, mask) for key, value in traffic.row.items()}


def _named(file: TrafficFile, rows: Iterable[TrafficRow]) -> Iterator[TrafficRow]:
    """Rows with an identifier and their domain.

    A row that repeats one of its identifier is left out: it is a retry, or an evaluation's second filter of an answer.
    """
    seen: dict[str, set[str]] = {}
    for traffic in rows:
        row = dict(traffic.row)
        if "domain" in file.columns:
            row["domain"] = _domain(column(file, traffic.number, traffic.record, "domain"))
        given = column(file, traffic.number, traffic.record, "id") if "id" in file.columns else row.pop("id", None)
        name = str(traffic.number) if given is None or not 0 < len(str(given)) <= LONGEST_ID - 20 else str(given)
        content = hashlib.sha256(json.dumps(row, sort_keys=True).encode()).hexdigest()
        known = seen.setdefault(name, set())
        if content in known:
            continue
        known.add(content)
        yield replace(traffic, row={"id": name if len(known) == 1 else f"{name}-{traffic.number}.{len(known)}", **row})


def column(file: TrafficFile, number: int, record: Mapping[str, Any], key: str) -> Any:
    """The value of the column that the suite names for the key. Raises UserError: the record lacks it."""
    value: Any = record
    path = file.columns[key]
    for part in (path,) if path in record else path.split("."):
        if not isinstance(value, Mapping) or part not in value:
            there = ", ".join(map(quoted, value)) if isinstance(value, Mapping) else "nothing"
            raise file.error(number, f"no column {quoted(path)} for {key}; there: {there}")
        value = value[part]
    return value


def _domain(value: Any) -> str:
    """A name as suites have them: other characters become underlines."""
    return re.sub(r"[^A-Za-z0-9._-]+", "_", str(value)).lstrip("._-")[:LONGEST_DOMAIN] or "none"


def _sample(rows: Iterable[TrafficRow], source: TrafficSource) -> Sequence[TrafficRow]:
    """The rows whose keyed hashes are the least: a draw without replacement that no library's generator decides."""
    if source.size is None:
        return list(rows)
    ranked = sorted(rows, key=lambda traffic: hashlib.sha256(f"{source.seed}/{traffic.row['id']}".encode()).digest())
    return sorted(ranked[: source.size], key=lambda traffic: traffic.number)


Mask = Callable[[str], str]


def _mask(file: TrafficFile, kinds: tuple[str, ...] | None) -> Mask | None:
    if kinds is None:
        return None
    try:
        from engine.stream.filters.presidio import build

        rules = build(filter_spec("presidio", "redact", "output", {"entities": list(kinds)} if kinds else {}))
    except InvalidRequest as error:
        raise mistake(str(file.path), None, f"mask: {error}") from error

    def mask(text: str) -> str:
        parts, end = [], 0
        for mark in rules.marks(text):
            # kinds overlap: an address of mail holds one of a site
            if mark.start >= end:
                parts += [text[end : mark.start], f"<{mark.category}>"]
            end = max(end, mark.end)
        return "".join((*parts, text[end:]))

    return mask


def _masked(key: str, value: Any, mask: Mask | None) -> Any:
    """The value with every text in it masked; roles, names and identifiers of calls stay."""
    if mask is None or key in ("id", "domain", "role", "type", "name", "tools", "tool_choice", "tool_call_id"):
        return value
    if isinstance(value, str):
        return mask(value)
    if isinstance(value, Mapping):
        return {name: _masked(name, item, mask) for name, item in value.items()}
    return [_masked(key, item, mask) for item in value] if isinstance(value, list) else value


def parsed(file: TrafficFile, number: int, text: str) -> Any:
    """A record's JSON. Raises UserError: it is none."""
    try:
        return parse_json(text)
    except ValueError as error:
        raise file.error(number, str(error)) from error

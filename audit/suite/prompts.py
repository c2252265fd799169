"""Reads prompt files: JSONL rows, each one case of a workload.

The requests of a suite and their random streams; no two may share one.
"""

import hashlib
import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Final

from jsonschema import Draft202012Validator

import schemas
from audit.errors import UserError
from audit.evidence.records import is_later_turn, later_turn
from audit.suite.spec import Case, Suite
from audit.suite.traffic.source import MAX_TRAFFIC_BYTES, TrafficSource, likely_format, traffic_rows
from audit.text.documents import MIB, decode_text, mistake, parse_json, read_bytes
from audit.text.schema_errors import first_problem
from audit.text.unsafe import quoted
from engine.core.structured import constraint_of
from engine.sampling.rng import stream_of

MAX_PROMPT_BYTES: Final = 64 * MIB
FORMS: Final = ("messages", "prompt", "tokens")
"""Keys of a prompt; each row has exactly one."""


TEMPLATE: Final = "chat_template_kwargs"


@dataclass(frozen=True, slots=True)
class Workload:
    """One entry of a suite's `workloads`, its path resolved."""

    name: str
    path: Path
    domain: str
    limit: int | None = None
    tool_choice: str | Mapping[str, str] = "auto"
    """Of the rows with tools that have none of their own."""
    template: Mapping[str, Any] = field(default_factory=dict, hash=False)
    """Arguments of the chat template, which rows may add to."""
    source: TrafficSource | None = None
    """How the file of another tool is read; None for a prompt file."""


@dataclass(frozen=True, slots=True)
class WorkloadCases:
    """A workload's cases, and the SHA-256 digest of the whole prompt file (32 bytes)."""

    cases: tuple[Case, ...]
    digest: bytes
    lines: tuple[int, ...] = ()
    """The line of each case."""


def read_prompts(workload: Workload) -> WorkloadCases:
    """Read a workload. Validates every row of the file, including rows beyond the limit.

    Raises:
        UserError: the file is unreadable, or a row is invalid; the message has the line.
    """
    raw = read_bytes(workload.path, MAX_PROMPT_BYTES if workload.source is None else MAX_TRAFFIC_BYTES)
    foreign = workload.source
    rows = _lines(workload, raw) if foreign is None else traffic_rows(workload.path, raw, foreign)
    numbered = list(_cases(workload, rows))
    if not numbered:
        raise mistake(str(workload.path), 1, "the file has no rows; write one JSON object per line")
    numbered = numbered[: workload.limit]
    cases, lines = tuple(case for _, case in numbered), tuple(line for line, _ in numbered)
    return WorkloadCases(cases, hashlib.sha256(raw).digest(), lines)


def _lines(workload: Workload, raw: bytes) -> Iterator[tuple[int, Any]]:
    """Number and value of every line of a prompt file that is not blank."""
    path = str(workload.path)
    # not str.splitlines: it also splits at U+2028 and similar, which JSON text may contain
    for number, line in enumerate(decode_text(path, raw).split("\n"), start=1):
        if not line.strip():
            continue
        try:
            row = parse_json(line)
        except ValueError as error:
            _refuse_foreign(workload, number, b"" if raw.lstrip().startswith(b"{") else raw)
            raise mistake(path, number, f"{error}; write one JSON object per line") from error
        if isinstance(row, dict) and not row.keys() & set(FORMS):
            _refuse_foreign(workload, number, line.encode())
        yield number, row


def _refuse_foreign(workload: Workload, number: int, content: bytes) -> None:
    """Tell how to name the file if it looks like another tool's."""
    likely = likely_format(content)
    if likely is not None:
        instead = f"source: {{file: {quoted(workload.path.name)}, format: {likely}}}"
        raise mistake(str(workload.path), number, f"no prompt row; in place of prompts write {instead}")


def _cases(workload: Workload, rows: Iterable[tuple[int, Any]]) -> Iterator[tuple[int, Case]]:
    """Line and case of every row."""
    validator = Draft202012Validator(schemas.load("prompt"))
    first_line: dict[str, int] = {}
    for number, value in rows:
        row = _row(workload, number, value, validator)
        if row["id"] in first_line:
            problem = f"the id {quoted(row['id'])} is already on line {first_line[row['id']]}; give every row its own"
            raise mistake(str(workload.path), number, problem)
        first_line[row["id"]] = number
        yield number, _case(workload, row)


def _row(workload: Workload, number: int, row: Any, validator: Draft202012Validator) -> dict[str, Any]:
    path = str(workload.path)
    if isinstance(row, dict):
        row.setdefault("id", str(number))
    problem = first_problem(row, validator)
    if problem is not None:
        raise mistake(path, number, problem)
    given = [key for key in FORMS if key in row]
    if len(given) != 1:
        count = f"both {' and '.join(given)}" if given else "neither messages nor prompt nor tokens"
        raise mistake(path, number, f"the row has {count}; write exactly one of them")
    problem = _turns_problem(row)
    if problem is not None:
        raise mistake(path, number, problem)
    unused = next((key for key in ("tools", TEMPLATE) if key in row and given == ["prompt"]), None)
    if unused is not None:
        raise mistake(path, number, f"{unused} need the chat template, which prompt does not use; write messages")
    problem = _choice_problem(row.get("tools", ()), _choice(workload, row))
    if problem is not None and (row.get("tools") or "tool_choice" in row):
        raise mistake(path, number, problem)
    if "structured" in row and row.get("tools") and _choice(workload, row) not in ("auto", "none"):
        problem = "structured beside a tool_choice that demands a call: an answer has one grammar; remove one of them"
        raise mistake(path, number, problem)
    checked: dict[str, Any] = row
    return checked


def _turns_problem(row: Mapping[str, Any]) -> str | None:
    if "turns" in row and "tokens" in row:
        return "turns follow a text, and tokens have none; write messages or prompt"
    if is_later_turn(row["id"]):
        return f"the id {quoted(row['id'])} ends as those of later turns do; give the row another one"
    return None


def _choice(workload: Workload, row: Mapping[str, Any]) -> str | Mapping[str, str]:
    chosen: str | Mapping[str, str] = row.get("tool_choice", workload.tool_choice)
    return chosen


def _choice_problem(tools: Sequence[Mapping[str, Any]], choice: str | Mapping[str, str]) -> str | None:
    """Why the choice does not fit the tools, and the correction; None if it does."""
    if not tools:
        return "tool_choice without tools; add them, or remove it"
    names = [tool.get("function", tool).get("name") for tool in tools]
    if isinstance(choice, str) or choice["name"] in names:
        return None
    return f"tool_choice names {quoted(choice['name'])}, which is not among the tools; write one of their names"


def _case(workload: Workload, row: dict[str, Any]) -> Case:
    return Case(
        id=f"{workload.name}/{row['id']}",
        workload=workload.name,
        domain=row.get("domain", workload.domain),
        messages=tuple(row.get("messages", ())),
        tools=tuple(row.get("tools", ())),
        tool_choice=_choice(workload, row),
        template={**workload.template, **row.get(TEMPLATE, {})} if "messages" in row else {},
        prompt=row.get("prompt"),
        tokens=tuple(map(int, row.get("tokens", ()))),
        samples=tuple(map(int, row["samples"])) if "samples" in row else None,
        structured=constraint_of(row["structured"]) if "structured" in row else None,
        turns=tuple(row.get("turns", ())),
    )


def following(case: Case, answer: str) -> Case:
    """The next turn of a session whose last one was answered so; its prompt holds everything before it."""
    said, *later = case.turns
    prompt = None if case.prompt is None else case.prompt + answer + said
    spoken = ({"role": "assistant", "content": answer}, {"role": "user", "content": said})
    messages = (*case.messages, *spoken) if prompt is None else ()
    name = later_turn(case.id, prompt or json.dumps(messages))
    return replace(case, id=name, messages=messages, prompt=prompt, turns=tuple(later))


@dataclass(frozen=True, slots=True)
class RequestSlot:
    """One request of an arm: a case and a sample number."""

    case: Case
    sample: int

    @property
    def stream(self) -> int:
        """The random stream: equal in every arm, different for every case and sample of the suite."""
        given = None if self.case.direction is None else self.case.direction.stream
        return given if given is not None else stream_of(f"{self.case.id}#{self.sample}")


def require_streams(suite: Suite) -> None:
    """Reject a suite if two requests of an arm would draw the same random numbers.

    Pooled tests need independent requests: with shared numbers they reject clean engines or miss faults.

    Raises:
        UserError: two requests share a stream; the message names the first two.
    """
    first: dict[int, RequestSlot] = {}
    for case in suite.cases:
        for sample in case.repetitions(suite.samples):
            slot = RequestSlot(case, sample)
            other = first.setdefault(slot.stream, slot)
            if other is not slot:
                names = f"{other.case.id}#{other.sample} and {case.id}#{sample}"
                raise UserError(
                    f"{suite.path}: requests {names} would share seed {suite.seed} and stream {slot.stream}; "
                    "give one of the cases another id"
                )

"""in-toto Statements (v1) that bind a run to a report by digest, as plain JSON.

Format: https://github.com/in-toto/attestation, spec/v1/statement.md. A statement is not signed: it states the binding,
but does not identify its author.
"""

import hashlib
import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from jsonschema import Draft202012Validator

import schemas
from audit.attest.statement import InToto, SignedStatement, StatementSubject, unverified
from audit.errors import CannotDecide, UserError
from audit.text.documents import MIB, decode_text, mistake, parse_json, read_bytes
from audit.text.schema_errors import first_problem

VERSION: Final = 1
"""Version of the predicate."""
PREDICATE_TYPE: Final = f"https://specaudit.dev/attachment/v{VERSION}"
MAX_STATEMENT_BYTES: Final = 16 * MIB


@dataclass(frozen=True, slots=True)
class Statement:
    """A binding of a run to a report. All digests are hex SHA-256."""

    report: str
    """File name of the report."""
    after: str
    before: str
    record_root: str
    predicate: Mapping[str, Any]
    read_names: tuple[str, ...] | None = None
    """Names of the second and third subject, of a statement that was read."""

    @property
    def names(self) -> tuple[str, ...]:
        """Names of the second and third subject."""
        return self.read_names or (f"{self.report}#before", f"run:{self.predicate['run']}")

    def in_toto(self) -> InToto:
        """The statement as any other."""
        subjects = map(StatementSubject, (self.report, *self.names), (self.after, self.before, self.record_root))
        return InToto(tuple(subjects), PREDICATE_TYPE, self.predicate)

    def to_json(self) -> dict[str, Any]:
        """The statement in in-toto's JSON form."""
        return self.in_toto().to_json()

    def to_bytes(self) -> bytes:
        """Content of the statement's file."""
        return (json.dumps(self.to_json(), indent=2) + "\n").encode()


def digest(content: bytes) -> str:
    """Hex SHA-256 of the statement's file."""
    return hashlib.sha256(content).hexdigest()


def statement_path(report: Path) -> Path:
    """Default path of a report's statement: beside the report."""
    return report.with_name(f"{report.name}.intoto.json")


def read_statement(path: Path) -> Statement:
    """Read a statement.

    Raises:
        CannotDecide: the file does not exist.
        UserError: the file is not a statement of this kind.
    """
    if not path.exists():
        raise CannotDecide(
            f"{path}: no such statement; name it with --statement, or attach evidence: audit attach RUN REPORT"
        )
    text = decode_text(str(path), read_bytes(path, MAX_STATEMENT_BYTES))
    try:
        document = parse_json(text)
    except ValueError as error:
        raise mistake(str(path), None, f"{error}; name the statement that audit attach wrote") from error
    return from_json(document, str(path))


def from_json(document: Any, place: str) -> Statement:
    """A statement from its JSON form. Raises UserError: it is not a statement of this kind."""
    problem = first_problem(document, Draft202012Validator(schemas.load("attachment")))
    if problem is not None:
        raise mistake(place, None, f"not an attachment statement: {problem}")
    after, before, root = (subject["digest"]["sha256"] for subject in document["subject"])
    first, *others = (subject["name"] for subject in document["subject"])
    return Statement(first, after, before, root, document["predicate"], tuple(others))


FOLDER: Final = ".audit"
"""Holds `NAME.intoto.jsonl`, an in-toto bundle of one envelope per line; viewers of evaluations list neither."""


def sidecar_path(report: Path) -> Path:
    """Where the signed statements of a report are."""
    return report.parent / FOLDER / f"{report.name}.intoto.jsonl"


def line_of(item: SignedStatement) -> bytes:
    """An envelope as one line."""
    return json.dumps(json.loads(item.text)).encode("ascii") + b"\n"


def with_line(path: Path, item: SignedStatement, *, replace: bool) -> bytes:
    """The bundle at the path, if there is one, with a further envelope; `replace` drops those of the same run.

    Raises:
        UserError: the file is no bundle.
    """
    earlier = envelopes(path) if path.exists() else ()
    run = item.statement.predicate["run"]
    kept = [line for line in earlier if not (replace and _run_of(line, path) == run)]
    return b"".join([*(line + b"\n" for line in kept), line_of(item)])


def _run_of(line: bytes, path: Path) -> object:
    return unverified(line, str(path)).statement.predicate.get("run")


def envelopes(path: Path) -> tuple[bytes, ...]:
    """The envelopes of a bundle. Raises UserError: the file is empty or cannot be read."""
    lines = tuple(line for line in read_bytes(path, MAX_STATEMENT_BYTES).splitlines() if line.strip())
    if not lines:
        raise mistake(str(path), None, "it holds no statement")
    return lines


def make_folder(path: Path) -> None:
    """Make the folder of a bundle. Raises UserError: it cannot be made."""
    try:
        path.parent.mkdir(exist_ok=True)
    except OSError as error:
        raise UserError(f"{path.parent}: cannot be made ({error.strerror}); name a place with --statement") from error

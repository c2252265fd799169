"""A store of a stranger, with hostile text in its columns: nothing acts on a page, in Markdown, a terminal or a table.

Its owner can write anything, so texts are put into the rows past every check: into all columns of free text at once,
and into each other column by itself, because there a text keeps a run from being read, which must be one line.
"""

from __future__ import annotations

import json
import shutil
import sqlite3
from collections.abc import Iterator
from pathlib import Path
from urllib.parse import urlencode

import pytest
from sqlalchemy import JSON

from audit.errors import CannotDecide, UserError
from audit.report.html.markdown import markdown_of
from audit.report.html.registry import sections, source_of
from audit.report.html.render import render_page
from audit.store import Store, migrate
from audit.store.tables.runs import Base
from tests.audit.invoke import invoke
from tests.audit.store.build import fill_every_table
from tests.audit.view.asking import Asking
from tests.support.inert import alive_in_csv, alive_in_markdown, alive_in_page, unprintable

HOSTILE = (
    "=1+1<script>alert(1)</script><img src=x onerror=alert(2)></td></pre>\u202eevil\u2066\u200b\x1b[31m\x1b]0;t\x07"
    "\x9b2J\r`x`|y|[a](javascript:b) {{ 7*7 }} '\"><svg onload=alert(3)>\n=2+2\n::error::x"
)
NO_UTF8 = b"\xff\xfe\xc3(\xed\xa0\x80"
LONG = HOSTILE + "<b onclick=alert(1)> " * 50_000
"""A line of a megabyte."""
FREE = (
    *("artifact.name", "artifact.revision", "run.suite_name", "run.actor", "run.purpose", "run.ticket"),
    *("run.code_commit", "run_artifact.name", "run_artifact.revision", "run_event.detail", "arm.name"),
    *("environment.packages", "environment.hardware", "environment.code", "request.case_id", "request.domain"),
    *("content.text", "token_piece.piece", "constraint_event.library", "tool_event.name", "safety_event.category"),
    *("check_result.summary", "check_result.details", "finding.findings", "gate_decision.reasons"),
    *("gate_decision.actor", "attachment.location", "judgement.actor", "erasure.reason", "erasure.actor"),
)
"""Columns whose text nothing but people reads."""
COMMANDS = (
    *(
        ("list",),
        ("show",),
        ("show", "latest", "spec/case-a#0"),
        ("coverage",),
        ("db", "check"),
        ("disclose",),
        ("checklist",),
    ),
    *(("diff", "latest", "latest"), ("query", "checks"), ("query", "slow"), ("bom",), ("judge", "--dry-run")),
    *(("report", "--format", name) for name in ("junit", "sarif", "github")),
    *(("gate", "latest", "--policy", "standard", "--no-subject"), ("disclose", "--format", "markdown")),
)
CHECKS = ("query", "checks", "--format")
MARKDOWN = (("report", "--format", "summary"), (*CHECKS, "markdown"))


@pytest.fixture(scope="module")
def clean(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("clean") / "audit.db"
    migrate.upgrade(str(path))
    fill_every_table(str(path))
    return path


def columns() -> list[str]:
    """Every column of text, JSON included."""
    return [
        f"{table.name}.{column.name}"
        for table in Base.metadata.sorted_tables
        for column in table.columns
        if isinstance(column.type, JSON) or column.type.python_type is str
    ]


def replaced(value, text: str):
    """A JSON value with every text in it replaced; names of keys stay, because readers look them up."""
    if isinstance(value, dict):
        return {key: replaced(part, text) for key, part in value.items()}
    if isinstance(value, list):
        return [replaced(part, text) for part in value]
    return text if isinstance(value, str) else value


def spoiled(clean: Path, folder: Path, names: list[str], text: str | bytes) -> str:
    """A copy of the store with the text in these columns of every row, made distinct where it must be."""
    path = folder / "spoiled.db"
    shutil.copy(clean, path)
    connection = sqlite3.connect(path)
    connection.text_factory = lambda held: held.decode("utf-8", "replace")
    for (trigger,) in connection.execute("SELECT name FROM sqlite_master WHERE type = 'trigger'").fetchall():
        connection.execute(f"DROP TRIGGER {trigger}")
    for name in names:
        table, column = name.split(".")
        keys = [key.name for key in Base.metadata.tables[table].primary_key]
        rows = connection.execute(f"SELECT {column}, {', '.join(keys)} FROM {table} WHERE {column} IS NOT NULL")
        for number, (held, *key) in enumerate(rows.fetchall()):
            kind, value = Base.metadata.tables[table].columns[column].type, text
            if isinstance(kind, JSON) and isinstance(text, str):
                known = replaced(json.loads(held), text)
                value = json.dumps(known | {text: text} if isinstance(known, dict) else known)
            put(
                connection,
                f"UPDATE {table} SET {column} = ? WHERE {' AND '.join(f'{name} = ?' for name in keys)}",
                value,
                key,
                number,
            )
    connection.commit()
    connection.close()
    return f"sqlite:///{path}"


def put(connection: sqlite3.Connection, update: str, value: str | bytes, key: list[object], number: int) -> None:
    """Write a value, with a number behind it where it must be unique; bytes as the text that they are not."""
    statement = update.replace("= ?", "= CAST(? AS TEXT)", 1)
    try:
        connection.execute(statement, (value, *key))
    except sqlite3.IntegrityError:
        connection.execute(statement, (value + (str(number) if isinstance(value, str) else b"%d" % number), *key))


def offenders(url: str) -> Iterator[str]:
    """What acts or breaks in anything that shows a run of the store."""
    for command in COMMANDS:
        yield from printed(url, *command, check=unprintable)
    for command in MARKDOWN:
        yield from printed(url, *command, check=alive_in_markdown)
    yield from of_tables(url, "run", "arm", "request", "check_result", "run_event", "v_request", "v_check")
    yield from of_report(url)
    yield from of_viewer(url, [section.name for section in sections()])


def few_offenders(url: str, table: str) -> Iterator[str]:
    """The same in what is read first."""
    for command in (("show",), ("list",)):
        yield from printed(url, *command, check=unprintable)
    yield from of_tables(url, table)
    yield from of_report(url)
    yield from of_viewer(url, ["verdicts", "provenance", "findings"], whole=False)


def of_tables(url: str, *tables: str) -> Iterator[str]:
    for table in tables:
        yield from printed(url, "query", "--sql", f"SELECT * FROM {table}", "--format", "csv", check=alive_in_csv)


def printed(url: str, *command: str, check) -> Iterator[str]:
    name, result = " ".join(command), invoke(*command, "--store", url)
    if not isinstance(result.exception, SystemExit | None) or "Traceback" in result.stderr:
        yield f"{name}: exit code {result.exit_code}: {result.exception!r}"
    yield from (f"{name}: {one}" for one in (*check(result.stdout), *unprintable(result.stderr)))
    yield from (f"{name}: {line[:60]}" for line in result.stderr.splitlines() if len(line) > 9_000)


def of_report(url: str) -> Iterator[str]:
    try:
        with Store.open(url, create=False, read_only=True) as store:
            page = render_page(source_of(store, store.resolve("latest")))
    except (UserError, CannotDecide) as error:
        yield from map(repr, unprintable(str(error))) if not str(error).isprintable() else ()
        return
    yield from (f"report: {one}" for one in alive_in_page(page) if one != "<style>")
    yield from (f"Markdown of the report: {one}" for one in alive_in_markdown(markdown_of(page)))
    if len(page) > 20_000_000:
        yield f"a report of {len(page)} characters"


def of_viewer(url: str, names: list[str], *, others: bool = True, whole: bool = True) -> Iterator[str]:
    """Of pages; where the store is not `whole`, a page may be the sentence that it could not be made."""
    ask = Asking(url)
    with sqlite3.connect(url.removeprefix("sqlite:///")) as connection:
        connection.text_factory = lambda held: held.decode("utf-8", "replace")
        run = connection.execute("SELECT ulid FROM run ORDER BY id DESC").fetchone()[0]
    queries = [urlencode({"a": run, "b": run}), urlencode({"name": "spec/case-a#0"}, errors="replace")]
    paths = ["/", "/trends", f"/diff?{queries[0]}"] if others else []
    if run.isalnum() and run.isascii():
        paths += [f"/runs/{run}/{name}" for name in names]
        paths += (
            [f"/runs/{run}/requests"] if not others else [f"/runs/{run}/requests", f"/runs/{run}/request?{queries[1]}"]
        )
    for path in paths:
        answer = ask.get(path)
        yield from (f"{path}: {one}" for one in alive_in_page(answer.text))
        if answer.status_code == 500 and whole:
            yield f"{path}: {ask.reported[-1][:200]}"


@pytest.mark.medium
def test_free_text_in_a_run_and_in_its_tables(clean, tmp_path):
    url = spoiled(clean, tmp_path, list(FREE), HOSTILE)
    found = [*printed(url, "show", check=unprintable), *printed(url, *CHECKS, "csv", check=alive_in_csv)]
    assert [*found, *of_viewer(url, ["verdicts", "findings"], others=False)] == []


@pytest.mark.slow
@pytest.mark.parametrize("text", [HOSTILE, LONG, NO_UTF8], ids=["hostile", "megabyte", "bytes"])
def test_all_columns_of_free_text_at_once(clean, tmp_path, text):
    assert [*offenders(spoiled(clean, tmp_path, list(FREE), text))] == []


@pytest.mark.slow
@pytest.mark.parametrize("text", [HOSTILE, NO_UTF8], ids=["hostile", "bytes"])
def test_each_other_column_by_itself(clean, tmp_path, text):
    found = {}
    for name in sorted({*columns()} - {*FREE}):
        acting = [*few_offenders(spoiled(clean, tmp_path, [name], text), name.partition(".")[0])]
        if acting:
            found[name] = acting[:5]
    assert found == {}, "\n".join(f"{name}: {acting}"[:1000] for name, acting in found.items())


def test_the_sweeps_cover_every_column_of_text():
    assert {*FREE} <= {*columns()}
    assert len(columns()) > 100

"""Transcripts of commands in a page: a block that begins with ``$ audit ...`` and shows a part of the output.

``python -m docs.tools.readme_transcripts README.md`` runs the commands and
rewrites the blocks; a test compares the page with a fresh run. `SHOWN` says which
rows of which command the page shows; `...` stands for the others. Numbers may
differ a little, because another processor rounds otherwise and may sample other
tokens; words, rows and their order may not. Run ids are not compared.
"""

from __future__ import annotations

import re
import shlex
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Final

import click
from click.testing import CliRunner

from audit.cli import main

COLUMNS: Final = 118
"""Width of the tables, fixed so that the page does not depend on a terminal."""
BLOCK: Final = re.compile(r"^```\n\$ (?P<command>audit [^\n]*)\n(?P<output>.*?)^```$", re.MULTILINE | re.DOTALL)
ULID: Final = re.compile(r"^[0-9A-HJKMNP-TV-Z]{26}$")
NUMBER: Final = re.compile(r"-?\d+(?:\.\d+)?(?:e-?\d+)?")
TOLERANCE: Final = 0.25
"""Largest relative difference of two numbers at one place."""
ELIDED: Final = "..."
SHOWN: Final[Mapping[str, tuple[str, ...]]] = {"audit run quickstart": (".*",)}
"""Patterns of the first lines of the rows that a page shows, by command."""


def output_of(command: str) -> str:
    """What a command prints to stdout, with a data folder of its own.

    Raises:
        RuntimeError: the command does not exit with 0.
    """
    _, *arguments = shlex.split(command)
    with tempfile.TemporaryDirectory() as folder:
        environment = {"COLUMNS": str(COLUMNS), "XDG_DATA_HOME": folder, "AUDIT_STORE": None}
        done = CliRunner().invoke(main, arguments, env=environment)
    if done.exit_code != 0:
        raise RuntimeError(f"{command}: exit code {done.exit_code}: {done.stdout}{done.stderr}")
    return done.stdout


def excerpt(output: str, shown: Sequence[str]) -> str:
    """The rows whose first line matches one of the patterns, with `...` for each run of others."""
    lines: list[str] = []
    for row in _rows(output):
        if any(re.match(pattern, row[0]) for pattern in shown):
            lines += row
        elif lines[-1:] != [ELIDED] and (row[0] or lines[-1:] != [""]):
            lines.append(ELIDED if row[0] else "")
    return "".join(f"{line}\n" for line in lines)


def _rows(output: str) -> Iterator[list[str]]:
    """The rows of tables, each with its continuation lines, and all other lines."""
    row: list[str] = []
    for line in output.splitlines():
        if row and not line.startswith(" "):
            yield row
            row = []
        row.append(line.rstrip())
    if row:
        yield row


def transcripts(page: str) -> Mapping[str, str]:
    """The transcripts of a page by command."""
    return {match["command"]: match["output"] for match in BLOCK.finditer(page)}


def rewritten(page: str, fresh: Mapping[str, str]) -> str:
    """The page with the transcripts of these commands replaced."""

    def block(match: re.Match[str]) -> str:
        command = match["command"]
        return f"```\n$ {command}\n{fresh.get(command, match['output'])}```"

    return BLOCK.sub(block, page)


def differences(before: str, after: str) -> list[str]:
    """Words that differ between two transcripts, and numbers that differ by more than the tolerance."""
    old, new = before.split(), after.split()
    if len(old) != len(new):
        return [f"{len(old)} words, now {len(new)}"]
    return [f"{first}, now {second}" for first, second in zip(old, new, strict=True) if not _alike(first, second)]


def _alike(first: str, second: str) -> bool:
    if ULID.match(first) and ULID.match(second):
        return True
    if NUMBER.sub("#", first) != NUMBER.sub("#", second):
        return False
    pairs = zip(map(float, NUMBER.findall(first)), map(float, NUMBER.findall(second)), strict=True)
    return all(abs(one - two) <= TOLERANCE * max(abs(one), abs(two)) for one, two in pairs)


def fresh_transcripts(page: str) -> Mapping[str, str]:
    """Run every command of the page's transcripts.

    Raises:
        KeyError: `SHOWN` lacks a command.
    """
    return {command: excerpt(output_of(command), SHOWN[command]) for command in transcripts(page)}


@click.command("readme_transcripts")
@click.argument("page", type=click.Path(exists=True, dir_okay=False, path_type=Path))
def write(page: Path) -> None:
    """Run the commands of the transcripts in PAGE and rewrite those that differ."""
    text = page.read_text(encoding="utf-8")
    fresh = fresh_transcripts(text)
    drifted = {name: fresh[name] for name, before in transcripts(text).items() if differences(before, fresh[name])}
    page.write_text(rewritten(text, drifted), encoding="utf-8")


if __name__ == "__main__":
    write()

"""Write docs/cli.md from the help of the commands.

``python -m docs.tools.cli_page docs/cli.md`` writes the page; a test
compares it with the current help.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

import click

from audit.cli import main
from docs.tools.written_page import page_writer

WIDTH: Final = 100
"""Columns of the help, fixed so that the page does not depend on a terminal."""
HEAD: Final = """\
# Command line

Generated from the commands' own `--help`; `make docs` regenerates this page.

stdout is data, stderr is messages. The commands that read data print tables by default, and JSON with `--json`
or `--format json`. A RUN is a run's id (a ULID), an unambiguous prefix of one, or `latest`.

On a terminal, and wherever `COLUMNS` is set, tables fit that width: the last column wraps under itself, and
columns that do not fit move to an indented line of their row. In a pipe or a file, and with `--wide`, each row is one
line.

On a terminal, `audit run` and `audit resume` show one table with a row per arm: requests, tokens/s, the time that is
left, and verdicts as they come. Verdicts and the tokens of `audit show RUN REQUEST` are coloured. `NO_COLOR` removes
the colours, `TERM=dumb` the table too; a pipe or a file gets plain lines.

| exit code | meaning |
|---|---|
| 0 | pass, or allow |
| 1 | fail, or block: a claim is broken, a digest differs |
| 2 | usage or invalid input: one line on stderr names the file, the place and the fix |
| 3 | cannot decide: evidence is missing, stale or inconclusive |

Everything but 0 blocks. See [suites](suite.md), [the store](store.md) and [gates](how-to/gate-a-deployment.md).
"""


def contexts(context: click.Context) -> Iterator[click.Context]:
    """The context of a command, then those of its subcommands, by name."""
    yield context
    command = context.command
    if isinstance(command, click.Group):
        for name in command.list_commands(context):
            child = command.get_command(context, name)
            if child is not None:
                yield from contexts(click.Context(child, context, name, terminal_width=WIDTH))


def section(context: click.Context) -> str:
    """One command's heading and help."""
    return f"## {context.command_path}\n\n```text\n{context.get_help()}\n```\n"


def page() -> str:
    """The whole page."""
    root = click.Context(main, info_name="audit", terminal_width=WIDTH, **main.context_settings)
    return "\n".join([HEAD, *(section(each) for each in contexts(root))])


write = page_writer(page)

if __name__ == "__main__":
    write()

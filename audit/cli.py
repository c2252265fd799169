"""The `audit` command: registers commands and maps errors to exit codes.

Exit codes everywhere: 0 pass or allow, 1 fail or block, 2 usage or invalid
input, 3 cannot decide. stdout is data, stderr is messages.
"""

import errno
import gc
import importlib
import keyword
import logging
import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any, Final

import click

from audit.errors import ENGINE, CannotDecide, UserError, needs
from audit.text.printer import echo, note
from audit.text.unsafe import visible_lines

SECTIONS: Final[Mapping[str, Mapping[str, str]]] = {
    "run": {
        "init": "Write the first suite for a model.",
        "run": "Run a suite: a YAML file or the name of a packaged one.",
        "plan": "Estimate whether a suite is large enough, and its time.",
        "validate": "Check a suite and print what it would run.",
        "resume": "Continue an interrupted run.",
        "judge": "Judge a run again from its record.",
        "minimize": "Find a small reproducer of a fault.",
        "sweep": "Find the fastest draft length of each arm.",
        "eval": "Compare an evaluation with and without speculation.",
        "join": "Join the shards of a run, and judge it.",
        "selftest": "Judge deliberately broken arms and clean ones.",
    },
    "look": {
        "list": "List the newest runs of a store.",
        "show": "Show a run, or one request token by token.",
        "report": "Write the report of a run as one HTML file.",
        "query": "Query the store by a named query or in SQL.",
        "coverage": "Show the situations that a run met.",
        "diff": "Show what differs between two runs.",
        "replay": "Decode a run again and compare every token.",
        "parity": "Compare instances of one engine.",
        "help": "Explain a command, a check or any other topic.",
    },
    "decide": {
        "gate": "Decide on a run by a policy, and record the decision.",
        "review": "Sign an approval or a rejection of a run.",
        "waive": "Sign a waiver of one unmet requirement.",
        "disclose": "Write the plain statement about a run's speculation.",
        "profile": "Print what a run was asked, for the gate's --serves.",
        "checklist": "Answer what production asks of a run.",
        "controls": "Show the evidence for clauses of laws and standards.",
        "admission": "Admit pods to Kubernetes by the gate's decisions.",
    },
    "share": {
        "attach": "Attach the evidence of a run to a report.",
        "verify": "Check a report against its store, or a bundle.",
        "export": "Write a run to a file that others can verify.",
        "import": "Verify a bundle, and add its run to a store.",
        "attest": "Sign statements about a run.",
        "register": "Log the digests of a suite and a policy before a run.",
        "bom": "Print a CycloneDX bill of materials of a run.",
        "keys": "Make and show the keys that sign.",
        "schema": "Print a JSON Schema, or the names of all.",
    },
    "operate": {
        "doctor": "Check this installation.",
        "probe": "Find out what a server is and what it speaks.",
        "serve": "Serve a model to OpenAI clients, and record all answers.",
        "watch": "Follow a live server; alarm when acceptance fell.",
        "view": "Show the pages of a store in a browser.",
        "convert": "Convert a model for another engine.",
        "db": "Maintain the provenance store.",
    },
}
"""Short help of each command by section, the first day's commands first: `audit --help` imports none of them."""
COMMANDS: Final = {name: section for section, commands in SECTIONS.items() for name in commands}
"""The section of each command, which is also the folder of its module."""
FIRST: Final = ("init", "run", "plan", "validate", "list", "show", "report", "query", "gate", "doctor")
"""The commands of the first day."""
EXAMPLE: Final = ("audit run quickstart", "audit show latest", "audit gate latest --policy standard")


def _import_uncollected(module: str) -> None:
    """Import a module without garbage collection: classes and functions stay, and each pass would walk over them."""
    collecting = gc.isenabled()
    gc.disable()
    try:
        importlib.import_module(module)
        gc.freeze()
    finally:
        if collecting:
            gc.enable()


@contextmanager
def _visible_usage() -> Iterator[None]:
    """Make click's own errors visible, which quote arguments: click prints them itself."""
    try:
        yield
    except click.ClickException as error:
        text = visible_lines(error.format_message().expandtabs(2))
        raise click.UsageError(text, getattr(error, "ctx", None)) from error


class _Notes(logging.Handler):
    """Shows what the store or the engine has to say while a command waits for it."""

    def emit(self, record: logging.LogRecord) -> None:
        note(f"audit: {record.getMessage()}")


class LazyGroup(click.Group):
    """A group that imports a command on first use; `audit --help` imports none."""

    def list_commands(self, ctx: click.Context) -> list[str]:  # noqa: ARG002 - click's signature
        """All names, section by section."""
        return list(COMMANDS)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:  # noqa: ARG002 - click's signature
        """The command behind a name."""
        if cmd_name not in COMMANDS:
            return None
        # a keyword names no module
        name = "import_bundle" if keyword.iskeyword(cmd_name) else cmd_name
        module = f"audit.commands.{COMMANDS[cmd_name]}.{name}"
        if module not in sys.modules:
            _import_uncollected(module)
        command: click.Command = sys.modules[module].command
        return command

    def resolve_command(self, ctx: click.Context, args: list[str]) -> Any:
        """As click's; an unknown name is answered with the nearest one."""
        if args[0] not in COMMANDS:
            from difflib import get_close_matches

            if near := get_close_matches(args[0], COMMANDS, n=1):
                ctx.fail(f"No such command {args[0]!r}; did you mean {near[0]!r}?")
        return super().resolve_command(ctx, args)

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:  # noqa: ARG002 - click's
        """The commands by section."""
        widest = max(map(len, COMMANDS))
        for section, commands in SECTIONS.items():
            with formatter.section(section.capitalize()):
                formatter.write_dl([(name.ljust(widest), text) for name, text in commands.items()])

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        """As click's, with the user's text in an error made visible."""
        with _visible_usage():
            return super().parse_args(ctx, args)

    def invoke(self, ctx: click.Context) -> Any:
        """Run a command; UserError or an impossible path is one line and exit code 2, CannotDecide or Ctrl-C 3."""
        notes = [logging.getLogger(name) for name in ("audit.store", "engine")]
        handler = _Notes()
        for logger in notes:
            logger.addHandler(handler)
        try:
            with _visible_usage(), needs("engine", ENGINE):
                return super().invoke(ctx)
        except UserError as error:
            note(f"audit: {error}")
            ctx.exit(2)
        except CannotDecide as error:
            note(f"audit: {error}")
            ctx.exit(3)
        except OSError as error:
            # every place that takes a path would have to look for these two
            if error.errno not in (errno.ENAMETOOLONG, errno.ELOOP):
                raise
            note(f"audit: {str(error.filename)[:60]}: {error.strerror}; name another path")
            ctx.exit(2)
        except KeyboardInterrupt:
            # click itself would exit with 1, which means that a claim is broken
            note("audit: interrupted")
            ctx.exit(3)
        finally:
            for logger in notes:
                logger.removeHandler(handler)


def _print_version(context: click.Context, _parameter: click.Parameter, asked: bool) -> None:
    if asked and not context.resilient_parsing:
        # package metadata takes as long to import as the rest of the command line
        from audit.commands.operate import installed

        echo(*installed.version_lines())
        context.exit()


@click.command(
    "audit", cls=LazyGroup, invoke_without_command=True, context_settings={"help_option_names": ["-h", "--help"]}
)
@click.option(
    "--version",
    is_flag=True,
    is_eager=True,
    expose_value=False,
    callback=_print_version,
    help="Show this version, Python's and those of the installed engines, and exit.",
)
@click.pass_context
def main(context: click.Context) -> None:
    """Audit speculative decoding: run suites, keep the evidence, gate deployments."""
    if context.invoked_subcommand is None:
        formatter = context.make_formatter()
        with formatter.section("First commands"):
            formatter.write_dl([(name, SECTIONS[COMMANDS[name]][name]) for name in FIRST])
        begin = [str(main.help), "", "To begin:", *(f"  {line}" for line in EXAMPLE)]
        echo(*begin, "", *formatter.getvalue().splitlines(), "", "All commands: audit --help")

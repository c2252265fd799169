"""The `audit` command: registers commands and maps errors to exit codes.

Exit codes everywhere: 0 pass or allow, 1 fail or block, 2 usage or invalid
input, 3 cannot decide. stdout is data, stderr is messages.
"""

from __future__ import annotations

import errno
import gc
import importlib
import logging
import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any, Final

import click

from audit.errors import CannotDecide, UserError
from audit.text.printer import echo, note
from audit.text.unsafe import visible_lines

COMMANDS: Final[Mapping[str, tuple[str, str]]] = {
    "admission": (
        "audit.commands.decide.admission:command",
        "Admit pods to a Kubernetes cluster by the gate's decisions.",
    ),
    "attach": (
        "audit.commands.share.attach:command",
        "Attach the evidence of RUN (a ULID, a prefix of one, or latest) to REPORT.",
    ),
    "attest": (
        "audit.commands.share.attest:command",
        "Sign statements about RUN (a ULID, a prefix of one, or latest), and record them.",
    ),
    "bom": (
        "audit.commands.share.bom:command",
        "Print a CycloneDX 1.7 bill of materials of RUN: models, packages, speculation, certified claims.",
    ),
    "checklist": (
        "audit.commands.decide.checklist:command",
        "Answer what production asks of RUN from its evidence, or name what is missing.",
    ),
    "controls": (
        "audit.commands.decide.controls:command",
        "Show which checks and records are evidence for which clauses of laws and standards.",
    ),
    "convert": (
        "audit.commands.operate.convert:command",
        "Convert MODEL, a folder or another source of models, for another engine.",
    ),
    "coverage": (
        "audit.commands.look.coverage:command",
        "Show the situations that RUN met and how often its checks examined each.",
    ),
    "db": ("audit.commands.operate.db:command", "Maintain the provenance store."),
    "diff": (
        "audit.commands.look.diff:command",
        "Show what differs between runs A and B: settings, verdicts, acceptance by domain and position, outputs.",
    ),
    "disclose": (
        "audit.commands.decide.disclose:command",
        "Write the plain statement about the speculation of RUN, from its evidence alone.",
    ),
    "doctor": ("audit.commands.operate.doctor:command", "Check this installation; exit 1 if an audit could not run."),
    "eval": (
        "audit.commands.run.eval:command",
        "Run an evaluation twice, without speculation and with it, and compare its scores and its answers.",
    ),
    "export": (
        "audit.commands.share.export:command",
        "Write the finished RUN to a file that others can verify and import.",
    ),
    "gate": (
        "audit.commands.decide.gate:command",
        "Decide on RUN (a ULID, a prefix of one, latest, or a bundle, FILE.zip) and record the decision.",
    ),
    "import": (
        "audit.commands.share.import_bundle:command",
        "Verify BUNDLE, a file of `audit export`, and add its run to a store.",
    ),
    "join": ("audit.commands.run.join:command", "Join the SHARDs of a run to one run, and judge it."),
    "judge": (
        "audit.commands.run.judge:command",
        "Judge RUN again from its record, store the new verdicts beside the old ones, and print what differs.",
    ),
    "keys": ("audit.commands.share.keys:command", "Make and show the keys that sign checkpoints of a store's log."),
    "list": ("audit.commands.look.list:command", "List the newest runs of a store."),
    "minimize": ("audit.commands.run.minimize:command", "Find a small reproducer of a fault of RUN, from one REQUEST."),
    "parity": (
        "audit.commands.look.parity:command",
        "Compare instances of one engine: two or more stored RUNs, or N fresh processes of a suite.",
    ),
    "plan": (
        "audit.commands.run.plan:command",
        "Estimate whether SUITE is large enough for its margins, and how long it takes.",
    ),
    "probe": (
        "audit.commands.operate.probe:command",
        "Find out what the OpenAI-compatible server at URL is and what it speaks.",
    ),
    "query": ("audit.commands.look.query:command", "Query the store: NAME is one of the named queries, or give --sql."),
    "register": (
        "audit.commands.share.register:command",
        "Put the digests of SUITE and POLICY into the store's log, before the run.",
    ),
    "replay": (
        "audit.commands.look.replay:command",
        "Decode RUN again from its record, and say which tokens and which bits of the target's rows come again.",
    ),
    "report": (
        "audit.commands.look.report:command",
        "Write the report of RUN (a ULID, a prefix of one, or latest) as one HTML file.",
    ),
    "resume": (
        "audit.commands.run.resume:command",
        "Resume the interrupted RUN (an unambiguous prefix of its id, or `latest`).",
    ),
    "review": (
        "audit.commands.decide.review:command",
        "Sign an approval or a rejection of RUN (a ULID, a prefix of one, or latest), or of a waiver for it.",
    ),
    "run": ("audit.commands.run.run:command", "Run SUITE, a YAML file or the name of a packaged suite."),
    "schema": ("audit.commands.share.schema:command", "Print the JSON Schema NAME, or the names of all schemas."),
    "selftest": ("audit.commands.run.selftest:command", "Run deliberately broken arms and clean arms, and judge both."),
    "serve": (
        "audit.commands.operate.serve:command",
        "Serve MODEL, or an arm of MODEL if it is a suite, to OpenAI clients on this machine, and record every answer.",
    ),
    "show": (
        "audit.commands.look.show:command",
        "Show RUN (an unambiguous prefix of its id, or `latest`), or one REQUEST of it token by token.",
    ),
    "sweep": ("audit.commands.run.sweep:command", "Find the fastest draft length of each arm of SUITE."),
    "validate": (
        "audit.commands.run.validate:command",
        "Check SUITE, a YAML file or the name of a packaged suite, and print what it would run.",
    ),
    "verify": (
        "audit.commands.share.verify:command",
        "Check that REPORT, its statement and the store still agree, or recompute every hash of a bundle.",
    ),
    "view": (
        "audit.commands.operate.view:command",
        "Show the pages of a store in a browser: runs, requests, trends, and the difference between two runs.",
    ),
    "waive": (
        "audit.commands.decide.waive:command",
        "Sign a waiver of one unmet requirement of RUN (a ULID, a prefix of one, or latest) under a policy.",
    ),
    "watch": (
        "audit.commands.operate.watch:command",
        "Follow the /metrics of the live server at URL, and alarm when acceptance fell.",
    ),
}
"""Import path and first help sentence of each command, so `audit --help` imports none of them."""


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


def _short(name: str, room: int) -> str:
    return click.Command(name, help=COMMANDS[name][1]).get_short_help_str(room)


class _Notes(logging.Handler):
    """Shows what the store has to say while a command waits for it."""

    def emit(self, record: logging.LogRecord) -> None:
        note(f"audit: {record.getMessage()}")


class LazyGroup(click.Group):
    """A group that imports a command on first use; `audit --help` imports none."""

    def list_commands(self, ctx: click.Context) -> list[str]:  # noqa: ARG002 - click's signature
        """All names, sorted."""
        return sorted(COMMANDS)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:  # noqa: ARG002 - click's signature
        """The command behind a name."""
        if cmd_name not in COMMANDS:
            return None
        module, _, attribute = COMMANDS[cmd_name][0].partition(":")
        if module not in sys.modules:
            _import_uncollected(module)
        command: click.Command = getattr(sys.modules[module], attribute)
        return command

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """The commands with their first sentences, as click lays them out."""
        names = self.list_commands(ctx)
        room = formatter.width - 6 - max(map(len, names))
        with formatter.section("Commands"):
            formatter.write_dl([(name, _short(name, room)) for name in names])

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        """As click's, with the user's text in an error made visible."""
        with _visible_usage():
            return super().parse_args(ctx, args)

    def invoke(self, ctx: click.Context) -> Any:
        """Run a command; UserError or an impossible path is one line and exit code 2, CannotDecide or Ctrl-C 3."""
        notes = logging.getLogger("audit.store")
        handler = _Notes()
        notes.addHandler(handler)
        try:
            with _visible_usage():
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
            notes.removeHandler(handler)


def _print_version(context: click.Context, _parameter: click.Parameter, asked: bool) -> None:
    if asked and not context.resilient_parsing:
        # package metadata takes as long to import as the rest of the command line
        from audit.commands.operate import installed

        echo(*installed.version_lines())
        context.exit()


@click.command("audit", cls=LazyGroup, context_settings={"help_option_names": ["-h", "--help"]})
@click.option(
    "--version",
    is_flag=True,
    is_eager=True,
    expose_value=False,
    callback=_print_version,
    help="Show this version, Python's and those of the installed engines, and exit.",
)
def main() -> None:
    """Audit speculative decoding: run suites, keep the evidence, gate deployments."""

"""`audit disclose`: the statement about a run's speculation, from the stored evidence alone."""

from collections.abc import Iterator

import click

from audit.report.statements.disclosure import read_disclosure
from audit.report.statements.disclosure_words import Section, document, sections
from audit.store import Store
from audit.terminal.options import complete_runs, store_option
from audit.terminal.tables import echo_json
from audit.text.markdown import as_it_is
from audit.text.printer import echo
from audit.text.unsafe import visible


@click.command("disclose")
@click.argument("run", default="latest", shell_complete=complete_runs)
@click.option(
    "--format", "form", type=click.Choice(["text", "markdown", "json"]), default="text", help="Output format."
)
@store_option
def command(run: str, form: str, store: str) -> None:
    """Write the plain statement about the speculation of RUN, from its evidence alone.

    The statement says for each candidate arm whether speculation was on, with which proposer and rule, how many tokens
    were drafted and accepted, which equivalence is expected, which was certified with which bound, and what was
    inconclusive, not run or never met. The record is recomputed first; damage is part of the statement. RUN is a
    ULID, a prefix of one, or latest.
    """
    with Store.open(store, create=False, read_only=True) as opened:
        statement = read_disclosure(opened, opened.resolve(run))
        if form == "json":
            echo_json(document(statement))
        else:
            echo(*FORMS[form](sections(statement)))


def _text(page: tuple[Section, ...]) -> Iterator[str]:
    for number, section in enumerate(page):
        yield from ([""] if number else [])
        yield visible(section.title)
        yield from (f"  {visible(sentence)}" for sentence in section.sentences)


def _markdown(page: tuple[Section, ...]) -> Iterator[str]:
    for number, section in enumerate(page):
        yield f"{'##' if number else '#'} {as_it_is(section.title)}"
        yield ""
        yield from (f"* {as_it_is(sentence)}" for sentence in section.sentences)
        yield from ([""] if number < len(page) - 1 else [])


FORMS = {"text": _text, "markdown": _markdown}

"""`audit report`: a run's report as an HTML page, a PDF, or Markdown, its verdicts for programs, and its badge."""

from pathlib import Path
from typing import Final

import click

from audit.errors import UserError
from audit.store import Store
from audit.terminal.options import PATH, complete_runs, store_option
from audit.text.printer import echo, echo_document
from audit.text.staged_files import write_staged

FORMATS: Final = ("junit", "github", "sarif", "summary")
"""The names of `audit.report.formats`, which is imported with the first use."""
BADGES: Final = ("verdict", "acceptance")


@click.command("report")
@click.argument("run", default="latest", shell_complete=complete_runs)
@click.option("--html", type=PATH, metavar="FILE", help="Write the page to FILE.  [default: RUN.html]")
@click.option("--pdf", type=PATH, metavar="FILE", help="Print the page to FILE with Chromium or Chrome.")
@click.option("--markdown", is_flag=True, help="Print the same facts as Markdown.")
@click.option("--format", "form", type=click.Choice(FORMATS), help="Print the verdicts in a format for programs.")
@click.option("--badge", type=PATH, metavar="FILE", help="Write a badge to FILE, as SVG.")
@click.option("--badge-shows", type=click.Choice(BADGES), default="verdict", help="What the badge shows.")
@click.option("--force", is_flag=True, help="Replace FILE if it exists.")
@store_option
def command(
    run: str,
    html: Path | None,
    pdf: Path | None,
    markdown: bool,
    form: str | None,
    badge: Path | None,
    badge_shows: str,
    force: bool,
    store: str,
) -> None:
    """Write the report of RUN (a ULID, a prefix of one, or latest) as one HTML file.

    The page has the verdicts with bounds and margins, what was accepted, where outputs diverge, single generations,
    the law of the tokens, numerics, provenance with digests, and findings. It needs no network and no script, follows
    the reader's light or dark theme, and prints. Without an option, the file is RUN.html in the current folder; a file
    that exists is replaced only with --force. The path of the file is printed.

    Formats for programs: junit, sarif (code scanning), github (annotations of a workflow), summary (a short Markdown
    table for the summary of a job). The exit code is 0 whatever the verdicts are; audit gate decides.
    """
    if sum((html is not None, pdf is not None, markdown, form is not None, badge is not None)) > 1:
        raise UserError("--html, --pdf, --markdown, --format and --badge exclude each other; give one")
    from audit.report.formats import REGISTRY
    from audit.report.html.markdown import markdown_of
    from audit.report.html.registry import source_of
    from audit.report.html.render import pdf_of, render_page
    from audit.report.statements.badge import BadgeSubject, badge_of, svg
    from audit.report.tables.results import results
    from audit.text.staged_files import require_new

    with Store.open(store, create=False, read_only=True) as opened:
        ulid = opened.resolve(run)
        if form is not None:
            echo_document(REGISTRY[form](results(opened, ulid)))
            return
        path = html or pdf or badge or Path(f"{ulid}.html")
        if not markdown and not force:
            require_new(path)
        if badge is not None:
            _write(path, svg(badge_of(opened.load_run(ulid), BadgeSubject(badge_shows))).encode())
            return
        page = render_page(source_of(opened, ulid))
    if markdown:
        echo_document(markdown_of(page))
        return
    _write(path, pdf_of(page) if pdf else page.encode("utf-8", "backslashreplace"))


def _write(path: Path, content: bytes) -> None:
    write_staged({path: content})
    echo(str(path))

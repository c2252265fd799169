"""`audit report`: a run's report as an HTML page, as a PDF, or as Markdown."""

from __future__ import annotations

from pathlib import Path

import click

from audit.commands.completion import complete_runs
from audit.commands.options import store_option
from audit.errors import UserError
from audit.store import Store
from audit.text.printer import echo, echo_document


@click.command("report")
@click.argument("run", default="latest", shell_complete=complete_runs)
@click.option(
    "--html", type=click.Path(path_type=Path), metavar="FILE", help="Write the page to FILE.  [default: RUN.html]"
)
@click.option(
    "--pdf", type=click.Path(path_type=Path), metavar="FILE", help="Print the page to FILE with Chromium or Chrome."
)
@click.option("--markdown", is_flag=True, help="Print the same facts as Markdown.")
@click.option("--force", is_flag=True, help="Replace FILE if it exists.")
@store_option
def command(run: str, html: Path | None, pdf: Path | None, markdown: bool, force: bool, store: str) -> None:
    """Write the report of RUN (a ULID, a prefix of one, or latest) as one HTML file.

    The page has the verdicts with bounds and margins, what was accepted, where outputs diverge, single generations,
    the law of the tokens, numerics, provenance with digests, and findings. It needs no network and no script, follows
    the reader's light or dark theme, and prints. Without an option, the file is RUN.html in the current folder; a file
    that exists is replaced only with --force. The path of the file is printed.
    """
    if sum((html is not None, pdf is not None, markdown)) > 1:
        raise UserError("--html, --pdf and --markdown exclude each other; give one")
    from audit.report.html.markdown import markdown_of
    from audit.report.html.printing import pdf_of
    from audit.report.html.render import render_page
    from audit.report.html.section import source_of
    from audit.text.staged_files import require_new, staged

    with Store.open(store, create=False, read_only=True) as opened:
        ulid = opened.resolve(run)
        path = html or pdf or Path(f"{ulid}.html")
        if not markdown and not force:
            require_new(path)
        page = render_page(source_of(opened, ulid))
    if markdown:
        echo_document(markdown_of(page))
        return
    with staged({path: pdf_of(page) if pdf else page.encode("utf-8", "backslashreplace")}):
        pass
    echo(str(path))

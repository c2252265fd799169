"""Renders a section, the body, or the whole page of a run's report.

Every text that a template writes is escaped, and its control, bidirectional and invisible characters are made visible:
the environment does both, so a template cannot forget it. A text of more than `LONGEST` characters is cut, and the page
states by how much.
"""

import base64
import hashlib
import os
import shutil
import subprocess
import tempfile
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from datetime import datetime
from functools import cache
from importlib.resources import files
from pathlib import Path
from typing import Any, Final

from jinja2 import BaseLoader, ChoiceLoader, Environment, PackageLoader, StrictUndefined
from markupsafe import Markup, escape

from audit.errors import UserError
from audit.report.html.charts import DrawAll, drawn
from audit.report.html.registry import Nothing, ReportSection, ReportSource, sections
from audit.text.unsafe import visible_lines

LONGEST: Final = 20_000
"""Characters of one text that a page shows."""
PACKAGE: Final = "audit.report.html"


@dataclass(frozen=True, slots=True)
class Links:
    """Addresses of what a page refers to; None where there is nothing to go to.

    section: of a section, by its name. request: of a request, by ARM/CASE#SAMPLE. run: of a run, by its ULID.
    """

    section: Callable[[str], str]
    request: Callable[[str], str | None]
    run: Callable[[str], str | None]


IN_PAGE: Final = Links(lambda name: f"#{name}", lambda _request: None, lambda _run: None)
"""The links of a file that stands alone."""


def environment(links: Links = IN_PAGE, more: BaseLoader | None = None, drawn: DrawAll = drawn) -> Environment:
    """The templates of the report with their filters, and `more` templates before them."""
    own = PackageLoader(PACKAGE)
    made = Environment(
        loader=own if more is None else ChoiceLoader([more, own]),
        autoescape=True,
        undefined=StrictUndefined,
        finalize=shown,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    made.filters.update(drawn=drawn, moment=moment, number=number, breakable=breakable)
    made.globals.update(links=links)
    return made


def shown(value: Any) -> Any:
    """A template's text of a value: a dash for None, visible characters of a text, at most `LONGEST` of them."""
    if value is None:
        return "\u2013"
    if not isinstance(value, str) or isinstance(value, Markup):
        return value
    text = visible_lines(value[:LONGEST])
    left = len(value) - LONGEST
    return text if left <= 0 else f"{text} ... ({left} more characters)"


def breakable(name: str) -> Markup:
    """A name in snake case that a narrow column may break after an underscore."""
    return Markup("_<wbr>").join(escape(shown(part)) for part in name.split("_"))


def number(value: float | None) -> str | None:
    """A number as text: a whole one with all its digits, four significant digits of any other; None stays None."""
    if value is None:
        return None
    return str(value) if isinstance(value, int) else f"{value:.4g}"


def moment(value: datetime | None) -> str | None:
    """A moment in UTC to the second; None stays None."""
    return None if value is None else f"{value:%Y-%m-%d %H:%M:%S} UTC"


@cache
def stylesheet() -> str:
    """The one stylesheet."""
    return (files(PACKAGE) / "templates" / "style.css").read_text("utf-8")


def style_source() -> str:
    """The source expression that lets a content security policy accept the stylesheet inside a page."""
    return f"'sha256-{base64.b64encode(hashlib.sha256(stylesheet().encode()).digest()).decode()}'"


def render_section(source: ReportSource, section: ReportSection, made: Environment) -> Markup:
    """One section with its heading, for a page of its own or as part of the report; `made` by `environment`."""
    it = section.read(source)
    given: Mapping[str, Any] = {"section": section, "it": it, "nothing": isinstance(it, Nothing), "source": source}
    return Markup(made.get_template("section.html").render(given))


def render_body(source: ReportSource, made: Environment) -> Markup:
    """All sections."""
    return Markup("\n").join(render_section(source, section, made) for section in sections())


def render_page(source: ReportSource) -> str:
    """The whole file: no scripts, nothing to fetch."""
    made = environment()
    return made.get_template("report.html").render(
        run=source.results.run,
        sections=sections(),
        body=render_body(source, made),
        style=Markup(stylesheet()),
        style_source=Markup(style_source()),
    )


BROWSERS: Final = ("chromium", "chromium-browser", "google-chrome", "google-chrome-stable", "chrome", "headless_shell")
"""Commands that are tried, in this order."""
TIMEOUT_S: Final = 120


def pdf_of(page: str) -> bytes:
    """The page as PDF, by an installed Chromium or Chrome; the page itself fetches nothing.

    Raises:
        UserError: no browser is installed, or it does not print.
    """
    browser = next((path for name in BROWSERS if (path := shutil.which(name))), None)
    if browser is None:
        raise UserError(
            "--pdf needs Chromium or Chrome, and none is in PATH; install one, or print --html from a browser"
        )
    with tempfile.TemporaryDirectory(prefix="specaudit-") as folder:
        source, printed = Path(folder) / "report.html", Path(folder) / "report.pdf"
        source.write_text(page, "utf-8", "backslashreplace")
        reason = _run([browser, *_options(folder), f"--print-to-pdf={printed}", source.as_uri()])
        if not printed.is_file():
            raise UserError(f"{browser} printed nothing{reason}; print --html from a browser")
        return printed.read_bytes()


def _options(folder: str) -> list[str]:
    # a browser run by root has no sandbox of its own; the page has no script
    root = ["--no-sandbox"] if os.geteuid() == 0 else []
    return ["--headless", "--disable-gpu", "--no-pdf-header-footer", f"--user-data-dir={folder}/profile", *root]


def _run(command: list[str]) -> str:
    """Run the browser; the reason if it failed, as the end of a sentence."""
    try:
        ended = subprocess.run(command, stdin=subprocess.DEVNULL, capture_output=True, timeout=TIMEOUT_S, check=False)
    except subprocess.TimeoutExpired:
        return f" in {TIMEOUT_S} s"
    except OSError as error:
        return f" ({error.strerror})"
    return "" if ended.returncode == 0 else f" (exit code {ended.returncode})"

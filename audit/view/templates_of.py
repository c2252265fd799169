"""The pages' templates: those of the report with other links, and the viewer's own."""

from __future__ import annotations

from functools import cache
from importlib.resources import files
from typing import Final
from urllib.parse import quote, urlencode

from jinja2 import Environment, PackageLoader

from audit.report.html.registry import sections
from audit.report.html.render import Links, environment, stylesheet
from audit.view.drawings import Begin, Drawings, drawn_here

LINKS: Final = Links(
    section=lambda name: name,
    request=lambda name: f"request?{urlencode({'name': name}, errors='replace')}" if "#" in name else None,
    run=lambda run: f"../{quote(run)}/{sections()[0].name}",
)
"""Relative addresses: every page of a run stands beside the others, so they are the same for all runs."""


def templates(begin: Begin = drawn_here) -> Environment:
    """One environment; `begin` begins a drawing."""
    made = environment(LINKS, PackageLoader("audit.view"), Drawings(begin))
    made.filters.update(address=lambda values: urlencode(dict(values), errors="replace"))
    made.globals.update(sections=sections(), first=sections()[0].name)
    return made


def compile_all(made: Environment) -> None:
    """Compile every page, so that no first visit does."""
    for name in made.list_templates(("html",)):
        made.get_template(name)


@cache
def styles() -> str:
    """The stylesheet of the report and what only the viewer has."""
    own = files("audit.view") / "templates" / "view.css"
    return f"{stylesheet()}\n{own.read_text('utf-8')}"


@cache
def icon() -> str:
    """A small drawing for the browser's tab."""
    return (files("audit.view") / "templates" / "icon.svg").read_text("utf-8")

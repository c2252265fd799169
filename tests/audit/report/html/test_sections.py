"""What every section keeps to: one registry line, one template, inert text, a sentence where nothing is to show."""

from __future__ import annotations

import dataclasses
import re
from importlib.resources import files

import html5lib
import pytest

from audit.errors import UserError
from audit.report.html.charts import Chart, svg
from audit.report.html.registry import SECTIONS, Nothing, section, sections, source_of
from audit.report.html.render import environment, render_body, render_page, render_section, style_source
from audit.store import Store
from tests.audit.report.html.runs import HOSTILE, StoredRuns, stored_runs

HTML = "{http://www.w3.org/1999/xhtml}"
ALIVE = {"script", "iframe", "object", "embed", "base", "form", "img", "foreignObject", "a:javascript"}


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> StoredRuns:
    return stored_runs(f"sqlite:///{tmp_path_factory.mktemp('report') / 'audit.db'}")


def page_of(made: StoredRuns, run: str) -> str:
    with Store.open(made.url, create=False, read_only=True) as store:
        return render_page(source_of(store, run))


def bars(x: str, y: str, title: str):
    """A specification of plain vertical bars: field `y` over the ordered field `x`."""
    axes = {"x": {"field": x, "type": "ordinal"}, "y": {"field": y, "type": "quantitative", "title": title}}
    return {"width": 560, "height": 200, "mark": "bar", "encoding": axes}


def parsed(page: str):
    return html5lib.HTMLParser(strict=True).parse(page)


def test_a_section_is_a_file_a_template_and_a_line():
    folder = files("audit.report.html")
    modules = {path.name.removesuffix(".py") for path in (folder / "sections").iterdir() if path.name[:2] != "__"}
    templates = {path.name for path in (folder / "templates" / "sections").iterdir()}
    assert {place.split(":")[0].rpartition(".")[2] for place in SECTIONS} == modules
    assert {one.template for one in sections()} == templates
    assert len({one.name for one in sections()}) == len(SECTIONS)
    assert [one.name for one in sections() if not re.fullmatch(r"[a-z][a-z-]*", one.name)] == []
    assert [one.question for one in sections() if not re.fullmatch(r"[A-Z][^?]+\?", one.question)] == []
    assert section(sections()[0].name) is sections()[0]
    with pytest.raises(UserError, match="the report has: verdicts"):
        section("nothing")


@pytest.mark.medium
def test_every_section_reads_a_frozen_value_or_says_why_it_has_nothing(made):
    with Store.open(made.url, create=False, read_only=True) as store:
        for run in (made.finished, made.judged, made.hostile, made.empty):
            source = source_of(store, run)
            for one in sections():
                it = one.read(source)
                assert dataclasses.is_dataclass(it), one.name
                assert type(it).__dataclass_params__.frozen, one.name
                if isinstance(it, Nothing):
                    assert re.fullmatch(r"[A-Z].+\.", it.reason), one.name
                assert f'id="{one.name}"' in render_section(source, one, environment())
            assert render_section(source, sections()[-1], environment()) in render_body(source, environment())


@pytest.mark.medium
@pytest.mark.parametrize("which", ["finished", "judged", "hostile", "empty"])
def test_a_page_is_valid_and_nothing_in_it_is_alive(made, which):
    page = page_of(made, getattr(made, which))
    tree = parsed(page)
    elements = [(str(node.tag).rpartition("}")[2], node.attrib) for node in tree.iter()]
    assert {tag for tag, _ in elements} & ALIVE == set()
    names = [name for _, attributes in elements for name in attributes]
    assert [name for name in names if name.startswith("on") or name == "style"] == []
    links = [value for _, attributes in elements for name, value in attributes.items() if name in ("href", "src")]
    ids = [attributes["id"] for _, attributes in elements if "id" in attributes]
    assert len(ids) == len(set(ids))
    assert {link.removeprefix("#") for link in links} <= set(ids)
    assert style_source() in page
    assert "\u202e" not in page
    assert "\x1b" not in page
    if which == "hostile":
        assert "&lt;script&gt;" in page
        assert "\\u202e" in page
        assert "{{ 7*7 }}" in page


@pytest.mark.medium
def test_every_table_has_a_caption_and_every_head_a_scope(made):
    tree = parsed(page_of(made, made.finished))
    assert [1 for table in tree.iter(f"{HTML}table") if table.find(f"{HTML}caption") is None] == []
    assert [1 for head in tree.iter(f"{HTML}th") if "scope" not in head.attrib] == []


def test_a_drawing_is_static_labelled_and_in_the_colours_of_the_page():
    rows = ((HOSTILE, 3), ("b", 5))
    drawn = svg(
        Chart("Tokens <b>", f"How many; {HOSTILE}", ("arm", "tokens"), ("x", "y"), rows, bars("x", "y", title="t"))
    )
    tree = parsed(f"<!DOCTYPE html><title>t</title>{drawn}")
    tags = [str(node.tag).rpartition("}")[2] for node in tree.iter()]
    assert {"svg", "path", "text", "desc"} <= set(tags)
    assert set(tags) & ALIVE == set()
    assert "var(--series-1)" in drawn
    assert "style=" not in drawn
    assert "\u202e" not in drawn
    assert 'role="img"' in drawn


def test_a_figure_has_its_numbers_as_a_table():
    chart = Chart(
        "Tokens", "Tokens of each arm.", ("arm", "tokens"), ("x", "y"), (("a", 0.123456),), bars("x", "y", title="")
    )
    template = '{% import "parts.html" as parts %}{{ parts.figures([chart]) }}'
    page = environment().from_string(template).render(chart=chart)
    assert '<td class="number">0.1235</td>' in page
    assert '<th scope="col">tokens</th>' in page


def test_a_long_text_is_cut_and_the_page_says_so():
    page = environment().from_string("{{ it }}").render(it="x" * 1_000_000)
    assert len(page) < 20_100
    assert page.endswith("(980000 more characters)")

"""Every page of every kind of run in a real browser: it renders, quietly, at every width, in both themes."""

from __future__ import annotations

from urllib.parse import urlencode

import pytest

from audit.report.html.registry import sections, source_of
from audit.report.html.render import render_page
from audit.store import Store
from tests.browser.chrome import Watched, served, watching
from tests.browser.conftest import KINDS

pytestmark = pytest.mark.browser
FOCUSABLE = "a[href], button, input, select, summary, [tabindex='0']"
CUT = "[...document.querySelectorAll('.scroll')].filter((one) => one.scrollWidth > one.clientWidth).length"
FOCUSED = """() => [...document.querySelectorAll(SELECTOR)].indexOf(document.activeElement)"""
VISIBLE = """() => [...document.querySelectorAll(SELECTOR)].map((one, place) => [one, place])
    .filter(([one]) => one.checkVisibility({checkVisibilityCSS: true, contentVisibilityAuto: true}))
    .map(([_, place]) => place)"""


def pages_of(one):
    """Name and path of each page about a run."""
    yield from ((section.name, f"/runs/{one.run}/{section.name}") for section in sections())
    yield "requests", f"/runs/{one.run}/requests"
    if one.request is not None:
        yield "request", request_path(one)


def request_path(one):
    return f"/runs/{one.run}/request?{urlencode({'name': one.request})}"


@pytest.mark.parametrize("kind", KINDS)
def test_every_page_of_a_run_renders(kind, one, chrome):
    found = []
    with served(one.store) as viewer, watching(chrome, viewer) as tab:
        for name, path in pages_of(one):
            assert tab.go(path) == 200, (path, viewer.reported)
            assert tab.page.locator("main h2").first.is_visible(), path
            if name == "certificate" and kind != "hostile":
                found += [f"{path}: a table is cut" for _ in range(tab.page.evaluate(CUT))]
            found += [*tab.grave("dark"), *tab.grave("light"), *tab.pictures(f"{kind}-{name}")]
        assert tab.troubles == []
    assert found == []


@pytest.mark.parametrize("kind", KINDS)
def test_the_report_as_a_file_renders(kind, one, chrome, tmp_path):
    path = tmp_path / "report.html"
    with Store.open(one.store, create=False, read_only=True) as store:
        path.write_text(render_page(source_of(store, one.run)), "utf-8")
    context = chrome.new_context(viewport={"width": 1440, "height": 900})
    try:
        tab = Watched(context.new_page(), path.as_uri())
        tab.page.goto(path.as_uri())
        assert tab.page.locator("section.section").count() == len(sections())
        found = [*tab.grave("dark"), *tab.grave("light"), *tab.pictures(f"{kind}-report")]
    finally:
        context.close()
    assert tab.troubles == []
    assert found == []


def test_the_lists_trends_and_differences_render(shown, chrome):
    one, found = shown["quickstart"], []
    paths = {
        "runs": "/",
        "no-run": "/?suite=nothing",
        "trends": "/trends?by=engine",
        "compare": f"/diff?a={one.run}&b={one.run}",
        "filtered": f"/runs/{one.run}/requests?arm=rejection&domain=chat&divergent=1",
    }
    with served(one.store) as viewer, watching(chrome, viewer) as tab:
        for name, path in paths.items():
            assert tab.go(path) == 200, path
            found += [*tab.grave("dark"), *tab.grave("light"), *tab.pictures(f"list-{name}")]
        assert tab.troubles == []
    assert found == []


def test_a_user_filters_pages_and_reads_with_links_and_forms_alone(shown, chrome):
    one = shown["quickstart"]
    with served(one.store) as viewer, watching(chrome, viewer) as tab:
        page = tab.page
        page.get_by_label("Suite").fill("quick")
        page.get_by_label("Engine").select_option("native")
        tab.follow(page.get_by_role("button", name="Show"))
        tab.follow(page.get_by_role("link", name=one.run))
        assert page.url.endswith(sections()[0].name)
        tab.follow(page.get_by_role("link", name="All requests"))
        first = page.locator("tbody th").first.inner_text()
        tab.follow(page.get_by_role("link", name="Requests after"))
        assert page.locator("tbody th").first.inner_text() != first
        tab.follow(page.get_by_role("link", name="Requests before"))
        assert page.locator("tbody th").first.inner_text() == first
        page.get_by_label("Arm").select_option("rejection")
        tab.follow(page.get_by_role("button", name="Show"))
        names = page.locator("tbody th").all_inner_texts()
        assert names
        assert [name for name in names if not name.startswith("rejection/")] == []
        tab.follow(page.locator("tbody th a").first)
        assert "request?" in page.url
        assert tab.troubles == []


@pytest.mark.parametrize("kind", ["quickstart", "vllm"])
def test_the_keyboard_reaches_everything_on_a_request_and_every_token(kind, one, chrome):
    with served(one.store) as viewer, watching(chrome, viewer) as tab:
        tab.go(request_path(one))
        selector = repr(FOCUSABLE)
        expected = set(tab.page.evaluate(VISIBLE.replace("SELECTOR", selector)))
        reached = set()
        for _ in range(len(expected) + 5):
            tab.page.keyboard.press("Tab")
            reached.add(tab.page.evaluate(FOCUSED.replace("SELECTOR", selector)))
        assert expected - reached == set()
        assert len(expected) > 20
        assert tab.troubles == []

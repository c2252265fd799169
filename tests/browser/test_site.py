"""The documentation site: every link leads somewhere, search finds what newcomers ask, and pages fit a phone."""

from __future__ import annotations

import re
import shutil
from pathlib import Path

import pytest

from docs.tools.site import list_versions, own_version
from docs.tools.site_pages import DOCS
from tests.browser.chrome import BREADTH, SCREENSHOTS, Watched
from tests.browser.site_html import Links, is_outside, links_of, page_at, serving_files

pytestmark = pytest.mark.browser
OLDER = "0.0.1"
PHONE = {"width": 375, "height": 800}
KINDS = (
    "",
    "how-it-works/",
    "how-to/first-audit/",
    "which-check/",
    "verdicts/",
    "checks/law/",
    "cli/",
    "data-dictionary/",
    "situations/drafting/",
    "faults/detection/",
    "design/0004-the-house/",
)
"""A page of each kind: entry, tutorial, tables, prose, a picture, blocks of code, and the widest tables."""
QUESTIONS = {
    "how does it work": "how-it-works/",
    "how do I install": "#how-do-i-install-it",
    "first audit": "how-to/first-audit/",
    "which check do I need": "which-check/",
    "what does inconclusive mean": "verdicts/",
    "exit code 3": "verdicts/#exit-codes",
    "what are p and q": "glossary/#what-are-p-and-q",
    "how many prompts do I need": "how-to/plan-a-run/",
    "acceptance dropped": "checks/acceptance_drift/",
    "block a deployment": "how-to/gate-a-deployment/",
    "audit vLLM": "how-to/audit-vllm/",
    "my own models": "how-to/use-your-own-models/",
}
"""A newcomer's words, and the page, or the section of one, that answers them."""
FIRST = 3
"""The answer is among so many results, which a window shows at once."""
BOX = "input[aria-autocomplete='list']"


@pytest.fixture(scope="module")
def site(pytestconfig, tmp_path_factory) -> Path:
    """The site that `make docs-site` built, with a second version beside it."""
    built = Path(pytestconfig.getoption("--site")) / own_version()
    assert (built / "index.html").is_file(), "run: make docs-site"
    folder = tmp_path_factory.mktemp("site")
    for version in (own_version(), OLDER):
        shutil.copytree(built, folder / version)
    list_versions(folder)
    return folder


@pytest.fixture(scope="module")
def pages(site) -> dict[Path, Links]:
    """The links of every page of the newest version.

    The page for a missing page is left out: it is shown at any address, so that its links begin at the host's root.
    """
    every = sorted((site / own_version()).rglob("*.html"))
    return {page: links_of(page) for page in every if page.name != "404.html"}


@pytest.fixture(scope="module")
def origin(site):
    with serving_files(site) as origin:
        yield f"{origin}/{own_version()}/"


@pytest.fixture
def tab(chromium, origin):
    context = chromium.new_context(viewport={"width": 1440, "height": 900})
    try:
        tab = Watched(context.new_page(), origin.removesuffix(f"{own_version()}/"))
        yield tab
        assert tab.troubles == []
    finally:
        context.close()


def open_page(tab, origin, page=""):
    answer = tab.page.goto(f"{origin}{page}")
    assert answer is not None
    assert answer.status == 200, page
    tab.page.wait_for_load_state("load")


# without a browser


def test_every_page_of_docs_is_on_the_site(site, pages):
    top = site / own_version()
    places = {page.relative_to(top).as_posix() for page in pages}
    names = [page.relative_to(DOCS).with_suffix("").as_posix() for page in DOCS.rglob("*.md")]
    expected = {f"{name.removesuffix('index').rstrip('/')}/index.html".lstrip("/") for name in names}
    assert expected - places == set()


def test_every_link_and_anchor_leads_somewhere(site, pages):
    broken = []
    for page, links in pages.items():
        for target in sorted(links.targets | links.loaded):
            if is_outside(target) or target.startswith("javascript:"):
                continue
            goal, anchor = page_at(page, target)
            known = goal not in pages or anchor in ("", "__skip", *pages[goal].ids)
            if not (goal.is_file() and known):
                broken.append(f"{page.relative_to(site)}: {target}")
    assert broken == []


def test_no_page_loads_anything_of_another_host(pages):
    loaded = {(page.name, target) for page, links in pages.items() for target in links.loaded}
    assert [pair for pair in loaded if is_outside(pair[1])] == []


# in a browser


def asked(tab, words):
    """The first results for a search, as addresses: each names the words that it is a result for."""
    tab.page.locator(BOX).fill(words)
    results = tab.page.locator(f"a[href*='?h={'+'.join(words.split())}']")
    results.first.wait_for()
    return [results.nth(number).get_attribute("href") for number in range(min(FIRST, results.count()))]


def test_search_finds_what_newcomers_ask(tab, origin):
    open_page(tab, origin)
    tab.page.keyboard.press("/")
    found = {}
    for words, answer in QUESTIONS.items():
        shown = [re.sub(r"\?h=[^#]*", "", place).removeprefix(origin) for place in asked(tab, words)]
        found[words] = (answer, shown)
    hits = {words: [place.startswith(answer) for place in shown] for words, (answer, shown) in found.items()}
    assert [words for words, hit in hits.items() if not any(hit)] == [], found


@pytest.mark.parametrize("page", KINDS, ids=lambda page: page.rstrip("/") or "index")
def test_a_page_of_each_kind_is_accessible(page, tab, origin):
    found = []
    SCREENSHOTS.mkdir(parents=True, exist_ok=True)
    name = page.strip("/").replace("/", "-") or "index"
    for theme in ("light", "dark"):
        tab.page.emulate_media(color_scheme=theme)
        open_page(tab, origin, page)
        found += tab.grave(theme)
        tab.page.screenshot(path=SCREENSHOTS / f"site-{name}-{theme}.png")
    tab.page.set_viewport_size(PHONE)
    open_page(tab, origin, page)
    found += tab.grave("light")
    tab.page.screenshot(path=SCREENSHOTS / f"site-{name}-phone.png")
    assert found == []


def test_every_page_fits_a_phone(tab, origin, site, pages):
    broad, top = [], site / own_version()
    tab.page.set_viewport_size(PHONE)
    for path in pages:
        page = path.relative_to(top).as_posix()
        open_page(tab, origin, page)
        if tab.page.evaluate(BREADTH) > 0:
            broad.append(page)
    assert broad == []


def test_the_schemes_switch(tab, origin):
    open_page(tab, origin)
    schemes = []
    for title in ("Switch to light mode", "Switch to dark mode"):
        tab.page.get_by_title(title).click()
        schemes.append(tab.page.locator("body").get_attribute("data-md-color-scheme"))
    assert schemes == ["default", "slate"]


def test_a_reader_changes_the_version(tab, origin):
    open_page(tab, origin, "verdicts/")
    button = tab.page.get_by_role("button", name="Select version")
    assert button.inner_text() == own_version()
    tab.page.locator(".md-version").hover()
    with tab.page.expect_navigation():
        tab.page.get_by_role("link", name=OLDER).click()
    assert f"/{OLDER}/" in tab.page.url

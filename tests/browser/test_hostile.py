"""Text of strangers in a real browser: nothing of it runs, loads, asks or hides the page."""

from __future__ import annotations

import re
import zlib
from contextlib import suppress
from urllib.parse import quote, urlencode

import pytest

from audit.report.html.registry import sections, source_of
from audit.report.html.render import pdf_of, render_page
from audit.store import Store
from tests.browser.chrome import served, watching
from tests.browser.stores import MARKUP

pytestmark = pytest.mark.browser


def test_nothing_in_a_store_runs(shown, chrome):
    one = shown["hostile"]
    with Store.open(one.store, create=False, read_only=True) as store:
        names = [key.name for key in store.finished(one.run)]
    paths = ["/", "/trends", f"/diff?a={one.run}&b={one.run}&whole=1", f"/runs/{one.run}/requests"]
    paths += [f"/runs/{one.run}/{section.name}" for section in sections()]
    paths += [f"/runs/{one.run}/request?{urlencode({'name': name})}" for name in names]
    with served(one.store) as viewer, watching(chrome, viewer) as tab:
        for path in paths:
            assert tab.go(path) == 200, (path, viewer.reported)
            assert_quiet(tab, path)


def test_nothing_in_an_address_runs(shown, chrome):
    one = shown["hostile"]
    words = [text.replace("\x00", "") for text in MARKUP]
    queries = [urlencode({"suite": text, "actor": text, "older": text}) for text in words]
    paths = [f"/?{query}" for query in queries] + [f"/trends?{query}" for query in queries]
    refused = [f"/{quote(text, safe='')}" for text in words]
    refused += [f"/runs/{quote(text, safe='')}/verdicts" for text in words]
    refused += [f"/runs/{one.run}/request?{urlencode({'name': text})}" for text in words]
    refused += [f"/runs/{one.run}/requests?{urlencode({'arm': text})}" for text in words[1:]]
    refused += ["/?since=<script>", "/%ff%fe", "/?end=%00", f"/?suite={'x' * 20_000}&since=x"]
    with served(one.store) as viewer, watching(chrome, viewer) as tab:
        for path in paths:
            assert tab.go(path) == 200, path
            assert_quiet(tab, path)
        for path in refused:
            assert tab.go(path) in (400, 404), path
            # the browser notes every status from 400 on; nothing else may be there
            tab.troubles[:] = [line for line in tab.troubles if "the server responded with a status of 40" not in line]
            assert_quiet(tab, path)
    assert viewer.reported == []


def test_a_printed_page_has_no_action_and_shows_hidden_characters(shown):
    one = shown["hostile"]
    with Store.open(one.store, create=False, read_only=True) as store:
        page = render_page(source_of(store, one.run))
    held = [pdf := pdf_of(page)]
    for part in re.findall(rb"stream\r?\n(.*?)endstream", pdf, re.DOTALL):
        with suppress(zlib.error):
            held.append(zlib.decompressobj().decompress(part))
    acting = (b"/JavaScript", b"/JS", b"/Launch", b"/OpenAction", b"/SubmitForm", b"/EmbeddedFile")
    assert [name for name in acting if any(name in part for part in held)] == []
    addresses = {address for part in held for address in re.findall(rb"/URI \((.*?)\)", part)}
    assert addresses == set()
    shown_there = characters_of([part.decode("latin-1") for part in held])
    assert set("0123456789") <= shown_there
    assert shown_there & set("\u202e\u2066\u200b\u00ad\u001b\u009b") == set()


def characters_of(parts):
    """What a printed page shows; its tables hold `<glyph> <character>` and `<first glyph> <last glyph> <character>`."""
    texts = [text for part in parts for text in entries(part, "bfchar", r"<\w+>\s*<(\w+)>")]
    found = {character for text in texts for character in bytes.fromhex(text).decode("utf-16-be")}
    for first, last, text in (
        entry for part in parts for entry in entries(part, "bfrange", r"<(\w+)>\s*<(\w+)>\s*<(\w+)>")
    ):
        start = ord(bytes.fromhex(text).decode("utf-16-be"))
        found |= {chr(start + more) for more in range(int(last, 16) - int(first, 16) + 1)}
    return found


def entries(part, kind, pattern):
    blocks = re.findall(rf"begin{kind}(.*?)end{kind}", part, re.DOTALL)
    return [entry for block in blocks for entry in re.findall(pattern, block)]


def assert_quiet(tab, path):
    assert tab.troubles == [], path
    assert tab.page.evaluate("window.hit") is None, path
    assert tab.page.locator("script, iframe, object, embed").count() == 0, path
    assert tab.page.locator("main").is_visible(), path

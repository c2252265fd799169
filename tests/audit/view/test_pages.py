"""Every page of every kind of run: its numbers are the store's, its text is inert, a wrong address is a sentence."""

from __future__ import annotations

import json
import re
import shutil
from dataclasses import dataclass
from urllib.parse import urlencode, urljoin

import html5lib
import pytest

from audit.report.html.registry import sections
from audit.store import Store
from audit.view.drawer import Drawer
from audit.view.pages import RESERVED
from tests.audit.gate.attacks.honest import edited
from tests.audit.report.html.runs import HOSTILE, StoredRuns, stored_runs
from tests.audit.view.asking import Asking, sentence

ALIVE = {"script", "iframe", "object", "embed", "img", "style", "foreignObject"}


@dataclass(frozen=True)
class Shown:
    runs: StoredRuns
    ask: Asking


@pytest.fixture(scope="module")
def shown(tmp_path_factory):
    runs = stored_runs(f"sqlite:///{tmp_path_factory.mktemp('view') / 'audit.db'}")
    reported = []
    with Drawer(reported.append) as drawer:
        yield Shown(runs, Asking(runs.url, reported, drawer.begin))


@pytest.fixture(scope="module")
def pages(shown):
    """Every page by its address."""
    return {path: shown.ask.page(path) for path in everything(shown.runs)}


def addresses(run):
    """The pages of a run."""
    return [f"/runs/{run}/{one.name}" for one in sections()] + [f"/runs/{run}/requests"]


def request_page(run, name):
    return f"/runs/{run}/request?{urlencode({'name': name})}"


def everything(runs):
    yield from ("/", "/trends", "/trends?by=model", "/trends?by=engine&arm=spec", "/diff")
    yield from (f"/diff?a={runs.finished}&b={runs.hostile}{more}" for more in ("", "&whole=1"))
    for run in (runs.finished, runs.hostile, runs.empty):
        yield from addresses(run)
    yield request_page(runs.finished, "spec/case-a#0")
    yield request_page(runs.hostile, f"{HOSTILE}/{HOSTILE}#0")


@pytest.mark.medium
def test_every_page_is_valid_and_nothing_in_it_is_alive(shown, pages):
    offenders = []
    for path, page in pages.items():
        tree = html5lib.HTMLParser(strict=True).parse(page)
        elements = [(str(node.tag).rpartition("}")[2], node.attrib) for node in tree.iter()]
        offenders += [(path, tag) for tag, _ in elements if tag in ALIVE]
        attributes = [pair for _, attributes in elements for pair in attributes.items()]
        offenders += [(path, name) for name, _ in attributes if name.startswith("on") or name == "style"]
        links = [value for name, value in attributes if name in ("href", "src", "action")]
        offenders += [(path, link) for link in links if re.match(r"[a-z]+:|//", link)]
        ids = [value for name, value in attributes if name == "id"]
        offenders += [(path, "twice")] if len(ids) != len(set(ids)) else []
        offenders += [(path, text) for text in ("<script", "\u202e", "\x1b") if text in page]
    assert offenders == []
    assert shown.ask.reported == []


def test_every_link_leads_to_a_page(shown, pages):
    links = {
        urljoin(path, link.replace("&amp;", "&"))
        for path, page in pages.items()
        for link in re.findall(r'<a [^>]*href="([^"#]*)"', page)
    }
    answers = {link: shown.ask.get(link).status_code for link in links - pages.keys()}
    assert [link for link, status in answers.items() if status != 200] == []
    assert len(links) > 15


@pytest.mark.medium
def test_hostile_words_in_an_address_are_inert(shown):
    names = ("suite", "model", "engine", "actor", "older", "arm", "a")
    hostile = urlencode(dict.fromkeys(names, HOSTILE + "\x00\ud800" * 2), errors="surrogatepass")
    many = urlencode({"suite": "x" * 5000, "older": "y" * 5000})
    requests = f"/runs/{shown.runs.finished}/requests?case=%00%ff%fe"
    for path in (f"/?{hostile}", f"/?{many}", f"/trends?{hostile}", requests):
        page = shown.ask.page(path)
        assert "<script" not in page
        assert "\x00" not in page
    assert shown.ask.reported == []


def test_wrong_addresses_are_one_sentence(shown):
    run = shown.runs.finished
    wrong = {
        "/nothing": (404, "There is no page at this address."),
        "/runs/NONE/verdicts": (404, "no run begins with"),
        f"/runs/{run[:20]}/verdicts": (404, "the address of a run has its whole id"),
        f"/runs/{run}/nothing": (404, "no section"),
        f"/runs/{run}/%3Cscript%3E": (404, "no section"),
        f"/runs/{run}/request": (404, "the run has no request"),
        request_page(run, "spec/none#0"): (404, "the run has no request"),
        request_page(run, "none/case-a#0"): (404, "the run has no request"),
        f"/runs/{run}/requests?arm=none": (404, "the run has no arm"),
        "/diff?a=NONE&b=latest": (404, "no run begins with"),
        "/?end=maybe": (400, "is none of pass, fail, undecided, open"),
        "/?since=yesterday": (400, "is no day such as 2026-01-31"),
        "/trends?by=weather": (400, "is none of suite, model, engine"),
    }
    for path, (status, words) in wrong.items():
        answer = shown.ask.get(path)
        assert (answer.status_code, words in sentence(answer)) == (status, True), (path, answer.text)
    assert shown.ask.reported == []


def test_a_short_id_leads_to_the_whole_one(shown):
    answer = shown.ask.get("/runs/latest")
    with Store.open(shown.runs.url, create=False, read_only=True) as store:
        assert answer.headers["location"] == f"/runs/{store.resolve('latest')}/{sections()[0].name}"
    assert answer.status_code == 303


@pytest.mark.medium
def test_numbers_of_the_lists_are_the_stores(shown):
    numbers = {}
    for path in ("/", "/trends", f"/runs/{shown.runs.finished}/requests"):
        for key, value in re.findall(r'<data data-key="([^"]+)" value="([^"]+)"', shown.ask.page(path)):
            numbers[key] = json.loads(value)
    with Store.open(shown.runs.url, create=False, read_only=True) as store:
        run = store.load_run(shown.runs.finished)
        spec = run.arm("spec")
    key = f"run:{run.ulid}:"
    assert numbers[f"{key}tokens"] == run.tokens
    assert (numbers[f"{key}drafted"], numbers[f"{key}accepted"]) == (spec.counts.drafted, spec.counts.accepted)
    assert numbers[f"{key}acceptance"] == spec.counts.accepted / spec.counts.drafted
    assert numbers[f"{key}tokens_per_step"] == spec.counts.output / spec.counts.steps
    assert sum(value for name, value in numbers.items() if name.endswith("n_output")) == run.tokens
    assert sum(value for name, value in numbers.items() if name.endswith("n_drafted")) == spec.counts.drafted


def test_no_section_has_the_address_of_another_page():
    assert {one.name for one in sections()} & {*RESERVED} == set()


@pytest.mark.medium
def test_a_store_that_goes_away_is_a_page(tmp_path):
    runs = stored_runs(f"sqlite:///{tmp_path / 'audit.db'}")
    ask = Asking(runs.url)
    ask.page("/")
    shutil.move(tmp_path / "audit.db", tmp_path / "gone.db")
    for path in ("/", f"/runs/{runs.finished}/requests"):
        answer = ask.get(path)
        assert (answer.status_code, "no such store" in sentence(answer)) == (503, True)


@pytest.mark.medium
def test_a_value_that_no_page_can_show_is_named(tmp_path):
    runs = stored_runs(f"sqlite:///{tmp_path / 'audit.db'}")
    edited(tmp_path / "audit.db", "UPDATE arm SET level = 'L9'")
    ask = Asking(runs.url)
    answer = ask.get(f"/runs/{runs.finished}/{sections()[0].name}")
    assert (answer.status_code, "level is" in sentence(answer)) == (410, True)
    assert ask.reported == []


@pytest.mark.medium
def test_a_broken_page_is_reported_and_not_shown(shown, monkeypatch):
    ask = Asking(shown.runs.url)
    monkeypatch.setattr("audit.view.page.Browser.runs", lambda *_given, **_named: 1 / 0)
    answer = ask.get("/")
    assert (answer.status_code, "division" in answer.text) == (500, False)
    assert ask.reported == ["/: ZeroDivisionError: division by zero"]

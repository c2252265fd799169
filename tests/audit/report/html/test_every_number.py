"""Every number on a page is the store's: all pages of a run are parsed and compared with plain SQL (`store_facts`).

Three sweeps, each of which lists offenders: the numbers with a key, the tables under drawings, and numbers in running
text, which must stand in a template, in a text of the store, or among the facts. Left out are the plan's `needed`
units, which nothing but the check itself gives; what the law section draws, of which only the sums are compared here
(`test_law_drawings` has the rest); and the numbers of single tokens, which `test_views` compares with the trace.
"""

from __future__ import annotations

import math
import re
from dataclasses import dataclass, replace
from importlib.resources import files
from urllib.parse import urlencode

import html5lib
import pytest

from audit.evidence.records import Level
from audit.evidence.verdicts import CheckResult, Finding, Verdict
from audit.report.html.registry import sections, source_of
from audit.report.html.render import render_page
from audit.store import NewCheck, RunStatus, Store
from audit.view.pages import TREND
from engine.record.effective import Effective
from tests.audit.report.html.runs import LAW
from tests.audit.report.html.store_facts import StoreFacts, shown
from tests.audit.store.build import COUNTS, RESULT, start
from tests.audit.view.asking import Asking
from tests.support.planned_runs import filled

pytestmark = pytest.mark.slow
HTML = "{http://www.w3.org/1999/xhtml}"
NUMBER = re.compile(r"(?<![\w.#])-?\d+(?:\.\d+)?(?:e[+-]?\d+)?(?![\w#])")
STRATA = [
    {"name": "all", "n": 22, "observed": 15, "expected": 14.25, "z": 0.5, "p_adjusted": 0.75},
    {"name": "position 1", "n": 7, "observed": 6, "expected": 5.5, "z": 0.25, "p_adjusted": 1.0},
]
DIVERGED = {
    "divergences": {"numerical": 1, "real": 3, "untriaged": 0, "baseline": 0},
    "leads": [0.5, 2.0, 0.125],
    "noise_bound": 0.25,
    "noise_positions": 400,
    "tokens_compared": 33,
}


@dataclass(frozen=True)
class Pages:
    """The report and every page of the viewer by its path, with the facts."""

    facts: StoreFacts
    by_path: dict[str, str]


def judged(store: Store) -> str:
    """A finished run with something in every section."""
    base, spec = start().arms
    effective = Effective.from_json({"gamma": 4, "proposer": "draft_model"})
    run = filled(store, arms=(base, replace(spec, spec={"baseline": "base"}, effective=effective)))
    found = (Finding("spec/c1#1", 0, "bad"), Finding("spec/c2#0", 1, "worse"))
    for name, result in {
        "greedy_equality": CheckResult(Verdict.FAULT, "parts", n=9, details=DIVERGED, findings=found),
        "acceptance_theory": replace(RESULT, n=22, effect=0.03125, margin=0.0625, details={"strata": STRATA}),
        "law": replace(RESULT, findings=(), details=LAW, effect=0.0625, margin=0.5),
        "replay": RESULT,
    }.items():
        store.add_check(run, NewCheck("spec", name, name, Level.L4, result, COUNTS))
    store.add_pieces(run, "abcdefgh".__getitem__)
    store.finish_run(run, RunStatus.FINISHED, 1)
    return run


@pytest.fixture(scope="module")
def pages(tmp_path_factory: pytest.TempPathFactory) -> Pages:
    path = tmp_path_factory.mktemp("numbers") / "audit.db"
    with Store.open(f"sqlite:///{path}", create=True) as store:
        run = judged(store)
    with Store.open(f"sqlite:///{path}", create=False, read_only=True) as store:
        made = {"report": render_page(source_of(store, run))}
    ask = Asking(f"sqlite:///{path}")
    paths = ["/", "/trends", f"/diff?a={run}&b={run}&whole=1", f"/runs/{run}/requests"]
    paths += [f"/runs/{run}/{section.name}" for section in sections()]
    paths += [f"/runs/{run}/request?{urlencode({'name': name})}" for name in ("spec/c1#1", "base/c0#0")]
    return Pages(StoreFacts(str(path), run), made | {path: ask.page(path) for path in paths})


def trees(pages: Pages):
    for path, page in pages.by_path.items():
        yield path, html5lib.parse(page)


def text_of(node) -> str:
    return " ".join("".join(node.itertext()).split())


def test_every_number_with_a_key_is_the_stores(pages):
    known, offenders, seen = pages.facts.keyed(), [], set()
    for path, tree in trees(pages):
        for node in tree.iter(f"{HTML}data"):
            key, value, text = node.attrib["data-key"], node.attrib["value"], text_of(node)
            if key.endswith((":needed", ":tokens_needed")):
                continue
            seen.add(key)
            if key not in known or not math.isclose(float(value), known[key], rel_tol=1e-12):
                offenders.append((path, key, value, known.get(key)))
            elif text != shown(known[key]):
                offenders.append((path, key, text, shown(known[key])))
    assert offenders[:3] == []
    assert len(seen) > 120


def test_every_table_under_a_drawing_has_the_stores_numbers(pages):
    expected, offenders, seen = pages.facts.charts(), [], set()
    for path, tree in trees(pages):
        for figure in tree.iter(f"{HTML}figure"):
            caption = text_of(figure.find(f".//{HTML}caption"))
            rows = [[text_of(cell) for cell in row.iter(f"{HTML}td")] for row in figure.iter(f"{HTML}tr")][1:]
            name = next((name for name in expected if caption.startswith(name)), None)
            if name is None:
                offenders += law_offenders(pages.facts, path, caption, rows)
                continue
            seen.add(name)
            wanted = [[shown(value) for value in row] for row in expected[name]]
            offenders += [] if rows == wanted else [(path, name, rows, wanted)]
    assert offenders == [], offenders[:20]
    assert seen == set(expected)


def law_offenders(facts: StoreFacts, path: str, caption: str, rows):
    """The transforms are as many as the tokens, and the evidence ends with the last of them."""
    tokens = sum(facts.of("spec", "n_output"))
    if "histogram is flat" in caption:
        counted = sum(int(row[2]) for row in rows)
        return [] if counted == tokens and caption.startswith(f"{tokens} ") else [(path, caption, counted)]
    if "e-process" in caption:
        return [] if int(rows[-1][0]) <= tokens else [(path, caption, rows[-1])]
    return [(path, caption)]


def test_a_table_has_no_number_without_a_key_or_an_expectation(pages):
    offenders = []
    for path, tree in trees(pages):
        drawn = {cell for figure in tree.iter(f"{HTML}figure") for cell in figure.iter(f"{HTML}td")}
        numbers = (cell for cell in tree.iter(f"{HTML}td") if "number" in cell.attrib.get("class", ""))
        bare = [text_of(cell) for cell in numbers if cell not in drawn and cell.find(f".//{HTML}data") is None]
        allowed = pages.facts.compared() if path.startswith("/diff") else {"1"} if path == "/trends" else set()
        offenders += [(path, text) for text in bare if NUMBER.search(text) and text not in allowed]
    assert offenders == [], offenders[:20]


def test_a_number_in_running_text_stands_in_a_template_or_in_the_store(pages):
    held = pages.facts.texts()
    words = [held, pages.facts.path, re.sub(r"\.\d+", "", held)]  # moments are stored with fractions of a second
    words += [
        path.read_text("utf-8")
        for package in ("audit.report.html", "audit.view")
        for folder in ("templates", "templates/sections")
        if (files(package) / folder).is_dir()
        for path in (files(package) / folder).iterdir()
        if path.name.endswith(".html")
    ]
    allowed = {*NUMBER.findall("\n".join(words))} | {shown(value) for value in pages.facts.keyed().values()}
    allowed |= pages.facts.recorded() | {str(TREND)}
    offenders = []
    for path, tree in trees(pages):
        details = [node for node in tree.iter(f"{HTML}span") if node.attrib.get("class") == "detail"]
        for node in [*details, *(node for tag in ("style", "table", "figure") for node in tree.iter(f"{HTML}{tag}"))]:
            node.clear()
        words_of = " ".join(" ".join(tree.itertext()).split())
        offenders += [
            (path, words_of[max(0, match.start() - 60) : match.end() + 20])
            for match in NUMBER.finditer(words_of)
            if match[0] not in allowed
        ]
    assert offenders == [], offenders[:20]

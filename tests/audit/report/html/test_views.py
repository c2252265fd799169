"""The sections on acceptance, divergences and generations: their numbers are the store's, and any text is harmless."""

from __future__ import annotations

from dataclasses import replace

import html5lib
import pytest

from audit.evidence.records import Level
from audit.evidence.verdicts import CheckResult, Finding, Verdict
from audit.report.html.registry import section, source_of
from audit.report.html.render import environment, number, render_section
from audit.report.requests.generation import token_lines
from audit.report.requests.request_view import anchor_of
from audit.report.tables.acceptance import run_acceptance
from audit.report.tables.results import results
from audit.store import NewCheck, NewRequest, RunStatus
from engine.record.effective import Effective
from engine.record.trace import decode, encode
from tests.audit.report.html.runs import HOSTILE
from tests.audit.store.build import generation, start
from tests.audit.store.conftest import store
from tests.support.planned_runs import PLANS, filled

__all__ = ["store"]

HTML = "{http://www.w3.org/1999/xhtml}"
VIEWS = ("acceptance", "divergences", "generations")
MEGABYTE = HOSTILE * 10_000
ALIVE = {"script", "iframe", "object", "embed", "form", "img", "foreignObject", "style"}


def rendered(store, run, *names):
    made = environment()
    source = source_of(store, run)
    body = "".join(render_section(source, section(name), made) for name in names)
    return body, html5lib.HTMLParser(strict=True).parse(f"<!DOCTYPE html><title>t</title>{body}")


def speculating(store):
    base, spec = start().arms
    effective = Effective.from_json({"gamma": 4, "proposer": "draft_model"})
    run = filled(store, arms=(base, replace(spec, spec={"baseline": "base"}, effective=effective)))
    details = {"divergences": {"real": 3}, "leads": [0.5, 2.0], "noise_bound": 0.25, "noise_positions": 400}
    result = CheckResult(Verdict.FAULT, "parts", n=9, details=details, findings=(Finding("spec/c1#1", 0, "bad"),))
    store.add_check(run, NewCheck("spec", "greedy_equality", "equality", Level.L3, result))
    store.add_pieces(run, "abcdefgh".__getitem__)
    store.finish_run(run, RunStatus.FINISHED, 1)
    return run


@pytest.mark.medium
def test_every_number_with_a_key_is_the_stores(store):
    run = speculating(store)
    stored = run_acceptance(store, store.load_run(run), store.checks(run))
    (arm,), latencies = stored.arms, {one.arm: one for one in stored.latencies}
    counts = {"drafted": arm.counts.drafted, "accepted": arm.counts.accepted}
    known = {f"acceptance:spec:{key}": value for key, value in counts.items()}
    derived = ("rate", "alpha", "acceptance_length", "model_length", "tokens_per_step")
    known |= {f"acceptance:spec:{key}": getattr(arm, key) for key in derived}
    known |= {f"speed:spec:{key}": getattr(arm.speed_up, key) for key in ("measured", "modelled")}
    for name, one in latencies.items():
        known |= {f"latency:{name}:{key}": getattr(one, key) / 1e6 for key in ("p50", "p90", "p99", "longest")}
        known[f"latency:{name}:requests"] = one.requests
        known[f"latency:{name}:per_token"] = one.total_us / one.output / 1e6
    known |= {"divergences:spec:pairs": 11, "divergences:spec:real": 3, "divergences:spec:noise_bound": 0.25}
    known["divergences:spec:noise_positions"] = 400
    for each in results(store, run).estimates[0].values:
        known[f"estimate:spec:{each.estimator}:value"] = each.value
        known[f"estimate:spec:{each.estimator}:requests"] = each.requests
    _, tree = rendered(store, run, *VIEWS)
    seen = {node.attrib["data-key"]: node for node in tree.iter(f"{HTML}data")}
    assert set(seen) == set(known)
    for key, value in known.items():
        assert float(seen[key].attrib["value"]) == value, key
        assert seen[key].text == number(value), key


@pytest.mark.medium
def test_the_numbers_under_a_drawing_are_counts_of_the_plans(store):
    _, tree = rendered(store, speculating(store), "acceptance")
    tables = {table.find(f"{HTML}caption").text[:12]: table for table in tree.iter(f"{HTML}table")}
    rows = [[cell.text for cell in row.iter(f"{HTML}td")] for row in tables["Share of the"].iter(f"{HTML}tr")][1:]
    steps = [kept for plan in PLANS for drafted, kept in plan if drafted]
    assert rows == [
        ["spec", str(kept), str(steps.count(kept)), number(steps.count(kept) / len(steps))] for kept in range(5)
    ]


@pytest.mark.medium
def test_every_token_of_a_drawing_takes_the_keyboard_and_has_its_numbers(store):
    run = speculating(store)
    _, tree = rendered(store, run, "generations")
    record = next(one for one in store.load_arm(run, "spec").requests if one.key == "c1#1")
    drawings = {one.attrib.get("id"): one for one in tree.iter(f"{HTML}details")}
    drawing = drawings[anchor_of("spec/c1#1")]
    assert "open" in drawing.attrib  # the one with a finding comes first
    tokens = [one for one in drawing.iter(f"{HTML}span") if "tok" in one.attrib.get("class", "").split()]
    lines = list(token_lines(record.trace))
    assert len(tokens) == len(lines)
    assert {one.attrib["tabindex"] for one in tokens} == {"0"}
    words = {"".join(one.itertext()) for one in tokens}
    for line in lines:
        (own,) = (word for word in words if f"{line.role} token {line.token}, position {line.position}," in word)
        assert f"step {line.step}" in own
        for name, value in (("p", line.p), ("q", line.q), ("u", line.uniform), ("margin", line.margin)):
            assert value is None or f" {name} {number(value)}" in own


@pytest.mark.medium
@pytest.mark.parametrize("size", [HOSTILE, MEGABYTE], ids=["hostile", "megabyte"])
def test_any_text_is_harmless_and_the_page_small(store, size):
    base, spec = start().arms
    arms = (replace(base, name="b" + size), replace(spec, name=size, spec={"baseline": "b" + size}))
    run = store.begin_run(start(arms=arms))
    for arm, seed in ((arms[0].name, 1), (size, 2)):
        made = generation(((4, 2), (4, 4)), seed=seed, text=size)
        facts = {"error": {"kind": size, "message": size}, "tools": {"calls": [{"name": size}], "spans": [[0, 2]]}}
        trace = decode(made.trace)
        trace = replace(trace, header=replace(trace.header, facts=facts))
        store.add_requests(run, [NewRequest(arm, size, size, 0, replace(made, trace=encode(trace)))])
    details = {"divergences": {"real": 1}, "leads": [0.5], "noise_bound": 0.25}
    found = (Finding(f"{size}/{size}#0", 1, size),) * 30
    bad = CheckResult(Verdict.FAULT, size, details=details, findings=found)
    store.add_check(run, NewCheck(size, "greedy_equality", "equality", Level.L3, bad))
    store.add_pieces(run, lambda token: f"{token}{size}")
    body, tree = rendered(store, run, *VIEWS)
    elements = [(str(node.tag).rpartition("}")[2], node.attrib) for node in tree.iter()]
    assert {tag for tag, _ in elements} & ALIVE - {"style"} == set()
    assert [name for _, attributes in elements for name in attributes if name.startswith("on") or name == "style"] == []
    assert "\u202e" not in body
    assert "\x1b" not in body
    assert len(body) < 5_000_000
    if size is MEGABYTE:
        assert "more characters)" in body


def test_an_empty_run_has_a_sentence_in_each_view(store):
    body, _ = rendered(store, store.begin_run(start()), *VIEWS)
    assert body.count('class="nothing"') == 3

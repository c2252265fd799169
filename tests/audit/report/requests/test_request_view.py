"""A drawing of a request holds every token of its record once, with the numbers of the record."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from audit.evidence.records import RequestRecord
from audit.report.requests import request_view as module
from audit.report.requests.choice import NamedFinding
from audit.report.requests.pieces import Pieces
from audit.report.requests.request_view import Alternatives, anchor_of, explored, marks_of
from engine.core.types import FinishReason, RecordLevel, Role
from engine.record.trace import decode
from engine.sampling.transforms import softmax
from tests.audit.store.build import generation

PLAN = ((4, 4), (4, 1), (0, 0), (2, 0))
LETTERS = Pieces("abcdefgh".__getitem__)


def record(level=RecordLevel.FULL, plan=PLAN, facts=None, text="text"):
    made = generation(plan, seed=5, level=level, text=text)
    trace = decode(made.trace)
    trace = replace(trace, header=replace(trace.header, facts=facts or {}))
    return RequestRecord("spec/c#0", "c", 0, "chat", trace, made.tokens, text, FinishReason.LENGTH, 9, True)


def test_every_token_stands_in_its_step_with_its_role():
    one = record()
    drawing = explored(one, LETTERS)
    emitted = [view for step in drawing.steps for view in step.emitted]
    assert tuple(view.line.token for view in emitted) == one.tokens
    assert [Role[view.line.role.upper()] for view in emitted] == one.trace.role.tolist()
    assert [view.logprob for view in emitted] == one.trace.logprob.tolist()
    assert [(step.drafted, len(step.dropped)) for step in drawing.steps] == [(4, 0), (4, 3), (0, 0), (2, 2)]
    assert [view.style for view in drawing.steps[1].dropped] == ["rejected", "not-examined", "not-examined"]
    assert "".join(view.text for view in emitted) == "".join(map("abcdefgh".__getitem__, one.tokens))
    assert (drawing.prompt, drawing.lacking, drawing.left_tokens) == ("bcd", (), 0)


def test_alternatives_are_the_largest_of_the_row_with_q_of_the_draft():
    one = record()
    p = softmax(one.trace.logits[1].astype(np.float64))
    shown = Alternatives(one.trace, LETTERS).at(1)
    assert [other.token for other in shown] == np.argsort(-p)[:5].tolist()
    assert [other.p for other in shown] == pytest.approx(np.sort(p)[::-1][:5].tolist())
    assert {other.q for other in shown} == {0.125}
    plain = explored(one, LETTERS).steps[2].emitted[0]
    assert {other.q for other in plain.alternatives} == {None}


@pytest.mark.parametrize(
    ("level", "words"),
    [
        (RecordLevel.TOKENS, ["no p, no q, no random numbers, no margins, no log-probabilities", "alternatives need"]),
        (RecordLevel.SCALARS, ["alternatives need topk or full"]),
        (RecordLevel.TOPK, []),
    ],
)
def test_what_the_level_lacks_is_said(level, words):
    lacking = explored(record(level), LETTERS).lacking
    assert len(lacking) == len(words)
    assert [word in line for word, line in zip(words, lacking, strict=True)] == [True] * len(words)


def test_cells_give_alternatives_as_rows_do():
    rows, cells = (Alternatives(record(level).trace, LETTERS).at(0) for level in (RecordLevel.FULL, RecordLevel.TOPK))
    assert [other.token for other in cells] == [other.token for other in rows]
    assert [other.p for other in cells] == pytest.approx([other.p for other in rows], rel=1e-6)


def test_long_rows_are_transformed_for_the_first_tokens_only(monkeypatch):
    monkeypatch.setattr(module, "MOST_SCORES", 8 * 3)
    drawing = explored(record(), LETTERS)
    shown = [bool(view.alternatives) for step in drawing.steps for view in step.emitted]
    assert shown == [True] * 3 + [False] * (len(shown) - 3)
    assert drawing.lacking == ("Alternatives are drawn for the first 3 tokens, because its rows are long.",)


def test_without_texts_there_are_ids():
    drawing = explored(record(), Pieces(None, "no tokenizer here"))
    assert drawing.prompt is None
    assert {view.text for step in drawing.steps for view in step.emitted} == {None}
    assert "no tokenizer here" in drawing.lacking[0]


def test_a_branching_draft_is_a_tree():
    one = record(plan=((4, 0),))
    trace = replace(one.trace, node_parent=np.array([-1, -1, 0, 0], one.trace.node_parent.dtype))
    (step,) = explored(replace(one, trace=trace), LETTERS).steps
    assert [[child.view.line.parent for child in node.children] for node in step.tree] == [[0, 0], []]
    assert explored(one, LETTERS).steps[0].tree == ()


def test_events_stand_at_their_tokens():
    facts = {
        "constraint": {"library": "x", "version": "1", "refused": 2},
        "tools": {"calls": [{"name": "find", "arguments": {}}], "spans": [[1, 4]]},
        "stream": {
            "decisions": [{"filter": 0, "action": "stop", "category": "pii", "start": 3, "end": 5, "token": 99}]
        },
        "error": {"kind": "Timeout", "message": "late"},
    }
    marks = marks_of(record(facts=facts))
    assert [(at, mark.kind) for at, some in enumerate(marks[:-1]) for mark in some] == [
        (1, "tool"),
        (2, "grammar"),
        (4, "tool"),
    ]
    assert [mark.kind for mark in marks[-1]] == ["filter", "error"]
    assert len(explored(record(facts=facts), LETTERS).events) == 4


def test_a_long_request_is_cut_at_a_step_and_says_so(monkeypatch):
    monkeypatch.setattr(module, "MOST_TOKENS", 6)
    drawing = explored(record(), LETTERS)
    assert (len(drawing.steps), drawing.left_steps, drawing.left_tokens) == (2, 2, 2)


def test_huge_texts_are_cut():
    huge = Pieces(lambda _token: "x" * 1_000_000)
    drawing = explored(record(plan=((0, 0),)), huge, [NamedFinding("law", 0, "y" * 1_000_000)])
    assert "(999880 more characters)" in drawing.steps[0].emitted[0].text
    assert max(len(drawing.prompt), len(drawing.findings[0].message)) < 1300


def test_an_anchor_holds_nothing_of_the_name():
    assert anchor_of("<b>/\u202e#0").startswith("request-")
    assert anchor_of("a") != anchor_of("b")

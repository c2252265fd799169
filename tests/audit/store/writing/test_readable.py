"""Tokens and steps in plain SQL: the views give what the traces hold, on both databases."""

from __future__ import annotations

import json
import math
from dataclasses import replace

import numpy as np
import pytest
from sqlalchemy import text

from audit.report.requests.generation import token_lines
from audit.store import NewRequest, Store
from audit.store.writing.readable import NEEDED, readable_of
from engine.core.errors import TraceError
from engine.core.types import FinishReason, RecordLevel
from engine.record.envelope import opened
from engine.record.joined_traces import JoinedTraces, joined
from engine.record.recorder import Recorder
from engine.record.trace import decode, encode, fitting
from tests.audit.store.build import connected, generation, start, step
from tests.audit.store.conftest import any_url, cluster, postgres

__all__ = ["any_url", "cluster", "postgres"]

CHAINS = ((4, 2), (3, 3), (0, 0), (4, 0), (2, 1))
COLUMNS = "step, position, token, role, parent, p, q, logprob, accepted, drafted_by"
HALF_STEP = 0.00051
"""Half a thousandth of a nat, with what a relative error of exp adds."""


def readable(trace):
    (made,) = readable_of(JoinedTraces((0,), (trace.header,), trace, np.array([trace.steps])))
    return made


def tree(seed=5):
    """A generation of one step whose tree has two branches; the second is accepted to its end."""
    rng, plain = np.random.default_rng(seed), generation((), seed=seed)
    made = step(0, 3, (1, 2, 3, 4), 2, rng)
    recorder = Recorder(decode(plain.trace).header)
    recorder.step(made)
    trace = decode(recorder.finish(FinishReason.LENGTH))
    branches = replace(
        trace,
        node_parent=np.array([-1, -1, 1, 0], np.int16),
        examined_node=np.array([0, 1, 2], np.int16),
        examined_accepted=np.array([0, 1, 1], np.uint8),
        examined_p=np.array([0.0, 0.5, 0.25]),
        token=np.array([2, 3, int(trace.token[-1])], np.uint32),
    )
    return replace(plain, tokens=branches.tokens, trace=encode(branches))


def kept(url, *made):
    with Store.open(url, create=False) as store:
        run = store.begin_run(start())
        for index, each in enumerate(made):
            store.add_requests(run, [NewRequest("spec", "chat", f"c{index}", 0, each)])
    with connected(url, read_only=True) as connection:
        query = f"SELECT {COLUMNS} FROM v_token WHERE run = :run ORDER BY case_id, step, place"
        return connection.execute(text(query), {"run": run}).all()


def near(found, exact):
    """Equal up to the rounding of the logarithm."""
    if exact is None or found is None:
        return exact is found
    return found == exact == 0 or math.isclose(found, exact, rel_tol=HALF_STEP)


def agrees(row, line):
    exact = (line.step, line.position, line.token, line.role)
    return tuple(row[:4]) == exact and row.parent == line.parent and near(row.p, line.p) and near(row.q, line.q)


@pytest.mark.medium
@pytest.mark.parametrize("level", [RecordLevel.TOKENS, RecordLevel.SCALARS, RecordLevel.FULL])
def test_the_tokens_of_a_chain_are_those_of_its_trace(any_url, level):
    made = generation(CHAINS, seed=9, level=level)
    lines, rows = list(token_lines(decode(made.trace))), kept(any_url, made)
    assert len(rows) == len(lines) == 18
    assert all(map(agrees, rows, lines))


def test_the_tokens_of_a_tree_have_places_parents_and_probability_zero(any_url):
    made = tree()
    rows = kept(any_url, made, generation(CHAINS, seed=9))
    lines = [*token_lines(decode(made.trace)), *token_lines(decode(generation(CHAINS, seed=9).trace))]
    assert len(rows) == len(lines)
    assert all(map(agrees, rows, lines))
    assert [(row.position, row.role, row.parent) for row in rows[:5]] == [
        (3, "rejected", -1),
        (3, "accepted", -1),
        (4, "accepted", 1),
        (4, "not examined", 0),
        (5, "recovered", None),
    ]
    assert rows[0].p == 0
    assert [row.accepted for row in rows[:5]] == [0, 1, 1, 0, None]
    assert rows[0].drafted_by is None  # the test's arm states no proposer


def test_emitted_tokens_have_their_log_probability_in_order(any_url):
    made = [tree(), generation(CHAINS, seed=9)]
    rows = [row for row in kept(any_url, *made) if row.role not in {"rejected", "not examined"}]
    exact = [value for each in made for value in decode(each.trace).logprob.tolist()]
    assert len(rows) == len(exact)
    assert all(abs(row.logprob - value) <= HALF_STEP for row, value in zip(rows, exact, strict=True))


def test_rejected_tokens_have_no_log_probability(any_url):
    rows = [row for row in kept(any_url, generation(CHAINS, seed=9)) if row.role in {"rejected", "not examined"}]
    assert len(rows) == 7
    assert {row.logprob for row in rows} == {None}


def test_a_log_probability_that_equals_p_is_stored_once(any_url):
    made = generation(CHAINS, seed=9)
    trace = decode(made.trace)
    same = replace(trace, logprob=np.log(np.where(trace.role == 0, 0.5, trace.p)))
    assert readable(same).tokens.logprob is None
    rows = kept(any_url, replace(made, trace=encode(same)))
    assert all(near(math.exp(row.logprob), row.p) for row in rows if row.logprob is not None)
    assert sum(row.logprob is not None for row in rows) == len(trace.token)


def test_steps_are_rows_of_counts():
    columns = readable(decode(generation(CHAINS, seed=1).trace)).steps
    assert [step[:5] for step in json.loads(columns.steps)] == [
        *([3, 4, 2, 3, 11], [6, 3, 3, 4, 10], [10, 0, 0, 1, 7]),
        *([11, 4, 0, 1, 11], [12, 2, 1, 2, 9]),
    ]


def test_a_record_without_verdicts_keeps_the_first_drafted_tokens():
    trace = decode(generation(((4, 2),), level=RecordLevel.TOKENS).trace)
    silent = replace(
        trace,
        n_examined=np.zeros(1, np.int16),
        examined_node=trace.examined_node[:0],
        examined_accepted=trace.examined_accepted[:0],
    )
    assert readable(silent).tokens.role == '["AANNC"]'


def of_many(*made):
    """The readable columns of several generations that are read together."""
    read = [fitting(opened(each.trace), NEEDED) for each in made]
    places = {}
    for group in joined(read, NEEDED):
        places |= dict(zip(group.places, readable_of(group), strict=True))
    return [places[place] for place in range(len(made))]


def test_traces_that_are_read_together_give_what_each_gives_alone():
    levels = (RecordLevel.SCALARS, RecordLevel.TOKENS, RecordLevel.FULL)
    made = [generation(CHAINS[:n], seed=n, level=level) for n in range(6) for level in levels]
    made += [tree(), generation(CHAINS, seed=9), tree(seed=6)]
    trace = decode(made[-2].trace)
    silent = replace(trace, examined_accepted=np.zeros_like(trace.examined_accepted))
    same_twice = replace(trace, logprob=np.log(np.where(trace.role == 0, 0.5, trace.p)))
    made += [replace(made[-2], trace=encode(each)) for each in (silent, same_twice)]
    assert of_many(*made) == [readable(decode(each.trace)) for each in made]


def test_a_trace_whose_columns_do_not_fit_lends_nothing_to_the_next():
    made = generation(CHAINS, seed=9)
    trace = decode(made.trace)
    longer = replace(trace, node_token=np.append(trace.node_token, trace.node_token[:1]))
    shorter = replace(trace, node_token=trace.node_token[:-1])
    with pytest.raises(TraceError, match=r"column node_token has .* entries instead of"):
        of_many(*(replace(made, trace=encode(each)) for each in (longer, shorter)))


def test_an_empty_request_has_no_tokens(any_url):
    assert kept(any_url, generation(())) == []


def test_tokens_have_their_text_once_per_tokenizer(any_url):
    kept(any_url, generation(CHAINS, seed=9))
    with Store.open(any_url, create=False) as store:
        run = store.resolve("latest")
        added = store.add_pieces(run, lambda token: "abcdefg\x00"[token])
        assert store.add_pieces(run, str) == 0
    with connected(any_url, read_only=True) as connection:
        pieces = dict(connection.execute(text("SELECT DISTINCT token, piece FROM v_token")).all())
    assert len(pieces) == added > 3
    assert pieces == {token: "abcdefg\u2400"[token] for token in pieces}


def test_the_question_of_the_page_is_one_query(any_url):
    """Which drafted tokens were rejected in a domain, at which probability."""
    kept(any_url, generation(CHAINS, seed=9), tree())
    query = "SELECT domain, token, p, q FROM v_token WHERE domain = 'chat' AND role = 'rejected' ORDER BY p"
    with connected(any_url, read_only=True) as connection:
        rows = connection.execute(text(query)).all()
    assert [round(row.p, 3) for row in rows] == [0.0, 0.5, 0.5, 0.5]

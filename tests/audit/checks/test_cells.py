"""Law and acceptance on cells: calibrated, as sharp as cells allow, and honest about what they lose."""

from dataclasses import replace

import numpy as np
import pytest

from audit.checks.acceptance_theory import CHECK as ACCEPTANCE
from audit.checks.base.interface import evaluate
from audit.checks.law.check import CHECK as LAW
from audit.checks.replay.check import CHECK as REPLAY
from audit.evidence.acceptance import expected_acceptance
from audit.evidence.decisions import decisions
from audit.evidence.law.cells import previous_at
from audit.evidence.law.table import tabulate
from audit.evidence.records import Evidence
from audit.evidence.verdicts import Verdict
from engine.core.types import Protocol, RecordLevel, Role
from tests.support.tiers import fast_first, slow_unless

from .simulator import SAMPLED, Decoder, Laws, Setup, arm, changed, put, world

WIDE = world(5, vocabulary=120, sharpness=1.5)
CELLS = Setup(level=RecordLevel.TOPK)
SEEDS = 20


def judge(setup, seed=7, requests=24, check=LAW, on=WIDE):
    setup = replace(setup, sampling=replace(setup.sampling, seed=seed))
    return evaluate(check, Evidence(arm(on, setup, requests)), {})


@pytest.mark.medium
@pytest.mark.parametrize("draft", slow_unless(["soft", "one_hot", "none"], ["soft"]))
@pytest.mark.parametrize("protocol", [Protocol.CHAIN, Protocol.GUMBEL])
def test_whole_vocabularies_of_cells_give_what_rows_give(draft, protocol):
    """With 20 tokens every cell is a token, and the tail is empty."""
    small = world(5, vocabulary=20)
    full, lumped = (
        judge(Setup(protocol, draft, level=level), on=small, requests=8)
        for level in (RecordLevel.FULL, RecordLevel.TOPK)
    )
    assert lumped.details["tail_mass"] == 0
    assert "cells" not in lumped.summary
    assert (full.verdict, full.n) == (lumped.verdict, lumped.n)
    # ties in float32 and the order of random numbers aside, the tests are the same
    exact = {"log p", "leak of q", "accepted ~ min(1, p / q)", "tokens ~ p, by id"}
    numbers = [
        {(each["name"], each["stratum"]): each["statistic"] for each in result.details["components"]}
        for result in (full, lumped)
    ]
    assert numbers[0].keys() == numbers[1].keys()
    for name, stratum in numbers[0]:
        if name in exact:
            assert numbers[1][name, stratum] == pytest.approx(numbers[0][name, stratum], rel=1e-3, abs=1e-3)


@pytest.mark.parametrize("draft", ["soft", "one_hot"])
def test_exact_numbers_of_cells_are_those_of_rows(draft):
    full, lumped = (arm(WIDE, Setup(draft=draft, level=level), 1) for level in (RecordLevel.FULL, RecordLevel.TOPK))
    one, other = (tabulate(each.requests, np.random.default_rng(3)).table for each in (full, lumped))
    np.testing.assert_array_equal(one.known, other.known)
    np.testing.assert_allclose(other.id_pit, one.id_pit, atol=1e-12)
    np.testing.assert_allclose(other.accept, one.accept, atol=1e-12)
    np.testing.assert_allclose(other.distance, one.distance, atol=1e-6)
    rows, cells = (decisions(each.requests[0]) for each in (full, lumped))
    np.testing.assert_allclose(expected_acceptance(cells), expected_acceptance(rows), atol=1e-12)
    every = [previous_at(replace(cells, token=np.full_like(cells.token, cell))) for cell in range(cells.p.shape[1])]
    here = np.stack(every, axis=1)[1:]
    assert np.all(np.abs(here.sum(axis=1) - 1.0) < 1e-6)
    before = rows.p[:-1]
    assert previous_at(rows)[1:].tolist() == before[np.arange(len(before)), rows.token[1:]].tolist()
    for at, ids in enumerate(cells.lumped.ids[1:, :5]):
        own = np.isin(ids, cells.lumped.ids[at])
        np.testing.assert_allclose(here[at, :5][own], before[at, ids[own]], atol=1e-6)
        assert np.all(here[at, :5][~own] == 0)


CLEAN = (CELLS, replace(CELLS, draft="one_hot"), replace(CELLS, protocol=Protocol.GUMBEL))


@pytest.mark.parametrize("check", fast_first([LAW, ACCEPTANCE]))
@pytest.mark.parametrize(
    "setup", fast_first([CELLS, replace(CELLS, draft="one_hot"), replace(CELLS, protocol=Protocol.GUMBEL)])
)
@pytest.mark.slow
def test_clean_arms_pass(check, setup):
    """Levels 0.005 and 0.001: over 40 seeds of each of the six kinds no false alarm was seen; 20 run here."""
    found = [judge(setup, seed, 8, check).verdict for seed in range(SEEDS)]
    assert Verdict.FAULT not in found


@pytest.mark.parametrize("fault", fast_first(["lenient", "sqrt", "from_p", "stale_q", "wrong_bonus_row"]))
@pytest.mark.slow
def test_faults_are_found_on_cells(fault):
    results = [judge(replace(CELLS, fault=fault), seed, 60) for seed in range(3)]
    assert [each.verdict for each in results] == [Verdict.FAULT] * 3
    assert "in their tails" in results[0].summary
    assert 0 < results[0].details["tail_mass"] < 0.5
    assert 0.5 < results[0].details["distance_seen"] < 1


def test_records_without_cells_are_not_judged():
    made = arm(WIDE, CELLS, 1)
    trace = made.requests[0].trace
    names = ("cell_id", "cell_p", "cell_q", "tail", "row_p", "p_below", "q_token", "residual_below", "residual_sum")
    columns = {name: getattr(trace, name)[:0] for name in (*names, "product", "q_below")}
    old = replace(made, requests=(replace(made.requests[0], trace=replace(trace, **columns)),))
    result = evaluate(LAW, Evidence(old), {})
    assert result.verdict is Verdict.INCONCLUSIVE
    assert "column q_below has 0 entries" in result.summary


def test_a_token_outside_the_cells_is_in_the_tail():
    hot = replace(CELLS, sampling=replace(SAMPLED, temperature=6.0))
    trace = Decoder(WIDE, hot, "case-1", Laws.of(WIDE, hot.sampling)).run()
    made = decisions(arm(WIDE, hot, 2).requests[1])
    tail = made.token == made.p.shape[1] - 1
    assert 0 < tail.mean() < 1
    for at in np.flatnonzero(tail):
        assert trace.token[at] not in trace.cell_id[at]


@pytest.mark.medium
@pytest.mark.parametrize("draft", ["soft", "one_hot", "none"])
def test_replay_recomputes_every_decision_of_a_chain_on_cells(draft):
    full, lumped = (
        judge(Setup(draft=draft, level=level), requests=6, check=REPLAY)
        for level in (RecordLevel.FULL, RecordLevel.TOPK)
    )
    assert lumped.verdict is Verdict.CERTIFIED, lumped.summary
    assert lumped.details["decisions"] == lumped.details["recomputed"] == full.details["decisions"]


@pytest.mark.medium
@pytest.mark.parametrize(
    "fault", fast_first(["argmax_draft", "bf16_draft", "sqrt", "from_p", "reuse", "lenient", "wrong_bonus_row"], 2)
)
def test_replay_finds_wrong_decisions_on_cells(fault):
    result = judge(replace(CELLS, fault=fault), requests=30, check=REPLAY)
    assert result.verdict is Verdict.FAULT, result.summary


def test_a_changed_mass_is_seen_by_replay():
    clean = arm(WIDE, CELLS, 2)
    trace = clean.requests[1].trace
    bonus = int(np.flatnonzero(trace.role == Role.BONUS)[0])
    recovered = int(np.flatnonzero(trace.role == Role.RECOVERED)[0])
    changes = (
        {"p_below": put(trace.p_below, bonus, trace.p_below[bonus] + 0.9)},
        {"residual_below": put(trace.residual_below, recovered, trace.residual_below[recovered] + 0.9)},
        {"row_p": put(trace.row_p, 0, trace.row_p[0] / 2)},
        {"q_below": put(trace.q_below, 0, trace.q_below[0] + 0.9)},
        {"cell_p": trace.cell_p[:, ::-1].copy()},
    )
    for change in changes:
        assert evaluate(REPLAY, Evidence(changed(clean, 1, **change)), {}).verdict is Verdict.FAULT, change.keys()

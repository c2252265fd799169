"""Sums at record level `topk` beside the cells and the largest scores: what these do not allow is a contradiction."""

from dataclasses import replace

import numpy as np
import pytest

from audit.checks.accounting.check import cell_faults
from audit.checks.accounting.rules import one_hot_faults
from engine.core.types import Protocol, RecordLevel
from engine.record.columns import TOP
from engine.record.rows.lumping import PAD
from tests.audit.checks.simulator import SAMPLED, Setup, arm, world

SUMS = ("q_token", "product", "residual_below", "residual_sum", "top_lse")


def trace_of(vocabulary, **sampling):
    setup = Setup(level=RecordLevel.TOPK, sampling=replace(SAMPLED, **sampling))
    return arm(world(4, vocabulary, sharpness=0.7), setup, 1).requests[0].trace


@pytest.fixture(scope="module", params=[16, 3 * TOP], ids=["every token has a cell", "mass outside the cells"])
def trace(request):
    return trace_of(request.param)


def test_a_clean_record_is_allowed(trace):
    assert list(cell_faults(trace)) == []
    for sampling in ({"temperature": 0.5}, {"top_p": 0.8}, {"top_k": 3}, {"repetition_penalty": 1.3}):
        assert list(cell_faults(trace_of(trace.header.vocabulary, **sampling))) == []


@pytest.mark.parametrize("by", [-3.0, 3.0, np.nan])
@pytest.mark.parametrize("name", SUMS)
def test_a_sum_outside_what_the_cells_allow_is_named(trace, name, by):
    column = getattr(trace, name).copy()
    at = int(np.flatnonzero(~np.isnan(column))[1])
    column[at] += by
    (fault,) = cell_faults(replace(trace, **{name: column}))
    assert f": {name} " in fault.message


@pytest.mark.parametrize("side", [0, 1])
def test_the_mass_outside_the_cells_is_the_rest(trace, side):
    tail = trace.tail.copy()
    at = int(np.flatnonzero(~np.isnan(tail[:, side]))[0])
    tail[at, side] += 0.01
    (fault,) = cell_faults(replace(trace, tail=tail))
    assert f": tail {side} " in fault.message


@pytest.mark.parametrize(("name", "value"), [("cell_p", 1.0), ("cell_q", -0.5), ("cell_q", np.nan)])
def test_a_cell_that_is_not_used_has_no_mass(name, value):
    trace = trace_of(3 * TOP)
    cells = getattr(trace, name).copy()
    row, cell = np.argwhere((trace.cell_id == PAD) & ~np.isnan(trace.tail[:, 1, None]))[0]
    cells[row, cell] = value
    (fault,) = cell_faults(replace(trace, **{name: cells}))
    assert f": unused {name[-1]} " in fault.message


def test_a_one_hot_row_has_all_mass_on_its_token():
    certain = arm(world(4), Setup(Protocol.CHAIN, draft="one_hot"), 1).requests[0].trace
    assert len(certain.q_rows)
    assert list(one_hot_faults(certain)) == []
    rows = certain.q_rows.copy()
    rows[1] = np.roll(rows[1], 1)
    (fault,) = one_hot_faults(replace(certain, q_rows=rows))
    assert "is another law than the token itself" in fault.message


@pytest.mark.parametrize(
    ("margin", "names"), [(np.inf, []), (-np.inf, ["margin"]), (4.0, ["margin"]), (np.nan, ["margin"])]
)
def test_a_mask_that_allows_one_token_makes_an_infinite_margin(trace, margin, names):
    scores, sums, margins = trace.top_score.copy(), trace.top_lse.copy(), trace.margin.copy()
    scores[1, 1:] = -np.inf
    sums[1] = scores[1, 0] / trace.header.sampling.temperature
    margins[1] = margin
    faults = cell_faults(replace(trace, top_score=scores, top_lse=sums, margin=margins))
    assert [fault.message.split(": ")[1].split()[0] for fault in faults] == names

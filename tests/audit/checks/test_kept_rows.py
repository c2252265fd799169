"""Kept rows: chosen by the record, equal to the rows of the same run, and a fault if anything about them differs."""

import dataclasses
import hashlib
import math

import numpy as np
import pytest

from audit.checks.q_contract.check import judge_request
from audit.checks.replay.kept_rows import _node, check_kept, wrong_share
from engine.core.types import Protocol, RecordLevel, SamplingParams
from engine.record.columns import shape_fault
from engine.record.rows.kept_rows import choices, chosen, windows
from engine.record.trace import decode
from tests.audit.checks.simulator import record
from tests.engine.build import Setup, generate, requests

SAMPLED = SamplingParams(temperature=0.9, max_new_tokens=30, seed=4, top_k=60, repetition_penalty=1.1)
WIDE = 400


def traces(level=RecordLevel.TOPK, protocol=Protocol.CHAIN, sampling=SAMPLED):
    made = generate(Setup(level=level, protocol=protocol, vocabulary=WIDE), requests(2, sampling, WIDE)).values()
    return [decode(each.trace) for each in made]


@pytest.mark.medium
@pytest.mark.parametrize("protocol", [Protocol.CHAIN, Protocol.TREE, Protocol.GUMBEL])
def test_kept_rows_are_those_of_the_run(protocol):
    for kept, full in zip(traces(protocol=protocol), traces(RecordLevel.FULL, protocol), strict=True):
        assert 0 < len(kept.kept_at) < len(kept.token) // 2
        assert kept.kept_at.tolist() == choices(kept)
        np.testing.assert_array_equal(kept.kept_logits, full.logits[kept.kept_at])
        ends = np.cumsum(kept.kept_q_count)
        for x, end, count in zip(kept.kept_examined, ends, kept.kept_q_count, strict=True):
            row = np.zeros(WIDE)
            row[kept.kept_q_id[end - count : end]] = kept.kept_q[end - count : end]
            np.testing.assert_array_equal(row, full.q_rows[x])
        assert check_kept(kept) == dataclasses.replace(check_kept(kept), faults=())
        assert check_kept(full).tokens == 0


def changed(trace, name, at, value):
    column = getattr(trace, name).copy()
    column[at] = value
    return dataclasses.replace(trace, **{name: column})


def changes(trace):
    at, x = int(trace.kept_at[0]), int(trace.kept_examined[0])
    yield changed(trace, "kept_logits", (0, 5), np.nextafter(trace.kept_logits[0, 5], np.float32(9)))
    yield changed(trace, "kept_q", 0, trace.kept_q[0] + 1e-6)
    yield changed(trace, "p_below", at, trace.p_below[at] + 1e-6)
    yield changed(trace, "tail", (at, 0), trace.tail[at, 0] + 1e-6)
    yield changed(trace, "q_below", x, trace.q_below[x] + 1e-6)
    yield changed(trace, "top_score", (at, 1), trace.top_score[at, 1] + 1e-6)
    yield dataclasses.replace(trace, kept_at=trace.kept_at[:-1], kept_logits=trace.kept_logits[:-1])
    yield changed(trace, "logprob", 0, trace.logprob[0] - 1e-9)


def test_each_change_is_a_fault():
    trace = traces()[0]
    for number, broken in enumerate(changes(trace)):
        assert check_kept(broken).faults, number


def contract(trace):
    return judge_request(record(trace))


@pytest.mark.parametrize("protocol", [Protocol.CHAIN, Protocol.TREE, Protocol.GUMBEL])
def test_the_contract_holds_for_whole_rows_of_q(protocol):
    for trace in traces(protocol=protocol):
        found = contract(trace)
        assert (found.findings, found.kept) == ((), len(trace.kept_examined))
        assert found.kept > 0


def test_the_contract_sees_entries_besides_the_token_s():
    trace = traces(sampling=dataclasses.replace(SAMPLED, temperature=2.0))[0]
    token, ids = trace.node_token[_node(trace, int(trace.kept_examined[0]))], trace.kept_q_id[: trace.kept_q_count[0]]
    # the machine's rounding chooses the row; both entries lie on the same side of the token, and one has a cell
    side = max(ids > token, ids < token, key=np.count_nonzero)
    in_cells = np.isin(ids, trace.cell_id[trace.kept_at[0]])
    moved = trace.kept_q.copy()
    moved[np.flatnonzero(side & in_cells)[0]] += 1e-4
    moved[np.flatnonzero(side & ~in_cells)[0]] -= 1e-4
    broken = dataclasses.replace(trace, kept_q=moved)
    assert not check_kept(broken).faults, "the sums are the same"
    assert "the cells of q" in contract(broken).findings[0].message


@pytest.mark.parametrize("name", ["kept_logits", "kept_q", "kept_q_count"])
def test_a_column_of_another_length_is_malformed(name):
    trace = traces()[0]
    assert shape_fault(trace) is None
    assert shape_fault(dataclasses.replace(trace, **{name: getattr(trace, name)[:-1]}))


def test_the_choice_is_uniform_and_follows_from_the_commitment():
    counts = [len(chosen(i.to_bytes(4, "big"), 100, 0.2)) for i in range(200)]
    # 20,000 draws of probability 0.2: five standard deviations are 283
    assert abs(sum(counts) - 4000) < 283
    assert chosen(b"a", 50, 0.0) == []
    assert chosen(b"a", 50, 1.0) == list(range(50))


@pytest.mark.parametrize("tokens", [0, 1, 2, 511, 512, 513])
@pytest.mark.parametrize("share", [1e-9, 0.01, 0.5, 0.999])
def test_the_choice_is_the_documented_one(share, tokens):
    limit, given = math.ceil(share * 2**64), b"a commitment"
    numbers = [hashlib.sha256(given + i.to_bytes(8, "big")).digest()[:8] for i in range(tokens)]
    assert chosen(given, tokens, share) == [i for i in range(tokens) if int.from_bytes(numbers[i], "big") < limit]


def test_windows_close_behind_whole_steps():
    found = list(windows([3, 3, 1, 5, 2], 4))
    assert [(each.begin, each.end, each.first) for each in found] == [(0, 2, 0), (2, 4, 6), (4, 5, 12)]


def test_the_bound_holds_for_the_sample_it_states():
    """With one wrong row more than the bound, a clean sample has a probability of at most 1 %."""
    for kept, tokens in ((10, 400), (17, 20_000), (300, 400)):
        wrong = round(wrong_share(kept, tokens, 0.99) * tokens)
        clean = [np.prod([(tokens - kept - i) / (tokens - i) for i in range(count)]) for count in (wrong, wrong + 1)]
        assert clean[0] > 0.01 >= clean[1]
    assert wrong_share(400, 400, 0.99) == 0.0

"""What is looked at as columns first is found as if every step and token had been looked at singly."""

from dataclasses import replace

import numpy as np
import pytest

from audit.checks.accounting import rules as accounting_rules
from audit.checks.accounting.rules import number_faults, top_faults
from audit.checks.q_contract import check as q_check
from audit.checks.q_contract import columns as q_columns
from audit.checks.q_contract.check import judge_request
from audit.checks.replay import kept_rows as replay_kept
from audit.checks.replay import masses as replay_masses
from audit.checks.replay.kept_rows import check_kept
from audit.checks.replay.masses import SuspectSteps
from audit.evidence import structure as replay_structure
from audit.evidence.decisions import lumped_decisions
from audit.evidence.structure import structure_faults
from engine.core.types import FinishReason, Protocol, QKind, RecordLevel
from engine.record.columns import numbered, shape_fault
from engine.record.trace import COLUMNS, steps_of
from tests.audit.checks.simulator import GREEDY, SAMPLED, Decoder, Setup, record, world

SETUPS = (
    Setup(level=RecordLevel.TOPK),
    Setup(level=RecordLevel.TOPK, sampling=replace(SAMPLED, temperature=0.7, top_p=0.8, max_new_tokens=32)),
    Setup(level=RecordLevel.TOPK, sampling=replace(SAMPLED, top_k=4, min_p=0.05, max_new_tokens=32), eos=(3,)),
    Setup(level=RecordLevel.TOPK, draft="one_hot"),
    Setup(level=RecordLevel.TOPK, draft="none"),
    Setup(level=RecordLevel.TOPK, protocol=Protocol.GREEDY, draft="one_hot", sampling=GREEDY),
    Setup(level=RecordLevel.TOPK, protocol=Protocol.GUMBEL, draft="coupled"),
)


def traces():
    made = world(1)
    return [Decoder(made, setup, f"case-{i}").run() for i, setup in enumerate(SETUPS)]


def spoilt(trace, rng):
    """One or two entries changed; what then contradicts itself in shape is not for these rules."""
    for _ in range(int(rng.integers(1, 3))):
        names = [name for name in COLUMNS if getattr(trace, name).size and name not in ("n_drafted", "n_examined")]
        name = str(rng.choice(names))
        column = getattr(trace, name).copy()
        flat = column.reshape(-1)
        at = int(rng.integers(len(flat)))
        if column.dtype.kind == "f":
            flat[at] = rng.choice([np.nan, np.inf, -np.inf, -1.0, 0.0, 1.5, flat[at] * (1 + 1e-7), 0.5])
        else:
            low, high = np.iinfo(column.dtype).min, np.iinfo(column.dtype).max
            flat[at] = min(max(int(flat[at]) + int(rng.choice([-2, -1, 1, 2, 5])), low, -1), high)
        trace = replace(trace, **{name: column})
    if rng.random() < 0.2:
        header = replace(trace.header, eos_ids=(int(trace.token[len(trace.token) // 2]),))
        trace = replace(trace, header=replace(header, finish_reason=FinishReason(rng.choice(list(FinishReason)))))
    return trace


def cases(count):
    rng = np.random.default_rng(2)
    for trace in traces():
        yield trace
        for _ in range(count):
            changed = spoilt(trace, rng)
            if shape_fault(changed) is None:
                yield changed


def found(trace):
    """Faults by rule."""
    listed = [list(rule(trace)) for rule in (number_faults, top_faults)]
    listed.append(list(structure_faults(record(trace))))
    if trace.header.protocol is Protocol.CHAIN and not trace.header.sampling.greedy:
        tally = replay_masses.replay_masses(trace, lumped_decisions(trace))
        listed.append([tally.decisions, tally.recomputed, *tally.faults])
    return listed


def every_step(trace, made, exact):
    """All steps; the counts by going through them."""
    full = [int(trace.q_kind[view.index]) == QKind.FULL for view in steps_of(trace)]
    decisions = recomputed = 0
    for view, drawn in zip(steps_of(trace), full, strict=True):
        examined = range(view.examined.start, view.examined.stop)
        numbers = trace.node_uniform[view.nodes][trace.examined_node[view.examined]]
        silent = sum(np.isnan(u) or np.isnan(trace.q_below[x]) for u, x in zip(numbers, examined, strict=True))
        count = len(examined) * (1 + drawn) + view.emitted.stop - view.emitted.start
        decisions, recomputed = decisions + count, recomputed + count - silent * drawn
    return SuspectSteps(decisions, recomputed, list(range(trace.steps)))


@pytest.mark.slow
def test_columns_flag_whatever_a_walk_over_every_step_and_token_finds(monkeypatch):
    given = list(cases(60))
    quick = [found(trace) for trace in given]
    assert sum(any(listed) for listed in quick) > len(given) / 3
    monkeypatch.setattr(replay_structure, "_suspect", lambda trace, _expected: np.ones(trace.steps, dtype=bool))
    for name in ("strange_numbers", "strange_tops"):
        monkeypatch.setattr(accounting_rules, name, lambda trace, **_: np.ones(len(trace.token), dtype=bool))
    monkeypatch.setattr(
        accounting_rules, "strange_drafts", lambda trace, **_: np.ones(len(trace.examined_p), dtype=bool)
    )
    monkeypatch.setattr(replay_masses, "strange_steps", every_step)
    for trace, expected in zip(given, quick, strict=True):
        assert found(trace) == expected


def kept_cases():
    """Records that keep every fourth row, each column spoilt in turn, at two places."""
    rng = np.random.default_rng(5)
    setups = (Setup(level=RecordLevel.TOPK), Setup(level=RecordLevel.TOPK, protocol=Protocol.GUMBEL, draft="coupled"))
    setups += (replace(setups[0], sampling=replace(SAMPLED, temperature=0.7, top_p=0.8)),)
    for setup in setups:
        trace = Decoder(world(2, vocabulary=300), setup, "case").run()
        assert len(trace.kept_at) > 3
        yield trace
        for name in COLUMNS:
            for _ in range(2 * bool(getattr(trace, name).size)):
                # where a row is kept, so that its numbers can contradict it
                changed = replace(trace, **{name: jolted(trace, name, rng)})
                if shape_fault(changed) is None:
                    yield changed


def jolted(trace, name, rng):
    column = getattr(trace, name).copy()
    places = {len(trace.token): trace.kept_at, len(trace.examined_node): trace.kept_examined}
    rows = places.get(len(column), np.arange(len(column)))
    at = (int(rng.choice(rows)), *(int(rng.integers(size)) for size in column.shape[1:]))
    column[at] = column[at] * (1 + 1e-5) + 1e-5 if column.dtype.kind == "f" else column[at] ^ 1
    return column


def contract(trace):
    return judge_request(record(trace)), check_kept(trace)


@pytest.mark.medium
def test_rows_and_draws_are_found_as_if_each_had_been_looked_at_singly(monkeypatch):
    given = list(kept_cases())
    quick = [contract(trace) for trace in given]
    assert sum(bool(draws.findings or kept.faults) for draws, kept in quick) > len(given) / 4
    monkeypatch.setattr(replay_kept, "strange_rows", lambda trace: list(range(len(trace.kept_at))))
    monkeypatch.setattr(replay_kept, "strange_laws", lambda trace: list(range(len(trace.kept_examined))))
    monkeypatch.setattr(q_columns, "_strange_laws", lambda trace, kept: kept)
    monkeypatch.setattr(q_check, "drawn_tokens", every_draw)
    for trace, expected in zip(given, quick, strict=True):
        (draws, kept), (old_draws, old_kept) = contract(trace), expected
        assert kept == old_kept
        np.testing.assert_array_equal(draws.ranks, old_draws.ranks)
        assert replace(draws, ranks=None) == replace(old_draws, ranks=None)


def every_draw(trace):
    drawn = np.flatnonzero(trace.q_kind[numbered(trace.n_examined).step] == QKind.FULL)
    return q_columns.DrawnTokens(len(drawn), drawn)


@pytest.mark.medium
def test_nothing_is_gone_through_singly_in_a_clean_trace(monkeypatch):
    """Else the columns would be pointless."""

    def never(*_args):
        raise AssertionError("a clean step was walked")

    monkeypatch.setattr(replay_structure, "_path_faults", never)
    monkeypatch.setattr(accounting_rules, "_emitted_faults", never)
    monkeypatch.setattr(replay_masses._Replay, "step", never)
    monkeypatch.setattr(replay_kept, "_row_faults", never)
    monkeypatch.setattr(replay_kept, "_draft_faults", never)
    monkeypatch.setattr(q_check, "lumped_fault", never)
    monkeypatch.setattr(q_check, "kept_fault", lambda draw, trace, _: trace.header.coupled_draft or never())
    for trace in traces():
        rules = found(trace)
        assert not any(rules[:3])
        contract(trace)


def test_entries_know_their_step_and_their_number_in_it():
    got = numbered(np.array([2, 0, 3], dtype=np.int16))
    assert got.step.tolist() == [0, 0, 2, 2, 2]
    assert got.local.tolist() == [0, 1, 0, 1, 2]
    assert len(numbered(np.empty(0, np.int16)).step) == 0


@pytest.mark.medium
@pytest.mark.parametrize("wanted", [[], [0], [1, 3], [2]])
def test_chosen_steps_are_those_of_the_whole_walk(wanted):
    trace = traces()[0]
    whole = list(steps_of(trace))
    assert list(steps_of(trace, wanted)) == [whole[i] for i in wanted]

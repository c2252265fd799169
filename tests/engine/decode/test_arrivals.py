"""Requests join and leave a running loop: the others' tokens stay, rows are reused, nothing grows."""

from __future__ import annotations

from dataclasses import dataclass, replace

import pytest

from engine.core.types import FinishReason, Protocol, SamplingParams
from engine.decode.batch_facts import BatchPlace, BatchRounds
from engine.record.trace import decode
from tests.engine.build import Setup, generate, make_loop, requests, traces
from tests.support.schedules import Schedule

SAMPLED = SamplingParams(temperature=0.9, max_new_tokens=24, seed=5)


def tokens_of(generations):
    return {each.request.id: each.tokens for each in generations}


@pytest.mark.medium
@pytest.mark.parametrize("proposer", [None, "draft_model", "ngram", "suffix"])
def test_requests_that_join_later_get_the_tokens_of_plain_decoding(proposer):
    wanted = requests(9, SAMPLED)
    schedule = Schedule({0: wanted[:2], 5: wanted[2:3], 6: wanted[3:8], 500: wanted[8:]})
    loop = make_loop(Setup(proposer, Protocol.GUMBEL, rows=3))
    got = list(loop.serve(schedule))
    assert tokens_of(got) == tokens_of(generate(Setup(None, Protocol.GUMBEL), wanted).values())
    assert sorted(schedule.done) == sorted(each.id for each in wanted)
    for generation in got:
        steps = schedule.seen[generation.request.id]
        assert tuple(token for tokens, _ in steps for token in tokens) == generation.tokens
        assert [reason for _, reason in steps] == [None] * (len(steps) - 1) + [generation.finish_reason]


def test_a_request_that_leaves_frees_its_row_and_changes_no_other():
    wanted = requests(6, SAMPLED)
    schedule = Schedule({0: wanted}, leaving={"r0": 2})
    got = {each.request.id: each for each in make_loop(Setup("draft_model", Protocol.GUMBEL, rows=2)).serve(schedule)}
    gone = got.pop("r0")
    assert (gone.tokens, gone.finish_reason) == ((), FinishReason.ERROR)
    record = decode(gone.trace)
    count = sum(len(tokens) for tokens, _ in schedule.seen["r0"])
    assert record.header.facts["error"] == {"kind": "timeout", "message": f"gone, after {count} tokens"}
    assert record.steps == 0
    assert tokens_of(got.values()) == tokens_of(generate(Setup(None, Protocol.GUMBEL), wanted[1:]).values())
    # the third request took the row that became free, before the second had ended
    places = {name: trace.header.facts for name, trace in traces(got).items()}
    assert places["r2"]["row"] == 0
    assert places["r2"]["round"] == 2


@pytest.mark.medium
def test_a_list_is_the_simple_case():
    wanted = requests(5, SAMPLED)
    setup = Setup("draft_model", Protocol.GUMBEL, rows=2, gamma=4)
    listed = {each.request.id: each for each in make_loop(setup).run(wanted)}
    served = {each.request.id: each for each in make_loop(setup).serve(Schedule({0: wanted}, call="r0"))}
    assert {name: replace(each, trace=b"", latency_us=0) for name, each in listed.items()} == {
        name: replace(each, trace=b"", latency_us=0) for name, each in served.items()
    }
    facts = [{name: trace.header for name, trace in traces(made).items()} for made in (listed, served)]
    assert facts[0] == facts[1]


def test_a_run_without_an_end_keeps_only_what_active_rows_need():
    @dataclass(frozen=True)
    class Row:
        place: BatchPlace
        kind: int

    rounds = BatchRounds()
    for number in range(1000):
        kind = rounds.kind(replace(SAMPLED, top_k=1 + number))
        other = rounds.kind(replace(SAMPLED, min_p=0.5 * (number % 2)))
        rounds.note(number, [kind, other] if number % 3 else [kind])
        rows = [Row(BatchPlace("c", 0, number), kind), Row(BatchPlace("c", 1, number), other)]
        rounds.forget(rows)
        assert rounds.facts(number)["unlike"] == ([[number, number]] if number % 3 else [])
        assert rounds.kind(replace(SAMPLED, top_k=1 + number)) == kind
    assert len(rounds._kinds) <= 2
    assert len(rounds._ranges) <= 1

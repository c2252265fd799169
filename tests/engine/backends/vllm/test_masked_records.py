"""Masks and forbidden drafts, from what the hooks hold to the trace."""

import dataclasses
import json

import numpy as np
import pytest
import torch

from engine.backends.vllm.hooks.step import DecisionRows, StepBatch, allowed_tokens, frame_of, offered_behind, q_behind
from engine.backends.vllm.reconcile import NOTHING
from engine.backends.vllm.spool import SchedulerLog, SpooledRows, SpooledStep, worker_steps
from engine.backends.vllm.supervise import CallFacts, RequestOutcome
from engine.backends.vllm.to_record import RecordOptions, generation_of
from engine.core.child import write
from engine.core.structured import constraint_of
from engine.core.types import Protocol, QKind, RecordLevel, Request, Role, SamplingParams
from engine.record.foreign.requests import ForeignEngine
from engine.record.mask_bits import packed
from engine.record.trace import decode

V = 10
SAMPLING = SamplingParams(temperature=1.0, max_new_tokens=3, structured=constraint_of({"regex": "[0-9]+"}))
REQUEST = Request("r", (1, 2), SAMPLING)
ALL = np.ones((1, V), dtype=np.bool_)
NO_SEVEN = np.where(np.arange(V) == 7, False, ALL)
READING = RecordOptions(
    ForeignEngine(V, (0,), Protocol.CHAIN, "draft_model", RecordLevel.FULL), drawn=True, decode=lambda *_: None
)
ROW = np.full(V, 1 / V, np.float32)


def step(number, drafted, emitted, masks=None, **named):
    rows = np.random.default_rng(number).normal(size=(len(emitted), V)).astype(np.float32)
    half = np.full(len(drafted), np.log(0.5), np.float32)
    numbers = {"log_p_drafted": half, "log_p_emitted": half, "best": np.full(len(drafted), 3)}
    numbers["q"] = np.tile(ROW, (len(drafted), 1))
    bits = None if masks is None else packed(masks)
    last = {"log_p": float(np.log(0.25)), "entropy": 1.0, "variance": 1.0}
    return SpooledRows(
        SpooledStep(drafted, emitted), 1, rows, numbers if drafted else {}, last, number, masks=bits, **named
    )


def generation(worker, forbidden=(), reading=READING):
    """The second step's draft went on with `forbidden`, as the scheduler says."""
    tokens = [token for each in worker for token in each.step.emitted]
    drafted = [each.step for each in worker if each.step.drafted]
    answer = {
        "tokens": tokens,
        "text": "text",
        "finish_reason": "length",
        "stop_reason": None,
        "logprobs": None,
        "steps": {"accepted": [each.accepted for each in drafted], "drafted": [len(each.drafted) for each in drafted]},
        "cached_tokens": 0,
        "latency_us": 1,
    }
    log = [each.step for each in worker]
    log[1] = dataclasses.replace(log[1], forbidden=forbidden)
    return generation_of(
        RequestOutcome(REQUEST, None, answer, tuple(worker), tuple(log)), CallFacts({}, ()), NOTHING, reading
    )


def test_every_row_has_the_mask_that_was_applied_to_it():
    trace = decode(generation([step(0, (), (5,), ALL), step(1, (6,), (6, 8), np.concatenate([NO_SEVEN, ALL]))]).trace)
    assert trace.header.level is RecordLevel.FULL
    assert trace.mask_count.tolist() == [V, V - 1, V]
    assert [bool(trace.allowed(at)[7]) for at in range(3)] == [True, False, True]


def test_a_step_without_any_mask_allowed_every_token():
    trace = decode(generation([step(0, (), (5,), NO_SEVEN), step(1, (), (8,))]).trace)
    assert trace.mask_count.tolist() == [V - 1, V]


def test_a_runner_whose_masks_are_not_seen_leaves_rows_out():
    unseen = dataclasses.replace(READING, masks=False)
    trace = decode(generation([step(0, (), (5,)), step(1, (), (8,))], reading=unseen).trace)
    assert trace.header.level is RecordLevel.TOKENS
    assert not len(trace.mask_digest)


@pytest.mark.parametrize("drafted", [(), (6,)])
def test_a_drawn_token_that_the_grammar_forbids_is_a_refused_draft(drafted):
    masks = np.concatenate([ALL] * len(drafted) + [NO_SEVEN])
    worker = [step(0, (), (5,), ALL), step(1, drafted, (*drafted, 8), masks, behind=ROW)]
    trace = decode(generation(worker, forbidden=(7, 3)).trace)
    assert trace.node_token.tolist() == [*drafted, 7]
    assert trace.role.tolist() == [Role.PLAIN, *[Role.ACCEPTED] * len(drafted), Role.RECOVERED]
    assert trace.examined_p[-1] == 0
    assert trace.examined_q[-1] == pytest.approx(1 / V)
    assert trace.q_kind.tolist() == [QKind.NONE, QKind.FULL]
    np.testing.assert_allclose(trace.q_rows[-1], ROW)


def test_a_greedy_draft_needs_no_row():
    worker = [step(0, (), (5,), ALL), step(1, (), (8,), NO_SEVEN)]
    trace = decode(generation(worker, (7,), dataclasses.replace(READING, drawn=False)).trace)
    assert (trace.node_token.tolist(), trace.q_kind.tolist()) == ([7], [QKind.NONE, QKind.ONE_HOT])


def test_a_dropped_token_that_the_mask_allows_is_no_refusal():
    """vLLM drops an end token behind a finished value, although nothing else is allowed there."""
    trace = decode(generation([step(0, (), (5,), ALL), step(1, (), (7,), ALL, behind=ROW)], (7,)).trace)
    assert trace.role.tolist() == [Role.PLAIN, Role.PLAIN]
    assert not len(trace.node_token)


def test_a_token_is_forbidden_where_its_logit_became_minus_infinity():
    before = torch.tensor([[0.0, -torch.inf, 2.0], [1.0, 1.0, 1.0]])
    after = torch.tensor([[0.0, -torch.inf, -torch.inf], [1.0, 1.0, 1.0]])
    assert allowed_tokens(before, after).tolist() == [[True, True, False], [True, True, True]]


def test_masks_and_rows_behind_a_draft_come_back_by_request(tmp_path):
    batch = StepBatch(("a", "b", "c"), (False, True, False), (1, 0, 0), (3,), np.array([[3, 4], [7, -1], [5, -1]]))
    masks = torch.ones(4, V, dtype=torch.bool)
    masks[1, 2] = False
    path = tmp_path / "frames"
    with path.open("wb") as stream:
        write(stream, frame_of(0, batch, None, DecisionRows(masks=masks, behind={2: torch.from_numpy(ROW)})))
    found = worker_steps(path)
    (first,), (last,) = found["a"], found["c"]
    np.testing.assert_array_equal(first.masks, packed(masks[:2].numpy()))
    assert first.behind is None
    np.testing.assert_array_equal(last.behind, ROW)
    assert len(last.masks) == 1


class Runner:
    """As much of vLLM's runner as the hook reads."""

    def __init__(self, probs, names, batch):
        self._draft_probs, self._draft_prob_req_ids = probs, names
        self.input_batch = type("Batch", (), {"req_ids": batch, "num_reqs": len(batch)})()


def test_the_row_behind_a_draft_is_the_next_one_of_its_own_request():
    probs = torch.arange(2 * 3 * V, dtype=torch.float32).reshape(2, 3, V)
    metadata = type("Metadata", (), {"num_draft_tokens": [3, 0, 1]})()
    found = q_behind(Runner(probs, ["x", "y"], ["x", "new", "y"]), metadata)
    assert set(found) == {2}
    np.testing.assert_array_equal(found[2], probs[1, 1])
    assert q_behind(Runner(None, None, ["x"]), None) == {}


def test_what_the_drafter_offered_behind_a_draft_is_used_once():
    metadata = type("Metadata", (), {"num_draft_tokens": [3, 0, 1, 1]})()
    offered = {"whole": [5, 6, 7], "none": [8, 9], "padded": [4, -1, -1], "elsewhere": [1]}
    runner = Runner(None, None, ["whole", "none", "padded", "new"])
    assert offered_behind(runner, metadata, offered) == {1: [8, 9]}
    assert offered == {"elsewhere": [1]}


def test_the_schedulers_log_holds_forbidden_tokens(tmp_path):
    path = tmp_path / "log"
    steps = [
        {"id": "a", "drafted": [1], "emitted": [1, 2], "forbidden": [9, 9]},
        {"id": "b", "drafted": [], "emitted": [3]},
    ]
    path.write_text(json.dumps(steps) + "\n")
    found = SchedulerLog(path).steps()
    assert found["a"][0].forbidden == (9, 9)
    assert found["b"][0].forbidden == ()

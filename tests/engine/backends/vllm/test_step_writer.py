"""A step of three requests, one of them with its prompt not read to the end."""

import numpy as np
import pytest
import torch

from engine.backends.vllm.hooks.step import DecisionRows, StepBatch, best_of, frame_of
from engine.backends.vllm.spool import worker_steps
from engine.core.child import write

V = 8
BATCH = StepBatch(
    names=("1.0-aaaaaaaa", "1.1-bbbbbbbb", "1.2-cccccccc"),
    discarded=(False, True, False),
    counts=(2, 0, 1),
    drafted=(3, 4, 5),
    sampled=np.array([[3, 6, -1], [7, -1, -1], [5, 2, -1]]),
)
"""The first keeps one of two and recovers; the last keeps all and has a bonus."""


def rows(count):
    return torch.randn(count, V, generator=torch.Generator().manual_seed(count))


def steps(tmp_path, raw, given):
    # a frame uses its copies up
    law = DecisionRows(
        *(None if each is None else each.clone() for each in (given.logits, given.q, given.last)), given.best
    )
    path = tmp_path / "frames"
    with path.open("wb") as stream:
        write(stream, frame_of(0, BATCH, raw, law))
    return worker_steps(path)


def test_each_emitted_token_has_the_row_that_decided_it(tmp_path):
    raw = rows(6)
    found = steps(tmp_path, raw, DecisionRows(rows(3)))
    assert set(found) == {"1.0-aaaaaaaa", "1.2-cccccccc"}
    (first,), (last,) = found["1.0-aaaaaaaa"], found["1.2-cccccccc"]
    assert (first.step.drafted, first.step.emitted, first.step.accepted) == ((3, 4), (3, 6), 1)
    assert (last.step.drafted, last.step.emitted, last.step.accepted) == ((5,), (5, 2), 1)
    # rows of the first: its two drafted ones, and the one behind them, which decided nothing
    np.testing.assert_array_equal(first.rows, raw[[0, 1]].numpy())
    np.testing.assert_array_equal(last.rows, raw[[4, 5]].numpy())
    assert first.batch == 3


def test_the_engines_own_numbers(tmp_path):
    law = DecisionRows(rows(3), torch.softmax(rows(3), -1))
    found = steps(tmp_path, None, law)
    first, last = found["1.0-aaaaaaaa"][0], found["1.2-cccccccc"][0]
    logp = torch.log_softmax(law.logits, -1)
    np.testing.assert_allclose(first.numbers["log_p_drafted"], [logp[0, 3], logp[1, 4]], rtol=1e-6)
    np.testing.assert_allclose(first.numbers["log_p_emitted"], [logp[0, 3], logp[1, 6]], rtol=1e-6)
    np.testing.assert_allclose(last.numbers["log_p_emitted"], [logp[2, 5]], rtol=1e-6)
    np.testing.assert_allclose(first.numbers["q"], law.q[:2].numpy())
    p = logp.exp().double()
    entropy = -(p * logp).sum(-1)
    np.testing.assert_allclose(first.numbers["entropy"], entropy[:2], rtol=1e-5)
    np.testing.assert_allclose(last.numbers["variance"], (p * logp**2).sum(-1)[2:] - entropy[2:] ** 2, rtol=1e-4)
    assert first.rows is None


def test_the_place_behind_a_draft_has_numbers_where_a_token_came_out(tmp_path):
    law = DecisionRows(rows(3), last=torch.randn(3, V))
    found = steps(tmp_path, None, law)
    recovered, bonus = found["1.0-aaaaaaaa"][0], found["1.2-cccccccc"][0]
    assert np.isnan(recovered.last["log_p"])
    logp = torch.log_softmax(law.last, -1)
    assert bonus.last["log_p"] == pytest.approx(logp[2, 2].item(), rel=1e-6)
    assert bonus.last["entropy"] == pytest.approx(-(logp.exp() * logp).sum(-1)[2].item(), rel=1e-5)


def test_a_row_with_forbidden_tokens_has_finite_moments(tmp_path):
    logits = rows(3)
    logits[:, 0] = -torch.inf
    found = steps(tmp_path, None, DecisionRows(logits))["1.0-aaaaaaaa"][0]
    assert np.isfinite(found.numbers["entropy"]).all()
    assert np.isfinite(found.numbers["variance"]).all()


def test_who_has_the_raw_rows_has_the_moments(tmp_path):
    found = steps(tmp_path, rows(6), DecisionRows(rows(3), last=rows(3)))["1.0-aaaaaaaa"][0]
    assert set(found.numbers) == {"log_p_drafted", "log_p_emitted", "best"}
    assert set(found.last) == {"log_p"}


def test_of_a_greedy_step_the_argmax_is_enough(tmp_path):
    logits = rows(3)
    logits[0, [2, 6]] = 9.0
    found = steps(tmp_path, rows(6), DecisionRows(best=best_of(logits)))
    assert set(found["1.0-aaaaaaaa"][0].numbers) == {"best"}
    assert found["1.0-aaaaaaaa"][0].numbers["best"].tolist() == [2, logits[1].argmax().item()], "the first of two"
    assert found["1.2-cccccccc"][0].numbers["best"].tolist() == [logits[2].argmax().item()]
    assert best_of(logits.bfloat16()).tolist()[0] == 2


def test_a_place_where_nothing_came_out_has_no_number(tmp_path):
    law, batch = DecisionRows(rows(2)), StepBatch(("a-b",), (False,), (2,), (3, 4), np.array([[6, -1, -1]]))
    path = tmp_path / "frames"
    with path.open("wb") as stream:
        write(stream, frame_of(0, batch, rows(3), law))
    found = worker_steps(path)["a-b"][0]
    assert np.isnan(found.numbers["log_p_emitted"]).tolist() == [False, True]
    assert found.rows is not None
    assert len(found.rows) == 1


def test_16_bit_rows_lose_nothing(tmp_path):
    raw = rows(6).bfloat16()
    found = steps(tmp_path, raw, DecisionRows())["1.0-aaaaaaaa"][0]
    assert found.rows.dtype == np.float32
    np.testing.assert_array_equal(found.rows, raw[:2].float().numpy())


def test_what_a_dying_engine_left_is_read_up_to_its_end(tmp_path):
    path = tmp_path / "frames"
    with path.open("wb") as stream:
        write(stream, frame_of(0, BATCH, rows(6), DecisionRows()))
        write(stream, frame_of(1, BATCH, rows(6), DecisionRows()))
    path.write_bytes(path.read_bytes()[:-5])
    assert [len(each) for each in worker_steps(path).values()] == [1, 1]
    assert worker_steps(tmp_path / "none") == {}

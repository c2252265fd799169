"""Greedy requests of different lengths, in flight together: what five sources say of each is the same."""

from dataclasses import replace

import numpy as np
import pytest

from engine.core.types import FinishReason, RecordLevel, Role
from engine.record.rows.row_digests import digests
from engine.record.trace import decode

from .arms import NGRAM, answered, backend, plan, reconciled, requests

pytestmark = pytest.mark.vllm


END = 0


@pytest.fixture(scope="module")
def shop():
    found = backend()
    yield found
    found.close()


@pytest.fixture(scope="module")
def backends(shop):
    return {"plain": shop.arm(plan()), "ngram": shop.arm(plan("ngram", options=NGRAM))}


@pytest.fixture(scope="module")
def asked(prompts):
    return requests(prompts)


@pytest.fixture(scope="module")
def found(backends, asked):
    return {name: answered(engine, asked) for name, engine in backends.items()}


@pytest.fixture(scope="module")
def traces(found):
    return {name: {key: decode(each.trace) for key, each in arm.items()} for name, arm in found.items()}


def test_all_sources_agree_on_every_request(found):
    sources = {"plain": {"output", "worker", "scheduler"}}
    sources["ngram"] = sources["plain"] | {"metrics", "counters"}
    for name, arm in found.items():
        assert all(reconciled(each) == sources[name] for each in arm.values())


def test_the_records_are_whole(found, traces):
    for name, arm in found.items():
        for key, generation in arm.items():
            trace = traces[name][key]
            assert trace.header.level is RecordLevel.FULL
            assert trace.tokens == generation.tokens
            assert trace.logits.shape == (len(generation.tokens), trace.header.vocabulary)
            np.testing.assert_array_equal(trace.logits.argmax(-1), trace.token)
            np.testing.assert_array_equal(digests(trace.logits), trace.logits_digest)


def test_speculation_changes_no_token(found):
    plain, ngram = found["plain"], found["ngram"]
    assert {key: each.tokens for key, each in plain.items()} == {key: each.tokens for key, each in ngram.items()}


def test_all_kinds_of_tokens_were_there(traces):
    roles = {role for trace in traces["ngram"].values() for role in trace.role.tolist()}
    assert roles == set(Role)
    assert {role for trace in traces["plain"].values() for role in trace.role.tolist()} == {Role.PLAIN}


def test_the_engines_steps_that_requests_shared_are_on_record(traces):
    for arm in traces.values():
        assert {trace.header.facts["call"] for trace in arm.values()} == {"r0"}
        numbers = {
            key: [number for first, last in trace.header.facts["rounds"] for number in range(first, last + 1)]
            for key, trace in arm.items()
        }
        assert {key: len(each) for key, each in numbers.items()} == {key: each.steps for key, each in arm.items()}
        for key, trace in arm.items():
            beside = [sum(number in other for other in numbers.values()) for number in numbers[key]]
            # steps that another request only read its prompt in are among the batch, too
            assert all(here <= told for here, told in zip(beside, trace.batch.tolist(), strict=True))
            assert max(beside) > 1


def test_the_ends_are_told_apart_and_nothing_follows_them(found, asked):
    lengths = {each.id: each.sampling.max_new_tokens for each in asked}
    dropped = sum(each.facts["dropped_tokens"] for each in found["ngram"].values())
    for key, each in found["ngram"].items():
        ended = each.tokens[-1] == END
        assert each.finish_reason is (FinishReason.EOS if ended else FinishReason.LENGTH)
        assert ended or len(each.tokens) == lengths[key]
        assert END not in each.tokens[:-1]
    assert dropped > 0


def test_logprobs_that_users_get_are_those_of_the_recorded_rows(found, traces):
    for key, trace in traces["ngram"].items():
        np.testing.assert_allclose(found["ngram"][key].facts["logprobs"], trace.logprob, atol=1e-5)


def test_what_runs_is_read_back(backends):
    config = backends["ngram"].effective_config()
    assert config.requested == config.in_effect
    assert config.facts["worker"]["drafter"].endswith(".NgramProposer")
    assert config.facts["installed"]["version"] == "0.32.0"
    assert len(config.facts["installed"]["record_sha256"]) == 64
    assert config.to_json()["evidence"] == {"level": 3, "problems": []}
    assert backends["ngram"].evidence_level() == 3


def test_one_request_at_a_time_goes_to_the_same_engine(shop, backends, asked, found):
    alone = shop.arm(replace(backends["ngram"].plan, rows=1))
    assert alone.setting.key == backends["ngram"].setting.key
    again = answered(alone, asked[:3])
    assert all(each.tokens == found["plain"][key].tokens for key, each in again.items())
    assert all(decode(each.trace).batch.tolist() == [1] * decode(each.trace).steps for each in again.values())

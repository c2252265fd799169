"""Settings of requests, without vLLM: who gets which value, what vLLM is sent, and what the record says of it."""

import json
import os
from dataclasses import replace
from pathlib import Path

import pytest

from engine.backends.engine_spec import EngineSpec
from engine.backends.vllm.driver import require_device
from engine.backends.vllm.features import (
    RequestTerms,
    Witnessed,
    adapter_arguments,
    grouped,
    message_of,
    request_facts,
    terms_of,
    whole_groups,
)
from engine.backends.vllm.hooks.runner_facts import batch_settings
from engine.backends.vllm.options import ModelFolders, setting_of
from engine.backends.vllm.spool import SchedulerLog, SpooledStep
from engine.core.errors import InvalidRequest
from engine.core.types import Protocol, Request, SamplingParams
from engine.models.files.adapters import Adapter

ONE = Adapter("one", "made:1", Path("/scratch/one"), 8, "ab" * 32)
TWO = Adapter("two", "made:2", Path("/scratch/two"), 12, "cd" * 32)
ADAPTERS = {"one": ONE, "two": TWO}
DRAWN = SamplingParams(temperature=1.0)


def request(number, sampling=DRAWN, stream=0):
    return Request(f"r{number}/{stream}", (1, number), sampling, stream)


def terms(**settings):
    return RequestTerms(settings, ADAPTERS)


def sent(own, asked):
    (group,) = grouped([asked], own, 1)
    return message_of(group, own, {"temperature": 1.0, "seed": 7})


def test_a_list_gives_every_prompt_one_value_whatever_the_order_and_the_sample():
    own = terms(priority=[0, 5])
    first = {n: own.chosen(request(n))["priority"] for n in range(40)}
    again = {n: own.chosen(request(n, stream=3))["priority"] for n in reversed(range(40))}
    assert first == again
    assert set(first.values()) == {0, 5}


def test_requests_are_sent_with_their_own_settings():
    given = terms(adapter="two", priority=3, prompt_logprobs=0, include_stop_str_in_output=True, unseeded=True)
    message = sent(given, request(1))
    assert message["sampling"] == {"temperature": 1.0, "prompt_logprobs": 0, "include_stop_str_in_output": True}
    assert message["priority"] == 3
    listing = sent(terms(logprob_token_ids=[[5, 9]]), request(1))
    assert (listing["sampling"]["logprobs"], listing["sampling"]["logprob_token_ids"]) == (None, [5, 9])
    assert (message["adapter"]["name"], message["adapter"]["folder"]) == ("two", "/scratch/two")
    plain = sent(terms(), request(1))
    assert plain == {"id": "1.0", "prompt": [1, 1], "sampling": {"temperature": 1.0, "seed": 7}}


def test_adapters_of_unlike_content_never_share_a_number():
    numbers = {sent(terms(adapter=name), request(1))["adapter"]["number"] for name in ADAPTERS}
    assert len(numbers) == 2
    assert min(numbers) > 0


def test_a_null_is_a_request_without_the_setting():
    given = terms(adapter=[None, "one"])
    messages = [sent(given, request(n)) for n in range(20)]
    with_one = ["adapter" in each for each in messages]
    assert any(with_one)
    assert not all(with_one)


def test_samples_of_a_prompt_share_a_request_and_keep_their_names():
    requests = [request(n, stream=s) for n in (1, 2) for s in (0, 1)]
    groups = grouped(requests, terms(n=2), 4)
    assert [each.name for each in groups] == ["4.0", "4.1"]
    assert {name: each.id for group in groups for name, each in group.by_answer().items()} == {
        "0_4.0": "r1/0",
        "1_4.0": "r1/1",
        "0_4.1": "r2/0",
        "1_4.1": "r2/1",
    }
    message = message_of(groups[0], terms(n=2), {})
    assert (message["sampling"]["n"], message["answers"]) == (2, ["0_4.0", "1_4.0"])


def test_neighbours_with_other_parameters_stay_in_requests_of_their_own():
    other = SamplingParams(temperature=0.5)
    mixed = [request(1, kind, stream) for stream in (0, 1) for kind in (other, DRAWN)]
    assert [{each.sampling for each in group.requests} for group in grouped(mixed, terms(n=2), 1)] == [{other}, {DRAWN}]
    assert whole_groups(32, terms(n=3)) == 36
    assert whole_groups(32, terms()) == 32


@pytest.mark.parametrize(
    ("engine", "words"),
    [
        ({"request": {"adapter": "three"}}, "no adapter 'three'; adapters has: one, two"),
        ({"request": {"adapter": ["one", "three"]}}, "no adapter 'three'"),
        ({"request": {"priority": 1}}, "scheduling_policy: priority"),
        ({"request": {"prefix": "warm"}}, "enable_prefix_caching: true"),
    ],
)
def test_a_setting_that_could_have_no_effect_is_refused(engine, words):
    with pytest.raises(InvalidRequest, match=words):
        terms_of(EngineSpec(Protocol.GREEDY, engine=engine), ADAPTERS)


def test_an_engine_with_adapters_is_another_engine_and_settings_of_requests_make_none():
    places = ModelFolders(Path("/models/target"), {}, 1024, "float32")
    plan = EngineSpec(Protocol.GREEDY)
    plain = setting_of(plan, places)
    same = setting_of(replace(plan, engine={"request": {"unseeded": True}}), places)
    adapted = setting_of(plan, replace(places, adapters=ADAPTERS))
    assert plain.key == same.key != adapted.key
    assert adapter_arguments(ADAPTERS) == {"enable_lora": True, "max_loras": 2, "max_lora_rank": 16}
    assert adapter_arguments(ADAPTERS).items() <= adapted.requested.items()
    assert "enable_lora" not in plain.requested


def step(adapter=None, seeded=True):
    return {"adapter": adapter, "seeded": seeded}


def account(given, answer=None, worker=None, scheduler=None, asked=None):
    seen = Witnessed(answer or {}, worker, scheduler)
    return request_facts(given, asked or request(1), seen)["request"]


def test_what_the_worker_held_is_what_was_in_effect():
    found = account(terms(adapter="one"), worker=(step("one"), step("one")))
    assert found["requested"] == found["effective"] == {"adapter": "one"}
    assert found["adapter_sha256"] == ONE.sha256
    assert account(terms(adapter="one"), worker=(step("two"),))["effective"] == {"adapter": "two"}
    assert account(terms(adapter="one"), worker=(step("one"), step()))["effective"] == {"adapter": "None and one"}
    alone = account(terms(adapter=[None]), worker=(step("two"),))
    assert (alone["requested"], alone["effective"]) == ({"adapter": None}, {"adapter": "two"})
    assert account(terms(unseeded=True), worker=(step(seeded=True),))["effective"] == {"unseeded": False}
    assert account(terms(unseeded=True), worker=(step(seeded=False),))["effective"] == {"unseeded": True}
    assert account(terms(unseeded=True))["effective"] == {}


def test_what_the_scheduler_and_the_answer_say_is_what_was_in_effect():
    assert account(terms(priority=2), scheduler=SpooledStep((), (1,), 0, 0))["effective"] == {"priority": 0}
    kept = {"stop_reason": "the", "text": "in the"}
    assert account(terms(include_stop_str_in_output=True), kept)["effective"] == {"include_stop_str_in_output": True}
    cut = {"stop_reason": "the", "text": "in "}
    assert account(terms(include_stop_str_in_output=True), cut)["effective"] == {"include_stop_str_in_output": False}
    assert account(terms(include_stop_str_in_output=True), {"stop_reason": None})["effective"] == {}
    assert account(terms(n=2), {"samples": 1})["effective"] == {"n": 1}
    assert account(terms(prefix="warm"), {"cached_tokens": 0})["effective"] == {"prefix": "cold"}
    whole = {"prompt_logprobs": {"own": [None, -1.0], "ranks": 2}}
    assert account(terms(prompt_logprobs=2), whole)["effective"] == {"prompt_logprobs": 2}
    for listed, found in (([3, 5, 9], [9, 5]), ([5], [5]), ([], [])):
        said = account(terms(logprob_token_ids=[[9, 5]]), {"listed": listed})
        assert (said["requested"], said["effective"]) == ({"logprob_token_ids": [9, 5]}, {"logprob_token_ids": found})
    part = {"prompt_logprobs": {"own": [None], "ranks": 2}}
    assert account(terms(prompt_logprobs=2), part)["effective"] == {"prompt_logprobs": "only a part of the prompt"}


def test_a_greedy_request_has_no_seed_to_leave_out():
    found = account(terms(unseeded=True), worker=(step(seeded=False),), asked=request(1, SamplingParams()))
    assert found == {"requested": {}, "effective": {}}


def test_requests_without_settings_have_no_account():
    assert request_facts(terms(), request(1), Witnessed({}, (step(),), None)) == {}


class Named:
    def __init__(self, name):
        self.lora_name = name


class Numbers(list):
    def __getitem__(self, at):
        return Numbers(super().__getitem__(at))

    def tolist(self):
        return list(self)


class Batch:
    """The fields of vLLM's batch that are read."""

    num_reqs = 3
    request_lora_mapping = Numbers([7, 0, 9, 7])
    lora_id_to_lora_request = {7: Named("one"), 9: Named("two")}  # noqa: RUF012 - read only
    generators = {1: object()}  # noqa: RUF012 - read only


def test_the_batch_of_a_step_is_read_row_by_row():
    assert batch_settings(Batch) == (step("one", False), step(None, True), step("two", False))


def test_the_scheduler_log_keeps_priorities_and_preemptions(tmp_path):
    path = tmp_path / "log"
    line = {"id": "a", "drafted": [], "emitted": [1], "priority": 2, "preemptions": 1}
    path.write_text(json.dumps([line]) + "\n" + json.dumps([{**line, "id": "b", "priority": None}]) + "\n")
    found = SchedulerLog(path).steps()
    assert (found["a"][0].priority, found["a"][0].preemptions) == (2, 1)
    assert found["a"] == found["b"], "accounts of tokens are compared without them"


class Cpu:
    device_name = "cpu"

    @staticmethod
    def is_cuda_alike():
        return False


@pytest.mark.parametrize(
    ("job", "words"),
    [
        ({"model_runner": "v2", "arguments": {}}, "model runner v2 needs a GPU, here there is cpu"),
        ({"model_runner": "auto", "arguments": {"async_scheduling": True}}, "async_scheduling needs a GPU"),
        (
            {"model_runner": "auto", "arguments": {"tensor_parallel_size": 999}},
            "tensor_parallel_size 999 needs as many cores, here are",
        ),
    ],
)
def test_what_needs_a_gpu_is_refused_in_words(job, words):
    with pytest.raises(ValueError, match=words):
        require_device(job, Cpu)


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_rounded_weights_in_float32_are_refused_before_an_engine_starts(tmp_path, dtype):
    (tmp_path / "config.json").write_text('{"quantization_config": {"quant_method": "compressed-tensors"}}')
    job = {"model_runner": "auto", "arguments": {"model": str(tmp_path), "dtype": dtype}}
    if dtype == "bfloat16":
        require_device(job, Cpu)
        return
    with pytest.raises(ValueError, match="weights rounded by compressed-tensors; write dtype: bfloat16"):
        require_device(job, Cpu)


def test_each_rank_on_a_cpu_has_a_core_of_its_own(monkeypatch):
    monkeypatch.setattr(os, "sched_getaffinity", lambda _process: {4, 7, 5})
    monkeypatch.setenv("VLLM_CPU_OMP_THREADS_BIND", "2|3")
    job = {"model_runner": "auto", "arguments": {"tensor_parallel_size": 2}}
    require_device(job, Cpu)
    assert os.environ["VLLM_CPU_OMP_THREADS_BIND"] == "2|3"
    monkeypatch.delenv("VLLM_CPU_OMP_THREADS_BIND")
    require_device(job, Cpu)
    assert os.environ["VLLM_CPU_OMP_THREADS_BIND"] == "4|5"


def test_what_runs_on_a_cpu_is_not_refused():
    require_device({"model_runner": "auto", "arguments": {"async_scheduling": False, "tensor_parallel_size": 1}}, Cpu)

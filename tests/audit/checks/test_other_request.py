"""The reference checks where the reference may know another request than the server answered: undecided, by name."""

from dataclasses import replace

import pytest

from audit.checks import load
from audit.checks.base.interface import evaluate
from audit.evidence.anchor.reference_laws import NEUTRAL, other_request
from audit.evidence.records import ArmKind
from audit.evidence.verdicts import Verdict
from engine.record.effective import Effective
from tests.audit.checks.anchor_arms import simulated
from tests.audit.checks.simulator import SAMPLED, Setup, world

CHANGING = (
    "xtc_probability xtc_threshold dry_multiplier dry_base typical_p top_a mirostat mirostat_tau dynatemp_range "
    "allowed_token_ids bad_words_ids min_tokens_to_keep vllm_xargs custom_params logits_processors thinking_budget "
    "reasoning_effort verbosity guided_regex chat_template add_generation_prompt continue_final_message documents "
    "add_special_tokens truncate_prompt_tokens mm_processor_kwargs use_beam_search length_penalty adapter lora_request "
    "grammar_lazy sampler_seq post_sampling_probs n_keep n_discard no_repeat_ngram_size epsilon_cutoff eta_cutoff "
    "dry_allowed_length guided_json structural_tag ignore_eos system".split()
)
"""Keys of servers that change the law or the prompt, or may."""


@pytest.fixture(scope="module")
def evidence():
    made = simulated(world(4), Setup(sampling=replace(SAMPLED, max_new_tokens=8)), 6)
    served = made.candidate.effective.with_fact("url", "http://a/v1")
    return replace(made, candidate=replace(made.candidate, effective=served))


def with_body(evidence, *keys):
    effective = Effective.from_json({**evidence.candidate.effective.to_json(), "body": dict.fromkeys(keys, 1)})
    return replace(evidence, candidate=replace(evidence.candidate, effective=effective))


@pytest.mark.parametrize("key", CHANGING)
def test_a_key_that_may_change_prompt_or_law_leaves_the_reference_undecided(evidence, key):
    found = evaluate(load("token_law"), with_body(evidence, "user", key), {})
    assert found.verdict is Verdict.INCONCLUSIVE
    assert f"engine.body sets {key}" in found.summary


def test_keys_that_change_neither_are_judged_as_before(evidence):
    assert other_request(with_body(evidence, *NEUTRAL)) is None
    assert other_request(evidence) is None


def changed(arm, **facts):
    """The arm with these facts in its last request."""
    *rest, last = arm.requests
    header = replace(last.trace.header, facts={**last.trace.header.facts, **facts})
    return replace(arm, requests=(*rest, replace(last, trace=replace(last.trace, header=header))))


@pytest.mark.parametrize("name", ["token_law", "honoured_by_tokens", "logprob_closeness"])
def test_a_prompt_that_the_server_read_otherwise_is_undecided(evidence, name):
    other = replace(evidence, candidate=changed(evidence.candidate, other_prompt=True))
    found = evaluate(load(name), other, {})
    assert found.verdict in (Verdict.INCONCLUSIVE, Verdict.NOT_RUN)
    assert found.verdict is Verdict.NOT_RUN or "read another prompt" in found.summary


def moved(arm, nats):
    """The arm with other log-probabilities of its first tokens."""
    requests = []
    for request in arm.requests:
        scores = request.trace.logprob.copy()
        scores[:1] -= nats
        requests.append(replace(request, trace=replace(request.trace, logprob=scores)))
    return replace(arm, requests=tuple(requests))


def test_plain_answers_that_begin_elsewhere_excuse_no_more_than_that(evidence):
    shared = replace(evidence, baseline=replace(moved(evidence.candidate, 0.0), kind=ArmKind.BASELINE))
    assert other_request(shared) is None
    assert other_request(replace(shared, baseline=moved(shared.baseline, 0.1))) is None
    assert "plain answers begin 1 nats away" in str(
        other_request(replace(shared, baseline=moved(shared.baseline, 1.0)))
    )
    # an engine that is wrong under speculation alone stays wrong
    assert other_request(replace(shared, candidate=moved(shared.candidate, 1.0))) is None

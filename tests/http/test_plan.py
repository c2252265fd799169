"""Plan and run of an endpoint agree on what will not run, and on what nobody will look at twice."""

import json
from pathlib import Path

import pytest

from tests.audit.agreement import differences, misses, run_seconds, with_trial, write_suite

from .running import shortened

WORDS = ("Once upon a time", "The weather today")
SERVED = {"kind": "served", "gamma": 3}
WARM = {"temperature": 1}


def suite_at(folder, source, plain, speculating, **engine):
    """Greedy, sampled and coupled arms at the second address, their baselines at the first."""
    at = {"url": speculating.url}
    arms = [
        {"name": "greedy", "proposer": SERVED, "verifier": "greedy", "engine": at},
        {"name": "sampled", "proposer": SERVED, "verifier": "chain", "engine": at, "sampling": WARM},
        {"name": "coupled", "proposer": SERVED, "verifier": "gumbel", "engine": at, "sampling": WARM},
        {"name": "text", "proposer": SERVED, "verifier": "greedy", "engine": {**at, "logprobs": 0}},
    ]
    document = {
        "backend": "openai",
        "models": {"target": source},
        "engine": {"url": plain.url, "model": "bundled", "api": "completions", "server": "vllm", **engine},
        "sampling": {"max_new_tokens": 8},
        "arms": arms,
    }
    return write_suite(folder, document, WORDS)


@pytest.mark.parametrize("source", ["served:bundled", "bundled:target"])
@pytest.mark.slow
def test_an_endpoint_ends_as_it_was_planned(serve, tmp_path, source):
    with serve() as plain, serve(gamma=3) as speculating:
        assert differences(suite_at(tmp_path, source, plain, speculating), tmp_path) == {}


@pytest.mark.slow
def test_one_that_is_asked_for_text_alone_too(serve, tmp_path):
    """Whether log-probabilities are of the text's own tokens is known when the text is there: none are asked for."""
    with serve(ids=False) as plain, serve(gamma=3, ids=False) as speculating:
        suite = suite_at(tmp_path, "bundled:target", plain, speculating, server="openai", logprobs=0)
        assert differences(suite, tmp_path) == {}


@pytest.mark.parametrize(("source", "accounts"), [("served:bundled", "too_little"), ("bundled:target", "enough")])
@pytest.mark.slow
def test_a_trial_foresees_what_nobody_looks_at_twice(serve, tmp_path, source, accounts):
    """With the default checks. Without the target's files no check judges a sampled arm's log-probabilities."""
    with serve() as plain, serve(gamma=3) as speculating:
        path = Path(suite_at(tmp_path, source, plain, speculating).path)
        document = json.loads(path.read_text())
        arms = [{key: arm[key] for key in arm if key != "checks"} for arm in document["arms"][:2]]
        path.write_text(json.dumps(document | {"arms": arms, "samples": 4, "sampling": {"max_new_tokens": 32}}))
        ended = with_trial(path, tmp_path)
    outcomes = {(check["arm"], check["check"]): check["outcome"] for check in ended.plan["checks"]}
    assert outcomes["sampled", "second_accounts"] == accounts
    # two greedy requests are too few for a margin of 0.3
    assert outcomes["greedy", "seed"] == "too_little"
    assert not {check for _, check in misses(ended.plan, ended.results)} & {"second_accounts", "seed", "liveness"}


@pytest.mark.parametrize("name", ["greedy", "sampling", "structured", "tools"])
@pytest.mark.slow
def test_a_packaged_suite_ends_as_planned(serve, tmp_path, name):
    with serve() as plain, serve(gamma=3) as speculating:
        ended = with_trial(shortened(name, plain.url, speculating.url, tmp_path), tmp_path)
    assert misses(ended.plan, ended.results) == {}
    assert ended.codes[0] == ended.codes[1]
    print(f"{name}: planned {ended.plan['seconds']:.0f} s, took {run_seconds(ended.results):.0f} s")

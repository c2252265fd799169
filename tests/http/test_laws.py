"""Laws of endpoints over HTTP: tokens against the target's own files, and shared seeds against the baseline."""

import pytest

from audit.api.running import Quiet
from audit.evidence.verdicts import Verdict
from audit.runs.prepare import prepare
from audit.runs.runner import run
from audit.store import Store
from engine.core.types import Protocol
from tests.audit.agreement import write_suite

pytestmark = [pytest.mark.slow, pytest.mark.xdist_group("http")]
WORDS = tuple(f"{first} {second}" for first in ("Once upon", "The weather", "A long") for second in ("a time", "today"))


def judged(folder, plain, speculating, verifier, checks):
    """The results of one sampled arm at two servers of the bundled target, by check."""
    arm = {"name": "arm", "proposer": {"kind": "served", "gamma": 3}, "verifier": verifier, "checks": checks}
    document = {
        "backend": "openai",
        "models": {"target": "bundled:target"},
        "engine": {"url": plain.url, "model": "bundled", "api": "completions", "server": "vllm"},
        "sampling": {"max_new_tokens": 32, "temperature": 1},
        "samples": 2,
        "arms": [{**arm, "engine": {"url": speculating.url}}],
    }
    suite = write_suite(folder, document, WORDS)
    with Store.open(f"sqlite:///{folder / 'audit.db'}", create=True) as store:
        done = run(prepare(suite), store, Quiet())
        return {each.check: each for each in store.checks(done.run)}


def test_tokens_of_a_sound_endpoint_follow_the_target(serve, tmp_path):
    with serve() as plain, serve(gamma=3) as speculating:
        found = judged(tmp_path, plain, speculating, "chain", {"token_law": {"margin": 0.2, "min_tokens": 200}})[
            "token_law"
        ]
    assert found.verdict is Verdict.CERTIFIED, found.summary


def test_an_endpoint_that_accepts_everything_is_found(serve, tmp_path):
    with serve() as plain, serve(gamma=3, fault="accepts_everything") as speculating:
        found = judged(tmp_path, plain, speculating, "chain", {"token_law": {}})["token_law"]
    assert found.verdict is Verdict.FAULT, found.summary


def test_an_endpoint_that_samples_and_matches_keeps_its_seeds(serve, tmp_path):
    checks = {
        "same_seed": {"min_tokens": 300, "max_numerical_per_1000": 20.0},
        "two_sample": {},
        "coupled_equality": {},
    }
    with serve() as plain, serve(gamma=3, rule=Protocol.GUMBEL) as speculating:
        found = judged(tmp_path, plain, speculating, "gumbel", checks)
    assert found["same_seed"].verdict is Verdict.CERTIFIED, found["same_seed"].summary
    assert found["two_sample"].verdict is found["coupled_equality"].verdict is Verdict.NOT_RUN


def test_one_that_does_not_is_found(serve, tmp_path):
    with serve() as plain, serve(gamma=3) as speculating:
        found = judged(tmp_path, plain, speculating, "gumbel", {"same_seed": {}})["same_seed"]
    assert found.verdict is Verdict.FAULT, found.summary

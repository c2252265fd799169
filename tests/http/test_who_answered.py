"""Real runs at servers whose later answers are another service's, or have lost a field: no pass, and the place."""

import pytest

from audit.evidence.verdicts import Verdict
from tests.audit.invoke import invoke
from tests.http.running import run_suite
from tests.http.script import FINE, Misdeed, Script

pytestmark = [pytest.mark.slow, pytest.mark.xdist_group("http")]
MORE = {"server: vllm": "server: vllm, backoff_s: 0.01, tries: 3"}
OTHER = Misdeed(swap=('"model": "bundled"', '"model": "fallback"'), times=-1)
LATER = 2
"""Answers of the candidate before the service changes; the greedy arm has four."""


def later(misdeed, before=LATER):
    return Script([FINE] * before, misdeed)


@pytest.fixture
def audit(serve, tmp_path):
    """Runs a packaged suite at a plain server and a speculating one, and the gate over the run."""

    def run(name="greedy", plain=None, more=(), **speculating):
        with serve(**(plain or {})) as baseline, serve(gamma=3, **speculating) as candidate:
            found = run_suite(name, baseline.url, candidate.url, tmp_path, **(MORE | dict(more)))
        gate = invoke("gate", "latest", "--policy", "endpoint", "--no-subject", "--store", str(found.store))
        return found, gate

    return run


def test_a_sound_service_is_named(audit):
    found, gate = audit()
    assert found.code == 0, found.output
    named = found.verdicts()["identity"]
    assert named.verdict is Verdict.CERTIFIED
    assert "answers are by 'bundled', fingerprint 'test-1', instance" in named.summary
    assert found.verdicts()["surface_parity"].verdict is Verdict.CERTIFIED
    assert "identity" not in gate.stdout
    rows = invoke("query", "--sql", "SELECT model, answers, verdict FROM v_identity", "--store", str(found.store))
    assert "bundled" in rows.stdout
    shown = invoke("show", "latest", "--store", str(found.store))
    assert "by 'bundled', fingerprint 'test-1'" in shown.stdout + found.output
    sql = "SELECT DISTINCT arm_kind, role FROM v_token ORDER BY arm_kind"
    roles = invoke("query", "--sql", sql, "--format", "csv", "--store", str(found.store)).stdout
    assert "candidate,unknown" in roles
    assert "baseline,plain" in roles
    request = found.arm("speculating")[0][0].request_id
    shown = invoke("show", "latest", request, "--store", str(found.store)).stdout
    assert "unknown" in shown
    assert " plain " not in shown


@pytest.mark.parametrize(
    ("misdeed", "name"),
    [
        (OTHER, "model changed from 'bundled' to 'fallback'"),
        (Misdeed(swap=('"model": "bundled", ', ""), times=-1), "model changed from 'bundled' to None"),
        (Misdeed(swap=("test-1", "test-2"), times=-1), "system_fingerprint changed from 'test-1' to 'test-2'"),
        (Misdeed(swap=('"id":', '"provider": "else", "id":'), times=-1), "provider changed from None to 'else'"),
    ],
)
@pytest.mark.parametrize("suite", ["greedy", "sampling"])
def test_answers_of_another_service_end_the_run_and_the_gate(audit, misdeed, name, suite):
    found, gate = audit(suite, fail=later(misdeed))
    assert found.code == 1
    told = found.verdicts()["identity"]
    assert told.verdict is Verdict.FAULT
    assert name in told.summary
    assert gate.exit_code == 1
    assert name in gate.stdout


def test_one_streamed_answer_of_another_service_is_found(audit):
    # whole and streamed in turn: the last of the candidate's answers is a streamed one
    both = {"server: vllm": "server: vllm, stream: both, backoff_s: 0.01"}
    found, _ = audit(fail=later(OTHER, 7), more=both.items())
    assert found.code == 1
    assert "model changed from 'bundled' to 'fallback'" in found.verdicts()["identity"].summary


def test_a_fallback_from_the_first_answer_on_is_a_fault_beside_the_plain_arm(audit):
    found, gate = audit(fail=Script(always=OTHER))
    assert (found.code, gate.exit_code) == (1, 1)
    assert "'fallback' answered, and 'bundled' the baseline" in found.verdicts()["identity"].summary


def test_a_gateways_own_name_is_undecided_until_it_is_declared(audit):
    mapped = {"fail": Script(always=OTHER)}
    found, gate = audit(plain=mapped, **{"fail": Script(always=OTHER)})
    assert found.code == 3
    assert "write engine.answers_as: 'fallback'" in found.verdicts()["identity"].summary
    assert gate.exit_code == 3
    declared = {"server: vllm": "server: vllm, answers_as: fallback, backoff_s: 0.01"}
    found, gate = audit(plain={"fail": Script(always=OTHER)}, fail=Script(always=OTHER), more=declared.items())
    assert found.code == 0, found.output
    assert "one_identity" not in gate.stdout


def test_another_version_behind_the_arm_is_found(audit):
    found, _ = audit(versions=["1.0", "1.1"])
    assert found.code == 1
    assert "version changed from '1.0' to '1.1'" in found.verdicts()["identity"].summary


def test_instances_that_nothing_shows_alike_are_undecided(audit):
    bare = Misdeed(swap=('"system_fingerprint": "test-1"', '"x": 1'), times=-1)
    other = Misdeed(swap=bare.swap, times=-1, headers={"X-Pod": "b"})
    header = {"server: vllm": "server: vllm, instance_headers: [x-pod], backoff_s: 0.01"}
    found, _ = audit(plain={"fail": Script(always=bare)}, fail=Script([bare] * LATER, other), more=header.items())
    assert found.code == 3
    assert "2 instances" in found.verdicts()["identity"].summary


LOST = {
    "log-probabilities": {"scores": False},
    "token ids": {"ids": False},
    "usage": {"fail": Script(always=Misdeed(swap=('"usage": ', '"used": '), times=-1))},
    "stop reasons": {"fail": Script(always=Misdeed(swap=('"stop_reason": ', '"reason": '), times=-1))},
    "one of the lists": {"fail": later(Misdeed(swap=('"top_logprobs": [{', '"top": [{')))},
    "log-probabilities that contradict their lists": {"told": lambda values: [value - 0.5 for value in values]},
    "log-probabilities above zero": {"told": lambda values: [-value for value in values]},
}


@pytest.mark.parametrize("what", LOST)
def test_a_feature_that_speculation_takes_away_is_a_fault(audit, what):
    found, gate = audit(**LOST[what])
    told = found.verdicts()["surface_parity"]
    assert told.verdict is Verdict.FAULT, told.summary
    assert (found.code, gate.exit_code) == (1, 1)


def test_a_field_that_only_the_stream_loses_is_a_fault(audit):
    both = {"server: vllm": "server: vllm, stream: both, backoff_s: 0.01"}
    lost = Misdeed(swap=('"token_ids": ', '"ids": '), times=-1)
    # one worker: whole and streamed in turn
    found, _ = audit(fail=Script([FINE, lost] * 40), more=(*both.items(), ("batch_size: 8", "batch_size: 1")))
    assert found.code == 1
    assert "token_ids: in the whole answer, missing in the streamed one" in found.verdicts()["surface_parity"].summary


SWITCHED = {"server: vllm": "server: vllm, baseline_body: {speculative.n_max: 0}, backoff_s: 0.01"}


@pytest.fixture
def switched(serve, tmp_path):
    """Runs the greedy suite at one address whose requests turn speculation off."""

    def run(**settings):
        with serve(gamma=3, **settings) as server:
            return run_suite("greedy", server.url, server.url, tmp_path, **(MORE | SWITCHED))

    return run


def test_one_server_that_each_request_switches_is_enough(switched):
    found = switched()
    assert found.code == 0, found.output
    told = found.verdicts()["configuration"]
    assert told.summary == "all 1 requested settings are in effect, and 1 of its requests"


def test_a_server_that_drafts_although_it_is_told_not_to_is_found(switched):
    found = switched(deaf=True)
    assert found.code == 1
    assert "speculation: requested False, effective True" in found.verdicts()["configuration"].summary


def test_without_counters_nobody_knows_whether_the_plain_arm_drafted(switched):
    found = switched(metrics=False)
    assert found.code == 3
    assert "not read back" in found.verdicts()["configuration"].summary


def test_requests_without_seeds_are_judged_by_their_law_alone(audit):
    unseeded = {"server: vllm": "server: vllm, seeds: none, backoff_s: 0.01"}
    found, gate = audit("sampling", more=unseeded.items())
    verdicts = found.verdicts()
    assert verdicts["seed"].verdict is Verdict.NOT_RUN
    assert "carry no seed" in verdicts["seed"].summary
    assert verdicts["two_sample"].verdict is not Verdict.NOT_RUN
    assert "seed" in gate.stdout


def test_what_both_servers_lack_is_no_difference(audit):
    found, _ = audit(plain={"ids": False}, ids=False)
    assert found.verdicts()["surface_parity"].verdict is Verdict.CERTIFIED

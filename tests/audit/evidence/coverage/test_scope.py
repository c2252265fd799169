"""The scope of verdicts: counted from the record, beside the engine's report."""

from dataclasses import replace

import pytest

from audit.evidence.coverage.count import count
from audit.evidence.coverage.scope import SCOPE, ArmScope, scope_of_details
from audit.evidence.records import ArmKind, Level
from audit.runs.judge import judge_arm
from audit.suite.spec import ArmChecks
from engine.core.types import Protocol
from engine.faults.interface import Scenario
from engine.record.effective import Effective
from tests.engine.faults.arms import arm, arm_record, generate

CHAIN = Scenario(Protocol.GUMBEL, rows=3)
TREE = replace(CHAIN, proposer="specinfer", gamma=6)


def recorded(scenario, requests):
    return arm_record(generate(scenario, count=requests), effective=arm(scenario).effective_config())


@pytest.mark.medium
@pytest.mark.parametrize(("scenario", "shape", "drafted"), [(CHAIN, "chain", 4), (TREE, "tree", 6)])
def test_batches_and_drafts_are_those_of_the_record(scenario, shape, drafted):
    record = recorded(scenario, 4)
    sizes = [int(size) for request in record.requests for size in request.trace.batch]
    scope = count(record, {}).scope
    assert (scope.smallest_batch, scope.largest_batch) == (min(sizes), max(sizes)) == (1, 3)
    assert (scope.longest_draft, scope.shape) == (drafted, shape)
    # two requests never fill three rows, whatever the configuration says
    assert count(recorded(scenario, 2), {}).scope.largest_batch == 2


def test_numerics_and_device_are_the_engine_s_report():
    document = {"numerics": {"mode": "fast"}, "target": {"device": "cuda:0"}, "proposer": "ngram"}
    record = replace(recorded(CHAIN, 1), effective=Effective.from_json(document))
    scope = count(record, {}).scope
    assert (scope.numerics, scope.device) == ("fast", "cuda:0")
    silent = count(replace(record, effective=Effective.from_json({"proposer": "ngram"})), {}).scope
    assert (silent.numerics, silent.device, silent.largest_batch) == (None, None, 1)
    endpoint = Effective.from_json({"requested": {}, "effective": {"device": "TPU"}})
    assert count(replace(record, level=Level.L0, effective=endpoint), {}).scope == ArmScope(device="TPU")


@pytest.mark.medium
def test_every_verdict_about_speculation_states_its_scope():
    from audit.evidence.records import Evidence

    candidate = recorded(CHAIN, 4)
    checks = {"accounting": {}, "liveness": {}, "two_sample": {}}
    judged = judge_arm(Evidence(replace(candidate, kind=ArmKind.CANDIDATE), None), ArmChecks(checks))
    stated = {name: scope_of_details(result.details) for name, result in judged.results.items()}
    assert stated == {"accounting": judged.coverage.scope, "liveness": None, "two_sample": None}
    assert judged.coverage.scope.largest_batch == 3


@pytest.mark.parametrize("details", [{}, {SCOPE: None}, {SCOPE: {"else": 1}}, {SCOPE: 3}])
def test_a_damaged_scope_is_none(details):
    assert scope_of_details(details) is None

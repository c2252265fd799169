import dataclasses
import json
import subprocess
import sys

import pytest

from audit.checks import REGISTRY, load, names
from audit.checks.base.interface import evaluate
from audit.errors import UserError
from audit.evidence.records import Evidence, Level
from audit.evidence.verdicts import Verdict
from engine.core.types import Protocol
from tests.audit.checks.simulator import GREEDY, Setup, arm, world
from tests.support.cases import every_case

CLAIMS = {
    "accounts",
    "accounting",
    "identity",
    "surface",
    "filters",
    "leak",
    "replay",
    "equality",
    "bitwise",
    "law",
    "rows",
    "transcript",
    "acceptance",
    "drafts",
    "seed",
    "closeness",
    "cost",
    "text",
    "decoding",
    "liveness",
    "configuration",
    "evidence",
    "parameters",
    "tools",
    "constraint",
    "schema",
    "contexts",
}


def test_every_check_is_what_it_is_registered_as():
    with every_case() as case:
        for name in REGISTRY:
            with case(name):
                check = load(name)
                assert check.name == name
                assert check.claim in CLAIMS


def test_names_are_the_registry():
    assert names() == tuple(REGISTRY)


def test_an_unknown_name_is_a_users_error_that_lists_the_known_ones():
    with pytest.raises(UserError, match="unknown check 'laws'; known: acceptance_drift, acceptance_outliers"):
        load("laws")


@pytest.mark.parametrize("name", ["replay", "law", "acceptance_theory"])
def test_evidence_below_the_needed_level_is_no_pass(name):
    one = arm(world(1), Setup(), 1)
    low = Evidence(type(one)(one.name, one.kind, Level.L2, one.effective, one.requests))
    assert evaluate(load(name), low, {}).verdict is Verdict.NOT_RUN


@pytest.mark.medium
def test_same_evidence_same_result():
    sampled = arm(world(1), Setup(), 2)
    evidence = Evidence(sampled, sampled, sampled)
    with every_case() as case:
        for name in REGISTRY:
            with case(name):
                check = load(name)
                assert evaluate(check, evidence, {}) == evaluate(check, evidence, {})


@pytest.mark.medium
@pytest.mark.parametrize(
    "setup",
    [
        Setup(),
        Setup(Protocol.GUMBEL, "coupled", fault="unverified"),
        Setup(Protocol.GREEDY, "one_hot", sampling=GREEDY),
    ],
    ids=["chain", "broken gumbel", "greedy"],
)
def test_results_are_plain_json(setup):
    candidate, plain = arm(world(1), setup, 3), arm(world(1), dataclasses.replace(setup, draft="none", fault=""), 3)
    with every_case() as case:
        for name in REGISTRY:
            with case(name):
                result = evaluate(load(name), Evidence(candidate, plain, plain), {})
                json.dumps(dataclasses.asdict(result), allow_nan=False)
                assert "\n" not in result.summary


@pytest.mark.medium
def test_checks_are_loaded_without_torch():
    """Whoever judges evidence runs no model: torch would cost seconds and 180 MiB in every such process."""
    lines = ("import sys", "from audit.checks import load, names", "list(map(load, names()))")
    script = "\n".join((*lines, "sys.exit('torch' in sys.modules)"))
    assert subprocess.run([sys.executable, "-c", script], check=False).returncode == 0

"""Parameters of checks at and beyond the ends of their ranges."""

from __future__ import annotations

import json

import pytest

from audit import checks
from audit.checks.base.ranges import RANGES, as_declared, wrong_parameters
from audit.errors import UserError
from audit.runs.sizing import RunHistory, plan
from audit.suite.loader import load_suite
from tests.audit.invoke import invoke
from tests.audit.runs.scripted_suites import suite_file

NUMBERS = [
    (name, key)
    for name in sorted(checks.REGISTRY)
    for key, default in checks.load(name).defaults.items()
    if isinstance(default, int | float) and not isinstance(default, bool)
]


def with_check(folder, name, values):
    path = suite_file(folder)
    path.write_text(path.read_text().replace("checks: [replay]", f"checks: {json.dumps({name: values})}"))
    return path


def test_every_number_has_a_range_that_holds_its_default():
    for name, key in NUMBERS:
        assert not list(wrong_parameters({key: checks.load(name).defaults[key]}, checks.load(name).defaults)), key
    assert set(RANGES) == {key for _, key in NUMBERS}


@pytest.mark.parametrize(
    ("name", "values", "line"),
    [
        ("law", {"leak_margin": 0}, "leak_margin is 0; write a number from 1e-06 to 0.999999"),
        ("law", {"leak_margin": 2}, "leak_margin is 2; write a number from"),
        ("q_contract", {"margin": -1}, "margin is -1; write"),
        ("replay", {"confidence": 1}, "confidence is 1; write a number from 0.5 to 0.999999999"),
        ("law", {"alpha": 0}, "alpha is 0; write a number from 1e-09 to 0.5"),
        ("law", {"alpha": 1}, "alpha is 1; write"),
        ("two_sample", {"permutations": 0}, "permutations is 0; write a number from 1"),
        ("replay", {"max_findings": 2.5}, "max_findings is 2.5; write a whole number"),
        ("replay", {"max_findings": -1}, "max_findings is -1; write"),
        ("acceptance_drift", {"expected": {"all": 3}}, "expected.all is '3'; write"),
        ("acceptance_drift", {"expected": {"all": {"rate": "x", "low": 0, "high": 1}}}, "expected.all is"),
        ("acceptance_drift", {"expected": {"all": {"rate": 0.5, "low": 0.6, "high": 1}}}, "needs 0 <= low"),
        ("acceptance_drift", {"expected": {"a": {"rate": 0, "low": 0, "high": 1, "confidence": 1}}}, "a confidence"),
        ("seed", {"arms": ["none"]}, "there is no companion 'none'; there are: repeat, alone, reversed"),
        ("seed", {"arms": [3]}, "there is no companion '3'"),
    ],
)
def test_validate_refuses_what_no_check_can_use_with_the_line(tmp_path, name, values, line):
    path = with_check(tmp_path, name, values)
    result = invoke("validate", str(path))
    assert (result.exit_code, result.stdout) == (2, "")
    assert line in result.stderr
    assert result.stderr.startswith(f"audit: {path}:21: ")
    assert invoke("validate", str(path)).stderr.count("\n") == 1


def test_the_suites_own_parameters_are_looked_at_too(tmp_path):
    path = suite_file(tmp_path)
    path.write_text(path.read_text().replace("arms:\n", "checks: {law: {alpha: 0}}\narms:\n", 1))
    with pytest.raises(UserError, match=r"suite\.yaml:11: law: alpha is 0"):
        load_suite(path)


@pytest.mark.slow
def test_plans_at_the_ends_of_every_range_end(tmp_path):
    for name, key in NUMBERS:
        for value in RANGES[key]:
            values = {**({"expected": {}} if name == "acceptance_drift" else {}), key: value}
            plan(load_suite(with_check(tmp_path, name, values)), RunHistory())


def test_whole_numbers_are_whole():
    assert repr(as_declared({"max_findings": 20.0, "margin": 1}, {"max_findings": 20, "margin": 0.05})) == repr(
        {"max_findings": 20, "margin": 1}
    )

from __future__ import annotations

import math

import pytest

from audit.checks import load, names
from audit.gate.parameters import ALPHA, DIRECTIONS, STRICTER, SWITCHES, Limit, Looser, default_limit, violations


def test_every_numeric_parameter_of_every_check_has_a_direction():
    used = {
        name: type(value)
        for check in names()
        for name, value in load(check).defaults.items()
        if isinstance(value, bool | int | float)
    }
    assert {name for name, kind in used.items() if kind is bool} == {*SWITCHES, *STRICTER}
    assert {name for name, kind in used.items() if kind is not bool} <= set(DIRECTIONS)


def test_every_default_is_within_its_own_limits():
    for check in names():
        assert list(violations({}, load(check).defaults, {})) == [], check


@pytest.mark.parametrize(
    ("check", "used", "says"),
    [
        ("law", {"leak_margin": 1}, "leak_margin is 1, the policy accepts at most 0.06"),
        ("law", {"alpha": 0}, "alpha is 0, the policy accepts at least 0.0001"),
        ("law", {"alpha": 0.5}, "alpha is 0.5, the policy accepts at most 0.05"),
        ("law", {"confidence": 0.5}, "confidence is 0.5, the policy accepts at least 0.99"),
        ("law", {"min_tokens": 1}, "min_tokens is 1, the policy accepts at least 500"),
        ("law", {"leak_margin": math.nan}, "leak_margin is nan, the policy accepts at most 0.06"),
        ("law", {"leak_margin": "0"}, "leak_margin is '0', not a number"),
        ("law", {"leak_margin": True}, "leak_margin is True, not a number"),
        ("greedy_equality", {"noise_bound": 1e9}, "noise_bound is 1e+09, the policy accepts at most -1"),
        ("bitwise", {"force": True}, "force is on, which the policy does not state"),
    ],
)
def test_what_a_suite_may_not_loosen(check, used, says):
    assert list(violations(used, load(check).defaults, {})) == [(next(iter(used)), says)]


def test_the_policy_s_own_limit_holds_instead():
    defaults = load("law").defaults
    assert list(violations({"leak_margin": 0.1}, defaults, {"leak_margin": Limit(most=0.1)})) == []
    ((name, text),) = violations({}, defaults, {"leak_margin": Limit(most=0.01)})
    assert (name, text) == ("leak_margin", "leak_margin is 0.06, the policy accepts at most 0.01")


def test_directions():
    assert default_limit("margin", 0.1) == Limit(most=0.1)
    assert default_limit("confidence", 0.99) == Limit(least=0.99)
    assert default_limit("alpha", 0.001) == ALPHA
    assert default_limit("max_findings", 20) == Limit()
    assert DIRECTIONS["slack"] is Looser.LARGER

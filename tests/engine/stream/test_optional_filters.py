"""Filters over other packages: what they find, in whatever pieces the text arrives; each runs where it is installed."""

import sys

import pytest

from engine.core.errors import InvalidRequest
from engine.stream.filters import presidio
from engine.stream.interface import filter_spec
from engine.stream.loading import load_filter
from tests.engine.stream.texts import judged, pieces

MAIL = "Write to ann.lee@example.com today. Her card is 4111 1111 1111 1111! Nothing else? Bye"
KEYS = 'user = "ann"\naws_key = "AKIAIOSFODNN7EXAMPLE"\npassword = "hunter2-of-the-house"\nlast'


def loaded(kind, rules=None):
    return load_filter(filter_spec(kind, "redact", "output", rules or {}))


def found(rules, text):
    """What is found, checked over random pieces of the text."""
    marks = judged(rules, [text])
    assert all(judged(rules, pieces(text, seed)) == marks for seed in range(4))
    return {(mark.category, text[mark.start : mark.end]) for mark in marks}


@pytest.mark.slow
def test_presidio_finds_personal_data():
    pytest.importorskip("presidio_analyzer")
    marks = found(loaded("presidio"), MAIL)
    assert {("EMAIL_ADDRESS", "ann.lee@example.com"), ("CREDIT_CARD", "4111 1111 1111 1111")} <= marks
    only = loaded("presidio", {"entities": ["CREDIT_CARD"]})
    assert found(only, MAIL) == {("CREDIT_CARD", "4111 1111 1111 1111")}
    assert only.facts.version
    with pytest.raises(InvalidRequest, match=r"no recogniser of SHOE_SIZE; there are: .*EMAIL_ADDRESS"):
        loaded("presidio", {"entities": ["SHOE_SIZE"]})


def test_detect_secrets_finds_keys():
    pytest.importorskip("detect_secrets")
    marks = found(loaded("detect_secrets"), KEYS)
    assert ("AWS Access Key", "AKIAIOSFODNN7EXAMPLE") in marks
    assert ("Secret Keyword", "hunter2-of-the-house") in marks
    with pytest.raises(InvalidRequest, match=r"no plugin 'Nonesuch'; there are: .*AWSKeyDetector"):
        loaded("detect_secrets", {"plugins": ["Nonesuch"]})


@pytest.mark.parametrize(
    ("kind", "module", "extra"),
    [("presidio", "presidio_analyzer", "presidio"), ("detect_secrets", "detect_secrets.core.plugins.util", "secrets")],
)
def test_a_missing_package_is_named_with_its_extra(kind, module, extra, monkeypatch):
    presidio._analyzer.cache_clear()
    monkeypatch.setitem(sys.modules, module, None)
    with pytest.raises(InvalidRequest, match=rf"filter {kind} needs .*; install specaudit\[{extra}\]"):
        loaded(kind)


@pytest.mark.parametrize(
    ("kind", "rules", "said"),
    [
        ("presidio", {"entities": []}, "entities must be a list of names"),
        ("presidio", {"score": 2}, "score must be a number from 0 to 1, not 2"),
        ("presidio", {"model": "x"}, "has no rule 'model'; it has: entities, score"),
        ("detect_secrets", {"model": "x"}, "has no rule 'model'; it has: plugins"),
    ],
)
def test_bad_rules_are_refused_before_a_package_is_asked(kind, rules, said):
    with pytest.raises(InvalidRequest, match=f"filter {kind}.*{said}"):
        loaded(kind, rules)

"""A recorded grammar that nobody can read: its judge is silent and says why, and raises nothing."""

import pytest

from audit.checks.schema_conformance.judges import judge_of
from engine.core.structured import ConstraintKind, ConstraintSpec

SOURCES = ("", "[", "7", "null", '"x"', '{"type": 3}', '{"tags": 1}', "(")


@pytest.mark.parametrize("kind", ConstraintKind)
@pytest.mark.parametrize("source", SOURCES)
def test_a_damaged_grammar_is_silent_or_judges(kind, source):
    opinion = judge_of(ConstraintSpec(kind, source))("[1]")
    assert opinion.silent is None or opinion.silent


@pytest.mark.parametrize(("kind", "source"), [("json", '{"type": 3}'), ("choice", "7"), ("case", ""), ("regex", "[")])
def test_its_judge_says_why(kind, source):
    assert judge_of(ConstraintSpec(ConstraintKind(kind), source))("[1]").silent

"""Every past failure holds, a few fresh cases of each kind do, and the contract notices what breaks it."""

from __future__ import annotations

import json
import random
from pathlib import Path

import click
import pytest
from click.testing import CliRunner

from tests.fuzz.contract import Violation, guarded, of_result
from tests.fuzz.drive import Chunk, fixtures_in, try_case, try_chunk
from tests.fuzz.edits import Case, drawn, edited_tree
from tests.fuzz.kinds import KINDS

CORPUS = Path(__file__).parent / "corpus" / "cases.jsonl"


def corpus():
    for line in CORPUS.read_text("utf-8").splitlines():
        yield Case.of_json(json.loads(line))


@pytest.fixture(scope="module")
def home(tmp_path_factory):
    return str(tmp_path_factory.mktemp("fuzz"))


@pytest.mark.slow
def test_every_past_failure_holds(home):
    fixtures = fixtures_in(home)
    broken = [(case, try_case(case, fixtures)) for case in corpus()]
    assert [(case, found) for case, found in broken if found is not None] == []


@pytest.mark.slow
@pytest.mark.parametrize("kind", KINDS)
def test_a_few_cases_of_each_kind_hold(home, kind):
    assert try_chunk((Chunk(kind, 8, 1), home)).found == ()


def test_the_same_seed_draws_the_same_cases_and_the_corpus_keeps_them():
    first, again = (drawn("suites", frozenset(), random.Random(3)) for _ in range(2))
    assert first == again == Case.of_json(json.loads(json.dumps(first.to_json())))
    assert len({repr(drawn("suites", frozenset(), random.Random(seed))) for seed in range(200)}) == 200
    cases = [drawn("suites", frozenset(), random.Random(seed)) for seed in range(99)]
    changed = [edited_tree({"a": {"b": [1, 2]}}, case.edits) for case in cases]
    assert len({repr(document) for document in changed}) > 30
    assert {case.kind for case in corpus()} <= set(KINDS)


def lines(context):
    click.echo("audit: a\nb", err=True)
    context.exit(2)


@pytest.mark.parametrize(
    ("work", "what"),
    [
        (lambda context: {}["x"], "KeyError"),
        (lambda context: context.exit(4), "exit code 4"),
        (lines, "not one line"),
        (lambda context: click.echo("\u202e"), "terminal obeys"),
    ],
)
def test_what_breaks_the_contract_is_noticed(work, what):
    command = click.Command("odd", callback=click.pass_context(work))
    found = of_result(CliRunner().invoke(command, []))
    assert found is not None
    assert what in found.what


def test_what_raises_is_a_violation_with_its_place():
    found = guarded(lambda: Case.of_json({}), "case")
    assert isinstance(found, Violation)
    assert found.what == "case: KeyError: 'kind'"

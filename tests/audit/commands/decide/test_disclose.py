"""The disclosure: each sentence and number follows from the store."""

from __future__ import annotations

import json
import re
import shutil
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from pathlib import Path

import pytest
from jsonschema import Draft202012Validator
from sqlalchemy import text

import schemas
from audit import checks
from audit.commands.decide.disclose import FORMS
from audit.evidence.records import ArmKind, Level
from audit.evidence.verdicts import Verdict
from audit.report.statements.disclosure import ASPECTS
from audit.store import NewArm, NewCheck, NewRequest, RunStatus, Store, StoredDecision
from audit.store.base.canonical import sha256_json
from engine.record.effective import Effective
from tests.audit.invoke import invoke
from tests.audit.store.build import COUNTS, RESULT, connected, fill_finished, generation, start

NUMBER = re.compile(r"(?<![\w.])\d+(?:\.\d+)?(?:e-?\d+)?(?![\w])")
EFFECTIVE = {"backend": "native", "proposer": "draft_model", "gamma": 4, "protocol": "chain", "lossless": True}
SPEC = {"verifier": "chain", "proposer": "draft_model", "sampling": {"temperature": 0.7, "max_new_tokens": 16}}


@dataclass(frozen=True)
class Made:
    """A store with a run that is broken on purpose, one with a fault, and one without requests."""

    url: str
    broken: str
    plain: str
    empty: str


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Made:
    url = f"sqlite:///{tmp_path_factory.mktemp('disclose') / 'audit.db'}"
    with Store.open(url, create=True) as store:
        return Made(url, broken_run(store), fill_finished(store), store.begin_run(start()))


def broken_run(store: Store) -> str:
    """A run of one arm, broken on purpose, with a fault, a certificate and an inconclusive result."""
    effective = Effective.from_json({**EFFECTIVE, "fault": "resample_from_p"})
    arm = NewArm("spec", ArmKind.CANDIDATE, Level.L3, {**SPEC, "fault": "resample_from_p"}, effective, True)
    run = store.begin_run(start(arms=(arm,)))
    store.add_requests(run, [NewRequest("spec", "chat", "case-a", 0, generation(((4, 4), (4, 1), (2, 0)), seed=3))])
    found = {"law": Verdict.FAULT, "replay": Verdict.INCONCLUSIVE, "accounting": Verdict.CERTIFIED}
    for name, verdict in found.items():
        store.add_check(
            run, NewCheck("spec", name, name, Level.L3, replace(RESULT, verdict=verdict, margin=0.125), COUNTS)
        )
    store.finish_run(run, RunStatus.FINISHED, 1)
    return run


def page(url: str, run: str = "latest", form: str = "text") -> str:
    result = invoke("disclose", run, "--format", form, "--store", url)
    assert result.exit_code == 0, result.output
    return result.stdout


def stored_numbers(url: str, run: str = "latest") -> set[str]:
    """Every number that the results of the run hold, as the page may write it."""
    shown = json.loads(invoke("show", run, "--json", "--store", url).stdout)
    raw = json.dumps(shown)
    whole = set(NUMBER.findall(raw))
    floats = {f"{float(number):.4g}" for number in whole if "." in number or "e" in number}
    return whole | floats | set(re.findall(r"\d+", raw))


@pytest.mark.medium
def test_every_number_of_the_page_is_in_the_store(made: Made):
    for run in (made.broken, made.plain):
        found = set(NUMBER.findall(page(made.url, run)))
        assert len(found) > 8
        assert found - stored_numbers(made.url, run) == set()


def test_the_sentences_about_an_arm_are_its_row(made: Made):
    shown = page(made.url, made.broken)
    with connected(made.url, read_only=True) as connection:
        counts = "SUM(n_drafted), SUM(n_accepted), COUNT(*), SUM(n_output)"
        query = f"SELECT {counts} FROM request WHERE run_id = 1"
        drafted, accepted, requests, output = connection.execute(text(query)).one()
        query = "SELECT proposer, gamma, rule, expected_equivalence FROM arm_speculation WHERE arm_id = 1"
        proposer, gamma, rule, expected = connection.execute(text(query)).one()
    stated = re.search(r"The proposer drafted (\d+) tokens and the target accepted (\d+)", shown)
    assert stated is not None
    assert (int(stated[1]), int(stated[2])) == (drafted, accepted)
    assert f"The arm answered {requests} requests with {output} tokens" in shown
    assert f"Speculation was on: the proposer {proposer}," in shown
    assert f"drafted at most {gamma} tokens per step" in shown
    assert f"The verification rule {rule} declares itself lossless." in shown
    assert f"The equivalence expected with plain decoding is {expected}." in shown


def test_a_broken_engine_is_disclosed_with_its_results(made: Made):
    shown = page(made.url, made.broken)
    assert "The evidence contradicts equivalence in 1 of 1 arms: spec." in shown
    assert "The engine is broken on purpose: resample_from_p." in shown
    assert "Output distribution: the evidence contradicts equivalence." in shown
    assert "law (law) is fault; level L3; n 12; bound 0.25; margin 0.125: all equal." in shown
    assert "Reproducibility: the evidence does not suffice." in shown
    assert "Observability: no change was found within the bounds of the checks." in shown
    assert "Determinism: not tested." in shown
    assert "replay examined the situation bonus_token 4 times, less often than the 10 that it requires." in shown
    assert "No decision on this run let a requirement pass." in shown


def test_a_run_without_evidence_discloses_that(made: Made):
    shown = page(made.url, made.empty)
    assert "The run is running, not finished, so its evidence is not complete." in shown
    assert "The store holds no evidence about speculation in this run, so nothing is stated about its outputs." in shown
    assert "The store holds no result for this arm." in shown
    assert "is certified" not in shown


@pytest.mark.medium
def test_damage_and_waivers_are_part_of_the_statement(tmp_path: Path, made: Made):
    shutil.copyfile(made.url.removeprefix("sqlite:///"), tmp_path / "audit.db")
    url = f"sqlite:///{tmp_path / 'audit.db'}"
    reasons = ("allow: subject target: not named; --no-subject waived it", "block: law: too far")
    with Store.open(url, create=False) as store:
        store.add_decision(
            StoredDecision(made.plain, "e" * 64, {}, "block", reasons, "ci", datetime(2026, 5, 1, tzinfo=UTC))
        )
    whole = page(url, made.plain)
    assert "let a requirement pass: subject target: not named; --no-subject waived it." in whole
    assert "too far." in whole
    assert "recomputed for this statement." in whole
    with connected(url) as connection:
        for name in connection.scalars(text("SELECT name FROM sqlite_master WHERE type = 'trigger'")).all():
            connection.execute(text(f"DROP TRIGGER {name}"))
        connection.execute(text("UPDATE request SET n_accepted = n_accepted + 1"))
        connection.commit()
    damaged = page(url, made.plain)
    assert "The record is damaged: " in damaged
    assert "recomputed for this statement." not in damaged


@pytest.mark.medium
def test_the_forms_say_the_same_and_the_json_follows_its_schema(made: Made):
    document = json.loads(page(made.url, made.broken, "json"))
    Draft202012Validator(schemas.load("disclosure")).validate(document)
    sentences = [sentence for section in document["statement"] for sentence in section["sentences"]]
    assert [line.strip() for line in page(made.url, made.broken).splitlines() if line.startswith("  ")] == sentences
    markdown = page(made.url, made.broken, "markdown").replace("\\", "")
    assert [line[2:] for line in markdown.splitlines() if line.startswith("* ")] == sentences
    assert set(FORMS) == {"text", "markdown"}
    (arm,) = document["arms"]
    assert arm["configuration_sha256"] == sha256_json({**EFFECTIVE, "fault": "resample_from_p"})


def test_every_registered_check_has_one_aspect():
    mapped = [name for names in ASPECTS.values() for name in names]
    assert sorted(mapped) == sorted(checks.REGISTRY)


def test_an_unknown_run_is_a_usage_error(made: Made):
    result = invoke("disclose", "nonsense", "--store", made.url)
    assert (result.exit_code, result.stdout) == (2, "")


@pytest.mark.slow
def test_the_disclosure_of_a_broken_engine_comes_from_a_real_run(tmp_path: Path):
    url = f"sqlite:///{tmp_path / 'audit.db'}"
    arguments = ("run", "suites/known_bad/argmax_draft_soft_q.yaml", "--store", url)
    assert invoke(*arguments, "--results", str(tmp_path / "results.json")).exit_code == 1
    shown = page(url)
    assert "The evidence contradicts equivalence in 2 of 2 arms: greedy, rejection." in shown
    assert "The engine is broken on purpose: argmax_draft_soft_q." in shown
    assert set(NUMBER.findall(shown)) - stored_numbers(url) == set()

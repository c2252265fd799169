"""Answers of two evaluations beside each other: the engine as it is, and one whose rows of the target are shifted."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass

import pytest

from audit.errors import CannotDecide
from audit.evidence.verdicts import Verdict
from audit.serve.evaluations.comparison import EvaluatedArm, paired_answers
from audit.serve.evaluations.recorded_model import recorded_model
from audit.store import Store

SUITE = """
version: 1
name: broken
backend: scripted
models: {{target: "scripted:1", draft: "scripted:2"}}
workloads: [{{name: w, prompts: prompts.jsonl}}]
sampling: {{max_new_tokens: 24}}
arms:
  - name: broken
    proposer: {{kind: draft_model, model: draft, gamma: 4}}
    verifier: {rule}
    fault: {fault}
    record: {record}
    sampling: {{temperature: 1}}
    checks: [replay]
"""


@dataclass(frozen=True)
class Asked:
    """What a pair of evaluations asked: prompts, and the order of each evaluation."""

    temperature: float
    prompts: tuple[str, ...] = tuple(f"{a}{b}c" for a in "abcdef" for b in "ghijkl")


@pytest.fixture
def evaluated(tmp_path):
    """Runs both evaluations of a model and pairs them; the second asks in the other order."""
    store = str(tmp_path / "audit.db")

    def run(asked, backwards=False, **options):
        model = recorded_model({"store": store, **options})

        async def answers():
            prompts = asked.prompts[::-1] if backwards else asked.prompts
            bodies = [{"prompt": prompt, "max_tokens": 24, "temperature": asked.temperature} for prompt in prompts]
            await asyncio.gather(*(model.answer(body, "letters", chat=False) for body in bodies))

        asyncio.run(answers())
        model.close()
        return EvaluatedArm(model.facts["run"], model.facts["arm"])

    def pair(off, on, **options):
        arms = run(off, speculation="off", **options), run(on, backwards=True, **options)
        with Store.open(store, create=False, read_only=True) as opened:
            return paired_answers(opened, *arms)

    return pair


@pytest.mark.slow
@pytest.mark.parametrize(("temperature", "equality"), [(0, "greedy_equality"), (1, "coupled_equality")])
def test_sound_answers_are_certified(evaluated, temperature, equality):
    found = evaluated(Asked(temperature), Asked(temperature), model="scripted:1", draft="scripted:2")
    assert (found.pairs, found.changed, found.unpaired) == (36, (), 0)
    assert 0 < found.upper < 0.13
    results = {judged.check: judged.result for judged in found.judged}
    assert {name: result.verdict for name, result in results.items()} == dict.fromkeys(
        ("accounting", equality), Verdict.CERTIFIED
    ), results


@pytest.mark.slow
@pytest.mark.parametrize(
    ("rule", "fault", "record", "check", "verdict"),
    [
        ("gumbel", "target_rows_shifted", "scalars", "coupled_equality", Verdict.INCONCLUSIVE),
        ("chain", "accepts_everything", "full", "replay", Verdict.FAULT),
    ],
)
def test_a_broken_engine_is_never_certified(evaluated, tmp_path, rule, fault, record, check, verdict):
    (tmp_path / "prompts.jsonl").write_text('{"id": "p", "domain": "d", "prompt": "abc"}\n')
    (tmp_path / "suite.yaml").write_text(SUITE.format(rule=rule, fault=fault, record=record))
    found = evaluated(Asked(1), Asked(1), model=str(tmp_path / "suite.yaml"))
    assert len(found.changed) > 18
    assert found.upper > 0.5
    results = {judged.check: judged.result.verdict for judged in found.judged}
    assert results[check] is verdict


@pytest.mark.medium
def test_answers_without_a_partner_are_counted(evaluated):
    found = evaluated(Asked(0), Asked(0, ("abc", *Asked(0).prompts[:-1])), model="scripted:1", draft="scripted:2")
    assert (found.pairs, found.unpaired) == (35, 2)


@pytest.mark.slow
def test_an_evaluation_without_answers_has_nothing_to_compare(evaluated):
    with pytest.raises(CannotDecide, match="no answer"):
        evaluated(Asked(0), Asked(0, ()), model="scripted:1", draft="scripted:2")

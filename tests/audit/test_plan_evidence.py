"""A plan promises no check that will not run: what backends declare is what their records show."""

import subprocess
import sys
from itertools import pairwise

import pytest

from audit.checks import REGISTRY as CHECKS
from audit.checks import load
from audit.checks.base.interface import Design
from audit.errors import UserError
from audit.evidence.records import Level
from audit.runs.sizing import RunHistory, plan
from engine import proposers, verify
from engine.backends import REGISTRY, declared
from engine.backends.engine_spec import EngineSpec, ModelSource
from engine.backends.evidence import ArmSettings, Part
from engine.backends.native import PROMISES, draws, shape, steady
from engine.core.types import DraftRule, Protocol, QKind, RecordLevel, SamplingParams
from engine.models import numerics
from tests.audit.agreement import differences, planned, write_suite
from tests.engine.heads import tiny
from tests.support import proposer_cases as scripts
from tests.support.tiers import fast_first, slow_unless

WORDS = ("abc", "hello there", "of all the")
DRAFT = {"kind": "draft_model", "model": "draft", "gamma": 3}
NGRAM = {"kind": "ngram", "gamma": 3, "options": {"min_ngram": 1}}
LOOKUP = {"kind": "prompt_lookup", "gamma": 3}
WARM = {"temperature": 1}
SCRIPTED = [
    {"name": "chain", "proposer": DRAFT, "verifier": "chain", "sampling": WARM},
    {"name": "topk", "proposer": DRAFT, "verifier": "chain", "sampling": WARM, "record": "topk"},
    {"name": "scalars", "proposer": DRAFT, "verifier": "chain", "sampling": WARM, "record": "scalars"},
    {"name": "tokens", "proposer": DRAFT, "verifier": "chain", "sampling": WARM, "record": "tokens"},
    {"name": "copied", "proposer": NGRAM, "verifier": "chain", "sampling": WARM},
    {"name": "coupled", "proposer": DRAFT, "verifier": "gumbel", "sampling": WARM},
    {"name": "block", "proposer": DRAFT, "verifier": "block", "sampling": WARM},
    {"name": "lossy", "proposer": DRAFT, "verifier": {"kind": "typical"}, "sampling": WARM},
    {"name": "greedy", "proposer": DRAFT, "verifier": "greedy", "record": "topk"},
    {"name": "cold", "proposer": NGRAM, "verifier": "greedy", "record": "tokens"},
]
MODELS = {"target": "bundled:target", "draft": "bundled:draft"}
SHORT = {"max_new_tokens": 12}
TRANSFORMERS = [
    {"name": "chain", "proposer": DRAFT, "verifier": "chain", "sampling": WARM},
    {"name": "copied", "proposer": LOOKUP, "verifier": "chain", "sampling": WARM, "record": "topk"},
    {
        "name": "relaxed",
        "proposer": DRAFT | {"options": {"assistant_ensemble_weight": 0.5}},
        "verifier": "chain",
        "sampling": WARM,
        "record": "scalars",
    },
    {"name": "greedy", "proposer": DRAFT, "verifier": "greedy"},
]


@pytest.mark.medium
@pytest.mark.parametrize("arms", fast_first(map(pytest.param, [SCRIPTED[::9], SCRIPTED])), ids=["two", "all"])
def test_scripted_arms(tmp_path, arms):
    document = {"backend": "scripted", "models": {"target": "scripted:1", "draft": "scripted:2"}}
    suite = write_suite(tmp_path, document | {"sampling": {"max_new_tokens": 24}, "arms": arms}, WORDS)
    assert differences(suite, tmp_path) == {}


@pytest.mark.medium
@pytest.mark.parametrize("mode", slow_unless(["tiled", "fast"], ["fast"]))
def test_native_arms(tmp_path, mode):
    arms = [SCRIPTED[0], SCRIPTED[9]]
    models = {**MODELS, "target": {"source": MODELS["target"], "numerics": mode}}
    suite = write_suite(tmp_path, {"backend": "native", "models": models, "sampling": SHORT, "arms": arms}, WORDS[:2])
    assert differences(suite, tmp_path) == {}
    assert (("chain", "bitwise") in planned(suite)) == (mode == "fast")


@pytest.mark.medium
@pytest.mark.parametrize("arms", fast_first(map(pytest.param, [TRANSFORMERS[1:2], TRANSFORMERS])), ids=["one", "all"])
def test_transformers_arms(tmp_path, arms):
    suite = write_suite(
        tmp_path, {"backend": "transformers", "models": MODELS, "sampling": SHORT, "arms": arms}, WORDS[:2]
    )
    assert differences(suite, tmp_path) == {}


def shown(backend, target, greedy=False, **settings):
    plan = EngineSpec(**{"protocol": Protocol.CHAIN, "gamma": 3, **settings})
    return declared(backend).arm(ArmSettings(plan, SamplingParams(0.0 if greedy else 1.0), ModelSource(target)))


VLLM = {
    "ngram": ({"proposer": "ngram"}, {"prefix_measurable", "q_contract"}),
    "drawn": ({"proposer": "draft_model", "options": {"draft_sample_method": "probabilistic"}}, set()),
    "text": ({"proposer": "ngram", "level": RecordLevel.TOKENS, "engine": {"logprobs": None}}, {"law", "honoured"}),
    "synthetic": (
        {"proposer": "draft_model", "options": {"rejection_sample_method": "synthetic"}},
        {"acceptance_theory", "gamma_invariance"},
    ),
}
OF_ANOTHER_ENGINE = {"replay", "rng_streams", "transcript", "bitwise"}


@pytest.mark.parametrize("name", VLLM)
def test_what_vllm_declares_decides_what_is_planned(name):
    settings, missing = VLLM[name]
    found = shown("vllm", "bundled:target", **settings)
    design = Design(4, 4, 400, 3, greedy=False, level=Level(found.level), shown=found)
    foreseen = {each for each in CHECKS if load(each).foresee(load(each).defaults, design) is not None}
    below = {each for each in CHECKS if load(each).needs > design.level}
    assert OF_ANOTHER_ENGINE | missing <= foreseen | below
    assert not foreseen & {"liveness", "configuration", "reconciliation", "accounting", "two_sample"}
    assert found.level == {"text": 0}.get(name, 3)


def test_what_an_endpoint_declares_follows_its_settings():
    url = {"url": "http://127.0.0.1:8000/v1"}
    whole = shown("openai", "bundled:target", proposer="served", engine={**url, "server": "vllm"})
    assert (whole.level, whole.gives(Part.TOKENS), whole.gives(Part.REFERENCE)) == (1, True, True)
    served = shown("openai", "served:a", proposer="served", engine={**url, "server": "vllm"})
    assert (served.level, served.gives(Part.TOKENS), served.gives(Part.REFERENCE)) == (1, False, False)
    text = shown("openai", "bundled:target", proposer="served", engine={**url, "logprobs": 0})
    assert (text.level, text.gives(Part.LOGPROBS), text.gives(Part.TOKENS)) == (0, False, False)


def test_settings_that_a_backend_does_not_take_are_told_by_the_plan(tmp_path):
    arm = {"name": "arm", "proposer": {"kind": "draft_model", "gamma": 3}, "verifier": "chain", "sampling": WARM}
    suite = write_suite(
        tmp_path, {"backend": "transformers", "models": MODELS, "sampling": SHORT, "arms": [arm]}, WORDS
    )
    with pytest.raises(UserError, match="drafts with a model"):
        plan(suite, RunHistory())


@pytest.mark.parametrize("case", [*scripts.CASES, *tiny.HEADS])
def test_what_is_declared_of_a_proposer_is_what_it_states(case):
    if case in tiny.HEADS:
        kind, options = tiny.HEADS[case][0], tiny.OPTIONS.get(case, {})
        facts = tiny.made(case)[0].facts
    else:
        kind, options = scripts.CASES[case]
        facts = scripts.made(case, DraftRule.INDEPENDENT).facts
    asked = EngineSpec(Protocol.CHAIN, kind, 3, options=options)
    assert draws(asked) == (facts.q_kind is QKind.FULL)
    assert shape(asked) == facts.shape
    assert steady(asked) == (facts.steady is not None)


def test_every_numerics_mode_is_declared_as_it_promises():
    assert {name: each for name, each in PROMISES.items() if name != numerics.AUTO} == {
        name: numerics.load(name).promises.name.lower() for name in numerics.REGISTRY
    }
    assert PROMISES[numerics.AUTO] == PROMISES[numerics.PREFERENCE[0]]
    assert set(proposers.REGISTRY) == {kind for kind, _ in scripts.CASES.values()} | {
        kind for kind, _ in tiny.HEADS.values()
    }


@pytest.mark.parametrize("backend", REGISTRY)
@pytest.mark.parametrize("record", RecordLevel)
def test_levels_grow_with_the_record(backend, record):
    levels = declared(backend).levels
    below = [levels[each] for each in RecordLevel if list(RecordLevel).index(each) <= list(RecordLevel).index(record)]
    assert [each.level for each in below] == sorted(each.level for each in below)
    assert all(first.parts <= second.parts for first, second in pairwise(below))
    assert (levels[record].level == 4) == (record is RecordLevel.FULL and REGISTRY[backend].ours)


@pytest.mark.parametrize("protocol", verify.REGISTRY)
def test_what_is_declared_of_a_rule_is_what_it_states(protocol):
    facts = verify.load(Protocol(protocol)).facts
    found = shown("native", "scripted:1", protocol=Protocol(protocol), proposer="draft_model")
    assert (found.protocol, found.lossless) == (facts.protocol, facts.lossless)


@pytest.mark.medium
def test_declarations_are_read_without_torch_and_without_engines():
    code = (
        "import sys; from engine.backends import REGISTRY, declared; [declared(each) for each in REGISTRY];"
        "print([each for each in ('torch', 'transformers', 'vllm', 'httpx') if each in sys.modules])"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, timeout=60)
    assert done.stdout.strip() == "[]"

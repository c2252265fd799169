"""The bundled draft learns to draft for the bundled target, whose own text it never changes."""

import json
from pathlib import Path

import numpy as np
import pytest
import torch

from audit import checks
from audit.checks.base.interface import evaluate
from audit.evidence.records import ArmKind, ArmRecord, Evidence, Level
from audit.evidence.verdicts import Verdict
from engine.backends.engine_spec import EngineSpec, ModelSource
from engine.backends.interface import Prompt
from engine.backends.native.backend import open_models
from engine.core.types import Protocol, RecordLevel, Request, SamplingParams
from engine.models.interface import WantedOutputs, chain_placement
from engine.models.loading import load_model
from engine.proposers.draft_model.draft_model import DraftModelProposer
from engine.record.metrics import acceptance
from engine.record.trace import decode, steps_of
from engine.sampling.rng import stream_of
from engine.sampling.transforms import transform
from tests.audit.checks.simulator import record
from tests.support.tiers import fast_first

PROMPTS = Path(__file__).parents[3] / "suites" / "prompts"
GREEDY = SamplingParams(max_new_tokens=48)
SAMPLED = SamplingParams(temperature=0.9, max_new_tokens=32, seed=5)
LEARN = {"learn": True, "update_every": 16}


@pytest.fixture(scope="module")
def backend():
    torch.set_num_threads(1)
    # the same bits whatever the number of tokens, so that equality below is equality
    return open_models(
        {"target": ModelSource("bundled:target", numerics="fixed"), "draft": ModelSource("bundled:draft")}
    )


def backend_of(backend, proposer, protocol=Protocol.GREEDY, level=RecordLevel.TOKENS, rows=4, **options):
    draft = None if proposer is None else "draft"
    return backend.arm(EngineSpec(protocol, proposer, 5, draft, options=options, rows=rows, level=level))


def asked(engine, sampling, count, domain="code"):
    """The first prompts of a domain that the draft, trained on dialogues mostly, drafts badly for."""
    lines = (PROMPTS / f"{domain}.jsonl").read_text(encoding="utf-8").splitlines()[:count]
    rows = [json.loads(line) for line in lines]
    assert len(rows) == count
    prompts = [Prompt(tuple(row.get("messages", ())), text=row.get("prompt")) for row in rows]
    return [
        Request(row["id"], engine.encode(prompt), sampling, stream_of(row["id"]))
        for row, prompt in zip(rows, prompts, strict=True)
    ]


def served(engine, wanted):
    return {each.request.id: decode(each.trace) for each in engine.generate(wanted)}


def later_half(traces, wanted):
    return acceptance(traces[each.id] for each in wanted[len(wanted) // 2 :])


@pytest.mark.slow
def test_acceptance_rises_while_greedy_text_stays_the_target_s(backend):
    """Deterministic: fixed prompts, no chance. What does not learn, or by steps of length 0, does not rise."""
    backends = {
        "plain": backend_of(backend, None),
        "frozen": backend_of(backend, "online"),
        "still": backend_of(backend, "online", **LEARN, learning_rate=0.0),
        "learning": backend_of(backend, "online", **LEARN),
    }
    wanted = asked(backends["plain"], GREEDY, 16)
    found = {name: served(engine, wanted) for name, engine in backends.items()}
    for traces in found.values():
        assert {name: each.tokens for name, each in traces.items()} == {
            name: each.tokens for name, each in found["plain"].items()
        }
    frozen, still, learning = (later_half(found[name], wanted) for name in ("frozen", "still", "learning"))
    assert still == frozen
    assert learning.acceptance_length > frozen.acceptance_length + 0.15
    versions = {each.number for trace in found["learning"].values() for each in trace.header.draft_versions}
    assert len(versions) > 10


@pytest.fixture(scope="module")
def sampled(backend):
    engine = backend_of(backend, "online", Protocol.CHAIN, RecordLevel.FULL, **LEARN, positions="all")
    return engine, served(engine, asked(engine, SAMPLED, 16))


@pytest.mark.parametrize("name", fast_first(["replay", "law", "acceptance_theory"]))
@pytest.mark.slow
def test_the_checks_find_nothing_under_sampling(name, sampled):
    engine, traces = sampled
    requests = tuple(record(each) for each in traces.values())
    arm = ArmRecord("candidate", ArmKind.CANDIDATE, Level.L4, engine.effective_config(), requests)
    result = evaluate(checks.load(name), Evidence(arm), {})
    assert result.verdict is not Verdict.FAULT, result.summary
    assert (name, result.verdict) != ("replay", Verdict.INCONCLUSIVE)
    assert result.n > 100


@pytest.mark.slow
def test_the_same_requests_give_the_same_versions(backend, sampled):
    engine, traces = sampled
    again = served(engine, asked(engine, SAMPLED, 16))
    for name, trace in traces.items():
        assert trace.header == again[name].header
        np.testing.assert_array_equal(trace.q_rows, again[name].q_rows)
    assert max(len(each.header.draft_versions) for each in traces.values()) > 5


def largest_error(backend, monkeypatch):
    """How far recorded q rows are from those that the step's version gives after the whole prefix, read afresh."""
    models = [load_model("bundled:draft").model]
    replace = DraftModelProposer.replace_model

    def noting(self, model, contexts):
        models.append(model)
        replace(self, model, contexts)

    monkeypatch.setattr(DraftModelProposer, "replace_model", noting)
    engine = backend_of(backend, "online", Protocol.CHAIN, RecordLevel.FULL, **LEARN | {"update_every": 8})
    traces = served(engine, asked(engine, SAMPLED, 4))
    worst = 0.0
    for trace in traces.values():
        prompt = trace.header.prompt
        history = [*prompt, *trace.tokens]
        for step in steps_of(trace):
            model, drafted = models[trace.draft_version[step.index]], trace.node_token[step.nodes].tolist()
            for x in range(step.examined.start, step.examined.stop):
                prefix = [*history[: step.position], *drafted[: trace.examined_node[x]]]
                cache = model.new_cache(1, len(prefix))
                placed = chain_placement([prefix], [0], cache.trash)
                logits = model.forward(cache, placed, WantedOutputs()).logits[0, -1].numpy()
                row = transform(logits, prefix, len(prompt), SAMPLED, trace.header.eos_ids)
                worst = max(worst, float(np.abs(row.p - trace.q_rows[x]).max()))
    assert len(models) > 5
    return worst


@pytest.mark.slow
def test_q_is_that_of_one_version_through_and_through(backend, monkeypatch):
    assert largest_error(backend, monkeypatch) < 1e-4


@pytest.mark.slow
def test_a_cache_that_is_not_read_anew_shows(backend, monkeypatch):
    def hasty(self, model, contexts):
        self._model = model

    monkeypatch.setattr(DraftModelProposer, "replace_model", hasty)
    assert largest_error(backend, monkeypatch) > 1e-3


def test_the_configuration_names_the_version_that_drafts_first(backend):
    frozen, learning = (backend_of(backend, "online", learn=learn).effective_config() for learn in (False, True))
    assert frozen.draft_version is None
    assert len(learning.draft_version) == 64
    assert (frozen.proposer_state, learning.proposer_state) == ("request", "shared")
    assert backend_of(backend, "draft_model").effective_config().draft_version is None

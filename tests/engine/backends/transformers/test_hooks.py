"""Hooks are put back, guards refuse what they do not know, and accounts that differ are not believed."""

import importlib
from dataclasses import replace

import numpy as np
import pytest
from transformers.generation import candidate_generator, utils

from engine.backends.transformers import compat as guard
from engine.backends.transformers.hooks import GENERATOR, HookedGenerate, HookedStep, watched
from engine.backends.transformers.to_record import GenerateOutput, mismatches, observed
from engine.core.types import FinishReason, QKind, RecordLevel
from engine.record.trace import decode
from tests.engine.backends.transformers.family import GREEDY, PROMPTS, SAMPLED, networks, plan, requests, run

KINDS = ("draft_model", "prompt_lookup", "early_exit", "universal")
CLASSES = [getattr(candidate_generator, name) for each in guard.DRAFTERS.values() for name in each]


def originals():
    """Everything that is replaced while something is watched."""
    methods = [vars(each).get(name) for each in CLASSES for name in ("get_candidates", "update_candidate_strategy")]
    return [utils._speculative_sampling, utils.GenerationMixin._get_candidate_generator, *methods]


def unchanged(backend):
    return all(GENERATOR not in vars(network) for network in networks(backend))


@pytest.mark.medium
@pytest.mark.parametrize("kind", KINDS)
def test_everything_is_the_original_object_afterwards(backend, kind):
    before, depth = originals(), networks(backend)[0].config.num_hidden_layers
    run(backend.arm(plan(kind)), SAMPLED, PROMPTS[:2])
    assert all(ours is theirs for ours, theirs in zip(originals(), before, strict=True))
    assert unchanged(backend)
    assert networks(backend)[0].config.num_hidden_layers == depth


def test_everything_is_replaced_in_between(backend):
    network, before = networks(backend)[0], utils._speculative_sampling
    with watched(network, greedy=False):
        assert utils._speculative_sampling is not before
        assert GENERATOR in vars(network)
    assert utils._speculative_sampling is before


def test_an_attribute_of_the_object_itself_is_put_back(backend):
    network = networks(backend)[0]
    own = network._get_candidate_generator
    setattr(network, GENERATOR, own)
    try:
        with watched(network, greedy=False):
            assert vars(network)[GENERATOR] is not own
        assert vars(network)[GENERATOR] is own
    finally:
        delattr(network, GENERATOR)


@pytest.mark.parametrize("place", ["draft", "target", "sampling"])
def test_everything_is_the_original_object_after_an_exception(backend, monkeypatch, place):
    """Inside the draft, inside the target's forward, inside the verification."""

    def fail(*_, **__):
        raise RuntimeError("broken here")

    target, draft, _ = networks(backend)
    where = {"draft": (draft, "forward"), "target": (target, "forward"), "sampling": (utils, "_speculative_sampling")}
    monkeypatch.setattr(*where[place], fail)
    # after the failing function is in place: it is not the record's to remove
    before = originals()
    if place == "sampling":
        monkeypatch.setattr(guard, "problems", lambda _: ())
    found = run(backend.arm(plan("draft_model")), SAMPLED, PROMPTS[:2])
    assert [each.finish_reason for each in found] == [FinishReason.ERROR] * 2
    assert all(ours is theirs for ours, theirs in zip(originals(), before, strict=True))
    assert unchanged(backend)


def test_the_early_exit_leaves_the_target_shallow_and_we_put_it_back(backend, monkeypatch):
    """An oddity of transformers: `num_hidden_layers` is written without try and finally."""
    target = networks(backend)[0]
    original = target.forward

    def broken(*arguments, **named):
        if target.config.num_hidden_layers == 1:
            raise RuntimeError("in the exit")
        return original(*arguments, **named)

    monkeypatch.setattr(target, "forward", broken)
    with pytest.raises(RuntimeError, match="in the exit"):
        bare(backend)
    assert target.config.num_hidden_layers == 1
    target.config.num_hidden_layers = 2
    assert run(backend.arm(plan("early_exit")), SAMPLED, PROMPTS[:1])[0].finish_reason is FinishReason.ERROR
    assert target.config.num_hidden_layers == 2


def bare(backend):
    """The same arm without hooks."""
    engine = backend.arm(plan("early_exit"))
    engine._problems = ("not watched",)
    engine._run(requests(engine, SAMPLED)[0])


MOVED = {
    "is not there": ("_speculative_sampling", None),
    "the record was written for": ("_speculative_sampling", lambda ids, logits: None),
    "no callable with a signature": ("_speculative_sampling", 7),
}


@pytest.mark.medium
@pytest.mark.parametrize("words", MOVED)
def test_a_callable_that_moved_makes_the_evidence_text_and_logprobs(backend, monkeypatch, words):
    name, other = MOVED[words]
    plain = [each.tokens for each in run(backend.arm(plan("prompt_lookup")), SAMPLED)]
    if other is None:
        monkeypatch.delattr(utils, name)
    else:
        monkeypatch.setattr(utils, name, other)
    engine = backend.arm(plan("prompt_lookup"))
    assert engine.evidence_level() == 1
    said = engine.effective_config().evidence
    assert said.level == 1
    assert [words in each and name in each for each in said.problems] == [True]
    found = run(engine, SAMPLED)
    assert [each.tokens for each in found] == plain
    for generation in found:
        trace = decode(generation.trace)
        assert trace.header.level is RecordLevel.TOKENS
        assert (trace.tokens, int(trace.n_drafted.sum())) == (generation.tokens, 0)
        assert trace.logprob.shape == (len(trace.tokens),)
        assert np.all(trace.logprob <= 0)
    assert utils.__dict__.get(name) is other


def test_log_probabilities_are_those_of_the_rows(backend, monkeypatch):
    whole = decode(run(backend.arm(plan("prompt_lookup")), SAMPLED, PROMPTS[:1])[0].trace)
    monkeypatch.setattr(guard, "problems", lambda _: ("renamed",))
    told = decode(run(backend.arm(plan("prompt_lookup")), SAMPLED, PROMPTS[:1])[0].trace)
    np.testing.assert_allclose(told.logprob, whole.logprob, atol=1e-9)


@pytest.mark.parametrize("kind", list(guard.DRAFTERS))
def test_the_installed_version_is_the_one_that_was_written_for(kind):
    assert guard.problems(kind) == ()


def test_every_expectation_can_fail(monkeypatch):
    places = {**guard.SHARED, **{f"{guard.CANDIDATES}:{name}.get_candidates": () for name in guard.DRAFTERS["mtp"]}}
    for place in places:
        module, _, path = place.partition(":")
        owner = importlib.import_module(module)
        for name in path.split(".")[:-1]:
            owner = getattr(owner, name)
        with monkeypatch.context() as patch:
            patch.setattr(owner, path.split(".")[-1], lambda: None)
            assert [path in each for each in guard.problems("mtp")] == [True]
    assert guard.problems(None) == ()


PROMPT = (5, 6)
OUTPUT = GenerateOutput((1, 2, 9, 4), np.zeros((4, 10), np.float32), np.zeros((4, 10), np.float32))
ROWS = np.full((3, 10), 0.1)


def seen(**changes):
    """Two steps: two of two drafted tokens and a bonus, then a plain token."""
    first = HookedStep(PROMPT, (1, 2), ROWS[:2], 3, 0.0, (1, 2, 9), ROWS, (0.1, 0.1), 2, 2, (0.5, 0.6))
    last = HookedStep((5, 6, 1, 2, 9), (), None, 3, 0.0, (4,), ROWS[:1], (), 0)
    return HookedGenerate(False, [replace(first, **changes), last])


WRONG = {
    "other tokens than were committed": {"committed": (1, 2)},
    "nothing was told": {"matches": None},
    "2 drafted tokens were told to match, 4 tokens were committed": {"committed": (1, 2, 9, 9)},
    "is not the drafted one": {"drafted": (1, 3)},
    "2 drafted tokens, but 1 rows of q": {"q": ROWS[:1]},
    "2 drafted tokens, but 1 acceptance numbers": {"uniforms": (0.5,)},
    "1 drafted tokens were accepted, but 2": {"sampled": 1},
    "not verified by _speculative_sampling": {"sampled": None},
    "asked for after other tokens": {"prefix": (5,)},
}


@pytest.mark.parametrize("words", WRONG)
def test_accounts_that_differ_are_named(words):
    assert any(words in each for each in mismatches(seen(**WRONG[words]), PROMPT, OUTPUT))


def test_accounts_that_agree_are_believed():
    assert mismatches(seen(), PROMPT, OUTPUT) == ()
    steps = observed(seen(), OUTPUT, soft=True)
    assert [(each.emitted, each.accepted, each.q_kind) for each in steps] == [
        ((1, 2, 9), 2, QKind.FULL),
        ((4,), 0, QKind.NONE),
    ]


def test_output_that_differs_is_named():
    assert mismatches(seen(), PROMPT, replace(OUTPUT, tokens=(1, 2, 9, 5)))
    assert mismatches(seen(), PROMPT, replace(OUTPUT, logits=OUTPUT.logits[:3]))
    assert mismatches(HookedGenerate(False), PROMPT, OUTPUT) == ("no candidate generator was asked for drafts",)


def test_a_cut_step_keeps_what_was_accepted_before_the_cut():
    """Two drafted tokens and the bonus were accepted, and the second drafted one ends the generation."""
    cut = seen(committed=(1, 2), p=ROWS[:2], matches=1, sampled=2)
    whole = GenerateOutput((1, 2), OUTPUT.logits[:2], OUTPUT.scores[:2])
    told = HookedGenerate(False, cut.steps[:1])
    assert mismatches(told, PROMPT, whole) == ()
    assert observed(told, whole, soft=True)[0].accepted == 2
    compared = HookedGenerate(True, [replace(cut.steps[0], sampled=None, uniforms=())])
    assert observed(compared, whole, soft=True)[0].accepted == 2


def test_a_request_whose_accounts_differ_has_less_evidence(backend, monkeypatch):
    """A version that tells the wrong number of matches, with the same signatures."""
    original = candidate_generator.CandidateGenerator.update_candidate_strategy

    class Odd(candidate_generator.PromptLookupCandidateGenerator):
        def get_candidates(self, input_ids, **named):
            ids, logits = super().get_candidates(input_ids, **named)
            watch = self.update_candidate_strategy
            self.update_candidate_strategy = lambda ids, scores, n: watch(ids, scores, n + 1)
            return ids, logits

    monkeypatch.setattr(utils, "PromptLookupCandidateGenerator", Odd)
    generation = run(backend.arm(plan("prompt_lookup")), GREEDY, PROMPTS[:1])[0]
    assert generation.facts["level"] == 1
    assert "told to match" in generation.facts["why"]
    assert generation.facts["reconciliation"]["mismatches"]
    trace = decode(generation.trace)
    assert trace.header.level is RecordLevel.TOKENS
    assert trace.header.facts["level"] == 1
    assert candidate_generator.CandidateGenerator.update_candidate_strategy is original

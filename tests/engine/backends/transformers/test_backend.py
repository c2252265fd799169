"""The transformers backend over a tiny random family: what is recorded, and what is refused."""

from dataclasses import replace

import numpy as np
import pytest
import torch

from engine.backends.interface import Prompt
from engine.backends.transformers.backend import seed_of
from engine.core.errors import CapacityError, InvalidRequest, ModelError
from engine.core.types import FinishReason, Protocol, QKind, RecordLevel, Request, Role, SamplingParams
from engine.record.trace import decode, steps_of
from engine.sampling.transforms import transform
from tests.engine.backends.transformers.family import (
    GREEDY,
    PROMPTS,
    SAMPLED,
    networks,
    plan,
    requests,
    run,
    workshop_of,
)
from tests.support.tiers import fast_first, slow_unless

KINDS = ("draft_model", "prompt_lookup", "early_exit", "universal")


@pytest.mark.medium
@pytest.mark.parametrize("kind", slow_unless(KINDS, ["draft_model", "prompt_lookup"]))
def test_greedy_assistance_gives_the_tokens_of_plain_generation(backend, kind):
    plain = run(backend.arm(plan(None, Protocol.GREEDY)), GREEDY)
    assisted = run(backend.arm(plan(kind, Protocol.GREEDY)), GREEDY)
    assert [each.tokens for each in assisted] == [each.tokens for each in plain]
    assert [each.text for each in assisted] == [each.text for each in plain]
    traces = [decode(each.trace) for each in assisted]
    assert sum(int(each.n_drafted.sum()) for each in traces) > 0
    assert {each.header.protocol for each in traces} == {Protocol.GREEDY}


@pytest.mark.medium
@pytest.mark.parametrize("kind", fast_first(KINDS, 2))
@pytest.mark.parametrize("sampling", fast_first([GREEDY, SAMPLED]))
def test_a_record_holds_the_steps_and_the_rows_of_the_target(backend, kind, sampling):
    engine = backend.arm(plan(kind))
    assert engine.evidence_level() == 3
    for generation in run(engine, sampling):
        trace = decode(generation.trace)
        assert generation.facts["reconciliation"]["mismatches"] == []
        assert trace.tokens == generation.tokens
        assert trace.header.level is RecordLevel.FULL
        assert trace.logits.shape == (len(generation.tokens), 300)
        for view in steps_of(trace):
            accepted = trace.role[view.emitted] == Role.ACCEPTED
            kept = trace.token[view.emitted][accepted]
            assert kept.tolist() == trace.node_token[view.nodes][: accepted.sum()].tolist()
        anchored = target_rows(backend, generation)
        np.testing.assert_allclose(trace.logits, anchored, atol=2e-4)


def target_rows(backend, generation):
    """The target's rows over the whole text, in one forward."""
    target = networks(backend)[0]
    ids = torch.tensor([[*generation.request.prompt, *generation.tokens]])
    with torch.no_grad():
        return target(ids).logits[0, len(generation.request.prompt) - 1 : -1].numpy()


@pytest.mark.medium
@pytest.mark.parametrize("kind", ["draft_model", "early_exit"])
def test_recorded_numbers_p_and_q_give_the_decisions_again(backend, kind):
    tried = 0
    for generation in run(backend.arm(plan(kind)), SAMPLED):
        trace = decode(generation.trace)
        ratio = trace.examined_p / trace.examined_q
        clear = np.abs(trace.examined_uniform - ratio) > 1e-5
        assert clear.mean() > 0.9
        accepted = trace.examined_uniform <= ratio
        assert np.array_equal(accepted[clear], trace.examined_accepted.astype(bool)[clear])
        tried += len(accepted)
        assert set(trace.q_kind[trace.n_drafted > 0].tolist()) == {QKind.FULL}
        assert np.allclose(trace.q_rows.sum(axis=1), 1.0, atol=1e-9)
    assert tried > 40


@pytest.mark.medium
@pytest.mark.parametrize(("kind", "sampling"), [("prompt_lookup", SAMPLED), ("draft_model", GREEDY)])
def test_drafts_that_nothing_drew_are_deterministic(backend, kind, sampling):
    for generation in run(backend.arm(plan(kind)), sampling):
        trace = decode(generation.trace)
        assert set(trace.q_kind[trace.n_drafted > 0].tolist()) <= {QKind.ONE_HOT}
        assert np.all(np.isnan(trace.examined_uniform))


@pytest.mark.medium
def test_a_request_s_numbers_depend_on_seed_and_stream_alone(backend):
    engine = backend.arm(plan("draft_model"))
    one, other = requests(engine, SAMPLED, ("the quick", "the quick"))
    state = torch.get_rng_state()
    torch.rand(3)
    again = [each.tokens for each in engine.generate([other, one])][::-1]
    assert [each.tokens for each in engine.generate([one, other])] == again
    assert again[0] != again[1]
    assert seed_of(one) != seed_of(other)
    torch.set_rng_state(state)
    before = torch.rand(1).item()
    torch.set_rng_state(state)
    list(engine.generate([one]))
    assert torch.rand(1).item() == before


HONOURED = {
    "temperature": {"temperature": 0.7},
    "top_k": {"top_k": 5},
    "top_p": {"top_p": 0.8},
    "min_p": {"min_p": 0.05, "top_k": 20},
    "repetition_penalty": {"repetition_penalty": 1.3},
    "logit_bias": {"logit_bias": ((40, 4.0), (41, -3.0), (40, 1.0))},
    "bad_words": {"bad_words": ((40,), (41,))},
    "min_tokens": {"min_tokens": 8},
}


@pytest.mark.parametrize("name", HONOURED)
@pytest.mark.parametrize("kind", fast_first([None, "draft_model", "prompt_lookup"]))
def test_parameters_mean_the_same_p_as_in_our_own_engine(backend, kind, name):
    sampling = SamplingParams(**({"temperature": 1.0, "max_new_tokens": 12} | HONOURED[name]))
    for generation in run(backend.arm(plan(kind)), sampling, PROMPTS[:2]):
        trace = decode(generation.trace)
        history, start = [*generation.request.prompt, *trace.tokens], len(generation.request.prompt)
        rows = [
            transform(row, history[: start + i], start, sampling, trace.header.eos_ids)
            for i, row in enumerate(trace.logits)
        ]
        asked = [row.p[token] for row, token in zip(rows, trace.tokens, strict=True)]
        np.testing.assert_allclose(trace.p, asked, atol=1e-5)


def test_ends_are_told_as_ours_are(backend):
    plain = backend.arm(plan(None, Protocol.GREEDY))
    whole = run(plain, GREEDY, PROMPTS[:1])[0]
    stop = whole.tokens[5]
    sampling = SamplingParams(max_new_tokens=20, stop_token_ids=(stop,))
    for kind in (None, "draft_model", "prompt_lookup"):
        cut = run(backend.arm(plan(kind, Protocol.GREEDY)), sampling, PROMPTS[:1])[0]
        assert cut.finish_reason is FinishReason.STOP
        assert cut.tokens == whole.tokens[: whole.tokens.index(stop) + 1]
    assert whole.finish_reason is FinishReason.LENGTH


REFUSED = {
    "presence_penalty": (plan("draft_model"), {"presence_penalty": 0.5}),
    "frequency_penalty": (plan(None), {"frequency_penalty": 0.5}),
    "several tokens": (plan(None), {"bad_words": ((3, 4),)}),
    "end token among bad_words": (plan(None), {"bad_words": ((0,),)}),
    "min_p after top_p": (plan(None), {"temperature": 1.0, "min_p": 0.1, "top_p": 0.9}),
    "stop strings beside proposer draft_model": (plan("draft_model"), {"stop": ("a",)}),
    "wrong tokens of the draft": (plan("universal"), {"repetition_penalty": 1.2}),
    "use verifier: chain": (plan("draft_model", Protocol.GREEDY), {"temperature": 1.0}),
}


@pytest.mark.parametrize("words", REFUSED)
def test_what_transformers_cannot_do_is_refused_before_anything_runs(backend, words):
    arm, parameters = REFUSED[words]
    engine = backend.arm(arm)
    asked = Request("r", engine.encode(Prompt(text="the")), SamplingParams(max_new_tokens=4, **parameters))
    with pytest.raises(InvalidRequest, match=words) as caught:
        engine.require([asked])
    assert "\n" not in str(caught.value)


def test_a_request_that_does_not_fit_is_refused(backend):
    with pytest.raises(CapacityError, match="context of 96"):
        run(backend.arm(plan("draft_model")), SamplingParams(max_new_tokens=95))


@pytest.mark.medium
def test_a_request_that_fails_is_told_and_the_others_go_on(backend, monkeypatch):
    engine = backend.arm(plan("draft_model"))
    asked = requests(engine, SAMPLED)
    draft, bad = networks(backend)[1], asked[1].prompt
    original = draft.forward

    def broken(input_ids=None, **named):
        if input_ids is not None and input_ids[0, : len(bad)].tolist() == list(bad):
            raise RuntimeError("out of luck")
        return original(input_ids=input_ids, **named)

    monkeypatch.setattr(draft, "forward", broken)
    found = list(engine.generate(asked))
    assert [each.finish_reason is FinishReason.ERROR for each in found] == [False, True, False, False]
    assert found[1].facts["error"] == {"kind": "refused", "message": "RuntimeError: out of luck"}
    assert decode(found[1].trace).header.facts["error"]["kind"] == "refused"
    assert found[1].tokens == ()


@pytest.mark.medium
def test_other_kinds_of_arms_do_not_inherit_settings(backend):
    run(backend.arm(plan("early_exit")), SAMPLED, PROMPTS[:1])
    run(backend.arm(plan(None)), SAMPLED, PROMPTS[:1])
    assert networks(backend)[0].generation_config.num_assistant_tokens is None
    mixed = backend.arm(plan("universal"))
    for sampling in (GREEDY, SAMPLED, GREEDY):
        assert not run(mixed, sampling, PROMPTS[:1])[0].facts["reconciliation"]["mismatches"]
    alone = run(backend.arm(plan(None, Protocol.GREEDY)), GREEDY, PROMPTS[:1])[0]
    assert run(mixed, GREEDY, PROMPTS[:1])[0].tokens == alone.tokens


@pytest.mark.medium
def test_levels_follow_the_record(backend):
    for level, evidence in {RecordLevel.TOKENS: 0, RecordLevel.SCALARS: 1, RecordLevel.TOPK: 3}.items():
        engine = backend.arm(plan("draft_model", level=level))
        assert engine.evidence_level() == evidence
        trace = decode(run(engine, SAMPLED, PROMPTS[:1])[0].trace)
        assert trace.header.level is level
        assert int(trace.n_drafted.sum()) > 0


def test_the_configuration_says_what_runs(backend):
    said = backend.arm(plan("draft_model", options={"assistant_ensemble_weight": 0.5})).effective_config()
    assert (said.protocol, said.lossless, said.rows, said.gamma) == ("ensemble", False, 1, 4)
    assert said.requested["protocol"] == "chain"
    assert said.in_effect["protocol"] == "ensemble"
    honest = backend.arm(plan("draft_model")).effective_config()
    assert honest.requested == honest.in_effect
    assert honest.lossless
    assert honest.to_json()["evidence"] == {"level": 3, "problems": []}
    moving = backend.arm(plan("draft_model", options={"num_assistant_tokens_schedule": "heuristic_transient"}))
    assert moving.effective_config().gamma is None


def test_ensembles_are_recorded_as_such(backend):
    arm = plan("draft_model", options={"assistant_ensemble_weight": 0.1})
    header = decode(run(backend.arm(arm), SAMPLED, PROMPTS[:1])[0].trace).header
    assert header.protocol is Protocol.ENSEMBLE
    assert not header.lossless


@pytest.mark.medium
def test_an_argmax_draft_hands_over_a_soft_q(backend):
    engine = backend.arm(plan("draft_model", engine={"argmax_draft": True}))
    assert engine.effective_config().fault == "argmax_draft"
    for generation in run(engine, SAMPLED):
        trace = decode(generation.trace)
        tokens = [trace.node_token[view.nodes][trace.examined_node[view.examined]] for view in steps_of(trace)]
        assert np.concatenate(tokens).tolist() == trace.q_rows.argmax(axis=1).tolist()
        assert trace.q_rows.max() < 1.0


@pytest.mark.medium
def test_the_anchor_s_rows_are_the_engine_s(backend):
    generation = run(backend.arm(plan("draft_model")), SAMPLED, PROMPTS[:1])[0]
    anchor = backend.arm(plan(None, Protocol.GUMBEL))
    assert anchor.anchor_config().backend == "transformers"
    trace = decode(anchor.anchor(generation.request, generation.tokens).trace)
    np.testing.assert_allclose(trace.logits, decode(generation.trace).logits, atol=2e-4)


def test_models_are_told_by_their_digests(backend):
    facts = {each.name: each for each in backend.models()}
    assert set(facts) == {"target", "draft", "other"}
    assert facts["target"].tokenizer_sha256 == facts["draft"].tokenizer_sha256
    assert len({each.sha256 for each in facts.values()}) == 3


UNBUILDABLE = {
    "no option 'depth'": plan("draft_model", options={"depth": 1}),
    "a number from 0.0 to 1.0": plan("draft_model", options={"assistant_ensemble_weight": 2.0}),
    "constant or heuristic_transient": plan("draft_model", options={"num_assistant_tokens_schedule": "heuristic"}),
    "below the target's 2 layers": plan("early_exit", options={"assistant_early_exit": 2}),
    "no num_mtp_layers": plan("mtp"),
    "no DFlash drafter": replace(plan("dflash"), draft="draft"),
    "add model: NAME": plan("dflash"),
    "remove model": replace(plan("prompt_lookup"), draft="draft"),
    "no model named 'nobody'": replace(plan("draft_model"), draft="nobody"),
    "remove it from engine": plan("prompt_lookup", engine={"argmax_draft": True}),
    "sampled drafts only": plan("draft_model", Protocol.GREEDY, engine={"argmax_draft": True}),
}


@pytest.mark.parametrize("words", UNBUILDABLE)
def test_arms_that_cannot_be_built_say_why_in_one_line(backend, words):
    with pytest.raises(InvalidRequest, match=words) as caught:
        backend.arm(UNBUILDABLE[words])
    assert "\n" not in str(caught.value)


def test_a_draft_of_another_tokenizer_is_pointed_to_universal(home):
    with pytest.raises(ModelError, match="use a draft with the target's tokenizer"):
        workshop_of(home, "other").arm(replace(plan("draft_model"), draft="other"))

"""What transformers does that a reader of its records should know, each shown."""

import numpy as np
import pytest
import torch
from torch.overrides import TorchFunctionMode
from transformers.generation.candidate_generator import AssistantToTargetTranslator
from transformers.generation.utils import _speculative_sampling

from engine.backends import open_backend
from engine.backends.engine_spec import ModelSource
from engine.core.types import FinishReason, Protocol, SamplingParams
from engine.record.trace import decode, steps_of
from tests.engine.backends.transformers.family import PROMPTS, SAMPLED, networks, plan, run, workshop_of

WARM = SamplingParams(temperature=1.0, max_new_tokens=12, seed=3)


def logits_of(network, ids):
    with torch.no_grad():
        return network(torch.tensor([ids])).logits[0].double()


def first_q(generation):
    """[V] what was handed over as the law of the first drafted token."""
    trace = decode(generation.trace)
    return trace.q_rows[next(steps_of(trace)).examined][0]


@pytest.mark.medium
def test_the_draft_is_drawn_at_the_temperature_squared(backend):
    """The processors that are handed to the draft are applied once more by the draft's own configuration."""
    generation = run(backend.arm(plan("draft_model")), SAMPLED, PROMPTS[:1])[0]
    row, logits = first_q(generation), logits_of(networks(backend)[1], list(generation.request.prompt))[-1]
    np.testing.assert_allclose(row, (logits / SAMPLED.temperature**2).softmax(-1).numpy(), atol=1e-5)
    assert np.abs(row - (logits / SAMPLED.temperature).softmax(-1).numpy()).max() > 0.01


def universal_law(home):
    """What universal assistance hands over as q, and the draft's law on the tokens that both know."""
    backend = workshop_of(home, "draft", "other")
    generation = run(backend.arm(plan("universal")), WARM, PROMPTS[:1])[0]
    target, other = (backend._models[name].tokenizer for name in ("target", "other"))
    shared = {other.get_vocab()[token]: at for token, at in target.get_vocab().items() if token in other.get_vocab()}
    assert len(shared) < len(other.get_vocab())
    logits = logits_of(networks(backend)[2], other(PROMPTS[0], add_special_tokens=False)["input_ids"])[-1]
    law = np.zeros(len(target.get_vocab()))
    law[list(shared.values())] = logits[list(shared)].softmax(-1).numpy()
    return first_q(generation), law


@pytest.mark.medium
def test_universal_assistance_hands_over_a_q_that_belongs_to_other_tokens(home):
    """The pruned head has the order of the vocabulary's mapping, `get_target_logits` that of the draft's ids."""
    q, law = universal_law(home)
    np.testing.assert_allclose(np.sort(q), np.sort(law), atol=1e-6)
    assert np.abs(q - law).sum() / 2 > 0.1


@pytest.mark.medium
def test_in_the_order_of_ids_the_q_is_the_draft_s(home, monkeypatch):
    original = AssistantToTargetTranslator._get_assistant_to_target_input_ids

    def ordered(self):
        there, back = original(self)
        return there, dict(sorted(back.items(), key=lambda pair: pair[1]))

    monkeypatch.setattr(AssistantToTargetTranslator, "_get_assistant_to_target_input_ids", ordered)
    q, law = universal_law(home)
    np.testing.assert_allclose(q, law, atol=1e-6)


class Zeros(TorchFunctionMode):
    """Acceptance numbers of 0: one in 2^24 float32 numbers is."""

    def __torch_function__(self, func, types, args=(), kwargs=None):
        result = func(*args, **(kwargs or {}))
        return torch.zeros_like(result) if func is torch.rand_like else result


def test_a_number_of_zero_accepts_a_token_that_p_excludes():
    """`r <= p / q` where the rule has `r < p / q`."""
    p = torch.tensor([[[-torch.inf, 0.0], [0.0, 0.0]]])
    q = torch.tensor([[[0.0, -1.0]]])
    with Zeros():
        tokens, matches = _speculative_sampling(torch.tensor([[7, 0]]), q, 1, p)
    assert (int(matches), int(tokens[0, 0])) == (1, 0)


def first_of_a_step(engine, text):
    """A text that the first of several tokens of a step completes, and the generation that it is from."""
    generation = run(engine, SamplingParams(max_new_tokens=40), (text,))[0]
    tokens = generation.tokens
    for view in steps_of(decode(generation.trace)):
        told = engine.target.tokens.decode(tokens[: view.emitted.start + 1])
        if view.emitted.stop - view.emitted.start > 1 and told.find(told[-3:]) == len(told) - 3:
            return told[-3:], generation
    raise AssertionError("no step emits several tokens")


@pytest.mark.medium
def test_a_step_goes_on_behind_a_stop_string():
    """Stop strings are looked for once a step, and nothing is cut."""
    backend = open_backend("transformers", {"target": ModelSource("bundled:target")})
    plain, assisted = (backend.arm(plan(kind, Protocol.GREEDY)) for kind in (None, "prompt_lookup"))
    text = "def first(self, value):\n    return self.value\n\ndef second(self, value):\n    return"
    stop, _ = first_of_a_step(assisted, text)
    sampling = SamplingParams(max_new_tokens=40, stop=(stop,))
    alone, beside = (run(each, sampling, (text,))[0] for each in (plain, assisted))
    assert alone.finish_reason is beside.finish_reason is FinishReason.STOP
    assert len(beside.tokens) > len(alone.tokens)
    assert beside.tokens[: len(alone.tokens)] == alone.tokens

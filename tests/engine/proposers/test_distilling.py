"""One optimiser step of a draft towards its target."""

import hashlib

import numpy as np
import pytest
import torch

from engine.core.errors import InvalidRequest
from engine.models.interface import WantedOutputs, chain_placement
from engine.models.lean_weights import rope_frequencies
from engine.models.numerics.fast import rope_tables
from engine.models.scripted import ScriptedModel
from engine.proposers.draft_model.online import DIVERGENCES, DistillationSample, copied, forward, student_of, trained
from tests.engine.models.conftest import VOCABULARY, network
from tests.support.lean_tensors import from_tensors
from tests.support.lean_variants import VARIANTS

TOKENS = tuple(int(token) for token in np.random.default_rng(1).integers(0, VOCABULARY, 12))


@pytest.fixture(autouse=True)
def one_thread():
    torch.set_num_threads(1)


def model_of(kind="llama", dtype=torch.float32, **overrides):
    made = network(kind, **overrides)
    return from_tensors(made.config.to_dict(), made.state_dict(), dtype)


def logits_of(model, tokens=TOKENS):
    cache = model.new_cache(1, 32)
    return model.forward(cache, chain_placement([list(tokens)], [0], cache.trash), WantedOutputs()).logits[0]


def lesson_of(teacher, places=(3, 7, 11)):
    return DistillationSample(TOKENS, places, logits_of(teacher)[list(places)].numpy())


@pytest.fixture(scope="module")
def teacher():
    torch.manual_seed(11)
    made = network("llama")
    with torch.no_grad():
        for parameter in made.parameters():
            parameter.add_(torch.randn_like(parameter) * 0.1)
    return from_tensors(made.config.to_dict(), made.state_dict(), torch.float32)


@pytest.mark.parametrize(("kind", "overrides"), VARIANTS)
def test_the_forward_that_learns_is_the_forward_that_serves(kind, overrides):
    model = model_of(kind, **overrides)
    rope = rope_tables(rope_frequencies(model.config), model.context, torch.float32)
    ours = forward(model.config, model.weights, rope, torch.tensor(TOKENS))
    assert (ours - logits_of(model)).abs().max() < 1e-4


@pytest.mark.parametrize("name", DIVERGENCES)
def test_divergences_are_their_definitions(name):
    p, q = np.random.default_rng(3).dirichlet(np.ones(5), (2, 4))
    first, second = (p, q) if name == "forward" else (q, p)
    expected = (first * np.log(first / second)).sum(-1)
    found = DIVERGENCES[name](torch.tensor(p).log(), torch.tensor(q).log())
    np.testing.assert_allclose(found.numpy(), expected, rtol=1e-12)


@pytest.mark.parametrize("divergence", DIVERGENCES)
@pytest.mark.parametrize("kind", ["llama", "qwen2", "qwen3"])
def test_updates_bring_the_draft_nearer_to_the_target(kind, divergence, teacher):
    lesson, student = lesson_of(teacher), student_of(model_of(kind), 0.01, divergence)

    def distance(model):
        q = torch.log_softmax(logits_of(model)[list(lesson.places)], -1)
        return float(DIVERGENCES[divergence](torch.log_softmax(torch.tensor(lesson.rows), -1), q).mean())

    before = distance(model_of(kind))
    for _ in range(10):
        model = student.learn([lesson])
    assert distance(model) < 0.5 * before


def test_two_lessons_are_learnt_as_one_of_all_their_positions(teacher):
    whole, parts = (student_of(model_of(), 0.01, "forward") for _ in range(2))
    ours = whole.learn([lesson_of(teacher)])
    other = parts.learn([lesson_of(teacher, (3,)), lesson_of(teacher, (7, 11))])
    assert (logits_of(ours) - logits_of(other)).abs().max() < 1e-3
    assert (logits_of(ours) - logits_of(model_of())).abs().max() > 0.05


def test_the_loaded_model_and_earlier_ones_never_change(teacher):
    loaded = model_of(tie_word_embeddings=True)
    before, student = logits_of(loaded).clone(), student_of(loaded, 0.01, "forward")
    model = student.learn([lesson_of(teacher)])
    said = logits_of(model).clone()
    student.learn([lesson_of(teacher)])
    assert torch.equal(logits_of(loaded), before)
    assert torch.equal(logits_of(model), said)
    assert not torch.equal(said, before)
    assert model.weights.head is model.weights.embedding


def test_equal_lessons_give_equal_bits(teacher):
    students = [student_of(model_of(), 0.01, "forward") for _ in range(2)]
    models = [[each.learn([lesson_of(teacher)]) for _ in range(3)][-1] for each in students]
    assert students[0].digest() == students[1].digest()
    assert torch.equal(logits_of(models[0]), logits_of(models[1]))


def test_it_learns_in_the_loop_s_inference_mode(teacher):
    student = student_of(model_of(), 0.01, "forward")
    with torch.inference_mode():
        inside = student.learn([lesson_of(teacher)])
    outside = student_of(model_of(), 0.01, "forward").learn([lesson_of(teacher)])
    assert torch.equal(logits_of(inside), logits_of(outside))


def test_the_digest_is_of_the_names_and_bytes_of_what_can_change(teacher):
    model = model_of("qwen3")
    student, expected = student_of(model, 0.01, "forward"), hashlib.sha256()
    for name, each in trained(copied(model.weights)).items():
        expected.update(name.encode() + each.numpy().tobytes())
    before = student.digest()
    assert before == expected.hexdigest()
    student.learn([lesson_of(teacher)])
    assert student.digest() != before


def test_a_masked_token_of_the_target_is_no_infinity(teacher):
    lesson = lesson_of(teacher)
    lesson.rows[:, 5] = -np.inf
    for divergence in DIVERGENCES:
        model = student_of(model_of(), 0.01, divergence).learn([lesson])
        assert torch.isfinite(logits_of(model)).all()


def test_weights_that_are_not_finite_are_refused(teacher):
    lesson = lesson_of(teacher)
    lesson.rows[0, 0] = np.nan
    with pytest.raises(InvalidRequest, match="not finite; lower learning_rate"):
        student_of(model_of(), 0.01, "forward").learn([lesson])


def test_only_lean_float32_drafts_learn():
    with pytest.raises(InvalidRequest, match="loader: lean"):
        student_of(ScriptedModel(lambda prefix: np.zeros(8), 8), 0.01, "forward")
    with pytest.raises(InvalidRequest, match="dtype: float32"):
        student_of(model_of(dtype=torch.bfloat16), 0.01, "forward")

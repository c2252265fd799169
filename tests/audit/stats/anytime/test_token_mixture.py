import numpy as np
import pytest
from scipy.stats import binom

from audit.stats.anytime.token_mixture import DIRECTIONS, NO_TOKEN, TokenRows, log_ratios, mixture

VOCABULARY = 12
NAMES = [name for family in DIRECTIONS for name in family.names]


def rows_of(laws, tokens, plain=None):
    """Rows on whole laws [E, V]; the looked-up token is always 3."""
    count, at = len(tokens), np.arange(len(tokens))
    tokens = np.asarray(tokens)
    other = np.full(count, np.nan) if plain is None else plain[at, tokens]
    return TokenRows(
        cells=laws,
        cell=tokens,
        p_token=laws[at, tokens],
        top=laws.argmax(axis=1) == tokens,
        top_mass=laws.max(axis=1),
        previous=np.concatenate([[np.nan], laws[at[:-1], tokens[1:]]]),
        token=tokens,
        repeated=np.concatenate([[NO_TOKEN], tokens[:-1]]),
        copied=np.full(count, 3),
        plain=other,
        vocabulary=laws.shape[1],
    )


def drawn(rng, laws):
    return (laws.cumsum(axis=1) < rng.random((len(laws), 1))).sum(axis=1).clip(max=laws.shape[1] - 1)


def worlds(rng, count):
    return rng.dirichlet(np.full(VOCABULARY, 0.4), size=count).clip(1e-6)


def normalised(laws):
    return laws / laws.sum(axis=1, keepdims=True)


def test_every_alternative_has_mean_one_under_the_claim():
    """Exact: the mean over the next token of r / p, for a text of two tokens before it."""
    rng = np.random.default_rng(5)
    laws = normalised(worlds(rng, 3))
    plain = normalised(worlds(rng, 3))
    ratios = [np.exp(log_ratios(rows_of(laws, [1, 4, token], plain))[-1]) for token in range(VOCABULARY)]
    means = laws[-1] @ np.stack(ratios)
    assert means == pytest.approx(np.ones(len(NAMES)), abs=1e-9)


def test_masses_outside_a_truncated_law_never_raise_the_mean():
    laws = normalised(worlds(np.random.default_rng(6), 3))
    laws[:, :6] = 0.0
    laws = normalised(laws)
    ratios = [np.exp(log_ratios(rows_of(laws, [7, 8, token]))[-1]) for token in range(6, VOCABULARY)]
    assert np.all(laws[-1, 6:] @ np.stack(ratios) <= 1 + 1e-9)


@pytest.mark.parametrize(
    ("name", "faulty"),
    [
        ("argmax leak", lambda law: 0.8 * law + 0.2 * np.eye(VOCABULARY)[law.argmax(axis=1)]),
        ("p to the power", lambda law: normalised(law**1.5)),
        ("copy from the text", lambda law: 0.9 * law + 0.1 * np.eye(VOCABULARY)[3]),
        ("any token", lambda law: 0.9 * law + 0.1 / VOCABULARY),
    ],
)
def test_a_fault_is_found_and_named(name, faulty):
    rng = np.random.default_rng(1)
    laws = normalised(worlds(rng, 1500))
    found = mixture(log_ratios(rows_of(laws, drawn(rng, faulty(laws)))), 0.005)
    assert found.test.crossing is not None
    assert found.leaders[0].name.startswith(name)


@pytest.mark.medium
def test_clean_texts_cross_no_more_often_than_the_level_at_any_time():
    """200 texts of 60 tokens at level 0.05: inside the 99.9 % binomial band."""
    rng = np.random.default_rng(2)
    laws = normalised(worlds(rng, 60))
    crossed = sum(
        mixture(log_ratios(rows_of(laws, drawn(rng, laws))), 0.05).test.crossing is not None for _ in range(200)
    )
    assert crossed <= binom.ppf(0.999, 200, 0.05)


def test_nothing_is_said_without_tokens():
    assert mixture(np.empty((0, len(NAMES))), 0.01).test.p == 1.0


def biased_text(rng, p, q, bias, count, places, gamma=4):
    """Tokens of a chain with laws `p` [V, V] and drafts `q`: at the given drafted places the law is off by `bias`.

    A drafted token is accepted without a test as often as that takes.
    """
    tokens, last, place = [], 0, 0
    while len(tokens) < count:
        own, draft = p[last], q[last]
        drawn_token = rng.choice(len(own), p=own if place == gamma else draft)
        distance = max(0.5 * np.abs(own - draft).sum(), bias)
        lenient = place in places and rng.random() < bias / distance
        kept = place < gamma and (lenient or rng.random() * draft[drawn_token] < own[drawn_token])
        if place < gamma and not kept:
            left = np.maximum(own - draft, 0.0)
            drawn_token = rng.choice(len(own), p=left / left.sum())
        last, place = drawn_token, place + 1 if kept else 0
        tokens.append(drawn_token)
    return np.array(tokens)


def found_in(count, places, runs, bias=0.05, level=0.005):
    """Share of texts in which the mixture alone crosses half of the check's level."""
    hits = 0
    for seed in range(runs):
        rng = np.random.default_rng(seed)
        p, other = (normalised(rng.dirichlet(np.full(32, 0.25), size=32) + 1e-4) for _ in range(2))
        tokens = biased_text(rng, p, 0.5 * (p + other), bias, count, places)
        laws = p[np.concatenate([[0], tokens[:-1]])]
        hits += mixture(log_ratios(rows_of(laws, tokens)), level / 2).test.crossing is not None
    return hits / runs


@pytest.mark.slow
def test_a_bias_of_a_twentieth_at_drafted_tokens_is_found_in_1000_tokens():
    """The power that the page states: 0.05 in total variation at every drafted place, and at the first alone."""
    assert found_in(1000, range(4), 30) >= 0.9
    assert found_in(3000, (0,), 20) >= 0.9


@pytest.mark.slow
def test_without_a_bias_as_many_texts_are_no_fault():
    assert found_in(1000, (), 30) <= binom.ppf(0.999, 30, 0.0025) / 30

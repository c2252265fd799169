import numpy as np
import pytest
from scipy.stats import binom

from audit.stats.distance import CELLS, binned, distances, top_k_distance, witness
from tests.audit.stats.chains import GAMMA, chain, toy
from tests.support.tiers import fast_first


def true_distance(p, reference):
    return 0.5 * np.abs(p - reference).sum(axis=1)


def test_whole_rows_give_one_number():
    rng = np.random.default_rng(1)
    p, reference = rng.dirichlet(np.ones(8), 5), rng.dirichlet(np.ones(8), 5)
    found = distances(p, reference)
    assert found.low == pytest.approx(true_distance(p, reference))
    assert found.high == pytest.approx(true_distance(p, reference))


@pytest.mark.parametrize("kept", [1, 4, 15])
def test_the_interval_holds_the_distance(kept):
    rng = np.random.default_rng(kept)
    p, reference = rng.dirichlet(np.full(16, 0.3), 500), rng.dirichlet(np.full(16, 0.3), 500)
    found, truth = distances(p[:, :kept], reference[:, :kept]), true_distance(p, reference)
    assert np.all(found.low <= truth + 1e-12)
    assert np.all(found.high >= truth - 1e-12)


def test_both_ends_are_attained():
    known, other = np.array([[0.5, 0.2]]), np.array([[0.4, 0.1]])
    found = distances(known, other)
    same_shape = np.array([[0.5, 0.2, 0.1, 0.2]]), np.array([[0.4, 0.1, 0.3, 0.2]])
    disjoint = np.array([[0.5, 0.2, 0.3, 0.0]]), np.array([[0.4, 0.1, 0.0, 0.5]])
    assert found.low == pytest.approx(true_distance(*same_shape))
    assert found.high == pytest.approx(true_distance(*disjoint))


def test_top_entries_of_either_side_meet_on_shared_tokens():
    rng = np.random.default_rng(2)
    for _ in range(100):
        p, reference = rng.dirichlet(np.full(20, 0.3)), rng.dirichlet(np.full(20, 0.3))
        ids, others = np.argsort(-p)[:6], np.argsort(-reference)[:6]
        found = top_k_distance(ids, p[ids], others, reference[others])
        assert found.low[0] - 1e-12 <= true_distance(p[None], reference[None])[0] <= found.high[0] + 1e-12


def test_lists_without_a_shared_token_leave_everything_open():
    found = top_k_distance(np.array([1]), np.array([0.9]), np.array([2]), np.array([0.9]))
    assert (found.low[0], found.high[0]) == (0.0, 1.0)


def cells_of(world, run):
    context = run.context.ravel()
    q = np.where((run.depth.ravel() == GAMMA)[:, None], np.nan, world.q[context])
    return binned(world.p[context], q, run.token.ravel())


def test_cells_carry_the_whole_mass_and_the_token():
    world = toy(1)
    run = chain(world, np.random.default_rng(1), 2, 200)
    found = cells_of(world, run)
    assert found.mass.shape == (400, CELLS)
    assert found.mass.sum(axis=1) == pytest.approx(np.ones(400))
    assert np.all(found.mass[np.arange(400), found.cell] >= world.p[run.context.ravel(), run.token.ravel()] - 1e-12)


def leaked(world, rng, requests, length, share):
    """Emitted law (1 - share) p + share q at every position, so the distance is known in every context."""
    context = rng.integers(len(world.p), size=requests * length)
    law = (1 - share) * world.p + share * world.q
    edges = np.cumsum(law, axis=1)[context]
    token = (edges < rng.random((len(context), 1))).sum(axis=1).clip(0, len(law) - 1)
    truth = share * true_distance(world.p, world.q)[context].mean()
    fold = np.repeat(np.arange(requests) % 2 == 0, length)
    return witness(binned(world.p[context], world.q[context], token), fold, 0.95), truth


@pytest.mark.parametrize("share", fast_first([0.0, 0.2, 1.0]))
@pytest.mark.slow
def test_the_witness_never_claims_too_much(share):
    """200 arms of 1000 tokens at 95 %; 0.9995 quantile of the binomial law."""
    world, rng = toy(3), np.random.default_rng(3)
    arms = [leaked(world, rng, 10, 100, share) for _ in range(200)]
    assert sum(found.low > truth for found, truth in arms) <= binom.ppf(0.9995, 200, 0.05)


def test_the_witness_grows_with_the_fault_and_with_the_sample():
    world, rng = toy(4), np.random.default_rng(4)
    clean, _ = leaked(world, rng, 20, 1000, 0.0)
    few, truth = leaked(world, rng, 20, 100, 1.0)
    many, _ = leaked(world, rng, 20, 2000, 1.0)
    assert clean.low == 0.0
    assert 0.0 < few.low < many.low <= truth
    assert many.low > 0.5 * truth


@pytest.mark.medium
def test_chain_faults_have_a_distance_and_a_clean_chain_none():
    world, rng = toy(5), np.random.default_rng(5)
    fold = np.repeat(np.arange(20) % 2 == 0, 500)
    clean, broken = (chain(world, rng, 20, 500, fault) for fault in ("", "hot"))
    assert witness(cells_of(world, clean), fold).low == 0.0
    assert witness(cells_of(world, broken), fold).low > 0.02


def test_one_fold_alone_shows_nothing():
    world = toy(6)
    run = chain(world, np.random.default_rng(6), 1, 300, "hot")
    assert witness(cells_of(world, run), np.ones(300, dtype=bool)).low == 0.0

import numpy as np
import pytest
from scipy.stats import binom

from audit.stats.anytime.scores import leak_scores, moments, picked
from audit.stats.binomial import upper_bound
from audit.stats.bounded_mean import betting_upper
from audit.stats.certificate import PredictableScore, Unit, certify, observe
from audit.stats.distance import WitnessEstimate, binned, witness
from tests.audit.stats.arms import BFLOAT16_NOISE, FLOAT32_NOISE, arm, audit_positions, decide
from tests.audit.stats.chains import pick
from tests.support.tiers import slow_unless


def test_the_two_terms_share_the_error_probability():
    anchored = np.random.default_rng(1).beta(1.0, 500.0, 3000)
    found = certify(2, 1000, anchored, 0.99, replay_share=0.3, floor=0.001)
    assert found.eps_replay == upper_bound(2, 1000, 1 - 0.003)
    assert found.eps_numeric == betting_upper(anchored, 1 - 0.007)
    assert found.eps == found.eps_replay + found.eps_numeric
    assert (found.n_decisions, found.violations, found.floor) == (1000, 2, 0.001)
    assert found.anchored_mean == pytest.approx(anchored.mean())
    assert found.unit is Unit.POSITION
    assert found.distinguishable(3) == pytest.approx(3 * found.eps)
    assert found.distinguishable(10**9) == 1.0


def test_nothing_audited_certifies_nothing():
    found = certify(0, 0, np.empty(0))
    assert found.eps == 1.0
    assert certify(0, 10**6, np.empty(0)).eps == 1.0


@pytest.mark.parametrize("bad", [0.0, 1.0, 1.5])
def test_shares_and_confidence_lie_in_the_unit_interval(bad):
    with pytest.raises(ValueError, match="must lie in"):
        certify(0, 10, np.zeros(10), replay_share=bad)
    with pytest.raises(ValueError, match="must lie in"):
        certify(0, 10, np.zeros(10), confidence=bad)


@pytest.mark.slow
def test_a_million_tokens_in_float32_certify_two_thousandths():
    """Zero violations: one position of each of 10^6 responses, and the anchors of the release tier, 20 000."""
    rng = np.random.default_rng(2)
    made = arm(rng, 0.0, FLOAT32_NOISE)
    found = audit_positions(made, rng, 1_000_000, 20_000).certificate
    assert found.violations == 0
    assert found.eps <= 0.002
    assert found.eps_replay == pytest.approx(5.3e-6, rel=0.01)
    assert certify(0, 1_000_000, made.noise[rng.integers(12, size=1_000_000)]).eps < 2e-5


@pytest.mark.parametrize("lenient", [0.0, 0.002, 0.02])
@pytest.mark.parametrize("noise", [FLOAT32_NOISE, BFLOAT16_NOISE])
def test_positions_cover(lenient, noise):
    """40 arms each at 99 %: the bound is conservative, so one miss in 240 would already be remarkable."""
    rng = np.random.default_rng([3, int(1e4 * lenient), int(1e6 * noise)])
    audited = [audit_positions(arm(rng, lenient, noise), rng, 2000, 2000) for _ in range(40)]
    assert sum(each.certificate.eps < each.truth for each in audited) <= binom.ppf(0.9995, 40, 0.01)
    assert max(each.certificate.eps for each in audited) < 0.1


@pytest.mark.medium
def test_the_simulation_would_notice_a_bound_that_is_too_small():
    """The same arms at 20 % confidence: where mismatches make up the whole distance, the bound misses often."""
    rng = np.random.default_rng(13)
    audited = [audit_positions(arm(rng, 0.2, 0.0), rng, 20_000, 20_000, confidence=0.2) for _ in range(40)]
    assert sum(each.certificate.eps < each.truth for each in audited) > 5


def test_either_term_alone_would_not_cover():
    """What the sum is for: leniency is invisible in the rows, a wrong row invisible to replay."""
    rng = np.random.default_rng(5)
    lenient = audit_positions(arm(rng, 0.2, 0.0), rng, 20_000, 20_000)
    noisy = audit_positions(arm(rng, 0.0, 0.3), rng, 20_000, 20_000)
    assert lenient.certificate.eps_numeric < lenient.truth < lenient.certificate.eps
    assert noisy.certificate.eps_replay < noisy.truth < noisy.certificate.eps


def test_a_mismatch_hits_at_least_as_often_as_the_law_is_off():
    """The coupling bound itself, by arithmetic: P(mismatch) = e (1 - beta) >= e TVD(p, q)."""
    made = arm(np.random.default_rng(6), 0.3, 0.0)
    beta = np.minimum(made.p, made.q).sum(axis=1)
    assert np.all(made.lenient * (1 - beta) >= made.distance - 1e-12)
    context = np.repeat(np.arange(12), 20_000)
    _, mismatch = decide(made, np.random.default_rng(7), context)
    rate = mismatch.reshape(12, -1).mean(axis=1)
    assert rate == pytest.approx(made.lenient * (1 - beta), abs=4 * np.sqrt(0.25 / 20_000))


def leak_score(rng, n, share):
    p, q = (rng.dirichlet(np.full(8, 0.5), size=n) for _ in range(2))
    token = np.where(rng.random(n) < share, pick(rng, q), pick(rng, p))
    scores = leak_scores(p, q)
    expected = moments(scores, p).mean
    truth = share * float(np.mean(np.sum(q * scores, axis=1) - expected))
    return PredictableScore("leak of q", 3, picked(scores, token), expected, 0.0, 1.0), truth


@pytest.mark.medium
@pytest.mark.parametrize("share", slow_unless([0.0, 0.4], [0.4]))
def test_directions_cover(share):
    rng, missed = np.random.default_rng(8), 0
    for _ in range(200):
        score, truth = leak_score(rng, 300, share)
        found = observe(3, 0.95, (score,)).directions[0]
        missed += not found.low <= truth <= found.high
    assert missed <= binom.ppf(0.9995, 200, 0.05)


def test_a_leak_leaves_zero_outside_its_direction():
    score, _ = leak_score(np.random.default_rng(9), 4000, 0.4)
    assert observe(3, 0.99, (score,)).directions[0].low > 0


def test_tokens_of_a_law_that_is_wrong_everywhere_may_look_right():
    """One fixed number per prefix: every law is a single token, far from p, and nothing shows in 4000 tokens."""
    rng = np.random.default_rng(10)
    p, q = (rng.dirichlet(np.full(8, 0.5), size=4000) for _ in range(2))
    fixed = rng.random(4000)
    token = (np.cumsum(p, axis=1) < fixed[:, None]).sum(axis=1).clip(0, 7)
    truth = float(np.mean(1.0 - p[np.arange(4000), token]))
    scores = leak_scores(p, q)
    score = PredictableScore("leak of q", 3, picked(scores, token), moments(scores, p).mean, 0.0, 1.0)
    found = observe(3, 0.99, (score,), witness(binned(p, q, token), np.arange(4000) < 2000, 0.995))
    assert truth > 0.3
    assert found.directions[0].low < 0 < found.directions[0].high
    assert found.distance_low == 0.0
    assert not any("high" in name or "upper" in name or "eps" in name for name in found.__dataclass_fields__)


def test_a_level_shows_what_it_has():
    score, _ = leak_score(np.random.default_rng(11), 50, 0.0)
    with pytest.raises(ValueError, match="level 2 does not show leak of q"):
        observe(2, 0.99, (score,))
    with pytest.raises(ValueError, match="level 1 does not show a witness"):
        observe(1, 0.99, (), WitnessEstimate(10, 0.0, 0.0, 0.99))
    assert observe(0, 0.99, ()).n == 0


def test_the_observation_spends_its_error_probability_once():
    score, _ = leak_score(np.random.default_rng(12), 500, 0.0)
    alone = observe(3, 0.99, (score,)).directions[0]
    beside = observe(3, 0.99, (score, score), WitnessEstimate(500, 0.0, 0.0, 0.995)).directions[0]
    assert beside.low < alone.low
    assert alone.high < beside.high
    with pytest.raises(ValueError, match="leaves no error probability"):
        observe(3, 0.99, (score,), WitnessEstimate(500, 0.0, 0.0, 0.99))
    with pytest.raises(ValueError, match="leaves no error probability"):
        observe(2, 0.99, (), WitnessEstimate(500, 0.0, 0.0, 0.9))

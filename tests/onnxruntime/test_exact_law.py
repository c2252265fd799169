"""The law of the engine's tokens against an exactly known one, without a reference run.

Each arm is judged by two tests, Holm-adjusted: a score test towards the draft's law and a chi-square test of all
transitions. A sound arm fails with probability `ALPHA`; seeds are fixed, so a passing test passes again. A leak of 2 %
needs about 50,000 tokens to be found with probability 0.9 at that level; the test takes twice as many.
"""

import numpy as np
import pytest
from scipy.stats import chi2, norm

from audit.stats.multiplicity import holm
from audit.stats.scores import leak_estimate, leak_scores, moments, picked, score_test

from .markov import FIRST, law, leaking, plain, running, tables, walk, write

pytestmark = pytest.mark.ort

ALPHA = 1e-3
LEAK = 0.02
TOKENS, REQUESTS = 2000, 20
PLANTED_REQUESTS = 50
ARMS = {
    "plain": {},
    "draft": {"max_draft_tokens": 4},
    "ngram": {"max_draft_tokens": 4, "ngram_size": 2},
}
SAMPLINGS = {"open": plain(1.0, TOKENS, seed=3), "cut": plain(0.7, TOKENS, top_k=6, seed=4)}
GIVEN = tables(1)


def judged(seen, p, q):
    """Adjusted p-values of both tests, and the estimated leak."""
    own, towards = p[seen.before], q[seen.before]
    scores = leak_scores(own, towards)
    expected, observed = moments(scores, own), picked(scores, seen.token)
    score = score_test(observed, expected, 1.0)
    leak = leak_estimate(observed, expected, np.sum(towards * scores, axis=1))
    return holm([score.p, transitions(seen, p)]), leak


def transitions(seen, p):
    """The p-value of a chi-square test given the tokens before; cells that expect less than 5 are joined."""
    counts = np.zeros_like(p)
    np.add.at(counts, (seen.before, seen.token), 1)
    statistic, freedom = 0.0, 0
    for row, made in zip(p[FIRST:], counts[FIRST:], strict=True):
        expected = row * made.sum()
        assert made[row == 0].sum() == 0, "a token of probability 0"
        wide = expected >= 5
        pairs = [*zip(made[wide], expected[wide], strict=True), (made[~wide].sum(), expected[~wide].sum())]
        used = [(count, due) for count, due in pairs if due > 0]
        statistic += sum((count - due) ** 2 / due for count, due in used)
        freedom += max(len(used) - 1, 0)
    return float(chi2.sf(statistic, freedom))


@pytest.fixture(scope="module")
def engines(tmp_path_factory):
    """Sound engines, and ones whose target draws 2 % of its tokens from the draft's law."""
    out = tmp_path_factory.mktemp("chains")
    made = {"sound": GIVEN, "leaking": leaking(GIVEN, LEAK)}
    return {
        (name, drafts): write(out / f"{name}-{drafts}", given, drafts=drafts)
        for name, given in made.items()
        for drafts in (False, True)
    }


def arm(engines, name, kind, sampling, requests=REQUESTS):
    with running(engines[name, kind == "draft"]) as processes:
        return walk(processes, SAMPLINGS[sampling], ARMS[kind], requests)


@pytest.mark.parametrize("sampling", SAMPLINGS)
@pytest.mark.parametrize("kind", ARMS)
def test_a_sound_engine_keeps_the_exact_law(engines, kind, sampling):
    seen = arm(engines, "sound", kind, sampling)
    p, q = (law(table, SAMPLINGS[sampling]) for table in (GIVEN.target, GIVEN.draft))
    values, leak = judged(seen, p, q)
    print(
        f"{kind}, {sampling}: {len(seen.token)} tokens, {seen.accepted} of {seen.drafted} drafts accepted, "
        f"p {min(values):.2g}, leak {leak.share:+.4f}, at most {leak.high:.4f} (99 %)"
    )
    assert (seen.drafted > 0) == (kind != "plain")
    assert min(values) >= ALPHA
    assert leak.high < LEAK


@pytest.mark.parametrize("kind", ARMS)
def test_a_planted_leak_is_found_and_the_tokens_that_it_takes_are_known(engines, kind):
    seen = arm(engines, "leaking", kind, "open", PLANTED_REQUESTS)
    p, q = (law(table, SAMPLINGS["open"]) for table in (GIVEN.target, GIVEN.draft))
    values, leak = judged(seen, p, q)
    found, missed = norm.isf(ALPHA / 4), norm.ppf(0.9)
    needed = round(len(seen.token) * ((found + missed) * leak.error / LEAK) ** 2)
    print(
        f"{kind}: a leak of {LEAK:.0%} gives p {min(values):.2g} with {len(seen.token)} tokens, "
        f"estimate {leak.share:.4f}; {needed} tokens find it with probability 0.9 at level {ALPHA:g}"
    )
    assert min(values) < ALPHA
    assert leak.low > 0
    assert leak.share == pytest.approx(LEAK, abs=4 * leak.error)
    assert needed < len(seen.token)

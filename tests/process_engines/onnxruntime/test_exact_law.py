"""The law of the engine's tokens against an exactly known one, without a reference run.

Each arm is judged by two tests, Holm-adjusted: a score test towards the draft's law and a chi-square test of all
transitions. A sound arm fails with probability `ALPHA`; seeds are fixed, so a passing test passes again. A leak of 2 %
needs about 50,000 tokens to be found with probability 0.9 at that level; the test takes twice as many.
"""

import pytest

from audit.selftest.chains import ALPHA, SEED, judge_walk, law, leaking, tables
from audit.selftest.engines import QUICK, run_controls

from .markov import plain, running, walk, write

pytestmark = pytest.mark.ort

LEAK = 0.02
TOKENS, REQUESTS = 2000, 20
PLANTED_REQUESTS = 50
ARMS = {"plain": {}, "draft": {"max_draft_tokens": 4}, "ngram": {"max_draft_tokens": 4, "ngram_size": 2}}
SAMPLINGS = {"open": plain(1.0, TOKENS, seed=3), "cut": plain(0.7, TOKENS, top_k=6, seed=4)}
GIVEN = tables(SEED)


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
    counted = arm(engines, "sound", kind, sampling)
    judged = judge_walk(counted.seen, *(law(table, SAMPLINGS[sampling]) for table in (GIVEN.target, GIVEN.draft)))
    print(
        f"{kind}, {sampling}: {judged.tokens} tokens, {counted.accepted} of {counted.drafted} drafts accepted, "
        f"p {judged.p:.2g}, leak {judged.leak.share:+.4f}, at most {judged.leak.high:.4f} (99 %)"
    )
    assert (counted.drafted > 0) == (kind != "plain")
    assert not judged.departs
    assert judged.leak.high < LEAK


@pytest.mark.parametrize("kind", ARMS)
def test_a_planted_leak_is_found_and_the_tokens_that_it_takes_are_known(engines, kind):
    counted = arm(engines, "leaking", kind, "open", PLANTED_REQUESTS)
    judged = judge_walk(counted.seen, *(law(table, SAMPLINGS["open"]) for table in (GIVEN.target, GIVEN.draft)))
    print(
        f"{kind}: a leak of {LEAK:.0%} gives p {judged.p:.2g} with {judged.tokens} tokens, estimate "
        f"{judged.leak.share:.4f}; {judged.needed(LEAK)} tokens find it with probability 0.9 at level {ALPHA:g}"
    )
    assert judged.departs
    assert judged.leak.low > 0
    assert judged.leak.share == pytest.approx(LEAK, abs=4 * judged.leak.error)
    assert judged.needed(LEAK) < judged.tokens


def test_the_self_test_runs_the_same_control():
    controls = run_controls(QUICK, print)
    assert controls.failures() == []
    assert {result.arm for result in controls.results} == {"plain", "draft_model", "ngram"}
    assert [line for line in controls.skipped if "onnxruntime-genai" in line] == []

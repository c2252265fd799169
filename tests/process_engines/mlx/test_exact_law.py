"""The exactly known law of Markov chains in mlx_lm, and a leak of the draft's law that is planted in the weights.

The chain is a model of the family llama, so the engine reads it as it is. Each arm is judged by two tests,
Holm-adjusted: a sound arm fails with probability `ALPHA`; the seeds are fixed, so a passing test passes again.
"""

import pytest

from audit.selftest.chains import ALPHA, FIRST, SEED, judge_walk, law, leaking, tables, write_chain
from audit.selftest.engines import walk_of
from engine.backends.engine_spec import EngineSpec, ModelSource
from engine.backends.mlx_lm.backend import MlxBackend
from engine.core.types import Protocol, RecordLevel, Request, SamplingParams

pytestmark = pytest.mark.mlx

LEAK = 0.1
GIVEN = tables(SEED)
TOKENS, REQUESTS = 700, 8
ARMS = {"plain": {}, "draft": {"proposer": "draft_model", "gamma": 4, "draft": "draft"}}


def judged(folder, python, name, target):
    sources = {"target": target, "draft": GIVEN.draft}
    folders = {name: write_chain(folder / name, table) for name, table in sources.items()}
    backend = MlxBackend({name: ModelSource(str(place)) for name, place in folders.items()})
    plan = EngineSpec(Protocol.CHAIN, rows=1, level=RecordLevel.TOKENS, engine={"python": python}, **ARMS[name])
    sampling = SamplingParams(temperature=1.0, max_new_tokens=TOKENS, seed=3)
    requests = [Request(f"r{at}", (FIRST + at,), sampling, at) for at in range(REQUESTS)]
    try:
        seen = walk_of(backend.arm(plan).generate(requests))
    finally:
        backend.close()
    return judge_walk(seen, *(law(table, sampling) for table in (GIVEN.target, GIVEN.draft)))


@pytest.mark.parametrize("name", ARMS)
def test_a_sound_engine_keeps_the_exact_law(tmp_path, mlx_python, name):
    found = judged(tmp_path, mlx_python, name, GIVEN.target)
    print(f"{name}: {found.tokens} tokens, p {found.p:.2g}, leak {found.leak.share:+.4f}")
    assert not found.departs


@pytest.mark.parametrize("name", ARMS)
def test_a_planted_leak_is_found(tmp_path, mlx_python, name):
    found = judged(tmp_path, mlx_python, name, leaking(GIVEN, LEAK).target)
    print(
        f"{name}: a leak of {LEAK:.0%} gives p {found.p:.2g} with {found.tokens} tokens; {found.needed(LEAK)} tokens "
        f"find it with probability 0.9 at level {ALPHA:g}, {found.needed(0.02)} find one of 2 %"
    )
    assert found.departs
    assert found.leak.low > 0

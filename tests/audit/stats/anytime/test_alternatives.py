import math
from dataclasses import fields, replace
from functools import reduce
from itertools import accumulate

import numpy as np
import pytest
from scipy.stats import binom

from audit.stats.anytime import alternatives
from audit.stats.anytime.alternatives import (
    NAMES,
    NO_TOKEN,
    AnytimeTest,
    Chunk,
    _averages,
    _spread,
    grown,
    log_ratios_of,
    ranking,
    start,
    summary,
)
from tests.audit.stats.chains import chain, chunk, laws_of, toy
from tests.support.tiers import fast_first


def extend(evidence, piece):
    """The evidence after a chunk."""
    return grown(evidence, log_ratios_of(piece))


def test_names_are_stable_and_unique():
    assert len(set(NAMES)) == len(NAMES) == 233
    for name in (
        "draft leak 0.9",
        "position 0: draft leak 0.9",
        "position 7 and on: p to the power 0.7",
        "last draft: draft leak 0.9",
        "bonus: previous row 0.9",
        "bonus: argmax leak 0.1",
        "repeat of the previous token 0.05",
        "refused draft token 0.5",
    ):
        assert name in NAMES


def test_prior_weights_add_up_to_one_and_favour_the_whole_run():
    found = ranking(start(), len(NAMES))
    assert sum(each.share for each in found) == pytest.approx(1.0)
    assert sum(each.share for each in found if ": " not in each.name) == pytest.approx(0.5)


@pytest.mark.parametrize("depth", [0, 3, 9])
@pytest.mark.parametrize("bonus", [False, True])
def test_every_alternative_is_a_law(depth, bonus):
    rng = np.random.default_rng(depth)
    cells = 9
    law, q, previous = (rng.dirichlet(np.full(cells, 0.5)) for _ in range(3))
    p = np.tile(law, (cells, 1))
    same = np.full(cells, depth), np.full(cells, bonus), np.full(cells, depth == 3)
    ratios = _spread(
        log_ratios_of(Chunk(p, q, previous, np.arange(cells), *same, np.full(cells, 2), np.full(cells, 5)))
    )
    assert ratios.shape == (cells, len(NAMES))
    assert p[0] @ np.exp(ratios) == pytest.approx(np.ones(len(NAMES)))
    moved = {name for name, column in zip(NAMES, ratios.T, strict=True) if column.any()}
    stratum = "bonus: " if bonus else f"position {min(depth, 7)}"
    assert {name.split(": ")[0] for name in moved if ": " in name} <= {
        stratum.strip(": "),
        "position 7 and on",
        "last draft",
    }
    assert any(name.startswith(stratum) for name in moved)


def test_what_is_unknown_moves_nothing():
    world = toy(1)
    run = chain(world, np.random.default_rng(1), 1, 50)
    full = chunk(world, run, 0)
    unknown = np.full(50, np.nan)
    nothing = np.full(50, NO_TOKEN)
    bare = replace(full, q=unknown, previous=unknown, repeated=nothing, refused=nothing)
    moved = [name for name, column in zip(NAMES, _spread(log_ratios_of(bare)).T, strict=True) if column.any()]
    assert moved
    assert all("power" in name or "argmax" in name for name in moved)


@pytest.mark.medium
def test_cutting_into_chunks_makes_no_difference():
    world = toy(2)
    run = chain(world, np.random.default_rng(2), 1, 3000, "lenient", 0.05)
    whole = chunk(world, run, 0)
    at_once, piecewise = extend(start(), whole), start()
    for begin in range(0, 3000, 701):
        part = Chunk(*(getattr(whole, field.name)[begin : begin + 701] for field in fields(Chunk)))
        piecewise = extend(piecewise, part)
    assert piecewise.log_wealth == pytest.approx(at_once.log_wealth)
    assert piecewise.log_max == pytest.approx(at_once.log_max)
    assert (piecewise.n, piecewise.crossing, piecewise.crossed_by) == (3000, at_once.crossing, at_once.crossed_by)


@pytest.mark.medium
@pytest.mark.parametrize(("fault", "share"), [("", 0.0), ("lenient", 0.05), ("lenient", 0.5)])
def test_averages_that_are_left_out_change_no_bit(monkeypatch, fault, share):
    """The average is computed only where it may reach a new maximum; with a bound of infinity, everywhere."""
    world = toy(2)
    run = chain(world, np.random.default_rng(2), 1, 4000, *((fault, share) if fault else ()))
    whole = chunk(world, run, 0)
    parts = [Chunk(*(getattr(whole, field.name)[at : at + 97] for field in fields(Chunk))) for at in range(0, 4000, 97)]

    def states():
        return list(accumulate(parts, extend, initial=start()))

    averaged = []
    monkeypatch.setattr(alternatives, "_averages", lambda paths: averaged.append(len(paths)) or _averages(paths))
    quick = states()
    spared = sum(averaged) < 4000 / 2
    monkeypatch.setattr(alternatives, "_at_most", lambda log_wealth: math.inf)
    for one, other in zip(quick, states(), strict=True):
        assert one.log_wealth.tobytes() == other.log_wealth.tobytes()
        assert replace(one, log_wealth=other.log_wealth) == other
        assert one.log_final == other.log_final
    assert spared or fault


@pytest.mark.medium
def test_lumped_cells_keep_the_martingale_and_most_of_the_power():
    """Top four of p and of q and a tail, 300 null runs: ever crossing 0.05 stays within its rate."""
    world, rng = toy(3), np.random.default_rng(3)
    run = chain(world, rng, 300, 120)
    crossed = sum(summary(extend(start(), lumped(world, run, each))).p < 0.05 for each in range(300))
    assert crossed <= binom.ppf(0.9995, 300, 0.05)
    broken = chain(world, rng, 1, 4000, "lenient", 0.3)
    found = summary(extend(start(), lumped(world, broken, 0)))
    assert found.p < 1e-6
    assert found.leader.startswith("draft leak")


def lumped(world, run, request):
    """The four largest cells of p and the rest as one; all columns moved onto those cells."""
    whole = chunk(world, run, request)
    order = np.argsort(-whole.p, axis=1, kind="stable")
    place = np.minimum(np.argsort(order, axis=1), 4)
    rows = np.arange(len(place))

    def moved(law):
        return np.stack([np.where(place == cell, law, 0.0).sum(axis=1) for cell in range(5)], axis=1)

    def at(token):
        return np.where(token >= 0, place[rows, np.maximum(token, 0)], NO_TOKEN)

    laws = {name: moved(law) for name, law in laws_of(world, run, request).items()}
    places = {name: at(getattr(whole, name)) for name in ("token", "repeated", "refused")}
    own = {name: laws[name][rows, places["token"]] for name in ("q", "previous")}
    return replace(whole, p=laws["p"], **own, **places)


@pytest.mark.slow
def test_ever_crossing_is_rarer_than_its_level():
    """600 clean runs of 200 tokens, watched at every token; 0.9995 quantile of the binomial law at 0.05."""
    crossed = 0
    for seed in range(6):
        world = toy(seed)
        run = chain(world, np.random.default_rng([seed, 7]), 100, 200)
        crossed += sum(
            summary(extend(start(0.05), chunk(world, run, each))).crossing is not None for each in range(100)
        )
    assert crossed <= binom.ppf(0.9995, 600, 0.05)


@pytest.mark.medium
def test_a_token_refused_at_its_own_position_may_be_bet_on():
    """The bet only loses on a clean engine, and names an engine that emits what it refused."""
    world, rng = toy(4), np.random.default_rng(4)
    clean, broken = chain(world, rng, 1, 3000), chain(world, rng, 1, 300, "emitted", 0.3)
    found = extend(start(), chunk(world, clean, 0, here=True))
    shares = [NAMES.index(f"refused draft token {share}") for share in (0.01, 0.1, 0.5)]
    assert np.all(found.log_wealth[shares] < -1)
    assert summary(found).p > 0.01
    assert summary(extend(start(), chunk(world, broken, 0, here=True))).leader.startswith("refused draft token")


@pytest.mark.medium
@pytest.mark.parametrize(
    ("fault", "share", "tokens", "named"),
    fast_first(
        [
            ("lenient", 0.3, 4000, "draft leak"),
            ("first", 1.0, 3000, "position 0: draft leak"),
            ("last", 1.0, 6000, ("last draft: draft leak", "position 3: draft leak")),
            ("hot", 1.0, 3000, "p to the power 0.7"),
            ("argmax", 0.1, 4000, "argmax leak"),
            ("repeat", 0.1, 3000, "repeat of the previous token"),
            ("stale_row", 0.3, 2000, "previous row"),
            ("bonus_row", 1.0, 2000, "bonus: previous row"),
            ("residue", 0.5, 2000, "refused draft token"),
        ],
        3,
    ),
)
def test_the_leader_names_the_fault(fault, share, tokens, named):
    """Five worlds each: the evidence crosses 0.01 in all of them and names the fault in at least four."""
    right = 0
    for seed in range(5):
        world = toy(seed + 10)
        run = chain(world, np.random.default_rng([seed, 1]), 20, tokens // 20, fault, share)
        found = summary(reduce(extend, (chunk(world, run, each) for each in range(20)), start()))
        assert found.crossing is not None
        right += found.leader.startswith(named)
    assert right >= 4


@pytest.mark.medium
def test_evidence_keeps_its_maximum_when_the_fault_stops():
    world, rng = toy(5), np.random.default_rng(5)
    broken, clean = chain(world, rng, 1, 800, "stale_row", 0.5), chain(world, rng, 1, 5000)
    first = extend(start(), chunk(world, broken, 0))
    second = extend(first, chunk(world, clean, 0))
    assert second.log_max >= first.log_max > second.log_final
    assert (second.crossing, second.crossed_by) == (first.crossing, first.crossed_by)


def test_an_impossible_token_is_refused():
    whole = chunk(toy(6), chain(toy(6), np.random.default_rng(6), 1, 5), 0)
    p = whole.p.copy()
    p[3, whole.token[3]] = 0.0
    with pytest.raises(ValueError, match="token 3 of the chunk has no probability"):
        extend(start(), replace(whole, p=p))


def test_nothing_observed_is_no_evidence():
    assert summary(start()) == AnytimeTest(0, 0.0, 0.0, 1.0, None, "")

"""Random numbers are a function of their key and of nothing else."""

from concurrent.futures import ThreadPoolExecutor
from itertools import product

import numpy as np
import pytest
from scipy import stats

from engine.sampling.rng import STEP_SHIFT, Purpose, Randomness, stream_of, uniforms_at

STREAM = 4136310860478791043
NUMBERS = [
    0.21398249857506324,
    0.3265791227214988,
    0.7078565394166351,
    0.857885116635932,
    0.3375433833021142,
    0.8934674164969442,
    0.5589526386453234,
    0.343981651078453,
    0.4045987229551353,
    0.8477209628142498,
]
NOISE = [-1.49545161157695, -0.3511371183614871, -0.7859067841514997]


def test_the_same_key_gives_the_same_numbers_in_any_order():
    keys = [(position, purpose) for position in range(5) for purpose in Purpose]
    first = {key: Randomness(3, 9).uniform(*key) for key in keys}
    one = Randomness(3, 9)
    assert {key: one.uniform(*key) for key in reversed(keys)} == first


def test_every_part_of_the_key_matters():
    found = [
        Randomness(seed, stream).uniform(position, purpose, index)
        for seed, stream, position, purpose, index in product((0, 1), (0, 1, 2**64 - 1), (0, 1, 500), Purpose, (0, 1))
    ]
    assert len(set(found)) == len(found)


def test_blocks_of_one_key_never_run_into_the_next():
    """A row of noise for a large vocabulary must not reach the numbers of another position, index or purpose."""
    row = set(Randomness(1, 2).uniforms(7, Purpose.TARGET, 50_000).tolist())
    for position, purpose, index in ((8, Purpose.TARGET, 0), (7, Purpose.DRAFT, 0), (7, Purpose.TARGET, 1)):
        assert not row & set(Randomness(1, 2).uniforms(position, purpose, 1000, index).tolist())


def test_a_longer_row_begins_with_the_shorter_one():
    one = Randomness(1, 2)
    np.testing.assert_array_equal(one.uniforms(4, Purpose.DRAFT, 9)[:4], one.uniforms(4, Purpose.DRAFT, 4))
    assert one.uniform(4, Purpose.DRAFT) == one.uniforms(4, Purpose.DRAFT, 1)[0]


def test_known_numbers():
    """The numbers are part of the format: a record is replayed with them on any machine and version."""
    one = Randomness(2**63 - 1, stream_of("case-1#0"))
    assert stream_of("case-1#0") == STREAM
    got = [one.uniform(17, purpose) for purpose in Purpose] + [one.uniform(17, Purpose.ACCEPT, 3)]
    assert got == NUMBERS
    np.testing.assert_allclose(Randomness(0, 0).gumbel(0, 3), NOISE, rtol=1e-14)


def test_purposes_have_their_numbers():
    assert {purpose.name: purpose.value for purpose in Purpose} == {
        "TARGET": 0,
        "DRAFT": 1,
        "ACCEPT": 2,
        "RESIDUAL": 3,
        "BONUS": 4,
        "INNER_DRAFT": 5,
        "INNER_ACCEPT": 6,
        "INNER_RESIDUAL": 7,
        "INNER_BONUS": 8,
    }


def test_against_philox_itself():
    """Key (seed, stream), counter (0, index, position, purpose)."""
    counter = np.array([0, 6, 5, Purpose.BONUS], dtype=np.uint64)
    reference = np.random.Philox(key=np.array([3, 4], dtype=np.uint64), counter=counter)
    expected = (reference.random_raw(10) >> np.uint64(11)) * 2.0**-53
    np.testing.assert_array_equal(Randomness(3, 4).uniforms(5, Purpose.BONUS, 10, index=6), expected)


@pytest.mark.parametrize("purpose", list(Purpose))
def test_numbers_are_uniform_over_positions(purpose):
    one = Randomness(11, stream_of("uniform"))
    numbers = [one.uniform(position, purpose) for position in range(3000)]
    assert min(numbers) >= 0
    assert max(numbers) < 1
    assert stats.kstest(numbers, "uniform").pvalue > 1e-3
    assert abs(np.corrcoef(numbers[1:], numbers[:-1])[0, 1]) < 4 / np.sqrt(3000)


def test_purposes_at_one_position_are_uncorrelated():
    one = Randomness(12, 0)
    table = np.array([[one.uniform(position, purpose) for purpose in Purpose] for position in range(2000)])
    off = np.corrcoef(table.T)[~np.eye(len(Purpose), dtype=bool)]
    assert np.abs(off).max() < 4 / np.sqrt(2000)


def test_neighbouring_streams_are_uncorrelated():
    table = np.array([Randomness(0, stream).uniforms(0, Purpose.TARGET, 2000) for stream in range(4)])
    assert np.abs(np.corrcoef(table)[~np.eye(4, dtype=bool)]).max() < 4 / np.sqrt(2000)


def test_gumbel_noise_has_its_law_and_is_finite():
    noise = Randomness(5, 6).gumbel(3, 4000)
    assert np.isfinite(noise).all()
    assert stats.kstest(noise, "gumbel_r").pvalue > 1e-3


def test_threads_do_not_matter():
    one = Randomness(7, 8)
    expected = [one.uniforms(position, Purpose.ACCEPT, 3).tolist() for position in range(200)]
    with ThreadPoolExecutor(4) as pool:
        got = list(pool.map(lambda position: one.uniforms(position, Purpose.ACCEPT, 3).tolist(), range(200)))
    assert got == expected


def test_streams_come_from_names():
    assert stream_of("a") != stream_of("b")
    assert 0 <= stream_of("a") < 2**64


def keys_and_places(count):
    """Random seeds, streams and places; the ends of every range are among them."""
    rng = np.random.default_rng(5)
    for _ in range(count):
        yield (
            int(rng.choice([0, 1, 2**63 - 1, rng.integers(2**63)])),
            int(rng.choice(np.array([0, 1, 2**64 - 1, rng.integers(2**64, dtype=np.uint64)], np.uint64))),
            int(rng.choice([0, 1, 2**31, 2**32 - 1, 2**32, rng.integers(2**40)])),
            Purpose(int(rng.integers(len(Purpose)))),
            int(rng.choice([0, 1, 2, 2**32, rng.integers(2**20)])),
        )


def by_numpy(seed, stream, position, last, index):
    counter = np.array([0, index, position, last], dtype=np.uint64)
    return np.random.Generator(np.random.Philox(key=np.array([seed, stream], np.uint64), counter=counter)).random()


@pytest.mark.medium
def test_one_number_is_numpys_first_to_the_last_bit():
    for seed, stream, position, purpose, index in keys_and_places(2000):
        one = Randomness(seed, stream)
        assert one.uniform(position, purpose, index) == by_numpy(seed, stream, position, purpose, index)
        step = position // 2
        last = purpose | (step + 1) << STEP_SHIFT
        expected = by_numpy(seed, stream, position, last, index)
        assert one.of_step(step).uniform(position, purpose, index) == expected


def test_many_places_at_once_are_the_single_ones_to_the_last_bit():
    places = np.array([place[2:] for place in keys_and_places(400)])
    positions, purposes, indices = places.T
    for seed, stream in [place[:2] for place in keys_and_places(12)]:
        one = Randomness(seed, stream)
        single = [one.uniform(position, Purpose(purpose), index) for position, purpose, index in places.tolist()]
        assert uniforms_at(seed, stream, positions, purposes, indices).tolist() == single
        steps = positions // 3
        single = [
            one.of_step(step).uniform(position, Purpose(purpose), index)
            for step, (position, purpose, index) in zip(steps.tolist(), places.tolist(), strict=True)
        ]
        assert uniforms_at(seed, stream, positions, purposes, indices, steps).tolist() == single


def test_places_without_a_purpose_have_no_number():
    positions, purposes = np.arange(6), np.array([1, -1, 2, -1, -1, 3])
    drawn, numbers = purposes >= 0, uniforms_at(1, 2, positions, purposes, steps=positions // 2)
    assert np.isnan(numbers[~drawn]).all()
    kept = uniforms_at(1, 2, positions[drawn], purposes[drawn], steps=(positions // 2)[drawn])
    assert numbers[drawn].tolist() == kept.tolist()


def test_no_place_gives_no_number():
    nothing = np.empty(0, np.int64)
    assert uniforms_at(1, 2, nothing, nothing).shape == (0,)

"""The search for a skip set, on the bundled target and on scripted agreement."""

import itertools
import random

import pytest
import torch

from engine.core.errors import InvalidRequest
from engine.models.interface import WantedOutputs, chain_placement
from engine.models.loading import load_model
from engine.models.scripted import ScriptedModel, table_script
from engine.proposers.self_draft import SkipSet
from engine.record.cost import best_gamma, speedup
from engine.tools import find_skips as skipping
from engine.tools.find_skips import SkipSetBench, neighbours, search, share_run, windows
from tests.support.tiers import fast_first

TEXT = (
    "Write a story about a small fox. Once upon a time there was a fox. Repeat after me: the fox, the dog, the hen. "
    'Return JSON with the fields name and age. {"name": "Ada", "age": 36}\n'
) * 3
LAYERS = 4


@pytest.fixture(scope="module")
def loaded():
    torch.set_num_threads(1)
    return load_model("bundled:target", numerics="fixed")


@pytest.fixture(scope="module")
def sequences(loaded):
    return windows(loaded.tokenizer(TEXT)["input_ids"], 3, 24)


@pytest.fixture
def make_bench(loaded, sequences):
    return lambda budget=200: SkipSetBench(loaded.model, sequences, budget)


def random_sets(size, count):
    rng = random.Random(5)
    everything = [(kind, index) for kind in (0, 1) for index in range(LAYERS)]
    for _ in range(count):
        drawn = rng.sample(everything, size)
        yield SkipSet(*(tuple(sorted(i for kind, i in drawn if kind == which)) for which in (0, 1)))


@pytest.mark.parametrize("size", [1, 2, 3])
@pytest.mark.parametrize("budget", fast_first([30, 200]))
@pytest.mark.slow
def test_the_found_set_is_at_least_as_good_as_random_ones_of_its_size(size, budget, make_bench):
    found = search(make_bench(budget), least=size)
    assert len(found.skips) >= size
    judge = make_bench()
    trials = [judge.measure(each) for each in random_sets(len(found.skips), 20)]
    assert all(found.speed >= trial.speed and found.agreed >= trial.agreed for trial in trials)
    assert any(found.agreed > trial.agreed for trial in trials)


@pytest.mark.slow
def test_equal_inputs_give_equal_sets(make_bench):
    assert search(make_bench(), least=2) == search(make_bench(), least=2)


@pytest.mark.medium
def test_skipping_nothing_agrees_everywhere_and_gains_nothing(make_bench):
    bench = make_bench()
    trial = bench.measure(SkipSet())
    assert (trial.agreed, trial.positions, trial.speed) == (72, 72, 1.0)
    assert search(bench).speed >= 1.0


@pytest.mark.medium
def test_agreement_is_that_of_the_first_drafted_token(loaded, sequences, make_bench):
    """Recomputed one position at a time: the target reads the tokens before it, the part its own."""
    model, skips = loaded.model, SkipSet((1,), (2,))
    agreed = 0
    for tokens in sequences:
        cache = model.new_cache(1, len(tokens))
        whole = model.forward(cache, chain_placement([tokens], [0], cache.trash), WantedOutputs()).logits[0].argmax(-1)
        for at, token in enumerate(tokens):
            place = chain_placement([[token]], [at], cache.trash)
            part = model.forward(cache, place, WantedOutputs(part=skips.part(LAYERS))).logits[0, 0].argmax()
            agreed += bool(part == whole[at])
            model.forward(cache, place, WantedOutputs(logits=False))
    trial = make_bench().measure(skips)
    assert trial.agreed == agreed
    assert 0 < agreed < trial.positions


def test_ragged_sequences_count_each_position_once(loaded, sequences):
    ragged = [sequences[0][:7], sequences[1], sequences[2][:1]]
    together = SkipSetBench(loaded.model, ragged, 9).measure(SkipSet((2,), ()))
    alone = [SkipSetBench(loaded.model, [each], 9).measure(SkipSet((2,), ())) for each in ragged]
    assert (together.agreed, together.positions) == (sum(each.agreed for each in alone), 32)


def test_the_expected_speed_is_that_of_the_cost_model(make_bench):
    skips = SkipSet((1,), (0, 2))
    trial, rho = make_bench().measure(skips), share_run(skips, LAYERS)
    alpha = trial.agreed / trial.positions
    assert rho == 6 / 9
    assert trial.speed == max(speedup(alpha, gamma, rho) for gamma in range(1, 9))
    assert best_gamma(alpha, rho, most=8) in (0, trial.gamma)


class Table:
    """A bench that knows every set's agreement; `values` gives it from the set."""

    def __init__(self, layers, budget, values):
        self.layers, self.left, self._values, self.asked = layers, budget, values, []

    def measure(self, skips):
        self.left -= 1
        self.asked.append(skips)
        return SkipSetBench._trial(self, skips, self._values(skips), 100)

    measured = SkipSetBench.measured


def test_a_set_that_growing_misses_is_found_by_exchanging():
    """The best single sublayer is not in the best pair."""
    known = {SkipSet(): 100, SkipSet((0,)): 99, SkipSet((0,), (0,)): 96, SkipSet((1,), (0,)): 98}
    table = Table(2, 200, lambda skips: known.get(skips, 80 if len(skips) == 1 else 5))
    assert search(table).skips == SkipSet((1,), (0,))


@pytest.mark.medium
def test_the_budget_is_kept_and_no_set_is_measured_twice(make_bench):
    table = Table(3, 12, lambda skips: 100 - 5 * len(skips))
    search(table)
    assert len(table.asked) == 12
    bench = make_bench(50)
    search(bench)
    left = bench.left
    search(bench)
    assert bench.left == left >= 0


def test_a_budget_that_ends_too_early_is_refused(make_bench):
    with pytest.raises(InvalidRequest, match="no set of 5 sublayers was reached"):
        search(make_bench(4), least=5)


def test_neighbours_differ_in_one_sublayer():
    here = SkipSet((0,), (1,))
    near = list(neighbours(here, 2))
    sizes = [len(each) for each in near]
    assert (sizes.count(3), sizes.count(1), sizes.count(2)) == (2, 2, 4)
    assert len(set(near)) == len(near) == 8
    assert here not in near


@pytest.mark.parametrize("lengths", [[], [0], [513]])
def test_sequences_must_fit_the_context_twice(lengths, loaded):
    with pytest.raises(InvalidRequest, match="sequences of 1 to 512 tokens"):
        SkipSetBench(loaded.model, [[5] * length for length in lengths], 9)


def test_a_target_that_runs_whole_only_is_refused():
    with pytest.raises(InvalidRequest, match="loader: lean"):
        SkipSetBench(ScriptedModel(table_script(1, 8), 8), [[1, 2]], 9)


def test_windows_are_spread_over_the_text():
    assert windows(range(10), 2, 3) == [[0, 1, 2], [5, 6, 7]]
    assert windows(range(7), 2, 3) == [[0, 1, 2], [3, 4, 5]]
    assert list(itertools.chain(*windows(range(6), 2, 3))) == list(range(6))
    for count, length in ((3, 3), (0, 1), (1, 0)):
        with pytest.raises(InvalidRequest, match="sequences of"):
            windows(range(8), count, length)


@pytest.mark.medium
def test_the_command_prints_the_proposer_s_options(tmp_path, capsys):
    data = tmp_path / "data.txt"
    data.write_text(TEXT, encoding="utf-8")
    arguments = ["--target", "bundled:target", "--data", str(data), "--sequences", "2", "--length", "16"]
    skipping.main([*arguments, "--budget", "40", "--least", "2"])
    options, measured = capsys.readouterr().out.splitlines()
    assert options.startswith('options: {skip_attention: "')
    assert "of 32 argmaxes agree" in measured
    with pytest.raises(SystemExit):
        skipping.main([*arguments, "--least", "99"])
    assert "no set of 99 sublayers was reached" in capsys.readouterr().err
